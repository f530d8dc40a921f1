"""The public plan of a table that is synthesized column by column: order, predictors, strata, shares of epsilon."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from pdips.arrays import FloatArray
from pdips.data.encoding import Box, Scale, Values
from pdips.data.schema import Schema
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours
from pdips.privacy.plan import Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.quantile.conditional import RecordGroups
from pdips.quantile.panel import PARTS, Panel, Part

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
class ColumnBudget:
    """What the private answers of one column have in common; from it follows what each of them costs.

    Parameters
    ----------
    schema, neighbours
        Of the plan.
    item, part : str
        What the ledger calls the column, and which part of its records this is, if births are apart from continuers.
    branch : str
        Like ``part`` where both parts have the whole budget, since no record is in two of them.
    epsilon : Fraction
        For all answers, in nats.
    strata : int
        How many strata there are, each of which is asked the same.
    confidential : bool
        Whether the strata are confidential: then a replaced record may leave one and enter another.
    """

    schema: Schema
    neighbours: Neighbours
    item: str
    epsilon: Fraction
    part: str = ""
    branch: str = ""
    strata: int = 1
    confidential: bool = False

    @property
    def moves(self) -> bool:
        """Whether a record may move between strata: two of them, with one record less and one more."""
        return self.confidential and self.neighbours == "replace-one"

    @property
    def in_stratum(self) -> Neighbours:
        """What happens to one stratum: a replaced record stays in it if strata are public (kng.md, theorem 7)."""
        return "add-remove" if self.moves else self.neighbours

    def choice(self, name: str, price: Fraction, spread: int) -> Step:
        """Return the step of an exponential mechanism; one record moves two candidates' scores apart by ``spread``."""
        return self._step(name, price, self._of_record(spread), law="exponential")

    def draw(self, name: str, price: Fraction) -> Step:
        """Return the step of a draw from a distribution that has an epsilon of one record: 1 / scale."""
        return self._step(name, price, self._of_record(1), law="distribution")

    def histogram(self, name: str, price: Fraction, counts: str) -> Step:
        """Return the step of a histogram of records."""
        cells = Sensitivity.of_counts(self.schema, self.neighbours)
        return self._step(name, price, cells, counts=counts)

    def _of_record(self, spread: int) -> Sensitivity:
        return Sensitivity.of_record(self.schema, l1=2 * spread if self.moves else spread)

    def _step(self, name: str, price: Fraction, sensitivity: Sensitivity, **more: Any) -> Step:
        whole = f"{self.item}: {self.part + ', ' if self.part else ''}{name}"
        common: dict[str, Any] = {"item": self.item, "branch": self.branch, "strata": self.strata}
        return Step(name=whole, sensitivity=sensitivity, price=price, **common, **more)


