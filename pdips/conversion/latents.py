"""Numbers that each record has of its own and nobody observes: true values behind
measured ones, abilities, intercepts of persons. They are integrated out in the
record's own term, and drawn anew for each simulated record.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pymc as pm
import pytensor.scalar as ps
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.multivariate import MvNormalRV
from pymc.distributions.transforms import _default_transform
from pymc.logprob.abstract import MeasurableOp, _logprob
from pymc.logprob.basic import conditional_logp, icdf
from pymc.pytensorf import collect_default_updates
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.basic import Join
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV, NormalRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type_other import NoneTypeT

from pdips.conversion.quadrature import (
    first_row,
    log_integral,
    log_normal_integral,
    probabilities,
)
from pdips.errors import InputError
from pdips.posterior.model_checks import (
    SERIES,
    check_law,
    check_no_process,
    instead_of,
)
from pdips.posterior.record_likelihood import on_first_axis, open_checks

# Numbers of one record that can be integrated over together, where all is normal
MOST = 2
# Levels that can be summed over: each is a copy of a record's graph
MOST_LEVELS = 12


def check_latents(
    model: pm.Model, latents: Sequence[Any], numbering: Collection[Any] = ()
) -> None:
    """Refuse numbers of records that can't be integrated out, one record at a time.

    Parameters
    ----------
    model : pymc.Model
        As its author wrote it.
    latents : sequence of random variable
        Its free variables with an entry for each record.
    numbering : collection of variable
        The record of each row of a frame in long form.
    """
    for latent in latents:
        _check_law(model, latent)
    own = set(latents)
    named = [*model.basic_RVs]
    for variable in [*model.free_RVs, *model.potentials]:
        reads = own.intersection(_behind([variable], named)) - {variable}
        if variable not in own and reads:
            raise _refused(
                reads.pop(), f"{variable.name!r} reads it, which no record has alone"
            )
    observed = model.observed_RVs
    for variable in [*latents, *observed]:
        others = [one for one in named if one is not variable]
        for latent in latents:
            if latent is not variable:
                _check_path(variable, latent, others, numbering)
    for members in groups_of(observed, latents):
        some = [latent for latent in latents if latent in members]
        read = [variable for variable in observed if variable in members]
        if some and not read:
            raise _refused(some[0], "no observed variable reads it")
        if len(some) > MOST or (len(some) > 1 and not is_normal(read, some)):
            names = " and ".join(repr(latent.name) for latent in some[:2])
            raise InputError(
                f"{names} are numbers that each record has of its own, and are read "
                f"together: {MOST} such can be integrated out where they and what "
                f"reads them are normal, else one; give pm.MvNormal the "
                f"covariance that follows from them, or drop one"
            )


def _check_law(model: pm.Model, latent: Any) -> None:
    """Refuse a number of each record whose law can't be integrated over."""
    check_law(latent.name, latent)
    check_no_process(latent)
    if not latent.dtype.startswith("float"):
        _check_levels(latent)
        return
    op = latent.owner.op
    if isinstance(op, SERIES):
        raise InputError(
            f"{latent.name!r} is a series over records, which have no order: take one "
            f"over the levels of a public column for time"
        )
    has_one_each = latent.ndim == 1 or is_column(latent)
    if not isinstance(op, RandomVariable) or op.ndim_supp or not has_one_each:
        raise _refused(
            latent,
            "its law isn't that of one number a record, each by itself (series and "
            "vectors aren't, nor are pm.Mixture and pm.Truncated)",
        )
    if type(model.rvs_to_transforms[latent]) is not type(
        _default_transform(op, latent)
    ):
        raise _refused(latent, "its transform may tie records together")
    one_each = as_vector(latent) if is_column(latent) else latent
    try:
        icdf(one_each, probabilities(), warn_rvs=False)
    except NotImplementedError:
        raise _refused(
            latent,
            f"{op.name} has no quantiles (pm.icdf), such as pm.Normal, "
            f"pm.StudentT, pm.Gamma and pm.Beta have",
        ) from None


