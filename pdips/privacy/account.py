"""A ledger's account: units of privacy, charges and sums, and the SQLite file that holds them, row by row."""

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from pdips.errors import InputError
from pdips.privacy.loss import (
    MOST_TAU,
    Kind,
    Neighbours,
    Number,
    PrivacyLoss,
    Spend,
    epsilon_of,
    exact,
    positive,
    rho_of,
)

if TYPE_CHECKING:
    from pdips.data.schema import Schema

KEPT = 10**8 * MOST_TAU  # Of the delta of an account in rho, for the tau of a hundred million losses

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
        records, members = schema.records, schema.members
        if members is not None:
            return cls(person=members.key, cap=members.most)
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


APPLICATION_ID = 0x70646970  # "pdip" in SQLite's file header
IN_EPSILON, FORMAT = 2, 3

TABLES = {
    "account": "time TEXT NOT NULL, neighbours TEXT NOT NULL, salt BLOB NOT NULL",
    "fingerprints": "time TEXT NOT NULL, hash BLOB NOT NULL UNIQUE",
    "totals": "time TEXT NOT NULL, epsilon TEXT NOT NULL, delta TEXT NOT NULL",
    "entries": "time TEXT NOT NULL, mechanism TEXT NOT NULL, kind TEXT NOT NULL, neighbours TEXT NOT NULL, "
    "epsilon TEXT NOT NULL, delta TEXT NOT NULL, rho TEXT NOT NULL, "
    "charged_epsilon TEXT NOT NULL, charged_delta TEXT NOT NULL",
    "items": "entry INTEGER NOT NULL, step TEXT NOT NULL, epsilon TEXT NOT NULL, composition TEXT NOT NULL",
}
_UNITS = ("epsilon", "delta", "rho")
_UNIT = "person TEXT, cap INTEGER NOT NULL, public TEXT NOT NULL"
# Format 2 added these. An attempt without an outcome is an open reservation; an entry without a receipt is of format 1.
ADDED = {
    "units": f"time TEXT NOT NULL, {_UNIT}, declared INTEGER NOT NULL",
    "attempts": "time TEXT NOT NULL, mechanism TEXT NOT NULL, kind TEXT NOT NULL, neighbours TEXT NOT NULL, "
    "epsilon TEXT NOT NULL, delta TEXT NOT NULL, rho TEXT NOT NULL, "
    f"charged_epsilon TEXT NOT NULL, charged_delta TEXT NOT NULL, {_UNIT}, schema TEXT NOT NULL, "
    "explained INTEGER NOT NULL",
    "outcomes": "time TEXT NOT NULL, attempt INTEGER NOT NULL, outcome TEXT NOT NULL, entry INTEGER",
    "receipts": "entry INTEGER NOT NULL, token TEXT NOT NULL",
    "roles": "fingerprint INTEGER NOT NULL, role TEXT NOT NULL",
}
# A first total in rho makes a file one of format 3, by adding this; the row of ``totals`` has its reading. What each
# loss adds in rho follows from its row, in every format. Older versions refuse format 3.
RHO_TOTALS = {"rho_totals": "total INTEGER NOT NULL, rho TEXT NOT NULL"}
# The rule on inserts is there because INSERT OR REPLACE deletes a row without waking the trigger on DELETE.
_NEXT = "(SELECT 1 + coalesce(max(number), 0) FROM {0})"
_TRIGGERS = ("UPDATE ON {0}", "DELETE ON {0}", "INSERT ON {0} WHEN NEW.number IS NOT " + _NEXT)

COPIED = ("mechanism", "kind", "neighbours", "epsilon", "delta", "rho", "charged_epsilon", "charged_delta")
"""The columns that an entry takes over from its attempt."""


def create(connection: sqlite3.Connection, neighbours: Neighbours) -> None:
    """Make an empty file a ledger."""
    create_tables(connection, TABLES | ADDED, IN_EPSILON)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    append(connection, "account", now(), neighbours, secrets.token_bytes(16))


def create_tables(connection: sqlite3.Connection, tables: Mapping[str, str], version: int) -> None:
    """Create tables whose rows are only appended, and mark the file as one of a format."""
    for table, columns in tables.items():
        connection.execute(f"CREATE TABLE {table} (number INTEGER PRIMARY KEY, {columns})")
        for when in _TRIGGERS:
            name = f"{table}_{when.split()[0].lower()}"
            refusal = f"BEGIN SELECT RAISE(ABORT, '{table}: rows are only appended'); END"
            connection.execute(f"CREATE TRIGGER {name} BEFORE {when.format(table)} {refusal}")
    connection.execute(f"PRAGMA user_version = {version}")


def append(connection: sqlite3.Connection, table: str, *values: object) -> int:
    """Append a row and return its number."""
    number = int(one_value(connection, "SELECT " + _NEXT.format(table)))
    marks = ", ".join("?" * (1 + len(values)))
    connection.execute(f"INSERT INTO {table} VALUES ({marks})", (number, *values))
    return number


