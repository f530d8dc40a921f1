"""Cells turned into codes, numbers, hashes and person keys: each by itself, whatever
other records there are.

Sensitivities are proved for records as codes. They hold for a table only if the code of
a record, or its refusal, is a function of its own cells, the schema and the columns'
types (``docs/proofs/laplace-sanitizer.md``). So nothing here compares two cells, but to
save work where equal ones are certainly spelt the same.
"""

import math
import numbers as abstract
import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.column import Column
from pdips.data.dates import date_number, spelling, text_of
from pdips.errors import DataError, InputError

HashArray = NDArray[np.uint64]
type Cells = list[Any] | NDArray[Any]

NESTED = "holds lists or other nested values"
NOT_TEXT = "holds text that is not Unicode"
OUTSIDE_LEVELS = (
    "has values outside the levels of its schema (compared letter by "
    "letter; trim = true takes blanks off)"
)
MISSING = "has missing values, which its schema doesn't declare (missing = true)"
NO_NUMBERS = "has values that are no numbers"
NO_DATES = (
    "has values that are no dates, which are written as 2020-12-31 or 31.12.2020, with "
    "or without a time; rewrite dates with slashes, whose month may be either number"
)
OUTSIDE_BOUNDS = "has values outside its bounds"
NOT_WHOLE = "must hold whole numbers"
_RULES = (
    NESTED,
    NOT_TEXT,
    OUTSIDE_LEVELS,
    MISSING,
    NO_NUMBERS,
    NO_DATES,
    OUTSIDE_BOUNDS,
    NOT_WHOLE,
)

_UNEQUAL_TO_ALL_ELSE = {str, type(None), type(pd.NA)}
_LONGEST_NUMBER = 300
_NUMBER = re.compile(
    r"([+-]?)(?=\.?[0-9])([0-9]*)\.?([0-9]*)(?:[eE]([+-]?[0-9]{1,9}))?"
)
_SURELY_A_KEY = r"^(0|-?[1-9][0-9]*|([!-~][ -~]*)?[A-DF-Za-df-z]([ -~]*[!-~])?)$"
"""Whole numbers, and printable ASCII with a letter that no number has: person keys that
are as they should be.
"""


class CellError(DataError):
    """Cells break rules of their column, which are named in the order of
    :data:`_RULES`, wherever the records are.
    """

    def __init__(self, name: str, *broken: str, bounds: str = "") -> None:
        self.name = name
        self.broken = sorted(set(broken), key=_RULES.index)
        self.bounds = bounds
        self.rank = _RULES.index(self.broken[0])
        spelt = {OUTSIDE_BOUNDS: f"{OUTSIDE_BOUNDS}{bounds}"}
        problems = "; it ".join(spelt.get(rule, rule) for rule in self.broken)
        super().__init__(f"column {name!r} {problems}")


def refuse_for(problems: Sequence[DataError]) -> None:
    """Refuse a table for all of its problems at once."""
    if problems:
        raise DataError("; ".join(map(str, problems)))


def check_type(name: str, values: pd.Series, *, is_date: bool = False) -> None:
    """Refuse a column whose type is neither text, numbers nor true and false, nor dates
    where they are wanted.
    """
    kind = values.dtype
    unread = "mc" if is_date else "mMc"
    is_period = isinstance(kind, pd.PeriodDtype)
    if is_period or getattr(kind, "kind", "O") in unread:
        raise InputError(
            f"column {name!r} is of a type other than text, number or "
            f"true/false (dates: type = 'date')"
        )
    if isinstance(kind, pd.ArrowDtype) and pa.types.is_nested(kind.pyarrow_dtype):
        raise InputError(f"column {name!r} {NESTED}")


def exchange_commas(values: pd.Series) -> pd.Series:
    """Exchange points and commas in the cells of a column of text that look like
    numbers.
    """
    if not isinstance(values.dtype, pd.StringDtype):
        return values
    like = values.str.fullmatch(
        r"\s*[+-]?[0-9]*[.,]?[0-9]*([eE][+-]?[0-9]+)?\s*", na=False
    )
    return values.where(~like, values.str.translate({ord("."): ",", ord(","): "."}))


