"""Certified rejection: exact draws from a censored posterior of any dimension, for few records and a small window."""

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pymc.distributions.shape_utils import change_dist_size
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.traversal import ancestors, graph_inputs, toposort
from pytensor.tensor.random.type import RandomGeneratorType

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.errors import InputError, RefusedError
from pdips.posterior.censoring import STEPS
from pdips.posterior.columns import Values, distinct, record_values
from pdips.posterior.model import Workspace
from pdips.posterior.parameters import join, transformed
from pdips.posterior.record_likelihood import inputs_of
from pdips.posterior.rehearsal import on_stand_ins
from pdips.posterior.target import JointDraws, Parameters, Target
from pdips.privacy.coins import decay_coins
from pdips.privacy.noise import RandomBits

Points = list[NDArray[Any]]
Prior = Callable[[int, np.random.Generator], Points]
"""``prior(m, generator)`` returns m independent draws, an array (m, *shape) for each of ``model.value_vars``."""

Score = Callable[[Points], IntArray]
"""``score(points)`` returns for each of the m points, shape (m,), the sum over all records of the record's whole steps.

A record's steps lie in [-K, K] and depend on nothing but that record, the point, and public settings.
"""

MOST_PROPOSALS = 10**7
BATCH = 1024
LARGEST_SCORE = 2**60


def draw_by_rejection(target: Target, values: Values, counts: IntArray, *, n: int, bits: RandomBits) -> FloatArray:
    """Return n independent draws from a censored posterior, shape (n, parameters); see :func:`reject`."""

    def score(points: Points) -> IntArray:
        return target.terms(points).total(values, counts)

    prior, bound = prior_of(target.space.model), int(counts.sum()) * STEPS
    return join(reject(score, prior, n_draws=n, bound=bound, unit=target.unit, bits=bits))


class RejectionDraws(JointDraws):
    """Draws from a censored posterior by rejection from the prior."""

    diagnostics: ClassVar[dict[str, Any]] = {"sampler": "rejection"}  # type: ignore[misc]

    def __init__(self, target: Target, n: int) -> None:
        super().__init__(n)
        self.target = target

    def drawn(self, n: int, bits: RandomBits) -> list[Parameters]:
        """Draw n times."""
        values, counts = distinct(record_values(self.table), self.table.counts)
        return self.target.space.values_of(draw_by_rejection(self.target, values, counts, n=n, bits=bits))


def check_prior(space: Workspace) -> None:
    """Refuse a model whose prior can't be drawn from, before anything is spent; see :func:`prior_of`."""
    with on_stand_ins("the prior"):
        space.tried.once("prior", lambda: prior_of(space.model)(2, np.random.default_rng(0)))


def expected_proposals(n: int, window: Fraction) -> float:
    """Return the most proposals that a draw takes on average, e^(2 n w), whatever the records are."""
    nats = 2 * n * window
    return math.exp(nats) if nats < 700 else math.inf


def check_proposals(n: int, window: Fraction, *, n_draws: int = 1, most: int = MOST_PROPOSALS) -> None:
    """Refuse, from public settings alone, what could take too long. To be called before anything is spent."""
    if n_draws * expected_proposals(n, window) > most:
        raise RefusedError(
            f"rejection may take e^{float(2 * n * window):.4g} proposals a draw, more than {most:,} in all; take the "
            "exact grid for up to three parameters, otherwise sampling='mcmc', or fewer records or a smaller epsilon"
        )


def reject(
    score: Score, prior: Prior, *, n_draws: int, bound: int, unit: Fraction, bits: RandomBits, batch: int = BATCH
) -> Points:
    """Draw from prior(theta) exp(unit * score(theta)), exactly."""
    _check(n_draws, bound, unit, batch)
    generator, source = generator_of(bits)
    kept: list[Points] = []
    missing = n_draws
    while missing:
        points = prior(batch, generator)
        source.check()
        accepted = np.flatnonzero(_accepted(score(points), batch, bound, unit, bits))[:missing]
        if len(accepted):
            kept.append([values[accepted] for values in points])
            missing -= len(accepted)
    return [np.concatenate(parts) for parts in zip(*kept, strict=True)]


def _check(n_draws: int, bound: int, unit: Fraction, batch: int) -> None:
    if n_draws < 1:
        raise InputError("draws must be at least 1")
    if unit <= 0:
        raise InputError("the unit of the score must be above 0")
    if batch < 1:
        raise InputError("batch must be at least 1")
    if abs(bound) > LARGEST_SCORE:
        raise InputError("the bound on the score must be within 2^60 steps of 0; take fewer steps")


