"""Log-likelihoods of blocks of records at chunks of draws, compiled once: never all records at all draws."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

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
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, explicit_graph_inputs, toposort
from pytensor.tensor.basic import Alloc

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.posterior.columns import SUFFIX, Values
from pdips.posterior.record_likelihood import on_first_axis

Draws = Mapping[str, Any] | xr.DataTree

BLOCK, CHUNK = 4096, 16
"""Records and draws at once: their log-likelihoods stay in a core's cache."""

MOST_AT_ONCE = 1 << 20
"""Log-likelihoods held at once where records can't be taken block by block."""


@dataclass(frozen=True, eq=False)
class Stream:
    """The log-likelihood of every record at every draw, piece by piece.

    Parameters
    ----------
    columns : tuple of ndarray, shape (records, ...)
        What the model reads of each record.
    draws : tuple of ndarray, shape (draws, ...)
        What it reads of each draw.
    of_records, of_draws, joint : callable
        Compiled: what can be worked out from records alone, from draws alone, and the log-likelihoods from both,
        shape (draws, records).
    names : tuple of str
        What the draws are called.
    n_records, n_draws : int
        How many there are.
    block, chunk : int
        How many are taken at once.
    """

    columns: tuple[NDArray[Any], ...]
    draws: tuple[NDArray[Any], ...]
    of_records: Any
    of_draws: Any
    joint: Any
    names: tuple[str, ...]
    n_records: int
    n_draws: int
    block: int
    chunk: int

    def __repr__(self) -> str:
        return "Stream()"

    def at(self, draws: Mapping[str, Any]) -> "Stream":
        """Return the same log-likelihoods at other draws, shape (draws, ...) by name; nothing is compiled again."""
        arrays = tuple(np.asarray(draws[name], old.dtype) for name, old in zip(self.names, self.draws, strict=True))
        return replace(self, draws=arrays, n_draws=_common_length(arrays, "draws"))

    def pieces(self) -> Iterator[tuple[slice, slice, FloatArray]]:
        """Yield records, draws and their log-likelihoods, shape (draws, records); all draws of a block in a row."""
        # What draws alone give is kept for the next block of records, if there is one.
        chunks: Iterable[Any] = self._chunks() if self.block >= self.n_records else list(self._chunks())
        for start in range(0, self.n_records, self.block):
            records = slice(start, min(start + self.block, self.n_records))
            known = _quietly(self.of_records, [column[records] for column in self.columns])
            for draws, parameters in chunks:
                found = np.require(_quietly(self.joint, [*known, *parameters]), np.float64, ["C", "W"])
                if found.shape != (draws.stop - draws.start, records.stop - records.start):
                    raise InputError(ONE_EACH)
                yield records, draws, found

    def _chunks(self) -> Iterator[tuple[slice, Any]]:
        for start in range(0, self.n_draws, self.chunk):
            draws = slice(start, min(start + self.chunk, self.n_draws))
            yield draws, _quietly(self.of_draws, [array[draws] for array in self.draws])