def distinct(name: str, values: pd.Series) -> tuple[IntArray, Cells]:
    """Return cells such that each cell of a column is spelt as one of them, and each
    one's place there, or -1.

    True, 1, 1.0 and Decimal(1) are equal and aren't spelt alike. So cells are compared
    only where the column's type, or the types of all its cells, say that equal cells
    are spelt alike; else each cell stands for itself. Either way gives a cell the same
    code.
    """
    try:
        if not _is_of_one_type(values):
            values = values.astype(object)
            kinds = set(map(type, values)) - _UNEQUAL_TO_ALL_ELSE
            _refuse(name, {NESTED: any(kind.__hash__ is None for kind in kinds)})
            if len(kinds) > 1 or not kinds <= {bool, int, float}:
                return _each_by_itself(values)
        positions, unique = pd.factorize(values)
        # the elements of an index of text are slow to list, and those of other types
        # change by to_numpy
        if isinstance(unique.dtype, pd.StringDtype):
            cells: Cells = unique.to_numpy(dtype=object)
        else:
            cells = list(unique)
    except (UnicodeDecodeError, pa.ArrowException):
        raise CellError(name, NOT_TEXT) from None
    return positions.astype(np.int64, copy=False), cells


def _each_by_itself(values: pd.Series) -> tuple[IntArray, Cells]:
    is_known = np.array([not _is_nothing(value) for value in values], dtype=np.bool_)
    positions = np.where(is_known, np.cumsum(is_known) - 1, -1)
    return positions.astype(np.int64), values[is_known].tolist()


def _is_number(values: pd.Series) -> bool:
    """Whether a column is of a type of numbers, true and false not among them."""
    if isinstance(values.dtype, np.dtype):
        return values.dtype.kind in "iuf"
    return isinstance(values.array, (pd.arrays.IntegerArray, pd.arrays.FloatingArray))


def _is_of_one_type(values: pd.Series) -> bool:
    if isinstance(values.dtype, np.dtype):
        return values.dtype.kind != "O"
    plain = (
        pd.arrays.IntegerArray,
        pd.arrays.FloatingArray,
        pd.arrays.BooleanArray,
        pd.Categorical,
    )
    return isinstance(values.array, plain) or isinstance(values.dtype, pd.StringDtype)


def _is_nothing(value: object) -> bool:
    if isinstance(value, Decimal):
        return value.is_nan()
    if value is None:
        return True
    scalar: Any = value
    return bool(pd.api.types.is_scalar(scalar)) and bool(pd.isna(scalar))


def encode(name: str, values: pd.Series, column: Column) -> IntArray:
    """Return the level or bin of each cell of a column, ``column.n_values`` where it is
    missing.

    A cell outside the levels or bounds, or missing without leave, is a
    :class:`CellError`.
    """
    if column.is_categorical:
        return _encode_levels(name, values, column)
    cleaned = numbers(name, values, column)
    bins = np.searchsorted(column.edges, cleaned, side="right") - 1
    # the last bin holds its upper end
    codes = np.minimum(bins, column.n_values - 1)
    codes[np.isnan(cleaned)] = column.n_values
    return codes.astype(np.int64)


def _encode_levels(name: str, values: pd.Series, column: Column) -> IntArray:
    positions, cells = distinct(name, values)
    code_of = {"": column.n_values} if column.trim else {}
    code_of |= _level_codes(column)
    spell = spelling if isinstance(column.levels[0], (str, bool)) else number_spelling
    spelt = [spell(cell) for cell in cells]
    if column.trim:
        spelt = [text.strip() for text in spelt]
    of_cells = [code_of.get(text, -1) for text in spelt]
    # position -1, of a missing cell, is the last
    of_distinct = np.array([*of_cells, column.n_values], dtype=np.int64)
    codes = of_distinct[positions]
    is_missing = bool((codes == column.n_values).any())
    broken = {
        OUTSIDE_LEVELS: bool((of_distinct < 0).any()),
        MISSING: is_missing and not column.missing,
    }
    _refuse(name, broken)
    return codes


