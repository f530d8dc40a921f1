"""The fertility data of paper 003, table 3: its public schema, how to read it, and the paper's tables 4 and 5."""

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.readers import read_frame
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError

TARGET, ALTERED = "diagnosis", "O"
NUMBERS = {"age": "age", "hours_sitting": "hours"}
N_BINS = 4
"""Public bins of age and of hours; the paper doesn't say how many it has."""

TEST_SHARE, TEST_ALTERED = 0.2, 0.15
"""A fifth of the records is held out, and 3 of 20 of these have an altered diagnosis, as in the paper's table 4."""

LEVELS: dict[str, list[float | int | str]] = {
    "season": [-1.0, -0.33, 0.33, 1.0],
    "childish_diseases": [0, 1],
    "accident_or_trauma": [0, 1],
    "surgical_intervention": [0, 1],
    "high_fevers": [-1, 0, 1],
    "alcohol": [0.2, 0.4, 0.6, 0.8, 1.0],
    "smoking": [-1, 0, 1],
    TARGET: ["N", ALTERED],
}
"""The eight categorical columns of the paper's "8-way" table, diagnosis included: 2,880 cells."""

ORDER = (
    "season",
    "age",
    "childish_diseases",
    "accident_or_trauma",
    "surgical_intervention",
    "high_fevers",
    "alcohol",
    "smoking",
    "hours_sitting",
    TARGET,
)

CONFUSION = ("+ as +", "+ as -", "- as +", "- as -")
"""Observed and predicted, per 20 held out; + is an altered diagnosis."""

RATE = "CR, %"
WAYS = (1, 2, 3, 8)
TVD = {k: f"TVD {k}-way" for k in WAYS}
MOMENTS = tuple(f"{short} {moment}" for short in NUMBERS.values() for moment in ("mean", "SD"))

PAPER_4 = {
    "original": (0, 3, 0, 17, 85.0),
    "PrivateSVM": (0.84, 2.16, 4.87, 12.13, 64.9),
    "Laplace sanitizer": (1.04, 1.96, 5.11, 11.89, 64.7),
    "MODIPS": (1.50, 1.50, 8.51, 8.49, 50.0),
}
"""Table 4, at epsilon = e: the confusion matrix, row by row, and the consistency rate in %."""

PAPER_5 = {
    "original": (0.67, 0.12, 0.41, 0.19),
    "Laplace sanitizer": (0.66, 0.14, 0.44, 0.21, 0.228, 0.353, 0.311, 0.451),
    "MODIPS": (0.66, 0.14, 0.50, 0.29, 0.250, 0.379, 0.330, 0.483),
}
"""Table 5: mean and SD of age and of hours, TVD of 1-, 2-, 3- and 8-way tables."""


@lru_cache(maxsize=1)
def fertility_schema() -> Schema:
    """Return the schema: eight categorical columns, and age and hours from 0 to 1 in bins. 46,080 cells."""
    numeric = {"lower": 0.0, "upper": 1.0, "bins": N_BINS}
    return Schema.model_validate(
        {"columns": {name: {"levels": LEVELS[name]} if name in LEVELS else numeric for name in ORDER}}
    )


@lru_cache(maxsize=2)
def read_fertility(path: str) -> Table:
    """Read the table from a ``.csv`` or ``.parquet`` file, with the columns of ``ORDER``; others are left out.

    Raises
    ------
    InputError
        If a column is missing or holds something else, or there are too few records of either diagnosis to split.
    """
    frame = read_frame(Path(path))
    missing = [name for name in ORDER if name not in frame.columns]
    if missing:
        raise InputError(
            f"the fertility table lacks a column {missing[0]!r}; it needs these {len(ORDER)}: {', '.join(ORDER)}"
        )
    table = Table(frame[list(ORDER)], fertility_schema())
    if split_sizes(table) is None:
        raise InputError(
            "study fertility needs at least 20 records, with enough of diagnosis N and O for both to be in the four "
            "fifths that are synthesized and in the fifth that is held out"
        )
    return table


def split_sizes(table: Table) -> tuple[int, int] | None:
    """Return how many records of altered and of normal diagnosis are held out; None if there are too few."""
    altered = int((table.codes[TARGET] == 1).sum())
    held = round(TEST_SHARE * table.n_records)
    of_altered = max(1, round(TEST_ALTERED * held))
    of_normal = held - of_altered
    enough = table.n_records >= 20 and of_altered < altered and of_normal < table.n_records - altered
    return (of_altered, of_normal) if enough else None


def split(table: Table, rng: np.random.Generator) -> tuple[Table, Table]:
    """Return a table to synthesize and one held out, drawn at random."""
    sizes = split_sizes(table)
    if sizes is None:
        raise InputError("the fertility table has too few records to split")
    target = table.codes[TARGET]
    held = np.concatenate(
        [rng.permutation(np.flatnonzero(target == code))[:size] for code, size in zip((1, 0), sizes, strict=True)]
    )
    inside = np.ones(table.n_records, dtype=bool)
    inside[held] = False
    train, test = (table.frame[rows].reset_index(drop=True) for rows in (inside, ~inside))
    return Table(train, table.schema), Table(test, table.schema)


def features(table: Table) -> tuple[FloatArray, FloatArray]:
    """Return the nine predictors as coded, within [-1, 1], and the label: 1 altered, -1 normal."""
    columns = [
        np.array(LEVELS[name], dtype=np.float64)[table.codes[name]]
        if name in LEVELS
        else pd.to_numeric(table.frame[name]).to_numpy(dtype=np.float64)
        for name in ORDER
        if name != TARGET
    ]
    return np.column_stack(columns), np.where(table.codes[TARGET] == 1, 1.0, -1.0)


def paper_figures(row: str, method: str) -> dict[tuple[str, str], float]:
    """Return the paper's figures of a method, as those of a row of ours."""
    found = {(row, column): value for column, value in zip((*CONFUSION, RATE), PAPER_4.get(method, ()), strict=False)}
    five = zip((*MOMENTS, *TVD.values()), PAPER_5.get(method, ()), strict=False)
    return found | {(row, column): value for column, value in five if not math.isnan(value)}
