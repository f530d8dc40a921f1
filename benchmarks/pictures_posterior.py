"""Draw the picture of ``docs/mechanisms/censored-posterior.md``: ``python -m benchmarks.pictures_posterior``."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pymc as pm
from matplotlib.figure import Figure
from scipy import stats

from benchmarks.pictures import DOCS
from pdips import CensoredPosterior, Schema, Table
from pdips.bayes.columns import Columns
from pdips.bayes.drawing import Scored
from pdips.bayes.stages import Stage
from pdips.noise import RandomBits

SCHEMA = Schema.model_validate({"columns": {"y": {"lower": 0, "upper": 1}}})
EPSILONS = (Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
SHOWN = Fraction(1)
RECORDS, REPEATS, DRAWS, SEED = 2_000, 6, 20, 20261121
TRUTH, ROUGH = (0.5, 3.0), {"phi": 0.6 / 2.6, "lam": 2.6}
CENTRES = ("none, as published", "public, rough", "staged, no correction", "staged")
STYLES = (":", "-.", "--", "-")


def shares(data: Columns, schema: Schema) -> pm.Model:
    """Build the beta model of paper 004 with its priors."""
    with pm.Model() as model:
        phi = pm.Uniform("phi", 0, 1)
        lam = pm.Pareto("lam", alpha=1.5, m=0.1)
        pm.Beta("y", lam * phi, lam * (1 - phi), observed=data["y"])
    return model


def scored(centre: str, epsilon: Fraction, table: Table, rng: np.random.Generator) -> tuple[CensoredPosterior, Scored]:
    """Score the grid at a true epsilon under replace-one."""
    settings = {
        "none, as published": {"centre": "zero"},
        "public, rough": {"centre": "reference", "reference": ROUGH},
    }.get(centre, {"centre": "staged"})
    made = CensoredPosterior(epsilon=epsilon, model=shares, **settings)
    stage: Stage = made.stage(table, RandomBits(rng))
    if centre == "staged, no correction":
        stage = replace(stage, simulated={})
    return made, made.scored(table, stage)


def parameters(made: CensoredPosterior, grid: Scored, flat: np.ndarray) -> np.ndarray:
    """Return phi and lambda of points in unconstrained space, shape (points, 2)."""
    values = made._space(SCHEMA).values_of(flat)
    return np.array([[float(each["phi"]), float(each["lam"])] for each in values])


def max_ecdf(records: np.ndarray, phi: float, lam: float, rng: np.random.Generator) -> float:
    """Return the largest distance of the ECDFs of the records and of as many from the model."""
    made = np.clip(rng.beta(lam * phi, lam * (1 - phi), len(records)), 1e-12, 1 - 1e-12)
    return float(stats.ks_2samp(records, made).statistic)


def posterior_of_mean(made: CensoredPosterior, grid: Scored) -> tuple[np.ndarray, np.ndarray]:
    """Return phi at the cells with any probability, and these probabilities."""
    p = np.exp(grid.log_probabilities())
    kept = p > 1e-9 * p.max()
    return parameters(made, grid, grid.grid.at(grid.index[kept]))[:, 0], p[kept]


def measured() -> tuple[dict[str, np.ndarray], dict[str, tuple[np.ndarray, np.ndarray]], float]:
    """Return max-ECDF by centre and epsilon, the posteriors of phi at one epsilon, and the error of a fresh sample."""
    errors = {centre: np.zeros((REPEATS, len(EPSILONS))) for centre in CENTRES}
    fresh, curves = [], {}
    for repeat in range(REPEATS):
        rng = np.random.default_rng(SEED + repeat)
        records = np.clip(rng.beta(*TRUTH, RECORDS), 1e-12, 1 - 1e-12)
        table = Table(pd.DataFrame({"y": records}), SCHEMA)
        fresh += [max_ecdf(records, TRUTH[0] / sum(TRUTH), sum(TRUTH), rng) for _ in range(DRAWS)]
        for place, epsilon in enumerate(EPSILONS):
            for centre in CENTRES:
                made, grid = scored(centre, epsilon, table, rng)
                drawn = parameters(made, grid, grid.draw(DRAWS, RandomBits(rng)))
                errors[centre][repeat, place] = np.mean([max_ecdf(records, *each, rng) for each in drawn])
                if repeat == 0 and epsilon == SHOWN:
                    curves[centre] = posterior_of_mean(made, grid)
                    curves["records"] = (records, np.array([]))
    return {centre: found.mean(axis=0) for centre, found in errors.items()}, curves, float(np.mean(fresh))


def plot_errors(axes: object, errors: dict[str, np.ndarray], fresh: float) -> None:
    """Draw max-ECDF against epsilon."""
    for (centre, values), style in zip(errors.items(), STYLES, strict=True):
        axes.plot([float(e) for e in EPSILONS], values, style, marker="o", markersize=4, color="black", label=centre)
    axes.axhline(fresh, color="gray", linewidth=0.8)
    axes.annotate("a fresh sample of the truth", (0.5, fresh), xytext=(0, 3), textcoords="offset points", fontsize=7)
    axes.set(xscale="log", yscale="log", xlabel="epsilon", ylabel="max-ECDF")
    axes.set_xticks([float(e) for e in EPSILONS], [f"{float(e):g}" for e in EPSILONS])
    axes.set_yticks([0.03, 0.1, 0.3], ["0.03", "0.1", "0.3"])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8, title="centre", title_fontsize=8)


def plot_posteriors(axes: object, curves: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Draw the posterior of the mean at one epsilon for each centre, and where the records have theirs."""
    for centre, style in zip(CENTRES, STYLES, strict=True):
        phi, p = curves[centre]
        counts, edges = np.histogram(phi, bins=60, weights=p / p.sum(), range=(0.0, 0.5))
        axes.plot((edges[1:] + edges[:-1]) / 2, counts / counts.max(), style, color="black", linewidth=1)
        mean = float(phi @ p / p.sum())
        print(f"{centre}: mean {mean:.3f}, deviation {float(np.sqrt((phi - mean) ** 2 @ p / p.sum())):.4f}")
    axes.axvline(curves["records"][0].mean(), color="gray", linewidth=0.8)
    print(f"records: mean {curves['records'][0].mean():.3f}")
    axes.set(xlabel=f"mean of the model, epsilon = {float(SHOWN):g}", ylabel="posterior, largest = 1")


def main() -> None:
    """Measure, print and draw."""
    errors, curves, fresh = measured()
    for centre, values in errors.items():
        print(centre, dict(zip(map(str, EPSILONS), np.round(values, 3).tolist(), strict=True)))
    print(f"fresh sample {fresh:.3f}")
    figure = Figure(figsize=(9, 3.6))
    left, right = figure.subplots(1, 2)
    plot_errors(left, errors, fresh)
    plot_posteriors(right, curves)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(DOCS / "censored-posterior.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
