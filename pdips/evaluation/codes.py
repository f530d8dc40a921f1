"""Records as codes of levels and bins, cells and groups of equal records: what every measure counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb, prod
from typing import Self

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.coding import numbers
from pdips.data.schema import Schema
from pdips.data.table import Table, tally
from pdips.errors import InputError
from pdips.release.large_set import LargeSet

MOST_SUBSETS = 100_000


def coded_columns(schema: Schema) -> list[str]:
    """Return the columns that measures compare: those with levels or bins, in the schema's order.

    Raises
    ------
    InputError
        If there are none.
    """
    names = [name for name, column in schema.columns.items() if column.is_categorical or column.is_binned]
    if not names:
        raise InputError("no column has levels or bins to compare; give the numeric ones bins in the schema")
    return names


def sizes_of(schema: Schema) -> list[int]:
    """Return the number of levels or bins of each coded column, missing included where it may occur."""
    return [schema.columns[name].n_levels for name in coded_columns(schema)]


def codes_of(frame: pd.DataFrame, schema: Schema) -> IntArray:
    """Return the records of a frame, confidential or synthetic, as codes.

    Parameters
    ----------
    frame : DataFrame
        Columns of the schema, with or without the person key.
    schema : Schema
        Its structural zeros are not checked: a synthetic set that breaks them is measured like any other.

    Returns
    -------
    ndarray of int64, shape (records, columns)
        Level or bin of each record in each coded column, the last code for missing. Numeric columns without bins are
        left out.

    Raises
    ------
    InputError
        If a column is missing or in excess, or a value lies outside its column's levels or bounds.
    """
    names = coded_columns(schema)
    if not len(frame):
        return np.empty((0, len(names)), dtype=np.int64)
    if schema.records.person in frame.columns:
        frame = frame.drop(columns=[schema.records.person])
    plain = schema.without_person().model_copy(update={"impossible": ()})
    codes = Table(frame, plain).codes
    return np.column_stack([codes[name] for name in names])


@dataclass(frozen=True, repr=False)
class Rows:
    """Codes of rows, each of which stands for ``counts`` records, or for one; or for ``weights`` of the population."""

    codes: IntArray
    counts: IntArray | None = None
    weights: FloatArray | None = None

    @property
    def n_records(self) -> int:
        """Number of records."""
        return len(self.codes) if self.counts is None else int(self.counts.sum())

    @classmethod
    def of_table(cls, table: Table) -> Self:
        """Take the rows that a table has already worked out."""
        return cls(np.column_stack([table.codes[name] for name in coded_columns(table.schema)]), table.counts)

    @classmethod
    def of_set(cls, made: pd.DataFrame | LargeSet, schema: Schema) -> Self:
        """Take the rows of a synthetic set."""
        if isinstance(made, LargeSet):
            codes = [made.codes[name] for name in coded_columns(schema)]
            return cls(np.column_stack(codes).astype(np.int64), made.counts)
        return cls(codes_of(made, schema))

    def of(self, columns: Sequence[int]) -> "Rows":
        """Keep some of the columns."""
        return Rows(self.codes[:, list(columns)], self.counts, self.weights)

    def shares(self, place: IntArray, n_places: int) -> FloatArray:
        """Return the share of the records (of their weights) in each place, given the place of each row."""
        if self.weights is not None:
            return np.bincount(place, self.weights, minlength=n_places) / self.weights.sum()
        return tally(place, self.counts, n_places) / self.n_records

    def resampled(self, rng: np.random.Generator) -> "Rows":
        """Return as many records drawn with replacement."""
        if self.counts is None:
            return Rows(resampled(self.codes, rng))
        return Rows(self.codes, rng.multinomial(self.n_records, self.counts / self.n_records))


def weights_of(frame: pd.DataFrame, schema: Schema) -> FloatArray:
    """Return the weight of each record.

    Raises
    ------
    InputError
        If the schema names no column of weights, or they are all 0.
    """
    name = schema.records.weight
    if name is None:
        raise InputError("the schema names no column of weights (records.weight)")
    found = numbers(name, frame[name], schema.columns[name])
    if len(found) and not found.sum() > 0:
        raise InputError(f"the weights in {name!r} must not all be 0")
    return found


def table_codes(table: Table) -> IntArray:
    """Return the codes that a table has already worked out, shape (records, columns)."""
    rows = Rows.of_table(table)
    return rows.codes if rows.counts is None else np.repeat(rows.codes, rows.counts, axis=0)


def resampled(codes: IntArray, rng: np.random.Generator | None) -> IntArray:
    """Return as many records drawn with replacement: what a perfect synthesizer without privacy would give."""
    rng = np.random.default_rng() if rng is None else rng
    return codes[rng.integers(len(codes), size=len(codes))]


def cell_ids(codes: IntArray, sizes: Sequence[int]) -> IntArray:
    """Return one number a record, equal for equal records, however many cells there are.

    Parameters
    ----------
    codes : ndarray of int64, shape (records, columns)
        Each below its column's size.
    sizes : sequence of int
        Levels of each column.

    Returns
    -------
    ndarray of int64, shape (records,)
        The cell's place in the full table where 64 bits hold it, else an equally good label.
    """
    cells, n_cells = np.zeros(len(codes), dtype=np.int64), 1
    for column, size in zip(codes.T, sizes, strict=True):
        if n_cells * size >= 2**62:
            found, cells = np.unique(cells, return_inverse=True)
            n_cells = len(found)
        cells, n_cells = cells * size + column, n_cells * size
    return cells


def grouped(original: IntArray, synthetic: IntArray, sizes: Sequence[int]) -> tuple[IntArray, FloatArray, FloatArray]:
    """Group equal records of two tables.

    Returns
    -------
    rows : ndarray of int64, shape (groups, columns)
        Every different record, once.
    n_original, n_synthetic : ndarray of float64, shape (groups,)
        How often each table has it.
    """
    both = np.vstack([original, synthetic])
    _, first, group = np.unique(cell_ids(both, sizes), return_index=True, return_inverse=True)
    count = [np.bincount(part, minlength=len(first)) for part in (group[: len(original)], group[len(original) :])]
    return both[first], count[0].astype(np.float64), count[1].astype(np.float64)


def subsets(n: int, k: int, n_draws: int | None, rng: np.random.Generator | None) -> list[tuple[int, ...]]:
    """Return all sets of ``k`` out of ``n`` columns, or some drawn at random without repetition.

    Raises
    ------
    InputError
        If ``n_draws`` is below 1, or they are more than 100,000.
    """
    n_all = comb(n, k)
    if n_draws is not None and n_draws < 1:
        raise InputError("n_draws must be at least 1")
    if min(n_all, n_all if n_draws is None else n_draws) > MOST_SUBSETS:
        raise InputError(f"there are more than {MOST_SUBSETS:,} sets of {k} columns; choose among them with n_draws")
    if n_draws is None or n_draws >= n_all:
        return list(combinations(range(n), k))
    rng = np.random.default_rng() if rng is None else rng
    if n_all <= MOST_SUBSETS:
        every = list(combinations(range(n), k))
        return [every[j] for j in rng.choice(n_all, size=n_draws, replace=False)]
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < n_draws:
        drawn[tuple(sorted(int(j) for j in rng.choice(n, size=k, replace=False)))] = None
    return list(drawn)


def n_cells(sizes: Sequence[int]) -> int:
    """Return the number of cells of a table, exactly."""
    return prod(int(size) for size in sizes)
