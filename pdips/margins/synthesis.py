"""Synthetic sets from noisy counts: post-processing, which costs nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.convergence import LOG
from pdips.data.schema import Schema
from pdips.data.table import Table, decode
from pdips.data.totals import KnownTable
from pdips.margins.consistency import consistent, draw_cells, meet, nonnegative, round_cells
from pdips.margins.domain import Domain, descend, one_way_margins, top_node
from pdips.margins.margin_error import tree_errors, view_errors
from pdips.margins.maximum_entropy import CellGrid, Observation, fit, log_independent
from pdips.margins.tree import NoisyTree, TreeDesign
from pdips.mechanism import Drawn, Mechanism, Split
from pdips.privacy.curator import Curator
from pdips.privacy.plan import Plan
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.large_set import LARGE_SET_RECORDS, LargeSet, copies_numbers
from pdips.release.noisy_margins import MeasuredMargin

LEAST_VALUE = 1e-9  # Of a cell that can occur, in records: public totals may fill one estimated as empty


class HasLevels(Protocol):
    """A numbering of all cells."""

    @property
    def domain(self) -> Domain: ...
    def levels(self, cell: IntArray, column: int) -> IntArray: ...


@dataclass(frozen=True)
class Estimate:
    """Nonnegative counts of all cells, not whole yet."""

    cells: HasLevels
    parents: list[IntArray]  # A tree over the cells, within one record of which whole counts are to stay
    values: FloatArray  # The count of each cell
    n_records: int  # What they add up to
    arrived: bool = True  # Whether a solver that looked for them found them


class CountedTree(Mechanism):
    """What mechanisms have in common whose sets follow from noisy counts on a tree, or of all cells."""

    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return how far one person moves the counts of a layer, of a margin or of all cells."""
        return Sensitivity.of_counts(schema, self.neighbours)

    def synthesize(self, plan: Plan, curator: Curator, rng: np.random.Generator) -> Drawn:
        """Measure the tree of a plan once for all sets, or once for each, and draw the sets from consistent counts."""
        tree = plan.design
        sets: list[pd.DataFrame | LargeSet] = []
        statistics: dict[str, pd.DataFrame] = {}
        margins = list[MeasuredMargin]()
        arrived = True
        for part in range(1, plan.repeats + 1):
            with curator.timed("counting and adding noise"):
                measured = tree.measure(curator, rng)
            with curator.timed("making the counts consistent"):
                found = estimate(measured, tree, n_public=plan.n_public)
            arrived &= found.arrived
            redraw = None
            if isinstance(tree, TreeDesign) and tree.redraws:
                redraw = partial(_redrawn, measured, tree, rng, n_public=plan.n_public)
            sets += draw_sets(found, plan, curator, rng, part=part, redraw=redraw)
            statistics |= tree.noisy_statistics(measured, f"set {part}, " if plan.repeats > 1 else "")
            margins += tree.measured_margins(measured)
        if not isinstance(tree, TreeDesign):
            return Drawn.of(sets, statistics=statistics, margins=margins)
        errors = view_errors(tree.domain, tree.views)
        if not tree.views:  # all trees of a release have the same noise, and nearly the same errors
            errors = tree_errors(tree.domain, measured.layers, measured.scales, n_public=plan.n_public)
        diagnostics = {"solver_arrived": arrived} if tree.views else {}
        return Drawn.of(sets, statistics=statistics, margin_errors=errors, diagnostics=diagnostics, margins=margins)


def _redrawn(measured: NoisyTree, tree: TreeDesign, rng: np.random.Generator, *, n_public: bool) -> Estimate:
    return _estimate_from_views(tree.again(measured, rng), tree, n_public=n_public)


def estimate(measured: NoisyTree, tree: object, *, n_public: bool) -> Estimate:
    """Return one consistent table from all noisy counts: by least squares made nonnegative, or of maximum entropy."""
    if isinstance(tree, TreeDesign) and tree.views:
        return _estimate_from_views(measured, tree, n_public=n_public)
    estimates, variances = consistent(measured.parents, measured.observed, measured.variances)
    values = nonnegative(measured.parents, estimates, variances)
    n_records = int(measured.observed[0].sum()) if n_public else max(round(float(estimates[0].sum())), 0)
    return Estimate(measured, measured.parents, values, n_records)


