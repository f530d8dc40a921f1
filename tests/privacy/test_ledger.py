"""The ledger: its rules, that two processes never overspend, and that kill -9 never
forgets a spend.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import reduce
from operator import add
from pathlib import Path

import pytest
from tables import cases, refuses

from pdips import InputError, RefusedError, Schema
from pdips.errors import DataError
from pdips.file_lock import FileLock
from pdips.privacy.account import (
    Account,
    Receipt,
    Request,
    Unit,
    request_to_read,
)
from pdips.privacy.journal import decoded
from pdips.privacy.ledger import Ledger
from pdips.privacy.log import APPLICATION_ID, FORMAT
from pdips.privacy.loss import PrivacyLoss, Spend, to_replace_one, zcdp

ROOT = Path(__file__).parents[2]
SCHEMA = Schema.from_toml("[columns.a]\nlevels = [0, 1]\n")


def pure(epsilon: str, neighbours: str = "replace-one") -> PrivacyLoss:
    return PrivacyLoss(
        epsilon=Fraction(epsilon),
        neighbours=neighbours,
        kind="pure",
        statement="For a test.",
    )


def approximate(
    epsilon: str, delta: str, neighbours: str = "replace-one"
) -> PrivacyLoss:
    return replace(
        pure(epsilon, neighbours),
        kind="approximate",
        delta=Fraction(delta),
        rho=Fraction(0),
    )


def asked_for(
    loss: PrivacyLoss, spends=None, *, schema: Schema = SCHEMA, plan: str = "a plan"
) -> Request:
    spends = [Spend(step="counts", epsilon=loss.epsilon)] if spends is None else spends
    return Request(
        mechanism="laplace-sanitizer",
        schema=schema,
        loss=loss,
        spends=tuple(spends),
        plan=plan,
        code="0.0",
    )


def receipt_of(
    ledger: Ledger,
    loss: PrivacyLoss,
    spends=None,
    *,
    fingerprint="table-1",
    schema: Schema = SCHEMA,
    plan: str = "a plan",
) -> Receipt:
    request = asked_for(loss, spends, schema=schema, plan=plan)
    return ledger.charge(request, fingerprint=fingerprint)


def charge(ledger: Ledger, loss: PrivacyLoss, spends=None, **rest) -> int:
    return receipt_of(ledger, loss, spends, **rest).number


@dataclass(frozen=True)
class Asked:
    """What a ledger wants to know of a mechanism."""

    loss: PrivacyLoss
    plan: str = "a plan"

    def request(self, schema: Schema) -> Request:
        return asked_for(self.loss, schema=schema, plan=self.plan)


def reserve(ledger: Ledger, loss: PrivacyLoss, schema: Schema = SCHEMA, **more) -> None:
    """Ask for a reservation that is to be refused before the table is read."""
    with ledger.reserve(Asked(loss), schema, **more):
        pytest.fail("the table would be read")


def in_file(path: Path, statement: str) -> list[tuple]:
    """Return what SQLite finds in a file, behind the back of its ledger."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def contents(path: Path, kind: str) -> list[dict]:
    """Return what a ledger's rows of some kind hold, behind its back."""
    rows = in_file(path, "SELECT kind, content FROM log ORDER BY number")
    return [json.loads(content) for found, content in rows if found == kind]


def outcomes(ledger: Ledger) -> list[str | None]:
    return [attempt.outcome for attempt in ledger.attempts()]


def numbers(ledger: Ledger) -> list[int]:
    return [entry.number for entry in ledger.entries()]


def complaint(
    path: Path,
    match: str,
    call: Callable[..., object],
    *given: object,
    error=InputError,
    **named,
) -> str:
    """Return the line with which a call is refused: it names the file and has no
    traceback of sqlite's.
    """
    with pytest.raises(error, match=match) as caught:
        call(*given, **named)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return text


# What is recorded


