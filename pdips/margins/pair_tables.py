"""Exact counts of all pairs of columns, by the quicker of two ways."""

import numba
import numpy as np
from numpy.typing import NDArray

from pdips.arrays import IntArray

TILE = 2048
"""Records whose pairs are counted at a time (``benchmarks.scale``)."""

FEW_LEVELS = 3
LARGE_TILE = 1 << 14
"""Columns of so many levels on average are counted by products of matrices, of so many
records: for more levels most of their numbers would be 0.
"""


def pair_counts(
    codes: NDArray[np.int32], counts: IntArray | None, offsets: IntArray
) -> IntArray:
    """Return how many records have each two levels, shape (levels, levels) over the
    levels of all blocks, of blocks in order; ``counts`` of the records that each row
    stands for, None where it is one.
    """
    n_levels = int(offsets[-1])
    found = np.zeros((n_levels, n_levels), dtype=np.int64)
    if counts is None and n_levels <= FEW_LEVELS * codes.shape[1]:
        for start in range(0, len(codes), LARGE_TILE):
            found += _by_products(codes[start : start + LARGE_TILE], offsets)
        return np.triu(found)
    times = np.ones(0, dtype=np.int64) if counts is None else counts
    add_pairs(codes, times, offsets, found.ravel(), n_levels)
    return found


def _by_products(codes: NDArray[np.int32], offsets: IntArray) -> IntArray:
    """Return the pairs of some records as products of columns of zeros and ones: exact,
    as all sums are below 2^24.
    """
    has_level = np.zeros((len(codes), int(offsets[-1])), dtype=np.float32)
    np.put_along_axis(has_level, codes + offsets[:-1], 1, axis=1)
    return (has_level.T @ has_level).astype(np.int64)


@numba.njit(cache=True)
def add_pairs(codes, times, offsets, found, n_levels):  # type: ignore[no-untyped-def]
    """Add the pairs of records to a flat table of all levels by all levels, pair by
    pair of blocks for some records at a time: so what is read and written stays in the
    fastest memory, and cells are worked out several at once.
    """
    n, d = codes.shape
    levels = np.empty((d, TILE), dtype=np.uint32)
    cells = np.empty(TILE, dtype=np.uint32)
    for start in range(0, n, TILE):
        size = min(n - start, TILE)
        for r in range(size):
            for i in range(d):
                levels[i, r] = offsets[i] + codes[start + r, i]
        for i in range(d):
            rows = levels[i] * np.uint32(n_levels)
            for j in range(i, d):
                for r in range(size):
                    cells[r] = rows[r] + levels[j, r]
                if len(times):
                    for r in range(size):
                        found[cells[r]] += times[start + r]
                else:
                    for r in range(size):
                        found[cells[r]] += 1
