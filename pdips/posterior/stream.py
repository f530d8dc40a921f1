"""Any model's log-likelihoods, record by record, piece by piece: never all records at all draws."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from numpy.typing import NDArray
from pymc.logprob.basic import transformed_conditional_logp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.traversal import ancestors, explicit_graph_inputs, toposort
from pytensor.tensor.basic import Alloc

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.posterior.columns import SUFFIX, Values
from pdips.posterior.record_likelihood import constant_parts, on_first_axis

Draws = Mapping[str, Any] | xr.DataTree

BLOCK, CHUNK = 4096, 16
"""Records and draws at once: their log-likelihoods stay in a core's cache."""

MOST_AT_ONCE = 1 << 20
"""Log-likelihoods held at once where records can't be taken block by block."""

TILE = 512
"""Records whose running extremes stay in a core's innermost cache while the draws of a piece pass over them."""

SMALL = 20_000_000
"""Log-likelihoods in all, up to which it takes longer to compile what is below than to do without."""

CENTRES = "centre must be one finite number a record: a reference must not give a record density 0"


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
        """Number of records."""
        return len(self.columns[0])

    @property
    def n_draws(self) -> int:
        """Number of draws."""
        return len(self.draws[0])

    def pieces(self) -> Iterator[tuple[slice, slice, FloatArray]]:
        """Yield records, draws and their log-likelihoods, shape (draws, records); all draws of a block in a row."""
        for records in _slices(self.n_records, self.block):
            known = self.known(records)
            for draws in _slices(self.n_draws, self.chunk):
                yield records, draws, self.piece(known, records, draws)

    def known(self, records: slice) -> list[Any]:
        """Return what can be worked out from some records alone."""
        return list(_quietly(self.of_records, [each[records] for each in self.columns]))

    def piece(self, known: list[Any], records: slice, draws: slice) -> FloatArray:
        """Return the log-likelihoods of some records, given what is known of them, at some draws."""
        found = _quietly(self.joint, [*known, *(each[draws] for each in self.draws)])
        found = np.require(found, np.float64, ["C", "W"])
        if found.shape != (len(self.draws[0][draws]), len(self.columns[0][records])):
            raise InputError(ONE_EACH)
        return found


def _quietly(function: Any, arguments: list[Any]) -> Any:
    """Call a compiled function: its records may have density 0, and what it says of failures shows lengths."""
    try:
        with np.errstate(all="ignore"):
            return function(*arguments)
    except Exception:  # noqa: BLE001 - whatever a model's graph raises
        raise InputError(ONE_EACH) from None


