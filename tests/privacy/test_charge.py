"""A charge from its first noisy answer to its end: whatever stops a run leaves nothing
charged, or a charge that is resumed with the answers that it had.
"""

import gc
import json
import re
import sqlite3
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
from tables import refuses, schema_of

from pdips import InputError, Ledger, Margins, RefusedError, Table
from pdips.errors import DataError, NotConvergedError, PlanError, ResumableError
from pdips.file_lock import FileLock
from pdips.mechanism import Drawn, Mechanism
from pdips.privacy import charge as module
from pdips.privacy.charge import Charge
from pdips.privacy.curator import Curator
from pdips.privacy.journal import Journal, decoded
from pdips.privacy.ledger import Ledger as LedgerClass
from pdips.privacy.plan import Plan, Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.offers import Offers

SCHEMA = schema_of(2, 3)
N_STEPS = 4
STRIDE = 5
"""Every so manieth line is interrupted; all of them were tried once."""


class Stopped(BaseException):
    """The run comes to its end."""


def nothing(_: int) -> None:
    """Happen between two answers."""


@dataclass(frozen=True, kw_only=True)
class RepeatedCounts(Mechanism):
    """Counts all cells several times, and publishes all answers."""

    name: ClassVar[str] = "repeated-counts"
    offers: ClassVar[Offers] = Offers(relations=("replace-one", "add-remove"))
    after: ClassVar[Callable[[int], None]] = staticmethod(nothing)
    counted: ClassVar[list[int]] = []
    answered: ClassVar[list[list[int]]] = []

    def plan(self, schema) -> Plan:
        price, cells = (
            self.per_round(N_STEPS),
            Sensitivity.of_counts(schema, self.neighbours),
        )
        steps = [
            Step(name=f"count {k}", sensitivity=cells, price=price, counts="each cell")
            for k in range(N_STEPS)
        ]
        return self.planned(schema, steps, "It counts.")

    def ask(self, plan: Plan, curator: Curator) -> list[np.ndarray]:
        self.answered.clear()
        noisy = []
        for number, step in enumerate(plan.steps):

            def exact(table: Table, number: int = number) -> np.ndarray:
                self.counted.append(number)
                return cell_counts(table)

            noisy.append(curator.count(step, exact))
            self.answered.append(noisy[-1].tolist())
            type(self).after(number)
        return noisy

    def draw(self, plan, measured, n_sets, rng, public) -> Drawn:
        return Drawn(
            sets=[pd.DataFrame({"a": [0], "b": [int(rng.integers(3))]})],
            statistics={"counts": pd.DataFrame(measured)},
        )


def cell_counts(table: Table) -> np.ndarray:
    place = np.ravel_multi_index([table.codes[name] for name in "ab"], (2, 3))
    return np.bincount(place, minlength=6)


MADE = RepeatedCounts(epsilon=1)


@pytest.fixture(autouse=True)
def _forget() -> None:
    RepeatedCounts.counted.clear()
    RepeatedCounts.answered.clear()


@pytest.fixture
def stopping(monkeypatch) -> Callable[..., None]:
    """Let runs stop by an error after the answer of a step; -1 for never."""

    def stop(after: int, error: BaseException | None = None) -> None:
        def check(number: int) -> None:
            if number == after:
                raise Stopped if error is None else error

        monkeypatch.setattr(RepeatedCounts, "after", staticmethod(check))

    return stop


def stored(ledger: Ledger) -> list[list[int]]:
    """Return the answers in the journal of the only charge that can be resumed."""
    [entry] = ledger.resumable()
    return [decoded(data).tolist() for _, data in ledger.journal_of(entry).read()[1]]


def files(ledger: Ledger) -> set[str]:
    """Return what lies beside a ledger."""
    known = {ledger.path.name, f"{ledger.path.name}.key"}
    return {file.name for file in ledger.path.parent.iterdir()} - known


