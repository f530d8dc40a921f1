"""The censored posterior that a sampler draws from, and its exact draws: on a public grid, or by rejection."""

import ctypes
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pymc.distributions.shape_utils import change_dist_size
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.traversal import ancestors, graph_inputs, toposort
from pytensor.tensor.random.type import RandomGeneratorType

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.table import Table
from pdips.errors import InputError, PlanError
from pdips.posterior.censoring import Censored, Clip, censor_records, clip_values
from pdips.posterior.columns import Values, distinct, record_values
from pdips.posterior.model import PUBLIC_SEED, Blueprint, join, split, transformed
from pdips.posterior.private_reference import IMPOSSIBLE, Anchor, Stage
from pdips.posterior.record_likelihood import Points, RecordLikelihood, inputs_of
from pdips.privacy.noise import RandomBits, choice_log_probabilities, decay_coins, exponential_mechanism

Parameters = dict[str, NDArray[Any]]

STEPS = 2**20  # Whole steps from 0 to the edge of the window: a record's term is one of 2 STEPS + 1 numbers
WEIGHT_DRAWS = 32
WEIGHT_SPREAD = 3.0
NODES = {1: 4096, 2: 192, 3: 40}  # Most nodes along each axis, by number of parameters
FINEST = {1: 0.02, 2: 0.3, 3: 0.4}  # Distance of nodes at an anchor, in posterior deviations, by number of parameters
GROWTH = {1: 0.01, 2: 0.05, 3: 0.1}  # How much further apart next nodes may be, as a share, where there are enough
NOWHERE = np.iinfo(np.int64).min  # Marks a cell that the prior excludes, which is public
LOWEST = -1e6  # Log prior densities below this count as this
BLOCK = 1_000  # Draws made at a time for audits
MOST_STEPS = 2.0**60
"""Log prior densities this many steps from 0 and beyond count as there, so that sums of steps are whole numbers of 64
bits however small the window is; all records together move a score by less if there are fewer than 2^40."""

BATCH = 1024
LARGEST_SCORE = 2**60


