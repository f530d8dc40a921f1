"""Two measures of a published release, private and paid for: they may be
published too.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import InitVar, dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table, are_two
from pdips.errors import InputError, RefusedError
from pdips.evaluation.document import ReleaseFolder, open_release, open_table
from pdips.evaluation.encoding import codes_of, grouped, sizes_of, table_codes
from pdips.evaluation.logistic import indicators_at, places_of, ridge_logistic
from pdips.mechanism import LARGEST_EPSILON, Drawn, Mechanism
from pdips.privacy.answers import PublicFacts
from pdips.privacy.charge import reserved
from pdips.privacy.curator import Clock, Curator
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import FINITE_KINDS, Number, positive, spell
from pdips.privacy.noise import LARGEST_SCALE
from pdips.privacy.plan import Plan, Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.documents import PaidDocument, ReleaseIdentity, write_json
from pdips.release.offers import Offers

FILE = PaidDocument.file
MEASURES = {
    "SPECKS, public classifier": "0 equal on the score, 1 wholly apart; other "
    "classifiers may see more",
    "TVD of one-way and two-way margins": "mean over all margins of columns with "
    "levels or bins, 0 equal, 1 disjoint",
}
"""What is measured, and how to read it."""
SEED = 0  # Of the public score and of the references
# Of the sets, and of the reference, that the classifier is fitted to
MOST_RECORDS = 50_000
MOST_COEFFICIENTS = 5_000
STEPS = 2**20  # Whole steps of a coefficient in 1 nat
MOST_PRODUCT = 2**60


@dataclass(frozen=True, kw_only=True)
class PaidEvaluation(Mechanism):
    """A private evaluation of a published release: half of epsilon for each of two
    measures.

    Parameters
    ----------
    epsilon : number
        In nats, for both measures.
    n_sets : int
        Synthetic sets of the release.
    neighbours : {"replace-one"}
        The number of records is public.
    published : ReleaseFolder, optional
        The release. The price doesn't depend on it; an evaluation needs it.

    Raises
    ------
    InputError
        If epsilon is no number above 0, or too large, or for add-remove neighbours.

    Notes
    -----
    With the sets, and so the score, public and fixed, replacing a record moves n times
    either measure by at most 1; so does rounding to whole steps. Each gets discrete
    Laplace noise: scale 2k / epsilon for a person with up to k records
    (``docs/proofs/evaluation.md``).

    Examples
    --------
    >>> [
    ...     item.step
    ...     for item in PaidEvaluation(epsilon=1).spends(
    ...         Schema.load("examples/youth.toml")
    ...     )
    ... ]
    ['SPECKS, public classifier', 'TVD of one-way and two-way margins']
    """

    name: ClassVar[str] = "evaluate"
    offers: ClassVar[Offers] = Offers(
        zeros=True, rules=True, public_columns=True, households=True
    )

    published: InitVar[ReleaseFolder | None] = None

    def __post_init__(self, published: ReleaseFolder | None) -> None:
        if positive(self.epsilon, "--paid-epsilon") > LARGEST_EPSILON:
            raise InputError(
                f"--paid-epsilon must be at most {LARGEST_EPSILON:,}, "
                f"which gives no protection"
            )
        super().__post_init__()
        object.__setattr__(self, "_published", published)

    def plan(self, schema: Schema) -> Plan:
        """Return the two steps, one a measure, in parts of 1 / n."""
        sensitivity = Sensitivity.of_record(schema, l1=1)
        price = self.per_round(len(MEASURES))
        scale = sensitivity.l1 / price
        if scale > LARGEST_SCALE:
            raise InputError(
                "--paid-epsilon is too small: the noise would be above 2^50 records"
            )
        law = (
            "It publishes two distances of the table to the published sets, each "
            "rounded to whole parts of the number "
            f"of records, with exact discrete Laplace noise of scale {spell(scale)} "
            f"parts: the "
            "Kolmogorov-Smirnov distance of a score that was fitted to the published "
            "sets alone, and the mean total "
            "variation distance of all one-way and two-way margins of columns with "
            "levels or bins, both averaged over "
            "the sets. What the sets cost is paid apart and adds to this."
        )
        steps = [
            Step(name=name, sensitivity=sensitivity, price=price, counts=name)
            for name in MEASURES
        ]
        return self.planned(schema, steps, law)

    def ask(self, plan: Plan, curator: Curator) -> list[int]:
        """Measure the published sets against the table."""
        score = self.score
        codes = self.codes
        (on_score, on_margins) = plan.steps
        scores = [score.of(other) for other in codes]
        sizes = sizes_of(plan.schema)

        def score_steps(table: Table) -> IntArray:
            return np.array([ks_steps(score.of(table_codes(table)), scores)])

        def distance_steps(table: Table) -> IntArray:
            return np.array([margins_steps(table_codes(table), codes, sizes)])

        answers = (
            curator.count(on_score, score_steps),
            curator.count(on_margins, distance_steps),
        )
        return [int(steps) for (steps,) in answers]

    def draw(
        self,
        plan: Plan,
        measured: list[int],
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        """Return the noisy measures; no set is made."""
        noisy = pd.DataFrame({"measure": [*MEASURES], "noisy_steps": measured})
        return Drawn(sets=(), statistics={"measures": noisy})

    @cached_property
    def score(self) -> "PublicScore":
        """The score of records that is fitted to the published sets."""
        return fit_public_score(self._release.sets, self._release.schema)

    @cached_property
    def codes(self) -> list[IntArray]:
        """The records of the published sets as codes."""
        return [codes_of(frame, self._release.schema) for frame in self._release.sets]

    @property
    def _release(self) -> ReleaseFolder:
        published: ReleaseFolder | None = vars(self)["_published"]
        if published is None:
            raise InputError("an evaluation needs the published release that it is of")
        return published

    def references(self, n: int) -> tuple[float, float]:
        """Return what n records drawn from the first set score in the place of the
        table: public, and free.
        """
        first = next(codes for codes in self.codes if len(codes))
        drawn = first[np.random.default_rng(SEED).integers(len(first), size=n)]
        ks, tvd = steps_of(drawn, [first], self.score)
        return ks / n, tvd / n


def evaluate_paid(
    table: Any,
    directory: str | Path,
    *,
    epsilon: Number,
    ledger: Ledger | None = None,
    explain: bool = False,
    rng: np.random.Generator | None = None,
    clock: Clock | None = None,
    resume: int | None = None,
    command: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
) -> PaidDocument:
    """Measure a published release privately, charge the ledger, and write
    ``public/evaluation.json``.

    Parameters
    ----------
    table, directory : path
        The confidential table, or those of households and of members, and the folder of
        the release.
    epsilon : number
        The price of both measures together, in nats.
    ledger : Ledger, optional
        The price is reserved there before the table is read, and charged before
        anything is drawn.
    explain : bool
        Recorded in the ledger: that details of a refusal were asked for.
    rng : numpy.random.Generator, optional
        For tests: nothing is written then.
    clock : Clock, optional
        Times the steps.
    resume, command : optional
        As in :meth:`pdips.Mechanism.release`.
    allow : collection of str
        As in :meth:`pdips.privacy.ledger.Ledger.reserve`.

    Raises
    ------
    InputError
        If the folder holds no release, it has an evaluation already, or sets or table
        don't fit its schema.
    DataError
        If the records don't fit the schema, or the ledger belongs to another table.
    RefusedError
        If the release isn't published, has no guarantee, was made from a seed or for
        add-remove neighbours, or the ledger is overspent.

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
    >>> release, _ = Margins(epsilon=1, n_sets=2).release(table)
    >>> release.write("demo/public")
    >>> table.frame.to_parquet("table.parquet")
    >>> [
    ...     each.measure
    ...     for each in evaluate_paid("table.parquet", "demo", epsilon=1).measures
    ... ]
    ['SPECKS, public classifier', 'TVD of one-way and two-way margins']
    """
    clock = clock or Clock()
    with clock.step("reading the release"):
        release = open_release(directory)
    _refuse(release)
    are_two(table, release.schema)
    mechanism = PaidEvaluation(
        epsilon=epsilon, n_sets=len(release.sets), published=release
    )
    plan = mechanism.plan(release.schema)
    with clock.step("fitting the public score"):
        score = mechanism.score
    if rng is None:
        _write(release.home, None)
    with reserved(
        ledger,
        mechanism.request_of(plan),
        explain=explain,
        allow=allow,
        resume=resume,
    ):
        with clock.step("reading the table"):
            confidential = open_table(table, release)
        # All that could fail for reasons of its own comes before the charge.
        references = mechanism.references(confidential.n_records)
        with clock.step("charging and measuring"):
            figures, _ = mechanism.release(
                confidential, ledger=ledger, rng=rng, resume=resume, command=command
            )
    noisy = figures.statistics["measures"]["noisy_steps"]
    n = confidential.n_records
    found = PaidDocument.model_validate(
        {
            "mechanism": figures.mechanism,
            "release": ReleaseIdentity.of(release.document).model_dump(),
            "measures": [
                {
                    "measure": name,
                    "reading": reading,
                    "value": min(1.0, max(0.0, int(steps) / n)),
                    "noisy_steps": int(steps),
                    "steps": n,
                    "standard_deviation_of_noise": step.standard_deviation / n,
                    "reference": reference,
                }
                for (name, reading), step, steps, reference in zip(
                    MEASURES.items(), plan.steps, noisy, references, strict=True
                )
            ],
            "references": "what a resample of the first synthetic set scores against "
            "it; they cost nothing",
            "score": score.describe(),
            **figures.price(),
        }
    )
    with nullcontext() if figures.charge is None else figures.charge.redeemable():
        if not figures.reproducible:
            _write(release.home, found)
        figures.finish()
    return found


def steps_of(
    original: IntArray, others: Sequence[IntArray], score: "PublicScore"
) -> tuple[int, int]:
    """Return both measures of codes against codes, in whole parts of their number:
    exact, and confidential.
    """
    on_score = ks_steps(score.of(original), [score.of(other) for other in others])
    return on_score, margins_steps(original, others, sizes_of(score.schema))


def _refuse(release: ReleaseFolder) -> None:
    """Refuse what couldn't be published, before anything is read from the table."""
    if (
        release.home.name != "public"
        or release.document.privacy.kind not in FINITE_KINDS
    ):
        raise RefusedError(
            "a paid evaluation is of a published release with a guarantee: these "
            "sets stay inside, and so does what is "
            "worked out with them (leave out --paid-epsilon)"
        )
    if release.document.reproducible:
        raise RefusedError(
            "the release was made from a seed and isn't fit for "
            "publication: nor is an evaluation of it"
        )
    if release.document.privacy.neighbours != "replace-one":
        raise RefusedError(
            "a paid evaluation shows the number of records, which this release "
            "protects (add-remove neighbours)"
        )
    if (release.home / FILE).exists():
        raise InputError(
            f"{release.home / FILE} is there already, and each evaluation pays "
            f"again: move it away if you mean to"
        )


