"""Time, memory and error of PrivBayes on the example survey: ``python -m
benchmarks.privbayes``. Draws its picture.
"""

import platform
import sys
import tempfile
from datetime import date

import numpy as np
from matplotlib.figure import Figure

from benchmarks.__main__ import EXAMPLES, ORDER, commands, row
from benchmarks.pictures import DOCS, REPEATS, distances
from pdips import Mechanism, Schema, Table
from pdips.registry import find

EPSILONS = (0.1, 0.3, 1, 3, 7.4)
SETTINGS: dict[str, dict[str, object]] = {
    "privbayes": {},
    "privbayes, usefulness 0": {"usefulness": 0},
    "margins": {},
    "steps, 8 layers in a given order": {"order": ORDER},
}


def releases() -> None:
    """Measure whole releases from file to files, pages included, five sets at epsilon
    1.
    """
    table = [
        "synthesize",
        str(EXAMPLES / "youth.parquet"),
        "--schema",
        str(EXAMPLES / "youth.toml"),
    ]
    jobs = {
        "PrivBayes, degree 2": (),
        "PrivBayes, degree 3": ("--option", "degree=3"),
        "PrivBayes, degree 2, a network for each set": ("--option", "split=per-set"),
    }
    for name, words in jobs.items():
        with tempfile.TemporaryDirectory() as folder:
            common = [
                "--epsilon",
                "1",
                "--sets",
                "5",
                "--out",
                f"{folder}/out",
                "--overwrite",
            ]
            job = [
                sys.executable,
                "-m",
                "pdips",
                *table,
                "--mechanism",
                "privbayes",
                *words,
                *common,
            ]
            seconds, memory = commands(*job)
        row(
            name,
            f"{seconds:.1f} s, {memory:.0f} MiB",
            "<= 15 s" if name.endswith("degree 2") else "",
        )


def curve(name: str, table: Table) -> list[float]:
    """Return the mean distance of two-way margins by epsilon, one set, and print
    one-way and two-way distances.
    """
    build = find(name.partition(",")[0])
    settings = SETTINGS[name]
    found = []
    for epsilon in EPSILONS:
        made: Mechanism = build(epsilon=epsilon, **settings)
        one_way, two_way, _ = np.mean(
            [distances(made, table) for _ in range(REPEATS)], axis=0
        )
        row(
            f"{name}, epsilon = {epsilon}",
            f"one-way {one_way:.3f}, two-way {two_way:.3f}",
        )
        found.append(float(two_way))
    return found


def draw(lines: dict[str, list[float]]) -> None:
    """Draw the distance of two-way margins against epsilon."""
    figure = Figure(figsize=(6, 3.6))
    axes = figure.add_subplot()
    for (label, values), style in zip(
        lines.items(), ("o-", "^:", "v-", "D--"), strict=True
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
        ylim=(0, None),
    )
    axes.set_title("Youth survey, all 105 two-way margins, one set")
    axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(DOCS / "privbayes.svg", metadata={"Date": None})


def main() -> None:
    """Print all measurements as one table, and draw the picture."""
    print(
        f"Python {platform.python_version()}, {platform.machine()}, "
        f"{date.today().isoformat()}\n"
    )
    print("| what | measured | goal |\n| --- | --- | --- |")
    releases()
    table = Table.read(EXAMPLES / "youth.parquet", Schema.load(EXAMPLES / "youth.toml"))
    draw({name: curve(name, table) for name in SETTINGS})


if __name__ == "__main__":
    main()
