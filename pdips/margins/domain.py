"""What is counted, from public facts: columns, layers, nodes and cells of a tree;
margins that hold every pair.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate, combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.privacy.curator import noisy_counts
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import LARGEST_SCALE, RandomBits, discrete_laplace_variance
from pdips.privacy.plan import Step

# Larger cross-tabulations don't fit in memory: about 60 bytes a cell
MOST_CELLS = 100_000_000
# More synthetic records more or less, by noise, make no table that anybody could use
MOST_STRAY_RECORDS = 10_000_000
# Of the largest layer above the cells, by which the depth is chosen unless the user
# does
MOST_NODES = 1_000_000

Columns = tuple[int, ...]

# The budget is divided among views in multiples of one part in about this many
SHARE_STEPS = 100
# Cells of a view: covering designs are compared for up to 16, 32, 64, ...
SMALLEST_CAP = 16
LARGEST_CAP = 16_384
# For noise so small that its reciprocal would overflow; only its ratio to others
# matters
SMALLEST_VARIANCE = 1e-30
STOP = -1  # In place of a column: a node that is cut no further
MOST_BITS = 62  # Columns of a pattern that fits into an integer of 64 bits


@dataclass(frozen=True)
class Domain:
    """The columns of a cross-tabulation and their public numbers of levels."""

    names: tuple[str, ...]
    sizes: IntArray
    public: IntArray  # Positions of the columns that are public
    # Structural zeros, by rule: which levels of which column
    impossible: tuple[dict[int, BoolArray], ...]
    # Levels of each column in order, without missing: those of numbers, and of two any
    ordered: tuple[int, ...]

    @property
    def n_cells(self) -> int:
        """Number of cells, structural zeros included."""
        return self.size_of(range(len(self.sizes)))

    def size_of(self, columns: Iterable[int]) -> int:
        """Return the number of cells in the cross-tabulation of some columns."""
        return math.prod(int(self.sizes[column]) for column in columns)

    def level(self, cell: IntArray, column: int, order: Sequence[int]) -> IntArray:
        """Return the level of a column in cells that are numbered with the columns in
        this order.
        """
        n_after = self.size_of(order[order.index(column) + 1 :])
        return np.asarray(cell // n_after % self.sizes[column])

    def possible(self, level_of: Callable[[int], Any]) -> BoolArray | bool:
        """Return which cells no structural zero rules out, True for all.

        ``level_of`` gives the levels of a column: -1 where it isn't known, None if it
        isn't known at all.
        """
        is_possible: BoolArray | bool = True
        for rule in self.impossible:
            ruled_out: Any = True
            for column, named in rule.items():
                level = level_of(column)
                if level is None:
                    ruled_out = False
                else:
                    ruled_out = ruled_out & ((level >= 0) & named[level])
            is_possible = is_possible & np.logical_not(ruled_out)
        return is_possible

    def possible_cells(self, columns: Sequence[int]) -> BoolArray:
        """Return which cells of a cross-tabulation of columns no structural zero rules
        out, one axis a column.
        """
        sizes = self.sizes[list(columns)]
        axes = np.ix_(*(np.arange(size) for size in sizes))
        levels = dict(zip(columns, axes, strict=True))
        return np.ones(sizes, dtype=bool) & self.possible(levels.get)


def domain_of(schema: Schema) -> Domain:
    """Return the cross-tabulation of all columns of a schema; refused if it has more
    cells than memory holds.
    """
    domain = columns_of(schema)
    if domain.n_cells > MOST_CELLS:
        raise InputError(
            f"the cross-tabulation of all columns has {domain.n_cells:,} cells, more "
            f"than {MOST_CELLS:,}: "
            "take mechanism 'margins', which lays out none, or give fewer columns, "
            "levels or bins"
        )
    return domain


def columns_of(schema: Schema, cut: Mapping[str, int] | None = None) -> Domain:
    """Return the columns of a schema for mechanisms that never lay out all cells.

    Numeric columns without bins have as many intervals as ``cut`` says; those that it
    doesn't name are refused.
    """
    cut = cut or {}
    for name, column in schema.columns.items():
        if not column.is_categorical and not column.is_binned and name not in cut:
            raise InputError(
                f"column {name!r} needs bins or bin_edges in the schema (bins = 20); "
                f"mechanism 'margins' needs none"
            )
    sizes = dict[str, int]()
    ordered = list[int]()
    for name, column in schema.columns.items():
        n_cut = cut.get(name)
        n_present = column.n_values if n_cut is None else n_cut
        sizes[name] = n_present + bool(column.missing)
        is_ordered = n_present == 2 or not column.is_categorical
        ordered.append(n_present if is_ordered else 0)
    names = tuple(sizes)
    rules = list[dict[int, BoolArray]]()
    for rule in schema.zeros():
        named = {}
        for name, codes in rule.items():
            named[names.index(name)] = np.isin(np.arange(sizes[name]), codes)
        rules.append(named)
    is_public = [column.public for column in schema.columns.values()]
    return Domain(
        names=names,
        sizes=np.array(list(sizes.values()), dtype=np.int64),
        public=np.flatnonzero(is_public),
        impossible=tuple(rules),
        ordered=tuple(ordered),
    )


@dataclass(frozen=True)
class Layer:
    """One layer of a tree: nodes in order, the children of a node next to each
    other.
    """

    parent: IntArray  # Index in the layer above, not decreasing
    # Level of each column split on the way, -1 for the others; empty for the layer of
    # cells
    path: NDArray[np.int32]
    possible: BoolArray  # False where a structural zero rules the node out
    # True where the branch ended further up: its parent again, not counted twice
    stopped: BoolArray | None = None

    @property
    def n_nodes(self) -> int:
        return len(self.parent)

    def patterns(self) -> NDArray[Any]:
        """Return a label for each node, the same for nodes that have been split by the
        same columns.
        """
        n_columns = self.path.shape[1]
        bits = np.zeros(self.n_nodes, np.int64 if n_columns <= MOST_BITS else object)
        for column in range(n_columns):
            is_open = self.path[:, column] < 0
            bits |= is_open.astype(bits.dtype) << column
        return bits

    @property
    def counted(self) -> BoolArray:
        """Which nodes have noisy counts of their own."""
        return self.possible if self.stopped is None else self.possible & ~self.stopped


def root(domain: Domain) -> Layer:
    """Return the layer above all others: one node."""
    path = np.full((1, len(domain.names)), -1, np.int32)
    return Layer(np.zeros(1, np.int64), path, np.ones(1, dtype=bool))


def split_by(domain: Domain, above: Layer, chosen: IntArray) -> Layer:
    """Return the layer in which each node is cut by its chosen column, unless that is
    ``STOP``, into all levels.
    """
    fan_out = _fan_out(domain, chosen)
    parent = np.repeat(np.arange(above.n_nodes), fan_out)
    first_child = np.cumsum(fan_out) - fan_out
    level = np.arange(len(parent)) - first_child[parent]
    column = chosen[parent]
    path = above.path[parent]
    cut = np.flatnonzero(column != STOP)
    path[cut, column[cut]] = level[cut]
    stopped = None if len(cut) == len(parent) else column == STOP
    possible = above.possible[parent] & domain.possible(lambda column: path[:, column])
    return Layer(parent, path, possible, stopped)


def _fan_out(domain: Domain, chosen: IntArray) -> IntArray:
    return np.where(chosen == STOP, 1, domain.sizes[chosen])


def descend(
    node: IntArray, codes: NDArray[Any], domain: Domain, chosen: IntArray
) -> IntArray:
    """Return the child that each record falls into, by its node, its levels, and the
    column that cuts each node.
    """
    fan_out = _fan_out(domain, chosen)
    first_child: IntArray = np.cumsum(fan_out) - fan_out
    column = chosen[node]
    level = np.take_along_axis(codes, np.maximum(column, 0)[:, None], axis=1)[:, 0]
    return first_child[node] + np.where(column == STOP, 0, level)


@dataclass(frozen=True)
class Cells:
    """The full cross-tabulation below each node of the last layer but one, as numbers
    that decode to levels.
    """

    domain: Domain
    above: Layer
    # Which columns each node above has split already, as one of the patterns that occur
    pattern: IntArray
    # By pattern, the step of each column in the number of a cell; 0 for those already
    # split
    stride: IntArray
    first: IntArray  # Number of the first cell of each node above
    parent: IntArray  # The node above each cell

    @cached_property
    def layer(self) -> Layer:
        every = np.arange(len(self.parent))
        allowed = self.domain.possible(lambda column: self.levels(every, column))
        path = np.empty((0, 0), np.int32)
        return Layer(self.parent, path, self.above.possible[self.parent] & allowed)

    def find(self, node: IntArray, codes: IntArray) -> IntArray:
        """Return the number of the cell that each record falls into."""
        inside = np.einsum("ij,ij->i", codes, self.stride[self.pattern[node]])
        return np.asarray(self.first[node] + inside)

    def levels(self, cell: IntArray, column: int) -> IntArray:
        """Return the level of a column in each cell."""
        node = self.parent[cell]
        step = self.stride[self.pattern[node], column]
        number = (cell - self.first[node]) // np.maximum(step, 1)
        inside = number % self.domain.sizes[column]
        split_above = self.above.path[node, column]
        return np.asarray(np.where(step > 0, inside, split_above))


def cells(domain: Domain, above: Layer) -> Cells:
    """Return the cross-tabulation of the columns that remain below each node of a
    layer.
    """
    _, example, pattern = np.unique(
        above.patterns(), return_index=True, return_inverse=True
    )
    remaining = above.path[example] < 0
    factor = np.where(remaining, domain.sizes, 1)
    after = np.cumprod(factor[:, ::-1], axis=1)[:, ::-1]
    stride = np.where(remaining, after // factor, 0)
    n_cells = after[pattern, 0]
    first = np.cumsum(n_cells) - n_cells
    parent = np.repeat(np.arange(above.n_nodes), n_cells)
    return Cells(domain, above, pattern, stride, first, parent)


def top_layer(domain: Domain) -> Layer:
    """Return layer 0: one node, or one a combination of the public columns."""
    layer = root(domain)
    for column in domain.public:
        layer = split_by(domain, layer, np.full(layer.n_nodes, column))
    return layer


def top_node(domain: Domain, codes: NDArray[Any]) -> IntArray:
    """Return the node of layer 0 that each record, given by its levels, falls into."""
    node = np.zeros(len(codes), dtype=np.int64)
    for column in domain.public:
        node = node * domain.sizes[column] + codes[:, column]
    return node


def splittable(schema: Schema) -> list[str]:
    """Return the columns that a tree can split by."""
    return [name for name in schema.columns if name not in schema.public_columns]


def deepest(schema: Schema) -> int:
    """Return how many layers any choice of columns keeps within ``MOST_NODES`` nodes;
    at least 1.
    """
    sizes = {name: column.n_levels for name, column in schema.columns.items()}
    free = sorted((sizes[name] for name in splittable(schema)), reverse=True)
    n_top = math.prod(sizes[name] for name in schema.public_columns)
    n_nodes: list[int] = list(accumulate([n_top, *free], operator.mul))
    # the root isn't among the layers that a choice of columns makes
    return max(sum(number <= MOST_NODES for number in n_nodes) - 1, 1)


def check_domain(schema: Schema, neighbours: Neighbours) -> None:
    """Check, before anything is spent, that a schema can be cross-tabulated for these
    neighbours.
    """
    domain = domain_of(schema)
    if not splittable(schema):
        raise InputError(
            "all columns of the schema are public: there is nothing to synthesize"
        )
    if len(domain.public) and neighbours == "add-remove":
        raise InputError(
            "public columns give away the number of records; they need "
            "neighbours = replace-one"
        )


def check_noise(
    schema: Schema, neighbours: Neighbours, scales: Sequence[Fraction]
) -> None:
    """Check, before anything is spent, that noise of these scales can be drawn and
    leaves a table of bearable size.
    """
    if max(scales) > LARGEST_SCALE:
        raise InputError(
            "epsilon is too small: noise of this scale is beyond what "
            "can be drawn exactly"
        )
    n_cells = domain_of(schema).n_cells
    spread = float(max(scales)) * math.sqrt(2 * n_cells)
    if neighbours == "add-remove" and spread > MOST_STRAY_RECORDS:
        raise InputError(
            "epsilon is too small: the number of synthetic records, which is noisy "
            "under add-remove, would stray by "
            f"about {spread:.0e} from the table's; the limit is {MOST_STRAY_RECORDS:,}"
        )


def count_variance(scale: Fraction | None) -> float:
    """Return the variance of a count with discrete Laplace noise of this scale;
    infinite without a count (None).
    """
    if scale is None:
        return math.inf
    return max(discrete_laplace_variance(scale), SMALLEST_VARIANCE)


@dataclass(frozen=True)
class View:
    """The cross-tabulation of a few columns, given by their positions, which a step
    counts with noise.
    """

    domain: Domain
    columns: Columns
    step: Step

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(self.domain.sizes[column]) for column in self.columns)

    @property
    def n_cells(self) -> int:
        """Number of cells, structural zeros included."""
        return math.prod(self.sizes)

    def n_summed(self, columns: Sequence[int]) -> int:
        """Return how many cells of the view add up to one of a margin of some of its
        columns.
        """
        return self.n_cells // self.domain.size_of(columns)

    def fresh_noise(self, rng: np.random.Generator) -> IntArray:
        """Return noise of the step's law on the cells that can be: on top of what was
        measured, never in its place.
        """
        none = np.zeros(self.n_cells, dtype=np.int64)
        (noise,) = noisy_counts(none, None, self.step, RandomBits(rng))
        return np.where(self.possible(), noise, 0)

    @property
    def variance(self) -> float:
        """The variance of the noise on a cell, in squared records."""
        if self.step.law == "gaussian":
            return self.step.standard_deviation**2
        return count_variance(self.step.scale)

    def margin_variance(self, columns: Sequence[int]) -> float:
        """Return the variance of the noise in a cell of a margin, in squared
        records.
        """
        return self.n_summed(columns) * self.variance

    def find(self, table: Table) -> IntArray:
        """Return the cell that each record of a table falls into."""
        names = [self.domain.names[column] for column in self.columns]
        own = tuple(table.codes[name] for name in names)
        return np.ravel_multi_index(own, self.sizes)

    def levels(self) -> dict[int, IntArray]:
        """Return the level of each column in each cell."""
        levels = np.indices(self.sizes).reshape(len(self.columns), -1)
        return dict(zip(self.columns, levels, strict=True))

    def possible(self) -> BoolArray:
        """Return which cells no structural zero rules out by itself."""
        return self.domain.possible_cells(self.columns).ravel()


def choose_views(
    domain: Domain, law: Literal["laplace", "gaussian"] = "laplace"
) -> dict[Columns, Fraction]:
    """Return views that together hold every pair of columns, and the share of the
    budget of each.

    Fewer, larger views leave more budget to each but spread a pair's count over more
    cells. Among covering designs with views of different size the one is taken for
    which the noise in all two-way margins, added up, is least; the budget is divided so
    that it is. All of it follows from the numbers of levels.

    Notes
    -----
    A pair's margin in a view of c cells has, in each of its k cells, noise of standard
    deviation proportional to sqrt(c / k) / share; over its cells that adds up to sqrt(c
    k) / share. With a_v the sum over the pairs that view v is the first to hold, sum_v
    a_v / share_v is least for shares proportional to sqrt(a_v), where it is (sum_v
    sqrt(a_v))^2. Gaussian noise falls with the square root of a share of rho: then
    shares are proportional to a_v^(2/3), and the sum is (sum_v a_v^(2/3))^(3/2). Views
    for pairs: Qardaji, Yang and Li (2014), PriView.
    """
    sizes = tuple(domain.sizes.tolist())
    public = frozenset(domain.public.tolist())
    power = 1 / 2 if law == "laplace" else 2 / 3
    return dict(_shares(sizes, public, (SMALLEST_CAP, LARGEST_CAP), power))


@lru_cache(maxsize=16)
def _shares(
    sizes: Columns, public: frozenset[int], caps: tuple[int, int], power: float
) -> dict[Columns, Fraction]:
    """Return what :func:`choose_views` does: numbers of levels, public columns, range
    of caps, power of a_v.
    """
    if len(sizes) == 1:
        return {(0,): Fraction(1)}
    smallest, largest = caps
    designs = list[dict[Columns, float]]()
    for bit in range(smallest.bit_length() - 1, largest.bit_length()):
        cover = _cover(sizes, public, 2**bit)
        designs.append({view: a**power for view, a in cover.items()})
    best = min(designs, key=lambda design: sum(design.values()))
    total = sum(best.values())
    weight = dict[Columns, int]()
    for view, part in best.items():
        weight[view] = max(round(SHARE_STEPS * part / total), 1)
    n_parts = sum(weight.values())
    return {view: Fraction(part, n_parts) for view, part in weight.items()}


def _cover(sizes: Columns, public: frozenset[int], cap: int) -> dict[Columns, float]:
    """Cover all pairs greedily by views of at most ``cap`` cells (more for a pair that
    has more), with their a_v.
    """
    pairs = combinations(range(len(sizes)), 2)
    open_: set[tuple[int, int]] = {pair for pair in pairs if not {*pair} <= public}
    views: dict[Columns, float] = {}
    while open_:
        _, widest = max((sizes[i] * sizes[j], (i, j)) for i, j in open_)
        view = list(widest)
        while (column := _best_addition(view, open_, sizes, cap)) is not None:
            view.append(column)
        columns = tuple(sorted(view))
        new = open_ & set(combinations(columns, 2))
        n_cells = math.prod(sizes[column] for column in columns)
        views[columns] = sum(math.sqrt(n_cells * sizes[i] * sizes[j]) for i, j in new)
        open_ -= new
    return views


def _best_addition(
    view: list[int], open_: set[tuple[int, int]], sizes: Columns, cap: int
) -> int | None:
    """Return the column that covers the most open pairs for the cells that it costs, if
    one fits.
    """
    n_cells = math.prod(sizes[column] for column in view)

    def gain(column: int) -> float:
        pairs = [(min(column, other), max(column, other)) for other in view]
        n_new = sum(pair in open_ for pair in pairs)
        return n_new / math.log(max(sizes[column], 2))

    fitting = [
        column
        for column in range(len(sizes))
        if column not in view and n_cells * sizes[column] <= cap
    ]
    best = max(fitting, key=gain, default=None)
    return best if best is not None and gain(best) else None


def one_way_margins(
    views: Sequence[View], counts: Sequence[FloatArray]
) -> tuple[list[FloatArray], float]:
    """Return the one-way margins of noisy views, averaged by inverse variance, and the
    total in the same way.
    """
    margins = list[FloatArray]()
    totals = list[float]()
    weights = list[float]()
    for column, size in enumerate(views[0].domain.sizes):
        estimate = np.zeros(int(size))
        precision = 0.0
        for view, count in zip(views, counts, strict=True):
            if column in view.columns:
                others = [axis for axis, j in enumerate(view.columns) if j != column]
                weight = 1 / view.margin_variance((column,))
                margin = count.reshape(view.sizes).sum(axis=tuple(others))
                estimate += weight * margin
                precision += weight
        if precision:
            margins.append(estimate / precision)
            totals.append(estimate.sum() / precision)
        else:
            margins.append(np.full(int(size), np.nan))
            totals.append(0.0)
        weights.append(precision)
    return margins, float(np.average(totals, weights=weights))
