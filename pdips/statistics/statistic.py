"""Bounded statistics of a table, in whole numbers, and what one person can change of them.

Noise is added to them once; all that a model makes of them afterwards is post-processing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours
from pdips.statistics.units import steps_of, unit_of

MOST_CELLS = 2**22
EXACT_DOUBLE = 2**53


class Statistic(Protocol):
    """A bounded statistic: what it counts or sums, and how far one record can move it.

    ``l1`` is the largest sum of absolute changes over all entries when one record is replaced, or added or removed, and
    ``l2_squared`` the largest sum of their squares; both in the whole units in which ``measure`` counts, and attained.
    """

    def shape(self, schema: Schema) -> tuple[int, ...]:
        """Return the shape of what is measured."""
        ...

    def check(self, schema: Schema) -> None:
        """Refuse a schema that the statistic can't be taken of, before anything is spent."""
        ...

    def l1(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return the l1-sensitivity in whole units; 0 for what is public."""
        ...

    def l2_squared(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return the square of the l2-sensitivity in whole units squared."""
        ...

    def unit(self, schema: Schema) -> float:
        """Return what one whole unit is of the model's unit."""
        ...

    def measure(self, table: Table) -> IntArray:
        """Return the exact statistic of a confidential table in whole units."""
        ...

    def labels(self, schema: Schema) -> pd.DataFrame:
        """Return what each entry is of, one row an entry, in the order of ``measure(...).ravel()``."""
        ...

    def spread(self, schema: Schema) -> FloatArray:
        """Return the variance of each entry for one record spread evenly over what the schema allows, model's units."""
        ...


def _cells(schema: Schema, by: Sequence[str]) -> tuple[int, ...]:
    for name in by:
        if name not in schema.columns:
            raise InputError(f"a statistic names column {name!r}, which the schema doesn't have")
        if not schema.columns[name].is_categorical and not schema.columns[name].is_binned:
            raise InputError(f"column {name!r} has neither levels nor bins to count by: give it bins in the schema")
    sizes = tuple(schema.columns[name].n_levels for name in by)
    if math.prod(sizes) > MOST_CELLS:
        raise InputError(
            f"{' x '.join(by)} has more than {MOST_CELLS:,} cells; count by fewer columns, or coarser bins"
        )
    return sizes


def _place(table: Table, by: Sequence[str]) -> IntArray:
    """Return the cell of each row."""
    sizes = _cells(table.schema, by)
    if not by:
        return np.zeros(len(table.frame) if table.counts is None else len(table.counts), dtype=np.int64)
    return np.ravel_multi_index(tuple(table.codes[name] for name in by), sizes).astype(np.int64)


def _named(schema: Schema, by: Sequence[str]) -> pd.DataFrame:
    names = [schema.columns[name].names() for name in by]
    return pd.DataFrame(list(product(*names)), columns=list(by))


def total_by(place: IntArray, values: IntArray, n_places: int, largest: int) -> IntArray:
    """Add up whole numbers by place, exactly.

    Parameters
    ----------
    place, values : ndarray of int64, shape (rows,)
        The place of each row, and what it adds.
    n_places : int
        Number of places.
    largest : int
        Bound on what one row adds; rows times it stays below 2^63.
    """
    if largest * max(len(values), 1) < EXACT_DOUBLE:  # sums of whole numbers below 2^53 are exact in doubles
        return np.bincount(place, weights=values, minlength=n_places).astype(np.int64)
    found = np.zeros(n_places, dtype=np.int64)
    np.add.at(found, place, values)
    return found


def _has_public(schema: Schema, names: Sequence[str]) -> bool:
    return bool(names) and all(schema.columns[name].public for name in names)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Number of records in each cell of some columns; without columns, in all.

    Notes
    -----
    One record counts in one cell: l1-sensitivity 1 if it is added or removed. If it is replaced, two cells change by 1:
    2; with two cells and a public number of records one of the counts says all, and its sensitivity is 1; with one cell
    or public columns there is nothing to protect (SOUNDNESS 5.1; ``docs/proofs/modips.md``, lemma 1).
    """

    by: tuple[str, ...] = ()

    def check(self, schema: Schema) -> None:
        """Refuse columns that are no columns or have no cells, and public ones beside others."""
        _cells(schema, self.by)
        public = [name for name in self.by if schema.columns[name].public]
        if public and len(public) < len(self.by):
            raise InputError(f"a statistic counts public column {public[0]!r} together with others; count them apart")

    def shape(self, schema: Schema) -> tuple[int, ...]:
        """Return (cells,)."""
        return (math.prod(_cells(schema, self.by)),)

    def n_noised(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return how many counts get noise, from the first: the others follow from them and public numbers."""
        [cells] = self.shape(schema)
        if _has_public(schema, self.by):
            return 0
        return cells if neighbours == "add-remove" or cells > 2 else cells - 1

    def l1(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return the l1-sensitivity, in records."""
        k, noised = schema.records.max_per_person, self.n_noised(schema, neighbours)
        return k * (min(noised, 2) if neighbours == "replace-one" else min(noised, 1))

    def l2_squared(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return the square of the l2-sensitivity: all of a person's records may move from one cell to one other."""
        return schema.records.max_per_person * self.l1(schema, neighbours)

    def unit(self, schema: Schema) -> float:
        """Return 1: a record."""
        return 1.0

    def measure(self, table: Table) -> IntArray:
        """Return the counts, shape (cells,)."""
        return table.count(_place(table, self.by), *self.shape(table.schema))

    def labels(self, schema: Schema) -> pd.DataFrame:
        """Return the levels of each cell."""
        return _named(schema, self.by)

    def spread(self, schema: Schema) -> FloatArray:
        """Return p (1 - p) for p = 1 / cells; 1 for the number of all records."""
        [cells] = self.shape(schema)
        return np.full(cells, 1 / cells * (1 - 1 / cells) if cells > 1 else 1.0)


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Sum of u over the records of each cell, u = (x - middle) / half in [-1, 1].

    Notes
    -----
    In whole steps a record has at most U = ``Unit.steps``: l1-sensitivity U if it is added or removed, 2 U if it is
    replaced, whether it stays in its cell or not (SOUNDNESS 5.5, review E5; ``docs/proofs/modips.md``, lemma 2). With
    n public and no cells this is the mean, n times.
    """

    of: str
    by: tuple[str, ...] = ()

    def check(self, schema: Schema) -> None:
        """Refuse columns that aren't numeric, or have no cells."""
        unit_of(schema, self.of)
        _cells(schema, self.by)

    def shape(self, schema: Schema) -> tuple[int, ...]:
        """Return (cells,)."""
        return (math.prod(_cells(schema, self.by)),)

    def l1(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return the l1-sensitivity, in steps."""
        if _has_public(schema, (self.of, *self.by)):
            return 0
        most = unit_of(schema, self.of).steps
        return schema.records.max_per_person * most * (2 if neighbours == "replace-one" else 1)

    def l2_squared(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return the square of the l2-sensitivity: attained in one cell."""
        return self.l1(schema, neighbours) ** 2

    def unit(self, schema: Schema) -> float:
        """Return a step as part of half the range."""
        return 1 / unit_of(schema, self.of).steps

    def measure(self, table: Table) -> IntArray:
        """Return the sums, shape (cells,), in steps."""
        values, most = steps_of(table, self.of)
        return total_by(_place(table, self.by), values, self.shape(table.schema)[0], most)

    def labels(self, schema: Schema) -> pd.DataFrame:
        """Return the levels of each cell."""
        return _named(schema, self.by)

    def spread(self, schema: Schema) -> FloatArray:
        """Return 1/3 over the number of cells, the variance of an even spread over [-1, 1]."""
        [cells] = self.shape(schema)
        return np.full(cells, 1 / (3 * cells))


@dataclass(frozen=True, kw_only=True)
class Products:
    """Sum over all records, or those of each cell, of u_x u_y, both counted from the middle of their public bounds.

    Notes
    -----
    With at most U_x and U_y steps: l1-sensitivity U_x U_y if a record is added or removed. If it is replaced, U_x^2 for
    x = y, for squares lie in [0, U_x^2], and 2 U_x U_y otherwise (SOUNDNESS 5.5, review E5). A square that changes its
    cell changes two: 2 U_x^2 with ``by`` (``docs/proofs/modips.md``, lemma 3).
    """

    of: tuple[str, str]
    by: tuple[str, ...] = ()

    def check(self, schema: Schema) -> None:
        """Refuse columns that aren't numeric, or have no cells, and other numbers of columns than two."""
        if len(self.of) != 2:
            raise InputError(
                f"Products multiplies two columns, such as of=('x', 'y') or ('x', 'x'); got {len(self.of)}"
            )
        for name in self.of:
            unit_of(schema, name)
        _cells(schema, self.by)

    def shape(self, schema: Schema) -> tuple[int, ...]:
        """Return (cells,)."""
        return (math.prod(_cells(schema, self.by)),)

    def _most(self, schema: Schema) -> int:
        return math.prod(unit_of(schema, name).steps for name in self.of)

    def l1(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return the l1-sensitivity, in products of steps."""
        if _has_public(schema, (*self.of, *self.by)):
            return 0
        stays = self.of[0] == self.of[1] and (not self.by or _has_public(schema, self.by))
        twice = neighbours == "replace-one" and not stays
        return schema.records.max_per_person * self._most(schema) * (2 if twice else 1)

    def l2_squared(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return the square of the l2-sensitivity: that of a square in another cell spreads over two entries."""
        squares = self.of[0] == self.of[1]
        largest = self.l1(schema, neighbours) ** 2
        return (
            largest // 2 if squares and largest > (schema.records.max_per_person * self._most(schema)) ** 2 else largest
        )

    def unit(self, schema: Schema) -> float:
        """Return a product of steps as part of the product of half ranges."""
        return 1 / self._most(schema)

    def measure(self, table: Table) -> IntArray:
        """Return the sums of products, shape (cells,), in products of steps."""
        (x, most_x), (y, most_y) = (steps_of(table, name) for name in self.of)
        return total_by(_place(table, self.by), x * y, self.shape(table.schema)[0], most_x * most_y)

    def labels(self, schema: Schema) -> pd.DataFrame:
        """Return the levels of each cell."""
        return _named(schema, self.by)

    def spread(self, schema: Schema) -> FloatArray:
        """Return the variance of a product of even spreads: 4/45 for a square, 1/9 otherwise, over the cells."""
        [cells] = self.shape(schema)
        return np.full(cells, (4 / 45 if self.of[0] == self.of[1] else 1 / 9) / cells)


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Sum of squares about the mean, (n - 1) S^2, of one column: the variance, where n is public.

    Notes
    -----
    Rounded down to whole steps squared. Replacing a record changes (n - 1) S^2 by at most (1 - 1 / n) (2 U)^2, adding
    or removing one by less than (2 U)^2: sensitivity (2 U)^2, four times that of :class:`Products` (SOUNDNESS 5.5;
    ``docs/proofs/modips.md``, lemma 4). It is there because paper 003 sanitizes it.
    """

    of: str

    def check(self, schema: Schema) -> None:
        """Refuse a column that isn't numeric."""
        unit_of(schema, self.of)

    def shape(self, schema: Schema) -> tuple[int, ...]:
        """Return (1,)."""
        return (1,)

    def l1(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return the l1-sensitivity, in steps squared."""
        most = unit_of(schema, self.of).steps
        return 0 if _has_public(schema, (self.of,)) else schema.records.max_per_person * (2 * most) ** 2

    def l2_squared(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return the square of the l2-sensitivity."""
        return self.l1(schema, neighbours) ** 2

    def unit(self, schema: Schema) -> float:
        """Return a step squared as part of half the range squared."""
        return 1 / unit_of(schema, self.of).steps ** 2

    def measure(self, table: Table) -> IntArray:
        """Return it, shape (1,), in steps squared, rounded down."""
        values, most = steps_of(table, self.of)
        nowhere = np.zeros(len(values), dtype=np.int64)
        [total], [squares] = total_by(nowhere, values, 1, most), total_by(nowhere, values**2, 1, most**2)
        n = len(values)
        return np.array([(n * int(squares) - int(total) ** 2) // n])

    def labels(self, schema: Schema) -> pd.DataFrame:
        """Return one row without columns."""
        return _named(schema, ())

    def spread(self, schema: Schema) -> FloatArray:
        """Return 4/45, the variance of the square of an even spread."""
        return np.array([4 / 45])
