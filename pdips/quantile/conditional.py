"""Columns drawn from released statistics, given columns that are drawn already: post-processing, all of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.encoding import Box, Scale, Values
from pdips.data.schema import Column, Schema

Between = Literal["interpolate", "quantile"]


class Draw(Protocol):
    """Draws a column given others."""

    def draw(self, given: Values, n: int, rng: np.random.Generator) -> FloatArray:
        """Return n values: codes of levels, or numbers, NaN for missing."""
        ...


@dataclass(frozen=True)
class RecordGroups:
    """Records sorted into groups by columns before: by level, or by the interval between public or released numbers.

    Parameters
    ----------
    schema : Schema
        Of the table.
    cuts : mapping of str to ndarray
        The columns, in order; for numeric ones the inner ends of the intervals.
    """

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
        """Number of groups."""
        return int(np.prod(self.sizes, dtype=np.int64))

    def of(self, values: Values, n: int) -> IntArray:
        """Return the group of each record."""
        place = np.zeros(n, dtype=np.int64)
        for (name, cuts), size in zip(self.cuts.items(), self.sizes, strict=True):
            each = values[name]
            if not self.schema.columns[name].is_categorical:
                each = np.where(np.isnan(each), size - 1, np.searchsorted(cuts, each, side="right"))
            place = place * size + each.astype(np.int64)
        return place


@dataclass(frozen=True)
class LevelDraw:
    """Codes drawn with released probabilities, by group."""

    groups: RecordGroups
    probabilities: FloatArray

    def draw(self, given: Values, n: int, rng: np.random.Generator) -> FloatArray:
        """See :class:`Draw`."""
        cumulative = self.probabilities.cumsum(axis=1)[self.groups.of(given, n)]
        position = rng.random(n) * cumulative[:, -1]
        level = np.minimum((cumulative <= position[:, None]).sum(axis=1), cumulative.shape[1] - 1)
        return np.asarray(level, dtype=np.float64)


@dataclass(frozen=True)
class MissingDraw:
    """Numbers that are missing with released probabilities."""

    missing: LevelDraw
    known: Draw

    def draw(self, given: Values, n: int, rng: np.random.Generator) -> FloatArray:
        """See :class:`Draw`."""
        return np.where(self.missing.draw(given, n, rng) == 1, np.nan, self.known.draw(given, n, rng))


@dataclass(frozen=True)
class ByStratum:
    """One draw for each stratum."""

    strata: RecordGroups
    each: tuple[Draw, ...]

    def draw(self, given: Values, n: int, rng: np.random.Generator) -> FloatArray:
        """See :class:`Draw`."""
        place, drawn = self.strata.of(given, n), np.full(n, np.nan)
        for k in np.unique(place):
            rows = place == k
            drawn[rows] = self.each[k].draw(
                {name: values[rows] for name, values in given.items()}, int(rows.sum()), rng
            )
        return drawn


@dataclass(frozen=True)
class LineDraw:
    """Numbers drawn from quantile lines.

    Parameters
    ----------
    column : Column
        The outcome.
    box : Box
        The predictors.
    taus : ndarray, shape (quantiles,)
        Increasing.
    lines : ndarray, shape (quantiles, p + 1)
        In predictors over [-1, 1]^p.
    between : {"interpolate", "quantile"}
        By inverse of the distribution function that runs straight between quantiles and exponentially beyond the last
        (Huckett and Larsen 2007), or the first quantile that isn't below a number drawn evenly from (0, 1), as in the
        paper's simulation (after Pistner, Slavkovic and Vilhuber 2018).
    """

    column: Column
    box: Box
    taus: FloatArray
    lines: FloatArray
    between: Between

    def draw(self, given: Values, n: int, rng: np.random.Generator) -> FloatArray:
        """See :class:`Draw`."""
        position = even(n, rng)
        free = np.ones((n, 1 + self.box.n_predictors))
        free[:, 1:] = self.box.matrix(given, clamp=False) if self.box.names else 0.0
        inside = np.clip(free, -1, 1)
        middle = self.lines[int(np.argmin(np.abs(self.taus - 0.5)))]
        beyond = (
            free - inside
        ) @ middle  # there no lines could be kept from crossing, so they run alongside the median
        scale = Scale(self.column)
        if self.between == "quantile":
            chosen = self.lines[np.minimum(np.searchsorted(self.taus, position), len(self.taus) - 1)]
            return scale.back((inside * chosen).sum(axis=1) + beyond)
        return scale.back(self._inverse(inside, position) + beyond)

    def _inverse(self, inside: FloatArray, position: FloatArray) -> FloatArray:
        drawn = np.empty(len(position))
        for start in range(0, len(position), 65_536):
            rows = slice(start, start + 65_536)
            values = np.sort(inside[rows] @ self.lines.T, axis=1)
            drawn[rows] = quantile_values(values, self.taus, position[rows], Scale(self.column).bounds)
        return drawn


def quantile_values(
    values: FloatArray, taus: FloatArray, position: FloatArray, bounds: tuple[float, float]
) -> FloatArray:
    """Return the inverse of distribution functions that are known at some quantiles, one a row, within bounds."""
    rows, last = np.arange(len(values)), len(taus) - 1
    right = np.clip(np.searchsorted(taus, position), 1, max(last, 1))
    if last == 0:
        return np.clip(values[:, 0], *bounds)
    left = right - 1
    low, high = values[rows, left], values[rows, right]
    drawn = low + (high - low) * (position - taus[left]) / (taus[right] - taus[left])
    above = position > taus[-1]
    back = max(int(np.searchsorted(taus, 1 - 4 * (1 - taus[-1]))), 0)
    back = min(back, last - 1)
    rate = (values[:, -1] - values[:, back]) / np.log((1 - taus[back]) / (1 - taus[-1]))
    tail = values[:, -1] + rate * np.log((1 - taus[-1]) / np.maximum(1 - position, 1e-12))
    return np.clip(np.where(above, tail, drawn), *bounds)


@dataclass(frozen=True)
class ResidualDraw:
    """Numbers that are a line plus a draw from a histogram of residuals.

    Parameters
    ----------
    column : Column
        The outcome.
    box : Box
        The predictors.
    line : ndarray, shape (p + 1,)
        In predictors over [-1, 1]^p.
    edges, weights : ndarray
        The bins of residuals, and how likely each is.
    """

    column: Column
    box: Box
    line: FloatArray
    edges: FloatArray
    weights: FloatArray

    def draw(self, given: Values, n: int, rng: np.random.Generator) -> FloatArray:
        """See :class:`Draw`."""
        fitted = np.full(n, self.line[0])
        if self.box.names:
            fitted += self.box.matrix(given, clamp=False) @ self.line[1:]
        cumulative = np.concatenate([[0.0], np.cumsum(self.weights)])
        order = np.argsort(fitted, kind="stable")
        residual = np.empty(n)
        residual[order] = np.interp(even(n, rng) * cumulative[-1], cumulative, self.edges)
        scale = Scale(self.column)
        return scale.back(np.clip(fitted + residual, *scale.bounds))


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
