"""First guesses at schemas, read off tables, for people to correct."""

import re
import textwrap
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

from pdips.data.dates import date_number, spell_date
from pdips.errors import InputError

DRAFT_MARK = "# DRAFT."
DRAFT_WARNING = f"""\
{DRAFT_MARK} Levels and bounds below were READ OFF THE CONFIDENTIAL TABLE:
# that is a leak, and no epsilon pays for it.
# Replace every one by what is publicly known (the questionnaire, the code book, the
# law), then delete the first line: as long as it is there, no command takes this schema.
"""  # noqa: E501
UNKNOWN_LEVELS = "A table doesn't know levels that nobody in it has, of {}."
UNKNOWN_BOUNDS = (
    "A table doesn't know how far numbers and dates may go, of {}: bounds are rounded "
    "outwards here, from the smallest and the largest value."
)
DRAFT_HINT = """\
# Also to be said, where true: [records] person = "...", max_per_person = 2;
# missing = true or [codes]; public = true; out_of_range = "clip"; [[impossible]]
# combinations of levels. docs/schema.md has them all.
# Numbers and dates have no bins: mechanism margins needs none. Most others need
# bins = 20 or bin_edges, by column.
"""
# Whole numbers of so many values are taken for codes, and more only where the column is
# named like codes
FEW = 12
_NAMED_LIKE_CODES = re.compile(
    r"code|class|cat|group|type|region|state|country|county|district|zip|postal|industr|occup|isco|nace|icd|sic"
)
# So many values, each of one record or of one run of records, are taken for keys of
# persons
FEWEST_KEYS = 100
_TEXTS = {
    r"\d+/\d+/\d{4}|\d{4}[-/]\d+[-/].+": "dates are read as 2020-12-31 or "
    "31.12.2020: rewrite them in the file",
    r"-?[\d.]+(,\d+)?": 'numbers with a decimal comma: add [csv] decimal = ",", then '
    "give it lower and upper",
}
_OTHER_TEXT = (
    "many different texts, or none; codes need levels or levels_file, the key of "
    "a person [records] person"
)
_DATES_AS_NUMBERS = (
    "whole numbers that read as dates, such as 20201231, aren't read as such: write "
    "2020-12-31 in the file"
)
# Dates written as whole numbers
_FIRST_DATE = 19000101
_LAST_DATE = 21001231
_IN_RUNS = (
    "rows of one value stand together: if they are of one person, [records] "
    'person = "{}" and max_per_person'
)
_KEYS = (
    "another whole number in each record, as identifiers have; a measurement "
    "needs lower, upper, and out of ignore"
)


def draft(frame: pd.DataFrame, most_levels: int) -> str:
    """Return the TOML text of a first guess: see
    :meth:`pdips.data.schema.Schema.draft`.
    """
    content: dict[str, Any] = {}
    left_out = []
    columns = dict[str, dict[str, Any]]()
    advice = dict[str, str]()
    for name in frame.columns:
        drafted = _column(str(name), frame[name], most_levels)
        if drafted:
            columns[str(name)] = drafted
        else:
            left_out.append(name)
            advice[str(name)] = _advice(frame[name])
    for name in frame.columns:
        if _in_runs(frame[name]) and not _reads_as_dates(frame[name]):
            advice[str(name)] = _IN_RUNS.format(name)
    lines = [" ".join(f"# {name}: {text}".split()) for name, text in advice.items()]
    note = "".join(f"{line}\n" for line in lines)
    if left_out:
        content["ignore"] = left_out
    content["columns"] = columns
    unknown = _unknown(columns)
    return f"{DRAFT_WARNING}{unknown}{note}{DRAFT_HINT}\n{tomli_w.dumps(content)}"


def _unknown(columns: dict[str, dict[str, Any]]) -> str:
    """Say, in lines of a comment, of which columns a table can't know all levels or
    the bounds.
    """
    said = ""
    for key, sentence in (("levels", UNKNOWN_LEVELS), ("lower", UNKNOWN_BOUNDS)):
        names = [" ".join(name.split()) for name in columns if key in columns[name]]
        if names:
            said += textwrap.fill(
                sentence.format(", ".join(names)),
                width=88,
                initial_indent="# ",
                subsequent_indent="# ",
            )
            said += "\n"
    return said


def _in_runs(values: pd.Series) -> bool:
    """Whether each of many values stands in one run of rows, as the key of persons with
    several records does.
    """
    n_different = values.nunique()
    n_runs = int((values != values.shift()).sum())
    return FEWEST_KEYS <= n_different <= len(values) / 2 and n_different == n_runs


