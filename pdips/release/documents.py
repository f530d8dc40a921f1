"""The files of a release as typed objects: ``privacy.json`` and ``run.json``.

Who writes a file and who reads it use the same class.
"""

import json
import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_serializer,
    model_validator,
)

from pdips.convergence import Convergence
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.privacy.account import Receipt
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import (
    CONCENTRATED_KINDS,
    Kind,
    Neighbours,
    PrivacyLoss,
    Sampling,
    as_float,
    to_replace_one,
)
from pdips.privacy.plan import Noise
from pdips.release.answers import AnswerForm
from pdips.release.known_totals import TotalCheck
from pdips.release.noisy_margins import MarginError, MarginLaw
from pdips.release.offers import Offers
from pdips.release.public_draws import Misfit

Finite = Annotated[float, Field(allow_inf_nan=False)]
RoundedUp = Annotated[
    Finite,
    BeforeValidator(
        lambda value: as_float(value) if isinstance(value, Fraction) else value
    ),
]
FiniteOrNone = Annotated[
    Finite | None,
    BeforeValidator(
        lambda value: None if isinstance(value, float) and math.isnan(value) else value
    ),
]

ANSWERS_FOLDER = "answers"  # Folder of answers, in that of a release
ANALYSIS_FOLDER = "analysis_{}"  # Of a named analysis, in the public folder
OF_TABLES = "of_tables"  # Settings of the tables' part of a release with analyses

# A release is named by 16 random hexadecimal digits
Identifier = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class Document(BaseModel):
    """A JSON file of a release, checked when it is made and when it is read.

    A message about a damaged file names keys, never a value.
    """

    model_config = ConfigDict(populate_by_name=True)
    file: ClassVar[str]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file of that name in a folder."""
        return cls.parse(read_bytes(folder / cls.file), folder / cls.file)

    @classmethod
    def parse(cls, content: bytes, path: Path) -> Self:
        """Return what the bytes of a file hold; ``path`` is what a message names."""
        return check(cls, parse_json(content, path), str(path))

    @classmethod
    def found(cls, folder: Path) -> Self | None:
        """Read the file of that name in a folder, or return None where there is
        none.
        """
        return cls.read(folder) if (folder / cls.file).is_file() else None

    def write(self, folder: Path) -> Path:
        """Write the file into a folder, and return its path."""
        path = folder / self.file
        write_json(path, self.contents())
        return path

    def contents(self) -> dict[str, Any]:
        """Return what the file holds, as plain numbers, strings, lists and mappings."""
        found: dict[str, Any] = json.loads(self.model_dump_json(by_alias=True))
        return found


class Findings(BaseModel):
    """Confidential findings of a mechanism: besides the fields that the report shows,
    whatever else it writes.
    """

    model_config = ConfigDict(extra="allow")


# ---- privacy.json ----


class StatedLoss(BaseModel):
    """A privacy loss as a file states it: in doubles, rounded up, with the statement
    for a disclosure board.
    """

    model_config = ConfigDict(from_attributes=True)

    epsilon: Annotated[RoundedUp, Field(gt=0)]
    delta: Annotated[RoundedUp, Field(ge=0, lt=1)]
    neighbours: Neighbours
    kind: Kind
    sampling: Sampling
    statement: str
    rho: Annotated[RoundedUp, Field(ge=0, exclude_if=lambda rho: not rho)] = 0.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind in CONCENTRATED_KINDS and not self.rho:
            raise ValueError(f"a loss of kind {self.kind} must state its rho")
        return self


class StatedSpend(BaseModel):
    """One item of a price as a file states it."""

    model_config = ConfigDict(from_attributes=True)

    step: str
    epsilon: RoundedUp
    composition: str


class StatedAnalysis(BaseModel):
    """An analysis that was named before a release, and has a folder of its own in the
    public one: a part, whose price is in that of the release.
    """

    folder: Annotated[str, Field(pattern=r"^analysis_[1-9]\d?$")]
    question: str
    epsilon: RoundedUp
    rho: RoundedUp = 0.0
    # SHA-256 of its privacy.json, which has those of its files
    digest: str | None = None


class PrivacyDocument(Document):
    """What is published of a release beside its synthetic sets: settings, price, noise,
    schema. No timing.
    """

    file: ClassVar[str] = "privacy.json"

    release: Identifier
    mechanism: str
    settings: dict[str, Any]
    n_sets: Annotated[int, Field(ge=1)]
    reproducible: bool
    offers: Offers
    receipt: Receipt | None = None
    privacy: StatedLoss
    spends: list[StatedSpend]
    noise: list[Noise] = []
    margin_errors: list[MarginError] = []
    margins: Annotated[list[MarginLaw], Field(exclude_if=lambda laws: not laws)] = []
    answers: Annotated[list[AnswerForm], Field(exclude_if=lambda forms: not forms)] = []
    totals: Annotated[
        list[TotalCheck], Field(exclude_if=lambda checks: not checks)
    ] = []
    analyses: Annotated[
        list[StatedAnalysis], Field(exclude_if=lambda stated: not stated)
    ] = []
    # of the table, where it is public and sets have another number
    n_records: Annotated[
        int | None, Field(ge=1, exclude_if=lambda known: known is None)
    ] = None
    table_schema: Annotated[Schema, Field(alias="schema")]
    software: dict[str, str]
    # SHA-256, by file
    digests: Annotated[
        dict[str, str] | None, Field(exclude_if=lambda known: known is None)
    ] = None

    @property
    def mechanism_settings(self) -> dict[str, Any]:
        """The settings by which the sets' mechanism is made again: at its part of the
        budget, where analyses have the rest.
        """
        settings: dict[str, Any] = dict(self.settings)
        of_tables = settings.pop(OF_TABLES, None)
        if of_tables is None:
            return settings
        for name in ("analyses", "main"):
            settings.pop(name, None)
        return {**settings, **of_tables}

    @field_serializer("table_schema")
    def _without_defaults(self, schema: Schema) -> dict[str, Any]:
        return schema.to_dict()


class Signature(Document):
    """``signature.json``: what the key of an account says of ``privacy.json``, byte for
    byte.
    """

    file: ClassVar[str] = "signature.json"

    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


class ReleaseIdentity(BaseModel):
    """What tells the release that an evaluation is of from others."""

    identifier: Identifier
    mechanism: str
    epsilon: Finite
    kind: Kind
    n_sets: int

    @classmethod
    def of(cls, release: PrivacyDocument) -> Self:
        loss = release.privacy
        return cls(
            identifier=release.release,
            mechanism=release.mechanism,
            epsilon=loss.epsilon,
            kind=loss.kind,
            n_sets=release.n_sets,
        )

    def differs(self, release: PrivacyDocument) -> list[str]:
        """Return the names of what isn't true of a release."""
        return [
            name for name, value in self if value != getattr(self.of(release), name)
        ]


