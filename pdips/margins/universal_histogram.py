"""The universal histogram: intervals of one column, or columns in random order (Hay et
al. 2010; Bowen et al. 2021).
"""

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
from pdips.errors import InputError, hint
from pdips.margins.domain import (
    Cells,
    Domain,
    Layer,
    View,
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
from pdips.margins.forecast import Forecast, MarginForm
from pdips.margins.margin_error import CountTree
from pdips.margins.synthesis import CountedTree
from pdips.margins.tree import (
    NoisyTree,
    Position,
    TreeDesign,
    cell_margin,
    layer_counts,
    top_counts,
)
from pdips.mechanism import Split
from pdips.privacy.curator import Curator
from pdips.privacy.loss import check_whole
from pdips.privacy.noise_sum import NoiseSum
from pdips.privacy.plan import Plan, Step
from pdips.release.noisy_margins import MarginAxis, MarginError, MeasuredMargin, axes_of
from pdips.release.offers import Offers

LARGEST_FAN_OUT = 1_000_000

LARGEST_USEFUL = 16  # Of fan-outs: Qardaji, Yang and Li (2013) find no use for more


@dataclass(frozen=True, kw_only=True)
class UniversalHistogram(CountedTree):
    """Noisy counts on a tree whose shape no record influences: intervals of one column,
    or columns in random order.

    ``epsilon``, ``n_sets`` and ``neighbours`` are those of :class:`pdips.Mechanism`.

    Parameters
    ----------
    attribute : str, optional
        The column whose levels, in the order of the schema, are cut into intervals; the
        others are fully cross-tabulated below. May be left out where only one column
        isn't public. Otherwise: columns in random order.
    fan_out : int, optional
        Most intervals that an interval is cut into. Left out: the one, from 2 to 16 or
        all levels at once, with least average variance of a range of levels, found from
        numbers of levels alone (Qardaji, Yang and Li 2013).
    layers : int, optional
        Number of layers that split by one column, drawn evenly, the same in every
        branch. Left out: as many as keep the layers above the cells within a million
        nodes. For columns in random order only.
    split : {"once", "per-set"}
        One noisy tree for all sets, or a tree of its own, at epsilon / n_sets, for
        each.

    Notes
    -----
    A record is in one node of each layer. Replacing it changes the counts of a layer by
    at most 2 in l1, adding or removing it by 1; each of the N noised layers has noise
    of scale 2 N / epsilon or N / epsilon, k times that for up to k records a person.
    The shape of the tree comes from public numbers of levels and from coins, and costs
    nothing. The root is exact under replace-one and not observed under add-remove.
    Counts are made consistent by generalised least squares, which for a complete tree
    is theorem 3 of Hay et al. Proof: ``docs/proofs/universal-histogram.md``.

    References
    ----------
    Hay, Rastogi, Miklau and Suciu (2010), "Boosting the accuracy of differentially
    private histograms through consistency". Bowen et al. (2021), sections 3.1 and 4.2
    ("modified UH").

    Examples
    --------
    >>> import pandas as pd, pdips
    >>> schema = pdips.Schema.model_validate(
    ...     {"columns": {"age": {"lower": 0, "upper": 100, "bins": 20}}}
    ... )
    >>> table = pdips.Table(pd.DataFrame({"age": [31, 64, 50]}), schema)
    >>> release, _ = UniversalHistogram(epsilon=1, attribute="age").release(table)
    >>> len(release.sets[0])
    3
    """

    name: ClassVar[str] = "universal-histogram"
    offers: ClassVar[Offers] = Offers(
        zeros=True,
        rules=True,
        public_columns=True,
        relations=("replace-one", "add-remove"),
        even_in_cells=True,
        planned_scales=True,
    )

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
            raise InputError(
                f"fan_out must be at most {LARGEST_FAN_OUT:,}, got {self.fan_out:,}"
            )
        if self.layers is not None and self.attribute is not None:
            raise InputError(
                "layers goes with columns in random order; the tree of an attribute "
                "is as deep as fan_out makes it"
            )
        if self.layers is not None and self.fan_out is not None:
            raise InputError(
                "layers goes with columns in random order, fan_out with "
                "the intervals of one: give one"
            )

    def ordered(self, schema: Schema) -> str | None:
        """Return the column that is cut into intervals, None for a random order;
        checked against the schema.
        """
        free = splittable(schema)
        if self.attribute is not None and self.attribute not in free:
            raise InputError(
                f"attribute: {self.attribute!r} is no column of the schema that "
                f"could be cut into intervals{hint(self.attribute, free)}"
            )
        if self.attribute is not None or len(free) != 1:
            if self.attribute is None and self.fan_out is not None:
                raise InputError(
                    "fan_out goes with the intervals of one column: "
                    "name it as attribute"
                )
            return self.attribute
        if self.layers is not None and self.layers > 1:
            raise InputError(
                f"layers = {self.layers} is more than the 1 column that "
                f"there is to split by"
            )
        return None if self.layers else free[0]

    def interval_fan_out(self, schema: Schema) -> int:
        """Return the fan-out of the intervals, as given or the best one for this
        schema.
        """
        if self.fan_out is not None:
            return self.fan_out
        name = self.ordered(schema) or ""
        sizes = {own: schema.columns[own].n_levels for own in splittable(schema)}
        n_levels = sizes.pop(name)
        is_public = self.neighbours == "replace-one"
        return best_fan_out(n_levels, math.prod(sizes.values()), n_public=is_public)

    def depth(self, schema: Schema) -> tuple[int, int]:
        """Return the number of noised layers, and the number L of those that split by
        the column, or by columns.
        """
        free = splittable(schema)
        attribute = self.ordered(schema)
        if attribute is not None:
            n_levels = schema.columns[attribute].n_levels
            n_layers = len(interval_counts(n_levels, self.interval_fan_out(schema)))
            return n_layers + (len(free) > 1), n_layers
        n_layers = self.layers or deepest(schema)
        if n_layers > len(free):
            raise InputError(
                f"layers = {n_layers} is more than the {len(free)} "
                f"columns that there are to split by"
            )
        return min(n_layers, len(free) - 1) + 1, n_layers

    def paid(self, schema: Schema) -> int:
        """Return by how many noised layers the budget is divided."""
        return self.depth(schema)[0]

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: noisy counts of each layer, the last one that of all
        cells.
        """
        check_domain(schema, self.neighbours)
        domain = domain_of(schema)
        attribute = self.ordered(schema)
        n_noised = self.depth(schema)[0]
        what = "node" if attribute is None else f"interval of {attribute}"
        counts = {
            f"layer {number}": f"each {what} in layer {number}"
            for number in range(1, n_noised)
        }
        counts["all cells"] = "each cell"
        steps = [
            self._step(schema, name, each_count) for name, each_count in counts.items()
        ]
        check_noise(schema, self.neighbours, [step.scale for step in steps])
        design: TreeDesign | IntervalTree
        if attribute is None:
            shape = "of columns in random order"
            splitter = ShuffledColumns()
            design = TreeDesign(domain=domain, layers=tuple(steps), splitter=splitter)
        else:
            shape = f"of intervals of {attribute}"
            design = IntervalTree(
                domain=domain,
                column=domain.names.index(attribute),
                fan_out=self.interval_fan_out(schema),
                steps=tuple(steps),
            )
        law = (
            f"Counts on a tree {shape}, whose shape depends on the schema and on "
            f"coins only: every count of every "
            "layer that is not public has exact discrete Laplace noise added, each "
            "layer paid for; the counts were "
            "then made consistent, which costs nothing."
        )
        return self.planned(schema, steps, law, repeats=self.rounds, design=design)

    def _step(self, schema: Schema, name: str, counts: str) -> Step:
        return Step(
            name=f"noisy counts of {name}",
            counts=counts,
            sensitivity=self.sensitivity(schema),
            price=self.per_round(self.rounds) / self.paid(schema),
        )


@dataclass(frozen=True)
class ShuffledColumns:
    """One column for all nodes of a layer, drawn evenly from those that no layer above
    has split. Reads no record.
    """

    @property
    def given(self) -> None:
        """None: draws say which columns split."""
        return None

    def columns(
        self,
        number: int,
        layer: Layer,
        position: Position,
        curator: Curator,
    ) -> IntArray:
        """Return the drawn column for every node."""
        left = np.flatnonzero(layer.path[0] < 0)
        drawn = curator.keep(lambda: int(curator.generator.choice(left)))
        return np.full(layer.n_nodes, drawn, dtype=np.int64)


def interval_counts(n_levels: int, fan_out: int) -> tuple[int, ...]:
    """Return how many intervals each layer has, from the top, the root left out; the
    last layer has the levels.

    Every layer has as few intervals as hold ``fan_out`` of the next layer's each: a
    complete tree where the number of levels is a power of ``fan_out``.
    """
    counts = [n_levels]
    while counts[0] > fan_out:
        counts.insert(0, -(-counts[0] // fan_out))
    return tuple(counts)


def interval_parents(counts: tuple[int, ...]) -> list[IntArray]:
    """Return the interval above each interval, for every layer of
    :func:`interval_counts`; groups of even size.
    """
    above = (1, *counts[:-1])
    return [np.arange(n) * up // n for up, n in zip(above, counts, strict=True)]


@lru_cache(maxsize=64)
def best_fan_out(n_levels: int, n_below: int = 1, *, n_public: bool = True) -> int:
    """Return the fan-out, from 2 to 16 or all levels at once, with the least average
    variance of a range of levels.

    The criterion of Qardaji, Yang and Li (2013), "Understanding hierarchical methods
    for differentially private histograms", computed exactly for the tree that is built,
    ``n_below`` cells below each level. Up to 110 levels under replace-one and 42 under
    add-remove, without cells below, no tree of intervals beats the flat one.
    """
    small = range(2, min(LARGEST_USEFUL, n_levels) + 1)
    candidates: list[int] = sorted({*small, max(n_levels, 2)})

    def variance(fan_out: int) -> float:
        return average_range_variance(n_levels, fan_out, n_below, n_public=n_public)

    return min(candidates, key=variance)


def average_range_variance(
    n_levels: int, fan_out: int, n_below: int = 1, *, n_public: bool = True
) -> float:
    """Return the variance of the count of a range of levels, averaged over all ranges,
    after least squares.

    In units of the variance of the noise that a single layer with the whole budget
    would have; with N layers it is N^2. That of a sum with weights w over the levels is
    V_root m_root^2 + sum over nodes (sum_c s_c m_c^2 - S m^2), m the weighted mean of w
    below a node (``docs/planning.md``). For a random range the mean of m_c m_d of two
    siblings is a product of their mean distances from the two ends, so one pass over
    the tree gives all expectations.
    """
    counts = interval_counts(n_levels, fan_out)
    noise = float(len(counts) + (n_below > 1)) ** 2
    pairs = 2.0 / (n_levels * (n_levels + 1.0))
    start = np.arange(1.0, n_levels + 1)
    square = pairs * start * (n_levels + 1 - start)
    of_level = noise * n_below / (n_below + 1) if n_below > 1 else noise
    spread = np.full(n_levels, of_level)
    total = 0.0
    for number, parent in reversed(list(enumerate(interval_parents(counts)))):
        below = np.bincount(parent, weights=spread)
        weight = spread / below[parent]
        total += float(spread @ square)
        moved = weight * start
        before = np.cumsum(moved) - moved
        first_child = np.flatnonzero(np.diff(parent, prepend=-1))
        before -= before[first_child][parent]
        crossed = 2 * pairs * before * weight * (n_levels + 1 - start)
        square = np.bincount(parent, weights=weight**2 * square + crossed)
        start = np.bincount(parent, weights=moved)
        total -= float(below @ square)
        spread = noise * below / (noise + below) if number else below
    return total if n_public else total + float(spread[0] * square[0])


@dataclass(frozen=True, kw_only=True)
class IntervalTree(Forecast):
    """What a universal histogram of one ordered column counts of tables of one
    schema.
    """

    domain: Domain
    column: int  # Position of the ordered column
    fan_out: int  # Most intervals that an interval is cut into
    # The step that counts each layer below layer 0; the last one is that of the cells
    steps: tuple[Step, ...]

    views: ClassVar[tuple[View, ...]] = ()
    redraws: ClassVar[bool] = False

    def margin_form(self, plan: Plan) -> MarginForm:
        """Return the error of the least exact cell of a margin."""
        return partial(self.margin, n_public=plan.n_public)

    def margin_errors(
        self, measured: NoisyTree, *, n_public: bool
    ) -> tuple[MarginError, ...]:
        """Return no errors: cells of a margin differ in them."""
        return ()

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How many intervals each layer has."""
        return interval_counts(int(self.domain.sizes[self.column]), self.fan_out)

    @cached_property
    def intervals(self) -> list[IntArray]:
        """The interval of each level, in every layer of intervals."""
        intervals = [np.arange(self.counts[-1])]
        for parent in reversed(interval_parents(self.counts)[1:]):
            intervals.insert(0, parent[intervals[0]])
        return intervals

    @cached_property
    def top(self) -> Layer:
        """Layer 0: one node, or one a combination of the public columns."""
        return top_layer(self.domain)

    @cached_property
    def levels(self) -> Layer:
        columns = np.full(self.top.n_nodes, self.column)
        return split_by(self.domain, self.top, columns)

    @cached_property
    def cells(self) -> Cells:
        """The cells: below the levels, or, without other columns, the levels
        themselves.
        """
        return cells(self.domain, self.levels if self.has_cells else self.top)

    @property
    def has_cells(self) -> bool:
        """Whether columns are left to be cross-tabulated below the levels."""
        return len(self.domain.public) + 1 < len(self.domain.names)

    def layers(self) -> list[Layer]:
        """Return all layers from the top."""
        top = self.top
        layers = [self.top]
        n_above = 1
        number = np.arange(top.n_nodes)[:, None]
        levels = zip(
            self.counts, interval_parents(self.counts), self.intervals, strict=True
        )
        for n_intervals, parent, held in levels:
            interval = (number * n_intervals + held).ravel()
            n_possible = np.bincount(
                interval,
                weights=self.levels.possible,
                minlength=top.n_nodes * n_intervals,
            )
            above = (number * n_above + parent).ravel()
            path = np.repeat(top.path, n_intervals, axis=0)
            layers.append(Layer(above, path, n_possible > 0))
            n_above = n_intervals
        return [*layers, self.cells.layer] if self.has_cells else layers

    def place(self, layer: int, table: Table) -> IntArray:
        """Return the node of a layer below layer 0 that each record is in."""
        codes = np.column_stack([table.codes[name] for name in self.domain.names])
        node = top_node(self.domain, codes)
        level = codes[:, self.column]
        if layer <= len(self.counts):
            return node * self.counts[layer - 1] + self.intervals[layer - 1][level]
        return self.cells.find(node * self.counts[-1] + level, codes)

    def measure(self, curator: Curator) -> NoisyTree:
        layers = self.layers()
        counts = [top_counts(layers[0], self.domain, curator)]
        for number, step in enumerate(self.steps, start=1):
            place = partial(self.place, number)
            counts.append(layer_counts(layers[number], step, place, curator))
        observed = [observed for observed, _ in counts]
        variances = [variances for _, variances in counts]
        return NoisyTree(self.domain, layers, [], observed, variances, cells=self.cells)

    def noisy_statistics(
        self, measured: NoisyTree, prefix: str
    ) -> dict[str, pd.DataFrame]:
        """Return the noisy counts as tables: public levels, first and last level of the
        interval, and the count.
        """
        domain = self.domain
        tables = dict[str, pd.DataFrame]()
        public = [domain.names[column] for column in domain.public]
        name = domain.names[self.column]
        n_top = measured.layers[0].n_nodes
        for number, held in enumerate(self.intervals[: len(self.steps) - 1], start=1):
            layer = measured.layers[number]
            first = np.flatnonzero(np.diff(held, prepend=-1))
            last = np.append(first[1:], len(held)) - 1
            frame = pd.DataFrame(layer.path[:, domain.public], columns=public)
            frame[f"first {name}"] = np.tile(first, n_top)
            frame[f"last {name}"] = np.tile(last, n_top)
            frame["noisy_count"] = measured.observed[number]
            tables[f"{prefix}layer {number}"] = frame
        tables[f"{prefix}cells"] = pd.DataFrame({"noisy_count": measured.observed[-1]})
        return tables

    def measured_margins(self, measured: NoisyTree) -> Iterator[MeasuredMargin]:
        """Yield the noisy counts of each layer as margins, of intervals and then of all
        cells.
        """
        public = self.domain.public
        names = [self.domain.names[column] for column in public]
        axes = axes_of(names, self.domain.sizes[public])
        name = self.domain.names[self.column]
        layers = zip(
            self.intervals, self.steps[:-1], measured.observed[1:], strict=False
        )
        for held, step, counts in layers:
            first = np.flatnonzero(np.diff(held, prepend=-1)).tolist()
            axis = MarginAxis(columns=(name,), size=len(first), first=tuple(first))
            yield MeasuredMargin.of(step, [*axes, axis], counts)
        yield cell_margin(self.domain, measured, self.steps[-1])

    def margin(self, columns: Sequence[int], *, n_public: bool) -> NoiseSum:
        """Return the error of a cell of a margin: of the least exact cell, if it has
        the ordered column.
        """
        size_of = self.domain.size_of
        n_levels = self.counts[-1]
        public = self.domain.public.tolist()
        columns_below = set(range(len(self.domain.names))) - {self.column, *public}
        n_below = size_of(columns_below)
        n_held = size_of(columns_below & set(columns))
        parents = interval_parents(self.counts)
        copies = [np.ones(len(parent)) for parent in parents]
        if self.has_cells:
            n_alike = n_below / n_held
            parents.append(np.repeat(np.arange(n_levels), 2))
            copies.append(np.tile([n_alike, n_below - n_alike], n_levels))
        n_top = size_of(public) // size_of(j for j in columns if j in public)
        tree = CountTree(parents, copies, n_public, n_top)
        held = np.ones(n_levels)
        if self.column in columns:
            variance, *spreads = tree.spreads([np.ones(1)] * len(parents))
            for parent, s in zip(parents[: len(self.counts)], spreads, strict=False):
                share = s / np.bincount(parent, weights=s)[parent]
                variance = s * (1 - share) + share**2 * variance[parent]
            held = (np.arange(n_levels) == np.argmax(variance)).astype(float)
        leaves = held
        if self.has_cells:
            leaves = np.column_stack([held, np.zeros(n_levels)]).ravel()
        return tree.noise([self.steps[0].scale] * len(parents), leaves)