def test_charge_is_recorded_as_given(ledger: Ledger) -> None:
    spends = (
        Spend(step="counts", epsilon=Fraction(1, 3)),
        Spend(step="scale", epsilon=Fraction(1, 6), composition="parallel"),
    )
    assert charge(ledger, pure("1/2"), spends) == 1
    # without a total nothing is refused
    assert charge(ledger, approximate("1000000/7", "1e-9")) == 2
    loss = zcdp("1/50", "1e-6", "replace-one", "For a test.")
    assert charge(ledger, loss) == 3
    first, second, third = ledger.entries()
    assert (first.number, first.mechanism) == (1, "laplace-sanitizer")
    assert (first.plan, first.code, first.end) == ("a plan", "0.0", None)
    price = first.price
    assert (price.kind, price.neighbours) == ("pure", "replace-one")
    assert (price.epsilon, price.delta) == (Fraction(1, 2), 0)
    assert price.rho == pure("1/2").rho
    assert first.spends == spends
    price = second.price
    assert (price.epsilon, price.delta) == (Fraction(10**6, 7), Fraction(1, 10**9))
    price = third.price
    assert (price.charged_epsilon, price.charged_delta, price.rho) == (
        loss.epsilon,
        Fraction(1, 10**6),
        loss.rho,
    )
    assert abs(datetime.now(UTC) - datetime.fromisoformat(first.time)) < timedelta(
        minutes=1
    )
    assert first.time.endswith("+00:00")
    account = ledger.summary()
    assert account.spent_epsilon == Fraction(1, 2) + Fraction(10**6, 7) + loss.epsilon
    assert (account.remaining_epsilon, account.remaining_delta) == (None, None)


def test_pure_and_approximate_add_up(ledger: Ledger) -> None:
    ledger.set_total(2, delta="1e-6")
    charge(ledger, pure("1/3"))
    charge(ledger, approximate("1/7", "1e-7"))
    charge(ledger, approximate("1/11", "2e-7"))
    assert ledger.summary() == Account(
        neighbours="replace-one",
        total_epsilon=Fraction(2),
        total_delta=Fraction("1e-6"),
        spent_epsilon=Fraction(1, 3) + Fraction(1, 7) + Fraction(1, 11),
        spent_delta=Fraction("3e-7"),
        spent_rho=None,  # approximate losses have none
        unit=Unit(),
    )
    assert ledger.summary().remaining_epsilon == 2 - Fraction(1, 3) - Fraction(
        1, 7
    ) - Fraction(1, 11)
    assert ledger.summary().remaining_delta == Fraction("7e-7")


@pytest.mark.parametrize(
    "name", ["table.sqlite", "a b?mode=memory#x.sqlite", "100%.sqlite", "äö.sqlite"]
)
def test_the_ledger_outlives_its_object_whatever_its_name(
    tmp_path: Path, name: str
) -> None:
    ledger = Ledger(tmp_path / name)
    ledger.set_total(1)
    charge(ledger, pure("1/2"))
    again = Ledger(str(tmp_path / name))
    assert again.entries() == ledger.entries()
    assert again.summary().remaining_epsilon == Fraction(1, 2)
    assert {file.name for file in tmp_path.iterdir()} == {name, f"{name}.key"}


# Totals and refusals


def test_ten_tenths_fit_in_one_exactly(ledger: Ledger) -> None:
    # the broken twin: doubles (sum() compensates and would hide it)
    assert reduce(add, [0.1] * 10) != 1
    ledger.set_total(1)
    for _ in range(10):
        charge(ledger, pure("0.1"))
    assert ledger.summary().remaining_epsilon == 0
    refuses("", charge, ledger, pure("0.1"), error=RefusedError)
    refuses("", charge, ledger, pure("1e-30"), error=RefusedError)
    assert len(ledger.entries()) == 10


def test_overspending_is_refused_and_not_recorded(ledger: Ledger, path: Path) -> None:
    ledger.set_total(1)
    charge(ledger, pure("3/4"))
    for asked, said in (
        (
            pure("1/2"),
            r"asked epsilon 0\.5, remaining epsilon 0\.25, total epsilon 1 "
            r"\(replace-one neighbours\)",
        ),
        (
            approximate("1/4", "1e-6"),
            r"allows no delta: give it one \(pdips ledger "
            r"set-total --delta\)",
        ),
    ):
        complaint(path, said, charge, ledger, asked, error=RefusedError)
    assert numbers(ledger) == [1]
    assert ledger.summary().spent_epsilon == Fraction(3, 4)
    assert charge(ledger, pure("1/4")) == 2
    ledger.set_total(10, delta="1e-6")
    charge(ledger, approximate("1", "1e-6"))
    said = "remaining epsilon 8,.*ask for less, or raise the total"
    complaint(path, said, charge, ledger, approximate("1", "1e-12"), error=RefusedError)
    charge(ledger, pure("8"))


