"""Simulation study 1 of Bowen and Liu (2020): a proportion, from synthetic sets of one
binary column.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize, special, stats

from pdips.arrays import FloatArray, IntArray
from pdips.data.table import Table
from pdips.inference import Rule
from pdips.privacy.loss import positive
from pdips.privacy.noise import RandomBits, discrete_laplace
from pdips.registry import find
from pdips_papers.harness.batch import release_each, stacked
from pdips_papers.harness.curves import CurveFigures, CurveStudy, methods_of, suffix_of
from pdips_papers.harness.measures import combine, interval_summary, summary
from pdips_papers.harness.study import Finding
from pdips_papers.modips import claims
from pdips_papers.modips.as_printed import redraw_loss
from pdips_papers.modips.as_printed import redrawn as redrawn_counts

type Floats = NDArray[np.floating[Any]]

SIZES = (40, 100, 1000)
PROPORTIONS = (0.1, 0.25, 0.5)
N_SETS = 5
MANY_SETS = 100
PRIOR = 1 / 3
GRID = 4001


OTHER_RULES: tuple[Rule, ...] = ("fully-synthetic", "raab-nowok-dibben", "rubin")
"""The variances that section 3.3 compares with its own, B/m + W, of the same sets."""

SHIPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "laplace-both-counts": (
        "laplace-sanitizer",
        {"n_sets": N_SETS, "split": "per-set"},
    ),
    "multinomial-dirichlet": ("multinomial-dirichlet", {"n_sets": N_SETS}),
    "mcclure-reiter": ("mcclure-reiter", {}),
}
"""The rows that are releases of shipped mechanisms, and their settings but epsilon."""


class Proportions(CurveStudy):
    """``pdips study proportions``."""

    name: ClassVar[str] = "proportions"
    title: ClassVar[str] = (
        "A proportion from synthetic sets: simulation study 1 of Bowen and Liu (2020)"
    )
    default_replicates: ClassVar[int] = 5000
    labels: ClassVar[dict[str, str]] = {
        f"n={n}, pi={pi:g}": f"n = {n:,}, π = {pi:g}"
        for n in SIZES
        for pi in PROPORTIONS
    }
    methods = methods_of("binary", "modips", "proportions")
    headlines = ("n=40, pi=0.25", "n=1000, pi=0.25")
    families: ClassVar[dict[str, tuple[str, ...]]] = {
        "MODIPS": (
            "original",
            "multiple-synthesis",
            "laplace-one-count",
            *methods_of("modips"),
            "modips-test",
        ),
        "histograms and priors": tuple(
            name for name in methods if not name.startswith("modips")
        ),
        "bounds and variance rules": (
            "original",
            *(name for name in methods if name.startswith("modips-published")),
        ),
    }
    cases = tuple(
        (f"n={n}-pi={pi:g}-", {"n": n, "pi": pi}) for n in SIZES for pi in PROPORTIONS
    )

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw the data of a batch once, and synthesize them by every method at every
        epsilon.
        """
        rng = np.random.default_rng(seed)
        n = arguments["n"]
        pi = arguments["pi"]
        bits = RandomBits(rng)
        counts = rng.binomial(n, pi, arguments["replicates"]).astype(np.int64)
        tables = stacked(
            (np.arange(n) < counts[:, None]).astype(np.float64), {"levels": [0, 1]}
        )

        rows = measured("original", counts[:, None], n, pi)
        rows += measured("multiple-synthesis", _sets(counts[:, None], n, bits), n, pi)
        for spelled in arguments["epsilons"]:
            epsilon = positive(spelled, "epsilon")
            suffix = suffix_of(spelled)
            for method, synthesize in METHODS.items():
                sets = synthesize(counts, n, epsilon, bits)
                rows += measured(method, sets, n, pi, suffix)
                for rule in OTHER_RULES if method == "modips-published" else ():
                    rows += measured(f"{method}-{rule}", sets, n, pi, suffix, rule=rule)
            for method in SHIPPED:
                rows += measured(
                    method, shipped(method, tables, epsilon, bits), n, pi, suffix
                )
            rows += noise_aware(counts, n, pi, epsilon, bits, suffix)
        return rows

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Hold the claims of section 4.1 against the table."""
        return claims.proportions.judge(CurveFigures(table, self))


def measured(
    method: str,
    ones: IntArray,
    n: int,
    pi: float,
    suffix: str = "",
    *,
    rule: Rule = "sanitized",
) -> list[dict[str, Any]]:
    """Estimate the proportion from the ones in synthetic sets, shape (replicates,
    sets), as section 4.1 does.
    """
    share = ones / n
    return summary(
        f"{method}, n={n}, pi={pi:g}",
        suffix,
        combine(share, share * (1 - share) / n, rule),
        pi,
    )


def shipped(
    method: str, tables: Table, epsilon: Fraction, bits: RandomBits
) -> IntArray:
    """Release tables by a shipped mechanism; return ones by replicate and set."""
    name, settings = SHIPPED[method]
    made = release_each(
        find(name)(epsilon=epsilon, **settings), tables, bits.generator()
    )
    return np.asarray(made.sum(axis=2), dtype=np.int64)


def noise_aware(
    counts: IntArray,
    n: int,
    pi: float,
    epsilon: Fraction,
    bits: RandomBits,
    suffix: str,
) -> list[dict[str, Any]]:
    """Sanitize once, and measure sets from the noise-aware posterior and the posterior
    itself.
    """
    noisy = noisy_counts(counts, epsilon, bits)
    rng = bits.generator()
    posteriors = Posteriors(n, epsilon)
    rows = []
    for name, n_sets in (("modips-aware", N_SETS), ("modips-aware-many", MANY_SETS)):
        sets = rng.binomial(n, posteriors.draw(noisy, n_sets, rng)).astype(np.int64)
        rows += measured(name, sets, n, pi, suffix, rule="posterior-predictive")
    intervals = {
        "modips-posterior": posteriors.interval(noisy),
        "modips-test": inverted(noisy, n, epsilon),
    }
    for name, found in intervals.items():
        rows += interval_summary(f"{name}, n={n}, pi={pi:g}", suffix, found, pi)
    return rows


def one_count(
    counts: IntArray, n: int, epsilon: Fraction, bits: RandomBits
) -> IntArray:
    """Add noise to the count of ones alone, in each set at epsilon / m, and clamp it to
    [0, n].

    Replacing a record changes the count by 1 at most, and the other count is n less it:
    sound as printed.
    """
    noise = discrete_laplace(N_SETS / epsilon, len(counts) * N_SETS, bits).reshape(
        len(counts), N_SETS
    )
    return np.asarray(np.clip(counts[:, None] + noise, 0, n))


def redrawn(counts: IntArray, n: int, epsilon: Fraction, bits: RandomBits) -> IntArray:
    """Draw again until in [0, n], at the scale b with 1 / b + log(2 - exp(-1 / b)) =
    epsilon / m.

    The published scale m / epsilon spends e + log(2 - exp(-e)) for e = epsilon / m.
    Proof: ``docs/proofs/modips.md``, section 4.
    """
    return _redrawn(counts, n, repaired_scale(epsilon / N_SETS), bits)


def repaired_scale(epsilon: Fraction) -> Fraction:
    """Return the least scale, to nine digits upwards, at which re-drawn noise on one
    count spends epsilon.
    """
    target = float(epsilon)
    rate = optimize.brentq(
        lambda rate: redraw_loss(rate) - target, target / 2, target, xtol=1e-13
    )
    return Fraction(math.ceil(10**9 / rate) + 1, 10**9)


def published(
    counts: IntArray, n: int, epsilon: Fraction, bits: RandomBits
) -> IntArray:
    """Draw each set from the posterior given a noisy count of its own (scale m /
    epsilon, clamped), as if exact.
    """
    return _sets(one_count(counts, n, epsilon, bits), n, bits)


def published_wide(
    counts: IntArray, n: int, epsilon: Fraction, bits: RandomBits
) -> IntArray:
    """Do the same with noisy counts within [-alpha, n + beta]: a law at an end is a
    point, 0 or 1.
    """
    noise = discrete_laplace(N_SETS / epsilon, len(counts) * N_SETS, bits).reshape(
        len(counts), N_SETS
    )
    return _sets(np.clip(counts[:, None] + noise, -PRIOR, n + PRIOR), n, bits)


def plug_in(counts: IntArray, n: int, epsilon: Fraction, bits: RandomBits) -> IntArray:
    """Draw all sets from the posterior given one noisy count, of scale 1 / epsilon and
    clamped, as if exact.
    """
    return _sets(np.clip(noisy_counts(counts, epsilon, bits), 0, n)[:, None], n, bits)


METHODS: dict[str, Callable[[IntArray, int, Fraction, RandomBits], IntArray]] = {
    "modips-published": published,
    "modips-published-wide": published_wide,
    "modips-plug-in": plug_in,
    "laplace-one-count": one_count,
    "laplace-redrawn-published": lambda counts, n, epsilon, bits: _redrawn(
        counts, n, N_SETS / epsilon, bits
    ),
    "laplace-redrawn": redrawn,
}
"""Each takes the counts of ones by replicate, n, the total epsilon and bits; returns
ones by replicate and set.
"""


def noisy_counts(counts: IntArray, epsilon: Fraction, bits: RandomBits) -> IntArray:
    """Sanitize the counts of ones with all of epsilon: replacing a record changes them
    by 1, and n is public.
    """
    return np.asarray(counts + discrete_laplace(1 / epsilon, len(counts), bits))


class Posteriors:
    """Noise-aware posteriors of a proportion: exact, a row for each value that a noisy
    count may have.

    The true count k of n has the law BetaBinomial(n, 1/3, 1/3) times exp(-epsilon
    abs(noisy - k)); given it, the proportion is Beta(k + 1/3, n - k + 1/3). Noisy
    counts beyond 0 or n say the same as those bounds.
    """

    def __init__(self, n: int, epsilon: Fraction) -> None:
        known = np.arange(n + 1)
        log_law = stats.betabinom.logpmf(known, n, PRIOR, PRIOR) - float(
            epsilon
        ) * np.abs(known[:, None] - known)
        law = np.exp(log_law - log_law.max(axis=1, keepdims=True))
        self.n = n
        self.law: FloatArray = law / law.sum(axis=1, keepdims=True)
        """Shape (noisy counts, true counts)."""
        self._ladder = (self.law.cumsum(axis=1) + np.arange(n + 1)[:, None]).ravel()

    def draw(
        self, noisy: IntArray, n_draws: int, rng: np.random.Generator
    ) -> FloatArray:
        """Draw proportions, shape (replicates, draws)."""
        row = np.clip(noisy, 0, self.n)[:, None]
        found = np.searchsorted(self._ladder, row + rng.random((len(row), n_draws)))
        count = np.clip(found - row * (self.n + 1), 0, self.n)
        return np.asarray(rng.beta(PRIOR + count, PRIOR + self.n - count))

    def interval(
        self, noisy: IntArray, level: float = 0.95
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return posterior means and the ends of central intervals, each of shape
        (replicates,).
        """
        shares, below = _beta_laws(self.n)
        row, place = np.unique(np.clip(noisy, 0, self.n), return_inverse=True)
        reached = self.law[row] @ below
        ends = []
        for p in ((1 - level) / 2, (1 + level) / 2):
            quantiles = [np.interp(p, law, shares) for law in reached]
            ends.append(np.array(quantiles)[place])
        means = (np.arange(self.n + 1) + PRIOR) / (self.n + 2 * PRIOR)
        mean = self.law[row] @ means
        return mean[place], ends[0], ends[1]


