"""The public shape of a tree of counts: its columns, layers, nodes and cells. Nothing here depends on a record."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pdips.errors import InputError
from pdips.mechanisms.consistency import IntArray
from pdips.noise import LARGEST_SCALE
from pdips.privacy import Neighbours
from pdips.schema import Schema

MOST_CELLS = 100_000_000
"""Larger cross-tabulations don't fit in memory: about 60 bytes a cell."""

MOST_STRAY_RECORDS = 10_000_000
"""Noise that would move the number of synthetic records by more than this makes no table that anybody could use."""


@dataclass(frozen=True)
class Domain:
    """The columns of a cross-tabulation and their public numbers of levels."""

    names: tuple[str, ...]
    sizes: IntArray
    public: IntArray
    """Positions of the columns that are public."""
    impossible: tuple[dict[int, NDArray[np.bool_]], ...]
    """Structural zeros: for each rule, which levels of which column it names."""

    @property
    def n_cells(self) -> int:
        """Number of cells, structural zeros included."""
        return math.prod(int(size) for size in self.sizes)


def domain_of(schema: Schema) -> Domain:
    """Return the cross-tabulation of all columns of a schema.

    Raises
    ------
    InputError
        If a numeric column has no bins, or there are more cells than memory holds.
    """
    domain = columns_of(schema)
    if domain.n_cells > MOST_CELLS:
        raise InputError(
            f"the cross-tabulation of all columns has {domain.n_cells:,} cells, more than {MOST_CELLS:,}: "
            "give fewer columns, levels or bins"
        )
    return domain


def columns_of(schema: Schema) -> Domain:
    """Return the columns of a schema for mechanisms that never lay out all cells.

    Raises
    ------
    InputError
        If a numeric column has no bins.
    """
    for name, column in schema.columns.items():
        if not column.is_categorical and not column.is_binned:
            raise InputError(f"column {name!r} needs bins or bin_edges in the schema for a histogram mechanism")
    names = tuple(schema.columns)
    sizes = np.array([schema.columns[name].n_levels for name in names], dtype=np.int64)
    rules = tuple(
        {names.index(name): np.isin(np.arange(sizes[names.index(name)]), codes) for name, codes in rule.items()}
        for rule in map(schema.rule_codes, schema.impossible)
    )
    public = np.flatnonzero([schema.columns[name].public for name in names])
    return Domain(names, sizes, public, rules)


@dataclass(frozen=True)
class Layer:
    """One layer of a tree: nodes in order, the children of a node next to each other.

    Parameters
    ----------
    parent : ndarray, shape (nodes,)
        Index in the layer above, not decreasing.
    path : ndarray, shape (nodes, columns)
        Level of each column that has been split on the way, -1 for the others. Empty for the layer of cells.
    possible : ndarray of bool, shape (nodes,)
        False where a structural zero rules the node out.
    """

    parent: IntArray
    path: NDArray[np.int32]
    possible: NDArray[np.bool_]

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.parent)


def root(domain: Domain) -> Layer:
    """Return the layer above all others: one node."""
    shape = (1, len(domain.names))
    return Layer(np.zeros(1, np.int64), np.full(shape, -1, np.int32), np.ones(1, dtype=bool))


def split_by(domain: Domain, above: Layer, chosen: IntArray) -> Layer:
    """Return the layer in which each node is cut by its chosen column into all levels of it.

    Parameters
    ----------
    domain : Domain
        The cross-tabulation.
    above : Layer
        The layer to be cut.
    chosen : ndarray, shape (nodes above,)
        Position of the column that each node is cut by.
    """
    fan_out = domain.sizes[chosen]
    parent = np.repeat(np.arange(above.n_nodes), fan_out)
    level = np.arange(len(parent)) - np.repeat(np.cumsum(fan_out) - fan_out, fan_out)
    path = above.path[parent]
    path[np.arange(len(parent)), chosen[parent]] = level
    return Layer(parent, path, above.possible[parent] & ~_ruled_out(domain, path))


def _ruled_out(domain: Domain, path: NDArray[np.int32]) -> NDArray[np.bool_]:
    found = np.zeros(len(path), dtype=bool)
    for rule in domain.impossible:
        found |= np.logical_and.reduce([(path[:, j] >= 0) & named[path[:, j]] for j, named in rule.items()])
    return found


