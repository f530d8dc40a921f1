"""The full table of maximum entropy that agrees with noisy counts as far as their noise lets it. Post-processing only.

Given noisy counts y of groups of cells with variances v, the table of expected counts x minimises

    RIDGE * sum x log(x / x0) + sum (y - A x)^2 / (2 v),

where A adds up the groups and x0 is the table in which columns are independent, with their noisy one-way margins. What
the noise can't tell from independence stays independent; what it can is taken over. The dual problem has one number for
each noisy count and is solved by L-BFGS, in coordinates in which its curvature would be even were columns independent:
what margins say together of columns that they share is stiff, and what sets them apart there is slack. The table itself
is held as a matrix of two halves of the columns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
"""Weight times variance is at least SMALLEST_PENALTY records where there are more cells than this: at less the solver
gets no closer to the counts in bearable time."""

MOST_DENSE = 2**24  # Cells that are held as one matrix; about 12 bytes each
MOST_ITERATIONS = 1_000
FARTHEST = 0.1  # Distance of a count from where it belongs, in square roots of it, at which the solver has arrived
MOST_COUNTS = 4_096  # With more noisy counts, or below a tree, coordinates take account of the size of each alone
MOST_SELECTED = 2**26  # Entries of a dense matrix that picks rows; 4 bytes each


@dataclass(frozen=True)
class Observation:
    """Noisy counts of a partition of the cells, with the variances of their noise, infinite if not counted."""

    counts: FloatArray
    variances: FloatArray
    columns: tuple[int, ...] = ()  # The groups are the cross-tabulation of these columns
    group: NDArray[np.int32] | None = None  # In place of columns: the group of each cell, in the order of the grid


@dataclass(frozen=True)
class CellGrid:
    """All cells of a domain as a matrix: rows are the levels of one half of the columns, the public ones first."""

    domain: Domain

    @cached_property
    def halves(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Columns of the rows and of the columns of the matrix, of about equal numbers of levels."""
        sizes = [int(size) for size in self.domain.sizes]
        public = [int(column) for column in self.domain.public]
        rest = sorted((j for j in range(len(sizes)) if j not in public), key=lambda j: -sizes[j])
        left, right = list(public), list[int]()
        for column in rest:
            (left if self.domain.size_of(left) <= self.domain.size_of(right) else right).append(column)
        return tuple(left), tuple(right)

    def levels(self, cell: IntArray, column: int) -> IntArray:
        return self.domain.level(cell, column, [*self.halves[0], *self.halves[1]])

    def side(self, half: int, columns: Sequence[int]) -> IntArray:
        """Return, for each row (half 0) or column (1) of the matrix, its cell in the cross-tabulation of columns."""
        own = self.halves[half]
        n = self.domain.size_of(own)
        index, found, after = np.arange(n), np.zeros(n, dtype=np.int64), n
        for j in own:
            after //= int(self.domain.sizes[j])
            if j in columns:
                found = found * self.domain.sizes[j] + index // after % self.domain.sizes[j]
        return found

    def possible(self) -> BoolArray:
        """Return which cells no structural zero rules out, as a matrix."""
        shape = tuple(self.domain.size_of(half) for half in self.halves)

        def level_of(column: int) -> IntArray:
            half = int(column in self.halves[1])
            return np.expand_dims(self.side(half, (column,)), 1 - half)

        return np.ones(shape, dtype=bool) & self.domain.possible(level_of)


class _Part:
    """One observation on the grid: rows and columns of its own small matrix for each row and column of the grid."""

    def __init__(self, grid: CellGrid, observed: Observation) -> None:
        order = [j for half in grid.halves for j in half if j in observed.columns]
        self.shape = tuple(int(grid.domain.sizes[j]) for j in observed.columns)
        self.n_rows = grid.domain.size_of(j for j in grid.halves[0] if j in observed.columns)
        self.n_columns = math.prod(self.shape) // self.n_rows
        self.axes = tuple(observed.columns.index(j) for j in order)
        self.turned = tuple(self.shape[axis] for axis in self.axes)
        self.row, self.column = grid.side(0, observed.columns), grid.side(1, observed.columns)
        self.order = np.argsort(self.column, kind="stable")
        self.starts = np.searchsorted(self.column[self.order], np.arange(self.n_columns))

    def to_grid(self, values: FloatArray) -> FloatArray:
        """Return values of the groups as a matrix, one row for each row of the small matrix."""
        return np.transpose(values.reshape(self.shape), self.axes).reshape(self.n_rows, self.n_columns)

    def from_grid(self, block: NDArray[Any]) -> FloatArray:
        """Add up grid columns by the column of the small matrix that they belong to, and undo :meth:`to_grid`."""
        sums = np.add.reduceat(block[:, self.order], self.starts, axis=1, dtype=np.float64)
        return np.transpose(sums.reshape(self.turned), np.argsort(self.axes)).ravel()