def inverted(
    noisy: IntArray, n: int, epsilon: Fraction, level: float = 0.95
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return estimates and intervals that need no prior: the proportions that a test of
    the noisy count doesn't reject.

    The noisy count is binomial plus discrete Laplace noise; a proportion is rejected
    where the probability of less than the noisy count plus half of that of the same
    (mid-p) is in a tail.
    """
    shares, laws = _binomials(n)
    value, place = np.unique(noisy, return_inverse=True)
    gap = value[:, None] - np.arange(n + 1)
    rate = float(epsilon)
    # P(noise < gap) + P(noise = gap) / 2 for gap < 0
    tail = np.exp(-rate * np.abs(gap)) / 2
    of_noise = np.where(gap < 0, tail, 1 - tail)
    below = np.where(gap == 0, 0.5, of_noise) @ laws
    ends = []
    for p in ((1 + level) / 2, (1 - level) / 2):
        roots = [np.interp(p, falling[::-1], shares[::-1]) for falling in below]
        ends.append(np.array(roots)[place])
    return np.clip(noisy / n, 0, 1), ends[0], ends[1]


@lru_cache(maxsize=3)
def _binomials(n: int) -> tuple[FloatArray, FloatArray]:
    """Return a grid of proportions, and the binomial laws, shape (counts, grid)."""
    shares = np.sin(np.linspace(0, np.pi / 2, GRID // 4 + 1)) ** 2
    return shares, stats.binom.pmf(np.arange(n + 1)[:, None], n, shares)


@lru_cache(maxsize=3)
def _beta_laws(n: int) -> tuple[FloatArray, FloatArray]:
    """Return a grid of proportions, dense at both ends, and P(proportion <= it) for
    every true count.
    """
    shares = np.sin(np.linspace(0, np.pi / 2, GRID)) ** 2
    known = np.arange(n + 1)[:, None]
    return shares, special.betainc(known + PRIOR, n - known + PRIOR, shares)


def _sets(used: Floats | IntArray, n: int, bits: RandomBits) -> IntArray:
    """Draw sets, (replicates, sets), from the posterior predictive law given counts
    under a Beta(1/3, 1/3) prior.
    """
    rng = bits.generator()
    least = np.finfo(np.float64).tiny
    share = rng.beta(
        np.maximum(PRIOR + used, least),
        np.maximum(PRIOR + n - used, least),
        (len(used), N_SETS),
    )
    return rng.binomial(n, share).astype(np.int64)


def _redrawn(counts: IntArray, n: int, scale: Fraction, bits: RandomBits) -> IntArray:
    found = redrawn_counts(
        np.repeat(counts, N_SETS), n, lambda size: discrete_laplace(scale, size, bits)
    )
    return found.astype(np.int64).reshape(len(counts), N_SETS)
