"""Figures of a posterior for the curator's report, and the folder ``diagnostics`` that
they are drawn from.

All of it is confidential: where a figure shows dots, each is a record. ArviZ, which
takes long to import, is loaded for chains only.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import ArrayLike

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Column, Schema
from pdips.errors import InputError
from pdips.release.documents import PosteriorSummary
from pdips.release.tree import stored_name
from pdips.report.figures import (
    ACCENT,
    BAR,
    INK,
    QUIET,
    SERIES,
    as_svg,
    fit,
    panel,
    styled,
)
from pdips.report.formats import number, percent, plural
from pdips.report.noisy_numbers import furthest_of, titled_figure

if TYPE_CHECKING:
    import xarray as xr

# Titles, figures, and for some a number beside the title
Figures = list[tuple[str, ...]]

MOST_PARAMETERS = 12
MOST_COLUMNS = 6
MOST_PAIRS = 6
FEW_RELEASED = 3
PAIRED = 400  # Draws of a pair of parameters that are drawn, beside divergent ones
FEWEST_PAIRED = 20
# How far beyond the posterior a prior is drawn, in ranges of the posterior
PRIOR_ENDS = 1.5
MOST_DOTS = 1_500
DOT_SEED = 4
FEWEST_RANKED = 20
BARS = 30
# Places across and up: records that share one share a dot, so that a figure of a
# million stays small
PLACES = 170, 110
BAND = 0.99  # Probability with which all of a parameter's lines lie within the band
MOST_RANKED = 250  # Draws of a chain whose ranks are drawn
POINTS = 100
SIMULATIONS = 500
EVERY = 4  # Of the points of a curve, one in so many is drawn
MOST_NAMED = 6
LONGEST = 12


def write_tree(tree: "xr.DataTree", folder: Path) -> None:
    """Write the groups of a tree into a new folder, a netCDF file each, in types and
    letters that netCDF 3 has.
    """
    folder.mkdir(mode=0o700)
    for name, group in tree.children.items():
        dataset = group.to_dataset()
        kept = {}
        for key in dataset.data_vars:
            kept[key] = _storable(dataset[key].variable)
        renamed = _renamed(dataset.assign(kept), quote)
        renamed.to_netcdf(folder / f"{name}.nc", engine="scipy")


def _storable(values: "xr.Variable") -> "xr.Variable":
    """Return values in a type that netCDF 3 has."""
    kind = values.dtype.kind
    if kind not in "biu":
        return values
    if kind == "b":
        return values.astype(np.int8)
    largest = np.abs(values.to_numpy().astype(float)).max(initial=0)
    return values.astype(np.int32 if largest < 2**31 else np.float64)


def read_tree(folder: Path) -> "xr.DataTree":
    """Return the tree that :func:`write_tree` wrote: confidential."""
    import xarray as xr

    groups = {}
    for file in folder.glob("*.nc"):
        dataset = xr.load_dataset(file, engine="scipy")
        groups[file.stem] = _renamed(dataset, unquote)
    return xr.DataTree.from_dict(groups)


def _renamed(dataset: "xr.Dataset", spell: Callable[[str], str]) -> "xr.Dataset":
    """Return a dataset whose variables and dimensions are spelled anew, as far as they
    change.
    """
    names = [str(name) for name in (*dataset.variables, *dataset.dims)]
    changing = {name for name in names if not name.isascii() or "%" in name}
    if not changing:
        return dataset
    return dataset.rename({name: spell(name) for name in sorted(changing)})


def posterior_figures(
    path: Path, posterior: PosteriorSummary | None, schema: Schema
) -> tuple[dict[str, Figures], list[float]]:
    """Read a folder ``diagnostics`` and draw what is in it, by kind, and each chain's
    BFMI, if energies were kept.

    Columns that the model describes come before public ones. Groups that couldn't be
    worked out, or that a sampler doesn't have, are lacking.
    """
    if posterior is None or not path.is_dir():
        return {}, []
    try:
        return _drawn(read_tree(path), posterior, schema)
    except (
        OSError,
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        RuntimeError,
        StopIteration,
    ):
        raise InputError(f"{path} is damaged") from None


def _drawn(
    tree: "xr.DataTree", posterior: PosteriorSummary, schema: Schema
) -> tuple[dict[str, Figures], list[float]]:
    """Return the figures of a tree by kind, and each chain's BFMI."""
    groups = {name: group.to_dataset() for name, group in tree.children.items()}
    draws = _draws(groups["posterior"], posterior)
    priors = []
    if "prior" in groups:
        priors = _draws(groups["prior"], posterior)
    stats = groups.get("sample_stats")
    energy = energies(stats)
    figures: dict[str, Figures] = {
        "parameters": _parameters(draws, priors, posterior),
        "pairs": _pairs(draws, posterior, _divergent(stats)),
        "ranks": _ranks(draws, posterior),
        "energy": [],
        "predicted": _predicted(groups, posterior, schema),
        "bounds": [],
    }
    if "pdips" in groups:
        figures["bounds"] = list(_bounds(groups["pdips"], schema))
    if energy is None:
        return figures, []
    figures["energy"] = [("energy", energy_figure(energy, "energy"))]
    return figures, bfmi(energy)