def _write(home: Path, found: PaidDocument | None) -> None:
    """Write the evaluation, or, before anything is charged, see whether it can be
    written.
    """
    hidden = home.parent / f".{FILE}"
    try:
        if found is not None:
            write_json(hidden, found.contents())
            hidden.replace(home / FILE)
            return
        for place in (hidden, home / FILE):
            place.write_text("", encoding="utf-8")
            place.unlink()
    except OSError as error:
        what = "" if found else "; nothing was charged"
        raise InputError(f"can't write {home / FILE}: {error.strerror}{what}") from None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PublicScore:
    """A score: a sum of whole ``coefficients``, in steps of 2^-20 nats, of each level
    and pair of levels of a record.

    They are of every level of every column, then, if ``interactions`` enter, of every
    pair of levels of two columns.
    """

    schema: Schema
    coefficients: IntArray
    interactions: bool

    def of(self, codes: IntArray) -> IntArray:
        """Return the score of each record: whole numbers that depend on that record and
        on public ones only.
        """
        total = np.zeros(len(codes), dtype=np.int64)
        for place in places_of(
            codes, sizes_of(self.schema), interactions=self.interactions
        ):
            total += self.coefficients[place]
        return total

    def describe(self) -> dict[str, Any]:
        """Say how anybody can work the score out from the published sets."""
        return {
            "classifier": "logistic regression with ridge 0.01, sets against records "
            "drawn evenly from the schema's "
            f"levels and bins; "
            f"{'levels and pairs of levels' if self.interactions else 'levels'}",
            "seed": SEED,
            "most_records": MOST_RECORDS,
            "steps_a_nat": STEPS,
        }


