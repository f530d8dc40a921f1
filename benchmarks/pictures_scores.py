"""Draw the picture of ``docs/mechanisms/scores.md``: ``python -m benchmarks.pictures_scores``. Prints its numbers."""

from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from matplotlib.figure import Figure

from benchmarks.pictures import DOCS
from pdips import Schema, Scores, Table
from pdips.scores.record_score import into_ball

N, MEAN, SD, SEED, SHOWN, RADIUS = 2_000, 20.0, 5.0, 20261123, 300, 0.7
EPSILONS = (Fraction(1, 10), Fraction(1, 5), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(5))
SCHEMA = Schema.model_validate({"columns": {"y": {"lower": 0, "upper": 100}}})


def build_model(data: Any, schema: Any) -> pm.Model:
    """Return normal numbers of unknown mean and deviation."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mean", 50, 50), pm.HalfNormal("sd", 50), observed=data["y"])
    return model


def main() -> None:
    """Measure, print and draw."""
    rng = np.random.default_rng(SEED)
    y = np.clip(rng.normal(MEAN, SD, N), 0, 100)
    table = Table(pd.DataFrame({"y": y}), SCHEMA)
    figure = Figure(figsize=(9, 3.6))
    left, right = figure.subplots(1, 2)
    z = (y[:SHOWN] - MEAN) / SD
    scores = np.column_stack([z, (z**2 - 1) / np.sqrt(2)])  # of the mean and of log sd, whitened
    inside = RADIUS * into_ball(scores / RADIUS, "l1")
    for one, other in zip(scores, inside, strict=True):
        left.plot(*zip(one, other, strict=True), color="lightgray", linewidth=0.6)
    left.plot(*scores.T, ".", color="gray", markersize=3, label="score of a record")
    left.plot(*inside.T, ".", color="black", markersize=3, label="pulled into the ball")
    left.set(xlabel="whitened score of the mean", ylabel="of log sd", xlim=(-3.2, 3.2), ylim=(-1.5, 4))
    left.legend(frameon=False, fontsize=8)
    places = np.arange(len(EPSILONS))
    ends = []
    for epsilon in EPSILONS:
        release, _ = Scores(epsilon=epsilon, model=build_model).release(table, rng=np.random.default_rng(SEED))
        ends.append(np.quantile(release.tables["posterior"]["mean"], [0.025, 0.5, 0.975]))
    low, middle, high = np.array(ends).T
    error = 1.96 * y.std() / np.sqrt(N)
    print("epsilon", [float(each) for each in EPSILONS])
    print("width of the 95 % interval of the mean", np.round(high - low, 2).tolist(), "no privacy", round(2 * error, 2))
    right.errorbar(places, middle, [middle - low, high - middle], fmt="o", color="black", capsize=3, markersize=4)
    right.axhspan(y.mean() - error, y.mean() + error, color="lightgray", label="interval without privacy")
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
