"""Simulation study 2 of paper 003: mean and variance of a normal sample within public bounds."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.privacy.loss import positive
from pdips.privacy.noise import RandomBits, discrete_laplace, discrete_laplace_variance, quantise
from pdips.report.formats import MINUS
from pdips_papers.harness.epsilon_curves import Curves, Method, batches, epsilons_for, suffix_of
from pdips_papers.harness.framework import Block, Data, Finding, Options, Picture, Task
from pdips_papers.harness.measures import combine, combine_predictive, interval_summary, summary
from pdips_papers.modips import normal_modips as modips
from pdips_papers.modips.modips_words import MODIPS
from pdips_papers.modips.normal_modips import MANY_SETS, N_SETS, Moments, estimates
from pdips_papers.modips.words import normal_findings, text_of

SIZES, LOWERS, UPPER = (20, 100, 1000), (-3, -4), 4
PUBLIC_BINS = {20: 7, 100: 10, 1000: 21}
"""The paper's median numbers of bins, printed in its section 4.2: public, unlike Scott's rule on the data."""

STEPS = 1024
"""Grid steps between the bounds: records are rounded to it before sums are taken (SOUNDNESS 7.2, review E5)."""

CELLS_A_BATCH = 200_000

PARAMETERS = {"mu": "mean", "s2": "variance"}
TRUTH = {"mu": 0.0, "s2": 1.0}

type Estimates = Mapping[str, tuple[FloatArray, FloatArray]]
type Rule = Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]

CURVES = Curves(
    cases={
        f"{parameter}, n={n}, lower={lower}": f"{label}, n = {n:,}, bounds {lower} to {UPPER}".replace("-", MINUS)
        for lower in LOWERS
        for parameter, label in PARAMETERS.items()
        for n in SIZES
    },
    methods={
        "original": Method(label="original data", colour=1),
        "multiple-synthesis": Method(label="multiple synthesis, no privacy", colour=2),
        **MODIPS,
        "moments-as-printed": Method(label="noisy mean and S², normal draws", colour=6),
        "moments-about-the-middle": Method(label="noisy sums about the midpoint, normal draws", colour=5),
        "perturbed-histogram-published": Method(label="perturbed histogram (published)", colour=3, dashed=True),
        "perturbed-histogram": Method(label="perturbed-histogram", colour=3),
        "sanitizer-on-bins": Method(label="laplace-sanitizer on bins", colour=7),
        "smoothed-histogram-published": Method(label="smoothed histogram, one set (published)", colour=4, dashed=True),
        "smoothed-histogram": Method(label="smoothed-histogram, one set", colour=4),
    },
    headlines=tuple(f"{parameter}, n=100, lower=-3" for parameter in PARAMETERS),
    groups={
        "MODIPS": ("original", "multiple-synthesis", "perturbed-histogram", *MODIPS),
        "histograms and moments": (
            "original",
            "multiple-synthesis",
            "moments-as-printed",
            "moments-about-the-middle",
            "perturbed-histogram-published",
            "perturbed-histogram",
            "sanitizer-on-bins",
            "smoothed-histogram-published",
            "smoothed-histogram",
        ),
    },
)


@dataclass(frozen=True)
class Sample:
    """Samples within public bounds.

    Parameters
    ----------
    x : ndarray, shape (replicates, n)
        In units of the true standard deviation, with true mean 0.
    lower, upper : float
        Public bounds.
    n_bins : int
        Public number of bins.
    """

    x: FloatArray
    lower: float
    upper: float
    n_bins: int

    @property
    def n(self) -> int:
        """Number of records."""
        return int(self.x.shape[1])

    @property
    def range(self) -> float:
        """Distance between the bounds."""
        return self.upper - self.lower


class NormalMoments:
    """``pdips study normal-moments``."""

    name = "normal-moments"
    title = "Mean and variance from synthetic sets: simulation study 2 of paper 003"
    default_replicates = 5000
    data: Data = "none"

    def tasks(self, options: Options) -> list[Task]:
        """Return one task for each case and batch of replicates."""
        epsilons = list(epsilons_for(options))
        return [
            Task(
                key=f"lower={lower}-n={n}-batch={number:03}",
                arguments={"n": n, "lower": lower, "replicates": size, "epsilons": epsilons},
            )
            for lower in LOWERS
            for n in SIZES
            for number, size in enumerate(batches(options.replicates, min(1000, CELLS_A_BATCH // n)))
        ]

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw the data of a batch once, and synthesize them by every method at every epsilon."""
        rng = np.random.default_rng(seed)
        n, lower, bits = arguments["n"], arguments["lower"], RandomBits(rng)
        drawn = rng.standard_normal((arguments["replicates"], n))
        sample = Sample(np.clip(drawn, lower, UPPER), lower, UPPER, PUBLIC_BINS[n])
        rows = measured("original", sample, sample.x[:, None])
        rows += measured("multiple-synthesis", sample, multiple_synthesis(sample, rng))
        for spelled in arguments["epsilons"]:
            for method, synthesize in METHODS.items():
                sets = synthesize(sample, positive(spelled, "epsilon"), bits)
                rows += measured(method, sample, sets, suffix_of(spelled))
            rows += modips_rows(sample, positive(spelled, "epsilon"), bits, suffix_of(spelled))
        return rows

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return the long table; the paper draws its results and prints no figures."""
        return CURVES.table(measurements)

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """Return the blocks to print."""
        return CURVES.layout(table)

    def pictures(self, measurements: pd.DataFrame, table: pd.DataFrame) -> list[Picture]:
        """Draw figures 3 and 4 of the paper, and those of its supplement for symmetric bounds."""
        return CURVES.pictures(table)

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Compare the paper's claims with what was found."""
        return normal_findings(table, CURVES)

    def text(self) -> str:
        """Say what was done and what each row spends."""
        return text_of(self.name)


