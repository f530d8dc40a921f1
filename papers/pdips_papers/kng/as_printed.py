"""The K-norm gradient density as paper 002 prints it: too small a sensitivity above the median. Never private."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.encoding import UNITS, Box, Scale
from pdips.quantile.choosing import Chooser
from pdips.quantile.line_search import Candidates, Fitter, Records
from pdips.quantile.schemes import Plan
from pdips.quantile.spreads import Round

PRECISION = 1e-6
"""Nats to which scores are rounded."""
DECAY = 1e-5
"""The printed base measure is exp(-DECAY norm(theta)^2)."""

ROUNDS = {
    1: Round(share=Fraction(1), reach=1, n_slopes=250, n_intercepts=400, uniform=True),
    2: Round(share=Fraction(1), reach=1 / 4, n_slopes=20, n_intercepts=100, uniform=True, grid=True),
}


@dataclass(frozen=True, kw_only=True)
class PublishedFitter(Fitter):
    """Lines drawn from exp(-epsilon / (4 (1 - tau) C_X) norm(G) - c norm(theta)^2), equation 5, on our candidates.

    Parameters
    ----------
    middle, half : ndarray, shape (p,)
        Of the predictors' public ranges, in their own units.

    Notes
    -----
    The norm is the largest entry, as in the authors' code, of sums of (1, x) with x in its own units; with fixed slopes
    all entries count. Lines don't cross in the public box, where the paper looks at the confidential rows.
    """

    middle: FloatArray
    half: FloatArray

    @classmethod
    def of(cls, box: Box, cap: int, n_intercepts: int) -> "PublishedFitter":
        """Return the fitter for predictors."""
        ends: list[tuple[float, float]] = []
        for name in box.names:
            column = box.schema.columns[name]
            if column.is_categorical:
                ends += [(0.0, 1.0)] * (column.n_levels - 1)
                continue
            low, high = Scale(column).bounds
            ends.append((low, float(Scale(column).there(np.array([box.caps[name]]))[0]) if name in box.caps else high))
            ends += [(0.0, 1.0)] * bool(column.missing)
        lower, upper = np.array(ends).reshape(-1, 2).T
        return cls(
            base="uniform", cap=cap, n_intercepts=n_intercepts, middle=(lower + upper) / 2, half=(upper - lower) / 2
        )

    @property
    def bound(self) -> float:
        """The printed C_X: the largest value of an entry of (1, x)."""
        return float(np.max(np.abs(self.middle) + self.half, initial=1.0))

    def gradient(
        self, below: IntArray, records: Records, tau: Fraction, epsilon: Fraction
    ) -> tuple[IntArray, Fraction]:
        """Return the printed exponent, in whole steps of ``PRECISION`` nats, and a step."""
        signed = (below - float(tau) * records.total) / UNITS
        raw = signed[..., 1:] * self.half + signed[..., :1] * self.middle
        norm = np.maximum(np.abs(signed[..., 0]), np.abs(raw).max(axis=-1, initial=0))
        nats = float(epsilon) / (4 * (1 - float(tau)) * self.bound) * norm
        return np.rint(nats / PRECISION).astype(np.int64), Fraction(1, round(1 / PRECISION))

    def log_weights(self, candidates: Candidates) -> FloatArray:
        """Return the printed base measure: even, times exp(-c norm(theta)^2)."""
        slopes = (candidates.around[1:] + candidates.slopes) / self.half if len(self.half) else candidates.slopes
        moved = candidates.around[0] + candidates.intercepts.offsets[None, :] - (slopes @ self.middle)[:, None]
        decay = DECAY * (moved**2 + (slopes**2).sum(axis=1)[:, None])
        return np.asarray(super().log_weights(candidates) - decay)

    def parallel(self, records: Records, line: FloatArray) -> Records:
        """Return the records themselves: all entries of the gradient count."""
        return records

    def search(self, records: Records, tau: Fraction, epsilon: Fraction, chooser: Chooser) -> FloatArray:
        """Draw a line on one wide set of candidates."""
        if records.n_predictors not in ROUNDS:
            return super().search(records, tau, epsilon, chooser)
        found = self.around(records, records.start(), ROUNDS[records.n_predictors])
        return self.choose(records, found, tau, epsilon, chooser)


def true_epsilon(plan: Plan, n_predictors: int, epsilon: float) -> float:
    """Return what the printed sensitivity really costs in a column, under replace-one, if sampling is exact.

    See ``docs/proofs/kng.md``. For (1, x), 0 <= x_j <= C_X, C_X >= 1, in the largest entry, Delta_R is C_X, the printed
    one 2 (1 - tau) C_X, so a quantile costs epsilon_k / (2 (1 - tau)).
    """
    shares = plan.shares(n_predictors)
    return math.fsum(epsilon * float(share) / (2 * (1 - float(tau))) for tau, share in shares.items())
