"""Pictures of chains by ArviZ's statistics: ranks and energies. Its libraries take long to import: only for chains."""

import math
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pdips.report.bounds import panel
from pdips.report.pictures import ACCENT, BAR, INK, QUIET, SERIES, as_svg

if TYPE_CHECKING:
    import xarray as xr

BAND = 0.99
"""Probability with which all of a parameter's lines lie within the band."""

MOST_RANKED = 250
"""Draws of a chain whose ranks are drawn."""

POINTS = 100
SIMULATIONS = 500
EVERY = 4
"""Of the points of a curve, one in so many is drawn."""


def energies(sample_stats: "xr.Dataset | None") -> "xr.Dataset | None":
    """Return the energies of chains, (chain, draw), if they were kept and move."""
    if sample_stats is None or "energy" not in sample_stats:
        return None
    kept = sample_stats[["energy"]].transpose("chain", "draw")
    values = kept["energy"].to_numpy()
    usable = values.shape[1] > 1 and np.isfinite(values).all() and (values.var(axis=1) > 0).all()
    return kept if usable else None


def bfmi(energy: "xr.Dataset") -> list[float]:
    """Return the Bayesian fraction of missing information of each chain (Betancourt 2016), by ArviZ."""
    found: NDArray[Any] = import_module("arviz_stats").bfmi(energy)["energy"].to_numpy()
    return [float(value) for value in found]


def energy_picture(energy: "xr.Dataset", key: str) -> str:
    """Draw ArviZ's plot of energies: how they are distributed, and how their changes from draw to draw are."""
    import xarray as xr

    az: Any = import_module("arviz_plots")
    figure, axes = panel("energy, from its mean", "density")
    kinds = xr.Dataset({"Energy": ("energy", np.zeros(2))}, {"energy": ["marginal", "transition"]})
    # On a figure of our own: one of pyplot's would join those of a notebook, and stay.
    home = {"/": _held("figure", figure), "/plot": _held("Energy", axes)}
    collection = az.PlotCollection(
        kinds.expand_dims(chain=1, draw=1),
        xr.DataTree.from_dict(home),
        aes={"color": ["energy"]},
        backend="matplotlib",
        color=[ACCENT, SERIES[1]],
    )
    plain = {"title": False, "legend": False, "remove_axis": False, "face": False}
    tree = xr.DataTree.from_dict({"sample_stats": energy})
    az.plot_energy(tree, plot_collection=collection, show_bfmi=False, visuals=plain)
    for line, name, style in zip(axes.lines, ("energy", "change from draw to draw"), ("-", "--"), strict=True):
        line.set_data(*(np.asarray(part)[::EVERY] for part in line.get_data()))
        line.set(label=name, linestyle=style, linewidth=1.5)
    low, high = axes.get_ylim()
    axes.set_ylim(0, high + 0.25 * (high - low))
    axes.legend(frameon=False, fontsize=8.5, labelcolor=QUIET, loc="upper right")
    return as_svg(figure, "How energies and their changes from draw to draw are distributed over all chains", key)


def _held(name: str, thing: Any) -> "xr.Dataset":
    import xarray as xr

    held = np.empty((), dtype=object)
    held[()] = thing
    return xr.Dataset({name: xr.DataArray(held)})


def rank_picture(draws: NDArray[Any], name: str, stride: int, key: str) -> str:
    """Draw how far the ranks of each chain are from uniform, with the band that holds them if chains agree.

    Ranks are those of draws among the draws of all chains, after Säilynoja et al. (2022), as ArviZ's ``plot_rank`` has
    them: differences of distribution functions from the uniform one, with a band for independent draws.

    Parameters
    ----------
    draws : ndarray, shape (chains, draws)
        Of one parameter.
    name : str
        Of the parameter.
    stride : int
        One draw in so many is taken, see :func:`stride`.
    key : str
        Unlike any other picture's on the page.
    """
    kept = draws[:, ::stride]
    x = np.linspace(0, 1, POINTS + 1)
    figure, axes = panel("rank among the draws of all chains, as a share", "share below, minus rank")
    lower, upper = _band(kept.shape[1], len(kept))
    axes.fill_between(x, lower, upper, color=BAR, alpha=0.35, linewidth=0)
    axes.axhline(0, color=INK, linewidth=0.5)
    for chain, line in enumerate(_differences(kept, x)):
        axes.plot(x, line, color=SERIES[chain % len(SERIES)], linewidth=1)
    label = (
        f"Ranks of {name}: a line for each of {len(kept)} chains; the band holds all of them with probability {BAND}"
    )
    return as_svg(figure, f"{label} if the chains agree", key)


def stride(shape: Sequence[int], effective: float | None) -> int:
    """Return how far apart draws are nearly independent, for chains of a shape with so many effective draws in all."""
    chains, draws = shape
    wanted = min(max((effective or 0.0) / chains, 2.0), MOST_RANKED)
    return max(1, min(math.ceil(draws / wanted), draws // 2))


def _differences(kept: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
    """Return each chain's distribution function of relative ranks, minus the uniform one, shape (chains, points)."""
    import xarray as xr

    import_module("arviz_stats")
    held = xr.Dataset({"x": (("chain", "draw"), kept)})
    ranks = held.azstats.compute_ranks(dim=["chain", "draw"], relative=True)["x"].transpose("chain", "draw").to_numpy()
    below = np.stack([np.searchsorted(np.sort(row), x, side="right") for row in ranks])
    found: NDArray[Any] = below / kept.shape[1] - x
    return found


@lru_cache(maxsize=32)
def _band(n_draws: int, n_chains: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the simultaneous band for the differences at ``POINTS`` ranks, by ArviZ's simulation."""
    module: Any = import_module("arviz_stats.ecdf_utils")
    x = np.linspace(0, 1, n_draws)
    at, _, lower, upper = module.ecdf_pit(x, BAND, SIMULATIONS, n_chains=n_chains, rng=np.random.default_rng(7))
    points = np.linspace(0, 1, POINTS + 1)
    return np.interp(points, at, lower - at), np.interp(points, at, upper - at)
