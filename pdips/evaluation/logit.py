"""Logistic regression on a dense design: maximum likelihood that survives separation, LASSO and ridge paths."""

from dataclasses import dataclass

import numpy as np

from pdips.arrays import FloatArray

N_FOLDS = 10
N_PENALTIES = 100
_RATIO = 1e-4  # smallest over largest penalty
_LEAST_GAIN = 1e-5  # of the deviance, for going on along the path
_MOST_EXPLAINED = 0.999  # of the null deviance
_RIDGE_TOP = 1e3  # glmnet's: largest ridge penalty over the LASSO's
_MOST_STEPS = 25
_MOST_ROUNDS, _SWEEPS = 200, 5
_JITTER = 1e-10
_TOLERANCE = 1e-8
_ROUNDING = 1e-13  # of deviance, a record
_SAME = 1e-9  # relative; what varies less is constant, what adds less to others depends on them


def standardised(x: FloatArray) -> FloatArray:
    """Return columns with mean 0 and standard deviation 1, without constant ones."""
    size = np.abs(x).max(axis=0, initial=0.0)
    x = x / np.where(size > 0, size, 1.0)
    centred = x - x.mean(axis=0)
    deviation = centred.std(axis=0)
    kept = deviation > _SAME
    result: FloatArray = centred[:, kept] / deviation[kept]
    return result


def orthonormal(x: FloatArray) -> FloatArray:
    """Return uncorrelated columns of variance 1 that span the same as centred ones; dependent ones add nothing."""
    from scipy.linalg import qr

    if not x.shape[1]:
        return x
    _, r, order = qr(np.linalg.qr(x, mode="r"), mode="economic", pivoting=True)
    rank = int((np.abs(np.diag(r)) > _SAME * abs(r[0, 0])).sum())
    back = np.linalg.inv(r[:rank, :rank])
    result: FloatArray = x[:, order[:rank]] @ back * np.sqrt(len(x))
    return result


def maximum_likelihood(z: FloatArray, y: FloatArray) -> FloatArray:
    """Return fitted chances of an unpenalised logistic regression.

    Parameters
    ----------
    z : ndarray of float64, shape (records, columns)
        Without an intercept; from :func:`orthonormal`.
    y : ndarray of float64, shape (records,)
        0 or 1, both of which occur.

    Returns
    -------
    ndarray of float64, shape (records,)
        Chances of a 1.

    Notes
    -----
    Newton's method (iteratively reweighted least squares), stopped as R's ``glm`` stops: when the deviance changes by
    less than 1e-8 of itself, or after 25 steps. A step that would raise the deviance is halved. Where a combination of
    columns separates 0 from 1, maximum likelihood lies at infinity: the steps go on towards it, chances reach 0 and 1
    up to about 1e-8, and these are returned. So chances converge though coefficients don't.
    """
    from scipy.special import expit

    x = np.column_stack([np.ones(len(y)), z])
    eta = np.full(len(y), np.log(y.mean() / (1 - y.mean())))
    value = _deviance(eta, y)
    for _ in range(_MOST_STEPS):
        chance = expit(eta)
        weight = chance * (1 - chance)
        information = x.T @ (x * weight[:, None])
        information[np.diag_indices_from(information)] += 1e-12 * len(y)
        eta, new = _shortened(eta, x @ np.linalg.solve(information, x.T @ (y - chance)), value, y)
        done = abs(value - new) < _TOLERANCE * (new + 0.1)
        value = new
        if done:
            break
    result: FloatArray = expit(eta)
    return result


def _shortened(eta: FloatArray, step: FloatArray, value: float, y: FloatArray) -> tuple[FloatArray, float]:
    """Take a step, halved until it doesn't raise the deviance."""
    for _ in range(30):
        moved = eta + step
        new = _deviance(moved, y)
        if new <= value + _ROUNDING * len(y):
            return moved, new
        step = step / 2
    return eta, value


def _deviance(eta: FloatArray, y: FloatArray) -> float:
    return float(2 * (np.log(1 + np.exp(-np.abs(eta))).sum() + np.maximum(eta, 0).sum() - y @ eta))


def cross_validated(x: FloatArray, y: FloatArray, penalty: str, rng: np.random.Generator) -> FloatArray:
    """Return fitted chances of a LASSO or ridge logistic regression with its penalty from cross-validation.

    Parameters
    ----------
    x : ndarray of float64, shape (records, columns)
        Without an intercept; from :func:`standardised`.
    y : ndarray of float64, shape (records,)
        0 or 1, both of which occur.
    penalty : {"lasso", "ridge"}
        Absolute or half the squared coefficients.
    rng : numpy.random.Generator
        Deals the records out to 10 folds.

    Returns
    -------
    ndarray of float64, shape (records,)
        Chances of a 1 under the fit to all records.

    Notes
    -----
    As ``cv.glmnet`` with ``lambda.min`` (Friedman, Hastie and Tibshirani 2010): minimise the mean negative log
    likelihood + lambda * penalty, the intercept free, for 100 lambdas in geometric progression from one that leaves no
    column in (a thousand times that for ridge) to 1e-4 of it, or until the deviance hardly falls; take the lambda with
    the smallest deviance over the folds left out, and all records.
    """
    path = _path(x, y, penalty, _penalties(x, y, penalty))
    if len(path.penalties) == 1:
        return path.chances(x, 0)
    fold = rng.permutation(np.arange(len(y)) % N_FOLDS)
    loss = np.zeros(len(path.penalties))
    for j in range(min(N_FOLDS, len(y))):
        inside = fold != j
        if len(np.unique(y[inside])) < 2:
            continue
        fitted = _path(x[inside], y[inside], penalty, path.penalties, whole=True)
        loss += [_deviance(eta, y[~inside]) for eta in fitted.log_odds(x[~inside])]
    return path.chances(x, int(loss.argmin()))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Fits:
    penalties: FloatArray
    intercepts: FloatArray
    coefficients: FloatArray

    def log_odds(self, x: FloatArray) -> FloatArray:
        return self.intercepts[:, None] + self.coefficients @ x.T

    def chances(self, x: FloatArray, place: int) -> FloatArray:
        from scipy.special import expit

        result: FloatArray = expit(self.intercepts[place] + x @ self.coefficients[place])
        return result


