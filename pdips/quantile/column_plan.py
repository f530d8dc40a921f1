"""The public plan of a table that is synthesized column by column: order, predictors,
strata, panels, budgets.

A panel has a record for each unit, a column for each year, known from a public first
year to a public last one. In each year the units that are new ("births") are
synthesized on their own, those that were there the year before ("continuers") given
their values of that year (Kinney et al. 2011; Tran et al. (2023), section 5.1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np

from pdips.arrays import BoolArray, FloatArray
from pdips.data.encoding import Box, Scale, Values
from pdips.data.schema import Column, Schema
from pdips.errors import DataError, InputError
from pdips.margins.intervals import IntervalColumn
from pdips.privacy.loss import Neighbours, Number, exact
from pdips.privacy.plan import Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.quantile.conditional import RecordGroups

Part = Literal["births", "continuers"]
PARTS: tuple[Part, ...] = ("births", "continuers")


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Which columns are values of which years, and in which years a record has them;
    all of it public.

    ``first`` and ``last`` are public columns with a record's first and last year,
    ``before`` gives the column of the year before. ``births_share`` of a year's budget
    pays for births, the rest for continuers; if None each has it all.
    """

    schema: Schema
    first: str
    last: str
    years: Mapping[str, int]
    before: Mapping[str, str]
    births_share: Fraction | None = None

    @cached_property
    def known_schema(self) -> Schema:
        """The schema of records in a year in which they have values: there nothing is
        missing.
        """
        columns = dict(self.schema.columns)
        for name in self.years:
            columns[name] = columns[name].model_copy(update={"missing": False})
        return self.schema.model_copy(update={"columns": columns})

    def span(self, values: Values) -> list[FloatArray]:
        """Return the first and the last year of each record, from public columns."""
        ends = []
        for name in (self.first, self.last):
            column = self.schema.columns[name]
            years = values[name]
            if column.is_categorical:
                levels = np.array([float(level) for level in column.levels])
                years = levels[years.astype(np.int64)]
            ends.append(years)
        return ends

    def parts(self, name: str, values: Values) -> dict[Part, BoolArray]:
        """Say which records are births and which continuers in the year of a column;
        the others have no value.
        """
        first, last = self.span(values)
        year = self.years[name]
        before = self.before.get(name)
        here = (first <= year) & (last >= year)
        older = np.zeros(len(first), dtype=bool)
        if before:
            older = first <= self.years[before]
        return {"births": here & ~older, "continuers": here & older}

    def share(self, part: Part, name: str) -> Fraction:
        """Return the share of a year's budget that a part may spend: all of it in a
        prefix's first year.
        """
        if self.births_share is None or name not in self.before:
            return Fraction(1)
        return self.births_share if part == "births" else 1 - self.births_share

    def given(self, name: str, wanted: Sequence[str] | None) -> tuple[str, ...]:
        """Return the predictors of a year's column: as asked for, or the column of the
        year before.

        One that may be missing in a record with a value in this year and the year
        before is refused.
        """
        before = self.before.get(name)
        if wanted is None:
            return (before,) if before else ()
        earliest = self.years[before] if before else self.years[name]
        for other in wanted:
            if not earliest <= self.years.get(other, earliest) <= self.years[name]:
                raise InputError(
                    f"predictors of {name!r}: {other!r} isn't there in every record "
                    f"that goes on from the year before; "
                    "take columns of this year or the year before"
                )
        return tuple(wanted)

    def unchanged(self, name: str, box: Box) -> FloatArray | None:
        """Return the line of last year's value, if that and nothing else is a column's
        predictor, on its own scale.
        """
        before = self.before.get(name)
        if before is None or box.names != (before,) or before in box.caps:
            return None
        old = Scale(self.schema.columns[before])
        new = Scale(self.schema.columns[name])
        if old.column.scale != new.column.scale or old.bounds != new.bounds:
            return None
        low, high = old.bounds
        return np.array([(low + high) / 2, (high - low) / 2])

    def check(self, values: Values) -> None:
        """Refuse a table with values outside of a record's public years, or none
        within; messages name the column.
        """
        first, last = self.span(values)
        if not (last >= first).all():
            raise DataError(
                f"panel: a record's {self.last!r} is before its {self.first!r}"
            )
        for name, year in self.years.items():
            here = (first <= year) & (last >= year)
            known = ~np.isnan(values[name])
            if (known & ~here).any():
                raise DataError(
                    f"panel: column {name!r} has a value outside {self.first!r} to "
                    f"{self.last!r}; correct the "
                    "years, or take the value out"
                )
            if (here & ~known).any():
                raise DataError(
                    f"panel: column {name!r} is missing within {self.first!r} to "
                    f"{self.last!r}; a unit has a value in "
                    "every year from its first to its last"
                )


