"""The least squares error of a margin of a tree of counts, as a weighted sum of the noise: from public facts alone.

With the notation of ``docs/planning.md`` a sum w'x of least squares cells is m_root x_root + sum over inner nodes v and
their children c of (m_c - m_v) z_c, where z_c = a_c y_c + (1 - a_c) sum of z over the children of c, y_c is the noisy
count of c, and a_c = S_c / (sigma_c^2 + S_c), 1 for a cell. So the noise on node u has the weight a_u g_u, where
g_c = (m_c - m_v) + (1 - a_v) g_v, and g_root is 0 where the root is exact, m_root where it isn't observed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.margins.intervals import interval_counts, interval_parents
from pdips.privacy.noise import discrete_laplace_variance
from pdips.privacy.noise_sum import NoiseSum, Terms

SMALLEST_VARIANCE = 1e-30


def _noise(scale: Fraction | None) -> float:
    return math.inf if scale is None else max(discrete_laplace_variance(scale), SMALLEST_VARIANCE)


@dataclass(frozen=True)
class Tree:
    """A tree that splits by the same columns in every branch, structural zeros left out of account.

    Parameters
    ----------
    sizes : tuple of int
        Numbers of levels.
    depth : tuple of int
        The layer in which each column is first known: 0 for public columns, the last one for what cells tell apart.
    scales : tuple of Fraction or None
        Noise by layer, layer 0 left out; None for one that isn't counted.
    n_public : bool
        Whether layer 0 is exact; otherwise it isn't observed.
    """

    sizes: tuple[int, ...]
    depth: tuple[int, ...]
    scales: tuple[Fraction | None, ...]
    n_public: bool

    def _product(self, layer: int, columns: Sequence[int]) -> int:
        """Multiply the numbers of levels over those of some columns that a layer splits by."""
        return math.prod(self.sizes[j] for j in columns if self.depth[j] == layer)

    def _own_shares(self) -> list[float]:
        """Return a by layer: what a node's own count weighs against what is below it."""
        every = range(len(self.sizes))
        own, spread = [1.0], _noise(self.scales[-1])
        for layer in range(len(self.scales) - 1, 0, -1):
            noise, below = _noise(self.scales[layer - 1]), self._product(layer + 1, every) * spread
            own.append(0.0 if math.isinf(noise) else below / (noise + below))
            spread = below if math.isinf(noise) else noise * below / (noise + below)
        return [0.0, *own[::-1]]

    def margin(self, columns: Sequence[int]) -> NoiseSum:
        """Return the error of a cell of a margin; all its cells have the same law.

        Parameters
        ----------
        columns : sequence of int
            Positions of its columns.
        """
        return NoiseSum(
            tuple(
                Terms(weight, n, scale)
                for layer, weight, n in self._weights(columns)
                if weight and n and (scale := self.scales[layer - 1]) is not None
            )
        )

    def _weights(self, columns: Sequence[int]) -> Iterator[tuple[int, float, int]]:
        """Yield layer, weight and number of the nodes that agree with the cell, or first differ in some layer."""
        own, every = self._own_shares(), range(len(self.sizes))
        others = [j for j in every if j not in columns]
        open_ = [1 / math.prod(self._product(low, columns) for low in range(h + 1, len(own))) for h in range(len(own))]
        n_agreeing, g = self._product(0, others), 0.0 if self.n_public else open_[0]
        differing: list[tuple[float, int]] = []
        for layer in range(1, len(own)):
            kept = 1 - own[layer - 1]
            fan_out, agreeing = self._product(layer, every), self._product(layer, others)
            differing = [(kept * other, n * fan_out) for other, n in differing]
            differing.append((kept * g - open_[layer - 1], n_agreeing * (fan_out - agreeing)))
            g, n_agreeing = kept * g + open_[layer] - open_[layer - 1], n_agreeing * agreeing
            yield layer, own[layer] * g, n_agreeing
            for other, n in differing:
                yield layer, own[layer] * other, n


