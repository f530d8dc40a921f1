"""Functions of a model's graphs: run by numpy, one operation after the other, where
that is about as fast as compiled code, which takes seconds to make.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode, get_mode
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.vm import VMLinker
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import Add, Cast, Clip, Mul, ScalarOp, Second
from pytensor.scalar.math import Log1mexp, Softplus
from pytensor.tensor.basic import (
    Alloc,
    AllocEmpty,
    ARange,
    ExtractDiag,
    Eye,
    Join,
    MakeVector,
    ScalarFromTensor,
    Split,
    TensorFromScalar,
)
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.random.basic import CategoricalRV
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)

from pdips.arrays import FloatArray, IntArray
from pdips.privacy.curator import tell

# Operations that say or change a shape, or copy
OF_SHAPES = (
    Alloc,
    AllocEmpty,
    DeepCopyOp,
    DimShuffle,
    Join,
    MakeVector,
    Reshape,
    ScalarFromTensor,
    Shape,
    Shape_i,
    SpecifyShape,
    Split,
    TensorFromScalar,
    ViewOp,
)
# Others that numpy does on whole arrays at once; of elementwise ones see _is_quick
OF_NUMBERS = (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    ARange,
    Argmax,
    CAReduce,
    CheckAndRaise,
    CumOp,
    Dot,
    ExtractDiag,
    Eye,
    IncSubtensor,
    ScalarOp,
    Subtensor,
)
# Operands of an elementwise operation that numpy takes
MOST_OPERANDS = 32
SIMPLIFYING = ("canonicalize", "stabilize", "specialize")
# After most is known of shapes
SIMPLIFIED = 2.5
# After all rewrites that simplify, which would undo it, and before those in place
AFTER_SIMPLIFYING = 49.2


@node_rewriter([Elemwise])  # type: ignore[untyped-decorator]
def in_numpy_words(fgraph: Any, node: Any) -> list[Any] | None:
    """Replace functions that numpy and scipy have no ufunc of: PyTensor would call
    Python for each element.
    """
    op = node.op.scalar_op
    x, *rest = node.inputs
    if isinstance(op, Softplus):
        small = pt.log1p(pt.exp(-pt.abs(x)))
        found = pt.maximum(x, 0) + small
    elif isinstance(op, Log1mexp):
        near_zero = pt.log(-pt.expm1(x))
        found = pt.switch(x > -np.log(2), near_zero, pt.log1p(-pt.exp(x)))
    elif isinstance(op, Second):
        [other] = rest
        found = pt.broadcast_to(other, x.shape)
    elif isinstance(op, Clip):
        lower, upper = rest
        # in this order: PyMC writes no bound as the variable itself
        found = pt.switch(x < lower, lower, pt.switch(x > upper, upper, x))
    else:
        return None
    return [found.astype(node.outputs[0].dtype)]


@node_rewriter([Blockwise])  # type: ignore[untyped-decorator]
def on_further_axes(fgraph: Any, node: Any) -> list[Any] | None:
    """Replace what is done row by row by the same on one array with further axes.

    PyTensor would call Python for each row. Joins, splits and lookups are what laws of
    categories consist of.
    """
    op = node.op.core_op
    n_axes = node.op.batch_ndim(node)
    if isinstance(op, Join):
        return [_joined(node.inputs, n_axes, op.axis)]
    if isinstance(op, Split):
        x, lengths = node.inputs
        if not all(lengths.type.broadcastable[:n_axes]):
            return None
        split = Split(op.len_splits, axis=op.axis + n_axes)
        found: list[Any] = split(x, lengths.flatten(), return_list=True)
        return found
    if isinstance(op, AdvancedSubtensor):
        looked_in, *places = node.inputs
        if op.idx_list == tuple(range(len(places))):
            return [_looked_up(looked_in, places, n_axes)]
    return None


def _joined(parts: Sequence[Any], n_axes: int, axis: int) -> Any:
    """Return parts joined, each along its first axes as long as the longest."""
    lengths = []
    for place in range(n_axes):
        long = [each for each in parts if not each.type.broadcastable[place]]
        lengths.append(long[0].shape[place] if long else 1)
    alike = []
    for each in parts:
        own = [each.shape[place] for place in range(n_axes, each.ndim)]
        alike.append(pt.broadcast_to(each, [*lengths, *own]))
    return pt.join(axis + n_axes, *alike)


def _looked_up(looked_in: Any, places: Sequence[Any], n_axes: int) -> Any:
    """Return what stands at places, those of each row in its own."""
    most = max(each.ndim for each in places) - n_axes
    whole = []
    for axis in range(n_axes):
        is_one = looked_in.type.broadcastable[axis]
        rows = pt.zeros(1, "int64") if is_one else pt.arange(looked_in.shape[axis])
        order: list[Any] = ["x"] * (n_axes + most)
        order[axis] = 0
        whole.append(rows.dimshuffle(order))
    for each in places:
        own = each.ndim - n_axes
        order = [*range(n_axes), *["x"] * (most - own), *range(n_axes, each.ndim)]
        whole.append(each.dimshuffle(order))
    return looked_in[tuple(whole)]


@node_rewriter(None)  # type: ignore[untyped-decorator]
def opened(fgraph: Any, node: Any) -> list[Any] | None:
    """Replace graphs that are packed in one operation, such as shares of exponentials,
    which PyTensor would compile by themselves.
    """
    if not isinstance(node.op, OpFromGraph):
        return None
    found: list[Any] = node.op.fgraph.bind(list(node.inputs))
    return found


REWRITES = RewriteDatabaseQuery(
    include=["minimum_compile", "merge", "py_only", *SIMPLIFYING],
    exclude=["BlasOpt", "cxx_only", "fusion", "inplace"],
)
BY_NUMPY = Mode(VMLinker(use_cloop=False, c_thunks=False), REWRITES).register(
    (in2out(on_further_axes), SIMPLIFIED),
    (in2out(opened), AFTER_SIMPLIFYING),
    (in2out(in_numpy_words), AFTER_SIMPLIFYING),
)
"""Rewritten as compiled code is, but for what would make one operation of several."""


class QuickCategorical(CategoricalRV):  # type: ignore[misc]
    """PyTensor's own law of categories, with the same draws, all looked up at once."""

    @classmethod
    def rng_fn(
        cls, rng: np.random.Generator, p: FloatArray, size: tuple[int, ...] | None
    ) -> IntArray:
        """Return draws: how many of the cumulated probabilities lie below a uniform
        number.
        """
        uniform = rng.uniform(size=p.shape[:-1] if size is None else size)
        below = p.cumsum(axis=-1) < uniform[..., None]
        return below.sum(axis=-1, dtype=np.int64)


