"""The public plan of a table that is synthesized column by column: order, predictors, strata, shares of epsilon."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from pdips.arrays import FloatArray
from pdips.data.encoding import Box, Scale, Values
from pdips.data.schema import Column, Schema
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours, Spend
from pdips.quantile.conditional import Groups
from pdips.quantile.gradient import RegressionRecords
from pdips.quantile.panel import Panel

MOST_GROUPS = 32
"""Groups of a column's histogram, in each stratum."""
MOST_STRATA = 256
CUTS = 4
"""Intervals that a numeric column is cut into where it makes groups."""
LEAST_WIDTH = 1e-300
MISSING_SHARE = Fraction(1, 5)
"""Of a column's epsilon, for counting how many of its numbers are missing."""

SMALLEST_EPSILON = Fraction(1, 10**9)
"""For a column and record; below it noise would have more digits than its samplers."""


@dataclass(frozen=True, kw_only=True)
class ColumnTask:
    """One numeric column of one stratum: what is read, and at which price.

    Parameters
    ----------
    column : Column
        The outcome.
    box : Box
        The predictors.
    outcome, given : ndarray and mapping
        Of the table's records.
    pilot : mapping
        The same predictors of records drawn from what is released.
    epsilon, neighbours, cap
        The price, the neighbours that it is for, and the most records of a person.
    unchanged : ndarray, optional
        In a panel the line, in predictors over [-1, 1]^p, on which the outcome is what it was the year before.
    n_public : int, optional
        In a panel the number of records, where it follows from public columns.
    """

    column: Column
    box: Box
    outcome: FloatArray
    given: Values
    pilot: Values
    epsilon: Fraction
    neighbours: Neighbours
    cap: int
    unchanged: FloatArray | None = None
    n_public: int | None = None

    def records(self) -> RegressionRecords:
        """Return outcome and predictors, clamped to the box, as a K-norm gradient reads them."""
        scale = Scale(self.column)
        predictors = self.box.matrix(self.given) if self.box.names else np.zeros((len(self.outcome), 0))
        return RegressionRecords.of(scale.there(self.outcome), predictors, *scale.bounds)

    def scale(self, epsilon: Fraction) -> Fraction:
        """Return the scale of the noise of a histogram that costs ``epsilon``."""
        return histogram_scale(self.neighbours, self.cap, epsilon)


