"""Releases, which the guarantee covers, and run records, which it does not cover."""

import math
import secrets
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pdips.data.schema import Column, Schema
from pdips.errors import InputError, RefusedError
from pdips.extras import require
from pdips.html import small_table
from pdips.privacy.account import Receipt
from pdips.privacy.answers import Answers
from pdips.privacy.charge import Charge
from pdips.privacy.loss import PrivacyLoss, Spend, spell
from pdips.privacy.plan import Noise
from pdips.registry import load
from pdips.release import VERSION
from pdips.release.answers import AnswerForm
from pdips.release.codebook import CODEBOOK, codebook
from pdips.release.documents import (
    ANALYSIS_FOLDER,
    PrivacyDocument,
    Signature,
    StatedAnalysis,
    StatedLoss,
    StatedSpend,
    write_json,
)
from pdips.release.folder import file_digest
from pdips.release.known_totals import TotalCheck
from pdips.release.large_set import ChunkedSet, WrittenInChunks
from pdips.release.noisy_margins import MarginError as MarginError
from pdips.release.noisy_margins import MarginLaw
from pdips.release.offers import Offers
from pdips.release.public_draws import PublicDraws

# SPSS' and Stata's, with labels, are beside Parquet
Format = Literal["parquet", "csv", "sav", "dta"]
# Imports xarray, which a release without a model does without
PUBLIC_TREE = "pdips.release.tree:public_tree"
WRITE_TREE = "pdips.release.tree:write_tree"
TREE_FILE = "posterior.nc"
NUMBER = 9  # Bytes of a number in a file, and of whether it is missing
OVERHEAD = 1 << 20  # Bytes of the other files of a release
Closer = Callable[[], tuple[Mapping[str, Any], Any]]
Again = Callable[[int, np.random.Generator], list[pd.DataFrame]]
Signer = Callable[[bytes], tuple[str, str]]
"""Returns a public key, and its signature of a message."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Release:
    """Synthetic sets and their price. All of it is covered by the guarantee and may be
    published.

    Parameters
    ----------
    mechanism : str
        Name of the mechanism.
    settings : dict
        Its public settings.
    schema : Schema
        The schema of the synthetic sets.
    loss : PrivacyLoss
        The total over all sets.
    spends : tuple of Spend
        The same, itemised.
    sets : tuple of DataFrame
        One synthetic table each.
    large_sets : tuple of LargeSet or ChunkedSet
        In place of ``sets`` where they have too many records to hold: written chunk by
        chunk.
    statistics : dict of str to DataFrame
        Noisy statistics that the sets were made from.
    tables : dict of str to DataFrame
        What else analysts want of it, written beside the sets as ``NAME.parquet`` or
        ``.csv``.
    noise : tuple of Noise
        The noise on these statistics, for users of the sets.
    margin_errors : tuple of MarginError
        What this noise comes to in one-way and two-way margins.
    margins : tuple of MarginLaw
        What the rows of ``tables["margins"]`` are, and their noise.
    totals : tuple of TotalCheck
        How near sets and noisy counts are to the schema's public totals.
    reproducible : bool
        Made from a seed: fit for tests and studies, not for publication.
    offers : Offers
        What the mechanism keeps to, and what the sets share.
    receipt : Receipt, optional
        Names its charge in the ledger; public, and says nothing of records.
    charge : Charge, optional
        Its charge, whose kept answers are destroyed when it is published.
    identifier : str
        16 random hexadecimal digits, which all files of a release share.
    answers : Answers
        What was asked of the table and answered with noise.
    answer_forms : tuple of AnswerForm
        What the rows of ``tables["answers"]`` are.
    again : callable, optional
        Makes so many sets more of the answers, with a random generator.
    posterior_draws : PublicDraws, optional
        What is published of a model whose posterior costs nothing.
    analyses : tuple of Release
        Analyses that were named beforehand and are parts of this release: written into
        its folder, each into one of its own.
    n_public : int, optional
        The table's number of records, where it is public and sets have another one.

    Examples
    --------
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, record = Margins(epsilon=1).release(table)
    >>> release.loss.epsilon, release.n_sets
    (Fraction(1, 1), 1)
    """

    mechanism: str
    settings: Mapping[str, Any]
    schema: Schema
    loss: PrivacyLoss
    spends: tuple[Spend, ...]
    sets: tuple[pd.DataFrame, ...]
    statistics: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    noise: tuple[Noise, ...] = ()
    margin_errors: tuple[MarginError, ...] = ()
    margins: tuple[MarginLaw, ...] = ()
    totals: tuple[TotalCheck, ...] = ()
    reproducible: bool = False
    offers: Offers = field(default_factory=Offers)
    large_sets: tuple[WrittenInChunks, ...] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    receipt: Receipt | None = None
    charge: Charge | None = field(default=None, repr=False, compare=False)
    identifier: str = field(default_factory=lambda: secrets.token_hex(8))
    answers: Answers = field(default_factory=Answers, repr=False, compare=False)
    answer_forms: tuple[AnswerForm, ...] = ()
    again: Again | None = field(default=None, repr=False, compare=False)
    posterior_draws: PublicDraws | None = field(default=None, repr=False, compare=False)
    analyses: tuple["Release", ...] = ()
    n_public: int | None = None

    def more_sets(
        self, n_sets: int, *, rng: np.random.Generator | None = None
    ) -> list[pd.DataFrame]:
        """Draw more synthetic sets of the same noisy answers, at no cost.

        Parameters
        ----------
        n_sets : int
            How many.
        rng : numpy.random.Generator, optional
            Left out, a new one: it protects nothing here.

        Raises
        ------
        InputError
            If each set has noise of its own, so that another one would cost as much.

        Examples
        --------
        >>> schema = Schema.model_validate({"columns": {"ill": {"levels": [0, 1]}}})
        >>> table = Table(pd.DataFrame({"ill": [0, 1] * 50}), schema)
        >>> release, _ = Margins(epsilon=1).release(table)
        >>> [len(frame) for frame in release.more_sets(2)]
        [100, 100]
        """
        if self.again is None:
            raise InputError("this release wasn't drawn by a mechanism")
        if isinstance(n_sets, bool) or not isinstance(n_sets, int) or n_sets < 1:
            raise InputError(f"n_sets must be a whole number, at least 1, got {n_sets}")
        return self.again(n_sets, np.random.default_rng() if rng is None else rng)

    @property
    def posterior(self) -> Any:
        """The model's draws, the sets and the noisy numbers as an ArviZ tree
        (``xarray.DataTree``), all of it public: see
        :func:`pdips.release.tree.public_tree`.
        """
        return load(PUBLIC_TREE)(self)

    def first_set(self) -> pd.DataFrame:
        """Return the first set; of one that is drawn in chunks, its first chunk."""
        if self.sets:
            return self.sets[0]
        large = self.large_sets[0]
        return large.first() if isinstance(large, ChunkedSet) else _whole(large)

    @property
    def n_sets(self) -> int:
        """Number of synthetic sets."""
        return len(self.sets) + len(self.large_sets)

    def __repr__(self) -> str:
        return (
            f"Release(mechanism={self.mechanism!r}, n_sets={self.n_sets}, "
            f"epsilon={spell(self.loss.epsilon)})"
        )

    def _repr_html_(self) -> str:
        noise = [
            f"{law.statistics} +- {law.standard_deviation:g}" for law in self.noise[:6]
        ]
        rows = [
            ("epsilon", spell(self.loss.epsilon)),
            ("kind", self.loss.kind),
            ("neighbours", self.loss.neighbours),
            ("sets", str(self.n_sets)),
            ("columns", ", ".join(self.schema.columns)),
            ("noise", ", ".join(noise)),
        ]
        return small_table(f"Release by {self.mechanism}", rows)

    @property
    def households(self) -> tuple[tuple[pd.DataFrame, pd.DataFrame], ...]:
        """Of each set the tables of households and of members, with new keys; none if
        the schema has no members.
        """
        members = self.schema.members
        if members is None:
            return ()
        return tuple(members.parted(frame) for frame in self.sets)

    def card(self) -> str:
        """Return the privacy card as an HTML page: what goes out with the sets.

        Raises
        ------
        RefusedError
            If the release has no guarantee.
        """
        page: str = load("pdips.report.pages:card_of")(self.document())
        return page

    def document(self) -> PrivacyDocument:
        """Return what ``privacy.json`` holds: public settings only, no timing, no
        diagnostic.
        """
        return PrivacyDocument(
            release=self.identifier,
            mechanism=self.mechanism,
            settings=dict(self.settings),
            n_sets=self.n_sets,
            reproducible=self.reproducible,
            offers=self.offers,
            noise=list(self.noise),
            margin_errors=list(self.margin_errors),
            margins=list(self.margins),
            answers=list(self.answer_forms),
            totals=list(self.totals),
            n_records=self.n_public,
            analyses=[*self._stated_analyses()],
            table_schema=self.schema,
            **self.price(),
        )

    def _stated_analyses(self) -> Iterator[StatedAnalysis]:
        """Yield what is said of each analysis that is a part of the release."""
        for number, part in enumerate(self.analyses, start=1):
            stated = {
                "folder": ANALYSIS_FOLDER.format(number),
                "question": question_of(part.settings),
                "epsilon": part.loss.epsilon,
                "rho": part.loss.rho,
            }
            yield StatedAnalysis.model_validate(stated)

    def price(self) -> dict[str, Any]:
        """Return what files say of the price: the loss, its items and the receipt; and
        the versions of packages.
        """
        return {
            "privacy": StatedLoss.model_validate(self.loss),
            "spends": [StatedSpend.model_validate(spend) for spend in self.spends],
            "software": software(),
            "receipt": self.receipt,
        }

    def describe(self) -> dict[str, Any]:
        """Return the contents of ``privacy.json`` as plain numbers, strings, lists and
        mappings.
        """
        return self.document().contents()

    def publish(
        self,
        directory: str | Path,
        *,
        file_format: Format = "parquet",
        allow: Collection[str] = (),
        sign: Signer | None = None,
    ) -> None:
        """Write ``synthetic_1.parquet`` ..., of a model its ``posterior.nc``, the
        codebook ``datapackage.json``, and ``privacy.json`` with the digests of all
        other files into a folder.

        Parameters
        ----------
        directory : path
            The folder; made if it isn't there.
        file_format : {"parquet", "csv", "sav", "dta"}
            Of the synthetic sets.
        allow : collection of {"seeded", "asymptotic"}
            What the publisher takes upon themselves, by name: a release made from a
            seed, or one whose guarantee is only asymptotic.
        sign : callable, optional
            Signs the bytes of ``privacy.json``: returns the public key and the
            signature, which ``signature.json`` then holds. By default the key of the
            ledger signs, if one was charged.

        Raises
        ------
        InputError
            If the folder has something in it.
        RefusedError
            If the release has no guarantee (which nothing overrides), or one that isn't
            named in ``allow``.
        """
        if self.loss.kind == "none":
            raise RefusedError(
                f"a release of kind 'none' is never published. {self.loss.statement}"
            )
        if self.loss.kind == "asymptotic" and "asymptotic" not in allow:
            raise RefusedError(
                "the guarantee is only asymptotic; name "
                "allow=['asymptotic'] to publish all the same"
            )
        if self.reproducible and "seeded" not in allow:
            raise RefusedError(
                "made from a seed: anyone who knows the seed can subtract the noise; "
                "name allow=['seeded'] to publish "
                "all the same"
            )
        folder = Path(directory)
        if folder.is_dir() and any(folder.iterdir()):
            raise InputError(
                f"{directory} is not empty: an earlier release there "
                f"would mix with this one"
            )
        self.write(directory, file_format=file_format, sign=sign)
        self.finish()

    def finish(self) -> None:
        """Tell the ledger that the release is in its place: the answers that were kept
        to resume it are destroyed.
        """
        if self.charge is not None:
            self.charge.end("finished")

    def write(
        self,
        directory: str | Path,
        *,
        file_format: Format = "parquet",
        sign: Signer | None = None,
    ) -> None:
        """Write the same files without asking whether they may be published: for
        folders that stay inside, or that are moved to their place later.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        before = set(folder.iterdir())
        self._write_tables(folder, "csv" if file_format == "csv" else "parquet")
        if file_format in ("sav", "dta"):
            self._write_labelled(folder, file_format)
        if self.posterior_draws is not None:
            load(WRITE_TREE)(self.posterior, folder / TREE_FILE)
        written = {*folder.iterdir()} - before
        digests = {}
        for path in sorted(written):
            if path.is_file():
                digests[path.name] = file_digest(path)
        document = self.document()
        write_json(folder / CODEBOOK, codebook(document, digests, self.tables))
        digests[CODEBOOK] = file_digest(folder / CODEBOOK)
        if sign is None and self.charge is not None:
            sign = self.charge.ledger.sign
        analyses = self._write_analyses(folder, document, file_format, sign)
        # last: whoever finds it finds all files that it names
        stated = document.model_copy(update={"digests": digests, "analyses": analyses})
        signed = stated.write(folder)
        if sign is not None:
            key, signature = sign(signed.read_bytes())
            Signature(key=key, signature=signature).write(folder)

    def _write_analyses(
        self,
        folder: Path,
        document: PrivacyDocument,
        file_format: Format,
        sign: Signer | None,
    ) -> list[StatedAnalysis]:
        """Write each analysis into its folder, and return what is said of it, with the
        digest of its ``privacy.json``.
        """
        stated = []
        for part, said in zip(self.analyses, document.analyses, strict=True):
            own = folder / said.folder
            part.write(own, file_format=file_format, sign=sign)
            digest = file_digest(own / PrivacyDocument.file)
            stated.append(said.model_copy(update={"digest": digest}))
        return stated

    def _write_tables(self, folder: Path, suffix: str) -> None:
        for number, large_set in enumerate(self.large_sets, start=1):
            large_set.write(folder / f"synthetic_{number}.{suffix}", suffix)
        frames = {}
        for number, frame in enumerate(self.sets, start=1):
            frames[f"synthetic_{number}"] = frame
        for number, (households, members) in enumerate(self.households, start=1):
            frames[f"households_{number}"] = households
            frames[f"members_{number}"] = members
        for name, frame in {**frames, **self.tables}.items():
            path = folder / f"{name}.{suffix}"
            if suffix == "csv":
                frame.to_csv(path, index=False)
            else:
                table = pa.Table.from_pandas(frame, preserve_index=False)
                pq.write_table(table, path, compression="zstd")

    def _write_labelled(self, folder: Path, suffix: str) -> None:
        large = (_whole(large_set) for large_set in self.large_sets)
        for number, frame in enumerate([*self.sets, *large], start=1):
            path = folder / f"synthetic_{number}.{suffix}"
            write_labelled(frame, self.schema, path)


