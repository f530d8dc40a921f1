"""Logistic regression for propensity scores: maximum likelihood, and a fixed ridge."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Protocol

import numpy as np
from scipy.linalg import qr
from scipy.sparse import csr_array, vstack
from scipy.special import expit

from pdips.arrays import FloatArray, IntArray

# Half of it times the sum of squared coefficients is taken off the log-likelihood of
# SPECKS
RIDGE = 0.01
_MOST_STEPS = 25
_LEAST_STEP = 1e-6
_JITTER = 1e-10
_TOLERANCE = 1e-8
_ROUNDING = 1e-13  # of deviance, a record
# relative; what varies less is constant, what adds less to others depends on them
_SAME = 1e-9


def standardised(x: FloatArray) -> FloatArray:
    """Return columns with mean 0 and standard deviation 1, without constant ones."""
    size = np.abs(x).max(axis=0, initial=0.0)
    x = x / np.where(size > 0, size, 1.0)
    centred = x - x.mean(axis=0)
    deviation = centred.std(axis=0)
    kept = deviation > _SAME
    return np.asarray(centred[:, kept] / deviation[kept])


def orthonormal(x: FloatArray) -> FloatArray:
    """Return uncorrelated columns of variance 1 that span the same as centred ones;
    dependent ones add nothing.
    """
    if not x.shape[1]:
        return x
    _, r, order = qr(np.linalg.qr(x, mode="r"), mode="economic", pivoting=True)
    lengths = np.abs(np.diag(r))
    rank = int((lengths > _SAME * lengths[0]).sum())
    back = np.linalg.inv(r[:rank, :rank])
    return np.asarray(x[:, order[:rank]] @ back * np.sqrt(len(x)))


def maximum_likelihood(z: FloatArray, y: FloatArray) -> FloatArray:
    """Return fitted chances of a 1 in a logistic regression without a penalty on
    columns from :func:`orthonormal`.

    Where a combination of columns separates 0 from 1, maximum likelihood lies at
    infinity, but chances converge, to 0 and 1. A ridge of 1e-12 a record, which moves
    no other fit by more than that, keeps the equations solvable, and the steps end when
    the likelihood hardly rises: chances are then right up to about 1e-8.
    """
    start = float(np.log(y.mean() / (1 - y.mean())))
    ridge = RidgePenalty(1e-12, least_weight=1e-12)
    intercept, beta = penalised(z, y, ridge, (start, np.zeros(z.shape[1])))
    return np.asarray(expit(intercept + z @ beta))


def places_of(
    codes: IntArray, sizes: Sequence[int], *, interactions: bool
) -> Iterator[IntArray]:
    """Give each record's place among the indicators of all levels, a column at a time,
    then of all pairs of levels.

    The place is -1 where a code is.
    """
    start = 0
    for column, size in zip(codes.T, sizes, strict=True):
        yield np.where(column < 0, -1, column + start)
        start += size
    for i, j in combinations(range(len(sizes)), 2) if interactions else ():
        a = codes[:, i]
        b = codes[:, j]
        place = a * sizes[j] + b + start
        yield np.where((a < 0) | (b < 0), -1, place)
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
        column = (np.cumsum(used) - 1)[column]
        n_coefficients = int(used.sum())
    ends = np.cumsum(there.sum(axis=1))
    return csr_array(
        (np.ones(len(column)), column, np.append(0, ends)),
        shape=(len(at), n_coefficients),
    )


def ridge_logistic(
    features: Any, n_original: FloatArray, n_synthetic: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return coefficients and log odds of being synthetic of groups of records, by
    ridge-penalised logistic regression.

    Features are sparse, without an intercept; half of ``RIDGE`` times the sum of
    squared coefficients, the intercept's left out, is taken off the log-likelihood.
    Neither table may have no records at all. Where coefficients are more than records,
    they are sought as sums of the records' features, which those at the maximum are.
    """
    from sklearn.linear_model import LogisticRegression

    if not features.shape[1]:  # all records are equal
        odds = np.log(n_synthetic.sum() / n_original.sum())
        return np.zeros(0), np.full(len(n_original), odds)
    model = LogisticRegression(C=1 / RIDGE, solver="newton-cholesky", tol=_TOLERANCE)
    labels = np.repeat([0, 1], len(n_original))
    weights = np.concatenate([n_original, n_synthetic])
    is_wide = features.shape[1] > features.shape[0]
    seen = features
    both = vstack([seen, seen], format="csr")
    if is_wide:
        gram = (features @ features.T).toarray()
        jitter = _JITTER * gram.max() * np.eye(len(gram))
        seen = np.linalg.cholesky(gram + jitter)
        both = np.concatenate([seen, seen])
    with warnings.catch_warnings():
        # at the maximum rounding leaves no way up
        warnings.filterwarnings("ignore", "Line search", module="sklearn")
        model.fit(both, labels, sample_weight=weights)
    coefficients: FloatArray = model.coef_[0]
    log_odds = seen @ coefficients + model.intercept_[0]
    if is_wide:
        coefficients = features.T @ np.linalg.solve(seen.T, coefficients)
    return coefficients, log_odds


