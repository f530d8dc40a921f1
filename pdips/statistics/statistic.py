"""Bounded statistics of a table, in whole numbers, and what one person can change of
them.

Noise is added to them once; all that a model makes of them afterwards is
post-processing. Columns are measured as whole steps from the middle of their public
bounds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.coding import numbers
from pdips.data.encoding import Scale
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError, hint
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import quantise
from pdips.privacy.sensitivity import Sensitivity

_known: WeakKeyDictionary[Table, dict[Any, IntArray]] = WeakKeyDictionary()
"""Columns of tables that are in use, as whole steps, and their statistics: each is
worked out once.
"""

# Steps in half the range: what rounding adds to a mean is 1/14,000 of it at most on
# average
STEPS = 2**12


@dataclass(frozen=True)
class ColumnUnit:
    """How a numeric column is measured: u = (x - middle) / half, in [-1, 1], as whole
    steps of 1 / ``steps``.

    Logarithms are measured where the column has ``scale = "log"``. Columns with levels
    are refused.
    """

    name: str
    column: Column

    def __post_init__(self) -> None:
        if self.column.is_categorical:
            raise InputError(
                f"column {self.name!r} has levels, and sums need a numeric column: "
                f"give it lower and upper in the "
                "schema, or count its levels"
            )

    @property
    def bounds(self) -> tuple[float, float]:
        """Public bounds on the column's scale."""
        return Scale(self.column).bounds

    @property
    def middle(self) -> float:
        """The value at u = 0, on the column's scale."""
        return sum(self.bounds) / 2

    @property
    def half(self) -> float:
        """Half the range: the length of 1 in u."""
        low, high = self.bounds
        return (high - low) / 2

    @property
    def is_whole(self) -> bool:
        """Whether u is exact: whole numbers within a short range."""
        linear = self.column.integer and self.column.scale == "linear"
        return linear and self._upper - self._lower <= 2 * STEPS

    @property
    def _lower(self) -> float:
        return float(self.column.lower or 0)

    @property
    def _upper(self) -> float:
        return float(self.column.upper or 0)

    @property
    def steps(self) -> int:
        """Steps in half the range: no record is further from the middle."""
        if self.is_whole:
            return int(self._upper) - int(self._lower)
        return STEPS

    def whole(self, values: FloatArray) -> IntArray:
        """Return values in the column's unit as whole steps, each by itself and as if
        in exact arithmetic.
        """
        if self.is_whole:
            return (2 * values - self._lower - self._upper).astype(np.int64)
        places, distinct = pd.factorize(values)
        step = Fraction(self.half) / self.steps
        from_middle = Scale(self.column).there(np.asarray(distinct)) - self.middle
        rounded = quantise(from_middle, step)
        return np.clip(rounded, -self.steps, self.steps)[places]

    def of(self, values: FloatArray) -> FloatArray:
        """Return values in the column's unit as u."""
        return (Scale(self.column).there(values) - self.middle) / self.half

    def back(self, u: FloatArray) -> FloatArray:
        """Return u as values in the column's unit; what lies outside is moved to the
        nearest bound.
        """
        return Scale(self.column).back(self.middle + self.half * np.clip(u, -1.0, 1.0))


def column_of(schema: Schema, name: str) -> Column:
    """Return a column that a statistic names; refuse one that isn't there, or a numeric
    one that may be missing.
    """
    if name not in schema.columns:
        raise InputError(
            f"a statistic names column {name!r}, which the schema doesn't "
            f"have{hint(name, schema.columns)}"
        )
    column = schema.columns[name]
    if column.missing and not column.is_categorical:
        raise InputError(
            f"column {name!r} may have missing values, of which no "
            f"statistic is made; give it levels"
        )
    return column


def unit_of(schema: Schema, name: str) -> ColumnUnit:
    """Return how a column of a schema is measured; refuse a name that is none, or not
    of a numeric one.
    """
    return ColumnUnit(name, column_of(schema, name))


def _steps_of(table: Table, name: str) -> IntArray:
    """Return a column of a table as whole steps, shape (rows,)."""
    unit = unit_of(table.schema, name)
    known = _known.setdefault(table, {})
    if name not in known:
        known[name] = unit.whole(numbers(name, table.frame[name], unit.column))
    return known[name]


MOST_CELLS = 2**22
EXACT_DOUBLE = 2**53


def measured_once(statistic: Any, table: Table) -> IntArray:
    """Return the exact statistic of a confidential table in whole units, shape
    (entries,), worked out once.
    """
    known = _known.setdefault(table, {})
    if statistic not in known:
        known[statistic] = statistic.measure(table).ravel()
    return known[statistic]


