"""Exact draws by rejection from the prior, by random words that are used once."""

import ctypes
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pymc.distributions.shape_utils import change_dist_size
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.traversal import ancestors, graph_inputs, toposort
from pytensor.tensor.random.type import RandomGeneratorType

from pdips.arrays import IntArray
from pdips.errors import InputError
from pdips.posterior.model import transformed
from pdips.posterior.record_likelihood import inputs_of
from pdips.privacy.noise import RandomBits, decay_coins

BATCH = 1024
LARGEST_SCORE = 2**60

PriorDraws = Callable[[int, np.random.Generator], list[NDArray[Any]]]
"""Draws so many times by a generator: an array (draws, *shape) for each value
variable.
"""


def reject(
    score: Callable[[Any], IntArray],
    prior: PriorDraws,
    *,
    n_draws: int,
    bound: int,
    unit: Fraction,
    bits: RandomBits,
    batch: int = BATCH,
) -> list[NDArray[Any]]:
    """Draw from prior(theta) exp(unit * score(theta)), exactly: an array (n_draws,
    *shape) for each value variable.

    ``prior(m, generator)`` gives m independent draws, ``score`` the sum of all records'
    whole steps for each, at most ``bound`` with certainty. Under replace-one a draw is
    (4 w)-differentially private, pure (``docs/proofs/exact-samplers.md``, theorem 2).
    No cap and no time-out, for failing would be an output.
    """
    if n_draws < 1 or batch < 1 or unit <= 0 or abs(bound) > LARGEST_SCORE:
        raise InputError(
            "draws, batch and the unit of the score must be above 0, "
            "and its bound within 2^60 steps of 0"
        )
    source = WordSource(bits)
    generator = np.random.Generator(WordGenerator(source))  # type: ignore[arg-type]
    kept: list[list[NDArray[Any]]] = []
    missing = n_draws
    while missing:
        points = prior(batch, generator)
        source.check()
        scores = score(points)
        _check_scores(scores, batch, bound)
        coins = decay_coins(bound - scores, unit, bits)
        accepted = np.flatnonzero(coins)[:missing]
        if len(accepted):
            kept.append([values[accepted] for values in points])
            missing -= len(accepted)
    return [np.concatenate(parts) for parts in zip(*kept, strict=True)]


def _check_scores(scores: IntArray, batch: int, bound: int) -> None:
    if scores.shape != (batch,) or scores.dtype != np.int64:
        raise InputError("the score must give one int64 a point")
    if (scores > bound).any() or (scores < -LARGEST_SCORE).any():
        raise InputError(
            "the score leaves its public bounds; a record's steps must lie in [-K, K]"
        )


def prior_of(
    model: pm.Model,
) -> PriorDraws:
    """Return a function that draws a model's parameters from their prior, m at once, as
    ``model.value_vars`` have them.

    Each row is computed by itself from random words of its own, and no row from
    records, which is what rejection needs (``docs/proofs/exact-samplers.md``, lemma 1).
    That law is the prior as doubles have it, not to the last bit.
    """
    if model.potentials:
        raise InputError(
            f"the model has a Potential, {model.potentials[0].name!r}, so its prior "
            f"can't be drawn forwards, as "
            "rejection does; write it as a distribution, or take sampler = grid or nuts"
        )
    behind = set(ancestors(model.free_RVs))
    for name, shared in inputs_of(model).items():
        if shared in behind:
            raise InputError(
                f"the prior reads column {name!r}; a prior must be "
                f"public: don't use data in it"
            )
    function = _compiled_prior(model)

    def draw(m: int, generator: np.random.Generator) -> list[NDArray[Any]]:
        try:
            drawn = function(m, generator)
        except NotImplementedError:
            raise InputError(
                "a prior of the model can't be drawn from; give every "
                "parameter a proper prior"
            ) from None
        for value, draws in zip(model.value_vars, drawn, strict=True):
            if draws.ndim != value.ndim + 1 or len(draws) != m:
                raise InputError(
                    f"the prior of {value.name!r} can't be drawn row by "
                    f"row; take another sampler"
                )
        return drawn

    return draw


