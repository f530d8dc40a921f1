"""Draw the pictures of ``docs/mechanisms/``: ``python -m benchmarks.pictures``. Prints
the numbers that they show.
"""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.__main__ import EXAMPLES, ORDER
from pdips import LaplaceSanitizer, Margins, Mechanism, PrivBayes, Schema, Steps, Table
from pdips.evaluation.margins import compare

DOCS = Path(__file__).parents[1] / "docs" / "mechanisms"
EPSILONS = (0.25, 0.5, 1, 2, 4, 8)
REPEATS = 3


def distances(mechanism: Mechanism, table: Table) -> tuple[float, float, float]:
    """Return mean total variation distances: all one-way margins, all pairs, and pairs
    of the first three columns.
    """
    found = compare(table, mechanism.release(table)[0].sets)
    two = found.two_way
    place = {name: i for i, name in enumerate(two.columns)}
    distance = np.array(two.distance, dtype=np.float64)
    top = [distance[place[a], place[b]] for a, b in combinations(ORDER[:3], 2)]
    one = np.array([margin.distance for margin in found.one_way], dtype=np.float64)
    return (
        float(one.mean()),
        float(distance[np.triu_indices(len(place), 1)].mean()),
        float(np.mean(top)),
    )


def distances_of_pairs(mechanism: Mechanism, table: Table, repeats: int) -> float:
    """Return the mean total variation distance of all two-way margins over several
    releases.
    """
    pairs = []
    for _ in range(repeats):
        found = np.array(
            compare(table, mechanism.release(table)[0].sets).two_way.distance,
            dtype=np.float64,
        )
        pairs.append(found[np.triu_indices(len(found), 1)].mean())
    return float(np.mean(pairs))


def curve(
    table: Table, build: Callable[..., Mechanism], **settings: object
) -> np.ndarray:
    """Return the distances by epsilon, shape (epsilons, 3), averaged over releases."""
    found = []
    for epsilon in EPSILONS:
        runs = [
            distances(build(epsilon=epsilon, **settings), table) for _ in range(REPEATS)
        ]
        found.append(np.mean(runs, axis=0))
        print(
            build(epsilon=epsilon, **settings).name,
            settings,
            epsilon,
            np.round(found[-1], 3),
        )
    return np.array(found)


def draw(name: str, lines: dict[str, np.ndarray], title: str) -> None:
    """Draw total variation distance against epsilon."""
    figure = Figure(figsize=(6, 3.6))
    axes = figure.add_subplot()
    for (label, values), style in zip(
        lines.items(), ("o-", "s--", "^-", "v--"), strict=False
    ):
        axes.plot(
            EPSILONS,
            values,
            style,
            label=label,
            color="black",
            markersize=5,
            linewidth=1,
        )
    axes.set(
        xscale="log",
        xlabel="epsilon",
        ylabel="total variation distance",
        title=title,
        ylim=(0, None),
    )
    axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(DOCS / f"{name}.svg", metadata={"Date": None})


def main() -> None:
    """Draw both pictures."""
    table = Table.read(EXAMPLES / "youth.parquet", Schema.load(EXAMPLES / "youth.toml"))
    flat, bayes = curve(table, LaplaceSanitizer), curve(table, PrivBayes)
    shallow, default = curve(table, Steps, order=ORDER[:3]), curve(table, Margins)
    title = "Youth survey, 15 columns, one set"
    draw(
        "laplace-sanitizer",
        {"one-way margins": flat[:, 0], "two-way margins": flat[:, 1]},
        title,
    )
    lines = {
        "laplace-sanitizer": flat[:, 1],
        "steps, 3 layers down to all cells": shallow[:, 1],
        "privbayes": bayes[:, 1],
        "margins": default[:, 1],
    }
    draw("steps", lines, f"{title}: two-way margins")


if __name__ == "__main__":
    main()