def _divergent(sample_stats: "xr.Dataset | None") -> FloatArray | None:
    """Return which draws diverged, (chains, draws), where a sampler says so."""
    if sample_stats is None or "diverging" not in sample_stats:
        return None
    divergent = sample_stats["diverging"].transpose("chain", "draw")
    return divergent.to_numpy()


def _parameters(
    draws: list[FloatArray], priors: list[FloatArray], posterior: PosteriorSummary
) -> Figures:
    """Return a figure of each parameter, and how much narrower it is than its prior."""
    figures: Figures = []
    for place, parameter in enumerate(posterior.parameters[: len(draws)]):
        prior = priors[place] if priors else None
        released = [value for value in parameter.released if value is not None]
        key = f"parameter {place}"
        figure = draws_of_parameter(draws[place], released, parameter.name, key, prior)
        spread = 0.0 if prior is None else prior.std()
        if spread:
            narrower = f"sd {percent(draws[place].std() / spread)} of prior's"
            figures.append((parameter.name, figure, narrower))
        else:
            figures.append((parameter.name, figure))
    return figures


def _draws(group: "xr.Dataset", posterior: PosteriorSummary) -> list[FloatArray]:
    """Return the draws of the parameters that are drawn, (chains, draws) each."""
    elements = {}
    for name, variable in group.items():
        array = variable.transpose("chain", "draw", ...).to_numpy()
        by_element = array.reshape(*array.shape[:2], -1).transpose(2, 0, 1)
        elements[str(name)] = iter(by_element)
    draws = []
    for parameter in posterior.parameters[:MOST_PARAMETERS]:
        variable_name = parameter.name.partition("[")[0]
        draws.append(next(elements[variable_name]))
    return draws


@styled
def draws_of_parameter(
    draws: FloatArray,
    released: Sequence[float],
    name: str,
    key: str,
    prior: FloatArray | None = None,
) -> str:
    """Draw a parameter's draws as a histogram, a line for each chain; the released
    values dashed, the prior filled.
    """
    figure, axes = panel(name, "share of draws")
    edges = _edges(draws, prior)
    if prior is not None:
        heights = np.histogram(prior, edges)[0] / prior.size
        axes.stairs(heights, edges, fill=True, color=BAR, alpha=0.7)
    for chain, row in enumerate(draws):
        heights = np.histogram(row, edges)[0] / draws.shape[1]
        axes.stairs(heights, edges, color=SERIES[chain % len(SERIES)], linewidth=1)
    top = 1 if len(released) <= FEW_RELEASED else 0.12  # many are strokes at the foot
    for value in released:
        axes.axvline(value, 0, top, color=INK, linewidth=1, linestyle="--")
    axes.set_ylim(0, None)
    lines = "a line for each chain; " if len(draws) > 1 else ""
    filled = "" if prior is None else "; filled: the prior"
    label = f"Draws of {name}, {lines}the dashed line is what was released{filled}"
    return as_svg(figure, label, key)


