"""A SQLite file whose rows are only appended and chained by a hash: what a ledger is
written in.

Every row has the hash of all rows before it, and one more row has the number and the
hash of the last. A changed, lost or exchanged row is found whenever the file is read.
The chain finds accidents and careless edits; whoever can write the file can also write
a new chain, which receipts in published releases tell (``docs/proofs/ledger.md``).
"""

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pdips.errors import InputError

APPLICATION_ID = 0x70646970  # "pdip" in SQLite's file header
FORMAT = 1

LOCKED = "is locked by another process; try again when it has finished"
FOREIGN = "isn't a pdips ledger; name another file"
DAMAGED = "is damaged; it must be restored with every spend since the copy added again"
NO_LOCKS = (
    "lies on a file system whose locks do nothing, so that two runs could spend the "
    "same budget; move it to a local disk"
)
# By the low byte of SQLite's error code, which is the kind of error.
_REASONS = {
    sqlite3.SQLITE_BUSY: LOCKED,
    sqlite3.SQLITE_LOCKED: LOCKED,
    sqlite3.SQLITE_NOTADB: FOREIGN,
    sqlite3.SQLITE_CANTOPEN: "can't be opened; check that its directory exists and "
    "that you may write there",
    sqlite3.SQLITE_READONLY: "can't be written; check that you may write to it and to "
    "its directory",
    sqlite3.SQLITE_FULL: "can't grow; the disk is full",
    sqlite3.SQLITE_IOERR: "can't be read or written: the disk reports an error, or it "
    "is full",
    sqlite3.SQLITE_CORRUPT: DAMAGED,
}

# A rule on inserts is needed because INSERT OR REPLACE deletes a row without waking the
# trigger on DELETE.
_RULES = {
    "log_is_kept": "DELETE ON log",
    "log_is_fixed": "UPDATE ON log",
    "log_goes_on": "INSERT ON log WHEN NEW.number IS NOT "
    "(SELECT 1 + coalesce(max(number), 0) FROM log)",
    "head_is_kept": "DELETE ON head",
    "head_goes_on": "UPDATE ON head WHEN NEW.number IS NOT OLD.number + 1",
    "head_is_one": "INSERT ON head WHEN (SELECT count(*) FROM head) > 0",
}
_STATEMENTS = (
    "CREATE TABLE log (number INTEGER PRIMARY KEY, time TEXT NOT NULL, "
    "kind TEXT NOT NULL, content TEXT NOT NULL, hash BLOB NOT NULL)",
    "CREATE TABLE head (number INTEGER NOT NULL, hash BLOB NOT NULL)",
    *(
        f"CREATE TRIGGER {name} BEFORE {when} "
        "BEGIN SELECT RAISE(ABORT, 'rows are only appended'); END"
        for name, when in _RULES.items()
    ),
)

# Locks of one process don't exclude each other, so that another process has to try.
_SECOND_PROCESS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], uri=True, timeout=0, isolation_level=None)
try:
    connection.execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError:
    sys.exit(5)
"""
_LOCK_HELD = 5
_LOCKS_WORK: set[int] = set()
"""Devices on which this process has seen locks work."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One row: what happened, when (UTC, ISO 8601), and its content as JSON has it."""

    number: int
    time: str
    kind: str
    content: Mapping[str, Any]


