"""Frames on which a model is built before a record is read: public columns as they are,
confidential ones made up from the schema. Of a formula the outcome is spread over its
bounds, for automatic priors read it.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.arrays import FloatArray
from pdips.data.schema import Column, Schema, has_number_levels
from pdips.data.table import Table, level_array, number_array
from pdips.errors import InputError
from pdips.posterior.columns import (
    MISSING,
    Values,
    bounds_of,
    collapse,
    model_columns,
    public_values,
)
from pdips.posterior.model import PUBLIC_SEED

# Records of a frame of a table without public columns: enough that each column with
# levels has all of them
FEWEST = 240
MOST = 5_000
FOR_EACH_LEVEL = 4
# Share of the distance of a column's bounds up to which values are spread that stay
INNER = 0.95
# The same of values that others change to
LOW = 0.4
# Levels of an outcome with bounds that is read as levels
MOST_LEVELS = 1000


@dataclass(frozen=True, eq=False)
class MadeUp:
    """Records for building a model: the public columns of a table, sorted, beside
    confidential ones that the schema alone decides.

    Parameters
    ----------
    schema : Schema
        With the columns that are public marked so.
    public : Table or None
        The public part of the table (:meth:`pdips.data.table.Table.public_part`); None
        where no column is public.
    """

    schema: Schema
    public: Table | None

    @cached_property
    def n(self) -> int:
        """Number of records: the table's where columns are public, so that it is known
        anyway.
        """
        if self.public is not None:
            return self.public.n_records
        levels = [
            column.n_levels
            for column in self.schema.columns.values()
            if column.is_categorical
        ]
        wanted = FOR_EACH_LEVEL * max(levels, default=0)
        return min(max(FEWEST, wanted), MOST)

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns as models read them."""
        return model_columns(self.schema)

    @cached_property
    def confidential(self) -> tuple[str, ...]:
        """Names of the columns that are made up."""
        return tuple(name for name, column in self.columns.items() if not column.public)

    @cached_property
    def public_values(self) -> Values:
        """The public columns as models read them, one value a record."""
        return {} if self.public is None else public_values(self.public)

    def values(self, number: int) -> dict[str, NDArray[Any]]:
        """Return made-up values of the confidential columns, as models read them: codes
        of levels, numbers in the unit of the schema; other ones for each ``number``.
        """
        rng = np.random.default_rng([PUBLIC_SEED, number])
        # records that change hold the extremes, and change to lower values, so that
        # extremes, means, quantiles and shares change too
        ends = np.tile([[1 - INNER], [INNER]], self.n)
        if number == 0:
            ends[:, 1::2] = [[0.0], [1.0]]
        else:
            ends[1] = LOW
        return {
            name: _made_up(self.columns[name], ends, rng) for name in self.confidential
        }

    @cached_property
    def permuted(self) -> NDArray[np.int64]:
        """The records in another order, in which the levels of public columns appear
        as before: codes may follow the order in which they do.
        """
        starts = {0, self.n}
        for name, column in self.columns.items():
            if column.public and column.is_categorical:
                _, first = np.unique(self.public_values[name], return_index=True)
                starts.update(map(int, first))
                starts.update(map(int, first + 1))
        rng = np.random.default_rng(PUBLIC_SEED)
        parts = []
        for start, end in itertools.pairwise(sorted(starts)):
            parts.append(rng.permutation(np.arange(start, end)))
        return np.concatenate(parts)

    def frame(self, values: Values, rows: NDArray[np.int64] | None = None) -> Any:
        """Return a frame as an analyst's code expects it: levels as the schema spells
        them, numbers as numbers, public columns as they are.

        ``rows`` repeats some of the records.
        """
        cells = {}
        for name, column in self.schema.columns.items():
            if column.public and self.public is not None:
                cells[name] = self.public.spelt(name)
            else:
                cells[name] = _spelt(column, values[name])
            if name + MISSING in self.columns:
                cells[name + MISSING] = self._whether_missing(name + MISSING, values)
        frame = pd.DataFrame(cells)
        return frame if rows is None else frame.take(rows).reset_index(drop=True)

    def spellings(self, name: str) -> list[Callable[[NDArray[Any]], NDArray[Any]]]:
        """Return the ways in which a confidential column may stand in a model: as
        models read it, and levels that are numbers as these.
        """
        column = self.columns[name]
        found: list[Callable[[NDArray[Any]], NDArray[Any]]] = [np.asarray]
        if column.is_categorical and has_number_levels(column) and not column.missing:
            levels = np.array([float(level) for level in column.levels or ()])
            found.append(lambda codes: levels[codes])
        return found

    def _whether_missing(self, name: str, values: Values) -> Any:
        return self.public_values[name] if name in self.public_values else values[name]


