"""First guesses at schemas, read off tables, for people to correct."""

import re
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

from pdips.data.dates import date_number, spell_date
from pdips.errors import InputError

DRAFT_MARK = "# DRAFT."
DRAFT_WARNING = f"""\
{DRAFT_MARK} Levels and bounds below were READ OFF THE CONFIDENTIAL TABLE: that is a leak, and no epsilon pays for it.
# Replace every one by what is publicly known (the questionnaire, the code book, the law), then delete the line above:
# as long as it is there, no command takes this schema.
"""
DRAFT_HINT = """\
# Also to be said, where true: [records] person = "...", max_per_person = 2; missing = true or [codes]; public = true;
# out_of_range = "clip"; [[impossible]] combinations of levels. docs/schema.md has them all.
# Numbers and dates have no bins: mechanism pairs needs none. Most others need bins = 20 or bin_edges, by column.
"""
FEW = 12  # Whole numbers of so many values are taken for codes, and more only where the column is named like codes
_NAMED_LIKE_CODES = re.compile(
    r"code|class|cat|group|type|region|state|country|county|district|zip|postal|industr|occup|isco|nace|icd|sic"
)
FEWEST_KEYS = 100  # So many values, each of one record or of one run of records, are taken for keys of persons
_TEXTS = {
    r"\d+/\d+/\d{4}|\d{4}[-/]\d+[-/].+": "dates are read as 2020-12-31 or 31.12.2020: rewrite them in the file",
    r"-?[\d.]+(,\d+)?": 'numbers with a decimal comma: add [csv] decimal = ",", then give it lower and upper',
    "": "many different texts, or none; codes need levels or levels_file, the key of a person [records] person",
}
_IN_RUNS = 'rows of one value stand together: if they are of one person, [records] person = "{}" and max_per_person'
_KEYS = "another whole number in each record, as identifiers have; a measurement needs lower, upper, and out of ignore"


def draft(frame: pd.DataFrame, most_levels: int) -> str:
    """Return the TOML text of a first guess: see :meth:`pdips.data.schema.Schema.draft`."""
    columns = {str(name): _column(str(name), frame[name], most_levels) for name in frame.columns}
    left_out = [name for name, drafted in columns.items() if not drafted]
    advice = {name: _advice(frame[name]) for name in left_out}
    advice |= {str(name): _IN_RUNS.format(name) for name in frame.columns if _in_runs(frame[name])}
    note = "".join(" ".join(f"# {name}: {said}".split()) + "\n" for name, said in advice.items())
    content = {"columns": {name: drafted for name, drafted in columns.items() if drafted}}
    return f"{DRAFT_WARNING}{note}{DRAFT_HINT}\n{tomli_w.dumps(({'ignore': left_out} if left_out else {}) | content)}"


def _in_runs(values: pd.Series) -> bool:
    """Whether each of many values stands in one run of rows, as the key of persons with several records does."""
    n_different = values.nunique()
    return FEWEST_KEYS <= n_different <= len(values) / 2 and n_different == int((values != values.shift()).sum())


def _advice(values: pd.Series) -> str:
    """Return what to do with a column that is left out."""
    known = values.dropna()
    if len(known) and pd.api.types.is_numeric_dtype(values):
        return _KEYS
    texts = [*known.astype(str)] or [""]
    return next(said for like, said in _TEXTS.items() if not like or all(re.fullmatch(like, one) for one in texts))


def _column(name: str, values: pd.Series, most_levels: int) -> dict[str, Any]:
    """Return levels or bounds of a column, nothing if it has neither."""
    known = values.dropna()
    more: dict[str, Any] = {"missing": True} if len(known) < len(values) else {}
    try:
        unique: list[Any] = sorted(known.unique().tolist(), key=lambda value: (str(type(value)), value))
    except TypeError:
        raise InputError(f"column {name!r} holds lists or other nested values") from None
    if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
        days = [date_number(value, "day") for value in unique]
        if len(unique) > FEW and np.isfinite(days).all():
            first, last = (spell_date(day, "day")[:4] for day in (min(days), max(days)))
            return {"type": "date", "lower": f"{first}-01-01", "upper": f"{last}-12-31", **more}
        levels = [value if isinstance(value, bool) else str(value) for value in unique]
        return {"levels": levels, **more} if 0 < len(levels) <= most_levels else {}
    known = known[np.isfinite(known.astype(float))]
    if known.empty:
        return {}
    is_whole = bool((known % 1 == 0).all())
    is_few = len(unique) <= FEW and known.max() - known.min() < most_levels
    if is_whole and (is_few or (len(unique) <= most_levels and _NAMED_LIKE_CODES.search(name.lower()))):
        return {"levels": [int(value) for value in unique], **more}
    if is_whole and len(unique) == len(values) >= FEWEST_KEYS:
        return {}
    lower, upper = _rounded(float(known.min()), float(known.max()), finest=1.0 if is_whole else 0.0)
    return {"lower": lower, "upper": upper, **({"integer": True} if is_whole else {}), **more}


def _rounded(lower: float, upper: float, finest: float) -> tuple[float, float]:
    """Return bounds of two digits of their distance around two numbers."""
    step = max(finest, 10.0 ** np.floor(np.log10(upper - lower or abs(upper) or 1.0) - 1))
    low, high = (round(float(end * step), 10) for end in (np.floor(lower / step), np.ceil(upper / step)))
    high = high if low < high else low + 1
    return (int(low), int(high)) if finest else (low, high)
