"""What a model reads: the columns of a table as PyMC data, or stand-ins for them that need no table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.data.coding import numbers
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError

Values = Mapping[str, NDArray[Any]]

SUFFIX = "_data"
"""A column ``wage`` is the ``pm.Data`` called ``wage_data`` in the model that reads it."""

READING = ("get_value", "eval")
"""Methods of a variable that hand out its value."""

RECORD = "record"
"""The dimension that numbers records; it is there as soon as a column is read."""

GOLDEN = (5**0.5 - 1) / 2
ENDS = (0.0, 1.0)


class Columns(Mapping[str, Any]):
    """The columns that a model may read, each a ``pm.Data`` of one value a record, made when it is first read.

    ``columns["wage"]`` is a vector of doubles in the unit of the schema; that of an integer column holds whole numbers;
    that of a column with levels their codes, 0 for the first one, and the number of levels for a missing value.
    ``columns.matrix(["a", "b"])`` puts several side by side, shape (records, columns).

    Parameters
    ----------
    schema : Schema
        What is public about the columns; ``columns.schema``.
    values : mapping of str to ndarray, shape (records,)
        See :func:`record_values` and :func:`stand_ins`.

    Notes
    -----
    A model reads symbols, not records, so nothing outside its graph can depend on them: neither a prior nor a constant
    worked out beforehand. Inside :meth:`unread` a column's ``get_value`` and ``eval`` say so.
    """

    def __init__(self, schema: Schema, values: Values) -> None:
        self.schema = schema
        self._values = values
        self._made: dict[str, Any] = {}
        self._locked = False

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise InputError(f"the model reads column {name!r}, which the schema doesn't have")
        try:
            model = pm.modelcontext(None)
        except TypeError:
            raise InputError(f"the model must read data[{name!r}] inside its `with pm.Model()` block") from None
        known = model.named_vars.get(name + SUFFIX)
        if known is None:
            known = self._made[name] = pm.Data(name + SUFFIX, self._values[name])
            if RECORD not in (*model.coords, *model.named_vars, *self._values):
                model.add_coord(RECORD, length=known.shape[0])
            if self._locked:
                _lock(known, name)
        return known

    @contextmanager
    def unread(self) -> Iterator[None]:
        """Refuse to hand out the values of columns while a model is built."""
        self._locked = True
        try:
            yield
        finally:
            self._locked = False
            for variable in self._made.values():
                for method in READING:
                    vars(variable).pop(method, None)

    def check_names(self, model: pm.Model) -> None:
        """Refuse data of a model's own that are called as a column's are."""
        for name in self._values:
            held = model.named_vars.get(name + SUFFIX)
            if held is not None and held is not self._made.get(name):
                raise InputError(
                    f"the model makes a variable {name + SUFFIX!r} of its own, which is what the data of column "
                    f"{name!r} are called; give it another name, or read data[{name!r}]"
                )

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Columns({list(self._values)})"

    @property
    def n_records(self) -> int:
        """How many records there are: for shapes of observed variables, never for priors."""
        return len(next(iter(self._values.values())))

    def matrix(self, names: Sequence[str]) -> Any:
        """Return several columns side by side, shape (records, columns)."""
        return pt.stack([self[name] for name in names], axis=1)


def _lock(variable: Any, name: str) -> None:
    """Make a column refuse to hand out its values; PyMC itself asks for none while a model is built."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise InputError(
            f"the model asks for the values of data[{name!r}], by get_value() or eval(), and is built on stand-ins "
            f"before a record is read: what comes is no record's value. Use data[{name!r}] in the formula itself, and "
            f"public numbers to standardise it, such as the bounds in schema.columns[{name!r}]"
        )

    for method in READING:
        setattr(variable, method, refuse)


