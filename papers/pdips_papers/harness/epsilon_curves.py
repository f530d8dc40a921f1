"""Studies that draw curves over epsilon: what their tables and pictures have in common."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pdips.privacy.loss import positive
from pdips.report.figures import INK, QUIET, RULE, SERIES
from pdips.report.formats import SUPERSCRIPT
from pdips_papers.harness.framework import COLUMNS, Block, Options, Picture
from pdips_papers.harness.measures import MEASURES, at_each, pooled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EPSILONS = tuple(f"{math.exp(power):.6g}" for power in range(-4, 5))
"""The grid of paper 003, e^-4 to e^4, in six digits."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A line of the pictures and a row of the tables.

    Parameters
    ----------
    label : str
        In tables and keys.
    colour : int
        Number of the series, from 1.
    dashed : bool
        For what is printed in a paper and has no such guarantee.
    """

    label: str
    colour: int
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The cases and methods of a study that draws curves over epsilon.

    Parameters
    ----------
    cases : mapping of str to str
        End of the name of a row, and how to print it.
    methods : mapping of str to Method
        By the beginning of the name of a row.
    headlines : sequence of str
        The cases that the terminal shows, at the middle epsilon.
    groups : mapping of str to sequence of str, optional
        Titles, and the methods that share a picture; one picture of all methods unless given.
    """

    cases: Mapping[str, str]
    methods: Mapping[str, Method]
    headlines: Sequence[str]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def table(self, measurements: pd.DataFrame) -> pd.DataFrame:
        """Return the long table, with rows without an epsilon at each."""
        found = pooled(measurements)
        return at_each(found, [suffix_of(epsilon) for epsilon in epsilons_of(found)])[list(COLUMNS)]

    def layout(self, table: pd.DataFrame) -> list[Block]:
        """Return the headlines at the middle epsilon, then every case and measure over all epsilons."""
        epsilons = epsilons_of(table)
        middle = epsilons[len(epsilons) // 2]
        present = set(table["row"])
        blocks = []
        for case, label in self.cases.items():
            rows = {f"{name}, {case}": self.label(name) for name in self.methods if f"{name}, {case}" in present}
            if not rows:
                continue
            if case in self.headlines:
                columns = {f"{measure}{suffix_of(middle)}": measure for measure in MEASURES}
                blocks.append(Block(title=f"{label}, epsilon = {middle}", rows=rows, columns=columns))
            for measure, title in MEASURES.items():
                columns = {f"{measure}{suffix_of(epsilon)}": short(epsilon) for epsilon in epsilons}
                block = Block(title=f"{label}: {title}", rows=rows, columns=columns, headline=False, group="By epsilon")
                blocks.append(block)
        return sorted(blocks, key=lambda block: not block.headline)

    def label(self, name: str) -> str:
        """Return how a method is printed in tables."""
        return self.methods[name].label

    def pictures(self, table: pd.DataFrame) -> list[Picture]:
        """Return four panels for each case and group, one a measure, with a line for each method."""
        lookup = {(row, column): ours for row, column, ours in table[["row", "column", "ours"]].values.tolist()}
        return [
            Picture(
                title=f"{label}: {title}" if title else label,
                caption="Across: epsilon, on a log scale. Dotted: no bias, nominal coverage.",
                panels=[self._panel(lookup, case, measure, epsilons_of(table), methods) for measure in MEASURES],
                key={
                    method.label: f"--series-{method.colour}{' dashed' if method.dashed else ''}"
                    for method in methods.values()
                },
            )
            for case, label in self.cases.items()
            if table["row"].str.endswith(f", {case}").any()
            for title, methods in self._groups().items()
        ]

    def _groups(self) -> dict[str, dict[str, Method]]:
        groups = self.groups or {"": tuple(self.methods)}
        return {title: {name: self.methods[name] for name in names} for title, names in groups.items()}

    def _panel(
        self,
        lookup: Mapping[tuple[str, str], float],
        case: str,
        measure: str,
        epsilons: list[str],
        methods: Mapping[str, Method],
    ) -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(250 / 72, 190 / 72), dpi=72)
        axes = figure.add_axes((0.17, 0.14, 0.81, 0.74))
        x = [math.log(float(positive(epsilon, "epsilon"))) for epsilon in epsilons]
        for name, method in methods.items():
            y = [lookup.get((f"{name}, {case}", f"{measure}{suffix_of(epsilon)}"), math.nan) for epsilon in epsilons]
            if not np.isnan(y).all():
                style, width = ((0, (5, 3)) if method.dashed else "-"), 1.5
                axes.plot(x, y, color=SERIES[method.colour - 1], linestyle=style, linewidth=width)
        _dress(axes, measure, x, epsilons)
        return figure


def _dress(axes: "Axes", measure: str, x: list[float], epsilons: list[str]) -> None:
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
    axes.tick_params(labelsize=8.5, colors=RULE, labelcolor=QUIET, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(RULE)
    axes.set_facecolor("none")


def epsilons_for(options: Options) -> dict[str, Fraction]:
    """Return the epsilons of a run by their spelling."""
    return {epsilon: positive(epsilon, "epsilon") for epsilon in options.epsilons or EPSILONS}


def suffix_of(epsilon: str) -> str:
    """Return what follows the measure in the name of a column."""
    return f", epsilon={epsilon}"


def epsilons_of(table: pd.DataFrame) -> list[str]:
    """Return the epsilons of a table in increasing order, as they are spelled."""
    found = {column.partition(suffix_of(""))[2] for column in table["column"].unique() if suffix_of("") in column}
    return sorted(found, key=lambda epsilon: positive(epsilon, "epsilon"))


def short(epsilon: str) -> str:
    """Return an epsilon as the axis shows it: as a power of e if it is on the paper's grid."""
    power = EPSILONS.index(epsilon) - 4 if epsilon in EPSILONS else None
    return f"{float(positive(epsilon, 'epsilon')):g}" if power is None else f"e{str(power).translate(SUPERSCRIPT)}"


def batches(replicates: int, size: int) -> list[int]:
    """Cut replicates into batches of ``size`` at most."""
    return [size] * (replicates // size) + ([replicates % size] if replicates % size else [])


class Figures:
    """Looks up figures of ours in a table of :class:`Curves`.

    Parameters
    ----------
    table : DataFrame
        As :meth:`Curves.table` returns it.
    """

    def __init__(self, table: pd.DataFrame) -> None:
        self._ours: dict[tuple[str, str], float] = {
            (row, column): ours for row, column, ours in table[["row", "column", "ours"]].values.tolist()
        }
        self.epsilons = epsilons_of(table)
        self.middle = self.epsilons[len(self.epsilons) // 2]

    def at(self, method: str, case: str, measure: str, epsilon: str) -> float:
        """Return one figure, NaN if there is none."""
        return self._ours.get((f"{method}, {case}", f"{measure}{suffix_of(epsilon)}"), math.nan)

    def over(self, methods: Iterable[str], cases: Iterable[str], measure: str, epsilons: Iterable[str]) -> list[float]:
        """Return the figures of all methods, cases and epsilons."""
        places = product(methods, cases, epsilons)
        return [self.at(method, case, measure, epsilon) for method, case, epsilon in places]

    def below(self, limit: float) -> list[str]:
        """Return the epsilons below a limit."""
        return [epsilon for epsilon in self.epsilons if positive(epsilon, "epsilon") < limit]
