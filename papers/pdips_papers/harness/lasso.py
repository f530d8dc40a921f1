"""pMSE by a LASSO logistic regression with its penalty from cross-validation, for wide
or sparse tables. For inside use only.
"""

import numpy as np
from scipy.special import expit
from sklearn.linear_model import Lasso

from pdips.arrays import BoolArray, FloatArray
from pdips.evaluation.encoding import TableLike, paired
from pdips.evaluation.logistic import standardised
from pdips.evaluation.propensity import design_of

N_FOLDS = 10
N_PENALTIES = 100
_RATIO = 1e-4  # smallest over largest penalty
_LEAST_GAIN = 1e-5  # of the deviance, for going on along the path
_LEAST_PENALTIES = 5  # before a path may end for its gain
_MOST_EXPLAINED = 0.999  # of the null deviance
_MOST_ROUNDS = 10_000
_LASSO_GAP = 1e-9
_JITTER = 1e-10
_MOST_STEPS = 25
_LEAST_STEP = 1e-6
_LEAST_WEIGHT = 1e-6  # of a record in a Newton step
_TOLERANCE = 1e-8
_ROUNDING = 1e-13  # of deviance, a record

Fitted = tuple[float, FloatArray]  # Intercept and coefficients


def lasso_pmse(
    original: TableLike, synthetic: TableLike, rng: np.random.Generator
) -> float:
    """Return :func:`pdips.evaluation.propensity.pmse` by a LASSO, which is 0 if it
    finds no difference; ``rng`` deals records out to the folds.
    """
    pairs = paired(original, synthetic)
    sizes = len(pairs[0].original), len(pairs[0].synthetic)
    x = standardised(design_of(pairs, sum(sizes), interactions=False))
    y = np.repeat([0.0, 1.0], sizes)
    chance = cross_validated(x, y, rng)
    return float(np.mean((chance - y.mean()) ** 2))


