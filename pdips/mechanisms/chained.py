"""Lines drawn by Markov chains in place of public candidates: nearly, not exactly, and only if the chains agree."""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pdips.convergence import Convergence, converged, require
from pdips.mechanisms.choosing import Chooser
from pdips.mechanisms.gradients import Gradient
from pdips.mechanisms.hit_and_run import hit_and_run
from pdips.mechanisms.lines import Candidates, Fitter, Records

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

CHAINS, DRAWS, THIN, WARM_UP = 4, 500, 10, 2_000
ROUNDS = 3
"""Chains that disagree are run again, twice as long each time; only then is a release refused."""


@dataclass(frozen=True, kw_only=True)
class ChainFitter(Fitter):
    """Lines with slopes of their own by hit-and-run over a public box; lines without, as ever, exactly.

    Parameters
    ----------
    rng : numpy.random.Generator
        Randomness of the chains.
    found : list of Convergence
        What the chains of each line said about themselves is added to it.
    """

    rng: np.random.Generator
    found: list[Convergence] = field(default_factory=list)

    def search(self, records: Records, tau: Fraction, epsilon: Fraction, chooser: Chooser) -> FloatArray:
        """Draw a line from the whole box."""
        if not records.n_predictors:
            return super().search(records, tau, epsilon, chooser)
        return self.draw(records, tau, epsilon, None, None)

    def choose(
        self,
        records: Records,
        candidates: Candidates,
        tau: Fraction,
        epsilon: Fraction,
        chooser: Chooser,
        floor: FloatArray | None = None,
        ceiling: FloatArray | None = None,
        below: IntArray | None = None,
        entry: int | None = None,
    ) -> FloatArray:
        """Draw a line between two released ones; exactly, of the candidates, if all have the same slopes."""
        if len(candidates.slopes) == 1:
            return super().choose(records, candidates, tau, epsilon, chooser, floor, ceiling, below, entry)
        return self.draw(records, tau, epsilon, floor, ceiling)

    def draw(
        self,
        records: Records,
        tau: Fraction,
        epsilon: Fraction,
        floor: FloatArray | None,
        ceiling: FloatArray | None,
    ) -> FloatArray:
        """Draw a line by chains from public starts.

        Raises
        ------
        RefusedError
            If the chains disagree, in the last round too.
        """
        for longer in (2**i for i in range(ROUNDS)):
            chains = self.chains(records, tau, epsilon, floor, ceiling, longer)
            found = converged(xr.DataTree.from_dict({"posterior": xr.Dataset({"line": (_DIMS, chains)})}))
            if found.passed:
                break
        self.found.append(found)
        require(found)
        return np.asarray(chains[self.rng.integers(CHAINS), -1])

    def chains(
        self,
        records: Records,
        tau: Fraction,
        epsilon: Fraction,
        floor: FloatArray | None,
        ceiling: FloatArray | None,
        longer: int,
    ) -> FloatArray:
        """Return draws, shape (chains, draws, p + 1)."""
        flat = np.zeros(records.n_predictors)
        floors = np.array([[records.lower, *flat], *([] if floor is None else [floor])])
        ceilings = np.array([[records.upper, *flat], *([] if ceiling is None else [ceiling])])
        gradient = Gradient(tau, records.n_predictors, self.best_norm)
        x = np.hstack([np.ones((len(records.outcome), 1)), records.predictors])
        y, scale = records.outcome, gradient.nats(epsilon / self.cap, self.neighbours)
        if not len(y):  # an even density: that of any record at scale 0
            x, y, scale = np.eye(1, x.shape[1]), np.array([records.lower]), 0.0
        drawn = []
        for _ in range(CHAINS):
            # anywhere between the two innermost lines, which are public or released
            start = floors[-1] + self.rng.random() * (ceilings[-1] - floors[-1])
            drawn.append(
                hit_and_run(
                    x,
                    y,
                    float(tau),
                    scale,
                    norm=self.best_norm,
                    start=start,
                    lower=np.array([records.lower, *(flat - records.span)]),
                    upper=np.array([records.upper, *(flat + records.span)]),
                    floors=floors,
                    ceilings=ceilings,
                    n_moves=DRAWS * THIN * longer,
                    thin=THIN,
                    warm_up=WARM_UP * longer,
                    rng=self.rng,
                )
            )
        return np.stack(drawn)


_DIMS = ("chain", "draw", "coefficient")
