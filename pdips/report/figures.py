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

from pdips.evaluation.document import (
    AnalysisComparison,
    Coefficient,
    ColumnDensity,
    PairDifference,
    PropensitySpread,
)
from pdips.release.documents import Margin, TwoWay
from pdips.report.formats import MINUS, number, percent, plural, width_in_letters

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
MORE = ACCENT
LESS = SERIES[3]
# Opacity of the largest difference: text on it stays readable, light and dark
STRONGEST = 0.45
CELL_HEIGHT = 19  # Of a heat map
# Up to so many columns of a heat map are so wide
CELLS = ((3, 96), (5, 70), (10, 40), (1000, 30))
FLAT = 70  # From this width names stand level above their column
LEFTWARDS = "\N{BLACK LEFT-POINTING SMALL TRIANGLE}"
RIGHTWARDS = "\N{BLACK RIGHT-POINTING SMALL TRIANGLE}"
MOST_COEFFICIENTS = 40
MOST_MARKS = 20
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
    known = _known_pairs(pairs)
    _squares(axes, known, cell, furthest or 1.0)
    for row, name in enumerate(names):
        left = cell * row + 5
        middle = cell * (row + 0.5)
        axes.text(left, middle, name, va="center_baseline", fontsize=size)
    label = (
        f"Total variation distances of {len(known)} pairs of columns; largest "
        f"{number(furthest)}: {first} and {second}"
    )
    return as_svg(figure, label, key)


def _squares(
    axes: "Axes", known: list[tuple[int, int, float]], cell: float, largest: float
) -> None:
    """Draw a square for each row and column, as strong as their distance is large."""
    across = [cell * (column + 0.5) for _, column, _ in known]
    down = [cell * (row + 0.5) for row, _, _ in known]
    colours = [(ACCENT, distance / largest) for _, _, distance in known]
    axes.scatter(
        across,
        down,
        s=(cell - 1.5) ** 2,
        marker="s",
        facecolors=colours,
        edgecolors=RULE,
        linewidths=0.75,
    )


def _known_pairs(pairs: TwoWay) -> list[tuple[int, int, float]]:
    """Return row, column and distance of the pairs that have one."""
    known = []
    for row, distances in enumerate(pairs.distance):
        for column, distance in enumerate(distances[:row]):
            if distance is not None:
                known.append((row, column, distance))
    return known


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


@styled
def propensity(found: PropensitySpread, key: str) -> str:
    """Draw how the scores of table and sets are spread, and mark where their
    distribution functions differ most.
    """
    n_cells = len(found.table)
    first, last = _filled_cells(found)
    middle = (first + last) / 2
    ticks = {cell / n_cells: f"{cell / n_cells:.2f}" for cell in (first, middle, last)}
    ours = found.table[first:last]
    theirs = found.sets[first:last]
    figure, axes = _steps(np.arange(first, last + 1) / n_cells, ours, theirs, ticks)
    top = axes.get_ylim()[1]
    marks = found.at[:MOST_MARKS]
    axes.vlines(marks, 0, top, color=INK, linewidth=0.9, linestyle="--")
    low = f"{min(found.at):.2f}"
    high = f"{max(found.at):.2f}"
    mean = math.fsum(found.distance) / len(found.distance)
    label = (
        "Propensity scores of the table and of the synthetic sets: their "
        f"distribution functions are {number(mean)} apart on average over "
        f"{plural(len(found.distance), 'set')}, at a score of "
        f"{low if low == high else f'{low} to {high}'}"
    )
    return as_svg(figure, label, key)


