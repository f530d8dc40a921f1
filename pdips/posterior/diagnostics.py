"""How far each record's log-likelihood moves a posterior: bounds over its draws, and what they certify.

Everything here is computed from the confidential records and no epsilon pays for it: for inside use only.
``docs/diagnostics.md`` says how to read it.
"""

from collections.abc import Iterator

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.posterior.bounds import Bounds
from pdips.posterior.columns import Values
from pdips.posterior.streaming import MOST_AT_ONCE, Draws, draws_by_name, stream
from pdips.posterior.tally import Tally

__all__ = ["Bounds", "from_log_likelihood", "log_likelihood_tree", "stream_bounds"]

MOST_HELD = 10_000_000
"""Log-likelihoods that :func:`log_likelihood_tree` agrees to hold."""


def stream_bounds(
    model: pm.Model,
    values: Values | None,
    draws: Draws,
    *,
    weights: FloatArray | None = None,
    centre: FloatArray | None = None,
    limit: float | None = None,
    counts: IntArray | None = None,
    independent: bool = False,
    mode: str | None = None,
) -> Bounds:
    """Bound a model's log-likelihoods over draws without ever holding all of them.

    Parameters
    ----------
    model : pymc.Model
        As ``Blueprint.build`` returns it, or any whose observed variables have one value a record along their first
        axis. Its potentials are no part of any record's likelihood.
    values : mapping of str to ndarray, shape (records, ...), or None
        Columns by name, for the model's ``pm.Data``; what is left out is taken from the model.
    draws : mapping of str to ndarray, shape (draws, ...), or xarray.DataTree
        Free variables or their transformed value variables by name; or a tree with a ``posterior`` group, whose
        chains are kept apart.
    weights : ndarray, shape (records,), optional
        ``alpha``, 1 by default.
    centre : ndarray, shape (records,), optional
        ``c``, nats, 0 by default.
    limit : float, optional
        Half-width of the window of a censored posterior, nats.
    counts : ndarray of int, shape (records,), optional
        How many records each row stands for, where equal ones were put together.
    independent : bool
        Whether the draws are independent draws from the posterior, as those on a grid are.
    mode : str, optional
        PyTensor's mode of compilation.

    Raises
    ------
    InputError
        See :func:`pdips.posterior.streaming.stream`; or if weights, centre or limit are not what they should be.
    """
    pieces = stream(model, values, draws, mode=mode)
    chains = draws["posterior"].sizes["chain"] if isinstance(draws, xr.DataTree) else 1
    tally = Tally(pieces.n_records, pieces.n_draws, weights, centre, limit, counts)
    for records, some, found in pieces.pieces():
        tally.add(records, some, found)
    return tally.bounds(chains, independent)


