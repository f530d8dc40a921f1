"""The censored likelihood: each record's part in a posterior bounded, as a PyMC model and as whole-number scores."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from pymc.model.fgraph import (
    ModelDeterministic,
    ModelFreeRV,
    ModelNamed,
    ModelObservedRV,
    ModelPotential,
    model_from_fgraph,
    model_named,
    model_potential,
)
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.posterior.columns import SUFFIX, Values, distinct
from pdips.posterior.model_parts import (
    LIKELIHOOD,
    Axis,
    Parts,
    check_variables,
    natural_points,
    read_by,
    take_apart,
    total,
)
from pdips.posterior.record_likelihood import Points, RecordLikelihood, constant_parts
from pdips.posterior.weights import check_vector, check_weights
from pdips.privacy.loss import choice

Clip = Literal["hard", "tanh", "algebraic"]
CLIPS: tuple[Clip, ...] = ("hard", "tanh", "algebraic")

WEIGHTS, CENTRE, WINDOW, CORRECTION = "pdips_weights", "pdips_centre", "pdips_window", "pdips_correction"
HOISTED = "pdips_hoisted_"

IMPOSSIBLE = -700.0
"""Stands in for the log of a density of 0, in what is worked out from public records."""

STEPS = 2**20
"""Whole steps from 0 to the edge of the window: a record's term is one of 2 STEPS + 1 numbers."""


def clip_values(share: FloatArray, clip: Clip) -> FloatArray:
    """Map terms, in windows, into [-1, 1]; what isn't a number counts as impossible, which is -1.

    ``clip_graph`` is the same function as a graph, in nats; ``tests/posterior`` compares them.
    """
    if np.isnan(share).any():
        share = np.where(np.isnan(share), -np.inf, share)
    if clip == "tanh":
        return np.tanh(share)
    if clip == "algebraic":
        return np.where(np.isinf(share), np.sign(share), share / (1.0 + np.abs(share)))
    return np.minimum(np.maximum(share, -1.0), 1.0)


def clip_graph(u: Any, window: Any, clip: Clip) -> Any:
    """Return s(u) within [-window, window] as a graph: minus infinity and NaN count as -window, infinity as window."""
    if clip == "hard":
        return pt.switch(pt.isnan(u), -window, pt.clip(u, -window, window))
    finite = pt.isfinite(u)
    safe, width = pt.switch(finite, u, 0.0), pt.switch(pt.isinf(window), 1.0, window)
    bent = width * pt.tanh(safe / width) if clip == "tanh" else safe / (1 + pt.abs(safe) / width)
    bent = pt.clip(pt.switch(pt.isinf(window), safe, bent), -window, window)
    return pt.switch(finite, bent, pt.switch(u > 0, window, -window))


def bounded(log_likelihood: Any, weights: Any, centre: Any, window: Any, clip: Clip) -> Any:
    """Return s(weights * (log_likelihood - centre)) as a graph, shape (records,); all of it lies in the window.

    A record of weight 0, or without a finite centre, counts as 0 whatever its log-likelihood.
    """
    centred = pt.isfinite(centre)
    u = weights * (log_likelihood - pt.switch(centred, centre, 0.0))
    return pt.switch(pt.eq(weights, 0) | ~centred, 0.0, clip_graph(u, window, clip))


def corrected(inside: Any, log_likelihood: Any, centre: Any, factor: Any) -> Any:
    """Return what censoring takes from public rows, times their factor, and the terms of the others as they are."""
    whole = log_likelihood - centre
    whole = pt.switch(pt.isfinite(whole), whole, inside)
    return pt.switch(pt.eq(factor, 0), inside, factor * (whole - inside))


