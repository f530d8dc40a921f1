"""Counts on a tree made consistent by generalised least squares, nonnegative, and whole.

All of it is post-processing of noisy counts: it reads no record and costs nothing.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.totals import KnownTable


def consistent(
    parents: Sequence[IntArray], observed: Sequence[ArrayLike], variances: Sequence[FloatArray]
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Return the generalised least squares estimates of all counts of a tree, given that children add up, by layer.

    Of noisy counts by layer with their variances: 0 for an exact count, infinity for a node that was not observed and
    has children. ``parents`` holds, for each layer but the first, the index of each node's parent; nodes without
    children are leaves, wherever they are. Also returns the variances of the estimates. Where an exact node has only
    exact descendants, these decide. Two passes over the tree: docs/proofs/steps.md. With equal fan-out and equal
    variances this is Hay, Rastogi, Miklau and Suciu (2010), theorem 3.
    """
    z, s = ([np.array(each, dtype=np.float64) for each in both] for both in (observed, variances))
    sums, sum_variances = list[FloatArray](), list[FloatArray]()
    for layer in range(len(parents) - 1, -1, -1):
        n_above = len(z[layer])
        total = np.bincount(parents[layer], weights=z[layer + 1], minlength=n_above)
        spread = np.bincount(parents[layer], weights=s[layer + 1], minlength=n_above)
        inner = np.bincount(parents[layer], minlength=n_above) > 0
        _pool(z[layer], s[layer], total, spread, inner)
        sums.insert(0, total)
        sum_variances.insert(0, spread)
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
    layers, which are the more accurate, are kept.
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
    any run of neighbouring cells, hence of any node, is its value rounded up or down. The nonnegative values are scaled
    to add up to ``n_records``. Returns the cells that are not empty, and how many records each holds.
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


def draw_cells(group: IntArray, values: FloatArray, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Draw records independently of each other, of each group as many as its cells add up to.

    ``group`` numbers the group of each cell and never falls. Returns what :func:`round_cells` does.
    """
    ends = np.cumsum(values)
    reached = ends[np.append(np.flatnonzero(np.diff(group)), len(group) - 1)]
    first, width = np.concatenate([[0.0], reached[:-1]]), np.diff(reached, prepend=0.0)
    each = np.rint(width).astype(np.int64)
    places = np.repeat(first, each) + rng.random(each.sum()) * np.repeat(width, each)
    places = np.minimum(
        places, np.nextafter(np.repeat(reached, each), 0)
    )  # a sum that is rounded up stays in its group
    return np.unique(np.searchsorted(ends, places, side="right"), return_counts=True)


def earlier(values: NDArray[np.integer]) -> IntArray:
    """Return of each value how many equal ones come before it."""
    order = np.argsort(values, kind="stable")
    found, ordered = np.empty(len(values), dtype=np.int64), values[order]
    found[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return found


def rounded_counts(shares: FloatArray, n: int) -> IntArray:
    """Return whole numbers that add up to n, nearest to shares of it by largest remainders."""
    exact = shares / shares.sum() * n
    found = np.floor(exact).astype(np.int64)
    found[np.argsort(found - exact)[: n - found.sum()]] += 1
    return found


def levelled(
    own: NDArray[np.integer], counts: IntArray, gain: Callable[[IntArray, int], FloatArray], rng: np.random.Generator
) -> NDArray[np.integer]:
    """Return levels of which as few as can be were exchanged, the likeliest ones, so that their counts are these.

    ``gain`` says of some places by how much the log density rises with another level, -inf where it can't occur.
    """
    own = own.copy()
    for level in np.flatnonzero(counts > np.bincount(own, minlength=len(counts))):
        present = np.bincount(own, minlength=len(counts))
        many = np.flatnonzero((present > counts)[own])
        drawn = gain(many, int(level)) - np.log(-np.log(rng.random(len(many))))
        ranked = many[np.argsort(-drawn)][: np.isfinite(drawn).sum()]
        spare, missing = present - counts, counts[level] - present[level]
        own[ranked[earlier(own[ranked]) < spare[own[ranked]]][:missing]] = level
    return own


def meet(
    tables: Sequence[KnownTable],
    codes: dict[str, IntArray],
    gain: Callable[[IntArray, str, int], FloatArray],
    rng: np.random.Generator,
) -> None:
    """Exchange levels of records, in place, until the counts of public totals are theirs, rounded.

    Totals come in an order in which each shares columns with one of those before it at most. So those columns are met,
    and stay; the others are met one after the other, within each combination of what has been met.
    """
    done = set[str]()
    for table in tables:
        held = sorted(done & set(table.columns), key=table.columns.index)
        order = [*held, *(name for name in table.columns if name not in done)]
        shares, sizes = table.margin(order), [table.shares.shape[table.columns.index(name)] for name in order]
        wanted, before = np.zeros_like(shares, dtype=np.int64), _cells(codes, held, sizes)
        for cell, n in enumerate(np.bincount(before, minlength=1)):
            place = np.unravel_index(cell, sizes[: len(held)]) if held else ()
            if n and shares[place].sum() > 0:
                wanted[place] = rounded_counts(shares[place].ravel(), int(n)).reshape(shares[place].shape)
        for k in range(len(held), len(order)):
            within = _cells(codes, order[:k], sizes)
            counts = wanted.sum(axis=tuple(range(k + 1, len(order)))).reshape(-1, sizes[k])
            for cell in np.unique(within):
                rows = np.flatnonzero(within == cell)
                if counts[cell].sum() == len(rows):

                    def own(some: IntArray, level: int, name: str = order[k], rows: IntArray = rows) -> FloatArray:
                        return gain(rows[some], name, level)

                    codes[order[k]][rows] = levelled(codes[order[k]][rows], counts[cell], own, rng)
        done |= set(order)


def _cells(codes: dict[str, IntArray], names: Sequence[str], sizes: Sequence[int]) -> IntArray:
    if not names:
        return np.zeros(len(next(iter(codes.values()))), dtype=np.int64)
    return np.ravel_multi_index(tuple(codes[name] for name in names), sizes[: len(names)]).astype(np.int64)
