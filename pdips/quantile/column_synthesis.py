"""Tables synthesized column by column, each given those before: shared settings, the
plan, and the sets.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.data.encoding import to_frame, values_of
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import DataError, InputError
from pdips.histogram.urns import check_n_records, check_public
from pdips.mechanism import Drawn, Mechanism
from pdips.privacy.answers import PublicFacts
from pdips.privacy.curator import Curator, timed
from pdips.privacy.loss import Number, check_whole, exact, positive
from pdips.privacy.plan import Noise, Plan, Step
from pdips.quantile.column_plan import (
    MOST_STRATA,
    ColumnPlan,
    NumericPart,
    Panel,
    check_columns,
    check_panel,
    panel_of,
)
from pdips.quantile.conditional import Draw
from pdips.quantile.line_search import MOST_RECORDS
from pdips.quantile.table_questions import ColumnTask, TableQuestions

ByColumn = Mapping[str, Any] | tuple[str, ...]

PANEL = (
    " Births and continuers of a year are synthesized apart, each from its own "
    "records. Which is which, and in which "
    "years a record has values at all, follows from public columns."
)
"""What the statement of a panel adds."""


@dataclass(frozen=True, kw_only=True)
class FittedColumns:
    """What draws each column, in their order, and the noise of the counts behind it."""

    draws: Mapping[str, Draw]
    noise: tuple[Noise, ...]


@dataclass(frozen=True, kw_only=True)
class ColumnSynthesis(Mechanism):
    """Tables synthesized column by column. A mechanism says what is asked of a numeric
    column (:meth:`steps`), and asks it (:meth:`fit`).

    Parameters
    ----------
    order : tuple of str, optional
        The columns that aren't public, in the order in which they are synthesized; the
        schema's by default.
    predictors : mapping or texts ``column=other+other``, optional
        The columns before that a column depends on; in a panel the year before by
        default, otherwise all, or for levels as many as the number of records and
        epsilon bear.
    caps : mapping or texts ``column=number``, optional
        Public ends of predictors' ranges; larger values of a predictor count as its
        cap.
    budget : mapping or texts ``column=share``, optional
        Shares of epsilon; by default twice as much for a column that depends on others,
        or equal if lines only rank.
    by : tuple of str
        Columns with levels whose combinations are synthesized separately, each from its
        own records.
    panel : tuple of two str, optional
        Public columns with a record's first and last year; columns of the years between
        have values, those before and after have none. The new of a year are synthesized
        by themselves, the others given their value of the year before, or the
        predictors named for the column (see ``docs/panels.md``).
    panel_columns : tuple of str, optional
        What the names of the columns of years start with: ``("emp_",)`` for
        ``emp_1976``, ``emp_1977``.
    births_share : "parallel", int, float, str or Fraction
        Share of a year's budget for the new ("1/4" in Tran et al. (2023)), the others
        having the rest; by default each has all of it, since no record is both.
    n_records : int, optional
        Number of synthetic records, from public knowledge; add-remove needs it.
    n_candidates : int
        Intercepts that a line is chosen from, at most; few make exact laws of tiny
        tables short.

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
        super().__post_init__()
        check_n_records(self.n_records, self.neighbours)
        for setting in ("predictors", "caps", "budget"):
            named(getattr(self, setting), setting)
        check_panel(self.panel, self.panel_columns, self.births_share)
        check_whole(self.n_candidates, "n_candidates", 2, 10_000)

    @abstractmethod
    def steps(self, part: NumericPart) -> Sequence[Step]:
        """Return what is asked of each stratum of a numeric column, or of a part
        of it.
        """

    @abstractmethod
    def fit(self, task: ColumnTask, curator: Curator) -> Draw:
        """Ask the steps of a numeric column of one stratum and return what draws it."""

    @property
    def evenly(self) -> bool:
        """Whether all columns have equal shares where none are asked for."""
        return False

    def usual_order(self, schema: Schema) -> Sequence[str]:
        """Return the order of columns where none is asked for."""
        return tuple(schema.columns)

    def borne(self, part: NumericPart, n_records: float) -> tuple[str, ...]:
        """Return which predictors a part of so many records bears, where they weren't
        asked for by name.
        """
        return part.box.names

    def reads_pilot(self, part: NumericPart) -> bool:
        """Whether what is asked depends on records that are drawn on the way."""
        return False

    @property
    @abstractmethod
    def numbers_from(self) -> str:
        """What the statement says numeric columns are drawn from."""

    def columns(self, schema: Schema) -> ColumnPlan:
        """Return what is done to tables of a schema, or refuse settings that don't fit
        it.
        """
        check_public(schema, self.neighbours, self.n_records)
        predictors = self._predictors()
        caps = dict[str, float]()
        for name, value in named(self.caps, "caps").items():
            caps[name] = float(exact(value, f"caps of {name!r}"))
        budget = dict[str, Fraction]()
        for name, value in named(self.budget, "budget").items():
            budget[name] = positive(value, f"budget of {name!r}")
        panel = panel_of(schema, self.panel, self.panel_columns, self.births_share)
        check_columns(schema, self.order, self.by, caps, (*predictors, *budget))
        years = panel.years if panel else {}
        order = self._order(schema)
        given = _given(schema, order, predictors, panel)
        shares = self._shares(given, years, budget)
        pinned = frozenset((*predictors, *years))
        planned = ColumnPlan(
            schema=schema,
            order=order,
            given=given,
            caps=caps,
            shares=shares,
            by=tuple(self.by),
            epsilon=exact(self.epsilon, "epsilon"),
            neighbours=self.neighbours,
            panel=panel,
            pinned=pinned,
        )
        if planned.strata.n > MOST_STRATA:
            raise InputError(
                f"by makes {planned.strata.n:,} strata; at most "
                f"{MOST_STRATA} are synthesized separately"
            )
        return planned

    def _predictors(self) -> dict[str, list[str]]:
        """Return the predictors that were asked for, by column."""
        asked = dict[str, list[str]]()
        for name, text in named(self.predictors, "predictors").items():
            words = (word.strip() for word in text.split("+"))
            asked[name] = [word for word in words if word]
        return asked

    def _order(self, schema: Schema) -> tuple[str, ...]:
        """Return the columns that are synthesized, those that make strata first."""
        ordered = self.order or self.usual_order(schema)
        free = [name for name in ordered if name not in schema.public_columns]
        strata = [name for name in self.by if name in free]
        return (*strata, *(name for name in free if name not in strata))

    def _shares(
        self,
        given: Mapping[str, Sequence[str]],
        years: Collection[str],
        budget: Mapping[str, Fraction],
    ) -> dict[str, Fraction]:
        """Return the share of epsilon of each column."""
        weights = dict[str, Fraction]()
        for name, before in given.items():
            if budget and name not in budget:
                raise InputError(
                    f"budget needs a share above 0 for {name!r}, as for "
                    f"every column that isn't public"
                )
            # a column that depends on others, or is a year's, has more to be asked
            is_dependent = before or name in years or self.evenly
            usual = Fraction(2 if is_dependent else 1)
            weights[name] = budget.get(name, usual)
        total = sum(weights.values())
        return {name: weight / total for name, weight in weights.items()}

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: for each column counts of its levels, or the answers that
        its numbers are drawn from.
        """
        columns = self.columns(schema)
        columns.check()
        steps: list[Step] = []
        parts = []
        for name in columns.order:
            histogram = columns.histogram(name)
            if histogram is not None:
                steps.append(histogram)
            for part in columns.parts(name):
                steps += self.steps(part)
        if any(columns.histogram(name) for name in columns.order):
            parts.append(
                "levels, and whether a number is missing, from counts with "
                "exact discrete Laplace noise"
            )
        if columns.numeric:
            parts.append(f"numbers from {self.numbers_from}")
        law = (
            f"Column by column: {'; '.join(parts)}. All synthetic records are "
            f"drawn from these released numbers."
        )
        if self.panel:
            law += PANEL
        return self.planned(schema, steps, law, design=columns)

    def check(self, plan: Plan, table: Table) -> None:
        """Refuse tables too large for gradients of 64 bits, or at odds with their
        public years, before anything is spent.
        """
        panel = plan.design.panel
        if table.n_records > MOST_RECORDS:
            raise DataError(
                f"quantile regressions are made for tables of at most "
                f"{MOST_RECORDS:,} records"
            )
        if panel:
            panel.check(values_of(table, (panel.first, panel.last, *panel.years)))

    def ask(self, plan: Plan, curator: Curator) -> FittedColumns:
        """Ask about one column after the other."""
        n_records = self.n_records or curator.n_records
        public = plan.schema.public_columns
        pilot = values_of(curator.public, public) if public else {}
        with curator.timed("fitting the columns"):
            questions = TableQuestions(self, plan.design, curator, pilot, n_records)
            draws = questions.draws()
        return FittedColumns(draws=draws, noise=tuple(questions.noise.values()))

    def draw(
        self,
        plan: Plan,
        measured: FittedColumns,
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        """Draw all sets from the answers, column by column."""
        n_records = self.n_records or public.n_records
        known = dict[str, FloatArray]()
        spelt = dict[str, Any]()
        for name in plan.schema.public_columns:
            known[name] = public.columns.sort_key(name)
            spelt[name] = public.columns.spelt(name)
        beside = pd.DataFrame(spelt)
        sets = []
        for number in range(1, n_sets + 1):
            with timed(f"drawing synthetic set {number} of {n_sets}"):
                values = dict(known)
                for name, draw in measured.draws.items():
                    values[name] = draw(values, n_records, rng)
                sets.append(to_frame(plan.schema, values, beside, rng))
        return Drawn(sets=sets, noise=measured.noise)

    def shown(self) -> dict[str, Any]:
        """Return the settings by column, and lists of them, as plain values."""
        plain: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name in ("predictors", "caps", "budget"):
                plain[name] = named(value, name) or None
            elif isinstance(value, tuple):
                plain[name] = [str(one) for one in value] or None
            elif name != "epsilon":
                plain[name] = str(value) if isinstance(value, Fraction) else value
        return plain


def _given(
    schema: Schema,
    order: Sequence[str],
    predictors: Mapping[str, Sequence[str]],
    panel: Panel | None,
) -> dict[str, tuple[str, ...]]:
    """Return the columns before that each column depends on."""
    given = dict[str, tuple[str, ...]]()
    for position, name in enumerate(order):
        before = (*schema.public_columns, *order[:position])
        wanted = predictors.get(name)
        if panel and name in panel.years:
            wanted = panel.given(name, wanted)
        given[name] = before if wanted is None else tuple(wanted)
        for other in given[name]:
            if other not in before:
                raise InputError(
                    f"predictors: {other!r} doesn't come before {name!r}; change order"
                )
    return given


def named(
    given: Mapping[str, object] | Sequence[str] | None, setting: str
) -> dict[str, str]:
    """Return a setting by column, given as a mapping or as texts ``column=value``, each
    column once.
    """
    texts: dict[str, str] = {}
    if isinstance(given, Mapping):
        for column, value in given.items():
            words = value if isinstance(value, list | tuple) else [value]
            texts[str(column)] = "+".join(map(str, words))
        return texts
    for word in [given] if isinstance(given, str) else given or ():
        name, equals, text = str(word).partition("=")
        if not equals or name.strip() in texts:
            raise InputError(
                f"{setting} is a list of column=value, each column once; got {word!r}"
            )
        texts[name.strip()] = text.strip()
    return texts
