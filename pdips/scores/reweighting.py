"""The likelihood of noisy sums by records that were simulated elsewhere, and are
weighted.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from scipy.linalg import eigh
from scipy.special import logsumexp

from pdips.arrays import FloatArray
from pdips.posterior.columns import Values
from pdips.posterior.model import Blueprint, split
from pdips.scores.simulator import Records, Simulator
from pdips.scores.sums import Linearised, Noises

# Simulated records that are reweighted, over all anchors; and so many more for each
# parameter
RECORDS = 6_000
MORE_RECORDS = 100
# Logarithm of the largest weight of a simulated record; squares of such weights are
# still numbers
MOST_WEIGHT = 100.0
MOST_WEIGHTS = 500_000  # Of records that are worked out at once


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
