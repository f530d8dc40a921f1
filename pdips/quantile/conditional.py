"""Columns drawn from released statistics, given columns that are drawn already:
post-processing, all of it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.encoding import Box, Scale, Values
from pdips.data.schema import Column, Schema

Between = Literal["interpolate", "quantile"]

# Records whose values at all quantiles are held at once
CHUNK = 65_536
# Neighbours among which numbers are spread evenly
BLOCK = 64
# A tail's rate follows from the last quantile and the one so many times as far from 1
TAIL = 4
LEAST_LEFT = 1e-12
# Of a histogram's variance, that a line leaves of it
LEAST_VARIANCE = 1 / 100

Draw = Callable[[Values, int, np.random.Generator], FloatArray]
"""Draws n values of a column, given others: codes of levels, or numbers, NaN for
missing.
"""


@dataclass(frozen=True)
class RecordGroups:
    """Records sorted into groups by columns: by level, or by the interval of a number
    between the given cuts.
    """

    schema: Schema
    cuts: Mapping[str, FloatArray]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of groups by each column."""
        sizes = []
        for name, cuts in self.cuts.items():
            column = self.schema.columns[name]
            n_intervals = len(cuts) + 1 + bool(column.missing)
            sizes.append(column.n_levels if column.is_categorical else n_intervals)
        return tuple(sizes)

    @property
    def n(self) -> int:
        return int(np.prod(self.sizes, dtype=np.int64))

    def of(self, values: Values, n: int) -> IntArray:
        """Return the group of each of n records."""
        group = np.zeros(n, dtype=np.int64)
        for (name, cuts), size in zip(self.cuts.items(), self.sizes, strict=True):
            codes = values[name]
            if not self.schema.columns[name].is_categorical:
                interval = np.searchsorted(cuts, codes, side="right")
                codes = np.where(np.isnan(codes), size - 1, interval)
            group = group * size + codes.astype(np.int64)
        return group


def level_draw(groups: RecordGroups, weights: FloatArray) -> Draw:
    """Return what draws codes by released weights, shape (groups, levels)."""

    def draw(given: Values, n: int, rng: np.random.Generator) -> FloatArray:
        cumulative = weights.cumsum(axis=1)[groups.of(given, n)]
        position = rng.random(n) * cumulative[:, -1]
        n_below = (cumulative <= position[:, None]).sum(axis=1)
        level = np.minimum(n_below, weights.shape[1] - 1)
        return np.asarray(level, dtype=np.float64)

    return draw


def line_draw(
    column: Column, box: Box, taus: FloatArray, lines: FloatArray, between: Between
) -> Draw:
    """Return what draws numbers from lines at increasing quantiles, shape (quantiles, p
    + 1).

    Either by the inverse of a distribution function that is straight between quantiles
    and exponential beyond the last (Huckett and Larsen 2007), or as the first quantile
    that isn't below a uniform number, as in Tran et al. (2023). Outside of the box,
    where lines might cross, all of them run alongside the median.
    """
    scale = Scale(column)
    median = lines[int(np.argmin(np.abs(taus - 0.5)))]
    last = len(taus) - 1

    def draw(given: Values, n: int, rng: np.random.Generator) -> FloatArray:
        position = even(n, rng)
        free = np.ones((n, 1 + box.n_predictors))
        free[:, 1:] = box.matrix(given, clamp=False) if box.names else 0.0
        inside = np.clip(free, -1, 1)
        beyond = (free - inside) @ median
        if between == "quantile":
            first = np.minimum(np.searchsorted(taus, position), last)
            heights = (inside * lines[first]).sum(axis=1)
            return scale.back(heights + beyond)
        drawn = np.empty(n)
        for start in range(0, n, CHUNK):
            rows = slice(start, start + CHUNK)
            values = np.sort(inside[rows] @ lines.T, axis=1)
            drawn[rows] = quantile_values(values, taus, position[rows], scale.bounds)
        return scale.back(drawn + beyond)

    return draw


