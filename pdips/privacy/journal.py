"""The journal of one charge: its noisy answers, until the release that they make is
published.

A charged release must not be lost to a crash, and its noise must not be drawn twice. So
each noisy answer is committed to a file beside the ledger before anything uses it, the
first one in the transaction of the charge itself. The answers are what was paid for:
that they are kept costs nothing. A key or a seed is never kept; with it and the release
exact counts could be worked out (``docs/proofs/ledger.md``).
"""

import hashlib
import io
import json
import os
import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from pdips.errors import InputError
from pdips.file_lock import FileLock
from pdips.privacy.log import reason

PART_BYTES = 1 << 26  # SQLite holds no value of more than 10^9 bytes
TABLE_BYTES = 1 << 16
"""Tables are filled up to a multiple of this: how many bytes one takes depends on the
lengths of its texts and on what is missing.
"""
SUFFIX = ".answers"

_STATEMENTS = (
    "CREATE TABLE {0}facts (content TEXT NOT NULL, hash BLOB NOT NULL)",
    "CREATE TABLE {0}answers (number INTEGER NOT NULL, part INTEGER NOT NULL, "
    "name TEXT NOT NULL, data BLOB NOT NULL, hash BLOB NOT NULL, "
    "PRIMARY KEY (number, part))",
)

Stored = tuple[str, bytes]
"""The name of a step, and its answer as bytes."""


