"""All quantiles of one numeric column in one draw: the exponential mechanism on ordered tuples of public grid points.

Gillenwater, Joseph and Kulesza (2021), *Differentially private quantiles*, with tight prices, on a public grid, and
with every probability that is not exact paid for. Proofs: ``docs/proofs/kng.md``, section 8.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations_with_replacement, pairwise
from math import ceil
from typing import NamedTuple

import numpy as np
from numba import njit

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import FILTER, WORD_BITS, RandomBits, _Enclosure, _exp_bounds, _LazyUniform
from pdips.quantile.quantile_grid import MOST_TUPLES, GridQuantiles

ROUNDING = Fraction(1, 2**53)
LOWEST = -(2**60)
RADIX_BITS = 10
LONG_BITS = 256
LONG_DIGITS = 120
LARGEST_RATE = 100
LARGEST_POWER = 2**40
ERRORS_A_LEVEL = 32  # Of a step of the forward pass, in units of ``ROUNDING``, at each doubling of the grid: 17 at most
SHIFTS = np.ldexp(1.0, -np.arange(1075))  # By which the smaller term of a sum is moved; further, it adds nothing


# ---- numbers with 53 bits and an exponent of their own ----

# A number is mantissa * 2**exponent with the mantissa in [1/2, 1), or 0: sums of products that no double could hold.
# Sums and products of nonnegative numbers never cancel, so each operation costs a relative error of at most
# 2 * ROUNDING, whatever the range; nothing becomes 0 that isn't.


class Wide(NamedTuple):
    """An array of numbers ``mantissa * 2**exponent``, mantissas in [1/2, 1), or 0 with the exponent ``LOWEST``."""

    mantissa: FloatArray
    exponent: IntArray

    def take(self, index: IntArray) -> "Wide":
        return Wide(self.mantissa[index], self.exponent[index])

    def where(self, condition: BoolArray) -> "Wide":
        """Return the numbers where the condition holds, and 0 elsewhere."""
        return Wide(np.where(condition, self.mantissa, 0.0), np.where(condition, self.exponent, LOWEST))


def wide(values: FloatArray, exponent: IntArray | int = 0) -> Wide:
    """Return ``values * 2**exponent``."""
    mantissa, shift = np.frexp(values)
    return Wide(mantissa, np.where(mantissa > 0, exponent + shift.astype(np.int64), LOWEST))


def times(a: Wide, b: Wide) -> Wide:
    """Return products; relative error at most ``ROUNDING``."""
    return wide(a.mantissa * b.mantissa, a.exponent + b.exponent)


def plus(a: Wide, b: Wide) -> Wide:
    """Return sums; relative error at most ``2 * ROUNDING``, with what underflows in the smaller term."""
    top = np.maximum(a.exponent, b.exponent)
    return wide(_shifted(a, top) + _shifted(b, top), top)


def _shifted(a: Wide, top: IntArray | int) -> FloatArray:
    """Return ``a * 2**-top`` as doubles; anything below 2^-2000 becomes 0."""
    return np.asarray(np.ldexp(a.mantissa, np.maximum(a.exponent - top, -2000).astype(np.int32)))


class Powers:
    """Numbers exp(-rate * k) for whole k, as products of table entries: one for each group of ten binary digits of k.

    Relative error at most ``12 * ROUNDING``: an entry is cut off after 53 bits of one that is right to 200 (at most ``2
    * ROUNDING``), and four of them are multiplied.
    """

    def __init__(self, rate: Fraction, largest: int) -> None:
        if not 0 < rate <= LARGEST_RATE:
            raise InputError(f"the exponential mechanism of a quantile needs a rate above 0 and at most {LARGEST_RATE}")
        if not 0 <= largest < LARGEST_POWER:
            raise InputError(
                "too many records, or parts of a cell, for joint quantiles: their product must be below 2^40"
            )
        self._tables = _power_tables(rate, max(1, -(-largest.bit_length() // RADIX_BITS)))

    def at(self, k: IntArray) -> Wide:
        """Return exp(-rate * k)."""
        product = self._tables[0].take(k & (2**RADIX_BITS - 1))
        for level, table in enumerate(self._tables[1:], start=1):
            product = times(product, table.take(k >> (RADIX_BITS * level) & (2**RADIX_BITS - 1)))
        return product


@lru_cache(maxsize=16)
def _power_tables(rate: Fraction, n_levels: int) -> tuple[Wide, ...]:
    tables, base = [], _long(rate)
    for _ in range(n_levels):
        powers = [(1 << (LONG_BITS - 1), 1 - LONG_BITS)]
        for _ in range(2**RADIX_BITS):
            powers.append(_long_product(powers[-1], base))
        base = powers.pop()
        tables.append(_rounded(powers))
    return tuple(tables)


@lru_cache(maxsize=256)
def exponential(exponent: Fraction) -> Wide:
    """Return exp(-exponent) as an array of one, ``exponent`` in [0, 100]; relative error at most ``2 * ROUNDING``."""
    return _rounded([_long(exponent)])


def _long(exponent: Fraction) -> tuple[int, int]:
    """Return exp(-exponent) as a mantissa of 256 bits and its exponent, right to 250 bits."""
    low, high = _exp_bounds(exponent, LONG_DIGITS)
    middle = (low + high) / 2
    shift = LONG_BITS - middle.numerator.bit_length() + middle.denominator.bit_length()
    return (middle.numerator << shift) // middle.denominator, -shift


def _long_product(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    product = a[0] * b[0]
    excess = product.bit_length() - LONG_BITS
    return product >> excess, a[1] + b[1] + excess


def _rounded(numbers: list[tuple[int, int]]) -> Wide:
    """Cut off after 53 bits."""
    lengths = [mantissa.bit_length() for mantissa, _ in numbers]
    heads = [float(mantissa >> (length - 53)) for (mantissa, _), length in zip(numbers, lengths, strict=True)]
    exponents = [exponent + length - 53 for (_, exponent), length in zip(numbers, lengths, strict=True)]
    return wide(np.array(heads), np.array(exponents, dtype=np.int64))


def choose(weights: Wide, n: int, bits: RandomBits) -> IntArray:
    """Draw ``n`` indices, each with probability exactly proportional to its weight, at least one above 0.

    Doubles decide where they can: they are within 2^-31 of the cumulative probabilities. The few draws within
    ``FILTER`` of a threshold are decided by rationals that enclose it ever more tightly (docs/proofs/noise.md, lemma
    0).
    """
    cumulative = np.cumsum(_shifted(weights, int(weights.exponent.max())))
    cumulative /= cumulative[-1]
    words = bits.words(n, np.uint64)
    uniform = words.astype(np.float64) * 2.0**-WORD_BITS
    chosen = np.minimum(np.searchsorted(cumulative, uniform, side="right"), len(cumulative) - 1)
    padded = np.concatenate([[-1.0], cumulative])
    unsure = (np.abs(cumulative[chosen] - uniform) < FILTER) | (np.abs(padded[chosen] - uniform) < FILTER)
    if unsure.any():
        exactly = enclosure(weights)
        for i in np.flatnonzero(unsure):
            chosen[i] = exactly.find(_LazyUniform(int(words[i]), WORD_BITS, bits))
    return np.asarray(chosen, dtype=np.int64)


def enclosure(weights: Wide) -> _Enclosure:
    """Return cumulative probabilities between rationals: weights are cut off after ever more bits below the largest."""
    candidates = np.flatnonzero(weights.mantissa > 0)
    heads = [int(m) for m in np.ldexp(weights.mantissa[candidates], 53)]
    exponents = weights.exponent[candidates]
    below = [int(e) for e in exponents.max() - exponents]

    def cut(digits: int) -> list[tuple[int, int]]:
        """Return bounds of the weights, in units of 2^-(4 digits) of the largest."""
        shifts = [4 * digits - each for each in below]
        low = [m << shift if shift >= 0 else m >> min(-shift, 64) for m, shift in zip(heads, shifts, strict=True)]
        return [(least, least + (shift < 0)) for least, shift in zip(low, shifts, strict=True)]

    return _Enclosure(candidates, cut)


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
