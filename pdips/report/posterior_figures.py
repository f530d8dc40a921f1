"""Figures of a posterior for the curator's report, and the folder ``diagnostics`` that they are drawn from.

All of it is confidential: where a figure shows dots, each is a record. ArviZ, which takes long to import, is loaded
for chains only.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import ArrayLike

from pdips.arrays import FloatArray
from pdips.data.schema import Column, Schema
from pdips.errors import InputError
from pdips.posterior.model_file import stored_name
from pdips.release.documents import PosteriorSummary
from pdips.report.figures import ACCENT, BAR, INK, QUIET, SERIES, as_svg, fit, panel, styled
from pdips.report.formats import number, percent, plural

if TYPE_CHECKING:
    import xarray as xr

Figures = list[tuple[str, ...]]  # Titles, figures, and for some a number beside the title

MOST_PARAMETERS = 12
MOST_COLUMNS = 6
MOST_PAIRS = 6
FEW_RELEASED = 3
PAIRED = 400  # Draws of a pair of parameters that are drawn, beside divergent ones
FEWEST_PAIRED = 20
PRIOR_ENDS = 1.5  # How far beyond the posterior a prior is drawn, in ranges of the posterior
MOST_DOTS = 1_500
DOT_SEED = 4
FEWEST_RANKED = 20
BARS = 30
PLACES = 170, 110  # Places across and up: records that share one share a dot, so that a figure of a million stays small
BAND = 0.99  # Probability with which all of a parameter's lines lie within the band
MOST_RANKED = 250  # Draws of a chain whose ranks are drawn
POINTS = 100
SIMULATIONS = 500
EVERY = 4  # Of the points of a curve, one in so many is drawn
MOST_NAMED = 6
LONGEST = 12
MOST_ENTRIES = 300
MOST_SD = 6.0  # Noisy numbers further off than this are drawn at the edge


def write_tree(tree: "xr.DataTree", folder: Path) -> None:
    """Write the groups of a tree into a new folder, a netCDF file each, in types and letters that netCDF 3 has."""
    folder.mkdir(mode=0o700)
    for name, group in tree.children.items():
        dataset = group.to_dataset()
        kept = {key: dataset[key].variable for key in dataset.data_vars}
        for key, values in kept.items():
            if values.dtype.kind in "biu":
                small = np.abs(values.to_numpy().astype(float)).max(initial=0) < 2**31
                kept[key] = values.astype(np.int8 if values.dtype.kind == "b" else np.int32 if small else np.float64)
        _renamed(dataset.assign(kept), quote).to_netcdf(folder / f"{name}.nc", engine="scipy")


def read_tree(folder: Path) -> "xr.DataTree":
    """Return the tree that :func:`write_tree` wrote: confidential."""
    import xarray as xr

    held = {file.stem: xr.load_dataset(file, engine="scipy") for file in folder.glob("*.nc")}
    return xr.DataTree.from_dict({name: _renamed(dataset, unquote) for name, dataset in held.items()})


def _renamed(dataset: "xr.Dataset", spell: Callable[[str], str]) -> "xr.Dataset":
    """Return a dataset whose variables and dimensions are spelled anew, as far as they change."""
    names = {str(name) for name in (*dataset.variables, *dataset.dims) if not str(name).isascii() or "%" in str(name)}
    return dataset.rename({name: spell(name) for name in sorted(names)}) if names else dataset


def posterior_figures(
    path: Path, posterior: PosteriorSummary | None, schema: Schema
) -> tuple[dict[str, Figures], list[float]]:
    """Read a folder ``diagnostics`` and draw what is in it, by kind, and each chain's BFMI, if energies were kept.

    Columns that the model describes come before public ones. Folders of earlier versions lack some groups.
    """
    if posterior is None or not path.is_dir():
        return {}, []
    try:
        tree = read_tree(path)
        draws = _draws(tree, posterior)
        stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree.children else None
        energy = energies(stats)
        priors = _draws(tree, posterior, "prior") if "prior" in tree.children else []
        parameters: Figures = []
        for place, (each, parameter) in enumerate(zip(draws, posterior.parameters, strict=False)):
            prior = priors[place] if priors else None
            released = [value for value in parameter.released if value is not None]
            figure = draws_of_parameter(each, released, parameter.name, f"parameter {place}", prior)
            spread = 0.0 if prior is None else prior.std()
            narrower = [f"sd {percent(each.std() / spread)} of prior's"] if spread else []
            parameters.append((parameter.name, figure, *narrower))
        divergent = None if stats is None or "diverging" not in stats else stats["diverging"].transpose("chain", "draw")
        return {
            "parameters": parameters,
            "pairs": _pairs(draws, posterior, None if divergent is None else divergent.to_numpy()),
            "ranks": _ranks(draws, posterior),
            "energy": [] if energy is None else [("energy", energy_figure(energy, "energy"))],
            "predicted": _predicted(tree, posterior, schema),
            "bounds": list(_bounds(tree["pdips"].to_dataset(), schema)) if "pdips" in tree.children else [],
        }, ([] if energy is None else bfmi(energy))
    except (OSError, KeyError, IndexError, TypeError, ValueError, RuntimeError, StopIteration):
        raise InputError(f"{path} is damaged") from None


def _draws(tree: "xr.DataTree", posterior: PosteriorSummary, group: str = "posterior") -> list[FloatArray]:
    """Return the draws of the parameters that are drawn, (chains, draws) each."""
    held = tree[group].to_dataset()
    arrays = {str(name): array.transpose("chain", "draw", ...).to_numpy() for name, array in held.items()}
    elements = {name: iter(array.reshape(*array.shape[:2], -1).transpose(2, 0, 1)) for name, array in arrays.items()}
    return [next(elements[parameter.name.partition("[")[0]]) for parameter in posterior.parameters[:MOST_PARAMETERS]]


@styled
def draws_of_parameter(
    draws: FloatArray, released: Sequence[float], name: str, key: str, prior: FloatArray | None = None
) -> str:
    """Draw a parameter's draws as a histogram, a line for each chain; the released values dashed, the prior filled."""
    figure, axes = panel(name, "share of draws")
    low, high = np.quantile(draws, [0.0005, 0.9995])
    bars, ends = BARS, PRIOR_ENDS * (high - low)
    if prior is not None and ends > 0:
        first, last = np.quantile(prior, [0.01, 0.99])
        low, high, bars = min(low, max(first, low - ends)), max(high, min(last, high + ends)), 2 * BARS
    edges = np.linspace(low, high if high > low else low + 1, bars + 1)
    if prior is not None:
        axes.stairs(np.histogram(prior, edges)[0] / prior.size, edges, fill=True, color=BAR, alpha=0.7)
    for chain, row in enumerate(draws):
        axes.stairs(np.histogram(row, edges)[0] / draws.shape[1], edges, color=SERIES[chain % len(SERIES)], linewidth=1)
    for value in released:  # many are strokes at the foot
        axes.axvline(value, 0, 1 if len(released) <= FEW_RELEASED else 0.12, color=INK, linewidth=1, linestyle="--")
    axes.set_ylim(0, None)
    lines = "a line for each chain; " if len(draws) > 1 else ""
    filled = "" if prior is None else "; filled: the prior"
    return as_svg(figure, f"Draws of {name}, {lines}the dashed line is what was released{filled}", key)


