"""What the ledger records beside charges: reservations, refusals, units of privacy, receipts, and older formats."""

import shutil
import sqlite3
from contextlib import closing
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tables import cases, refuses
from test_ledger import SCHEMA, Asked, approximate, charge, in_file, numbers, outcomes, pure, reserve

from pdips import Schema
from pdips.errors import DataError, InputError, RefusedError
from pdips.privacy.account import KEPT, Receipt
from pdips.privacy.ledger import Ledger, Unit
from pdips.privacy.loss import MOST_TAU, epsilon_of, largest_rho, zcdp

OLD = Path(__file__).parents[1].joinpath("ledger_format_1.sql")


# Reservations


def test_a_reservation_becomes_its_charge(ledger: Ledger) -> None:
    ledger.set_total(1)
    with ledger.reserve(Asked(pure("3/4")), SCHEMA):
        account = Ledger(ledger.path).summary()
        assert (account.spent_epsilon, account.reserved_epsilon) == (0, Fraction(3, 4))
        assert account.remaining_epsilon == Fraction(1, 4)
        assert charge(ledger, pure("3/4")) == 1
        assert Ledger(ledger.path).summary().reserved_epsilon == 0
    assert ledger.summary().remaining_epsilon == Fraction(1, 4)
    (attempt,), (entry,) = ledger.attempts(), ledger.entries()
    assert (attempt.outcome, attempt.entry, attempt.explained) == ("charged", 1, False)
    assert (entry.unit, entry.schema) == (Unit(), attempt.schema)


def refused(ledger: Ledger, error: type[BaseException], schema: Schema = SCHEMA, *, explain: bool = False) -> None:
    with pytest.raises(error), ledger.reserve(Asked(pure("1")), schema, explain=explain):
        raise error("SECRET")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(DataError, "refused"), (InputError, "withdrawn"), (OSError, "withdrawn"), (KeyboardInterrupt, "withdrawn")],
)
def test_what_fails_before_the_charge_is_recorded_and_costs_nothing(
    ledger: Ledger, error: type[BaseException], outcome: str
) -> None:
    ledger.set_total(1)
    refused(ledger, error)
    refused(ledger, error, explain=True)
    assert [(one.outcome, one.explained) for one in ledger.attempts()] == [(outcome, False), (outcome, True)]
    assert all(len(one.schema) == 16 and one.entry is None for one in ledger.attempts())
    assert ledger.summary().remaining_epsilon == 1
    assert b"SECRET" not in ledger.path.read_bytes()


def test_what_fails_after_the_charge_stays_charged(ledger: Ledger) -> None:
    def charge_and_fail() -> None:
        charge(ledger, pure("1"))
        raise DataError("chains that disagree")

    with pytest.raises(DataError), ledger.reserve(Asked(pure("1")), SCHEMA):
        charge_and_fail()
    assert outcomes(ledger) == ["charged"]
    assert ledger.summary().spent_epsilon == 1


def test_what_is_reserved_cant_be_asked_for_again(ledger: Ledger) -> None:
    ledger.set_total(1, delta="1e-6")
    with ledger.reserve(Asked(approximate("3/4", "1e-6")), SCHEMA):
        other = Ledger(ledger.path)
        said = r"remaining epsilon 0\.25, .*epsilon 0\.75 .*reserved by runs"
        for ask, asked in ((charge, pure("1/2")), (reserve, pure("1/2")), (charge, approximate("1/8", "1e-7"))):
            refuses(said, ask, other, asked, error=RefusedError)
        refuses(r"already spent epsilon 0\.75", other.set_total, "1/2", delta="1e-6", error=RefusedError)
        assert charge(other, pure("1/4")) == 1
        refuses("one at a time", reserve, ledger, pure("1/8"))
    assert outcomes(ledger) == ["withdrawn", "charged"]


