"""Records as codes of levels and bins, and two tables side by side as frames: what
every measure compares.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb, prod
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.data.coding import numbers
from pdips.data.schema import Column, Schema, has_number_levels
from pdips.data.table import Table, tally
from pdips.errors import InputError
from pdips.release.large_set import LargeSet

MOST_SUBSETS = 100_000  # Sets of columns that a measure looks at
N_PARTS = 10  # Bins of a numeric column for which the schema has none
MISSING = "missing"  # The name of the level of missing values


def coded_columns(schema: Schema) -> list[str]:
    """Return the columns that measures compare: those with levels or bins, in the
    schema's order.
    """
    names = [
        name
        for name, column in schema.columns.items()
        if column.is_categorical or column.is_binned
    ]
    if not names:
        raise InputError(
            "no column has levels or bins to compare; give the numeric "
            "ones bins in the schema"
        )
    return names


def sizes_of(schema: Schema) -> list[int]:
    """Return the number of levels or bins of each coded column, missing included where
    it may occur.
    """
    return [schema.columns[name].n_levels for name in coded_columns(schema)]


def codes_of(frame: pd.DataFrame, schema: Schema) -> IntArray:
    """Return the level or bin of each record in each coded column, shape (records,
    columns), the last code for missing.

    A set that breaks structural zeros of the schema is measured like any other.
    """
    names = coded_columns(schema)
    if not len(frame):
        return np.empty((0, len(names)), dtype=np.int64)
    if schema.records.person in frame.columns:
        frame = frame.drop(columns=[schema.records.person])
    codes = Table(frame, schema.plain()).codes
    return np.column_stack([codes[name] for name in names])


@dataclass(frozen=True, repr=False)
class CodedRecords:
    """Rows of codes, each of which stands for one record, for ``counts`` records, or
    for ``weights`` of persons.
    """

    codes: IntArray
    counts: IntArray | None = None
    weights: FloatArray | None = None

    @property
    def n_records(self) -> int:
        return len(self.codes) if self.counts is None else int(self.counts.sum())

    @classmethod
    def of_table(cls, table: Table) -> Self:
        """Take the rows that a table has already worked out."""
        codes = [table.codes[name] for name in coded_columns(table.schema)]
        return cls(np.column_stack(codes), table.counts)

    @classmethod
    def of_set(cls, synthetic: pd.DataFrame | LargeSet, schema: Schema) -> Self:
        if isinstance(synthetic, LargeSet):
            codes = [synthetic.codes[name] for name in coded_columns(schema)]
            return cls(np.column_stack(codes).astype(np.int64), synthetic.counts)
        return cls(codes_of(synthetic, schema))

    def of(self, columns: Sequence[int]) -> "CodedRecords":
        """Keep some of the columns."""
        return CodedRecords(self.codes[:, list(columns)], self.counts, self.weights)

    def shares(self, place: IntArray, n_places: int) -> FloatArray:
        """Return the share of the records (of their weights) in each place, given the
        place of each row.
        """
        if self.weights is None:
            return tally(place, self.counts, n_places) / self.n_records
        sums = np.bincount(place, self.weights, minlength=n_places)
        return sums / self.weights.sum()

    def resampled(self, rng: np.random.Generator) -> "CodedRecords":
        """Return as many records drawn with replacement."""
        if self.counts is None:
            return CodedRecords(resampled(self.codes, rng))
        shares = self.counts / self.n_records
        return CodedRecords(self.codes, rng.multinomial(self.n_records, shares))


def values_of(frame: pd.DataFrame, name: str, column: Column) -> FloatArray:
    """Return a column as numbers, NaN where missing: levels by value if they are
    numbers, else by place.
    """
    if column.levels is None:
        return numbers(name, frame[name], column)
    values: Sequence[Any] = range(column.n_values)
    if has_number_levels(column):
        values = column.levels
    codes = Table(frame[[name]], Schema(columns={name: column})).codes[name]
    return np.array([*map(float, values), np.nan])[codes]


def weights_of(frame: pd.DataFrame, schema: Schema) -> FloatArray:
    """Return the weight of each record; refuse a schema that names no weights, and
    weights that are all 0.
    """
    name = schema.records.weight
    if name is None:
        raise InputError("the schema names no column of weights (records.weight)")
    found = numbers(name, frame[name], schema.columns[name])
    if len(found) and not found.sum() > 0:
        raise InputError(f"the weights in {name!r} must not all be 0")
    return found


def table_codes(table: Table) -> IntArray:
    """Return the codes that a table has already worked out, shape (records,
    columns).
    """
    rows = CodedRecords.of_table(table)
    if rows.counts is None:
        return rows.codes
    return np.repeat(rows.codes, rows.counts, axis=0)


def resampled(codes: IntArray, rng: np.random.Generator | None) -> IntArray:
    """Return as many records drawn with replacement: what a perfect synthesizer without
    privacy would give.
    """
    rng = np.random.default_rng(rng)
    return codes[rng.integers(len(codes), size=len(codes))]


def cell_ids(codes: IntArray, sizes: Sequence[int]) -> IntArray:
    """Return one number a record, equal for equal records, however many cells there
    are.

    It is the cell's place in the full table where 64 bits hold that, else an equally
    good label.
    """
    if prod(map(int, sizes)) < 2**62:
        return np.asarray(np.ravel_multi_index(tuple(codes.T), tuple(sizes)))
    half = len(sizes) // 2
    # numbers of the halves, which fit into one of 64 bits
    halves = []
    for part in (slice(half), slice(half, None)):
        cells = cell_ids(codes[:, part], sizes[part])
        _, numbers_of_half = np.unique(cells, return_inverse=True)
        halves.append(numbers_of_half)
    return halves[0] * len(codes) + halves[1]


def grouped(
    original: IntArray, synthetic: IntArray, sizes: Sequence[int]
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return every different record of two tables once, and how often each table has
    it.
    """
    both = np.vstack([original, synthetic])
    _, first, group = np.unique(
        cell_ids(both, sizes), return_index=True, return_inverse=True
    )
    counts = [
        np.bincount(part, minlength=len(first)).astype(np.float64)
        for part in np.split(group, [len(original)])
    ]
    return both[first], counts[0], counts[1]