def _pairs(draws: list[FloatArray], posterior: PosteriorSummary, divergent: FloatArray | None) -> Figures:
    """Return figures of the pairs of parameters with the largest correlations."""
    moving = [place for place, each in enumerate(draws) if each.std() > 0 and each.size >= FEWEST_PAIRED]
    names = [parameter.name for parameter in posterior.parameters]
    found = {(a, b): float(np.corrcoef(draws[a].ravel(), draws[b].ravel())[0, 1]) for a, b in combinations(moving, 2)}
    return [
        (
            f"{names[a]} and {names[b]}",
            pair_figure(draws[a], draws[b], (names[a], names[b]), divergent, f"pair {a} {b}"),
            f"r = {number(found[a, b])}",
        )
        for a, b in sorted(found, key=lambda pair: -abs(found[pair]))[:MOST_PAIRS]
    ]


@styled
def pair_figure(x: FloatArray, y: FloatArray, names: tuple[str, str], divergent: FloatArray | None, key: str) -> str:
    """Draw draws of two parameters as dots, as far apart in the chains as they can be, and all divergent ones."""
    figure, axes = panel(*names, margins=(62, 10, 40, 13))
    every = np.linspace(0, x.size - 1, min(x.size, PAIRED)).astype(int)
    axes.plot(*places(x.ravel()[every], y.ravel()[every]), ".", markersize=4, color=ACCENT, alpha=0.6)
    label = f"Draws of {names[0]} and {names[1]}"
    if divergent is not None and divergent.any():
        at = divergent.astype(bool)
        axes.plot(*places(x[at], y[at]), "D", markersize=4.5, color=SERIES[3])
        label += f"; diamonds: {plural(int(at.sum()), 'divergent draw')}"
    return as_svg(figure, label, key)


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
    return [float(value) for value in import_module("arviz_stats").bfmi(energy)["energy"].to_numpy()]


