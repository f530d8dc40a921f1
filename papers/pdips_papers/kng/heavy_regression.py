"""Quantile regression without privacy, at many quantiles one after the other: the reference row of ``heavy-tailed``."""

from collections.abc import Sequence

import numpy as np
from scipy.linalg import qr

from pdips.arrays import FloatArray, IntArray

MOST_PIVOTS = 1_000
"""Of one quantile; only ties without end would take more."""


def quantile_lines(predictors: FloatArray, outcome: FloatArray, taus: Sequence[float]) -> FloatArray:
    """Return the coefficients of linear quantile regressions.

    Parameters
    ----------
    predictors : ndarray, shape (records, p)
        Without an intercept; p may be 0.
    outcome : ndarray, shape (records,)
        What is regressed.
    taus : sequence of float
        Quantiles in (0, 1), increasing, so that each starts where the one before it ended.

    Returns
    -------
    ndarray, shape (quantiles, p + 1)
        The intercept first. Lines may cross.

    Notes
    -----
    The simplex method of Barrodale and Roberts (1973) and Koenker and d'Orey (1987): a line through p + 1 records moves
    along the edge where the check loss falls most steeply, past as many records as it keeps falling.
    """
    design = np.column_stack([np.ones(len(outcome)), predictors])
    path = _Path(design, np.asarray(outcome, dtype=np.float64))
    return np.array([path.at(tau) for tau in taus])


class _Path:
    """The line through some records, and which of the others lie below it."""

    def __init__(self, design: FloatArray, outcome: FloatArray) -> None:
        self._design, self._outcome = design, outcome
        self._through: IntArray = qr(design.T, mode="r", pivoting=True)[1][: design.shape[1]].astype(np.int64)
        self._total = design.sum(axis=0)
        self._below = self._residuals() < 0
        self._below[self._through] = False

    def _residuals(self) -> FloatArray:
        rows = self._through
        self._line = np.linalg.solve(self._design[rows], self._outcome[rows])
        return np.asarray(self._outcome - self._design @ self._line)

    def at(self, tau: float) -> FloatArray:
        """Move to the best line at a quantile and return it."""
        for _ in range(MOST_PIVOTS):
            residuals = self._residuals()
            edges = np.linalg.inv(self._design[self._through])
            rest = tau * (self._total - self._design[self._through].sum(axis=0)) - self._below @ self._design
            duals = edges.T @ rest
            rising, falling = 1 - tau - duals, tau + duals
            slopes = np.concatenate([rising, falling])
            k = int(np.argmin(slopes))
            if slopes[k] >= -1e-9 * len(self._outcome):
                break
            place, sign = k % len(rising), 1 if k < len(rising) else -1
            self._move(residuals, sign * edges[:, place], place, sign > 0, float(slopes[k]))
        return self._line.copy()

    def _move(self, residuals: FloatArray, direction: FloatArray, place: int, below: bool, slope: float) -> None:
        """Go along an edge, letting one record go to its side, to the record where the loss stops falling."""
        speed = self._design @ direction
        speed[self._through] = 0
        met = np.flatnonzero(np.where(self._below, speed < 0, speed > 0))
        times = np.maximum(residuals[met] / speed[met], 0)
        order = np.argsort(times, kind="stable")
        gains = np.cumsum(np.abs(speed[met[order]]))
        last = int(np.searchsorted(gains, -slope))
        passed, entering = met[order[:last]], met[order[min(last, len(order) - 1)]]
        self._below[passed] = ~self._below[passed]
        self._below[self._through[place]] = below
        self._below[entering] = False
        self._through[place] = entering
