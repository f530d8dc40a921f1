"""Wasserstein randomization: the distance of two tables over that of random re-splits
of their records. For inside use only.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pdips.arrays import BoolArray, FloatArray
from pdips.errors import InputError
from pdips.evaluation.encoding import ColumnPair, TableLike, paired

# The distance of two parts of the records, given which belong to the first
Distance = Callable[[BoolArray], float]

DISTANCES = ("pooled", "columns")


@dataclass(frozen=True, kw_only=True)
class WassersteinTest:
    """A distance of two tables against the ``median`` of those of random re-splits of
    their records.

    ``ratio`` is what the paper prints as WRT, 0 if nothing varies; ``ratio_error`` its
    standard error from the number of re-splits, by order statistics; ``p_value`` (1 +
    re-splits at least as far apart) / (1 + re-splits).
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
    rng: np.random.Generator | None = None,
) -> WassersteinTest:
    """Compare the Wasserstein distance of two tables with those of random re-splits of
    their records.

    Parameters
    ----------
    original, synthetic : DataFrame or array_like, shape (records, columns)
        The confidential table and a synthetic set; see
        :func:`pdips.evaluation.encoding.paired`.
    distance : {"pooled", "columns"}
        ``"pooled"``: as in the paper, see Notes; numeric columns only. ``"columns"``:
        mean over columns of the one-dimensional distance over the column's own scale.
    n_permutations : int
        Re-splits, at least 1.
    rng : numpy.random.Generator, optional
        For the re-splits.

    Raises
    ------
    InputError
        If tables don't match or are empty, there is no such distance, a number is below
        1, or a numeric column has missing values (or ``"pooled"`` meets a column that
        isn't numeric).

    Notes
    -----
    Arnold and Neunhoeffer (2020). Their code passes matrices to a function for vectors,
    so ``"pooled"`` throws the entries of all columns together, in their own units, and
    single entries change sides: it ignores the column of a number, and the column with
    the widest spread dominates. With ``"columns"`` whole records change sides. A
    column's scale is the mean absolute distance of its pooled values from their median;
    for a column of levels it is the chance that two pooled records differ, and the
    distance total variation. Columns that don't vary count as 0.
    """
    if distance not in DISTANCES:
        raise InputError(
            f"distance must be one of {', '.join(DISTANCES)}, not {distance!r}"
        )
    if n_permutations < 1:
        raise InputError("n_permutations must be at least 1")
    rng = np.random.default_rng(rng)
    pairs = paired(original, synthetic)
    split = _pooled if distance == "pooled" else _by_column
    own, measure = split(pairs)
    null = np.array([measure(rng.permutation(own)) for _ in range(n_permutations)])
    observed = measure(own)
    middle = float(np.median(null))
    half = 0.5 / np.sqrt(n_permutations)
    low, high = np.quantile(null, [max(0.0, 0.5 - half), min(1.0, 0.5 + half)])
    ratio = 0.0
    ratio_error = 0.0
    if middle > 0:
        ratio = observed / middle
        ratio_error = ratio * float(high - low) / 2 / middle
    # a re-split that equals the tables may differ from them by rounding
    n_as_far = int((null >= observed * (1 - 1e-12)).sum())
    return WassersteinTest(
        distance=observed,
        median=middle,
        ratio=ratio,
        ratio_error=ratio_error,
        p_value=(1 + n_as_far) / (1 + n_permutations),
    )


def _pooled(pairs: list[ColumnPair]) -> tuple[BoolArray, Distance]:
    """Throw the entries of all columns together; return which are the original's, in
    sorted order, and the distance.
    """
    for pair in pairs:
        _check_complete(pair, "the pooled distance")
    original = np.concatenate([pair.original for pair in pairs])
    values = np.concatenate([original, *(pair.synthetic for pair in pairs)])
    order = np.argsort(values, kind="stable")
    return order < len(original), _line(values[order], len(original))


def _by_column(pairs: list[ColumnPair]) -> tuple[BoolArray, Distance]:
    """Return which records are the original's, and the mean of the columns'
    distances.
    """
    sizes = len(pairs[0].original), len(pairs[0].synthetic)
    parts = [_column(pair, sizes) for pair in pairs]

    def measure(chosen: BoolArray) -> float:
        return float(np.mean([part(chosen) for part in parts]))

    return np.repeat([True, False], sizes), measure


def _column(pair: ColumnPair, sizes: tuple[int, int]) -> Distance:
    if pair.levels is None:
        _check_complete(pair, "this distance")
        values = pair.pooled
        scale = float(np.abs(values - np.median(values)).mean())
        return _line(values / scale, sizes[0]) if scale > 0 else _nowhere
    codes = pair.pooled.astype(np.int64)
    counts = np.bincount(codes)
    scale = 1 - float(((counts / counts.sum()) ** 2).sum())

    def total_variation(chosen: BoolArray) -> float:
        first = np.bincount(codes[chosen], minlength=len(counts))
        gaps = first / sizes[0] - (counts - first) / sizes[1]
        return float(np.abs(gaps).sum()) / 2 / scale

    return total_variation if scale > 0 else _nowhere


def _check_complete(pair: ColumnPair, measure: str) -> None:
    if pair.levels is not None:
        raise InputError(
            f"column {pair.name!r} must be numeric for {measure}; leave it out"
        )
    if np.isnan(pair.pooled).any():
        raise InputError(
            f"column {pair.name!r} must have no missing values for {measure}"
        )


def _line(values: FloatArray, n_first: int) -> Distance:
    """Sort values on a line, once for all splits: the distance is the area between two
    distribution functions.
    """
    order = np.argsort(values, kind="stable")
    gaps = np.diff(values[order])
    steps = np.array([-1 / (len(values) - n_first), 1 / n_first])

    def distance(chosen: BoolArray) -> float:
        height = np.cumsum(steps[chosen[order].view(np.int8)])
        return float(np.abs(height[:-1]) @ gaps)

    return distance


def _nowhere(_: BoolArray) -> float:
    return 0.0