def test_total_may_rise_and_fall_down_to_what_is_spent(
    ledger: Ledger, path: Path
) -> None:
    ledger.set_total(1, delta="1e-6")
    charge(ledger, approximate("1/2", "1e-7"))
    ledger.set_total(2, delta="1e-5")
    ledger.set_total("1/2", delta="1e-7")
    assert ledger.summary().remaining_epsilon == 0
    assert ledger.summary().remaining_delta == 0
    said = r"already spent epsilon 0\.5 and delta 1e-07"
    for epsilon, delta in (("0.4999", "1e-7"), ("1/2", "0")):
        complaint(
            path, said, ledger.set_total, epsilon, delta=delta, error=RefusedError
        )
    assert [row["epsilon"] for row in contents(path, "total")] == ["1", "2", "1/2"]


# Neighbours


def test_add_remove_loss_is_converted_for_a_replace_one_account(ledger: Ledger) -> None:
    ledger.set_total(2, delta="1e-3")
    loss = approximate("1/4", "1e-6", "add-remove")
    charge(ledger, loss)
    entry = ledger.entries()[0]
    price = entry.price
    assert (price.neighbours, price.epsilon, price.delta) == (
        "add-remove",
        Fraction(1, 4),
        Fraction("1e-6"),
    )
    assert entry.spends == (Spend(step="counts", epsilon=Fraction(1, 4)),)
    assert (price.charged_epsilon, price.charged_delta) == (
        Fraction(1, 2),
        to_replace_one(loss).delta,
    )
    charge(ledger, pure("3/4", "add-remove"))
    assert ledger.summary().remaining_epsilon == 0
    refuses(
        r"asked epsilon "
        r"0\.02",
        charge,
        ledger,
        pure("1/100", "add-remove"),
        error=RefusedError,
    )


def test_add_remove_account_charges_as_given_and_refuses_replace_one(
    ledger: Ledger, path: Path
) -> None:
    ledger.set_total(1, neighbours="add-remove")
    charge(ledger, pure("1/4", "add-remove"))
    complaint(
        path, "says nothing of the number of records", charge, ledger, pure("1/4")
    )
    assert ledger.summary().spent_epsilon == Fraction(1, 4)
    assert numbers(ledger) == [1]


@pytest.mark.parametrize(
    ("first", "second"), [("add-remove", "replace-one"), ("replace-one", "add-remove")]
)
def test_first_charge_fixes_the_neighbours(
    ledger: Ledger, path: Path, first: str, second: str
) -> None:
    charge(ledger, pure("1/4", first))
    assert ledger.summary().neighbours == first
    complaint(
        path, f"kept for {first} neighbours", ledger.set_total, 1, neighbours=second
    )
    ledger.set_total(1, neighbours=first)
    assert ledger.summary().remaining_epsilon == Fraction(3, 4)


# What an account can't hold


@pytest.mark.parametrize("kind", ["none", "asymptotic"])
def test_losses_that_bound_nothing(ledger: Ledger, path: Path, kind: str) -> None:
    loss = PrivacyLoss(
        epsilon=Fraction(1), neighbours="replace-one", kind=kind, statement="A claim."
    )
    for ask in (charge, reserve):
        refuses("bounds nothing", ask, ledger, loss)
    assert not path.exists()


@pytest.mark.parametrize("epsilon", ["1/3", "1/2000000000000"])
def test_spends_that_do_not_add_up_or_are_missing(
    ledger: Ledger, path: Path, epsilon: str
) -> None:
    spends = [
        Spend(step="counts", epsilon=Fraction(1, 2)),
        Spend(step="scale", epsilon=Fraction(epsilon)),
    ]
    refuses("the spends add up to", charge, ledger, pure("1/2"), spends)
    refuses("itemised", charge, ledger, approximate("1", "1e-6"), [])
    assert not path.exists()


def test_numbers_too_long_to_write_down(ledger: Ledger) -> None:
    ledger.set_total(1)
    refuses("too many digits", charge, ledger, pure(Fraction(1, 10**5000)))
    refuses("too many digits", ledger.set_total, Fraction(1, 10**5000))
    assert numbers(ledger) == []


# Whose account it is


