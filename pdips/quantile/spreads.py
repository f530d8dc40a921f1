"""Public offsets around a line: how far, how many, in which directions."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import product

import numpy as np

from pdips.arrays import FloatArray

MOST_CANDIDATES = 2**20


@lru_cache
def _growth(ratio: float, n_each_side: int) -> float:
    """Return where sinh(growth / n) is ``ratio`` of sinh(growth)."""
    low, high = 1e-9, 40.0
    for _ in range(200):
        middle = (low + high) / 2
        larger = math.sinh(middle / n_each_side) > ratio * math.sinh(middle)
        low, high = (middle, high) if larger else (low, middle)
    return low


@dataclass(frozen=True)
class Spread:
    """Public offsets that are dense about 0 and grow like sinh: number k is about scale * sinh(rate * k).

    Parameters
    ----------
    scale, rate : float
        See above.
    first, last : int
        The numbers k run from one to the other.
    step : float
        Offsets are rounded to multiples of it.
    """

    scale: float
    rate: float
    first: int
    last: int
    step: float

    @classmethod
    def of(cls, reach: float, finest: float, n_each_side: int, step: float, *, upwards: bool = False) -> "Spread":
        """Return offsets up to ``reach``, ``finest`` from 0 to the next, on one side or both."""
        low = _growth(max(finest, 2 * step) / reach, n_each_side)
        return cls(reach / math.sinh(low), low / n_each_side, 0 if upwards else -n_each_side, n_each_side, step)

    @cached_property
    def offsets(self) -> FloatArray:
        """All of them, increasing."""
        exact = self.scale * np.sinh(self.rate * np.arange(self.first, self.last + 1))
        return np.asarray(np.rint(exact / self.step) * self.step)

    @cached_property
    def log_widths(self) -> FloatArray:
        """Logarithm of the length of the interval that each stands for."""
        return np.asarray(np.log(np.gradient(self.offsets)))


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of a search for a line.

    Parameters
    ----------
    share : Fraction
        Of epsilon.
    reach : float
        How far candidates go from the line before, as a share of the outcome's range.
    n_slopes, n_intercepts : int
        Offsets on each side.
    uniform : bool
        Whether candidates weigh as much as the intervals that they stand for, or all the same.
    grid : bool
        Whether two slopes are changed at once.
    """

    share: Fraction
    reach: float
    n_slopes: int
    n_intercepts: int
    uniform: bool = False
    grid: bool = False

    def at_most(self, n_intercepts: int) -> "Round":
        """Return the round with fewer candidates where a fitter has few intercepts; 2,000 leave rounds as they are."""
        few = max(n_intercepts // 8, 1), max(n_intercepts // 4, 1)
        return replace(self, n_slopes=min(self.n_slopes, few[0]), n_intercepts=min(self.n_intercepts, few[1]))


def rounds(n_predictors: int) -> tuple[Round, ...]:
    """Return the rounds of a search for a line with one predictor or two."""
    if n_predictors == 1:
        first = Round(share=Fraction(1, 8), reach=1, n_slopes=250, n_intercepts=400)
        return first, Round(share=Fraction(7, 8), reach=1 / 10, n_slopes=150, n_intercepts=300, uniform=True)
    if n_predictors == 2:
        part = Fraction(1, 6)
        return (
            Round(share=part, reach=1, n_slopes=96, n_intercepts=200),
            Round(share=part, reach=1 / 4, n_slopes=64, n_intercepts=200),
            Round(share=part, reach=1 / 30, n_slopes=64, n_intercepts=200),
            Round(share=3 * part, reach=1 / 150, n_slopes=14, n_intercepts=150, uniform=True, grid=True),
        )
    raise ValueError("lines with more predictors are searched for along axes")


def around_slopes(each: Round, n_predictors: int, span: float, step: float) -> tuple[FloatArray, FloatArray]:
    """Return offsets of slopes, shape (slopes, p), and their log weights in the base measure.

    A grid for one predictor or where the round asks for it; otherwise steps along each axis and each diagonal of two,
    without diagonals and in fewer steps where many predictors would make more than ``MOST_CANDIDATES`` lines.
    """
    reach = span * each.reach
    most = MOST_CANDIDATES // (2 * (2 * each.n_intercepts + 1))  # steps on one side, over all directions
    diagonals = 2 * n_predictors**2 <= most
    if n_predictors > 1 and not each.grid:
        each = replace(each, n_slopes=max(min(each.n_slopes, most // n_predictors ** (1 + diagonals)), 1))
    spread = Spread.of(reach, reach * (5e-3 if each.grid else 2e-4), each.n_slopes, step)
    if n_predictors == 1 or each.grid:
        grid = np.array(list(product(spread.offsets, repeat=n_predictors)))
        weights = np.array([sum(one) for one in product(spread.log_widths, repeat=n_predictors)])
        return grid, weights if each.uniform else np.zeros(len(grid))
    unit = np.eye(n_predictors)
    pairs = [(unit[i], unit[j]) for i in range(n_predictors) for j in range(i) if diagonals]
    directions = [*unit, *(a + b for a, b in pairs), *(a - b for a, b in pairs)]
    moved = spread.offsets[spread.offsets != 0]
    grid = np.concatenate([np.zeros((1, n_predictors)), *(moved[:, None] * direction for direction in directions)])
    return grid, np.zeros(len(grid))