def descend(node: IntArray, codes: IntArray, domain: Domain, chosen: IntArray) -> IntArray:
    """Return the child that each record falls into.

    Parameters
    ----------
    node : ndarray, shape (records,)
        Where each record is now.
    codes : ndarray, shape (records, columns)
        Levels of each record.
    domain : Domain
        The cross-tabulation.
    chosen : ndarray, shape (nodes,)
        Column that each node is cut by.
    """
    first_child: IntArray = np.cumsum(domain.sizes[chosen]) - domain.sizes[chosen]
    child: IntArray = first_child[node] + np.take_along_axis(codes, chosen[node][:, None], axis=1)[:, 0]
    return child


@dataclass(frozen=True)
class Cells:
    """The full cross-tabulation below each node of the last layer but one, as numbers that decode to levels.

    Parameters
    ----------
    domain : Domain
        The cross-tabulation.
    above : Layer
        The layer that the cells hang from.
    stride : ndarray, shape (nodes above, columns)
        Step of each remaining column in the number of a cell; 0 for columns already split.
    first : ndarray, shape (nodes above,)
        Number of the first cell of each node.
    layer : Layer
        The cells as a layer.
    """

    domain: Domain
    above: Layer
    stride: IntArray
    first: IntArray
    layer: Layer

    def find(self, node: IntArray, codes: IntArray) -> IntArray:
        """Return the number of the cell that each record falls into."""
        found: IntArray = self.first[node] + np.einsum("ij,ij->i", codes, self.stride[node])
        return found

    def levels(self, cell: IntArray, column: int) -> IntArray:
        """Return the level of a column in each cell."""
        return _cell_levels(self.domain, self.above, self.stride, self.first, self.layer.parent, cell, column)


def _cell_levels(
    domain: Domain, above: Layer, stride: IntArray, first: IntArray, parent: IntArray, cell: IntArray, column: int
) -> IntArray:
    node = parent[cell]
    step = stride[node, column]
    inside = (cell - first[node]) // np.maximum(step, 1) % domain.sizes[column]
    levels: IntArray = np.where(step > 0, inside, above.path[node, column])
    return levels


def cells(domain: Domain, above: Layer) -> Cells:
    """Return the cross-tabulation of the columns that remain below each node of a layer."""
    remaining = above.path < 0
    factor = np.where(remaining, domain.sizes, 1)
    after = np.cumprod(factor[:, ::-1], axis=1)[:, ::-1]
    stride = np.where(remaining, after // factor, 0)
    n_cells = after[:, 0]
    first = np.cumsum(n_cells) - n_cells
    parent = np.repeat(np.arange(above.n_nodes), n_cells)
    possible = above.possible[parent]
    everything = np.arange(len(parent)) if domain.impossible else np.empty(0, np.int64)
    for rule in domain.impossible:
        possible &= ~np.logical_and.reduce(
            [named[_cell_levels(domain, above, stride, first, parent, everything, j)] for j, named in rule.items()]
        )
    return Cells(domain, above, stride, first, Layer(parent, np.empty((0, 0), np.int32), possible))


def top_layer(domain: Domain) -> Layer:
    """Return layer 0: one node, or one a combination of the public columns."""
    layer = root(domain)
    for column in domain.public:
        layer = split_by(domain, layer, np.full(layer.n_nodes, column))
    return layer


def check_domain(schema: Schema, neighbours: Neighbours) -> None:
    """Check, before anything is spent, that a schema can be cross-tabulated for these neighbours."""
    domain = domain_of(schema)
    if len(domain.public) == len(domain.names):
        raise InputError("all columns of the schema are public: there is nothing to synthesize")
    if len(domain.public) and neighbours == "add-remove":
        raise InputError("public columns give away the number of records; they need neighbours = replace-one")


def check_noise(schema: Schema, neighbours: Neighbours, scales: Sequence[Fraction]) -> None:
    """Check, before anything is spent, that noise of these scales can be drawn and leaves a table of bearable size."""
    if max(scales) > LARGEST_SCALE:
        raise InputError("epsilon is too small: noise of this scale is beyond what can be drawn exactly")
    spread = float(max(scales)) * math.sqrt(2 * domain_of(schema).n_cells)
    if neighbours == "add-remove" and spread > MOST_STRAY_RECORDS:
        raise InputError(
            "epsilon is too small: the number of synthetic records, which is noisy under add-remove, would stray by "
            f"about {spread:.0e} from the table's; the limit is {MOST_STRAY_RECORDS:,}"
        )
