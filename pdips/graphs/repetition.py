"""The graph of a single record's number, turned into that of the numbers of many
records.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph, SymbolicOp
from pytensor.graph.basic import Constant
from pytensor.graph.replace import _vectorize_node
from pytensor.graph.traversal import toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Join
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import AdvancedSubtensor

from pdips.errors import InputError

# What PyTensor itself knows to repeat, kept whole for the sake of its slope
WHOLE = (LogSoftmax, Softmax)


def over_records(term: Any, columns: Mapping[Any, Any]) -> Any:
    """Return the log-likelihoods of many records, shape (records,), from the graph of a
    single one.
    """
    if not columns:
        raise InputError("the model's log-likelihood reads no column")
    repetition = Repetition(columns)
    repetition.add(toposort([term]))
    if term not in repetition.repeated:
        raise InputError("the model's log-likelihood reads no column")
    repeated = repetition.repeated[term]
    if term in repetition.rows:
        return repeated
    return pt.specify_shape(repeated, (None, 1))[:, 0]


class Repetition:
    """What the variables of a single record's graph are for many records.

    ``repeated`` has those that depend on the record. Of them, ``rows`` have the records
    on their own first axis; all others have them on a further axis, before their own.
    """

    def __init__(self, columns: Mapping[Any, Any]) -> None:
        self.repeated = dict(columns)
        self.rows = set(columns)
        self._n_records = next(iter(columns.values())).shape[0]

    def add(self, nodes: Iterable[Any]) -> None:
        """Repeat the outputs of nodes, each after those that it reads."""
        for node in nodes:
            if not any(variable in self.repeated for variable in node.inputs):
                continue
            try:
                outputs = self._outputs(node)
            except (NotImplementedError, ValueError, TypeError) as error:
                raise InputError(
                    f"the model's log-likelihood contains {type(node.op).__name__}, "
                    f"which can't be repeated for every "
                    f"record ({type(error).__name__}); write it with elementwise "
                    f"operations, sums and products"
                ) from None
            self.repeated |= dict(zip(node.outputs, outputs, strict=True))

    def _outputs(self, node: Any) -> Sequence[Any]:
        """Return the outputs of a node for all records, and note which of them are
        rows.
        """
        many = [variable for variable in node.inputs if variable in self.repeated]
        if self.rows.issuperset(many) and _treats_rows_alone(node, many):
            self.rows.update(node.outputs)
            return self._of_rows(node, many)
        is_packed = isinstance(node.op, OpFromGraph) and not isinstance(node.op, WHOLE)
        if is_packed and not _is_elementwise(node.op):
            return self._unpacked(node)
        inputs = []
        for variable in node.inputs:
            given = self.repeated.get(variable, variable)
            is_row = variable in self.rows
            inputs.append(pt.expand_dims(given, 1) if is_row else given)
        kept = []
        outputs = _vectorized(node, inputs)
        for variable, output in zip(node.outputs, outputs, strict=True):
            if _is_one(variable):
                self.rows.add(variable)
                output = output[:, 0]
            kept.append(output)
        return kept

    def _of_rows(self, node: Any, many: Sequence[Any]) -> Sequence[Any]:
        """Return the outputs of a node that treats rows alone, for the rows of all
        records.
        """
        op = node.op
        inputs = [self.repeated.get(variable, variable) for variable in node.inputs]
        if isinstance(op, SpecifyShape):
            return [inputs[0]]
        if isinstance(op, Join):
            parts = [
                given if variable in many else self._everywhere(given)
                for variable, given in zip(node.inputs, inputs, strict=True)
            ]
            return [pt.join(op.axis, *parts)]
        if isinstance(op, AdvancedSubtensor) and node.inputs[0] in many:
            # each record looks up in its own row
            looked_in, first, *places = inputs
            own = pt.arange(self._n_records, dtype="int64")
            inputs = [looked_in, pt.shape_padright(own, first.ndim - 1), *places]
        if isinstance(op, SymbolicOp):
            return _called(op, inputs)
        outputs: Sequence[Any] = op.make_node(*inputs).outputs
        return outputs

    def _everywhere(self, row: Any) -> Any:
        """Return a single row as often as there are records."""
        sizes = [row.shape[axis] for axis in range(1, row.ndim)]
        return pt.alloc(row, self._n_records, *sizes)

    def _unpacked(self, node: Any) -> Sequence[Any]:
        """Return the outputs of a graph that is packed in one operation, repeated node
        by node.
        """
        outputs = node.op.fgraph.bind(list(node.inputs))
        self.add(toposort(outputs, blockers=set(self.repeated)))
        kept = []
        for packed, output in zip(node.outputs, outputs, strict=True):
            if output in self.rows:
                self.rows.add(packed)
            # some don't depend on the record after all
            kept.append(self.repeated.get(output, pt.expand_dims(output, 0)))
        return kept


def _called(op: SymbolicOp, inputs: Sequence[Any]) -> Sequence[Any]:
    """Return the outputs of an operation whose graph is made for inputs of fixed
    shapes, and made again where it is called.
    """
    outputs = op(*inputs)
    return outputs if isinstance(outputs, list) else [outputs]


def _vectorized(node: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """Return the outputs of a node for inputs with the records on a further axis."""
    if isinstance(node.op, CheckAndRaise):
        # a check must fail for its own record alone
        checked, *conditions = inputs
        holds = reduce(pt.and_, conditions)
        holds = pt.shape_padright(holds, checked.ndim - holds.ndim)
        return [pt.switch(holds, checked, np.nan)]
    if isinstance(node.op, SymbolicOp) and not isinstance(node.op, WHOLE):
        # elementwise: other axes than the records' are counted from the last one
        most = max(variable.ndim for variable in node.inputs)
        padded = []
        for variable, given in zip(node.inputs, inputs, strict=True):
            is_many = given.ndim > variable.ndim
            missing = tuple(range(1, 1 + most - variable.ndim))
            padded.append(pt.expand_dims(given, missing) if is_many else given)
        return _called(node.op, padded)
    vectorized = _vectorize_node(node.op, node, *inputs)
    outputs: Sequence[Any] = getattr(vectorized, "outputs", vectorized)
    return outputs


def _is_one(variable: Any) -> bool:
    return bool(variable.ndim > 0 and variable.type.shape[0] == 1)


def _treats_rows_alone(node: Any, many: Sequence[Any]) -> bool:
    """Whether a node does with each row of some of its inputs what it does with a
    single one.
    """
    op = node.op
    first = node.inputs[0]
    if isinstance(op, Elemwise):
        return all(each in many or _is_one(each) for each in node.inputs)
    if isinstance(op, DimShuffle):
        return bool(op.new_order) and op.new_order[0] == 0
    if isinstance(op, CAReduce):
        return op.axis is not None and all(axis % first.ndim for axis in op.axis)
    if isinstance(op, Join):
        return op.axis > 0 and all(
            each in many or _is_one(each) for each in node.inputs
        )
    if isinstance(op, Dot):
        return many == [first] and first.ndim == 2
    if isinstance(op, AdvancedSubtensor):
        return _looks_up_whole_rows(node, many)
    if isinstance(op, WHOLE):
        return op.axis is not None and all(axis % first.ndim for axis in op.axis)
    if isinstance(op, SymbolicOp):
        return _is_made_of_such(node, many)
    return isinstance(op, SpecifyShape)


def _looks_up_whole_rows(node: Any, many: Sequence[Any]) -> bool:
    """Whether all places of a lookup are those of rows, or of one for all; if it is in
    rows, then in the only one of a single record.
    """
    looked_in, *places = node.inputs
    if node.op.idx_list != tuple(range(len(places))):
        return False
    if len({place.ndim for place in places}) != 1:
        return False
    if not all(place in many or _is_one(place) for place in places):
        return False
    if looked_in not in many:
        return True
    row = places[0]
    return isinstance(row, Constant) and not np.any(row.data)


def _is_made_of_such(node: Any, many: Sequence[Any]) -> bool:
    inner = node.op.fgraph
    rows = {
        held
        for held, given in zip(inner.inputs, node.inputs, strict=True)
        if given in many
    }
    for inside in inner.toposort():
        reached = [held for held in inside.inputs if held in rows]
        if not reached:
            continue
        is_plain = isinstance(inside.op, Elemwise | DimShuffle | CAReduce)
        if not is_plain or not _treats_rows_alone(inside, reached):
            return False
        rows.update(inside.outputs)
    return rows.issuperset(inner.outputs)


def _is_elementwise(op: Any) -> bool:
    """Whether the graph that is packed in an operation works on elements alone."""
    return isinstance(op, SymbolicOp) and all(
        isinstance(inside.op, Elemwise) or _only_pads(inside.op)
        for inside in op.fgraph.toposort()
    )


def _only_pads(op: Any) -> bool:
    """Whether an operation only puts axes before those that are there."""
    if not isinstance(op, DimShuffle):
        return False
    kept = [axis for axis in op.new_order if axis != "x"]
    n_kept = len(kept)
    return list(op.new_order[-n_kept:] if n_kept else []) == list(range(op.input_ndim))
