"""Any PyMC model that is already built: with records' parts in the posterior bounded, and what these parts are."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from pymc.logprob.basic import transformed_conditional_logp
from pymc.model.fgraph import ModelFreeRV, ModelNamed, ModelObservedRV
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, explicit_graph_inputs, toposort
from pytensor.tensor.basic import Alloc

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.errors import InputError
from pdips.posterior.censoring import (
    CLIPS,
    Axis,
    Censored,
    Clip,
    Parts,
    censored_from,
    check_variables,
    natural_points,
    read_by,
    take_apart,
)
from pdips.posterior.columns import SUFFIX, Values
from pdips.posterior.record_likelihood import in_two_steps, on_first_axis, open_checks
from pdips.privacy.loss import Neighbours, choice

N_POINTS = 2  # Parameter values at which records are changed to see whose likelihood moves
FULL_SEARCH = 2**14  # Up to this many records every pair of records is looked at
TOLERANCE = 1e-8

BLOCK, CHUNK = 4096, 16  # Records and draws of a stream at once: their log-likelihoods stay in a core's cache
MOST_AT_ONCE = 1 << 20  # Log-likelihoods of a stream held at once where records can't be taken block by block

Draws = Mapping[str, Any] | xr.DataTree

NOT_EACH = (
    "the model's observed variables must have one log-likelihood for each record along their first axis, and it must "
    "be possible to work them out from these columns and draws; a log_likelihood group made elsewhere can be given to "
    "from_log_likelihood"
)


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

    Raises
    ------
    InputError
        If the model has no observed variable, an improper prior, one that reads data, a potential that is not public,
        minibatches, imputed values without ids, record-specific parameters under add-remove, or a log-likelihood that
        is no sum over records.

    Notes
    -----
    Hu et al. (2022), section 3, on centres and shapes. That no record enters the likelihood of another is only tried
    here, at some tables and parameters, because a finished model can't be built again of one record; and what was
    worked out before the model was built can't be seen. Mechanisms with a guarantee use
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
    lengths = {n, *(np.asarray(ids).size for ids in axis.ids.values())}
    data, stands = set(parts.data), set(parts.stands)

    def holds_records(variable: Any) -> bool:
        if isinstance(variable, Constant):
            return bool(lengths & set(np.shape(variable.data)))
        return variable in data or (variable in stands and bool(lengths & set(np.shape(points[0][variable.name]))))

    parts = replace(parts, terms={name: open_checks(term, holds_records) for name, term in parts.terms.items()})
    looked_at = probe(parts, n)
    check_records(looked_at, points)
    own = record_parameters(looked_at, points[0], parts, neighbours)
    return censored_from(model, parts, own, clip, n).update(
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
    inputs = {each: point[each.name] for each in parts.parameters}
    inputs |= {held: shared.get_value(borrow=True) for held, shared in parts.data.items()}
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


def probe(parts: Parts, n: int) -> Probe:
    """Compile a model's terms as a function of what holds records."""
    owners = {n: np.arange(n)} | {np.asarray(ids).size: np.asarray(ids).ravel() for ids in parts.axis.ids.values()}
    owners |= {len(ids): np.asarray(ids) for ids in parts.axis.ids.values()}
    graph = parts.total
    given = {held: shared.get_value(borrow=True) for held, shared in parts.data.items()}
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


def record_parameters(
    looked_at: Probe, point: Mapping[str, NDArray[Any]], parts: Parts, neighbours: Neighbours
) -> tuple[str, ...]:
    """Return the free variables that are there once for each record; refuse them where their number is confidential."""
    found = []
    before = looked_at.terms(point)
    for node in parts.of_kind(ModelFreeRV):
        name = node.op.name
        base = name.removesuffix("_unobserved")
        imputed = base != name and f"{base}_observed" in parts.terms
        numbered = bool(set(node.op.dims or ()) & set(parts.axis.dims))
        if not imputed and not numbered and not _each_its_own(looked_at, point, before, name):
            continue
        if neighbours == "add-remove":
            raise InputError(
                f"{name!r} has one value for each record, so their number can be read off the posterior; integrate it "
                "out, or take neighbours='replace-one'"
            )
        constants = (np.asarray(each.data) for each in read_by(node.inputs[0]) if isinstance(each, Constant))
        if any(looked_at.n in each.shape and each.dtype != bool and len(np.unique(each)) > 1 for each in constants):
            raise InputError(
                f"the prior of {name!r}, one for each record, reads records; give all of them the same prior"
            )
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


