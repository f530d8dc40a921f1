"""Public records drawn from a model, and the cells in which a first stage counts records."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymc.pytensorf import compile as compile_graph
from pymc.pytensorf import reseed_rngs
from pytensor.graph.replace import clone_replace

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.posterior.columns import SUFFIX, Values, bounds_of, record_values, stand_ins
from pdips.posterior.model import PUBLIC_SEED, Blueprint, split

AT_ONCE = 10_000
"""Records drawn in one pass."""

MOST_PASSES = 1_000
"""Passes of one simulator, before those of another seed would come again."""

EVEN, LIKELY = 32, 32
"""Cells of a numeric column that are equally wide, and cells that are equally likely before a table is seen."""

Records = dict[str, NDArray[Any]]

LOG_SPREAD = 100
"""From this ratio of its bounds on, cells of a positive column are equally wide on the log scale."""

SURE = 3
"""Standard deviations of the noise from which on a count is hardly noise alone."""

MOST_CELLS = 200
"""Cells of a column; of one with more levels or whole numbers neighbours are counted together."""


class Simulator:
    """Draws records from a model at any parameters, a fixed number at a time, beside public columns if there are any.

    Compiled once. The same pass gives the same draws at the same parameters. In a pass every row of public columns that
    takes part is there ``replicates`` times, one block of rows after the other; so many passes as ``cycle`` says go
    through all rows, each taking rows from all over their order. ``seed`` follows from what is published.
    """

    def __init__(self, space: Blueprint, public: Values, least: int = AT_ONCE, *, seed: int = 0) -> None:
        self.space, self.public, self.seed = space, public, seed
        self.n_public = len(next(iter(public.values()))) if public else 0
        self.cycle = max(-(-self.n_public // max(least // 4, 1)), 1)
        self.rows = -(-self.n_public // self.cycle) or least
        self.replicates = -(-least // self.rows) if public else 1
        self.n = self.rows * self.replicates
        self._model = model = space.build(stand_ins(space.schema, self.n, known=self._beside(0)))
        given = dict(zip(model.free_RVs, model.replace_rvs_by_values(model.free_RVs), strict=True))
        graphs = clone_replace(list(model.observed_RVs), given, rebuild_strict=False)
        self._names = [space.observed[variable.name] for variable in model.observed_RVs]
        settings: dict[str, Any] = {"on_unused_input": "ignore", "mode": "FAST_COMPILE", "random_seed": False}
        self._function, updates = compile_graph(model.value_vars, graphs, return_updates=True, **settings)
        self._rngs = list(updates)

    def _beside(self, number: int) -> Records:
        """Return the public columns of a pass."""
        rows = (np.arange(self.rows) * self.cycle + number % self.cycle) % max(self.n_public, 1)
        return {name: np.tile(np.asarray(values)[rows], self.replicates) for name, values in self.public.items()}

    def __call__(self, place: FloatArray, number: int = 0) -> tuple[Records, Records]:
        """Return records as the model draws them, and as a table has them: whole codes, inside of the bounds."""
        public = self._beside(number)
        if self.rows < self.n_public:
            for name, values in public.items():
                if name + SUFFIX in self._model.named_vars:
                    held = self._model[name + SUFFIX]
                    held.set_value(values.astype(held.dtype))
        reseed_rngs(self._rngs, PUBLIC_SEED + MOST_PASSES * self.seed + number)
        with np.errstate(all="ignore"):
            drawn = self._function(*(part[0] for part in split(self.space.model, np.asarray(place)[None])))
        found: Records = dict(public)
        for names, values in zip(self._names, drawn, strict=True):
            whole = np.broadcast_to(values, (self.n, *np.shape(values)[1:]))
            found |= dict(zip(names, np.moveaxis(whole, -1, 0) if whole.ndim > 1 else [whole], strict=True))
        found |= {name: made.back(found[name]) for name, made in self.space.transformations.items()}
        inside = dict(found)
        for name in self.space.synthesized:
            column, values = self.space.schema.columns[name], np.asarray(found[name], dtype=np.float64)
            lower, upper = bounds_of(column)
            values = np.clip(np.where(np.isnan(values), lower, values), lower, upper)
            inside[name] = np.rint(values).astype(np.int64) if column.is_categorical or column.integer else values
        return found, inside


@dataclass(frozen=True, eq=False)
class ColumnCells:
    """One histogram of each column that a model describes: the edges of its cells, from public facts alone."""

    schema: Schema
    edges: Mapping[str, FloatArray]

    @classmethod
    def of(cls, space: Blueprint, likely: Mapping[str, NDArray[Any]]) -> "ColumnCells":
        """Return cells half of which are equally wide, and half equally likely for some public records."""
        found = {name: cell_edges(space.schema.columns[name], likely[name]) for name in space.synthesized}
        return cls(space.schema, found)

    @property
    def sizes(self) -> list[int]:
        """Number of cells of each column."""
        return [len(edges) - 1 for edges in self.edges.values()]

    def places(self, values: Values) -> list[IntArray]:
        """Return the cell of each record, by column, shape (records,)."""
        return [
            np.clip(np.searchsorted(edges, np.asarray(values[name], float), side="right") - 1, 0, len(edges) - 2)
            for name, edges in self.edges.items()
        ]

    def count(self, table: Table) -> IntArray:
        """Return the number of records in each cell of each column, shape (cells,)."""
        places = self.places(record_values(table, self.edges))
        return np.concatenate([table.count(place, size) for place, size in zip(places, self.sizes, strict=True)])

    def indicators(self, values: Values) -> FloatArray:
        """Return which cells records are in, shape (records, cells)."""
        parts = [np.eye(size)[place] for place, size in zip(self.places(values), self.sizes, strict=True)]
        return np.concatenate(parts, axis=1)

    def draw(self, counts: FloatArray, noise: float, n: int, rng: np.random.Generator) -> Records:
        """Return values as noisy counts have them, each column by itself, leaving out what noise alone may make."""
        found: Records = {}
        for (name, edges), noisy in zip(self.edges.items(), np.split(counts, np.cumsum(self.sizes)[:-1]), strict=True):
            sure = np.where(noisy > SURE * noise, noisy, 0.0)
            sure = sure if sure.any() else np.maximum(noisy, 0.0) + 1e-9
            place, column = rng.choice(len(sure), n, p=sure / sure.sum()), self.schema.columns[name]
            low, high = edges[place], edges[place + 1]
            values = low + (high - low) * rng.random(n)
            if column.is_categorical or column.integer:
                found[name] = np.clip(
                    np.ceil(low) + np.floor((np.ceil(high) - np.ceil(low)) * rng.random(n)), *bounds_of(column)
                ).astype(np.int64)
            else:
                found[name] = np.clip(values, *bounds_of(column))
        return found


def cell_edges(column: Column, likely: NDArray[Any]) -> FloatArray:
    """Return the edges of a column's cells: those of its levels, or even ones and likely ones between its bounds."""
    lower, upper = bounds_of(column)
    if column.is_categorical or column.integer:
        lower, upper = lower - 0.5, upper + 0.5
        if upper - lower <= MOST_CELLS // 2:
            return np.arange(lower, upper + 1)
    spread = np.geomspace if lower > 0 and upper / lower >= LOG_SPREAD else np.linspace
    inner = np.quantile(np.clip(likely, lower, upper), np.arange(1, LIKELY) / LIKELY)
    edges = np.unique(np.concatenate([spread(lower, upper, EVEN + 1), inner]))
    if column.integer or column.is_categorical:
        edges = np.unique(np.floor(edges) + 0.5)
        edges = np.unique(np.clip(edges, lower, upper))
    kept = np.concatenate([[True], np.diff(edges) > 1e-9 * (upper - lower)])
    edges = edges[kept]
    edges[0], edges[-1] = lower, upper
    return np.asarray(edges, dtype=np.float64)
