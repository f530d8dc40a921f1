"""Small pictures drawn by hand as SVG: what a test can detect at most, and where the account stands.

They take their colours from the page's style sheet, as :mod:`pdips.report.pictures` does, and need no library.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pdips.report.formats import percent

SIDE, LEFT, TOP, BOTTOM = 230, 46, 8, 40
SMALLEST = 0.004
"""Share of a bar below which a part would not be seen; it is drawn this wide."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a stacked bar: its size, the name of its CSS class, and its words for those who can't see it."""

    size: float
    kind: str
    words: str


def roc_bound(power: Callable[[float], float], marked: Sequence[float], label: str) -> str:
    """Draw the largest power of a test against its level, with blind guessing as the diagonal.

    Parameters
    ----------
    power : callable
        Takes a level in [0, 1], returns the bound on the power there.
    marked : sequence of float
        Levels at which to set a dot.
    label : str
        For those who can't see the picture.
    """
    levels = sorted({*marked, *(i / 100 for i in range(101)), *(10 ** (-i / 8) for i in range(8, 33))})
    points = [(x, min(1.0, power(x))) for x in levels]
    curve = " ".join(f"{_x(x):.1f} {_y(y):.1f}" for x, y in points)
    diagonal = f"{_x(0):.1f} {_y(0):.1f} {_x(1):.1f} {_y(1):.1f}"
    dots = "".join(f'<circle class="dot" cx="{_x(x):.1f}" cy="{_y(power(x)):.1f}" r="3.5"/>' for x in marked)
    return (
        _opening(LEFT + SIDE + 24, TOP + SIDE + BOTTOM, label, "curve")
        + _grid()
        + f'<polygon class="gain" points="{curve} {_x(1):.1f} {_y(1):.1f} {_x(0):.1f} {_y(0):.1f}"/>'
        + f'<polyline class="guess" points="{diagonal}"/><polyline class="line" points="{curve}"/>{dots}'
        + _words(_x(0.5), TOP + SIDE + 34, "false positives", "middle")
        + f'<text class="quiet" text-anchor="middle" transform="translate(11 {_y(0.5):.1f}) rotate(-90)">'
        + "true positives, at most</text></svg>"
    )


def stacked_bar(parts: Sequence[Part], label: str) -> str:
    """Draw parts of a whole side by side; the page writes their words below it.

    Parameters
    ----------
    parts : sequence of Part
        From left to right; parts of size 0 are left out.
    label : str
        For those who can't see the picture.
    """
    shown = [part for part in parts if part.size > 0]
    whole = sum(part.size for part in shown)
    widths = [max(part.size / whole, SMALLEST) * 1000 for part in shown]
    scale, place, drawn = 1000 / sum(widths), 0.0, ""
    for part, width in zip(shown, widths, strict=True):
        drawn += f'<rect class="{part.kind}" x="{place:.2f}" y="0" width="{width * scale:.2f}" height="28"/>'
        place += width * scale
    text = html.escape("; ".join([label, *(part.words for part in shown)]))
    return (
        f'<svg class="account" role="img" aria-label="{text}" viewBox="0 0 1000 28" preserveAspectRatio="none">'
        f"{drawn}</svg>"
    )


def _grid() -> str:
    lines = ""
    for share in (0, 0.25, 0.5, 0.75, 1):
        lines += f'<path class="grid" d="M{_x(share):.1f} {TOP}V{TOP + SIDE}M{LEFT} {_y(share):.1f}H{LEFT + SIDE}"/>'
        if share in (0, 0.5, 1):
            lines += _words(_x(share), TOP + SIDE + 15, percent(share, short=True), "middle")
            lines += _words(LEFT - 6, _y(share) + 4, percent(share, short=True), "end")
    return lines


def _x(share: float) -> float:
    return LEFT + share * SIDE


def _y(share: float) -> float:
    return TOP + (1 - share) * SIDE


def _words(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="quiet" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _opening(width: int, height: int, label: str, kind: str) -> str:
    return (
        f'<svg class="picture {kind}" role="img" aria-label="{html.escape(label)}" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">'
    )
