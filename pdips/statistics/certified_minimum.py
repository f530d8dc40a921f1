"""Regularised logistic regressions in doubles whose distance from the exact minimum is certified.

Nothing here adds noise. What is certified: ``docs/proofs/modips.md``, theorem 6.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pdips.arrays import FloatArray, IntArray

MOST_RECORDS = 2**25
"""Larger tables are outside the universe of the guarantee."""

ROUNDING = Fraction(1, 2**53)
SUM_BITS = 46
"""What a record adds to an entry of the gradient is rounded to 2^-46; sums of whole numbers have no order."""
HALF_BITS = 23

FURTHEST = 64.0
"""exp(-64) stands for all that is smaller."""
TERMS, SQUARINGS = 16, 7

BLOCK = 2**16
MOST_STEPS, MOST_HALVINGS = 60, 30


def root_above(square: Fraction) -> Fraction:
    """Return a rational at or above a square root, by less than 2^-32."""
    return Fraction(math.isqrt(math.ceil(square * 2**64) - 1) + 1, 2**32) if square > 0 else Fraction(0)


def decay(x: FloatArray) -> FloatArray:
    """Return exp(-x) for x >= 0, that of 64 beyond, within 2^-43 of its value; by sums, products, quotients alone.

    Taylor's polynomial at x / 128, squared seven times: IEEE 754 says what each step may round, and no library does.
    """
    small = np.minimum(x, FURTHEST) * 2.0**-SQUARINGS
    found = np.ones_like(small)
    for k in range(TERMS, 0, -1):
        found = 1.0 - small * found / k
    for _ in range(SQUARINGS):
        found = found * found
    return found


@dataclass(frozen=True, eq=False, repr=False)
class Logits:
    """The records of a logistic regression with a baseline: level 0 has logit 0, level c has x'b_c.

    Parameters
    ----------
    x : ndarray, shape (rows, d)
        Predictors, the intercept among them; no row longer than 1.
    level : ndarray of int64, shape (rows,)
        Outcome of each row, 0 to ``n_levels`` - 1.
    weight : ndarray of int64, shape (rows,)
        How many records each row stands for.
    n_levels : int
        Levels of the outcome, 2 or more.
    kappa : Fraction
        Ridge: the penalty is kappa / 2 times the squared length of all coefficients.
    """

    x: FloatArray
    level: IntArray
    weight: IntArray
    n_levels: int
    kappa: Fraction

    def gradient(self, b: FloatArray) -> list[Fraction]:
        """Return the gradient at ``b``, shape (n_levels - 1, d), entry by entry, near enough for :class:`Accuracy`.

        What a record adds is worked out from it alone and rounded to a whole number; the rest is exact.
        """
        totals = [0] * b.size
        for start in range(0, len(self.x), BLOCK):
            rows = slice(start, start + BLOCK)
            residuals = _residuals(self.x[rows], self.level[rows], b)
            for place, entry in enumerate(_entries(residuals, self.x[rows])):
                totals[place] += _exact_sum(entry, self.weight[rows])
        return [
            self.kappa * Fraction(float(value)) + Fraction(total, 2**SUM_BITS)
            for value, total in zip(b.ravel(), totals, strict=True)
        ]

    @property
    def curvature(self) -> Fraction:
        """The largest curvature of the objective in any direction."""
        return self.kappa + int(self.weight.sum()) * Fraction(1, 4 if self.n_levels == 2 else 2)


def _residuals(x: FloatArray, level: IntArray, b: FloatArray) -> FloatArray:
    """Return P(level c) - 1{level is c} for c = 1, ..., record by record: no product of matrices."""
    logits = np.zeros((len(b) + 1, len(x)))
    for c, coefficients in enumerate(b, 1):
        for j, coefficient in enumerate(coefficients):
            logits[c] += x[:, j] * coefficient
    weights = decay(logits.max(axis=0) - logits)
    total = np.zeros(len(x))
    for one in weights:
        total += one
    found = weights[1:] / total
    found[level[level > 0] - 1, np.flatnonzero(level)] -= 1.0
    return found


def _entries(residuals: FloatArray, x: FloatArray) -> Iterator[IntArray]:
    for residual in residuals:
        for j in range(x.shape[1]):
            yield np.rint(residual * x[:, j] * 2.0**SUM_BITS).astype(np.int64)


def _exact_sum(values: IntArray, weight: IntArray) -> int:
    """Add up weighted whole numbers of up to 47 bits, weights up to 2^25 in all, without overflow."""
    high = values >> HALF_BITS
    low = values & (2**HALF_BITS - 1)
    return (int((high * weight).sum()) << HALF_BITS) + int((low * weight).sum())


@dataclass(frozen=True)
class Accuracy:
    """How near to the exact minimum a certified one is, for every table of the universe.

    Parameters
    ----------
    n_levels, d : int
        Levels of the outcome; predictors with the intercept.
    kappa : Fraction
        The ridge.
    """

    n_levels: int
    d: int
    kappa: Fraction

    @property
    def radius(self) -> Fraction:
        """No minimum is further from 0: sqrt(2 n log(levels) / kappa)."""
        log_levels = Fraction(7, 10) * (self.n_levels - 1).bit_length()
        return root_above(2 * MOST_RECORDS * log_levels / self.kappa)

    @property
    def _error(self) -> Fraction:
        """The largest error E of a gradient, and of a rounded step times the curvature, together."""
        c = self.n_levels - 1
        record = root_above(Fraction(c)) * ((self.d + 3) * self.radius / 2 + self.n_levels + 2070)
        record += 66 * root_above(Fraction(c * self.d))
        curvature = self.kappa + MOST_RECORDS * Fraction(1, 4 if c == 1 else 2)
        return ROUNDING * (MOST_RECORDS * record + curvature * (3 * self.radius + 1))

    @property
    def tolerance(self) -> Fraction:
        """Largest length of the exact gradient at what :func:`minimum` returns: 4 E, a public number."""
        return Fraction(math.ceil(4 * self._error * 2**32), 2**32)

    def certifies(self, logits: Logits, b: FloatArray) -> bool:
        """Whether ``b`` is within tolerance / kappa of the exact minimum: its computed gradient is at most 3 E."""
        if not np.isfinite(b).all() or sum(Fraction(float(v)) ** 2 for v in b.ravel()) > self.radius**2:
            return False
        return sum(each**2 for each in logits.gradient(b)) <= (3 * self.tolerance / 4) ** 2


def minimum(logits: Logits, accuracy: Accuracy) -> FloatArray:
    """Return coefficients within ``accuracy.tolerance / kappa`` of those that minimise the objective exactly.

    Newton's method, and where its result isn't certified, gradient descent, which gets there for every table.

    Returns
    -------
    ndarray, shape (n_levels - 1, d)
    """
    found = newton(logits, float(accuracy.tolerance) / 16)
    return found if accuracy.certifies(logits, found) else descend(logits, accuracy)


def descend(logits: Logits, accuracy: Accuracy) -> FloatArray:
    """Return certified coefficients by gradient descent from 0: slow, and sure to end (theorem 6)."""
    b = np.zeros((accuracy.n_levels - 1, accuracy.d))
    while not accuracy.certifies(logits, b):
        step = [each / logits.curvature for each in logits.gradient(b)]
        moved = [float(Fraction(float(v)) - s) for v, s in zip(b.ravel(), step, strict=True)]
        b = np.array(moved).reshape(b.shape)
    return b


def newton(logits: Logits, goal: float) -> FloatArray:
    """Return coefficients by Newton's method with step halving: near the minimum, without any promise."""
    try:
        with np.errstate(all="ignore"):
            return _newton(logits, goal)
    except np.linalg.LinAlgError:
        return np.zeros((logits.n_levels - 1, logits.x.shape[1]))