def cross_validated(
    x: FloatArray, y: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Return fitted chances of a 1 in a LASSO logistic regression with its penalty from
    cross-validation.

    As ``cv.glmnet`` with ``lambda.min`` (Friedman, Hastie and Tibshirani 2010), on
    standardised columns: minimise the mean negative log-likelihood + lambda * penalty,
    the intercept free, for 100 lambdas in geometric progression from one that leaves no
    column in to 1e-4 of it, or until the deviance hardly falls; take the lambda with
    the smallest deviance over ten folds left out, and all records. scikit-learn's
    ``LogisticRegressionCV`` takes ten times as long, and another penalty a record
    inside the folds than outside.
    """
    top = float(np.abs(x.T @ (y - y.mean())).max(initial=0.0)) / len(y)
    penalties = np.ones(1)
    if top:
        penalties = top * np.geomspace(1.0, _RATIO, N_PENALTIES)
    path = _path(x, y, penalties)
    loss = np.zeros(len(path))
    n_folds = min(N_FOLDS, len(y)) if len(path) > 1 else 0
    fold = rng.permutation(np.arange(len(y)) % N_FOLDS)
    for j in range(n_folds):
        loss += _left_out_loss(x, y, fold != j, penalties[: len(path)])
    intercept, beta = path[int(loss.argmin())]
    return np.asarray(expit(intercept + x @ beta))


def _left_out_loss(
    x: FloatArray, y: FloatArray, inside: BoolArray, penalties: FloatArray
) -> FloatArray:
    """Return the deviance of the records outside at each penalty; 0 where those inside
    have one outcome only.
    """
    if len(np.unique(y[inside])) < 2:
        return np.zeros(len(penalties))
    fits = _path(x[inside], y[inside], penalties, whole=True)
    outside = ~inside
    return np.array([deviance(b + x[outside] @ beta, y[outside]) for b, beta in fits])


def _path(
    x: FloatArray, y: FloatArray, penalties: FloatArray, *, whole: bool = False
) -> list[Fitted]:
    """Fit along falling penalties, each from the last; ``whole`` says not to stop
    early.
    """
    intercept = float(np.log(y.mean() / (1 - y.mean())))
    beta = np.zeros(x.shape[1])
    null = deviance(np.full(len(y), intercept), y)
    last = null
    fits = []
    for number, size in enumerate(penalties):
        intercept, beta = penalised(x, y, float(size), (intercept, beta))
        fits.append((intercept, beta))
        value = deviance(intercept + x @ beta, y)
        flat = last - value < _LEAST_GAIN * (null - value)
        explained = value < (1 - _MOST_EXPLAINED) * null
        if not whole and (explained or (flat and number >= _LEAST_PENALTIES)):
            break
        last = value
    return fits


def penalised(x: FloatArray, y: FloatArray, size: float, start: Fitted) -> Fitted:
    """Return intercept and coefficients that minimise mean negative log-likelihood +
    ``size`` times the sum of absolute coefficients.

    Proximal Newton: each step minimises the log-likelihood's quadratic at the last fit,
    with the intercept profiled out, and the penalty; steps that don't help are halved.
    """
    intercept, beta = start
    eta = intercept + x @ beta
    value = _objective(eta, beta, y, size)
    for _ in range(_MOST_STEPS):
        goal_intercept, goal = _newton_goal(x, y, eta, beta, size)
        ahead = goal_intercept - intercept
        toward = goal - beta
        move = ahead + x @ toward
        part = 1.0
        new = _objective(eta + move, beta + toward, y, size)
        while new > value + _ROUNDING and part > _LEAST_STEP:
            part /= 2
            new = _objective(eta + part * move, beta + part * toward, y, size)
        if new > value + _ROUNDING:
            break
        intercept = intercept + part * ahead
        beta = beta + part * toward
        eta = eta + part * move
        is_done = value - new < _TOLERANCE
        value = new
        if is_done:
            break
    return intercept, beta


def _newton_goal(
    x: FloatArray, y: FloatArray, eta: FloatArray, beta: FloatArray, size: float
) -> Fitted:
    """Return where the quadratic of the log-likelihood at ``eta``, with the penalty,
    has its minimum.
    """
    chance = expit(eta)
    weight = np.maximum(chance * (1 - chance), _LEAST_WEIGHT)
    total = weight.sum()
    weighted = x.T * weight
    centre = weighted.sum(axis=1) / total
    target = eta + (y - chance) / weight
    middle = float(weight @ target / total)
    gram = (weighted @ x - total * np.outer(centre, centre)) / len(y)
    product = (weighted @ target - total * middle * centre) / len(y)
    goal = _lasso_minimum(gram, product, beta, size)
    return middle - float(centre @ goal), goal


def _lasso_minimum(
    gram: FloatArray, product: FloatArray, start: FloatArray, size: float
) -> FloatArray:
    """Return the b that minimises b' gram b / 2 - product' b + size |b|."""
    k = len(product)
    if not k:
        return product
    root = np.sqrt(k) * np.linalg.cholesky(gram + _JITTER * np.eye(k))
    model = Lasso(
        alpha=size,
        fit_intercept=False,
        tol=_LASSO_GAP,
        max_iter=_MOST_ROUNDS,
        warm_start=True,
    )
    model.coef_ = start.copy()
    return np.asarray(model.fit(root.T, k * np.linalg.solve(root, product)).coef_)


def _objective(eta: FloatArray, beta: FloatArray, y: FloatArray, size: float) -> float:
    return deviance(eta, y) / (2 * len(y)) + size * float(np.abs(beta).sum())


def deviance(eta: FloatArray, y: FloatArray) -> float:
    """Return minus twice the log-likelihood of outcomes at these log odds."""
    # log(1 + exp(eta)) without overflow
    log_normaliser = np.log1p(np.exp(-np.abs(eta))) + np.maximum(eta, 0)
    return float(2 * (log_normaliser.sum() - y @ eta))
