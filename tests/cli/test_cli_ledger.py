"""The ledger on the command line: what a refusal may tell, whom a total is for, and
copies put back from a backup.
"""

import json
import os
import re
import shutil
from dataclasses import asdict
from fractions import Fraction
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from tables import cases

from pdips import LaplaceSanitizer, Ledger, Schema
from pdips.privacy.loss import as_float
from pdips.privacy.rho import laplace_rho

SCHEMA = cases(__file__, "cli_ledger_schema")


def people(largest: float = 900.0) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    wage = rng.uniform(0, 800, 40)
    wage[7] = largest
    return pd.DataFrame(
        {
            "colour": "blue",
            "sex": rng.choice(["f", "m"], 40),
            "wage": wage,
            "id": range(40),
        }
    )


FAULTS = {
    "level": lambda frame: frame.assign(
        colour=frame["colour"].where(frame.index != 17, "SECRET")
    ),
    "bound": lambda frame: frame.assign(
        wage=frame["wage"].where(frame.index != 17, 31415.9)
    ),
    "missing": lambda frame: frame.assign(wage=frame["wage"].where(frame.index != 17)),
    "impossible": lambda frame: frame.assign(colour="red", sex="m"),
    "person": lambda frame: frame.assign(id=[0, 0, 0, *range(3, 40)]),
    "empty": lambda frame: frame.iloc[:0],
}


@pytest.fixture
def here(tmp_path):
    """A folder with a table, its schema, and a ledger with a total of 10."""
    people().to_parquet(tmp_path / "t.parquet")
    (tmp_path / "s.toml").write_text(SCHEMA.format(upper=1000))
    Ledger(tmp_path / "l.sqlite").set_total(10)
    return tmp_path


def words(here, *more: object, epsilon: object = 1, out: str = "out") -> list[object]:
    common = [
        "synthesize",
        here / "t.parquet",
        "--schema",
        here / "s.toml",
        "--mechanism",
        "laplace-sanitizer",
    ]
    return [
        *common,
        "--epsilon",
        epsilon,
        "--out",
        here / out,
        "--ledger",
        here / "l.sqlite",
        *more,
    ]


def adopting(here) -> list[object]:
    table, schema = here / "t.parquet", here / "s.toml"
    return ["ledger", "adopt", here / "l.sqlite", table, "--schema", schema]


def bisected(
    pdips, here, largest: float, epsilon: object, n_requests: int = 21
) -> list[tuple[int, str, str]]:
    """Return all answers to requests with several upper bounds on the wage, as an
    attacker sees them.
    """
    people(largest).to_parquet(here / "t.parquet")
    answers = []
    for upper in np.linspace(1000, 21_000, n_requests).astype(int):
        (here / "s.toml").write_text(SCHEMA.format(upper=upper))
        answers.append(pdips(*words(here, epsilon=epsilon)))
        shutil.rmtree(here / "out", ignore_errors=True)
    return answers


def test_refusals_without_budget_say_nothing_of_the_table(pdips, here):
    # before, 21 refused requests found the largest wage at no cost: the table was read
    # before the budget was asked
    answers = bisected(pdips, here, 900.0, 11)
    assert answers == bisected(pdips, here, 20_500.0, 11)
    assert len({*answers}) == 1
    code, out, err = answers[0]
    assert (code, out) == (3, "")
    assert "would be overspent" in err
    assert Ledger(here / "l.sqlite").attempts() == []


@pytest.mark.slow
def test_refusals_with_budget_are_on_record_one_by_one(pdips, here):
    answers = bisected(pdips, here, 20_500.0, "0.1", n_requests=3)
    assert [code for code, _, _ in answers] == [2, 2, 0]
    assert answers[0] == answers[1]
    attempts = Ledger(here / "l.sqlite").attempts()
    assert [one.outcome for one in attempts] == ["refused", "refused", "charged"]
    assert len({one.schema for one in attempts}) == 3
    # before, a bisection went on for as long as its author liked
    (here / "l.sqlite").unlink()
    answers = bisected(pdips, here, 20_500.0, "0.1", n_requests=9)
    assert [code for code, _, _ in answers] == [2] * 9
    assert len({*answers[:3]}) == len({*answers[3:]}) == 1
    assert "--allow" in answers[3][2]
    assert len(Ledger(here / "l.sqlite").attempts()) == 3


