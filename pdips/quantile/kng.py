"""kng: quantile regressions by the K-norm gradient mechanism, and records drawn from them (paper 002)."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Literal

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.encoding import UNITS
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Number, choice, exact
from pdips.privacy.plan import Plan, Step
from pdips.quantile.column_plan import ColumnBudget, ColumnPlan, NumericPart
from pdips.quantile.column_synthesis import ColumnSynthesis, ColumnTask
from pdips.quantile.conditional import Between, Draw, LineDraw
from pdips.quantile.gradient import NORMS, LineRegression, Norm, once
from pdips.quantile.joint import JointQuantiles, rounding_price
from pdips.quantile.line_search import BASES, Base, Candidates, Fitter, SearchRound, sums
from pdips.quantile.quantile_grid import GridQuantiles, check_quantiles
from pdips.quantile.recursive import RecursiveQuantiles

Scheme = Literal["plain", "stepwise", "sandwich", "joint", "recursive"]
SCHEMES: tuple[Scheme, ...] = ("plain", "stepwise", "sandwich", "joint", "recursive")
AT_ONCE = ("joint", "recursive")
"""Schemes that choose all intercepts of a column together."""

Slopes = Literal["fixed", "varying"]

MEDIAN = Fraction(1, 2)
MOST = Fraction(100)
"""Nats that quantiles chosen at once may cost; of a larger budget the rest isn't spent."""

WIDE = SearchRound(share=Fraction(1), reach=1, n_slopes=96, n_intercepts=200)
"""All lines of the plain scheme are chosen from these."""

QUANTILES = tuple(f"{k}/100" for k in (*range(1, 48, 2), 50, *range(53, 100, 2)))
MAIN = ("1/20", "1/4", "1/2", "3/4", "19/20", "99/100")
"""The 49 quantiles and the 6 main ones of the paper's simulation (section 4.1)."""


LINES = (
    "quantile regression lines that the K-norm gradient mechanism chose among public candidates, with exactly the "
    "probabilities of its formula"
)
QUANTILES_BY = {
    "joint": "quantiles, all of a column chosen in one exact draw among public values, about a median line that the "
    "K-norm gradient mechanism chose where a column has predictors",
    "recursive": "quantiles, those of a column chosen exactly among public values by halving again and again, about a "
    "median line that the K-norm gradient mechanism chose where a column has predictors",
}
"""What numeric columns are drawn from, by scheme."""


