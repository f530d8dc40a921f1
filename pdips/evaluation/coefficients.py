"""Linear regression on synthetic data against the original and a hold-out. For inside use only."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.evaluation.frames import Pair, Records, indicators, paired

_SAME = 1e-9  # relative; what varies less is constant, what adds less to others depends on them


def standardised_differences(
    original: Records, synthetic: Records, outcome: str, predictors: Sequence[str]
) -> "pd.Series[float]":
    """Return how far least-squares coefficients of a synthetic set lie from the original's, in standard errors.

    Parameters
    ----------
    original, synthetic : DataFrame or array_like, shape (records, columns)
        The confidential table and a synthetic set; columns of an array are ``"x1"``, ``"x2"``, ... Records with a
        missing number are left out; a missing level is a level.
    outcome : str
        A numeric column.
    predictors : sequence of str
        Numeric columns enter as they are, others as indicators of all levels but the first.

    Returns
    -------
    Series of float
        abs(theta_original - theta_synthetic) / SE(theta_original) by coefficient: ``"intercept"``, ``"x1"``,
        ``"a=level"``. NaN for a coefficient that the synthetic set can't tell (a constant predictor).

    Raises
    ------
    InputError
        If a column is missing or not numeric, a predictor of the original is constant or depends linearly on others,
        or the original leaves no residual to estimate a standard error from.

    Notes
    -----
    Snoke, Raab, Nowok, Dibben and Slavkovic (2018), *General and specific utility measures for synthetic data*, JRSS A
    181, 663-688, as in section 4.3 of paper 002. SE is that of ordinary least squares, with n - k below. With n records
    in both tables, differences of a perfect synthesis are about as large as a standard normal number, 0.8 in the mean:
    so are those of a resample of the original.
    """
    names, ours, theirs = _both(original, synthetic, outcome, predictors)
    x, y = ours
    kept = _independent(x)
    if len(kept) < x.shape[1]:
        culprit = next(name for j, name in enumerate(names) if j not in kept)
        raise InputError(f"predictor {culprit!r} must vary in the original and not depend linearly on those before it")
    estimates, residual = _least_squares(x, y)
    if len(y) <= x.shape[1] or not residual > _SAME * np.abs(y).max():
        raise InputError(f"the original needs more records than coefficients, and {outcome!r} must vary around the fit")
    spread = residual * np.sqrt(len(y) / (len(y) - x.shape[1]))
    difference = np.abs(_least_squares(*theirs)[0] - estimates) / (spread * _unit_errors(x))
    return pd.Series(difference, index=pd.Index(names, name="coefficient"), name="difference")


def normalised_rmse(synthetic: Records, holdout: Records, outcome: str, predictors: Sequence[str]) -> float:
    """Return the error of a regression that was fitted on a synthetic set and predicts a hold-out.

    Parameters
    ----------
    synthetic, holdout : DataFrame or array_like, shape (records, columns)
        A synthetic set, and confidential records that it wasn't made from. See :func:`standardised_differences`.
    outcome : str
        A numeric column.
    predictors : sequence of str
        As in :func:`standardised_differences`.

    Returns
    -------
    float
        Root of the mean squared prediction error over the standard deviation of the hold-out's outcome, with n - 1
        below as in R's ``sd``. About sqrt(1 - R^2) for a good set, 1 for one that knows nothing but the mean.

    Raises
    ------
    InputError
        If a column is missing or not numeric, or the hold-out's outcome has one value only.

    Notes
    -----
    Arnold and Neunhoeffer (2020), *Really useful synthetic data*, as in section 4.3 of paper 002. A predictor that the
    synthetic set can't tell from those before it has coefficient 0, as with R's ``predict``. Compare with the same for
    the original in the place of the synthetic set.
    """
    _, theirs, ours = _both(synthetic, holdout, outcome, predictors)
    deviation = float(np.std(ours[1], ddof=1)) if len(ours[1]) > 1 else 0.0
    if not deviation > _SAME * np.abs(ours[1]).max(initial=0.0):
        raise InputError(f"the outcome {outcome!r} must take at least two values in the hold-out")
    estimates = np.nan_to_num(_least_squares(*theirs)[0])
    return float(np.sqrt(np.mean((ours[1] - ours[0] @ estimates) ** 2))) / deviation


Fitted = tuple[FloatArray, FloatArray]


def _both(first: Records, second: Records, outcome: str, predictors: Sequence[str]) -> tuple[list[str], Fitted, Fitted]:
    """Return the coefficients' names, and predictors (an intercept first) and outcome of each table."""
    if not len(predictors):
        raise InputError("a regression needs at least one predictor")
    if isinstance(predictors, str) or outcome in predictors or len({*predictors}) < len(predictors):
        raise InputError("predictors must be a list of columns, each once, without the outcome")
    target, *pairs = paired(first, second, [outcome, *predictors])
    if target.levels is not None:
        raise InputError(f"the outcome {outcome!r} must be numeric")
    columns = {name: both for pair in pairs for name, both in _numbers(pair).items()}
    tables = []
    for which, y in enumerate((target.original, target.synthetic)):
        x = np.column_stack([np.ones(len(y)), *(both[which] for both in columns.values())])
        known = ~(np.isnan(x).any(axis=1) | np.isnan(y))
        if not known.any():
            raise InputError("each table needs at least one record without missing values in outcome and predictors")
        tables.append((x[known], y[known]))
    return ["intercept", *columns], tables[0], tables[1]


def _numbers(pair: Pair) -> dict[str, Fitted]:
    return {pair.name: (pair.original, pair.synthetic)} if pair.levels is None else indicators(pair)


def _least_squares(x: FloatArray, y: FloatArray) -> tuple[FloatArray, float]:
    """Return coefficients, NaN for columns that depend on those before them, and the root mean squared residual."""
    kept = _independent(x)
    scale = np.abs(x[:, kept]).max(axis=0)
    q, r = np.linalg.qr(x[:, kept] / scale)
    estimates = np.full(x.shape[1], np.nan)
    estimates[kept] = np.linalg.solve(r, q.T @ y) / scale
    return estimates, float(np.sqrt(np.mean((y - q @ (q.T @ y)) ** 2)))


def _unit_errors(x: FloatArray) -> FloatArray:
    """Return the coefficients' standard errors for residuals of standard deviation 1."""
    scale = np.abs(x).max(axis=0)
    inverse = np.linalg.inv(np.linalg.qr(x / scale, mode="r"))
    errors: FloatArray = np.sqrt((inverse**2).sum(axis=1)) / scale
    return errors


def _independent(x: FloatArray) -> list[int]:
    """Return the columns that are no linear combination of those before them; the first is the intercept."""
    centred = x - x.mean(axis=0)
    varies = np.abs(centred).max(axis=0) > _SAME * np.abs(x).max(axis=0)
    scaled = centred / np.where(varies, np.sqrt((centred**2).sum(axis=0)), np.inf)
    gram, kept = scaled.T @ scaled, [0]
    for j in range(1, x.shape[1]):
        if gram[j, j] > _SAME:
            kept.append(j)
            gram = gram - np.outer(gram[:, j], gram[j]) / gram[j, j]
    return kept
