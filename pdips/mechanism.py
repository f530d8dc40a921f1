"""The contract of a mechanism, and the steps that every release passes through."""

import inspect
import resource
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, final

import numpy as np
import pandas as pd

from pdips.data.schema import Schema
from pdips.data.table import Table, check_representable
from pdips.errors import InputError
from pdips.privacy.curator import Clock, Curator, Drawing, Progress
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import (
    Kind,
    Neighbours,
    Number,
    PrivacyLoss,
    Spend,
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
from pdips.release.known_totals import check_totals
from pdips.release.large_set import LargeSet
from pdips.release.noisy_margins import MOST_NUMBERS, MeasuredMargin, stacked
from pdips.release.release import Closer, MarginError, Release, RunRecord

Variant = Literal["sound", "published"]
Split = Literal["once", "per-set"]

LARGEST_EPSILON = 1_000_000
MOST_SETS = 10_000

UNPLANNED = (
    "What is asked of the table, and with which noise, is fixed by its schema and priced before the table is read."
)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What a mechanism hands over: the sets, the noisy statistics that they were made from, and what stays inside."""

    sets: Sequence[pd.DataFrame]
    statistics: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    noise: Sequence[Noise] = ()
    margin_errors: Sequence[MarginError] = ()
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    large_sets: Sequence[LargeSet] = ()
    closer: Closer | None = None
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    margins: Sequence[MeasuredMargin] = ()

    @classmethod
    def of(cls, sets: Sequence[pd.DataFrame | LargeSet], **rest: Any) -> Self:
        """Sort synthetic sets into those that are held and those that are written in chunks."""
        held = [made for made in sets if isinstance(made, pd.DataFrame)]
        return cls(sets=held, large_sets=[made for made in sets if isinstance(made, LargeSet)], **rest)


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """Frozen public settings of a mechanism. Two methods are to be written: :meth:`plan` and :meth:`synthesize`.

    Parameters
    ----------
    epsilon : int, float, str or Fraction
        Total privacy loss over all sets, in nats, for one person. ``"1/3"`` and ``0.1`` are taken as written.
    n_sets : int
        Number of synthetic sets.
    neighbours : {"replace-one", "add-remove"}
        Which tables are to look alike. With replace-one the number of records is public, and all sets have it.

    Attributes
    ----------
    name : str
        On the command line.
    relations, splits : tuple of str
        Neighbours that there is a proof for, and ways to pay for several sets.
    most_sets : int
        The largest number of sets of one release.
    weighs_records : bool
        Whether it takes tables of distinct records and their counts.
    adds_up : bool
        Whether all that it asks are sums over records, so that it takes tables in many files.
    meets_totals : bool
        Whether its sets have the counts of the schema's public totals; weights are raked in sets of all mechanisms.
    takes_households : bool
        Whether its sets have members in the first places of a household alone.

    Raises
    ------
    InputError
        If a setting is out of range.

    Examples
    --------
    >>> Steps(epsilon="1/2").privacy_loss(Schema(columns={"ill": Column(levels=["no", "yes"])})).epsilon
    Fraction(1, 2)
    """

    name: ClassVar[str]
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one", "add-remove")
    variants: ClassVar[tuple[Variant, ...]] = ("sound",)
    splits: ClassVar[tuple[Split, ...]] = ("once",)
    most_sets: ClassVar[int] = MOST_SETS
    weighs_records: ClassVar[bool] = False
    adds_up: ClassVar[bool] = False
    meets_totals: ClassVar[bool] = False
    takes_households: ClassVar[bool] = False
    loss_kind: ClassVar[Kind] = "pure"

    epsilon: Number
    n_sets: int = 1
    neighbours: Neighbours = "replace-one"

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Refuse settings without a name, and names that the mechanism doesn't have."""
        known = list(inspect.signature(cls.__init__).parameters)[1:]
        if args or not {*settings} <= {*known}:
            wrong = ", ".join(sorted({*settings} - {*known}))
            said = f"has no setting {wrong}" if wrong else "takes its settings by name"
            raise InputError(f"{cls.__name__} {said}; it has {', '.join(known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        n_sets: Any = self.n_sets
        if isinstance(n_sets, np.integer):
            object.__setattr__(self, "n_sets", int(n_sets))
        epsilon = positive(self.epsilon, "epsilon")
        if epsilon > LARGEST_EPSILON:
            raise InputError(f"epsilon must be at most {LARGEST_EPSILON:,}, which protects no one; got {self.epsilon}")
        if isinstance(self.n_sets, bool) or not isinstance(self.n_sets, int) or self.n_sets < 1:
            raise InputError(
                f"n_sets must be a whole number of at least 1 (on the command line: --sets), got {self.n_sets}"
            )
        if self.n_sets > self.most_sets:
            raise InputError(f"n_sets must be at most {self.most_sets:,}, got {self.n_sets:,}")
        choice(self.neighbours, self.relations, "neighbours")
        choice(getattr(self, "split", self.splits[0]), self.splits, "split")
        if self.variants[0] == "published" and self.neighbours != "replace-one":
            raise InputError(
                "variant 'published' follows the papers, where the number of records is public: replace-one"
            )

    @abstractmethod
    def plan(self, schema: Schema) -> Plan:
        """Return what will be asked of a table of this schema, and what it costs; no table can change it.

        Raises
        ------
        InputError
            If the settings don't fit the schema.
        """

    @abstractmethod
    def synthesize(self, plan: Plan, curator: Curator, rng: np.random.Generator) -> Drawn:
        """Ask the curator the steps of the plan, in order, and make synthetic sets of the answers.

        Parameters
        ----------
        plan : Plan
            What :meth:`plan` returned.
        curator : Curator
            Holds the table.
        rng : numpy.random.Generator
            For post-processing.
        """

    def check(self, plan: Plan, table: Table) -> None:  # noqa: B027 - most mechanisms take any table of the schema
        """Refuse a table that the mechanism can't work on, before anything is charged.

        Raises
        ------
        InputError
            If a public number, such as that of records under replace-one, is out of range.
        """

    def settled(self, schema: Schema) -> Self:
        """Return the same mechanism, in which settings that were left out and depend on the noise are filled in."""
        return self

    def shown(self) -> dict[str, Any]:
        """Return settings that are published otherwise than they were given."""
        return {}

    def without_schema(self, epsilon: Fraction, text: str) -> PrivacyLoss:
        """Return the price as it is known before there is a schema, with a paragraph for the disclosure board."""
        return PrivacyLoss(epsilon=epsilon, neighbours=self.neighbours, kind=self.loss_kind, statement=text)

    @final
    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price of a release. With a schema, the statement says what is asked of the table."""
        if schema is not None:
            return self.plan(schema).loss
        epsilon = exact(self.epsilon, "epsilon")
        text = paragraph(self.name, None, self.neighbours, self.n_sets, UNPLANNED, epsilon=epsilon, delta=Fraction(0))
        return self.without_schema(epsilon, text)

    @final
    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price for tables of this schema."""
        return self.plan(schema).spends

    @final
    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values, as they are published."""
        return {**asdict(self), "epsilon": as_float(exact(self.epsilon, "epsilon")), **self.shown()}

    @final
    def release(
        self,
        table: Table,
        *,
        rng: np.random.Generator | None = None,
        ledger: Ledger | str | Path | None = None,
        progress: Progress | None = None,
    ) -> tuple[Release, RunRecord]:
        """Spend the budget and draw a release.

        The spend is on record before the first random bit is drawn; if the draw fails it stays charged. Where the price
        was reserved before the table was read (``Ledger.reserve``), the charge takes the place of the reservation.

        Parameters
        ----------
        table : Table
            The confidential table.
        rng : numpy.random.Generator, optional
            For tests and studies; a release made with one is marked reproducible.
        ledger : Ledger or path, optional
            Charged before any noise is drawn.
        progress : callable, optional
            Told the name of each step.

        Returns
        -------
        Release, RunRecord
            What may be published, and what stays inside.

        Raises
        ------
        InputError
            If the settings don't fit the schema, or the ledger belongs to another table.
        RefusedError
            If the ledger's total would be overspent.
        """
        if not isinstance(table, Table):
            raise InputError(
                f"release takes a Table, got {type(table).__name__}: Table(frame, schema), or pdips.synthesize(...)"
            )
        if rng is not None and not isinstance(rng, np.random.Generator):
            raise InputError(f"rng must be a numpy.random.Generator, for tests only; got {type(rng).__name__}")
        ledger = Ledger(ledger) if isinstance(ledger, (str, Path)) else ledger
        plan, clock = self.plan(table.schema), Clock(progress)
        loss, spends = plan.loss, plan.spends
        check_representable(table.schema)
        if table.partitioned:
            self.check_adds_up()
        self.check(plan, table)
        if table.counts is not None and not self.weighs_records:
            raise InputError(f"{self.name} reads records one by one: read the table with counted=False")
        receipt = None
        if ledger is not None:
            with clock.step("charging the ledger"):
                charge = ledger.charge(
                    loss, spends, mechanism=self.name, schema=table.schema, fingerprint=table.fingerprint
                )
                receipt = ledger.receipt(charge)
        bits = RandomBits(rng)
        if bits.reproducible:
            loss = replace(loss, statement=f"{SEEDED} {loss.statement}")
        drawn, schema = self.synthesize(plan, Drawing(plan, table, bits, clock), bits.generator()), table.schema
        sets = schema.with_known_weights(drawn.sets)
        margins = drawn.margins if 0 < sum(len(each.noisy) for each in drawn.margins) <= MOST_NUMBERS else ()
        release = Release(
            mechanism=self.name,
            settings=self.settings(),
            schema=schema,
            loss=loss,
            spends=spends,
            sets=tuple(sets),
            large_sets=tuple(drawn.large_sets),
            statistics=drawn.statistics,
            noise=tuple(drawn.noise) or plan.noise,
            margin_errors=tuple(drawn.margin_errors),
            tables={"margins": stacked(margins), **drawn.tables} if margins else drawn.tables,
            margins=tuple(each.law for each in margins),
            totals=tuple(check_totals(schema, margins, sets)),
            reproducible=bits.reproducible,
            receipt=receipt,
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return release, RunRecord(
            seconds=clock.seconds, peak_memory=peak, diagnostics=drawn.diagnostics, closer=drawn.closer, release=release
        )

    @final
    def check_adds_up(self) -> None:
        """Refuse a table in many files where not all that is asked are sums over records."""
        if not self.adds_up:
            raise InputError(f"{self.name} takes no table in many files: join them, or use pairs or scores")

    @property
    def rounds(self) -> int:
        """How often all is asked anew: once, or once for each set."""
        return self.n_sets if getattr(self, "split", self.splits[0]) == "per-set" else 1

    @final
    def check_schema(self, schema: Schema) -> None:
        """Refuse a schema with households or public totals, if the mechanism can't keep to them."""
        if not self.takes_households and schema.members is not None:
            raise InputError(f"{self.name} takes no households: take pairs, or leave [members] out of the schema")
        if not self.meets_totals and schema.known_totals(weighted=False):
            raise InputError(
                f"{self.name} doesn't meet public totals: take pairs, or leave [[total]] out of the schema"
            )

    @final
    def planned(self, schema: Schema, steps: Sequence[Step], law: str, **more: Any) -> Plan:
        """Return the plan that asks these steps, with what the settings say; ``more`` are other fields of a plan."""
        self.check_schema(schema)
        known: dict[str, Any] = {"mechanism": self.name, "neighbours": self.neighbours, "n_sets": self.n_sets}
        return Plan(schema=schema, steps=tuple(steps), law=law, **known, **more)

    @final
    def per_round(self, rounds: int) -> Fraction:
        """Return the epsilon of each of so many rounds."""
        return exact(self.epsilon, "epsilon") / rounds


@dataclass(frozen=True, kw_only=True)
class LaplaceOrGaussian(Mechanism):
    """A mechanism that offers both laws of noise, with the losses that suit them.

    Parameters
    ----------
    kind : {"pure", "zcdp"}
        Discrete Laplace noise, whose losses add up in epsilon; or discrete Gaussian noise, read at ``delta``.
    delta : int, float, str or Fraction
        For ``kind="zcdp"``.
    """

    kind: Literal["pure", "zcdp"] = "pure"
    delta: Number = "1/1000000"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice(self.kind, ("pure", "zcdp"), "kind")
        proper_share(self.delta, "delta")
        self.total  # noqa: B018 - refuses an epsilon that is too small for its kind

    @property
    def total(self) -> Fraction:
        """The budget in the unit that steps are priced in: epsilon, or rho."""
        epsilon = exact(self.epsilon, "epsilon")
        return epsilon if self.kind == "pure" else largest_rho(epsilon, exact(self.delta, "delta"))

    @property
    def noise_law(self) -> Literal["laplace", "gaussian"]:
        """The law of the noise."""
        return "laplace" if self.kind == "pure" else "gaussian"

    @property
    def loss_kind(self) -> Kind:  # type: ignore[override]
        """What sort of guarantee there is as long as no schema is known: a zero-concentrated loss has no rho then."""
        return "pure" if self.kind == "pure" else "approximate"

    def without_schema(self, epsilon: Fraction, text: str) -> PrivacyLoss:
        """Return the price before there is a schema: zero-concentrated losses are read at delta."""
        if self.kind == "zcdp":
            return zcdp(self.total, self.delta, self.neighbours, text)
        return super().without_schema(epsilon, text)

    def shown(self) -> dict[str, Any]:
        """Return delta as a plain value: 0 where losses are pure."""
        return {"delta": 0.0 if self.kind == "pure" else as_float(exact(self.delta, "delta"))}

    @property
    def reading(self) -> dict[str, Any]:
        """What a plan of zero-concentrated losses says beside its steps; nothing of pure ones."""
        if self.kind == "pure":
            return {}
        return {"kind": "zcdp", "delta": exact(self.delta, "delta"), "claim": exact(self.epsilon, "epsilon")}