# ---- run.json ----


class StatedCharge(BaseModel):
    """One charge, as the account was charged for it."""

    number: int
    time: str
    mechanism: str
    epsilon: Finite
    delta: Finite
    rho: FiniteOrNone


class AccountState(BaseModel):
    """What the ledger said after the release; with ``total_rho``, each epsilon is a
    reading of the rho beside it.
    """

    neighbours: str
    total_epsilon: FiniteOrNone
    spent_epsilon: Finite
    remaining_epsilon: FiniteOrNone
    total_delta: FiniteOrNone
    spent_delta: Finite
    charged_epsilon: Annotated[Finite, Field(gt=0)]
    charged_delta: Finite
    total_rho: FiniteOrNone
    spent_rho: FiniteOrNone
    remaining_rho: FiniteOrNone
    charged_rho: FiniteOrNone
    entries: list[StatedCharge]

    @classmethod
    def of(cls, ledger: Ledger, loss: PrivacyLoss) -> Self:
        """Return where the account of a ledger stands after a release of this price."""
        account = ledger.summary()
        charged = to_replace_one(loss) if account.neighbours == "replace-one" else loss
        state = {}
        for name in cls.model_fields:
            if hasattr(account, name):
                state[name] = getattr(account, name)
        state |= {
            "charged_epsilon": charged.epsilon,
            "charged_delta": charged.delta,
            "charged_rho": charged.rho or None,  # an approximate loss has none
        }
        entries = []
        for entry in ledger.entries():
            entries.append(
                {
                    "number": entry.number,
                    "time": entry.time,
                    "mechanism": entry.mechanism,
                    "epsilon": entry.price.charged_epsilon,
                    "delta": entry.price.charged_delta,
                    "rho": entry.price.charged_rho,
                }
            )
        return cls.model_validate({**state, "entries": entries})


class FullTable(BaseModel):
    """L1 distances of the full cross-tabulation: sums over all cells of abs(share -
    share), 0 equal, 2 disjoint.

    ``reference`` is what as many records score that are drawn with replacement from the
    table.
    """

    by_set: list[Finite]
    mean: FiniteOrNone
    reference: FiniteOrNone


