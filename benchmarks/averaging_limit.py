"""What no rule can reach in *cells* of :mod:`benchmarks.averaging`: ``python -m
benchmarks.averaging_limit``.

Prints the power of the most powerful test of even tables of 200 records against tables
of few cells, whose laws are known, from noisy counts at epsilon = 0.1.
"""

from math import comb

import numpy as np
from scipy.special import gammaln

N_TESTED, FEW = 400, 4
SIZES = (0.0134, 0.05, 0.1, 0.2)


def log_sum(terms: np.ndarray, n: int) -> float:
    """Return log of the sum, over tables of n records, of the product of exp(terms),
    shape (cells, n + 1).
    """
    numbers, low, high = np.arange(n + 1), -5.0, 5.0
    for _ in range(60):  # tilted, so that cells add up to n on average
        tilt = (low + high) / 2
        weights = np.exp(
            terms + tilt * numbers - (terms + tilt * numbers).max(axis=1, keepdims=True)
        )
        above = (weights @ numbers / weights.sum(axis=1)).sum() > n
        low, high = (low, tilt) if above else (tilt, high)
    top = (terms + tilt * numbers).max(axis=1)
    total, whole = float(top.sum()) - tilt * n, np.ones(1)
    for row in np.exp(terms + tilt * numbers - top[:, None]):
        whole = np.convolve(whole, row)[: n + 1]
        total += float(np.log(whole.max()))
        whole /= whole.max()
    return total + float(np.log(whole[n]))


def log_ratio(noisy: np.ndarray, n: int, scale: float) -> float:
    """Return the log likelihood of few cells, any four with Dirichlet(5) shares, less
    that of even cells.
    """
    j, cells = np.arange(n + 1), len(noisy)
    noise = -np.abs(noisy[:, None] - j) / scale
    even = log_sum(noise - gammaln(j + 1), n) - n * np.log(cells)
    found = np.zeros((FEW + 1, n + 1))
    found[0, 0] = 1
    for row in np.exp(
        gammaln(5 + j) - gammaln(5) - gammaln(j + 1) + noise - noise[:, :1]
    ):
        for taken in range(FEW, 0, -1):
            found[taken] += np.convolve(found[taken - 1], row)[: n + 1]
    few = (
        float(noise[:, 0].sum())
        + float(np.log(found[FEW, n]))
        - float(np.log(comb(cells, FEW)))
    )
    return float(few + float(gammaln(5 * FEW) - gammaln(5 * FEW + n)) - even)


def power(n: int, scale: float) -> None:
    """Print how often the most powerful test tells few cells from even ones, by its
    size.
    """
    rng, found = np.random.default_rng(1), []
    for few in (False, True):
        drawn = []
        for _ in range(N_TESTED):
            shares = np.full(60, 1 / 60)
            if few:
                shares = rng.permutation(
                    np.append(rng.dirichlet(np.full(FEW, 5.0)), np.zeros(60 - FEW))
                )
            noise = rng.geometric(1 - np.exp(-1 / scale), (2, 60))
            drawn.append(
                log_ratio(rng.multinomial(n, shares) + noise[0] - noise[1], n, scale)
            )
        found.append(np.array(drawn))
    for size in SIZES:
        print(
            f"size {size}: power "
            f"{(found[1] > np.quantile(found[0], 1 - size)).mean():.2f}"
        )


if __name__ == "__main__":
    power(200, 20.0)
