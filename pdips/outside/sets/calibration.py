"""Slopes and correlations of one set, where noisy pairs know numbers by intervals or
bins: within these a set has a number go with nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pdips.arrays import BoolArray, FloatArray
from pdips.data.column import Column
from pdips.outside.questions import Formula, Question, Summary
from pdips.outside.sets.analyses import Analysis, Family, analysed
from pdips.outside.sets.records import SetRecords
from pdips.release.opening import PublishedRelease

LEAST_PART = 0.2  # of a variance between intervals that slopes are enlarged by
MOST_CORRELATED = 0.999
LEAST_DENSITY = 1e-9  # of the largest, of what is divided by
MOST_TILTED = 1 / 6  # of a bin's width: the middle of a density that falls to 0 in it


@dataclass(frozen=True, eq=False)
class PairIntervals:
    """The intervals by which noisy pairs know a number.

    Parameters
    ----------
    lower : ndarray
        Their lower bounds, in order.
    width : ndarray, optional
        Of bins, in which sets are even; in intervals of numbers without bins sets have
        the law of the noisy counts within them.

    Examples
    --------
    >>> bins = PairIntervals(np.array([0.0, 10]), np.array([10.0, 10]))
    >>> bins.tilted(np.array([5.0, 15]), np.array([60.0, 40])).round(2).tolist()
    [4.72, 14.58]
    """

    lower: FloatArray
    width: FloatArray | None = None

    @classmethod
    def of_bins(cls, column: Column) -> "PairIntervals":
        """Return the bins of a column."""
        edges = np.array(column.edges, dtype=np.float64)
        return cls(edges[:-1], np.diff(edges))

    def tilted(self, means: FloatArray, counts: FloatArray) -> FloatArray:
        """Return the means of intervals, by a density that runs on through bins.

        Even numbers in a bin have its middle as their mean, and so too large a variance
        between bins (Sheppard's correction).
        """
        if self.width is None or len(means) < 2:
            return means
        density = counts / self.width
        slope = np.gradient(density, self.lower + self.width / 2)
        least = max(LEAST_DENSITY * density.max(), np.finfo(float).tiny)
        tilt = slope * self.width / np.maximum(density, least) / 12
        return means + self.width * np.clip(tilt, -MOST_TILTED, MOST_TILTED)


def pair_intervals(public: PublishedRelease) -> dict[str, PairIntervals]:
    """Return the intervals by which noisy pairs know each number without bins, and the
    bins of those with.
    """
    intervals = dict[str, PairIntervals]()
    columns = public.privacy.table_schema.columns
    for law in public.privacy.margins:
        for axis in law.axes:
            if axis.lower:
                lower = np.array(axis.lower, dtype=np.float64)
                intervals[axis.columns[0]] = PairIntervals(lower)
            for name in axis.columns:
                if columns[name].is_binned and not columns[name].is_categorical:
                    intervals[name] = PairIntervals.of_bins(columns[name])
    return intervals


def calibrated(
    records: SetRecords,
    asked: Question,
    family: Family,
    intervals: Mapping[str, PairIntervals],
) -> Analysis:
    """Return what a question is answered by one set, where what numbers have to do with
    other columns is that of their intervals.

    Within an interval a set has a number go with nothing, which takes a part of each
    slope and correlation. The means of intervals as predictors have no error that goes
    with them, so their slope is whole (regression calibration: Carroll and others 2006,
    chapter 4); of an outcome the differences between intervals are enlarged by the part
    of its variance that is between them.
    """
    whole_parts = dict[str, float]()
    moved = dict[str, FloatArray]()
    for name in asked.columns.keys() & intervals.keys() - _cut_within(asked):
        numbers = np.asarray(records.values[name].numbers)
        means, part = _means_of_intervals(numbers, records.complete, intervals[name])
        whole_parts[name] = part
        moved[name] = means
    if isinstance(asked, Summary):
        answers = analysed(records, asked, family)
        if asked.kind != "correlation" or asked.by:
            return answers
        names, estimates, variances = answers
        enlarged = estimates / np.prod([*whole_parts.values(), 1.0])
        return names, np.clip(enlarged, -MOST_CORRELATED, MOST_CORRELATED), variances
    for name in asked.outcome.columns.keys() & moved.keys():
        numbers = np.asarray(records.values[name].numbers)
        if not asked.outcome.is_plain:
            del moved[name]
            continue
        mean = numbers[records.complete].mean()
        moved[name] = mean + (moved[name] - mean) / whole_parts[name]
    return analysed(records.with_numbers(moved), asked, family)


def _cut_within(asked: Question) -> set[str]:
    """Return the columns of predictors that are conditions, which may cut intervals."""
    if not isinstance(asked, Formula):
        return set()
    conditions = [factor for factor in asked.factors if factor.is_condition]
    return {name for factor in conditions for name in factor.columns}


def _means_of_intervals(
    numbers: FloatArray, complete: BoolArray, intervals: PairIntervals
) -> tuple[FloatArray, float]:
    """Return the mean of the interval of each number, and the part of the variance that
    is between intervals; of complete records.
    """
    n = len(intervals.lower)
    interval = np.searchsorted(intervals.lower, numbers, side="right") - 1
    home = np.clip(interval, 0, n - 1)
    counts = np.bincount(home[complete], minlength=n)
    totals = np.bincount(home[complete], numbers[complete], minlength=n)
    even = totals / np.maximum(counts, 1)
    within = float(((numbers - even[home])[complete] ** 2).mean())
    means = intervals.tilted(even, counts.astype(np.float64))[home]
    between = float(means[complete].var())
    whole = max(between + within, np.finfo(float).tiny)
    part = max(between / whole, LEAST_PART)
    return np.where(np.isnan(numbers), numbers, means), part