@dataclass(frozen=True, kw_only=True, repr=False)
class RunRecord:
    """What the run looked like from inside. It is read from records without noise, so
    it is never published.

    Parameters
    ----------
    seconds : dict of str to float
        Wall time by step.
    peak_memory : float
        Largest resident size of the process, in MiB.
    diagnostics : dict
        Whatever the mechanism wants its curator to see.
    closer : callable, optional
        Computes on request what takes longer: more diagnostics, and an
        ``xarray.DataTree`` or None.
    release : Release, optional
        What the run made.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "sex": Column(levels=["f", "m"]),
    ...     }
    ... )
    >>> table = Table(
    ...     pd.DataFrame({"ill": ["no"] * 40 + ["yes"] * 20, "sex": ["f", "m"] * 30}),
    ...     schema,
    ... )
    >>> release, record = LaplaceSanitizer(epsilon=1).release(table)
    >>> record.peak_memory > 0
    True
    """

    seconds: Mapping[str, float]
    peak_memory: float
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    closer: Closer | None = None
    release: Release | None = None

    def evaluate(
        self, table: Any, *, formula: str | None = None, family: str | None = None
    ) -> Any:
        """Compare the sets with the table that they came from, for inside use: an
        ``EvaluationDocument``.

        Parameters
        ----------
        table : DataFrame, dict of columns, pyarrow.Table or Table
            The confidential table, or those of households and of members.
        formula, family : str, optional
            An analysis to run on both, such as ``"voted ~ age + college"``.

        Raises
        ------
        InputError
            If the table or the analysis doesn't fit the schema, or the sets are too
            large to hold.
        """
        if self.release is None or not self.release.sets:
            raise InputError(
                "there are no sets in memory to evaluate: publish them, "
                "then `pdips evaluate TABLE DIR`"
            )
        return load("pdips.evaluation.evaluate:evaluate_held")(
            table, self.release, formula, family
        )

    @cached_property
    def posterior(self) -> Any:
        """The draws of a mechanism that has a posterior, as an ArviZ tree
        (``xarray.DataTree``).
        """
        tree = self.look_closer()[1]
        if tree is None:
            raise InputError("there are no draws: the mechanism has no posterior")
        return tree

    @property
    def model(self) -> Any:
        """The ``pymc.Model`` of a censored posterior, with the records in it; that of
        noisy statistics is :func:`pdips.noisy_model` of the release.
        """
        behind = getattr(self.closer, "model", None)
        if behind is None:
            raise InputError(
                "no model of records is behind this release; of one of modips, "
                "pdips.noisy_model(release) returns that of its noisy statistics"
            )
        return behind()

    def look_closer(self) -> tuple[Mapping[str, Any], Any]:
        """Return all diagnostics, with those that take time, and a tree of draws and
        bounds, or None.
        """
        if self.closer is None:
            return self.diagnostics, None
        more, tree = self.closer()
        return {**self.diagnostics, **more}, tree

    def __repr__(self) -> str:
        return "RunRecord(confidential)"

    def _repr_html_(self) -> str:
        rows = [(step, f"{seconds:.1f} s") for step, seconds in self.seconds.items()]
        return small_table(
            "RunRecord (confidential)",
            [*rows, ("peak memory", f"{self.peak_memory:,.0f} MiB")],
        )


