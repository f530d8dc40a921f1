"""Noisy cell counts and histograms of z (NP-DIPS), as in simulations 3 and 4 of Bowen
and Liu (2020).
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.privacy.noise import RandomBits, discrete_laplace
from pdips_papers.modips.location_model import N_SETS, Bounds, Records, places

Shares = Callable[[IntArray], FloatArray]
"""Makes shares, shape (replicates, sets, places), of counts, shape (replicates, 1,
places).
"""

SCOTT = 3.5
"""Bin width over standard deviation and n^(-1/4), Scott's rule for two numbers."""


def scotts_bins(deviation: FloatArray, n: IntArray, half: FloatArray) -> IntArray:
    """Return Scott's numbers of bins between the bounds, at least 1: read off the
    sample, so never private.
    """
    width = SCOTT * deviation * np.maximum(n, 1)[..., None] ** -0.25
    one = np.full(width.shape, 1.0)
    ratio = np.divide(2 * half, width, out=one, where=width > 0)
    number: FloatArray = np.maximum(np.ceil(ratio), 1)
    return number.astype(np.int64)


def two_steps(
    data: Records, bounds: Bounds, bins: IntArray, scale: Fraction, bits: RandomBits
) -> Records:
    """Sanitize the counts of the cells, and a histogram of z within each, once for each
    set (simulation 3).
    """
    rng = bits.generator()
    n_rows = len(data.cell)
    cells = bounds.cells
    flat_counts = np.bincount(places(data.cell, cells), minlength=n_rows * cells)
    counts = flat_counts.reshape(n_rows, 1, cells)
    drawn = rng.multinomial(data.n, noisy_shares(counts, scale, bits))
    cell = _in_order(drawn)
    return Records(cell, _within(data, bounds, bins, scale, bits, cell))


def _in_order(drawn: IntArray) -> IntArray:
    """Return the place of each record, from the numbers of records of all places, which
    are the last axis.
    """
    *first, n_places = drawn.shape
    all_places = np.tile(np.arange(n_places), int(np.prod(first)))
    return np.repeat(all_places, drawn.ravel()).reshape(*first, -1)


def _within(
    data: Records,
    bounds: Bounds,
    bins: IntArray,
    scale: Fraction,
    bits: RandomBits,
    cell: IntArray,
) -> FloatArray:
    """Draw z from a noisy histogram of the record's cell. Histograms of all sizes lie
    one after another.
    """
    rng = bits.generator()
    cells = bounds.cells
    flat = bins.reshape(-1, 2)
    size = flat.prod(axis=1)
    first = np.append(0, np.cumsum(size))
    home = places(data.cell, cells)
    index = _bin_index(data.z.reshape(-1, 2), data.cell.ravel(), bounds, flat[home])
    counts = np.bincount(first[home] + index, minlength=first[-1])
    target = cell + cells * np.arange(len(cell))[:, None, None]
    z = np.empty((*cell.shape, 2))
    for number in range(N_SETS):
        noisy = np.maximum(counts + discrete_laplace(scale, len(counts), bits), 0)
        total = np.add.reduceat(noisy, first[:-1])
        noisy += np.repeat(total == 0, size)
        reached = np.append(0, np.cumsum(noisy)).astype(np.float64)
        of = target[:, number]
        low = reached[first[of]]
        high = reached[first[of + 1]]
        uniform = low + rng.random(of.shape) * (high - low)
        bin_drawn = np.searchsorted(reached, uniform, side="right") - 1
        chosen = np.clip(bin_drawn, first[of], first[of + 1] - 1) - first[of]
        z[:, number] = _spread(chosen, cell[:, number], bounds, flat[of], rng)
    return z


def one_step(
    data: Records,
    bounds: Bounds,
    bins: IntArray,
    shares: Shares,
    rng: np.random.Generator,
) -> Records:
    """Draw from shares made of the full cross-tabulation of cells and bins of z
    (simulation 4).

    ``bins`` has shape (replicates, numbers); the rest is as in :func:`two_steps`.
    """
    cells = bounds.cells
    n = data.n
    parts = []
    for pair in np.unique(bins, axis=0):
        chosen = np.flatnonzero((bins == pair).all(axis=1))
        cell = data.cell[chosen, 0]
        z = data.z[chosen, 0]
        size = int(pair.prod())
        of_records = np.broadcast_to(pair, z.shape)
        place = cell * size + _bin_index(z, cell, bounds, of_records)
        of_rows = places(place[:, None], cells * size)
        counts = np.bincount(of_rows, minlength=len(chosen) * cells * size)
        drawn = rng.multinomial(n, shares(counts.reshape(len(chosen), 1, -1)))
        index = _in_order(drawn)
        new_cell = index // size
        shape = np.broadcast_to(pair, (*index.shape, len(pair)))
        new_z = _spread(index % size, new_cell, bounds, shape, rng)
        parts.append((chosen, new_cell, new_z))
    rows, cell, z = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(rows)
    return Records(cell[order], z[order])


def noisy_shares(counts: IntArray, scale: Fraction, bits: RandomBits) -> FloatArray:
    """Return shares in proportion to noisy counts, those below 0 taken as 0; even ones
    where none is above it.
    """
    shape = (counts.shape[0], N_SETS, counts.shape[2])
    noise = discrete_laplace(scale, int(np.prod(shape)), bits).reshape(shape)
    noisy = np.maximum(counts + noise, 0)
    noisy[noisy.sum(axis=2) == 0] = 1
    return np.asarray(noisy / noisy.sum(axis=2, keepdims=True))


def _bin_index(
    z: FloatArray, cell: IntArray, bounds: Bounds, shape: IntArray
) -> IntArray:
    """Number the bins that records fall into, those of the last number fastest."""
    share = (z - bounds.middle[cell] + bounds.half) / (2 * bounds.half)
    place = np.clip((share * shape).astype(np.int64), 0, shape - 1)
    return np.asarray((place * _strides(shape)).sum(axis=-1))


def _strides(shape: IntArray) -> IntArray:
    products = np.cumprod(shape[..., ::-1], axis=-1)[..., ::-1]
    return np.asarray(products // shape)


def _spread(
    index: IntArray,
    cell: IntArray,
    bounds: Bounds,
    shape: IntArray,
    rng: np.random.Generator,
) -> FloatArray:
    """Draw z evenly within bins."""
    place = index[..., None] // _strides(shape) % shape
    share = (place + rng.random(place.shape)) / shape
    return np.asarray(bounds.middle[cell] + bounds.half * (2 * share - 1))
