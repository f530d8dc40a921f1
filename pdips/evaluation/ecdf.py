"""Distances of empirical distribution functions, column by column. For inside use only."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.coding import numbers
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.evaluation.codes import weights_of


@dataclass(frozen=True, kw_only=True)
class Ecdf:
    """Distances of the distribution functions of a synthetic set and the table.

    Attributes
    ----------
    largest, average : dict of str to float
        By column: largest absolute difference, from 0 to 1, and mean squared difference, both over the records of the
        two tables together.
    """

    largest: dict[str, float]
    average: dict[str, float]


def ecdf_distances(table: Table, frame: pd.DataFrame, *, weighted: bool = False) -> Ecdf:
    """Compare empirical distribution functions of each column.

    Parameters
    ----------
    table : Table
        The confidential table.
    frame : DataFrame
        A synthetic set of the same schema.
    weighted : bool
        Whether the functions are of the weights that the schema names.

    Returns
    -------
    Ecdf
        max-ECDF and avg-ECDF of each column.

    Raises
    ------
    InputError
        If the set has no records, a column is not in it or breaks the schema, or there are no weights.

    Notes
    -----
    Woo, Reiter, Oganian and Karr (2009), *Global measures of data utility for microdata masked for disclosure
    limitation*, Journal of Privacy and Confidentiality 1, as in section 4.3 of paper 004, which has one such column:
    differences are taken at every record of both tables. Numbers are compared as they are, levels in the order of the
    schema (by value if they are numbers), missing after all others. For levels without an order the distance depends on
    how the schema lists them; it is at most the total variation distance.
    """
    if not len(frame):
        raise InputError("a distribution function needs at least one record")
    schema = table.schema
    weights = tuple(weights_of(part, schema) for part in (table.frame, frame)) if weighted else (None, None)
    found = {name: distances(*_values(table, frame, name), *weights) for name in schema.columns}
    return Ecdf(
        largest={name: both[0] for name, both in found.items()}, average={name: both[1] for name, both in found.items()}
    )


def distances(
    original: FloatArray,
    synthetic: FloatArray,
    original_weights: FloatArray | None = None,
    synthetic_weights: FloatArray | None = None,
) -> tuple[float, float]:
    """Return the largest absolute and the mean squared difference of two distribution functions, over all records.

    Parameters
    ----------
    original, synthetic : ndarray of float64, shape (records,)
        Values; infinity is allowed, NaN is not.
    original_weights, synthetic_weights : ndarray of float64, shape (records,), optional
        Of the records.
    """
    points, place, n_here = np.unique(np.concatenate([original, synthetic]), return_inverse=True, return_counts=True)
    parts = ((place[: len(original)], original_weights), (place[len(original) :], synthetic_weights))
    shares = [np.bincount(at, weights, minlength=len(points)) for at, weights in parts]
    gap = np.cumsum(shares[0] / shares[0].sum() - shares[1] / shares[1].sum())
    return min(1.0, float(np.abs(gap).max())), float(n_here @ gap**2 / n_here.sum())


def _values(table: Table, frame: pd.DataFrame, name: str) -> tuple[FloatArray, FloatArray]:
    column = table.schema.columns[name]
    first, second = (ordered(part[name], name, column) for part in (table.frame, frame))
    return first, second


def ordered(values: "pd.Series[Any]", name: str, column: Column) -> FloatArray:
    """Return a column as numbers in order: levels by place or by value, missing as infinity."""
    if column.levels is None:
        found = numbers(name, values, column)
        return np.where(np.isnan(found), np.inf, found)
    places: list[float] = [float(level) for level in column.levels] if has_number_levels(column) else []
    places = places or [float(place) for place in range(column.n_values)]
    codes = Table(values.to_frame(), Schema(columns={name: column})).codes[name]
    return np.array([*places, np.inf])[codes]


def has_number_levels(column: Column) -> bool:
    """Whether all levels are numbers (true and false aren't)."""
    return column.levels is not None and all(
        isinstance(level, (int, float)) and not isinstance(level, bool) for level in column.levels
    )
