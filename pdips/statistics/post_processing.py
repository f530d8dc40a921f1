"""Noisy statistics made possible: counts that add up, sums within their cells, scatter that is no negative matrix.

Post-processing, and nothing else: it reads noisy statistics and public facts. ``noisy`` and ``used`` are published side
by side, so that everybody sees what was done.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pdips.arrays import FloatArray
from pdips.statistics.plan import NoisyStatistics, StatisticPart
from pdips.statistics.statistic import Counts, Products, Scatter, Sums

LEAST_VARIANCE = 1e-4
"""In units of half the range squared: no column has a standard deviation below a hundredth of half its range."""

LEAST_RECORDS = 2
"""Of a table whose number of records is noisy and counted by itself: a single one has no scatter."""


def settle(measured: NoisyStatistics) -> dict[str, FloatArray]:
    """Return what plug-in models use in place of exact statistics, and where noise-aware chains start.

    Counts are moved to the nearest that are at least 0 (at least 1 where sums are taken in the same cells) and add up
    to n; sums to at most one a record; the matrix of sums of squares and products about the cells' means to the nearest
    one that is positive.

    Returns
    -------
    dict of str to ndarray, shape (entries,)
        In the model's units.
    """
    used: dict[str, FloatArray] = {}
    for part in _of(measured, Counts):
        used[part.name] = _counts(measured, part)
    total = number_of_records(measured, used)
    for part in _of(measured, Sums):
        most = _sizes(measured, part, used, total)
        used[part.name] = np.clip(measured.value(part.name), -most, most)
    for part in _of(measured, Scatter):
        used[part.name] = np.clip(measured.value(part.name), LEAST_VARIANCE * total, total)
    products = list(_of(measured, Products))
    used |= {part.name: np.clip(measured.value(part.name), -total, total) for part in products}
    used |= _scattered(measured, products, used, total)
    rest = [part for part in measured.parts if part.name not in used]
    return used | {part.name: measured.value(part.name) for part in rest}


def number_of_records(measured: NoisyStatistics, used: Mapping[str, FloatArray]) -> float:
    """Return the public number of records, or what noisy counts say of it, at least 1."""
    if measured.n_records is not None:
        return float(measured.n_records)
    totals = [used[part.name].sum() for part in _of(measured, Counts)]
    return max(totals[0], 1.0) if totals else 1.0


def _of(measured: NoisyStatistics, *kinds: type) -> Iterable[StatisticPart]:
    return (part for part in measured.parts if isinstance(part.statistic, kinds))


def _by(part: StatisticPart) -> tuple[str, ...]:
    """Return the columns that a part counts or sums by."""
    by: tuple[str, ...] = getattr(part.statistic, "by", ())
    return by


def _of_what(part: StatisticPart) -> Any:
    """Return the column that a part sums, or the two that it multiplies."""
    return getattr(part.statistic, "of", None)


def _counts(measured: NoisyStatistics, part: StatisticPart) -> FloatArray:
    noisy = measured.value(part.name)
    if not part.n_noised:
        return noisy
    least = float(any(_by(each) == _by(part) for each in _of(measured, Sums)))
    if measured.n_records is None and len(noisy) == 1:
        return np.maximum(noisy, LEAST_RECORDS)
    if measured.n_records is None:
        return np.maximum(noisy, max(least, 1 / len(noisy)))
    least = min(least, measured.n_records / len(noisy))
    return least + nearest_shares(noisy - least, measured.n_records - least * len(noisy))


def nearest_shares(values: FloatArray, total: float) -> FloatArray:
    """Return the nearest nonnegative numbers that add up to ``total``, shape (cells,).

    The projection on a simplex (Held, Wolfe and Crowder, 1974); numbers that are all alike share evenly.
    """
    ordered = -np.sort(-values)
    excess = (np.cumsum(ordered) - total) / np.arange(1, len(values) + 1)
    last = max(int(np.sum(ordered > excess)) - 1, 0)
    nearest: FloatArray = np.maximum(values - excess[last], 0.0)
    return nearest


def _sizes(measured: NoisyStatistics, part: StatisticPart, used: Mapping[str, FloatArray], total: float) -> FloatArray:
    """Return how many records there are in each of the cells that a part sums over, as far as counts say."""
    for counts in _of(measured, Counts):
        if _by(counts) == _by(part):
            return used[counts.name]
    return np.full(len(measured.values[part.name]), total)


def _scattered(
    measured: NoisyStatistics, products: list[StatisticPart], used: dict[str, FloatArray], total: float
) -> dict[str, FloatArray]:
    """Return products moved so that squares and products about the means are those of some table."""
    pairs = {_of_what(part): part for part in products if not _by(part)}
    names = sorted({name for pair in pairs for name in pair})
    sums = {_of_what(part): part for part in _of(measured, Sums)}
    if not names or not all(name in sums for name in names) or not all((name, name) in pairs for name in names):
        return {}
    of_means = {pair: _of_means(measured, used, pair) for pair in pairs}
    about = np.zeros((len(names), len(names)))
    for (x, y), part in pairs.items():
        i, j = names.index(x), names.index(y)
        about[i, j] = about[j, i] = used[part.name][0] - of_means[x, y]
    nearest = nearest_positive(about, LEAST_VARIANCE * total)
    return {
        part.name: np.array([nearest[names.index(x), names.index(y)] + of_means[x, y]])
        for (x, y), part in pairs.items()
    }


def _of_means(measured: NoisyStatistics, used: Mapping[str, FloatArray], pair: tuple[str, str]) -> float:
    """Return what the means add to a sum of products, sum_k T_k T_k' / n_k; 0 if they weren't measured alike."""
    sums = {_of_what(part): part for part in _of(measured, Sums)}
    if not all(name in sums for name in pair):
        return 0.0
    x, y = (used[sums[name].name] for name in pair)
    size = np.maximum(_sizes(measured, sums[pair[0]], used, number_of_records(measured, used)), 1e-9)
    return float((x * y / size).sum()) if len(x) == len(y) else 0.0


def scatter_about(
    measured: NoisyStatistics, used: Mapping[str, FloatArray], names: Sequence[str], least: float = 0.0
) -> FloatArray:
    """Return the settled sums of squares and products about the means as a positive matrix.

    Parameters
    ----------
    measured : NoisyStatistics
        Noisy statistics.
    used : mapping of str to ndarray
        What :func:`settle` made of them.
    names : sequence of str
        Of the products, the lower triangle row by row.
    least : float
        Least eigenvalue, where that is above :data:`LEAST_VARIANCE` of a record.

    Returns
    -------
    ndarray, shape (d, d)
    """
    rows, columns = np.tril_indices(int(np.sqrt(2 * len(names))))
    found = np.zeros((rows[-1] + 1, rows[-1] + 1))
    for name, row, column in zip(names, rows, columns, strict=True):
        value = used[name][0] - _of_means(measured, used, _of_what(measured.part(name)))
        found[row, column] = found[column, row] = value
    return nearest_positive(found, max(least, LEAST_VARIANCE * number_of_records(measured, used)))


def nearest_positive(matrix: FloatArray, least: float) -> FloatArray:
    """Return the nearest symmetric matrix without eigenvalues below ``least``, shape (d, d)."""
    values, vectors = np.linalg.eigh(matrix)
    nearest: FloatArray = (vectors * np.maximum(values, least)) @ vectors.T
    return nearest
