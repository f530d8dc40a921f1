"""How far the printed figures of Tran et al. (2023) depend on the length of chains and
on where they start: rows as the authors ran them, with more steps.

Run ``python -m pdips_papers.kng.chain_lengths TABLES STEPS...``: with 5 tables and 1000
4000 16000 steps it takes about an hour of processor time.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import click
import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips_papers.harness.marginal_score import mean_k_marginal
from pdips_papers.kng.heavy_rows import STARTED, Case, as_run_lines, by_columns

N_RECORDS = 5_000
SEED = 1
ROWS = ("Stepwise - Fixed", "Sandwich - Varying", "KNG", STARTED)


def _lines(row: str, n_steps: int, *given: Any) -> FloatArray:
    case, name, found, epsilon, rng = given
    lines, _ = as_run_lines(row, case, name, found, epsilon, rng, n_steps)
    return lines


def scores(number: int, row: str, n_steps: int) -> float:
    """Return the 3-marginal score (KM, 1,000 at best) of one synthetic table."""
    case = Case.draw(N_RECORDS, np.random.default_rng([SEED, number]))
    make = by_columns(partial(_lines, row, n_steps))
    synthetic = make(case, "1", np.random.default_rng([SEED, number, n_steps]))
    return mean_k_marginal(case.training, synthetic)


def table(n_tables: int, steps: Sequence[int], rows: Sequence[str] = ROWS) -> str:
    """Return mean scores with their standard errors, by row and number of steps."""
    found = {}
    for row in rows:
        cells = {}
        for n_steps in steps:
            each = np.array([scores(k, row, n_steps) for k in range(n_tables)])
            cells[f"{n_steps:,} steps"] = _mean_with_error(each)
        found[row] = cells
    shown: str = pd.DataFrame(found).T.to_string()
    return shown


def _mean_with_error(values: FloatArray) -> str:
    if len(values) == 1:
        return f"{values[0]:.0f}"
    error = values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.0f} ± {error:.0f}"


def main() -> None:
    """Print the table."""
    n_tables, *steps = map(int, sys.argv[1:])
    click.echo(table(n_tables, steps))


if __name__ == "__main__":
    main()