def fails(
    call: Callable[..., object], *given: object, error: type = ResumableError, **named
) -> str:
    """Return the line with which a call fails."""
    with pytest.raises(error) as caught:
        call(*given, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Answers are committed before they are used


@pytest.mark.parametrize("last", range(N_STEPS))
def test_answers_are_in_the_journal_before_they_are_used(
    ledger, table, stopping, last
) -> None:
    stopping(last)
    fails(MADE.release, table, ledger=ledger)
    assert stored(ledger) == RepeatedCounts.answered
    assert len(stored(ledger)) == last + 1
    assert ledger.summary().spent_epsilon == 1


def test_nothing_is_committed_before_the_first_answer(ledger, table, stopping) -> None:
    def broken(table: Table) -> np.ndarray:
        raise Stopped

    @dataclass(frozen=True, kw_only=True)
    class Broken(RepeatedCounts):
        def ask(self, plan, curator) -> None:
            curator.count(plan.steps[0], broken)

    ledger.set_total(1)
    with pytest.raises(Stopped):
        Broken(epsilon=1).release(table, ledger=ledger)
    assert (ledger.entries(), files(ledger)) == ([], set())


@pytest.mark.parametrize("last", range(N_STEPS))
def test_a_resumed_release_has_the_answers_that_it_had(
    ledger, table, stopping, last
) -> None:
    stopping(last)
    fails(MADE.release, table, ledger=ledger)
    before = [*RepeatedCounts.answered]
    RepeatedCounts.counted.clear()
    stopping(-1)
    release, _ = MADE.release(table, ledger=ledger, resume=1)
    after = release.statistics["counts"].to_numpy().tolist()
    assert after[: last + 1] == before
    # of a step that was answered nothing is counted again
    assert RepeatedCounts.counted == [*range(last + 1, N_STEPS)]
    assert stored(ledger) == after
    assert release.receipt == ledger.entries()[0].receipt(ledger.name())
    assert ledger.summary().spent_epsilon == 1
    release.finish()
    assert (ledger.entries()[0].end, files(ledger)) == ("finished", set())
    release.finish()


@pytest.mark.slow
def test_later_answers_are_drawn_anew(tmp_path, table, stopping) -> None:
    # 40 charges, each resumed after its second answer: that the third answers of two
    # resumed runs agree in all six cells has a probability below 1e-4 a pair
    third = set()
    for number in range(40):
        ledger = Ledger(tmp_path / f"{number}.sqlite")
        stopping(2)
        fails(MADE.release, table, ledger=ledger)
        unseen = tuple(RepeatedCounts.answered[2])
        stopping(-1)
        # as if the run had been killed before the third answer was committed
        with_two_answers(ledger)
        release, _ = MADE.release(table, ledger=ledger, resume=1)
        again = tuple(release.statistics["counts"].iloc[2].tolist())
        assert again != unseen
        third.add(again)
    assert len(third) == 40


def with_two_answers(ledger: Ledger) -> None:
    [entry] = ledger.resumable()
    with closing(
        sqlite3.connect(ledger.journal_of(entry).path, isolation_level=None)
    ) as connection:
        connection.execute("DELETE FROM answers WHERE number > 2")


# Whatever happens between a draw and its commit


def raising(error: BaseException, method: Callable[..., Any], *, done: bool):
    """Return a method that raises, before or after its work is done, once."""
    left = [1]

    def wrapped(*given, **named):
        if not left or not left.pop():
            return method(*given, **named)
        if done:
            method(*given, **named)
        raise error

    return wrapped


ERRORS = {
    "interrupt": KeyboardInterrupt(),
    "exit": SystemExit(0),
    "disk": OSError(28, "No space left on device"),
    "locked": InputError("ledger l.sqlite is locked by another process"),
    "bug": ZeroDivisionError("SECRET"),
    "memory": MemoryError(),
}
PLACES: dict[str, tuple[type, str]] = {
    "fingerprint": (Table, "fingerprint"),
    "journal made": (Journal, "create"),
    "ledger": (LedgerClass, "charge"),
    "answers": (Journal, "begin"),
    "encoding": (module, "encoded"),
    "lock": (module, "_locked"),
}


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("place", PLACES)
def test_what_fails_before_the_commit_charges_nothing_and_leaves_nothing(
    ledger, table, monkeypatch, place, name, begun
) -> None:
    if begun:
        ledger.set_total(1)
    owner, method = PLACES[place]
    error = ERRORS[name]
    if place == "fingerprint":

        def failing(self):
            raise error

        monkeypatch.setattr(Table, "fingerprint", property(failing))
    else:
        wrapped = raising(error, getattr(owner, method), done=False)
        monkeypatch.setattr(owner, method, wrapped)
    with pytest.raises(type(error)):
        MADE.release(table, ledger=ledger)
    monkeypatch.undo()
    assert files(ledger) == set()
    if begun:
        assert ledger.entries() == []
    release, _ = MADE.release(table, ledger=ledger)
    assert release.receipt.number == 1


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("name", ERRORS)
def test_a_commit_whose_return_is_lost_is_a_charge_that_resumes(
    ledger, table, monkeypatch, name, begun
) -> None:
    if begun:
        ledger.set_total(1)
    wrapped = raising(ERRORS[name], LedgerClass.charge, done=True)
    monkeypatch.setattr(LedgerClass, "charge", wrapped)
    said = fails(MADE.release, table, ledger=ledger)
    assert "the release is charged (number 1) and not published" in said
    assert "Finish it at no further price: repeat the call with resume=1" in said
    assert "SECRET" not in said
    release, _ = MADE.release(table, ledger=ledger, resume=1)
    assert release.statistics["counts"].shape == (N_STEPS, 6)


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("name", ERRORS)
def test_a_later_answer_whose_commit_fails_is_drawn_or_read_again(
    ledger, table, monkeypatch, name, done
) -> None:
    wrapped = raising(ERRORS[name], Journal.append, done=done)
    monkeypatch.setattr(Journal, "append", wrapped)
    fails(MADE.release, table, ledger=ledger)
    # the second answer was seen by nobody
    assert len(RepeatedCounts.answered) == 1
    before = stored(ledger)
    assert len(before) == 1 + done
    release, _ = MADE.release(table, ledger=ledger, resume=1)
    after = release.statistics["counts"].to_numpy().tolist()
    assert after[: len(before)] == before


def test_a_disk_that_is_full_for_a_later_answer_is_said_in_one_line(
    ledger, table, monkeypatch
) -> None:
    opened = sqlite3.connect

    def full(*given, **named):
        connection = opened(*given, **named)
        if str(given[0]).partition("?")[0].endswith(".answers"):
            connection.execute("PRAGMA max_page_count = 1")
        return connection

    monkeypatch.setattr(sqlite3, "connect", full)
    monkeypatch.setattr(
        module, "encoded", lambda answer, real=module.encoded: real(answer) * 99
    )
    said = fails(MADE.release, table, ledger=ledger)
    assert "can't grow; the disk is full; the release is charged" in said


def test_a_ledger_that_cant_be_read_after_the_commit_may_hold_the_charge(
    ledger, table, monkeypatch
) -> None:
    ledger.set_total(1)
    wrapped = raising(KeyboardInterrupt(), LedgerClass.charge, done=True)
    monkeypatch.setattr(LedgerClass, "charge", wrapped)
    with monkeypatch.context() as away:
        away.setattr(LedgerClass, "entries", locked)
        said = fails(MADE.release, table, ledger=ledger)
    assert "whether the release is charged isn't known" in said
    assert f"pdips resume {ledger.path} finishes the release, if it was charged" in said
    release, _ = MADE.release(table, ledger=ledger, resume=1)
    assert release.receipt.number == 1


INTERRUPTED = [
    str(Path(module.__file__).with_name(f"{name}.py"))
    for name in ("charge", "ledger", "log", "journal", "budget")
] + [str(Path(module.__file__).parents[1] / "file_lock.py")]


def interrupting(k: int, lines: list[str]) -> Callable[..., Any]:
    """Return a trace function that interrupts the k-th line of what charges; the lines
    are noted.
    """

    def trace(frame, event, _):
        callers = [each for each in (frame, frame.f_back) if each is not None]
        # Python drops what is raised in a finaliser
        is_final = any(each.f_code.co_name == "__del__" for each in callers)
        if frame.f_code.co_filename not in INTERRUPTED or is_final:
            return None
        if event == "line":
            lines.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            if len(lines) == k:
                raise KeyboardInterrupt
        return trace

    return trace


def interrupted_ends(table: Table, folder: Path, lines: range) -> set[str]:
    """Return how releases end that are interrupted at these lines."""
    ends = set()
    for k in lines:
        # what lies beside a ledger is looked at, which takes lines
        (folder / f"{k}").mkdir()
        ledger = Ledger(folder / f"{k}" / "l.sqlite")
        ledger.set_total(1)
        seen: list[str] = []
        before = sys.gettrace()
        sys.settrace(interrupting(k, seen))
        try:
            end = ended(MADE, table, ledger)
        finally:
            sys.settrace(before)
        ends.add(end)
        assert len(ledger.entries()) == (end != "not charged"), seen[-1]
        if end == "not charged":
            assert not left_beside(ledger), seen[-1]
        if end == "resumable":
            MADE.release(table, ledger=ledger, resume=1)[0].finish()
            assert not left_beside(ledger), seen[-1]
    return ends


def left_beside(ledger: Ledger) -> set[Path]:
    """Return the files beside a ledger, but for the empty one of a lock that nobody
    holds: an interrupt may come as soon as it is made.
    """
    beside = {*ledger.path.parent.glob(f"{ledger.path.name}?*")}
    known = {file for file in beside if file.suffix in (".key", ".lock")}
    return beside - {file for file in known if not FileLock.is_held(file)}


@pytest.mark.slow
def test_an_interrupt_at_any_line_leaves_one_of_two_ends(tmp_path, table) -> None:
    lines: list[str] = []
    before = sys.gettrace()
    sys.settrace(interrupting(0, lines))
    try:
        ended(MADE, table, Ledger(tmp_path / "l.sqlite"))
    finally:
        sys.settrace(before)
    with warnings.catch_warnings():
        # of a connection that an interrupt lost as soon as it was made
        warnings.simplefilter("ignore", ResourceWarning)
        ends = interrupted_ends(table, tmp_path, range(1, len(lines), STRIDE))
        gc.collect()
    assert ends >= {"not charged", "resumable"}


def ended(mechanism: Mechanism, table: Table, ledger: Ledger) -> str:
    try:
        mechanism.release(table, ledger=ledger)
    except KeyboardInterrupt:
        return "not charged"
    except ResumableError:
        return "resumable"
    return "released"


# Messages


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (KeyboardInterrupt(), "interrupted; the release is charged"),
        (SystemExit(3), "interrupted; the release is charged"),
        (ZeroDivisionError("SECRET"), "stopped by ZeroDivisionError; the release"),
        (Stopped("SECRET"), "stopped by Stopped; the release"),
        (OSError(28, "No space left on device", "/SECRET"), "No space left on device;"),
        (InputError("the model has no x"), "the model has no x; the release"),
        (NotConvergedError("chains disagree"), "chains disagree; the release"),
        (RefusedError("chains of noisy answers disagree"), "disagree; the release"),
    ],
)
def test_what_stopped_a_run_is_said_without_a_value(
    ledger, table, stopping, error, what
) -> None:
    stopping(0, error)
    said = fails(MADE.release, table, ledger=ledger)
    assert said.startswith(what.partition(";")[0]) or what in said
    assert what in said
    assert "SECRET" not in said
    assert len(ledger.resumable()) == 1


