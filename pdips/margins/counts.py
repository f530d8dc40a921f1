"""Noisy counts on a tree over public levels, and the synthetic sets that are drawn from them.

Layer 0 is the whole table (cut by the public columns, if there are any), each further layer splits every node by one
column, and the last layer is the full cross-tabulation of the columns that remain. A flat histogram is the tree without
layers in between. In place of the last layer there may be views: margins of a few columns each, of the whole table. The
shape of all this depends on the schema and on earlier noisy outputs only.

A release grows one tree. An audit grows many at once, or all that there could be without noise, by the same code.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import numpy as np

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.table import Table
from pdips.margins.domain import STOP, Cells, Domain, Layer, cells, descend, domain_of, split_by, top_layer, top_node
from pdips.margins.elections import GroupElection
from pdips.margins.views import View
from pdips.privacy.noise import RandomBits, discrete_laplace, discrete_laplace_variance
from pdips.privacy.plan import Noise

SMALLEST_VARIANCE = 1e-30
"""Stands in for the variance of noise so small that its reciprocal would overflow; only its ratio to others matters."""


@dataclass(frozen=True)
class Measured:
    """Counts of one tree, before anything is made consistent, for one run or several that grew the same tree.

    Parameters
    ----------
    domain : Domain
        The cross-tabulation.
    layers : list of Layer
        Layer 0, the layers that split by a column, and the cells.
    chosen : list of ndarray
        For each layer that was split, the column that split each node.
    observed : list of ndarray of int64, each of shape (runs, nodes)
        Noisy counts by layer; layer 0 holds exact public counts, or zeros where the number of records isn't public.
    variances : list of ndarray, each of shape (nodes,)
        Variance of the noise by layer: 0 for exact counts, infinity for counts not observed.
    log_probability : float
        Of the choices, when all trees are enumerated; 0 when they were drawn.
    cells : Cells, optional
        The last layer, if it is the full cross-tabulation.
    views : tuple of ndarray of int64, each of shape (runs, cells of the view)
        Noisy counts of the views; 0 where a structural zero rules the cell out.
    scales : tuple of Fraction or None
        Scale of the noise of each layer but the first.
    """

    domain: Domain
    layers: list[Layer]
    chosen: list[IntArray]
    observed: list[IntArray]
    variances: list[FloatArray]
    log_probability: float = 0.0
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


class Chooser(Protocol):
    """Says which column splits each node of a layer, and pays for what it reads."""

    def draw(
        self,
        number: int,
        layer: Layer,
        node: IntArray,
        codes: IntArray,
        *,
        counts: IntArray | None,
        n_runs: int,
        bits: RandomBits,
    ) -> IntArray:
        """Return the choices of ``n_runs`` independent runs, shape (runs, nodes).

        ``node`` and ``codes`` have a row for each row of the table, which stands for ``counts`` records, or for one.
        """
        ...

    def outcomes(
        self, number: int, layer: Layer, node: IntArray, codes: IntArray, *, counts: IntArray | None
    ) -> tuple[IntArray, FloatArray]:
        """Return all choices that there could be, shape (outcomes, nodes), and their log probabilities."""
        ...


@dataclass(frozen=True)
class Given:
    """The same columns for every node, from public knowledge; none at all for a flat histogram."""

    columns: tuple[int, ...] = ()

    def draw(
        self,
        number: int,
        layer: Layer,
        node: IntArray,
        codes: IntArray,
        *,
        counts: IntArray | None,
        n_runs: int,
        bits: RandomBits,
    ) -> IntArray:
        """Return the given column for every node of every run."""
        return np.full((n_runs, layer.n_nodes), self.columns[number - 1], dtype=np.int64)

    def outcomes(
        self, number: int, layer: Layer, node: IntArray, codes: IntArray, *, counts: IntArray | None
    ) -> tuple[IntArray, FloatArray]:
        """Return the one outcome."""
        return np.full((1, layer.n_nodes), self.columns[number - 1], dtype=np.int64), np.zeros(1)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a mechanism does to a table, apart from the table.

    Parameters
    ----------
    scales : tuple of Fraction or None
        Scale of the noise for each layer below layer 0, None for a layer that isn't counted. The last one is that of
        the cells, unless there are views.
    chooser : Chooser
        Who chooses the columns that split.
    n_public : bool
        Whether the counts of layer 0 are public.
    n_trees : int
        Number of independent trees in a release.
    names : tuple of str
        What to call each layer in ``scales``.
    views : tuple of View
        Margins to be counted in place of the cells.
    stop : Fraction, optional
        A node is cut no further if its noisy count is below this many standard deviations of the noise on its children.
    groups : GroupElection, optional
        Elects the columns that split first, in place of the chooser.
    """

    scales: tuple[Fraction | None, ...]
    chooser: Chooser
    n_public: bool
    n_trees: int = 1
    names: tuple[str, ...] = ()
    views: tuple[View, ...] = ()
    stop: Fraction | None = None
    groups: GroupElection | None = None

    @property
    def n_split(self) -> int:
        """Number of layers that split by a column."""
        return len(self.scales) - (not self.views)

    def noise(self) -> list[Noise]:
        """Return the noise on the counts of each layer and view, in records."""
        layers = [(name, scale) for name, scale in zip(self.names, self.scales, strict=True) if scale is not None]
        return [
            Noise(statistics=name, scale=float(scale), standard_deviation=math.sqrt(discrete_laplace_variance(scale)))
            for name, scale in [*layers, *((view.name, view.scale) for view in self.views)]
        ]

    def settled(self, first: tuple[int, ...]) -> "Plan":
        """Return the plan once an election has said which columns are on top; only the last of them is counted."""
        unseen = len(first) - 1
        scales, names = (*(None,) * unseen, *self.scales), (*("",) * unseen, *self.names)
        return replace(self, scales=scales, chooser=Given(first), names=names, groups=None)


