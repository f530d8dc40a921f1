"""One-way and two-way margins and the full table, synthetic against confidential. For inside use only."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.large import LargeSet
from pdips.schema import Schema
from pdips.table import Table, tally

IntArray = NDArray[np.int64]
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
        ``l1``: sum over all cells of |share - share| (0 equal, 2 disjoint), by set, its mean, and ``reference``, what a
        sample of the same size drawn with replacement from the table itself scores. ``one_way``: shares of each level
        in the table and averaged over sets, and their total variation distance. ``two_way``: total variation distance
        of every pair of columns, averaged over sets, and the reference's.
    """
    rng = np.random.default_rng() if rng is None else rng
    schema = table.schema
    names = list(table.codes)
    sizes = [schema.columns[name].n_levels for name in names]
    original = _Rows(np.column_stack([table.codes[name] for name in names]), table.counts)
    synthetic = [_rows(made, schema, names) for made in sets if len(made)]
    resample = _resample(original, rng)
    by_set = [_full_distance(original, rows, sizes) for rows in synthetic]
    return {
        "l1": {"by_set": by_set, "mean": _mean(by_set), "reference": _full_distance(original, resample, sizes)},
        "one_way": [
            _one_way(schema, name, original.column(j), [rows.column(j) for rows in synthetic])
            for j, name in enumerate(names)
        ],
        "two_way": {
            "columns": names,
            "distance": _two_way(original, synthetic, sizes),
            "reference": _two_way(original, [resample], sizes),
        },
    }


@dataclass(frozen=True)
class _Rows:
    """Codes of rows, each of which stands for ``counts`` records, or for one."""

    codes: IntArray
    counts: IntArray | None = None

    def column(self, j: int) -> "_Rows":
        return _Rows(self.codes[:, j], self.counts)

    def shares(self, place: IntArray, n_places: int) -> FloatArray:
        """Return the share of the records in each place, given the place of each row."""
        n_records = len(self.codes) if self.counts is None else self.counts.sum()
        return tally(place, self.counts, n_places) / n_records


def _rows(made: pd.DataFrame | LargeSet, schema: Schema, names: Sequence[str]) -> _Rows:
    if isinstance(made, LargeSet):
        return _Rows(np.column_stack([made.codes[name] for name in names]).astype(np.int64), made.counts)
    codes = Table(made, schema.without_person()).codes
    return _Rows(np.column_stack([codes[name] for name in names]))


def _resample(rows: _Rows, rng: np.random.Generator) -> _Rows:
    """Return a sample of as many records, drawn with replacement."""
    if rows.counts is None:
        return _Rows(rows.codes[rng.integers(len(rows.codes), size=len(rows.codes))])
    n_records = rows.counts.sum()
    return _Rows(rows.codes, rng.multinomial(n_records, rows.counts / n_records))


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _full_distance(a: _Rows, b: _Rows, sizes: Sequence[int]) -> float:
    """Return the L1 distance of the full tables without laying out their cells."""
    cells = np.ravel_multi_index(tuple(np.vstack([a.codes, b.codes]).T), sizes)
    _, cell = np.unique(cells, return_inverse=True)
    n_cells, n_a = int(cell.max()) + 1, len(a.codes)
    return float(np.abs(a.shares(cell[:n_a], n_cells) - b.shares(cell[n_a:], n_cells)).sum())


def _one_way(schema: Schema, name: str, original: _Rows, synthetic: Sequence[_Rows]) -> dict[str, Any]:
    column = schema.columns[name]
    ours = original.shares(original.codes, column.n_levels)
    theirs = [rows.shares(rows.codes, column.n_levels) for rows in synthetic]
    return {
        "column": name,
        "label": column.label or name,
        "unit": column.unit,
        "levels": column.names(),
        "table": ours.tolist(),
        "synthetic": np.mean(theirs, axis=0).tolist() if theirs else [],
        "distance": _mean([float(np.abs(ours - share).sum() / 2) for share in theirs]),
    }


def _two_way(original: _Rows, synthetic: Sequence[_Rows], sizes: Sequence[int]) -> list[list[float]]:
    distance = np.zeros((len(sizes), len(sizes)))
    for i, j in combinations(range(len(sizes)), 2):

        def shares(rows: _Rows, i: int = i, j: int = j) -> FloatArray:
            return rows.shares(rows.codes[:, i] * sizes[j] + rows.codes[:, j], sizes[i] * sizes[j])

        ours = shares(original)
        apart = [np.abs(ours - shares(rows)).sum() / 2 for rows in synthetic]
        distance[i, j] = distance[j, i] = np.mean(apart) if apart else np.nan
    return [[float(value) for value in row] for row in distance]
