"""Noisy counts on a tree over public levels, and the synthetic sets that are drawn from them.

Layer 0 is the whole table (cut by the public columns, if there are any), each further layer splits every node by one
column, and the last layer is the full cross-tabulation of the columns that remain. A flat histogram is the tree without
layers in between. The shape of the tree depends on the schema and on earlier noisy choices only.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.errors import InputError
from pdips.mechanism import Clock, Drawn, Mechanism, Split
from pdips.mechanisms.consistency import FloatArray, IntArray, consistent, nonnegative, round_cells
from pdips.noise import RandomBits, discrete_laplace, discrete_laplace_variance
from pdips.privacy import Neighbours
from pdips.schema import Schema
from pdips.table import Table, decode

MOST_CELLS = 100_000_000
"""Larger cross-tabulations don't fit in memory: about 60 bytes a cell."""


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
    domain = Domain(names, sizes, public, rules)
    if domain.n_cells > MOST_CELLS:
        raise InputError(
            f"the cross-tabulation of all columns has {domain.n_cells:,} cells, more than {MOST_CELLS:,}: "
            "give fewer columns, levels or bins"
        )
    return domain


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


def split(domain: Domain, above: Layer, chosen: IntArray) -> Layer:
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


@dataclass(frozen=True)
class Measured:
    """Noisy counts of a tree, before anything is made consistent.

    Parameters
    ----------
    layers : list of Layer
        Layer 0, the layers that split by a column, and the cells.
    observed : list of ndarray of int64
        Noisy counts by layer; layer 0 holds exact public counts, or zeros where the number of records isn't public.
    variances : list of ndarray
        Variance of the noise by layer: 0 for exact counts, infinity for counts not observed.
    cells : Cells
        What the cells of the last layer mean.
    """

    domain: Domain
    layers: list[Layer]
    observed: list[IntArray]
    variances: list[FloatArray]
    cells: Cells

    @property
    def parents(self) -> list[IntArray]:
        """Parents of each layer but the first."""
        return [layer.parent for layer in self.layers[1:]]


Choose = Callable[[int, Layer, IntArray, IntArray], IntArray]


def top_layer(domain: Domain) -> Layer:
    """Return layer 0: one node, or one a combination of the public columns."""
    layer = root(domain)
    for column in domain.public:
        layer = split(domain, layer, np.full(layer.n_nodes, column))
    return layer


def measure(
    table: Table, domain: Domain, scales: Sequence[Fraction], choose: Choose, *, n_public: bool, bits: RandomBits
) -> Measured:
    """Grow a tree over the table and count every layer with noise.

    Parameters
    ----------
    table : Table
        The confidential table.
    domain : Domain
        Its cross-tabulation.
    scales : sequence of Fraction
        Scale of the noise for each layer below layer 0; the last one is that of the cells.
    choose : callable
        Says which column splits each node of a layer, given the layer's number, the layer, and the nodes and codes of
        the records. It pays for what it reads.
    n_public : bool
        Whether the counts of layer 0 are public.
    bits : RandomBits
        For the noise.
    """
    codes = np.column_stack([table.codes[name] for name in domain.names])
    top = top_layer(domain)
    node = np.zeros(len(codes), dtype=np.int64)
    for column in domain.public:
        node = node * domain.sizes[column] + codes[:, column]
    counts = np.bincount(node, minlength=top.n_nodes) if n_public else np.zeros(top.n_nodes, dtype=np.int64)
    layers, observed = [top], [counts]
    variances = [np.full(top.n_nodes, 0.0 if n_public else np.inf)]
    for number, scale in enumerate(scales, start=1):
        if number < len(scales):
            chosen = choose(number, layers[-1], node, codes)
            layers.append(split(domain, layers[-1], chosen))
            node = descend(node, codes, domain, chosen)
        else:
            bottom = cells(domain, layers[-1])
            layers.append(bottom.layer)
            node = bottom.find(node, codes)
        counts = np.bincount(node, minlength=layers[-1].n_nodes)
        observed.append(noisy_counts(counts, layers[-1].possible, scale, bits))
        variances.append(noise_variance(layers[-1].possible, scale))
    return Measured(domain, layers, observed, variances, bottom)


def synthesize(
    measured: Measured, table: Table, n_sets: int, *, n_public: bool, bits: RandomBits, clock: Clock
) -> list[pd.DataFrame]:
    """Turn noisy counts into synthetic sets.

    Post-processing: of the table it reads the public columns and, where that is public, the number of records.
    """
    rng = bits.generator()
    with clock.step("making the counts consistent"):
        estimates, variances = consistent(measured.parents, measured.observed, measured.variances)
        values = nonnegative(measured.parents, estimates, variances)
    n_records = int(measured.observed[0].sum()) if n_public else max(round(float(estimates[0].sum())), 0)
    sets = []
    for number in range(1, n_sets + 1):
        with clock.step(f"drawing synthetic set {number} of {n_sets}"):
            cell, count = round_cells(measured.parents, values, n_records, rng)
            sets.append(_records(measured, table, np.repeat(cell, count), rng))
    return sets