@dataclass(frozen=True, eq=False, kw_only=True)
class CensoredTerms:
    """What each record adds to the log density: s(alpha (log p(x | theta) - c)), with values in [-window, window]."""

    likelihood: RecordLikelihood  # log p of one record alone
    points: Points  # the parameter values to score
    window: Fraction  # half-width, in nats
    clip: Clip = "hard"  # s
    centre: Points = ()  # public parameter values: c is the log of the mean density over them. Empty: c = 0
    weights: Points = ()  # public parameter values: alpha = min(1, window / max over them of abs(log p(x | theta) - c))

    def total(self, values: Values, counts: IntArray) -> IntArray:
        """Return the sum of all records' terms, in whole steps of window / STEPS, shape (points,)."""
        found = np.zeros(len(self.points[0]), dtype=np.int64)
        for count, (_, term) in zip(counts, self._each(values), strict=True):
            share = clip_values(term / float(self.window), self.clip)
            steps = np.floor(STEPS * share + 0.5).astype(np.int64)
            found += steps if count == 1 else int(count) * steps
        return found

    def excess(self, values: Values) -> FloatArray:
        """Return the mean over public records of what weighing and censoring take from their terms, shape (points,)."""
        window, found = float(self.window), np.zeros(len(self.points[0]))
        rows, counts = distinct(values, None)
        for count, (whole, term) in zip(counts, self._each(rows), strict=True):
            lost = whole - window * clip_values(term / window, self.clip)
            usual = np.isfinite(lost.sum())
            found += count * (lost if usual else np.nan_to_num(lost, nan=0.0, posinf=0.0, neginf=IMPOSSIBLE))
        return found / counts.sum()

    def _each(self, values: Values) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Yield log p - c and alpha (log p - c) of each row, 0 everywhere if its centre isn't finite."""
        n_points, n_centre = len(self.points[0]), len(self.centre[0]) if self.centre else 0
        groups = [group for group in (self.points, self.centre, self.weights) if group]
        self.likelihood.at([np.concatenate(parts) for parts in zip(*groups, strict=True)])
        with np.errstate(all="ignore"):
            for row in self.likelihood.rows(values):
                found = self.likelihood(row)
                centre = _log_mean(found[n_points : n_points + n_centre]) if n_centre else 0.0
                if not np.isfinite(centre):
                    yield np.zeros(n_points), np.zeros(n_points)
                    continue
                whole = found - centre
                largest = max(np.abs(whole[n_points + n_centre :]).max(initial=0.0), 1e-300)
                alpha = min(1.0, float(self.window) / largest) if self.weights else 1.0
                yield whole[:n_points], alpha * whole[:n_points]


def _log_mean(logs: FloatArray) -> float:
    return float(np.logaddexp.reduce(logs) - np.log(len(logs)))


