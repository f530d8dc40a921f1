"""Compiled code of the chains of a pairwise Markov random field."""

import math
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from pdips.arrays import IntArray
from pdips.margins.consistency import Codes

Floats32 = NDArray[np.float32]


class Parameters(NamedTuple):
    """What the law of a level depends on, in the form that compiled code takes: blocks
    in the order in which a sweep redraws them.
    """

    theta: Floats32
    bias: Floats32
    third: Floats32
    layout: IntArray
    offsets: IntArray
    group: Codes


@numba.njit(fastmath=True, inline="always")
def _add(pull, row):  # type: ignore[no-untyped-def]
    # slices begin at 0: only so are several added at once
    for a in range(len(pull)):
        pull[a] += row[a]


@numba.njit(fastmath=True, inline="always")
def _add_up(pull, bias, theta, offsets, codes, order):  # type: ignore[no-untyped-def]
    """Set to the sum of the parameters of each level with a record's levels in blocks
    that are redrawn later.
    """
    pull[:] = bias
    for q in range(len(codes)):
        row = theta[offsets[q] + codes[order[q]]]
        _add(pull[: offsets[q]], row[: offsets[q]])


@numba.njit(fastmath=True, inline="always")
def _add_triples(added, codes, block, first, end, layout, third):  # type: ignore[no-untyped-def]
    """Set to the sum of the parameters of triples that each level of a block is in."""
    added[first:end] = 0
    for t in range(len(layout)):
        for axis in range(3):
            if layout[t, 1 + axis] == block:
                cell = layout[t, 0]
                stride = layout[t, 4 + axis]
                for other in range(3):
                    if other != axis:
                        cell += codes[layout[t, 1 + other]] * layout[t, 4 + other]
                for a in range(first, end):
                    added[a] += third[cell + (a - first) * stride]


@numba.njit(fastmath=True, inline="always")
def _draw_level(weight, pull, group, fixed, uniform):  # type: ignore[no-untyped-def]
    """Return a level by its weight, the exponential of its parameters, among those
    that are open.
    """
    top = np.float32(-1e30)
    for a in range(len(pull)):
        if (fixed < 0 or group[a] == fixed) and pull[a] > top:
            top = pull[a]
    total = np.float32(0)
    for a in range(len(pull)):
        is_open = fixed < 0 or group[a] == fixed
        weight[a] = math.exp(pull[a] - top) if is_open else np.float32(0)
        total += weight[a]
    left = uniform * total
    chosen = 0
    for a in range(len(pull)):
        if weight[a] > 0:
            chosen = a
            left -= weight[a]
            if left < 0:
                break
    return chosen


@numba.njit(cache=True, nogil=True)
def add_gains(rise, codes, block, levels, offsets, own):  # type: ignore[no-untyped-def]
    """Add by how much the parameters of each record with another level of a block, in
    ``own``, shape (levels, levels of the block), are larger.
    """
    n, d = codes.shape
    for r in range(n):
        for other in range(d):
            if other != block:
                row = own[offsets[other] + codes[r, other]]
                rise[r] += row[levels[r]] - row[codes[r, block]]


@numba.njit(cache=True, fastmath=True, nogil=True)
def sweep(codes, fixed, parameters, uniform, order):  # type: ignore[no-untyped-def]
    """Redraw the level of every block of every chain given the others, within the group
    of levels that is fixed.

    ``pull`` holds the sum of the parameters of a level with those of a record: as they
    were of blocks that are redrawn later, as they are of those before.
    """
    theta, bias, third, layout, offsets, group = parameters
    n, d = codes.shape
    width = len(bias)
    pull = np.empty(width, dtype=np.float32)
    weight = np.empty(width, dtype=np.float32)
    added = np.zeros(width, dtype=np.float32)
    for r in range(n):
        _add_up(pull, bias, theta, offsets, codes[r], order)
        for q in range(d):
            i = order[q]
            first = offsets[q]
            end = offsets[q + 1]
            own = pull[first:end]
            if len(layout):
                _add_triples(added, codes[r], i, first, end, layout, third)
                _add(own, added[first:end])
            chosen = _draw_level(
                weight[first:end],
                own,
                group[first:end],
                fixed[r, i],
                uniform[r, q],
            )
            codes[r, i] = chosen
            _add(pull[end:], theta[first + chosen][end:])
