"""The account of every privacy spend on one confidential table: a SQLite file that lives with that table.

A release is charged before its noise is drawn, so a crash can lose a release but never forget a spend.
"""

import hashlib
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, final, get_args

from pdips.errors import InputError, RefusedError
from pdips.privacy import Kind, Neighbours, Number, PrivacyLoss, Spend, choice, exact, positive, to_replace_one

APPLICATION_ID = 0x70646970  # "pdip" in SQLite's file header
FORMAT = 1

_TABLES = {
    "account": "time TEXT NOT NULL, neighbours TEXT NOT NULL, salt BLOB NOT NULL",
    "fingerprints": "time TEXT NOT NULL, hash BLOB NOT NULL UNIQUE",
    "totals": "time TEXT NOT NULL, epsilon TEXT NOT NULL, delta TEXT NOT NULL",
    "entries": "time TEXT NOT NULL, mechanism TEXT NOT NULL, kind TEXT NOT NULL, neighbours TEXT NOT NULL, "
    "epsilon TEXT NOT NULL, delta TEXT NOT NULL, rho TEXT NOT NULL, "
    "charged_epsilon TEXT NOT NULL, charged_delta TEXT NOT NULL",
    "items": "entry INTEGER NOT NULL, step TEXT NOT NULL, epsilon TEXT NOT NULL, composition TEXT NOT NULL",
}
# The rule on inserts is there because INSERT OR REPLACE deletes a row without waking the trigger on DELETE.
_NEXT = "(SELECT 1 + coalesce(max(number), 0) FROM {0})"
_TRIGGERS = ("UPDATE ON {0}", "DELETE ON {0}", "INSERT ON {0} WHEN NEW.number IS NOT " + _NEXT)

_LOCKED = "is locked by another process; try again when it has finished"
_FOREIGN = "isn't a pdips ledger; name another file"
# By the low byte of SQLite's error code, which is the kind of error.
_REASONS = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_NOTADB: _FOREIGN,
    sqlite3.SQLITE_CANTOPEN: "can't be opened; check that its directory exists and that you may write there",
    sqlite3.SQLITE_READONLY: "can't be written; check that you may write to it and to its directory",
    sqlite3.SQLITE_FULL: "can't grow; the disk is full",
    sqlite3.SQLITE_CORRUPT: "is damaged; it must be restored with every spend since the copy added again",
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One charge as recorded: the loss as the mechanism stated it, and what the account was charged for it.

    ``charged_epsilon`` and ``charged_delta`` differ from ``epsilon`` and ``delta`` only where an add-remove loss was
    converted for a replace-one account. ``time`` is UTC, in ISO 8601; ``spends`` are as given.
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
    spends: tuple[Spend, ...]


@dataclass(frozen=True, kw_only=True)
class Account:
    """Where a ledger stands, in the account's own relation of neighbours; totals are None until one is set."""

    neighbours: Neighbours
    total_epsilon: Fraction | None
    total_delta: Fraction | None
    spent_epsilon: Fraction
    spent_delta: Fraction

    @property
    def remaining_epsilon(self) -> Fraction | None:
        """What may still be spent in epsilon; None without a total."""
        return None if self.total_epsilon is None else self.total_epsilon - self.spent_epsilon

    @property
    def remaining_delta(self) -> Fraction | None:
        """What may still be spent in delta; None without a total."""
        return None if self.total_delta is None else self.total_delta - self.spent_delta


