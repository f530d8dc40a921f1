"""Coverage of ``slomag`` in simulation 4 of Bowen and Liu (2020): ``python -m
benchmarks.sequential 25 [prior]``.

With ``prior``, coefficients are drawn from the model's prior for each table. The errors
of three estimates: the mean of the posterior, the noisy ridge fit plugged in, and zero.
"""

import sys
import time

import numpy as np
import pandas as pd

from pdips import Modips, Schema, Table
from pdips.posterior.inspection import released_draws

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
TRUTH = {
    "w1": [[-1, 0.5, -1]],
    "w2": [[-2, -1, 1.5, 0.5]],
    "w3": [[0, -2.5, 1, 0.5, 0.4], [0.1, -1, -0.5, 0, 1.5]],
}
SEED, N = 20261122, 1000
EPSILONS = ("1", "7.389", "54.6")


Coefficients = dict[str, np.ndarray]


def drawn_from_prior(rng: np.random.Generator) -> Coefficients:
    """Draw coefficients from the prior of ``models/slomag.py``, in the units of z and
    w.
    """
    return {
        name: rng.normal(0, 10, np.shape(betas)) * units(name)
        for name, betas in TRUTH.items()
    }


def units(name: str) -> np.ndarray:
    """Return what a coefficient of predictors in the unit ball is worth in the units of
    z and w.
    """
    return np.asarray(
        np.array([1, 0.25, 0.25, 1, 1][: len(TRUTH[name][0])])
        / np.sqrt(len(TRUTH[name][0]))
    )


def simulated(rng: np.random.Generator, truth: Coefficients) -> Table:
    """Draw a table of simulation 4."""
    z = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], N).clip(-4, 4)
    columns: dict[str, np.ndarray] = {"z1": z[:, 0], "z2": z[:, 1]}
    x = np.column_stack([np.ones(N), z])
    for name, betas in truth.items():
        odds = np.column_stack(
            [np.ones(N), *(np.exp(x @ np.array(beta)) for beta in betas)]
        )
        shares = odds / odds.sum(axis=1, keepdims=True)
        columns[name] = (rng.random((N, 1)) >= shares.cumsum(axis=1)).sum(axis=1)
        x = np.column_stack([x, columns[name]])
    return Table(pd.DataFrame(columns), SCHEMA)


def in_units(name: str, draws: pd.DataFrame) -> np.ndarray:
    """Return draws of coefficients of z and w in their own units, shape (draws, all
    coefficients).
    """
    known = [
        column
        for column in map(str, draws.columns)
        if column.startswith(f"coefficients of {name}[")
    ]
    chosen = draws[known].to_numpy()
    return np.asarray(chosen * np.tile(units(name), len(TRUTH[name])))


def main(replicates: int, prior: bool) -> None:
    """Print coverage, errors and width by epsilon, over all coefficients."""
    for epsilon in EPSILONS:
        rng, found, start = np.random.default_rng(SEED), [], time.process_time()
        for _ in range(replicates):
            coefficients = (
                drawn_from_prior(rng)
                if prior
                else {name: np.array(each) for name, each in TRUTH.items()}
            )
            release, _ = Modips(epsilon=epsilon, model="slomag").release(
                simulated(rng, coefficients), rng=rng
            )
            noisy = release.tables["statistics"].set_index("statistic")["noisy"]
            for name, truth in coefficients.items():
                draws, known = (
                    in_units(name, released_draws(release)),
                    np.ravel(truth),
                )
                fitted = noisy[f"fit of {name}"].to_numpy() * np.tile(
                    units(name), len(truth)
                )
                low, high = np.quantile(draws, [0.025, 0.975], axis=0)
                errors = [
                    (each - known) ** 2 for each in (draws.mean(axis=0), fitted, 0.0)
                ]
                found += list(
                    zip(
                        (low <= known) & (known <= high),
                        high - low,
                        *errors,
                        strict=True,
                    )
                )
        covered, width, *squares = np.array(found).T
        mean, plug_in, zero = (f"{np.sqrt(each.mean()):.2f}" for each in squares)
        seconds = (time.process_time() - start) / replicates
        print(
            f"epsilon {epsilon}: {replicates} replicates, coefficients: coverage "
            f"{covered.mean():.3f} (standard error "
            f"about {np.sqrt(0.05 / len(found) * len(TRUTH)):.3f}), RMSE {mean}, "
            f"plug-in {plug_in}, zero {zero}, width "
            f"{width.mean():.2f}, {seconds:.1f} s of processor time a release",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40, "prior" in sys.argv)
