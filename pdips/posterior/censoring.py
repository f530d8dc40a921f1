"""The censored likelihood: a model taken apart, and put together with each record's part in its posterior bounded."""

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pymc.distributions.distribution import PartialObservedRV
from pymc.model.fgraph import (
    ModelDeterministic,
    ModelFreeRV,
    ModelNamed,
    ModelObservedRV,
    ModelPotential,
    ModelVar,
    fgraph_from_model,
    model_from_fgraph,
    model_named,
    model_potential,
)
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape, Shape_i

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.posterior.columns import SUFFIX
from pdips.posterior.model_checks import check_law
from pdips.posterior.record_likelihood import alone, constant_parts, on_first_axis, over_records
from pdips.privacy.loss import choice

Clip = Literal["hard", "tanh", "algebraic"]
CLIPS: tuple[Clip, ...] = ("hard", "tanh", "algebraic")

LIKELIHOOD = "pdips_likelihood"  # What the likelihood of all records is called
WEIGHTS, CENTRE, WINDOW, CORRECTION = "pdips_weights", "pdips_centre", "pdips_window", "pdips_correction"
HOISTED = "pdips_hoisted_"


def check_vector(values: Any, n: int, name: str) -> FloatArray:
    """Return one number, or one for each record, as a vector of doubles, shape (n,)."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers, one for each record") from None
    if found.shape not in ((), (n,)):
        raise InputError(f"{name} must be a number or a vector of one number for each record")
    return np.broadcast_to(found, (n,)).copy()


def check_weights(weights: Any, n_records: int) -> FloatArray:
    """Return weights, one number in [0, 1] for all records or for each, as a vector, shape (n_records,)."""
    found = check_vector(weights, n_records, "weights")
    if not ((found >= 0) & (found <= 1)).all():
        raise InputError("weights must lie between 0 and 1, and none may be missing")
    return found


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
    """Return s(u) within [-window, window] as a graph: minus infinity and NaN count as -window, infinity as window.

    ``hard`` cuts u off at the window, ``tanh`` is ``window * tanh(u / window)``, ``algebraic`` is
    ``window * u / (window + |u|)``; the window may be infinite.
    """
    if clip == "hard":
        return pt.switch(pt.isnan(u), -window, pt.clip(u, -window, window))
    finite = pt.isfinite(u)
    safe, width = pt.switch(finite, u, 0.0), pt.switch(pt.isinf(window), 1.0, window)
    bent = width * pt.tanh(safe / width) if clip == "tanh" else safe / (1 + pt.abs(safe) / width)
    bent = pt.clip(pt.switch(pt.isinf(window), safe, bent), -window, window)
    return pt.switch(finite, bent, pt.switch(u > 0, window, -window))


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Where the records of a model's observed variables are."""

    dim: str | None = None  # the dimension that numbers records; "record" is known by itself
    axes: Mapping[str, int] = field(default_factory=dict)  # record axis of observed variables without dims, 0 unsaid
    ids: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)  # the record of each element or row, by variable
    n: int | None = None  # number of records; asked for where there are ids

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of dimensions that number records."""
        return ("record",) if self.dim is None else (self.dim,)


@dataclass(frozen=True, eq=False)
class Parts:
    """A model taken apart: the log-likelihood of each record as a graph of parameters and data."""

    fgraph: Any  # a copy of the model, its variables wrapped in ``ModelVar``
    axis: Axis
    stands: dict[Any, Any]  # placeholders in the terms, each with the free variable or ``pm.Data`` it stands for
    terms: dict[str, Any]  # log-likelihoods by observed variable, shape (records,), in terms of placeholders

    @property
    def parameters(self) -> list[Any]:
        """Placeholders of free variables."""
        return [held for held, dummy in self.stands.items() if isinstance(dummy.owner.op, ModelFreeRV)]

    @property
    def data(self) -> dict[Any, Any]:
        """Placeholders of ``pm.Data``, each with its shared variable."""
        return {
            held: dummy.owner.inputs[0] for held, dummy in self.stands.items() if isinstance(dummy.owner.op, ModelNamed)
        }

    @property
    def total(self) -> Any:
        """The log-likelihood of each record over all observed variables, shape (records,)."""
        first, *others = self.terms.values()
        return sum(others, first)

    def of_kind(self, *kinds: type) -> list[Any]:
        """Return the nodes of the model's variables of some kinds."""
        return [node for node in self.fgraph.toposort() if isinstance(node.op, kinds)]


