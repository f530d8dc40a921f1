"""Public grids of parameter values, and exact draws from a posterior on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pymc as pm

from pdips.arrays import FloatArray, IntArray
from pdips.posterior.density import Density

NODES = {1: 4096, 2: 192, 3: 40}
"""Most nodes along each axis, by number of parameters."""

FINEST = {1: 0.02, 2: 0.3, 3: 0.4}
"""Distance of neighbouring nodes at an anchor, in standard deviations of a posterior there, by number of parameters."""

GROWTH = {1: 0.01, 2: 0.05, 3: 0.1}
"""How much further apart the next nodes may be, as a share, where there are nodes enough."""


@dataclass(frozen=True, eq=False)
class Anchor:
    """Where a grid is finest, and how wide a posterior would be there: public.

    Parameters
    ----------
    place : ndarray, shape (parameters,)
        In the model's unconstrained space.
    shape : ndarray, shape (parameters, parameters)
        Its columns are the axes, one standard deviation long.
    reach : float
        How far the grid goes along each axis, in standard deviations.
    even : bool
        Whether nodes are as far apart everywhere.
    """

    place: FloatArray
    shape: FloatArray
    reach: float
    even: bool = False


@dataclass(frozen=True, eq=False)
class Grid:
    """A finite public set of cells in a model's unconstrained space.

    Parameters
    ----------
    density : Density
        The model's log density.
    anchor : Anchor
        Its middle, axes and extent.
    """

    density: Density
    anchor: Anchor

    @property
    def n_axes(self) -> int:
        """Number of parameters."""
        return len(self.anchor.place)

    @cached_property
    def n_nodes(self) -> int:
        """Nodes along each axis."""
        growth = GROWTH[self.n_axes]
        half = np.arcsinh(growth * self.anchor.reach / FINEST[self.n_axes]) / growth
        return NODES[self.n_axes] if self.anchor.even else min(NODES[self.n_axes], 2 * int(np.ceil(half)) + 1)

    @cached_property
    def finest(self) -> float:
        """Distance of neighbouring nodes at the anchor, in standard deviations."""
        even = 2 * self.anchor.reach / (self.n_nodes - 1)
        return even if self.anchor.even else min(even, FINEST[self.n_axes])

    @cached_property
    def growth(self) -> float:
        """By how much nodes move apart, relative to their distance from the anchor."""
        half, wanted = (self.n_nodes - 1) / 2, self.anchor.reach / self.finest
        low, high = 1e-9, 100.0
        for _ in range(100):
            middle = (low * high) ** 0.5
            low, high = (low, middle) if np.sinh(min(middle * half, 700)) / middle > wanted else (middle, high)
        return low

    def along(self, index: FloatArray) -> FloatArray:
        """Return the distance from the anchor, in standard deviations, at an index from 0 to ``n_nodes - 1``."""
        offset = index - (self.n_nodes - 1) / 2
        return np.asarray(self.finest * np.sinh(self.growth * offset) / self.growth)

    def indices(self) -> IntArray:
        """Return the index of each cell along each axis, shape (cells, parameters)."""
        axes = np.meshgrid(*[np.arange(self.n_nodes)] * self.n_axes, indexing="ij")
        return np.stack([axis.ravel() for axis in axes], axis=1)

    def at(self, index: FloatArray | IntArray) -> FloatArray:
        """Return the unconstrained parameters at some indices, shape (cells, parameters)."""
        steps = self.along(np.asarray(index, dtype=np.float64))
        return np.asarray(self.anchor.place + steps @ self.anchor.shape.T)

    def log_weights(self, index: IntArray) -> FloatArray:
        """Return the log prior density at cells plus the log of their volumes, up to a constant."""
        growth = self.growth
        widths = np.log(np.cosh(growth * (index - (self.n_nodes - 1) / 2))).sum(axis=1)
        return np.asarray(self.density.log_prior(split(self.density.model, self.at(index))) + widths)

    def inside(self, index: IntArray, rng: np.random.Generator) -> FloatArray:
        """Return a point in each of some cells, even along its axes."""
        return self.at(index + rng.uniform(-0.5, 0.5, size=index.shape))


@lru_cache(maxsize=16)
def start(model: pm.Model) -> tuple[FloatArray, ...]:
    """Return the model's own starting point, one array for each value variable; found once for each model."""
    point = model.initial_point()
    return tuple(np.asarray(point[value.name], dtype=np.float64) for value in model.value_vars)


def shapes(model: pm.Model) -> list[tuple[int, ...]]:
    """Return the shape of each value variable."""
    return [each.shape for each in start(model)]


def split(model: pm.Model, flat: FloatArray) -> list[FloatArray]:
    """Cut parameter vectors, shape (points, parameters), into one array for each value variable."""
    found, start = list[FloatArray](), 0
    for shape in shapes(model):
        size = int(np.prod(shape, dtype=int))
        found.append(flat[:, start : start + size].reshape(len(flat), *shape))
        start += size
    return found


def join(points: Sequence[Any]) -> FloatArray:
    """Return arrays of value variables as parameter vectors, shape (points, parameters)."""
    return np.concatenate([np.reshape(each, (len(each), -1)) for each in points], axis=1)


def constrained(model: pm.Model, flat: FloatArray) -> list[dict[str, FloatArray]]:
    """Return parameter vectors as values of the free variables, in the model's own units."""
    names, function = [variable.name for variable in model.free_RVs], _constrain(model)
    rows = zip(*split(model, flat), strict=True)
    return [dict(zip(names, map(np.asarray, function(*row)), strict=True)) for row in rows]


@lru_cache(maxsize=16)
def _constrain(model: pm.Model) -> Any:
    graphs = model.replace_rvs_by_values(model.free_RVs)
    return model.compile_fn(graphs, inputs=model.value_vars, point_fn=False, mode="FAST_COMPILE")
