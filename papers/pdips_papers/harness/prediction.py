"""Linear regression on a synthetic set, against the confidential table and against a
hold-out. For inside use only.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.evaluation.encoding import ColumnPair, TableLike, indicators, paired
from pdips.evaluation.regression import fit_design, independent_columns

# relative; what varies less is constant
_SAME = 1e-9

Arrays = tuple[FloatArray, FloatArray]


def standardised_differences(
    original: TableLike, synthetic: TableLike, outcome: str, predictors: Sequence[str]
) -> "pd.Series[float]":
    """Return how far least-squares coefficients of a synthetic set lie from the
    original's, in standard errors of the original's.

    Parameters
    ----------
    original, synthetic : DataFrame or array_like, shape (records, columns)
        The confidential table and a synthetic set; columns of an array are ``"x1"``,
        ``"x2"``, ... Records with a missing number are left out; a missing level is a
        level.
    outcome : str
        A numeric column.
    predictors : sequence of str
        Numeric columns enter as they are, others as indicators of all levels but the
        first.

    Returns
    -------
    Series of float
        By coefficient: ``"intercept"``, ``"x1"``, ``"a[level]"``. NaN for a coefficient
        that the synthetic set can't tell (a constant predictor).

    Raises
    ------
    InputError
        If a column is missing or not numeric, a predictor of the original is constant
        or depends linearly on others, or the original leaves no residual to estimate a
        standard error from.

    Notes
    -----
    Snoke, Raab, Nowok, Dibben and Slavkovic (2018). A resample of the original scores
    0.8 in the mean.
    """
    names, (x, y), theirs = _both(original, synthetic, outcome, predictors)
    ours = fit_design(x, y, tuple(names), "linear")
    if ours.converged and np.isnan(ours.estimates).any():
        culprit = names[int(np.isnan(ours.estimates).argmax())]
        raise InputError(
            f"predictor {culprit!r} must vary in the original and not "
            f"depend linearly on those before it"
        )
    residuals = y - x @ ours.estimates
    varies = np.abs(residuals).max() > _SAME * np.abs(y).max()
    if not ours.converged or not varies:
        raise InputError(
            f"the original needs more records than coefficients, and "
            f"{outcome!r} must vary around the fit"
        )
    difference = np.abs(_least_squares(*theirs) - ours.estimates)
    return pd.Series(
        difference / ours.standard_errors,
        index=pd.Index(names, name="coefficient"),
        name="difference",
    )


def normalised_rmse(
    synthetic: TableLike, holdout: TableLike, outcome: str, predictors: Sequence[str]
) -> float:
    """Return the error of a regression that was fitted on a synthetic set and predicts
    a hold-out, confidential records that the set wasn't made from.

    It is the root of the mean squared prediction error over the standard deviation of
    the hold-out's outcome (n - 1 below). About sqrt(1 - R^2) for a good set, 1 for one
    that knows nothing but the mean. Arnold and Neunhoeffer (2020). A predictor that the
    set can't tell from those before it has coefficient 0, as with R's ``predict``.
    """
    _, theirs, (x, y) = _both(synthetic, holdout, outcome, predictors)
    deviation = float(np.std(y, ddof=1)) if len(y) > 1 else 0.0
    if not deviation > _SAME * np.abs(y).max(initial=0.0):
        raise InputError(
            f"the outcome {outcome!r} must take at least two values in the hold-out"
        )
    errors = y - x @ np.nan_to_num(_least_squares(*theirs))
    return float(np.sqrt(np.mean(errors**2))) / deviation


def _both(
    first: TableLike, second: TableLike, outcome: str, predictors: Sequence[str]
) -> tuple[list[str], Arrays, Arrays]:
    """Return the coefficients' names, and predictors (an intercept first) and outcome
    of each table.
    """
    if not len(predictors):
        raise InputError("a regression needs at least one predictor")
    repeated = len({*predictors}) < len(predictors)
    if isinstance(predictors, str) or outcome in predictors or repeated:
        raise InputError(
            "predictors must be a list of columns, each once, without the outcome"
        )
    target, *pairs = paired(first, second, [outcome, *predictors])
    if target.levels is not None:
        raise InputError(f"the outcome {outcome!r} must be numeric")
    columns: dict[str, Arrays] = {}
    for pair in pairs:
        columns |= _predictor(pair)
    ours, theirs = zip(*columns.values(), strict=True)
    return (
        ["intercept", *columns],
        _known([*ours], target.original),
        _known([*theirs], target.synthetic),
    )


def _predictor(pair: ColumnPair) -> dict[str, Arrays]:
    if pair.levels is None:
        return {pair.name: (pair.original, pair.synthetic)}
    return indicators(pair)


def _known(columns: list[FloatArray], y: FloatArray) -> Arrays:
    """Return predictors and outcome of the records that miss no number."""
    x = np.column_stack([np.ones(len(y)), *columns])
    known = ~(np.isnan(x).any(axis=1) | np.isnan(y))
    if not known.any():
        raise InputError(
            "each table needs at least one record without missing "
            "values in outcome and predictors"
        )
    return x[known], y[known]


def _least_squares(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return coefficients, NaN for columns that depend on those before them."""
    estimates = np.full(x.shape[1], np.nan)
    kept = independent_columns(x, np.ones(len(y)))
    q, r = np.linalg.qr(x[:, kept])
    estimates[kept] = np.linalg.solve(r, q.T @ y)
    return estimates
