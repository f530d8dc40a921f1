"""A certificate that what follows the answers is post-processing: with the same answers
two neighbouring tables, in any order of their rows, are asked the same questions, and
the same bytes are published.
"""

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pdips.audit.neighbour_pairs import Pair, check_relation
from pdips.audit.path_loss import measured_differences, question_differences
from pdips.audit.random_pairs import shuffled
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.mechanism import Mechanism
from pdips.privacy.path import AnswerPath, PathRun, follow
from pdips.privacy.plan import Plan
from pdips.release.release import Release

LEVEL = 4.0  # Records in each number that is answered: sets aren't empty, nor long


@dataclass(frozen=True, kw_only=True)
class PostprocessingCertificate:
    """What differed between tables although all answers were the same.

    Parameters
    ----------
    mechanism, settings, neighbours, pair : str
        What was tried.
    questions : tuple of str
        Questions that differ: their names, masks, shapes, scales or candidates.
    outputs : tuple of str
        What would be published and differs, file by file.
    n_questions, n_outputs : int
        How many there are.
    refusal : str
        Why the mechanism refused to go on, if it did, for all tables.

    Examples
    --------
    >>> from pdips.audit.neighbour_pairs import worst_pairs
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> pair = worst_pairs(schema, "replace-one")[0]
    >>> certificate = certify_postprocessing(LaplaceSanitizer(epsilon=1), pair)
    >>> certificate.holds, certificate.n_questions
    (True, 1)
    """

    mechanism: str
    settings: str
    neighbours: str
    pair: str
    questions: tuple[str, ...]
    outputs: tuple[str, ...]
    n_questions: int
    n_outputs: int
    refusal: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return not (self.questions or self.outputs)

    def describe(self) -> dict[str, Any]:
        """Return the certificate as plain values."""
        return {**asdict(self), "holds": self.holds}


def certify_postprocessing(
    mechanism: Any,
    pair: Pair,
    *,
    seed: int = 0,
    plan: Plan | None = None,
) -> PostprocessingCertificate:
    """Follow whole releases of two neighbouring tables along one path of answers, and
    compare all that would be published.

    Parameters
    ----------
    mechanism : Mechanism
        With a plan.
    pair : Pair
        Two neighbouring tables.
    seed : int
        Of the answers, and of post-processing. Public.
    plan : Plan, optional
        The mechanism's for this schema, if it is known.

    Examples
    --------
    >>> from pdips.audit.neighbour_pairs import worst_pairs
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> pair = worst_pairs(schema, "add-remove")[0]
    >>> made = Margins(epsilon=8, neighbours="add-remove", delta="1e-6")
    >>> certify_postprocessing(made, pair).outputs
    ()
    """
    if not isinstance(mechanism, Mechanism):
        raise InputError("a certificate is for mechanisms that have a plan")
    check_relation(mechanism, pair)
    plan = plan or mechanism.plan(pair.first.schema)
    path = AnswerPath(seed=seed, level=LEVEL)
    first = follow(mechanism, plan, pair.first, path, whole=True)
    published = _published(mechanism, plan, first)
    crossed = follow(mechanism, plan, pair.second, path, measured=pair.first)
    questions = list(measured_differences(first, crossed))
    outputs = list[str]()
    for table in (pair.second, *_reordered(pair.first, seed)):
        run = follow(mechanism, plan, table, path, whole=True)
        questions += question_differences(first, run)
        outputs += _unlike(published, _published(mechanism, plan, run))
    differing_questions = tuple(dict.fromkeys(questions))
    differing_outputs = tuple(dict.fromkeys(outputs))
    return PostprocessingCertificate(
        mechanism=mechanism.name,
        settings=repr(mechanism),
        neighbours=mechanism.neighbours,
        pair=pair.name,
        questions=differing_questions,
        outputs=differing_outputs,
        n_questions=len(first.questions),
        n_outputs=len(published),
        refusal=first.refusal,
    )


def _unlike(published: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the names of what differs, or is published of one table only."""
    names = sorted({*published, *other})
    return [name for name in names if published.get(name) != other.get(name)]


def _reordered(table: Table, seed: int) -> list[Table]:
    if table.counts is not None or table.schema.members is not None:
        return []
    return [shuffled(table, np.random.default_rng(seed))]


def _published(mechanism: Mechanism, plan: Plan, run: PathRun) -> dict[str, str]:
    """Return a digest of each thing that would be published of a run."""
    if run.drawn is None:
        return {}
    release = mechanism.as_release(plan, run.drawn, answers=run.answers)
    # The random name of a release is drawn anew each time, and reads no record.
    return digests(replace(release, identifier="0" * 16))


def digests(release: Release) -> dict[str, str]:
    """Return a digest of everything that a release would publish, by name: the files
    byte by byte, and the frames that they are written from with their types, indices
    and order.
    """
    of_all = _file_digests(release)
    frames = {f"set {number}": frame for number, frame in enumerate(release.sets)}
    frames |= {
        f"statistics {name}": frame for name, frame in release.statistics.items()
    }
    frames |= {f"table {name}": frame for name, frame in release.tables.items()}
    for name, frame in frames.items():
        of_all[name] = frame_digest(frame)
    for name in ("loss", "spends", "noise", "margin_errors"):
        stated = repr(getattr(release, name))
        of_all[name] = hashlib.sha256(stated.encode()).hexdigest()
    of_all["order"] = repr([*release.statistics, *release.tables])
    return of_all


def _file_digests(release: Release) -> dict[str, str]:
    of_files = dict[str, str]()
    with tempfile.TemporaryDirectory() as folder:
        release.write(folder)
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                name = path.relative_to(folder).as_posix()
                of_files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return of_files


def frame_digest(frame: pd.DataFrame) -> str:
    """Return a digest of a frame: names, types, index and values in their order."""
    digest = hashlib.sha256(repr([*frame.dtypes.items()]).encode())
    digest.update(repr((type(frame.index).__name__, len(frame))).encode())
    digest.update(pd.util.hash_pandas_object(frame.index).to_numpy().tobytes())
    for name in frame:
        digest.update(frame[name].to_csv(index=False).encode())
    return digest.hexdigest()
