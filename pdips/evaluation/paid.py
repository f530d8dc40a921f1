"""Two measures of a published release, private and paid for: they may be published too."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError, RefusedError
from pdips.evaluation.document import ReleaseFolder, ReleaseIdentity, open_release, open_table
from pdips.evaluation.encoding import codes_of, grouped, resampled, sizes_of, table_codes
from pdips.evaluation.logistic import ridge_logistic
from pdips.mechanism import LARGEST_EPSILON, SEEDED, Clock, Mechanism, statement
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import FINITE_KINDS, Neighbours, Number, PrivacyLoss, Spend, as_float, exact, positive, spell
from pdips.privacy.noise import LARGEST_SCALE, RandomBits, discrete_laplace, discrete_laplace_variance
from pdips.release.documents import write_json
from pdips.release.release import software

FILE = "evaluation.json"
MEASURES = {
    "SPECKS, public classifier": "0 equal on the score, 1 wholly apart; other classifiers may see more",
    "TVD of one-way and two-way margins": "mean over all margins, 0 equal, 1 disjoint",
}

SEED = 0
MOST_RECORDS = 50_000
"""Of the sets, and of the reference, that the classifier is fitted to."""
MOST_COEFFICIENTS = 5_000
STEPS = 2**20
"""Whole steps of a coefficient in 1 nat."""
MOST_PRODUCT = 2**60


@dataclass(frozen=True, kw_only=True)
class PaidEvaluation:
    """The price of a private evaluation: half of epsilon for each measure.

    Parameters
    ----------
    epsilon : number
        In nats, for both measures.
    n_sets : int
        Synthetic sets of the release.
    neighbours : {"replace-one"}
        The number of records is public.

    Notes
    -----
    With the sets, and so the score, public and fixed, replacing the up to k records of a person moves n times either
    measure by at most k; so does rounding to whole steps. Each gets discrete Laplace noise of scale 2k / epsilon
    (``docs/proofs/evaluation.md``).
    """

    name: ClassVar[str] = "evaluate"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one",)

    epsilon: Number
    n_sets: int
    neighbours: Neighbours = "replace-one"

    def __post_init__(self) -> None:
        if positive(self.epsilon, "--paid-epsilon") > LARGEST_EPSILON:
            raise InputError(f"--paid-epsilon must be at most {LARGEST_EPSILON:,}, which protects nobody")
        if self.neighbours not in self.relations:
            raise RefusedError("a paid evaluation needs replace-one neighbours: its figures show the number of records")

    def spends(self, schema: Schema | None = None) -> tuple[Spend, ...]:
        """Return one item a measure, whatever the schema."""
        return tuple(Spend(step=name, epsilon=exact(self.epsilon, "epsilon") / len(MEASURES)) for name in MEASURES)

    def scale(self, schema: Schema) -> Fraction:
        """Return the scale of the noise on each measure, in steps of 1 / n.

        Raises
        ------
        InputError
            If it is more than the sampler draws.
        """
        scale = len(MEASURES) * schema.records.max_per_person / exact(self.epsilon, "epsilon")
        if scale > LARGEST_SCALE:
            raise InputError("--paid-epsilon is too small: the noise would be above 2^50 records")
        return scale

    def privacy_loss(self, schema: Schema) -> PrivacyLoss:
        """Return the price and its statement."""
        law = (
            "It publishes two distances of the table to the published sets, each rounded to whole parts of the number "
            f"of records, with exact discrete Laplace noise of scale {spell(self.scale(schema))} parts: the "
            "Kolmogorov-Smirnov distance of a score that was fitted to the published sets alone, and the mean total "
            "variation distance of all one-way and two-way margins, both averaged over the sets. What the sets cost is "
            "paid apart and adds to this."
        )
        text = statement(_as_mechanism(self), schema, law)
        return PrivacyLoss(
            epsilon=exact(self.epsilon, "epsilon"), neighbours=self.neighbours, kind="pure", statement=text
        )


def evaluate_paid(
    table: str | Path,
    directory: str | Path,
    *,
    epsilon: Number,
    ledger: Ledger | None = None,
    explain: bool = False,
    rng: np.random.Generator | None = None,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """Measure a published release privately, charge the ledger, and write ``public/evaluation.json``.

    Parameters
    ----------
    table : path
        The confidential table.
    directory : path
        The folder of the release.
    epsilon : number
        The price of both measures together, in nats.
    ledger : Ledger, optional
        The price is reserved there before the table is read, and charged before anything is drawn.
    explain : bool
        Recorded in the ledger: that details of a refusal were asked for.
    rng : numpy.random.Generator, optional
        For tests: nothing is written then.
    clock : Clock, optional
        Times the steps.

    Returns
    -------
    dict
        What was written.

    Raises
    ------
    InputError
        If the folder holds no release, it has an evaluation already, or sets or table don't fit its schema.
    DataError
        If the records don't fit the schema, or the ledger belongs to another table.
    RefusedError
        If the release isn't published, has no guarantee, was made from a seed or for add-remove neighbours, or the
        ledger is overspent.
    """
    clock = clock or Clock()
    with clock.step("reading the release"):
        release = open_release(directory)
    _refuse(release)
    price = PaidEvaluation(epsilon=epsilon, n_sets=len(release.sets), neighbours=release.document.privacy.neighbours)
    loss, scale = price.privacy_loss(release.schema), price.scale(release.schema)
    with clock.step("fitting the public score"):
        score = fit_public_score(release.sets, release.schema)
    if rng is None:
        _check_writable(release.home)
    receipt = None
    with nullcontext() if ledger is None else ledger.reserve(price, release.schema, explain=explain):
        with clock.step("reading the table"):
            confidential = open_table(table, release)
        # All that could fail for reasons of its own comes before the charge.
        references = _references(release.sets, score, confidential.n_records)
        if ledger is not None:
            with clock.step("charging the ledger"):
                number = ledger.charge(
                    loss,
                    price.spends(),
                    mechanism=price.name,
                    schema=release.schema,
                    fingerprint=confidential.fingerprint,
                )
                receipt = ledger.receipt(number)
    bits = RandomBits(rng)
    if bits.reproducible:
        loss = replace(loss, statement=f"{SEEDED} {loss.statement}")
    with clock.step("measuring"):
        exact_steps = np.array(measured_steps(confidential, release.sets, score))
        noisy = exact_steps + discrete_laplace(scale, len(MEASURES), bits)
    del exact_steps
    found = _described(release, price, loss, scale, noisy, references, confidential.n_records, score)
    found["receipt"] = None if receipt is None else asdict(receipt)
    if not bits.reproducible:
        _write(release.home, found)
    return found


def measured_steps(table: Table, sets: "tuple[pd.DataFrame, ...]", score: "PublicScore") -> tuple[int, int]:
    """Return both measures in whole parts of the number of records: exact, and confidential."""
    return steps_of(table_codes(table), [codes_of(frame, score.schema) for frame in sets], score)


def steps_of(original: IntArray, others: list[IntArray], score: "PublicScore") -> tuple[int, int]:
    """Return both measures of codes against codes."""
    ks = ks_steps(score.of(original), [score.of(other) for other in others])
    return ks, margins_steps(original, others, sizes_of(score.schema))


def _references(sets: "tuple[pd.DataFrame, ...]", score: "PublicScore", n: int) -> tuple[float, float]:
    """Return what a resample of the first set scores in the place of the table: public, for it reads the sets only."""
    first = next(codes for frame in sets if len(codes := codes_of(frame, score.schema)))
    rng = np.random.default_rng(0)
    drawn = resampled(first, rng) if len(first) == n else first[rng.integers(len(first), size=n)]
    ks, tvd = steps_of(drawn, [first], score)
    return ks / n, tvd / n


def _refuse(release: ReleaseFolder) -> None:
    """Refuse what couldn't be published, before anything is read from the table."""
    if not release.is_public or release.document.privacy.kind not in FINITE_KINDS:
        raise RefusedError(
            "a paid evaluation is of a published release with a guarantee: these sets stay inside, and so does what is "
            "worked out with them (leave out --paid-epsilon)"
        )
    if release.document.reproducible:
        raise RefusedError("the release was made from a seed and isn't fit for publication: nor is an evaluation of it")
    if release.document.privacy.neighbours != "replace-one":
        raise RefusedError(
            "a paid evaluation shows the number of records, which this release protects (add-remove neighbours)"
        )
    if (release.home / FILE).exists():
        raise InputError(
            f"{release.home / FILE} is there already, and each evaluation pays again: move it away if you mean to"
        )


