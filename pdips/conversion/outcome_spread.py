"""Made-up values of an outcome that stand for its bounds: what automatic priors and
stateful transforms read in place of records.
"""

from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.column import Column
from pdips.errors import InputError
from pdips.posterior.model import PUBLIC_SEED

MOST_LEVELS = 1000
"""Of an outcome with bounds that is read as levels."""


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
