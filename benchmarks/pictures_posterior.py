"""Draw the picture of ``docs/mechanisms/censored-posterior.md``: ``python -m
benchmarks.pictures_posterior``.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from benchmarks.pictures import DOCS
from pdips import CensoredPosterior, Schema, Table
from pdips.posterior.columns import Columns
from pdips.posterior.model import blueprint_of
from pdips.posterior.model_file import as_source
from pdips.privacy.curator import Drawing
from pdips.privacy.noise import RandomBits

SCHEMA = Schema.model_validate({"columns": {"y": {"lower": 0, "upper": 1}}})
EPSILONS = (Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
SHOWN = Fraction(1)
RECORDS, REPEATS, DRAWS, SEED = 2_000, 6, 20, 20261121
TRUTH, ROUGH = (0.5, 3.0), {"phi": 0.6 / 2.6, "lam": 2.6}
CENTRES = ("none, as published", "public, rough", "staged, no correction", "staged")
STYLES = (":", "-.", "--", "-")


def shares(data: Columns, schema: Schema) -> pm.Model:
    """Build the beta model of Hu et al. (2022) with its priors."""
    with pm.Model() as model:
        phi = pm.Uniform("phi", 0, 1)
        lam = pm.Pareto("lam", alpha=1.5, m=0.1)
        pm.Beta("y", lam * phi, lam * (1 - phi), observed=data["y"])
    return model


def posterior(
    centre: str, epsilon: Fraction, table: Table, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return phi and lambda, shape (points, 2), with their probabilities, at a true
    epsilon under replace-one.
    """
    known: dict[str, dict[str, Any]] = {
        # the paper's formula, with the window of this epsilon
        CENTRES[0]: {"centre": "zero"},
        CENTRES[1]: {"centre": "reference", "reference": ROUGH},
    }
    settings = known.get(centre, {"centre": "staged"})
    made = CensoredPosterior(epsilon=epsilon, model=shares, **settings)
    plan = made.plan(table.schema)
    stage = made.stage(plan, Drawing(plan, table, RandomBits(rng)))
    if centre == CENTRES[2]:
        stage = replace(stage, simulated={})
    draws: Any = made.draws_from(made.target(table.schema, stage))(table)
    grid = draws.scored
    p = np.exp(grid.log_probabilities())
    kept = p > 1e-9 * p.max()
    values = blueprint_of(as_source(shares), SCHEMA).values_of(
        grid.grid.at(grid.index[kept])
    )
    return np.array([[float(each["phi"]), float(each["lam"])] for each in values]), p[
        kept
    ] / p[kept].sum()


def max_ecdf(
    records: np.ndarray, phi: float, lam: float, rng: np.random.Generator
) -> float:
    """Return the largest distance of the ECDFs of the records and of as many from the
    model.
    """
    made = np.clip(rng.beta(lam * phi, lam * (1 - phi), len(records)), 1e-12, 1 - 1e-12)
    return float(stats.ks_2samp(records, made).statistic)


def measured() -> tuple[
    dict[str, np.ndarray], dict[str, tuple[np.ndarray, np.ndarray]], float
]:
    """Return max-ECDF by centre and epsilon, the posteriors of phi at one epsilon, and
    the error of a fresh sample.
    """
    errors = {centre: np.zeros((REPEATS, len(EPSILONS))) for centre in CENTRES}
    fresh, curves = [], {}
    for repeat in range(REPEATS):
        rng = np.random.default_rng(SEED + repeat)
        records = np.clip(rng.beta(*TRUTH, RECORDS), 1e-12, 1 - 1e-12)
        table = Table(pd.DataFrame({"y": records}), SCHEMA)
        fresh += [
            max_ecdf(records, TRUTH[0] / sum(TRUTH), sum(TRUTH), rng)
            for _ in range(DRAWS)
        ]
        for place, epsilon in enumerate(EPSILONS):
            for centre in CENTRES:
                points, p = posterior(centre, epsilon, table, rng)
                drawn = points[rng.choice(len(p), DRAWS, p=p)]
                errors[centre][repeat, place] = np.mean(
                    [max_ecdf(records, phi, lam, rng) for phi, lam in drawn]
                )
                if repeat == 0 and epsilon == SHOWN:
                    curves[centre] = points[:, 0], p
                    curves["records"] = (records, np.array([]))
    return (
        {centre: found.mean(axis=0) for centre, found in errors.items()},
        curves,
        float(np.mean(fresh)),
    )


def plot_errors(axes: Axes, errors: dict[str, np.ndarray], fresh: float) -> None:
    """Draw max-ECDF against epsilon."""
    for (centre, values), style in zip(errors.items(), STYLES, strict=True):
        axes.plot(
            [float(e) for e in EPSILONS],
            values,
            style,
            marker="o",
            markersize=4,
            color="black",
            label=centre,
        )
    axes.axhline(fresh, color="gray", linewidth=0.8)
    axes.annotate(
        "a fresh sample of the truth",
        (0.5, fresh),
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=7,
    )
    axes.set(xscale="log", yscale="log", xlabel="epsilon", ylabel="max-ECDF")
    axes.set_xticks([float(e) for e in EPSILONS], [f"{float(e):g}" for e in EPSILONS])
    axes.set_yticks([0.03, 0.1, 0.3], ["0.03", "0.1", "0.3"])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8, title="centre", title_fontsize=8)


def plot_posteriors(
    axes: Axes, curves: dict[str, tuple[np.ndarray, np.ndarray]]
) -> None:
    """Draw the posterior of the mean at one epsilon for each centre, and where the
    records have theirs.
    """
    for centre, style in zip(CENTRES, STYLES, strict=True):
        phi, p = curves[centre]
        counts, edges = np.histogram(phi, bins=125, weights=p, range=(0.0, 0.5))
        axes.plot(
            (edges[1:] + edges[:-1]) / 2,
            counts / counts.max(),
            style,
            color="black",
            linewidth=1,
        )
        mean = float(phi @ p)
        print(
            f"{centre}: mean {mean:.3f}, deviation "
            f"{float(np.sqrt((phi - mean) ** 2 @ p)):.4f}"
        )
    axes.axvline(curves["records"][0].mean(), color="gray", linewidth=0.8)
    print(f"records: mean {curves['records'][0].mean():.3f}")
    axes.set(
        xlabel=f"mean of the model, epsilon = {float(SHOWN):g}",
        ylabel="posterior, largest = 1",
    )


def main() -> None:
    """Measure, print and draw."""
    errors, curves, fresh = measured()
    for centre, values in errors.items():
        print(
            centre,
            dict(zip(map(str, EPSILONS), np.round(values, 3).tolist(), strict=True)),
        )
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
