"""The K-norm gradient density as paper 002 prints it: too small a sensitivity above the median. Never private."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.encoding import UNITS, Box, Scale
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.mechanism import Variant
from pdips.privacy.loss import Neighbours, PrivacyLoss, exact
from pdips.quantile.choosing import Chooser
from pdips.quantile.column_plan import ColumnTask
from pdips.quantile.gradient import RegressionRecords
from pdips.quantile.kng import AT_ONCE, KNG, QuantilePlan
from pdips.quantile.line_search import Candidates, Fitter, SearchRound

PRECISION = 1e-6
"""Nats to which scores are rounded."""
DECAY = 1e-5
"""The printed base measure is exp(-DECAY norm(theta)^2)."""

ROUNDS = {
    1: SearchRound(share=Fraction(1), reach=1, n_slopes=250, n_intercepts=400, uniform=True),
    2: SearchRound(share=Fraction(1), reach=1 / 4, n_slopes=20, n_intercepts=100, uniform=True, grid=True),
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
        self, below: IntArray, records: RegressionRecords, tau: Fraction, epsilon: Fraction
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

    def parallel(self, records: RegressionRecords, line: FloatArray) -> RegressionRecords:
        """Return the records themselves: all entries of the gradient count."""
        return records

    def search(self, records: RegressionRecords, tau: Fraction, epsilon: Fraction, chooser: Chooser) -> FloatArray:
        """Draw a line on one wide set of candidates."""
        if records.n_predictors not in ROUNDS:
            return super().search(records, tau, epsilon, chooser)
        found = self.around(records, records.start(), ROUNDS[records.n_predictors])
        return self.choose(records, found, tau, epsilon, chooser)


FLAW = (
    "NO GUARANTEE. As published (paper 002, equation 5): the sensitivity 2 (1 - tau) C_X is too small for tau > 1/2, "
    "by a factor of 1 / (2 (1 - tau)), 50 at the 99th percentile, so the true loss exceeds epsilon."
)
"""The statement of the printed form."""


@dataclass(frozen=True, kw_only=True)
class PrintedKNG(KNG):
    """Quantile regressions by the K-norm gradient mechanism with the sensitivity that paper 002 prints.

    2 (1 - tau) C_X is too small for tau > 1/2: kind "none", for studies and audits only. The settings are those of
    :class:`pdips.KNG`; ``norm`` and ``base`` are the paper's, whatever they are set to, and the default scheme is
    sandwich.

    Raises
    ------
    InputError
        If a setting is out of range, or the scheme isn't one of the paper's.
    """

    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one",)
    variants: ClassVar[tuple[Variant, ...]] = ("published",)
    variant: ClassVar[str] = "published"

    def __post_init__(self) -> None:
        """Check the settings that need no schema."""
        object.__setattr__(self, "scheme", self.scheme or "sandwich")
        super().__post_init__()
        if self.scheme in AT_ONCE:
            raise InputError("variant = published follows paper 002: scheme = plain, stepwise or sandwich")

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the claim, which is wrong."""
        epsilon = exact(self.epsilon, "epsilon")
        return PrivacyLoss(epsilon=epsilon, neighbours=self.neighbours, kind="none", statement=FLAW)

    def fitter(self, task: ColumnTask) -> Fitter:
        """Return how the lines of a column are chosen."""
        return PublishedFitter.of(task.box, task.cap, self.n_candidates)

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return super().settings() | {"variant": self.variant}


def true_epsilon(plan: QuantilePlan, n_predictors: int, epsilon: float) -> float:
    """Return what the printed sensitivity really costs in a column, under replace-one, if sampling is exact.

    For (1, x) with 0 <= x_j <= C_X, C_X >= 1, in the largest entry, Delta_R is C_X and the printed one 2 (1 - tau) C_X,
    so a quantile costs epsilon_k / (2 (1 - tau)): ``docs/proofs/kng.md``, section 6.
    """
    shares = plan.shares(n_predictors)
    return math.fsum(epsilon * float(share) / (2 * (1 - float(tau))) for tau, share in shares.items())
