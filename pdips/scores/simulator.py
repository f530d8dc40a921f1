"""Records that a model draws at public parameters."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymc.pytensorf import compile as compile_graph
from pymc.pytensorf import reseed_rngs
from pytensor.graph.replace import clone_replace

from pdips.arrays import FloatArray
from pdips.data.schema import Column
from pdips.posterior.columns import Values, bounds_of, stand_ins
from pdips.posterior.interpreted import LIGHT
from pdips.posterior.model import PUBLIC_SEED, Blueprint, split
from pdips.posterior.record_likelihood import inputs_of

AT_ONCE = 10_000  # Records drawn in one pass
# Passes of one simulator, before those of another seed would come again
MOST_PASSES = 1_000

Records = dict[str, NDArray[Any]]


class Simulator:
    """Draws records from a model at any parameters, a fixed number at a time, beside
    public columns if there are any.

    Compiled once. The same pass gives the same draws at the same parameters. In a pass
    every row of public columns that takes part is there ``replicates`` times, one block
    of rows after the other; so many passes as ``cycle`` says go through all rows, each
    taking rows from all over their order. ``seed`` follows from what is published.
    """

    def __init__(
        self, space: Blueprint, public: Values, least: int = AT_ONCE, *, seed: int = 0
    ) -> None:
        self.space = space
        self.public = public
        self.seed = seed
        self.n_public = len(next(iter(public.values()))) if public else 0
        self.cycle = max(-(-self.n_public // max(least // 4, 1)), 1)
        self.rows = -(-self.n_public // self.cycle) or least
        self.replicates = -(-least // self.rows) if public else 1
        self.n = self.rows * self.replicates
        values = stand_ins(space.schema, self.n, known=self._beside(0))
        self._model = model = space.build(values)
        parameters = model.replace_rvs_by_values(model.free_RVs)
        given = dict(zip(model.free_RVs, parameters, strict=True))
        graphs = clone_replace(list(model.observed_RVs), given, rebuild_strict=False)
        self._function, updates = compile_graph(
            model.value_vars,
            graphs,
            return_updates=True,
            on_unused_input="ignore",
            mode=LIGHT,
            random_seed=False,
        )
        self._rngs = list(updates)

    def _beside(self, number: int) -> Records:
        """Return the public columns of a pass."""
        rows = np.arange(self.rows) * self.cycle + number % self.cycle
        rows %= max(self.n_public, 1)
        return {
            name: np.tile(np.asarray(values)[rows], self.replicates)
            for name, values in self.public.items()
        }

    def __call__(self, place: FloatArray, number: int = 0) -> tuple[Records, Records]:
        """Return records as the model draws them, and as a table has them: whole codes,
        inside of the bounds.
        """
        public = self._beside(number)
        if self.rows < self.n_public:
            for name, held in inputs_of(self._model, public).items():
                held.set_value(public[name].astype(held.dtype))
        reseed_rngs(self._rngs, PUBLIC_SEED + MOST_PASSES * self.seed + number)
        point = split(self.space.model, np.asarray(place)[None])
        with np.errstate(all="ignore"):
            drawn = self._function(*(part[0] for part in point))
        whole = [
            np.broadcast_to(values, (self.n, *np.shape(values)[1:])) for values in drawn
        ]
        records: Records = public | self.space.by_column(whole)
        columns = self.space.columns
        inside = {
            name: _as_in_table(records[name], columns[name])
            for name in self.space.synthesized
        }
        return records, records | inside


def _as_in_table(drawn: NDArray[Any], column: Column) -> NDArray[Any]:
    """Return drawn values inside of a column's bounds, whole where it has levels."""
    values = np.asarray(drawn, dtype=np.float64)
    lower, upper = bounds_of(column)
    values = np.clip(np.where(np.isnan(values), lower, values), lower, upper)
    if column.is_categorical or column.integer:
        return np.rint(values).astype(np.int64)
    return values
