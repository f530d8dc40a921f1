"""Tables synthesized column by column, each given those before: shared settings, the plan, and what asks the table."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.encoding import Box, Scale, Values, to_frame, values_of
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.histogram.urns import check_n_records
from pdips.mechanism import Drawn, Mechanism
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Number, exact, positive
from pdips.privacy.plan import Plan, Step
from pdips.quantile.column_plan import ColumnPlan, NumericPart, column_plan
from pdips.quantile.conditional import ByStratum, Draw, LevelDraw, MissingDraw
from pdips.quantile.gradient import LineRegression, RegressionRecords, once
from pdips.quantile.line_search import MOST_RECORDS
from pdips.quantile.panel import PanelDraw, check_panel, panel_of

PILOT = 5_000
"""Records drawn on the way from what is released so far: where groups are cut and predictors centred."""

COARSE = 20_000
"""About so many records are read by the coarse rounds of a search for a line."""

ByColumn = Mapping[str, Any] | tuple[str, ...]

PANEL = (
    " Births and continuers of a year are synthesized apart, each from its own records. Which is which, and in which "
    "years a record has values at all, follows from public columns."
)
"""What the statement of a panel adds."""


@dataclass(frozen=True, kw_only=True)
class ColumnTask:
    """One numeric column of one stratum, or of one part of it.

    Parameters
    ----------
    part : NumericPart
        Its predictors and its price.
    schema, name
        Of the table, and the column.
    regression : LineRegression
        The outcome on the predictors, clamped to their box.
    pilot : mapping
        The same predictors of records drawn from what is released.
    n_public : int, optional
        In a panel the number of records, where it follows from public columns.
    steers : bool
        Whether later columns' questions depend on the answers.
    keep : float
        How likely a coarse step is to read a record.
    rng : numpy.random.Generator
        Tosses the coins of that.
    """

    part: NumericPart
    schema: Schema
    name: str
    regression: LineRegression
    pilot: Values
    n_public: int | None
    steers: bool
    keep: float
    rng: np.random.Generator

    @property
    def box(self) -> Box:
        """The predictors."""
        return self.part.box

    @property
    def column(self) -> Column:
        """The outcome."""
        return self.schema.columns[self.name]


@dataclass(frozen=True, kw_only=True)
class ColumnSynthesis(Mechanism):
    """Settings that mechanisms share which synthesize tables column by column.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss over all sets, in nats, for one person. ``"1/3"`` and ``0.1`` are taken as written.
    n_sets : int
        Number of synthetic sets, all drawn from the same released statistics.
    neighbours : {"replace-one", "add-remove"}
        With replace-one the number of records is public, and all sets have it.
    order : tuple of str, optional
        The columns that aren't public, in the order in which they are synthesized; the schema's if left out.
    predictors : mapping or tuple of str, optional
        For a column the columns before it that it depends on, ``{"pay": ("size", "age")}`` or ``("pay=size+age",)``;
        all before it where it isn't named.
    caps : mapping or tuple of str, optional
        A public end of a predictor's range below the schema's upper bound, ``{"size": 500}``: larger values count as
        this when lines are chosen, and only then.
    budget : mapping or tuple of str, optional
        Share of epsilon of each column, ``{"size": 1, "pay": 2}``; they are scaled to add up to 1. Left out, columns
        that depend on others have twice the share of those that don't.
    by : tuple of str
        Categorical columns whose combinations are synthesized separately.
    panel : tuple of str, optional
        Two public columns, the first and the last year of a record: in between it has a value in each column of a year,
        and before and after it has none. The new of a year are synthesized by themselves, the others given their value
        of the year before, or the predictors named for the column (see ``docs/panels.md``).
    panel_columns : tuple of str, optional
        What the names of the columns of years start with: ``("emp_",)`` for ``emp_1976``, ``emp_1977``.
    births_share : "parallel", int, float, str or Fraction
        Share of a year's budget for the new ("1/4" in paper 002), the others having the rest; by default each has all
        of it, since no record is both.
    n_records : int, optional
        Number of synthetic records, from public knowledge; add-remove needs it.
    n_candidates : int
        Intercepts that a line is chosen from, at most; few make exact laws of tiny tables short.

    Raises
    ------
    InputError
        If a setting is out of range.
    """

    order: tuple[str, ...] | None = None
    predictors: ByColumn | None = None
    caps: ByColumn | None = None
    budget: ByColumn | None = None
    by: tuple[str, ...] = ()
    panel: tuple[str, ...] | None = None
    panel_columns: tuple[str, ...] | None = None
    births_share: Number = "parallel"
    n_records: int | None = None
    n_candidates: int = 2_000

    def __post_init__(self) -> None:
        """Check the settings that need no schema."""
        super().__post_init__()
        check_n_records(self.n_records, self.neighbours)
        for setting in ("predictors", "caps", "budget"):
            named(getattr(self, setting), setting)
        check_panel(self.panel, self.panel_columns, self.births_share)
        n = self.n_candidates
        if isinstance(n, bool) or not isinstance(n, int) or not 2 <= n <= 10_000:
            raise InputError(f"n_candidates must be a whole number from 2 to 10,000, got {n}")

    @abstractmethod
    def steps(self, part: NumericPart) -> Sequence[Step]:
        """Return what is asked of each stratum of a numeric column, or of a part of it."""

    @abstractmethod
    def fit(self, task: ColumnTask, curator: Curator) -> Draw:
        """Ask the steps of a numeric column of one stratum and return what draws it."""

    def reads_pilot(self, part: NumericPart) -> bool:
        """Whether what is asked depends on records that are drawn on the way."""
        return False

    @property
    @abstractmethod
    def numbers_from(self) -> str:
        """What the statement says numeric columns are drawn from."""

    def columns(self, schema: Schema) -> ColumnPlan:
        """Return what is done to tables of a schema.

        Raises
        ------
        InputError
            If a setting names a column that isn't there, or doesn't fit.
        """
        if schema.public_columns and (self.neighbours == "add-remove" or self.n_records is not None):
            raise InputError(
                "public columns show the number of records, so neighbours = add-remove and n_records don't go with them"
            )
        predictors = named(self.predictors, "predictors")
        caps, budget = named(self.caps, "caps"), named(self.budget, "budget")
        return column_plan(
            schema,
            epsilon=exact(self.epsilon, "epsilon"),
            neighbours=self.neighbours,
            order=self.order,
            predictors={
                name: [each.strip() for each in text.split("+") if each.strip()] for name, text in predictors.items()
            },
            caps={name: float(exact(value, f"caps of {name!r}")) for name, value in caps.items()},
            budget={name: positive(value, f"budget of {name!r}") for name, value in budget.items()},
            by=self.by,
            panel=panel_of(schema, self.panel, self.panel_columns, self.births_share),
        )

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: for each column counts of its levels, or the answers that its numbers are drawn from."""
        columns = self.columns(schema)
        columns.check()
        steps: list[Step] = []
        for name in columns.order:
            histogram = columns.histogram(name)
            steps += [histogram] if histogram else []
            for part in columns.parts(name) if name in columns.numeric else ():
                steps += self.steps(part)
        return Plan(
            mechanism=self.name,
            schema=schema,
            neighbours=self.neighbours,
            steps=tuple(steps),
            n_sets=self.n_sets,
            law=law_sentence(schema, self.numbers_from) + (PANEL if self.panel else ""),
            design=columns,
        )

    def check(self, plan: Plan, table: Table) -> None:
        """Refuse tables outside of the universe of the guarantee, before anything is spent.

        Raises
        ------
        InputError
            If gradients might not fit into 64 bits, or a table doesn't keep to its public years.
        """
        panel = plan.design.panel
        if table.n_records > MOST_RECORDS:
            raise InputError(f"quantile regressions are made for tables of at most {MOST_RECORDS:,} records")
        if panel:
            panel.check(values_of(table, (panel.first, panel.last, *panel.years)))

    def synthesize(self, plan: Plan, curator: Curator, rng: np.random.Generator) -> Drawn:
        """Ask about one column after the other, and draw all sets from the answers."""
        n_records, public = self.n_records or curator.n_records, plan.schema.public_columns
        known = values_of(curator.public, public) if public else {}
        with curator.timed("fitting the columns"):
            keep = min(1.0, COARSE / n_records)
            draws = TableQuestions(self, plan.design, curator, dict(known), keep, rng).draws()
        beside = pd.DataFrame({name: curator.public.spelt(name) for name in public})
        sets = []
        for number in range(1, self.n_sets + 1):
            with curator.timed(f"drawing synthetic set {number} of {self.n_sets}"):
                values = dict(known)
                for name, draw in draws.items():
                    values[name] = draw.draw(values, n_records, rng)
                sets.append(to_frame(plan.schema, values, beside, rng))
        return Drawn(sets=sets)

    def shown(self) -> dict[str, Any]:
        """Return the settings by column, and lists of them, as plain values."""
        plain = {name: _plain(value) for name, value in vars(self).items() if name != "epsilon"}
        return plain | {name: named(getattr(self, name), name) or None for name in ("predictors", "caps", "budget")}


