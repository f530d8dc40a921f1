"""Logistic regression for propensity scores: maximum likelihood, a fixed ridge, LASSO and ridge by cross-validation."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.linalg import qr
from scipy.sparse import csr_array, vstack
from scipy.special import expit

from pdips.arrays import FloatArray, IntArray

RIDGE = 0.01  # Half of it times the sum of squared coefficients is taken off the log-likelihood of SPECKS
N_FOLDS, N_PENALTIES = 10, 100
_RATIO = 1e-4  # smallest over largest penalty
_LEAST_GAIN = 1e-5  # of the deviance, for going on along the path
_MOST_EXPLAINED = 0.999  # of the null deviance
_RIDGE_TOP = 1e3  # glmnet's: largest ridge penalty over the LASSO's
_MOST_STEPS, _MOST_ROUNDS, _LASSO_GAP = 25, 10_000, 1e-9
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
    return np.asarray(centred[:, kept] / deviation[kept])


def orthonormal(x: FloatArray) -> FloatArray:
    """Return uncorrelated columns of variance 1 that span the same as centred ones; dependent ones add nothing."""
    if not x.shape[1]:
        return x
    _, r, order = qr(np.linalg.qr(x, mode="r"), mode="economic", pivoting=True)
    rank = int((np.abs(np.diag(r)) > _SAME * abs(r[0, 0])).sum())
    return np.asarray(x[:, order[:rank]] @ np.linalg.inv(r[:rank, :rank]) * np.sqrt(len(x)))


def maximum_likelihood(z: FloatArray, y: FloatArray) -> FloatArray:
    """Return fitted chances of a 1 in a logistic regression without a penalty on columns from :func:`orthonormal`.

    Where a combination of columns separates 0 from 1, maximum likelihood lies at infinity, but chances converge, to 0
    and 1. A ridge of 1e-12 a record, which moves no other fit by more than that, keeps the equations solvable, and the
    steps end when the likelihood hardly rises: chances are then right up to about 1e-8.
    """
    start = float(np.log(y.mean() / (1 - y.mean())))
    intercept, beta = penalised(z, y, "ridge", 1e-12, (start, np.zeros(z.shape[1])), least_weight=1e-12)
    return np.asarray(expit(intercept + z @ beta))


def places_of(codes: IntArray, sizes: Sequence[int], *, interactions: bool) -> Iterator[IntArray]:
    """Give each record's place among the indicators of all levels, a column at a time, then of all pairs of levels.

    The place is -1 where a code is.
    """
    start = 0
    for column, size in zip(codes.T, sizes, strict=True):
        yield np.where(column < 0, -1, column + start)
        start += size
    for i, j in combinations(range(len(sizes)), 2) if interactions else ():
        a, b = codes[:, i], codes[:, j]
        yield np.where((a < 0) | (b < 0), -1, a * sizes[j] + b + start)
        start += sizes[i] * sizes[j]


def indicators_at(places: Iterable[IntArray], n_coefficients: int | None = None) -> Any:
    """Return sparse indicators, a row a record, with a 1 at each of its places.

    Without a number of coefficients those that are 0 throughout are left out.
    """
    at = np.column_stack([*places])
    there = at >= 0
    column = at[there]
    if n_coefficients is None:
        used = np.bincount(column, minlength=1) > 0
        column, n_coefficients = (np.cumsum(used) - 1)[column], int(used.sum())
    ends = np.cumsum(there.sum(axis=1))
    return csr_array((np.ones(len(column)), column, np.append(0, ends)), shape=(len(at), n_coefficients))


def ridge_logistic(features: Any, n_original: FloatArray, n_synthetic: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return coefficients and log odds of being synthetic of groups of records, by ridge-penalised logistic regression.

    Features are sparse, without an intercept; half of ``RIDGE`` times the sum of squared coefficients, the intercept's
    left out, is taken off the log-likelihood. Neither table may have no records at all. Where coefficients are more
    than records, they are sought as sums of the records' features, which those at the maximum are.
    """
    from sklearn.linear_model import LogisticRegression

    if not features.shape[1]:  # all records are equal
        return np.zeros(0), np.full(len(n_original), np.log(n_synthetic.sum() / n_original.sum()))
    model = LogisticRegression(C=1 / RIDGE, solver="newton-cholesky", tol=_TOLERANCE)
    labels, weights = np.repeat([0, 1], len(n_original)), np.concatenate([n_original, n_synthetic])
    seen = features
    if wide := features.shape[1] > features.shape[0]:
        alike = (features @ features.T).toarray()
        seen = np.linalg.cholesky(alike + _JITTER * alike.max() * np.eye(len(alike)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Line search", module="sklearn")  # at the maximum rounding leaves no way up
        both = np.concatenate([seen, seen]) if wide else vstack([seen, seen], format="csr")
        model.fit(both, labels, sample_weight=weights)
    found: FloatArray = model.coef_[0]
    return features.T @ np.linalg.solve(seen.T, found) if wide else found, seen @ found + model.intercept_[0]


def cross_validated(x: FloatArray, y: FloatArray, penalty: str, rng: np.random.Generator) -> FloatArray:
    """Return fitted chances of a 1 in a LASSO or ridge logistic regression with its penalty from cross-validation.

    As ``cv.glmnet`` with ``lambda.min`` (Friedman, Hastie and Tibshirani 2010), on columns from :func:`standardised`:
    minimise the mean negative log-likelihood + lambda * penalty, the intercept free, for 100 lambdas in geometric
    progression from one that leaves no column in (a thousand times that for ridge) to 1e-4 of it, or until the deviance
    hardly falls; take the lambda with the smallest deviance over ten folds left out, and all records. scikit-learn's
    ``LogisticRegressionCV`` takes ten times as long, and another penalty a record inside the folds than outside.
    """
    top = float(np.abs(x.T @ (y - y.mean())).max(initial=0.0)) / len(y)
    ratios = np.geomspace(1.0, _RATIO, N_PENALTIES) * (_RIDGE_TOP if penalty == "ridge" else 1.0)
    path = _path(x, y, penalty, top * ratios if top else np.ones(1))
    loss = np.zeros(len(path))
    fold = rng.permutation(np.arange(len(y)) % N_FOLDS)
    for inside in (fold != j for j in range(min(N_FOLDS, len(y)) if len(path) > 1 else 0)):
        if len(np.unique(y[inside])) == 2:
            fits = _path(x[inside], y[inside], penalty, top * ratios[: len(path)], whole=True)
            loss += [_deviance(intercept + x[~inside] @ beta, y[~inside]) for intercept, beta in fits]
    intercept, beta = path[int(loss.argmin())]
    return np.asarray(expit(intercept + x @ beta))


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

    Proximal Newton: each step minimises the log-likelihood's quadratic at the last fit, with the intercept profiled
    out, and the penalty; steps that don't help are halved.
    """

    def objective(eta: FloatArray, beta: FloatArray) -> float:
        cost = np.abs(beta).sum() if penalty == "lasso" else 0.5 * beta @ beta
        return _deviance(eta, y) / (2 * len(y)) + size * float(cost)

    intercept, beta = start
    eta = intercept + x @ beta
    value = objective(eta, beta)
    for _ in range(_MOST_STEPS):
        chance = expit(eta)
        weight = np.maximum(chance * (1 - chance), least_weight)
        total, weighted = weight.sum(), x.T * weight
        centre, target = weighted.sum(axis=1) / total, eta + (y - chance) / weight
        middle = float(weight @ target / total)
        gram = (weighted @ x - total * np.outer(centre, centre)) / len(y)
        product = (weighted @ target - total * middle * centre) / len(y)
        if penalty == "lasso" and len(product):
            goal = _lasso(gram, product, size, beta)
        else:
            goal = np.linalg.solve(gram + size * np.eye(len(product)), product)
        ahead, toward = middle - float(centre @ goal) - intercept, goal - beta
        move, part = ahead + x @ toward, 1.0
        while (new := objective(eta + part * move, beta + part * toward)) > value + _ROUNDING and part > 1e-6:
            part /= 2
        if new > value + _ROUNDING:
            break
        intercept, beta, eta = intercept + part * ahead, beta + part * toward, eta + part * move
        done, value = value - new < _TOLERANCE, new
        if done:
            break
    return intercept, beta


def _deviance(eta: FloatArray, y: FloatArray) -> float:
    return float(2 * (np.log1p(np.exp(-np.abs(eta))).sum() + np.maximum(eta, 0).sum() - y @ eta))


def _lasso(gram: FloatArray, product: FloatArray, size: float, start: FloatArray) -> FloatArray:
    """Minimise b' gram b / 2 - product' b + size |b|."""
    from sklearn.linear_model import Lasso

    k = len(product)
    root = np.sqrt(k) * np.linalg.cholesky(gram + _JITTER * np.eye(k))
    model = Lasso(alpha=size, fit_intercept=False, tol=_LASSO_GAP, max_iter=_MOST_ROUNDS, warm_start=True)
    model.coef_ = start.copy()
    return np.asarray(model.fit(root.T, k * np.linalg.solve(root, product)).coef_)
