"""A model taken apart: the log-likelihood of each record as a graph of parameters and
data.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.continuous import TruncatedNormalRV
from pymc.distributions.distribution import PartialObservedRV
from pymc.distributions.truncated import TruncatedRV
from pymc.logprob.basic import conditional_logp
from pymc.model.fgraph import (
    ModelDeterministic,
    ModelFreeRV,
    ModelNamed,
    ModelObservedRV,
    ModelPotential,
    fgraph_from_model,
)
from pymc.pytensorf import constant_fold
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape, Shape_i

from pdips.errors import InputError
from pdips.posterior.model_checks import check_law
from pdips.posterior.record_likelihood import joint_terms, on_first_axis

PLACEHELD = (ModelFreeRV, ModelNamed)
"""What the terms of records hold placeholders of: parameters and data."""
UNNAMED = "pdips_unnamed"  # A dimension without a name, in a copy of a model


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Where the records of a model's observed variables are."""

    # the dimension that numbers records; "record" is known by itself
    record_dim: str | None = None
    # record axis of observed variables without dims, 0 unsaid
    record_axis: Mapping[str, int] = field(default_factory=dict)
    # the record of each element or row, by variable
    record_ids: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    n_records: int | None = None  # number of records; asked for where there are ids

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of dimensions that number records."""
        return ("record" if self.record_dim is None else self.record_dim,)


@dataclass(frozen=True, eq=False)
class Parts:
    """A model taken apart: the log-likelihood of each record as a graph of parameters
    and data.
    """

    fgraph: Any  # a copy of the model, its variables wrapped in ``ModelVar``
    axis: Axis
    # placeholders in the terms, each with the free variable or ``pm.Data`` it stands
    # for
    stands: dict[Any, Any]
    # log-likelihoods by observed variable, shape (records,), in terms of placeholders
    terms: dict[str, Any]

    @property
    def parameters(self) -> list[Any]:
        """Placeholders of free variables."""
        return [
            held
            for held, dummy in self.stands.items()
            if isinstance(dummy.owner.op, ModelFreeRV)
        ]

    @property
    def data(self) -> dict[Any, Any]:
        """Placeholders of ``pm.Data``, each with its shared variable."""
        return {
            held: dummy.owner.inputs[0]
            for held, dummy in self.stands.items()
            if isinstance(dummy.owner.op, ModelNamed)
        }

    @property
    def total(self) -> Any:
        """The log-likelihood of each record over all observed variables, shape
        (records,).
        """
        first, *others = self.terms.values()
        return sum(others, first)

    def of_kind(self, *kinds: type) -> list[Any]:
        """Return the nodes of the model's variables of some kinds."""
        return [node for node in self.fgraph.toposort() if isinstance(node.op, kinds)]


def take_apart(model: pm.Model, axis: Axis) -> Parts:
    """Return the log-likelihoods of a model's records as graphs of its free variables
    and data.
    """
    fgraph = _copy_of(model)
    observed = [
        node for node in fgraph.toposort() if isinstance(node.op, ModelObservedRV)
    ]
    if not observed:
        raise InputError(
            "the model has no observed variable; observe the columns to synthesize"
        )
    names = [node.op.name for node in observed]
    for name in (*axis.record_axis, *axis.record_ids):
        if name not in names:
            raise InputError(
                f"record_axis or record_ids name {name!r}, which the model doesn't "
                f"observe; it has {names}"
            )
    # Placeholders, for ``pm.logp`` may copy the graph above a variable, and with it the
    # model's variables. A column that another one reads is replaced by its value.
    inlined: dict[Any, Any] = {
        node.outputs[0]: node.outputs[0].type(name=node.op.name)
        for node in fgraph.toposort()
        if _is_held(node)
    }
    terms: dict[str, Any] = {}
    for node in fgraph.toposort():
        if node.outputs[0] in inlined:
            continue
        if isinstance(node.op, ModelDeterministic | ModelNamed):
            [graph] = clone_replace(node.inputs, inlined, rebuild_strict=False)
            inlined[node.outputs[0]] = graph
        elif isinstance(node.op, ModelObservedRV):
            # variables of which PyMC knows the joint density alone
            drawn_by = node.inputs[0].owner
            joint = [each for each in observed if each.inputs[0].owner is drawn_by]
            terms |= _terms(joint, inlined, axis)
    stands = {held: dummy for dummy, held in inlined.items() if _is_held(dummy.owner)}
    return Parts(fgraph, axis, stands, terms)


