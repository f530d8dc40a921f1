"""Where the search for parameters begins: at those that noisy counts of cells make most
probable.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytensor
from threadpoolctl import threadpool_limits

from pdips.arrays import FloatArray
from pdips.posterior.columns import Values, public_stand_ins
from pdips.posterior.model import ONE_AT_A_TIME, PRIOR_DRAWS, Blueprint, initial
from pdips.release.public_draws import REFERENCE_FAR
from pdips.scores.column_cells import ColumnCells
from pdips.scores.noisy_likelihood import NoisySums
from pdips.scores.posterior import attempt, climb
from pdips.scores.record_score import RecordScore
from pdips.scores.simulator import Simulator
from pdips.scores.sums import Linearised, NormalPrior

# Prior draws to search from, and made-up records that counts of cells stand for there
STARTS = 6
CLIMBED = 4_096
# Log density by which ends of searches differ, and how many are searched from again
APART = 1.0
SEARCHED = 3
# Public records that stand for a table's where there is none yet
TRIED = 512
# Parameters up to which matrices are too small for several threads: these would spin
MOST_ON_ONE_CORE = 50
# Every so many of the prior's draws are tried where searches end nowhere
SPARSE = PRIOR_DRAWS // 100


@contextmanager
def one_at_a_time(space: Blueprint) -> Iterator[None]:
    """Keep other threads from what is compiled of a model, and small matrices on one
    core; where each operation of a graph was written is not noted, which takes time.
    """
    with ONE_AT_A_TIME, pytensor.config.change_flags(traceback__limit=0):
        if space.n_parameters > MOST_ON_ONE_CORE:
            yield
            return
        with threadpool_limits(1, "blas"):
            yield


@dataclass(frozen=True, eq=False)
class Kit:
    """What is compiled of a model for scores, made once for each blueprint."""

    score: RecordScore
    prior: NormalPrior
    cells: ColumnCells


def kit_of(space: Blueprint) -> Kit:
    """Return what is compiled of a model for scores."""

    def made() -> Kit:
        cells = ColumnCells.of(space, likely(space))
        return Kit(RecordScore(space.likelihood), NormalPrior.of(space.prior), cells)

    return space.tried.once("scores kit", made)


def likely(space: Blueprint) -> dict[str, Any]:
    """Return records drawn at parameters from the prior, a few at each, as a table
    would have them.
    """
    simulator = Simulator(space, public_stand_ins(space.schema, TRIED), TRIED)
    parts = []
    for place in space.prior[::SPARSE]:
        try:
            parts.append(simulator(place)[1])
        except ValueError:  # parameters at which nothing can be drawn
            continue
    if not parts:
        parts = [dict(simulator(np.median(space.prior, axis=0))[1])]
    return {
        name: np.concatenate([part[name] for part in parts])
        for name in space.synthesized
    }


def searched(sums: NoisySums, cells: ColumnCells) -> Linearised | None:
    """Return the counts near the parameters that fit them best, searched from several
    starts.

    Where none of the searches ends at parameters that records can be drawn at, others
    from the prior are taken; if there are none either, None.
    """
    space = sums.space
    starts = [
        initial(space.model),
        np.median(space.prior, axis=0),
        *space.prior[:STARTS],
    ]
    made_up = _made_up(sums, cells)
    climbed = [attempt(climb, sums, made_up, start) for start in starts]
    ends = _linearised(sums, [place for place in climbed if place is not None])
    by_height = [end for end in ends if np.isfinite(end[0])]
    by_height.sort(key=lambda end: end[0])
    if not by_height:
        others = _linearised(sums, [*starts, *space.prior[::SPARSE]])
        return next((near for _, near in others), None)
    if sums.simulator.n_public:
        # which records have which counts is not known: the counts alone are as probable
        # where the groups of a covariate have changed places, or a slope its sign
        return by_height[0][1]
    apart = [by_height[0]]
    apart += [end for last, end in pairwise(by_height) if end[0] - last[0] > APART]
    modes = [attempt(sums.mode, near.place) or near for _, near in apart[:SEARCHED]]
    return min(modes, key=sums.objective)


def searched_again(sums: NoisySums, here: Linearised) -> Linearised:
    """Return the sums near the most probable parameters after another round of scores.

    Beside public columns they are those of the last round alone where what was measured
    before contradicts it, and puts them far off: a search among all sums may end where
    groups of a covariate have changed places.
    """
    if not sums.simulator.n_public:
        return attempt(sums.mode, here.place) or here
    alone = attempt(lambda: sums.alone) or here
    together = attempt(lambda: sums.together)
    if together is None:
        return alone
    move = together.place - alone.place
    is_far = move @ alone.information @ move > REFERENCE_FAR**2
    return alone if is_far and sums.is_contradicted else together


def _linearised(
    sums: NoisySums, places: Iterable[FloatArray]
) -> Iterator[tuple[float, Linearised]]:
    """Yield the sums near each place that records can be drawn at, after minus their
    log posterior density.
    """

    def near(place: FloatArray) -> tuple[float, Linearised]:
        here = sums.linearised(place)
        return sums.objective(here), here

    for place in places:
        linearised = attempt(near, place)
        if linearised is not None:
            yield linearised


def _made_up(sums: NoisySums, cells: ColumnCells) -> Values:
    """Return records that the noisy counts stand for, beside rows of public columns."""
    rng = np.random.default_rng(0)
    [counted] = sums.measurements
    made_up = cells.draw(counted.noisy, counted.deviation, CLIMBED, rng)
    public = sums.simulator.public
    if not public:
        return made_up
    rows = rng.integers(len(next(iter(public.values()))), size=CLIMBED)
    return {name: values[rows] for name, values in public.items()} | made_up
