"""Draw the picture of ``docs/mechanisms/scores.md``: ``python -m
benchmarks.pictures_scores``. Prints its numbers.
"""

from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from matplotlib.figure import Figure

from benchmarks.pictures import DOCS
from pdips import Schema, Scores, Table
from pdips.posterior.inspection import released_draws
from pdips.scores.record_score import into_ball

N, MEAN, SD, SEED, SHOWN, RADIUS, TABLES = 2_000, 20.0, 5.0, 20261123, 300, 0.7, 20
EPSILONS = (
    Fraction(1, 10),
    Fraction(1, 5),
    Fraction(1, 2),
    Fraction(1),
    Fraction(2),
    Fraction(5),
)
SCHEMA = Schema.model_validate({"columns": {"y": {"lower": 0, "upper": 100}}})


def build_model(data: Any, schema: Any) -> pm.Model:
    """Return normal numbers of unknown mean and deviation."""
    with pm.Model() as model:
        pm.Normal(
            "y", pm.Normal("mean", 50, 50), pm.HalfNormal("sd", 50), observed=data["y"]
        )
    return model


def main() -> None:
    """Measure, print and draw."""
    rng = np.random.default_rng(SEED)
    columns = np.clip(rng.normal(MEAN, SD, (TABLES, N)), 0, 100)
    y = columns[0]
    figure = Figure(figsize=(9, 3.6))
    left, right = figure.subplots(1, 2)
    z = (y[:SHOWN] - MEAN) / SD
    # of the mean and of log sd, whitened
    scores = np.column_stack([z, (z**2 - 1) / np.sqrt(2)])
    inside = RADIUS * into_ball(scores / RADIUS, "l1")
    for one, other in zip(scores, inside, strict=True):
        left.plot(*zip(one, other, strict=True), color="lightgray", linewidth=0.6)
    left.plot(*scores.T, ".", color="gray", markersize=3, label="score of a record")
    left.plot(*inside.T, ".", color="black", markersize=3, label="pulled into the ball")
    left.set(
        xlabel="whitened score of the mean",
        ylabel="of log sd",
        xlim=(-3.2, 3.2),
        ylim=(-1.5, 4),
    )
    left.legend(frameon=False, fontsize=8)
    places = np.arange(len(EPSILONS))
    ends = []
    for epsilon in EPSILONS:
        mechanism = Scores(epsilon=epsilon, model=build_model, n_sets=1)
        for each in columns:
            release, _ = mechanism.release(
                Table(pd.DataFrame({"y": each}), SCHEMA), rng=rng
            )
            ends.append(
                np.quantile(
                    released_draws(release)["mean"],
                    [0.025, 0.975],
                )
            )
    low, high = np.reshape(ends, (len(EPSILONS), TABLES, 2)).transpose(2, 0, 1)
    error = 1.96 * columns.std(axis=1).mean() / np.sqrt(N)
    print("epsilon", [float(each) for each in EPSILONS])
    print(
        "mean width of the 95 % interval",
        np.round((high - low).mean(axis=1), 2),
        "no privacy",
        round(2 * error, 2),
    )
    print("covered", ((low <= MEAN) & (high >= MEAN)).sum(axis=1), "of", TABLES)
    middle, half = (high + low).mean(axis=1) / 2, (high - low).mean(axis=1) / 2
    right.errorbar(
        places, middle, half, fmt="o", color="black", capsize=3, markersize=4
    )
    right.axhspan(
        MEAN - error,
        MEAN + error,
        color="lightgray",
        label="no privacy, about the truth",
    )
    right.axhline(MEAN, color="gray", linewidth=0.8, label="truth")
    right.set(xlabel="epsilon", ylabel="95 % interval of the mean", xticks=places)
    right.set_xticklabels([f"{float(each):g}" for each in EPSILONS])
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(DOCS / "scores.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
