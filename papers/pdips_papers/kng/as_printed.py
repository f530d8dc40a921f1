"""The K-norm gradient density as Tran et al. (2023) print it: sensitivity too small
above the median. Never private.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.encoding import UNITS, Box, Scale
from pdips.privacy.curator import Curator
from pdips.privacy.plan import Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.quantile.column_plan import ColumnBudget, NumericPart
from pdips.quantile.gradient import LineRegression
from pdips.quantile.kng import KNG
from pdips.quantile.line_search import Candidates, Fitter, SearchRound
from pdips.quantile.quantile_plan import QuantilePlan
from pdips_papers.harness.printed import Printed

PRECISION = 1e-6
"""Nats to which scores are rounded."""
DECAY = 1e-5
"""The printed base measure is exp(-DECAY norm(theta)^2)."""

ROUNDS = {
    1: SearchRound(
        share=Fraction(1), reach=1, n_slopes=250, n_intercepts=400, uniform=True
    ),
    2: SearchRound(
        share=Fraction(1),
        reach=1 / 4,
        n_slopes=20,
        n_intercepts=100,
        uniform=True,
        grid=True,
    ),
}


@dataclass(frozen=True, kw_only=True)
class PublishedFitter(Fitter):
    """Lines drawn from exp(-epsilon / (4 (1 - tau) C_X) norm(G) - c norm(theta)^2),
    equation 5, on our candidates.

    The norm is the largest entry, as in the authors' code, of sums of (1, x) with x in
    its own units; with fixed slopes all entries count. Lines don't cross in the public
    box, where the paper looks at the confidential rows.
    """

    middle: FloatArray
    half: FloatArray
    cap: Fraction

    @classmethod
    def of(cls, box: Box, n_intercepts: int) -> "PublishedFitter":
        """Return the fitter for predictors."""
        ends: list[tuple[float, float]] = []
        for name in box.names:
            column = box.schema.columns[name]
            if column.is_categorical:
                ends += [(0.0, 1.0)] * (column.n_levels - 1)
                continue
            low, high = Scale(column).bounds
            ends.append(
                (
                    low,
                    float(Scale(column).there(np.array([box.caps[name]]))[0])
                    if name in box.caps
                    else high,
                )
            )
            ends += [(0.0, 1.0)] * bool(column.missing)
        lower, upper = np.array(ends).reshape(-1, 2).T
        cap = Sensitivity.of_record(box.schema, l1=1).l1
        middle = (lower + upper) / 2
        half = (upper - lower) / 2
        return cls(
            base="uniform", cap=cap, n_intercepts=n_intercepts, middle=middle, half=half
        )

    @property
    def bound(self) -> float:
        """The printed C_X: the largest value of an entry of (1, x)."""
        return float(np.max(np.abs(self.middle) + self.half, initial=1.0))

    def choice(
        self,
        budget: ColumnBudget,
        name: str,
        tau: Fraction,
        n_predictors: int,
        price: Fraction,
    ) -> Step:
        """Return the step that chooses a line, whose scores are in steps of
        ``PRECISION`` nats.
        """
        step = super().choice(budget, name, tau, n_predictors, price)
        return replace(
            step,
            sensitivity=Sensitivity.of_person(l1=step.price * round(1 / PRECISION)),
        )

    def searches(
        self,
        budget: ColumnBudget,
        name: str,
        tau: Fraction,
        n_predictors: int,
        price: Fraction,
    ) -> tuple[Step, ...]:
        """Return the step of a draw on one wide set of candidates."""
        if n_predictors not in ROUNDS:
            return super().searches(budget, name, tau, n_predictors, price)
        return (self.choice(budget, name, tau, n_predictors, price),)

    def steps(
        self, below: IntArray, total: IntArray, tau: Fraction, step: Step
    ) -> IntArray:
        """Return the printed exponent, in whole steps of ``PRECISION`` nats."""
        signed = (below - float(tau) * total) / UNITS
        raw = signed[..., 1:] * self.half + signed[..., :1] * self.middle
        norm = np.maximum(np.abs(signed[..., 0]), np.abs(raw).max(axis=-1, initial=0))
        nats = float(step.price / self.cap) / (4 * (1 - float(tau)) * self.bound) * norm
        return np.asarray(np.rint(nats / PRECISION), dtype=np.int64)

    def log_weights(self, candidates: Candidates) -> FloatArray:
        """Return the printed base measure: even, times exp(-c norm(theta)^2)."""
        slopes = (
            (candidates.around[1:] + candidates.slopes) / self.half
            if len(self.half)
            else candidates.slopes
        )
        moved = (
            candidates.around[0]
            + candidates.intercepts[None, :]
            - (slopes @ self.middle)[:, None]
        )
        decay = DECAY * (moved**2 + (slopes**2).sum(axis=1)[:, None])
        return np.asarray(super().log_weights(candidates) - decay)

    def parallel(self, regression: LineRegression, line: FloatArray) -> LineRegression:
        """Return the regression itself: all entries of the gradient count."""
        return regression

    def search(
        self,
        regression: LineRegression,
        tau: Fraction,
        steps: Sequence[Step],
        curator: Curator,
    ) -> FloatArray:
        """Draw a line on one wide set of candidates."""
        if regression.n_predictors not in ROUNDS:
            return super().search(regression, tau, steps, curator)
        found = self.around(
            regression, regression.start(), ROUNDS[regression.n_predictors]
        )
        return self.choose(regression, found, tau, steps[0], curator)


@dataclass(frozen=True, kw_only=True)
class PrintedKNG(Printed, KNG):
    """Quantile regressions by the K-norm gradient mechanism with the sensitivity that
    Tran et al. (2023) print.

    2 (1 - tau) C_X is too small for tau > 1/2: kind "none", for studies and audits
    only. The settings are those of :class:`pdips.KNG`; ``norm`` and ``base`` are the
    paper's, whatever they are set to.
    """

    def fitter(self, part: NumericPart) -> Fitter:
        """Return how the lines of a column are chosen."""
        return PublishedFitter.of(part.box, self.n_candidates)


def true_epsilon(plan: QuantilePlan, n_predictors: int, epsilon: float) -> float:
    """Return what the printed sensitivity really costs in a column, under replace-one,
    if sampling is exact.

    For (1, x) with 0 <= x_j <= C_X, C_X >= 1, in the largest entry, Delta_R is C_X and
    the printed one 2 (1 - tau) C_X, so a quantile costs epsilon_k / (2 (1 - tau)):
    ``docs/proofs/kng.md``, section 6.
    """
    shares = plan.shares(n_predictors)
    return math.fsum(
        epsilon * float(share) / (2 * (1 - float(tau))) for tau, share in shares.items()
    )