@dataclass(frozen=True, kw_only=True)
class KNG(ColumnSynthesis):
    """Quantile regressions of each column on those before it, by the K-norm gradient mechanism.

    Its other settings are those of :class:`pdips.quantile.column_synthesis.ColumnSynthesis`: epsilon, sets, neighbours,
    and what is said by column.

    Parameters
    ----------
    scheme : {"plain", "stepwise", "sandwich", "joint", "recursive"}, optional
        Each quantile on its own; from the median outwards; main quantiles first, the others between them (paper 002);
        all intercepts at once (Gillenwater, Joseph and Kulesza 2021); or the middle one first and each half on its own
        records (Kaplan, Schnapp and Stemmer 2022).
        By default joint; sandwich where slopes vary.
    slopes : {"fixed", "varying"}
        Whether all lines of a column are parallel to the median's.
    quantiles : int or tuple of numbers
        How many, evenly spaced, or which; by default the paper's 49.
    main : tuple of numbers
        Those that ``sandwich`` chooses first.
    median_share, main_share : int, float, str or Fraction, optional
        Share of a column's budget (of its main quantiles' in sandwich) for the median, and share for the main
        quantiles; the paper's by default.
    sampler : {"exact"}
        Lines are drawn exactly, of public candidates. ``"hit-and-run"``, Markov chains over a public box, is refused.
    norm : {"hull", "linf", "l1"}
        Of the gradient; ``"hull"`` has the least noise.
    base : {"log", "uniform"}
        Base measure of intercepts: even on a scale that grows away from the lower bound, or even.
    between : {"interpolate", "quantile"}
        Whether synthetic values lie between the quantiles too.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Every line is drawn exactly from exp(-epsilon_k / (2 Delta) norm(G)) on public candidates, with a tight Delta; lines
    don't cross anywhere in the public box of the predictors. Proof: ``docs/proofs/kng.md``, theorem 1 and lemma 3.

    Examples
    --------
    >>> schema = Schema(columns={"wage": Column(lower=0, upper=1000, bins=100)})
    >>> table = Table(pd.DataFrame({"wage": np.linspace(100, 900, 60)}), schema)
    >>> release, record = KNG(epsilon=1, quantiles=("1/4", "1/2", "3/4")).release(table)
    >>> release.sets[0]["wage"].between(0, 1000).all()
    np.True_
    """

    name: ClassVar[str] = "kng"

    scheme: Scheme | None = None
    slopes: Slopes = "fixed"
    quantiles: int | tuple[Number, ...] = QUANTILES
    main: tuple[Number, ...] = MAIN
    median_share: Number | None = None
    main_share: Number | None = None
    sampler: Literal["exact"] = "exact"
    norm: Norm = "hull"
    base: Base = "log"
    between: Between = "interpolate"

    def __post_init__(self) -> None:
        """Check the settings that need no schema."""
        super().__post_init__()
        if self.scheme is None:
            object.__setattr__(self, "scheme", "joint" if self.slopes == "fixed" else "sandwich")
        choice(str(self.scheme), SCHEMES, "scheme")
        choice(self.slopes, ("fixed", "varying"), "slopes")
        if self.sampler != "exact":
            raise InputError(
                "sampler must be exact: lines are exact draws of public candidates; hit-and-run, whose chains nothing "
                "certified, is no longer offered"
            )
        choice(self.norm, NORMS, "norm")
        choice(self.base, BASES, "base")
        choice(self.between, ("interpolate", "quantile"), "between")
        self.quantile_plan  # noqa: B018 - refuses quantiles that don't fit the scheme

    @property
    def quantile_plan(self) -> "QuantilePlan":
        """Which quantiles, in which order."""
        shares = {name: getattr(self, name) for name in ("median_share", "main_share")}
        return QuantilePlan(
            taus=quantiles_of(self.quantiles),
            scheme=self.scheme or "joint",
            slopes=self.slopes,
            main=tuple(tau for tau in quantiles_of(self.main) if tau in quantiles_of(self.quantiles)),
            **{name: None if share is None else exact(share, name) for name, share in shares.items()},
        )

    @property
    def numbers_from(self) -> str:
        """What the statement says numeric columns are drawn from."""
        return QUANTILES_BY.get(str(self.scheme), LINES)

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: counts of levels, and the lines of each numeric column."""
        plan = super().plan(schema)
        if self.scheme == "joint":
            self._check_rounding(plan.design)
        return plan

    def _check_rounding(self, columns: ColumnPlan) -> None:
        median = self.quantile_plan.median_share or MEDIAN
        rounding = rounding_price(len(self.quantile_plan.taus), JointQuantiles.parts * (self.n_candidates + 2))
        for name in columns.numeric:
            if columns.least(name) * (1 - median if columns.n_predictors(name) else 1) < 2 * rounding:
                raise InputError(
                    f"epsilon is too small for scheme = joint: rounding would take more than half of what the "
                    f"quantiles of column {name!r} have; take a larger epsilon, a smaller median_share, more even "
                    "shares (budget, births_share), or another scheme"
                )

    def check(self, plan: Plan, table: Table) -> None:
        """Refuse tables outside of the universe of the guarantee, before anything is spent.

        Raises
        ------
        InputError
            If there are too many records, fewer than quantiles where their number is public, or years don't fit.
        """
        super().check(plan, table)
        if plan.design.numeric and plan.n_public and table.n_records < len(self.quantile_plan.taus):
            raise InputError("there are fewer records than quantiles: take fewer quantiles")

    def fitter(self, part: NumericPart) -> Fitter:
        """Return how the lines of a column are chosen."""
        return Fitter(norm=self.norm, base=self.base, neighbours=part.budget.in_stratum, n_intercepts=self.n_candidates)

    def steps(self, part: NumericPart) -> tuple[Step, ...]:
        """Return what is asked of each stratum: the lines, in the order in which they are chosen."""
        priced = line_steps(self.quantile_plan, self.fitter(part), part.budget, part.box.n_predictors)
        return tuple(step for steps in priced.values() for step in steps)

    def fit(self, task: ColumnTask, curator: Curator) -> Draw:
        """Choose the lines of a column."""
        fitter = replace(self.fitter(task.part), keep=task.keep, rng=task.rng)
        steps = line_steps(self.quantile_plan, fitter, task.part.budget, task.box.n_predictors)
        lines = lines_of(task.regression, self.quantile_plan, fitter, steps, curator)
        taus = np.array([float(tau) for tau in self.quantile_plan.taus])
        return LineDraw(task.column, task.box, taus, lines, self.between)


@dataclass(frozen=True, kw_only=True)
class QuantilePlan:
    """Which quantiles, in which order, at which shares; all of it public.

    Parameters
    ----------
    taus : tuple of Fraction
        The quantiles, increasing.
    scheme, slopes : str
        In which order lines are chosen, and whether they are parallel, as for :class:`pdips.KNG`.
    main : tuple of Fraction
        The quantiles that ``sandwich`` chooses first.
    median_share, main_share : Fraction, optional
        Shares of the budget; the paper's if left out.

    Raises
    ------
    InputError
        If quantiles, shares, slopes and scheme don't go together.
    """

    taus: tuple[Fraction, ...]
    scheme: Scheme = "stepwise"
    slopes: Slopes = "fixed"
    main: tuple[Fraction, ...] = ()
    median_share: Fraction | None = None
    main_share: Fraction | None = None

    def __post_init__(self) -> None:
        """Check that all goes together."""
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
        for name in ("median_share", "main_share"):
            share = getattr(self, name)
            if share is not None and not 0 < share < 1:
                raise InputError(f"{name} must be above 0 and below 1, got {share}")

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


Steps = Mapping[Fraction | None, tuple[Step, ...]]
"""By quantile what is asked to choose its line; None stands for all quantiles that are chosen together."""


def line_steps(plan: QuantilePlan, fitter: Fitter, budget: ColumnBudget, n_predictors: int) -> Steps:
    """Return what is asked to choose the lines of a column, in this order.

    Parameters
    ----------
    plan, fitter : QuantilePlan, Fitter
        Which lines, and how.
    budget : ColumnBudget
        The price of all of them.
    n_predictors : int
        Number of predictors beside the intercept.
    """
    p, epsilon = n_predictors, budget.epsilon
    if plan.scheme in AT_ONCE:
        share = (plan.median_share or MEDIAN) if p else Fraction(0)
        first: dict[Fraction | None, tuple[Step, ...]] = (
            {MEDIAN: fitter.searches(budget, "median line", MEDIAN, p, epsilon * share)} if p else {}
        )
        return {**first, None: (budget.draw("quantiles", epsilon * (1 - share)),)}
    shares = plan.shares(p)
    wide = plan.scheme == "plain" and (plan.slopes == "varying" or not p)
    order = plan.taus if wide else [tau for tau, _ in plan.order()]
    found: dict[Fraction | None, tuple[Step, ...]] = {}
    for tau in order:
        name, price = f"quantile {tau}", epsilon * shares[tau]
        if tau == MEDIAN and p and not wide:
            found[tau] = fitter.searches(budget, name, tau, p, price)
        else:
            slopes = p if wide or plan.slopes == "varying" else 0
            found[tau] = (fitter.choice(budget, name, tau, slopes, price),)
    return found


def lines_of(
    regression: LineRegression, plan: QuantilePlan, fitter: Fitter, steps: Steps, curator: Curator
) -> FloatArray:
    """Choose the lines of all quantiles.

    Parameters
    ----------
    regression : LineRegression
        Outcome and predictors.
    plan, fitter : QuantilePlan, Fitter
        How.
    steps : mapping
        What is asked for each line, by :func:`line_steps`.
    curator : Curator
        Holds the table.

    Returns
    -------
    ndarray, shape (quantiles, p + 1)
        In the order of ``plan.taus``; they don't cross in the box, except by ``scheme="plain"``.
    """
    if plan.scheme in AT_ONCE:
        found = _at_once(regression, plan, fitter, steps, curator)
    else:
        found = _Lines(regression, plan, fitter, steps, curator).chosen()
    return np.array([found[tau] for tau in plan.taus])


def _at_once(
    regression: LineRegression, plan: QuantilePlan, fitter: Fitter, steps: Steps, curator: Curator
) -> dict[Fraction, FloatArray]:
    """Return lines with the slopes of the median, whose intercepts are quantiles of residuals, chosen together."""
    slopes, step = np.zeros(regression.n_predictors), steps[None][0]
    if plan.scheme == "joint":  # each point stands for several
        fitter = replace(fitter, n_intercepts=max(fitter.n_intercepts // 2, 2))
    grid = fitter.beside(regression, regression.start(), upwards=True, even=True)
    if regression.n_predictors:
        median = fitter.search(regression, MEDIAN, steps[MEDIAN], curator)
        slopes, regression = median[1:], regression.parallel(median)
        grid = fitter.beside(regression, median[:1], even=True)
    open_ = np.flatnonzero(fitter.allowed(regression, grid, None, None)[0])

    def distribution(table: Table) -> GridQuantiles:
        records = regression.read(table)
        return (JointQuantiles if plan.scheme == "joint" else RecursiveQuantiles)(
            cumulative=sums(records, grid)[0, open_, 0] // UNITS,
            n=len(records.outcome),
            taus=plan.taus,
            epsilon=min(1 / step.scale, MOST),
            neighbours=fitter.neighbours,
        )

    places = curator.draw(step, distribution)
    return {tau: np.concatenate([grid.line(int(open_[k])), slopes]) for tau, k in zip(plan.taus, places, strict=True)}


@dataclass(frozen=True)
class _Lines:
    """The lines of a column by the schemes of paper 002, each chosen by itself; the fields are those of `lines_of`."""

    regression: LineRegression
    plan: QuantilePlan
    fitter: Fitter
    steps: Steps
    curator: Curator

    def chosen(self) -> dict[Fraction, FloatArray]:
        """Choose all lines."""
        fixed = self.plan.slopes == "fixed" or not self.regression.n_predictors
        if self.plan.scheme == "plain":
            return self.separate()
        return self.side_by_side() if fixed else self.one_by_one()

    def median(self) -> FloatArray:
        """Search for the median's line from public bounds alone."""
        return self.fitter.search(self.regression, MEDIAN, self.steps[MEDIAN], self.curator)

    def separate(self) -> dict[Fraction, FloatArray]:
        """Choose each quantile on its own; with fixed slopes, those of the median."""
        regression, fitter = self.regression, self.fitter
        if self.plan.slopes == "varying" or not regression.n_predictors:
            start, wide = regression.start(), regression.n_predictors > 0
            grid = fitter.around(regression, start, WIDE) if wide else fitter.beside(regression, start, upwards=True)
            below = below_of(regression, grid)
            return {tau: self.choose(regression, grid, tau, {}, below) for tau in self.plan.taus}
        median = self.median()
        regression = fitter.parallel(regression, median)
        grid = fitter.beside(regression, median[: 1 + regression.n_predictors])
        below, found = below_of(regression, grid), {MEDIAN: median}
        for tau, _ in self.plan.order()[1:]:
            found[tau] = np.concatenate([self.choose(regression, grid, tau, {}, below)[:1], median[1:]])
        return found

    def side_by_side(self) -> dict[Fraction, FloatArray]:
        """Choose the median, and lines parallel to it, by the gradient of the intercept alone."""
        regression, fitter = self.regression, self.fitter
        if regression.n_predictors:
            median = self.median()
            regression = fitter.parallel(regression, median)
            grid = fitter.beside(regression, median[: 1 + regression.n_predictors])
        else:
            grid = fitter.beside(regression, regression.start(), upwards=True)
            median = self.choose(regression, grid, MEDIAN, {})
        found, below = {MEDIAN: median[: 1 + regression.n_predictors]}, below_of(regression, grid)
        for tau, before in self.plan.order()[1:]:
            found[tau] = self.choose(regression, grid, tau, {each: found[each] for each in before}, below)
        return {tau: np.concatenate([line[:1], median[1:]]) for tau, line in found.items()}

    def one_by_one(self) -> dict[Fraction, FloatArray]:
        """Choose the median, and lines with slopes of their own that cross none of those before."""
        found = {MEDIAN: self.median()}
        for tau, before in self.plan.order()[1:]:
            lower, upper = nearest(before, tau)
            grid = self.fitter.beside(self.regression, found[lower or upper or MEDIAN], slopes=True)
            found[tau] = self.choose(self.regression, grid, tau, {each: found[each] for each in before})
        return found

    def choose(
        self,
        regression: LineRegression,
        grid: Candidates,
        tau: Fraction,
        before: Mapping[Fraction, FloatArray],
        below: Callable[[Table], IntArray] | None = None,
    ) -> FloatArray:
        """Choose a line between the nearest of those that are released; ``below`` is as from `sums`, if known."""
        floor, ceiling = (None if each is None else before[each] for each in nearest(list(before), tau))
        step = self.steps[tau][0]
        return self.fitter.choose(regression, grid, tau, step, self.curator, floor, ceiling, below)


def below_of(regression: LineRegression, grid: Candidates) -> Callable[[Table], IntArray]:
    """Return what reads the sums below candidates from the table, once for all quantiles."""
    return once(lambda table: sums(regression.read(table), grid))


def nearest(taus: Sequence[Fraction], tau: Fraction) -> tuple[Fraction | None, Fraction | None]:
    """Return the nearest of some quantiles below and above another, None where there is none."""
    below, above = [each for each in taus if each < tau], [each for each in taus if each > tau]
    return max(below, default=None), min(above, default=None)


def quantiles_of(given: int | Sequence[Number]) -> tuple[Fraction, ...]:
    """Return quantiles as exact rationals, increasing.

    Raises
    ------
    InputError
        If one isn't in (0, 1), they aren't increasing, or one has more than three decimals.
    """
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
    if any(b <= a for a, b in itertools.pairwise(found)):
        raise InputError("quantiles must increase: sort them, and give each once")
    if any(tau.denominator > 1_000 for tau in found):
        raise InputError("quantiles must be whole thousandths, or fractions with a denominator of at most 1,000")
    return tuple(found)
