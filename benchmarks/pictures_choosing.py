"""Draw the decision picture of ``docs/choosing.md``: ``python -m
benchmarks.pictures_choosing``.
"""

from xml.sax.saxutils import escape

from benchmarks.pictures import DOCS

QUESTIONS = (
    (
        (
            "Do you know a model that needs only",
            "counts, sums and products, and do",
            "users need intervals?",
        ),
        "modips",
    ),
    (("One or a few columns with a good", "model, all others public?"), "scores"),
    (
        (
            "Units followed over public years, or a",
            "few numbers with caps or predictors?",
        ),
        "kng-residual",
    ),
    (("More than 16,777,216 cells, or", "numbers without natural bins?"), "margins"),
    (("One column of hundreds of", "ordered levels?"), "universal-histogram"),
    (("A hundred records a cell or more?",), "laplace-sanitizer"),
    (
        ("Combinations of three or more known", "columns matter more than all others?"),
        "steps with order",
    ),
)
"""Questions that public facts answer, and what to take if the answer is yes; the first
yes decides.
"""

OTHERWISE = "margins"

WIDTH, LEFT, WIDE, RIGHT, NARROW, LINE, PAD, GAP = 590, 10, 310, 380, 200, 19, 9, 22
STYLE = """
.ground { fill: #ffffff; } .box { fill: #f2f5f9; stroke: #5b6b7c; } .end { fill: #dcebdc; stroke: #3c6e47; }
text { fill: #1c2733; font: 15px system-ui, sans-serif; } .name { font-weight: 600; } .small { font-size: 14px; }
.line { stroke: #5b6b7c; fill: none; stroke-width: 1.5; } .head { fill: #5b6b7c; }
@media (prefers-color-scheme: dark) {
.ground { fill: #14181d; } .box { fill: #222b35; stroke: #94a5b8; } .end { fill: #1e3a26; stroke: #86b892; }
text { fill: #e8edf2; } .line { stroke: #94a5b8; } .head { fill: #94a5b8; } }
"""  # noqa: E501


def box(x: int, y: int, width: int, height: int, kind: str) -> str:
    """Return a rounded box."""
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" '
        f'rx="8"/>'
    )


def words(x: int, y: int, text: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text whose middle is at height ``y``."""
    marked = f' class="{kind}"' if kind else ""
    return (
        f'<text{marked} x="{x}" y="{y}" dominant-baseline="central" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def end(y: int, height: int, name: str, x: int = RIGHT) -> list[str]:
    """Return the box of a mechanism."""
    return [
        box(x, y, NARROW, height, "end"),
        words(x + NARROW // 2, y + height // 2, name, "name", "middle"),
    ]


def picture() -> str:
    """Return the picture: questions below each other, what to take on the right."""
    parts, y = [], 10
    for lines, name in QUESTIONS:
        height, middle = len(lines) * LINE + 2 * PAD, y + len(lines) * LINE // 2 + PAD
        parts.append(box(LEFT, y, WIDE, height, "box"))
        parts += [
            words(LEFT + 14, y + PAD + LINE // 2 + i * LINE, line)
            for i, line in enumerate(lines)
        ]
        parts.append(f'<path class="line" d="M{LEFT + WIDE} {middle}H{RIGHT - 8}"/>')
        parts.append(f'<path class="head" d="M{RIGHT - 1} {middle}l-9 -5v10z"/>')
        parts.append(
            words((LEFT + WIDE + RIGHT) // 2 - 4, middle - 11, "yes", "small", "middle")
        )
        parts += end(y + (height - 40) // 2, 40, name)
        y += height
        parts.append(f'<path class="line" d="M{LEFT + 60} {y}v{GAP - 8}"/>')
        parts.append(f'<path class="head" d="M{LEFT + 60} {y + GAP - 1}l-5 -9h10z"/>')
        parts.append(words(LEFT + 72, y + GAP // 2 - 1, "no", "small"))
        y += GAP
    parts += end(y, 40, OTHERWISE, LEFT)
    return "\n".join([*opening(y + 50), *parts, "</svg>\n"])


def opening(height: int) -> list[str]:
    """Return what comes before the boxes: size, title and description for who can't
    see, style, ground.
    """
    told = "; ".join(f"{' '.join(lines)} If yes, {name}" for lines, name in QUESTIONS)
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title told">',
        '<title id="title">Which mechanism to take, by public facts</title>',
        f'<desc id="told">Questions in order, the first yes decides. {escape(told)}. '
        f"Otherwise {OTHERWISE}.</desc>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}"/>',
    ]


def main() -> None:
    """Draw."""
    (DOCS.parent / "choosing.svg").write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
