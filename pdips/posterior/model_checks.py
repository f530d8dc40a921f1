"""What no bounded likelihood can be made of: priors, potentials and records that a guarantee doesn't cover."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pymc.model.fgraph import ModelFreeRV, ModelNamed, ModelObservedRV, ModelPotential
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.posterior.columns import stand_ins
from pdips.posterior.prior import check_law
from pdips.posterior.record_likelihood import ONE_EACH, SIMPLER, alone, inputs_of, over_records, terms_and_prior
from pdips.posterior.record_terms import Parts, read_by, total
from pdips.privacy.loss import Neighbours

FULL_SEARCH = 2**14
"""Up to this many records every pair of records is looked at."""

TOLERANCE = 1e-8


def check_variables(parts: Parts, public_potentials: Collection[str]) -> None:
    """Refuse what can be seen without numbers: improper or data-driven priors, potentials, imputed values."""
    free = parts.of_kind(ModelFreeRV)
    for node in free:
        _check_prior(node)
    names = {node.op.name for node in free}
    for node in parts.of_kind(ModelObservedRV):
        base = node.op.name.removesuffix("_observed")
        if base != node.op.name and f"{base}_unobserved" in names and node.op.name not in parts.axis.ids:
            raise InputError(
                f"{base!r} has missing values, which PyMC imputes; say in record_ids[{node.op.name!r}] which record "
                "each known value belongs to, or leave such records out by a rule that looks at one record only"
            )
    for node in parts.of_kind(ModelPotential):
        if node.op.name not in public_potentials:
            raise InputError(
                f"potential {node.op.name!r} may read records outside the window; if it reads parameters only, name it "
                "in PUBLIC_POTENTIALS of the model's file, or in public_potentials"
            )
        if any(isinstance(each.owner.op, (ModelNamed, ModelObservedRV)) for each in _variables(node.inputs[0])):
            raise InputError(f"potential {node.op.name!r} is called public but reads data; make them constants")


def _check_prior(node: Any) -> None:
    name, variable = node.op.name, node.inputs[0]
    check_law(name, variable)
    if isinstance(variable.owner.op, MinibatchRandomVariable):
        raise InputError(f"{name!r} has a total_size, which rescales its density; take it away")
    for each in _variables(variable):
        if isinstance(each.owner.op, (ModelNamed, ModelObservedRV)):
            raise InputError(
                f"the prior of {name!r} reads {each.owner.op.name!r}; no window bounds what records do through a "
                "prior, so make it a constant that is public"
            )


def _variables(graph: Any) -> Iterator[Any]:
    return (each for each in read_by(graph) if not isinstance(each, Constant))


@dataclass(frozen=True, eq=False)
class Probe:
    """The terms of a model as a function of its parameters and of all arrays that hold one value a record.

    Parameters
    ----------
    names : list of str
        Free variables.
    values : list of ndarray
        The arrays.
    rows : list of ndarray of int
        For each row of an array the record it belongs to.
    axes : list of int
        Where the rows of an array are.
    n : int
        Number of records.
    function : callable
        Of the free variables and the arrays.
    sure : list of bool
        Which arrays surely hold records: beside data, constants may be public tables of as many rows.
    """

    names: list[str]
    values: list[NDArray[Any]]
    rows: list[IntArray]
    axes: list[int]
    n: int
    function: Any
    sure: list[bool]

    def terms(self, point: Mapping[str, Any], values: list[NDArray[Any]] | None = None) -> FloatArray:
        """Return the log-likelihood of each record, shape (records,)."""
        with np.errstate(all="ignore"):
            found = self.function(*(point[name] for name in self.names), *(self.values if values is None else values))
        return np.asarray(found, dtype=np.float64)

    def replaced(self, which: BoolArray, rng: np.random.Generator, start: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the arrays ``start`` with some records replaced by others of the table."""
        made = []
        for value, given, rows, axis, sure in zip(self.values, start, self.rows, self.axes, self.sure, strict=True):
            hit = which[rows] & (sure or start is self.values)
            source = rng.integers(len(rows), size=int(hit.sum()))
            changed = given.copy()
            np.moveaxis(changed, axis, 0)[hit] = np.moveaxis(value, axis, 0)[source]
            made.append(changed)
        return made

    def extremes(self) -> Iterator[list[NDArray[Any]]]:
        """Yield arrays in which all records are equal: to the smallest values, and to the largest."""
        for end in (np.min, np.max):
            yield [
                np.broadcast_to(end(value, axis=axis, keepdims=True), value.shape).copy() if sure else value
                for value, axis, sure in zip(self.values, self.axes, self.sure, strict=True)
            ]


