"""What a newcomer waits for: the first plan and release of small models by ``scores``,
in CPU seconds of a process of its own, beside ``pm.sample`` of the same model.

``python -m benchmarks.latency [MODEL ...]`` prints the table of
``docs/results/benchmarks.md``: with empty PyTensor and Numba caches, and warm, with
what the first run left there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What a child process is told to do
OURS = "pdips"
THEIRS = "pymc"
OF = {OURS: ("import", "plan", "release"), THEIRS: ("import", "sample")}
RECORDS = 2_000
GROUPS = 8
SEED = 20261130


def seconds() -> float:
    """Return CPU seconds of this process and of those it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


@dataclass(frozen=True)
class Small:
    """A small model as one writes it, the columns of its table, and its table."""

    build: Callable[[Any, Any], Any]
    columns: dict[str, Any]
    table: Callable[[Any], dict[str, Any]]


X = {name: {"lower": -4, "upper": 4, "public": True} for name in ("x1", "x2", "x3")}
FEW = {name: X[name] for name in ("x1", "x2")}


def normal(data: Any, schema: Any) -> Any:
    import pymc as pm

    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 5)
        beta = pm.Normal("beta", 0, 2, shape=2)
        sigma = pm.HalfNormal("sigma", 3)
        mean = intercept + beta[0] * data["x1"] + beta[1] * data["x2"]
        pm.Normal("y", mean, sigma, observed=data["y"])
    return model


def logistic(data: Any, schema: Any) -> Any:
    import pymc as pm

    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        beta = pm.Normal("beta", 0, 1, shape=2)
        eta = intercept + beta[0] * data["x1"] + beta[1] * data["x2"]
        pm.Bernoulli("y", logit_p=eta, observed=data["y"])
    return model


def ordinal(data: Any, schema: Any) -> Any:
    import numpy as np
    import pymc as pm

    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=3)
        cuts = pm.Normal(
            "cuts",
            0,
            3,
            shape=6,
            transform=pm.distributions.transforms.ordered,
            initval=np.linspace(-3, 3, 6),
        )
        eta = beta[0] * data["x1"] + beta[1] * data["x2"] + beta[2] * data["x3"]
        pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, observed=data["y"])
    return model


def hierarchical(data: Any, schema: Any) -> Any:
    import pymc as pm

    with pm.Model() as model:
        centre = pm.Normal("centre", 0, 5)
        between = pm.HalfNormal("between", 2)
        away = pm.Normal("away", 0, 1, shape=GROUPS)
        sigma = pm.HalfNormal("sigma", 3)
        mean = centre + between * away[data["group"]]
        pm.Normal("y", mean, sigma, observed=data["y"])
    return model


def _rows(rng: Any) -> dict[str, Any]:
    return {name: rng.normal(size=RECORDS).clip(-4, 4) for name in X}


def _linear(rng: Any) -> dict[str, Any]:
    x = _rows(rng)
    y = 1 + 0.5 * x["x1"] - 0.3 * x["x2"] + rng.normal(size=RECORDS)
    return {name: x[name] for name in FEW} | {"y": y.clip(-10, 10)}


def _binary(rng: Any) -> dict[str, Any]:
    x = _rows(rng)
    eta = 0.3 + 0.8 * x["x1"] - 0.5 * x["x2"]
    y = (eta + rng.logistic(size=RECORDS) > 0).astype(int)
    return {name: x[name] for name in FEW} | {"y": y}


def _ordered(rng: Any) -> dict[str, Any]:
    import numpy as np

    x = _rows(rng)
    eta = 0.8 * x["x1"] - 0.5 * x["x2"] + 0.2 * x["x3"]
    y = np.searchsorted(np.linspace(-3, 3, 6), eta + rng.logistic(size=RECORDS))
    return x | {"y": y}


def _grouped(rng: Any) -> dict[str, Any]:
    group = rng.integers(GROUPS, size=RECORDS)
    y = 1 + rng.normal(size=GROUPS)[group] + rng.normal(size=RECORDS)
    return {"group": group, "y": y.clip(-10, 10)}


REAL = {"lower": -10, "upper": 10}
MODELS = {
    "normal": Small(normal, FEW | {"y": REAL}, _linear),
    "logistic": Small(logistic, FEW | {"y": {"levels": [0, 1]}}, _binary),
    "ordinal": Small(ordinal, X | {"y": {"levels": list(range(7))}}, _ordered),
    "hierarchical": Small(
        hierarchical,
        {"group": {"levels": list(range(GROUPS)), "public": True}, "y": REAL},
        _grouped,
    ),
}


def ours(small: Small) -> list[float]:
    """Plan and release, and return CPU seconds after the import, the plan and the
    release.
    """
    import pandas as pd
    import pymc  # noqa: F401 - the model is written with it

    import pdips
    from pdips.scores.scores import Scores

    spent = [seconds()]
    from numpy.random import default_rng

    rng = default_rng(SEED)
    schema = pdips.Schema(
        columns={name: pdips.Column(**said) for name, said in small.columns.items()}
    )
    table = pdips.Table(pd.DataFrame(small.table(rng)), schema)
    mechanism = Scores(epsilon=1, model=small.build, n_sets=1)
    mechanism.plan(schema)
    spent.append(seconds())
    mechanism.release(table, rng=rng)
    return [*spent, seconds()]


def theirs(small: Small) -> list[float]:
    """Sample from the model of the same table without privacy, and return CPU seconds
    after the import and the sampling.
    """
    import pymc as pm

    spent = [seconds()]
    from numpy.random import default_rng

    rng = default_rng(SEED)
    model = small.build(small.table(rng), None)
    with model:
        pm.sample(random_seed=1, progressbar=False, quiet=True)
    return [*spent, seconds()]


def child(name: str, whose: str) -> None:
    """Print what one process took: CPU seconds of each part."""
    small = MODELS[name]
    spent = ours(small) if whose == OURS else theirs(small)
    before = [0.0, *spent]
    parts = [after - ahead for ahead, after in zip(before, spent, strict=False)]
    print(json.dumps(parts))


def run(name: str, whose: str, caches: Path) -> list[float]:
    """Run a process of its own with these caches; return CPU seconds of each part."""
    environment = os.environ | {
        "PYTENSOR_FLAGS": f"base_compiledir={caches / 'pytensor'}",
        "NUMBA_CACHE_DIR": str(caches / "numba"),
        # threads that spin while they wait for a busy core would be counted
        "OPENBLAS_NUM_THREADS": "1",
    }
    words = [sys.executable, "-m", "benchmarks.latency", "--child", whose, name]
    done = subprocess.run(
        words, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    parts: list[float] = json.loads(done.stdout.splitlines()[-1])
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--child", choices=OF, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.models[0], given.child)
        return
    print(
        "| model | caches | import | plan | release | together | `pm.sample` | ratio |"
    )
    print("| --- | --- | --: | --: | --: | --: | --: | --: |")
    for name in given.models:
        with tempfile.TemporaryDirectory() as folder:
            for caches in ("empty", "warm"):
                ours = run(name, OURS, Path(folder, OURS))
                theirs = run(name, THEIRS, Path(folder, THEIRS))
                told = " | ".join(f"{part:.1f}" for part in [*ours, sum(ours)])
                print(
                    f"| {name} | {caches} | {told} | {sum(theirs):.1f} | "
                    f"{sum(ours) / sum(theirs):.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
