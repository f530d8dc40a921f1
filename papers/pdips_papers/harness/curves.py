"""Panels of lines, boxes and violins in the colours of the page, and studies that draw
curves over epsilon.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from pdips.privacy.loss import positive
from pdips.report.figures import INK, QUIET, RULE, SERIES
from pdips.report.formats import SUPERSCRIPT
from pdips_papers.harness.measures import MEASURES, at_each, pooled
from pdips_papers.harness.printed import data
from pdips_papers.harness.study import (
    COLUMNS,
    Block,
    Figures,
    Options,
    Picture,
    Study,
    Task,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (300 / 72, 220 / 72)
RECORDS_A_BATCH = 200_000
EPSILONS = tuple(f"{math.exp(power):.6g}" for power in range(-4, 5))
"""The grid of Bowen and Liu (2020), e^-4 to e^4, in six digits."""


@dataclass(frozen=True)
class Line:
    """A line of a panel in a series colour, from 1; the paper's are dashed and faint,
    one of many is thin.
    """

    y: Sequence[float]
    colour: int
    paper: bool = False
    thin: bool = False


def empty_panel(title: str, label: str, *, along: Any = "y") -> tuple["Figure", "Axes"]:
    """Return an empty panel with a grid ``along`` one axis or both."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, dpi=72)
    axes = figure.add_axes((0.13, 0.17, 0.85, 0.71))
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_xlabel(label, fontsize=9, color=QUIET)
    _dress(axes, along)
    return figure, axes


def panel(title: str, ticks: Sequence[str], label: str) -> tuple["Figure", "Axes"]:
    """Return an empty panel whose horizontal axis has evenly spaced places."""
    figure, axes = empty_panel(title, label)
    axes.set_xticks(range(len(ticks)), list(ticks))
    axes.set_xlim(-0.5, len(ticks) - 0.5)
    return figure, axes


def _draw(
    axes: "Axes", places: ArrayLike, line: Line, style: Mapping[str, Any]
) -> None:
    y = np.asarray(line.y, dtype=float)
    colour = SERIES[line.colour - 1]
    axes.plot(
        np.asarray(places),
        y,
        color=colour,
        linewidth=0.75 if line.thin else 1.5,
        **style,
    )


def lines(
    title: str,
    ticks: Sequence[str],
    label: str,
    drawn: Sequence[Line],
    limits: tuple[float, float] | None = None,
) -> "Figure":
    """Return a panel of lines."""
    figure, axes = panel(title, ticks, label)
    for line in drawn:
        style = (
            {"linestyle": "--", "alpha": 0.55}
            if line.paper
            else {"marker": "o", "markersize": 3.5}
        )
        _draw(axes, range(len(ticks)), line, style)
    if limits is not None:
        axes.set_ylim(*limits)
    return figure


def shares(
    title: str,
    label: str,
    places: ArrayLike,
    drawn: Sequence[Line],
    ticks: Sequence[float],
) -> "Figure":
    """Return a panel of distribution functions over a logarithmic axis, with ``ticks``
    on it.
    """
    figure, axes = empty_panel(title, label, along="both")
    powers = np.log10(np.asarray(places, dtype=float))
    for line in drawn:
        _draw(axes, powers, line, {"linestyle": "--"} if line.paper else {})
    axes.set_xticks(
        np.log10(np.asarray(ticks, dtype=float)), [f"{each:g}" for each in ticks]
    )
    axes.set_xlim(powers[0], powers[-1] + 0.05 * (powers[-1] - powers[0]))
    axes.set_ylim(-0.02, 1.02)
    return figure


