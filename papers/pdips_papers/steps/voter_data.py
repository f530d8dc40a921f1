"""The youth voter table of paper 000: its public schema, how to read a file of it, and the paper's table 3."""

import re
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from pdips.data.readers import read_frame
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError

PAPER_METHODS = ("flat Laplace", "PrivBayes", "UH modified-2", "UH modified-3", "STEPS-2", "STEPS-3")
"""The six methods of table 3, in its order."""

MEASURES = {
    "ks_distance": "SPECKS: KS distance",
    "consistency_1": "consistency rate, 1 %",
    "consistency_5": "consistency rate, 5 %",
    "consistency_10": "consistency rate, 10 %",
    "overlap_all": "CI overlap, all coefficients",
    "overlap_prereg": "CI overlap, prereg. state",
    "overlap_registered": "CI overlap, reg. status",
    "overlap_interaction": "CI overlap, prereg. x reg.",
}
"""The measures of table 3: their columns in ``voter_table3.csv``, and what they are called here."""

SMALLER_IS_BETTER = frozenset({"ks_distance"})


def _data(name: str) -> str:
    return files("pdips_papers").joinpath("data", name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def voter_schema() -> Schema:
    """Return the schema of the voter table, levels as in the paper's table 1."""
    return Schema.from_toml(_data("voter.toml"), source="voter.toml")


@lru_cache(maxsize=1)
def paper_table() -> pd.DataFrame:
    """Return the paper's table 3 as printed: 30 rows; each measure, its printed rank, and the printed score."""
    path = files("pdips_papers").joinpath("data", "voter_table3.csv")
    with path.open(encoding="utf-8") as file:
        return pd.read_csv(file)


def read_voter(path: str | Path) -> Table:
    """Read the voter table from a ``.csv`` or ``.parquet`` file.

    Columns go by the names of the schema or by those of the paper's table 1, in any case and punctuation; others are
    left out. Values are the levels of the schema, or whole numbers from 0 that count them in their order.

    Raises
    ------
    InputError
        If a column is missing, or holds something else.
    """
    frame, schema = read_frame(path), voter_schema()
    found = {_plain(str(name)): str(name) for name in reversed(frame.columns)}
    columns: dict[str, Any] = {}
    for name, column in schema.columns.items():
        source = found.get(name, found.get(_plain(column.label or name)))
        if source is None:
            raise InputError(
                f"the voter table lacks a column {name!r} (or {column.label!r}); it needs these 15: "
                f"{', '.join(schema.columns)}"
            )
        columns[name] = _levels(name, frame[source], column)
    return Table(pd.DataFrame(columns), schema)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _levels(name: str, values: pd.Series, column: Column) -> pd.Series:
    """Return the values as levels, if they are that or codes of levels."""
    spelt = {str(level): level for level in column.levels}
    text = values.astype(str)
    if text.isin(list(spelt)).all():
        return text.map(spelt)
    codes = pd.to_numeric(values, errors="coerce")
    if not codes.isin(range(column.n_values)).all():
        raise InputError(
            f"column {name!r} of the voter table must hold {', '.join(map(str, column.levels))}; "
            f"or 0 to {column.n_values - 1} for these in their order"
        )
    return codes.astype("int64").map(dict(enumerate(column.levels)))
