"""Exact draws from a censored posterior of few parameters, on a public grid."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.table import Table
from pdips.errors import PlanError
from pdips.posterior.columns import Values, distinct, record_values
from pdips.posterior.parameters import split
from pdips.posterior.private_reference import Anchor
from pdips.posterior.record_likelihood import RecordLikelihood
from pdips.posterior.target import Target
from pdips.privacy.noise import RandomBits, choice_log_probabilities, exponential_mechanism

NODES = {1: 4096, 2: 192, 3: 40}
"""Most nodes along each axis, by number of parameters."""

FINEST = {1: 0.02, 2: 0.3, 3: 0.4}
"""Distance of neighbouring nodes at an anchor, in standard deviations of a posterior there, by number of parameters."""

GROWTH = {1: 0.01, 2: 0.05, 3: 0.1}
"""How much further apart the next nodes may be, as a share, where there are nodes enough."""

NOWHERE = np.iinfo(np.int64).min
"""Marks a cell that the prior excludes, which is public."""

LOWEST = -1e6
"""Log prior densities below this count as this."""

BLOCK = 1_000
"""Draws made at a time for audits."""

MOST_STEPS = 2.0**60
"""Log prior densities this many steps from 0 and beyond count as there, so that sums of steps are whole numbers of 64
bits however small the window is; all records together move a score by less if there are fewer than 2^40."""


@dataclass(frozen=True, eq=False)
class Grid:
    """A finite public set of cells in a model's unconstrained space, about an anchor."""

    likelihood: RecordLikelihood
    anchor: Anchor

    @property
    def n_axes(self) -> int:
        """Number of parameters."""
        return len(self.anchor.place)

    @cached_property
    def n_nodes(self) -> int:
        """Nodes along each axis."""
        growth = GROWTH[self.n_axes]
        half = np.arcsinh(growth * self.anchor.reach / FINEST[self.n_axes]) / growth
        return NODES[self.n_axes] if self.anchor.even else min(NODES[self.n_axes], 2 * int(np.ceil(half)) + 1)

    @cached_property
    def finest(self) -> float:
        """Distance of neighbouring nodes at the anchor, in standard deviations."""
        even = 2 * self.anchor.reach / (self.n_nodes - 1)
        return even if self.anchor.even else min(even, FINEST[self.n_axes])

    @cached_property
    def growth(self) -> float:
        """By how much nodes move apart, relative to their distance from the anchor."""
        half, wanted = (self.n_nodes - 1) / 2, self.anchor.reach / self.finest
        low, high = 1e-9, 100.0
        for _ in range(100):
            middle = (low * high) ** 0.5
            low, high = (low, middle) if np.sinh(min(middle * half, 700)) / middle > wanted else (middle, high)
        return low

    def along(self, index: FloatArray) -> FloatArray:
        """Return the distance from the anchor, in standard deviations, at an index from 0 to ``n_nodes - 1``."""
        offset = index - (self.n_nodes - 1) / 2
        return np.asarray(self.finest * np.sinh(self.growth * offset) / self.growth)

    def indices(self) -> IntArray:
        """Return the index of each cell along each axis, shape (cells, parameters)."""
        axes = np.meshgrid(*[np.arange(self.n_nodes)] * self.n_axes, indexing="ij")
        return np.stack([axis.ravel() for axis in axes], axis=1)

    def at(self, index: FloatArray | IntArray) -> FloatArray:
        """Return the unconstrained parameters at some indices, shape (cells, parameters)."""
        steps = self.along(np.asarray(index, dtype=np.float64))
        return np.asarray(self.anchor.place + steps @ self.anchor.shape.T)

    def points(self, index: IntArray) -> list[FloatArray]:
        """Return the same as arrays of the model's value variables."""
        return split(self.likelihood.model, self.at(index))

    def log_weights(self, index: IntArray) -> FloatArray:
        """Return the log prior density at cells plus the log of their volumes, up to a constant, shape (cells,)."""
        widths = np.log(np.cosh(self.growth * (index - (self.n_nodes - 1) / 2))).sum(axis=1)
        return np.asarray(self.likelihood.log_prior(self.points(index)) + widths)

    def inside(self, index: IntArray, rng: np.random.Generator) -> FloatArray:
        """Return a point in each of some cells, even along its axes, shape (cells, parameters)."""
        return self.at(index + rng.uniform(-0.5, 0.5, size=index.shape))

    def outermost(self, index: IntArray) -> BoolArray:
        """Whether cells lie at the edge of the grid, shape (cells,)."""
        return np.asarray(((index == 0) | (index == self.n_nodes - 1)).any(axis=1))


