"""Pictures of bounds over posterior draws, for the inside report only: each dot is a confidential record."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdips.report.pictures import ACCENT, INK, QUIET, RULE, SERIES, as_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 340, 220
BARS = 30
PLACES = 170, 110
"""Places across and up: records that share one share a dot, so that a picture of a million stays small."""


class Bounds(Protocol):
    """What the pictures need of :class:`pdips.posterior.bounds.Bounds`."""

    @property
    def largest(self) -> NDArray[Any]: ...
    @property
    def limit(self) -> float | None: ...
    @property
    def share_by_draw(self) -> NDArray[Any]: ...


def bound_against_value(bounds: Bounds, values: ArrayLike, name: str, key: str) -> str:
    """Draw each record's bound against its value of a column, and the limit as a dashed line.

    Parameters
    ----------
    bounds : Bounds
        Of ``n`` records.
    values : array-like, shape (records,)
        The column, as the model reads it.
    name : str
        Its name.
    key : str
        Unlike any other picture's on the page.
    """
    figure, axes = panel(name, "bound of the record (nats)")
    finite = np.isfinite(bounds.largest)
    _dots(axes, np.asarray(values)[finite], bounds.largest[finite])
    label = f"Bound of each record against {name}"
    if bounds.limit is not None:
        axes.axhline(bounds.limit, color=INK, linewidth=1, linestyle="--")
        label += "; the dashed line is the limit"
    axes.set_ylim(0, None)
    return as_svg(figure, label, key)


def weights_against_value(weights: ArrayLike, values: ArrayLike, name: str, key: str) -> str:
    """Draw each record's weight against its value of a column."""
    figure, axes = panel(name, "weight")
    _dots(axes, values, weights)
    axes.set_ylim(0, None)
    return as_svg(figure, f"Weight of each record against {name}", key)


def censored_by_draw(bounds: Bounds, key: str) -> str:
    """Draw the share of records beyond the limit at each draw, a line for each chain."""
    figure, axes = panel("draw", "share of records censored")
    for chain, shares in enumerate(bounds.share_by_draw):
        colour = SERIES[chain % len(SERIES)]
        axes.plot(np.arange(len(shares)), shares, color=colour, linewidth=0.75)
    axes.set_ylim(0, None)
    return as_svg(figure, "Share of records censored at each draw, a line for each chain", key)


def draws_of_parameter(draws: NDArray[Any], released: Sequence[float], name: str, key: str) -> str:
    """Draw the draws of one parameter as a histogram, a line for each chain, and the released values as dashed lines.

    Parameters
    ----------
    draws : ndarray, shape (chains, draws)
        Of the parameter.
    released : sequence of float
        What was released.
    name : str
        Of the parameter.
    key : str
        Unlike any other picture's on the page.
    """
    figure, axes = panel(name, "share of draws")
    low, high = np.quantile(draws, [0.0005, 0.9995])
    edges = np.linspace(low, high if high > low else low + 1, BARS + 1)
    for chain, row in enumerate(draws):
        shares = np.histogram(row, edges)[0] / draws.shape[1]
        axes.stairs(shares, edges, color=SERIES[chain % len(SERIES)], linewidth=1)
    for value in released:
        axes.axvline(value, color=INK, linewidth=1, linestyle="--")
    axes.set_ylim(0, None)
    lines = "a line for each chain; " if len(draws) > 1 else ""
    return as_svg(figure, f"Draws of {name}, {lines}the dashed line is what was released", key)


def places(x: ArrayLike, y: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the occupied places of a fine grid whose outermost places are the outermost records'."""
    rounded = np.stack([_round(np.asarray(x, float), PLACES[0]), _round(np.asarray(y, float), PLACES[1])], axis=1)
    kept = np.unique(rounded, axis=0)
    return kept[:, 0], kept[:, 1]


def _dots(axes: "Axes", x: ArrayLike, y: ArrayLike) -> None:
    axes.plot(*places(x, y), linestyle="", marker=".", markersize=4, color=ACCENT, markeredgewidth=0)


def _round(values: NDArray[Any], places: int) -> NDArray[Any]:
    low, high = (values.min(), values.max()) if len(values) else (0.0, 0.0)
    step = (high - low) / places or 1.0
    rounded: NDArray[Any] = low + np.round((values - low) / step) * step
    return rounded


def panel(across: str, up: str) -> tuple["Figure", "Axes"]:
    """Return an empty picture of the size that panels of the page have, and its axes with their names."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72)
    axes = figure.add_axes((0.14, 0.18, 0.83, 0.76))
    # A dollar sign is a dollar sign, not the start of a formula.
    axes.set_xlabel(across, fontsize=9, color=QUIET, parse_math=False)
    axes.set_ylabel(up, fontsize=9, color=QUIET, parse_math=False)
    axes.tick_params(labelsize=8.5, labelcolor=QUIET, color=RULE)
    axes.patch.set_visible(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(RULE)
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    return figure, axes
