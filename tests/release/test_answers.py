"""Answers that are published, and read again."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from pdips.errors import PlanError
from pdips.privacy.answers import Answers, NotedAnswer, PublicFacts
from pdips.release.answers import answer_forms, answer_rows, read_answers
from pdips.release.noisy_margins import MOST_NUMBERS


def of_all_sorts() -> Answers:
    answers = Answers()
    answers.note("cells", "numbers", np.array([3, -(2**60), 0]))
    answers.note("", "kept", np.array([[True, False], [False, True]]))
    answers.note("", "kept", 7)
    answers.note("best", "choice", np.array([2], dtype=np.int32))
    answers.note("draw", "draw", {"theta": np.array([0.25, np.inf]), "n": np.array(4)})
    answers.note("nothing", "numbers", np.zeros(0, dtype=np.int64))
    return answers


def same(one: NotedAnswer, other: NotedAnswer) -> None:
    assert (one.step, one.kind, type(one.values)) == (
        other.step,
        other.kind,
        type(other.values),
    )
    pairs = [(one.values, other.values)]
    if isinstance(one.values, dict):
        assert [*one.values] == [*other.values]
        pairs = list(zip(one.values.values(), other.values.values(), strict=True))
    for first, second in pairs:
        assert_array_equal(first, second)
        assert np.asarray(first).dtype == np.asarray(second).dtype
        assert np.shape(first) == np.shape(second)


def test_answers_come_back_as_they_were_given(tmp_path):
    answers = of_all_sorts()
    answer_rows(answers).to_parquet(tmp_path / "a.parquet")
    rows = pd.read_parquet(tmp_path / "a.parquet")
    found = read_answers(answer_forms(answers), rows)
    assert len(found) == len(answers) == 6
    for one, other in zip(answers, found, strict=True):
        same(one, other)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.iloc[1:],
        lambda rows: pd.concat([rows, rows.iloc[-1:]]),
        lambda rows: rows.assign(answer=0),
        lambda rows: rows.assign(whole=pd.NA),
    ],
)
def test_rows_of_other_answers_are_refused(change):
    answers = of_all_sorts()
    with pytest.raises(ValueError):
        read_answers(answer_forms(answers), change(answer_rows(answers)))


def test_what_is_no_number_or_too_much_is_not_published():
    table = Answers(
        [NotedAnswer(step="a", kind="draw", values=pd.DataFrame({"x": ["b"]}))]
    )
    assert answer_forms(table) == ()
    many = np.zeros(MOST_NUMBERS + 1, dtype=np.int8)
    assert (
        answer_forms(Answers([NotedAnswer(step="a", kind="numbers", values=many)]))
        == ()
    )
    texts = Answers([NotedAnswer(step="a", kind="kept", values=np.array(["b"]))])
    assert answer_forms(texts) == ()


def test_a_noted_answer_stays_as_it_was_when_a_mechanism_works_in_its_place():
    answers = Answers()
    numbers = np.arange(3)
    answers.note("a", "numbers", numbers)
    numbers += 5
    assert answers[0].values.tolist() == [0, 1, 2]
    assert len(answers[:1]) == 1
    assert "1 of 1 steps" in repr(answers)


def test_public_facts_refuse_what_is_protected():
    facts = PublicFacts(None)
    assert not facts.n_public
    for name in ("n_records", "columns"):
        with pytest.raises(PlanError, match="protected"):
            getattr(facts, name)
    with pytest.raises(PlanError, match="no column"):
        _ = PublicFacts(4).columns
