"""The figures of ``docs/proofs/refutations.md``.

Run ``python -m pdips_papers.refutation_figures FOLDER`` (``docs/proofs`` in a
checkout). Only the last one is simulated, with a fixed seed.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.registry import find
from pdips_papers.harness.printed import figures
from pdips_papers.modips.as_printed import redraw_loss
from pdips_papers.pseudo.synthesizers import SHAPES, ecdf_distances
from pdips_papers.refutations import censored_loss, election_width, tree_prices

type Curve = tuple[NDArray[Any], NDArray[Any]]
type Curves = dict[str, Curve]

N_RECORDS = 2_000
N_TABLES = 20
SEED = 1
BINS = (4, 8, 16, 32, 45, 64, 128, 256)
EPSILON = 1
STYLES = ("o-", "s--", "^:")


def of_censoring() -> Curves:
    """Return the loss of a draw of Censor_uw by the prior probability of one of two
    values, and its claim.
    """
    priors = np.geomspace(1e-4, 0.5, 13)
    spent = np.array([censored_loss(prior) for prior in priors])
    return {"spent": (priors, spent), "claimed": (priors, np.ones(len(priors)))}


def of_quantiles() -> Curves:
    """Return how often the printed sensitivity of KNG holds the true one, by level."""
    taus = np.array([0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99])
    return {
        "spent": (taus, 1 / (2 * (1 - taus))),
        "claimed": (taus, np.ones(len(taus))),
    }


def of_trees() -> Curves:
    """Return what STEPS spends for a claim of 1, by its number of layers."""
    layers = np.arange(1, 7)
    prices = np.array([[float(price) for price in tree_prices(int(n))] for n in layers])
    return {
        "replaced": (layers, prices[:, 0]),
        "added or removed": (layers, prices[:, 1]),
        "claimed": (layers, np.ones(len(layers))),
    }


def of_elections() -> Curves:
    """Return by how much AIC moves, by the number of records."""
    numbers = np.array([3, 10, 30, 100, 300, 1_000])
    widths = np.array([election_width(int(n)) for n in numbers])
    return {"moves": (numbers, widths), "claimed": (numbers, np.full(6, 2.0))}


def of_redrawing() -> Curves:
    """Return what redrawing into [0, n] spends for a claim of 1, by the number of
    sets.
    """
    sets = np.arange(1, 11)
    spent = np.array([n * redraw_loss(1 / n) for n in sets])
    return {"spent": (sets, spent), "claimed": (sets, np.ones(len(sets)))}


def of_margins() -> Curves:
    """Return the printed mean distances of margins of two and three columns, which
    can't fall (table 5 of Bowen and Liu 2020).
    """
    columns = np.array([2, 3])
    return {
        row: (columns, np.array(figures("fertility", "table-5")[row][5:7]))
        for row in ("Laplace sanitizer", "MODIPS")
    }


def of_bins() -> Curves:
    """Return the mean distance of sets of the perturbed histogram by its bins."""
    rng = np.random.default_rng(SEED)
    tables = rng.beta(*SHAPES, (N_TABLES, N_RECORDS))
    errors = []
    for n_bins in BINS:
        column = {"lower": 0, "upper": 1, "bins": n_bins}
        schema = Schema.model_validate({"columns": {"y": column}})
        histogram = find("perturbed-histogram")(epsilon=EPSILON)
        found = []
        for y in tables:
            table = Table(pd.DataFrame({"y": y}), schema)
            release, _ = histogram.release(table, rng=rng)
            found.append(ecdf_distances(y, release.sets[0]["y"].to_numpy())[0])
        errors.append(np.mean(found))
    return {"perturbed histogram": (np.array(BINS), np.array(errors))}


Panel = tuple[Callable[[], Curves], str, str, str, str]

FIGURES: dict[str, tuple[Panel, ...]] = {
    "refutations-sensitivities": (
        (of_censoring, "log", "prior probability of a value", "epsilon", "Censor_uw"),
        (of_quantiles, "linear", "level", "spent for each unit claimed", "KNG"),
    ),
    "refutations-trees": (
        (of_trees, "linear", "layers", "epsilon", "STEPS, a claim of 1"),
        (of_elections, "log", "records", "change of AIC", "AIC, levels that occur"),
    ),
    "refutations-counts": (
        (of_redrawing, "linear", "sets", "epsilon", "Redrawing into [0, n]"),
        (of_margins, "linear", "columns", "mean distance", "Table 5, as printed"),
    ),
    "refutations-bins": (
        (of_bins, "log", "bins", "max-ECDF", "2,000 records of Beta(0.5, 3)"),
    ),
}
"""By name: for each panel what it shows, the scale of x, both labels and a title."""


def draw(name: str, folder: Path) -> Path:
    """Draw a figure; the same bytes at every run."""
    panels = FIGURES[name]
    with mpl.rc_context({"svg.hashsalt": name}):
        figure = Figure(figsize=(3.6 * len(panels), 3.0))
        for number, panel in enumerate(panels, start=1):
            _draw_panel(figure.add_subplot(1, len(panels), number), panel)
        figure.tight_layout()
        path = folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
    return path


def _draw_panel(axes: Axes, panel: Panel) -> None:
    curves, scale, x_label, y_label, title = panel
    for (label, (x, y)), style in zip(curves().items(), STYLES, strict=False):
        axes.plot(x, y, style, label=label, color="black", markersize=4, linewidth=1)
    axes.set(xscale=scale, xlabel=x_label, ylabel=y_label, title=title)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Draw all figures."""
    [folder] = sys.argv[1:]
    for name in FIGURES:
        draw(name, Path(folder))


if __name__ == "__main__":
    main()
