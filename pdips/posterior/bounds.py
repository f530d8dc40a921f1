"""How far records' log-likelihoods move over the draws of a posterior, and what is to be said of it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import arviz as az
import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.posterior.certificate import in_words

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
    draws_beyond: IntArray
    largest_by_draw: FloatArray
    records_beyond: IntArray
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


def _moves(chains: FloatArray) -> bool:
    return chains.shape[1] >= FEWEST_DRAWS and bool(np.all(np.isfinite(chains))) and float(np.ptp(chains)) > 0


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _five(values: NDArray[Any]) -> dict[str, float | None]:
    words = ("min", "quarter", "median", "three_quarters", "max")
    found = np.quantile(values, (0, 0.25, 0.5, 0.75, 1), method="inverted_cdf")
    return {word: _number(value) for word, value in zip(words, found, strict=True)}
