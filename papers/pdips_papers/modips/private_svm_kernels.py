"""A linear support vector machine without intercept, by coordinate ascent on its dual, compiled."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def fit(x, y, cost, gap):  # type: ignore[no-untyped-def]
    """Return the minimiser of 0.5 |w|^2 + cost sum_i max(0, 1 - y_i x_i w), to within a duality gap.

    The dual is a quadratic over a box, on which coordinate ascent converges (Hsieh et al., 2008): there is no cap.
    """
    n, p = x.shape
    dual, weights, norms = np.zeros(n), np.zeros(p), np.zeros(n)
    for i in range(n):
        for j in range(p):
            norms[i] += x[i, j] * x[i, j]
    while True:
        for _ in range(20):
            for i in range(n):
                margin = 0.0
                for j in range(p):
                    margin += x[i, j] * weights[j]
                new = cost
                if norms[i] > 0.0:
                    new = min(max(dual[i] + (1.0 - y[i] * margin) / norms[i], 0.0), cost)
                for j in range(p):
                    weights[j] += (new - dual[i]) * y[i] * x[i, j]
                dual[i] = new
        weights[:] = 0.0
        for i in range(n):
            for j in range(p):
                weights[j] += dual[i] * y[i] * x[i, j]
        loss, square = 0.0, 0.0
        for i in range(n):
            margin = 0.0
            for j in range(p):
                margin += x[i, j] * weights[j]
            loss += cost * max(0.0, 1.0 - y[i] * margin) - dual[i]
        for j in range(p):
            square += weights[j] * weights[j]
        if loss + square <= gap:
            return weights
