"""The records of a synthetic set that a question is about."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.coding import numbers
from pdips.data.schema import Records, Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.outside.cells import Missing
from pdips.outside.questions import ColumnValues, Expression, is_number


@dataclass(frozen=True, kw_only=True, eq=False)
class SetRecords:
    """The records of a synthetic set that a question is about.

    Parameters
    ----------
    schema : Schema
    values : mapping of str to ColumnValues
        Of each column that the question reads.
    complete : ndarray of bool, shape (records,)
        Which have all that is asked for.
    weight : str, optional
        The column that says how many members of the population a record stands for.
    """

    schema: Schema
    values: Mapping[str, ColumnValues]
    complete: BoolArray
    weight: str | None = None

    @classmethod
    def of(
        cls,
        frame: pd.DataFrame,
        schema: Schema,
        columns: Sequence[str],
        missing: Missing,
        weight: str | None = None,
    ) -> "SetRecords":
        """Return the records of a frame; ``missing`` says whether missing is a level
        of text.
        """
        if weight is not None:
            columns = [*dict.fromkeys([*columns, weight])]
        own = schema.without_person().model_copy(
            update={
                "columns": {name: schema.columns[name] for name in columns},
                "records": Records(),
                **dict.fromkeys(("impossible", "rule", "total"), ()),
            }
        )
        table = Table(frame[[*columns]].reset_index(drop=True), own)
        values = {}
        complete = np.ones(len(frame), dtype=bool)
        for name, column in own.columns.items():
            has_levels = column.is_categorical or column.is_binned
            codes = np.asarray(table.codes[name]) if has_levels else None
            own_numbers = None
            if is_number(column) and column.levels is not None and codes is not None:
                levels = [*column.levels, *([np.nan] if column.missing else [])]
                own_numbers = np.array(levels, dtype=np.float64)[codes]
            elif is_number(column):
                own_numbers = numbers(name, table.frame[name], column)
            if own_numbers is not None:
                complete &= ~np.isnan(own_numbers)
            elif column.missing and missing == "drop" and codes is not None:
                complete &= codes < column.n_levels - 1
            values[name] = ColumnValues(codes, own_numbers)
        return cls(schema=own, values=values, complete=complete, weight=weight)

    @property
    def weights(self) -> FloatArray:
        """The weight of each complete record; 1 without weights."""
        if self.weight is None:
            return np.ones(int(self.complete.sum()))
        return np.asarray(self.values[self.weight].numbers)[self.complete]

    def numbers(self, expression: Expression) -> FloatArray:
        """Return the number of each complete record."""
        values = expression.values(self.values)
        if expression.is_levels:
            (_, terms) = expression.terms(self.values)
            values = terms[:, 0]
        if not np.isfinite(values[self.complete]).all():
            raise InputError(
                f"{expression.text!r} isn't finite for all numbers between the bounds "
                f"of the schema: add a number first, as in log(wage + 1)"
            )
        return values[self.complete]

    def with_numbers(self, numbers: Mapping[str, FloatArray]) -> "SetRecords":
        """Return the records with other numbers in some columns."""
        values = dict(self.values)
        for name, others in numbers.items():
            values[name] = replace(values[name], numbers=others)
        return replace(self, values=values)

    def capped(self, caps: Mapping[str, tuple[float, float]]) -> "SetRecords":
        """Return the records with numbers beyond their caps moved to these."""
        moved = dict[str, FloatArray]()
        for name, values in self.values.items():
            if name in caps and values.numbers is not None:
                moved[name] = np.clip(values.numbers, *caps[name])
        return self.with_numbers(moved)

    def groups(self, by: Sequence[str]) -> Iterator[BoolArray]:
        """Yield which complete records are of each group."""
        sizes = [self.schema.columns[name].n_levels for name in by]
        for levels in product(*map(range, sizes)):
            is_member = np.ones(int(self.complete.sum()), dtype=bool)
            for name, level in zip(by, levels, strict=True):
                codes: IntArray = np.asarray(self.values[name].codes)
                is_member &= codes[self.complete] == level
            yield is_member


def basis_of(sets: Sequence[SetRecords], rule: str) -> str:
    """Return what is said of how sets are combined."""
    return f"{len(sets)} sets, combined by the rule {rule!r}"
