"""MODIPS in simulation study 1: exact posteriors of a proportion given a noisy count, for all replicates at once.

What ``Modips(model="bernoulli")`` does to a column with two levels, release by release; the tests compare them.
"""

from fractions import Fraction
from functools import lru_cache

import numpy as np
from scipy import special, stats

from pdips.arrays import FloatArray, IntArray
from pdips.privacy.noise import RandomBits, discrete_laplace

N_SETS, MANY_SETS = 5, 100
PRIOR = 1 / 3
GRID = 4001


def published(counts: IntArray, n: int, epsilon: Fraction, bits: RandomBits) -> IntArray:
    """Draw each set from the posterior given a noisy count of its own, of scale m / epsilon and clamped, as if exact.

    Returns
    -------
    ndarray of int64, shape (replicates, sets)
        Ones in each set.
    """
    noise = discrete_laplace(N_SETS / epsilon, len(counts) * N_SETS, bits).reshape(len(counts), N_SETS)
    return _sets(np.clip(counts[:, None] + noise, 0, n), n, N_SETS, bits)


def plug_in(counts: IntArray, n: int, epsilon: Fraction, bits: RandomBits) -> IntArray:
    """Draw all sets from the posterior given one noisy count, of scale 1 / epsilon and clamped, as if exact."""
    return _sets(np.clip(noisy_counts(counts, epsilon, bits), 0, n)[:, None], n, N_SETS, bits)


def noisy_counts(counts: IntArray, epsilon: Fraction, bits: RandomBits) -> IntArray:
    """Sanitize the counts of ones with all of epsilon: replacing a record changes them by 1, and n is public (5.1)."""
    noisy: IntArray = counts + discrete_laplace(1 / epsilon, len(counts), bits)
    return noisy


class Posteriors:
    """Noise-aware posteriors of a proportion: exact, a row for each value that a noisy count may have.

    The true count k of n has the law BetaBinomial(n, 1/3, 1/3) times exp(-epsilon abs(noisy - k)); given it, the
    proportion is Beta(k + 1/3, n - k + 1/3). Noisy counts beyond 0 or n say the same as those bounds.

    Parameters
    ----------
    n : int
        Records.
    epsilon : Fraction
        Of the one sanitization.
    """

    def __init__(self, n: int, epsilon: Fraction) -> None:
        known = np.arange(n + 1)
        log_law = stats.betabinom.logpmf(known, n, PRIOR, PRIOR) - float(epsilon) * np.abs(known[:, None] - known)
        law = np.exp(log_law - log_law.max(axis=1, keepdims=True))
        self.n = n
        self.law: FloatArray = law / law.sum(axis=1, keepdims=True)
        """Shape (noisy counts, true counts)."""
        self._ladder = (self.law.cumsum(axis=1) + np.arange(n + 1)[:, None]).ravel()

    def draw(self, noisy: IntArray, n_draws: int, rng: np.random.Generator) -> FloatArray:
        """Draw proportions, shape (replicates, draws)."""
        row = np.clip(noisy, 0, self.n)[:, None]
        found = np.searchsorted(self._ladder, row + rng.random((len(row), n_draws)))
        count = np.clip(found - row * (self.n + 1), 0, self.n)
        shares: FloatArray = rng.beta(PRIOR + count, PRIOR + self.n - count)
        return shares

    def interval(self, noisy: IntArray, level: float = 0.95) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return posterior means and the ends of central intervals, each of shape (replicates,)."""
        shares, below = _beta_laws(self.n)
        row, place = np.unique(np.clip(noisy, 0, self.n), return_inverse=True)
        reached = self.law[row] @ below
        ends = [
            np.array([np.interp(p, each, shares) for each in reached])[place]
            for p in ((1 - level) / 2, (1 + level) / 2)
        ]
        mean = self.law[row] @ ((np.arange(self.n + 1) + PRIOR) / (self.n + 2 * PRIOR))
        return mean[place], ends[0], ends[1]


def inverted(
    noisy: IntArray, n: int, epsilon: Fraction, level: float = 0.95
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return estimates and intervals that need no prior: the proportions that a test of the noisy count doesn't reject.

    The noisy count is binomial plus discrete Laplace noise; a proportion is rejected where the probability of less than
    the noisy count plus half of that of the same (mid-p) is in a tail.

    Parameters
    ----------
    noisy : ndarray, shape (replicates,)
        Noisy counts.
    n, epsilon
        Records, and the loss of the one sanitization.
    level : float
        Of the interval.
    """
    shares, laws = _binomials(n)
    value, place = np.unique(noisy, return_inverse=True)
    gap, rate = value[:, None] - np.arange(n + 1), float(epsilon)
    tail = np.exp(-rate * np.abs(gap)) / 2  # P(noise < gap) + P(noise = gap) / 2 for gap < 0
    below = np.where(gap == 0, 0.5, np.where(gap < 0, tail, 1 - tail)) @ laws
    ends = [
        np.array([np.interp(p, each[::-1], shares[::-1]) for each in below]) for p in ((1 + level) / 2, (1 - level) / 2)
    ]
    return np.clip(noisy / n, 0, 1), ends[0][place], ends[1][place]


@lru_cache(maxsize=3)
def _binomials(n: int) -> tuple[FloatArray, FloatArray]:
    """Return a grid of proportions, and the binomial laws, shape (counts, grid)."""
    shares = np.sin(np.linspace(0, np.pi / 2, GRID // 4 + 1)) ** 2
    return shares, stats.binom.pmf(np.arange(n + 1)[:, None], n, shares)


@lru_cache(maxsize=3)
def _beta_laws(n: int) -> tuple[FloatArray, FloatArray]:
    """Return a grid of proportions, dense at both ends, and P(proportion <= it) for every true count."""
    shares = np.sin(np.linspace(0, np.pi / 2, GRID)) ** 2
    known = np.arange(n + 1)[:, None]
    return shares, special.betainc(known + PRIOR, n - known + PRIOR, shares)


def aware_sets(posteriors: Posteriors, noisy: IntArray, n_sets: int, rng: np.random.Generator) -> IntArray:
    """Draw sets, each at a posterior draw of its own; shape (replicates, sets)."""
    return rng.binomial(posteriors.n, posteriors.draw(noisy, n_sets, rng)).astype(np.int64)


def _sets(used: IntArray, n: int, n_sets: int, bits: RandomBits) -> IntArray:
    rng = bits.generator()
    share = rng.beta(PRIOR + used, PRIOR + n - used, (len(used), n_sets))
    return rng.binomial(n, share).astype(np.int64)
