"""Simulation study 2 of Bowen and Liu (2020): mean and variance of a normal sample
within public bounds.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.inference import Rule
from pdips.privacy.loss import positive
from pdips.privacy.noise import (
    RandomBits,
    discrete_laplace,
    discrete_laplace_variance,
    quantise,
)
from pdips.registry import find
from pdips.report.formats import MINUS
from pdips.statistics.plan import LEAST_VARIANCE, Statistic, StatisticPlan
from pdips.statistics.statistic import Products, Sums, unit_of
from pdips_papers.harness.batch import release_each, stacked
from pdips_papers.harness.curves import CurveFigures, CurveStudy, methods_of, suffix_of
from pdips_papers.harness.measures import combine, interval_summary, summary
from pdips_papers.harness.study import Finding
from pdips_papers.modips import claims, normal_posteriors
from pdips_papers.modips.cell_histograms import Shares, noisy_shares, one_step
from pdips_papers.modips.claims import PARAMETERS
from pdips_papers.modips.location_model import N_SETS, Bounds, Records

SIZES = (20, 100, 1000)
LOWERS = (-3, -4)
UPPER = 4
PUBLIC_BINS = {20: 7, 100: 10, 1000: 21}
"""The paper's median numbers of bins, printed in its section 4.2: public, unlike
Scott's rule on the data.
"""

STEPS = 1024
"""Grid steps between the bounds: records are rounded to it before sums are taken
(docs/proofs/modips.md, section 1).
"""

TRUTH = {"mu": 0.0, "s2": 1.0}
MANY_SETS = 100

DRAWS = 1000
"""Posterior draws that a release publishes."""

PRIORS = np.array([0.5, 0.5])
"""Of the mean and the standard deviation in units of half the range, as in
models/normal_moments.py.
"""

PROPOSALS = 4 * DRAWS
LEAST_WORTH = 400.0

type Estimates = Mapping[str, tuple[FloatArray, FloatArray]]


SHIPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "perturbed-histogram": (
        "perturbed-histogram",
        {"n_sets": N_SETS, "split": "per-set"},
    ),
    "sanitizer-on-bins": ("laplace-sanitizer", {"n_sets": N_SETS, "split": "per-set"}),
    "smoothed-histogram": ("smoothed-histogram", {}),
}
"""The rows that are releases of shipped mechanisms on public bins, and their settings
but epsilon.
"""


@dataclass(frozen=True)
class Sample:
    """Samples ``x``, shape (replicates, n), within public bounds; their true mean is 0,
    their true variance 1.
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


class NormalMoments(CurveStudy):
    """``pdips study normal-moments``."""

    name: ClassVar[str] = "normal-moments"
    title: ClassVar[str] = (
        "Mean and variance from synthetic sets: simulation study "
        "2 of Bowen and Liu (2020)"
    )
    default_replicates: ClassVar[int] = 5000
    labels: ClassVar[dict[str, str]] = {
        f"{parameter}, n={n}, lower={lower}": f"{label}, n = {n:,}, bounds {lower} "
        f"to {UPPER}".replace("-", MINUS)
        for lower in LOWERS
        for parameter, label in PARAMETERS.items()
        for n in SIZES
    }
    methods = methods_of("binary", "modips", "normal-moments")
    headlines = tuple(f"{parameter}, n=100, lower=-3" for parameter in PARAMETERS)
    families: ClassVar[dict[str, tuple[str, ...]]] = {
        "MODIPS": (
            "original",
            "multiple-synthesis",
            "perturbed-histogram",
            *methods_of("modips"),
        ),
        "histograms and moments": tuple(
            name
            for name in methods
            if not name.startswith("modips") and "-by-" not in name
        ),
        "rules for bins": (
            "original",
            *(name for name in methods if name.startswith("perturbed")),
        ),
    }
    cases = tuple(
        (f"lower={lower}-n={n}-", {"n": n, "lower": lower})
        for lower in LOWERS
        for n in SIZES
    )

    def run(self, arguments: Mapping[str, Any], seed: int) -> list[dict[str, Any]]:
        """Draw the data of a batch once, and synthesize them by every method at every
        epsilon.
        """
        rng = np.random.default_rng(seed)
        n = arguments["n"]
        lower = arguments["lower"]
        bits = RandomBits(rng)
        drawn = rng.standard_normal((arguments["replicates"], n))
        sample = Sample(np.clip(drawn, lower, UPPER), lower, UPPER, PUBLIC_BINS[n])
        tables = stacked(
            sample.x, {"lower": lower, "upper": UPPER, "bins": sample.n_bins}
        )
        rows = measured("original", sample, sample.x[:, None])
        rows += measured("multiple-synthesis", sample, multiple_synthesis(sample, rng))
        for spelled in arguments["epsilons"]:
            epsilon = positive(spelled, "epsilon")
            suffix = suffix_of(spelled)
            for method, synthesize in METHODS.items():
                rows += measured(
                    method, sample, synthesize(sample, epsilon, bits), suffix
                )
            for method in SHIPPED:
                rows += measured(
                    method, sample, shipped(method, tables, epsilon, bits), suffix
                )
            rows += modips_rows(sample, epsilon, bits, suffix)
        return rows

    def findings(self, table: pd.DataFrame) -> list[Finding]:
        """Hold the claims of section 4.2 against the table."""
        return claims.moments.judge(CurveFigures(table, self))


