"""Noisy counts on a tree over public levels: what is counted, and the questions that a curator answers.

Layer 0 is the whole table (cut by the public columns, if there are any), each further layer splits every node by one
column, and the last layer is the full cross-tabulation of the columns that remain. A flat histogram is the tree without
layers in between. In place of the last layer there may be views: margins of a few columns each, of the whole table. The
shape of all this depends on the schema and on earlier private answers only.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import numpy as np

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.table import Table
from pdips.margins.domain import STOP, Cells, Domain, Layer, cells, descend, split_by, top_layer, top_node
from pdips.margins.views import SMALLEST_VARIANCE, View
from pdips.privacy.curator import Curator
from pdips.privacy.plan import Step


class Position:
    """Where each record is in a tree that grows. Read by statistics, which curators alone compute.

    Parameters
    ----------
    domain : Domain
        The cross-tabulation.
    """

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self._chosen: list[IntArray] = []
        self._codes: IntArray | None = None
        self._node: IntArray | None = None

    def split(self, chosen: IntArray) -> None:
        """Go down one layer: every node is split by its chosen column."""
        self._chosen.append(chosen)

    def codes(self, table: Table) -> IntArray:
        """Return the levels of all records, shape (rows, columns)."""
        if self._codes is None:
            self._codes = np.column_stack([table.codes[name] for name in self.domain.names])
        return self._codes

    def node(self, table: Table) -> IntArray:
        """Return the node of the last layer that each record is in."""
        codes = self.codes(table)
        if self._node is None:
            self._node = top_node(self.domain, codes)
        for chosen in self._chosen:
            self._node = descend(self._node, codes, self.domain, chosen)
        self._chosen = []
        return self._node


class Splitter(Protocol):
    """Says which column splits each node of a layer, and asks the curator where it must."""

    def columns(
        self, number: int, layer: Layer, position: Position, curator: Curator, rng: np.random.Generator
    ) -> IntArray:
        """Return the column that splits each node of a layer, the ``number``-th that is split: shape (nodes,)."""
        ...


@dataclass(frozen=True)
class GivenColumns:
    """The same columns for every node, from public knowledge; none at all for a flat histogram."""

    order: tuple[int, ...] = ()

    def columns(
        self, number: int, layer: Layer, position: Position, curator: Curator, rng: np.random.Generator
    ) -> IntArray:
        """Return the given column for every node."""
        return np.full(layer.n_nodes, self.order[number - 1], dtype=np.int64)


class GroupSplitter(Protocol):
    """An election of the columns that split first."""

    def elect(self, position: Position, curator: Curator) -> tuple[int, ...]:
        """Return the columns on top."""
        ...


@dataclass(frozen=True, kw_only=True)
class TreeDesign:
    """What is counted of tables of one schema.

    Parameters
    ----------
    domain : Domain
        The cross-tabulation.
    layers : tuple of Step or None
        The step that counts each layer below layer 0; None for a layer that isn't counted. The last one is that of the
        cells, unless there are views.
    splitter : Splitter
        Who says which columns split.
    views : tuple of (View, Step)
        Margins to be counted in place of the cells.
    stop : Fraction, optional
        A node is cut no further if its noisy count is below this many standard deviations of the noise on its children.
    groups : GroupSplitter, optional
        Elects the columns that split first, in place of the splitter.
    """

    domain: Domain
    layers: tuple[Step | None, ...]
    splitter: Splitter = GivenColumns()
    views: tuple[tuple[View, Step], ...] = ()
    stop: Fraction | None = None
    groups: GroupSplitter | None = None

    @property
    def n_split(self) -> int:
        """Number of layers that split by a column."""
        return len(self.layers) - (not self.views)

    @property
    def scales(self) -> tuple[Fraction | None, ...]:
        """Scale of the noise of each layer but layer 0."""
        return tuple(None if step is None else step.scale for step in self.layers)

    def with_first(self, first: tuple[int, ...]) -> "TreeDesign":
        """Return the tree once an election has said which columns are on top; only the last of them is counted."""
        layers = (*(None,) * (len(first) - 1), *self.layers)
        return replace(self, layers=layers, splitter=GivenColumns(first), groups=None)

    def limit(self, number: int) -> float | None:
        """Return the noisy count below which nodes are cut no further at the ``number``-th split; None for no rule."""
        if self.stop is None or number == 1 or self.layers[number - 2] is None:
            return None
        below = next(step for step in self.layers[number - 1 :] if step is not None)
        return float(self.stop) * below.standard_deviation


@dataclass(frozen=True)
class NoisyTree:
    """Noisy counts of one tree, before anything is made consistent.

    Parameters
    ----------
    domain : Domain
        The cross-tabulation.
    layers : list of Layer
        Layer 0, the layers that split by a column, and the cells.
    chosen : list of ndarray
        For each layer that was split, the column that split each node.
    observed : list of ndarray of int64, each of shape (nodes,)
        Noisy counts by layer; layer 0 holds exact public counts, or zeros where the number of records isn't public.
    variances : list of ndarray, each of shape (nodes,)
        Variance of the noise by layer: 0 for exact counts, infinity for counts not observed.
    cells : Cells, optional
        The last layer, if it is the full cross-tabulation.
    views : tuple of ndarray of int64, each of shape (cells of the view,)
        Noisy counts of the views; 0 where a structural zero rules the cell out.
    scales : tuple of Fraction or None
        Scale of the noise of each layer but the first.
    """

    domain: Domain
    layers: list[Layer]
    chosen: list[IntArray]
    observed: list[IntArray]
    variances: list[FloatArray]
    cells: Cells | None = None
    views: tuple[IntArray, ...] = ()
    scales: tuple[Fraction | None, ...] = ()

    @property
    def parents(self) -> list[IntArray]:
        """Parents of each layer but the first."""
        return [layer.parent for layer in self.layers[1:]]

    def levels(self, cell: IntArray, column: int) -> IntArray:
        """Return the level of a column in each cell of a finished tree."""
        if self.cells is None:
            raise AssertionError("the tree has no cells yet")
        return self.cells.levels(cell, column)


def measure(tree: TreeDesign, curator: Curator, rng: np.random.Generator) -> NoisyTree:
    """Ask for one tree: elections and noisy counts, layer by layer, and then the views.

    Parameters
    ----------
    tree : TreeDesign
        What is counted.
    curator : Curator
        Answers.
    rng : numpy.random.Generator
        For what is drawn from public facts alone.
    """
    position = Position(tree.domain)
    if tree.groups is not None:
        tree = tree.with_first(tree.groups.elect(position, curator))
    layers, chosen = [top_layer(tree.domain)], list[IntArray]()
    observed, variances = [top_counts(tree.domain, layers[0], curator)], [_top_variance(layers[0], curator)]
    for number, step in enumerate(tree.layers[: tree.n_split], start=1):
        above = layers[-1]
        split = tree.splitter.columns
        stopped = _stopped(tree, number, above, observed[-1], curator)
        chosen.append(np.where(stopped, STOP, split(number, above, position, curator, rng)))
        position.split(chosen[-1])
        layers.append(split_by(tree.domain, above, chosen[-1]))
        counts, variance = _counted(layers[-1], step, position, curator)
        observed.append(counts)
        variances.append(variance)
    grown = NoisyTree(tree.domain, layers, chosen, observed, variances, scales=tree.scales)
    return _with_views(grown, tree, position, curator) if tree.views else _with_cells(grown, tree, position, curator)


def top_counts(domain: Domain, top: Layer, curator: Curator) -> IntArray:
    """Return the counts of layer 0 where they are public, and zeros where they aren't."""
    if not len(domain.public):
        n = curator.n_records if curator.n_public else 0
        return np.array([n], dtype=np.int64)
    public = curator.public
    codes = np.zeros((public.n_records, len(domain.names)), dtype=np.int64)
    for column in domain.public:
        codes[:, column] = public.codes[domain.names[column]]
    return public.count(top_node(domain, codes), top.n_nodes)


