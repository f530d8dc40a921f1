"""Linear, logistic and Poisson regression on the table and on synthetic sets. Comparisons are for inside use only."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.special import expit, ndtri

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.evaluation.encoding import TableLike, indicators, paired
from pdips.inference import Rule, combine

Family = Literal["linear", "logistic", "poisson"]
FAMILIES: tuple[Family, ...] = get_args(Family)

_MOST_STEPS = 200
_TOLERANCE = 1e-6
_SAME = 1e-9  # relative; what varies less is constant, what adds less to others depends on them


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """Estimates and standard errors of a regression, NaN for a coefficient that the data can't tell.

    ``names`` are the same for every frame of one schema. Without convergence all estimates are NaN.
    """

    names: tuple[str, ...]
    estimates: FloatArray
    standard_errors: FloatArray
    converged: bool

    def interval(self, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper bounds of Wald intervals."""
        half = float(ndtri((1 + level) / 2)) * self.standard_errors
        return self.estimates - half, self.estimates + half


def ci_overlap(lower_o: ArrayLike, upper_o: ArrayLike, lower_s: ArrayLike, upper_s: ArrayLike) -> FloatArray:
    """Return how much confidence intervals from the original and from synthetic data overlap.

    Parameters
    ----------
    lower_o, upper_o, lower_s, upper_s : array_like
        Bounds from the original and from synthetic data; NaN where there are none.

    Returns
    -------
    ndarray of float64
        Mean of the overlap's share of the two intervals: 1 for equal ones, above 0.5 when one lies in the other, 0 when
        they are disjoint, however far apart, or when there is no synthetic interval. NaN without an original one.

    Notes
    -----
    Karr, Kohnen, Oganian, Reiter and Sanil (2006). The measure goes negative there for disjoint intervals; Bowen, Liu
    and Su (2021) cut it at 0, and so do we. Two equal intervals of length 0 overlap by 1.

    Examples
    --------
    >>> ci_overlap([0.0], [2.0], [1.0], [3.0])
    array([0.5])
    """
    bounds = (np.asarray(x, dtype=np.float64) for x in (lower_o, upper_o, lower_s, upper_s))
    lo, uo, ls, us = np.broadcast_arrays(*bounds)
    common = np.minimum(uo, us) - np.maximum(lo, ls)
    widths = np.array([uo - lo, us - ls])
    shares = np.divide(common, widths, out=np.broadcast_to((common >= 0) * 1.0, widths.shape).copy(), where=widths > 0)
    overlap = np.where(common >= 0, shares.mean(axis=0), 0.0)
    return np.where(np.isnan(lo) | np.isnan(uo), np.nan, overlap)


def compare_fits(
    original_fit: Fit, synthetic_fits: Sequence[Fit], *, level: float = 0.95, rule: Rule | None = None
) -> pd.DataFrame:
    """Compare the coefficients of one model on the table and on synthetic sets.

    Parameters
    ----------
    original_fit, synthetic_fits : Fit and sequence of Fit
        One model on the confidential table and on each set.
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
        original; ``covered``, whether the original's estimate lies inside the combined interval. A coefficient that
        some set can't tell has no combined estimate: overlap 0, not the same sign. One that the table can't tell has
        overlap NaN.

    Raises
    ------
    InputError
        If there are no synthetic fits or their coefficients differ.

    Examples
    --------
    >>> from pdips.evaluation.formula import read_analysis
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, _ = Steps(epsilon=1, n_sets=2).release(table)
    >>> analysis = read_analysis("enrolled ~ sex", table.schema)
    >>> list(compare_fits(analysis.fit(table.frame), [analysis.fit(frame) for frame in release.sets]).index)
    ['Intercept', 'sex[T.male]']
    """
    if not len(synthetic_fits) or any(fit.names != original_fit.names for fit in synthetic_fits):
        raise InputError("comparing fits needs at least one synthetic fit, of the same model and schema")
    lower, upper = original_fit.interval(level)
    if len(synthetic_fits) == 1 and rule is None:
        estimate, (low, high) = synthetic_fits[0].estimates, synthetic_fits[0].interval(level)
    else:
        variances = [fit.standard_errors**2 for fit in synthetic_fits]
        combined = combine([fit.estimates for fit in synthetic_fits], variances, level=level, rule=rule)
        estimate, (low, high) = combined.estimate, combined.interval
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
            "covered": (low <= original_fit.estimates) & (original_fit.estimates <= high),
        },
        index=pd.Index(original_fit.names, name="coefficient"),
    )


