"""pMSE by a LASSO logistic regression with its penalty from cross-validation, for wide
or sparse tables. For inside use only.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from sklearn.linear_model import Lasso

from pdips.arrays import BoolArray, FloatArray
from pdips.evaluation.encoding import TableLike, paired
from pdips.evaluation.logistic import Fitted, deviance, penalised, standardised
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


@dataclass(frozen=True)
class LassoPenalty:
    """A number times the sum of absolute coefficients, added to a mean negative
    log-likelihood.
    """

    size: float
    least_weight: float = 1e-6

    def cost(self, coefficients: FloatArray) -> float:
        return self.size * float(np.abs(coefficients).sum())

    def minimum(
        self, gram: FloatArray, product: FloatArray, start: FloatArray
    ) -> FloatArray:
        """Return the b that minimises b' gram b / 2 - product' b + size |b|."""
        k = len(product)
        if not k:
            return product
        root = np.sqrt(k) * np.linalg.cholesky(gram + _JITTER * np.eye(k))
        model = Lasso(
            alpha=self.size,
            fit_intercept=False,
            tol=_LASSO_GAP,
            max_iter=_MOST_ROUNDS,
            warm_start=True,
        )
        model.coef_ = start.copy()
        return np.asarray(model.fit(root.T, k * np.linalg.solve(root, product)).coef_)


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
        intercept, beta = penalised(x, y, LassoPenalty(float(size)), (intercept, beta))
        fits.append((intercept, beta))
        value = deviance(intercept + x @ beta, y)
        flat = last - value < _LEAST_GAIN * (null - value)
        explained = value < (1 - _MOST_EXPLAINED) * null
        if not whole and (explained or (flat and number >= _LEAST_PENALTIES)):
            break
        last = value
    return fits
