"""A release of tables together with analyses that were named before it: one plan, one
charge.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

import numpy as np

from pdips.analyses.estimates import (
    ESTIMATES_TABLE,
    as_rows,
    beside_table,
    estimates_of,
)
from pdips.analyses.forecast import outlook
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.mechanism import NO_ANSWERS, Drawn, LaplaceOrGaussian, Mechanism
from pdips.posterior.model_file import Source
from pdips.privacy.answers import Answers, PublicFacts
from pdips.privacy.charge import Charge
from pdips.privacy.curator import Curator, timed
from pdips.privacy.loss import (
    PRICE_DIGITS,
    Kind,
    PrivacyLoss,
    epsilon_of,
    exact,
    spell,
)
from pdips.privacy.part import PartCurator, facts_of, named
from pdips.privacy.plan import SEEDED, Plan
from pdips.privacy.rho import rounded_up
from pdips.release.documents import OF_TABLES
from pdips.release.offers import Offers, SetsShare
from pdips.release.release import Release, question_of
from pdips.scores.first_search import one_at_a_time
from pdips.scores.posterior import attempt
from pdips.scores.scores import Scores
from pdips.scores.tree import table_draws

# What all analyses together get of the budget, in epsilon or in rho; evenly by analysis
SHARE_OF_ANALYSES = Fraction(1, 2)
MOST_ANALYSES = 20
PREFIX = "analysis {}: "
# Rho has ten digits: what a part may lose by that
LEAST_STEP = Fraction(1, 10**11)


@dataclass(frozen=True)
class PlannedParts:
    """The plans of the parts, each of which asks by its own."""

    tables: Plan
    analyses: tuple[Plan, ...]


@dataclass(frozen=True, eq=False)
class AnsweredPart:
    """What was measured for a part, and the answers that it follows from."""

    measured: Any
    answers: Answers


@dataclass(frozen=True, kw_only=True)
class DrawnWithAnalyses(Drawn):
    """What is handed over: that of the tables, and that of each analysis."""

    of_tables: Drawn
    answers: Answers
    of_analyses: tuple[tuple[Drawn, Answers], ...]


@dataclass(frozen=True, kw_only=True)
class WithAnalyses(Mechanism):
    """A mechanism of tables whose budget also buys the noisy moments of some analyses.

    Half of the budget, in epsilon or in rho, is shared evenly by the analyses. It is
    one plan: the tables' steps, then those of each analysis, which are the steps of
    :class:`pdips.scores.scores.Scores`. So prices add up, an account is charged once,
    and a run that was stopped is finished by the answers that it left.

    Parameters
    ----------
    main : Mechanism
        Of the tables, with the budget of all.
    analyses : tuple of Source
        The analyses, each as a model.
    epsilon, n_sets, neighbours
        As of ``main``: see :meth:`of`.

    Notes
    -----
    Proof: ``docs/proofs/scores.md``, section 7.

    Examples
    --------
    >>> from pdips.analyses.declarations import sources_of
    >>> schema = Schema(
    ...     columns={"x": Column(lower=-4, upper=4), "y": Column(lower=-9, upper=9)}
    ... )
    >>> sources = sources_of(["y ~ x"], schema)
    >>> both = WithAnalyses.of(Margins(epsilon=1), sources)
    >>> both.tables.epsilon, [each.epsilon for each in both.asked]
    (Fraction(1, 2), [Fraction(1, 2)])
    """

    main: Mechanism
    analyses: tuple[Source, ...]

    @classmethod
    def of(cls, main: Mechanism, sources: Sequence[Source]) -> Self:
        """Return a mechanism that answers analyses beside what ``main`` releases, for
        the price of ``main``.

        Raises
        ------
        InputError
            If an analysis is there twice or there are too many, or the mechanism is
            none that analyses can go with.
        """
        refuse_repeated(sources)
        check_tables(main)
        return cls(
            epsilon=main.epsilon,
            n_sets=main.n_sets,
            neighbours=main.neighbours,
            main=main,
            analyses=tuple(sources),
        )

    # ---- what is asked of the mechanism of the tables ----

    @property
    def name(self) -> str:  # type: ignore[override]
        """That of the mechanism of the tables."""
        return self.main.name

    @property
    def offers(self) -> Offers:  # type: ignore[override]
        """What the tables keep to, of records one by one, one a row."""
        return replace(self.main.offers, households=False, counted_tables=False)

    @property
    def most_sets(self) -> int:  # type: ignore[override]
        """As of the tables."""
        return self.main.most_sets

    @property
    def loss_kind(self) -> Kind:  # type: ignore[override]
        """As of the tables."""
        return self.main.loss_kind

    @property
    def kind(self) -> str:
        """What sort of loss is added up."""
        return str(getattr(self.main, "kind", "pure"))

    @property
    def delta(self) -> Any:
        """At which a zero-concentrated loss is read; None for a pure one."""
        return getattr(self.main, "delta", None)

    def sets_share(self) -> SetsShare:
        """Return what the sets share."""
        return self.tables.sets_share()

    def without_schema(self, epsilon: Fraction, text: str) -> PrivacyLoss:
        """Return the price before there is a schema: that of all, as of the tables."""
        return self.main.without_schema(epsilon, text)

    def for_more_sets(self, schema: Schema) -> Mechanism:  # type: ignore[override]
        """Return the mechanism of the tables alone: its answers come first."""
        return self.tables.for_more_sets(schema)

    def seconds(self, schema: Schema, n_records: int) -> float:
        """Return about how long a set takes: analyses take as long as some."""
        return self.main.seconds(schema, n_records)

    # ---- parts ----

    @cached_property
    def tables(self) -> Mechanism:
        """The mechanism of the tables, at its part of the budget."""
        part = at_share(self.main, 1 - SHARE_OF_ANALYSES)
        return replace(part, n_sets=self.n_sets)

    @cached_property
    def asked(self) -> tuple[Scores, ...]:
        """What answers each analysis, at its part of the budget."""
        settings: dict[str, Any] = {"neighbours": self.neighbours}
        if self.delta is not None:
            settings["delta"] = self.delta
        whole = Scores(epsilon=self.epsilon, **settings)
        part = at_share(whole, SHARE_OF_ANALYSES / len(self.analyses))
        return tuple(replace(part, model=source) for source in self.analyses)

    def shown(self) -> dict[str, Any]:
        """Return the settings of the tables, and the analyses by their text."""
        settings = self.tables.settings()
        of_tables = {"epsilon": settings.pop("epsilon")}
        texts = [source.text.strip() or source.name for source in self.analyses]
        return {**settings, OF_TABLES: of_tables, "analyses": texts, "main": self.name}

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: the tables' steps, then those of each analysis."""
        if schema.members is not None:
            raise InputError(
                "analyses are answered from tables of one record a row, and this "
                "schema has households: leave them out"
            )
        of_tables = self.tables.plan(schema)
        if of_tables.kind not in ("pure", "zcdp") or of_tables.sampling != "exact":
            raise InputError(
                f"analyses go with mechanisms whose noise is exact, and {self.name} "
                f"has a loss of kind {of_tables.kind!r}"
            )
        plans = []
        steps = [*of_tables.steps]
        for number, scores in enumerate(self.asked, start=1):
            with self._told(number):
                planned = scores.plan(schema_of(scores.source, schema))
            plans.append(planned)
            steps += [named(step, PREFIX.format(number)) for step in planned.steps]
        reading: dict[str, Any] = {"kind": of_tables.kind}
        if of_tables.kind == "zcdp":
            reading |= {"delta": of_tables.delta, "claim": exact(self.epsilon, "e")}
        return self.planned(
            schema,
            steps,
            self._sentences(of_tables, plans),
            is_redrawn=of_tables.is_redrawn,
            design=PlannedParts(of_tables, tuple(plans)),
            **reading,
        )

    @contextmanager
    def _told(self, number: int) -> Iterator[None]:
        with of_analysis(label_of(self.analyses[number - 1])):
            yield

    def _sentences(self, of_tables: Plan, plans: Sequence[Plan]) -> str:
        """Return what is done, for a disclosure board."""
        parts = [
            f"The budget is split: {spell(1 - SHARE_OF_ANALYSES)} of it, in "
            f"{'rho' if of_tables.kind == 'zcdp' else 'epsilon'}, buys the tables, the "
            f"rest evenly {len(plans)} analyses that were named beforehand, not by "
            f"looking at the table. All parts are one release at one price. "
            f"Of the tables: {of_tables.law}"
        ]
        for number, planned in enumerate(plans, start=1):
            label = label_of(self.analyses[number - 1])
            parts.append(f"Of analysis {number}, {label}: {planned.law}")
        return " ".join(parts)

    def check(self, plan: Plan, table: Table) -> None:
        """Refuse what a part refuses, before anything is charged."""
        parts: PlannedParts = plan.design
        self.tables.check(parts.tables, table)
        for number, (scores, planned) in enumerate(
            zip(self.asked, parts.analyses, strict=True), start=1
        ):
            with self._told(number):
                scores.check(planned, table)

    def set_records(self, n_records: int) -> int:
        """Return how many records a set has beside a table of so many."""
        return self.tables.set_records(n_records)

    def forecasts(self, plan: Plan, n_records: int | None) -> Iterator[str]:
        """Yield for each analysis what it gets of the price and, with a public number
        of records or a guess, whether these are enough, and for what intervals.
        """
        parts: PlannedParts = plan.design
        for number, (scores, planned, source) in enumerate(
            zip(self.asked, parts.analyses, self.analyses, strict=True), start=1
        ):
            d = scores.space(planned.schema).n_parameters
            said = f"{label_of(source)}: {d} parameters, {_price(planned)} of the price"
            if n_records is not None:
                with self._told(number):
                    said = f"{said}; {outlook(scores, planned, n_records)}"
            yield said

    def ask(self, plan: Plan, curator: Curator) -> list[AnsweredPart]:
        """Ask the steps of the tables, then those of each analysis."""
        parts: PlannedParts = plan.design
        asking: list[tuple[Mechanism, Plan, str]] = [(self.tables, parts.tables, "")]
        for number, scores in enumerate(self.asked, start=1):
            prefix = PREFIX.format(number)
            asking.append((scores, parts.analyses[number - 1], prefix))
        answered = []
        for mechanism, planned, prefix in asking:
            part = PartCurator(curator, planned, prefix)
            measured = mechanism.ask(planned, part)
            part.pass_over_rest()
            answered.append(AnsweredPart(measured, part.answers))
        return answered

    def draw(
        self,
        plan: Plan,
        measured: Sequence[AnsweredPart],
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> DrawnWithAnalyses:
        """Draw the sets of the tables, and the posterior of each analysis."""
        parts: PlannedParts = plan.design
        first, *others = measured
        of_tables = self.tables.draw(parts.tables, first.measured, n_sets, rng, public)
        answered = []
        for number, (scores, planned, part) in enumerate(
            zip(self.asked, parts.analyses, others, strict=True), start=1
        ):
            facts = facts_of(public, planned.schema)
            with timed(f"{PREFIX.format(number)}drawing from the posterior"):
                drawn = scores.draw(planned, part.measured, 1, rng, facts)
                label = label_of(self.analyses[number - 1])
                drawn = with_estimates(drawn, part.measured, label, rng)
            answered.append((drawn, part.answers))
        kept = {
            each.name: getattr(of_tables, each.name)
            for each in fields(Drawn)
            if each.name != "posterior_draws"
        }
        return DrawnWithAnalyses(
            **kept,
            of_tables=of_tables,
            answers=first.answers,
            of_analyses=tuple(answered),
        )

    def as_release(  # type: ignore[override]
        self,
        plan: Plan,
        drawn: DrawnWithAnalyses,
        reproducible: bool = True,
        charge: Charge | None = None,
        answers: Answers = NO_ANSWERS,
    ) -> Release:
        """Return the release of the tables at the price of all, with that of each
        analysis inside.
        """
        parts: PlannedParts = plan.design
        release = self.tables.as_release(
            parts.tables, drawn.of_tables, reproducible, charge, drawn.answers
        )
        analyses = []
        for number, (scores, planned) in enumerate(
            zip(self.asked, parts.analyses, strict=True), start=1
        ):
            made, own = drawn.of_analyses[number - 1]
            part = scores.as_release(planned, made, reproducible, None, own)
            loss = part.loss
            said = (
                f"A PART of release {release.identifier}, whose price has this part's "
                f"in it and is charged once. {loss.statement}"
            )
            digest = hashlib.sha256(f"{release.identifier} {number}".encode())
            analyses.append(
                replace(
                    part,
                    loss=replace(loss, statement=said),
                    receipt=release.receipt,
                    identifier=digest.hexdigest()[:16],
                )
            )
        statement = plan.loss.statement
        if reproducible:
            statement = f"{SEEDED} {statement}"
        return replace(
            release,
            settings=self.settings(),
            loss=replace(plan.loss, statement=statement),
            spends=plan.spends,
            analyses=tuple(analyses),
        )


def _price(plan: Plan) -> str:
    """Return the price of a part in the unit that the parts add up in."""
    loss = plan.loss
    if loss.kind == "zcdp":
        return f"rho = {spell(rounded_up(loss.rho, PRICE_DIGITS))}"
    return f"epsilon = {spell(loss.epsilon)}"


def at_share[M: Mechanism](mechanism: M, share: Fraction) -> M:
    """Return a mechanism at a share of its budget: of epsilon, or where losses are
    zero-concentrated of rho, never above it.

    Examples
    --------
    >>> from fractions import Fraction
    >>> half = at_share(Scores(epsilon=1, delta="1e-6"), Fraction(1, 2))
    >>> round(float(half.epsilon), 3)
    0.695
    """
    if not isinstance(mechanism, LaplaceOrGaussian) or mechanism.kind == "pure":
        return replace(mechanism, epsilon=exact(mechanism.epsilon, "epsilon") * share)
    most = mechanism.total * share
    epsilon = epsilon_of(most, exact(mechanism.delta or 0, "delta"))
    part = replace(mechanism, epsilon=epsilon)
    while part.total > most:
        epsilon *= 1 - LEAST_STEP
        part = replace(mechanism, epsilon=epsilon)
    return part


def check_tables(main: Mechanism) -> None:
    """Refuse a mechanism that analyses can't go with."""
    if any(each.name == "model" for each in fields(main)):
        raise InputError(
            f"{main.name} has a model of its own, and analyses go with mechanisms of "
            f"tables, such as margins"
        )
    if main.rounds > 1:
        raise InputError(
            f"analyses go with one noisy answer for all sets: leave split = 'per-set' "
            f"of {main.name} out"
        )


def schema_of(source: Source, schema: Schema) -> Schema:
    """Return the schema of what an analysis reads: its columns and the public ones,
    without what sets keep to and without weights.
    """
    records = schema.records.model_copy(update={"weight": None})
    plain = schema.model_copy(
        update={"records": records, "impossible": (), "rule": (), "total": ()}
    )
    if source.converted is None:
        raise InputError("an analysis is a formula or a function make(df)")
    narrowed: Schema = source.converted.narrowed(plain)
    return narrowed


def label_of(source: Source) -> str:
    """Return what an analysis is called."""
    return question_of({"model": source.name, "model_source": source.text})


def refuse_repeated(sources: Sequence[Source]) -> None:
    """Refuse an analysis that is there twice, and more than can be paid for."""
    if not sources:
        raise InputError("name at least one analysis, such as 'y ~ x'")
    if len(sources) > MOST_ANALYSES:
        raise InputError(
            f"{len(sources)} analyses are named, and at most {MOST_ANALYSES} share a "
            f"budget"
        )
    seen = set[str]()
    for source in sources:
        called = "".join(label_of(source).split())
        if called in seen:
            raise InputError(
                f"the analysis {label_of(source)!r} is there twice: name it once, for "
                f"its part of the budget would be spent twice on one answer"
            )
        seen.add(called)


@contextmanager
def of_analysis(label: str) -> Iterator[None]:
    """Say of what is refused in the body which analysis it is about."""
    try:
        yield
    except InputError as error:
        if type(error) is not InputError:  # what records refuse has words of its own
            raise
        raise InputError(f"the analysis {label!r}: {error}") from None


def with_estimates(
    drawn: Drawn, measured: Any, label: str, rng: np.random.Generator
) -> Drawn:
    """Return what was drawn for an analysis with its estimates, as a table and beside
    the posterior.
    """
    draws = drawn.posterior_draws
    if draws is None:
        raise AssertionError("scores publishes a posterior")
    with one_at_a_time(measured.sums.space):
        of_table = attempt(table_draws, measured.sums, rng)
    estimates = estimates_of(draws.posterior, of_table)
    return replace(
        drawn,
        tables={**drawn.tables, ESTIMATES_TABLE: as_rows(estimates)},
        posterior_draws=beside_table(draws, of_table, {"analysis": label}),
    )
