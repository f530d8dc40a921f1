"""Sums over the records below each of many lines, compiled."""

import numpy as np
from numba import njit

_BUCKETS = 4096
_CLOSE = 64.0


@njit(cache=True, nogil=True)
def _guesses(offsets, low, high):  # type: ignore[no-untyped-def]
    """Return about where the values of evenly spaced buckets stand among sorted offsets."""
    width = (high - low) / _BUCKETS
    found = np.empty(_BUCKETS, dtype=np.int64)
    place = 0
    for bucket in range(_BUCKETS):
        value = low + bucket * width
        while place < offsets.shape[0] and offsets[place] < value:
            place += 1
        found[bucket] = place
    return found


@njit(cache=True, nogil=True)
def sums_below(residual, predictors, instruments, slopes, offsets, units):  # type: ignore[no-untyped-def]
    """Return the sums of (1, z) over the records on or below each line, in units, shape (slopes, offsets, p + 1).

    A line is ``offsets[j] + slopes[k] @ x`` beside the one that residuals are counted from; ``offsets`` increase.
    Whether a record is below a line depends on this record and the line alone: tables of guesses only tell where to
    look first.
    """
    n, p = predictors.shape
    n_slopes, n_offsets = slopes.shape[0], offsets.shape[0]
    below = np.zeros((n_slopes, n_offsets, p + 1), dtype=np.int64)
    far = max(abs(offsets[0]), abs(offsets[-1]), 1e-300)
    near = far / _CLOSE
    coarse, fine = _guesses(offsets, -far, far), _guesses(offsets, -near, near)
    for k in range(n_slopes):
        for i in range(n):
            r = residual[i]
            for j in range(p):
                r -= slopes[k, j] * (predictors[i, j])
            if not r <= offsets[n_offsets - 1]:  # not a number is below no line, and finds no bucket
                continue
            if r <= offsets[0]:
                place = 0
            else:
                if abs(r) < near:
                    place = fine[min(int((r + near) * (_BUCKETS / (2 * near))), _BUCKETS - 1)]
                else:
                    place = coarse[min(int((r + far) * (_BUCKETS / (2 * far))), _BUCKETS - 1)]
                while place < n_offsets - 1 and offsets[place] < r:
                    place += 1
                while place > 0 and offsets[place - 1] >= r:
                    place -= 1
            below[k, place, 0] += units
            for j in range(p):
                below[k, place, j + 1] += instruments[i, j]
        for place in range(1, n_offsets):
            for j in range(p + 1):
                below[k, place, j] += below[k, place - 1, j]
    return below
