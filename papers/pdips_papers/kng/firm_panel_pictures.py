"""Figures 1 and 2 of paper 002: gross employment, job creation, destruction and net creation by year."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from pdips.report.figures import SERIES
from pdips_papers.harness.curves import panel as empty_panel
from pdips_papers.harness.framework import Picture
from pdips_papers.kng.firm_panel import RAW, panels_of
from pdips_papers.kng.firm_panel_forms import NON_PRIVATE, RESIDUAL, VARYING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "employment": "gross employment, log scale",
    "creation": "job creation",
    "destruction": "job destruction",
    "net": "net creation",
}
COLOURS = {RAW: 1, NON_PRIVATE: 2, VARYING: 3, RESIDUAL: 4}


def pictures(measurements: pd.DataFrame) -> list[Picture]:
    """Return a picture for each panel and epsilon: the mean over replicates, and a band of one standard deviation."""
    epsilons = dict.fromkeys(row.rpartition("epsilon = ")[2] for row in measurements["row"] if "epsilon = " in row)
    found = []
    for name in panels_of(measurements):
        for epsilon in epsilons:
            rows = {form: f"{name}: {form}" for form in (RAW, NON_PRIVATE)}
            rows |= {form: f"{name}: {form}, epsilon = {epsilon}" for form in (VARYING, RESIDUAL)}
            rows = {form: row for form, row in rows.items() if (measurements["row"] == row).any()}
            panels = [_panel(measurements, kind, title, rows) for kind, title in KINDS.items()]
            caption = "Mean over synthetic panels, and a band of one standard deviation on either side."
            key = {form: f"--series-{COLOURS[form]}" for form in rows}
            found.append(Picture(title=f"{name}, epsilon = {epsilon}", panels=panels, caption=caption, key=key))
    return found


def _panel(measurements: pd.DataFrame, kind: str, title: str, rows: dict[str, str]) -> "Figure":
    mine = measurements[measurements["column"].str.startswith(f"{kind} ")]
    years = sorted({int(name.rpartition(" ")[2]) for name in mine["column"]})
    figure, axes = empty_panel(title, [str(year)[2:] for year in years], "year")
    for form, row in rows.items():
        values = by_year(mine[mine["row"] == row], kind, years)
        colour, places = SERIES[COLOURS[form] - 1], np.arange(len(years))
        if kind == "employment":
            values = np.log10(values)
        middle, spread = values.mean(axis=0), values.std(axis=0, ddof=1) if len(values) > 1 else 0.0
        axes.plot(places, middle, color=colour, linewidth=2.0 if form == RAW else 1.5, marker="o", markersize=3)
        if form != RAW:
            axes.fill_between(places, middle - spread, middle + spread, color=colour, alpha=0.18, linewidth=0)
    if kind == "employment":
        low, high = axes.get_ylim()
        marks = np.arange(np.ceil(low), np.floor(high) + 1)
        axes.set_yticks(marks, [f"{10.0**mark:.0e}".replace("e+0", "e") for mark in marks])
    return figure


def by_year(measurements: pd.DataFrame, kind: str, years: Sequence[int]) -> np.ndarray:
    """Return the values of one row, shape (replicates, years)."""
    place = {f"{kind} {year}": number for number, year in enumerate(years)}
    wide = measurements.assign(year=measurements["column"].map(place)).pivot(
        index="task", columns="year", values="value"
    )
    return wide.reindex(columns=range(len(years))).to_numpy(dtype=np.float64)
