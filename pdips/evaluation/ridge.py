"""Logistic regression with a ridge penalty on many sparse indicators: the classifier behind SPECKS."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdips.arrays import FloatArray

RIDGE = 0.01
_TOLERANCE = 1e-8  # nats
_MOST_STEPS = 100
_MOST_INNER_STEPS = 40
_INNER_TOLERANCE = 1e-4  # of the squared residual
_JITTER = 1e-9  # on the intercept, which has no penalty


def ridge_logistic(
    features: Any, n_original: FloatArray, n_synthetic: FloatArray, *, ridge: float = RIDGE
) -> FloatArray:
    """Return log odds that a record of each group is synthetic, by ridge-penalised logistic regression.

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
    ndarray of float64, shape (groups,)
        Log odds, natural logarithms.

    Warns
    -----
    RuntimeWarning
        If 100 steps don't suffice.

    Notes
    -----
    Newton's method from the null model, with halved steps where a whole one gains less than it should. The last step is
    the first that promises less than 1e-8 nats. The information matrix is built for the first step; later steps are
    found by conjugate gradients with its factor as preconditioner, and it is built anew when these take more than 40
    rounds.
    """
    return ridge_fit(features, n_original, n_synthetic, ridge=ridge)[1]


def ridge_fit(
    features: Any, n_original: FloatArray, n_synthetic: FloatArray, *, ridge: float = RIDGE
) -> tuple[FloatArray, FloatArray]:
    """Return the coefficients, the intercept first, and what :func:`ridge_logistic` returns."""
    problem = _Problem(features=features, by_column=features.T.tocsr(), n=n_original + n_synthetic, hits=n_synthetic)
    beta = np.zeros(features.shape[1] + 1)
    beta[0] = np.log(n_synthetic.sum() / n_original.sum())
    value, log_odds = problem.value(beta, ridge)
    factor = None
    for _ in range(_MOST_STEPS):
        step, promise, factor = problem.step(beta, log_odds, ridge, factor)
        if promise < _TOLERANCE:
            return beta + step, problem.value(beta + step, ridge)[1]
        scale = 1.0
        while (new := problem.value(beta + scale * step, ridge))[0] < value + 1e-4 * scale * promise:
            scale /= 2
            if scale < 1e-9:  # what is left to gain is lost in rounding
                return beta, log_odds
        beta, (value, log_odds) = beta + scale * step, new
    warnings.warn("the classifier of SPECKS has not converged", RuntimeWarning, stacklevel=3)
    return beta, log_odds


@dataclass(frozen=True, kw_only=True, eq=False)
class _Problem:
    """Binomial counts on sparse features; coefficients have the intercept first."""

    features: Any
    by_column: Any
    n: FloatArray
    hits: FloatArray

    def value(self, beta: FloatArray, ridge: float) -> tuple[float, FloatArray]:
        """Return the penalised log-likelihood and the log odds."""
        log_odds: FloatArray = self.features @ beta[1:] + beta[0]
        fit = self.hits @ log_odds - self.n @ np.logaddexp(0, log_odds)
        return float(fit - ridge / 2 * beta[1:] @ beta[1:]), log_odds

    def step(self, beta: FloatArray, log_odds: FloatArray, ridge: float, factor: Any) -> tuple[FloatArray, float, Any]:
        """Return a Newton step, the gain in nats that it promises, and the factor to precondition the next one with."""
        from scipy.linalg import cho_factor, cho_solve
        from scipy.special import expit

        chance = expit(log_odds)
        weight = self.n * chance * expit(-log_odds)
        penalty = np.concatenate([[_JITTER], np.full(len(beta) - 1, ridge)])
        score = self._totals(self.hits - self.n * chance)
        score[1:] -= ridge * beta[1:]
        found = self._by_gradients(score, weight, penalty, factor) if factor else None
        if found is None:
            factor = cho_factor(self._information(weight) + np.diag(penalty), overwrite_a=True)
            found = cho_solve(factor, score)
        return found, float(score @ found) / 2, factor

    def _totals(self, values: FloatArray) -> FloatArray:
        return np.concatenate([[values.sum()], self.by_column @ values])

    def _information(self, weight: FloatArray) -> FloatArray:
        from scipy.sparse import diags_array

        size = self.features.shape[1] + 1
        information = np.empty((size, size))
        information[1:, 1:] = (self.by_column @ (diags_array(weight) @ self.features)).toarray()
        information[0] = information[:, 0] = self._totals(weight)
        return information

    def _by_gradients(
        self, score: FloatArray, weight: FloatArray, penalty: FloatArray, factor: Any
    ) -> FloatArray | None:
        """Return the solution by preconditioned conjugate gradients, or None if it takes too long."""
        from scipy.linalg import cho_solve

        found, left = np.zeros_like(score), score
        toward = direction = cho_solve(factor, left)
        size = first = float(left @ toward)
        for _ in range(_MOST_INNER_STEPS):
            if size <= _INNER_TOLERANCE * first:
                return found
            image = self._totals(weight * (self.features @ direction[1:] + direction[0])) + penalty * direction
            length = size / float(direction @ image)
            found, left = found + length * direction, left - length * image
            toward = cho_solve(factor, left)
            size, last = float(left @ toward), size
            direction = toward + size / last * direction
        return None
