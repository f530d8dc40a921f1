"""Noisy counts on a tree over public levels: what is counted, and the questions that a
curator answers.

Layer 0 is the whole table (cut by the public columns, if there are any), each further
layer splits every node by one column, and the last layer is the full cross-tabulation
of the columns that remain. A flat histogram is the tree without layers in between. In
place of the last layer there may be views: margins of a few columns each, of the whole
table. The shape of all this depends on the schema and on earlier private answers only.

The column that splits a node is given, or elected (``elections.py``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
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
from pdips.margins.forecast import (
    ColumnNames,
    Forecast,
    MarginForm,
    NoFormError,
    PageShapes,
    label,
)
from pdips.margins.margin_error import (
    ColumnTree,
    small_margins,
    tree_errors,
    view_error,
    view_errors,
    view_noises,
)
from pdips.privacy.curator import Curator
from pdips.privacy.noise_sum import NoiseSum
from pdips.privacy.plan import Plan, Step
from pdips.release.noisy_margins import (
    MOST_NUMBERS,
    MarginError,
    MeasuredMargin,
    axes_of,
)


class Position:
    """Where each record is in a tree that grows. Read by statistics, which curators
    alone compute.
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
            self._codes = np.column_stack(
                [table.codes[name] for name in self.domain.names]
            )
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
    """Says which column splits each node of a layer, and asks the curator where it
    must.
    """

    @property
    def given(self) -> tuple[int, ...] | None:
        """The columns that split all nodes, from the top; None where an answer, or a
        draw, says it.
        """
        ...

    def columns(
        self,
        number: int,
        layer: Layer,
        position: Position,
        curator: Curator,
    ) -> IntArray:
        """Return the column that splits each node of a layer, the ``number``-th that is
        split: shape (nodes,).
        """
        ...


@dataclass(frozen=True)
class GivenColumns:
    """The same columns for every node, from public knowledge; none at all for a flat
    histogram.
    """

    order: tuple[int, ...] = ()

    @property
    def given(self) -> tuple[int, ...]:
        """The columns that split all nodes, from the top."""
        return self.order

    def columns(
        self,
        number: int,
        layer: Layer,
        position: Position,
        curator: Curator,
    ) -> IntArray:
        """Return the given column for every node."""
        return np.full(layer.n_nodes, self.order[number - 1], dtype=np.int64)


