"""MODIPS in simulation study 2: plug-in and noise-aware posteriors, for all replicates at once.

The noisy statistics come from the code that releases use, and posterior draws of ``modips-plug-in`` and the noise-aware
rows from the sampler of ``models/normal_moments.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.privacy.noise import RandomBits
from pdips.statistics.plan import StatisticPlan
from pdips.statistics.post_processing import LEAST_VARIANCE
from pdips.statistics.statistic import ColumnUnit, Products, Statistic, Sums, unit_of

N_SETS, MANY_SETS = 5, 100
DRAWS = 1000
"""Posterior draws that a release publishes."""

PRIORS = np.array([0.5, 0.5])
"""Of the mean and the standard deviation in units of half the range, as in models/normal_moments.py."""

PROPOSALS, LEAST_WORTH = 4 * DRAWS, 400.0


@dataclass(frozen=True)
class Noisy:
    """Noisy sums of u and u^2, u = (x - middle) / half in [-1, 1].

    Parameters
    ----------
    values : ndarray, shape (replicates, 2)
        As they are published.
    scales : ndarray, shape (2,)
        Of their Laplace noise.
    n : int
        Public number of records.
    unit : ColumnUnit
        Middle and half of the public bounds.
    """

    values: FloatArray
    scales: FloatArray
    n: int
    unit: ColumnUnit


@dataclass(frozen=True)
class Moments:
    """Means and variances of the normal laws that sets are drawn from, and the bounds.

    Parameters
    ----------
    mean, variance : ndarray, shape (replicates, sets)
        In units of the data.
    lower, upper : float
        Bounds.
    n : int
        Records of a set.
    """

    mean: FloatArray
    variance: FloatArray
    lower: float
    upper: float
    n: int


def schema_of(lower: float, upper: float) -> Schema:
    """Return a schema of one column."""
    return Schema.model_validate({"columns": {"x": {"lower": lower, "upper": upper}}})


def sanitize(x: FloatArray, lower: float, upper: float, epsilon: Fraction, bits: RandomBits) -> Noisy:
    """Sanitize the sums of samples, shape (replicates, n), once, with all of epsilon, as ``modips`` does."""
    schema, (runs, n) = schema_of(lower, upper), x.shape
    statistics: dict[str, Statistic] = {"total": Sums(of="x"), "squares": Products(of=("x", "x"))}
    plan = StatisticPlan(
        schema=schema, neighbours="replace-one", statistics=statistics, budget="optimal", amount=epsilon, law="laplace"
    )
    unit = unit_of(schema, "x")
    whole = unit.whole(x.ravel()).reshape(x.shape)
    exact = (whole.sum(axis=1), (whole**2).sum(axis=1))
    one = np.array([part.statistic.unit(schema) for part in plan.parts])
    noisy = [sums + part.noise(runs, bits)[:, 0] for sums, part in zip(exact, plan.parts, strict=True)]
    scales = np.array([float(part.scale) for part in plan.parts]) * one
    return Noisy(np.stack(noisy, axis=1) * one, scales, n, unit)


def settled(noisy: Noisy) -> tuple[FloatArray, FloatArray]:
    """Return sums, and sums of squares about the mean, made possible as ``post_processing.settle`` does."""
    n = noisy.n
    total = np.clip(noisy.values[:, 0], -n, n)
    scatter = np.maximum(np.clip(noisy.values[:, 1], -n, n) - total**2 / n, LEAST_VARIANCE * n)
    return total, scatter


def plug_in(noisy: Noisy, n_draws: int, rng: np.random.Generator) -> FloatArray:
    """Draw (mean, standard deviation) in units of u, noise ignored; shape (replicates, draws, 2)."""
    from pdips_papers.modips.normal_kernels import plug_in as draw

    found: FloatArray = draw(*settled(noisy), float(noisy.n), PRIORS, n_draws, rng)
    return found


def noise_aware(noisy: Noisy, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Draw (mean, standard deviation) in units of u, (replicates, ``DRAWS``, 2), and say what proposals were worth."""
    from pdips_papers.modips.normal_kernels import noise_aware as draw

    found: tuple[FloatArray, FloatArray] = draw(
        noisy.values, noisy.scales, float(noisy.n), PRIORS, DRAWS, PROPOSALS, LEAST_WORTH, rng
    )
    return found


def moments(noisy: Noisy, draws: FloatArray) -> Moments:
    """Return draws in units of the data."""
    unit = noisy.unit
    lower, upper = unit.bounds
    return Moments(unit.middle + unit.half * draws[..., 0], (unit.half * draws[..., 1]) ** 2, lower, upper, noisy.n)


def published(
    mean: FloatArray, variance: FloatArray, n: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Draw from the paper's posterior under the prior 1 / sigma^2, noisy moments taken as exact."""
    drawn = (n - 1) * variance / rng.chisquare(n - 1, variance.shape)
    return mean + np.sqrt(drawn / n) * rng.standard_normal(mean.shape), drawn


def estimates_of_sets(found: Moments, rng: np.random.Generator) -> Mapping[str, tuple[FloatArray, FloatArray]]:
    """Draw a set at each draw, and return what the analyst estimates: by parameter, value and squared standard error.

    The sets are never held, see :func:`pdips_papers.modips.normal_kernels.moments_of_sets`.
    """
    from pdips_papers.modips.normal_kernels import moments_of_sets

    mean, sd = np.ascontiguousarray(found.mean), np.sqrt(found.variance)
    return estimates(*moments_of_sets(mean, sd, found.lower, found.upper, found.n, rng), found.n)


def estimates(first: Any, second: Any, fourth: Any, n: int) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return estimates of mean and variance with their squared standard errors, as in section 4.2.

    Parameters
    ----------
    first, second, fourth : ndarray
        Means of sets, and moments about them, divisor n.
    n : int
        Records of a set.
    """
    variance = second * n / (n - 1)
    kurtosis = np.divide(fourth, second**2, out=np.full(first.shape, 3.0), where=second > 0) - 3
    spread = variance**2 * np.maximum(2 / (n - 1) + kurtosis / n, 0)
    return {"mu": (first, variance / n), "s2": (variance, spread)}


def posterior_intervals(found: Moments) -> dict[str, tuple[FloatArray, FloatArray, FloatArray]]:
    """Return by parameter the mean of posterior draws and the ends of their central 95 %."""
    low, high = round(0.025 * (found.mean.shape[1] - 1)), round(0.975 * (found.mean.shape[1] - 1))
    intervals = {}
    for name, values in (("mu", found.mean), ("s2", found.variance)):
        ordered = np.partition(values, (low, high), axis=1)
        intervals[name] = (values.mean(axis=1), ordered[:, low], ordered[:, high])
    return intervals
