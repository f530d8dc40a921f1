"""The sequential logistic model of simulation 4 of paper 003 (SLOMAG): designs, coefficients, draws, Firth's fits."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numba
import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.statistics.logistic import Logits
from pdips_papers.harness.measures import draw_normal
from pdips_papers.modips.as_printed import posterior_draws
from pdips_papers.modips.location_model import N_SETS, Bounds, Records

LEVELS = (2, 2, 3)
CELLS = 12

HALF = 4.0
"""Bounds -4 and 4 on both numbers."""

BOUNDS = Bounds(np.zeros((CELLS, 2)), np.array([HALF, HALF]))
ONE_CELL = Bounds(np.zeros((1, 2)), np.array([HALF, HALF]))

TOLERANCE_OF_FIRTH = 1e-4
"""Largest step and score at the end of a fit by Firth's method, the defaults of firthmodels."""

FLAT = Fraction(1, 10**6)
"""Precision of a prior that is flat for all that n = 1,000 records can tell."""


@dataclass(frozen=True)
class Regression:
    """One regression of the sequence.

    Parameters
    ----------
    outcome : int
        Number of the categorical variable, from 0.
    p : int
        Number of predictors: the first of 1, z1, z2, w1, w2.
    classes : int
        Levels of the outcome; the first is the baseline.
    truth : ndarray, shape (classes - 1, p)
        Coefficients of section 4.3.2.
    """

    outcome: int
    p: int
    classes: int
    truth: FloatArray

    @property
    def unit(self) -> FloatArray:
        """Coefficients in the original units are those of predictors in the unit ball times this, shape (p,)."""
        return np.asarray(np.array([1.0, 1 / HALF, 1 / HALF, 1.0, 1.0])[: self.p] / np.sqrt(self.p))


SEQUENCE = (
    Regression(0, 3, 2, np.array([[-1.0, 0.5, -1.0]])),
    Regression(1, 4, 2, np.array([[-2.0, -1.0, 1.5, 0.5]])),
    Regression(2, 5, 3, np.array([[0.0, -2.5, 1.0, 0.5, 0.4], [0.1, -1.0, -0.5, 0.0, 1.5]])),
)


def levels(cell: IntArray) -> list[IntArray]:
    """Return the levels of the three variables from the number of their cell."""
    return list(np.unravel_index(cell, LEVELS))


def design(z: FloatArray, w: list[IntArray]) -> FloatArray:
    """Return the columns 1, z1, z2, w1, w2 as far as ``w`` goes, the others 0."""
    columns = [np.ones(z.shape[:-1]), z[..., 0], z[..., 1], *w[:2]]
    found = np.zeros((*z.shape[:-1], 5))
    for place, column in enumerate(columns):
        found[..., place] = column
    return found


Coefficients = Callable[[Regression, FloatArray], FloatArray]
"""Takes a regression and designs, shape (replicates, sets, n, 5); returns (replicates, sets, classes - 1, p)."""


def draw_levels(z: FloatArray, coefficients: Coefficients, rng: np.random.Generator) -> Records:
    """Draw the categorical variables one after another given z, shape (replicates, sets, n, 2)."""
    w: list[IntArray] = []
    for regression in SEQUENCE:
        x = design(z, w)
        beta = coefficients(regression, x)
        score = np.einsum("rsnp,rscp->rsnc", x[..., : regression.p], beta)
        score = np.concatenate([np.zeros((*score.shape[:-1], 1)), score], axis=-1)
        weight = np.exp(score - score.max(axis=-1, keepdims=True))
        reached = np.cumsum(weight, axis=-1)
        uniform = rng.random(reached.shape[:-1])[..., None] * reached[..., -1:]
        w.append(np.minimum((reached <= uniform).sum(axis=-1), regression.classes - 1))
    return Records((w[0] * LEVELS[1] + w[1]) * LEVELS[2] + w[2], z)


def true_coefficients(regression: Regression, x: FloatArray) -> FloatArray:
    """Return the coefficients of section 4.3.2."""
    return np.broadcast_to(regression.truth, (*x.shape[:2], *regression.truth.shape))


def exact_draws(data: Records, regression: Regression, strength: Fraction, rng: np.random.Generator) -> FloatArray:
    """Draw ``N_SETS`` coefficient vectors of predictors in the unit ball from their posterior under N(0, 1 / strength).

    Returns
    -------
    ndarray, shape (replicates, sets, d)
    """
    w = levels(data.cell[:, 0])
    x = design(data.z[:, 0], w)[..., : regression.p] * regression.unit
    ones = np.ones(data.n, dtype=np.int64)
    found = []
    for rows, outcome in zip(x, w[regression.outcome], strict=True):
        records = Logits(np.ascontiguousarray(rows), outcome, ones, regression.classes, strength)
        found.append(posterior_draws(records, N_SETS, rng))
    return np.array(found)