@dataclass(frozen=True, eq=False, repr=False)
class Stream:
    """The log-likelihood of every record at every draw, piece by piece."""

    columns: tuple[NDArray[Any], ...]  # what the model reads of each record, shape (records, ...)
    draws: tuple[NDArray[Any], ...]  # what it reads of each draw, shape (draws, ...)
    of_records: Any  # compiled: what can be worked out from records alone
    joint: Any  # compiled: the log-likelihoods, shape (draws, records), from that and draws
    block: int  # how many records are taken at once
    chunk: int  # and how many draws

    def __repr__(self) -> str:
        return "Stream()"

    @property
    def n_records(self) -> int:
        return len(self.columns[0])

    @property
    def n_draws(self) -> int:
        return len(self.draws[0])

    def pieces(self) -> Iterator[tuple[slice, slice, FloatArray]]:
        """Yield records, draws and their log-likelihoods, shape (draws, records); all draws of a block in a row."""
        for records in slices(self.n_records, self.block):
            known = _quietly(self.of_records, [each[records] for each in self.columns])
            for draws in slices(self.n_draws, self.chunk):
                found = _quietly(self.joint, [*(each[draws] for each in self.draws), *known])
                if np.shape(found) != (draws.stop - draws.start, records.stop - records.start):
                    raise InputError(NOT_EACH)
                yield records, draws, np.require(found, np.float64, ["C", "W"])


def _quietly(function: Any, arguments: list[Any]) -> Any:
    """Call a compiled function: its records may have density 0, and what it says of failures shows lengths."""
    try:
        with np.errstate(all="ignore"):
            return function(*arguments)
    except Exception:  # noqa: BLE001 - whatever a model's graph raises
        raise InputError(NOT_EACH) from None


