"""The full table of maximum entropy that agrees with noisy counts as far as their noise
lets it. Post-processing only.

Given noisy counts y of groups of cells with variances v, the table of expected counts x
minimises

    RIDGE * sum x log(x / x0) + sum (y - A x)^2 / (2 v),

where A adds up the groups and x0 is the table in which columns are independent, with
their noisy one-way margins. What the noise can't tell from independence stays
independent; what it can is taken over. The dual problem has one number for each noisy
count and is solved by L-BFGS, in coordinates in which its curvature would be even were
columns independent: what margins say together of columns that they share is stiff, and
what sets them apart there is slack. The table itself is held as a matrix of two halves
of the columns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.sparse import csr_array

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.margins.domain import Domain

RIDGE = 0.005  # Weight of the entropy (docs/mechanisms/steps.md says what was tried)
SMALLEST_PENALTY = 0.5
FEW_CELLS = 2**16
"""Weight times variance is at least SMALLEST_PENALTY records where there are more cells
than this: at less the solver gets no closer to the counts in bearable time.
"""

MOST_DENSE = 2**24  # Cells that are held as one matrix; about 12 bytes each
MOST_ITERATIONS = 1_000
# Relative falls of the dual at which the solver stops; it goes on at the next where it
# hasn't arrived, which 3 in 100 releases of a survey of 15 columns hadn't at the first
TOLERANCES = (1e-9, 1e-11, 1e-13)
# Distance of a count from where it belongs, in square roots of it, at which the solver
# has arrived
FARTHEST = 0.1
# With more noisy counts, or below a tree, coordinates take account of the size of each
# alone
MOST_COUNTS = 4_096
MOST_SELECTED = 2**26  # Entries of a dense matrix that picks rows; 4 bytes each


@dataclass(frozen=True)
class Observation:
    """Noisy counts of a partition of the cells, with the variances of their noise,
    infinite if not counted.
    """

    counts: FloatArray
    variances: FloatArray
    # The groups are the cross-tabulation of these columns
    columns: tuple[int, ...] = ()
    # In place of columns: the group of each cell, in the order of the grid
    group: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class CellGrid:
    """All cells of a domain as a matrix: rows are the levels of one half of the
    columns, the public ones first.
    """

    domain: Domain

    @cached_property
    def halves(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Columns of the rows and of the columns of the matrix, of about equal numbers
        of levels.
        """
        left = [int(column) for column in self.domain.public]
        right = list[int]()
        rest = [j for j in range(len(self.domain.names)) if j not in left]
        sizes = self.domain.sizes.tolist()
        size_of = self.domain.size_of
        for column in sorted(rest, key=lambda j: -sizes[j]):
            is_left = size_of(left) <= size_of(right)
            (left if is_left else right).append(column)
        return tuple(left), tuple(right)

    def levels(self, cell: IntArray, column: int) -> IntArray:
        return self.domain.level(cell, column, [*self.halves[0], *self.halves[1]])

    def side(self, half: int, columns: Sequence[int]) -> IntArray:
        """Return, for each row (half 0) or column (1) of the matrix, its cell in the
        cross-tabulation of columns.
        """
        own = self.halves[half]
        n = self.domain.size_of(own)
        index = np.arange(n)
        cell = np.zeros(n, dtype=np.int64)
        after = n
        for column in own:
            size = self.domain.sizes[column]
            after //= int(size)
            if column in columns:
                cell = cell * size + index // after % size
        return cell

    def possible(self) -> BoolArray:
        """Return which cells no structural zero rules out, as a matrix."""
        shape = tuple(self.domain.size_of(half) for half in self.halves)

        def level_of(column: int) -> IntArray:
            half = int(column in self.halves[1])
            return np.expand_dims(self.side(half, (column,)), 1 - half)

        return np.ones(shape, dtype=bool) & self.domain.possible(level_of)