def from_log_likelihood(
    tree: xr.DataTree,
    *,
    variable: str | None = None,
    record_dim: str | None = None,
    weights: FloatArray | None = None,
    centre: FloatArray | None = None,
    limit: float | None = None,
    independent: bool = False,
) -> Bounds:
    """Bound the log-likelihoods that a tree holds, whoever made it.

    Parameters
    ----------
    tree : xarray.DataTree
        With a group ``log_likelihood`` whose variables have dims chain, draw and one for records.
    variable : str, optional
        The one to take. By default all are summed record by record, which asks that they share the dim of records.
    record_dim : str, optional
        The dim of records, if there are others besides chain and draw: those are summed over.
    weights, centre, limit, independent
        As in :func:`stream_bounds`.

    Raises
    ------
    InputError
        If there is no such group or variable, or it can't be told which dim counts records.
    """
    arrays, records = _arrays(tree, variable, record_dim)
    sizes = arrays[0].sizes
    n_records, chains, n_draws = sizes[records], sizes["chain"], sizes["draw"]
    tally = Tally(n_records, chains * n_draws, weights, centre, limit)
    for chain, start, stop in _chunks(chains, n_draws, max(1, MOST_AT_ONCE // (2 * n_records))):
        found = sum(_piece(array.isel(chain=chain, draw=slice(start, stop)), records) for array in arrays)
        tally.add(
            slice(0, n_records), slice(chain * n_draws + start, chain * n_draws + stop), np.ascontiguousarray(found)
        )
    return tally.bounds(chains, independent)


def log_likelihood_tree(
    model: pm.Model, values: Values | None, draws: Draws, *, mode: str | None = None
) -> xr.DataTree:
    """Return a small table's log-likelihoods as a tree, for ArviZ: confidential.

    Parameters
    ----------
    model, values, draws, mode
        As in :func:`stream_bounds`.

    Returns
    -------
    xarray.DataTree
        Groups ``posterior`` and ``log_likelihood``; the latter has one variable with dims chain, draw, record, summed
        over the model's observed variables and without weights.

    Raises
    ------
    InputError
        If it would hold more than ``MOST_HELD`` numbers; use :func:`stream_bounds`.
    """
    pieces = stream(model, values, draws, mode=mode)
    if pieces.n_records * pieces.n_draws > MOST_HELD:
        raise InputError(f"records times draws must not exceed {MOST_HELD:,}; use stream_bounds, which holds none")
    found = np.empty((pieces.n_draws, pieces.n_records))
    for records, some, piece in pieces.pieces():
        found[some, records] = piece
    names = [rv.name for rv in model.observed_RVs]
    if isinstance(draws, xr.DataTree):
        posterior = draws["posterior"].to_dataset()
    else:
        named = {name: value[None] for name, value in draws_by_name(draws).items()}
        posterior = az.from_dict({"posterior": named})["posterior"].to_dataset()
    sizes = posterior.sizes
    cube = found.reshape(sizes["chain"], sizes["draw"], -1)
    coords = {name: posterior.coords[name] for name in ("chain", "draw") if name in posterior.coords}
    group = xr.Dataset(
        {names[0] if len(names) == 1 else "log_likelihood": (("chain", "draw", "record"), cube)}, coords=coords
    )
    return xr.DataTree.from_dict({"posterior": posterior, "log_likelihood": group})


def _arrays(tree: xr.DataTree, variable: str | None, record_dim: str | None) -> tuple[list[xr.DataArray], str]:
    """Return log-likelihoods with dims chain, draw, that of the records, and any others; and that of the records."""
    if not isinstance(tree, xr.DataTree) or "log_likelihood" not in tree.children:
        raise InputError(
            "the tree has no log_likelihood group; PyMC adds one by pm.compute_log_likelihood, and for Stan name the "
            "generated quantity when you call az.from_cmdstanpy(..., log_likelihood=...)"
        )
    group = tree["log_likelihood"].to_dataset()
    names = [str(name) for name in group.data_vars] if variable is None else [variable]
    if not names or any(name not in group.data_vars for name in names):
        raise InputError(
            "the log_likelihood group has no such variable" if names else "the log_likelihood group is empty"
        )
    found = [group[name] for name in names]
    dims = {_record_dim(str(array.name), array, record_dim) for array in found}
    if len(dims) != 1:
        raise InputError(
            "the variables of the log_likelihood group have different dims of records; pass variable=..., or rename "
            "the dims if they count the same records"
        )
    if any(size == 0 for array in found for size in array.shape):
        raise InputError("the log_likelihood group has no records or no draws")
    return found, dims.pop()


def _record_dim(name: str, array: xr.DataArray, record_dim: str | None) -> str:
    others = [str(dim) for dim in array.dims if dim not in ("chain", "draw")]
    if "chain" not in array.dims or "draw" not in array.dims:
        raise InputError(f"log_likelihood variable {name!r} must have dims chain and draw")
    records = record_dim if record_dim is not None else others[0] if len(others) == 1 else None
    if records is None or records not in others:
        raise InputError(
            f"log_likelihood variable {name!r} has dims {', '.join(others) or 'none'} besides chain and draw; say "
            "which one counts records by record_dim=..."
        )
    return records


def _piece(part: xr.DataArray, records: str) -> FloatArray:
    # Loaded before it is turned: what lies in a file and is turned would be read whole.
    found = part.load().transpose("draw", records, ...).to_numpy().astype(np.float64)
    return found.reshape(*found.shape[:2], -1).sum(axis=2) if found.ndim > 2 else found


def _chunks(chains: int, n_draws: int, chunk: int) -> Iterator[tuple[int, int, int]]:
    for chain in range(chains):
        for start in range(0, n_draws, chunk):
            yield chain, start, min(start + chunk, n_draws)
