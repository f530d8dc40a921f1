"""What a ledger's account holds: units of privacy, charges, attempts, receipts, and where the sums stand."""

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, Protocol, Self

from pdips.errors import InputError
from pdips.privacy.loss import MOST_TAU, Kind, Neighbours, Number, PrivacyLoss, Spend, epsilon_of, exact, positive

if TYPE_CHECKING:
    from pdips.data.schema import Schema

KEPT = 10**8 * MOST_TAU
"""Of the delta of an account in rho, for the tau of a hundred million losses."""

Outcome = Literal["charged", "refused", "withdrawn", "struck", "adopted"]
Role = Literal["version", "other-table"]


class Priced(Protocol):
    """What has a price before a table is read: a mechanism, or a paid evaluation."""

    @property
    def name(self) -> str: ...
    def privacy_loss(self, schema: "Schema") -> PrivacyLoss:
        """Return the price."""
        ...

    def spends(self, schema: "Schema") -> tuple[Spend, ...]:
        """Return its items."""
        ...


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Whose data a price protects: the unit of privacy, as the schema states it.

    The cap is checked on every table that is read where a column says whose record it is; else it is declared.
    """

    person: str | None = None  # column that says whose record it is
    cap: int = 1  # the most records of one person
    public: tuple[str, ...] = ()  # names of the columns that are not protected, sorted

    @classmethod
    def of(cls, schema: "Schema") -> Self:
        """Return the unit of releases with this schema."""
        records = schema.records
        return cls(person=records.person, cap=records.max_per_person, public=tuple(sorted(schema.public_columns)))

    def fits(self, account: Self) -> bool:
        """Whether a price for this unit counts as it is in an account for another one (``docs/proofs/ledger.md``)."""
        same_cap = self.person is not None or self.cap == account.cap
        return self.person == account.person and same_cap and set(self.public) <= set(account.public)

    def __str__(self) -> str:
        whose = f"up to {self.cap} record{'s' if self.cap > 1 else ''} a person, declared"
        if self.person is not None:
            whose = f"all records with the same {self.person!r}"
        return f"{whose}; {'public: ' + ', '.join(self.public) if self.public else 'no public columns'}"


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What a release carries of its charge: random names of the account and of the charge, and its running number."""

    account: str
    number: int
    token: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One charge as recorded: the loss as the mechanism stated it, and what the account was charged for it.

    ``charged_epsilon`` and ``charged_delta`` differ from ``epsilon`` and ``delta`` only where an add-remove loss was
    converted for a replace-one account; ``charged_rho`` is what it adds to a sum of zero-concentrated losses there,
    None for an approximate one. ``time`` is UTC, in ISO 8601; ``spends`` are as given. ``unit`` and ``schema``, the
    digest of the schema, are None in entries of version 0.1, which didn't record them.
    """

    number: int
    time: str
    mechanism: str
    kind: Kind
    neighbours: Neighbours
    epsilon: Fraction
    delta: Fraction
    rho: Fraction
    charged_epsilon: Fraction
    charged_delta: Fraction
    charged_rho: Fraction | None
    spends: tuple[Spend, ...]
    unit: Unit | None = None
    schema: str | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A request to read a table, recorded before it was read.

    ``outcome`` is "charged" (as entry number ``entry``), "refused" (the records don't fit the request), "withdrawn"
    (stopped by something else before the charge), "struck" (by the curator), "adopted", or None: an open reservation,
    whose price counts against the total. ``explained`` says whether details of a refusal were asked for.
    """

    number: int
    time: str
    mechanism: str
    charged_epsilon: Fraction
    charged_delta: Fraction
    unit: Unit
    schema: str
    explained: bool
    outcome: Outcome | None
    entry: int | None


@dataclass(frozen=True, kw_only=True)
class Account:
    """Where a ledger stands, in the account's own relation of neighbours; totals are None until one is set.

    ``unit`` is whom the sums protect, None before the first charge or while it is unknown; ``unit_declared`` says that
    the curator declared it for entries of version 0.1. What is reserved isn't spent yet and can't be asked for again.

    With ``total_rho`` the account is kept in rho: that alone adds up, ``total_delta`` is the delta at which it is read,
    and each epsilon is the reading of the rho beside it, so that what is spent and what remains don't add up to the
    total. Without, ``spent_rho`` is what such an account would hold; None if an approximate loss is among the charges.
    """

    neighbours: Neighbours
    total_epsilon: Fraction | None
    total_delta: Fraction | None
    spent_epsilon: Fraction
    spent_delta: Fraction
    reserved_epsilon: Fraction = Fraction(0)
    reserved_delta: Fraction = Fraction(0)
    total_rho: Fraction | None = None
    spent_rho: Fraction | None = Fraction(0)
    reserved_rho: Fraction | None = Fraction(0)
    unit: Unit | None = None
    unit_declared: bool = False

    @property
    def remaining_epsilon(self) -> Fraction | None:
        """What may still be asked for in epsilon; None without a total."""
        if self.remaining_rho is not None:
            return reading(self.remaining_rho, self.total_delta)
        return None if self.total_epsilon is None else self.total_epsilon - self.spent_epsilon - self.reserved_epsilon

    @property
    def remaining_delta(self) -> Fraction | None:
        """What may still be asked for in delta; None without a total, and no limit where the account is in rho."""
        if self.total_rho is not None:
            return self.total_delta
        return None if self.total_delta is None else self.total_delta - self.spent_delta - self.reserved_delta

    @property
    def remaining_rho(self) -> Fraction | None:
        """What may still be asked for in rho; None unless the account is kept in it."""
        if self.total_rho is None:
            return None
        return self.total_rho - (self.spent_rho or 0) - (self.reserved_rho or 0)


def reading(rho: Fraction, delta: Fraction | None) -> Fraction:
    """Return the epsilon of a sum of zero-concentrated losses at delta, less what is kept of it; 0 of an empty one."""
    return epsilon_of(rho, delta - KEPT) if rho and delta else Fraction(0)


def total_of(
    epsilon: Number | None, rho: Number | None, delta: Number | None
) -> tuple[Fraction, Fraction, Fraction | None]:
    """Return a total as it was asked for, of one in rho its reading too."""
    of_delta = exact(delta if delta is not None else 0 if rho is None else "1e-6", "delta")
    if not 0 <= of_delta < 1:
        raise InputError(f"delta must be at least 0 and below 1, got {delta}")
    if epsilon is not None and rho is None:
        return positive(epsilon, "epsilon"), of_delta, None
    if rho is None or epsilon is not None:
        raise InputError("a total is either in epsilon or in rho: give one of them")
    of_rho = positive(rho, "rho")
    if of_delta <= KEPT:
        raise InputError("delta, at which a total in rho is read, must be above 10^-12")
    return reading(of_rho, of_delta), of_delta, of_rho
