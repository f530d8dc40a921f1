"""A number without bins by itself: shares, counts and quantiles from the noisy counts
of its intervals, whose law is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import pandas as pd
from scipy.special import ndtri

from pdips.arrays import BoolArray, FloatArray
from pdips.data.column import Column
from pdips.outside.answer import Answer, Inverted
from pdips.outside.cells import COUNTS, SHARES, answer_names
from pdips.outside.counted_intervals import is_zero_alone
from pdips.outside.questions import ColumnValues, Expression, Summary
from pdips.outside.regression import Target
from pdips.release.folder import read_tables
from pdips.release.opening import PublishedRelease

BASIS = "follows from measured counts of intervals"
LEAST_VARIANCE = 1e-6  # of a number of records that is known
N_INSIDE = 33  # places in an interval at which a condition is tried


@dataclass(frozen=True, kw_only=True, eq=False)
class IntervalCounts:
    """How many records are in each of the narrowest counted intervals of a number, by
    generalised least squares from all layers.

    Parameters
    ----------
    name : str
    column : Column
    lower, upper : ndarray, shape (intervals,)
        Ends of the intervals: from the lower one on, below the upper one; of whole
        numbers, and of the upper bound alone, up to the upper one.
    counts : ndarray, shape (intervals + 1,)
        Records without a number last.
    noise : ndarray, shape (intervals + 1, intervals + 1)
        The covariance of the counts' errors.
    n_records : float
        Known, or estimated.
    """

    name: str
    column: Column
    lower: FloatArray
    upper: FloatArray
    counts: FloatArray
    noise: FloatArray
    n_records: float

    @classmethod
    def of(
        cls, public: PublishedRelease, name: str, n_records: tuple[float, float]
    ) -> Self | None:
        """Return the counts of a column; None where its intervals weren't counted.

        ``n_records`` is the number of records, and the variance of that.
        """
        _, tables = read_tables(public.home, "intervals")
        if "intervals" not in tables:
            return None
        rows = tables["intervals"]
        rows = rows[rows["column"] == name]
        if rows["lower"].notna().sum() == 0:
            return None
        column = public.privacy.table_schema.columns[name]
        return cls.of_rows(name, column, rows, n_records)

    @classmethod
    def of_rows(
        cls,
        name: str,
        column: Column,
        rows: pd.DataFrame,
        n_records: tuple[float, float],
    ) -> Self:
        """Return the counts that a column's rows of ``intervals`` tell: ``lower`` and
        ``upper``, missing of those without a number, ``noisy`` and ``variance``.

        Examples
        --------
        >>> rows = pd.DataFrame({"lower": [0.0, 0, 5], "upper": [10.0, 5, 10]})
        >>> rows = rows.assign(noisy=[90, 40, 60], variance=100.0)
        >>> column = Column(lower=0, upper=10)
        >>> counts = IntervalCounts.of_rows("pay", column, rows, (100.0, 0.0))
        >>> counts.counts.round(1).tolist()
        [40.0, 60.0, 0.0]
        """
        is_missing = rows["lower"].isna()
        ends = rows[~is_missing].drop_duplicates(["lower", "upper"], keep="last")
        ends = ends.sort_values(["lower", "upper"])
        lower, upper = (ends[end].to_numpy(np.float64) for end in ("lower", "upper"))
        is_narrowest = _inside(lower, upper, lower, upper).sum(axis=0) == 1
        lower = lower[is_narrowest]
        upper = upper[is_narrowest]
        sums = _sums_of(rows, is_missing.to_numpy(), lower, upper)
        counts, noise = _least_squares(rows, sums, n_records)
        if column.integer:
            upper = np.maximum(upper - 1, lower)
        is_zero = is_zero_alone(lower, upper, float(upper[-1] - lower[0]))
        upper = np.where(is_zero, lower, upper)
        return cls(
            name=name,
            column=column,
            lower=lower,
            upper=upper,
            counts=counts,
            noise=noise,
            n_records=n_records[0],
        )

    @cached_property
    def _sampling(self) -> FloatArray:
        """The covariance of the counts of a table about those of the population."""
        shares = np.clip(self.counts / self.n_records, 1 / self.n_records, 1)
        return self.n_records * (np.diag(shares) - np.outer(shares, shares))

    def covariance(self, target: Target) -> FloatArray:
        """Return that of the counts' errors."""
        return self.noise + self._sampling * (target == "population")

    def _holds(
        self, condition: Expression
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return which part of each interval a condition is true of, if numbers are
        even in it; and the least and the largest part if they are anywhere.
        """
        # the upper end of an interval isn't in it, unless it is all that is
        last = self.upper
        if not self.column.integer:
            last = np.maximum(np.nextafter(last, self.lower), self.lower)
        parts = np.linspace(0, 1, N_INSIDE)[:, None]
        inside = self.lower + parts * (last - self.lower)
        if self.column.integer:
            inside = np.round(inside)
        named = np.array(condition.constants)[:, None]
        beside = [named, np.nextafter(named, -np.inf), np.nextafter(named, np.inf)]
        constants = np.concatenate([np.clip(each, self.lower, last) for each in beside])
        even, anywhere = (
            np.stack([condition.values(self._records(row)) for row in rows])
            for rows in (inside, np.concatenate([inside, constants]))
        )
        return even.mean(axis=0), anywhere.min(axis=0), anywhere.max(axis=0)

    def _records(self, numbers: FloatArray) -> Mapping[str, ColumnValues]:
        return {self.name: ColumnValues(None, numbers)}

    def shared(self, asked: Summary, target: Target) -> Answer:
        """Return a share, or a count, of the records of whom a condition is true."""
        even, least, largest = self._holds(asked.of[0])
        with_number = np.append(np.ones(len(self.lower)), 0.0)
        below = float(with_number @ self.counts)
        is_share = asked.kind == "share"
        divisor = max(below, 1.0) if is_share else 1.0
        part = np.append(even, 0.0)
        estimate = float(part @ self.counts) / divisor
        slopes = (part - estimate * with_number * is_share) / divisor
        counted = np.maximum(self.counts[:-1], 0.0)
        less, more = (
            np.array([gap @ counted / divisor])
            for gap in (even - least, largest - even)
        )
        covariance = slopes @ self.covariance(target) @ slopes
        return Answer(
            tuple(answer_names(asked)),
            np.array([estimate]),
            np.array([[covariance]]),
            BASIS,
            noise=np.array([[slopes @ self.noise @ slopes]]),
            limits=SHARES if is_share else COUNTS,
            untold=(less, more),
        )

    def below(self, part: float, target: Target) -> tuple[FloatArray, FloatArray]:
        """Return the share of records below each interval and up to the end of the last
        one, less a part, and the standard errors of that; shape (intervals + 1,).
        """
        n = len(self.lower)
        up_to = np.hstack([np.tri(n + 1, n, -1) - part, np.zeros((n + 1, 1))])
        divisor = max(float(self.counts[:n].sum()), 1.0)
        variances = np.einsum("rc,cd,rd->r", up_to, self.covariance(target), up_to)
        return up_to @ self.counts / divisor, np.sqrt(variances) / divisor

    def quantile(self, asked: Summary, target: Target) -> Answer:
        """Return a quantile, between the ends of intervals that noise leaves open."""
        below, errors = self.below(asked.part or 0.5, target)
        lows = np.concatenate([self.lower[:1], self.lower])
        highs = np.concatenate([self.upper, self.upper[-1:]])
        estimate = np.array([self._crossing(below)])

        def half_widths(level: float) -> FloatArray:
            return np.asarray(ndtri((1 + level) / 2) * errors[None])

        return Inverted(
            tuple(answer_names(asked)),
            estimate,
            np.diag([np.nan]),
            BASIS,
            below=below[None],
            half_widths=half_widths,
            lows=lows,
            highs=highs,
        )

    def _crossing(self, below: FloatArray) -> float:
        """Return where the share of records below reaches the part asked for, if
        numbers are even within intervals.
        """
        reached = max(int(np.argmax(np.append(below, np.inf) >= 0)), 1)
        at = min(reached, len(self.lower)) - 1
        short = -below[at]
        whole = max(below[at + 1] - below[at], np.finfo(float).tiny)
        part = float(np.clip(short / whole, 0, 1))
        number = self.lower[at] + part * (self.upper[at] - self.lower[at])
        return float(np.round(number)) if self.column.integer else float(number)


def of_intervals(
    public: PublishedRelease,
    asked: Summary,
    n_records: tuple[float, float],
    target: Target,
) -> Answer | None:
    """Return a share, a count or a quantile of one number without bins; None where
    something else is asked, or its intervals weren't counted.
    """
    if len(asked.columns) != 1 or len(asked.of) != 1 or asked.by:
        return None
    one = asked.of[0]
    is_asked = one.is_condition and asked.kind in ("share", "count")
    if not is_asked and not (asked.kind == "quantile" and one.is_plain):
        return None
    counts = IntervalCounts.of(public, next(iter(asked.columns)), n_records)
    if counts is None:
        return None
    if asked.kind == "quantile":
        return counts.quantile(asked, target)
    return counts.shared(asked, target)


def _inside(
    lower: FloatArray, upper: FloatArray, around_lower: FloatArray, around: FloatArray
) -> BoolArray:
    """Return which intervals are in which, shape (intervals, intervals around). The
    upper bound alone is in itself only.
    """
    first = lower[:, None]
    is_point = (upper == lower)[:, None]
    is_within = (around_lower <= first) & (upper[:, None] <= around)
    is_same = around_lower == first
    is_in_longer = around > around_lower
    held = np.where(is_point, is_within & is_same, is_within & is_in_longer)
    return np.asarray(held, dtype=bool)


def _sums_of(
    rows: pd.DataFrame, is_missing: BoolArray, lower: FloatArray, upper: FloatArray
) -> FloatArray:
    """Return which of the narrowest intervals each count adds up, records without a
    number last; shape (counts, intervals + 1).
    """
    around = rows[["lower", "upper"]].to_numpy(np.float64)
    inside = _inside(lower, upper, around[:, 0], around[:, 1]).T
    return np.column_stack([inside & ~is_missing[:, None], is_missing]).astype(float)


def _least_squares(
    rows: pd.DataFrame, sums: FloatArray, n_records: tuple[float, float]
) -> tuple[FloatArray, FloatArray]:
    """Return the counts of the narrowest intervals, and the covariance of their
    errors.
    """
    n, n_variance = n_records
    has_missing = bool(sums[:, -1].any())
    kept = sums if has_missing else sums[:, :-1]
    matrix = np.vstack([kept, np.ones(kept.shape[1])])
    seen = np.append(rows["noisy"].to_numpy(np.float64), n)
    variance = np.append(rows["variance"].to_numpy(np.float64), n_variance)
    weights = 1 / np.maximum(variance, LEAST_VARIANCE)
    noise = np.linalg.pinv((matrix.T * weights) @ matrix, hermitian=True)
    counts = noise @ (matrix.T @ (weights * seen))
    if has_missing:
        return counts, noise
    return np.append(counts, 0.0), np.pad(noise, ((0, 1), (0, 1)))