def _quietly(function: Any, arguments: Iterable[Any]) -> Any:
    """Call a compiled function: its records may have density 0, and what it says of failures shows lengths."""
    try:
        with np.errstate(all="ignore"):
            return function(*arguments)
    except Exception:  # noqa: BLE001 - whatever a model's graph raises
        raise InputError(ONE_EACH) from None


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
    """Compile a model's log-likelihoods to be worked out piece by piece.

    Parameters
    ----------
    model : pymc.Model
        Its observed variables have one value (or row) a record.
    values : mapping of str to ndarray, shape (records, ...), or None
        The columns that the model has as ``pm.Data``, by name, with or without ``columns.SUFFIX``. What is left
        out is taken from the model.
    draws : mapping of str to ndarray, shape (draws, ...), or xarray.DataTree
        Values of the free variables, or of their transformed value variables (``sigma_log__``); or a tree with a
        ``posterior`` group.
    block, chunk : int
        Records and draws at once.
    mode : str, optional
        PyTensor's mode of compilation.

    Returns
    -------
    Stream
        Records come block by block if that gives the same numbers as all at once, tried at one draw; all at
        once otherwise, with fewer draws.

    Raises
    ------
    InputError
        If there is no observed variable, a parameter lacks draws, columns differ in length, or the observed
        variables don't have one log-likelihood a record.
    """
    parameters = draws_by_name(draws)
    graph, symbols = _likelihood(model, parameters)
    columns = _columns_of(model, graph, values)
    n_records = _common_length(columns.values(), "columns")
    known = [_drawn(variable, parameters[name]) for name, variable in symbols.items()]
    n_draws = _common_length(parameters.values(), "draws")
    by_draw = dict(zip(symbols.values(), known, strict=True))
    functions = _compile(graph, list(columns), list(by_draw), mode)
    arrays = tuple(columns.values()), tuple(by_draw.values())
    whole = Stream(
        *arrays,
        *functions,
        tuple(symbols),
        n_records,
        n_draws,
        n_records,
        max(1, min(chunk, MOST_AT_ONCE // n_records)),
    )
    blocked = replace(whole, block=block, chunk=chunk)
    return blocked if n_records <= block or _same_at_one_draw(blocked, whole) else whole


def draws_by_name(draws: Draws) -> dict[str, NDArray[Any]]:
    """Return draws by name, shape (draws, ...), the chains of a tree one after the other.

    Raises
    ------
    InputError
        If a tree has no posterior group, or there are no draws.
    """
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


def _compile(graph: Any, columns: list[Any], draws: list[Any], mode: str | None) -> tuple[Any, Any, Any]:
    """Return functions of records, of draws, and of what those two return."""
    inputs = {v: v.type.clone(shape=(None, *v.type.shape[1:]))() for v in columns}
    single = _rebuilt(graph, inputs)
    batched = {v: v.type.clone(shape=(None, *v.type.shape), dtype=v.dtype)() for v in draws}
    both = vectorize_graph(single, batched)
    both = rewrite_graph(both, include=("canonicalize", "stabilize", "local_remove_check_parameter"))
    records, parameters = list(inputs.values()), list(batched.values())
    by_record, by_draw = _front(both, records, parameters), _front(both, parameters, records)
    inside = {v: v.type() for v in [*by_record, *by_draw]}
    [joint] = graph_replace([both], inside, strict=False)
    settings: dict[str, Any] = {"mode": mode, "on_unused_input": "ignore"}
    functions = (
        pytensor.function(records, by_record, **settings),
        pytensor.function(parameters, by_draw, **settings),
        pytensor.function([inside[v] for v in [*by_record, *by_draw]], joint, **settings),
    )
    for function in functions:
        function.trust_input = True
    return functions


def _rebuilt(graph: Any, replaced: Mapping[Any, Any]) -> Any:
    """Replace leaves by inputs of any length: PyTensor's own ways would hold on to the length of a constant."""
    known = dict(replaced)
    for node in toposort([graph]):
        if any(v in known for v in node.inputs):
            again = node.clone_with_new_inputs([known.get(v, v) for v in node.inputs], strict=False)
            known |= dict(zip(node.outputs, again.outputs, strict=True))
    return known[graph]


def _front(graph: Any, own: list[Any], others: list[Any]) -> list[Any]:
    """Return the last variables of a graph that depend on ``own`` and not on ``others``."""
    nodes = list(toposort([graph]))
    alone, mixed = set(own), set(others)
    for node in nodes:
        for reached in (alone, mixed):
            if reached & set(node.inputs):
                reached |= set(node.outputs)
    alone -= mixed
    return list({v: None for node in nodes if not set(node.outputs) <= alone for v in node.inputs if v in alone})


def _same_at_one_draw(blocked: Stream, whole: Stream) -> bool:
    """Tell whether blocks of records give what all records at once give, at the first draw."""
    parameters = _quietly(whole.of_draws, [array[:1] for array in whole.draws])
    together = _quietly(whole.joint, [*_quietly(whole.of_records, whole.columns), *parameters])
    for start in range(0, whole.n_records, blocked.block):
        part = [column[start : start + blocked.block] for column in blocked.columns]
        try:
            found = _quietly(blocked.joint, [*_quietly(blocked.of_records, part), *parameters])
        except InputError:
            return False
        wanted = together[:, start : start + blocked.block]
        if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=1e-9, atol=1e-12, equal_nan=True):
            return False
    return True