def _edges(draws: FloatArray, prior: FloatArray | None) -> FloatArray:
    """Return the edges of a histogram, which shows the prior as far as it is near."""
    low, high = np.quantile(draws, [0.0005, 0.9995])
    bars = BARS
    beyond = PRIOR_ENDS * (high - low)
    if prior is not None and beyond > 0:
        first, last = np.quantile(prior, [0.01, 0.99])
        low = min(low, max(first, low - beyond))
        high = max(high, min(last, high + beyond))
        bars = 2 * BARS
    return np.linspace(low, high if high > low else low + 1, bars + 1)


def _pairs(
    draws: list[FloatArray], posterior: PosteriorSummary, divergent: FloatArray | None
) -> Figures:
    """Return figures of the pairs of parameters with the largest correlations."""
    moving = []
    for place, values in enumerate(draws):
        if values.std() > 0 and values.size >= FEWEST_PAIRED:
            moving.append(place)
    correlations = {}
    for a, b in combinations(moving, 2):
        matrix = np.corrcoef(draws[a].ravel(), draws[b].ravel())
        correlations[a, b] = float(matrix[0, 1])
    strongest = sorted(correlations, key=lambda pair: -abs(correlations[pair]))
    figures: Figures = []
    for a, b in strongest[:MOST_PAIRS]:
        names = posterior.parameters[a].name, posterior.parameters[b].name
        figure = pair_figure(draws[a], draws[b], names, divergent, f"pair {a} {b}")
        r = f"r = {number(correlations[a, b])}"
        figures.append((" and ".join(names), figure, r))
    return figures


@styled
def pair_figure(
    x: FloatArray,
    y: FloatArray,
    names: tuple[str, str],
    divergent: FloatArray | None,
    key: str,
) -> str:
    """Draw draws of two parameters as dots, as far apart in the chains as they can be,
    and all divergent ones.
    """
    figure, axes = panel(*names, margins=(62, 10, 40, 13))
    shown = np.linspace(0, x.size - 1, min(x.size, PAIRED)).astype(int)
    dots = places(x.ravel()[shown], y.ravel()[shown])
    axes.plot(*dots, ".", markersize=4, color=ACCENT, alpha=0.6)
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
    if values.shape[1] < 2 or not np.isfinite(values).all():
        return None
    return kept if (values.var(axis=1) > 0).all() else None


def bfmi(energy: "xr.Dataset") -> list[float]:
    """Return the Bayesian fraction of missing information of each chain (Betancourt
    2016), by ArviZ.
    """
    by_chain = import_module("arviz_stats").bfmi(energy)["energy"]
    return [float(value) for value in by_chain.to_numpy()]


@styled
def energy_figure(energy: "xr.Dataset", key: str) -> str:
    """Draw how energies are distributed, and how their changes from draw to draw are,
    by ArviZ's density estimate.
    """
    stats: Any = import_module("arviz_stats.base").array_stats
    figure, axes = panel("energy, from its mean", "density")
    values = energy["energy"].to_numpy()
    changes = np.diff(values, axis=1)
    for name, numbers, colour, style in (
        ("energy", values - values.mean(), ACCENT, "-"),
        ("change from draw to draw", changes, SERIES[1], "--"),
    ):
        grid, density, _ = stats.kde(numbers.ravel())
        line = grid[::EVERY], density[::EVERY]
        axes.plot(*line, style, color=colour, linewidth=1.5, label=name)
    axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
    axes.legend(frameon=False, fontsize=9.5, labelcolor=QUIET, loc="upper right")
    return as_svg(
        figure,
        "How energies and their changes from draw to draw are "
        "distributed over all chains",
        key,
    )


def _ranks(each: list[FloatArray], posterior: PosteriorSummary) -> Figures:
    """Return figures of chains' ranks; parameters that never move have none."""
    if posterior.chains < 2 or not each or each[0].shape[1] < FEWEST_RANKED:
        return []
    parameters = posterior.parameters[: len(each)]
    sizes = [one.ess_bulk for one in parameters if one.ess_bulk is not None]
    every = stride(each[0].shape, min(sizes, default=None))
    figures: Figures = []
    for place, (draws, parameter) in enumerate(zip(each, parameters, strict=True)):
        if draws.std() > 0:
            name = parameter.name
            figure = rank_figure(draws[:, ::every], name, f"ranks {place}")
            figures.append((name, figure))
    return figures


