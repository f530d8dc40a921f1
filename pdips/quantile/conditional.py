"""Columns drawn from released statistics, given columns that are drawn already: post-processing, all of it."""

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

Draw = Callable[[Values, int, np.random.Generator], FloatArray]
"""Draws n values of a column, given others: codes of levels, or numbers, NaN for missing."""


@dataclass(frozen=True)
class RecordGroups:
    """Records sorted into groups by columns: by level, or by the interval of a number between the given cuts."""

    schema: Schema
    cuts: Mapping[str, FloatArray]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of groups by each column."""
        columns = self.schema.columns
        return tuple(
            columns[name].n_levels if columns[name].is_categorical else len(cuts) + 1 + bool(columns[name].missing)
            for name, cuts in self.cuts.items()
        )

    @property
    def n(self) -> int:
        return int(np.prod(self.sizes, dtype=np.int64))

    def of(self, values: Values, n: int) -> IntArray:
        place = np.zeros(n, dtype=np.int64)
        for (name, cuts), size in zip(self.cuts.items(), self.sizes, strict=True):
            each = values[name]
            if not self.schema.columns[name].is_categorical:
                each = np.where(np.isnan(each), size - 1, np.searchsorted(cuts, each, side="right"))
            place = place * size + each.astype(np.int64)
        return place


def level_draw(groups: RecordGroups, weights: FloatArray) -> Draw:
    """Return what draws codes by released weights, shape (groups, levels)."""

    def draw(given: Values, n: int, rng: np.random.Generator) -> FloatArray:
        cumulative = weights.cumsum(axis=1)[groups.of(given, n)]
        position = rng.random(n) * cumulative[:, -1]
        level = np.minimum((cumulative <= position[:, None]).sum(axis=1), cumulative.shape[1] - 1)
        return np.asarray(level, dtype=np.float64)

    return draw


def line_draw(column: Column, box: Box, taus: FloatArray, lines: FloatArray, between: Between) -> Draw:
    """Return what draws numbers from lines at increasing quantiles, shape (quantiles, p + 1).

    Either by the inverse of a distribution function that is straight between quantiles and exponential beyond the last
    (Huckett and Larsen 2007), or as the first quantile that isn't below a uniform number, as in Tran et al. (2023).
    Outside of the box, where lines might cross, all of them run alongside the median.
    """
    scale = Scale(column)

    def draw(given: Values, n: int, rng: np.random.Generator) -> FloatArray:
        position = even(n, rng)
        free = np.ones((n, 1 + box.n_predictors))
        free[:, 1:] = box.matrix(given, clamp=False) if box.names else 0.0
        inside = np.clip(free, -1, 1)
        beyond = (free - inside) @ lines[int(np.argmin(np.abs(taus - 0.5)))]
        if between == "quantile":
            chosen = lines[np.minimum(np.searchsorted(taus, position), len(taus) - 1)]
            return scale.back((inside * chosen).sum(axis=1) + beyond)
        drawn = np.empty(n)
        for start in range(0, n, 65_536):
            rows = slice(start, start + 65_536)
            values = np.sort(inside[rows] @ lines.T, axis=1)
            drawn[rows] = quantile_values(values, taus, position[rows], scale.bounds)
        return scale.back(drawn + beyond)

    return draw


def quantile_values(
    values: FloatArray, taus: FloatArray, position: FloatArray, bounds: tuple[float, float]
) -> FloatArray:
    """Return the inverse of distribution functions that are known at some quantiles, one a row, within bounds."""
    rows, last = np.arange(len(values)), len(taus) - 1
    if last == 0:
        return np.clip(values[:, 0], *bounds)
    right = np.clip(np.searchsorted(taus, position), 1, last)
    left = right - 1
    low, high = values[rows, left], values[rows, right]
    drawn = low + (high - low) * (position - taus[left]) / (taus[right] - taus[left])
    back = min(int(np.searchsorted(taus, 1 - 4 * (1 - taus[-1]))), last - 1)
    rate = (values[:, -1] - values[:, back]) / np.log((1 - taus[back]) / (1 - taus[-1]))
    tail = values[:, -1] + rate * np.log((1 - taus[-1]) / np.maximum(1 - position, 1e-12))
    return np.clip(np.where(position > taus[-1], tail, drawn), *bounds)


def residual_draw(column: Column, box: Box, line: FloatArray, edges: FloatArray, weights: FloatArray) -> Draw:
    """Return what draws numbers that are a line, shape (p + 1,), plus a draw from a histogram of residuals."""
    scale, cumulative = Scale(column), np.concatenate([[0.0], np.cumsum(weights)])

    def draw(given: Values, n: int, rng: np.random.Generator) -> FloatArray:
        fitted = np.full(n, line[0])
        if box.names:
            fitted += box.matrix(given, clamp=False) @ line[1:]
        residual = np.empty(n)
        residual[np.argsort(fitted, kind="stable")] = np.interp(even(n, rng) * cumulative[-1], cumulative, edges)
        return scale.back(np.clip(fitted + residual, *scale.bounds))

    return draw


def ranked_draw(column: Column, box: Box, line: FloatArray, edges: FloatArray, weights: FloatArray) -> Draw:
    """Return what draws numbers from a histogram, in the order of a line plus normal residuals.

    The residuals have what variance the line leaves of the histogram's. A line of more than that is noise, and unused.
    """
    scale, cumulative = Scale(column), np.concatenate([[0.0], np.cumsum(weights)])
    middle, shares = (edges[1:] + edges[:-1]) / 2, weights / weights.sum()
    variance = shares @ (middle - shares @ middle) ** 2

    def draw(given: Values, n: int, rng: np.random.Generator) -> FloatArray:
        fitted = box.matrix(given, clamp=False) @ line[1:]
        fitted *= n > 0 and fitted.var() < variance
        left = max(variance - fitted.var(), variance / 100) if n else 0.0
        found = np.empty(n)
        order = np.argsort(fitted + math.sqrt(left) * rng.standard_normal(n), kind="stable")
        found[order] = np.interp((np.arange(n) + rng.random(n)) / max(n, 1) * cumulative[-1], cumulative, edges)
        return scale.back(found)

    return draw


def even(n: int, rng: np.random.Generator) -> FloatArray:
    """Return n numbers in (0, 1) that fill it evenly, as do those of every 64 neighbours, in random order."""
    if not n:
        return np.zeros(0)
    block = 64
    n_blocks = -(-n // block)
    fine = rng.permuted(np.tile(np.arange(n_blocks), (block, 1)), axis=1).T  # which of its stratum's parts
    coarse = rng.permuted(np.tile(np.arange(block), (n_blocks, 1)), axis=1)
    cell = coarse * n_blocks + np.take_along_axis(fine, coarse, axis=1)
    return np.asarray(((cell + rng.random(cell.shape)) / (n_blocks * block)).ravel()[:n])
