"""Pictures of a comparison as SVG to set into a page: no date, no address, colours left to the page's style sheet.

They are drawn on bare figures in pixels from the top left: axes and their ticks would take most of the time.
"""

import html
import re
import unicodedata
import warnings
from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from pdips.release.documents import Margin, TwoWay
from pdips.report.formats import number, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.transforms import Affine2D

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
"""Stand-ins that become the variables of the page, so that pictures follow it from light to dark."""

PANEL_WIDTH = 340
MOST_ROWS = 60
LIMITS = (0.001, 0.002, 0.004, 0.01, 0.02, 0.04, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)


def one_way(margin: Margin, key: str) -> str:
    """Draw one column: a bar for the table's share of each level, a dot for the synthetic share.

    Parameters
    ----------
    margin : Margin
        Shares by level. Of more than 60 levels the 60 that differ most are drawn.
    key : str
        Unlike any other picture's on the page.
    """
    rows = _rows(margin)
    height = 20 if len(rows) <= 12 else 15 if len(rows) <= 20 else 11
    size = 11 if height > 11 else 8.5
    names = [fit(margin.levels[row], 20) for row in rows]
    left = 12 + max(width_of(name) for name in names) * size * 0.6
    bottom = 4 + height * len(rows)
    figure, flip = canvas(PANEL_WIDTH, bottom + 16)
    limit = _limit([*margin.table, *margin.synthetic])

    def across(share: float) -> float:
        return left + share / limit * (PANEL_WIDTH - left - 22)

    for share in (0, limit / 2, limit):
        lines(figure, flip, [[(across(share), 2), (across(share), bottom)]], RULE, 0.75)
        text(figure, flip, across(share), bottom + 8, percent(share, short=True), "center", size=9, colour=QUIET)
    centres = [4 + height * (place + 0.5) for place in range(len(rows))]
    for y, name in zip(centres, names, strict=True):
        text(figure, flip, left - 6, y, name, "right", size=size)
    table = [across(margin.table[row]) for row in rows]
    lines(figure, flip, [[(left, y), (x, y)] for x, y in zip(table, centres, strict=True)], BAR, height * 0.5)
    if margin.synthetic:
        synthetic = [across(margin.synthetic[row]) for row in rows]
        gaps = [[(a, y), (b, y)] for a, b, y in zip(table, synthetic, centres, strict=True)]
        lines(figure, flip, gaps, ACCENT, 1.25)
        dots(figure, flip, synthetic, centres, height * 0.36)
    return as_svg(figure, _describe(margin), key)


def two_way(pairs: TwoWay, key: str) -> str:
    """Draw the distances of all pairs: a triangle whose names stand at the end of their row, above their column."""
    from matplotlib.collections import PathCollection
    from matplotlib.path import Path
    from matplotlib.transforms import Affine2D

    n = len(pairs.columns)
    cell = 19 if n <= 18 else 14 if n <= 40 else 10
    size = min(11.0, cell * 0.75)
    names = [fit(name, 16) for name in pairs.columns]
    width = max(cell * place + 8 + width_of(name) * size * 0.6 for place, name in enumerate(names))
    figure, flip = canvas(width, cell * n + 2)
    top = max(distance for distance, _, _ in pairs.pairs()) or 1.0
    known = [(i, j, value) for i in range(n) for j in range(i) if (value := pairs.distance[i][j]) is not None]
    half = cell / 2 - 0.75
    cells = PathCollection(
        [Path([(-half, -half), (half, -half), (half, half), (-half, half), (-half, -half)], closed=True)],
        offsets=[(cell * (j + 0.5), cell * (i + 0.5)) for i, j, _ in known],
        offset_transform=flip,
        transform=Affine2D(),
        facecolors=[(ACCENT, value / top) for _, _, value in known],
        edgecolors=RULE,
        linewidths=0.75,
    )
    figure.add_artist(cells)
    for place, name in enumerate(names):
        text(figure, flip, cell * place + 5, cell * (place + 0.5), name, "left", size=size)
    distance, a, b = pairs.pairs()[0]
    label = f"Total variation distances of {len(known)} pairs of columns; largest {number(distance)}: {a} and {b}"
    return as_svg(figure, label, key)


