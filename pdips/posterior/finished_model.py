"""A PyMC model that is already built, with records' parts in the posterior bounded."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import ArrayLike, NDArray
from pymc.model.fgraph import ModelFreeRV, ModelNamed, ModelObservedRV
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.errors import InputError
from pdips.posterior.censoring import CLIPS, Censored, Clip, censored_from
from pdips.posterior.parts import (
    Axis,
    Parts,
    check_variables,
    natural_points,
    read_by,
    take_apart,
)
from pdips.posterior.record_likelihood import open_checks
from pdips.privacy.loss import Neighbours, choice

# Parameter values at which records are changed to see whose likelihood moves
N_POINTS = 2
FULL_SEARCH = 2**14  # Up to this many records every pair of records is looked at
TOLERANCE = 1e-8


def censor(
    model: pm.Model,
    *,
    window: float,
    weights: ArrayLike | None = None,
    centre: ArrayLike | None = None,
    clip: Clip = "hard",
    axis: Axis | None = None,
    public_potentials: Collection[str] = (),
    neighbours: Neighbours = "replace-one",
) -> Censored:
    """Return a model like the given one in which no record's part of the log density
    leaves a window.

    Parameters
    ----------
    model : pymc.Model
        An ordinary model, which stays as it is. Its observed variables have one value a
        record along one axis.
    window : float
        Half width w of the window, in nats; ``math.inf`` for none.
    weights : array_like, shape (records,), optional
        Between 0 and 1; 1 where not given.
    centre : array_like, shape (records,), optional
        What is taken off the log-likelihoods, in nats; 0 where not given. A record
        whose centre is not finite is left out.
    clip : {"hard", "tanh", "algebraic"}
        See :func:`pdips.posterior.censoring.clip_graph`.
    axis : Axis, optional
        Where the records are: ``record_dim``, the dimension that numbers them, where it
        isn't ``"record"``; ``record_axis`` of observed variables without dims, where it
        isn't the first; ``record_ids``, which record (0 to ``n_records`` - 1) each
        value of an observed variable belongs to, where there is not one each, with
        ``n_records``, which is checked against the model's data.
    public_potentials : collection of str
        Potentials of the model that read no record.
    neighbours : {"replace-one", "add-remove"}
        Which tables are to look alike.

    Raises
    ------
    InputError
        If the model has no observed variable, an improper prior, one that reads data, a
        potential that is not public, minibatches, imputed values without ids,
        record-specific parameters under add-remove, or a log-likelihood that is no sum
        over records.

    Notes
    -----
    Hu et al. (2022), section 3, on centres and shapes. That no record enters the
    likelihood of another is only tried here, at some tables and parameters, because a
    finished model can't be built again of one record; and what was worked out before
    the model was built can't be seen. Mechanisms with a guarantee use
    :func:`pdips.posterior.censoring.censor_records`, where it can't happen.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:
    ...     level = pm.Normal("level", 0, 1)
    ...     height = pm.Normal("height", level, 1, observed=np.array([-1.0, 0.0, 2.0]))
    >>> censored = censor(model, window=0.5)
    >>> [potential.name for potential in censored.model.potentials] != []
    True
    """
    choice(clip, CLIPS, "clip")
    choice(neighbours, ("replace-one", "add-remove"), "neighbours")
    axis = axis or Axis()
    if axis.record_ids and axis.n_records is None:
        raise InputError("record_ids asks for n_records")
    parts = take_apart(model, axis)
    check_variables(parts, public_potentials)
    points = natural_points(model, N_POINTS)
    n = count_records(parts, points[0])
    parts = replace(parts, terms=_without_checks(parts, n, points[0]))
    looked_at = probe(parts, n)
    check_records(looked_at, points)
    own = record_parameters(looked_at, points[0], parts, neighbours)
    return censored_from(model, parts, own, clip, n).update(
        weights=1.0 if weights is None else weights,
        centre=0.0 if centre is None else centre,
        window=window,
    )


def _without_checks(
    parts: Parts, n: int, point: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """Return the terms without PyMC's checks of what holds records, which look at all
    of them at once.
    """
    ids = parts.axis.record_ids.values()
    lengths = {n, *(np.asarray(of_values).size for of_values in ids)}
    data = set(parts.data)
    stands = set(parts.stands)

    def holds_records(variable: Any) -> bool:
        if variable in data:
            return True
        if isinstance(variable, Constant):
            return bool(lengths & set(np.shape(variable.data)))
        if variable in stands:
            return bool(lengths & set(np.shape(point[variable.name])))
        return False

    return {
        name: open_checks(term, holds_records) for name, term in parts.terms.items()
    }


@dataclass(frozen=True, eq=False)
class Probe:
    """The terms of a model as a function of its parameters and of all arrays that hold
    one value a record.
    """

    names: list[str]  # free variables
    values: list[NDArray[Any]]  # the arrays
    rows: list[IntArray]  # for each row of an array the record it belongs to
    axes: list[int]  # where the rows of an array are
    n: int  # number of records
    function: Any  # of the free variables and the arrays
    # which arrays surely hold records: beside data, constants may be public tables of
    # as many rows
    sure: list[bool]

    def terms(
        self, point: Mapping[str, Any], values: list[NDArray[Any]] | None = None
    ) -> FloatArray:
        """Return the log-likelihood of each record, shape (records,)."""
        with np.errstate(all="ignore"):
            terms = self.function(
                *(point[name] for name in self.names),
                *(self.values if values is None else values),
            )
        return np.asarray(terms, dtype=np.float64)

    def replaced(
        self, which: BoolArray, rng: np.random.Generator, start: list[NDArray[Any]]
    ) -> list[NDArray[Any]]:
        """Return the arrays ``start`` with some records replaced by others of the
        table.
        """
        replaced = []
        for value, given, rows, axis, sure in zip(
            self.values, start, self.rows, self.axes, self.sure, strict=True
        ):
            hit = which[rows] & (sure or start is self.values)
            source = rng.integers(len(rows), size=int(hit.sum()))
            changed = given.copy()
            np.moveaxis(changed, axis, 0)[hit] = np.moveaxis(value, axis, 0)[source]
            replaced.append(changed)
        return replaced

    def extremes(self) -> Iterator[list[NDArray[Any]]]:
        """Yield arrays in which all records are equal: to the smallest values, and to
        the largest.
        """
        arrays = list(zip(self.values, self.axes, self.sure, strict=True))
        for end in (np.min, np.max):
            extreme = []
            for value, axis, sure in arrays:
                equal = np.broadcast_to(
                    end(value, axis=axis, keepdims=True), value.shape
                )
                extreme.append(equal.copy() if sure else value)
            yield extreme


def count_records(parts: Parts, point: Mapping[str, NDArray[Any]]) -> int:
    """Return the number of records of a model's data."""
    inputs = {held: point[held.name] for held in parts.parameters}
    for held, shared in parts.data.items():
        inputs[held] = shared.get_value(borrow=True)
    unchecked = ("local_remove_check_parameter",)
    graphs = [rewrite_graph(term, include=unchecked) for term in parts.terms.values()]
    function = pytensor.function(
        list(inputs),
        [graph.shape[0] for graph in graphs],
        mode="FAST_COMPILE",
        on_unused_input="ignore",
    )
    lengths = function(*inputs.values())
    by_name = dict(zip(parts.terms, map(int, lengths), strict=True))
    if len(set(by_name.values())) > 1:
        raise InputError(
            f"observed variables {', '.join(map(repr, by_name))} differ in length; "
            f"say in record_ids which record each "
            "of their values belongs to, or in record_axis which axis numbers records"
        )
    n = next(iter(by_name.values()))
    wanted = parts.axis.n_records
    if wanted is not None and n != wanted:
        raise InputError(
            f"{', '.join(map(repr, by_name))} should have n_records = {wanted} "
            f"values along the record axis and "
            "doesn't; name the axis by dims (record_dim) or in record_axis"
        )
    return n


