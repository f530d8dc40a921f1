"""The SQLite file of a ledger: its tables, and how rows are appended and read within a transaction."""

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pdips.errors import InputError
from pdips.privacy.account import Account, Attempt, Entry, Unit, reading
from pdips.privacy.loss import Neighbours, Spend, rho_of

if TYPE_CHECKING:
    from pdips.data.schema import Schema

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


def append_rho(connection: sqlite3.Connection, total: int, rho: Fraction) -> None:
    """Append what a total is in rho, which makes the file one of format 3."""
    if one_value(connection, "PRAGMA user_version") != FORMAT:
        create_tables(connection, RHO_TOTALS, FORMAT)
    append(connection, "rho_totals", total, text(rho))


def one_value(connection: sqlite3.Connection, query: str) -> Any:
    """Return the single value that ``query`` gives."""
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
    """Return the unit of privacy in a row."""
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


def attempt_of(row: sqlite3.Row) -> Attempt:
    """Return the attempt in a row that has its outcome too."""
    return Attempt(
        **{name: row[name] for name in ("number", "time", "mechanism", "schema", "outcome", "entry")},
        charged_epsilon=Fraction(row["charged_epsilon"]),
        charged_delta=Fraction(row["charged_delta"]),
        unit=unit_of(row),
        explained=bool(row["explained"]),
    )


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