def slices(n: int, size: int) -> Iterator[slice]:
    """Yield slices of so many, one after the other, of n in all."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def stream(
    model: pm.Model,
    values: Values | None,
    draws: Draws,
    *,
    block: int = BLOCK,
    chunk: int = CHUNK,
    mode: str | None = None,
) -> Stream:
    """Compile any model's log-likelihoods, of columns (or what the model holds) and draws, to be worked out in pieces.

    Records come block by block if that gives the same numbers as all at once, tried at one draw.
    """
    parameters = draws_by_name(draws)
    graph, symbols = _likelihood(model, parameters)
    columns = _columns_of(model, graph, values)
    for arrays, what in ((columns, "columns"), (parameters, "draws")):
        if len({len(array) for array in arrays.values()}) != 1:
            raise InputError(f"all {what} must have the same length; columns left out are taken from the model")
    by_draw, shapes = {}, model.eval_rv_shapes()
    for name, variable in symbols.items():
        if parameters[name].shape[1:] != (shape := tuple(map(int, shapes[name]))):
            raise InputError(f"draws of {name!r} must have the shape {shape} besides the axes of chains and draws")
        by_draw[variable] = np.ascontiguousarray(parameters[name], variable.type.dtype)
    records = {v: v.type.clone(shape=(None, *v.type.shape[1:]))() for v in columns}
    batched = {v: v.type.clone(shape=(None, *v.type.shape), dtype=v.dtype)() for v in by_draw}
    known = dict(records)  # PyTensor's own ways to replace these would hold on to the length of a constant
    for node in toposort([graph]):
        if any(v in known for v in node.inputs):
            again = node.clone_with_new_inputs([known.get(v, v) for v in node.inputs], strict=False)
            known |= dict(zip(node.outputs, again.outputs, strict=True))
    both = vectorize_graph(known[graph], batched)
    functions = in_two_steps(both, list(records.values()), list(batched.values()), mode, mode)
    n_records = len(next(iter(columns.values())))
    at_once = max(1, min(chunk, MOST_AT_ONCE // n_records))
    whole = Stream(tuple(columns.values()), tuple(by_draw.values()), *functions, n_records, at_once)
    blocked = replace(whole, block=block, chunk=chunk)
    return blocked if n_records <= block or _same_at_one_draw(blocked, whole) else whole


def draws_by_name(draws: Draws) -> dict[str, NDArray[Any]]:
    """Return draws by name, shape (draws, ...), the chains of a tree one after the other."""
    if not isinstance(draws, xr.DataTree):
        found = {name: np.asarray(value) for name, value in draws.items()}
    elif "posterior" not in draws.children:
        raise InputError("the tree of draws has no posterior group")
    elif not {"chain", "draw"} <= set(draws["posterior"].sizes):
        raise InputError("the group posterior must have the dims chain and draw")
    else:
        posterior = {str(name): array.transpose("chain", "draw", ...) for name, array in draws["posterior"].items()}
        found = {name: array.to_numpy() for name, array in posterior.items()}
        found = {name: array.reshape(-1, *array.shape[2:]) for name, array in found.items()}
    if not found or any(array.ndim == 0 or len(array) == 0 for array in found.values()):
        raise InputError("draws must be arrays with one entry a draw along their first axis, and at least one draw")
    return found


def _likelihood(model: pm.Model, parameters: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the log-likelihood of each record, and the variables it needs by the name of their draws."""
    if not model.observed_RVs:
        raise InputError("the model has no observed variable")
    given, transforms, symbols = dict(model.rvs_to_values), dict(model.rvs_to_transforms), {}
    for rv in model.free_RVs:
        if rv.name in parameters:
            given[rv], transforms[rv] = rv.type(name=rv.name), None
        symbols[rv.name if rv.name in parameters else given[rv].name] = given[rv]
    terms = transformed_conditional_logp(model.observed_RVs, rvs_to_values=given, rvs_to_transforms=transforms)
    for place, term in enumerate(terms):  # what spreads it over the size that its variable had when it was built
        while term.owner is not None and isinstance(term.owner.op, Alloc) and term.owner.inputs[0].ndim == term.ndim:
            term = term.owner.inputs[0]
        terms[place] = on_first_axis(term)
    if any(term.ndim == 0 for term in terms):
        raise InputError(NOT_EACH)
    try:
        graph = pt.add(*terms) if len(terms) > 1 else terms[0]
    except ValueError:
        raise InputError(NOT_EACH) from None
    needed = set(explicit_graph_inputs([graph]))
    symbols = {name: variable for name, variable in symbols.items() if variable in needed}
    for name in symbols:
        if name not in parameters:
            raise InputError(f"there are no draws of {name!r}, which the log-likelihood depends on")
    if not symbols:
        raise InputError("the model's log-likelihood depends on no free variable, so there is nothing to bound")
    return graph, symbols


def _columns_of(model: pm.Model, graph: Any, values: Values | None) -> dict[Any, NDArray[Any]]:
    """Return the leaves of a graph that have one entry a record, each with its values."""
    given = dict(values or {})
    used = [v for v in ancestors([graph]) if v.owner is None and isinstance(v, (SharedVariable, Constant))]
    observed = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    n_built = max(int(value.shape[0].eval()) if value.ndim else 0 for value in observed)
    found: dict[Any, NDArray[Any]] = {}
    for variable in used:
        name = variable.name or ""
        inside = variable.get_value(borrow=True) if isinstance(variable, SharedVariable) else variable.data
        own = given.get(name, given.get(name.removesuffix(SUFFIX)))
        if isinstance(variable, SharedVariable) and own is not None:
            found[variable] = np.ascontiguousarray(own, variable.type.dtype)
        elif np.ndim(inside) and len(inside) == n_built and n_built > 1:
            found[variable] = inside
    if not found:
        raise InputError("the model's likelihood reads nothing that has one entry a record")
    return found


def _same_at_one_draw(blocked: Stream, whole: Stream) -> bool:
    """Tell whether blocks of records give what all records at once give, at the first draw."""
    one, other = (replace(each, draws=tuple(values[:1] for values in each.draws)) for each in (blocked, whole))
    [(_, _, together)] = other.pieces()
    try:
        pieces = [(found, together[:, records]) for records, _, found in one.pieces()]
    except InputError:
        return False
    return all(np.allclose(*each, rtol=1e-9, atol=1e-12, equal_nan=True) for each in pieces)