@pytest.mark.slow
def test_after_three_refusals_the_curator_says_what_a_further_one_costs(
    pdips, here, monkeypatch
):
    FAULTS["level"](people()).to_parquet(here / "t.parquet")
    for _ in range(3):
        pdips.fails("the table is refused", *words(here))
    with monkeypatch.context() as unread:
        read = Mock(side_effect=AssertionError)
        unread.setattr("pdips.data.table.Table.read", read)
        for command in (words(here), adopting(here)):
            said = pdips.fails("3 requests on record that were refused", *command)
            assert "--allow charged-refusals" in said
    ledger = Ledger(here / "l.sqlite")
    assert (len(ledger.attempts()), ledger.summary().refusals) == (3, 3)
    pdips.fails("the table is refused", *words(here, "--allow", "refusals"))
    pdips.fails("the table is refused", *adopting(here), "--allow", "refusals")
    assert (ledger.summary().refusals, ledger.summary().spent_epsilon) == (5, 0)
    pdips.fails("the table is refused", *words(here, "--allow", "charged-refusals"))
    assert (ledger.summary().refusals, ledger.summary().spent_epsilon) == (6, 1)
    shown = pdips.ok("ledger", "show", here / "l.sqlite")
    assert "a refusal by laplace-sanitizer: epsilon 1, rho " in shown
    assert "refusals  6 for what records contain" in shown
    people().to_parquet(here / "t.parquet")
    pdips.ok(*words(here, "--allow", "charged-refusals"))
    assert ledger.summary().spent_epsilon == 2


def test_the_table_isnt_read_without_budget(pdips, here, monkeypatch):
    monkeypatch.setattr("pdips.data.table.Table.read", Mock(side_effect=AssertionError))
    (here / "t.parquet").unlink()
    assert pdips(*words(here, epsilon=11))[0] == 3
    assert pdips(*words(here, "--option", "split=nonsense"))[0] == 2
    assert Ledger(here / "l.sqlite").attempts() == []
    assert {path.name for path in here.iterdir()} - {"l.sqlite.key"} == {
        "s.toml",
        "l.sqlite",
    }


def test_the_ledger_is_its_owners_alone(pdips, here):
    (here / "l.sqlite").unlink()
    before = os.umask(0)
    try:
        pdips.ok(*words(here))
    finally:
        os.umask(before)
    assert (here / "l.sqlite").stat().st_mode & 0o777 == 0o600


def test_one_message_for_all_that_records_can_break(pdips, here):
    answers, explained, unrecorded = set(), [], set()
    for fault in FAULTS.values():
        fault(people()).to_parquet(here / "t.parquet")
        on = ("--allow", "refusals")
        answers.add(pdips(*words(here, *on)))
        explained.append(pdips(*words(here, "--explain", *on)))
        unrecorded.add(
            pdips(
                *(
                    word
                    for word in words(here)
                    if word not in ("--ledger", here / "l.sqlite")
                )
            )
        )
    ((code, out, err),) = answers
    assert (code, out, err.count("\n")) == (2, "", 1)
    for phrase in (
        "the table is refused",
        "The attempt is recorded",
        "pdips ledger show",
        "--explain",
    ):
        assert phrase in err
    assert not any(
        word in err for word in ("SECRET", "31415", "colour", "wage", "impossible")
    )
    reasons = [
        "outside the levels",
        "outside its bounds",
        "missing values",
        "impossible",
        "more records",
        "no records",
    ]
    for (code, _, err), reason in zip(explained, reasons, strict=True):
        assert code == 2
        assert reason in err
        assert "The attempt is recorded" in err
        assert not any(
            word in err.replace(str(here), "") for word in ("SECRET", "31415", "17")
        )
    ((code, _, err),) = unrecorded
    assert code == 2
    assert "nothing is recorded. To see the reason, repeat it with --explain." in err
    ledger = Ledger(here / "l.sqlite")
    assert [(one.outcome, one.explained) for one in ledger.attempts()] == [
        ("refused", False),
        ("refused", True),
    ] * 6
    assert ledger.summary().spent_epsilon == 0
    assert not (here / "out").exists()
    shown = pdips("ledger", "show", here / "l.sqlite")[1]
    assert shown.count("refused   ") == 12
    assert shown.count("nothing charged, details asked for") == 6


def test_what_isnt_about_records_is_said_in_full(pdips, here):
    people().assign(shoe=1).to_parquet(here / "t.parquet")
    assert "column 'shoe' of the table is not in the schema" in pdips(*words(here))[2]
    (here / "t.parquet").write_bytes(b"PAR1")
    assert "damaged" in pdips(*words(here))[2]
    assert [one.outcome for one in Ledger(here / "l.sqlite").attempts()] == [
        "withdrawn"
    ] * 2
    (here / "s.toml").write_text("[columns.a]\nlevls = [1]\n")
    assert "columns.a.levls: unknown key" in pdips(*words(here))[2]