def take_apart(model: pm.Model, axis: Axis) -> Parts:
    """Return the log-likelihoods of a model's records as graphs of its free variables and data."""
    fgraph = _copy_of(model)
    observed = [node for node in fgraph.toposort() if isinstance(node.op, ModelObservedRV)]
    if not observed:
        raise InputError("the model has no observed variable; observe the columns to synthesize")
    names = [node.op.name for node in observed]
    for name in (*axis.axes, *axis.ids):
        if name not in names:
            raise InputError(
                f"record_axis or record_ids name {name!r}, which the model doesn't observe; it has {names}"
            )
    # Placeholders, for ``pm.logp`` may copy the graph above a variable, and with it the model's variables. A column
    # that another one reads is replaced by its value.
    inlined: dict[Any, Any] = {}
    terms = {}
    for node in fgraph.toposort():
        if isinstance(node.op, (ModelFreeRV, ModelNamed)):
            inlined[node.outputs[0]] = node.outputs[0].type(name=node.op.name)
        elif isinstance(node.op, ModelDeterministic):
            [inlined[node.outputs[0]]] = clone_replace(node.inputs, inlined, rebuild_strict=False)
        elif isinstance(node.op, ModelObservedRV):
            _check_observed(node.op.name, *node.inputs)
            variable, value = clone_replace(node.inputs, inlined, rebuild_strict=False)
            inlined[node.outputs[0]] = value
            terms[node.op.name] = _on_records(node.op, pm.logp(variable, value, warn_rvs=False), axis)
    stands = {held: dummy for dummy, held in inlined.items() if isinstance(dummy.owner.op, (ModelFreeRV, ModelNamed))}
    return Parts(fgraph, axis, stands, terms)


def _copy_of(model: pm.Model) -> Any:
    """Return a copy of a model as a function graph, without initial values."""
    if model.parent is not None:
        raise InputError(f"model {model.name!r} is part of another model; give the whole one")
    kept = dict(model.rvs_to_initial_values)
    try:
        for variable in kept:
            model.rvs_to_initial_values[variable] = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # old GP objects are not used any further
            return fgraph_from_model(model, inlined_views=True)[0]
    finally:
        model.rvs_to_initial_values.update(kept)


def _check_observed(name: str, variable: Any, value: Any) -> None:
    draws = [each for each in ancestors([value]) if each.owner and isinstance(each.owner.op, RandomVariable)]
    if isinstance(variable.owner.op, MinibatchRandomVariable) or draws:
        raise InputError(f"{name!r} is observed in minibatches, which rescale its likelihood; observe all records")
    if isinstance(variable.owner.op, PartialObservedRV):
        raise InputError(
            f"{name!r} has rows with some values missing, which PyMC imputes in one go with the others; fill them in, "
            "or leave them out, by a rule that looks at one record only"
        )


def _on_records(op: Any, elements: Any, axis: Axis) -> Any:
    """Sum the log-likelihoods of an observed variable's elements by record, shape (records,)."""
    if op.name in axis.ids:
        ids = np.asarray(axis.ids[op.name])
        by_element = elements.ravel() if ids.ndim == elements.ndim else on_first_axis(elements)
        return pt.inc_subtensor(pt.zeros((axis.n,))[ids.ravel()], by_element)
    if elements.ndim == 0:
        raise InputError(
            f"{op.name!r} has one log-likelihood for all records together (a time series, a marginal Gaussian "
            "process); records must be independent given the parameters"
        )
    numbered = [place for place, dim in enumerate(op.dims or ()) if dim in axis.dims]
    place = axis.axes.get(op.name, numbered[0] if numbered else 0)
    if place >= elements.ndim:
        raise InputError(f"axis {place} of {op.name!r} doesn't number records: its values there are one draw together")
    return on_first_axis(pt.moveaxis(elements, place, 0) if place else elements)


def read_by(variable: Any) -> Iterator[Any]:
    """Yield data, observed and free variables (as dummies) and constants that a graph reads, but for their shapes."""
    seen, pending = set(), [variable]
    while pending:
        each = pending.pop()
        if each in seen:
            continue
        seen.add(each)
        if isinstance(each, Constant):
            yield each
        elif each.owner is None or isinstance(each.owner.op, (Shape, Shape_i)):
            continue
        elif isinstance(each.owner.op, ModelVar) and not isinstance(
            each.owner.op, (ModelDeterministic, ModelPotential)
        ):
            yield each
        else:
            pending.extend(each.owner.inputs)


