"""Several quantiles of one column on a public grid, chosen together; by halving: the middle one, then each half.

Halving is that of Kaplan, Schnapp and Stemmer (2022), *Differentially private approximate quantiles*, with the true
price of a level, exact rational targets and weak order. Proofs: ``docs/proofs/kng.md``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import UNAVAILABLE, RandomBits, choice_log_probabilities, exponential_mechanism

CELLS_AT_ONCE = 2**20
MOST_QUANTILES = 1000
FINEST_QUANTILE = 10**6
MOST_TUPLES = 200_000  # Outcomes that a law is spelt out for


@dataclass(frozen=True, kw_only=True)
class GridQuantiles(ABC):
    """The distribution of all quantiles of one column, as indices of public grid points that never cross.

    ``cumulative`` says how many records are at most each grid point, ``n`` how many there are; ``epsilon`` is the price
    of one draw, for one record. Each cell is cut into ``parts``, its records spread evenly over them, so that many
    equal values can be told apart by rank: a record still weighs 1 in total, and no price changes.
    """

    cumulative: IntArray
    n: int
    taus: Sequence[Fraction]
    epsilon: Fraction
    neighbours: Neighbours
    parts: int = 1

    @cached_property
    def heights(self) -> IntArray:
        """Cumulative counts in units of 1/parts record; position ``g * parts + s`` belongs to cell g."""
        cumulative = np.asarray(self.cumulative, dtype=np.int64)
        before = np.concatenate([[0], cumulative[:-1]])
        steps = np.arange(1, self.parts + 1)
        return np.asarray((self.parts * before[:, None] + steps * (cumulative - before)[:, None]).ravel())

    @property
    def total(self) -> int:
        """The count of all records, in the unit of the heights."""
        return self.n * self.parts

    def draw(self, bits: RandomBits, runs: int = 1) -> IntArray:
        """Draw exactly: indices of grid points, nondecreasing in each row, shape (runs, quantiles)."""
        return self.positions(bits, runs) // self.parts

    def log_probabilities(self) -> dict[tuple[int, ...], float]:
        """Return the log probability of each tuple of grid points by enumeration; larger grids are refused."""
        positions, logs = self.law()
        found: dict[tuple[int, ...], float] = {}
        for key, log in zip(map(tuple, (positions // self.parts).tolist()), logs, strict=True):
            found[key] = float(np.logaddexp(found.get(key, -np.inf), log))
        return found

    @abstractmethod
    def positions(self, bits: RandomBits, runs: int) -> IntArray:
        """Draw positions on the grid of parts, shape (runs, quantiles)."""

    @abstractmethod
    def law(self) -> tuple[IntArray, FloatArray]:
        """Return all tuples of positions, one a row, and their log probabilities."""


def check_quantiles(taus: Sequence[Fraction]) -> None:
    """Refuse quantiles that can't be released together: unordered, outside of (0, 1), or not on one fine scale."""
    if not 0 < len(taus) <= MOST_QUANTILES or not all(isinstance(tau, Fraction) and 0 < tau < 1 for tau in taus):
        raise InputError(f"quantiles must be 1 to {MOST_QUANTILES} fractions above 0 and below 1")
    if any(low >= high for low, high in pairwise(taus)):
        raise InputError("quantiles must be in increasing order, each once")
    if np.lcm.reduce([tau.denominator for tau in taus], dtype=object) > FINEST_QUANTILE:
        raise InputError(
            "quantiles must have a common denominator of at most 1,000,000: give them as decimal fractions"
        )


@dataclass(frozen=True)
class QuantileSplit:
    """One choice: a quantile between two that are already there, or the ends (-1, and the number of quantiles).

    ``share`` of the records between the two should lie at or below it; ``unit`` is nats for one record of misfit.
    """

    quantile: int
    lower: int
    upper: int
    share: Fraction
    unit: Fraction


