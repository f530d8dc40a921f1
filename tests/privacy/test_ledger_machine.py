"""The ledger as a state machine: whatever is asked of it in whatever order, by two
objects on one file and by processes that die, it holds what a list of sums holds.
"""

import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import warnings
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pdips import InputError, Ledger, RefusedError, Schema
from pdips.errors import DataError
from pdips.privacy import budget
from pdips.privacy.account import Request
from pdips.privacy.journal import encoded
from pdips.privacy.log import Log
from pdips.privacy.loss import PrivacyLoss, Spend

SCHEMA = Schema.from_toml("[columns.a]\nlevels = [0, 1]\n")
EPSILONS = [Fraction(k, 10) for k in (1, 3, 7, 10)]
TOTALS = [Fraction(k, 10) for k in (5, 10, 20, 40)]
OBJECTS = st.sampled_from([0, 1])
TABLES = ("a table", "a corrected one")
PARTS_OF_A_CHARGE = ("before the row", "after the row", "after the commit")


@dataclass(frozen=True)
class Asked:
    """A request, with what a replace-one account is charged for it."""

    epsilon: Fraction
    neighbours: str

    @property
    def price(self) -> Fraction:
        return self.epsilon * (2 if self.neighbours == "add-remove" else 1)

    def request(self, schema: Schema = SCHEMA) -> Request:
        loss = PrivacyLoss(
            epsilon=self.epsilon,
            neighbours=self.neighbours,
            kind="pure",
            statement="For a test.",
        )
        return Request(
            mechanism="laplace-sanitizer",
            schema=schema,
            loss=loss,
            spends=(Spend(step="counts", epsilon=loss.epsilon),),
            plan="a plan",
            code="0.0",
        )


ASKED = st.builds(
    Asked, st.sampled_from(EPSILONS), st.sampled_from(["replace-one", "add-remove"])
)


@dataclass
class Held:
    """A reservation that an object holds: its row, its price and its context."""

    number: int
    asked: Asked
    context: AbstractContextManager[None]


@dataclass
class Charged:
    """A charge as it must be in the account."""

    price: Fraction
    has_journal: bool
    end: str | None = None