def _filled_cells(found: PropensitySpread) -> tuple[int, int]:
    """Return the first cell that is drawn and the one after the last: those with
    scores or marks, and one beside them.
    """
    n_cells = len(found.table)
    filled = []
    for cell in range(n_cells):
        if found.table[cell] or found.sets[cell]:
            filled.append(cell)
    if not filled:
        filled = [0, n_cells - 1]
    marks = [score * n_cells for score in found.at]
    first = min(max(0, filled[0] - 1), *map(int, marks))
    last = max(min(n_cells, filled[-1] + 2), *map(math.ceil, marks))
    return first, last


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
def difference(pair: PairDifference, key: str) -> str:
    """Draw a heat map: in each cell the share in the sets minus that in the table, in
    points with its sign.
    """
    rows, columns = pair.levels
    width = next(size for most, size in CELLS if len(columns) <= most)
    names = [fit(name, 18) for name in rows]
    heads = [fit(name, width // 6 if width >= FLAT else 16) for name in columns]
    left = 8 + widest(names, 10)
    top = 16.0 if width >= FLAT else 8 + widest(heads, 10)
    right = left + width * len(columns)
    figure, axes = sheet(right + 2, top + CELL_HEIGHT * len(rows) + 2)
    furthest = pair.furthest()[0]
    for i, name in enumerate(names):
        y = top + CELL_HEIGHT * (i + 0.5)
        axes.text(left - 6, y, name, ha="right", va="center_baseline", fontsize=10)
        for j, apart in enumerate(pair.difference[i]):
            strength = apart / abs(furthest) if furthest else 0.0
            text = _signed(100 * apart, _digits(furthest))
            _cell(axes, left + width * j, y, width, strength, text)
    _name_columns(axes, heads, left, top, width)
    return as_svg(figure, _label_of_difference(pair), key)


def _label_of_difference(pair: PairDifference) -> str:
    furthest, row, column = pair.furthest()
    most = _signed(100 * furthest, _digits(furthest))
    return (
        f"{pair.columns[0]} and {pair.columns[1]}: total variation distance "
        f"{number(pair.distance)}; furthest apart: {row} with {column}, {most} "
        f"percentage points in the synthetic sets"
    )


def _digits(share: float) -> int:
    """Return how many decimals show a share in points at two digits."""
    if not share:
        return 1
    return min(4, max(0, 1 - math.floor(math.log10(100 * abs(share)))))


def _cell(
    axes: "Axes", left: float, y: float, width: float, strength: float, text: str
) -> None:
    """Draw a cell of a heat map with its number; ``strength`` is from -1 to 1."""
    colour = MORE if strength > 0 else LESS
    axes.barh(
        y,
        width - 1.5,
        CELL_HEIGHT - 1.5,
        left + 0.75,
        facecolor=(colour, STRONGEST * abs(strength)),
        edgecolor=RULE,
        linewidth=0.5,
    )
    middle = left + width / 2
    axes.text(middle, y, text, ha="center", va="center_baseline", fontsize=8.5)


def _name_columns(
    axes: "Axes", names: Sequence[str], left: float, top: float, width: float
) -> None:
    """Write names above columns: level where there is room, or upright."""
    for j, name in enumerate(names):
        x = left + width * (j + 0.5)
        if width >= FLAT:
            axes.text(x, 8, name, ha="center", va="center_baseline", fontsize=10)
        else:
            y = top - 4
            axes.text(x, y, name, rotation=90, ha="center", va="bottom", fontsize=10)


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
    scaled = [_in_standard_errors(row, found.level) for row in rows]
    limit = _reach(scaled)
    for place, intervals in enumerate(scaled):
        _draw_row(axes, place, intervals, limit)
    ticks = (-limit, 0, limit)
    axes.set(xlim=(-limit, limit), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(ticks, [_signed(value, 0) for value in ticks])
    name_rows(axes, names, 10)
    return as_svg(figure, _label_of_forest(found), key)


def _reach(scaled: Sequence[Mapping[str, Sequence[float]]]) -> int:
    """Return how many standard errors a forest shows on both sides."""
    furthest = 0.0
    for intervals in scaled:
        ends = [*intervals.get("table", ()), *intervals.get("sets", ())]
        furthest = max([furthest, *map(abs, ends)])
    return min(MOST_ERRORS, max(LEAST_ERRORS, math.ceil(furthest)))


def _draw_row(
    axes: "Axes", place: int, intervals: Mapping[str, Sequence[float]], limit: float
) -> None:
    """Draw both intervals of a coefficient, and where zero is."""
    table = place - 0.19
    sets = place + 0.19
    if "table" in intervals:
        _interval(axes, intervals["table"], table, limit, color=BAR, linewidth=8)
        axes.vlines(0, table - 0.15, table + 0.15, color=INK, linewidth=1.5)
    if "sets" in intervals:
        _interval(axes, intervals["sets"], sets, limit, color=ACCENT, linewidth=1.5)
    for at in intervals.get("at", ()):
        if abs(at) <= limit:
            axes.plot([at], sets, "o", color=ACCENT, markersize=6)
    for zero in intervals.get("zero", ()):
        if abs(zero) <= limit:
            axes.text(zero, table, "0", ha="center", va="center_baseline", fontsize=9)


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


def _in_standard_errors(row: Coefficient, level: float) -> dict[str, list[float]]:
    """Return the intervals, the sets' estimate and zero, in standard errors from the
    table's estimate; known ones.
    """
    middle = row.original
    low = row.original_lower
    high = row.original_upper
    if middle is None or low is None or high is None or not high > low:
        return {}
    n_errors = 2 * NormalDist().inv_cdf((1 + level) / 2)
    error = (high - low) / n_errors
    known: dict[str, list[float | None]] = {
        "table": [low, high],
        "sets": [row.combined_lower, row.combined_upper],
        "at": [row.combined],
        "zero": [0.0],
    }
    scaled = {}
    for name, values in known.items():
        there = [value for value in values if value is not None]
        if len(there) == len(values):
            scaled[name] = [(value - middle) / error for value in there]
    return scaled


def _interval(
    axes: "Axes", ends: Sequence[float], y: float, limit: float, **style: Any
) -> None:
    """Draw an interval as far as the figure goes, with a triangle where it goes on."""
    low, high = ends
    if high > -limit and low < limit:
        axes.hlines(y, max(low, -limit), min(high, limit), **style)
    beyond = limit * (1 + 4 / 95)  # 4 pixels
    for end, sign, mark in ((low, -1, LEFTWARDS), (high, 1, RIGHTWARDS)):
        if sign * end > limit:
            axes.text(
                sign * beyond, y, mark, ha="center", va="center_baseline", fontsize=9
            )


def name_rows(axes: "Axes", names: Sequence[str], size: float) -> None:
    """Write a name beside each row, and lines up from the ticks in place of a frame."""
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0, labelsize=size, labelcolor=INK, pad=6)
    axes.tick_params(axis="x", length=0)
    axes.spines[:].set_visible(False)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", linewidth=0.75)


def _signed(value: float, digits: int) -> str:
    """Return a number with its sign; one that rounds to 0 has none."""
    spelt = f"{value:+.{digits}f}".replace("-", MINUS)
    return spelt if spelt.strip(f"+{MINUS}0.") else "0"


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
