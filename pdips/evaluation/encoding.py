"""Records as codes of levels and bins, and two tables side by side as frames: what every measure compares."""

from collections.abc import Callable, Sequence
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
    """Return the columns that measures compare: those with levels or bins, in the schema's order."""
    names = [name for name, column in schema.columns.items() if column.is_categorical or column.is_binned]
    if not names:
        raise InputError("no column has levels or bins to compare; give the numeric ones bins in the schema")
    return names


def sizes_of(schema: Schema) -> list[int]:
    """Return the number of levels or bins of each coded column, missing included where it may occur."""
    return [schema.columns[name].n_levels for name in coded_columns(schema)]


def codes_of(frame: pd.DataFrame, schema: Schema) -> IntArray:
    """Return the level or bin of each record in each coded column, shape (records, columns), the last code for missing.

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
    """Rows of codes, each of which stands for one record, for ``counts`` records, or for ``weights`` of persons."""

    codes: IntArray
    counts: IntArray | None = None
    weights: FloatArray | None = None

    @property
    def n_records(self) -> int:
        return len(self.codes) if self.counts is None else int(self.counts.sum())

    @classmethod
    def of_table(cls, table: Table) -> Self:
        """Take the rows that a table has already worked out."""
        return cls(np.column_stack([table.codes[name] for name in coded_columns(table.schema)]), table.counts)

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
        """Return the share of the records (of their weights) in each place, given the place of each row."""
        if self.weights is not None:
            return np.bincount(place, self.weights, minlength=n_places) / self.weights.sum()
        return tally(place, self.counts, n_places) / self.n_records

    def resampled(self, rng: np.random.Generator) -> "CodedRecords":
        """Return as many records drawn with replacement."""
        if self.counts is None:
            return CodedRecords(resampled(self.codes, rng))
        return CodedRecords(self.codes, rng.multinomial(self.n_records, self.counts / self.n_records))


def values_of(frame: pd.DataFrame, name: str, column: Column) -> FloatArray:
    """Return a column as numbers, NaN where missing: levels by value if they are numbers, else by place."""
    if column.levels is None:
        return numbers(name, frame[name], column)
    places = map(float, column.levels if has_number_levels(column) else range(column.n_values))
    return np.array([*places, np.nan])[Table(frame[[name]], Schema(columns={name: column})).codes[name]]


def weights_of(frame: pd.DataFrame, schema: Schema) -> FloatArray:
    """Return the weight of each record; refuse a schema that names no weights, and weights that are all 0."""
    name = schema.records.weight
    if name is None:
        raise InputError("the schema names no column of weights (records.weight)")
    found = numbers(name, frame[name], schema.columns[name])
    if len(found) and not found.sum() > 0:
        raise InputError(f"the weights in {name!r} must not all be 0")
    return found


def table_codes(table: Table) -> IntArray:
    """Return the codes that a table has already worked out, shape (records, columns)."""
    rows = CodedRecords.of_table(table)
    return rows.codes if rows.counts is None else np.repeat(rows.codes, rows.counts, axis=0)


def resampled(codes: IntArray, rng: np.random.Generator | None) -> IntArray:
    """Return as many records drawn with replacement: what a perfect synthesizer without privacy would give."""
    return codes[np.random.default_rng(rng).integers(len(codes), size=len(codes))]


def cell_ids(codes: IntArray, sizes: Sequence[int]) -> IntArray:
    """Return one number a record, equal for equal records, however many cells there are.

    It is the cell's place in the full table where 64 bits hold that, else an equally good label.
    """
    if prod(map(int, sizes)) < 2**62:
        return np.asarray(np.ravel_multi_index(tuple(codes.T), tuple(sizes)))
    half = len(sizes) // 2
    parts = cell_ids(codes[:, :half], sizes[:half]), cell_ids(codes[:, half:], sizes[half:])
    first, second = (np.unique(cells, return_inverse=True)[1] for cells in parts)
    return first * len(codes) + second


def grouped(original: IntArray, synthetic: IntArray, sizes: Sequence[int]) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return every different record of two tables once, and how often each table has it."""
    both = np.vstack([original, synthetic])
    _, first, group = np.unique(cell_ids(both, sizes), return_index=True, return_inverse=True)
    count = [np.bincount(part, minlength=len(first)) for part in (group[: len(original)], group[len(original) :])]
    return both[first], count[0].astype(np.float64), count[1].astype(np.float64)