def _check_levels(latent: Any) -> None:
    """Refuse a whole number of each record that can't be summed over."""
    n_levels = levels_of(latent)
    if n_levels is None or latent.ndim != 1:
        raise InputError(
            f"the model has one parameter for each record, {latent.name!r}, which "
            f"isn't a real number, nor pm.Bernoulli or pm.Categorical with one draw a "
            f"record; {instead_of(latent)}"
        )
    if n_levels > MOST_LEVELS:
        raise InputError(
            f"{latent.name!r} has one of {n_levels} levels for each record; at most "
            f"{MOST_LEVELS} can be summed over"
        )


def is_column(latent: Any) -> bool:
    """Whether a variable has the shape (records, 1)."""
    return bool(latent.ndim == 2 and latent.type.shape[1] == 1)


def as_vector(latent: Any) -> Any:
    """Return a variable of shape (records, 1) as one of shape (records,)."""
    op = latent.owner.op
    rng, shape, *_ = latent.owner.inputs
    # of a variable without a shape of its own the parameters tell how many
    if not isinstance(shape.type, NoneTypeT):
        shape = shape[:1]
    parameters = [each[:, 0] for each in op.dist_params(latent.owner)]
    return op.make_node(rng, shape, *parameters).outputs[-1]


def levels_of(latent: Any) -> int | None:
    """Return how many levels a record's number has, from 0 on; None if it isn't known
    to have some.
    """
    op = latent.owner.op
    if isinstance(op, BernoulliRV):
        return 2
    if isinstance(op, CategoricalRV):
        [probabilities_of_levels] = op.dist_params(latent.owner)
        length = probabilities_of_levels.type.shape[-1]
        return None if length is None else int(length)
    return None


def _check_path(
    variable: Any, latent: Any, others: Collection[Any], numbering: Collection[Any]
) -> None:
    """Refuse a variable in which a record's entry may read another record's number."""
    depends = {latent}
    for node in toposort([variable], blockers=others):
        read = [one for one in node.inputs if one in depends]
        if not read:
            continue
        depends.update(node.outputs)
        if isinstance(node.op, AdvancedSubtensor):
            if read == node.inputs[:1] and node.inputs[1] in numbering:
                continue
            if _is_looked_up_by(node, read):
                _check_shared(variable, node)
                continue
            raise InputError(
                f"{variable.name!r} looks {latent.name!r} up, as with a frame in long "
                f"form, several rows a person: give the frame one row a person and one "
                f"column a measurement, and melt it in the function that makes the "
                f"model, or observe the columns together, observed=df[['w1', 'w2']], "
                f"with {latent.name}[:, None] in their mean"
            )
        if not _keeps_records_apart(node, read):
            raise _refused(
                latent,
                f"{variable.name!r} reads it otherwise than record by record (by "
                f"sums or means)",
            )


def _is_looked_up_by(node: Any, read: Sequence[Any]) -> bool:
    """Whether rows of an array that records share are looked up by one whole number a
    record, as in ``mean[group]``.
    """
    _, *indices = node.inputs
    return list(read) == indices and len(indices) == 1 and node.op.idx_list[0] == 0


def _check_shared(variable: Any, lookup: Any) -> None:
    """Refuse a lookup in what has an entry for each record."""
    array, level = lookup.inputs
    length = level.type.shape[0]
    if length is not None and array.type.shape[0] == length:
        raise InputError(
            f"{variable.name!r} looks up other records by {level.name!r}: look it up "
            f"in parameters, one for each level"
        )


def _keeps_records_apart(node: Any, read: Sequence[Any]) -> bool:
    """Whether the entries of an operation's outputs on their first axis read the same
    entries of what was read alone.
    """
    op = node.op
    if isinstance(op, Elemwise | SpecifyShape):
        return True
    if isinstance(op, DimShuffle):
        return bool(op.new_order) and op.new_order[0] == 0
    if isinstance(op, CAReduce):
        return op.axis is not None and 0 not in op.axis
    if isinstance(op, Join):
        return bool(op.axis > 0)
    if isinstance(op, Dot):
        return list(read) == [node.inputs[0]] and read[0].ndim == 2
    is_random = isinstance(op, RandomVariable | SymbolicRandomVariable)
    return is_random and node.outputs[-1].ndim > (op.ndim_supp or 0)


