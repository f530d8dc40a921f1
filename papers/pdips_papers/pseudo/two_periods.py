"""How alike two periods must be for the settings (c1, c2, epsilon) of one to serve the
other: what Hu, Williams and Savitsky (2022, section 6) leave open.

Run ``python -m pdips_papers.pseudo.two_periods FILE.csv REPLICATES``. The first period
has 2,000 records of Beta(0.5, 3), as in the paper's simulation; c1 is the largest scale
at which its weighted fit keeps to epsilon / 2, and c2 is 0. The second period has the
law Beta(0.5, b), whose distribution function is as far from the first one as is said.
"""

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta

from pdips.posterior.pseudo_posterior import linear_weights
from pdips_papers.harness.stored import write_table
from pdips_papers.pseudo.synthesizers import (
    CENSOR_W,
    SHAPES,
    PublishedSynthesizers,
    ecdf_distances,
)

N_RECORDS = 2_000
SEED = 1
EPSILON = "4"
DISTANCES = (-0.2, -0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2)
"""Largest differences of distribution functions: below 0 with larger values, above 0
with smaller ones.
"""

PLACES = np.linspace(1e-4, 1 - 1e-4, 2_000)
SHAPES_TRIED = (0.5, 30.0)
"""Between which shapes b are sought."""

CENSORED = "records censored"
SCALE = "c1"
FROM_FIRST = "c1 of the first period"
ANEW = "c1 of its own"


def distance_of(shape: float) -> float:
    """Return how far the distribution function of Beta(0.5, shape) lies from the first
    period's, with its sign.
    """
    apart = beta.cdf(PLACES, SHAPES[0], shape) - beta.cdf(PLACES, *SHAPES)
    return float(apart[np.abs(apart).argmax()])


@cache
def shape_at(distance: float) -> float:
    """Return the shape of the law at a distance from the first period's."""
    if not distance:
        return SHAPES[1]
    found: float = brentq(lambda shape: distance_of(shape) - distance, *SHAPES_TRIED)
    return found


def row_of(distance: float) -> str:
    """Return the row of a second period."""
    return f"distance {distance:+g}" if distance else "the same law"


def column_of(what: str, chosen: str) -> str:
    """Return the column of a measure, by where c1 comes from."""
    return f"{what}, {chosen}"


def measured(n_replicates: int) -> Iterator[dict[str, Any]]:
    """Yield how many records Censor_w censors in second periods, and how far its sets
    are from them, with c1 of the first period and of their own.
    """
    for number in range(n_replicates):
        rng = np.random.default_rng([SEED, number])
        first = PublishedSynthesizers(rng.beta(*SHAPES, N_RECORDS), rng)
        scale = first.scale_for(EPSILON)
        for distance in DISTANCES:
            y = rng.beta(SHAPES[0], shape_at(distance), N_RECORDS)
            second = PublishedSynthesizers(y, rng)
            risks, _ = second.refit(np.ones(N_RECORDS))
            for chosen, c1 in (
                (FROM_FIRST, scale),
                (ANEW, second.scale_for(EPSILON)),
            ):
                alpha = linear_weights(risks, scale=c1)
                made = second.censored(CENSOR_W, alpha, EPSILON)
                far, _ = ecdf_distances(y, made.synthetic)
                values = {CENSORED: made.censored, "max-ECDF": far, SCALE: c1}
                for what, value in values.items():
                    column = column_of(what, chosen)
                    yield {"row": row_of(distance), "column": column, "value": value}


def main() -> None:
    """Write the table."""
    path, n_replicates = sys.argv[1:]
    write_table(Path(path), measured(int(n_replicates)))


if __name__ == "__main__":
    main()
