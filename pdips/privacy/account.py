"""A ledger's account: units of privacy, charges, and what they come to.

An account is what the rows of a :class:`pdips.privacy.log.Log` add up to. This module
says what a row of each kind holds, and reads them.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, cast, get_args

from pdips.errors import InputError
from pdips.privacy.log import Event, Log
from pdips.privacy.loss import (
    MOST_TAU,
    Kind,
    Neighbours,
    Number,
    PrivacyLoss,
    Spend,
    choice,
    epsilon_of,
    exact,
    positive,
    to_replace_one,
)

if TYPE_CHECKING:
    from pdips.data.schema import Schema

# Of the delta of an account in rho, for the tau of a hundred million losses
KEPT = 10**8 * MOST_TAU

Outcome = Literal["charged", "refused", "withdrawn", "struck", "adopted"]
Role = Literal["version", "other-table"]
End = Literal["finished", "not converged"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a ledger is asked to hold: a price, and what it is for.

    Parameters
    ----------
    mechanism : str
        Its name.
    schema : Schema
        Of the table; it says for which unit of privacy the price holds.
    loss : PrivacyLoss, optional
        The price; None where a table is only read.
    spends : tuple of Spend
        The price itemised.
    plan : str
        Digest of all that will be asked, settings included.
    code : str
        Version of the code that asks.
    neighbours : {"replace-one", "add-remove"}, optional
        Of the account that is made where there is none yet; that of the loss, if there
        is one.
    """

    mechanism: str
    schema: "Schema"
    loss: PrivacyLoss | None = None
    spends: tuple[Spend, ...] = ()
    plan: str = ""
    code: str = ""
    neighbours: Neighbours | None = None


def request_to_read(schema: "Schema", neighbours: str) -> Request:
    """Return the request under which a table's public columns are read, before there is
    a price: what goes wrong with them is on record, too.
    """
    choice(neighbours, get_args(Neighbours), "neighbours")
    return Request(
        mechanism="reading of public columns",
        schema=schema,
        neighbours=cast(Neighbours, neighbours),
    )


