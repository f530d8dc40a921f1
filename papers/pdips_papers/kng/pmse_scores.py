"""pMSE over a public partition: cells, whole scores, and what one record can do to
them.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numba
import numpy as np

from pdips.arrays import FloatArray, IntArray

RATIO = 2
"""Synthetic records for each confidential one: k^2 / (1 + k)^3, how sharp pMSE is for
its sensitivity, peaks at 2.
"""

STEPS = 64
"""Whole score steps for each unit of N pMSE, times (m + 1)."""

WHOLE = 2**20
"""Cell shares are whole parts of this."""

MOST_RECORDS = 2**20


def sensitivity(n_synthetic: int) -> Fraction:
    """Return the largest change of N pMSE when one of the n confidential records is
    replaced.

    A cell with d confidential and s synthetic records adds h(d, s) = (s - c (d + s))^2
    / (d + s), c = m / N, to N pMSE. h is convex in d with slope c^2 - (s / (d + s))^2
    <= c^2, so one more record adds at most c^2 (attained at s = 0) and at least h(1, m)
    - h(0, m) = c^2 - m / (m + 1). A replacement is one such step up and one down.
    """
    return Fraction(n_synthetic, n_synthetic + 1)


def step_sensitivity(n: int) -> int:
    """Return by how many whole steps a score changes at most when one of ``n`` records
    is replaced.

    Four rounded terms change, each by at most 3/4 of a step for its rounding.
    """
    return STEPS * RATIO * n + 3


def steps_per_unit(n: int) -> int:
    """Return how many whole steps one unit of N pMSE has."""
    return STEPS * (RATIO * n + 1)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A public partition of the outcome space into boxes of x1 and of the residuals
    about two public planes.
    """

    lines: FloatArray
    edges: tuple[FloatArray, FloatArray, FloatArray]
    n_nodes: int = 2

    def count(self, records: FloatArray) -> IntArray:
        """Count records, shape (n, 3), by cell.

        What is compared with an edge is worked out from one record and public numbers
        alone, by sums and products in a fixed order, so a record's cell can't depend on
        other records.
        """
        x1, x2, x3 = records.T
        lines = self.lines
        plane_2 = lines[0] + lines[1] * x1
        plane_3 = lines[2] + lines[3] * x1 + lines[4] * x2
        residuals = (x1, x2 - plane_2, x3 - plane_3)
        bins = tuple(
            np.searchsorted(cuts, values, side="right")
            for cuts, values in zip(self.edges, residuals, strict=True)
        )
        sizes = [len(cuts) + 1 for cuts in self.edges]
        cell = np.ravel_multi_index(bins, sizes)
        return np.bincount(cell, minlength=math.prod(sizes))

    def shares(self, thetas: FloatArray) -> IntArray:
        """Return the share of each cell under each candidate, in parts of ``WHOLE``,
        shape (candidates, cells).
        """
        thetas = np.ascontiguousarray(thetas)
        shares = cell_shares(thetas, self.lines, *self.edges, self.n_nodes, WHOLE)
        return np.asarray(shares)


def scores(partition: Partition, thetas: FloatArray, records: FloatArray) -> IntArray:
    """Return -N pMSE between the records and each candidate's m = 2 n synthetic ones,
    in whole steps.
    """
    counts = partition.count(records)
    steps = steps_per_unit(len(records))
    shares = partition.shares(thetas)
    return np.asarray(whole_scores(shares, counts, WHOLE, RATIO, steps))


def synthesise(theta: FloatArray, points: FloatArray) -> FloatArray:
    """Turn standard exponentials, shape (Q, 3), into records of the sequential model at
    ``theta``, shape (8,).
    """
    x1 = points[:, 0] / theta[0]
    x2 = theta[1] + theta[2] * x1 + points[:, 1] / theta[3]
    mean_3 = theta[4] + theta[5] * x1 + theta[6] * x2
    x3 = mean_3 + points[:, 2] / theta[7]
    return np.column_stack([x1, x2, x3])


@numba.njit(cache=True, error_model="numpy")
def _tails(rate: float, offset: float, edges: FloatArray, tails: FloatArray) -> None:
    """Fill in P(offset + E / rate >= edge) for a standard exponential E, with 1 before
    the edges and 0 after them.
    """
    tails[0] = 1.0
    for i in range(len(edges)):
        tails[i + 1] = np.exp(-rate * (edges[i] - offset)) if edges[i] > offset else 1.0
    tails[len(edges) + 1] = 0.0


