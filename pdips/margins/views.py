"""Views: margins of a few columns each that together hold every pair of columns, chosen from public facts only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Literal

import numpy as np

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.margins.domain import Domain
from pdips.privacy.curator import noisy_counts
from pdips.privacy.noise import RandomBits, discrete_laplace_variance
from pdips.privacy.plan import Step

Columns = tuple[int, ...]

SHARE_STEPS = 100
"""The budget is divided among views in multiples of one part in about this many."""

SMALLEST_CAP, LARGEST_CAP = 16, 16_384
"""Cells of a view: the covering designs that are compared have views of up to 16, 32, 64, ... cells."""

SMALLEST_VARIANCE = 1e-30
"""Stands in for the variance of noise so small that its reciprocal would overflow; only its ratio to others matters."""


def count_variance(scale: Fraction | None) -> float:
    """Return the variance of a count with discrete Laplace noise of this scale; infinite without a count (None)."""
    return math.inf if scale is None else max(discrete_laplace_variance(scale), SMALLEST_VARIANCE)


@dataclass(frozen=True)
class View:
    """The cross-tabulation of a few columns, given by their positions, which a step counts with noise."""

    domain: Domain
    columns: Columns
    step: Step

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of levels."""
        return tuple(int(self.domain.sizes[column]) for column in self.columns)

    @property
    def n_cells(self) -> int:
        """Number of cells, structural zeros included."""
        return math.prod(self.sizes)

    def n_summed(self, columns: Sequence[int]) -> int:
        """Return how many cells of the view add up to one of a margin of some of its columns."""
        return self.n_cells // self.domain.size_of(columns)

    def fresh_noise(self, rng: np.random.Generator) -> IntArray:
        """Return noise of the step's law on the cells that can be: on top of what was measured, never in its place."""
        noise = noisy_counts(np.zeros(self.n_cells, dtype=np.int64), None, self.step, RandomBits(rng))[0]
        return np.where(self.possible(), noise, 0)

    @property
    def variance(self) -> float:
        """The variance of the noise on a cell, in squared records."""
        return self.step.standard_deviation**2 if self.step.law == "gaussian" else count_variance(self.step.scale)

    def margin_variance(self, columns: Sequence[int]) -> float:
        """Return the variance of the noise in a cell of a margin, in squared records."""
        return self.n_summed(columns) * self.variance

    def find(self, codes: IntArray) -> IntArray:
        """Return the cell that each record, given by its levels, falls into."""
        found: IntArray = np.ravel_multi_index(tuple(codes[:, column] for column in self.columns), self.sizes)
        return found

    def levels(self) -> dict[int, IntArray]:
        """Return the level of each column in each cell."""
        grid = np.indices(self.sizes).reshape(len(self.columns), -1)
        return dict(zip(self.columns, grid, strict=True))

    def possible(self) -> BoolArray:
        """Return which cells no structural zero rules out by itself."""
        return self.domain.possible_cells(self.columns).ravel()


def choose_views(domain: Domain, law: Literal["laplace", "gaussian"] = "laplace") -> dict[Columns, Fraction]:
    """Return views that together hold every pair of columns, and the share of the budget of each.

    Fewer, larger views leave more budget to each but spread a pair's count over more cells. Among covering designs with
    views of different size the one is taken for which the noise in all two-way margins, added up, is least; the budget
    is divided so that it is. All of it follows from the numbers of levels.

    Notes
    -----
    A pair's margin in a view of c cells has, in each of its k cells, noise of standard deviation proportional to
    sqrt(c / k) / share; over its cells that adds up to sqrt(c k) / share. With a_v the sum over the pairs that view v
    is the first to hold, sum_v a_v / share_v is least for shares proportional to sqrt(a_v), where it is
    (sum_v sqrt(a_v))^2. Gaussian noise falls with the square root of a share of rho: then shares are proportional to
    a_v^(2/3), and the sum is (sum_v a_v^(2/3))^(3/2). Views for pairs: Qardaji, Yang and Li (2014), PriView.
    """
    public = frozenset(map(int, domain.public))
    return dict(
        _shares(
            tuple(map(int, domain.sizes)), public, (SMALLEST_CAP, LARGEST_CAP), 1 / 2 if law == "laplace" else 2 / 3
        )
    )


@lru_cache(maxsize=16)
def _shares(sizes: Columns, public: frozenset[int], caps: tuple[int, int], power: float) -> dict[Columns, Fraction]:
    """Return what :func:`choose_views` does: numbers of levels, public columns, range of caps, power of a_v."""
    if len(sizes) == 1:
        return {(0,): Fraction(1)}
    bits = range(caps[0].bit_length() - 1, caps[1].bit_length())
    designs = [{view: a**power for view, a in _cover(sizes, public, 2**bit).items()} for bit in bits]
    best = min(designs, key=lambda design: sum(design.values()))
    weight = {view: max(round(SHARE_STEPS * part / sum(best.values())), 1) for view, part in best.items()}
    return {view: Fraction(part, sum(weight.values())) for view, part in weight.items()}


def _cover(sizes: Columns, public: frozenset[int], cap: int) -> dict[Columns, float]:
    """Cover all pairs greedily by views of at most ``cap`` cells (more for a pair that has more), with their a_v."""
    open_: set[tuple[int, int]] = {pair for pair in combinations(range(len(sizes)), 2) if not set(pair) <= public}
    found: dict[Columns, float] = {}
    while open_:
        widest = max(open_, key=lambda pair: (sizes[pair[0]] * sizes[pair[1]], pair))
        view = list(widest)
        while (column := _best_addition(view, open_, sizes, cap)) is not None:
            view.append(column)
        columns = tuple(sorted(view))
        new = open_ & set(combinations(columns, 2))
        n_cells = math.prod(sizes[column] for column in columns)
        found[columns] = sum(math.sqrt(n_cells * sizes[i] * sizes[j]) for i, j in new)
        open_ -= new
    return found


def _best_addition(view: list[int], open_: set[tuple[int, int]], sizes: Columns, cap: int) -> int | None:
    """Return the column that covers the most open pairs for the cells that it costs, if one fits."""
    n_cells = math.prod(sizes[column] for column in view)

    def gain(column: int) -> float:
        n_new = sum((min(column, other), max(column, other)) in open_ for other in view)
        return n_new / math.log(max(sizes[column], 2))

    fitting = [column for column in range(len(sizes)) if column not in view and n_cells * sizes[column] <= cap]
    best = max(fitting, key=gain, default=None)
    return best if best is not None and gain(best) else None


def one_way_margins(views: Sequence[View], counts: Sequence[FloatArray]) -> tuple[list[FloatArray], float]:
    """Return the one-way margins of noisy views, averaged by inverse variance, and the total in the same way."""
    margins, totals, weights = [], [], []
    for column, size in enumerate(views[0].domain.sizes):
        estimate, precision = np.zeros(int(size)), 0.0
        for view, count in zip(views, counts, strict=True):
            if column in view.columns:
                others = tuple(axis for axis, j in enumerate(view.columns) if j != column)
                weight = 1 / view.margin_variance((column,))
                estimate += weight * count.reshape(view.sizes).sum(axis=others)
                precision += weight
        margins.append(estimate / precision if precision else np.full(int(size), np.nan))
        totals.append(estimate.sum() / precision if precision else 0.0)
        weights.append(precision)
    return margins, float(np.average(totals, weights=weights))