def count_records(parts: Parts, point: Mapping[str, NDArray[Any]]) -> int:
    """Return the number of records of a model's data.

    Raises
    ------
    InputError
        If observed variables don't agree on it.
    """
    inputs = {**{each: point[each.name] for each in parts.parameters}, **_values(parts)}
    graphs = [rewrite_graph(term, include=("local_remove_check_parameter",)) for term in parts.terms.values()]
    lengths = [graph.shape[0] for graph in graphs]
    found = pytensor.function(list(inputs), lengths, mode="FAST_COMPILE", on_unused_input="ignore")(*inputs.values())
    by_name = dict(zip(parts.terms, map(int, found), strict=True))
    if len(set(by_name.values())) > 1:
        raise InputError(
            f"observed variables {', '.join(map(repr, by_name))} differ in length; say in record_ids which record each "
            "of their values belongs to, or in record_axis which axis numbers records"
        )
    n = next(iter(by_name.values()))
    if parts.axis.n is not None and n != parts.axis.n:
        raise InputError(
            f"{', '.join(map(repr, by_name))} should have n_records = {parts.axis.n} values along the record axis and "
            "doesn't; name the axis by dims (record_dim) or in record_axis"
        )
    return n


def _values(parts: Parts) -> dict[Any, Any]:
    return {held: shared.get_value(borrow=True) for held, shared in parts.data.items()}


def probe(parts: Parts, n: int) -> Probe:
    """Compile a model's terms as a function of what holds records."""
    owners = {n: np.arange(n)} | {np.asarray(ids).size: np.asarray(ids).ravel() for ids in parts.axis.ids.values()}
    owners |= {len(ids): np.asarray(ids) for ids in parts.axis.ids.values()}
    graph = total(list(parts.terms.values()))
    given = _values(parts)
    found = {held: value for held, value in given.items() if _record_axis(value, owners) is not None}
    columns = parts.of_kind(ModelObservedRV)
    if not all(isinstance(node.inputs[1].owner and node.inputs[1].owner.op, ModelNamed) for node in columns):
        arrays = {each for each in ancestors([graph]) if isinstance(each, Constant) and np.ndim(each.data)}
        found |= {each: each.data for each in arrays if _is_column(each.data, parts, owners)}
    stands = {
        each: each.type.clone(shape=tuple(1 if size == 1 else None for size in each.type.shape))() for each in found
    }
    fixed = {held: shared for held, shared in parts.data.items() if held not in found}
    [replaced] = clone_replace([graph], {**stands, **fixed}, rebuild_strict=False)
    inputs = [*parts.parameters, *stands.values()]
    axes = [_record_axis(value, owners) or 0 for value in found.values()]
    return Probe(
        names=[each.name for each in parts.parameters],
        values=list(found.values()),
        rows=[owners[value.shape[axis]] for value, axis in zip(found.values(), axes, strict=True)],
        axes=axes,
        n=n,
        function=pytensor.function(inputs, replaced, mode="FAST_COMPILE", on_unused_input="ignore"),
        sure=[each in given or not given.keys() & found.keys() for each in found],
    )


def _is_column(value: NDArray[Any], parts: Parts, owners: Mapping[int, Any]) -> bool:
    """Whether a constant may hold values of records, rather than say whose they are."""
    ids = any(np.array_equal(value, each) for each in parts.axis.ids.values())
    return value.dtype != bool and not ids and _record_axis(value, owners) is not None


def _record_axis(value: Any, owners: Mapping[int, Any]) -> int | None:
    return next((axis for axis, size in enumerate(np.shape(value)) if size in owners), None)


