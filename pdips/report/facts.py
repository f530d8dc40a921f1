"""What the pages are written from: ``privacy.json`` and ``run.json``, read and checked."""

import json
import math
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.privacy.loss import Kind, Neighbours, Sampling


def _nan_is_none(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _lines(value: Any) -> list[Any]:
    """Return the words among what a mechanism said of its chains: one line, several, or several by name."""
    each = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
    return [line for line in each if isinstance(line, str)]


Number = Annotated[float, Field(allow_inf_nan=False)]
NumberOrNone = Annotated[Number | None, BeforeValidator(_nan_is_none)]


class Privacy(BaseModel):
    """The price and the statement."""

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(ge=0, lt=1)]
    neighbours: Neighbours
    kind: Kind
    sampling: Sampling
    statement: str
    rho: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class Item(BaseModel):
    """One spend."""

    step: str
    epsilon: Number
    composition: str


class NoiseItem(BaseModel):
    """The noise on some of the statistics that the sets were made from."""

    statistics: str
    scale: float
    standard_deviation: float


class MarginErrorItem(BaseModel):
    """The standard error that the noise gives to one cell of a margin."""

    columns: list[str]
    standard_error: float


class PublicFacts(BaseModel):
    """``privacy.json``: see :meth:`pdips.release.release.Release.describe`."""

    mechanism: str
    settings: dict[str, Any]
    n_sets: Annotated[int, Field(ge=1)]
    reproducible: bool
    privacy: Privacy
    spends: list[Item]
    noise: list[NoiseItem] = []
    margin_errors: list[MarginErrorItem] = []
    table_schema: Annotated[Schema, Field(alias="schema")]
    software: dict[str, str]


class PaidMeasure(BaseModel):
    """One private figure of a paid evaluation."""

    measure: str
    reading: str
    value: Number
    standard_deviation_of_noise: Number
    reference: Number


class Evaluated(BaseModel):
    """The release that an evaluation is of."""

    mechanism: str
    epsilon: Number
    n_sets: int


class PaidFacts(BaseModel):
    """``public/evaluation.json``: see :func:`pdips.evaluation.paid.evaluate_paid`."""

    release: Evaluated
    measures: Annotated[list[PaidMeasure], Field(min_length=1)]
    privacy: Privacy
    spends: list[Item]


class LedgerEntry(BaseModel):
    """One charge, as the account was charged for it."""

    number: int
    time: str
    mechanism: str
    epsilon: Number
    delta: Number = 0.0


class Account(BaseModel):
    """What the ledger said after the release."""

    total_epsilon: NumberOrNone
    spent_epsilon: Number
    remaining_epsilon: NumberOrNone
    neighbours: str
    total_delta: NumberOrNone = None
    spent_delta: Number = 0.0
    charged_epsilon: NumberOrNone = None
    charged_delta: NumberOrNone = None
    entries: list[LedgerEntry] = []


class FullTable(BaseModel):
    """L1 distances of the full cross-tabulation."""

    by_set: list[Number]
    mean: NumberOrNone
    reference: NumberOrNone


