"""The universal histogram: intervals of one column, or columns in random order (Hay et al. 2010; Bowen et al. 2021)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.margins.domain import (
    Cells,
    Domain,
    Layer,
    cells,
    check_domain,
    check_noise,
    deepest,
    domain_of,
    split_by,
    splittable,
    top_layer,
    top_node,
)
from pdips.margins.margin_error import CountTree
from pdips.margins.synthesis import CountedTree
from pdips.margins.tree import NoisyTree, Position, TreeDesign, cell_margin, layer_counts, top_counts
from pdips.mechanism import Split
from pdips.privacy.curator import Curator
from pdips.privacy.loss import check_whole
from pdips.privacy.noise_sum import NoiseSum
from pdips.privacy.plan import Plan, Step
from pdips.release.noisy_margins import MarginAxis, MeasuredMargin, axes_of

LARGEST_FAN_OUT = 1_000_000

LARGEST_USEFUL = 16  # Of fan-outs: Qardaji, Yang and Li (2013) find no use for more


@dataclass(frozen=True, kw_only=True)
class UniversalHistogram(CountedTree):
    """Noisy counts on a tree whose shape no record influences: intervals of one column, or columns in random order.

    ``epsilon``, ``n_sets`` and ``neighbours`` are those of :class:`pdips.Mechanism`.

    Parameters
    ----------
    attribute : str, optional
        The column whose levels, in the order of the schema, are cut into intervals; the others are fully
        cross-tabulated below. May be left out where only one column isn't public. Otherwise: columns in random order.
    fan_out : int, optional
        Most intervals that an interval is cut into. Left out: the one, from 2 to 16 or all levels at once, with least
        average variance of a range of levels, found from numbers of levels alone (Qardaji, Yang and Li 2013).
    layers : int, optional
        Number of layers that split by one column, drawn evenly, the same in every branch. Left out: as many as keep the
        layers above the cells within a million nodes. For columns in random order only.
    split : {"once", "per-set"}
        One noisy tree for all sets, or a tree of its own, at epsilon / n_sets, for each.

    Notes
    -----
    A record is in one node of each layer. Replacing it changes the counts of a layer by at most 2 in l1, adding or
    removing it by 1; each of the N noised layers has noise of scale 2 N / epsilon or N / epsilon, k times that for up
    to k records a person. The shape of the tree comes from public numbers of levels and from coins, and costs nothing.
    The root is exact under replace-one and not observed under add-remove. Counts are made consistent by generalised
    least squares, which for a complete tree is theorem 3 of Hay et al. Proof: ``docs/proofs/universal-histogram.md``.

    References
    ----------
    Hay, Rastogi, Miklau and Suciu (2010), "Boosting the accuracy of differentially private histograms through
    consistency". Bowen et al. (2021), sections 3.1 and 4.2 ("modified UH").

    Examples
    --------
    >>> import pandas as pd, pdips
    >>> schema = pdips.Schema.model_validate({"columns": {"age": {"lower": 0, "upper": 100, "bins": 20}}})
    >>> table = pdips.Table(pd.DataFrame({"age": [31, 64, 50]}), schema)
    >>> release, _ = UniversalHistogram(epsilon=1, attribute="age").release(table)
    >>> len(release.sets[0])
    3
    """

    name: ClassVar[str] = "universal-histogram"

    attribute: str | None = None
    fan_out: int | None = None
    layers: int | None = None
    split: Split = "once"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("fan_out", 2), ("layers", 1)):
            if getattr(self, name) is not None:
                check_whole(getattr(self, name), name, least, None)
        if self.fan_out is not None and self.fan_out > LARGEST_FAN_OUT:
            raise InputError(f"fan_out must be at most {LARGEST_FAN_OUT:,}, got {self.fan_out:,}")
        if self.layers is not None and self.attribute is not None:
            raise InputError(
                "layers goes with columns in random order; the tree of an attribute is as deep as fan_out makes it"
            )
        if self.layers is not None and self.fan_out is not None:
            raise InputError("layers goes with columns in random order, fan_out with the intervals of one: give one")

    def ordered(self, schema: Schema) -> str | None:
        """Return the column that is cut into intervals, None for a random order; checked against the schema."""
        free = splittable(schema)
        if self.attribute is not None and self.attribute not in free:
            raise InputError(
                f"attribute: {self.attribute!r} is no column of the schema that could be cut into intervals"
            )
        if self.attribute is not None or len(free) != 1:
            if self.attribute is None and self.fan_out is not None:
                raise InputError("fan_out goes with the intervals of one column: name it as attribute")
            return self.attribute
        if self.layers is not None and self.layers > 1:
            raise InputError(f"layers = {self.layers} is more than the 1 column that there is to split by")
        return None if self.layers else free[0]

    def interval_fan_out(self, schema: Schema) -> int:
        """Return the fan-out of the intervals, as given or the best one for this schema."""
        if self.fan_out is not None:
            return self.fan_out
        name = self.ordered(schema) or ""
        n_levels = schema.columns[name].n_levels
        n_below = math.prod(schema.columns[other].n_levels for other in splittable(schema) if other != name)
        return best_fan_out(n_levels, n_below, n_public=self.neighbours == "replace-one")

    def depth(self, schema: Schema) -> tuple[int, int]:
        """Return the number of noised layers, and the number L of those that split by the column, or by columns."""
        free = splittable(schema)
        attribute = self.ordered(schema)
        if attribute is not None:
            n_layers = len(interval_counts(schema.columns[attribute].n_levels, self.interval_fan_out(schema)))
            return n_layers + (len(free) > 1), n_layers
        n_layers = self.layers or deepest(schema)
        if n_layers > len(free):
            raise InputError(f"layers = {n_layers} is more than the {len(free)} columns that there are to split by")
        return min(n_layers, len(free) - 1) + 1, n_layers

    def paid(self, schema: Schema) -> int:
        """Return by how many noised layers the budget is divided."""
        return self.depth(schema)[0]

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: noisy counts of each layer, the last one that of all cells."""
        check_domain(schema, self.neighbours)
        domain, attribute, n_noised = domain_of(schema), self.ordered(schema), self.depth(schema)[0]
        what = "node" if attribute is None else f"interval of {attribute}"
        names = [(f"layer {number}", f"each {what} in layer {number}") for number in range(1, n_noised)]
        steps = tuple(
            Step(
                name=f"noisy counts of {name}",
                counts=counts,
                sensitivity=self.sensitivity(schema),
                price=self.per_round(self.rounds) / self.paid(schema),
            )
            for name, counts in [*names, ("all cells", "each cell")]
        )
        check_noise(schema, self.neighbours, [step.scale for step in steps])
        design: TreeDesign | IntervalTree = TreeDesign(domain=domain, layers=steps, splitter=ShuffledColumns())
        if attribute is not None:
            column, fan_out = domain.names.index(attribute), self.interval_fan_out(schema)
            design = IntervalTree(domain=domain, column=column, fan_out=fan_out, steps=steps)
        shape = "of columns in random order" if attribute is None else f"of intervals of {attribute}"
        law = (
            f"Counts on a tree {shape}, whose shape depends on the schema and on coins only: every count of every "
            "layer that is not public has exact discrete Laplace noise added, each layer paid for; the counts were "
            "then made consistent, which costs nothing."
        )
        return self.planned(schema, steps, law, repeats=self.rounds, design=design)