def _accepted(scores: IntArray, batch: int, bound: int, unit: Fraction, bits: RandomBits) -> BoolArray:
    """Accept each proposal with probability exp(unit (score - bound)), exactly."""
    if scores.shape != (batch,) or scores.dtype != np.int64:
        raise InputError("the score must give one int64 a point")
    if (scores > bound).any() or (scores < -LARGEST_SCORE).any():
        raise InputError("the score leaves its public bounds; a record's steps must lie in [-K, K]")
    return decay_coins(bound - scores, unit, bits)


def prior_of(model: pm.Model) -> Prior:
    """Return a function that draws a model's parameters from their prior, many at once."""
    _check_forwards(model)
    function = _compiled(model)

    def draw(m: int, generator: np.random.Generator) -> Points:
        try:
            drawn = function(m, generator)
        except NotImplementedError:
            raise InputError("a prior of the model can't be drawn from; give every parameter a proper prior") from None
        for value, found in zip(model.value_vars, drawn, strict=True):
            if found.ndim != value.ndim + 1 or len(found) != m:
                raise InputError(f"the prior of {value.name!r} can't be drawn row by row; take another sampler")
        return drawn

    return draw


def _check_forwards(model: pm.Model) -> None:
    """Refuse a model whose parameters can't be drawn from their prior: it has a potential, or reads a column."""
    if model.potentials:
        raise InputError(
            f"the model has a Potential, {model.potentials[0].name!r}, so its prior can't be drawn forwards, as "
            "rejection does; write it as a distribution, or take sampler = grid or nuts"
        )
    behind = set(ancestors(model.free_RVs))
    for name, shared in inputs_of(model).items():
        if shared in behind:
            raise InputError(f"the prior reads column {name!r}; a prior must be public: don't use data in it")


def _compiled(model: pm.Model) -> Prior:
    """Compile the draws: all rows at once, or one after the other where a distribution knows no rows."""
    free = [model.values_to_rvs[value] for value in model.value_vars]
    single = [transformed(model, variable, variable, variable.owner.inputs) for variable in free]
    n_draws = pytensor.tensor.lscalar("n_draws")
    try:
        graphs, generators = _own_generators(_batched(single, model.free_RVs, n_draws))
    except NotImplementedError:
        graphs, generators = _own_generators(single)
        one = pytensor.function(generators, graphs, mode="FAST_COMPILE")
        return lambda m, generator: [
            np.stack(rows) for rows in zip(*(one(*[generator] * len(generators)) for _ in range(m)), strict=True)
        ]
    function = pytensor.function([n_draws, *generators], graphs, mode="FAST_COMPILE", on_unused_input="ignore")
    return lambda m, generator: list(function(m, *[generator] * len(generators)))


def _batched(single: Sequence[Any], variables: Sequence[Any], n_draws: Any) -> list[Any]:
    """Return the graphs of many draws: of the parents first, of the children row by row given them."""
    order = {node: place for place, node in enumerate(toposort(variables))}
    batched: dict[Any, Any] = {}
    for variable in sorted(variables, key=lambda variable: order[variable.owner]):
        if set(batched) & set(ancestors([variable])):
            batched[variable] = vectorize_graph(variable, batched)
        else:
            batched[variable] = change_dist_size(variable, (n_draws,), expand=True)
    return list(vectorize_graph(single, batched))


def _own_generators(graphs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Make each random variable's generator an input of its own; two with one input would be one draw."""
    roots = [each for each in graph_inputs(graphs) if isinstance(each.type, RandomGeneratorType)]
    inputs = [each.type() for each in roots]
    return list(clone_replace(list(graphs), dict(zip(roots, inputs, strict=True)), rebuild_strict=False)), inputs


# Proposals that are turned down stay secret. Were they made by numpy's own generators, which are no ciphers, one
# published proposal of several doubles could give away the seed, and with it the others
# (docs/proofs/exact-samplers.md, remark 6). So each word of this generator is a fresh one.

WORDS = 1024
"""Words that are taken from the source at a time."""

ALL_ONES = 2**64 - 1

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
        self.failure: BaseException | None = None
        self._bits = bits
        self._left: list[int] = []
        self._stopgap = 0

    def __deepcopy__(self, memo: Any) -> "WordSource":
        return self

    def word(self) -> int:
        """Return the next word."""
        try:
            if not self._left:
                self._left = self._bits.words(WORDS, np.uint64).tolist()
            return self._left.pop()
        except BaseException as failure:  # noqa: BLE001 - C can't pass it on; ``check`` raises it again
            self.failure = failure
            self._stopgap = (self._stopgap + 0x9E3779B97F4A7C15) & ALL_ONES  # lets numpy end; nothing of it is used
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


def generator_of(bits: RandomBits) -> tuple[np.random.Generator, WordSource]:
    """Return a Generator that draws every word from ``bits``, and the source to be checked after each use."""
    source = WordSource(bits)
    return np.random.Generator(WordGenerator(source)), source  # type: ignore[arg-type]
