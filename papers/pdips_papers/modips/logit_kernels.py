"""Compiled logistic regressions of many sets: Firth's, and multinomial ones with a ridge penalty, their draws."""

import math

import numba
import numpy as np

from pdips.arrays import FloatArray, IntArray

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


@numba.njit(cache=True, error_model="numpy")
def _chances(row: FloatArray, beta: FloatArray, p: int, chance: FloatArray) -> float:
    """Fill in the chances of the classes after the first; return the log of the sum of exponentials."""
    classes = len(beta) // p
    largest = 0.0
    for c in range(classes):
        total = 0.0
        for j in range(p):
            total += row[j] * beta[c * p + j]
        chance[c] = total
        largest = max(largest, total)
    whole = math.exp(-largest)
    for c in range(classes):
        whole += math.exp(chance[c] - largest)
    log_sum = largest + math.log(whole)
    for c in range(classes):
        chance[c] = math.exp(chance[c] - log_sum)
    return log_sum


@numba.njit(cache=True, error_model="numpy")
def log_posterior(x: FloatArray, y: IntArray, beta: FloatArray, p: int, ridge: float) -> float:
    """Return the multinomial log-likelihood less ridge / 2 times the squared length of ``beta``, class by class."""
    chance, value = np.zeros(len(beta) // p), -0.5 * ridge * (beta * beta).sum()
    for i in range(len(y)):
        value -= _chances(x[i], beta, p, chance)
        if y[i] > 0:
            for j in range(p):
                value += x[i, j] * beta[(y[i] - 1) * p + j]
    return value


@numba.njit(cache=True, error_model="numpy")
def _slope(x: FloatArray, y: IntArray, beta: FloatArray, p: int, ridge: float) -> tuple[FloatArray, FloatArray]:
    """Return the gradient of the log-posterior and minus its second derivatives."""
    d = len(beta)
    classes = d // p
    chance, gradient, information = np.zeros(classes), -ridge * beta, np.eye(d) * ridge
    for i in range(len(y)):
        _chances(x[i], beta, p, chance)
        for c in range(classes):
            residual = (1.0 if y[i] == c + 1 else 0.0) - chance[c]
            for j in range(p):
                gradient[c * p + j] += residual * x[i, j]
            for e in range(c + 1):
                weight = chance[c] * ((1.0 if c == e else 0.0) - chance[e])
                for j in range(p):
                    for k in range(p):
                        information[c * p + j, e * p + k] += weight * x[i, j] * x[i, k]
    for i in range(d):
        for j in range(i):
            information[j, i] = information[i, j]
    return gradient, information


@numba.njit(cache=True, error_model="numpy")
def ridge_modes(
    x: FloatArray, y: IntArray, p: int, classes: int, ridge: float, tolerance: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Find the modes of multinomial regressions with normal priors of variance 1 / ridge.

    Parameters
    ----------
    x : ndarray, shape (sets, n, columns)
        Designs.
    y : ndarray of int64, shape (sets, n)
        Classes from 0, the baseline.
    p, classes : int
        Number of columns used; number of classes, d = (classes - 1) p coefficients.
    ridge : float
        0 for none.
    tolerance : float
        Length of the gradient at the end.

    Returns
    -------
    modes : ndarray, shape (sets, d)
    information : ndarray, shape (sets, d, d)
    lengths : ndarray, shape (sets,)
        Of the gradients at the modes; a mode is within length / ridge of the true one.
    """
    d = (classes - 1) * p
    modes, found, lengths = np.zeros((len(x), d)), np.zeros((len(x), d, d)), np.zeros(len(x))
    for s in range(len(x)):
        beta = np.zeros(d)
        value = log_posterior(x[s], y[s], beta, p, ridge)
        for _ in range(MOST_STEPS):
            gradient, information = _slope(x[s], y[s], beta, p, ridge)
            lengths[s] = math.sqrt((gradient * gradient).sum())
            lower, _, good = _factor(information)
            if lengths[s] < tolerance or not good:
                break
            step = _solve(lower, gradient)
            for _halving in range(MOST_HALVINGS):
                tried = log_posterior(x[s], y[s], beta + step, p, ridge)
                if tried >= value - 1e-9 * abs(value):
                    break
                step *= 0.5
            beta += step
            value = tried
        modes[s], found[s] = beta, information
    return modes, found, lengths


@numba.njit(cache=True, error_model="numpy")
def information_at(x: FloatArray, beta: FloatArray, p: int, ridge: float) -> FloatArray:
    """Return the information about ``beta``, shape (sets, d), that each design holds, with that of the prior."""
    found = np.zeros((len(x), beta.shape[1], beta.shape[1]))
    y = np.zeros(x.shape[1], dtype=np.int64)
    for s in range(len(x)):
        found[s] = _slope(x[s], y, beta[s], p, ridge)[1]
    return found


@numba.njit(cache=True, error_model="numpy")
def metropolis(
    x: FloatArray,
    y: IntArray,
    p: int,
    ridge: float,
    proposals: FloatArray,
    log_densities: FloatArray,
    uniforms: FloatArray,
) -> FloatArray:
    """Run independence chains, one for each draw, and return where they end.

    Parameters
    ----------
    x, y, p, ridge
        As in :func:`ridge_modes`.
    proposals : ndarray, shape (sets, draws, steps, d)
        The first one starts the chain.
    log_densities : ndarray, shape (sets, draws, steps)
        Of the proposals.
    uniforms : ndarray, shape (sets, draws, steps)
        That decide.

    Returns
    -------
    ndarray, shape (sets, draws, d)
    """
    sets, draws, steps, d = proposals.shape
    found = np.zeros((sets, draws, d))
    for s in range(sets):
        for m in range(draws):
            place, weight = 0, -np.inf
            for t in range(steps):
                reached = log_posterior(x[s], y[s], proposals[s, m, t], p, ridge) - log_densities[s, m, t]
                if math.log(uniforms[s, m, t]) < reached - weight:
                    place, weight = t, reached
            found[s, m] = proposals[s, m, place]
    return found
