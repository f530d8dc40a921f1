"""Slopes and correlations of one set, where noisy pairs know numbers by intervals or
bins: within these a set has a number go with nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pdips.arrays import BoolArray, FloatArray
from pdips.data.column import Column
from pdips.outside.questions import Expression, Formula, Question, Summary
from pdips.outside.sets.analyses import Analysis, Family, analysed, regression
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

    def means_of(
        self, numbers: FloatArray, values: FloatArray, complete: BoolArray
    ) -> "IntervalMeans":
        """Return the means of ``values``, made of these numbers, by interval; those of
        complete records count.
        """
        n = len(self.lower)
        interval = np.searchsorted(self.lower, numbers, side="right") - 1
        home = np.clip(interval, 0, n - 1)
        counts = np.bincount(home[complete], minlength=n)
        totals = np.bincount(home[complete], values[complete], minlength=n)
        even = totals / np.maximum(counts, 1)
        within = float(((values - even[home])[complete] ** 2).mean())
        tilted = self.tilted(even, counts.astype(np.float64))
        of_records = even if values is not numbers else tilted
        between = float(of_records[home][complete].var())
        whole = max(between + within, np.finfo(float).tiny)
        part = max(between / whole, LEAST_PART)
        is_known = ~np.isnan(numbers)
        return IntervalMeans(
            even=np.where(is_known, even[home], numbers),
            tilted=np.where(is_known, tilted[home], numbers),
            part=part,
        )


@dataclass(frozen=True, eq=False)
class IntervalMeans:
    """The mean of each record's interval, if numbers are even in bins and by a density
    that runs on through them, and the part of the variance that is between intervals.
    """

    even: FloatArray
    tilted: FloatArray
    part: float


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
    slope and correlation. With the means of intervals as instruments, slopes are those
    of the numbers, of logarithms and logits too (Carroll and others 2006, chapter 6);
    of an outcome the differences between intervals are enlarged by the part of its
    variance that is between them.
    """
    whole_parts = dict[str, float]()
    means = dict[str, FloatArray]()
    shifted = dict[str, FloatArray]()
    for name in asked.columns.keys() & intervals.keys() - _cut_within(asked):
        numbers = np.asarray(records.values[name].numbers)
        own = intervals[name].means_of(numbers, numbers, records.complete)
        whole_parts[name] = own.part
        means[name] = own.tilted
        shifted[name] = numbers + own.tilted - own.even
    if isinstance(asked, Summary):
        answers = analysed(records, asked, family)
        if asked.kind != "correlation" or asked.by:
            return answers
        names, estimates, variances = answers
        enlarged = estimates / np.prod([*whole_parts.values(), 1.0])
        return names, np.clip(enlarged, -MOST_CORRELATED, MOST_CORRELATED), variances
    outcome = _enlarged(records, asked.outcome, intervals)
    for name in asked.outcome.columns:
        means.pop(name, None)
        shifted.pop(name, None)
    through = records.with_numbers(means) if means else None
    # not beyond the bounds, where logarithms may have no value
    for name, numbers in shifted.items():
        column = records.schema.columns[name]
        shifted[name] = np.clip(numbers, column.lower, column.upper)
    return regression(
        records.with_numbers(shifted), asked, family, outcome=outcome, through=through
    )


def _enlarged(
    records: SetRecords, outcome: Expression, intervals: Mapping[str, PairIntervals]
) -> FloatArray | None:
    """Return an outcome's mean in each record's interval, whose differences are
    enlarged to the outcome's own; None where it isn't made of a number with intervals.
    """
    (name, *others) = outcome.columns
    if others or name not in intervals or outcome.is_condition:
        return None
    numbers = np.asarray(records.values[name].numbers)
    values = numbers if outcome.is_plain else outcome.values(records.values)
    own = intervals[name].means_of(numbers, values, records.complete)
    middles = own.tilted if outcome.is_plain else own.even
    mean = records.numbers(outcome).mean()
    return np.asarray(mean + (middles[records.complete] - mean) / own.part)


def _cut_within(asked: Question) -> set[str]:
    """Return the columns of predictors that are conditions, which may cut intervals."""
    if not isinstance(asked, Formula):
        return set()
    conditions = [factor for factor in asked.factors if factor.is_condition]
    return {name for factor in conditions for name in factor.columns}
