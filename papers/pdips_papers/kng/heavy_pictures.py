"""The paper's figures 3 to 5, distributions by method, and its tables' measures over replicates."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips_papers.harness.curves import Line, Violin, shares, violins
from pdips_papers.harness.framework import Picture
from pdips_papers.kng.heavy_forms import (
    BEYOND,
    FORMS,
    NON_PRIVATE,
    PMSE,
    RECOMMENDED,
    SCHEMES,
    Kind,
    published_row,
    sound_row,
)
from pdips_papers.kng.heavy_measures import PLACES, place_name
from pdips_papers.kng.heavy_paper import GENERAL, LARGER_IS_BETTER, MEASURES, TARGETS
from pdips_papers.kng.heavy_tailed import TRAINING

COLOURS: dict[Kind, int] = {"reference": 1, "published": 4, "sound": 3, "ours": 5}
KEY = {
    "without privacy": "--series-1",
    "as published, at the ϵ it claims": "--series-4",
    "sound, at its true ϵ": "--series-3",
    "kng-residual (recommended)": "--series-5",
}
LINES = {**{method: number for number, method in enumerate(SCHEMES, start=2)}, PMSE: 7}
"""Colours of methods where those of one kind are drawn together."""

EXTRA = {method: number for number, method in enumerate(BEYOND, start=2)}
"""Colours of the dashed lines."""

DISTRIBUTIONS = {
    TRAINING: "--series-1 dashed",
    **{method: f"--series-{number}" for method, number in LINES.items()},
    **{method: f"--series-{number} dashed" for method, number in EXTRA.items()},
    "kng-residual, or without privacy": "--series-8",
}
TICKS = (1, 10, 100, 1_000)
FIGURES = {"x1": "figure 3", "x2": "figure 4", "x3": "figure 5"}
ON_POWERS = ("pMSE WOI", "pMSE WI", "WRT", "Int diff", "Slope diff", "NRMSE X2", "NRMSE X3")

if TYPE_CHECKING:
    from matplotlib.figure import Figure

type Values = Mapping[tuple[str, str], FloatArray]
"""By row and column: one value a replicate."""


def pictures(measurements: pd.DataFrame) -> list[Picture]:
    """Return a picture of each measure's distribution over replicates, and one of each column's distribution."""
    values = {
        (str(row), str(column)): group.to_numpy(dtype=np.float64)
        for (row, column), group in measurements.groupby(["row", "column"], sort=False)["value"]
    }
    charts = [
        Picture(
            title=f"{title}, by method",
            panels=[_chart(values, column) for column in columns],
            caption="Distribution over replicates; dots are means, the dashed line is our target for kng-residual. "
            "KM is best at 1000, the others, on logarithmic axes, at 0.",
            key=KEY,
        )
        for title, columns in (("Table 1", GENERAL), ("Table 2", MEASURES[4:]))
    ]
    return [*charts, *(_distributions(values, column) for column in PLACES)]


def _chart(values: Values, column: str) -> "Figure":
    powers = column not in LARGER_IS_BETTER
    drawn = []
    for row, form in FORMS.items():
        if (row, column) in values:
            found = values[row, column]
            drawn.append(Violin(form.short, np.log10(np.maximum(found, 1e-6)) if powers else found, COLOURS[form.kind]))
    every = np.concatenate([np.asarray(each.values) for each in drawn])
    target = float(np.log10(TARGETS[column])) if powers else TARGETS[column]
    low, high = min(float(np.quantile(every, 0.01)), target), max(float(every.max()), target)
    margin = 0.04 * (high - low) or 0.1
    limits = (low - margin, high + margin) if powers else (0.0, 1000.0)
    return violins(column, drawn, limits, [target], powers=powers)


def _distributions(values: Values, column: str) -> Picture:
    groups = {
        "as published": {published_row(method): number for method, number in LINES.items()},
        "sound": {sound_row(method): number for method, number in LINES.items()},
        "beyond the paper": {RECOMMENDED: 8} | {sound_row(method): number for method, number in EXTRA.items()},
        "without privacy": {NON_PRIVATE: 8},
    }
    panels = []
    for title, rows in groups.items():
        known = {row: number for row, number in rows.items() if (row, place_name(column, 0)) in values}
        if known:
            dashed = {sound_row(method) for method in EXTRA}
            drawn = [Line(_shares(values, row, column), number, paper=row in dashed) for row, number in known.items()]
            drawn.append(Line(_shares(values, TRAINING, column), 1, paper=True))
            panels.append(shares(title, column.upper(), PLACES[column], drawn, TICKS))
    return Picture(
        title=f"Distribution of {column.upper()} ({FIGURES[column]})",
        panels=panels,
        caption="Share of values up to each place, on a logarithmic axis, mean over replicates. What lies below it, "
        "negative values too, is in its first value.",
        key=DISTRIBUTIONS,
    )


def _shares(values: Values, row: str, column: str) -> list[float]:
    return [float(values[row, place_name(column, number)].mean()) for number in range(len(PLACES[column]))]