class _Part:
    """One observation on the grid: rows and columns of its own small matrix for each
    row and column of the grid.
    """

    def __init__(self, grid: CellGrid, observed: Observation) -> None:
        order = [j for half in grid.halves for j in half if j in observed.columns]
        upper = [j for j in grid.halves[0] if j in observed.columns]
        self.shape = tuple(int(grid.domain.sizes[j]) for j in observed.columns)
        self.n_rows = grid.domain.size_of(upper)
        self.n_columns = math.prod(self.shape) // self.n_rows
        self.axes = tuple(observed.columns.index(j) for j in order)
        self.turned = tuple(self.shape[axis] for axis in self.axes)
        self.row = grid.side(0, observed.columns)
        self.column = grid.side(1, observed.columns)
        self.order = np.argsort(self.column, kind="stable")
        ordered = self.column[self.order]
        self.starts = np.searchsorted(ordered, np.arange(self.n_columns))

    def to_grid(self, values: FloatArray) -> FloatArray:
        """Return values of the groups as a matrix, one row for each row of the small
        matrix.
        """
        turned = np.transpose(values.reshape(self.shape), self.axes)
        return turned.reshape(self.n_rows, self.n_columns)

    def from_grid(self, block: NDArray[Any]) -> FloatArray:
        """Add up grid columns by the column of the small matrix that they belong to,
        and undo :meth:`to_grid`.
        """
        ordered = block[:, self.order]
        sums = np.add.reduceat(ordered, self.starts, axis=1, dtype=np.float64)
        turned = sums.reshape(self.turned)
        return np.transpose(turned, np.argsort(self.axes)).ravel()


def _selection(parts: Sequence[_Part], n_rows: int, dtype: Any) -> Any:
    """Return a matrix of zeros and ones: for each row of the grid, its row in the small
    matrix of each part.

    Dense where memory allows it, which is quicker; a column with very many levels needs
    a sparse one.
    """
    starts = np.cumsum([0, *(part.n_rows for part in parts)])
    shape = (n_rows, int(starts[-1]))
    selection: Any = csr_array(shape, dtype=dtype)
    if parts:
        columns = [start + part.row for start, part in zip(starts, parts, strict=False)]
        rows = np.tile(np.arange(n_rows), len(parts))
        ones = np.ones(len(rows), dtype=dtype)
        selection = csr_array((ones, (rows, np.concatenate(columns))), shape=shape)
    return selection.toarray() if math.prod(shape) <= MOST_SELECTED else selection


class _Dual:
    """The dual problem: its value and gradient at given multipliers."""

    def __init__(
        self,
        grid: CellGrid,
        views: Sequence[Observation],
        nodes: Sequence[Observation],
        totals: FloatArray,
        base: FloatArray,
    ) -> None:
        self.grid = grid
        self.nodes = nodes
        self.totals = totals
        self.parts = [_Part(grid, view) for view in views]
        observed = [*views, *nodes]
        self.counts = np.concatenate([own.counts for own in observed])
        self.variances = np.concatenate([own.variances for own in observed])
        ends = np.cumsum([len(own.counts) for own in observed])
        self.ends = ends[:-1]
        # in single precision line searches fail near the solution; for more cells
        # double precision is slower, no better
        is_large = base.size > FEW_CELLS // 16
        self.base: NDArray[Any] = base.astype(np.float32 if is_large else np.float64)
        self.select = _selection(self.parts, len(self.base), self.base.dtype)

    def table(self, multipliers: FloatArray) -> tuple[NDArray[Any], float]:
        """Return the expected counts at these multipliers, and the logarithm of their
        normaliser.
        """
        pieces = np.split(multipliers, self.ends)
        log_table = self.base.copy()
        if self.parts:
            small = [
                part.to_grid(piece)[:, part.column]
                for part, piece in zip(self.parts, pieces, strict=False)
            ]
            log_table += self.select @ np.concatenate(small).astype(log_table.dtype)
        of_nodes = pieces[len(self.parts) :]
        for observed, piece in zip(self.nodes, of_nodes, strict=True):
            own = piece.astype(log_table.dtype)[observed.group]
            log_table += own.reshape(log_table.shape)
        return self._normalised(log_table)

    def _normalised(self, log_table: NDArray[Any]) -> tuple[NDArray[Any], float]:
        by_public = log_table.reshape(len(self.totals), -1)
        largest = by_public.max(axis=1, keepdims=True)
        by_public -= np.where(np.isfinite(largest), largest, 0)
        np.exp(by_public, out=by_public)
        sums = by_public.sum(axis=1, dtype=np.float64)
        filled = (self.totals > 0) & (sums > 0)
        factor = np.divide(self.totals, sums, out=np.zeros_like(sums), where=filled)
        by_public *= factor[:, None].astype(log_table.dtype)
        logs = np.log(sums[filled]) + largest[filled, 0]
        normaliser = self.totals[filled] @ logs
        return by_public.reshape(log_table.shape), float(normaliser)

    def margins(self, table: NDArray[Any]) -> FloatArray:
        """Return the expected counts of all groups."""
        margins = []
        first = 0
        summed = self.select.T @ table
        for part in self.parts:
            end = first + part.n_rows
            margins.append(part.from_grid(summed[first:end]))
            first = end
        for observed in self.nodes:
            sums = np.bincount(
                observed.group,  # type: ignore[arg-type]
                weights=table.ravel(),
                minlength=len(observed.counts),
            )
            margins.append(sums)
        return np.concatenate(margins)


