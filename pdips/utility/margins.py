"""One-way and two-way margins and the full table, synthetic against confidential. For inside use only."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.errors import InputError
from pdips.large import LargeSet
from pdips.schema import Schema
from pdips.table import Table
from pdips.utility.codes import Rows, cell_ids, coded_columns, n_cells, sizes_of, subsets, weights_of

FloatArray = NDArray[np.float64]


def compare(
    table: Table, sets: Sequence[pd.DataFrame | LargeSet], rng: np.random.Generator | None = None
) -> dict[str, Any]:
    """Compare synthetic sets with the table they were made from.

    Parameters
    ----------
    table : Table
        The confidential table.
    sets : sequence of DataFrame or LargeSet
        Synthetic sets of the same schema.
    rng : numpy.random.Generator, optional
        For the resample that gives the reference values.

    Returns
    -------
    dict
        ``l1``: sum over all cells of abs(share - share), 0 equal, 2 disjoint, by set, its mean, and ``reference``,
        what a sample of the same size drawn with replacement from the table scores. ``one_way``: shares of each level
        in the table and averaged over sets, and their total variation distance. ``two_way``: total variation distance
        of every pair of columns, averaged over sets, and the reference's.
    """
    schema = table.schema
    names, sizes = coded_columns(schema), sizes_of(schema)
    original = Rows.of_table(table)
    synthetic = [Rows.of_set(made, schema) for made in sets if len(made)]
    resample = original.resampled(np.random.default_rng() if rng is None else rng)
    by_set = [_full_distance(original, rows, sizes) for rows in synthetic]
    return {
        "l1": {"by_set": by_set, "mean": _mean(by_set), "reference": _full_distance(original, resample, sizes)},
        "one_way": [_one_way(schema, j, original, synthetic) for j in range(len(names))],
        "two_way": {
            "columns": names,
            "distance": _two_way(original, synthetic, sizes),
            "reference": _two_way(original, [resample], sizes),
        },
    }


def l1(table: Table, sets: Sequence[pd.DataFrame | LargeSet]) -> dict[str, Any]:
    """Return the L1 distance of the full tables: sum over all cells of abs(share - share).

    Parameters
    ----------
    table : Table
        The confidential table.
    sets : sequence of DataFrame or LargeSet
        Synthetic sets of the same schema.

    Returns
    -------
    dict
        ``by_set``, from 0 (equal) to 2 (disjoint, or a set without records), and its ``mean``.
    """
    schema, original = table.schema, Rows.of_table(table)
    by_set = [_full_distance(original, Rows.of_set(made, schema), sizes_of(schema)) for made in _some(sets)]
    return {"by_set": by_set, "mean": _mean(by_set)}


def k_way(
    table: Table,
    sets: Sequence[pd.DataFrame | LargeSet],
    k: int,
    *,
    weighted: bool = False,
    n_draws: int | None = None,
    rng: np.random.Generator | None = None,
) -> dict[str, Any]:
    """Return total variation distances of all margins of ``k`` columns, averaged over synthetic sets.

    Parameters
    ----------
    table : Table
        The confidential table.
    sets : sequence of DataFrame or LargeSet
        Synthetic sets of the same schema.
    k : int
        Columns of a margin, from 1 to all.
    weighted : bool
        Whether shares are of the weights that the schema names, in the table and in the sets; not for large sets.
    n_draws : int, optional
        How many margins to draw at random, without repetition; default: all, which may be 100,000 at most.
    rng : numpy.random.Generator, optional
        Draws them.

    Returns
    -------
    dict
        ``by_margin``: distance by tuple of column names, from 0 (equal) to 1 (disjoint, or a set without records): half
        the sum over cells of abs(share - share). ``mean`` and ``max`` over the margins.

    Raises
    ------
    InputError
        If there is no set, ``k`` or ``n_draws`` is out of its range, there are too many margins, or no weights.
    """
    names, sizes = coded_columns(table.schema), sizes_of(table.schema)
    if k > len(names):
        raise InputError(f"needs {k} columns with levels or bins, and the schema has {len(names)}: k must be no more")
    if k < 1:
        raise InputError(f"k must be from 1 to the number of columns with levels or bins, {len(names)}, not {k}")
    original, synthetic = Rows.of_table(table), [Rows.of_set(made, table.schema) for made in _some(sets)]
    if weighted:
        original, *synthetic = [
            replace(rows, weights=_weights(source, table.schema))
            for rows, source in zip((original, *synthetic), (table.frame, *sets), strict=True)
        ]
    found = {}
    for chosen in subsets(len(names), k, n_draws, rng):
        columns, widths = list(chosen), [sizes[j] for j in chosen]
        apart = [_full_distance(original.of(columns), rows.of(columns), widths) / 2 for rows in synthetic]
        found[tuple(names[j] for j in chosen)] = float(np.mean(apart))
    return {"k": k, "mean": float(np.mean(list(found.values()))), "max": max(found.values()), "by_margin": found}


def _weights(source: pd.DataFrame | LargeSet, schema: Schema) -> FloatArray:
    if isinstance(source, LargeSet):
        raise InputError("weights are not supported for sets too large to hold")
    return weights_of(source, schema)


def _some(sets: Sequence[pd.DataFrame | LargeSet]) -> Sequence[pd.DataFrame | LargeSet]:
    if not len(sets):
        raise InputError("a measure of utility needs at least one synthetic set")
    return sets


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _full_distance(a: Rows, b: Rows, sizes: Sequence[int]) -> float:
    """Return the L1 distance of the full tables, laying out their cells only where they are few."""
    if not len(b.codes):
        return 2.0
    cells = cell_ids(np.vstack([a.codes, b.codes]), sizes)
    if n_cells(sizes) > len(cells):
        _, cells = np.unique(cells, return_inverse=True)
    size, n_first = int(cells.max()) + 1, len(a.codes)
    return float(np.abs(a.shares(cells[:n_first], size) - b.shares(cells[n_first:], size)).sum())


def _one_way(schema: Schema, j: int, original: Rows, synthetic: Sequence[Rows]) -> dict[str, Any]:
    name = coded_columns(schema)[j]
    column = schema.columns[name]
    ours, *theirs = [rows.shares(rows.codes[:, j], column.n_levels) for rows in (original, *synthetic)]
    return {
        "column": name,
        "label": column.label or name,
        "unit": column.unit,
        "levels": column.names(),
        "table": ours.tolist(),
        "synthetic": np.mean(theirs, axis=0).tolist() if theirs else [],
        "distance": _mean([float(np.abs(ours - share).sum() / 2) for share in theirs]),
    }


def _two_way(original: Rows, synthetic: Sequence[Rows], sizes: Sequence[int]) -> list[list[float]]:
    distance = np.zeros((len(sizes), len(sizes)))
    for i, j in combinations(range(len(sizes)), 2):
        ours, *theirs = [
            rows.shares(rows.codes[:, i] * sizes[j] + rows.codes[:, j], sizes[i] * sizes[j])
            for rows in (original, *synthetic)
        ]
        apart = [np.abs(ours - share).sum() / 2 for share in theirs]
        distance[i, j] = distance[j, i] = np.mean(apart) if apart else np.nan
    return [[float(value) for value in row] for row in distance]