def _level_codes(column: Column) -> dict[str, int]:
    codes = {spelling(level): code for code, level in enumerate(column.levels)}
    for code, level in enumerate(column.levels):
        if isinstance(level, bool):
            codes |= {str(level).lower(): code, str(level).upper(): code}
    return codes | {spelling(code): column.n_values for code in column.missing_codes}


def number_spelling(value: object) -> str:
    """Spell a number the same whatever the type it is in: 1994.0 as text, Decimal or
    double is 1994.
    """
    if isinstance(value, str):
        for read in (int, float):
            with suppress(ValueError):
                return spelling(read(value))
        return value
    if isinstance(value, (Decimal, Fraction)):
        double = _double(value)
        # whole numbers beyond all doubles may have millions of digits
        is_whole = math.isfinite(double) and _is_whole(value)
        return str(int(value)) if is_whole else str(double)
    return spelling(value)


def _is_whole(value: Decimal | Fraction) -> bool:
    if isinstance(value, Decimal):
        return value == value.to_integral_value()
    return value.denominator == 1


def _refuse(name: str, broken: Mapping[str, bool], bounds: str = "") -> None:
    rules = [rule for rule, is_broken in broken.items() if is_broken]
    if rules:
        raise CellError(name, *rules, bounds=bounds)


def numbers(name: str, values: pd.Series, column: Column) -> FloatArray:
    """Return a numeric column as doubles, NaN where missing, within its bounds; dates
    as :func:`schema.date_number`.
    """
    doubles, missing = _doubles(name, values, column)
    lower = float(column.lower or 0)
    upper = float(column.upper or 0)
    if column.out_of_range == "clip":
        doubles = np.clip(doubles, lower, upper)
    is_unread = np.isnan(doubles) & ~missing
    is_inside = (doubles >= lower) & (doubles <= upper)
    is_outside = ~is_inside & ~np.isnan(doubles) & ~missing
    unread = NO_DATES if column.type == "date" else NO_NUMBERS
    broken = {
        MISSING: not column.missing and bool(missing.any()),
        unread: bool(is_unread.any()),
        OUTSIDE_BOUNDS: bool(is_outside.any()),
    }
    if column.integer:
        inside = doubles[is_inside & ~missing]
        broken[NOT_WHOLE] = bool((inside % 1 != 0).any())
    _refuse(name, broken, f", {column.spell(lower)} to {column.spell(upper)}")
    return np.where(missing, np.nan, doubles) + 0.0  # one zero, not two


def _doubles(
    name: str, values: pd.Series, column: Column
) -> tuple[FloatArray, BoolArray]:
    """Return cells as doubles, NaN where they are no numbers, and which are missing;
    each shape (len(values),).
    """
    if _is_number(values) and column.type != "date":
        doubles = values.to_numpy(dtype=np.float64, na_value=np.nan)
        missing = np.isnan(doubles)
        coded = [
            float(code)
            for code in column.missing_codes
            if spelling(_double(code)) == spelling(code)
        ]
        if coded:
            missing |= np.isin(doubles, coded)
        return doubles, missing
    positions, cells = distinct(name, values)
    if column.type == "date":
        read = np.array([date_number(cell, column.unit) for cell in cells])
    else:
        read = _cells_as_doubles(cells)
    # position -1, of a missing cell, is the last
    doubles = np.append(read, np.nan)
    missing = np.zeros(len(doubles), dtype=np.bool_)
    missing[-1] = True
    codes = {spelling(code) for code in column.missing_codes}
    if codes:
        missing[:-1] = [number_spelling(cell) in codes for cell in cells]
    return doubles[positions], missing[positions]