def probe(parts: Parts, n: int) -> Probe:
    """Compile a model's terms as a function of what holds records."""
    owners = _owners(parts, n)
    arrays = _arrays_of_records(parts, owners)
    stands = {}
    for held in arrays:
        shape = tuple(1 if size == 1 else None for size in held.type.shape)
        stands[held] = held.type.clone(shape=shape)()
    fixed = {held: shared for held, shared in parts.data.items() if held not in arrays}
    given = {**stands, **fixed}
    [replaced] = clone_replace([parts.total], given, rebuild_strict=False)
    axes = [_record_axis(value, owners) or 0 for value in arrays.values()]
    rows = [
        owners[value.shape[axis]]
        for value, axis in zip(arrays.values(), axes, strict=True)
    ]
    has_data = any(held in parts.data for held in arrays)
    function = pytensor.function(
        [*parts.parameters, *stands.values()],
        replaced,
        mode="FAST_COMPILE",
        on_unused_input="ignore",
    )
    return Probe(
        names=[held.name for held in parts.parameters],
        values=list(arrays.values()),
        rows=rows,
        axes=axes,
        n=n,
        function=function,
        sure=[held in parts.data or not has_data for held in arrays],
    )


def _owners(parts: Parts, n: int) -> dict[int, IntArray]:
    """Return whose the values of an array are, by its length."""
    owners = {n: np.arange(n)}
    for ids in map(np.asarray, parts.axis.record_ids.values()):
        owners[ids.size] = ids.ravel()
    for ids in map(np.asarray, parts.axis.record_ids.values()):
        owners[len(ids)] = ids
    return owners