@dataclass(frozen=True)
class TableQuestions:
    """The private questions about one table: column by column, each given records drawn from the answers before.

    Parameters
    ----------
    mechanism : ColumnSynthesis
        Asks about numeric columns.
    plan : ColumnPlan
        What is done.
    curator : Curator
        Holds the table.
    pilot : dict of str to ndarray
        Public columns of the records to be drawn on the way; the others are added.
    keep : float
        How likely a coarse step is to read a record.
    rng : numpy.random.Generator
        For the records on the way.
    """

    mechanism: ColumnSynthesis
    plan: ColumnPlan
    curator: Curator
    pilot: dict[str, FloatArray]
    keep: float
    rng: np.random.Generator

    @cached_property
    def values(self) -> Callable[[Table], Values]:
        """Reads all columns of the confidential table."""
        return once(lambda table: values_of(table, list(self.plan.schema.columns)))

    @cached_property
    def strata(self) -> Callable[[Table], IntArray]:
        """Reads the stratum of each record of the confidential table."""
        return once(lambda table: self.plan.strata.of(self.values(table), table.n_records))

    def draws(self) -> dict[str, Draw]:
        """Ask everything and return what draws each column."""
        draws: dict[str, Draw] = {}
        n_pilot = len(next(iter(self.pilot.values()))) if self.pilot else PILOT
        for name in self.plan.order:
            draws[name] = self.numbers(name) if name in self.plan.numeric else self.levels(name)
            self.pilot[name] = draws[name].draw(self.pilot, n_pilot, self.rng)
        return draws

    def steers(self, name: str) -> bool:
        """Whether later questions depend on records on the way, and so on the answers about this column."""
        later = self.plan.order[self.plan.order.index(name) + 1 :]
        parts = (part for each in later if each in self.plan.numeric for part in self.plan.parts(each))
        return any(map(self.plan.cuts, later)) or any(map(self.mechanism.reads_pilot, parts))

    def levels(self, name: str) -> LevelDraw:
        """Ask for counts of a column's levels by group; of a numeric one, whether it is missing."""
        groups, column = self.plan.groups(name, self.pilot), self.plan.schema.columns[name]
        n_levels = column.n_levels if column.is_categorical else 2

        def counts(table: Table) -> IntArray:
            values = self.values(table)
            codes = values[name] if column.is_categorical else np.isnan(values[name])
            place = groups.of(values, len(codes)) * n_levels + codes.astype(np.int64)
            return np.bincount(place, minlength=groups.n * n_levels)

        step = self.plan.histogram(name)
        assert step is not None  # who calls has looked
        noisy = asked(self.curator, step, counts, steers=self.steers(name)).reshape(groups.n, n_levels)
        weights = np.maximum(noisy, 0).astype(np.float64)
        weights[weights.sum(axis=1) == 0] = np.maximum(noisy.sum(axis=0), 0)
        weights[weights.sum(axis=1) == 0] = 1.0
        return LevelDraw(groups, weights)

    def numbers(self, name: str) -> Draw:
        """Ask about each part and stratum of a numeric column, after counting whether it is missing."""
        missing = self.levels(name) if self.plan.histogram(name) else None
        drawn = {part.part: self.part(name, part) for part in self.plan.parts(name)}
        if missing:
            return MissingDraw(missing, drawn[None])
        panel = self.plan.panel
        if panel is None or name not in panel.years:
            return drawn[None]
        return PanelDraw(panel, name, {part: draw for part, draw in drawn.items() if part is not None})

    def part(self, name: str, part: NumericPart) -> Draw:
        """Ask about each stratum of a part of a numeric column."""
        n_pilot = len(next(iter(self.pilot.values()), ()))
        strata, here = self.plan.strata.of(self.pilot, n_pilot), self._rows(name, part, self.pilot, n_pilot)
        each = []
        for stratum in range(self.plan.strata.n):
            rows = here & (strata == stratum)
            public = part.part is not None and not self.plan.confidential
            task = ColumnTask(
                part=part,
                schema=self.plan.schema,
                name=name,
                regression=self.regression(name, part, stratum),
                pilot={other: self.pilot[other][rows] for other in part.box.names},
                n_public=int(rows.sum()) if public else None,
                steers=self.steers(name),
                keep=self.keep,
                rng=self.rng,
            )
            each.append(self.mechanism.fit(task, self.curator))
        return ByStratum(self.plan.strata, tuple(each)) if self.plan.by else each[0]

    def regression(self, name: str, part: NumericPart, stratum: int) -> LineRegression:
        """Return the regression of a column's part in a stratum, with predictors clamped to their box."""
        scale, box = Scale(self.plan.schema.columns[name]), part.box

        def read(table: Table) -> RegressionRecords:
            values, n = self.values(table), table.n_records
            rows = ~np.isnan(values[name]) & self._rows(name, part, values, n) & (self.strata(table) == stratum)
            given = {other: values[other][rows] for other in box.names}
            predictors = box.matrix(given) if box.names else np.zeros((int(rows.sum()), 0))
            return RegressionRecords.of(scale.there(values[name][rows]), predictors)

        lower, upper = scale.bounds
        return LineRegression(read=once(read), n_predictors=box.n_predictors, lower=lower, upper=upper)

    def _rows(self, name: str, part: NumericPart, values: Values, n: int) -> BoolArray:
        """Say which of n records are in a part."""
        if self.plan.panel is None or part.part is None:
            return np.ones(n, dtype=bool)
        return self.plan.panel.parts(name, values)[part.part]


