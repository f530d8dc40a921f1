"""Trees of intervals over one ordered column, counted with noise: the universal histogram of Hay et al. (2010).

Every layer cuts the levels, in the order of the schema, into intervals. The last of these layers has one level each,
and the cross-tabulation of the other columns hangs below. All shapes follow from public numbers of levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
import pandas as pd

from pdips.arrays import IntArray
from pdips.data.table import Table
from pdips.margins.domain import Cells, Domain, Layer, cells, split_by, top_layer, top_node
from pdips.margins.margin_error import CountTree
from pdips.margins.tree import NoisyTree, layer_counts, top_counts
from pdips.privacy.curator import Curator
from pdips.privacy.noise_sum import NoiseSum
from pdips.privacy.plan import Step

LARGEST_FAN_OUT = 16
"""Qardaji, Yang and Li (2013) find no use for more."""


def interval_counts(n_levels: int, fan_out: int) -> tuple[int, ...]:
    """Return how many intervals each layer has, from the top, the root left out; the last layer has the levels.

    Every layer has as few intervals as hold ``fan_out`` of the next layer's each: a complete tree where the number of
    levels is a power of ``fan_out``.
    """
    counts = [n_levels]
    while counts[0] > fan_out:
        counts.insert(0, -(-counts[0] // fan_out))
    return tuple(counts)


def interval_parents(counts: tuple[int, ...]) -> list[IntArray]:
    """Return the interval above each interval, for every layer of :func:`interval_counts`; groups of even size."""
    above = (1, *counts[:-1])
    return [np.arange(n) * up // n for up, n in zip(above, counts, strict=True)]


@lru_cache(maxsize=64)
def best_fan_out(n_levels: int, n_below: int = 1, *, n_public: bool = True) -> int:
    """Return the fan-out, from 2 to 16 or all levels at once, with the least average variance of a range of levels.

    The criterion of Qardaji, Yang and Li (2013), "Understanding hierarchical methods for differentially private
    histograms", computed exactly for the tree that is built, ``n_below`` cells below each level. Up to 110 levels under
    replace-one and 42 under add-remove, without cells below, no tree of intervals beats the flat one.
    """
    tried: list[int] = sorted({*range(2, min(LARGEST_FAN_OUT, n_levels) + 1), max(n_levels, 2)})
    found = [average_range_variance(n_levels, fan_out, n_below, n_public=n_public) for fan_out in tried]
    return tried[int(np.argmin(found))]


def average_range_variance(n_levels: int, fan_out: int, n_below: int = 1, *, n_public: bool = True) -> float:
    """Return the variance of the count of a range of levels, averaged over all ranges, after least squares.

    In units of the variance of the noise that a single layer with the whole budget would have; with N layers it is N^2.
    The variance of a sum with weights w over the levels is V_root m_root^2 + sum over nodes (sum_c s_c m_c^2 - S m^2),
    m the weighted mean of w below a node (``docs/planning.md``). For a random range the mean of m_c m_d of two siblings
    is a product of their mean distances from the two ends, so one pass over the tree gives all expectations.
    """
    counts = interval_counts(n_levels, fan_out)
    noise = float(len(counts) + (n_below > 1)) ** 2
    pairs = 2.0 / (n_levels * (n_levels + 1.0))
    start = np.arange(1.0, n_levels + 1)
    square = pairs * start * (n_levels + 1 - start)
    spread = np.full(n_levels, noise * n_below / (n_below + 1) if n_below > 1 else noise)
    total = 0.0
    for number, parent in reversed(list(enumerate(interval_parents(counts)))):
        below = np.bincount(parent, weights=spread)
        weight = spread / below[parent]
        total += float(spread @ square)
        moved = weight * start
        before = np.cumsum(moved) - moved
        before -= before[np.flatnonzero(np.diff(parent, prepend=-1))][parent]
        crossed = 2 * pairs * before * weight * (n_levels + 1 - start)
        square = np.bincount(parent, weights=weight**2 * square + crossed)
        start = np.bincount(parent, weights=moved)
        total -= float(below @ square)
        spread = noise * below / (noise + below) if number else below
    return total if n_public else total + float(spread[0] * square[0])


@dataclass(frozen=True, kw_only=True)
class IntervalTree:
    """What a universal histogram of one ordered column counts of tables of one schema."""

    domain: Domain
    column: int
    """Position of the ordered column."""
    fan_out: int
    """Most intervals that an interval is cut into."""
    steps: tuple[Step, ...]
    """The step that counts each layer below layer 0; the last one is that of the cells."""

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How many intervals each layer has."""
        return interval_counts(int(self.domain.sizes[self.column]), self.fan_out)

    @cached_property
    def intervals(self) -> list[IntArray]:
        """The interval of each level, in every layer of intervals."""
        found = [np.arange(self.counts[-1])]
        for parent in reversed(interval_parents(self.counts)[1:]):
            found.insert(0, parent[found[0]])
        return found

    @cached_property
    def top(self) -> Layer:
        """Layer 0: one node, or one a combination of the public columns."""
        return top_layer(self.domain)

    @cached_property
    def levels(self) -> Layer:
        """The layer of single levels."""
        return split_by(self.domain, self.top, np.full(self.top.n_nodes, self.column))

    @cached_property
    def cells(self) -> Cells:
        """The cells: below the levels, or, without other columns, the levels themselves."""
        return cells(self.domain, self.levels if self.has_cells else self.top)

    @property
    def has_cells(self) -> bool:
        """Whether columns are left to be cross-tabulated below the levels."""
        return len(self.domain.public) + 1 < len(self.domain.names)

    def layers(self) -> list[Layer]:
        """Return all layers from the top."""
        top, found, n_above = self.top, [self.top], 1
        for n_intervals, parent, held in zip(self.counts, interval_parents(self.counts), self.intervals, strict=True):
            which = (np.arange(top.n_nodes)[:, None] * n_intervals + held).ravel()
            possible = np.bincount(which, weights=self.levels.possible, minlength=top.n_nodes * n_intervals) > 0
            above = (np.arange(top.n_nodes)[:, None] * n_above + parent).ravel()
            found.append(Layer(above, np.repeat(top.path, n_intervals, axis=0), possible))
            n_above = n_intervals
        return [*found, self.cells.layer] if self.has_cells else found

    def place(self, layer: int, table: Table) -> IntArray:
        """Return the node of a layer below layer 0 that each record is in."""
        codes = np.column_stack([table.codes[name] for name in self.domain.names])
        node, level = top_node(self.domain, codes), codes[:, self.column]
        if layer <= len(self.counts):
            return node * self.counts[layer - 1] + self.intervals[layer - 1][level]
        return self.cells.find(node * self.counts[-1] + level, codes)

    def measure(self, curator: Curator, rng: np.random.Generator) -> NoisyTree:
        """Count every layer with noise."""
        layers = self.layers()
        counts = [top_counts(layers[0], self.domain, curator)]
        for number, (layer, step) in enumerate(zip(layers[1:], self.steps, strict=True), start=1):
            counts.append(layer_counts(layer, step, partial(self.place, number), curator))
        observed, variances = ([each[part] for each in counts] for part in (0, 1))
        return NoisyTree(self.domain, layers, [], observed, variances, cells=self.cells)

    def statistics(self, measured: NoisyTree, prefix: str) -> dict[str, pd.DataFrame]:
        """Return the noisy counts as tables: public levels, first and last level of the interval, and the count."""
        domain, found = self.domain, {}
        public, name = [domain.names[column] for column in domain.public], domain.names[self.column]
        for number, held in enumerate(self.intervals[: len(self.steps) - 1], start=1):
            layer, n_top = measured.layers[number], measured.layers[0].n_nodes
            first = np.flatnonzero(np.diff(held, prepend=-1))
            last = np.append(first[1:], len(held)) - 1
            frame = pd.DataFrame(layer.path[:, domain.public], columns=public)
            found[f"{prefix}layer {number}"] = frame.assign(
                **{f"first {name}": np.tile(first, n_top), f"last {name}": np.tile(last, n_top)},
                noisy_count=measured.observed[number],
            )
        found[f"{prefix}cells"] = pd.DataFrame({"noisy_count": measured.observed[-1]})
        return found

    def margin(self, columns: Sequence[int], *, n_public: bool) -> NoiseSum:
        """Return the error of a cell of a margin: of the least exact cell, if it has the ordered column."""
        domain, n_levels, public = self.domain, self.counts[-1], self.domain.public.tolist()
        below = [j for j in range(len(domain.names)) if j != self.column and j not in public]
        n_below, n_held = domain.size_of(below), domain.size_of(j for j in columns if j in below)
        parents = interval_parents(self.counts)
        copies = [np.ones(len(parent)) for parent in parents]
        if self.has_cells:
            parents.append(np.repeat(np.arange(n_levels), 2))
            copies.append(np.tile([n_below / n_held, n_below - n_below / n_held], n_levels))
        n_top = domain.size_of(public) // domain.size_of(j for j in columns if j in public)
        tree = CountTree(parents, copies, n_public, n_top)
        held = np.ones(n_levels)
        if self.column in columns:
            variance, *spreads = tree.spreads([np.ones(1)] * len(parents))
            for parent, s in zip(parents[: len(self.counts)], spreads, strict=False):
                share = s / np.bincount(parent, weights=s)[parent]
                variance = s * (1 - share) + share**2 * variance[parent]
            held = (np.arange(n_levels) == np.argmax(variance)).astype(float)
        leaves = np.column_stack([held, np.zeros(n_levels)]).ravel() if self.has_cells else held
        return tree.noise([self.steps[0].scale] * len(parents), leaves)
