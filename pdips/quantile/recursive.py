"""Quantiles of one numeric column by halving: the middle one first, then each half from its own records.

Kaplan, Schnapp and Stemmer (2022), *Differentially private approximate quantiles*, with the true price of a level,
exact rational targets and weak order. Proofs: ``docs/proofs/kng.md``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import RandomBits, choice_log_probabilities, exponential_mechanism
from pdips.quantile.quantile_grid import MOST_TUPLES, GridQuantiles

UNAVAILABLE = np.iinfo(np.int64).min
CELLS_AT_ONCE = 2**20


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
        """Return all tuples of positions, one a row, and their log probabilities."""
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