@dataclass(frozen=True)
class NoisyTree:
    """Noisy counts of one tree, before anything is made consistent."""

    domain: Domain
    # Layer 0, the layers that split, and the cells, if they are counted
    layers: list[Layer]
    # For each layer that was split by columns, the one that split each node
    chosen: list[IntArray]
    # Noisy counts by layer; layer 0: exact public counts, or zeros if the number isn't
    # public
    observed: list[IntArray]
    # Of the noise, by layer: 0 for exact counts, infinity for counts not observed
    variances: list[FloatArray]
    cells: Cells | None = None
    # Noisy counts of the views; 0 where a structural zero rules the cell out
    views: tuple[IntArray, ...] = ()
    # Scale of the noise of each layer but the first
    scales: tuple[Fraction | None, ...] = ()

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
class TreeDesign(Forecast):
    """What is counted of tables of one schema, whose cross-tabulation is ``domain``.

    ``layers`` has the step that counts each layer below layer 0, None where none does;
    the last one counts the cells, unless there are ``views``: margins in their place.
    ``splitter`` says which columns split, or ``groups`` elects those that split first.
    A node is cut no further if its noisy count is below ``stop`` standard deviations of
    the noise on its children. If it ``redraws``, each set comes from a table of its
    own, fitted to the noisy counts with fresh noise; views alone.
    """

    domain: Domain
    layers: tuple[Step | None, ...]
    splitter: Splitter = GivenColumns()
    views: tuple[View, ...] = ()
    stop: Fraction | None = None
    groups: Callable[[Position, Curator], tuple[int, ...]] | None = None
    redraws: bool = False

    def again(self, measured: NoisyTree, rng: np.random.Generator) -> NoisyTree:
        """Return the noisy counts of the views with fresh noise of the same law
        on top.
        """
        views = tuple(
            counts + view.fresh_noise(rng)
            for view, counts in zip(self.views, measured.views, strict=True)
        )
        return replace(measured, views=views)

    def margin_form(self, plan: Plan) -> MarginForm:
        """Return the error of a cell of a margin by the views that hold it, or by a
        tree whose columns are given.
        """
        if self.views:
            return self._view_error
        if self.groups is not None or self.splitter.given is None:
            raise NoFormError(
                "which columns split is elected, or drawn, for each release: no "
                "margin's error is known before"
            )
        last = len(self.layers)
        split = self.splitter.given[: last - 1]
        layer_of = {column: number for number, column in enumerate(split, start=1)}
        layer_of |= dict.fromkeys(self.domain.public.tolist(), 0)
        depth = tuple(layer_of.get(j, last) for j in range(len(self.domain.names)))
        tree = ColumnTree(self.domain, depth, plan.n_public)
        return partial(tree.margin, scales=self.scales)

    def _view_error(self, columns: Sequence[int]) -> NoiseSum:
        error = view_error(self.views, columns)
        if error is None:
            names = label([self.domain.names[j] for j in columns])
            raise NoFormError(
                f"no margin that is counted holds {names}: it "
                f"follows from others by maximum entropy"
            )
        return error

    def answers_to(self, columns: Sequence[int]) -> list[NoiseSum]:
        """Return the errors of a cell of a margin in each view that holds it."""
        return view_noises(self.views, columns)

    def contrast_noises(self, plan: Plan) -> dict[ColumnNames, tuple[NoiseSum, ...]]:
        """Return the noise of the views on contrasts of one or two columns."""
        names = self.domain.names
        noises = dict[ColumnNames, tuple[NoiseSum, ...]]()
        if self.views:
            for places in small_margins(len(names)):
                columns = tuple(names[k] for k in places)
                noises[columns] = tuple(self.answers_to(places))
        return noises

    def page_shapes(self, plan: Plan, price: Fraction) -> PageShapes:
        """Return the design by itself: views may differ in noise, layers may not."""
        if self.views:
            return PageShapes(step=plan.steps[-1], shapes={"parts": self})
        return super().page_shapes(plan, price)

    def margin_errors(
        self, measured: NoisyTree, *, n_public: bool
    ) -> tuple[MarginError, ...]:
        """Return the errors of small margins, from the views or from the tree as it was
        split.
        """
        if self.views:
            return view_errors(self.domain, self.views)
        return tree_errors(
            self.domain, measured.layers, measured.scales, n_public=n_public
        )

    @property
    def scales(self) -> tuple[Fraction | None, ...]:
        """Scale of the noise of each layer but layer 0."""
        return tuple(None if step is None else step.scale for step in self.layers)

    def measure(self, curator: Curator) -> NoisyTree:
        """Ask for one tree: elections and noisy counts, layer by layer, then cells or
        views.
        """
        tree = self
        position = Position(self.domain)
        # only the last column of the group on top is counted
        if self.groups is not None:
            first = self.groups(position, curator)
            uncounted = [None] * (len(first) - 1)
            tree = replace(
                self,
                layers=(*uncounted, *self.layers),
                splitter=GivenColumns(first),
                groups=None,
            )
        layers = [top_layer(self.domain)]
        chosen = list[IntArray]()
        counts = [top_counts(layers[0], self.domain, curator)]
        n_split = len(tree.layers) - (not tree.views)
        for number, step in enumerate(tree.layers[:n_split], start=1):
            above = layers[-1]
            stopped = tree._stopped(number, above, counts[-1][0], curator)
            columns = tree.splitter.columns(number, above, position, curator)
            chosen.append(np.where(stopped, STOP, columns))
            position.split(chosen[-1])
            layers.append(split_by(self.domain, above, chosen[-1]))
            counts.append(layer_counts(layers[-1], step, position.node, curator))
        bottom = None
        if not tree.views:
            bottom = cells(self.domain, layers[-1])
            find = partial(_cells_of_records, bottom, position)
            layers.append(bottom.layer)
            counts.append(layer_counts(bottom.layer, tree.layers[-1], find, curator))
        views = [_view_counts(view, curator) for view in tree.views]
        return NoisyTree(
            domain=self.domain,
            layers=layers,
            chosen=chosen,
            observed=[observed for observed, _ in counts],
            variances=[variances for _, variances in counts],
            cells=bottom,
            views=tuple(views),
            scales=tree.scales,
        )

    def _stopped(
        self, number: int, above: Layer, counts: IntArray, curator: Curator
    ) -> BoolArray:
        """Return which nodes are cut no further. A group of columns is stopped as a
        whole, at its first column.
        """
        stopped = above.stopped
        if stopped is None:
            stopped = np.zeros(above.n_nodes, dtype=bool)
        if self.stop is None or number == 1 or self.layers[number - 2] is None:
            return stopped
        below = next(step for step in self.layers[number - 1 :] if step is not None)
        limit = float(self.stop) * below.standard_deviation
        held = stopped

        def is_small(noisy: IntArray) -> BoolArray:
            return (noisy < limit) & above.counted | held

        return np.asarray(curator.decide(counts, is_small), dtype=bool)

    def noisy_statistics(
        self, measured: NoisyTree, prefix: str
    ) -> dict[str, pd.DataFrame]:
        """Return the noisy counts as tables: levels of the columns split so far (-1:
        not split), and the count.
        """
        names = list(self.domain.names)
        tables = dict[str, pd.DataFrame]()
        for number in range(1, len(measured.chosen) + 1):
            layer = measured.layers[number]
            counts = measured.observed[number]
            has_counts = np.isfinite(measured.variances[number][layer.counted]).any()
            if has_counts:
                # 100 MB for a million nodes: no copy where all are counted
                kept: IntArray | slice = slice(None)
                if not layer.counted.all():
                    kept = np.flatnonzero(layer.counted)
                frame = pd.DataFrame(layer.path[kept], columns=names, copy=False)
                name = f"{prefix}layer {len(tables) + 1}"
                tables[name] = frame.assign(noisy_count=counts[kept])
        for view, counts in zip(self.views, measured.views, strict=True):
            levels = {names[j]: own for j, own in view.levels().items()}
            frame = pd.DataFrame(levels).assign(noisy_count=counts)
            tables[f"{prefix}{view.step.counts}"] = frame
        if not self.views:
            frame = pd.DataFrame({"noisy_count": measured.observed[-1]})
            tables[f"{prefix}cells"] = frame
        return tables

    def measured_margins(self, measured: NoisyTree) -> Iterator[MeasuredMargin]:
        """Yield the noisy counts as margins: those of a layer by the columns that its
        nodes are split by.
        """
        steps = [step for step in self.layers if step is not None]
        kept = [
            k
            for k in range(1, len(measured.layers))
            if np.isfinite(measured.variances[k]).any()
        ]
        for number, step in zip(kept, steps, strict=False):
            layer = measured.layers[number]
            counts = measured.observed[number]
            is_last = number == len(measured.layers) - 1
            if measured.cells is not None and is_last:
                yield cell_margin(self.domain, measured, step)
            else:
                yield from _layer_margins(self.domain, layer, counts, step)
        for view, counts in zip(self.views, measured.views, strict=True):
            codes = tuple(view.levels().values())
            yield _of_cells(self.domain, view.columns, codes, counts, view.step)


