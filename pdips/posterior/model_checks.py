"""What no bounded likelihood can be made of: a model's priors, potentials and records that no guarantee covers."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.multivariate import CARRV, ICARRV
from pymc.logprob.abstract import _logprob
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.basic import Alloc, AllocEmpty
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.extra_ops import Repeat
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape

from pdips.arrays import FloatArray
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.posterior.columns import SUFFIX, stand_ins
from pdips.posterior.record_likelihood import ONE_EACH, SIMPLER, alone, inputs_of, over_records, terms_and_prior
from pdips.posterior.rehearsal import on_stand_ins

Table = dict[str, NDArray[Any]]
Pair = tuple[Any, Any]

TOLERANCE = 1e-8

SIZES = (2, 3, 25)
"""Numbers of stand-ins at which a model of many records is compared with the model of one."""

MOST_LEVELS = 12
"""Levels of a column that are left out one at a time."""

WIDE = "give it a distribution that integrates to 1, as wide as need be, such as pm.Normal or pm.HalfNormal"
OWN = "write it as pm.CustomDist(..., dist=...), or as one of PyMC's distributions, truncated by pm.Truncated or mixed"
INTRINSIC = "take pm.CAR with alpha below 1, or pm.ZeroSumNormal"

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


def check_proper(model: pm.Model) -> None:
    """Refuse priors that don't integrate to 1, or of which nothing shows that they do: no posterior need exist."""
    for variable in model.free_RVs:
        check_law(variable.name, variable)


def check_law(name: str, variable: Any) -> None:
    """Refuse the prior of a variable if it is improper, also inside a mixture or the function that it is made of."""
    for node in _nodes([variable]):
        op = node.op
        if isinstance(op, (FlatRV, HalfFlatRV)):
            raise InputError(f"the prior of {name!r} is improper, so its posterior need not exist; {WIDE}")
        if isinstance(op, ICARRV) or (isinstance(op, CARRV) and _is_intrinsic(node)):
            raise InputError(
                f"the prior of {name!r} is improper (an intrinsic autoregression), so its posterior need not exist; "
                f"{INTRINSIC}"
            )
        if isinstance(op, CustomDistRV) or (isinstance(op, CustomSymbolicDistRV) and not op.inline_logprob):
            raise InputError(
                f"the prior of {name!r} is a log density of its own (logp=...), and nothing shows that it integrates "
                f"to 1; {OWN}"
            )


def _nodes(graphs: Sequence[Any]) -> Iterator[Apply]:
    """Yield the operations of graphs, and of the graphs inside them."""
    for node in toposort(graphs):
        yield node
        if isinstance(node.op, HasInnerGraph):
            yield from _nodes(node.op.inner_outputs)


def _is_intrinsic(node: Apply) -> bool:
    alpha = node.op.dist_params(node)[2]
    return isinstance(alpha, Constant) and bool((np.abs(alpha.data) >= 1).any())


def check_potentials(model: pm.Model, public: Collection[str], columns: Collection[str]) -> None:
    """Refuse potentials that the model's file doesn't call public, and those that read records."""
    names = [potential.name for potential in model.potentials]
    if missing := [name for name in public if name not in names]:
        raise InputError(f"PUBLIC_POTENTIALS names {missing[0]!r}, which is no pm.Potential of the model")
    read = [*model.observed_RVs, *(each for each in model.data_vars if each.name.removesuffix(SUFFIX) in columns)]
    for potential in model.potentials:
        behind = set(ancestors([potential]))
        if found := [each.name.removesuffix(SUFFIX) for each in read if each in behind]:
            raise InputError(
                f"potential {potential.name!r} reads column {found[0]!r}, and no window bounds what records do through "
                "a potential; make it part of the law of an observed variable"
            )
        if potential.name not in public:
            raise InputError(
                f"the model has a potential, {potential.name!r}, and nothing shows that prior times potential can be "
                f"integrated; if it can, say PUBLIC_POTENTIALS = ({potential.name!r},) at the top of the model's file"
            )


@dataclass(frozen=True, eq=False)
class CompiledTerms:
    """The log-likelihoods of a model's records and its log prior, compiled."""

    values: list[str]  # value variables
    columns: dict[str, Any]  # the number types of the columns that the model reads
    function: Any  # of both, returning terms, shape (records,), and the log prior

    def __call__(self, point: Mapping[str, Any], table: Table) -> tuple[FloatArray, float]:
        """Return the log-likelihood of each record, shape (records,), and the log prior."""
        with np.errstate(all="ignore"), on_stand_ins("the log-likelihood"):
            read = (np.asarray(table[name], kind) for name, kind in self.columns.items())
            found, prior = self.function(*(point[name] for name in self.values), *read)
        return np.asarray(found, dtype=np.float64), float(prior)