@final
class Ledger:
    """Append-only account of every privacy spend on one confidential table.

    Parameters
    ----------
    path : str or Path
        The SQLite file; created by the first ``set_total`` or ``charge``.
    timeout : float
        Seconds to wait for another process that is writing.

    Notes
    -----
    Losses add up in (epsilon, delta), by sequential composition. A ``zcdp`` loss is charged by its (epsilon, delta)
    reading: that's more than adding up ``rho`` would charge, never less. Numbers are kept as exact rationals.

    The account has one relation of neighbours, fixed by the first ``set_total`` or ``charge``. Nothing in the file is
    ever changed or deleted; a new total is a new row. Whoever may write the file can still replace it: restoring an old
    copy forgets spends, and so does moving the file without the ``-journal`` beside it that a crash may leave. The
    file needs a file system whose locks work, which many network drives' do not.
    """

    def __init__(self, path: str | Path, *, timeout: float = 10.0) -> None:
        self.path = Path(path)
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    def set_total(self, epsilon: Number, *, delta: Number = 0, neighbours: Neighbours = "replace-one") -> None:
        """Set what the table may spend in all; the latest total counts, and can't be below what is already spent.

        Raises
        ------
        InputError
            If the account is kept for other neighbours, or the file can't be used.
        RefusedError
            If more than this is already spent.
        """
        total_epsilon, total_delta = positive(epsilon, "epsilon"), exact(delta, "delta")
        if not 0 <= total_delta < 1:
            raise InputError(f"delta must be at least 0 and below 1, got {delta}")
        row = (_now(), _text(total_epsilon), _text(total_delta))
        with self._transaction(create_for=choice(neighbours, get_args(Neighbours), "neighbours")) as connection:
            account = _account(connection)
            if account.neighbours != neighbours:
                raise InputError(
                    f"ledger {self.path} is kept for {account.neighbours} neighbours, fixed by its first entry; "
                    f"a total for {neighbours} needs another ledger"
                )
            if total_epsilon < account.spent_epsilon or total_delta < account.spent_delta:
                raise RefusedError(
                    f"ledger {self.path} has already spent {_pair(account.spent_epsilon, account.spent_delta)}; "
                    f"the total can't be {_pair(total_epsilon, total_delta)}"
                )
            _append(connection, "totals", *row)

    def charge(self, loss: PrivacyLoss, spends: Sequence[Spend], *, mechanism: str, fingerprint: str) -> int:
        """Record a spend, durably, before its noise is drawn; or refuse it and record nothing.

        Parameters
        ----------
        loss : PrivacyLoss
            The price. An add-remove loss on a replace-one account is charged as ``to_replace_one`` converts it.
        spends : sequence of Spend
            The price itemised; for a pure loss the items add up to ``loss.epsilon`` exactly.
        mechanism : str
            Name of the mechanism.
        fingerprint : str
            Text that identifies the table; only a salted hash of it is kept. The first charge binds the ledger to it.

        Returns
        -------
        int
            The entry's number; once it is returned, the spend is on disk.

        Raises
        ------
        InputError
            If the loss bounds nothing or doesn't fit the account, the items don't add up, the ledger belongs to another
            table, or the file can't be used.
        RefusedError
            If the charge would exceed the table's total.
        """
        _validate_price(loss, spends)
        with self._transaction(create_for=loss.neighbours) as connection:
            self._recognise(connection, fingerprint)
            account = _account(connection)
            charged = self._convert(loss, account.neighbours)
            self._refuse_overspending(account, charged)
            numbers = (loss.epsilon, loss.delta, loss.rho, charged.epsilon, charged.delta)
            row = (_now(), mechanism, loss.kind, loss.neighbours, *map(_text, numbers))
            number = _append(connection, "entries", *row)
            for spend in spends:
                _append(connection, "items", number, spend.step, _text(spend.epsilon), spend.composition)
        return number

    def adopt(self, fingerprint: str) -> None:
        """Let a corrected version of the same table share this account."""
        with self._transaction() as connection:
            self._recognise(connection, fingerprint, adopt=True)

    def entries(self) -> list[Entry]:
        """Return every charge, oldest first."""
        with self._transaction("BEGIN") as connection:
            rows = connection.execute("SELECT * FROM entries ORDER BY number").fetchall()
            items = connection.execute("SELECT * FROM items ORDER BY number").fetchall()
        spends: dict[int, list[Spend]] = {row["number"]: [] for row in rows}
        for item in items:
            spend = Spend(step=item["step"], epsilon=Fraction(item["epsilon"]), composition=item["composition"])
            spends[item["entry"]].append(spend)
        return [_entry(row, spends[row["number"]]) for row in rows]

    def summary(self) -> Account:
        """Return the account's neighbours, its total, and what is spent and remains of it."""
        with self._transaction("BEGIN") as connection:
            return _account(connection)

    @contextmanager
    def _transaction(
        self, begin: str = "BEGIN IMMEDIATE", *, create_for: Neighbours | None = None
    ) -> Iterator[sqlite3.Connection]:
        """Run the body in one transaction, committed at its end; create the account if ``create_for`` is given."""
        if create_for is None and not os.path.exists(self.path):
            raise InputError(f"ledger {self.path} doesn't exist")
        uri = f"{self.path.absolute().as_uri()}?mode={'rwc' if create_for else 'rw'}"
        try:
            # autocommit=True is SQLite's own: a transaction is what we begin and commit, nothing is opened behind us.
            with closing(sqlite3.connect(uri, uri=True, timeout=self.timeout, autocommit=True)) as connection:
                connection.row_factory = sqlite3.Row
                # A commit is the deletion of the journal: EXTRA, unlike FULL, also syncs the directory after it.
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("PRAGMA fullfsync = ON")  # macOS, where fsync may stop at the drive's cache
                connection.execute(begin)
                self._identify(connection, create_for)
                yield connection
                connection.execute("COMMIT")  # what doesn't come this far is rolled back by closing
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            reason = _REASONS.get(code & 0xFF, f"can't be used; SQLite reports error {code}")
            raise InputError(f"ledger {self.path} {reason}") from None

    def _identify(self, connection: sqlite3.Connection, create_for: Neighbours | None) -> None:
        """Check that the file is a ledger of this format; make one of an empty file if ``create_for`` is given."""
        marks = tuple(_value(connection, f"PRAGMA {name}") for name in ("application_id", "user_version"))
        if marks == (APPLICATION_ID, FORMAT):
            return
        if marks[0] == APPLICATION_ID:
            raise InputError(f"ledger {self.path} was written by another version of pdips; use that one")
        if any(marks) or _value(connection, "SELECT count(*) FROM sqlite_master"):
            raise InputError(f"ledger {self.path} {_FOREIGN}")
        if create_for is None:
            raise InputError(f"ledger {self.path} is empty; no total was set and nothing charged yet")
        _create(connection, create_for)

    def _recognise(self, connection: sqlite3.Connection, fingerprint: str, *, adopt: bool = False) -> None:
        """Bind a new ledger to the table; refuse another table than a bound one's, unless it is to be adopted."""
        salt = _value(connection, "SELECT salt FROM account")
        digest = hashlib.blake2b(fingerprint.encode(), salt=salt, digest_size=32).digest()
        known = [row["hash"] for row in connection.execute("SELECT hash FROM fingerprints").fetchall()]
        if digest in known:
            return
        if known and not adopt:
            raise InputError(
                f"ledger {self.path} belongs to another table; if this is a corrected version of that table, let it "
                "share the account with `pdips ledger adopt`, otherwise name another ledger"
            )
        _append(connection, "fingerprints", _now(), digest)

    def _convert(self, loss: PrivacyLoss, neighbours: Neighbours) -> PrivacyLoss:
        """Return the loss in the account's relation of neighbours."""
        if loss.neighbours == neighbours:
            return loss
        if neighbours == "replace-one":
            return to_replace_one(loss)
        raise InputError(
            f"ledger {self.path} is kept for add-remove neighbours and can't hold a replace-one loss, which "
            "says nothing of the number of records; charge an add-remove loss or name another ledger"
        )

    def _refuse_overspending(self, account: Account, charged: PrivacyLoss) -> None:
        """Raise RefusedError unless the charge fits into what remains."""
        epsilon, delta = account.remaining_epsilon, account.remaining_delta
        if epsilon is None or delta is None or (charged.epsilon <= epsilon and charged.delta <= delta):
            return
        total = _pair(epsilon + account.spent_epsilon, delta + account.spent_delta)
        raise RefusedError(
            f"ledger {self.path} would be overspent: asked {_pair(charged.epsilon, charged.delta)}, "
            f"remaining {_pair(epsilon, delta)}, total {total} ({account.neighbours} neighbours); ask for less, or "
            "raise the total (pdips ledger set-total)"
        )