def test_the_way_out_names_the_command_where_there_was_one(
    ledger, table, stopping
) -> None:
    stopping(0)
    said = fails(
        MADE.release,
        table,
        ledger=ledger,
        command={"name": "synthesize", "options": {}},
    )
    assert f"pdips resume {ledger.path} 1" in said


def test_what_cant_be_counted_is_a_refusal_that_says_no_more(
    ledger, table, monkeypatch
) -> None:
    def overflowing(table: Table) -> np.ndarray:
        raise OverflowError("SECRET")

    monkeypatch.setattr("test_charge.cell_counts", overflowing)
    with ledger.reserve(MADE, SCHEMA):
        said = fails(MADE.release, table, ledger=ledger, error=DataError)
        assert said == "the records can't be counted: OverflowError"
        with pytest.raises(DataError), ledger_of(ledger).reserve(MADE, SCHEMA):
            raise DataError
    assert files(ledger) == set()


def test_nothing_is_released_by_the_plan_of_another(ledger, table) -> None:
    cheap = RepeatedCounts(epsilon="1/100").plan(SCHEMA)
    refuses("isn't that of", MADE.release_planned, cheap, table, error=PlanError)
    assert not RepeatedCounts.counted
    release, _ = MADE.release_planned(MADE.plan(SCHEMA), table)
    assert release.loss.epsilon == 1
    # the broken twin: a plan that doesn't know who made it
    release, _ = MADE.release_planned(replace(cheap, made_by=None), table)
    assert release.loss.epsilon < 1 == release.settings["epsilon"]