def terms_of(model: pm.Model, names: Collection[str], *, single: bool) -> CompiledTerms:
    """Compile the terms of a model as it is written or, with ``single``, of a model of one record repeated for many."""
    columns = inputs_of(model, names)
    many = {name: shared.type.clone(shape=(None,))(name=name) for name, shared in columns.items()}
    with on_stand_ins("the log-likelihood"):
        graph, prior = terms_and_prior(model)
        if single:
            term, record = alone(graph, columns)
            graph = over_records(term, {record[name]: column for name, column in many.items()})
        replaced = {shared: many[name] for name, shared in columns.items()}
        graph, prior = clone_replace([graph, prior], replaced, rebuild_strict=False)
        graphs = [rewrite_graph(each, include=SIMPLER) for each in (graph, prior)]
        inputs = [*model.value_vars, *many.values()]
        function = pytensor.function(inputs, graphs, mode="FAST_COMPILE", on_unused_input="ignore")
    kinds = {name: each.dtype for name, each in many.items()}
    return CompiledTerms([value.name for value in model.value_vars], kinds, function)


def check_company(
    model: pm.Model,
    build: Callable[[Table], pm.Model],
    schema: Schema,
    points: Sequence[Mapping[str, NDArray[Any]]],
) -> None:
    """Refuse a model that, written for many records, isn't what it says of each record alone.

    The library samples the model of one record, repeated; where the analyst's model of many differs from it, something
    else than what was written would run. Both are compared on made-up tables of several lengths, among them extreme
    ones: all records equal, one different, each level absent once, columns at their bounds.
    """
    single = terms_of(model, schema.columns, single=True)
    for n in SIZES:
        many = terms_of(build(stand_ins(schema, n)), schema.columns, single=False)
        if many.values != single.values:
            raise InputError("the model's parameters depend on how many records there are, or on their values")
        tables = list(extreme_tables(schema, n))
        for point in points:
            _compare(single, many, point, tables)


def _compare(single: CompiledTerms, many: CompiledTerms, point: Mapping[str, Any], tables: Sequence[Table]) -> None:
    together = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    wanted, prior = single(point, together)
    for table, expected in zip(tables, np.split(wanted, len(tables)), strict=True):
        found, other_prior = many(point, table)
        if not np.allclose(prior, other_prior, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            raise InputError(
                "the prior depends on how many records there are or on their values; make it of public constants"
            )
        if found.shape != expected.shape:
            raise InputError(ONE_EACH)
        known = np.isfinite(expected)
        if not np.allclose(expected[known], found[known], rtol=TOLERANCE, atol=TOLERANCE):
            raise InputError(_why(many, point, table))


def _why(many: CompiledTerms, point: Mapping[str, Any], table: Table) -> str:
    """Return which columns of other records move the term of a record."""
    n = len(next(iter(table.values())))
    before, _ = many(point, table)
    moving = []
    for name, values in table.items():
        others = [np.roll(values, shift) for shift in range(1, min(n, 4))]
        others += [np.full_like(values, each) for each in np.unique(values)[[0, -1]]]
        for other, i in product(others, range(min(n, 4))):
            changed = np.where(np.arange(n) == i, values, other).astype(values.dtype)
            after, _ = many(point, {**table, name: changed})
            if not np.isclose(before[i], after[i], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                moving.append(name)
                break
    if moving:
        return (
            f"the log-likelihood of a record depends on other records, through {', '.join(map(repr, moving))} "
            "(standardising, lags, ranks, counts of levels, or means over the data); work such numbers out from public "
            "knowledge and make them constants"
        )
    return (
        "the log-likelihood of a record depends on how many records there are or on its place among them, or the model "
        "holds numbers of several records as constants (get_value(), eval(), a pm.Data of its own); read columns as "
        "data[name] only"
    )


def extreme_tables(schema: Schema, n: int) -> Iterator[Table]:
    """Yield made-up tables of n records: ordinary ones, and those at which a dependence that is rare would show."""
    spread = stand_ins(schema, max(SIZES))
    rows = {name: np.unique(values) for name, values in spread.items()}
    ordinary = {name: values[:n] for name, values in spread.items()}
    yield ordinary
    yield {name: values[::-1][:n] for name, values in spread.items()}
    for place in (0, 1, len(spread) % 7 + 3):
        equal = {name: np.repeat(values[place], n) for name, values in spread.items()}
        yield equal
        yield {name: np.append(values[1:], spread[name][place - 1]) for name, values in equal.items()}
    if n < max(SIZES):
        return
    for name, values in rows.items():
        for end in (values[0], values[-1]):
            yield {**ordinary, name: np.repeat(end, n)}
            yield {**ordinary, name: np.append(np.repeat(end, n - 1), values[0] + values[-1] - end)}
        if schema.columns[name].is_categorical:
            levels = schema.columns[name].n_levels
            for level in range(min(levels, MOST_LEVELS) if levels > 1 else 0):
                yield {**ordinary, name: np.where(ordinary[name] == level, (level + 1) % levels, ordinary[name])}


def check_same(model: pm.Model, other: pm.Model, schema: Schema, said: str) -> None:
    """Refuse a model that is another one when it is built on another stand-in table.

    Shapes may differ, and arrays that repeat the same numbers along an axis may differ in its length.
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
    """Return the one value that an array repeats along an axis."""
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
