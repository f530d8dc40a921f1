"""A table synthesized column by column: each given those before, from statistics that are paid for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from pdips.arrays import BoolArray, FloatArray
from pdips.data.encoding import Box, Scale, Values, in_units
from pdips.data.schema import Column, Schema
from pdips.errors import InputError
from pdips.privacy.loss import Neighbours, exact
from pdips.quantile.choosing import Chooser
from pdips.quantile.conditional import ByStratum, Draw, Groups, LevelDraw, MissingDraw
from pdips.quantile.line_search import Records
from pdips.quantile.panel import PARTS, Nobody, Panel, PanelDraw, Part

PILOT = 5_000
"""Records drawn on the way from what is released so far: where groups are cut and predictors centred."""
MOST_GROUPS = 32
MOST_STRATA = 256
CUTS = 4
LEAST_WIDTH = 1e-300
MISSING_SHARE = Fraction(1, 5)


@dataclass(frozen=True, kw_only=True)
class Task:
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

    def records(self) -> Records:
        """Return outcome and predictors as a K-norm gradient reads them."""
        lower, upper = Scale(self.column).bounds
        predictors = self.predictors(self.given)
        outcome = Scale(self.column).there(self.outcome)
        units = in_units(predictors)
        return Records(outcome=outcome, predictors=predictors, instruments=units, lower=lower, upper=upper)

    def scale(self, epsilon: Fraction) -> Fraction:
        """Return the scale of the noise of a histogram that costs ``epsilon``."""
        return histogram_scale(self.neighbours, self.cap, epsilon)

    def predictors(self, values: Values) -> FloatArray:
        """Return predictors, clamped to the box."""
        if not self.box.names:
            return np.zeros((len(self.outcome), 0))
        return self.box.matrix(values)


class FitNumbers(Protocol):
    """Spends a task's epsilon and returns what draws the column."""

    def __call__(self, task: Task, chooser: Chooser) -> Draw: ...


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
        The price in total.
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

    def in_stratum(self) -> tuple[Fraction, Neighbours]:
        """Return the share of a step's epsilon that each stratum may spend, and for which neighbours.

        A replaced record may leave one stratum and enter another: two strata with a record less and one more, at half
        of epsilon each (SOUNDNESS 1.4). Where the strata are public it stays.
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

    def fit(
        self,
        values: Values,
        pilot: dict[str, FloatArray],
        fit_numbers: FitNumbers,
        chooser: Chooser,
        rng: np.random.Generator,
    ) -> dict[str, Draw]:
        """Spend epsilon and return what draws each column.

        Parameters
        ----------
        values : mapping of str to ndarray
            The confidential table.
        pilot : dict of str to ndarray
            Public columns of the records to be drawn on the way; the others are added.
        fit_numbers : callable
            For numeric columns.
        chooser : Chooser
            Makes all private choices.
        rng : numpy.random.Generator
            For the records on the way.
        """
        draws: dict[str, Draw] = {}
        n_pilot = len(next(iter(pilot.values()))) if pilot else PILOT
        for name in self.order:
            column, epsilon = self.schema.columns[name], self.epsilon * self.shares[name]
            if column.is_categorical:
                draws[name] = self._levels(name, values, pilot, epsilon, chooser)
            elif self.panel and name in self.panel.years:
                draws[name] = self._year(self.panel, name, values, pilot, epsilon, fit_numbers, chooser)
            else:
                draws[name] = self._numbers(name, values, pilot, epsilon, fit_numbers, chooser)
            pilot[name] = draws[name].draw(pilot, n_pilot, rng)
        return draws

    def _levels(
        self, name: str, values: Values, pilot: Values, epsilon: Fraction, chooser: Chooser, missing: bool = False
    ) -> LevelDraw:
        """Count levels by group, with noise (or whether a number is missing)."""
        groups = self._groups(name, pilot)
        n_levels = 2 if missing else self.schema.columns[name].n_levels
        codes = np.isnan(values[name]) if missing else values[name]
        place = groups.of(values, len(values[name])) * n_levels + codes.astype(np.int64)
        counts = np.bincount(place, minlength=groups.n * n_levels)
        noisy = chooser.count(counts, self._scale(epsilon)).reshape(groups.n, n_levels)
        weights = np.maximum(noisy, 0).astype(np.float64)
        weights[weights.sum(axis=1) == 0] = np.maximum(noisy.sum(axis=0), 0)
        weights[weights.sum(axis=1) == 0] = 1.0
        return LevelDraw(groups, weights)

    def _scale(self, epsilon: Fraction) -> Fraction:
        """Return the scale of the noise of a histogram of all records."""
        return histogram_scale(self.neighbours, self.schema.records.max_per_person, epsilon)

    def _groups(self, name: str, pilot: Values) -> Groups:
        """Return the groups of a column's histogram: the strata, then columns before as long as there are few."""
        cuts = {each: np.zeros(0) for each in self.by if each != name and each in pilot}
        for other in reversed(self.given[name]):
            column = self.schema.columns[other]
            if other in cuts:
                continue
            inner = np.zeros(0) if column.is_categorical else _quantiles(pilot[other])
            wider = Groups(self.schema, {**cuts, other: inner})
            if wider.n <= MOST_GROUPS * max(Groups(self.schema, {n: c for n, c in cuts.items() if n in self.by}).n, 1):
                cuts[other] = inner
        return Groups(self.schema, cuts)

    def _numbers(
        self, name: str, values: Values, pilot: Values, epsilon: Fraction, fit_numbers: FitNumbers, chooser: Chooser
    ) -> Draw:
        column = self.schema.columns[name]
        missing = None
        if column.missing:
            missing = self._levels(name, values, pilot, epsilon * MISSING_SHARE, chooser, missing=True)
            epsilon *= 1 - MISSING_SHARE
        box = self._box(self.schema, self.given[name])
        known, drawn = ~np.isnan(values[name]), np.ones(len(next(iter(pilot.values()), ())), dtype=bool)
        each = [
            self._fit(name, box, values, pilot, known & here, drawn & there, epsilon, fit_numbers, chooser)
            for here, there in zip(self._places(values, len(known)), self._places(pilot, len(drawn)), strict=True)
        ]
        found: Draw = ByStratum(self.strata, tuple(each)) if self.by else each[0]
        return MissingDraw(missing, found) if missing else found

    def _year(
        self,
        panel: Panel,
        name: str,
        values: Values,
        pilot: Values,
        epsilon: Fraction,
        fit_numbers: FitNumbers,
        chooser: Chooser,
    ) -> Draw:
        """Fit births and continuers of a year apart: public columns say who is which."""
        here, there, draws = panel.parts(name, values), panel.parts(name, pilot), dict[Part, Draw]()
        strata, strata_pilot = (
            self._places(values, len(values[name])),
            self._places(pilot, len(next(iter(pilot.values()), ()))),
        )
        public = all(self.schema.columns[each].public for each in self.by)
        for part, other in zip(PARTS, reversed(PARTS), strict=True):
            box = self._box(panel.known_schema, panel.of_part(part, name, self.given[name]))
            unchanged = panel.unchanged(name, box)
            each: list[Draw] = []
            for rows, rows_pilot in zip(strata, strata_pilot, strict=True):
                among = rows if public else np.ones_like(rows)
                if not (here[part] & among).any():
                    each.append(Nobody())
                    continue
                spent = epsilon * panel.share(part, alone=not (here[other] & among).any())
                mine, mine_pilot = here[part] & rows, there[part] & rows_pilot
                known = {"unchanged": unchanged, "n_public": int(mine.sum()) if public else None}
                each.append(self._fit(name, box, values, pilot, mine, mine_pilot, spent, fit_numbers, chooser, **known))
            draws[part] = ByStratum(self.strata, tuple(each)) if self.by else each[0]
        return PanelDraw(panel, name, draws)

    def _box(self, schema: Schema, given: Sequence[str]) -> Box:
        return Box(schema, tuple(name for name in given if name not in self.by), self.caps)

    def _places(self, values: Values, n: int) -> list[BoolArray]:
        place = self.strata.of(values, n)
        return [place == k for k in range(self.strata.n)]

    def _fit(
        self,
        name: str,
        box: Box,
        values: Values,
        pilot: Values,
        rows: BoolArray,
        rows_pilot: BoolArray,
        epsilon: Fraction,
        fit_numbers: FitNumbers,
        chooser: Chooser,
        **panel: Any,
    ) -> Draw:
        """Spend a stratum's part of epsilon on some of its records."""
        share, neighbours = self.in_stratum()
        task = Task(
            column=self.schema.columns[name],
            box=box,
            outcome=values[name][rows],
            given={other: values[other][rows] for other in box.names},
            pilot={other: pilot[other][rows_pilot] for other in box.names},
            epsilon=epsilon * share,
            neighbours=neighbours,
            cap=self.schema.records.max_per_person,
            **panel,
        )
        return fit_numbers(task, chooser)


