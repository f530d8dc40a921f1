"""A score of records that depends on published sets alone, in whole numbers, and what two tables differ by on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.evaluation.codes import codes_of, grouped, sizes_of
from pdips.evaluation.ridge import ridge_fit

SEED = 0
MOST_RECORDS = 50_000
"""Of the sets, and of the reference, that the classifier is fitted to."""
MOST_COEFFICIENTS = 5_000
STEPS = 2**20
"""Whole steps of a coefficient in 1 nat."""
MOST_PRODUCT = 2**60


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
    beta, _ = ridge_fit(_indicators(rows, sizes, interactions, n_coefficients), n_even, n_made)
    return PublicScore(
        schema=schema, coefficients=np.rint(beta[1:] * STEPS).astype(np.int64), interactions=interactions
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