def test_only_what_was_reserved_is_charged(ledger: Ledger) -> None:
    other = Schema.from_toml("[columns.a]\nlevels = [0, 1, 2]\n")
    for asked in ({"loss": pure("2")}, {"loss": pure("1"), "schema": other}):
        with pytest.raises(InputError, match="another price or schema"), ledger.reserve(Asked(pure("1")), SCHEMA):
            charge(ledger, **asked)
    assert numbers(ledger) == []


def test_a_struck_reservation_can_no_longer_be_charged(ledger: Ledger) -> None:
    ledger.set_total(1)
    with ledger.reserve(Asked(pure("1")), SCHEMA):
        Ledger(ledger.path).strike(1)
        assert ledger.summary().remaining_epsilon == 1
        refuses("was struck", charge, ledger, pure("1"))
    assert outcomes(ledger) == ["struck"]
    for number in (1, 2):
        refuses(f"no open reservation {number}", ledger.strike, number)


def test_a_refused_attempt_fixes_neither_table_nor_unit(ledger: Ledger) -> None:
    refused(ledger, DataError, schema_for(cap=3))
    assert charge(ledger, pure("1"), fingerprint="table-2") == 1
    refuses("another table", charge, ledger, pure("1"), fingerprint="table-1", error=DataError)


# Units of privacy


def schema_for(*, person: str | None = None, cap: int = 1, public: tuple[str, ...] = ()) -> Schema:
    columns = {name: {"levels": [0, 1], "public": name in public} for name in "ab"}
    return Schema(columns=columns, records={"person": person, "max_per_person": cap})


UNITS = [
    Unit(person=person, cap=cap, public=public)
    for person, cap, public in product((None, "id", "pid"), (1, 2), ((), ("a",), ("a", "b")))
]
COLUMNS = ("id", "pid", "a", "b")


def neighbours(unit: Unit) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which of all 256 tables of two records a unit accepts, and which pairs are neighbours, replace-one."""
    tables = np.array(list(product(product((0, 1), repeat=4), repeat=2)))  # shape (tables, records, columns)
    accepted = np.ones(len(tables), dtype=bool)
    changed = (tables[:, None] != tables[None]).any(axis=3)  # shape (tables, tables, records)
    pairs = (changed.sum(axis=2) > 0) & (changed.sum(axis=2) <= unit.cap)
    public = [COLUMNS.index(name) for name in unit.public]
    pairs &= (tables[:, None][..., public] == tables[None][..., public]).all(axis=(2, 3))
    if unit.person is not None:
        same = tables[:, 0, COLUMNS.index(unit.person)] == tables[:, 1, COLUMNS.index(unit.person)]
        accepted &= ~same | (unit.cap >= 2)
        pairs &= ~changed.all(axis=2) | (same[:, None] & same[None])  # both records, so both of one person
    return accepted, pairs


def contained(account: Unit, entry: Unit) -> bool:
    """Whether the account's neighbours, among tables that both accept, are neighbours of the entry too."""
    (first, pairs), (second, others) = RELATIONS[account], RELATIONS[entry]
    both = first & second
    return not (pairs & ~others & both[:, None] & both[None]).any()


RELATIONS = {unit: neighbours(unit) for unit in UNITS}


def test_losses_that_add_up_are_of_guarantees_that_contain_the_accounts() -> None:
    # docs/proofs/ledger.md, theorem 2, by enumeration
    fitting = [(account, entry) for account, entry in product(UNITS, UNITS) if entry.fits(account)]
    assert all(contained(account, entry) for account, entry in fitting)
    assert {(entry.cap, account.cap) for account, entry in fitting if entry.person} == {*product((1, 2), (1, 2))}
    assert all(entry.cap == account.cap for account, entry in fitting if entry.person is None)
    # the broken twins: rules that forget the cap, the person column or the public columns
    twins = {
        "cap": lambda account, entry: entry.person == account.person and {*entry.public} <= {*account.public},
        "person": lambda account, entry: entry.cap == account.cap and {*entry.public} <= {*account.public},
        "public": lambda account, entry: (entry.person, entry.cap) == (account.person, account.cap),
    }
    for name, fits in twins.items():
        wrong = [pair for pair in product(UNITS, UNITS) if fits(*pair) and not contained(*pair)]
        assert wrong, name


