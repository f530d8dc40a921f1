"""Pictures of an evaluation as SVG: densities, propensity scores, differences of two-way margins, coefficients."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import TYPE_CHECKING

from pdips.evaluation.document import AnalysisComparison, Coefficient, ColumnDensity, PairDifference, PropensitySpread
from pdips.report.formats import MINUS, number, percent, plural
from pdips.report.pictures import (
    ACCENT,
    BAR,
    INK,
    PANEL_WIDTH,
    QUIET,
    RULE,
    SERIES,
    as_svg,
    canvas,
    dots,
    fit,
    lines,
    text,
    width_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.transforms import Affine2D

MORE, LESS = ACCENT, SERIES[3]
STRONGEST = 0.45
"""Opacity of the largest difference: text on it stays readable, light and dark."""
CELLS = ((3, 96), (5, 70), (10, 40), (1000, 30))
"""Up to so many columns of a heat map are so wide, in pixels."""
FLAT = 70
"""From this width names stand level above their column."""
MOST_COEFFICIENTS = 40
MOST_MARKS = 20
LEAST_ERRORS, MOST_ERRORS = 3, 12
"""The picture of coefficients goes to at least and at most so many standard errors."""
TOP, FLOOR = 6, 96
"""Of the area that shares are drawn in, in pixels."""


def density(found: ColumnDensity, key: str) -> str:
    """Draw a numeric column: grey bars for the table, an outline for the sets; areas are shares."""
    ours, theirs = _heights(found.edges, found.table, found.log), _heights(found.edges, found.sets, found.log)
    low, high = found.edges[0], found.edges[-1]

    def across(value: float) -> float:
        if found.log:
            return 8 + (PANEL_WIDTH - 16) * math.log(value / low) / math.log(high / low)
        return 8 + (PANEL_WIDTH - 16) * (value - low) / (high - low)

    middle = math.sqrt(low * high) if found.log else (low + high) / 2
    ticks = [(across(value), number(value), align) for value, align in _ends(low, middle, high)]
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
    return _steps([across(edge) for edge in found.edges], ours, theirs, ticks, [], label, key)


def propensity(found: PropensitySpread, key: str) -> str:
    """Draw how the scores of table and sets are spread, and mark where their distribution functions differ most."""
    n = len(found.table)
    filled = [at for at in range(n) if found.table[at] or found.sets[at]] or [0, n - 1]
    first, last = max(0, filled[0] - 1), min(n, filled[-1] + 2)
    first, last = min(first, *(int(at * n) for at in found.at)), max(last, *(math.ceil(at * n) for at in found.at))

    def across(score: float) -> float:
        return 8 + (PANEL_WIDTH - 16) * (score * n - first) / (last - first)

    edges = [across(at / n) for at in range(first, last + 1)]
    ticks = [(across(at / n), f"{at / n:.2f}", align) for at, align in _ends(first, (first + last) / 2, last)]
    mean = math.fsum(found.distance) / len(found.distance)
    low, high = f"{min(found.at):.2f}", f"{max(found.at):.2f}"
    where = low if low == high else f"{low} to {high}"
    label = (
        f"Propensity scores of the table and of the synthetic sets: their distribution functions are {number(mean)} "
        f"apart on average over {plural(len(found.distance), 'set')}, at a score of {where}"
    )
    marks = [across(at) for at in found.at[:MOST_MARKS]]
    return _steps(edges, found.table[first:last], found.sets[first:last], ticks, marks, label, key)


def difference(pair: PairDifference, key: str) -> str:
    """Draw a heat map: in each cell the share in the sets minus that in the table, in points with its sign."""
    from matplotlib.patches import Rectangle

    rows, across = pair.levels
    cell = next(size for most, size in CELLS if len(across) <= most)
    flat = cell >= FLAT
    names = [fit(name, 18) for name in rows]
    heads = [fit(name, cell // 6 if flat else 16) for name in across]
    left = 8 + max(map(width_of, names)) * 10 * 0.6
    top = 16.0 if flat else 8 + max(map(width_of, heads)) * 10 * 0.58
    figure, flip = canvas(left + cell * len(across) + 2, top + 19 * len(rows) + 2)
    value, a, b = pair.furthest()
    digits = 1 if not value else min(4, max(0, 1 - math.floor(math.log10(100 * abs(value)))))
    for i, name in enumerate(names):
        y = top + 19 * (i + 0.5)
        text(figure, flip, left - 6, y, name, "right", size=10)
        for j, apart in enumerate(pair.difference[i]):
            x = left + cell * j
            shade = STRONGEST * abs(apart) / abs(value) if value else 0.0
            colour = (MORE if apart > 0 else LESS, shade)
            box = Rectangle((x + 0.75, y - 8.75), cell - 1.5, 17.5, facecolor=colour, edgecolor=RULE, linewidth=0.5)
            box.set_transform(flip)
            figure.add_artist(box)
            text(figure, flip, x + cell / 2, y, _signed(100 * apart, digits), "center", size=8.5)
    for j, head in enumerate(heads):
        x = left + cell * (j + 0.5)
        if flat:
            text(figure, flip, x, 8, head, "center", size=10)
        else:
            figure.text(
                x, top - 4, head, transform=flip, rotation=90, ha="center", va="bottom", fontsize=10, color=INK,
                parse_math=False,
            )  # fmt: skip
    label = (
        f"{pair.columns[0]} and {pair.columns[1]}: total variation distance {number(pair.distance)}; furthest apart: "
        f"{a} with {b}, {_signed(100 * value, digits)} percentage points in the synthetic sets"
    )
    return as_svg(figure, label, key)


def forest(found: AnalysisComparison, key: str) -> str:
    """Draw intervals, a row a coefficient: a broad band for the table's, a line with a dot for that of the sets.

    Each row is measured from the table's estimate in standard errors of it, so that coefficients of all units fit.
    """
    rows = coefficients(found)
    names = [fit(row.coefficient, 22) for row in rows]
    left = 16 + max(map(width_of, names)) * 10 * 0.6
    right, bottom = left + 190, 4 + 26 * len(rows)
    figure, flip = canvas(right + 16, bottom + 18)
    scaled = [_scaled(row, found.level) for row in rows]
    limit = min(MOST_ERRORS, max(LEAST_ERRORS, *(math.ceil(one.reach) for one in scaled)))

    def across(errors: float) -> float:
        return left + (right - left) * (errors + limit) / (2 * limit)

    for errors in (-limit, 0, limit):
        lines(figure, flip, [[(across(errors), 2), (across(errors), bottom)]], RULE, 0.75)
        text(figure, flip, across(errors), bottom + 9, _signed(errors, 0), "center", size=9, colour=QUIET)
    for place, (one, name) in enumerate(zip(scaled, names, strict=True)):
        y = 4 + 26 * (place + 0.5)
        text(figure, flip, left - 10, y, name, "right", size=10)
        if one.table is not None:
            _interval(figure, flip, (*one.table, y - 5), limit, across, 8, BAR)
            lines(figure, flip, [[(across(0), y - 9), (across(0), y - 1)]], INK, 1.5)
        if one.sets is not None:
            _interval(figure, flip, (*one.sets, y + 5), limit, across, 1.5, ACCENT)
        if one.at is not None and abs(one.at) <= limit:
            dots(figure, flip, [across(one.at)], [y + 5], 6)
        if one.zero is not None and abs(one.zero) <= limit:
            text(figure, flip, across(one.zero), y - 5, "0", "center", size=9)
    return as_svg(figure, _described(found), key)


def coefficients(found: AnalysisComparison) -> list[Coefficient]:
    """Return the coefficients that are drawn: those that the table tells, at most 40 of them, the furthest off."""
    told = found.told
    if len(told) <= MOST_COEFFICIENTS:
        return told
    gaps = [math.inf if one.standardized_difference is None else abs(one.standardized_difference) for one in told]
    kept = sorted(range(len(told)), key=lambda place: -gaps[place])[:MOST_COEFFICIENTS]
    return [told[place] for place in sorted(kept)]


@dataclass(frozen=True)
class _Scaled:
    """A coefficient in standard errors from the table's estimate; None for what isn't known."""

    table: tuple[float, float] | None
    sets: tuple[float, float] | None
    at: float | None
    zero: float | None

    @property
    def reach(self) -> float:
        """How far its intervals go."""
        bounds: tuple[float, ...] = (*(self.table or ()), *(self.sets or ()), 0.0)
        return max(map(abs, bounds))


def _scaled(row: Coefficient, level: float) -> _Scaled:
    middle, low, high = row.original, row.original_lower, row.original_upper
    if middle is None or low is None or high is None or not high > low:
        return _Scaled(None, None, None, None)
    error = (high - low) / 2 / NormalDist().inv_cdf((1 + level) / 2)

    def scaled(value: float) -> float:
        return (value - middle) / error

    below, above = row.combined_lower, row.combined_upper
    return _Scaled(
        table=(scaled(low), scaled(high)),
        sets=None if below is None or above is None else (scaled(below), scaled(above)),
        at=None if row.combined is None else scaled(row.combined),
        zero=scaled(0.0),
    )


def _interval(
    figure: "Figure",
    flip: "Affine2D",
    drawn: tuple[float, float, float],
    limit: float,
    across: Callable[[float], float],
    thickness: float,
    colour: str,
) -> None:
    """Draw an interval as far as the picture goes, with a triangle where it goes on."""
    low, high, y = drawn
    if high > -limit and low < limit:
        lines(figure, flip, [[(across(max(low, -limit)), y), (across(min(high, limit)), y)]], colour, thickness)
    if low < -limit:
        text(figure, flip, across(-limit) - 4, y, "\N{BLACK LEFT-POINTING SMALL TRIANGLE}", "center", size=9)
    if high > limit:
        text(figure, flip, across(limit) + 4, y, "\N{BLACK RIGHT-POINTING SMALL TRIANGLE}", "center", size=9)


def _described(found: AnalysisComparison) -> str:
    told = found.told
    label = (
        f"Coefficients of {found.formula}: for {sum(one.covered for one in told)} of {len(told)} the table's estimate "
        "lies inside the interval of the sets"
    )
    known = [one for one in told if one.standardized_difference is not None]
    if not known:
        return label
    worst = max(known, key=lambda one: abs(one.standardized_difference or 0))
    return (
        f"{label}; furthest apart: {worst.coefficient}, {number(worst.original)} from the table, "
        f"{number(worst.combined)} from the sets"
    )


def _heights(edges: Sequence[float], shares: Sequence[float], log: bool) -> list[float]:
    widths = [math.log(b / a) if log else b - a for a, b in pairwise(edges)]
    return [share / width for share, width in zip(shares, widths, strict=False)]


def _ends(low: float, middle: float, high: float) -> list[tuple[float, str]]:
    return [(low, "left"), (middle, "center"), (high, "right")]


def _steps(
    edges: Sequence[float],
    ours: Sequence[float],
    theirs: Sequence[float],
    ticks: Sequence[tuple[float, str, str]],
    marks: Sequence[float],
    label: str,
    key: str,
) -> str:
    """Draw two step functions over cells whose edges are pixels: the first filled, the second as an outline."""
    from matplotlib.patches import Polygon

    figure, flip = canvas(PANEL_WIDTH, FLOOR + 20)
    top = max([*ours, *theirs, 0.0]) or 1.0

    def outline(heights: Sequence[float]) -> list[tuple[float, float]]:
        up = [FLOOR - (FLOOR - TOP) * height / top for height in heights]
        corners = [(x, y) for (a, b), y in zip(pairwise(edges), up, strict=True) for x in (a, b)]
        return [(edges[0], FLOOR), *corners, (edges[-1], FLOOR)]

    shape = Polygon(outline(ours), closed=True, facecolor=BAR, edgecolor="none", linewidth=0)
    shape.set_transform(flip)
    figure.add_artist(shape)
    lines(figure, flip, [[(edges[0], FLOOR), (edges[-1], FLOOR)]], RULE, 0.75)
    if theirs:
        lines(figure, flip, [outline(theirs)], ACCENT, 1.5)
    if marks:
        lines(figure, flip, [[(x, y), (x, y + 4)] for x in marks for y in range(2, FLOOR, 8)], INK, 0.9)
    for x, words, align in ticks:
        text(figure, flip, x, FLOOR + 11, words, align, size=9, colour=QUIET)
    return as_svg(figure, label, key)


def _signed(value: float, digits: int) -> str:
    """Return a number with its sign; one that rounds to 0 has none."""
    spelt = f"{abs(value):.{digits}f}"
    if not float(spelt):
        return "0"
    return f"{'+' if value > 0 else MINUS}{spelt}"
