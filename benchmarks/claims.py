"""How often the 95 % intervals of answers to claims hold the table's coefficient, on
simulated tables.
"""

import argparse

import numpy as np
import pandas as pd

from pdips import Schema, Table
from pdips.evaluation.claim import ClaimCheck, interval_of
from pdips.privacy.curator import noisy_counts
from pdips.privacy.noise import RandomBits

NUMBER, LEVELS = {"lower": 0, "upper": 100}, {"levels": ["a", "b", "c", "d"]}
COLUMNS = {
    "g": {"levels": [0, 1]},
    "k": LEVELS,
    "x": NUMBER,
    "z": NUMBER,
    "y": {"levels": ["no", "yes"]},
}
SCHEMA = Schema.model_validate({"columns": COLUMNS})
FORMULAS = ("y ~ g", "y ~ g + k + x", "y ~ x + z", "x ~ g + k + z")


def table_of(n: int, seed: int = 1) -> Table:
    """Draw a table: two numbers that hang together, two and four levels, and an
    outcome.
    """
    rng = np.random.default_rng(seed)
    g, k = rng.integers(0, 2, n), rng.choice(4, n, p=[0.4, 0.3, 0.2, 0.1])
    x = np.clip(rng.gamma(3, 10, n) + 5 * g, 0, 100)
    z = np.clip(20 + 0.3 * x + rng.normal(0, 10, n), 0, 100)
    y = rng.random(n) < 1 / (1 + np.exp(1.5 - 0.02 * x - 0.5 * g + 0.3 * k))
    made = {
        "g": g,
        "k": np.array(LEVELS["levels"])[k],
        "x": x,
        "z": z,
        "y": np.where(y, "yes", "no"),
    }
    return Table(pd.DataFrame(made), SCHEMA)


def main() -> None:
    """Print a row a formula, number of records and epsilon, over all of its
    coefficients.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=2_000)
    asked = parser.parse_args()
    print(
        "| formula | records | epsilon | Laplace: held, open, half-width | "
        "Gaussian: held, open, half-width |"
    )
    print("| --- | ---: | ---: | --- | --- |")
    seeds = iter(range(1_000))
    for formula in FORMULAS:
        for n in (2_000, 50_000):
            table = table_of(n)
            quiet = ClaimCheck(epsilon=1_000_000, formula=formula).plan(SCHEMA)
            sums, terms = quiet.design.sums(table), quiet.design.terms[1:-1]
            truth = {term: interval_of(quiet, sums, n, term)[0] for term in terms}
            for epsilon in ("0.1", "1", "4"):
                cells = []
                for delta in (None, "1e-6"):
                    asked_at = ClaimCheck(epsilon=epsilon, delta=delta, formula=formula)
                    plan = asked_at.plan(SCHEMA)
                    bits = RandomBits(np.random.default_rng(next(seeds)))
                    noisy = noisy_counts(sums, None, plan.steps[0], bits, asked.answers)
                    found = {
                        term: np.array(
                            [interval_of(plan, each, n, term) for each in noisy]
                        )
                        for term in terms
                    }
                    held = [
                        np.mean((f[:, 1] <= truth[t]) & (truth[t] <= f[:, 2]))
                        for t, f in found.items()
                    ]
                    spans = [f[:, 2] - f[:, 1] for f in found.values()]
                    halves = [
                        np.median(span[np.isfinite(span)]) / 2
                        if np.isfinite(span).any()
                        else np.inf
                        for span in spans
                    ]
                    cells.append(
                        f"{min(held):.3f} to {max(held):.3f}, "
                        f"{np.mean(np.isinf(spans)):.2f}, {halves[-1]:.2g}"
                    )
                print(
                    f"| `{formula}` | {n:,} | {epsilon} | {cells[0]} | {cells[1]} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