def test_a_refused_table_to_be_adopted_is_on_record(pdips, here):
    assert pdips(*words(here))[0] == 0
    FAULTS["level"](people()).to_parquet(here / "t.parquet")
    adopt = adopting(here)
    assert "the table is refused" in pdips(*adopt)[2]
    assert "outside the levels" in pdips(*adopt, "--explain")[2]
    outcomes = [
        (one.mechanism, one.outcome) for one in Ledger(here / "l.sqlite").attempts()[1:]
    ]
    assert outcomes == [("adopt", "refused")] * 2


def test_other_tables_of_the_same_persons_add_up(pdips, here):
    Ledger(here / "l.sqlite").set_total(2)
    assert pdips(*words(here))[0] == 0
    people(850.0).to_parquet(here / "t.parquet")
    adopt = adopting(here)
    assert pdips(*adopt, "--as", "other-table")[0] == 0
    assert pdips(*words(here, out="second"))[0] == 0
    assert pdips(*words(here, out="third"))[0] == 3
    shown = pdips("ledger", "show", here / "l.sqlite")[1]
    assert "other-table (" in shown
    assert "unit      all records with the same 'id'; no public columns" in shown
    assert "adopted   " in shown


def test_a_schema_for_another_unit_is_refused_with_the_way_out(pdips, here):
    assert pdips(*words(here))[0] == 0
    text = (here / "s.toml").read_text()
    (here / "s.toml").write_text(
        text.replace('levels = ["f", "m"]', 'levels = ["f", "m"]\npublic = true')
    )
    said = "all records with the same 'id'; no public columns. The schema has another"
    assert "public: sex" in pdips.fails(said, *words(here, out="more"))
    (here / "s.toml").write_text(
        text.replace("max_per_person = 2", "max_per_person = 1")
    )
    assert pdips(*words(here, out="more"))[0] == 0  # a cap that is checked adds up


def test_a_killed_run_is_shown_and_struck(pdips, here):
    # what a process leaves that dies while it reads the table
    schema = Schema.load(here / "s.toml")
    with Ledger(here / "l.sqlite").reserve(LaplaceSanitizer(epsilon=9), schema):
        shutil.copy(here / "l.sqlite", here / "dead")
    shutil.copy(here / "dead", here / "l.sqlite")
    [attempt] = Ledger(here / "l.sqlite").attempts()
    err = pdips.fails(
        "remaining epsilon 1, total epsilon 10", *words(here, epsilon=2), code=3
    )
    assert "epsilon 9 of it reserved by runs that aren't finished" in err
    shown = pdips("ledger", "show", here / "l.sqlite")[1]
    strike = f"pdips ledger strike {here / 'l.sqlite'} {attempt.number}"
    assert f"if its run was killed: {strike}" in shown
    assert "epsilon 0 of 10 spent, 9 reserved, 1 left" in shown
    assert ("0 of 10 spent, 10 left") in pdips(
        "ledger", "strike", here / "l.sqlite", attempt.number
    )[1]
    assert "struck    " in pdips("ledger", "show", here / "l.sqlite")[1]
    assert pdips(*words(here, epsilon=2))[0] == 0


@pytest.mark.slow
def test_another_account_of_the_same_persons_is_adopted(pdips, here):
    other = here / "other.sqlite"
    pdips.ok(*words(here, epsilon=3))
    named = [other if word == here / "l.sqlite" else word for word in words(here)]
    pdips.ok(*(here / "second" if word == here / "out" else word for word in named))
    check = ["ledger", "check", here / "l.sqlite", here / "out", here / "second"]
    code, out, _ = pdips(*check)
    assert (code, out.count("MISSING"), out.count("ok  ")) == (3, 1, 1)
    assert "it is charged to another account, and nothing here counts it" in out
    out = pdips.ok("ledger", "adopt-account", here / "l.sqlite", other)
    assert out == "epsilon 4 of 10 spent, 6 left\n"
    assert pdips.ok(*check).count("ok  ") == 2
    shown = pdips.ok("ledger", "show", here / "l.sqlite")
    assert f"adopted from account {Ledger(other).name()}" in shown
    pdips.fails(
        "counts the charges of", "ledger", "adopt-account", here / "l.sqlite", other
    )
    pdips.ok("ledger", "set-total", here / "l.sqlite", 4)
    more = here / "more.sqlite"
    named = [more if word == here / "l.sqlite" else word for word in words(here)]
    pdips.ok(*(here / "third" if word == here / "out" else word for word in named))
    adopt = ("ledger", "adopt-account", here / "l.sqlite", more)
    pdips.fails("would be overspent", *adopt, code=3)


