"""Mean and variance of a record given its linear predictor, on the scale on which the
ends of the outcome's range are -1 and 1.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import expit, pdtr

from pdips.arrays import FloatArray
from pdips.groups.design import GroupDesign

LARGEST_PREDICTOR = 40.0
# Deviations of a count above its mean up to which the upper bound is felt
FELT = 8.0


class GroupOutcome(Protocol):
    """Moments of a record's value on [-1, 1], and draws of it."""

    def moments(self, predictor: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the mean and the variance of a record, each as its predictor."""
        ...

    def natural(self, predictor: FloatArray) -> FloatArray:
        """Return the mean in the outcome's unit; of two levels the probability of the
        second.
        """
        ...

    def draw(self, predictor: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return an outcome for each predictor, in the outcome's unit."""
        ...


@dataclass(frozen=True)
class Bernoulli:
    """An outcome of two levels, with the logit link."""

    def moments(self, predictor: FloatArray) -> tuple[FloatArray, FloatArray]:
        mean = np.tanh(predictor / 2)
        return mean, 1 - mean**2

    def natural(self, predictor: FloatArray) -> FloatArray:
        return np.asarray(expit(predictor))

    def draw(self, predictor: FloatArray, rng: np.random.Generator) -> FloatArray:
        is_second = rng.random(predictor.shape) < expit(predictor)
        return np.asarray(is_second, np.float64)


@dataclass(frozen=True)
class Poisson:
    """A count with the log link, of which records have at most ``upper``."""

    upper: float

    def moments(self, predictor: FloatArray) -> tuple[FloatArray, FloatArray]:
        rate = np.exp(np.minimum(predictor, LARGEST_PREDICTOR))
        mean = rate
        variance = rate
        if np.max(rate + FELT * np.sqrt(rate), initial=0.0) > self.upper:
            mean, variance = self._clipped(rate)
        return 2 * mean / self.upper - 1, 4 * variance / self.upper**2

    def _clipped(self, rate: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the moments of the smaller of a count and the bound."""
        at_most = pdtr(self.upper, rate)
        below = pdtr(self.upper - 1, rate)
        well_below = pdtr(max(self.upper - 2, 0), rate) * (self.upper >= 2)
        mean = rate * below + self.upper * (1 - at_most)
        squares = rate**2 * well_below + rate * below
        squares = squares + self.upper**2 * (1 - at_most)
        return mean, np.maximum(squares - mean**2, 1e-12)

    def natural(self, predictor: FloatArray) -> FloatArray:
        return np.asarray(np.exp(predictor))

    def draw(self, predictor: FloatArray, rng: np.random.Generator) -> FloatArray:
        rate = np.exp(np.minimum(predictor, LARGEST_PREDICTOR))
        return np.minimum(rng.poisson(rate), self.upper).astype(np.float64)


@dataclass(frozen=True)
class Normal:
    """A number with the identity link: its predictor is its mean, in its own unit."""

    lower: float
    upper: float
    deviation: float = 1.0

    @property
    def middle(self) -> float:
        return (self.lower + self.upper) / 2

    @property
    def half(self) -> float:
        return (self.upper - self.lower) / 2

    def moments(self, predictor: FloatArray) -> tuple[FloatArray, FloatArray]:
        mean = (predictor - self.middle) / self.half
        return mean, np.full_like(mean, (self.deviation / self.half) ** 2)

    def natural(self, predictor: FloatArray) -> FloatArray:
        return np.asarray(predictor)

    def draw(self, predictor: FloatArray, rng: np.random.Generator) -> FloatArray:
        return predictor + self.deviation * rng.standard_normal(predictor.shape)


def outcome_of(design: GroupDesign, deviation: float = 1.0) -> GroupOutcome:
    """Return the law of a record's outcome; ``deviation`` is that of a normal one."""
    lower, upper = design.range
    if design.family == "normal":
        return Normal(lower, upper, deviation)
    if design.family == "poisson":
        return Poisson(upper)
    return Bernoulli()
