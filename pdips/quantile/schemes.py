"""The schemes of paper 002: many quantile lines, each of which may use those that are released already."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.encoding import UNITS
from pdips.quantile.choosing import AtOnce, Chooser
from pdips.quantile.line_search import Candidates, Fitter, Records, nearest, parallel, sums
from pdips.quantile.spreads import Round

Scheme = Literal["plain", "stepwise", "sandwich", "joint", "recursive"]
SCHEMES: tuple[Scheme, ...] = ("plain", "stepwise", "sandwich", "joint", "recursive")
Slopes = Literal["fixed", "varying"]

MEDIAN = Fraction(1, 2)
MOST = Fraction(100)
"""Nats that quantiles chosen at once may cost; of a larger budget the rest isn't spent."""

WIDE = Round(share=Fraction(1), reach=1, n_slopes=96, n_intercepts=200)
"""All lines of the plain scheme are chosen from these."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which quantiles, in which order, at which shares; all of it public.

    Parameters
    ----------
    taus : tuple of Fraction
        The quantiles, increasing.
    scheme, slopes
        See :class:`pdips.KNG`.
    main : tuple of Fraction
        The quantiles that ``sandwich`` chooses first.
    median_share, main_share : Fraction, optional
        Shares of the budget; the paper's if left out.
    """

    taus: tuple[Fraction, ...]
    scheme: Scheme = "stepwise"
    slopes: Slopes = "fixed"
    main: tuple[Fraction, ...] = ()
    median_share: Fraction | None = None
    main_share: Fraction | None = None

    def shares(self, n_predictors: int) -> dict[Fraction, Fraction]:
        """Return the share of the budget of each quantile (paper 002, section 4.1)."""
        if self.scheme == "plain":
            return dict.fromkeys(self.taus, Fraction(1, len(self.taus)))
        first = self.median_share or (Fraction(4, 5) if n_predictors else Fraction(1, 4))
        if self.scheme != "sandwich":
            return _split(self.taus, first)
        main = [tau for tau in self.taus if tau in self.main]
        others = [tau for tau in self.taus if tau not in self.main]
        whole = self.main_share or (Fraction(4, 5) if n_predictors else Fraction(3, 5))
        whole = whole if others else Fraction(1)
        shares = {tau: whole * share for tau, share in _split(main, first).items()}
        return shares | dict.fromkeys(others, (1 - whole) / max(len(others), 1))

    def order(self) -> list[tuple[Fraction, Sequence[Fraction]]]:
        """Return the quantiles in the order in which they are chosen, the median first, each with those before it."""
        chosen = [MEDIAN]
        groups = [self.main, self.taus] if self.scheme == "sandwich" else [self.taus]
        for group in groups:
            rest = [tau for tau in group if tau not in chosen]
            below = sorted((tau for tau in rest if tau < MEDIAN), reverse=True)
            above = sorted(tau for tau in rest if tau > MEDIAN)
            chosen += [*below, *above]
        return [(tau, chosen[:place]) for place, tau in enumerate(chosen)]


def _split(taus: Sequence[Fraction], median: Fraction) -> dict[Fraction, Fraction]:
    if len(taus) == 1:
        return {taus[0]: Fraction(1)}
    return {tau: median if tau == MEDIAN else (1 - median) / (len(taus) - 1) for tau in taus}


def lines_of(records: Records, plan: Plan, fitter: Fitter, epsilon: Fraction, chooser: Chooser) -> FloatArray:
    """Choose the lines of all quantiles.

    Parameters
    ----------
    records : Records
        Outcome and predictors.
    plan, fitter : Plan, Fitter
        How.
    epsilon : Fraction
        For all lines together.
    chooser : Chooser
        Who draws.

    Returns
    -------
    ndarray, shape (quantiles, p + 1)
        In the order of ``plan.taus``; they don't cross in the box, except by ``scheme="plain"``.
    """
    shares = {tau: epsilon * share for tau, share in plan.shares(records.n_predictors).items()}
    if plan.scheme in ("joint", "recursive"):
        found = _at_once(records, plan, fitter, epsilon, chooser)
    elif plan.scheme == "plain":
        found = _separate(records, plan, fitter, shares, chooser)
    elif plan.slopes == "fixed" or not records.n_predictors:
        found = _side_by_side(records, plan, fitter, shares, chooser)
    else:
        found = _one_by_one(records, plan, fitter, shares, chooser)
    return np.array([found[tau] for tau in plan.taus])


