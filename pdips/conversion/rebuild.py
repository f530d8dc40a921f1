"""Graphs made anew where what they are made of has other lengths, the graphs inside
operations too.
"""

import copy
from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.truncated import TruncatedRV
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import toposort
from pytensor.scan.op import Scan
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import SpecifyShape, specify_shape
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import TensorType

from pdips.errors import InputError

Memo = dict[Any, Any]

# In a memo: the places of all records, by which nothing need be looked up
ALL_RECORDS = object()
# and those of the records that rows of a frame in long form belong to
RECORD_OF_ROW = object()

# What an operation with a graph inside keeps of what it compiled or derived
KEPT = ("fn", "grad", "hash", "pullback", "rop")


def rebuilt(outputs: Sequence[Any], memo: Memo) -> list[Any]:
    """Return graphs in which variables are replaced by others of other static lengths.

    ``memo`` holds for each variable what takes its place; what is made on the way is
    added.
    """
    for node in toposort(outputs, blockers=list(memo)):
        if all(output in memo for output in node.outputs):
            continue
        inputs = [memo.get(each, each) for each in node.inputs]
        made = _remade(node, inputs)
        for old, new in zip(node.outputs, made, strict=True):
            if new.owner is not None:
                new.name = old.name
            memo[old] = new
    return [memo.get(output, output) for output in outputs]


def _remade(node: Any, inputs: list[Any]) -> Sequence[Any]:
    """Return the outputs of a node with other inputs."""
    if any(each is ALL_RECORDS or each is RECORD_OF_ROW for each in inputs):
        return [_looked_up(node, inputs)]
    if any(_has_other_axes(*pair) for pair in zip(inputs, node.inputs, strict=True)):
        return _of_rows(node, inputs)
    if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
        # random variables must be others than those of the model that was read
        return list(node.clone().outputs)
    if isinstance(node.op, SpecifyShape):
        return [_specified(inputs)]
    same_types = all(
        new.type == old.type for new, old in zip(inputs, node.inputs, strict=True)
    )
    has_other_lengths = not same_types or _is_law_of_known_length(node)
    if isinstance(node.op, TruncatedRV) and has_other_lengths:
        return _truncated(node.op, inputs)
    if isinstance(node.op, HasInnerGraph) and has_other_lengths:
        made = _other_inside(node.op, inputs).make_node(*inputs)
        return list(made.outputs)
    return list(node.clone_with_new_inputs(inputs, strict=False).outputs)


def _is_law_of_known_length(node: Any) -> bool:
    """Whether a node is a law that is one number, as often as there were records: how
    often is an input, of the same type when it is another number.
    """
    if not isinstance(node.op, SymbolicRandomVariable):
        return False
    if any(isinstance(each.type, RandomType) for each in node.inputs):
        return False
    return any(any(getattr(each.type, "shape", ())) for each in node.outputs)


def _truncated(op: TruncatedRV, inputs: list[Any]) -> Sequence[Any]:
    """Return the outputs of a truncated law whose base has other lengths.

    Counts are drawn in a loop over arrays of a fixed length until they are within the
    bounds, so that the law is written anew, as PyMC writes it.
    """
    *of_base, lower, upper = inputs
    base = op.base_rv_op.make_node(*of_base).default_output()
    law = TruncatedRV.rv_op(base, lower, upper, op.max_n_steps)
    outputs: Sequence[Any] = law.owner.outputs
    return outputs


def _looked_up(node: Any, inputs: list[Any]) -> Any:
    """Return what was taken of an array at the places of some records, now that all are
    there.
    """
    array, *places = inputs
    first, *others = places
    of_rows = isinstance(node.op, AdvancedSubtensor) and node.op.idx_list == (0,)
    is_known = first is ALL_RECORDS or first is RECORD_OF_ROW
    if not is_known or others or not of_rows:
        raise InputError(
            "the model takes some records out of an array otherwise than by x[mask], "
            "or x[record] of a frame in long form: take them so"
        )
    return array if first is ALL_RECORDS else pt.expand_dims(array, 1)