def _selection(parts: Sequence[_Part], n_rows: int, dtype: Any) -> Any:
    """Return a matrix of zeros and ones: for each row of the grid, its row in the small matrix of each part.

    Dense where memory allows it, which is quicker; a column with very many levels needs a sparse one.
    """
    starts = np.cumsum([0, *(part.n_rows for part in parts)])
    shape = (n_rows, int(starts[-1]))
    found: Any = csr_array(shape, dtype=dtype)
    if parts:
        columns = np.concatenate([start + part.row for start, part in zip(starts, parts, strict=False)])
        rows = np.tile(np.arange(n_rows), len(parts))
        found = csr_array((np.ones(len(rows), dtype=dtype), (rows, columns)), shape=shape)
    return found.toarray() if math.prod(shape) <= MOST_SELECTED else found


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
        self.grid, self.nodes, self.totals = grid, nodes, totals
        self.parts = [_Part(grid, view) for view in views]
        self.counts = np.concatenate([observed.counts for observed in (*views, *nodes)])
        self.variances = np.concatenate([observed.variances for observed in (*views, *nodes)])
        self.ends = np.cumsum([len(observed.counts) for observed in (*views, *nodes)])[:-1]
        # in single precision line searches fail near the solution; for more cells double precision is slower, no better
        self.base: NDArray[Any] = base.astype(np.float32 if base.size > FEW_CELLS // 16 else np.float64)
        self.select = _selection(self.parts, len(self.base), self.base.dtype)

    def table(self, multipliers: FloatArray) -> tuple[NDArray[Any], float]:
        """Return the expected counts at these multipliers, and the logarithm of their normaliser."""
        pieces = np.split(multipliers, self.ends)
        log_table = self.base.copy()
        if self.parts:
            small = [p.to_grid(piece)[:, p.column] for p, piece in zip(self.parts, pieces, strict=False)]
            log_table += self.select @ np.concatenate(small).astype(log_table.dtype)
        for observed, piece in zip(self.nodes, pieces[len(self.parts) :], strict=True):
            log_table += piece.astype(log_table.dtype)[observed.group].reshape(log_table.shape)
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
        normaliser = self.totals[filled] @ (np.log(sums[filled]) + largest[filled, 0])
        return by_public.reshape(log_table.shape), float(normaliser)

    def margins(self, table: NDArray[Any]) -> FloatArray:
        """Return the expected counts of all groups."""
        found, first = [], 0
        summed = self.select.T @ table
        for part in self.parts:
            found.append(part.from_grid(summed[first : first + part.n_rows]))
            first += part.n_rows
        for observed in self.nodes:
            found.append(np.bincount(observed.group, weights=table.ravel(), minlength=len(observed.counts)))  # type: ignore[arg-type]
        return np.concatenate(found)


def log_independent(grid: CellGrid, margins: Sequence[FloatArray], spread: Sequence[float]) -> FloatArray:
    """Return the logarithm of the table of independent columns, up to a constant; -inf for impossible cells.

    ``spread`` is the standard deviation of each noisy margin's counts; no level is taken to be rarer than that.
    """
    sides = [np.zeros(grid.domain.size_of(half)) for half in grid.halves]
    for half, columns in enumerate(grid.halves):
        for j in columns:
            share = np.maximum(margins[j], max(spread[j], 1e-6)) if j not in grid.domain.public else np.ones(1)
            sides[half] += np.log(share / share.sum())[grid.side(half, (j,)) if len(share) > 1 else 0]
    return np.where(grid.possible(), sides[0][:, None] + sides[1][None], -np.inf)


def curvature(domain: Domain, views: Sequence[Observation], margins: FloatArray, totals: FloatArray) -> FloatArray:
    """Return the covariance matrix of which cells of the views a record falls into, times the number of records.

    Of independent columns with the one-way shares of ``margins``, the expected counts of all views, one after the
    other; given the public columns. Cells without an expected count get none.
    """
    shapes = [tuple(int(domain.sizes[j]) for j in view.columns) for view in views]
    levels = [
        dict(zip(v.columns, np.indices(s).reshape(len(s), -1), strict=True)) for v, s in zip(views, shapes, strict=True)
    ]
    pieces = np.split(margins, np.cumsum([len(view.counts) for view in views])[:-1])
    shares: dict[int, FloatArray] = {}
    for held, piece in zip(levels, pieces, strict=True):
        for j, level in held.items():
            one = np.bincount(level, weights=piece, minlength=int(domain.sizes[j])) + 1e-9
            shares.setdefault(j, one / one.sum())
    chances = [
        np.prod([shares[j][level] for j, level in held.items()], axis=0) * (piece > 0)
        for held, piece in zip(levels, pieces, strict=True)
    ]

    def block(one: int, other: int) -> FloatArray:
        together, given = np.ones((len(chances[one]), len(chances[other]))), np.ones((1, 1))
        for j in levels[one].keys() & levels[other].keys():
            same = (levels[one][j][:, None] == levels[other][j]) / shares[j][levels[other][j]]
            together *= same
            given = given * same if j in domain.public else given
        return np.outer(chances[one], chances[other]) * (together - given) * totals.sum()

    everyone = range(len(views))
    return np.block([[block(one, other) for other in everyone] for one in everyone])


def fit(
    grid: CellGrid,
    views: Sequence[Observation],
    nodes: Sequence[Observation],
    *,
    totals: FloatArray,
    base: FloatArray,
    ridge: float = RIDGE,
) -> tuple[FloatArray, bool]:
    """Return the expected counts of all cells, in the order of the grid, and whether the solver arrived there.

    ``views`` are noisy cross-tabulations, ``nodes`` other partitions, ``totals`` the number of records of each
    combination of public levels, and ``base`` the logarithm of the table to stay close to.
    """
    dual = _Dual(grid, views, nodes, totals, base)
    seen = np.isfinite(dual.variances)
    start, _ = dual.table(np.zeros(len(dual.counts)))
    least = SMALLEST_PENALTY if grid.domain.n_cells > FEW_CELLS else 0.0
    penalty = np.where(seen, np.maximum(ridge * np.where(seen, dual.variances, 0.0), least), 0.0)
    expected = dual.margins(start)
    sizes = np.maximum(np.maximum(expected, dual.counts), 0.0) + penalty
    step = np.where(seen & (sizes > 0), 1 / np.sqrt(np.maximum(sizes, 1e-9)), 0.0)
    root = None
    if views and not nodes and len(sizes) <= MOST_COUNTS:
        even = curvature(grid.domain, views, expected, totals) + np.diag(penalty)
        root = cholesky(even + np.diag(np.where(np.diag(even) > 0, 1e-9, 1.0)), lower=True)

    def turned(values: FloatArray, *, back: bool) -> FloatArray:
        if root is None:
            return values * step
        values = values * (step > 0) if back else values
        moved: FloatArray = solve_triangular(root, values, lower=True, trans=int(not back), check_finite=False)
        return moved * (step > 0)

    def value(coordinates: FloatArray) -> tuple[float, FloatArray]:
        multipliers = turned(coordinates, back=False)
        table, normaliser = dual.table(multipliers)
        slope = dual.margins(table) - dual.counts + penalty * multipliers
        reached = normaliser - float(multipliers @ (dual.counts - 0.5 * penalty * multipliers))
        return reached, turned(slope, back=True)

    found = minimize(
        value,
        np.zeros(len(dual.counts)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": MOST_ITERATIONS, "maxcor": 20, "ftol": 1e-9, "gtol": 1e-2},
    )
    multipliers = turned(found.x, back=False)
    table, _ = dual.table(multipliers)
    slope = dual.margins(table) - dual.counts + penalty * multipliers
    return table.ravel().astype(np.float64), bool(np.abs(slope * step).max(initial=0.0) <= FARTHEST)
