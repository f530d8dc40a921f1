"""Logistic regression with Firth's correction, on the table and on synthetic sets. Comparisons are for inside use."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from pdips.arrays import FloatArray, IntArray
from pdips.data.coding import numbers
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.inference import Rule, combine

_MOST_STEPS = 200
_TOLERANCE = 1e-6
_SAME = 1e-9  # relative; what varies less is constant, what adds less to others depends on them


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """Estimates of a logistic regression.

    Attributes
    ----------
    names : tuple of str
        ``"intercept"``, ``"age"`` for a numeric predictor, ``"income=high"`` for a level, ``"a=x:b=y"`` for an
        interaction: the same for every frame of one schema.
    estimates, standard_errors : ndarray of float64, shape (coefficients,)
        Log odds ratios; NaN for a coefficient that the data can't tell (an empty level, a constant column).
    converged : bool
        Whether Newton's method met its tolerance, 1e-6 on score and step; if not, all estimates are NaN.
    """

    names: tuple[str, ...]
    estimates: FloatArray
    standard_errors: FloatArray
    converged: bool

    def interval(self, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper bounds of Wald intervals."""
        from scipy.special import ndtri

        half = float(ndtri((1 + level) / 2)) * self.standard_errors
        return self.estimates - half, self.estimates + half


def fit_logistic(
    frame: pd.DataFrame,
    outcome: str,
    predictors: Sequence[str],
    *,
    schema: Schema,
    interactions: Sequence[tuple[str, str]] = (),
    numeric: Sequence[str] = (),
    firth: bool = True,
) -> Fit:
    """Fit a logistic regression of a two-level column on others.

    Parameters
    ----------
    frame : DataFrame
        Records, confidential or synthetic.
    outcome : str
        A column with two levels; the second one is the event.
    predictors : sequence of str
        Columns with levels or bins enter as indicators of all levels but the first; missing, where it may occur, is a
        level. Their order is that of the coefficients.
    schema : Schema
        Of the frame.
    interactions : sequence of tuple of str
        Pairs of predictors whose products enter too.
    numeric : sequence of str
        Predictors that enter as numbers: numeric columns, or columns whose levels are numbers.
    firth : bool
        Whether to apply Firth's correction, which keeps estimates finite under separation. Without it, plain maximum
        likelihood.

    Returns
    -------
    Fit
        Estimates with Wald standard errors.

    Raises
    ------
    InputError
        If a column isn't in the schema, the outcome hasn't two levels, or a numeric predictor has no numbers.

    Notes
    -----
    Firth (1993), *Bias reduction of maximum likelihood estimates*, Biometrika 80, 27-38; Heinze and Schemper (2002) for
    logistic regression. Records are grouped, which changes nothing; the package firthmodels fits. Standard errors are
    from the information augmented by the correction, as there; Wald intervals, for profile ones take a fit for every
    bound. Records with a missing outcome or numeric predictor are left out. Indicators that depend linearly on those
    before them are dropped, their estimates are NaN; if only one level of the outcome occurs, all are. Under
    separation plain likelihood has no maximum: what comes out lies far out with a huge standard error.
    """
    _check_names(schema, outcome, predictors, interactions, numeric)
    used = _coded(frame, schema, [outcome, *predictors]) if len(frame) else {}
    y = used[outcome] if used else np.empty(0, dtype=np.int64)
    terms: dict[str, dict[str, FloatArray]] = {}
    for name in predictors:
        terms[name] = _numeric(frame, name, schema) if name in numeric else _indicators(used.get(name, y), name, schema)
    columns = {"intercept": np.ones(len(y))} | {key: value for term in terms.values() for key, value in term.items()}
    for a, b in interactions:
        columns |= {f"{i}:{j}": u * v for i, u in terms[a].items() for j, v in terms[b].items()}
    x = np.column_stack(list(columns.values()))
    kept = (y < schema.columns[outcome].n_values) & ~np.isnan(x).any(axis=1)
    estimates, errors, converged = solve_logistic(x[kept], y[kept], firth)
    return Fit(names=tuple(columns), estimates=estimates, standard_errors=errors, converged=converged)