def measured(
    method: str, sample: Sample, sets: FloatArray, suffix: str = ""
) -> list[dict[str, Any]]:
    """Estimate mean and variance from synthetic sets, shape (replicates, sets, n), as
    section 4.2 does.
    """
    mean = sets.mean(axis=2)
    square = (sets - mean[..., None]) ** 2
    second = square.mean(axis=2)
    fourth = np.einsum("ijk,ijk->ij", square, square) / sample.n
    return _combined(method, sample, estimates(mean, second, fourth, sample.n), suffix)


def _combined(
    method: str, sample: Sample, found: Estimates, suffix: str, rule: Rule = "sanitized"
) -> list[dict[str, Any]]:
    case = f"n={sample.n}, lower={sample.lower}"
    return [
        row
        for name, truth in TRUTH.items()
        for row in summary(
            f"{method}, {name}, {case}", suffix, combine(*found[name], rule), truth
        )
    ]


def modips_rows(
    sample: Sample, epsilon: Fraction, bits: RandomBits, suffix: str
) -> list[dict[str, Any]]:
    """Measure sets of MODIPS, published and sound, and the noise-aware posterior
    itself; the sets are never held.
    """
    rng = bits.generator()
    n = float(sample.n)
    middle = (sample.lower + sample.upper) / 2
    half = sample.range / 2
    noisy, scales = sanitize(sample, epsilon, bits)
    total, scatter = settled(noisy, n)
    plugged = normal_posteriors.plug_in(total, scatter, n, PRIORS, N_SETS, rng)
    draws, _ = normal_posteriors.noise_aware(
        noisy, scales, n, PRIORS, DRAWS, PROPOSALS, LEAST_WORTH, rng
    )

    def in_units(drawn: FloatArray) -> tuple[FloatArray, FloatArray]:
        return middle + half * drawn[..., 0], (half * drawn[..., 1]) ** 2

    laws: dict[str, tuple[tuple[FloatArray, FloatArray], Rule]] = {
        "modips-published": (_published(sample, epsilon, bits), "sanitized"),
        "modips-plug-in": (in_units(plugged), "sanitized"),
        "modips-aware": (in_units(draws[:, :N_SETS]), "posterior-predictive"),
        "modips-aware-many": (in_units(draws[:, :MANY_SETS]), "posterior-predictive"),
    }
    rows = []
    for method, ((mean, variance), rule) in laws.items():
        moments = normal_posteriors.moments_of_sets(
            np.ascontiguousarray(mean),
            np.sqrt(variance),
            sample.lower,
            sample.upper,
            sample.n,
            rng,
        )
        rows += _combined(method, sample, estimates(*moments, sample.n), suffix, rule)
    return rows + _posterior_rows(sample, in_units(draws), suffix)