def check_panel(
    panel: Sequence[str] | None,
    panel_columns: Sequence[str] | None,
    births_share: Number,
) -> Fraction | None:
    """Check the settings of a panel before there is a schema, and return the share of
    births, None for parallel.
    """
    share = None if births_share == "parallel" else exact(births_share, "births_share")
    if share is not None and not 0 < share < 1:
        raise InputError(
            f"births_share must be 'parallel', or above 0 and below 1, "
            f"got {births_share}"
        )
    if panel is None and panel_columns is None and share is None:
        return None
    if (
        panel is None
        or isinstance(panel, str)
        or len(panel) != 2
        or panel[0] == panel[1]
    ):
        raise InputError(
            "panel must name two public columns, a record's first and "
            "last year, such as entry,exit"
        )
    if not panel_columns or isinstance(panel_columns, str) or not all(panel_columns):
        raise InputError(
            "panel_columns must list what the columns of years start "
            "with: emp_ for emp_1976, emp_1977"
        )
    return share


def panel_of(
    schema: Schema,
    panel: Sequence[str] | None,
    panel_columns: Sequence[str] | None,
    births_share: Number,
) -> Panel | None:
    """Return the public shape of a panel from the settings, None where there are none,
    or refuse columns of a schema that aren't what their part asks for.
    """
    share = check_panel(panel, panel_columns, births_share)
    if panel is None:
        return None
    for name in panel:
        if name not in schema.columns:
            raise InputError(
                f"panel: {name!r} is no column of the schema; it has "
                f"{', '.join(schema.columns)}"
            )
        column = schema.columns[name]
        if not column.public or column.missing:
            raise InputError(
                f"panel: column {name!r} must have public = true and no missing "
                f"values: it says in which years a "
                "record has values"
            )
        whole = all(
            not isinstance(level, bool) and str(level).isdecimal()
            for level in column.levels or ()
        )
        if not (whole if column.is_categorical else column.integer):
            raise InputError(
                f"panel: column {name!r} must hold years: levels that are whole "
                f"numbers, or integer = true"
            )
    years: dict[str, int] = {}
    before: dict[str, str] = {}
    for prefix in panel_columns or ():
        year_of = dict[str, int]()
        for name in schema.columns:
            rest = name.removeprefix(prefix)
            if name.startswith(prefix) and rest.isdecimal():
                year_of[name] = int(rest)
        if not year_of:
            raise InputError(
                f"panel_columns: no column of the schema is called "
                f"{prefix!r} and a year, {prefix}1976"
            )
        ordered = sorted(year_of, key=year_of.__getitem__)
        before |= dict(zip(ordered[1:], ordered[:-1], strict=True))
        years |= year_of
    for name in years:
        column = schema.columns[name]
        if name in panel or column.is_categorical or not column.missing:
            raise InputError(
                f"panel: column {name!r} must be numeric, with missing "
                f"= true for years before and after"
            )
    return Panel(
        schema=schema,
        first=panel[0],
        last=panel[1],
        years=years,
        before=before,
        births_share=share,
    )


