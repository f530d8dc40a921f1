"""The whole evaluation for the curator, as it is written to ``confidential/evaluation.json``."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pdips.errors import InputError
from pdips.evaluation.evaluate import SEED, general_utility
from pdips.evaluation.formula import read_analysis
from pdips.evaluation.glm import Family
from pdips.evaluation.opened import open_release, open_table
from pdips.evaluation.pictured import pictured
from pdips.evaluation.specific import specific_utility
from pdips.privacy.curator import Clock
from pdips.release.documents import write_json
from pdips.release.release import software

NOTE = (
    "Inside only: computed from the confidential table, and no epsilon pays for it. Publishing a figure leaks; so does "
    "choosing a mechanism, a setting, an epsilon or one of several releases by it."
)


def evaluate(
    table: str | Path,
    directory: str | Path,
    *,
    formula: str | None = None,
    family: Family | None = None,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Compare a release with the table that it came from.

    Parameters
    ----------
    table : path
        The confidential table.
    directory : path
        The folder of the release.
    formula, family : str, optional
        An analysis; see :func:`pdips.evaluation.formula.read_analysis`.
    clock : Clock, optional
        Times the steps.

    Returns
    -------
    dict
        ``general``: a list of measures. ``specific``: the analysis, or None. ``pictures``: see
        :func:`pdips.evaluation.pictured.pictured`. Plain values.

    Raises
    ------
    InputError
        If the folder holds no release, sets or table don't fit its schema, or the analysis doesn't.
    """
    clock = clock or Clock()
    if family is not None and formula is None:
        raise InputError("--family belongs to an --analysis; name one")
    with clock.step("reading the release"):
        opened = open_release(directory)
    analysis = None if formula is None else read_analysis(formula, opened.schema, family)
    with clock.step("reading the table"):
        confidential = open_table(table, opened)
    specific = None
    if analysis is not None:
        with clock.step("analysis"):
            specific = specific_utility(confidential, opened, analysis).describe()
    measures = general_utility(confidential, opened.sets, clock)
    with clock.step("pictures"):
        pictures = pictured(confidential, opened.sets, measures)
    return {
        "inside_only": NOTE,
        "release": opened.describe(),
        "weight": opened.schema.records.weight,
        "seed_of_references": SEED,
        "general": [_plain(measure.describe()) for measure in measures],
        "specific": None if specific is None else _plain(specific),
        "pictures": _plain(pictures),
        "seconds": dict(clock.seconds),
        "software": software(),
    }


def inside_paths(directory: str | Path, also: str | Path | None = None) -> list[Path]:
    """Return where an evaluation is written: ``confidential/evaluation.json``, and another file outside ``public/``.

    Raises
    ------
    InputError
        If the other file lies in ``public/``, or in a folder that isn't there.
    """
    paths = [Path(directory) / "confidential" / "evaluation.json"]
    if also is None:
        return paths
    public = (Path(directory) / "public").resolve()
    if public in Path(also).resolve().parents:
        raise InputError("an evaluation is for inside use only: --json can't name a file in public/")
    if not Path(also).absolute().parent.is_dir():
        raise InputError(f"--json names a folder that doesn't exist: {Path(also).parent}")
    if Path(also).is_dir():
        raise InputError(f"--json must name a file, and {also} is a folder")
    return [*paths, Path(also)]


def write_inside(paths: Sequence[Path], found: Mapping[str, Any]) -> None:
    """Write an evaluation to the files that :func:`inside_paths` named; ``confidential`` is closed to others.

    Raises
    ------
    InputError
        If one can't be written.
    """
    for path in paths:
        try:
            if path == paths[0]:
                path.parent.mkdir(mode=0o700, exist_ok=True)
            write_json(path, found)
        except OSError as error:
            raise InputError(f"can't write {path}: {error.strerror}") from None


def _plain(value: Any) -> Any:
    """Return plain values without NaN and infinity, which JSON hasn't."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.item() if hasattr(value, "item") else value