@dataclass(frozen=True, kw_only=True)
class RecursiveQuantiles(GridQuantiles):
    """All quantiles of one column, level by level.

    A split between grid points lo <= hi chooses among lo, ..., hi with the misfit abs(N(lo, b] - share * N(lo, hi]):
    the records in (lo, hi] alone. There always is a candidate, and a split without records is drawn like any other.
    Take 16 parts or more where many records may share a value: it costs next to nothing.
    """

    parts: int = 16

    @cached_property
    def splits(self) -> list[QuantileSplit]:
        """The choices, those of the first level first."""
        return [split for level in recursive_splits(self.taus, self.epsilon, self.neighbours) for split in level]

    def positions(self, bits: RandomBits, runs: int) -> IntArray:
        """Draw tuples of positions, each quantile between those of the levels before."""
        drawn = np.empty((runs, len(self.taus)), dtype=np.int64)
        chunk = max(1, CELLS_AT_ONCE // len(self.heights))
        for split in self.splits:
            for start in range(0, runs, chunk):
                rows = drawn[start : start + chunk]
                scores, first, unit = self._scores(split, rows)
                rows[:, split.quantile] = first + exponential_mechanism(scores, unit, bits)
        return drawn

    def law(self) -> tuple[IntArray, FloatArray]:
        positions, logs = np.zeros((1, len(self.taus)), dtype=np.int64), np.zeros(1)
        for split in self.splits:
            scores, first, unit = self._scores(split, positions)
            if scores.size > MOST_TUPLES:
                raise InputError("the law of recursive quantiles can be spelt out only for tiny grids")
            rows, columns = np.nonzero(scores != UNAVAILABLE)
            logs = logs[rows] + choice_log_probabilities(scores, unit)[rows, columns]
            positions = positions[rows]
            positions[:, split.quantile] = first + columns
        return positions, logs

    def _scores(self, split: QuantileSplit, drawn: IntArray) -> tuple[IntArray, int, Fraction]:
        """Return whole scores, a row for each row of earlier choices, the position of their first column, and nats.

        The misfit is counted in steps of 1 / (parts * q) record, q the denominator of the split's share.
        """
        heights, n_rows, n_taus = self.heights, len(drawn), len(self.taus)
        low = np.zeros(n_rows, dtype=np.int64) if split.lower < 0 else drawn[:, split.lower]
        high = np.full(n_rows, len(heights) - 1) if split.upper == n_taus else drawn[:, split.upper]
        below = np.zeros(n_rows, dtype=np.int64) if split.lower < 0 else heights[low]
        above = np.full(n_rows, self.total) if split.upper == n_taus else heights[high]
        columns = np.arange(low.min(), high.max() + 1)
        p, q = split.share.numerator, split.share.denominator
        misfit = np.abs(q * (heights[columns] - below[:, None]) - p * (above - below)[:, None])
        inside = (columns >= low[:, None]) & (columns <= high[:, None])
        return np.where(inside, -misfit, UNAVAILABLE), int(columns[0]), split.unit / (self.parts * q)


def recursive_splits(taus: Sequence[Fraction], epsilon: Fraction, neighbours: Neighbours) -> list[list[QuantileSplit]]:
    """Return the splits of each level, with units that spend exactly the level's equal part; all of it is public.

    Under add-remove a record is in one split of a level, which costs 2 * unit * max(share, 1 - share). Under
    replace-one it may leave one and enter another, so each may cost half of the level's part; where a level has one
    split, a record replaced within it costs 2 * unit.
    """
    open_, halves = [(-1, len(taus))], list[list[tuple[int, int, int]]]()
    while open_:
        halves.append([(low, (low + high) // 2, high) for low, high in open_])
        sides = [half for low, middle, high in halves[-1] for half in ((low, middle), (middle, high))]
        open_ = [(low, high) for low, high in sides if high - low > 1]
    bounds, levels = [Fraction(0), *taus, Fraction(1)], []
    for level in halves:
        splits = []
        for lower, middle, upper in level:
            low, aim, high = (bounds[i + 1] for i in (lower, middle, upper))
            share = (aim - low) / (high - low)
            cost = 2 * max(share, 1 - share)
            if neighbours == "replace-one":
                cost = Fraction(2) if len(level) == 1 else 2 * cost
            splits.append(QuantileSplit(middle, lower, upper, share, Fraction(epsilon, len(halves)) / cost))
        levels.append(splits)
    return levels
