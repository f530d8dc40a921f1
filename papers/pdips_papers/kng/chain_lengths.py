"""How far the printed figures of Tran et al. (2023) depend on the length of chains and
on where they start: rows as the authors ran them, with more steps, and the law that
they would have in the end.

Run ``python -m pdips_papers.kng.chain_lengths FILE.csv TABLES STEPS...``. FILE is
written anew after each table. A table takes 75 seconds of processor time with 1000
4000 16000 64000 steps; 0 steps are exact draws.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pdips.arrays import FloatArray
from pdips_papers.harness.marginal_score import mean_k_marginal
from pdips_papers.harness.stored import write_table
from pdips_papers.kng.heavy_rows import (
    FORMS,
    PRINTED,
    SCHEMES,
    STARTED,
    Case,
    as_run_lines,
    by_columns,
    published_row,
)

N_RECORDS = 5_000
SEED = 1
ROWS = (*SCHEMES, STARTED)
EXACT = "exact draws"
OF_THE_AUTHORS = "1,000 steps"
KM = 3
"""Place of the score among the printed figures."""

PAPER = {(row, OF_THE_AUTHORS): PRINTED[row][KM] for row in SCHEMES}


def column_of(n_steps: int) -> str:
    """Return the name of a column; 0 steps are draws without a chain."""
    return f"{n_steps:,} steps" if n_steps else EXACT


def _lines(row: str, n_steps: int, *given: Any) -> FloatArray:
    case, name, found, epsilon, rng = given
    lines, _ = as_run_lines(row, case, name, found, epsilon, rng, n_steps)
    return lines


def scores(
    number: int, steps: Sequence[int], rows: Sequence[str] = ROWS
) -> Iterator[dict[str, Any]]:
    """Yield the 3-marginal scores (KM, 1,000 at best) of the synthetic tables of one
    table, by row and number of steps. The start of a chain doesn't matter to its law.
    """
    case = Case.draw(N_RECORDS, np.random.default_rng([SEED, number]))
    for row in rows:
        for n_steps in steps:
            make = by_columns(partial(_lines, row, n_steps))
            if not n_steps:
                method = row if row in SCHEMES else "KNG"
                make = FORMS[published_row(method)].make
            synthetic = make(case, "1", np.random.default_rng([SEED, number, n_steps]))
            score = mean_k_marginal(case.training, synthetic)
            yield {"row": row, "column": column_of(n_steps), "value": score}


def main() -> None:
    """Write the table, after each table that was synthesized."""
    path, n_tables, *steps = sys.argv[1:]
    measured: list[dict[str, Any]] = []
    for number in range(int(n_tables)):
        measured += scores(number, [int(each) for each in steps])
        write_table(Path(path), measured, PAPER)


if __name__ == "__main__":
    main()
