"""Posteriors of models with one to three parameters, by a lattice: for published forms and studies, never private."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.replace import clone_replace, graph_replace, vectorize_graph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import toposort

from pdips.bayes import lattice
from pdips.bayes.columns import Values
from pdips.bayes.terms import inputs_of, log_prior, record_terms
from pdips.bayes.weights import check_weights
from pdips.errors import InputError
from pdips.privacy import choice

FloatArray = NDArray[np.float64]
Clip = Literal["hard", "tanh", "algebraic"]
CLIPS: tuple[Clip, ...] = ("hard", "tanh", "algebraic")

BLOCK = 100_000
"""Log-likelihoods that are worked out at once: they should fit in the processor's cache."""

HELD = 50_000_000
"""Log-likelihoods that may be held, for whoever asks for all of them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """What is integrated: prior(theta) times exp(sum_i counts_i s(weights_i (log p(x_i | theta) - centre_i))).

    Parameters
    ----------
    values : mapping of str to ndarray, shape (records,)
        The columns; see ``columns.record_values``.
    weights : ndarray, shape (records,), optional
        Between 0 and 1; None for 1. A record of weight 0 plays no part.
    centre : ndarray, shape (records,), or float
        What is taken from the log-likelihood before it is clipped.
    counts : ndarray, shape (records,), optional
        How many records each row stands for; None for one each.
    window : float
        s maps into [-window, window]; infinite: s leaves everything as it is.
    clip : {"hard", "tanh", "algebraic"}
        s(u) = min(max(u, -w), w), w tanh(u / w) or u / sqrt(1 + (u / w)^2).
    """

    values: Values
    weights: FloatArray | None = None
    centre: FloatArray | float = 0.0
    counts: NDArray[Any] | None = None
    window: float = np.inf
    clip: Clip = "hard"

    def __post_init__(self) -> None:
        choice(self.clip, CLIPS, "clip")
        if not self.window > 0:
            raise InputError(f"window must be above 0, got {self.window}")
        if self.weights is not None:
            object.__setattr__(self, "weights", check_weights(self.weights, self.n_rows))
        centre = np.asarray(self.centre, dtype=np.float64)
        if centre.shape not in {(), (self.n_rows,)} or not np.isfinite(centre).all():
            raise InputError("centre must be one finite number, or one for each record")
        if self.counts is not None and np.shape(self.counts) != (self.n_rows,):
            raise InputError("counts must have one whole number for each row")

    @property
    def n_rows(self) -> int:
        """Number of rows of the columns."""
        return len(next(iter(self.values.values())))

    def total(self, log_likelihood: FloatArray) -> FloatArray:
        """Return sums over records, shape (points,), of log-likelihoods, shape (points, records), which it spoils."""
        terms = log_likelihood
        if np.any(self.centre):
            terms -= self.centre
        if self.weights is not None:
            with np.errstate(invalid="ignore"):
                terms *= self.weights
        self._clip(terms)
        sums = terms.sum(axis=1) if self.counts is None else terms @ self.counts
        for row in np.flatnonzero(np.isnan(sums)):  # seldom: 0 times infinity, or a log-likelihood that isn't a number
            sums[row] = self._careful_sum(terms[row])
        found: FloatArray = sums
        return found

    def _clip(self, terms: FloatArray) -> None:
        if np.isinf(self.window):
            return
        if self.clip == "hard":
            np.clip(terms, -self.window, self.window, out=terms)
            return
        terms /= self.window
        if self.clip == "tanh":
            np.tanh(terms, out=terms)
        else:
            with np.errstate(invalid="ignore", over="ignore"):
                whole = np.isinf(terms)
                terms[...] = np.where(whole, np.sign(terms), terms / np.sqrt(1 + terms**2))
        terms *= self.window

    def _careful_sum(self, terms: FloatArray) -> float:
        known = np.where(np.isnan(terms), -self.window, terms)
        if self.weights is not None:
            known = np.where(self.weights == 0, 0.0, known)
        return float(known.sum() if self.counts is None else (known * self.counts)[self.counts > 0].sum())


class Quadrature:
    """The posterior of a model with one to three unconstrained parameters, which refits without compiling again.

    It reads all records at once and adapts to them, so nothing that it gives is private.

    Parameters
    ----------
    model : pymc.Model
        The model, with columns as ``pm.Data`` (``model_file.Blueprint``).
    values : mapping of str to ndarray, shape (records,)
        The columns that the model reads, and any others.
    weights, centre, counts, window, clip
        See :class:`Target`.
    tolerance : float
        Total variation distance; see :func:`lattice.fit`.
    mode : str
        Of the compiled log-likelihood: "FAST_COMPILE" takes a fraction of a second to compile, "NUMBA" seconds,
        once a model, and pays for costly densities after thousands of fits.

    Raises
    ------
    InputError
        If the model has a discrete parameter or more than three, weights are outside [0, 1], or no peak is found.

    Notes
    -----
    In the unconstrained space of PyMC, Jacobians included. The error report is ``error``.
    """

    def __init__(
        self,
        model: pm.Model,
        values: Values,
        *,
        tolerance: float = 0.01,
        mode: str = "FAST_COMPILE",
        **settings: Any,
    ) -> None:
        self._parameters = _Parameters(model, mode)
        self._terms = _Terms(model, self._parameters, mode)
        self._tolerance = tolerance
        self._lattice: lattice.Lattice | None = None
        self.target = Target(values=values, **settings)
        self._terms.read(values)

    def update(self, **changed: Any) -> Self:
        """Change some of values, weights, centre, counts, window and clip, and return itself.

        New values without weights, centre or counts drop the old ones, which were of other records.
        """
        if "values" in changed:
            changed = {"weights": None, "centre": 0.0, "counts": None, **changed}
        self.target = replace(self.target, **changed)
        if "values" in changed:
            self._terms.read(self.target.values)
        self._lattice = None
        return self

    @property
    def lattice(self) -> lattice.Lattice:
        """The law of the unconstrained parameters."""
        if self._lattice is None:
            self._lattice = lattice.fit(self.log_density, self._parameters.start, tolerance=self._tolerance)
        return self._lattice

    @property
    def error(self) -> float:
        """Total variation distance between the law and the one that half the lattice gives."""
        return self.lattice.error

    def log_density(self, points: FloatArray) -> FloatArray:
        """Return the log density at unconstrained points, shape (points, d), up to a constant."""
        found = self._parameters.log_prior(points)
        for rows, terms in self._blocks(points):
            found[rows] += self.target.total(terms)
        return found

    def draws(self, n: int, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Return independent draws of the free variables and their value variables, shape (n, ...) each."""
        return self._parameters.named(self.lattice.draws(n, rng))

    def nodes(self) -> tuple[dict[str, FloatArray], FloatArray]:
        """Return the free variables at the nodes of the lattice, and the probability of each node."""
        points, weights = self.lattice.nodes()
        return self._parameters.named(points), weights

    def log_likelihoods(self, draws: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Return the log-likelihood of each record at each draw, shape (draws, records), neither weighted nor clipped.

        Raises
        ------
        InputError
            If there are too many to hold; see :meth:`largest`.
        """
        points = self._parameters.points(draws)
        if len(points) * self.target.n_rows > HELD:
            raise InputError(f"more than {HELD:,} log-likelihoods: ask for the largest of each record")
        return np.concatenate([terms for _, terms in self._blocks(points)])

    def largest(self, draws: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Return max over draws of abs(log-likelihood) of each record, shape (records,)."""
        found = np.zeros(self.target.n_rows)
        for _, terms in self._blocks(self._parameters.points(draws)):
            np.maximum(found, np.abs(terms, out=terms).max(axis=0), out=found)
        return found

    def _blocks(self, points: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
        size = max(BLOCK // self.target.n_rows, 1)
        for first in range(0, len(points), size):
            rows = slice(first, first + size)
            terms, shape = self._terms(points[rows]), (len(points[rows]), self.target.n_rows)
            yield rows, terms if terms.shape == shape else np.array(np.broadcast_to(terms, shape))


class _Parameters:
    """The unconstrained parameters of a model as points of a space, and back."""

    def __init__(self, model: pm.Model, mode: str) -> None:
        self._values = model.value_vars
        discrete = [value.name for value in self._values if value.dtype not in {"float64", "float32"}]
        if discrete:
            raise InputError(f"parameter {discrete[0]!r} is discrete, and a lattice is of real numbers")
        first = model.initial_point(random_seed=0)
        self._shapes = {value.name: np.shape(first[value.name]) for value in self._values}
        self.start = np.concatenate([np.ravel(first[name]) for name in self._shapes]).astype(np.float64)
        if not 1 <= self.start.size <= lattice.MOST_DIMENSIONS:
            raise InputError(f"a lattice takes one to three parameters, and the model has {self.start.size}; use NUTS")
        self.matrix = pt.dmatrix("points")
        inputs = self.batched()
        prior = vectorize_graph(log_prior(model), inputs)
        free = model.unobserved_value_vars
        names = [variable.name for variable in free]
        kept = [names.index(variable.name) for variable in model.free_RVs]
        graphs = vectorize_graph([free[place] for place in kept], inputs)
        self._names = [variable.name for variable in model.free_RVs]
        self._prior = _compile([self.matrix], prior, mode)
        self._free = _compile([self.matrix], graphs, "FAST_COMPILE")

    def batched(self) -> dict[Any, Any]:
        """Return the value variables, each as a batch taken from the columns of ``matrix``."""
        found, place = {}, 0
        for value in self._values:
            shape = self._shapes[value.name]
            size = int(np.prod(shape))
            part = self.matrix[:, place] if shape == () else self.matrix[:, place : place + size].reshape((-1, *shape))
            found[value] = pt.specify_shape(part, (None, *shape)).astype(value.dtype)
            place += size
        return found

    def log_prior(self, points: FloatArray) -> FloatArray:
        """Return the log prior density, shape (points,)."""
        return np.broadcast_to(self._prior(points), len(points)).astype(np.float64)

    def named(self, points: FloatArray) -> dict[str, FloatArray]:
        """Return the free variables and the value variables at some points."""
        found, place = {}, 0
        for name, shape in self._shapes.items():
            size = int(np.prod(shape))
            found[name] = points[:, place : place + size].reshape(len(points), *shape)
            place += size
        return found | dict(zip(self._names, self._free(points), strict=True))

    def points(self, draws: Mapping[str, NDArray[Any]]) -> FloatArray:
        """Return the points of draws, as :meth:`named` gives them."""
        parts = [np.asarray(draws[name], dtype=np.float64) for name in self._shapes]
        return np.column_stack([part.reshape(len(part), -1) for part in parts])


class _Terms:
    """Log-likelihoods of all records at many points; what depends on the records alone is worked out once."""

    def __init__(self, model: pm.Model, parameters: _Parameters, mode: str) -> None:
        columns = inputs_of(model)
        self._columns = {name: shared.type.clone(shape=(None,))(name=name) for name, shared in columns.items()}
        replaced = {shared: self._columns[name] for name, shared in columns.items()}
        [graph] = clone_replace([record_terms(model)], replaced, rebuild_strict=False)
        graph = vectorize_graph(graph, parameters.batched())
        graph = rewrite_graph(graph, include=("canonicalize", "stabilize", "local_remove_check_parameter"))
        front = _front(graph, parameters.matrix)
        self._front = _compile(list(self._columns.values()), front, "FAST_COMPILE")
        held = [variable.type() for variable in front]
        [graph] = graph_replace([graph], dict(zip(front, held, strict=True)), strict=False)
        self._terms = _compile([parameters.matrix, *held, *self._columns.values()], graph, mode)
        self._read: list[Any] = []

    def read(self, values: Values) -> None:
        """Take the records."""
        for name in self._columns:
            if name not in values:
                raise InputError(f"the model reads {name!r}, which is none of the columns")
        known = [np.asarray(values[name], variable.dtype) for name, variable in self._columns.items()]
        self._read = [*self._front(*known), *known]

    def __call__(self, points: FloatArray) -> FloatArray:
        found: FloatArray = self._terms(points, *self._read)
        return found


def _front(graph: Any, points: Any) -> list[Any]:
    """Return the variables that depend on no point and that something reads which does."""
    depends = {points}
    nodes = list(toposort([graph]))
    for node in nodes:
        if depends & set(node.inputs):
            depends |= set(node.outputs)
    found = {
        variable: None
        for node in nodes
        if depends & set(node.outputs)
        for variable in node.inputs
        if variable.owner is not None and variable not in depends and isinstance(variable.type, pt.TensorType)
    }
    return list(found)


def _compile(inputs: list[Any], outputs: Any, mode: str) -> Any:
    return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore", trust_input=True)