@dataclass(frozen=True, eq=False, kw_only=True)
class Target:
    """The posterior from prior(theta) exp(sum_i s(alpha_i (log p(x_i | theta) - c_i))): no field depends on a record.

    s keeps terms in [-window, window]; c is the log of the mean density over the stage's centre (none: 0); alpha is
    min(1, window / max over public values of abs(log p - c)), or 1. Both depend on their record and on public values,
    as ``docs/proofs/censored-posterior.md`` asks for (Hu et al. 2022, equation 3.5, with a centre).
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
        """Public parameter values over which the largest term of a record is sought; none without weights."""
        if not self.weights:
            return []
        rng, anchor = np.random.default_rng(PUBLIC_SEED), self.stage.anchor
        steps = rng.uniform(-WEIGHT_SPREAD, WEIGHT_SPREAD, size=(WEIGHT_DRAWS, len(anchor.place)))
        return split(self.space.model, anchor.place + steps @ anchor.shape.T)

    def total(self, points: Points, values: Values, counts: IntArray) -> IntArray:
        """Return the sum of the terms of distinct records at some points, in whole steps of window / STEPS.

        Each row is rounded before it is added, and worked out from itself alone: its whole numbers are the same
        whatever other records there are, and their sum depends on no order.
        """
        found = np.zeros(len(points[0]), dtype=np.int64)
        for count, (_, term) in zip(counts, self._each(points, values), strict=True):
            steps = np.floor(STEPS * clip_values(term / float(self.window), self.clip) + 0.5).astype(np.int64)
            found += steps if count == 1 else int(count) * steps
        return found

    def excess(self, points: Points, values: Values) -> FloatArray:
        """Return the mean over public records of what weighing and censoring take from their terms, shape (points,)."""
        window, found = float(self.window), np.zeros(len(points[0]))
        rows, counts = distinct(values, None)
        for count, (whole, term) in zip(counts, self._each(points, rows), strict=True):
            lost = whole - window * clip_values(term / window, self.clip)
            usual = np.isfinite(lost.sum())
            found += count * (lost if usual else np.nan_to_num(lost, nan=0.0, posinf=0.0, neginf=IMPOSSIBLE))
        return found / counts.sum()

    def _each(self, points: Points, values: Values) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Yield log p - c and alpha (log p - c) of each row, 0 everywhere if its centre isn't finite."""
        likelihood, centred = self.space.likelihood, self.stage.centre
        n_points, n_centre = len(points[0]), len(centred[0]) if centred else 0
        groups = [group for group in (points, centred, self.around) if group]
        likelihood.at([np.concatenate(parts) for parts in zip(*groups, strict=True)])
        with np.errstate(all="ignore"):
            for row in likelihood.rows(values):
                found = likelihood(row)
                logs = found[n_points : n_points + n_centre]
                centre = float(np.logaddexp.reduce(logs) - np.log(n_centre)) if n_centre else 0.0
                if not np.isfinite(centre):
                    yield np.zeros(n_points), np.zeros(n_points)
                    continue
                whole = found - centre
                largest = max(np.abs(whole[n_points + n_centre :]).max(initial=0.0), 1e-300)
                alpha = min(1.0, float(self.window) / largest) if self.weights else 1.0
                yield whole[:n_points], alpha * whole[:n_points]

    def centres_and_weights(self, rows: Values) -> tuple[FloatArray, FloatArray]:
        """Return c and alpha of each row, all rows at once; where c isn't finite the row is left out."""
        likelihood, n_rows = self.space.likelihood, len(next(iter(rows.values())))
        centre, largest = np.zeros(n_rows), np.zeros(n_rows)
        if self.stage.centre:
            total = np.full(n_rows, -np.inf)
            for _, some in likelihood.blocks(rows, self.stage.centre):
                total = np.logaddexp(total, np.logaddexp.reduce(some, axis=0))
            centre = total - np.log(len(self.stage.centre[0]))
        with np.errstate(all="ignore"):
            for _, some in likelihood.blocks(rows, self.around) if self.weights else ():
                largest = np.maximum(largest, np.abs(some - centre).max(axis=0))
            weights = np.where(largest > float(self.window), float(self.window) / largest, 1.0)
        return centre, np.where(np.isfinite(weights), weights, 0.0)

    def model_of(self, values: Values) -> Censored:
        """Return the model whose log density is this posterior's, over all records and what was simulated."""
        simulated = self.stage.simulated
        rows, correction = dict(values), None
        if simulated:
            n_records, n_simulated = (len(next(iter(each.values()))) for each in (values, simulated))
            rows = {name: np.concatenate([values[name], simulated[name]]) for name in values}
            correction = np.repeat([0.0, self.stage.n_records / n_simulated], [n_records, n_simulated])
        settings: dict[str, Any] = {"window": float(self.window), "clip": self.clip, "correction": correction}
        public = self.space.source.public_potentials
        made = censor_records(self.space.model, tuple(rows), public_potentials=public, **settings)
        centre, weights = self.centres_and_weights(rows)
        read = {name: rows[name] for name in self.space.likelihood.columns}
        return made.update(values=read, centre=centre, weights=weights)


