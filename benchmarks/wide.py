"""Tables of too many cells to lay out: ``python -m benchmarks.wide adult.parquet --epsilon 1 --delta 1e-9``.

Numeric columns are cut at edges that are given here or, where a table has others, into eight bins of equal width.
"""

import argparse
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from pdips import Pairs, PrivBayes, Schema, Table
from pdips.arrays import FloatArray, IntArray

EDGES: dict[str, list[float]] = {
    "age": [0, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 100],
    "fnlwgt": [0, 50_000, 100_000, 150_000, 200_000, 300_000, 400_000, 2_000_000],
    "capital_gain": [0, 1, 1_000, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000],
    "capital_loss": [0, 1, 1_000, 1_500, 2_000, 2_500, 5_000],
    "hours_per_week": [0, 10, 20, 30, 35, 40, 41, 50, 60, 100],
}
"""Of Adult, from what is known of ages, hours and taxes."""

N_TRIPLES, MOST_COMPARED, FEW = 100, 20_000, 10


def coded(frame: pd.DataFrame) -> tuple[pd.DataFrame, Schema]:
    """Return a table whose numeric columns are bins, and its schema."""
    made, columns = {}, dict[str, Any]()
    for name, values in frame.items():
        cuts = EDGES.get(str(name))
        if cuts is None and pd.api.types.is_numeric_dtype(values) and values.nunique() > FEW:
            cuts = np.linspace(values.min(), values.max() + 1, 9).tolist()
        each = (
            values.astype(str) if cuts is None else pd.Series(np.searchsorted(cuts, values, side="right")).astype(str)
        )
        made[str(name)] = each.to_numpy()
        columns[str(name)] = {"levels": sorted(set(made[str(name)]))}
    return pd.DataFrame(made), Schema.model_validate({"columns": columns})


def codes_of(frame: pd.DataFrame, schema: Schema) -> IntArray:
    """Return the levels of all records."""
    table = Table(frame, schema)
    return np.column_stack([table.codes[name] for name in schema.columns])


def distances(one: IntArray, other: IntArray, sizes: IntArray, sets: list[tuple[int, ...]]) -> float:
    """Return the mean total variation distance of margins."""
    found = []
    for columns in map(list, sets):
        shares: list[FloatArray] = []
        for codes in (one, other):
            cell = np.ravel_multi_index(tuple(codes[:, columns].T), tuple(sizes[columns]))
            shares.append(np.bincount(cell, minlength=int(np.prod(sizes[columns]))) / len(codes))
        found.append(np.abs(shares[0] - shares[1]).sum() / 2)
    return float(np.mean(found))


def told_apart(one: IntArray, other: IntArray, rng: np.random.Generator) -> float:
    """Return the area under the curve of a classifier that tells records of two tables apart, on records kept aside."""
    n = min(len(one), len(other), MOST_COMPARED)
    both = np.concatenate([rng.permutation(one)[:n], rng.permutation(other)[:n]])
    of, order = np.repeat([0, 1], n), rng.permutation(2 * n)
    fitted = HistGradientBoostingClassifier(early_stopping=False).fit(both[order[:n]], of[order[:n]])
    return float(roc_auc_score(of[order[n:]], fitted.predict_proba(both[order[n:]])[:, 1]))


def main() -> None:
    """Print a line for each mechanism."""
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path)
    parser.add_argument("--epsilon", default="1")
    parser.add_argument("--delta", default="1e-9")
    parser.add_argument("--neighbours", default="add-remove")
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    frame, schema = coded(pd.read_parquet(asked.table))
    true, table = codes_of(frame, schema), Table(frame, schema)
    sizes = np.array([column.n_levels for column in schema.columns.values()])
    pairs = list(combinations(range(len(sizes)), 2))
    rng = np.random.default_rng(0)
    triples = [tuple(rng.choice(len(sizes), 3, replace=False).tolist()) for _ in range(N_TRIPLES)]
    common = {"epsilon": asked.epsilon, "neighbours": asked.neighbours}
    mechanisms: list[Any] = [Pairs(**common, kind="zcdp", delta=asked.delta), Pairs(**common)]
    if asked.neighbours == "replace-one":
        mechanisms.append(PrivBayes(epsilon=asked.epsilon))
    print("mechanism, kind: pairs, triples, told apart (AUC), CPU s")
    for mechanism in mechanisms:
        rows = []
        for seed in range(asked.runs):
            start = time.process_time()
            release, _ = mechanism.release(table, rng=np.random.default_rng(seed))
            spent, made = time.process_time() - start, codes_of(release.sets[0], schema)
            figures = [distances(true, made, sizes, list(pairs)), distances(true, made, sizes, triples)]
            rows.append([*figures, told_apart(true, made, np.random.default_rng(seed)), spent])
        mean = "  ".join(f"{value:.4f}" for value in np.mean(rows, axis=0))
        print(f"{mechanism.name}, {getattr(mechanism, 'kind', 'pure')}: {mean}", flush=True)


if __name__ == "__main__":
    main()