def quantile_values(
    values: FloatArray,
    taus: FloatArray,
    position: FloatArray,
    bounds: tuple[float, float],
) -> FloatArray:
    """Return the inverse of distribution functions that are known at some quantiles,
    one a row, within bounds.
    """
    rows = np.arange(len(values))
    last = len(taus) - 1
    if last == 0:
        return np.clip(values[:, 0], *bounds)
    right = np.clip(np.searchsorted(taus, position), 1, last)
    left = right - 1
    low = values[rows, left]
    rise = values[rows, right] - low
    inner = low + rise * (position - taus[left]) / (taus[right] - taus[left])
    # beyond the last quantile, an exponential tail through an earlier one
    beyond = 1 - taus[-1]
    back = min(int(np.searchsorted(taus, 1 - TAIL * beyond)), last - 1)
    highest = values[:, -1]
    rate = (highest - values[:, back]) / np.log((1 - taus[back]) / beyond)
    left_over = np.maximum(1 - position, LEAST_LEFT)
    tail = highest + rate * np.log(beyond / left_over)
    return np.clip(np.where(position > taus[-1], tail, inner), *bounds)


def residual_draw(
    column: Column, box: Box, line: FloatArray, edges: FloatArray, weights: FloatArray
) -> Draw:
    """Return what draws numbers that are a line, shape (p + 1,), plus a draw from a
    histogram of residuals.
    """
    scale = Scale(column)
    cumulative = np.concatenate([[0.0], np.cumsum(weights)])

    def draw(given: Values, n: int, rng: np.random.Generator) -> FloatArray:
        fitted = np.full(n, line[0])
        if box.names:
            fitted += box.matrix(given, clamp=False) @ line[1:]
        # neighbours in the order of the line fill the histogram evenly
        order = np.argsort(fitted, kind="stable")
        position = even(n, rng) * cumulative[-1]
        residual = np.empty(n)
        residual[order] = np.interp(position, cumulative, edges)
        return scale.back(np.clip(fitted + residual, *scale.bounds))

    return draw


def ranked_draw(
    column: Column, box: Box, line: FloatArray, edges: FloatArray, weights: FloatArray
) -> Draw:
    """Return what draws numbers from a histogram, in the order of a line plus normal
    residuals.

    The residuals have what variance the line leaves of the histogram's. A line of more
    than that is noise, and unused.
    """
    scale = Scale(column)
    cumulative = np.concatenate([[0.0], np.cumsum(weights)])
    middle = (edges[1:] + edges[:-1]) / 2
    shares = weights / weights.sum()
    variance = shares @ (middle - shares @ middle) ** 2

    def draw(given: Values, n: int, rng: np.random.Generator) -> FloatArray:
        if not n:
            return np.zeros(0)
        fitted = box.matrix(given, clamp=False) @ line[1:]
        explained = float(fitted.var())
        if not explained < variance:
            fitted = np.zeros(n)
            explained = 0.0
        left = max(variance - explained, variance * LEAST_VARIANCE)
        ranks = fitted + math.sqrt(left) * rng.standard_normal(n)
        order = np.argsort(ranks, kind="stable")
        position = (np.arange(n) + rng.random(n)) / n
        drawn = np.empty(n)
        drawn[order] = np.interp(position * cumulative[-1], cumulative, edges)
        return scale.back(drawn)

    return draw


def even(n: int, rng: np.random.Generator) -> FloatArray:
    """Return n numbers in (0, 1) that fill it evenly, as do those of every 64
    neighbours, in random order.
    """
    if not n:
        return np.zeros(0)
    n_blocks = -(-n // BLOCK)
    # which of its stratum's parts
    fine = rng.permuted(np.tile(np.arange(n_blocks), (BLOCK, 1)), axis=1).T
    coarse = rng.permuted(np.tile(np.arange(BLOCK), (n_blocks, 1)), axis=1)
    cell = coarse * n_blocks + np.take_along_axis(fine, coarse, axis=1)
    numbers = (cell + rng.random(cell.shape)) / cell.size
    return numbers.ravel()[:n]