class Priced(Protocol):
    """What has a price before a table is read."""

    def request(self, schema: "Schema") -> Request:
        """Return the price for tables of a schema, and what it is for."""
        ...


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Whose data a price protects: the unit of privacy, as the schema states it.

    The cap is checked on every table that is read where a column says whose record it
    is; else it is declared.
    """

    person: str | None = None  # column that says whose record it is
    cap: int = 1  # the most records of one person
    public: tuple[str, ...] = ()  # names of the columns that are not protected, sorted

    @classmethod
    def of(cls, schema: "Schema") -> Self:
        """Return the unit of releases with this schema."""
        records = schema.records
        members = schema.members
        if members is not None:
            return cls(person=members.key, cap=members.most)
        public = tuple(sorted(schema.public_columns))
        return cls(person=records.person, cap=records.max_per_person, public=public)

    def fits(self, account: Self) -> bool:
        """Whether a price for this unit counts as it is in an account for another one
        (``docs/proofs/ledger.md``).
        """
        same_cap = self.person is not None or self.cap == account.cap
        is_same = self.person == account.person and same_cap
        return is_same and {*self.public} <= {*account.public}

    def __str__(self) -> str:
        plural = "s" if self.cap > 1 else ""
        whose = f"up to {self.cap} record{plural} a person, declared"
        if self.person is not None:
            whose = f"all records with the same {self.person!r}"
        public = "no public columns"
        if self.public:
            public = f"public: {', '.join(self.public)}"
        return f"{whose}; {public}"


@dataclass(frozen=True, kw_only=True)
class AccountPrice:
    """A privacy loss as an account holds it: as the mechanism stated it, and what is
    charged for it.

    ``charged_epsilon`` and ``charged_delta`` differ from ``epsilon`` and ``delta`` only
    where an add-remove loss was converted for a replace-one account. ``charged_rho`` is
    what the loss adds to a sum of zero-concentrated losses there, None for an
    approximate one.
    """

    kind: Kind
    neighbours: Neighbours
    epsilon: Fraction
    delta: Fraction
    rho: Fraction
    charged_epsilon: Fraction
    charged_delta: Fraction
    charged_rho: Fraction | None

    @classmethod
    def of(cls, loss: PrivacyLoss, neighbours: Neighbours) -> Self:
        """Return the price of a loss in an account for some neighbours."""
        charged = to_replace_one(loss) if neighbours == "replace-one" else loss
        return cls(
            kind=loss.kind,
            neighbours=loss.neighbours,
            epsilon=loss.epsilon,
            delta=loss.delta,
            rho=loss.rho,
            charged_epsilon=charged.epsilon,
            charged_delta=charged.delta,
            charged_rho=charged.rho or None,  # an approximate loss has none
        )

    def content(self) -> dict[str, str | None]:
        """Return the price as a row holds it."""
        return {name: text(value) for name, value in asdict(self).items()}

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Self:
        """Return the price that a row holds."""
        names = ("epsilon", "delta", "rho", "charged_epsilon", "charged_delta")
        numbers = {name: Fraction(content[name]) for name in names}
        rho = content["charged_rho"]
        return cls(
            kind=content["kind"],
            neighbours=content["neighbours"],
            charged_rho=None if rho is None else Fraction(rho),
            **numbers,
        )


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What a release carries of its charge: random names of the account and of the
    charge, its running number, and what was charged.

    ``epsilon``, ``delta`` and ``rho`` are the mechanism's own, as exact fractions.
    """

    account: str
    number: int
    token: str
    kind: Kind
    neighbours: Neighbours
    epsilon: str
    delta: str
    rho: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One charge as recorded.

    Parameters
    ----------
    number : int
        Of the charge in the account, from 1.
    time : str
        UTC, in ISO 8601.
    mechanism : str
        Its name.
    price : AccountPrice
        The loss as the mechanism stated it, and what the account was charged for it.
    spends : tuple of Spend
        Its items.
    unit : Unit
        Whom the price protects.
    schema, plan, code : str
        Digests of the schema and of the plan, and the version of the code that ran.
    token : str
        Random name of the charge.
    end : {"finished", "not converged"}, optional
        How it ended; None while it can be resumed.
    origin : str
        The name of another account that it was adopted from; empty for its own.
    """

    number: int
    time: str
    mechanism: str
    price: AccountPrice
    spends: tuple[Spend, ...]
    unit: Unit
    schema: str
    plan: str
    code: str
    token: str
    end: End | None = None
    origin: str = ""

    def receipt(self, account: str) -> Receipt:
        """Return what the release carries."""
        price = self.price
        return Receipt(
            account=account,
            number=self.number,
            token=self.token,
            kind=price.kind,
            neighbours=price.neighbours,
            epsilon=str(price.epsilon),
            delta=str(price.delta),
            rho=str(price.rho),
        )


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A request to read a table, recorded before it was read.

    ``outcome`` is "charged" (as entry number ``entry``), "refused" (the records don't
    fit the request), "withdrawn" (stopped by something else before the charge),
    "struck" (by the curator), "adopted", or None: an open reservation, whose price
    counts against the total. ``price`` is None where a table is read to be adopted.
    ``explained`` says whether details of a refusal were asked for.
    """

    number: int
    time: str
    mechanism: str
    price: AccountPrice | None
    unit: Unit
    schema: str
    plan: str
    explained: bool
    outcome: Outcome | None = None
    entry: int | None = None


