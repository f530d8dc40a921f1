"""The standard error of a margin: what the noise on counts comes to in it, from public
facts alone.

What is counted and how loud its noise is are public, so all of this is known before a
table is read; for the proofs see ``docs/planning.md``. A least squares count of a tree
is a weighted sum of the noisy ones. Of node v let s be the variance of its count from
its own noise and what lies below it, S the sum of s over its children, and m the share
of v's count that a cell of the margin gets. They give the variance of the cell, and the
weight of each noisy count in it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.margins.domain import MOST_BITS, Columns, Domain, Layer, View, count_variance
from pdips.privacy.noise_sum import NoiseSum, Terms
from pdips.release.release import MarginError

if TYPE_CHECKING:
    from pdips.margins.estimates import NoisyPairs
    from pdips.margins.residuals import ResidualDesign

# Shares of nodes in margins that are worked out at once; 8 bytes each
MOST_HELD = 2**22

Scales = Sequence[Fraction | None]


def small_margins(n_columns: int) -> list[Columns]:
    """Return all single columns and all pairs, as positions."""
    every = range(n_columns)
    return [*combinations(every, 1), *combinations(every, 2)]


@dataclass(frozen=True)
class CountTree:
    """The shape of a tree of counts. Like nodes below one parent may stand once, with
    the number of them.
    """

    # By layer below 0, each node's parent, not decreasing; only the last has no
    # children
    parents: Sequence[IntArray]
    # For each of these, how many nodes like it each node stands for below one parent
    copies: Sequence[FloatArray]
    # Whether the counts of layer 0 are exact; otherwise they aren't observed
    n_public: bool
    n_top: float = 1.0  # How many nodes like it each node of layer 0 stands for

    @cached_property
    def numbers(self) -> list[FloatArray]:
        """How many nodes each node stands for in the whole tree, by layer."""
        numbers = [np.full(int(self.parents[0][-1]) + 1, float(self.n_top))]
        for parent, copies in zip(self.parents, self.copies, strict=True):
            numbers.append(numbers[-1][parent] * copies)
        return numbers

    @cached_property
    def _first_children(self) -> list[IntArray]:
        return [np.flatnonzero(np.diff(parent, prepend=-1)) for parent in self.parents]

    def _below(self, layer: int, values: FloatArray) -> FloatArray:
        """Add values of the nodes of a layer up over the children of each node above,
        copies included.
        """
        first = self._first_children[layer - 1]
        return np.add.reduceat(values * self.copies[layer - 1], first, axis=-1)

    def spreads(self, variances: Sequence[FloatArray]) -> list[FloatArray]:
        """Return s by layer, layer 0 first: 0 where its counts are exact (upward pass
        of docs/planning.md).

        ``variances`` are those of the noise on each count, layer by layer below layer
        0, shape (..., nodes) or (..., 1), in squared records: above 0, and infinite
        where there is no count.
        """
        spreads = [np.zeros(len(self.parents[-1])) + variances[-1]]
        for layer in range(len(self.parents) - 1, 0, -1):
            below = self._below(layer + 1, spreads[0])
            spreads.insert(0, below / (1 + below / variances[layer - 1]))
        top = self._below(1, spreads[0])
        return [np.zeros_like(top) if self.n_public else top, *spreads]

    def weights(
        self, variances: Sequence[FloatArray], leaves: FloatArray
    ) -> list[FloatArray]:
        """Return what each noisy count weighs in a sum of the least squares cells with
        these weights, by layer.

        With a = S / (sigma^2 + S), 1 for a cell, a node's noise has weight a g, where g
        of a child c of v is (m_c - m_v) + (1 - a_v) g_v; g of the root is 0 where the
        root is exact, and m where it isn't observed.
        """
        s = self.spreads(variances)
        m = [leaves]
        own = [np.ones(len(leaves))]
        for layer in range(len(self.parents), 0, -1):
            below = self._below(layer, s[layer])
            shares = self._below(layer, s[layer] * m[0])
            m.insert(0, shares / below)
            is_counted = layer > 1
            noise = variances[layer - 2] if is_counted else np.array([np.inf])
            own.insert(0, 1 - 1 / (1 + below / noise))
        g = np.zeros_like(m[0]) if self.n_public else m[0]
        weights = list[FloatArray]()
        for layer, parent in enumerate(self.parents, start=1):
            kept = 1 - own[layer - 1]
            from_above = kept * g - m[layer - 1]
            g = m[layer] + from_above[parent]
            weights.append(own[layer] * g)
        return weights

    def noise(self, scales: Scales, leaves: FloatArray) -> NoiseSum:
        """Return the error of a sum of the least squares cells with these weights, for
        noise of a scale by layer.
        """
        variances = [np.array([count_variance(scale)]) for scale in scales]
        weights = self.weights(variances, leaves)
        numbers = self.numbers[1:]
        terms = list[Terms]()
        for scale in dict.fromkeys(scale for scale in scales if scale is not None):
            alike = [layer for layer, other in enumerate(scales) if other == scale]
            weight = np.concatenate([weights[layer] for layer in alike]).round(12)
            number = np.concatenate([numbers[layer] for layer in alike])
            # the terms of one weight are one entry, however many nodes have it
            different, place = np.unique(weight, return_inverse=True)
            n_alike = np.bincount(place, weights=number)
            for own, n in zip(different, n_alike, strict=True):
                if own and n:
                    terms.append(Terms(float(own), round(n), scale))
        return NoiseSum(tuple(terms))

    def parts(
        self,
        spreads: Sequence[FloatArray],
        open_columns: Sequence[IntArray],
        sizes: IntArray,
    ) -> FloatArray:
        """Return what each layer adds to the mean variance of the cells of small
        margins, shape (margins, layers).

        ``open_columns`` are those that each node leaves open, as the sum of 2^column.
        The variances of a margin's cells add up to the sum over all nodes of s |m|^2
        less the sum over inner nodes of S |m|^2. If k cells of the margin can still be
        reached from a node, |m|^2 is at least 1 / k, and equal to it where siblings are
        split alike. So this is exact for one order of columns, and an upper bound where
        branches differ. Structural zeros are left out: with them errors are at most as
        large (Gauss and Markov).
        """
        numbers = self.numbers
        parts = [_over_margins(open_columns[0], numbers[0] * spreads[0], sizes)]
        for layer in range(1, len(spreads)):
            below = self._below(layer, spreads[layer])
            together = below * numbers[layer - 1]
            own = numbers[layer] * spreads[layer]
            above = _over_margins(open_columns[layer - 1], together, sizes)
            parts.append(_over_margins(open_columns[layer], own, sizes) - above)
        margins = small_margins(len(sizes))
        n_cells = [math.prod(sizes[list(columns)].tolist()) for columns in margins]
        totals = np.column_stack(parts)
        return np.asarray(totals / np.array(n_cells)[:, None])


def _over_margins(
    open_columns: IntArray, values: FloatArray, sizes: IntArray
) -> FloatArray:
    """Add up values of nodes, each divided by the number of cells of a margin that the
    node can still fall into.
    """
    patterns, place = np.unique(open_columns, return_inverse=True)
    total = np.bincount(place, weights=values)
    margins = small_margins(len(sizes))
    first = np.array([columns[0] for columns in margins])
    # single columns have the last row of ones for their second
    second = np.array([(*columns, -1)[1] for columns in margins])
    sums = np.zeros(len(margins))
    n_parts = 1 + len(patterns) * len(margins) // MOST_HELD
    column = np.arange(len(sizes))[:, None]
    for part in np.array_split(np.arange(len(patterns)), n_parts):
        is_open = patterns[part] >> column & 1
        levels = np.where(is_open, sizes[:, None], 1)
        one_each = np.vstack([1 / levels, np.ones(len(part))])
        sums += (one_each[first] * one_each[second]) @ total[part]
    return sums


@dataclass(frozen=True)
class ColumnTree:
    """A tree that splits by the same columns in every branch; structural zeros are left
    out of account.
    """

    domain: Domain
    # Layer in which each column is first known: 0 for public ones, the last if only by
    # cells
    depth: tuple[int, ...]
    # Whether the counts of layer 0 are exact; otherwise they aren't observed
    n_public: bool

    @cached_property
    def n_noised(self) -> int:
        """Number of layers below layer 0, the cells included."""
        return max(*self.depth, 1)

    def _product(self, layer: int, columns: Sequence[int]) -> int:
        """Multiply the numbers of levels over those of some columns that a layer splits
        by.
        """
        return self.domain.size_of(j for j in columns if self.depth[j] == layer)

    @cached_property
    def fan_out(self) -> list[int]:
        """Number of children of a node of each layer above the cells."""
        every = range(len(self.depth))
        return [self._product(layer, every) for layer in range(1, self.n_noised + 1)]

    def margin(self, columns: Sequence[int], scales: Scales) -> NoiseSum:
        """Return the error of a cell of a margin of these columns, for noise of a scale
        by layer.

        In each layer nodes are of these kinds: those that agree with the cell, which
        come first, those that differ from it in this layer for the first time, in the
        layer above, and so on.
        """
        others = [j for j in range(len(self.depth)) if j not in columns]
        parents = []
        copies = []
        for layer, fan_out in enumerate(self.fan_out, start=1):
            agreeing = self._product(layer, others)
            parents.append(np.maximum(np.arange(layer + 1) - 1, 0))
            n_alike = np.full(layer + 1, float(fan_out))
            n_alike[:2] = agreeing, fan_out - agreeing
            copies.append(n_alike)
        leaves = np.zeros(len(parents[-1]))
        leaves[0] = 1.0
        n_top = self._product(0, others)
        return CountTree(parents, copies, self.n_public, n_top).noise(scales, leaves)


def tree_errors(
    domain: Domain, layers: Sequence[Layer], scales: Scales, *, n_public: bool
) -> tuple[MarginError, ...]:
    """Return the standard error of one cell of each one-way and two-way margin of the
    least-squares counts of a tree.

    The root mean square over the cells of a margin, in records. Layer 0, the layers
    that split, and the cells may be split by different columns in different branches:
    then it is an upper bound (:meth:`CountTree.parts`). Empty if there are more than 62
    columns.
    """
    if len(domain.names) > MOST_BITS:
        return ()
    inner = layers[:-1]
    n_cells = np.bincount(layers[-1].parent)
    parents = [*(layer.parent for layer in inner[1:]), np.arange(len(n_cells))]
    copies = [*(np.ones(layer.n_nodes) for layer in inner[1:]), n_cells.astype(float)]
    tree = CountTree(parents, copies, n_public)
    spreads = tree.spreads([np.array([count_variance(scale)]) for scale in scales])
    none = np.zeros(len(n_cells), dtype=np.int64)
    open_columns = [*(layer.patterns() for layer in inner), none]
    variances = tree.parts(spreads, open_columns, domain.sizes).sum(axis=1)
    public = set(domain.public.tolist())
    margins = zip(small_margins(len(domain.names)), variances, strict=True)
    return tuple(
        _margin_error(domain, columns, math.sqrt(max(variance, 0.0)))
        for columns, variance in margins
        if not set(columns) <= public
    )


def _margin_error(domain: Domain, columns: Columns, error: float) -> MarginError:
    names = tuple(domain.names[j] for j in columns)
    return MarginError(columns=names, standard_error=error)


def view_noises(views: Sequence[View], columns: Sequence[int]) -> list[NoiseSum]:
    """Return the error of a cell of a margin in each of the views that hold it."""
    noises = list[NoiseSum]()
    for view in _holding(views, columns):
        step = view.step
        terms = Terms(1.0, view.n_summed(columns), step.parameter, step.law)  # type: ignore[arg-type]
        noises.append(NoiseSum((terms,)))
    return noises


def _holding(views: Sequence[View], columns: Sequence[int]) -> list[View]:
    return [view for view in views if set(columns) <= set(view.columns)]


def view_error(views: Sequence[View], columns: Sequence[int]) -> NoiseSum | None:
    """Return the error of a cell of a margin, averaged by inverse variance over the
    views that hold it, if any does.
    """
    held = _holding(views, columns)
    precision = [1 / view.margin_variance(columns) for view in held]
    terms = list[Terms]()
    for noise, own in zip(view_noises(held, columns), precision, strict=True):
        share = own / sum(precision)
        terms += [replace(part, weight=share) for part in noise.terms]
    return NoiseSum(tuple(terms)) if held else None


def view_errors(domain: Domain, views: Sequence[View]) -> tuple[MarginError, ...]:
    """Return the standard error of the noise in each one-way and two-way margin of
    noisy views, in records.

    Of a cell of the average, weighted by inverse variance, over all views that hold the
    margin; margins that no view holds are left out. It follows from public facts, so it
    is known before anything is spent, and it may be published.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "sex": Column(levels=["f", "m"]),
    ...     }
    ... )
    >>> design = Margins(epsilon=1).plan(schema).design
    >>> [
    ...     (each.columns, round(each.standard_error, 1))
    ...     for each in view_errors(design.domain, design.views)
    ... ]
    [(('ill',), 4.0), (('sex',), 4.0), (('ill', 'sex'), 2.8)]
    """
    errors = list[MarginError]()
    for columns in small_margins(len(domain.names)):
        noise = view_error(views, columns)
        if noise is not None:
            errors.append(_margin_error(domain, columns, noise.standard_error))
    return tuple(errors)


def pair_errors(
    design: "ResidualDesign", found: "NoisyPairs", coded: Mapping[str, float]
) -> Iterator[MarginError]:
    """Yield the standard error of counts of margins of one or two columns with levels
    or bins, not tied to others.

    ``coded`` has variances of counts of levels that pairs know by their groups. What
    isn't counted is left out.
    """
    for name, variance in coded.items():
        yield MarginError(columns=(name,), standard_error=math.sqrt(variance))
    alone = design.own_block
    domain = design.domain
    coded_columns = {domain.names.index(name) for name in coded}
    for size in (1, 2):
        for columns in combinations(sorted(alone), size):
            margin = tuple(alone[column] for column in columns)
            if coded_columns.isdisjoint(columns):
                error = math.sqrt(design.cell_variance(margin, found.variances))
                if error < math.inf:
                    yield _margin_error(domain, columns, error)
    column_of = {block: column for column, block in alone.items()}
    for triple in found.triples:
        if column_of.keys() >= {*triple.blocks}:
            columns = tuple(column_of[block] for block in triple.blocks)
            if coded_columns.isdisjoint(columns):
                yield _margin_error(domain, columns, math.sqrt(triple.variance))