def _newton(logits: Logits, goal: float) -> FloatArray:
    b = np.zeros((logits.n_levels - 1, logits.x.shape[1]))
    value, residuals, p = _evaluate(logits, b)
    for _ in range(MOST_STEPS):
        gradient = (float(logits.kappa) * b + residuals @ logits.x).ravel()
        if not np.linalg.norm(gradient) > goal:
            break
        direction = np.linalg.solve(_hessian(logits, p), gradient).reshape(b.shape)
        for halving in range(MOST_HALVINGS):
            moved = b - direction * 0.5**halving
            tried = _evaluate(logits, moved)
            if tried[0] <= value + 1e-12 * abs(value):
                break
        b, (value, residuals, p) = moved, tried
    return b


def _evaluate(logits: Logits, b: FloatArray) -> tuple[float, FloatArray, FloatArray]:
    """Return the objective, weighted residuals and probabilities, the latter of shape (n_levels - 1, rows)."""
    eta = np.vstack([np.zeros(len(logits.x)), b @ logits.x.T])
    top = eta.max(axis=0)
    powers = np.exp(eta - top)
    total = powers.sum(axis=0)
    rows = np.arange(len(logits.x))
    loss = (logits.weight * (np.log(total) + top - eta[logits.level, rows])).sum()
    p = powers / total
    residuals = p.copy()
    residuals[logits.level, rows] -= 1.0
    value = float(logits.kappa) / 2 * float((b * b).sum()) + float(loss)
    return value, logits.weight * residuals[1:], p[1:]


def _hessian(logits: Logits, p: FloatArray) -> FloatArray:
    c, d = len(p), logits.x.shape[1]
    found = float(logits.kappa) * np.eye(c * d)
    for i in range(c):
        for j in range(i + 1):
            each = logits.weight * p[i] * ((i == j) - p[j])
            block = logits.x.T @ (each[:, None] * logits.x)
            found[i * d : (i + 1) * d, j * d : (j + 1) * d] += block
            if i != j:
                found[j * d : (j + 1) * d, i * d : (i + 1) * d] += block
    return found
