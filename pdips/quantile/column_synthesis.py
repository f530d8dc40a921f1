"""Tables synthesized column by column, each given those before: shared settings, the plan, and what asks the table."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.encoding import Box, Scale, Values, to_frame, values_of
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.errors import DataError, InputError
from pdips.histogram.urns import check_n_records, check_public
from pdips.mechanism import Drawn, Mechanism
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Number, check_whole, exact, positive
from pdips.privacy.plan import Noise, Plan, Step
from pdips.quantile.column_plan import MOST_STRATA, ColumnPlan, NumericPart, check_columns, check_panel, panel_of
from pdips.quantile.conditional import Draw, level_draw
from pdips.quantile.gradient import LineRegression, RegressionRecords, once
from pdips.quantile.line_search import MOST_RECORDS

PILOT = 5_000  # Records drawn on the way from what is released so far: where groups are cut and predictors centred
COARSE = 20_000  # About so many records are read by the coarse rounds of a search for a line
RECORDS_PER_CELL = 4  # Of a histogram of levels by group, in units of the scale of its noise
MARGIN_TIMES = 2  # How often each record is counted in the margin, where it counts once by group

ByColumn = Mapping[str, Any] | tuple[str, ...]

PANEL = (
    " Births and continuers of a year are synthesized apart, each from its own records. Which is which, and in which "
    "years a record has values at all, follows from public columns."
)
"""What the statement of a panel adds."""


@dataclass(frozen=True, kw_only=True)
class ColumnTask:
    """One numeric column of one stratum, or of one part of it.

    ``pilot`` has the predictors of records drawn from what is released; ``n_records`` is their public number, or what
    it would be if strata were equal. ``part`` has the predictors that are used, ``planned`` all that are given;
    ``pinned`` says whether they were asked for. ``ask`` counts: :meth:`TableQuestions.ask`.
    """

    column: Column
    part: NumericPart
    regression: LineRegression
    pilot: Values
    n_records: float
    ask: Callable[..., IntArray]
    planned: NumericPart
    pinned: bool

    @property
    def box(self) -> Box:
        """The predictors."""
        return self.part.box


@dataclass(frozen=True, kw_only=True)
class ColumnSynthesis(Mechanism):
    """Tables synthesized column by column. A mechanism says what is asked of a numeric column (:meth:`steps`), and asks
    it (:meth:`fit`).

    Parameters
    ----------
    order : tuple of str, optional
        The columns that aren't public, in the order in which they are synthesized; the schema's by default.
    predictors : mapping or texts ``column=other+other``, optional
        The columns before that a column depends on; in a panel the year before by default, otherwise all, or for
        levels as many as the number of records and epsilon bear.
    caps : mapping or texts ``column=number``, optional
        Public ends of predictors' ranges; larger values of a predictor count as its cap.
    budget : mapping or texts ``column=share``, optional
        Shares of epsilon; by default twice as much for a column that depends on others, or equal if lines only rank.
    by : tuple of str
        Columns with levels whose combinations are synthesized separately, each from its own records.
    panel : tuple of two str, optional
        Public columns with a record's first and last year; columns of the years between have values, those before
        and after have none. The new of a year are synthesized by themselves, the others given their value
        of the year before, or the predictors named for the column (see ``docs/panels.md``).
    panel_columns : tuple of str, optional
        What the names of the columns of years start with: ``("emp_",)`` for ``emp_1976``, ``emp_1977``.
    births_share : "parallel", int, float, str or Fraction
        Share of a year's budget for the new ("1/4" in Tran et al. (2023)), the others having the rest; by default each
        has all of it, since no record is both.
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
        super().__post_init__()
        check_n_records(self.n_records, self.neighbours)
        for setting in ("predictors", "caps", "budget"):
            named(getattr(self, setting), setting)
        check_panel(self.panel, self.panel_columns, self.births_share)
        check_whole(self.n_candidates, "n_candidates", 2, 10_000)

    @abstractmethod
    def steps(self, part: NumericPart) -> Sequence[Step]:
        """Return what is asked of each stratum of a numeric column, or of a part of it."""

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
        """Return which predictors a part of so many records bears, where they weren't asked for by name."""
        return part.box.names

    def reads_pilot(self, part: NumericPart) -> bool:
        """Whether what is asked depends on records that are drawn on the way."""
        return False

    @property
    @abstractmethod
    def numbers_from(self) -> str:
        """What the statement says numeric columns are drawn from."""

    def columns(self, schema: Schema) -> ColumnPlan:
        """Return what is done to tables of a schema, or refuse settings that don't fit it."""
        check_public(schema, self.neighbours, self.n_records)
        split = {name: text.split("+") for name, text in named(self.predictors, "predictors").items()}
        predictors = {name: [each.strip() for each in texts if each.strip()] for name, texts in split.items()}
        caps = {name: float(exact(value, f"caps of {name!r}")) for name, value in named(self.caps, "caps").items()}
        budget = {name: positive(value, f"budget of {name!r}") for name, value in named(self.budget, "budget").items()}
        panel = panel_of(schema, self.panel, self.panel_columns, self.births_share)
        check_columns(schema, self.order, self.by, caps, (*predictors, *budget))
        public, years = schema.public_columns, panel.years if panel else {}
        free = [name for name in (self.order or self.usual_order(schema)) if name not in public]
        strata = [name for name in self.by if name in free]
        ordered = (*strata, *(name for name in free if name not in strata))
        given: dict[str, tuple[str, ...]] = {}
        for place, name in enumerate(ordered):
            before = (*public, *ordered[:place])
            wanted: Sequence[str] | None = predictors.get(name)
            if panel and name in years:
                wanted = panel.given(name, wanted)
            given[name] = before if wanted is None else tuple(wanted)
            for other in given[name]:
                if other not in before:
                    raise InputError(f"predictors: {other!r} doesn't come before {name!r}; change order")
            if budget and name not in budget:
                raise InputError(f"budget needs a share above 0 for {name!r}, as for every column that isn't public")
        # usually twice as much for a column that depends on others or is a year's
        usual = {name: 2 if given[name] or name in years or self.evenly else 1 for name in ordered}
        weights = {name: budget.get(name, Fraction(usual[name])) for name in ordered}
        found = ColumnPlan(
            schema=schema,
            order=ordered,
            given=given,
            caps=caps,
            shares={name: weight / sum(weights.values()) for name, weight in weights.items()},
            by=tuple(self.by),
            epsilon=exact(self.epsilon, "epsilon"),
            neighbours=self.neighbours,
            panel=panel,
            pinned=frozenset((*predictors, *years)),
        )
        if found.strata.n > MOST_STRATA:
            raise InputError(f"by makes {found.strata.n:,} strata; at most {MOST_STRATA} are synthesized separately")
        return found

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: for each column counts of its levels, or the answers that its numbers are drawn from."""
        columns = self.columns(schema)
        columns.check()
        steps: list[Step] = []
        for name in columns.order:
            histogram = columns.histogram(name)
            steps += [histogram] if histogram else []
            for part in columns.parts(name):
                steps += self.steps(part)
        parts = []
        if any(columns.histogram(name) for name in columns.order):
            parts.append("levels, and whether a number is missing, from counts with exact discrete Laplace noise")
        if columns.numeric:
            parts.append(f"numbers from {self.numbers_from}")
        law = f"Column by column: {'; '.join(parts)}. All synthetic records are drawn from these released numbers."
        return self.planned(schema, steps, law + (PANEL if self.panel else ""), design=columns)

    def check(self, plan: Plan, table: Table) -> None:
        """Refuse tables too large for gradients of 64 bits, or at odds with their public years, before anything is
        spent.
        """
        panel = plan.design.panel
        if table.n_records > MOST_RECORDS:
            raise DataError(f"quantile regressions are made for tables of at most {MOST_RECORDS:,} records")
        if panel:
            panel.check(values_of(table, (panel.first, panel.last, *panel.years)))

    def synthesize(self, plan: Plan, curator: Curator, rng: np.random.Generator) -> Drawn:
        """Ask about one column after the other, and draw all sets from the answers."""
        n_records, public = self.n_records or curator.n_records, plan.schema.public_columns
        known = values_of(curator.public, public) if public else {}
        with curator.timed("fitting the columns"):
            questions = TableQuestions(self, plan.design, curator, dict(known), n_records, rng)
            draws = questions.draws()
        beside = pd.DataFrame({name: curator.public.spelt(name) for name in public})
        sets = []
        for number in range(1, self.n_sets + 1):
            with curator.timed(f"drawing synthetic set {number} of {self.n_sets}"):
                values = dict(known)
                for name, draw in draws.items():
                    values[name] = draw(values, n_records, rng)
                sets.append(to_frame(plan.schema, values, beside, rng))
        return Drawn(sets=sets, noise=tuple(questions.noise.values()))

    def shown(self) -> dict[str, Any]:
        """Return the settings by column, and lists of them, as plain values."""
        plain: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name in ("predictors", "caps", "budget"):
                plain[name] = named(value, name) or None
            elif name != "epsilon":
                listed = [str(each) for each in value] or None if isinstance(value, tuple) else value
                plain[name] = str(value) if isinstance(value, Fraction) else listed
        return plain


@dataclass(frozen=True)
class TableQuestions:
    """The private questions about one table: column by column, each given records drawn from the answers before.

    ``pilot`` has the public columns of these records, the others are added; ``n_records`` is public.
    """

    mechanism: ColumnSynthesis
    plan: ColumnPlan
    curator: Curator
    pilot: dict[str, FloatArray]
    n_records: int
    rng: np.random.Generator
    noise: dict[str, Noise] = field(default_factory=dict)

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
            self.pilot[name] = draws[name](self.pilot, n_pilot, self.rng)
        return draws

    def steers(self, name: str) -> bool:
        """Whether later questions depend on records on the way, and so on the answers about this column."""
        later = self.plan.order[self.plan.order.index(name) + 1 :]
        parts = (part for each in later for part in self.plan.parts(each))
        return any(map(self.plan.cuts, later)) or any(map(self.mechanism.reads_pilot, parts))

    def ask(
        self,
        name: str,
        step: Step,
        counts: Callable[[Table], IntArray],
        units: int | Fraction = 1,
        possible: BoolArray | None = None,
    ) -> IntArray:
        """Ask for noisy counts; where they steer later questions, by way of a decision, so that audits can follow."""
        noisy = self.curator.count(step, counts, possible, units=units)
        self.noise[step.name] = step.enlarged(units).noise
        return self.curator.decide(noisy, lambda numbers: numbers) if self.steers(name) else noisy

    def levels(self, name: str) -> Draw:
        """Ask for counts of a column's levels by group; of a numeric one, whether it is missing."""
        column, step = self.plan.schema.columns[name], self.plan.histogram(name)
        assert step is not None  # who calls has looked
        n_levels = column.n_levels if column.is_categorical else 2
        each = RECORDS_PER_CELL * n_levels * (1 + MARGIN_TIMES) * step.scale * self.plan.strata.n
        groups = self.plan.groups(name, self.pilot, float(self.n_records / each))

        def counts(table: Table) -> IntArray:
            values = self.values(table)
            codes = values[name] if column.is_categorical else np.isnan(values[name])
            place = groups.of(values, len(codes)) * n_levels + codes.astype(np.int64)
            joint = np.bincount(place, minlength=groups.n * n_levels)
            margin = MARGIN_TIMES * joint.reshape(-1, n_levels).sum(axis=0)
            return np.concatenate([joint, margin]) if groups.n > 1 else joint

        units = 1 + MARGIN_TIMES * (groups.n > 1)
        noisy = self.ask(name, step, counts, units)
        joint = noisy[: groups.n * n_levels].reshape(groups.n, n_levels)
        if groups.n == 1:
            return level_draw(groups, np.maximum(joint, 0) if (joint > 0).any() else np.ones(joint.shape))
        n_pilot = len(next(iter(self.pilot.values())))
        sizes = np.bincount(groups.of(self.pilot, n_pilot), minlength=groups.n)
        return level_draw(groups, shrunk(joint, noisy[-n_levels:], sizes, float(units * step.scale)))

    def numbers(self, name: str) -> Draw:
        """Ask about each part and stratum of a numeric column, after counting whether it is missing."""
        missing = self.levels(name) if self.plan.histogram(name) else None
        fits = [(part, list(self.fits(name, part))) for part in self.plan.parts(name)]

        def known(given: Values, n: int, rng: np.random.Generator) -> FloatArray:
            if fits[0][0].part is None and not self.plan.by:
                return fits[0][1][0](given, n, rng)
            drawn, strata = np.full(n, np.nan), self.plan.strata.of(given, n)
            for part, each in fits:
                here = self.plan.rows(name, part, given, n)
                for stratum in np.unique(strata[here]):
                    rows = here & (strata == stratum)
                    some = {other: values[rows] for other, values in given.items()}
                    drawn[rows] = each[stratum](some, int(rows.sum()), rng)
            return drawn

        def draw(given: Values, n: int, rng: np.random.Generator) -> FloatArray:
            if missing is None:
                return known(given, n, rng)
            return np.where(missing(given, n, rng) == 1, np.nan, known(given, n, rng))

        return draw

    def fits(self, name: str, part: NumericPart) -> Iterator[Draw]:
        """Ask about each stratum of a part of a numeric column."""
        n_pilot = len(next(iter(self.pilot.values()), ()))
        strata, here = self.plan.strata.of(self.pilot, n_pilot), self.plan.rows(name, part, self.pilot, n_pilot)
        for stratum in range(self.plan.strata.n):
            rows = here & (strata == stratum)
            public = part.part is not None and not self.plan.confidential
            used = part
            if name not in self.plan.pinned:
                names = self.mechanism.borne(part, self.n_records / self.plan.strata.n)
                used = replace(part, box=replace(part.box, names=names))
            task = ColumnTask(
                column=self.plan.schema.columns[name],
                part=used,
                regression=self.regression(name, used, stratum),
                pilot={other: self.pilot[other][rows] for other in used.box.names},
                n_records=int(rows.sum()) if public else self.n_records / self.plan.strata.n,
                ask=partial(self.ask, name),
                planned=part,
                pinned=name in self.plan.pinned,
            )
            yield self.mechanism.fit(task, self.curator)

    def regression(self, name: str, part: NumericPart, stratum: int) -> LineRegression:
        """Return the regression of a column's part in a stratum, with predictors clamped to their box."""
        scale, box = Scale(self.plan.schema.columns[name]), part.box

        def read(table: Table) -> RegressionRecords:
            values, n = self.values(table), table.n_records
            rows: BoolArray = ~np.isnan(values[name]) & self.plan.rows(name, part, values, n)
            rows &= self.strata(table) == stratum
            given = {other: values[other][rows] for other in box.names}
            predictors = box.matrix(given) if box.names else np.zeros((int(rows.sum()), 0))
            return RegressionRecords.of(scale.there(values[name][rows]), predictors)

        lower, upper = scale.bounds
        keep = min(1.0, COARSE / self.n_records)
        return LineRegression(read=once(read), n_predictors=box.n_predictors, lower=lower, upper=upper, keep=keep)