def boxes(
    title: str,
    ticks: Sequence[str],
    label: str,
    groups: Sequence[tuple[int, Sequence[ArrayLike]]],
    limits: tuple[float, float] | None = None,
) -> "Figure":
    """Return a panel of box plots: for each group its colour, and its values at each
    place; groups side by side.
    """
    figure, axes = panel(title, ticks, label)
    width = 0.8 / len(groups)
    for number, (colour, values) in enumerate(groups):
        ink = SERIES[colour - 1]
        style = {"color": ink, "linewidth": 1.0}
        first = width * (number + 0.5) - 0.4
        fliers = {"markerfacecolor": ink, "markeredgecolor": ink}
        arrays = [np.asarray(value, dtype=float) for value in values]
        axes.boxplot(
            arrays,
            positions=first + np.arange(len(ticks)),
            widths=width * 0.75,
            manage_ticks=False,
            boxprops=style,
            whiskerprops=style,
            capprops=style,
            medianprops={"color": ink, "linewidth": 2.0},
            flierprops={"marker": ".", "markersize": 2.5, **fliers},
        )
    if limits is not None:
        axes.set_ylim(*limits)
    return figure


@dataclass(frozen=True)
class Violin:
    """A violin of a panel: the label at its left, the values whose density it shows,
    and a series colour from 1.
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
    """Return a panel of violins lying one below the other, with dashed lines at
    ``marks``.

    With ``powers`` values and limits are logs to base 10, and the axis says what they
    are logs of.
    """
    from matplotlib.figure import Figure

    width = SIZE[0] * 72
    row = 20
    top = 28
    bottom = 24
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
    values = np.asarray(violin.values, dtype=float)
    ink = SERIES[violin.colour - 1]
    body = axes.violinplot(
        [values],
        positions=[place],
        orientation="horizontal",
        widths=0.85,
        showextrema=False,
    )
    for part in body["bodies"]:  # type: ignore[attr-defined]
        part.set_facecolor(ink)
        part.set_edgecolor(ink)
        part.set_alpha(0.45)
    axes.plot([values.min(), values.max()], [place, place], color=ink, linewidth=1.0)
    axes.plot([values.mean()], [place], color=ink, marker="o", markersize=4)


def _dress(axes: "Axes", along: Any = None) -> None:
    """Draw ticks, spines and grid in the colours of the page."""
    axes.tick_params(labelsize=8.5, labelcolor=QUIET, color=RULE)
    axes.patch.set_visible(False)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(RULE)
    if along:
        axes.grid(axis=along, color=RULE, linewidth=0.5)
        axes.set_axisbelow(True)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A line of the pictures and a row of the tables; dashed for what a paper prints
    without such a guarantee.
    """

    label: str
    colour: int
    dashed: bool = False
    said: str = ""
    """What claims call it."""


def methods_of(*parts: str) -> dict[str, Method]:
    """Return the rows of some parts of ``data/rows.toml``; claims call them by their
    names if not otherwise.
    """
    methods = {}
    for part in parts:
        for name, facts in data("rows.toml")[part].items():
            said = name.replace("-", " ").replace(" published", " (published)")
            methods[name] = Method(**{"said": said} | facts)
    return methods


