"""The contract of a mechanism, and the steps that every release passes through."""

import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table, check_representable
from pdips.errors import InputError
from pdips.privacy.ledger import Ledger
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, Spend, choice, exact, positive, spell
from pdips.privacy.noise import RandomBits
from pdips.release.large_set import LargeSet
from pdips.release.release import Closer, MarginError, Noise, Release, RunRecord

Variant = Literal["sound", "published"]
Split = Literal["once", "per-set"]
Progress = Callable[[str], None]

LARGEST_EPSILON = 1_000_000
MOST_SETS = 10_000

SEEDED = (
    "MADE FROM A SEED, for tests and studies, not for publication: the assumption on random bits below fails, and "
    "against anybody who knows or can guess the seed there is no guarantee."
)


class Mechanism(Protocol):
    """A frozen set of public settings that can turn a table into a release.

    Attributes
    ----------
    name : str
        The mechanism's name on the command line.
    epsilon : Fraction
        Total over all synthetic sets, in nats, for one person.
    n_sets : int
        Number of synthetic sets.
    neighbours : {"replace-one", "add-remove"}
        Which tables are to look alike.
    relations, variants, splits : tuple of str
        What the mechanism offers: neighbours it has a proof for, accountings, and ways to pay for several sets.
    most_sets : int
        The largest number of sets of one release.
    """

    name: ClassVar[str]
    relations: ClassVar[tuple[Neighbours, ...]]
    variants: ClassVar[tuple[Variant, ...]]
    splits: ClassVar[tuple[Split, ...]]
    most_sets: ClassVar[int]

    @property
    def epsilon(self) -> Number: ...
    @property
    def n_sets(self) -> int: ...
    @property
    def neighbours(self) -> Neighbours: ...

    def privacy_loss(self, schema: Schema | None = None) -> PrivacyLoss:
        """Return the price, which no table can change; with a schema, the statement names what it takes as public."""
        ...

    def spends(self, schema: Schema) -> tuple[Spend, ...]:
        """Return the items of the price for tables of this schema."""
        ...

    def release(
        self,
        table: Table,
        *,
        rng: np.random.Generator | None = None,
        ledger: Ledger | None = None,
        progress: Progress | None = None,
    ) -> tuple[Release, RunRecord]:
        """Spend the budget and draw a release."""
        ...


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

    @classmethod
    def of(cls, sets: Sequence[pd.DataFrame | LargeSet], **rest: Any) -> Self:
        """Sort synthetic sets into those that are held and those that are written in chunks."""
        held = [made for made in sets if isinstance(made, pd.DataFrame)]
        return cls(sets=held, large_sets=[made for made in sets if isinstance(made, LargeSet)], **rest)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One outcome of a mechanism's exact law: discrete choices with their probability, and statistics to be noised.

    Parameters
    ----------
    key : tuple of int
        What was chosen; outcomes of two tables with the same key are the same outcome.
    log_probability : float
        Natural logarithm of its probability.
    statistics : tuple of int
        True statistics given the choices.
    scales : tuple of Fraction
        Scale of the independent discrete Laplace noise on each; 0 for statistics released as they are.
    """

    key: tuple[int, ...]
    log_probability: float
    statistics: tuple[int, ...] = ()
    scales: tuple[Fraction, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Law:
    """The exact law of a mechanism on a tiny table: the outcomes of one of ``repeats`` independent equal parts."""

    outcomes: Sequence[Outcome]
    repeats: int = 1


class Auditable(Mechanism, Protocol):
    """A mechanism that shows auditors its raw output, since post-processing can hide a loss."""

    def observe(self, table: Table, n_runs: int, bits: RandomBits) -> IntArray | FloatArray:
        """Return the raw output of independent releases, one a row."""
        ...


class Clock:
    """Wall time by step, told to whoever watches."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step."""
        if self._progress is not None:
            self._progress(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def check_settings(mechanism: Mechanism, *, variant: str = "sound", split: str = "once") -> Fraction:
    """Check the settings that all mechanisms share and return epsilon as a rational.

    Raises
    ------
    InputError
        If epsilon is not finite and above 0, ``n_sets`` is below 1 or beyond what the mechanism makes, or a word is
        none of the choices that it offers.
    """
    epsilon = positive(mechanism.epsilon, "epsilon")
    if epsilon > LARGEST_EPSILON:
        raise InputError(f"epsilon must be at most {LARGEST_EPSILON:,}, which protects nobody; got {mechanism.epsilon}")
    if isinstance(mechanism.n_sets, bool) or not isinstance(mechanism.n_sets, int) or mechanism.n_sets < 1:
        raise InputError(f"n_sets must be a whole number of at least 1, got {mechanism.n_sets}")
    if mechanism.n_sets > mechanism.most_sets:
        raise InputError(f"n_sets must be at most {mechanism.most_sets:,}, got {mechanism.n_sets:,}")
    choice(mechanism.neighbours, mechanism.relations, "neighbours")
    choice(variant, mechanism.variants, "variant")
    choice(split, mechanism.splits, "split")
    if variant == "published" and mechanism.neighbours != "replace-one":
        raise InputError("variant 'published' follows the papers, where the number of records is public: replace-one")
    return epsilon


def takes_counts(mechanism: Mechanism) -> bool:
    """Whether a mechanism works on distinct records and their counts: it says so by ``weighs_records = True``."""
    return bool(getattr(mechanism, "weighs_records", False))


def run(
    mechanism: Mechanism,
    table: Table,
    draw: Callable[[RandomBits, Clock], Drawn],
    *,
    settings: Mapping[str, Any],
    rng: np.random.Generator | None,
    ledger: Ledger | None,
    progress: Progress | None,
) -> tuple[Release, RunRecord]:
    """Charge the ledger, then let the mechanism draw, then pack what goes out and what stays.

    The spend is on record before the first random bit is drawn; if the draw fails it stays charged. Where the price was
    reserved before the table was read (``Ledger.reserve``), the charge takes the place of the reservation.
    """
    loss, spends, clock = mechanism.privacy_loss(table.schema), mechanism.spends(table.schema), Clock(progress)
    check_representable(table.schema)
    if table.counts is not None and not takes_counts(mechanism):
        raise InputError(f"{mechanism.name} reads records one by one: read the table with counted=False")
    receipt = None
    if ledger is not None:
        with clock.step("charging the ledger"):
            receipt = ledger.receipt(
                ledger.charge(
                    loss, spends, mechanism=mechanism.name, schema=table.schema, fingerprint=table.fingerprint
                )
            )
    bits = RandomBits(rng)
    if bits.reproducible:
        loss = replace(loss, statement=f"{SEEDED} {loss.statement}")
    drawn = draw(bits, clock)
    release = Release(
        mechanism=mechanism.name,
        settings=settings,
        schema=table.schema,
        loss=loss,
        spends=spends,
        sets=tuple(drawn.sets),
        large_sets=tuple(drawn.large_sets),
        statistics=drawn.statistics,
        noise=tuple(drawn.noise),
        margin_errors=tuple(drawn.margin_errors),
        tables=drawn.tables,
        reproducible=bits.reproducible,
        receipt=receipt,
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return release, RunRecord(
        seconds=clock.seconds, peak_memory=peak, diagnostics=drawn.diagnostics, closer=drawn.closer
    )


def statement(mechanism: Mechanism, schema: Schema | None, law: str, *, delta: Fraction = Fraction(0)) -> str:
    """Return the paragraph for a disclosure board: the law, whom it protects, and on which assumptions.

    Parameters
    ----------
    mechanism : Mechanism
        Whose price it is.
    schema : Schema, optional
        Names the cap on a person's records and the public columns.
    law : str
        What the mechanism does and which noise it adds; one or more sentences.
    delta : Fraction
        Probability of exceeding epsilon; 0 for a pure loss.
    """
    records, public = (schema.records, schema.public_columns) if schema is not None else (None, ())
    most = records.max_per_person if records is not None else 1
    cap, upto = (f"{most} records", "up to ") if most > 1 else ("one record", "")
    factor = "the probability of any output by a factor of at most e^epsilon"
    if delta:
        factor = (
            "the probability of any set of outputs by a factor of at most e^epsilon and, beyond that, by at most "
            f"delta = {spell(delta)}"
        )
    whom = {
        "replace-one": f"replacing all that one person ({upto}{cap}) contributed by any other values that the schema "
        f"allows changes {factor}; the number of records is public",
        "add-remove": f"adding or removing all that one person ({upto}{cap}) contributed changes {factor}, "
        "for all tables of at least one record; the number of records is "
        "protected too",
    }[mechanism.neighbours]
    epsilon, plural = spell(exact(mechanism.epsilon, "epsilon")), "s" if mechanism.n_sets > 1 else ""
    parts = [
        f"{mechanism.name} with epsilon = {epsilon} in total over {mechanism.n_sets} synthetic set{plural}: {whom}.",
        law,
        "Assumptions: the schema (levels, bounds, bins, impossible combinations) was fixed from public knowledge; "
        "whether and what to publish was not decided by looking at the confidential table or at unpaid diagnostics; "
        "the random bits of the operating system are unpredictable and were not kept.",
    ]
    if records and records.person is None:
        parts.append(f"That no person has more than {cap} is declared, not checked.")
    elif records:
        parts.append(f"Records without a value in {records.person!r} are taken to be of a different person each.")
    if public:
        parts.append(
            f"Public columns, their values copied (not their order) and not protected in any way: {', '.join(public)}. "
            "Neighbouring tables share them; only the other columns of a person change."
        )
    return " ".join(parts)
