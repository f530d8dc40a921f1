"""Time and draw `kng` and `kng-residual`: ``python -m benchmarks.quantiles``.

The simulation of Tran et al. (2023): X1 ~ Exp(.1), X2 = 4 + 3 X1 + Exp(.1), X3 = 3 + 2
X1 + X2 + Exp(.1). Prints the rows of ``docs/results/benchmarks.md`` and draws
``docs/mechanisms/kng.svg`` and ``kng-residual.svg``. With ``means`` it prints the mean
of hourly earnings by `kng`, `kng-residual` and `margins` at epsilon = 1. With
``targets`` it prints the measures of the paper's tables 1 and 2 for `kng-residual` at
epsilon = 1, 100 replicates.
"""

import sys
import time
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.__main__ import EXAMPLES, row
from benchmarks.pictures import DOCS
from pdips import KNG, Column, KNGResidual, Margins, Mechanism, Schema, Table
from pdips_papers.harness.marginal_score import mean_k_marginal
from pdips_papers.harness.prediction import standardised_differences
from pdips_papers.kng.heavy_rows import measures

UPPER = {"x1": 1000.0, "x2": 1000.0, "x3": 2000.0}
SCHEMA = Schema(
    columns={name: Column(lower=0.0, upper=upper) for name, upper in UPPER.items()}
)
CAPS = {"x1": 46, "x2": 106}
REPEATS = 4
EPSILONS = (0.25, 0.5, 1, 2, 4)
TAUS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
KINDS: dict[str, dict[str, Any]] = {
    "kng-residual": {},
    "kng, sandwich": {"scheme": "sandwich"},
}
GOALS = {
    "pMSE WOI": "<= 0.0015",
    "pMSE WI": "<= 0.0025",
    "WRT": "<= 4.0",
    "KM": ">= 900",
    "Int diff": "<= 8",
    "Slope diff": "<= 1.8",
    "NRMSE X2": "<= 0.321",
    "NRMSE X3": "<= 0.198",
}
STYLES = ("o-", "v:")


def simulated(n: int, seed: int) -> Table:
    """Return a table of the paper's simulation, values beyond the public bounds moved
    to them.
    """
    rng = np.random.default_rng(seed)
    x1, noise2, noise3 = rng.exponential(10, (3, n))
    x2 = 4 + 3 * x1 + noise2
    columns = {"x1": x1, "x2": x2, "x3": 3 + 2 * x1 + x2 + noise3}
    return Table(
        pd.DataFrame(
            {name: np.minimum(each, UPPER[name]) for name, each in columns.items()}
        ),
        SCHEMA,
    )


def built(kind: str, epsilon: float) -> Mechanism:
    """Return a mechanism by the name it has in the pictures."""
    build: Any = KNGResidual if kind == "kng-residual" else KNG
    made: Mechanism = build(epsilon=epsilon, caps=CAPS, **KINDS[kind])
    return made


def timed(mechanism: Mechanism, table: Table) -> float:
    """Return the processor seconds of a release, compiled functions at hand."""
    start = time.process_time()
    mechanism.release(table)
    return time.process_time() - start


def times() -> None:
    """Print how long releases take."""
    small = simulated(5_000, 1)
    for scheme in ("stepwise", "sandwich"):
        for slopes, goal in (("fixed", "<= 1 s"), ("varying", "<= 5 s")):
            wanted: dict[str, Any] = {"scheme": scheme, "slopes": slopes}
            mechanism = KNG(epsilon=1, caps=CAPS, **wanted)
            found = min(timed(mechanism, small) for _ in range(3))
            row(
                f"kng, {scheme}, {slopes} slopes, 49 quantiles, 5,000 x 3",
                f"{found:.2f} s",
                goal,
            )
    row(
        "kng-residual, 5,000 x 3",
        f"{min(timed(built('kng-residual', 1), small) for _ in range(3)):.2f} s",
        "<= 1 s",
    )
    row(
        "kng-residual, 1,000,000 x 3",
        f"{timed(built('kng-residual', 1), simulated(1_000_000, 1)):.1f} s",
        "<= 60 s",
    )


