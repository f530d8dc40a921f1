"""Dates as numbers and back, and how a cell is spelt: each by itself."""

import datetime
import math
import re
from typing import Any

import numpy as np

from pdips.arrays import FloatArray

_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2})(?:[ T][0-9:.+Z-]*)?)?)?")
_DOTTED = re.compile(r"([0-9]{1,2})\.([0-9]{1,2})\.([0-9]{4})")
DASHES: dict[str | None, int] = {"year": 0, "month": 1, "day": 2}  # How many dashes a date needs at least, by unit


def date_number(value: object, unit: str | None) -> float:
    """Return a date as a number, NaN if it is none: its year, or months or days since the beginning of 1970.

    Dates are those of Python, numpy and pandas, and text such as 2020-12-31 or 31.12.2020, 2020-12 for
    months, 2020 for years.
    """
    text = spelling(value).strip()
    dotted = _DOTTED.fullmatch(text)
    found = _DATE.fullmatch("{2}-{1:0>2}-{0:0>2}".format(*dotted.groups()) if dotted else text)
    if found is None or sum(part is not None for part in found.groups()) <= DASHES[unit]:
        return math.nan
    try:
        date = datetime.date(*(int(part or 1) for part in found.groups()))
    except ValueError:
        return math.nan
    months = (date.year - 1970) * 12 + date.month - 1
    return float({"year": date.year, "month": months}.get(str(unit), (date - datetime.date(1970, 1, 1)).days))


def dates(numbers: FloatArray, unit: str | None) -> Any:
    """Return the days that :func:`date_number` counts, the first ones of months, shape (len(numbers),)."""
    return numbers.astype(np.int64).view("M8[M]" if unit == "month" else "M8[D]").astype("M8[s]")


def spell_date(number: float, unit: str | None) -> str:
    """Spell what :func:`date_number` returned as that date."""
    day = str(dates(np.array([number]), unit)[0])[:10]
    return f"{number:.0f}" if unit == "year" else day[:7] if unit == "month" else day


def read_dates(value: Any, unit: str, key: str) -> Any:
    """Return a bound, or edges, as numbers."""
    read = [date_number(one, unit) for one in (value if isinstance(value, (list, tuple)) else [value])]
    if not np.isfinite(read).all():
        raise ValueError(f"{key} must be written as a {unit}: 2020-12-31, 2020-12 or 2020")
    return tuple(read) if isinstance(value, (list, tuple)) else read[0]


def spelling(value: object) -> str:
    """Spell a level, or a cell that is compared with levels, by itself: 9 and 9.0 are one, True and 1 aren't."""
    return str(int(value)) if isinstance(value, (float, np.floating)) and float(value).is_integer() else str(value)
