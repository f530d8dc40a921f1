"""One-way and two-way margins and the full table, synthetic against confidential. For inside use only."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.schema import Schema
from pdips.table import Table

IntArray = NDArray[np.int64]
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
    rng = np.random.default_rng() if rng is None else rng
    schema = table.schema
    names = list(table.codes)
    sizes = [schema.columns[name].n_levels for name in names]
    original = np.column_stack([table.codes[name] for name in names])
    synthetic = [_codes(frame, schema, names) for frame in sets if len(frame)]
    resample = original[rng.integers(len(original), size=len(original))]
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


def _codes(frame: pd.DataFrame, schema: Schema, names: Sequence[str]) -> IntArray:
    codes = Table(frame, schema.without_person()).codes
    return np.column_stack([codes[name] for name in names])


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _full_distance(a: IntArray, b: IntArray, sizes: Sequence[int]) -> float:
    """Return the L1 distance of the full tables without laying out their cells."""
    cells = np.ravel_multi_index(tuple(np.vstack([a, b]).T), sizes)
    _, cell = np.unique(cells, return_inverse=True)
    n_cells = int(cell.max()) + 1
    return float(np.abs(_shares(cell[: len(a)], n_cells) - _shares(cell[len(a) :], n_cells)).sum())


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
