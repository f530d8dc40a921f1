"""The log-likelihood of a record: alone, of blocks of records, and as a graph."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.logprob.abstract import MeasurableOp, _logprob
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.replace import _vectorize_node, clone_replace, graph_replace, vectorize_graph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import All, Dot
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.posterior.columns import MISSING, SUFFIX, Values

Points = Sequence[FloatArray]  # Values of a model's value variables, an array (points, *shape) for each

LOOKUPS = (AdvancedSubtensor, Blockwise, HasInnerGraph, Subtensor)  # What looks something up, or may do so inside
BLOCK = 100_000  # Log-likelihoods that ``blocks`` works out at once: they should fit in the cache
SIMPLER = ("canonicalize", "stabilize", "local_remove_check_parameter")
"""Rewrites of a log density. Checks of parameters would end the run at the edge of what doubles can hold."""

ONE_EACH = (
    "the model doesn't have one log-likelihood a record: it holds numbers of several records as constants, or an "
    "observed variable has its records elsewhere than on its first axis; read columns as data[name]"
)


class Hurdle(MeasurableOp, Op):  # type: ignore[misc]
    """In place of an observed variable: a fixed number, of log-likelihood 0, where another one says it is missing."""

    __props__ = ()

    def make_node(self, variable: Any, missing: Any, fixed: Any) -> Apply:
        """Return the node of three vectors: the variable, 1 where it is missing, and what it is there."""
        return Apply(self, [variable, missing, fixed], [variable.type()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        """Put the fixed number where the draw is missing."""
        variable, missing, fixed = inputs
        output_storage[0][0] = np.where(missing > 0.5, fixed, variable).astype(variable.dtype)


@_logprob.register(Hurdle)  # type: ignore[untyped-decorator]
def hurdle_logprob(op: Hurdle, values: Sequence[Any], variable: Any, missing: Any, fixed: Any, **kwargs: Any) -> Any:
    """Return the log-likelihood of the variable where it is there, and 0 elsewhere, whatever it is there."""
    return pt.switch(missing > 0.5, 0.0, pm.logp(variable, *values, **kwargs))


def observed_columns(model: pm.Model) -> dict[str, tuple[str, ...]]:
    """Return the columns of each observed variable: its own name, or the coordinates of its last dimension."""
    found: dict[str, tuple[str, ...]] = {}
    for rv in model.observed_RVs:
        dims: Sequence[str | None] = model.named_vars_to_dims.get(rv.name) or ()
        labels = model.coords.get(dims[-1]) if len(dims) > 1 and dims[-1] is not None else None
        found[rv.name] = (rv.name,) if labels is None else tuple(map(str, labels))
    return found


def count_known(model: pm.Model, fixed: Mapping[str, float]) -> None:
    """Let the terms of columns that may be missing, with the numbers read there, count for records that have them."""
    observed = observed_columns(model)
    of = {name: variable for variable, names in observed.items() for name in names}
    for name, number in fixed.items():
        if name not in of or (says := of.get(name + MISSING)) is None:
            continue
        if of[name] != name:
            raise InputError(f"{name!r} may be missing: observe it by itself, not in {of[name]!r}")
        variable, missing, data = model[name], model[says], model.named_vars.get(name + SUFFIX)
        missing = missing if missing.ndim == 1 else missing[:, observed[says].index(name + MISSING)]
        if variable in ancestors([missing]):
            raise InputError(f"whether {name!r} is missing can't depend on its number, which a missing value lacks")
        there = {} if data is None else {data: pt.full(data.shape, number, data.dtype)}
        [there] = clone_replace([model.rvs_to_values[variable]], there, rebuild_strict=False)
        made = Hurdle().make_node(variable.owner.clone().outputs[variable.index], missing, there)
        made.outputs[0], variable.owner, variable.index = variable, made, 0  # what reads the variable now reads this


def record_terms(model: pm.Model) -> Any:
    """Return the log-likelihood of each record, the first axis of observed variables, as a graph of values and data."""
    terms = [on_first_axis(term) for term in model.logp(vars=model.observed_RVs, sum=False)]
    return sum(terms[1:], terms[0])


def on_first_axis(term: Any) -> Any:
    """Sum a log-likelihood over all axes but its first."""
    return term.reshape((term.shape[0], -1)).sum(axis=1) if term.ndim > 1 else term


def log_prior(model: pm.Model) -> Any:
    """Return the log prior density of the value variables (Jacobians included), as a graph."""
    return model.logp(vars=[*model.free_RVs, *model.potentials])


def inputs_of(model: pm.Model, columns: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the columns that a model reads, each with its shared variable; other data of the model are constants."""
    found = {variable.name: variable for variable in model.data_vars}
    named = {name.removesuffix(SUFFIX): variable for name, variable in found.items() if name.endswith(SUFFIX)}
    known = named if columns is None else set(columns)
    return {name: variable for name, variable in named.items() if name in known}


