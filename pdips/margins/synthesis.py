"""Synthetic sets from noisy counts: post-processing, which costs nothing."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table, decode
from pdips.margins.consistency import consistent, nonnegative, round_cells
from pdips.margins.domain import Domain, descend, top_node
from pdips.margins.margin_error import tree_errors, view_errors
from pdips.margins.maximum_entropy import CellGrid, Observation, fit, log_independent
from pdips.margins.tree import NoisyTree, TreeDesign, measure, variance_of
from pdips.margins.views import View, one_way_margins
from pdips.mechanism import Drawn
from pdips.privacy.curator import Curator
from pdips.privacy.plan import Plan
from pdips.release.large_set import LARGE_SET_RECORDS, LargeSet, copies_numbers
from pdips.release.release import MarginError


class HasLevels(Protocol):
    """A numbering of all cells."""

    @property
    def domain(self) -> Domain: ...
    def levels(self, cell: IntArray, column: int) -> IntArray: ...


@dataclass(frozen=True)
class Estimate:
    """Nonnegative counts of all cells, not whole yet.

    Parameters
    ----------
    cells : HasLevels
        What each cell means.
    parents : list of ndarray
        A tree over the cells, within one record of which whole counts are to stay.
    values : ndarray, shape (cells,)
        The counts.
    n_records : int
        What they add up to.
    """

    cells: HasLevels
    parents: list[IntArray]
    values: FloatArray
    n_records: int


def estimate(measured: NoisyTree, tree: TreeDesign, *, n_public: bool) -> Estimate:
    """Return one consistent table from all noisy counts.

    Parameters
    ----------
    measured : NoisyTree
        The counts.
    tree : TreeDesign
        What was counted.
    n_public : bool
        Whether the number of records is public.
    """
    if tree.views:
        return _estimate_from_views(measured, tree, n_public=n_public)
    return estimate_on_tree(measured, n_public=n_public)


def estimate_on_tree(measured: NoisyTree, *, n_public: bool) -> Estimate:
    """Return the least-squares cells of a tree, made nonnegative."""
    estimates, variances = consistent(measured.parents, measured.observed, measured.variances)
    values = nonnegative(measured.parents, estimates, variances)
    n_records = int(measured.observed[0].sum()) if n_public else max(round(float(estimates[0].sum())), 0)
    return Estimate(measured, measured.parents, values, n_records)


def _estimate_from_views(measured: NoisyTree, tree: TreeDesign, *, n_public: bool) -> Estimate:
    domain = measured.domain
    grid = CellGrid(domain)
    counts = tuple(view.astype(np.float64) for view in measured.views)
    margins, total = one_way_margins(domain, views_of(tree), counts)
    totals = measured.observed[0].astype(np.float64) if n_public else np.array([max(round(total), 0)])
    errors = {item.columns: item.standard_error for item in view_errors(domain, views_of(tree))}
    spread = [errors.get((name,), 0.0) for name in domain.names]
    views = [
        Observation(count, variance_of(view.possible(domain), step), view.columns)
        for (view, step), count in zip(tree.views, counts, strict=True)
    ]
    base = log_independent(grid, margins, spread)
    values = fit(grid, views, _nodes(measured, grid), totals=totals, base=base)
    by_public = values.reshape(len(totals), -1)
    sums = by_public.sum(axis=1)  # of single precision: public totals must be met exactly, or rows slip
    by_public *= np.divide(totals, sums, out=np.zeros_like(sums), where=sums > 0)[:, None]
    group = np.repeat(np.arange(len(totals)), by_public.shape[1])
    return Estimate(grid, [group], by_public.ravel(), round(float(totals.sum())))


def _nodes(measured: NoisyTree, grid: CellGrid) -> list[Observation]:
    """Return the noisy counts of the layers that were counted, with the node that each cell falls into."""
    found: list[Observation] = []
    domain = measured.domain
    if len(measured.layers) == 1:
        return found
    every = np.arange(domain.n_cells)
    codes = np.column_stack([grid.levels(every, j).astype(np.int32) for j in range(len(domain.names))])
    node = top_node(domain, codes)
    layers = zip(measured.chosen, measured.layers[1:], measured.observed[1:], measured.variances[1:], strict=True)
    for chosen, layer, observed, variance in layers:
        node = descend(node, codes, domain, chosen)
        if layer.counted.any() and np.isfinite(variance[layer.counted]).any():
            found.append(Observation(observed.astype(np.float64), variance, group=node.astype(np.int32)))
    return found


def draw_sets(
    found: Estimate, plan: Plan, curator: Curator, rng: np.random.Generator, *, part: int = 1
) -> list[pd.DataFrame | LargeSet]:
    """Turn one consistent table into the synthetic sets of one round. Post-processing.

    Parameters
    ----------
    found : Estimate
        The table.
    plan : Plan
        Says how many sets there are, and in how many rounds.
    curator : Curator
        Knows the public columns.
    rng : numpy.random.Generator
        For rounding and for values inside bins.
    part : int
        Which round, from 1.
    """
    n_each = plan.n_sets // plan.repeats
    public = curator.public if plan.schema.public_columns else None
    numbers = range((part - 1) * n_each + 1, part * n_each + 1)
    return _sets(found, plan.schema, public, numbers, rng, curator.timed)


def _sets(
    found: Estimate,
    schema: Schema,
    public: Table | None,
    numbers: range,
    rng: np.random.Generator,
    timed: Callable[[str], AbstractContextManager[None]],
) -> list[pd.DataFrame | LargeSet]:
    sets = list[pd.DataFrame | LargeSet]()
    large = found.n_records > LARGE_SET_RECORDS and not copies_numbers(schema)
    for number in numbers:
        with timed(f"drawing synthetic set {number}"):
            cell, count = round_cells(found.parents, found.values, found.n_records, rng)
            if large:
                sets.append(_large_set(found.cells, schema, cell, count, rng))
            else:
                sets.append(records(found.cells, schema, np.repeat(cell, count), rng, public=public))
    return sets


def _large_set(cells: HasLevels, schema: Schema, cell: IntArray, count: IntArray, rng: np.random.Generator) -> LargeSet:
    order = np.argsort(cell)  # an order that tells no more than the cells and their counts do
    codes = {name: cells.levels(cell[order], j).astype(np.int32) for j, name in enumerate(cells.domain.names)}
    return LargeSet(schema=schema, codes=codes, counts=count[order], seed=int(rng.integers(2**63)))


def records(
    measured: HasLevels, schema: Schema, cell: IntArray, rng: np.random.Generator, *, public: Table | None = None
) -> pd.DataFrame:
    """Return records of these cells, in random order, beside the public columns if there are any."""
    domain = measured.domain
    names = [domain.names[column] for column in domain.public]
    cell = rng.permutation(cell)
    if public is not None:
        cell = _beside_public_records(measured, cell)
    codes = {name: measured.levels(cell, j) for j, name in enumerate(domain.names) if name not in names}
    frame = decode(schema, codes, rng)
    if public is not None:
        frame = pd.concat([pd.DataFrame({name: public.spelt(name) for name in names}), frame], axis=1)
    return frame[list(domain.names)]


def public_records(table: Table, public: list[str]) -> pd.DataFrame:
    """Return the public columns as the schema spells them, sorted: the order of the file may show what isn't public."""
    order = public_order(table, public)
    return pd.DataFrame({name: table.spelt(name).take(order) for name in public})


