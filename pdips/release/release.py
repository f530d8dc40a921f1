"""Releases, which the guarantee covers, and run records, which it does not cover."""

import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pdips.data.schema import Schema
from pdips.errors import InputError, RefusedError
from pdips.html import small_table
from pdips.privacy.account import Receipt
from pdips.privacy.loss import PrivacyLoss, Spend, spell
from pdips.privacy.plan import Noise
from pdips.registry import load
from pdips.release import VERSION
from pdips.release.codebook import CODEBOOK, codebook
from pdips.release.documents import PrivacyDocument, StatedLoss, StatedSpend, write_json
from pdips.release.folder import file_digest
from pdips.release.known_totals import TotalCheck
from pdips.release.large_set import LargeSet
from pdips.release.noisy_margins import MarginError as MarginError
from pdips.release.noisy_margins import MarginLaw

Format = Literal["parquet", "csv", "sav", "dta"]  # SPSS' and Stata's, with labels, are beside Parquet
Closer = Callable[[], tuple[Mapping[str, Any], Any]]


@dataclass(frozen=True, kw_only=True, repr=False)
class Release:
    """Synthetic sets and their price. All of it is covered by the guarantee and may be published.

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
    large_sets : tuple of LargeSet
        In place of ``sets`` where they have too many records to hold: written chunk by chunk.
    statistics : dict of str to DataFrame
        Noisy statistics that the sets were made from.
    tables : dict of str to DataFrame
        What else analysts want of it, written beside the sets as ``NAME.parquet`` or ``.csv``.
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
    receipt : Receipt, optional
        Names its charge in the ledger; public, and says nothing of records.

    Examples
    --------
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, record = Steps(epsilon=1).release(table)
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
    large_sets: tuple[LargeSet, ...] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    receipt: Receipt | None = None

    @property
    def n_sets(self) -> int:
        """Number of synthetic sets."""
        return len(self.sets) + len(self.large_sets)

    def __repr__(self) -> str:
        return f"Release(mechanism={self.mechanism!r}, n_sets={self.n_sets}, epsilon={spell(self.loss.epsilon)})"

    def _repr_html_(self) -> str:
        noise = ", ".join(f"{each.statistics} +- {each.standard_deviation:g}" for each in self.noise[:6])
        rows = [("epsilon", spell(self.loss.epsilon)), ("kind", self.loss.kind), ("neighbours", self.loss.neighbours)]
        rows += [("sets", str(self.n_sets)), ("columns", ", ".join(self.schema.columns)), ("noise", noise)]
        return small_table(f"Release by {self.mechanism}", rows)

    @property
    def households(self) -> tuple[tuple[pd.DataFrame, pd.DataFrame], ...]:
        """Of each set the tables of households and of members, with new keys; none if the schema has no members."""
        members = self.schema.members
        return () if members is None else tuple(members.parted(frame) for frame in self.sets)

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
        """Return what ``privacy.json`` holds: public settings only, no timing, no diagnostic."""
        return PrivacyDocument(
            mechanism=self.mechanism,
            settings=dict(self.settings),
            n_sets=self.n_sets,
            reproducible=self.reproducible,
            noise=list(self.noise),
            margin_errors=list(self.margin_errors),
            margins=list(self.margins),
            totals=list(self.totals),
            table_schema=self.schema,
            **self.price(),
        )

    def price(self) -> dict[str, Any]:
        """Return what files say of the price: the loss, its items and the receipt; and the versions of packages."""
        return {
            "privacy": StatedLoss.model_validate(self.loss),
            "spends": [StatedSpend.model_validate(spend) for spend in self.spends],
            "software": software(),
            "receipt": self.receipt,
        }

    def describe(self) -> dict[str, Any]:
        """Return the contents of ``privacy.json`` as plain numbers, strings, lists and mappings."""
        return self.document().contents()

    def publish(self, directory: str | Path, *, file_format: Format = "parquet", allow: Collection[str] = ()) -> None:
        """Write ``synthetic_1.parquet`` ..., their codebook ``datapackage.json``, and ``privacy.json`` into a folder.

        Parameters
        ----------
        directory : path
            The folder; made if it isn't there.
        file_format : {"parquet", "csv", "sav", "dta"}
            Of the synthetic sets.
        allow : collection of {"seeded", "asymptotic"}
            What the publisher takes upon themselves, by name: a release made from a seed, or one whose guarantee is
            only asymptotic.

        Raises
        ------
        InputError
            If the folder has something in it.
        RefusedError
            If the release has no guarantee (which nothing overrides), or one that isn't named in ``allow``.
        """
        if self.loss.kind == "none":
            raise RefusedError(f"a release of kind 'none' is never published. {self.loss.statement}")
        if self.loss.kind == "asymptotic" and "asymptotic" not in allow:
            raise RefusedError("the guarantee is only asymptotic; name allow=['asymptotic'] to publish all the same")
        if self.reproducible and "seeded" not in allow:
            raise RefusedError(
                "made from a seed: anyone who knows the seed can subtract the noise; name allow=['seeded'] to publish "
                "all the same"
            )
        if Path(directory).is_dir() and any(Path(directory).iterdir()):
            raise InputError(f"{directory} is not empty: an earlier release there would mix with this one")
        self.write(directory, file_format=file_format)

    def write(self, directory: str | Path, *, file_format: Format = "parquet") -> None:
        """Write the same files without asking whether they may be published: for folders that stay inside."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        suffix = "csv" if file_format == "csv" else "parquet"
        before = set(folder.iterdir())
        for number, made in enumerate(self.large_sets, start=1):
            made.write(folder / f"synthetic_{number}.{suffix}", suffix)
        numbered = {f"synthetic_{number}": frame for number, frame in enumerate(self.sets, start=1)}
        for number, both in enumerate(self.households, start=1):
            numbered |= {f"households_{number}": both[0], f"members_{number}": both[1]}
        for name, frame in {**numbered, **self.tables}.items():
            path = folder / f"{name}.{suffix}"
            if suffix == "csv":
                frame.to_csv(path, index=False)
            else:
                pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path, compression="zstd")
        if file_format in ("sav", "dta"):
            whole = [*self.sets, *(pd.concat(made.frames()) for made in self.large_sets)]
            for number, frame in enumerate(whole, start=1):
                write_labelled(frame, self.schema, folder / f"synthetic_{number}.{file_format}")
        document, written = self.document(), sorted(path for path in {*folder.iterdir()} - before if path.is_file())
        digests = {path.name: file_digest(path) for path in written}
        write_json(folder / CODEBOOK, codebook(document, digests, self.tables))
        digests[CODEBOOK] = file_digest(folder / CODEBOOK)
        document.model_copy(update={"digests": digests}).write(folder)


