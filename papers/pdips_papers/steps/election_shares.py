"""How much of the budget of STEPS its elections should have: what Bowen, Liu and Su
(2021, section 5) leave open.

Run ``python -m pdips_papers.steps.election_shares FILE.csv REPLICATES``, in a checkout:
it reads the example ``youth``.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.margins.steps import Steps
from pdips_papers.harness.marginal_score import mean_k_marginal
from pdips_papers.harness.stored import write_table

COLUMNS = (
    "age",
    "sex",
    "education",
    "enrolled",
    "marital_status",
    "household_role",
    "hispanic",
)
EXAMPLE = Path("examples") / "youth.parquet"
N_RECORDS = 5_000
SEED = 1
LAYERS = 2
EPSILONS = ("1/8", "1/2", "1", "4")
SHARES = ("1/50", "1/10", "1/4", "1/2", "3/4")
RANDOM = "columns at random, no election"
PAIRS = 2
TRIPLES = 3


def share_row(share: str) -> str:
    """Return the row of a share of the budget."""
    return f"elections have {share}"


def score_column(k: int, epsilon: str) -> str:
    """Return the column of a mean score of margins of ``k`` columns."""
    return f"{k}-marginal score, epsilon = {epsilon}"


def columns_at_random(rng: np.random.Generator) -> tuple[str, ...]:
    """Return the columns of the layers of a tree that reads no record."""
    return tuple(map(str, rng.permutation(COLUMNS)[:LAYERS]))


def measured(
    frame: pd.DataFrame, schema: Schema, n_replicates: int
) -> Iterator[dict[str, Any]]:
    """Yield the scores (1,000 at best) of sets of STEPS-2, by share and epsilon, each
    replicate on records of its own.
    """
    for number in range(n_replicates):
        rng = np.random.default_rng([SEED, number])
        kept = frame.iloc[rng.choice(len(frame), N_RECORDS, replace=False)]
        table = Table(kept.reset_index(drop=True), schema)
        for epsilon in EPSILONS:
            forms = {
                share_row(share): Steps(
                    epsilon=epsilon,
                    election_share=share,
                    layers=LAYERS,
                    elect="layer",
                    below="cells",
                )
                for share in SHARES
            }
            given = columns_at_random(rng)
            forms[RANDOM] = Steps(epsilon=epsilon, order=given, below="cells")
            for row, mechanism in forms.items():
                release, _ = mechanism.release(table, rng=rng)
                for k in (PAIRS, TRIPLES):
                    value = mean_k_marginal(table.frame, release.sets[0], k)
                    column = score_column(k, epsilon)
                    yield {"row": row, "column": column, "value": value}


def main() -> None:
    """Write the table."""
    path, n_replicates = sys.argv[1:]
    frame = pd.read_parquet(EXAMPLE)[list(COLUMNS)]
    schema = Schema.load(EXAMPLE.with_suffix(".toml")).only(list(COLUMNS))
    write_table(Path(path), measured(frame, schema, int(n_replicates)))


if __name__ == "__main__":
    main()