@dataclass(frozen=True)
class _Branch:
    """A choice of columns, which of the runs at hand make it, and its log probability where all are enumerated."""

    chosen: IntArray
    runs: slice
    log_probability: float = 0.0


class _Gardener(Protocol):
    """Grows trees: says which choices occur, and what is observed of a layer's counts in a number of runs."""

    def branches(self, number: int, layer: Layer, node: IntArray, codes: IntArray, n_runs: int) -> list[_Branch]: ...
    def count(self, counts: IntArray, possible: BoolArray, scale: Fraction, n_runs: int) -> IntArray: ...


@dataclass(frozen=True, repr=False)
class Drawing:
    """Grows trees as a release does, with drawn choices and noisy counts."""

    chooser: Chooser
    bits: RandomBits
    records: IntArray | None = None

    def branches(self, number: int, layer: Layer, node: IntArray, codes: IntArray, n_runs: int) -> list[_Branch]:
        chosen = self.chooser.draw(number, layer, node, codes, counts=self.records, n_runs=n_runs, bits=self.bits)
        if n_runs == 1:
            return [_Branch(chosen[0], slice(None))]
        # Choices don't depend on the noise of the layers above, so which runs make which choice is of no account.
        rows, sizes = np.unique(chosen, axis=0, return_counts=True)
        ends = np.cumsum(sizes)
        return [_Branch(row, slice(end - size, end)) for row, size, end in zip(rows, sizes, ends, strict=True)]

    def count(self, counts: IntArray, possible: BoolArray, scale: Fraction, n_runs: int) -> IntArray:
        return noisy_counts(counts, possible, scale, self.bits, n_runs)


@dataclass(frozen=True, repr=False)
class Enumerating:
    """Grows every tree that there could be, and counts without noise."""

    chooser: Chooser
    records: IntArray | None = None

    def branches(self, number: int, layer: Layer, node: IntArray, codes: IntArray, n_runs: int) -> list[_Branch]:
        chosen, log_probabilities = self.chooser.outcomes(number, layer, node, codes, counts=self.records)
        return [_Branch(row, slice(None), float(log)) for row, log in zip(chosen, log_probabilities, strict=True)]

    def count(self, counts: IntArray, possible: BoolArray, scale: Fraction, n_runs: int) -> IntArray:
        return np.where(possible, counts, 0)[None]