class Log:
    """The rows of an open file, all of them checked; more can be appended.

    Parameters
    ----------
    connection : sqlite3.Connection
        In a transaction.
    path : Path
        For messages.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection = connection
        self._path = path
        try:
            self.events, self._hash = self._checked()
        except (TypeError, ValueError, KeyError, IndexError):
            raise damaged(path) from None

    def append(self, kind: str, **content: Any) -> int:
        """Append a row and return its number."""
        number = len(self.events) + 1
        time = now()
        text = json.dumps(content)
        self._hash = _chained(self._hash, number, time, kind, text)
        row = (number, time, kind, text, self._hash)
        self.connection.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?)", row)
        head = (number, self._hash)
        self.connection.execute("UPDATE head SET number = ?, hash = ?", head)
        event = Event(number=number, time=time, kind=kind, content=json.loads(text))
        self.events.append(event)
        return number

    def of_kind(self, *kinds: str) -> list[Event]:
        """Return the rows of some kinds, oldest first."""
        return [event for event in self.events if event.kind in kinds]

    def _checked(self) -> tuple[list[Event], bytes]:
        """Read all rows, and refuse them unless each follows from the one before."""
        rows = _all(self.connection, "SELECT * FROM log ORDER BY number")
        events = []
        chained = b""
        for expected, (number, time, kind, text, stated) in enumerate(rows, start=1):
            chained = _chained(chained, number, time, kind, text)
            if (number, stated) != (expected, chained):
                raise damaged(self._path)
            content = json.loads(text)
            events.append(Event(number=number, time=time, kind=kind, content=content))
        [head] = _all(self.connection, "SELECT number, hash FROM head")
        if head != (len(events), chained):
            raise damaged(self._path)
        return events, chained


def damaged(path: Path) -> InputError:
    return InputError(f"ledger {path} {DAMAGED}")


def now() -> str:
    """Return the time in UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def transaction(
    path: Path, *, timeout: float, writes: bool, create: bool, beside: Path | None
) -> Iterator[Log]:
    """Run the body in one transaction, committed at its end.

    Parameters
    ----------
    path : Path
        The file.
    timeout : float
        Seconds to wait for another process that is writing.
    writes : bool
        Whether rows will be appended: then nobody else can, from the start.
    create : bool
        Whether to make the file if it isn't there. A new one has no rows.
    beside : Path, optional
        Another SQLite file, ``beside`` in statements, that is committed together with
        this one.
    """
    if create:
        _create(path)
    elif not os.path.exists(path):
        raise InputError(f"ledger {path} doesn't exist")
    address = _address(path)
    try:
        # autocommit=True is SQLite's own: a transaction is what we begin and commit,
        # nothing is opened behind us.
        with closing(
            sqlite3.connect(address, uri=True, timeout=timeout, autocommit=True)
        ) as connection:
            _make_durable(connection, "main")
            if beside is not None:
                connection.execute("ATTACH ? AS beside", (_address(beside),))
                _make_durable(connection, "beside")
            connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            _identify(connection, path, create=create)
            if writes:
                _test_locks(path, address)
            yield Log(connection, path)
            # what doesn't come this far is rolled back by closing
            connection.execute("COMMIT")
    except UnicodeError:  # Python's, of a complaint that quotes the file
        raise damaged(path) from None
    except sqlite3.Error as error:
        raise InputError(f"ledger {path} {reason(error)}") from None


def reason(error: sqlite3.Error) -> str:
    """Return what SQLite complains of, in words that go after the name of a file."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return _REASONS.get(code & 0xFF, f"can't be used; SQLite reports error {code}")


def _address(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=rw"


def _create(path: Path) -> None:
    """Make an empty file that its owner alone can read, unless there is one."""
    with suppress(OSError):  # SQLite says what is wrong with the place
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _make_durable(connection: sqlite3.Connection, name: str) -> None:
    # A commit is the deletion of the journal: EXTRA, unlike FULL, also syncs the
    # directory after it.
    connection.execute(f"PRAGMA {name}.synchronous = EXTRA")
    # macOS, where fsync may stop at the drive's cache
    connection.execute("PRAGMA fullfsync = ON")


def _identify(connection: sqlite3.Connection, path: Path, *, create: bool) -> None:
    """Check that the file is one of this format and whole; begin it if it is empty."""
    [(application,)] = _all(connection, "PRAGMA application_id")
    [(version,)] = _all(connection, "PRAGMA user_version")
    rows = _all(connection, "SELECT sql FROM sqlite_master ORDER BY rowid")
    if (application, version) == (APPLICATION_ID, FORMAT):
        if [sql for (sql,) in rows] != [*_STATEMENTS]:
            raise damaged(path)
        if _all(connection, "PRAGMA main.integrity_check(1)") != [("ok",)]:
            raise damaged(path)
        return
    if application == APPLICATION_ID:
        raise InputError(
            f"ledger {path} was written by another version of pdips; use that one"
        )
    if application or version or rows:
        raise InputError(f"ledger {path} {FOREIGN}")
    if not create:
        raise InputError(
            f"ledger {path} is empty; no total was set and nothing charged yet"
        )
    for statement in _STATEMENTS:
        connection.execute(statement)
    connection.execute("INSERT INTO head VALUES (0, ?)", (b"",))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def _test_locks(path: Path, address: str) -> None:
    """Refuse a file system on which another process could write as well now."""
    device = os.stat(path).st_dev
    if device in _LOCKS_WORK:
        return
    program = [sys.executable, "-I", "-S", "-c", _SECOND_PROCESS, address]
    second = subprocess.run(program, capture_output=True, check=False)
    if second.returncode != _LOCK_HELD:
        raise InputError(f"ledger {path} {NO_LOCKS}")
    _LOCKS_WORK.add(device)


def _chained(before: bytes, number: int, time: str, kind: str, text: str) -> bytes:
    """Return the hash of a row and of all rows before it."""
    row = json.dumps([number, time, kind, text]).encode()
    return hashlib.blake2b(before + row, digest_size=16).digest()


def _all(connection: sqlite3.Connection, query: str) -> list[tuple[Any, ...]]:
    # a query not read to its end would keep its lock
    return connection.execute(query).fetchall()
