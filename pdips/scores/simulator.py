"""Records that a model draws at public parameters, and the likelihood of noisy sums by
them where they are weighted for other parameters.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pymc.pytensorf import compile as compile_graph
from pymc.pytensorf import reseed_rngs
from pytensor.graph.replace import clone_replace
from scipy.linalg import eigh
from scipy.special import logsumexp

from pdips.arrays import FloatArray
from pdips.data.schema import Column
from pdips.posterior.columns import Values, bounds_of, stand_ins
from pdips.posterior.interpreted import LIGHT
from pdips.posterior.model import PUBLIC_SEED, Blueprint, split
from pdips.posterior.record_likelihood import inputs_of
from pdips.scores.sums import Linearised, Noises

AT_ONCE = 10_000  # Records drawn in one pass
# Passes of one simulator, before those of another seed would come again
MOST_PASSES = 1_000

# Simulated records that are reweighted, over all anchors; and so many more for each
# parameter
RECORDS = 6_000
MORE_RECORDS = 100
# Logarithm of the largest weight of a simulated record; squares of such weights are
# still numbers
MOST_WEIGHT = 100.0
MOST_WEIGHTS = 500_000  # Of records that are worked out at once

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


class SimulatedSums(Protocol):
    """Sums whose law simulated records tell."""

    @property
    def space(self) -> Blueprint: ...
    @property
    def n_records(self) -> float: ...
    @property
    def simulator(self) -> Simulator: ...
    def functions(self, drawn: Values, inside: Values) -> FloatArray:
        """Return what is summed of public records, shape (records, sums)."""


class Reweighted:
    """The likelihood of noisy sums at any parameters near some: records simulated at
    several, reweighted to each.

    Expectations are those simulated at the mode plus a difference: the mean over
    records of what is summed times the change of their weight, p(x | theta) over the
    mean density at the anchors. Where few records carry the weight the covariance of
    the exact sums is multiplied by what that costs, so that far from the anchors little
    is said.
    """

    def __init__(
        self,
        sums: SimulatedSums,
        here: Linearised,
        anchors: FloatArray,
        noises: Noises,
    ) -> None:
        self._sums = sums
        self.n = sums.n_records
        self._drawn, inside, used = _anchored(sums, here, anchors)
        functions = sums.functions(self._drawn, inside)
        self._functions = functions - functions.mean(axis=0)
        logs = self._log_densities(used)
        logs = np.where(np.isfinite(logs), logs, -np.inf)
        self._mixture = logsumexp(logs, axis=0) - np.log(len(used))
        self._weights = self._weighed(logs[0].copy())
        self._residual = here.residual
        self._mixed = list[tuple[FloatArray, FloatArray, float]]()
        for noise, share in noises:
            values, basis = eigh(here.sampling, noise)
            log_share = share + float(np.linalg.slogdet(basis)[1])
            self._mixed.append((np.maximum(values, 0.0), basis, log_share))

    def _log_densities(self, places: FloatArray) -> FloatArray:
        """Return the log densities of the simulated records, shape (places,
        records).
        """
        space = self._sums.space
        points = split(space.model, places)
        blocks = space.likelihood.blocks(self._drawn, points, mode=None)
        return np.concatenate([logs for _, logs in blocks])

    def _weighed(self, logs: FloatArray) -> FloatArray:
        """Return the weights of records; one whose density is no number weighs nothing.
        ``logs`` are used up.
        """
        with np.errstate(all="ignore"):
            logs -= self._mixture
            np.exp(np.minimum(logs, MOST_WEIGHT, out=logs), out=logs)
            if not np.isfinite(logs.sum()):
                np.nan_to_num(logs, copy=False, nan=0.0)
        return logs

    def __call__(self, places: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return log-likelihoods up to a constant, and the factors by which covariances
        of the exact sums are wider.
        """
        likely = np.empty(len(places))
        wider = np.empty(len(places))
        at_once = max(MOST_WEIGHTS // len(self._mixture), 1)
        for first in range(0, len(places), at_once):
            some = slice(first, first + at_once)
            change = self._weighed(self._log_densities(places[some]))
            change -= self._weights
            n_drawn = change.shape[1]
            shift = change @ self._functions / n_drawn
            squares = np.einsum("ij,ij->i", change, change) / n_drawn
            cost = squares / n_drawn + change.mean(axis=1) ** 2
            wider[some] = 1 + self.n * cost
            apart = self._residual - self.n * shift
            likely[some] = self._log_density(apart, wider[some])
        return likely, wider

    def _log_density(self, apart: FloatArray, wider: FloatArray) -> FloatArray:
        """Return the log density of residuals, shape (places, sums), under the mixed
        normal noises.
        """
        parts = []
        for values, basis, share in self._mixed:
            variance = 1 + wider[:, None] * values
            terms = (apart @ basis) ** 2 / variance + np.log(variance)
            parts.append(share - terms.sum(axis=1) / 2)
        return np.asarray(logsumexp(parts, axis=0))


def _anchored(
    sums: SimulatedSums, here: Linearised, anchors: FloatArray
) -> tuple[Records, Records, FloatArray]:
    """Return records simulated at the mode and at anchors, as the model draws them and
    as a table has them, and the parameters where there are any.
    """
    n_records = RECORDS + MORE_RECORDS * len(here.place)
    n_each = -(-n_records // (len(anchors) + 1))
    public = sums.simulator.public
    simulator = Simulator(sums.space, public, n_each, seed=sums.simulator.seed)
    drawn = []
    inside = []
    used = []
    for number, anchor in enumerate([here.place, *anchors]):
        try:
            as_drawn, as_in_table = simulator(anchor, number)
        except ValueError:  # parameters at which nothing can be drawn
            continue
        drawn.append(as_drawn)
        inside.append(as_in_table)
        used.append(anchor)
    return _stacked(drawn), _stacked(inside), np.array(used)


def _stacked(parts: Sequence[Records]) -> Records:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