@pytest.mark.parametrize("n_answered", [0, 1])
def test_no_traceback_quotes_a_record(ledger, table, monkeypatch, n_answered) -> None:
    def quoting(table: Table) -> np.ndarray:
        if len(RepeatedCounts.counted) <= n_answered:
            return np.zeros(6, dtype=int)
        raise KeyError("a name in a record")

    monkeypatch.setattr("test_charge.cell_counts", quoting)
    with (
        pytest.raises((DataError, ResumableError)) as caught,
        ledger.reserve(MADE, SCHEMA),
    ):
        MADE.release(table, ledger=ledger)
    printed = "".join(traceback.format_exception(caught.value))
    assert "KeyError" in printed
    assert "a name" not in printed
    assert len(ledger.entries()) == n_answered


def ledger_of(ledger: Ledger) -> Ledger:
    """Return the ledger as another process has it."""
    return Ledger(ledger.path)


@pytest.mark.parametrize("error", [OSError(5, "I/O"), InputError("gone")])
def test_a_fault_of_the_machine_is_no_refusal(
    ledger, table, monkeypatch, error
) -> None:
    def failing(table: Table) -> np.ndarray:
        raise error

    monkeypatch.setattr("test_charge.cell_counts", failing)
    with pytest.raises(type(error)), ledger.reserve(MADE, SCHEMA):
        MADE.release(table, ledger=ledger)
    assert [one.outcome for one in ledger.attempts()] == ["withdrawn"]
    assert ledger.summary().refusals == 0