@dataclass(frozen=True, eq=False)
class Grid:
    """A finite public set of cells in a model's unconstrained space, about an anchor."""

    likelihood: RecordLikelihood
    anchor: Anchor

    @cached_property
    def n_nodes(self) -> int:
        """Nodes along each axis."""
        n = len(self.anchor.place)
        half = np.arcsinh(GROWTH[n] * self.anchor.reach / FINEST[n]) / GROWTH[n]
        return NODES[n] if self.anchor.even else min(NODES[n], 2 * int(np.ceil(half)) + 1)

    @cached_property
    def finest(self) -> float:
        """Distance of neighbouring nodes at the anchor, in standard deviations."""
        even = 2 * self.anchor.reach / (self.n_nodes - 1)
        return even if self.anchor.even else min(even, FINEST[len(self.anchor.place)])

    @cached_property
    def growth(self) -> float:
        """By how much nodes move apart, relative to their distance from the anchor."""
        half, wanted = (self.n_nodes - 1) / 2, self.anchor.reach / self.finest
        low, high = 1e-9, 100.0
        for _ in range(100):
            middle = (low * high) ** 0.5
            low, high = (low, middle) if np.sinh(min(middle * half, 700)) / middle > wanted else (middle, high)
        return low

    def indices(self) -> IntArray:
        """Return the index of each cell along each axis, shape (cells, parameters)."""
        axes = np.meshgrid(*[np.arange(self.n_nodes)] * len(self.anchor.place), indexing="ij")
        return np.stack([axis.ravel() for axis in axes], axis=1)

    def at(self, index: FloatArray | IntArray) -> FloatArray:
        """Return the unconstrained parameters at some indices from 0 to ``n_nodes - 1``, shape (cells, parameters)."""
        offset = np.asarray(index, dtype=np.float64) - (self.n_nodes - 1) / 2
        steps = self.finest * np.sinh(self.growth * offset) / self.growth
        return np.asarray(self.anchor.place + steps @ self.anchor.shape.T)

    def log_weights(self, index: IntArray) -> FloatArray:
        """Return the log prior density at cells plus the log of their volumes, up to a constant, shape (cells,)."""
        widths = np.log(np.cosh(self.growth * (index - (self.n_nodes - 1) / 2))).sum(axis=1)
        return np.asarray(self.likelihood.log_prior(split(self.likelihood.model, self.at(index))) + widths)

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

    def log_probabilities(self) -> FloatArray:
        return np.asarray(choice_log_probabilities(self.scores[None], self.unit)[0])


def score_grid(target: Target, values: Values, counts: IntArray) -> Scored:
    """Score a public grid by distinct records and how often each occurs."""
    grid, stage = Grid(target.space.likelihood, target.stage.anchor), target.stage
    index = grid.indices()
    points, base = split(target.space.model, grid.at(index)), grid.log_weights(index)
    if stage.simulated:
        base = base + stage.n_records * target.excess(points, stage.simulated)
    fine = np.isfinite(base)
    steps = np.rint(np.where(fine, np.maximum(base, LOWEST), 0.0) / float(target.unit))
    steps = np.clip(steps, -MOST_STEPS, MOST_STEPS).astype(np.int64)
    return Scored(grid, index, np.where(fine, steps + target.total(points, values, counts), NOWHERE), target.unit)


class GridDraws:
    """Draws from a censored posterior on its grid: a distribution over public cells, which the table weighs."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._scored: Scored | None = None
        self.records: tuple[Values, IntArray] = ({}, np.zeros(0, dtype=np.int64))
        self.diagnostics: dict[str, Any] = {"sampler": "grid"}

    def __call__(self, table: Table) -> Self:
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
        found = self.scored
        blocks = [min(BLOCK, runs - start) for start in range(0, runs, BLOCK)]
        rows = (np.broadcast_to(found.scores, (block, len(found.scores))) for block in blocks)
        return np.concatenate([exponential_mechanism(each, found.unit, bits) for each in rows])[:, None]

    def log_probabilities(self) -> dict[tuple[int, ...], float]:
        """Return the log probability of each cell that the prior allows."""
        return {(cell,): float(p) for cell, p in enumerate(self.scored.log_probabilities()) if np.isfinite(p)}

    def parameters(self, answers: Sequence[IntArray], rng: np.random.Generator) -> list[dict[str, FloatArray]]:
        """Return the free variables at a point in each drawn cell that depends on no record."""
        grid = Grid(self.target.space.likelihood, self.target.stage.anchor)
        return self.target.space.values_of(grid.inside(grid.indices()[np.concatenate(answers)], rng))


class JointDraws(ABC):
    """Draws from a posterior that are made together when the first is asked for, and handed out one by one."""

    diagnostics: dict[str, Any]

    def __init__(self, target: Target, n: int) -> None:
        self.target, self._n, self._left = target, n, list[Parameters]()

    def __call__(self, table: Table) -> Self:
        """Take a table, which a curator holds."""
        self.table = table
        return self

    def draw(self, bits: RandomBits, runs: int = 1) -> list[Parameters]:
        """Return so many draws: values of the free variables, in the model's own units."""
        if not self._left:
            self._left = self.drawn(max(self._n, runs), bits)
        taken, self._left = self._left[:runs], self._left[runs:]
        return taken

    def log_probabilities(self) -> dict[tuple[int, ...], float]:
        raise InputError("only draws on a grid have a law that could be spelt out")

    def parameters(self, answers: Sequence[Parameters], rng: np.random.Generator) -> list[Parameters]:
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
        values, counts = distinct(record_values(self.table), self.table.counts)
        prior, bound = prior_of(target.space.model), int(counts.sum()) * STEPS
        found = reject(
            lambda p: target.total(p, values, counts), prior, n_draws=n, bound=bound, unit=target.unit, bits=bits
        )
        return target.space.values_of(join(found))


