"""Columns as regressions read them: outcomes on their scale, predictors in [-1, 1] of a public box."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Column, Schema
from pdips.data.table import Table, decode, number_array

UNITS = 2**14  # Steps from the middle of a predictor's public range to its end


Values = Mapping[str, FloatArray]  # By column: codes of levels, ``n_values`` for missing; numbers, NaN for missing


def values_of(table: Table, names: Sequence[str]) -> dict[str, FloatArray]:
    """Return columns of a table, records in the table's order."""
    return {name: table.sort_key(name) for name in names}


def to_frame(schema: Schema, values: Values, public: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Turn drawn values into records, public columns as they are written; numbers are moved into their bounds."""
    made = {name: public[name].array for name in public.columns}
    for name, column in schema.columns.items():
        if name in made:
            continue
        if column.is_categorical:
            codes = np.clip(np.rint(values[name]), 0, column.n_levels - 1).astype(np.int64)
            made[name] = decode(schema, {name: codes}, rng)[name].array
        else:
            known = np.clip(values[name], float(column.lower or 0), float(column.upper or 0))
            made[name] = number_array(column, np.rint(known) if column.integer else known)
    return pd.DataFrame({name: made[name] for name in schema.columns})


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
        low, high = self.there(np.array([float(self.column.lower or 0), float(self.column.upper or 0)]))
        return float(low), float(high)


@dataclass(frozen=True)
class Box:
    """Predictors: which columns, and their public ranges.

    A numeric column is one predictor, a categorical one has one for each level but the first, and there is one more
    where a number may be missing. ``caps`` are public ends of ranges below the schema's upper bound; larger values
    count as this.
    """

    schema: Schema
    names: tuple[str, ...]
    caps: Mapping[str, float]

    @property
    def n_predictors(self) -> int:
        return sum(
            column.n_levels - 1 if column.is_categorical else 1 + bool(column.missing)
            for column in (self.schema.columns[name] for name in self.names)
        )

    def matrix(self, values: Values, *, clamp: bool = True) -> FloatArray:
        """Return the predictors of records, shape (records, p), in [-1, 1] if they are clamped to the box."""
        n_records = len(next(iter(values.values()))) if values else 0
        columns: list[FloatArray] = []
        for name in self.names:
            column, each = self.schema.columns[name], values[name]
            if column.is_categorical:
                columns += [np.where(each == level, 1.0, -1.0) for level in range(1, column.n_levels)]
                continue
            scale = Scale(column)
            low, high = scale.bounds
            if name in self.caps:
                high = float(scale.there(np.array([self.caps[name]]))[0])
            missing = np.isnan(each)
            placed = 2 * (scale.there(np.where(missing, float(column.lower or 0), each)) - low) / (high - low) - 1
            columns.append(np.where(missing, 0.0, np.clip(placed, -1, 1) if clamp else placed))
            if column.missing:
                columns.append(np.where(missing, 1.0, -1.0))
        return np.stack(columns, axis=1) if columns else np.zeros((n_records, 0))


def in_units(predictors: FloatArray) -> IntArray:
    """Return numbers in [-1, 1] as whole units; each by itself, so records stay apart."""
    return np.floor(np.clip(predictors, -1, 1) * UNITS + 0.5).astype(np.int64)