def histogram_scale(neighbours: Neighbours, cap: int, epsilon: Fraction) -> Fraction:
    """Return the scale of the noise on each count: a replaced record changes two of them, and a person has ``cap``."""
    return cap * (2 if neighbours == "replace-one" else 1) / epsilon


def _quantiles(values: FloatArray) -> FloatArray:
    """Return inner ends of about equally full intervals of released numbers."""
    known = values[~np.isnan(values)]
    if not len(known):
        return np.zeros(0)
    return np.unique(np.quantile(known, np.arange(1, CUTS) / CUTS))


def plan(
    schema: Schema,
    *,
    epsilon: Fraction,
    neighbours: Neighbours,
    order: Sequence[str] | None = None,
    predictors: Mapping[str, Sequence[str]] | None = None,
    caps: Mapping[str, float] | None = None,
    budget: Mapping[str, Fraction] | None = None,
    by: Sequence[str] = (),
    panel: Panel | None = None,
) -> ColumnPlan:
    """Check the settings against a schema and return the plan; see :class:`pdips.KNG` for the settings.

    Raises
    ------
    InputError
        If a setting names a column that isn't there, or doesn't fit.
    """
    public = schema.public_columns
    for name in {*(order or ()), *(predictors or {}), *(caps or {}), *(budget or {}), *by}:
        if name not in schema.columns:
            raise InputError(f"{name!r} is no column of the schema; it has {', '.join(schema.columns)}")
    if schema.impossible:
        raise InputError("columns drawn one after the other would break the schema's [[impossible]] combinations")
    free = [name for name in (order or schema.columns) if name not in public]
    if order is not None and (missing := [n for n in schema.columns if n not in public and n not in free]):
        raise InputError(f"order leaves out {missing[0]!r}; it names every column that isn't public, once")
    if len(set(free)) < len(free):
        raise InputError("order names a column twice")
    if len(set(by)) < len(by):
        raise InputError("by names a column twice")
    if not free:
        raise InputError("every column of the schema is public: there is nothing to synthesize")
    strata = [name for name in by if name in free]
    ordered = (*strata, *(name for name in free if name not in strata))
    given = {name: _given(name, (*public, *ordered), schema, predictors or {}, panel) for name in ordered}
    for name in by:
        if not schema.columns[name].is_categorical:
            raise InputError(f"by: column {name!r} is numeric; strata are made by columns with levels")
    for name, column in schema.columns.items():
        low, high = (0.0, 1.0) if column.is_categorical else Scale(column).bounds
        if not high - low > LEAST_WIDTH:
            raise InputError(f"column {name!r}: its bounds are one and the same number to a double on its scale")
    found = ColumnPlan(
        schema=schema,
        order=ordered,
        given=given,
        caps={name: _cap(name, value, schema) for name, value in (caps or {}).items()},
        shares=_shares(ordered, given, budget, panel),
        by=tuple(by),
        epsilon=epsilon,
        neighbours=neighbours,
        panel=panel,
    )
    if found.strata.n > MOST_STRATA:
        raise InputError(f"by makes {found.strata.n:,} strata; at most {MOST_STRATA} are synthesized separately")
    return found


def _given(
    name: str, ordered: Sequence[str], schema: Schema, wanted: Mapping[str, Sequence[str]], panel: Panel | None
) -> tuple[str, ...]:
    before = tuple(ordered[: ordered.index(name)])
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
    ordered: Sequence[str],
    given: Mapping[str, tuple[str, ...]],
    budget: Mapping[str, Fraction] | None,
    panel: Panel | None,
) -> dict[str, Fraction]:
    """Return the share of each column: as asked for, or twice as much for one that depends on others or is a year's."""
    if budget:
        for name in ordered:
            if budget.get(name, Fraction(0)) <= 0:
                raise InputError(f"budget needs a share above 0 for {name!r}, as for every column that isn't public")
        total = sum((exact(budget[name], "budget") for name in ordered), Fraction(0))
        return {name: exact(budget[name], "budget") / total for name in ordered}
    years = panel.years if panel else {}
    weights = {name: 2 if given[name] or name in years else 1 for name in ordered}
    return {name: Fraction(weight, sum(weights.values())) for name, weight in weights.items()}