def _has_other_axes(new: Any, old: Any) -> bool:
    """Whether a variable has another number of axes than it had."""
    return getattr(new.type, "ndim", None) != getattr(old.type, "ndim", None)


def _of_rows(node: Any, inputs: list[Any]) -> list[Any]:
    """Return what is worked out, row by row, of arrays that were in long form and now
    have an axis of records and one of their entries.
    """
    op = node.op
    is_by_element = isinstance(op, Elemwise)
    if isinstance(op, RandomVariable):
        is_by_element = op.ndim_supp == 0 and not any(op.ndims_params)
    pairs = list(zip(inputs, node.inputs, strict=True))
    if is_by_element and all(_is_long_or_common(*pair, node) for pair in pairs):
        # arrays with fewer axes get them in front, which is where records are
        return list(op.make_node(*inputs).outputs)
    if isinstance(op, AdvancedSubtensor) and op.idx_list == (0,):
        array, places = inputs
        if not _has_other_axes(array, node.inputs[0]):
            return [array[places]]
    if isinstance(op, Dot) and node.inputs[0].ndim == 2:
        matrix, coefficients = inputs
        if coefficients.ndim == node.inputs[1].ndim:
            if coefficients.ndim == 2:
                matrix = pt.expand_dims(matrix, -1)
            return [(matrix * coefficients).sum(axis=2)]
    if isinstance(op, DimShuffle) and op.new_order[:1] == (0,):
        # an axis after the rows' is one further back
        others = [each if each == "x" else each + 1 for each in op.new_order[1:]]
        return [inputs[0].dimshuffle(0, 1, *others)]
    raise InputError(
        "the model works with a frame in long form otherwise than row by row, or by "
        "x[record]: keep one row a record and one column a measurement, and observe "
        "these together, observed=df[['w1', 'w2']]"
    )


def _is_long_or_common(new: Any, old: Any, node: Any) -> bool:
    """Whether an input of an operation by element was in long form, or is the same for
    all rows.
    """
    if _has_other_axes(new, old) or not isinstance(old.type, TensorType):
        return True
    if isinstance(node.op, RandomVariable) and old is node.inputs[1]:
        return True  # its size
    return old.ndim < node.outputs[-1].ndim or bool(old.type.broadcastable[0])


def _specified(inputs: list[Any]) -> Any:
    """Return a variable whose lengths are specified, those left out that aren't known
    before the records are.
    """
    variable, *lengths = inputs
    known = [each if _is_length(each) else None for each in lengths]
    if all(each is None for each in known):
        return variable
    return specify_shape(variable, known)


def _is_length(variable: Any) -> bool:
    return isinstance(variable, Constant) and variable.data is not None


def _other_inside(op: Any, inputs: list[Any]) -> Any:
    """Return an operation whose inner graph takes inputs of other lengths."""
    if isinstance(op, Scan):
        raise InputError(
            "the model loops over arrays of as many entries as the frame has records, "
            "by pytensor.scan: write what it does without a loop, or the model as "
            "build_model(data, schema)"
        )
    graph = op.fgraph
    if hasattr(graph, "unfreeze"):
        graph = graph.unfreeze()
    memo = {old: new.type() for old, new in zip(graph.inputs, inputs, strict=True)}
    outer = list(memo.values())
    outputs = rebuilt(list(graph.outputs), memo)
    made = FunctionGraph(outer, outputs, clone=True)
    other = copy.copy(op)
    for name in [*vars(other)]:
        if name.startswith("_") and any(part in name for part in KEPT):
            vars(other).pop(name)
    other.fgraph = made.freeze() if hasattr(made, "freeze") else made
    other.input_types = [each.type for each in made.inputs]
    other.output_types = [each.type for each in made.outputs]
    return other
