"""The score of one record: the gradient of its log-likelihood, whitened, clipped to a
ball, in whole steps.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from typing import Any, Literal

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Constant
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.errors import InputError
from pdips.graphs.repetition import over_records
from pdips.posterior.columns import Values
from pdips.posterior.interpreted import BY_NUMPY, function_of, runs_well
from pdips.posterior.model import initial, split
from pdips.posterior.private_reference import IMPOSSIBLE
from pdips.posterior.record_likelihood import RecordLikelihood, with_parts_held
from pdips.privacy.curator import tell

Norm = Literal["l1", "l2"]

STEPS = 2**20  # Whole steps from the centre of the ball to its edge
# Records whose scores are worked out at once if public, and added up at once if not
BLOCK = 16_384
# Records from which on the score of one is compiled: seconds, and then each is faster
COMPILED_FROM = 10_000
# Numbers that are whitened at once
IN_CACHE = 32_768


@dataclass(frozen=True, eq=False)
class Clipping:
    """What is done to a score at public parameters: whitened, pulled into a ball, cut
    to whole steps.

    Everything here is public, or follows from earlier noisy answers; no field depends
    on a record.
    """

    place: FloatArray  # shape (parameters,), unconstrained: where the gradient is taken
    whitening: FloatArray  # shape (parameters, parameters)
    radius: float  # of the ball, in units of whitened scores
    norm: Norm

    def arrays(self) -> dict[str, FloatArray]:
        """Return all but the norm as arrays, to be kept with answers."""
        radius = np.asarray(self.radius)
        return {"place": self.place, "whitening": self.whitening, "radius": radius}

    @classmethod
    def read(cls, arrays: Mapping[str, FloatArray], norm: Norm) -> "Clipping":
        """Return what :meth:`arrays` returned, with its norm."""
        radius = float(arrays["radius"])
        return cls(arrays["place"], arrays["whitening"], radius, norm)

    def clipped(self, scores: FloatArray) -> FloatArray:
        """Return public scores, shape (records, parameters), whitened and pulled into
        the ball, not rounded.
        """
        with np.errstate(all="ignore"):
            standard = scores @ (self.whitening / self.radius).T
            return self.radius * into_ball(standard, self.norm)

    def whitened(self, scores: FloatArray) -> FloatArray:
        """Return public scores whitened, shape (records, parameters)."""
        with np.errstate(all="ignore"):
            return np.asarray(scores @ self.whitening.T)

    def lengths(self, whitened: FloatArray) -> FloatArray:
        """Return the norms of whitened scores, shape (records,)."""
        if self.norm == "l1":
            return np.asarray(np.abs(whitened).sum(axis=1))
        return np.sqrt((whitened**2).sum(axis=1))

    def add(self, scores: FloatArray, total: IntArray) -> None:
        """Add records' scores, shape (records, parameters), in whole steps to a total,
        shape (parameters,).
        """
        at_once = max(IN_CACHE // len(total), 1)
        with np.errstate(all="ignore"):
            for start in range(0, len(scores), at_once):
                some = scores[start : start + at_once]
                _add_clipped(some, self.whitening, self.radius, self.norm, total)

    def steps(self, score: FloatArray) -> IntArray:
        """Return one record's score, shape (parameters,), in whole steps, :data:`STEPS`
        from the centre to the edge.
        """
        total = np.zeros(len(score), dtype=np.int64)
        self.add(np.asarray(score, dtype=np.float64)[None], total)
        return total

    @property
    def unit(self) -> float:
        """What a whole step is worth, in units of whitened scores."""
        return self.radius / STEPS


def into_ball(vectors: FloatArray, norm: Norm) -> FloatArray:
    """Return vectors, shape (n, parameters), pulled into the unit ball towards its
    centre; 0 for one not finite.
    """
    largest = np.abs(vectors).max(axis=1, initial=0.0, keepdims=True)
    fine = np.isfinite(largest) & (largest > 0)
    along = np.where(fine, vectors, 0.0) / np.where(fine, largest, 1.0)
    sizes = np.abs(along) if norm == "l1" else along * along
    length = sizes.sum(axis=1, keepdims=True)
    length = np.maximum(length if norm == "l1" else np.sqrt(length), 1.0)
    return np.asarray(along * np.minimum(np.where(fine, largest, 0.0), 1 / length))


def _add_clipped(
    scores: FloatArray,
    whitening: FloatArray,
    radius: float,
    norm: Norm,
    total: IntArray,
) -> None:
    """Whiten each score, pull it into the unit ball, cut it to whole steps and add it.

    What isn't finite counts as nothing, and so does what rounding would leave outside
    of the ball: the norm is checked in whole numbers. Each record goes through the same
    additions and multiplications in the same order, one parameter after the other: no
    matrix product and no sum along an axis, whose bits depend on how many records come
    along.
    """
    along = np.zeros_like(scores)
    for k, column in enumerate(whitening.T):
        # a record of a hierarchy touches few parameters
        touched = np.flatnonzero(scores[:, k])
        along[touched] += scores[touched, k, None] * column
    along /= radius
    largest = np.abs(along).max(axis=1, initial=0.0)
    fine = np.isfinite(along).all(axis=1) & (largest > 0)
    along = along[fine]
    largest = largest[fine]
    along /= largest[:, None]
    length = sizes_in_order(along, norm)
    if norm == "l2":
        length = np.sqrt(length)
    shrink = np.minimum(largest, 1 / length)
    # towards 0
    steps = (STEPS * (along * shrink[:, None])).astype(np.int64)
    total += steps[stays_inside(steps, norm)].sum(axis=0)


def sizes_in_order[T: np.generic](vectors: NDArray[T], norm: Norm) -> NDArray[T]:
    """Return the l1 norms of rows, or the squares of their l2 norms, added from left to
    right.
    """
    total = np.zeros(len(vectors), dtype=vectors.dtype)
    for column in vectors.T:
        total += np.abs(column) if norm == "l1" else column * column
    return total


def stays_inside(steps: IntArray, norm: Norm) -> BoolArray:
    """Return which rows of whole steps rounding leaves inside of the ball."""
    inside: BoolArray = sizes_in_order(steps, norm) <= (
        STEPS if norm == "l1" else STEPS**2
    )
    return inside


class RecordScore:
    """The gradient of one record's log-likelihood in a model's unconstrained
    parameters.

    The graph holds a single record (:class:`RecordLikelihood`); a call sees one record
    and nothing else, so its numbers depend on nothing else, to the last bit, as the
    proof needs it (``docs/proofs/scores.md``, lemma 1).
    """

    def __init__(self, likelihood: RecordLikelihood) -> None:
        self._likelihood = likelihood
        self.model = likelihood.model
        self._record = likelihood.record
        term, self.checked = checked_lookups(
            likelihood.term, set(self._record.values())
        )
        self.term = term
        slopes = pt.grad(term[0], self.model.value_vars, disconnected_inputs="ignore")
        self.slopes = pt.concatenate(
            [slope.astype("float64").ravel() for slope in slopes]
        )
        if not set(self._record.values()) & set(ancestors([self.slopes])):
            raise InputError(
                "no record moves the slope of the log-likelihood in any parameter, "
                "so scores say nothing; parameters "
                "must enter smoothly: not rounded, compared or used as an index"
            )

    @cached_property
    def _single(self) -> Any:
        """What works out the score of one record, without compiling where numpy does
        it well.
        """
        if not self.checked:  # checks bounds, as compiled code doesn't
            return self._function("FAST_COMPILE")
        by_numpy = self._function(BY_NUMPY)
        if runs_well(by_numpy):
            return by_numpy
        tell("compiling the score of one record")
        return self._function(None)

    @cached_property
    def _compiled(self) -> Any:
        """The same in compiled code, as far as that checks bounds and can be made: it
        may be made after the charge.
        """
        if not self.checked:
            return self._single
        tell("compiling the score of one record")
        stand_in = {
            name: held.get_value() for name, held in self._likelihood.columns.items()
        }
        try:
            function = self._function(None)
            [row] = self._likelihood.rows(stand_in)
            self._given(initial(self.model))
            function(*row)
        except Exception:  # noqa: BLE001 - it has seen a stand-in only
            return self._single
        return function

    @cached_property
    def _parts(self) -> tuple[Any, Any, list[Any]]:
        """The score of one record given what follows from parameters alone, what works
        that out, and what holds it.
        """
        return with_parts_held(
            self.slopes, self._record.values(), self.model.value_vars
        )

    def _given(self, place: FloatArray) -> None:
        """Set the parameters at which the scores of records one at a time are
        taken.
        """
        _, ahead, held = self._parts
        for shared, value in zip(held, ahead(*self._point(place)), strict=True):
            shared.set_value(value, borrow=True)

    def _function(self, mode: Any) -> Any:
        graph, _, _ = self._parts
        inputs = list(self._record.values())
        with pytensor.config.change_flags(numba__fastmath=False):
            function = pytensor.function(
                inputs, graph, mode=mode, on_unused_input="ignore"
            )
        function.trust_input = True
        return function

    def _columns(self) -> dict[str, Any]:
        """Return a variable of many records for each column that a record has."""
        return {
            name: v.type.clone(shape=(None,))(name=name)
            for name, v in self._record.items()
        }

    @cached_property
    def _many(self) -> Any:
        columns = self._columns()
        n = pt.lscalar()
        by_record = {one: columns[name] for name, one in self._record.items()}
        graph = over_records(self.slopes[None], by_record)
        inputs = [*self.model.value_vars, *columns.values(), n]
        return function_of(inputs, graph, what="the scores of records")

    def of_public(self, place: FloatArray, values: Values) -> FloatArray:
        """Return the scores of public records at some parameters, shape (records,
        parameters), many at once.
        """
        point = self._point(place)
        total = len(next(iter(values.values())))
        parts = []
        with np.errstate(all="ignore"):
            for start in range(0, total, BLOCK):
                some = slice(start, start + BLOCK)
                n = min(BLOCK, total - start)
                given = [
                    np.ascontiguousarray(values[name][some], dtype=v.dtype)
                    for name, v in self._record.items()
                ]
                scores = self._many(*point, *given, n)
                parts.append(np.broadcast_to(scores, (n, len(place))))
        return np.concatenate(parts)

    @cached_property
    def _mean(self) -> Any:
        columns = self._columns()
        rows = self._likelihood.graph(columns)
        mean = pt.switch(pt.isnan(rows) | pt.isinf(rows), IMPOSSIBLE, rows).mean()
        slopes = pt.grad(mean, self.model.value_vars, disconnected_inputs="ignore")
        flat = pt.concatenate([slope.ravel() for slope in slopes])
        inputs = [*self.model.value_vars, *columns.values()]
        return function_of(inputs, [mean, flat], what="the slope of the log-likelihood")

    def mean_of_public(
        self, place: FloatArray, values: Values
    ) -> tuple[float, FloatArray]:
        """Return the mean log-likelihood of public records and its gradient."""
        given = (np.asarray(values[name], v.dtype) for name, v in self._record.items())
        with np.errstate(all="ignore"):
            value, slope = self._mean(*self._point(place), *given)
        return float(value), np.asarray(slope)

    def total(
        self, clipping: Clipping, values: Values, expected: float = 0.0
    ) -> IntArray:
        """Return the sum of confidential records' clipped scores in whole steps, shape
        (parameters,), one at a time.

        ``expected`` is the public or noisy number of records, which says whether it
        pays to compile: what compiled code says of a record may differ in the last
        bits, so how many there are must not decide it.
        """
        total = np.zeros(len(clipping.place), dtype=np.int64)
        n_records = len(next(iter(values.values())))
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            # a warning, too, would tell of the record that it comes from
            warnings.simplefilter("ignore")
            for start in range(0, n_records, BLOCK):
                some = slice(start, start + BLOCK)
                block = {name: column[some] for name, column in values.items()}
                scores = self._one_by_one(clipping.place, block, expected)
                clipping.add(scores, total)
        return total

    def _one_by_one(
        self, place: FloatArray, values: Values, expected: float = 0.0
    ) -> FloatArray:
        """Return the scores of confidential records, shape (records, parameters); no
        number where one can't be worked out.
        """
        function = self._compiled if expected > COMPILED_FROM else self._single
        self._given(place)
        rows = self._likelihood.rows(values)
        scores = np.full((len(rows), len(place)), np.nan)
        for number, row in enumerate(rows):
            try:
                scores[number] = function(*row)
            except KeyboardInterrupt:
                raise  # from outside
            except BaseException:  # noqa: BLE001 - it has seen one record, and must not tell of it
                continue
        return scores

    def _point(self, place: FloatArray) -> list[NDArray[Any]]:
        parts = split(self.model, np.asarray(place, dtype=np.float64)[None])
        return [
            np.array(part[0], dtype=v.dtype)
            for v, part in zip(self.model.value_vars, parts, strict=True)
        ]


def may_look_up(node: Any, depends: set[Any]) -> bool:
    """Return whether a node may look something up at a place that depends on the
    record.
    """
    op = node.op.core_op if isinstance(node.op, Blockwise) else node.op
    if isinstance(op, HasInnerGraph):
        inside = set(op.fgraph.inputs)
        for inner in op.fgraph.toposort():
            if inside.intersection(inner.inputs):
                inside.update(inner.outputs)
                if may_look_up(inner, inside):
                    return True
        return False
    if isinstance(op, Subtensor | AdvancedSubtensor):
        return isinstance(node.op, Blockwise) or any(
            each in depends for each in node.inputs[1:]
        )
    return False


def checked_lookups(term: Any, record: set[Any]) -> tuple[Any, bool]:
    """Return a graph of one record whose lookups stay inside of what they look up in,
    and whether all do.

    Compiled code doesn't check bounds: beyond them lies what no record owns. What is
    looked up there is no number.
    """
    depends = set(record)
    sure = True
    replaced = {}
    for node in toposort([term]):
        if not depends.intersection(node.inputs):
            continue
        depends.update(node.outputs)
        if not may_look_up(node, depends):
            continue
        whole = tuple(range(len(node.inputs) - 1))
        if isinstance(node.op, AdvancedSubtensor) and node.op.idx_list == whole:
            replaced[node.outputs[0]] = _looked_up_inside(node)
        else:
            sure = False
    if replaced:
        [term] = graph_replace([term], replaced, strict=False)
    return term, sure


def _looked_up_inside(node: Any) -> Any:
    """Return what a node looks up, and no number for places beyond."""
    looked_in, *places = node.inputs
    clipped = []
    conditions = []
    sizes = looked_in.type.shape
    for place, size, known in zip(places, looked_in.shape, sizes, strict=False):
        if _lies_inside(place, known):
            clipped.append(place)
            continue
        clipped.append(pt.clip(place, -size, size - 1))
        conditions.append((place >= -size) & (place < size))
    looked = node.op.make_node(looked_in, *clipped).outputs[0]
    if not conditions:
        return looked
    is_inside = reduce(and_, conditions)
    is_inside = pt.shape_padright(is_inside, looked.ndim - is_inside.ndim)
    return pt.switch(is_inside, looked, np.nan).astype(looked.dtype)


def _lies_inside(place: Any, size: int | None) -> bool:
    """Whether constant places lie inside of an axis whose length is known."""
    if size is None or not isinstance(place, Constant):
        return False
    return bool(((place.data >= 0) & (place.data < size)).all())