Fitted = tuple[float, FloatArray]  # Intercept and coefficients


class Penalty(Protocol):
    """What is added to a mean negative log-likelihood."""

    @property
    def least_weight(self) -> float:
        """The least weight of a record in a Newton step."""

    def cost(self, coefficients: FloatArray) -> float:
        """Return what is added."""

    def minimum(
        self, gram: FloatArray, product: FloatArray, start: FloatArray
    ) -> FloatArray:
        """Return the b that minimises b' gram b / 2 - product' b + cost(b)."""


@dataclass(frozen=True)
class RidgePenalty:
    """Half a number times the sum of squared coefficients."""

    size: float
    least_weight: float = 1e-6

    def cost(self, coefficients: FloatArray) -> float:
        return self.size * 0.5 * float(coefficients @ coefficients)

    def minimum(
        self, gram: FloatArray, product: FloatArray, start: FloatArray
    ) -> FloatArray:
        ridge = self.size * np.eye(len(product))
        return np.asarray(np.linalg.solve(gram + ridge, product))


def penalised(x: FloatArray, y: FloatArray, penalty: Penalty, start: Fitted) -> Fitted:
    """Return intercept and coefficients that minimise mean negative log-likelihood +
    penalty.

    Proximal Newton: each step minimises the log-likelihood's quadratic at the last fit,
    with the intercept profiled out, and the penalty; steps that don't help are halved.
    """
    intercept, beta = start
    eta = intercept + x @ beta
    value = _objective(eta, beta, y, penalty)
    for _ in range(_MOST_STEPS):
        goal_intercept, goal = _newton_goal(x, y, eta, beta, penalty)
        ahead = goal_intercept - intercept
        toward = goal - beta
        move = ahead + x @ toward
        part = 1.0
        new = _objective(eta + move, beta + toward, y, penalty)
        while new > value + _ROUNDING and part > _LEAST_STEP:
            part /= 2
            new = _objective(eta + part * move, beta + part * toward, y, penalty)
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
    x: FloatArray, y: FloatArray, eta: FloatArray, beta: FloatArray, penalty: Penalty
) -> Fitted:
    """Return where the quadratic of the log-likelihood at ``eta``, with the penalty,
    has its minimum.
    """
    chance = expit(eta)
    weight = np.maximum(chance * (1 - chance), penalty.least_weight)
    total = weight.sum()
    weighted = x.T * weight
    centre = weighted.sum(axis=1) / total
    target = eta + (y - chance) / weight
    middle = float(weight @ target / total)
    gram = (weighted @ x - total * np.outer(centre, centre)) / len(y)
    product = (weighted @ target - total * middle * centre) / len(y)
    goal = penalty.minimum(gram, product, beta)
    return middle - float(centre @ goal), goal


def _objective(
    eta: FloatArray, beta: FloatArray, y: FloatArray, penalty: Penalty
) -> float:
    return deviance(eta, y) / (2 * len(y)) + penalty.cost(beta)


def deviance(eta: FloatArray, y: FloatArray) -> float:
    """Return minus twice the log-likelihood of outcomes at these log odds."""
    # log(1 + exp(eta)) without overflow
    log_normaliser = np.log1p(np.exp(-np.abs(eta))) + np.maximum(eta, 0)
    return float(2 * (log_normaliser.sum() - y @ eta))