@dataclass(frozen=True, eq=False)
class Censored:
    """A model whose log density is prior + sum over records of s(weight * (log-likelihood - centre))."""

    model: pm.Model  # the new model
    clip: Clip  # the shape of s
    record_parameters: tuple[str, ...]  # free variables that are there once for each record
    dropped: tuple[str, ...]  # deterministics of the old model that read records, which the new one lacks
    _parts: Parts = field(repr=False)
    _hoisted: list[Any] = field(repr=False)
    _front: Callable[..., list[Any]] = field(repr=False)
    compiled: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def n_records(self) -> int:
        """Number of records."""
        return len(self.model[WEIGHTS].get_value(borrow=True))

    @property
    def window(self) -> float:
        """Half width of the window, in nats."""
        return float(self.model[WINDOW].get_value())

    def update(
        self,
        *,
        weights: ArrayLike | None = None,
        centre: ArrayLike | None = None,
        window: float | None = None,
        values: Mapping[str, ArrayLike] | None = None,
    ) -> Self:
        """Give the model other numbers in place; nothing is compiled again."""
        n, bounded_before = self._take(values) if values else self.n_records, math.isfinite(self.window)
        if n != self.n_records:
            weights, centre = 1.0 if weights is None else weights, 0.0 if centre is None else centre
        made = {} if weights is None else {WEIGHTS: check_weights(weights, n)}
        made |= {} if centre is None else {CENTRE: check_vector(centre, n, "centre")}
        made |= {} if window is None else {WINDOW: _checked_window(window)}
        for name, value in made.items():
            self.model[name].set_value(value)
        if values or math.isfinite(self.window) != bounded_before:
            self._work_out()
        return self

    def _take(self, values: Mapping[str, ArrayLike]) -> int:
        """Put new records in place and return their number."""
        data = {held.name: shared for held, shared in self._parts.data.items()}
        new: dict[str, NDArray[Any]] = {}
        for given, value in values.items():
            name = given if given in data else given + SUFFIX
            if name not in data:
                raise InputError(f"the model has no pm.Data {given!r}; make what changes pm.Data")
            new[name] = np.asarray(value, dtype=data[name].dtype)
            if new[name].ndim != data[name].ndim:
                raise InputError(f"{given!r} must have {data[name].ndim} axes")
        n = self._count([new.get(name, shared.get_value(borrow=True)) for name, shared in data.items()])
        if self.record_parameters and n != self.n_records:
            raise InputError(f"{self.record_parameters[0]!r} has one value a record, so their number can't change")
        for name, array in new.items():
            data[name].set_value(array)
        return n

    def _count(self, records: list[Any]) -> int:
        """Return the number of terms of some records."""
        try:
            with np.errstate(all="ignore"):
                return len(self._terms(*(self._point[each.name] for each in self._parts.parameters), *records))
        except (ValueError, IndexError):
            own = f"{', '.join(self.record_parameters)} with one value a record, " if self.record_parameters else ""
            raise InputError(
                f"columns differ in length, have codes that the model doesn't know, or the model has {own}"
                "constants of as many elements as it was built with records"
            ) from None

    @cached_property
    def _point(self) -> dict[str, NDArray[Any]]:
        return natural_points(self.model, 1)[0]

    def _work_out(self) -> None:
        """Work out again what depends on records alone."""
        for shared, value in zip(self._hoisted, self._front(*self._records()), strict=True):
            shared.set_value(_without_infinities(value) if np.isfinite(self.window) else value)

    def log_likelihood(self, draws: Mapping[str, ArrayLike] | xr.Dataset | xr.DataTree) -> FloatArray:
        """Return the plain log-likelihood of each record at each draw, shape (draws, records)."""
        names = [each.name for each in self._parts.parameters]
        stacked = _stacked(draws, names)
        with np.errstate(all="ignore"):
            found = [self._terms(*point, *self._records()) for point in zip(*stacked, strict=True)]
        return np.asarray(found, dtype=np.float64)

    def _records(self) -> list[Any]:
        return [shared.get_value(borrow=True) for shared in self._parts.data.values()]

    @cached_property
    def _terms(self) -> Any:
        inputs = [*self._parts.parameters, *self._parts.data]
        graph = total(list(self._parts.terms.values()))
        return pytensor.function(
            inputs, graph, mode="FAST_COMPILE", on_unused_input="ignore", allow_input_downcast=True
        )


def _stacked(draws: Any, names: list[str]) -> list[NDArray[Any]]:
    if isinstance(draws, xr.DataTree):
        draws = draws["posterior"].to_dataset()
    if not isinstance(draws, xr.Dataset):
        return [np.asarray(draws[name]) for name in names]
    values = [draws[name].transpose("chain", "draw", ...).to_numpy() for name in names]
    return [value.reshape((-1, *value.shape[2:])) for value in values]


def censor_records(
    model: pm.Model,
    columns: Collection[str],
    *,
    window: float,
    clip: Clip = "hard",
    correction: ArrayLike | None = None,
    public_potentials: Collection[str] = (),
) -> Censored:
    """Return a model of many records in which none can enter the term of another, from a model of one record."""
    parts = take_apart(model, Axis())
    check_variables(parts, public_potentials)
    parts = parts.one_by_one(columns)
    public = None if correction is None else check_vector(correction, np.size(correction), "correction")
    return censored_from(model, parts, (), choice(clip, CLIPS, "clip"), 1, public).update(window=window)


