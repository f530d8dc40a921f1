"""How short intervals of normal groups can be: posterior deviations over those without
privacy, common parameters and sizes known, with noise counted as normal and by its
exact law: ``python -m benchmarks.groups_limit [--average N] [--epsilon E]``. Ranges are
those of ``docs/results/groups.md``; groups are as in ``benchmarks.groups``.
"""

import argparse

import numpy as np

from benchmarks.groups import SHAPE, TRUTH
from pdips.arrays import FloatArray
from pdips.groups.group_sums import OF_SQUARES

RANGES = ((-20, 20), (-15, 19), (-12, 16))
GROUPS = 300
# Of sums of records, on which densities are convolved
POINTS = np.linspace(-400, 400, 2**16)
LEAST_DENSITY = 1e-14
# Of noise added to a number that one person changes by 1, at epsilon 1: Geng and
# Viswanath (2016)
STAIRCASE = 1.918


def convolved(one: FloatArray, other: FloatArray) -> FloatArray:
    """Return the density of the sum of two numbers."""
    product = np.fft.fft(np.fft.ifftshift(one)) * np.fft.fft(np.fft.ifftshift(other))
    step = POINTS[1] - POINTS[0]
    return np.asarray(np.fft.fftshift(np.real(np.fft.ifft(product))) * step)


def informations(size: float, within: float, mean: float, scale: float) -> FloatArray:
    """Return what a group's sum less its mean times its size tells of the mean, by its
    exact law and as normal.
    """
    ends = [scale * (1 - mean), scale * (1 + mean)]
    laplace = [np.exp(-np.abs(POINTS) / end) / (2 * end) for end in ends]
    records = np.exp(-(POINTS**2) / (2 * size * within))
    records /= np.sqrt(2 * np.pi * size * within)
    density = np.maximum(convolved(convolved(*laplace), records), 0.0)
    step = POINTS[1] - POINTS[0]
    slope = np.gradient(density, step)
    shown = density > LEAST_DENSITY
    exact = (slope[shown] ** 2 / density[shown]).sum() * step
    variance = (POINTS**2 * density).sum() * step
    return size**2 * np.array([exact, 1 / variance])


def main() -> None:
    """Print a row for each range."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--average", type=float, default=333.0)
    parser.add_argument("--epsilon", type=float, default=1.0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    expected = rng.gamma(SHAPE, arguments.average / SHAPE, GROUPS)
    sizes = np.maximum(rng.poisson(expected), 1)
    middle, spread, deviation = TRUTH["normal"]
    scale = 2 / (arguments.epsilon * float(1 - OF_SQUARES))
    public = (spread**-2 + sizes / deviation**2) ** -0.5
    print("| range | exact law | as normal | least noise, membership public |")
    print("| --- | --- | --- | --- |")
    for lower, upper in RANGES:
        half = (upper - lower) / 2
        mean = (middle - (lower + upper) / 2) / half
        within = (deviation / half) ** 2
        by_numbers = [informations(size, within, mean, scale) for size in sizes]
        least = 4 * STAIRCASE / arguments.epsilon**2
        bound = sizes**2 / (sizes * within + least)
        told = np.column_stack([by_numbers, bound])
        left = (spread**-2 + told / half**2) ** -0.5
        ratios = left.mean(axis=0) / public.mean()
        cells = " | ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"| {lower} to {upper} | {cells} |")


if __name__ == "__main__":
    main()
