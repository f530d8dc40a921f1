"""Simulation study 1 of paper 003: a proportion, from synthetic sets of one binary column."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize

from pdips.arrays import FloatArray, IntArray
from pdips.privacy.loss import positive
from pdips.privacy.noise import RandomBits, discrete_laplace
from pdips_papers.harness.epsilon_curves import Curves, Method, batches, epsilons_for, suffix_of
from pdips_papers.harness.framework import Block, Data, Finding, Options, Picture, Task
from pdips_papers.harness.measures import combine, combine_predictive, interval_summary, summary
from pdips_papers.modips.modips_words import MODIPS
from pdips_papers.modips.proportions_modips import (
    MANY_SETS,
    N_SETS,
    PRIOR,
    Posteriors,
    aware_sets,
    inverted,
    noisy_counts,
    plug_in,
    published,
)
from pdips_papers.modips.words import proportion_findings, text_of

type Rule = Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]

SIZES, PROPORTIONS = (40, 100, 1000), (0.1, 0.25, 0.5)
BATCH = 1000

CURVES = Curves(
    cases={f"n={n}, pi={pi:g}": f"n = {n:,}, π = {pi:g}" for n in SIZES for pi in PROPORTIONS},
    methods={
        "original": Method(label="original data", colour=1),
        "multiple-synthesis": Method(label="multiple synthesis, no privacy", colour=2),
        **MODIPS,
        "modips-test": Method(label="modips, test of the noisy count inverted", colour=2, dashed=True),
        "laplace-one-count": Method(label="Laplace sanitizer on one count (as printed)", colour=3),
        "laplace-both-counts": Method(label="laplace-sanitizer (both counts)", colour=7),
        "laplace-redrawn-published": Method(label="Laplace, re-drawn into [0, n] (published)", colour=4, dashed=True),
        "laplace-redrawn": Method(label="Laplace, re-drawn, repaired", colour=4),
        "multinomial-dirichlet": Method(label="multinomial-dirichlet", colour=5),
        "mcclure-reiter": Method(label="mcclure-reiter, one set", colour=6),
    },
    headlines=("n=40, pi=0.25", "n=1000, pi=0.25"),
    groups={
        "MODIPS": ("original", "multiple-synthesis", "laplace-one-count", *MODIPS, "modips-test"),
        "histograms and priors": (
            "original",
            "multiple-synthesis",
            "laplace-one-count",
            "laplace-both-counts",
            "laplace-redrawn-published",
            "laplace-redrawn",
            "multinomial-dirichlet",
            "mcclure-reiter",
        ),
    },
)


class Proportions:
    """``pdips study proportions``."""

    name = "proportions"
    title = "A proportion from synthetic sets: simulation study 1 of paper 003"
    default_replicates = 5000
    data: Data = "none"

    def tasks(self, options: Options) -> list[Task]:
        """Return one task for each case and batch of replicates."""
        epsilons = list(epsilons_for(options))
        return [
            Task(
                key=f"n={n}-pi={pi:g}-batch={number:03}",
                arguments={"n": n, "pi": pi, "replicates": size, "epsilons": epsilons},
            )
            for n in SIZES
            for pi in PROPORTIONS
            for number, size in enumerate(batches(options.replicates, BATCH))
        ]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw the data of a batch once, and synthesize them by every method at every epsilon."""
        rng = np.random.default_rng(seed)
        n, pi, bits = arguments["n"], arguments["pi"], RandomBits(rng)
        counts = rng.binomial(n, pi, arguments["replicates"]).astype(np.int64)

        rows = measured("original", counts[:, None], n, pi)
        rows += measured("multiple-synthesis", multiple_synthesis(counts, n, bits), n, pi)
        for spelled in arguments["epsilons"]:
            epsilon, suffix = positive(spelled, "epsilon"), suffix_of(spelled)
            for method, synthesize in METHODS.items():
                rows += measured(method, synthesize(counts, n, epsilon, bits), n, pi, suffix)
            rows += noise_aware(counts, n, pi, epsilon, bits, suffix)
        return rows

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return the long table; the paper draws its results and prints no figures."""
        return CURVES.table(measurements)

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """Return the blocks to print."""
        return CURVES.layout(table)

    def pictures(self, measurements: pd.DataFrame, table: pd.DataFrame) -> list[Picture]:
        """Draw figure 2 of the paper."""
        return CURVES.pictures(table)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Compare the paper's claims with what was found."""
        return proportion_findings(table, CURVES)

    def text(self) -> str:
        """Say what was done and what each row spends."""
        return text_of(self.name)


def measured(
    method: str, ones: IntArray, n: int, pi: float, suffix: str = "", *, rule: Rule = combine
) -> list[dict[str, Any]]:
    """Estimate the proportion from the ones in synthetic sets, shape (replicates, sets), as section 4.1 does."""
    share = ones / n
    return summary(f"{method}, n={n}, pi={pi:g}", suffix, rule(share, share * (1 - share) / n), pi)


def noise_aware(
    counts: IntArray, n: int, pi: float, epsilon: Fraction, bits: RandomBits, suffix: str
) -> list[dict[str, Any]]:
    """Sanitize once, and measure sets from the noise-aware posterior and the posterior itself."""
    noisy, rng, posteriors = noisy_counts(counts, epsilon, bits), bits.generator(), Posteriors(n, epsilon)
    rows = []
    for name, n_sets in (("modips-aware", N_SETS), ("modips-aware-many", MANY_SETS)):
        sets = aware_sets(posteriors, noisy, n_sets, rng)
        rows += measured(name, sets, n, pi, suffix, rule=combine_predictive)
    intervals = {"modips-posterior": posteriors.interval(noisy), "modips-test": inverted(noisy, n, epsilon)}
    for name, found in intervals.items():
        rows += interval_summary(f"{name}, n={n}, pi={pi:g}", suffix, found, pi)
    return rows


