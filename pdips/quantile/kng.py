"""Quantile regressions by the K-norm gradient mechanism: kng (Tran et al. 2023), and
kng-residual.

kng draws records from many regression lines; kng-residual from a median line and a
noisy histogram of residuals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Literal, get_args

import numpy as np

from pdips.arrays import FloatArray
from pdips.data.encoding import Scale
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Number, check_whole, choice, exact, proper_share
from pdips.privacy.plan import Plan, Step, sharing
from pdips.quantile.column_plan import SMALLEST_EPSILON, NumericPart
from pdips.quantile.column_synthesis import ColumnSynthesis
from pdips.quantile.conditional import (
    Between,
    Draw,
    line_draw,
    ranked_draw,
    residual_draw,
)
from pdips.quantile.gradient import Norm
from pdips.quantile.line_search import Base, Fitter, spread
from pdips.quantile.quantile_plan import QuantilePlan, Scheme, Slopes, quantiles_of
from pdips.quantile.residuals import (
    MedianLine,
    few,
    instrumented,
    intervals,
    residual_weights,
)
from pdips.quantile.table_questions import ColumnTask
from pdips.release.offers import Offers

QUANTILES = tuple(f"{k}/100" for k in (*range(1, 48, 2), 50, *range(53, 100, 2)))
# With the 49, those of the paper's simulation (section 4.1)
MAIN = ("1/20", "1/4", "1/2", "3/4", "19/20", "99/100")

LINES = (
    "quantile regression lines that the K-norm gradient mechanism chose among public "
    "candidates, with exactly the "
    "probabilities of its formula"
)
"""What the statement says numeric columns are drawn from."""


@dataclass(frozen=True, kw_only=True)
class KNG(ColumnSynthesis):
    """Quantile regressions of each column on those before it, by the K-norm gradient
    mechanism.

    Its other settings are those of
    :class:`pdips.quantile.column_synthesis.ColumnSynthesis`: epsilon, sets, neighbours,
    and what is said by column.

    Parameters
    ----------
    scheme : {"sandwich", "stepwise", "plain"}
        Main quantiles first, the others between them; from the median outwards; or each
        quantile on its own (Tran et al. 2023).
    slopes : {"fixed", "varying"}
        Whether all lines of a column are parallel to the median's.
    quantiles : int or tuple of numbers
        How many, evenly spaced, or which; by default the paper's 49.
    main : tuple of numbers
        Those that ``sandwich`` chooses first.
    median_share, main_share : int, float, str or Fraction, optional
        Share of a column's budget (of its main quantiles' in sandwich) for the median,
        and share for the main quantiles; the paper's by default.
    norm : {"hull", "linf", "l1"}
        Of the gradient; ``"hull"`` has the least noise.
    base : {"log", "uniform"}
        Base measure of intercepts: even on a scale that grows away from the lower
        bound, or even.
    between : {"interpolate", "quantile"}
        Whether synthetic values lie between the quantiles too.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Every line is drawn exactly from exp(-epsilon_k / (2 Delta) norm(G)) on public
    candidates, with a tight Delta; lines don't cross anywhere in the public box of the
    predictors. Proof: ``docs/proofs/kng.md``, theorem 1 and lemma 3.

    Examples
    --------
    >>> schema = Schema(columns={"wage": Column(lower=0, upper=1000, bins=100)})
    >>> table = Table(pd.DataFrame({"wage": np.linspace(100, 900, 60)}), schema)
    >>> release, record = KNG(epsilon=1, quantiles=("1/4", "1/2", "3/4")).release(table)
    >>> release.sets[0]["wage"].between(0, 1000).all()
    np.True_
    """

    name: ClassVar[str] = "kng"
    offers: ClassVar[Offers] = Offers(
        public_columns=True, relations=("replace-one", "add-remove")
    )

    scheme: Scheme = "sandwich"
    slopes: Slopes = "fixed"
    quantiles: int | tuple[Number, ...] = QUANTILES
    main: tuple[Number, ...] = MAIN
    median_share: Number | None = None
    main_share: Number | None = None
    norm: Norm = "hull"
    base: Base = "log"
    between: Between = "interpolate"

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = {
            "scheme": Scheme,
            "slopes": Slopes,
            "norm": Norm,
            "base": Base,
            "between": Between,
        }
        for name, kind in kinds.items():
            choice(getattr(self, name), get_args(kind), name)
        self.quantile_plan  # noqa: B018 - refuses quantiles that don't fit the scheme

    @property
    def quantile_plan(self) -> QuantilePlan:
        """Which quantiles, in which order."""
        taus = quantiles_of(self.quantiles)
        main = tuple(tau for tau in quantiles_of(self.main) if tau in taus)
        return QuantilePlan(
            taus=taus,
            scheme=self.scheme,
            slopes=self.slopes,
            main=main,
            median_share=_share(self.median_share, "median_share"),
            main_share=_share(self.main_share, "main_share"),
        )

    @property
    def numbers_from(self) -> str:
        return LINES

    def seconds(self, schema: Schema, n_records: int) -> float:
        """Return about how long a set takes, by numeric columns (measured
        2026-11-24).
        """
        numeric = [each for each in schema.columns.values() if not each.is_categorical]
        return 5.0 + 40 * len(numeric)

    def check(self, plan: Plan, table: Table) -> None:
        """Refuse, before anything is spent, tables as every mechanism by columns does,
        and those of fewer records than quantiles where their number is public.
        """
        super().check(plan, table)
        if not plan.design.numeric or not plan.n_public:
            return
        if table.n_records < len(self.quantile_plan.taus):
            raise InputError(
                "there are fewer records than quantiles: take fewer quantiles"
            )

    def fitter(self, part: NumericPart) -> Fitter:
        """Return how the lines of a column are chosen."""
        return Fitter(
            norm=self.norm,
            base=self.base,
            neighbours=part.budget.in_stratum,
            n_intercepts=self.n_candidates,
        )

    def steps(self, part: NumericPart) -> tuple[Step, ...]:
        """Return what is asked of each stratum: the lines, in the order in which they
        are chosen.
        """
        priced = self.quantile_plan.steps(
            self.fitter(part), part.budget, part.box.n_predictors
        )
        return tuple(step for steps in priced.values() for step in steps)

    def fit(self, task: ColumnTask, curator: Curator) -> Draw:
        plan = self.quantile_plan
        fitter = self.fitter(task.part)
        steps = plan.steps(fitter, task.part.budget, task.box.n_predictors)
        lines = plan.lines(task.regression, fitter, steps, curator)
        taus = np.array([float(tau) for tau in plan.taus])
        return line_draw(task.column, task.box, taus, lines, self.between)


def _share(share: Number | None, name: str) -> Fraction | None:
    return None if share is None else proper_share(share, name)


# ---- kng-residual ----

MEDIAN = Fraction(1, 2)

Continuers = Literal["growth", "line"]

# Records times a line's epsilon, by coefficient: at least, and at most if it only ranks
ENOUGH = 150
MOST_RANKED = 667  # Thousandths of the price of a line that only ranks, at most
FIRST = 4  # How many times the price of the next layer of intervals a layer has
# The width of the bin beside a line, as a share of the outcome's range
FINEST_BIN = 5e-4
COUNTS = (
    "counts of residuals on public bins with exact discrete Laplace noise, about a "
    "line that the K-norm gradient "
    "mechanism chose among public candidates, with exactly the probabilities of its "
    "formula, or, where there is "
    "nothing to predict them by, about a public line; or counts of a column's own "
    "intervals, and of parts of those "
    "whose noisy counts stand out"
)
"""What the statement says numeric columns are drawn from."""


@dataclass(frozen=True, kw_only=True)
class KNGResidual(ColumnSynthesis):
    """Column by column: a line chosen by the K-norm gradient mechanism, and a noisy
    histogram of what is above and below.

    Its other settings are those of
    :class:`pdips.quantile.column_synthesis.ColumnSynthesis`: epsilon, sets, neighbours,
    and what is said by column. Without ``order``, ``predictors`` and ``panel``, numeric
    columns come first and those with many levels last. Without ``predictors`` a column
    depends on as many as n times epsilon bears; if none of them has one of the
    ``caps``, numbers are drawn from a histogram of their own, and the line says in
    which order.

    Parameters
    ----------
    continuers : {"growth", "line"}
        In a panel, whether last year's value itself is the line where it is the one
        predictor, and all of the budget pays for the histogram, of changes; or the line
        is chosen as for other columns.
    line_share : int, float, str or Fraction
        Share of a numeric column's budget that pays for the line, in (0, 1); the
        histogram has the rest.
    bins : int
        Bins of residuals on each side of the line. A column's own histogram has the
        schema's bins, or intervals.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    A numeric column costs a line, by the K-norm gradient mechanism with instruments
    that are centred and scaled by what is released already, and a histogram of
    residuals on public bins with exact discrete Laplace noise; a column with levels a
    noisy histogram given columns before it. All draws are exact. Proof:
    ``docs/proofs/kng.md``.

    Examples
    --------
    >>> schema = Schema(columns={"wage": Column(lower=0, upper=1000, bins=100)})
    >>> table = Table(pd.DataFrame({"wage": np.linspace(100, 900, 60)}), schema)
    >>> release, record = KNGResidual(epsilon=1, bins=8).release(table)
    >>> len(release.sets[0])
    60
    """

    name: ClassVar[str] = "kng-residual"
    offers: ClassVar[Offers] = Offers(
        public_columns=True, relations=("replace-one", "add-remove")
    )

    continuers: Continuers = "growth"
    line_share: Number = "1/2"
    bins: int = 48

    def __post_init__(self) -> None:
        super().__post_init__()
        proper_share(self.line_share, "line_share")
        choice(self.continuers, get_args(Continuers), "continuers")
        check_whole(self.bins, "bins", 2, 1_000)

    @property
    def numbers_from(self) -> str:
        return COUNTS

    def steps(self, part: NumericPart) -> tuple[Step, ...]:
        """Return what is asked of each stratum: a line, where there is anything to
        predict by, and a histogram.
        """
        share = Fraction(0)
        if self.reads_pilot(part):
            share = exact(self.line_share, "line_share")
        budget = part.budget
        left = budget.epsilon * (1 - share)
        smallest = part.own.parts(FIRST)[-1] if part.own else 1
        if budget.per_record * (1 - share) * smallest < SMALLEST_EPSILON:
            raise InputError(
                f"line_share leaves the histogram of {budget.item} less than "
                f"1e-9 for each record: take a larger "
                "epsilon, or a line_share further below 1"
            )
        p = part.box.n_predictors
        name = "residuals" if p else "histogram"
        layers = [(name, left)]
        if part.own is not None:
            layers = [
                (f"intervals, layer {n}", left * part)
                for n, part in enumerate(part.own.parts(FIRST), start=1)
            ]
        counted = tuple(
            budget.histogram(name, price, f"{name} of {budget.item}")
            for name, price in layers
        )
        if not share:
            return counted
        price = budget.epsilon * share
        line = self.fitter(part).searches(budget, "median line", MEDIAN, p, price)
        return sharing((*line, *counted), rho_of_sharing(line, counted, share))

    def reads_pilot(self, part: NumericPart) -> bool:
        """Whether a line is chosen: its instruments are centred by records that are
        drawn on the way.
        """
        return part.box.n_predictors > 0 and (
            part.unchanged is None or self.continuers == "line"
        )

    def fitter(self, part: NumericPart) -> Fitter:
        """Return how the line of a column is chosen."""
        return Fitter(
            neighbours=part.budget.in_stratum,
            n_intercepts=self.n_candidates,
            slack=1.0,
            at_once=1,
        )

    @property
    def evenly(self) -> bool:
        """Whether all columns have equal shares: where lines only rank, the first
        column's histogram needs as much.
        """
        return self.predictors is None and self.panel is None and not self.caps

    def usual_order(self, schema: Schema) -> Sequence[str]:
        """Return numeric columns first, those with many levels last; the schema's order
        if predictors or years ask.
        """
        columns = schema.columns
        if self.predictors is not None or self.panel is not None:
            return tuple(columns)
        levels = {
            name: column.n_levels if column.is_categorical else 0
            for name, column in columns.items()
        }
        return sorted(columns, key=levels.__getitem__)

    def borne(self, part: NumericPart, n_records: float) -> tuple[str, ...]:
        """Return as many predictors as noise bears, those of few coefficients first."""
        share = exact(self.line_share, "line_share")
        borne = float(n_records * part.budget.per_record * share)
        left = borne / ENOUGH - 1  # the intercept's
        widths = {
            name: replace(part.box, names=(name,)).n_predictors
            for name in part.box.names
        }
        kept = set[str]()
        for name in sorted(widths, key=widths.__getitem__):
            if widths[name] <= left:
                kept.add(name)
                left -= widths[name]
        return tuple(name for name in part.box.names if name in kept)

    def fit(self, task: ColumnTask, curator: Curator) -> Draw:
        """Choose the median line, then count residuals, or outcomes that it ranks, on
        public bins.

        What a line of fewer coefficients leaves of its price goes to the counts
        (kng.md, theorem 6a).
        """
        own = task.planned.own
        steps = self.steps(task.planned)
        n_counted = len(own.nodes) if own else 1
        counted = steps[-n_counted:]
        line = self._median_line(task, steps[:-n_counted], curator)
        if own:
            edges, weights = intervals(task, own, counted, line.share, curator)
            draw = ranked_draw if line.is_chosen else residual_draw
            drawn = draw(task.column, task.box, line.ranking, edges, weights)
            return lambda given, n, rng: own.lowered(drawn(given, n, rng))
        edges = self._edges(task, line, counted[0])
        weights = residual_weights(task, line, edges, counted[0])
        if line.only_ranks and line.is_chosen:
            return ranked_draw(task.column, task.box, line.ranking, edges, weights)
        return residual_draw(task.column, task.box, line.centre, edges, weights)

    def _median_line(
        self, task: ColumnTask, steps: Sequence[Step], curator: Curator
    ) -> MedianLine:
        """Choose the line of a column, or take a public one."""
        regression = task.regression
        part = task.part
        capped = {*task.planned.box.names} & {*part.box.caps}
        only_ranks = not (task.pinned or capped)
        line = MedianLine(
            regression=regression,
            coefficients=regression.start(),
            frame=np.eye(1 + task.box.n_predictors),
            is_centre=bool(task.box.names) and not only_ranks,
            only_ranks=only_ranks,
        )
        if self.reads_pilot(part):
            return self._chosen_line(task, line, steps, curator)
        if part.unchanged is not None:
            return replace(line, coefficients=part.unchanged)
        if steps:
            for step in steps:
                curator.pass_over(step)
            left = 1 - exact(self.line_share, "line_share")
            return replace(line, share=1 / left)
        return line

    def _chosen_line(
        self,
        task: ColumnTask,
        line: MedianLine,
        steps: Sequence[Step],
        curator: Curator,
    ) -> MedianLine:
        share = exact(self.line_share, "line_share")
        taken = Fraction(1)
        if line.only_ranks:
            # as many thousandths of its price as so many coefficients need
            borne = task.n_records * task.part.budget.per_record * share
            wanted = ENOUGH * len(line.frame) / float(borne)
            taken = Fraction(min(math.ceil(1000 * wanted), MOST_RANKED), 1000)
        regression, frame = instrumented(task.regression, task)
        fitter = replace(self.fitter(task.part), share=taken)
        return replace(
            line,
            regression=regression,
            coefficients=fitter.search(regression, MEDIAN, steps, curator),
            frame=frame,
            share=(1 - share * taken) / (1 - share),
            is_chosen=True,
        )

    def _edges(self, task: ColumnTask, line: MedianLine, step: Step) -> FloatArray:
        """Return the public bins that residuals, or outcomes, are counted on."""
        regression = line.regression
        if line.is_centre:
            bins = self.bins if line.is_chosen else few(task, step, self.bins // 2)
            span = regression.span
            return spread(span, span * FINEST_BIN, bins, regression.step)
        if task.column.is_binned:
            return Scale(task.column).there(task.column.edges)
        n_bins = few(task, step, self.bins)
        return np.linspace(regression.lower, regression.upper, n_bins + 1)


def rho_of_sharing(
    line: Sequence[Step], counted: Sequence[Step], share: Fraction
) -> Fraction:
    """Return the rho of a line and a histogram of which the line may hand on any part
    of its ``share`` of their price.

    A line at a part t of its price has at most t of its rho, and the histogram, at a
    part 1 - share t of the price of both, at most that part of what it would cost at
    all of it: the sum is greatest at t = 0 or at t = 1 (``docs/proofs/rho.md``,
    theorem 2).
    """
    whole = [replace(step, price=step.price / (1 - share)).rho for step in counted]
    alone = sum(whole, Fraction(0))
    chosen = sum((step.rho for step in line), Fraction(0))
    return max(alone, (1 - share) * alone + chosen)
