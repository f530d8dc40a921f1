"""Hit-and-run on the K-norm gradient density and its PyMC step: ``python -m
benchmarks.hit_and_run``.

Records as in the simulation of Tran et al. (2023): covariates exponential with mean 10,
capped at 46 and scaled to [-1, 1], outcomes 4 + 3 times their sum plus an exponential
of mean 10. Epsilon is 0.125 under replace-one, the norm is the hull's, so the scale is
0.0625 nats a unit. The box of the parameters is public and wide.
"""

import time
from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np
import pymc as pm

from pdips.arrays import FloatArray
from pdips.convergence import Convergence, converged
from pdips.posterior import model_file
from pdips.quantile.gradient import KNormGradient
from pdips.quantile.hit_and_run import HitAndRun
from pdips.quantile.pymc_step import KNormGradientStep, knorm_gradient

SCALE = 0.125 / 2
SETTINGS = {
    "chains": 4,
    "cores": 1,
    "progressbar": False,
    "quiet": True,
    "compute_convergence_checks": False,
}


def records(n: int, p: int) -> tuple[FloatArray, FloatArray]:
    """Return covariates with the intercept's column, scaled, and outcomes."""
    rng = np.random.default_rng(0)
    covariates = np.minimum(rng.exponential(10, (n, p - 1)), 46)
    y = 4 + 3 * covariates.sum(1) + rng.exponential(10, n)
    return np.column_stack([np.ones(n), covariates / 23 - 1]), y


def box(p: int) -> tuple[FloatArray, FloatArray]:
    """Return the public box: an outcome from 0 to 500, and slopes that can go through
    it.
    """
    return np.array([0.0] + [-250.0] * (p - 1)), np.array([500.0] + [250.0] * (p - 1))


def moves_a_second(n: int, p: int) -> float:
    """Return moves a CPU second near the mode, without compiling: the best of five."""
    sampler = HitAndRun(KNormGradient(*records(n, p), 0.5, SCALE), *box(p))
    rng, found = np.random.default_rng(1), []
    theta = sampler.draw((sampler.lower + sampler.upper) / 2, 1, 500, rng, smooth=True)[
        0
    ]
    moves = max(10, 2_000_000 // n)
    for _ in range(5):
        start = time.process_time()
        theta = sampler.draw(theta, 1, moves, rng)[0]
        found.append(moves / (time.process_time() - start))
    return max(found)


def through_pymc(
    n: int, p: int, *, draws: int = 1000, tune: int = 400
) -> tuple[Convergence, float, float, float]:
    """Return convergence, CPU seconds in all, CPU seconds in moves, and moves for each
    draw.
    """
    with pm.Model():
        beta = pm.Uniform(
            "beta", *box(p), shape=p, default_transform=None, initval="prior"
        )
        x, y = records(n, p)
        knorm_gradient("kng", beta, x, y, tau=0.5, scale=SCALE)
        step = KNormGradientStep([beta])
        inside = [0.0]
        draw = step.sampler.draw

        def timed(*words, **options):  # type: ignore[no-untyped-def]
            start = time.process_time()
            found = draw(*words, **options)
            inside[0] += time.process_time() - start
            return found

        vars(step.sampler)["draw"] = timed
        start = time.process_time()
        tree = pm.sample(step=step, draws=draws, tune=tune, random_seed=1, **SETTINGS)
        return converged(tree), time.process_time() - start, inside[0], step.moves


def lines_that_do_not_cross(n: int, n_lines: int) -> tuple[Convergence, float]:
    """Return convergence of joint lines of ``models/kng_quantile_regression.py``,
    epsilon .5 each, and CPU seconds.
    """
    kng = model_file.load(model_file.path("kng_quantile_regression"))[0]
    taus = [Fraction(k, n_lines + 1) for k in range(1, n_lines + 1)]
    model = kng.lines_model(*records(n, 2), taus, 4 * SCALE, *box(2))
    starts = kng.public_starts(taus, *box(2), np.random.default_rng(2))
    start = time.process_time()
    tree = kng.sample_lines(model, starts, draws=500, tune=500, rng=3)
    return converged(tree), time.process_time() - start


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield what is measured, what was found, and the goal."""
    through_pymc(100, 2, draws=10, tune=10)  # compiles
    for n, p in ((500, 2), (5000, 2), (5000, 3), (100_000, 2)):
        yield (
            (f"hit-and-run, {n:,} records, {p} parameters"),
            f"{moves_a_second(n, p):,.0f} moves/CPU s",
            "",
        )
    for n, p in ((500, 2), (5000, 2), (5000, 3)):
        found, whole, inside, moves = through_pymc(n, p)
        size = min(found.ess_bulk.values())
        told = (
            f"{whole:.1f} CPU s, of it {100 * (1 - inside / whole):.1f} % outside of "
            f"moves; {size:,.0f} effective "
            f"draws, {size / whole:,.0f}/CPU s; R-hat {max(found.rhat.values()):.3f}"
        )
        yield (
            f"the same as a PyMC step, {n:,} records, p = {p}, 4 x (400 + 1,000) "
            f"draws of {moves} moves",
            told,
            "< 20 %",
        )
    for n, n_lines in product((1000, 5000), (3, 9)):
        found, whole = lines_that_do_not_cross(n, n_lines)
        size = min(found.ess_bulk.values())
        yield (
            f"{n_lines} lines that mustn't cross, {n:,} records, 4 x (500 + 500) draws",
            f"{size:,.0f} effective draws, {size / whole:,.0f}/CPU s; R-hat "
            f"{max(found.rhat.values()):.3f}",
            "",
        )


def main() -> None:
    """Print the table."""
    print("| what | measured | goal |\n| --- | --- | --- |")
    for what, found, goal in rows():
        print(f"| {what} | {found} | {goal} |", flush=True)


if __name__ == "__main__":
    main()
