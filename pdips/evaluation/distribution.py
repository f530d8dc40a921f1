"""Distances of distributions on a line: distribution functions, and the Wasserstein randomization test. Inside only."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, FloatArray
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.evaluation.encoding import ColumnPair, TableLike, complete, indicators, paired, values_of, weights_of

Distance = Callable[[BoolArray], float]  # The distance of two parts of the records, given which belong to the first

DISTANCES = ("pooled", "columns", "sliced")
N_PROJECTIONS = 50


@dataclass(frozen=True, kw_only=True)
class Ecdf:
    """Largest absolute and mean squared difference of the distribution functions, by column, over all records."""

    largest: dict[str, float]
    average: dict[str, float]


def ecdf_distances(table: Table, frame: pd.DataFrame, *, weighted: bool = False) -> Ecdf:
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
        If the set has no records, a column is not in it or breaks the schema, or there are no weights.

    Notes
    -----
    Woo, Reiter, Oganian and Karr (2009): differences are taken at every record of both tables. Numbers are compared as
    they are, levels in the order of the schema (by value if they are numbers), missing after all others. For levels
    without an order the distance depends on how the schema lists them; it is at most the total variation distance.

    Examples
    --------
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, _ = Steps(epsilon=1, n_sets=2).release(table)
    >>> 0 <= ecdf_distances(table, release.sets[0]).largest["age"] <= 1
    True
    """
    if not len(frame):
        raise InputError("a distribution function needs at least one record")
    schema = table.schema
    weights = tuple(weights_of(part, schema) for part in (table.frame, frame)) if weighted else (None, None)
    found = Ecdf(largest={}, average={})
    for name, column in schema.columns.items():
        values = [values_of(part, name, column) for part in (table.frame, frame)]
        both = (np.where(np.isnan(each), np.inf, each) for each in values)
        found.largest[name], _, found.average[name] = distances(*both, *weights)
    return found


def distances(
    original: FloatArray,
    synthetic: FloatArray,
    original_weights: FloatArray | None = None,
    synthetic_weights: FloatArray | None = None,
) -> tuple[float, float, float]:
    """Return the largest absolute difference of two distribution functions, where it is, and the mean squared one.

    They are compared at all records.
    """
    points, place, n_here = np.unique(np.concatenate([original, synthetic]), return_inverse=True, return_counts=True)
    parts = ((place[: len(original)], original_weights), (place[len(original) :], synthetic_weights))
    shares = [np.bincount(at, weights, minlength=len(points)) for at, weights in parts]
    gap = np.cumsum(shares[0] / shares[0].sum() - shares[1] / shares[1].sum())
    widest = int(np.abs(gap).argmax())
    return min(1.0, abs(float(gap[widest]))), float(points[widest]), float(n_here @ gap**2 / n_here.sum())


