"""pMSE by a classification tree grown on confidential and synthetic records, as paper 002's code does it; compiled.

The rules are those that the paper's code gives to CART: Gini gain, depth 5, no smallest leaf, and a split is kept only
if it lowers the misclassified by more than ``least`` of the root's for each split below it.
"""

import numba
import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips_papers.kng.pmse_kernels import bin_of

DEPTH = 5
LEAST_GAIN = 0.01


@numba.njit(cache=True, error_model="numpy")
def _best_split(histogram: FloatArray) -> tuple[int, int]:
    """Return feature and bin of the split of highest Gini gain, or feature -1; ``histogram`` is (3, bins, 2)."""
    best, feature, cut = 1e-9, -1, 0
    d_all, s_all = histogram[0, :, 0].sum(), histogram[0, :, 1].sum()
    if d_all <= 0.0 or s_all <= 0.0:
        return feature, cut
    parent = s_all * s_all / (d_all + s_all)
    for f in range(histogram.shape[0]):
        d, s = 0.0, 0.0
        for b in range(histogram.shape[1] - 1):
            d += histogram[f, b, 0]
            s += histogram[f, b, 1]
            if d + s > 0.0 and d + s < d_all + s_all:
                gain = s * s / (d + s) + (s_all - s) ** 2 / (d_all + s_all - d - s) - parent
                if gain > best:
                    best, feature, cut = gain, f, b
    return feature, cut


@numba.njit(cache=True, error_model="numpy")
def _grow(real: IntArray, made: IntArray, n_bins: int, depth: int, smallest: float) -> tuple[FloatArray, IntArray]:
    """Return each node's counts, shape (nodes, 2), and its feature, -1 for a leaf; node k has children 2k+1, 2k+2."""
    n_nodes = 2 ** (depth + 1) - 1
    counts, features = np.zeros((n_nodes, 2)), np.full(n_nodes, -1)
    cuts = np.zeros(n_nodes, dtype=np.int64)
    at_real, at_made = np.zeros(len(real), dtype=np.int64), np.zeros(len(made), dtype=np.int64)
    counts[0, 0], counts[0, 1] = len(real), len(made)
    for level in range(depth):
        first = 2**level - 1
        histogram = np.zeros((2**level, 3, n_bins, 2))
        for i in range(len(real)):
            if at_real[i] >= first:
                for f in range(3):
                    histogram[at_real[i] - first, f, real[i, f], 0] += 1.0
        for i in range(len(made)):
            if at_made[i] >= first:
                for f in range(3):
                    histogram[at_made[i] - first, f, made[i, f], 1] += 1.0
        for k in range(2**level):
            if min(counts[first + k, 0], counts[first + k, 1]) > smallest:
                features[first + k], cuts[first + k] = _best_split(histogram[k])
        for i in range(len(real)):
            k = at_real[i]
            if k >= first and features[k] >= 0:
                at_real[i] = 2 * k + 1 + int(real[i, features[k]] > cuts[k])
                counts[at_real[i], 0] += 1.0
        for i in range(len(made)):
            k = at_made[i]
            if k >= first and features[k] >= 0:
                at_made[i] = 2 * k + 1 + int(made[i, features[k]] > cuts[k])
                counts[at_made[i], 1] += 1.0
    return counts, features


@numba.njit(cache=True, error_model="numpy")
def tree_pmse(real: IntArray, made: IntArray, n_bins: int, depth: int = DEPTH, least_gain: float = LEAST_GAIN) -> float:
    """Return the pMSE of a pruned tree.

    Parameters
    ----------
    real, made : ndarray of int64, shapes (n, 3) and (m, 3)
        Bins of the confidential and of the synthetic records.
    n_bins : int
    depth : int
    least_gain : float
        Misclassified records that a split must save, as a share of the root's.
    """
    smallest = least_gain * min(len(real), len(made))
    counts, features = _grow(real, made, n_bins, depth, smallest)
    centre = len(made) / (len(real) + len(made))
    n_nodes = len(counts)
    errors, splits, squares = np.empty(n_nodes), np.zeros(n_nodes), np.zeros(n_nodes)
    for k in range(n_nodes - 1, -1, -1):
        n = counts[k, 0] + counts[k, 1]
        risk = min(counts[k, 0], counts[k, 1])
        errors[k] = risk
        squares[k] = n * (counts[k, 1] / n - centre) ** 2 if n > 0 else 0.0
        if features[k] >= 0:
            below = errors[2 * k + 1] + errors[2 * k + 2]
            n_splits = splits[2 * k + 1] + splits[2 * k + 2] + 1
            if risk - below > smallest * n_splits or least_gain == 0.0:
                errors[k], splits[k] = below, n_splits
                squares[k] = squares[2 * k + 1] + squares[2 * k + 2]
    return float(squares[0] / (len(real) + len(made)))


@numba.njit(cache=True, error_model="numpy")
def binned(records: FloatArray, edges: FloatArray) -> IntArray:
    """Return the bins of records, shape (n, 3), on the columns' sorted edges, shape (3, edges)."""
    found = np.zeros(records.shape, dtype=np.int64)
    for i in range(records.shape[0]):
        for f in range(records.shape[1]):
            found[i, f] = bin_of(records[i, f], edges[f])
    return found
