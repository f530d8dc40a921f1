"""Line, box and violin panels in the colours of the page, for the pictures of studies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from pdips.report.figures import INK, QUIET, RULE, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (300 / 72, 220 / 72)


@dataclass(frozen=True)
class Line:
    """A line of a panel.

    Parameters
    ----------
    y : sequence of float
        One value for each place on the axis; NaN for none.
    colour : int
        Number of the series colour, from 1.
    paper : bool
        Dashed and faint: the paper's figures.
    thin : bool
        One of many.
    """

    y: Sequence[float]
    colour: int
    paper: bool = False
    thin: bool = False


def panel(title: str, ticks: Sequence[str], label: str) -> tuple["Figure", "Axes"]:
    """Return an empty panel whose horizontal axis has evenly spaced places."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, dpi=72)
    axes = figure.add_axes((0.13, 0.17, 0.85, 0.71))
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_xlabel(label, fontsize=9, color=QUIET)
    axes.set_xticks(range(len(ticks)), list(ticks))
    axes.set_xlim(-0.5, len(ticks) - 0.5)
    _dress(axes, "y")
    return figure, axes


def lines(
    title: str, ticks: Sequence[str], label: str, drawn: Sequence[Line], limits: tuple[float, float] | None = None
) -> "Figure":
    """Return a panel of lines."""
    figure, axes = panel(title, ticks, label)
    for line in drawn:
        style: dict[str, Any] = {"linestyle": "--", "alpha": 0.55} if line.paper else {"marker": "o", "markersize": 3.5}
        width = 0.75 if line.thin else 1.5
        places = np.arange(len(ticks))
        axes.plot(places, np.asarray(line.y, dtype=float), color=SERIES[line.colour - 1], linewidth=width, **style)
    if limits is not None:
        axes.set_ylim(*limits)
    return figure


def boxes(
    title: str,
    ticks: Sequence[str],
    label: str,
    groups: Sequence[tuple[int, Sequence[ArrayLike]]],
    limits: tuple[float, float] | None = None,
) -> "Figure":
    """Return a panel of box plots: for each group its colour, and its values at each place; groups side by side."""
    figure, axes = panel(title, ticks, label)
    width = 0.8 / len(groups)
    for number, (colour, values) in enumerate(groups):
        ink = SERIES[colour - 1]
        style = {"color": ink, "linewidth": 1.0}
        axes.boxplot(
            [np.asarray(value, dtype=float) for value in values],
            positions=[place - 0.4 + width * (number + 0.5) for place in range(len(ticks))],
            widths=width * 0.75,
            manage_ticks=False,
            boxprops=style,
            whiskerprops=style,
            capprops=style,
            medianprops={"color": ink, "linewidth": 2.0},
            flierprops={"marker": ".", "markersize": 2.5, "markerfacecolor": ink, "markeredgecolor": ink},
        )
    if limits is not None:
        axes.set_ylim(*limits)
    return figure


@dataclass(frozen=True)
class Violin:
    """A violin of a panel.

    Parameters
    ----------
    label : str
        Written at its left.
    values : array-like
        What its width shows the density of; a dot marks the mean.
    colour : int
        Number of the series colour, from 1.
    """

    label: str
    values: ArrayLike
    colour: int


def violins(
    title: str,
    drawn: Sequence[Violin],
    limits: tuple[float, float],
    marks: Sequence[float] = (),
    *,
    powers: bool = False,
) -> "Figure":
    """Return a panel of violins lying one below the other, with dashed lines at ``marks``.

    With ``powers`` values and limits are logs to base 10, and the axis says what they are logs of.
    """
    from matplotlib.figure import Figure

    width, row, top, bottom = SIZE[0] * 72, 20, 28, 24
    height = top + row * len(drawn) + bottom
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    axes = figure.add_axes((0.37, bottom / height, 0.60, row * len(drawn) / height))
    lines = np.arange(len(drawn), 0, -1)
    for place, each in zip(lines, drawn, strict=True):
        _violin(axes, float(place), each)
    for mark in marks:
        axes.axvline(mark, color=INK, linewidth=1.0, linestyle="--")
    axes.set_yticks(lines, [each.label for each in drawn])
    axes.set_ylim(0.4, len(drawn) + 0.6)
    axes.set_xlim(*limits)
    if powers:
        places = np.arange(np.ceil(limits[0]), np.floor(limits[1]) + 1)
        axes.set_xticks(places, [f"{10.0**place:g}" for place in places])
    else:
        axes.locator_params(axis="x", nbins=5)
    figure.text(0.0, 1 - 15 / height, title, fontsize=10, color=INK)
    _dress(axes, "x")
    axes.tick_params(axis="y", length=0)
    return figure


def _violin(axes: "Axes", place: float, violin: Violin) -> None:
    values, ink = np.asarray(violin.values, dtype=float), SERIES[violin.colour - 1]
    body = axes.violinplot([values], positions=[place], orientation="horizontal", widths=0.85, showextrema=False)
    for part in body["bodies"]:  # type: ignore[attr-defined]
        part.set_facecolor(ink)
        part.set_edgecolor(ink)
        part.set_alpha(0.45)
    axes.plot([values.min(), values.max()], [place, place], color=ink, linewidth=1.0)
    axes.plot([values.mean()], [place], color=ink, marker="o", markersize=4)


def _dress(axes: "Axes", along: Any) -> None:
    """Draw ticks, spines and grid in the colours of the page."""
    axes.tick_params(labelsize=8.5, labelcolor=QUIET, color=RULE)
    axes.patch.set_visible(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(RULE)
    axes.grid(axis=along, color=RULE, linewidth=0.5)
    axes.set_axisbelow(True)


def shares(title: str, label: str, places: ArrayLike, drawn: Sequence[Line], ticks: Sequence[float]) -> "Figure":
    """Return a panel of distribution functions over a logarithmic axis, with ``ticks`` on it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, dpi=72)
    axes = figure.add_axes((0.13, 0.17, 0.85, 0.71))
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_xlabel(label, fontsize=9, color=QUIET)
    powers = np.log10(np.asarray(places, dtype=float))
    for line in drawn:
        style: dict[str, Any] = {"linestyle": "--"} if line.paper else {}
        width = 0.75 if line.thin else 1.5
        axes.plot(powers, np.asarray(line.y, dtype=float), color=SERIES[line.colour - 1], linewidth=width, **style)
    axes.set_xticks(np.log10(np.asarray(ticks, dtype=float)), [f"{each:g}" for each in ticks])
    axes.set_xlim(powers[0], powers[-1] + 0.05 * (powers[-1] - powers[0]))
    axes.set_ylim(-0.02, 1.02)
    _dress(axes, "both")
    return figure
