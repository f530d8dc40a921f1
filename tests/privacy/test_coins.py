"""Exact coins and integers: their laws, the cases in which doubles can't decide, and broken twins.

Error rates as in ``laws.py``: a true law fails with probability 1e-6, a twin must score below 1e-9; seeds fixed.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from laws import ACCEPT, REJECT
from scipy import stats

from pdips.privacy import coins
from pdips.privacy.noise import RandomBits

N = 300_000


def seeded(seed: int = 0) -> RandomBits:
    return RandomBits(np.random.default_rng(seed))


def toss(prior: int, balls: int, exponent: Fraction, n: int = N, seed: int = 0) -> np.ndarray:
    same = np.zeros(n, dtype=np.int64)
    return coins.smoothing_coins(same + prior, same + balls, [exponent], same, seeded(seed))


def probability(prior: int, balls: int, exponent: Fraction) -> float:
    return prior / (prior + balls * math.expm1(float(exponent)))


@pytest.mark.parametrize(("prior", "balls", "exponent"), [(1, 1, 1), (7, 2, "1/3"), (12, 5000, "1/100"), (3, 1, 4)])
def test_coins_have_their_probability(prior, balls, exponent):
    heads = int(toss(prior, balls, Fraction(exponent)).sum())
    right = probability(prior, balls, Fraction(exponent))
    assert stats.binomtest(heads, N, right).pvalue > ACCEPT
    wrong = prior / (prior + balls * float(Fraction(exponent)))  # the twin that takes x for e^x - 1
    assert abs(wrong - right) < 0.006 or stats.binomtest(heads, N, wrong).pvalue < REJECT


def test_doubles_and_rationals_decide_alike(monkeypatch):
    fast = toss(7, 2, Fraction(1, 3), n=2000)
    monkeypatch.setattr(coins, "FILTER", 2.0)
    assert (toss(7, 2, Fraction(1, 3), n=2000) == fast).all()


class Scripted(RandomBits):
    """Bits of which the first words are known."""

    def __init__(self, *words: int) -> None:
        super().__init__(np.random.default_rng(0))
        self.script = list(words)

    def words(self, n, dtype):
        known, self.script = self.script[:n], self.script[n:]
        return np.array([*known, *super().words(n - len(known), dtype)], dtype=dtype)


def test_a_word_beside_the_threshold_is_decided_exactly():
    # the threshold in 200 digits, far beyond a double
    from decimal import Context, Decimal

    ratio = Context(prec=200).exp(Decimal(1)) - 1
    threshold = int(Fraction(7) / (7 + 2 * Fraction(ratio)) * 2**64)
    one = np.ones(1, dtype=np.int64)
    for word, head in ((threshold - 1, True), (threshold + 1, False)):
        found = coins.smoothing_coins(7 * one, 2 * one, [Fraction(1)], 0 * one, Scripted(word))
        assert found.tolist() == [head]


def test_coins_that_are_nearly_sure():
    assert not toss(12, 1, Fraction(100_000), n=1000).any()
    assert toss(12, 1, Fraction(1, 10**300), n=1000).all()
    one = np.ones(1, dtype=np.int64)
    assert coins.smoothing_coins(one, one, [Fraction(20)], 0 * one, Scripted(0)).tolist() == [True]
    bounds = coins._coin_bounds(1, 1, Fraction(2000), 4000)
    assert bounds[0] > 0  # a probability of e^-2000 is not 0


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 1000])
def test_integers_are_even(bound):
    drawn = coins.integers_below(np.full(N, bound), seeded())
    assert drawn.min() >= 0
    assert drawn.max() < bound
    counts = np.bincount(drawn, minlength=bound)
    assert bound == 1 or stats.chisquare(counts).pvalue > ACCEPT
    assert bound < 10 or stats.chisquare(np.bincount(drawn % (bound - 1), minlength=bound)[:-1]).pvalue < REJECT


def test_each_integer_has_its_own_bound():
    bounds = np.arange(1, 2001)
    drawn = np.array([coins.integers_below(bounds, seeded(seed)) for seed in range(40)])
    assert (drawn < bounds).all()
    assert (drawn.max(axis=0)[100:] > bounds[100:] * 0.7).all()


def test_the_incomplete_last_block_is_drawn_again():
    # 2^64 modulo 3 is 1, so the last word is refused, and without that 0 would be likelier than 1 and 2
    last = 2**64 - 1
    assert coins.integers_below(np.array([3]), Scripted(last, 5)).tolist() == [2]
    assert coins.integers_below(np.array([3]), Scripted(last - 1)).tolist() == [(last - 1) % 3]
    assert coins.integers_below(np.array([4]), Scripted(last)).tolist() == [3]
    assert coins.integers_below(np.array([2**62 + 1]), Scripted(3 * (2**62 + 1), 8)).tolist() == [8]