@node_rewriter([CategoricalRV])  # type: ignore[untyped-decorator]
def drawn_at_once(fgraph: Any, node: Any) -> list[Any] | None:
    """Replace the law of categories, for which PyTensor would call Python once for each
    record.
    """
    if isinstance(node.op, QuickCategorical):
        return None
    quick = QuickCategorical(**node.op._props_dict())
    drawn: list[Any] = quick.make_node(*node.inputs).outputs
    return drawn


LIGHT = get_mode("FAST_COMPILE").register(
    (in2out(drawn_at_once), AFTER_SIMPLIFYING),
    (in2out(in_numpy_words), AFTER_SIMPLIFYING),
)
"""For graphs that are run a few times, and for random draws."""


def runs_well(function: Any) -> bool:
    """Whether numpy does all operations of a function on whole arrays at once."""
    return all(map(_is_quick, function.maker.fgraph.apply_nodes))


def _is_quick(node: Any) -> bool:
    op = node.op
    if isinstance(op, Blockwise):
        return bool(op.gufunc_spec)
    if not isinstance(op, Elemwise):
        return isinstance(op, OF_SHAPES + OF_NUMBERS)
    if len(node.inputs) + len(node.outputs) > MOST_OPERANDS:
        return False
    if isinstance(op.scalar_op, Add | Mul | Cast):
        return True
    return bool(op.nfunc_spec) and op.nfunc_spec[1] == len(node.inputs)


def function_of(
    inputs: Sequence[Any], outputs: Any, *, what: str, **settings: Any
) -> Any:
    """Return a function of public numbers, run by numpy if that does well, else
    compiled.

    ``what`` says what is compiled then, to whoever watches; ``settings`` are those of
    :func:`pytensor.function`.
    """
    settings = {"on_unused_input": "ignore"} | settings
    function = pytensor.function(inputs, outputs, mode=BY_NUMPY, **settings)
    if runs_well(function):
        return function
    tell(f"compiling {what}")
    return pytensor.function(inputs, outputs, **settings)