def test_a_release_that_states_another_price_is_at_fault(pdips, here):
    pdips.ok(*words(here))
    path = here / "out/public/privacy.json"
    document = json.loads(path.read_text())
    document["receipt"]["epsilon"] = "1/100"
    path.write_text(json.dumps(document))
    code, out, _ = pdips("ledger", "check", here / "l.sqlite", here / "out")
    assert code == 3
    assert "another price for charge 1: the release states what wasn't charged" in out


def test_an_account_in_rho_on_the_command_line(pdips, here):
    out = pdips.ok("ledger", "set-total", here / "l.sqlite", "--rho", "0.1")
    assert out.startswith("rho 0 of 0.1 spent, 0.1 left; read at de")
    assert pdips(*words(here, epsilon="0.4"))[0] == 0
    shown = pdips("ledger", "show", here / "l.sqlite")[1]
    assert "        0.4        noisy counts " in shown
    # .4 of persons with two records each: two cells that move by 2, not .4^2 / 2 = .08
    assert "charged as rho 0.038065\n" in shown
    assert (
        "rho 0.038065 of 0.1 spent, 0.061935 left; read at delta 0.000001: epsilon 1.27"
    ) in shown
    # readings at four digits: what is spent rounded up, what is left down
    spent, total, left = re.search(
        r"epsilon (\S+) of (\S+) spent, (\S+) left", shown
    ).groups()
    account = Ledger(here / "l.sqlite").summary()
    assert 0 <= Fraction(spent) - account.spent_epsilon < Fraction(1, 10**3)
    assert 0 <= Fraction(total) - account.total_epsilon < Fraction(1, 10**3)
    assert 0 <= account.remaining_epsilon - Fraction(left) < Fraction(1, 10**3)
    assert max(map(len, (spent, total, left))) <= len("1.234")
    state = json.loads((here / "out/confidential/run.json").read_text())["ledger"]
    rho = as_float(laplace_rho(Fraction(1, 10), Fraction(4), Fraction(8)))
    assert rho == pytest.approx(0.038065, rel=1e-4)
    assert (state["charged_rho"], state["spent_rho"], state["total_rho"]) == (
        pytest.approx(rho),
        pytest.approx(rho),
        0.1,
    )
    assert state["entries"][0]["rho"] == pytest.approx(rho)
    pdips.fails(
        "give one of them", "ledger", "set-total", here / "l.sqlite", "3", "--rho", "1"
    )


# Copies put back from a backup


@pytest.mark.slow
def test_a_ledger_put_back_is_noticed(pdips, here):
    check = ["ledger", "check", here / "l.sqlite", here / "out", here / "second"]
    shutil.copy(here / "l.sqlite", here / "backup")
    assert pdips(*words(here))[0] == 0
    assert pdips(*words(here, out="second"))[0] == 0
    carried = json.loads((here / "second/public/privacy.json").read_text())["receipt"]
    ledger = Ledger(here / "l.sqlite")
    assert carried == asdict(ledger.entries()[1].receipt(ledger.name()))
    assert (carried["number"], carried["epsilon"], carried["kind"]) == (2, "1", "pure")
    account = json.loads((here / "second/confidential/run.json").read_text())["ledger"]
    assert (
        account["charged_epsilon"],
        account["spent_epsilon"],
        len(account["entries"]),
    ) == (1, 2, 2)
    out = pdips.ok(*check)
    assert [line.split()[0] for line in out.splitlines()] == ["ok"] * 2
    shutil.copy(here / "backup", here / "l.sqlite")
    code, out, err = pdips(*check)
    assert (code, out.count("MISSING")) == (3, 2)
    assert "2 of these charges are not in ledger" in err
    code, _, err = pdips(*words(here, "--overwrite"))
    assert (code, "an older copy of the ledger was put back" in err) == (0, True)
    _, out, _ = pdips(*check)
    assert [line.split()[0] for line in out.splitlines()] == ["ok", "MISSING"]


def test_what_a_check_cant_tell(pdips, here):
    assert (
        pdips(
            *(
                word
                for word in words(here)
                if word not in ("--ledger", here / "l.sqlite")
            )
        )[0]
        == 0
    )
    out = pdips.ok("ledger", "check", here / "l.sqlite", here / "out")
    assert "unknown" in out
    assert "made without a ledger" in out
    assert ("is no folder of a pdips release") in pdips(
        "ledger", "check", here / "l.sqlite", here / "none"
    )[2]
    for damaged in (
        '{"receipt": {"number": "x"}}',
        '{"receipt": {}}',
        '{"receipt": 1}',
        "[]",
        "{",
    ):
        (here / "out/public/privacy.json").write_text(damaged)
        assert (
            "is damaged" in pdips("ledger", "check", here / "l.sqlite", here / "out")[2]
        )
    assert (
        "doesn't exist"
        in pdips("ledger", "check", here / "other.sqlite", here / "out")[2]
    )
