"""Whole-number scores of parameter values: each record's censored term, rounded on its own, then summed."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.posterior.columns import Values, distinct
from pdips.posterior.density import Density, Points

Clip = Literal["hard", "tanh", "algebraic"]

IMPOSSIBLE = -700.0
"""Stands in for the log of a density of 0, in what is worked out from public records."""

STEPS = 2**20
"""Whole steps from 0 to the edge of the window: a record's term is one of 2 STEPS + 1 numbers."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Terms:
    """What each record adds to the log density: s(alpha (log p(x | theta) - c)), with values in [-window, window].

    Parameters
    ----------
    density : Density
        log p.
    points : sequence of ndarray
        The parameter values to score.
    window : Fraction
        Half-width, in nats.
    clip : {"hard", "tanh", "algebraic"}
        s(u): u cut off at the window's edges, window tanh(u / window), or window u / (window + abs(u)).
    centre : sequence of ndarray
        Public parameter values: c is the log of the mean density over them. Empty: c = 0.
    weights : sequence of ndarray
        Public parameter values: alpha = min(1, window / max over them of abs(log p(x | theta) - c)). Empty: alpha = 1.

    Notes
    -----
    Paper 004, equation 3.5, with a centre; alpha and c depend on their record and public values (SOUNDNESS 2.2).
    """

    density: Density
    points: Points
    window: Fraction
    clip: Clip = "hard"
    centre: Points = ()
    weights: Points = ()

    def total(self, values: Values, counts: IntArray) -> IntArray:
        """Return the sum of all records' terms, in whole steps of window / STEPS, shape (points,).

        Parameters
        ----------
        values : mapping of str to ndarray, shape (rows,)
            Columns of distinct records.
        counts : ndarray of int64, shape (rows,)
            How many records each row stands for.

        Notes
        -----
        Each row is rounded before it is added, and worked out from itself alone: its whole numbers are the same
        whatever other records there are, and their sum depends on no order.
        """
        found = np.zeros(len(self.points[0]), dtype=np.int64)
        for count, (_, term) in zip(counts, self._each(values), strict=True):
            share = squash(term / float(self.window), self.clip)
            steps = np.floor(STEPS * share + 0.5).astype(np.int64)
            found += steps if count == 1 else int(count) * steps
        return found

    def excess(self, values: Values) -> FloatArray:
        """Return the mean over public records of what weighing and censoring take from their terms, shape (points,)."""
        window, found = float(self.window), np.zeros(len(self.points[0]))
        rows, counts = distinct(values, None)
        for count, (whole, term) in zip(counts, self._each(rows), strict=True):
            lost = whole - window * squash(term / window, self.clip)
            usual = np.isfinite(lost.sum())
            found += count * (lost if usual else np.nan_to_num(lost, nan=0.0, posinf=0.0, neginf=IMPOSSIBLE))
        return found / counts.sum()

    def _each(self, values: Values) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Yield log p - c and alpha (log p - c) of each row, 0 everywhere if its centre isn't finite."""
        n_points, n_centre = len(self.points[0]), len(self.centre[0]) if self.centre else 0
        groups = [group for group in (self.points, self.centre, self.weights) if group]
        self.density.at([np.concatenate(parts) for parts in zip(*groups, strict=True)])
        with np.errstate(all="ignore"):
            for row in self.density.rows(values):
                log_density = self.density(row)
                centre = _log_mean(log_density[n_points : n_points + n_centre]) if n_centre else 0.0
                if not np.isfinite(centre):
                    yield np.zeros(n_points), np.zeros(n_points)
                    continue
                whole = log_density - centre
                largest = max(np.abs(whole[n_points + n_centre :]).max(initial=0.0), 1e-300)
                alpha = min(1.0, float(self.window) / largest) if self.weights else 1.0
                yield whole[:n_points], alpha * whole[:n_points]


def squash(share: FloatArray, clip: Clip) -> FloatArray:
    """Map terms, in windows, into [-1, 1]; what isn't a number counts as impossible, which is -1."""
    if np.isnan(share).any():
        share = np.where(np.isnan(share), -np.inf, share)
    if clip == "tanh":
        return np.tanh(share)
    if clip == "algebraic":
        return np.where(np.isinf(share), np.sign(share), share / (1.0 + np.abs(share)))
    return np.minimum(np.maximum(share, -1.0), 1.0)


def _log_mean(logs: FloatArray) -> float:
    return float(np.logaddexp.reduce(logs) - np.log(len(logs)))
