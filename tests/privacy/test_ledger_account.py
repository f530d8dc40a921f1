"""What the ledger records beside charges: reservations, refusals, units of privacy,
receipts, and accounts in rho.
"""

import shutil
from dataclasses import fields, replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tables import cases, refuses
from test_ledger import (
    SCHEMA,
    Asked,
    approximate,
    asked_for,
    charge,
    contents,
    numbers,
    outcomes,
    pure,
    receipt_of,
    reserve,
)

from pdips import Schema
from pdips.errors import DataError, InputError, RefusedError
from pdips.privacy import budget
from pdips.privacy.account import KEPT
from pdips.privacy.ledger import Ledger, Unit
from pdips.privacy.loss import (
    MOST_TAU,
    PrivacyLoss,
    epsilon_of,
    largest_rho,
    zcdp,
)
from pdips.privacy.rho import of_pure

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


def refused(
    ledger: Ledger,
    error: type[BaseException],
    schema: Schema = SCHEMA,
    **more,
) -> None:
    with pytest.raises(error), ledger.reserve(Asked(pure("1")), schema, **more):
        raise error("SECRET")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (DataError, "refused"),
        (InputError, "withdrawn"),
        (OSError, "withdrawn"),
        (KeyboardInterrupt, "withdrawn"),
    ],
)
def test_what_fails_before_the_charge_is_recorded_and_costs_nothing(
    ledger: Ledger, error: type[BaseException], outcome: str
) -> None:
    ledger.set_total(1)
    refused(ledger, error)
    refused(ledger, error, explain=True)
    assert [(one.outcome, one.explained) for one in ledger.attempts()] == [
        (outcome, False),
        (outcome, True),
    ]
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
        for ask, asked in (
            (charge, pure("1/2")),
            (reserve, pure("1/2")),
            (charge, approximate("1/8", "1e-7")),
        ):
            refuses(said, ask, other, asked, error=RefusedError)
        refuses(
            r"already spent epsilon "
            r"0\.75",
            other.set_total,
            "1/2",
            delta="1e-6",
            error=RefusedError,
        )
        assert charge(other, pure("1/4")) == 1
        refuses("one at a time", reserve, ledger, pure("1/8"))
    assert outcomes(ledger) == ["withdrawn", "charged"]


def as_zcdp(delta: str = "1e-6", neighbours: str = "replace-one") -> PrivacyLoss:
    return zcdp(Fraction(1, 50), delta, neighbours, "For a test.")


OTHERS = {
    "epsilon": (pure("1"), pure("2")),
    "less epsilon": (pure("1"), pure("1/2")),
    "relation": (pure("1"), pure("1", "add-remove")),
    "kind": (pure("1"), approximate("1", "0")),
    "rho of a pure loss": (pure("1"), replace(pure("1"), rho=Fraction(1, 100))),
    "delta": (approximate("1", "1e-7"), approximate("1", "1e-6")),
    "rho": (as_zcdp(), replace(as_zcdp(), rho=Fraction(1, 49))),
    "delta of rho": (as_zcdp("1e-6"), as_zcdp("1e-7")),
    "relation of rho": (as_zcdp(), as_zcdp(neighbours="add-remove")),
}
"""What is reserved, and what is charged in its place."""


@pytest.mark.parametrize("what", OTHERS)
def test_only_what_was_reserved_is_charged(ledger: Ledger, what: str) -> None:
    held, other = OTHERS[what]
    ledger.set_total(10, delta="1e-3")
    with (
        pytest.raises(InputError, match="another price, plan or schema was reserved"),
        ledger.reserve(Asked(held), SCHEMA),
    ):
        charge(ledger, other)
    assert (numbers(ledger), outcomes(ledger)) == ([], ["withdrawn"])
    assert ledger.summary().remaining_epsilon == 10
    with ledger.reserve(Asked(held), SCHEMA):
        charge(ledger, held)
    assert outcomes(ledger) == ["withdrawn", "charged"]


def test_only_for_what_was_reserved_is_charged(ledger: Ledger) -> None:
    wide = Schema.from_toml("[columns.a]\nlevels = [0, 1, 2]\n")
    request = asked_for(pure("1"))
    others = (
        replace(request, schema=wide),
        replace(request, plan="another plan"),
        replace(request, mechanism="steps"),
    )
    for other in others:
        with (
            pytest.raises(InputError, match="another price, plan or schema"),
            ledger.reserve(Asked(pure("1")), SCHEMA),
        ):
            ledger.charge(other, fingerprint="table-1")
    assert (numbers(ledger), outcomes(ledger)) == ([], ["withdrawn"] * 3)


