"""The pMSE mechanism as Tran et al. (2023) ran it: the end of a Markov chain of 100
steps. Not private.

Run ``python -m pdips_papers.kng.pmse_chain FILE.csv REPLICATES``: 20 seconds of
processor time each. Written after the authors' repository tranntran/privatequantile
(``code/simulation_compare_data.R``).
"""

import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.privacy.loss import exact
from pdips_papers.harness.stored import write_table
from pdips_papers.kng.heavy_rows import (
    MEASURES,
    PMSE,
    PRINTED,
    Case,
    as_run_row,
    measures,
)
from pdips_papers.kng.pmse_as_printed import (
    N_BINS,
    PRIOR_VARIANCE,
    binned,
    tree_pmse,
)
from pdips_papers.kng.pmse_mechanism import COLUMNS, RATES
from pdips_papers.kng.pmse_scores import synthesise

START = np.array([1e-4, 4.0, 3.0, 1e-4, 3.0, 2.0, 1.0, 1e-4])
"""The parameters that made the data but for the rates, which are 0.1 there."""

N_STEPS = 100
MOVE = 0.4
"""Standard deviation of a move of each parameter."""

N_TABLES = 25
"""Synthetic tables over which the code averages pMSE."""

N_RECORDS = 5_000
N_RESPLITS = 100
SEED = 1


def log_density(
    records: FloatArray, epsilon: Fraction, theta: FloatArray, rng: np.random.Generator
) -> float:
    """Return the density that the chain looks at: it differs from one look to the next,
    since tables are drawn anew.
    """
    edges = np.quantile(records, np.arange(1, N_BINS) / N_BINS, axis=0).T
    real = binned(records, edges)
    scores = []
    for _ in range(N_TABLES):
        made = synthesise(theta, rng.standard_exponential(records.shape))
        scores.append(tree_pmse(real, binned(made, edges)))
    prior = float((theta**2).sum()) / (2 * PRIOR_VARIANCE)
    return -prior - len(records) * float(epsilon) / 2 * float(np.mean(scores))


def last_state(
    records: FloatArray,
    epsilon: Fraction,
    rng: np.random.Generator,
    n_steps: int = N_STEPS,
) -> FloatArray:
    """Return the parameters at the end of a chain, shape (8,); one in which no move was
    accepted is run again.
    """
    while True:
        theta = START
        here = log_density(records, epsilon, theta, rng)
        n_moves = 0
        for _ in range(n_steps):
            proposal = theta + MOVE * rng.standard_normal(len(theta))
            proposal[RATES] = np.abs(proposal[RATES])
            there = log_density(records, epsilon, proposal, rng)
            if np.log(rng.random()) < there - here:
                theta = proposal
                here = there
                n_moves += 1
        if n_moves:
            return theta


def make(case: Case, epsilon: str, rng: np.random.Generator) -> pd.DataFrame:
    """Draw a synthetic table at the end of a chain."""
    records = case.training.to_numpy()
    theta = last_state(records, exact(epsilon, "epsilon"), rng)
    made = synthesise(theta, rng.standard_exponential(records.shape))
    return pd.DataFrame(made, columns=list(COLUMNS))


def measured(n_replicates: int) -> Iterator[dict[str, Any]]:
    """Yield the measures of both tables of the paper."""
    for number in range(n_replicates):
        rng = np.random.default_rng([SEED, number])
        case = Case.draw(N_RECORDS, rng)
        synthetic = make(case, "1", rng)
        found = measures(
            case.training, case.testing, synthetic, rng, n_resplits=N_RESPLITS
        )
        for column in MEASURES:
            value = found[column]
            yield {"row": as_run_row(PMSE), "column": column, "value": value}


def main() -> None:
    """Write the table."""
    path, n_replicates = sys.argv[1:]
    names = [(as_run_row(PMSE), column) for column in MEASURES]
    paper = dict(zip(names, PRINTED[PMSE], strict=True))
    write_table(Path(path), measured(int(n_replicates)), paper)


if __name__ == "__main__":
    main()