class Journal:
    """The answers of a charge, in a SQLite file of mode 0600, chained by a hash.

    Parameters
    ----------
    path : Path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0
        self._hash = b""

    def __repr__(self) -> str:
        return f"Journal({str(self.path)!r})"

    def create(self) -> None:
        """Make the empty file."""
        os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    def begin(
        self,
        ledger: sqlite3.Connection,
        facts: Mapping[str, Any],
        answers: Sequence[Stored],
    ) -> None:
        """Write facts and first answers in a transaction of the ledger, to which the
        file is attached as ``beside``.
        """
        for statement in _STATEMENTS:
            ledger.execute(statement.format("beside."))
        content = json.dumps(facts)
        self._hash = _chained(b"", "facts", content.encode())
        ledger.execute("INSERT INTO beside.facts VALUES (?, ?)", (content, self._hash))
        for name, data in answers:
            self._insert(ledger, "beside.", name, data)

    def append(self, name: str, data: bytes) -> None:
        """Commit one more answer."""
        try:
            with self._opened() as connection:
                connection.execute("BEGIN IMMEDIATE")
                self._insert(connection, "", name, data)
                # what doesn't come this far is rolled back by closing
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise InputError(f"journal {self.path} {reason(error)}") from None

    def read(self) -> tuple[dict[str, Any], list[Stored]]:
        """Return the facts and all answers, in order."""
        try:
            with self._opened() as connection:
                facts = connection.execute("SELECT content, hash FROM facts").fetchall()
                rows = connection.execute(
                    "SELECT number, part, name, data, hash FROM answers "
                    "ORDER BY number, part"
                ).fetchall()
            return self._checked(facts, rows)
        except (sqlite3.Error, ValueError, TypeError, AttributeError):
            raise InputError(
                f"journal {self.path} can't be read; put it back from a copy, or give "
                "the charge up: it stays charged"
            ) from None

    def _checked(
        self, facts: list[Any], rows: list[Any]
    ) -> tuple[dict[str, Any], list[Stored]]:
        """Return what was read, if each row follows from the one before."""
        [(content, stated)] = facts
        chained = _chained(b"", "facts", content.encode())
        is_whole = chained == stated
        parts: dict[int, tuple[str, list[bytes]]] = {}
        for number, part, name, data, stated in rows:
            chained = _chained(chained, [number, part, name], data)
            is_whole = is_whole and chained == stated
            parts.setdefault(number, (name, []))[1].append(data)
        if not is_whole:
            raise ValueError("a row was changed or lost")
        self._number = max(parts, default=0)
        self._hash = chained
        answers = [(name, b"".join(pieces)) for name, pieces in parts.values()]
        return json.loads(content), answers

    def destroy(self) -> None:
        """Remove the file: the release is published, or the charge has ended
        otherwise.
        """
        for path in (self.path, self.path.with_name(self.path.name + "-journal")):
            path.unlink(missing_ok=True)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        address = f"{self.path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, autocommit=True)) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA fullfsync = ON")
            yield connection

    def _insert(
        self, connection: sqlite3.Connection, where: str, name: str, data: bytes
    ) -> None:
        self._number += 1
        for part, start in enumerate(range(0, max(len(data), 1), PART_BYTES)):
            piece = data[start : start + PART_BYTES]
            self._hash = _chained(self._hash, [self._number, part, name], piece)
            row = (self._number, part, name, piece, self._hash)
            statement = f"INSERT INTO {where}answers VALUES (?, ?, ?, ?, ?)"
            connection.execute(statement, row)


def sweep(ledger: Path, kept: Collection[str]) -> list[Path]:
    """Delete what killed runs left beside a ledger, and return it: answers that belong
    to no open charge, keys that were being written, and SQLite's notes of a commit in
    two files.

    Called while the ledger is locked for writing: nobody commits a charge meanwhile,
    and what a killed run had begun is rolled back. Only then is such a note of no use;
    without it SQLite would take a commit that was begun for one that is made.

    Parameters
    ----------
    ledger : Path
        The account's file.
    kept : collection of str
        The names of charges whose release isn't published yet.
    """
    name = re.escape(ledger.name)
    answers = re.compile(rf"{name}\.(\w+){re.escape(SUFFIX)}(-journal|\.lock)?")
    # accounts make their key while the ledger is locked for writing, too
    begun = re.compile(rf"{name}-mj[0-9A-F]{{9}}|\.{name}\.key-[0-9a-f]{{16}}")
    swept: list[Path] = []
    with suppress(OSError):  # another run sweeps again
        for path in sorted(ledger.parent.iterdir()):
            matched = answers.fullmatch(path.name)
            if begun.fullmatch(path.name):
                path.unlink(missing_ok=True)
                swept.append(path)
            elif matched is not None and matched[1] not in kept:
                swept += _removed(path, f"{ledger.name}.{matched[1]}{SUFFIX}.lock")
    return swept


def _removed(path: Path, lock_name: str) -> list[Path]:
    """Delete a file of answers, unless a running process holds their lock."""
    lock = FileLock.taken(path.with_name(lock_name))
    if lock is None:
        return []
    try:
        if path != lock.path:
            path.unlink(missing_ok=True)
    finally:
        lock.release()
    return [path]


def _chained(before: bytes, heading: Any, data: bytes) -> bytes:
    """Return the hash of a row and of all rows before it."""
    digest = hashlib.blake2b(before + json.dumps(heading).encode(), digest_size=16)
    digest.update(data)
    return digest.digest()


def encoded(answer: Any) -> bytes:
    """Return an answer as bytes: an array, a whole number, a table, or arrays by name.

    Arrays of numbers take as many bytes whatever the numbers are, and tables nearly so,
    so that whether they fit on a disk says nothing of them.
    """
    import numpy as np  # here, so that the command line starts quickly
    import pandas as pd
    import pyarrow as pa

    sink = io.BytesIO()
    if isinstance(answer, pd.DataFrame):
        table = pa.Table.from_pandas(answer, preserve_index=False)
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        length = sink.tell().to_bytes(8)
        filling = bytes(-sink.tell() % TABLE_BYTES)
        return b"t" + length + sink.getvalue() + filling
    if isinstance(answer, Mapping):
        # a mark before each name, for the writer has arguments of its own
        marked = {f"={name}": array for name, array in answer.items()}
        np.savez(sink, allow_pickle=False, **marked)
        return b"m" + sink.getvalue()
    kind = b"i" if isinstance(answer, int) else b"a"
    np.save(sink, np.asarray(answer), allow_pickle=False)
    return kind + sink.getvalue()


def decoded(data: bytes) -> Any:
    """Return the answer that :func:`encoded` made bytes of."""
    import numpy as np
    import pyarrow as pa

    kind = data[:1]
    rest = io.BytesIO(data[1:])
    if kind == b"t":
        length = int.from_bytes(rest.read(8))
        table = pa.ipc.open_file(io.BytesIO(rest.read(length))).read_all()
        return table.to_pandas()
    if kind == b"m":
        with np.load(rest, allow_pickle=False) as arrays:
            return {name.removeprefix("="): arrays[name] for name in arrays}
    array = np.load(rest, allow_pickle=False)
    return int(array) if kind == b"i" else array