def measured(method: str, sample: Sample, sets: FloatArray, suffix: str = "") -> list[dict[str, Any]]:
    """Estimate mean and variance from synthetic sets, shape (replicates, sets, n), as section 4.2 does."""
    mean = sets.mean(axis=2)
    square = (sets - mean[..., None]) ** 2
    second, fourth = square.mean(axis=2), np.einsum("ijk,ijk->ij", square, square) / sample.n
    return _combined(method, sample, estimates(mean, second, fourth, sample.n), suffix)


def _combined(method: str, sample: Sample, found: Estimates, suffix: str, rule: Rule = combine) -> list[dict[str, Any]]:
    case = f"n={sample.n}, lower={sample.lower}"
    return [
        row
        for name, truth in TRUTH.items()
        for row in summary(f"{method}, {name}, {case}", suffix, rule(*found[name]), truth)
    ]


def modips_rows(sample: Sample, epsilon: Fraction, bits: RandomBits, suffix: str) -> list[dict[str, Any]]:
    """Measure sets of MODIPS, published and sound, and the noise-aware posterior itself."""
    rng, case = bits.generator(), f"n={sample.n}, lower={sample.lower}"
    noisy = modips.sanitize(sample.x, sample.lower, sample.upper, epsilon, bits)
    draws, _ = modips.noise_aware(noisy, rng)
    made: dict[str, tuple[Moments, Rule]] = {
        "modips-published": (_published(sample, epsilon, bits), combine),
        "modips-plug-in": (modips.moments(noisy, modips.plug_in(noisy, N_SETS, rng)), combine),
        "modips-aware": (modips.moments(noisy, draws[:, :N_SETS]), combine_predictive),
        "modips-aware-many": (modips.moments(noisy, draws[:, :MANY_SETS]), combine_predictive),
    }
    rows = []
    for method, (found, rule) in made.items():
        rows += _combined(method, sample, modips.estimates_of_sets(found, rng), suffix, rule)
    for name, interval in modips.posterior_intervals(modips.moments(noisy, draws)).items():
        rows += interval_summary(f"modips-posterior, {name}, {case}", suffix, interval, TRUTH[name])
    return rows