def _dress_epsilons(
    axes: "Axes", measure: str, x: list[float], epsilons: list[str]
) -> None:
    """Give a panel its title, ticks and reference line, in the colours of the page."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_title(MEASURES[measure], fontsize=9.5, color=INK, loc="left", pad=5)
    if measure in ("rmse", "width"):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif measure == "coverage":
        axes.set_ylim(-0.02, 1.02)
        axes.axhline(0.95, color=QUIET, linewidth=0.75, linestyle=(0, (1, 2)))
    else:
        axes.axhline(0, color=QUIET, linewidth=0.75, linestyle=(0, (1, 2)))
    every = 2 if len(x) > 6 else 1
    axes.set_xticks(x[::every], [short(epsilon) for epsilon in epsilons[::every]])
    _dress(axes)


def suffix_of(epsilon: str) -> str:
    """Return what follows the measure in the name of a column."""
    return f", epsilon={epsilon}"


def epsilons_of(table: pd.DataFrame) -> list[str]:
    """Return the epsilons of a table in increasing order, as they are spelled."""
    found = {
        column.partition(suffix_of(""))[2]
        for column in table["column"].unique()
        if suffix_of("") in column
    }
    return sorted(found, key=lambda epsilon: positive(epsilon, "epsilon"))


def short(epsilon: str) -> str:
    """Return an epsilon as the axis shows it: as a power of e if it is on the paper's
    grid.
    """
    power = EPSILONS.index(epsilon) - 4 if epsilon in EPSILONS else None
    return (
        f"{float(positive(epsilon, 'epsilon')):g}"
        if power is None
        else f"e{str(power).translate(SUPERSCRIPT)}"
    )


def batches(replicates: int, size: int) -> list[int]:
    """Cut replicates into batches of ``size`` at most."""
    return [size] * (replicates // size) + (
        [replicates % size] if replicates % size else []
    )


class CurveFigures(Figures):
    """Looks up figures of ours by method, case, measure and epsilon."""

    def __init__(self, table: pd.DataFrame, study: "CurveStudy") -> None:
        super().__init__(table)
        self.cases = tuple(study.labels)
        self.said = {name: method.said for name, method in study.methods.items()}
        self.epsilons = epsilons_of(table)
        self.lowest = self.epsilons[0]
        self.top = self.epsilons[-1]
        self.middle = self.epsilons[len(self.epsilons) // 2]
        self.named = {
            name: short(getattr(self, name)) for name in ("lowest", "middle", "top")
        }

    def one(self, method: str, case: str, measure: str, epsilon: str) -> float:
        """Return one figure, NaN if there is none."""
        return self.at(f"{method}, {case}", f"{measure}{suffix_of(epsilon)}")

    def over(
        self,
        methods: Iterable[str],
        cases: Iterable[str],
        measure: str,
        epsilons: Iterable[str],
    ) -> list[float]:
        """Return the figures of all methods, cases and epsilons."""
        places = product(methods, cases, epsilons)
        return [
            self.one(method, case, measure, epsilon) for method, case, epsilon in places
        ]

    def mean(
        self, method: str, cases: Iterable[str], measure: str, epsilons: Iterable[str]
    ) -> float:
        """Return the mean over cases and epsilons."""
        return float(np.mean(self.over([method], cases, measure, epsilons)))

    def ratio(
        self, method: str, other: str, epsilons: Iterable[str] = ()
    ) -> "np.ndarray[Any, Any]":
        """Return RMSE over that of another method, by case and epsilon."""
        chosen = tuple(epsilons) or self.epsilons
        ours, theirs = (
            np.array(self.over([each], self.cases, "rmse", chosen))
            for each in (method, other)
        )
        return np.asarray(ours / theirs)

    def below(self, limit: float) -> list[str]:
        """Return the epsilons below a limit, or the smallest one."""
        below = [e for e in self.epsilons if positive(e, "epsilon") < limit]
        return below or self.epsilons[:1]

    def above(self, limit: float) -> list[str]:
        """Return the epsilons above a limit, or the largest one."""
        above = [e for e in self.epsilons if positive(e, "epsilon") > limit]
        return above or self.epsilons[-1:]


class CurveStudy(Study):
    """A study that draws curves over epsilon; the paper draws its results and prints no
    figures.
    """

    labels: ClassVar[Mapping[str, str]]
    """How to print the cases, by the end of the name of a row."""

    methods: ClassVar[Mapping[str, Method]]
    """By the beginning of the name of a row."""

    headlines: ClassVar[Sequence[str]]
    """The cases that the terminal shows, at the middle epsilon."""

    families: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Titles, and the methods that share a picture; without any all methods share
    one.
    """

    cases: ClassVar[Sequence[tuple[str, Mapping[str, Any]]]] = (("", {}),)
    """The beginning of a task's key, and its arguments."""

    def batch(self, arguments: Mapping[str, Any]) -> int:
        """Return how many replicates of a case a task has at most: 100 where its
        arguments name no n.
        """
        return min(1000, RECORDS_A_BATCH // int(arguments.get("n", 2_000)))

    def tasks(self, options: Options) -> list[Task]:
        """Return one task for each case and batch of replicates."""
        epsilons = list(options.epsilons or EPSILONS)
        tasks = []
        for start, arguments in self.cases:
            sizes = batches(options.replicates, self.batch(arguments))
            for number, size in enumerate(sizes):
                tasks.append(
                    Task(
                        key=f"{start}batch={number:03}",
                        arguments={
                            **arguments,
                            "replicates": size,
                            "epsilons": epsilons,
                        },
                    )
                )
        return tasks

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return the long table, with rows without an epsilon at each."""
        table = pooled(measurements)
        suffixes = [suffix_of(epsilon) for epsilon in epsilons_of(table)]
        return at_each(table, suffixes)[list(COLUMNS)]

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """Return the headlines at the middle epsilon, then every case and measure over
        all epsilons.
        """
        epsilons = epsilons_of(table)
        middle = epsilons[len(epsilons) // 2]
        present = set(table["row"])
        blocks = []
        for case, label in self.labels.items():
            rows = {
                f"{name}, {case}": self.methods[name].label
                for name in self.methods
                if f"{name}, {case}" in present
            }
            if not rows:
                continue
            if case in self.headlines:
                columns = {
                    f"{measure}{suffix_of(middle)}": measure for measure in MEASURES
                }
                blocks.append(
                    Block(
                        title=f"{label}, epsilon = {middle}", rows=rows, columns=columns
                    )
                )
            for measure, title in MEASURES.items():
                columns = {
                    f"{measure}{suffix_of(epsilon)}": short(epsilon)
                    for epsilon in epsilons
                }
                block = Block(
                    title=f"{label}: {title}",
                    rows=rows,
                    columns=columns,
                    headline=False,
                    group="By epsilon",
                )
                blocks.append(block)
        return sorted(blocks, key=lambda block: not block.headline)

    def pictures(
        self, measurements: pd.DataFrame, table: pd.DataFrame
    ) -> list[Picture]:
        """Return four panels for each case and group, one a measure, with a line for
        each method.
        """
        seen = CurveFigures(table, self)
        groups = self.families or {"": tuple(self.methods)}
        pictures = []
        for (case, label), (title, names) in product(
            self.labels.items(), groups.items()
        ):
            if not table["row"].str.endswith(f", {case}").any():
                continue
            key = {}
            for name in names:
                method = self.methods[name]
                dashes = " dashed" if method.dashed else ""
                key[method.label] = f"--series-{method.colour}{dashes}"
            pictures.append(
                Picture(
                    title=f"{label}: {title}" if title else label,
                    caption="Across: epsilon, on a log scale. Dotted: no bias, nominal "
                    "coverage.",
                    panels=[
                        self._panel(seen, case, measure, names) for measure in MEASURES
                    ],
                    key=key,
                )
            )
        return pictures

    def _panel(
        self, seen: "CurveFigures", case: str, measure: str, names: Sequence[str]
    ) -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(250 / 72, 190 / 72), dpi=72)
        axes = figure.add_axes((0.17, 0.14, 0.81, 0.74))
        x = [math.log(float(positive(epsilon, "epsilon"))) for epsilon in seen.epsilons]
        for name in names:
            method = self.methods[name]
            y = seen.over([name], [case], measure, seen.epsilons)
            if not np.isnan(y).all():
                style = (0, (5, 3)) if method.dashed else "-"
                axes.plot(
                    x,
                    y,
                    color=SERIES[method.colour - 1],
                    linestyle=style,
                    linewidth=1.5,
                )
        _dress_epsilons(axes, measure, x, seen.epsilons)
        return figure
