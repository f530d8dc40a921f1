"""A firm panel under two mechanisms: ``python -m benchmarks.panels`` draws
``docs/panels.svg``.
"""

import time
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.__main__ import row
from benchmarks.pictures import DOCS
from pdips_papers.kng.firm_panel import (
    NON_PRIVATE,
    PANELS,
    RESIDUAL,
    VARYING,
    FirmPanel,
    load,
    synthesize,
)
from pdips_papers.kng.job_flows import job_flows

REPEATS = 5
EPSILON = "1"
KINDS = {
    "employment": "gross employment, thousands",
    "creation": "job creation",
    "net": "net job creation",
}
STYLES = {RESIDUAL: ("-", 0.25), NON_PRIVATE: (":", 0.0)}
LABELS = {
    RESIDUAL: f"kng-residual, epsilon = {EPSILON}",
    NON_PRIVATE: "quantile regression, no privacy",
}


def flows(panel: FirmPanel, form: str) -> list[pd.DataFrame]:
    """Return job flows of independent synthetic panels."""
    found, start = [], time.process_time()
    for _ in range(REPEATS):
        made = synthesize(form, EPSILON, panel.table, np.random.default_rng())
        found.append(job_flows(made, panel.years))
    row(
        f"{form}, CPU seconds a panel", f"{(time.process_time() - start) / REPEATS:.2f}"
    )
    return found


def draw(panels: Mapping[str, FirmPanel]) -> None:
    """Draw raw and synthetic flows by year, one row of panels for each table."""
    figure = Figure(figsize=(9, 2.8 * len(panels)))
    grid = figure.subplots(len(panels), len(KINDS), squeeze=False)
    for axes, (name, panel) in zip(grid, panels.items(), strict=True):
        raw = job_flows(panel.table.frame, panel.years)
        made = {form: flows(panel, form) for form in (*STYLES, VARYING)}
        for one, (kind, title) in zip(axes, KINDS.items(), strict=True):
            _panel(one, kind, raw, made)
            one.set_title(title if name == next(iter(panels)) else "", fontsize=9)
        axes[0].set_ylabel(f"{panel.table.n_records:,} firms")
        errors = {
            form: np.mean(
                [100 * (each - raw)["creation"].abs().mean() for each in made[form]]
            )
            for form in made
        }
        for form, error in errors.items():
            row(f"{name}, {form}, job creation", f"{error:.1f} % points off")
    grid[0][0].legend(frameon=False, fontsize=7, loc="lower left")
    figure.tight_layout()
    figure.savefig(DOCS.parent / "panels.svg", metadata={"Date": None})


def _panel(
    axes: Axes, kind: str, raw: pd.DataFrame, made: Mapping[str, list[pd.DataFrame]]
) -> None:
    unit, years = (1e-3 if kind == "employment" else 1.0), raw.index.to_numpy()
    axes.plot(
        years,
        raw[kind] * unit,
        "o-",
        color="black",
        markersize=3,
        linewidth=1.5,
        label="raw",
    )
    for form, (style, shade) in STYLES.items():
        values = np.array([each[kind] for each in made[form]]) * unit
        middle, spread = values.mean(axis=0), values.std(axis=0, ddof=1)
        axes.plot(
            years, middle, style, color="black", linewidth=1.2, label=LABELS[form]
        )
        axes.fill_between(
            years,
            middle - spread,
            middle + spread,
            color="black",
            alpha=shade,
            linewidth=0,
        )
    if kind != "net":
        axes.set_ylim(bottom=0)
    axes.set_xticks(years[::2])
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


if __name__ == "__main__":
    draw({name: load(name) for name in PANELS[1:]})
