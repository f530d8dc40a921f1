"""What the pictures of an evaluation need: shares of cells, never a record. For inside
use only.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.coding import numbers
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.evaluation.document import Measure, Pictures
from pdips.evaluation.encoding import CodedRecords, weights_of, with_decile_bins

MOST_CELLS = 60  # Of a numeric column
MOST_PAIRS = 4
MOST_APART = 5  # Cells of a pair
PAIRS_FROM = "TVD of 2-way margins"


def pictures(
    table: Table, sets: Sequence[pd.DataFrame], measures: Sequence[Measure]
) -> Pictures:
    """Work out what the pictures of an evaluation show; its measures say which pairs of
    columns are furthest apart.

    Shares are of weights where the schema names them, each table by its own. Sets
    without records are left out.
    """
    kept = [frame for frame in sets if len(frame)]
    by_name = {measure.name: measure for measure in measures}
    numeric = [
        name
        for name, column in table.schema.columns.items()
        if not column.is_categorical
    ]
    furthest = []
    if PAIRS_FROM in by_name and kept:
        furthest = by_name[PAIRS_FROM].detail.model_dump().get("furthest", [])
    pairs = []
    if furthest:
        schema = with_decile_bins(table).schema
        for pair in furthest[:MOST_PAIRS]:
            cells_of_pair = furthest_cells(table, kept, schema, pair["columns"])
            pairs.append({**pair, "cells": cells_of_pair})
    return Pictures.model_validate(
        {
            "densities": [density(table, kept, name) for name in numeric],
            "pairs": pairs,
        }
    )


def density(table: Table, sets: Sequence[pd.DataFrame], name: str) -> dict[str, Any]:
    """Return the shares of the cells of a numeric column in the table and, the mean, in
    sets with records.

    ``missing`` are the two shares that are missing, or None where none may be.
    """
    column = table.schema.columns[name]
    edges = cells(column)
    ours, *theirs = [
        _shares_of(frame, table.schema, name, edges) for frame in (table.frame, *sets)
    ]
    mean = np.mean(theirs, axis=0) if theirs else np.zeros(0)
    missing = None
    if column.missing:
        missing = [float(ours[-1]), float(mean[-1]) if theirs else None]
    return {
        "column": name,
        "label": column.label or name,
        "unit": column.unit,
        "log": column.scale == "log",
        "edges": edges.tolist(),
        "table": ours[:-1].tolist(),
        "sets": mean[:-1].tolist(),
        "missing": missing,
    }


def cells(column: Column) -> FloatArray:
    """Return the edges of at most 60 cells of a numeric column, from the schema alone.

    The schema's bins, neighbours taken together where there are more than 60; without
    bins 60 cells of equal width (of equal ratio for ``scale="log"``), those of whole
    numbers moved to whole numbers. They are closed on the left, the last one on both
    sides; those of an integer column end at ``upper + 1``.
    """
    if column.is_binned:
        last = len(column.edges) - 1
        even = np.linspace(0, last, MOST_CELLS + 1).round().astype(np.int64)
        return column.edges[np.unique(even)]
    low = float(column.lower or 0)
    high = float(column.upper or 0) + column.integer
    space = np.geomspace if column.scale == "log" else np.linspace
    edges = space(low, high, MOST_CELLS + 1)
    edges[0] = low
    edges[-1] = high
    return np.unique(np.round(edges) if column.integer else edges)


def furthest_cells(
    table: Table, sets: Sequence[pd.DataFrame], schema: Schema, pair: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the cells of two columns whose shares differ most: their levels, and their
    shares in the table and, the mean, in sets.

    The schema is the table's with bins for every numeric column.
    """
    rows, columns = (schema.columns[name].names() for name in pair)
    cells, ours, theirs = _shares_of_cells(table, sets, schema, pair)
    furthest = np.argsort(-np.abs(theirs - ours), kind="stable")[:MOST_APART]
    described = []
    for place in furthest:
        row, column = divmod(int(cells[place]), len(columns))
        levels = [rows[row], columns[column]]
        shares = {"table": float(ours[place]), "sets": float(theirs[place])}
        described.append({"levels": levels, **shares})
    return described


def _shares_of_cells(
    table: Table, sets: Sequence[pd.DataFrame], schema: Schema, pair: Sequence[str]
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return the cells of two columns that have records, and their shares in the table
    and, the mean, in sets.
    """
    columns = {name: schema.columns[name] for name in pair}
    width = schema.columns[pair[1]].n_levels
    frames = [table.frame, *sets]
    coded = []
    for frame in frames:
        codes = Table(frame[list(columns)], Schema(columns=columns)).codes
        coded.append(codes[pair[0]] * width + codes[pair[1]])
    cells, place = np.unique(np.concatenate(coded), return_inverse=True)
    ends = np.cumsum([len(frame) for frame in frames])
    parts = np.split(place, ends[:-1])
    ours, *theirs = [
        _weighed(frame, table.schema, part, len(cells))
        for frame, part in zip(frames, parts, strict=True)
    ]
    return cells, ours, np.asarray(np.mean(theirs, axis=0))


def _shares_of(
    frame: pd.DataFrame, schema: Schema, name: str, edges: FloatArray
) -> FloatArray:
    """Return the share of each cell, and last that of the missing ones."""
    values = numbers(name, frame[name], schema.columns[name])
    n_cells = len(edges) - 1
    place = np.searchsorted(edges, values, side="right") - 1
    place = np.where(np.isnan(values), n_cells, np.clip(place, 0, n_cells - 1))
    return _weighed(frame, schema, place, n_cells + 1)


def _weighed(
    frame: pd.DataFrame, schema: Schema, place: IntArray, n_places: int
) -> FloatArray:
    weights = None if schema.records.weight is None else weights_of(frame, schema)
    return CodedRecords(place[:, None], weights=weights).shares(place, n_places)
