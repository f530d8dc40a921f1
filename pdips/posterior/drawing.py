"""Parameters drawn exactly from a censored posterior: on a public grid, by rejection, or with an artificial atom."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.posterior.anchors import PUBLIC_SEED
from pdips.posterior.atoms import draw_with_atom, stopping_for
from pdips.posterior.columns import Values
from pdips.posterior.density import Points
from pdips.posterior.grid import Grid, join, split
from pdips.posterior.prior import prior_of
from pdips.posterior.rejection import reject
from pdips.posterior.scores import STEPS, Clip, Terms
from pdips.posterior.stages import Stage
from pdips.posterior.workspace import Workspace
from pdips.privacy.noise import RandomBits, choice_log_probabilities, exponential_mechanism

NOWHERE = np.iinfo(np.int64).min
"""Marks a cell that the prior excludes, which is public."""

LOWEST = -1e6
"""Log prior densities below this count as this."""

BLOCK = 1_000
"""Draws made at a time for audits."""

MOST_STEPS = 2.0**60
"""Log prior densities this many steps from 0 and beyond count as there, so that sums of steps are whole numbers of 64
bits however small the window is; all records together move a score by less if there are fewer than 2^40."""

WEIGHT_DRAWS = 32
WEIGHT_SPREAD = 3.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Censoring:
    """How records enter the posterior: public settings.

    Parameters
    ----------
    window : Fraction
        Half-width of the window of one draw, in nats.
    clip : {"hard", "tanh", "algebraic"}
        How terms are kept inside.
    weights : bool
        Whether terms are weighed by public weights first.
    """

    window: Fraction
    clip: Clip = "hard"
    weights: bool = False

    @property
    def unit(self) -> Fraction:
        """Nats of one whole step."""
        return self.window / STEPS

    def terms(self, space: Workspace, stage: Stage, points: Points) -> Terms:
        """Return what records add to the log density at some points."""
        return Terms(
            density=space.density,
            points=points,
            window=self.window,
            clip=self.clip,
            centre=stage.centre,
            weights=around(space, stage) if self.weights else (),
        )


def around(space: Workspace, stage: Stage) -> list[FloatArray]:
    """Return public parameter values over which the largest term of a record is sought."""
    rng = np.random.default_rng(PUBLIC_SEED)
    steps = rng.uniform(-WEIGHT_SPREAD, WEIGHT_SPREAD, size=(WEIGHT_DRAWS, len(stage.anchor.place)))
    return split(space.model, stage.anchor.place + steps @ stage.anchor.shape.T)


@dataclass(frozen=True, eq=False)
class Scored:
    """The cells of a public grid with their scores.

    Parameters
    ----------
    grid : Grid
        The grid.
    index : ndarray of int64, shape (cells, parameters)
        The cells.
    scores : ndarray of int64, shape (cells,)
        Log prior, correction and records' terms, in whole steps of ``unit``.
    unit : Fraction
        Nats a step.
    """

    grid: Grid
    index: IntArray
    scores: IntArray
    unit: Fraction

    def draw(self, n: int, bits: RandomBits) -> FloatArray:
        """Return n independent draws, shape (n, parameters), in unconstrained space."""
        chosen = [int(exponential_mechanism(self.scores[None], self.unit, bits)[0]) for _ in range(n)]
        return np.asarray(self.grid.inside(self.index[chosen], bits.generator()))

    def observe(self, n: int, bits: RandomBits) -> IntArray:
        """Return the cells of n independent draws, shape (n, 1)."""
        blocks = [min(BLOCK, n - start) for start in range(0, n, BLOCK)]
        rows = (np.broadcast_to(self.scores, (block, len(self.scores))) for block in blocks)
        return np.concatenate([exponential_mechanism(each, self.unit, bits) for each in rows])[:, None]

    def log_probabilities(self) -> FloatArray:
        """Return the log probability of each cell."""
        return np.asarray(choice_log_probabilities(self.scores[None], self.unit)[0])


def score_grid(space: Workspace, stage: Stage, censoring: Censoring, values: Values, counts: IntArray) -> Scored:
    """Score a public grid by the records.

    Parameters
    ----------
    space : Workspace
        The model.
    stage : Stage
        Where the grid lies, and what terms are centred on.
    censoring : Censoring
        How records enter.
    values : mapping of str to ndarray, shape (rows,)
        Distinct records.
    counts : ndarray of int64, shape (rows,)
        How often each occurs.
    """
    grid = Grid(space.density, stage.anchor)
    index = grid.indices()
    terms = censoring.terms(space, stage, split(space.model, grid.at(index)))
    base = grid.log_weights(index)
    if stage.simulated:
        base = base + stage.n_records * terms.excess(stage.simulated)
    fine = np.isfinite(base)
    steps = np.rint(np.where(fine, np.maximum(base, LOWEST), 0.0) / float(censoring.unit))
    steps = np.clip(steps, -MOST_STEPS, MOST_STEPS).astype(np.int64)
    scores = np.where(fine, steps + terms.total(values, counts), NOWHERE)
    return Scored(grid, index, scores, censoring.unit)


def from_prior(
    space: Workspace,
    stage: Stage,
    censoring: Censoring,
    values: Values,
    counts: IntArray,
    *,
    n: int,
    atom: Fraction | None,
    bits: RandomBits,
) -> FloatArray:
    """Return n independent draws, shape (n, parameters), by rejection from the prior, or with an atom.

    Parameters
    ----------
    space, stage, censoring, values, counts
        See :func:`score_grid`.
    n : int
        Number of draws.
    atom : Fraction, optional
        The largest probability with which a draw from the prior is given instead (``atoms.py``); None: by rejection.
    bits : RandomBits
        Source of uniform bits.
    """
    n_records = int(counts.sum())
    bound, prior = n_records * STEPS, prior_of(space.model)

    def score(points: Points) -> IntArray:
        return censoring.terms(space, stage, points).total(values, counts)

    if atom is None:
        return join(reject(score, prior, n_draws=n, bound=bound, unit=censoring.unit, bits=bits))
    stopping = stopping_for(n_records, censoring.window, atom)
    drawn = [
        draw_with_atom(score, prior, bound=bound, unit=censoring.unit, stopping=stopping, bits=bits).points
        for _ in range(n)
    ]
    return np.concatenate([join(points) for points in drawn])
