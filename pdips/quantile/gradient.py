"""The K-norm gradient of quantile regression in whole numbers: norms, their sensitivities, the nats of a step.

A record with predictors x = (1, x_1, ..., x_p), each x_j in [-1, 1], adds x (1{y <= x'theta} - tau) to the gradient at
theta. Predictors are read in ``UNITS`` steps and tau = a / q, so q UNITS times the gradient is a vector of whole
numbers.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from pdips.arrays import IntArray
from pdips.data.encoding import UNITS
from pdips.privacy.loss import Neighbours

Norm = Literal["hull", "linf", "l1"]
NORMS: tuple[Norm, ...] = ("hull", "linf", "l1")


@dataclass(frozen=True)
class Gradient:
    """How far from zero the gradient of a quantile regression is, and what one record can change of that.

    Parameters
    ----------
    tau : Fraction
        Which quantile, in (0, 1).
    n_predictors : int
        Number p of predictors beside the intercept.
    norm : {"hull", "linf", "l1"}
        ``"hull"`` is the gauge of the convex hull of all that exchanging a record can do to the gradient,
        abs(g_0) + max_j max(abs(g_j) - abs(g_0), 0) / (2 max(tau, 1 - tau)): of all norms in which one record counts
        for 1 it is the largest, so the noise is the smallest. For tau = 1/2 it is ``"linf"``.

    Notes
    -----
    SOUNDNESS theorem 3.1 with the review's E13 (tight for any norm), in centred predictors. Proof:
    ``docs/proofs/kng.md``, theorem 1.
    """

    tau: Fraction
    n_predictors: int
    norm: Norm = "hull"

    @property
    def _larger(self) -> int:
        """q times the larger of tau and 1 - tau."""
        return max(self.tau.numerator, self.tau.denominator - self.tau.numerator)

    def steps(self, below: IntArray, total: IntArray) -> IntArray:
        """Return the norm of the gradient, in whole steps.

        Parameters
        ----------
        below : ndarray of int64, shape (..., p + 1)
            Sums of x over the records with y <= x'theta, in units; the intercept's first.
        total : ndarray of int64, shape (p + 1,)
            Sums of x over all records.
        """
        gradient = np.abs(self.tau.denominator * below - self.tau.numerator * total)
        if self.norm == "linf" or not self.n_predictors:
            return np.asarray(gradient.max(axis=-1), dtype=np.int64)
        if self.norm == "l1":
            return np.asarray(gradient.sum(axis=-1), dtype=np.int64)
        width = Fraction(2 * self._larger, self.tau.denominator)
        beyond = np.maximum(gradient[..., 1:].max(axis=-1) - gradient[..., 0], 0)
        return np.asarray(width.numerator * gradient[..., 0] + width.denominator * beyond, dtype=np.int64)

    def sensitivity(self, neighbours: Neighbours) -> int:
        """Return how many steps one record more or less, or exchanged, can move the norm; attained."""
        q, larger, p = self.tau.denominator, self._larger, self.n_predictors
        if neighbours == "add-remove":
            alone = UNITS * larger
        else:
            alone = UNITS * (max(q, 2 * larger) if p and self.norm == "linf" else q)
        if self.norm == "l1" and p:
            return UNITS * (larger * (1 + p) if neighbours == "add-remove" else max(2 * p * larger, (1 + p) * q))
        if self.norm == "hull" and p:
            return alone * Fraction(2 * larger, q).numerator
        return alone

    def unit(self, epsilon: Fraction, neighbours: Neighbours) -> Fraction:
        """Return the nats of a step for an exponential mechanism that costs epsilon."""
        return epsilon / (2 * self.sensitivity(neighbours))


@dataclass(frozen=True)
class Entry:
    """One entry of the gradient by itself: a sum of z (1{y <= x'theta} - tau), z = 1 or anything in [-1, 1].

    Parameters
    ----------
    tau : Fraction
        Which quantile, in (0, 1).
    slope : bool
        Whether z may be anything in [-1, 1].

    Notes
    -----
    SOUNDNESS theorem 3.1 in one dimension: exchanging a record changes it by at most max(2 max(tau, 1 - tau), 1), or 1
    if z = 1; one more or less by max(tau, 1 - tau).
    """

    tau: Fraction
    slope: bool

    def steps(self, below: IntArray, total: int) -> IntArray:
        """Return its distance from 0 in whole steps, given sums of z in units over records on or below the line."""
        return np.abs(self.tau.denominator * below - self.tau.numerator * total)

    def sensitivity(self, neighbours: Neighbours) -> int:
        """Return how many steps one record can move it; attained."""
        larger = max(self.tau.numerator, self.tau.denominator - self.tau.numerator)
        if neighbours == "add-remove":
            return UNITS * larger
        return UNITS * max(self.tau.denominator, 2 * larger if self.slope else 0)

    def unit(self, epsilon: Fraction, neighbours: Neighbours) -> Fraction:
        """Return the nats of a step for an exponential mechanism that costs epsilon."""
        return epsilon / (2 * self.sensitivity(neighbours))
