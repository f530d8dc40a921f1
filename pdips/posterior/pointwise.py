"""Log-likelihoods of all records at many parameter values, compiled once for any records."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.rewriting.utils import rewrite_graph

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.posterior.columns import Values
from pdips.posterior.record_likelihood import (
    SIMPLER,
    alone,
    constant_parts,
    inputs_of,
    log_prior,
    over_records,
    record_terms,
)

BLOCK = 100_000
"""Log-likelihoods that are worked out at once: they should fit in the processor's cache."""

HELD = 50_000_000
"""Log-likelihoods that may be held, for whoever asks for all of them."""


class Parameters:
    """The value variables of a model as points of one space, shape (points, d), and back.

    Parameters
    ----------
    model : pymc.Model
        The model.
    mode : str
        How the prior is compiled.
    """

    def __init__(self, model: pm.Model, mode: str) -> None:
        self._values = model.value_vars
        first = model.initial_point(random_seed=0)
        self._shapes = {value.name: np.shape(first[value.name]) for value in self._values}
        self.start = np.concatenate([np.ravel(first[name]) for name in self._shapes]).astype(np.float64)
        self.matrix = pt.dmatrix("points")
        inputs = self.batched()
        constrained = {variable.name: variable for variable in model.unobserved_value_vars}
        self._names = [variable.name for variable in model.free_RVs]
        prior, *free = vectorize_graph([log_prior(model), *(constrained[name] for name in self._names)], inputs)
        self._prior = _compile([self.matrix], rewrite_graph(prior, include=SIMPLER), mode)
        self._free = _compile([self.matrix], free, "FAST_COMPILE")

    @property
    def discrete(self) -> list[str]:
        """Names of the value variables that are no real numbers."""
        return [value.name for value in self._values if not value.dtype.startswith("float")]

    def batched(self) -> dict[Any, Any]:
        """Return the value variables, each as a batch taken from the columns of ``matrix``."""
        found = {}
        for value, columns in zip(self._values, self._columns(), strict=True):
            shape = self._shapes[value.name]
            part = self.matrix[:, columns.start] if shape == () else self.matrix[:, columns].reshape((-1, *shape))
            found[value] = pt.specify_shape(part, (None, *shape)).astype(value.dtype)
        return found

    def log_prior(self, points: FloatArray) -> FloatArray:
        """Return the log prior density, shape (points,)."""
        with np.errstate(all="ignore"):
            return np.broadcast_to(self._prior(points), len(points)).astype(np.float64)

    def named(self, points: FloatArray) -> dict[str, FloatArray]:
        """Return the free variables and the value variables at some points."""
        shapes = self._shapes.items()
        found = {
            name: points[:, columns].reshape(len(points), *shape)
            for (name, shape), columns in zip(shapes, self._columns(), strict=True)
        }
        with np.errstate(all="ignore"):
            return found | dict(zip(self._names, self._free(points), strict=True))

    def points(self, draws: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Return the points of draws, as :meth:`named` gives them."""
        parts = [np.asarray(draws[name], dtype=np.float64) for name in self._shapes]
        return np.column_stack([part.reshape(len(part), -1) for part in parts])

    def _columns(self) -> Iterator[slice]:
        place = 0
        for shape in self._shapes.values():
            size = int(np.prod(shape))
            yield slice(place, place + size)
            place += size


class Likelihoods:
    """Log-likelihoods of all records at many parameter values; what depends on the records alone is worked out once.

    Parameters
    ----------
    model : pymc.Model
        The model, with columns as ``pm.Data`` (``model_file.Blueprint``).
    values : mapping of str to ndarray, shape (records,)
        The columns that the model reads, and any others.
    mode : str
        "FAST_COMPILE" takes a fraction of a second to compile, "NUMBA" seconds, but is twenty times as quick then.

    Raises
    ------
    InputError
        If the model reads something that is no column.
    """

    def __init__(self, model: pm.Model, values: Values, *, mode: str = "FAST_COMPILE") -> None:
        self.parameters = Parameters(model, mode)
        columns, matrix = inputs_of(model, values), self.parameters.matrix
        self._columns = {name: shared.type.clone(shape=(None,))(name=name) for name, shared in columns.items()}
        term, record = alone(record_terms(model), columns)
        graph = over_records(term, {record[name]: column for name, column in self._columns.items()})
        graph, front = constant_parts(vectorize_graph(graph, self.parameters.batched()), [matrix])
        self._front = _compile(list(self._columns.values()), front, "FAST_COMPILE")
        held = [variable.type() for variable in front]
        [graph] = graph_replace([graph], dict(zip(front, held, strict=True)), strict=False)
        self._terms = _compile([matrix, *held, *self._columns.values()], graph, mode)
        self.read(values)

    def read(self, values: Values) -> None:
        """Take other records."""
        for name in self._columns:
            if name not in values:
                raise InputError(f"the model reads {name!r}, which is none of the columns")
        known = [np.asarray(values[name], variable.dtype) for name, variable in self._columns.items()]
        self.n_rows = len(next(iter(values.values())))
        with np.errstate(all="ignore"):
            self._read = [*self._front(*known), *known]

    def blocks(self, points: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
        """Yield log-likelihoods at some points at a time, shape (some points, records), which may be spoilt."""
        size = max(BLOCK // self.n_rows, 1)
        for first in range(0, len(points), size):
            some = points[first : first + size]
            with np.errstate(all="ignore"):
                terms = self._terms(some, *self._read)
            shape = (len(some), self.n_rows)
            yield slice(first, first + size), terms if terms.shape == shape else np.array(np.broadcast_to(terms, shape))

    def all(self, draws: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Return the log-likelihood of each record at each draw, shape (draws, records).

        Raises
        ------
        InputError
            If there are too many to hold; see :meth:`largest`.
        """
        points = self.parameters.points(draws)
        if len(points) * self.n_rows > HELD:
            raise InputError(f"more than {HELD:,} log-likelihoods: ask for the largest of each record")
        return np.concatenate([terms for _, terms in self.blocks(points)])

    def largest(self, draws: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Return max over draws of abs(log-likelihood) of each record, shape (records,); NaN counts as infinite."""
        found = np.zeros(self.n_rows)
        for _, terms in self.blocks(self.parameters.points(draws)):
            np.maximum(found, np.abs(terms, out=terms).max(axis=0), out=found)
        return np.where(np.isnan(found), np.inf, found)


def _compile(inputs: list[Any], outputs: Any, mode: str) -> Any:
    return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore", trust_input=True)
