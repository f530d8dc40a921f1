"""Questions asked of each synthetic set as if it were the table, and combined by the
rule that fits the release.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.coding import numbers
from pdips.data.schema import Records, Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.inference.combine import combine
from pdips.inference.rules import Rule, nearest_rule
from pdips.outside.answer import (
    FISHER,
    LOGIT,
    SETS,
    Answer,
    CombinedAnswer,
    Ends,
    Inverted,
    OpenScale,
)
from pdips.outside.cells import (
    COUNTS,
    IS_SUM,
    SHARES,
    Missing,
    answer_names,
)
from pdips.outside.counted_intervals import CountedIntervals, counted_intervals
from pdips.outside.generalized import means_of, variances_of
from pdips.outside.questions import (
    ColumnValues,
    Expression,
    Formula,
    Question,
    Summary,
    is_number,
)
from pdips.outside.regression import check_binary, crossed
from pdips.release.opening import PublishedRelease

type Family = Literal["gaussian", "binomial", "poisson"]
type Analysis = tuple[list[str], FloatArray, FloatArray]
"""Names, estimates and variances of one set."""

BY_MODEL = (
    "no noisy count holds these columns together: how they go together is as the model "
    "of the sets has it, and intervals hold only as far as that is right"
)
BY_INTERVALS = (
    "a number without bins goes with other columns by a few intervals in the sets"
)
DRAWN_TO_0 = (
    "what noise hides of an association is drawn towards none in the sets: beside "
    "little noise, as with a delta, intervals of regressions held in .6 to .9 of trials"
)
NEARLY = 0.99  # of the way to the ends of their intervals that numbers are moved
LEAST_PART = 0.2  # of a variance between intervals that slopes are enlarged by
MOST_CORRELATED = 0.999
MOST_MOVED = 2  # sets whose numbers are moved within their intervals
MOST_PLACES = 400  # at which the share of records below is worked out
NEWTON_STEPS = 40
CONVERGED = 1e-8  # change of a coefficient of terms between -1 and 1
MOST_LINEAR = 30.0  # so that means stay finite
LEAST_MEAN = 1e-9
LEAST_RANK = 1e-12
MOST_VARIANCE = 1e4  # of a coefficient of terms between -1 and 1, by the model


@dataclass(frozen=True, kw_only=True, eq=False)
class SetRecords:
    """The records of a synthetic set that a question is about.

    Parameters
    ----------
    schema : Schema
    values : mapping of str to ColumnValues
        Of each column that the question reads.
    complete : ndarray of bool, shape (records,)
        Which have all that is asked for.
    weight : str, optional
        The column that says how many members of the population a record stands for.
    """

    schema: Schema
    values: Mapping[str, ColumnValues]
    complete: BoolArray
    weight: str | None = None

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        schema: Schema,
        columns: Sequence[str],
        missing: Missing,
        weight: str | None = None,
    ) -> "SetRecords":
        """Return the records of a frame; ``missing`` says whether missing is a level
        of text.
        """
        if weight is not None:
            columns = [*dict.fromkeys([*columns, weight])]
        own = schema.without_person().model_copy(
            update={
                "columns": {name: schema.columns[name] for name in columns},
                "records": Records(),
                **dict.fromkeys(("impossible", "rule", "total"), ()),
            }
        )
        table = Table(frame[[*columns]].reset_index(drop=True), own)
        values = {}
        complete = np.ones(len(frame), dtype=bool)
        for name, column in own.columns.items():
            has_levels = column.is_categorical or column.is_binned
            codes = np.asarray(table.codes[name]) if has_levels else None
            held = None
            if is_number(column) and column.levels is not None and codes is not None:
                levels = [*column.levels, *([np.nan] if column.missing else [])]
                held = np.array(levels, dtype=np.float64)[codes]
            elif is_number(column):
                held = numbers(name, table.frame[name], column)
            if held is not None:
                complete &= ~np.isnan(held)
            elif column.missing and missing == "drop" and codes is not None:
                complete &= codes < column.n_levels - 1
            values[name] = ColumnValues(codes, held)
        return cls(schema=own, values=values, complete=complete, weight=weight)

    @property
    def weights(self) -> FloatArray:
        """The weight of each complete record; 1 without weights."""
        if self.weight is None:
            return np.ones(int(self.complete.sum()))
        return np.asarray(self.values[self.weight].numbers)[self.complete]

    def numbers(self, expression: Expression) -> FloatArray:
        """Return the number of each complete record."""
        found = expression.values(self.values)
        if expression.is_levels:
            (_, found) = expression.terms(self.values)
            found = found[:, 0]
        if not np.isfinite(found[self.complete]).all():
            raise InputError(
                f"{expression.text!r} isn't finite for all numbers between the bounds "
                f"of the schema: add a number first, as in log(wage + 1)"
            )
        return found[self.complete]

    def with_numbers(self, numbers: Mapping[str, FloatArray]) -> "SetRecords":
        """Return the records with other numbers in some columns."""
        values = dict(self.values)
        for name, held in numbers.items():
            values[name] = replace(values[name], numbers=held)
        return replace(self, values=values)

    def capped(self, caps: Mapping[str, tuple[float, float]]) -> "SetRecords":
        """Return the records with numbers beyond their caps moved to these."""
        moved = dict[str, FloatArray]()
        for name, values in self.values.items():
            if name in caps and values.numbers is not None:
                moved[name] = np.clip(values.numbers, *caps[name])
        return self.with_numbers(moved)

    def groups(self, by: Sequence[str]) -> Iterator[BoolArray]:
        """Yield which complete records are of each group."""
        sizes = [self.schema.columns[name].n_levels for name in by]
        for levels in product(*map(range, sizes)):
            held = np.ones(int(self.complete.sum()), dtype=bool)
            for name, level in zip(by, levels, strict=True):
                codes: IntArray = np.asarray(self.values[name].codes)
                held &= codes[self.complete] == level
            yield held


def of_sets(
    public: PublishedRelease,
    asked: Question,
    family: Family,
    missing: Missing,
    weight: str | None = None,
) -> Answer:
    """Return the answer of the synthetic sets, by the rule that fits them.

    Raises
    ------
    InputError
        If there is one set only, or the release's certificate shows that no rule
        holds.
    """
    rule, warning = nearest_rule(public.home)
    schema = public.privacy.table_schema
    columns = [*asked.columns]
    if not columns:
        raise InputError("the number of records isn't asked of sets")
    told = [warning] if warning else []
    told += _remarks(public, asked, weight)
    sets = [
        SetRecords.of(frame, schema, columns, missing, weight) for frame in public.sets
    ]
    if isinstance(asked, Summary) and asked.kind == "quantile":
        return _quantiles(public, sets, asked, rule, told)
    cuts = _cuts(public)
    analyses = [_calibrated(records, asked, family, cuts) for records in sets]
    answer = _combined(analyses, rule, _scale_of(asked), len(sets[0].complete))
    return replace(
        answer,
        basis=_basis(sets, rule),
        remarks=tuple(told),
        limits=_limits(asked),
        untold=_untold(public, sets[:MOST_MOVED], asked, family),
    )


def _combined(
    analyses: Sequence[Analysis], rule: Rule, scale: OpenScale | None, n_records: int
) -> CombinedAnswer:
    """Return what the analyses of the sets, of so many records each, say together."""
    estimates = np.stack([estimate for _, estimate, _ in analyses])
    variances = np.stack([variance for _, _, variance in analyses])
    combined = combine(estimates, variances, rule=rule)
    within = np.asarray(combined.within)
    total = np.asarray(combined.variance)
    on_scale = None
    if scale is not None:
        on_scale = combine(*scale.taken(estimates, variances, n_records), rule=rule)
    return CombinedAnswer(
        tuple(analyses[0][0]),
        np.asarray(combined.estimate),
        np.diag(total),
        rule,
        noise=np.diag(np.maximum(total - within, 0)),
        source=SETS,
        combined=combined,
        scale=scale,
        on_scale=on_scale,
    )


def _cuts(public: PublishedRelease) -> dict[str, FloatArray]:
    """Return the lower bounds of the intervals by which pairs know each number without
    bins.
    """
    return {
        axis.columns[0]: np.array(axis.lower, dtype=np.float64)
        for law in public.privacy.margins
        for axis in law.axes
        if axis.lower
    }


def _calibrated(
    records: SetRecords, asked: Question, family: Family, cuts: Mapping[str, FloatArray]
) -> Analysis:
    """Return what a question is answered by one set, where what numbers without bins
    have to do with other columns is that of their intervals.

    Within an interval a set has a number go with nothing, which takes a part of each
    slope and correlation. The means of intervals as predictors have no error that goes
    with them, so their slope is whole (regression calibration: Carroll and others 2006,
    chapter 4); of an outcome the differences between intervals are enlarged by the part
    of its variance that is between them.
    """
    whole_parts = dict[str, float]()
    moved = dict[str, FloatArray]()
    for name in asked.columns.keys() & cuts.keys():
        numbers = np.asarray(records.values[name].numbers)
        means, part = _means_of_intervals(numbers, records.complete, cuts[name])
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


def _means_of_intervals(
    numbers: FloatArray, complete: BoolArray, lower: FloatArray
) -> tuple[FloatArray, float]:
    """Return the mean of the interval of each number, and the part of the variance that
    is between intervals; of complete records.
    """
    interval = np.searchsorted(lower, numbers, side="right") - 1
    own = np.clip(interval, 0, len(lower) - 1)
    counts = np.bincount(own[complete], minlength=len(lower))
    totals = np.bincount(own[complete], numbers[complete], minlength=len(lower))
    means = (totals / np.maximum(counts, 1))[own]
    whole = max(float(numbers[complete].var()), np.finfo(float).tiny)
    part = max(float(means[complete].var()) / whole, LEAST_PART)
    return np.where(np.isnan(numbers), numbers, means), part


def _scale_of(asked: Question) -> OpenScale | None:
    """Return the scale on which the sets' numbers are combined, of shares and
    correlations: near an end draws are skewed, and reach far to the other side.
    """
    kind = asked.kind if isinstance(asked, Summary) else ""
    return {"share": LOGIT, "correlation": FISHER}.get(kind)


def _untold(
    public: PublishedRelease,
    sets: Sequence[SetRecords],
    asked: Question,
    family: Family,
) -> Ends:
    """Return by how much less, and by how much more, estimates are if numbers are at
    the ends of the intervals that were counted: even in the sets, but people round.
    """
    estimates = [analysed(records, asked, family)[1] for records in sets]
    cuts = _cuts(public)
    within = [
        np.abs(_calibrated(records, asked, family, cuts)[1] - estimate)
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
            moved = [
                analysed(records.with_numbers({name: held}), asked, family)[1]
                for held in _ends_of(records, asked, name, intervals)
            ]
            less = estimate - np.minimum(*moved)
            more = np.maximum(*moved) - estimate
            gaps.append(np.maximum(np.stack([less, more]), 0))
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


def _expressions(asked: Question) -> list[Expression]:
    """Return all that is taken of a record."""
    if isinstance(asked, Formula):
        return [asked.outcome, *asked.factors]
    return [*asked.of]


def analysed(records: SetRecords, asked: Question, family: Family) -> Analysis:
    """Return what a question is answered by one set."""
    if isinstance(asked, Formula):
        return regression(records, asked, family)
    return summary(records, asked)


def _remarks(
    public: PublishedRelease, asked: Question, weight: str | None
) -> list[str]:
    """Return what intervals from the sets hold only under conditions, or refuse what
    they don't hold.
    """
    remarks = []
    cut = set[str]()
    for law in public.privacy.margins:
        cut |= {axis.columns[0] for axis in law.axes if axis.lower}
    if weight in cut or (isinstance(asked, Formula) and cut & {*asked.columns}):
        remarks.append(BY_INTERVALS)
    if isinstance(asked, Formula):
        if any(not column.is_categorical for column in asked.columns.values()):
            remarks.append(DRAWN_TO_0)
        _refuse_curves(asked, cut)
    if asked.joined + (weight is not None) > 2:
        remarks.append(BY_MODEL)
    return remarks


def _refuse_curves(asked: Formula, cut: Collection[str]) -> None:
    """Refuse curves and steps of a predictor that the sets know by a few intervals:
    they held in 10 and 71 % of trials (``docs/results/outside.md``).
    """
    for name in cut:
        own = [factor for factor in asked.factors if name in factor.columns]
        if len(own) > 1 or any(factor.is_condition for factor in own):
            raise InputError(
                f"sets know {name!r}, which has no bins, by a few intervals: of curves "
                f"and conditions of it their intervals don't hold"
            )


def _limits(asked: Question) -> tuple[float, float]:
    kind = asked.kind if isinstance(asked, Summary) else ""
    limits = {"share": SHARES, "count": COUNTS, "correlation": (-1.0, 1.0)}
    return limits.get(kind, (-np.inf, np.inf))


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
    columns = [records.numbers(each) for each in asked.of if not _is_share(asked)]
    if _is_share(asked):
        codes = np.asarray(records.values[asked.of[0].text].codes)[records.complete]
        n_levels = records.schema.columns[asked.of[0].text].n_levels
        columns = [1.0 * (codes == level) for level in range(n_levels)]
    if not columns:
        columns = [np.ones(int(records.complete.sum()))]
    weights = records.weights
    found = []
    for held in records.groups(asked.by):
        if asked.kind == "correlation":
            found.append(_correlation(*(column[held] for column in columns)))
        elif asked.kind in IS_SUM:
            found += [_total(column * held * weights) for column in columns]
        else:
            found += [_mean(column[held], weights[held]) for column in columns]
    estimates, variances = np.array(found, dtype=np.float64).T
    return answer_names(asked), estimates, variances


def _quantiles(
    public: PublishedRelease,
    sets: Sequence[SetRecords],
    asked: Summary,
    rule: Rule,
    told: Sequence[str],
) -> Inverted:
    """Return quantiles, and intervals of the values at which the sets' shares below
    don't differ from the part asked for: quantiles of whole numbers are often the same
    in all sets, so that their variance says nothing. Where a number is within a counted
    interval nothing tells, so intervals end where those do.
    """
    part = asked.part or 0.5
    values = [each.numbers(asked.of[0]) for each in sets]
    ends = [_ends_of_values(public, each, asked.of[0]) for each in sets]
    low, high = (np.concatenate(each) for each in zip(*ends, strict=True))
    places = np.unique(high)
    if len(places) > MOST_PLACES:
        parts = np.linspace(0, 1, MOST_PLACES)
        places = np.unique(np.quantile(high, parts, method="inverted_cdf"))
    shares = [
        _shares_below(each, asked, own, places)
        for each, (_, own) in zip(sets, ends, strict=True)
    ]
    below = [(own - part).ravel() for own, _ in shares]
    variances = [variance.ravel() for _, variance in shares]
    combined = combine(np.stack(below), np.stack(variances), rule=rule)
    shape = shares[0][0].shape
    # the least number up to each place, and above the one before
    lows = np.full(len(places), np.inf)
    np.minimum.at(lows, np.searchsorted(places, high), low)
    estimate = _pooled_quantiles(sets, values, asked)
    return Inverted(
        tuple(answer_names(asked)),
        estimate,
        np.diag(np.full(len(estimate), np.nan)),
        _basis(sets, rule),
        source=SETS,
        remarks=tuple(told),
        below=_after_none(np.asarray(combined.estimate).reshape(shape), -part),
        half_widths=lambda level: _after_none(
            combined.half_width(level).reshape(shape), 0.0
        ),
        lows=np.append(lows[0], lows),
        highs=np.append(places, places[-1]),
    )


def _after_none(of_places: FloatArray, at_none: float) -> FloatArray:
    """Return numbers of places, shape (groups, places), after that of a place below all
    values.
    """
    first = np.full((len(of_places), 1), at_none)
    return np.hstack([first + 0 * of_places[:, :1], of_places])


def _pooled_quantiles(
    sets: Sequence[SetRecords], values: Sequence[FloatArray], asked: Summary
) -> FloatArray:
    """Return the quantile of each group in all sets together."""
    part = asked.part or 0.5
    groups = zip(*(each.groups(asked.by) for each in sets), strict=True)
    quantiles = list[float]()
    for held in groups:
        own = [some[which] for some, which in zip(values, held, strict=True)]
        together = np.concatenate(own)
        is_empty = any(len(each) == 0 for each in own)
        quantile = np.nan
        if not is_empty:
            quantile = np.quantile(together, part, method="inverted_cdf")
        quantiles.append(float(quantile))
    return np.array(quantiles)


def _ends_of_values(
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
        low, high = (asked.values(each.values)[each.complete] for each in moved)
    low, high = np.minimum(low, high), np.maximum(low, high)
    known = np.isfinite(low) & np.isfinite(high)
    return np.where(known, low, values), np.where(known, high, values)


def _shares_below(
    records: SetRecords, asked: Summary, values: FloatArray, places: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the share of each group that is at most each value, in one set, and its
    variance, shape (groups, values).
    """
    shares = []
    variances = []
    for held in records.groups(asked.by):
        own = np.full(len(places), np.nan)
        if held.any():
            ordered = np.sort(values[held])
            own = np.searchsorted(ordered, places, "right") / len(ordered)
        shares.append(own)
        variances.append(own * (1 - own) / max(held.sum(), 1))
    return np.stack(shares), np.stack(variances)


def _basis(sets: Sequence[SetRecords], rule: Rule) -> str:
    return f"{len(sets)} sets, combined by the rule {rule!r}"


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