def _described(
    release: ReleaseFolder,
    price: PaidEvaluation,
    loss: PrivacyLoss,
    scale: Fraction,
    noisy: IntArray,
    references: tuple[float, float],
    n: int,
    score: "PublicScore",
) -> dict[str, Any]:
    deviation = discrete_laplace_variance(scale) ** 0.5 / n
    return {
        "mechanism": price.name,
        "release": ReleaseIdentity.of(release.document).model_dump(),
        "measures": [
            {
                "measure": name,
                "reading": reading,
                "value": min(1.0, max(0.0, int(steps) / n)),
                "noisy_steps": int(steps),
                "steps": n,
                "standard_deviation_of_noise": deviation,
                "reference": reference,
            }
            for (name, reading), steps, reference in zip(MEASURES.items(), noisy, references, strict=True)
        ],
        "references": "what a resample of the first synthetic set scores against it; they cost nothing",
        "score": score.describe(),
        "privacy": {
            "epsilon": as_float(loss.epsilon),
            "delta": 0.0,
            "neighbours": loss.neighbours,
            "kind": loss.kind,
            "sampling": loss.sampling,
            "statement": loss.statement,
        },
        "spends": [{**asdict(spend), "epsilon": as_float(spend.epsilon)} for spend in price.spends()],
        "software": software(),
    }


