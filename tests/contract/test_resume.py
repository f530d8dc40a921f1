"""A release of every mechanism that is stopped after any of its answers is finished by
the answers that it left.
"""

import numpy as np
import pandas as pd
import pytest
from small_models import ready as find
from tables import random_table, schema_of

from pdips import Ledger, Schema, Table
from pdips.errors import ResumableError
from pdips.privacy import curator
from pdips.privacy.charge import KEPT, Charge
from pdips.registry import MECHANISMS

pytestmark = [
    pytest.mark.usefixtures("few_simulated"),
    pytest.mark.filterwarnings("ignore:epsilon is so small:UserWarning"),
]

SCHEMA = schema_of(2, 3, 2)
WAGES = Schema(
    columns={
        "wage": {"lower": 0, "upper": 10},
        "hours": {"lower": 0, "upper": 8},
        "sex": {"levels": ["f", "m"]},
    }
)
SETTINGS = {
    "kng": ({}, WAGES),
    "kng-residual": ({"bins": 4}, WAGES),
    "privbayes": ({"degree": 1}, SCHEMA),
    "margins": ({"n_sets": 2}, WAGES),
    "steps": ({"split": "per-set", "n_sets": 2, "layers": 1}, SCHEMA),
}
CHARGED = sorted(
    name for name in MECHANISMS if find(name).loss_kind not in ("asymptotic", "none")
)


def table_of(schema: Schema) -> Table:
    if schema is SCHEMA:
        return random_table(SCHEMA, 40, np.random.default_rng(1))
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(
        {
            "wage": rng.uniform(0, 10, 60),
            "hours": rng.uniform(0, 8, 60),
            "sex": rng.choice(["f", "m"], 60),
        }
    )
    return Table(frame, schema)


def stored(ledger: Ledger) -> list[tuple[str, bytes]]:
    [entry] = ledger.resumable()
    return ledger.journal_of(entry).read()[1]


class Stop(BaseException):
    """What no code of ours catches."""


@pytest.fixture
def exact_answers(monkeypatch):
    """Take the noise away, so that equal questions have equal answers."""
    for law in ("discrete_laplace", "discrete_gaussian"):
        monkeypatch.setattr(
            curator, law, lambda scale, n, bits: np.zeros(n, dtype=np.int64)
        )
    monkeypatch.setattr(
        curator, "exponential_mechanism", lambda scores, unit, bits: scores.argmax(1)
    )


def asked_again(monkeypatch, laws: dict[str, str]) -> list[str]:
    """Ask once more what a resumed release reads back, and compare; return the names
    of what was compared.
    """
    answer, compared = Charge.answer, []

    def checked(charge, name, draw):
        is_stored = bool(charge._stored)
        again = draw() if is_stored and laws[name] in DETERMINED else None
        found = answer(charge, name, draw)
        if again is not None:
            np.testing.assert_array_equal(again, found)
            compared.append(name)
        return found

    monkeypatch.setattr(Charge, "answer", checked)
    return compared


DETERMINED = ("laplace", "gaussian", "exponential")


@pytest.mark.slow_cases(
    "censored-posterior",
    "margins",
    "scores",
)
@pytest.mark.usefixtures("exact_answers")
@pytest.mark.parametrize("name", CHARGED)
def test_a_resumed_release_asks_what_it_asked_before(name, tmp_path, monkeypatch):
    settings, schema = SETTINGS.get(name, ({}, SCHEMA))
    mechanism, table = find(name)(epsilon=4, **settings), table_of(schema)
    laws = {step.name: step.law for step in mechanism.plan(schema).steps}
    ledger = Ledger(tmp_path / "l.sqlite")
    mechanism.release(table, ledger=ledger)
    compared = asked_again(monkeypatch, laws)
    passed_over = []
    monkeypatch.setattr(
        curator.Curator,
        "pass_over",
        lambda self, step, real=curator.Curator.pass_over: (
            passed_over.append(step.name) or real(self, step)
        ),
    )
    mechanism.release(table, ledger=ledger, resume=1)
    asked = {*laws} - {*passed_over}
    assert {*compared} == {step for step in asked if laws[step] in DETERMINED}


@pytest.mark.usefixtures("exact_answers")
@pytest.mark.parametrize("name", ["privbayes", "universal-histogram"])
def test_a_question_that_other_random_bits_would_change_is_noticed(
    name, tmp_path, monkeypatch
):
    # the broken twin: nothing is kept, and another column is drawn to begin with
    settings, schema = SETTINGS.get(name, ({}, SCHEMA))
    mechanism, table = find(name)(epsilon=4, **settings), table_of(schema)
    laws = {step.name: step.law for step in mechanism.plan(schema).steps}
    monkeypatch.setattr(curator.Drawing, "keep", lambda self, make: make())
    ledger = Ledger(tmp_path / "l.sqlite")
    mechanism.release(table, ledger=ledger, rng=np.random.default_rng(0))
    asked_again(monkeypatch, laws)
    with pytest.raises(ResumableError) as caught:
        mechanism.release(table, ledger=ledger, rng=np.random.default_rng(1), resume=1)
    assert isinstance(caught.value.__context__, (AssertionError, ValueError))


@pytest.mark.slow_cases(
    "censored-posterior",
    "kng",
    "kng-residual",
    "margins",
    "scores",
)
@pytest.mark.parametrize("name", CHARGED)
def test_a_stopped_release_is_finished_by_the_answers_that_it_left(
    name, tmp_path, monkeypatch
):
    settings, schema = SETTINGS.get(name, ({}, SCHEMA))
    mechanism = find(name)(epsilon=4, **settings)
    table, commit = table_of(schema), Charge._commit

    whole = Ledger(tmp_path / "whole.sqlite")
    mechanism.release(table, ledger=whole)
    names = [step for step, _ in stored(whole)]
    # What is kept before the first answer is committed together with it.
    n_first = next(place for place, step in enumerate(names) if step != KEPT)
    n_commits = len(names) - n_first

    for stop_after in {1, (n_commits + 1) // 2, n_commits}:
        ledger = Ledger(tmp_path / f"{stop_after}.sqlite")
        left = [stop_after]

        def stopped(charge, name, data, left=left):
            commit(charge, name, data)
            left[0] -= 1
            if not left[0]:
                raise Stop

        with monkeypatch.context() as patch:
            patch.setattr(Charge, "_commit", stopped)
            with pytest.raises(ResumableError, match="resume=1"):
                mechanism.release(table, ledger=ledger)
        before = stored(ledger)
        assert [step for step, _ in before] == names[: n_first + stop_after]
        release, _ = mechanism.release(table, ledger=ledger, resume=1)
        after = stored(ledger)
        assert after[: len(before)] == before
        assert release.n_sets == mechanism.n_sets
        assert release.receipt.number == 1
        assert len(ledger.entries()) == 1
        release.publish(tmp_path / f"{stop_after}")
        assert ledger.resumable() == []
        assert not [*tmp_path.glob(f"{stop_after}.sqlite.*.answers*")]