@dataclass(frozen=True, kw_only=True)
class NumericPart:
    """Those records of a numeric column that are fitted together: all, or the births or the continuers of a year.

    Parameters
    ----------
    budget : ColumnBudget
        The price.
    box : Box
        The predictors.
    part : {"births", "continuers"}, optional
        Of a panel's year.
    unchanged : ndarray, optional
        In a panel the line, in predictors over [-1, 1]^p, on which the outcome is what it was the year before.
    """

    budget: ColumnBudget
    box: Box
    part: Part | None = None
    unchanged: FloatArray | None = None


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
    def strata(self) -> RecordGroups:
        """The strata of numeric columns."""
        return RecordGroups(self.schema, {name: np.zeros(0) for name in self.by})

    @property
    def numeric(self) -> list[str]:
        """The numeric columns that are synthesized."""
        return [name for name in self.order if not self.schema.columns[name].is_categorical]

    @property
    def confidential(self) -> bool:
        """Whether records are divided by columns that aren't public."""
        return any(not self.schema.columns[name].public for name in self.by)

    def epsilon_of(self, name: str) -> Fraction:
        """Return what a column costs, in nats."""
        return self.epsilon * self.shares[name]

    def budget(self, name: str, epsilon: Fraction, **part: str) -> ColumnBudget:
        """Return the budget of a numeric column, or of a part of it."""
        return ColumnBudget(
            schema=self.schema,
            neighbours=self.neighbours,
            item=self.item(name),
            epsilon=epsilon,
            strata=self.strata.n,
            confidential=self.confidential,
            **part,
        )

    def item(self, name: str) -> str:
        """Return what the ledger calls a column: births and continuers together, and all strata."""
        parts = ", births and continuers" if self.panel and name in self.panel.before else ""
        return f"column {name}{parts}{', all strata' if self.by else ''}"

    def histogram(self, name: str) -> Step | None:
        """Return the step that counts levels, or how many numbers are missing, in all strata at once."""
        column, epsilon = self.schema.columns[name], self.epsilon_of(name)
        whole = ColumnBudget(schema=self.schema, neighbours=self.neighbours, item=self.item(name), epsilon=epsilon)
        if column.is_categorical:
            return whole.histogram("levels", epsilon, f"each level of {name}")
        if column.missing and not (self.panel and name in self.panel.years):
            return whole.histogram("missing values", epsilon * MISSING_SHARE, f"missing values of {name}")
        return None

    def parts(self, name: str) -> tuple[NumericPart, ...]:
        """Return the parts of a numeric column that are fitted apart."""
        panel, epsilon = self.panel, self.epsilon_of(name)
        if panel is None or name not in panel.years:
            left = epsilon * (1 - MISSING_SHARE) if self.schema.columns[name].missing else epsilon
            return (NumericPart(budget=self.budget(name, left), box=self._box(self.schema, self.given[name])),)
        found = []
        for part in PARTS if name in panel.before else PARTS[:1]:
            box = self._box(panel.known_schema, panel.of_part(part, name, self.given[name]))
            budget = self.budget(name, epsilon * panel.share(part, name), part=part)
            # both have all of the budget, or each has an item of its own
            apart = {"item": f"{budget.item}, {part}"} if panel.births_share is not None else {"branch": part}
            budget = replace(budget, **apart)
            found.append(NumericPart(budget=budget, box=box, part=part, unchanged=panel.unchanged(name, box)))
        return tuple(found)

    def _box(self, schema: Schema, given: Sequence[str]) -> Box:
        return Box(schema, tuple(name for name in given if name not in self.by), self.caps)

    def cuts(self, name: str) -> bool:
        """Whether the groups of a column with levels are cut where numbers that are drawn on the way say."""
        columns = self.schema.columns
        return columns[name].is_categorical and any(not columns[other].is_categorical for other in self.given[name])

    def least(self, name: str) -> Fraction:
        """Return the least epsilon that one stratum's answers for a column may have to do with, for each record."""
        parts = () if self.schema.columns[name].is_categorical else self.parts(name)
        epsilon = min((part.budget.epsilon for part in parts), default=self.epsilon_of(name))
        halved = bool(parts) and parts[0].budget.moves
        return epsilon / Sensitivity.of_record(self.schema, l1=2 if halved else 1).l1

    def n_predictors(self, name: str) -> int:
        """Return how many columns a column may be a line in; strata are none."""
        return len([other for other in self.given[name] if other not in self.by])

    def groups(self, name: str, pilot: Values) -> RecordGroups:
        """Return the groups of a column's histogram: the strata, then columns before as long as there are few."""
        strata = {each: np.zeros(0) for each in self.by if each != name and each in pilot}
        cuts, most = strata, MOST_GROUPS * max(RecordGroups(self.schema, strata).n, 1)
        for other in reversed(self.given[name]):
            if other in cuts:
                continue
            inner = np.zeros(0) if self.schema.columns[other].is_categorical else _quartiles(pilot[other])
            wider = RecordGroups(self.schema, {**cuts, other: inner})
            cuts = dict(wider.cuts) if wider.n <= most else cuts
        return RecordGroups(self.schema, cuts)

    def check(self) -> None:
        """Refuse shares that leave too little.

        Raises
        ------
        InputError
            If a column's share is so small that its noise would be out of range.
        """
        for name in self.order:
            if self.least(name) < SMALLEST_EPSILON:
                births = " or more even, or births_share = parallel" if self.panel and self.panel.births_share else ""
                raise InputError(
                    f"epsilon is too small: a step of column {name!r} would have less than 1e-9 for each record; take "
                    f"a larger epsilon, or shares that are larger for it{births}"
                )


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