def fit_design(
    x: FloatArray, y: FloatArray, names: tuple[str, ...], family: Family, weights: FloatArray | None = None
) -> Fit:
    """Fit least squares, logistic regression with Firth's correction, or log-linear (Poisson) regression of a design.

    The first column of ``x`` is the intercept; a logistic ``y`` is 0 or 1. NaN for a coefficient that depends linearly
    on those before it; all NaN if there is no fit (too few records, one outcome only). Without weights standard errors
    are those of the model: n - k below for least squares; for logistic regression from the information augmented by
    Firth's (1993) correction, which keeps estimates finite under separation (``docs/utility.md#logistic-regression``);
    the package firthmodels fits groups of equal records. With weights, which are scaled to a mean of 1, estimates solve
    the weighted score equations (Firth's correction included) and standard errors are Binder's (1983) linearisation for
    records drawn one by one, A^-1 B A^-1 n / (n - 1) with B the sum of squared weighted scores: strata and clusters are
    not known here.
    """
    if family not in FAMILIES:
        raise InputError(f"family must be one of {', '.join(FAMILIES)}, not {family!r}")
    if family == "logistic" and not np.isin(y, (0.0, 1.0)).all():
        raise InputError("logistic regression needs an outcome with two levels")
    if family == "poisson" and (y < 0).any():
        raise InputError("Poisson regression needs an outcome that is never below 0")
    w = np.ones(len(y))
    if weights is not None and len(y):
        if not weights.sum() > 0:
            raise InputError("weights must not all be 0")
        x, y, w = (part[weights > 0] for part in (x, y, weights))
        w = w / w.mean()
    if len(y) <= x.shape[1] or not np.ptp(y) > 0:
        return _fit_of(names, [], np.zeros(0), np.zeros(0), converged=False)
    kept, converged = independent_columns(x, w), True
    estimates = errors = np.zeros(0)
    if family == "logistic":
        estimates, errors, converged = _firth_on_groups(x[:, kept], y.astype(np.int64), w)
    if converged and (family != "logistic" or weights is not None):
        start = estimates if family == "logistic" else None
        try:
            estimates, errors, converged = _generalised(x[:, kept], y, w, family, start, sandwich=weights is not None)
        except np.linalg.LinAlgError:
            converged = False
    return _fit_of(names, kept, estimates, errors, converged)


def _fit_of(names: tuple[str, ...], kept: list[int], estimates: FloatArray, errors: FloatArray, converged: bool) -> Fit:
    """Return a fit whose coefficients are NaN where they weren't estimated, all of them without convergence."""
    found = np.full((2, len(names)), np.nan)
    if converged:
        found[:, kept] = estimates, errors
    return Fit(names=names, estimates=found[0], standard_errors=found[1], converged=converged)


def _generalised(
    x: FloatArray, y: FloatArray, w: FloatArray, family: Family, start: FloatArray | None, *, sandwich: bool
) -> tuple[FloatArray, FloatArray, bool]:
    """Fit a generalised linear model; with ``start``, its estimates, work out standard errors only."""
    z, back = _uncorrelated(x, w)
    dispersion = 1.0
    if family == "poisson":
        from statsmodels.genmod.families import Poisson
        from statsmodels.genmod.generalized_linear_model import GLM

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            b = GLM(y, z, family=Poisson(), var_weights=w).fit(maxiter=100, tol=1e-10).params
        mean = slope = np.exp(z @ b)
    elif start is None:
        b = z.T @ (w * y) / w.sum()
        mean, slope = z @ b, np.ones(len(y))
        dispersion = float((y - mean) @ (y - mean)) / (len(y) - z.shape[1])
    else:
        b = np.linalg.solve(back, start)
        mean = 1 / (1 + np.exp(-(z @ b)))
        slope = mean * (1 - mean)
    covariance = np.linalg.inv((z.T * (w * slope)) @ z) * dispersion
    if sandwich:
        scores = (z * (w * (y - mean))[:, None]) @ covariance / dispersion
        covariance = scores.T @ scores * len(y) / (len(y) - 1)
    estimates, errors = back @ b, np.sqrt(np.diagonal(back @ covariance @ back.T))
    return estimates, errors, bool(np.isfinite([estimates, errors]).all())


