"""Noisy counts on a tree over public levels: what is counted, and the questions that a curator answers.

Layer 0 is the whole table (cut by the public columns, if there are any), each further layer splits every node by one
column, and the last layer is the full cross-tabulation of the columns that remain. A flat histogram is the tree without
layers in between. In place of the last layer there may be views: margins of a few columns each, of the whole table. The
shape of all this depends on the schema and on earlier private answers only.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.table import Table
from pdips.margins.domain import (
    STOP,
    Cells,
    Domain,
    Layer,
    View,
    cells,
    count_variance,
    descend,
    split_by,
    top_layer,
    top_node,
)
from pdips.privacy.curator import Curator
from pdips.privacy.plan import Step
from pdips.release.noisy_margins import MOST_NUMBERS, MeasuredMargin, axes_of


class Position:
    """Where each record is in a tree that grows. Read by statistics, which curators alone compute."""

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


@dataclass(frozen=True)
class NoisyTree:
    """Noisy counts of one tree, before anything is made consistent."""

    domain: Domain
    layers: list[Layer]
    """Layer 0, the layers that split, and the cells, if they are counted."""
    chosen: list[IntArray]
    """For each layer that was split by columns, the one that split each node."""
    observed: list[IntArray]
    """Noisy counts by layer; layer 0 holds exact public counts, or zeros where the number of records isn't public."""
    variances: list[FloatArray]
    """Of the noise, by layer: 0 for exact counts, infinity for counts not observed."""
    cells: Cells | None = None
    views: tuple[IntArray, ...] = ()
    """Noisy counts of the views; 0 where a structural zero rules the cell out."""
    scales: tuple[Fraction | None, ...] = ()
    """Scale of the noise of each layer but the first."""

    @property
    def parents(self) -> list[IntArray]:
        """Parents of each layer but the first."""
        return [layer.parent for layer in self.layers[1:]]

    def levels(self, cell: IntArray, column: int) -> IntArray:
        """Return the level of a column in each cell of a tree that has cells."""
        if self.cells is None:
            raise AssertionError("the tree has no cells")
        return self.cells.levels(cell, column)


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
    views : tuple of View
        Margins to be counted in place of the cells.
    stop : Fraction, optional
        A node is cut no further if its noisy count is below this many standard deviations of the noise on its children.
    groups : callable, optional
        Elects the columns that split first, in place of the splitter.
    redraws : bool
        Whether each set comes from a table of its own, fitted to the noisy counts with fresh noise; views alone.
    """

    domain: Domain
    layers: tuple[Step | None, ...]
    splitter: Splitter = GivenColumns()
    views: tuple[View, ...] = ()
    stop: Fraction | None = None
    groups: Callable[[Position, Curator], tuple[int, ...]] | None = None
    redraws: bool = False

    def again(self, measured: NoisyTree, rng: np.random.Generator) -> NoisyTree:
        """Return the noisy counts of the views with fresh noise of the same law on top."""
        views = tuple(counts + view.fresh_noise(rng) for view, counts in zip(self.views, measured.views, strict=True))
        return replace(measured, views=views)

    @property
    def scales(self) -> tuple[Fraction | None, ...]:
        """Scale of the noise of each layer but layer 0."""
        return tuple(None if step is None else step.scale for step in self.layers)

    def measure(self, curator: Curator, rng: np.random.Generator) -> NoisyTree:
        """Ask for one tree: elections and noisy counts, layer by layer, then cells or views."""
        tree, position = self, Position(self.domain)
        if self.groups is not None:  # only the last column of the group on top is counted
            first = self.groups(position, curator)
            tree = replace(
                self, layers=(*(None,) * (len(first) - 1), *self.layers), splitter=GivenColumns(first), groups=None
            )
        layers, chosen = [top_layer(self.domain)], list[IntArray]()
        counts = [top_counts(layers[0], self.domain, curator)]
        for number, step in enumerate(tree.layers[: len(tree.layers) - (not tree.views)], start=1):
            stopped = tree._stopped(number, layers[-1], counts[-1][0], curator)
            chosen.append(np.where(stopped, STOP, tree.splitter.columns(number, layers[-1], position, curator, rng)))
            position.split(chosen[-1])
            layers.append(split_by(self.domain, layers[-1], chosen[-1]))
            counts.append(layer_counts(layers[-1], step, position.node, curator))
        bottom = None
        if not tree.views:
            bottom = cells(self.domain, layers[-1])
            find = bottom.find
            layers.append(bottom.layer)
            counts.append(
                layer_counts(
                    bottom.layer,
                    tree.layers[-1],
                    lambda table: find(position.node(table), position.codes(table)),
                    curator,
                )
            )
        return NoisyTree(
            domain=self.domain,
            layers=layers,
            chosen=chosen,
            observed=[observed for observed, _ in counts],
            variances=[variances for _, variances in counts],
            cells=bottom,
            views=tuple(_view_counts(view, position, curator) for view in tree.views),
            scales=tree.scales,
        )

    def _stopped(self, number: int, above: Layer, counts: IntArray, curator: Curator) -> BoolArray:
        """Return which nodes are cut no further. A group of columns is stopped as a whole, at its first column."""
        stopped = np.zeros(above.n_nodes, dtype=bool) if above.stopped is None else above.stopped
        if self.stop is None or number == 1 or self.layers[number - 2] is None:
            return stopped
        below = next(step for step in self.layers[number - 1 :] if step is not None)
        limit = float(self.stop) * below.standard_deviation
        return np.asarray(curator.decide(counts, lambda noisy: (noisy < limit) & above.counted | stopped), dtype=bool)

    def noisy_statistics(self, measured: NoisyTree, prefix: str) -> dict[str, pd.DataFrame]:
        """Return the noisy counts as tables: levels of the columns split so far (-1: not split), and the count."""
        names, found = list(self.domain.names), dict[str, pd.DataFrame]()
        for number in range(1, len(measured.chosen) + 1):
            layer, counts = measured.layers[number], measured.observed[number]
            if layer.counted.any() and np.isfinite(measured.variances[number][layer.counted]).any():
                kept = slice(None) if layer.counted.all() else np.flatnonzero(layer.counted)
                frame = pd.DataFrame(layer.path[kept], columns=names, copy=False)  # 100 MB for a million nodes
                found[f"{prefix}layer {len(found) + 1}"] = frame.assign(noisy_count=counts[kept])
        for view, counts in zip(self.views, measured.views, strict=True):
            frame = pd.DataFrame({names[j]: levels for j, levels in view.levels().items()})
            found[f"{prefix}{view.step.counts}"] = frame.assign(noisy_count=counts)
        if not self.views:
            found[f"{prefix}cells"] = pd.DataFrame({"noisy_count": measured.observed[-1]})
        return found

    def measured_margins(self, measured: NoisyTree) -> Iterator[MeasuredMargin]:
        """Yield the noisy counts as margins: those of a layer by the columns that its nodes are split by."""
        steps = [step for step in self.layers if step is not None]
        kept = [k for k in range(1, len(measured.layers)) if np.isfinite(measured.variances[k]).any()]
        for number, step in zip(kept, steps, strict=False):
            layer, counts = measured.layers[number], measured.observed[number]
            if measured.cells is not None and number == len(measured.layers) - 1:
                yield cell_margin(self.domain, measured, step)
                continue
            whole = np.ones(layer.n_nodes, dtype=bool) if layer.stopped is None else ~layer.stopped
            pattern = np.where(whole[:, None], layer.path >= 0, False)
            for split in np.unique(pattern[whole], axis=0):
                columns, nodes = np.flatnonzero(split), np.flatnonzero(whole & (pattern == split).all(axis=1))
                codes = tuple(layer.path[nodes][:, columns].T)
                yield _of_cells(self.domain, columns, codes, counts[nodes], step)
        for view, counts in zip(self.views, measured.views, strict=True):
            yield _of_cells(self.domain, view.columns, tuple(view.levels().values()), counts, view.step)


def cell_margin(domain: Domain, measured: NoisyTree, step: Step) -> MeasuredMargin:
    """Return the noisy counts of all cells as a margin."""
    counts = measured.observed[-1]
    if len(counts) > MOST_NUMBERS:  # they aren't published
        return MeasuredMargin.of(step, [], counts)
    columns = range(len(domain.names))
    codes = tuple(measured.levels(np.arange(len(counts)), column) for column in columns)
    return _of_cells(domain, columns, codes, counts, step)


def _of_cells(
    domain: Domain, columns: Sequence[int] | IntArray, codes: tuple[IntArray, ...], counts: IntArray, step: Step
) -> MeasuredMargin:
    sizes = tuple(int(domain.sizes[column]) for column in columns)
    cells = np.ravel_multi_index(codes, sizes)
    order = np.argsort(cells)
    axes = axes_of([domain.names[column] for column in columns], sizes)
    return MeasuredMargin.of(step, axes, counts[order], cells[order])


def top_counts(top: Layer, domain: Domain, curator: Curator) -> tuple[IntArray, FloatArray]:
    """Return the counts of layer 0 where they are public, and zeros where they aren't, with their variances."""
    variances = np.full(top.n_nodes, 0.0 if curator.n_public else np.inf)
    if not len(domain.public):
        return np.array([curator.n_records if curator.n_public else 0], dtype=np.int64), variances
    public = curator.public
    codes = np.zeros((public.n_records, len(domain.names)), dtype=np.int64)
    for column in domain.public:
        codes[:, column] = public.codes[domain.names[column]]
    return public.count(top_node(domain, codes), top.n_nodes), variances


def layer_counts(
    layer: Layer, step: Step | None, place: Callable[[Table], IntArray], curator: Curator
) -> tuple[IntArray, FloatArray]:
    """Return noisy counts of a layer, by the node that each record is in, with their variances.

    These are infinite for nodes that aren't counted, and 0 for structural zeros.
    """
    if step is None:
        return np.zeros(layer.n_nodes, dtype=np.int64), np.where(layer.possible, np.inf, 0.0)
    counts = curator.count(step, lambda table: table.count(place(table), layer.n_nodes), layer.counted)
    noise = np.where(layer.counted, count_variance(step.scale), np.inf)
    return counts, np.where(layer.possible, noise, 0.0)


def _view_counts(view: View, position: Position, curator: Curator) -> IntArray:
    return curator.count(
        view.step, lambda table: table.count(view.find(position.codes(table)), view.n_cells), view.possible()
    )