def fit_public_score(sets: Sequence[pd.DataFrame], schema: Schema) -> PublicScore:
    """Fit a classifier that tells published sets from records drawn evenly over the
    schema's levels and bins.

    The log odds, rounded, are about the log density of the sets' records: nothing
    confidential comes in.
    """
    sizes = sizes_of(schema)
    if sum(sizes) > MOST_COEFFICIENTS:
        raise InputError(
            f"a score needs at most {MOST_COEFFICIENTS:,} levels and "
            f"bins in all; choose coarser bins"
        )
    with_pairs = sum(sizes) + sum(a * b for a, b in combinations(sizes, 2))
    interactions = with_pairs <= MOST_COEFFICIENTS
    rng = np.random.default_rng(SEED)
    made = np.vstack([codes_of(frame, schema) for frame in sets])
    if not len(made):
        raise InputError("a score needs at least one synthetic record")
    if len(made) > MOST_RECORDS:
        made = made[rng.choice(len(made), MOST_RECORDS, replace=False)]
    even = np.column_stack([rng.integers(size, size=len(made)) for size in sizes])
    rows, n_even, n_made = grouped(even, made, sizes)
    places = places_of(rows, sizes, interactions=interactions)
    coefficients, _ = ridge_logistic(
        indicators_at(places, with_pairs if interactions else sum(sizes)),
        n_even,
        n_made,
    )
    return PublicScore(
        schema=schema,
        coefficients=np.rint(coefficients * STEPS).astype(np.int64),
        interactions=interactions,
    )