def subsets(
    n: int, k: int, n_draws: int | None, rng: np.random.Generator | None
) -> list[tuple[int, ...]]:
    """Return all sets of ``k`` out of ``n`` columns, or some drawn at random without
    repetition.
    """
    n_all = comb(n, k)
    if n_draws is not None and n_draws < 1:
        raise InputError("n_draws must be at least 1")
    n_wanted = n_all if n_draws is None else min(n_all, n_draws)
    if n_wanted > MOST_SUBSETS:
        raise InputError(
            f"there are more than {MOST_SUBSETS:,} sets of {k} columns; "
            f"choose among them with n_draws"
        )
    every = list(combinations(range(n), k)) if n_all <= MOST_SUBSETS else []
    if n_draws is None or n_draws >= n_all:
        return every
    rng = np.random.default_rng(rng)
    if every:
        return [every[j] for j in rng.choice(n_all, size=n_draws, replace=False)]
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < n_draws:
        columns = rng.choice(n, size=k, replace=False).tolist()
        drawn[tuple(sorted(columns))] = None
    return list(drawn)


def with_decile_bins(table: Table) -> Table:
    """Return a table whose numeric columns all have bins: the schema's, or about a
    tenth of the known values each.

    The cuts are read off the confidential table, so they and what is found with them
    are for inside use only. A table held as counts is returned as it is.
    """
    columns = dict(table.schema.columns)
    unbinned = [
        name
        for name, column in columns.items()
        if not (column.is_categorical or column.is_binned)
    ]
    if not unbinned or table.counts is not None:
        return table
    for name in unbinned:
        column = columns[name]
        values = numbers(name, table.frame[name], column)
        low = float(column.lower or 0)
        high = float(column.upper or 0)
        known = np.sort(values[~np.isnan(values)])
        inner = np.zeros(0)
        if len(known):
            inner = np.quantile(known, np.arange(1, N_PARTS) / N_PARTS)
        if column.integer:
            inner = np.rint(inner)
        inner = np.unique([_shortest(edge, known) for edge in inner])
        edges = [low, *(float(edge) for edge in inner if low < edge < high), high]
        # unvalidated: edges of dates are numbers
        columns[name] = column.model_copy(update={"bin_edges": tuple(edges)})
    return Table(table.frame, table.schema.model_copy(update={"columns": columns}))


def _shortest(edge: float, known: FloatArray) -> float:
    """Return the number of fewest digits near an edge that as many of the sorted values
    are below.
    """
    near = (float(f"{edge:.{digits}g}") for digits in range(1, 18))
    return next(
        each
        for each in near
        if np.searchsorted(known, each) == np.searchsorted(known, edge)
    )


# ---- two tables as frames, without a schema ----

# Records: a frame, or an array of records by columns
TableLike = pd.DataFrame | NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ColumnPair:
    """One column in the original and in the synthetic table: numbers, NaN where
    missing, or places of its levels.

    ``levels``, None for a numeric column, are those of both tables, sorted,
    ``"missing"`` last where it occurs.
    """

    name: str
    original: FloatArray
    synthetic: FloatArray
    levels: tuple[str, ...] | None

    @property
    def pooled(self) -> FloatArray:
        """Original values, then synthetic ones."""
        return np.concatenate([self.original, self.synthetic])