def _penalties(x: FloatArray, y: FloatArray, penalty: str) -> FloatArray:
    top = float(np.abs(x.T @ (y - y.mean())).max(initial=0.0)) / len(y)
    if top == 0.0:
        return np.ones(1)
    return top * (_RIDGE_TOP if penalty == "ridge" else 1.0) * np.geomspace(1.0, _RATIO, N_PENALTIES)


def _path(x: FloatArray, y: FloatArray, penalty: str, penalties: FloatArray, *, whole: bool = False) -> _Fits:
    """Fit along falling penalties, each from the last; ``whole`` says not to stop early."""
    intercept, beta = float(np.log(y.mean() / (1 - y.mean()))), np.zeros(x.shape[1])
    null = last = _deviance(np.full(len(y), intercept), y)
    intercepts, betas = [], []
    for place, size in enumerate(penalties):
        intercept, beta = penalised(x, y, penalty, float(size), (intercept, beta))
        intercepts.append(intercept)
        betas.append(beta)
        value = _deviance(intercept + x @ beta, y)
        flat = place >= 5 and penalty == "lasso" and last - value < _LEAST_GAIN * (null - value)
        if not whole and (flat or value < (1 - _MOST_EXPLAINED) * null):
            break
        last = value
    n = len(betas)
    return _Fits(penalties=penalties[:n], intercepts=np.array(intercepts), coefficients=np.array(betas))


def penalised(
    x: FloatArray, y: FloatArray, penalty: str, size: float, start: tuple[float, FloatArray]
) -> tuple[float, FloatArray]:
    """Return intercept and coefficients that minimise mean negative log-likelihood + size * penalty.

    Proximal Newton: the log-likelihood's quadratic at the last fit, with the intercept profiled out, has a ridge
    solution in closed form, and a LASSO one that is linear once its signs are known: coordinate descent finds them.
    Steps that don't help are halved.
    """
    from scipy.special import expit

    intercept, beta = start
    eta = intercept + x @ beta
    value = _objective(eta, y, beta, penalty, size)
    for _ in range(_MOST_STEPS):
        chance = expit(eta)
        weight = np.maximum(chance * (1 - chance), 1e-6)
        centre = weight @ x / weight.sum()
        target = eta + (y - chance) / weight
        weighted = weight[:, None] * (x - centre)
        gram, product = weighted.T @ x / len(y), weighted.T @ target / len(y)
        goal = _quadratic(gram, product, penalty, size, beta)
        step = (float(weight @ target / weight.sum() - centre @ goal) - intercept, goal - beta)
        move, part = step[0] + x @ step[1], 1.0
        while (
            new := _objective(eta + part * move, y, beta + part * step[1], penalty, size)
        ) > value + _ROUNDING and part > 1e-6:
            part /= 2
        if new > value + _ROUNDING:
            break
        intercept, beta, eta = intercept + part * step[0], beta + part * step[1], eta + part * move
        done, value = value - new < _TOLERANCE, new
        if done:
            break
    return intercept, beta


def _objective(eta: FloatArray, y: FloatArray, beta: FloatArray, penalty: str, size: float) -> float:
    cost = np.abs(beta).sum() if penalty == "lasso" else 0.5 * beta @ beta
    return _deviance(eta, y) / (2 * len(y)) + size * float(cost)


def _quadratic(gram: FloatArray, product: FloatArray, penalty: str, size: float, start: FloatArray) -> FloatArray:
    """Minimise b' gram b / 2 - product' b + size * penalty(b)."""
    k = len(product)
    if penalty == "ridge" or not k:
        solved: FloatArray = np.linalg.solve(gram + size * np.eye(k), product)
        return solved
    gram = gram + _JITTER * np.eye(k)
    beta = start.copy()
    for _ in range(_MOST_ROUNDS):
        exact = _with_signs(gram, product, size, np.sign(beta))
        if exact is not None:
            return exact
        _sweep(gram, product, size, beta)
    return beta


def _with_signs(gram: FloatArray, product: FloatArray, size: float, signs: FloatArray) -> FloatArray | None:
    """Return the LASSO solution if it has these signs: on them it is linear, and the conditions for it are checked."""
    kept = np.flatnonzero(signs)
    beta = np.zeros(len(signs))
    beta[kept] = np.linalg.solve(gram[np.ix_(kept, kept)], product[kept] - size * signs[kept])
    out = signs == 0
    agrees = (np.sign(beta) == signs).all() and (np.abs(product - gram @ beta)[out] <= size * (1 + 1e-9)).all()
    return beta if agrees else None


def _sweep(gram: FloatArray, product: FloatArray, size: float, beta: FloatArray) -> None:
    """Improve each coefficient in turn, in place, a few times over."""
    rest = product - gram @ beta
    for j in [*range(len(beta))] * _SWEEPS:
        pull = rest[j] + gram[j, j] * beta[j]
        new = np.copysign(max(abs(pull) - size, 0.0), pull) / gram[j, j]
        if new != beta[j]:
            rest -= gram[j] * (new - beta[j])
            beta[j] = new
