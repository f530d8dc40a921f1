"""The order in which the quantile lines of a column are chosen, at which shares of its
budget, and the choosing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

import numpy as np

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Number, exact
from pdips.privacy.plan import Step
from pdips.quantile.column_plan import ColumnBudget
from pdips.quantile.gradient import LineRegression, once
from pdips.quantile.line_search import Fitter, SearchRound, sums

Scheme = Literal["plain", "stepwise", "sandwich"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)

Slopes = Literal["fixed", "varying"]

MEDIAN = Fraction(1, 2)
# All of the plain scheme
WIDE = SearchRound(share=Fraction(1), reach=1, n_slopes=96, n_intercepts=200)

LineSteps = Mapping[Fraction, tuple[Step, ...]]
"""By quantile what is asked to choose its line."""


class UsualShares(NamedTuple):
    """Of the main quantiles' budget for the median, and of a column's for the main."""

    median: Fraction
    main: Fraction


USUAL_SHARES = {
    False: UsualShares(Fraction(1, 4), Fraction(3, 5)),
    True: UsualShares(Fraction(4, 5), Fraction(4, 5)),
}
"""By whether a column has predictors (Tran et al. 2023, section 4.1)."""


@dataclass(frozen=True, kw_only=True)
class QuantilePlan:
    """Which quantiles, increasing, in which order and at which shares; all of it
    public. Settings as for ``KNG``.
    """

    taus: tuple[Fraction, ...]
    scheme: Scheme = "stepwise"
    slopes: Slopes = "fixed"
    main: tuple[Fraction, ...] = ()
    median_share: Fraction | None = None
    main_share: Fraction | None = None

    def __post_init__(self) -> None:
        needs_median = self.scheme != "plain" or self.slopes != "varying"
        if needs_median and MEDIAN not in self.taus:
            raise InputError(
                f"scheme = {self.scheme} with slopes = {self.slopes} starts at the "
                f"median: quantiles need 0.5"
            )
        if self.scheme == "sandwich" and MEDIAN not in self.main:
            raise InputError("scheme = sandwich starts at the median: main needs 0.5")

    def shares(self, n_predictors: int) -> dict[Fraction, Fraction]:
        """Return the share of the budget of each quantile (Tran et al. 2023, section
        4.1).
        """
        if self.scheme == "plain":
            return dict.fromkeys(self.taus, Fraction(1, len(self.taus)))
        main = self.taus
        if self.scheme == "sandwich":
            main = tuple(tau for tau in self.taus if tau in self.main)
        others = [tau for tau in self.taus if tau not in main]
        besides = [tau for tau in main if tau != MEDIAN]
        usual = USUAL_SHARES[n_predictors > 0]
        first = self.median_share or usual.median
        if not besides:
            first = Fraction(1)
        whole = self.main_share or usual.main
        if not others:
            whole = Fraction(1)
        shares = {MEDIAN: whole * first}
        shares |= dict.fromkeys(besides, whole * (1 - first) / max(len(besides), 1))
        return shares | dict.fromkeys(others, (1 - whole) / max(len(others), 1))

    def order(self, n_predictors: int) -> list[tuple[Fraction, Sequence[Fraction]]]:
        """Return the quantiles in the order in which they are chosen, each with those
        that its line may not cross.
        """
        if self._separate(n_predictors):
            return [(tau, ()) for tau in self.taus]
        groups = [self.main, self.taus] if self.scheme == "sandwich" else [self.taus]
        chosen = [MEDIAN]
        for group in groups:
            rest = [tau for tau in group if tau not in chosen]
            chosen += sorted((tau for tau in rest if tau < MEDIAN), reverse=True)
            chosen += sorted(tau for tau in rest if tau > MEDIAN)
        if self.scheme == "plain":
            return [(tau, ()) for tau in chosen]
        return [(tau, chosen[:n_before]) for n_before, tau in enumerate(chosen)]

    def _separate(self, n_predictors: int) -> bool:
        """Whether each line is chosen on its own, of the same candidates."""
        return self.scheme == "plain" and (self.slopes == "varying" or not n_predictors)

    def steps(
        self, fitter: Fitter, budget: ColumnBudget, n_predictors: int
    ) -> LineSteps:
        """Return what is asked to choose the lines of a column, in this order."""
        p = n_predictors
        steps: dict[Fraction, tuple[Step, ...]] = {}
        shares = self.shares(p)
        separate = self._separate(p)
        slopes = p if separate or self.slopes == "varying" else 0
        for tau, _ in self.order(p):
            name = f"quantile {tau}"
            price = budget.epsilon * shares[tau]
            if tau == MEDIAN and p and not separate:
                steps[tau] = fitter.searches(budget, name, tau, p, price)
            else:
                steps[tau] = (fitter.choice(budget, name, tau, slopes, price),)
        return steps

    def lines(
        self,
        regression: LineRegression,
        fitter: Fitter,
        steps: LineSteps,
        curator: Curator,
    ) -> FloatArray:
        """Choose the lines of all quantiles, shape (quantiles, p + 1); only by
        ``plain`` they may cross in the box.
        """
        p = regression.n_predictors
        lines = dict[Fraction, FloatArray]()
        start = regression.start()
        fixed = self.slopes == "fixed" or not p
        separate = self._separate(p)
        if p and not separate:
            start = fitter.search(regression, MEDIAN, steps[MEDIAN], curator)
            lines[MEDIAN] = start
            if fixed:
                regression = fitter.parallel(regression, start)
        middle = start[: 1 + regression.n_predictors]
        wide = bool(p) and separate
        if wide:
            grid = fitter.around(regression, start, WIDE)
        else:
            grid = fitter.beside(regression, middle, upwards=not p)
        below = once(lambda table: sums(regression.read(table), grid))
        for tau, before in self.order(p):
            if tau in lines:
                continue
            lower, upper = _nearest(tau, before)
            floor = _part_of(lines, lower, middle)
            ceiling = _part_of(lines, upper, middle)
            (step,) = steps[tau]
            if fixed or wide:
                candidates = grid.between(floor, ceiling)
                lines[tau] = fitter.choose(
                    regression, candidates, tau, step, curator, below
                )
                continue
            nearest = lines[lower or upper or MEDIAN]
            near = fitter.beside(regression, nearest, slopes=True)
            candidates = near.between(floor, ceiling)
            lines[tau] = fitter.choose(regression, candidates, tau, step, curator)
        if fixed:
            return np.array([[lines[tau][0], *start[1:]] for tau in self.taus])
        return np.array([lines[tau] for tau in self.taus])


def _nearest(
    tau: Fraction, before: Sequence[Fraction]
) -> tuple[Fraction | None, Fraction | None]:
    """Return the nearest quantiles below and above."""
    lower = max((other for other in before if other < tau), default=None)
    upper = min((other for other in before if other > tau), default=None)
    return lower, upper


def _part_of(
    lines: Mapping[Fraction, FloatArray], tau: Fraction | None, middle: FloatArray
) -> FloatArray | None:
    """Return as many coefficients of a line as are chosen."""
    return None if tau is None else lines[tau][: len(middle)]


def quantiles_of(given: int | Sequence[Number]) -> tuple[Fraction, ...]:
    """Return quantiles, so many or those named, as exact increasing rationals with
    denominators of at most 1,000.
    """
    if isinstance(given, int):
        if isinstance(given, bool) or not 1 <= given <= 499:
            raise InputError(
                f"quantiles must be a number from 1 to 499, or a list, got {given}"
            )
        return tuple(Fraction(k, given + 1) for k in range(1, given + 1))
    taus = tuple(exact(tau, "quantiles") for tau in given)
    # a number, as the command line spells it
    if len(taus) == 1 and taus[0] >= 1 and taus[0].denominator == 1:
        return quantiles_of(int(taus[0]))
    if not taus:
        raise InputError("quantiles must name at least one")
    if not all(0 < tau < 1 for tau in taus):
        raise InputError("quantiles must be above 0 and below 1")
    if any(upper <= lower for lower, upper in pairwise(taus)):
        raise InputError("quantiles must increase: sort them, and give each once")
    if any(tau.denominator > 1_000 for tau in taus):
        raise InputError(
            "quantiles must be whole thousandths, or fractions with a "
            "denominator of at most 1,000"
        )
    return taus
