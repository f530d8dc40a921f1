"""The log-likelihoods of any PyMC model that is already built, of every record at every
draw, piece by piece.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from numpy.typing import NDArray
from pymc.logprob.basic import transformed_conditional_logp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors, explicit_graph_inputs, toposort
from pytensor.tensor.basic import Alloc

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.posterior.columns import SUFFIX, Values
from pdips.posterior.record_likelihood import in_two_steps, on_first_axis

# Records and draws of a stream at once: their log-likelihoods stay in a core's cache
BLOCK = 4096
CHUNK = 16
# Log-likelihoods of a stream held at once where records can't be taken block by block
MOST_AT_ONCE = 1 << 20

Draws = Mapping[str, Any] | xr.DataTree

NOT_EACH = (
    "the model's observed variables must have one log-likelihood for each record "
    "along their first axis, and it must "
    "be possible to work them out from these columns and draws; a log_likelihood "
    "group made elsewhere can be given to "
    "from_log_likelihood"
)


@dataclass(frozen=True, eq=False, repr=False)
class Stream:
    """The log-likelihood of every record at every draw, piece by piece."""

    # what the model reads of each record, shape (records, ...)
    columns: tuple[NDArray[Any], ...]
    draws: tuple[NDArray[Any], ...]  # what it reads of each draw, shape (draws, ...)
    of_records: Any  # compiled: what can be worked out from records alone
    # compiled: the log-likelihoods, shape (draws, records), from that and draws
    joint: Any
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
        """Yield records, draws and their log-likelihoods, shape (draws, records); all
        draws of a block in a row.
        """
        for records in slices(self.n_records, self.block):
            columns = [column[records] for column in self.columns]
            of_records = _quietly(self.of_records, columns)
            for draws in slices(self.n_draws, self.chunk):
                parameters = [parameter[draws] for parameter in self.draws]
                terms = _quietly(self.joint, [*parameters, *of_records])
                n_draws = draws.stop - draws.start
                if np.shape(terms) != (n_draws, records.stop - records.start):
                    raise InputError(NOT_EACH)
                yield records, draws, np.require(terms, np.float64, ["C", "W"])


def _quietly(function: Any, arguments: list[Any]) -> Any:
    """Call a compiled function: its records may have density 0, and what it says of
    failures shows lengths.
    """
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
    """Compile any model's log-likelihoods, of columns (or what the model holds) and
    draws, to be worked out in pieces.

    Records come block by block if that gives the same numbers as all at once, tried at
    one draw.
    """
    parameters = draws_by_name(draws)
    graph, symbols = _likelihood(model, parameters)
    columns = _columns_of(model, graph, values)
    _check_lengths(columns, "columns")
    _check_lengths(parameters, "draws")
    by_draw = _by_draw(model, symbols, parameters)
    records = {
        column: column.type.clone(shape=(None, *column.type.shape[1:]))()
        for column in columns
    }
    batched = {
        variable: variable.type.clone(
            shape=(None, *variable.type.shape), dtype=variable.dtype
        )()
        for variable in by_draw
    }
    both = vectorize_graph(_of_any_length(graph, records), batched)
    functions = in_two_steps(
        both, list(records.values()), list(batched.values()), mode, mode
    )
    n_records = len(next(iter(columns.values())))
    whole = Stream(
        tuple(columns.values()),
        tuple(by_draw.values()),
        *functions,
        block=n_records,
        chunk=max(1, min(chunk, MOST_AT_ONCE // n_records)),
    )
    blocked = replace(whole, block=block, chunk=chunk)
    if n_records <= block or _same_at_one_draw(blocked, whole):
        return blocked
    return whole


def _check_lengths(arrays: Mapping[Any, NDArray[Any]], what: str) -> None:
    if len({len(array) for array in arrays.values()}) != 1:
        raise InputError(
            f"all {what} must have the same length; columns left "
            f"out are taken from the model"
        )


def _by_draw(
    model: pm.Model, symbols: Mapping[str, Any], parameters: Mapping[str, NDArray[Any]]
) -> dict[Any, NDArray[Any]]:
    """Return the draws of each variable that the log-likelihood needs."""
    shapes = model.eval_rv_shapes()
    by_draw = {}
    for name, variable in symbols.items():
        shape = tuple(map(int, shapes[name]))
        draws = parameters[name]
        if draws.shape[1:] != shape:
            raise InputError(
                f"draws of {name!r} must have the shape {shape} besides "
                f"the axes of chains and draws"
            )
        by_draw[variable] = np.ascontiguousarray(draws, variable.type.dtype)
    return by_draw


def _of_any_length(graph: Any, records: Mapping[Any, Any]) -> Any:
    """Return a graph of columns of any length: PyTensor's own ways to replace these
    would hold on to the length of a constant.
    """
    replaced = dict(records)
    for node in toposort([graph]):
        if any(variable in replaced for variable in node.inputs):
            inputs = [replaced.get(variable, variable) for variable in node.inputs]
            clone = node.clone_with_new_inputs(inputs, strict=False)
            replaced |= dict(zip(node.outputs, clone.outputs, strict=True))
    return replaced[graph]


def draws_by_name(draws: Draws) -> dict[str, NDArray[Any]]:
    """Return draws by name, shape (draws, ...), the chains of a tree one after the
    other.
    """
    if not isinstance(draws, xr.DataTree):
        by_name = {name: np.asarray(value) for name, value in draws.items()}
    elif "posterior" not in draws.children:
        raise InputError("the tree of draws has no posterior group")
    elif not {"chain", "draw"} <= set(draws["posterior"].sizes):
        raise InputError("the group posterior must have the dims chain and draw")
    else:
        by_name = {}
        for name, array in draws["posterior"].items():
            values = array.transpose("chain", "draw", ...).to_numpy()
            by_name[str(name)] = values.reshape(-1, *values.shape[2:])
    if not by_name or any(
        array.ndim == 0 or len(array) == 0 for array in by_name.values()
    ):
        raise InputError(
            "draws must be arrays with one entry a draw along their "
            "first axis, and at least one draw"
        )
    return by_name


def _likelihood(
    model: pm.Model, parameters: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the log-likelihood of each record, and the variables it needs by the name
    of their draws.
    """
    if not model.observed_RVs:
        raise InputError("the model has no observed variable")
    given = dict(model.rvs_to_values)
    transforms = dict(model.rvs_to_transforms)
    symbols = {}
    for variable in model.free_RVs:
        name = given[variable].name
        if variable.name in parameters:
            name = variable.name
            given[variable] = variable.type(name=name)
            transforms[variable] = None
        symbols[name] = given[variable]
    terms = [
        on_first_axis(_not_spread(term))
        for term in transformed_conditional_logp(
            model.observed_RVs, rvs_to_values=given, rvs_to_transforms=transforms
        )
    ]
    if any(term.ndim == 0 for term in terms):
        raise InputError(NOT_EACH)
    try:
        graph = pt.add(*terms) if len(terms) > 1 else terms[0]
    except ValueError:
        raise InputError(NOT_EACH) from None
    needed = set(explicit_graph_inputs([graph]))
    symbols = {
        name: variable for name, variable in symbols.items() if variable in needed
    }
    for name in symbols:
        if name not in parameters:
            raise InputError(
                f"there are no draws of {name!r}, which the log-likelihood depends on"
            )
    if not symbols:
        raise InputError(
            "the model's log-likelihood depends on no free variable, so "
            "there is nothing to bound"
        )
    return graph, symbols