def _compiled_prior(
    model: pm.Model,
) -> PriorDraws:
    """Compile the draws: all rows at once, or one after the other where a distribution
    knows no rows.
    """
    free = [model.values_to_rvs[value] for value in model.value_vars]
    single = [
        transformed(model, variable, variable, variable.owner.inputs)
        for variable in free
    ]
    n_draws = pytensor.tensor.lscalar("n_draws")
    try:
        batched = _batched(model, n_draws)
        graphs, generators = _own_generators(list(vectorize_graph(single, batched)))
    except NotImplementedError:
        return _one_by_one(single)
    function = pytensor.function(
        [n_draws, *generators], graphs, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    return lambda m, generator: list(function(m, *[generator] * len(generators)))


def _batched(model: pm.Model, n_draws: Any) -> dict[Any, Any]:
    """Return so many draws of each free variable, row by row given its parents."""
    nodes = list(toposort(model.free_RVs))
    in_order = sorted(model.free_RVs, key=lambda variable: nodes.index(variable.owner))
    batched: dict[Any, Any] = {}
    for variable in in_order:
        if set(batched) & set(ancestors([variable])):
            batched[variable] = vectorize_graph(variable, batched)
        else:
            batched[variable] = change_dist_size(variable, (n_draws,), expand=True)
    return batched


def _one_by_one(single: list[Any]) -> PriorDraws:
    """Return a function that draws one row after the other."""
    graphs, generators = _own_generators(single)
    one = pytensor.function(generators, graphs, mode="FAST_COMPILE")

    def draw(m: int, generator: np.random.Generator) -> list[NDArray[Any]]:
        rows = [one(*[generator] * len(generators)) for _ in range(m)]
        return [np.stack(values) for values in zip(*rows, strict=True)]

    return draw


def _own_generators(graphs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Make each random variable's generator an input of its own; two with one input
    would be one draw.
    """
    roots = [
        root
        for root in graph_inputs(graphs)
        if isinstance(root.type, RandomGeneratorType)
    ]
    inputs = [root.type() for root in roots]
    by_root = dict(zip(roots, inputs, strict=True))
    return list(clone_replace(graphs, by_root, rebuild_strict=False)), inputs


# Proposals that are turned down stay secret. Were they made by numpy's own generators,
# which are no ciphers, one published proposal of several doubles could give away the
# seed, and with it the others (docs/proofs/exact-samplers.md, remark 6). So each word
# of this generator is a fresh one.

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
    """Words of :class:`~pdips.privacy.noise.RandomBits`, one after the other, each
    handed out once.
    """

    def __init__(self, bits: RandomBits) -> None:
        # while numpy was asking; numpy can't be told, so ``check`` must be
        self.failure: BaseException | None = None
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
            # lets numpy end; nothing of it is used
            self._stopgap = (self._stopgap + 0x9E3779B97F4A7C15) % 2**64
            return self._stopgap

    def check(self) -> None:
        """Raise what went wrong since the generator was made, an interrupt from the
        keyboard included.
        """
        if self.failure is not None:
            raise self.failure


class WordGenerator:
    """A numpy bit generator without a state: copies draw from the same source, so no
    word is used twice.
    """

    def __init__(self, source: WordSource) -> None:
        # PyTensor copies a generator by ``type(old)(deepcopy(old._seed_seq))`` and its
        # state
        self._seed_seq = source
        self.state: dict[str, Any] = {"bit_generator": type(self).__name__}
        self.lock = threading.RLock()
        word = _Word(lambda _: source.word())
        half_word = _HalfWord(lambda _: source.word() >> 32)
        double = _Double(lambda _: (source.word() >> 11) * 2.0**-53)
        self._interface = _Interface(None, word, half_word, double, word)
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self.capsule = make(ctypes.addressof(self._interface), b"BitGenerator", None)