def _posterior_rows(
    sample: Sample, draws: tuple[FloatArray, FloatArray], suffix: str
) -> list[dict[str, Any]]:
    """Measure the noise-aware posterior, of means and variances drawn from it."""
    low = round(0.025 * (DRAWS - 1))
    high = round(0.975 * (DRAWS - 1))
    rows = []
    for name, values in zip(TRUTH, draws, strict=True):
        ordered = np.partition(values, (low, high), axis=1)
        interval = values.mean(axis=1), ordered[:, low], ordered[:, high]
        row = f"modips-posterior, {name}, n={sample.n}, lower={sample.lower}"
        rows += interval_summary(row, suffix, interval, TRUTH[name])
    return rows


def settled(noisy: FloatArray, n: float) -> tuple[FloatArray, FloatArray]:
    """Make noisy sums possible, as ``pdips.statistics.plan.settle`` does; return sums,
    and squares about their mean.
    """
    total: FloatArray = np.clip(noisy[:, 0], -n, n)
    squares = np.clip(noisy[:, 1], -n, n)
    scatter: FloatArray = np.maximum(squares - total**2 / n, LEAST_VARIANCE * n)
    return total, scatter


def _published(
    sample: Sample, epsilon: Fraction, bits: RandomBits
) -> tuple[FloatArray, FloatArray]:
    """Draw the parameters of each set under the prior 1 / sigma^2, noisy moments of its
    own taken as exact.
    """
    rng = bits.generator()
    n = sample.n
    mean, variance = clamped(sample, *noisy_moments(sample, epsilon, bits))
    drawn = (n - 1) * variance / rng.chisquare(n - 1, variance.shape)
    return mean + np.sqrt(drawn / n) * rng.standard_normal(mean.shape), drawn


def multiple_synthesis(sample: Sample, rng: np.random.Generator) -> FloatArray:
    """Draw sets from the posterior predictive law under the prior 1 / sigma^2; no
    privacy.
    """
    size = (len(sample.x), N_SETS)
    degrees = sample.n - 1
    squares = sample.x.var(axis=1, ddof=1)[:, None] * degrees
    variance = squares / rng.chisquare(degrees, size)
    errors = np.sqrt(variance / sample.n) * rng.standard_normal(size)
    mean = sample.x.mean(axis=1)[:, None] + errors
    return _normal_sets(mean, variance, sample.n, rng)


def moments_as_printed(
    sample: Sample, epsilon: Fraction, bits: RandomBits
) -> FloatArray:
    """Draw sets from N(mean*, S2*), both noisy, at epsilon / 2m each; what is out of
    bounds moves to them.
    """
    return _from_moments(sample, *noisy_moments(sample, epsilon, bits), bits)


