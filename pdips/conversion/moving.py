"""Constants of a model that follow from confidential records: what is said of them, and
what to write instead.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.data.schema import Column, has_number_levels
from pdips.errors import InputError
from pdips.posterior.columns import Values, bounds_of

Statistic = Callable[[NDArray[Any]], Any]
Suggestion = Callable[[float, float], float]

# Part of the distance of its bounds that stands for a column's standard deviation
SPREAD = 6
# Differences of this share are rounding
CLOSE = 1e-9

STATISTICS: dict[str, tuple[Statistic, Suggestion]] = {
    "mean": (np.mean, lambda lower, upper: (lower + upper) / 2),
    "median": (np.median, lambda lower, upper: (lower + upper) / 2),
    "standard deviation": (
        lambda values: np.std(values, ddof=1),
        lambda lower, upper: (upper - lower) / SPREAD,
    ),
    "standard deviation over n": (
        np.std,
        lambda lower, upper: (upper - lower) / SPREAD,
    ),
    "variance": (
        lambda values: np.var(values, ddof=1),
        lambda lower, upper: ((upper - lower) / SPREAD) ** 2,
    ),
    "smallest value": (np.min, lambda lower, _: lower),
    "largest value": (np.max, lambda _, upper: upper),
    "range": (np.ptp, lambda lower, upper: upper - lower),
    "sum": (np.sum, lambda lower, upper: (lower + upper) / 2),
}
"""What priors and constants are often made of, and a public number for its place."""


@dataclass(frozen=True, eq=False)
class Numbers:
    """A confidential column of numbers in two made-up frames, and its public bounds."""

    first: FloatArray
    second: FloatArray
    lower: float
    upper: float


def numbers_of(
    columns: Mapping[str, Column], first: Values, second: Values
) -> dict[str, Numbers]:
    """Return the columns of numbers, levels that are numbers too, in two frames."""
    found = {}
    for name, values in first.items():
        column = columns[name]
        others = second[name]
        if not column.is_categorical:
            found[name] = Numbers(
                np.asarray(values, float), np.asarray(others, float), *bounds_of(column)
            )
        elif has_number_levels(column) and not column.missing:
            levels = np.array([float(level) for level in column.levels or ()])
            found[name] = Numbers(
                levels[values], levels[others], levels.min(), levels.max()
            )
    return found


def refuse_moving(
    name: str,
    columns: Mapping[str, Numbers],
    before: NDArray[Any],
    after: NDArray[Any],
    axis: int | None = None,
) -> NoReturn:
    """Refuse a constant behind a variable that differs between frames in which some
    confidential values do; with ``axis`` it has one row a record.
    """
    if axis is not None:
        raise InputError(_of_records(name, columns, before, after, axis))
    known = _known_statistic(columns, before, after) if before.size == 1 else None
    if known is None:
        raise InputError(
            f"{name!r} holds numbers that follow from confidential records, such as "
            f"knots at quantiles, levels that occur or group means: write public "
            f"numbers in their place, from the schema or from what everybody knows"
        )
    statistic, column, suggested = known
    raise InputError(
        f"{name!r} reads the {statistic} of column {column!r}, which is confidential: "
        f"write a public number in its place, such as {suggested:.3g} (which its "
        f"bounds suggest), or call the column public if everybody may know it"
    )


def _known_statistic(
    columns: Mapping[str, Numbers], before: NDArray[Any], after: NDArray[Any]
) -> tuple[str, str, float] | None:
    """Return which statistic of which column a number is a multiple of, and a public
    number that could stand there.
    """
    one = float(before.ravel()[0])
    other = float(after.ravel()[0])
    for name, numbers in columns.items():
        for statistic, (function, suggest) in STATISTICS.items():
            first = float(function(numbers.first))
            second = float(function(numbers.second))
            if first == second or not first or not second:
                continue
            factor = one / first
            if factor and np.isclose(other, factor * second, rtol=CLOSE):
                return statistic, name, factor * suggest(numbers.lower, numbers.upper)
    return None


def _of_records(
    name: str,
    columns: Mapping[str, Numbers],
    before: NDArray[Any],
    after: NDArray[Any],
    axis: int,
) -> str:
    """Return what is said of an array with one row a record whose rows follow from
    other records.
    """
    length = before.shape[axis]
    entries = np.moveaxis(before, axis, 0).reshape(length, -1).T
    entries_after = np.moveaxis(after, axis, 0).reshape(length, -1).T
    for values, values_after in zip(entries, entries_after, strict=True):
        for column, numbers in columns.items():
            if len(numbers.first) != length or not _is_line(numbers.first, values):
                continue
            if _is_line(numbers.second, values_after):
                middle = (numbers.lower + numbers.upper) / 2
                scale = (numbers.upper - numbers.lower) / SPREAD
                return (
                    f"{name!r} reads column {column!r} standardised by numbers that "
                    f"follow from its confidential records, such as their mean: "
                    f"write public ones, such as (df[{column!r}] - {middle:.3g}) / "
                    f"{scale:.3g}"
                )
    return (
        f"{name!r} reads an array whose entries follow from several confidential "
        f"records, such as ranks, lags, cumulative sums or means of groups: a record "
        f"may be read as it is, or as a function of itself alone"
    )


def _is_line(numbers: NDArray[Any], values: NDArray[Any]) -> bool:
    """Whether values are an affine function of numbers."""
    if values.dtype.kind not in "biuf":
        return False
    values = values.astype(np.float64)
    if not np.isfinite(values).all() or np.ptp(values) == 0:
        return False
    matrix = np.stack([np.ones(len(numbers)), numbers], axis=1)
    coefficients, *_ = np.linalg.lstsq(matrix, values, rcond=None)
    fitted = matrix @ coefficients
    return bool(np.allclose(fitted, values, rtol=CLOSE, atol=CLOSE))
