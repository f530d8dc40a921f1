"""A release on disk, and its evaluation: what is read from the folder, and what
``evaluation.json`` holds.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import pandas as pd
from pydantic import BaseModel, Field, model_validator

from pdips.data.readers import read_frame
from pdips.data.schema import Schema
from pdips.data.table import Table, are_two
from pdips.errors import DataError, InputError
from pdips.html import spelt
from pdips.release.documents import (
    Document,
    Findings,
    Finite,
    FiniteOrNone,
    PrivacyDocument,
    ReleaseIdentity,
    release_home,
    write_json,
)
from pdips.release.folder import output_file

Share = Annotated[float, Field(ge=0, le=1 + 1e-9)]

SUMMARIES = {
    "overlap of intervals": "1 equal, 0 disjoint",
    "standardised difference": "0 equal; in standard errors of the table's",
    "same sign": "share of coefficients",
    "coverage": "share of the table's estimates inside the sets' intervals",
}

MOST_BASICS = 40  # How many of the first figures are printed


@dataclass(frozen=True, kw_only=True, repr=False)
class ReleaseFolder:
    """A release on disk: its folder, ``home`` where sets lie (``public`` or
    ``confidential``), and what it holds.
    """

    folder: Path
    home: Path
    document: PrivacyDocument
    sets: tuple[pd.DataFrame, ...]

    @property
    def schema(self) -> Schema:
        return self.document.table_schema


def open_release(directory: str | Path, *, received: bool = False) -> ReleaseFolder:
    """Read the synthetic sets of a release, or of a public folder alone if it may be
    ``received``, and check them.
    """
    home = release_home(directory, received=received)
    document = PrivacyDocument.read(home)
    found: dict[int, Path] = {}
    for path in sorted(home.iterdir()):
        if match := re.fullmatch(r"synthetic_(\d+)\.(parquet|csv)", path.name):
            number = int(match[1])
            if number in found:
                raise InputError(
                    f"{found[number]} and {path.name} are both there: take away the "
                    f"one that isn't of this release"
                )
            found[number] = path
    wanted = range(1, document.n_sets + 1)
    if missing := [number for number in wanted if number not in found]:
        raise InputError(
            f"synthetic set {missing[0]} of {document.n_sets} is missing in {home}: "
            f"put it back from a copy"
        )
    if extra := sorted({*found} - {*wanted}):
        raise InputError(
            f"{found[extra[0]]} is not of this release, which has "
            f"{document.n_sets} sets: take it away"
        )
    sets = tuple(_read_set(found[number], document.table_schema) for number in wanted)
    return ReleaseFolder(
        folder=Path(directory), home=home, document=document, sets=sets
    )


def open_table(path: Any, release: ReleaseFolder) -> Table:
    """Read the confidential table, or those of households and members, and check it
    against a release's schema.
    """
    is_pair = are_two(path, release.schema)
    try:
        if is_pair:
            return Table.of_households(path[0], path[1], release.schema)
        return Table(
            read_frame(path, separator=release.schema.csv.separator), release.schema
        )
    except InputError as error:
        kind = DataError if isinstance(error, DataError) else InputError
        raise kind(
            f"this is not the table that {release.folder} came from, its "
            f"schema differs: {error}"
        ) from None


def _read_set(path: Path, schema: Schema) -> pd.DataFrame:
    frame = read_frame(path, separator=",")
    try:
        if len(frame):
            Table(frame, schema.plain())
        elif [*map(str, frame.columns)] != [*schema.columns]:
            raise InputError("its columns are not those of the schema")
    except InputError as error:
        raise InputError(
            f"{path} doesn't fit the schema in privacy.json: {error}. It was edited "
            f"by hand, or is of another release"
        ) from None
    return frame


def _cells(*values: float | None) -> str:
    return "".join(f" {spelt(value):>10}" for value in values)


def _span(values: Sequence[float | None], digits: int = 4) -> str:
    known = [value for value in values if value is not None]
    return (
        f"{spelt(min(known, default=None), digits)} to "
        f"{spelt(max(known, default=None), digits)}"
    )


class ColumnEcdf(BaseModel):
    """max-ECDF and avg-ECDF of one column."""

    largest: FiniteOrNone
    average: FiniteOrNone


class MeasureDetail(Findings):
    """More of a measure, by column where it has columns."""

    by_column: dict[str, ColumnEcdf] = Field(
        default_factory=dict, exclude_if=lambda columns: not columns
    )


class Measure(BaseModel):
    """One measure of utility: by set (nothing if it can't be worked out, for a
    ``reason``), and the mean over the sets.

    ``reading`` says what its ends mean, ``reference`` is the same for records drawn
    with replacement from the table itself. Equal tables score 0.
    """

    name: str
    reading: str
    by_set: tuple[FiniteOrNone, ...]
    mean: FiniteOrNone
    reference: FiniteOrNone
    weighted: bool
    reason: str | None
    detail: MeasureDetail = MeasureDetail()

    @property
    def known(self) -> list[float]:
        """The figures by set that are known, in order of size."""
        return sorted(value for value in self.by_set if value is not None)

    def row(self) -> str:
        """Return the measure as a line of a table."""
        name = f"{self.name}{'*' if self.weighted else ''}"
        if self.reason is not None:
            return f"{name:<32}{_cells(None, None)}  {self.reason}"
        return (
            f"{name:<32}{_cells(self.mean, self.reference)}  "
            f"{_span(self.by_set)}; {self.reading}"
        )

    @property
    def times(self) -> float | None:
        """How many times as far as its reference the mean lies from 0, what equal
        tables score; None if none can say.
        """
        if self.mean is None or not self.reference:
            return None
        return abs(self.mean) / abs(self.reference)


class BasicFigure(BaseModel):
    """A figure that is compared first, such as a mean: of the table, of each set, and
    of resamples of the table.

    ``resamples`` are the ends of the middle 95 % of what records drawn with replacement
    from the table give.
    """

    name: str
    table: FiniteOrNone
    by_set: tuple[FiniteOrNone, ...]
    resamples: tuple[FiniteOrNone, FiniteOrNone]
    mean: FiniteOrNone


class Coefficient(BaseModel):
    """A row of ``compare_fits``; ``covered`` says whether the table's estimate lies
    inside the interval of the sets.
    """

    coefficient: str
    original: FiniteOrNone
    original_lower: FiniteOrNone
    original_upper: FiniteOrNone
    combined: FiniteOrNone
    combined_lower: FiniteOrNone
    combined_upper: FiniteOrNone
    ci_overlap: FiniteOrNone
    same_sign: bool
    standardized_difference: FiniteOrNone
    covered: bool


class AnalysisComparison(BaseModel):
    """An analysis on the table and on the sets, which ``rule`` combined; ``note`` is
    what to know of that rule.

    ``summary`` and ``reference`` are means over the coefficients, of the overlap of
    confidence intervals, of absolute standardised differences, of equal signs and of
    coverage: for the combined sets, and for resamples of the table, each with its own
    interval. None if the table tells no coefficient.
    """

    formula: str
    family: str
    weighted: bool
    level: Annotated[float, Field(gt=0, lt=1)]
    rule: str
    note: str | None
    coefficients: list[Coefficient]
    summary: dict[str, FiniteOrNone]
    reference: dict[str, FiniteOrNone]

    def rows(self) -> Iterator[str]:
        """Yield the lines of a table of the coefficients, and of the summaries."""
        yield (
            f"\n{self.formula}   ({self.family}, sets combined by {self.rule}, "
            f"{self.level:.0%} intervals)"
        )
        yield from [f"note: {self.note}"] if self.note else []
        width = max([32, *(len(row.coefficient) for row in self.coefficients)])
        yield (
            f"{'coefficient':<{width}} {'table':>10} {'sets':>10} "
            f"{'interval of sets':>24} {'overlap':>8}"
        )
        for row in self.coefficients:
            values = _cells(row.original, row.combined)
            interval = f"{spelt(row.combined_lower)} to {spelt(row.combined_upper)}"
            yield (
                f"{row.coefficient:<{width}}{values} {interval:>24} "
                f"{spelt(row.ci_overlap):>8}"
            )
        yield f"{'measure':<32} {'mean':>10} {'reference':>10}"
        for name, reading in SUMMARIES.items():
            yield (
                f"{name:<32}{_cells(self.summary[name], self.reference[name])}  "
                f"{reading}"
            )

    @property
    def told(self) -> list[Coefficient]:
        """The coefficients that the table tells."""
        return [one for one in self.coefficients if one.original is not None]


class ColumnDensity(BaseModel):
    """Shares of the cells of a numeric column: see
    :func:`pdips.evaluation.pictures.density`.
    """

    column: str
    label: str
    unit: str | None
    log: bool
    edges: Annotated[list[Finite], Field(min_length=2, max_length=1000)]
    table: list[Share]
    sets: list[Share]
    missing: tuple[Share, Share | None] | None

    @model_validator(mode="after")
    def _check(self) -> Self:
        n_cells = len(self.edges) - 1
        if len(self.table) != n_cells or len(self.sets) not in (0, n_cells):
            raise ValueError(
                "table and sets must have a share for each cell between two edges"
            )
        rises = all(a < b for a, b in pairwise(self.edges))
        if not rises or (self.log and self.edges[0] <= 0):
            raise ValueError("edges must increase, and start above 0 on the log scale")
        return self

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def distance(self) -> float | None:
        """Total variation distance of the cells, the missing ones among them."""
        if not self.sets:
            return None
        ours, theirs = self.missing or (0.0, 0.0)
        gaps = [abs(a - b) for a, b in zip(self.table, self.sets, strict=True)]
        gaps.append(abs(ours - (theirs or 0)))
        return sum(gaps) / 2


class CellShares(BaseModel):
    """The shares of one cell of two columns, given by its levels."""

    levels: tuple[str, str]
    table: Share
    sets: Share


class PairDifference(BaseModel):
    """The cells of two columns that differ most: see
    :func:`pdips.evaluation.pictures.furthest_cells`.
    """

    columns: tuple[str, str]
    distance: Finite
    cells: list[CellShares]


class Pictures(BaseModel):
    """What the pictures of an evaluation show: see
    :func:`pdips.evaluation.pictures.pictures`.
    """

    densities: list[ColumnDensity]
    pairs: list[PairDifference]


class EvaluationDocument(Document):
    """``confidential/evaluation.json``: a release compared with its table.
    Confidential, and paid by no epsilon.

    ``basics`` are numbers of records, means, quantiles and correlations, ``general``
    are measures, ``specific`` is an analysis or None, ``pictures`` is what pictures of
    them show.

    Examples
    --------
    >>> from pathlib import Path
    >>> document = EvaluationDocument.read(Path("out/confidential"))  # doctest: +SKIP
    >>> document.measure("SPECKS").mean  # doctest: +SKIP
    0.03
    """

    file: ClassVar[str] = "evaluation.json"

    inside_only: str
    release: ReleaseIdentity
    weight: str | None
    seed_of_references: int
    basics: list[BasicFigure]
    general: list[Measure]
    specific: AnalysisComparison | None
    pictures: Pictures
    seconds: dict[str, Finite]
    software: dict[str, str]

    def __str__(self) -> str:
        """Return the figures as ``pdips evaluate`` prints them."""
        return "\n".join(self._rows())

    __repr__ = __str__

    def _rows(self) -> Iterator[str]:
        yield "INSIDE ONLY: computed from the confidential table, nothing pays for it\n"
        first = self.basics[:MOST_BASICS]
        more = len(self.basics) - MOST_BASICS
        width = max((len(one.name) for one in first), default=0)
        yield (
            f"{'figure':<{width}} {'table':>10} {'95 % of its resamples':>24} "
            f"{'sets':>10}  sets, least to most"
        )
        for one in first:
            resamples = " to ".join(spelt(end, 6) for end in one.resamples)
            values = (
                f"{spelt(one.table, 6):>10} {resamples:>24} {spelt(one.mean, 6):>10}"
            )
            yield f"{one.name:<{width}} {values}  {_span(one.by_set, 6)}"
        yield (
            (f"... and {more} more, in evaluation.json and the report\n")
            if more > 0
            else ""
        )
        yield f"{'measure':<32} {'mean':>10} {'reference':>10}  sets, least to most"
        yield from (measure.row() for measure in self.general)
        yield from [] if self.specific is None else self.specific.rows()
        yield (
            "\nreference: what records drawn with replacement from the table "
            "itself score, about as good as can be"
        )
        yield from [] if self.weight is None else [f"* weighted by {self.weight}"]
        yield self.inside_only

    def measure(self, name: str) -> Measure | None:
        """Return a measure that was worked out, or None."""
        return next(
            (one for one in self.general if one.name == name and one.mean is not None),
            None,
        )

    def write_inside(self, paths: Sequence[Path]) -> None:
        """Write the files that :func:`inside_paths` named; the folder of the first is
        closed to others.
        """
        contents: dict[str, Any] = self.contents()
        for path in paths:
            try:
                if path == paths[0]:
                    path.parent.mkdir(mode=0o700, exist_ok=True)
                write_json(path, contents)
            except OSError as error:
                raise InputError(f"can't write {path}: {error.strerror}") from None


def inside_paths(directory: str | Path, also: str | Path | None = None) -> list[Path]:
    """Return where an evaluation is written: ``confidential/evaluation.json``, and
    another file outside ``public/``.
    """
    paths = [Path(directory) / "confidential" / EvaluationDocument.file]
    if also is None:
        return paths
    if (Path(directory) / "public").resolve() in Path(also).resolve().parents:
        raise InputError(
            "an evaluation is for inside use only: --json can't name a file in public/"
        )
    return [*paths, output_file(also)]