def _separate(
    records: Records, plan: Plan, fitter: Fitter, shares: Mapping[Fraction, Fraction], chooser: Chooser
) -> dict[Fraction, FloatArray]:
    """Each quantile on its own; with fixed slopes, those of the median."""
    if plan.slopes == "varying" or not records.n_predictors:
        grid = fitter.beside(records, records.start(), upwards=True)
        if records.n_predictors:
            grid = fitter.around(records, records.start(), WIDE)
        below = sums(records, grid)
        return {tau: fitter.choose(records, grid, tau, shares[tau], chooser, below=below) for tau in plan.taus}
    median = fitter.search(records, MEDIAN, shares[MEDIAN], chooser)
    beside = fitter.parallel(records, median)
    grid = fitter.beside(beside, median[: 1 + beside.n_predictors])
    below, found = sums(beside, grid), {MEDIAN: median}
    for tau in plan.taus:
        if tau != MEDIAN:
            line = fitter.choose(beside, grid, tau, shares[tau], chooser, below=below)
            found[tau] = np.concatenate([line[:1], median[1:]])
    return found


def _side_by_side(
    records: Records, plan: Plan, fitter: Fitter, shares: Mapping[Fraction, Fraction], chooser: Chooser
) -> dict[Fraction, FloatArray]:
    """The median, and lines parallel to it, by the gradient of the intercept alone."""
    if records.n_predictors:
        median = fitter.search(records, MEDIAN, shares[MEDIAN], chooser)
        records = fitter.parallel(records, median)
        grid = fitter.beside(records, median[: 1 + records.n_predictors])
    else:
        grid = fitter.beside(records, records.start(), upwards=True)
        median = fitter.choose(records, grid, MEDIAN, shares[MEDIAN], chooser)
    found, below = {MEDIAN: median[: 1 + records.n_predictors]}, sums(records, grid)
    for tau, before in plan.order()[1:]:
        found[tau] = _between(records, grid, tau, before, found, fitter, shares[tau], chooser, below)
    return {tau: np.concatenate([line[:1], median[1:]]) for tau, line in found.items()}


def _at_once(
    records: Records, plan: Plan, fitter: Fitter, epsilon: Fraction, chooser: Chooser
) -> dict[Fraction, FloatArray]:
    """Return lines with the slopes of the median, whose intercepts are quantiles of residuals, chosen together."""
    slopes = np.zeros(records.n_predictors)
    if plan.scheme == "joint":  # each point stands for several
        fitter = replace(fitter, n_intercepts=max(fitter.n_intercepts // 2, 2))
    grid = fitter.beside(records, records.start(), upwards=True, even=True)
    if records.n_predictors:
        share = plan.median_share or Fraction(1, 2)
        median = fitter.search(records, MEDIAN, epsilon * share, chooser)
        slopes, epsilon = median[1:], epsilon * (1 - share)
        records = parallel(records, median)
        grid = fitter.beside(records, median[:1], even=True)
    open_ = np.flatnonzero(fitter.allowed(records, grid, None, None)[0])
    below = sums(records, grid)[0, open_, 0] // UNITS
    how = AtOnce(
        scheme=plan.scheme,
        taus=plan.taus,
        epsilon=min(epsilon / fitter.cap, MOST),
        neighbours=fitter.neighbours,
    )
    places = chooser.quantiles(below, len(records.outcome), how)
    return {tau: np.concatenate([grid.line(int(open_[k])), slopes]) for tau, k in zip(plan.taus, places, strict=True)}


def _one_by_one(
    records: Records, plan: Plan, fitter: Fitter, shares: Mapping[Fraction, Fraction], chooser: Chooser
) -> dict[Fraction, FloatArray]:
    """The median, and lines with slopes of their own that cross none of those before."""
    found = {MEDIAN: fitter.search(records, MEDIAN, shares[MEDIAN], chooser)}
    for tau, before in plan.order()[1:]:
        below, above = nearest(before, tau, -1), nearest(before, tau, 1)
        neighbour = above if below is None else below
        assert neighbour is not None  # the median is
        candidates = fitter.beside(records, found[neighbour], slopes=True)
        found[tau] = _between(records, candidates, tau, before, found, fitter, shares[tau], chooser)
    return found


def _between(
    records: Records,
    candidates: Candidates,
    tau: Fraction,
    before: Sequence[Fraction],
    found: Mapping[Fraction, FloatArray],
    fitter: Fitter,
    epsilon: Fraction,
    chooser: Chooser,
    below: IntArray | None = None,
) -> FloatArray:
    """Choose a line between the nearest that are released."""
    lower, upper = nearest(before, tau, -1), nearest(before, tau, 1)
    floor = None if lower is None else found[lower]
    ceiling = None if upper is None else found[upper]
    return fitter.choose(records, candidates, tau, epsilon, chooser, floor, ceiling, below)