@pytest.mark.parametrize(("first", "second", "adds_up"), cases(__file__, "charges_for_another_unit_are_refused"))
def test_charges_for_another_unit_are_refused(ledger: Ledger, first: dict, second: dict, adds_up: bool) -> None:
    charge(ledger, pure("1"), schema=schema_for(**first))
    assert ledger.summary().unit == Unit(**first)
    if adds_up:
        assert charge(ledger, pure("1"), schema=schema_for(**second)) == 2
        assert [entry.unit for entry in ledger.entries()] == [Unit(**first), Unit(**second)]
        return
    said = "kept for this unit of privacy.*name another ledger"
    for ask in (charge, reserve):
        refuses(said, ask, ledger, pure("1"), schema=schema_for(**second))
    assert ledger.summary().spent_epsilon == 1


def test_the_unit_may_change_between_a_reservation_and_its_charge(ledger: Ledger) -> None:
    with ledger.reserve(Asked(pure("1")), SCHEMA):
        charge(Ledger(ledger.path), pure("1"), schema=schema_for(cap=2))
        refuses("kept for this unit", charge, ledger, pure("1"))
    assert outcomes(ledger) == ["withdrawn", "charged"]  # a reservation that isn't used is withdrawn


# Several tables in one account


def test_several_tables_of_the_same_persons_share_one_account(ledger: Ledger) -> None:
    ledger.set_total(1)
    charge(ledger, pure("1/4"), fingerprint="2024")
    ledger.adopt("2024, corrected")
    ledger.adopt("2025", role="other-table")
    ledger.adopt("2025", role="other-table")
    refuses("belongs to another table", charge, ledger, pure("1/4"), fingerprint="2026")
    for fingerprint in ("2024, corrected", "2025", "2024"):
        charge(ledger, pure("1/4"), fingerprint=fingerprint)
    assert ledger.summary().remaining_epsilon == 0
    assert [role for _, role in ledger.tables()] == ["first", "version", "other-table"]
    refuses("", charge, ledger, pure("1/4"), fingerprint="2025", error=RefusedError)
    refuses("role must be one of", ledger.adopt, "2026", role="friend")


# Receipts, and ledgers put back from a backup


def test_a_receipt_names_its_charge_and_nothing_else(ledger: Ledger) -> None:
    charge(ledger, pure("1/4"), fingerprint="SECRET")
    receipt = ledger.receipt(1)
    assert receipt is not None
    assert receipt.number == 1
    assert (len(receipt.account), len(receipt.token)) == (16, 16)
    [(salt, fingerprint)] = in_file(ledger.path, "SELECT salt, hash FROM account, fingerprints")
    for secret in (salt.hex(), fingerprint.hex()):
        assert receipt.account not in secret
        assert receipt.token not in secret
    assert ledger.compare(receipt) is None
    assert ledger.receipt(2) is None


def test_an_older_copy_put_back_is_noticed(ledger: Ledger, path: Path) -> None:
    charge(ledger, pure("1"))
    shutil.copy(path, path.with_suffix(".backup"))
    charge(ledger, pure("1"))
    receipts = [ledger.receipt(1), ledger.receipt(2)]
    assert [ledger.compare(receipt) for receipt in receipts] == [None, None]
    shutil.copy(path.with_suffix(".backup"), path)
    assert ledger.compare(receipts[0]) is None
    assert "which holds 1: an older copy of the ledger was put back" in ledger.compare(receipts[1])
    charge(ledger, pure("1"))  # of the same price, at the same number
    assert "is another one: an older copy of the ledger was put back" in ledger.compare(receipts[1])
    other = Ledger(path.with_name("other.sqlite"))
    charge(other, pure("1"))
    assert "charged to another account" in other.compare(receipts[0])
    assert "is another one" in ledger.compare(Receipt(account=receipts[0].account, number=0, token="0" * 16))


