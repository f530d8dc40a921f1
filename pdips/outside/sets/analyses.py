"""What one synthetic set says to a question: estimates, with variances as if its
records were the table's.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pdips.arrays import BoolArray, FloatArray
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


def regression(
    records: SetRecords,
    asked: Formula,
    family: Family,
    *,
    outcome: FloatArray | None = None,
    through: SetRecords | None = None,
) -> Analysis:
    """Return a regression on one set, with variances that hold if those of the records
    differ. A coefficient without a finite estimate is NaN: that of a level that the set
    lacks, or of predictors that separate the outcome.

    Parameters
    ----------
    outcome : ndarray, shape (complete records,), optional
        In place of the records' own.
    through : SetRecords, optional
        The same records with what alone the outcome depends on, of each predictor: they
        are the instruments, and the predictors' own numbers are around them.
    """
    names, design = _design(records, asked)
    instruments = design if through is None else _design(through, asked)[1]
    if outcome is None:
        outcome = records.numbers(asked.outcome)
    if family == "binomial":
        check_binary(outcome)
    kept = instruments.any(axis=0)
    scale = np.abs(instruments[:, kept]).max(axis=0)
    fit = _Fit(
        design=design[:, kept] / scale,
        instruments=instruments[:, kept] / scale,
        outcome=outcome,
        family=family,
        stands_for=records.weights,
    )
    estimate = np.full(len(kept), np.nan)
    variance = np.full(len(kept), np.nan)
    with np.errstate(all="ignore"):
        coefficients, own = fit.solved()
    estimate[kept] = coefficients / scale
    variance[kept] = own / scale**2
    return ["Intercept", *names], estimate, variance


def _design(records: SetRecords, asked: Formula) -> tuple[list[str], FloatArray]:
    """Return the names of all terms, and their values for each complete record."""
    factors = {factor.text: factor.terms(records.values) for factor in asked.factors}
    names, values = crossed(factors, asked.interactions)
    design = np.column_stack([np.ones(len(values)), values])[records.complete]
    if not np.isfinite(design).all():
        raise InputError(
            "a term isn't finite for all numbers between the bounds of the schema: add "
            "a number first, as in log(wage + 1)"
        )
    return names, design


@dataclass(frozen=True, eq=False)
class _Fit:
    """A regression on one set. A record counts as often as it ``stands_for``; errors
    are uncorrelated with the ``instruments``, which are the design itself where a set
    knows each number.
    """

    design: FloatArray
    instruments: FloatArray
    outcome: FloatArray
    family: Family
    stands_for: FloatArray

    def solved(self) -> tuple[FloatArray, FloatArray]:
        """Return coefficients and their variances, both NaN where there is no finite
        estimate.
        """
        plain = replace(self, design=self.instruments)
        coefficients, is_converged = plain._steps(np.zeros(self.design.shape[1]))
        is_open = plain._is_open(coefficients)
        fit = plain
        if self.design is not self.instruments and is_converged:
            through, is_converged = self._steps(coefficients)
            if is_converged and np.isfinite(through).all():
                coefficients = through
                fit = self
        variances = fit._variances(coefficients)
        coefficients = np.where(is_open, np.nan, coefficients)
        return coefficients, np.where(is_open, np.nan, variances)

    def _means(self, coefficients: FloatArray) -> FloatArray:
        linear = np.asarray(self.design @ coefficients)
        if self.family == "gaussian":
            return linear
        return means_of(self.family, np.clip(linear, -MOST_LINEAR, MOST_LINEAR))

    def _information(self, coefficients: FloatArray) -> FloatArray:
        weights = self.stands_for
        if self.family != "gaussian":
            weights = weights * variances_of(self.family, self._means(coefficients))
        return np.asarray((self.instruments * weights[:, None]).T @ self.design)

    def _steps(self, coefficients: FloatArray) -> tuple[FloatArray, bool]:
        """Return coefficients by Newton's method, and whether it converged."""
        if self.family == "poisson" and not coefficients.any():
            mean = np.average(self.outcome, weights=self.stands_for)
            coefficients = coefficients.copy()
            coefficients[0] = np.log(max(mean, LEAST_MEAN))
        for _ in range(NEWTON_STEPS):
            off = self.stands_for * (self.outcome - self._means(coefficients))
            inverse = np.linalg.pinv(self._information(coefficients))
            step = inverse @ (self.instruments.T @ off)
            coefficients = coefficients + step
            if self.family == "gaussian" or np.abs(step).max() < CONVERGED:
                return coefficients, True
        return coefficients, False

    def _is_open(self, coefficients: FloatArray) -> BoolArray:
        """Whether coefficients have no finite estimate."""
        # the model's own variances are huge where predictors separate the outcome
        information = self._information(coefficients)
        inverse = np.linalg.pinv(information, rcond=LEAST_RANK, hermitian=True)
        is_open = np.diagonal(inverse) > MOST_VARIANCE
        off = np.abs(information @ inverse - np.eye(len(inverse)))
        return np.asarray(is_open | (off.max(axis=0) > 0.01))

    def _variances(self, coefficients: FloatArray) -> FloatArray:
        information = self._information(coefficients)
        inverse = np.linalg.pinv(information, rcond=LEAST_RANK)
        off = self.stands_for * (self.outcome - self._means(coefficients))
        scores = self.instruments * off[:, None]
        n = len(scores)
        freed = n / max(n - scores.shape[1], 1)
        return np.asarray(
            np.diagonal(inverse @ (scores.T @ scores) @ inverse.T) * freed
        )


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
        elif asked.kind == "sd":
            answers.append(_deviation(columns[0][members], weights[members]))
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


def _deviation(values: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """Return a weighted standard deviation, and its variance by the delta method."""
    total = weights.sum()
    if not total > 0:
        return np.nan, np.nan
    squares = (values - weights @ values / total) ** 2
    variance, of_variance = _mean(squares, weights)
    if not variance > 0:
        return np.nan, np.nan
    return float(np.sqrt(variance)), of_variance / (4 * variance)


def _total(values: FloatArray) -> tuple[float, float]:
    return float(values.sum()), float(values.var() * len(values))


def _correlation(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    if min(len(x), *map(np.ptp, (x, y)) if len(x) else (0,)) <= 0:
        return np.nan, np.nan
    correlation = float(np.corrcoef(x, y)[0, 1])
    return correlation, (1 - correlation**2) ** 2 / len(x)