def one_value(connection: sqlite3.Connection, query: str) -> Any:
    return connection.execute(query).fetchall()[0][0]  # a query not read to its end would keep its lock


def open_attempts(connection: sqlite3.Connection) -> list[sqlite3.Row]:
    """Return the attempts that are still reservations."""
    query = "SELECT * FROM attempts WHERE number NOT IN (SELECT attempt FROM outcomes)"
    return connection.execute(query).fetchall()


def read_account(connection: sqlite3.Connection) -> Account:
    """Return where the account stands."""
    spent, reserved = connection.execute("SELECT * FROM entries").fetchall(), open_attempts(connection)
    total = connection.execute("SELECT * FROM totals ORDER BY number DESC LIMIT 1").fetchall()
    units = connection.execute("SELECT * FROM units").fetchall()
    neighbours: Neighbours = one_value(connection, "SELECT neighbours FROM account")
    sums = {"spent": _sums(spent, neighbours), "reserved": _sums(reserved, neighbours)}
    delta, rho = Fraction(total[0]["delta"]) if total else None, None
    if total and one_value(connection, "PRAGMA user_version") == FORMAT:
        last = connection.execute("SELECT rho FROM rho_totals WHERE total = ?", (total[0]["number"],)).fetchall()
        rho = Fraction(last[0]["rho"])
        sums = {name: (reading(each or Fraction(0), delta), Fraction(0), each) for name, (*_, each) in sums.items()}
    amounts: dict[str, Any] = {
        f"{name}_{unit}": amount for name, each in sums.items() for unit, amount in zip(_UNITS, each, strict=True)
    }
    return Account(
        neighbours=neighbours,
        total_epsilon=Fraction(total[0]["epsilon"]) if total else None,
        total_delta=delta,
        total_rho=rho,
        unit=unit_of(units[0]) if units else None,
        unit_declared=bool(units and units[0]["declared"]),
        **amounts,
    )


def _sums(rows: Sequence[sqlite3.Row], neighbours: Neighbours) -> tuple[Fraction, Fraction, Fraction | None]:
    """Return what charges or reservations come to in epsilon, delta and rho; None in rho if one has none."""
    epsilon = sum((Fraction(row["charged_epsilon"]) for row in rows), Fraction(0))
    delta = sum((Fraction(row["charged_delta"]) for row in rows), Fraction(0))
    rhos = [charged_rho(row, neighbours) for row in rows]
    return epsilon, delta, None if None in rhos else sum((rho for rho in rhos if rho), Fraction(0))


def charged_rho(row: sqlite3.Row, neighbours: Neighbours) -> Fraction | None:
    """Return what a charge or reservation adds in rho, four times as much where it was converted to replace-one."""
    if row["kind"] == "none":  # a table read to be adopted
        return Fraction(0)
    rho = rho_of(row["kind"], Fraction(row["epsilon"]), Fraction(row["rho"]))
    return None if rho is None else rho * (1 if row["neighbours"] == neighbours else 4)


def read_unit(connection: sqlite3.Connection) -> Unit | None:
    """Return the account's unit of privacy, if it has one."""
    rows = connection.execute("SELECT * FROM units").fetchall()
    return unit_of(rows[0]) if rows else None


def unit_of(row: sqlite3.Row) -> Unit:
    return Unit(person=row["person"], cap=row["cap"], public=tuple(json.loads(row["public"])))


def columns_of(unit: Unit) -> tuple[object, ...]:
    """Return a unit of privacy as a row holds it."""
    return unit.person, unit.cap, json.dumps(unit.public)


def digest_of(schema: "Schema") -> str:
    """Return a digest of a schema, which is public."""
    return hashlib.sha256(json.dumps(schema.to_dict()).encode()).hexdigest()[:16]


def account_name(connection: sqlite3.Connection) -> str:
    """Return the account's public name: random, for it is derived from the salt, which it doesn't show."""
    salt = one_value(connection, "SELECT salt FROM account")
    return hashlib.blake2b(b"account", key=salt, digest_size=8).hexdigest()


def entry_of(row: sqlite3.Row, spends: Sequence[Spend], neighbours: Neighbours, told: Mapping[str, Any]) -> Entry:
    """Return the charge in a row, with its items and what its attempt says of it."""
    fields: dict[str, Any] = {name: row[name] for name in row.keys()}  # noqa: SIM118 (a Row iterates over its values)
    for name in ("epsilon", "delta", "rho", "charged_epsilon", "charged_delta"):
        fields[name] = Fraction(fields[name])
    return Entry(**fields, charged_rho=charged_rho(row, neighbours), spends=tuple(spends), **told)


def now() -> str:
    """Return the time in UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def text(value: Fraction) -> str:
    """Return the exact text that the file holds, such as "1/3"."""
    try:
        return str(value)
    except ValueError:  # Python's limit on the digits of an integer
        raise InputError("epsilon or delta has too many digits to be recorded exactly; round it up") from None
