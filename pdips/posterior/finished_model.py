"""Any PyMC model that is already built, with each record's part in the posterior bounded; what can be, is tried."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from pdips.posterior.model_parts import Axis, Parts, check_variables, natural_points, read_by, take_apart, total
from pdips.posterior.weights import check_vector
from pdips.privacy.loss import Neighbours, choice

N_POINTS = 2
"""Parameter values at which records are changed to see whose likelihood moves."""

FULL_SEARCH = 2**14
"""Up to this many records every pair of records is looked at."""

TOLERANCE = 1e-8


def censor(
    model: pm.Model,
    *,
    window: float,
    weights: ArrayLike | None = None,
    centre: ArrayLike | None = None,
    clip: Clip = "hard",
    record_dim: str | None = None,
    record_axis: Mapping[str, int] | None = None,
    record_ids: Mapping[str, NDArray[np.int64]] | None = None,
    n_records: int | None = None,
    public_potentials: Collection[str] = (),
    neighbours: Neighbours = "replace-one",
    correction: ArrayLike | None = None,
) -> Censored:
    """Return a model like the given one in which no record's part of the log density leaves a window.

    Parameters
    ----------
    model : pymc.Model
        An ordinary model, which stays as it is. Its observed variables have one value a record along one axis.
    window : float
        Half width w of the window, in nats; ``math.inf`` for none.
    weights : array_like, shape (records,), optional
        Between 0 and 1; 1 where not given.
    centre : array_like, shape (records,), optional
        What is taken off the log-likelihoods, in nats; 0 where not given. A record whose centre is not finite is left
        out.
    clip : {"hard", "tanh", "algebraic"}
        See :func:`pdips.posterior.censoring.clip_graph`.
    record_dim : str, optional
        The dimension that numbers records; ``"record"`` is known by itself.
    record_axis : mapping of str to int, optional
        The record axis of observed variables without dims; the first one where nothing is said.
    record_ids : mapping of str to ndarray of int, optional
        Which record (0 to ``n_records`` - 1) each value of an observed variable belongs to, if there is not one each.
    n_records : int, optional
        Number of records, checked against the model's data; asked for with ``record_ids``.
    public_potentials : collection of str
        Potentials of the model that read no record.
    neighbours : {"replace-one", "add-remove"}
        Which tables are to look alike.
    correction : array_like, shape (records,), optional
        Where not 0, the row is a public record, and what counts is how much censoring takes from it, times this number
        (:func:`pdips.posterior.censoring.corrected`).

    Raises
    ------
    InputError
        If the model has no observed variable, an improper prior, one that reads data, a potential that is not public,
        minibatches, imputed values without ids, record-specific parameters under add-remove, or a log-likelihood that
        is no sum over records.

    Notes
    -----
    Paper 004, section 3, on centres and shapes. That no record enters the likelihood of another is only tried here, at
    some tables and parameters, because a finished model can't be built again of one record; and what was worked out
    before the model was built can't be seen. Mechanisms with a guarantee use
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
    if record_ids and n_records is None:
        raise InputError("record_ids asks for n_records")
    axis = Axis(dim=record_dim, axes=record_axis or {}, ids=record_ids or {}, n=n_records)
    parts = take_apart(model, axis)
    check_variables(parts, public_potentials)
    points = natural_points(model, N_POINTS)
    n = count_records(parts, points[0])
    parts = parts.opened({name: np.shape(value) for name, value in points[0].items()}, n)
    looked_at = probe(parts, n)
    check_records(looked_at, points)
    own = record_parameters(looked_at, points[0], parts)
    check_record_parameters(own, parts, n, neighbours)
    public = None if correction is None else check_vector(correction, n, "correction")
    return censored_from(model, parts, own, clip, n, public).update(
        weights=1.0 if weights is None else weights, centre=0.0 if centre is None else centre, window=window
    )


