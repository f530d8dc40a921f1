"""Claims of people who have the sets alone, answered from the table at a price, by sums
with fresh noise.
"""

import math
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
from pydantic import ConfigDict, Field, ValidationError, model_validator

from pdips.arrays import FloatArray, IntArray, finite
from pdips.data.schema import Schema, read_formula, terms_of
from pdips.data.table import Table
from pdips.errors import InputError, RefusedError
from pdips.evaluation.document import ReleaseFolder, open_table
from pdips.mechanism import Drawn, LaplaceOrGaussian
from pdips.privacy.account import Receipt
from pdips.privacy.answers import PublicFacts
from pdips.privacy.charge import reserved
from pdips.privacy.curator import Clock, Curator
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import FINITE_KINDS, Number
from pdips.privacy.noise import quantise
from pdips.privacy.plan import Plan, Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.documents import (
    Document,
    Finite,
    FiniteOrNone,
    PrivacyDocument,
    ReleaseIdentity,
    StatedLoss,
    StatedSpend,
    release_home,
)
from pdips.release.folder import file_digest
from pdips.release.offers import Offers

FOLDER = "claims"
STEPS = 2**10  # Whole steps of half the range of a column: values are rounded to these
MOST_TERMS = 200
LEVEL = 0.95
REACH = {"laplace": math.log(20) / math.sqrt(2), "gaussian": 1.959964}
"""Standard deviations that hold 95 %; of a sum of Laplace variables, as many as one of
them needs.
"""
LEAST = 4.0  # How far above the noise the other predictors' Gram matrix has to be
COUNT = -2
ZERO = -1

Verdict = Literal["holds", "fails", "undecided", "nothing can be said"]
SAID: dict[Verdict, str] = {
    "holds": "The interval of the answer lies inside what was claimed.",
    "fails": "The interval of the answer and what was claimed don't meet.",
    "undecided": "The interval of the answer lies partly inside what was claimed: it "
    "allows for both.",
    "nothing can be said": "At this price the noise is too loud for any interval of "
    "this coefficient.",
}


class Claim(Document):
    """What is claimed of a table: that a coefficient of a linear regression has a sign,
    or lies in an interval.

    ``release`` may name the SHA-256 of the ``privacy.json`` that the claim comes from.

    Examples
    --------
    >>> Claim(
    ...     formula="wage ~ age + sex", coefficient="sex[m]", sign="positive"
    ... ).interval
    (0.0, inf)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    formula: str
    coefficient: str
    lower: Finite | None = None
    upper: Finite | None = None
    sign: Literal["positive", "negative"] | None = None
    release: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _check(self) -> Self:
        bounded = self.lower is not None or self.upper is not None
        if bounded == (self.sign is not None):
            raise ValueError(
                "a claim has either a sign or an interval: lower, upper or both"
            )
        if self.interval[0] >= self.interval[1]:
            raise ValueError("the interval is empty: lower must be below upper")
        return self

    @property
    def interval(self) -> tuple[float, float]:
        """What is claimed, as an interval."""
        if self.sign is not None:
            return (0.0, math.inf) if self.sign == "positive" else (-math.inf, 0.0)
        lower = -math.inf if self.lower is None else self.lower
        upper = math.inf if self.upper is None else self.upper
        return lower, upper

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a claim from a TOML file."""
        try:
            return cls.model_validate(
                tomllib.loads(Path(path).read_text(encoding="utf-8"))
            )
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            reason = " ".join(
                [*map(str, first["loc"]), first["msg"].removeprefix("Value error, ")]
            )
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            reason = (
                str(error.strerror)
                if isinstance(error, OSError)
                else "it is no valid TOML"
            )
        raise InputError(f"can't read the claim {path}: {reason}")

    def judge(self, lower: float, upper: float) -> Verdict:
        """Say what an interval that holds the table's coefficient makes of the
        claim.
        """
        if lower == -math.inf and upper == math.inf:
            return "nothing can be said"
        least, most = self.interval
        if upper < least or lower > most:
            return "fails"
        return "holds" if least <= lower and upper <= most else "undecided"