class Margin(BaseModel):
    """Shares of the levels of one column, in the table and averaged over the synthetic
    sets.

    ``distance`` is their total variation distance, ``reference`` what a resample as
    large as a set has on average.
    """

    column: str
    label: str
    unit: str | None
    levels: list[str]
    table: list[Finite]
    synthetic: list[Finite]
    distance: FiniteOrNone
    reference: Finite

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.levels or {
            len(self.table),
            len(self.synthetic) or len(self.levels),
        } != {len(self.levels)}:
            raise ValueError(
                "levels, table and synthetic, if any, must be of the "
                "same length, at least 1"
            )
        return self

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def furthest(self) -> int | None:
        """Index of the level whose shares differ most."""
        gaps = [abs(a - b) for a, b in zip(self.table, self.synthetic, strict=False)]
        return gaps.index(max(gaps)) if gaps else None


class TwoWay(BaseModel):
    """Total variation distances of all pairs of columns, averaged over the sets, and
    those of a resample.
    """

    columns: list[str]
    distance: list[list[FiniteOrNone]]
    reference: list[list[FiniteOrNone]]

    @model_validator(mode="after")
    def _check(self) -> Self:
        n_columns = len(self.columns)
        for matrix in (self.distance, self.reference):
            if [len(row) for row in matrix] != [n_columns] * n_columns:
                raise ValueError(
                    "distance and reference must have a row and a "
                    "column for each of columns"
                )
        return self

    def pairs(self) -> list[tuple[float, str, str]]:
        """Return the pairs of columns and their distances, the furthest apart first."""
        known = []
        for i, j in combinations(range(len(self.columns)), 2):
            distance = self.distance[i][j]
            if distance is not None:
                known.append((distance, self.columns[i], self.columns[j]))
        return sorted(known, key=lambda pair: -pair[0])

    def reference_mean(self) -> float | None:
        """Return the mean distance of a resample over all pairs."""
        pairs = combinations(range(len(self.columns)), 2)
        return mean(self.reference[i][j] for i, j in pairs)


class Moments(BaseModel):
    """Mean and standard deviation of a numeric column: see
    :func:`pdips.evaluation.margins.moments`.

    ``shift`` is in standard deviations of the table (of an even spread between the
    bounds where that is 0), ``ratio`` that of the sets over that of the table; their
    errors are standard errors for a resample as large as a set. ``span`` is the way
    from the table's 1st to its 99th percentile, in its standard deviations. Ratio and
    span are None where that is 0.
    """

    column: str
    mean: Finite
    sd: Finite
    synthetic_mean: FiniteOrNone
    synthetic_sd: FiniteOrNone
    shift: FiniteOrNone
    shift_error: Finite
    ratio: FiniteOrNone
    ratio_error: Finite
    span: FiniteOrNone


class Comparison(BaseModel):
    """How near the sets are to their table: see
    :func:`pdips.evaluation.margins.compare`; or that it was skipped.
    """

    l1: FullTable
    one_way: list[Margin]
    two_way: TwoWay
    numeric: list[Moments]
    skipped: bool = False

    def margins(self) -> list[Margin]:
        """Return the one-way margins, the furthest apart first."""
        return sorted(self.one_way, key=lambda margin: -(margin.distance or 0))


class Parameter(Findings):
    """What is known of one parameter of a posterior, and the values that were
    released.
    """

    name: str
    mean: FiniteOrNone
    sd: FiniteOrNone
    rhat: FiniteOrNone = None
    ess_bulk: FiniteOrNone = None
    ess_tail: FiniteOrNone = None
    released: list[FiniteOrNone] = []


class Window(Findings):
    """How many records are cut off at the window: at one of the draws at least, and at
    each that was released.
    """

    limit: Finite
    any: int
    any_share: Finite
    released: list[int]
    released_share: list[Finite]


class BoundSummary(Findings):
    """What was found of records' terms before they are cut off."""

    failed: str | None = None
    draws: int = 0
    bound: FiniteOrNone = None
    rhat: FiniteOrNone = None
    ess_tail: FiniteOrNone = None
    certifies: str = ""
    window: Window | None = None


class PredictiveCheck(Findings):
    """How a noisy statistic compares with simulated ones: see
    :mod:`pdips.statistics.predictive`.
    """

    entries: int
    outside: Finite
    smallest_p: Finite
    furthest: Finite


class RecordColumn(Findings):
    """How far a column lies from the mean of what its model draws, and how far draws
    do.
    """

    name: str
    distance: Finite
    typical: Finite
    p: Finite


class RecordCheck(Findings):
    """How the columns of the table compare with records drawn from their model."""

    failed: str | None = None
    draws: int = 0
    records: int = 0
    columns: list[RecordColumn] = []


def _each_convergence(value: Any) -> list[Any]:
    """Return what a mechanism said of its chains, once or several times; other words
    and numbers are left out.
    """
    several: Iterable[Any] = [value]
    if isinstance(value, Mapping) and "rhat" not in value:
        several = value.values()
    elif isinstance(value, (list, tuple)):
        several = value
    return [
        one
        for one in several
        if isinstance(one, Convergence) or (isinstance(one, Mapping) and "rhat" in one)
    ]