# What steers later questions


@dataclass(frozen=True, kw_only=True)
class SteeredCounts(RepeatedCounts):
    """Keeps random numbers before, between and after its answers."""

    name: ClassVar[str] = "steered-counts"
    kept: ClassVar[list[object]] = []

    def ask(self, plan, curator) -> None:
        rng = curator.generator
        self.kept.clear()
        self.kept.append(curator.keep(lambda: int(rng.integers(2**40))))
        for number, step in enumerate(plan.steps):
            curator.count(step, cell_counts)
            self.kept.append(curator.keep(lambda: rng.random(3)).tolist())
            self.kept.append(curator.decide(np.arange(3), lambda n: n + rng.random()))
            type(self).after(number)

    def draw(self, plan, measured, n_sets, rng, public) -> Drawn:
        return Drawn(sets=[pd.DataFrame({"a": [0], "b": [1]})])


def test_what_steers_later_questions_is_made_once(ledger, table, stopping) -> None:
    made = SteeredCounts(epsilon=1)
    stopping(1)
    fails(made.release, table, ledger=ledger)
    before = [*SteeredCounts.kept]
    [entry] = ledger.resumable()
    names = [name for name, _ in ledger.journal_of(entry).read()[1]]
    kept = ["(kept)", "(kept)"]
    assert names == ["(kept)", "count 0", *kept, "count 1", *kept]
    stopping(-1)
    made.release(table, ledger=ledger, resume=1)
    after = SteeredCounts.kept
    assert len(before) == 5
    assert [*map(str, after[:5])] == [*map(str, before)]


def test_what_is_kept_before_the_first_answer_charges_nothing(
    ledger, table, monkeypatch
) -> None:
    def broken(table: Table) -> np.ndarray:
        raise Stopped

    ledger.set_total(1)
    monkeypatch.setattr("test_charge.cell_counts", broken)
    with pytest.raises(Stopped):
        SteeredCounts(epsilon=1).release(table, ledger=ledger)
    assert (ledger.entries(), files(ledger)) == ([], set())


# Who may resume what


@pytest.fixture
def stopped(ledger, table, stopping) -> Ledger:
    """A ledger with a charge that has two of four answers."""
    stopping(1)
    fails(MADE.release, table, ledger=ledger)
    stopping(-1)
    return ledger


def test_another_table_is_refused_and_that_is_on_record(stopped, table) -> None:
    rows = table.frame.to_numpy().copy()
    rows[17] = 1 - rows[17, 0], rows[17, 1]
    other = Table(pd.DataFrame(rows, columns=["a", "b"]), SCHEMA)
    said = fails(MADE.release, other, ledger=stopped, resume=1, error=InputError)
    assert "the table isn't the one that it was charged for" in said
    assert "That it differs is on record" in said
    assert stopped.summary().refusals == 1
    assert len(stored(stopped)) == 2
    MADE.release(table, ledger=stopped, resume=1)[0].finish()


