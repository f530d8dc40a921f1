"""Print the table of ``docs/choosing.md``, tables of few and of many cells: ``python -m benchmarks.choosing``."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from benchmarks.__main__ import EXAMPLES
from pdips.mechanism import Mechanism
from pdips.registry import find
from pdips.schema import Schema
from pdips.table import Table
from pdips.utility.margins import k_way

RELEASES = 3
MECHANISMS = (
    "steps",
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
    frame, whole = pd.read_parquet(EXAMPLES / f"{name}.parquet"), Schema.load(EXAMPLES / f"{name}.toml")
    if not columns:
        return Table(frame, whole)
    kept = {column: whole.to_dict()["columns"][column] for column in columns}
    return Table(frame[list(columns)], Schema.model_validate({"columns": kept}))


def distance(table: Table, name: str, epsilon: float) -> float:
    """Return the mean distance of two-way margins of single sets, over some releases."""
    found = []
    for _ in range(RELEASES):
        mechanism: Mechanism = find(name)(epsilon=epsilon)
        release, _ = mechanism.release(table)
        found.append(k_way(table, release.sets, 2)["mean"])
    return float(np.mean(found))


def main() -> None:
    """Print a row for each table and epsilon."""
    print(f"| table | cells | records a cell | epsilon | {' | '.join(MECHANISMS)} |")
    print("| --- " * (4 + len(MECHANISMS)) + "|")
    for name, columns in CUTS:
        table = cut(name, columns)
        cells = math.prod(column.n_levels for column in table.schema.columns.values())
        for epsilon in (0.1, 1.0):
            found = " | ".join(f"{distance(table, mechanism, epsilon):.4f}" for mechanism in MECHANISMS)
            what = f"{name}, {len(table.schema.columns)} columns"
            print(f"| {what} | {cells:,} | {table.n_records / cells:.2g} | {epsilon:g} | {found} |", flush=True)


if __name__ == "__main__":
    main()
