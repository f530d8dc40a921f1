"""Linear, logistic and Poisson regression on the table and on synthetic sets.
Comparisons are for inside use only.
"""

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
from pdips.inference import Rule, combine

Family = Literal["linear", "logistic", "poisson"]
FAMILIES: tuple[Family, ...] = get_args(Family)

_MOST_STEPS = 200
_TOLERANCE = 1e-6
# relative; what varies less is constant, what adds less to others depends on them
_SAME = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """Estimates and standard errors of a regression, NaN for a coefficient that the
    data can't tell.

    ``names`` are the same for every frame of one schema. Without convergence all
    estimates are NaN.
    """

    names: tuple[str, ...]
    estimates: FloatArray
    standard_errors: FloatArray
    converged: bool

    def interval(self, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper bounds of Wald intervals."""
        half = float(ndtri((1 + level) / 2)) * self.standard_errors
        return self.estimates - half, self.estimates + half


def ci_overlap(
    lower_o: ArrayLike, upper_o: ArrayLike, lower_s: ArrayLike, upper_s: ArrayLike
) -> FloatArray:
    """Return how much confidence intervals from the original and from synthetic data
    overlap.

    Parameters
    ----------
    lower_o, upper_o, lower_s, upper_s : array_like
        Bounds from the original and from synthetic data; NaN where there are none.

    Returns
    -------
    ndarray of float64
        Mean of the overlap's share of the two intervals: 1 for equal ones, above 0.5
        when one lies in the other, 0 when they are disjoint, however far apart, or when
        there is no synthetic interval. NaN without an original one.

    Notes
    -----
    Karr, Kohnen, Oganian, Reiter and Sanil (2006). The measure goes negative there for
    disjoint intervals; Bowen, Liu and Su (2021) cut it at 0, and so do we. Two equal
    intervals of length 0 overlap by 1.

    Examples
    --------
    >>> ci_overlap([0.0], [2.0], [1.0], [3.0])
    array([0.5])
    """
    bounds = (
        np.asarray(x, dtype=np.float64) for x in (lower_o, upper_o, lower_s, upper_s)
    )
    lo, uo, ls, us = np.broadcast_arrays(*bounds)
    common = np.minimum(uo, us) - np.maximum(lo, ls)
    widths = np.array([uo - lo, us - ls])
    # two equal intervals of length 0 overlap wholly
    shares = np.broadcast_to((common >= 0) * 1.0, widths.shape).copy()
    np.divide(common, widths, out=shares, where=widths > 0)
    overlap = np.where(common >= 0, shares.mean(axis=0), 0.0)
    return np.where(np.isnan(lo) | np.isnan(uo), np.nan, overlap)


def compare_fits(
    original_fit: Fit,
    synthetic_fits: Sequence[Fit],
    *,
    level: float = 0.95,
    rule: Rule | None = None,
) -> pd.DataFrame:
    """Compare the coefficients of one model on the table and on synthetic sets.

    Parameters
    ----------
    original_fit, synthetic_fits : Fit and sequence of Fit
        One model on the confidential table and on each set.
    level : float
        Of the confidence intervals.
    rule : str, optional
        How sets are combined; left out: ``"sanitized"``, and a single set's own
        interval.

    Returns
    -------
    DataFrame
        One row a coefficient: ``original``, ``original_lower``, ``original_upper``;
        ``combined``, ``combined_lower``, ``combined_upper`` by
        :func:`pdips.inference.combine` (a single set's own estimate and interval);
        ``ci_overlap``; ``same_sign``; ``standardized_difference``, (combined -
        original) / standard error on the original; ``covered``, whether the original's
        estimate lies inside the combined interval. A coefficient that some set can't
        tell has no combined estimate: overlap 0, not the same sign. One that the table
        can't tell has overlap NaN.

    Raises
    ------
    InputError
        If there are no synthetic fits or their coefficients differ.

    Examples
    --------
    >>> from pdips.evaluation.formula import read_analysis
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, _ = Margins(epsilon=1, n_sets=2).release(table)
    >>> analysis = read_analysis("enrolled ~ sex", table.schema)
    >>> list(
    ...     compare_fits(
    ...         analysis.fit(table.frame),
    ...         [analysis.fit(frame) for frame in release.sets],
    ...     ).index
    ... )
    ['Intercept', 'sex[male]']
    """
    names = {fit.names for fit in synthetic_fits}
    if names != {original_fit.names}:
        raise InputError(
            "comparing fits needs at least one synthetic fit, of the "
            "same model and schema"
        )
    original = original_fit.estimates
    lower, upper = original_fit.interval(level)
    if len(synthetic_fits) == 1 and rule is None:
        estimate = synthetic_fits[0].estimates
        (low, high) = synthetic_fits[0].interval(level)
    else:
        variances = [fit.standard_errors**2 for fit in synthetic_fits]
        combined = combine(
            [fit.estimates for fit in synthetic_fits], variances, level=level, rule=rule
        )
        estimate = combined.estimate
        (low, high) = combined.interval
    difference = (estimate - original) / original_fit.standard_errors
    return pd.DataFrame(
        {
            "original": original,
            "original_lower": lower,
            "original_upper": upper,
            "combined": estimate,
            "combined_lower": low,
            "combined_upper": high,
            "ci_overlap": ci_overlap(lower, upper, low, high),
            "same_sign": np.sign(original) == np.sign(estimate),
            "standardized_difference": difference,
            "covered": (low <= original) & (original <= high),
        },
        index=pd.Index(original_fit.names, name="coefficient"),
    )


def fit_design(
    x: FloatArray,
    y: FloatArray,
    names: tuple[str, ...],
    family: Family,
    weights: FloatArray | None = None,
) -> Fit:
    """Fit least squares, logistic regression with Firth's correction, or log-linear
    (Poisson) regression of a design.

    The first column of ``x`` is the intercept; a logistic ``y`` is 0 or 1. NaN for a
    coefficient that depends linearly on those before it; all NaN if there is no fit
    (too few records, one outcome only). Without weights standard errors are those of
    the model: n - k below for least squares; for logistic regression from the
    information augmented by Firth's (1993) correction, which keeps estimates finite
    under separation (``docs/evaluate.md#an-analysis``); the package firthmodels
    fits groups of equal records. With weights, which are scaled to a mean of 1,
    estimates solve the weighted score equations (Firth's correction included) and
    standard errors are Binder's (1983) linearisation for records drawn one by one, A^-1
    B A^-1 n / (n - 1) with B the sum of squared weighted scores: strata and clusters
    are not known here.
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
    kept = independent_columns(x, w)
    converged = True
    estimates = errors = np.zeros(0)
    if family == "logistic":
        estimates, errors, converged = _firth_on_groups(
            x[:, kept], y.astype(np.int64), w
        )
    if converged and (family != "logistic" or weights is not None):
        start = estimates if family == "logistic" else None
        try:
            estimates, errors, converged = _generalised(
                x[:, kept], y, w, family, start, sandwich=weights is not None
            )
        except np.linalg.LinAlgError:
            converged = False
    return _fit_of(names, kept, estimates, errors, converged)


def _fit_of(
    names: tuple[str, ...],
    kept: list[int],
    estimates: FloatArray,
    errors: FloatArray,
    converged: bool,
) -> Fit:
    """Return a fit whose coefficients are NaN where they weren't estimated, all of them
    without convergence.
    """
    found = np.full((2, len(names)), np.nan)
    if converged:
        found[:, kept] = estimates, errors
    return Fit(
        names=names, estimates=found[0], standard_errors=found[1], converged=converged
    )


def _generalised(
    x: FloatArray,
    y: FloatArray,
    w: FloatArray,
    family: Family,
    start: FloatArray | None,
    *,
    sandwich: bool,
) -> tuple[FloatArray, FloatArray, bool]:
    """Fit a generalised linear model; with ``start``, its estimates, work out standard
    errors only.
    """
    z, back = _uncorrelated(x, w)
    dispersion = 1.0
    if family == "poisson":
        from statsmodels.genmod.families import Poisson
        from statsmodels.genmod.generalized_linear_model import GLM

        model = GLM(y, z, family=Poisson(), var_weights=w)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            b = model.fit(maxiter=100, tol=1e-10).params
        mean = np.exp(z @ b)
        slope = mean
    elif start is None:
        b = z.T @ (w * y) / w.sum()
        mean = z @ b
        slope = np.ones(len(y))
        dispersion = float((y - mean) @ (y - mean)) / (len(y) - z.shape[1])
    else:
        b = np.linalg.solve(back, start)
        mean = 1 / (1 + np.exp(-(z @ b)))
        slope = mean * (1 - mean)
    covariance = np.linalg.inv((z.T * (w * slope)) @ z) * dispersion
    if sandwich:
        scores = (z * (w * (y - mean))[:, None]) @ covariance / dispersion
        covariance = scores.T @ scores * len(y) / (len(y) - 1)
    estimates = back @ b
    errors = np.sqrt(np.diagonal(back @ covariance @ back.T))
    return estimates, errors, bool(np.isfinite([estimates, errors]).all())


def _firth_on_groups(
    x: FloatArray, y: IntArray, weights: FloatArray
) -> tuple[FloatArray, FloatArray, bool]:
    """Fit a logistic regression on groups of equal records; standard errors are wrong
    where records have weights.
    """
    from firthmodels import FirthLogisticRegression
    from sklearn.exceptions import ConvergenceWarning

    _, first, group = np.unique(
        np.column_stack([x, y]), axis=0, return_index=True, return_inverse=True
    )
    x = x[first]
    y = y[first]
    n = np.bincount(group, weights).astype(np.float64)
    z, back = _uncorrelated(x, n)
    model = FirthLogisticRegression(backend="numpy", fit_intercept=False)
    model.set_params(max_iter=_MOST_STEPS, gtol=_TOLERANCE, xtol=_TOLERANCE)
    try:
        with warnings.catch_warnings():
            # also where rounding ends the last step: see the score
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(z, y, sample_weight=n)
        chance = expit(z @ model.coef_)
        spread = chance * (1 - chance)
        inverse = np.linalg.inv((z.T * (n * spread)) @ z)
        leverage = n * spread * np.einsum("ij,ij->i", z @ inverse, z)
        covariance = np.linalg.inv((z.T * ((n + leverage) * spread)) @ z)
    except np.linalg.LinAlgError:
        return np.zeros(0), np.zeros(0), False
    score = z.T @ (n * (y - chance) + leverage * (0.5 - chance))
    # the next step is below a thousandth of standard errors
    converged = bool(score @ covariance @ score < _TOLERANCE)
    errors = np.sqrt(np.diagonal(back @ covariance @ back.T))
    return back @ model.coef_, errors, converged


def _uncorrelated(x: FloatArray, w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a basis in which units and zeros of the columns don't matter, z' w z =
    sum(w), and the matrix back.
    """
    rooted = np.sqrt(w / w.sum())[:, None] * x
    back = np.linalg.inv(np.linalg.qr(rooted, mode="r"))
    return x @ back, back


def independent_columns(x: FloatArray, n: FloatArray) -> list[int]:
    """Return the columns that are no linear combination of those before them, by
    Cholesky on their correlations.
    """
    centred = x - n @ x / n.sum()
    varies = np.abs(centred).max(axis=0) > _SAME * np.abs(x).max(axis=0)
    lengths = np.where(varies, np.sqrt(n @ centred**2), np.inf)
    scaled = np.sqrt(n)[:, None] * centred / lengths
    gram = scaled.T @ scaled
    kept = [0]
    for j in range(1, x.shape[1]):
        if gram[j, j] > _SAME:
            kept.append(j)
            gram = gram - np.outer(gram[:, j], gram[j]) / gram[j, j]
    return kept
