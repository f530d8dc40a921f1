"""The log-likelihood of a record: alone, of blocks of records, and as a graph."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
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
from pytensor.graph.replace import clone_replace, graph_replace, vectorize_graph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.basic import MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import All
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.graphs.repetition import over_records
from pdips.posterior.columns import MISSING, SUFFIX, Values
from pdips.posterior.interpreted import LIGHT, function_of

# Values of a model's value variables, an array (points, *shape) for each
Points = Sequence[FloatArray]

# What makes one condition of several
GATHERING = (All, MakeVector, ScalarFromTensor, TensorFromScalar)
# What looks something up, or may do so inside
LOOKUPS = (AdvancedSubtensor, Blockwise, HasInnerGraph, Subtensor)
# Log-likelihoods that ``blocks`` works out at once: they should fit in the cache
BLOCK = 50_000
SIMPLER = ("canonicalize", "stabilize", "local_remove_check_parameter")
"""Rewrites of a log density. Checks of parameters would end the run at the edge of what
doubles can hold.
"""

SIMPLIFIED = ("ShapeOpt", "canonicalize", "stabilize")
"""Rewrites of the term of one record that show its shape."""

ONE_EACH = (
    "the model doesn't have one log-likelihood a record: it holds numbers of several "
    "records as constants, or an "
    "observed variable has its records elsewhere than on its first axis; read "
    "columns as data[name]"
)


class Hurdle(MeasurableOp, Op):  # type: ignore[misc]
    """In place of an observed variable: a fixed number, of log-likelihood 0, where
    another one says it is missing.
    """

    __props__ = ()

    def make_node(self, variable: Any, missing: Any, fixed: Any) -> Apply:
        """Return the node of three vectors: the variable, 1 where it is missing, and
        what it is there.
        """
        return Apply(self, [variable, missing, fixed], [variable.type()])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Any) -> None:
        """Put the fixed number where the draw is missing."""
        variable, missing, fixed = inputs
        output_storage[0][0] = np.where(missing > 0.5, fixed, variable).astype(
            variable.dtype
        )


@_logprob.register(Hurdle)  # type: ignore[untyped-decorator]
def hurdle_logprob(
    op: Hurdle,
    values: Sequence[Any],
    variable: Any,
    missing: Any,
    fixed: Any,
    **kwargs: Any,
) -> Any:
    """Return the log-likelihood of the variable where it is there, and 0 elsewhere,
    whatever it is there.
    """
    return pt.switch(missing > 0.5, 0.0, pm.logp(variable, *values, **kwargs))


def observed_columns(model: pm.Model) -> dict[str, tuple[str, ...]]:
    """Return the columns of each observed variable: its own name, or the coordinates of
    its last dimension.
    """
    columns: dict[str, tuple[str, ...]] = {}
    for variable in model.observed_RVs:
        name = variable.name
        columns[name] = (name,)
        dims: Sequence[str | None] = model.named_vars_to_dims.get(name) or ()
        if len(dims) < 2 or dims[-1] is None:
            continue
        labels = model.coords.get(dims[-1])
        if labels is not None:
            columns[name] = tuple(map(str, labels))
    return columns


def count_known(model: pm.Model, fixed: Mapping[str, float]) -> None:
    """Let the terms of columns that may be missing, with the numbers read there, count
    for records that have them.
    """
    observed = observed_columns(model)
    of = {name: variable for variable, names in observed.items() for name in names}
    for name, number in fixed.items():
        says = of.get(name + MISSING)
        if name not in of or says is None:
            continue
        if of[name] != name:
            raise InputError(
                f"{name!r} may be missing: observe it by itself, not in {of[name]!r}"
            )
        missing = model[says]
        if missing.ndim > 1:
            missing = missing[:, observed[says].index(name + MISSING)]
        if model[name] in ancestors([missing]):
            raise InputError(
                f"whether {name!r} is missing can't depend on its "
                f"number, which a missing value lacks"
            )
        _put_hurdle(model, name, missing, number)


def _put_hurdle(model: pm.Model, name: str, missing: Any, number: float) -> None:
    """Put a hurdle in the place of an observed variable."""
    variable = model[name]
    data = model.named_vars.get(name + SUFFIX)
    fixed = {}
    if data is not None:
        fixed[data] = pt.full(data.shape, number, data.dtype)
    [there] = clone_replace(
        [model.rvs_to_values[variable]], fixed, rebuild_strict=False
    )
    drawn = variable.owner.clone().outputs[variable.index]
    hurdle = Hurdle().make_node(drawn, missing, there)
    # what reads the variable now reads this
    hurdle.outputs[0] = variable
    variable.owner = hurdle
    variable.index = 0


@contextmanager
def joint_terms() -> Iterator[None]:
    """Keep quiet that variables which share what was summed out have one term: terms
    are added up anyway.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There are multiple dependent variables")
        yield


