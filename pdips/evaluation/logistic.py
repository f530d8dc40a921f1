"""Logistic regression for propensity scores: maximum likelihood, a fixed ridge, LASSO and ridge by cross-validation."""

import warnings
from typing import Any

import numpy as np

from pdips.arrays import FloatArray

RIDGE = 0.01
"""Half of it times the sum of squared coefficients is taken off the log-likelihood of SPECKS."""
N_FOLDS, N_PENALTIES = 10, 100
_RATIO = 1e-4  # smallest over largest penalty
_LEAST_GAIN = 1e-5  # of the deviance, for going on along the path
_MOST_EXPLAINED = 0.999  # of the null deviance
_RIDGE_TOP = 1e3  # glmnet's: largest ridge penalty over the LASSO's
_MOST_STEPS, _MOST_ROUNDS, _SWEEPS = 25, 200, 5
_MOST_RIDGE_STEPS = 500
_JITTER = 1e-10
_TOLERANCE = 1e-8
_ROUNDING = 1e-13  # of deviance, a record
_SAME = 1e-9  # relative; what varies less is constant, what adds less to others depends on them


def expit(log_odds: Any) -> Any:
    """Return chances; scipy is imported when they are first asked for."""
    from scipy.special import expit as chances

    return chances(log_odds)


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
    """Return fitted chances of a 1 in a logistic regression without a penalty.

    Parameters
    ----------
    z : ndarray of float64, shape (records, columns)
        Without an intercept; from :func:`orthonormal`.
    y : ndarray of float64, shape (records,)
        0 or 1, both of which occur.

    Notes
    -----
    Where a combination of columns separates 0 from 1, maximum likelihood lies at infinity, but chances converge, to 0
    and 1. A ridge of 1e-12 a record, which moves no other fit by more than that, keeps the equations solvable, and the
    steps end when the likelihood hardly rises: chances are then right up to about 1e-8.
    """
    start = float(np.log(y.mean() / (1 - y.mean())))
    intercept, beta = penalised(z, y, "ridge", 1e-12, (start, np.zeros(z.shape[1])), least_weight=1e-12)
    chances: FloatArray = expit(intercept + z @ beta)
    return chances


