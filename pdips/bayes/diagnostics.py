"""How far each record's log-likelihood moves a posterior: bounds over its draws, and what they certify.

Everything here is computed from the confidential records and no epsilon pays for it: for inside use only.
``docs/diagnostics.md`` says how to read it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray

from pdips.bayes.certificate import in_words
from pdips.bayes.columns import Values
from pdips.bayes.streaming import MOST_AT_ONCE, Draws, FloatArray, draws_by_name, stream
from pdips.errors import InputError

MOST_HELD = 10_000_000
"""Log-likelihoods that :func:`log_likelihood_tree` agrees to hold."""

FEWEST_DRAWS = 4
"""Draws a chain below which ArviZ gives neither R-hat nor effective numbers."""


@dataclass(frozen=True, eq=False, repr=False)
class Bounds:
    """Bounds of ``u = alpha (log p(x | theta) - c)`` over draws of ``theta``: confidential, all of it.

    Parameters
    ----------
    largest, lowest, highest, mean : ndarray, shape (records,)
        Of ``|u|``, ``u``, ``u`` and ``u`` over all draws, nats.
    draws_beyond : ndarray of int, shape (records,)
        Draws at which ``|u| > limit``.
    largest_by_draw : ndarray, shape (chains, draws)
        The largest ``|u|`` of all records at each draw.
    records_beyond : ndarray of int, shape (chains, draws)
        Records with ``|u| > limit`` at each draw.
    limit : float or None
        Where a censored posterior would cut, nats; None for nowhere.
    weighted : bool
        Whether weights ``alpha`` were given.
    independent : bool
        Whether the draws are independent draws from the posterior; False for a Markov chain's.

    Notes
    -----
    A log-likelihood of minus infinity, or one that is no number, counts as infinitely large; with weight 0 a record
    contributes nothing, whatever its log-likelihood.
    """

    largest: FloatArray
    lowest: FloatArray
    highest: FloatArray
    mean: FloatArray
    draws_beyond: NDArray[np.int64]
    largest_by_draw: FloatArray
    records_beyond: NDArray[np.int64]
    limit: float | None
    weighted: bool
    independent: bool

    def __repr__(self) -> str:
        return "Bounds(confidential: describe() and certifies() say what was found)"

    @property
    def n_records(self) -> int:
        """Number of records."""
        return len(self.largest)

    @property
    def n_draws(self) -> int:
        """Number of draws, of all chains."""
        return int(self.largest_by_draw.size)

    @property
    def overall(self) -> float:
        """The largest ``|u|`` of all records and draws, nats: what paper 004 estimates its Lipschitz bound by."""
        return float(self.largest.max())

    @property
    def local_epsilon(self) -> float:
        """Paper 004's local ``epsilon_x``, twice the overall bound. Not a price: see :meth:`certifies`."""
        return 2 * self.overall

    @property
    def n_censored(self) -> int:
        """Number of records beyond the limit at one draw at least: what paper 004 counts. It grows with the draws."""
        return int(np.count_nonzero(self.draws_beyond))

    @property
    def share_censored(self) -> float:
        """Share of records beyond the limit at one draw at least."""
        return self.n_censored / self.n_records

    @property
    def share_by_draw(self) -> FloatArray:
        """Share of records beyond the limit at each draw, shape (chains, draws)."""
        return self.records_beyond / self.n_records

    @cached_property
    def rhat(self) -> float:
        """R-hat of ``largest_by_draw``; NaN if it can't be said (too few draws, or a bound that never moves)."""
        chains = self.largest_by_draw
        if len(chains) == 1:
            half = chains.shape[1] // 2
            chains = np.stack([chains[0, :half], chains[0, half : 2 * half]])
        return float(az.rhat(chains)) if _moves(chains) else float("nan")

    @cached_property
    def ess_bulk(self) -> float:
        """Effective number of draws of ``largest_by_draw``, for its middle; NaN if it can't be said."""
        return float(az.ess(self.largest_by_draw, method="bulk")) if _moves(self.largest_by_draw) else float("nan")

    @cached_property
    def ess_tail(self) -> float:
        """Effective number of draws of ``largest_by_draw`` for its upper 5 percent; NaN if it can't be said."""
        chains = self.largest_by_draw
        return float(az.ess(chains, method="quantile", prob=0.95)) if _moves(chains) else float("nan")

    @property
    def effective_draws(self) -> float:
        """Number of draws that :attr:`exceedance` counts: all independent ones, or the smaller effective number."""
        if self.independent:
            return float(self.n_draws)
        smaller = min(self.ess_bulk, self.ess_tail)
        return 0.0 if np.isnan(smaller) else min(smaller, float(self.n_draws))

    @property
    def exceedance(self) -> float:
        """Bound on the probability that a further draw from this posterior goes beyond :attr:`overall`.

        ``1 / (S + 1)`` for ``S`` independent draws, by exchangeability. For a Markov chain ``S`` is its effective
        number, which is customary and not a theorem.
        """
        return 1 / (self.effective_draws + 1)

    def certifies(self) -> str:
        """Say in words what the bound certifies and what it doesn't."""
        return in_words(
            exceedance=self.exceedance,
            independent=self.independent,
            mixed=bool(self.rhat < 1.01),
            limited=self.limit is not None,
            weighted=self.weighted,
        )

    def describe(self) -> dict[str, Any]:
        """Return the findings as plain numbers and words, for ``run.json``: confidential. What is no number is None."""
        found: dict[str, Any] = {
            "records": self.n_records,
            "chains": len(self.largest_by_draw),
            "draws": self.n_draws,
            "independent": self.independent,
            "weighted": self.weighted,
            "bound": _number(self.overall),
            "epsilon_x": _number(self.local_epsilon),
            "bounds_of_records": _five(self.largest),
            "bounds_of_draws": _five(self.largest_by_draw),
            "rhat": _number(self.rhat),
            "ess_bulk": _number(self.ess_bulk),
            "ess_tail": _number(self.ess_tail),
            "exceedance": self.exceedance,
            "certifies": self.certifies(),
        }
        if self.limit is not None:
            censored = {"records": self.n_censored, "share": self.share_censored, "by_draw": _five(self.share_by_draw)}
            found |= {"limit": self.limit, "censored": censored}
        return found

    def to_tree(self) -> xr.DataTree:
        """Return a tree whose group ``pdips`` has the bounds by record and by draw: confidential."""
        of_records = {name: ("record", getattr(self, name)) for name in ("largest", "lowest", "highest", "mean")}
        of_draws = {"largest_by_draw": (("chain", "draw"), self.largest_by_draw)}
        if self.limit is not None:
            of_records["draws_beyond"] = ("record", self.draws_beyond)
            of_draws["share_by_draw"] = (("chain", "draw"), self.share_by_draw)
        about = {"confidential": "computed from the records, and no epsilon pays for it", "certifies": self.certifies()}
        about |= {} if self.limit is None else {"limit": self.limit}  # type: ignore[dict-item]
        return xr.DataTree.from_dict({"pdips": xr.Dataset(of_records | of_draws, attrs=about)})


