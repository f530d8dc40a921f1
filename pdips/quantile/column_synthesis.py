"""Tables synthesized column by column, each given those before: shared settings, private choices, releases, audits."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Protocol

import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.encoding import Box, Values, to_frame, values_of
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.histogram.urns import check_n_records
from pdips.margins.synthesis import public_order, public_records
from pdips.mechanism import MOST_SETS, Drawn, Split, Variant, check_settings, run, statement
from pdips.privacy.curator import Clock, Progress
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, Spend, as_float, exact, positive
from pdips.privacy.noise import RandomBits
from pdips.privacy.replay import ExactLaw as Law
from pdips.quantile.choosing import Chooser, Exact, Recording, many, outcomes
from pdips.quantile.column_plan import MISSING_SHARE, ColumnPlan, ColumnTask, column_plan, histogram_scale
from pdips.quantile.conditional import ByStratum, Draw, LevelDraw, MissingDraw
from pdips.quantile.line_search import MOST_RECORDS
from pdips.quantile.panel import PARTS, NoRecords, Panel, PanelDraw, Part, check_panel, panel_of
from pdips.release.release import Release, RunRecord

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


class FitNumbers(Protocol):
    """Spends a task's epsilon and returns what draws the column."""

    def __call__(self, task: ColumnTask, chooser: Chooser) -> Draw: ...


@dataclass(frozen=True, kw_only=True)
class TableFit:
    """The private choices for one table: all columns in order, each given records drawn from those before.

    Parameters
    ----------
    plan : ColumnPlan
        What is done.
    values : mapping of str to ndarray
        The confidential table.
    pilot : dict of str to ndarray
        Public columns of the records to be drawn on the way; the others are added.
    fit_numbers : callable
        For numeric columns.
    chooser : Chooser
        Makes all private choices.
    """

    plan: ColumnPlan
    values: Values
    pilot: dict[str, FloatArray]
    fit_numbers: FitNumbers
    chooser: Chooser

    def draws(self, rng: np.random.Generator) -> dict[str, Draw]:
        """Spend epsilon and return what draws each column; ``rng`` is for the records on the way."""
        draws: dict[str, Draw] = {}
        n_pilot = len(next(iter(self.pilot.values()))) if self.pilot else PILOT
        for name in self.plan.order:
            column, epsilon = self.plan.schema.columns[name], self.plan.epsilon * self.plan.shares[name]
            if column.is_categorical:
                codes = self.values[name].astype(np.int64)
                draws[name] = self.levels(name, codes, column.n_levels, epsilon)
            elif self.plan.panel and name in self.plan.panel.years:
                draws[name] = self.year(self.plan.panel, name, epsilon)
            else:
                draws[name] = self.numbers(name, epsilon)
            self.pilot[name] = draws[name].draw(self.pilot, n_pilot, rng)
        return draws

    def levels(self, name: str, codes: IntArray, n_levels: int, epsilon: Fraction) -> LevelDraw:
        """Count levels of a column by group, with noise."""
        groups, cap = self.plan.groups(name, self.pilot), self.plan.schema.records.max_per_person
        place = groups.of(self.values, len(codes)) * n_levels + codes
        counts = np.bincount(place, minlength=groups.n * n_levels)
        scale = histogram_scale(self.plan.neighbours, cap, epsilon)
        noisy = self.chooser.count(counts, scale).reshape(groups.n, n_levels)
        weights = np.maximum(noisy, 0).astype(np.float64)
        weights[weights.sum(axis=1) == 0] = np.maximum(noisy.sum(axis=0), 0)
        weights[weights.sum(axis=1) == 0] = 1.0
        return LevelDraw(groups, weights)

    def numbers(self, name: str, epsilon: Fraction) -> Draw:
        """Fit each stratum of a numeric column, after counting whether it is missing."""
        known, missing = ~np.isnan(self.values[name]), None
        if self.plan.schema.columns[name].missing:
            missing = self.levels(name, (~known).astype(np.int64), 2, epsilon * MISSING_SHARE)
            epsilon *= 1 - MISSING_SHARE
        box = self._box(name, self.plan.schema, self.plan.given[name])
        each = [self._task(name, box, known & rows, others, epsilon) for rows, others in self._strata(len(known))]
        found = self._by_stratum(each)
        return MissingDraw(missing, found) if missing else found

    def year(self, panel: Panel, name: str, epsilon: Fraction) -> Draw:
        """Fit births and continuers of a year apart: public columns say who is which."""
        here, there, draws = panel.parts(name, self.values), panel.parts(name, self.pilot), dict[Part, Draw]()
        public = all(self.plan.schema.columns[each].public for each in self.plan.by)
        for part, other in zip(PARTS, reversed(PARTS), strict=True):
            box = self._box(name, panel.known_schema, panel.of_part(part, name, self.plan.given[name]))
            each: list[Draw] = []
            for rows, pilot_rows in self._strata(len(here[part])):
                among, mine = rows if public else np.ones_like(rows), here[part] & rows
                if not (here[part] & among).any():
                    each.append(NoRecords())
                    continue
                spent = epsilon * panel.share(part, alone=not (here[other] & among).any())
                known = {"unchanged": panel.unchanged(name, box), "n_public": int(mine.sum()) if public else None}
                each.append(self._task(name, box, mine, there[part] & pilot_rows, spent, **known))
            draws[part] = self._by_stratum(each)
        return PanelDraw(panel, name, draws)

    def _by_stratum(self, each: list[Draw]) -> Draw:
        return ByStratum(self.plan.strata, tuple(each)) if self.plan.by else each[0]

    def _box(self, name: str, schema: Schema, given: Sequence[str]) -> Box:
        return Box(schema, tuple(other for other in given if other not in self.plan.by), self.plan.caps)

    def _strata(self, n: int) -> list[tuple[BoolArray, BoolArray]]:
        """Return for each stratum which of the table's n records are in it, and which of those on the way."""
        strata, n_pilot = self.plan.strata, len(next(iter(self.pilot.values()), ()))
        place, pilot_place = strata.of(self.values, n), strata.of(self.pilot, n_pilot)
        return [(place == k, pilot_place == k) for k in range(strata.n)]

    def _task(
        self, name: str, box: Box, rows: BoolArray, pilot_rows: BoolArray, epsilon: Fraction, **panel: Any
    ) -> Draw:
        """Spend a stratum's part of epsilon on some of its records."""
        share, neighbours = self.plan.in_stratum()
        task = ColumnTask(
            column=self.plan.schema.columns[name],
            box=box,
            outcome=self.values[name][rows],
            given={other: self.values[other][rows] for other in box.names},
            pilot={other: self.pilot[other][pilot_rows] for other in box.names},
            epsilon=epsilon * share,
            neighbours=neighbours,
            cap=self.plan.schema.records.max_per_person,
            **panel,
        )
        return self.fit_numbers(task, self.chooser)