def _is_held(node: Any) -> bool:
    """Whether a variable of the model is a parameter, or data."""
    if isinstance(node.op, ModelNamed):
        # pm.do may put a graph of data in the place of a variable
        return isinstance(node.inputs[0], SharedVariable)
    return isinstance(node.op, ModelFreeRV)


def _terms(joint: Sequence[Any], inlined: dict[Any, Any], axis: Axis) -> dict[str, Any]:
    """Return the log-likelihoods of records of observed variables that are drawn
    together, and note their values in ``inlined``.
    """
    given = [each for node in joint for each in node.inputs]
    cloned = clone_replace(given, inlined, rebuild_strict=False)
    variables = cloned[::2]
    values = cloned[1::2]
    for node, variable, value in zip(joint, variables, values, strict=True):
        _check_observed(node.op.name, variable, value)
        inlined[node.outputs[0]] = value
    if len(joint) == 1:
        [node] = joint
        logs = pm.logp(_with_constants(variables[0]), values[0], warn_rvs=False)
        # a tuple of one from what could be several
        elements = logs[0] if isinstance(logs, tuple) else logs
        return {node.op.name: _on_records(node.op, elements, axis)}
    drawn = dict(zip(variables, values, strict=True))
    with joint_terms():
        by_value = conditional_logp(drawn, warn_rvs=False)
    return {
        node.op.name: _on_records(node.op, by_value[value], axis)
        for node, value in zip(joint, values, strict=True)
        # the joint density stands at the first, and a single 0 at the others
        if by_value[value].ndim
    }


def _with_constants(variable: Any) -> Any:
    """Return a random variable that is truncated with bounds as constants, by which
    infinite ones are known; others as they are.
    """
    node = variable.owner
    if not isinstance(node.op, TruncatedNormalRV | TruncatedRV):
        return variable
    *inputs, lower, upper = node.inputs
    bounds = constant_fold([lower, upper], raise_not_constant=False)
    return node.op.make_node(*inputs, *bounds).outputs[variable.index]


def _copy_of(model: pm.Model) -> Any:
    """Return a copy of a model as a function graph, without initial values."""
    if model.parent is not None:
        raise InputError(
            f"model {model.name!r} is part of another model; give the whole one"
        )
    kept = dict(model.rvs_to_initial_values)
    dims = dict(model.named_vars_to_dims)
    try:
        for variable in kept:
            model.rvs_to_initial_values[variable] = None
        # PyMC copies no variable of which one dimension has a name and another hasn't
        for name, given in dims.items():
            if None in (given or ()):
                model.named_vars_to_dims[name] = _without_blanks(model, name)
        with warnings.catch_warnings():
            # old GP objects are not used any further
            warnings.simplefilter("ignore", UserWarning)
            return fgraph_from_model(model, inlined_views=True)[0]
    finally:
        model.rvs_to_initial_values.update(kept)
        model.named_vars_to_dims.update(dims)


def _without_blanks(model: pm.Model, name: str) -> tuple[str, ...]:
    """Return dimensions of which each has a name, as long as the copy needs them: those
    of an observed variable say where the records are.
    """
    if model[name] not in model.observed_RVs:
        return ()
    return tuple(dim or UNNAMED for dim in model.named_vars_to_dims[name])


def _check_observed(name: str, variable: Any, value: Any) -> None:
    is_drawn = any(
        behind.owner and isinstance(behind.owner.op, RandomVariable)
        for behind in ancestors([value])
    )
    if is_drawn or isinstance(variable.owner.op, MinibatchRandomVariable):
        raise InputError(
            f"{name!r} is observed in minibatches, which rescale its "
            f"likelihood; observe all records"
        )
    if isinstance(variable.owner.op, PartialObservedRV):
        raise InputError(
            f"{name!r} has rows with some values missing, which PyMC imputes in one "
            f"go with the others; fill them in, "
            "or leave them out, by a rule that looks at one record only"
        )


def _on_records(op: Any, elements: Any, axis: Axis) -> Any:
    """Sum the log-likelihoods of an observed variable's elements by record, shape
    (records,).
    """
    if op.name in axis.record_ids:
        ids = np.asarray(axis.record_ids[op.name])
        by_element = on_first_axis(elements)
        if ids.ndim == elements.ndim:
            by_element = elements.ravel()
        return pt.inc_subtensor(pt.zeros((axis.n_records,))[ids.ravel()], by_element)
    if elements.ndim == 0:
        raise InputError(
            f"{op.name!r} has one log-likelihood for all records together (a time "
            f"series, a marginal Gaussian "
            "process); records must be independent given the parameters"
        )
    numbered = [place for place, dim in enumerate(op.dims or ()) if dim in axis.dims]
    first = numbered[0] if numbered else 0
    place = axis.record_axis.get(op.name, first)
    if place >= elements.ndim:
        raise InputError(
            f"axis {place} of {op.name!r} doesn't number records: its "
            f"values there are one draw together"
        )
    if place:
        elements = pt.moveaxis(elements, place, 0)
    return on_first_axis(elements)


