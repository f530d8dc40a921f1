"""Sums of independent counts, and draws of counts given their sum, compiled."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def convolve(left, right, longest):  # type: ignore[no-untyped-def]
    """Return the first ``longest`` entries of the convolution of two nonnegative vectors, by sums of products.

    No term is subtracted, so that every entry has a small relative error however small it is.
    """
    length = min(left.shape[0] + right.shape[0] - 1, longest)
    found = np.zeros(length)
    for i in range(min(left.shape[0], length)):
        if left[i] == 0.0:
            continue
        for j in range(min(right.shape[0], length - i)):
            found[i + j] += left[i] * right[j]
    return found


@njit(cache=True, nogil=True)
def _share(total, left, right, weights, start, low, length, uniform):  # type: ignore[no-untyped-def]
    """Return how much of a total goes to the left of two independent sums; -1 if no share is possible."""
    first = max(low[left], total - (low[right] + length[right] - 1))
    last = min(low[left] + length[left] - 1, total - low[right])
    here, there = start[left] - low[left], start[right] + total - low[right]
    whole = 0.0
    for share in range(first, last + 1):
        whole += weights[here + share] * weights[there - share]
    if not whole > 0.0:
        return -1
    reached, aim, possible = 0.0, uniform * whole, -1
    for share in range(first, last + 1):
        term = weights[here + share] * weights[there - share]
        if term > 0.0:
            possible = share
            reached += term
            if reached > aim:
                break
    return possible


@njit(cache=True, nogil=True)
def split(sums, n_levels, root, left, right, weights, start, low, length, rng, counts):  # type: ignore[no-untyped-def]
    """Draw the leaves of a binary tree of sums given the sum of all, into ``counts``, shape (draws, 2^n_levels).

    ``sums`` has that of each draw.
    Node ``k`` is the sum of ``left[k]`` and ``right[k]``; its law is ``weights[start[k] : start[k] + length[k]]``, from
    the value ``low[k]`` on. Returns False if some total could not be split.
    """
    nodes = np.empty(n_levels + 2, dtype=np.int64)
    totals = np.empty(n_levels + 2, dtype=np.int64)
    places = np.empty(n_levels + 2, dtype=np.int64)
    levels = np.empty(n_levels + 2, dtype=np.int64)
    for draw in range(counts.shape[0]):
        nodes[0], totals[0], places[0], levels[0] = root, sums[draw], 0, n_levels
        top = 1
        while top > 0:
            top -= 1
            node, mine, place, level = nodes[top], totals[top], places[top], levels[top]
            if mine == 0:
                continue
            if level == 0:
                counts[draw, place] = mine
                continue
            share = _share(mine, left[node], right[node], weights, start, low, length, rng.random())
            if share < 0:
                return False
            nodes[top], totals[top], places[top], levels[top] = left[node], share, 2 * place, level - 1
            top += 1
            nodes[top], totals[top], places[top], levels[top] = right[node], mine - share, 2 * place + 1, level - 1
            top += 1
    return True


@njit(cache=True, nogil=True)
def invert(weights, uniforms):  # type: ignore[no-untyped-def]
    """Return, for each row of weights and each of its uniforms, which entry is drawn, shape (rows, draws)."""
    found = np.empty(uniforms.shape, dtype=np.int64)
    for row in range(weights.shape[0]):
        sums = np.cumsum(weights[row])
        aims = uniforms[row] * sums[-1]
        places = np.searchsorted(sums, aims, side="right")
        for draw in range(uniforms.shape[1]):
            place = min(places[draw], weights.shape[1] - 1)
            while place > 0 and weights[row, place] == 0.0:
                place -= 1
            found[row, draw] = place
    return found