def paired(
    original: TableLike, synthetic: TableLike, columns: Sequence[str] | None = None
) -> list[ColumnPair]:
    """Lay two tables side by side, column by column: the chosen ones, by default all,
    as in the original.

    Columns of a frame are matched by name; those of an array are called ``"x1"``,
    ``"x2"``, ... or, if the other table is a frame, as there. Columns of numbers
    (Booleans too) are numeric, all others have levels.
    """
    names = None
    for table in (synthetic, original):
        if isinstance(table, pd.DataFrame):
            names = list(table.columns)
    a = _frame(original, names).rename(columns=str)
    b = _frame(synthetic, names).rename(columns=str)
    chosen = list(a.columns if columns is None else columns)
    if not chosen:
        raise InputError("a comparison needs at least one column")
    for frame, which in ((a, "original"), (b, "synthetic")):
        if not len(frame):
            raise InputError(f"the {which} table must have at least one record")
        if not frame.columns.is_unique:
            raise InputError(f"the {which} table must name each column once")
        absent = [name for name in chosen if name not in frame.columns]
        if absent:
            raise InputError(
                f"column {absent[0]!r} is not in the {which} table; both must have it"
            )
    if columns is None and len(b.columns) > len(a.columns):
        extra = next(name for name in b.columns if name not in a.columns)
        raise InputError(
            f"column {extra!r} is not in the original table; drop it, "
            f"or name the columns to compare"
        )
    return [_pair(name, a[name], b[name]) for name in chosen]


def indicators(pair: ColumnPair) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return a column as numbers for a model: original and synthetic part by the
    number's name.

    A column of levels gives an indicator for each level but the first. A numeric one is
    itself; if values are missing, they are filled with the mean of the others, and an
    indicator ``"name=missing"`` is added.
    """
    if pair.levels is not None:
        columns = {}
        for code, level in enumerate(pair.levels[1:], start=1):
            name = f"{pair.name}={level}"
            columns[name] = (
                (pair.original == code) * 1.0,
                (pair.synthetic == code) * 1.0,
            )
        return columns
    absent = np.isnan(pair.pooled)
    if not absent.any():
        return {pair.name: (pair.original, pair.synthetic)}
    mean = 0.0 if absent.all() else float(pair.pooled[~absent].mean())
    ours = np.isnan(pair.original)
    theirs = np.isnan(pair.synthetic)
    return {
        pair.name: (
            np.where(ours, mean, pair.original),
            np.where(theirs, mean, pair.synthetic),
        ),
        f"{pair.name}={MISSING}": (ours * 1.0, theirs * 1.0),
    }


def _frame(table: TableLike, names: list[Any] | None) -> pd.DataFrame:
    if isinstance(table, pd.DataFrame):
        return table
    values = np.asarray(table)
    if values.ndim not in (1, 2):
        raise InputError("a table must be a frame or an array of records by columns")
    # without records, -1 has no one value
    n_columns = values.shape[-1] if values.ndim == 2 or not len(values) else 1
    values = values.reshape(len(values), n_columns)
    if names is not None and len(names) != n_columns:
        raise InputError("both tables must have the same number of columns")
    names = names or [f"x{j + 1}" for j in range(n_columns)]
    return pd.DataFrame(values, columns=names)


def _pair(
    name: str, original: "pd.Series[Any]", synthetic: "pd.Series[Any]"
) -> ColumnPair:
    numeric = [
        pd.api.types.is_numeric_dtype(part.dtype) for part in (original, synthetic)
    ]
    if all(numeric):
        a, b = (
            part.to_numpy(dtype=np.float64, na_value=np.nan)
            for part in (original, synthetic)
        )
        if np.isinf(a).any() or np.isinf(b).any():
            raise InputError(f"column {name!r} must hold finite numbers")
        return ColumnPair(name=name, original=a, synthetic=b, levels=None)
    if any(numeric):
        raise InputError(
            f"column {name!r} must be numeric in both tables or in neither"
        )
    both = pd.concat([part.astype(object) for part in (original, synthetic)])
    both = both.map(str, na_action="ignore")
    codes, levels = pd.factorize(both, sort=True)
    named = tuple(str(level) for level in levels)
    if (codes < 0).any():
        codes = np.where(codes < 0, len(named), codes)
        named = (*named, MISSING)
    values = codes.astype(np.float64)
    return ColumnPair(
        name=name,
        original=values[: len(original)],
        synthetic=values[len(original) :],
        levels=named,
    )
