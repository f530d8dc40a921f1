"""Figures of the report and the card: matplotlib axes in one style, as SVG for the
inside of a page.

No date, no address. Colours are stand-ins that become the variables of the page's style
sheet, so that figures follow it from light to dark.
"""

import html
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from io import StringIO
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from pdips.arrays import FloatArray
from pdips.evaluation.document import (
    AnalysisComparison,
    Coefficient,
    ColumnDensity,
)
from pdips.release.documents import Margin, TwoWay
from pdips.report.formats import MINUS, number, percent, width_in_letters

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#010203"
QUIET = "#010204"
RULE = "#010205"
BAR = "#010206"
ACCENT = "#010207"
SERIES = (
    "#020101",
    "#020102",
    "#020103",
    "#020104",
    "#020105",
    "#020106",
    "#020107",
    "#020108",
)
VARIABLES = {
    INK: "--ink",
    QUIET: "--quiet",
    RULE: "--rule",
    BAR: "--bar",
    ACCENT: "--accent",
    **{colour: f"--series-{place}" for place, colour in enumerate(SERIES, start=1)},
}
"""Stand-ins, and the variables of the page that they become."""

STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": QUIET,
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": ["DejaVu Sans"],
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "lines.markeredgewidth": 0,
    "savefig.bbox": None,
    # text stays text: a letter which this machine's font lacks is the reader's font's
    # business
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign is a dollar sign
    "text.usetex": False,
    "xtick.color": RULE,
    "xtick.labelcolor": QUIET,
    "xtick.labelsize": 9.5,
    "ytick.color": RULE,
    "ytick.labelcolor": QUIET,
    "ytick.labelsize": 9.5,
}

