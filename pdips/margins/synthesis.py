"""Synthetic sets from noisy counts: post-processing, which costs nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.convergence import LOG
from pdips.data.schema import Schema
from pdips.data.table import Table, decode
from pdips.data.totals import KnownTable
from pdips.margins.consistency import (
    consistent,
    draw_cells,
    meet,
    nonnegative,
    round_cells,
)
from pdips.margins.domain import Domain, View, descend, one_way_margins, top_node
from pdips.margins.margin_error import view_errors
from pdips.margins.maximum_entropy import (
    CellGrid,
    Observation,
    Start,
    TableFit,
    fit,
    log_independent,
)
from pdips.margins.tree import NoisyTree, TreeDesign
from pdips.mechanism import AnswerTables, Drawn, Mechanism, Split
from pdips.privacy.answers import PublicFacts
from pdips.privacy.curator import Curator, timed
from pdips.privacy.plan import Plan
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.large_set import LARGE_SET_RECORDS, LargeSet, copies_numbers
from pdips.release.noisy_margins import MeasuredMargin

# Of a cell that can occur, in records: public totals may fill one estimated as empty
LEAST_VALUE = 1e-9
# Curvature at a fit costs one or two of them, and saves half of each later one
FEW_SETS = 5


class HasLevels(Protocol):
    """A numbering of all cells."""

    @property
    def domain(self) -> Domain: ...
    def levels(self, cell: IntArray, column: int) -> IntArray: ...


class CountsViews(Protocol):
    """A design that counts views, or none."""

    @property
    def domain(self) -> Domain: ...
    @property
    def views(self) -> tuple[View, ...]: ...


@dataclass(frozen=True)
class Estimate:
    """Nonnegative counts of all cells, not whole yet."""

    cells: HasLevels
    # A tree over the cells, within one record of which whole counts are to stay
    parents: list[IntArray]
    values: FloatArray  # The count of each cell
    n_records: int  # What they add up to
    arrived: bool = True  # Whether a solver that looked for them found them
    fitted: TableFit | None = None  # Where it ended
    observed: Sequence[Observation] = ()  # What it was fitted to


class CountedTree(Mechanism):
    """What mechanisms have in common whose sets follow from noisy counts on a tree, or
    of all cells.
    """

    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return how far one person moves the counts of a layer, of a margin or of all
        cells.
        """
        return Sensitivity.of_counts(schema, self.neighbours)

    def ask(self, plan: Plan, curator: Curator) -> list[Any]:
        """Measure the tree of a plan once for all sets, or once for each."""
        return measured_trees(plan, curator)

    def tables_of(self, plan: Plan, measured: Sequence[NoisyTree]) -> AnswerTables:
        """Return the margins that the layers or views are."""
        return AnswerTables(margins=tree_margins(plan, measured))

    def draw(
        self,
        plan: Plan,
        measured: Sequence[NoisyTree],
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        """Draw the sets from consistent counts, of each tree as many."""
        return drawn_from_trees(plan, measured, n_sets, rng, public)


def measured_trees(plan: Plan, curator: Curator) -> list[Any]:
    """Measure what the design of a plan counts, once for all sets or once for each."""
    trees = []
    for _ in range(plan.repeats):
        with curator.timed("counting and adding noise"):
            trees.append(plan.design.measure(curator))
    return trees


def tree_margins(plan: Plan, measured: Sequence[NoisyTree]) -> list[MeasuredMargin]:
    """Return the margins that trees or views are, those of all rounds."""
    margins = list[MeasuredMargin]()
    for tree in measured:
        margins += plan.design.measured_margins(tree)
    return margins


def drawn_from_trees(
    plan: Plan,
    measured: Sequence[NoisyTree],
    n_sets: int,
    rng: np.random.Generator,
    public: PublicFacts,
) -> Drawn:
    """Draw sets from consistent counts, of each tree as many."""
    design = plan.design
    sets: list[pd.DataFrame | LargeSet] = []
    statistics: dict[str, pd.DataFrame] = {}
    arrived = True
    for number, tree in enumerate(measured, start=1):
        with timed("making the counts consistent"):
            estimated = estimate(tree, design, n_public=plan.n_public)
        arrived &= estimated.arrived
        n_own = n_sets // plan.repeats
        redraw = None
        if design.redraws:
            redraw = partial(
                _redrawn,
                tree,
                design,
                rng,
                n_public=plan.n_public,
                start=_start(estimated, n_own),
            )
        sets += draw_sets(
            estimated, plan.schema, n_own, rng, public=public, redraw=redraw
        )
        prefix = f"set {number}, " if plan.repeats > 1 else ""
        statistics |= design.noisy_statistics(tree, prefix)
    # all trees of a release have the same noise, and nearly the same errors
    errors = design.margin_errors(measured[-1], n_public=plan.n_public)
    diagnostics = {"solver_arrived": arrived} if design.views else {}
    return Drawn.of(
        sets,
        statistics=statistics,
        margin_errors=errors,
        diagnostics=diagnostics,
        margins=tree_margins(plan, measured),
    )


def _start(estimated: Estimate, n_sets: int) -> Start | None:
    """Return where fits of so many sets begin; few sets aren't worth the curvature."""
    fitted = estimated.fitted
    if fitted is None or not isinstance(estimated.cells, CellGrid):
        return None
    if n_sets < FEW_SETS:
        return Start(fitted.multipliers, None)
    return Start.at(estimated.cells, estimated.observed, fitted)


def _redrawn(
    measured: NoisyTree,
    tree: TreeDesign,
    rng: np.random.Generator,
    *,
    n_public: bool,
    start: Start | None,
) -> Estimate:
    """Return a table that agrees with fresh noise on top, by a solver that begins where
    it ended without: it's there sooner than from independent columns.
    """
    again = tree.again(measured, rng)
    return _estimate_from_views(again, tree, n_public=n_public, start=start)


def estimate(measured: NoisyTree, tree: CountsViews, *, n_public: bool) -> Estimate:
    """Return one consistent table from all noisy counts: by least squares made
    nonnegative, or of maximum entropy.
    """
    if tree.views:
        return _estimate_from_views(measured, tree, n_public=n_public)
    estimates, variances = consistent(
        measured.parents, measured.observed, measured.variances
    )
    values = nonnegative(measured.parents, estimates, variances)
    total = measured.observed[0] if n_public else estimates[0]
    n_records = max(round(float(total.sum())), 0)
    return Estimate(measured, measured.parents, values, n_records)


def _estimate_from_views(
    measured: NoisyTree,
    tree: CountsViews,
    *,
    n_public: bool,
    start: Start | None = None,
) -> Estimate:
    grid = CellGrid(tree.domain)
    counts = tuple(view.astype(np.float64) for view in measured.views)
    margins, total = one_way_margins(tree.views, counts)
    totals = np.array([max(round(total), 0)])
    if n_public:
        totals = measured.observed[0].astype(np.float64)
    spread = _spreads(tree)
    views = list[Observation]()
    for view, count in zip(tree.views, counts, strict=True):
        variance = np.where(view.possible(), view.variance, 0.0)
        views.append(Observation(count, variance, view.columns))
    base = log_independent(grid, margins, spread)
    nodes = _nodes(measured, grid)
    fitted = fit(grid, views, nodes, totals=totals, base=base, start=start)
    values = fitted.values
    if not fitted.arrived:
        LOG.warning(
            "The solver stopped short of the table of maximum entropy: sets "
            "are farther from it than need be."
        )
    n_groups = len(totals)
    by_public = values.reshape(n_groups, -1)
    # of single precision: public totals must be met exactly, or rows slip
    sums = by_public.sum(axis=1)
    factor = np.divide(totals, sums, out=np.zeros_like(sums), where=sums > 0)
    by_public *= factor[:, None]
    parents = [np.repeat(np.arange(n_groups), by_public.shape[1])]
    n_records = round(float(totals.sum()))
    return Estimate(
        cells=grid,
        parents=parents,
        values=by_public.ravel(),
        n_records=n_records,
        arrived=fitted.arrived,
        fitted=fitted,
        observed=views,
    )


def _spreads(tree: CountsViews) -> list[float]:
    """Return the standard error of the counts of each column, 0 where no view has
    it.
    """
    spread = dict.fromkeys(tree.domain.names, 0.0)
    for error in view_errors(tree.domain, tree.views):
        if len(error.columns) == 1:
            spread[error.columns[0]] = error.standard_error
    return list(spread.values())


def _nodes(measured: NoisyTree, grid: CellGrid) -> list[Observation]:
    """Return the noisy counts of the layers that were counted, with the node that each
    cell falls into.
    """
    nodes: list[Observation] = []
    domain = measured.domain
    if len(measured.layers) == 1:
        return nodes
    every = np.arange(domain.n_cells)
    codes = np.column_stack(
        [grid.levels(every, j).astype(np.int32) for j in range(len(domain.names))]
    )
    node = top_node(domain, codes)
    for number, chosen in enumerate(measured.chosen, start=1):
        node = descend(node, codes, domain, chosen)
        counted = measured.layers[number].counted
        variances = measured.variances[number]
        if np.isfinite(variances[counted]).any():
            counts = measured.observed[number].astype(np.float64)
            nodes.append(Observation(counts, variances, group=node.astype(np.int32)))
    return nodes


def draw_sets(
    estimated: Estimate,
    schema: Schema,
    n_sets: int,
    rng: np.random.Generator,
    *,
    public: PublicFacts,
    redraw: Callable[[], Estimate] | None = None,
) -> list[pd.DataFrame | LargeSet]:
    """Turn one consistent table into synthetic sets.

    With ``redraw`` each set comes from a table of its own, and its records are drawn
    independently.
    """
    sets = list[pd.DataFrame | LargeSet]()
    for number in range(1, n_sets + 1):
        with timed(f"drawing synthetic set {number} of {n_sets}"):
            if redraw is None:
                cell, count = round_cells(
                    estimated.parents, estimated.values, estimated.n_records, rng
                )
            else:
                estimated = redraw()
                cell, count = draw_cells(estimated.parents[0], estimated.values, rng)
            made: pd.DataFrame | LargeSet
            if _is_written_in_chunks(estimated, schema):
                made = _large_set(estimated.cells, schema, cell, count, rng)
            else:
                cell = np.repeat(cell, count)
                made = _held_set(estimated, schema, cell, rng, public)
        sets.append(made)
    return sets


def _is_written_in_chunks(estimated: Estimate, schema: Schema) -> bool:
    is_large = estimated.n_records > LARGE_SET_RECORDS
    return is_large and not (copies_numbers(schema) or schema.total or schema.rule)


def _large_set(
    cells: HasLevels,
    schema: Schema,
    cell: IntArray,
    count: IntArray,
    rng: np.random.Generator,
) -> LargeSet:
    # an order that tells no more than the cells and their counts do
    order = np.argsort(cell)
    codes = {
        name: cells.levels(cell[order], column).astype(np.int32)
        for column, name in enumerate(schema.columns)
    }
    seed = int(rng.integers(2**63))
    return LargeSet(schema=schema, codes=codes, counts=count[order], seed=seed)


def _held_set(
    estimated: Estimate,
    schema: Schema,
    cell: IntArray,
    rng: np.random.Generator,
    public: PublicFacts,
) -> pd.DataFrame:
    cells = estimated.cells
    totals = schema.known_totals(weighted=False)
    if totals and isinstance(cells, CellGrid):
        cell = _meeting(cells, totals, cell, estimated.values, rng)
    columns = public.columns if schema.public_columns else None
    return records(cells, schema, cell, rng, public=columns)


def _meeting(
    cells: CellGrid,
    totals: Sequence[KnownTable],
    cell: IntArray,
    values: FloatArray,
    rng: np.random.Generator,
) -> IntArray:
    """Return the cells of records after as few moves as public totals ask for, the
    likeliest ones.
    """
    names = cells.domain.names
    order = [*cells.halves[0], *cells.halves[1]]
    codes = {name: cells.levels(cell, j) for j, name in enumerate(names)}
    log_values = np.log(np.maximum(values, LEAST_VALUE))
    density = np.where(cells.possible().ravel(), log_values, -np.inf)

    def gain(rows: IntArray, name: str, level: int) -> FloatArray:
        old = {j: codes[names[j]][rows] for j in order}
        new = {**old, names.index(name): np.full(len(rows), level)}
        return density[_number(cells, new)] - density[_number(cells, old)]

    meet(totals, codes, gain, rng)
    return _number(cells, {j: codes[names[j]] for j in order})


def _number(cells: CellGrid, codes: Mapping[int, IntArray]) -> IntArray:
    sizes = [int(cells.domain.sizes[j]) for j in codes]
    return np.ravel_multi_index(tuple(codes.values()), sizes).astype(np.int64)


def records(
    cells: HasLevels,
    schema: Schema,
    cell: IntArray,
    rng: np.random.Generator,
    *,
    public: Table | None = None,
) -> pd.DataFrame:
    """Return records of these cells, in random order, beside the public columns if
    there are any.
    """
    domain = cells.domain
    names = [domain.names[column] for column in domain.public]
    cell = rng.permutation(cell)
    if public is not None:  # in the order of the public records
        keys = list[IntArray]()
        for column in reversed(domain.public.tolist()):
            kind = np.min_scalar_type(domain.sizes[column])  # short integers sort fast
            keys.append(cells.levels(cell, column).astype(kind))
        cell = cell[np.lexsort(keys)]
    codes = {
        name: cells.levels(cell, j)
        for j, name in enumerate(domain.names)
        if name not in names
    }
    frame = decode(schema, codes, rng)
    if public is not None:
        beside = pd.DataFrame({name: public.spelt(name) for name in names})
        frame = pd.concat([beside, frame], axis=1)
    return frame[list(domain.names)]