# Ledgers of version 0.1


@pytest.fixture
def old(path: Path) -> Ledger:
    """A ledger that version 0.1 wrote: epsilon 1/2 and, for add-remove neighbours, 1/3, of a total of 3."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(OLD.read_text(encoding="utf-8"))
    return Ledger(path)


def test_an_old_ledger_keeps_its_spends_and_asks_for_its_unit(old: Ledger, tmp_path: Path) -> None:
    new, before = Ledger(tmp_path / "new.sqlite"), old.path.read_bytes()
    refuses("declare-unit", charge, old, pure("1"))
    assert old.path.read_bytes() == before
    new.set_total(1)
    refuses("no charge yet", new.declare_unit, SCHEMA)
    assert [(entry.epsilon, entry.charged_epsilon, entry.unit, entry.schema) for entry in old.entries()] == [
        (Fraction(1, 2), Fraction(1, 2), None, None),
        (Fraction(1, 3), Fraction(2, 3), None, None),
    ]
    account = old.summary()
    assert (account.total_epsilon, account.spent_epsilon, account.unit) == (3, Fraction(7, 6), None)
    assert (account.total_delta, account.reserved_epsilon) == (Fraction("1e-6"), 0)
    assert [role for _, role in old.tables()] == ["first", "version"]
    assert (old.attempts(), old.receipt(1)) == ([], None)
    for ask in (charge, reserve):
        refuses(r"charges of version 0\.1.*pdips ledger declare-unit", ask, old, pure("1"))
    assert numbers(old) == [1, 2]


def test_an_old_ledger_goes_on_once_its_unit_is_declared(old: Ledger) -> None:
    old.declare_unit(schema_for(person="id", cap=3))
    account = old.summary()
    assert (account.unit, account.unit_declared) == (Unit(person="id", cap=3), True)
    refuses("on record already", old.declare_unit, SCHEMA)
    refuses("kept for this unit", charge, old, pure("1"))
    assert charge(old, pure("1"), fingerprint="table-2", schema=schema_for(person="id", cap=2)) == 3
    assert old.summary().remaining_epsilon == 3 - Fraction(7, 6) - 1
    refuses("", charge, old, pure("1"), schema=schema_for(person="id", cap=2), error=RefusedError)
    refuses("only appended", in_file, old.path, "DELETE FROM units", error=sqlite3.IntegrityError)


def test_the_schema_is_recorded_by_its_digest(ledger: Ledger) -> None:
    for schema in (schema_for(), schema_for(), schema_for().model_copy(update={"title": "x"})):
        charge(ledger, pure("1"), schema=schema)
    digests = [entry.schema for entry in ledger.entries()]
    assert digests[0] == digests[1] != digests[2]


# Accounts in rho

AT = Fraction(1, 10**6)
READ = AT - KEPT  # What is left of delta is for losses whose noise isn't quite of the law that rho is about


def test_four_gaussian_releases_cost_less_than_four_readings(ledger: Ledger) -> None:
    ledger.set_total(rho="0.1")
    loss = zcdp(largest_rho(Fraction(1), AT), AT, "replace-one", "For a test.")
    for _ in range(4):
        charge(ledger, loss)
    account = ledger.summary()
    assert account.spent_rho == 4 * loss.rho
    assert 2.11 < float(account.spent_epsilon) < 2.12  # in (epsilon, delta): 4 at 4 * 10^-6
    assert account.remaining_rho == Fraction(1, 10) - 4 * loss.rho
    assert (account.total_epsilon, account.total_delta) == (epsilon_of(Fraction(1, 10), READ), AT)
    assert account.remaining_epsilon == epsilon_of(Fraction(1, 10) - 4 * loss.rho, READ)
    refuses(r"asked rho 0\.024\d+, remaining rho 0\.0025\d+, total rho 0\.1 ", charge, ledger, loss, error=RefusedError)
    assert numbers(ledger) == [1, 2, 3, 4]


def test_a_pure_loss_enters_as_half_its_square(ledger: Ledger) -> None:
    ledger.set_total(rho="5/8")
    with ledger.reserve(Asked(pure("1")), SCHEMA):
        assert (ledger.summary().reserved_rho, ledger.summary().spent_rho) == (Fraction(1, 2), 0)
        said = r"remaining rho 0\.125, .*rho 0\.5 of it reserved"
        refuses(said, charge, Ledger(ledger.path), pure("51/100"), error=RefusedError)
        charge(Ledger(ledger.path), pure("1/2"))
        charge(ledger, pure("1"))
    assert (ledger.summary().remaining_rho, ledger.summary().remaining_epsilon) == (0, 0)
    assert [entry.charged_rho for entry in ledger.entries()] == [Fraction(1, 8), Fraction(1, 2)]


def test_add_remove_losses_count_four_times_in_rho(ledger: Ledger) -> None:
    ledger.set_total(rho=1)
    charge(ledger, zcdp("1/10", AT, "add-remove", "For a test."))
    charge(ledger, pure("1/2", neighbours="add-remove"))
    assert [entry.charged_rho for entry in ledger.entries()] == [Fraction(4, 10), Fraction(1, 2)]
    assert ledger.summary().remaining_rho == Fraction(1, 10)


def test_an_account_goes_over_to_rho_with_what_it_has_spent_and_never_back(old: Ledger) -> None:
    before = old.path.read_bytes()
    said = r"already spent rho 0\.347222222222; the total can't be rho 0\.3"
    refuses(said, old.set_total, rho="0.3", error=RefusedError)  # 1/2 and, for add-remove, 1/3: 1/8 + 4/18
    assert old.path.read_bytes() == before
    old.set_total(rho="1/2")
    assert old.summary().remaining_rho == Fraction(1, 2) - Fraction(1, 8) - Fraction(2, 9)
    old.set_total(rho=1, delta="1e-9")
    assert (old.summary().total_rho, old.summary().total_delta) == (1, Fraction(1, 10**9))
    refuses("kept in rho", old.set_total, 9, delta="1e-6")


def test_approximate_losses_and_rho_dont_mix(ledger: Ledger, tmp_path: Path) -> None:
    charge(ledger, approximate("1/10", "1e-9"))
    refuses("an approximate loss, which doesn't add up in rho", ledger.set_total, rho=1)
    other = Ledger(tmp_path / "rho.sqlite")
    other.set_total(rho=1)
    refuses("is kept in rho, and this is an approximate loss", charge, other, approximate("1/10", "1e-9"))
    assert (numbers(other), outcomes(other)) == ([], [])


@pytest.mark.parametrize(("total", "said"), cases(__file__, "a_total_that_makes_no_sense_is_refused"))
def test_a_total_that_makes_no_sense_is_refused(ledger: Ledger, total: dict[str, object], said: str) -> None:
    refuses(said, ledger.set_total, **total)
    assert not ledger.path.exists()


def test_a_loss_that_is_only_nearly_zero_concentrated_is_read_at_what_is_left_of_delta(ledger: Ledger) -> None:
    ledger.set_total(rho="0.1")
    loss = zcdp("0.01", AT, "replace-one", "For a test.", MOST_TAU)
    assert loss.epsilon == epsilon_of(loss.rho, AT - MOST_TAU)
    charge(ledger, loss)
    assert ledger.summary().spent_epsilon == epsilon_of(loss.rho, READ) >= loss.epsilon
    refuses(r"at most 10\^-20", zcdp, "0.01", AT, "replace-one", "For a test.", 2 * MOST_TAU)
