"""What the noise on a tree comes to in its margins: from the shape of the tree and the noise, which are public."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.margins.domain import MOST_BITS, Domain, Layer
from pdips.privacy.noise import discrete_laplace_variance
from pdips.release.release import MarginError


@dataclass(frozen=True)
class _Sums:
    """Variances added up over the nodes that have the same columns still open."""

    open_columns: IntArray
    variance: FloatArray

    def over(self, sizes: IntArray, columns: Sequence[int]) -> float:
        """Divide each node's variance by the number of cells of a margin that it can still fall into, and add up."""
        n_reached = np.ones(len(self.open_columns))
        for column in columns:
            n_reached *= np.where(self.open_columns >> column & 1, sizes[column], 1)
        return float((self.variance / n_reached).sum())


def tree_margin_errors(
    domain: Domain, layers: Sequence[Layer], scales: Sequence[Fraction | None], *, n_public: bool
) -> tuple[MarginError, ...]:
    """Return the standard error of one cell of each one-way and two-way margin of the least-squares counts of a tree.

    Parameters
    ----------
    domain : Domain
        The cross-tabulation.
    layers : sequence of Layer
        Layer 0, the layers that split, and the cells.
    scales : sequence of Fraction or None
        Noise of each layer but the first; None for a layer that isn't counted.
    n_public : bool
        Whether layer 0 is exact.

    Notes
    -----
    The root mean square over the cells of a margin. With s_v the variance of a node's count from itself and what is
    below (SOUNDNESS theorem 4.7), S_v the sum of s over its children, and m_v the share of v's count that a cell of
    the margin gets, the variances of the margin's cells add up to the sum over cells of s, less the sum over the inner
    nodes of (S_v - s_v) |m_v|^2. If k_v cells of the margin can still be reached from v, |m_v|^2 is at least 1 / k_v,
    and equal to it where siblings are split alike. So this is exact for one order of columns, and an upper bound where
    branches differ. Structural zeros are left out of account: with them errors are at most as large (Gauss and Markov).
    """
    if len(domain.names) > MOST_BITS:
        return ()
    below, within, root = _sums(layers, scales, n_public=n_public)
    free = [j for j in range(len(domain.names)) if j not in domain.public]
    found = []
    for size in (1, 2):
        for columns in combinations(range(len(domain.names)), size):
            if any(column in free for column in columns):
                total = sum(part.over(domain.sizes, columns) for part in [*below, root])
                total -= sum(part.over(domain.sizes, columns) for part in within)
                n_cells = math.prod(int(domain.sizes[column]) for column in columns)
                names = tuple(domain.names[column] for column in columns)
                found.append(MarginError(columns=names, standard_error=math.sqrt(max(total, 0.0) / n_cells)))
    return tuple(found)


def _sums(
    layers: Sequence[Layer], scales: Sequence[Fraction | None], *, n_public: bool
) -> tuple[list[_Sums], list[_Sums], _Sums]:
    """Return the variances s of the nodes of each layer but the first, S of their parents, and s of layer 0."""
    noise = [np.inf if scale is None else max(discrete_laplace_variance(scale), 1e-30) for scale in scales]
    masks = [layer.patterns() for layer in layers]
    spread = np.full(layers[-1].n_nodes, noise[-1])
    below, within = [], []
    for depth in range(len(layers) - 1, 0, -1):
        below.append(_added(masks[depth], spread))
        inner = np.bincount(layers[depth].parent, weights=spread, minlength=layers[depth - 1].n_nodes)
        within.append(_added(masks[depth - 1], inner))
        own = noise[depth - 2] if depth > 1 else 0.0 if n_public else np.inf
        spread = inner if math.isinf(own) else own * inner / (own + inner)
    return below, within, _added(masks[0], spread)


def _added(mask: NDArray[Any], variance: FloatArray) -> _Sums:
    patterns, place = np.unique(mask, return_inverse=True)
    return _Sums(patterns, np.bincount(place, weights=variance, minlength=len(patterns)))