@dataclass(frozen=True, kw_only=True)
class Account:
    """Where a ledger stands, in the account's own relation of neighbours; totals are
    None until one is set.

    ``unit`` is whom the sums protect, None before the first charge. What is reserved
    isn't spent yet and can't be asked for again.

    With ``total_rho`` the account is kept in rho: that alone adds up, ``total_delta``
    is the delta at which it is read, and each epsilon is the reading of the rho beside
    it, so that what is spent and what remains don't add up to the total. Without,
    ``spent_rho`` is what such an account would hold; None if an approximate loss is
    among the charges.

    ``refusals`` counts requests that were refused for what records contain.
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
    refusals: int = 0

    @property
    def remaining_epsilon(self) -> Fraction | None:
        """What may still be asked for in epsilon; None without a total."""
        if self.remaining_rho is not None:
            return reading(self.remaining_rho, self.total_delta)
        if self.total_epsilon is None:
            return None
        return self.total_epsilon - self.spent_epsilon - self.reserved_epsilon

    @property
    def remaining_delta(self) -> Fraction | None:
        """What may still be asked for in delta; None without a total, and no limit
        where the account is in rho.
        """
        if self.total_rho is not None or self.total_delta is None:
            return self.total_delta
        return self.total_delta - self.spent_delta - self.reserved_delta

    @property
    def remaining_rho(self) -> Fraction | None:
        """What may still be asked for in rho; None unless the account is kept in it."""
        if self.total_rho is None:
            return None
        held = (self.spent_rho or 0) + (self.reserved_rho or 0)
        return self.total_rho - held


def reading(rho: Fraction, delta: Fraction | None) -> Fraction:
    """Return the epsilon of a sum of zero-concentrated losses at delta, less what is
    kept of it; 0 of an empty one.
    """
    return epsilon_of(rho, delta - KEPT) if rho and delta else Fraction(0)


def total_of(
    epsilon: Number | None, rho: Number | None, delta: Number | None
) -> tuple[Fraction, Fraction, Fraction | None]:
    """Return a total as it was asked for, of one in rho its reading too."""
    default = 0 if rho is None else "1e-6"
    of_delta = exact(default if delta is None else delta, "delta")
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


# ---- what rows hold ----


def begin(log: Log, neighbours: Neighbours, public_key: str) -> None:
    """Write the first row of an account: its neighbours, a salt and its public key."""
    salt = secrets.token_hex(16)
    log.append("account", neighbours=neighbours, salt=salt, key=public_key)


def account_row(log: Log) -> Mapping[str, Any]:
    return log.events[0].content


def salt_of(log: Log) -> bytes:
    return bytes.fromhex(account_row(log)["salt"])


def account_name(log: Log) -> str:
    """Return the account's public name: random, for it is derived from the salt, which
    it doesn't show.
    """
    return hashlib.blake2b(b"account", key=salt_of(log), digest_size=8).hexdigest()


def entries_of(log: Log) -> list[Entry]:
    """Return every charge, oldest first."""
    ends = _by(log, "end", "entry", "end")
    entries = []
    for number, event in enumerate(log.of_kind("charge"), start=1):
        content = event.content
        spends = (
            Spend(step=step, epsilon=Fraction(epsilon), composition=composition)
            for step, epsilon, composition in content["items"]
        )
        texts = {name: content[name] for name in _TEXTS}
        entry = Entry(
            number=number,
            time=event.time,
            price=AccountPrice.read(content["price"]),
            spends=tuple(spends),
            unit=unit_from(content["unit"]),
            end=ends.get(number),
            **texts,
        )
        entries.append(entry)
    return entries


def _by(log: Log, kind: str, key: str, name: str) -> dict[int, Any]:
    """Return, of all rows of a kind, what each says of the number that it names."""
    contents = [event.content for event in log.of_kind(kind)]
    return {content[key]: content[name] for content in contents}


_TEXTS = ("mechanism", "schema", "plan", "code", "token", "origin")


def entry_row(entry: Entry) -> dict[str, Any]:
    """Return what the row of a charge holds."""
    spends = entry.spends
    return {
        "price": entry.price.content(),
        "unit": asdict(entry.unit),
        "items": [(item.step, text(item.epsilon), item.composition) for item in spends],
        **{name: getattr(entry, name) for name in _TEXTS},
    }


def attempts_of(log: Log) -> list[Attempt]:
    """Return every request to read a table, oldest first."""
    charges = [event.content["attempt"] for event in log.of_kind("charge")]
    charged = {attempt: number for number, attempt in enumerate(charges, start=1)}
    outcomes = _by(log, "outcome", "attempt", "outcome")
    attempts = []
    for event in log.of_kind("attempt"):
        content = event.content
        number = event.number
        price = content["price"]
        as_written = ("mechanism", "schema", "plan", "explained")
        facts = {name: content[name] for name in as_written}
        unit = unit_from(content["unit"])
        outcome: Outcome | None = outcomes.get(number)
        if number in charged:
            outcome = "charged"
        attempt = Attempt(
            number=number,
            time=event.time,
            price=None if price is None else AccountPrice.read(price),
            unit=unit,
            outcome=outcome,
            entry=charged.get(number),
            **facts,
        )
        attempts.append(attempt)
    return attempts


def read_account(log: Log) -> Account:
    """Return where the account stands."""
    entries = entries_of(log)
    is_open = [attempt for attempt in attempts_of(log) if attempt.outcome is None]
    prices = [attempt.price for attempt in is_open if attempt.price is not None]
    spent_epsilon, spent_delta, spent_rho = _sums([entry.price for entry in entries])
    reserved_epsilon, reserved_delta, reserved_rho = _sums(prices)
    unit = entries[0].unit if entries else None
    account = Account(
        neighbours=account_row(log)["neighbours"],
        total_epsilon=None,
        total_delta=None,
        spent_epsilon=spent_epsilon,
        spent_delta=spent_delta,
        spent_rho=spent_rho,
        reserved_epsilon=reserved_epsilon,
        reserved_delta=reserved_delta,
        reserved_rho=reserved_rho,
        unit=unit,
        refusals=len(refusals_of(log)),
    )
    totals = log.of_kind("total")
    if not totals:
        return account
    total = totals[-1].content
    epsilon = Fraction(total["epsilon"])
    delta = Fraction(total["delta"])
    account = replace(account, total_epsilon=epsilon, total_delta=delta)
    if total["rho"] is None:
        return account
    nothing = Fraction(0)
    return replace(
        account,
        total_rho=Fraction(total["rho"]),
        spent_epsilon=reading(spent_rho or nothing, delta),
        spent_delta=nothing,
        reserved_epsilon=reading(reserved_rho or nothing, delta),
        reserved_delta=nothing,
    )


def next_entry(log: Log, request: Request, loss: PrivacyLoss, token: str) -> Entry:
    """Return the charge that comes next, which no row holds yet."""
    n_before = len(log.of_kind("charge"))
    price = AccountPrice.of(loss, account_row(log)["neighbours"])
    spends = tuple(request.spends)
    return Entry(
        number=n_before + 1,
        time="",
        mechanism=request.mechanism,
        price=price,
        spends=spends,
        unit=Unit.of(request.schema),
        schema=digest_of(request.schema),
        plan=request.plan,
        code=request.code,
        token=token,
    )


def open_numbers(log: Log) -> set[int]:
    """Return the numbers of the attempts that are still reservations."""
    attempts = attempts_of(log)
    return {attempt.number for attempt in attempts if attempt.outcome is None}


def known_tables(log: Log) -> list[str]:
    """Return the salted hashes of the tables that share the account."""
    return [event.content["hash"] for event in log.of_kind("table")]


def salted(log: Log, fingerprint: str) -> str:
    """Return the salted hash by which the account knows a table."""
    salt = salt_of(log)
    return hashlib.blake2b(fingerprint.encode(), salt=salt, digest_size=32).hexdigest()


def contradiction(receipt: Receipt, log: Log) -> str | None:
    """Return what is wrong if a release with this receipt isn't in the account, else
    None.
    """
    name = account_name(log)
    entries = entries_of(log)
    if receipt.account != name:
        adopted = [entry for entry in entries if entry.origin == receipt.account]
        if not adopted:
            return "it is charged to another account, and nothing here counts it"
        if any(entry.token == receipt.token for entry in adopted):
            return None
        return (
            "it was charged to another account after that one was adopted here: "
            "nothing here counts it"
        )
    if not 1 <= receipt.number <= len(entries):
        return (
            f"it is charge {receipt.number} of this account, which holds "
            f"{len(entries)}: an older copy of the ledger was put back, and it has "
            "forgotten spends"
        )
    recorded = entries[receipt.number - 1].receipt(name)
    if recorded.token != receipt.token:
        return (
            f"charge {receipt.number} of this account is another one: an older "
            "copy of the ledger was put back and charged since, and it has "
            "forgotten spends"
        )
    if recorded != receipt:
        return (
            f"the account holds another price for charge {receipt.number}: the "
            "release states what wasn't charged"
        )
    return None


def refusals_of(log: Log) -> list[Event]:
    """Return the rows that say that records didn't fit a request."""
    refused = [e for e in log.of_kind("outcome") if e.content["outcome"] == "refused"]
    return refused + log.of_kind("refused resumption")


def _sums(prices: Sequence[AccountPrice]) -> tuple[Fraction, Fraction, Fraction | None]:
    """Return what prices come to in epsilon, delta and rho; None in rho if one has
    none.
    """
    epsilon = sum((price.charged_epsilon for price in prices), Fraction(0))
    delta = sum((price.charged_delta for price in prices), Fraction(0))
    rho = Fraction(0)
    for price in prices:
        if price.charged_rho is None:
            return epsilon, delta, None
        rho += price.charged_rho
    return epsilon, delta, rho


def unit_from(content: Mapping[str, Any]) -> Unit:
    """Return the unit of privacy that a row holds."""
    return Unit(**{**content, "public": tuple(content["public"])})


def digest_of(schema: "Schema") -> str:
    """Return a digest of a schema, which is public."""
    content = json.dumps(schema.to_dict())
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def text(value: Any) -> Any:
    """Return the exact text that a row holds of a number, such as "1/3"."""
    if not isinstance(value, Fraction):
        return value
    try:
        return str(value)
    except ValueError:  # Python's limit on the digits of an integer
        raise InputError(
            "epsilon or delta has too many digits to be recorded exactly; round it up"
        ) from None
