"""The censored posterior that a sampler draws from, and its exact draws: on a public
grid, or by rejection.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.table import Table
from pdips.errors import InputError, PlanError
from pdips.posterior.censoring import Censored, Clip, censor_records, clip_values
from pdips.posterior.columns import Values, distinct, record_values
from pdips.posterior.model import PUBLIC_SEED, Blueprint, join, split
from pdips.posterior.private_reference import IMPOSSIBLE, Anchor, Stage
from pdips.posterior.record_likelihood import Points, RecordLikelihood
from pdips.posterior.rejection import prior_of, reject
from pdips.privacy.noise import (
    RandomBits,
    choice_log_probabilities,
    exponential_mechanism,
)

Parameters = dict[str, NDArray[Any]]

# Whole steps from 0 to the edge of the window: a record's term is one of 2 STEPS + 1
# numbers
STEPS = 2**20
WEIGHT_DRAWS = 32
SMALLEST = 1e-300  # Of the largest terms that windows are divided by
WEIGHT_SPREAD = 3.0
NODES = {1: 4096, 2: 192, 3: 40}  # Most nodes along each axis, by number of parameters
# Distance of nodes at an anchor, in posterior deviations, by number of parameters
FINEST = {1: 0.02, 2: 0.3, 3: 0.4}
# How much further apart next nodes may be, as a share, where there are enough
GROWTH = {1: 0.01, 2: 0.05, 3: 0.1}
# Marks a cell that the prior excludes, which is public
NOWHERE = np.iinfo(np.int64).min
LOWEST = -1e6  # Log prior densities below this count as this
BLOCK = 1_000  # Draws made at a time for audits
MOST_STEPS = 2.0**60
"""Log prior densities this many steps from 0 and beyond count as there, so that sums of
steps are whole numbers of 64 bits however small the window is; all records together
move a score by less if there are fewer than 2^40.
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class Target:
    """The posterior from prior(theta) exp(sum_i s(alpha_i (log p(x_i | theta) - c_i))):
    no field depends on a record.

    s keeps terms in [-window, window]; c is the log of the mean density over the
    stage's centre (none: 0); alpha is min(1, window / max over public values of abs(log
    p - c)), or 1. Both depend on their record and on public values, as
    ``docs/proofs/censored-posterior.md`` asks for (Hu et al. 2022, equation 3.5, with a
    centre).
    """

    space: Blueprint
    stage: Stage
    window: Fraction  # half-width, in nats
    clip: Clip = "hard"
    weights: bool = False  # whether terms are weighed by public weights first

    @property
    def unit(self) -> Fraction:
        """Nats of one whole step of a score."""
        return self.window / STEPS

    @cached_property
    def around(self) -> list[FloatArray]:
        """Public parameter values over which the largest term of a record is sought;
        none without weights.
        """
        if not self.weights:
            return []
        rng = np.random.default_rng(PUBLIC_SEED)
        anchor = self.stage.anchor
        size = (WEIGHT_DRAWS, len(anchor.place))
        steps = rng.uniform(-WEIGHT_SPREAD, WEIGHT_SPREAD, size=size)
        return split(self.space.model, anchor.place + steps @ anchor.shape.T)

    def total(self, points: Points, values: Values, counts: IntArray) -> IntArray:
        """Return the sum of the terms of distinct records at some points, in whole
        steps of window / STEPS.

        Each row is rounded before it is added, and worked out from itself alone: its
        whole numbers are the same whatever other records there are, and their sum
        depends on no order.
        """
        total = np.zeros(len(points[0]), dtype=np.int64)
        for count, (_, term) in zip(counts, self._each(points, values), strict=True):
            inside = clip_values(term / float(self.window), self.clip)
            steps = np.floor(STEPS * inside + 0.5).astype(np.int64)
            total += steps if count == 1 else int(count) * steps
        return total

    def excess(self, points: Points, values: Values) -> FloatArray:
        """Return the mean over public records of what weighing and censoring take from
        their terms, shape (points,).
        """
        window = float(self.window)
        total = np.zeros(len(points[0]))
        rows, counts = distinct(values, None)
        for count, (whole, term) in zip(counts, self._each(points, rows), strict=True):
            lost = whole - window * clip_values(term / window, self.clip)
            if not np.isfinite(lost.sum()):
                lost = np.nan_to_num(lost, nan=0.0, posinf=0.0, neginf=IMPOSSIBLE)
            total += count * lost
        return total / counts.sum()

    def _each(
        self, points: Points, values: Values
    ) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Yield log p - c and alpha (log p - c) of each row, 0 everywhere if its centre
        isn't finite.
        """
        likelihood = self.space.likelihood
        centred = self.stage.centre
        n_points = len(points[0])
        n_centre = len(centred[0]) if centred else 0
        n_first = n_points + n_centre
        groups = [group for group in (points, centred, self.around) if group]
        likelihood.at([np.concatenate(parts) for parts in zip(*groups, strict=True)])
        with np.errstate(all="ignore"):
            for row in likelihood.rows(values):
                logs = likelihood(row)
                centre = 0.0
                if n_centre:
                    at_centre = logs[n_points:n_first]
                    centre = float(np.logaddexp.reduce(at_centre) - np.log(n_centre))
                if not np.isfinite(centre):
                    yield np.zeros(n_points), np.zeros(n_points)
                    continue
                alpha = 1.0
                if self.weights:
                    around = logs[n_first:]
                    largest = np.abs(around - centre).max(initial=0.0)
                    alpha = min(1.0, float(self.window) / max(largest, SMALLEST))
                whole = logs[:n_points] - centre
                yield whole, alpha * whole

    def centres_and_weights(self, rows: Values) -> tuple[FloatArray, FloatArray]:
        """Return c and alpha of each row, all rows at once; where c isn't finite the
        row is left out.
        """
        likelihood = self.space.likelihood
        n_rows = len(next(iter(rows.values())))
        centre = np.zeros(n_rows)
        largest = np.zeros(n_rows)
        if self.stage.centre:
            total = np.full(n_rows, -np.inf)
            for _, some in likelihood.blocks(rows, self.stage.centre):
                total = np.logaddexp(total, np.logaddexp.reduce(some, axis=0))
            centre = total - np.log(len(self.stage.centre[0]))
        window = float(self.window)
        with np.errstate(all="ignore"):
            if self.weights:
                for _, some in likelihood.blocks(rows, self.around):
                    terms = np.abs(some - centre)
                    largest = np.maximum(largest, terms.max(axis=0))
            weights = np.where(largest > window, window / largest, 1.0)
        return centre, np.where(np.isfinite(weights), weights, 0.0)

    def model_of(self, values: Values) -> Censored:
        """Return the model whose log density is this posterior's, over all records and
        what was simulated.
        """
        simulated = self.stage.simulated
        rows = dict(values)
        correction = None
        if simulated:
            n_records = len(next(iter(values.values())))
            n_simulated = len(next(iter(simulated.values())))
            rows = {
                name: np.concatenate([values[name], simulated[name]]) for name in values
            }
            share = self.stage.n_records / n_simulated
            correction = np.repeat([0.0, share], [n_records, n_simulated])
        censored = censor_records(
            self.space.model,
            tuple(rows),
            window=float(self.window),
            clip=self.clip,
            correction=correction,
            public_potentials=self.space.source.public_potentials,
        )
        centre, weights = self.centres_and_weights(rows)
        read = {name: rows[name] for name in self.space.likelihood.columns}
        return censored.update(values=read, centre=centre, weights=weights)


@dataclass(frozen=True, eq=False)
class Grid:
    """A finite public set of cells in a model's unconstrained space, about an
    anchor.
    """

    likelihood: RecordLikelihood
    anchor: Anchor

    @cached_property
    def n_nodes(self) -> int:
        """Nodes along each axis."""
        n = len(self.anchor.place)
        if self.anchor.even:
            return NODES[n]
        half = np.arcsinh(GROWTH[n] * self.anchor.reach / FINEST[n]) / GROWTH[n]
        return min(NODES[n], 2 * int(np.ceil(half)) + 1)

    @cached_property
    def finest(self) -> float:
        """Distance of neighbouring nodes at the anchor, in standard deviations."""
        even = 2 * self.anchor.reach / (self.n_nodes - 1)
        return even if self.anchor.even else min(even, FINEST[len(self.anchor.place)])

    @cached_property
    def growth(self) -> float:
        """By how much nodes move apart, relative to their distance from the anchor."""
        half = (self.n_nodes - 1) / 2
        wanted = self.anchor.reach / self.finest
        low = 1e-9
        high = 100.0
        for _ in range(100):
            middle = (low * high) ** 0.5
            if np.sinh(min(middle * half, 700)) / middle > wanted:
                high = middle
            else:
                low = middle
        return low

    def indices(self) -> IntArray:
        """Return the index of each cell along each axis, shape (cells, parameters)."""
        along = np.arange(self.n_nodes)
        axes = np.meshgrid(*[along] * len(self.anchor.place), indexing="ij")
        return np.stack([axis.ravel() for axis in axes], axis=1)

    def at(self, index: FloatArray | IntArray) -> FloatArray:
        """Return the unconstrained parameters at some indices from 0 to ``n_nodes -
        1``, shape (cells, parameters).
        """
        offset = np.asarray(index, dtype=np.float64) - (self.n_nodes - 1) / 2
        steps = self.finest * np.sinh(self.growth * offset) / self.growth
        return self.anchor.place + steps @ self.anchor.shape.T

    def log_weights(self, index: IntArray) -> FloatArray:
        """Return the log prior density at cells plus the log of their volumes, up to a
        constant, shape (cells,).
        """
        offset = index - (self.n_nodes - 1) / 2
        log_widths = np.log(np.cosh(self.growth * offset)).sum(axis=1)
        points = split(self.likelihood.model, self.at(index))
        return np.asarray(self.likelihood.log_prior(points) + log_widths)

    def inside(self, index: IntArray, rng: np.random.Generator) -> FloatArray:
        """Return a point in each of some cells, even along its axes, shape (cells,
        parameters).
        """
        return self.at(index + rng.uniform(-0.5, 0.5, size=index.shape))

    def outermost(self, index: IntArray) -> BoolArray:
        """Whether cells lie at the edge of the grid, shape (cells,)."""
        is_end = (index == 0) | (index == self.n_nodes - 1)
        return np.asarray(is_end.any(axis=1))


@dataclass(frozen=True, eq=False)
class Scored:
    """The cells of a public grid with their scores: log prior, correction and records'
    terms, in whole steps.
    """

    grid: Grid
    index: IntArray  # shape (cells, parameters)
    scores: IntArray  # shape (cells,)
    unit: Fraction  # nats a step

    def log_probabilities(self) -> FloatArray:
        return np.asarray(choice_log_probabilities(self.scores[None], self.unit)[0])


def score_grid(target: Target, values: Values, counts: IntArray) -> Scored:
    """Score a public grid by distinct records and how often each occurs."""
    grid = Grid(target.space.likelihood, target.stage.anchor)
    stage = target.stage
    index = grid.indices()
    points = split(target.space.model, grid.at(index))
    base = grid.log_weights(index)
    if stage.simulated:
        base = base + stage.n_records * target.excess(points, stage.simulated)
    fine = np.isfinite(base)
    above = np.where(fine, np.maximum(base, LOWEST), 0.0)
    steps = np.rint(above / float(target.unit))
    steps = np.clip(steps, -MOST_STEPS, MOST_STEPS).astype(np.int64)
    scores = steps + target.total(points, values, counts)
    return Scored(grid, index, np.where(fine, scores, NOWHERE), target.unit)


class GridDraws:
    """Draws from a censored posterior on its grid: a distribution over public cells,
    which the table weighs.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._scored: Scored | None = None
        self.records: tuple[Values, IntArray] = ({}, np.zeros(0, dtype=np.int64))
        self.diagnostics: dict[str, Any] = {"sampler": "grid"}

    def __call__(self, table: Table) -> Self:
        """Score the cells by the records of a table."""
        if self._scored is None:
            values = self.target.space.beside(record_values(table))
            self.records = distinct(values, table.counts)
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
        scored = self.scored
        cells = []
        for start in range(0, runs, BLOCK):
            shape = (min(BLOCK, runs - start), len(scored.scores))
            scores = np.broadcast_to(scored.scores, shape)
            cells.append(exponential_mechanism(scores, scored.unit, bits))
        return np.concatenate(cells)[:, None]

    def log_probabilities(self) -> dict[tuple[int, ...], float]:
        """Return the log probability of each cell that the prior allows."""
        return {
            (cell,): float(p)
            for cell, p in enumerate(self.scored.log_probabilities())
            if np.isfinite(p)
        }

    def parameters(
        self, answers: Sequence[IntArray], rng: np.random.Generator
    ) -> list[dict[str, FloatArray]]:
        """Return the free variables at a point in each drawn cell that depends on no
        record.
        """
        grid = Grid(self.target.space.likelihood, self.target.stage.anchor)
        index = grid.indices()[np.concatenate(answers)]
        return self.target.space.values_of(grid.inside(index, rng))