def _rows(margin: Margin) -> Sequence[int]:
    rows: Sequence[int] = range(len(margin.levels))
    if len(rows) <= MOST_ROWS:
        return rows
    other = margin.synthetic or [0.0] * len(rows)
    return sorted(sorted(rows, key=lambda row: -abs(margin.table[row] - other[row]))[:MOST_ROWS])


def _limit(shares: Sequence[float]) -> float:
    return next((limit for limit in LIMITS if limit >= max(shares) - 1e-9), 1.0)


def _describe(margin: Margin) -> str:
    text = f"{margin.title}: shares of {len(margin.levels)} levels in the table"
    if margin.furthest is None:
        return f"{text}; no synthetic set has records"
    ours, theirs = percent(margin.table[margin.furthest]), percent(margin.synthetic[margin.furthest])
    level = margin.levels[margin.furthest]
    return (
        f"{text} and in the synthetic sets; total variation distance {number(margin.distance)}; "
        f"furthest apart: {level}, {ours} in the table, {theirs} synthetic"
    )


def width_of(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def fit(text: str, most: int) -> str:
    """Return printable text cut in the middle, for levels often differ only at their ends."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    keep = len(text)
    short = text
    while width_of(short) > most:
        keep -= 1
        short = f"{text[: keep - keep // 3]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - keep // 3 :]}"
    return short


def canvas(width: float, height: float) -> tuple["Figure", "Affine2D"]:
    from matplotlib.figure import Figure
    from matplotlib.transforms import Affine2D

    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    return figure, Affine2D.from_values(1, 0, 0, -1, 0, height)


def lines(figure: "Figure", flip: "Affine2D", segments: Sequence[Any], colour: str, width: float) -> None:
    from matplotlib.collections import LineCollection

    figure.add_artist(LineCollection(segments, colors=colour, linewidths=width, transform=flip, capstyle="butt"))


def dots(figure: "Figure", flip: "Affine2D", x: Sequence[float], y: Sequence[float], size: float) -> None:
    from matplotlib.lines import Line2D

    dots = Line2D(x, y, linestyle="", marker="o", markersize=size, color=ACCENT, markeredgewidth=0, transform=flip)
    figure.add_artist(dots)


def text(
    figure: "Figure", flip: "Affine2D", x: float, y: float, text: str, align: Any, *, size: float, colour: str = INK
) -> None:
    # A dollar sign is a dollar sign, not the start of a formula.
    figure.text(
        x, y, text, transform=flip, ha=align, va="center_baseline", fontsize=size, color=colour, parse_math=False
    )


def as_svg(figure: "Figure", label: str, key: str) -> str:
    """Return an SVG element for the inside of a page: what only a file of its own needs is taken off.

    Parameters
    ----------
    figure : matplotlib Figure
        At 72 dots an inch, in the stand-in colours of this module.
    label : str
        For those who can't see it.
    key : str
        Unlike any other picture's on the page.
    """
    from matplotlib import rc_context

    out = StringIO()
    plain = {"svg.fonttype": "none", "svg.hashsalt": f"pdips {key}", "savefig.bbox": None, "text.usetex": False}
    with rc_context({**plain, "font.family": ["DejaVu Sans"]}), warnings.catch_warnings():  # type: ignore[dict-item]
        # Text stays text, so that a letter which this machine's font lacks is the reader's font's business.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    body = out.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(
        r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|(?<=<g) id=\"\w+\"", "", body, flags=re.DOTALL
    )
    body = re.sub(r"font-family: [^;\"]*;? ?|transform=\"rotate\(-0 [^\"]*\"", "", body)
    for stand_in, variable in VARIABLES.items():
        body = body.replace(stand_in, f"var({variable})")
    width, height = figure.get_size_inches() * 72
    opening = (
        f'<svg class="picture" role="img" aria-label="{html.escape(label)}" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" style="--width: {width:g}px">'
    )
    return opening + body[body.index(">") + 1 :]