def _records(measured: Measured, table: Table, cell: IntArray, rng: np.random.Generator) -> pd.DataFrame:
    domain, schema = measured.domain, table.schema
    cell = rng.permutation(cell)
    public = [domain.names[column] for column in domain.public]
    if public:
        cell = _beside_public_records(measured, table, cell)
    codes = {name: measured.cells.levels(cell, j) for j, name in enumerate(domain.names) if name not in public}
    frame = decode(schema, codes, rng)
    for name in public:
        frame[name] = table.frame[name].to_numpy()
    return frame[list(domain.names)]


def _beside_public_records(measured: Measured, table: Table, cell: IntArray) -> IntArray:
    """Order the cells so that each stands where the table has a record with the same public levels."""
    drawn, wanted = np.zeros(len(cell), np.int64), np.zeros(len(cell), np.int64)
    for column in measured.domain.public:
        size = measured.domain.sizes[column]
        drawn = drawn * size + measured.cells.levels(cell, int(column))
        wanted = wanted * size + table.codes[measured.domain.names[column]]
    placed = np.empty_like(cell)
    placed[np.argsort(wanted, kind="stable")] = cell[np.argsort(drawn, kind="stable")]
    return placed


def draw(
    table: Table,
    scales: Sequence[Fraction],
    choose: Choose,
    *,
    split: Split,
    mechanism: Mechanism,
    bits: RandomBits,
    clock: Clock,
) -> Drawn:
    """Measure one tree for all sets, or one for each, and draw the sets from it."""
    domain, n_public = domain_of(table.schema), mechanism.neighbours == "replace-one"
    n_trees = mechanism.n_sets if split == "per-set" else 1
    sets: list[pd.DataFrame] = []
    statistics: dict[str, pd.DataFrame] = {}
    for number in range(1, n_trees + 1):
        with clock.step("counting and adding noise"):
            measured = measure(table, domain, scales, choose, n_public=n_public, bits=bits)
        sets += synthesize(measured, table, mechanism.n_sets // n_trees, n_public=n_public, bits=bits, clock=clock)
        statistics |= noisy_statistics(measured, f"set {number}, " if n_trees > 1 else "")
    return Drawn(sets=sets, statistics=statistics)


def never(number: int, layer: Layer, node: IntArray, codes: IntArray) -> IntArray:
    """Choose no column: for trees without layers in between."""
    raise AssertionError("a flat histogram has no layer to split")


def check_domain(schema: Schema, neighbours: Neighbours) -> None:
    """Check, before anything is spent, that a schema can be cross-tabulated for these neighbours."""
    domain = domain_of(schema)
    if len(domain.public) == len(domain.names):
        raise InputError("all columns of the schema are public: there is nothing to synthesize")
    if len(domain.public) and neighbours == "add-remove":
        raise InputError("public columns give away the number of records; they need neighbours = replace-one")


def of_set(number: int, n_trees: int) -> str:
    """Return what tells the items of one tree from those of another."""
    return f", set {number}" if n_trees > 1 else ""


def noisy_statistics(measured: Measured, prefix: str) -> dict[str, pd.DataFrame]:
    """Return the noisy counts as tables: levels of the columns split so far (-1: not split), and the count."""
    domain, found = measured.domain, {}
    for number, (layer, counts) in enumerate(zip(measured.layers[1:-1], measured.observed[1:-1], strict=True), start=1):
        frame = pd.DataFrame(layer.path, columns=list(domain.names))
        found[f"{prefix}layer {number}"] = frame.assign(noisy_count=counts)
    found[f"{prefix}cells"] = pd.DataFrame({"noisy_count": measured.observed[-1]})
    return found


def noisy_counts(counts: IntArray, possible: NDArray[np.bool_], scale: Fraction, bits: RandomBits) -> IntArray:
    """Add exact discrete Laplace noise to the counts of possible nodes; the others are 0 and stay so."""
    if possible.all():
        return counts + discrete_laplace(scale, len(counts), bits)
    noisy = np.zeros_like(counts)
    noisy[possible] = counts[possible] + discrete_laplace(scale, int(possible.sum()), bits)
    return noisy


def noise_variance(possible: NDArray[np.bool_], scale: Fraction) -> FloatArray:
    """Return the variance of each noisy count; 0 for structural zeros, which are exact."""
    return np.where(possible, discrete_laplace_variance(scale), 0.0)