def _estimate_from_views(measured: NoisyTree, tree: TreeDesign, *, n_public: bool) -> Estimate:
    domain, grid = tree.domain, CellGrid(tree.domain)
    counts = tuple(view.astype(np.float64) for view in measured.views)
    margins, total = one_way_margins(tree.views, counts)
    totals = measured.observed[0].astype(np.float64) if n_public else np.array([max(round(total), 0)])
    errors = {item.columns: item.standard_error for item in view_errors(domain, tree.views)}
    spread = [errors.get((name,), 0.0) for name in domain.names]
    views = [
        Observation(count, np.where(view.possible(), view.variance, 0.0), view.columns)
        for view, count in zip(tree.views, counts, strict=True)
    ]
    base = log_independent(grid, margins, spread)
    values, arrived = fit(grid, views, _nodes(measured, grid), totals=totals, base=base)
    if not arrived:
        LOG.warning("The solver stopped short of the table of maximum entropy: sets are farther from it than need be.")
    by_public = values.reshape(len(totals), -1)
    sums = by_public.sum(axis=1)  # of single precision: public totals must be met exactly, or rows slip
    by_public *= np.divide(totals, sums, out=np.zeros_like(sums), where=sums > 0)[:, None]
    group = np.repeat(np.arange(len(totals)), by_public.shape[1])
    return Estimate(grid, [group], by_public.ravel(), round(float(totals.sum())), arrived)


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
    found: Estimate,
    plan: Plan,
    curator: Curator,
    rng: np.random.Generator,
    *,
    part: int = 1,
    redraw: Callable[[], Estimate] | None = None,
) -> list[pd.DataFrame | LargeSet]:
    """Turn one consistent table into the synthetic sets of one round of a plan, the ``part``-th from 1.

    With ``redraw`` each set comes from a table of its own, and its records are drawn independently.
    """
    n_each, schema, cells = plan.n_sets // plan.repeats, plan.schema, found.cells
    public = curator.public if schema.public_columns else None
    sets = list[pd.DataFrame | LargeSet]()
    for number in range((part - 1) * n_each + 1, part * n_each + 1):
        with curator.timed(f"drawing synthetic set {number} of {plan.n_sets}"):
            if redraw is None:
                cell, count = round_cells(found.parents, found.values, found.n_records, rng)
            else:
                found = redraw()
                cell, count = draw_cells(found.parents[0], found.values, rng)
            totals = schema.known_totals(weighted=False)
            if found.n_records > LARGE_SET_RECORDS and not copies_numbers(schema) and not (schema.total or schema.rule):
                order = np.argsort(cell)  # an order that tells no more than the cells and their counts do
                codes = {name: cells.levels(cell[order], j).astype(np.int32) for j, name in enumerate(schema.columns)}
                sets.append(LargeSet(schema=schema, codes=codes, counts=count[order], seed=int(rng.integers(2**63))))
            else:
                cell = np.repeat(cell, count)
                if totals and isinstance(cells, CellGrid):
                    cell = _meeting(cells, totals, cell, found.values, rng)
                sets.append(records(cells, schema, cell, rng, public=public))
    return sets


def _meeting(
    cells: CellGrid, totals: Sequence[KnownTable], cell: IntArray, values: FloatArray, rng: np.random.Generator
) -> IntArray:
    """Return the cells of records after as few moves as public totals ask for, the likeliest ones."""
    names, order = cells.domain.names, [*cells.halves[0], *cells.halves[1]]
    codes = {name: cells.levels(cell, j) for j, name in enumerate(names)}
    density = np.where(cells.possible().ravel(), np.log(np.maximum(values, LEAST_VALUE)), -np.inf)

    def gain(rows: IntArray, name: str, level: int) -> FloatArray:
        old = {j: codes[names[j]][rows] for j in order}
        new = {**old, names.index(name): np.full(len(rows), level)}
        return density[_number(cells, new)] - density[_number(cells, old)]

    meet(totals, codes, gain, rng)
    return _number(cells, {j: codes[names[j]] for j in order})


def _number(cells: CellGrid, codes: Mapping[int, IntArray]) -> IntArray:
    return np.ravel_multi_index(tuple(codes.values()), [int(cells.domain.sizes[j]) for j in codes]).astype(np.int64)


def records(
    cells: HasLevels, schema: Schema, cell: IntArray, rng: np.random.Generator, *, public: Table | None = None
) -> pd.DataFrame:
    """Return records of these cells, in random order, beside the public columns if there are any."""
    domain = cells.domain
    names = [domain.names[column] for column in domain.public]
    cell = rng.permutation(cell)
    if public is not None:  # in the order of the public records; short integers sort fast
        kinds = {int(column): np.min_scalar_type(domain.sizes[column]) for column in domain.public}
        cell = cell[np.lexsort([cells.levels(cell, column).astype(kinds[column]) for column in reversed(kinds)])]
    codes = {name: cells.levels(cell, j) for j, name in enumerate(domain.names) if name not in names}
    frame = decode(schema, codes, rng)
    if public is not None:
        frame = pd.concat([pd.DataFrame({name: public.spelt(name) for name in names}), frame], axis=1)
    return frame[list(domain.names)]