def _published(sample: Sample, epsilon: Fraction, bits: RandomBits) -> Moments:
    """Draw the parameters of each set as in the paper, from noisy moments of its own."""
    mean, variance = clamped(sample, *noisy_moments(sample, epsilon, bits))
    drawn = modips.published(mean, variance, sample.n, bits.generator())
    return Moments(*drawn, sample.lower, sample.upper, sample.n)


def multiple_synthesis(sample: Sample, rng: np.random.Generator) -> FloatArray:
    """Draw sets from the posterior predictive law under the prior 1 / sigma^2; no privacy."""
    size, degrees = (len(sample.x), N_SETS), sample.n - 1
    variance = sample.x.var(axis=1, ddof=1)[:, None] * degrees / rng.chisquare(degrees, size)
    mean = sample.x.mean(axis=1)[:, None] + np.sqrt(variance / sample.n) * rng.standard_normal(size)
    return _normal_sets(mean, variance, sample.n, rng)


def moments_as_printed(sample: Sample, epsilon: Fraction, bits: RandomBits) -> FloatArray:
    """Draw sets from N(mean*, S2*), both noisy, at epsilon / 2m each; what is out of bounds moves to them."""
    return _from_moments(sample, *noisy_moments(sample, epsilon, bits), bits)


def noisy_moments(sample: Sample, epsilon: Fraction, bits: RandomBits) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return means, counted from the midpoint, and S^2 of each set, at epsilon / 2m each; shape (replicates, sets).

    Sensitivities R / n of the mean and R^2 / n of S^2 (5.5). Exact: on a grid of R / 1024, the sum changes by 1024
    steps at most, and the integer n sum u^2 - (sum u)^2 = n (n - 1) S^2 by (n - 1) 1024^2.
    """
    units, n, step = _units(sample), sample.n, sample.range / STEPS
    share = epsilon / (2 * N_SETS)
    total, squares = units.sum(axis=1), (units**2).sum(axis=1)
    noisy_total = total[:, None] + _noise(STEPS / share, len(total), bits)
    noisy_spread = (n * squares - total**2)[:, None] + _noise((n - 1) * STEPS**2 / share, len(total), bits)
    variance = noisy_spread * (step**2 / (n * (n - 1)))
    return noisy_total * (step / n), variance


def moments_about_the_middle(sample: Sample, epsilon: Fraction, bits: RandomBits) -> FloatArray:
    """Do the same from noisy sums of u and u^2, u the distance from the midpoint of the bounds.

    Replacing a record changes sum u by 1024 grid steps at most and sum u^2 by 512^2 (5.5, review E5): in S^2 about a
    quarter of what the printed sensitivity costs, unless n epsilon is so small that the square of the noisy sum counts.
    What noise adds to that square on average is taken off.
    """
    units, n, step = _units(sample), sample.n, sample.range / STEPS
    share = epsilon / (2 * N_SETS)
    total = units.sum(axis=1)[:, None] + _noise(STEPS / share, len(units), bits)
    squares = (units**2).sum(axis=1)[:, None] + _noise((STEPS // 2) ** 2 / share, len(units), bits)
    square_of_total = total.astype(np.float64) ** 2 - discrete_laplace_variance(STEPS / share)
    variance = (squares - square_of_total / n) * (step**2 / (n - 1))
    return _from_moments(sample, total * (step / n), variance, bits)


def perturbed_published(sample: Sample, epsilon: Fraction, bits: RandomBits) -> FloatArray:
    """Perturb the histogram as printed: Scott's rule on the data, noise of scale m / epsilon (sensitivity 1).

    The bins give away the sample's standard deviation, so no epsilon is finite (5.3).
    """
    sets = np.empty((len(sample.x), N_SETS, sample.n))
    for chosen, counts in _by_bins(sample):
        sets[chosen] = _perturbed(sample, counts, N_SETS / epsilon, bits)
    return sets


def perturbed(sample: Sample, epsilon: Fraction, bits: RandomBits) -> FloatArray:
    """Do what ``PerturbedHistogram(split="per-set")`` does: public bins, noise of scale 2 m / epsilon."""
    return _perturbed(sample, _histogram(sample, sample.x, sample.n_bins), 2 * N_SETS / epsilon, bits)


def sanitized(sample: Sample, epsilon: Fraction, bits: RandomBits) -> FloatArray:
    """Do what ``LaplaceSanitizer(split="per-set")`` does: public bins, noise of scale 2 m / epsilon.

    The noisy counts are moved to the nearest nonnegative ones that add up to n, and rounded at random.
    """
    counts = _histogram(sample, sample.x, sample.n_bins)
    nearest = nearest_shares(_noisy(counts, 2 * N_SETS / epsilon, bits), sample.n)
    return _spread_out(sample, rounded(nearest, bits.generator()), bits.generator())


def smoothed_published(sample: Sample, epsilon: Fraction, bits: RandomBits) -> FloatArray:
    """Draw one set from (1 - lambda) f + lambda uniform, bins by Scott's rule on the data: no epsilon is finite."""
    sets = np.empty((len(sample.x), 1, sample.n))
    for chosen, counts in _by_bins(sample):
        sets[chosen] = _smoothed(sample, counts, epsilon, bits)
    return sets


