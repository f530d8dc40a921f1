"""The curator's price section, account, checklist and verdicts: each rule fires, and
only where it should.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from tables import cases
from test_card import words_of
from test_report import ACCOUNT, facts_of, pages, run_of, write_folder

from pdips.release.documents import (
    AccountState,
    PrivacyDocument,
    RunDocument,
    write_json,
)
from pdips.report import checklist, figures, price
from pdips.report.verdict import Verdict

RUN = run_of(facts_of())
PROMISED = "What is promised, and to whom"


def checked(**given: Any) -> tuple[PrivacyDocument, RunDocument]:
    """Return the documents of a release, with what is given in the place where files
    have it.
    """
    run = RUN | {key: given.pop(key) for key in ("n_records",) if key in given}
    if "ledger" in given:
        account = given.pop("ledger")
        run["ledger"] = None if account is None else ACCOUNT | account
    return PrivacyDocument.model_validate(
        facts_of(**given)
    ), RunDocument.model_validate(run)


def losses(facts: PrivacyDocument, answered: Path | None = None) -> price.Losses:
    return price.published(answered or Path("nowhere"), facts)


def answered(folder: Path, epsilon: float) -> Path:
    """Return a folder with an answer to a further question at a price."""
    home = folder / "answers/1/public"
    home.mkdir(parents=True)
    write_json(home / "privacy.json", facts_of(epsilon=epsilon))
    return folder


def states(**given: Any) -> dict[str, str]:
    release, run = checked(**given)
    groups = checklist.section(release, run, losses(release))["groups"]
    return {check.question: check.state for group in groups.values() for check in group}


@pytest.mark.parametrize(
    ("given", "level", "words"), cases(__file__, "rules_of_the_price")
)
def test_rules_of_the_price(given: Any, level: str, words: str) -> None:
    release, run = checked(**given)
    found = price.verdict(release, run, losses(release))
    assert found.level == level
    assert words in found.line


def test_an_answer_counts_where_all_that_is_published_does(tmp_path: Path) -> None:
    facts, run = checked(epsilon=9.9)
    both = losses(facts), losses(facts, answered(tmp_path, 0.25))
    assert [price.verdict(facts, run, one).level for one in both] == ["good", "watch"]
    alone, together = (
        checklist.section(facts, run, one)["groups"][PROMISED] for one in both
    )
    assert [check.state for check in alone[:2]] == ["yes", "person"]
    assert [check.state for check in together[:2]] == ["yes", "watch"]
    assert "10.15 in total" in together[0].found
    assert "the answer 1" in together[0].found


def ledger(**changes: Any) -> AccountState:
    full = {
        **ACCOUNT,
        "total_epsilon": 10.0,
        "spent_epsilon": 4.0,
        "remaining_epsilon": 6.0,
    }
    return AccountState.model_validate({**full, **changes})


def test_where_the_account_stands(tmp_path: Path) -> None:
    facts, _ = checked()
    with_answer = losses(facts, answered(tmp_path, 0.25))
    found = price.account(facts, ledger(), with_answer)
    assert (
        found["earlier"],
        found["this"],
        found["later"],
        found["left"],
        found["more"],
    ) == (3, 1, 0.25, 5.75, 5)
    assert price.account(facts, ledger(), losses(facts))["more"] == 6
    assert (
        price.account(
            facts,
            ledger(remaining_epsilon=0.3 - 0.2, charged_epsilon=0.1),
            losses(facts),
        )["more"]
        == 1
    )
    assert (
        price.account(
            facts, ledger(total_epsilon=None, remaining_epsilon=None), losses(facts)
        )["more"]
        is None
    )
    tight = {
        "charged_epsilon": 1.0,
        "charged_delta": 1e-6,
        "total_delta": 3e-6,
        "spent_delta": 1e-6,
    }
    assert price.account(facts, ledger(**tight), losses(facts))["more"] == 2


def test_the_bar_is_drawn_to_scale(tmp_path: Path) -> None:
    account = {
        **RUN["ledger"],
        "total_epsilon": 0.4,
        "spent_epsilon": 0.1,
        "remaining_epsilon": 0.3,
        "charged_epsilon": 0.1,
    }
    report = pages(
        write_folder(
            tmp_path / "out", facts_of(epsilon=0.1), {**RUN, "ledger": account}
        )
    )[1]
    bar = re.search(
        r'<div class="account"[^>]*aria-label="([^"]*)">(.*?)</div>', report, re.DOTALL
    )
    assert bar
    assert bar[1] == "Epsilon of the account; 0.1 by this release; 0.3 left of 0.4"
    assert re.findall(
        r'<i class="(\w+)" style="flex-grow: '
        r'([\d.]+)">',
        bar[2],
    ) == [("this", "250"), ("left", "750")]


def test_the_curve_passes_through_its_points() -> None:
    drawn = figures.roc_bound(lambda level: min(1.0, 2 * level), (0.25,), "Bound")
    line = re.search(
        r'<path d="([^"]*)"[^>]*stroke: var\(--accent\); stroke-width: '
        r'2[;"]',
        drawn,
    )
    assert line
    places = [
        tuple(map(float, pair))
        for pair in re.findall(
            r"[ML] ([\d.]+) "
            r"([\d.]+)",
            line[1],
        )
    ]
    assert places[0] == (46, 238)
    assert (46 + 230 / 2, 8) in places
    dot = re.findall(
        r'<use [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*fill: '
        r"var\(--accent\)",
        drawn,
    )[-1]
    assert tuple(map(float, dot)) == pytest.approx(
        (46 + 230 / 4, 238 - 230 / 2), abs=0.1
    )


def test_answers_and_earlier_charges_are_in_the_report(
    tmp_path: Path,
) -> None:
    facts = facts_of()
    entry = {
        "number": 1,
        "time": "2026-01-02T03:04:05+00:00",
        "mechanism": "kng",
        "epsilon": 0.75,
        "delta": 0.0,
        "rho": None,
    }
    account = {
        **RUN["ledger"],
        "spent_epsilon": 1.75,
        "remaining_epsilon": 1.25,
        "entries": [entry],
    }
    folder = write_folder(tmp_path / "out", facts, {**RUN, "ledger": account})
    answered(folder, 0.25)
    report = words_of(pages(folder)[1])
    for words in (
        *(
            "0.75 spent before",
            "1 by this release",
            "0.25 by what was published since",
            "1 left of 3",
        ),
        "2026-01-02 kng 0.75",
        "Room for 1 more release of this price.",
        "together cost ε = 1.25",
        "The answer 1: ε = 0.25",
    ):
        assert words in report


QUESTIONS = cases(__file__, "questions")


NOISE = [{"statistics": "counts", "scale": 2.0, "standard_deviation": 2.8}]


@pytest.mark.parametrize(("name", "given", "state"), cases(__file__, "answers"))
def test_answers_that_the_files_hold(name: str, given: Any, state: str) -> None:
    assert states(**given)[QUESTIONS[name]] == state


def test_what_only_persons_know_is_never_answered_for_them() -> None:
    found = states(records={"person": "id"}, noise=NOISE)
    assert sum(state == "person" for state in found.values()) == 9
    assert set(QUESTIONS.values()) <= set(found)
    assert len(found) == 20
    assert all(question.endswith("?") for question in found)


def test_verdict_of_the_checklist() -> None:
    def given(*found: Any) -> Verdict:
        one = {"question": "Q?", "found": "F.", "why": "W.", "topic": "2: t"}
        return checklist.verdict(
            [checklist.Question(state=state, **one) for state in found]
        )

    assert given("yes", "yes").level == "good"
    assert given("yes", "person").level == "open"
    assert given("person", "watch").level == "watch"
    assert given("person", "watch", "no").level == "bad"
    assert (
        "1 question of 3 is answered by no; 1 question waits for a person."
    ) in given("person", "watch", "no").line
    assert "2 questions wait for a person." in given("person", "person").line


def test_the_checklist_can_be_filled_in_on_paper(tmp_path: Path) -> None:
    report = pages(write_folder(tmp_path / "out", facts_of(), RUN))[1]
    asked = sum(state != "yes" for state in states().values())
    assert (
        report.count('<i class="box"></i>yes')
        == report.count('<i class="box"></i>no')
        == asked
    )
    text = words_of(report)
    for words in (
        "Name and office",
        "Date",
        "Signature",
        "SP 800-226, chapter 2: unit of privacy",
        "do not publish",
    ):
        assert words in text