@numba.njit(cache=True, error_model="numpy")
def cell_shares(
    thetas: FloatArray,
    lines: FloatArray,
    edges_1: FloatArray,
    edges_2: FloatArray,
    edges_3: FloatArray,
    n_nodes: int,
    whole: int,
) -> IntArray:
    """Return the share of each cell under each candidate, in parts of ``whole``, shape
    (candidates, cells).

    The innermost residual is integrated exactly; x1 and the first residual by
    ``n_nodes`` conditional quantiles in each of their bins. An error of this quadrature
    costs utility only.
    """
    n_1 = len(edges_1) + 1
    n_2 = len(edges_2) + 1
    n_3 = len(edges_3) + 1
    rounded = np.zeros((len(thetas), n_1 * n_2 * n_3), dtype=np.int64)
    tails_1 = np.empty(n_1 + 1)
    for j in range(len(thetas)):
        theta = thetas[j]
        shares = np.zeros((n_1, n_2, n_3))
        _tails(theta[0], 0.0, edges_1, tails_1)
        for node in range(n_1 * n_nodes):
            bin_1 = node // n_nodes
            mass, wait = _node(tails_1, node, n_nodes)
            if mass > 0.0:
                x1 = wait / theta[0]
                _add_shares(
                    theta, lines, x1, mass, edges_2, edges_3, n_nodes, shares[bin_1]
                )
        for c, share in enumerate(shares.ravel()):
            rounded[j, c] = min(whole, int(np.floor(share * whole + 0.5)))
    return rounded


@numba.njit(cache=True, error_model="numpy")
def _node(tails: FloatArray, node: int, n_nodes: int) -> tuple[float, float]:
    """Return the mass of one of the nodes of a bin, and the standard exponential
    there.
    """
    first = node // n_nodes
    position = (node % n_nodes + 0.5) / n_nodes
    in_bin = tails[first] - tails[first + 1]
    return in_bin / n_nodes, -np.log(tails[first] - position * in_bin)


@numba.njit(cache=True, error_model="numpy")
def _add_shares(  # type: ignore[no-untyped-def]
    theta, lines, x1, mass_1, edges_2, edges_3, n_nodes, shares
):
    """Add the shares of the cells of a node of x1, shape (bins, bins)."""
    n_2, n_3 = shares.shape
    tails_2 = np.empty(n_2 + 1)
    tails_3 = np.empty(n_3 + 1)
    mean_2 = theta[1] + theta[2] * x1
    plane_2 = lines[0] + lines[1] * x1
    _tails(theta[3], mean_2 - plane_2, edges_2, tails_2)
    for node in range(n_2 * n_nodes):
        bin_2 = node // n_nodes
        mass_2, wait = _node(tails_2, node, n_nodes)
        if mass_2 <= 0.0:
            continue
        x2 = mean_2 + wait / theta[3]
        by_x1 = (theta[5] - lines[3]) * x1
        by_x2 = (theta[6] - lines[4]) * x2
        _tails(theta[7], theta[4] - lines[2] + by_x1 + by_x2, edges_3, tails_3)
        for k in range(n_3):
            share = tails_3[k] - tails_3[k + 1]
            shares[bin_2, k] += mass_1 * mass_2 * share


@numba.njit(cache=True, error_model="numpy")
def whole_scores(
    shares: IntArray, records: IntArray, whole: int, ratio: int, steps: int
) -> IntArray:
    """Return -N pMSE of each candidate in whole steps: each cell's term is rounded by
    itself, then summed.

    The difference under the square is a difference of whole numbers below 2^53, so a
    term's relative error stays below 2^-49 and never comes from cancellation.
    """
    n = records.sum()
    scores = np.zeros(len(shares), dtype=np.int64)
    scale = steps * (ratio / (1.0 + ratio)) ** 2 / whole
    for j in range(len(shares)):
        total = 0
        for c in range(len(records)):
            here = records[c] * whole
            expected = n * shares[j, c]
            below = here + ratio * expected
            if below > 0:
                difference = float(expected - here)
                term = scale * (difference * difference / below)
                total += int(np.floor(term + 0.5))
        scores[j] = -total
    return scores