def log_independent(
    grid: CellGrid, margins: Sequence[FloatArray], spread: Sequence[float]
) -> FloatArray:
    """Return the logarithm of the table of independent columns, up to a constant; -inf
    for impossible cells.

    ``spread`` is the standard deviation of each noisy margin's counts; no level is
    taken to be rarer than that.
    """
    sides = [np.zeros(grid.domain.size_of(half)) for half in grid.halves]
    for half, columns in enumerate(grid.halves):
        for j in columns:
            if j in grid.domain.public:
                continue
            raised = np.maximum(margins[j], max(spread[j], 1e-6))
            log_share = np.log(raised / raised.sum())
            level = grid.side(half, (j,))
            sides[half] += log_share[level]
    log_table = np.add.outer(*sides)
    return np.where(grid.possible(), log_table, -np.inf)


def curvature(
    domain: Domain,
    views: Sequence[Observation],
    margins: FloatArray,
    totals: FloatArray,
) -> FloatArray:
    """Return the covariance matrix of which cells of the views a record falls into,
    times the number of records.

    Of independent columns with the one-way shares of ``margins``, the expected counts
    of all views, one after the other; given the public columns. Cells without an
    expected count get none.
    """
    ends = np.cumsum([len(view.counts) for view in views])
    pieces = np.split(margins, ends[:-1])
    levels = [_levels_of_cells(domain, view) for view in views]
    shares = _one_way_shares(domain, levels, pieces)
    chances = list[FloatArray]()
    for own, piece in zip(levels, pieces, strict=True):
        own_shares = [shares[j][level] for j, level in own.items()]
        chances.append(np.prod(own_shares, axis=0) * (piece > 0))
    n = totals.sum()

    def covariance(one: int, other: int) -> FloatArray:
        by_chance = np.outer(chances[one], chances[other])
        together = np.ones_like(by_chance)
        given_public = np.ones((1, 1))
        for j in levels[one].keys() & levels[other].keys():
            level = levels[other][j]
            is_same = levels[one][j][:, None] == level
            ratio = is_same / shares[j][level]
            together *= ratio
            if j in domain.public:
                given_public = given_public * ratio
        return by_chance * (together - given_public) * n

    numbers = range(len(views))
    rows = [[covariance(i, j) for j in numbers] for i in numbers]
    return np.block(rows)


def _one_way_shares(
    domain: Domain,
    levels: Sequence[dict[int, IntArray]],
    pieces: Sequence[FloatArray],
) -> dict[int, FloatArray]:
    shares = dict[int, FloatArray]()
    for own, piece in zip(levels, pieces, strict=True):
        for j, level in own.items():
            n_levels = int(domain.sizes[j])
            margin = np.bincount(level, weights=piece, minlength=n_levels) + 1e-9
            shares.setdefault(j, margin / margin.sum())
    return shares


