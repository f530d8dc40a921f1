"""The score of one record: the gradient of its log-likelihood, whitened, clipped to a ball, in whole steps."""

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pytensor
import pytensor.tensor as pt
from numba import njit
from numpy.typing import NDArray
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.posterior.columns import Values
from pdips.posterior.model import split
from pdips.posterior.private_reference import IMPOSSIBLE
from pdips.posterior.record_likelihood import RecordLikelihood, over_records

Norm = Literal["l1", "l2"]

STEPS = 2**20  # Whole steps from the centre of the ball to its edge
BLOCK = 16_384  # Records whose scores are worked out at once if public, and added up at once if not


@dataclass(frozen=True, eq=False)
class Clipping:
    """What is done to a score at public parameters: whitened, pulled into a ball, cut to whole steps.

    Everything here is public, or follows from earlier noisy answers; no field depends on a record.
    """

    place: FloatArray  # shape (parameters,), unconstrained: where the gradient is taken
    whitening: FloatArray  # shape (parameters, parameters)
    radius: float  # of the ball, in units of whitened scores
    norm: Norm

    def clipped(self, scores: FloatArray) -> FloatArray:
        """Return public scores, shape (records, parameters), whitened and pulled into the ball, not rounded."""
        with np.errstate(all="ignore"):
            return self.radius * into_ball(scores @ (self.whitening / self.radius).T, self.norm)

    def whitened(self, scores: FloatArray) -> FloatArray:
        """Return public scores whitened, shape (records, parameters)."""
        with np.errstate(all="ignore"):
            return np.asarray(scores @ self.whitening.T)

    def lengths(self, whitened: FloatArray) -> FloatArray:
        """Return the norms of whitened scores, shape (records,)."""
        return np.abs(whitened).sum(axis=1) if self.norm == "l1" else np.sqrt((whitened**2).sum(axis=1))

    def add(self, scores: FloatArray, total: IntArray) -> None:
        """Add records' scores, shape (records, parameters), in whole steps to a total, shape (parameters,)."""
        _add_clipped(scores, self.whitening, self.radius, self.norm == "l1", total)

    def steps(self, score: FloatArray) -> IntArray:
        """Return one record's score, shape (parameters,), in whole steps, :data:`STEPS` from the centre to the edge."""
        total = np.zeros(len(score), dtype=np.int64)
        self.add(np.asarray(score, dtype=np.float64)[None], total)
        return total

    @property
    def unit(self) -> float:
        """What a whole step is worth, in units of whitened scores."""
        return self.radius / STEPS


def into_ball(vectors: FloatArray, norm: Norm) -> FloatArray:
    """Return vectors, shape (n, parameters), pulled into the unit ball towards its centre; 0 for one not finite."""
    largest = np.abs(vectors).max(axis=1, initial=0.0, keepdims=True)
    fine = np.isfinite(largest) & (largest > 0)
    along = np.where(fine, vectors, 0.0) / np.where(fine, largest, 1.0)
    sizes = np.abs(along) if norm == "l1" else along * along
    length = sizes.sum(axis=1, keepdims=True)
    length = np.maximum(length if norm == "l1" else np.sqrt(length), 1.0)
    return np.asarray(along * np.minimum(np.where(fine, largest, 0.0), 1 / length))


@njit(cache=True, error_model="numpy")
def _add_clipped(scores: FloatArray, whitening: FloatArray, radius: float, l1: bool, total: IntArray) -> None:
    """Whiten each score, pull it into the unit ball, cut it to whole steps and add it, one record after the other.

    What isn't finite counts as nothing, and so does what rounding would leave outside of the ball: the norm is checked
    in whole numbers. Each record goes through the same operations in the same order: no matrix product, whose bits
    depend on how many records come along, and no fastmath.
    """
    d = len(total)
    along, steps, most = np.empty(d), np.empty(d, dtype=np.int64), STEPS if l1 else STEPS**2
    for i in range(len(scores)):
        along[:] = 0.0
        for k in range(d):
            if scores[i, k] != 0.0:  # a record of a hierarchy touches few parameters
                for j in range(d):
                    along[j] += whitening[j, k] * scores[i, k]
        largest = 0.0
        for j in range(d):
            along[j] /= radius
            largest = max(largest, abs(along[j])) if np.isfinite(along[j]) else np.inf
        if largest == 0.0 or largest == np.inf:
            continue
        length = 0.0
        for j in range(d):
            along[j] /= largest
            length += abs(along[j]) if l1 else along[j] * along[j]
        shrink = min(largest, 1 / (length if l1 else np.sqrt(length)))
        size = 0
        for j in range(d):
            steps[j] = int(STEPS * (along[j] * shrink))  # towards 0
            size += abs(steps[j]) if l1 else steps[j] * steps[j]
        if size <= most:
            total += steps