def fitting(columns: ColumnPlan, table: Table, fit_numbers: FitNumbers) -> Callable[..., dict[str, Draw]]:
    """Return a function that makes all private choices for a table, ``chooser`` and ``rng`` given, any number of times;
    it gives what draws the columns."""
    public = public_values(table)
    values = values_of(table, list(columns.schema.columns))

    def fit(chooser: Chooser, rng: np.random.Generator | None = None) -> dict[str, Draw]:
        """Without ``rng`` records on the way are always the same, which is as private and easier to audit."""
        made = TableFit(plan=columns, values=values, pilot=dict(public), fit_numbers=fit_numbers, chooser=chooser)
        return made.draws(rng or np.random.default_rng(0))

    return fit


def public_values(table: Table) -> dict[str, FloatArray]:
    """Return the public columns as numbers, in an order that depends on nothing else."""
    public = list(table.schema.public_columns)
    order = public_order(table, public) if public else None
    return {name: values[order] for name, values in values_of(table, public).items()}


@dataclass(frozen=True, kw_only=True)
class ColumnSynthesis(ABC):
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

    name: ClassVar[str]
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one", "add-remove")
    variants: ClassVar[tuple[Variant, ...]] = ("sound",)
    splits: ClassVar[tuple[Split, ...]] = ("once",)
    most_sets: ClassVar[int] = MOST_SETS

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"
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
        check_settings(self, variant=self.variants[0])
        check_n_records(self.n_records, self.neighbours)
        for setting in ("predictors", "caps", "budget"):
            named(getattr(self, setting), setting)
        check_panel(self.panel, self.panel_columns, self.births_share)
        n = self.n_candidates
        if isinstance(n, bool) or not isinstance(n, int) or not 2 <= n <= 10_000:
            raise InputError(f"n_candidates must be a whole number from 2 to 10,000, got {n}")

    @abstractmethod
    def fit_numbers(self, task: ColumnTask, chooser: Chooser) -> Draw:
        """Spend a task's epsilon on a numeric column and return what draws it."""

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

    @property
    @abstractmethod
    def numbers_from(self) -> str:
        """What the statement says numeric columns are drawn from."""

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price of the release, in total."""
        law = law_sentence(schema, self.numbers_from) + (PANEL if self.panel else "")
        return PrivacyLoss(
            epsilon=exact(self.epsilon, "epsilon"),
            neighbours=self.neighbours,
            kind="pure",
            statement=statement(self, schema, law),
        )

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price: one a column."""
        return self.columns(schema).spends()

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> IntArray:
        """Return the choices and noisy counts of independent releases, shape (runs, numbers), for audits."""
        columns = self.columns(table.schema)
        fit = fitting(columns, table, self.fit_numbers)
        if len(columns.order) == 1:
            return many(fit, n_runs, bits)
        runs = []
        for _ in range(n_runs):
            recording = Recording(Exact(bits))
            fit(recording)
            runs.append(recording.seen)
        longest = max(map(len, runs))  # groups of levels are cut where released numbers say
        return np.array([seen + [0] * (longest - len(seen)) for seen in runs], dtype=np.int64)

    def law(self, table: Table) -> Law:
        """Return the exact law of choices and noisy counts, for audits of tables with one column to synthesize."""
        columns = self.columns(table.schema)
        if len(columns.order) > 1:
            raise InputError("the exact law is spelt out for tables with one column that isn't public")
        return Law(outcomes=list(outcomes(fitting(columns, table, self.fit_numbers))))

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        plain = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        plain |= {name: named(getattr(self, name), name) or None for name in ("predictors", "caps", "budget")}
        return plain | {"epsilon": as_float(exact(self.epsilon, "epsilon"))}

    def release(
        self,
        table: Table,
        *,
        rng: np.random.Generator | None = None,
        ledger: Ledger | None = None,
        progress: Progress | None = None,
    ) -> tuple[Release, RunRecord]:
        """Spend the budget and draw a release.

        Parameters
        ----------
        table : Table
            The confidential table.
        rng : numpy.random.Generator, optional
            For tests and studies; a release made with one is marked reproducible.
        ledger : Ledger, optional
            Charged before any random bit is drawn.
        progress : callable, optional
            Told the name of each step.

        Returns
        -------
        Release, RunRecord
            What may be published, and what stays inside.

        Raises
        ------
        InputError
            If a setting doesn't fit the schema, or the ledger belongs to another table.
        RefusedError
            If the ledger's total would be overspent.
        """
        columns = self.columns(table.schema)
        self.check_table(columns, table)

        def draw(bits: RandomBits, clock: Clock) -> Drawn:
            n_records = self.n_records or table.n_records
            return synthesize(columns, table, self.fit_numbers, self.n_sets, n_records, bits, clock)

        return run(self, table, draw, settings=self.settings(), rng=rng, ledger=ledger, progress=progress)

    def check_table(self, columns: ColumnPlan, table: Table) -> None:
        """Refuse tables outside of the universe of the guarantee, before anything is spent.

        Raises
        ------
        InputError
            If gradients might not fit into 64 bits, or a table doesn't keep to its public years.
        """
        if table.n_records > MOST_RECORDS:
            raise InputError(f"quantile regressions are made for tables of at most {MOST_RECORDS:,} records")
        if columns.panel:
            columns.panel.check(values_of(table, (columns.panel.first, columns.panel.last, *columns.panel.years)))


def synthesize(
    columns: ColumnPlan,
    table: Table,
    fit_numbers: FitNumbers,
    n_sets: int,
    n_records: int,
    bits: RandomBits,
    clock: Clock,
) -> Drawn:
    """Spend the budget once and draw all sets from what that released."""
    schema, rng = columns.schema, bits.generator()
    with clock.step("fitting the columns"):
        draws = fitting(columns, table, fit_numbers)(Exact(bits, min(1.0, COARSE / n_records)), rng)
    public = list(schema.public_columns)
    beside = public_records(table, public) if public else pd.DataFrame()
    known, sets = public_values(table), []
    for number in range(1, n_sets + 1):
        with clock.step(f"drawing synthetic set {number} of {n_sets}"):
            values = dict(known)
            for name in columns.order:
                values[name] = draws[name].draw(values, n_records, rng)
            sets.append(to_frame(schema, values, beside, rng))
    return Drawn(sets=sets)


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
