"""The paper's figures 5 to 7: measures against log epsilon, by method."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from pdips_papers.harness.curves import Line, lines
from pdips_papers.harness.framework import Picture
from pdips_papers.steps.voter_data import MEASURES, PAPER_METHODS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = {
    "Figure 5: SPECKS": ("ks_distance",),
    "Figure 6: chi-square tests": ("consistency_1", "consistency_5", "consistency_10"),
    "Figure 7: confidence intervals": (
        "overlap_all",
        "overlap_prereg",
        "overlap_registered",
        "overlap_interaction",
    ),
}
COLOURS = {method: number for number, method in enumerate((*PAPER_METHODS, "STEPS"), start=1)}
LIMITS = (-0.03, 1.03)


def pictures(table: pd.DataFrame) -> list[Picture]:
    """Return each figure twice: the published forms beside the paper's figures, and the sound forms."""
    rows = [row for row in table["row"].unique() if ": " in row]
    places = list(dict.fromkeys(row.partition(": ")[0] for row in rows))
    places.sort(key=lambda place: float(place.rpartition("= ")[2]))
    curves = {side: _values(table, side) for side in ("ours", "paper")}
    found = []
    for title, keys in FIGURES.items():
        for forms, label in ((("published",), "published forms"), (("sound", "default"), "sound forms")):
            drawn = [method for method in COLOURS if any(f"{method} ({form})" in curves["ours"] for form in forms)]
            if drawn:
                panels = [_panel(MEASURES[key], places, curves, drawn, forms) for key in keys]
                caption = f"Against log epsilon, {label}."
                if forms == ("published",):
                    caption += " Solid: ours; dashed and faint: the paper's."
                key_ = {method: f"--series-{COLOURS[method]}" for method in drawn}
                found.append(Picture(title=f"{title}, {label}", panels=panels, caption=caption, key=key_))
    return found


def _values(table: pd.DataFrame, side: str) -> dict[str, dict[tuple[str, str], float]]:
    """Return figures by method and form, then by place and measure."""
    found: dict[str, dict[tuple[str, str], float]] = {}
    for row, column, value in zip(table["row"], table["column"], table[side], strict=True):
        place, _, method = row.partition(": ")
        found.setdefault(method, {})[place, column] = value
    return found


def _panel(
    measure: str,
    places: Sequence[str],
    curves: Mapping[str, Mapping[str, Mapping[tuple[str, str], float]]],
    methods: Sequence[str],
    forms: Sequence[str],
) -> "Figure":
    drawn = []
    for side, by_method in curves.items():
        for method in methods:
            for form in forms:
                values = by_method.get(f"{method} ({form})", {})
                y = [values.get((place, measure), math.nan) for place in places]
                if not all(math.isnan(value) for value in y):
                    drawn.append(Line(y, COLOURS[method], paper=side == "paper"))
    ticks = [place.rpartition("= ")[2] for place in places]
    return lines(measure, ticks, "log epsilon", drawn, LIMITS)
