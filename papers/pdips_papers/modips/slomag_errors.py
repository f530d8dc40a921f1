"""Why sets of the noise-aware SLOMAG are further off than plugged-in ones at small
epsilon: coefficients of simulation 4 of Bowen and Liu (2020).

Run ``python -m pdips_papers.modips.slomag_errors FILE.csv RELEASES``: about a minute of
processor time each. Ten tables are plugged in for each release.
"""

import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from pdips.arrays import FloatArray
from pdips.privacy.noise import RandomBits
from pdips_papers.harness.stored import write_table
from pdips_papers.modips.location_model import (
    Records,
    records_in,
    releases,
    tables,
)
from pdips_papers.modips.sequential_model import (
    LEVELS,
    ONE_CELL,
    SEQUENCE,
    firth_estimates,
    in_units,
)
from pdips_papers.modips.slomag import TRUTHS, SlomagSample, modips_plug_in, simulated

EPSILON = Fraction(1)
PLUGGED = 10
SEED = 1
ERROR = "mean squared error of a coefficient"
NOTHING = "0 for each"
PLUG_IN = "plug-in, sets"
AWARE = "noise-aware, sets"
POSTERIOR = "noise-aware, posterior mean"
SPREAD = "noise-aware, posterior variance"
TRUTH = np.concatenate([np.asarray(row, dtype=float) for row in TRUTHS.values()])
"""All coefficients, shape (17,)."""


def of_sets(sets: Records) -> FloatArray:
    """Return the coefficients of tables, means over their sets that have a fit, shape
    (tables, 17).
    """
    found = firth_estimates(sets)
    means = [np.nanmean(estimate, axis=1) for estimate, _ in found.values()]
    return np.concatenate(means, axis=1)


def of_posterior(release: Any) -> FloatArray:
    """Return draws of the coefficients in the units of the paper, shape (draws, 17)."""
    drawn = []
    for number, regression in enumerate(SEQUENCE, start=1):
        values = release.posterior["posterior"][f"coefficients of w{number}"]
        flat = values.to_numpy().reshape(
            1, values.sizes["chain"] * values.sizes["draw"], -1
        )
        drawn.append(in_units(flat, regression)[0].reshape(flat.shape[1], -1))
    return np.concatenate(drawn, axis=1)


def measured(n_releases: int) -> Iterator[dict[str, Any]]:
    """Yield mean squares over the coefficients, one of each release or table."""
    yield {"row": NOTHING, "column": ERROR, "value": float((TRUTH**2).mean())}
    for number in range(n_releases):
        rng = np.random.default_rng([SEED, number])
        data = simulated(PLUGGED, rng)
        plugged = modips_plug_in(SlomagSample(data, ()), EPSILON, RandomBits(rng))
        [release] = releases(
            tables(Records(data.cell[:1], data.z[:1]), LEVELS, ONE_CELL.half),
            "slomag",
            EPSILON,
            rng,
        )
        draws = of_posterior(release)
        squares = {
            PLUG_IN: (of_sets(plugged) - TRUTH) ** 2,
            AWARE: (of_sets(records_in([release], LEVELS)) - TRUTH) ** 2,
            POSTERIOR: (draws.mean(axis=0) - TRUTH) ** 2,
            SPREAD: draws.var(axis=0),
        }
        for row, each in squares.items():
            for value in np.atleast_2d(np.nanmean(each, axis=-1)).ravel():
                yield {"row": row, "column": ERROR, "value": float(value)}


def main() -> None:
    """Write the table."""
    path, n_releases = sys.argv[1:]
    write_table(Path(path), measured(int(n_releases)))


if __name__ == "__main__":
    main()