def _whole(large_set: WrittenInChunks) -> pd.DataFrame:
    return pd.concat(large_set.frames(), ignore_index=True)


def question_of(settings: Mapping[str, Any]) -> str:
    """Return what an analysis is called by its settings: a formula as it is written,
    with what stands beside it, another model by its name.
    """
    name = str(settings.get("model"))
    lines = str(settings.get("model_source") or "").strip().splitlines()
    return "; ".join(lines) if name == "formula" and lines else name


def write_labelled(frame: pd.DataFrame, schema: Schema, path: Path) -> None:
    """Write records with labels of columns and of number levels to a ``.sav`` or
    ``.dta`` file.
    """
    require("files", f"{path.suffix} files need")
    import pyreadstat

    columns = schema.columns
    values = {name: _as_spss_takes(frame[name]) for name in frame}
    column_labels = {name: column.label or name for name, column in columns.items()}
    value_labels = {}
    for name, column in columns.items():
        if column.labels and not _has_text_levels(column):
            labels = column.labels.items()
            value_labels[name] = {float(code): said for code, said in labels}
    write = getattr(pyreadstat, f"write_{path.suffix[1:]}")
    write(
        pd.DataFrame(values),
        str(path),
        column_labels=column_labels,
        variable_value_labels=value_labels,
    )


