"""Columns as regressions read them: outcomes on their scale, predictors in [-1, 1] of a
public box.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Column, Schema
from pdips.data.table import Table, decode, number_array

UNITS = 2**14  # Steps from the middle of a predictor's public range to its end


# By column: codes of levels, ``n_values`` for missing; numbers, NaN for missing
Values = Mapping[str, FloatArray]


def values_of(table: Table, names: Sequence[str]) -> dict[str, FloatArray]:
    """Return columns of a table, records in the table's order."""
    return {name: table.sort_key(name) for name in names}


def to_frame(
    schema: Schema, values: Values, public: pd.DataFrame, rng: np.random.Generator
) -> pd.DataFrame:
    """Turn drawn values into records, public columns as they are written; numbers are
    moved into their bounds.
    """
    cells = {name: public[name].array for name in public.columns}
    for name, column in schema.columns.items():
        if name in cells:
            continue
        if column.is_categorical:
            nearest = np.clip(np.rint(values[name]), 0, column.n_levels - 1)
            codes = {name: nearest.astype(np.int64)}
            cells[name] = decode(schema, codes, rng)[name].array
        else:
            numbers = np.clip(values[name], column.lower or 0, column.upper or 0)
            if column.integer:
                numbers = np.rint(numbers)
            cells[name] = number_array(column, numbers)
    return pd.DataFrame({name: cells[name] for name in schema.columns})


@dataclass(frozen=True)
class Scale:
    """The scale on which a numeric column is an outcome: its own, or logarithms."""

    column: Column

    def there(self, values: FloatArray) -> FloatArray:
        """Return values on the scale."""
        return np.log(values) if self.column.scale == "log" else values

    def back(self, values: FloatArray) -> FloatArray:
        """Return values in the column's unit."""
        return np.exp(np.minimum(values, 700)) if self.column.scale == "log" else values

    @property
    def bounds(self) -> tuple[float, float]:
        """Public bounds on the scale."""
        ends = np.array([self.column.lower or 0.0, self.column.upper or 0.0])
        low, high = self.there(ends)
        return float(low), float(high)


@dataclass(frozen=True)
class Box:
    """Predictors: which columns, and their public ranges.

    A numeric column is one predictor, a categorical one has one for each level but the
    first, and there is one more where a number may be missing. ``caps`` are public ends
    of ranges below the schema's upper bound; larger values count as this.
    """

    schema: Schema
    names: tuple[str, ...]
    caps: Mapping[str, float]

    @property
    def n_predictors(self) -> int:
        columns = [self.schema.columns[name] for name in self.names]
        return sum(
            column.n_levels - 1 if column.is_categorical else 1 + bool(column.missing)
            for column in columns
        )

    def matrix(self, values: Values, *, clamp: bool = True) -> FloatArray:
        """Return the predictors of records, shape (records, p), in [-1, 1] if they are
        clamped to the box.
        """
        predictors: list[FloatArray] = []
        for name in self.names:
            column = self.schema.columns[name]
            cells = values[name]
            if column.is_categorical:
                levels = range(1, column.n_levels)
                predictors += [np.where(cells == level, 1.0, -1.0) for level in levels]
            else:
                predictors.append(self._in_range(name, cells, clamp=clamp))
                if column.missing:
                    predictors.append(np.where(np.isnan(cells), 1.0, -1.0))
        if not predictors:
            n_records = len(next(iter(values.values()))) if values else 0
            return np.zeros((n_records, 0))
        return np.stack(predictors, axis=1)

    def _in_range(self, name: str, numbers: FloatArray, *, clamp: bool) -> FloatArray:
        """Return numbers as shares of their public range, from -1 at its lower end to
        1, in the middle where they are missing.
        """
        column = self.schema.columns[name]
        scale = Scale(column)
        low, high = scale.bounds
        if name in self.caps:
            high = float(scale.there(np.array([self.caps[name]]))[0])
        missing = np.isnan(numbers)
        filled = np.where(missing, column.lower or 0.0, numbers)
        placed = 2 * (scale.there(filled) - low) / (high - low) - 1
        if clamp:
            placed = np.clip(placed, -1, 1)
        return np.where(missing, 0.0, placed)


def in_units(predictors: FloatArray) -> IntArray:
    """Return numbers in [-1, 1] as whole units; each by itself, so records stay
    apart.
    """
    return np.floor(np.clip(predictors, -1, 1) * UNITS + 0.5).astype(np.int64)