def _arrays_of_records(
    parts: Parts, owners: Mapping[int, IntArray]
) -> dict[Any, NDArray[Any]]:
    """Return the data that hold records, with their values; and constants that may,
    where a variable observes such.
    """
    arrays = {}
    for held, shared in parts.data.items():
        value = shared.get_value(borrow=True)
        if _record_axis(value, owners) is not None:
            arrays[held] = value
    if all(map(_observes_data, parts.of_kind(ModelObservedRV))):
        return arrays
    constants = [
        behind
        for behind in dict.fromkeys(ancestors([parts.total]))
        if isinstance(behind, Constant) and np.ndim(behind.data)
    ]
    for constant in constants:
        if _is_column(constant.data, parts, owners):
            arrays[constant] = constant.data
    return arrays


def _observes_data(node: Any) -> bool:
    observed = node.inputs[1]
    return observed.owner is not None and isinstance(observed.owner.op, ModelNamed)


def _is_column(value: NDArray[Any], parts: Parts, owners: Mapping[int, Any]) -> bool:
    """Whether a constant may hold values of records, rather than say whose they are."""
    ids = any(np.array_equal(value, each) for each in parts.axis.record_ids.values())
    return value.dtype != bool and not ids and _record_axis(value, owners) is not None


def _record_axis(value: Any, owners: Mapping[int, Any]) -> int | None:
    return next(
        (axis for axis, size in enumerate(np.shape(value)) if size in owners), None
    )


def check_records(
    looked_at: Probe, points: Sequence[Mapping[str, NDArray[Any]]], seed: int = 0
) -> None:
    """Refuse a model in which changing one record moves the term of another.

    Records are replaced by others in sets such that of any two of them one is replaced
    and the other is not; the same from tables in which all records are equal. What
    shows at other tables only isn't seen: this is a trial.
    """
    rng = np.random.default_rng(seed)
    for point in points:
        for start in (looked_at.values, *looked_at.extremes()):
            before = looked_at.terms(point, start)
            for which in _halves(looked_at.n, rng):
                replaced = looked_at.replaced(which, rng, start)
                after = looked_at.terms(point, replaced)
                if not _are_equal(before[~which], after[~which]):
                    raise InputError(
                        "the log-likelihood of a record depends on other records "
                        "(standardising, lags, ranks, or means "
                        "over the data); work such numbers out from public knowledge "
                        "and make them constants"
                    )


def _are_equal(before: FloatArray, after: FloatArray) -> bool:
    return np.allclose(before, after, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


def _halves(n: int, rng: np.random.Generator) -> Iterator[BoolArray]:
    """Yield sets of records; up to ``FULL_SEARCH`` records, any two are told apart by
    one of them, both ways.
    """
    places = np.arange(n)
    if n > FULL_SEARCH:
        places = rng.integers(2**3, size=n)
    for bit in range(int(places.max(initial=0)).bit_length()):
        half = (places >> bit & 1).astype(bool)
        yield half
        yield ~half


def record_parameters(
    looked_at: Probe,
    point: Mapping[str, NDArray[Any]],
    parts: Parts,
    neighbours: Neighbours,
) -> tuple[str, ...]:
    """Return the free variables that are there once for each record; refuse them where
    their number is confidential.
    """
    found = []
    before = looked_at.terms(point)
    for node in parts.of_kind(ModelFreeRV):
        name = node.op.name
        base = name.removesuffix("_unobserved")
        is_imputed = base != name and f"{base}_observed" in parts.terms
        is_numbered = bool(set(node.op.dims or ()) & set(parts.axis.dims))
        if not (
            is_imputed or is_numbered or _each_its_own(looked_at, point, before, name)
        ):
            continue
        if neighbours == "add-remove":
            raise InputError(
                f"{name!r} has one value for each record, so their number can be "
                f"read off the posterior; integrate it "
                "out, or take neighbours='replace-one'"
            )
        if _reads_many(node.inputs[0], looked_at.n):
            raise InputError(
                f"the prior of {name!r}, one for each record, reads records; give "
                f"all of them the same prior"
            )
        found.append(name)
    return tuple(found)


def _reads_many(prior: Any, n: int) -> bool:
    """Whether a prior reads a constant of as many values, not all equal."""
    for read in read_by(prior):
        if not isinstance(read, Constant):
            continue
        values = np.asarray(read.data)
        if n in values.shape and values.dtype != bool and len(np.unique(values)) > 1:
            return True
    return False


def _each_its_own(
    looked_at: Probe, point: Mapping[str, NDArray[Any]], before: FloatArray, name: str
) -> bool:
    """Whether element i of a variable, out of as many as there are records, moves the
    term of record i alone.
    """
    value = np.asarray(point[name])
    n = looked_at.n
    if n < 2 or n not in value.shape:
        return False
    axis = value.shape.index(n)
    others = np.roll(value, 1, axis)
    for which in _halves(n, np.random.default_rng(0)):
        shape = np.ones(value.ndim, dtype=int)
        shape[axis] = n
        changed = np.where(which.reshape(shape), others, value)
        moved = looked_at.terms({**point, name: changed})
        if not _are_equal(before[~which], moved[~which]):
            return False
    return True