def _cells_of_records(bottom: Cells, position: Position, table: Table) -> IntArray:
    return bottom.find(position.node(table), position.codes(table))


def _layer_margins(
    domain: Domain, layer: Layer, counts: IntArray, step: Step
) -> Iterator[MeasuredMargin]:
    """Yield the counts of a layer, those of nodes that are split by the same columns
    together.
    """
    is_split = layer.path >= 0
    own = np.ones(layer.n_nodes, dtype=bool)
    if layer.stopped is not None:  # their counts are those of the layer above
        own = ~layer.stopped
    for split in np.unique(is_split[own], axis=0):
        columns = np.flatnonzero(split)
        nodes = np.flatnonzero(own & (is_split == split).all(axis=1))
        codes = tuple(layer.path[nodes][:, columns].T)
        yield _of_cells(domain, columns, codes, counts[nodes], step)


def cell_margin(domain: Domain, measured: NoisyTree, step: Step) -> MeasuredMargin:
    """Return the noisy counts of all cells as a margin."""
    counts = measured.observed[-1]
    if len(counts) > MOST_NUMBERS:  # they aren't published
        return MeasuredMargin.of(step, [], counts)
    every = np.arange(len(counts))
    columns = range(len(domain.names))
    codes = tuple(measured.levels(every, column) for column in columns)
    return _of_cells(domain, columns, codes, counts, step)


def _of_cells(
    domain: Domain,
    columns: Sequence[int] | IntArray,
    codes: tuple[IntArray, ...],
    counts: IntArray,
    step: Step,
) -> MeasuredMargin:
    sizes = tuple(int(domain.sizes[column]) for column in columns)
    place = np.ravel_multi_index(codes, sizes)
    order = np.argsort(place)
    axes = axes_of([domain.names[column] for column in columns], sizes)
    return MeasuredMargin.of(step, axes, counts[order], place[order])


def top_counts(
    top: Layer, domain: Domain, curator: Curator
) -> tuple[IntArray, FloatArray]:
    """Return the counts of layer 0 where they are public, and zeros where they aren't,
    with their variances.
    """
    variances = np.full(top.n_nodes, 0.0 if curator.n_public else np.inf)
    if not len(domain.public):
        n_records = curator.n_records if curator.n_public else 0
        return np.array([n_records], dtype=np.int64), variances
    public = curator.public
    codes = np.zeros((public.n_records, len(domain.names)), dtype=np.int64)
    for column in domain.public:
        codes[:, column] = public.codes[domain.names[column]]
    return public.count(top_node(domain, codes), top.n_nodes), variances


def layer_counts(
    layer: Layer,
    step: Step | None,
    place: Callable[[Table], IntArray],
    curator: Curator,
) -> tuple[IntArray, FloatArray]:
    """Return noisy counts of a layer, by the node that each record is in, with their
    variances.

    These are infinite for nodes that aren't counted, and 0 for structural zeros.
    """
    if step is None:
        none = np.zeros(layer.n_nodes, dtype=np.int64)
        return none, np.where(layer.possible, np.inf, 0.0)
    counts = curator.count(
        step, lambda table: table.count(place(table), layer.n_nodes), layer.counted
    )
    noise = np.where(layer.counted, count_variance(step.scale), np.inf)
    return counts, np.where(layer.possible, noise, 0.0)


def _view_counts(view: View, curator: Curator) -> IntArray:
    # reads each table by itself: tables in many files are counted part by part
    return curator.count(
        view.step,
        lambda table: table.count(view.find(table), view.n_cells),
        view.possible(),
    )