def check_records(looked_at: Probe, points: Sequence[Mapping[str, NDArray[Any]]], seed: int = 0) -> None:
    """Refuse a model in which changing one record moves the term of another.

    Records are replaced by others in sets such that of any two of them one is replaced and the other is not; the same
    from tables in which all records are equal. What shows at other tables only isn't seen: this is a trial.

    Raises
    ------
    InputError
        If a record that was not replaced has another term than before.
    """
    rng = np.random.default_rng(seed)
    for point in points:
        for start in (looked_at.values, *looked_at.extremes()):
            before = looked_at.terms(point, start)
            for which in _halves(looked_at.n, rng):
                after = looked_at.terms(point, looked_at.replaced(which, rng, start))
                if not np.allclose(before[~which], after[~which], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                    raise InputError(
                        "the log-likelihood of a record depends on other records (standardising, lags, ranks, or means "
                        "over the data); work such numbers out from public knowledge and make them constants"
                    )


def _halves(n: int, rng: np.random.Generator) -> Iterator[BoolArray]:
    """Yield sets of records; up to ``FULL_SEARCH`` records, any two are told apart by one of them, both ways."""
    places = np.arange(n)
    if n > FULL_SEARCH:
        places = rng.integers(2**3, size=n)
    for bit in range(int(places.max(initial=0)).bit_length()):
        half = (places >> bit & 1).astype(bool)
        yield half
        yield ~half


def record_parameters(looked_at: Probe, point: Mapping[str, NDArray[Any]], parts: Parts) -> tuple[str, ...]:
    """Return the free variables that are there once for each record."""
    found = []
    before = looked_at.terms(point)
    for node in parts.of_kind(ModelFreeRV):
        name = node.op.name
        base = name.removesuffix("_unobserved")
        imputed = base != name and f"{base}_observed" in parts.terms
        numbered = bool(set(node.op.dims or ()) & set(parts.axis.dims))
        if imputed or numbered or _each_its_own(looked_at, point, before, name):
            found.append(name)
    return tuple(found)


def _each_its_own(looked_at: Probe, point: Mapping[str, NDArray[Any]], before: FloatArray, name: str) -> bool:
    """Whether element i of a variable, out of as many as there are records, moves the term of record i alone."""
    value, n = np.asarray(point[name]), looked_at.n
    if n < 2 or n not in value.shape:
        return False
    axis = value.shape.index(n)
    others = np.roll(value, 1, axis)
    for which in _halves(n, np.random.default_rng(0)):
        along = which.reshape([-1 if each == axis else 1 for each in range(value.ndim)])
        moved = looked_at.terms({**point, name: np.where(along, others, value)})
        if not np.allclose(before[~which], moved[~which], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            return False
    return True


def check_record_parameters(names: Collection[str], parts: Parts, n: int, neighbours: Neighbours) -> None:
    """Refuse record-specific parameters where the number of records is confidential, or whose prior reads records."""
    for node in parts.of_kind(ModelFreeRV):
        name = node.op.name
        if name not in names:
            continue
        if neighbours == "add-remove":
            raise InputError(
                f"{name!r} has one value for each record, so their number can be read off the posterior; integrate it "
                "out, or take neighbours='replace-one'"
            )
        constants = (np.asarray(each.data) for each in read_by(node.inputs[0]) if isinstance(each, Constant))
        if any(n in value.shape and value.dtype != bool and len(np.unique(value)) > 1 for value in constants):
            raise InputError(
                f"the prior of {name!r}, one for each record, reads records; give all of them the same prior"
            )


SIZES = (2, 3, 25)
"""Numbers of stand-ins at which a model of many records is compared with the model of one."""

MOST_LEVELS = 12
"""Levels of a column that are left out one at a time."""

Table = dict[str, NDArray[Any]]


@contextmanager
def on_stand_ins(what: str) -> Iterator[None]:
    """Turn whatever a model raises on made-up records into one plain line; it has seen no record.

    Raises
    ------
    InputError
        In place of any other exception.
    """
    try:
        yield
    except InputError:
        raise
    except IndexError:
        raise InputError(
            "the model looks something up by a column, and values that the schema allows lie beyond it; make what is "
            "looked up as long as the column has levels or whole numbers"
        ) from None
    except NotImplementedError as error:
        raise InputError(
            f"{what} can't be drawn from: {_line(error)}; a pm.CustomDist needs dist=... or random=..."
        ) from None
    except Exception as error:  # noqa: BLE001 - the analyst's model, on stand-ins
        raise InputError(f"{what} failed on made-up records: {type(error).__name__}: {_line(error)}") from None


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


@dataclass(frozen=True, eq=False)
class Terms:
    """The log-likelihoods of a model's records and its log prior, as a function of parameters and columns.

    Parameters
    ----------
    values : list of str
        Value variables.
    columns : dict of str to dtype
        The columns that the model reads.
    function : callable
        Of both, returning terms, shape (records,), and the log prior.
    """

    values: list[str]
    columns: dict[str, Any]
    function: Any

    def __call__(self, point: Mapping[str, Any], table: Table) -> tuple[FloatArray, float]:
        """Return the log-likelihood of each record, shape (records,), and the log prior."""
        with np.errstate(all="ignore"), on_stand_ins("the log-likelihood"):
            read = (np.asarray(table[name], kind) for name, kind in self.columns.items())
            found, prior = self.function(*(point[name] for name in self.values), *read)
        return np.asarray(found, dtype=np.float64), float(prior)


def terms_of(model: pm.Model, names: Collection[str], *, single: bool) -> Terms:
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
    return Terms(
        [value.name for value in model.value_vars], {name: each.dtype for name, each in many.items()}, function
    )


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

    Parameters
    ----------
    model : pymc.Model
        The model of one record.
    build : callable
        Builds the model of any records.
    schema : Schema
        Says what records there can be.
    points : sequence of mapping of str to ndarray
        Values of the value variables at which both are compared.

    Raises
    ------
    InputError
        If they differ; it names the columns of other records that move a record's term.

    Notes
    -----
    The guarantee doesn't rest on this check (``docs/proofs/censored-posterior.md``).
    """
    single = terms_of(model, schema.columns, single=True)
    for n in SIZES:
        many = terms_of(build(stand_ins(schema, n)), schema.columns, single=False)
        if many.values != single.values:
            raise InputError("the model's parameters depend on how many records there are, or on their values")
        tables = list(extreme_tables(schema, n))
        for point in points:
            _compare(single, many, point, tables)


def _compare(single: Terms, many: Terms, point: Mapping[str, Any], tables: Sequence[Table]) -> None:
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


def _why(many: Terms, point: Mapping[str, Any], table: Table) -> str:
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