def _made_up(
    column: Column, ends: FloatArray, rng: np.random.Generator
) -> NDArray[Any]:
    """Return values spread over a column's levels, each there if records suffice, or
    between shares of the distance of its bounds, shape (2, records).
    """
    n = ends.shape[1]
    if column.is_categorical:
        codes = rng.permutation(np.arange(n) % column.n_levels)
        low = rng.integers(column.n_levels, size=n)
        return np.asarray(np.where(ends[1] == LOW, np.minimum(codes, low), codes))
    lower, upper = bounds_of(column)
    even = (rng.permutation(n) + rng.uniform(0.25, 0.75, n)) / n
    share = ends[0] + (ends[1] - ends[0]) * even
    if column.scale == "log":
        values = lower * (upper / lower) ** share
    else:
        values = lower + (upper - lower) * share
    if column.integer:
        return np.asarray(np.rint(values), dtype=np.int64)
    return np.asarray(collapse(values, column))


def _spelt(column: Column, values: NDArray[Any]) -> Any:
    """Return values as the schema spells them."""
    if column.is_categorical:
        return level_array(column).take(values)
    return number_array(column, np.asarray(values, dtype=np.float64))


def refuse_too_few(made_up: MadeUp) -> None:
    """Refuse fewer public records than a confidential column has levels: a model would
    be built without some of them.
    """
    for name in made_up.confidential:
        column = made_up.columns[name]
        if column.is_categorical and column.n_levels > made_up.n:
            raise InputError(
                f"column {name!r} has more levels than the table has records, so a "
                f"model can't be built with all of them: merge levels in the schema"
            )


def even_spread(column: Column, n: int) -> FloatArray:
    """Return n values with the mean and the standard deviation of an even distribution
    between the bounds of a column, on its scale.

    On the linear scale these are ``(lower + upper) / 2`` and ``(upper - lower) /
    sqrt(12)``, for every n above 1. Values of integer columns are rounded afterwards.

    Examples
    --------
    >>> even_spread(Column(lower=0, upper=12), 1000).std().round(6)
    np.float64(3.464102)
    """
    lower = float(column.lower or 0)
    upper = float(column.upper or 0)
    is_log = column.scale == "log"
    if is_log:
        lower = float(np.log(lower))
        upper = float(np.log(upper))
    # n points at equal distances from -1 to 1 have a variance of (n + 1) / (n - 1) / 3
    half = (upper - lower) / 2 * np.sqrt((n - 1) / (n + 1))
    values = np.asarray((lower + upper) / 2 + half * np.linspace(-1, 1, n))
    if is_log:
        values = np.exp(values)
    return np.asarray(np.rint(values)) if column.integer else values


def spread_outcome(column: Column, n: int, levels: list[Any] | None = None) -> Any:
    """Return n made-up values of an outcome: an even spread between its bounds, or all
    levels equally often.

    Parameters
    ----------
    column : Column
        Of the schema.
    n : int
        Number of records.
    levels : list, optional
        In the model's order, of an outcome that is read as levels rather than numbers.

    Examples
    --------
    >>> ill = Column(levels=["no", "yes"])
    >>> spread_outcome(ill, 3, ["no", "yes"]).tolist()
    ['no', 'yes', 'no']
    """
    if levels is None and column.levels is None:
        return even_spread(column, n)
    all_levels = outcome_levels(column) if levels is None else levels
    if n < len(all_levels):
        raise InputError(
            "a formula needs at least as many records as the outcome levels"
        )
    repeated = [all_levels[record % len(all_levels)] for record in range(n)]
    return coded_outcome(repeated, levels)


def spread_covariate(column: Column, n: int, number: int) -> Any:
    """Return n made-up values of a confidential covariate, as :func:`spread_outcome`
    does, in an order of their own.

    Parameters
    ----------
    column : Column
        Of the schema.
    n : int
        Number of records.
    number : int
        Of the covariate: two of other numbers have other orders.

    Examples
    --------
    >>> sorted(spread_covariate(Column(lower=0, upper=3, integer=True), 4, 1).tolist())
    [0.0, 1.0, 2.0, 3.0]
    """
    values = np.asarray(spread_outcome(column, n))
    return values[np.random.default_rng([PUBLIC_SEED, number]).permutation(n)]


def coded_outcome(values: Any, levels: list[Any] | None) -> Any:
    """Return values of an outcome as Bambi reads them: levels in the model's order, or
    numbers.

    Examples
    --------
    >>> coded_outcome([True, False], None)
    array([1, 0])
    """
    if levels is not None:
        coded = pd.Categorical(values, categories=levels, ordered=True)
        if (coded.codes < 0).any():
            raise InputError("the outcome has a value that is no level of the schema")
        return coded
    numbers = np.asarray(values)
    return numbers.astype(int) if numbers.dtype == bool else numbers


def outcome_levels(column: Column) -> list[Any]:
    """Return the levels of an outcome: those of the schema, or the whole numbers
    between its bounds.

    Examples
    --------
    >>> outcome_levels(Column(lower=1, upper=4, integer=True))
    [1, 2, 3, 4]
    """
    if column.levels is not None:
        return [*column.levels]
    lower = float(column.lower or 0)
    upper = float(column.upper or 0)
    if not column.integer or upper - lower >= MOST_LEVELS:
        raise InputError(
            "this family needs an outcome with levels, or an integer column of at most "
            f"{MOST_LEVELS} values"
        )
    return [*range(int(lower), int(upper) + 1)]