def censored_from(
    model: pm.Model, parts: Parts, own: tuple[str, ...], clip: Clip, n: int, correction: FloatArray | None
) -> Censored:
    """Return the model with its terms bounded, weights 1 and centres 0."""
    graph, hoisted, function = _hoist(parts)
    numbers = {
        WEIGHTS: pytensor.shared(np.ones(n), name=WEIGHTS, shape=(None,)),
        CENTRE: pytensor.shared(np.zeros(n), name=CENTRE, shape=(None,)),
        WINDOW: pytensor.shared(np.asarray(math.inf), name=WINDOW),
    }
    if correction is not None:
        numbers[CORRECTION] = pytensor.shared(correction, name=CORRECTION, shape=(None,))
    named = {name: model_named(shared, name) for name, shared in numbers.items()}
    terms = bounded(graph, named[WEIGHTS], named[CENTRE], named[WINDOW], clip)
    if correction is not None:
        terms = corrected(terms, graph, named[CENTRE], named[CORRECTION])
    potential = terms.sum()
    [potential] = graph_replace([potential], parts.stands, strict=False)
    reading = [node for node in parts.of_kind(ModelDeterministic) if _reads_records(node, own, n)]
    kept = [
        each
        for each in parts.fgraph.outputs
        if isinstance(each.owner.op, (ModelFreeRV, ModelNamed, ModelDeterministic, ModelPotential))
        and each.owner not in reading
    ]
    kept = graph_replace(kept, {node.outputs[0]: node.inputs[0] for node in reading}, strict=False)
    fgraph = FunctionGraph(outputs=[*kept, *named.values(), model_potential(potential, LIKELIHOOD)], clone=False)
    fgraph._coords, fgraph._dim_lengths = parts.fgraph._coords, parts.fgraph._dim_lengths
    new = model_from_fgraph(fgraph, mutate_fgraph=True)
    for variable, value in model.rvs_to_initial_values.items():
        if value is not None and variable in model.free_RVs:
            new.set_initval(new[variable.name], value)
    return Censored(new, clip, own, tuple(node.op.name for node in reading), parts, hoisted, function)


def _hoist(parts: Parts) -> tuple[Any, list[Any], Any]:
    """Put what no parameter enters into shared variables, which a function works out from the data."""
    graph, front = constant_parts(total(list(parts.terms.values())), parts.parameters)
    front = [each for each in front if each.ndim and not all(each.type.broadcastable)]
    function = pytensor.function(list(parts.data), front, mode="FAST_COMPILE", on_unused_input="ignore")
    values = function(*(shared.get_value(borrow=True) for shared in parts.data.values()))
    hoisted = [
        pytensor.shared(value, name=f"{HOISTED}{place}", shape=variable.type.shape)
        for place, (variable, value) in enumerate(zip(front, values, strict=True))
    ]
    [graph] = graph_replace([graph], dict(zip(front, hoisted, strict=True)), strict=False)
    return graph, hoisted, function


def _reads_records(node: Any, own: tuple[str, ...], n: int) -> bool:
    """Whether a deterministic would put records, or what is there once for each, into the draws."""
    for each in read_by(node.inputs[0]):
        if isinstance(each, Constant):
            if n > 1 and n in np.shape(each.data):
                return True
        elif isinstance(each.owner.op, (ModelNamed, ModelObservedRV)) or each.owner.op.name in own:
            return True
    return False


def _checked_window(window: float) -> FloatArray:
    """Return the window as an array of no axes; it is above 0."""
    if not float(window) > 0:
        raise InputError(f"window must be above 0 (infinite for no bound), got {window}")
    return np.asarray(window, dtype=np.float64)


def _without_infinities(values: NDArray[Any]) -> NDArray[Any]:
    """Replace infinite values, such as the logarithm of a record on the edge, by very large ones.

    The term ends at the same end of the window, and its gradient there is 0 and not the product of 0 and infinity.
    """
    if values.dtype.kind != "f" or not np.isinf(values).any():
        return values
    large = float(np.finfo(values.dtype).max) ** 0.5
    finite: NDArray[Any] = np.nan_to_num(values, nan=np.nan, posinf=large, neginf=-large)
    return finite
