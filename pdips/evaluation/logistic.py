"""Logistic regression for propensity scores: maximum likelihood, and a fixed ridge."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.linalg import qr
from scipy.sparse import csr_array, vstack

from pdips.arrays import FloatArray, IntArray

# Half of it times the sum of squared coefficients is taken off the log-likelihood of
# SPECKS
RIDGE = 0.01
_LEAST_RIDGE = 1e-12  # a record: keeps equations solvable, and no more
_JITTER = 1e-10
_TOLERANCE = 1e-8
_MOST_STEPS = 1_000
# relative; what varies less is constant, what adds less to others depends on them
_SAME = 1e-9


def standardised(x: FloatArray) -> FloatArray:
    """Return columns with mean 0 and standard deviation 1, without constant ones."""
    size = np.abs(x).max(axis=0, initial=0.0)
    x = x / np.where(size > 0, size, 1.0)
    centred = x - x.mean(axis=0)
    deviation = centred.std(axis=0)
    kept = deviation > _SAME
    return centred[:, kept] / deviation[kept]


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
    no other fit by more than that, keeps the equations solvable: pMSE is then right up
    to about 1e-8, and to 1e-5 where many columns separate a few dozen records.
    """
    from sklearn.linear_model import LogisticRegression

    if not z.shape[1]:
        return np.full(len(y), y.mean())
    ridge = _LEAST_RIDGE * len(y)
    model = LogisticRegression(
        C=1 / ridge, solver="newton-cholesky", tol=_TOLERANCE, max_iter=_MOST_STEPS
    )
    _fit(model, z, y)
    return np.asarray(model.predict_proba(z)[:, 1])


def _fit(model: Any, x: Any, y: Any, weights: FloatArray | None = None) -> None:
    """Fit a model of scikit-learn, which warns where rounding leaves no way up from the
    maximum, and where another of its solvers takes over.
    """
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y, sample_weight=weights)


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


def indicators_at(places: Iterable[IntArray]) -> Any:
    """Return sparse indicators, a row a record, with a 1 at each of its places; those
    that are 0 throughout are left out.
    """
    at = np.column_stack([*places])
    there = at >= 0
    used = np.bincount(at[there], minlength=1) > 0
    column = (np.cumsum(used) - 1)[at[there]]
    ends = np.cumsum(there.sum(axis=1))
    return csr_array(
        (np.ones(len(column)), column, np.append(0, ends)),
        shape=(len(at), int(used.sum())),
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
    _fit(model, both, labels, weights)
    coefficients: FloatArray = model.coef_[0]
    log_odds = seen @ coefficients + model.intercept_[0]
    if is_wide:
        coefficients = features.T @ np.linalg.solve(seen.T, coefficients)
    return coefficients, log_odds