def ci_overlap(lower_o: ArrayLike, upper_o: ArrayLike, lower_s: ArrayLike, upper_s: ArrayLike) -> FloatArray:
    """Return how much confidence intervals from the original and from synthetic data overlap.

    Parameters
    ----------
    lower_o, upper_o : array_like
        Bounds from the original data.
    lower_s, upper_s : array_like
        Bounds from synthetic data; NaN where there are none.

    Returns
    -------
    ndarray of float64
        Mean of the overlap's share of the two intervals: 1 for equal ones, above 0.5 when one lies in the other, 0 when
        they are disjoint, however far apart, or when there is no synthetic interval. NaN without an original one.

    Notes
    -----
    Karr, Kohnen, Oganian, Reiter and Sanil (2006), *A framework for evaluating the utility of data altered to protect
    confidentiality*, The American Statistician 60, 224-232. The measure goes negative there for disjoint intervals;
    paper 000 cuts it at 0, and so do we. Two equal intervals of length 0 overlap by 1.
    """
    lo, uo, ls, us = np.broadcast_arrays(
        *(np.asarray(x, dtype=np.float64) for x in (lower_o, upper_o, lower_s, upper_s))
    )
    common = np.minimum(uo, us) - np.maximum(lo, ls)
    shares = [_share(common, upper - lower) for lower, upper in ((lo, uo), (ls, us))]
    overlap = np.where(common >= 0, np.mean(shares, axis=0), 0.0)
    return np.where(np.isnan(lo) | np.isnan(uo), np.nan, overlap)


def compare_fits(
    original_fit: Fit, synthetic_fits: Sequence[Fit], *, level: float = 0.95, rule: Rule | None = None
) -> pd.DataFrame:
    """Compare the coefficients of one model on the table and on synthetic sets.

    Parameters
    ----------
    original_fit : Fit
        On the confidential table.
    synthetic_fits : sequence of Fit
        The same model on each set.
    level : float
        Of the confidence intervals.
    rule : str, optional
        How sets are combined; left out: ``"sanitized"``, and a single set's own interval.

    Returns
    -------
    DataFrame
        One row a coefficient: ``original``, ``original_lower``, ``original_upper``; ``combined``, ``combined_lower``,
        ``combined_upper`` by :func:`pdips.inference.combine` (a single set's own estimate and interval);
        ``ci_overlap``; ``same_sign``; ``standardized_difference``, (combined - original) / standard error on the
        original. A coefficient that some set can't tell has no combined estimate: overlap 0, not the same sign. One
        that the table can't tell has overlap NaN.

    Raises
    ------
    InputError
        If there are no synthetic fits or their coefficients differ.
    """
    if not len(synthetic_fits) or any(fit.names != original_fit.names for fit in synthetic_fits):
        raise InputError("comparing fits needs at least one synthetic fit, of the same model and schema")
    lower, upper = original_fit.interval(level)
    estimate, (low, high) = _pooled(synthetic_fits, level, rule)
    return pd.DataFrame(
        {
            "original": original_fit.estimates,
            "original_lower": lower,
            "original_upper": upper,
            "combined": estimate,
            "combined_lower": low,
            "combined_upper": high,
            "ci_overlap": ci_overlap(lower, upper, low, high),
            "same_sign": np.sign(original_fit.estimates) == np.sign(estimate),
            "standardized_difference": (estimate - original_fit.estimates) / original_fit.standard_errors,
        },
        index=pd.Index(original_fit.names, name="coefficient"),
    )


def _pooled(fits: Sequence[Fit], level: float, rule: Rule | None) -> tuple[FloatArray, tuple[FloatArray, FloatArray]]:
    if len(fits) == 1 and rule is None:
        return fits[0].estimates, fits[0].interval(level)
    variances = [fit.standard_errors**2 for fit in fits]
    combined = combine([fit.estimates for fit in fits], variances, level=level, rule=rule)
    return combined.estimate, combined.interval


def _share(part: FloatArray, whole: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, part / whole, (part >= 0) * 1.0)


def _check_names(
    schema: Schema,
    outcome: str,
    predictors: Sequence[str],
    interactions: Sequence[tuple[str, str]],
    numeric: Sequence[str],
) -> None:
    for name in (outcome, *predictors):
        if name not in schema.columns:
            raise InputError(f"{name!r} is no column of the schema")
    if schema.columns[outcome].levels is None or len(schema.columns[outcome].levels) != 2:
        raise InputError(f"the outcome {outcome!r} must have two levels")
    if outcome in predictors or len({*predictors}) < len(predictors):
        raise InputError("each column may appear once: as the outcome or as a predictor")
    for name in {*numeric, *(name for pair in interactions for name in pair)} - {*predictors}:
        raise InputError(f"{name!r} is named for an interaction or as numeric, but is no predictor")
    for name in {*predictors} - {*numeric}:
        if not (schema.columns[name].is_categorical or schema.columns[name].is_binned):
            raise InputError(f"column {name!r} has neither levels nor bins; name it as numeric")
    for name in numeric:
        levels = schema.columns[name].levels
        if levels is not None and not all(isinstance(level, (int, float)) for level in levels):
            raise InputError(f"column {name!r} has levels that are no numbers, so it can't be numeric")


