"""Sums over the records below each of many lines, compiled."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def sums_below(residual, predictors, slopes, offsets, scale, rate, first, units):  # type: ignore[no-untyped-def]
    """Return the sums of (1, x) over the records on or below each line, in units, shape (slopes, offsets, p + 1).

    A line is ``offsets[j] + slopes[k] @ x`` beside the one that residuals are counted from; ``offsets`` are
    ``scale * sinh(rate * (first + j))``, up to rounding, and increase. Whether a record is below a line depends on this
    record and the line alone.
    """
    n, p = predictors.shape
    n_slopes, n_offsets = slopes.shape[0], offsets.shape[0]
    below = np.zeros((n_slopes, n_offsets, p + 1), dtype=np.int64)
    for k in range(n_slopes):
        for i in range(n):
            r = residual[i]
            for j in range(p):
                r -= slopes[k, j] * (predictors[i, j] / units)
            guess = np.arcsinh(r / scale) / rate - first
            place = int(min(max(guess, 0.0), n_offsets - 1.0))
            while place < n_offsets and offsets[place] < r:
                place += 1
            while place > 0 and offsets[place - 1] >= r:
                place -= 1
            if place < n_offsets:
                below[k, place, 0] += units
                for j in range(p):
                    below[k, place, j + 1] += predictors[i, j]
        for place in range(1, n_offsets):
            for j in range(p + 1):
                below[k, place, j] += below[k, place - 1, j]
    return below
