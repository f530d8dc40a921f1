"""Quantile regressions by the K-norm gradient mechanism: kng (Tran et al. 2023), and kng-residual.

kng draws records from many regression lines; kng-residual from a median line and a noisy histogram of residuals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, Literal, get_args

import numpy as np

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.encoding import Scale, in_units
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.margins.consistency import simplex_projection
from pdips.margins.intervals import LEAST, IntervalColumn
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Number, check_whole, choice, exact, proper_share
from pdips.privacy.noise import discrete_laplace_variance
from pdips.privacy.plan import Plan, Step
from pdips.quantile.column_plan import SMALLEST_EPSILON, NumericPart
from pdips.quantile.column_synthesis import ColumnSynthesis, ColumnTask
from pdips.quantile.conditional import Between, Draw, line_draw, ranked_draw, residual_draw
from pdips.quantile.gradient import LineRegression, Norm, RegressionRecords, once
from pdips.quantile.line_search import Base, Fitter, leave_out, spread
from pdips.quantile.quantile_plan import QuantilePlan, Scheme, Slopes, quantiles_of

QUANTILES = tuple(f"{k}/100" for k in (*range(1, 48, 2), 50, *range(53, 100, 2)))
MAIN = ("1/20", "1/4", "1/2", "3/4", "19/20", "99/100")  # With the 49, those of the paper's simulation (section 4.1)

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
        Each quantile on its own; from the median outwards; main quantiles first, the others between them (Tran et al.
        2023); all intercepts at once (Gillenwater, Joseph and Kulesza 2021); or the middle one first and each half on
        its own records (Kaplan, Schnapp and Stemmer 2022).
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
        super().__post_init__()
        if self.scheme is None:
            object.__setattr__(self, "scheme", "joint" if self.slopes == "fixed" else "sandwich")
        kinds = {"scheme": Scheme, "slopes": Slopes, "norm": Norm, "base": Base, "between": Between}
        for name, kind in kinds.items():
            choice(getattr(self, name), get_args(kind), name)
        if self.sampler != "exact":
            raise InputError(
                "sampler must be exact: lines are exact draws of public candidates; hit-and-run, whose chains nothing "
                "certified, is no longer offered"
            )
        self.quantile_plan  # noqa: B018 - refuses quantiles that don't fit the scheme

    @property
    def quantile_plan(self) -> QuantilePlan:
        """Which quantiles, in which order."""
        taus, shares = quantiles_of(self.quantiles), dict[str, Fraction | None]()
        for name, share in (("median_share", self.median_share), ("main_share", self.main_share)):
            shares[name] = None if share is None else proper_share(share, name)
        main = tuple(tau for tau in quantiles_of(self.main) if tau in taus)
        return QuantilePlan(taus=taus, scheme=self.scheme or "joint", slopes=self.slopes, main=main, **shares)

    @property
    def numbers_from(self) -> str:
        return QUANTILES_BY.get(str(self.scheme), LINES)

    def check(self, plan: Plan, table: Table) -> None:
        """Refuse, before anything is spent, tables as every mechanism by columns does, and those of fewer records than
        quantiles where their number is public.
        """
        super().check(plan, table)
        if plan.design.numeric and plan.n_public and table.n_records < len(self.quantile_plan.taus):
            raise InputError("there are fewer records than quantiles: take fewer quantiles")

    def fitter(self, part: NumericPart) -> Fitter:
        """Return how the lines of a column are chosen."""
        return Fitter(norm=self.norm, base=self.base, neighbours=part.budget.in_stratum, n_intercepts=self.n_candidates)

    def steps(self, part: NumericPart) -> tuple[Step, ...]:
        """Return what is asked of each stratum: the lines, in the order in which they are chosen."""
        priced = self.quantile_plan.steps(self.fitter(part), part.budget, part.box.n_predictors)
        return tuple(step for steps in priced.values() for step in steps)

    def fit(self, task: ColumnTask, curator: Curator) -> Draw:
        plan, fitter = self.quantile_plan, self.fitter(task.part)
        steps = plan.steps(fitter, task.part.budget, task.box.n_predictors)
        lines = plan.lines(task.regression, fitter, steps, curator)
        return line_draw(task.column, task.box, np.array([float(tau) for tau in plan.taus]), lines, self.between)


# ---- kng-residual ----

MEDIAN = Fraction(1, 2)

RECORDS_PER_BIN = 4  # Of a panel's histograms, in units of the scale of their noise: about three standard deviations

Continuers = Literal["growth", "line"]

ENOUGH = 150  # Records times a line's epsilon, by coefficient: at least, and at most if it only ranks
MOST_RANKED = 667  # Thousandths of the price of a line that only ranks, at most
OF_MEAN = 2  # A run of a column's own intervals needs at most their average count divided by this
FIRST = 4  # How many times the price of the next layer of intervals a layer has
EACH, SURE = 1.2, 8  # Deviations of noise above which a run of bins on average, and a bin by itself, hold records
KAPPA = 0.3  # Instruments reach their bounds this many standard deviations from the middle
COUNTS = (
    "counts of residuals on public bins with exact discrete Laplace noise, about a line that the K-norm gradient "
    "mechanism chose among public candidates, with exactly the probabilities of its formula, or, where there is "
    "nothing to predict them by, about a public line; or counts of a column's own intervals, and of parts of those "
    "whose noisy counts stand out"
)
"""What the statement says numeric columns are drawn from."""


@dataclass(frozen=True, kw_only=True)
class KNGResidual(ColumnSynthesis):
    """Column by column: a line chosen by the K-norm gradient mechanism, and a noisy histogram of what is above and
    below.

    Its other settings are those of :class:`pdips.quantile.column_synthesis.ColumnSynthesis`: epsilon, sets, neighbours,
    and what is said by column. Without ``order``, ``predictors`` and ``panel``, numeric columns come first and those
    with many levels last. Without ``predictors`` a column depends on as many as n times epsilon bears; if none of them
    has one of the ``caps``, numbers are drawn from a histogram of their own, and the line says in which order.

    Parameters
    ----------
    continuers : {"growth", "line"}
        In a panel, whether last year's value itself is the line where it is the one predictor, and all of the budget
        pays for the histogram, of changes; or the line is chosen as for other columns.
    line_share : int, float, str or Fraction
        Share of a numeric column's budget that pays for the line, in (0, 1); the histogram has the rest.
    bins : int
        Bins of residuals on each side of the line. A column's own histogram has the schema's bins, or intervals.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    A numeric column costs a line, by the K-norm gradient mechanism with instruments that are centred and scaled by what
    is released already, and a histogram of residuals on public bins with exact discrete Laplace noise; a column with
    levels a noisy histogram given columns before it. All draws are exact. Proof: ``docs/proofs/kng.md``.

    Examples
    --------
    >>> schema = Schema(columns={"wage": Column(lower=0, upper=1000, bins=100)})
    >>> table = Table(pd.DataFrame({"wage": np.linspace(100, 900, 60)}), schema)
    >>> release, record = KNGResidual(epsilon=1, bins=8).release(table)
    >>> len(release.sets[0])
    60
    """

    name: ClassVar[str] = "kng-residual"

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
        """Return what is asked of each stratum: a line, where there is anything to predict by, and a histogram."""
        share = exact(self.line_share, "line_share") if self.reads_pilot(part) else Fraction(0)
        smallest = part.own.parts(FIRST)[-1] if part.own else 1
        if part.budget.per_record * (1 - share) * smallest < SMALLEST_EPSILON:
            raise InputError(
                f"line_share leaves the histogram of {part.budget.item} less than 1e-9 for each record: take a larger "
                "epsilon, or a line_share further below 1"
            )
        budget, p = part.budget, part.box.n_predictors
        line = self.fitter(part).searches(budget, "median line", MEDIAN, p, budget.epsilon * share) if share else ()
        left, name = budget.epsilon * (1 - share), "residuals" if p else "histogram"
        if part.own is None:
            return *line, budget.histogram(name, left, f"{name} of {budget.item}")
        layers = [(f"intervals, layer {n}", left * part) for n, part in enumerate(part.own.parts(FIRST), start=1)]
        return *line, *(budget.histogram(name, price, f"{name} of {budget.item}") for name, price in layers)

    def reads_pilot(self, part: NumericPart) -> bool:
        """Whether a line is chosen: its instruments are centred by records that are drawn on the way."""
        return part.box.n_predictors > 0 and (part.unchanged is None or self.continuers == "line")

    def fitter(self, part: NumericPart) -> Fitter:
        """Return how the line of a column is chosen."""
        return Fitter(neighbours=part.budget.in_stratum, n_intercepts=self.n_candidates, slack=1.0, at_once=1)

    @property
    def evenly(self) -> bool:
        """Whether all columns have equal shares: where lines only rank, the first column's histogram needs as much."""
        return self.predictors is None and self.panel is None and not self.caps

    def usual_order(self, schema: Schema) -> Sequence[str]:
        """Return numeric columns first, those with many levels last; the schema's order if predictors or years ask."""
        columns = schema.columns
        if self.predictors is not None or self.panel is not None:
            return tuple(columns)
        return sorted(columns, key=lambda name: columns[name].n_levels if columns[name].is_categorical else 0)

    def borne(self, part: NumericPart, n_records: float) -> tuple[str, ...]:
        """Return as many predictors as noise bears, those of few coefficients first."""
        left = float(n_records * part.budget.per_record * exact(self.line_share, "line_share"))
        left = left / ENOUGH - 1
        found = []
        for name in sorted(part.box.names, key=lambda each: replace(part.box, names=(each,)).n_predictors):
            width = replace(part.box, names=(name,)).n_predictors
            if width <= left:
                found.append(name)
                left -= width
        return tuple(name for name in part.box.names if name in found)

    def fit(self, task: ColumnTask, curator: Curator) -> Draw:
        """Choose the median line, then count residuals, or outcomes that it ranks, on public bins.

        What a line of fewer coefficients leaves of its price goes to the counts (kng.md, theorem 6a).
        """
        regression, frame, part = task.regression, np.eye(1 + task.box.n_predictors), task.part
        own, planned, line, units = task.planned.own, self.steps(task.planned), regression.start(), Fraction(1)
        steps, counted = planned[: -len(own.nodes) if own else -1], planned[-len(own.nodes) if own else -1 :]
        chosen, ranked = self.reads_pilot(part), not (task.pinned or {*task.planned.box.names} & {*part.box.caps})
        if chosen:
            share, taken = exact(self.line_share, "line_share"), Fraction(1)
            if ranked:
                wanted = ENOUGH * len(frame) / float(task.n_records * part.budget.per_record * share)
                taken = Fraction(min(math.ceil(1000 * wanted), MOST_RANKED), 1000)
            units = (1 - share) / (1 - share * taken)
            regression, frame = instrumented(regression, task)
            line = replace(self.fitter(part), units=1 / taken).search(regression, MEDIAN, steps, curator)
        elif part.unchanged is not None:
            line = part.unchanged
        elif steps:
            leave_out(steps, curator)
            units = 1 - exact(self.line_share, "line_share")
        if own:
            edges, weights = intervals(task, own, counted, units, curator)
            draw = ranked_draw if chosen else residual_draw
            drawn = draw(task.column, task.box, frame @ line if chosen else 0 * frame[0], edges, weights)
            return lambda given, n, rng: own.lowered(drawn(given, n, rng))
        if not ranked and task.box.names:
            bins = self.bins if chosen else few(task, counted[0], 8, self.bins // 2)
            edges = spread(regression.span, regression.span * 5e-4, bins, regression.step)
        elif task.column.is_binned:
            edges = Scale(task.column).there(task.column.edges)
        else:
            edges = np.linspace(regression.lower, regression.upper, few(task, counted[0], 8, self.bins) + 1)
        about = line if task.box.names and not ranked else 0 * frame[0]

        def counts(table: Table) -> IntArray:
            return np.bincount(places(regression.read(table).residuals(about), edges), minlength=len(edges) - 1)

        noisy = task.ask(counted[0], counts, units)
        weights = histogram_weights(noisy, units * counted[0].scale)
        if ranked and chosen:
            return ranked_draw(task.column, task.box, frame @ line, edges, weights)
        return residual_draw(task.column, task.box, frame @ about, edges, weights)


def intervals(
    task: ColumnTask, own: IntervalColumn, steps: Sequence[Step], units: Fraction, curator: Curator
) -> tuple[FloatArray, FloatArray]:
    """Count a column by itself, in layers; return the edges of its cells on its scale, and their shares.

    What lies beyond the intervals of the first layer that stand out is moved to the nearest of them: far ones of noise
    would move the mean.
    """
    edges = Scale(task.column).there(own.fine.edges)
    cells = once(lambda table: places(task.regression.read(table).outcome, edges))

    def ask(layer: int, asked: BoolArray) -> IntArray:
        node, n = own.nodes[layer], len(asked)
        return task.ask(steps[layer], lambda table: np.bincount(node[cells(table)], minlength=n), units, asked)

    known = curator.n_public and not task.column.missing and task.part.budget.strata == 1
    priced = [step.enlarged(units) for step in steps]
    noisy = own.measure(curator, priced, ask)
    law = own.law(noisy, priced, curator.n_records if known else None)
    least = min(EACH * priced[0].standard_deviation, max(float(noisy[0].mean()), 0.0) / OF_MEAN)
    kept = np.flatnonzero(standing_out(noisy[0], priced[0].standard_deviation, least))
    if not len(kept):
        return edges, np.ones(len(law))
    law += LEAST / len(law)
    held = np.bincount(own.nodes[0], law)
    nearest = kept[np.searchsorted((kept[1:] + kept[:-1]) / 2, np.arange(len(held)))]
    return edges, law * (np.bincount(nearest, held, minlength=len(held)) / held)[own.nodes[0]]


def places(values: FloatArray, edges: FloatArray) -> IntArray:
    """Return the bin of each value, the nearest one for those outside."""
    return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)


