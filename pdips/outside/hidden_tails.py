"""Records that noise may hide far out on a long range, and what regressions,
correlations, means and totals would be with them.

Sets have no records where noisy counts tell none, and a few there would have all the
say: a record counts by the square of its distance.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.outside.answer import PRODUCTS, Answer, Ends
from pdips.outside.cells import Missing
from pdips.outside.interval_counts import IntervalCounts
from pdips.outside.questions import ColumnValues, Expression, Formula, Question, Summary
from pdips.outside.sets.analyses import Family, analysed
from pdips.outside.sets.records import SetRecords
from pdips.release.opening import PublishedRelease

MOST_HIDDEN = 100.0
"""How many times the variance that a set shows noise may hide, with one standard
deviation, before a set's slopes and correlations are no guide.
"""
OF_EXTREME = 0.1
"""Hidden records are copies of those of the tenth with the largest outcome, or with the
least: about two standard deviations from its mean.
"""


def with_hidden_tails(
    answer: Answer,
    public: PublishedRelease,
    asked: Question,
    family: Family,
    missing: Missing,
    weight: str | None = None,
) -> Answer:
    """Return an answer whose intervals allow for records that noise hides. Means of
    noisy products do already, by what is beyond their caps.
    """
    if answer.source == PRODUCTS and _is_mean(asked):
        return answer
    schema = public.privacy.table_schema
    columns = [*asked.columns]
    records = SetRecords.of(public.sets[0], schema, columns, missing, weight)
    far = untold_by_tails(public, records, asked, family)
    if far is None:
        return answer
    (names, _, _) = analysed(records, asked, family)
    at = [names.index(name) for name in answer.names]
    before = answer.untold or (np.zeros(len(at)), np.zeros(len(at)))
    less, more = (
        np.hypot(own, tail[at]) for own, tail in zip(before, far, strict=True)
    )
    return replace(answer, untold=(less, more))


def untold_by_tails(
    public: PublishedRelease, records: SetRecords, asked: Question, family: Family
) -> Ends | None:
    """Return by how much less, and by how much more, each coefficient, correlation,
    mean or total may be for records that noise hides; None where no number without bins
    has a say.

    As many records as a count has standard deviations of noise, one, are put into the
    interval where they count most of those that hold fewer in the set, with the largest
    outcomes, and then with the least.
    """
    if isinstance(asked, Summary) and _is_mean(asked):
        return _means_by_tails(public, records, asked)
    outcome, names = _hiding(asked)
    if outcome is None:
        return None
    of_set = analysed(records, asked, family)[1]
    squares = np.zeros((2, len(of_set)))
    is_counted = False
    for name in names:
        counts = IntervalCounts.of(public, name, (float(len(records.complete)), 0.0))
        if counts is None:
            continue
        is_counted = True
        _refuse_unknown_variance(records, name, counts)
        far = np.zeros((2, len(of_set)))
        for number, n_hidden in _places(records, name, counts):
            for rows in _extremes(records, outcome, n_hidden):
                added = _with(records, rows, name, number)
                moved = analysed(added, asked, family)[1] - of_set
                off = np.nan_to_num(np.stack([-moved, moved]))
                far = np.maximum(far, off)
        squares += far**2
    less, more = np.sqrt(squares)
    return (less, more) if is_counted else None


def _is_mean(asked: Question) -> bool:
    """Whether it is a mean, total or deviation of a column as it is."""
    if not isinstance(asked, Summary) or asked.kind not in ("mean", "total", "sd"):
        return False
    return asked.of[0].is_plain


def _means_by_tails(
    public: PublishedRelease, records: SetRecords, asked: Summary
) -> Ends | None:
    """Return by how much less, and by how much more, the mean, total or deviation of
    each group may be.

    As many records as a count has standard deviations of noise, one, are put into the
    interval where they count most of those that hold fewer in the set; all of them into
    each group in turn, as nothing tells of which they are.
    """
    (name,) = asked.of[0].columns
    counts = IntervalCounts.of(public, name, (float(len(records.complete)), 0.0))
    if counts is None:
        return None
    of_set = analysed(records, asked, "gaussian")[1]
    numbers = np.asarray(records.values[name].numbers)[records.complete]
    middles, hidden = _hidden(numbers, counts)
    hidden = np.where(hidden >= 1, hidden, 0.0)
    distances = middles - numbers.mean()
    pulls = hidden * np.stack([-distances, distances, distances**2])
    far = np.zeros((2, len(of_set)))
    complete = np.flatnonzero(records.complete)
    for place in {*pulls.argmax(axis=1).tolist()}:
        n_hidden = int(hidden[place])
        for at, members in enumerate(records.groups(asked.by)):
            if n_hidden == 0 or not members.any():
                continue
            rows = np.resize(complete[members], n_hidden)
            added = _with(records, rows, name, float(middles[place]))
            moved = analysed(added, asked, "gaussian")[1][at] - of_set[at]
            far[:, at] = np.maximum(far[:, at], [-moved, moved])
    return far[0], far[1]


def _refuse_unknown_variance(
    records: SetRecords, name: str, counts: IntervalCounts
) -> None:
    """Refuse a number on a range so long that noise could hide far more variance than
    there is.
    """
    numbers = np.asarray(records.values[name].numbers)[records.complete]
    middles = (counts.lower + counts.upper) / 2
    squares = np.append((middles - numbers.mean()) ** 2, 0.0)
    hidden = float(np.sqrt(squares @ counts.noise @ squares))
    if hidden > MOST_HIDDEN * len(numbers) * float(numbers.var()):
        raise InputError(
            f"noise could hide more than {MOST_HIDDEN:g} times the variance of "
            f"{name!r} far out between its bounds, and so all of a slope or a "
            f"correlation: ask for its logarithm, or the office for closer bounds"
        )


def _hiding(asked: Question) -> tuple[Expression | None, list[str]]:
    """Return what hidden records are extreme in, and the columns on whose range they
    may be far out.
    """
    if isinstance(asked, Formula):
        factors = [one for one in asked.factors if one.is_plain]
        return asked.outcome, [*dict.fromkeys(_columns(factors))]
    if isinstance(asked, Summary) and asked.kind == "correlation" and not asked.by:
        return asked.of[1], [*asked.of[0].columns] if asked.of[0].is_plain else []
    return None, []


def _columns(expressions: list[Expression]) -> Iterator[str]:
    for one in expressions:
        yield from one.columns


def _places(
    records: SetRecords, name: str, counts: IntervalCounts
) -> Iterator[tuple[float, int]]:
    """Yield the numbers at which hidden records would move a slope most, and a variance
    most, and how many records noise may hide there.
    """
    numbers = np.asarray(records.values[name].numbers)[records.complete]
    middles, hidden = _hidden(numbers, counts)
    distances = np.abs(middles - numbers.mean())
    squares = np.maximum(hidden, 0) * distances**2
    parts = squares / (squares + max(float(numbers.var()), 1e-300) * len(numbers))
    with np.errstate(divide="ignore", invalid="ignore"):
        by_slope = np.nan_to_num(parts / distances)
    for place in {int(np.argmax(by_slope)), int(np.argmax(parts))}:
        if hidden[place] >= 1:
            yield float(middles[place]), int(hidden[place])


def _hidden(
    numbers: FloatArray, counts: IntervalCounts
) -> tuple[FloatArray, FloatArray]:
    """Return the middles of intervals, and how many records noise hides in each."""
    edges = np.append(counts.lower, np.inf)
    in_set = np.histogram(numbers, edges)[0]
    middles = (counts.lower + counts.upper) / 2
    return middles, np.sqrt(np.diagonal(counts.noise)[:-1]) - in_set


def _extremes(
    records: SetRecords, outcome: Expression, n_hidden: int
) -> Iterator[IntArray]:
    """Yield the rows of which hidden records are copies."""
    complete = np.flatnonzero(records.complete)
    order = complete[np.argsort(records.numbers(outcome), kind="stable")]
    n_extreme = max(int(OF_EXTREME * len(order)), 1)
    for tenth in (order[:n_extreme], order[-n_extreme:]):
        yield np.resize(tenth, n_hidden)


def _with(records: SetRecords, rows: IntArray, name: str, number: float) -> SetRecords:
    """Return the records and copies of some, with a number of their own."""
    values = dict[str, ColumnValues]()
    for label, own in records.values.items():
        codes = own.codes
        numbers: FloatArray | None = own.numbers
        if codes is not None:
            codes = np.append(codes, codes[rows])
        if numbers is not None:
            added = np.full(len(rows), number) if label == name else numbers[rows]
            numbers = np.append(numbers, added)
        values[label] = ColumnValues(codes, numbers)
    complete = np.append(records.complete, np.ones(len(rows), dtype=bool))
    return replace(records, values=values, complete=complete)