def read_by(variable: Any) -> Iterator[Any]:
    """Yield data, observed and free variables (as dummies) and constants that a graph
    reads, but for their shapes.
    """
    seen = set()
    pending = [variable]
    while pending:
        read = pending.pop()
        if read in seen:
            continue
        seen.add(read)
        if isinstance(read, Constant):
            yield read
        elif read.owner is None or isinstance(read.owner.op, (Shape, Shape_i)):
            continue
        elif isinstance(read.owner.op, (*PLACEHELD, ModelObservedRV)):
            yield read
        else:
            pending.extend(read.owner.inputs)


def natural_points(model: pm.Model, n_points: int) -> list[dict[str, NDArray[Any]]]:
    """Return values of the free variables at random points near the initial one, in the
    model's own units.
    """
    rng = np.random.default_rng(0)
    start = model.initial_point(0)
    inputs = [model.rvs_to_values[variable] for variable in model.free_RVs]
    graphs = model.replace_rvs_by_values(model.free_RVs)
    function = model.compile_fn(
        graphs,
        inputs=inputs,
        point_fn=False,
        mode="FAST_COMPILE",
        on_unused_input="ignore",
    )
    names = [variable.name for variable in model.free_RVs]
    points = []
    for _ in range(n_points):
        values = [_moved(np.asarray(start[value.name]), rng) for value in inputs]
        points.append(dict(zip(names, function(*values), strict=True)))
    return points


def _moved(value: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Return a value near another; a discrete one stays."""
    if value.dtype.kind != "f":
        return value
    return value + rng.uniform(-1, 1, value.shape)


def check_variables(parts: Parts, public_potentials: Collection[str]) -> None:
    """Refuse what can be seen without numbers: improper or data-driven priors,
    potentials, imputed values.
    """
    free = parts.of_kind(ModelFreeRV)
    for node in free:
        _check_prior(node.op.name, node.inputs[0])
    names = {node.op.name for node in free}
    for node in parts.of_kind(ModelObservedRV):
        name = node.op.name
        base = name.removesuffix("_observed")
        is_imputed = base != name and f"{base}_unobserved" in names
        if is_imputed and name not in parts.axis.record_ids:
            raise InputError(
                f"{base!r} has missing values, which PyMC imputes; say in "
                f"record_ids[{name!r}] which record "
                "each known value belongs to, or leave such records out by a rule "
                "that looks at one record only"
            )
    for node in parts.of_kind(ModelPotential):
        if node.op.name not in public_potentials:
            raise InputError(
                f"potential {node.op.name!r} may read records outside the window; if "
                f"it reads parameters only, name it "
                "in PUBLIC_POTENTIALS of the model's file, or in public_potentials"
            )
        if any(map(_is_data, read_by(node.inputs[0]))):
            raise InputError(
                f"potential {node.op.name!r} is called public but reads "
                f"data; make them constants"
            )


def _check_prior(name: str, variable: Any) -> None:
    """Refuse a prior that is improper, rescaled or reads data."""
    check_law(name, variable)
    if isinstance(variable.owner.op, MinibatchRandomVariable):
        raise InputError(
            f"{name!r} has a total_size, which rescales its density; take it away"
        )
    for read in filter(_is_data, read_by(variable)):
        raise InputError(
            f"the prior of {name!r} reads {read.owner.op.name!r}; no window bounds "
            f"what records do through a prior, so make "
            "it a constant that is public"
        )


def _is_data(variable: Any) -> bool:
    return not isinstance(variable, Constant) and isinstance(
        variable.owner.op, (ModelNamed, ModelObservedRV)
    )


def reads_records(node: Any, own: tuple[str, ...] = (), n: int = 1) -> bool:
    """Whether a deterministic would put records, or what is there once for each, into
    the draws.
    """
    for read in read_by(node.inputs[0]):
        if isinstance(read, Constant):
            if n > 1 and n in np.shape(read.data):
                return True
        elif _is_data(read) or read.owner.op.name in own:
            return True
    return False