@dataclass(frozen=True, repr=False)
class _Growth:
    """A tree being grown over a table."""

    table: Table
    plan: Plan
    gardener: _Gardener
    domain: Domain
    codes: IntArray

    def from_top(self, n_runs: int) -> Iterator[Measured]:
        """Yield every tree that the gardener's choices lead to."""
        domain, top = self.domain, top_layer(self.domain)
        node = top_node(domain, self.codes)
        exact, variance = np.zeros(top.n_nodes, dtype=np.int64), np.inf
        if self.plan.n_public:
            exact, variance = self.table.count(node, top.n_nodes), 0.0
        observed = [np.repeat(exact[None], n_runs, axis=0)]
        start = Measured(domain, [top], [], observed, [np.full(top.n_nodes, variance)], scales=self.plan.scales)
        yield from self._below(start, node)

    def _below(self, tree: Measured, node: IntArray) -> Iterator[Measured]:
        number, above = len(tree.layers), tree.layers[-1]
        if number > self.plan.n_split:
            yield self._finished(tree, node)
            return
        for part, stopped in _parts(tree, self.plan, number):
            n_runs = len(part.observed[0])
            for branch in self.gardener.branches(number, above, node, self.codes, n_runs):
                chosen = np.where(stopped, STOP, branch.chosen)
                grown = replace(
                    part,
                    chosen=[*part.chosen, chosen],
                    observed=[counts[branch.runs] for counts in part.observed],
                    log_probability=part.log_probability + branch.log_probability,
                )
                below = descend(node, self.codes, self.domain, chosen)
                yield from self._below(self._counted(grown, split_by(self.domain, above, chosen), below), below)

    def _counted(self, tree: Measured, layer: Layer, node: IntArray) -> Measured:
        scale, n_runs = self.plan.scales[len(tree.layers) - 1], len(tree.observed[0])
        observed, variance = np.zeros((n_runs, layer.n_nodes), dtype=np.int64), np.where(layer.possible, np.inf, 0.0)
        if scale is not None:
            counts = self.table.count(node, layer.n_nodes)
            observed = self.gardener.count(counts, layer.counted, scale, n_runs)
            variance = np.where(layer.counted, noise_variance(layer.possible, scale), variance)
        return replace(
            tree,
            layers=[*tree.layers, layer],
            observed=[*tree.observed, observed],
            variances=[*tree.variances, variance],
        )

    def _finished(self, tree: Measured, node: IntArray) -> Measured:
        if not self.plan.views:
            bottom = cells(self.domain, tree.layers[-1])
            return replace(self._counted(tree, bottom.layer, bottom.find(node, self.codes)), cells=bottom)
        n_runs, views = len(tree.observed[0]), []
        for view in self.plan.views:
            counts = self.table.count(view.find(self.domain, self.codes), view.n_cells(self.domain))
            views.append(self.gardener.count(counts, view.possible(self.domain), view.scale, n_runs))
        return replace(tree, views=tuple(views))


def _parts(tree: Measured, plan: Plan, number: int) -> Iterator[tuple[Measured, BoolArray]]:
    """Yield the runs at hand by the nodes that they cut no further, as their noisy counts say.

    A group of columns is stopped as a whole, at its first column: the layers inside it have no counts to go by.
    """
    above = tree.layers[-1]
    stopped = np.zeros(above.n_nodes, dtype=bool) if above.stopped is None else above.stopped
    if plan.stop is None or number == 1 or plan.scales[number - 2] is None:
        yield tree, stopped
        return
    scale = next(scale for scale in plan.scales[number - 1 :] if scale is not None)
    limit = float(plan.stop) * math.sqrt(discrete_laplace_variance(scale))
    masks = (tree.observed[-1] < limit) & above.counted | stopped
    patterns, pattern = np.unique(masks, axis=0, return_inverse=True)
    for i, mask in enumerate(patterns):
        yield replace(tree, observed=[counts[pattern.ravel() == i] for counts in tree.observed]), mask


def grow(table: Table, plan: Plan, gardener: _Gardener, n_runs: int = 1) -> Iterator[Measured]:
    """Grow every tree that the gardener's choices lead to, and count its layers."""
    domain = domain_of(table.schema)
    yield from _Growth(table, plan, gardener, domain, codes_of(table)).from_top(n_runs)


def settle(table: Table, plan: Plan, bits: RandomBits, n_runs: int) -> list[tuple[int, Plan, int]]:
    """Hold the election of groups, if there is one: which group won, the plan that follows, and in how many runs."""
    if plan.groups is None:
        return [(-1, plan, n_runs)]
    drawn = plan.groups.draw(codes_of(table), table.counts, n_runs, bits)
    return [
        (int(group), plan.settled(plan.groups.candidates[group]), int(n))
        for group, n in zip(*np.unique(drawn, return_counts=True), strict=True)
    ]


def codes_of(table: Table) -> IntArray:
    return np.column_stack([table.codes[name] for name in domain_of(table.schema).names])


def measure(table: Table, plan: Plan, bits: RandomBits) -> Measured:
    """Grow one tree over the table and count every layer with noise."""
    ((_, settled, _),) = settle(table, plan, bits, 1)
    (measured,) = grow(table, settled, Drawing(settled.chooser, bits, table.counts))
    return measured


def noisy_counts(counts: IntArray, possible: BoolArray, scale: Fraction, bits: RandomBits, n_runs: int = 1) -> IntArray:
    """Add exact discrete Laplace noise to the counts of possible nodes; the others are 0 and stay so.

    Returns
    -------
    ndarray of int64, shape (runs, nodes)
    """
    n_possible = int(possible.sum())
    noise = discrete_laplace(scale, n_runs * n_possible, bits).reshape(n_runs, n_possible)
    if n_possible == len(counts):
        return counts + noise
    noisy = np.zeros((n_runs, len(counts)), dtype=np.int64)
    noisy[:, possible] = counts[possible] + noise
    return noisy


def noise_variance(possible: BoolArray, scale: Fraction) -> FloatArray:
    """Return the variance of each noisy count; 0 for structural zeros, which are exact."""
    return np.where(possible, max(discrete_laplace_variance(scale), SMALLEST_VARIANCE), 0.0)
