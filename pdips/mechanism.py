"""The contract of a mechanism, and the steps that every release passes through."""

import copy
import inspect
import resource
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, final

import numpy as np
import pandas as pd

from pdips.data.schema import Schema
from pdips.data.table import Table, check_representable
from pdips.errors import InputError, PlanError, hint
from pdips.privacy.account import Request
from pdips.privacy.answers import Answers, PublicFacts
from pdips.privacy.charge import FREE, Charge, Charging
from pdips.privacy.curator import (
    Clock,
    Curator,
    Drawing,
    Progress,
    PublishedAnswers,
)
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import (
    Kind,
    Neighbours,
    Number,
    PrivacyLoss,
    Spend,
    abridged,
    as_asked,
    as_float,
    choice,
    exact,
    largest_rho,
    positive,
    proper_share,
    zcdp,
)
from pdips.privacy.noise import RandomBits
from pdips.privacy.plan import SEEDED, Noise, Plan, Step, paragraph
from pdips.registry import MECHANISMS, find, with_setting
from pdips.release import code_version
from pdips.release.answers import answer_forms, answer_rows
from pdips.release.known_totals import check_totals
from pdips.release.large_set import WrittenInChunks
from pdips.release.noisy_margins import MOST_NUMBERS, MeasuredMargin, stacked
from pdips.release.offers import Offers, SetsShare
from pdips.release.public_draws import PublicDraws
from pdips.release.release import Closer, MarginError, Release, RunRecord

Variant = Literal["sound", "published"]
Split = Literal["once", "per-set"]

NO_ANSWERS = Answers()
LARGEST_EPSILON = 1_000_000
MOST_SETS = 10_000

UNPLANNED = (
    "What is asked of the table, and with which noise, is fixed by its schema and "
    "priced before the table is read."
)


