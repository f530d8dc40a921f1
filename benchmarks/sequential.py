"""Coverage of ``slomag`` in simulation 4 of Bowen and Liu (2020): ``python -m benchmarks.sequential [replicates]``."""

import sys
import time

import numpy as np
import pandas as pd

from pdips import Modips, Schema, Table

SCHEMA = Schema.model_validate(
    {
        "columns": {
            **{name: {"lower": -4, "upper": 4} for name in ("z1", "z2")},
            "w1": {"levels": [0, 1]},
            "w2": {"levels": [0, 1]},
            "w3": {"levels": [0, 1, 2]},
        }
    }
)
TRUTH = {"w1": [[-1, 0.5, -1]], "w2": [[-2, -1, 1.5, 0.5]], "w3": [[0, -2.5, 1, 0.5, 0.4], [0.1, -1, -0.5, 0, 1.5]]}
SEED, N = 20261122, 1000
EPSILONS = ("1", "7.389", "54.6")


def simulated(rng: np.random.Generator) -> Table:
    """Draw a table of simulation 4."""
    z = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], N).clip(-4, 4)
    columns: dict[str, np.ndarray] = {"z1": z[:, 0], "z2": z[:, 1]}
    x = np.column_stack([np.ones(N), z])
    for name, betas in TRUTH.items():
        odds = np.column_stack([np.ones(N), *(np.exp(x @ np.array(beta)) for beta in betas)])
        shares = odds / odds.sum(axis=1, keepdims=True)
        columns[name] = (rng.random((N, 1)) >= shares.cumsum(axis=1)).sum(axis=1)
        x = np.column_stack([x, columns[name]])
    return Table(pd.DataFrame(columns), SCHEMA)


def in_units(name: str, draws: pd.DataFrame) -> np.ndarray:
    """Return draws of coefficients of z and w in their own units, shape (draws, all coefficients)."""
    known = [column for column in map(str, draws.columns) if column.startswith(f"coefficients of {name}[")]
    chosen = draws[known].to_numpy()
    one = np.array([1, 0.25, 0.25, 1, 1][: len(TRUTH[name][0])]) / np.sqrt(len(TRUTH[name][0]))
    return np.asarray(chosen * np.tile(one, len(TRUTH[name])))


def main(replicates: int) -> None:
    """Print coverage, error and width by epsilon, over all coefficients."""
    for epsilon in EPSILONS:
        rng, found, start = np.random.default_rng(SEED), [], time.process_time()
        for _ in range(replicates):
            release, _ = Modips(epsilon=epsilon, model="slomag").release(simulated(rng), rng=rng)
            for name, truth in TRUTH.items():
                draws, known = in_units(name, release.tables["posterior"]), np.ravel(truth)
                low, high = np.quantile(draws, [0.025, 0.975], axis=0)
                error = (draws.mean(axis=0) - known) ** 2
                found += list(zip((low <= known) & (known <= high), error, high - low, strict=True))
        covered, square, width = np.array(found).T
        seconds = (time.process_time() - start) / replicates
        print(
            f"epsilon {epsilon}: {replicates} replicates, coefficients: coverage {covered.mean():.3f} (standard error "
            f"about {np.sqrt(0.05 / len(found) * len(TRUTH)):.3f}), RMSE {np.sqrt(square.mean()):.2f}, width "
            f"{width.mean():.2f}, {seconds:.1f} s of processor time a release"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
