"""Draw the picture of ``docs/mechanisms/modips.md``: ``python -m
benchmarks.pictures_modips``. Prints its numbers.
"""

from fractions import Fraction

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from benchmarks.pictures import DOCS
from pdips.privacy.noise import RandomBits, discrete_laplace
from pdips.statistics.exact_counts import NoiseLaw, draw_first_of_two

N, SHARE, PRIOR, REPLICATES, DRAWS, SEED = 200, 0.25, 1 / 3, 1_000, 1_000, 20261122
EPSILONS = (
    Fraction(1, 20),
    Fraction(1, 10),
    Fraction(1, 5),
    Fraction(1, 2),
    Fraction(1),
    Fraction(2),
    Fraction(5),
)
STYLES = {"plug-in": ":", "noise-aware": "-"}


def intervals(epsilon: Fraction, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the ends of 95 % intervals for a share, shape (2, replicates), by
    likelihood.
    """
    exact = rng.binomial(N, SHARE, REPLICATES)
    noisy = exact + discrete_laplace(1 / epsilon, REPLICATES, RandomBits(rng))
    used = np.clip(noisy, 0, N)
    plug_in = stats.beta(used + PRIOR, N - used + PRIOR).ppf([[0.025], [0.975]])
    law = NoiseLaw("laplace", 1 / epsilon)
    counts = np.array(
        [draw_first_of_two(int(each), law, N, PRIOR, DRAWS, rng) for each in noisy]
    )
    draws = rng.beta(counts + PRIOR, N - counts + PRIOR)
    return {
        "plug-in": plug_in,
        "noise-aware": np.quantile(draws, [0.025, 0.975], axis=1),
    }


def main() -> None:
    """Measure, print and draw."""
    rng = np.random.default_rng(SEED)
    found = {epsilon: intervals(epsilon, rng) for epsilon in EPSILONS}
    figure = Figure(figsize=(9, 3.4))
    left, right = figure.subplots(1, 2)
    x = [float(epsilon) for epsilon in EPSILONS]
    for name, style in STYLES.items():
        ends = [found[epsilon][name] for epsilon in EPSILONS]
        covered = [
            float(((low <= SHARE) & (high >= SHARE)).mean()) for low, high in ends
        ]
        width = [float((high - low).mean()) for low, high in ends]
        print(
            name,
            "coverage",
            np.round(covered, 3).tolist(),
            "width",
            np.round(width, 3).tolist(),
        )
        left.plot(
            x, covered, style, marker="o", markersize=4, color="black", label=name
        )
        right.plot(x, width, style, marker="o", markersize=4, color="black", label=name)
    left.axhline(0.95, color="gray", linewidth=0.8)
    left.set(ylabel="coverage of the 95 % interval", ylim=(0, 1.02))
    right.set(ylabel="width of the interval", ylim=(0, None))
    for axes in (left, right):
        axes.set(xscale="log", xlabel="epsilon")
        axes.set_xticks(x, [f"{value:g}" for value in x])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(DOCS / "modips.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
