"""What one synthetic set says to a question: estimates, with variances as if its
records were the table's.
"""

from typing import Literal

import numpy as np

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.outside.cells import IS_SUM, answer_names
from pdips.outside.generalized import means_of, variances_of
from pdips.outside.questions import Formula, Question, Summary
from pdips.outside.regression import check_binary, crossed
from pdips.outside.sets.records import SetRecords

type Family = Literal["gaussian", "binomial", "poisson"]
type Analysis = tuple[list[str], FloatArray, FloatArray]
"""Names, estimates and variances of one set."""

NEWTON_STEPS = 40
CONVERGED = 1e-8  # change of a coefficient of terms between -1 and 1
MOST_LINEAR = 30.0  # so that means stay finite
LEAST_MEAN = 1e-9
LEAST_RANK = 1e-12
MOST_VARIANCE = 1e4  # of a coefficient of terms between -1 and 1, by the model


def analysed(records: SetRecords, asked: Question, family: Family) -> Analysis:
    """Return what a question is answered by one set."""
    if isinstance(asked, Formula):
        return regression(records, asked, family)
    return summary(records, asked)


def regression(records: SetRecords, asked: Formula, family: Family) -> Analysis:
    """Return a regression on one set, with variances that hold if those of the records
    differ. A coefficient without a finite estimate is NaN: that of a level that the set
    lacks, or of predictors that separate the outcome.
    """
    factors = {factor.text: factor.terms(records.values) for factor in asked.factors}
    names, values = crossed(factors, asked.interactions)
    design = np.column_stack([np.ones(len(values)), values])[records.complete]
    outcome = records.numbers(asked.outcome)
    if not np.isfinite(design).all():
        raise InputError(
            "a term isn't finite for all numbers between the bounds of the schema: add "
            "a number first, as in log(wage + 1)"
        )
    if family == "binomial":
        check_binary(outcome)
    kept = design.any(axis=0)
    scale = np.abs(design[:, kept]).max(axis=0)
    scaled = design[:, kept] / scale
    estimate = np.full(len(kept), np.nan)
    variance = np.full(len(kept), np.nan)
    with np.errstate(all="ignore"):
        coefficients, own = _fitted(scaled, outcome, family, records.weights)
    estimate[kept] = coefficients / scale
    variance[kept] = own / scale**2
    return ["Intercept", *names], estimate, variance


def _fitted(
    design: FloatArray, outcome: FloatArray, family: Family, stands_for: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return coefficients by Newton's method, and their variances, both NaN where there
    is no finite estimate. A record counts as often as it ``stands_for``.
    """
    coefficients = np.zeros(design.shape[1])
    weights = stands_for
    means = np.zeros(len(design))
    if family == "poisson":
        mean = np.average(outcome, weights=stands_for)
        coefficients[0] = np.log(max(mean, LEAST_MEAN))
    for _ in range(NEWTON_STEPS):
        if family != "gaussian":
            linear = np.clip(design @ coefficients, -MOST_LINEAR, MOST_LINEAR)
            means = means_of(family, linear)
            weights = stands_for * variances_of(family, means)
        information = (design * weights[:, None]).T @ design
        step = np.linalg.pinv(information, hermitian=True) @ (
            design.T @ (stands_for * (outcome - means))
        )
        coefficients = coefficients + step
        if family == "gaussian" or np.abs(step).max() < CONVERGED:
            break
    means = design @ coefficients if family == "gaussian" else means
    # the model's own variances are huge where predictors separate the outcome
    inverse = np.linalg.pinv(information, rcond=LEAST_RANK, hermitian=True)
    is_open = np.diagonal(inverse) > MOST_VARIANCE
    is_open |= np.abs(information @ inverse - np.eye(len(inverse))).max(axis=0) > 0.01
    scores = design * (stands_for * (outcome - means))[:, None]
    n = len(design)
    freed = n / max(n - design.shape[1], 1)
    variances = np.diagonal(inverse @ (scores.T @ scores) @ inverse) * freed
    coefficients = np.where(is_open, np.nan, coefficients)
    return coefficients, np.where(is_open, np.nan, variances)


def summary(records: SetRecords, asked: Summary) -> Analysis:
    """Return a summary of one set, with variances as if it were a sample."""
    columns = [records.numbers(one) for one in asked.of if not _is_share(asked)]
    if _is_share(asked):
        codes = np.asarray(records.values[asked.of[0].text].codes)[records.complete]
        n_levels = records.schema.columns[asked.of[0].text].n_levels
        columns = [1.0 * (codes == level) for level in range(n_levels)]
    if not columns:
        columns = [np.ones(int(records.complete.sum()))]
    weights = records.weights
    answers = []
    for members in records.groups(asked.by):
        if asked.kind == "correlation":
            answers.append(_correlation(*(column[members] for column in columns)))
        elif asked.kind in IS_SUM:
            answers += [_total(column * members * weights) for column in columns]
        else:
            answers += [_mean(column[members], weights[members]) for column in columns]
    estimates, variances = np.array(answers, dtype=np.float64).T
    return answer_names(asked), estimates, variances


def _is_share(asked: Summary) -> bool:
    """Whether the share of each level is asked for."""
    return asked.kind == "share" and asked.of[0].is_plain


def _mean(values: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """Return a weighted mean, and its variance as that of a ratio."""
    total = weights.sum()
    if not total > 0:
        return np.nan, np.nan
    mean = float(weights @ values / total)
    return mean, float(((weights * (values - mean)) ** 2).sum() / total**2)


def _total(values: FloatArray) -> tuple[float, float]:
    return float(values.sum()), float(values.var() * len(values))


def _correlation(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    if min(len(x), *map(np.ptp, (x, y)) if len(x) else (0,)) <= 0:
        return np.nan, np.nan
    correlation = float(np.corrcoef(x, y)[0, 1])
    return correlation, (1 - correlation**2) ** 2 / len(x)