OTHERS = {
    "epsilon": (RepeatedCounts(epsilon=2), SCHEMA),
    "sets": (RepeatedCounts(epsilon=1, n_sets=2), SCHEMA),
    "neighbours": (RepeatedCounts(epsilon=1, neighbours="add-remove"), SCHEMA),
    "mechanism": (SteeredCounts(epsilon=1), SCHEMA),
    "schema": (MADE, SCHEMA.model_copy(update={"title": "another"})),
    "levels": (MADE, schema_of(2, 4)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_plan_is_refused(stopped, table, what) -> None:
    made, schema = OTHERS[what]
    before = stopped.path.read_bytes()
    said = fails(
        made.release,
        Table(table.frame, schema),
        ledger=stopped,
        resume=1,
        error=InputError,
    )
    assert "was made for another plan: give the mechanism, its settings" in said
    assert stopped.path.read_bytes() == before
    assert len(stored(stopped)) == 2


def test_other_code_is_refused(stopped, table, monkeypatch) -> None:
    monkeypatch.setattr("pdips.mechanism.code_version", lambda: "9.9.9+0000")
    said = fails(MADE.release, table, ledger=stopped, resume=1, error=InputError)
    assert re.search(
        r"made by another version of the code \(\d+\.\d+\.\w+\+[0-9a-f]{12}, this is "
        r"9\.9\.9\+0000\): resume it with that version",
        said,
    )


def test_other_questions_than_were_answered_are_refused(
    stopped, table, monkeypatch
) -> None:
    # code that asks otherwise and says that it is the same
    def renamed(self, name, draw, real=Charge.answer):
        return real(self, name.upper(), draw)

    monkeypatch.setattr(Charge, "answer", renamed)
    said = fails(MADE.release, table, ledger=stopped, resume=1)
    assert "stopped by PlanError" in said


def test_one_at_a_time(stopped, table, monkeypatch) -> None:
    tried = []

    def meanwhile(number: int) -> None:
        if not tried:
            tried.append(
                fails(
                    MADE.release,
                    table,
                    ledger=ledger_of(stopped),
                    resume=1,
                    error=InputError,
                )
            )

    monkeypatch.setattr(RepeatedCounts, "after", staticmethod(meanwhile))
    release, _ = MADE.release(table, ledger=stopped, resume=1)
    assert "charge 1 is being worked on by another process" in tried[0]
    release.finish()
    assert files(stopped) == set()


def test_a_running_release_isnt_resumed_by_another(ledger, table, monkeypatch) -> None:
    tried = []

    def meanwhile(number: int) -> None:
        other = ledger_of(ledger)
        with monkeypatch.context() as patched:
            patched.setattr(RepeatedCounts, "after", staticmethod(nothing))
            tried.append(
                fails(MADE.release, table, ledger=other, resume=1, error=InputError)
            )

    monkeypatch.setattr(RepeatedCounts, "after", staticmethod(meanwhile))
    MADE.release(table, ledger=ledger)
    assert len(tried) == N_STEPS
    assert {*tried} == {
        "charge 1 is being worked on by another process; wait for its end"
    }


def test_what_has_ended_or_never_was_isnt_resumed(stopped, table) -> None:
    again = {"ledger": stopped, "resume": 1, "error": InputError}
    for number in (0, 2, -1):
        said = fails(MADE.release, table, **again | {"resume": number})
        assert f"has no charge {number}" in said
    said = fails(MADE.release, table, resume=1, error=InputError)
    assert said == "resume needs the ledger that was charged"
    [entry] = stopped.resumable()
    journal = stopped.journal_of(entry).path
    away = journal.rename(journal.with_suffix(".away"))
    assert "aren't beside ledger" in fails(MADE.release, table, **again)
    away.rename(journal)
    MADE.release(table, ledger=stopped, resume=1)[0].finish()
    assert "is finished: its release is in its place" in fails(
        MADE.release, table, **again
    )


def test_a_journal_that_was_changed_is_refused(stopped, table) -> None:
    [entry] = stopped.resumable()
    path = stopped.journal_of(entry).path
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE answers SET data = x'00' WHERE number = 2")
    said = fails(MADE.release, table, ledger=stopped, resume=1, error=InputError)
    assert "can't be read; put it back from a copy" in said
    # and the charge is free for whoever has the copy
    assert files(stopped) == {path.name}


def test_a_reservation_becomes_the_charge_that_is_resumed(
    ledger, table, stopping
) -> None:
    ledger.set_total(1)
    stopping(0)
    with pytest.raises(ResumableError), ledger.reserve(MADE, SCHEMA):
        MADE.release(table, ledger=ledger)
    assert [one.outcome for one in ledger.attempts()] == ["charged"]
    assert ledger.summary().remaining_epsilon == 0
    stopping(-1)
    MADE.release(table, ledger=ledger, resume=1)[0].finish()
    assert len(ledger.attempts()) == 1


def locked(*_: object) -> None:
    raise InputError("the ledger is locked")


def test_an_end_that_cant_be_recorded_can_be_recorded_later(
    ledger, table, monkeypatch
) -> None:
    release, _ = MADE.release(table, ledger=ledger)
    with monkeypatch.context() as patched:
        patched.setattr(LedgerClass, "end", locked)
        refuses("locked", release.finish)
    assert len(ledger.resumable()) == 1
    release.finish()
    assert (ledger.entries()[0].end, files(ledger)) == ("finished", set())


# What is kept


def test_neither_a_seed_nor_an_exact_count_is_kept(ledger, stopping) -> None:
    # counts and a seed whose digits and bytes no file has by chance
    seed = 918_273_645_546_372
    n_records = np.array([40_009, 30_011, 20_021, 10_007, 50_021, 60_013])
    place = np.repeat(np.arange(6), n_records)
    frame = pd.DataFrame({"a": place // 3, "b": place % 3})
    table = Table(frame, SCHEMA)
    stopping(N_STEPS - 1)
    loud = RepeatedCounts(epsilon="1/1000")
    rng = np.random.default_rng(seed)
    state = rng.bit_generator.state["state"]
    fails(loud.release, table, ledger=ledger, rng=rng)
    kept = ledger.path.read_bytes()
    for file in files(ledger):
        kept += (ledger.path.parent / file).read_bytes()
    assert n_records.tolist() not in RepeatedCounts.answered
    for number in (*n_records.tolist(), seed, len(table.frame), *state.values()):
        assert str(number).encode() not in kept
        n_bytes = max(8, -(-number.bit_length() // 8))
        for order in ("little", "big"):
            assert number.to_bytes(n_bytes, order) not in kept
    # the search finds what is there: the twin keeps noisy counts, and these it finds
    for number in RepeatedCounts.answered[0]:
        assert number.to_bytes(8, "little", signed=True) in kept
    assert table.fingerprint.encode() not in kept


def test_journal_and_release_have_the_same_numbers_and_nothing_else(
    ledger, table
) -> None:
    # so that the journal says of the table what the release says
    release, _ = MADE.release(table, ledger=ledger)
    [entry] = ledger.resumable()
    facts, answers = ledger.journal_of(entry).read()
    shown = release.statistics["counts"].to_numpy().tolist()
    assert [decoded(data).tolist() for _, data in answers] == shown
    assert [name for name, _ in answers] == [f"count {k}" for k in range(N_STEPS)]
    assert {*facts} == {"reproducible", "table"}
    assert facts["table"] == ledger.salted(table.fingerprint)


def test_a_release_from_a_seed_stays_one_when_it_is_resumed(
    ledger, table, stopping, tmp_path
) -> None:
    stopping(1)
    fails(MADE.release, table, ledger=ledger, rng=np.random.default_rng(5))
    stopping(-1)
    release, _ = MADE.release(table, ledger=ledger, resume=1)
    assert release.reproducible
    assert release.loss.statement.startswith("MADE FROM A SEED")
    refuses("made from a seed", release.publish, tmp_path / "out", error=RefusedError)
    assert len(ledger.resumable()) == 1


def test_a_release_that_is_resumed_with_a_seed_is_one_from_then_on(
    stopped, table
) -> None:
    release, _ = MADE.release(
        table, ledger=stopped, resume=1, rng=np.random.default_rng(5)
    )
    assert release.reproducible


# Chains


class Chains:
    """A distribution that is drawn from by chains that read records."""

    error: ClassVar[BaseException | None] = None

    def draw(self, bits, runs: int = 1) -> list[np.ndarray]:
        if self.error is not None:
            raise self.error
        return [bits.words(3, np.uint32)]


@dataclass(frozen=True, kw_only=True)
class ChainedCounts(Mechanism):
    """A draw from a distribution by chains that read records."""

    name: ClassVar[str] = "chained-counts"

    def plan(self, schema) -> Plan:
        cells = Sensitivity.of_counts(schema, self.neighbours)
        draw = Step(
            name="a draw",
            sensitivity=cells,
            price=Fraction(self.epsilon),
            law="distribution",
        )
        return self.planned(schema, [draw], "It draws.", sampling="mcmc")

    def ask(self, plan, curator) -> list[np.ndarray]:
        return curator.draw(plan.steps[0], lambda table: Chains())

    def draw(self, plan, measured, n_sets, rng, public) -> Drawn:
        return Drawn(
            sets=[pd.DataFrame({"a": [0], "b": [1]})],
            statistics={"draw": pd.DataFrame(measured)},
        )


CHAINED = ChainedCounts(epsilon=1)


def test_chains_that_read_records_and_dont_converge_end_their_charge(
    ledger, table, monkeypatch
) -> None:
    monkeypatch.setattr(Chains, "error", NotConvergedError("not converged"))
    said = fails(CHAINED.release, table, ledger=ledger, error=NotConvergedError)
    assert said == "not converged"
    assert [entry.end for entry in ledger.entries()] == ["not converged"]
    assert (ledger.summary().spent_epsilon, files(ledger)) == (1, set())
    monkeypatch.setattr(Chains, "error", None)
    said = fails(CHAINED.release, table, ledger=ledger, resume=1, error=InputError)
    assert "its chains did not converge, and repeating them until they do" in said


def test_they_never_run_again_even_if_the_ledger_cant_be_told(
    ledger, table, monkeypatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(LedgerClass, "end", locked)
        patched.setattr(Chains, "error", NotConvergedError("not converged"))
        fails(CHAINED.release, table, ledger=ledger, error=NotConvergedError)
    assert (ledger.resumable(), files(ledger)) == ([], set())
    said = fails(CHAINED.release, table, ledger=ledger, resume=1, error=InputError)
    assert "the answers of charge 1 aren't beside ledger" in said


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("SECRET")])
def test_chains_that_are_stopped_otherwise_can_be_resumed(
    ledger, table, monkeypatch, error
) -> None:
    # charged before they begin: even how long they take isn't shown for free
    monkeypatch.setattr(Chains, "error", error)
    said = fails(CHAINED.release, table, ledger=ledger)
    assert "SECRET" not in said
    assert ledger.summary().spent_epsilon == 1
    assert stored(ledger) == []
    monkeypatch.setattr(Chains, "error", None)
    release, _ = CHAINED.release(table, ledger=ledger, resume=1)
    drawn = release.statistics["draw"].to_numpy().ravel().tolist()
    assert stored(ledger) == [drawn]


@pytest.mark.parametrize("error", [RefusedError("disagree"), NotConvergedError("d")])
def test_chains_that_read_noisy_answers_only_can_be_resumed(
    ledger, table, stopping, error
) -> None:
    stopping(N_STEPS - 1, error)
    said = fails(MADE.release, table, ledger=ledger)
    assert "Finish it at no further price" in said
    stopping(-1)
    before = [*RepeatedCounts.answered]
    release, _ = MADE.release(table, ledger=ledger, resume=1)
    assert release.statistics["counts"].to_numpy().tolist() == before


# Preparation


def test_what_cant_be_prepared_isnt_charged(ledger, table) -> None:
    ledger.set_total(1)
    order: list[str] = []

    def full() -> None:
        order.append(f"prepared after {len(RepeatedCounts.counted)} count")
        raise InputError("there is no room")

    refuses("there is no room", MADE.release, table, ledger=ledger, prepare=full)
    assert order == ["prepared after 1 count"]
    assert (ledger.entries(), files(ledger)) == ([], set())
    MADE.release(table, ledger=ledger, prepare=lambda: order.append("room"))
    assert order[1:] == ["room"]


def test_publishing_ends_the_charge_and_destroys_its_answers(
    ledger, table, tmp_path
) -> None:
    release, _ = Margins(epsilon=1).release(table, ledger=ledger)
    assert len(files(ledger)) == 1  # the answers
    release.publish(tmp_path / "out")
    assert files(ledger) == {"out"}
    assert ledger.entries()[0].end == "finished"
    carried = json.loads((tmp_path / "out/privacy.json").read_text())["receipt"]
    assert ledger.compare(replace(release.receipt, **carried)) is None
