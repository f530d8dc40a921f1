"""A charge that was stopped is resumed from its answers, bit for bit, and charged once,
whatever its answers are.
"""

import numpy as np
import pandas as pd
import pytest
from small_models import PAIRS, line
from small_models import ready as find
from tables import random_table, schema_in, schema_of

from pdips import CensoredPosterior, Ledger, Release, Table
from pdips.errors import ResumableError
from pdips.privacy.account import Entry
from pdips.privacy.charge import Charge
from pdips.privacy.journal import encoded

SCHEMA = schema_of(2, 3, 2)

pytestmark = [
    pytest.mark.usefixtures("few_simulated"),
    pytest.mark.filterwarnings("ignore:epsilon is so small:UserWarning"),
]


class Stopped(BaseException):
    """The run comes to its end."""


class Watch:
    """What charges answer in each run, and after how many commits a run is stopped."""

    def __init__(self, monkeypatch) -> None:
        self.answers: list[bytes] = []
        self.left = 0
        monkeypatch.setattr(Charge, "answer", self.noting(Charge.answer))
        monkeypatch.setattr(Charge, "keep", self.noting(Charge.keep))
        commit = Charge._commit

        def stopping(charge, name, data):
            commit(charge, name, data)
            self.left -= 1
            if self.left == 0:
                raise Stopped

        monkeypatch.setattr(Charge, "_commit", stopping)

    def noting(self, method):
        def noted(charge, *given):
            answer = method(charge, *given)
            self.answers.append(encoded(answer))
            return answer

        return noted

    def run(self, stop_after: int) -> None:
        """Begin a run that is stopped after so many commits; 0 for never."""
        self.left, self.answers = stop_after, []


def resumed(mechanism, table: Table, ledger: Ledger, watch: Watch) -> Release:
    """Stop a release after its first commit and after three more, and finish it."""
    watch.run(stop_after=1)
    with pytest.raises(ResumableError, match="repeat the call with resume=1"):
        mechanism.release(table, ledger=ledger)
    [entry] = ledger.resumable()
    before = answers_of(ledger, entry)
    watch.run(stop_after=3)
    try:
        release, _ = mechanism.release(table, ledger=ledger, resume=1)
    except ResumableError:
        before = answers_of(ledger, entry)
        watch.run(stop_after=0)
        release, _ = mechanism.release(table, ledger=ledger, resume=1)
    assert watch.answers[: len(before)] == before
    release.finish()
    assert release.receipt == ledger.entries()[0].receipt(ledger.name())
    assert ledger.summary().spent_epsilon == ledger.entries()[0].price.epsilon
    assert (len(ledger.entries()), ledger.resumable()) == (1, [])
    return release


def answers_of(ledger: Ledger, entry: Entry) -> list[bytes]:
    _, stored = ledger.journal_of(entry).read()
    return [data for _, data in stored]


def numbers_and_levels(n: int = 120) -> Table:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "region": rng.choice(["n", "s"], n),
            "sector": rng.choice(["a", "b", "c", None], n),
            "size": rng.integers(1, 5000, n),
            "pay": np.where(rng.random(n) < 0.2, np.nan, rng.uniform(0, 100, n)),
        }
    )
    return Table(frame, schema_in("quantile_mixed"))


def pairs_of_numbers(n: int = 40) -> Table:
    rng = np.random.default_rng(3)
    x = rng.uniform(-10, 10, n)
    return Table(pd.DataFrame({"x": x, "y": x + rng.normal(0, 2, n)}), PAIRS)


SORTS = {
    "a set at a time": (
        lambda: find("margins")(epsilon=1, n_sets=2, split="per-set"),
        lambda: random_table(SCHEMA, 40),
    ),
    "numbers that may be missing": (
        lambda: find("kng")(epsilon=4, n_candidates=40),
        numbers_and_levels,
    ),
    "a reference of public columns": (
        lambda: CensoredPosterior(epsilon=4, model=line, centre="staged"),
        pairs_of_numbers,
    ),
}
"""Mechanisms with answers of other types: several rounds, simulated records that steer
later questions, and a table of counted views.
"""


@pytest.mark.parametrize("sort", SORTS)
def test_answers_of_all_sorts_are_read_back(sort, ledger, monkeypatch):
    mechanism, table = (make() for make in SORTS[sort])
    resumed(mechanism, table, ledger, Watch(monkeypatch))


def test_an_answer_that_isnt_read_back_would_be_caught(ledger, monkeypatch):
    # the broken twin draws all answers anew
    resume = Charge.resume

    def forgetful(charge, number):
        resume(charge, number)
        charge._stored.clear()

    monkeypatch.setattr(Charge, "resume", forgetful)
    with pytest.raises(AssertionError):
        resumed(
            find("margins")(epsilon=1),
            random_table(SCHEMA, 40),
            ledger,
            Watch(monkeypatch),
        )
