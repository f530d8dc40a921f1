"""The file of a ledger: whatever happens to its bytes is found, or changes nothing;
only its owner reads it; and locks that do nothing are refused.
"""

import os
import shutil
import sqlite3
import stat
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tables import refuses
from test_ledger import SCHEMA, Asked, charge, in_file, pure, receipt_of

from pdips.errors import DataError, InputError
from pdips.file_lock import FileLock
from pdips.privacy import log
from pdips.privacy.ledger import Ledger

CHAIN = "is damaged; it must be restored"


@pytest.fixture
def filled(ledger: Ledger) -> Ledger:
    """A ledger with a row of every kind."""
    ledger.set_total(9)
    with ledger.reserve(Asked(pure("1/3")), SCHEMA):
        charge(ledger, pure("1/3"))
    with pytest.raises(DataError), ledger.reserve(Asked(pure("1")), SCHEMA):
        raise DataError("SECRET")
    ledger.adopt("table-2")
    charge(ledger, pure("1/7"))
    ledger.end(1, "finished")
    ledger.refuse_resumption()
    return ledger


def told(ledger: Ledger) -> tuple[object, ...]:
    """Return all that a ledger says of its account."""
    return ledger.summary(), ledger.entries(), ledger.attempts(), ledger.tables()


# Bytes that change


def fates(ledger: Ledger, bits: np.ndarray, copy: Path) -> Counter[str]:
    """Return how often a flipped bit of the file was refused, and how often nothing
    was changed by it.
    """
    whole, expected = ledger.path.read_bytes(), told(ledger)
    found: Counter[str] = Counter()
    for bit in bits.tolist():
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << (bit % 8)
        copy.write_bytes(flipped)
        said = told_or_refused(copy)
        if isinstance(said, str):
            assert "\n" not in said
            assert str(copy) in said
            found["refused"] += 1
            continue
        assert said == expected, f"bit {bit} changed the account without a word"
        found["unchanged"] += 1
    return found


def told_or_refused(path: Path) -> tuple[object, ...] | str:
    """Return what a file's ledger says, or the line with which it is refused."""
    try:
        return told(Ledger(path))
    except InputError as error:
        return str(error)


def written_bits(path: Path) -> np.ndarray:
    """Return the places of the bits of all bytes that aren't 0: rows, their pages'
    headers and the schema.
    """
    data = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    return (np.flatnonzero(data)[:, None] * 8 + np.arange(8)).ravel()


@pytest.mark.slow
def test_a_flipped_bit_is_found_or_changes_nothing(filled: Ledger, tmp_path) -> None:
    rng = np.random.default_rng(0)
    bits = rng.choice(written_bits(filled.path), 400, replace=False)
    n_bits = 8 * filled.path.stat().st_size
    anywhere = rng.choice(n_bits, 100, replace=False)
    found = fates(filled, np.concatenate([bits, anywhere]), tmp_path / "copy.sqlite")
    assert found["refused"] > 350
    assert found["unchanged"] > 0


@pytest.mark.slow
def test_a_flipped_bit_of_each_byte_is_found_or_changes_nothing(
    filled: Ledger, tmp_path
) -> None:
    bits = written_bits(filled.path).reshape(-1, 8)
    of_each = np.random.default_rng(1).integers(8, size=len(bits))
    chosen = bits[np.arange(len(bits)), of_each]
    found = fates(filled, chosen, tmp_path / "copy.sqlite")
    # every byte of every row is under the chain
    n_bytes_of_rows = sum(
        len(content) + len(kind) + len(time)
        for kind, content, time in in_file(
            filled.path, "SELECT kind, content, time FROM log"
        )
    )
    assert found["refused"] >= n_bytes_of_rows


def test_a_file_that_was_cut_off_is_refused(filled: Ledger, tmp_path) -> None:
    whole, copy = filled.path.read_bytes(), tmp_path / "copy.sqlite"
    for size in range(1, len(whole), 512):
        copy.write_bytes(whole[:size])
        for call in (Ledger.summary, Ledger.entries, Ledger.attempts):
            refuses("copy.sqlite", call, Ledger(copy))
    copy.write_bytes(b"")
    refuses("is empty", Ledger(copy).summary)


# Rows that change behind its back


