"""Noise of K-norm gradients, by norm, by box and by instruments: ``python -m
benchmarks.gradient_noise``.
"""

from itertools import product
from math import factorial

import numpy as np

MONTE_CARLO = 400


def volume(norm: str, tau: float, p: int) -> float:
    """Return the volume of the unit ball of a norm of (1, z), z in [-1, 1]^p, times
    Delta^(p + 1), replace-one.
    """
    width = 2 * max(tau, 1 - tau)
    if norm == "hull":
        return float(2 ** (p + 1) * sum(width**k for k in range(p + 1)) / (p + 1))
    if norm == "linf":
        return float((2 * max(width, 1)) ** (p + 1))
    return float((2 * max(p * width, 1 + p)) ** (p + 1) / factorial(p + 1))


def box_volume(p: int, tau: float, reach: float) -> float:
    """Return the same for the largest coordinate of (1, x), x in [0, reach]^p, in the
    coordinates z of that box.
    """
    delta = max(max(tau, 1 - tau) * reach, reach, 1.0)
    return float((2 * delta) ** (p + 1) * (2 / reach) ** p)


def errors(
    kind: str, epsilon: float, rng: np.random.Generator, n: int = 5_000
) -> np.ndarray:
    """Return errors of intercept (at the predictor's middle) and slope of private
    medians on a skewed predictor.

    The predictor is lognormal, capped at 46 as in Tran et al. (2023), in a public box;
    the law is that of the K-norm gradient mechanism on a grid of lines about the true
    one, as wide as the laws are.
    """
    x = np.minimum(np.exp(rng.normal(0.5, 1.0, n)), 46.0)
    y = 4 + 3 * x + rng.exponential(10, n)
    box = 2 * x / 46 - 1
    middle = float(np.median(x))
    whole = {
        "raw": np.stack([np.ones(n), x], axis=1),
        "centred": np.stack([np.ones(n), box], axis=1),
        "instruments": np.stack(
            [np.ones(n), np.clip((x - middle) / (0.3 * x.std()), -1, 1)], axis=1
        ),
    }[kind]
    delta = 46.0 if kind == "raw" else 1.0
    centre = 4 + 10 * np.log(2) + 3 * middle
    reach = {"raw": (6.0, 2.0), "centred": (3.0, 2.0), "instruments": (3.0, 2.0)}[kind]
    intercepts, slopes = (
        np.linspace(-reach[0], reach[0], 121),
        np.linspace(-reach[1], reach[1], 121),
    )
    found = np.empty((len(slopes), len(intercepts)))
    for k, slope in enumerate(slopes):
        residual = y - centre - (3 + slope) * (x - middle)
        order = np.argsort(residual)
        sums = np.concatenate([np.zeros((1, 2)), np.cumsum(whole[order], axis=0)])
        below = sums[np.searchsorted(residual[order], intercepts, side="right")]
        found[k] = np.abs(below - whole.sum(axis=0) / 2).max(axis=1)
    weights = np.exp(-epsilon / (2 * delta) * (found - found.min()))
    weights /= weights.sum()
    by_intercept, by_slope = weights.sum(axis=0), weights.sum(axis=1)
    return np.array(
        [
            (by_intercept * intercepts**2).sum() ** 0.5,
            (by_slope * slopes**2).sum() ** 0.5,
        ]
    )


def main() -> None:
    """Print both tables."""
    print(
        "| tau | p | l1 / hull | linf / hull | linf of {1} x [0,1]^p / hull | linf "
        "of {1} x [0,46]^p / hull |"
    )
    for tau, p in product((0.5, 0.9, 0.99), (1, 2, 3)):
        hull = volume("hull", tau, p)
        row = [
            volume("l1", tau, p),
            volume("linf", tau, p),
            box_volume(p, tau, 1.0),
            box_volume(p, tau, 46.0),
        ]
        print(
            f"| {tau} | {p} | "
            + " | ".join(f"{each / hull:.3g}" for each in row)
            + " |"
        )
    for epsilon in (0.1, 0.5):
        for kind in ("raw", "centred", "instruments"):
            rng = np.random.default_rng(1)
            sizes = np.sqrt(
                np.mean([errors(kind, epsilon, rng) ** 2 for _ in range(20)], axis=0)
            )
            print(
                f"epsilon {epsilon}, {kind}: root mean square error at the middle "
                f"{sizes[0]:.3f}, slope {sizes[1]:.4f}"
            )


if __name__ == "__main__":
    main()