@dataclass(frozen=True, kw_only=True)
class AnswerTables:
    """Noisy answers as tables, for readers who don't ask a mechanism what they are:
    numbers that ``answers.parquet`` holds, too.
    """

    margins: Sequence[MeasuredMargin] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What a mechanism hands over: the sets, the noisy statistics that they were made
    from, and what stays inside.

    ``n_public`` is the table's number of records where it is public and sets have
    another one.
    """

    sets: Sequence[pd.DataFrame]
    statistics: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    noise: Sequence[Noise] = ()
    margin_errors: Sequence[MarginError] = ()
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    large_sets: Sequence[WrittenInChunks] = ()
    closer: Closer | None = None
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    margins: Sequence[MeasuredMargin] = ()
    posterior_draws: PublicDraws | None = None
    n_public: int | None = None

    @classmethod
    def of(cls, sets: Sequence[pd.DataFrame | WrittenInChunks], **rest: Any) -> Self:
        """Sort synthetic sets into those that are held and those that are written in
        chunks.
        """
        held = [made for made in sets if isinstance(made, pd.DataFrame)]
        large = [made for made in sets if not isinstance(made, pd.DataFrame)]
        return cls(sets=held, large_sets=large, **rest)


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """Frozen public settings of a mechanism. Three methods are to be written:
    :meth:`plan`, :meth:`ask` and :meth:`draw`.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss over all sets, in nats, for one person. ``"1/3"`` and ``0.1``
        are taken as written.
    n_sets : int
        Number of synthetic sets.
    neighbours : {"replace-one", "add-remove"}
        Which tables are to look alike. With replace-one the number of records is
        public, and all sets have it.

    Attributes
    ----------
    name : str
        On the command line.
    offers : Offers
        What it keeps to; nothing, unless it says so. A schema that asks for more is
        refused.
    splits : tuple of str
        Ways to pay for several sets.
    most_sets : int
        The largest number of sets of one release.

    Raises
    ------
    InputError
        If a setting is out of range.

    Examples
    --------
    >>> Steps(epsilon="1/2").privacy_loss(
    ...     Schema(columns={"ill": Column(levels=["no", "yes"])})
    ... ).epsilon
    Fraction(1, 2)
    """

    name: ClassVar[str]
    offers: ClassVar[Offers] = Offers()
    variants: ClassVar[tuple[Variant, ...]] = ("sound",)
    splits: ClassVar[tuple[Split, ...]] = ("once",)
    most_sets: ClassVar[int] = MOST_SETS
    loss_kind: ClassVar[Kind] = "pure"

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Refuse settings without a name, and names that the mechanism doesn't have."""
        known = list(inspect.signature(cls.__init__).parameters)[1:]
        if "delta" in settings and "delta" not in known:
            raise InputError(without_delta(getattr(cls, "name", cls.__name__)))
        if args or not {*settings} <= {*known}:
            wrong = ", ".join(
                f"{name}{hint(name, known)}" for name in sorted({*settings} - {*known})
            )
            said = f"has no setting {wrong}" if wrong else "takes its settings by name"
            more = ""
            if "kind" in settings and "delta" in known:
                more = ". Gaussian noise is chosen by delta alone"
            raise InputError(f"{cls.__name__} {said}; it has {', '.join(known)}{more}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        n_sets: Any = self.n_sets
        if isinstance(n_sets, np.integer):
            object.__setattr__(self, "n_sets", int(n_sets))
        epsilon = positive(self.epsilon, "epsilon")
        if epsilon > LARGEST_EPSILON:
            raise InputError(
                f"epsilon must be at most {LARGEST_EPSILON:,}, which "
                f"protects no one; got {abridged(self.epsilon)}"
            )
        if (
            isinstance(self.n_sets, bool)
            or not isinstance(self.n_sets, int)
            or self.n_sets < 1
        ):
            raise InputError(
                f"n_sets must be a whole number of at least 1 (on the command line: "
                f"--sets), got {abridged(self.n_sets)}"
            )
        if self.n_sets > self.most_sets:
            raise InputError(
                f"n_sets must be at most {self.most_sets:,}, "
                f"got {abridged(self.n_sets)}"
            )
        choice(self.neighbours, self.offers.relations, "neighbours")
        choice(getattr(self, "split", self.splits[0]), self.splits, "split")
        if self.variants[0] == "published" and self.neighbours != "replace-one":
            raise InputError(
                "variant 'published' follows the papers, where the number of records "
                "is public: replace-one"
            )

    @abstractmethod
    def plan(self, schema: Schema) -> Plan:
        """Return what will be asked of a table of this schema, and what it costs; no
        table can change it.

        Raises
        ------
        InputError
            If the settings don't fit the schema.
        """

    @abstractmethod
    def ask(self, plan: Plan, curator: Curator) -> Any:
        """Ask the curator the steps of the plan, in order: the only code that sees a
        curator.

        What depends on earlier answers and steers later questions passes through
        ``curator.decide`` or ``curator.keep``. So the same answers lead the same way
        when they are asked for again, of a published release.

        Parameters
        ----------
        plan : Plan
            What :meth:`plan` returned.
        curator : Curator
            Holds the table, or the answers of a release.

        Returns
        -------
        object
            What was measured, as :meth:`draw` takes it: noisy numbers and what they
            are numbers of.
        """

    @abstractmethod
    def draw(
        self,
        plan: Plan,
        measured: Any,
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        """Make synthetic sets of what was measured: post-processing, which may be done
        again for more sets.

        Parameters
        ----------
        plan : Plan
            What :meth:`plan` returned.
        measured : object
            What :meth:`ask` returned.
        n_sets : int
            How many.
        rng : numpy.random.Generator
            All that is random in the sets.
        public : PublicFacts
            What is public about the table.
        """

    def tables_of(self, plan: Plan, measured: Any) -> AnswerTables:
        """Return what was measured as margins and tables; none, unless a mechanism
        says so.

        They follow from plan and answers alone, without a draw: ``pdips check`` works
        them out again from the published answers, and refuses other numbers.
        """
        return AnswerTables()

    def check(self, plan: Plan, table: Table) -> None:  # noqa: B027 - most mechanisms take any table of the schema
        """Refuse a table that the mechanism can't work on, before anything is charged.

        Raises
        ------
        InputError
            If a public number, such as that of records under replace-one, is out of
            range.
        """

    def settled(self, schema: Schema) -> Self:
        """Return the same mechanism, in which settings that were left out and depend on
        the noise are filled in.
        """
        return self

    def shown(self) -> dict[str, Any]:
        """Return settings that are published otherwise than they were given."""
        return {}

    def seconds(self, schema: Schema, n_records: int) -> float:
        """Return about how long a set takes on two busy cores, compiling included: for
        the page of plans.
        """
        return 5.0

    def set_records(self, n_records: int) -> int:
        """Return how many records a set has beside a table of so many."""
        return n_records

    def without_schema(self, epsilon: Fraction, text: str) -> PrivacyLoss:
        """Return the price as it is known before there is a schema, with a paragraph
        for the disclosure board.
        """
        return PrivacyLoss(
            epsilon=epsilon,
            neighbours=self.neighbours,
            kind=self.loss_kind,
            statement=text,
        )

    @final
    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price of a release. With a schema, the statement says what is
        asked of the table.
        """
        if schema is not None:
            return self.plan(schema).loss
        epsilon = exact(self.epsilon, "epsilon")
        text = paragraph(
            self.name,
            None,
            self.neighbours,
            self.n_sets,
            UNPLANNED,
            epsilon=epsilon,
            delta=Fraction(0),
        )
        return self.without_schema(epsilon, text)

    @final
    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price for tables of this schema."""
        return self.plan(schema).spends

    @final
    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values, as they are published."""
        shown = self.shown()
        own = [each.name for each in fields(self) if each.name not in shown]
        return {
            **{name: _plain(getattr(self, name)) for name in own},
            "epsilon": as_float(exact(self.epsilon, "epsilon")),
            **shown,
        }

    @final
    def request(self, schema: Schema) -> Request:
        """Return the price for tables of a schema and what it is for, as a ledger
        holds it.
        """
        return self.request_of(self.plan(schema))

    @final
    def request_of(self, plan: Plan) -> Request:
        """Return the price of a plan of this mechanism and what it is for."""
        return Request(
            mechanism=self.name,
            schema=plan.schema,
            loss=plan.loss,
            spends=plan.spends,
            plan=plan.digest(self.settings()),
            code=code_version(),
        )

    @final
    def release(
        self,
        table: Table,
        *,
        rng: np.random.Generator | None = None,
        ledger: Ledger | str | Path | None = None,
        progress: Progress | None = None,
        resume: int | None = None,
        command: Mapping[str, Any] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> tuple[Release, RunRecord]:
        """Spend the budget and draw a release.

        The charge is committed together with the first noisy answer, and every later
        answer before it is used. Whatever fails after that leaves a charge that can be
        resumed at no further price. Where the price was reserved before the table was
        read (``Ledger.reserve``), the charge takes the place of the reservation.

        Parameters
        ----------
        table : Table
            The confidential table.
        rng : numpy.random.Generator, optional
            For tests and studies; a release made with one is marked reproducible.
        ledger : Ledger or path, optional
            The account. The answers are kept beside it until the release is published.
        progress : callable, optional
            Told the name of each step.
        resume : int, optional
            Number of a charge of the ledger whose release is to be finished, at no
            further price: of the same table, settings, schema and code.
        command : dict, optional
            The command that asks, kept with the answers for ``pdips resume``.
        prepare : callable, optional
            Called once the first answer is drawn, before the charge; if it raises,
            nothing is charged.

        Returns
        -------
        Release, RunRecord
            What may be published, and what stays inside.

        Raises
        ------
        InputError
            If the settings don't fit the schema, the ledger belongs to another table,
            or the charge to be resumed was for something else.
        RefusedError
            If the ledger's total would be overspent.
        ResumableError
            If something fails after the charge.
        """
        if not isinstance(table, Table):
            raise InputError(
                f"release takes a Table, got {type(table).__name__}: Table(frame, "
                f"schema), or pdips.synthesize(...)"
            )
        charging = Charging(
            ledger=Ledger(ledger) if isinstance(ledger, (str, Path)) else ledger,
            resume=resume,
            command=command,
            prepare=prepare,
        )
        plan = self.plan(table.schema)
        return self.release_planned(plan, table, charging, rng=rng, progress=progress)

    @final
    def release_planned(
        self,
        plan: Plan,
        table: Table,
        charging: Charging = FREE,
        *,
        rng: np.random.Generator | None = None,
        progress: Progress | None = None,
    ) -> tuple[Release, RunRecord]:
        """As :meth:`release`, by the plan that :meth:`plan` of this very mechanism has
        returned for the table's schema, so that what was reserved is what is asked.

        Raises
        ------
        PlanError
            If the plan is of another mechanism, with other settings, or of another
            schema.
        """
        # What is asked may follow from settings: another one's price isn't its price.
        is_own = plan.made_by is None or plan.made_by is self
        if not is_own or plan.mechanism != self.name or plan.schema != table.schema:
            raise PlanError(f"the plan isn't that of {self.name} for this table")
        if rng is not None and not isinstance(rng, np.random.Generator):
            raise InputError(
                f"rng must be a numpy.random.Generator, for tests only; "
                f"got {type(rng).__name__}"
            )
        clock = Clock(progress)
        bits = RandomBits(rng)
        check_representable(table.schema)
        if table.partitioned:
            self.check_adds_up()
        self.check(plan, table)
        if table.counts is not None and not self.offers.counted_tables:
            raise InputError(
                f"{self.name} reads records one by one: read the table "
                f"with counted=False"
            )
        charge = charging.charge(
            self.request_of(plan),
            lambda: table.fingerprint,
            reads_records=plan.sampling == "mcmc",
            reproducible=bits.reproducible,
        )
        if charge is None:
            return self._released(plan, table, bits, clock, None)
        with charge.redeemable():
            return self._released(plan, table, bits, clock, charge)

    def _released(
        self,
        plan: Plan,
        table: Table,
        bits: RandomBits,
        clock: Clock,
        charge: Charge | None,
    ) -> tuple[Release, RunRecord]:
        """Answer the plan's steps, and make a release of the answers."""
        curator = Drawing(plan, table, bits, clock, charge)
        with clock.running():
            measured = self.ask(plan, curator)
            rng = bits.generator()
            drawn = self.draw(plan, measured, self.n_sets, rng, curator.facts)
        reproducible = bits.reproducible
        if charge is not None:
            reproducible = reproducible or bool(charge.facts["reproducible"])
        release = replace(
            self.as_release(plan, drawn, reproducible, charge, curator.answers),
            again=partial(self.more_sets, table.schema, curator.answers, curator.facts),
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return release, RunRecord(
            seconds=clock.seconds,
            peak_memory=peak,
            diagnostics=drawn.diagnostics,
            closer=drawn.closer,
            release=release,
        )

    @classmethod
    def of_published(cls, settings: Mapping[str, Any], schema: Schema) -> Self | None:
        """Return the mechanism of a release with a model, by its public settings; None
        where mechanisms of this kind have none, or one that a folder doesn't tell.
        """
        return None

    def for_more_sets(self, schema: Schema) -> Self:
        """Return the mechanism that draws more sets of a release of this one."""
        return self

    @final
    def more_sets(
        self,
        schema: Schema,
        answers: Answers,
        public: PublicFacts,
        n_sets: int,
        rng: np.random.Generator,
    ) -> list[pd.DataFrame]:
        """Draw more sets of what a release has asked, at no cost.

        Parameters
        ----------
        schema : Schema
            Of the table.
        answers : Answers
            What the release was answered.
        public : PublicFacts
            What is public about its table.
        n_sets : int
            How many.
        rng : numpy.random.Generator
            It protects nothing here.

        Raises
        ------
        InputError
            If each set of this mechanism has noise of its own, or the answers aren't
            those of its plan.
        """
        mechanism = self.for_more_sets(schema)
        if mechanism.sets_share() == "own noise":
            raise InputError(
                f"each set of {self.name} with these settings has noise of its own, "
                f"and another one costs as much: make a release of more sets"
            )
        if mechanism.most_sets == 1:
            raise InputError(
                f"what {self.name} is answered is its set: another one would be a copy"
            )
        plan = mechanism.plan(schema)
        curator = PublishedAnswers(plan, public, answers)
        try:
            measured = mechanism.ask(plan, curator)
        except PlanError as error:
            raise InputError(
                f"the answers aren't those of {self.name} with these settings: {error}"
            ) from None
        drawn = mechanism.draw(plan, measured, n_sets, rng, public)
        return schema.with_known_weights(drawn.sets)

    def as_release(
        self,
        plan: Plan,
        drawn: Drawn,
        reproducible: bool = True,
        charge: Charge | None = None,
        answers: Answers = NO_ANSWERS,
    ) -> Release:
        """Return what :meth:`draw` made as it is published; audits compare it."""
        schema = plan.schema
        loss = plan.loss
        if reproducible:
            loss = replace(loss, statement=f"{SEEDED} {loss.statement}")
        sets = schema.with_known_weights(drawn.sets)
        n_numbers = sum(len(each.noisy) for each in drawn.margins)
        margins = drawn.margins if 0 < n_numbers <= MOST_NUMBERS else ()
        tables = drawn.tables
        if margins:
            tables = {"margins": stacked(margins), **tables}
        forms = answer_forms(answers)
        if forms:
            tables = {**tables, "answers": answer_rows(answers)}
        return Release(
            mechanism=self.name,
            settings=self.settings(),
            schema=schema,
            loss=loss,
            spends=plan.spends,
            sets=tuple(sets),
            large_sets=tuple(drawn.large_sets),
            statistics=drawn.statistics,
            noise=tuple(drawn.noise) or plan.noise,
            margin_errors=tuple(drawn.margin_errors),
            tables=tables,
            margins=tuple(each.law for each in margins),
            totals=tuple(check_totals(schema, margins, sets)),
            reproducible=reproducible,
            offers=replace(self.offers, sets_share=self.sets_share()),
            receipt=None if charge is None else charge.receipt,
            charge=charge,
            identifier=secrets.token_hex(8) if charge is None else charge.token,
            answers=answers,
            answer_forms=forms,
            posterior_draws=drawn.posterior_draws,
            n_public=drawn.n_public,
        )

    @final
    def check_adds_up(self) -> None:
        """Refuse a table in many files where not all that is asked are sums over
        records.
        """
        if not self.offers.partitions:
            raise InputError(
                f"{self.name} takes no table in many files: join them, "
                f"or use {_listed(with_offer('partitions'))}"
            )

    @property
    def rounds(self) -> int:
        """How often all is asked anew: once, or once for each set."""
        return self.n_sets if getattr(self, "split", self.splits[0]) == "per-set" else 1

    def sets_share(self) -> SetsShare:
        """Return what the sets of a release share, with these settings."""
        if getattr(self, "split", self.splits[0]) == "per-set":
            return "own noise"
        return self.offers.sets_share

    @final
    def check_schema(self, schema: Schema) -> None:
        """Refuse a schema that asks for more than the mechanism offers to keep to."""
        asked = {
            "zeros": bool(schema.impossible),
            "rules": bool(schema.rule),
            "public_columns": bool(schema.public_columns),
            "households": schema.members is not None,
            "totals": bool(schema.known_totals(weighted=False)),
        }
        if schema.analysis:
            raise InputError(
                f"{self.name} by itself answers no [[analysis]]: pdips.synthesize "
                f"answers them beside the sets"
            )
        for offer, is_asked in asked.items():
            if is_asked and not getattr(self.offers, offer):
                said, where = REFUSALS[offer]
                raise InputError(
                    f"{self.name} {said}: leave {where} out of the schema, or take "
                    f"{_listed(with_offer(offer))}"
                )

    @final
    def planned(
        self, schema: Schema, steps: Sequence[Step], law: str, **more: Any
    ) -> Plan:
        """Return the plan that asks these steps, with what the settings say; ``more``
        are other fields of a plan.
        """
        self.check_schema(schema)
        plan = Plan(
            mechanism=self.name,
            schema=schema,
            neighbours=self.neighbours,
            n_sets=self.n_sets,
            steps=tuple(steps),
            law=law,
            made_by=self,
            **more,
        )
        if plan.kind not in self.offers.kinds:
            raise PlanError(f"{self.name} offers no loss of kind {plan.kind!r}")
        return plan

    @final
    def per_round(self, rounds: int) -> Fraction:
        """Return the epsilon of each of so many rounds."""
        return exact(self.epsilon, "epsilon") / rounds


def _plain(value: Any) -> Any:
    """Return a copy of a setting as plain values: dataclasses as dicts, also in
    sequences. What can't be copied, such as a table, is no setting.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    is_settings = is_dataclass(value) and not isinstance(value, type)
    return asdict(value) if is_settings else copy.deepcopy(value)


REFUSALS = {
    "zeros": ("keeps to no impossible combinations", "[[impossible]]"),
    "rules": ("keeps to no rules", "[[rule]]"),
    "public_columns": ("copies no public columns", "public = true"),
    "households": ("takes no households", "[members]"),
    "totals": ("doesn't meet public totals", "[[total]]"),
}
"""What is said of a mechanism that doesn't offer something, and what asks for it."""


def without_delta(name: str) -> str:
    """Return why a mechanism takes no delta, and which ones do."""
    return (
        f"delta has no effect on {name}: leave it out, or take "
        f"{_listed(with_setting('delta'))}"
    )


def with_offer(offer: str) -> tuple[str, ...]:
    """Return the names of all registered mechanisms that offer something.

    Examples
    --------
    >>> with_offer("households")
    ('margins',)
    """
    return tuple(name for name in MECHANISMS if getattr(find(name).offers, offer))


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


@dataclass(frozen=True, kw_only=True)
class LaplaceOrGaussian(Mechanism):
    """A mechanism that offers both laws of noise, with the losses that suit them.

    Parameters
    ----------
    delta : int, float, str or Fraction, optional
        Left out, noise is discrete Laplace, and losses add up in epsilon. A number
        makes it discrete Gaussian, with a zero-concentrated loss that is read at this
        delta.
    """

    delta: Number | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta is not None:
            proper_share(self.delta, "delta")
        self.total  # noqa: B018 - refuses an epsilon that is too small for its delta

    @property
    def kind(self) -> Literal["pure", "zcdp"]:
        """What sort of loss delta chooses."""
        return "pure" if self.delta is None else "zcdp"

    @property
    def total(self) -> Fraction:
        """The budget in the unit that steps are priced in: epsilon, or rho."""
        epsilon = exact(self.epsilon, "epsilon")
        if self.delta is None:
            return epsilon
        return largest_rho(epsilon, exact(self.delta, "delta"))

    @property
    def noise_law(self) -> Literal["laplace", "gaussian"]:
        """The law of the noise."""
        return "laplace" if self.delta is None else "gaussian"

    @property
    def loss_kind(self) -> Kind:  # type: ignore[override]
        """What sort of guarantee there is as long as no schema is known: a
        zero-concentrated loss has no rho then.
        """
        return "pure" if self.delta is None else "approximate"

    def without_schema(self, epsilon: Fraction, text: str) -> PrivacyLoss:
        """Return the price before there is a schema: zero-concentrated losses are read
        at delta.
        """
        if self.delta is None:
            return super().without_schema(epsilon, text)
        loss = zcdp(self.total, self.delta, self.neighbours, text)
        return replace(loss, epsilon=as_asked(loss.epsilon, epsilon))

    def shown(self) -> dict[str, Any]:
        """Return delta as a plain value: None where losses are pure."""
        delta = self.delta
        return {"delta": None if delta is None else float(exact(delta, "delta"))}

    @property
    def reading(self) -> dict[str, Any]:
        """What a plan of zero-concentrated losses says beside its steps; nothing of
        pure ones.
        """
        if self.delta is None:
            return {}
        return {
            "kind": "zcdp",
            "delta": exact(self.delta, "delta"),
            "claim": exact(self.epsilon, "epsilon"),
        }