def test_a_release_for_one_relation_is_never_booked_as_one_for_the_other(
    ledger: Ledger,
) -> None:
    # before, replace-one was reserved, add-remove released, and 1 charged in place of 2
    ledger.set_total(2)
    with ledger.reserve(Asked(pure("1")), SCHEMA):
        with pytest.raises(InputError, match="another price"):
            charge(ledger, pure("1", "add-remove"))
        other = Ledger(ledger.path)
        refuses("overspent", charge, other, pure("1", "add-remove"), error=RefusedError)
    charge(ledger, pure("1", "add-remove"))
    assert ledger.summary().remaining_epsilon == 0


def test_a_struck_reservation_can_no_longer_be_charged(ledger: Ledger) -> None:
    ledger.set_total(1)
    with ledger.reserve(Asked(pure("1")), SCHEMA):
        [attempt] = ledger.attempts()
        Ledger(ledger.path).strike(attempt.number)
        assert ledger.summary().remaining_epsilon == 1
        refuses("was struck", charge, ledger, pure("1"))
    assert outcomes(ledger) == ["struck"]
    for number in (1, attempt.number):
        refuses(f"no open reservation {number}", ledger.strike, number)


def test_a_refused_attempt_fixes_neither_table_nor_unit(ledger: Ledger) -> None:
    refused(ledger, DataError, schema_for(cap=3))
    assert charge(ledger, pure("1"), fingerprint="table-2") == 1
    refuses(
        "another table",
        charge,
        ledger,
        pure("1"),
        fingerprint="table-1",
        error=DataError,
    )


# Units of privacy


def schema_for(
    *, person: str | None = None, cap: int = 1, public: tuple[str, ...] = ()
) -> Schema:
    columns = {name: {"levels": [0, 1], "public": name in public} for name in "ab"}
    return Schema(columns=columns, records={"person": person, "max_per_person": cap})


UNITS = [
    Unit(person=person, cap=cap, public=public)
    for person, cap, public in product(
        (None, "id", "pid"), (1, 2), ((), ("a",), ("a", "b"))
    )
]
COLUMNS = ("id", "pid", "a", "b")


