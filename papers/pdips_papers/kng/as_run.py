"""The Markov chains that made tables 1 and 2 of Tran et al. (2023): short random walks whose starts show. Not private.

Written after the authors' repository tranntran/privatequantile (``code/functions_final.R`` and
``code/simulation_compare_data.R``), which differs from the paper's algorithms 1 and 2 in starts, steps and shares.
"""

from dataclasses import dataclass, replace

import numba
import numpy as np

from pdips.arrays import FloatArray
from pdips_papers.harness.printed import data

N_STEPS = 1_000
"""Of each chain; its last state is the line."""

RELEARN = 10
"""Accepted moves after which the covariance of proposals is set anew."""

MEDIAN = 24
MAIN = (12, 2, 0, 36, 46, 48)
"""Places of the median, and of sandwich's other main quantiles in the order in which they are drawn."""

CAPS = {"x1": 1.0, "x2": 46.0, "x3": 106.0}
"""The code's C_X by outcome, at which all predictors of it are cut."""


@dataclass(frozen=True, kw_only=True)
class Walk:
    """How a row draws the lines of a column.

    ``median`` is the median's share of what the main quantiles have, which is the share ``main`` of the column's;
    ``scale`` and ``between`` are the variances of proposals of main and other lines, or standard deviations where one
    number moves; with ``fixed`` slopes, those of the median.
    """

    median: float
    main: float = 1.0
    scale: float
    between: float = 0.0
    fixed: bool = False

    def order(self, n: int) -> list[tuple[int, float, float]]:
        """Return the places of quantiles in their order, with their shares of the column's budget and their scales."""
        outwards = (*range(MEDIAN - 1, -1, -1), *range(MEDIAN + 1, n))
        first = MAIN if self.main < 1 else outwards
        rest = [k for k in outwards if k not in first]
        found = [(MEDIAN, self.main * self.median, 1e-4)]
        found += [(k, self.main * (1 - self.median) / len(first), self.scale) for k in first]
        return found + [(k, (1 - self.main) / len(rest), self.between) for k in rest]


WALKS = {
    row: tuple(Walk(**facts) for facts in each) for row, each in data("settings.toml")["heavy-tailed"]["walks"].items()
}
"""By row of the tables: for x1, which has no predictors, and for x2 and x3."""

PLAIN = (0.01, 1e-5)
"""Variances of proposals of rows KNG, for outcomes over their largest, to be divided by the largest again."""


