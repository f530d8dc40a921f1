"""A curator answers the steps of a plan in order and nothing else; audits see what
releases show.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from tables import bits, random_table, refuses, schema_of

from pdips import LaplaceSanitizer, Schema
from pdips.errors import PlanError
from pdips.mechanism import Drawn, Mechanism
from pdips.privacy.curator import Drawing
from pdips.privacy.part import PartCurator
from pdips.privacy.plan import Plan, Step, sharing
from pdips.privacy.replay import exact_law, record
from pdips.privacy.sensitivity import Sensitivity

SCHEMA = schema_of(2, 3)
TABLE = random_table(SCHEMA, 12)
ONE = Sensitivity.of_person(l1=1)
N_RUNS = 20_000
REJECT = 1e-6  # Error rate of each statistical test here


def step(name: str, law: str = "laplace", **settings) -> Step:
    return Step(
        name=name, sensitivity=ONE, price=Fraction(1), law=law, counts=name, **settings
    )


def plan_of(*steps: Step, **settings) -> Plan:
    return Plan(
        mechanism="m",
        schema=SCHEMA,
        neighbours="replace-one",
        steps=steps,
        law="It asks.",
        **settings,
    )


def first_column(table) -> np.ndarray:
    return table.count(table.codes["a"], 2)


def asked(table):
    """A statistic that must not be computed."""
    pytest.fail("the table was read")


A, B, CHOICE = step("a"), step("b"), step("choice", "exponential")


UNPRICED = {
    "out of order": ([], B, "count"),
    "twice": ([A], A, "count"),
    "after the last": ([A, B], A, "count"),
    "another law": ([], A, "choose"),
    "a draw": ([], A, "draw"),
    "another price": ([], replace(A, price=Fraction(2)), "count"),
}


@pytest.mark.parametrize(
    ("before", "wrong", "question"), UNPRICED.values(), ids=UNPRICED
)
def test_what_the_plan_does_not_price_is_refused_before_the_table_is_read(
    before, wrong, question
):
    curator = Drawing(plan_of(A, B), TABLE, bits())
    for right in before:
        curator.count(right, first_column)
    refuses(
        r"plan|priced",
        lambda: getattr(curator, question)(wrong, asked),
        error=PlanError,
    )


def test_a_step_may_be_asked_as_often_as_it_says_in_every_round():
    often = step("a", times=2)
    curator = Drawing(plan_of(often, repeats=2), TABLE, bits())
    for _ in range(4):
        assert not curator.finished
        curator.count(often, first_column)
    assert curator.finished
    refuses("", curator.count, often, asked, error=PlanError)


@pytest.mark.parametrize("as_part", [False, True], ids=["whole", "part"])
def test_steps_that_share_a_price_take_no_more_than_it(as_part):
    a, twice = sharing((A, replace(CHOICE, times=2)), Fraction(1))
    plan = plan_of(a, twice, repeats=2)

    def curator_of_plan():
        whole = Drawing(plan, TABLE, bits())
        return PartCurator(whole, plan, "") if as_part else whole

    def scores(table):
        return first_column(table)[None]

    curator = curator_of_plan()
    for _ in range(2):  # each round has the price anew
        curator.count(a, first_column, share=Fraction(1, 2))
        curator.choose(twice, scores, share=3)  # what the count left, and all its own
        refuses("more than is left", curator.choose, twice, asked, error=PlanError)
        curator.pass_over(twice)
    assert curator.finished
    # a step that isn't asked leaves all that it has
    curator = curator_of_plan()
    curator.pass_over(a)
    curator.choose(twice, scores, share=2)
    curator.choose(twice, scores, share=2)
    # what was given up by a step in the other round is gone
    too_much = partial(curator.count, a, asked, share=Fraction(21, 10))
    refuses("more than is left", too_much, error=PlanError)
    # alone, a step has its own price
    alone = Drawing(plan_of(A, B), TABLE, bits())
    refuses(
        "must state the rho", partial(alone.count, A, asked, share=2), error=PlanError
    )


def test_each_stratum_has_the_shared_price_anew():
    a, b = sharing((step("a", strata=2), step("b", strata=2)), Fraction(1))
    curator = Drawing(plan_of(a, b), TABLE, bits())
    for _ in range(2):
        curator.pass_over(a)
        curator.count(b, first_column, share=2)
    assert curator.finished
    curator = Drawing(plan_of(a, b), TABLE, bits())
    curator.count(a, first_column)
    more = partial(curator.count, b, asked, share=Fraction(11, 10))
    refuses("more than is left", more, error=PlanError)
    # a stratum keeps what an earlier block took of it
    a, b = sharing((step("a", strata=2), step("b", strata=2)), Fraction(1))
    curator = Drawing(plan_of(a, step("between"), b), TABLE, bits())
    curator.count(a, first_column, share=2)
    curator.count(a, first_column, share=1)
    curator.count(step("between"), first_column)
    more = partial(curator.count, b, asked, share=Fraction(1, 10))
    refuses("more than is left", more, error=PlanError)
    curator.pass_over(b)
    curator.count(b, first_column, share=1)


@pytest.mark.parametrize("share", [-1, float("nan"), float("inf"), 0.5])
def test_a_share_is_an_exact_part(share):
    a, b = sharing((A, B), Fraction(1))
    curator = Drawing(plan_of(a, b), TABLE, bits())
    refuses("no part", partial(curator.count, a, asked, share=share), error=PlanError)
    # nothing was taken by it
    curator.count(a, first_column)
    more = partial(curator.count, b, asked, share=Fraction(11, 10))
    refuses("more than is left", more, error=PlanError)


def test_prices_of_different_units_are_not_shared():
    gaussian = step("a", law="gaussian")
    a, choice = sharing((gaussian, CHOICE), Fraction(1))
    curator = Drawing(plan_of(a, choice), TABLE, bits())
    more = partial(curator.count, a, asked, share=2)
    refuses("more than is left", more, error=PlanError)


def test_what_is_protected_is_not_told():
    curator = Drawing(replace(plan_of(A), neighbours="add-remove"), TABLE, bits())
    for name in ("n_records", "public"):
        refuses("add-remove", getattr, curator, name, error=PlanError)
    assert str(TABLE.n_records) not in repr(curator)
    # whose overflow isn't told
    curator.count(A, lambda table: first_column(table) + (np.exp(np.float64(999)) < 1))
    refuses("ask nothing", plan_of)
    refuses("one name", plan_of, A, A)


def test_public_columns_are_sorted_and_come_alone():
    schema = Schema(
        columns={"a": {"levels": [0, 1], "public": True}, "b": {"levels": [0, 1, 2]}}
    )
    part = Drawing(
        replace(plan_of(A), schema=schema), random_table(schema, 30), bits()
    ).public
    assert list(part.codes) == ["a"]
    assert list(part.frame.columns) == ["a"]
    assert (np.diff(part.codes["a"]) >= 0).all()
    assert part.n_records == 30


@pytest.mark.parametrize("cap", [1, 2, 5])
@pytest.mark.parametrize(
    ("relation", "places"), [("replace-one", 2), ("add-remove", 1)]
)
def test_scale_times_price_is_the_sensitivity_of_a_person(cap, relation, places):
    found = Sensitivity.of_counts(
        schema_of(2, 3, records={"max_per_person": cap}), relation, tables=3
    )
    laplace = step("x", times=4)
    laplace = replace(laplace, sensitivity=found, price=Fraction(1, 7))
    assert found.l1 == places * cap * 3
    assert found.l2_squared == places * cap**2 * 3
    assert laplace.scale * laplace.price / laplace.times == found.l1
    gauss = replace(laplace, law="gaussian")
    assert found.l2_squared / (2 * gauss.variance) == gauss.price / gauss.times


def test_prices_add_up_exactly():
    plan = plan_of(A, replace(B, price=Fraction(1, 3)), repeats=3, n_sets=3)
    assert plan.loss.epsilon == 4 == sum(spend.epsilon for spend in plan.spends)
    assert [spend.step for spend in plan.spends][:3] == [
        "a, set 1",
        "b, set 1",
        "a, set 2",
    ]
    gauss = tuple(replace(each, law="gaussian") for each in plan.steps)
    zcdp = replace(plan, steps=gauss, kind="zcdp", delta=Fraction(1, 10**6))
    assert zcdp.loss.rho == 4
    assert sum(spend.epsilon for spend in zcdp.spends) == zcdp.loss.epsilon


@dataclass(frozen=True, kw_only=True)
class Chooser(Mechanism):
    """Chooses a column, counts it, and asks for more where the first noisy count is
    above 2.
    """

    name = "chooser"
    steers: bool = False

    def plan(self, schema):
        last = (step("more"),) if self.steers else ()
        return plan_of(CHOICE, A, *last)

    def ask(self, plan, curator):
        (column,) = curator.choose(
            CHOICE,
            lambda table: np.array([[0, int((table.codes["b"] == 0).sum()) // 4]]),
        )
        name = "ab"[column]
        noisy = curator.count(
            A,
            lambda table: table.count(table.codes[name], SCHEMA.columns[name].n_levels),
        )
        if self.steers:
            (high,) = curator.decide(noisy, lambda counts: counts[..., :1] > 2)
            curator.count(
                plan.steps[-1], lambda table: np.array([100 if high else -100])
            )

    def draw(self, plan, measured, n_sets, rng, public):
        return Drawn(sets=[])


def releases(mechanism, n: int) -> list[list[np.ndarray]]:
    """The answers of whole releases, by a curator that notes them."""
    found = []
    for seed in range(n):
        curator = Drawing(mechanism.plan(SCHEMA), TABLE, bits(seed))
        seen: list[np.ndarray] = []
        noted = SimpleNamespace(
            choose=lambda *a, c=curator, s=seen: s.append(c.choose(*a)) or s[-1],
            count=lambda *a, c=curator, s=seen: s.append(c.count(*a)) or s[-1],
            decide=curator.decide,
        )
        mechanism.ask(mechanism.plan(SCHEMA), noted)
        found.append(seen)
    return found


@pytest.mark.parametrize("steers", [False, True])
def test_recorded_runs_have_the_law_of_releases(steers):
    made = Chooser(epsilon=1, steers=steers)
    blocks = record(made, TABLE, N_RUNS, bits())
    one_by_one = releases(made, 1_000)
    for number, block in enumerate(blocks):
        seen = np.array([answers[number][0] for answers in one_by_one])
        values = np.unique(np.concatenate([block[:, 0], seen]))
        table = [
            [(part == value).sum() for value in values] for part in (block[:, 0], seen)
        ]
        kept = np.array(table)[:, np.sum(table, axis=0) > 40]
        assert stats.chi2_contingency(kept).pvalue > REJECT
        wrong = kept.copy()
        wrong[0] = np.roll(wrong[0], 1)  # the broken twin: another law
        assert stats.chi2_contingency(wrong).pvalue < REJECT
    if steers:
        high = blocks[1][:, 0] > 2
        assert (blocks[2][high, 0] > 0).all()
        assert (blocks[2][~high, 0] < 0).all()


def test_a_recorded_choice_follows_from_the_numbers_that_its_run_saw():
    middle, surely = (
        int(first_column(TABLE)[0]),
        replace(CHOICE, price=Fraction(10**6), times=2),
    )

    @dataclass(frozen=True, kw_only=True)
    class Steered(Chooser):
        def plan(self, schema):
            return plan_of(A, B, surely)

        def ask(self, plan, curator):
            for noisy in [curator.count(each, first_column) for each in (A, B)]:
                curator.choose_given(
                    surely,
                    noisy,
                    lambda table, n: (n[..., :1] - middle) * np.array([0, 1]),
                )

    first, second, *chosen = (
        block[:, 0] for block in record(Steered(epsilon=1), TABLE, 500, bits())
    )
    for noisy, found in zip((first, second), chosen, strict=True):
        assert (found[noisy > middle] == 1).all()
        assert (found[noisy < middle] == 0).all()
    # the broken twin: by another answer than the one given
    assert (chosen[1][first > middle] == 0).any()
    refuses("noisy", exact_law, Steered(epsilon=1), TABLE)


def test_the_exact_law_has_every_choice_once():
    law = exact_law(Chooser(epsilon=1), TABLE)
    found = {outcome.key: outcome for outcome in law.outcomes}
    assert set(found) == {(0,), (1,)}
    assert math.fsum(
        math.exp(each.log_probability) for each in law.outcomes
    ) == pytest.approx(1)
    score = int((TABLE.codes["b"] == 0).sum()) // 4
    assert found[1,].log_probability - found[0,].log_probability == pytest.approx(score)
    assert found[0,].statistics == tuple(first_column(TABLE))
    assert found[1,].scales == (Fraction(1),) * 3
    refuses("noisy", exact_law, Chooser(epsilon=1, steers=True), TABLE)


def test_a_mechanism_that_asks_too_little_is_named():
    class Lazy(Chooser):
        def ask(self, plan, curator):
            return None

    refuses(
        "doesn't ask all", record, Lazy(epsilon=1), TABLE, 10, bits(), error=PlanError
    )


def test_rounds_are_recorded_one_beside_the_other():
    made = LaplaceSanitizer(epsilon=1, n_sets=3, split="per-set")
    (a, b, c) = record(made, TABLE, 5_000, bits())
    assert a.shape == (5_000, 6)
    assert abs(np.corrcoef(a[:, 0], b[:, 0])[0, 1]) < 0.08  # 5.6 standard errors
    # the scale of a third of the budget, not of all of it
    assert c.var() > 1.5 * 2 * 3**2
    assert exact_law(made, TABLE).repeats == 3