def test_what_binds_a_ledger_before_its_first_charge(
    ledger: Ledger, path: Path
) -> None:
    ledger.set_total(1)
    refuses("", charge, ledger, pure("2"), fingerprint="table-1", error=RefusedError)
    ledger.adopt("table-2")  # a refused charge bound nothing
    said = r"belongs to another table.*`pdips ledger adopt`"
    assert "table-1" not in complaint(
        path, said, charge, ledger, pure("1/4"), fingerprint="table-1", error=DataError
    )
    assert charge(ledger, pure("1/4"), fingerprint="table-2") == 1


def test_fingerprint_is_kept_as_a_salted_hash_only(tmp_path: Path) -> None:
    hashes = []
    for name in ("a.sqlite", "b.sqlite"):
        charge(Ledger(tmp_path / name), pure("1"), fingerprint="SECRET-FINGERPRINT")
        assert b"SECRET-FINGERPRINT" not in (tmp_path / name).read_bytes()
        [account], [table] = (
            contents(tmp_path / name, kind) for kind in ("account", "table")
        )
        salt, kept = bytes.fromhex(account["salt"]), bytes.fromhex(table["hash"])
        assert (len(salt), len(kept)) == (16, 32)
        hashes.append(kept)
    assert hashes[0] != hashes[1]


# Append-only


@pytest.mark.parametrize("table", ["log", "head"])
def test_history_can_not_be_changed(ledger: Ledger, path: Path, table: str) -> None:
    ledger.set_total(1)
    charge(ledger, pure("1/4"))
    ledger.adopt("table-2")
    before = path.read_bytes()
    for attack in (
        "UPDATE {0} SET number = 99",
        "UPDATE {0} SET hash = x'00'",
        "DELETE FROM {0}",
        "INSERT OR REPLACE INTO {0} SELECT * FROM {0} LIMIT 1",
        "REPLACE INTO {0} SELECT * FROM {0} LIMIT 1",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="only appended"):
            in_file(path, attack.format(table))
        assert path.read_bytes() == before


# Files that can't serve


CALLS: list[Callable[[Ledger], object]] = [
    lambda ledger: charge(ledger, pure("1")),
    lambda ledger: ledger.set_total(1),
    lambda ledger: ledger.adopt("table-1"),
    Ledger.entries,
    Ledger.summary,
]
"""Two that make a file, and three that need one."""


NO_LEDGERS = {
    "": "isn't a pdips ledger",  # text
    "CREATE TABLE entries (number INTEGER PRIMARY KEY)": "isn't a pdips ledger",
    "PRAGMA application_id = 7": "isn't a pdips ledger",
    "PRAGMA user_version = 1": "isn't a pdips ledger",
    **{
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version}": (
            "another version of pdips"
        )
        for version in (0, FORMAT + 1)
    },
}


@pytest.mark.parametrize("statements", NO_LEDGERS)
def test_file_that_is_no_ledger(path: Path, statements: str) -> None:
    path.write_text("" if statements else "household,income\n1,2\n" * 100)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)
    before = path.read_bytes()
    for call in CALLS:
        complaint(path, NO_LEDGERS[statements], call, Ledger(path))
    assert path.read_bytes() == before


def test_empty_file_is_a_ledger_not_begun_and_one_without_its_tables_is_refused(
    ledger: Ledger, path: Path
) -> None:
    path.touch()
    complaint(path, "is empty", ledger.summary)
    assert charge(ledger, pure("1")) == 1
    charge(ledger, pure("1"))
    in_file(path, "DROP TABLE log")
    complaint(path, "is damaged", ledger.summary)


def test_damaged_file_or_none(ledger: Ledger, path: Path) -> None:
    for call in CALLS[2:]:
        complaint(path, "doesn't exist", call, ledger)
    assert not path.exists()
    charge(ledger, pure("1"))
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    for call in CALLS:
        complaint(path, "is damaged", call, ledger)