def multiple_synthesis(counts: IntArray, n: int, bits: RandomBits) -> IntArray:
    """Draw counts of ones in each set from the posterior predictive law under a Beta(1/3, 1/3) prior; no privacy.

    Returns
    -------
    ndarray of int64, shape (replicates, sets)
    """
    return _beta_binomial(counts[:, None] + PRIOR, n - counts[:, None] + PRIOR, n, N_SETS, bits.generator())


def one_count(counts: IntArray, n: int, epsilon: Fraction, bits: RandomBits) -> IntArray:
    """Add noise to the count of ones alone, in each set at epsilon / m, and clamp it to [0, n].

    Replacing a record changes the count by 1 at most, and the other count is n less it: sound as printed (5.1).
    """
    ones: IntArray = np.clip(counts[:, None] + _noise(N_SETS / epsilon, counts, bits), 0, n)
    return ones


def both_counts(counts: IntArray, n: int, epsilon: Fraction, bits: RandomBits) -> IntArray:
    """Do what ``LaplaceSanitizer(split="per-set")`` does to a binary column: noise on both counts, sensitivity 2.

    The two are made to add up to n and moved into [0, n]; a half record is rounded at random.
    """
    scale = 2 * N_SETS / epsilon
    ones = counts[:, None] + _noise(scale, counts, bits)
    zeros = n - counts[:, None] + _noise(scale, counts, bits)
    nearest = np.clip((n + ones - zeros) / 2, 0, n)
    rounded: IntArray = np.floor(nearest + bits.generator().random(nearest.shape)).astype(np.int64)
    return rounded


def redrawn_published(counts: IntArray, n: int, epsilon: Fraction, bits: RandomBits) -> IntArray:
    """Draw the noise on the count of ones again until it falls into [0, n], at the scale printed.

    The true loss of a set is e + log(2 - exp(-e)) for e = epsilon / m (5.2).
    """
    return _redrawn(counts, n, N_SETS / epsilon, bits)


def redrawn(counts: IntArray, n: int, epsilon: Fraction, bits: RandomBits) -> IntArray:
    """Draw again until in [0, n], at the scale b with 1 / b + log(2 - exp(-1 / b)) = epsilon / m (5.2, review E3)."""
    return _redrawn(counts, n, repaired_scale(epsilon / N_SETS), bits)


def repaired_scale(epsilon: Fraction) -> Fraction:
    """Return the least scale, to nine digits upwards, at which re-drawn noise on one count spends epsilon."""

    def excess(rate: float) -> float:
        return rate + math.log(2 - math.exp(-rate)) - float(epsilon)

    rate = optimize.brentq(excess, float(epsilon) / 2, float(epsilon), xtol=1e-13)
    return Fraction(math.ceil(10**9 / rate) + 1, 10**9)


def multinomial_dirichlet(counts: IntArray, n: int, epsilon: Fraction, bits: RandomBits) -> IntArray:
    """Draw a proportion from Beta(alpha + n_1, alpha + n - n_1) for each set, and the set from it.

    alpha = n / (exp(epsilon / m) - 1): each set spends epsilon / m, as long as the proportions stay inside (5.4).
    """
    alpha = n / math.expm1(epsilon / N_SETS)
    return _beta_binomial(alpha + counts[:, None], alpha + n - counts[:, None], n, N_SETS, bits.generator())


def mcclure_reiter(counts: IntArray, n: int, epsilon: Fraction, bits: RandomBits) -> IntArray:
    """Draw one set from the proportion (n_1 + alpha) / (n + 2 alpha), alpha = 1 / (exp(epsilon / n) - 1) (5.4)."""
    alpha = 1 / math.expm1(epsilon / n)
    share = (counts + alpha) / (n + 2 * alpha)
    ones: IntArray = bits.generator().binomial(n, share)[:, None].astype(np.int64)
    return ones


METHODS: dict[str, Callable[[IntArray, int, Fraction, RandomBits], IntArray]] = {
    "modips-published": published,
    "modips-plug-in": plug_in,
    "laplace-one-count": one_count,
    "laplace-both-counts": both_counts,
    "laplace-redrawn-published": redrawn_published,
    "laplace-redrawn": redrawn,
    "multinomial-dirichlet": multinomial_dirichlet,
    "mcclure-reiter": mcclure_reiter,
}
"""Each takes the counts of ones by replicate, n, the total epsilon and bits; returns ones by replicate and set."""


def _noise(scale: Fraction, counts: IntArray, bits: RandomBits) -> IntArray:
    return discrete_laplace(scale, len(counts) * N_SETS, bits).reshape(len(counts), N_SETS)


def _redrawn(counts: IntArray, n: int, scale: Fraction, bits: RandomBits) -> IntArray:
    found = np.repeat(counts, N_SETS)
    waiting = np.arange(len(found))
    while len(waiting):
        drawn = np.repeat(counts, N_SETS)[waiting] + discrete_laplace(scale, len(waiting), bits)
        inside = (drawn >= 0) & (drawn <= n)
        found[waiting[inside]] = drawn[inside]
        waiting = waiting[~inside]
    return found.reshape(len(counts), N_SETS)


def _beta_binomial(
    a: NDArray[np.floating[Any]], b: NDArray[np.floating[Any]], n: int, n_sets: int, rng: np.random.Generator
) -> IntArray:
    share = rng.beta(np.broadcast_to(a, (len(a), n_sets)), np.broadcast_to(b, (len(b), n_sets)))
    return rng.binomial(n, share).astype(np.int64)
