"""Numeric columns as whole steps from the middle of their public bounds, exactly."""

from dataclasses import dataclass
from fractions import Fraction
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.coding import numbers
from pdips.data.encoding import Scale
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.posterior.columns import check_column
from pdips.privacy.noise import quantise

_known: WeakKeyDictionary[Table, dict[str, IntArray]] = WeakKeyDictionary()
"""Columns of tables that are in use, as whole steps: several statistics take the same one."""

STEPS = 2**12
"""Steps in half the range: what rounding adds to a mean is 1/14,000 of it at most on average."""


@dataclass(frozen=True)
class Unit:
    """How a numeric column is measured: u = (x - middle) / half, in [-1, 1], as whole steps of 1 / ``steps``.

    Parameters
    ----------
    name : str
        The column.
    column : Column
        Its bounds; logarithms are measured where ``scale = "log"``.

    Raises
    ------
    InputError
        If the column has levels, or may be missing.
    """

    name: str
    column: Column

    def __post_init__(self) -> None:
        if self.column.is_categorical:
            raise InputError(
                f"column {self.name!r} has levels, and sums need a numeric column: give it lower and upper in the "
                "schema, or count its levels"
            )
        check_column(self.name, self.column)

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
        span = float(self.column.upper or 0) - float(self.column.lower or 0)
        return self.column.integer and self.column.scale == "linear" and span <= 2 * STEPS

    @property
    def steps(self) -> int:
        """Steps in half the range: no record is further from the middle (SOUNDNESS review E5)."""
        if self.is_whole:
            return int(float(self.column.upper or 0)) - int(float(self.column.lower or 0))
        return STEPS

    def whole(self, values: FloatArray) -> IntArray:
        """Return values within the bounds as whole steps, each by itself and as if in exact arithmetic.

        Parameters
        ----------
        values : ndarray, shape (records,)
            In the column's unit.
        """
        if self.is_whole:
            return (2 * values - float(self.column.lower or 0) - float(self.column.upper or 0)).astype(np.int64)
        places, distinct = pd.factorize(values)
        step = Fraction(self.half) / self.steps
        rounded = quantise(Scale(self.column).there(np.asarray(distinct)) - self.middle, step)
        return np.clip(rounded, -self.steps, self.steps)[places]

    def of(self, values: FloatArray) -> FloatArray:
        """Return values in the column's unit as u."""
        return (Scale(self.column).there(values) - self.middle) / self.half

    def back(self, u: FloatArray) -> FloatArray:
        """Return u as values in the column's unit; what lies outside is moved to the nearest bound."""
        return Scale(self.column).back(self.middle + self.half * np.clip(u, -1.0, 1.0))


def unit_of(schema: Schema, name: str) -> Unit:
    """Return how a column of a schema is measured.

    Raises
    ------
    InputError
        If there is no such column, or it isn't numeric.
    """
    if name not in schema.columns:
        raise InputError(f"a statistic names column {name!r}, which the schema doesn't have")
    return Unit(name, schema.columns[name])


def steps_of(table: Table, name: str) -> tuple[IntArray, int]:
    """Return a column of a table as whole steps, shape (rows,), and the most that there can be."""
    unit, known = unit_of(table.schema, name), _known.setdefault(table, {})
    if name not in known:
        known[name] = unit.whole(numbers(name, table.frame[name], unit.column))
    return known[name], unit.steps