# ---- columns ----

MOST_GROUPS = 32  # Groups of a column's histogram, in each stratum
MOST_STRATA = 256
CUTS = 4  # Intervals that a numeric column is cut into where it makes groups
LEAST_WIDTH = 1e-300
# Of a column's epsilon, for counting how many of its numbers are missing
MISSING_SHARE = Fraction(1, 5)
# For a column and record; below, noise has more digits than its samplers
SMALLEST_EPSILON = Fraction(1, 10**9)


@dataclass(frozen=True, kw_only=True)
class ColumnBudget:
    """The epsilon of one column, or of one part of its records, and what each of its
    private answers costs.

    All ``strata`` are asked the same. Where they are confidential, a replaced record
    may leave one and enter another. Parts that both have the whole budget, since no
    record is in two of them, are branches.
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
        """Whether a record may move between strata: two of them, with one record less
        and one more.
        """
        return self.confidential and self.neighbours == "replace-one"

    @property
    def in_stratum(self) -> Neighbours:
        """What happens to one stratum: a replaced record stays in it if strata are
        public (kng.md, theorem 7).
        """
        return "add-remove" if self.moves else self.neighbours

    @property
    def per_record(self) -> Fraction:
        """The epsilon of one stratum's answers, for each record."""
        return self.epsilon / self._of_record(1).l1

    def choice(self, name: str, price: Fraction, spread: int) -> Step:
        """Return the step of an exponential mechanism; one record moves two candidates'
        scores apart by ``spread``.
        """
        return self._step(name, price, self._of_record(spread), law="exponential")

    def histogram(self, name: str, price: Fraction, counts: str) -> Step:
        return self._step(
            name,
            price,
            Sensitivity.of_counts(self.schema, self.neighbours),
            counts=counts,
        )

    def _of_record(self, spread: int) -> Sensitivity:
        return Sensitivity.of_record(
            self.schema, l1=2 * spread if self.moves else spread
        )

    def _step(
        self, name: str, price: Fraction, sensitivity: Sensitivity, **more: Any
    ) -> Step:
        whole = f"{self.item}: {self.part + ', ' if self.part else ''}{name}"
        common: dict[str, Any] = {
            "item": self.item,
            "branch": self.branch,
            "strata": self.strata,
        }
        return Step(name=whole, sensitivity=sensitivity, price=price, **common, **more)


@dataclass(frozen=True, kw_only=True)
class NumericPart:
    """Those records of a numeric column that are fitted together: all, or the births or
    the continuers of a year.

    ``unchanged`` is the line, in predictors over [-1, 1]^p, on which the outcome is
    what it was the year before. ``own`` has the intervals that a column without bins is
    counted by where a line, if there is one, only ranks it.
    """

    budget: ColumnBudget
    box: Box
    part: Part | None = None
    unchanged: FloatArray | None = None
    own: IntervalColumn | None = None


