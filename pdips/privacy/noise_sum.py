"""Weighted sums of independent noise: their variance, and how wide an interval must be
to hold them.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from scipy import optimize

from pdips.arrays import FloatArray
from pdips.privacy.noise import discrete_laplace_variance

# Of the normal variable that is added before the law is inverted, in the sum's
# deviations
SMOOTHING = 5e-4
SMOOTHING_REACH = 5.0
SMOOTHING_MISSED = 6e-7
"""A normal variable is further than this many standard deviations from 0 with less than
this probability.
"""

FREQUENCIES = 2**18
NEGLIGIBLE = 1e-13
TAIL = math.log(2e10)

ROOT = 1e-6  # Accuracy of widths, in standard deviations


@dataclass(frozen=True)
class Terms:
    """Independent draws of the same noise with the same weight in a sum."""

    weight: float
    n: int
    scale: Fraction
    law: Literal["laplace", "gaussian"] = "laplace"

    @property
    def each(self) -> float:
        """Variance of one draw, without the weight."""
        if self.law == "laplace":
            return discrete_laplace_variance(self.scale)
        return float(self.scale)

    @property
    def variance(self) -> float:
        """Variance of all draws in the sum."""
        return self.n * self.weight**2 * self.each

    @property
    def steepest(self) -> float:
        """The tilt from which on Laplace noise has no exponential moment."""
        return 2 * math.asinh(math.sqrt(0.5 / self.each)) / abs(self.weight)


@dataclass(frozen=True)
class NoiseSum:
    """A weighted sum of independent noise, which is symmetric about 0."""

    terms: tuple[Terms, ...]
    normal_variance: float = 0.0

    @property
    def variance(self) -> float:
        return sum(part.variance for part in self.terms) + self.normal_variance

    @property
    def standard_error(self) -> float:
        """Its standard deviation."""
        return math.sqrt(self.variance)

    def averaged(self, n: int) -> "NoiseSum":
        """Return the mean of n independent sums."""
        terms = [
            replace(part, weight=part.weight / n, n=part.n * n) for part in self.terms
        ]
        return NoiseSum(tuple(terms), self.normal_variance)

    def scaled(self, factor: float) -> "NoiseSum":
        """Return the sum in another unit."""
        terms = tuple(replace(part, weight=part.weight * factor) for part in self.terms)
        return NoiseSum(terms, self.normal_variance * factor**2)

    def half_width(self, level: float) -> float:
        """Return a number that the sum is within of 0 with probability ``level`` or
        more, half a percent above at most.

        A normal variable G of standard deviation tau = 0.0005 sd makes the law of X + G
        smooth. P(|X| <= q + 5 tau) is at least P(|X + G| <= q) - P(|G| > 5 tau), so q
        at level + 6e-7, plus 5 tau, is enough for X. The law of X + G on a circle of
        circumference 2 A is q / A + sum_k 2 sin(pi k q / A) phi(pi k / A) / (pi k); A
        is such that X is beyond it with probability below 1e-10 (Chernoff). Discrete
        Gaussian parts are taken as normal ones, and one of their steps is added.
        """
        deviation = self.standard_error
        if not deviation:
            return 0.0
        reach = self._reach()
        finest = 6 * reach / (math.pi * FREQUENCIES)
        smoothing = max(SMOOTHING * deviation, finest)
        count = min(math.ceil(6 * reach / (math.pi * smoothing)), FREQUENCIES)
        numbers = np.arange(1, count + 1, dtype=np.float64)
        frequency = numbers * (math.pi / reach)
        height = self._characteristic(frequency, smoothing) * 2 / (math.pi * numbers)
        kept = np.abs(height) > NEGLIGIBLE
        frequency = frequency[kept]
        height = height[kept]
        wanted = level + SMOOTHING_MISSED

        def excess(q: float) -> float:
            waves = float(height @ np.sin(frequency * q))
            return q / reach + waves - wanted

        weights = [abs(part.weight) for part in self.terms if part.law == "gaussian"]
        step = max(weights, default=0.0)
        root = float(optimize.brentq(excess, 0.0, reach, xtol=ROOT * deviation))
        return root + ROOT * deviation + SMOOTHING_REACH * smoothing + step

    def _characteristic(self, frequency: Any, smoothing: float) -> FloatArray:
        """Return the characteristic function of the sum and a normal variable."""
        log_height = -(self._normal() + smoothing**2) * frequency**2 / 2
        for part in self.terms:
            if part.law == "laplace":
                # that of a discrete Laplace of variance v: 1 / (1 + 2 v sin^2(t / 2))
                squared = np.sin(part.weight * frequency / 2) ** 2
                log_height -= part.n * np.log1p(2 * part.each * squared)
        return np.asarray(np.exp(log_height))

    def _normal(self) -> float:
        """Variance of the parts that are normal, or taken as such."""
        gaussian = [part.variance for part in self.terms if part.law == "gaussian"]
        return self.normal_variance + sum(gaussian)

    def _reach(self) -> float:
        """Return what the sum is beyond with probability below 1e-10, by Chernoff's
        bound.
        """
        laplace = [part for part in self.terms if part.law == "laplace"]
        steepest = [part.steepest for part in laplace if part.weight and part.each]
        if steepest:
            tilts = np.geomspace(1e-3, 0.97, 60) * min(steepest)
        else:
            tilts = np.geomspace(0.1, 10, 60) / self.standard_error
        return float(min((TAIL + self._log_moment(tilt)) / tilt for tilt in tilts))

    def _log_moment(self, tilt: float) -> float:
        log_moment = self._normal() * tilt**2 / 2
        for part in self.terms:
            if part.law == "laplace":
                squared = math.sinh(part.weight * tilt / 2) ** 2
                log_moment -= part.n * math.log1p(-2 * part.each * squared)
        return log_moment