def _top_variance(top: Layer, curator: Curator) -> FloatArray:
    return np.full(top.n_nodes, 0.0 if curator.n_public else np.inf)


def _stopped(tree: TreeDesign, number: int, above: Layer, counts: IntArray, curator: Curator) -> BoolArray:
    """Return which nodes are cut no further. A group of columns is stopped as a whole, at its first column."""
    stopped = np.zeros(above.n_nodes, dtype=bool) if above.stopped is None else above.stopped
    limit = tree.limit(number)
    if limit is None:
        return stopped
    return np.asarray(curator.decide(counts, lambda noisy: (noisy < limit) & above.counted | stopped), dtype=bool)


def _counted(layer: Layer, step: Step | None, position: Position, curator: Curator) -> tuple[IntArray, FloatArray]:
    """Return the noisy counts of a layer and their variances: infinite where it isn't counted."""
    unknown = np.where(layer.possible, np.inf, 0.0)
    if step is None:
        return np.zeros(layer.n_nodes, dtype=np.int64), unknown
    counts = curator.count(step, lambda table: table.count(position.node(table), layer.n_nodes), layer.counted)
    return counts, np.where(layer.counted, variance_of(layer.possible, step), unknown)


def _with_cells(grown: NoisyTree, tree: TreeDesign, position: Position, curator: Curator) -> NoisyTree:
    bottom, step = cells(tree.domain, grown.layers[-1]), tree.layers[-1]
    if step is None:
        raise AssertionError("the cells are always counted")

    def exact(table: Table) -> IntArray:
        node, codes = position.node(table), position.codes(table)
        return table.count(bottom.find(node, codes), bottom.layer.n_nodes)

    counts = curator.count(step, exact, bottom.layer.counted)
    variance = np.where(bottom.layer.possible, np.inf, 0.0)
    variance = np.where(bottom.layer.counted, variance_of(bottom.layer.possible, step), variance)
    return replace(
        grown,
        layers=[*grown.layers, bottom.layer],
        observed=[*grown.observed, counts],
        variances=[*grown.variances, variance],
        cells=bottom,
    )


def _with_views(grown: NoisyTree, tree: TreeDesign, position: Position, curator: Curator) -> NoisyTree:
    counted = []
    for view, step in tree.views:

        def exact(table: Table, view: View = view) -> IntArray:
            return table.count(view.find(tree.domain, position.codes(table)), view.n_cells(tree.domain))

        counted.append(curator.count(step, exact, view.possible(tree.domain)))
    return replace(grown, views=tuple(counted))


def variance_of(possible: BoolArray, step: Step) -> FloatArray:
    """Return the variance of each noisy count; 0 for structural zeros, which are exact."""
    return np.where(possible, max(step.standard_deviation**2, SMALLEST_VARIANCE), 0.0)
