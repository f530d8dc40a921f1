"""The private questions about a table that is synthesized column by column."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Protocol

import numpy as np

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.encoding import Box, Scale, Values, values_of
from pdips.data.schema import Column
from pdips.data.table import Table
from pdips.privacy.curator import Curator
from pdips.privacy.plan import Noise, Step
from pdips.quantile.column_plan import ColumnPlan, NumericPart
from pdips.quantile.conditional import Draw, RecordGroups, level_draw
from pdips.quantile.gradient import LineRegression, RegressionRecords, once

# Records drawn on the way from what is released so far: where groups are cut and
# predictors centred
PILOT = 5_000
# About so many records are read by the coarse rounds of a search for a line
COARSE = 20_000
# Of a histogram of levels by group, in units of the scale of its noise
RECORDS_PER_CELL = 4
# How often each record is counted in the margin, where it counts once by group
MARGIN_TIMES = 2
# Rounds of proportional fitting, and the least that a level is divided by in them
RAKED = 20
LEAST_SHARE = 1e-12
# A weight of levels, so that each can be drawn
LEAST_WEIGHT = 1e-300


@dataclass(frozen=True, kw_only=True)
class ColumnTask:
    """One numeric column of one stratum, or of one part of it.

    ``pilot`` has the predictors of records drawn from what is released; ``n_records``
    is their public number, or what it would be if strata were equal. ``part`` has the
    predictors that are used, ``planned`` all that are given; ``pinned`` says whether
    they were asked for. ``ask`` counts: :meth:`TableQuestions.ask`.
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


class FitsColumns(Protocol):
    """What is asked of a mechanism about its numeric columns: see
    :class:`pdips.quantile.column_synthesis.ColumnSynthesis`.
    """

    def fit(self, task: ColumnTask, curator: Curator) -> Draw: ...
    def borne(self, part: NumericPart, n_records: float) -> tuple[str, ...]: ...
    def reads_pilot(self, part: NumericPart) -> bool: ...


