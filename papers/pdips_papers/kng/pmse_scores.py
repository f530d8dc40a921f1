"""pMSE over a public partition: cells, whole scores, and what one record can do to them."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pdips.arrays import FloatArray, IntArray

RATIO = 2
"""Synthetic records for each confidential one: k^2 / (1 + k)^3, how sharp pMSE is for its sensitivity, peaks at 2."""

STEPS = 64
"""Whole score steps for each unit of N pMSE, times (m + 1)."""

WHOLE = 2**20
"""Cell shares are whole parts of this."""

MOST_RECORDS = 2**20


def sensitivity(n_synthetic: int) -> Fraction:
    """Return the largest change of N pMSE when one of the n confidential records is replaced.

    Parameters
    ----------
    n_synthetic : int
        The public number m of synthetic records; N = n + m.

    Returns
    -------
    Fraction
        m / (m + 1), for every fixed partition of the outcome space, and attained by some.

    Notes
    -----
    A cell with d confidential and s synthetic records adds h(d, s) = (s - c (d + s))^2 / (d + s), c = m / N, to
    N pMSE. h is convex in d with slope c^2 - (s / (d + s))^2 <= c^2, so one more record adds at most c^2 (attained at
    s = 0) and at least h(1, m) - h(0, m) = c^2 - m / (m + 1). A replacement is one such step up and one down.
    """
    return Fraction(n_synthetic, n_synthetic + 1)


def step_sensitivity(n: int) -> int:
    """Return by how many whole steps a score changes at most when one of ``n`` records is replaced.

    Four rounded terms change, each by at most 3/4 of a step for its rounding.
    """
    return STEPS * RATIO * n + 3


def steps_per_unit(n: int) -> int:
    """Return how many whole steps one unit of N pMSE has."""
    return STEPS * (RATIO * n + 1)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A public partition of the outcome space into boxes of x1 and of the residuals about two public planes.

    Parameters
    ----------
    lines : ndarray, shape (5,)
        Intercept and slope for x2, intercept and two slopes for x3.
    edges : tuple of three ndarrays
        Where x1 and the two residuals are cut.
    n_nodes : int
        Nodes in each bin of x1 and of the first residual, for the shares of candidates.
    """

    lines: FloatArray
    edges: tuple[FloatArray, FloatArray, FloatArray]

    def count(self, records: FloatArray) -> IntArray:
        """Count records, shape (n, 3), by cell."""
        from pdips_papers.kng.pmse_kernels import count_records

        return np.asarray(count_records(records, self.lines, *self.edges))

    n_nodes: int = 2

    def shares(self, thetas: FloatArray) -> IntArray:
        """Return the share of each cell under each candidate, in parts of ``WHOLE``, shape (candidates, cells)."""
        from pdips_papers.kng.pmse_kernels import cell_shares

        return np.asarray(cell_shares(np.ascontiguousarray(thetas), self.lines, *self.edges, self.n_nodes, WHOLE))


def scores(partition: Partition, thetas: FloatArray, records: FloatArray) -> IntArray:
    """Return -N pMSE between the records and each candidate's m = 2 n synthetic ones, in whole steps.

    Parameters
    ----------
    partition : Partition
        Public.
    thetas : ndarray, shape (candidates, 8)
        Public.
    records : ndarray, shape (n, 3)

    Returns
    -------
    ndarray of int64, shape (candidates,)
        A replaced record changes each by at most :func:`step_sensitivity`.
    """
    from pdips_papers.kng.pmse_kernels import whole_scores

    counts = partition.count(records)
    steps = steps_per_unit(len(records))
    return np.asarray(whole_scores(partition.shares(thetas), counts, WHOLE, RATIO, steps))