@dataclass(frozen=True, kw_only=True)
class ColumnPlan:
    """The public plan of a table: which columns are synthesized in which order, given
    which others, at which shares.

    ``caps`` are public ends of predictors' ranges; the combinations of the columns
    ``by`` are synthesized separately. Columns that are ``pinned`` depend on all that is
    ``given``, the others on as much as the number of records bears.
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
    pinned: frozenset[str] = frozenset()

    @cached_property
    def strata(self) -> RecordGroups:
        return RecordGroups(self.schema, {name: np.zeros(0) for name in self.by})

    @property
    def numeric(self) -> list[str]:
        """The numeric columns that are synthesized."""
        return [
            name for name in self.order if not self.schema.columns[name].is_categorical
        ]

    @property
    def confidential(self) -> bool:
        """Whether records are divided by columns that aren't public."""
        return any(not self.schema.columns[name].public for name in self.by)

    def budget(self, name: str, epsilon: Fraction, part: str = "") -> ColumnBudget:
        """Return the budget of a numeric column, or of a part of it."""
        return replace(
            self._whole(name, epsilon),
            strata=self.strata.n,
            confidential=self.confidential,
            part=part,
        )

    def _whole(self, name: str, epsilon: Fraction) -> ColumnBudget:
        item = f"column {name}"
        if self.panel and name in self.panel.before:
            item += ", births and continuers"
        if self.by:
            item += ", all strata"
        return ColumnBudget(
            schema=self.schema, neighbours=self.neighbours, item=item, epsilon=epsilon
        )

    def histogram(self, name: str) -> Step | None:
        """Return the step that counts levels, or how many numbers are missing, in all
        strata at once.
        """
        column = self.schema.columns[name]
        epsilon = self.epsilon * self.shares[name]
        budget = self._whole(name, epsilon)
        if column.is_categorical:
            return budget.histogram("levels", epsilon, f"each level of {name}")
        of_a_year = self.panel and name in self.panel.years
        if column.missing and not of_a_year:
            share = epsilon * MISSING_SHARE
            text = f"missing values of {name}"
            return budget.histogram("missing values", share, text)
        return None

    def parts(self, name: str) -> tuple[NumericPart, ...]:
        """Return the parts of a numeric column that are fitted apart; none for a column
        with levels.
        """
        panel = self.panel
        epsilon = self.epsilon * self.shares[name]
        column = self.schema.columns[name]
        if column.is_categorical:
            return ()
        if panel is None or name not in panel.years:
            left = epsilon * (1 - MISSING_SHARE) if column.missing else epsilon
            return (self._alone(name, column, left),)
        names = PARTS if name in panel.before else PARTS[:1]
        return tuple(self._of_year(name, panel, epsilon, part) for part in names)

    def _alone(self, name: str, column: Column, epsilon: Fraction) -> NumericPart:
        """Return the one part of a column that isn't a year's."""
        box = self._box(self.schema, self.given[name])
        budget = self.budget(name, epsilon)
        has_line = name in self.pinned or {*box.names} & {*box.caps}
        if column.is_binned or (box.names and has_line):
            return NumericPart(budget=budget, box=box)
        known = column.model_copy(update={"missing": False})
        own = IntervalColumn(name, known, 2, finer=True)
        return NumericPart(budget=budget, box=box, own=own)

    def _of_year(
        self, name: str, panel: Panel, epsilon: Fraction, part: Part
    ) -> NumericPart:
        """Return the births or the continuers of a year."""
        year = panel.years[name]
        given = self.given[name]
        if part == "births":
            given = tuple(
                other for other in given if panel.years.get(other, year) == year
            )
        box = self._box(panel.known_schema, given)
        budget = self.budget(name, epsilon * panel.share(part, name), part=part)
        # both have all of the budget, or each has an item of its own
        if panel.births_share is None:
            budget = replace(budget, branch=part)
        else:
            budget = replace(budget, item=f"{budget.item}, {part}")
        unchanged = panel.unchanged(name, box)
        return NumericPart(budget=budget, box=box, part=part, unchanged=unchanged)

    def _box(self, schema: Schema, given: Sequence[str]) -> Box:
        return Box(
            schema, tuple(name for name in given if name not in self.by), self.caps
        )

    def rows(self, name: str, part: NumericPart, values: Values, n: int) -> BoolArray:
        """Say which of n records are in a part of a column."""
        if self.panel is None or part.part is None:
            return np.ones(n, dtype=bool)
        return self.panel.parts(name, values)[part.part]

    def cuts(self, name: str) -> bool:
        """Whether the groups of a column with levels are cut where numbers that are
        drawn on the way say.
        """
        columns = self.schema.columns
        return columns[name].is_categorical and any(
            not columns[other].is_categorical for other in self.given[name]
        )

    def groups(self, name: str, pilot: Values, borne: float) -> RecordGroups:
        """Return the groups of a column's histogram: the strata, then columns before as
        long as there are few, and no more than are ``borne`` in each stratum, if none
        were asked for.
        """
        most = MOST_GROUPS
        if name not in self.pinned:
            most = min(max(int(borne), 1), MOST_GROUPS)
        strata = [other for other in self.by if other != name and other in pilot]
        groups = RecordGroups(self.schema, {other: np.zeros(0) for other in strata})
        most = most * max(groups.n, 1)
        for other in reversed(self.given[name]):
            if other in groups.cuts:
                continue
            inner = np.zeros(0)
            if not self.schema.columns[other].is_categorical:
                inner = even_cuts(pilot[other])
            wider = RecordGroups(self.schema, {**groups.cuts, other: inner})
            if wider.n <= most:
                groups = wider
        return groups

    def check(self) -> None:
        """Refuse shares so small that a column's noise would be out of range."""
        for name in self.order:
            budgets = [part.budget for part in self.parts(name)]
            if not budgets:
                budgets = [self._whole(name, self.epsilon * self.shares[name])]
            if min(budget.per_record for budget in budgets) < SMALLEST_EPSILON:
                births = ""
                if self.panel and self.panel.births_share:
                    births = " or more even, or births_share = parallel"
                raise InputError(
                    f"epsilon is too small: a step of column {name!r} would have "
                    f"less than 1e-9 for each record; take "
                    f"a larger epsilon, or shares that are larger for it{births}"
                )