def _validate_price(loss: PrivacyLoss, spends: Sequence[Spend]) -> None:
    if not loss.is_finite:
        raise InputError(
            f"a loss of kind {loss.kind!r} bounds nothing, so a ledger can't hold it; leave the ledger out of studies"
        )
    if not spends:
        raise InputError("a charge must be itemised: spends is empty")
    itemised = sum((spend.epsilon for spend in spends), Fraction(0))
    if loss.kind == "pure" and itemised != loss.epsilon:
        raise InputError(f"the spends add up to epsilon {itemised:.12g}, the loss says {loss.epsilon:.12g}")


def _create(connection: sqlite3.Connection, neighbours: Neighbours) -> None:
    for table, columns in _TABLES.items():
        connection.execute(f"CREATE TABLE {table} (number INTEGER PRIMARY KEY, {columns})")
        for when in _TRIGGERS:
            name = f"{table}_{when.split()[0].lower()}"
            refusal = f"BEGIN SELECT RAISE(ABORT, '{table}: rows are only appended'); END"
            connection.execute(f"CREATE TRIGGER {name} BEFORE {when.format(table)} {refusal}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    _append(connection, "account", _now(), neighbours, secrets.token_bytes(16))


def _append(connection: sqlite3.Connection, table: str, *values: object) -> int:
    """Append a row and return its number."""
    number = int(_value(connection, "SELECT " + _NEXT.format(table)))
    marks = ", ".join("?" * (1 + len(values)))
    connection.execute(f"INSERT INTO {table} VALUES ({marks})", (number, *values))
    return number


def _value(connection: sqlite3.Connection, query: str) -> Any:
    """Return the single value that ``query`` gives."""
    return connection.execute(query).fetchall()[0][0]  # a query not read to its end would keep its lock


def _account(connection: sqlite3.Connection) -> Account:
    spent = connection.execute("SELECT charged_epsilon, charged_delta FROM entries").fetchall()
    total = connection.execute("SELECT epsilon, delta FROM totals ORDER BY number DESC LIMIT 1").fetchall()
    return Account(
        neighbours=_value(connection, "SELECT neighbours FROM account"),
        total_epsilon=Fraction(total[0]["epsilon"]) if total else None,
        total_delta=Fraction(total[0]["delta"]) if total else None,
        spent_epsilon=sum((Fraction(row["charged_epsilon"]) for row in spent), Fraction(0)),
        spent_delta=sum((Fraction(row["charged_delta"]) for row in spent), Fraction(0)),
    )


def _entry(row: sqlite3.Row, spends: Sequence[Spend]) -> Entry:
    fields: dict[str, Any] = {name: row[name] for name in row.keys()}  # noqa: SIM118 (a Row iterates over its values)
    for name in ("epsilon", "delta", "rho", "charged_epsilon", "charged_delta"):
        fields[name] = Fraction(fields[name])
    return Entry(**fields, spends=tuple(spends))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _text(value: Fraction) -> str:
    """Return the exact text that the file holds, such as "1/3"."""
    try:
        return str(value)
    except ValueError:  # Python's limit on the digits of an integer
        raise InputError("epsilon or delta has too many digits to be recorded exactly; round it up") from None


def _pair(epsilon: Fraction, delta: Fraction) -> str:
    return f"epsilon {epsilon:.12g}" + (f" and delta {delta:.12g}" if delta else "")