class ClaimAnswer(Document):
    """``public/claims/NAME.json``: a claim, what the table says of it with fresh noise,
    and the price.
    """

    claim: Claim
    verdict: Verdict
    said: str
    level: Finite = LEVEL
    estimate: FiniteOrNone
    lower: FiniteOrNone
    upper: FiniteOrNone
    n_records: int
    terms: tuple[str, ...]
    products: list[tuple[str, str]]
    noisy_steps: list[int]
    steps: int = STEPS
    standard_deviation_of_noise: Finite
    release: ReleaseIdentity
    release_digest: str
    privacy: StatedLoss
    spends: list[StatedSpend]
    software: dict[str, str]
    receipt: Receipt | None


# ---- the sums ----


@dataclass(frozen=True, kw_only=True, eq=False)
class CodedColumn:
    """A column in whole steps: a line from -STEPS to STEPS, or an indicator of STEPS
    for each level but the first.
    """

    name: str
    terms: tuple[str, ...]
    middle: float = 0.0
    half: float = 1.0
    levels: IntArray | None = None
    ends: bool = False

    @classmethod
    def of(cls, schema: Schema, name: str) -> Self:
        """Code a column by the schema alone; two levels are the ends of a line."""
        terms = terms_of(schema, name)
        column = schema.columns[name]
        if not terms:
            raise InputError(f"{name!r} has one level: it is the same for all records")
        if terms == (name,):
            values = np.array(
                [column.lower, column.upper]
                if column.levels is None
                else column.levels,
                dtype=float,
            )
            middle = (values.max() + values.min()) / 2
            half = (values.max() - values.min()) / 2
            steps = None
            if column.levels is not None:
                steps = _in_steps((values - middle) / half)[:, None]
            return cls(name=name, terms=terms, middle=middle, half=half, levels=steps)
        if len(terms) == 1:
            return cls(
                name=name,
                terms=terms,
                middle=0.5,
                half=0.5,
                levels=np.array([[-STEPS], [STEPS]]),
                ends=True,
            )
        indicators = np.eye(column.n_levels, dtype=np.int64)[:, 1:]
        return cls(name=name, terms=terms, levels=STEPS * indicators)

    def steps_of(self, table: Table) -> IntArray:
        """Return a row a record, shape (records, terms); each row depends on its record
        alone.
        """
        if self.levels is not None:
            return self.levels[table.codes[self.name]]
        values = (table.sort_key(self.name) - self.middle) / self.half
        return _in_steps(values)[:, None]


def _in_steps(values: FloatArray) -> IntArray:
    return np.clip(quantise(values, Fraction(1, STEPS)), -STEPS, STEPS)


@dataclass(frozen=True, eq=False)
class MomentDesign:
    """The columns of a formula, the outcome last, and the sums of products that its
    least-squares fit needs.
    """

    columns: tuple[CodedColumn, ...]

    @classmethod
    def of(cls, formula: str, schema: Schema) -> Self:
        """Read ``"outcome ~ column + column"``: columns alone: nothing is evaluated, or
        read off the table.
        """
        outcome, predictors = read_formula(formula, schema)
        columns = tuple(CodedColumn.of(schema, name) for name in (*predictors, outcome))
        if sum(len(each.terms) for each in columns) > MOST_TERMS:
            raise InputError(f"a claim's formula may have at most {MOST_TERMS} terms")
        return cls(columns)

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the coefficients, and the outcome's; the intercept is first."""
        return ("Intercept", *(term for each in self.columns for term in each.terms))

    @property
    def places(self) -> IntArray:
        """Return where each product of two terms is among the sums; COUNT and ZERO for
        what is known without them.
        """
        home = [-1, *(k for k, each in enumerate(self.columns) for _ in each.terms)]
        found = np.full((len(home), len(home)), ZERO)
        found[0, 0] = COUNT
        asked = 0
        for i, j in product(range(len(home)), repeat=2):
            column = self.columns[home[j]]
            if i == j > 0 and len(column.terms) > 1:
                found[i, j] = found[0, j]  # an indicator is its own square
            elif i == j > 0 and column.ends:
                found[i, j] = COUNT
            elif (i < j and home[i] != home[j]) or 0 < i == j < len(home) - 1:
                found[i, j] = found[j, i] = asked
                asked += 1
        return found

    def sums(self, table: Table) -> IntArray:
        """Return the sums over records, in whole steps of 1 / STEPS^2: exact, and
        confidential.
        """
        rows = np.hstack(
            [
                np.full((table.n_records, 1), STEPS),
                *(each.steps_of(table) for each in self.columns),
            ]
        )
        whole = rows.T @ rows
        places = self.places
        found = np.zeros(places.max() + 1, dtype=np.int64)
        found[places[places >= 0]] = whole[places >= 0]
        return found

    def most_moved(self) -> tuple[int, int]:
        """Return how far a replaced record moves the sums at most, l1 and squared l2,
        in steps of 1.

        A record's products are affine in each of its columns, so that the worst records
        have every column at an end; then only how many lines, and how many columns with
        indicators, change is left to try. Squares of lines move by 1 at most, on top
        (``docs/proofs/verify.md``).
        """
        lines = sum(len(each.terms) == 1 for each in self.columns)
        others = len(self.columns) - lines
        squares = sum(
            len(each.terms) == 1 and not each.ends for each in self.columns[:-1]
        )
        found = []
        for a, b in product(range(lines + 1), range(others + 1)):
            # single columns, and pairs of which one changes
            of_lines = a + a * (lines - a)
            mixed = lines * others - (lines - a) * (others - b)
            alone = a * (others - b)
            pairs = (others * (others - 1) - (others - b) * (others - b - 1)) // 2
            l1 = 2 * (of_lines + b + mixed + pairs)
            found.append(
                (l1, 4 * of_lines + 2 * (b + pairs) + 4 * alone + 2 * (mixed - alone))
            )
        l1, l2 = (max(each) for each in zip(*found, strict=True))
        return l1 + squares, l2 + squares