@dataclass(frozen=True)
class ShuffledColumns:
    """One column for all nodes of a layer, drawn evenly from those that no layer above has split. Reads no record."""

    def columns(
        self, number: int, layer: Layer, position: Position, curator: Curator, rng: np.random.Generator
    ) -> IntArray:
        """Return the drawn column for every node."""
        return np.full(layer.n_nodes, rng.choice(np.flatnonzero(layer.path[0] < 0)), dtype=np.int64)


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
    return [np.arange(n) * up // n for up, n in zip((1, *counts[:-1]), counts, strict=True)]


@lru_cache(maxsize=64)
def best_fan_out(n_levels: int, n_below: int = 1, *, n_public: bool = True) -> int:
    """Return the fan-out, from 2 to 16 or all levels at once, with the least average variance of a range of levels.

    The criterion of Qardaji, Yang and Li (2013), "Understanding hierarchical methods for differentially private
    histograms", computed exactly for the tree that is built, ``n_below`` cells below each level. Up to 110 levels under
    replace-one and 42 under add-remove, without cells below, no tree of intervals beats the flat one.
    """
    tried: list[int] = sorted({*range(2, min(LARGEST_USEFUL, n_levels) + 1), max(n_levels, 2)})
    found = [average_range_variance(n_levels, fan_out, n_below, n_public=n_public) for fan_out in tried]
    return tried[int(np.argmin(found))]


def average_range_variance(n_levels: int, fan_out: int, n_below: int = 1, *, n_public: bool = True) -> float:
    """Return the variance of the count of a range of levels, averaged over all ranges, after least squares.

    In units of the variance of the noise that a single layer with the whole budget would have; with N layers it is N^2.
    That of a sum with weights w over the levels is V_root m_root^2 + sum over nodes (sum_c s_c m_c^2 - S m^2), m the
    weighted mean of w below a node (``docs/planning.md``). For a random range the mean of m_c m_d of two siblings is a
    product of their mean distances from the two ends, so one pass over the tree gives all expectations.
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
    column: int  # Position of the ordered column
    fan_out: int  # Most intervals that an interval is cut into
    steps: tuple[Step, ...]  # The step that counts each layer below layer 0; the last one is that of the cells

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
        layers = self.layers()
        counts = [top_counts(layers[0], self.domain, curator)]
        for number, (layer, step) in enumerate(zip(layers[1:], self.steps, strict=True), start=1):
            counts.append(layer_counts(layer, step, partial(self.place, number), curator))
        observed, variances = [observed for observed, _ in counts], [variances for _, variances in counts]
        return NoisyTree(self.domain, layers, [], observed, variances, cells=self.cells)

    def noisy_statistics(self, measured: NoisyTree, prefix: str) -> dict[str, pd.DataFrame]:
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

    def measured_margins(self, measured: NoisyTree) -> Iterator[MeasuredMargin]:
        """Yield the noisy counts of each layer as margins, of intervals and then of all cells."""
        public, name = self.domain.public, self.domain.names[self.column]
        for number, (held, step) in enumerate(zip(self.intervals, self.steps[:-1], strict=False), start=1):
            axes = axes_of([self.domain.names[column] for column in public], self.domain.sizes[public])
            first = np.flatnonzero(np.diff(held, prepend=-1))
            axis = MarginAxis(columns=(name,), size=len(first), first=tuple(first.tolist()))
            yield MeasuredMargin.of(step, [*axes, axis], measured.observed[number])
        yield cell_margin(self.domain, measured, self.steps[-1])

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