def total_by(
    place: IntArray, values: IntArray, n_places: int, largest: int
) -> IntArray:
    """Add up whole numbers of at most ``largest`` by place, exactly; rows times that
    stays below 2^63.
    """
    # sums of whole numbers below 2^53 are exact in doubles
    if largest * max(len(values), 1) < EXACT_DOUBLE:
        return np.bincount(place, weights=values, minlength=n_places).astype(np.int64)
    found = np.zeros(n_places, dtype=np.int64)
    np.add.at(found, place, values)
    return found


def _are_public(schema: Schema, names: Sequence[str]) -> bool:
    return bool(names) and all(schema.columns[name].public for name in names)


@dataclass(frozen=True, kw_only=True)
class _ByCell:
    """A sum over the records of each cell of the columns ``by``, of the product of
    columns; of ones without columns.
    """

    most_records: ClassVar[int | None] = None  # Of a table that it is made for

    by: tuple[str, ...] = ()

    @property
    def _columns(self) -> tuple[str, ...]:
        of: str | tuple[str, ...] = getattr(self, "of", ())
        return (of,) if isinstance(of, str) else of

    def _sizes(self, schema: Schema) -> tuple[int, ...]:
        for name in self.by:
            if name not in schema.columns:
                raise InputError(
                    f"a statistic names column {name!r}, which the schema doesn't have"
                )
            column = schema.columns[name]
            if not column.is_categorical and not column.is_binned:
                raise InputError(
                    f"column {name!r} has neither levels nor bins to "
                    f"count by: give it bins in the schema"
                )
        sizes = tuple(schema.columns[name].n_levels for name in self.by)
        if math.prod(sizes) > MOST_CELLS:
            raise InputError(
                f"{' x '.join(self.by)} has more than {MOST_CELLS:,} cells; count by "
                f"fewer columns, or coarser bins"
            )
        return sizes

    def _place(self, table: Table) -> IntArray:
        """Return the cell of each row."""
        if not self.by:
            return np.zeros(
                len(table.frame) if table.counts is None else len(table.counts),
                dtype=np.int64,
            )
        codes = tuple(table.codes[name] for name in self.by)
        return np.ravel_multi_index(codes, self._sizes(table.schema)).astype(np.int64)

    def _most(self, schema: Schema) -> int:
        """Return the most whole units that a record adds."""
        return math.prod(unit_of(schema, name).steps for name in self._columns)

    def check(self, schema: Schema) -> None:
        """Refuse columns that aren't there, aren't numeric, or have no cells."""
        self._most(schema)
        self._sizes(schema)

    def shape(self, schema: Schema) -> tuple[int, ...]:
        """Return (cells,)."""
        return (math.prod(self._sizes(schema)),)

    def labels(self, schema: Schema) -> pd.DataFrame:
        """Return the levels of each cell."""
        return pd.DataFrame(
            list(product(*[schema.columns[name].names() for name in self.by])),
            columns=list(self.by),
        )

    def unit(self, schema: Schema) -> float:
        """Return a whole unit as part of the most that a record adds."""
        return 1 / self._most(schema)

    def spread(self, schema: Schema) -> FloatArray:
        """Return the variance of even spreads over [-1, 1], of their squares or
        products, over the number of cells.
        """
        [cells] = self.shape(schema)
        first, *others = self._columns
        of_record = 1 / 3
        if others:
            of_record = 4 / 45 if others == [first] else 1 / 9
        return np.full(cells, of_record / cells)

    def sensitivity(self, schema: Schema, neighbours: Neighbours) -> Sensitivity:
        """Return the sensitivity, in whole units; squares aren't signed, and move to
        another cell if there is one.
        """
        if _are_public(schema, (*self._columns, *self.by)):
            return Sensitivity.of_person(l1=0)
        signed = len(set(self._columns)) == len(self._columns)
        moves = bool(self.by) and not _are_public(schema, self.by)
        return Sensitivity.of_sums(
            schema, neighbours, self._most(schema), signed=signed, moves=moves
        )

    def measure(self, table: Table) -> IntArray:
        """Return the sums, shape (cells,), in whole units."""
        values = np.prod([_steps_of(table, name) for name in self._columns], axis=0)
        (n_cells,) = self.shape(table.schema)
        return total_by(self._place(table), values, n_cells, self._most(table.schema))