def finished(figure: Figure, name: str) -> None:
    """Tidy a picture and write it."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(DOCS / f"{name}.svg", metadata={"Date": None})


def lines() -> None:
    """Draw conditional quantiles of X2 given X1, true and of synthetic sets."""
    figure, at = Figure(figsize=(7.2, 3.2)), np.linspace(1, 40, 14)
    for place, kind in enumerate(("kng, sandwich", "kng-residual")):
        axes = figure.add_subplot(1, 2, place + 1)
        for tau in TAUS:
            axes.plot(at, 4 + 3 * at - 10 * np.log(1 - tau), color="grey", linewidth=1)
        made = built(kind, 1).release(simulated(5_000, 2))[0].sets[0]
        for k, x in enumerate(at):
            near = made[np.abs(made["x1"] - x) < 1.5]
            if len(near) > 20:
                moved = near["x2"] - 3 * (near["x1"] - x)
                axes.plot(
                    [x] * len(TAUS),
                    np.quantile(moved, TAUS),
                    "k_",
                    markersize=7,
                    label=None if k else "synthetic",
                )
        axes.set(title=f"{kind}, epsilon = 1", xlabel="x1", ylabel="x2", ylim=(0, 190))
    finished(figure, "kng")


def accuracy() -> None:
    """Draw the k-marginal score and the slope's error against epsilon."""
    figure = Figure(figsize=(7.2, 3.2))
    panels = [figure.add_subplot(1, 2, place + 1) for place in range(2)]
    for kind, style in zip(KINDS, STYLES, strict=True):
        found = []
        for epsilon in EPSILONS:
            runs = []
            for seed in range(REPEATS):
                table = simulated(5_000, 10 + seed)
                made = built(kind, epsilon).release(table)[0].sets[0]
                slope = standardised_differences(table.frame, made, "x2", ["x1"])["x1"]
                runs.append((mean_k_marginal(table.frame, made), slope))
            found.append(np.mean(runs, axis=0))
            print(kind, epsilon, np.round(found[-1], 2), flush=True)
        for axes, values in zip(panels, np.transpose(found), strict=True):
            axes.plot(
                EPSILONS,
                values,
                style,
                color="black",
                markersize=5,
                linewidth=1,
                label=kind,
            )
    panels[0].set(
        xscale="log", xlabel="epsilon", ylabel="k-marginal score", title="of 1,000"
    )
    panels[1].set(
        xscale="log",
        yscale="log",
        xlabel="epsilon",
        ylabel="standard errors",
        title="slope of x2 on x1, error",
    )
    for axes in panels:
        axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes.minorticks_off()
    panels[0].legend(frameon=False, fontsize=8)
    finished(figure, "kng-residual")


def targets(replicates: int = 100) -> None:
    """Print the measures of Tran et al.'s tables for `kng-residual` at epsilon = 1,
    mean and standard error.
    """
    found = []
    for seed in range(replicates):
        training, testing = (
            simulated(5_000, 1_000 + seed),
            simulated(5_000, 2_000 + seed),
        )
        made = built("kng-residual", 1).release(training)[0].sets[0]
        found.append(
            measures(training.frame, testing.frame, made, np.random.default_rng(seed))
        )
    table = pd.DataFrame(found)
    for name, goal in GOALS.items():
        mean, error = (
            float(table[name].mean()),
            float(np.std(table[name], ddof=1) / np.sqrt(replicates)),
        )
        row(name, f"{mean:.4g} ({error:.2g})", goal)


def earnings(releases: int = 8) -> None:
    """Print coefficients of hourly earnings on the public columns of the example:
    confidential, and of releases.
    """
    schema = Schema.load(EXAMPLES / "earnings.toml")
    table = Table.read(EXAMPLES / "earnings.parquet", schema)

    def fitted(frame: pd.DataFrame) -> Any:
        columns = [frame["gender"] == "male", frame["age"], frame["education"]]
        regions = [frame["region"] == name for name in ("Midwest", "South", "West")]
        design = np.column_stack([np.ones(len(frame)), *columns, *regions]).astype(
            np.float64
        )
        return np.linalg.lstsq(design, frame["earnings"].to_numpy(dtype=np.float64))[0]

    own = fitted(table.frame)
    made = np.array(
        [
            fitted(KNGResidual(epsilon=1).release(table)[0].sets[0])
            for _ in range(releases)
        ]
    )
    for place, name in enumerate(
        ("male", "a year of age", "a year of education"), start=1
    ):
        mean, spread = made[:, place].mean(), made[:, place].std(ddof=1)
        row(
            f"earnings, {name}",
            f"{mean:.2f}, from release to release {spread:.2f}",
            f"{own[place]:.2f}",
        )


def means(releases: int = 10) -> None:
    """Print the mean of hourly earnings, confidential and of releases."""
    schema = Schema.load(EXAMPLES / "earnings.toml")
    table = Table.read(EXAMPLES / "earnings.parquet", schema)
    own = float(table.frame["earnings"].mean())
    for build in (KNG, KNGResidual, Margins):
        mechanism = build(epsilon=1)
        found = [
            float(mechanism.release(table)[0].sets[0]["earnings"].mean())
            for _ in range(releases)
        ]
        spread = float(np.std(found, ddof=1))
        row(
            f"mean earnings by {mechanism.name}",
            f"{np.mean(found):.2f}, from release to release {spread:.2f}",
            f"{own:.2f}",
        )


if __name__ == "__main__":
    if "means" in sys.argv:
        means()
        sys.exit()
    if "targets" in sys.argv:
        targets()
        earnings()
        sys.exit()
    times()
    lines()
    accuracy()