@dataclass(frozen=True, eq=False)
class Probe:
    """The terms of a model as a function of its parameters and of all arrays that hold one value a record."""

    names: list[str]  # free variables
    values: list[NDArray[Any]]  # the arrays
    rows: list[IntArray]  # for each row of an array the record it belongs to
    axes: list[int]  # where the rows of an array are
    n: int  # number of records
    function: Any  # of the free variables and the arrays
    sure: list[bool]  # which arrays surely hold records: beside data, constants may be public tables of as many rows

    def terms(self, point: Mapping[str, Any], values: list[NDArray[Any]] | None = None) -> FloatArray:
        """Return the log-likelihood of each record, shape (records,)."""
        with np.errstate(all="ignore"):
            found = self.function(*(point[name] for name in self.names), *(self.values if values is None else values))
        return np.asarray(found, dtype=np.float64)

    def replaced(self, which: BoolArray, rng: np.random.Generator, start: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the arrays ``start`` with some records replaced by others of the table."""
        made = []
        for value, given, rows, axis, sure in zip(self.values, start, self.rows, self.axes, self.sure, strict=True):
            hit = which[rows] & (sure or start is self.values)
            source = rng.integers(len(rows), size=int(hit.sum()))
            changed = given.copy()
            np.moveaxis(changed, axis, 0)[hit] = np.moveaxis(value, axis, 0)[source]
            made.append(changed)
        return made

    def extremes(self) -> Iterator[list[NDArray[Any]]]:
        """Yield arrays in which all records are equal: to the smallest values, and to the largest."""
        for end in (np.min, np.max):
            yield [
                np.broadcast_to(end(value, axis=axis, keepdims=True), value.shape).copy() if sure else value
                for value, axis, sure in zip(self.values, self.axes, self.sure, strict=True)
            ]


def count_records(parts: Parts, point: Mapping[str, NDArray[Any]]) -> int:
    """Return the number of records of a model's data."""
    inputs = {**{each: point[each.name] for each in parts.parameters}, **_values(parts)}
    graphs = [rewrite_graph(term, include=("local_remove_check_parameter",)) for term in parts.terms.values()]
    lengths = [graph.shape[0] for graph in graphs]
    found = pytensor.function(list(inputs), lengths, mode="FAST_COMPILE", on_unused_input="ignore")(*inputs.values())
    by_name = dict(zip(parts.terms, map(int, found), strict=True))
    if len(set(by_name.values())) > 1:
        raise InputError(
            f"observed variables {', '.join(map(repr, by_name))} differ in length; say in record_ids which record each "
            "of their values belongs to, or in record_axis which axis numbers records"
        )
    n = next(iter(by_name.values()))
    if parts.axis.n is not None and n != parts.axis.n:
        raise InputError(
            f"{', '.join(map(repr, by_name))} should have n_records = {parts.axis.n} values along the record axis and "
            "doesn't; name the axis by dims (record_dim) or in record_axis"
        )
    return n


def _values(parts: Parts) -> dict[Any, Any]:
    return {held: shared.get_value(borrow=True) for held, shared in parts.data.items()}


def probe(parts: Parts, n: int) -> Probe:
    """Compile a model's terms as a function of what holds records."""
    owners = {n: np.arange(n)} | {np.asarray(ids).size: np.asarray(ids).ravel() for ids in parts.axis.ids.values()}
    owners |= {len(ids): np.asarray(ids) for ids in parts.axis.ids.values()}
    graph = total(list(parts.terms.values()))
    given = _values(parts)
    found = {held: value for held, value in given.items() if _record_axis(value, owners) is not None}
    columns = parts.of_kind(ModelObservedRV)
    if not all(isinstance(node.inputs[1].owner and node.inputs[1].owner.op, ModelNamed) for node in columns):
        arrays = {each for each in ancestors([graph]) if isinstance(each, Constant) and np.ndim(each.data)}
        found |= {each: each.data for each in arrays if _is_column(each.data, parts, owners)}
    stands = {
        each: each.type.clone(shape=tuple(1 if size == 1 else None for size in each.type.shape))() for each in found
    }
    fixed = {held: shared for held, shared in parts.data.items() if held not in found}
    [replaced] = clone_replace([graph], {**stands, **fixed}, rebuild_strict=False)
    inputs = [*parts.parameters, *stands.values()]
    axes = [_record_axis(value, owners) or 0 for value in found.values()]
    return Probe(
        names=[each.name for each in parts.parameters],
        values=list(found.values()),
        rows=[owners[value.shape[axis]] for value, axis in zip(found.values(), axes, strict=True)],
        axes=axes,
        n=n,
        function=pytensor.function(inputs, replaced, mode="FAST_COMPILE", on_unused_input="ignore"),
        sure=[each in given or not given.keys() & found.keys() for each in found],
    )


def _is_column(value: NDArray[Any], parts: Parts, owners: Mapping[int, Any]) -> bool:
    """Whether a constant may hold values of records, rather than say whose they are."""
    ids = any(np.array_equal(value, each) for each in parts.axis.ids.values())
    return value.dtype != bool and not ids and _record_axis(value, owners) is not None


def _record_axis(value: Any, owners: Mapping[int, Any]) -> int | None:
    return next((axis for axis, size in enumerate(np.shape(value)) if size in owners), None)


def check_records(looked_at: Probe, points: Sequence[Mapping[str, NDArray[Any]]], seed: int = 0) -> None:
    """Refuse a model in which changing one record moves the term of another.

    Records are replaced by others in sets such that of any two of them one is replaced and the other is not; the same
    from tables in which all records are equal. What shows at other tables only isn't seen: this is a trial.
    """
    rng = np.random.default_rng(seed)
    for point in points:
        for start in (looked_at.values, *looked_at.extremes()):
            before = looked_at.terms(point, start)
            for which in _halves(looked_at.n, rng):
                after = looked_at.terms(point, looked_at.replaced(which, rng, start))
                if not np.allclose(before[~which], after[~which], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
                    raise InputError(
                        "the log-likelihood of a record depends on other records (standardising, lags, ranks, or means "
                        "over the data); work such numbers out from public knowledge and make them constants"
                    )


def _halves(n: int, rng: np.random.Generator) -> Iterator[BoolArray]:
    """Yield sets of records; up to ``FULL_SEARCH`` records, any two are told apart by one of them, both ways."""
    places = np.arange(n)
    if n > FULL_SEARCH:
        places = rng.integers(2**3, size=n)
    for bit in range(int(places.max(initial=0)).bit_length()):
        half = (places >> bit & 1).astype(bool)
        yield half
        yield ~half


def record_parameters(looked_at: Probe, point: Mapping[str, NDArray[Any]], parts: Parts) -> tuple[str, ...]:
    """Return the free variables that are there once for each record."""
    found = []
    before = looked_at.terms(point)
    for node in parts.of_kind(ModelFreeRV):
        name = node.op.name
        base = name.removesuffix("_unobserved")
        imputed = base != name and f"{base}_observed" in parts.terms
        numbered = bool(set(node.op.dims or ()) & set(parts.axis.dims))
        if imputed or numbered or _each_its_own(looked_at, point, before, name):
            found.append(name)
    return tuple(found)


def _each_its_own(looked_at: Probe, point: Mapping[str, NDArray[Any]], before: FloatArray, name: str) -> bool:
    """Whether element i of a variable, out of as many as there are records, moves the term of record i alone."""
    value, n = np.asarray(point[name]), looked_at.n
    if n < 2 or n not in value.shape:
        return False
    axis = value.shape.index(n)
    others = np.roll(value, 1, axis)
    for which in _halves(n, np.random.default_rng(0)):
        along = which.reshape([-1 if each == axis else 1 for each in range(value.ndim)])
        moved = looked_at.terms({**point, name: np.where(along, others, value)})
        if not np.allclose(before[~which], moved[~which], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            return False
    return True


def check_record_parameters(names: Collection[str], parts: Parts, n: int, neighbours: Neighbours) -> None:
    """Refuse record-specific parameters where the number of records is confidential, or whose prior reads records."""
    for node in parts.of_kind(ModelFreeRV):
        name = node.op.name
        if name not in names:
            continue
        if neighbours == "add-remove":
            raise InputError(
                f"{name!r} has one value for each record, so their number can be read off the posterior; integrate it "
                "out, or take neighbours='replace-one'"
            )
        constants = (np.asarray(each.data) for each in read_by(node.inputs[0]) if isinstance(each, Constant))
        if any(n in value.shape and value.dtype != bool and len(np.unique(value)) > 1 for value in constants):
            raise InputError(
                f"the prior of {name!r}, one for each record, reads records; give all of them the same prior"
            )