def natural_points(model: pm.Model, n_points: int) -> list[dict[str, NDArray[Any]]]:
    """Return values of the free variables at random points near the initial one, in the model's own units."""
    rng, start = np.random.default_rng(0), model.initial_point(0)
    inputs = [model.rvs_to_values[variable] for variable in model.free_RVs]
    graphs = model.replace_rvs_by_values(model.free_RVs)
    settings: dict[str, Any] = {"mode": "FAST_COMPILE", "on_unused_input": "ignore"}
    function = model.compile_fn(graphs, inputs=inputs, point_fn=False, **settings)
    points = []
    for _ in range(n_points):
        values = [np.asarray(start[value.name]) for value in inputs]
        values = [each + rng.uniform(-1, 1, each.shape) if each.dtype.kind == "f" else each for each in values]
        points.append(dict(zip((rv.name for rv in model.free_RVs), function(*values), strict=True)))
    return points


def check_variables(parts: Parts, public_potentials: Collection[str]) -> None:
    """Refuse what can be seen without numbers: improper or data-driven priors, potentials, imputed values."""
    free = parts.of_kind(ModelFreeRV)
    for node in free:
        name, variable = node.op.name, node.inputs[0]
        check_law(name, variable)
        if isinstance(variable.owner.op, MinibatchRandomVariable):
            raise InputError(f"{name!r} has a total_size, which rescales its density; take it away")
        if read := [each.owner.op.name for each in read_by(variable) if _is_data(each)]:
            raise InputError(
                f"the prior of {name!r} reads {read[0]!r}; no window bounds what records do through a prior, so make "
                "it a constant that is public"
            )
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
        if any(map(_is_data, read_by(node.inputs[0]))):
            raise InputError(f"potential {node.op.name!r} is called public but reads data; make them constants")


def _is_data(variable: Any) -> bool:
    return not isinstance(variable, Constant) and isinstance(variable.owner.op, (ModelNamed, ModelObservedRV))


@dataclass(frozen=True, eq=False)
class Censored:
    """A model whose log density is prior + sum over records of s(weight * (log-likelihood - centre)).

    Each term lies in [-w, w], so one exact draw costs 4 w when a record is replaced and 2 w when one is added or
    removed, if weights and centres are functions of a record and of public things
    (``docs/proofs/censored-posterior.md``).
    """

    model: pm.Model  # the old one's free variables, one potential for the likelihood, no observed variable
    clip: Clip
    record_parameters: tuple[str, ...]  # free variables that are there once for each record: never to be released
    dropped: tuple[str, ...]  # deterministics of the old model that read records, which the new one lacks
    _parts: Parts = field(repr=False)
    _hoisted: list[Any] = field(repr=False)
    _front: Callable[..., list[Any]] = field(repr=False)
    compiled: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def n_records(self) -> int:
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
        """Give the model other weights and centres (one, or one a record), window or columns; nothing is recompiled.

        With another number of records all columns are asked for, and weights are 1 and centres 0 where not given.
        """
        n, bounded_before = self._take(values) if values else self.n_records, math.isfinite(self.window)
        if n != self.n_records:
            weights, centre = 1.0 if weights is None else weights, 0.0 if centre is None else centre
        made = {} if weights is None else {WEIGHTS: check_weights(weights, n)}
        made |= {} if centre is None else {CENTRE: check_vector(centre, n, "centre")}
        if window is not None:
            if not float(window) > 0:
                raise InputError(f"window must be above 0 (infinite for no bound), got {window}")
            made[WINDOW] = np.asarray(window, dtype=np.float64)
        for name, value in made.items():
            self.model[name].set_value(value)
        if values or math.isfinite(self.window) != bounded_before:
            for shared, value in zip(self._hoisted, self._front(*self._records()), strict=True):
                shared.set_value(_without_infinities(value) if np.isfinite(self.window) else value)
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
        records = [new.get(name, shared.get_value(borrow=True)) for name, shared in data.items()]
        try:
            with np.errstate(all="ignore"):
                n = len(self._terms(*(self._point[each.name] for each in self._parts.parameters), *records))
        except (ValueError, IndexError):
            own = f"{', '.join(self.record_parameters)} with one value a record, " if self.record_parameters else ""
            raise InputError(
                f"columns differ in length, have codes that the model doesn't know, or the model has {own}"
                "constants of as many elements as it was built with records"
            ) from None
        if self.record_parameters and n != self.n_records:
            raise InputError(f"{self.record_parameters[0]!r} has one value a record, so their number can't change")
        for name, array in new.items():
            data[name].set_value(array)
        return n

    @cached_property
    def _point(self) -> dict[str, NDArray[Any]]:
        return natural_points(self.model, 1)[0]

    def log_likelihood(self, draws: Mapping[str, ArrayLike]) -> FloatArray:
        """Return the plain log-likelihood of each record at each draw of the free variables, shape (draws, records)."""
        stacked = [np.asarray(draws[each.name]) for each in self._parts.parameters]
        with np.errstate(all="ignore"):
            found = [self._terms(*point, *self._records()) for point in zip(*stacked, strict=True)]
        return np.asarray(found, dtype=np.float64)

    def _records(self) -> list[Any]:
        return [shared.get_value(borrow=True) for shared in self._parts.data.values()]

    @cached_property
    def _terms(self) -> Any:
        inputs = [*self._parts.parameters, *self._parts.data]
        settings: dict[str, Any] = {"mode": "FAST_COMPILE", "on_unused_input": "ignore", "allow_input_downcast": True}
        return pytensor.function(inputs, self._parts.total, **settings)