def smoothed(sample: Sample, epsilon: Fraction, bits: RandomBits) -> FloatArray:
    """Draw one set from the smoothed histogram on public bins (5.3)."""
    return _smoothed(sample, _histogram(sample, sample.x, sample.n_bins), epsilon, bits)


METHODS: dict[str, Callable[[Sample, Fraction, RandomBits], FloatArray]] = {
    "moments-as-printed": moments_as_printed,
    "moments-about-the-middle": moments_about_the_middle,
    "perturbed-histogram-published": perturbed_published,
    "perturbed-histogram": perturbed,
    "sanitizer-on-bins": sanitized,
    "smoothed-histogram-published": smoothed_published,
    "smoothed-histogram": smoothed,
}
"""Each takes samples, the total epsilon and bits; returns synthetic records, shape (replicates, sets, n)."""


def nearest_shares(noisy: IntArray, total: int) -> FloatArray:
    """Return the nearest nonnegative values that add up to ``total``, along the last axis."""
    ordered = -np.sort(-noisy, axis=-1)
    excess = (np.cumsum(ordered, axis=-1) - total) / np.arange(1, noisy.shape[-1] + 1)
    last = np.sum(ordered > excess, axis=-1, keepdims=True) - 1
    return np.maximum(noisy - np.take_along_axis(excess, last, axis=-1), 0.0)


def rounded(values: FloatArray, rng: np.random.Generator) -> IntArray:
    """Round to whole numbers with the same total: a systematic sample along the cells in random order."""
    order = np.argsort(rng.random(values.shape), axis=-1)
    reached = np.cumsum(np.take_along_axis(values, order, axis=-1), axis=-1)
    nearest = np.rint(reached)
    reached = np.where(np.abs(reached - nearest) < 1e-6, nearest, reached)
    upto = np.floor(reached + rng.random((*values.shape[:-1], 1)))
    count = np.empty(values.shape, dtype=np.int64)
    np.put_along_axis(count, order, np.diff(upto, prepend=0.0, axis=-1).astype(np.int64), axis=-1)
    return count


def _noisy(counts: IntArray, scale: Fraction, bits: RandomBits) -> IntArray:
    """Add noise to the counts, shape (samples, bins), once for each set: shape (samples, sets, bins)."""
    size = (len(counts), N_SETS, counts.shape[1])
    return counts[:, None] + discrete_laplace(scale, math.prod(size), bits).reshape(size)


