"""Bounds of log-likelihoods of a million records over 1,000 draws: ``python -m
benchmarks.bounds``.

``python -m benchmarks.bounds picture`` draws ``docs/diagnostics.svg`` and prints the
numbers that its page names.
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np
import pymc as pm
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import special

from pdips.arrays import FloatArray
from pdips.posterior.bounds import stream_bounds
from pdips.report.posterior_figures import places

PICTURE = Path(__file__).parents[1] / "docs" / "diagnostics.svg"
LIMIT = 2.5


def beta_model() -> pm.Model:
    """Return the beta model of Hu et al. (2022) on stand-ins."""
    with pm.Model() as model:
        mean, size = pm.Uniform("mean", 0, 1), pm.Pareto("size", alpha=1.5, m=0.1)
        pm.Beta(
            "y",
            size * mean,
            size * (1 - mean),
            observed=pm.Data("y_data", np.linspace(0.1, 0.9, 9)),
        )
    return model


def simulated(n: int, rng: np.random.Generator) -> FloatArray:
    """Return records of the paper's simulation, away from 0, where a beta has no
    density.
    """
    return np.clip(rng.beta(0.5, 3, n), 1e-12, 1 - 1e-12)


def posterior_draws(
    y: FloatArray, weights: FloatArray, n_draws: int, rng: np.random.Generator
) -> dict[str, FloatArray]:
    """Return independent draws from the weighted posterior on a fine grid around its
    middle.
    """
    mean, size = np.meshgrid(
        np.linspace(0.1, 0.22, 400), np.linspace(2, 6, 400), indexing="ij"
    )
    a, b = mean * size, (1 - mean) * size
    log_density = (
        (a - 1) * (weights @ np.log(y))
        + (b - 1) * (weights @ np.log1p(-y))
        - 2.5 * np.log(size)
    )
    log_density -= weights.sum() * special.betaln(a, b)
    chance = np.exp(log_density - log_density.max()).ravel()
    cell = rng.choice(chance.size, n_draws, p=chance / chance.sum())
    return {"mean": mean.ravel()[cell], "size": size.ravel()[cell]}


def peak() -> float:
    """Return the largest resident size so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(n: int = 1_000_000, n_draws: int = 1000) -> tuple[float, float, float]:
    """Return CPU seconds of a first call on few records, of one on many, and the growth
    of memory in MiB.
    """
    rng = np.random.default_rng(0)
    model, y, weights, centre = (
        beta_model(),
        simulated(n, rng),
        rng.random(n),
        rng.normal(size=n),
    )
    draws = posterior_draws(y[:2000], np.ones(2000), n_draws, rng)
    start, before = time.process_time(), peak()
    stream_bounds(model, {"y": y[:10]}, draws, limit=LIMIT)
    first, start = time.process_time() - start, time.process_time()
    stream_bounds(model, {"y": y}, draws, weights=weights, centre=centre, limit=LIMIT)
    return first, time.process_time() - start, peak() - before


def picture() -> None:
    """Draw bounds of 2,000 simulated records, the paper's weights, and bounds under
    these weights.
    """
    rng = np.random.default_rng(1)
    y, model = simulated(2000, rng), beta_model()
    ones = np.ones(len(y))
    plain = stream_bounds(
        model,
        {"y": y},
        posterior_draws(y, ones, 1000, rng),
        limit=LIMIT,
        independent=True,
    )
    weights = 1 - (plain.largest - plain.largest.min()) / np.ptp(plain.largest)
    again = posterior_draws(y, weights, 1000, rng)
    weighted = stream_bounds(
        model, {"y": y}, again, weights=weights, limit=LIMIT, independent=True
    )
    for name, bounds in (("no weights", plain), ("weights", weighted)):
        print(
            f"{name}: bound {bounds.overall:.2f}, censored at {LIMIT}: "
            f"{bounds.n_censored} of {bounds.n_records}"
        )
    figure = Figure(figsize=(9, 3.2))
    left, middle, right = figure.subplots(1, 3)
    for bounds, style, label in (
        (plain, ".", "no weights"),
        (weighted, "x", "weights"),
    ):
        left.plot(
            *places(y, bounds.largest),
            style,
            color="black",
            markersize=2.5,
            markeredgewidth=0.4,
            label=label,
        )
        right.plot(
            bounds.share_by_draw[0],
            "-" if style == "." else ":",
            color="black",
            linewidth=0.6,
            label=label,
        )
    left.axhline(LIMIT, color="black", linestyle="--", linewidth=0.8)
    middle.plot(*places(y, weights), ".", color="black", markersize=2.5)
    left.set(ylabel="bound of the record (nats)", xlabel="value")
    middle.set(ylabel="weight", xlabel="value")
    right.set(ylabel=f"share of records beyond {LIMIT}", xlabel="draw", ylim=(0, None))
    _finish(figure, (left, middle, right))


def _finish(figure: Figure, panels: tuple[Axes, ...]) -> None:
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (panels[0], panels[2]):
        axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    """Print what the table of benchmarks shows, or draw the picture."""
    if sys.argv[1:] == ["picture"]:
        picture()
        return
    first, seconds, memory = measure()
    print(
        f"{seconds:.1f} s of CPU, {memory:+.0f} MiB; a first call, which compiles, "
        f"{first:.1f} s"
    )


if __name__ == "__main__":
    main()
