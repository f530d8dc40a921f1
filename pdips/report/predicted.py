"""Pictures of posterior predictive checks: of a table's columns, and of noisy statistics."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pdips.data.schema import Column, Schema
from pdips.release.documents import PosteriorSummary
from pdips.report.bounds import panel
from pdips.report.pictures import ACCENT, BAR, INK, as_svg

if TYPE_CHECKING:
    import xarray as xr

Pictures = list[tuple[str, str]]

MOST_NAMED = 6
LONGEST = 12
MOST_ENTRIES = 300
MOST_SD = 6.0
"""Noisy numbers further off than this are drawn at the edge."""


def pictures(tree: "xr.DataTree", facts: PosteriorSummary, schema: Schema) -> Pictures:
    """Return titles and pictures of what was predicted; none where nothing was kept."""
    if not {"posterior_predictive", "observed_data"} <= set(tree.children):
        return []
    simulated, observed = (tree[name].to_dataset() for name in ("posterior_predictive", "observed_data"))
    if facts.records is None:
        return [("all noisy statistics", _statistics(simulated, observed))] if len(observed.data_vars) else []
    found = []
    for place, row in enumerate(facts.records.columns):
        shares = simulated[f"column_{place}"].transpose("chain", "draw", ...).to_numpy()[0]
        parts = observed[f"column_{place}"].to_numpy(), shares, observed[f"edges_{place}"].to_numpy()
        found.append((row.name, _column(*parts, row.name, schema.columns[row.name], f"predicted {place}")))
    return found


def _column(
    observed: NDArray[Any], simulated: NDArray[Any], edges: NDArray[Any], name: str, column: Column, key: str
) -> str:
    """Draw a column: bars for the table's shares, a thin line for each draw's."""
    figure, axes = panel(f"{name} ({column.unit})" if column.unit else name, "share of records")
    axes.stairs(observed, edges, fill=True, color=BAR, alpha=0.7)
    for row in simulated:
        axes.stairs(row, edges, color=ACCENT, linewidth=0.6, alpha=0.6, baseline=None)
    if column.is_categorical:
        _name_levels(axes, [str(level) for level in column.levels or ()], column.n_levels)
    axes.set_ylim(0, None)
    return as_svg(
        figure, f"Shares of {name} in the table, and in records drawn from the model at {len(simulated)} draws", key
    )


def _name_levels(axes: Any, levels: list[str], n_levels: int) -> None:
    """Name levels where there is room; of many, only their numbers stand below the axis."""
    named = levels + ["missing"] * (n_levels - len(levels))
    if n_levels > MOST_NAMED:
        return
    room = max(4, LONGEST * 4 // max(n_levels, 1))
    short = [level if len(level) <= room else f"{level[: room - 1]}\N{HORIZONTAL ELLIPSIS}" for level in named]
    axes.set_xticks(range(n_levels), short, parse_math=False)


def _statistics(simulated: "xr.Dataset", observed: "xr.Dataset") -> str:
    """Draw noisy numbers in standard deviations of the simulated ones, and the middle 95 % of these."""
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
    from matplotlib.ticker import MaxNLocator

    axes.vlines(places[kept], low[kept], high[kept], color=BAR, linewidth=max(1.0, min(6.0, 180 / max(len(kept), 1))))
    axes.axhline(0, color=INK, linewidth=0.5)
    beyond = (off < low) | (off > high)
    for which, marker in ((~beyond, "o"), (beyond, "D")):
        axes.plot(
            places[kept][which[kept]], off[kept][which[kept]], marker, color=ACCENT, markersize=4, markeredgewidth=0
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label = f"{len(noisy)} noisy numbers against the middle 95 % of simulated ones; {int(beyond.sum())} lie outside"
    return as_svg(figure, label, "predicted statistics")
