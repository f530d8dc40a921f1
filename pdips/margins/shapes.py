"""What least squares makes of the noise on a tree: the exact variance of every margin, from public facts alone.

The estimates' variances depend on the shape of the tree and on the noise (SOUNDNESS theorem 4.7), not on the counts.
``docs/planning.md`` derives what is computed here. No record is read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import get_args

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.margins.domain import Layer, cells, check_domain, domain_of, split_by, top_layer
from pdips.privacy.loss import Neighbours, choice
from pdips.privacy.noise import discrete_laplace_variance


@dataclass(frozen=True)
class Shape:
    """A tree that splits by the same columns in every branch, without structural zeros.

    Parameters
    ----------
    names : tuple of str
        All columns of the schema.
    sizes : ndarray, shape (columns,)
        Their numbers of levels.
    depth : ndarray, shape (columns,)
        The layer in which each column is first known: 0 for public columns, 1 to L for those that split, L + 1 for
        those that only the cells tell apart.
    n_public : bool
        Whether the counts of layer 0 are exact; otherwise they are not observed.
    """

    names: tuple[str, ...]
    sizes: IntArray
    depth: IntArray
    n_public: bool

    @cached_property
    def n_noised(self) -> int:
        """Number of layers with noise, the cells included."""
        return max(int(self.depth.max()), 1)

    @cached_property
    def fan_out(self) -> list[float]:
        """Number of children of a node of each layer above the cells."""
        return [math.prod(map(float, self.sizes[self.depth == layer + 1])) for layer in range(self.n_noised)]

    @cached_property
    def margins(self) -> list[tuple[int, ...]]:
        """All single columns and all pairs, as positions."""
        places = range(len(self.names))
        return [(place,) for place in places] + list(combinations(places, 2))

    @cached_property
    def coefficients(self) -> FloatArray:
        """What the variance of a cell of each margin is made of, shape (margins, noised layers + 1).

        The first entry multiplies the variance of a node of layer 0; each other one multiplies s_h, the variance that a
        node of layer h has from its own noise and all that lies below it.
        """
        held = np.array([[place in margin for place in range(len(self.sizes))] for margin in self.margins])
        size = np.where(held, self.sizes, 1).astype(float)
        found = np.zeros((len(held), self.n_noised + 1))
        for layer in range(self.n_noised + 1):
            above = self.depth <= layer
            n_nodes = np.prod(self.sizes[above], dtype=float) / np.prod(size[:, above], axis=1)
            weight = n_nodes / np.prod(size[:, ~above], axis=1) ** 2
            if layer == 0:
                found[:, 0] = weight
            if layer < self.n_noised:
                known = np.prod(size[:, self.depth == layer + 1], axis=1)
                found[:, layer + 1] = weight * self.fan_out[layer] * (known - 1)
        return found

    def spreads(self, variances: FloatArray) -> FloatArray:
        """Return the variance of a node of each layer from itself and below: upward pass of SOUNDNESS theorem 4.7.

        Parameters
        ----------
        variances : ndarray, shape (noised layers,)
            Of the noise on a count of each layer, in squared records.

        Returns
        -------
        ndarray, shape (noised layers + 1,)
            Layer 0 first: 0 where its counts are exact.
        """
        noise: list[float] = variances.tolist()
        spread = [noise[-1]]
        for own, fan_out in zip(noise[-2::-1], self.fan_out[:0:-1], strict=True):
            below = fan_out * spread[-1]
            spread.append(own * below / (own + below))
        spread.append(0.0 if self.n_public else self.fan_out[0] * spread[-1])
        return np.array(spread[::-1])


def shape_of(schema: Schema, order: Sequence[str], layers: int, neighbours: Neighbours = "replace-one") -> Shape:
    """Return the tree that splits by the first ``layers`` columns of ``order``; 0 layers is a flat histogram.

    Raises
    ------
    InputError
        If the order names a column that isn't there, or is public, or twice; or there are more layers than columns.
    """
    check_domain(schema, choice(neighbours, get_args(Neighbours), "neighbours"))
    order, domain = checked_order(schema, order), domain_of(schema)
    if isinstance(layers, bool) or not isinstance(layers, int) or not 0 <= layers <= len(order):
        raise InputError(f"layers must be a whole number from 0 to the {len(order)} columns of the order, got {layers}")
    free = len(domain.names) - len(domain.public)
    split = order[: min(layers, free - 1)]
    depth = np.full(len(domain.names), len(split) + 1)
    depth[domain.public] = 0
    for number, name in enumerate(split, start=1):
        depth[domain.names.index(name)] = number
    return Shape(domain.names, domain.sizes, depth, neighbours == "replace-one")


def checked_order(schema: Schema, order: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns from the top: as given, or those of the schema that aren't public in its order."""
    free = tuple(name for name in schema.columns if name not in schema.public_columns)
    if order is None:
        return free
    for name in order:
        if name not in free:
            raise InputError(f"order: {name!r} is no column of the schema that could be split by")
    if not order or len(set(order)) < len(order):
        raise InputError("order must name at least one column, and none twice")
    return tuple(order)