@dataclass(frozen=True, kw_only=True)
class ColumnPlan:
    """The public plan of a table.

    Parameters
    ----------
    schema : Schema
        Of the table.
    order : tuple of str
        The columns that are synthesized.
    given : mapping of str to tuple of str
        For each the columns that it may depend on, all before it.
    caps : mapping of str to float
        Public ends of predictors' ranges.
    shares : mapping of str to Fraction
        Of epsilon, by column; they add up to 1.
    by : tuple of str
        Categorical columns whose combinations are synthesized separately.
    epsilon, neighbours
        The price in total, in nats, and the neighbours that it is for.
    panel : Panel, optional
        Which columns are values of years.
    """

    schema: Schema
    order: tuple[str, ...]
    given: Mapping[str, tuple[str, ...]]
    caps: Mapping[str, float]
    shares: Mapping[str, Fraction]
    by: tuple[str, ...]
    epsilon: Fraction
    neighbours: Neighbours
    panel: Panel | None = None

    @cached_property
    def strata(self) -> Groups:
        """The strata of numeric columns."""
        return Groups(self.schema, {name: np.zeros(0) for name in self.by})

    @property
    def numeric(self) -> list[str]:
        """The numeric columns that are synthesized."""
        return [name for name in self.order if not self.schema.columns[name].is_categorical]

    def in_stratum(self) -> tuple[Fraction, Neighbours]:
        """Return the share of a step's epsilon that each stratum may spend, and for which neighbours.

        A replaced record may leave one stratum and enter another: two strata with a record less and one more, at half
        of epsilon each (``docs/proofs/kng.md``, theorem 7). Where the strata are public it stays.
        """
        confidential = [name for name in self.by if not self.schema.columns[name].public]
        if confidential and self.neighbours == "replace-one":
            return Fraction(1, 2), "add-remove"
        return Fraction(1), self.neighbours

    def least(self, name: str) -> Fraction:
        """Return the least epsilon that a step of a column may have to do with, before any table is seen.

        That is what one stratum has, of a year the smaller part of births and continuers, and of a column with missing
        values what counting these leaves.
        """
        epsilon, column = self.epsilon * self.shares[name], self.schema.columns[name]
        if column.is_categorical:
            return epsilon
        if self.panel and name in self.panel.years:
            births = self.panel.births_share if name in self.panel.before else None
            epsilon *= min(births, 1 - births) if births is not None else 1
        elif column.missing:
            epsilon *= 1 - MISSING_SHARE
        return epsilon * self.in_stratum()[0]

    def n_predictors(self, name: str) -> int:
        """Return how many columns a column may be a line in; strata are none."""
        return len([other for other in self.given[name] if other not in self.by])

    def groups(self, name: str, pilot: Values) -> Groups:
        """Return the groups of a column's histogram: the strata, then columns before as long as there are few."""
        strata = {each: np.zeros(0) for each in self.by if each != name and each in pilot}
        cuts, most = strata, MOST_GROUPS * max(Groups(self.schema, strata).n, 1)
        for other in reversed(self.given[name]):
            if other in cuts:
                continue
            inner = np.zeros(0) if self.schema.columns[other].is_categorical else _quartiles(pilot[other])
            wider = Groups(self.schema, {**cuts, other: inner})
            cuts = dict(wider.cuts) if wider.n <= most else cuts
        return Groups(self.schema, cuts)

    def spends(self) -> tuple[Spend, ...]:
        """Return the items of a price: one a column, its strata together.

        Raises
        ------
        InputError
            If a column's share is so small that its noise would be out of range.
        """
        for name in self.order:
            if self.least(name) / self.schema.records.max_per_person < SMALLEST_EPSILON:
                births = " or more even, or births_share = parallel" if self.panel and self.panel.births_share else ""
                raise InputError(
                    f"epsilon is too small: a step of column {name!r} would have less than 1e-9 for each record; take "
                    f"a larger epsilon, or shares that are larger for it{births}"
                )
        years, strata = self.panel.before if self.panel else {}, ", all strata" if self.by else ""
        return tuple(
            Spend(
                step=f"column {name}{', births and continuers' if name in years else ''}{strata}",
                epsilon=self.epsilon * self.shares[name],
            )
            for name in self.order
        )


def histogram_scale(neighbours: Neighbours, cap: int, epsilon: Fraction) -> Fraction:
    """Return the scale of the noise on each count: a replaced record changes two of them, and a person has ``cap``."""
    return cap * (2 if neighbours == "replace-one" else 1) / epsilon


def _quartiles(values: FloatArray) -> FloatArray:
    """Return inner ends of about equally full intervals of released numbers."""
    known = values[~np.isnan(values)]
    return np.unique(np.quantile(known, np.arange(1, CUTS) / CUTS)) if len(known) else np.zeros(0)


