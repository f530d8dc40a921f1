"""What questions are of cells, which are combinations of columns' levels: numbers that
stand for levels, and summaries made of noisy counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Literal

import numpy as np
from scipy.special import ndtri

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.column import Column
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.outside.answer import Answer, Ends, Inverted
from pdips.outside.questions import (
    ColumnValues,
    Expression,
    Summary,
    Terms,
    is_number,
)

type Missing = Literal["level", "drop"]
type Place = Literal["middle", "first", "last"]

PLACES: tuple[Place | None, ...] = (None, "first", "last")
SHARES = (0.0, 1.0)
COUNTS = (0.0, np.inf)
IS_SUM = ("total", "count")  # the others are ratios, or made of several sums


@dataclass(frozen=True, eq=False)
class LevelCells:
    """The cells of some columns, the last column's level running fastest.

    Parameters
    ----------
    schema : Schema
        With bins for all numbers.
    estimated : tuple of str
        Columns that were cut by noisy counts: no number stands for an interval.
    columns : tuple of str
    places : mapping of str to {"middle", "first", "last"}
        Where in its bins a column's numbers are; in the middle, if not named.
    """

    schema: Schema
    estimated: tuple[str, ...]
    columns: tuple[str, ...]
    places: Mapping[str, Place] = field(default_factory=dict)

    @cached_property
    def codes(self) -> dict[str, IntArray]:
        """The level of each column in each cell."""
        sizes = [self.schema.columns[name].n_levels for name in self.columns]
        levels = np.indices(sizes).reshape(len(sizes), -1)
        return dict(zip(self.columns, levels, strict=True))

    @property
    def n_cells(self) -> int:
        return len(self.codes[self.columns[0]])

    def values(self, place: Place | None = None) -> dict[str, ColumnValues]:
        """Return the columns in each cell, with numbers at a place of each bin."""
        records = {}
        for name, codes in self.codes.items():
            here = place or self.places.get(name, "middle")
            numbers = _numbers(self.schema.columns[name], here)
            own = None if numbers is None else numbers[codes]
            records[name] = ColumnValues(codes, own)
        return records

    def numbers(self, expression: Expression, place: Place | None = None) -> FloatArray:
        """Return the number that stands for each cell, of bins that of their middle, or
        at another place.

        Raises
        ------
        InputError
            If a condition is true of a part of a bin, or no number stands for an
            interval.
        """
        if expression.is_condition:
            for name in expression.columns:
                if name in self.estimated:
                    raise InputError(
                        f"counts of intervals of {name!r}, which has no bins, are "
                        f"estimates by column pairs, whose errors aren't known"
                    )
            first = expression.values(self.values("first"))
            if not np.array_equal(first, expression.values(self.values("last"))):
                raise InputError(
                    f"no bin of the noisy margins ends where {expression.text!r} parts "
                    f"the records"
                )
            return first
        for name in expression.columns:
            if name in self.estimated:
                raise InputError(
                    f"{name!r} has no bins, so no value stands for one of its "
                    f"intervals: fit the sets, or have the products of all columns "
                    f"measured"
                )
        numbers = expression.values(self.values(place))
        if np.isinf(numbers).any() and place is None and not self.places:
            raise InputError(f"{expression.text!r} isn't finite for all levels")
        return numbers

    def terms(self, expression: Expression) -> Terms:
        """Return the terms of a factor of a formula in each cell."""
        for name, column in expression.columns.items():
            if column.missing and is_number(column):
                raise InputError(
                    f"{name!r} may be missing: fit such a regression to the sets "
                    f"(pdips.inference.combine)"
                )
        if expression.is_levels:
            return expression.terms(self.values())
        return [expression.text], self.numbers(expression)[:, None]

    def complete(self, missing: Missing) -> BoolArray:
        """Return which cells have all that is asked for: numbers, and with ``"drop"``
        levels too.
        """
        held = np.ones(self.n_cells, dtype=bool)
        for name, codes in self.codes.items():
            column = self.schema.columns[name]
            if column.missing and (missing == "drop" or is_number(column)):
                held &= codes < column.n_levels - 1
        return held


def _numbers(column: Column, place: Place) -> FloatArray | None:
    """Return the number that stands for each level, NaN for missing; None of text."""
    if not is_number(column):
        return None
    values = column.levels
    if values is None:
        first, last = _ends_of_bins(column)
        at = {"first": first, "middle": (first + last) / 2, "last": last}
        if place == "last" and not column.integer:
            last[:-1] = np.nextafter(last, first)[:-1]
        values = tuple(at[place].tolist())
    missing = [np.nan] if column.missing else []
    return np.array([*values, *missing], dtype=np.float64)


def _ends_of_bins(column: Column) -> tuple[FloatArray, FloatArray]:
    """Return the least and the largest number of each bin: of whole numbers the first
    and the last in it.
    """
    edges = np.array(column.edges, dtype=np.float64)
    first = edges[:-1].copy()
    last = edges[1:].copy()
    if column.integer:  # of which no edge is in the bin below
        last -= 1
    return first, last


def named_parts(asked: Summary) -> list[str]:
    """Return the names of what is asked of each group."""
    if asked.kind == "share" and asked.of[0].is_plain:
        name = asked.of[0].text
        return [f"{name}[{level}]" for level in asked.columns[name].names()]
    return [asked.text.strip()]


def group_names(asked: Summary) -> list[str]:
    """Return the names of the groups, as ``sex[male]``; none where there is one."""
    levels = [
        [f"{name}[{level}]" for level in asked.schema.columns[name].names()]
        for name in asked.by
    ]
    return [", ".join(combination) for combination in product(*levels)]


def answer_names(asked: Summary) -> list[str]:
    """Return the names of the numbers of a summary: groups, and levels in each."""
    parts = named_parts(asked)
    groups = group_names(asked)
    if not asked.by:
        return parts
    if len(parts) == 1:
        return groups
    return [f"{part}, {group}" for group in groups for part in parts]


def summarised(
    asked: Summary, cells: LevelCells, counts: Answer, missing: Missing
) -> Answer:
    """Return a summary from noisy counts of cells.

    Parameters
    ----------
    asked : Summary
        Read with the schema of the cells.
    cells : LevelCells
        Of all its columns.
    counts : Answer
        The number of records in each cell.
    missing : {"level", "drop"}
        Whether missing is a level of text.
    """
    complete = cells.complete(missing)
    groups = _groups(asked, cells) * complete
    counts = replace(counts, basis=_basis(asked, cells))
    if asked.kind == "quantile":
        return _quantiles(asked, cells, counts, groups)
    if asked.kind == "correlation":
        return _correlations(asked, cells, counts, groups)
    if asked.kind == "sd":
        return _deviations(asked, cells, counts, groups)
    parts = _parts(asked, cells)
    above = np.einsum("gc,pc->gpc", groups, parts).reshape(-1, cells.n_cells)
    names = answer_names(asked)
    untold = _untold(asked, cells, counts, groups)
    if asked.kind in IS_SUM:
        limits = COUNTS if asked.kind == "count" else counts.limits
        sums = counts.contrasts(names, above)
        return replace(sums, limits=limits, untold=untold)
    below = np.repeat(groups, len(parts), axis=0)
    ratios = replace(counts.ratios(names, above, below), untold=untold)
    return replace(ratios, limits=SHARES) if asked.kind == "share" else ratios


def _untold(
    asked: Summary, cells: LevelCells, counts: Answer, groups: FloatArray
) -> Ends | None:
    """Return by how much less, and by how much more, means or sums of each group are if
    all numbers are at one end of their bins; None where no bins are asked.
    """
    if asked.kind not in ("mean", "total") or not any(
        column.is_binned and not column.is_categorical
        for column in asked.measured.values()
    ):
        return None
    at_middle, *at_ends = (
        np.nan_to_num(cells.numbers(asked.of[0], place))
        for place in ("middle", "first", "last")
    )
    far = [groups * (at_end - at_middle) @ counts.estimate for at_end in at_ends]
    n_records = groups @ counts.estimate if asked.kind == "mean" else 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        below, above = (np.nan_to_num(gap / n_records) for gap in far)
    less = np.maximum(np.maximum(-below, -above), 0)
    more = np.maximum(np.maximum(below, above), 0)
    return less, more


def untold_by_bins(
    columns: Mapping[str, Column],
    centre: FloatArray,
    refit: Callable[[Mapping[str, Place]], FloatArray],
) -> Ends | None:
    """Return by how much less, and by how much more, coefficients are if all numbers of
    a column are at one end of their bins; None where none has bins.
    """
    binned = [
        name
        for name, column in columns.items()
        if column.is_binned and not column.is_categorical
    ]
    if not binned:
        return None
    squares = np.zeros((2, len(centre)))
    for name in binned:
        with np.errstate(all="ignore"):
            ends = [refit({name: "first"}), refit({name: "last"})]
        gaps = np.stack([centre - np.minimum(*ends), np.maximum(*ends) - centre])
        squares += np.nan_to_num(np.maximum(gaps, 0), posinf=0.0) ** 2
    less, more = np.sqrt(squares)
    return less, more


def _basis(asked: Summary, cells: LevelCells) -> str:
    basis = "follows from measured counts"
    binned = [
        name
        for each in asked.of
        for name, column in each.columns.items()
        if not column.is_categorical and not each.is_condition
    ]
    if binned:
        basis += f"; bins of {', '.join(binned)} count by their middle"
    if cut := [name for name in cells.columns if name in cells.estimated]:
        basis += f"; counts of {', '.join(cut)} estimated, with errors about right"
    return basis


def _groups(asked: Summary, cells: LevelCells) -> FloatArray:
    """Return which cells are of which group, shape (groups, cells)."""
    held: FloatArray = np.ones((1, cells.n_cells))
    for name in asked.by:
        levels = np.arange(cells.schema.columns[name].n_levels)
        own = np.equal.outer(levels, cells.codes[name])
        held = (held[:, None] * own[None]).reshape(-1, cells.n_cells)
    return held


def _parts(asked: Summary, cells: LevelCells) -> FloatArray:
    """Return the numbers that are added up, shape (parts, cells)."""
    if not asked.of:
        return np.ones((1, cells.n_cells))
    one = asked.of[0]
    if asked.kind == "share" and one.is_plain:
        levels = np.arange(cells.schema.columns[one.text].n_levels)
        return 1.0 * np.equal.outer(levels, cells.codes[one.text])
    return np.nan_to_num(cells.numbers(one))[None]


def _correlations(
    asked: Summary, cells: LevelCells, counts: Answer, groups: FloatArray
) -> Answer:
    """Return correlations, with the error that small changes of the counts make."""
    x, y = (np.nan_to_num(cells.numbers(one)) for one in asked.of)
    estimates = []
    slopes = []
    for group in groups:
        share = counts.estimate * group
        share = share / share.sum()
        centred_x = x - share @ x
        centred_y = y - share @ y
        with np.errstate(invalid="ignore"):
            x_by_sd = centred_x / np.sqrt(share @ centred_x**2)
            y_by_sd = centred_y / np.sqrt(share @ centred_y**2)
        correlation = share @ (x_by_sd * y_by_sd)
        estimates.append(correlation)
        squares = x_by_sd**2 + y_by_sd**2
        moved = x_by_sd * y_by_sd - correlation / 2 * squares
        slopes.append(group * moved / (counts.estimate @ group))
    answer = counts.contrasts(answer_names(asked), np.array(slopes))
    return replace(answer, estimate=np.array(estimates), limits=(-1.0, 1.0))


def _deviations(
    asked: Summary, cells: LevelCells, counts: Answer, groups: FloatArray
) -> Answer:
    """Return standard deviations, with the error that small changes of the counts make,
    and what is untold where numbers are anywhere in their bins.
    """
    middle, low, high = (
        np.nan_to_num(cells.numbers(asked.of[0], place)) for place in PLACES
    )
    within = (high - low) ** 2 / 12  # records of a bin are even in it
    estimates = []
    slopes = []
    ends = []
    for group in groups:
        share = counts.estimate * group
        share = share / share.sum()
        mean = share @ middle
        squares = (middle - mean) ** 2 + within
        deviation = np.sqrt(max(float(share @ squares), 0.0)) or np.nan
        estimates.append(deviation)
        moved = (squares - deviation**2) / (2 * deviation)
        slopes.append(group * moved / (counts.estimate @ group))
        ends.append(_ends_of_deviation(share, low - mean, high - mean))
    estimate = np.array(estimates)
    least, most = np.array(ends).T
    answer = counts.contrasts(answer_names(asked), np.array(slopes))
    untold = np.maximum(estimate - least, 0), np.maximum(most - estimate, 0)
    return replace(answer, estimate=estimate, untold=untold, limits=COUNTS)


def _ends_of_deviation(
    share: FloatArray, low: FloatArray, high: FloatArray
) -> FloatArray:
    """Return the deviation of numbers that are as near the mean, and as far from it, as
    their bins let them; ``low`` and ``high`` are the distances of bins' ends.
    """
    far = np.maximum(np.abs(low), np.abs(high))
    near = np.where((low <= 0) & (high >= 0), 0, np.minimum(np.abs(low), np.abs(high)))
    squares = np.array([share @ near**2, share @ far**2])
    return np.asarray(np.sqrt(np.maximum(squares, 0)))


def _quantiles(
    asked: Summary, cells: LevelCells, counts: Answer, groups: FloatArray
) -> Answer:
    """Return quantiles, by noisy numbers of records below each value, or each end of a
    bin.
    """
    one = asked.of[0]
    values = cells.numbers(one)
    (column,) = one.columns.values() if len(one.columns) == 1 else (None,)
    if column is None or (not column.is_categorical and not one.is_plain):
        raise InputError(
            f"quantiles of {one.text!r} don't follow from bins: ask for those of a "
            f"column"
        )
    known = values[np.isfinite(values)]
    distinct = np.unique(known)
    part = asked.part or 0.5
    up_to = np.vstack(
        [np.zeros(cells.n_cells), np.greater_equal.outer(distinct, values)]
    )
    rows = groups[:, None] * (up_to[None] - part)
    flat = rows.reshape(-1, cells.n_cells)
    sums = flat @ counts.estimate
    variances = np.einsum("rc,cd,rd->r", flat, counts.covariance, flat)
    errors = np.sqrt(np.maximum(variances, 0.0))  # rounding may leave it below 0
    below = sums.reshape(len(groups), -1)
    lows, highs = _places(column, distinct)
    estimate = np.array([_crossing(row, column, distinct) for row in below])
    error = errors.reshape(below.shape)
    return Inverted(
        tuple(answer_names(asked)),
        estimate,
        np.diag(np.full(len(groups), np.nan)),
        counts.basis,
        source=counts.source,
        below=below,
        half_widths=lambda level: ndtri((1 + level) / 2) * error,
        lows=lows,
        highs=highs,
    )


def _places(column: Column, distinct: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return where a quantile is, if no place before or after it is near enough: place
    0 is below all values, place k is value k, or the end of bin k.
    """
    if column.is_categorical:
        lows = np.concatenate([distinct[:1], distinct])
        return lows, np.concatenate([distinct, distinct[-1:]])
    edges = column.edges
    lows = np.concatenate([edges[:1], edges[:-1]])
    return lows, np.concatenate([edges[1:], edges[-1:]])


def _crossing(below: FloatArray, column: Column, distinct: FloatArray) -> float:
    """Return where the noisy number of records below reaches the part asked for."""
    reached = int(np.argmax(np.append(below, np.inf) >= 0))
    if reached in (0, len(below)):
        return float("nan")
    if column.is_categorical:
        return float(distinct[reached - 1])
    low, high = column.edges[reached - 1 : reached + 1]
    short = -below[reached - 1]
    return float(low + (high - low) * short / (short + below[reached]))
