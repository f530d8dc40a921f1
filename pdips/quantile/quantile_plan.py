"""The order in which the quantile lines of a column are chosen, at which shares of its budget, and the choosing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Literal, get_args

import numpy as np

from pdips.arrays import FloatArray
from pdips.data.encoding import UNITS
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Number, exact
from pdips.privacy.plan import Step
from pdips.quantile.column_plan import ColumnBudget
from pdips.quantile.gradient import LineRegression, once
from pdips.quantile.joint import JointQuantiles, rounding_price
from pdips.quantile.line_search import Fitter, SearchRound, sums
from pdips.quantile.quantile_grid import GridQuantiles, RecursiveQuantiles, check_quantiles

Scheme = Literal["plain", "stepwise", "sandwich", "joint", "recursive"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
AT_ONCE = ("joint", "recursive")  # Schemes that choose all intercepts of a column together

Slopes = Literal["fixed", "varying"]

MEDIAN = Fraction(1, 2)
MOST = Fraction(100)  # Nats that quantiles chosen at once may cost; of a larger budget the rest isn't spent
WIDE = SearchRound(share=Fraction(1), reach=1, n_slopes=96, n_intercepts=200)  # All of the plain scheme

LineSteps = Mapping[Fraction | None, tuple[Step, ...]]
"""By quantile what is asked to choose its line; None stands for all quantiles that are chosen together."""


@dataclass(frozen=True, kw_only=True)
class QuantilePlan:
    """Which quantiles, increasing, in which order and at which shares; all of it public. Settings as for ``KNG``."""

    taus: tuple[Fraction, ...]
    scheme: Scheme = "stepwise"
    slopes: Slopes = "fixed"
    main: tuple[Fraction, ...] = ()
    median_share: Fraction | None = None
    main_share: Fraction | None = None

    def __post_init__(self) -> None:
        if MEDIAN not in self.taus and not (self.scheme == "plain" and self.slopes == "varying"):
            raise InputError(
                f"scheme = {self.scheme} with slopes = {self.slopes} starts at the median: quantiles need 0.5"
            )
        if self.scheme in AT_ONCE:
            if self.slopes == "varying":
                raise InputError(f"scheme = {self.scheme} chooses intercepts only: take slopes = fixed")
            check_quantiles(self.taus)
        if self.scheme == "sandwich" and MEDIAN not in self.main:
            raise InputError("scheme = sandwich starts at the median: main needs 0.5")

    def shares(self, n_predictors: int) -> dict[Fraction, Fraction]:
        """Return the share of the budget of each quantile (Tran et al. 2023, section 4.1)."""
        if self.scheme == "plain":
            return dict.fromkeys(self.taus, Fraction(1, len(self.taus)))
        first = self.median_share or (Fraction(4, 5) if n_predictors else Fraction(1, 4))
        main = [tau for tau in self.taus if self.scheme != "sandwich" or tau in self.main]
        others = [tau for tau in self.taus if tau not in main]
        whole = self.main_share or (Fraction(4, 5) if n_predictors else Fraction(3, 5))
        whole = whole if others else Fraction(1)
        first = first if len(main) > 1 else Fraction(1)
        shares = {tau: whole * (first if tau == MEDIAN else (1 - first) / (len(main) - 1)) for tau in main}
        return shares | dict.fromkeys(others, (1 - whole) / max(len(others), 1))

    def order(self, n_predictors: int) -> list[tuple[Fraction, Sequence[Fraction]]]:
        """Return the quantiles in the order in which they are chosen, each with those that its line may not cross."""
        if self._separate(n_predictors):
            return [(tau, ()) for tau in self.taus]
        chosen = [MEDIAN]
        for group in [self.main, self.taus] if self.scheme == "sandwich" else [self.taus]:
            rest = [tau for tau in group if tau not in chosen]
            chosen += sorted((tau for tau in rest if tau < MEDIAN), reverse=True)
            chosen += sorted(tau for tau in rest if tau > MEDIAN)
        return [(tau, () if self.scheme == "plain" else chosen[:place]) for place, tau in enumerate(chosen)]

    def _separate(self, n_predictors: int) -> bool:
        """Whether each line is chosen on its own, of the same candidates."""
        return self.scheme == "plain" and (self.slopes == "varying" or not n_predictors)

    def steps(self, fitter: Fitter, budget: ColumnBudget, n_predictors: int) -> LineSteps:
        """Return what is asked to choose the lines of a column, in this order."""
        p, epsilon = n_predictors, budget.epsilon
        found: dict[Fraction | None, tuple[Step, ...]] = {}
        if self.scheme in AT_ONCE:
            share = (self.median_share or MEDIAN) if p else Fraction(0)
            rounding = rounding_price(len(self.taus), JointQuantiles.parts * (fitter.n_intercepts + 2))
            if self.scheme == "joint" and budget.per_record * (1 - share) < 2 * rounding:
                raise InputError(
                    "epsilon is too small for scheme = joint: rounding would take more than half of what the "
                    f"quantiles of {budget.item} have; take a larger epsilon, a smaller median_share, more even "
                    "shares (budget, births_share), or another scheme"
                )
            if p:
                found[MEDIAN] = fitter.searches(budget, "median line", MEDIAN, p, epsilon * share)
            return {**found, None: (budget.draw("quantiles", epsilon * (1 - share)),)}
        shares, separate = self.shares(p), self._separate(p)
        for tau, _ in self.order(p):
            name, price = f"quantile {tau}", epsilon * shares[tau]
            if tau == MEDIAN and p and not separate:
                found[tau] = fitter.searches(budget, name, tau, p, price)
            else:
                slopes = p if separate or self.slopes == "varying" else 0
                found[tau] = (fitter.choice(budget, name, tau, slopes, price),)
        return found

    def lines(self, regression: LineRegression, fitter: Fitter, steps: LineSteps, curator: Curator) -> FloatArray:
        """Choose the lines of all quantiles, shape (quantiles, p + 1); only by ``plain`` they may cross in the box."""
        p, found = regression.n_predictors, dict[Fraction, FloatArray]()
        start, fixed, separate = regression.start(), self.slopes == "fixed" or not p, self._separate(p)
        if self.scheme == "joint":  # each candidate stands for several
            fitter = replace(fitter, n_intercepts=max(fitter.n_intercepts // 2, 2))
        if p and not separate:
            start = found[MEDIAN] = fitter.search(regression, MEDIAN, steps[MEDIAN], curator)
            regression = fitter.parallel(regression, start) if fixed else regression
        middle = start[: 1 + regression.n_predictors]
        if self.scheme in AT_ONCE:
            intercepts = self._intercepts(regression, middle, not p, fitter, steps[None][0], curator)
            return np.array([[intercept, *start[1:]] for intercept in intercepts])
        wide = bool(p) and separate
        grid = fitter.around(regression, start, WIDE) if wide else fitter.beside(regression, middle, upwards=not p)
        below = once(lambda table: sums(regression.read(table), grid))
        for tau, before in self.order(p):
            if tau in found:
                continue
            lower = max((each for each in before if each < tau), default=None)
            upper = min((each for each in before if each > tau), default=None)
            floor, ceiling = (None if each is None else found[each][: len(middle)] for each in (lower, upper))
            if fixed or wide:
                found[tau] = fitter.choose(regression, grid, tau, steps[tau][0], curator, floor, ceiling, below)
                continue
            near = fitter.beside(regression, found[lower or upper or MEDIAN], slopes=True)
            found[tau] = fitter.choose(regression, near, tau, steps[tau][0], curator, floor, ceiling)
        return np.array([[found[tau][0], *(start if fixed else found[tau])[1:]] for tau in self.taus])

    def _intercepts(
        self, regression: LineRegression, line: FloatArray, upwards: bool, fitter: Fitter, step: Step, curator: Curator
    ) -> FloatArray:
        """Choose all intercepts together, as quantiles of an outcome without predictors, of offsets from a line."""
        grid = fitter.beside(regression, line, upwards=upwards, even=True)
        open_ = np.flatnonzero(fitter.allowed(regression, grid, None, None)[0])
        quantiles = JointQuantiles if self.scheme == "joint" else RecursiveQuantiles

        def distribution(table: Table) -> GridQuantiles:
            records = regression.read(table)
            return quantiles(
                cumulative=sums(records, grid)[0, open_, 0] // UNITS,
                n=len(records.outcome),
                taus=self.taus,
                epsilon=min(1 / step.scale, MOST),
                neighbours=fitter.neighbours,
            )

        return np.asarray(line[0] + grid.intercepts[open_[curator.draw(step, distribution)]])


def quantiles_of(given: int | Sequence[Number]) -> tuple[Fraction, ...]:
    """Return quantiles, so many or those named, as exact increasing rationals with denominators of at most 1,000."""
    if isinstance(given, int):
        if isinstance(given, bool) or not 1 <= given <= 499:
            raise InputError(f"quantiles must be a number from 1 to 499, or a list, got {given}")
        return tuple(Fraction(k, given + 1) for k in range(1, given + 1))
    found = [exact(each, "quantiles") for each in given]
    if len(found) == 1 and found[0] >= 1 and found[0].denominator == 1:  # a number, as the command line spells it
        return quantiles_of(int(found[0]))
    if not found:
        raise InputError("quantiles must name at least one")
    if not all(0 < tau < 1 for tau in found):
        raise InputError("quantiles must be above 0 and below 1")
    if any(b <= a for a, b in pairwise(found)):
        raise InputError("quantiles must increase: sort them, and give each once")
    if any(tau.denominator > 1_000 for tau in found):
        raise InputError("quantiles must be whole thousandths, or fractions with a denominator of at most 1,000")
    return tuple(found)