@dataclass(frozen=True, kw_only=True, repr=False)
class RunRecord:
    """What the run looked like from inside. It is read from records without noise, so it is never published.

    Parameters
    ----------
    seconds : dict of str to float
        Wall time by step.
    peak_memory : float
        Largest resident size of the process, in MiB.
    diagnostics : dict
        Whatever the mechanism wants its curator to see.
    closer : callable, optional
        Computes on request what takes longer: more diagnostics, and an ``xarray.DataTree`` or None.
    release : Release, optional
        What the run made.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"]), "sex": Column(levels=["f", "m"])})
    >>> table = Table(pd.DataFrame({"ill": ["no"] * 40 + ["yes"] * 20, "sex": ["f", "m"] * 30}), schema)
    >>> release, record = LaplaceSanitizer(epsilon=1).release(table)
    >>> record.peak_memory > 0
    True
    """

    seconds: Mapping[str, float]
    peak_memory: float
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    closer: Closer | None = None
    release: Release | None = None

    def evaluate(self, table: Any, *, formula: str | None = None, family: str | None = None) -> Any:
        """Compare the sets with the table that they came from, for inside use: an ``EvaluationDocument``.

        Parameters
        ----------
        table : DataFrame, dict of columns, pyarrow.Table or Table
            The confidential table, or those of households and of members.
        formula, family : str, optional
            An analysis to run on both, such as ``"voted ~ age + college"``.

        Raises
        ------
        InputError
            If the table or the analysis doesn't fit the schema, or the sets are too large to hold.
        """
        if self.release is None or not self.release.sets:
            raise InputError("there are no sets in memory to evaluate: publish them, then `pdips evaluate TABLE DIR`")
        return load("pdips.evaluation.evaluate:evaluate_held")(table, self.release, formula, family)

    @cached_property
    def posterior(self) -> Any:
        """The draws of a mechanism that has a posterior, as an ArviZ tree (``xarray.DataTree``)."""
        tree = self.look_closer()[1]
        if tree is None:
            raise InputError("there are no draws: the mechanism has no posterior")
        return tree

    def look_closer(self) -> tuple[Mapping[str, Any], Any]:
        """Return all diagnostics, with those that take time, and a tree of draws and bounds, or None."""
        if self.closer is None:
            return self.diagnostics, None
        more, tree = self.closer()
        return {**self.diagnostics, **more}, tree

    def __repr__(self) -> str:
        return "RunRecord(confidential)"

    def _repr_html_(self) -> str:
        rows = [(step, f"{seconds:.1f} s") for step, seconds in self.seconds.items()]
        return small_table("RunRecord (confidential)", [*rows, ("peak memory", f"{self.peak_memory:,.0f} MiB")])


def write_labelled(frame: pd.DataFrame, schema: Schema, path: Path) -> None:
    """Write records with labels of columns and of number levels to a ``.sav`` or ``.dta`` file."""
    try:
        import pyreadstat
    except ImportError:
        raise InputError(f"{path.suffix} files need the package pyreadstat: install pdips[files]") from None
    plain = {
        name: values.dt.date.where(values.notna(), None)
        if values.dtype.kind == "M"
        else values
        if isinstance(values.dtype, pd.StringDtype)
        else values.astype("Float64").to_numpy(dtype=float, na_value=float("nan"))
        for name, values in frame.items()
    }
    coded = [name for name, column in schema.columns.items() if not isinstance((column.levels or (0,))[0], (str, bool))]
    named = {name: {float(code): said for code, said in schema.columns[name].labels.items()} for name in coded}
    getattr(pyreadstat, f"write_{path.suffix[1:]}")(
        pd.DataFrame(plain),
        str(path),
        column_labels={name: column.label or name for name, column in schema.columns.items()},
        variable_value_labels={name: labels for name, labels in named.items() if labels},
    )


def check_format(schema: Schema, file_format: Format) -> None:
    """Check, before anything is spent, that a ``.sav`` or ``.dta`` file can hold records of a schema."""
    if file_format not in ("sav", "dta"):
        return
    columns = {name: [column.levels[-1] if column.levels else 0.0] for name, column in schema.columns.items()}
    with tempfile.TemporaryDirectory() as folder:
        try:
            write_labelled(pd.DataFrame(columns), schema, Path(folder) / f"set.{file_format}")
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - of public names and levels alone
            raise InputError(f"no .{file_format} file can hold this schema: {error}") from None


def software() -> dict[str, str]:
    """Return the versions that a release was made with."""
    return {"pdips": VERSION} | {name: version(name) for name in ("numpy", "pandas", "pyarrow")}
