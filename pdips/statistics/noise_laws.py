"""The laws of the noise on released counts, as a likelihood sees them."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError


class NoiseLaw(Protocol):
    """The law of the noise on a count, up to a constant."""

    def log_weights(self, noise: IntArray) -> FloatArray:
        """Return log P(noise) up to a constant, elementwise."""
        ...

    def reach(self, tilt: float, nats: float) -> float:
        """Return from where on log P(z) + tilt z is below -nats for z > 0; infinite if nowhere."""
        ...


@dataclass(frozen=True)
class LaplaceLaw:
    """Discrete Laplace noise, as :func:`pdips.privacy.noise.discrete_laplace` draws it.

    Parameters
    ----------
    scale : Fraction
        Scale b in records: P(z) ~ exp(-|z| / b).

    Raises
    ------
    InputError
        If the scale is not above 0.
    """

    scale: Fraction

    def __post_init__(self) -> None:
        _check_scale(self.scale, "scale")

    def log_weights(self, noise: IntArray) -> FloatArray:
        """Return -|noise| / b."""
        return np.asarray(-np.abs(noise) * float(1 / self.scale), dtype=np.float64)

    def reach(self, tilt: float, nats: float) -> float:
        """Return nats / (1 / b - tilt)."""
        rate = float(1 / self.scale) - tilt
        return nats / rate if rate > 0 else math.inf


@dataclass(frozen=True)
class GaussianLaw:
    """Discrete Gaussian noise, as :func:`pdips.privacy.noise.discrete_gaussian` draws it.

    Parameters
    ----------
    variance : Fraction
        The parameter sigma^2 in squared records: P(z) ~ exp(-z^2 / (2 sigma^2)).

    Raises
    ------
    InputError
        If the variance is not above 0.
    """

    variance: Fraction

    def __post_init__(self) -> None:
        _check_scale(self.variance, "variance")

    def log_weights(self, noise: IntArray) -> FloatArray:
        """Return -noise^2 / (2 sigma^2)."""
        return np.asarray(noise.astype(np.float64) ** 2 * (-0.5 * float(1 / self.variance)), dtype=np.float64)

    def reach(self, tilt: float, nats: float) -> float:
        """Return the positive root of z^2 / (2 sigma^2) - tilt z = nats."""
        variance = float(self.variance)
        return tilt * variance + math.sqrt((tilt * variance) ** 2 + 2 * variance * nats)


def _check_scale(value: Any, name: str) -> None:
    if not isinstance(value, int | Fraction) or isinstance(value, bool) or value <= 0:
        raise InputError(f"{name} of the noise must be a Fraction above 0, got {value!r}")
