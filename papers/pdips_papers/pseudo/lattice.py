"""The law with a given log density over one to three real numbers, on a lattice that finds where its mass is."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from scipy.interpolate import CubicSpline, make_interp_spline

from pdips.arrays import FloatArray
from pdips.errors import InputError

LogDensity = Callable[[FloatArray], FloatArray]

MOST_DIMENSIONS = 3
ROUNDS = 100
"""Of the search for the peak, before it is given up."""

DROP = 18.0
"""How far below the peak, in nats, the density is followed: e^-18 is 1.5e-8."""

FLOOR = 60.0
"""Log densities further below the peak than this are all one, so that they don't disturb the interpolation."""

FARTHEST = 40.0
"""Standard deviations to either side of the mean beyond which no tail is followed."""

COARSE = {1: 33, 2: 13, 3: 9}
FINE = {1: 129, 2: 41, 3: 21}
UPSAMPLED = {1: 16, 2: 8, 3: 4}
REFINEMENTS = 2


@dataclass(frozen=True, eq=False)
class Lattice:
    """A law on the nodes of a fine lattice, and between them by multilinear interpolation of its density.

    The log density was worked out on a coarser lattice and interpolated by cubic splines, which is exact for normal
    laws and nearly so for what comes close to one.
    """

    centre: FloatArray
    basis: FloatArray
    axes: tuple[FloatArray, ...]
    density: FloatArray
    error: float

    def draws(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Return independent draws, shape (n, d)."""
        node = np.searchsorted(self._cumulated, rng.random(n) * self._cumulated[-1], side="right")
        place = np.unravel_index(np.minimum(node, self.density.size - 1), self.density.shape)
        z = np.column_stack([axis[index] for axis, index in zip(self.axes, place, strict=True)])
        steps = np.array([axis[1] - axis[0] for axis in self.axes])
        # the interpolated density is a mixture of triangular ones, one about each node
        z += steps * (rng.random(z.shape) + rng.random(z.shape) - 1)
        found: FloatArray = self.centre + z @ self.basis.T
        return found

    def nodes(self, least: float = 1e-12) -> tuple[FloatArray, FloatArray]:
        """Return the fine nodes that are likelier than ``least`` times the likeliest, and their probabilities."""
        place = np.nonzero(self.density > least * self.density.max())
        z = np.column_stack([axis[index] for axis, index in zip(self.axes, place, strict=True)])
        weights = self.density[place]
        return self.centre + z @ self.basis.T, weights / weights.sum()

    @cached_property
    def _cumulated(self) -> FloatArray:
        return np.cumsum(self.density.ravel())


def fit(log_density: LogDensity, start: FloatArray, *, tolerance: float = 0.01) -> Lattice:
    """Find where a density has its mass and lay a lattice over it.

    Of several peaks those are found that the first lattices about ``start`` show, 8 wide and then wider: a narrow one
    far from the others may be missed.
    """
    start = np.asarray(start, dtype=np.float64)
    if not 1 <= start.size <= MOST_DIMENSIONS:
        raise InputError(f"a lattice takes one to three parameters, not {start.size}; use NUTS")

    def known(points: FloatArray) -> FloatArray:
        found = np.array(log_density(points), dtype=np.float64)
        found[np.isnan(found)] = -np.inf
        if np.isposinf(found).any():
            raise InputError("the posterior density is infinite somewhere; give the model priors that rule that out")
        return found

    centre, basis = _search(known, start)
    low, high = _bounds(known, centre, basis)
    size, error = FINE[start.size], np.inf
    for refinement in range(REFINEMENTS + 1):
        if refinement:
            size = 2 * size - 1
        nodes = [np.linspace(a, b, size) for a, b in zip(low, high, strict=True)]
        log = known(centre + _product(nodes) @ basis.T).reshape([size] * start.size)
        upsampled = max(UPSAMPLED[start.size] >> refinement, 2)
        density = _interpolate(log, upsampled)
        half = _interpolate(log[(slice(None, None, 2),) * start.size], 2 * upsampled)
        error = float(np.abs(density - half).sum()) / 2
        if error <= tolerance:
            break
    axes = tuple(np.linspace(a, b, n) for a, b, n in zip(low, high, density.shape, strict=True))
    return Lattice(centre, basis, axes, density, error)


def _product(axes: list[FloatArray]) -> FloatArray:
    """Return all nodes of a lattice, the last axis fastest, shape (nodes, d)."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def _search(log_density: LogDensity, start: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a mean and a basis in which the law has about unit covariance.

    Each round works out the density on a lattice, flattens it until several nodes have weight, and fits the next
    lattice to the moments that come out, wider ones first.
    """
    d = start.size
    axis = np.linspace(-4, 4, COARSE[d])
    z = _product([axis] * d)
    edge = (np.abs(z) == axis[-1]).any(axis=1)
    centre, basis = start, np.eye(d)
    for _ in range(ROUNDS):
        points = centre + z @ basis.T
        log = log_density(points)
        best = int(log.argmax())
        if not np.isfinite(log[best]) or edge[best]:
            basis = basis * 2
            continue
        temperature, weights = _flatten(log, 3**d)
        mean = weights @ points
        covariance = (points - mean).T * weights @ (points - mean)
        covariance += (axis[1] - axis[0]) ** 2 / 12 * basis @ basis.T  # where in its cell the mass of a node lies
        found = np.linalg.cholesky(covariance)
        change = (found.diagonal() / basis.diagonal()).prod() ** (1 / d)
        if change > 0.75 and (temperature == 1 or change > 0.95):
            return mean, found
        centre, basis = mean, found
    raise InputError("the posterior has no peak that could be found; give the model proper priors, or use NUTS")


def _flatten(log: FloatArray, n_least: int) -> tuple[float, FloatArray]:
    """Return the weights of nodes, their logs divided by the least number that gives enough nodes weight."""

    def weights(temperature: float) -> FloatArray:
        found: FloatArray = np.exp((log - log.max()) / temperature)
        found /= found.sum()
        return found

    def enough(temperature: float) -> bool:
        return bool(1 / (weights(temperature) ** 2).sum() >= n_least)

    low, high = 1.0, 2.0
    if enough(low):
        return 1.0, weights(1.0)
    while not enough(high) and high < 1e100:
        low, high = high, high**2
    for _ in range(12):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high, weights(high)


def _bounds(log_density: LogDensity, centre: FloatArray, basis: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return how far along each axis the density is to be followed."""
    d = centre.size
    low, high = np.full(d, -6.0), np.full(d, 6.0)
    for _ in range(ROUNDS):
        axes = [np.linspace(a, b, COARSE[d]) for a, b in zip(low, high, strict=True)]
        log = log_density(centre + _product(axes) @ basis.T).reshape([COARSE[d]] * d)
        kept = log > log.max() - DROP
        before = high - low
        grown = False
        for j, axis in enumerate(axes):
            [index] = np.nonzero(kept.any(axis=tuple(other for other in range(d) if other != j)))
            first, last = index[0] == 0, index[-1] == len(axis) - 1
            room = (first and low[j] > -FARTHEST, last and high[j] < FARTHEST)
            low[j] = max(low[j] - before[j] / 2, -FARTHEST) if first else axis[index[0] - 1]
            high[j] = min(high[j] + before[j] / 2, FARTHEST) if last else axis[index[-1] + 1]
            grown |= any(room)
        if not grown and (high - low > 0.7 * before).all():
            break
    return low, high


def _interpolate(log: FloatArray, upsampled: int) -> FloatArray:
    """Return probabilities of the nodes of a finer lattice, ``upsampled`` times as many to an axis."""
    smooth = bool(np.isfinite(log).all())
    log = np.maximum(log - log.max(), -FLOOR)
    coarse = np.arange(log.shape[0])
    fine = np.linspace(0, coarse[-1], upsampled * coarse[-1] + 1)
    for axis in range(log.ndim):  # about a jump a cubic would swing
        spline = CubicSpline if smooth else partial(make_interp_spline, k=1)
        log = spline(coarse, log, axis=axis)(fine)
    density: FloatArray = np.exp(log - log.max())
    density /= density.sum()
    return density
