"""How far answers go if numbers are anywhere in the intervals that were counted: sets
have them even in these, but people round.
"""

from collections.abc import Sequence

import numpy as np

from pdips.arrays import FloatArray
from pdips.outside.answer import Ends
from pdips.outside.counted_intervals import CountedIntervals, counted_intervals
from pdips.outside.questions import Expression, Formula, Question
from pdips.outside.sets.analyses import Family, analysed
from pdips.outside.sets.beyond_pairs import OF_PRODUCTS
from pdips.outside.sets.calibration import calibrated, pair_intervals
from pdips.outside.sets.records import SetRecords
from pdips.release.opening import PublishedRelease

NEARLY = 0.99  # of the way to the ends of their intervals that numbers are moved


def left_open(
    public: PublishedRelease,
    sets: Sequence[SetRecords],
    asked: Question,
    family: Family,
) -> Ends:
    """Return by how much less, and by how much more, estimates are if numbers are at
    the ends of the intervals that were counted: even in the sets, but people round.
    """
    estimates = [analysed(records, asked, family)[1] for records in sets]
    known = pair_intervals(public)
    within = [
        np.abs(calibrated(records, asked, family, known)[1] - estimate)
        for records, estimate in zip(sets, estimates, strict=True)
    ]
    # of what a number has to do with others within the intervals of pairs nothing
    # tells: from nothing to twice what it has between them
    squares = np.tile(np.mean(within, axis=0) ** 2, (2, 1))
    for name, intervals in counted_intervals(public).items():
        if name not in asked.columns:
            continue
        gaps = list[FloatArray]()
        for records, estimate in zip(sets, estimates, strict=True):
            analyses = [
                analysed(records.with_numbers({name: ends}), asked, family)
                for ends in _ends_of(records, asked, name, intervals)
            ]
            moved = [numbers for _, numbers, _ in analyses]
            less = estimate - np.minimum(*moved)
            more = np.maximum(*moved) - estimate
            gap = np.maximum(np.stack([less, more]), 0)
            if _cuts(asked, name) and gap.any():
                # records of an interval that is cut needn't all be at one end
                errors = np.sqrt(np.nanmax([own for *_, own in analyses], axis=0))
                apart = OF_PRODUCTS * np.sqrt(records.complete.sum()) * errors
                gap = np.hypot(gap, np.nan_to_num(apart))
            gaps.append(gap)
        squares += np.mean(gaps, axis=0) ** 2
    less, more = np.sqrt(squares)
    return less, more


def _ends_of(
    records: SetRecords, asked: Question, name: str, intervals: CountedIntervals
) -> tuple[FloatArray, FloatArray]:
    """Return the numbers of a column where they are at one end of their intervals, and
    at the other; where a condition is asked, at a place where it is false, or true, if
    there is one.
    """
    numbers = np.asarray(records.values[name].numbers)
    low, high = intervals.ends(numbers)
    conditions = [
        one for one in _expressions(asked) if one.is_condition and name in one.columns
    ]
    if not conditions:
        # not quite to the ends: logarithms of a column's bound may have none
        first, last = (numbers + NEARLY * (end - numbers) for end in (low, high))
        return first, last
    if not intervals.is_whole:  # the upper end isn't in the interval
        high = np.maximum(np.nextafter(high, low), low)
    places = [low, high]
    for constant in conditions[0].constants:
        for near in (constant, *np.nextafter(constant, [-np.inf, np.inf])):
            places.append(np.clip(near, low, high))
    tried = np.stack(places)
    is_true = np.stack(
        [
            conditions[0].values(records.with_numbers({name: place}).values)
            for place in places
        ]
    )
    at = np.arange(len(numbers))
    return tried[is_true.argmin(axis=0), at], tried[is_true.argmax(axis=0), at]


def _cuts(asked: Question, name: str) -> bool:
    """Whether a formula's condition is about a number with intervals."""
    return isinstance(asked, Formula) and any(
        one.is_condition and name in one.columns for one in _expressions(asked)
    )


def _expressions(asked: Question) -> list[Expression]:
    """Return all that is taken of a record."""
    if isinstance(asked, Formula):
        return [asked.outcome, *asked.factors]
    return [*asked.of]


def ends_of_values(
    public: PublishedRelease, records: SetRecords, asked: Expression
) -> Ends:
    """Return the least and the largest that an expression of one column can be in the
    interval of each complete record; itself where none was counted.
    """
    values = records.numbers(asked)
    (name, *others) = asked.columns
    intervals = counted_intervals(public).get(name)
    if others or intervals is None:
        return values, values
    ends = intervals.ends(np.asarray(records.values[name].numbers))
    moved = [records.with_numbers({name: end}) for end in ends]
    with np.errstate(all="ignore"):
        low, high = (asked.values(some.values)[some.complete] for some in moved)
    low, high = np.minimum(low, high), np.maximum(low, high)
    known = np.isfinite(low) & np.isfinite(high)
    return np.where(known, low, values), np.where(known, high, values)
