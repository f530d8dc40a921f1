"""Print how long the measures of utility take on a table of paper 000's size: ``python -m benchmarks.utility``."""

import platform
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pdips.mechanisms.sanitizer import LaplaceSanitizer
from pdips.schema import Schema
from pdips.table import Table
from pdips.utility.association import LEVELS, chi_square
from pdips.utility.margins import k_way
from pdips.utility.propensity import specks
from pdips.utility.regression import compare_fits, fit_logistic

EXAMPLES = Path(__file__).parents[1] / "examples"
RECORDS = 44_821
OUTCOME = "own_business"


def timed(job: Callable[[], Any]) -> tuple[Any, float]:
    """Return a job's result and its wall time in seconds."""
    start = time.perf_counter()
    found = job()
    return found, time.perf_counter() - start


def row(what: str, found: str, seconds: float, goal: str = "") -> None:
    """Print one line of the table."""
    print(f"| {what} | {found} | {seconds:.2f} s | {goal} |", flush=True)


def youth() -> Table:
    """Return the example survey, cut down to the size of paper 000's table."""
    frame = pd.read_parquet(EXAMPLES / "youth.parquet").sample(RECORDS, random_state=0, ignore_index=True)
    return Table(frame, Schema.load(EXAMPLES / "youth.toml"))


def measured(table: Table, name: str, sets: list[pd.DataFrame]) -> None:
    """Time every measure on five sets; SPECKS on one, with its reference."""
    for classifier, goal in (("logistic", "<= 10 s"), ("main-effects", ""), ("tree", "")):
        job = lambda: specks(table, sets[:1], classifier=classifier, rng=np.random.default_rng(0))  # noqa: B023, E731
        found, seconds = timed(job)
        row(f"{name}: SPECKS, {classifier}", f"{found.mean:.3f} (reference {found.reference:.3f})", seconds, goal)
    tests, seconds = timed(lambda: chi_square(table, sets, rng=np.random.default_rng(0)))
    agree = ", ".join(f"{tests.consistency[level]:.2f}" for level in LEVELS)
    row(f"{name}: chi-square, all pairs", f"agreement at 1, 5, 10 %: {agree}", seconds)
    predictors = [column for column in table.schema.columns if column != OUTCOME]
    fits = [timed(lambda: fit_logistic(frame, OUTCOME, predictors, schema=table.schema)) for frame in sets]  # noqa: B023
    original = fit_logistic(table.frame, OUTCOME, predictors, schema=table.schema)
    overlap = compare_fits(original, [fit for fit, _ in fits])["ci_overlap"].mean()
    row(f"{name}: Firth fit of {len(original.names)} coefficients", f"overlap {overlap:.2f}", min(s for _, s in fits))
    margins, seconds = timed(lambda: k_way(table, sets[:1], 3))
    row(f"{name}: 3-way margins", f"mean distance {margins['mean']:.3f}", seconds)


def main() -> None:
    """Print the table: releases at epsilon 1 and 8, and as the slowest case noise spread evenly over all cells."""
    table, rng = youth(), np.random.default_rng(0)
    print(f"Python {platform.python_version()}, {platform.machine()}, {date.today().isoformat()}\n")
    print("| what | found | time | goal |\n| --- | --- | --- | --- |")
    for epsilon in (1, 8):
        release, _ = LaplaceSanitizer(epsilon=epsilon, n_sets=5).release(table, rng=rng)
        measured(table, f"Laplace sanitizer, epsilon {epsilon}", list(release.sets))
    columns = table.schema.columns.items()
    even = pd.DataFrame({name: rng.choice(list(column.levels or ()), RECORDS) for name, column in columns})
    measured(table, "even noise", [even] * 2)


if __name__ == "__main__":
    main()
