"""The intervals of numbers that a release counted, or their bins: where a number is
within one, nothing told.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, FloatArray
from pdips.release.folder import read_tables
from pdips.release.opening import PublishedRelease

ZERO_ALONE = 1e-3  # of a column's range: 0 is counted in an interval of its own


def is_zero_alone(low: FloatArray, high: FloatArray, whole: float) -> BoolArray:
    """Return which intervals are that of 0 alone."""
    return np.asarray((low == 0) & (high <= ZERO_ALONE * whole), dtype=bool)


@dataclass(frozen=True, eq=False)
class CountedIntervals:
    """The intervals of a column that were counted, layer by layer.

    Parameters
    ----------
    layers : sequence of tuple of ndarray
        The lower and the upper ends of each layer's intervals, in order.
    is_whole : bool
        Whether the column has whole numbers, of which none is at an upper end.

    Examples
    --------
    >>> ten = (np.array([0.0, 10]), np.array([10.0, 20]))
    >>> two = (np.array([10.0, 15]), np.array([15.0, 20]))
    >>> found = CountedIntervals((ten, two), is_whole=False)
    >>> [end.tolist() for end in found.ends(np.array([3.0, 12]))]
    [[0.0, 10.0], [10.0, 15.0]]
    """

    layers: Sequence[tuple[FloatArray, FloatArray]]
    is_whole: bool

    def ends(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the least and the largest number of the narrowest interval around each
        value; NaN where it is missing.
        """
        low = values.copy()
        high = values.copy()
        for lower, upper in self.layers:
            last = np.searchsorted(lower, values, side="right") - 1
            interval = np.maximum(last, 0)
            # the upper bound of a column is an interval by itself
            ends_there = (
                values < np.maximum(upper, np.nextafter(lower, np.inf))[interval]
            )
            is_inside = (last >= 0) & ends_there
            low = np.where(is_inside, lower[interval], low)
            high = np.where(is_inside, upper[interval], high)
        if self.is_whole:
            high = np.maximum(high - 1, low)
        lower, upper = self.layers[0]
        whole = float(upper[-1] - lower[0])
        return low, np.where(is_zero_alone(low, high, whole), low, high)


def counted_intervals(public: PublishedRelease) -> dict[str, CountedIntervals]:
    """Return the counted intervals of each number without bins, and the bins of those
    with; none where a release counted neither.
    """
    schema = public.privacy.table_schema
    found = dict[str, CountedIntervals]()
    counted = {
        name
        for law in public.privacy.margins
        for axis in law.axes
        for name in axis.columns
    }
    for name, column in schema.columns.items():
        if name in counted and column.is_binned and not column.is_categorical:
            ends = np.array(column.edges, dtype=np.float64)
            whole = bool(column.integer)
            layer = ends[:-1], ends[1:]
            found[name] = CountedIntervals([layer], is_whole=whole)
    _, tables = read_tables(public.home, "intervals")
    if "intervals" not in tables:
        return found
    rows = tables["intervals"].dropna(subset=["lower", "upper"])
    for label, own in rows.groupby("column", sort=False):
        layers = [_ends(layer) for _, layer in own.groupby("layer")]
        whole = bool(schema.columns[str(label)].integer)
        found[str(label)] = CountedIntervals(layers, is_whole=whole)
    return found


def _ends(layer: pd.DataFrame) -> tuple[FloatArray, FloatArray]:
    ordered = layer.sort_values("lower")
    lower, upper = (ordered[end].to_numpy(np.float64) for end in ("lower", "upper"))
    return lower, upper
