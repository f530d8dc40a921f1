"""A path of given answers: what samplers are told is noted, and answers are public."""

from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from margin_tables import of_pairs
from tables import random_table, refuses, schema_of

from pdips import InputError, Margins
from pdips.errors import PlanError
from pdips.privacy import curator
from pdips.privacy.noise import RandomBits, discrete_laplace, exponential_mechanism
from pdips.privacy.path import AnswerPath, PathBits, PathCurator, follow
from pdips.privacy.plan import LinearImage, Plan, Step
from pdips.privacy.sensitivity import Sensitivity

SCHEMA = schema_of(2, 3)
MOVED = Sensitivity.of_person(l1=2, l2_squared=2)


def step_of(law="laplace", **more):
    return Step(name=law, sensitivity=MOVED, price=Fraction(1), law=law, **more)


@dataclass
class Asking:
    """A mechanism that asks one thing."""

    step: Step
    question: object

    def plan(self, schema):
        return Plan(
            mechanism="asking",
            schema=schema,
            neighbours="replace-one",
            steps=(self.step,),
            law="One question.",
            kind="zcdp" if self.step.law == "gaussian" else "pure",
            delta=Fraction(1, 10**6),
        )

    def ask(self, plan, curator):
        return self.question(curator, self.step)


def run(step, ask, table=None, path=None, **more):
    made = Asking(step, ask)
    table = random_table(SCHEMA, 9) if table is None else table
    path = path or AnswerPath()
    return follow(made, made.plan(table.schema), table, path, **more)


def counts(curator, step):
    return curator.count(step, lambda table: np.bincount(table.codes["b"], minlength=3))


def test_what_samplers_are_told_is_noted_and_exact_counts_are_shown_without_noise():
    table = random_table(SCHEMA, 9)
    for law in ("laplace", "gaussian"):
        step = step_of(law)
        [question] = run(step, counts, table).questions
        [told] = question.told
        assert (told.law, told.parameter, told.n) == (law, step.parameter, 3)
        assert told.standard_deviation == pytest.approx(step.standard_deviation)
        exact = np.bincount(table.codes["b"], minlength=3)
        assert np.array_equal(question.shown, exact)
        assert np.array_equal(question.response.toarray(), np.eye(3))


def test_a_release_draws_as_before():
    rng = np.random.default_rng
    assert RandomBits(rng(0)).given_noise("laplace", Fraction(1), 3) is None
    assert RandomBits().given_choices(np.zeros((1, 2), dtype=int), Fraction(1)) is None
    one, other = (
        discrete_laplace(Fraction(3), 50, bits(rng(1)))
        for bits in (RandomBits, PathBits)
    )
    assert np.array_equal(one, other)
    scores = np.tile(np.arange(4), (30, 1))
    one, other = (
        exponential_mechanism(scores, Fraction(1, 2), bits(rng(1)))
        for bits in (RandomBits, PathBits)
    )
    assert np.array_equal(one, other)


def test_answers_depend_on_no_table():
    answers = []
    for seed in range(3):
        path = AnswerPath(seed=7, level=5)
        run(step_of(), counts, random_table(SCHEMA, 20, seed), path)
        answers.append(path.answers[0])
    assert np.array_equal(answers[0], answers[1])
    assert np.array_equal(answers[0], answers[2])
    other = AnswerPath(seed=8, level=5)
    run(step_of(), counts, path=other)
    assert not np.array_equal(answers[0], other.answers[0])


def test_responses_of_sums_and_of_numbers_without_noise():
    weights = np.ones(3, dtype=np.int64)
    image = LinearImage(weights, 1, lambda numbers: np.diff(numbers, axis=1))
    [question] = run(step_of("gaussian", image=image), counts).questions
    assert question.response.toarray().tolist() == [[-1, 1, 0], [0, -1, 1]]

    def masked(curator, step):
        exact = lambda table: np.bincount(table.codes["b"], minlength=3)  # noqa: E731
        return curator.count(step, exact, np.array([True, False, True]))

    [question] = run(step_of(), masked).questions
    assert question.response.toarray().tolist() == [[1, 0], [0, 0], [0, 1]]
    assert question.shown[1] == 0


def test_noise_that_isnt_added_has_no_response(monkeypatch):
    draw = curator.noisy_counts

    def squared(*given):
        return draw(*given) ** 2

    monkeypatch.setattr(curator, "noisy_counts", squared)
    [question] = run(step_of(), counts).questions
    assert question.response is None


def test_many_numbers_have_responses_of_more_than_one_digit():
    n = 40
    weights = np.ones(n, dtype=np.int64)
    matrix = np.random.default_rng(0).integers(-7, 8, size=(n, 25))
    image = LinearImage(weights, 1, lambda numbers: numbers @ matrix)

    def zeros(curator, step):
        return curator.count(step, lambda table: np.zeros(n, dtype=np.int64))

    [question] = run(step_of("gaussian", image=image), zeros).questions
    assert np.array_equal(question.response.toarray(), matrix.T)


def test_choices_are_noted_with_their_unit():
    scores = np.array([[3, curator_unavailable(), 5]])
    [question] = run(
        step_of("exponential"), lambda asked, step: asked.choose(step, lambda _: scores)
    ).questions
    assert question.unit == Fraction(1, 2)
    assert np.array_equal(question.exact, scores)


def curator_unavailable():
    return int(np.iinfo(np.int64).min)


def test_a_question_that_draws_something_else_is_refused(monkeypatch):
    choose = curator.exponential_mechanism
    scores = np.zeros((1, 2), dtype=np.int64)

    def choosing(counts, possible, step, bits, n_runs=1):
        choose(scores, Fraction(1), bits)
        return counts[None]

    monkeypatch.setattr(curator, "noisy_counts", choosing)
    with pytest.raises(PlanError, match="draws a choice"):
        run(step_of(), counts)

    def twice(*given):
        choose(*given)
        return choose(*given)

    monkeypatch.setattr(curator, "exponential_mechanism", twice)
    with pytest.raises(PlanError, match="isn't one draw"):
        run(
            step_of("exponential"),
            lambda asked, step: asked.choose(step, lambda _: scores),
        )


def test_refusals_of_a_mechanism_are_noted():
    def refusing(asked, step):
        counts(asked, step)
        raise InputError("no more")

    found = run(step_of(), refusing, whole=True)
    assert found.refusal == "InputError: no more"
    assert len(found.questions) == 1


def test_tables_in_many_files_are_refused():
    plan = Margins(epsilon=1).plan(SCHEMA)
    table = SimpleNamespace(partitioned=True)
    refuses("in one piece", PathCurator, plan, table, AnswerPath(), whole=True)


def test_a_run_ends_with_its_last_question_unless_it_is_whole():
    table = random_table(schema_of(2, 2, 2), 9)
    made = of_pairs(epsilon=1)
    plan = made.plan(table.schema)
    path = AnswerPath(level=3)
    short = follow(made, plan, table, path)
    whole = follow(made, plan, table, path, whole=True)
    assert short.drawn is None
    assert len(whole.drawn.sets[0]) == 9
    assert [q.facts for q in short.questions] == [q.facts for q in whole.questions]