@styled
def rank_figure(draws: FloatArray, name: str, key: str) -> str:
    """Draw how far the ranks of each chain are from uniform, with the band that holds
    them if chains agree.

    Ranks are those of draws among the draws of all chains, after Säilynoja et al.
    (2022), as ArviZ's ``plot_rank`` has them: differences of distribution functions
    from the uniform one, with a band for independent draws.
    """
    x = np.linspace(0, 1, POINTS + 1)
    figure, axes = panel(
        "rank among the draws of all chains, as a share", "share below, minus rank"
    )
    lower, upper = _band(draws.shape[1], len(draws))
    axes.fill_between(x, lower, upper, color=BAR, alpha=0.35, linewidth=0)
    axes.axhline(0, color=INK, linewidth=0.5)
    for chain, line in enumerate(_differences(draws, x)):
        axes.plot(x, line, color=SERIES[chain % len(SERIES)], linewidth=1)
    label = (
        f"Ranks of {name}: a line for each of {len(draws)} chains; the band holds "
        f"all of them with probability {BAND}"
    )
    return as_svg(figure, f"{label} if the chains agree", key)


def stride(shape: Sequence[int], effective: float | None) -> int:
    """Return how far apart draws are nearly independent, for chains of a shape with so
    many effective draws in all.
    """
    chains, draws = shape
    wanted = min(max((effective or 0.0) / chains, 2.0), MOST_RANKED)
    return max(1, min(math.ceil(draws / wanted), draws // 2))


def _differences(kept: FloatArray, x: FloatArray) -> FloatArray:
    """Return each chain's distribution function of relative ranks, minus the uniform
    one, shape (chains, points).
    """
    stats: Any = import_module("arviz_stats.base").array_stats
    ranks = stats.compute_ranks(kept.ravel(), relative=True).reshape(kept.shape)
    below = np.stack([np.searchsorted(np.sort(row), x, side="right") for row in ranks])
    return np.asarray(below / kept.shape[1] - x)


@lru_cache(maxsize=32)
def _band(n_draws: int, n_chains: int) -> tuple[FloatArray, FloatArray]:
    """Return the simultaneous band for the differences at ``POINTS`` ranks, by ArviZ's
    simulation.
    """
    module: Any = import_module("arviz_stats.ecdf_utils")
    x = np.linspace(0, 1, n_draws)
    at, _, lower, upper = module.ecdf_pit(
        x, BAND, SIMULATIONS, n_chains=n_chains, rng=np.random.default_rng(7)
    )
    points = np.linspace(0, 1, POINTS + 1)
    return np.interp(points, at, lower - at), np.interp(points, at, upper - at)


def _predicted(
    groups: "Mapping[str, xr.Dataset]", posterior: PosteriorSummary, schema: Schema
) -> Figures:
    if "posterior_predictive" not in groups or "observed_data" not in groups:
        return []
    simulated = groups["posterior_predictive"]
    observed = groups["observed_data"]
    if posterior.records is None:
        return list(titled_figure(furthest_of(observed, simulated)))
    figures: Figures = []
    for place, row in enumerate(posterior.records.columns):
        drawn = simulated[f"column_{place}"].transpose("chain", "draw", ...)
        shares = observed[f"column_{place}"].to_numpy(), drawn.to_numpy()[0]
        edges = observed[f"edges_{place}"].to_numpy()
        column = schema.columns[row.name]
        key = f"predicted {place}"
        figures.append((row.name, _column(*shares, edges, row.name, column, key)))
    return figures


@styled
def _column(
    observed: FloatArray,
    simulated: FloatArray,
    edges: FloatArray,
    name: str,
    column: Column,
    key: str,
) -> str:
    """Draw a column: bars for the table's shares, a thin line for each draw's."""
    figure, axes = panel(
        f"{name} ({column.unit})" if column.unit else name, "share of records"
    )
    axes.stairs(observed, edges, fill=True, color=BAR, alpha=0.7)
    for row in simulated:
        axes.stairs(row, edges, color=ACCENT, linewidth=0.6, alpha=0.6, baseline=None)
    # of many levels only the numbers stand there
    if column.is_categorical and column.n_levels <= MOST_NAMED:
        room = max(4, LONGEST * 4 // column.n_levels)
        names = [fit(level, room) for level in column.names()]
        axes.set_xticks(range(column.n_levels), names)
    axes.set_ylim(0, None)
    label = (
        f"Shares of {name} in the table, and in records drawn from the model at "
        f"{len(simulated)} draws"
    )
    return as_svg(figure, label, key)


def _bounds(group: "xr.Dataset", schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield the figures of records' bounds and weights; of many records some are drawn,
    with the largest bound.
    """
    largest = group["largest"].to_numpy()
    kept = _shown_records(largest)
    limit = float(group.attrs["limit"]) if "limit" in group.attrs else None
    columns = sorted(schema.columns.items(), key=lambda item: item[1].public)
    values = {}
    for name, column in columns[:MOST_COLUMNS]:
        title = f"{name} (number of the level)" if column.is_categorical else name
        values[title] = group[stored_name(f"value_{name}")].to_numpy()[kept]
    shown: dict[str, tuple[FloatArray, str, float | None]] = {
        "bound": (largest[kept], "bound of the record (nats)", limit)
    }
    if "weights" in group:
        shown["weight"] = group["weights"].to_numpy()[kept], "weight", None
    for kind, (numbers, what, line) in shown.items():
        for title, across in values.items():
            key = f"{kind} {title}"
            figure = against_value(numbers, across, title, key, what, line)
            yield f"{kind} against {title}", figure
    if "share_by_draw" in group and group["share_by_draw"].size:
        shares = group["share_by_draw"].to_numpy()
        yield "records cut off, by draw", censored_by_draw(shares, "censored")


def _shown_records(largest: FloatArray) -> IntArray:
    """Return the positions of the records that are drawn, of many some by chance and
    the one with the largest bound.
    """
    if len(largest) <= MOST_DOTS:
        return np.arange(len(largest))
    rng = np.random.default_rng(DOT_SEED)
    some = rng.choice(len(largest), MOST_DOTS - 1, replace=False)
    return np.unique(np.append(some, np.argmax(largest)))


@styled
def against_value(
    of: ArrayLike,
    values: ArrayLike,
    name: str,
    key: str,
    what: str,
    limit: float | None = None,
) -> str:
    """Draw each record's bound or weight against its value of a column, and the limit
    as a dashed line.
    """
    figure, axes = panel(name, what)
    finite = np.isfinite(of)
    at = places(np.asarray(values)[finite], np.asarray(of)[finite])
    axes.plot(*at, linestyle="", marker=".", markersize=4, color=ACCENT)
    if limit is not None:
        axes.axhline(limit, color=INK, linewidth=1, linestyle="--")
    axes.set_ylim(0, None)
    subject = what.partition(" ")[0].capitalize()
    dashed = "" if limit is None else "; the dashed line is the limit"
    label = f"{subject} of each record against {name}{dashed}"
    return as_svg(figure, label, key)


@styled
def censored_by_draw(share_by_draw: FloatArray, key: str) -> str:
    """Draw the share of records beyond the limit at each draw, a line for each
    chain.
    """
    figure, axes = panel("draw", "share of records censored")
    for chain, shares in enumerate(share_by_draw):
        colour = SERIES[chain % len(SERIES)]
        axes.plot(np.arange(len(shares)), shares, color=colour, linewidth=0.75)
    axes.set_ylim(0, None)
    return as_svg(
        figure, "Share of records censored at each draw, a line for each chain", key
    )


def places(x: ArrayLike, y: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return the occupied places of a fine grid whose outermost places are the
    outermost records'.
    """
    across = _round(np.asarray(x, float), PLACES[0])
    up = _round(np.asarray(y, float), PLACES[1])
    kept = np.unique(np.stack([across, up], axis=1), axis=0)
    return kept[:, 0], kept[:, 1]


def _round(values: FloatArray, n_places: int) -> FloatArray:
    if not len(values):
        return values
    low = values.min()
    step = (values.max() - low) / n_places or 1.0
    return low + np.round((values - low) / step) * step
