"""How far each record's log-likelihood moves over the draws of a posterior, and what
that certifies.

Computed from the confidential records, and no epsilon pays for it: inside only.
``docs/diagnostics.md`` is its page.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray, finite
from pdips.convergence import RHAT
from pdips.errors import InputError
from pdips.posterior.columns import Values
from pdips.posterior.streams import MOST_AT_ONCE, Draws, slices, stream

# Draws a chain below which ArviZ gives neither R-hat nor effective numbers
FEWEST_DRAWS = 4
NAN = float("nan")


class Tally:
    """What is kept of log-likelihoods while they come by: extremes, sums and counts, by
    record and by draw.
    """

    def __init__(
        self,
        n: int,
        n_draws: tuple[int, int],  # chains, and draws of each
        weights: FloatArray | None,
        centre: FloatArray | None,
        limit: float | None,
        counts: IntArray | None = None,
    ) -> None:
        self.counts = np.ones(n, np.int64) if counts is None else counts
        wanted = "weights must be one finite number a record, none below 0"
        self.weights = _each(weights, n, 1.0, wanted, least=0.0)
        wanted = (
            "centre must be one finite number a record: a reference must not "
            "give a record density 0"
        )
        self.centre = _each(centre, n, 0.0, wanted)
        self.limit = None if limit is None else float(limit)
        if self.limit is not None and not 0 < self.limit < np.inf:
            raise InputError("limit must be a finite number of nats above 0")
        self.weighted = weights is not None
        # of each draw; how many
        chains, n_each = n_draws
        self.chains = np.repeat(np.arange(chains), n_each)
        self.lowest = np.full((chains, n), np.inf)
        self.highest = np.full((chains, n), -np.inf)
        self.total = np.zeros(n)
        self.draws_beyond = np.zeros(n)
        self.largest_by_draw = np.zeros(len(self.chains))
        self.records_beyond = np.zeros(len(self.chains), np.int64)

    def add(self, records: slice, draws: slice, found: FloatArray) -> None:
        """Take in the log-likelihoods of some records at some draws, shape (draws,
        records), which are overwritten.
        """
        weights = self.weights[records]
        with np.errstate(all="ignore"):
            found -= self.centre[records]
            found *= weights
            found[:, weights == 0] = 0.0
            if np.isnan(found.sum()):
                np.copyto(found, -np.inf, where=np.isnan(found))
        chains, first = np.unique(self.chains[draws], return_index=True)
        for chain, part in zip(chains, np.split(found, first[1:]), strict=True):
            _take(np.minimum, self.lowest[chain, records], part.min(axis=0))
            _take(np.maximum, self.highest[chain, records], part.max(axis=0))
        self.total[records] += found.sum(axis=0)
        sizes = np.abs(found, out=found)
        _take(np.maximum, self.largest_by_draw[draws], sizes.max(axis=1))
        if self.limit is not None:
            beyond = sizes > self.limit
            self.draws_beyond[records] += beyond.sum(axis=0)
            self.records_beyond[draws] += beyond @ self.counts[records]


def _take(extreme: np.ufunc, kept: FloatArray, seen: FloatArray) -> None:
    """Put the smaller or larger of what is kept and what was seen in place of what is
    kept, a view.
    """
    extreme(kept, seen, out=kept)


def _each(
    values: Any, n: int, usual: float, refusal: str, least: float = -np.inf
) -> FloatArray:
    """Return one finite number a record, shape (n,); ``usual`` where there are none."""
    numbers = np.full(n, usual) if values is None else np.asarray(values, np.float64)
    if numbers.shape != (n,) or not np.isfinite(numbers).all():
        raise InputError(refusal)
    if (numbers < least).any():
        raise InputError(refusal)
    return numbers


@dataclass(frozen=True, eq=False, repr=False)
class Bounds:
    """Bounds of ``u = alpha (log p(x | theta) - c)``, nats, over draws of ``theta``:
    confidential, all of it.

    A log-likelihood of minus infinity, or one that is no number, counts as infinitely
    large; with weight 0 a record contributes nothing, whatever its log-likelihood.
    """

    # shape (chains, records): the largest ``|u|`` over the draws of each chain, nats
    by_chain: FloatArray
    lowest: FloatArray  # shape (records,): of ``u`` over all draws, nats
    highest: FloatArray  # shape (records,): of ``u`` over all draws, nats
    mean: FloatArray  # shape (records,): of ``u`` over all draws, nats
    draws_beyond: IntArray  # shape (records,): draws at which ``|u| > limit``
    # shape (chains, draws): the largest ``|u|`` of all records at each draw
    largest_by_draw: FloatArray
    # shape (chains, draws): records with ``|u| > limit`` at each draw
    records_beyond: IntArray
    limit: float | None  # where a censored posterior would cut, nats; None for nowhere
    weighted: bool  # whether weights ``alpha`` were given
    # whether the draws are independent draws from the posterior; False for a Markov
    # chain's
    independent: bool

    def __repr__(self) -> str:
        return "Bounds(confidential: describe() and certifies() say what was found)"

    @classmethod
    def of(cls, tally: Tally, independent: bool) -> "Bounds":
        """Return the bounds of each record, out of what was kept of each row."""
        each = np.repeat(np.arange(len(tally.counts)), tally.counts)
        chains = len(tally.lowest)
        by_chain = np.maximum(tally.highest, -tally.lowest)
        mean = tally.total / len(tally.largest_by_draw)
        draws_beyond = tally.draws_beyond.astype(np.int64)
        return cls(
            by_chain=by_chain[:, each],
            lowest=tally.lowest.min(axis=0)[each],
            highest=tally.highest.max(axis=0)[each],
            mean=mean[each],
            draws_beyond=draws_beyond[each],
            largest_by_draw=tally.largest_by_draw.reshape(chains, -1),
            records_beyond=tally.records_beyond.reshape(chains, -1),
            limit=tally.limit,
            weighted=tally.weighted,
            independent=independent,
        )

    @cached_property
    def largest(self) -> FloatArray:
        """The largest ``|u|`` of each record over all draws, shape (records,), nats."""
        return self.by_chain.max(axis=0)

    @property
    def n_records(self) -> int:
        return len(self.largest)

    @property
    def n_draws(self) -> int:
        """Number of draws, of all chains."""
        return int(self.largest_by_draw.size)

    @property
    def overall(self) -> float:
        """The largest ``|u|`` of all records and draws, nats: Hu et al. (2022) estimate
        a Lipschitz bound by it.
        """
        return float(self.largest.max())

    @property
    def local_epsilon(self) -> float:
        """Hu et al.'s local ``epsilon_x``, twice the overall bound. Not a price: see
        :meth:`certifies`.
        """
        return 2 * self.overall

    @property
    def n_censored(self) -> int:
        """Number of records beyond the limit at one draw at least (Hu et al. 2022). It
        grows with the draws.
        """
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
        """R-hat of ``largest_by_draw``; NaN if it can't be said (too few draws, or a
        bound that never moves).
        """
        chains = self.largest_by_draw
        if len(chains) == 1:
            half = chains.shape[1] // 2
            chains = np.stack([chains[0, :half], chains[0, half : 2 * half]])
        return _by_arviz(az.rhat, chains)

    @cached_property
    def ess_bulk(self) -> float:
        """Effective number of draws of ``largest_by_draw``, for its middle; NaN if it
        can't be said.
        """
        return _by_arviz(az.ess, self.largest_by_draw, method="bulk")

    @cached_property
    def ess_tail(self) -> float:
        """Effective number of draws of ``largest_by_draw`` for its upper 5 percent; NaN
        if it can't be said.
        """
        return _by_arviz(az.ess, self.largest_by_draw, method="quantile", prob=0.95)

    @cached_property
    def upper_draws(self) -> tuple[float, float]:
        """The 95 % quantile of ``largest_by_draw``, nats, and its Monte Carlo standard
        error; NaN if not known.
        """
        error = _by_arviz(az.mcse, self.largest_by_draw, method="quantile", prob=0.95)
        return float(
            np.quantile(self.largest_by_draw, 0.95, method="inverted_cdf")
        ), error

    @property
    def chain_spread(self) -> FloatArray:
        """Largest less least bound over chains, as a share of the largest, shape
        (records,); NaN for one chain.
        """
        if len(self.by_chain) < 2:
            return np.full(self.n_records, NAN)
        gap = self.largest - self.by_chain.min(axis=0)
        with np.errstate(all="ignore"):
            return np.where(gap > 0, gap / self.largest, 0.0)

    @property
    def exceedance(self) -> float:
        """Bound on the probability that a further draw from this posterior goes beyond
        :attr:`overall`.

        ``1 / (S + 1)`` for ``S`` independent draws, by exchangeability. For a Markov
        chain ``S`` is its effective number (0 if it can't be said), which is customary
        and not a theorem.
        """
        draws: float = self.largest_by_draw.size
        if not self.independent:
            draws = float(np.nan_to_num(min(self.ess_bulk, self.ess_tail, draws)))
        return 1 / (draws + 1)

    def certifies(self) -> str:
        """Say in words what the bound certifies and what it doesn't."""
        mixed = bool(self.rhat < RHAT)
        limited = self.limit is not None
        parts = [
            "The bound is the largest |alpha_i (log p(x_i | theta_s) - c_i)| found "
            "over all records i and all draws s "
            "of this posterior."
        ]
        if not np.isfinite(self.overall):
            parts.append(
                "It is infinite: a record's log-likelihood at some draw is "
                "minus infinity or not a number."
            )
        if self.independent:
            parts.append(
                "The draws being independent, one more draw from the same posterior "
                "goes beyond the bound with "
                f"probability at most {self.exceedance:.2g}, one in the number of "
                f"draws plus one."
            )
        elif mixed:
            parts.append(
                "One more draw from the same posterior goes beyond the bound with "
                "probability of about "
                f"{self.exceedance:.2g} or less: one in the effective number of "
                f"draws plus one, which for a Markov "
                "chain is customary and not a theorem."
            )
        else:
            parts.append(
                "The chains do not agree on the bound, or are too short to tell "
                "(R-hat below 1.01 is asked for), so "
                "nothing can be said on how often a further draw would go beyond it."
            )
        if self.independent or mixed:
            parts.append(
                "So, for the removal of one record that is in the table, with "
                "weights and centre as they are, and "
                "outside a part of the posterior whose mass is expected to be no "
                "more than that, the log-likelihood's "
                "part of the privacy loss is at most the bound. Weights and centre "
                "must have been fixed before these "
                "draws were made, not computed from them."
            )
        parts.append(
            "It does not bound the change of the normalising constant, a record that "
            "is not in the table, any other "
            "table, the change of the weights when a record changes, or parameters "
            "that were not drawn. Twice the "
            "bound is what Hu et al. (2022) call epsilon_x: it describes this table "
            "and is no guarantee of "
            "differential privacy."
        )
        parts.append(
            "If the mechanism censors at the limit, each record's term is within the "
            "limit by construction and the "
            "guarantee follows from that alone; the bound here, of terms before they "
            "are censored, adds nothing to it. "
            "The share of censored records tells what the guarantee costs."
            if limited
            else "Nothing is censored: wherever the log-likelihood of a possible "
            "record is unbounded over the prior, "
            "no finite epsilon holds, however small the bound."
        )
        if self.weighted:
            how = "censored or not" if limited else "whatever the bound"
            parts.append(
                "Weights computed from the confidential records change for every "
                "record when one of them changes, and "
                f"no finite epsilon holds for such weights, {how}. Weights that are "
                f"a public function of one record "
                "are free of this."
            )
        parts.append(
            "The bound is itself computed from the records without noise: "
            "it must not be published."
        )
        return " ".join(parts)

    def describe(self) -> dict[str, Any]:
        """Return the findings as plain numbers and words, for ``run.json``:
        confidential. What is no number is None.
        """
        found: dict[str, Any] = {
            "records": self.n_records,
            "chains": len(self.largest_by_draw),
            "draws": self.n_draws,
            "independent": self.independent,
            "weighted": self.weighted,
            "bound": finite(self.overall),
            "epsilon_x": finite(self.local_epsilon),
            "bounds_of_records": _five(self.largest),
            "bounds_of_draws": _five(self.largest_by_draw),
            "bounds_of_chains": [*map(finite, self.largest_by_draw.max(axis=1))],
            "spread_over_chains": _five(self.chain_spread),
            "upper_draws": dict(
                zip(
                    ("quantile_95", "monte_carlo_error"),
                    map(finite, self.upper_draws),
                    strict=True,
                )
            ),
            "rhat": finite(self.rhat),
            "ess_bulk": finite(self.ess_bulk),
            "ess_tail": finite(self.ess_tail),
            "exceedance": self.exceedance,
            "certifies": self.certifies(),
        }
        if self.limit is not None:
            censored = {
                "records": self.n_censored,
                "share": self.share_censored,
                "by_draw": _five(self.share_by_draw),
            }
            found |= {"limit": self.limit, "censored": censored}
        return found

    def to_tree(self) -> xr.DataTree:
        """Return a tree whose group ``pdips`` has the bounds by record and by draw:
        confidential.
        """
        of_records = {
            name: ("record", getattr(self, name))
            for name in ("largest", "lowest", "highest", "mean")
        }
        of_draws = {"largest_by_draw": (("chain", "draw"), self.largest_by_draw)}
        if self.limit is not None:
            of_records["draws_beyond"] = ("record", self.draws_beyond)
            of_draws["share_by_draw"] = (("chain", "draw"), self.share_by_draw)
        about = {
            "confidential": "computed from the records, and no epsilon pays for it",
            "certifies": self.certifies(),
        }
        about |= {} if self.limit is None else {"limit": self.limit}  # type: ignore[dict-item]
        return xr.DataTree.from_dict(
            {"pdips": xr.Dataset(of_records | of_draws, attrs=about)}
        )


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
        As ``Blueprint.build`` returns it, or any whose observed variables have one
        value a record along their first axis. Its potentials are no part of any
        record's likelihood.
    values : mapping of str to ndarray, shape (records, ...), or None
        Columns by name, for the model's ``pm.Data``; what is left out is taken from the
        model.
    draws : mapping of str to ndarray, shape (draws, ...), or xarray.DataTree
        Free variables or their transformed value variables by name; or a tree with a
        ``posterior`` group, whose chains are kept apart.
    weights : ndarray, shape (records,), optional
        ``alpha``, 1 by default.
    centre : ndarray, shape (records,), optional
        ``c``, nats, 0 by default.
    limit : float, optional
        Half-width of the window of a censored posterior, nats.
    independent : bool
        Whether the draws are independent draws from the posterior, as those on a grid
        are.
    mode : str, optional
        PyTensor's mode of compilation.

    Raises
    ------
    InputError
        If the model has no observed variable or not one log-likelihood a record, a
        parameter lacks draws, columns differ in length, or weights, centre or limit are
        not what they should be.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:
    ...     level = pm.Normal("level", 0, 1)
    ...     height = pm.Normal("height", level, 1, observed=np.array([-1.0, 0.0, 2.0]))
    >>> bounds = stream_bounds(model, None, {"level": np.array([0.0, 0.5])}, limit=5)
    >>> bounds.largest.shape
    (3,)
    """
    pieces = stream(model, values, draws, mode=mode)
    chains = draws["posterior"].sizes["chain"] if isinstance(draws, xr.DataTree) else 1
    tally = Tally(
        pieces.n_records, (chains, pieces.n_draws // chains), weights, centre, limit
    )
    for piece in pieces.pieces():
        tally.add(*piece)
    return Bounds.of(tally, independent)


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
        With a group ``log_likelihood`` whose variables have dims chain, draw and one
        for records.
    variable : str, optional
        The one to take. By default all are summed record by record, which asks that
        they share the dim of records.
    record_dim : str, optional
        The dim of records, if there are others besides chain and draw: those are summed
        over.
    weights, centre, limit, independent
        As in :func:`stream_bounds`.

    Raises
    ------
    InputError
        If there is no such group or variable, or it can't be told which dim counts
        records.

    Examples
    --------
    >>> import xarray as xr
    >>> log_lik = xr.DataArray(
    ...     np.full((2, 50, 30), -1.0), dims=["chain", "draw", "record"]
    ... )
    >>> tree = xr.DataTree.from_dict({"log_likelihood": xr.Dataset({"y": log_lik})})
    >>> float(from_log_likelihood(tree, limit=2.5).largest.max())
    1.0
    """
    arrays, records = _arrays(tree, variable, record_dim)
    sizes = arrays[0].sizes
    n_records = sizes[records]
    chains = sizes["chain"]
    n_draws = sizes["draw"]
    tally = Tally(n_records, (chains, n_draws), weights, centre, limit)
    chunk = max(1, MOST_AT_ONCE // (2 * n_records))
    for chain, some in (
        (chain, some) for chain in range(chains) for some in slices(n_draws, chunk)
    ):
        found = sum(
            _piece(array.isel(chain=chain, draw=some), records) for array in arrays
        )
        draws = slice(chain * n_draws + some.start, chain * n_draws + some.stop)
        tally.add(slice(0, n_records), draws, np.ascontiguousarray(found))
    return Bounds.of(tally, independent)


def _arrays(
    tree: xr.DataTree, variable: str | None, record_dim: str | None
) -> tuple[list[xr.DataArray], str]:
    """Return log-likelihoods with dims chain, draw, that of the records, and any
    others; and that of the records.
    """
    if not isinstance(tree, xr.DataTree) or "log_likelihood" not in tree.children:
        raise InputError(
            "the tree has no log_likelihood group, such as pm.compute_log_likelihood "
            "adds, or log_likelihood=... where "
            "ArviZ converts draws of NumPyro and Stan; or give a model with a "
            "posterior group"
        )
    group = tree["log_likelihood"].to_dataset()
    names = [str(name) for name in group.data_vars] if variable is None else [variable]
    if not names or any(name not in group.data_vars for name in names):
        raise InputError(
            f"the log_likelihood group "
            f"{'has no such variable' if names else 'is empty'}"
        )
    dims = set()
    for name in names:
        others = [str(dim) for dim in group[name].dims if dim not in ("chain", "draw")]
        if len(others) != group[name].ndim - 2:
            raise InputError(
                f"log_likelihood variable {name!r} must have dims chain and draw"
            )
        if (record_dim is None and len(others) != 1) or record_dim not in (
            None,
            *others,
        ):
            raise InputError(
                f"log_likelihood variable {name!r} has dims "
                f"{', '.join(others) or 'none'} besides chain and draw; say "
                "which one counts records by record_dim=..."
            )
        dims.add(record_dim or others[0])
    if len(dims) != 1:
        raise InputError(
            "the variables of the log_likelihood group have different dims of "
            "records; pass variable=..., or rename "
            "the dims if they count the same records"
        )
    found = [group[name] for name in names]
    if any(array.size == 0 or array.dtype.kind not in "iuf" for array in found):
        raise InputError(
            "the log_likelihood group has no records or no draws, or "
            "does not consist of numbers"
        )
    return found, dims.pop()


def _piece(part: xr.DataArray, records: str) -> FloatArray:
    # Loaded before it is turned: what lies in a file and is turned would be read whole.
    found = part.load().transpose("draw", records, ...).to_numpy().astype(np.float64)
    return found.reshape(*found.shape[:2], -1).sum(axis=2) if found.ndim > 2 else found


def _by_arviz(measure: Any, chains: FloatArray, **how: Any) -> float:
    """Return what ArviZ says of chains; NaN of too few draws, and of those that never
    move or aren't finite.
    """
    known = (
        chains.shape[1] >= FEWEST_DRAWS
        and np.isfinite(chains).all()
        and np.ptp(chains) > 0
    )
    return float(measure(chains, **how)) if known else NAN


def _five(values: NDArray[Any]) -> dict[str, float | None]:
    words = ("min", "quarter", "median", "three_quarters", "max")
    found = np.quantile(values, (0, 0.25, 0.5, 0.75, 1), method="inverted_cdf")
    return {word: finite(value) for word, value in zip(words, found, strict=True)}