@styled
def energy_figure(energy: "xr.Dataset", key: str) -> str:
    """Draw how energies are distributed, and how their changes from draw to draw are, by ArviZ's density estimate."""
    stats: Any = import_module("arviz_stats.base").array_stats
    figure, axes = panel("energy, from its mean", "density")
    values = energy["energy"].to_numpy()
    lines = {"energy": values - values.mean(), "change from draw to draw": np.diff(values, axis=1)}
    for name, colour, style in zip(lines, (ACCENT, SERIES[1]), ("-", "--"), strict=True):
        grid, density, _ = stats.kde(lines[name].ravel())
        axes.plot(grid[::EVERY], density[::EVERY], style, color=colour, linewidth=1.5, label=name)
    axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
    axes.legend(frameon=False, fontsize=9.5, labelcolor=QUIET, loc="upper right")
    return as_svg(figure, "How energies and their changes from draw to draw are distributed over all chains", key)


def _ranks(each: list[FloatArray], posterior: PosteriorSummary) -> Figures:
    """Return figures of chains' ranks; parameters that never move have none."""
    if posterior.chains < 2 or not each or each[0].shape[1] < FEWEST_RANKED:
        return []
    known = [parameter.ess_bulk for parameter in posterior.parameters[: len(each)] if parameter.ess_bulk is not None]
    every = stride(each[0].shape, min(known, default=None))
    return [
        (parameter.name, rank_figure(draws[:, ::every], parameter.name, f"ranks {place}"))
        for place, (draws, parameter) in enumerate(zip(each, posterior.parameters, strict=False))
        if draws.std() > 0
    ]


@styled
def rank_figure(draws: FloatArray, name: str, key: str) -> str:
    """Draw how far the ranks of each chain are from uniform, with the band that holds them if chains agree.

    Ranks are those of draws among the draws of all chains, after Säilynoja et al. (2022), as ArviZ's ``plot_rank`` has
    them: differences of distribution functions from the uniform one, with a band for independent draws.
    """
    x = np.linspace(0, 1, POINTS + 1)
    figure, axes = panel("rank among the draws of all chains, as a share", "share below, minus rank")
    lower, upper = _band(draws.shape[1], len(draws))
    axes.fill_between(x, lower, upper, color=BAR, alpha=0.35, linewidth=0)
    axes.axhline(0, color=INK, linewidth=0.5)
    for chain, line in enumerate(_differences(draws, x)):
        axes.plot(x, line, color=SERIES[chain % len(SERIES)], linewidth=1)
    label = (
        f"Ranks of {name}: a line for each of {len(draws)} chains; the band holds all of them with probability {BAND}"
    )
    return as_svg(figure, f"{label} if the chains agree", key)