def stream_bounds(
    model: pm.Model,
    values: Values | None,
    draws: Draws,
    *,
    weights: FloatArray | None = None,
    centre: FloatArray | None = None,
    limit: float | None = None,
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
    independent : bool
        Whether the draws are independent draws from the posterior, as those on a grid are.
    mode : str, optional
        PyTensor's mode of compilation.

    Raises
    ------
    InputError
        See :func:`pdips.bayes.streaming.stream`; or if weights, centre or limit are not what they should be.
    """
    pieces = stream(model, values, draws, mode=mode)
    chains = draws["posterior"].sizes["chain"] if isinstance(draws, xr.DataTree) else 1
    tally = _Tally(pieces.n_records, pieces.n_draws, weights, centre, limit)
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
    arrays = _arrays(tree, variable, record_dim)
    records, sizes = str(arrays[0].dims[2]), arrays[0].sizes
    n_records, chains, n_draws = sizes[records], sizes["chain"], sizes["draw"]
    tally = _Tally(n_records, chains * n_draws, weights, centre, limit)
    for some in _chunks(chains, n_draws, max(1, MOST_AT_ONCE // max(1, n_records))):
        chain, start, stop = some
        found = sum(_piece(array, chain, slice(start, stop)) for array in arrays)
        tally.add(slice(0, n_records), slice(chain * n_draws + start, chain * n_draws + stop), np.asarray(found))
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


class _Tally:
    """What is kept while pieces come by."""

    def __init__(
        self, n: int, n_draws: int, weights: FloatArray | None, centre: FloatArray | None, limit: float | None
    ) -> None:
        self.weights, self.centre, self.limit = _weights(weights, n), _centre(centre, n), _limit(limit)
        self.n_draws = n_draws
        self.lowest, self.highest, self.total = np.full(n, np.inf), np.full(n, -np.inf), np.zeros(n)
        self.draws_beyond = np.zeros(n, np.int64)
        self.largest_by_draw, self.records_beyond = np.zeros(n_draws), np.zeros(n_draws, np.int64)

    def add(self, records: slice, draws: slice, found: FloatArray) -> None:
        """Take in the log-likelihoods of some records at some draws, shape (draws, records)."""
        terms = self._terms(records, found)
        low, high = terms.min(axis=0), terms.max(axis=0)
        np.minimum(self.lowest[records], low, out=self.lowest[records])
        np.maximum(self.highest[records], high, out=self.highest[records])
        self.total[records] += terms.sum(axis=0)
        size = np.abs(terms)
        by_draw = _rows_largest(size)
        np.maximum(self.largest_by_draw[draws], by_draw, out=self.largest_by_draw[draws])
        if self.limit is not None and by_draw.max() > self.limit:
            beyond = size > self.limit
            self.draws_beyond[records] += _count_columns(beyond)
            self.records_beyond[draws] += [np.count_nonzero(row) for row in beyond]

    def _terms(self, records: slice, found: FloatArray) -> FloatArray:
        # Weights of 0 come last and NaN before them, so that 0 times minus infinity is nothing.
        if np.isnan(found.sum()):
            found = np.where(np.isnan(found), -np.inf, found)
        if self.centre is not None:
            found = found - self.centre[records]
        if self.weights is not None:
            weight = self.weights[records]
            with np.errstate(invalid="ignore"):
                found = np.where(weight == 0, 0.0, found * weight)
        return found

    def bounds(self, chains: int, independent: bool) -> Bounds:
        """Return what was found."""
        return Bounds(
            np.maximum(self.highest, -self.lowest),
            self.lowest,
            self.highest,
            self.total / self.n_draws,
            self.draws_beyond,
            self.largest_by_draw.reshape(chains, -1),
            self.records_beyond.reshape(chains, -1),
            self.limit,
            self.weights is not None,
            independent,
        )


def _rows_largest(size: FloatArray) -> FloatArray:
    """Return the largest entry of each row, by a way that numpy takes at twice the speed where the width allows it."""
    n, width = size.shape
    part = size.reshape(n, 64, width // 64).max(axis=1) if width % 64 == 0 else size
    found: FloatArray = part.max(axis=1)
    return found


def _count_columns(beyond: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count in bytes, which is eight times faster than counting in longs; 255 rows at a time."""
    rows = beyond.view(np.uint8)
    found = np.zeros(rows.shape[1], np.int64)
    for start in range(0, len(rows), 255):
        found += rows[start : start + 255].sum(axis=0, dtype=np.uint8)
    return found


def _weights(weights: Any, n: int) -> FloatArray | None:
    if weights is None:
        return None
    found = np.asarray(weights, np.float64)
    if found.shape != (n,) or not np.all(np.isfinite(found)) or np.any(found < 0):
        raise InputError("weights must be one finite number a record, none below 0")
    return found


def _centre(centre: Any, n: int) -> FloatArray | None:
    if centre is None:
        return None
    found = np.asarray(centre, np.float64)
    if found.shape != (n,) or not np.all(np.isfinite(found)):
        raise InputError("centre must be one finite number a record: a reference must not give a record density 0")
    return found


def _limit(limit: float | None) -> float | None:
    if limit is not None and not (np.isfinite(limit) and limit > 0):
        raise InputError("limit must be a finite number of nats above 0")
    return None if limit is None else float(limit)


def _arrays(tree: xr.DataTree, variable: str | None, record_dim: str | None) -> list[xr.DataArray]:
    """Return log-likelihoods with dims chain, draw, the records' dim, and any others."""
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
    found = [_in_order(name, group[name], record_dim) for name in names]
    if len({array.dims[2] for array in found}) != 1:
        raise InputError(
            "the variables of the log_likelihood group have different dims of records; pass variable=..., or rename "
            "the dims if they count the same records"
        )
    if any(size == 0 for array in found for size in array.shape):
        raise InputError("the log_likelihood group has no records or no draws")
    return found


def _in_order(name: str, array: xr.DataArray, record_dim: str | None) -> xr.DataArray:
    others = [str(dim) for dim in array.dims if dim not in ("chain", "draw")]
    if "chain" not in array.dims or "draw" not in array.dims:
        raise InputError(f"log_likelihood variable {name!r} must have dims chain and draw")
    records = record_dim if record_dim is not None else others[0] if len(others) == 1 else None
    if records not in others:
        raise InputError(
            f"log_likelihood variable {name!r} has dims {', '.join(others) or 'none'} besides chain and draw; say which "
            "one counts records by record_dim=..."
        )
    return array.transpose("chain", "draw", records, ...)


def _piece(array: xr.DataArray, chain: int, draws: slice) -> FloatArray:
    part = array.isel(chain=chain, draw=draws).to_numpy().astype(np.float64)
    return part.reshape(*part.shape[:2], -1).sum(axis=2) if part.ndim > 2 else part


def _chunks(chains: int, n_draws: int, chunk: int) -> Iterator[tuple[int, int, int]]:
    for chain in range(chains):
        for start in range(0, n_draws, chunk):
            yield chain, start, min(start + chunk, n_draws)


def _moves(chains: FloatArray) -> bool:
    return chains.shape[1] >= FEWEST_DRAWS and bool(np.all(np.isfinite(chains))) and float(np.ptp(chains)) > 0


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _five(values: NDArray[Any]) -> dict[str, float | None]:
    words = ("min", "quarter", "median", "three_quarters", "max")
    found = np.quantile(values, (0, 0.25, 0.5, 0.75, 1), method="inverted_cdf")
    return {word: _number(value) for word, value in zip(words, found, strict=True)}