def reject(
    score: Callable[[Any], IntArray],
    prior: Callable[[int, np.random.Generator], list[NDArray[Any]]],
    *,
    n_draws: int,
    bound: int,
    unit: Fraction,
    bits: RandomBits,
    batch: int = BATCH,
) -> list[NDArray[Any]]:
    """Draw from prior(theta) exp(unit * score(theta)), exactly: an array (n_draws, *shape) for each value variable.

    ``prior(m, generator)`` gives m independent draws, ``score`` the sum of all records' whole steps for each, at most
    ``bound`` with certainty. Under replace-one a draw is (4 w)-differentially private, pure
    (``docs/proofs/exact-samplers.md``, theorem 2). No cap and no time-out, for failing would be an output.
    """
    if n_draws < 1 or batch < 1 or unit <= 0 or abs(bound) > LARGEST_SCORE:
        raise InputError("draws, batch and the unit of the score must be above 0, and its bound within 2^60 steps of 0")
    source = WordSource(bits)
    generator = np.random.Generator(WordGenerator(source))  # type: ignore[arg-type]
    kept: list[list[NDArray[Any]]] = []
    missing = n_draws
    while missing:
        points = prior(batch, generator)
        source.check()
        scores = score(points)
        if scores.shape != (batch,) or scores.dtype != np.int64:
            raise InputError("the score must give one int64 a point")
        if (scores > bound).any() or (scores < -LARGEST_SCORE).any():
            raise InputError("the score leaves its public bounds; a record's steps must lie in [-K, K]")
        accepted = np.flatnonzero(decay_coins(bound - scores, unit, bits))[:missing]
        if len(accepted):
            kept.append([values[accepted] for values in points])
            missing -= len(accepted)
    return [np.concatenate(parts) for parts in zip(*kept, strict=True)]


def prior_of(model: pm.Model) -> Callable[[int, np.random.Generator], list[NDArray[Any]]]:
    """Return a function that draws a model's parameters from their prior, m at once, as ``model.value_vars`` have them.

    Each row is computed by itself from random words of its own, and no row from records, which is what rejection needs
    (``docs/proofs/exact-samplers.md``, lemma 1). That law is the prior as doubles have it, not to the last bit.
    """
    if model.potentials:
        raise InputError(
            f"the model has a Potential, {model.potentials[0].name!r}, so its prior can't be drawn forwards, as "
            "rejection does; write it as a distribution, or take sampler = grid or nuts"
        )
    behind = set(ancestors(model.free_RVs))
    for name, shared in inputs_of(model).items():
        if shared in behind:
            raise InputError(f"the prior reads column {name!r}; a prior must be public: don't use data in it")
    function = _compiled_prior(model)

    def draw(m: int, generator: np.random.Generator) -> list[NDArray[Any]]:
        try:
            drawn = function(m, generator)
        except NotImplementedError:
            raise InputError("a prior of the model can't be drawn from; give every parameter a proper prior") from None
        for value, found in zip(model.value_vars, drawn, strict=True):
            if found.ndim != value.ndim + 1 or len(found) != m:
                raise InputError(f"the prior of {value.name!r} can't be drawn row by row; take another sampler")
        return drawn

    return draw