@dataclass(frozen=True, eq=False)
class Scored:
    """The cells of a public grid with their scores: log prior, correction and records' terms, in whole steps."""

    grid: Grid
    index: IntArray  # shape (cells, parameters)
    scores: IntArray  # shape (cells,)
    unit: Fraction  # nats a step

    def observe(self, n: int, bits: RandomBits) -> IntArray:
        """Return the cells of n independent draws, shape (n, 1)."""
        blocks = [min(BLOCK, n - start) for start in range(0, n, BLOCK)]
        rows = (np.broadcast_to(self.scores, (block, len(self.scores))) for block in blocks)
        return np.concatenate([exponential_mechanism(each, self.unit, bits) for each in rows])[:, None]

    def log_probabilities(self) -> FloatArray:
        """Return the log probability of each cell."""
        return np.asarray(choice_log_probabilities(self.scores[None], self.unit)[0])


class GridDraws:
    """Draws from a censored posterior on its grid: a distribution over public cells, which the table weighs."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._grid = Grid(target.space.likelihood, target.stage.anchor)
        self._scored: Scored | None = None
        self.records: tuple[Values, IntArray] | None = None
        self.diagnostics: dict[str, Any] = {"sampler": "grid"}

    def __call__(self, table: Table) -> "GridDraws":
        """Score the cells by the records of a table."""
        if self._scored is None:
            self.records = distinct(record_values(table), table.counts)
            self._scored = score_grid(self.target, *self.records)
        return self

    @property
    def scored(self) -> Scored:
        """The cells with their scores, once there was a table."""
        if self._scored is None:
            raise PlanError("cells are scored by a table, which a curator holds")
        return self._scored

    def draw(self, bits: RandomBits, runs: int = 1) -> IntArray:
        """Return the cells of independent draws, shape (runs, 1)."""
        return self.scored.observe(runs, bits)

    def log_probabilities(self) -> dict[tuple[int, ...], float]:
        """Return the log probability of each cell that the prior allows."""
        found = self.scored.log_probabilities()
        return {(cell,): float(p) for cell, p in enumerate(found) if np.isfinite(p)}

    def parameters(self, answers: Sequence[IntArray], rng: np.random.Generator) -> list[dict[str, FloatArray]]:
        """Return the free variables at a point in each drawn cell that depends on no record."""
        cells = self._grid.indices()[np.concatenate(answers)]
        return self.target.space.values_of(self._grid.inside(cells, rng))


def score_grid(target: Target, values: Values, counts: IntArray) -> Scored:
    """Score a public grid by the records."""
    grid, stage = Grid(target.space.likelihood, target.stage.anchor), target.stage
    index = grid.indices()
    terms, base = target.terms(grid.points(index)), grid.log_weights(index)
    if stage.simulated:
        base = base + stage.n_records * terms.excess(stage.simulated)
    fine = np.isfinite(base)
    steps = np.rint(np.where(fine, np.maximum(base, LOWEST), 0.0) / float(target.unit))
    steps = np.clip(steps, -MOST_STEPS, MOST_STEPS).astype(np.int64)
    scores = np.where(fine, steps + terms.total(values, counts), NOWHERE)
    return Scored(grid, index, scores, target.unit)
