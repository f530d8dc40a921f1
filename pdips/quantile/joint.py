"""All quantiles of one numeric column in one draw: the exponential mechanism on ordered tuples of public grid points.

Gillenwater, Joseph and Kulesza (2021), *Differentially private quantiles*, with tight prices, on a public grid, and
with every probability that is not exact paid for. Proofs: ``docs/proofs/kng.md``, section 8.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations_with_replacement, pairwise
from math import ceil

import numpy as np
from numba import njit

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import RandomBits
from pdips.quantile.extended_float import LOWEST, ROUNDING, Powers, Wide, choose, exponential, plus, times
from pdips.quantile.quantile_grid import MOST_TUPLES, GridQuantiles

ERRORS_A_LEVEL = 32
"""Relative error of a step of the forward pass, in units of ``ROUNDING``, for each doubling of the grid: 17 at most."""

SHIFTS = np.ldexp(1.0, -np.arange(1075))
"""Powers of two by which the smaller term of a sum is moved; further apart, it adds nothing."""


@dataclass(frozen=True, kw_only=True)
class JointQuantiles(GridQuantiles):
    """All quantiles of one column at once; O(m G log G).

    With gaps c_j between neighbouring quantiles and their targets t_j = n (tau_j - tau_(j-1)), a tuple has probability
    proportional to exp(-unit * sum_j abs(c_j - t_j)). Where many records may share a value, a part should hold fewer of
    them than the smallest gap is to hold: 32 or more for fifty gaps.
    """

    parts: int = 8

    @cached_property
    def unit(self) -> Fraction:
        """Nats for one step of a height."""
        return joint_unit(self.taus, self.epsilon, self.neighbours, len(self.heights)) / self.parts

    @cached_property
    def targets(self) -> list[Fraction]:
        """The count that each of the m + 1 gaps is to hold."""
        return [self.total * (high - low) for low, high in pairwise([Fraction(0), *self.taus, Fraction(1)])]

    @cached_property
    def powers(self) -> Powers:
        return Powers(self.unit, self.total)

    @cached_property
    def decays(self) -> Wide:
        """exp(-unit (N_g - N_(g - 2^k))), shape (levels k, points g); 0 where g < 2^k."""
        size = len(self.heights)
        before = np.arange(size) - 2 ** np.arange(size.bit_length())[:, None]
        fall = np.where(before >= 0, self.heights - self.heights[np.maximum(before, 0)], 0)
        return self.powers.at(fall).where(before >= 0)

    @cached_property
    def forward(self) -> list[Wide]:
        """Total weight of the first j quantiles, the last of them at g, for j = 1, ..., m."""
        reached = [self.weights(0, self.heights)]
        for j in range(1, len(self.targets) - 1):
            reached.append(self._step(j, reached[-1]))
        return reached

    def weights(self, j: int, gaps: IntArray) -> Wide:
        """Return exp(-unit abs(gap - target_j))."""
        above = ceil(self.targets[j])
        full, part = self._ends(j)
        over = gaps >= above
        whole = self.powers.at(np.where(over, gaps - above, above - 1 - gaps))
        return times(whole, Wide(*(np.where(over, a, b) for a, b in zip(full, part, strict=True))))

    def _ends(self, j: int) -> tuple[Wide, Wide]:
        """Return the weights of the whole number at or above the target, and of the one below it."""
        excess = ceil(self.targets[j]) - self.targets[j]
        return exponential(self.unit * excess), exponential(self.unit * (1 - excess))

    def _step(self, j: int, reached: Wide) -> Wide:
        """Return sum over g' <= g of reached(g') exp(-unit abs(N_g - N_g' - target_j)), for every g."""
        above, heights = ceil(self.targets[j]), self.heights
        positions = np.arange(len(heights))
        last = np.minimum(np.searchsorted(heights, heights - above, side="right") - 1, positions)
        full, part = self._ends(j)
        at = np.maximum(last, 0)
        far = self.powers.at(np.where(last >= 0, heights - heights[at] - above, 0))
        sums = Wide(reached.mantissa.copy(), reached.exponent.copy())
        prefixes(*sums, *self.decays)
        far = times(times(far, full), sums.take(at)).where(last >= 0)
        first = np.minimum(last + 1, positions)
        near = self.powers.at(np.where(last < positions, above - 1 - heights + heights[first], 0))
        sums = Wide(np.zeros(len(heights)), np.full(len(heights), LOWEST, dtype=np.int64))
        windows(reached.mantissa.copy(), reached.exponent.copy(), *self.decays, positions - last, *sums)
        near = times(times(near, part), sums)
        return plus(far, near.where(last < positions))

    def _candidates(self, j: int, following: int | None) -> Wide:
        """Return weights of the j-th quantile's positions, given the next one's (None after the last)."""
        n_open = len(self.heights) if following is None else following + 1
        end = self.total if following is None else self.heights[following]
        return times(self.forward[j].take(np.arange(n_open)), self.weights(j + 1, end - self.heights[:n_open]))

    def positions(self, bits: RandomBits, runs: int) -> IntArray:
        """Draw tuples of positions, the last quantile first."""
        n_quantiles = len(self.targets) - 1
        drawn = np.empty((runs, n_quantiles), dtype=np.int64)
        drawn[:, -1] = choose(self._candidates(n_quantiles - 1, None), runs, bits)
        for j in reversed(range(n_quantiles - 1)):
            for following in np.unique(drawn[:, j + 1]):
                rows = np.flatnonzero(drawn[:, j + 1] == following)
                drawn[rows, j] = choose(self._candidates(j, int(following)), len(rows), bits)
        return drawn

    def law(self) -> tuple[IntArray, FloatArray]:
        """Return all tuples, one a row, and their log probabilities, from their definition."""
        n_quantiles, size = len(self.targets) - 1, len(self.heights)
        tuples = list(combinations_with_replacement(range(size), n_quantiles))
        if len(tuples) > MOST_TUPLES:
            raise InputError("the law of joint quantiles can be spelt out only for tiny grids")
        positions = np.array(tuples)
        ends = np.zeros((len(tuples), 1), dtype=np.int64), np.full((len(tuples), 1), self.total)
        gaps = np.diff(np.concatenate([ends[0], self.heights[positions], ends[1]], axis=1), axis=1)
        scale = np.lcm.reduce([target.denominator for target in self.targets], dtype=object)
        aims = np.array([int(target * scale) for target in self.targets])
        logs = -float(self.unit / scale) * np.abs(gaps * int(scale) - aims).sum(axis=1)
        return positions, logs - np.logaddexp.reduce(logs)


def joint_unit(taus: Sequence[Fraction], epsilon: Fraction, neighbours: Neighbours, size: int) -> Fraction:
    """Return nats for one record of misfit: the tight oscillation is 4 under replace-one, 4 (1 - w) under add-remove.

    Here w is the smallest of the m + 1 gaps between neighbouring quantiles, 0 and 1. What rounding can add to the
    privacy loss is taken off epsilon first; a plan keeps that below a half.
    """
    left = epsilon - rounding_price(len(taus), size)
    smallest = min(high - low for low, high in pairwise([Fraction(0), *taus, Fraction(1)]))
    return left / 4 if neighbours == "replace-one" else left / (4 * (1 - smallest))


def rounding_price(n_quantiles: int, size: int) -> Fraction:
    """Return what rounding adds to the privacy loss at most, for ``size`` grid points times parts."""
    step = ERRORS_A_LEVEL * (size.bit_length() + 1) * ROUNDING
    return 2 * (n_quantiles + 2) ** 2 * step


# compiled


@njit(cache=True, error_model="numpy")
def _times(a: float, a_exponent: int, b: float, b_exponent: int) -> tuple[float, int]:
    product, exponent = a * b, a_exponent + b_exponent
    if product == 0.0:
        return 0.0, LOWEST
    if product < 0.5:
        return product + product, exponent - 1
    return product, exponent


@njit(cache=True, error_model="numpy")
def _plus(a: float, a_exponent: int, b: float, b_exponent: int) -> tuple[float, int]:
    if a_exponent < b_exponent:
        a, a_exponent, b, b_exponent = b, b_exponent, a, a_exponent
    apart = a_exponent - b_exponent
    total = a + b * SHIFTS[apart] if apart < len(SHIFTS) else a
    if total >= 1.0:
        return total / 2, a_exponent + 1
    return total, a_exponent


@njit(cache=True, error_model="numpy")
def prefixes(mantissa: FloatArray, exponent: IntArray, decay: FloatArray, fall: IntArray) -> None:
    """Replace numbers by their decayed prefix sums; row k of the decays is exp(-unit (N_g - N_(g - 2^k)))."""
    size, k = len(mantissa), 0
    while 2**k < size:
        for g in range(size - 1, 2**k - 1, -1):
            before = g - 2**k
            m, e = _times(mantissa[before], exponent[before], decay[k, g], fall[k, g])
            mantissa[g], exponent[g] = _plus(mantissa[g], exponent[g], m, e)
        k += 1


@njit(cache=True, error_model="numpy")
def windows(
    mantissa: FloatArray,
    exponent: IntArray,
    decay: FloatArray,
    fall: IntArray,
    lengths: IntArray,
    total: FloatArray,
    total_exponent: IntArray,
) -> None:
    """Add up the last ``lengths[g]`` numbers until g in ``total``, decayed to the first of them; overwrites numbers."""
    size = len(mantissa)
    left = np.arange(1, size + 1)
    for k in range(len(decay)):
        for g in range(size):
            if (lengths[g] >> k) & 1 == 1:
                start, end = left[g] - 2**k, min(left[g], size - 1)
                m, e = _times(total[g], total_exponent[g], decay[k, end], fall[k, end])
                total[g], total_exponent[g] = _plus(mantissa[start], exponent[start], m, e)
                left[g] = start
        for g in range(size - 2**k):
            end = g + 2**k
            m, e = _times(mantissa[end], exponent[end], decay[k, end], fall[k, end])
            mantissa[g], exponent[g] = _plus(mantissa[g], exponent[g], m, e)