def _not_spread(term: Any) -> Any:
    """Return a term without what spreads it over the size that its variable had when it
    was built.
    """
    while term.owner is not None and isinstance(term.owner.op, Alloc):
        [inside, *_] = term.owner.inputs
        if inside.ndim != term.ndim:
            break
        term = inside
    return term


def _columns_of(
    model: pm.Model, graph: Any, values: Values | None
) -> dict[Any, NDArray[Any]]:
    """Return the leaves of a graph that have one entry a record, each with its
    values.
    """
    given = dict(values or {})
    observed = [model.rvs_to_values[variable] for variable in model.observed_RVs]
    n_built = max(int(value.shape[0].eval()) if value.ndim else 0 for value in observed)
    columns: dict[Any, NDArray[Any]] = {}
    for variable in ancestors([graph]):
        if variable.owner is not None:
            continue
        name = variable.name or ""
        own = given.get(name, given.get(name.removesuffix(SUFFIX)))
        if isinstance(variable, SharedVariable):
            if own is not None:
                columns[variable] = np.ascontiguousarray(own, variable.type.dtype)
                continue
            held = variable.get_value(borrow=True)
        elif isinstance(variable, Constant):
            held = variable.data
        else:
            continue
        if np.ndim(held) and len(held) == n_built and n_built > 1:
            columns[variable] = held
    if not columns:
        raise InputError(
            "the model's likelihood reads nothing that has one entry a record"
        )
    return columns


def _same_at_one_draw(blocked: Stream, whole: Stream) -> bool:
    """Tell whether blocks of records give what all records at once give, at the first
    draw.
    """
    first, together = (
        replace(stream, draws=tuple(values[:1] for values in stream.draws))
        for stream in (blocked, whole)
    )
    [(_, _, terms)] = together.pieces()
    try:
        pieces = [(part, terms[:, records]) for records, _, part in first.pieces()]
    except InputError:
        return False
    return all(
        np.allclose(*pair, rtol=1e-9, atol=1e-12, equal_nan=True) for pair in pieces
    )
