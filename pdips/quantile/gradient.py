"""K-norm gradients of quantile regressions: norms, what one record can change of them, and the density of a line.

A record with predictors x = (1, x_1, ..., x_p), each x_j in [-1, 1], adds x (1{y <= x'theta} - tau) to the gradient at
theta. Mechanisms count it in whole numbers: predictors are read in ``UNITS`` steps and tau = a / q, so q UNITS times
the gradient is a vector of whole numbers. PyMC models take it in doubles.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.encoding import UNITS, in_units
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours, choice

Norm = Literal["hull", "linf", "l1"]
NORMS: tuple[Norm, ...] = ("hull", "linf", "l1")

FINEST_BITS = 36
"""Coefficients are multiples of the outcome's public range over 2 to this power, or a little finer."""

DensityNorm = Literal["l1", "l2", "linf", "hull"]
DENSITY_NORMS: tuple[DensityNorm, ...] = ("l1", "l2", "linf", "hull")


@dataclass(frozen=True, kw_only=True)
class RegressionRecords:
    """What a regression reads of a table; confidential.

    Parameters
    ----------
    outcome : ndarray of float64, shape (records,)
        Within the public bounds.
    predictors : ndarray of float64, shape (records, p)
        What lines are lines in.
    instruments : ndarray of int64, shape (records, p)
        What residuals' signs are summed with, within [-UNITS, UNITS]; in the K-norm gradient of the papers these are
        the predictors. Both depend on their record and on released values only.
    """

    outcome: FloatArray
    predictors: FloatArray
    instruments: IntArray

    @classmethod
    def of(cls, outcome: FloatArray, predictors: FloatArray) -> Self:
        """Return records whose instruments are the predictors, in [-1, 1]."""
        return cls(outcome=outcome, predictors=predictors, instruments=in_units(predictors))

    @cached_property
    def total(self) -> IntArray:
        """Sums of (1, z), z the instruments, over all records, in units."""
        return np.concatenate([[len(self.outcome) * UNITS], self.instruments.sum(axis=0, dtype=np.int64)])

    def some(self, kept: BoolArray) -> Self:
        """Return those records of which ``kept`` says so."""
        predictors, instruments = self.predictors[kept], self.instruments[kept]
        return replace(self, outcome=self.outcome[kept], predictors=predictors, instruments=instruments)

    def residuals(self, line: FloatArray) -> FloatArray:
        """Return the distance of each outcome above a line."""
        away = self.outcome - line[0]
        for slope, column in zip(line[1:], self.predictors.T, strict=True):
            away = away - slope * column
        return np.asarray(away)

    def flattened(self, line: FloatArray) -> "RegressionRecords":
        """Return residuals from the slopes of a line as outcomes without predictors."""
        steep = np.concatenate([[0.0], line[1:]])
        return RegressionRecords.of(self.residuals(steep), np.zeros((len(self.outcome), 0)))


@dataclass(frozen=True, kw_only=True)
class LineRegression:
    """A regression of an outcome on predictors: what is public of it, and how its records are read.

    Parameters
    ----------
    read : callable
        Takes the confidential table and returns what the regression reads of it.
    n_predictors : int
        Number p of predictors beside the intercept.
    lower, upper : float
        Public bounds of the outcome.
    frame : ndarray of float64, shape (p + 1, p + 1), optional
        Takes a line's coefficients to those in predictors that run over [-1, 1]^p, if these aren't such already.
    """

    read: Callable[[Table], RegressionRecords]
    n_predictors: int
    lower: float
    upper: float
    frame: FloatArray | None = None

    @property
    def span(self) -> float:
        """Length of the outcome's public range."""
        return self.upper - self.lower

    @property
    def step(self) -> float:
        """The power of two that coefficients are multiples of."""
        return math.ldexp(1.0, math.frexp(self.span)[1] - FINEST_BITS)

    def start(self) -> FloatArray:
        """Return a public line: flat, at the lower bound."""
        return np.array([math.ceil(self.lower / self.step) * self.step, *[0.0] * self.n_predictors])

    def thinned(self, keep: float, rng: np.random.Generator | None) -> "LineRegression":
        """Return the regression of records that are kept with a public probability, each by a coin of its own."""
        if keep >= 1 or rng is None:
            return self
        return replace(self, read=once(lambda table: _some(self.read(table), keep, rng)))

    def parallel(self, line: FloatArray) -> "LineRegression":
        """Return the regression, without predictors, of residuals from the slopes of a released line.

        Its bounds are those of intercepts of lines with these slopes that touch the outcome's range in the box.
        """
        steep = float(np.abs(line[1:]).sum())
        read = once(lambda table: self.read(table).flattened(line))
        return LineRegression(read=read, n_predictors=0, lower=self.lower - steep, upper=self.upper + steep)


def once[T](work: Callable[[Table], T]) -> Callable[[Table], T]:
    """Return a function that works something out of the table for the first question, and knows it from then on."""
    known: list[T] = []

    def read(table: Table) -> T:
        if not known:
            known.append(work(table))
        return known[0]

    return read