PANEL_WIDTH = 340  # CSS pixels, as all sizes here
MOST_ROWS = 60
LIMITS = (0.001, 0.002, 0.004, 0.01, 0.02, 0.04, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
MOST_COEFFICIENTS = 40
# The figure of coefficients goes to at least and at most so many standard errors
LEAST_ERRORS = 3
MOST_ERRORS = 12


def styled[**P, T](draw: Callable[P, T]) -> Callable[P, T]:
    """Let a function draw in the style of the pages."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> T:
        from matplotlib import rc_context

        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def panel(
    across: str = "",
    up: str = "",
    *,
    width: float = PANEL_WIDTH,
    height: float = 220,
    margins: tuple[float, float, float, float] = (48, 10, 40, 13),
) -> tuple["Figure", "Axes"]:
    """Return an empty figure and its axes with their names; margins are left, right,
    bottom, top.
    """
    from matplotlib.figure import Figure

    left, right, bottom, top = margins
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    inner = (
        left / width,
        bottom / height,
        (width - left - right) / width,
        (height - bottom - top) / height,
    )
    return figure, figure.add_axes(inner, xlabel=across, ylabel=up)


def sheet(width: float, height: float) -> tuple["Figure", "Axes"]:
    """Return an empty figure whose axes, without ticks, count pixels from the top
    left.
    """
    figure, axes = panel(width=width, height=height, margins=(0, 0, 0, 0))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return figure, axes


def as_svg(figure: "Figure", label: str, key: str, *, clip: bool = False) -> "Markup":
    """Return an SVG element for the inside of a page: what only a file of its own needs
    is taken off.

    It is marked as safe for templates, and so are the texts that functions here return.
    """
    from markupsafe import Markup
    from matplotlib import rc_context

    out = StringIO()
    for artist in () if clip else figure.findobj():
        artist.set_clip_on(False)
    with (
        rc_context(STYLE | {"svg.hashsalt": f"pdips {key}"}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    body = out.getvalue()
    body = body[body.index("<svg") :]
    only_for_files = (
        r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>"
        r"|(?<=<g) id=\"[\w.]+\""
    )
    body = re.sub(only_for_files, "", body, flags=re.DOTALL)
    body = re.sub(r"font-family: [^;\"]*;? ?|transform=\"rotate\(-0 [^\"]*\"", "", body)
    for stand_in, variable in VARIABLES.items():
        body = body.replace(stand_in, f"var({variable})")
    width, height = figure.get_size_inches() * 72
    opening = (
        f'<svg class="picture" role="img" aria-label="{html.escape(label)}" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'style="--width: {width:g}px">'
    )
    return Markup(opening + body[body.index(">") + 1 :])


@styled
def one_way(margin: Margin, key: str) -> str:
    """Draw one column: a bar for the table's share of each level, a dot for the sets';
    of many levels the furthest.
    """
    rows = _furthest_levels(margin)
    step, size = _spacing(len(rows))
    names = [fit(margin.levels[row], 20) for row in rows]
    left = 12 + widest(names, size)
    figure, axes = panel(height=20 + step * len(rows), margins=(left, 22, 16, 4))
    places = range(len(rows))
    table = [margin.table[row] for row in rows]
    axes.barh(places, table, 0.5, color=BAR)
    if margin.synthetic:
        synthetic = [margin.synthetic[row] for row in rows]
        axes.hlines(places, table, synthetic, color=ACCENT, linewidth=1.25)
        axes.plot(synthetic, places, "o", color=ACCENT, markersize=step * 0.36)
    limit = _share_limit(max(margin.table + margin.synthetic))
    ticks = (0, limit / 2, limit)
    axes.set(xlim=(0, limit), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(ticks, [percent(share, short=True) for share in ticks])
    name_rows(axes, names, size)
    return as_svg(figure, _label_of(margin), key)


def _furthest_levels(margin: Margin) -> Sequence[int]:
    """Return the positions of the levels that are drawn, in order."""
    n_levels = len(margin.levels)
    if n_levels <= MOST_ROWS:
        return range(n_levels)
    synthetic = margin.synthetic or [0.0] * n_levels
    apart = [abs(margin.table[row] - synthetic[row]) for row in range(n_levels)]
    furthest = sorted(range(n_levels), key=lambda row: -apart[row])
    return sorted(furthest[:MOST_ROWS])


def _spacing(n_rows: int) -> tuple[int, float]:
    """Return the height of a row, and the size of its name."""
    if n_rows <= 12:
        return 20, 11
    return (15, 11) if n_rows <= 20 else (11, 8.5)


def _share_limit(largest: float) -> float:
    """Return the end of an axis of shares."""
    for limit in LIMITS:
        if limit >= largest - 1e-9:
            return limit
    return 1.0


def _label_of(margin: Margin) -> str:
    label = f"{margin.title}: shares of {len(margin.levels)} levels in the table"
    if margin.furthest is None:
        return f"{label}; no synthetic set has records"
    ours = percent(margin.table[margin.furthest])
    theirs = percent(margin.synthetic[margin.furthest])
    return (
        f"{label} and in the synthetic sets; total variation distance "
        f"{number(margin.distance)}; furthest apart: "
        f"{margin.levels[margin.furthest]}, {ours} in the table, {theirs} synthetic"
    )


@styled
def two_way(pairs: TwoWay, key: str) -> str:
    """Draw the distances of all pairs: a triangle whose names stand at the end of their
    row, above their column.
    """
    n_columns = len(pairs.columns)
    cell = 10
    if n_columns <= 40:
        cell = 19 if n_columns <= 18 else 14
    size = min(11.0, cell * 0.75)
    names = [fit(name, 16) for name in pairs.columns]
    ends = []
    for row, name in enumerate(names):
        ends.append(cell * row + 8 + width_in_letters(name) * size * 0.6)
    figure, axes = sheet(max(ends), cell * n_columns + 2)
    furthest, first, second = pairs.pairs()[0]
    distances = np.array(pairs.distance, float)
    down, across = np.nonzero(np.tril(~np.isnan(distances), -1))
    strengths = distances[down, across] / (furthest or 1.0)
    axes.scatter(
        cell * (across + 0.5),
        cell * (down + 0.5),
        s=(cell - 1.5) ** 2,
        marker="s",
        facecolors=[(ACCENT, strength) for strength in strengths],
        edgecolors=RULE,
        linewidths=0.75,
    )
    for row, name in enumerate(names):
        left = cell * row + 5
        middle = cell * (row + 0.5)
        axes.text(left, middle, name, va="center_baseline", fontsize=size)
    label = (
        f"Total variation distances of {len(down)} pairs of columns; largest "
        f"{number(furthest)}: {first} and {second}"
    )
    return as_svg(figure, label, key)


@styled
def roc_bound(
    power: Callable[[float], float], marked: Sequence[float], label: str
) -> str:
    """Draw the largest power of a test against its level, with blind guessing as the
    diagonal.
    """
    evenly = np.linspace(0, 1, 101)
    small = np.geomspace(1e-4, 0.1, 25)
    levels = np.unique([*marked, *evenly, *small])
    bound = [min(1.0, power(float(level))) for level in levels]
    figure, axes = panel(
        "false positives",
        "true positives, at most",
        width=300,
        height=278,
        margins=(46, 24, 40, 8),
    )
    axes.fill_between(levels, levels, bound, color=ACCENT, alpha=0.14, linewidth=0)
    axes.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle="--")
    axes.plot(levels, bound, color=ACCENT, linewidth=2)
    bound_there = [power(level) for level in marked]
    axes.plot(marked, bound_there, "o", color=ACCENT, markersize=7)
    ticks = (0, 0.25, 0.5, 0.75, 1)
    spelt = [
        percent(share, short=True) if share in (0, 0.5, 1) else "" for share in ticks
    ]
    axes.set(
        xlim=(0, 1),
        ylim=(0, 1),
        xticks=ticks,
        yticks=ticks,
        xticklabels=spelt,
        yticklabels=spelt,
    )
    axes.tick_params(labelsize=11)
    axes.grid(axis="both")
    return as_svg(figure, label, "roc bound")


@styled
def density(found: ColumnDensity, key: str) -> str:
    """Draw a numeric column: grey bars for the table, an outline for the sets; areas
    are shares.
    """
    edges = np.asarray(found.edges)
    low = found.edges[0]
    high = found.edges[-1]
    middle = math.sqrt(low * high) if found.log else (low + high) / 2
    ends = (low, middle, high)
    places = [math.log(value) for value in ends] if found.log else ends
    names = [number(value) for value in ends]
    ticks = dict(zip(places, names, strict=True))
    steps = np.log(edges) if found.log else edges
    figure, _ = _steps(steps, found.table, found.sets, ticks)
    return as_svg(figure, _label_of_density(found), key)


def _label_of_density(found: ColumnDensity) -> str:
    width = "share of log width" if found.log else "share of width"
    label = f"{found.title}: {width} in {len(found.table)} cells"
    if found.distance is None:
        return f"{label}; no synthetic set has records"
    apart = [
        abs(ours - theirs) for ours, theirs in zip(found.table, found.sets, strict=True)
    ]
    furthest = apart.index(max(apart))
    low = number(found.edges[furthest])
    high = number(found.edges[furthest + 1])
    ours = percent(found.table[furthest])
    theirs = percent(found.sets[furthest])
    return (
        f"{label}; total variation distance {number(found.distance)}; furthest apart: "
        f"{low} to {high}, {ours} in the table, {theirs} synthetic"
    )


def _steps(
    edges: Any,
    ours: Sequence[float],
    theirs: Sequence[float],
    ticks: Mapping[float, str],
) -> tuple["Figure", "Axes"]:
    """Draw shares of cells by their areas, ours filled, theirs as an outline, with
    names at both ends and between.
    """
    figure, axes = panel(height=116, margins=(8, 8, 20, 6))
    widths = np.diff(edges)
    heights = ours / widths
    top = max(heights)
    axes.stairs(heights, edges, fill=True, color=BAR)
    if theirs:
        outline = theirs / widths
        top = max(top, *outline)
        axes.stairs(outline, edges, color=ACCENT, linewidth=1.5)
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, top or 1.0), yticks=[])
    axes.spines["left"].set_visible(False)
    axes.set_xticks(list(ticks), list(ticks.values()))
    sides: tuple[Any, ...] = ("left", "center", "right")
    for label, side in zip(axes.get_xticklabels(), sides, strict=True):
        label.set_horizontalalignment(side)
    return figure, axes


@styled
def forest(found: AnalysisComparison, key: str) -> str:
    """Draw intervals, a row a coefficient: a broad band for the table's, a line with a
    dot for that of the sets.

    Each row is measured from the table's estimate in standard errors of it, so that
    coefficients of all units fit.
    """
    rows = coefficients(found)
    names = [fit(row.coefficient, 22) for row in rows]
    left = 16 + widest(names, 10)
    height = 26 * len(rows)
    margins = (left, 16, 18, 4)
    figure, axes = panel(width=left + 206, height=height + 22, margins=margins)
    scaled = _in_standard_errors(rows, found.level)
    ends = np.abs(np.concatenate(scaled[:2], axis=1))
    furthest = math.ceil(np.max(ends, initial=0, where=np.isfinite(ends)))
    limit = min(MOST_ERRORS, max(LEAST_ERRORS, furthest))
    # far beyond the edges numbers are too large to draw
    table, sets, at, zero = (np.clip(part, -2 * limit, 2 * limit) for part in scaled)
    upper = np.arange(len(rows)) - 0.19
    lower = upper + 0.38
    axes.hlines(upper, *table.T, color=BAR, linewidth=8)
    axes.plot(0 * zero, upper, "|", color=INK, markersize=8, markeredgewidth=1.5)
    axes.plot(zero, upper, "x", color=QUIET, markersize=5, markeredgewidth=1)
    axes.hlines(lower, *sets.T, color=ACCENT, linewidth=1.5)
    axes.plot(at, lower, "o", color=ACCENT, markersize=6)
    ticks = (-limit, 0, limit)
    axes.set(xlim=(-limit, limit), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(ticks, [f"{MINUS}{limit}", "0", f"+{limit}"])
    name_rows(axes, names, 10)
    return as_svg(figure, _label_of_forest(found), key, clip=True)


def _label_of_forest(found: AnalysisComparison) -> str:
    told = found.told
    n_covered = sum(one.covered for one in told)
    label = (
        f"Coefficients of {found.formula}: for {n_covered} of {len(told)} the table's "
        "estimate lies inside the interval of the sets"
    )
    known = [one for one in told if one.standardized_difference is not None]
    if not known:
        return label
    worst = max(known, key=lambda one: abs(one.standardized_difference or 0))
    ours = number(worst.original)
    theirs = number(worst.combined)
    return (
        f"{label}; furthest apart: {worst.coefficient}, {ours} from the table, "
        f"{theirs} from the sets"
    )


def coefficients(found: AnalysisComparison) -> list[Coefficient]:
    """Return the coefficients that are drawn: those that the table tells, at most 40 of
    them, the furthest off.
    """
    told = found.told
    if len(told) <= MOST_COEFFICIENTS:
        return told
    gaps = []
    for row in told:
        gap = row.standardized_difference
        gaps.append(math.inf if gap is None else abs(gap))
    furthest = sorted(range(len(told)), key=lambda place: -gaps[place])
    return [told[place] for place in sorted(furthest[:MOST_COEFFICIENTS])]


def _in_standard_errors(
    rows: Sequence[Coefficient], level: float
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return the intervals of table and sets, shape (rows, 2), the sets' estimate and
    zero, in standard errors from the table's estimate; NaN for what isn't known.
    """
    table = np.array([(row.original_lower, row.original_upper) for row in rows], float)
    sets = np.array([(row.combined_lower, row.combined_upper) for row in rows], float)
    middle = np.array([row.original for row in rows], float)
    at = np.array([row.combined for row in rows], float)
    widths = np.diff(table)[:, 0]
    errors = widths / (2 * NormalDist().inv_cdf((1 + level) / 2))
    errors[~(errors > 0)] = np.nan
    table, sets = ((ends - middle[:, None]) / errors[:, None] for ends in (table, sets))
    return table, sets, (at - middle) / errors, -middle / errors


def name_rows(axes: "Axes", names: Sequence[str], size: float) -> None:
    """Write a name beside each row, and lines up from the ticks in place of a frame."""
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0, labelsize=size, labelcolor=INK, pad=6)
    axes.tick_params(axis="x", length=0)
    axes.spines[:].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", linewidth=0.75)


def fit(text: str, most: int) -> str:
    """Return printable text cut in the middle, for levels often differ only at their
    ends.
    """
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    keep = len(text)
    short = text
    while width_in_letters(short) > most:
        keep -= 1
        head = text[: keep - keep // 3]
        tail = text[len(text) - keep // 3 :]
        short = f"{head}\N{HORIZONTAL ELLIPSIS}{tail}"
    return short


def widest(names: Sequence[str], size: float) -> float:
    """Return about how many pixels the longest name takes."""
    return max(map(width_in_letters, names)) * size * 0.6