def _levels_of_cells(domain: Domain, view: Observation) -> dict[int, IntArray]:
    """Return the level of each column that each cell of a view has."""
    sizes = [int(domain.sizes[j]) for j in view.columns]
    levels = np.indices(sizes).reshape(len(sizes), -1)
    return dict(zip(view.columns, levels, strict=True))


def curvature_at(
    grid: CellGrid, views: Sequence[Observation], values: FloatArray
) -> FloatArray:
    """Return the covariance matrix of which cells of the views a record falls into,
    times the number of records, of records in cells with these expected counts.
    """
    order = [*grid.halves[0], *grid.halves[1]]
    table = values.reshape([int(grid.domain.sizes[j]) for j in order])
    margins = [_joint(table, order, grid.domain, view, view) for view in views]
    means = np.concatenate([np.diagonal(margin) for margin in margins])
    curved = np.outer(means, -means / values.sum())
    ends = np.cumsum([0, *(len(view.counts) for view in views)])
    places = [slice(*each) for each in pairwise(ends)]
    for place, margin in zip(places, margins, strict=True):
        curved[place, place] += margin
    for one, other in combinations(range(len(views)), 2):
        joint = _joint(table, order, grid.domain, views[one], views[other])
        curved[places[one], places[other]] += joint
        curved[places[other], places[one]] += joint.T
    return curved


def _joint(
    table: FloatArray,
    order: Sequence[int],
    domain: Domain,
    one: Observation,
    other: Observation,
) -> FloatArray:
    """Return how many records are in each two cells of two views."""
    columns = [j for j in order if j in one.columns or j in other.columns]
    left_out = tuple(axis for axis, j in enumerate(order) if j not in columns)
    both = Observation(table.sum(axis=left_out).ravel(), np.zeros(0), tuple(columns))
    levels = _levels_of_cells(domain, both)
    cells = []
    for view in (one, other):
        sizes = [int(domain.sizes[j]) for j in view.columns]
        own = tuple(levels[j] for j in view.columns)
        cells.append(np.ravel_multi_index(own, sizes))
    joint = np.zeros((len(one.counts), len(other.counts)))
    joint[cells[0], cells[1]] = both.counts
    return joint


@dataclass(frozen=True, eq=False)
class _Coordinates:
    """Coordinates in which the dual problem is about equally stiff everywhere: of each
    multiplier alone (``step``), or of all by a triangular matrix (``root``).
    """

    step: FloatArray
    root: FloatArray | None

    @classmethod
    def of(
        cls,
        dual: _Dual,
        views: Sequence[Observation],
        penalty: FloatArray,
        is_counted: BoolArray,
        near: FloatArray | None,
    ) -> "_Coordinates":
        start, _ = dual.table(np.zeros(len(dual.counts)))
        expected = dual.margins(start)
        largest = np.maximum(expected, dual.counts)
        sizes = np.maximum(largest, 0.0) + penalty
        is_free = is_counted & (sizes > 0)
        deviation = np.sqrt(np.maximum(sizes, 1e-9))
        step = np.where(is_free, 1 / deviation, 0.0)
        if not views or dual.nodes or len(sizes) > MOST_COUNTS:
            return cls(step, None)
        if near is None or len(dual.totals) > 1:
            curved = curvature(dual.grid.domain, views, expected, dual.totals)
        else:
            curved = near.copy()
        curved += np.diag(penalty)
        # where a count has no curvature at all, any positive number will do
        lifted = np.where(np.diag(curved) > 0, 1e-9, 1.0)
        return cls(step, cholesky(curved + np.diag(lifted), lower=True))

    def multipliers(self, coordinates: FloatArray) -> FloatArray:
        """Return the multipliers at some coordinates."""
        if self.root is None:
            return coordinates * self.step
        return self._solved(self.root, coordinates, transposed=True) * (self.step > 0)

    def of_multipliers(self, multipliers: FloatArray) -> FloatArray:
        """Return the coordinates of multipliers."""
        if self.root is not None:
            return self.root.T @ multipliers
        steps = np.where(self.step > 0, self.step, 1.0)
        return multipliers / steps

    def slope(self, slope: FloatArray) -> FloatArray:
        """Return the slope by coordinates, from that by multipliers."""
        if self.root is None:
            return slope * self.step
        free = slope * (self.step > 0)
        return self._solved(self.root, free, transposed=False) * (self.step > 0)

    def _solved(
        self, root: FloatArray, values: FloatArray, *, transposed: bool
    ) -> FloatArray:
        solved: FloatArray = solve_triangular(
            root, values, lower=True, trans=int(transposed), check_finite=False
        )
        return solved


