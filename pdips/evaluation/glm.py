"""Linear, logistic and Poisson regression of an outcome on a design, with or without survey weights."""

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.evaluation.regression import Fit, independent_columns, solve_logistic

Family = Literal["linear", "logistic", "poisson"]
FAMILIES: tuple[Family, ...] = get_args(Family)

_MOST_STEPS = 100
_TOLERANCE = 1e-12  # of the log-likelihood, a record


def fit_design(
    x: FloatArray, y: FloatArray, names: tuple[str, ...], family: Family, weights: FloatArray | None = None
) -> Fit:
    """Fit a regression.

    Parameters
    ----------
    x : ndarray of float64, shape (records, coefficients)
        The design; its first column is the intercept.
    y : ndarray of float64, shape (records,)
        The outcome: 0 or 1 for ``"logistic"``, not negative for ``"poisson"``.
    names : tuple of str
        Of the coefficients.
    family : {"linear", "logistic", "poisson"}
        Least squares; logistic regression with Firth's correction; log-linear regression.
    weights : ndarray of float64, shape (records,), optional
        Survey weights, not negative.

    Returns
    -------
    Fit
        Estimates and standard errors. NaN for a coefficient that depends linearly on those before it; all NaN if there
        is no fit (too few records, one outcome only).

    Raises
    ------
    InputError
        If there is no such family, or an outcome that it can't have.

    Notes
    -----
    Without weights standard errors are those of the model: n - k below for least squares, for logistic regression as in
    :func:`pdips.evaluation.regression.fit_logistic`. With weights, which are scaled to a mean of 1, estimates solve the
    weighted score equations (Firth's correction included) and standard errors are Binder's (1983) linearisation for
    records drawn one by one, A^-1 B A^-1 n / (n - 1) with B the sum of squared weighted scores: strata and clusters are
    not known here.
    """
    _check(y, family)
    blank = Fit(
        names=names,
        estimates=np.full(x.shape[1], np.nan),
        standard_errors=np.full(x.shape[1], np.nan),
        converged=False,
    )
    scaled = _scaled(weights, len(y))
    if weights is not None:
        x, y, scaled = x[scaled > 0], y[scaled > 0], scaled[scaled > 0]
    if len(y) <= x.shape[1] or not np.ptp(y) > 0:
        return blank
    kept = independent_columns(x, scaled)
    try:
        estimates, errors = _fitters[family](x[:, kept], y, scaled, weights is not None)
    except (np.linalg.LinAlgError, FloatingPointError):
        return blank
    blank.estimates[kept], blank.standard_errors[kept] = estimates, errors
    return Fit(
        names=names,
        estimates=blank.estimates,
        standard_errors=blank.standard_errors,
        converged=bool(np.isfinite(estimates).all()),
    )


Solved = tuple[FloatArray, FloatArray]


def _check(y: FloatArray, family: Family) -> None:
    if family not in FAMILIES:
        raise InputError(f"family must be one of {', '.join(FAMILIES)}, not {family!r}")
    if family == "logistic" and not np.isin(y, (0.0, 1.0)).all():
        raise InputError("logistic regression needs an outcome with two levels")
    if family == "poisson" and (y < 0).any():
        raise InputError("Poisson regression needs an outcome that is never below 0")


def _scaled(weights: FloatArray | None, n: int) -> FloatArray:
    if weights is None or not n:
        return np.ones(n)
    if not weights.sum() > 0:
        raise InputError("weights must not all be 0")
    return weights * (np.count_nonzero(weights) / weights.sum())


def _linear(x: FloatArray, y: FloatArray, w: FloatArray, weighted: bool) -> Solved:
    z, back = _orthonormal(x, w)
    b = z.T @ (w * y) / w.sum()
    residual = y - z @ b
    if weighted:
        return back @ b, _linearised(z, back, w, residual, np.ones(len(y)))
    spread = np.sqrt(residual @ residual / (len(y) - x.shape[1]) / len(y))
    return back @ b, spread * np.sqrt((back**2).sum(axis=1))


def _logistic(x: FloatArray, y: FloatArray, w: FloatArray, weighted: bool) -> Solved:
    from scipy.special import expit

    estimates, errors, _ = solve_logistic(x, y.astype(np.int64), True, w if weighted else None)
    if not weighted or np.isnan(estimates).any():
        return estimates, errors
    z, back = _orthonormal(x, w)
    chance = expit(x @ estimates)
    return estimates, _linearised(z, back, w, y - chance, chance * (1 - chance))


def _poisson(x: FloatArray, y: FloatArray, w: FloatArray, weighted: bool) -> Solved:
    z, back = _orthonormal(x, w)
    b = z.T @ w / w.sum() * np.log(w @ y / w.sum())
    value = _poisson_value(z @ b, y, w)
    with np.errstate(over="raise"):
        for _ in range(_MOST_STEPS):
            mean = np.exp(z @ b)
            step = np.linalg.solve((z.T * (w * mean)) @ z, z.T @ (w * (y - mean)))
            part = 1.0
            while not (new := _poisson_value(z @ (b + part * step), y, w)) >= value and part > 1e-9:
                part /= 2
            b, gain, value = b + part * step, new - value, new
            if gain < _TOLERANCE * len(y):
                break
        mean = np.exp(z @ b)
    if weighted:
        return back @ b, _linearised(z, back, w, y - mean, mean)
    covariance = back @ np.linalg.inv((z.T * mean) @ z) @ back.T
    return back @ b, np.sqrt(np.diagonal(covariance))


def _poisson_value(eta: FloatArray, y: FloatArray, w: FloatArray) -> float:
    return float(w @ (y * eta - np.exp(np.minimum(eta, 700.0))))


def _orthonormal(x: FloatArray, w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return columns with z' w z = sum(w) that span the same, and the matrix that leads back."""
    back = np.linalg.inv(np.linalg.qr(np.sqrt(w / w.sum())[:, None] * x, mode="r"))
    return x @ back, back


def _linearised(
    z: FloatArray, back: FloatArray, w: FloatArray, residual: FloatArray, variance: FloatArray
) -> FloatArray:
    """Return standard errors from the scores of single records."""
    bread = np.linalg.inv((z.T * (w * variance)) @ z)
    scores = z * (w * residual)[:, None]
    covariance = back @ bread @ (scores.T @ scores) @ bread @ back.T
    errors: FloatArray = np.sqrt(np.diagonal(covariance) * len(w) / (len(w) - 1))
    return errors


_fitters: dict[str, Callable[[FloatArray, FloatArray, FloatArray, bool], Solved]] = {
    "linear": _linear,
    "logistic": _logistic,
    "poisson": _poisson,
}