@dataclass(frozen=True)
class TableQuestions:
    """The private questions about one table: column by column, each given records drawn
    from the answers before.

    ``pilot`` has the public columns of these records, the others are added;
    ``n_records`` is public.
    """

    mechanism: FitsColumns
    plan: ColumnPlan
    curator: Curator
    pilot: dict[str, FloatArray]
    n_records: int
    noise: dict[str, Noise] = field(default_factory=dict)

    @cached_property
    def values(self) -> Callable[[Table], Values]:
        """Reads all columns of the confidential table."""
        return once(lambda table: values_of(table, list(self.plan.schema.columns)))

    @cached_property
    def strata(self) -> Callable[[Table], IntArray]:
        """Reads the stratum of each record of the confidential table."""
        return once(
            lambda table: self.plan.strata.of(self.values(table), table.n_records)
        )

    @property
    def n_pilot(self) -> int:
        """How many records are drawn on the way, none before the first column."""
        return len(next(iter(self.pilot.values()), ()))

    def draws(self) -> dict[str, Draw]:
        """Ask everything and return what draws each column."""
        draws: dict[str, Draw] = {}
        n_pilot = self.n_pilot if self.pilot else PILOT
        numeric = self.plan.numeric
        for name in self.plan.order:
            draw = self.numbers(name) if name in numeric else self.levels(name)
            # Later questions depend on these records: a release that is resumed has
            # to ask the same.
            self.pilot[name] = self.curator.keep(
                partial(draw, self.pilot, n_pilot, self.curator.generator)
            )
            draws[name] = draw
        return draws

    def steers(self, name: str) -> bool:
        """Whether later questions depend on records on the way, and so on the answers
        about this column.
        """
        later = self.plan.order[self.plan.order.index(name) + 1 :]
        if any(self.plan.cuts(other) for other in later):
            return True
        parts = (part for other in later for part in self.plan.parts(other))
        return any(self.mechanism.reads_pilot(part) for part in parts)

    def ask(
        self,
        name: str,
        step: Step,
        counts: Callable[[Table], IntArray],
        units: int | Fraction = 1,
        share: int | Fraction = 1,
        possible: BoolArray | None = None,
    ) -> IntArray:
        """Ask for noisy counts; where they steer later questions, by way of a decision,
        so that audits can follow.
        """
        noisy = self.curator.count(step, counts, possible, units=units, share=share)
        self.noise[step.name] = step.enlarged(units, share).noise
        if not self.steers(name):
            return noisy
        return self.curator.decide(noisy, lambda numbers: numbers)

    def levels(self, name: str) -> Draw:
        """Ask for counts of a column's levels by group; of a numeric one, whether it is
        missing.
        """
        step = self.plan.histogram(name)
        assert step is not None  # who calls has looked
        column = self.plan.schema.columns[name]
        n_levels = column.n_levels if column.is_categorical else 2
        groups = self._groups(name, n_levels, step)
        by_group = groups.n > 1
        n_cells = groups.n * n_levels

        def counts(table: Table) -> IntArray:
            values = self.values(table)
            codes = values[name]
            if not column.is_categorical:
                codes = np.isnan(codes)
            group = groups.of(values, len(codes))
            cell = group * n_levels + codes.astype(np.int64)
            joint = np.bincount(cell, minlength=n_cells)
            if not by_group:
                return joint
            margin = joint.reshape(-1, n_levels).sum(axis=0)
            return np.concatenate([joint, MARGIN_TIMES * margin])

        units = 1 + MARGIN_TIMES if by_group else 1
        noisy = self.ask(name, step, counts, units)
        joint = noisy[:n_cells].reshape(groups.n, n_levels)
        if by_group:
            group = groups.of(self.pilot, self.n_pilot)
            sizes = np.bincount(group, minlength=groups.n)
            scale = float(units * step.scale)
            return level_draw(groups, shrunk(joint, noisy[n_cells:], sizes, scale))
        if not (joint > 0).any():
            return level_draw(groups, np.ones(joint.shape))
        return level_draw(groups, np.maximum(joint, 0))

    def _groups(self, name: str, n_levels: int, step: Step) -> RecordGroups:
        """Return the groups that a column's levels are counted by, as many as the
        records bear.
        """
        by_group = RECORDS_PER_CELL * n_levels * (1 + MARGIN_TIMES) * step.scale
        borne = self.n_records / (by_group * self.plan.strata.n)
        return self.plan.groups(name, self.pilot, float(borne))

    def numbers(self, name: str) -> Draw:
        """Ask about each part and stratum of a numeric column, after counting whether
        it is missing.
        """
        missing = self.levels(name) if self.plan.histogram(name) else None
        fits = [(part, list(self.fits(name, part))) for part in self.plan.parts(name)]
        known = self._of_parts(name, fits)
        if missing is None:
            return known

        def draw(given: Values, n: int, rng: np.random.Generator) -> FloatArray:
            absent = missing(given, n, rng) == 1
            return np.where(absent, np.nan, known(given, n, rng))

        return draw

    def _of_parts(
        self, name: str, fits: Sequence[tuple[NumericPart, Sequence[Draw]]]
    ) -> Draw:
        """Return what draws the numbers of a column from those of its parts and
        strata.
        """
        first_part, first_draws = fits[0]
        if first_part.part is None and not self.plan.by:
            return first_draws[0]

        def draw(given: Values, n: int, rng: np.random.Generator) -> FloatArray:
            drawn = np.full(n, np.nan)
            strata = self.plan.strata.of(given, n)
            for part, draws in fits:
                here = self.plan.rows(name, part, given, n)
                for stratum in np.unique(strata[here]):
                    rows = here & (strata == stratum)
                    some = {other: values[rows] for other, values in given.items()}
                    drawn[rows] = draws[stratum](some, int(rows.sum()), rng)
            return drawn

        return draw

    def fits(self, name: str, part: NumericPart) -> Iterator[Draw]:
        """Ask about each stratum of a part of a numeric column."""
        n_strata = self.plan.strata.n
        pinned = name in self.plan.pinned
        usual_size = self.n_records / n_strata
        used = part
        if not pinned:
            names = self.mechanism.borne(part, usual_size)
            used = replace(part, box=replace(part.box, names=names))
        strata = self.plan.strata.of(self.pilot, self.n_pilot)
        here = self.plan.rows(name, part, self.pilot, self.n_pilot)
        has_public_size = part.part is not None and not self.plan.confidential
        for stratum in range(n_strata):
            rows = here & (strata == stratum)
            size = int(rows.sum()) if has_public_size else usual_size
            pilot = {other: self.pilot[other][rows] for other in used.box.names}
            task = ColumnTask(
                column=self.plan.schema.columns[name],
                part=used,
                regression=self.regression(name, used, stratum),
                pilot=pilot,
                n_records=size,
                ask=partial(self.ask, name),
                planned=part,
                pinned=pinned,
            )
            yield self.mechanism.fit(task, self.curator)

    def regression(self, name: str, part: NumericPart, stratum: int) -> LineRegression:
        """Return the regression of a column's part in a stratum, with predictors
        clamped to their box.
        """
        scale = Scale(self.plan.schema.columns[name])
        box = part.box

        def read(table: Table) -> RegressionRecords:
            values = self.values(table)
            rows: BoolArray = self.plan.rows(name, part, values, table.n_records)
            rows = rows & ~np.isnan(values[name])
            rows &= self.strata(table) == stratum
            outcome = scale.there(values[name][rows])
            if not box.names:
                return RegressionRecords.of(outcome, np.zeros((len(outcome), 0)))
            given = {other: values[other][rows] for other in box.names}
            return RegressionRecords.of(outcome, box.matrix(given))

        lower, upper = scale.bounds
        return LineRegression(
            read=once(read),
            n_predictors=box.n_predictors,
            lower=lower,
            upper=upper,
            keep=min(1.0, COARSE / self.n_records),
        )


def shrunk(
    joint: IntArray, margin: IntArray, sizes: IntArray, scale: float
) -> FloatArray:
    """Return weights of levels by group, shape (groups, levels), that agree with the
    noisy margin.

    The rows are noisy counts, moved towards the margin as far as their noise is large,
    and then raked.
    """
    n_groups, n_levels = joint.shape
    # each of two estimates of the margin by the inverse of its variance
    of_sums = joint.sum(axis=0) / n_groups
    of_margin = MARGIN_TIMES**2 * (margin / MARGIN_TIMES)
    target = np.maximum(of_sums + of_margin, 0)
    target = target / target.sum() if target.any() else np.full(n_levels, 1 / n_levels)
    kept = np.maximum(joint, 0).astype(np.float64)
    weights = kept + n_levels * scale * target
    n_records = max(sizes.sum(), 1)
    for _ in range(RAKED):
        weights /= weights.sum(axis=1, keepdims=True)
        reached = sizes @ weights / n_records
        weights *= target / np.maximum(reached, LEAST_SHARE)
    return np.asarray(weights + LEAST_WEIGHT)