def _as_spss_takes(values: pd.Series) -> Any:
    """Return dates as such, text as it is and numbers as doubles."""
    if values.dtype.kind == "M":
        return values.dt.date.where(values.notna(), None)
    if isinstance(values.dtype, pd.StringDtype):
        return values
    return values.astype("Float64").to_numpy(dtype=float, na_value=float("nan"))


def _has_text_levels(column: Column) -> bool:
    """Whether a column's levels are texts or truth values, which take no labels."""
    return column.levels is not None and isinstance(column.levels[0], (str, bool))


def check_format(schema: Schema, file_format: Format) -> None:
    """Check, before anything is spent, that a ``.sav`` or ``.dta`` file can hold
    records of a schema.
    """
    if file_format not in ("sav", "dta"):
        return
    columns = {
        name: [column.levels[-1] if column.levels else 0.0]
        for name, column in schema.columns.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        try:
            write_labelled(
                pd.DataFrame(columns), schema, Path(folder) / f"set.{file_format}"
            )
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - of public names and levels alone
            raise InputError(
                f"no .{file_format} file can hold this schema: {error}"
            ) from None


def expected_bytes(schema: Schema, n_records: int, file_format: Format) -> int:
    """Return about how many bytes records of a schema take, rather more than less.

    Parquet packs levels into as many bits as tell them apart; a text file spells them.
    """
    packed = 0.0
    spelled = 0.0
    for column in schema.columns.values():
        spellings = [len(str(level)) for level in column.levels or ()]
        spelled += 1 + max(spellings, default=2 * NUMBER)
        if column.is_categorical:
            packed += (column.n_levels.bit_length() + 1) / 8
        else:
            packed += NUMBER
    a_record = {"parquet": packed, "csv": spelled}.get(file_format, packed + spelled)
    return math.ceil(n_records * a_record) + OVERHEAD


def software() -> dict[str, str]:
    """Return the versions that a release was made with."""
    return {"pdips": VERSION} | {
        name: version(name) for name in ("numpy", "pandas", "pyarrow")
    }
