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
MOST_LEVELS = 14  # Of a column of a heat map
PAIRS_FROM = "TVD of 2-way margins"
SCORES_FROM = "SPECKS"


def pictures(
    table: Table, sets: Sequence[pd.DataFrame], measures: Sequence[Measure]
) -> Pictures:
    """Work out what the pictures of an evaluation show; its measures say which pairs of
    columns are furthest apart.

    Shares are of weights where the schema names them, each table by its own, but for
    ``propensity``, which counts records. Sets without records are left out.
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
            drawn = difference(table, kept, schema, pair["columns"])
            pairs.append({**drawn, "distance": pair["distance"]})
    scores = by_name.get(SCORES_FROM)
    return Pictures.model_validate(
        {
            "propensity": scores.picture if scores else None,
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


def difference(
    table: Table, sets: Sequence[pd.DataFrame], schema: Schema, pair: Sequence[str]
) -> dict[str, Any]:
    """Return by how much the shares of the cells of two columns differ: the mean over
    sets minus that in the table.

    ``levels`` are two lists of at most 14 names: neighbouring bins are taken together,
    and so are the levels that differ least. The schema is the table's with bins for
    every numeric column.
    """
    first, second = (schema.columns[name] for name in pair)
    cells, apart = _apart(table, sets, schema, pair)
    first_levels = cells // second.n_levels
    second_levels = cells % second.n_levels
    rows, row_of = _merged(first, first_levels, apart)
    across, column_of = _merged(second, second_levels, apart)
    cell = row_of[first_levels] * len(across) + column_of[second_levels]
    by_cell = np.bincount(cell, apart, minlength=len(rows) * len(across))
    return {
        "columns": list(pair),
        "labels": [schema.columns[name].label or name for name in pair],
        "levels": [rows, across],
        "difference": by_cell.reshape(len(rows), -1).tolist(),
    }


def _apart(
    table: Table, sets: Sequence[pd.DataFrame], schema: Schema, pair: Sequence[str]
) -> tuple[IntArray, FloatArray]:
    """Return the cells of two columns that have records, and by how much their shares
    differ.
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
    return cells, np.asarray(np.mean(theirs, axis=0) - ours)


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


def _merged(
    column: Column, levels: IntArray, apart: FloatArray
) -> tuple[list[str], IntArray]:
    """Return at most 14 names, and for each level the place of its name; ``levels`` are
    those of cells that differ so much.
    """
    names = column.names()
    n = column.n_values
    most = MOST_LEVELS - bool(column.missing)
    if n <= most:
        return names, np.arange(len(names))
    if column.is_categorical:
        by_level = np.bincount(levels, np.abs(apart), minlength=column.n_levels)[:n]
        kept = np.sort(np.argsort(-by_level, kind="stable")[: most - 1])
        groups = np.full(n, len(kept))
        groups[kept] = np.arange(len(kept))
        merged = [*(names[level] for level in kept), f"{n - len(kept)} others"]
    else:
        starts = np.linspace(0, n, most + 1).round().astype(np.int64)
        groups = np.searchsorted(starts, np.arange(n), side="right") - 1
        coarse = {"bin_edges": tuple(column.edges[starts])}
        merged = column.model_copy(update=coarse).names()[:most]
    if column.missing:
        groups = np.append(groups, len(merged))
    return [*merged, *names[n:]], groups
