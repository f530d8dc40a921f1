"""A model taken apart: the log-likelihood of each record as a graph of parameters and data, and what reads records."""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.distribution import PartialObservedRV
from pymc.model.fgraph import (
    ModelDeterministic,
    ModelFreeRV,
    ModelNamed,
    ModelObservedRV,
    ModelPotential,
    ModelVar,
    fgraph_from_model,
)
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape, Shape_i

from pdips.errors import InputError
from pdips.posterior.columns import SUFFIX
from pdips.posterior.model_checks import check_law
from pdips.posterior.record_likelihood import alone, on_first_axis, open_checks, over_records

LIKELIHOOD = "pdips_likelihood"
"""What the likelihood of all records is called."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Where the records of a model's observed variables are."""

    dim: str | None = None  # name of the dimension that numbers records; ``"record"`` is known by itself
    axes: Mapping[str, int] = field(default_factory=dict)  # the record axis of an observed variable without dims
    ids: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    n: int | None = None  # number of records; asked for where there are ids

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of dimensions that number records."""
        return ("record",) if self.dim is None else (self.dim,)


@dataclass(frozen=True, eq=False)
class Parts:
    """A model taken apart."""

    fgraph: Any  # a copy of the model, its variables wrapped in ``ModelVar``
    axis: Axis  # where the records are
    stands: dict[Any, Any]  # placeholders in the terms, each with the free variable or ``pm.Data`` it stands for
    terms: dict[str, Any]  # shape (records,)

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

    def opened(self, shapes: Mapping[str, tuple[int, ...]], n: int) -> "Parts":
        """Return the same with PyMC's checks of parameters made record by record."""
        lengths = {n, *(np.asarray(ids).size for ids in self.axis.ids.values())}

        def holds_records(variable: Any) -> bool:
            if isinstance(variable, Constant):
                return bool(lengths & set(np.shape(variable.data)))
            return variable in self.data or (variable in self.stands and bool(lengths & set(shapes[variable.name])))

        return replace(self, terms={name: open_checks(term, holds_records) for name, term in self.terms.items()})

    def one_by_one(self, columns: Collection[str]) -> "Parts":
        """Return the terms of many records made of the term of one: what was taken apart is a model of one record."""
        held = {each.name.removesuffix(SUFFIX): each for each in self.data if each.name.endswith(SUFFIX)}
        held = {name: each for name, each in held.items() if name in columns}
        term, record = alone(total(list(self.terms.values())), held)
        return replace(self, terms={LIKELIHOOD: over_records(term, {record[name]: held[name] for name in held})})

    def of_kind(self, *kinds: type) -> list[Any]:
        """Return the nodes of the model's variables of some kinds."""
        return [node for node in self.fgraph.toposort() if isinstance(node.op, kinds)]


def copy_of(model: pm.Model) -> Any:
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


def take_apart(model: pm.Model, axis: Axis) -> Parts:
    """Return the log-likelihoods of a model's records as graphs of its free variables and data."""
    fgraph = copy_of(model)
    observed = [node for node in fgraph.toposort() if isinstance(node.op, ModelObservedRV)]
    if not observed:
        raise InputError("the model has no observed variable; observe the columns to synthesize")
    names = [node.op.name for node in observed]
    for name in (*axis.axes, *axis.ids):
        if name not in names:
            raise InputError(
                f"record_axis or record_ids name {name!r}, which the model doesn't observe; it has {names}"
            )
    for node in observed:
        _check_observed(node, axis)
    inlined, pairs = _inline(fgraph)
    stands = {held: dummy for dummy, held in inlined.items() if isinstance(dummy.owner.op, (ModelFreeRV, ModelNamed))}
    terms = {}
    for node, (variable, value) in zip(observed, pairs, strict=True):
        elements = pm.logp(variable, value, warn_rvs=False)
        terms[node.op.name] = _on_records(node.op, elements, axis)
    return Parts(fgraph, axis, stands, terms)


def _inline(fgraph: Any) -> tuple[dict[Any, Any], list[Any]]:
    """Replace free variables and data by placeholders, other variables by what they are made of.

    Without it ``pm.logp`` may copy the graph above a variable, and with it the model's variables. A column that another
    one reads is replaced by its value.
    """
    inlined: dict[Any, Any] = {}
    pairs = []
    for node in fgraph.toposort():
        if isinstance(node.op, (ModelFreeRV, ModelNamed)):
            inlined[node.outputs[0]] = node.outputs[0].type(name=node.op.name)
        elif isinstance(node.op, ModelDeterministic):
            [inlined[node.outputs[0]]] = clone_replace(node.inputs, inlined, rebuild_strict=False)
        elif isinstance(node.op, ModelObservedRV):
            pairs.append(clone_replace(node.inputs, inlined, rebuild_strict=False))
            inlined[node.outputs[0]] = pairs[-1][1]
    return inlined, pairs


def _check_observed(node: Any, axis: Axis) -> None:
    name, (variable, value) = node.op.name, node.inputs
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


def natural_points(model: pm.Model, n_points: int, seed: int = 0) -> list[dict[str, NDArray[Any]]]:
    """Return values of the free variables at random points near the initial one, in the model's own units."""
    rng = np.random.default_rng(seed)
    start = model.initial_point(seed)
    inputs = [model.rvs_to_values[variable] for variable in model.free_RVs]
    function = model.compile_fn(
        model.replace_rvs_by_values(model.free_RVs),
        inputs=inputs,
        mode="FAST_COMPILE",
        point_fn=False,
        on_unused_input="ignore",
    )
    points = []
    for _ in range(n_points):
        values = [_jittered(np.asarray(start[value.name]), rng) for value in inputs]
        points.append(dict(zip((rv.name for rv in model.free_RVs), function(*values), strict=True)))
    return points


def _jittered(value: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    return value + rng.uniform(-1, 1, value.shape) if value.dtype.kind == "f" else value


def total(terms: Sequence[Any]) -> Any:
    """Add the terms of several observed variables."""
    return sum(terms[1:], terms[0])


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
        if any(map(_is_data, read_by(node.inputs[0]))):
            raise InputError(f"potential {node.op.name!r} is called public but reads data; make them constants")


def _check_prior(node: Any) -> None:
    name, variable = node.op.name, node.inputs[0]
    check_law(name, variable)
    if isinstance(variable.owner.op, MinibatchRandomVariable):
        raise InputError(f"{name!r} has a total_size, which rescales its density; take it away")
    for each in read_by(variable):
        if _is_data(each):
            raise InputError(
                f"the prior of {name!r} reads {each.owner.op.name!r}; no window bounds what records do through a "
                "prior, so make it a constant that is public"
            )


def _is_data(variable: Any) -> bool:
    return not isinstance(variable, Constant) and isinstance(variable.owner.op, (ModelNamed, ModelObservedRV))