def ridge_logistic(
    features: Any, n_original: FloatArray, n_synthetic: FloatArray, *, ridge: float = RIDGE
) -> tuple[FloatArray, FloatArray]:
    """Tell synthetic records from confidential ones by a ridge-penalised logistic regression on groups of records.

    Parameters
    ----------
    features : scipy.sparse array, shape (groups, coefficients)
        Without an intercept.
    n_original, n_synthetic : ndarray of float64, shape (groups,)
        Records of each table in each group; neither may be 0 throughout.
    ridge : float
        Half of it times the sum of squared coefficients, the intercept's left out, is taken off the log-likelihood.

    Returns
    -------
    coefficients : ndarray of float64, shape (coefficients,)
        Without the intercept.
    log_odds : ndarray of float64, shape (groups,)
        Of being synthetic, natural logarithms.
    """
    from scipy.sparse import vstack
    from sklearn.linear_model import LogisticRegression

    if not features.shape[1]:
        return np.zeros(0), np.full(len(n_original), np.log(n_synthetic.sum() / n_original.sum()))
    both = np.concatenate([n_original, n_synthetic])
    synthetic = np.repeat([0, 1], len(n_original))[both > 0]
    rows = vstack([features[n_original > 0], features[n_synthetic > 0]], format="csr")
    model = LogisticRegression(
        C=1 / ridge if ridge else np.inf, solver="newton-cholesky", tol=1e-9, max_iter=_MOST_RIDGE_STEPS
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it goes on by another method where rounding stops this one
        model.fit(rows, synthetic, sample_weight=both[both > 0])
    if model.n_iter_[0] >= _MOST_RIDGE_STEPS:
        warnings.warn("the classifier of SPECKS has not converged", RuntimeWarning, stacklevel=3)
    coefficients: FloatArray = model.coef_[0]
    return coefficients, features @ coefficients + model.intercept_[0]


def _deviance(eta: FloatArray, y: FloatArray) -> float:
    return float(2 * (np.log(1 + np.exp(-np.abs(eta))).sum() + np.maximum(eta, 0).sum() - y @ eta))


def cross_validated(x: FloatArray, y: FloatArray, penalty: str, rng: np.random.Generator) -> FloatArray:
    """Return fitted chances of a 1 in a LASSO or ridge logistic regression with its penalty from cross-validation.

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

    Notes
    -----
    As ``cv.glmnet`` with ``lambda.min`` (Friedman, Hastie and Tibshirani 2010): minimise the mean negative log
    likelihood + lambda * penalty, the intercept free, for 100 lambdas in geometric progression from one that leaves no
    column in (a thousand times that for ridge) to 1e-4 of it, or until the deviance hardly falls; take the lambda with
    the smallest deviance over the folds left out, and all records. scikit-learn's ``LogisticRegressionCV`` takes ten
    times as long, and another penalty a record inside the folds than outside.
    """
    sizes = _penalties(x, y, penalty)
    path = _path(x, y, penalty, sizes)
    loss = np.zeros(len(path))
    fold = rng.permutation(np.arange(len(y)) % N_FOLDS)
    for inside in (fold != j for j in range(min(N_FOLDS, len(y)) if len(path) > 1 else 0)):
        if len(np.unique(y[inside])) == 2:
            fits = _path(x[inside], y[inside], penalty, sizes[: len(path)], whole=True)
            loss += [_deviance(intercept + x[~inside] @ beta, y[~inside]) for intercept, beta in fits]
    intercept, beta = path[int(loss.argmin())]
    chances: FloatArray = expit(intercept + x @ beta)
    return chances


def _penalties(x: FloatArray, y: FloatArray, penalty: str) -> FloatArray:
    top = float(np.abs(x.T @ (y - y.mean())).max(initial=0.0)) / len(y)
    if top == 0.0:
        return np.ones(1)
    return top * (_RIDGE_TOP if penalty == "ridge" else 1.0) * np.geomspace(1.0, _RATIO, N_PENALTIES)


def _path(
    x: FloatArray, y: FloatArray, penalty: str, penalties: FloatArray, *, whole: bool = False
) -> list[tuple[float, FloatArray]]:
    """Fit along falling penalties, each from the last; ``whole`` says not to stop early."""
    intercept, beta = float(np.log(y.mean() / (1 - y.mean()))), np.zeros(x.shape[1])
    null = last = _deviance(np.full(len(y), intercept), y)
    fits = []
    for place, size in enumerate(penalties):
        intercept, beta = penalised(x, y, penalty, float(size), (intercept, beta))
        fits.append((intercept, beta))
        value = _deviance(intercept + x @ beta, y)
        flat = place >= 5 and penalty == "lasso" and last - value < _LEAST_GAIN * (null - value)
        if not whole and (flat or value < (1 - _MOST_EXPLAINED) * null):
            break
        last = value
    return fits


def penalised(
    x: FloatArray,
    y: FloatArray,
    penalty: str,
    size: float,
    start: tuple[float, FloatArray],
    *,
    least_weight: float = 1e-6,
) -> tuple[float, FloatArray]:
    """Return intercept and coefficients that minimise mean negative log-likelihood + size * penalty.

    Proximal Newton: the log-likelihood's quadratic at the last fit, with the intercept profiled out, has a ridge
    solution in closed form, and a LASSO one that is linear once its signs are known: coordinate descent finds them.
    Steps that don't help are halved.
    """
    intercept, beta = start
    eta = intercept + x @ beta
    value = _objective(eta, y, beta, penalty, size)
    for _ in range(_MOST_STEPS):
        chance = expit(eta)
        weight = np.maximum(chance * (1 - chance), least_weight)
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