def shrunk(joint: IntArray, margin: IntArray, sizes: IntArray, scale: float) -> FloatArray:
    """Return weights of levels by group, shape (groups, levels), that agree with the noisy margin.

    The rows are noisy counts, moved towards the margin as far as their noise is large, and then raked.
    """
    weights = np.array([1 / len(joint), MARGIN_TIMES**2])  # of two estimates of a margin
    both = np.stack([joint.sum(axis=0), margin / MARGIN_TIMES])
    target = np.maximum(weights @ both, 0)
    target = target / target.sum() if target.any() else np.full(len(target), 1 / len(target))
    kept = np.maximum(joint, 0).astype(np.float64)
    found = kept + joint.shape[1] * scale * target
    for _ in range(20):
        found /= found.sum(axis=1, keepdims=True)
        found *= target / np.maximum(sizes @ found / max(sizes.sum(), 1), 1e-12)
    return np.asarray(found + 1e-300)


def named(given: Mapping[str, object] | Sequence[str] | None, setting: str) -> dict[str, str]:
    """Return a setting by column, given as a mapping or as texts ``column=value``, each column once."""
    if isinstance(given, Mapping):
        lists = {name: value for name, value in given.items() if isinstance(value, list | tuple)}
        return {str(name): "+".join(map(str, lists[name])) if name in lists else str(given[name]) for name in given}
    found: dict[str, str] = {}
    for word in [given] if isinstance(given, str) else given or ():
        name, equals, value = str(word).partition("=")
        if not equals or name.strip() in found:
            raise InputError(f"{setting} is a list of column=value, each column once; got {word!r}")
        found[name.strip()] = value.strip()
    return found