def _slices(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


ONE_EACH = (
    "the model's observed variables must have one log-likelihood for each record along their first axis, and it must "
    "be possible to work them out from these columns and draws; a log_likelihood group made elsewhere can be given to "
    "from_log_likelihood"
)


def stream(
    model: pm.Model,
    values: Values | None,
    draws: Draws,
    *,
    block: int = BLOCK,
    chunk: int = CHUNK,
    mode: str | None = None,
) -> Stream:
    """Compile a model's log-likelihoods to be worked out piece by piece."""
    parameters = draws_by_name(draws)
    graph, symbols = _likelihood(model, parameters)
    columns = _columns_of(model, graph, values)
    n_records = _common_length(columns.values(), "columns")
    known = [_drawn(variable, parameters[name]) for name, variable in symbols.items()]
    _common_length(parameters.values(), "draws")
    by_draw = dict(zip(symbols.values(), known, strict=True))
    functions = _compile(graph, list(columns), list(by_draw), mode)
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
    terms = [on_first_axis(_without_size(term)) for term in terms]
    if any(term.ndim == 0 for term in terms):
        raise InputError(ONE_EACH)
    try:
        graph = pt.add(*terms) if len(terms) > 1 else terms[0]
    except ValueError:
        raise InputError(ONE_EACH) from None
    needed = set(explicit_graph_inputs([graph]))
    symbols = {name: variable for name, variable in symbols.items() if variable in needed}
    for name in symbols:
        if name not in parameters:
            raise InputError(f"there are no draws of {name!r}, which the log-likelihood depends on")
    if not symbols:
        raise InputError("the model's log-likelihood depends on no free variable, so there is nothing to bound")
    return graph, symbols


def _without_size(term: Any) -> Any:
    """Take off what spreads a log-likelihood over the size that its variable had when the model was built."""
    while term.owner is not None and isinstance(term.owner.op, Alloc) and term.owner.inputs[0].ndim == term.ndim:
        term = term.owner.inputs[0]
    return term


def _columns_of(model: pm.Model, graph: Any, values: Values | None) -> dict[Any, NDArray[Any]]:
    """Return the leaves of a graph that have one entry a record, each with its values."""
    given = dict(values or {})
    used = [v for v in ancestors([graph]) if v.owner is None and isinstance(v, (SharedVariable, Constant))]
    held = {variable: _held(variable) for variable in used}
    n_built = max((_length(model.rvs_to_values[rv]) for rv in model.observed_RVs), default=0)
    found: dict[Any, NDArray[Any]] = {}
    for variable, inside in held.items():
        name = variable.name or ""
        own = given.get(name, given.get(name.removesuffix(SUFFIX)))
        if isinstance(variable, SharedVariable) and own is not None:
            found[variable] = np.ascontiguousarray(own, variable.type.dtype)
        elif np.ndim(inside) and len(inside) == n_built and n_built > 1:
            found[variable] = inside
    if not found:
        raise InputError("the model's likelihood reads nothing that has one entry a record")
    return found


def _held(variable: Any) -> Any:
    return variable.get_value(borrow=True) if isinstance(variable, SharedVariable) else variable.data


def _length(value: Any) -> int:
    """Return the number of records of an observed variable's value: a constant, data, or a graph of data."""
    if isinstance(value, (SharedVariable, Constant)):
        return len(_held(value)) if value.ndim else 0
    return int(value.shape.eval()[0]) if value.ndim else 0


def _common_length(arrays: Any, what: str) -> int:
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1:
        raise InputError(f"all {what} must have the same length; columns left out are taken from the model")
    return lengths.pop()


def _drawn(variable: Any, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim != variable.ndim + 1:
        raise InputError(f"draws of {variable.name!r} must have {variable.ndim} axes besides the first one")
    return np.ascontiguousarray(array, variable.type.dtype)


def _compile(graph: Any, columns: list[Any], draws: list[Any], mode: str | None) -> tuple[Any, Any]:
    """Return a function of records, and one of what it returns and of draws; of any number each."""
    records = {v: v.type.clone(shape=(None, *v.type.shape[1:]))() for v in columns}
    batched = {v: v.type.clone(shape=(None, *v.type.shape), dtype=v.dtype)() for v in draws}
    both = vectorize_graph(_rebuilt(graph, records), batched)
    both, front = constant_parts(both, list(batched.values()), leaves=True)
    held = {each: each.type() for each in front}
    [joint] = graph_replace([both], held, strict=False)
    settings: dict[str, Any] = {"mode": mode, "on_unused_input": "ignore", "trust_input": True}
    return (
        pytensor.function(list(records.values()), front, **settings),
        pytensor.function([*held.values(), *batched.values()], joint, **settings),
    )


def _rebuilt(graph: Any, replaced: Mapping[Any, Any]) -> Any:
    """Replace leaves by inputs of any length: PyTensor's own ways would hold on to the length of a constant."""
    known = dict(replaced)
    for node in toposort([graph]):
        if any(v in known for v in node.inputs):
            again = node.clone_with_new_inputs([known.get(v, v) for v in node.inputs], strict=False)
            known |= dict(zip(node.outputs, again.outputs, strict=True))
    return known[graph]


def _same_at_one_draw(blocked: Stream, whole: Stream) -> bool:
    """Tell whether blocks of records give what all records at once give, at the first draw."""
    first = slice(0, 1)
    everything = slice(0, whole.n_records)
    together = whole.piece(whole.known(everything), everything, first)
    for records in _slices(whole.n_records, blocked.block):
        try:
            found = blocked.piece(blocked.known(records), records, first)
        except InputError:
            return False
        if not np.allclose(found, together[:, records], rtol=1e-9, atol=1e-12, equal_nan=True):
            return False
    return True


class Tally:
    """What is kept of log-likelihoods while they come by: extremes, sums and counts, by record and by draw."""

    def __init__(
        self,
        n: int,
        n_draws: int,
        weights: FloatArray | None,
        centre: FloatArray | None,
        limit: float | None,
        counts: IntArray | None = None,
    ) -> None:
        self.counts = np.ones(n, np.int64) if counts is None else counts
        self.weights = _each(weights, n, 1.0, "weights must be one finite number a record, none below 0", least=0.0)
        self.centre, self.limit = _each(centre, n, 0.0, CENTRES), _limit(limit)
        self.weighted = weights is not None
        self.compiled = n * n_draws > SMALL
        self.lowest, self.highest, self.total = np.full(n, np.inf), np.full(n, -np.inf), np.zeros(n)
        self.draws_beyond = np.zeros(n)
        self.largest_by_draw, self.records_beyond = np.zeros(n_draws), np.zeros(n_draws, np.int64)

    def add(self, records: slice, draws: slice, found: FloatArray) -> None:
        """Take in the log-likelihoods of some records at some draws, shape (draws, records), which are overwritten."""
        limit = np.inf if self.limit is None else self.limit
        if not self.compiled:
            self._add_plainly(records, draws, found, limit)
            return
        by_record = (self.lowest, self.highest, self.total, self.draws_beyond)
        _by_record(found, self.centre[records], self.weights[records], limit, *(kept[records] for kept in by_record))
        _by_draw(found, self.counts[records], limit, self.largest_by_draw[draws], self.records_beyond[draws])

    def _add_plainly(self, records: slice, draws: slice, found: FloatArray, limit: float) -> None:
        weights = self.weights[records]
        with np.errstate(all="ignore"):
            terms = (np.where(np.isnan(found), -np.inf, found) - self.centre[records]) * weights
        terms[:, weights == 0] = 0.0
        sizes = np.abs(terms)
        beyond = sizes > limit
        self.lowest[records] = np.minimum(self.lowest[records], terms.min(axis=0))
        self.highest[records] = np.maximum(self.highest[records], terms.max(axis=0))
        self.total[records] += terms.sum(axis=0)
        self.draws_beyond[records] += beyond.sum(axis=0)
        self.largest_by_draw[draws] = np.maximum(self.largest_by_draw[draws], sizes.max(axis=1))
        self.records_beyond[draws] += beyond @ self.counts[records]


def _each(values: Any, n: int, usual: float, refusal: str, least: float = -np.inf) -> FloatArray:
    """Return one finite number a record, shape (n,); ``usual`` where there are none."""
    found = np.full(n, usual) if values is None else np.asarray(values, np.float64)
    if found.shape != (n,) or not np.all(np.isfinite(found)) or np.any(found < least):
        raise InputError(refusal)
    return found


def _limit(limit: float | None) -> float | None:
    if limit is not None and not (np.isfinite(limit) and limit > 0):
        raise InputError("limit must be a finite number of nats above 0")
    return None if limit is None else float(limit)


# compiled


@numba.njit(error_model="numpy")
def _by_record(terms, centre, weights, limit, lowest, highest, total, beyond):  # type: ignore[no-untyped-def]
    """Turn log-likelihoods into terms in place, and update what is kept by record.

    Weights of 0 come last and what is no number before them, so that 0 times minus infinity is nothing.
    """
    n_draws, n = terms.shape
    for start in range(0, n, TILE):
        stop = min(start + TILE, n)
        c, w = centre[start:stop], weights[start:stop]
        low, high, sums, count = lowest[start:stop], highest[start:stop], total[start:stop], beyond[start:stop]
        for draw in range(n_draws):
            row = terms[draw, start:stop]
            for i in range(stop - start):
                value = row[i]
                value = value if value == value else -np.inf
                value = (value - c[i]) * w[i]
                value = value if w[i] != 0 else 0.0
                row[i] = value
                low[i] = value if value < low[i] else low[i]
                high[i] = value if value > high[i] else high[i]
                sums[i] += value
                count[i] += 1.0 if abs(value) > limit else 0.0


@numba.njit(error_model="numpy")
def _by_draw(terms, counts, limit, largest, beyond):  # type: ignore[no-untyped-def]
    """Update what is kept by draw. Eight running maxima, since the processor can't reorder one."""
    n_draws, n = terms.shape
    lanes = np.empty(8)
    for draw in range(n_draws):
        row = terms[draw]
        lanes[:] = largest[draw]
        for start in range(0, n - 7, 8):
            for lane in range(8):
                size = abs(row[start + lane])
                lanes[lane] = size if size > lanes[lane] else lanes[lane]
        for i in range(n - n % 8, n):
            lanes[0] = max(lanes[0], abs(row[i]))
        largest[draw] = lanes.max()
        count = 0
        for i in range(n):
            count += counts[i] * (abs(row[i]) > limit)
        beyond[draw] += count
