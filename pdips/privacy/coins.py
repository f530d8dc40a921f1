"""Exact coins and exact uniform integers: what urns are drawn with. As in ``noise.py``, nothing is ever rounded.

A coin whose probability isn't rational is tossed by comparing a uniform number, revealed bit by bit, with rationals
that enclose the probability ever more tightly (``docs/proofs/noise.md``, lemma 0).
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import partial

import numpy as np

from pdips.arrays import BoolArray, IntArray
from pdips.privacy.noise import FILTER, WORD_BITS, RandomBits, _exp_bounds, _LazyUniform


def integers_below(bounds: IntArray, bits: RandomBits) -> IntArray:
    """Draw integers, each uniform on 0, 1, ..., bound - 1 for a bound of its own.

    Parameters
    ----------
    bounds : ndarray of int64, shape (n,)
        At least 1 each.
    bits : RandomBits
        Source of uniform bits.

    Returns
    -------
    ndarray of int64, shape (n,)

    Notes
    -----
    A 64-bit word is taken modulo the bound unless it lies in the incomplete last block of that length; then another one
    is drawn. So all values have one probability (``docs/proofs/urns.md``, lemma 1).
    """
    limits = bounds.astype(np.uint64)
    drawn, open_ = np.empty(len(bounds), dtype=np.int64), np.arange(len(bounds))
    while len(open_):
        words, limit = bits.words(len(open_), np.uint64), limits[open_]
        excess = (~limit + np.uint64(1)) % limit  # 2^64 modulo the bound
        accepted = words <= ~excess  # below 2^64 - excess, a multiple of the bound; excess = 0 accepts everything
        drawn[open_[accepted]] = (words % limit)[accepted].astype(np.int64)
        open_ = open_[~accepted]
    return drawn


def smoothing_coins(
    prior: IntArray, balls: IntArray, exponents: Sequence[Fraction], which: IntArray, bits: RandomBits
) -> BoolArray:
    """Toss coins of probability w / (w + b (e^x - 1)), exactly.

    That is the probability of a ball of the prior in an urn that has b balls beside a prior of total weight
    w / (e^x - 1).

    Parameters
    ----------
    prior : ndarray of int64, shape (n,)
        w for each coin, at least 1.
    balls : ndarray of int64, shape (n,)
        b for each coin, at least 1.
    exponents : sequence of Fraction
        Values of x, above 0.
    which : ndarray of int64, shape (n,)
        The position in ``exponents`` of each coin's x.
    bits : RandomBits
        Source of uniform bits.

    Returns
    -------
    ndarray of bool, shape (n,)
    """
    with np.errstate(over="ignore"):
        growth = np.expm1([float(exponent) for exponent in exponents])[which]
        probability = prior / (prior + balls * growth)
    words = bits.words(len(prior), np.uint64)
    uniform = words.astype(np.float64) * 2.0**-WORD_BITS
    tossed: BoolArray = uniform < probability
    for i in np.flatnonzero(np.abs(uniform - probability) < FILTER):
        bounds = partial(_coin_bounds, int(prior[i]), int(balls[i]), exponents[int(which[i])])
        tossed[i] = _LazyUniform(int(words[i]), WORD_BITS, bits).below(bounds)
    return tossed


def _coin_bounds(prior: int, balls: int, exponent: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Enclose w y / (w y + b (1 - y)), y = e^-x, which rises with y."""
    low, high = (prior * y / (prior * y + balls * (1 - y)) for y in _inside(_exp_bounds(exponent, digits)))
    return low, high


def _inside(bounds: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
    return max(bounds[0], Fraction(0)), min(bounds[1], Fraction(1))


def decay_coins(steps: IntArray, unit: Fraction, bits: RandomBits) -> BoolArray:
    """Toss coins of probability exp(-unit * steps), exactly.

    Parameters
    ----------
    steps : ndarray of int64, shape (n,)
        At least 0 each.
    unit : Fraction
        Nats a step, above 0.
    bits : RandomBits
        Source of uniform bits.

    Returns
    -------
    ndarray of bool, shape (n,)
    """
    probability = np.exp(-steps * float(unit))
    words = bits.words(len(steps), np.uint64)
    uniform = words.astype(np.float64) * 2.0**-WORD_BITS
    tossed: BoolArray = uniform < probability
    for i in np.flatnonzero(np.abs(uniform - probability) < FILTER):
        tossed[i] = _LazyUniform(int(words[i]), WORD_BITS, bits).below(partial(_exp_bounds, unit * int(steps[i])))
    return tossed
