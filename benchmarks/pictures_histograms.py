"""Draw the pictures of histograms and urns for ``docs/mechanisms/``: ``python -m
benchmarks.pictures_histograms``.
"""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from benchmarks.__main__ import EXAMPLES
from benchmarks.pictures import DOCS, EPSILONS, distances_of_pairs
from pdips import (
    LaplaceSanitizer,
    MultinomialDirichlet,
    PerturbedHistogram,
    Schema,
    SmoothedHistogram,
    Table,
)

COLUMNS = ("age", "sex", "hours_per_week", "income")
SIZES = (30, 100, 300, 1000, 3000, 10_000, 48_842)
REPEATS = 5


def hours() -> Table:
    """Return four columns of the example on working hours: 468 cells."""
    whole = Schema.load(EXAMPLES / "hours.toml").to_dict()["columns"]
    schema = Schema.model_validate({"columns": {name: whole[name] for name in COLUMNS}})
    full = Table.read(EXAMPLES / "hours.parquet", Schema.load(EXAMPLES / "hours.toml"))
    return Table(full.frame[list(COLUMNS)], schema)


def draw(
    name: str,
    x: Sequence[float],
    lines: dict[str, list[float]],
    x_label: str,
    y_label: str,
    title: str,
) -> None:
    """Draw lines against a logarithmic axis, and print them."""
    figure = Figure(figsize=(6, 3.6))
    axes = figure.add_subplot()
    for (label, values), style in zip(
        lines.items(), ("o-", "s--", "^-", "v--"), strict=False
    ):
        print(name, label, [round(value, 4) for value in values])
        axes.plot(
            x, values, style, label=label, color="black", markersize=5, linewidth=1
        )
    axes.set(xscale="log", xlabel=x_label, ylabel=y_label, title=title, ylim=(0, None))
    axes.set_xticks(x, [f"{value:,g}" if value < 1000 else f"{value:,}" for value in x])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(DOCS / f"{name}.svg", metadata={"Date": None})


def perturbed(table: Table) -> None:
    """Compare the perturbed histogram with the sanitizer."""
    lines = {
        build.name: [
            distances_of_pairs(build(epsilon=epsilon), table, REPEATS)
            for epsilon in EPSILONS
        ]
        for build in (PerturbedHistogram, LaplaceSanitizer)
    }
    title = "Working hours, 4 columns, 468 cells, one set"
    draw(
        "perturbed-histogram",
        EPSILONS,
        lines,
        "epsilon",
        "total variation distance of pairs",
        title,
    )


def by_size(
    table: Table, build: type[SmoothedHistogram] | type[MultinomialDirichlet]
) -> None:
    """Show what the number of synthetic records does to a set from an urn."""
    lines = {
        f"epsilon = {epsilon}": [
            distances_of_pairs(
                build(epsilon=epsilon, n_records=n_records), table, REPEATS
            )
            for n_records in SIZES
        ]
        for epsilon in (1, 4, 8)
    }
    title = "Working hours, 4 columns, 468 cells, 48,842 records"
    draw(
        build.name,
        SIZES,
        lines,
        "synthetic records",
        "total variation distance of pairs",
        title,
    )


def binary(n: int = 1000, share: float = 0.25) -> None:
    """Show the error of one share: sampling included, closed forms of the urns,
    simulation of the sanitizer.
    """
    count, lines = int(n * share), dict[str, list[float]]()
    for name in ("mcclure-reiter", "multinomial-dirichlet", "perturbed-histogram"):
        lines[name] = [_error(name, n, count, epsilon) for epsilon in EPSILONS]
    title = f"One share of {share:g} among {n:,} records"
    draw("mcclure-reiter", EPSILONS, lines, "epsilon", "root mean squared error", title)


def _error(name: str, n: int, count: int, epsilon: float) -> float:
    a, alpha = 1 / math.expm1(epsilon / n), n / math.expm1(epsilon)
    if name == "perturbed-histogram":
        noise = np.random.default_rng(0).laplace(scale=2 / epsilon, size=(2, 200_000))
        noisy = np.maximum(np.array([[count], [n - count]]) + noise, 0)
        p = noisy[0] / noisy.sum(axis=0)
        return float(np.sqrt(np.mean((p - count / n) ** 2 + p * (1 - p) / n)))
    law = (
        stats.binom(n, (count + a) / (n + 2 * a))
        if name == "mcclure-reiter"
        else stats.betabinom(n, count + alpha, n - count + alpha)
    )
    return float(math.hypot(law.mean() - count, law.std()) / n)


def main() -> None:
    """Draw all four."""
    table = hours()
    binary()
    perturbed(table)
    by_size(table, SmoothedHistogram)
    by_size(table, MultinomialDirichlet)


if __name__ == "__main__":
    main()