def _hidden(home: Path) -> Path:
    return home.parent / f".{FILE}"


def _check_writable(home: Path) -> None:
    try:
        for place in (_hidden(home), home / FILE):
            place.write_text("", encoding="utf-8")
            place.unlink()
    except OSError as error:
        raise InputError(f"can't write {home / FILE}: {error.strerror}; nothing was charged") from None


def _write(home: Path, found: dict[str, Any]) -> None:
    hidden = _hidden(home)
    try:
        write_json(hidden, found)
        hidden.replace(home / FILE)
    except OSError as error:
        raise InputError(f"can't write {home / FILE}: {error.strerror}; a spend on record stays charged") from None


def _as_mechanism(price: PaidEvaluation) -> Mechanism:
    return price  # type: ignore[return-value]


# ---- the public score ----


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PublicScore:
    """A score: a sum of whole numbers, one for each level and each pair of levels that a record has.

    Attributes
    ----------
    schema : Schema
        Public.
    coefficients : ndarray of int64
        In steps of 2^-20 nats, of every level of every column, then of every pair of levels of two columns.
    interactions : bool
        Whether pairs enter.
    """

    schema: Schema
    coefficients: IntArray
    interactions: bool

    def of(self, codes: IntArray) -> IntArray:
        """Return the score of each record: whole numbers that depend on that record and on public ones only."""
        places = _places(codes, sizes_of(self.schema), self.interactions)
        total = np.zeros(len(codes), dtype=np.int64)
        for column in places:
            total += self.coefficients[column]
        return total

    def describe(self) -> dict[str, Any]:
        """Say how anybody can work the score out from the published sets."""
        return {
            "classifier": "logistic regression with ridge 0.01, sets against records drawn evenly from the schema's "
            f"levels and bins; {'levels and pairs of levels' if self.interactions else 'levels'}",
            "seed": SEED,
            "most_records": MOST_RECORDS,
            "steps_a_nat": STEPS,
        }


def fit_public_score(sets: Sequence[pd.DataFrame], schema: Schema) -> PublicScore:
    """Fit a classifier that tells published sets from records drawn evenly over the schema's levels and bins.

    Parameters
    ----------
    sets : sequence of DataFrame
        Published, so nothing confidential comes in.
    schema : Schema
        Public.

    Returns
    -------
    PublicScore
        The log odds, rounded: about the log density of the sets' records.

    Raises
    ------
    InputError
        If no set has a record, or there are more than 5,000 levels.
    """
    sizes = sizes_of(schema)
    if sum(sizes) > MOST_COEFFICIENTS:
        raise InputError(f"a score needs at most {MOST_COEFFICIENTS:,} levels and bins in all; choose coarser bins")
    pairs = sum(a * b for a, b in combinations(sizes, 2))
    interactions = sum(sizes) + pairs <= MOST_COEFFICIENTS
    rng = np.random.default_rng(SEED)
    made = np.vstack([codes_of(frame, schema) for frame in sets])
    if not len(made):
        raise InputError("a score needs at least one synthetic record")
    if len(made) > MOST_RECORDS:
        made = made[rng.choice(len(made), MOST_RECORDS, replace=False)]
    even = np.column_stack([rng.integers(size, size=len(made)) for size in sizes])
    rows, n_even, n_made = grouped(even, made, sizes)
    n_coefficients = sum(sizes) + (pairs if interactions else 0)
    coefficients, _ = ridge_logistic(_indicators(rows, sizes, interactions, n_coefficients), n_even, n_made)
    return PublicScore(
        schema=schema, coefficients=np.rint(coefficients * STEPS).astype(np.int64), interactions=interactions
    )


