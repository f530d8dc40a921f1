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
        value = simplex_projection(estimate, value, parent, weight)
    return value


def simplex_projection(
    values: FloatArray, totals: FloatArray, group: IntArray | None = None, weights: FloatArray | None = None
) -> FloatArray:
    """Return the nearest nonnegative numbers that add up to given totals: max(value - shift * weight, 0).

    Michelot (1986), for many simplexes at once.

    Parameters
    ----------
    values : ndarray, shape (numbers,)
        What to stay close to.
    totals : ndarray, shape (groups,)
        What the numbers of each group add up to.
    group : ndarray, shape (numbers,), optional
        The group of each number; left out, there is one.
    weights : ndarray, shape (numbers,), optional
        By which squared distances are divided; 0 for numbers that stay as they are, or become 0 if they are negative.
    """
    group = np.zeros(len(values), dtype=np.int64) if group is None else group
    weights = np.ones(len(values)) if weights is None else weights
    fixed = weights <= 0
    result = np.where(fixed, np.maximum(values, 0.0), 0.0)
    rest = np.maximum(totals - np.bincount(group, weights=result, minlength=len(totals)), 0.0)
    active = np.flatnonzero(~fixed)
    while True:
        place, guess, scale = group[active], values[active], weights[active]
        spread = np.bincount(place, weights=scale, minlength=len(totals))
        excess = np.bincount(place, weights=guess, minlength=len(totals)) - rest
        shift = np.divide(excess, spread, out=np.zeros_like(excess), where=spread > 0)
        moved = guess - shift[place] * scale
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
