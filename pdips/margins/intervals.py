"""Trees of intervals over one ordered column, counted with noise: the universal histogram of Hay et al. (2010).

Every layer cuts the levels, in the order of the schema, into intervals. The last of these layers has one level each,
and the cross-tabulation of the other columns hangs below. All shapes follow from public numbers of levels.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.margins import counts as hierarchy
from pdips.margins import synthesis
from pdips.margins.counts import Measured
from pdips.margins.domain import Cells, Domain, Layer, cells, domain_of, split_by, top_layer
from pdips.mechanism import Drawn, Mechanism
from pdips.privacy.curator import Clock
from pdips.privacy.noise import RandomBits
from pdips.privacy.plan import Noise
from pdips.privacy.replay import ExactLaw as Law
from pdips.privacy.replay import Outcome
from pdips.release.large_set import LargeSet

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

    Parameters
    ----------
    n_levels : int
        Number of levels of the ordered column.
    n_below : int
        Number of cells below each level; 1 where there is no other column.
    n_public : bool
        Whether the root is exact.

    Notes
    -----
    The criterion of Qardaji, Yang and Li (2013), "Understanding hierarchical methods for differentially private
    histograms", computed exactly for the tree that is built instead of by their formula for complete trees. Up to
    110 levels under replace-one and 42 under add-remove, without cells below, no tree of intervals beats the flat one.
    """
    tried: list[int] = sorted({*range(2, min(LARGEST_FAN_OUT, n_levels) + 1), max(n_levels, 2)})
    found = [average_range_variance(n_levels, fan_out, n_below, n_public=n_public) for fan_out in tried]
    return tried[int(np.argmin(found))]


def average_range_variance(n_levels: int, fan_out: int, n_below: int = 1, *, n_public: bool = True) -> float:
    """Return the variance of the count of a range of levels, averaged over all ranges, after least squares.

    In units of the variance of the noise that a single layer with the whole budget would have; with N layers it is N^2.

    Notes
    -----
    The variance of a sum with weights w over the levels is V_root m_root^2 + sum over nodes (sum_c s_c m_c^2 - S m^2),
    m the weighted mean of w below a node (``docs/planning.md``). For a random range the mean of m_c m_d of two siblings
    is a product of their mean distances from the two ends, so one pass over the tree gives all expectations.
    """
    counts = interval_counts(n_levels, fan_out)
    noise = float(len(counts) + (n_below > 1)) ** 2
    share = 2.0 / (n_levels * (n_levels + 1.0))
    start = np.arange(1.0, n_levels + 1)
    square = share * start * (n_levels + 1 - start)
    spread = np.full(n_levels, noise * n_below / (n_below + 1) if n_below > 1 else noise)
    total = 0.0
    for number, parent in reversed(list(enumerate(interval_parents(counts)))):
        n_above = (1, *counts)[number]
        below = np.bincount(parent, weights=spread, minlength=n_above)
        weight = spread / below[parent]
        total += float(spread @ square)
        square, start = _means_above(parent, weight, square, start, n_levels, share)
        total -= float(below @ square)
        spread = noise * below / (noise + below) if number else below
    return total if n_public else total + float(spread[0] * square[0])


def _means_above(
    parent: IntArray, weight: FloatArray, square: FloatArray, start: FloatArray, n_levels: int, share: float
) -> tuple[FloatArray, FloatArray]:
    """Return E m^2 and the mean distance from the lower end of the nodes above, for a random range."""
    n_above = int(parent[-1]) + 1
    moved = weight * start
    before = np.cumsum(moved) - moved
    first = np.flatnonzero(np.diff(parent, prepend=-1))
    before -= before[first][parent]
    pairs = 2 * share * before * weight * (n_levels + 1 - start)
    mean_square = np.bincount(parent, weights=weight**2 * square + pairs, minlength=n_above)
    return mean_square, np.bincount(parent, weights=moved, minlength=n_above)


@dataclass(frozen=True, kw_only=True)
class IntervalPlan:
    """What a universal histogram of one ordered column does to a table, apart from the table.

    Parameters
    ----------
    attribute : str
        The ordered column.
    fan_out : int
        Most intervals that an interval is cut into.
    scales : tuple of Fraction
        Scale of the noise for each layer below layer 0; the last one is that of the cells.
    n_public : bool
        Whether the counts of layer 0 are public.
    n_trees : int
        Number of independent trees in a release.
    names : tuple of str
        What to call each layer in ``scales``.
    """

    attribute: str
    fan_out: int
    scales: tuple[Fraction, ...]
    n_public: bool
    n_trees: int = 1
    names: tuple[str, ...] = ()

    def noise(self) -> list[Noise]:
        """Return the noise on the counts of each layer, in records."""
        return hierarchy.Plan(
            scales=self.scales, chooser=hierarchy.Given(), n_public=self.n_public, names=self.names
        ).noise()


@dataclass(frozen=True)
class IntervalTree:
    """The public shape: layers, the interval of each level in every layer of intervals, and the cells."""

    domain: Domain
    column: int
    layers: list[Layer]
    interval: list[IntArray]
    cells: Cells