@dataclass(frozen=True)
class Intervals:
    """A tree of intervals of one ordered column, the other columns fully cross-tabulated below.

    Parameters
    ----------
    n_levels, fan_out : int
        Of the ordered column.
    n_below : int
        Number of cells below each level, 1 without a layer of them.
    has_cells : bool
        Whether the last layer is one of cells below the levels.
    n_trees : int
        One for each combination of public columns.
    scale : Fraction
        Of the noise, the same in all layers.
    n_public : bool
        Whether the root is exact; otherwise it isn't observed.
    """

    n_levels: int
    fan_out: int
    n_below: int
    has_cells: bool
    n_trees: int
    scale: Fraction
    n_public: bool

    def margin(self, ordered: bool, size_below: int, size_public: int) -> NoiseSum:
        """Return the error of a cell of a margin: of the least exact cell, if it has the ordered column.

        Parameters
        ----------
        ordered : bool
            Whether the margin has the ordered column.
        size_below, size_public : int
            Numbers of combinations of its other columns, and of its public ones.
        """
        parents = interval_parents(interval_counts(self.n_levels, self.fan_out))
        own, spread = self._upwards(parents)
        held = np.ones(self.n_levels, dtype=bool)
        if ordered:
            held = np.arange(self.n_levels) == self._least_exact(parents, spread)
        m = [held / size_below]
        for parent, s in zip(parents[::-1], spread[:0:-1], strict=True):
            weight = s / np.bincount(parent, weights=s)[parent]
            m.insert(0, np.bincount(parent, weights=weight * m[0]))
        g, found = np.zeros(1) if self.n_public else m[0], list[FloatArray]()
        for number, parent in enumerate(parents):
            g = m[number + 1] - m[number][parent] + ((1 - own[number]) * g)[parent]
            found.append(np.column_stack([own[number + 1] * g, np.ones(len(g))]))
        if self.has_cells:
            found.append(self._cells((1 - own[-1]) * g, held, size_below))
        return self._sum(np.vstack(found), self.n_trees // size_public)

    def _cells(self, g: FloatArray, held: np.ndarray[tuple[int], np.dtype[np.bool_]], size: int) -> FloatArray:
        """Return weights of the cells below the levels, and how many there are."""
        n_in = self.n_below // size
        inside = np.column_stack([g[held] + 1 - 1 / size, np.full(held.sum(), n_in)])
        beside = np.column_stack([g[held] - 1 / size, np.full(held.sum(), self.n_below - n_in)])
        return np.vstack([inside, beside, np.column_stack([g[~held], np.full((~held).sum(), self.n_below)])])

    def _sum(self, weights: FloatArray, n_trees: int) -> NoiseSum:
        different, place = np.unique(weights[:, 0].round(12), return_inverse=True)
        counts = np.bincount(place, weights=weights[:, 1])
        return NoiseSum(
            tuple(
                Terms(float(weight), round(n) * n_trees, self.scale)
                for weight, n in zip(different, counts, strict=True)
                if weight and n
            )
        )

    def _upwards(self, parents: list[IntArray]) -> tuple[list[FloatArray], list[FloatArray]]:
        """Return a and s by layer from the root on, in units of the variance of the noise."""
        below = float(self.n_below) if self.has_cells else math.inf
        one = np.ones(self.n_levels)
        own = [one if math.isinf(below) else one * below / (1 + below)]
        spread = [own[0].copy()]
        for number in range(len(parents) - 1, -1, -1):
            total = np.bincount(parents[number], weights=spread[0])
            own.insert(0, total / (1 + total) if number else np.zeros(1))
            spread.insert(0, own[0].copy() if number else total)
        return own, spread

    def _least_exact(self, parents: list[IntArray], spread: list[FloatArray]) -> int:
        """Return the level whose count has the largest variance."""
        variance = np.zeros(1) if self.n_public else spread[0]
        for parent, s in zip(parents, spread[1:], strict=True):
            share = s / np.bincount(parent, weights=s)[parent]
            variance = s * (1 - share) + share**2 * variance[parent]
        return int(np.argmax(variance))
