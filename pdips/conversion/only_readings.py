"""Whether an array of a model that is conditioned on the table has one reading,
whatever the records of one person are (``docs/proofs/scores.md``, lemma 14).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.conversion.matching import (
    FUNCTIONS,
    ColumnExpression,
    Reading,
    changed_by,
    line_of,
    product_of,
    reading_of,
)
from pdips.data.schema import Column
from pdips.posterior.columns import Values

# Digits of a number that somebody has typed; one worked out of records has more
TYPED = 6
# Differences of this share are rounding, where numbers are known to be typed
ROUNDED = 1e-9
# Whole numbers for which functions are compared
MOST_COMPARED = 1_000


def parts_of(
    array: NDArray[np.generic], values: Values, n_changed: int
) -> list[IntArray]:
    """Return parts of the records, of which a person leaves at least one as it is: the
    same records in the same order, wherever these are in the table.

    Parameters
    ----------
    array : ndarray, shape (records,)
        What a model holds.
    values : mapping of str to ndarray, shape (records,)
        All columns, as models read them.
    n_changed : int
        How many records a person can have, of which as many go as come.

    Returns
    -------
    list of ndarray
        Rows of each part.
    """
    columns = [array, *(values[name] for name in sorted(values))]
    content = np.column_stack([np.asarray(each, np.float64) for each in columns]) + 0.0
    order = np.lexsort(content.T).astype(np.int64)
    content = content[order]
    # Which part a record is in follows from itself, and of records that are all alike
    # from how many there are: one more or less changes one part.
    is_new = np.any(content[1:] != content[:-1], axis=1)
    starts = np.flatnonzero(np.append(True, is_new))
    sizes = np.diff(np.append(starts, len(content)))
    number_of_alike = np.arange(len(content)) - np.repeat(starts, sizes)
    n_parts = 2 * n_changed + 1
    hashed = pd.util.hash_pandas_object(pd.DataFrame(content), index=False)
    first = (hashed.to_numpy() % np.uint64(n_parts)).astype(np.int64)
    part = (first + number_of_alike) % n_parts
    return [order[part == number] for number in range(n_parts)]


def typed_form(reading: ColumnExpression) -> ColumnExpression | None:
    """Return a reading with the numbers that somebody has typed, or their inverses,
    without what arithmetic added to them; None if nobody types such numbers.
    """
    if reading.by_code is not None:
        return reading
    slope = _typed(reading.slope)
    if slope is None:
        inverse = _typed(1 / reading.slope)
        slope = None if inverse is None else 1 / inverse
    if slope is None:
        return None
    offset = _typed(reading.offset)
    if offset is None:
        center = _typed(-reading.offset / slope)
        offset = None if center is None else -center * slope
    return None if offset is None else replace(reading, slope=slope, offset=offset)


def is_only_reading(
    reading: ColumnExpression,
    array: NDArray[np.generic],
    values: Values,
    columns: Mapping[str, Column],
    parts: Sequence[IntArray],
) -> bool:
    """Whether an array, of which this is the typed form of its reading, is read so in
    each part of the records by itself, and agrees there with nothing else: no other
    column or function, no number for all. All levels of its own column have to be in
    each part.

    Parameters
    ----------
    reading : ColumnExpression
        What the array is in all records.
    array : ndarray, shape (records,)
        What a model holds.
    values : mapping of str to ndarray, shape (records,)
        Columns as models read them.
    columns : mapping of str to Column
        What is known of them.
    parts : sequence of ndarray
        As :func:`parts_of` says.
    """
    alike = _alike(reading, columns)
    column = columns[reading.column]
    for given, known in _in_parts(array, values, parts):
        if not len(given) or np.ptp(given) == 0:
            return False
        alone = reading_of(given, known, columns)
        if alone is None or typed_form(alone) != reading:
            return False
        if not {*_agreeing(given, known, columns)} <= alike:
            return False
        # what the array is at a level that few records have would follow from these
        n_levels = len(np.unique(known[reading.column]))
        if column.is_categorical and n_levels < column.n_levels:
            return False
    return True


def is_only_public(
    array: NDArray[np.generic],
    public: Values,
    columns: Mapping[str, Column],
    parts: Sequence[IntArray],
) -> bool:
    """Whether an array that is known of public columns, or one number for all, follows
    from these whatever the entries of one person are.

    In no part of the records may it agree with something public that it isn't in all of
    them. What it is of numbers in a part has to be what it is in all; and a level has
    to be that of more records than a person has.

    Parameters are those of :func:`is_only_reading`, ``public`` without confidential
    columns.
    """
    whole = array.astype(np.float64)
    if np.ptp(whole) == 0:
        return True
    agreeing = {*_agreeing(whole, public, columns)}
    reading = _public_reading(whole, public, columns)
    n_changed = len(parts) // 2
    if reading is None or not _has_levels_of_several(reading, public, n_changed):
        return False
    for given, known in _in_parts(array, public, parts):
        if not len(given) or np.ptp(given) == 0:
            return False
        if not {*_agreeing(given, known, columns)} <= agreeing:
            return False
        if isinstance(reading, ColumnExpression) and _is_of_levels(reading, columns):
            continue
        alone = _public_reading(given, known, columns)
        if alone is None or alone.columns != reading.columns:
            return False
        numbers, sizes = _numbers_of(alone, public)
        if not (np.abs(numbers - whole) <= ROUNDED * sizes).all():
            return False
    return True


def _public_reading(
    given: FloatArray, public: Values, columns: Mapping[str, Column]
) -> Reading | None:
    return reading_of(given, public, columns) or product_of(given, public, columns)


def _is_of_levels(reading: ColumnExpression, columns: Mapping[str, Column]) -> bool:
    return columns[reading.column].is_categorical


def _has_levels_of_several(reading: Reading, public: Values, n_changed: int) -> bool:
    """Whether all levels that a reading looks up are those of more records than one
    person has: the entry of a single one would be theirs.
    """
    if reading.by_code is None:
        return True
    counts = np.bincount(np.asarray(public[reading.columns[0]], np.int64))
    return bool((counts[counts > 0] > n_changed).all())


def _numbers_of(reading: Reading, values: Values) -> tuple[FloatArray, FloatArray]:
    """Return what a reading says of records, and the size of what rounding is a share
    of; each shape (records,).
    """
    first = np.asarray(values[reading.columns[0]], np.float64)
    if reading.by_code is None:
        function = "itself"
        if isinstance(reading, ColumnExpression):
            function = reading.function
        else:
            first = first * values[reading.second]
        scaled = reading.slope * changed_by(function, first)
        return reading.offset + scaled, abs(reading.offset) + np.abs(scaled)
    numbers = np.empty(len(first))
    sizes = np.empty(len(first))
    for code, value in enumerate(reading.by_code):
        here = first == code
        if isinstance(value, ColumnExpression):
            own = {value.column: np.asarray(values[value.column])[here]}
            numbers[here], sizes[here] = _numbers_of(value, own)
        else:
            numbers[here] = value
            sizes[here] = abs(value)
    return numbers, sizes


def may_be_read(
    array: NDArray[np.generic],
    values: Values,
    columns: Mapping[str, Column],
    parts: Sequence[IntArray],
) -> bool:
    """Whether an array agrees with some column or function in one of some parts of the
    records. Parameters are those of :func:`is_only_reading`.
    """
    return any(
        next(_agreeing(given, known, columns), None) is not None
        for given, known in _in_parts(array, values, parts)
    )


def may_be_product(
    array: NDArray[np.generic],
    values: Values,
    columns: Mapping[str, Column],
    parts: Sequence[IntArray],
) -> bool:
    """Whether an array is a product of two columns in one of some parts of the records.
    Parameters are those of :func:`is_only_reading`.
    """
    return any(
        product_of(given, known, columns) is not None
        for given, known in _in_parts(array, values, parts)
    )


def is_typed(number: float) -> bool:
    """Whether a number has so few digits that somebody may have typed it."""
    return float(f"{number:.{TYPED}g}") == number


def _typed(number: float) -> float | None:
    """Return the number of few digits that only rounding keeps apart from one."""
    typed = float(f"{number:.{TYPED}g}")
    return typed if abs(typed - number) <= ROUNDED * abs(number) else None


def _in_parts(
    array: NDArray[np.generic], values: Values, parts: Sequence[IntArray]
) -> Iterator[tuple[FloatArray, Values]]:
    """Yield the records of an array and of columns part by part."""
    given = array.astype(np.float64)
    for rows in parts:
        yield (
            given[rows],
            {name: np.asarray(each)[rows] for name, each in values.items()},
        )


def _agreeing(
    given: FloatArray, values: Values, columns: Mapping[str, Column]
) -> Iterator[tuple[str, str]]:
    """Yield the columns and functions that numbers agree with."""
    is_constant = bool(len(given)) and np.ptp(given) == 0
    for name, each in values.items():
        if not columns[name].is_categorical:
            for function in FUNCTIONS:
                if _agrees(given, changed_by(function, each), is_constant=is_constant):
                    yield name, function
            continue
        by_code = np.full(columns[name].n_levels, np.nan)
        by_code[each] = given
        is_function = np.array_equal(by_code[each], given)
        # one number for all levels is no function of the column
        if is_function and not (is_constant and not _has_gap(by_code)):
            yield name, "itself"


def _has_gap(by_code: FloatArray) -> bool:
    is_unknown: BoolArray = np.isnan(by_code)
    return bool(is_unknown.any())


def _agrees(given: FloatArray, changed: FloatArray, *, is_constant: bool) -> bool:
    if not len(given):
        return True
    both_constant = is_constant and bool((changed == changed[0]).all())
    return bool(both_constant or line_of(given, changed) is not None)


def _alike(
    reading: ColumnExpression, columns: Mapping[str, Column]
) -> set[tuple[str, str]]:
    """Return the column and the function of a reading, and other functions that are the
    same for all values that the column may have.
    """
    alike = {(reading.column, reading.function)}
    column = columns[reading.column]
    if column.is_categorical or not column.integer:
        return alike
    lower = float(column.lower or 0)
    upper = float(column.upper or 0)
    if upper - lower > MOST_COMPARED:
        return alike
    domain = np.arange(lower, upper + 1)
    here = changed_by(reading.function, domain)
    for function in FUNCTIONS:
        if np.isfinite(here).all() and line_of(here, changed_by(function, domain)):
            alike.add((reading.column, function))
    return alike