class RecordScore:
    """The gradient of one record's log-likelihood in a model's unconstrained parameters.

    The graph holds a single record (:class:`RecordLikelihood`); a call sees one record and nothing else, so its numbers
    depend on nothing else, to the last bit, as the proof needs it (``docs/proofs/scores.md``, lemma 1).
    """

    def __init__(self, likelihood: RecordLikelihood) -> None:
        self._likelihood, self.model, self._record = likelihood, likelihood.model, likelihood.record
        term, self._checked = checked_lookups(likelihood.term, set(self._record.values()))
        slopes = pt.grad(term[0], self.model.value_vars, disconnected_inputs="ignore")
        self._graph = pt.concatenate([slope.astype("float64").ravel() for slope in slopes])
        if not set(self._record.values()) & set(ancestors([self._graph])):
            raise InputError(
                "no record moves the slope of the log-likelihood in any parameter, so scores say nothing; parameters "
                "must enter smoothly: not rounded, compared or used as an index"
            )

    @cached_property
    def _single(self) -> Any:
        mode = None if self._checked else "FAST_COMPILE"  # which checks bounds, as compiled code doesn't
        with pytensor.config.change_flags(numba__fastmath=False):
            function = pytensor.function(
                [*self.model.value_vars, *self._record.values()], self._graph, mode=mode, on_unused_input="ignore"
            )
        function.trust_input = True
        return function

    def _columns(self) -> dict[str, Any]:
        """Return a variable of many records for each column that a record has."""
        return {name: v.type.clone(shape=(None,))(name=name) for name, v in self._record.items()}

    @cached_property
    def _many(self) -> Any:
        columns, n = self._columns(), pt.lscalar()
        graph = over_records(self._graph[None], {one: columns[name] for name, one in self._record.items()})
        return pytensor.function([*self.model.value_vars, *columns.values(), n], graph, on_unused_input="ignore")

    def of_public(self, place: FloatArray, values: Values) -> FloatArray:
        """Return the scores of public records at some parameters, shape (records, parameters), many at once."""
        point, total, parts = self._point(place), len(next(iter(values.values()))), []
        with np.errstate(all="ignore"):
            for start in range(0, total, BLOCK):
                some, n = slice(start, start + BLOCK), min(BLOCK, total - start)
                given = [np.ascontiguousarray(values[name][some], dtype=v.dtype) for name, v in self._record.items()]
                parts.append(np.broadcast_to(self._many(*point, *given, n), (n, len(place))))
        return np.concatenate(parts)

    @cached_property
    def _mean(self) -> Any:
        columns = self._columns()
        rows = self._likelihood.graph(columns)
        mean = pt.switch(pt.isnan(rows) | pt.isinf(rows), IMPOSSIBLE, rows).mean()
        slopes = pt.grad(mean, self.model.value_vars, disconnected_inputs="ignore")
        flat = pt.concatenate([slope.ravel() for slope in slopes])
        inputs = [*self.model.value_vars, *columns.values()]
        return pytensor.function(inputs, [mean, flat], on_unused_input="ignore")

    def mean_of_public(self, place: FloatArray, values: Values) -> tuple[float, FloatArray]:
        """Return the mean log-likelihood of public records and its gradient."""
        given = (np.asarray(values[name], v.dtype) for name, v in self._record.items())
        with np.errstate(all="ignore"):
            value, slope = self._mean(*self._point(place), *given)
        return float(value), np.asarray(slope)

    def total(self, clipping: Clipping, values: Values) -> IntArray:
        """Return the sum of confidential records' clipped scores in whole steps, shape (parameters,), one at a time."""
        point, d = self._point(clipping.place), len(clipping.place)
        found, function = np.zeros(d, dtype=np.int64), self._single
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # a warning, too, would tell of the record that it comes from
            for start in range(0, len(next(iter(values.values()))), BLOCK):
                rows = self._likelihood.rows({name: each[start : start + BLOCK] for name, each in values.items()})
                scores = np.full((len(rows), d), np.nan)
                for place, row in enumerate(rows):
                    try:
                        scores[place] = function(*point, *row)
                    except MemoryError:
                        raise
                    except Exception:  # noqa: BLE001 - it has seen one record, and must not tell of it
                        continue
                clipping.add(scores, found)
        return found

    def _point(self, place: FloatArray) -> list[NDArray[Any]]:
        parts = split(self.model, np.asarray(place, dtype=np.float64)[None])
        return [np.array(part[0], dtype=v.dtype) for v, part in zip(self.model.value_vars, parts, strict=True)]


def may_look_up(node: Any, depends: set[Any]) -> bool:
    """Return whether a node may look something up at a place that depends on the record."""
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
        return isinstance(node.op, Blockwise) or any(each in depends for each in node.inputs[1:])
    return False


def checked_lookups(term: Any, record: set[Any]) -> tuple[Any, bool]:
    """Return a graph of one record whose lookups stay inside of what they look up in, and whether all do.

    Compiled code doesn't check bounds: beyond them lies what no record owns. What is looked up there is no number.
    """
    depends, sure, replaced = set(record), True, {}
    for node in toposort([term]):
        if not depends.intersection(node.inputs):
            continue
        depends.update(node.outputs)
        if not may_look_up(node, depends):
            continue
        if not isinstance(node.op, AdvancedSubtensor) or node.op.idx_list != tuple(range(len(node.inputs) - 1)):
            sure = False
            continue
        sizes = [node.inputs[0].shape[axis] for axis in range(len(node.inputs) - 1)]
        inside = [(each >= -n) & (each < n) for each, n in zip(node.inputs[1:], sizes, strict=True)]
        kept = [pt.clip(each, -n, n - 1) for each, n in zip(node.inputs[1:], sizes, strict=True)]
        looked = node.op.make_node(node.inputs[0], *kept).outputs[0]
        holds = inside[0]
        for each in inside[1:]:
            holds = holds & each
        holds = pt.shape_padright(holds, looked.ndim - holds.ndim)
        replaced[node.outputs[0]] = pt.switch(holds, looked, np.nan).astype(looked.dtype)
    if replaced:
        [term] = graph_replace([term], replaced, strict=False)
    return term, sure