def grow(schema: Schema, plan: IntervalPlan) -> IntervalTree:
    """Return the public shape of the tree."""
    domain, top = domain_of(schema), top_layer(domain_of(schema))
    column = domain.names.index(plan.attribute)
    counts = interval_counts(int(domain.sizes[column]), plan.fan_out)
    parents = interval_parents(counts)
    interval = [np.arange(counts[-1])]
    for parent in reversed(parents[1:]):
        interval.insert(0, parent[interval[0]])
    levels = split_by(domain, top, np.full(top.n_nodes, column))
    layers, n_above = [top], 1
    for n_intervals, parent, held in zip(counts, parents, interval, strict=True):
        which = (np.arange(top.n_nodes)[:, None] * n_intervals + held).ravel()
        possible = np.bincount(which, weights=levels.possible, minlength=top.n_nodes * n_intervals) > 0
        above = (np.arange(top.n_nodes)[:, None] * n_above + parent).ravel()
        layers.append(Layer(above, np.repeat(top.path, n_intervals, axis=0), possible))
        n_above = n_intervals
    if len(domain.public) + 1 < len(domain.names):
        bottom = cells(domain, levels)
        return IntervalTree(domain, column, [*layers, bottom.layer], interval, bottom)
    return IntervalTree(domain, column, layers, interval, cells(domain, top))


def _counts(table: Table, tree: IntervalTree) -> list[IntArray]:
    """Return the true counts of all layers."""
    codes = np.column_stack([table.codes[name] for name in tree.domain.names])
    node = np.zeros(len(codes), dtype=np.int64)
    for public in tree.domain.public:
        node = node * tree.domain.sizes[public] + codes[:, public]
    level = codes[:, tree.column]
    places = [node, *(node * (held[-1] + 1) + held[level] for held in tree.interval)]
    if len(tree.layers) > len(places):
        n_levels = int(tree.domain.sizes[tree.column])
        places.append(tree.cells.find(node * n_levels + level, codes))
    return [table.count(place, layer.n_nodes) for place, layer in zip(places, tree.layers, strict=True)]


def measure(table: Table, plan: IntervalPlan, bits: RandomBits, n_runs: int = 1) -> Measured:
    """Count every layer with noise, in one run or several."""
    tree = grow(table.schema, plan)
    exact, *counted = _counts(table, tree)
    top = exact if plan.n_public else np.zeros_like(exact)
    observed, variances = [np.repeat(top[None], n_runs, axis=0)], [np.full(len(top), 0.0 if plan.n_public else np.inf)]
    for counts, layer, scale in zip(counted, tree.layers[1:], plan.scales, strict=True):
        observed.append(hierarchy.noisy_counts(counts, layer.possible, scale, bits, n_runs))
        variances.append(hierarchy.noise_variance(layer.possible, scale))
    return Measured(tree.domain, tree.layers, [], observed, variances, cells=tree.cells)


def observe(table: Table, plan: IntervalPlan, n_runs: int, bits: RandomBits) -> IntArray:
    """Return the noisy counts of independent releases, one a row, before post-processing."""
    trees = [measure(table, plan, bits, n_runs).observed for _ in range(plan.n_trees)]
    return np.concatenate([counts for tree in trees for counts in tree], axis=1)


def law(table: Table, plan: IntervalPlan) -> Law:
    """Return the exact law: true counts in the places of :func:`observe`, and noise scales."""
    tree = grow(table.schema, plan)
    counts = _counts(table, tree)
    if not plan.n_public:
        counts[0] = np.zeros_like(counts[0])
    scales = [Fraction(0)] * len(counts[0])
    for layer, scale in zip(tree.layers[1:], plan.scales, strict=True):
        scales += [scale if possible else Fraction(0) for possible in layer.possible]
    statistics = tuple(int(count) for count in np.concatenate(counts))
    return Law(
        outcomes=[Outcome(key=(), log_probability=0.0, statistics=statistics, scales=tuple(scales))],
        repeats=plan.n_trees,
    )


def draw(table: Table, plan: IntervalPlan, *, mechanism: Mechanism, bits: RandomBits, clock: Clock) -> Drawn:
    """Measure one tree for all sets, or one for each, and draw the sets from it."""
    n_each = mechanism.n_sets // plan.n_trees
    sets: list[pd.DataFrame | LargeSet] = []
    statistics: dict[str, pd.DataFrame] = {}
    for number in range(1, plan.n_trees + 1):
        with clock.step("counting and adding noise"):
            measured = measure(table, plan, bits)
        with clock.step("making the counts consistent"):
            found = synthesis.estimate_on_tree(measured, n_public=plan.n_public)
        sets += synthesis.synthesize(found, table, n_each, bits=bits, clock=clock)
        statistics |= _statistics(measured, table.schema, plan, f"set {number}, " if plan.n_trees > 1 else "")
    return Drawn.of(sets, statistics=statistics, noise=plan.noise())


def _statistics(measured: Measured, schema: Schema, plan: IntervalPlan, prefix: str) -> dict[str, pd.DataFrame]:
    """Return the noisy counts as tables: public levels, first and last level of the interval, and the count."""
    domain, found = measured.domain, {}
    interval = grow(schema, plan).interval
    public = [domain.names[column] for column in domain.public]
    for number, held in enumerate(interval[: len(plan.scales) - 1], start=1):
        layer, n_top = measured.layers[number], measured.layers[0].n_nodes
        first = np.flatnonzero(np.diff(held, prepend=-1))
        last = np.append(first[1:], len(held)) - 1
        frame = pd.DataFrame(layer.path[:, domain.public], columns=public)
        found[f"{prefix}layer {number}"] = frame.assign(
            **{f"first {plan.attribute}": np.tile(first, n_top), f"last {plan.attribute}": np.tile(last, n_top)},
            noisy_count=measured.observed[number][0],
        )
    found[f"{prefix}cells"] = pd.DataFrame({"noisy_count": measured.observed[-1][0]})
    return found
