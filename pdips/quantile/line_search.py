"""Lines of a quantile regression, chosen one after the other by exponential mechanisms
on public candidates.

A line is an array (b_0, b_1, ..., b_p): its value at predictors x in [-1, 1]^p is b_0 +
b_1 x_1 + ... + b_p x_p. Coefficients are whole multiples of a power of two, so that
their sums and differences are exact.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
from numba import njit

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.encoding import UNITS
from pdips.data.table import Table
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise import UNAVAILABLE
from pdips.privacy.plan import Step, sharing
from pdips.privacy.rho import of_range
from pdips.quantile.column_plan import ColumnBudget
from pdips.quantile.gradient import Gradient, LineRegression, Norm, RegressionRecords

Base = Literal["log", "uniform"]
MOST_RECORDS = 2**25
# With so many records, a gradient has fewer than 2^60 steps; base weights have at most
# as many
LEAST = -(2.0**60)
MOST_CANDIDATES = 2**20
# The first offset beside a line, as a share of the outcome's range
FINEST = 1e-5


class SearchPass(NamedTuple):
    """Of a search one coefficient after the other: share of the price, reach as a share
    of the outcome's range, and what divides the number of steps.
    """

    share: Fraction
    reach: float
    divisor: int


PASSES = (
    SearchPass(Fraction(1, 4), reach=1.0, divisor=4),
    SearchPass(Fraction(3, 4), reach=0.1, divisor=8),
)


@lru_cache
def _growth(ratio: float, n_each_side: int) -> float:
    """Return where sinh(growth / n) is ``ratio`` of sinh(growth)."""
    low = 1e-9
    high = 40.0
    for _ in range(200):
        middle = (low + high) / 2
        larger = math.sinh(middle / n_each_side) > ratio * math.sinh(middle)
        low, high = (middle, high) if larger else (low, middle)
    return low


def spread(
    reach: float, finest: float, n_each_side: int, step: float, *, upwards: bool = False
) -> FloatArray:
    """Return increasing public offsets up to ``reach`` on one side of 0 or both, in
    multiples of ``step``.

    They are dense about 0, ``finest`` from 0 to the next, and grow like sinh.
    """
    growth = _growth(max(finest, 2 * step) / reach, n_each_side)
    first = 0 if upwards else -n_each_side
    numbers = np.arange(first, n_each_side + 1)
    unit = reach / math.sinh(growth)
    offsets = unit * np.sinh(growth / n_each_side * numbers)
    return np.rint(offsets / step) * step


def log_widths(offsets: FloatArray) -> FloatArray:
    """Return the logarithm of the length of the interval that each offset stands
    for.
    """
    return np.log(np.gradient(offsets))


@dataclass(frozen=True, kw_only=True)
class SearchRound:
    """One round of a search for a line: its share of epsilon, and which candidates
    there are.

    They go a ``reach`` from the line before, as a share of the outcome's range, with so
    many offsets on each side; two slopes are changed at once on a ``grid``. If
    ``uniform`` they weigh as much as the intervals that they stand for.
    """

    share: Fraction
    reach: float
    n_slopes: int
    n_intercepts: int
    uniform: bool = False
    grid: bool = False

    def at_most(self, n_intercepts: int) -> "SearchRound":
        """Return the round with fewer candidates where a fitter has few intercepts;
        2,000 leave rounds as they are.
        """
        most_slopes = max(n_intercepts // 8, 1)
        most_intercepts = max(n_intercepts // 4, 1)
        return replace(
            self,
            n_slopes=min(self.n_slopes, most_slopes),
            n_intercepts=min(self.n_intercepts, most_intercepts),
        )


def rounds(n_predictors: int) -> tuple[SearchRound, ...]:
    """Return the rounds of a search for a line with one predictor or two."""
    if n_predictors == 1:
        coarse = SearchRound(
            share=Fraction(1, 8), reach=1, n_slopes=250, n_intercepts=400
        )
        fine = SearchRound(
            share=Fraction(7, 8),
            reach=1 / 10,
            n_slopes=150,
            n_intercepts=300,
            uniform=True,
        )
        return coarse, fine
    part = Fraction(1, 6)
    coarse = SearchRound(share=part, reach=1, n_slopes=96, n_intercepts=200)
    closer = SearchRound(share=part, reach=1 / 4, n_slopes=64, n_intercepts=200)
    close = SearchRound(share=part, reach=1 / 30, n_slopes=64, n_intercepts=200)
    fine = SearchRound(
        share=3 * part,
        reach=1 / 150,
        n_slopes=14,
        n_intercepts=150,
        uniform=True,
        grid=True,
    )
    return coarse, closer, close, fine


def around_slopes(
    each: SearchRound, n_predictors: int, span: float, step: float
) -> tuple[FloatArray, FloatArray]:
    """Return offsets of slopes, shape (slopes, p), and their log weights in the base
    measure.

    A grid for one predictor or where the round asks for it; otherwise steps along each
    axis and each diagonal of two, without diagonals and in fewer steps where many
    predictors would make more than ``MOST_CANDIDATES`` lines.
    """
    reach = span * each.reach
    finest = reach * (5e-3 if each.grid else 2e-4)
    if n_predictors == 1 or each.grid:
        offsets = spread(reach, finest, each.n_slopes, step)
        grid = np.array(list(product(offsets, repeat=n_predictors)))
        if not each.uniform:
            return grid, np.zeros(len(grid))
        widths = product(log_widths(offsets), repeat=n_predictors)
        return grid, np.array([sum(sides) for sides in widths])
    # steps on one side, over all directions
    n_intercepts = 2 * each.n_intercepts + 1
    most = MOST_CANDIDATES // (2 * n_intercepts)
    diagonals = 2 * n_predictors**2 <= most
    n_directions = n_predictors**2 if diagonals else n_predictors
    n_steps = max(min(each.n_slopes, most // n_directions), 1)
    offsets = spread(reach, finest, n_steps, step)
    moved = offsets[offsets != 0]
    slopes = [np.zeros((1, n_predictors))]
    for direction in _directions(n_predictors, diagonals=diagonals):
        slopes.append(moved[:, None] * direction)
    grid = np.concatenate(slopes)
    return grid, np.zeros(len(grid))


def _directions(n_predictors: int, *, diagonals: bool) -> list[FloatArray]:
    """Return the axes, and the diagonals of any two."""
    axes = list(np.eye(n_predictors))
    if not diagonals:
        return axes
    pairs = [(axes[i], axes[j]) for i in range(n_predictors) for j in range(i)]
    sums = [one + other for one, other in pairs]
    differences = [one - other for one, other in pairs]
    return [*axes, *sums, *differences]


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Public lines around a public or released one: what is added to its slopes, shape
    (slopes, p), and its intercept.

    ``log_base`` is the log weight of each slope in the base measure; if ``uniform``,
    intercepts weigh as much as the interval that they stand for, otherwise all the
    same. None may cross the released lines ``floor`` and ``ceiling``. Where one
    coefficient is moved, ``entry``, this entry of the gradient alone counts.
    """

    around: FloatArray
    slopes: FloatArray
    intercepts: FloatArray
    log_base: FloatArray | float = 0.0
    uniform: bool = False
    floor: FloatArray | None = None
    ceiling: FloatArray | None = None
    entry: int | None = None

    def between(
        self, floor: FloatArray | None, ceiling: FloatArray | None
    ) -> "Candidates":
        """Return the same candidates, between two released lines."""
        return replace(self, floor=floor, ceiling=ceiling)

    @property
    def shape(self) -> tuple[int, int]:
        """How many slopes and intercepts there are."""
        return len(self.slopes), len(self.intercepts)

    def line(self, index: int) -> FloatArray:
        """Return the line of a candidate's number."""
        slope, intercept = divmod(index, len(self.intercepts))
        moved = [[self.intercepts[intercept]], self.slopes[slope]]
        return np.asarray(self.around + np.concatenate(moved))

    def margin(
        self, floor: FloatArray, sign: int = 1, frame: FloatArray | None = None
    ) -> FloatArray:
        """Return how far candidates are above a line (below it for sign -1) where they
        are nearest in the box.

        An affine function has its least value on [-1, 1]^p at a corner, d_0 - sum_j
        abs(d_j).
        """
        level = np.zeros((len(self.slopes), 1))
        moved = np.concatenate([level, self.slopes], axis=1)
        away = sign * (self.around - floor + moved)
        if frame is not None:
            away = away @ frame.T
        least = away[:, 0] - np.abs(away[:, 1:]).sum(axis=1)
        return np.asarray(least[:, None] + sign * self.intercepts[None, :])


