"""Nonnegative numbers with 53 bits and an exponent of their own: sums of products that no double could hold.

A number is ``mantissa * 2**exponent`` with the mantissa in [1/2, 1), or 0. Sums and products of nonnegative numbers
never cancel, so each operation costs a relative error of at most ``2 * ROUNDING``, whatever the range; nothing becomes
0 that isn't.
"""

from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.errors import InputError
from pdips.privacy.noise import FILTER, WORD_BITS, RandomBits, _Enclosure, _exp_bounds, _LazyUniform

ROUNDING = Fraction(1, 2**53)
LOWEST = -(2**60)
RADIX_BITS = 10
LONG_BITS = 256
LONG_DIGITS = 120
LARGEST_RATE = 100
LARGEST_POWER = 2**40


class Wide(NamedTuple):
    """An array of numbers ``mantissa * 2**exponent``, mantissas in [1/2, 1), or 0 with the exponent ``LOWEST``."""

    mantissa: FloatArray
    exponent: IntArray

    def take(self, index: IntArray) -> "Wide":
        """Return the numbers at ``index``."""
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