def few(task: ColumnTask, histogram: Step, least: int, most: int) -> int:
    """Return a number of bins that hold more than noise."""
    return min(max(int(task.n_records / (RECORDS_PER_BIN * histogram.scale)), least), most)


def instrumented(regression: LineRegression, task: ColumnTask) -> tuple[LineRegression, FloatArray]:
    """Return a regression on predictors that are centred and uncorrelated in the pilot records, and the way back."""
    pilot, p = task.box.matrix(task.pilot), task.box.n_predictors
    middle = np.median(pilot, axis=0) if len(pilot) else np.zeros(p)
    covariance = np.cov(pilot.T).reshape(p, p) if len(pilot) > 1 else np.eye(p)
    whiten = np.tril(np.linalg.inv(np.linalg.cholesky(covariance + 1e-4 * np.eye(p))))
    frame = np.eye(1 + p)
    frame[1:, 1:] = whiten.T
    frame[0, 1:] = -whiten @ middle

    def read(table: Table) -> RegressionRecords:
        records = regression.read(table)
        centred = rotated(records.predictors - middle, whiten)
        return replace(records, predictors=centred, instruments=in_units(centred / KAPPA))

    return replace(regression, read=once(read), frame=frame), frame


def rotated(values: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return ``values @ matrix.T``, each row by itself: by BLAS a row's last bits depend on how many rows there are."""
    found = np.zeros(values.shape)
    for place, weights in enumerate(matrix):
        for column in np.flatnonzero(weights):
            found[:, place] += weights[column] * values[:, column]
    return found


def histogram_weights(noisy: IntArray, scale: Fraction) -> FloatArray:
    """Return weights of bins: the run of bins that holds more than noise, and single ones far above it, nonnegative,
    adding up to what they held.
    """
    deviation = math.sqrt(discrete_laplace_variance(scale))
    kept = standing_out(noisy, deviation, EACH * deviation)
    if not kept.any():
        return np.ones(len(noisy))
    weights, inside = np.zeros(len(noisy)), noisy[kept].astype(np.float64)
    weights[kept] = simplex_projection(inside, np.array([max(inside.sum(), 1.0)]))
    return weights


def standing_out(noisy: FloatArray | IntArray, deviation: float, least: float) -> BoolArray:
    """Say which bins hold records: a run that holds ``least`` a bin, and single ones far above their noise."""
    sums = np.concatenate([[0.0], np.cumsum(noisy - least)])
    lowest = np.minimum.accumulate(sums)
    end = int(np.argmax(sums - lowest))
    kept = noisy > SURE * deviation
    kept[int(np.argmin(sums[: end + 1])) : end] = True
    return kept