def stride(shape: Sequence[int], effective: float | None) -> int:
    """Return how far apart draws are nearly independent, for chains of a shape with so many effective draws in all."""
    chains, draws = shape
    wanted = min(max((effective or 0.0) / chains, 2.0), MOST_RANKED)
    return max(1, min(math.ceil(draws / wanted), draws // 2))


def _differences(kept: FloatArray, x: FloatArray) -> FloatArray:
    """Return each chain's distribution function of relative ranks, minus the uniform one, shape (chains, points)."""
    stats: Any = import_module("arviz_stats.base").array_stats
    ranks = stats.compute_ranks(kept.ravel(), relative=True).reshape(kept.shape)
    below = np.stack([np.searchsorted(np.sort(row), x, side="right") for row in ranks])
    return np.asarray(below / kept.shape[1] - x)


@lru_cache(maxsize=32)
def _band(n_draws: int, n_chains: int) -> tuple[FloatArray, FloatArray]:
    """Return the simultaneous band for the differences at ``POINTS`` ranks, by ArviZ's simulation."""
    module: Any = import_module("arviz_stats.ecdf_utils")
    x = np.linspace(0, 1, n_draws)
    at, _, lower, upper = module.ecdf_pit(x, BAND, SIMULATIONS, n_chains=n_chains, rng=np.random.default_rng(7))
    points = np.linspace(0, 1, POINTS + 1)
    return np.interp(points, at, lower - at), np.interp(points, at, upper - at)


def _predicted(tree: "xr.DataTree", posterior: PosteriorSummary, schema: Schema) -> Figures:
    if not {"posterior_predictive", "observed_data"} <= set(tree.children):
        return []
    simulated, observed = (tree[name].to_dataset() for name in ("posterior_predictive", "observed_data"))
    if posterior.records is None:
        return [("all noisy statistics", _statistics(simulated, observed))] if len(observed.data_vars) else []
    found: Figures = []
    for place, row in enumerate(posterior.records.columns):
        shares = simulated[f"column_{place}"].transpose("chain", "draw", ...).to_numpy()[0]
        parts = observed[f"column_{place}"].to_numpy(), shares, observed[f"edges_{place}"].to_numpy()
        found.append((row.name, _column(*parts, row.name, schema.columns[row.name], f"predicted {place}")))
    return found


@styled
def _column(observed: FloatArray, simulated: FloatArray, edges: FloatArray, name: str, column: Column, key: str) -> str:
    """Draw a column: bars for the table's shares, a thin line for each draw's."""
    figure, axes = panel(f"{name} ({column.unit})" if column.unit else name, "share of records")
    axes.stairs(observed, edges, fill=True, color=BAR, alpha=0.7)
    for row in simulated:
        axes.stairs(row, edges, color=ACCENT, linewidth=0.6, alpha=0.6, baseline=None)
    if column.is_categorical and column.n_levels <= MOST_NAMED:  # of many levels only the numbers stand there
        room = max(4, LONGEST * 4 // column.n_levels)
        axes.set_xticks(range(column.n_levels), [fit(level, room) for level in column.names()])
    axes.set_ylim(0, None)
    label = f"Shares of {name} in the table, and in records drawn from the model at {len(simulated)} draws"
    return as_svg(figure, label, key)


@styled
def _statistics(simulated: "xr.Dataset", observed: "xr.Dataset") -> str:
    """Draw noisy numbers in standard deviations of the simulated ones, and the middle 95 % of these."""
    from matplotlib.ticker import MaxNLocator

    values, drawn = [], []
    for name in observed.data_vars:
        entries = simulated[name].transpose("chain", "draw", ...).to_numpy()
        drawn.append(entries.reshape(entries.shape[0] * entries.shape[1], -1))
        values.append(observed[name].to_numpy().ravel())
    each, noisy = np.concatenate(drawn, axis=1), np.concatenate(values)
    spread = each.std(axis=0)
    moving = spread > 0
    middle, spread = each.mean(axis=0)[moving], spread[moving]
    low, high = ((quantile[moving] - middle) / spread for quantile in np.quantile(each, [0.025, 0.975], axis=0))
    places = np.arange(len(noisy))[moving]
    off = np.clip((noisy[moving] - middle) / spread, -MOST_SD, MOST_SD)
    kept = np.sort(np.argsort(-np.abs(off), kind="stable")[:MOST_ENTRIES])
    figure, axes = panel("number, in the order of the table above", "off the mean, in sd")
    axes.vlines(places[kept], low[kept], high[kept], color=BAR, linewidth=max(1.0, min(6.0, 180 / max(len(kept), 1))))
    axes.axhline(0, color=INK, linewidth=0.5)
    beyond = (off < low) | (off > high)
    for which, marker in ((~beyond, "o"), (beyond, "D")):
        shown = kept[which[kept]]
        axes.plot(places[shown], off[shown], marker, color=ACCENT, markersize=4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label = f"{len(noisy)} noisy numbers against the middle 95 % of simulated ones; {int(beyond.sum())} lie outside"
    return as_svg(figure, label, "predicted statistics")


def _bounds(group: "xr.Dataset", schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield the figures of records' bounds and weights; of many records some are drawn, with the largest bound."""
    largest = group["largest"].to_numpy()
    kept = np.arange(len(largest))
    if len(largest) > MOST_DOTS:
        kept = np.random.default_rng(DOT_SEED).choice(len(largest), MOST_DOTS - 1, replace=False)
        kept = np.unique(np.append(kept, np.argmax(largest)))
    limit = float(group.attrs["limit"]) if "limit" in group.attrs else None
    values = {
        f"{name} (number of the level)" if column.is_categorical else name: group[stored_name(f"value_{name}")]
        for name, column in sorted(schema.columns.items(), key=lambda item: item[1].public)[:MOST_COLUMNS]
    }
    shown: dict[str, tuple[FloatArray, str, float | None]] = {"bound": (largest, "bound of the record (nats)", limit)}
    if "weights" in group:
        shown["weight"] = group["weights"].to_numpy(), "weight", None
    for kind, (of, what, line) in shown.items():
        for title, across in values.items():
            figure = against_value(of[kept], across.to_numpy()[kept], title, f"{kind} {title}", what, line)
            yield f"{kind} against {title}", figure
    if "share_by_draw" in group and group["share_by_draw"].size:
        yield "records cut off, by draw", censored_by_draw(group["share_by_draw"].to_numpy(), "censored")


@styled
def against_value(of: ArrayLike, values: ArrayLike, name: str, key: str, what: str, limit: float | None = None) -> str:
    """Draw each record's bound or weight against its value of a column, and the limit as a dashed line."""
    figure, axes = panel(name, what)
    finite = np.isfinite(of)
    at = places(np.asarray(values)[finite], np.asarray(of)[finite])
    axes.plot(*at, linestyle="", marker=".", markersize=4, color=ACCENT)
    if limit is not None:
        axes.axhline(limit, color=INK, linewidth=1, linestyle="--")
    axes.set_ylim(0, None)
    label = f"{what.partition(' ')[0].capitalize()} of each record against {name}"
    return as_svg(figure, f"{label}{'' if limit is None else '; the dashed line is the limit'}", key)


@styled
def censored_by_draw(share_by_draw: FloatArray, key: str) -> str:
    """Draw the share of records beyond the limit at each draw, a line for each chain."""
    figure, axes = panel("draw", "share of records censored")
    for chain, shares in enumerate(share_by_draw):
        axes.plot(np.arange(len(shares)), shares, color=SERIES[chain % len(SERIES)], linewidth=0.75)
    axes.set_ylim(0, None)
    return as_svg(figure, "Share of records censored at each draw, a line for each chain", key)


def places(x: ArrayLike, y: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return the occupied places of a fine grid whose outermost places are the outermost records'."""
    rounded = np.stack([_round(np.asarray(x, float), PLACES[0]), _round(np.asarray(y, float), PLACES[1])], axis=1)
    kept = np.unique(rounded, axis=0)
    return kept[:, 0], kept[:, 1]


def _round(values: FloatArray, n_places: int) -> FloatArray:
    low, high = (values.min(), values.max()) if len(values) else (0.0, 0.0)
    step = (high - low) / n_places or 1.0
    return np.asarray(low + np.round((values - low) / step) * step)