def alone(terms: Any, columns: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the log-likelihood of one record, shape (1,), and the columns of that record, shape (1, ...) each."""
    ones = {name: v.type.clone(shape=(1, *v.type.shape[1:]))(name=name) for name, v in columns.items()}
    try:
        [single] = clone_replace([terms], {columns[name]: one for name, one in ones.items()}, rebuild_strict=False)
        single = rewrite_graph(open_checks(single, lambda _: False), include=("ShapeOpt", "canonicalize", "stabilize"))
        if single.type.shape == (None,):  # some operations don't say
            single = pt.specify_shape(single, (1,))
    except (ValueError, TypeError):  # lengths that don't go together
        raise InputError(ONE_EACH) from None
    if single.type.shape != (1,):
        raise InputError(ONE_EACH)
    return single, ones


def over_records(term: Any, columns: Mapping[Any, Any]) -> Any:
    """Return the log-likelihoods of many records, shape (records,), from the graph of a single one."""
    known, rows = dict(columns), set(columns)
    for node in toposort([term]):
        if any(each in known for each in node.inputs):
            try:
                made = _repeated(node, known, rows)
            except (NotImplementedError, ValueError, TypeError) as error:
                raise InputError(
                    f"the model's log-likelihood contains {type(node.op).__name__}, which can't be repeated for every "
                    f"record ({type(error).__name__}); write it with elementwise operations, sums and products"
                ) from None
            known |= dict(zip(node.outputs, made, strict=True))
    if term not in known:
        raise InputError("the model's log-likelihood reads no column")
    return known[term] if term in rows else pt.specify_shape(known[term], (None, 1))[:, 0]


def _repeated(node: Any, known: Mapping[Any, Any], rows: set[Any]) -> Sequence[Any]:
    """Return the outputs of a node for all records, and note in ``rows`` those that have the records on their axis."""
    many = [each for each in node.inputs if each in known]
    if rows.issuperset(many) and _treats_rows_alone(node, many):
        rows.update(node.outputs)
        if isinstance(node.op, SpecifyShape):
            return [known[many[0]]]
        made: Sequence[Any] = node.op.make_node(*(known.get(each, each) for each in node.inputs)).outputs
        return made
    given = [pt.expand_dims(known[each], 1) if each in rows else known.get(each, each) for each in node.inputs]
    if isinstance(node.op, CheckAndRaise):
        holds = reduce(pt.and_, given[1:])  # a check must fail for its own record alone
        made = [pt.switch(pt.shape_padright(holds, given[0].ndim - holds.ndim), given[0], np.nan)]
    else:
        found = _vectorize_node(node.op, node, *given)
        made = getattr(found, "outputs", found)
    fronts = [_is_one(each) for each in node.outputs]
    rows.update(each for each, front in zip(node.outputs, fronts, strict=True) if front)
    return [each[:, 0] if front else each for each, front in zip(made, fronts, strict=True)]


def _is_one(variable: Any) -> bool:
    return bool(variable.ndim > 0 and variable.type.shape[0] == 1)


def _treats_rows_alone(node: Any, many: Sequence[Any]) -> bool:
    """Whether a node does with each row of some of its inputs what it does with a single one."""
    op, first = node.op, node.inputs[0]
    if isinstance(op, Elemwise):
        return all(each in many or _is_one(each) for each in node.inputs)
    if isinstance(op, DimShuffle):
        return bool(op.new_order) and op.new_order[0] == 0
    if isinstance(op, CAReduce):
        return op.axis is not None and all(axis % first.ndim for axis in op.axis)
    if isinstance(op, Join):
        return bool(op.axis > 0) and len(many) == len(node.inputs)
    if isinstance(op, Dot):
        return many == [first] and first.ndim == 2
    if isinstance(op, AdvancedSubtensor):
        index = node.inputs[1:]
        fits = all(each in many or _is_one(each) for each in index) and len({each.ndim for each in index}) == 1
        return first not in many and bool(op.idx_list == tuple(range(len(index)))) and fits
    return isinstance(op, SpecifyShape) or (isinstance(op, OpFromGraph) and _is_made_of_such(node, many))


def _is_made_of_such(node: Any, many: Sequence[Any]) -> bool:
    inner = node.op.fgraph
    rows = {held for held, given in zip(inner.inputs, node.inputs, strict=True) if given in many}
    for each in inner.toposort():
        reached = [held for held in each.inputs if held in rows]
        if reached and not _treats_rows_alone(each, reached):
            return False
        rows.update(each.outputs if reached else ())
    return rows.issuperset(inner.outputs)


def constant_parts(graph: Any, kept: Sequence[Variable[Any, Any]], *, leaves: bool = False) -> tuple[Any, list[Any]]:
    """Return a graph in simpler form, and its largest parts that don't depend on ``kept``; with ``leaves``, inputs too.

    Checks of parameters are left out: they would look at all elements at once, and end the run at the edge of what
    doubles can hold.
    """
    graph = rewrite_graph(graph, include=SIMPLER)
    depends = set(kept)
    nodes = list(toposort([graph]))
    for node in nodes:
        if depends & set(node.inputs):
            depends |= set(node.outputs)
    read = dict.fromkeys(variable for node in nodes if depends & set(node.outputs) for variable in node.inputs)
    front = [
        variable
        for variable in read
        if (variable.owner is not None or leaves) and not isinstance(variable, Constant) and variable not in depends
    ]
    return graph, [variable for variable in front if isinstance(variable.type, pt.TensorType)]


def open_checks(log_density: Any, holds_records: Callable[[Any], bool]) -> Any:
    """Replace PyMC's checks of parameters by a log density of minus infinity.

    PyMC passes a check if *all* elements are in order, so one record's parameters would change the log-likelihood of
    every other. Here an element out of order changes its own only.
    """
    while checks := [node for node in toposort([log_density]) if isinstance(node.op, CheckParameterValue)]:
        expression, output = checks[0].inputs[0], checks[0].outputs[0]
        for condition in _conditions(checks[0].inputs[1:]):
            inner = condition.ndim - expression.ndim
            if not any(map(holds_records, ancestors([condition]))):
                condition = pt.all(condition)
            elif inner > 0:  # several parameters an element
                condition = pt.all(condition, axis=tuple(range(-inner, 0)))
            expression = pt.switch(condition, expression, -np.inf)
        [log_density] = graph_replace([log_density], {output: pt.as_tensor(expression).astype(output.dtype)})
    return log_density


def _conditions(found: Sequence[Any]) -> Iterator[Any]:
    """Yield what must hold for each element, out of what must hold for all."""
    for condition in found:
        node = condition.owner
        if node is not None and isinstance(node.op, (All, MakeVector, ScalarFromTensor, TensorFromScalar)):
            yield from _conditions(node.inputs)
        else:
            yield pt.as_tensor(condition)


class RecordLikelihood:
    """The log-likelihood of single records at many parameter values, from a model that was built of one record.

    :meth:`at` and a call work out one record alone: a call sees its own record and nothing else, so its result depends
    on nothing else, to the last bit, as the proof needs it (``docs/proofs/censored-posterior.md``, lemma 9).
    :meth:`blocks` takes many records at once, which is faster and may differ in the last bits. :meth:`graph` gives the
    same as a graph, for NUTS and for gradients.
    """

    def __init__(self, model: pm.Model, columns: Iterable[str] | None = None, mode: str | None = None) -> None:
        self.model, self._mode = model, mode
        self.columns = inputs_of(model, columns)
        self.term, self.record = alone(record_terms(model), self.columns)
        self._compiled: dict[str | None, tuple[Any, Any]] = {}

    def graph(self, columns: Mapping[str, Any]) -> Any:
        """Return the log-likelihoods of many records, shape (records,), given each column as a vector variable."""
        return over_records(self.term, {self.record[name]: column for name, column in columns.items()})

    def _batch(self) -> list[Any]:
        """Return a variable of many values, shape (points, *shape), for each of the model's value variables."""
        return [value.type.clone(shape=(None, *value.type.shape))(name=value.name) for value in self.model.value_vars]

    @cached_property
    def _single(self) -> tuple[Any, list[Any], Any]:
        """What depends on points alone, the variables that hold it, and the log density of one record given it."""
        points, mode = self._batch(), self._mode
        graph = vectorize_graph(self.term[0], dict(zip(self.model.value_vars, points, strict=True)))
        graph, front = constant_parts(graph, list(self.record.values()), leaves=True)
        held = [
            pytensor.shared(np.zeros([1 if n is None else n for n in v.type.shape], v.type.dtype), shape=v.type.shape)
            for v in front
        ]
        if held:
            [graph] = graph_replace([graph], dict(zip(front, map(pt.as_tensor, held), strict=True)), strict=False)
        ahead = pytensor.function(points, front, mode="FAST_COMPILE", on_unused_input="ignore")
        if any(isinstance(node.op, LOOKUPS) for node in toposort([graph])):
            mode = "FAST_COMPILE"  # which checks bounds, as compiled code doesn't: beyond them lies what no record owns
        function = pytensor.function([*self.record.values()], graph, mode=mode, on_unused_input="ignore")
        function.trust_input = True
        return ahead, held, function

    def at(self, points: Points) -> None:
        """Set the parameter values, one array (points, *shape) for each of the model's value variables."""
        ahead, held, _ = self._single
        self._n_points = len(points[0])
        for shared, value in zip(held, ahead(*(np.asarray(each, dtype=np.float64) for each in points)), strict=True):
            shared.set_value(value, borrow=True)

    def rows(self, values: Values) -> list[list[NDArray[Any]]]:
        """Return records, given by their columns, in the form that a call takes them."""
        columns = [np.ascontiguousarray(values[name], dtype=v.dtype)[:, None] for name, v in self.record.items()]
        return [list(row) for row in zip(*columns, strict=True)]

    def __call__(self, row: Sequence[NDArray[Any]]) -> FloatArray:
        """Return the log density of one of :meth:`rows` at all points; NaN for one that the model can't work out.

        Whatever a record makes the model raise (a code beyond an array, a singular matrix, an assertion) is answered by
        NaN: an error that went on from here would tell that there is such a record.
        """
        try:
            found: FloatArray = self._single[2](*row)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - it has seen one record, which nobody may learn of
            return np.full(self._n_points, np.nan)
        return found

    @cached_property
    def log_prior(self) -> Callable[[Points], FloatArray]:
        """The log prior density of the value variables at many values (Jacobians included)."""
        points = self._batch()
        graph = vectorize_graph(log_prior(self.model), dict(zip(self.model.value_vars, points, strict=True)))
        function = pytensor.function(
            points, rewrite_graph(graph, include=SIMPLER), mode="FAST_COMPILE", on_unused_input="ignore"
        )
        return lambda given: np.asarray(function(*given))

    def blocks(
        self, values: Values, points: Points, mode: str | None = "FAST_COMPILE"
    ) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the log-likelihoods of all records at some points at a time, shape (some points, records)."""
        front, terms = self._many(mode)
        n_records = len(next(iter(values.values())))
        known = [np.asarray(values[name], column.dtype) for name, column in self.columns.items()]
        points = [np.asarray(each, v.dtype) for each, v in zip(points, self.model.value_vars, strict=True)]
        size = max(BLOCK // n_records, 1)
        with np.errstate(all="ignore"):
            read = front(*known)
            for first in range(0, len(points[0]), size):
                some = slice(first, first + size)
                found = terms(*(each[some] for each in points), *read)
                shape = len(points[0][some]), n_records
                yield some, found if found.shape == shape else np.array(np.broadcast_to(found, shape))

    def _many(self, mode: str | None) -> tuple[Any, Any]:
        """Return what depends on records alone, and the log-likelihoods given it, compiled once for each mode."""
        if mode not in self._compiled:
            points = self._batch()
            columns: dict[Any, Any] = {name: v.type.clone(shape=(None,))(name=name) for name, v in self.columns.items()}
            graph = vectorize_graph(self.graph(columns), dict(zip(self.model.value_vars, points, strict=True)))
            self._compiled[mode] = in_two_steps(graph, list(columns.values()), points, "FAST_COMPILE", mode)
        return self._compiled[mode]


def in_two_steps(graph: Any, columns: list[Any], points: list[Any], *modes: str | None) -> tuple[Any, Any]:
    """Return a function of columns, and one of points and what that returns, which gives the graph."""
    graph, front = constant_parts(graph, points, leaves=True)
    held = [each.type() for each in front]
    [graph] = graph_replace([graph], dict(zip(front, held, strict=True)), strict=False)
    settings: dict[str, Any] = {"on_unused_input": "ignore", "trust_input": True}
    first = pytensor.function(columns, front, mode=modes[0], **settings)
    return first, pytensor.function([*points, *held], graph, mode=modes[1], **settings)


class Tally:
    """What is kept of log-likelihoods while they come by: extremes, sums and counts, by record and by draw."""

    def __init__(
        self,
        n: int,
        n_draws: tuple[int, int],  # chains, and draws of each
        weights: FloatArray | None,
        centre: FloatArray | None,
        limit: float | None,
        counts: IntArray | None = None,
    ) -> None:
        self.counts = np.ones(n, np.int64) if counts is None else counts
        self.weights = _each(weights, n, 1.0, "weights must be one finite number a record, none below 0", least=0.0)
        refusal = "centre must be one finite number a record: a reference must not give a record density 0"
        self.centre, self.limit = _each(centre, n, 0.0, refusal), None if limit is None else float(limit)
        if self.limit is not None and not 0 < self.limit < np.inf:
            raise InputError("limit must be a finite number of nats above 0")
        self.weighted = weights is not None
        self.chains, (chains, _) = np.repeat(np.arange(n_draws[0]), n_draws[1]), n_draws  # of each draw; how many
        self.lowest, self.highest = np.full((chains, n), np.inf), np.full((chains, n), -np.inf)
        self.total, self.draws_beyond = np.zeros(n), np.zeros(n)
        self.largest_by_draw, self.records_beyond = np.zeros(len(self.chains)), np.zeros(len(self.chains), np.int64)

    def add(self, records: slice, draws: slice, found: FloatArray) -> None:
        """Take in the log-likelihoods of some records at some draws, shape (draws, records), which are overwritten."""
        weights = self.weights[records]
        with np.errstate(all="ignore"):
            found -= self.centre[records]
            found *= weights
            found[:, weights == 0] = 0.0
            if np.isnan(found.sum()):
                np.copyto(found, -np.inf, where=np.isnan(found))
        chains, first = np.unique(self.chains[draws], return_index=True)
        for chain, part in zip(chains, np.split(found, first[1:]), strict=True):
            self.lowest[chain, records] = np.minimum(self.lowest[chain, records], part.min(axis=0))
            self.highest[chain, records] = np.maximum(self.highest[chain, records], part.max(axis=0))
        self.total[records] += found.sum(axis=0)
        sizes = np.abs(found, out=found)
        self.largest_by_draw[draws] = np.maximum(self.largest_by_draw[draws], sizes.max(axis=1))
        if self.limit is not None:
            beyond = sizes > self.limit
            self.draws_beyond[records] += beyond.sum(axis=0)
            self.records_beyond[draws] += beyond @ self.counts[records]


def _each(values: Any, n: int, usual: float, refusal: str, least: float = -np.inf) -> FloatArray:
    """Return one finite number a record, shape (n,); ``usual`` where there are none."""
    found = np.full(n, usual) if values is None else np.asarray(values, np.float64)
    if found.shape != (n,) or not np.all(np.isfinite(found)) or np.any(found < least):
        raise InputError(refusal)
    return found