def ks_steps(original: IntArray, others: Sequence[IntArray]) -> int:
    """Return n times the mean Kolmogorov-Smirnov distance of scores, rounded to a whole
    number, exactly.

    A set without records is 1 away.
    """
    n = len(original)
    total = Fraction(0)
    for other in others:
        if not len(other):
            total += 1
            continue
        _, place = np.unique(np.concatenate([original, other]), return_inverse=True)
        gap = np.cumsum(_differences(place, n))
        total += Fraction(int(np.abs(gap).max()), n * len(other))
    return rounded(total / len(others), n)


def margins_steps(
    original: IntArray, others: Sequence[IntArray], sizes: Sequence[int]
) -> int:
    """Return n times the mean total variation distance of all one-way and two-way
    margins, rounded, exactly.

    A set without records is 1 away.
    """
    n = len(original)
    total = Fraction(0)
    margins = [*((j,) for j in range(len(sizes))), *combinations(range(len(sizes)), 2)]
    for other in others:
        if not len(other):
            total += len(margins)
            continue
        both = np.vstack([original, other])
        for margin in margins:
            shape = tuple(sizes[j] for j in margin)
            place = np.ravel_multi_index(tuple(both[:, j] for j in margin), shape)
            if prod(shape) > 4 * len(both):
                _, place = np.unique(place, return_inverse=True)
            apart = np.abs(_differences(place, n)).sum()
            total += Fraction(int(apart), 2 * n * len(other))
    return rounded(total / (len(others) * len(margins)), n)


def rounded(distance: Fraction, n: int) -> int:
    """Return ``floor(n * distance + 1/2)``: what moves n * distance by at most a whole
    k moves it by at most k.
    """
    return (2 * n * distance.numerator + distance.denominator) // (
        2 * distance.denominator
    )


def _differences(place: IntArray, n: int) -> IntArray:
    """Return, for each place, its count in the first n times the others' number, less
    the reverse: whole numbers.
    """
    n_other = len(place) - n
    size = int(place.max()) + 1
    if n * n_other > MOST_PRODUCT:
        raise InputError(
            "the table and the sets have too many records for exact comparison"
        )
    first = np.bincount(place[:n], minlength=size)
    second = np.bincount(place[n:], minlength=size)
    return first * n_other - second * n