@dataclass(frozen=True, kw_only=True)
class Fitter:
    """How lines are chosen, all of it public: the gradient's norm, the base measure of
    intercepts, the neighbours.

    Lines may go beyond the outcome's bounds by ``slack`` of its range. Up to
    ``at_once`` slopes, 2 at most, are searched for together, more one after the other.
    ``n_intercepts`` also bounds the steps of slopes. A search takes ``share``
    of its price.
    """

    norm: Norm = "hull"
    base: Base = "log"
    neighbours: Neighbours = "replace-one"
    slack: float = 0.0
    at_once: int = 2
    n_intercepts: int = 2_000
    share: Fraction = Fraction(1)

    def choice(
        self,
        budget: ColumnBudget,
        name: str,
        tau: Fraction,
        n_predictors: int,
        price: Fraction,
    ) -> Step:
        """Return the step that chooses a line: the scores of two candidates move by a
        sensitivity, up and down.
        """
        gradient = self.gradient(tau, n_predictors)
        return budget.choice(name, price, 2 * gradient.sensitivity(self.neighbours))

    def searches(
        self,
        budget: ColumnBudget,
        name: str,
        tau: Fraction,
        n_predictors: int,
        price: Fraction,
    ) -> tuple[Step, ...]:
        """Return the steps of a search for a line from public bounds alone."""
        if not n_predictors:
            return (self.choice(budget, name, tau, 0, price),)
        if n_predictors <= self.at_once:
            return tuple(
                self.choice(
                    budget,
                    f"{name}, round {number}",
                    tau,
                    n_predictors,
                    price * each.share,
                )
                for number, each in enumerate(rounds(n_predictors), start=1)
            )
        n_coefficients = n_predictors + 1
        steps = list[Step]()
        for number, each in enumerate(PASSES, start=1):
            pass_price = price * each.share
            choices = []
            for entry in range(n_coefficients):
                moved = entry_gradient(tau, entry).sensitivity(self.neighbours)
                title = f"{name}, pass {number}, coefficient {entry}"
                choices.append(
                    budget.choice(title, pass_price / n_coefficients, 2 * moved)
                )
            # where a line has fewer coefficients on the way, they share the price of
            # all
            steps += sharing(choices, of_range(pass_price))
        return tuple(steps)

    def gradient(self, tau: Fraction, n_predictors: int) -> Gradient:
        """Return the gradient; the hull of what a record does is a cube where records
        are added or removed.
        """
        cube = self.norm == "hull" and self.neighbours == "add-remove"
        return Gradient(tau, n_predictors, "linf" if cube else self.norm)

    def steps(
        self, below: IntArray, total: IntArray, tau: Fraction, step: Step
    ) -> IntArray:
        """Return the norm of the gradient at candidates, in whole steps."""
        return self.gradient(tau, len(total) - 1).steps(below, total)

    def choose(
        self,
        regression: LineRegression,
        candidates: Candidates,
        tau: Fraction,
        step: Step,
        curator: Curator,
        below: Callable[[Table], IntArray] | None = None,
    ) -> FloatArray:
        """Choose a line by the K-norm gradient mechanism, between released ones.

        ``below`` is as from :func:`sums`, if it is known.
        """
        weights = self.log_weights(candidates)
        unit = 1 / step.enlarged(share=self.share).scale
        # log weights in steps, which add to every table's scores alike
        in_steps = np.rint((weights - weights.max()) / float(unit))
        base = np.maximum(in_steps, LEAST).astype(np.int64)
        allowed = self.allowed(regression, candidates)
        entry = candidates.entry

        def scores(table: Table) -> IntArray:
            records = regression.read(table)
            under = sums(records, candidates) if below is None else below(table)
            if entry is None:
                norm = self.steps(under, records.total, tau, step)
            else:
                one = entry_gradient(tau, entry)
                norm = one.steps(under[..., [entry]], records.total[[entry]])
            return np.where(allowed, base - norm, UNAVAILABLE).reshape(1, -1)

        chosen = curator.choose(step, scores, share=self.share)
        return candidates.line(int(chosen[0]))

    def log_weights(self, candidates: Candidates) -> FloatArray:
        """Return the log weights of the base measure, shape (slopes, intercepts)."""
        weights = np.zeros(candidates.shape)
        weights += np.reshape(candidates.log_base, (-1, 1))
        if candidates.uniform:
            weights += log_widths(candidates.intercepts)
        return weights

    def allowed(self, regression: LineRegression, candidates: Candidates) -> BoolArray:
        """Say which candidates may be chosen, by public and released values alone; if
        none, the line in the middle.
        """
        lowest = np.zeros(1 + regression.n_predictors)
        highest = np.zeros(1 + regression.n_predictors)
        slack = self.slack * regression.span
        lowest[0] = regression.lower - slack
        highest[0] = regression.upper + slack
        allowed = candidates.margin(lowest, 1, regression.frame) >= 0
        allowed &= candidates.margin(highest, -1, regression.frame) >= 0
        if candidates.floor is not None:
            allowed &= candidates.margin(candidates.floor) >= 0
        if candidates.ceiling is not None:
            allowed &= candidates.margin(candidates.ceiling, -1) >= 0
        if not allowed.any():  # rounding, at lines that touch the bounds
            parallel = ~candidates.slopes.any(axis=1)
            middle = np.searchsorted(candidates.intercepts, 0.0)
            allowed[parallel, middle] = True
        return allowed

    def search(
        self,
        regression: LineRegression,
        tau: Fraction,
        steps: Sequence[Step],
        curator: Curator,
    ) -> FloatArray:
        """Find a line from public bounds alone, in rounds of ever closer candidates.

        All rounds but the last may leave records out, by coins that depend on nothing:
        given the coins, tables that differ in a record do so still or are equal.
        """
        line = regression.start()
        p = regression.n_predictors
        if not p:
            upwards = self.beside(regression, line, upwards=True)
            return self.choose(regression, upwards, tau, steps[0], curator)
        if p > self.at_once or len(steps) > len(rounds(p)):
            return self.by_axes(regression, line, tau, steps, curator)
        last = steps[-1]
        for each, step in zip(rounds(p), steps, strict=True):
            some = regression
            if step is not last:
                some = regression.thinned(curator.coins)
            candidates = self.around(some, line, each)
            line = self.choose(some, candidates, tau, step, curator)
        return line

    def by_axes(
        self,
        regression: LineRegression,
        line: FloatArray,
        tau: Fraction,
        steps: Sequence[Step],
        curator: Curator,
    ) -> FloatArray:
        """Find a line with many predictors one coefficient at a time, each by its own
        entry of the gradient.

        Two passes, a quarter of epsilon and the rest. Where instruments hardly depend
        on each other, one pass all but does it. Where there are fewer coefficients than
        steps, they share the price of all.
        """
        n_coefficients = 1 + regression.n_predictors
        size = len(steps) // len(PASSES)
        sharing = replace(self, share=self.share * size / n_coefficients)
        for number, each in enumerate(PASSES):
            due = steps[number * size : (number + 1) * size]
            widest = regression.span * each.reach
            n_steps = max(self.n_intercepts // each.divisor, 1)
            away = spread(widest, widest * FINEST, n_steps, regression.step)
            for entry in range(n_coefficients):
                some = regression
                if not number:
                    some = regression.thinned(curator.coins)
                candidates = _along(line, entry, away)
                line = sharing.choose(some, candidates, tau, due[entry], curator)
            for step in due[n_coefficients:]:
                curator.pass_over(step)
        return line

    def around(
        self, regression: LineRegression, line: FloatArray, each: SearchRound
    ) -> Candidates:
        """Return the candidates of one round of a search."""
        each = each.at_most(self.n_intercepts)
        p = regression.n_predictors
        slopes, log_base = around_slopes(each, p, regression.span, regression.step)
        reach = regression.span * each.reach
        offsets = spread(reach, reach * 1e-4, each.n_intercepts, regression.step)
        return Candidates(
            around=line,
            slopes=slopes,
            intercepts=offsets,
            log_base=log_base,
            uniform=each.uniform,
        )

    def parallel(self, regression: LineRegression, line: FloatArray) -> LineRegression:
        """Return what lines parallel to a released one are chosen by: residuals, and
        the intercept's gradient alone.
        """
        return regression.parallel(line)

    def beside(
        self,
        regression: LineRegression,
        line: FloatArray,
        *,
        upwards: bool = False,
        slopes: bool = False,
    ) -> Candidates:
        """Return candidates parallel to a line, or with other slopes too."""
        n = self.n_intercepts if upwards else self.n_intercepts // 2
        p = regression.n_predictors
        span = regression.span
        steeper = np.zeros((1, p))
        if slopes and p:
            each = SearchRound(
                share=Fraction(1),
                reach=1 / 2,
                n_slopes=8,
                n_intercepts=n // 16,
                grid=p <= 2,
            ).at_most(self.n_intercepts)
            steeper, _ = around_slopes(each, p, span, regression.step)
            n = max(n // 8, 1)
        offsets = spread(span, span * FINEST, n, regression.step, upwards=upwards)
        return Candidates(
            around=line,
            slopes=steeper,
            intercepts=offsets,
            uniform=self.base == "uniform",
        )


def entry_gradient(tau: Fraction, entry: int) -> Gradient:
    """Return the gradient of one coefficient by itself: the intercept's, entry 0, or
    that of a slope.
    """
    return Gradient(tau, min(entry, 1), "linf")


def _along(line: FloatArray, entry: int, away: FloatArray) -> Candidates:
    """Return candidates that differ from a line in one coefficient."""
    p = len(line) - 1
    if not entry:
        slopes = np.zeros((1, p))
        return Candidates(around=line, slopes=slopes, intercepts=away, entry=0)
    slopes = away[:, None] * np.eye(p)[entry - 1]
    return Candidates(around=line, slopes=slopes, intercepts=np.zeros(1), entry=entry)


def sums(records: RegressionRecords, candidates: Candidates) -> IntArray:
    """Return the sums of (1, z) over the records on or below each candidate, shape
    (slopes, intercepts, p + 1).
    """
    under = sums_below(
        records.residuals(candidates.around),
        records.predictors,
        records.instruments,
        candidates.slopes,
        candidates.intercepts,
        UNITS,
    )
    return np.asarray(under)


# compiled

_BUCKETS = 4096
_CLOSE = 64.0


@njit(cache=True, nogil=True)
def _guesses(offsets, low, high):  # type: ignore[no-untyped-def]
    """Return about where the values of evenly spaced buckets stand among sorted
    offsets.
    """
    width = (high - low) / _BUCKETS
    found = np.empty(_BUCKETS, dtype=np.int64)
    place = 0
    for bucket in range(_BUCKETS):
        value = low + bucket * width
        while place < offsets.shape[0] and offsets[place] < value:
            place += 1
        found[bucket] = place
    return found


@njit(cache=True, nogil=True)
def _bucket(value, reach):  # type: ignore[no-untyped-def]
    """Return the bucket of a value, of those evenly spaced from -reach to reach."""
    return min(int((value + reach) * (_BUCKETS / (2 * reach))), _BUCKETS - 1)


@njit(cache=True, nogil=True)
def _first_above(offsets, value, guess):  # type: ignore[no-untyped-def]
    """Return the place of the first offset that isn't below a value, looking from a
    guess.
    """
    place = guess
    while place < offsets.shape[0] - 1 and offsets[place] < value:
        place += 1
    while place > 0 and offsets[place - 1] >= value:
        place -= 1
    return place


@njit(cache=True, nogil=True)
def sums_below(residual, predictors, instruments, slopes, offsets, units):  # type: ignore[no-untyped-def]
    """Return the sums of (1, z) over the records on or below each line, in units, shape
    (slopes, offsets, p + 1).

    A line is ``offsets[j] + slopes[k] @ x`` beside the one that residuals are counted
    from; ``offsets`` increase. Whether a record is below a line depends on this record
    and the line alone: tables of guesses only tell where to look first.
    """
    n, p = predictors.shape
    n_slopes = slopes.shape[0]
    n_offsets = offsets.shape[0]
    below = np.zeros((n_slopes, n_offsets, p + 1), dtype=np.int64)
    far = max(abs(offsets[0]), abs(offsets[-1]), 1e-300)
    near = far / _CLOSE
    coarse = _guesses(offsets, -far, far)
    fine = _guesses(offsets, -near, near)
    for k in range(n_slopes):
        for i in range(n):
            r = residual[i]
            for j in range(p):
                r -= slopes[k, j] * predictors[i, j]
            # not a number is below no line, and finds no bucket
            if not r <= offsets[n_offsets - 1]:
                continue
            place = 0
            if r > offsets[0]:
                if abs(r) < near:
                    place = fine[_bucket(r, near)]
                else:
                    place = coarse[_bucket(r, far)]
                place = _first_above(offsets, r, place)
            below[k, place, 0] += units
            for j in range(p):
                below[k, place, j + 1] += instruments[i, j]
        for place in range(1, n_offsets):
            for j in range(p + 1):
                below[k, place, j] += below[k, place - 1, j]
    return below