def censor_records(
    model: pm.Model,
    columns: Collection[str],
    *,
    window: float,
    clip: Clip = "hard",
    correction: ArrayLike | None = None,
    public_potentials: Collection[str] = (),
) -> Censored:
    """Return a model of many records in which none can enter the term of another, from a model of one record.

    The term of record i is f(parameters, record i), with the same f for all: the graph of one record is repeated for
    each, so nothing has to be tried out (``docs/proofs/censored-posterior.md``, lemma 9). What is returned has that one
    record, or as many as ``correction`` (see :func:`censored_from`); :meth:`Censored.update` gives it others.
    """
    parts = take_apart(model, Axis())
    check_variables(parts, public_potentials)
    held = {each.name.removesuffix(SUFFIX): each for each in parts.data if each.name.endswith(SUFFIX)}
    term, record = alone(parts.total, {name: each for name, each in held.items() if name in columns})
    many = over_records(term, {one: held[name] for name, one in record.items()})
    parts = Parts(parts.fgraph, parts.axis, parts.stands, {LIKELIHOOD: many})
    public = None if correction is None else check_vector(correction, np.size(correction), "correction")
    return censored_from(model, parts, (), choice(clip, CLIPS, "clip"), 1, public).update(window=window)


def censored_from(
    model: pm.Model, parts: Parts, own: tuple[str, ...], clip: Clip, n: int, correction: FloatArray | None = None
) -> Censored:
    """Return a model that was taken apart with its terms bounded, weights 1 and centres 0.

    ``own`` are free variables that are there once for each of the n records. Where ``correction``, shape (records,), is
    not 0 the row is public, and what counts is what censoring takes from it, times this number. A record of weight 0,
    or without a finite centre, counts as 0 whatever its log-likelihood.
    """
    graph, hoisted, function = _hoist(parts)
    numbers = {
        WEIGHTS: pytensor.shared(np.ones(n), name=WEIGHTS, shape=(None,)),
        CENTRE: pytensor.shared(np.zeros(n), name=CENTRE, shape=(None,)),
        WINDOW: pytensor.shared(np.asarray(math.inf), name=WINDOW),
    }
    if correction is not None:
        numbers[CORRECTION] = pytensor.shared(correction, name=CORRECTION, shape=(None,))
    named = {name: model_named(shared, name) for name, shared in numbers.items()}
    weights, centre = named[WEIGHTS], named[CENTRE]
    centred = pt.isfinite(centre)
    inside = clip_graph(weights * (graph - pt.switch(centred, centre, 0.0)), named[WINDOW], clip)
    terms = pt.switch(pt.eq(weights, 0) | ~centred, 0.0, inside)
    if correction is not None:
        lost = pt.switch(pt.isfinite(graph - centre), graph - centre - terms, 0.0)
        terms = pt.switch(pt.eq(named[CORRECTION], 0), terms, named[CORRECTION] * lost)
    [potential] = graph_replace([terms.sum()], parts.stands, strict=False)
    reading = [node for node in parts.of_kind(ModelDeterministic) if _reads_records(node, own, n)]
    variables = (ModelFreeRV, ModelNamed, ModelDeterministic, ModelPotential)
    kept = [each for each in parts.fgraph.outputs if isinstance(each.owner.op, variables) and each.owner not in reading]
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
    graph, front = constant_parts(parts.total, parts.parameters)
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


def _without_infinities(values: NDArray[Any]) -> NDArray[Any]:
    """Replace infinite values, such as the logarithm of a record on the edge, by very large ones.

    The term ends at the same end of the window, and its gradient there is 0 and not the product of 0 and infinity.
    """
    if values.dtype.kind != "f" or not np.isinf(values).any():
        return values
    large = float(np.finfo(values.dtype).max) ** 0.5
    return np.asarray(np.nan_to_num(values, nan=np.nan, posinf=large, neginf=-large))
