"""Counts on a tree made consistent by generalised least squares, nonnegative, and whole.

All of it is post-processing of noisy counts: it reads no record and costs nothing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from pdips.arrays import BoolArray, FloatArray, IntArray


def consistent(
    parents: Sequence[IntArray], observed: Sequence[ArrayLike], variances: Sequence[FloatArray]
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Return the generalised least squares estimate of all counts of a tree, given that children add up to parents.

    Parameters
    ----------
    parents : sequence of ndarray
        For each layer but the first, the index of each node's parent in the layer above. Nodes without children in the
        layer below are leaves, wherever they are.
    observed : sequence of ndarray
        Noisy counts by layer.
    variances : sequence of ndarray
        Their variances, in squared records: 0 for an exact count, infinity for a node that was not observed and has
        children.

    Returns
    -------
    estimates, estimate_variances : list of ndarray
        By layer. Where an exact node has only exact descendants, these decide.

    Notes
    -----
    Two passes over any tree with any variances, O(nodes): docs/proofs/steps.md. With equal fan-out and equal variances
    this is Hay, Rastogi, Miklau and Suciu (2010), theorem 3. Equations (2) and (3) of the STEPS paper are neither.
    """
    z, s = (
        [np.asarray(y, dtype=np.float64).copy() for y in observed],
        [np.array(v, dtype=np.float64) for v in variances],
    )
    sums, sum_variances = [], []
    for layer in range(len(parents) - 1, -1, -1):
        n_above = len(z[layer])
        total = np.bincount(parents[layer], weights=z[layer + 1], minlength=n_above)
        spread = np.bincount(parents[layer], weights=s[layer + 1], minlength=n_above)
        inner = np.bincount(parents[layer], minlength=n_above) > 0
        _pool(z[layer], s[layer], total, spread, inner)
        sums.append(total)
        sum_variances.append(spread)
    sums.reverse()
    sum_variances.reverse()
    x, v = [z[0]], [s[0]]
    for layer, parent in enumerate(parents):
        spread = sum_variances[layer]
        of_parent = spread[parent]
        share = np.divide(s[layer + 1], of_parent, out=np.zeros_like(of_parent), where=of_parent > 0)
        x.append(z[layer + 1] + share * (x[layer] - sums[layer])[parent])
        v.append(s[layer + 1] * (1 - share) + share**2 * v[layer][parent])
    return x, v


def _pool(z: FloatArray, s: FloatArray, total: FloatArray, spread: FloatArray, inner: BoolArray) -> None:
    """Combine, in place, each inner node's own count with the sum of its children, by inverse variance."""
    unseen = inner & (np.isinf(s) | (spread == 0))
    pooled = inner & ~unseen
    own = np.where(pooled, s, 0.0)
    weight = np.divide(spread, own + spread, out=np.zeros_like(s), where=pooled)
    np.copyto(z, weight * z + (1 - weight) * total, where=pooled)
    np.copyto(s, weight * own, where=pooled)
    np.copyto(z, total, where=unseen)
    np.copyto(s, spread, where=unseen)


def nonnegative(
    parents: Sequence[IntArray], estimates: Sequence[FloatArray], weights: Sequence[FloatArray]
) -> FloatArray:
    """Return nonnegative cells that add up along the tree: layer by layer, the nearest ones to the estimates.

    Among siblings the squared distance, divided by ``weights``, is least given their parent's value, so that the upper
    layers, which are the more accurate, are kept. Post-processing: free, and it reads only noisy counts.

    Returns
    -------
    ndarray, shape (cells,)
        Values of the last layer.
    """
    value = np.maximum(estimates[0], 0.0)
    for parent, estimate, weight in zip(parents, estimates[1:], weights[1:], strict=True):
        value = _project(parent, estimate, weight, value)
    return value


def _project(parent: IntArray, estimate: FloatArray, weight: FloatArray, total: FloatArray) -> FloatArray:
    """Project siblings on the simplex of their parent's total: max(estimate - shift * weight, 0), Michelot (1986)."""
    fixed = weight <= 0
    result = np.where(fixed, np.maximum(estimate, 0.0), 0.0)
    rest = np.maximum(total - np.bincount(parent, weights=result, minlength=len(total)), 0.0)
    active = np.flatnonzero(~fixed)
    while True:
        group, guess, scale = parent[active], estimate[active], weight[active]
        spread = np.bincount(group, weights=scale, minlength=len(total))
        excess = np.bincount(group, weights=guess, minlength=len(total)) - rest
        shift = np.divide(excess, spread, out=np.zeros_like(excess), where=spread > 0)
        moved = guess - shift[group] * scale
        keep = moved > 0
        if keep.all():
            result[active] = moved
            return result
        active = active[keep]


def round_cells(
    parents: Sequence[IntArray], values: FloatArray, n_records: int, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Round cells to whole records at random, without bias, so that every node of the tree moves by less than one.

    Siblings are put in random order at every layer, and one systematic sample is taken along the cells: the count of
    any run of neighbouring cells, hence of any node, is its value rounded up or down. Post-processing: free.

    Parameters
    ----------
    parents : sequence of ndarray
        The tree, as for :func:`consistent`.
    values : ndarray, shape (cells,)
        Nonnegative values that add up to ``n_records``.
    n_records : int
        Size of the synthetic table.
    rng : numpy.random.Generator
        For the order and the start of the systematic sample.

    Returns
    -------
    cell, count : ndarray of int64
        The cells that are not empty, and how many records each holds.
    """
    rank = rng.permutation(int(parents[0].max()) + 1).astype(np.float64)
    for parent in parents[:-1]:
        order = np.argsort(rank[parent] + rng.random(len(parent)))
        rank = np.empty(len(parent))
        rank[order] = np.arange(len(parent))
    filled = np.flatnonzero(values > 0)
    if not len(filled):
        return filled, filled
    filled = filled[np.argsort(rank[parents[-1][filled]] + rng.random(len(filled)))]
    reached = np.cumsum(values[filled])
    reached *= n_records / reached[-1]
    nearest = np.rint(reached)
    reached = np.where(np.abs(reached - nearest) < 1e-6, nearest, reached)
    count = np.diff(np.floor(reached + rng.random()), prepend=0.0).astype(np.int64)
    return filled[count > 0], count[count > 0]
