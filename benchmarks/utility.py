"""Print how long the measures of utility take on a table of Bowen et al.'s size:
``python -m benchmarks.utility``.
"""

import platform
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.evaluation.formula import read_analysis
from pdips.evaluation.margins import k_way
from pdips.evaluation.propensity import pmse, specks
from pdips.evaluation.regression import compare_fits
from pdips.histogram.laplace import LaplaceSanitizer
from pdips_papers.harness.lasso import lasso_pmse
from pdips_papers.harness.marginal_score import mean_k_marginal
from pdips_papers.harness.prediction import (
    normalised_rmse,
    standardised_differences,
)
from pdips_papers.harness.wasserstein import DISTANCES, wasserstein_randomization
from pdips_papers.steps.association import LEVELS, chi_square

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
    print(f"| {what} | {found} | {seconds:.3f} s | {goal} |", flush=True)


def youth() -> Table:
    """Return the example survey, cut down to the size of Bowen et al.'s table."""
    frame = pd.read_parquet(EXAMPLES / "youth.parquet").sample(
        RECORDS, random_state=0, ignore_index=True
    )
    return Table(frame, Schema.load(EXAMPLES / "youth.toml"))


def measured(table: Table, name: str, sets: list[pd.DataFrame]) -> None:
    """Time every measure on five sets; SPECKS on one, with its reference."""
    for classifier, goal in (
        ("logistic", "<= 10 s"),
        ("main-effects", ""),
        ("tree", ""),
    ):
        job = partial(
            specks,
            table,
            sets[:1],
            classifier=classifier,
            rng=np.random.default_rng(0),
        )
        found, seconds = timed(job)
        row(
            f"{name}: SPECKS, {classifier}",
            f"{found.mean:.3f} (reference {found.reference:.3f})",
            seconds,
            goal,
        )
    tests, seconds = timed(lambda: chi_square(table, sets))
    agree = ", ".join(f"{tests.consistency[level]:.2f}" for level in LEVELS)
    row(f"{name}: chi-square, all pairs", f"agreement at 1, 5, 10 %: {agree}", seconds)
    predictors = " + ".join(
        column for column in table.schema.columns if column != OUTCOME
    )
    analysis = read_analysis(f"{OUTCOME} ~ {predictors}", table.schema)
    fits = [timed(lambda: analysis.fit(frame)) for frame in sets]  # noqa: B023
    original = analysis.fit(table.frame)
    overlap = compare_fits(original, [fit for fit, _ in fits])["ci_overlap"].mean()
    row(
        f"{name}: Firth fit of {len(original.names)} coefficients",
        f"overlap {overlap:.2f}",
        min(s for _, s in fits),
    )
    margins, seconds = timed(lambda: k_way(table, sets[:1], 3))
    row(f"{name}: 3-way margins", f"mean distance {margins['mean']:.3f}", seconds)


def skewed(n: int, rng: np.random.Generator) -> Any:
    """Return three columns with long tails, each leaning on those before it."""
    x1 = rng.exponential(10, n)
    x2 = 4 + 3 * x1 + rng.exponential(20, n)
    return np.column_stack([x1, x2, 3 + 2 * x1 + x2 + rng.exponential(30, n)])


def numeric(rng: np.random.Generator) -> None:
    """Time the measures for numeric tables, processor time, on two samples of one
    population.
    """
    a, b = skewed(5_000, rng), skewed(5_000, rng)
    jobs: dict[str, tuple[str, Callable[[], Any]]] = {
        "pMSE": ("", lambda: pmse(a, b)),
        "pMSE, interactions": ("<= 0.05 s", lambda: pmse(a, b, interactions=True)),
        "pMSE, LASSO": ("", lambda: lasso_pmse(a, b, rng)),
        "3-marginal score": ("", lambda: mean_k_marginal(a, b)),
        "standardised differences": (
            "",
            lambda: standardised_differences(a, b, "x3", ["x1", "x2"]).max(),
        ),
        "normalised RMSE": ("", lambda: normalised_rmse(b, a, "x3", ["x1", "x2"])),
    }
    for name in DISTANCES:
        goal = "<= 0.5 s" if name == "pooled" else ""
        job = lambda: wasserstein_randomization(a, b, distance=name, rng=rng).ratio  # noqa: B023, E731
        row(
            f"5,000 + 5,000 x 3: Wasserstein randomization, {name}",
            *found_in_cpu_time(job),
            goal,
        )
    for what, (goal, job) in jobs.items():
        row(f"5,000 + 5,000 x 3: {what}", *found_in_cpu_time(job), goal)


def found_in_cpu_time(job: Callable[[], Any]) -> tuple[str, float]:
    """Return what a job finds and the least of three processor times in seconds."""
    times = []
    for _ in range(3):
        start = time.process_time()
        found = job()
        times.append(time.process_time() - start)
    return f"{found:.3g}", min(times)


def main() -> None:
    """Print the table: releases at epsilon 1 and 8, and as the slowest case noise
    spread evenly over all cells.
    """
    table, rng = youth(), np.random.default_rng(0)
    print(
        f"Python {platform.python_version()}, {platform.machine()}, "
        f"{date.today().isoformat()}\n"
    )
    print("| what | found | time | goal |\n| --- | --- | --- | --- |")
    for epsilon in (1, 8):
        release, _ = LaplaceSanitizer(epsilon=epsilon, n_sets=5).release(table, rng=rng)
        measured(table, f"Laplace sanitizer, epsilon {epsilon}", list(release.sets))
    columns = table.schema.columns.items()
    even = pd.DataFrame(
        {
            name: rng.choice(list(column.levels or ()), RECORDS)
            for name, column in columns
        }
    )
    measured(table, "even noise", [even] * 2)
    numeric(rng)


if __name__ == "__main__":
    main()