def _compiled_prior(model: pm.Model) -> Callable[[int, np.random.Generator], list[NDArray[Any]]]:
    """Compile the draws: all rows at once, or one after the other where a distribution knows no rows."""
    free = [model.values_to_rvs[value] for value in model.value_vars]
    single = [transformed(model, variable, variable, variable.owner.inputs) for variable in free]
    n_draws = pytensor.tensor.lscalar("n_draws")
    order = {node: place for place, node in enumerate(toposort(model.free_RVs))}
    batched: dict[Any, Any] = {}
    try:
        for variable in sorted(model.free_RVs, key=lambda variable: order[variable.owner]):
            if set(batched) & set(ancestors([variable])):  # row by row given its parents
                batched[variable] = vectorize_graph(variable, batched)
            else:
                batched[variable] = change_dist_size(variable, (n_draws,), expand=True)
        graphs, generators = _own_generators(list(vectorize_graph(single, batched)))
    except NotImplementedError:
        graphs, generators = _own_generators(single)
        one = pytensor.function(generators, graphs, mode="FAST_COMPILE")
        return lambda m, generator: [
            np.stack(rows) for rows in zip(*(one(*[generator] * len(generators)) for _ in range(m)), strict=True)
        ]
    function = pytensor.function([n_draws, *generators], graphs, mode="FAST_COMPILE", on_unused_input="ignore")
    return lambda m, generator: list(function(m, *[generator] * len(generators)))


def _own_generators(graphs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Make each random variable's generator an input of its own; two with one input would be one draw."""
    roots = [each for each in graph_inputs(graphs) if isinstance(each.type, RandomGeneratorType)]
    inputs = [each.type() for each in roots]
    return list(clone_replace(graphs, dict(zip(roots, inputs, strict=True)), rebuild_strict=False)), inputs


# Proposals that are turned down stay secret. Were they made by numpy's own generators, which are no ciphers, one
# published proposal of several doubles could give away the seed, and with it the others
# (docs/proofs/exact-samplers.md, remark 6). So each word of this generator is a fresh one.

WORDS = 1024  # Words that are taken from the source at a time

_Word = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)
_HalfWord = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p)
_Double = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)


class _Interface(ctypes.Structure):
    """What numpy calls ``bitgen_t`` (numpy/random/bitgen.h)."""

    _fields_ = (
        ("state", ctypes.c_void_p),
        ("next_uint64", _Word),
        ("next_uint32", _HalfWord),
        ("next_double", _Double),
        ("next_raw", _Word),
    )


class WordSource:
    """Words of :class:`~pdips.privacy.noise.RandomBits`, one after the other, each handed out once."""

    def __init__(self, bits: RandomBits) -> None:
        self.failure: BaseException | None = None  # while numpy was asking; numpy can't be told, so ``check`` must be
        self._bits = bits
        self._left: list[int] = []
        self._stopgap = 0

    def __deepcopy__(self, memo: Any) -> "WordSource":
        return self

    def word(self) -> int:
        try:
            if not self._left:
                self._left = self._bits.words(WORDS, np.uint64).tolist()
            return self._left.pop()
        except BaseException as failure:  # noqa: BLE001 - C can't pass it on; ``check`` raises it again
            self.failure = failure
            self._stopgap = (self._stopgap + 0x9E3779B97F4A7C15) % 2**64  # lets numpy end; nothing of it is used
            return self._stopgap

    def check(self) -> None:
        """Raise what went wrong since the generator was made, an interrupt from the keyboard included."""
        if self.failure is not None:
            raise self.failure


class WordGenerator:
    """A numpy bit generator without a state: copies draw from the same source, so no word is used twice."""

    def __init__(self, source: WordSource) -> None:
        self._seed_seq = source  # PyTensor copies a generator by ``type(old)(deepcopy(old._seed_seq))`` and its state
        self.state: dict[str, Any] = {"bit_generator": type(self).__name__}
        self.lock = threading.RLock()
        self._interface = _Interface(
            None,
            _Word(lambda _: source.word()),
            _HalfWord(lambda _: source.word() >> 32),
            _Double(lambda _: (source.word() >> 11) * 2.0**-53),
            _Word(lambda _: source.word()),
        )
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self.capsule = make(ctypes.addressof(self._interface), b"BitGenerator", None)