def exact_margin_variances(
    schema: Schema,
    columns: Sequence[str],
    *,
    order: Sequence[str],
    scales: Sequence[Fraction],
    neighbours: Neighbours = "replace-one",
) -> FloatArray:
    """Return the variance of each cell of a margin with structural zeros taken into account: a pass over all nodes.

    Parameters
    ----------
    schema : Schema
        What is public about the table.
    columns : sequence of str
        The margin.
    order : sequence of str
        Columns from the top; those with a scale of their own split.
    scales : sequence of Fraction
        Scale of the noise by layer; the last one is that of the cells.
    neighbours : {"replace-one", "add-remove"}
        The relation.

    Returns
    -------
    ndarray, shape (cells of the margin,)
        In squared records, in the order of ``numpy.ndindex`` over the levels of the columns.
    """
    domain = domain_of(schema)
    layers = [top_layer(domain)]
    for name in checked_order(schema, order)[: len(scales) - 1]:
        layers.append(split_by(domain, layers[-1], np.full(layers[-1].n_nodes, domain.names.index(name))))
    bottom = cells(domain, layers[-1])
    layers.append(bottom.layer)
    spread = _spreads_by_node(layers, scales, neighbours == "replace-one")
    places = [domain.names.index(name) for name in columns]
    everything = np.arange(bottom.layer.n_nodes)
    where = np.ravel_multi_index(
        tuple(bottom.levels(everything, place) for place in places), tuple(domain.sizes[places])
    )
    n_margin = int(np.prod(domain.sizes[places]))
    return np.array([_functional(layers, spread, (where == cell).astype(float)) for cell in range(n_margin)])


def _spreads_by_node(layers: Sequence[Layer], scales: Sequence[Fraction], n_public: bool) -> list[FloatArray]:
    """Return s of SOUNDNESS theorem 4.7 for every node."""
    spread = [np.where(layers[-1].possible, discrete_laplace_variance(scales[-1]), 0.0)]
    for number in range(len(layers) - 2, -1, -1):
        below = np.bincount(layers[number + 1].parent, weights=spread[0], minlength=layers[number].n_nodes)
        if number:
            noise = np.where(layers[number].possible, discrete_laplace_variance(scales[number - 1]), 0.0)
            below = np.divide(noise * below, noise + below, out=np.zeros_like(below), where=noise + below > 0)
        spread.insert(0, below if number or not n_public else np.zeros_like(below))
    return spread


def _functional(layers: Sequence[Layer], spread: Sequence[FloatArray], weights: FloatArray) -> float:
    """Return the variance of a weighted sum of the least squares cells."""
    m, total = weights, 0.0
    for number in range(len(layers) - 1, 0, -1):
        parent, n_above = layers[number].parent, layers[number - 1].n_nodes
        below = np.bincount(parent, weights=spread[number], minlength=n_above)
        moved = np.bincount(parent, weights=spread[number] * m, minlength=n_above)
        above = np.divide(moved, below, out=np.zeros(n_above), where=below > 0)
        total += float(spread[number] @ m**2 - below @ above**2)
        m = above
    return total + float(spread[0] @ m**2)
