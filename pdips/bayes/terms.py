"""Log-likelihoods record by record: as a graph, and compiled for one record and many parameter values at once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, graph_replace, vectorize_graph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.basic import MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.math import All

from pdips.bayes.columns import SUFFIX, Values

FloatArray = NDArray[np.float64]


def record_terms(model: pm.Model) -> Any:
    """Return the log-likelihood of each record, a vector, as a graph of the model's value variables and data.

    The model's observed variables have one value a record along their first axis; see ``likelihood.py`` for models
    where that needs to be said.
    """
    terms = [on_first_axis(term) for term in model.logp(vars=model.observed_RVs, sum=False)]
    return sum(terms[1:], terms[0])


def on_first_axis(term: Any) -> Any:
    """Sum a log-likelihood over all axes but its first."""
    return term.reshape((term.shape[0], -1)).sum(axis=1) if term.ndim > 1 else term


def log_prior(model: pm.Model) -> Any:
    """Return the log prior density of the value variables (Jacobians included), as a graph."""
    return model.logp(vars=[*model.free_RVs, *model.potentials])


def inputs_of(model: pm.Model) -> dict[str, Any]:
    """Return the columns that a model reads, each with its shared variable; other data of the model are constants."""
    found = {variable.name: variable for variable in model.data_vars}
    return {name.removesuffix(SUFFIX): variable for name, variable in found.items() if name.endswith(SUFFIX)}


@dataclass(frozen=True, eq=False)
class AtPoints:
    """A quantity of one record at many parameter values, compiled once for all records.

    What does not depend on the record is worked out when it is built. A call sees nothing but its own record, so its
    result can depend on nothing else, to the last bit (``docs/proofs/censored-posterior.md``, lemma 2).

    Parameters
    ----------
    model : pymc.Model
        The model, with columns as ``pm.Data``.
    points : sequence of ndarray, shape (points, *shape of the value variable)
        Values of each of ``model.value_vars``.
    """

    model: pm.Model
    points: Sequence[FloatArray]

    def compile(self, mode: str = "FAST_COMPILE") -> Any:
        """Return a function from the values of one record, by column, to its log-likelihoods at all points."""
        columns = inputs_of(self.model)
        record = {name: shared.type.clone(shape=(1,))(name=name) for name, shared in columns.items()}
        replaced = {shared: record[name] for name, shared in columns.items()}
        [single] = clone_replace([record_terms(self.model)], replaced, rebuild_strict=False)
        batched = [pytensor.shared(np.ascontiguousarray(points), shape=points.shape) for points in self.points]
        graph = vectorize_graph(single[0], dict(zip(self.model.value_vars, batched, strict=True)))
        graph = hoist(graph, kept=list(record.values()))
        function = pytensor.function(list(record.values()), graph, mode=mode, on_unused_input="ignore")

        def evaluate(values: Mapping[str, Any]) -> FloatArray:
            found: FloatArray = function(
                *(np.asarray([values[name]], variable.dtype) for name, variable in record.items())
            )
            return found

        return evaluate


def hoist(graph: Any, kept: Sequence[Variable[Any, Any]]) -> Any:
    """Work out the parts of a graph that don't depend on ``kept``, and put their values in shared variables."""
    graph, front = constant_parts(graph, kept)
    if not front:
        return graph
    values = pytensor.function([], front, mode="FAST_COMPILE")()
    held = {
        variable: pytensor.shared(np.asarray(value), shape=np.shape(value))
        for variable, value in zip(front, values, strict=True)
    }
    return graph_replace([graph], {k: pt.as_tensor(v).astype(k.dtype) for k, v in held.items()}, strict=False)[0]


def constant_parts(graph: Any, kept: Sequence[Variable[Any, Any]]) -> tuple[Any, list[Any]]:
    """Return a graph in simpler form, and its largest parts that don't depend on ``kept``."""
    graph = rewrite_graph(graph, include=("canonicalize", "stabilize", "local_remove_check_parameter"))
    depends = set(kept)
    nodes = list(toposort([graph]))
    for node in nodes:
        if depends & set(node.inputs):
            depends |= set(node.outputs)
    front = {
        variable: None
        for node in nodes
        if depends & set(node.outputs)
        for variable in node.inputs
        if variable.owner is not None and variable not in depends and isinstance(variable.type, pt.TensorType)
    }
    return graph, list(front)


def open_checks(log_density: Any, holds_records: Callable[[Any], bool]) -> Any:
    """Replace PyMC's checks of parameters by a log density of minus infinity.

    PyMC passes a check if *all* elements are in order, so one record's parameters would change the log-likelihood of
    every other. Here an element out of order changes its own only.

    Parameters
    ----------
    log_density : graph
        Log-likelihoods.
    holds_records : callable
        Whether a variable holds one value a record.
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


def log_prior_at(model: pm.Model, points: Sequence[FloatArray]) -> FloatArray:
    """Return the log prior density at many parameter values, shape (points,)."""
    batched = [pt.as_tensor(each) for each in points]
    graph = vectorize_graph(log_prior(model), dict(zip(model.value_vars, batched, strict=True)))
    found: FloatArray = pytensor.function([], graph, mode="FAST_COMPILE")()
    return found


def log_likelihoods(model: pm.Model, values: Values, point: Mapping[str, Any]) -> FloatArray:
    """Return the log-likelihood of each record at one value of the model's value variables, shape (records,)."""
    columns = inputs_of(model)
    inputs = {name: shared.type.clone(shape=(None,))() for name, shared in columns.items()}
    replaced: dict[Any, Any] = {shared: inputs[name] for name, shared in columns.items()}
    replaced |= {value: pt.as_tensor(np.asarray(point[value.name], value.dtype)) for value in model.value_vars}
    [graph] = clone_replace([record_terms(model)], replaced, rebuild_strict=False)
    function = pytensor.function(list(inputs.values()), graph, mode="FAST_COMPILE", on_unused_input="ignore")
    found: FloatArray = function(*(np.asarray(values[name], inputs[name].dtype) for name in inputs))
    return found
