"""The Markov chains that made tables 1 and 2 of Tran et al. (2023): short random walks
whose starts show. Not private.

Written after the authors' repository tranntran/privatequantile
(``code/functions_final.R`` and ``code/simulation_compare_data.R``), which differs from
the paper's algorithms 1 and 2 in starts, steps and shares.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numba
import numpy as np
from scipy.spatial import ConvexHull, QhullError

from pdips.arrays import FloatArray
from pdips_papers.harness.printed import data

N_STEPS = 1_000
"""Of each chain; its last state is the line."""

REACH = 8.0
"""Standard deviations of a proposal within which a chain looks at the same records."""

RELEARN = 10
"""Accepted moves after which the covariance of proposals is set anew."""

MEDIAN = 24
MAIN = (12, 2, 0, 36, 46, 48)
"""Places of the median, and of sandwich's other main quantiles in the order in which
they are drawn.
"""

CAPS = {"x1": 1.0, "x2": 46.0, "x3": 106.0}
"""The code's C_X by outcome, at which all predictors of it are cut."""


@dataclass(frozen=True, kw_only=True)
class Walk:
    """How a row draws the lines of a column.

    ``median`` is the median's share of what the main quantiles have, which is the share
    ``main`` of the column's; ``scale`` and ``between`` are the variances of proposals
    of main and other lines, or standard deviations where one number moves; with
    ``fixed`` slopes, those of the median.
    """

    median: float
    main: float = 1.0
    scale: float
    between: float = 0.0
    fixed: bool = False

    def order(self, n: int) -> list[tuple[int, float, float]]:
        """Return the places of quantiles in their order, with their shares of the
        column's budget and their scales.
        """
        outwards = (*range(MEDIAN - 1, -1, -1), *range(MEDIAN + 1, n))
        first = MAIN if self.main < 1 else outwards
        rest = [k for k in outwards if k not in first]
        of_main = self.main * (1 - self.median) / len(first)
        of_rest = (1 - self.main) / max(len(rest), 1)
        order = [(MEDIAN, self.main * self.median, 1e-4)]
        order += [(k, of_main, self.scale) for k in first]
        return order + [(k, of_rest, self.between) for k in rest]


WALKS = {
    row: tuple(Walk(**facts) for facts in each)
    for row, each in data("settings.toml")["heavy-tailed"]["walks"].items()
}
"""By row of the tables: for x1, which has no predictors, and for x2 and x3."""

PLAIN = (0.01, 1e-5)
"""Variances of proposals of rows KNG, for outcomes over their largest, to be divided by
the largest again.
"""


class Proposals(NamedTuple):
    """How a chain moves: variance of proposals, or standard deviation; with ``fixed``
    slopes only the intercept does.
    """

    scale: float
    deviation: bool = False
    fixed: bool = False