def public_order(table: Table, public: list[str]) -> IntArray:
    """Return the row of each record, in the order of the public columns: by levels and bins, and then by values."""
    by_value = [table.sort_key(name) for name in reversed(public)]
    by_level = [table.codes[name] for name in reversed(public) if name in table.codes]  # as the cells are ordered
    return table.repeats(np.lexsort([*by_value, *by_level]))


def _beside_public_records(measured: HasLevels, cell: IntArray) -> IntArray:
    """Order the cells by their public levels, as the public records are."""
    return cell[np.lexsort([measured.levels(cell, int(column)) for column in reversed(measured.domain.public)])]


def release_of(tree: TreeDesign, plan: Plan, curator: Curator, rng: np.random.Generator) -> Drawn:
    """Measure one tree for all sets, or one for each, and draw the sets from it."""
    sets: list[pd.DataFrame | LargeSet] = []
    statistics: dict[str, pd.DataFrame] = {}
    for part in range(1, plan.repeats + 1):
        with curator.timed("counting and adding noise"):
            measured = measure(tree, curator, rng)
        with curator.timed("making the counts consistent"):
            found = estimate(measured, tree, n_public=plan.n_public)
        sets += draw_sets(found, plan, curator, rng, part=part)
        statistics |= noisy_statistics(measured, tree, f"set {part}, " if plan.repeats > 1 else "")
    errors = margin_errors(measured, tree, n_public=plan.n_public)
    return Drawn.of(sets, statistics=statistics, margin_errors=errors)


def views_of(tree: TreeDesign) -> tuple[View, ...]:
    """Return the margins that are counted below a tree."""
    return tuple(view for view, _ in tree.views)


def margin_errors(measured: NoisyTree, tree: TreeDesign, *, n_public: bool) -> tuple[MarginError, ...]:
    """Return what the noise comes to in margins; trees of a release have the same noise, and nearly the same errors."""
    if tree.views:
        return view_errors(measured.domain, views_of(tree))
    return tree_errors(measured.domain, measured.layers, measured.scales, n_public=n_public)


def noisy_statistics(measured: NoisyTree, tree: TreeDesign, prefix: str) -> dict[str, pd.DataFrame]:
    """Return the noisy counts as tables: levels of the columns split so far (-1: not split), and the count."""
    domain, names = measured.domain, list(measured.domain.names)
    found: dict[str, pd.DataFrame] = {}
    for number in range(1, len(measured.chosen) + 1):
        layer, counts = measured.layers[number], measured.observed[number]
        if layer.counted.any() and np.isfinite(measured.variances[number][layer.counted]).any():
            kept = slice(None) if layer.counted.all() else np.flatnonzero(layer.counted)
            frame = pd.DataFrame(layer.path[kept], columns=names, copy=False)  # 100 MB for a million nodes
            found[f"{prefix}layer {len(found) + 1}"] = frame.assign(noisy_count=counts[kept])
    for view, counts in zip(views_of(tree), measured.views, strict=True):
        frame = pd.DataFrame({names[j]: levels for j, levels in view.levels(domain).items()})
        found[f"{prefix}{view.name}"] = frame.assign(noisy_count=counts)
    if not tree.views:
        found[f"{prefix}cells"] = pd.DataFrame({"noisy_count": measured.observed[-1]})
    return found