def _perturbed(sample: Sample, counts: IntArray, scale: Fraction, bits: RandomBits) -> FloatArray:
    """Draw records from noisy counts, those below 0 taken as 0; evenly where none is above it."""
    weight = np.maximum(_noisy(counts, scale, bits), 0)
    weight[weight.sum(axis=2) == 0] = 1
    shares = weight / weight.sum(axis=2, keepdims=True)
    return _spread_out(sample, bits.generator().multinomial(sample.n, shares), bits.generator())


def _smoothed(sample: Sample, counts: IntArray, epsilon: Fraction, bits: RandomBits) -> FloatArray:
    n, n_bins, rng = sample.n, counts.shape[1], bits.generator()
    uniform = n_bins / (n_bins + n * np.expm1(float(epsilon / n)))
    shares = (1 - uniform) * counts / n + uniform / n_bins
    return _spread_out(sample, rng.multinomial(n, shares)[:, None], rng)


def _units(sample: Sample) -> IntArray:
    """Return the records as whole grid steps from the midpoint of the bounds."""
    step = Fraction(sample.range) / STEPS
    return quantise(sample.x - (sample.lower + sample.upper) / 2, step)


def _noise(scale: Fraction, n_rows: int, bits: RandomBits) -> IntArray:
    return discrete_laplace(scale, n_rows * N_SETS, bits).reshape(n_rows, N_SETS)


def _from_moments(sample: Sample, mean: NDArray[Any], variance: NDArray[Any], bits: RandomBits) -> FloatArray:
    """Draw normal sets from noisy moments, and move what is out of bounds."""
    sets = _normal_sets(*clamped(sample, mean, variance), sample.n, bits.generator())
    return np.clip(sets, sample.lower, sample.upper, out=sets)


def clamped(sample: Sample, mean: NDArray[Any], variance: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
    """Move noisy moments, means counted from the midpoint, to what is possible; return means as they are."""
    half, n = sample.range / 2, sample.n
    inside: FloatArray = np.clip(mean, -half, half) + (sample.lower + sample.upper) / 2
    possible: FloatArray = np.clip(variance, 0.0, half**2 * n / (n - 1))
    return inside, possible


def _normal_sets(mean: NDArray[Any], variance: NDArray[Any], n: int, rng: np.random.Generator) -> FloatArray:
    sets: FloatArray = mean[..., None] + np.sqrt(variance)[..., None] * rng.standard_normal((*mean.shape, n))
    return sets


def _by_bins(sample: Sample) -> Iterator[tuple[IntArray, IntArray]]:
    """Group the samples by Scott's number of bins; lend their numbers and counts, shape (samples, bins)."""
    width = 3.5 * sample.x.std(axis=1, ddof=1) * sample.n ** (-1 / 3)
    n_bins = np.maximum(np.ceil(sample.range / width), 1).astype(np.int64)
    for number in np.unique(n_bins):
        chosen = np.flatnonzero(n_bins == number)
        yield chosen, _histogram(sample, sample.x[chosen], int(number))


def _histogram(sample: Sample, x: FloatArray, n_bins: int) -> IntArray:
    """Count records in bins of equal width, shape (samples, bins)."""
    place = np.minimum(((x - sample.lower) * (n_bins / sample.range)).astype(np.int64), n_bins - 1)
    place += n_bins * np.arange(len(x))[:, None]
    return np.bincount(place.ravel(), minlength=n_bins * len(x)).reshape(len(x), n_bins)


def _spread_out(sample: Sample, counts: IntArray, rng: np.random.Generator) -> FloatArray:
    """Turn counts, shape (samples, sets, bins), into records, even within each bin."""
    n_bins = counts.shape[2]
    place = np.repeat(np.tile(np.arange(n_bins), counts.shape[0] * counts.shape[1]), counts.ravel())
    records: FloatArray = sample.lower + (place + rng.random(len(place))) * (sample.range / n_bins)
    return records.reshape(*counts.shape[:2], sample.n)
