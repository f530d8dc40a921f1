"""Distances of distributions on a line: distribution functions, and the Wasserstein randomization test. Inside only."""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.coding import numbers
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.evaluation.encoding import ColumnPair, TableLike, complete, indicators, paired, weights_of

Distance = Callable[[BoolArray], float]
"""The distance of two parts of the records, given which belong to the first."""

DISTANCES = ("pooled", "columns", "sliced")
N_PROJECTIONS = 50


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
    found = {
        name: distances(*(ordered(part[name], name, column) for part in (table.frame, frame)), *weights)
        for name, column in schema.columns.items()
    }
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


# ---- Wasserstein randomization ----


@dataclass(frozen=True, kw_only=True)
class WassersteinTest:
    """A distance of two tables against the distances of random re-splits of their records.

    Attributes
    ----------
    distance : float
        Between the original and the synthetic table: for ``"pooled"`` in the unit of the data, else without one.
    median : float
        Of the distances of re-splits.
    ratio : float
        ``distance / median``, what paper 002 prints as WRT: about 1 if both are samples of one population, 0 if they
        are equal (also if nothing varies).
    ratio_error : float
        Standard error of ``ratio`` that comes from the number of re-splits, by order statistics.
    p_value : float
        Of the hypothesis that both are samples of one population: (1 + re-splits at least as far apart) / (1 +
        re-splits).
    n_permutations : int
        Re-splits.
    """

    distance: float
    median: float
    ratio: float
    ratio_error: float
    p_value: float
    n_permutations: int


def wasserstein_randomization(
    original: TableLike,
    synthetic: TableLike,
    *,
    distance: str = "pooled",
    n_permutations: int = 1_000,
    n_projections: int = N_PROJECTIONS,
    rng: np.random.Generator | None = None,
) -> WassersteinTest:
    """Compare the Wasserstein distance of two tables with those of random re-splits of their records.

    Parameters
    ----------
    original, synthetic : DataFrame or array_like, shape (records, columns)
        The confidential table and a synthetic set; see :func:`pdips.evaluation.encoding.paired`.
    distance : {"pooled", "columns", "sliced"}
        ``"pooled"``: as in the paper, see Notes; numeric columns only. ``"columns"``: mean over columns of the
        one-dimensional distance over the column's own scale. ``"sliced"``: mean over random directions of the distance
        of the projected records; sees joint distributions.
    n_permutations : int
        Re-splits, at least 1.
    n_projections : int
        Directions of ``"sliced"``.
    rng : numpy.random.Generator, optional
        For directions and re-splits.

    Returns
    -------
    WassersteinTest
        The distance, the median of the re-splits' distances, their ratio and its Monte-Carlo error, a p-value.

    Raises
    ------
    InputError
        If tables don't match or are empty, there is no such distance, a number is below 1, or a numeric column has
        missing values (or ``"pooled"`` meets a column that isn't numeric).

    Notes
    -----
    Arnold and Neunhoeffer (2020), *Really useful synthetic data*; section 4.2 of paper 002.

    *Pooled.* The authors' code hands whole matrices to ``transport::wasserstein1d``, which takes them for vectors: the
    entries of all columns are thrown together, in their own units, and so are they for the re-splits, where single
    entries, not records, change sides. It sees neither which column a number belongs to nor how columns hang together,
    and the column with the widest spread decides. It is kept for the printed figures (their p counts re-splits strictly
    farther apart).

    *Columns.* The scale of a numeric column is the mean absolute distance of its pooled values from their median, so
    that 1 is as far as between the values and their median. For a column of levels the distance is total variation,
    Wasserstein's for levels that are all 1 apart, over the chance that two pooled records differ. Whole records change
    sides. Columns that don't vary count as 0.

    *Sliced.* Numeric columns and indicators of levels, centred at the pooled median and divided by the same scale, are
    projected on directions drawn evenly from the sphere, the same for all re-splits.

    Values are sorted once. The distance of a split is the integral of abs(F_original - F_synthetic), a sum over gaps
    between sorted values; the difference of the distribution functions runs in whole numbers. Each re-split is evenly
    distributed over all with the tables' sizes. With 1,000 the ratio has a relative standard error of about 2 %.
    """
    if distance not in DISTANCES:
        raise InputError(f"distance must be one of {', '.join(DISTANCES)}, not {distance!r}")
    if n_permutations < 1 or n_projections < 1:
        raise InputError("n_permutations and n_projections must be at least 1")
    rng = np.random.default_rng() if rng is None else rng
    pairs = paired(original, synthetic)
    sizes = len(pairs[0].original), len(pairs[0].synthetic)
    if distance == "pooled":
        own, measure = _pooled(pairs)
    else:
        own = np.repeat([True, False], sizes)
        measure = _columns(pairs, sizes) if distance == "columns" else _sliced(pairs, sizes, n_projections, rng)
    n_first = int(own.sum())
    null = np.array([measure(random_split(n_first, len(own), rng)) for _ in range(n_permutations)])
    return _summary(measure(own), null)


