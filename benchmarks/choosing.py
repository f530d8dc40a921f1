"""Print a table of ``docs/results/accuracy.md``, tables of few and of many cells:
``python -m benchmarks.choosing``.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from benchmarks.__main__ import EXAMPLES
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.evaluation.margins import k_way
from pdips.mechanism import Mechanism
from pdips.registry import find

RELEASES = 3
FEW = {"n_records": 300, "releases": 40}
MECHANISMS = (
    "margins",
    "laplace-sanitizer",
    "privbayes",
    "universal-histogram",
    "perturbed-histogram",
    "smoothed-histogram",
)
CUTS: Sequence[tuple[str, Sequence[str]]] = (
    ("hours", ("marital_status", "sex", "income")),
    ("hours", ("age", "sex", "hours_per_week", "income")),
    ("hours", ("age", "sex", "education", "hours_per_week", "income")),
    ("youth", ()),
)


def cut(name: str, columns: Sequence[str]) -> Table:
    """Return some columns of an example, or all of them."""
    frame, whole = (
        pd.read_parquet(EXAMPLES / f"{name}.parquet"),
        Schema.load(EXAMPLES / f"{name}.toml"),
    )
    if not columns:
        return Table(frame, whole)
    kept = {column: whole.to_dict()["columns"][column] for column in columns}
    return Table(frame[list(columns)], Schema.model_validate({"columns": kept}))


def distance(table: Table, name: str, epsilon: float) -> float:
    """Return the mean distance of two-way margins of single sets, over some
    releases.
    """
    found = []
    for _ in range(RELEASES):
        mechanism: Mechanism = find(name)(epsilon=epsilon)
        release, _ = mechanism.release(table)
        found.append(k_way(table, release.sets, 2)["mean"])
    return float(np.mean(found))


def few_records() -> None:
    """Print how far 300 records from few cells are off: two urns, and a sample without
    privacy.
    """
    table, rng = cut(*CUTS[0]), np.random.default_rng(1)
    n, releases = FEW["n_records"], FEW["releases"]
    for name in ("smoothed-histogram", "multinomial-dirichlet"):
        urn: Mechanism = find(name)(epsilon=1, n_records=n)
        found = [
            k_way(table, urn.release(table)[0].sets, 2)["mean"] for _ in range(releases)
        ]
        print(f"{n} records by {name}, epsilon 1: {np.mean(found):.3f}")
    samples = [
        table.frame.sample(n, replace=True, random_state=rng) for _ in range(releases)
    ]
    print(
        f"{n} records sampled: "
        f"{np.mean([k_way(table, [one], 2)['mean'] for one in samples]):.3f}"
    )


def resample() -> None:
    """Print how far a resample of the youth survey is off."""
    table = cut(*CUTS[-1])
    again = table.frame.sample(
        len(table.frame), replace=True, random_state=np.random.default_rng(1)
    )
    print(f"a resample of youth: {k_way(table, [again], 2)['mean']:.4f}")


def main() -> None:
    """Print a row for each table and epsilon, and what to compare them with."""
    print(f"| table | cells | records a cell | epsilon | {' | '.join(MECHANISMS)} |")
    print("| --- " * (4 + len(MECHANISMS)) + "|")
    for name, columns in CUTS:
        table = cut(name, columns)
        cells = math.prod(column.n_levels for column in table.schema.columns.values())
        for epsilon in (0.1, 1.0):
            found = " | ".join(
                f"{distance(table, mechanism, epsilon):.4f}" for mechanism in MECHANISMS
            )
            what = f"{name}, {len(table.schema.columns)} columns"
            print(
                f"| {what} | {cells:,} | {table.n_records / cells:.2g} | "
                f"{epsilon:g} | {found} |",
                flush=True,
            )
    few_records()
    resample()


if __name__ == "__main__":
    main()
