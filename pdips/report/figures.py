"""Figures of the report and the card: matplotlib axes in one style, as SVG for the inside of a page.

No date, no address. Colours are stand-ins that become the variables of the page's style sheet, so that figures follow
it from light to dark.
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
from markupsafe import Markup
from rich.cells import cell_len  # in letters, of which those of East Asia take two

from pdips.evaluation.document import AnalysisComparison, Coefficient, ColumnDensity, PairDifference, PropensitySpread
from pdips.release.documents import Margin, TwoWay
from pdips.report.formats import MINUS, number, percent, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, QUIET, RULE, BAR, ACCENT = "#010203", "#010204", "#010205", "#010206", "#010207"
SERIES = ("#020101", "#020102", "#020103", "#020104", "#020105", "#020106", "#020107", "#020108")
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
    "svg.fonttype": "none",  # text stays text: a letter which this machine's font lacks is the reader's font's business
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
MORE, LESS = ACCENT, SERIES[3]
STRONGEST = 0.45  # Opacity of the largest difference: text on it stays readable, light and dark
CELLS = ((3, 96), (5, 70), (10, 40), (1000, 30))  # Up to so many columns of a heat map are so wide
FLAT = 70  # From this width names stand level above their column
LEFTWARDS, RIGHTWARDS = "\N{BLACK LEFT-POINTING SMALL TRIANGLE}", "\N{BLACK RIGHT-POINTING SMALL TRIANGLE}"
MOST_COEFFICIENTS = 40
MOST_MARKS = 20
LEAST_ERRORS, MOST_ERRORS = 3, 12  # The figure of coefficients goes to at least and at most so many standard errors


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
    """Return an empty figure and its axes with their names; margins are left, right, bottom, top."""
    from matplotlib.figure import Figure

    left, right, bottom, top = margins
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    inner = (left / width, bottom / height, (width - left - right) / width, (height - bottom - top) / height)
    return figure, figure.add_axes(inner, xlabel=across, ylabel=up)


def sheet(width: float, height: float) -> tuple["Figure", "Axes"]:
    """Return an empty figure whose axes, without ticks, count pixels from the top left."""
    figure, axes = panel(width=width, height=height, margins=(0, 0, 0, 0))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return figure, axes


def as_svg(figure: "Figure", label: str, key: str, *, clip: bool = False) -> Markup:
    """Return an SVG element for the inside of a page: what only a file of its own needs is taken off.

    It is marked as safe for templates, and so are the texts that functions here return.
    """
    from matplotlib import rc_context

    out = StringIO()
    for artist in () if clip else figure.findobj():
        artist.set_clip_on(False)
    with rc_context(STYLE | {"svg.hashsalt": f"pdips {key}"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    body = out.getvalue()
    body = body[body.index("<svg") :]
    only_for_files = r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|(?<=<g) id=\"[\w.]+\""
    body = re.sub(only_for_files, "", body, flags=re.DOTALL)
    body = re.sub(r"font-family: [^;\"]*;? ?|transform=\"rotate\(-0 [^\"]*\"", "", body)
    for stand_in, variable in VARIABLES.items():
        body = body.replace(stand_in, f"var({variable})")
    width, height = figure.get_size_inches() * 72
    opening = (
        f'<svg class="picture" role="img" aria-label="{html.escape(label)}" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" style="--width: {width:g}px">'
    )
    return Markup(opening + body[body.index(">") + 1 :])


@styled
def one_way(margin: Margin, key: str) -> str:
    """Draw one column: a bar for the table's share of each level, a dot for the sets'; of many levels the furthest."""
    rows: Sequence[int] = range(len(margin.levels))
    if len(rows) > MOST_ROWS:
        other = margin.synthetic or [0.0] * len(rows)
        rows = sorted(sorted(rows, key=lambda row: -abs(margin.table[row] - other[row]))[:MOST_ROWS])
    step = 20 if len(rows) <= 12 else 15 if len(rows) <= 20 else 11
    size = 11 if step > 11 else 8.5
    names = [fit(margin.levels[row], 20) for row in rows]
    figure, axes = panel(height=20 + step * len(rows), margins=(12 + _widest(names, size), 22, 16, 4))
    places, table = range(len(rows)), [margin.table[row] for row in rows]
    axes.barh(places, table, 0.5, color=BAR)
    if margin.synthetic:
        synthetic = [margin.synthetic[row] for row in rows]
        axes.hlines(places, table, synthetic, color=ACCENT, linewidth=1.25)
        axes.plot(synthetic, places, "o", color=ACCENT, markersize=step * 0.36)
    limit = next((limit for limit in LIMITS if limit >= max(margin.table + margin.synthetic) - 1e-9), 1.0)
    axes.set(xlim=(0, limit), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks([0, limit / 2, limit], [percent(share, short=True) for share in (0, limit / 2, limit)])
    _name_rows(axes, names, size)
    label = f"{margin.title}: shares of {len(margin.levels)} levels in the table"
    if margin.furthest is None:
        return as_svg(figure, f"{label}; no synthetic set has records", key)
    ours, theirs = percent(margin.table[margin.furthest]), percent(margin.synthetic[margin.furthest])
    label += (
        f" and in the synthetic sets; total variation distance {number(margin.distance)}; furthest apart: "
        f"{margin.levels[margin.furthest]}, {ours} in the table, {theirs} synthetic"
    )
    return as_svg(figure, label, key)


@styled
def two_way(pairs: TwoWay, key: str) -> str:
    """Draw the distances of all pairs: a triangle whose names stand at the end of their row, above their column."""
    n = len(pairs.columns)
    cell = 19 if n <= 18 else 14 if n <= 40 else 10
    size = min(11.0, cell * 0.75)
    names = [fit(name, 16) for name in pairs.columns]
    figure, axes = sheet(max(cell * i + 8 + cell_len(name) * size * 0.6 for i, name in enumerate(names)), cell * n + 2)
    furthest, a, b = pairs.pairs()[0]
    known = [(i, j, value) for i in range(n) for j in range(i) if (value := pairs.distance[i][j]) is not None]
    axes.scatter(
        [cell * (j + 0.5) for _, j, _ in known],
        [cell * (i + 0.5) for i, _, _ in known],
        s=(cell - 1.5) ** 2,
        marker="s",
        facecolors=[(ACCENT, value / (furthest or 1.0)) for _, _, value in known],
        edgecolors=RULE,
        linewidths=0.75,
    )
    for place, name in enumerate(names):
        axes.text(cell * place + 5, cell * (place + 0.5), name, va="center_baseline", fontsize=size)
    label = f"Total variation distances of {len(known)} pairs of columns; largest {number(furthest)}: {a} and {b}"
    return as_svg(figure, label, key)


@styled
def roc_bound(power: Callable[[float], float], marked: Sequence[float], label: str) -> str:
    """Draw the largest power of a test against its level, with blind guessing as the diagonal."""
    levels = np.unique([*marked, *np.linspace(0, 1, 101), *np.geomspace(1e-4, 0.1, 25)])
    bound = [min(1.0, power(float(level))) for level in levels]
    figure, axes = panel("false positives", "true positives, at most", width=300, height=278, margins=(46, 24, 40, 8))
    axes.fill_between(levels, levels, bound, color=ACCENT, alpha=0.14, linewidth=0)
    axes.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle="--")
    axes.plot(levels, bound, color=ACCENT, linewidth=2)
    axes.plot(marked, [power(level) for level in marked], "o", color=ACCENT, markersize=7)
    ticks = (0, 0.25, 0.5, 0.75, 1)
    spelt = [percent(share, short=True) if share in (0, 0.5, 1) else "" for share in ticks]
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=ticks, yticks=ticks, xticklabels=spelt, yticklabels=spelt)
    axes.tick_params(labelsize=11)
    axes.grid(axis="both")
    return as_svg(figure, label, "roc bound")


@styled
def density(found: ColumnDensity, key: str) -> str:
    """Draw a numeric column: grey bars for the table, an outline for the sets; areas are shares."""
    edges = np.asarray(found.edges)
    low, high = found.edges[0], found.edges[-1]
    middle = math.sqrt(low * high) if found.log else (low + high) / 2
    label = f"{found.title}: {'share of log width' if found.log else 'share of width'} in {len(found.table)} cells"
    if found.distance is None:
        label += "; no synthetic set has records"
    else:
        place = max(range(len(found.table)), key=lambda at: abs(found.table[at] - found.sets[at]))
        label += (
            f"; total variation distance {number(found.distance)}; furthest apart: {number(found.edges[place])} to "
            f"{number(found.edges[place + 1])}, {percent(found.table[place])} in the table, "
            f"{percent(found.sets[place])} synthetic"
        )
    ticks = {math.log(value) if found.log else value: number(value) for value in (low, middle, high)}
    figure, _ = _steps(np.log(edges) if found.log else edges, found.table, found.sets, ticks)
    return as_svg(figure, label, key)


@styled
def propensity(found: PropensitySpread, key: str) -> str:
    """Draw how the scores of table and sets are spread, and mark where their distribution functions differ most."""
    n = len(found.table)
    filled = [at for at in range(n) if found.table[at] or found.sets[at]] or [0, n - 1]
    first = min(max(0, filled[0] - 1), *(int(at * n) for at in found.at))
    last = max(min(n, filled[-1] + 2), *(math.ceil(at * n) for at in found.at))
    ticks = {at / n: f"{at / n:.2f}" for at in (first, (first + last) / 2, last)}
    figure, axes = _steps(np.arange(first, last + 1) / n, found.table[first:last], found.sets[first:last], ticks)
    axes.vlines(found.at[:MOST_MARKS], 0, axes.get_ylim()[1], color=INK, linewidth=0.9, linestyle="--")
    low, high = f"{min(found.at):.2f}", f"{max(found.at):.2f}"
    label = (
        "Propensity scores of the table and of the synthetic sets: their distribution functions are "
        f"{number(math.fsum(found.distance) / len(found.distance))} apart on average over "
        f"{plural(len(found.distance), 'set')}, at a score of {low if low == high else f'{low} to {high}'}"
    )
    return as_svg(figure, label, key)


def _steps(
    edges: Any, ours: Sequence[float], theirs: Sequence[float], ticks: Mapping[float, str]
) -> tuple["Figure", "Axes"]:
    """Draw shares of cells by their areas, ours filled, theirs as an outline, with names at both ends and between."""
    figure, axes = panel(height=116, margins=(8, 8, 20, 6))
    widths = np.diff(edges)
    axes.stairs(ours / widths, edges, fill=True, color=BAR)
    if theirs:
        axes.stairs(theirs / widths, edges, color=ACCENT, linewidth=1.5)
    top = max([*(ours / widths), *(theirs / widths if theirs else ())]) or 1.0
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, top), yticks=[])
    axes.spines["left"].set_visible(False)
    axes.set_xticks(list(ticks), list(ticks.values()))
    sides: tuple[Any, ...] = ("left", "center", "right")
    for label, side in zip(axes.get_xticklabels(), sides, strict=True):
        label.set_horizontalalignment(side)
    return figure, axes


@styled
def difference(pair: PairDifference, key: str) -> str:
    """Draw a heat map: in each cell the share in the sets minus that in the table, in points with its sign."""
    rows, across = pair.levels
    cell = next(size for most, size in CELLS if len(across) <= most)
    flat = cell >= FLAT
    names, heads = [fit(name, 18) for name in rows], [fit(name, cell // 6 if flat else 16) for name in across]
    left, top = 8 + _widest(names, 10), 16.0 if flat else 8 + _widest(heads, 10)
    figure, axes = sheet(left + cell * len(across) + 2, top + 19 * len(rows) + 2)
    value, a, b = pair.furthest()
    digits = 1 if not value else min(4, max(0, 1 - math.floor(math.log10(100 * abs(value)))))
    for i, name in enumerate(names):
        y = top + 19 * (i + 0.5)
        axes.text(left - 6, y, name, ha="right", va="center_baseline", fontsize=10)
        for j, apart in enumerate(pair.difference[i]):
            x = left + cell * (j + 0.5)
            colour = (MORE if apart > 0 else LESS, STRONGEST * abs(apart) / abs(value) if value else 0.0)
            axes.barh(y, cell - 1.5, 17.5, x - cell / 2 + 0.75, facecolor=colour, edgecolor=RULE, linewidth=0.5)
            axes.text(x, y, _signed(100 * apart, digits), ha="center", va="center_baseline", fontsize=8.5)
    for j, head in enumerate(heads):
        x = left + cell * (j + 0.5)
        if flat:
            axes.text(x, 8, head, ha="center", va="center_baseline", fontsize=10)
        else:
            axes.text(x, top - 4, head, rotation=90, ha="center", va="bottom", fontsize=10)
    label = (
        f"{pair.columns[0]} and {pair.columns[1]}: total variation distance {number(pair.distance)}; furthest apart: "
        f"{a} with {b}, {_signed(100 * value, digits)} percentage points in the synthetic sets"
    )
    return as_svg(figure, label, key)


@styled
def forest(found: AnalysisComparison, key: str) -> str:
    """Draw intervals, a row a coefficient: a broad band for the table's, a line with a dot for that of the sets.

    Each row is measured from the table's estimate in standard errors of it, so that coefficients of all units fit.
    """
    rows = coefficients(found)
    names = [fit(row.coefficient, 22) for row in rows]
    left, height = 16 + _widest(names, 10), 26 * len(rows)
    figure, axes = panel(width=left + 206, height=height + 22, margins=(left, 16, 18, 4))
    scaled = [_in_standard_errors(row, found.level) for row in rows]
    reach = [math.ceil(max(map(abs, [*one.get("table", ()), *one.get("sets", ()), 0.0]))) for one in scaled]
    limit = min(MOST_ERRORS, max(LEAST_ERRORS, *reach))
    for place, one in enumerate(scaled):
        table, sets = place - 0.19, place + 0.19
        if "table" in one:
            _interval(axes, one["table"], table, limit, color=BAR, linewidth=8)
            axes.vlines(0, table - 0.15, table + 0.15, color=INK, linewidth=1.5)
        if "sets" in one:
            _interval(axes, one["sets"], sets, limit, color=ACCENT, linewidth=1.5)
        if "at" in one and abs(one["at"][0]) <= limit:
            axes.plot(one["at"], sets, "o", color=ACCENT, markersize=6)
        if "zero" in one and abs(one["zero"][0]) <= limit:
            axes.text(one["zero"][0], table, "0", ha="center", va="center_baseline", fontsize=9)
    ticks = (-limit, 0, limit)
    axes.set(xlim=(-limit, limit), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(ticks, [_signed(value, 0) for value in ticks])
    _name_rows(axes, names, 10)
    told = found.told
    label = (
        f"Coefficients of {found.formula}: for {sum(one.covered for one in told)} of {len(told)} the table's estimate "
        "lies inside the interval of the sets"
    )
    known = [one for one in told if one.standardized_difference is not None]
    if known:
        worst = max(known, key=lambda one: abs(one.standardized_difference or 0))
        ours, theirs = number(worst.original), number(worst.combined)
        label += f"; furthest apart: {worst.coefficient}, {ours} from the table, {theirs} from the sets"
    return as_svg(figure, label, key)


def coefficients(found: AnalysisComparison) -> list[Coefficient]:
    """Return the coefficients that are drawn: those that the table tells, at most 40 of them, the furthest off."""
    told = found.told
    if len(told) <= MOST_COEFFICIENTS:
        return told
    gaps = [math.inf if one.standardized_difference is None else abs(one.standardized_difference) for one in told]
    kept = sorted(range(len(told)), key=lambda place: -gaps[place])[:MOST_COEFFICIENTS]
    return [told[place] for place in sorted(kept)]


def _in_standard_errors(row: Coefficient, level: float) -> dict[str, list[float]]:
    """Return the intervals, the sets' estimate and zero, in standard errors from the table's estimate; known ones."""
    middle, low, high = row.original, row.original_lower, row.original_upper
    if middle is None or low is None or high is None or not high > low:
        return {}
    error = (high - low) / 2 / NormalDist().inv_cdf((1 + level) / 2)
    known: dict[str, list[float | None]] = {
        "table": [low, high],
        "sets": [row.combined_lower, row.combined_upper],
        "at": [row.combined],
        "zero": [0.0],
    }
    return {
        name: [(value - middle) / error for value in values if value is not None]
        for name, values in known.items()
        if None not in values
    }


def _interval(axes: "Axes", ends: Sequence[float], y: float, limit: float, **style: Any) -> None:
    """Draw an interval as far as the figure goes, with a triangle where it goes on."""
    low, high = ends
    if high > -limit and low < limit:
        axes.hlines(y, max(low, -limit), min(high, limit), **style)
    beyond = limit * (1 + 4 / 95)  # 4 pixels
    for end, sign, mark in ((low, -1, LEFTWARDS), (high, 1, RIGHTWARDS)):
        if sign * end > limit:
            axes.text(sign * beyond, y, mark, ha="center", va="center_baseline", fontsize=9)


def _name_rows(axes: "Axes", names: Sequence[str], size: float) -> None:
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
    """Return printable text cut in the middle, for levels often differ only at their ends."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    keep, short = len(text), text
    while cell_len(short) > most:
        keep -= 1
        short = f"{text[: keep - keep // 3]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - keep // 3 :]}"
    return short


def _widest(names: Sequence[str], size: float) -> float:
    """Return about how many pixels the longest name takes."""
    return max(map(cell_len, names)) * size * 0.6