def random_split(n_first: int, n: int, rng: np.random.Generator) -> BoolArray:
    """Return which of ``n`` things go to the first part, all sets of ``n_first`` equally likely.

    Independent coins for all; then as many as are in excess, chosen evenly among those on the heavy side, change sides.
    Given how many there were, every set was equally likely, and so is every set after it.
    """
    if 2 * n_first == n:
        chosen = np.unpackbits(np.frombuffer(rng.bytes(-(-n // 8)), np.uint8), count=n).view(np.bool_)
    else:
        chosen = rng.random(n, dtype=np.float32) < n_first / n
    excess = int(np.count_nonzero(chosen)) - n_first
    if excess:
        heavy = np.flatnonzero(chosen if excess > 0 else ~chosen)
        chosen[rng.choice(heavy, abs(excess), replace=False, shuffle=False)] = excess < 0
    return chosen


@dataclass(frozen=True, eq=False, repr=False)
class _Line:
    """Values on a line, sorted: gives the Wasserstein distance of any split of them."""

    order: IntArray | None
    gaps: FloatArray
    first_step: int
    second_step: int
    unit: float

    @classmethod
    def of(cls, values: FloatArray, n_first: int, *, is_sorted: bool = False) -> "_Line":
        order = None if is_sorted else np.argsort(values, kind="stable")
        gaps = np.diff(values if order is None else values[order])
        n_second = len(values) - n_first
        common = gcd(n_first, n_second)
        return cls(order, gaps, n_second // common, n_first // common, n_first * n_second / common)

    def distance(self, chosen: BoolArray) -> float:
        """Return the integral of the distance of distribution functions: both grow in steps of whole numbers."""
        side = chosen if self.order is None else chosen[self.order]
        heights = self._heights(side)[:-1]
        area = np.einsum("i,i->", np.abs(heights, out=heights).astype(np.float64), self.gaps)
        return float(area) / self.unit

    def _heights(self, side: BoolArray) -> NDArray[Any]:
        step = self.first_step + self.second_step
        kind = np.int32 if step * len(side) < 2**31 else np.int64
        return np.cumsum(side.view(np.int8) * kind(step) - kind(self.second_step), dtype=kind)


def _pooled(pairs: list[ColumnPair]) -> tuple[BoolArray, Distance]:
    """Throw the entries of all columns together; return which are the original's, in sorted order, and the distance."""
    whole = [complete(pair, "the pooled distance") for pair in pairs]
    original = np.concatenate([pair.original for pair in whole])
    values = np.concatenate([original, *(pair.synthetic for pair in whole)])
    order = np.argsort(values, kind="stable")
    line = _Line.of(values[order], len(original), is_sorted=True)
    return order < len(original), line.distance


def _columns(pairs: list[ColumnPair], sizes: tuple[int, int]) -> Distance:
    parts = [_levels(pair, sizes) if pair.levels is not None else _numbers(pair, sizes[0]) for pair in pairs]
    return lambda chosen: float(np.mean([part(chosen) for part in parts]))


def _numbers(pair: ColumnPair, n_first: int) -> Distance:
    values = complete(pair, "this distance").pooled
    _, scale = _centre_and_scale(values)
    return _Line.of(values / scale, n_first).distance if scale > 0 else _nowhere


def _levels(pair: ColumnPair, sizes: tuple[int, int]) -> Distance:
    codes = pair.pooled.astype(np.int64)
    counts = np.bincount(codes)
    scale = 1 - float(((counts / counts.sum()) ** 2).sum())

    def total_variation(chosen: BoolArray) -> float:
        first = np.bincount(codes[chosen], minlength=len(counts))
        return float(np.abs(first / sizes[0] - (counts - first) / sizes[1]).sum()) / 2 / scale

    return total_variation if scale > 0 else _nowhere


def _sliced(pairs: list[ColumnPair], sizes: tuple[int, int], n_projections: int, rng: np.random.Generator) -> Distance:
    whole = [pair if pair.levels is not None else complete(pair, "this distance") for pair in pairs]
    numbers = [np.concatenate(both) for pair in whole for both in indicators(pair).values()]
    placed = [((v - centre) / scale) for v in numbers for centre, scale in [_centre_and_scale(v)] if scale > 0]
    if not placed:
        return _nowhere
    directions = rng.standard_normal((len(placed), n_projections))
    projected = np.column_stack(placed) @ (directions / np.linalg.norm(directions, axis=0))
    lines = [_Line.of(values, sizes[0]) for values in projected.T]
    return lambda chosen: float(np.mean([line.distance(chosen) for line in lines]))


def _centre_and_scale(values: FloatArray) -> tuple[float, float]:
    centre = float(np.median(values))
    return centre, float(np.abs(values - centre).mean())


def _nowhere(_: BoolArray) -> float:
    return 0.0


def _summary(distance: float, null: FloatArray) -> WassersteinTest:
    n, middle = len(null), float(np.median(null))
    low, high = (float(np.quantile(null, min(1.0, max(0.0, 0.5 + sign * 0.5 / np.sqrt(n))))) for sign in (-1, 1))
    ratio = distance / middle if middle > 0 else 0.0
    return WassersteinTest(
        distance=distance,
        median=middle,
        ratio=ratio,
        ratio_error=ratio * (high - low) / 2 / middle if middle > 0 else 0.0,
        p_value=(1 + int((null >= distance * (1 - 1e-12)).sum())) / (1 + n),
        n_permutations=n,
    )