class SumsSummary(Findings):
    """How far the likelihood of noisy sums of scores can be relied on: see
    :mod:`pdips.scores.posterior`. Public.
    """

    pareto_k: FiniteOrNone
    effective: Finite
    widening: Finite
    moved: Finite
    clipped: list[Finite]
    parameters: int
    as_prior: int
    undrawn: int = 0
    misfit: FiniteOrNone = None
    misfit_by: Misfit | None = None
    reference_apart: FiniteOrNone = None


class PosteriorSummary(Findings):
    """A posterior as its curator sees it: see :mod:`pdips.posterior.inspection`."""

    sampler: str
    draws: int
    chains: int
    convergence: Convergence | None = None
    edge: FiniteOrNone = None
    parameters: list[Parameter]
    more: int = 0
    bounds: BoundSummary | None = None
    predictive: dict[str, PredictiveCheck] = {}
    noisy_sums: SumsSummary | None = None
    records: RecordCheck | None = None


class Diagnostics(Findings):
    """What a mechanism tells its curator: convergence of all chains that it ran, and
    its posterior, among others.
    """

    convergence: Annotated[list[Convergence], BeforeValidator(_each_convergence)] = []
    posterior: PosteriorSummary | None = None
    solver_arrived: bool | None = None
    telling_pairs: float | None = None
    levels_off: Finite | None = None


class RunDocument(Document):
    """How the run went and how near the sets are to the table. Confidential, and paid
    by no epsilon.
    """

    file: ClassVar[str] = "run.json"

    # The same as in privacy.json
    release: Identifier
    # The fingerprint of the table, by which a ledger knows it; None without a ledger
    table: str | None
    published: bool
    seconds: dict[str, Finite]
    peak_memory_mib: Finite
    ledger: AccountState | None
    n_records: Annotated[int, Field(ge=1)]
    diagnostics: Diagnostics
    comparison: Comparison


def home_of(directory: Path) -> Path | None:
    """Return where a release folder has its sets, ``public`` or ``confidential``; None
    if it holds no release.
    """
    places = (directory / "public", directory / "confidential")
    return next(
        (place for place in places if (place / PrivacyDocument.file).is_file()), None
    )


def answered_beside(directory: Path) -> dict[int, Path]:
    """Return where a release folder has answers to further questions, by their
    number: each is a release of its own.
    """
    homes = {}
    for folder in (directory / ANSWERS_FOLDER).glob("*"):
        if folder.name.isdecimal() and (folder / "public" / "privacy.json").is_file():
            homes[int(folder.name)] = folder / "public"
    return dict(sorted(homes.items()))


def analyses_within(home: Path) -> dict[int, Path]:
    """Return where a public folder has analyses that are parts of its release, by their
    number.
    """
    document = PrivacyDocument.found(home)
    stated = [] if document is None else document.analyses
    return {number: home / each.folder for number, each in enumerate(stated, start=1)}


def release_home(directory: str | Path, *, received: bool = False) -> Path:
    """Return where a release folder has its sets, or refuse one without; ``received``:
    or a public folder alone.
    """
    alone = received and (Path(directory) / PrivacyDocument.file).is_file()
    home = Path(directory) if alone else home_of(Path(directory))
    if home is None:
        raise InputError(
            f"{directory} is no folder of a pdips release: it has no "
            f"public/privacy.json; name the folder that "
            "`pdips synthesize --out` made"
        )
    return home


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are there, or None."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def check[T: BaseModel](model: type[T], content: Any, source: str) -> T:
    """Return a checked object; ``source`` is what a message calls its origin. A message
    names keys, never a value.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        inner = first.get("ctx", {}).get("error")
        message = f"{where}: {first['msg']}" if where else first["msg"]
        message = f"{where}.{inner}" if isinstance(inner, InputError) else message
        raise InputError(f"{source} is damaged: {message}") from None


def read_json(path: Path) -> Mapping[str, Any]:
    """Return what a JSON file holds."""
    return parse_json(read_bytes(path), path)


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file of a release."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe never ends
            raise InputError(f"can't read {path}: it is no file")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror}") from None


def parse_json(text: bytes, path: Path) -> Mapping[str, Any]:
    """Return what the bytes of a JSON file hold; ``path`` is what a message names."""
    try:
        content = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        raise InputError(f"{path} is damaged: it is no valid JSON") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged: it must hold one JSON object")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON that people can read too."""
    path.write_text(json_text(content), encoding="utf-8")


def json_text(content: Mapping[str, Any]) -> str:
    """Return JSON that people can read too."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