@dataclass(frozen=True)
class Column:
    """An outcome, its predictors (the first of them ones), and synthetic predictors, where lines mustn't cross."""

    x: FloatArray  # shape (predictors, records)
    y: FloatArray
    bound: float
    points: FloatArray  # shape (predictors, points)
    upper: float

    def lines(
        self, walk: Walk, median: FloatArray, taus: FloatArray, epsilon: float, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the lines of an extended method, each from the one before it, the median's from its estimate.

        Returns lines, shape (quantiles, predictors), and the shares of proposals that were accepted.
        """
        drawn, accepted = np.full((len(taus), len(median)), np.nan), np.empty(len(taus))
        for k, share, scale in walk.order(len(taus)):
            first, known = k == MEDIAN, np.flatnonzero(~np.isnan(drawn[:, 0]))
            lower, higher = known[known < k][-1:], known[known > k][:1]
            points = self.x if first else self.points  # the median keeps to its bounds at the confidential predictors
            below = np.max([np.zeros(points.shape[1]), *(drawn[lower] @ points)], axis=0)
            above = np.min([np.full(points.shape[1], self.upper), *(drawn[higher] @ points)], axis=0)
            start = median if first else drawn[higher[0] if k < MEDIAN else lower[0]]
            how = (scale, not first and (walk.fixed or len(median) == 1), not first and walk.fixed)
            drawn[k], accepted[k] = self._walk(start, taus[k], epsilon * share, rng, (points, below, above), *how)
        return drawn, accepted

    def plain_lines(
        self, taus: FloatArray, epsilon: float, rng: np.random.Generator, start: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Draw the lines of KNG, all from 0 or, to compare, from one start; outcomes are over their largest."""
        largest, nowhere = float(np.abs(self.y).max()), (self.points[:, :0], np.empty(0), np.empty(0))
        scaled = replace(self, y=self.y / largest)
        begin = np.zeros(len(self.x)) if start is None else start / largest
        scale = PLAIN[len(self.x) > 1] / largest
        found = [scaled._walk(begin, tau, epsilon / len(taus), rng, nowhere, scale) for tau in taus]
        return largest * np.array([line for line, _ in found]), np.array([share for _, share in found])

    def _walk(
        self,
        start: FloatArray,
        tau: float,
        epsilon: float,
        rng: np.random.Generator,
        between: tuple[FloatArray, FloatArray, FloatArray],
        scale: float,
        deviation: bool = False,
        fixed: bool = False,
    ) -> tuple[FloatArray, float]:
        moves, log_u = rng.standard_normal((N_STEPS - 1, len(start))), np.log(rng.random(N_STEPS - 1))
        rate = epsilon / (4 * (1 - tau) * self.bound)
        found = _walk(start, moves, log_u, self.x, self.y, tau, rate, *between, scale, deviation, fixed)
        return np.asarray(found[0]), float(found[1])


@numba.njit(cache=True, fastmath=True)
def _log_density(theta: FloatArray, x: FloatArray, y: FloatArray, tau: float, rate: float) -> float:
    """Return the printed log density, equation 5, of up to two predictors; with fewer, an entry counts twice."""
    p, first, second, third = len(theta), 0.0, 0.0, 0.0
    one, other = x[min(1, p - 1)], x[p - 1]
    slope, slope_2 = theta[1] if p > 1 else 0.0, theta[2] if p > 2 else 0.0
    for i in range(len(y)):
        side = (1.0 if y[i] <= theta[0] + slope * one[i] + slope_2 * other[i] else 0.0) - tau
        first += side
        second += side * one[i]
        third += side * other[i]
    return -rate * max(abs(first), abs(second), abs(third)) - 1e-5 * (theta * theta).sum()


@numba.njit(cache=True, fastmath=True)
def _inside(theta: FloatArray, points: FloatArray, below: FloatArray, above: FloatArray) -> bool:
    """Return whether a line lies between others everywhere."""
    p, outside = len(theta), 0
    one, other = points[min(1, p - 1)], points[p - 1]
    slope, slope_2 = theta[1] if p > 1 else 0.0, theta[2] if p > 2 else 0.0
    for k in range(len(below)):
        height = theta[0] + slope * one[k] + slope_2 * other[k]
        outside += (height <= below[k]) | (height >= above[k])
    return outside == 0


@numba.njit(cache=True)
def _walk(  # type: ignore[no-untyped-def]
    start, moves, log_u, x, y, tau, rate, points, below, above, scale, deviation, fixed
):
    p, theta, n = len(start), start.copy(), len(moves) + 1
    here, accepted, waiting = _log_density(theta, x, y, tau, rate), 0, 0
    root = np.eye(p) * (scale if deviation else np.sqrt(scale))
    sums, products = theta.copy(), np.outer(theta, theta)
    for i in range(n - 1):
        proposal = theta.copy()
        if fixed:
            proposal[0] += scale * moves[i, 0]
        else:
            proposal += root @ moves[i]
        if _inside(proposal, points, below, above):
            there = _log_density(proposal, x, y, tau, rate)
            if log_u[i] < there - here:
                theta, here = proposal, there
                accepted, waiting = accepted + 1, waiting + 1
        sums += theta
        products += np.outer(theta, theta)
        if waiting == RELEARN:
            waiting = 0
            if not fixed and not deviation:
                # as in the code: correlations over all rows of the chain, those to come being 0
                spread = products - np.outer(sums, sums) / n
                sizes = np.sqrt(np.diag(spread))
                root = np.linalg.cholesky(scale * (spread / np.outer(sizes, sizes) + 2e-5 * np.eye(p)))
    return theta, accepted / n