def noisy_moments(
    sample: Sample, epsilon: Fraction, bits: RandomBits
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return means, counted from the midpoint, and S^2 of each set, at epsilon / 2m
    each; shape (replicates, sets).

    Sensitivities R / n of the mean and R^2 / n of S^2 (5.5). Exact: on a grid of R /
    1024, the sum changes by 1024 steps at most, and the integer n sum u^2 - (sum u)^2 =
    n (n - 1) S^2 by (n - 1) 1024^2.
    """
    units = _units(sample)
    n = sample.n
    step = sample.range / STEPS
    share = epsilon / (2 * N_SETS)
    total = units.sum(axis=1)
    squares = (units**2).sum(axis=1)
    noisy_total = total[:, None] + _noise(STEPS / share, len(total), bits)
    noise = _noise((n - 1) * STEPS**2 / share, len(total), bits)
    noisy_spread = (n * squares - total**2)[:, None] + noise
    variance = noisy_spread * (step**2 / (n * (n - 1)))
    return noisy_total * (step / n), variance


def moments_about_the_middle(
    sample: Sample, epsilon: Fraction, bits: RandomBits
) -> FloatArray:
    """Do the same from noisy sums of u and u^2, u the distance from the midpoint of the
    bounds.

    Replacing a record changes sum u by 1024 grid steps at most and sum u^2 by 512^2
    (5.5, review E5): in S^2 about a quarter of what the printed sensitivity costs,
    unless n epsilon is so small that the square of the noisy sum counts. What noise
    adds to that square on average is taken off.
    """
    units = _units(sample)
    n = sample.n
    step = sample.range / STEPS
    share = epsilon / (2 * N_SETS)
    total = units.sum(axis=1)[:, None] + _noise(STEPS / share, len(units), bits)
    squares = (units**2).sum(axis=1)[:, None] + _noise(
        (STEPS // 2) ** 2 / share, len(units), bits
    )
    square_of_total = total.astype(np.float64) ** 2 - discrete_laplace_variance(
        STEPS / share
    )
    variance = (squares - square_of_total / n) * (step**2 / (n - 1))
    return _from_moments(sample, total * (step / n), variance, bits)


def perturbed_published(
    sample: Sample, epsilon: Fraction, bits: RandomBits, rule: str = "scott"
) -> FloatArray:
    """Perturb the histogram as printed: Scott's rule on the data, noise of scale m /
    epsilon (sensitivity 1).

    The bins give away the sample's standard deviation, so no epsilon is finite (5.3).
    """
    return _by_histogram(
        sample, partial(noisy_shares, scale=N_SETS / epsilon, bits=bits), bits, rule
    )


def shipped(
    method: str, tables: Table, epsilon: Fraction, bits: RandomBits
) -> FloatArray:
    """Release each sample on public bins by a shipped mechanism; return records, shape
    (replicates, sets, n).
    """
    name, settings = SHIPPED[method]
    return release_each(
        find(name)(epsilon=epsilon, **settings), tables, bits.generator()
    )


def smoothed_published(
    sample: Sample, epsilon: Fraction, bits: RandomBits
) -> FloatArray:
    """Draw one set from (1 - lambda) f + lambda uniform, bins by Scott's rule on the
    data: no epsilon is finite.
    """

    def shares(counts: IntArray) -> FloatArray:
        n = sample.n
        n_bins = counts.shape[2]
        uniform = n_bins / (n_bins + n * np.expm1(float(epsilon / n)))
        return np.asarray((1 - uniform) * counts / n + uniform / n_bins)

    return _by_histogram(sample, shares, bits)


def _by_histogram(
    sample: Sample, shares: Shares, bits: RandomBits, rule: str = "scott"
) -> FloatArray:
    """Draw sets from shares made of the counts in bins of equal width, as many as a
    rule says.
    """
    middle = np.array([[(sample.lower + sample.upper) / 2]])
    half = np.array([sample.range / 2])
    data = Records(
        np.zeros((len(sample.x), 1, sample.n), dtype=np.int64),
        sample.x[:, None, :, None],
    )
    bins = numbers_of_bins(sample, rule)[:, None]
    return one_step(data, Bounds(middle, half), bins, shares, bits.generator()).z[
        ..., 0
    ]


METHODS: dict[str, Callable[[Sample, Fraction, RandomBits], FloatArray]] = {
    "moments-as-printed": moments_as_printed,
    "moments-about-the-middle": moments_about_the_middle,
    "perturbed-histogram-published": perturbed_published,
    "perturbed-histogram-by-sturges": partial(perturbed_published, rule="sturges"),
    "perturbed-histogram-by-freedman": partial(
        perturbed_published, rule="freedman-diaconis"
    ),
    "smoothed-histogram-published": smoothed_published,
}
"""Each takes samples, the total epsilon and bits; returns synthetic records, shape
(replicates, sets, n).
"""


def _units(sample: Sample) -> IntArray:
    """Return the records as whole grid steps from the midpoint of the bounds."""
    step = Fraction(sample.range) / STEPS
    return quantise(sample.x - (sample.lower + sample.upper) / 2, step)


def _noise(scale: Fraction, n_rows: int, bits: RandomBits) -> IntArray:
    return discrete_laplace(scale, n_rows * N_SETS, bits).reshape(n_rows, N_SETS)


def _from_moments(
    sample: Sample, mean: NDArray[Any], variance: NDArray[Any], bits: RandomBits
) -> FloatArray:
    """Draw normal sets from noisy moments, and move what is out of bounds."""
    sets = _normal_sets(*clamped(sample, mean, variance), sample.n, bits.generator())
    return np.clip(sets, sample.lower, sample.upper, out=sets)


def clamped(
    sample: Sample, mean: NDArray[Any], variance: NDArray[Any]
) -> tuple[FloatArray, FloatArray]:
    """Move noisy moments, means counted from the midpoint, to what is possible; return
    means as they are.
    """
    half = sample.range / 2
    n = sample.n
    inside: FloatArray = np.clip(mean, -half, half) + (sample.lower + sample.upper) / 2
    possible: FloatArray = np.clip(variance, 0.0, half**2 * n / (n - 1))
    return inside, possible


def _normal_sets(
    mean: NDArray[Any], variance: NDArray[Any], n: int, rng: np.random.Generator
) -> FloatArray:
    standard = rng.standard_normal((*mean.shape, n))
    deviations = np.sqrt(variance)[..., None] * standard
    return np.asarray(mean[..., None] + deviations)


def numbers_of_bins(sample: Sample, rule: str = "scott") -> IntArray:
    """Return the number of bins of each sample by a rule: Scott's, Sturges', or that of
    Freedman and Diaconis.
    """
    if rule == "sturges":
        return np.full(len(sample.x), math.ceil(math.log2(sample.n) + 1))
    if rule == "scott":
        width = 3.5 * sample.x.std(axis=1, ddof=1) * sample.n ** (-1 / 3)
    else:
        width = 2 * stats.iqr(sample.x, axis=1) * sample.n ** (-1 / 3)
    return np.asarray(np.maximum(np.ceil(sample.range / width), 1), dtype=np.int64)


def sanitize(
    sample: Sample, epsilon: Fraction, bits: RandomBits
) -> tuple[FloatArray, FloatArray]:
    """Sanitize the sums of u and u^2, u from -1 to 1 between the bounds, with all of
    epsilon, as ``modips`` does.

    Returned are (replicates, 2) noisy sums and the (2,) scales of their noise.
    """
    schema = Schema.model_validate(
        {"columns": {"x": {"lower": sample.lower, "upper": sample.upper}}}
    )
    statistics: dict[str, Statistic] = {
        "total": Sums(of="x"),
        "squares": Products(of=("x", "x")),
    }
    plan = StatisticPlan(
        schema=schema,
        neighbours="replace-one",
        statistics=statistics,
        budget="optimal",
        amount=epsilon,
        law="laplace",
    )
    whole = unit_of(schema, "x").whole(sample.x.ravel()).reshape(sample.x.shape)
    exact = (whole.sum(axis=1), (whole**2).sum(axis=1))
    one = np.array([part.statistic.unit(schema) for part in plan.parts])
    noisy = [
        sums + part.noise(len(sums), bits)[:, 0]
        for sums, part in zip(exact, plan.parts, strict=True)
    ]
    return np.stack(noisy, axis=1) * one, np.array(
        [float(part.scale) for part in plan.parts]
    ) * one


def estimates(
    first: Any, second: Any, fourth: Any, n: int
) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return estimates of mean and variance with their squared standard errors, as in
    section 4.2.
    """
    variance = second * n / (n - 1)
    kurtosis = (
        np.divide(fourth, second**2, out=np.full(first.shape, 3.0), where=second > 0)
        - 3
    )
    spread = variance**2 * np.maximum(2 / (n - 1) + kurtosis / n, 0)
    return {"mu": (first, variance / n), "s2": (variance, spread)}