def record_values(table: Table, names: Iterable[str] | None = None) -> dict[str, NDArray[Any]]:
    """Return the columns of a table as models read them, one value a row; values collapse to the schema's resolution.

    Parameters
    ----------
    table : Table
        The confidential table.
    names : iterable of str, optional
        Which columns; left out, all.

    Raises
    ------
    InputError
        If a numeric column may have missing values, which PyMC would impute.
    """
    columns = table.schema.columns
    return {name: _values(name, columns[name], table) for name in (columns if names is None else names)}


def _values(name: str, column: Column, table: Table) -> NDArray[Any]:
    check_column(name, column)
    if column.is_categorical:
        return table.codes[name]
    known = numbers(name, table.frame[name], column)
    return known.astype(np.int64) if column.integer else collapse(known, column) + 0.0  # one zero, not two


def check_column(name: str, column: Column) -> None:
    """Refuse a column that no model can take as it is."""
    if column.missing and not column.is_categorical:
        raise InputError(
            f"column {name!r} may have missing values, and PyMC would impute them record by record; give the column "
            "levels or use a histogram mechanism"
        )


def collapse(values: FloatArray, column: Column) -> FloatArray:
    """Move each value to the middle of its cell of the column's resolution, if it has one."""
    if column.resolution is None:
        return values
    lower, upper = float(column.lower or 0), float(column.upper or 0)
    n_cells = int(np.ceil((upper - lower) / column.resolution))
    cell = np.clip(np.floor((values - lower) / column.resolution), 0, n_cells - 1)
    left, right = lower + cell * column.resolution, np.minimum(lower + (cell + 1) * column.resolution, upper)
    middle: FloatArray = (left + right) / 2
    return middle


def stand_ins(
    schema: Schema, n: int, *, known: Values | None = None, end: int | None = None
) -> dict[str, NDArray[Any]]:
    """Return ``n`` records made from the schema alone, values of all columns spread over their levels or bounds.

    The first two have the lower and the upper end of every column.

    Parameters
    ----------
    schema : Schema
        Whose columns to fill.
    n : int
        Number of records.
    known : mapping of str to ndarray, optional
        Columns to take as they are, such as public ones.
    end : {0, 1}, optional
        Put all records at the lower or at the upper end instead.
    """
    found: dict[str, NDArray[Any]] = {}
    for place, (name, column) in enumerate(schema.columns.items()):
        share = ((np.arange(n) + 0.5) * GOLDEN ** (1 + place % 3) + place * 0.17) % 1
        share[: len(ENDS)] = ENDS[:n]
        share = share if end is None else np.full(n, ENDS[end])
        found[name] = known[name] if known and name in known else _spread(column, share)
    return found


def bounds_of(column: Column) -> tuple[float, float]:
    """Return the least and the greatest value that a model may read: of codes where a column has levels."""
    if column.is_categorical:
        return 0.0, column.n_levels - 1.0
    return float(column.lower or 0), float(column.upper or 0)


def _spread(column: Column, share: NDArray[Any]) -> NDArray[Any]:
    if column.is_categorical:
        return np.minimum((share * column.n_levels).astype(np.int64), column.n_levels - 1)
    lower, upper = bounds_of(column)
    spread = lower * (upper / lower) ** share if column.scale == "log" else lower + (upper - lower) * share
    return np.floor(spread).astype(np.int64) if column.integer else spread


def distinct(values: Values, counts: IntArray | None) -> tuple[dict[str, NDArray[Any]], IntArray]:
    """Return the distinct records in sorted order, and how many records each stands for.

    Parameters
    ----------
    values : mapping of str to ndarray, shape (rows,)
        Columns.
    counts : ndarray of int64, shape (rows,), or None
        How many records each row stands for; None for one each.
    """
    keys = [pd.Series(column, name=name) for name, column in values.items()]
    each = pd.Series(np.ones(len(keys[0]), dtype=np.int64) if counts is None else counts)
    grouped = each.groupby(keys, sort=True).sum()
    kept = grouped.index.to_frame(index=False)
    return {name: kept[name].to_numpy() for name in values}, grouped.to_numpy(dtype=np.int64)
