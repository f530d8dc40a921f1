"""What the judge of faults must notice, one at a time, in a release that is whole."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.faults.doors import MECHANISMS, address_of, records, write_data
from benchmarks.faults.judge import Judge, Verdict
from benchmarks.faults.runs import Ended, Work
from benchmarks.faults.shim import Fault
from pdips import Ledger, Schema, cli
from pdips.errors import DataError
from pdips.histogram.laplace import LaplaceSanitizer

DOOR = next(door for door in MECHANISMS if door.name == "perturbed-histogram")
GOOD = Ended(code=0, output="", complaint="", calls=(), answers=("a",), seconds=0.0)
EARLY = replace(GOOD, code=2, complaint="pdips: no\n", answers=())
SECRET = "1234.5678"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A work folder with a release."""
    base = tmp_path_factory.mktemp("judge")
    write_data(base / "data")
    work = Work.made(base, base / "data")
    words = DOOR.words(address_of(DOOR, None), work.ledger, work.out)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work.root)
        patch.setattr("sys.argv", ["pdips", *words])
        cli.main()
    return work.root.parent


@pytest.fixture
def work(home, tmp_path) -> Work:
    shutil.copytree(home, tmp_path / "here")
    return Work(root=tmp_path / "here" / "work", beside=tmp_path / "here" / "beside")


@pytest.fixture
def empty(home, tmp_path) -> Work:
    """A work folder in which nothing has happened."""
    (tmp_path / "none").mkdir()
    return Work.made(tmp_path / "none", home / "work" / "data")


def judged(
    work: Work, ended: Ended, fault: Fault | None = None, then: Ended = GOOD
) -> Verdict:
    """Return the verdict on a run, with what every later command comes to."""
    words = DOOR.words(address_of(DOOR, None), work.ledger, work.out)
    judge = Judge(DOOR, words, work, {SECRET}, lambda words: then)
    return judge.verdict(ended, Fault() if fault is None else fault)


def problems(work: Work, ended: Ended, **more) -> str:
    return "; ".join(judged(work, ended, **more).problems)


def test_a_good_release_is_published(work):
    assert judged(work, GOOD) == Verdict("published", [])


SAID = {
    "two lines": "one\ntwo\n",
    "a trace": "Traceback (most recent call last)\n",
    "a value": f"NOTE      {SECRET}\n",
    "not charged": "pdips: nothing was charged\n",
    "not released": "pdips: nothing was released\n",
    "not published": "pdips: charged (number 1) and not published\n",
}


@pytest.mark.parametrize("what", SAID)
def test_what_is_said_wrongly_is_noticed(what, work):
    found = problems(work, replace(GOOD, complaint=SAID[what]))
    expected = {
        "two lines": "2 lines of complaint",
        "a trace": "1 lines of complaint",
        "a value": "a value of the table is printed",
    }
    assert expected.get(what, "where the release is published") in found


@pytest.mark.parametrize("code", [1, 2, 3, 130, -11])
def test_an_exit_code_that_means_something_else_is_noticed(code, work):
    assert f"exit code {code}" in problems(work, replace(GOOD, code=code))


def test_an_exit_code_without_a_way_out_is_noticed(work):
    ended = replace(GOOD, code=4, complaint="pdips: not finished\n")
    assert "without a way out" in problems(work, ended)


def test_files_that_are_left_over_are_noticed(work):
    for name in ("ledger/l.sqlite.0a.answers", "out/.release-0a", "tmp/some"):
        (work.root / name).touch()
    found = problems(work, GOOD)
    assert "left over: ledger/l.sqlite.0a.answers, out/.release-0a, tmp/some" in found


@pytest.mark.parametrize(("text", "is_noticed"), [("def f", False), (SECRET, True)])
def test_code_that_pytensor_leaves_has_no_value_of_the_table(text, is_noticed, work):
    (work.root / "tmp" / "tmpabcd_123").write_text(text, encoding="utf-8")
    assert ("left over: tmp/tmpabcd_123" in problems(work, GOOD)) == is_noticed


@pytest.mark.parametrize("harm", ["lost", "changed"])
def test_a_set_that_is_lost_or_changed_is_a_lost_release(harm, work):
    [path] = (work.out / "public").glob("synthetic_1.*")
    if harm == "lost":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() + b" ")
    found = judged(work, GOOD)
    assert found.end == "charged"
    assert any(problem.startswith("LOST in the end") for problem in found.problems)


def test_an_edited_page_is_noticed(work):
    card = work.out / "public" / "card.html"
    card.write_text("no card", encoding="utf-8")
    assert "check finds" in problems(work, GOOD)