@dataclass(frozen=True, kw_only=True)
class ClaimCheck(LaplaceOrGaussian):
    """Sums of products of a formula's columns with fresh noise, from which a claim
    about a coefficient is answered.

    Parameters
    ----------
    formula : str
        ``"outcome ~ column + column"``. Numbers enter as they are, in steps of 1/2,048
        of their range; two levels as 0 and 1; other levels as indicators against the
        schema's first. An outcome is a number or has two levels.
    epsilon, delta : optional
        As in :class:`pdips.mechanism.LaplaceOrGaussian`.

    Raises
    ------
    InputError
        If a setting is out of range; from ``plan``, if the formula doesn't fit the
        schema.

    Examples
    --------
    >>> schema = Schema.load("examples/youth.toml")
    >>> [
    ...     item.step
    ...     for item in ClaimCheck(epsilon=1, formula="enrolled ~ sex + age").spends(
    ...         schema
    ...     )
    ... ]
    ['sums of products']
    """

    name: ClassVar[str] = "verify"
    offers: ClassVar[Offers] = Offers(
        zeros=True, rules=True, public_columns=True, totals=True, kinds=("pure", "zcdp")
    )
    most_sets: ClassVar[int] = 1

    formula: str

    def plan(self, schema: Schema) -> Plan:
        """Return the one step: all sums of products that a least-squares fit needs."""
        design = MomentDesign.of(self.formula, schema)
        l1, l2 = design.most_moved()
        sensitivity = Sensitivity.of_record(
            schema, l1=l1 * STEPS**2, l2_squared=l2 * STEPS**4
        )
        step = Step(
            name="sums of products",
            sensitivity=sensitivity,
            price=self.total,
            law=self.noise_law,
            counts="each sum of products of two columns, of which lines run from -1 "
            "to 1",
            unit=1 / STEPS**2,
        )
        exactly = "Laplace" if self.kind == "pure" else "Gaussian"
        columns = ", ".join(each.name for each in design.columns)
        law = (
            "It makes no set: it publishes an answer to one claim about a linear "
            "regression, worked out from sums over "
            f"records of products of two of the columns {columns}, each with "
            f"exact discrete {exactly} noise of standard deviation "
            f"{step.noise.standard_deviation:.6g} records. What "
            "the sets cost is paid apart and adds to this."
        )
        return self.planned(schema, [step], law, design=design, **self.reading)

    def ask(self, plan: Plan, curator: Curator) -> IntArray:
        """Ask for the sums."""
        return curator.count(plan.steps[0], plan.design.sums)

    def draw(
        self,
        plan: Plan,
        measured: IntArray,
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        """Return the noisy sums; no set is made."""
        noisy = pd.DataFrame({"noisy_steps": measured})
        return Drawn(sets=(), statistics={"sums": noisy})


def interval_of(
    plan: Plan, noisy: IntArray, n_records: int, term: str
) -> tuple[float, float, float]:
    """Return a coefficient of the table's least-squares fit, and the ends of its 95 %
    interval from the noise alone.

    With the other coefficients at their fit given this one, the score of this one is
    linear in it, and so is each noisy sum's part in the score: the values whose score
    is within its noise solve a quadratic inequality (Fieller, 1954). They are the whole
    line, with NaN for the coefficient, where the noise hides that the columns differ.
    """
    step = plan.steps[0]
    design = plan.design
    noise = step.noise.standard_deviation
    nothing = math.nan, -math.inf, math.inf
    j = design.terms.index(term)
    # COUNT and ZERO are places from the end
    sums = np.append(noisy / STEPS**2, [n_records, 0.0])[design.places]
    others = np.delete(np.arange(len(sums) - 1), j)
    gram = sums[np.ix_(others, others)]
    least = np.linalg.eigvalsh(gram)[0]
    if least <= LEAST * noise * math.sqrt(len(others)):
        return nothing
    start, weights = _score_lines(sums, gram, others, j)
    # the score is a - c b of a coefficient c; so is each noisy sum's part in it
    a = weights @ sums @ start
    b = weights @ sums @ weights
    of_a = _parts(design.places, weights, start)
    of_b = _parts(design.places, weights, weights)
    reach = (REACH[step.law] * noise) ** 2
    ends = _fieller(a, b, of_a, of_b, reach)
    if ends is None:
        return nothing
    column = next(each for each in design.columns if term in each.terms)
    unit = design.columns[-1].half / column.half
    return a / b * unit, ends[0] * unit, ends[1] * unit


def _fieller(
    a: float, b: float, of_a: FloatArray, of_b: FloatArray, reach: float
) -> tuple[float, float] | None:
    """Return the ends of the values c for which a - c b is within its noise, None where
    they have no end.
    """
    square = b * b - reach * float(of_b @ of_b)
    middle = a * b - reach * float(of_a @ of_b)
    rest = a * a - reach * float(of_a @ of_a)
    if square <= 0 or b <= 0:
        return None
    root = math.sqrt(max(middle * middle - square * rest, 0.0))
    return (middle - root) / square, (middle + root) / square


def _score_lines(
    sums: FloatArray, gram: FloatArray, others: IntArray, j: int
) -> tuple[FloatArray, FloatArray]:
    """Return the residuals of the outcome and of a term, given the other terms, as
    weights of all columns.
    """
    right = np.column_stack([sums[others, -1], sums[others, j]])
    of_outcome, of_term = np.linalg.solve(gram, right).T
    start = np.zeros(len(sums))
    start[-1] = 1.0
    start[others] = -of_outcome
    weights = np.zeros(len(sums))
    weights[j] = 1.0
    weights[others] = -of_term
    return start, weights


def _parts(places: IntArray, one: FloatArray, other: FloatArray) -> FloatArray:
    """Return how much of each noisy sum is in a product of two combinations of
    columns.
    """
    is_noisy = places >= 0
    return np.bincount(places[is_noisy], np.outer(one, other)[is_noisy])


def verify_claim(
    table: str | Path,
    directory: str | Path,
    claim: Claim,
    *,
    epsilon: Number,
    delta: Number | None = None,
    ledger: Ledger | None = None,
    explain: bool = False,
    rng: np.random.Generator | None = None,
    clock: Clock | None = None,
    write: "Callable[[ClaimAnswer], None] | None" = None,
    resume: int | None = None,
    command: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
) -> ClaimAnswer:
    """Answer a claim about the table of a published release, and charge the ledger.
    Nothing is written.

    What is refused depends on the claim and on what is public alone.

    Parameters
    ----------
    table, directory : path
        The confidential table, and the folder of the release.
    claim : Claim
        A formula, a coefficient, and an interval or a sign.
    epsilon : number
        The price in nats.
    delta : number, optional
        For Gaussian noise, zero-concentrated and read at this delta; Laplace noise
        without it.
    ledger, explain, rng, clock, resume, command, allow : optional
        As in :func:`pdips.evaluation.paid.evaluate_paid`.
    write : callable, optional
        Writes the answer. Until it has, the charge can be resumed.

    Raises
    ------
    InputError
        If the claim doesn't fit the release.
    DataError
        If the records don't fit the schema, or the ledger belongs to another table.
    RefusedError
        If the release isn't published, has no guarantee or is for add-remove
        neighbours, or the ledger is overspent.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "sex": Column(levels=["f", "m"]),
    ...     }
    ... )
    >>> table = Table(
    ...     pd.DataFrame(
    ...         {"ill": ["no"] * 400 + ["yes"] * 200, "sex": ["f"] * 400 + ["m"] * 200}
    ...     ),
    ...     schema,
    ... )
    >>> Margins(epsilon=1).release(table)[0].write("claimed/public")
    >>> table.frame.to_parquet("table.parquet")
    >>> claim = Claim(formula="ill ~ sex", coefficient="sex[m]", sign="positive")
    >>> verify_claim("table.parquet", "claimed", claim, epsilon=1).verdict
    'holds'
    """
    clock = clock or Clock()
    home = release_home(directory)
    document = PrivacyDocument.read(home)
    digest = file_digest(home / PrivacyDocument.file)
    _check_release(home, document)
    if claim.release not in (None, digest):
        raise InputError(
            "the claim was made for another release: its privacy.json "
            "has another digest"
        )
    mechanism = ClaimCheck(epsilon=epsilon, delta=delta, formula=claim.formula)
    plan = mechanism.plan(document.table_schema)
    terms: Sequence[str] = plan.design.terms[1:-1]
    if _term_of(claim) not in terms:
        raise InputError(
            f"{claim.coefficient!r} is no coefficient of the claim's "
            f"formula; it has {', '.join(terms)}"
        )
    with reserved(
        ledger,
        mechanism.request_of(plan),
        explain=explain,
        allow=allow,
        resume=resume,
    ):
        with clock.step("reading the table"):
            folder = ReleaseFolder(
                folder=Path(directory), home=home, document=document, sets=()
            )
            confidential = open_table(table, folder)
        with clock.step("charging and adding up"):
            release, _ = mechanism.release(
                confidential, ledger=ledger, rng=rng, resume=resume, command=command
            )
    noisy = release.statistics["sums"]["noisy_steps"].to_numpy()
    measured = _measured(plan, noisy, confidential.n_records, claim)
    answer = ClaimAnswer(
        **measured,
        release=ReleaseIdentity.of(document),
        release_digest=digest,
        **release.price(),
    )
    # a charge can be resumed until its answer is written
    with nullcontext() if release.charge is None else release.charge.redeemable():
        if write is not None:
            write(answer)
        release.finish()
    return answer


def _measured(
    plan: Plan, noisy: IntArray, n_records: int, claim: Claim
) -> dict[str, Any]:
    """Return what an answer says of a claim, and the sums that it follows from."""
    term = _term_of(claim)
    estimate, lower, upper = interval_of(plan, noisy, n_records, term)
    verdict = claim.judge(lower, upper)
    return {
        "claim": claim,
        "verdict": verdict,
        "said": SAID[verdict],
        "estimate": estimate,
        "lower": finite(lower),
        "upper": finite(upper),
        "n_records": n_records,
        "terms": tuple(plan.design.terms[1:-1]),
        "products": _products(plan, len(noisy)),
        "noisy_steps": noisy.tolist(),
        "standard_deviation_of_noise": plan.steps[0].noise.standard_deviation,
    }


def _term_of(claim: Claim) -> str:
    """Return the coefficient as designs spell it; patsy writes ``sex[T.m]``."""
    return claim.coefficient.replace("[T.", "[")


def _check_release(home: Path, document: PrivacyDocument) -> None:
    if home.name != "public" or document.privacy.kind not in FINITE_KINDS:
        raise RefusedError(
            "a claim is about a published release with a guarantee, "
            "and this one stays inside"
        )
    if document.table_schema.members is not None:
        raise RefusedError(
            "claims are about tables of one record a row, and this "
            "release has households"
        )
    if document.privacy.neighbours != "replace-one":
        raise RefusedError(
            "an answer shows the number of records, which this "
            "release protects (add-remove neighbours)"
        )


def _products(plan: Plan, n_sums: int) -> list[tuple[str, str]]:
    """Return the two terms of each noisy sum."""
    terms = plan.design.terms
    products = []
    for k in range(n_sums):
        i, j = np.argwhere(plan.design.places == k)[0]
        products.append((terms[i], terms[j]))
    return products
