"""A part of a release: it has a plan of its own, and asks the curator of the whole,
whose plan holds its steps under other names.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import BoolArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.privacy.answers import AnswerKind, PublicFacts
from pdips.privacy.curator import (
    Curator,
    Distribution,
    Rule,
    ScoresGiven,
    Statistic,
    no_table,
)
from pdips.privacy.plan import AnswerLaw, Plan, Step


def named(step: Step, prefix: str) -> Step:
    """Return a step of a part under the name that the whole plan has for it."""
    if not prefix:
        return step
    item = f"{prefix}{step.item}" if step.item else ""
    return replace(step, name=f"{prefix}{step.name}", item=item)


def facts_of(facts: PublicFacts, schema: Schema) -> PublicFacts:
    """Return what is public about some columns of a table, of which all public columns
    are among them.
    """
    if not facts.n_public or not schema.public_columns:
        return facts
    return PublicFacts(facts.n_records, facts.columns.viewed(schema))


@dataclass(eq=False)
class ColumnsView:
    """Shows statistics the columns of a part, and makes the view of a table once."""

    schema: Schema
    _held: tuple[Table, Table] | None = None

    def __repr__(self) -> str:
        return "ColumnsView()"  # what it holds is confidential

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_held": None}

    def of(self, table: Table) -> Table:
        """Return the table's records with the columns of the part."""
        if table.schema == self.schema:
            return table
        held = self._held
        if held is None or held[0] is not table:
            held = (table, table.viewed(self.schema))
            self._held = held
        return held[1]


@dataclass(frozen=True, eq=False)
class ViewedStatistic:
    """A statistic of a part as one of the whole table: other files may be counted by
    other processes, so it is more than a closure.
    """

    view: ColumnsView
    statistic: Callable[..., Any]

    def __call__(self, table: Table, *given: Any) -> Any:
        return self.statistic(self.view.of(table), *given)


class PartCurator(Curator):
    """Hands the questions of a part on to the curator of the whole.

    Both tick them off their plans: the part's own, and that which was priced. So a part
    can ask neither more than it planned nor what isn't paid for.

    Parameters
    ----------
    whole : Curator
        Answers; its plan has all steps of the part, in order.
    plan : Plan
        Of the part, about all or some columns of the table.
    prefix : str
        What the whole plan writes before the names of the part's steps.
    """

    def __init__(self, whole: Curator, plan: Plan, prefix: str) -> None:
        super().__init__(plan, no_table())
        self._whole = whole
        self._prefix = prefix
        self._view = ColumnsView(plan.schema)

    @cached_property
    def facts(self) -> PublicFacts:
        return facts_of(self._whole.facts, self._plan.schema)

    @cached_property
    def generator(self) -> np.random.Generator:
        return self._whole.generator

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        with self._whole.timed(f"{self._prefix}{name}"):
            yield

    def coins(self, n: int, share: float) -> BoolArray:
        return self._whole.coins(n, share)

    def pass_over_rest(self) -> None:
        """Tick off what the part planned and didn't ask, so that the next part can be
        asked.
        """
        while self.due is not None:
            self.pass_over(self.due)

    def _take(self, step: Step, *laws: AnswerLaw, share: int | Fraction = 1) -> None:
        super()._take(step, *laws, share=share)
        self._whole._take(named(step, self._prefix), *laws, share=share)

    def _note(
        self, step: str, kind: AnswerKind, values: Any, deviation: float | None = None
    ) -> None:
        super()._note(step, kind, values, deviation)
        name = f"{self._prefix}{step}" if step else ""
        self._whole._note(name, kind, values, deviation)

    def _count(
        self, step: Step, statistic: Statistic, possible: BoolArray | None
    ) -> IntArray:
        seen = ViewedStatistic(self._view, statistic)
        return self._whole._count(named(step, self._prefix), seen, possible)

    def _choose(self, step: Step, scores: Statistic) -> IntArray:
        seen = ViewedStatistic(self._view, scores)
        return self._whole._choose(named(step, self._prefix), seen)

    def _choose_given(self, step: Step, noisy: IntArray, scores: ScoresGiven) -> int:
        seen = ViewedStatistic(self._view, scores)
        return self._whole._choose_given(named(step, self._prefix), noisy, seen)

    def _draw(self, step: Step, distribution: Callable[[Table], Distribution]) -> Any:
        seen = ViewedStatistic(self._view, distribution)
        return self._whole._draw(named(step, self._prefix), seen)

    def _decide(self, noisy: IntArray, rule: Rule) -> NDArray[Any]:
        return self._whole._decide(noisy, rule)

    def _keep(self, make: Callable[[], Any]) -> Any:
        return self._whole._keep(make)
