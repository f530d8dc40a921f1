"""What the report reads of an evaluation: ``confidential/evaluation.json``, checked."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from pdips.privacy.loss import Kind
from pdips.release.documents import Finite, FiniteOrNone, PrivacyDocument, check, read_json

FILE = "evaluation.json"
Share = Annotated[float, Field(ge=0, le=1 + 1e-9)]
Difference = Annotated[float, Field(ge=-1 - 1e-9, le=1 + 1e-9)]


class Described(BaseModel):
    """The release that an evaluation is of."""

    mechanism: str
    epsilon: Finite
    kind: Kind
    n_sets: int

    def differs(self, facts: PrivacyDocument) -> list[str]:
        """Return what of it isn't true of a release."""
        here = {
            "mechanism": facts.mechanism,
            "epsilon": facts.privacy.epsilon,
            "kind": facts.privacy.kind,
            "n_sets": facts.n_sets,
        }
        return [name for name, value in here.items() if getattr(self, name) != value]


class ColumnEcdf(BaseModel):
    """max-ECDF and avg-ECDF of one column."""

    largest: FiniteOrNone
    average: FiniteOrNone


class Detail(BaseModel):
    """More of a measure."""

    by_column: dict[str, ColumnEcdf] = {}


class MeasureFacts(BaseModel):
    """See :class:`pdips.evaluation.evaluate.Measure`."""

    name: str
    reading: str
    by_set: list[FiniteOrNone]
    mean: FiniteOrNone
    reference: FiniteOrNone
    weighted: bool
    reason: str | None
    best: Finite = 0.0
    detail: Detail = Detail()

    @property
    def known(self) -> list[float]:
        """The figures by set that are known, in order of size."""
        return sorted(value for value in self.by_set if value is not None)

    @property
    def times(self) -> float | None:
        """How many times as far as its reference the mean lies from what equal tables score; None if none can say."""
        if self.mean is None or self.reference is None:
            return None
        far, near = abs(self.mean - self.best), abs(self.reference - self.best)
        return far / near if near > 0 else None


class Coefficient(BaseModel):
    """A coefficient on the table and on the sets."""

    coefficient: str
    original: FiniteOrNone
    original_lower: FiniteOrNone
    original_upper: FiniteOrNone
    combined: FiniteOrNone
    combined_lower: FiniteOrNone
    combined_upper: FiniteOrNone
    ci_overlap: FiniteOrNone
    standardized_difference: FiniteOrNone
    same_sign: bool
    covered: bool


class Analysed(BaseModel):
    """See :class:`pdips.evaluation.specific.Specific`."""

    formula: str
    family: str
    weighted: bool = False
    level: Annotated[float, Field(gt=0, lt=1)]
    rule: str
    note: str | None
    coefficients: list[Coefficient]
    summary: dict[str, FiniteOrNone]
    reference: dict[str, FiniteOrNone]

    @property
    def told(self) -> list[Coefficient]:
        """The coefficients that the table tells."""
        return [one for one in self.coefficients if one.original is not None]


class Propensity(BaseModel):
    """Shares of the records whose score lies in each part of [0, 1]."""

    classifier: str
    table: Annotated[list[Share], Field(min_length=1, max_length=1000)]
    sets: list[Share]
    distance: Annotated[list[Share], Field(min_length=1)]
    at: list[Share]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.sets) != len(self.table) or len(self.at) != len(self.distance):
            raise ValueError("table and sets, and distance and at, must be of the same length")
        return self


class Density(BaseModel):
    """Shares of the cells of a numeric column."""

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
        if len(self.table) != len(self.edges) - 1 or (self.sets and len(self.sets) != len(self.table)):
            raise ValueError("table and sets must have a share for each cell between two edges")
        if any(a >= b for a, b in zip(self.edges, self.edges[1:], strict=False)) or (self.log and self.edges[0] <= 0):
            raise ValueError("edges must increase, and start above 0 on the log scale")
        return self

    @property
    def title(self) -> str:
        """Label and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def distance(self) -> float | None:
        """Total variation distance of the cells, the missing ones among them."""
        if not self.sets:
            return None
        ours, theirs = self.missing or (0.0, 0.0)
        return (sum(abs(a - b) for a, b in zip(self.table, self.sets, strict=True)) + abs(ours - (theirs or 0))) / 2


class Pair(BaseModel):
    """Differences of the shares of the cells of two columns."""

    columns: tuple[str, str]
    labels: tuple[str, str]
    levels: tuple[list[str], list[str]]
    difference: list[list[Difference]]
    distance: Finite

    @model_validator(mode="after")
    def _check(self) -> Self:
        rows, columns = map(len, self.levels)
        if not rows or not columns or max(rows, columns) > 100:
            raise ValueError("levels must be from 1 to 100")
        if len(self.difference) != rows or any(len(row) != columns for row in self.difference):
            raise ValueError("difference must have a row and a column for each of levels")
        return self

    def furthest(self) -> tuple[float, str, str]:
        """Return the difference that is largest, and the two levels of its cell."""
        cells = [(value, i, j) for i, row in enumerate(self.difference) for j, value in enumerate(row)]
        value, i, j = max(cells, key=lambda cell: abs(cell[0]))
        return value, self.levels[0][i], self.levels[1][j]


class Pictures(BaseModel):
    """See :func:`pdips.evaluation.pictured.pictured`."""

    propensity: Propensity | None
    densities: list[Density]
    pairs: list[Pair]


class Evaluation(BaseModel):
    """``confidential/evaluation.json``: see :func:`pdips.evaluation.inside.evaluate`."""

    release: Described
    weight: str | None
    general: list[MeasureFacts]
    specific: Analysed | None
    pictures: Pictures | None = None

    def measure(self, name: str) -> MeasureFacts | None:
        """Return a measure that was worked out, or None."""
        return next((one for one in self.general if one.name == name and one.mean is not None), None)


def read_evaluation(folder: Path) -> Evaluation | None:
    """Return the evaluation in ``confidential``, or None if there is none.

    Raises
    ------
    InputError
        If it can't be read or is damaged.
    """
    path = folder / FILE
    return check(Evaluation, read_json(path), str(path)) if path.exists() else None
