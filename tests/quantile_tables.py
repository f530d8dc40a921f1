"""Tiny tables of one column on a public grid, all of them, and how far laws on neighbours lie apart."""

from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement

import numpy as np

Table = tuple[int, ...]
"""The cells of the records, in order; the last cell lies above the grid."""


def cumulative(table: Table, n_points: int) -> np.ndarray:
    return np.array([sum(cell <= point for cell in table) for point in range(n_points)], dtype=np.int64)


def tables(n: int, n_points: int) -> list[Table]:
    return list(combinations_with_replacement(range(n_points + 1), n))


def pairs(n: int, n_points: int, neighbours: str) -> Iterator[tuple[Table, Table]]:
    """Yield all neighbouring pairs of which the smaller table has ``n`` records, one order of each."""
    for table in tables(n, n_points):
        for cell in range(n_points + 1):
            if neighbours == "add-remove":
                yield table, tuple(sorted((*table, cell)))
            else:
                for i in range(n):
                    changed = tuple(sorted((*table[:i], cell, *table[i + 1 :])))
                    if changed > table:
                        yield table, changed


def worst_loss(
    law: Callable[[np.ndarray, int], dict[tuple[int, ...], float]], n: int, n_points: int, neighbours: str
) -> float:
    """Return the largest log ratio of an outcome's probabilities over all neighbouring pairs."""
    known: dict[Table, np.ndarray] = {}

    def logs(table: Table) -> np.ndarray:
        if table not in known:
            found = law(cumulative(table, n_points), len(table))
            known[table] = np.array([found[key] for key in sorted(found)])
        return known[table]

    losses = [float(np.abs(logs(a) - logs(b)).max()) for a, b in pairs(n, n_points, neighbours)]
    return max(losses, default=0.0)


def frequencies(drawn: np.ndarray, law: dict[tuple[int, ...], float]) -> tuple[np.ndarray, np.ndarray]:
    """Return counts of drawn tuples and their expected counts, tuples in the law's order."""
    places = {key: i for i, key in enumerate(law)}
    counts = np.bincount([places[key] for key in map(tuple, drawn.tolist())], minlength=len(law))
    return counts, np.exp(list(law.values())) * len(drawn)
