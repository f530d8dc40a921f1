"""One-way and two-way margins and the full table, synthetic against confidential. For inside use only."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import pi, sqrt
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.coding import numbers
from pdips.data.schema import Column, Schema
from pdips.data.table import Table, tally
from pdips.errors import InputError
from pdips.evaluation.codes import Rows, cell_ids, coded_columns, n_cells, sizes_of, subsets, weights_of
from pdips.release.large_set import LargeSet


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
        in the table and averaged over sets, their total variation distance, and ``reference``, what a resample as large
        as a set has on average. ``two_way``: total variation distance of every pair of columns, averaged over sets, and
        the reference's. ``numeric``: see :func:`moments`.
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
        "numeric": moments(table, sets),
    }


def moments(table: Table, sets: Sequence[pd.DataFrame | LargeSet]) -> list[dict[str, Any]]:
    """Compare means and standard deviations of numeric columns that aren't public, with or without bins.

    Where the table or a set is held as counts of distinct records, all values are taken at the middle of their bins.

    Parameters
    ----------
    table : Table
        The confidential table.
    sets : sequence of DataFrame or LargeSet
        Synthetic sets of the same schema.

    Returns
    -------
    list of dict
        By ``column``: ``mean`` and ``sd`` of the known values of the table; ``synthetic_mean`` and ``synthetic_sd``,
        averaged over sets with known values, or None; ``shift``, the mean over sets of the absolute difference of
        means, in standard deviations of the table (of an even spread between the bounds where that is 0);
        ``ratio``, the mean standard deviation of the sets over that of the table; and the standard errors of both for a
        resample of the table as large as a set. A column without known values is left out.
    """
    some = [made for made in sets if len(made)]
    schema, held, columns = table.schema, [table.frame], table.schema.columns
    held += [made for made in some if isinstance(made, pd.DataFrame)]
    binned = table.counts is not None or len(held) <= len(some)
    rows = [Rows.of_table(table), *(Rows.of_set(made, schema) for made in some)] if binned else []
    found = []
    for name, column in columns.items():
        if column.is_categorical or column.public or (binned and not column.is_binned):
            continue
        place = coded_columns(schema).index(name) if binned else 0
        each = (
            [_in_bins(one.codes[:, place], one.counts, column) for one in rows]
            if binned
            else [_known(numbers(name, frame[name], column)) for frame in held]
        )
        if len(each[0][0]):
            width = float(column.upper or 0) - float(column.lower or 0)
            found.append({"column": name, **_moments(each[0], [one for one in each[1:] if len(one[0])], width)})
    return found


Weighed = tuple[FloatArray, FloatArray]
"""Values of a column, and how many records have each."""


def _known(values: FloatArray) -> Weighed:
    known = values[~np.isnan(values)]
    return known, np.ones(len(known))


def _in_bins(codes: IntArray, counts: IntArray | None, column: Column) -> Weighed:
    weights = tally(codes, counts, column.n_levels)[: column.n_values].astype(np.float64)
    return ((column.edges[:-1] + column.edges[1:]) / 2)[weights > 0], weights[weights > 0]


def _moments(ours: Weighed, theirs: Sequence[Weighed], width: float) -> dict[str, float | None]:
    mean, sd = _mean_sd(ours)
    made = [_mean_sd(each) for each in theirs]
    unit, n = sd or width / sqrt(12) or 1.0, min([ours[1].sum(), *(each[1].sum() for each in theirs)])
    kurtosis = float(np.average(((ours[0] - mean) / sd) ** 4, weights=ours[1])) if sd else 1.0
    synthetic_sd = _mean([each[1] for each in made])
    return {
        "mean": mean,
        "sd": sd,
        "synthetic_mean": _mean([each[0] for each in made]),
        "synthetic_sd": synthetic_sd,
        "shift": _mean([abs(each[0] - mean) / unit for each in made]),
        "shift_error": sqrt(1 / n),
        "ratio": synthetic_sd / sd if sd and synthetic_sd is not None else None,
        "ratio_error": sqrt(max(kurtosis - 1, 0.0) / (4 * n)),
    }


def _mean_sd(weighed: Weighed) -> tuple[float, float]:
    values, weights = weighed
    mean = float(np.average(values, weights=weights))
    return mean, sqrt(float(np.average((values - mean) ** 2, weights=weights)))


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
    size = min(rows.n_records for rows in (original, *synthetic))
    return {
        "column": name,
        "label": column.label or name,
        "unit": column.unit,
        "levels": column.names(),
        "table": ours.tolist(),
        "synthetic": np.mean(theirs, axis=0).tolist() if theirs else [],
        "distance": _mean([float(np.abs(ours - share).sum() / 2) for share in theirs]),
        # Half the sum over levels of the mean absolute value of a normal whose variance is that of a resampled share.
        "reference": min(float(np.sqrt(ours * (1 - ours) / size).sum()) / sqrt(2 * pi), 1.0),
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