@dataclass(frozen=True)
class Column:
    """An outcome, its predictors (the first of them ones), and synthetic predictors,
    where lines mustn't cross.
    """

    x: FloatArray  # shape (predictors, records)
    y: FloatArray
    bound: float
    points: FloatArray  # shape (predictors, points)
    upper: float
    n_steps: int = N_STEPS

    def lines(
        self,
        walk: Walk,
        median: FloatArray,
        taus: FloatArray,
        epsilon: float,
        rng: np.random.Generator,
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the lines of an extended method, each from the one before it, the
        median's from its estimate.

        Returns lines, shape (quantiles, predictors), and the shares of proposals that
        were accepted.
        """
        drawn = np.full((len(taus), len(median)), np.nan)
        accepted = np.empty(len(taus))
        for k, share, scale in walk.order(len(taus)):
            first = k == MEDIAN
            known = np.flatnonzero(~np.isnan(drawn[:, 0]))
            lower = known[known < k][-1:]
            higher = known[known > k][:1]
            # the median keeps to its bounds at the confidential predictors
            points = corners(self.x) if first else self.points
            n_points = points.shape[1]
            below = np.max([np.zeros(n_points), *(drawn[lower] @ points)], axis=0)
            highest = np.full(n_points, self.upper)
            above = np.min([highest, *(drawn[higher] @ points)], axis=0)
            start = median
            if not first:
                nearest = higher if k < MEDIAN else lower
                start = drawn[nearest[0]]
            fixed = not first and walk.fixed
            deviation = fixed or (not first and len(median) == 1)
            proposals = Proposals(scale, deviation=deviation, fixed=fixed)
            drawn[k], accepted[k] = self._walk(
                start, taus[k], epsilon * share, rng, (points, below, above), proposals
            )
        return drawn, accepted

    def plain_lines(
        self,
        taus: FloatArray,
        epsilon: float,
        rng: np.random.Generator,
        start: FloatArray | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the lines of KNG, all from 0 or, to compare, from one start; outcomes
        are over their largest.
        """
        largest = float(np.abs(self.y).max())
        nowhere = (self.points[:, :0], np.empty(0), np.empty(0))
        scaled = replace(self, y=self.y / largest)
        begin = np.zeros(len(self.x)) if start is None else start / largest
        proposals = Proposals(PLAIN[len(self.x) > 1] / largest)
        share = epsilon / len(taus)
        lines = np.empty((len(taus), len(self.x)))
        accepted = np.empty(len(taus))
        for k, tau in enumerate(taus):
            lines[k], accepted[k] = scaled._walk(
                begin, tau, share, rng, nowhere, proposals
            )
        return largest * lines, accepted

    def _walk(
        self,
        start: FloatArray,
        tau: float,
        epsilon: float,
        rng: np.random.Generator,
        between: tuple[FloatArray, FloatArray, FloatArray],
        proposals: Proposals,
    ) -> tuple[FloatArray, float]:
        moves = rng.standard_normal((self.n_steps - 1, len(start)))
        log_u = np.log(rng.random(self.n_steps - 1))
        rate = epsilon / (4 * (1 - tau) * self.bound)
        density = (self.x, self.y, tau, rate)
        scale, deviation, fixed = proposals
        size = scale if deviation or fixed else float(np.sqrt(scale))
        moved = np.ones(len(start))
        if fixed:
            moved[1:] = 0.0
        relearns = not (fixed or deviation)
        how = (scale, REACH * size * moved, np.diag(size * moved), relearns)
        line, accepted = _walk(start, moves, log_u, density, between, how)
        return np.asarray(line), float(accepted)


def corners(points: FloatArray) -> FloatArray:
    """Return those of some points, shape (predictors, points) with ones first, that
    bound the others: lines that don't cross there cross nowhere between them.
    """
    distinct = np.unique(points, axis=1)
    try:
        kept = ConvexHull(distinct[1:].T).vertices if len(distinct) > 2 else [0, -1]
    except QhullError:  # few points, or all on a line
        return distinct
    return np.ascontiguousarray(distinct[:, kept])


@numba.njit(cache=True, fastmath=True)
def _log_density(
    theta: FloatArray,
    near: tuple[FloatArray, FloatArray, FloatArray],
    density: tuple[FloatArray, FloatArray, float, float],
) -> float:
    """Return the printed log density, equation 5, of up to two predictors; with fewer,
    an entry counts twice.

    ``near`` has the records that are looked at, and the gradient's sums over all
    others.
    """
    x, y, sums = near
    tau = density[2]
    rate = density[3]
    p = len(theta)
    first: float = sums[0]
    second: float = sums[1]
    third: float = sums[2]
    one = x[min(1, p - 1)]
    other = x[p - 1]
    slope = theta[1] if p > 1 else 0.0
    slope_2 = theta[2] if p > 2 else 0.0
    for i in range(len(y)):
        side = (
            1.0 if y[i] <= theta[0] + slope * one[i] + slope_2 * other[i] else 0.0
        ) - tau
        first += side
        second += side * one[i]
        third += side * other[i]
    return (
        -rate * max(abs(first), abs(second), abs(third)) - 1e-5 * (theta * theta).sum()
    )


@numba.njit(cache=True)
def _near(theta, reach, density):  # type: ignore[no-untyped-def]
    """Return the records that lines within reach of one can have on another side than
    it, and the gradient's sums over all others.

    Most moves are short, so that a chain looks at few records until it has gone far.
    """
    x, y, tau, _ = density
    p = len(theta)
    kept = np.empty(len(y), dtype=np.int64)
    n_kept = 0
    sums = np.zeros(3)
    for i in range(len(y)):
        height = 0.0
        room = 1e-9 * abs(y[i])
        for j in range(p):
            height += theta[j] * x[j, i]
            room += reach[j] * abs(x[j, i])
        if abs(y[i] - height) <= room:
            kept[n_kept] = i
            n_kept += 1
        else:
            side = (1.0 if y[i] <= height else 0.0) - tau
            sums[0] += side
            sums[1] += side * x[min(1, p - 1), i]
            sums[2] += side * x[p - 1, i]
    places = kept[:n_kept]
    near_x = np.empty((p, n_kept))
    for j in range(p):
        near_x[j] = x[j][places]
    return near_x, y[places], sums


@numba.njit(cache=True, fastmath=True)
def _inside(
    theta: FloatArray, points: FloatArray, below: FloatArray, above: FloatArray
) -> bool:
    """Return whether a line lies between others everywhere."""
    p = len(theta)
    outside = 0
    one = points[min(1, p - 1)]
    other = points[p - 1]
    slope = theta[1] if p > 1 else 0.0
    slope_2 = theta[2] if p > 2 else 0.0
    for k in range(len(below)):
        height = theta[0] + slope * one[k] + slope_2 * other[k]
        outside += (height <= below[k]) | (height >= above[k])
    return outside == 0


@numba.njit(cache=True)
def _proposed(theta, root, move):  # type: ignore[no-untyped-def]
    """Return a proposal about a line; ``root`` is lower triangular."""
    proposal = theta.copy()
    for j in range(len(theta)):
        for k in range(j + 1):
            proposal[j] += root[j, k] * move[k]
    return proposal


@numba.njit(cache=True)
def _outer(theta):  # type: ignore[no-untyped-def]
    """Return the products of 1 and the entries of a line with each other."""
    entries = np.append(np.ones(1), theta)
    return np.outer(entries, entries)


@numba.njit(cache=True)
def _root(moments, n, scale):  # type: ignore[no-untyped-def]
    """Return a root of the covariance of proposals, as in the code: from correlations
    over all rows of the chain, those to come being 0.
    """
    spread = moments[1:, 1:] - np.outer(moments[0, 1:], moments[0, 1:]) / n
    sizes = np.sqrt(np.diag(spread))
    correlations = spread / np.outer(sizes, sizes)
    return np.linalg.cholesky(scale * (correlations + 2e-5 * np.eye(len(sizes))))


@numba.njit(cache=True)
def _walk(start, moves, log_u, density, between, how):  # type: ignore[no-untyped-def]
    scale, reach, root, relearns = how
    theta = start.copy()
    about = theta
    near = _near(about, reach, density)
    here = _log_density(theta, near, density)
    moments = np.zeros((len(theta) + 1, len(theta) + 1))
    accepted = 0
    stayed = 0
    for i in range(len(moves)):
        stayed += 1
        proposal = _proposed(theta, root, moves[i])
        if not _inside(proposal, *between):
            continue
        if (np.abs(proposal - about) > reach).any():
            about = proposal
            near = _near(about, reach, density)
        there = _log_density(proposal, near, density)
        if log_u[i] < there - here:
            moments += stayed * _outer(theta)
            theta = proposal
            here = there
            accepted += 1
            stayed = 0
            if relearns and accepted % RELEARN == 0:
                root = _root(moments + _outer(theta), len(moves) + 1, scale)
    return theta, accepted / (len(moves) + 1)