class Margin(BaseModel):
    """Shares of the levels of one column, in the table and averaged over the synthetic sets."""

    column: str
    label: str
    unit: str | None
    levels: list[str]
    table: list[Number]
    synthetic: list[Number]
    distance: NumberOrNone
    reference: NumberOrNone = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.levels or len(self.table) != len(self.levels):
            raise ValueError("levels and table must be of the same length, at least 1")
        if self.synthetic and len(self.synthetic) != len(self.levels):
            raise ValueError("levels and synthetic must be of the same length")
        return self

    @property
    def title(self) -> str:
        """Label and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def furthest(self) -> int | None:
        """Index of the level whose shares differ most."""
        gaps = [abs(a - b) for a, b in zip(self.table, self.synthetic, strict=False)]
        return gaps.index(max(gaps)) if gaps else None


class TwoWay(BaseModel):
    """Total variation distances of all pairs of columns."""

    columns: list[str]
    distance: list[list[NumberOrNone]]
    reference: list[list[NumberOrNone]]

    @model_validator(mode="after")
    def _check(self) -> Self:
        size = len(self.columns)
        for matrix in (self.distance, self.reference):
            if len(matrix) != size or any(len(row) != size for row in matrix):
                raise ValueError("distance and reference must have a row and a column for each of columns")
        return self

    def pairs(self) -> list[tuple[float, str, str]]:
        """Return the pairs of columns and their distances, the furthest apart first."""
        known = [
            (distance, a, b)
            for (i, a), (j, b) in combinations(enumerate(self.columns), 2)
            if (distance := self.distance[i][j]) is not None
        ]
        return sorted(known, key=lambda pair: -pair[0])

    def reference_mean(self) -> float | None:
        """Return the mean distance of a resample over all pairs."""
        return mean(self.reference[i][j] for i, j in combinations(range(len(self.columns)), 2))


class Moments(BaseModel):
    """Mean and standard deviation of a numeric column: see :func:`pdips.evaluation.margins.moments`."""

    column: str
    mean: Number
    sd: Number
    synthetic_mean: NumberOrNone
    synthetic_sd: NumberOrNone
    shift: NumberOrNone
    shift_error: Number
    ratio: NumberOrNone
    ratio_error: Number


class Comparison(BaseModel):
    """What :func:`pdips.evaluation.margins.compare` returned."""

    l1: FullTable
    one_way: list[Margin]
    two_way: TwoWay
    numeric: list[Moments] = []

    def margins(self) -> list[Margin]:
        """Return the one-way margins, the furthest apart first."""
        return sorted(self.one_way, key=lambda margin: -(margin.distance or 0))


class Parameter(BaseModel):
    """What is known of one parameter of a posterior, and the values that were released."""

    name: str
    mean: NumberOrNone
    sd: NumberOrNone
    rhat: NumberOrNone = None
    ess_bulk: NumberOrNone = None
    ess_tail: NumberOrNone = None
    released: list[NumberOrNone] = []


class Window(BaseModel):
    """How many records are cut off at the window: at one of the draws at least, and at each that was released."""

    limit: Number
    any: int
    any_share: Number
    released: list[int]
    released_share: list[Number]


class BoundFacts(BaseModel):
    """What was found of records' terms before they are cut off."""

    failed: str | None = None
    draws: int = 0
    bound: NumberOrNone = None
    rhat: NumberOrNone = None
    ess_tail: NumberOrNone = None
    certifies: str = ""
    window: Window | None = None


class Predicted(BaseModel):
    """How noisy statistics compare with simulated ones: see :mod:`pdips.statistics.predictive`."""

    entries: int
    outside: Number
    smallest_p: Number
    furthest: NumberOrNone = None


class RecordColumn(BaseModel):
    """How far a column lies from the mean of what its model draws, and how far draws do."""

    name: str
    distance: Number
    typical: Number
    p: Number


class RecordsFacts(BaseModel):
    """What :func:`pdips.posterior.inspection.check_records` found."""

    failed: str | None = None
    draws: int = 0
    records: int = 0
    columns: list[RecordColumn] = []


class PosteriorFacts(BaseModel):
    """What :func:`pdips.posterior.inspection.inspect` found."""

    sampler: str
    draws: int
    chains: int
    convergence: str | None = None
    edge: NumberOrNone = None
    parameters: list[Parameter]
    more: int = 0
    bounds: BoundFacts | None = None
    predictive: dict[str, Predicted] = {}
    records: RecordsFacts | None = None


class Diagnostics(BaseModel):
    """What a mechanism tells its curator, as far as the pages show it.

    ``convergence``: lines of :meth:`pdips.convergence.Convergence.describe`, or other words.
    """

    convergence: Annotated[list[str], BeforeValidator(_lines)] = []
    posterior: PosteriorFacts | None = None


class Run(BaseModel):
    """``run.json``: how the run went and how well the sets match the table."""

    seconds: dict[str, Number]
    peak_memory_mib: Number
    ledger: Account | None
    published: bool
    comparison: Comparison
    n_records: Annotated[int, Field(ge=0)] | None = None
    diagnostics: Diagnostics = Diagnostics()


def read_paid(public: Path, facts: PublicFacts) -> PaidFacts | None:
    """Return the paid evaluation that was published beside a release, or None where there is none.

    Raises
    ------
    InputError
        If ``evaluation.json`` is damaged, or is one of another release.
    """
    path = public / "evaluation.json"
    if not path.is_file():
        return None
    paid = check(PaidFacts, read(path), str(path))
    of, kept = paid.release, (facts.mechanism, facts.privacy.epsilon, facts.n_sets)
    if (of.mechanism, of.epsilon, of.n_sets) != kept:
        raise InputError(f"{path} is of another release than privacy.json beside it: move it away")
    return paid


def mean(values: Any) -> float | None:
    """Return the mean of the values that are there, or None."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def check[T: BaseModel](model: type[T], content: Any, source: str) -> T:
    """Return checked facts; ``source`` is what a message calls them. A message names keys, never a value."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{where}: {first['msg']}" if where else first["msg"]
        raise InputError(f"{source} is damaged: {message}") from None


def read(path: Path) -> Mapping[str, Any]:
    """Return the contents of a JSON file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path} is damaged: it is no valid JSON") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged: it must hold one JSON object")
    return content
