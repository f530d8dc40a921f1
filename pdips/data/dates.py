"""Dates as numbers and back, and how a cell is spelt: each by itself."""

import datetime
import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from pdips.arrays import FloatArray

_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2})(?:[ T][0-9:.+Z-]*)?)?)?")
_DOTTED = re.compile(r"([0-9]{1,2})\.([0-9]{1,2})\.([0-9]{4})")
# How many dashes a date needs at least, by unit
DASHES: dict[str | None, int] = {"year": 0, "month": 1, "day": 2}

EXAMPLES = {"day": "2020-12-31", "month": "2020-12", "year": "2020"}

LONG = 10**400  # Beyond all doubles, and far below 4,300 digits, Python's limit


def date_number(value: object, unit: str | None) -> float:
    """Return a date as a number, NaN if it is none: its year, or months or days since
    the beginning of 1970.

    Dates are those of Python, numpy and pandas, and text such as 2020-12-31 or
    31.12.2020, 2020-12 for months, 2020 for years.
    """
    text = spelling(value).strip()
    dotted = _DOTTED.fullmatch(text)
    if dotted:
        text = "{2}-{1:0>2}-{0:0>2}".format(*dotted.groups())
    dashed = _DATE.fullmatch(text)
    if dashed is None:
        return math.nan
    parts = [part for part in dashed.groups() if part is not None]
    if len(parts) <= DASHES[unit]:
        return math.nan
    year, month, day = map(int, [*parts, "1", "1"][:3])
    try:
        date = datetime.date(year, month, day)
    except ValueError:
        return math.nan
    if unit == "year":
        return float(date.year)
    if unit == "month":
        return float((date.year - 1970) * 12 + date.month - 1)
    return float((date - datetime.date(1970, 1, 1)).days)


def dates(numbers: FloatArray, unit: str | None) -> Any:
    """Return the days that :func:`date_number` counts, the first ones of months, shape
    (len(numbers),).
    """
    kind = "M8[M]" if unit == "month" else "M8[D]"
    return numbers.astype(np.int64).view(kind).astype("M8[s]")


def spell_date(number: float, unit: str | None) -> str:
    """Spell what :func:`date_number` returned as that date."""
    if unit == "year":
        return f"{number:.0f}"
    day = str(dates(np.array([number]), unit)[0])[:10]
    return day[:7] if unit == "month" else day


def read_dates(value: Any, unit: str, key: str) -> Any:
    """Return a bound, or edges, as numbers."""
    if isinstance(value, (list, tuple)):
        return tuple(read_dates(one, unit, key) for one in value)
    number = date_number(value, unit)
    if math.isnan(number):
        raise ValueError(
            f"{key} must be written as a {unit}, {EXAMPLES[unit]}; slashes aren't "
            f"read, because the month may be either number"
        )
    return number


def spelling(value: object) -> str:
    """Spell a level, or a cell that is compared with levels, by itself: 9 and 9.0 are
    one, True and 1 aren't.
    """
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return text_of(value)


def text_of(value: object) -> str:
    """Return ``str(value)``, of numbers with any number of digits."""
    if isinstance(value, int) and abs(value) >= LONG:
        return str(Decimal(value))  # which Python's limit on digits doesn't hold for
    if isinstance(value, Fraction) and value.denominator > 1:
        return f"{text_of(value.numerator)}/{text_of(value.denominator)}"
    if isinstance(value, Fraction):
        return text_of(value.numerator)
    return str(value)
