"""A model's prior: whether it is proper and public, and independent draws from it."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.distributions.multivariate import CARRV, ICARRV
from pymc.distributions.shape_utils import change_dist_size
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.traversal import ancestors, graph_inputs, toposort
from pytensor.tensor.random.type import RandomGeneratorType

from pdips.errors import InputError
from pdips.posterior.columns import SUFFIX
from pdips.posterior.record_likelihood import inputs_of

Points = list[NDArray[Any]]
Prior = Callable[[int, np.random.Generator], Points]
"""``prior(m, generator)`` returns m independent draws, an array (m, *shape) for each of ``model.value_vars``."""


WIDE = "give it a distribution that integrates to 1, as wide as need be, such as pm.Normal or pm.HalfNormal"
OWN = "write it as pm.CustomDist(..., dist=...), or as one of PyMC's distributions, truncated by pm.Truncated or mixed"
INTRINSIC = "take pm.CAR with alpha below 1, or pm.ZeroSumNormal"


def check_proper(model: pm.Model) -> None:
    """Refuse priors that don't integrate to 1, or of which nothing shows that they do: no posterior need exist.

    Raises
    ------
    InputError
        Naming the first one, and what to write in its place.
    """
    for variable in model.free_RVs:
        check_law(variable.name, variable)


def check_law(name: str, variable: Any) -> None:
    """Refuse the prior of a variable if it is improper, also inside a mixture or the function that it is made of."""
    for node in _nodes([variable]):
        op = node.op
        if isinstance(op, (FlatRV, HalfFlatRV)):
            raise InputError(f"the prior of {name!r} is improper, so its posterior need not exist; {WIDE}")
        if isinstance(op, ICARRV) or (isinstance(op, CARRV) and _is_intrinsic(node)):
            raise InputError(
                f"the prior of {name!r} is improper (an intrinsic autoregression), so its posterior need not exist; "
                f"{INTRINSIC}"
            )
        if isinstance(op, CustomDistRV) or (isinstance(op, CustomSymbolicDistRV) and not op.inline_logprob):
            raise InputError(
                f"the prior of {name!r} is a log density of its own (logp=...), and nothing shows that it integrates "
                f"to 1; {OWN}"
            )


def _nodes(graphs: Sequence[Any]) -> Iterator[Apply]:
    """Yield the operations of graphs, and of the graphs inside them."""
    for node in toposort(graphs):
        yield node
        if isinstance(node.op, HasInnerGraph):
            yield from _nodes(node.op.inner_outputs)


def _is_intrinsic(node: Apply) -> bool:
    alpha = node.op.dist_params(node)[2]
    return isinstance(alpha, Constant) and bool((np.abs(alpha.data) >= 1).any())


def check_potentials(model: pm.Model, public: Collection[str], columns: Collection[str]) -> None:
    """Refuse potentials that the model's file doesn't call public, and those that read records.

    Parameters
    ----------
    model : pymc.Model
        A model of stand-ins.
    public : collection of str
        ``PUBLIC_POTENTIALS``.
    columns : collection of str
        Names of the schema's columns.

    Raises
    ------
    InputError
        If a potential isn't among these, reads a column or an observed variable, or one of these is no potential.
    """
    names = [potential.name for potential in model.potentials]
    if missing := [name for name in public if name not in names]:
        raise InputError(f"PUBLIC_POTENTIALS names {missing[0]!r}, which is no pm.Potential of the model")
    read = [*model.observed_RVs, *(each for each in model.data_vars if each.name.removesuffix(SUFFIX) in columns)]
    for potential in model.potentials:
        behind = set(ancestors([potential]))
        if found := [each.name.removesuffix(SUFFIX) for each in read if each in behind]:
            raise InputError(
                f"potential {potential.name!r} reads column {found[0]!r}, and no window bounds what records do through "
                "a potential; make it part of the law of an observed variable"
            )
        if potential.name not in public:
            raise InputError(
                f"the model has a potential, {potential.name!r}, and nothing shows that prior times potential can be "
                f"integrated; if it can, say PUBLIC_POTENTIALS = ({potential.name!r},) at the top of the model's file"
            )


def prior_of(model: pm.Model) -> Prior:
    """Return a function that draws a model's parameters from their prior, many at once.

    Parameters
    ----------
    model : pymc.Model
        The model. Nothing observed is looked at.

    Returns
    -------
    callable
        See :data:`Prior`. The draws are in value space, that is transformed as ``model.value_vars`` are: a scale is
        given as its logarithm, as ``density.Density`` wants it.

    Raises
    ------
    InputError
        If the prior reads a column (then it isn't public), has a Potential (it can't be drawn forwards), or a variable
        without random draws (an improper prior).

    Notes
    -----
    Each row is computed by itself from random words of its own, and no row from records: the rows are independent
    draws from one law that no table can change, which is what rejection needs (``docs/proofs/exact-samplers.md``,
    lemma 1). That law is the prior as doubles have it; it needn't be the prior to the last bit.
    """
    check_forwards(model)
    function = _compiled(model)

    def draw(m: int, generator: np.random.Generator) -> Points:
        try:
            drawn = function(m, generator)
        except NotImplementedError:
            raise InputError("a prior of the model can't be drawn from; give every parameter a proper prior") from None
        for value, found in zip(model.value_vars, drawn, strict=True):
            if found.ndim != value.ndim + 1 or len(found) != m:
                raise InputError(f"the prior of {value.name!r} can't be drawn row by row; take another sampler")
        return drawn

    return draw


def check_forwards(model: pm.Model) -> None:
    """Refuse a model whose parameters can't be drawn from their prior: for samplers that begin with such draws.

    Raises
    ------
    InputError
        If the prior has a potential, or reads a column.
    """
    if model.potentials:
        raise InputError(
            f"the model has a Potential, {model.potentials[0].name!r}, so its prior can't be drawn forwards, as "
            "rejection and atoms do; write it as a distribution, or take sampler = grid or nuts"
        )
    behind = set(ancestors(model.free_RVs))
    for name, shared in inputs_of(model).items():
        if shared in behind:
            raise InputError(f"the prior reads column {name!r}; a prior must be public: don't use data in it")


def _compiled(model: pm.Model) -> Prior:
    """Compile the draws: all rows at once, or one after the other where a distribution knows no rows."""
    single = [_transformed(rv, model) for rv in map(model.values_to_rvs.__getitem__, model.value_vars)]
    n_draws = pytensor.tensor.lscalar("n_draws")
    try:
        graphs, generators = _own_generators(_batched(single, model.free_RVs, n_draws))
    except NotImplementedError:
        graphs, generators = _own_generators(single)
        one = pytensor.function(generators, graphs, mode="FAST_COMPILE")
        return lambda m, generator: [
            np.stack(rows) for rows in zip(*(one(*[generator] * len(generators)) for _ in range(m)), strict=True)
        ]
    function = pytensor.function([n_draws, *generators], graphs, mode="FAST_COMPILE", on_unused_input="ignore")
    return lambda m, generator: list(function(m, *[generator] * len(generators)))


def _batched(single: Sequence[Any], rvs: Sequence[Any], n_draws: Any) -> list[Any]:
    """Return the graphs of many draws: of the parents first, of the children row by row given them."""
    order = {node: place for place, node in enumerate(toposort(rvs))}
    batched: dict[Any, Any] = {}
    for rv in sorted(rvs, key=lambda rv: order[rv.owner]):
        if set(batched) & set(ancestors([rv])):
            batched[rv] = vectorize_graph(rv, batched)
        else:
            batched[rv] = change_dist_size(rv, (n_draws,), expand=True)
    return list(vectorize_graph(single, batched))


def _transformed(rv: Any, model: pm.Model) -> Any:
    transform = model.rvs_to_transforms[rv]
    return rv if transform is None else transform.forward(rv, *rv.owner.inputs)


def _own_generators(graphs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Make each random variable's generator an input of its own; two with one input would be one draw."""
    roots = [each for each in graph_inputs(graphs) if isinstance(each.type, RandomGeneratorType)]
    inputs = [each.type() for each in roots]
    return list(clone_replace(list(graphs), dict(zip(roots, inputs, strict=True)), rebuild_strict=False)), inputs
