"""Log-likelihoods record by record, as graphs, and what of a graph can be worked out beforehand."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.basic import MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.math import All

from pdips.bayes.columns import SUFFIX

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


def constant_parts(graph: Any, kept: Sequence[Variable[Any, Any]], *, leaves: bool = False) -> tuple[Any, list[Any]]:
    """Return a graph in simpler form, and its largest parts that don't depend on ``kept``; with ``leaves``, inputs too.

    Checks of parameters are left out: they would look at all elements at once, and end the run at the edge of what
    doubles can hold.
    """
    graph = rewrite_graph(graph, include=("canonicalize", "stabilize", "local_remove_check_parameter"))
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
