"""SPECKS beside other measures that rest on propensity scores, on pairs of tables whose
distance is known: what Bowen, Liu and Su (2021, section 5) leave open.

Run ``python -m pdips_papers.steps.propensity_measures FILE.csv REPLICATES``. A table
has five columns of two levels. The law of the second one of a pair differs from that of
the first, which is even, by as many columns as are said and by no margin of fewer:
Q = P (1 + 2 d s), s a product of signs; its total variation distance is d.
"""

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit
from scipy.stats import spearmanr

from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.evaluation.encoding import codes_of, grouped, sizes_of, table_codes
from pdips.evaluation.logistic import ridge_logistic
from pdips.evaluation.propensity import indicator_matrix, pmse, specks
from pdips_papers.harness.stored import write_table

NAMES = ("a", "b", "c", "d", "e")
SCHEMA = Schema.model_validate(
    {"columns": {name: {"levels": [0, 1]} for name in NAMES}}
)
CELLS = np.array([*product((0, 1), repeat=len(NAMES))])
ORDERS = (1, 2, 3, 5)
DISTANCES = (0.02, 0.05, 0.1, 0.2, 0.4)
N_RECORDS = 2_000
N_NULL = 100
N_CELLS = 100
SEED = 1
LEVEL = 0.95
"""Share of pairs of one law that a measure calls alike."""

CLASSIFIERS = {
    "SPECKS, main effects": "main-effects",
    "SPECKS, interactions of two": "logistic",
    "SPECKS, tree": "tree",
}
"""What SPECKS is worked out with; the paper takes the second."""

CHI_SQUARE = "chi-square of scores, interactions of two"
CORRELATION = "rank correlation with the distance"


def law(order: int, distance: float) -> np.ndarray:
    """Return the probabilities of the cells, shape (32,)."""
    signs = (1 - 2 * CELLS[:, :order]).prod(axis=1)
    return np.asarray((1 + 2 * distance * signs) / len(CELLS))


def draw(order: int, distance: float, rng: np.random.Generator) -> pd.DataFrame:
    """Draw a table of a law."""
    cells = rng.choice(len(CELLS), N_RECORDS, p=law(order, distance))
    return pd.DataFrame(CELLS[cells], columns=list(NAMES))


def chi_square(original: Table, other: pd.DataFrame) -> float:
    """Return the statistic of Sakshaug and Raghunathan (2010) over hundredths of the
    scores of two tables, of SPECKS' logistic regression with interactions of two.
    """
    sizes = sizes_of(SCHEMA)
    rows, *counts = grouped(table_codes(original), codes_of(other, SCHEMA), sizes)
    features = indicator_matrix(rows, sizes, counts[0] + counts[1], interactions=True)
    _, scores = ridge_logistic(features, *counts)
    cells = np.floor(expit(scores) * N_CELLS).astype(np.int64)
    ours, theirs = (
        np.bincount(cells, each, minlength=N_CELLS + 1) / each.sum() for each in counts
    )
    both = ours + theirs
    apart = (ours - theirs)[both > 0] ** 2 / both[both > 0]
    return float(N_RECORDS * apart.sum())


def measures(
    original: pd.DataFrame, other: pd.DataFrame, rng: np.random.Generator
) -> dict[str, float]:
    """Return all measures of a pair of tables, by name."""
    table = Table(original, SCHEMA)
    found = {
        name: specks(table, [other], classifier=classifier, rng=rng)
        for name, classifier in CLASSIFIERS.items()
    }
    return {name: each.mean for name, each in found.items()} | {
        "pMSE, main effects": pmse(original, other),
        "pMSE, interactions of two": pmse(original, other, interactions=True),
        CHI_SQUARE: chi_square(table, other),
    }


def pair_of(order: int, distance: float) -> str:
    """Return what a pair of tables is called in columns."""
    return f"{order} columns, {distance:g}"


def seen_in(order: int) -> str:
    """Return the column of how often a measure sees a difference of so many columns."""
    return f"seen, {order} columns"


def measured(n_replicates: int) -> Iterator[dict[str, Any]]:
    """Yield each measure of each pair, whether it is beyond that of equal laws, and how
    well it ranks the 20 pairs.
    """
    null = pd.DataFrame([_pair(1, 0.0, number) for number in range(N_NULL)])
    limits = null.quantile(LEVEL)
    for number in range(n_replicates):
        pairs = list(product(ORDERS, DISTANCES))
        found = [_pair(order, distance, number) for order, distance in pairs]
        true = [distance for _, distance in pairs]
        for name in found[0]:
            values = [each[name] for each in found]
            ranks = float(spearmanr(values, true)[0])
            yield {"row": name, "column": CORRELATION, "value": ranks}
            for (order, distance), value in zip(pairs, values, strict=True):
                seen = float(value > limits[name])
                yield {"row": name, "column": seen_in(order), "value": seen}
                column = pair_of(order, distance)
                yield {"row": name, "column": column, "value": value}


def _pair(order: int, distance: float, number: int) -> dict[str, float]:
    rng = np.random.default_rng([SEED, number, order, round(1_000 * distance)])
    return measures(draw(order, 0.0, rng), draw(order, distance, rng), rng)


def main() -> None:
    """Write the table."""
    path, n_replicates = sys.argv[1:]
    write_table(Path(path), measured(int(n_replicates)))


if __name__ == "__main__":
    main()
