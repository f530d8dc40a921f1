"""Coverage of combining rules on posterior predictive sets: ``python -m
benchmarks.combining``.

Estimates are N(c, V + W), their own variance is W, and the estimand is N(c, V). Given
the variance between sets the interval is known, and so is the probability that it
covers; that is averaged over 400 quantiles of the law of the variance between sets.
Nothing is drawn. ``docs/inference.md`` quotes these tables.
"""

import platform
from datetime import date

import numpy as np
from scipy.special import chdtri, ndtr, ndtri

from pdips.arrays import FloatArray
from pdips.inference import combine
from pdips.inference.rules import RULES, predictive_law

SETS = (2, 3, 5, 10, 20, 100)
RATIOS = (0.0, 0.1, 0.3, 1.0, 2.0, 10.0, 100.0)
N_QUANTILES = 400
LEVEL = 0.95


def betweens(m: int, ratio: float) -> FloatArray:
    """Return equally likely values of the variance between sets, with W = 1."""
    below = (np.arange(N_QUANTILES) + 0.5) / N_QUANTILES
    return np.asarray((1 + ratio) * chdtri(m - 1, 1 - below) / (m - 1))


def half_widths(rule: str, m: int, between: FloatArray) -> FloatArray:
    """Return half the width of the interval of a rule for each variance between
    sets.
    """
    if rule == "all below zero at zero":
        return predictive_law(
            between, np.ones_like(between), m, at_zero=1.0
        ).half_width(LEVEL)
    if rule == "none of it at zero":
        return predictive_law(
            between, np.ones_like(between), m, at_zero=0.0
        ).half_width(LEVEL)
    places = np.linspace(-1, 1, m)
    q = np.sqrt(between) * (places / places.std(ddof=1))[:, None]
    lower, upper = combine(q, np.ones_like(q), rule=rule, level=LEVEL).interval  # type: ignore[arg-type]
    return (upper - lower) / 2


def coverage(rule: str, m: int, ratio: float) -> tuple[float, float]:
    """Return the probability that the interval covers, and its median width over that
    of a known V.
    """
    deviation = np.sqrt((1 + 1 / m) * ratio + 1 / m)
    half = half_widths(rule, m, betweens(m, ratio))
    width = np.median(half) / (deviation * ndtri((1 + LEVEL) / 2))
    return float(np.mean(1 - 2 * ndtr(-half / deviation))), float(width)


def main() -> None:
    """Print a table a rule."""
    print(
        f"Python {platform.python_version()}, {date.today().isoformat()}; coverage "
        f"in % (median width, 1: V known)\n"
    )
    for rule in (
        *(rule for rule in RULES if rule != "partial"),
        "all below zero at zero",
        "none of it at zero",
    ):
        print(
            f"{rule}\n\n| m | "
            + " | ".join(f"V/W = {ratio:g}" for ratio in RATIOS)
            + " |"
        )
        print("| --- " * (len(RATIOS) + 1) + "|")
        for m in SETS:
            found = [coverage(rule, m, ratio) for ratio in RATIOS]
            print(
                f"| {m} | "
                + " | ".join(f"{100 * c:.1f} ({w:.2f})" for c, w in found)
                + " |",
                flush=True,
            )
        print()


if __name__ == "__main__":
    main()
