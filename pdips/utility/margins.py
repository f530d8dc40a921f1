"""One-way and two-way margins and the full table, synthetic against confidential. For inside use only."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.errors import InputError
from pdips.schema import Schema
from pdips.table import Table
from pdips.utility.codes import IntArray, cell_ids, coded_columns, codes_of, n_cells, resampled, sizes_of, table_codes

FloatArray = NDArray[np.float64]


def compare(table: Table, sets: Sequence[pd.DataFrame], rng: np.random.Generator | None = None) -> dict[str, Any]:
    """Compare synthetic sets with the table they were made from.

    Parameters
    ----------
    table : Table
        The confidential table.
    sets : sequence of DataFrame
        Synthetic sets of the same schema.
    rng : numpy.random.Generator, optional
        For the resample that gives the reference values.

    Returns
    -------
    dict
        ``l1``: sum over all cells of |share - share| (0 equal, 2 disjoint), by set, its mean, and ``reference``, what a
        sample of the same size drawn with replacement from the table itself scores. ``one_way``: shares of each level
        in the table and averaged over sets, and their total variation distance. ``two_way``: total variation distance
        of every pair of columns, averaged over sets, and the reference's.
    """
    schema = table.schema
    names, sizes = coded_columns(schema), sizes_of(schema)
    original = table_codes(table)
    synthetic = [codes_of(frame, schema) for frame in sets if len(frame)]
    resample = resampled(original, rng)
    by_set = [_full_distance(original, codes, sizes) for codes in synthetic]
    return {
        "l1": {"by_set": by_set, "mean": _mean(by_set), "reference": _full_distance(original, resample, sizes)},
        "one_way": [
            _one_way(schema, name, original[:, j], [codes[:, j] for codes in synthetic]) for j, name in enumerate(names)
        ],
        "two_way": {
            "columns": names,
            "distance": _two_way(original, synthetic, sizes),
            "reference": _two_way(original, [resample], sizes),
        },
    }


def l1(table: Table, sets: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """Return the L1 distance of the full tables: sum over all cells of \\|share - share\\|.

    Parameters
    ----------
    table : Table
        The confidential table.
    sets : sequence of DataFrame
        Synthetic sets of the same schema.

    Returns
    -------
    dict
        ``by_set``, from 0 (equal) to 2 (disjoint, or a set without records), and its ``mean``.
    """
    schema, original = table.schema, table_codes(table)
    by_set = [_full_distance(original, codes_of(frame, schema), sizes_of(schema)) for frame in _some(sets)]
    return {"by_set": by_set, "mean": _mean(by_set)}


def k_way(table: Table, sets: Sequence[pd.DataFrame], k: int) -> dict[str, Any]:
    """Return total variation distances of all margins of ``k`` columns, averaged over synthetic sets.

    Parameters
    ----------
    table : Table
        The confidential table.
    sets : sequence of DataFrame
        Synthetic sets of the same schema.
    k : int
        Columns of a margin, from 1 to all.

    Returns
    -------
    dict
        ``by_margin``: distance by tuple of column names, from 0 (equal) to 1 (disjoint, or a set without records): half
        the sum over cells of \\|share - share\\|. ``mean`` and ``max`` over the margins.

    Raises
    ------
    InputError
        If there is no set, or ``k`` is out of its range.
    """
    names, sizes = coded_columns(table.schema), sizes_of(table.schema)
    if not 1 <= k <= len(names):
        raise InputError(f"k must be from 1 to the number of columns with levels or bins, {len(names)}, not {k}")
    original, synthetic = table_codes(table), [codes_of(frame, table.schema) for frame in _some(sets)]
    found = {}
    for chosen in combinations(range(len(names)), k):
        columns, widths = list(chosen), [sizes[j] for j in chosen]
        apart = [_full_distance(original[:, columns], codes[:, columns], widths) / 2 for codes in synthetic]
        found[tuple(names[j] for j in chosen)] = float(np.mean(apart))
    return {"k": k, "mean": float(np.mean(list(found.values()))), "max": max(found.values()), "by_margin": found}


def _some(sets: Sequence[pd.DataFrame]) -> Sequence[pd.DataFrame]:
    if not len(sets):
        raise InputError("a measure of utility needs at least one synthetic set")
    return sets


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _full_distance(a: IntArray, b: IntArray, sizes: Sequence[int]) -> float:
    """Return the L1 distance of the full tables, laying out their cells only where they are few."""
    if not len(b):
        return 2.0
    cells = cell_ids(np.vstack([a, b]), sizes)
    if n_cells(sizes) > len(cells):
        _, cells = np.unique(cells, return_inverse=True)
    size = int(cells.max()) + 1
    return float(np.abs(_shares(cells[: len(a)], size) - _shares(cells[len(a) :], size)).sum())


def _shares(codes: IntArray, n_levels: int) -> FloatArray:
    return np.bincount(codes, minlength=n_levels) / len(codes)


def _one_way(schema: Schema, name: str, original: IntArray, synthetic: Sequence[IntArray]) -> dict[str, Any]:
    column = schema.columns[name]
    ours = _shares(original, column.n_levels)
    theirs = [_shares(codes, column.n_levels) for codes in synthetic]
    return {
        "column": name,
        "label": column.label or name,
        "unit": column.unit,
        "levels": column.names(),
        "table": ours.tolist(),
        "synthetic": np.mean(theirs, axis=0).tolist() if theirs else [],
        "distance": _mean([float(np.abs(ours - share).sum() / 2) for share in theirs]),
    }


def _two_way(original: IntArray, synthetic: Sequence[IntArray], sizes: Sequence[int]) -> list[list[float]]:
    distance = np.zeros((len(sizes), len(sizes)))
    for i, j in combinations(range(len(sizes)), 2):
        n_cells = sizes[i] * sizes[j]
        ours = _shares(original[:, i] * sizes[j] + original[:, j], n_cells)
        apart = [np.abs(ours - _shares(codes[:, i] * sizes[j] + codes[:, j], n_cells)).sum() / 2 for codes in synthetic]
        distance[i, j] = distance[j, i] = np.mean(apart) if apart else np.nan
    return [[float(value) for value in row] for row in distance]
