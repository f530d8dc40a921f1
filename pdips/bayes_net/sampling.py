"""Records drawn from the noisy joint tables of a network: post-processing only, apart from the structural zeros."""

from collections.abc import Mapping, Sequence

import numpy as np

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.bayes_net.network import Columns, Network, as_family
from pdips.errors import InputError
from pdips.margins.consistency import nonnegative
from pdips.margins.domain import Domain

MOST_REDRAWS = 1000
"""How often records that the schema calls impossible are drawn again: by the network, then by chance alone."""


def possible_cells(domain: Domain, columns: Columns) -> BoolArray:
    """Return which cells of a joint table no structural zero rules out, one axis a column."""
    possible = np.ones(domain.sizes[list(columns)], dtype=bool)
    for rule in domain.impossible:
        if set(rule) <= set(columns):
            axes = [rule.get(column, np.ones(int(domain.sizes[column]), dtype=bool)) for column in columns]
            possible[np.ix_(*axes)] = False
    return possible


def conditionals(
    network: Network, domain: Domain, noisy: Mapping[Columns, IntArray], n_records: int
) -> list[FloatArray]:
    """Return the law of each column given its parents, shape (combinations of parents, levels), from noisy tables.

    Every table is replaced by the nearest nonnegative one that holds the public number of records, its structural zeros
    kept. Combinations of parents that this leaves empty get even shares of what is possible.
    """
    likely = {}
    for columns, counts in noisy.items():
        weights = possible_cells(domain, columns).ravel().astype(np.float64)
        one_parent = [np.zeros(len(weights), dtype=np.int64)]
        estimates = [np.array([float(n_records)]), counts.ravel().astype(np.float64)]
        nearest = nonnegative(one_parent, estimates, [np.zeros(1), weights])
        likely[columns] = nearest.reshape(domain.sizes[list(columns)])
    found = []
    for family in network:
        child, parents = family
        own = tuple(sorted((child, *parents)))
        home = min((columns for columns in noisy if set(own) <= set(columns)), key=len)
        weight = as_family(likely[home], home, family).astype(np.float64)
        even = as_family(possible_cells(domain, own).astype(np.float64), own, family)
        weight = np.where(weight.sum(axis=1, keepdims=True) > 0, weight, even)
        weight = np.where(weight.sum(axis=1, keepdims=True) > 0, weight, 1.0)
        found.append(weight / weight.sum(axis=1, keepdims=True))
    return found


def sample(
    network: Network,
    domain: Domain,
    laws: Sequence[FloatArray],
    given: Mapping[int, IntArray],
    n_records: int,
    rng: np.random.Generator,
) -> dict[int, IntArray]:
    """Draw records column by column, given the codes of public columns; return codes by column.

    Records that the schema calls impossible are drawn again, and refused if neither the network nor chance finds a
    possible one, which depends on what is paid for alone.
    """
    records = {column: codes.copy() for column, codes in given.items()}
    records |= {child: np.zeros(n_records, dtype=np.int64) for child, _ in network}
    wrong, even = np.arange(n_records), [np.full_like(law, 1 / law.shape[1]) for law in laws]
    for attempt in range(MOST_REDRAWS):
        tried = laws if attempt < MOST_REDRAWS // 2 else even
        for (child, parents), law in zip(network, tried, strict=True):
            row = np.zeros(len(wrong), dtype=np.int64)
            for parent in parents:
                row = row * domain.sizes[parent] + records[parent][wrong]
            records[child][wrong] = _systematic(law, row, rng)
        wrong = wrong[_impossible(domain, records, wrong)]
        if not len(wrong):
            return records
    raise InputError(
        "the structural zeros leave no record that the noisy network could give: use a larger epsilon or degree"
    )


def _systematic(law: FloatArray, row: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw a level for each record from its row's law, so that every count in a row is its expectation, rounded."""
    n_rows, n_levels = law.shape
    size = np.bincount(row, minlength=n_rows)
    order = np.lexsort([rng.random(len(row)), row])
    rank = np.arange(len(row)) - np.repeat(np.cumsum(size) - size, size)
    ordered = row[order]
    shift: FloatArray = rng.random((n_rows,))
    uniform = (rank + shift[ordered]) / size[ordered]
    ends = np.cumsum(law, axis=1) + np.arange(n_rows)[:, None]
    found = np.searchsorted(ends.ravel(), ordered + uniform, side="right") - ordered * n_levels
    level = np.empty(len(row), dtype=np.int64)
    level[order] = np.clip(found, 0, n_levels - 1)
    return level


def _impossible(domain: Domain, records: Mapping[int, IntArray], places: IntArray) -> BoolArray:
    found = np.zeros(len(places), dtype=bool)
    for rule in domain.impossible:
        found |= np.logical_and.reduce([named[records[column][places]] for column, named in rule.items()])
    return found