def _cells_as_doubles(cells: Cells) -> FloatArray:
    """Return cells as doubles, NaN for those that are no numbers; Arrow reads text as
    Python does, or not at all.
    """
    if isinstance(cells, np.ndarray):
        with suppress(ValueError):  # of one text that Arrow can't read
            read = pa.array(cells, type=pa.string()).cast(pa.float64())
            return np.asarray(read.to_numpy(zero_copy_only=False))
    return np.array([_double(cell) for cell in cells], dtype=np.float64)


def _double(cell: object) -> float:
    is_truth = isinstance(cell, (bool, np.bool_))
    if is_truth or not isinstance(cell, (str, abstract.Real, Decimal)):
        return math.nan
    if isinstance(cell, str) and "_" in cell:
        return math.nan
    try:
        return float(cell)
    except OverflowError:
        return math.inf  # beyond all bounds
    except ValueError:
        return math.nan


def value_hashes(name: str, values: pd.Series) -> HashArray:
    """Return a hash of each cell of a column, by how it is spelt, shape
    (len(values),).
    """
    positions, cells = distinct(name, values)
    nothing = "<NA>" if getattr(values.dtype, "na_value", None) is pd.NA else "nan"
    spelt = [f"{name}={text_of(_with_one_zero(cell))}" for cell in cells]
    spelt.append(f"{name}={nothing}")
    # text that is not Unicode has a hash, too
    coded = [text.encode("utf-8", "backslashreplace").decode() for text in spelt]
    return pd.util.hash_array(np.array(coded, dtype=object))[positions]


def _with_one_zero(cell: object) -> object:
    """Return 0.0 for -0.0: of the two, which are equal, the order of the records would
    say which one stands for both.
    """
    if isinstance(cell, (float, np.floating)):
        return cell + type(cell)(0)
    return cell


def person_keys(name: str, values: pd.Series) -> tuple[IntArray, NDArray[Any]]:
    """Return keys of persons, spelt in one way so that the cap binds, and each record's
    place among them, or -1.

    Keys are numbers, or texts as :func:`person_key` spells them; one may be there
    twice.
    """
    if _is_number(values):
        positions, unique = pd.factorize(values)
        kind: Any = values.dtype
        keys = unique.to_numpy(dtype=getattr(kind, "numpy_dtype", kind))
        # one zero, not two
        return positions.astype(np.int64, copy=False), keys + keys.dtype.type(0)
    positions, cells = distinct(name, values)
    spelt = np.empty(len(cells), dtype=object)
    spelt[:] = cells
    for index in _odd_keys(cells):
        spelt[index] = person_key(spelt[index])
    return positions, spelt


def _odd_keys(cells: Cells) -> IntArray:
    """Return the places of keys that may have to be spelt otherwise."""
    if isinstance(cells, np.ndarray):
        with suppress(ValueError):  # of a text that is not Unicode
            text = pa.array(cells, type=pa.large_string())
            is_key = pc.match_substring_regex(text, _SURELY_A_KEY)
            is_short = pc.less(pc.binary_length(text), _LONGEST_NUMBER)
            is_plain = pc.and_(is_key, is_short)
            return np.flatnonzero(~is_plain.to_numpy(zero_copy_only=False))
    return np.arange(len(cells))


def person_key(value: object) -> str:
    """Spell a person's key: in Unicode's form NFC, without blanks around it, numbers by
    value.

    1, 1.0, "1", " 01" and "1e0" are one key. Taking two keys for one makes the cap bind
    sooner, which is safe.
    """
    text = unicodedata.normalize("NFC", text_of(value)).strip()
    parts = _NUMBER.fullmatch(text)
    if not parts:
        return text
    sign, whole, decimals, exponent = parts.groups()
    digits = (whole + decimals).lstrip("0")
    short = digits.rstrip("0")
    if not short:
        return "0"
    n_zeros = len(digits) - len(short)
    power = int(exponent or 0) - len(decimals) + n_zeros
    spelt = f"{short}E{power}"
    if 0 <= power <= _LONGEST_NUMBER - len(short):
        spelt = f"{short}{'0' * power}"
    return f"{sign.removeprefix('+')}{spelt}"