def record_terms(model: pm.Model) -> Any:
    """Return the log-likelihood of each record, the first axis of observed variables,
    as a graph of values and data.
    """
    with joint_terms():
        logs = model.logp(vars=model.observed_RVs, sum=False)
    terms = [on_first_axis(term) for term in logs]
    return sum(terms[1:], terms[0])


def on_first_axis(term: Any) -> Any:
    """Sum a log-likelihood over all axes but its first."""
    return term.reshape((term.shape[0], -1)).sum(axis=1) if term.ndim > 1 else term


def log_prior(model: pm.Model) -> Any:
    """Return the log prior density of the value variables (Jacobians included), as a
    graph.
    """
    with joint_terms():
        return model.logp(vars=[*model.free_RVs, *model.potentials])


def inputs_of(model: pm.Model, columns: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the columns that a model reads, each with its shared variable; other data
    of the model are constants.
    """
    named = {
        variable.name.removesuffix(SUFFIX): variable
        for variable in model.data_vars
        if variable.name.endswith(SUFFIX)
    }
    if columns is None:
        return named
    wanted = set(columns)
    return {name: variable for name, variable in named.items() if name in wanted}


def values_behind(graph: Any) -> set[Any]:
    """Return the variables whose values a graph reads, also inside of operations that
    are graphs themselves; not those of which it reads the shape alone.
    """
    behind = set()
    waiting = [graph]
    while waiting:
        variable = waiting.pop()
        node = variable.owner
        if variable in behind:
            continue
        behind.add(variable)
        if node is None or isinstance(node.op, Shape | Shape_i):
            continue
        if isinstance(node.op, OpFromGraph):
            inside = node.op.fgraph.bind(list(node.inputs))
            waiting.append(inside[node.outputs.index(variable)])
        else:
            waiting.extend(node.inputs)
    return behind


def alone(terms: Any, columns: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the log-likelihood of one record, shape (1,), and the columns of that
    record, shape (1, ...) each.
    """
    ones = {}
    for name, column in columns.items():
        shape = (1, *column.type.shape[1:])
        ones[name] = column.type.clone(shape=shape)(name=name)
    by_column = {columns[name]: one for name, one in ones.items()}
    try:
        [single] = clone_replace([terms], by_column, rebuild_strict=False)
        single = open_checks(single, lambda _: False)
        single = rewrite_graph(single, include=SIMPLIFIED)
        if single.type.shape == (None,):  # some operations don't say
            single = pt.specify_shape(single, (1,))
    except (ValueError, TypeError):  # lengths that don't go together
        raise InputError(ONE_EACH) from None
    if single.type.shape != (1,):
        raise InputError(ONE_EACH)
    return single, ones


def constant_parts(
    graph: Any, kept: Sequence[Variable[Any, Any]], *, leaves: bool = False
) -> tuple[Any, list[Any]]:
    """Return a graph in simpler form, and its largest parts that don't depend on
    ``kept``; with ``leaves``, inputs too.

    Checks of parameters are left out: they would look at all elements at once, and end
    the run at the edge of what doubles can hold.
    """
    graph = rewrite_graph(graph, include=SIMPLER)
    depends = set(kept)
    nodes = list(toposort([graph]))
    for node in nodes:
        if depends & set(node.inputs):
            depends |= set(node.outputs)
    front = dict[Any, None]()  # in order
    for node in nodes:
        if not depends & set(node.outputs):
            continue
        for variable in node.inputs:
            is_part = variable.owner is not None or leaves
            if is_part and _is_array(variable) and variable not in depends:
                front[variable] = None
    return graph, list(front)


def with_parts_held(
    graph: Any, records: Iterable[Any], points: Sequence[Any]
) -> tuple[Any, Any, list[Any]]:
    """Return a graph of records that reads what depends on points alone from shared
    variables, what works that out, and these variables.
    """
    graph, front = constant_parts(graph, list(records), leaves=True)
    ahead = pytensor.function(
        points, front, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    held = []
    for variable in front:
        shape = variable.type.shape
        zeros = np.zeros([1 if n is None else n for n in shape], variable.dtype)
        held.append(pytensor.shared(zeros, shape=shape))
    if held:
        by_front = dict(zip(front, map(pt.as_tensor, held), strict=True))
        [graph] = graph_replace([graph], by_front, strict=False)
    return graph, ahead, held


def _is_array(variable: Any) -> bool:
    is_tensor = isinstance(variable.type, pt.TensorType)
    return is_tensor and not isinstance(variable, Constant)


def open_checks(log_density: Any, holds_records: Callable[[Any], bool]) -> Any:
    """Replace PyMC's checks of parameters by a log density of minus infinity.

    PyMC passes a check if *all* elements are in order, so one record's parameters would
    change the log-likelihood of every other. Here an element out of order changes its
    own only.
    """
    while True:
        check = _first_check(log_density)
        if check is None:
            return log_density
        expression, *conditions = check.inputs
        for condition in _conditions(conditions):
            inner = condition.ndim - expression.ndim
            if not any(map(holds_records, ancestors([condition]))):
                condition = pt.all(condition)
            elif inner > 0:  # several parameters an element
                condition = pt.all(condition, axis=tuple(range(-inner, 0)))
            expression = pt.switch(condition, expression, -np.inf)
        [output] = check.outputs
        opened = pt.as_tensor(expression).astype(output.dtype)
        [log_density] = graph_replace([log_density], {output: opened})


def _first_check(graph: Any) -> Any:
    for node in toposort([graph]):
        if isinstance(node.op, CheckParameterValue):
            return node
    return None


def _conditions(found: Sequence[Any]) -> Iterator[Any]:
    """Yield what must hold for each element, out of what must hold for all."""
    for condition in found:
        node = condition.owner
        if node is not None and isinstance(node.op, GATHERING):
            yield from _conditions(node.inputs)
        else:
            yield pt.as_tensor(condition)


class RecordLikelihood:
    """The log-likelihood of single records at many parameter values, from a model that
    was built of one record.

    :meth:`at` and a call work out one record alone: a call sees its own record and
    nothing else, so its result depends on nothing else, to the last bit, as the proof
    needs it (``docs/proofs/censored-posterior.md``, lemma 9). :meth:`blocks` takes many
    records at once, which is faster and may differ in the last bits. :meth:`graph`
    gives the same as a graph, for NUTS and for gradients.
    """

    def __init__(
        self,
        model: pm.Model,
        columns: Iterable[str] | None = None,
        mode: str | None = None,
    ) -> None:
        self.model = model
        self._mode = mode
        self.columns = inputs_of(model, columns)
        self.term, self.record = alone(record_terms(model), self.columns)
        self._compiled: dict[str | None, tuple[Any, Any]] = {}

    def graph(self, columns: Mapping[str, Any]) -> Any:
        """Return the log-likelihoods of many records, shape (records,), given each
        column as a vector variable.
        """
        by_record = {self.record[name]: column for name, column in columns.items()}
        return over_records(self.term, by_record)

    def _batch(self) -> list[Any]:
        """Return a variable of many values, shape (points, *shape), for each of the
        model's value variables.
        """
        batch = []
        for value in self.model.value_vars:
            shape = (None, *value.type.shape)
            batch.append(value.type.clone(shape=shape)(name=value.name))
        return batch

    def _over_points(self, graph: Any, points: list[Any]) -> Any:
        """Return a graph of the value variables at many values of these."""
        by_value = dict(zip(self.model.value_vars, points, strict=True))
        return vectorize_graph(graph, by_value)

    @cached_property
    def _single(self) -> tuple[Any, list[Any], Any]:
        """What depends on points alone, the variables that hold it, and the log density
        of one record given it.
        """
        points = self._batch()
        graph = self._over_points(self.term[0], points)
        graph, ahead, held = with_parts_held(graph, self.record.values(), points)
        mode = self._mode
        if any(isinstance(node.op, LOOKUPS) for node in toposort([graph])):
            # which checks bounds, as compiled code doesn't: beyond them lies what no
            # record owns
            mode = "FAST_COMPILE"
        inputs = list(self.record.values())
        function = pytensor.function(inputs, graph, mode=mode, on_unused_input="ignore")
        function.trust_input = True
        return ahead, held, function

    def at(self, points: Points) -> None:
        """Set the parameter values, one array (points, *shape) for each of the model's
        value variables.
        """
        ahead, held, _ = self._single
        self._n_points = len(points[0])
        arrays = [np.asarray(point, dtype=np.float64) for point in points]
        for shared, value in zip(held, ahead(*arrays), strict=True):
            shared.set_value(value, borrow=True)

    def rows(self, values: Values) -> list[list[NDArray[Any]]]:
        """Return records, given by their columns, in the form that a call takes
        them.
        """
        columns = [
            np.ascontiguousarray(values[name], dtype=v.dtype)[:, None]
            for name, v in self.record.items()
        ]
        return [list(row) for row in zip(*columns, strict=True)]

    def __call__(self, row: Sequence[NDArray[Any]]) -> FloatArray:
        """Return the log density of one of :meth:`rows` at all points; NaN for one that
        the model can't work out.

        Whatever a record makes the model raise (a code beyond an array, a singular
        matrix, an assertion, an array too large for the memory, an exit) is answered by
        NaN: an error that went on from here would tell that there is such a record.
        """
        try:
            _, _, function = self._single
            log_densities: FloatArray = function(*row)
        except KeyboardInterrupt:
            raise  # from outside
        except BaseException:  # noqa: BLE001 - it has seen one record, which nobody may learn of
            return np.full(self._n_points, np.nan)
        return log_densities

    @cached_property
    def log_prior(self) -> Callable[[Points], FloatArray]:
        """The log prior density of the value variables at many values (Jacobians
        included).
        """
        points = self._batch()
        graph = self._over_points(log_prior(self.model), points)
        function = pytensor.function(
            points,
            rewrite_graph(graph, include=SIMPLER),
            mode="FAST_COMPILE",
            on_unused_input="ignore",
        )
        return lambda given: np.asarray(function(*given))

    def blocks(
        self, values: Values, points: Points, mode: str | None = "FAST_COMPILE"
    ) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the log-likelihoods of all records at some points at a time, shape
        (some points, records).
        """
        front, terms = self._many(mode)
        n_records = len(next(iter(values.values())))
        records = [
            np.asarray(values[name], column.dtype)
            for name, column in self.columns.items()
        ]
        points = [
            np.asarray(point, value.dtype)
            for point, value in zip(points, self.model.value_vars, strict=True)
        ]
        n_points = len(points[0])
        size = max(BLOCK // n_records, 1)
        with np.errstate(all="ignore"):
            read = front(*records)
            for first in range(0, n_points, size):
                some = slice(first, min(first + size, n_points))
                logs = terms(*(point[some] for point in points), *read)
                shape = (some.stop - first, n_records)
                if logs.shape != shape:
                    logs = np.array(np.broadcast_to(logs, shape))
                yield some, logs

    def _many(self, mode: str | None) -> tuple[Any, Any]:
        """Return what depends on records alone, and the log-likelihoods given it,
        compiled once for each mode.
        """
        if mode not in self._compiled:
            points = self._batch()
            columns = {
                name: column.type.clone(shape=(None,))(name=name)
                for name, column in self.columns.items()
            }
            graph = self._over_points(self.graph(columns), points)
            self._compiled[mode] = in_two_steps(
                graph, list(columns.values()), points, LIGHT, mode
            )
        return self._compiled[mode]


def in_two_steps(
    graph: Any, columns: list[Any], points: list[Any], *modes: Any
) -> tuple[Any, Any]:
    """Return a function of columns, and one of points and what that returns, which
    gives the graph.
    """
    graph, front = constant_parts(graph, points, leaves=True)
    held = [variable.type() for variable in front]
    by_front = dict(zip(front, held, strict=True))
    [graph] = graph_replace([graph], by_front, strict=False)
    settings: dict[str, Any] = {"on_unused_input": "ignore", "trust_input": True}
    first = pytensor.function(columns, front, mode=modes[0], **settings)
    if modes[1] is None:
        return first, function_of(
            [*points, *held], graph, what="the log-likelihood", **settings
        )
    return first, pytensor.function([*points, *held], graph, mode=modes[1], **settings)