def grown_noise(regression: Regression, scale: float, shape: tuple[int, int], rng: np.random.Generator) -> FloatArray:
    """Draw noise with density in proportion to exp(-length / scale), shape (*shape, d), in doubles: as published."""
    d = (regression.classes - 1) * regression.p
    direction = rng.standard_normal((*shape, d))
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    return direction * (rng.standard_gamma(d, shape) * scale)[..., None]


def plug_in(modes: list[FloatArray], strength: float, rng: np.random.Generator) -> Coefficients:
    """Return draws as if noisy modes were exact: normal about them, with the information that the synthetic set holds.

    The modes are those of predictors in the unit ball, by regression, shape (replicates, d); what comes out is in the
    original units.
    """

    def coefficients(of: Regression, x: FloatArray) -> FloatArray:
        flat = x.reshape(-1, *x.shape[2:])[..., : of.p] * of.unit
        beta = np.repeat(modes[of.outcome], x.shape[1], axis=0)
        drawn = draw_normal(beta, np.linalg.inv(information(flat, beta, strength)), rng)
        return in_units(drawn.reshape(*x.shape[:2], -1), of)

    return coefficients


def information(x: FloatArray, beta: FloatArray, strength: float) -> FloatArray:
    """Return the information about coefficients that each design holds, with that of the prior.

    Parameters
    ----------
    x : ndarray, shape (sets, n, p)
        Designs.
    beta : ndarray, shape (sets, d)
        Coefficients, class by class.
    strength : float
        Precision of the prior.

    Returns
    -------
    ndarray, shape (sets, d, d)
    """
    p, d = x.shape[2], beta.shape[1]
    score = np.einsum("snp,scp->snc", x, beta.reshape(len(beta), -1, p))
    largest = np.maximum(score.max(axis=-1, keepdims=True), 0)
    chance = np.exp(score - largest)
    chance /= np.exp(-largest) + chance.sum(axis=-1, keepdims=True)
    found = np.broadcast_to(np.eye(d) * strength, (len(x), d, d)).copy()
    for c in range(d // p):
        for e in range(d // p):
            weight = chance[..., c] * ((c == e) - chance[..., e])
            block = np.swapaxes(x * weight[..., None], 1, 2) @ x
            found[:, c * p : (c + 1) * p, e * p : (e + 1) * p] += block
    return found


def in_units(beta: FloatArray, regression: Regression) -> FloatArray:
    """Return coefficients, shape (replicates, sets, d), in the original units by class."""
    shaped = beta.reshape(*beta.shape[:2], regression.classes - 1, regression.p)
    return np.asarray(shaped * regression.unit)


def firth_estimates(sets: Records) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Estimate beta_1 to beta_4 in each set by Firth's logistic regressions, level by level against the baseline.

    Returns
    -------
    dict of str to pair of ndarray, shape (replicates, sets, p)
        Estimates and squared standard errors, by "1" to "4"; NaN where there is no fit.
    """
    shape = sets.cell.shape[:2]
    w = [column.reshape(-1, sets.n) for column in levels(sets.cell)]
    x = design(sets.z.reshape(-1, sets.n, 2), w)
    found: dict[str, tuple[FloatArray, FloatArray]] = {}
    for regression in SEQUENCE:
        for level in range(1, regression.classes):
            y = np.where(w[regression.outcome] == level, 1, np.where(w[regression.outcome] == 0, 0, -1))
            estimates, errors = firth(x, y, regression.p, TOLERANCE_OF_FIRTH)
            name = str(len(found) + 1)
            found[name] = estimates.reshape(*shape, -1), errors.reshape(*shape, -1)
    return found


# compiled

MOST_STEPS, MOST_HALVINGS, LONGEST_STEP = 50, 25, 5.0


@numba.njit(cache=True, error_model="numpy")
def _factor(matrix: FloatArray) -> tuple[FloatArray, float, bool]:
    """Return the lower Cholesky factor, the log determinant, and whether there are both."""
    d, log_det = len(matrix), 0.0
    lower = np.zeros((d, d))
    for i in range(d):
        for j in range(i + 1):
            total = matrix[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            if i > j:
                lower[i, j] = total / lower[j, j]
            elif total > 1e-9 * matrix[i, i]:
                lower[i, i] = math.sqrt(total)
                log_det += math.log(total)
            else:
                return lower, 0.0, False
    return lower, log_det, True


@numba.njit(cache=True, error_model="numpy")
def _solve(lower: FloatArray, right: FloatArray) -> FloatArray:
    """Solve L L' x = right."""
    d = len(right)
    x = right.copy()
    for i in range(d):
        for k in range(i):
            x[i] -= lower[i, k] * x[k]
        x[i] /= lower[i, i]
    for i in range(d - 1, -1, -1):
        for k in range(i + 1, d):
            x[i] -= lower[k, i] * x[k]
        x[i] /= lower[i, i]
    return x


@numba.njit(cache=True, error_model="numpy")
def _inverse(lower: FloatArray) -> FloatArray:
    d = len(lower)
    found = np.zeros((d, d))
    for j in range(d):
        unit = np.zeros(d)
        unit[j] = 1.0
        found[:, j] = _solve(lower, unit)
    return found


@numba.njit(cache=True, error_model="numpy")
def _firth_pass(
    x: FloatArray, y: IntArray, beta: FloatArray, chance: FloatArray
) -> tuple[float, FloatArray, FloatArray, bool]:
    """Return the penalised log-likelihood, its score, the factor of the information, and whether there is one."""
    n, p = x.shape[0], len(beta)
    value, information, score = 0.0, np.zeros((p, p)), np.zeros(p)
    for i in range(n):
        if y[i] < 0:
            continue
        eta = 0.0
        for j in range(p):
            eta += x[i, j] * beta[j]
        sign = eta if y[i] == 1 else -eta
        value += min(sign, 0.0) - math.log1p(math.exp(-abs(sign)))
        chance[i] = 1.0 / (1.0 + math.exp(-eta))
        weight = chance[i] * (1.0 - chance[i])
        for j in range(p):
            for k in range(j + 1):
                information[j, k] += weight * x[i, j] * x[i, k]
    lower, log_det, good = _factor(information)
    if not good:
        return value, score, lower, False
    inverse = _inverse(lower)
    for i in range(n):
        if y[i] < 0:
            continue
        leverage = _leverage(x[i], inverse, chance[i])
        residual = y[i] - chance[i] + leverage * (0.5 - chance[i])
        for j in range(p):
            score[j] += x[i, j] * residual
    return value + 0.5 * log_det, score, lower, True


@numba.njit(cache=True, error_model="numpy")
def _leverage(row: FloatArray, inverse: FloatArray, chance: float) -> float:
    total = 0.0
    for j in range(len(inverse)):
        total += row[j] * row[j] * inverse[j, j]
        for k in range(j):
            total += 2.0 * row[j] * row[k] * inverse[j, k]
    return total * chance * (1.0 - chance)


@numba.njit(cache=True, error_model="numpy")
def _firth_errors(x: FloatArray, y: IntArray, chance: FloatArray, lower: FloatArray) -> FloatArray:
    """Return squared standard errors from the information augmented by the correction, as firthmodels has them."""
    p, inverse = len(lower), _inverse(lower)
    information = np.zeros((p, p))
    for i in range(len(y)):
        if y[i] >= 0:
            weight = (1.0 + _leverage(x[i], inverse, chance[i])) * chance[i] * (1.0 - chance[i])
            for j in range(p):
                for k in range(j + 1):
                    information[j, k] += weight * x[i, j] * x[i, k]
    factor, _, good = _factor(information)
    found = np.full(p, np.nan)
    if good:
        whole = _inverse(factor)
        for j in range(p):
            found[j] = whole[j, j]
    return found


@numba.njit(cache=True, error_model="numpy")
def _firth(x: FloatArray, y: IntArray, beta: FloatArray, tolerance: float) -> tuple[FloatArray, bool]:
    """Climb from ``beta``, which becomes the estimate; return squared standard errors and whether the climb ended."""
    p, chance = len(beta), np.zeros(len(y))
    value, score, lower, good = _firth_pass(x, y, beta, chance)
    for _ in range(MOST_STEPS):
        if not good:
            break
        step = _solve(lower, score)
        longest = np.abs(step).max()
        if np.abs(score).max() < tolerance and longest < tolerance:
            return _firth_errors(x, y, chance, lower), True
        if longest > LONGEST_STEP:
            step *= LONGEST_STEP / longest
        for _halving in range(MOST_HALVINGS):
            tried, score_there, lower_there, good = _firth_pass(x, y, beta + step, chance)
            if good and tried >= value - 1e-9 * abs(value):
                break
            step *= 0.5
        beta += step
        value, score, lower = tried, score_there, lower_there
    return np.full(p, np.nan), False


@numba.njit(cache=True, error_model="numpy")
def firth(x: FloatArray, y: IntArray, p: int, tolerance: float) -> tuple[FloatArray, FloatArray]:
    """Fit logistic regressions by Firth's penalised likelihood.

    Parameters
    ----------
    x : ndarray, shape (sets, n, columns)
        Designs, the intercept first.
    y : ndarray of int64, shape (sets, n)
        Outcomes 0 and 1; below 0 for records to leave out.
    p : int
        Number of columns of the design that are used.
    tolerance : float
        Largest step and score at the end.

    Returns
    -------
    estimates, squared_errors : ndarray, shape (sets, p)
        NaN where an outcome has one value only, columns depend on each other, or 50 steps don't do.
    """
    estimates, errors = np.full((len(x), p), np.nan), np.full((len(x), p), np.nan)
    for s in range(len(x)):
        if (y[s] == 0).any() and (y[s] == 1).any():
            beta = np.zeros(p)
            found, good = _firth(x[s], y[s], beta, tolerance)
            if good:
                estimates[s], errors[s] = beta, found
    return estimates, errors
