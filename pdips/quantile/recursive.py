"""Quantiles of one numeric column by halving: the middle one first, then each half from its own records.

Kaplan, Schnapp and Stemmer (2022), *Differentially private approximate quantiles*, with the true price of a level,
exact rational targets and weak order. Proofs: ``docs/proofs/kng.md``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import RandomBits, choice_log_probabilities, exponential_mechanism
from pdips.quantile.quantile_grid import check_counts, check_public, merged, spread

UNAVAILABLE = np.iinfo(np.int64).min
CELLS_AT_ONCE = 2**20
MOST_TUPLES = 200_000


@dataclass(frozen=True)
class QuantileSplit:
    """One choice: a quantile between two that are already there, or the ends.

    Parameters
    ----------
    quantile, lower, upper : int
        Positions in the list of quantiles; ``lower`` is -1 at the lower end, ``upper`` the number of quantiles at the
        upper one.
    share : Fraction
        The part of the records between the two that should lie at or below the quantile.
    unit : Fraction
        Nats for one record of misfit.
    """

    quantile: int
    lower: int
    upper: int
    share: Fraction
    unit: Fraction

    @property
    def reach(self) -> Fraction:
        """How far one record that comes or goes can move the misfit."""
        return max(self.share, 1 - self.share)


def recursive_quantiles(
    cumulative: NDArray[Any],
    n: int,
    taus: Sequence[Fraction],
    epsilon: Fraction,
    bits: RandomBits,
    *,
    neighbours: Neighbours,
    parts: int = 1,
    runs: int = 1,
) -> IntArray:
    """Draw all quantiles of one column, level by level, as indices of public grid points that never cross.

    Parameters
    ----------
    cumulative : ndarray of integers, shape (points,)
        How many records are at most each grid point; confidential.
    n : int
        Number of records: public under replace-one, confidential under add-remove.
    taus : sequence of Fraction, length m
        The quantiles, increasing, within (0, 1); public.
    epsilon : Fraction
        The price of one run, at most 100.
    bits : RandomBits
        Source of uniform bits.
    neighbours : {"replace-one", "add-remove"}
        The relation in which ``epsilon`` is the price.
    parts : int, default 1
        Parts into which each cell is cut, with its records spread evenly over them. Take 16 or more where many records
        may share a value: it costs next to nothing.
    runs : int, default 1
        Independent runs, each at the full price: for audits and studies.

    Returns
    -------
    ndarray of int64, shape (runs, m)
        Indices of grid points, nondecreasing in each row.

    Raises
    ------
    InputError
        If a setting is out of range or the counts can't be cumulative counts.

    Notes
    -----
    A split between grid points lo <= hi chooses among lo, ..., hi with the misfit abs(N(lo, b] - share * N(lo, hi]):
    the records in (lo, hi] alone. There always is a candidate, and a split without records is drawn like any other.
    """
    levels = recursive_splits(taus, epsilon, neighbours)
    check_public(taus, epsilon, neighbours, len(cumulative), parts, runs)
    heights = spread(check_counts(cumulative, n), parts)
    drawn = np.empty((runs, len(taus)), dtype=np.int64)
    chunk = max(1, CELLS_AT_ONCE // len(heights))
    for split in (split for level in levels for split in level):
        for start in range(0, runs, chunk):
            rows = drawn[start : start + chunk]
            scores, first, unit = _scores(split, rows, heights, n, parts)
            rows[:, split.quantile] = first + exponential_mechanism(scores, unit, bits)
    return drawn // parts


def recursive_splits(taus: Sequence[Fraction], epsilon: Fraction, neighbours: Neighbours) -> list[list[QuantileSplit]]:
    """Return the splits of each level, with units that spend exactly the level's equal part; all of it is public.

    Under add-remove a record is in one split of a level, which costs 2 * unit * reach. Under replace-one it may leave
    one and enter another, so each may cost half of the level's part; where a level has one split, a record replaced
    within it costs 2 * unit.
    """
    check_public(taus, epsilon, neighbours, 1, 1, 1)
    bounds = [Fraction(0), *taus, Fraction(1)]
    halves = list(_halves(len(taus)))
    part = Fraction(epsilon, len(halves))
    levels = []
    for level in halves:
        splits = []
        for lower, middle, upper in level:
            low, aim, high = (bounds[i + 1] for i in (lower, middle, upper))
            share = (aim - low) / (high - low)
            cost = 2 * max(share, 1 - share)
            if neighbours == "replace-one":
                cost = Fraction(2) if len(level) == 1 else 2 * cost
            splits.append(QuantileSplit(middle, lower, upper, share, part / cost))
        levels.append(splits)
    return levels


def recursive_law(
    cumulative: NDArray[Any],
    n: int,
    taus: Sequence[Fraction],
    epsilon: Fraction,
    *,
    neighbours: Neighbours,
    parts: int = 1,
) -> dict[tuple[int, ...], float]:
    """Return the log probability of each tuple of grid indices by enumeration: for audits and tests, on tiny grids.

    Raises
    ------
    InputError
        As :func:`recursive_quantiles`, or if there are more than 200,000 tuples.
    """
    levels = recursive_splits(taus, epsilon, neighbours)
    check_public(taus, epsilon, neighbours, len(cumulative), parts, 1)
    positions, logs = law_of_splits(levels, spread(check_counts(cumulative, n), parts), n, parts)
    return merged(positions // parts, logs)


def law_of_splits(
    levels: list[list[QuantileSplit]], heights: IntArray, n: int, parts: int
) -> tuple[IntArray, FloatArray]:
    """Return all outcomes, one a row, and their log probabilities."""
    positions = np.zeros((1, sum(len(level) for level in levels)), dtype=np.int64)
    logs = np.zeros(1)
    for split in (split for level in levels for split in level):
        scores, first, unit = _scores(split, positions, heights, n, parts)
        if scores.size > MOST_TUPLES:
            raise InputError("the law of recursive quantiles can be spelt out only for tiny grids")
        rows, columns = np.nonzero(scores != UNAVAILABLE)
        logs = logs[rows] + choice_log_probabilities(scores, unit)[rows, columns]
        positions = positions[rows]
        positions[:, split.quantile] = first + columns
    return positions, logs


def _halves(n_quantiles: int) -> Iterator[list[tuple[int, int, int]]]:
    """Yield the (lower, middle, upper) positions of each level."""
    open_ = [(-1, n_quantiles)]
    while open_:
        level = [(low, (low + high) // 2, high) for low, high in open_]
        yield level
        halves = [half for low, middle, high in level for half in ((low, middle), (middle, high))]
        open_ = [(low, high) for low, high in halves if high - low > 1]


def _scores(
    split: QuantileSplit, drawn: IntArray, heights: IntArray, n: int, parts: int
) -> tuple[IntArray, int, Fraction]:
    """Return whole scores, a row for each row of earlier choices, the position of their first column, and nats a step.

    The misfit is counted in units of 1 / (parts * q) record, q the denominator of the split's share.
    """
    n_rows, size = len(drawn), len(heights)
    low = np.zeros(n_rows, dtype=np.int64) if split.lower < 0 else drawn[:, split.lower]
    high = np.full(n_rows, size - 1) if split.upper == drawn.shape[1] else drawn[:, split.upper]
    below = np.zeros(n_rows, dtype=np.int64) if split.lower < 0 else heights[low]
    above = np.full(n_rows, n * parts) if split.upper == drawn.shape[1] else heights[high]
    columns = np.arange(low.min(), high.max() + 1)
    p, q = split.share.numerator, split.share.denominator
    misfit = np.abs(q * (heights[columns] - below[:, None]) - p * (above - below)[:, None])
    inside = (columns >= low[:, None]) & (columns <= high[:, None])
    return np.where(inside, -misfit, UNAVAILABLE), int(columns[0]), split.unit / (parts * q)
