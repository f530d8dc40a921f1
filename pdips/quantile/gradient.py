"""K-norm gradients of quantile regressions: norms, what one record can change of them,
and the density of a line.

A record with predictors x = (1, x_1, ..., x_p), each x_j in [-1, 1], adds x (1{y <=
x'theta} - tau) to the gradient at theta. Mechanisms count it in whole numbers:
predictors are read in ``UNITS`` steps and tau = a / q, so q UNITS times the gradient is
a vector of whole numbers. PyMC models take it in doubles.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.encoding import UNITS, in_units
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours, choice

Norm = Literal["hull", "linf", "l1"]

# Coefficients are multiples of the outcome's public range over 2 to this power, or a
# little finer
FINEST_BITS = 36

DensityNorm = Literal["l1", "l2", "linf", "hull"]
DENSITY_NORMS: tuple[DensityNorm, ...] = get_args(DensityNorm)


@dataclass(frozen=True, kw_only=True)
class RegressionRecords:
    """What a regression reads of a table; confidential.

    Outcomes within the public bounds, predictors, shape (records, p), and instruments
    in [-UNITS, UNITS], which signs of residuals are summed with: the predictors in the
    papers. All depend on their record and released values only.
    """

    outcome: FloatArray
    predictors: FloatArray
    instruments: IntArray

    @classmethod
    def of(cls, outcome: FloatArray, predictors: FloatArray) -> Self:
        """Return records whose instruments are the predictors, in [-1, 1]."""
        return cls(
            outcome=outcome, predictors=predictors, instruments=in_units(predictors)
        )

    @cached_property
    def total(self) -> IntArray:
        """Sums of (1, z), z the instruments, over all records, in units."""
        sums = self.instruments.sum(axis=0, dtype=np.int64)
        return np.concatenate([[len(self.outcome) * UNITS], sums])

    def residuals(self, line: FloatArray) -> FloatArray:
        """Return the distance of each outcome above a line."""
        away = self.outcome - line[0]
        for slope, column in zip(line[1:], self.predictors.T, strict=True):
            away = away - slope * column
        return np.asarray(away)


@dataclass(frozen=True, kw_only=True)
class LineRegression:
    """A regression of an outcome on p predictors: its public bounds, and how its
    records are read.

    ``frame``, shape (p + 1, p + 1), takes a line's coefficients to those in predictors
    that run over [-1, 1]^p, if they aren't such already. Coarse steps read each record
    with the public probability ``keep``, by a coin.
    """

    read: Callable[[Table], RegressionRecords]
    n_predictors: int
    lower: float
    upper: float
    frame: FloatArray | None = None
    keep: float = 1.0

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
        line = np.zeros(1 + self.n_predictors)
        line[0] = math.ceil(self.lower / self.step) * self.step
        return line

    def thinned(self, coins: Callable[[int, float], BoolArray]) -> "LineRegression":
        """Return the regression of the records that coarse steps read."""
        if self.keep >= 1:
            return self

        def read(table: Table) -> RegressionRecords:
            records = self.read(table)
            kept = coins(len(records.outcome), self.keep)
            predictors = records.predictors[kept]
            instruments = records.instruments[kept]
            return replace(
                records,
                outcome=records.outcome[kept],
                predictors=predictors,
                instruments=instruments,
            )

        return replace(self, read=once(read))

    def parallel(self, line: FloatArray) -> "LineRegression":
        """Return the regression, without predictors, of residuals from the slopes of a
        released line.

        Its bounds are those of intercepts of lines with these slopes that touch the
        outcome's range in the box.
        """
        steep = float(np.abs(line[1:]).sum())

        def read(table: Table) -> RegressionRecords:
            records = self.read(table)
            residuals = records.residuals(np.concatenate([[0.0], line[1:]]))
            return RegressionRecords.of(residuals, np.zeros((len(residuals), 0)))

        return LineRegression(
            read=once(read),
            n_predictors=0,
            lower=self.lower - steep,
            upper=self.upper + steep,
        )


def once[T](work: Callable[[Table], T]) -> Callable[[Table], T]:
    """Return a function that works something out of the table for the first question,
    and knows it from then on.
    """
    known: list[T] = []

    def read(table: Table) -> T:
        if not known:
            known.append(work(table))
        return known[0]

    return read


@dataclass(frozen=True)
class Gradient:
    """How far from zero the gradient of a quantile regression on p predictors is, and
    what one record can change of it.

    The hull norm is the gauge of the convex hull of all that exchanging a record can do
    to the gradient, abs(g_0) + max_j max(abs(g_j) - abs(g_0), 0) / (2 max(tau, 1 -
    tau)): of all norms in which one record counts for 1 the largest, so the noise is
    the smallest. One slope's entry by itself has the sensitivity of ``"linf"`` with one
    predictor, the intercept's that without any. All are attained: docs/proofs/kng.md,
    theorem 1.
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

        ``below``, shape (..., p + 1), has sums of (1, x), in units, over records with y
        <= x'theta, ``total`` over all.
        """
        gradient = np.abs(self.tau.denominator * below - self.tau.numerator * total)
        if self.norm == "linf" or not self.n_predictors:
            return np.asarray(gradient.max(axis=-1), dtype=np.int64)
        if self.norm == "l1":
            return np.asarray(gradient.sum(axis=-1), dtype=np.int64)
        width = Fraction(2 * self._larger, self.tau.denominator)
        first = gradient[..., 0]
        beyond = np.maximum(gradient[..., 1:].max(axis=-1) - first, 0)
        norm = width.numerator * first + width.denominator * beyond
        return np.asarray(norm, dtype=np.int64)

    def sensitivity(self, neighbours: Neighbours) -> int:
        """Return how many steps one record more or less, or exchanged, can move the
        norm; attained.
        """
        q = self.tau.denominator
        larger = self._larger
        p = self.n_predictors
        if self.norm == "l1" and p:
            if neighbours == "add-remove":
                return UNITS * larger * (1 + p)
            return UNITS * max(2 * p * larger, (1 + p) * q)
        alone = larger if neighbours == "add-remove" else q
        if self.norm == "linf" and p and neighbours == "replace-one":
            alone = max(q, 2 * larger)
        if self.norm == "hull" and p:
            alone *= Fraction(2 * larger, q).numerator
        return UNITS * alone


@dataclass(frozen=True, eq=False)
class KNormGradient:
    """The log density of the K-norm gradient mechanism for quantile regression, up to a
    constant, in doubles.

    -scale * norm(sum_i x_i (1{y_i <= x_i'theta} - tau)) for covariates x, shape
    (records, p), the first all ones. ``floors`` and ``ceilings`` are coefficients of
    public lines, shape (lines, p) or (p,), that x'theta may not cross anywhere on the
    public box of ``covariates``, without the intercept. No message has a record's value
    in it.
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
        x = np.array(self.x, dtype=np.float64, order="C")
        y = np.array(self.y, dtype=np.float64, order="C")
        if x.ndim != 2 or x.shape[1] < 1 or y.shape != x.shape[:1] or not len(y):
            raise InputError(
                "x must have the shape (records, p) and y the shape "
                "(records,), with at least one record"
            )
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise InputError(
                "x and y must be finite; leave records with missing values out"
            )
        if (x[:, 0] != 1).any():
            raise InputError("the first column of x must be the intercept's, all ones")
        choice(self.norm, DENSITY_NORMS, "norm")
        if not 0 < self.tau < 1:
            raise InputError(f"tau must lie inside of (0, 1), got {self.tau}")
        if not 0 <= self.scale < np.inf:
            raise InputError(
                f"scale must be a finite number of nats, not negative, got {self.scale}"
            )
        p = x.shape[1]
        low, high = (
            finite_vector(side, p - 1, "covariates") for side in self.covariates
        )
        if np.any(low > high):
            raise InputError(
                "covariates must be a pair (lower, upper) with lower <= upper"
            )
        kept: dict[str, Any] = {"x": x, "y": y, "covariates": (low, high)}
        for name, values in (("floors", self.floors), ("ceilings", self.ceilings)):
            given = np.empty((0, p)) if values is None else values
            lines = np.atleast_2d(np.array(given, dtype=np.float64))
            kept[name] = lines
            if lines.shape[1:] != (p,) or not np.isfinite(lines).all():
                raise InputError(
                    f"{name} must be finite and have the shape (lines, {p}): the "
                    f"coefficients of public lines"
                )
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
        """Floors and ceilings, shape (lines, p), and 1 for a floor, -1 for a ceiling,
        shape (lines,).
        """
        floors = np.asarray(self.floors)
        ceilings = np.asarray(self.ceilings)
        signs = np.repeat([1.0, -1.0], [len(floors), len(ceilings)])
        return np.vstack([floors, ceilings]), signs


def finite_vector(values: ArrayLike, size: int, name: str) -> FloatArray:
    """Return a finite number, or one for each parameter, as an array of shape
    (size,).
    """
    try:
        found = np.array(np.broadcast_to(np.asarray(values, dtype=np.float64), (size,)))
    except ValueError:
        raise InputError(
            f"{name} must be a number or have the shape ({size},)"
        ) from None
    if not np.isfinite(found).all():
        raise InputError(f"{name} must be finite")
    return found