def test_two_charges_are_noticed(work):
    ledger = Ledger(work.ledger)
    schema = Schema.load(work.root / "data" / "s.toml").only(["sex", "town"])
    request = LaplaceSanitizer(epsilon=1).request(schema)
    ledger.adopt("another table")
    ledger.charge(request, fingerprint="another table")
    assert "2 charges" in problems(work, GOOD)


def test_a_charge_without_a_release_is_lost_where_it_can_t_be_resumed(work):
    shutil.rmtree(work.out)
    ended = replace(GOOD, code=4, complaint="pdips: stopped: pdips resume L 1\n")
    then = replace(GOOD, code=2, complaint="pdips: there is no charge\n")
    found = problems(work, ended, then=then)
    assert "resuming ends with 2: pdips: there is no charge" in found
    assert "LOST in the end: there is no public/" in found


def test_an_answer_that_is_drawn_anew_is_noticed(work):
    shutil.rmtree(work.out)
    ended = replace(GOOD, code=4, complaint="pdips: stopped: pdips resume L 1\n")
    then = replace(GOOD, answers=("b",))
    assert "an answer was used and drawn anew" in problems(work, ended, then=then)


def test_a_charge_that_only_chains_may_end_so_is_noticed(work):
    shutil.rmtree(work.out)
    rewritten(work, "not converged")
    ended = replace(GOOD, code=3, complaint="pdips: refused\n")
    found = judged(work, ended)
    assert found.end == "not converged"
    assert "no chain reads records, and the charge has ended" in found.problems


def rewritten(work: Work, end: str) -> None:
    """Give the work folder an account whose only charge has ended in some way."""
    receipt = Ledger(work.ledger).entries()[0]
    for path in work.ledger.parent.iterdir():
        path.unlink()
    schema = Schema.load(work.root / "data" / "s.toml").only(["sex", "town"])
    request = LaplaceSanitizer(epsilon=1).request(schema)
    ledger = Ledger(work.ledger)
    assert receipt.end == "finished"
    ledger.end(ledger.charge(request, fingerprint="a table").number, end)


def test_a_release_without_its_charge_is_noticed(work):
    for path in work.ledger.parent.iterdir():
        path.unlink()
    found = problems(work, EARLY)
    assert "public/ isn't in order" in found


def test_what_isn_t_charged_must_work_when_it_is_asked_again(empty):
    then = replace(EARLY, complaint="pdips: again\n")
    assert "repeating the command ends with 2: pdips: again" in problems(
        empty, EARLY, then=then
    )


def test_an_answer_that_was_used_for_free_is_noticed(empty):
    said = "an answer was used that nobody was charged for"
    assert said in problems(empty, replace(EARLY, answers=("a",)))
    # a public choice that was kept before the charge is no answer
    assert said not in problems(empty, replace(EARLY, answers=("kept a",)))


@pytest.fixture
def reserved(empty) -> Work:
    """A work folder whose account has an open reservation."""
    ledger = Ledger(empty.ledger)
    schema = Schema.load(empty.root / "data" / "s.toml").only(["sex", "town"])
    context = ledger.reserve(LaplaceSanitizer(epsilon=1), schema)
    context.__enter__()
    ledger._held = None  # as if its process had died
    return empty


def test_a_reservation_that_stays_open_without_a_word_is_noticed(reserved):
    assert "stays open without a word" in problems(reserved, EARLY)


def test_a_word_about_another_reservation_is_noticed(reserved):
    ended = replace(EARLY, complaint="pdips: no: pdips ledger strike L 7\n")
    assert "another reservation is said to stay open" in problems(reserved, ended)


def test_a_refusal_on_record_is_noticed(empty):
    ledger = Ledger(empty.ledger)
    schema = Schema.load(empty.root / "data" / "s.toml").only(["sex", "town"])
    with (
        pytest.raises(DataError),
        ledger.reserve(LaplaceSanitizer(epsilon=1), schema),
    ):
        raise DataError("the records don't fit")
    assert "a refusal for what records contain" in problems(empty, EARLY)


def test_the_table_s_values_are_told_from_other_numbers():
    from benchmarks.faults.doors import secrets_of

    secrets = secrets_of(records())
    assert min(map(len, secrets)) >= 5
    assert json.loads(min(secrets)) > 0


def test_one_work_folder_isn_t_another(home, tmp_path):
    first = Work.made(tmp_path, home / "work" / "data")
    second = Work.made(tmp_path, home / "work" / "data")
    assert first.root != second.root
    first.remove()
    assert not Path(first.root).exists()
    assert second.root.exists()