@dataclass(frozen=True, kw_only=True)
class Counts(_ByCell):
    """Number of records in each cell of some columns; without columns, in all.

    Notes
    -----
    One record counts in one cell: l1-sensitivity 1 if it is added or removed. If it is
    replaced, two cells change by 1: 2; with two cells and a public number of records
    one of the counts says all, and its sensitivity is 1; with one cell or public
    columns there is nothing to protect (``docs/proofs/modips.md``, lemma 1).

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "sex": Column(levels=["f", "m"]),
    ...     }
    ... )
    >>> Counts(by=("ill", "sex")).shape(schema)
    (4,)
    """

    def check(self, schema: Schema) -> None:
        """Refuse columns that are no columns or have no cells, and public ones beside
        others.
        """
        self._sizes(schema)
        public = [name for name in self.by if schema.columns[name].public]
        if public and len(public) < len(self.by):
            raise InputError(
                f"a statistic counts public column {public[0]!r} "
                f"together with others; count them apart"
            )

    def n_noised(self, schema: Schema, neighbours: Neighbours) -> int:
        """Return how many counts get noise, from the first: the others follow from them
        and public numbers.
        """
        [cells] = self.shape(schema)
        if _are_public(schema, self.by):
            return 0
        return cells if neighbours == "add-remove" or cells > 2 else cells - 1

    def sensitivity(self, schema: Schema, neighbours: Neighbours) -> Sensitivity:
        """Return the sensitivity, in records: all of a person's records may move from
        one cell to one other.
        """
        noised = self.n_noised(schema, neighbours)
        return (
            Sensitivity.of_counts(schema, neighbours)
            if noised > 1
            else Sensitivity.of_record(schema, l1=noised)
        )

    def measure(self, table: Table) -> IntArray:
        """Return the counts, shape (cells,)."""
        return table.count(self._place(table), *self.shape(table.schema))

    def spread(self, schema: Schema) -> FloatArray:
        """Return p (1 - p) for p = 1 / cells; 1 for the number of all records."""
        [cells] = self.shape(schema)
        return np.full(cells, 1 / cells * (1 - 1 / cells) if cells > 1 else 1.0)


@dataclass(frozen=True, kw_only=True)
class Sums(_ByCell):
    """Sum of u over the records of each cell, u = (x - middle) / half in [-1, 1].

    Notes
    -----
    In whole steps a record has at most U = ``ColumnUnit.steps``: l1-sensitivity U if it
    is added or removed, 2 U if it is replaced, whether it stays in its cell or not
    (``docs/proofs/modips.md``, lemma 2). With n public and no cells this is the mean, n
    times.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "x": Column(lower=0, upper=10),
    ...     }
    ... )
    >>> Sums(of="x", by=("ill",)).shape(schema)
    (2,)
    """

    of: str


@dataclass(frozen=True, kw_only=True)
class Products(_ByCell):
    """Sum over all records, or those of each cell, of u_x u_y, both counted from the
    middle of their public bounds.

    Notes
    -----
    With at most U_x and U_y steps: l1-sensitivity U_x U_y if a record is added or
    removed. If it is replaced, U_x^2 for x = y, for squares lie in [0, U_x^2], and 2
    U_x U_y otherwise. A square that changes its cell changes two: 2 U_x^2 with ``by``
    (``docs/proofs/modips.md``, lemma 3).

    Examples
    --------
    >>> schema = Schema(columns={"x": Column(lower=0, upper=10)})
    >>> Products(of=("x", "x")).shape(schema)
    (1,)
    """

    of: tuple[str, str]

    def check(self, schema: Schema) -> None:
        """Refuse columns that aren't numeric, or have no cells, and other numbers of
        columns than two.
        """
        if len(self.of) != 2:
            raise InputError(
                f"Products multiplies two columns, such as of=('x', 'y') or ('x', "
                f"'x'); got {len(self.of)}"
            )
        super().check(schema)


@dataclass(frozen=True, kw_only=True)
class Scatter(_ByCell):
    """Sum of squares about the mean, (n - 1) S^2, of one column: the variance, where n
    is public.

    Notes
    -----
    Rounded down to whole steps squared. Replacing a record changes (n - 1) S^2 by at
    most (1 - 1 / n) (2 U)^2, adding or removing one by less than (2 U)^2: sensitivity
    (2 U)^2, four times that of :class:`Products` (``docs/proofs/modips.md``, lemma 4).
    It is there because Bowen and Liu (2020) sanitize it.

    Examples
    --------
    >>> schema = Schema(columns={"x": Column(lower=0, upper=10)})
    >>> Scatter(of="x").shape(schema)
    (1,)
    """

    by: ClassVar[tuple[str, ...]] = ()  # type: ignore[misc] # of all records
    of: str

    @property
    def _columns(self) -> tuple[str, ...]:
        return (self.of, self.of)

    def sensitivity(self, schema: Schema, neighbours: Neighbours) -> Sensitivity:
        """Return the sensitivity, in steps squared."""
        if _are_public(schema, (self.of,)):
            return Sensitivity.of_person(l1=0)
        return Sensitivity.of_record(
            schema, l1=(2 * unit_of(schema, self.of).steps) ** 2
        )

    def measure(self, table: Table) -> IntArray:
        """Return it, shape (1,), in steps squared, rounded down."""
        values = _steps_of(table, self.of)
        most = unit_of(table.schema, self.of).steps
        nowhere = np.zeros(len(values), dtype=np.int64)
        n = len(values)
        [total] = total_by(nowhere, values, 1, most)
        [squares] = total_by(nowhere, values**2, 1, most**2)
        return np.array([(n * int(squares) - int(total) ** 2) // n])
