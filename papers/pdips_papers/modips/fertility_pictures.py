"""Tables 4 and 5 of paper 003 as pictures."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from pdips_papers.harness.curves import Line, Violin, lines, violins
from pdips_papers.harness.framework import Picture
from pdips_papers.modips.fertility import EPSILONS, PAPER_ROWS, REFERENCES, row_name
from pdips_papers.modips.fertility_data import RATE, TVD, paper_figures
from pdips_papers.modips.fertility_forms import (
    AWARE,
    EVEN,
    HALF,
    LAPLACE,
    LAPLACE_PUBLISHED,
    MAJORITY,
    PLUG_IN,
    PRINTED_SVM,
    PRIVBAYES,
    PUBLISHED,
    RESAMPLE,
    modips_row,
)
from pdips_papers.modips.fertility_measures import BALANCED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREY, PUBLISHED_INK, SOUND_INK = 1, 4, 3
CURVES = {
    RESAMPLE: 1,
    EVEN: 2,
    LAPLACE_PUBLISHED: 3,
    modips_row(PUBLISHED, HALF): 4,
    LAPLACE: 5,
    modips_row(PLUG_IN, HALF): 6,
    modips_row(AWARE, HALF): 7,
    PRIVBAYES: 8,
}


def pictures(measurements: pd.DataFrame, table: pd.DataFrame) -> list[Picture]:
    """Return a picture of the classifiers and one of the distances for each epsilon."""
    rows = list(table["row"].unique())
    found = []
    for prefix in dict.fromkeys(row.partition(": ")[0] for row in rows if row.startswith("epsilon = ")):
        mine = [*REFERENCES, *(row for row in rows if row.startswith(f"{prefix}: "))]
        panels = [_rates(measurements, column, mine, prefix) for column in (RATE, BALANCED)]
        key = {
            "not private, or without data": f"--series-{GREY}",
            "as published": f"--series-{PUBLISHED_INK}",
            "sound": f"--series-{SOUND_INK}",
        }
        caption = "Over replicates; a dot is the mean. Dashed: everybody called normal."
        found.append(
            Picture(title=f"Table 4, {prefix}: right on those held out", panels=panels, caption=caption, key=key)
        )
        found.append(_distances(table, prefix))
    return found


def _rates(measurements: pd.DataFrame, column: str, rows: list[str], prefix: str) -> "Figure":
    drawn = []
    for row in rows:
        values = measurements.loc[(measurements["row"] == row) & (measurements["column"] == column), "value"]
        label = row.removeprefix(f"{prefix}: ")
        ink = GREY if row in REFERENCES else PUBLISHED_INK if _is_published(label) else SOUND_INK
        drawn.append(Violin(label, _spread([float(value) for value in values]), ink))
    marked = measurements.loc[(measurements["row"] == MAJORITY) & (measurements["column"] == column), "value"]
    return violins(column, drawn, (-2.0, 102.0), marks=[float(marked.mean())])


def _spread(values: Sequence[float]) -> list[float]:
    """Return values that a density can be drawn of: those that are all equal, a hair apart."""
    if max(values) - min(values) < 1e-6:
        return [values[0] - 0.05, values[0], values[0] + 0.05]
    return list(values)


def _is_published(label: str) -> bool:
    return "(published)" in label or label == PRINTED_SVM


def _distances(table: pd.DataFrame, prefix: str) -> Picture:
    known = table.set_index(["row", "column"])["ours"]
    drawn, key = [], {}
    for form, colour in CURVES.items():
        row = form if form in REFERENCES else f"{prefix}: {form}"
        drawn.append(Line([float(known.get((row, name), math.nan)) for name in TVD.values()], colour))
        key[form] = f"--series-{colour}"
        paper = paper_figures(row, PAPER_ROWS.get(form, "")) if prefix == row_name(EPSILONS[0], "")[:-2] else {}
        if (row, TVD[1]) in paper:
            drawn.append(Line([paper[row, name] for name in TVD.values()], colour, paper=True))
    figure = lines("sum over cells of |share - share|", [str(k) for k in TVD], "columns of a table", drawn, (0.0, 2.05))
    caption = "Solid: ours; dashed and faint: the paper's figures as printed, which fall from 2 to 3 columns."
    return Picture(
        title=f"Table 5, {prefix}: distances of cross-tabulations", panels=[figure], caption=caption, key=key
    )
