"""The difference-in-differences regression of paper 000 (section 4.3), as R fits it and with Firth's correction."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, FloatArray
from pdips.data.schema import Schema
from pdips.evaluation.encoding import codes_of
from pdips.evaluation.regression import Fit, compare_fits, fit_logistic

OUTCOME, NUMERIC, INTERACTION = "voted", "age", ("prereg_state", "registered")
COEFFICIENTS = {
    "prereg": "prereg_state=yes",
    "registered": "registered=yes",
    "interaction": "prereg_state=yes:registered=yes",
}

GLM_TOLERANCE, GLM_STEPS = 1e-8, 25
"""Where R's ``glm.control`` stops: a relative change of the deviance below 1e-8, or 25 steps."""


def firth_fit(frame: pd.DataFrame, schema: Schema) -> Fit:
    """Fit with Firth's correction: estimates and intervals stay finite although nobody unregistered voted."""
    predictors = [name for name in schema.columns if name != OUTCOME]
    return fit_logistic(
        frame, OUTCOME, predictors, schema=schema, interactions=[INTERACTION], numeric=[NUMERIC], firth=True
    )


def glm_fit(frame: pd.DataFrame, schema: Schema) -> Fit:
    """Fit as R's ``glm(family = binomial)`` does, which the paper's intervals bear the marks of.

    Nobody unregistered voted, so that maximum likelihood doesn't exist: two coefficients and the intercept run off, and
    what comes out, some 20 with standard errors of hundreds, is where the iterations happen to stop. Iteratively
    reweighted least squares from R's starting values and with R's stopping rule gives the same.

    Returns
    -------
    Fit
        32 coefficients; NaN where a column depends linearly on those before it.
    """
    names, x, y, n = _design(frame, schema)
    estimates, errors = np.full(len(names), np.nan), np.full(len(names), np.nan)
    if not len(x):
        return Fit(names=names, estimates=estimates, standard_errors=errors, converged=False)
    kept = _independent(x)
    estimates[kept], errors[kept], converged = irls(x[:, kept], y, n)
    return Fit(names=names, estimates=estimates, standard_errors=errors, converged=converged)


def irls(x: FloatArray, y: FloatArray, n: FloatArray) -> tuple[FloatArray, FloatArray, bool]:
    """Return estimates, standard errors and whether the deviance settled, by R's iterations.

    Parameters
    ----------
    x : ndarray, shape (groups, coefficients)
        Regressors of groups of equal records, of full rank.
    y : ndarray, shape (groups,)
        Outcome of all records of the group, 0 or 1.
    n : ndarray, shape (groups,)
        Records in each group.
    """
    chance = (y + 0.5) / 2
    log_odds = np.log(chance / (1 - chance))
    deviance, converged = _deviance(y, n, log_odds), False
    inverse = np.eye(x.shape[1])
    beta = np.zeros(x.shape[1])
    for _ in range(GLM_STEPS):
        slope = np.maximum(chance * (1 - chance), np.finfo(float).eps)
        root = np.sqrt(n * slope)
        q, r = np.linalg.qr(root[:, None] * x)
        inverse = np.linalg.inv(r)
        beta = inverse @ (q.T @ (root * (log_odds + (y - chance) / slope)))
        log_odds = x @ beta
        chance = 1 / (1 + np.exp(-log_odds))
        before, deviance = deviance, _deviance(y, n, log_odds)
        converged = abs(deviance - before) / (abs(deviance) + 0.1) < GLM_TOLERANCE
        if converged:
            break
    return beta, np.linalg.norm(inverse, axis=1), bool(converged)


def overlaps(original: Fit, fits: Sequence[Fit]) -> dict[str, float]:
    """Return the overlap of 95 % intervals: averaged over coefficients, and of the three that matter."""
    found = compare_fits(original, fits)["ci_overlap"]
    return {"all": float(found.mean()), **{key: float(found[name]) for key, name in COEFFICIENTS.items()}}


def _deviance(y: FloatArray, n: FloatArray, log_odds: FloatArray) -> float:
    return 2 * float(n @ np.logaddexp(0, np.where(y > 0, -log_odds, log_odds)))


def _design(frame: pd.DataFrame, schema: Schema) -> tuple[tuple[str, ...], FloatArray, FloatArray, FloatArray]:
    """Return names, regressors, outcome and number of records of each group of equal records."""
    rows, count = np.unique(codes_of(frame, schema), axis=0, return_counts=True)
    codes = dict(zip(schema.columns, rows.T, strict=True))
    columns = {"intercept": np.ones(len(rows))}
    for name, column in schema.columns.items():
        if name == NUMERIC:
            columns[name] = np.array(column.levels, dtype=np.float64)[codes[name]]
        elif name != OUTCOME:
            columns |= {
                f"{name}={label}": (codes[name] == code).astype(np.float64)
                for code, label in enumerate(column.names())
                if code
            }
    a, b = (f"{name}=yes" for name in INTERACTION)
    columns[f"{a}:{b}"] = columns[a] * columns[b]
    return tuple(columns), np.column_stack(list(columns.values())), codes[OUTCOME].astype(float), count.astype(float)


def _independent(x: FloatArray) -> BoolArray:
    """Say which columns are no linear combination of those before them."""
    r = np.linalg.qr(x, mode="r")
    left = np.zeros(x.shape[1])
    left[: len(r)] = np.abs(np.diag(r))
    return left > 1e-9 * np.maximum(np.linalg.norm(x, axis=0), 1.0)