def _coded(frame: pd.DataFrame, schema: Schema, names: Sequence[str]) -> dict[str, IntArray]:
    chosen = {name: schema.columns[name] for name in names}
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise InputError(f"column {absent[0]!r} of the schema is not in the table")
    return Table(frame[list(names)], Schema(columns=chosen)).codes


def _indicators(codes: IntArray, name: str, schema: Schema) -> dict[str, FloatArray]:
    return {
        f"{name}={label}": (codes == code).astype(np.float64)
        for code, label in enumerate(schema.columns[name].names())
        if code > 0
    }


def _numeric(frame: pd.DataFrame, name: str, schema: Schema) -> dict[str, FloatArray]:
    if not len(frame):
        return {name: np.empty(0)}
    column = schema.columns[name]
    if column.levels is None:
        return {name: numbers(name, frame[name], column)}
    values = np.array([*(float(level) for level in column.levels), np.nan])
    return {name: values[Table(frame[[name]], Schema(columns={name: column})).codes[name]]}


def solve_logistic(
    x: FloatArray, y: IntArray, firth: bool, weights: FloatArray | None = None
) -> tuple[FloatArray, FloatArray, bool]:
    """Fit on groups of equal records, without the columns that depend on those before them; the intercept is first.

    With weights, above 0 and of mean 1, standard errors are not to be used: they take weights for numbers of records.
    """
    from sklearn.exceptions import ConvergenceWarning

    estimates, errors = np.full(x.shape[1], np.nan), np.full(x.shape[1], np.nan)
    if len(np.unique(y)) < 2:
        return estimates, errors, False
    x, y, n = _grouped(x, y, weights)
    kept = independent_columns(x, n)
    try:
        estimates[kept], errors[kept] = _newton(x[:, kept], y, n, 0.5 if firth else 0.0)
    except (np.linalg.LinAlgError, ConvergenceWarning):
        return estimates, errors, False
    return estimates, errors, True


def _newton(x: FloatArray, y: IntArray, n: FloatArray, penalty: float) -> tuple[FloatArray, FloatArray]:
    """Fit in a basis of uncorrelated columns, where units and zeros of the numbers don't matter, and return from it."""
    from firthmodels import FirthLogisticRegression
    from scipy.special import expit

    back = np.linalg.inv(np.linalg.qr(np.sqrt(n / n.sum())[:, None] * x, mode="r"))
    z = x @ back
    model = FirthLogisticRegression(
        backend="numpy",
        fit_intercept=False,
        max_iter=_MOST_STEPS,
        gtol=_TOLERANCE,
        xtol=_TOLERANCE,
        penalty_weight=penalty,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(z, y, sample_weight=n)
    chance = expit(z @ model.coef_)
    spread = chance * (1 - chance)
    leverage = n * spread * np.einsum("ij,ij->i", z @ np.linalg.inv((z.T * (n * spread)) @ z), z)
    covariance = np.linalg.inv((z.T * ((n + 2 * penalty * leverage) * spread)) @ z)
    return back @ model.coef_, np.sqrt(np.einsum("ij,jk,ik->i", back, covariance, back))


def _grouped(x: FloatArray, y: IntArray, weights: FloatArray | None) -> tuple[FloatArray, IntArray, FloatArray]:
    keys = np.ascontiguousarray(np.column_stack([x, y]))
    rows = keys.view(np.dtype((np.void, keys.dtype.itemsize * keys.shape[1]))).ravel()
    _, first, group = np.unique(rows, return_index=True, return_inverse=True)
    return x[first], y[first], np.bincount(group, weights).astype(np.float64)


def independent_columns(x: FloatArray, n: FloatArray) -> list[int]:
    """Return the columns that are no linear combination of those before them, by Cholesky on their correlations."""
    centred = x - n @ x / n.sum()
    varies = np.abs(centred).max(axis=0) > _SAME * np.abs(x).max(axis=0)
    length = np.sqrt(n @ centred**2)
    scaled = np.sqrt(n)[:, None] * centred / np.where(varies, length, np.inf)
    gram, kept = scaled.T @ scaled, [0]
    for j in range(1, x.shape[1]):
        if gram[j, j] > _SAME:
            kept.append(j)
            gram = gram - np.outer(gram[:, j], gram[j]) / gram[j, j]
    return kept