def subsets(n: int, k: int, n_draws: int | None, rng: np.random.Generator | None) -> list[tuple[int, ...]]:
    """Return all sets of ``k`` out of ``n`` columns, or some drawn at random without repetition."""
    n_all = comb(n, k)
    if n_draws is not None and n_draws < 1:
        raise InputError("n_draws must be at least 1")
    if min(n_all, n_all if n_draws is None else n_draws) > MOST_SUBSETS:
        raise InputError(f"there are more than {MOST_SUBSETS:,} sets of {k} columns; choose among them with n_draws")
    every = list(combinations(range(n), k)) if n_all <= MOST_SUBSETS else []
    if n_draws is None or n_draws >= n_all:
        return every
    rng = np.random.default_rng(rng)
    if every:
        return [every[j] for j in rng.choice(n_all, size=n_draws, replace=False)]
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < n_draws:
        drawn[tuple(sorted(int(j) for j in rng.choice(n, size=k, replace=False)))] = None
    return list(drawn)


def with_decile_bins(table: Table) -> Table:
    """Return a table whose numeric columns all have bins: the schema's, or about a tenth of the known values each.

    The cuts are read off the confidential table, so they and what is found with them are for inside use only. A table
    held as counts is returned as it is.
    """
    columns = dict(table.schema.columns)
    unbinned = [name for name, column in columns.items() if not (column.is_categorical or column.is_binned)]
    if not unbinned or table.counts is not None:
        return table
    for name in unbinned:
        column = columns[name]
        values, low, high = numbers(name, table.frame[name], column), float(column.lower or 0), float(column.upper or 0)
        known = np.sort(values[~np.isnan(values)])
        inner = np.quantile(known, np.arange(1, N_PARTS) / N_PARTS) if len(known) else np.zeros(0)
        inner = np.unique([_shortest(edge, known) for edge in (np.rint(inner) if column.integer else inner)])
        edges = [low, *(float(edge) for edge in inner if low < edge < high), high]
        columns[name] = column.model_copy(update={"bin_edges": tuple(edges)})  # unvalidated: edges of dates are numbers
    return Table(table.frame, table.schema.model_copy(update={"columns": columns}))


def _shortest(edge: float, known: FloatArray) -> float:
    """Return the number of fewest digits near an edge that as many of the sorted values are below."""
    near = (float(f"{edge:.{digits}g}") for digits in range(1, 18))
    return next(each for each in near if np.searchsorted(known, each) == np.searchsorted(known, edge))


# ---- two tables as frames, without a schema ----

TableLike = pd.DataFrame | NDArray[Any]  # Records: a frame, or an array of records by columns


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ColumnPair:
    """One column in the original and in the synthetic table: numbers, NaN where missing, or places of its levels.

    ``levels``, None for a numeric column, are those of both tables, sorted, ``"missing"`` last where it occurs.
    """

    name: str
    original: FloatArray
    synthetic: FloatArray
    levels: tuple[str, ...] | None

    @property
    def pooled(self) -> FloatArray:
        """Original values, then synthetic ones."""
        return np.concatenate([self.original, self.synthetic])


def paired(original: TableLike, synthetic: TableLike, columns: Sequence[str] | None = None) -> list[ColumnPair]:
    """Lay two tables side by side, column by column: the chosen ones, by default all, as in the original.

    Columns of a frame are matched by name; those of an array are called ``"x1"``, ``"x2"``, ... or, if the other table
    is a frame, as there. Columns of numbers (Booleans too) are numeric, all others have levels.
    """
    names = next((list(t.columns) for t in (original, synthetic) if isinstance(t, pd.DataFrame)), None)
    a, b = (_frame(table, names).rename(columns=str) for table in (original, synthetic))
    chosen = list(a.columns if columns is None else columns)
    if not chosen:
        raise InputError("a comparison needs at least one column")
    for frame, which in ((a, "original"), (b, "synthetic")):
        if not len(frame):
            raise InputError(f"the {which} table must have at least one record")
        if not frame.columns.is_unique:
            raise InputError(f"the {which} table must name each column once")
        if absent := [name for name in chosen if name not in frame.columns]:
            raise InputError(f"column {absent[0]!r} is not in the {which} table; both must have it")
    if columns is None and len(b.columns) > len(a.columns):
        extra = next(name for name in b.columns if name not in a.columns)
        raise InputError(f"column {extra!r} is not in the original table; drop it, or name the columns to compare")
    return [_pair(name, a[name], b[name]) for name in chosen]


