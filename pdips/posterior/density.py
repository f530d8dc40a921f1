"""The log density of one record at many parameter values: compiled once, for any record and any values."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import toposort
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from pdips.arrays import FloatArray
from pdips.posterior.record_likelihood import alone, constant_parts, inputs_of, log_prior, record_terms

LOOKUPS = (AdvancedSubtensor, Blockwise, HasInnerGraph, Subtensor)
"""What looks something up, or may do so inside."""
Points = Sequence[FloatArray]


class Density:
    """The log density of one record at many parameter values.

    What does not depend on the record is worked out once for all of them, in :meth:`at`. A call sees its own record and
    nothing else, so its result can depend on nothing else, to the last bit (``docs/proofs/censored-posterior.md``).

    Parameters
    ----------
    model : pymc.Model
        Of one record, with columns as ``pm.Data`` (:class:`pdips.posterior.columns.Columns`).
    mode : str, optional
        PyTensor's compilation mode.
    columns : iterable of str, optional
        The columns that there are.
    """

    def __init__(self, model: pm.Model, mode: str | None = None, columns: Iterable[str] | None = None) -> None:
        self.model = model
        single, self._record = alone(record_terms(model), inputs_of(model, columns))
        points = [value.type.clone(shape=(None, *value.type.shape))(name=value.name) for value in model.value_vars]
        graph = vectorize_graph(single[0], dict(zip(model.value_vars, points, strict=True)))
        graph, front = constant_parts(graph, list(self._record.values()), leaves=True)
        self._held = [pytensor.shared(_zeros(v.type), shape=v.type.shape) for v in front]
        held = {v: pt.as_tensor(h) for v, h in zip(front, self._held, strict=True)}
        graph = graph_replace([graph], held, strict=False)[0] if held else graph
        self._ahead = pytensor.function(points, front, mode="FAST_COMPILE", on_unused_input="ignore")
        if any(isinstance(node.op, LOOKUPS) for node in toposort([graph])):
            mode = "FAST_COMPILE"  # which checks bounds, as compiled code doesn't: beyond them lies what no record owns
        self._function = pytensor.function([*self._record.values()], graph, mode=mode, on_unused_input="ignore")
        self._function.trust_input = True

    @cached_property
    def log_prior(self) -> Callable[[Points], FloatArray]:
        """The log prior density of the value variables at many values (Jacobians included)."""
        points = [value.type.clone(shape=(None, *value.type.shape))(name=value.name) for value in self.model.value_vars]
        graph = vectorize_graph(log_prior(self.model), dict(zip(self.model.value_vars, points, strict=True)))
        graph = rewrite_graph(graph, include=("canonicalize", "stabilize", "local_remove_check_parameter"))
        function = pytensor.function(points, graph, mode="FAST_COMPILE", on_unused_input="ignore")
        return lambda given: np.asarray(function(*given))

    def at(self, points: Points) -> None:
        """Set the parameter values, one array (points, *shape) for each of the model's value variables."""
        self._n_points = len(points[0])
        values = self._ahead(*(np.asarray(each, dtype=np.float64) for each in points))
        for held, value in zip(self._held, values, strict=True):
            held.set_value(value, borrow=True)

    def rows(self, values: Mapping[str, Any]) -> list[list[NDArray[Any]]]:
        """Return records, given by their columns, in the form that a call takes them."""
        columns = [np.ascontiguousarray(values[name], dtype=v.dtype)[:, None] for name, v in self._record.items()]
        return [list(row) for row in zip(*columns, strict=True)]

    def __call__(self, row: Sequence[NDArray[Any]]) -> FloatArray:
        """Return the log density of one of :meth:`rows` at all points; NaN for one that the model can't work out.

        Whatever a record makes the model raise (a code beyond an array, a singular matrix, an assertion) is answered by
        NaN: an error that went on from here would tell that there is such a record.
        """
        try:
            found: FloatArray = self._function(*row)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - it has seen one record, which nobody may learn of
            return np.full(self._n_points, np.nan)
        return found


def _zeros(kind: Any) -> NDArray[Any]:
    return np.zeros([1 if size is None else size for size in kind.shape], kind.dtype)