def _refused(latent: Any, why: str) -> InputError:
    return InputError(
        f"the model has one parameter for each record, {latent.name!r}, which can't "
        f"be integrated out: {why}; {instead_of(latent)}"
    )


class WithLatents(MeasurableOp, OpFromGraph):  # type: ignore[misc]
    """Observed variables, given numbers of each record that nobody observes: drawn
    with these, and with a density in which they are integrated out.

    Outputs are the observed variables, the numbers, and states of generators.
    """

    def __init__(self, *args: Any, n_observed: int, n_latent: int, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.n_observed = n_observed
        self.n_latent = n_latent


def with_latents(
    observed: Sequence[Any], latents: Sequence[Any], parameters: Collection[Any]
) -> list[Any]:
    """Return observed variables as outputs of one random operation, inside of which the
    numbers are that they read of each record.

    Parameters
    ----------
    observed : sequence of random variable
        Some of them read ``latents``.
    latents : sequence of random variable, shape (records,)
        One number a record each.
    parameters : collection of random variable
        What has a value where the operation's density is asked for.
    """
    outputs = [*observed, *latents]
    inputs = inputs_of_op(outputs, parameters)
    updates = collect_default_updates(outputs, inputs=inputs, must_be_shared=False)
    op = WithLatents(
        inputs,
        [*outputs, *updates.values()],
        n_observed=len(observed),
        n_latent=len(latents),
    )
    return list(op.make_node(*inputs).outputs[: len(observed)])


def inputs_of_op(outputs: Sequence[Any], parameters: Collection[Any]) -> list[Any]:
    """Return what an operation reads inside of which some outputs are: parameters, and
    data and generators.
    """
    return [
        variable
        for variable in dict.fromkeys(ancestors(outputs, blockers=parameters))
        if variable in parameters
        or (variable.owner is None and not isinstance(variable, Constant))
    ]


@_logprob.register(WithLatents)  # type: ignore[untyped-decorator]
def with_latents_logprob(
    op: WithLatents, values: Sequence[Any], *inputs: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """Return the log density of each record, in the place of the first variable that
    reads each of its numbers; other places have a single 0.
    """
    graph = op.fgraph.unfreeze()
    given = dict(zip(graph.inputs, inputs, strict=True))
    outputs = graph_replace(list(graph.outputs), given, strict=False)
    observed = outputs[: op.n_observed]
    latents = outputs[op.n_observed :][: op.n_latent]
    numbers = {latent: latent.type(name="number") for latent in latents}
    valued = dict(zip(observed, values, strict=True))
    densities = conditional_logp(numbers | valued, warn_rvs=False)
    terms = {one: on_first_axis(densities[value]) for one, value in valued.items()}
    zeros = pt.zeros(values[0].shape[0])
    whole = dict.fromkeys(observed, pt.constant(0.0))
    for members in groups_of(observed, latents):
        read = [one for one in observed if one in members]
        own = {one: number for one, number in numbers.items() if one in members}
        density = sum(terms[one] for one in read)
        if own:
            density = density + sum(densities[number] for number in own.values())
            density = _integrated(density, read, own, zeros)
        whole[read[0]] = density
    return tuple(whole.values())


def _integrated(
    density: Any, observed: Sequence[Any], numbers: Mapping[Any, Any], zeros: Any
) -> Any:
    """Return a density of records without the numbers of each, given by their
    variables.
    """
    density = open_checks(density, lambda _: True)
    if is_normal(observed, [*numbers]):
        return log_normal_integral(density, [*numbers.values()], zeros)
    [(latent, number)] = numbers.items()
    n_levels = levels_of(latent)
    if n_levels is not None:
        return _by_levels(density, number, n_levels, zeros)
    return _by_points(density, latent, number, zeros)


def _by_levels(density: Any, number: Any, n_levels: int, zeros: Any) -> Any:
    """Return a density of records summed over the level of each."""
    of_levels = []
    for level in range(n_levels):
        of_all_records = pt.cast(zeros, number.dtype) + level
        at_level = {number: pt.cast(of_all_records, number.dtype)}
        [of_level] = graph_replace([density], at_level, strict=False)
        of_levels.append(of_level + zeros)
    return pt.logsumexp(pt.stack(of_levels), axis=0)


def groups_of(observed: Sequence[Any], latents: Sequence[Any]) -> Iterator[set[Any]]:
    """Yield sets of variables that hang together by the records' numbers that they
    read.
    """
    left = [*observed, *latents]
    own = set(latents)
    while left:
        members = {left[0]}
        while True:
            read = own.intersection(_behind(members, [*observed, *latents]))
            beside = {
                one
                for one in left
                if read.intersection(_behind([one], [*observed, *latents]))
            }
            if members >= read | beside:
                break
            members |= read | beside
        left = [one for one in left if one not in members]
        yield members


def _behind(variables: Collection[Any], blockers: Sequence[Any]) -> set[Any]:
    """Return variables and what they read, but not what is behind others that have a
    value.
    """
    behind = set[Any]()
    for variable in variables:
        others = [one for one in blockers if one is not variable]
        behind.update(ancestors([variable], blockers=others))
    return behind


def _by_points(density: Any, latent: Any, number: Any, zeros: Any) -> Any:
    """Return a density of records integrated over the number of each, on the scale
    where that may be any real number.
    """
    free = latent.type(name="free")
    transform = _default_transform(latent.owner.op, latent)
    inputs = latent.owner.inputs
    if transform is not None:
        back = transform.backward(free, *inputs)
        [density] = graph_replace([density], {number: back}, strict=False)
        density = density + transform.log_jac_det(free, *inputs)
    else:
        [density] = graph_replace([density], {number: free}, strict=False)
    ends = []
    for shift in (-0.5, 0.0, 0.5):
        end = open_checks(icdf(latent, probabilities(shift)), lambda _: True)
        if transform is not None:
            end = transform.forward(end, *inputs)
        ends.append(end + zeros)
    below, first, above = ends
    return log_integral(density, free, *first_row(first, above - below))


# What a mean may be made by of normal numbers, so that it is normal itself
LINEAR = (ps.Add, ps.Sub, ps.Neg, ps.Identity, ps.Cast, ps.Second)
PRODUCTS = (ps.Mul, ps.TrueDiv)


def is_normal(observed: Sequence[Any], latents: Sequence[Any]) -> bool:
    """Whether variables and the records' numbers that they read are normal together."""
    every = [*observed, *latents]
    for variable in every:
        node = variable.owner
        reads = set(latents).intersection(_behind([variable], every)) - {variable}
        if variable in latents:
            if not isinstance(node.op, NormalRV):
                return False
        elif not reads:
            continue
        if not isinstance(node.op, NormalRV | MvNormalRV):
            return False
        mean, spread = node.op.dist_params(node)
        if reads.intersection(ancestors([spread], blockers=latents)):
            return False
        if not _is_linear(mean, latents):
            return False
    return True


def _is_linear(graph: Any, latents: Sequence[Any]) -> bool:
    depends = set(latents)
    for node in toposort([graph], blockers=latents):
        read = [variable for variable in node.inputs if variable in depends]
        if not read:
            continue
        depends.update(node.outputs)
        if isinstance(node.op, Elemwise):
            op = node.op.scalar_op
            is_scaled = isinstance(op, PRODUCTS) and len(read) == 1
            if isinstance(op, ps.TrueDiv) and node.inputs[1] in depends:
                return False
            if not is_scaled and not isinstance(op, LINEAR):
                return False
        elif isinstance(node.op, Dot):
            if len(read) > 1:
                return False
        elif isinstance(node.op, AdvancedSubtensor):
            if read != node.inputs[:1]:
                return False
        elif not isinstance(node.op, DimShuffle | Join | SpecifyShape):
            return False
    return True