@pytest.mark.parametrize("place", ["missing/table.sqlite", "file/table.sqlite", ""])
def test_directory_that_can_not_hold_it(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    for call in CALLS[:2]:
        complaint(tmp_path / place, "can't be opened", call, Ledger(tmp_path / place))


def test_read_only_file_is_only_read(ledger: Ledger, path: Path) -> None:
    charge(ledger, pure("1"))
    # Write version 3 in SQLite's header means "read only" to everybody, even to root,
    # whom file modes don't stop.
    content = bytearray(path.read_bytes())
    content[18] = 3
    path.write_bytes(content)
    for call in (*CALLS[:2], lambda ledger: ledger.adopt("table-2")):
        complaint(path, "can't be written", call, ledger)
    assert numbers(ledger) == [1]


def break_off(ledger: Ledger, path: Path, reason: str) -> None:
    """Begin to raise the total to 2, and come to grief on the way."""
    with ledger._transaction() as log:
        if reason == "moved":
            path.rename(path.with_suffix(".moved"))
        log.append("total", epsilon="2", delta="0", rho=None)
        if reason == "interrupted":
            raise KeyboardInterrupt


def test_file_moved_away_in_the_middle(ledger: Ledger, path: Path) -> None:
    ledger.set_total(1)
    complaint(path, "can't be written", break_off, ledger, path, "moved")


def test_interruption_changes_nothing_and_frees_the_file(
    ledger: Ledger, path: Path
) -> None:
    ledger.set_total(1)
    with pytest.raises(KeyboardInterrupt):
        break_off(ledger, path, "interrupted")
    assert ledger.summary().total_epsilon == 1
    assert charge(Ledger(path, timeout=0), pure("1")) == 1


def test_locked_by_another(path: Path) -> None:
    charge(Ledger(path), pure("1"))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for call in CALLS:
            start = time.monotonic()
            complaint(
                path,
                "is locked by another process; try again when it has",
                call,
                Ledger(path, timeout=0.1),
            )
            assert 0.1 <= time.monotonic() - start < 5
    assert charge(Ledger(path), pure("1")) == 2


def test_commit_that_a_reader_holds_up_records_nothing(path: Path) -> None:
    charge(Ledger(path), pure("1"))
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM log").fetchall()
        refuses("is locked", charge, Ledger(path, timeout=0.1), pure("1"))
        assert numbers(Ledger(path)) == [1]
    assert charge(Ledger(path), pure("1")) == 2


def test_commits_are_as_durable_as_sqlite_makes_them(ledger: Ledger) -> None:
    beside = ledger.new_journal()
    lock = FileLock.taken(beside.path.with_name(f"{beside.path.name}.lock"))
    beside.create()
    with ledger._transaction(create_for="replace-one", beside=beside.path) as log:
        connection = log.connection
        assert connection.execute("PRAGMA beside.synchronous").fetchone()[0] == 3
        assert connection.execute("PRAGMA beside.journal_mode").fetchone()[0] == (
            "delete"
        )
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 3
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
        assert connection.in_transaction
    lock.release()


# Processes that are killed, run out of disk, or race; children run these scripts with
# the file as their argument

NAMES = (
    "preamble",
    "killed",
    "killed_late",
    "race",
    "race_unlocked",
    "killed_at",
    "full_disk",
    "full_disk_with_answers",
)
(
    PREAMBLE,
    KILLED,
    KILLED_LATE,
    RACE,
    RACE_UNLOCKED,
    KILLED_AT,
    FULL_DISK,
    FULL_DISK_WITH_ANSWERS,
) = (cases(__file__, f"ledger_{name}") for name in NAMES)


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def run_until_killed(script: str, path: Path, delay: float) -> list[int]:
    """Return the numbers that a child printed until SIGKILL, sent ``delay`` seconds
    after the first of them.
    """
    with start(script, path) as child:
        first = child.stdout.readline()
        time.sleep(delay)
        child.kill()
        rest = child.stdout.read()
    assert child.returncode == -signal.SIGKILL
    return [
        int(line)
        for line in (first + rest).splitlines(keepends=True)
        if line.endswith("\n")
    ]


def forgotten(script: str, path: Path) -> Counter[int]:
    """Return the numbers that were printed before six kills but aren't in the ledger,
    or were given out twice. What is in the ledger has its answers, if it had any.
    """
    Ledger(path).set_total(10**6)
    delays = [0.004 * k + 0.0007 * k * k for k in range(0, 12, 2)]
    printed = [
        number for delay in delays for number in run_until_killed(script, path, delay)
    ]
    assert len(printed) >= len(delays)
    entries = Ledger(path).entries()
    assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
    assert all(len(entry.spends) == 2 for entry in entries)
    for entry in Ledger(path).resumable():
        _, [(_, first), (_, second)] = Ledger(path).journal_of(entry).read()
        assert (decoded(first), second) == (len(path.name) + 25, bytes(3))
    return Counter(printed) - Counter(entry.number for entry in entries)


@pytest.mark.slow
def test_kill_never_forgets_a_spend_and_a_late_commit_would_be_caught(
    tmp_path: Path,
) -> None:
    assert not forgotten(KILLED, tmp_path / "a.sqlite")
    assert forgotten(KILLED_LATE, tmp_path / "b.sqlite")


@pytest.mark.slow
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("act", ["charge", "reserve_and_charge", "charge_with_answers"])
def test_kill_before_every_statement(path: Path, act: str, begun: bool) -> None:
    if begun:
        Ledger(path).set_total(100)
    with start(KILLED_AT, path, act, "begun" if begun else "new") as child:
        *seen, printed = child.stdout.read().splitlines()
    assert child.returncode == 0
    ledger = Ledger(path)
    assert numbers(ledger) == [int(printed)] == [1]
    assert [attempt.outcome for attempt in ledger.attempts()].count("charged") == 1
    # of the runs that were killed no answer is left that could be read
    n_kept = 1 if act == "charge_with_answers" else 0
    assert len(ledger.resumable()) == n_kept
    assert sum(is_readable(file) for file in path.parent.glob("*.answers")) == n_kept
    if not begun:
        return
    killed = [line.split() for line in seen]
    assert len(killed) > 10, "too few moments to be the whole charge"
    assert all(n_entries == "0" for n_entries, _, _ in killed), (
        "a charge was recorded before its COMMIT"
    )
    # a reservation that was made is never forgotten, and counts until it is struck
    assert all(
        Fraction(reserved) == Fraction(n_attempts) / 10
        for _, n_attempts, reserved in killed
    )
    n_open = int(killed[-1][1])
    assert (n_open > 10) == (act == "reserve_and_charge")
    assert ledger.summary().remaining_epsilon == 100 - Fraction(n_open + 1, 10)
    for attempt in ledger.attempts():
        if attempt.outcome is None:
            ledger.strike(attempt.number)
    assert ledger.summary().remaining_epsilon == 100 - Fraction(1, 10)


def is_readable(file: Path) -> bool:
    try:
        return bool(in_file(file, "SELECT * FROM answers"))
    except sqlite3.OperationalError:
        return False


def test_answers_that_dont_fit_on_the_disk_aren_t_charged(path: Path) -> None:
    Ledger(path).set_total(1)
    with start(FULL_DISK_WITH_ANSWERS, path, path.stat().st_size + 10**5) as child:
        [complaint] = child.stdout.read().splitlines()
    assert child.returncode == 0
    assert complaint.startswith(f"ledger {path} can't ")
    assert numbers(Ledger(path)) == []
    assert Ledger(path).summary().remaining_epsilon == 1


def test_full_disk_loses_no_spend(path: Path) -> None:
    charge(Ledger(path), pure("1"))
    with start(FULL_DISK, path, path.stat().st_size) as child:
        *printed, complaint = child.stdout.read().splitlines()
    assert child.returncode == 0
    assert complaint.startswith(f"ledger {path} can't ")
    assert numbers(Ledger(path)) == [1, *map(int, printed)]
    assert charge(Ledger(path), pure("1")) == len(printed) + 2


def race(script: str, path: Path) -> int:
    """Return how many charges of one tenth four processes got out of a total of one."""
    Ledger(path).set_total(1)
    children = [start(script, path) for _ in range(4)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=60)[0] for child in children]
    assert [child.returncode for child in children] == [0] * 4
    n_charged = sum(map(int, answers))
    assert len(Ledger(path).entries()) == n_charged
    return n_charged


@pytest.mark.slow
def test_four_processes_never_overspend_and_a_ledger_that_does_not_lock_would_be_caught(
    path: Path,
) -> None:
    assert race(RACE, path) == 10
    assert Ledger(path).summary().remaining_epsilon == 0
    assert race(RACE_UNLOCKED + RACE, path.with_name("unlocked.sqlite")) > 10


def test_public_columns_are_read_under_an_account_that_may_be_new(tmp_path):
    ledger = Ledger(tmp_path / "new.sqlite")
    with ledger.hold(request_to_read(SCHEMA, "add-remove")):
        assert ledger.path.exists()
    assert ledger.summary().spent_epsilon == 0
    # without a relation there is nothing to make an account of
    other = Ledger(tmp_path / "other.sqlite")
    without = other.hold(Request(mechanism="reading", schema=SCHEMA))
    with pytest.raises(InputError, match="doesn't exist"), without:
        pass
    with pytest.raises(InputError, match="replace-one, add-remove"):
        request_to_read(SCHEMA, "remove-one")
