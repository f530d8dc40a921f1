"""Distances of distribution functions. For inside use only."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.evaluation.encoding import (
    values_of,
    weights_of,
)


@dataclass(frozen=True, kw_only=True)
class Ecdf:
    """Largest absolute and mean squared difference of the distribution functions, by
    column, over all records.
    """

    largest: dict[str, float]
    average: dict[str, float]


def ecdf_distances(
    table: Table, frame: pd.DataFrame, *, weighted: bool = False
) -> Ecdf:
    """Compare empirical distribution functions of each column.

    Parameters
    ----------
    table, frame : Table and DataFrame
        The confidential table, and a synthetic set of its schema.
    weighted : bool
        Whether the functions are of the weights that the schema names.

    Raises
    ------
    InputError
        If the set has no records, a column is not in it or breaks the schema, or there
        are no weights.

    Notes
    -----
    Woo, Reiter, Oganian and Karr (2009): differences are taken at every record of both
    tables. Numbers are compared as they are, levels in the order of the schema (by
    value if they are numbers), missing after all others. For levels without an order
    the distance depends on how the schema lists them; it is at most the total variation
    distance.

    Examples
    --------
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, _ = Margins(epsilon=1, n_sets=2).release(table)
    >>> 0 <= ecdf_distances(table, release.sets[0]).largest["age"] <= 1
    True
    """
    if not len(frame):
        raise InputError("a distribution function needs at least one record")
    schema = table.schema
    ours = None
    theirs = None
    if weighted:
        ours = weights_of(table.frame, schema)
        theirs = weights_of(frame, schema)
    distance = Ecdf(largest={}, average={})
    for name, column in schema.columns.items():
        original = values_of(table.frame, name, column)
        synthetic = values_of(frame, name, column)
        largest, average = distances(
            _with_missing_last(original), _with_missing_last(synthetic), ours, theirs
        )
        distance.largest[name] = largest
        distance.average[name] = average
    return distance


def _with_missing_last(values: FloatArray) -> FloatArray:
    return np.where(np.isnan(values), np.inf, values)


def distances(
    original: FloatArray,
    synthetic: FloatArray,
    original_weights: FloatArray | None = None,
    synthetic_weights: FloatArray | None = None,
) -> tuple[float, float]:
    """Return the largest absolute difference of two distribution functions at all
    records, and the mean squared one.
    """
    _, place, n_here = np.unique(
        np.concatenate([original, synthetic]), return_inverse=True, return_counts=True
    )
    n_points = len(n_here)
    in_original, in_synthetic = np.split(place, [len(original)])
    ours = np.bincount(in_original, original_weights, minlength=n_points)
    theirs = np.bincount(in_synthetic, synthetic_weights, minlength=n_points)
    gap = np.cumsum(ours / ours.sum() - theirs / theirs.sum())
    average = float(n_here @ gap**2 / n_here.sum())
    return min(1.0, float(np.abs(gap).max())), average
