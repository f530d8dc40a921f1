"""Draw the picture of ``docs/mechanisms/pseudo-posterior.md``: ``python -m
benchmarks.pictures_pseudo``.
"""

import numpy as np
import pymc as pm
from scipy import stats

from benchmarks.pictures_histograms import draw
from pdips import Schema
from pdips.posterior.columns import Columns
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import Source
from pdips.posterior.pseudo_posterior import GridFit, PseudoPosterior, lipschitz_bound

SIZES = (20, 40, 80, 160, 320)
SCHEMA = Schema.model_validate({"columns": {"y": {"lower": -1000, "upper": 1000}}})
PRIOR, MIDDLE = 10.0, 1.2
SEED = 20261121


def normal(data: Columns, schema: Schema) -> pm.Model:
    """Build the model: records of known deviation 1 about an unknown mean."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, PRIOR)
        pm.Normal("y", theta, 1, observed=data["y"])
    return model


def records(n: int, first: float) -> np.ndarray:
    """Return seven tenths of zeros and three tenths of fives, the first of the zeros
    replaced.
    """
    y = np.repeat([0.0, 5.0], [n * 7 // 10, n - n * 7 // 10])
    y[0] = first
    return y


def log_tail(space: Blueprint, y: np.ndarray) -> tuple[float, float]:
    """Return log P(theta > 1.2) under the pseudo posterior, in closed form, and the
    paper's epsilon of the table.
    """
    fit = GridFit(space, {"y": y}, 1000, np.random.default_rng(SEED))
    of_rows = PseudoPosterior(epsilon=5, model=normal).record_weights(fit.largest(None))
    epsilon = 2 * lipschitz_bound(of_rows, fit.largest(of_rows))
    y, weights = fit.values["y"], of_rows * fit.counts
    precision = PRIOR**-2 + weights.sum()
    return float(
        stats.norm.logsf(MIDDLE, weights @ y / precision, precision**-0.5)
    ), epsilon


def main() -> None:
    """Compare what one record changes with what the paper reports for the table."""
    space = Blueprint(Source(normal, "normal"), SCHEMA)
    found = [
        (log_tail(space, records(n, 0)), log_tail(space, records(n, 400)))
        for n in SIZES
    ]
    lines = {
        "log ratio of P(theta > 1.2) when one 0 becomes 400": [
            b[0] - a[0] for a, b in found
        ],
        "epsilon that the paper reports for the table": [a[1] for a, _ in found],
    }
    draw(
        "pseudo-posterior",
        SIZES,
        lines,
        "records",
        "nats",
        "Seven tenths of the records are 0, three tenths 5",
    )


if __name__ == "__main__":
    main()