def column_plan(
    schema: Schema,
    *,
    epsilon: Fraction,
    neighbours: Neighbours,
    order: Sequence[str] | None,
    predictors: Mapping[str, Sequence[str]],
    caps: Mapping[str, float],
    budget: Mapping[str, Fraction],
    by: Sequence[str],
    panel: Panel | None,
) -> ColumnPlan:
    """Check settings by column against a schema and return the plan.

    Parameters
    ----------
    schema : Schema
        Of the table.
    epsilon, neighbours
        The price in total, in nats, and the neighbours that it is for.
    order : sequence of str, optional
        The columns that aren't public, in their order; the schema's if None.
    predictors, caps, budget : mapping
        By column: those that it depends on, a public end of its range, its share of epsilon. Columns may be left out;
        an empty budget stands for the usual shares.
    by : sequence of str
        Columns whose combinations are synthesized separately.
    panel : Panel, optional
        Which columns are values of years.

    Raises
    ------
    InputError
        If a setting names a column that isn't there, or doesn't fit.
    """
    _check_names(schema, order, by, (*predictors, *caps, *budget))
    public = schema.public_columns
    free = [name for name in (order or schema.columns) if name not in public]
    strata = [name for name in by if name in free]
    ordered = (*strata, *(name for name in free if name not in strata))
    given = {name: _given(name, (*public, *ordered), predictors, panel) for name in ordered}
    _check_columns(schema, by)
    found = ColumnPlan(
        schema=schema,
        order=ordered,
        given=given,
        caps={name: _cap(name, value, schema) for name, value in caps.items()},
        shares=_shares(given, budget, panel),
        by=tuple(by),
        epsilon=epsilon,
        neighbours=neighbours,
        panel=panel,
    )
    if found.strata.n > MOST_STRATA:
        raise InputError(f"by makes {found.strata.n:,} strata; at most {MOST_STRATA} are synthesized separately")
    return found


def _check_names(schema: Schema, order: Sequence[str] | None, by: Sequence[str], others: Sequence[str]) -> None:
    for name in (*(order or ()), *by, *others):
        if name not in schema.columns:
            raise InputError(f"{name!r} is no column of the schema; it has {', '.join(schema.columns)}")
    if schema.impossible:
        raise InputError("columns drawn one after the other would break the schema's [[impossible]] combinations")
    free = [name for name in schema.columns if name not in schema.public_columns]
    if not free:
        raise InputError("every column of the schema is public: there is nothing to synthesize")
    if order is not None and (left_out := [name for name in free if name not in order]):
        raise InputError(f"order leaves out {left_out[0]!r}; it names every column that isn't public, once")
    for setting, names in (("order", order or ()), ("by", by)):
        if len(set(names)) < len(names):
            raise InputError(f"{setting} names a column twice")


def _check_columns(schema: Schema, by: Sequence[str]) -> None:
    for name in by:
        if not schema.columns[name].is_categorical:
            raise InputError(f"by: column {name!r} is numeric; strata are made by columns with levels")
    for name, column in schema.columns.items():
        low, high = (0.0, 1.0) if column.is_categorical else Scale(column).bounds
        if not high - low > LEAST_WIDTH:
            raise InputError(f"column {name!r}: its bounds are one and the same number to a double on its scale")


def _given(
    name: str, ordered: Sequence[str], wanted: Mapping[str, Sequence[str]], panel: Panel | None
) -> tuple[str, ...]:
    before = ordered[: ordered.index(name)]
    found = wanted.get(name, before)
    if panel and name in panel.years:
        found = panel.given(name, wanted.get(name))
    for other in found:
        if other not in before:
            raise InputError(f"predictors: {other!r} doesn't come before {name!r}; change order")
    return tuple(found)


def _cap(name: str, value: float, schema: Schema) -> float:
    column = schema.columns[name]
    if column.lower is None or column.upper is None:
        raise InputError(f"caps: column {name!r} has levels, not bounds")
    if not column.lower < value <= column.upper:
        raise InputError(
            f"caps: that of {name!r} must be above its lower bound {column.lower:g} and at most its upper bound "
            f"{column.upper:g}, got {value:g}: predictors need a range of some width"
        )
    return float(value)


def _shares(
    given: Mapping[str, tuple[str, ...]], budget: Mapping[str, Fraction], panel: Panel | None
) -> dict[str, Fraction]:
    """Return the share of each column: as asked for, or twice as much for one that depends on others or is a year's."""
    years = panel.years if panel else {}
    weights = {name: Fraction(2 if given[name] or name in years else 1) for name in given}
    if budget:
        for name in given:
            if name not in budget:
                raise InputError(f"budget needs a share above 0 for {name!r}, as for every column that isn't public")
        weights = {name: budget[name] for name in given}
    total = sum(weights.values(), Fraction(0))
    return {name: weight / total for name, weight in weights.items()}