class TableFit(NamedTuple):
    """The expected counts of all cells, in the order of the grid, whether the solver
    arrived there, and the multipliers of all counts.
    """

    values: FloatArray
    arrived: bool
    multipliers: FloatArray


@dataclass(frozen=True, eq=False)
class Start:
    """Where a solver ended for like counts: the multipliers, and the curvature there,
    or None where it would be too large.
    """

    multipliers: FloatArray
    curved: FloatArray | None

    @classmethod
    def at(
        cls, grid: CellGrid, views: Sequence[Observation], fitted: TableFit
    ) -> "Start":
        """Return where a fit ended."""
        n_counts = sum(len(view.counts) for view in views)
        curved = None
        if n_counts == len(fitted.multipliers) <= MOST_COUNTS:
            curved = curvature_at(grid, views, fitted.values)
        return cls(fitted.multipliers, curved)


def fit(
    grid: CellGrid,
    views: Sequence[Observation],
    nodes: Sequence[Observation],
    *,
    totals: FloatArray,
    base: FloatArray,
    ridge: float = RIDGE,
    start: "Start | None" = None,
) -> TableFit:
    """Return the table of maximum entropy.

    ``views`` are noisy cross-tabulations, ``nodes`` other partitions, ``totals`` the
    number of records of each combination of public levels, and ``base`` the logarithm
    of the table to stay close to. The solver begins at ``start``, where it ended for
    like counts; left out, at ``base``.
    """
    dual = _Dual(grid, views, nodes, totals, base)
    is_counted = np.isfinite(dual.variances)
    least = SMALLEST_PENALTY if grid.domain.n_cells > FEW_CELLS else 0.0
    weighted = ridge * np.where(is_counted, dual.variances, 0.0)
    penalty = np.where(is_counted, np.maximum(weighted, least), 0.0)
    near = None if start is None else start.curved
    turned = _Coordinates.of(dual, views, penalty, is_counted, near)

    def value(coordinates: FloatArray) -> tuple[float, FloatArray]:
        multipliers = turned.multipliers(coordinates)
        table, normaliser = dual.table(multipliers)
        slope = dual.margins(table) - dual.counts + penalty * multipliers
        linear = multipliers @ (dual.counts - 0.5 * penalty * multipliers)
        return normaliser - float(linear), turned.slope(slope)

    options = {"maxiter": MOST_ITERATIONS, "maxcor": 20, "gtol": 1e-2}
    place = np.zeros(len(dual.counts))
    if start is not None:
        place = turned.of_multipliers(start.multipliers)
    has_arrived = False
    for tolerance in TOLERANCES:
        options["ftol"] = tolerance
        solution = minimize(value, place, jac=True, method="L-BFGS-B", options=options)
        place = solution.x
        multipliers = turned.multipliers(place)
        table, _ = dual.table(multipliers)
        off = dual.margins(table) - dual.counts + penalty * multipliers
        farthest = np.abs(off * turned.step).max(initial=0.0)
        has_arrived = bool(farthest <= FARTHEST)
        if has_arrived:
            break
    return TableFit(table.ravel().astype(np.float64), has_arrived, multipliers)