def indicators(pair: ColumnPair) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return a column as numbers for a model: original and synthetic part by the number's name.

    A column of levels gives an indicator for each level but the first. A numeric one is itself; if values are missing,
    they are filled with the mean of the others, and an indicator ``"name=missing"`` is added.
    """
    both = (pair.original, pair.synthetic)
    if pair.levels is not None:
        return {
            f"{pair.name}={level}": ((both[0] == code) * 1.0, (both[1] == code) * 1.0)
            for code, level in enumerate(pair.levels)
            if code > 0
        }
    absent = np.isnan(pair.pooled)
    if not absent.any():
        return {pair.name: both}
    mean = 0.0 if absent.all() else float(pair.pooled[~absent].mean())
    filled = tuple(np.where(np.isnan(values), mean, values) for values in both)
    return {
        pair.name: (filled[0], filled[1]),
        f"{pair.name}={MISSING}": (np.isnan(both[0]) * 1.0, np.isnan(both[1]) * 1.0),
    }


def complete(pair: ColumnPair, measure: str) -> ColumnPair:
    """Return a numeric column that has no missing values; refuse any other."""
    if pair.levels is not None:
        raise InputError(f"column {pair.name!r} must be numeric for {measure}; leave it out")
    if np.isnan(pair.pooled).any():
        raise InputError(f"column {pair.name!r} must have no missing values for {measure}")
    return pair


def reference(
    measure: Callable[[TableLike, TableLike], float],
    original: TableLike,
    *,
    n_draws: int = 10,
    rng: np.random.Generator | None = None,
) -> float:
    """Return the mean of a measure over resamples of the original: about as good as synthesis can get.

    Parameters
    ----------
    measure : callable
        Called with the original and a resample of it, gives a number: ``pmse``, or
        ``lambda a, b: k_marginal(a, b).score``.
    original : DataFrame or array_like, shape (records, columns)
        The confidential table.
    n_draws : int
        Resamples to average over, each as large as the original and drawn from it with replacement.
    rng : numpy.random.Generator, optional
        For the resamples.

    Raises
    ------
    InputError
        If the original has no record, or ``n_draws`` is below 1.

    Examples
    --------
    >>> original = pd.DataFrame({"x": np.arange(100) % 7})
    >>> reference(lambda one, other: abs(one["x"].mean() - other["x"].mean()), original) < 1
    True
    """
    if n_draws < 1:
        raise InputError("n_draws must be at least 1")
    if not len(original):
        raise InputError("the original table must have at least one record")
    rng = np.random.default_rng(rng)
    n, whole = len(original), original if isinstance(original, pd.DataFrame) else np.asarray(original)
    drawn = [rng.integers(n, size=n) for _ in range(n_draws)]
    taken = (whole.iloc[rows] if isinstance(whole, pd.DataFrame) else whole[rows] for rows in drawn)
    return float(np.mean([measure(original, resample) for resample in taken]))


def _frame(table: TableLike, names: list[Any] | None) -> pd.DataFrame:
    if isinstance(table, pd.DataFrame):
        return table
    values = np.asarray(table)
    if values.ndim not in (1, 2):
        raise InputError("a table must be a frame or an array of records by columns")
    values = values.reshape(len(values), -1) if len(values) else values.reshape(0, values.shape[-1])
    if names is not None and len(names) != values.shape[1]:
        raise InputError("both tables must have the same number of columns")
    return pd.DataFrame(values, columns=names or [f"x{j + 1}" for j in range(values.shape[1])])


def _pair(name: str, original: "pd.Series[Any]", synthetic: "pd.Series[Any]") -> ColumnPair:
    numeric = [pd.api.types.is_numeric_dtype(part.dtype) for part in (original, synthetic)]
    if all(numeric):
        a, b = (part.to_numpy(dtype=np.float64, na_value=np.nan) for part in (original, synthetic))
        if np.isinf(a).any() or np.isinf(b).any():
            raise InputError(f"column {name!r} must hold finite numbers")
        return ColumnPair(name=name, original=a, synthetic=b, levels=None)
    if any(numeric):
        raise InputError(f"column {name!r} must be numeric in both tables or in neither")
    both = pd.concat([part.astype(object) for part in (original, synthetic)])
    both = both.map(str, na_action="ignore")
    codes, levels = pd.factorize(both, sort=True)
    named = tuple(str(level) for level in levels)
    if (codes < 0).any():
        codes, named = np.where(codes < 0, len(named), codes), (*named, MISSING)
    values = codes.astype(np.float64)
    return ColumnPair(name=name, original=values[: len(original)], synthetic=values[len(original) :], levels=named)
