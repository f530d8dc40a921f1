"""Record weights of pseudo posteriors (paper 004), and weights that are functions of public things alone."""

from typing import Any

import numpy as np

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.privacy.loss import Number, as_float, positive


def check_vector(values: Any, n: int, name: str) -> FloatArray:
    """Return one number, or one for each record, as a vector of doubles, shape (n,)."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers, one for each record") from None
    if found.shape not in ((), (n,)):
        raise InputError(f"{name} must be a number or a vector of one number for each record")
    return np.broadcast_to(found, (n,)).copy()


def check_weights(weights: Any, n_records: int) -> FloatArray:
    """Return weights, one number in [0, 1] for all records or for each, as a vector, shape (n_records,)."""
    found = check_vector(weights, n_records, "weights")
    if not ((found >= 0) & (found <= 1)).all():
        raise InputError("weights must lie between 0 and 1, and none may be missing")
    return found


def check_bounds(bounds: Any) -> FloatArray:
    """Return the largest log-likelihoods of records as doubles: not negative, NaN read as infinite."""
    found = np.asarray(bounds, dtype=np.float64)
    if found.ndim != 1 or not found.size:
        raise InputError("bounds must have one number for each record: the largest abs(log-likelihood)")
    found = np.where(np.isnan(found), np.inf, found)
    if (found < 0).any():
        raise InputError("bounds must be absolute values, and one is below 0")
    return found


def linear_weights(bounds: Any, *, scale: float = 1.0, shift: float = 0.0) -> FloatArray:
    """Return the weights of the paper's Weighted: 1 for the record of the smallest bound, 0 for that of the largest."""
    for name, value in {"scale": scale, "shift": shift}.items():
        if not np.isfinite(value) or (name == "scale" and value <= 0):
            raise InputError(f"{name} must be finite{' and above 0' if name == 'scale' else ''}, got {value}")
    f = check_bounds(bounds)
    known = np.isfinite(f)
    if not known.any():
        return np.zeros(len(f))
    low, high = f[known].min(), f[known].max()
    # where all bounds are equal none is riskier than another
    linear = np.ones(known.sum()) if high == low else 1 - (f[known] - low) / (high - low)
    weights = np.zeros(len(f))
    weights[known] = np.clip(scale * linear + shift, 0, 1)
    return weights


def weighted_e(weights: Any, bounds: Any, epsilon: Number) -> FloatArray:
    """Return the weights of the paper's Weighted-e: 0 where weight times bound is above epsilon / 2."""
    f = check_bounds(bounds)
    alpha = check_weights(weights, len(f))
    return np.where(_product(alpha, f) > as_float(positive(epsilon, "epsilon")) / 2, 0.0, alpha)


def ratio_weights(bounds: Any, window: float) -> FloatArray:
    """Return min(1, window / f_i): the largest weights that keep all weighted log-likelihoods within the window."""
    if not window > 0:
        raise InputError(f"window must be above 0, got {window}")
    with np.errstate(divide="ignore"):
        found: FloatArray = np.minimum(1.0, window / check_bounds(bounds))
    return found


def public_weights(terms: Any, window: float, centre: Any = 0.0) -> FloatArray:
    """Return weights that are a function of their own record and of public parameter values."""
    found = np.asarray(terms, dtype=np.float64)
    if found.ndim != 2:
        raise InputError("terms must have one row for each public point and one column for each record")
    return ratio_weights(np.abs(found - np.asarray(centre, dtype=np.float64)).max(axis=0), window)


def lipschitz_bound(weights: Any, bounds: Any) -> float:
    """Return the paper's local bound Delta = max_i alpha_i f_i, with f of the weighted fit."""
    f = check_bounds(bounds)
    return float(_product(check_weights(weights, len(f)), f).max())


def _product(weights: FloatArray, bounds: FloatArray) -> FloatArray:
    """Return weights times bounds; a record of weight 0 has none, whatever its bound."""
    return np.where(weights == 0, 0.0, np.where(weights == 0, 1.0, weights) * np.where(weights == 0, 0.0, bounds))