def _reads_as_dates(values: pd.Series) -> bool:
    """Whether all that is there is a date or a time: no key of a person, however often
    it comes.
    """
    present = values.dropna()
    if pd.api.types.is_datetime64_any_dtype(values):
        return True
    if pd.api.types.is_numeric_dtype(values):
        return _are_dates_as_numbers(present)
    dates_in_slashes, _ = _TEXTS
    return all(
        np.isfinite(date_number(text, "day")) or re.fullmatch(dates_in_slashes, text)
        for text in present.astype(str)
    )


def _are_dates_as_numbers(present: pd.Series) -> bool:
    """Whether all whole numbers are dates such as 20201231."""
    if not present.between(_FIRST_DATE, _LAST_DATE).all():
        return False
    texts = present.map("{:.0f}".format)
    days = pd.to_datetime(texts, format="%Y%m%d", errors="coerce")
    return bool(len(present) and (present % 1 == 0).all() and days.notna().all())


def _advice(values: pd.Series) -> str:
    """Return what to do with a column that is left out."""
    present = values.dropna()
    if len(present) and pd.api.types.is_numeric_dtype(values):
        return _DATES_AS_NUMBERS if _are_dates_as_numbers(present) else _KEYS
    texts = [*present.astype(str)] or [""]
    for like, advice in _TEXTS.items():
        if all(re.fullmatch(like, text) for text in texts):
            return advice
    return _OTHER_TEXT


def _column(name: str, values: pd.Series, most_levels: int) -> dict[str, Any]:
    """Return levels or bounds of a column, nothing if it has neither."""
    present = values.dropna()
    try:
        distinct: list[Any] = present.unique().tolist()
        distinct.sort(key=lambda value: (str(type(value)), value))
    except TypeError:
        raise InputError(
            f"column {name!r} holds lists or other nested values"
        ) from None
    is_number = pd.api.types.is_numeric_dtype(values)
    if is_number and not pd.api.types.is_bool_dtype(values):
        is_key = len(distinct) == len(values) >= FEWEST_KEYS
        drafted = _numeric(name, present, most_levels, is_key=is_key)
    else:
        drafted = _text_or_dates(distinct, most_levels)
    if drafted and len(present) < len(values):
        drafted["missing"] = True
    return drafted


def _text_or_dates(distinct: list[Any], most_levels: int) -> dict[str, Any]:
    days = [date_number(value, "day") for value in distinct]
    has_times = any(re.search(r"[ T]\d", str(value)) for value in distinct)
    if (len(distinct) > FEW or has_times) and np.isfinite(days).all():
        first_year = spell_date(min(days), "day")[:4]
        last_year = spell_date(max(days), "day")[:4]
        return {
            "type": "date",
            "lower": f"{first_year}-01-01",
            "upper": f"{last_year}-12-31",
        }
    if not 0 < len(distinct) <= most_levels:
        return {}
    levels = [value if isinstance(value, bool) else str(value) for value in distinct]
    return {"levels": levels}


def _numeric(
    name: str, present: pd.Series, most_levels: int, *, is_key: bool
) -> dict[str, Any]:
    finite = present[np.isfinite(present.astype(float))]
    if finite.empty:
        return {}
    lower = finite.min()
    upper = finite.max()
    if not bool((finite % 1 == 0).all()):
        low, high = _rounded(float(lower), float(upper), finest=0.0)
        return {"lower": low, "upper": high}
    levels = sorted(map(int, finite.unique()))
    is_few = len(levels) <= FEW and upper - lower < most_levels
    is_named_so = bool(_NAMED_LIKE_CODES.search(name.lower()))
    if is_few or (is_named_so and len(levels) <= most_levels):
        return {"levels": levels}
    if is_key or _are_dates_as_numbers(finite):
        return {}
    low, high = _rounded(float(lower), float(upper), finest=1.0)
    return {"lower": low, "upper": high, "integer": True}


def _rounded(lower: float, upper: float, finest: float) -> tuple[float, float]:
    """Return round bounds around two numbers: multiples of 1, 2 or 5 times a power of
    ten that is a tenth to a fourth of their distance.
    """
    distance = upper - lower or abs(upper) or 1.0
    power = 10.0 ** np.floor(np.log10(distance / 4))
    step = max(finest, power * max(n for n in (1, 2, 5) if n * power <= distance / 4))
    low = round(float(np.floor(lower / step) * step), 10)
    high = round(float(np.ceil(upper / step) * step), 10)
    if low >= high:
        high = low + 1
    return (int(low), int(high)) if finest else (low, high)