class JointDraws(ABC):
    """Draws from a posterior that are made together when the first is asked for, and
    handed out one by one.
    """

    diagnostics: dict[str, Any]

    def __init__(self, target: Target, n: int) -> None:
        self.target = target
        self._n = n
        self._left = list[Parameters]()

    def __call__(self, table: Table) -> Self:
        """Take a table, which a curator holds."""
        self.table = table
        return self

    def draw(self, bits: RandomBits, runs: int = 1) -> list[Parameters]:
        """Return so many draws: values of the free variables, in the model's own
        units.
        """
        if not self._left:
            self._left = self.drawn(max(self._n, runs), bits)
        taken = self._left[:runs]
        self._left = self._left[runs:]
        return taken

    def log_probabilities(self) -> dict[tuple[int, ...], float]:
        raise InputError("only draws on a grid have a law that could be spelt out")

    def parameters(
        self, answers: Sequence[Parameters], rng: np.random.Generator
    ) -> list[Parameters]:
        """Return what was drawn, as it was."""
        return list(answers)

    @abstractmethod
    def drawn(self, n: int, bits: RandomBits) -> list[Parameters]:
        """Draw n times, given ``table``."""


class RejectionDraws(JointDraws):
    """Draws from a censored posterior by rejection from the prior."""

    diagnostics: ClassVar[dict[str, Any]] = {"sampler": "rejection"}  # type: ignore[misc]

    def drawn(self, n: int, bits: RandomBits) -> list[Parameters]:
        target = self.target
        columns = target.space.beside(record_values(self.table))
        values, counts = distinct(columns, self.table.counts)
        prior = prior_of(target.space.model)
        points = reject(
            lambda proposed: target.total(proposed, values, counts),
            prior,
            n_draws=n,
            bound=int(counts.sum()) * STEPS,
            unit=target.unit,
            bits=bits,
        )
        return target.space.values_of(join(points))