class LedgerMachine(RuleBasedStateMachine):
    """What is asked, and what a list of sums says of it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="machine"))
        self.path = self.folder / "l.sqlite"
        self.ledgers = [Ledger(self.path), Ledger(self.path)]
        self.entered: list[tuple[Ledger, AbstractContextManager]] = []
        self.held: dict[int, Held] = {}
        self.open: dict[int, Fraction] = {}
        self.closed: dict[int, str] = {}
        self.charges: list[Charged] = []
        self.total: Fraction | None = None
        self.refusals = 0
        self.bound: set[str] = set()
        self.rows: list[tuple] = []

    def teardown(self) -> None:
        # The broken twins leave a rule between a reservation and its end; what is left
        # open would be closed by the garbage collector, when the folder has gone.
        for ledger, context in self.entered:
            ledger._held = None
            context.__exit__(None, None, None)
        shutil.rmtree(self.folder)

    # ---- sums ----

    @property
    def spent(self) -> Fraction:
        return sum((charge.price for charge in self.charges), Fraction(0))

    @property
    def reserved(self) -> Fraction:
        return sum(self.open.values(), Fraction(0))

    def fits(self, price: Fraction, instead_of: int | None = None) -> bool:
        others = self.reserved - self.open.get(instead_of, Fraction(0))
        return self.total is None or self.spent + others + price <= self.total

    # ---- what is asked ----

    @initialize(total=st.sampled_from(TOTALS))
    def begin(self, total: Fraction) -> None:
        self.ledgers[0].set_total(total)
        self.total = total

    @rule(total=st.sampled_from(TOTALS), k=OBJECTS)
    def set_total(self, total: Fraction, k: int) -> None:
        if total < self.spent + self.reserved:
            with pytest.raises(RefusedError):
                self.ledgers[k].set_total(total)
            return
        self.ledgers[k].set_total(total)
        self.total = total

    @rule(asked=ASKED, k=OBJECTS)
    def reserve(self, asked: Asked, k: int) -> None:
        allow = ["refusals"] if self.refusals >= budget.FREE_REFUSALS else []
        context = self.ledgers[k].reserve(asked, SCHEMA, allow=allow)
        self.entered.append((self.ledgers[k], context))
        if k in self.held:
            with pytest.raises(InputError, match="already"):
                context.__enter__()
            return
        if not self.fits(asked.price):
            with pytest.raises(RefusedError):
                context.__enter__()
            return
        context.__enter__()
        number = self.ledgers[k].attempts()[-1].number
        self.held[k] = Held(number, asked, context)
        self.open[number] = asked.price

    @precondition(lambda self: self.held)
    @rule(data=st.data(), refuses=st.booleans())
    def let_go(self, data: st.DataObject, refuses: bool) -> None:
        k = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held.pop(k)
        if refuses:
            error = DataError("the records don't fit")
            assert not held.context.__exit__(DataError, error, None)
        else:
            held.context.__exit__(None, None, None)
        # a refusal is on record, and counted, even if its reservation was struck
        if self.open.pop(held.number, None) is not None or refuses:
            self.closed[held.number] = "refused" if refuses else "withdrawn"
            self.refusals += refuses

    @precondition(lambda self: self.held)
    @rule(data=st.data(), with_journal=st.booleans())
    def charge_what_is_reserved(self, data: st.DataObject, with_journal: bool) -> None:
        k = data.draw(st.sampled_from(sorted(self.held)))
        held = self.held[k]
        if held.number not in self.open:
            with pytest.raises(InputError, match="struck"):
                self._charge(self.ledgers[k], held.asked, with_journal)
            return
        self._charge(self.ledgers[k], held.asked, with_journal)
        del self.held[k]
        held.context.__exit__(None, None, None)
        del self.open[held.number]
        self.closed[held.number] = "charged"
        self._note(held.asked, with_journal)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def charge_something_else(self, data: st.DataObject) -> None:
        k = data.draw(st.sampled_from(sorted(self.held)))
        asked = self.held[k].asked
        other = Asked(asked.epsilon + 1, asked.neighbours)
        with pytest.raises(InputError):
            self._charge(self.ledgers[k], other, with_journal=False)

    @precondition(lambda self: len(self.held) < 2)
    @rule(asked=ASKED, with_journal=st.booleans())
    def charge_at_once(self, asked: Asked, with_journal: bool) -> None:
        k = 0 if 0 not in self.held else 1
        if not self.fits(asked.price):
            with pytest.raises(RefusedError):
                self._charge(self.ledgers[k], asked, with_journal)
            return
        number = len(self.rows) + 1
        self._charge(self.ledgers[k], asked, with_journal)
        self.closed[number] = "charged"
        self._note(asked, with_journal)

    @precondition(lambda self: len(self.held) < 2)
    @rule(asked=ASKED, part=st.sampled_from(PARTS_OF_A_CHARGE))
    def die_in_a_charge(self, asked: Asked, part: str) -> None:
        """Another process charges, and is killed on the way."""
        fits, number = self.fits(asked.price), len(self.rows) + 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
            child = os.fork()
        if child == 0:
            self._charge_and_die(asked, part)
        os.waitpid(child, 0)
        if fits and part == "after the commit":
            self.closed[number] = "charged"
            self._note(asked, has_journal=True)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def die_holding(self, data: st.DataObject) -> None:
        self._die(data.draw(st.sampled_from(sorted(self.held))))

    @rule(k=OBJECTS)
    def open_again(self, k: int) -> None:
        if k in self.held:
            self._die(k)
        self.ledgers[k] = Ledger(str(self.path))

    @rule(number=st.integers(1, 40), k=OBJECTS)
    def strike(self, number: int, k: int) -> None:
        if number not in self.open:
            with pytest.raises(InputError, match="no open reservation"):
                self.ledgers[k].strike(number)
            return
        self.ledgers[k].strike(number)
        del self.open[number]
        self.closed[number] = "struck"

    @precondition(lambda self: self.charges)
    @rule(data=st.data(), end=st.sampled_from(["finished", "not converged"]), k=OBJECTS)
    def end(self, data: st.DataObject, end: str, k: int) -> None:
        number = data.draw(st.integers(1, len(self.charges)))
        self.ledgers[k].end(number, end)
        charge = self.charges[number - 1]
        charge.end = charge.end or end

    @precondition(lambda self: len(self.held) < 2 and self.bound)
    @rule(table=st.sampled_from(TABLES))
    def adopt(self, table: str) -> None:
        k = 0 if 0 not in self.held else 1
        self.ledgers[k].adopt(table)
        self.bound.add(table)

    @precondition(lambda self: len(self.held) < 2 and self.bound)
    @rule(asked=ASKED)
    def charge_for_a_stranger(self, asked: Asked) -> None:
        k = 0 if 0 not in self.held else 1
        error = DataError if self.fits(asked.price) else RefusedError
        with pytest.raises(error):
            self.ledgers[k].charge(asked.request(), fingerprint="a stranger")

    # ---- how ----

    def _charge(self, ledger: Ledger, asked: Asked, with_journal: bool) -> None:
        journal = ledger.new_journal() if with_journal else None
        if journal is not None:
            journal.create()
        try:
            ledger.charge(
                asked.request(),
                fingerprint=TABLES[0],
                journal=journal,
                answers=[("counts", encoded(7))] if journal is not None else (),
            )
        except BaseException:
            if journal is not None:
                journal.destroy()
            raise

    def _charge_and_die(self, asked: Asked, part: str) -> None:
        """Charge in this process, and leave at a part of it without a word."""
        append = Log.append

        def dying(log: Log, kind: str, **content: object) -> int:
            if kind == "charge" and part == "before the row":
                os._exit(1)
            number = append(log, kind, **content)
            if kind == "charge" and part == "after the row":
                os._exit(1)
            return number

        try:
            Log.append = dying
            self._charge(Ledger(self.path), asked, with_journal=True)
        finally:
            os._exit(1)

    def _die(self, k: int) -> None:
        """Forget a reservation as a killed process does."""
        self.ledgers[k]._held = None
        self.held.pop(k).context.__exit__(None, None, None)
        self.ledgers[k] = Ledger(self.path)

    def _note(self, asked: Asked, has_journal: bool) -> None:
        self.charges.append(Charged(asked.price, has_journal))
        self.bound.add(TABLES[0])

    # ---- what always holds ----

    @invariant()
    def the_sums_are_right_and_below_the_total(self) -> None:
        if self.total is None:  # not begun
            return
        account = self.ledgers[1].summary()
        assert account.spent_epsilon == self.spent
        assert account.reserved_epsilon == self.reserved
        assert account.total_epsilon == self.total
        assert self.spent + self.reserved <= self.total
        assert account.refusals == self.refusals

    @invariant()
    def nothing_is_forgotten(self) -> None:
        if self.total is None:
            return
        found = self.ledgers[0].entries()
        ends = [(entry.price.charged_epsilon, entry.end) for entry in found]
        assert ends == [(charge.price, charge.end) for charge in self.charges]
        outcomes = {
            attempt.number: attempt.outcome for attempt in self.ledgers[0].attempts()
        }
        assert outcomes == {**self.closed, **dict.fromkeys(self.open)}

    @invariant()
    def rows_are_only_added_and_each_follows_from_the_one_before(self) -> None:
        if self.total is None:
            return
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute("SELECT * FROM log ORDER BY number").fetchall()
            [head] = connection.execute("SELECT * FROM head").fetchall()
        assert rows[: len(self.rows)] == self.rows
        self.rows, chained = rows, b""
        for number, time, kind, text, stated in rows:
            row = json.dumps([number, time, kind, text]).encode()
            chained = hashlib.blake2b(chained + row, digest_size=16).digest()
            assert stated == chained
        assert head == (len(rows), chained)

    @invariant()
    def answers_are_kept_of_open_charges_alone(self) -> None:
        if self.total is None:
            return
        self.ledgers[0].clear_leftovers()
        kept = set()
        for entry, charge in zip(self.ledgers[0].entries(), self.charges, strict=True):
            journal = self.ledgers[0].journal_of(entry)
            if charge.has_journal and charge.end is None:
                kept.add(journal.path.name)
                assert journal.read()[1] == [("counts", encoded(7))]
        # SQLite leaves the file of a transaction that had written nothing yet
        there = {path.name for path in self.folder.iterdir()}
        there.discard(f"{self.path.name}-journal")
        assert there == {self.path.name, f"{self.path.name}.key", *kept}


SETTINGS = settings(
    derandomize=True,
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.generate],  # to make a failing case small takes minutes
    report_multiple_bugs=False,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_whatever_is_asked_the_account_holds_its_sums() -> None:
    run_state_machine_as_test(LedgerMachine, settings=SETTINGS)


def test_a_ledger_that_forgets_what_is_reserved_is_caught(monkeypatch) -> None:
    # the broken twin: what is reserved may be asked for again
    monkeypatch.setattr(
        "pdips.privacy.ledger.refuse_overspending", lambda path, account, price: None
    )
    with pytest.raises(BaseException, match=r"DID NOT RAISE|assert"):
        run_state_machine_as_test(LedgerMachine, settings=SETTINGS)