def even_cuts(released: FloatArray) -> FloatArray:
    """Return cuts that make about equally full intervals of released numbers; none
    where all are missing.
    """
    known = released[~np.isnan(released)]
    if not len(known):
        return np.zeros(0)
    return np.unique(np.quantile(known, np.arange(1, CUTS) / CUTS))


def check_columns(
    schema: Schema,
    order: Sequence[str] | None,
    by: Sequence[str],
    caps: Mapping[str, float],
    others: Sequence[str],
) -> None:
    """Refuse settings by column that name what isn't there or doesn't fit."""
    for name in (*(order or ()), *by, *caps, *others):
        if name not in schema.columns:
            raise InputError(
                f"{name!r} is no column of the schema; it has "
                f"{', '.join(schema.columns)}"
            )
    if schema.impossible or schema.rule:
        raise InputError(
            "columns drawn one after the other would break the schema's "
            "rules, [[impossible]] or [[rule]]"
        )
    free = [name for name in schema.columns if name not in schema.public_columns]
    if not free:
        raise InputError(
            "every column of the schema is public: there is nothing to synthesize"
        )
    if order is not None and (left_out := [name for name in free if name not in order]):
        raise InputError(
            f"order leaves out {left_out[0]!r}; it names every column "
            f"that isn't public, once"
        )
    for setting, names in (("order", order or ()), ("by", by)):
        if len(set(names)) < len(names):
            raise InputError(f"{setting} names a column twice")
    for name in by:
        if not schema.columns[name].is_categorical:
            raise InputError(
                f"by: column {name!r} is numeric; strata are made by "
                f"columns with levels"
            )
    for name, column in schema.columns.items():
        low, high = (0.0, 1.0) if column.is_categorical else Scale(column).bounds
        if not high - low > LEAST_WIDTH:
            raise InputError(
                f"column {name!r}: its bounds are one and the same "
                f"number to a double on its scale"
            )
    for name, value in caps.items():
        column = schema.columns[name]
        if column.lower is None or column.upper is None:
            raise InputError(f"caps: column {name!r} has levels, not bounds")
        if not column.lower < value <= column.upper:
            raise InputError(
                f"caps: that of {name!r} must be above its lower bound "
                f"{column.lower:g} and at most its upper bound "
                f"{column.upper:g}, got {value:g}: predictors need a range of some "
                f"width"
            )