def ks_steps(original: IntArray, others: Sequence[IntArray]) -> int:
    """Return n times the mean Kolmogorov-Smirnov distance of scores, rounded to a whole number, exactly.

    Parameters
    ----------
    original : ndarray of int64, shape (n,)
        Scores of the confidential records.
    others : sequence of ndarray of int64, shape (records,)
        Scores of each set; a set without records is 1 away.

    Returns
    -------
    int
        ``floor(n * mean + 1/2)``, from 0 to n.
    """
    return rounded(sum((_ks(original, other) for other in others), Fraction(0)) / len(others), len(original))


def margins_steps(original: IntArray, others: Sequence[IntArray], sizes: Sequence[int]) -> int:
    """Return n times the mean total variation distance of all one-way and two-way margins, rounded, exactly.

    Parameters
    ----------
    original : ndarray of int64, shape (n, columns)
        Codes of the confidential records.
    others : sequence of ndarray of int64, shape (records, columns)
        Codes of each set; one without records is 1 away.
    sizes : sequence of int
        Levels of each column.

    Returns
    -------
    int
        ``floor(n * mean + 1/2)``, from 0 to n.
    """
    margins = margins_of(len(sizes))
    total = sum((_tvd(original, other, sizes, margin) for other in others for margin in margins), Fraction(0))
    return rounded(total / (len(others) * len(margins)), len(original))


def margins_of(n_columns: int) -> list[tuple[int, ...]]:
    """Return all single columns and all pairs."""
    return [*((j,) for j in range(n_columns)), *combinations(range(n_columns), 2)]


def rounded(distance: Fraction, n: int) -> int:
    """Return ``floor(n * distance + 1/2)``: what moves n * distance by at most a whole k moves it by at most k."""
    return (2 * n * distance.numerator + distance.denominator) // (2 * distance.denominator)


def _ks(original: IntArray, other: IntArray) -> Fraction:
    if not len(other):
        return Fraction(1)
    _, place = np.unique(np.concatenate([original, other]), return_inverse=True)
    return Fraction(int(np.abs(np.cumsum(_differences(place, len(original)))).max()), len(original) * len(other))


def _tvd(original: IntArray, other: IntArray, sizes: Sequence[int], margin: tuple[int, ...]) -> Fraction:
    if not len(other):
        return Fraction(1)
    both = np.vstack([original, other])
    place = np.ravel_multi_index(tuple(both[:, j] for j in margin), tuple(sizes[j] for j in margin))
    if prod(sizes[j] for j in margin) > 4 * len(both):
        _, place = np.unique(place, return_inverse=True)
    return Fraction(int(np.abs(_differences(place, len(original))).sum()), 2 * len(original) * len(other))


def _differences(place: IntArray, n: int) -> IntArray:
    """Return, for each place, its count in the first n times the others' number, less the reverse: whole numbers."""
    n_other, size = len(place) - n, int(place.max()) + 1
    if n * n_other > MOST_PRODUCT:
        raise InputError("the table and the sets have too many records for exact comparison")
    first, second = np.bincount(place[:n], minlength=size), np.bincount(place[n:], minlength=size)
    return first * n_other - second * n


def _places(codes: IntArray, sizes: Sequence[int], interactions: bool) -> list[IntArray]:
    """Return the place of each record's indicators among all coefficients, one array a column or pair."""
    starts = np.cumsum([0, *sizes])
    places = [codes[:, j] + starts[j] for j in range(len(sizes))]
    start = int(starts[-1])
    for i, j in combinations(range(len(sizes)), 2) if interactions else ():
        places.append(codes[:, i] * sizes[j] + codes[:, j] + start)
        start += sizes[i] * sizes[j]
    return places


def _indicators(rows: IntArray, sizes: Sequence[int], interactions: bool, n_coefficients: int) -> Any:
    from scipy.sparse import csr_array

    places = np.column_stack(_places(rows, sizes, interactions))
    row = np.repeat(np.arange(len(rows)), places.shape[1])
    return csr_array((np.ones(places.size), (row, places.ravel())), shape=(len(rows), n_coefficients))
