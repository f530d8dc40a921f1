"""A ridge-regularised logistic regression as a bounded statistic, in whole steps of a
public grid.

Its coefficients are doubles whose distance from the exact minimum is certified:
``docs/proofs/modips.md``, theorem 6.
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from operator import add
from typing import ClassVar

import numpy as np
import pandas as pd
from scipy import special

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.posterior.columns import Values, record_values
from pdips.privacy.loss import Neighbours, Number, exact, positive
from pdips.privacy.noise import quantise
from pdips.privacy.sensitivity import Sensitivity
from pdips.statistics.statistic import column_of, unit_of

GRID_BITS = 12  # The grid's step is between 2^-12 and 2^-13 of what one record can do
LARGEST_KAPPA = 2**40
LARGEST_TOLERANCE = Fraction(1, 8)

MOST_RECORDS = 2**25  # Larger tables are outside the universe of the guarantee
ROUNDING = Fraction(1, 2**53)
# What a record adds to an entry of the gradient is rounded to 2^-46; sums of whole
# numbers have no order
SUM_BITS = 46
HALF_BITS = 23

FURTHEST = 64.0  # exp(-64) stands for all that is smaller
TERMS = 16
SQUARINGS = 7

BLOCK = 2**16
MOST_STEPS = 60
MOST_HALVINGS = 30


def root_above(square: Fraction) -> Fraction:
    """Return a rational at or above a square root, by less than 2^-32."""
    if square <= 0:
        return Fraction(0)
    scaled = math.ceil(square * 2**64)
    return Fraction(math.isqrt(scaled - 1) + 1, 2**32)


def decay(x: FloatArray) -> FloatArray:
    """Return exp(-x) for x >= 0, that of 64 beyond, within 2^-43 of its value; by sums,
    products, quotients alone.

    Taylor's polynomial at x / 128, squared seven times: IEEE 754 says what each step
    may round, and no library does.
    """
    small = np.minimum(x, FURTHEST) * 2.0**-SQUARINGS
    power = np.ones_like(small)
    for k in range(TERMS, 0, -1):
        power = 1.0 - small * power / k
    for _ in range(SQUARINGS):
        power = power * power
    return power


@dataclass(frozen=True, eq=False, repr=False)
class Logits:
    """The records of a logistic regression with a baseline: level 0 has logit 0, level
    c has x'b_c.

    The penalty is kappa / 2 times the squared length of all coefficients.
    """

    # predictors, the intercept among them, shape (rows, d); no row longer than 1
    x: FloatArray
    level: IntArray  # outcome of each row, 0 to n_levels - 1
    weight: IntArray  # how many records each row stands for
    n_levels: int
    kappa: Fraction

    def gradient(self, b: FloatArray) -> list[Fraction]:
        """Return the gradient at ``b``, shape (n_levels - 1, d), entry by entry, near
        enough for :class:`Accuracy`.

        What a record adds is worked out from it alone and rounded to a whole number;
        the rest is exact.
        """
        totals = [0] * b.size
        for start in range(0, len(self.x), BLOCK):
            x = self.x[start : start + BLOCK]
            weight = self.weight[start : start + BLOCK]
            residuals = _residuals(x, self.level[start : start + BLOCK], b)
            for place, (residual, column) in enumerate(product(residuals, x.T)):
                whole = np.rint(residual * column * 2.0**SUM_BITS).astype(np.int64)
                # whole numbers of up to 47 bits, weights up to 2^25 in all: added up in
                # halves, without overflow
                high = whole >> HALF_BITS
                low = whole & (2**HALF_BITS - 1)
                totals[place] += int((high * weight).sum()) << HALF_BITS
                totals[place] += int((low * weight).sum())
        of_records = [Fraction(total, 2**SUM_BITS) for total in totals]
        of_penalty = [self.kappa * Fraction(value) for value in b.ravel().tolist()]
        return list(map(add, of_records, of_penalty))

    @property
    def curvature(self) -> Fraction:
        """The largest curvature of the objective in any direction."""
        of_record = Fraction(1, 4 if self.n_levels == 2 else 2)
        return self.kappa + int(self.weight.sum()) * of_record


def _residuals(x: FloatArray, level: IntArray, b: FloatArray) -> FloatArray:
    """Return P(level c) - 1{level is c} for c = 1, ..., record by record: no product of
    matrices.
    """
    logits = np.zeros((len(b) + 1, len(x)))
    for c, coefficients in enumerate(b, 1):
        for j, coefficient in enumerate(coefficients):
            logits[c] += x[:, j] * coefficient
    weights = decay(logits.max(axis=0) - logits)
    total = np.zeros(len(x))
    for of_level in weights:
        total += of_level
    residuals = weights[1:] / total
    residuals[level[level > 0] - 1, np.flatnonzero(level)] -= 1.0
    return residuals


@dataclass(frozen=True)
class Accuracy:
    """How near to the exact minimum a certified one is, for every table of the universe
    (theorem 6).
    """

    n_levels: int  # of the outcome
    d: int  # predictors with the intercept
    kappa: Fraction

    @property
    def radius(self) -> Fraction:
        """No minimum is further from 0: sqrt(2 n log(levels) / kappa)."""
        log_levels = Fraction(7, 10) * (self.n_levels - 1).bit_length()
        return root_above(2 * MOST_RECORDS * log_levels / self.kappa)

    @property
    def tolerance(self) -> Fraction:
        """Largest length of the exact gradient at what :func:`minimum` returns: 4 E, a
        public number.

        E is the largest error of a gradient, and of a rounded step times the curvature,
        together.
        """
        c = self.n_levels - 1
        of_logits = (self.d + 3) * self.radius / 2 + self.n_levels + 2070
        record = root_above(Fraction(c)) * of_logits
        record += 66 * root_above(Fraction(c * self.d))
        curvature = self.kappa + MOST_RECORDS * Fraction(1, 4 if c == 1 else 2)
        error = ROUNDING * (MOST_RECORDS * record + curvature * (3 * self.radius + 1))
        return Fraction(math.ceil(4 * error * 2**32), 2**32)

    def certifies(self, logits: Logits, b: FloatArray) -> bool:
        """Whether ``b`` is within tolerance / kappa of the exact minimum: its computed
        gradient is at most 3 E.
        """
        if not np.isfinite(b).all():
            return False
        length = sum(Fraction(value) ** 2 for value in b.ravel().tolist())
        if length > self.radius**2:
            return False
        slope = sum(entry**2 for entry in logits.gradient(b))
        return slope <= (3 * self.tolerance / 4) ** 2


def minimum(logits: Logits, accuracy: Accuracy) -> FloatArray:
    """Return coefficients within ``accuracy.tolerance / kappa`` of those that minimise
    the objective exactly.

    Shape (n_levels - 1, d). By Newton's method, and where its result isn't certified,
    by gradient descent, which gets there for every table.
    """
    coefficients = newton(logits, float(accuracy.tolerance) / 16)
    if accuracy.certifies(logits, coefficients):
        return coefficients
    return descend(logits, accuracy)


def descend(logits: Logits, accuracy: Accuracy) -> FloatArray:
    """Return certified coefficients by gradient descent from 0: slow, and sure to end
    (theorem 6).
    """
    b = np.zeros((accuracy.n_levels - 1, accuracy.d))
    while not accuracy.certifies(logits, b):
        moved = []
        for value, slope in zip(b.ravel().tolist(), logits.gradient(b), strict=True):
            moved.append(float(Fraction(value) - slope / logits.curvature))
        b = np.array(moved).reshape(b.shape)
    return b


def newton(logits: Logits, goal: float) -> FloatArray:
    """Return coefficients by Newton's method with step halving: near the minimum,
    without any promise.
    """
    b = np.zeros((logits.n_levels - 1, logits.x.shape[1]))
    with suppress(np.linalg.LinAlgError), np.errstate(all="ignore"):
        value, residuals, p = _evaluate(logits, b)
        for _ in range(MOST_STEPS):
            gradient = (float(logits.kappa) * b + residuals @ logits.x).ravel()
            if not np.linalg.norm(gradient) > goal:
                break
            hessian = information(logits.x, p, logits.weight)
            hessian += float(logits.kappa) * np.eye(b.size)
            direction = np.linalg.solve(hessian, gradient).reshape(b.shape)
            for halving in range(MOST_HALVINGS):
                moved = b - direction * 0.5**halving
                tried = _evaluate(logits, moved)
                if tried[0] <= value + 1e-12 * abs(value):
                    break
            b = moved
            (value, residuals, p) = tried
        return b
    return np.zeros_like(b)


def _evaluate(logits: Logits, b: FloatArray) -> tuple[float, FloatArray, FloatArray]:
    """Return the objective, weighted residuals and probabilities, the latter of shape
    (n_levels - 1, rows).
    """
    with_baseline = np.vstack([np.zeros(len(logits.x)), b @ logits.x.T])
    log_p = special.log_softmax(with_baseline, axis=0)
    own = (logits.level, np.arange(len(logits.x)))
    p = np.exp(log_p)
    residuals = p.copy()
    residuals[own] -= 1.0
    penalty = float(logits.kappa) / 2 * float((b * b).sum())
    value = penalty - float(logits.weight @ log_p[own])
    return value, logits.weight * residuals[1:], p[1:]


def information(
    x: FloatArray, p: FloatArray, weight: FloatArray | IntArray
) -> FloatArray:
    """Return the information of weighted records about the coefficients, logit by
    logit, shape (c d, c d).

    ``x`` has shape (rows, d), ``p`` the probabilities of all levels but the first,
    shape (c, rows).
    """
    c = len(p)
    d = x.shape[1]
    # logit, predictor, logit, predictor
    blocks = np.zeros((c, d, c, d))
    for i in range(c):
        for j in range(i + 1):
            covariance = weight * p[i] * ((i == j) - p[j])
            block = x.T @ (covariance[:, None] * x)
            blocks[i, :, j] = block
            blocks[j, :, i] = block
    return blocks.reshape(c * d, c * d)


@dataclass(frozen=True, kw_only=True)
class Logistic:
    """Coefficients of a logistic regression that minimise kappa / 2 norm(b)^2 + the sum
    of the records' log-losses.

    Parameters
    ----------
    outcome : str
        A column with levels. Two levels: the logit of the second one; more: one logit
        for each level but the first.
    predictors : tuple of str
        Numeric columns, as u in [-1, 1] of their public bounds, and columns with
        levels, as indicators of all but the first. The intercept comes first. All are
        divided by sqrt(1 + number of predictors), so that no record is longer than 1.
    kappa : int, float, str or Fraction
        Public strength of the ridge, in records: at kappa = n lambda it is Bowen and
        Liu's lambda.

    Raises
    ------
    InputError
        If kappa is not above 0 or beyond 2^40, or a predictor is named twice or is the
        outcome.

    Notes
    -----
    Replacing a record moves the exact minimum by at most G / kappa in length: G = 2 for
    two levels, 2 sqrt(2) for more; half as much if a record is added or removed, or if
    all predictors are public (Chaudhuri and Monteleoni, 2009). What is measured are
    coefficients certified to be near it, in steps of :meth:`step`. Rounding and the
    certificate are in the sensitivity. Proof: ``docs/proofs/modips.md``, theorems 5 and
    6.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "age": Column(lower=0, upper=100),
    ...     }
    ... )
    >>> Logistic(outcome="ill", predictors=("age",), kappa=10).sensitivity(
    ...     schema, "replace-one"
    ... ).l1 > 0
    True
    """

    most_records: ClassVar[int | None] = MOST_RECORDS

    outcome: str
    predictors: tuple[str, ...]
    kappa: Number

    def __post_init__(self) -> None:
        object.__setattr__(self, "predictors", tuple(self.predictors))
        if positive(self.kappa, "kappa") > LARGEST_KAPPA:
            raise InputError(f"kappa must be at most 2^40, got {self.kappa}")
        columns = (self.outcome, *self.predictors)
        if len(set(columns)) < len(columns):
            raise InputError(
                f"predictors of {self.outcome!r} must differ from each "
                f"other and from it"
            )

    def check(self, schema: Schema) -> None:
        """Refuse columns that aren't there or of the wrong kind, and a ridge too weak
        to be certified.
        """
        for name in (self.outcome, *self.predictors):
            column_of(schema, name)
        outcome = schema.columns[self.outcome]
        if not outcome.is_categorical or outcome.n_levels < 2:
            raise InputError(
                f"the outcome of a logistic regression needs two levels or more, and "
                f"{self.outcome!r} has not"
            )
        if self._accuracy(schema).tolerance > LARGEST_TOLERANCE:
            raise InputError(
                f"kappa = {self.kappa} is too small for so many coefficients: their "
                f"error couldn't be bounded"
            )

    def shape(self, schema: Schema) -> tuple[int, int]:
        """Return (levels of the outcome - 1, coefficients of each logit)."""
        return schema.columns[self.outcome].n_levels - 1, len(self._terms(schema))

    def _terms(self, schema: Schema) -> list[str]:
        terms = ["1"]
        for name in self.predictors:
            column = schema.columns[name]
            if column.is_categorical:
                terms += [f"{name} = {level}" for level in column.names()[1:]]
            else:
                terms.append(name)
        return terms

    def labels(self, schema: Schema) -> pd.DataFrame:
        """Return the level of the outcome and the predictor of each coefficient; "1" is
        the intercept.
        """
        levels = schema.columns[self.outcome].names()[1:]
        terms = self._terms(schema)
        rows = list(product(levels, terms))
        term_title = "predictor" if self.outcome != "predictor" else "term"
        return pd.DataFrame(rows, columns=[self.outcome, term_title])

    def _accuracy(self, schema: Schema) -> Accuracy:
        n_logits, d = self.shape(schema)
        return Accuracy(n_logits + 1, d, exact(self.kappa, "kappa"))

    def step(self) -> Fraction:
        """Return the grid's step, a power of two, in the unit of the coefficients."""
        kappa = math.ceil(exact(self.kappa, "kappa") * 2**GRID_BITS)
        return Fraction(1, 1 << (kappa - 1).bit_length())

    def unit(self, schema: Schema) -> float:
        """Return the grid's step as a double, which it is."""
        return float(self.step())

    def sensitivity(self, schema: Schema, neighbours: Neighbours) -> Sensitivity:
        """Return the sensitivity in whole steps, for all records that one person may
        have; 0 for what is public.
        """
        keeps_predictors = all(schema.columns[name].public for name in self.predictors)
        if keeps_predictors and schema.columns[self.outcome].public:
            return Sensitivity.of_person(l1=0)
        # a record that keeps its predictors moves the gradient as if it left
        relation: Neighbours = "add-remove" if keeps_predictors else neighbours
        records = Sensitivity.of_counts(schema, relation).l1
        n_logits, n_terms = self.shape(schema)
        gradient = records * root_above(Fraction(2 if n_logits > 1 else 1))
        # How far one person moves certified coefficients, in length, in steps, before
        # they are rounded
        curvature = exact(self.kappa, "kappa") * self.step()
        moved = (gradient + 2 * self._accuracy(schema).tolerance) / curvature
        n = n_logits * n_terms
        root = root_above(Fraction(n))
        return Sensitivity.of_person(
            l1=math.ceil(root * moved + n) - 1,
            l2_squared=math.ceil((moved + root) ** 2) - 1,
        )

    def spread(self, schema: Schema) -> FloatArray:
        """Return the variance of what one record, spread evenly over the schema, adds
        to each coefficient near 0.
        """
        squares = [1.0]
        for name in self.predictors:
            column = schema.columns[name]
            if column.is_categorical:
                squares += [1 / column.n_levels] * (column.n_levels - 1)
            else:
                squares.append(1 / 3)
        kappa = float(exact(self.kappa, "kappa"))
        # a residual of an even chance is 1/2, and predictors are scaled
        variances = np.array(squares) / (4 * (1 + len(self.predictors)) * kappa**2)
        n_logits, _ = self.shape(schema)
        return np.tile(variances, n_logits)

    def design(self, values: Values, schema: Schema) -> FloatArray:
        """Return predictors as the regression reads them, of confidential or synthetic
        records, each by itself.

        ``values`` are columns as :func:`pdips.posterior.columns.record_values` gives
        them: numbers, and codes of levels. Logits are the result, shape (records,
        coefficients of a logit), times the coefficients; no row is longer than 1,
        exactly.
        """
        columns = [np.ones(len(next(iter(values.values()))))]
        for name in self.predictors:
            column = schema.columns[name]
            if column.is_categorical:
                levels = range(1, column.n_levels)
                columns += [(values[name] == k).astype(np.float64) for k in levels]
            else:
                numbers = np.asarray(values[name], dtype=np.float64)
                in_units = unit_of(schema, name).of(numbers)
                columns.append(np.clip(in_units, -1.0, 1.0))
        scaled = np.column_stack(columns) * _scale(len(self.predictors))
        return np.ascontiguousarray(scaled)

    def measure(self, table: Table) -> IntArray:
        """Return the certified coefficients in whole steps, shape as :meth:`shape`
        says, of at most 2^25 records.
        """
        schema = table.schema
        self.check(schema)
        if table.n_records > MOST_RECORDS:
            raise InputError(
                f"logistic regressions are made for tables of at most "
                f"{MOST_RECORDS:,} records"
            )
        for name in self.predictors:
            if name not in table.frame and not schema.columns[name].is_categorical:
                raise InputError(
                    "a logistic regression reads records one by one: read "
                    "the table with counted=False"
                )
        values = record_values(table, (self.outcome, *self.predictors))
        level = values[self.outcome]
        weight = table.counts
        if weight is None:
            weight = np.ones(len(level), dtype=np.int64)
        logits = Logits(
            x=self.design(values, schema),
            level=level,
            weight=weight,
            n_levels=schema.columns[self.outcome].n_levels,
            kappa=exact(self.kappa, "kappa"),
        )
        return quantise(minimum(logits, self._accuracy(schema)), self.step())


def _scale(n_predictors: int) -> float:
    """Return the largest double whose square, times 1 + the number of predictors, is at
    most 1.
    """
    scale = math.sqrt(1 / (1 + n_predictors))
    while Fraction(scale) ** 2 * (1 + n_predictors) > 1:
        scale = math.nextafter(scale, 0)
    return scale
