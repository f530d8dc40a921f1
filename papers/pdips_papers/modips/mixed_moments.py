"""The general location model of simulations 3 and 4 of paper 003: its statistics, with noise, and draws given them."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.privacy.noise import RandomBits, discrete_laplace, discrete_laplace_variance, quantise
from pdips_papers.harness.conjugate import draw_covariances, draw_shares, nearest_covariance

N_SETS = 5
STEPS = 512
"""Grid steps in half a range: records are rounded to it before they are added up (SOUNDNESS 7.2, review E5)."""

PRIOR = 0.5
"""Parameter of the Dirichlet prior for each cell, as in the paper."""

LEAST = 2.0**-10
"""Least eigenvalue of a noisy covariance matrix, in squared half ranges."""

FINE = 2**20

PAIRS = ((0, 0), (1, 1), (0, 1))


@dataclass(frozen=True)
class Records:
    """Data sets, or synthetic sets, of a coded cell and two numbers.

    Parameters
    ----------
    cell : ndarray of int64, shape (replicates, sets, n)
        Cell of the categorical variables; one set for data.
    z : ndarray, shape (replicates, sets, n, 2)
    """

    cell: IntArray
    z: FloatArray

    @property
    def n(self) -> int:
        """Number of records of a set."""
        return int(self.cell.shape[2])


@dataclass(frozen=True)
class Bounds:
    """Public bounds of z in each cell: the midpoint give or take half a range.

    Parameters
    ----------
    middle : ndarray, shape (cells, 2)
    half : ndarray, shape (2,)
        The same in all cells, so that a record that changes cell changes sums of z - middle as if bounds were common.
    """

    middle: FloatArray
    half: FloatArray

    @property
    def cells(self) -> int:
        """Number of cells."""
        return len(self.middle)

    def clip(self, cell: IntArray, z: FloatArray) -> FloatArray:
        """Move what is out of bounds to them."""
        middle = self.middle[cell]
        return np.clip(z, middle - self.half, middle + self.half)

    def units(self, records: Records) -> IntArray:
        """Return the distances of z from the middle in whole steps of half / ``STEPS``."""
        apart = records.z - self.middle[records.cell]
        return np.stack([quantise(apart[..., j], Fraction(self.half[j]) / STEPS) for j in (0, 1)], axis=-1)


@dataclass(frozen=True)
class Parameters:
    """Draws of the parameters of a general location model.

    Parameters
    ----------
    shares : ndarray, shape (replicates, sets, cells)
        Probabilities of the cells.
    means : ndarray, shape (replicates, sets, cells, 2)
        Means of z in each cell.
    covariance : ndarray, shape (replicates, sets, 2, 2)
        Of z about these means, common to all cells.
    """

    shares: FloatArray
    means: FloatArray
    covariance: FloatArray


@dataclass(frozen=True)
class Statistics:
    """Statistics in whole numbers, exact or with noise; u is z - middle in grid steps.

    Parameters
    ----------
    counts : ndarray of int64, shape (replicates, cells)
        Records in each cell.
    sums : ndarray of int64, shape (replicates, cells, 2)
        Of u in each cell.
    products : ndarray of int64, shape (replicates, 3)
        Sums of u_1^2, u_2^2 and u_1 u_2 over all cells.
    n : int
        Number of records: public.
    scales : tuple of Fraction
        Of the discrete Laplace noise on counts, sums, squares and the product, in steps; 0 where exact.
    """

    counts: IntArray
    sums: IntArray
    products: IntArray
    n: int
    scales: tuple[Fraction, Fraction, Fraction, Fraction] = (Fraction(0),) * 4


def observe(data: Records, bounds: Bounds) -> Statistics:
    """Add up the records of data sets, shape (replicates, 1, n), rounded to the grid."""
    cell, u = data.cell[:, 0], bounds.units(data)[:, 0]
    place = (cell + bounds.cells * np.arange(len(cell))[:, None]).ravel()
    size = len(cell) * bounds.cells
    sums = [np.bincount(place, u[..., j].ravel(), size).astype(np.int64) for j in (0, 1)]
    return Statistics(
        counts=np.bincount(place, minlength=size).reshape(-1, bounds.cells),
        sums=np.stack(sums, axis=-1).reshape(-1, bounds.cells, 2),
        products=np.stack([(u[..., j] * u[..., k]).sum(axis=1) for j, k in PAIRS], axis=-1),
        n=data.n,
    )


def sanitised(exact: Statistics, epsilon: Fraction, bits: RandomBits) -> Statistics:
    """Add noise once, the whole epsilon in equal shares: counts (unless there is one cell), two sums, three products.

    Replacing a record changes two counts by 1, a sum over the cells by ``STEPS`` in each of two cells, a sum of squares
    by ``STEPS``^2 and the sum of products by twice that at most (SOUNDNESS 5.5, review E5); with one cell a sum changes
    by 2 ``STEPS`` as well.
    """
    cells = exact.counts.shape[1]
    share = epsilon / (6 if cells > 1 else 5)
    scales = (
        Fraction(2) / share if cells > 1 else Fraction(0),
        2 * STEPS / share,
        STEPS**2 / share,
        2 * STEPS**2 / share,
    )

    def noise(scale: Fraction, shape: tuple[int, ...]) -> IntArray:
        return discrete_laplace(scale, math.prod(shape), bits).reshape(shape)

    products = exact.products.copy()
    products[:, :2] += noise(scales[2], products[:, :2].shape)
    products[:, 2] += noise(scales[3], products[:, 2].shape)
    return replace(
        exact,
        counts=exact.counts + noise(scales[0], exact.counts.shape) if cells > 1 else exact.counts,
        sums=exact.sums + noise(scales[1], exact.sums.shape),
        products=products,
        scales=scales,
    )


def plug_in(noisy: Statistics, bounds: Bounds, n_sets: int, rng: np.random.Generator) -> Parameters:
    """Draw parameters as if noisy statistics were exact: ``n_sets`` independent draws from one posterior.

    Before that, all of it post-processing: counts are moved to 1 at least, cell means into their bounds, and the
    eigenvalues of the pooled covariance matrix into what bounds allow. What noise adds on average to the square of a
    sum is taken off, as far as the square stays nonnegative.
    """
    counts, units = np.maximum(noisy.counts, 1), bounds.half / STEPS
    means = np.clip(noisy.sums / counts[..., None], -STEPS, STEPS)
    extra = discrete_laplace_variance(noisy.scales[1]) if noisy.scales[1] else 0.0
    square = np.minimum(np.maximum(noisy.sums.astype(np.float64) ** 2 - extra, 0) / counts[..., None], _most(counts))
    cross = (counts * means[..., 0] * means[..., 1]).sum(axis=1)
    spread = np.empty((len(counts), 2, 2))
    for j in (0, 1):
        spread[:, j, j] = noisy.products[:, j] - square[..., j].sum(axis=1)
    spread[:, 0, 1] = spread[:, 1, 0] = noisy.products[:, 2] - cross
    spread = nearest_covariance(spread / STEPS**2 / noisy.n, LEAST, 1.0) * np.outer(bounds.half, bounds.half)
    return conjugate(counts, means * units + bounds.middle, spread, noisy.n, n_sets, rng)


def _most(counts: IntArray) -> FloatArray:
    return np.asarray(counts[..., None] * float(STEPS) ** 2)


def conjugate(
    counts: IntArray,
    means: FloatArray,
    spread: FloatArray,
    n: int,
    n_sets: int,
    rng: np.random.Generator,
) -> Parameters:
    """Draw from the posterior of section 4.3.1, given counts, cell means and the covariance matrix with divisor n.

    Parameters
    ----------
    counts : ndarray, shape (replicates, cells) or (replicates, sets, cells)
        At least 1 where they divide; the second shape has a sanitisation of its own for each set.
    means : ndarray, shape (..., cells, 2)
    spread : ndarray, shape (..., 2, 2)
    n, n_sets : int
        Number of records, and of draws.
    rng : Generator
        Source of randomness.

    Notes
    -----
    Dirichlet(counts + 1/2); inverse Wishart on n - K degrees, whose scale is n times the matrix (the paper prints the
    matrix itself, which can't be meant: its draws would be n times too small); N(mean, covariance / count).
    """
    if counts.ndim == 2:
        counts = np.repeat(counts[:, None], n_sets, axis=1)
        means, spread = (np.repeat(array[:, None], n_sets, axis=1) for array in (means, spread))
    cells = counts.shape[-1]
    covariance = draw_covariances(n * spread, n - cells, rng)
    root = np.linalg.cholesky(covariance)[:, :, None]
    noise = rng.standard_normal(means.shape) / np.sqrt(np.maximum(counts, 1))[..., None]
    return Parameters(
        shares=draw_shares(np.maximum(counts, 0) + PRIOR, rng),
        means=means + (root @ noise[..., None])[..., 0],
        covariance=covariance,
    )


def exact_posterior(data: Records, cells: int, rng: np.random.Generator) -> Parameters:
    """Draw parameters given the data themselves, for multiple synthesis without privacy."""
    counts, means, spread = cell_moments(data, cells)
    return conjugate(counts[:, 0], means[:, 0], spread[:, 0], data.n, N_SETS, rng)


def as_printed(data: Records, bounds: Bounds, epsilon: Fraction, bits: RandomBits) -> Parameters:
    """Draw parameters as the paper prints it: cell means with scale R / (n_k e), e the share of a component.

    Each of five sets has a sanitisation of its own at epsilon / 5 in six equal shares. The confidential counts set the
    scale of the noise on the cell means and the spread of their draws, so no epsilon is finite; the sensitivity of the
    off-diagonal entry is up to 2 times too small (5.5).
    """
    counts, means, spread = cell_moments(data, bounds.cells)
    counts, means, spread = (np.repeat(counts, N_SETS, 1), np.repeat(means, N_SETS, 1), np.repeat(spread, N_SETS, 1))
    n, cells, rng = data.n, bounds.cells, bits.generator()
    share = float(epsilon) / (6 * N_SETS)
    noisy_counts = counts + unit_noise(counts.shape, bits) / share
    size = 2 * bounds.half / np.maximum(counts, 1)[..., None] / share
    noisy_means = bounds.clip(np.arange(cells), means + size * unit_noise(means.shape, bits))
    noisy_spread = noisy_covariance(spread, bounds, (n - 1) / (n * (n - cells)) / share, bits)
    drawn = conjugate(counts, noisy_means, noisy_spread, n, N_SETS, rng)
    return replace(drawn, shares=draw_shares(np.maximum(noisy_counts, 0) + PRIOR, rng))


def unit_noise(shape: tuple[int, ...], bits: RandomBits) -> FloatArray:
    """Draw Laplace noise of scale 1 on a grid of 2^-20, for published rows, whose scales depend on the data."""
    drawn = discrete_laplace(Fraction(FINE), math.prod(shape), bits)
    return np.asarray(drawn.reshape(shape) / FINE)


def noisy_covariance(spread: FloatArray, bounds: Bounds, factor: float, bits: RandomBits) -> FloatArray:
    """Add noise of scale R_j R_k ``factor`` to each entry (R the range), and move the result into what bounds allow."""
    root, noise = 2 * bounds.half, unit_noise((*spread.shape[:-2], 3), bits) * factor
    found = spread / np.outer(bounds.half, bounds.half)
    for place, (j, k) in enumerate(PAIRS):
        found[..., j, k] += noise[..., place] * root[j] * root[k] / (bounds.half[j] * bounds.half[k])
    found[..., 1, 0] = found[..., 0, 1]
    return nearest_covariance(found, LEAST, 1.0) * np.outer(bounds.half, bounds.half)


def cell_moments(records: Records, cells: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return counts and means by cell (0 in empty ones), and the covariance matrix about them with divisor n.

    Returns
    -------
    counts : ndarray of int64, shape (replicates, sets, cells)
    means : ndarray, shape (replicates, sets, cells, 2)
    spread : ndarray, shape (replicates, sets, 2, 2)
    """
    shape = (*records.cell.shape[:2], cells)
    place, size = places(records.cell, cells), math.prod(shape)
    counts = np.bincount(place, minlength=size)
    sums = [np.bincount(place, records.z[..., j].ravel(), size) / np.maximum(counts, 1) for j in (0, 1)]
    apart = [(records.z[..., j].ravel() - sums[j][place]).reshape(records.cell.shape) for j in (0, 1)]
    spread = np.empty((*shape[:2], 2, 2))
    for j, k in PAIRS:
        spread[..., j, k] = spread[..., k, j] = np.einsum("rsn,rsn->rs", apart[j], apart[k]) / records.n
    return counts.reshape(shape), np.stack(sums, axis=-1).reshape(*shape, 2), spread


def places(cell: IntArray, cells: int) -> IntArray:
    """Number the cells of all sets through, flat."""
    first = cells * np.arange(math.prod(cell.shape[:2])).reshape(*cell.shape[:2], 1)
    return np.asarray((cell + first).ravel())


def draw_records(drawn: Parameters, n: int, rng: np.random.Generator, bounds: Bounds | None = None) -> Records:
    """Draw ``n`` records a set; with bounds, what is out of them moves to them."""
    counts = rng.multinomial(n, drawn.shares)
    cells = counts.shape[-1]
    cell = np.repeat(np.tile(np.arange(cells), math.prod(counts.shape[:2])), counts.ravel())
    cell = cell.reshape(*counts.shape[:2], n)
    z = rng.standard_normal((*cell.shape, 2)) @ np.swapaxes(np.linalg.cholesky(drawn.covariance), -1, -2)
    z += drawn.means.reshape(-1, 2)[places(cell, cells)].reshape(z.shape)
    return Records(cell, z if bounds is None else bounds.clip(cell, z))