def neighbours(unit: Unit) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which of all 256 tables of two records a unit accepts, and which pairs are
    neighbours, replace-one.
    """
    # shape (tables, records, columns)
    tables = np.array(list(product(product((0, 1), repeat=4), repeat=2)))
    accepted = np.ones(len(tables), dtype=bool)
    # shape (tables, tables, records)
    changed = (tables[:, None] != tables[None]).any(axis=3)
    pairs = (changed.sum(axis=2) > 0) & (changed.sum(axis=2) <= unit.cap)
    public = [COLUMNS.index(name) for name in unit.public]
    pairs &= (tables[:, None][..., public] == tables[None][..., public]).all(
        axis=(2, 3)
    )
    if unit.person is not None:
        same = (
            tables[:, 0, COLUMNS.index(unit.person)]
            == tables[:, 1, COLUMNS.index(unit.person)]
        )
        accepted &= ~same | (unit.cap >= 2)
        # both records, so both of one person
        pairs &= ~changed.all(axis=2) | (same[:, None] & same[None])
    return accepted, pairs


def contained(account: Unit, entry: Unit) -> bool:
    """Whether the account's neighbours, among tables that both accept, are neighbours
    of the entry too.
    """
    (first, pairs), (second, others) = RELATIONS[account], RELATIONS[entry]
    both = first & second
    return not (pairs & ~others & both[:, None] & both[None]).any()


RELATIONS = {unit: neighbours(unit) for unit in UNITS}


def test_losses_that_add_up_are_of_guarantees_that_contain_the_accounts() -> None:
    # docs/proofs/ledger.md, theorem 2, by enumeration
    fitting = [
        (account, entry)
        for account, entry in product(UNITS, UNITS)
        if entry.fits(account)
    ]
    assert all(contained(account, entry) for account, entry in fitting)
    assert {(entry.cap, account.cap) for account, entry in fitting if entry.person} == {
        *product((1, 2), (1, 2))
    }
    assert all(
        entry.cap == account.cap for account, entry in fitting if entry.person is None
    )
    # the broken twins: rules that forget the cap, the person column or the public
    # columns
    twins = {
        "cap": lambda account, entry: (
            entry.person == account.person and {*entry.public} <= {*account.public}
        ),
        "person": lambda account, entry: (
            entry.cap == account.cap and {*entry.public} <= {*account.public}
        ),
        "public": lambda account, entry: (
            (entry.person, entry.cap) == (account.person, account.cap)
        ),
    }
    for name, fits in twins.items():
        wrong = [
            pair
            for pair in product(UNITS, UNITS)
            if fits(*pair) and not contained(*pair)
        ]
        assert wrong, name


@pytest.mark.parametrize(
    ("first", "second", "adds_up"),
    cases(__file__, "charges_for_another_unit_are_refused"),
)
def test_charges_for_another_unit_are_refused(
    ledger: Ledger, first: dict, second: dict, adds_up: bool
) -> None:
    charge(ledger, pure("1"), schema=schema_for(**first))
    assert ledger.summary().unit == Unit(**first)
    if adds_up:
        assert charge(ledger, pure("1"), schema=schema_for(**second)) == 2
        assert [entry.unit for entry in ledger.entries()] == [
            Unit(**first),
            Unit(**second),
        ]
        return
    said = "kept for this unit of privacy.*name another ledger"
    for ask in (charge, reserve):
        refuses(said, ask, ledger, pure("1"), schema=schema_for(**second))
    assert ledger.summary().spent_epsilon == 1


def test_the_unit_may_change_between_a_reservation_and_its_charge(
    ledger: Ledger,
) -> None:
    with ledger.reserve(Asked(pure("1")), SCHEMA):
        charge(Ledger(ledger.path), pure("1"), schema=schema_for(cap=2))
        refuses("kept for this unit", charge, ledger, pure("1"))
    # a reservation that isn't used is withdrawn
    assert outcomes(ledger) == ["withdrawn", "charged"]


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


def test_a_receipt_names_its_charge_and_what_was_charged(ledger: Ledger) -> None:
    loss = as_zcdp(neighbours="add-remove")
    receipt = receipt_of(ledger, loss, fingerprint="SECRET")
    assert receipt.number == 1
    assert receipt == ledger.entries()[0].receipt(ledger.name())
    assert (receipt.kind, receipt.neighbours) == ("zcdp", "add-remove")
    amounts = (receipt.epsilon, receipt.delta, receipt.rho)
    assert tuple(map(Fraction, amounts)) == (loss.epsilon, loss.delta, loss.rho)
    assert (len(receipt.account), len(receipt.token)) == (16, 16)
    [account], [table] = (contents(ledger.path, kind) for kind in ("account", "table"))
    for secret in (account["salt"], table["hash"]):
        assert receipt.account not in secret
        assert receipt.token not in secret
    assert ledger.compare(receipt) is None


def test_a_release_that_states_another_price_is_noticed(ledger: Ledger) -> None:
    receipt = receipt_of(ledger, as_zcdp())
    others = {
        "kind": "pure",
        "neighbours": "add-remove",
        "epsilon": "1/100",
        "delta": "1/10000000",
        "rho": "1/1000",
    }
    prices = {field.name for field in fields(receipt)} - {"account", "number", "token"}
    assert {*others} == prices
    for name, value in others.items():
        edited = replace(receipt, **{name: value})
        said = ledger.compare(edited)
        assert said is not None, name
        assert "another price for charge 1" in said
        assert "states what wasn't charged" in said


def test_an_older_copy_put_back_is_noticed(ledger: Ledger, path: Path) -> None:
    receipts = [receipt_of(ledger, pure("1"))]
    shutil.copy(path, path.with_suffix(".backup"))
    receipts.append(receipt_of(ledger, pure("1")))
    assert [ledger.compare(receipt) for receipt in receipts] == [None, None]
    shutil.copy(path.with_suffix(".backup"), path)
    assert ledger.compare(receipts[0]) is None
    assert (
        "which holds 1: an older copy of the ledger was put back"
    ) in ledger.compare(receipts[1])
    charge(ledger, pure("1"))  # of the same price, at the same number
    assert (
        "is another one: an older copy of the ledger was put back"
    ) in ledger.compare(receipts[1])
    other = Ledger(path.with_name("other.sqlite"))
    charge(other, pure("1"))
    assert "charged to another account" in other.compare(receipts[0])
    assert "is another one" in ledger.compare(replace(receipts[0], token="0" * 16))
    for number in (0, -1, -7, 3):
        said = ledger.compare(replace(receipts[0], number=number))
        assert f"it is charge {number} of this account, which holds 2" in said


# Accounts that are adopted


@pytest.fixture
def other(path: Path) -> Ledger:
    """Another account of the same persons."""
    return Ledger(path.with_name("other.sqlite"))


def test_an_adopted_account_adds_up_with_this_one(
    ledger: Ledger, other: Ledger
) -> None:
    other.set_total(9)
    ledger.set_total(1)
    theirs = [receipt_of(other, pure("1/4")), receipt_of(other, pure("1/8"))]
    own = receipt_of(ledger, pure("1/2"))
    assert "charged to another account" in ledger.compare(theirs[0])
    ledger.adopt_account(other)
    assert ledger.summary().remaining_epsilon == Fraction(1, 8)
    assert [entry.origin for entry in ledger.entries()] == [
        "",
        other.name(),
        other.name(),
    ]
    assert [ledger.compare(receipt) for receipt in (own, *theirs)] == [None] * 3
    refuses("", charge, ledger, pure("1/4"), error=RefusedError)
    # what is charged there afterwards isn't counted, and that is noticed
    later = receipt_of(other, pure("1/8"))
    assert "after that one was adopted here" in ledger.compare(later)
    assert other.summary().remaining_epsilon == 9 - Fraction(1, 2)


def test_what_cant_be_adopted_changes_nothing(ledger: Ledger, other: Ledger) -> None:
    charge(other, pure("3/4"))
    charge(ledger, pure("1/2"))
    ledger.set_total(1)
    before = ledger.path.read_bytes()
    refuses("would be overspent", ledger.adopt_account, other, error=RefusedError)
    assert ledger.path.read_bytes() == before
    refuses("counts the charges of .* already", ledger.adopt_account, ledger)
    ledger.set_total(2)
    ledger.adopt_account(other)
    before = ledger.path.read_bytes()
    refuses("counts the charges of .* already", ledger.adopt_account, other)
    missing = Ledger(other.path.with_name("none.sqlite"))
    refuses("doesn't exist", ledger.adopt_account, missing)
    assert ledger.path.read_bytes() == before


def test_an_account_for_others_isnt_adopted(ledger: Ledger, other: Ledger) -> None:
    charge(ledger, pure("1"), schema=schema_for(person="id"))
    charge(other, pure("1"), schema=schema_for(person="pid"))
    refuses("kept for this unit of privacy", ledger.adopt_account, other)
    third = Ledger(other.path.with_name("third.sqlite"))
    third.set_total(1, neighbours="add-remove")
    refuses("their charges don't add up", ledger.adopt_account, third)
    assert numbers(ledger) == [1]


def test_the_prices_of_an_adopted_account_are_kept_as_they_were(
    ledger: Ledger, other: Ledger
) -> None:
    ledger.set_total(rho=1)
    other.set_total(rho=2)
    charge(other, pure("1/2", neighbours="add-remove"))
    charge(other, as_zcdp())
    ledger.adopt_account(other)
    assert [e.price for e in ledger.entries()] == [e.price for e in other.entries()]
    doubled = other.entries()[0].price.charged_rho
    assert doubled <= 4 * of_pure(Fraction(1, 2))
    assert ledger.summary().spent_rho == doubled + Fraction(1, 50)
    approximated = Ledger(other.path.with_name("approximated.sqlite"))
    charge(approximated, approximate("1/10", "1e-9"))
    refuses("an approximate loss", ledger.adopt_account, approximated)


# Refusals for what records contain


def test_three_refusals_are_free_and_the_fourth_has_to_be_asked_for(
    ledger: Ledger,
) -> None:
    ledger.set_total(1)
    for _ in range(3):
        refused(ledger, DataError)
    assert ledger.summary().refusals == 3
    before = ledger.path.read_bytes()
    said = "3 requests on record that were refused for what records contain"
    text = refuses(said, reserve, ledger, pure("1"))
    assert "--allow charged-refusals" in text
    assert "--allow refusals" in text
    # adopting a table answers as much of its records
    refuses(said, lambda: ledger.reading(SCHEMA).__enter__())
    assert ledger.path.read_bytes() == before
    refused(ledger, DataError, allow=["refusals"])
    assert (ledger.summary().refusals, ledger.summary().spent_epsilon) == (4, 0)
    with ledger.reserve(Asked(pure("1/4")), SCHEMA, allow=["refusals"]):
        charge(ledger, pure("1/4"))
    refuses("allow must be one of", reserve, ledger, pure("1/4"), allow=["everything"])


def test_a_refusal_can_be_charged_what_was_reserved(ledger: Ledger) -> None:
    ledger.set_total(3)
    for _ in range(3):
        refused(ledger, DataError)
    refused(ledger, DataError, allow=["charged-refusals"])
    account = ledger.summary()
    assert (account.refusals, account.spent_epsilon) == (4, 1)
    [entry] = ledger.entries()
    assert (entry.mechanism, entry.end) == (
        "a refusal by laplace-sanitizer",
        "finished",
    )
    assert entry.price.epsilon == 1
    assert ledger.resumable() == []
    # what isn't refused is charged once, and what is withdrawn not at all
    refused(ledger, OSError, allow=["charged-refusals"])
    with ledger.reserve(Asked(pure("1")), SCHEMA, allow=["charged-refusals"]):
        charge(ledger, pure("1"))
    assert ledger.summary().remaining_epsilon == 1
    assert outcomes(ledger) == ["refused"] * 4 + ["withdrawn", "charged"]


def test_refusals_of_struck_reservations_are_free_and_counted(ledger: Ledger) -> None:
    def strike_and_refuse() -> None:
        Ledger(ledger.path).strike(ledger.attempts()[-1].number)
        raise DataError("SECRET")

    for _ in range(budget.FREE_REFUSALS):
        with (
            pytest.raises(DataError),
            ledger.reserve(Asked(pure("1")), SCHEMA, allow=["charged-refusals"]),
        ):
            strike_and_refuse()
    assert (outcomes(ledger), numbers(ledger)) == (["refused"] * 3, [])
    # who strikes what is refused gets no more of them than others do
    assert ledger.summary().refusals == budget.FREE_REFUSALS
    with (
        pytest.raises(InputError, match="--allow"),
        ledger.reserve(Asked(pure("1")), SCHEMA),
    ):
        pass


def test_refused_resumptions_count_as_refusals(ledger: Ledger) -> None:
    charge(ledger, pure("1"))
    for _ in range(2):
        with pytest.raises(DataError), ledger.resuming():
            raise DataError("SECRET")
    with pytest.raises(OSError, match="gone"), ledger.resuming():
        raise OSError("gone")
    ledger.refuse_resumption()
    assert ledger.summary().refusals == 3
    assert b"SECRET" not in ledger.path.read_bytes()
    refuses("refused for what records contain", reserve, ledger, pure("1"))


# What is recorded of a schema


def test_the_schema_is_recorded_by_its_digest(ledger: Ledger) -> None:
    for schema in (
        schema_for(),
        schema_for(),
        schema_for().model_copy(update={"title": "x"}),
    ):
        charge(ledger, pure("1"), schema=schema)
    digests = [entry.schema for entry in ledger.entries()]
    assert digests[0] == digests[1] != digests[2]


# Accounts in rho

AT = Fraction(1, 10**6)
# What is left of delta is for losses whose noise isn't quite of the law that rho is
# about
READ = AT - KEPT


def test_four_gaussian_releases_cost_less_than_four_readings(ledger: Ledger) -> None:
    ledger.set_total(rho="0.1")
    loss = zcdp(largest_rho(Fraction(1), AT), AT, "replace-one", "For a test.")
    for _ in range(4):
        charge(ledger, loss)
    account = ledger.summary()
    assert account.spent_rho == 4 * loss.rho
    # in (epsilon, delta): 4 at 4 * 10^-6
    assert 2.11 < float(account.spent_epsilon) < 2.12
    assert account.remaining_rho == Fraction(1, 10) - 4 * loss.rho
    assert (account.total_epsilon, account.total_delta) == (
        epsilon_of(Fraction(1, 10), READ),
        AT,
    )
    assert account.remaining_epsilon == epsilon_of(Fraction(1, 10) - 4 * loss.rho, READ)
    refuses(
        r"asked rho 0\.024\d+, remaining rho 0\.0025\d+, total rho "
        r"0\.1 ",
        charge,
        ledger,
        loss,
        error=RefusedError,
    )
    assert numbers(ledger) == [1, 2, 3, 4]


def test_a_pure_loss_enters_by_its_rho(ledger: Ledger) -> None:
    one, half = of_pure(Fraction(1)), of_pure(Fraction(1, 2))
    ledger.set_total(rho=one + half)
    with ledger.reserve(Asked(pure("1")), SCHEMA):
        assert (ledger.summary().reserved_rho, ledger.summary().spent_rho) == (one, 0)
        said = r"remaining rho 0\.1224\d+, .*rho 0\.462\d+ of it reserved"
        refuses(said, charge, Ledger(ledger.path), pure("51/100"), error=RefusedError)
        charge(Ledger(ledger.path), pure("1/2"))
        charge(ledger, pure("1"))
    assert (ledger.summary().remaining_rho, ledger.summary().remaining_epsilon) == (
        0,
        0,
    )
    assert [entry.price.charged_rho for entry in ledger.entries()] == [half, one]


def test_add_remove_losses_count_four_times_in_rho(ledger: Ledger) -> None:
    ledger.set_total(rho=1)
    charge(ledger, zcdp("1/10", AT, "add-remove", "For a test."))
    charge(ledger, pure("1/2", neighbours="add-remove"))
    # four steps of a half, or what the doubled epsilon implies
    found = [entry.price.charged_rho for entry in ledger.entries()]
    assert found[0] == Fraction(4, 10)
    assert of_pure(Fraction(1)) <= found[1] <= 4 * of_pure(Fraction(1, 2))
    assert ledger.summary().remaining_rho == 1 - sum(found, Fraction(0))


def test_an_account_goes_over_to_rho_with_what_it_has_spent_and_never_back(
    ledger: Ledger,
) -> None:
    ledger.set_total(3, delta="1e-6")
    charge(ledger, pure("1/2"))
    charge(ledger, pure("1/3", neighbours="add-remove"))
    before = ledger.path.read_bytes()
    half, third = (entry.price.charged_rho for entry in ledger.entries())
    # 1/2, and what 1/3 for add-remove implies for replacing: at most 2/3
    assert half == of_pure(Fraction(1, 2)) < Fraction(1, 8)
    assert third == of_pure(Fraction(2, 3)) < Fraction(2, 9)
    said = r"already spent rho 0\.336\d+; the total can't be rho 0\.3"
    refuses(said, ledger.set_total, rho="0.3", error=RefusedError)
    assert ledger.path.read_bytes() == before
    ledger.set_total(rho="1/2")
    assert ledger.summary().remaining_rho == Fraction(1, 2) - half - third
    ledger.set_total(rho=1, delta="1e-9")
    assert (ledger.summary().total_rho, ledger.summary().total_delta) == (
        1,
        Fraction(1, 10**9),
    )
    refuses("kept in rho", ledger.set_total, 9, delta="1e-6")


def test_approximate_losses_and_rho_dont_mix(ledger: Ledger, tmp_path: Path) -> None:
    charge(ledger, approximate("1/10", "1e-9"))
    refuses("an approximate loss, which doesn't add up in rho", ledger.set_total, rho=1)
    other = Ledger(tmp_path / "rho.sqlite")
    other.set_total(rho=1)
    refuses(
        "is kept in rho, and this is an approximate loss",
        charge,
        other,
        approximate("1/10", "1e-9"),
    )
    assert (numbers(other), outcomes(other)) == ([], [])


@pytest.mark.parametrize(
    ("total", "said"), cases(__file__, "a_total_that_makes_no_sense_is_refused")
)
def test_a_total_that_makes_no_sense_is_refused(
    ledger: Ledger, total: dict[str, object], said: str
) -> None:
    refuses(said, ledger.set_total, **total)
    assert not ledger.path.exists()


def test_a_loss_that_is_only_nearly_zero_concentrated_is_read_at_what_is_left_of_delta(
    ledger: Ledger,
) -> None:
    ledger.set_total(rho="0.1")
    loss = zcdp("0.01", AT, "replace-one", "For a test.", MOST_TAU)
    assert loss.epsilon == epsilon_of(loss.rho, AT - MOST_TAU)
    charge(ledger, loss)
    assert ledger.summary().spent_epsilon == epsilon_of(loss.rho, READ) >= loss.epsilon
    refuses(
        r"at most 10\^-20", zcdp, "0.01", AT, "replace-one", "For a test.", 2 * MOST_TAU
    )
