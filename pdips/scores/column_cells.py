"""Cells of each column, whose records are counted before any score."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Column
from pdips.data.table import Table
from pdips.posterior.columns import Values, bounds_of, record_values
from pdips.posterior.model import Blueprint

# Cells of a numeric column that are equally wide, and equally likely by public facts
EVEN = 32
LIKELY = 32
# From this ratio of its bounds on, cells of a positive column are equally wide on the
# log scale
LOG_SPREAD = 100
SURE = 3  # Standard deviations of the noise from which on a count is hardly noise alone
# Cells of a column; of one with more levels or whole numbers neighbours are counted
# together
MOST_CELLS = 200
# Neighbouring edges are further apart, as a share of the distance of the bounds
CLOSEST = 1e-9
# Cells of a confidential covariate: its counts say what the rows of a pseudo table are
COARSE = 16
# Count of every cell where none stands out, so that shares can be worked out
NEXT_TO_NONE = 1e-9


@dataclass(frozen=True, eq=False)
class ColumnCells:
    """One histogram of each column that a model describes: the edges of its cells, from
    public facts alone.
    """

    columns: Mapping[str, Column]
    edges: Mapping[str, FloatArray]

    @classmethod
    def of(cls, space: Blueprint, likely: Mapping[str, NDArray[Any]]) -> "ColumnCells":
        """Return cells half of which are equally wide, and half equally likely for some
        public records; those of confidential covariates are fewer, and equally wide.
        """
        columns = space.columns
        edges = {
            name: cell_edges(columns[name], likely[name]) for name in space.synthesized
        }
        edges |= {name: even_edges(columns[name], COARSE) for name in space.covariates}
        return cls(columns, edges)

    @property
    def sizes(self) -> list[int]:
        """Number of cells of each column."""
        return [len(edges) - 1 for edges in self.edges.values()]

    def places(self, values: Values) -> list[IntArray]:
        """Return the cell of each record, by column, shape (records,)."""
        places = []
        for name, edges in self.edges.items():
            numbers = np.asarray(values[name], float)
            place = np.searchsorted(edges, numbers, side="right") - 1
            places.append(np.clip(place, 0, len(edges) - 2))
        return places

    def count(self, table: Table) -> IntArray:
        """Return the number of records in each cell of each column, shape (cells,)."""
        places = self.places(record_values(table, self.edges))
        by_column = zip(places, self.sizes, strict=True)
        return np.concatenate([table.count(place, size) for place, size in by_column])

    def indicators(self, values: Values) -> FloatArray:
        """Return which cells records are in, shape (records, cells)."""
        by_column = zip(self.places(values), self.sizes, strict=True)
        parts = [np.eye(size)[place] for place, size in by_column]
        return np.concatenate(parts, axis=1)

    def draw(
        self, counts: FloatArray, noise: float, n: int, rng: np.random.Generator
    ) -> dict[str, NDArray[Any]]:
        """Return values as noisy counts have them, each column by itself, leaving out
        what noise alone may make.
        """
        by_column = np.split(counts, np.cumsum(self.sizes)[:-1])
        values = {}
        for (name, edges), noisy in zip(self.edges.items(), by_column, strict=True):
            sure = np.where(noisy > SURE * noise, noisy, 0.0)
            if not sure.any():
                sure = np.maximum(noisy, 0.0) + NEXT_TO_NONE
            cell = rng.choice(len(sure), n, p=sure / sure.sum())
            column = self.columns[name]
            values[name] = inside_cells(column, edges[cell], edges[cell + 1], rng)
        return values


def inside_cells(
    column: Column, low: FloatArray, high: FloatArray, rng: np.random.Generator
) -> NDArray[Any]:
    """Return a value of a column between each pair of edges, all as likely."""
    share = rng.random(len(low))
    if column.is_categorical or column.integer:
        first = np.ceil(low)
        whole = first + np.floor((np.ceil(high) - first) * share)
        whole = np.clip(whole, *bounds_of(column))
        return np.asarray(whole, dtype=np.int64)
    return np.asarray(np.clip(low + (high - low) * share, *bounds_of(column)))


def _spread(lower: float, upper: float) -> Any:
    """Return what divides a range: on the log scale where it is wide there."""
    is_wide = lower > 0 and upper / lower >= LOG_SPREAD
    return np.geomspace if is_wide else np.linspace


def even_edges(column: Column, n: int) -> FloatArray:
    """Return the edges of a column's cells: those of its levels, or so many equally
    wide ones between its bounds.
    """
    lower, upper = bounds_of(column)
    if column.is_categorical or (column.integer and upper - lower < n):
        return np.arange(lower - 0.5, upper + 1)
    return np.asarray(_spread(lower, upper)(lower, upper, n + 1))


def cell_edges(column: Column, likely: NDArray[Any]) -> FloatArray:
    """Return the edges of a column's cells: those of its levels, or even ones and
    likely ones between its bounds.
    """
    lower, upper = bounds_of(column)
    is_whole = column.is_categorical or column.integer
    if is_whole:
        lower = lower - 0.5
        upper = upper + 0.5
        if upper - lower <= MOST_CELLS // 2:
            return np.arange(lower, upper + 1)
    even = _spread(lower, upper)(lower, upper, EVEN + 1)
    shares = np.arange(1, LIKELY) / LIKELY
    inner = np.quantile(np.clip(likely, lower, upper), shares)
    edges = np.unique(np.concatenate([even, inner]))
    if is_whole:
        edges = np.unique(np.clip(np.floor(edges) + 0.5, lower, upper))
    is_apart = np.diff(edges) > CLOSEST * (upper - lower)
    edges = edges[np.concatenate([[True], is_apart])]
    edges[0] = lower
    edges[-1] = upper
    return np.asarray(edges, dtype=np.float64)