@dataclass(frozen=True, kw_only=True)
class WassersteinTest:
    """A distance of two tables against the ``median`` of those of random re-splits of their records.

    ``ratio`` is what the paper prints as WRT, 0 if nothing varies; ``ratio_error`` its standard error from the number
    of re-splits, by order statistics; ``p_value`` (1 + re-splits at least as far apart) / (1 + re-splits).
    """

    distance: float
    median: float
    ratio: float
    ratio_error: float
    p_value: float


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

    Raises
    ------
    InputError
        If tables don't match or are empty, there is no such distance, a number is below 1, or a numeric column has
        missing values (or ``"pooled"`` meets a column that isn't numeric).

    Notes
    -----
    Arnold and Neunhoeffer (2020); ``docs/utility.md#wasserstein-randomization`` says what each distance sees. A
    column's scale is the mean absolute distance of its pooled values from their median; for a column of levels it is
    the chance that two pooled records differ, and the distance total variation. Columns that don't vary count as 0.
    Whole records change sides, but for ``"pooled"``, where single entries do.

    Examples
    --------
    >>> original = pd.DataFrame({"x": range(100)})
    >>> wasserstein_randomization(original, original + 50, n_permutations=99).p_value
    0.01
    """
    if distance not in DISTANCES:
        raise InputError(f"distance must be one of {', '.join(DISTANCES)}, not {distance!r}")
    if n_permutations < 1 or n_projections < 1:
        raise InputError("n_permutations and n_projections must be at least 1")
    rng = np.random.default_rng(rng)
    pairs = paired(original, synthetic)
    sizes = len(pairs[0].original), len(pairs[0].synthetic)
    if distance == "pooled":
        own, measure = _pooled(pairs)
    else:
        own, by_column = np.repeat([True, False], sizes), distance == "columns"
        parts = [_column(p, sizes) for p in pairs] if by_column else _slices(pairs, sizes[0], n_projections, rng)

        def measure(chosen: BoolArray) -> float:
            return float(np.mean([part(chosen) for part in parts]))

    null = np.array([measure(rng.permutation(own)) for _ in range(n_permutations)])
    found, middle = measure(own), float(np.median(null))
    half = 0.5 / np.sqrt(n_permutations)
    low, high = np.quantile(null, [max(0.0, 0.5 - half), min(1.0, 0.5 + half)])
    ratio = found / middle if middle > 0 else 0.0
    return WassersteinTest(
        distance=found,
        median=middle,
        ratio=ratio,
        ratio_error=ratio * float(high - low) / 2 / middle if middle > 0 else 0.0,
        p_value=(1 + int((null >= found * (1 - 1e-12)).sum())) / (1 + n_permutations),
    )


def _line(values: FloatArray, n_first: int) -> Distance:
    """Sort values on a line, once for all splits: the distance is the area between two distribution functions."""
    order = np.argsort(values, kind="stable")
    gaps, steps = np.diff(values[order]), np.array([-1 / (len(values) - n_first), 1 / n_first])

    def distance(chosen: BoolArray) -> float:
        return float(np.abs(np.cumsum(steps[chosen[order].view(np.int8)])[:-1]) @ gaps)

    return distance


def _pooled(pairs: list[ColumnPair]) -> tuple[BoolArray, Distance]:
    """Throw the entries of all columns together; return which are the original's, in sorted order, and the distance."""
    whole = [complete(pair, "the pooled distance") for pair in pairs]
    original = np.concatenate([pair.original for pair in whole])
    values = np.concatenate([original, *(pair.synthetic for pair in whole)])
    order = np.argsort(values, kind="stable")
    return order < len(original), _line(values[order], len(original))


def _column(pair: ColumnPair, sizes: tuple[int, int]) -> Distance:
    if pair.levels is None:
        values = complete(pair, "this distance").pooled
        _, scale = _centre_and_scale(values)
        return _line(values / scale, sizes[0]) if scale > 0 else _nowhere
    codes = pair.pooled.astype(np.int64)
    counts = np.bincount(codes)
    scale = 1 - float(((counts / counts.sum()) ** 2).sum())

    def total_variation(chosen: BoolArray) -> float:
        first = np.bincount(codes[chosen], minlength=len(counts))
        return float(np.abs(first / sizes[0] - (counts - first) / sizes[1]).sum()) / 2 / scale

    return total_variation if scale > 0 else _nowhere


def _slices(pairs: list[ColumnPair], n_first: int, n_projections: int, rng: np.random.Generator) -> list[Distance]:
    whole = [pair if pair.levels is not None else complete(pair, "this distance") for pair in pairs]
    values = [np.concatenate(both) for pair in whole for both in indicators(pair).values()]
    placed = [((v - centre) / scale) for v in values for centre, scale in [_centre_and_scale(v)] if scale > 0]
    if not placed:
        return [_nowhere]
    directions = rng.standard_normal((len(placed), n_projections))
    projected = np.column_stack(placed) @ (directions / np.linalg.norm(directions, axis=0))
    return [_line(each, n_first) for each in projected.T]


def _centre_and_scale(values: FloatArray) -> tuple[float, float]:
    centre = float(np.median(values))
    return centre, float(np.abs(values - centre).mean())


def _nowhere(_: BoolArray) -> float:
    return 0.0