def _some(records: RegressionRecords, keep: float, rng: np.random.Generator) -> RegressionRecords:
    return records.some(rng.random(len(records.outcome)) < keep)


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
    One slope's entry by itself has the sensitivity of ``"linf"`` with one predictor, the intercept's that without any.
    All sensitivities are attained. Proof: ``docs/proofs/kng.md``, theorem 1.
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
        if self.norm == "l1" and p:
            return UNITS * (larger * (1 + p) if neighbours == "add-remove" else max(2 * p * larger, (1 + p) * q))
        alone = larger if neighbours == "add-remove" else q
        if self.norm == "linf" and p and neighbours == "replace-one":
            alone = max(q, 2 * larger)
        if self.norm == "hull" and p:
            alone *= Fraction(2 * larger, q).numerator
        return UNITS * alone


@dataclass(frozen=True, eq=False)
class KNormGradient:
    """The log density of the K-norm gradient mechanism for quantile regression, up to a constant, in doubles.

    For parameters theta, and optionally between public lines, it is -scale * norm(G(theta)) with the gradient
    G(theta) = sum_i x_i (1{y_i <= x_i'theta} - tau).

    Parameters
    ----------
    x : array_like, shape (records, p)
        Covariates, the first column all ones. Confidential.
    y : array_like, shape (records,)
        Outcomes. Confidential.
    tau : float
        The quantile, inside of (0, 1).
    scale : float
        Nats for each unit of the norm, epsilon / (2 * sensitivity) of the caller's norm and neighbours; not negative.
    norm : {"hull", "linf", "l1", "l2"}
        ``"hull"`` is as in :class:`Gradient`, for covariates in [-1, 1].
    floors, ceilings : array_like, shape (lines, p) or (p,), optional
        Coefficients of public lines that x'theta may touch but not cross anywhere on the box of covariates.
    covariates : pair of array_like, shape (p - 1,) or ()
        The public box of covariates without the intercept, for ``floors`` and ``ceilings``.

    Raises
    ------
    InputError
        If shapes, quantile, scale or norm are not what they should be. No message has a record's value in it.
    """

    x: FloatArray = field(repr=False)
    y: FloatArray = field(repr=False)
    tau: float
    scale: float
    norm: DensityNorm = "hull"
    floors: ArrayLike | None = None
    ceilings: ArrayLike | None = None
    covariates: tuple[ArrayLike, ArrayLike] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        """Check everything once and keep arrays."""
        x, y = (np.array(part, dtype=np.float64, order="C") for part in (self.x, self.y))
        _check_records(x, y)
        choice(self.norm, DENSITY_NORMS, "norm")
        if not 0 < self.tau < 1:
            raise InputError(f"tau must lie inside of (0, 1), got {self.tau}")
        if not 0 <= self.scale < np.inf:
            raise InputError(f"scale must be a finite number of nats, not negative, got {self.scale}")
        p = x.shape[1]
        low, high = (finite_vector(side, p - 1, "covariates") for side in self.covariates)
        if not np.all(low <= high):
            raise InputError("covariates must be a pair (lower, upper) with lower <= upper")
        kept = {"x": x, "y": y, "covariates": (low, high)}
        kept |= {name: _lines(getattr(self, name), p, name) for name in ("floors", "ceilings")}
        for name, value in kept.items():
            object.__setattr__(self, name, value)

    @property
    def p(self) -> int:
        """Number of parameters, the intercept among them."""
        return int(self.x.shape[1])

    @property
    def width(self) -> float:
        """The hull's 2 max(tau, 1 - tau)."""
        return 2 * max(self.tau, 1 - self.tau)

    @cached_property
    def lines(self) -> tuple[FloatArray, FloatArray]:
        """Floors and ceilings, shape (lines, p), and 1 for a floor, -1 for a ceiling, shape (lines,)."""
        floors, ceilings = np.asarray(self.floors), np.asarray(self.ceilings)
        return np.vstack([floors, ceilings]), np.repeat([1.0, -1.0], [len(floors), len(ceilings)])


def finite_vector(values: ArrayLike, size: int, name: str) -> FloatArray:
    """Return a number, or one for each parameter, as an array of shape (size,).

    Raises
    ------
    InputError
        If the shape is another, or an entry isn't finite.
    """
    try:
        found = np.array(np.broadcast_to(np.asarray(values, dtype=np.float64), (size,)))
    except ValueError:
        raise InputError(f"{name} must be a number or have the shape ({size},)") from None
    if not np.isfinite(found).all():
        raise InputError(f"{name} must be finite")
    return found


def _check_records(x: FloatArray, y: FloatArray) -> None:
    if x.ndim != 2 or x.shape[1] < 1 or y.shape != x.shape[:1] or not len(y):
        raise InputError("x must have the shape (records, p) and y the shape (records,), with at least one record")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("x and y must be finite; leave records with missing values out")
    if not (x[:, 0] == 1).all():
        raise InputError("the first column of x must be the intercept's, all ones")


def _lines(values: ArrayLike | None, p: int, name: str) -> FloatArray:
    rows: Sequence[Any] | ArrayLike = np.empty((0, p)) if values is None else values
    found = np.atleast_2d(np.array(rows, dtype=np.float64))
    if found.shape[1:] != (p,) or not np.isfinite(found).all():
        raise InputError(f"{name} must be finite and have the shape (lines, {p}): the coefficients of public lines")
    return found
