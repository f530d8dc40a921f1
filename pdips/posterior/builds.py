"""Whether a model is the same whatever records it is built on: two builds compared, variable by variable."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.logprob.abstract import _logprob
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.op import HasInnerGraph
from pytensor.tensor.basic import Alloc, AllocEmpty
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.extra_ops import Repeat
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape

from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.posterior.columns import SUFFIX

Pair = tuple[Any, Any]

SHAPED = (Alloc, Repeat, Reshape, SpecifyShape)
"""Operations whose first input has values, and whose others say how long the result is."""

OTHER_RECORDS = (
    "{name} of the model changes with the records that it is built on, and these are stand-ins: it is built before a "
    "record is read, so numbers from get_value() or eval() are no record's. Use data[...] in the formula itself, and "
    "public numbers, such as schema.columns[...].lower"
)
OTHER_NUMBER = (
    "{name} of the model changes with the number of stand-ins that it is built on, which is not that of the records. "
    "data.n_records is for shapes only (shape=, pt.zeros); use public constants, and none that tells the place of a "
    "record in the table, as np.arange(data.n_records) does"
)


def check_same(model: pm.Model, other: pm.Model, schema: Schema, said: str) -> None:
    """Refuse a model that is another one when it is built on another stand-in table.

    Shapes may differ, and arrays that repeat the same numbers along an axis may differ in its length.

    Parameters
    ----------
    model, other : pymc.Model
        The two builds.
    schema : Schema
        Whose columns they read.
    said : str
        The refusal, with ``{name}`` for the variable.

    Raises
    ------
    InputError
        Naming the first variable that differs.
    """
    if list(model.named_vars) != list(other.named_vars):
        differing = set(model.named_vars) ^ set(other.named_vars)
        raise InputError(said.format(name=repr(min(differing)) if differing else "the order of variables"))
    known = {one: other.named_vars[name] for name, one in model.named_vars.items()}
    read = {model.named_vars[name + SUFFIX] for name in schema.columns if name + SUFFIX in model.named_vars}
    for name, one in model.named_vars.items():
        if one in read:
            continue
        known.pop(one)
        pairs = [(one, known_other := other.named_vars[name]), *_values(one, known_other, model, other)]
        if not all(_same(*pair, known) for pair in [*pairs, *_densities(one, known_other, name)]):
            raise InputError(said.format(name=repr(name)))
        known[one] = known_other


def _values(one: Any, other: Any, model: pm.Model, built: pm.Model) -> list[Pair]:
    observed = one in model.observed_RVs and other in built.observed_RVs
    return [(model.rvs_to_values[one], built.rvs_to_values[other])] if observed else []


def _densities(one: Any, other: Any, name: str) -> list[Pair]:
    """Return the log densities that a distribution of the analyst's own gives, of the same value."""
    op = one.owner.op if one.owner else None
    if not isinstance(op, CustomDistRV) and not (isinstance(op, CustomSymbolicDistRV) and not op.inline_logprob):
        return []
    value = one.type()
    try:
        return [(_logprob(op, (value,), *one.owner.inputs), _logprob(other.owner.op, (value,), *other.owner.inputs))]
    except Exception as error:  # noqa: BLE001 - the analyst's own code, which has seen stand-ins only
        raise InputError(f"the log density of {name!r} failed: {type(error).__name__}: {error}") from None


def _same(one: Any, other: Any, known: dict[Any, Any]) -> bool:
    """Whether two graphs are the same down to the model's variables, but for shapes."""
    pending, seen = [(one, other)], dict(known)
    while pending:
        one, other = pending.pop()
        if one in seen:
            if seen[one] is not other:
                return False
            continue
        seen[one] = other
        if isinstance(one.type, RandomType):
            continue
        if one.owner is None or other.owner is None:
            if one.owner is not other.owner or not _same_leaf(one, other):
                return False
        elif one.owner.outputs.index(one) != other.owner.outputs.index(other) or not _same_op(
            one.owner.op, other.owner.op
        ):
            return False
        else:
            pending += [*_inputs(one.owner, other.owner), *_graphs(one.owner.op, other.owner.op)]
            seen |= _placeholders(one.owner.op, other.owner.op)
    return True


def _same_leaf(one: Any, other: Any) -> bool:
    if isinstance(one, Constant) and isinstance(other, Constant):
        return _same_numbers(one.data, other.data)
    if isinstance(one, SharedVariable) and isinstance(other, SharedVariable):
        return _same_numbers(one.get_value(), other.get_value())
    return one is other


def _same_numbers(one: Any, other: Any) -> bool:
    """Whether two constants are equal; along axes on which they differ in length each must repeat one value."""
    try:
        first, second = np.asarray(one), np.asarray(other)
        if first.ndim != second.ndim:
            return False
        for axis, (n, m) in enumerate(zip(first.shape, second.shape, strict=True)):
            if n != m:
                first, second = _repeated(first, axis), _repeated(second, axis)
        return np.array_equal(first, second, equal_nan=first.dtype.kind == second.dtype.kind == "f")
    except (TypeError, ValueError):
        return False


def _repeated(values: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return the one value that an array repeats along an axis.

    Raises
    ------
    ValueError
        If there are several.
    """
    first = values.take([0], axis=axis) if values.shape[axis] else values
    if not np.array_equal(np.broadcast_to(first, values.shape), values):
        raise ValueError("several values")
    return first


def _same_op(one: Any, other: Any) -> bool:
    """Whether two operations do the same; functions inside them are looked at elsewhere, if at all."""
    if one == other:
        return True
    if type(one).__name__ != type(other).__name__:
        return False
    if isinstance(one, Blockwise):
        return _same_op(one.core_op, other.core_op)
    if isinstance(one, HasInnerGraph):
        return len(one.inner_inputs) == len(other.inner_inputs) and len(one.inner_outputs) == len(other.inner_outputs)
    return isinstance(one, CustomDistRV) or not getattr(one, "__props__", ())


def _inputs(one: Any, other: Any) -> Iterator[Pair]:
    """Yield the inputs of two nodes that hold values, side by side."""
    if isinstance(one.op, (Shape, Shape_i, AllocEmpty)):
        return
    if len(one.inputs) != len(other.inputs):
        yield one.out, None
        return
    size = one.op.size_param(one) if hasattr(one.op, "size_param") else None
    for place, pair in enumerate(zip(one.inputs, other.inputs, strict=True)):
        if pair[0] is not size and not (place and isinstance(one.op, SHAPED)):
            yield pair


def _graphs(one: Any, other: Any) -> list[Pair]:
    """Return the graphs inside two operations, side by side; none where these are equal, or have no graph."""
    one, other = getattr(one, "core_op", one), getattr(other, "core_op", other)
    if one == other or not isinstance(one, HasInnerGraph):
        return []
    return list(zip(one.inner_outputs, other.inner_outputs, strict=True))


def _placeholders(one: Any, other: Any) -> dict[Any, Any]:
    one, other = getattr(one, "core_op", one), getattr(other, "core_op", other)
    if one == other or not isinstance(one, HasInnerGraph):
        return {}
    return dict(zip(one.inner_inputs, other.inner_inputs, strict=True))