def _firth_on_groups(x: FloatArray, y: IntArray, weights: FloatArray) -> tuple[FloatArray, FloatArray, bool]:
    """Fit a logistic regression on groups of equal records; standard errors are wrong where records have weights."""
    from firthmodels import FirthLogisticRegression
    from sklearn.exceptions import ConvergenceWarning

    _, first, group = np.unique(np.column_stack([x, y]), axis=0, return_index=True, return_inverse=True)
    x, y, n = x[first], y[first], np.bincount(group, weights).astype(np.float64)
    z, back = _uncorrelated(x, n)
    model = FirthLogisticRegression(backend="numpy", fit_intercept=False)
    model.set_params(max_iter=_MOST_STEPS, gtol=_TOLERANCE, xtol=_TOLERANCE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # also where rounding ends the last step: see the score
            model.fit(z, y, sample_weight=n)
        chance = expit(z @ model.coef_)
        spread = chance * (1 - chance)
        leverage = n * spread * np.einsum("ij,ij->i", z @ np.linalg.inv((z.T * (n * spread)) @ z), z)
        covariance = np.linalg.inv((z.T * ((n + leverage) * spread)) @ z)
    except np.linalg.LinAlgError:
        return np.zeros(0), np.zeros(0), False
    score = z.T @ (n * (y - chance) + leverage * (0.5 - chance))
    converged = bool(score @ covariance @ score < _TOLERANCE)  # the next step is below a thousandth of standard errors
    return back @ model.coef_, np.sqrt(np.diagonal(back @ covariance @ back.T)), converged


def _uncorrelated(x: FloatArray, w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a basis in which units and zeros of the columns don't matter, z' w z = sum(w), and the matrix back."""
    back = np.linalg.inv(np.linalg.qr(np.sqrt(w / w.sum())[:, None] * x, mode="r"))
    return x @ back, back


def independent_columns(x: FloatArray, n: FloatArray) -> list[int]:
    """Return the columns that are no linear combination of those before them, by Cholesky on their correlations."""
    centred = x - n @ x / n.sum()
    varies = np.abs(centred).max(axis=0) > _SAME * np.abs(x).max(axis=0)
    scaled = np.sqrt(n)[:, None] * centred / np.where(varies, np.sqrt(n @ centred**2), np.inf)
    gram, kept = scaled.T @ scaled, [0]
    for j in range(1, x.shape[1]):
        if gram[j, j] > _SAME:
            kept.append(j)
            gram = gram - np.outer(gram[:, j], gram[j]) / gram[j, j]
    return kept


# ---- linear regression and prediction ----


def standardised_differences(
    original: TableLike, synthetic: TableLike, outcome: str, predictors: Sequence[str]
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
    Snoke, Raab, Nowok, Dibben and Slavkovic (2018); SE is that of ordinary least squares, with n - k below. A resample
    of the original scores 0.8 in the mean.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> original = pd.DataFrame({"x": rng.standard_normal(500)})
    >>> original["y"] = 2 * original["x"] + rng.standard_normal(500)
    >>> standardised_differences(original, original + [0, 1], "y", ["x"]).round(1).abs().to_dict()
    {'intercept': 21.2, 'x': 0.0}
    """
    names, (x, y), theirs = _both(original, synthetic, outcome, predictors)
    ours = fit_design(x, y, tuple(names), "linear")
    if ours.converged and np.isnan(ours.estimates).any():
        culprit = names[int(np.isnan(ours.estimates).argmax())]
        raise InputError(f"predictor {culprit!r} must vary in the original and not depend linearly on those before it")
    if not ours.converged or not np.abs(y - x @ ours.estimates).max() > _SAME * np.abs(y).max():
        raise InputError(f"the original needs more records than coefficients, and {outcome!r} must vary around the fit")
    difference = np.abs(_least_squares(*theirs) - ours.estimates) / ours.standard_errors
    return pd.Series(difference, index=pd.Index(names, name="coefficient"), name="difference")


def normalised_rmse(synthetic: TableLike, holdout: TableLike, outcome: str, predictors: Sequence[str]) -> float:
    """Return the error of a regression that was fitted on a synthetic set and predicts a hold-out.

    Parameters
    ----------
    synthetic, holdout : DataFrame or array_like, shape (records, columns)
        A synthetic set, and confidential records that it wasn't made from.
    outcome, predictors
        As in :func:`standardised_differences`.

    Returns
    -------
    float
        Root of the mean squared prediction error over the standard deviation of the hold-out's outcome (n - 1 below).
        About sqrt(1 - R^2) for a good set, 1 for one that knows nothing but the mean.

    Raises
    ------
    InputError
        If a column is missing or not numeric, or the hold-out's outcome has one value only.

    Notes
    -----
    Arnold and Neunhoeffer (2020). A predictor that the set can't tell from those before it has coefficient 0, as with
    R's ``predict``. Compare with the original's.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> original = pd.DataFrame({"x": rng.standard_normal(500)})
    >>> original["y"] = 2 * original["x"] + rng.standard_normal(500)
    >>> round(normalised_rmse(original, original, "y", ["x"]), 1)
    0.5
    """
    _, theirs, ours = _both(synthetic, holdout, outcome, predictors)
    deviation = float(np.std(ours[1], ddof=1)) if len(ours[1]) > 1 else 0.0
    if not deviation > _SAME * np.abs(ours[1]).max(initial=0.0):
        raise InputError(f"the outcome {outcome!r} must take at least two values in the hold-out")
    estimates = np.nan_to_num(_least_squares(*theirs))
    return float(np.sqrt(np.mean((ours[1] - ours[0] @ estimates) ** 2))) / deviation


Arrays = tuple[FloatArray, FloatArray]


def _both(
    first: TableLike, second: TableLike, outcome: str, predictors: Sequence[str]
) -> tuple[list[str], Arrays, Arrays]:
    """Return the coefficients' names, and predictors (an intercept first) and outcome of each table."""
    if not len(predictors):
        raise InputError("a regression needs at least one predictor")
    if isinstance(predictors, str) or outcome in predictors or len({*predictors}) < len(predictors):
        raise InputError("predictors must be a list of columns, each once, without the outcome")
    target, *pairs = paired(first, second, [outcome, *predictors])
    if target.levels is not None:
        raise InputError(f"the outcome {outcome!r} must be numeric")
    columns: dict[str, Arrays] = {}
    for pair in pairs:
        columns |= {pair.name: (pair.original, pair.synthetic)} if pair.levels is None else indicators(pair)
    tables = []
    for which, y in enumerate((target.original, target.synthetic)):
        x = np.column_stack([np.ones(len(y)), *(both[which] for both in columns.values())])
        known = ~(np.isnan(x).any(axis=1) | np.isnan(y))
        if not known.any():
            raise InputError("each table needs at least one record without missing values in outcome and predictors")
        tables.append((x[known], y[known]))
    return ["intercept", *columns], tables[0], tables[1]


def _least_squares(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return coefficients, NaN for columns that depend on those before them."""
    n, estimates = np.ones(len(y)), np.full(x.shape[1], np.nan)
    kept = independent_columns(x, n)
    z, back = _uncorrelated(x[:, kept], n)
    estimates[kept] = back @ (z.T @ y) / len(y)
    return estimates
