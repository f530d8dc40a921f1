"""From fitted models, one a set, to arrays: names, estimates, covariances."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.errors import InputError

Analysis = Callable[[pd.DataFrame], Any]


def gather(fit: Analysis, frames: Sequence[pd.DataFrame]) -> tuple[tuple[str, ...] | None, FloatArray, FloatArray]:
    """Analyse each set and line up the coefficients.

    Returns
    -------
    names : tuple of str, or None
        All names, in the order in which they first appear; None where the analyses have none.
    estimates : ndarray of float64, shape (sets,) or (sets, coefficients)
        NaN where a set lacks a coefficient.
    variances : ndarray of float64, shape of estimates, or (sets, coefficients, coefficients)

    Raises
    ------
    InputError
        If a result has no estimates and covariances, their shapes don't fit, or results without names differ in length.
    """
    found = [_read(fit(frame)) for frame in frames]
    if not found:
        raise InputError("combining needs at least one set")
    if any(names is None for names, _, _ in found):
        if len({estimate.shape + variance.shape for _, estimate, variance in found}) > 1:
            raise InputError("analyses without names must give the same number of coefficients on every set")
        return None, np.stack([q for _, q, _ in found]), np.stack([v for _, _, v in found])
    names = tuple(dict.fromkeys(name for own, _, _ in found for name in own or ()))
    if len({v.ndim for _, _, v in found}) > 1:
        raise InputError("the analysis must give variances for all sets or covariances for all")
    aligned = [_aligned(names, *one) for one in found]
    return names, np.stack([q for q, _ in aligned]), np.stack([v for _, v in aligned])


def _aligned(
    names: tuple[str, ...], own: tuple[str, ...] | None, estimate: FloatArray, variance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    at = [names.index(name) for name in own or ()]
    q, v = np.full(len(names), np.nan), np.full((len(names),) * variance.ndim, np.nan)
    q[at], v[np.ix_(*[at] * variance.ndim)] = estimate, variance
    return q, v


def _read(result: Any) -> tuple[tuple[str, ...] | None, FloatArray, FloatArray]:
    if hasattr(result, "params") and callable(getattr(result, "cov_params", None)):
        estimate, variance = result.params, result.cov_params()
        names = _names(estimate) or _names_of_model(result, np.size(estimate))
    elif isinstance(result, tuple) and len(result) == 2:
        estimate, variance = result
        names = _names(estimate)
    else:
        raise InputError("fit must return a result with params and cov_params(), or a pair (estimate, variance)")
    # an outcome with several levels has a column of coefficients for each, and covariances run column by column
    flat = np.asarray(estimate, dtype=np.float64)
    q, v = flat.ravel(order="F") if flat.ndim == 2 else flat, np.asarray(variance, dtype=np.float64)
    if flat.ndim == 2 and v.shape == flat.shape:
        v = v.ravel(order="F")
    if q.ndim > 1 or v.shape not in {q.shape, q.shape * 2}:
        raise InputError("fit must return one variance for each estimate, or their covariance matrix")
    if names is not None and len({*names}) < len(names):
        raise InputError("fit must return coefficients with names that differ")
    return names, q, v


def _names(estimate: Any) -> tuple[str, ...] | None:
    if isinstance(estimate, pd.Series):
        return tuple(map(_spell, estimate.index))
    if isinstance(estimate, pd.DataFrame):
        return tuple(f"{_spell(column)}:{_spell(row)}" for column in estimate.columns for row in estimate.index)
    return None


def _spell(label: object) -> str:
    return ":".join(map(str, label)) if isinstance(label, tuple) else str(label)


def _names_of_model(result: Any, size: int) -> tuple[str, ...] | None:
    names = getattr(getattr(result, "model", None), "exog_names", None)
    return tuple(map(str, names)) if names is not None and len(names) == size else None
