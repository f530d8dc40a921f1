"""Which column an array of a model is made of, and how; and which record each row of a
long one belongs to.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.data.schema import Column
from pdips.posterior.columns import Values

# Differences of this share of the numbers themselves are rounding
EQUAL = 1e-9
# Digits that numbers typed by a person may have: what arithmetic adds is taken off
DIGITS = 12

# Slopes below are those of functions that overflow
SMALLEST = 1e-200
# Made-up records of a level from which a reading is known
LEAST_OF_A_LEVEL = 4

Numeric = Callable[[FloatArray], FloatArray]
Symbolic = Callable[[Any], Any]
Spelling = Callable[[NDArray[Any]], NDArray[Any]]

FUNCTIONS: dict[str, tuple[Numeric, Symbolic]] = {
    "itself": (lambda x: x, lambda x: x),
    "log": (np.log, pt.log),
    "log1p": (np.log1p, pt.log1p),
    "sqrt": (np.sqrt, pt.sqrt),
    "cbrt": (np.cbrt, lambda x: pt.sign(x) * pt.abs(x) ** (1 / 3)),
    "square": (np.square, pt.sqr),
    "exp": (np.exp, pt.exp),
    "arcsinh": (np.arcsinh, pt.arcsinh),
    "inverse": (lambda x: 1 / x, lambda x: 1 / x),
    "logit": (lambda x: np.log(x / (1 - x)), lambda x: pt.log(x / (1 - x))),
    "log1m": (lambda x: np.log1p(-x), lambda x: pt.log1p(-x)),
}
"""Functions of a column that are known again, each followed by a factor and a sum."""


@dataclass(frozen=True)
class ColumnExpression:
    """What an array holds of a column: ``offset + slope * function(column)``, or, of
    codes of levels, a value for each.
    """

    column: str
    function: str = "itself"
    slope: float = 1.0
    offset: float = 0.0
    by_code: tuple[float, ...] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def is_column(self) -> bool:
        """Whether the array is the column, as models read it."""
        is_alone = self.function == "itself" and self.by_code is None
        return is_alone and self.slope == 1 and self.offset == 0

    @property
    def is_affine(self) -> bool:
        return self.function == "itself" and self.by_code is None

    def symbol(self, column: Any) -> Any:
        """Return the array as a graph of the column, one value a record."""
        if self.is_column:
            return column
        if self.by_code is not None:
            return _by_code(self.by_code, column)
        _, symbolic = FUNCTIONS[self.function]
        return self.offset + self.slope * symbolic(column)

    def back(self, array: Any) -> Any:
        """Return the column as a graph of the array; of affine readings only."""
        return array if self.is_column else (array - self.offset) / self.slope


@dataclass(frozen=True)
class ColumnProduct:
    """What an array holds of two columns: of numbers ``offset + slope * first *
    second``; where the first has levels, a reading of the second for each of them.
    """

    first: str
    second: str
    slope: float = 1.0
    offset: float = 0.0
    by_code: tuple[ColumnExpression | float, ...] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.first, self.second)

    def symbol(self, first: Any, second: Any) -> Any:
        """Return the array as a graph of the columns, one value a record."""
        if self.by_code is None:
            return self.offset + self.slope * first * second
        total = pt.zeros_like(pt.cast(first, "float64"))
        for code, reading in enumerate(self.by_code):
            value: Any = reading
            if isinstance(reading, ColumnExpression):
                value = reading.symbol(second)
            total = total + pt.eq(first, code) * value
        return total


Reading = ColumnExpression | ColumnProduct


def _by_code(values: tuple[float, ...], code: Any) -> Any:
    """Return the value of each code, also between codes, where nothing is looked up: a
    sum of ramps.
    """
    code = pt.cast(code, "float64")
    total = values[0]
    steps = np.diff(values)
    for number, step in enumerate(steps):
        if step:
            total = total + float(step) * pt.clip(code - number, 0, 1)
    return pt.as_tensor(total) + pt.zeros_like(code)


def reading_of(
    array: NDArray[Any], values: Values, columns: Mapping[str, Column]
) -> ColumnExpression | None:
    """Return of which column an array is a known function, None of none.

    Parameters
    ----------
    array : ndarray, shape (records,)
        What a model holds.
    values : mapping of str to ndarray, shape (records,)
        Columns as models read them.
    columns : mapping of str to Column
        What is known of them.
    """
    if array.dtype.kind not in "biuf":
        return None
    given = array.astype(np.float64)
    if not np.isfinite(given).all():
        return None
    for name in values:
        if np.array_equal(given, values[name]):
            return ColumnExpression(name)
    for name in values:
        if columns[name].is_categorical:
            found = _reading_of_codes(name, given, values[name], columns[name])
        else:
            found = _reading_of_numbers(name, given, values[name])
        if found is not None:
            return found
    return None


def product_of(
    array: NDArray[Any], values: Values, columns: Mapping[str, Column]
) -> ColumnProduct | None:
    """Return of which two columns an array is a product, or a reading of one for each
    level of the other; None of none. Arguments are those of :func:`reading_of`.
    """
    if array.dtype.kind not in "biuf":
        return None
    given = array.astype(np.float64)
    if not np.isfinite(given).all():
        return None
    for first in values:
        for second in values:
            if first == second:
                continue
            if columns[first].is_categorical:
                found = _by_level(first, second, given, values, columns)
            elif columns[second].is_categorical:
                continue
            else:
                found = _of_two_numbers(first, second, given, values)
            if found is not None:
                return found
    return None


def _of_two_numbers(
    first: str, second: str, given: FloatArray, values: Values
) -> ColumnProduct | None:
    product = np.asarray(values[first], dtype=np.float64) * values[second]
    found = _reading_of_numbers(first, given, product, ("itself",))
    if found is None:
        return None
    return ColumnProduct(first, second, found.slope, found.offset)


def _by_level(
    first: str,
    second: str,
    given: FloatArray,
    values: Values,
    columns: Mapping[str, Column],
) -> ColumnProduct | None:
    """Return readings of the second column for each level of the first."""
    codes = values[first]
    by_code = list[ColumnExpression | float]()
    for code in range(columns[first].n_levels):
        here = codes == code
        numbers = given[here]
        if len(numbers) < LEAST_OF_A_LEVEL:
            return None
        if np.ptp(numbers) == 0:
            by_code.append(float(numbers[0]))
            continue
        some = {second: np.asarray(values[second])[here]}
        found = reading_of(numbers, some, columns)
        if found is None:
            return None
        by_code.append(found)
    return ColumnProduct(first, second, by_code=tuple(by_code))


def _reading_of_codes(
    name: str, given: FloatArray, codes: NDArray[Any], column: Column
) -> ColumnExpression | None:
    by_code = np.full(column.n_levels, np.nan)
    by_code[codes] = given
    if not np.array_equal(by_code[codes], given) or np.isnan(by_code).any():
        return None
    steps = np.unique(np.diff(by_code))
    if len(steps) == 1 and steps[0] != 0:
        return ColumnExpression(name, slope=float(steps[0]), offset=float(by_code[0]))
    if len(np.unique(by_code)) == 1:
        return None
    return ColumnExpression(name, by_code=tuple(map(float, by_code)))


def _reading_of_numbers(
    name: str,
    given: FloatArray,
    numbers: NDArray[Any],
    functions: Collection[str] = tuple(FUNCTIONS),
) -> ColumnExpression | None:
    for function in functions:
        line = line_of(given, changed_by(function, numbers))
        if line is not None:
            slope, offset = line
            return ColumnExpression(name, function, slope, offset)
    return None


def changed_by(function: str, numbers: NDArray[Any]) -> FloatArray:
    """Return a function of numbers; infinite or no number where it has no value."""
    numeric, _ = FUNCTIONS[function]
    with np.errstate(all="ignore"):
        return np.asarray(numeric(np.asarray(numbers, dtype=np.float64)))


def line_of(given: FloatArray, changed: FloatArray) -> tuple[float, float] | None:
    """Return the factor and the sum that make numbers those that are given; None if
    none do.
    """
    if not np.isfinite(changed).all() or np.ptp(changed) == 0:
        return None
    least = np.argmin(changed)
    most = np.argmax(changed)
    slope = (given[most] - given[least]) / (changed[most] - changed[least])
    if abs(slope) < SMALLEST:
        return None
    slope = _as_typed(slope)
    offset = _as_typed(given[least] - slope * changed[least], np.abs(given).max())
    nearest = offset + slope * changed
    if np.allclose(nearest, given, rtol=EQUAL, atol=EQUAL * np.ptp(given)):
        return slope, offset
    return None


def _as_typed(number: float, size: float = 0.0) -> float:
    """Return a number, or its inverse, as a person would have typed it, where only
    rounding differs; ``size`` is that of what it was subtracted from.
    """
    scale = max(abs(number), size)
    if abs(number) <= 10**-DIGITS * scale:
        return 0.0
    digits = DIGITS - int(np.ceil(np.log10(scale)))
    rounded = float(np.round(number, digits))
    for typed in (rounded, 1 / float(f"{1 / number:.{DIGITS}g}")):
        if abs(typed - number) <= 4 * np.spacing(scale) + 1e-13 * scale:
            return typed
    return number


def places_of_rows(
    signature: NDArray[Any],
    known: Sequence[Values],
    spellings: Mapping[str, Sequence[Spelling]],
) -> NDArray[np.int64] | None:
    """Return where each record's rows are in a long array, shape (records, columns);
    None if the array isn't made of whole columns.

    Parameters
    ----------
    signature : ndarray, shape (rows, builds)
        What the array holds in several builds, by which records are known again.
    known : sequence of mapping of str to ndarray, shape (records,)
        The columns in the same builds.
    spellings : mapping of str to sequence of callable
        How each column may stand in a model.
    """
    row_of = {tuple(row): place for place, row in enumerate(signature.tolist())}
    if len(row_of) < len(signature):
        return None
    by_column = []
    for name in known[0]:
        for spell in spellings[name]:
            whole = np.stack([spell(values[name]) for values in known], axis=1)
            rows = [row_of.get(tuple(row)) for row in whole.tolist()]
            if all(row is not None for row in rows):
                by_column.append(np.array(rows, dtype=np.int64))
                break
    if not by_column:
        return None
    # by their first rows, so that entries of a record are in the author's order
    by_column.sort(key=lambda rows: int(rows[0]))
    places = np.stack(by_column, axis=1)
    is_each_once = np.array_equal(np.sort(places, axis=None), np.arange(len(signature)))
    return places if is_each_once else None


def laid_out(array: NDArray[Any], places: NDArray[np.int64] | None) -> NDArray[Any]:
    """Return a long array with one row a record and an axis for its entries; others as
    they are, where no places are given.
    """
    return array if places is None else array[places]


def is_record_of_row(array: NDArray[Any], places: NDArray[np.int64]) -> bool:
    """Whether a long array says for each row which record it belongs to."""
    if array.dtype.kind not in "iu" or array.ndim != 1:
        return False
    number = np.arange(len(places))[:, None]
    return np.array_equal(array[places], np.broadcast_to(number, places.shape))
