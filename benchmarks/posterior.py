"""The paper's beta synthesizer, censored, by NUTS and on the exact grid: ``python -m
benchmarks.posterior``.

Records are draws of Beta(0.5, 3); the window is 2.5, weights are 1, centres 0, priors
those of Hu et al. (2022).
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr

from pdips.arrays import FloatArray
from pdips.convergence import converged
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.posterior.censored_posterior import CensoredPosterior
from pdips.posterior.censoring import Censored
from pdips.posterior.finished_model import censor
from pdips.posterior.nuts import sample

WINDOW = 2.5
SMALL, LARGE = 2_000, 1_000_000
REPEATS = 5


def records(n: int) -> FloatArray:
    """Return records inside of (0, 1)."""
    return np.clip(np.random.default_rng(1).beta(0.5, 3, n), 1e-12, 1 - 1e-12)


def beta_model(y: FloatArray) -> pm.Model:
    """Return the paper's model, as an analyst writes it."""
    with pm.Model() as model:
        phi = pm.Beta("phi", 1, 1)
        lam = pm.Pareto("lam", alpha=1.5, m=0.1)
        pm.Beta("y", lam * phi, lam * (1 - phi), observed=pm.Data("y_data", y))
    return model


def seconds(job: Callable[[], object]) -> tuple[float, float]:
    """Return the CPU and wall seconds of a job."""
    cpu, wall = time.process_time(), time.perf_counter()
    job()
    return time.process_time() - cpu, time.perf_counter() - wall


def ready(n: int) -> tuple[Censored, float, float]:
    """Return a compiled model, and the CPU seconds of ``censor`` and of compiling."""
    made: list[Censored] = []
    transformed, _ = seconds(
        lambda: made.append(censor(beta_model(records(n)), window=WINDOW))
    )
    rng = np.random.default_rng(0)
    compiled, _ = seconds(lambda: sample(made[0], draws=1, tune=10, chains=1, rng=rng))
    return made[0], transformed, compiled


def effective_rate(made: Censored) -> tuple[float, float, float]:
    """Return effective draws a CPU second, effective draws of the worst parameter, and
    CPU seconds: the median run.
    """
    found = []
    for seed in range(REPEATS):
        trees: list[xr.DataTree] = []
        rng = np.random.default_rng(seed)

        def run(rng: np.random.Generator = rng, trees: list[Any] = trees) -> None:
            trees.append(sample(made, rng=rng))

        cpu, _ = seconds(run)
        size = min(converged(trees[0]).ess_bulk.values())
        found.append((size / cpu, size, cpu))
    return sorted(found)[REPEATS // 2]


def on_the_grid() -> Iterator[tuple[str, str, str]]:
    """Yield what whole releases on the exact grid take, at epsilon 1 with a private
    reference.
    """
    column = {"lower": 0, "upper": 1}
    for n, resolution, goal in ((SMALL, None, "<= 0.5 s"), (LARGE, 1e-4, "<= 10 s")):
        schema = Schema.model_validate(
            {"columns": {"y": {**column, "resolution": resolution}}}
        )
        table, mechanism = (
            Table(pd.DataFrame({"y": records(n)}), schema),
            CensoredPosterior(epsilon=1, model="beta"),
        )
        walls = [seconds(partial(mechanism.release, table))[1] for _ in range(4)]
        what = (f"exact grid, whole release of {n:,} records") + (
            ", read to 1e-4" if resolution else ""
        )
        yield (
            what,
            (
                f"{sorted(walls[1:])[1]:.2f} s; the first, which compiles, "
                f"{walls[0]:.1f} s"
            ),
            goal,
        )


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield what is measured, what was found, and the goal."""
    yield from on_the_grid()
    made, transformed, compiled = ready(SMALL)
    rate, size, cpu = effective_rate(made)
    what = f"NUTS, censored beta, {SMALL:,} records, 4 x (1,000 + 1,000)"
    yield (
        what,
        (f"{rate:,.0f} effective draws/CPU s ({size:,.0f} in {cpu:.2f} s)"),
        ">= 5,000/s",
    )
    yield (
        "the same: the transform; compiling, once",
        (f"{transformed:.1f}; {compiled:.1f} CPU s"),
        "",
    )
    made, transformed, compiled = ready(LARGE)
    rng = np.random.default_rng(0)
    trees: list[xr.DataTree] = []
    _, wall = seconds(
        lambda: trees.append(sample(made, draws=500, tune=500, chains=1, rng=rng))
    )
    steps = int(trees[0]["sample_stats"]["n_steps"].sum())
    what = f"NUTS, censored beta, {LARGE:,} records, 500 + 500"
    yield what, f"{wall:.1f} s wall ({steps:,} gradients after tuning)", "<= 60 s"
    yield (
        "the same: the transform; compiling, once",
        (f"{transformed:.1f}; {compiled:.1f} CPU s"),
        "",
    )


def main() -> None:
    """Print the table."""
    print("| what | measured | goal |\n| --- | --- | --- |")
    for what, found, goal in rows():
        print(f"| {what} | {found} | {goal} |", flush=True)


if __name__ == "__main__":
    main()