def asked(curator: Curator, step: Step, counts: Callable[[Table], IntArray], *, steers: bool) -> IntArray:
    """Ask for noisy counts; where they steer later questions, by way of a decision, so that audits can follow."""
    noisy = curator.count(step, counts)
    return curator.decide(noisy, lambda numbers: numbers) if steers else noisy


def law_sentence(schema: Schema | None, numbers: str) -> str:
    """Return what a statement says of columns drawn one after the other.

    Parameters
    ----------
    schema : Schema, optional
        Says which kinds of columns there are; without one both are described.
    numbers : str
        What numeric columns are drawn from.
    """
    drawn = [] if schema is None else [column for column in schema.columns.values() if not column.public]
    parts = []
    if schema is None or any(column.is_categorical or column.missing for column in drawn):
        parts.append("levels, and whether a number is missing, from counts with exact discrete Laplace noise")
    if schema is None or any(not column.is_categorical for column in drawn):
        parts.append(f"numbers from {numbers}")
    return f"Column by column: {'; '.join(parts)}. All synthetic records are drawn from these released numbers."


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [str(each) for each in value] or None
    return str(value) if isinstance(value, Fraction) else value


def named(given: Mapping[str, object] | Sequence[str] | None, setting: str) -> dict[str, str]:
    """Return a setting by column, given as a mapping or as texts ``column=value``.

    Raises
    ------
    InputError
        If a text has no equals sign, or a column comes twice.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {str(name): _spelt(value) for name, value in given.items()}
    found: dict[str, str] = {}
    for word in [given] if isinstance(given, str) else given:
        name, equals, value = str(word).partition("=")
        if not equals or name.strip() in found:
            raise InputError(f"{setting} is a list of column=value, each column once; got {word!r}")
        found[name.strip()] = value.strip()
    return found


def _spelt(value: object) -> str:
    return str(value) if isinstance(value, str) or not isinstance(value, Sequence) else "+".join(map(str, value))
