"""The laws that intervals and p-values are read from: Student's t, and a mixture of normals by quadrature."""

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np

from pdips.arrays import FloatArray

AT_ZERO = 0.8
"""How much of the tail below zero goes to a variance of exactly zero; the rest is spread over the others."""

N_NODES = 200
_TAIL = 1e-16
_NEWTON_STEPS = 200


class Law(Protocol):
    """The law of estimand minus estimate, symmetric about 0, for each coefficient."""

    def half_width(self, level: float) -> FloatArray:
        """Return half the width of the central interval of this probability."""
        ...

    def two_sided(self, distance: FloatArray) -> FloatArray:
        """Return the probability of being at least this far off."""
        ...


@dataclass(frozen=True, eq=False)
class Student:
    """Student's t times the root of a variance; normal for infinite degrees of freedom."""

    variance: FloatArray
    degrees: FloatArray

    def half_width(self, level: float) -> FloatArray:
        """Return the quantile at (1 + level) / 2, for each coefficient."""
        from scipy.special import ndtri, stdtrit

        finite = np.where(np.isfinite(self.degrees), self.degrees, 1.0)
        quantile = np.where(np.isinf(self.degrees), ndtri((1 + level) / 2), stdtrit(finite, (1 + level) / 2))
        return np.asarray(np.where(np.isnan(self.degrees), np.nan, quantile * np.sqrt(self.variance)))

    def two_sided(self, distance: FloatArray) -> FloatArray:
        """Return twice the tail beyond each distance; 0 or 1 without variance."""
        from scipy.special import ndtr, stdtr

        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(distance == 0, 0.0, np.abs(distance) / np.sqrt(self.variance))
        finite = np.where(np.isfinite(self.degrees), self.degrees, 1.0)
        tail = np.where(np.isinf(self.degrees), ndtr(-ratio), stdtr(finite, -ratio))
        return np.asarray(np.where(np.isnan(self.degrees + self.variance), np.nan, 2 * tail))


@dataclass(frozen=True, eq=False)
class Mixture:
    """A mixture of centred normals: standard deviations and weights, of shape (..., components)."""

    deviations: FloatArray
    weights: FloatArray

    def two_sided(self, distance: FloatArray) -> FloatArray:
        """Return the weighted sum of both tails beyond each distance."""
        from scipy.special import ndtr

        far = np.abs(distance)[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(far == 0, 0.0, far / self.deviations)
        return np.asarray((2 * ndtr(-ratio) * self.weights).sum(axis=-1))

    def half_width(self, level: float) -> FloatArray:
        """Return where both tails together are 1 - level, by Newton's method.

        Both tails are convex beyond 0, so steps from below never overshoot and the iteration can't fail.
        """
        from scipy.special import ndtri

        least = np.nanmin(np.where(self.weights > 0, self.deviations, np.inf), axis=-1, initial=np.inf)
        half = np.asarray(ndtri((1 + level) / 2) * least)
        for _ in range(_NEWTON_STEPS):
            with np.errstate(divide="ignore", invalid="ignore"):
                normal = np.exp(-0.5 * (half[..., None] / self.deviations) ** 2) / self.deviations
                slope = 2 / np.sqrt(2 * np.pi) * np.nansum(normal * self.weights, axis=-1)
                step = np.where(slope > 0, (self.two_sided(half) - (1 - level)) / slope, 0.0)
            half = half + np.maximum(step, 0)
            if not (step > 1e-12 * half).any():
                break
        return np.asarray(np.where(np.isnan(self.weights).any(axis=-1), np.nan, half))


@cache
def _gauss_legendre() -> tuple[FloatArray, FloatArray]:
    return np.polynomial.legendre.leggauss(N_NODES)


def inverse_chi2(
    sum_of_squares: FloatArray, degrees: float, floor: FloatArray, *, at_floor: float = AT_ZERO
) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights of ``sum_of_squares / chi2``, what falls below a floor partly moved onto it.

    Parameters
    ----------
    sum_of_squares : ndarray of float64
        Of each coefficient, at least 0.
    degrees : float
        Of the chi-square law.
    floor : ndarray of float64
        The least value, of the same shape.
    at_floor : float
        Of the probability below the floor, how much goes onto it.

    Returns
    -------
    nodes, weights : ndarray of float64, shape (..., N_NODES + 1)
        The last node is the floor; weights add up to 1, and are NaN where an input is.

    Notes
    -----
    Gauss-Legendre over the root of the chi-square variable, in which all integrands here are smooth, between its
    quantiles 1e-16 and 1 - 1e-16 within the values that the floor leaves.
    """
    from scipy.special import gammainc, gammaincinv

    half = degrees / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.where(floor > 0, sum_of_squares / floor / 2, np.inf)
        above = gammainc(half, most)
        tiny = above < 1e-250  # there the law of chi2 / most is beta(half, 1), to machine precision
        inner = gammaincinv(half, above * np.array([_TAIL, 1 - _TAIL]).reshape(2, *[1] * above.ndim))
        low = np.where(tiny, _TAIL ** (1 / half), inner[0] / most)
        ends = np.sqrt(2 * np.where(np.isinf(most), inner[0], low * most)), np.sqrt(2 * np.minimum(inner[1], most))
        points, parts = _gauss_legendre()
        if_tiny = np.sqrt(low[..., None]) + (1 - np.sqrt(low[..., None])) * (points + 1) / 2
        roots = ends[0][..., None] + (ends[1] - ends[0])[..., None] * (points + 1) / 2
        relative = np.where(tiny[..., None], if_tiny, roots)
        log_density = (degrees - 1) * np.log(relative) - np.where(tiny[..., None], 0, relative**2 / 2)
        weights = parts * np.exp(log_density - log_density.max(axis=-1, keepdims=True))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        nodes = np.where(tiny[..., None], floor[..., None] / relative**2, sum_of_squares[..., None] / relative**2)
    onto = np.where(np.isnan(sum_of_squares + floor), np.nan, at_floor * (1 - above))[..., None]
    nodes = np.concatenate([np.maximum(nodes, floor[..., None]), floor[..., None]], axis=-1)
    return nodes, np.concatenate([(1 - onto) * weights, onto], axis=-1)
