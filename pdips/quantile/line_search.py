"""Lines of a quantile regression, chosen one after the other by exponential mechanisms on public candidates.

A line is an array (b_0, b_1, ..., b_p): its value at predictors x in [-1, 1]^p is b_0 + b_1 x_1 + ... + b_p x_p.
Coefficients are whole multiples of a power of two, so that their sums and differences are exact.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Literal

import numpy as np

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.encoding import UNITS
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours
from pdips.quantile.choosing import Chooser
from pdips.quantile.gradient import Entry, Gradient, Norm
from pdips.quantile.spreads import Round, Spread, around_slopes, rounds

Base = Literal["log", "uniform"]
BASES: tuple[Base, ...] = ("log", "uniform")

FINEST_BITS = 36
"""Coefficients are multiples of the outcome's public range over 2 to this power, or a little finer."""

UNAVAILABLE = np.iinfo(np.int64).min

MOST_RECORDS = 2**25
LEAST = -(2.0**60)
"""With so many records, a gradient has fewer than 2^60 steps; base weights have at most as many."""


@dataclass(frozen=True, kw_only=True)
class Records:
    """What a regression reads of a table.

    Parameters
    ----------
    outcome : ndarray of float64, shape (records,)
        Within the public bounds.
    predictors : ndarray of float64, shape (records, p)
        What lines are lines in.
    instruments : ndarray of int64, shape (records, p)
        What residuals' signs are summed with, within [-UNITS, UNITS]; in the K-norm gradient of the papers these are
        the predictors. Both depend on their record and on released values only.
    lower, upper : float
        Public bounds of the outcome.
    frame : ndarray of float64, shape (p + 1, p + 1), optional
        Takes a line's coefficients to those in predictors that run over [-1, 1]^p, if these aren't such already.
    """

    outcome: FloatArray
    predictors: FloatArray
    instruments: IntArray
    lower: float
    upper: float
    frame: FloatArray | None = None

    @property
    def n_predictors(self) -> int:
        """Number of predictors beside the intercept."""
        return int(self.predictors.shape[1])

    @property
    def span(self) -> float:
        """Length of the outcome's public range."""
        return self.upper - self.lower

    @cached_property
    def total(self) -> IntArray:
        """Sums of (1, z), z the instruments, over all records, in units."""
        return np.concatenate([[len(self.outcome) * UNITS], self.instruments.sum(axis=0, dtype=np.int64)])

    @property
    def step(self) -> float:
        """The power of two that coefficients are multiples of."""
        return math.ldexp(1.0, math.frexp(self.span)[1] - FINEST_BITS)

    def some(self, kept: BoolArray | None) -> "Records":
        """Return those records of which ``kept`` says so, all if it is None."""
        if kept is None:
            return self
        predictors, instruments = self.predictors[kept], self.instruments[kept]
        return replace(self, outcome=self.outcome[kept], predictors=predictors, instruments=instruments)

    def start(self) -> FloatArray:
        """Return a public line: flat, at the lower bound."""
        return np.array([math.ceil(self.lower / self.step) * self.step, *[0.0] * self.n_predictors])

    def residuals(self, line: FloatArray) -> FloatArray:
        """Return the distance of each outcome above a line."""
        away = self.outcome - line[0]
        for slope, column in zip(line[1:], self.predictors.T, strict=True):
            away = away - slope * column
        return np.asarray(away)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Public lines around a public or released one.

    Parameters
    ----------
    around : ndarray, shape (p + 1,)
        The line in the middle.
    slopes : ndarray, shape (slopes, p)
        What is added to its slopes.
    intercepts : Spread
        What is added to its intercept.
    log_base : ndarray, shape (slopes,) or 0
        Log weight of each slope in the base measure.
    uniform : bool
        Whether intercepts weigh as much as the interval that they stand for, or all the same.
    """

    around: FloatArray
    slopes: FloatArray
    intercepts: Spread
    log_base: FloatArray | float = 0.0
    uniform: bool = False

    def line(self, index: int) -> FloatArray:
        """Return a candidate."""
        k, j = divmod(index, len(self.intercepts.offsets))
        return np.asarray(self.around + np.concatenate([[self.intercepts.offsets[j]], self.slopes[k]]))

    def margin(self, floor: FloatArray, sign: int = 1, frame: FloatArray | None = None) -> FloatArray:
        """Return how far candidates are above a line (below it for sign -1) where they are nearest in the box.

        An affine function has its least value on [-1, 1]^p at a corner, d_0 - sum_j abs(d_j) (SOUNDNESS 3.4).
        """
        moved = np.concatenate([np.zeros((len(self.slopes), 1)), self.slopes], axis=1)
        away = sign * (self.around - floor + moved)
        if frame is not None:
            away = away @ frame.T
        least = away[:, 0] - np.abs(away[:, 1:]).sum(axis=1)
        return np.asarray(least[:, None] + sign * self.intercepts.offsets[None, :])


@dataclass(frozen=True, kw_only=True)
class Fitter:
    """How lines are chosen; all of it public.

    Parameters
    ----------
    norm, base, neighbours
        The norm of the gradient, the base measure of the quantiles' intercepts, and which tables are to look alike.
    cap : int
        Most records of a person.
    within : bool
        Whether lines must stay within the outcome's bounds all over the box.
    slack : float
        How far beyond them they may go, as a share of the outcome's range.
    at_once : int
        Up to so many slopes, 2 at most, are searched for together; more, one after the other.
    n_intercepts : int
        Number of intercepts to choose from, and a bound on the steps of slopes.
    """

    norm: Norm = "hull"
    base: Base = "log"
    neighbours: Neighbours = "replace-one"
    cap: int = 1
    within: bool = True
    slack: float = 0.0
    at_once: int = 2
    n_intercepts: int = 2_000

    def choose(
        self,
        records: Records,
        candidates: Candidates,
        tau: Fraction,
        epsilon: Fraction,
        chooser: Chooser,
        floor: FloatArray | None = None,
        ceiling: FloatArray | None = None,
        below: IntArray | None = None,
        entry: int | None = None,
    ) -> FloatArray:
        """Choose a line by the K-norm gradient mechanism, between two released ones.

        ``below`` is as from :func:`sums`; with ``entry`` only this entry of the gradient counts.
        """
        below = sums(records, candidates) if below is None else below
        if entry is None:
            steps, unit = self.gradient(below, records, tau, epsilon / self.cap)
        else:
            alone = Entry(tau, slope=entry > 0)
            steps = alone.steps(below[..., entry], int(records.total[entry]))
            unit = alone.unit(epsilon / self.cap, self.neighbours)
        scores = self.base_steps(candidates, unit) - steps
        allowed = self.allowed(records, candidates, floor, ceiling)
        return candidates.line(chooser.choose(np.where(allowed, scores, UNAVAILABLE).ravel(), unit))

    @property
    def best_norm(self) -> Norm:
        """The norm; where records are added or removed the hull is a cube."""
        return "linf" if self.norm == "hull" and self.neighbours == "add-remove" else self.norm

    def gradient(
        self, below: IntArray, records: Records, tau: Fraction, epsilon: Fraction
    ) -> tuple[IntArray, Fraction]:
        """Return the norms of the gradient at candidates in whole steps, and the nats of a step."""
        gradient = Gradient(tau, records.n_predictors, self.best_norm)
        return gradient.steps(below, records.total), gradient.unit(epsilon, self.neighbours)

    def base_steps(self, candidates: Candidates, unit: Fraction) -> IntArray:
        """Return the log weights of the base measure, in steps; they are public and add to every table's scores
        alike."""
        log_weights = self.log_weights(candidates)
        steps = np.rint((log_weights - log_weights.max()) / float(unit))
        return np.asarray(np.maximum(steps, LEAST), dtype=np.int64)

    def log_weights(self, candidates: Candidates) -> FloatArray:
        """Return the log weights of the base measure, shape (slopes, intercepts)."""
        log_weights = np.zeros((len(candidates.slopes), len(candidates.intercepts.offsets)))
        log_weights += np.reshape(candidates.log_base, (-1, 1))
        if candidates.uniform:
            log_weights += candidates.intercepts.log_widths
        return log_weights

    def allowed(
        self, records: Records, candidates: Candidates, floor: FloatArray | None, ceiling: FloatArray | None
    ) -> BoolArray:
        """Say which candidates may be chosen, from public and released values alone; if none, the line in the
        middle."""
        flat = np.zeros(records.n_predictors)
        allowed = np.ones((len(candidates.slopes), len(candidates.intercepts.offsets)), dtype=bool)
        if floor is not None:
            allowed &= candidates.margin(floor) >= 0
        if ceiling is not None:
            allowed &= candidates.margin(ceiling, -1) >= 0
        if self.within:
            lower, upper = records.lower - self.slack * records.span, records.upper + self.slack * records.span
            allowed &= candidates.margin(np.array([lower, *flat]), 1, records.frame) >= 0
            allowed &= candidates.margin(np.array([upper, *flat]), -1, records.frame) >= 0
        if not allowed.any():  # rounding, at lines that touch the bounds
            allowed[~candidates.slopes.any(axis=1), -candidates.intercepts.first] = True
        return allowed

    def search(self, records: Records, tau: Fraction, epsilon: Fraction, chooser: Chooser) -> FloatArray:
        """Find a line from public bounds alone, in rounds of ever closer candidates that share epsilon.

        All rounds but the last may leave records out, by secret coins that depend on nothing: given the coins, tables
        that differ in a record do so still or are equal.
        """
        line = records.start()
        if not records.n_predictors:
            return self.choose(records, self.beside(records, line, upwards=True), tau, epsilon, chooser)
        if records.n_predictors > self.at_once:
            return self.by_axes(records, line, tau, epsilon, chooser)
        *coarse, last = rounds(records.n_predictors)
        for each in coarse:
            some = records.some(chooser.thin(len(records.outcome)))
            line = self.choose(some, self.around(some, line, each), tau, epsilon * each.share, chooser)
        return self.choose(records, self.around(records, line, last), tau, epsilon * last.share, chooser)

    def by_axes(
        self, records: Records, line: FloatArray, tau: Fraction, epsilon: Fraction, chooser: Chooser
    ) -> FloatArray:
        """Find a line with many predictors one coefficient at a time, each by its own entry of the gradient.

        Two passes, a quarter of epsilon and the rest. Where instruments hardly depend on each other, one pass all but
        does it.
        """
        n_steps = records.n_predictors + 1
        still = np.zeros((1, records.n_predictors))
        for share, reach, n in ((Fraction(1, 4), 1.0, 4), (Fraction(3, 4), 0.1, 8)):
            for place in range(n_steps):
                away = Spread.of(
                    records.span * reach, records.span * reach * 1e-5, max(self.n_intercepts // n, 1), records.step
                )
                slopes = still
                if place:
                    slopes = away.offsets[:, None] * np.eye(records.n_predictors)[place - 1]
                    away = Spread(1.0, 1.0, 0, 0, records.step)
                found = Candidates(around=line, slopes=slopes, intercepts=away)
                some = records.some(chooser.thin(len(records.outcome))) if reach == 1 else records
                line = self.choose(some, found, tau, epsilon * share / n_steps, chooser, entry=place)
        return line

    def around(self, records: Records, line: FloatArray, each: Round) -> Candidates:
        """Return the candidates of one round of a search."""
        each = each.at_most(self.n_intercepts)
        slopes, log_base = around_slopes(each, records.n_predictors, records.span, records.step)
        reach = records.span * each.reach
        spread = Spread.of(reach, reach * 1e-4, each.n_intercepts, records.step)
        return Candidates(around=line, slopes=slopes, intercepts=spread, log_base=log_base, uniform=each.uniform)

    def parallel(self, records: Records, line: FloatArray) -> Records:
        """Return what lines parallel to a released one are chosen by: residuals, and the intercept's gradient alone."""
        return parallel(records, line)

    def beside(
        self, records: Records, line: FloatArray, *, upwards: bool = False, slopes: bool = False, even: bool = False
    ) -> Candidates:
        """Return candidates parallel to a line, or with other slopes too.

        With ``even`` a uniform base measure is made by even spacing, not by weights.
        """
        n = self.n_intercepts if upwards else self.n_intercepts // 2
        finest = records.span * 1e-5
        if slopes and records.n_predictors:
            some = Round(
                share=Fraction(1), reach=1 / 2, n_slopes=8, n_intercepts=n // 16, grid=records.n_predictors <= 2
            )
            some = some.at_most(self.n_intercepts)
            steeper, _ = around_slopes(some, records.n_predictors, records.span, records.step)
            n = max(n // 8, 1)
        else:
            steeper = np.zeros((1, records.n_predictors))
        finest = records.span / n if even and self.base == "uniform" else finest
        spread = Spread.of(records.span, finest, n, records.step, upwards=upwards)
        return Candidates(around=line, slopes=steeper, intercepts=spread, uniform=self.base == "uniform")


def sums(records: Records, candidates: Candidates) -> IntArray:
    """Return the sums of (1, z) over the records on or below each candidate, shape (slopes, intercepts, p + 1)."""
    from pdips.quantile.lattice_kernels import sums_below

    residuals = records.residuals(candidates.around)
    slopes, offsets = candidates.slopes, candidates.intercepts.offsets
    found: IntArray = sums_below(residuals, records.predictors, records.instruments, slopes, offsets, UNITS)
    return found


def parallel(records: Records, line: FloatArray) -> Records:
    """Return residuals from the slopes of a released line as outcomes without predictors.

    Their bounds are those of intercepts of lines with these slopes that touch the outcome's range in the box.
    """
    slopes = np.concatenate([[0.0], line[1:]])
    steep = float(np.abs(line[1:]).sum())
    none = np.zeros((len(records.outcome), 0))
    return replace(
        records,
        outcome=records.residuals(slopes),
        predictors=none,
        instruments=none.astype(np.int64),
        lower=records.lower - steep,
        upper=records.upper + steep,
    )


def check_n_candidates(n_candidates: int) -> None:
    """Check the number of candidates of a line.

    Raises
    ------
    InputError
        If it is out of range.
    """
    if isinstance(n_candidates, bool) or not isinstance(n_candidates, int) or not 2 <= n_candidates <= 10_000:
        raise InputError(f"n_candidates must be a whole number from 2 to 10,000, got {n_candidates}")


def nearest(taus: Sequence[Fraction], tau: Fraction, side: int) -> Fraction | None:
    """Return the nearest of some quantiles below (side -1) or above (1) another."""
    beyond = [other for other in taus if (other - tau) * side > 0]
    return min(beyond, key=lambda other: abs(other - tau)) if beyond else None
