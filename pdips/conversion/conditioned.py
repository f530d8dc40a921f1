"""A model that is conditioned on the table itself, looked at as it is: its author says
in writing that its constants are public.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pdips.conversion.builds import generators_of
from pdips.conversion.leaves import (
    Build,
    evaluated,
    held,
    is_whole,
    roots_of,
    without_random,
)
from pdips.conversion.matching import ColumnExpression, product_of, reading_of
from pdips.conversion.moving import STATISTICS
from pdips.conversion.only_readings import (
    is_only_public,
    is_only_reading,
    is_typed,
    may_be_product,
    may_be_read,
    parts_of,
    typed_form,
)
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.posterior.columns import (
    Values,
    bounds_of,
    model_columns,
    public_names,
    record_values,
)
from pdips.posterior.model_checks import check_no_series, parameter_shapes

UNSURE = (
    "the model holds an array that agrees with more than one column of the table, or "
    "function of one, or nearly so: which of them the model reads would follow from "
    "the records. Hand over the function that makes the model, make(df), which is "
    "called with made-up records"
)
# Share up to which a constant is a statistic of a column
SAME = 1e-12
# Digits of a number that people type, whatever the records are
FEW_DIGITS = 3


@dataclass(frozen=True, eq=False)
class Conditioned:
    """A ``pm.Model`` and the table that it is conditioned on, with what
    :class:`pdips.conversion.builds.Builds` tells of a function that makes one.

    Parameters
    ----------
    model : pymc.Model
        With observed variables.
    table : Table
        Their records, in the order in which the model has them.
    """

    model: pm.Model = field(repr=False)
    table: Table
    name: str = "the model"

    @property
    def schema(self) -> Schema:
        return self.table.schema

    @property
    def n(self) -> int:
        return self.table.n_records

    @cached_property
    def columns(self) -> dict[str, Column]:
        return model_columns(self.schema)

    @cached_property
    def public_values(self) -> Values:
        return record_values(self.table, public_names(self.schema))

    @cached_property
    def values(self) -> Values:
        names = [name for name, column in self.columns.items() if not column.public]
        return record_values(self.table, names)

    @property
    def other_values(self) -> Values:
        return self.values

    @cached_property
    def first(self) -> Build:
        if not self.model.observed_RVs:
            raise InputError(
                "the model has no observed variable: give one observed=df[...], or "
                "condition it by pm.observe"
            )
        check_no_series(self.model)
        return Build.of(self.model)

    @property
    def subsets(self) -> dict[Any, NDArray[np.int64]]:
        return {}

    def selects(self, variable: Any, array: NDArray[Any]) -> bool:
        """False: what selects records can't be told from one model."""
        return False

    def places_in(self, variable: Any, array: NDArray[Any]) -> None:
        """None: frames in long form can't be told from one model."""

    @property
    def numbering(self) -> list[Any]:
        """Nothing, for the same reason."""
        return []

    def rows(self, variable: Any, length: int) -> NDArray[np.int64] | None:
        """Return all records where there is an entry of each, otherwise None."""
        return np.arange(self.n) if length == self.n else None

    def axis_of(self, array: NDArray[Any]) -> int | None:
        """Return the axis that is as long as the table."""
        axes = [axis for axis, size in enumerate(array.shape) if size == self.n]
        if len(axes) > 1:
            raise InputError(
                "the model holds a matrix with a row and a column for each record, "
                "such as a covariance of records: no record has a term of its own; "
                "take pm.gp.HSGP in place of pm.gp.Latent or pm.gp.Marginal"
            )
        return axes[0] if axes else None

    @cached_property
    def observed(self) -> list[tuple[Any, NDArray[Any], NDArray[Any]]]:
        variables = self.model.observed_RVs
        values = [self.model.rvs_to_values[variable] for variable in variables]
        arrays = evaluated(values, on_records=True)
        return list(zip(variables, arrays, arrays, strict=True))

    @cached_property
    def confidential(self) -> list[tuple[Any, NDArray[Any], NDArray[Any], int]]:
        self._check_labels()
        found = []
        for leaf in self.first.leaves:
            array = held(leaf)
            axis = self.axis_of(array)
            self._check_statistic(leaf, array)
            if axis is None:
                continue
            by_entry = np.moveaxis(array, axis, 0).reshape(self.n, -1).T
            readings = list(self._readings(by_entry))
            if readings:
                self._check_typed(self.first.named(leaf), readings)
                found.append((leaf, array, array, axis))
        return found

    def _readings(self, by_entry: NDArray[Any]) -> Iterator[ColumnExpression]:
        """Yield the readings of confidential columns among numbers of all records."""
        for numbers in by_entry:
            reading = self.reading(numbers)
            if reading is not None:
                yield reading

    def reading(self, numbers: NDArray[Any]) -> ColumnExpression | None:
        """Return which function of which confidential column numbers of all records
        are; None if they are public, or no known function.

        What the model is mustn't depend on records: numbers that could be something
        else, if the records of one person were others, are refused.

        Raises
        ------
        InputError
            If they agree with more than one column or function.
        """
        if numbers.dtype.kind not in "biuf" or not np.isfinite(numbers).all():
            return None
        public = self.public_values
        values = {**public, **self.values}
        # a person's records go and others come
        parts = parts_of(numbers, values, self.schema.records.max_per_person)
        if self._is_public(numbers):
            is_read = may_be_read(numbers, self.values, self.columns, parts)
            if is_read or not is_only_public(numbers, public, self.columns, parts):
                raise InputError(UNSURE)
            return None
        reading = reading_of(numbers, self.values, self.columns)
        if reading is None:
            return None
        typed = typed_form(reading)
        if typed is None:
            return reading  # which is refused for its digits
        is_only = is_only_reading(typed, numbers, values, self.columns, parts)
        if not is_only or may_be_product(numbers, public, self.columns, parts):
            raise InputError(UNSURE)
        return typed

    def _is_public(self, numbers: NDArray[Any]) -> bool:
        """Whether numbers are one number for all, or a known function of public
        columns.
        """
        if np.ptp(numbers.astype(np.float64)) == 0:
            return True
        return any(
            find(numbers, self.public_values, self.columns) is not None
            for find in (reading_of, product_of)
        )

    def _check_typed(self, name: str, readings: Sequence[ColumnExpression]) -> None:
        """Refuse a column scaled by numbers that nobody types."""
        for reading in readings:
            slope_is_typed = is_typed(reading.slope) or is_typed(1 / reading.slope)
            shift_is_typed = is_typed(reading.offset) or is_typed(
                -reading.offset / reading.slope
            )
            by_code = reading.by_code or ()
            codes_are_typed = all(map(is_typed, by_code))
            if not (slope_is_typed and shift_is_typed and codes_are_typed):
                raise InputError(
                    f"{name!r} reads column {reading.column!r} scaled by numbers with "
                    f"many digits, which look worked out of the records, such as "
                    f"their mean: write round public ones"
                )
            self._check_order(name, reading)
            self._check_center(name, reading)

    def _check_center(self, name: str, reading: ColumnExpression) -> None:
        """Refuse a column that is centered at a statistic of the records, though
        people could have typed the number.
        """
        column = self.columns[reading.column]
        if not reading.is_affine or reading.is_column or column.is_categorical:
            return
        center = -reading.offset / reading.slope
        # a number of few digits is as likely to be typed
        if center in bounds_of(column) or float(f"{center:.{FEW_DIGITS}g}") == center:
            return
        for statistic, (function, _) in STATISTICS.items():
            value = float(function(self.values[reading.column]))
            if np.isclose(center, value, rtol=SAME, atol=0):
                raise InputError(
                    f"{name!r} reads column {reading.column!r} less its {statistic}, "
                    f"which is confidential: write a round public number in its place"
                )

    def _check_order(self, name: str, reading: ColumnExpression) -> None:
        """Refuse codes of levels that may follow the order in which records have
        them.
        """
        column = self.columns[reading.column]
        if not column.is_categorical or reading.function != "itself":
            return
        codes = np.arange(column.n_values) * reading.slope + reading.offset
        if reading.by_code is not None:
            codes = np.array(reading.by_code[: column.n_values])
        ranks = np.argsort(np.argsort(column.names()[: column.n_values]))
        orders = (np.arange(column.n_values), ranks)
        is_numbering = np.array_equal(np.sort(codes), np.arange(column.n_values))
        is_known = any(np.array_equal(codes, order) for order in orders)
        if is_numbering and not is_known and column.n_values > 2:
            raise InputError(
                f"{name!r} reads codes of {reading.column!r} that follow neither the "
                f"schema's order of levels nor the alphabet, and so may follow the "
                f"order of records: take pd.Categorical, or factorize(sort=True)"
            )

    def _check_labels(self) -> None:
        """Refuse labels that are levels in an order that may be that of records, or of
        which some are left out.
        """
        for dim, labels in self.model.coords.items():
            if dim in self.record_dims or labels is None:
                continue
            words = [*map(str, labels)]
            for name, column in self.columns.items():
                if not column.is_categorical:
                    continue
                levels = [*map(str, column.levels or ())]
                if not {*words} <= {*levels}:
                    continue
                here = [level for level in levels if level in words]
                in_order = words in (here, sorted(words))
                if not in_order or (not column.public and len(here) < len(levels)):
                    raise InputError(
                        f"the labels of dim {dim!r} are levels of {name!r} in an order "
                        f"or a selection that may follow from records: take those of "
                        f"the schema, or of pd.Categorical"
                    )

    def _check_statistic(self, leaf: Any, array: NDArray[Any]) -> None:
        """Refuse a constant that is a mean or the like of a confidential column."""
        if array.size != 1 or array.dtype.kind != "f":
            return
        number = float(array.ravel()[0])
        if is_typed(number):
            return
        for name, values in self.values.items():
            for statistic, (function, _) in STATISTICS.items():
                if np.isclose(number, float(function(values)), rtol=SAME, atol=0):
                    raise InputError(
                        f"{self.first.named(leaf)!r} holds the {statistic} of column "
                        f"{name!r}, which is confidential: write a public number in "
                        f"its place"
                    )

    @cached_property
    def constants(self) -> list[tuple[Any, NDArray[Any], int | None]]:
        roots = roots_of(self.model)
        leaves = [leaf for leaf, *_ in self.confidential]
        front, _ = without_random(roots, [*leaves, *generators_of(roots)])
        arrays = evaluated(front, on_records=True)
        return [
            (each, array, self.axis_of(array))
            for each, array in zip(front, arrays, strict=True)
        ]

    @cached_property
    def sizes(self) -> dict[Any, NDArray[np.int64]]:
        found = {}
        for variable, array, axis in self.constants:
            if is_whole(variable) and axis is None and array.ndim < 2:
                is_size = array == self.n
                if is_size.any():
                    found[variable] = is_size.astype(np.int64)
        return found

    @cached_property
    def latents(self) -> list[Any]:
        """The free variables with as many entries as there are records."""
        shapes = parameter_shapes(self.model)
        return [
            variable
            for variable in self.model.free_RVs
            if self.n in shapes[variable.name]
        ]

    @cached_property
    def record_dims(self) -> set[str]:
        lengths = {}
        for dim, length in self.model.dim_lengths.items():
            labels = self.model.coords.get(dim)
            lengths[dim] = int(length.eval()) if labels is None else len(labels)
        return {dim for dim, length in lengths.items() if length == self.n}