def behind_its_back(path: Path, *statements: str) -> None:
    """Change rows of a ledger's file, whose triggers are made again as they were."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        rules = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY rowid"
        ).fetchall()
        for name, _ in rules:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
        for _, rule in rules:
            connection.execute(rule)


LAST = "(SELECT max(number) FROM log)"
EDITS = {
    "another price": "UPDATE log SET content = replace(content, '1/7', '1/9')",
    "another time": "UPDATE log SET time = '2020' WHERE number = 3",
    "another kind": "UPDATE log SET kind = 'totals' WHERE kind = 'total'",
    "the last row": f"DELETE FROM log WHERE number = {LAST}",
    "a row between": "DELETE FROM log WHERE number = 4",
    "the first row": "DELETE FROM log WHERE number = 1",
    "all rows": "DELETE FROM log",
    "an older end": f"UPDATE head SET number = number - 1, hash = (SELECT hash FROM "
    f"log WHERE number = {LAST} - 1)",
    "two rows exchanged": "UPDATE log SET (time, kind, content, hash) = (SELECT time, "
    "kind, content, hash FROM log AS other WHERE other.number = 7 - log.number) "
    "WHERE number IN (3, 4)",
    "a row twice": f"INSERT INTO log SELECT number + 1, time, kind, content, hash FROM "
    f"log WHERE number = {LAST}",
    "another type": "UPDATE log SET content = x'00' WHERE number = 3",
    "no head": "DELETE FROM head",
    "two heads": "INSERT INTO head SELECT * FROM head",
}


@pytest.mark.parametrize("edit", EDITS)
def test_rows_that_were_changed_behind_its_back_are_refused(
    filled: Ledger, edit: str
) -> None:
    expected = told(filled)
    behind_its_back(filled.path)
    assert told(filled) == expected  # the triggers are as they were
    behind_its_back(filled.path, EDITS[edit])
    for call in (Ledger.summary, Ledger.entries, Ledger.attempts, Ledger.name):
        refuses(CHAIN, call, filled)
    refuses(CHAIN, charge, filled, pure("1/9"))
    refuses(CHAIN, filled.set_total, 10)


def test_a_row_without_its_head_and_a_head_without_its_row_are_refused(
    filled: Ledger, path: Path
) -> None:
    # what the triggers let pass
    shutil.copy(path, path.with_suffix(".copy"))
    for statement in (
        "UPDATE head SET number = number + 1",
        f"INSERT INTO log VALUES (1 + {LAST}, '', 'total', '{{}}', x'00')",
    ):
        shutil.copy(path.with_suffix(".copy"), path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(statement)
        refuses(CHAIN, filled.summary)


def test_a_chain_without_rows_is_refused(filled: Ledger) -> None:
    behind_its_back(
        filled.path, "DELETE FROM log", "UPDATE head SET number = 0, hash = x''"
    )
    for call in (Ledger.summary, Ledger.entries, Ledger.name, Ledger.tables):
        refuses(CHAIN, call, filled)


def test_rows_taken_off_the_end_are_told_by_the_receipt(filled: Ledger) -> None:
    # with the head set back as well the file is the older one, which no chain tells
    receipt = receipt_of(filled, pure("1/5"))
    behind_its_back(
        filled.path,
        f"DELETE FROM log WHERE number > {LAST} - 2",
        f"UPDATE head SET number = {LAST}, hash = (SELECT hash FROM log WHERE number "
        f"= {LAST})",
    )
    assert len(filled.entries()) == 2
    assert "an older copy of the ledger was put back" in filled.compare(receipt)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TRIGGER log_is_kept",
        "CREATE TRIGGER more BEFORE INSERT ON log BEGIN SELECT 1; END",
        "CREATE TABLE more (number INTEGER)",
        "CREATE INDEX more ON log (time)",
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = replace(sql, "
        "'only appended', 'what they are') WHERE name = 'head_is_kept'",
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = replace(sql, "
        "'BEFORE DELETE', 'BEFORE UPDATE') WHERE name = 'log_is_kept'",
    ],
)
def test_other_rules_or_tables_are_refused(filled: Ledger, statement: str) -> None:
    with closing(sqlite3.connect(filled.path)) as connection:
        connection.executescript(statement)
    refuses(CHAIN, filled.summary)
    refuses(CHAIN, charge, filled, pure("1/9"))


# Who may read it


def test_the_file_its_answers_and_their_lock_are_their_owners_alone(
    ledger: Ledger, path: Path
) -> None:
    before = os.umask(0)
    try:
        ledger.set_total(1)
        journal = ledger.new_journal()
        journal.create()
        lock = FileLock.taken(path.with_suffix(".lock"))
    finally:
        os.umask(before)
    assert lock is not None
    for file in (path, journal.path, lock.path):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name
    lock.release()
    assert not lock.path.exists()


# Locks


@pytest.fixture
def untested(monkeypatch) -> None:
    """A process that hasn't tried the locks of any disk yet."""
    monkeypatch.setattr(log, "_LOCKS_WORK", set())


@pytest.mark.usefixtures("untested")
def test_locks_that_do_nothing_are_refused(ledger: Ledger, path: Path, monkeypatch):
    address = log._address
    monkeypatch.setattr(log, "_address", lambda file: f"{address(file)}&vfs=unix-none")
    said = "locks do nothing, so that two runs could spend the same budget"
    refuses(said, ledger.set_total, 1)
    refuses(said, charge, ledger, pure("1"))
    monkeypatch.setattr(log, "_address", address)
    refuses("is empty", ledger.summary)  # nothing was written
    ledger.set_total(1)
    assert os.stat(path).st_dev in log._LOCKS_WORK


@pytest.mark.usefixtures("untested")
@pytest.mark.parametrize("program", ["", "import sys; sys.exit(1)", "not Python"])
def test_a_second_process_that_isnt_kept_out_is_no_proof_of_locks(
    ledger: Ledger, monkeypatch, program: str
) -> None:
    monkeypatch.setattr(log, "_SECOND_PROCESS", program)
    refuses("locks do nothing", ledger.set_total, 1)


@pytest.mark.usefixtures("untested")
def test_locks_are_tried_before_the_first_row_and_once_a_disk(
    ledger: Ledger, monkeypatch
) -> None:
    ledger.set_total(1)
    monkeypatch.setattr(log, "_SECOND_PROCESS", "")
    ledger.set_total(2)
    ledger.summary()
    log._LOCKS_WORK.clear()
    ledger.summary()  # reading needs no lock
    refuses("locks do nothing", ledger.set_total, 3)
    assert ledger.summary().total_epsilon == 2
