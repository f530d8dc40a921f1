"""What a histogram and elections cost, computed exactly: every tiny table, every
neighbour, every outcome.

The noise is discrete Laplace of independent known scales (tests/privacy/test_noise.py),
so the worst log ratio over noisy counts is the l1 distance of the true counts divided
by the scales; elections have finitely many outcomes, each with the probability that the
code's own scores give it. No randomness, no tolerance beyond rounding. Persons with
several records, and every other mechanism: ``tests/contract``.
"""

import math
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import combinations, combinations_with_replacement, product

import numpy as np
import pandas as pd
import pytest
from margin_tables import of_pairs
from tables import all_records, schema_of, table_of, worst_loss

from pdips import LaplaceSanitizer, PerturbedHistogram, Schema, Steps, Table
from pdips.audit.neighbour_pairs import either
from pdips.errors import PlanError
from pdips.fields.pair_counts import CHOICE, PAIRS
from pdips.fields.products import PARTS, PRODUCTS, NoisyProducts, SecondMoments
from pdips.fields.weighted_sums import SUMS_OF_WEIGHTS, CappedSums, WeightedSums
from pdips.margins.choosing import PairChoice, counting
from pdips.margins.domain import domain_of, root, split_by
from pdips.margins.elections import (
    STEPS_PER_UNIT,
    election_scores,
    one_way_aic,
)
from pdips.margins.intervals import IntervalColumn
from pdips.margins.residuals import ResidualDesign
from pdips.privacy.curator import Curator
from pdips.privacy.plan import Step
from pdips.privacy.replay import Enumerating, exact_law
from pdips.privacy.sensitivity import Sensitivity
from pdips.registry import published

EPSILON = Fraction(3, 2)
ROUNDING = 1e-9
SCHEMA = schema_of(2, 3, 2)
SHARE = Fraction(1, 3)
ELECTED = {"epsilon": EPSILON, "layers": 2, "election_share": SHARE}


@pytest.mark.parametrize("build", [LaplaceSanitizer, PerturbedHistogram])
def test_a_histogram_costs_exactly_epsilon(build, neighbours):
    found = worst_loss(
        build(epsilon=EPSILON, neighbours=neighbours), schema_of(2, 3), (2, 3)
    )
    assert found == pytest.approx(float(EPSILON), abs=ROUNDING)


@pytest.mark.parametrize("name", ["laplace-sanitizer", "perturbed-histogram"])
def test_a_published_histogram_costs_twice_what_it_says(name):
    # the broken twin: sensitivity 1 with a public number of records
    found = worst_loss(published(name)(epsilon=EPSILON), schema_of(2, 3))
    assert found == pytest.approx(float(2 * EPSILON), abs=ROUNDING)


@pytest.mark.parametrize("share", [None, "1/100", "9/10"])
def test_all_pairs_and_a_margin_of_three_columns_cost_exactly_epsilon(
    neighbours, share, monkeypatch
):
    made, schema = (
        of_pairs(
            epsilon=EPSILON,
            neighbours=neighbours,
            also=tuple("abc"),
            single_share=share,
        ),
        schema_of(2, 2, 2),
    )
    assert worst_loss(made, schema) == pytest.approx(float(EPSILON), rel=1e-6)
    # the broken twin: a sensitivity that forgets the margin, which has a fifth of what
    # a record moves
    whole = ResidualDesign.moved.func
    monkeypatch.setattr(
        ResidualDesign, "moved", property(lambda design: whole(design) * 4 / 5)
    )
    assert worst_loss(made, schema) == pytest.approx(1.25 * float(EPSILON), rel=1e-6)


@pytest.mark.slow_cases(
    "add-remove",
)
def test_a_second_count_of_pairs_costs_its_share_whichever_pairs_they_are(
    neighbours, monkeypatch
):
    # two of six pairs, all fifteen choices; counts are sums, so one record beside that
    # which moves or leaves is enough
    made, schema = (
        of_pairs(epsilon=EPSILON, neighbours=neighbours, second_share="3/5"),
        schema_of(2, 2, 2, 2),
    )
    cells, table = all_records(schema), partial(table_of, schema=schema)
    ends = (
        combinations(cells, 2)
        if neighbours == "replace-one"
        else zip(cells, cells, strict=True)
    )
    moves = [
        either("one of two", table, [rest], *each, neighbours)
        for each in ends
        for rest in (cells[0], cells[-1])
    ]
    monkeypatch.setattr(Enumerating, "decide", lambda self, noisy, rule: rule(noisy))
    losses = []
    for chosen in combinations(range(6), 2):
        monkeypatch.setattr(
            "pdips.fields.pair_counts.most_telling",
            lambda *_, chosen=chosen: np.array(chosen),
        )
        losses.append(worst_loss(made, schema, pairs=moves))
    assert losses == pytest.approx([float(EPSILON)] * 15, rel=1e-6)
    # the broken twin: a record is taken to be in one of the two pairs, which have .45
    # of the price
    of_counts = Sensitivity.of_counts
    monkeypatch.setattr(
        Sensitivity, "of_counts", lambda *given, tables=1: of_counts(*given)
    )
    assert worst_loss(made, schema, pairs=moves) == pytest.approx(
        1.45 * float(EPSILON), rel=1e-6
    )


@pytest.mark.slow_cases(
    "add-remove",
)
def test_chosen_pairs_cost_what_the_choice_and_the_counts_may(neighbours, monkeypatch):
    one, made = (
        of_pairs(epsilon=EPSILON, neighbours=neighbours, chosen=n) for n in (1, 2)
    )
    schema = schema_of(2, 2, 2)
    # what noise said of a, b and c
    shown = np.array([*([9] if neighbours == "add-remove" else []), 0, 9, 7, 2, 7, 2])

    def given(curator, step, noisy, scores):
        return curator._choose(step, lambda table: scores(table, shown)[None])[0]

    monkeypatch.setattr(Enumerating, "_choose_given", given)
    (choice, _), (choices, counts) = (
        each.plan(schema).steps[1:] for each in (one, made)
    )
    assert made.plan(schema).loss.epsilon == EPSILON
    assert (
        0.5 * float(choice.price)
        < worst_loss(one, schema, only="choices")
        <= float(choice.price) * (1 + 1e-9)
    )
    assert worst_loss(made, schema, only="choices") <= float(choices.price) * (1 + 1e-9)
    # whichever tables are counted: two pairs, one, or all columns again
    assert worst_loss(made, schema, only="noise") == pytest.approx(
        float(EPSILON - choices.price), rel=1e-6
    )
    # the broken twins: scores that move half as far, and two pairs with the noise of
    # one
    of_person = Sensitivity.of_person

    def halved(*, l1, **more):
        return of_person(l1=l1, **more) if more else of_person(l1=l1 / 2)

    with monkeypatch.context() as broken:
        broken.setattr(Sensitivity, "of_person", halved)
        assert worst_loss(one, schema, only="choices") > float(choice.price)
    for where in ("fields.pair_counts", "margins.choosing"):
        monkeypatch.setattr(
            f"pdips.{where}.tables_in_units", lambda law, n: Fraction(1)
        )
    # three columns are counted again where no pair is taken
    assert worst_loss(made, schema, only="noise") == pytest.approx(
        float(EPSILON - choices.price + 2 * counts.price)
    )


@pytest.mark.slow_cases(
    "add-remove",
)
def test_few_choices_and_all_pairs_cost_no_more_than_many_choices(
    neighbours, monkeypatch
):
    made = of_pairs(epsilon=EPSILON, neighbours=neighbours, measure="chosen")
    schema = schema_of(2, 2, 2)
    # what noise said of a, b and c
    shown = np.array([*([9] if neighbours == "add-remove" else []), 0, 9, 7, 2, 7, 2])

    def given(curator, step, noisy, scores):
        return curator._choose(step, lambda table: scores(table, shown)[None])[0]

    monkeypatch.setattr(Enumerating, "_choose_given", given)
    plan = made.plan(schema)
    choice, counts = plan.named(CHOICE), plan.named(PAIRS)
    assert plan.loss.epsilon == EPSILON
    assert choice.times == 3

    def lost(n_asked: int, only: str) -> float:
        with monkeypatch.context() as decided:
            decided.setattr(Enumerating, "decide", lambda *_: np.array([n_asked]))
            return worst_loss(made, schema, only=only)

    # what noise said of the number of records: many, or few
    for n_asked in (0, 1, 2):
        # all pairs have the price of the choices too
        price = EPSILON - choice.price if n_asked else EPSILON
        assert lost(n_asked, "noise") == pytest.approx(float(price), rel=1e-6)
        choices = lost(n_asked, "choices")
        assert choices <= float(choice.price) * (1 + 1e-9)
        assert (choices > 0.5 * float(choice.price)) == (n_asked == 1)
    assert lost(0, "choices") == 0
    # the broken twins: two choices at the price of all each, and three pairs with the
    # noise of one
    with monkeypatch.context() as broken:
        broken.setattr(PairChoice, "share", Fraction(3))
        with pytest.raises(PlanError, match="more than is left of the price"):
            lost(3, "choices")
        broken.setattr(Curator, "_pay", lambda *given: None)
        assert lost(3, "choices") > float(choice.price)
        # what no number of choices may have is refused
        broken.setattr(PairChoice, "share", Fraction(6))
        with pytest.raises(PlanError, match="a sensitivity that its plan doesn't have"):
            lost(2, "choices")
    monkeypatch.setattr(
        "pdips.fields.pair_counts.tables_in_units", lambda law, n: Fraction(1)
    )
    found = lost(0, "noise")
    assert found == pytest.approx(float(EPSILON - choice.price + 3 * counts.price))


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_tables_that_share_a_price_have_their_noise_enlarged_exactly(law):
    sensitivity = Sensitivity.of_person(l1=Fraction(2))
    one = Step(name="a table", sensitivity=sensitivity, price=EPSILON, law=law)
    for n_tables in (1, 2, 3, 7):
        step = counting(one, n_tables)
        # what all tables lose together at this noise, in the unit of the price
        if law == "laplace":
            assert n_tables * one.sensitivity.l1 / step.scale == EPSILON
        else:
            lost = n_tables * one.sensitivity.l2_squared / (2 * step.variance)
            assert EPSILON * (1 - Fraction(1, 10**9)) < lost <= EPSILON


def largest_loss(made, tables, caps, monkeypatch) -> float:
    """The worst log ratio between tables, or to the last one, of all noisy numbers at
    each of some caps.
    """
    worst = 0.0
    for cap in caps:

        def capped(sums, curator, plan, *_, cap=cap):
            step = plan.named(SUMS_OF_WEIGHTS)
            return CappedSums(
                sums, step, curator.count(step, partial(sums.count, cap=cap)), cap, 0.0
            )

        def between(moments, curator, plan, *_, cap=cap):
            noisy = curator.count(
                plan.named(PRODUCTS), partial(moments.count, caps=cap)
            )
            return NoisyProducts(moments, plan.named(PRODUCTS), noisy, cap)

        monkeypatch.setattr(WeightedSums, "ask", capped)
        monkeypatch.setattr(SecondMoments, "ask", between)
        laws = [exact_law(made, table).outcomes[0] for table in tables]
        shown = np.array([law.statistics for law in laws]) / np.array(
            laws[0].scales, dtype=float
        )
        ends = shown[-1:] if made.neighbours == "add-remove" else shown
        worst = max(
            worst, *(float(np.abs(one - ends).sum(axis=1).max()) for one in shown)
        )
    return worst


@pytest.mark.slow_cases(
    "add-remove-2",
    "replace-one-2",
)
@pytest.mark.parametrize("cap", [1, 2])
def test_sums_of_weights_with_all_the_rest_cost_exactly_epsilon(
    neighbours, cap, monkeypatch
):
    # every person with one record or two beside another record, every cap that noise
    # can choose
    columns = {
        "a": {"levels": [0, 1]},
        "b": {"levels": [0, 1]},
        "w": {"lower": 0, "upper": 3, "resolution": 1},
    }
    content = {"columns": columns, "records": {"weight": "w", "max_per_person": cap}}
    schema, cells = (
        Schema.model_validate(content),
        product((0, 1), (0, 1), (0.0, 1.0, 3.0)),
    )
    rows = [[(0, 0, 2.0), *own] for own in combinations_with_replacement(cells, cap)]
    rows += [[(0, 0, 2.0)]] if neighbours == "add-remove" else []
    tables = [Table(pd.DataFrame(own, columns=list(columns)), schema) for own in rows]
    caps = np.unique(
        np.rint(IntervalColumn("w", schema.columns["w"], 10).fine.edges[1:])
    )
    made = of_pairs(epsilon=EPSILON, neighbours=neighbours, weighted=("a", "b"))
    assert largest_loss(made, tables, caps, monkeypatch) == pytest.approx(
        float(EPSILON), abs=ROUNDING
    )
    # the broken twins: sums of one of two columns are priced, or one record of each
    # person
    step, alone = (
        WeightedSums.step,
        Schema.model_validate({**content, "records": {"weight": "w"}}),
    )
    for change, lost in ({"names": ("a",)}, 0.1), ({"schema": alone}, 0.1 * (cap - 1)):
        monkeypatch.setattr(
            WeightedSums,
            "step",
            lambda sums, *more, change=change: step(replace(sums, **change), *more),
        )
        assert largest_loss(made, tables, caps, monkeypatch) == pytest.approx(
            float(EPSILON) * (1 + lost)
        )


def test_products_with_all_the_rest_cost_six_sevenths_of_their_share_at_any_caps(
    neighbours, monkeypatch
):
    # a record that changes the level and the sign of the number; Laplace noise has room
    # for a square that can't move
    columns = {
        "a": {"levels": ["x", "y", "z"]},
        "w": {"lower": 0, "upper": 3, "resolution": 1, "missing": True},
    }
    schema = Schema.model_validate({"columns": columns})
    rows = [[("y", 2.0), own] for own in product("xyz", (0.0, 1.0, 3.0, None))]
    rows += [[("y", 2.0)]] if neighbours == "add-remove" else []
    tables = [Table(pd.DataFrame(own, columns=[*columns]), schema) for own in rows]
    caps = [{"w": (low, high)} for low, high in ((0.0, 3.0), (1.0, 2.0), (0.0, 1.0))]
    made = of_pairs(epsilon=EPSILON, neighbours=neighbours, products=("a", "w"))
    lost = {"replace-one": 0.25 / 7, "add-remove": 0}[neighbours]
    assert largest_loss(made, tables, caps, monkeypatch) == pytest.approx(
        float(EPSILON) * (1 - lost), abs=ROUNDING
    )
    # the broken twin: a record that is taken to move less
    step = SecondMoments.step

    def quieter(moments, *given):
        asked = step(moments, *given)
        return replace(
            asked,
            sensitivity=Sensitivity.of_person(l1=asked.sensitivity.l1 * Fraction(4, 7)),
        )

    monkeypatch.setattr(SecondMoments, "step", quieter)
    assert largest_loss(made, tables, caps, monkeypatch) > float(EPSILON)
    assert PARTS**2 == 10**6


def test_structural_zeros_cost_nothing_and_show_nothing():
    schema = schema_of(2, 2, impossible=[{"a": 1, "b": 0}])
    assert worst_loss(LaplaceSanitizer(epsilon=1), schema, (1,)) == pytest.approx(1)
    (found,) = exact_law(
        LaplaceSanitizer(epsilon=1), table_of([(0, 0)], schema)
    ).outcomes
    assert found.statistics == (1, 0, 0, 0)
    assert found.scales[2] == 0


def log_softmax(scores: np.ndarray, unit: Fraction) -> np.ndarray:
    available = scores != np.iinfo(np.int64).min
    logits = np.where(available, np.where(available, scores, 0) * float(unit), -np.inf)
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def test_the_law_of_elections_is_spelt_out_by_its_scores():
    # the probability of every tree, from scores by themselves: the root's election, and
    # one in each of its nodes
    mechanism, table = (
        Steps(**ELECTED),
        table_of([(0, 0, 1), (1, 2, 0), (1, 2, 1)], SCHEMA),
    )
    domain, units = (
        domain_of(SCHEMA),
        [1 / step.scale for step in mechanism.plan(SCHEMA).steps[:3:2]],
    )
    codes = np.column_stack([*table.codes.values()])
    top = log_softmax(
        election_scores(domain, root(domain), np.zeros(3, int), codes), units[0]
    )[0]
    found = {
        outcome.key: outcome.log_probability
        for outcome in exact_law(mechanism, table).outcomes
    }
    assert len(found) == 16
    for (first, *second), log in found.items():
        below = split_by(domain, root(domain), np.array([first]))
        each = log_softmax(
            election_scores(domain, below, codes[:, first], codes), units[1]
        )
        assert log == pytest.approx(
            top[first] + sum(each[np.arange(len(second)), second]), abs=ROUNDING
        )


@pytest.mark.slow
def test_steps_costs_at_most_epsilon(neighbours):
    made = Steps(**ELECTED, neighbours=neighbours)
    assert EPSILON * (1 - SHARE) < worst_loss(made, SCHEMA) <= EPSILON + ROUNDING
    assert (
        EPSILON * SHARE / 4
        < worst_loss(made, SCHEMA, only="choices")
        <= EPSILON * SHARE + ROUNDING
    )
    # tight
    assert worst_loss(made, SCHEMA, only="noise") == pytest.approx(
        float(EPSILON * (1 - SHARE))
    )
    items = made.spends(SCHEMA)
    assert sum(item.epsilon for item in items) == EPSILON
    assert [item.epsilon for item in items if "election" in item.step] == [
        EPSILON * SHARE / 2
    ] * 2
    assert len(items) == 5


@pytest.mark.slow
def test_published_steps_costs_more_than_it_says():
    # the broken twin: sensitivity 1, the cells not paid for, observed levels
    made = published("steps")(**ELECTED)
    true_loss = float(EPSILON * (2 * SHARE + 3 * (1 - SHARE)))
    assert 2 * EPSILON < worst_loss(made, SCHEMA) <= true_loss
    # twice for a record replaced, and the cells
    noise = 2 * EPSILON * (1 - SHARE) * Fraction(3, 2)
    assert worst_loss(made, SCHEMA, only="noise") == pytest.approx(float(noise))
    assert (f"The true loss is up to {true_loss:g}.") in made.privacy_loss(
        SCHEMA
    ).statement


def selection_loss(pairs, *, unit: Fraction, observed_levels: bool) -> float:
    """The worst log ratio of one election between two columns, for pairs of (counts of
    X1, counts of X2).
    """

    def scores(counts):
        aic = [
            one_way_aic(np.array([c]), observed_levels=observed_levels)[0]
            for c in counts
        ]
        return -np.floor(np.array([aic]) * STEPS_PER_UNIT + 0.5).astype(np.int64)

    return max(
        np.abs(log_softmax(scores(a), unit) - log_softmax(scores(b), unit)).max()
        for a, b in pairs
    )


def test_an_election_on_a_large_table_stays_within_its_price():
    # X1 = four single records and the rest, X2 = the record alone and the rest; the
    # record moves to a level of X1 that nobody had and to the common level of X2. With
    # observed levels the loss is twice the claim.
    before, after = ([996, 1, 1, 1, 1, 0], [999, 1]), ([996, 0, 1, 1, 1, 1], [1000, 0])
    alone = ([995, 1, 1, 1, 1, 1], [1000, 0])
    both = [
        build(epsilon=1, layers=1, election_share="0.999")
        for build in (Steps, published("steps"))
    ]
    fair, flawed = (1 / made.plan(schema_of(6, 2)).steps[0].scale for made in both)
    assert (
        selection_loss(
            [(before, after), (before, alone)], unit=fair, observed_levels=False
        )
        <= 1
    )
    assert selection_loss([(before, alone)], unit=flawed, observed_levels=True) > 1.5


def test_election_scores_move_by_the_sensitivity_at_most(neighbours):
    # rounding included, and with the slack of one step that is paid for
    # (docs/proofs/steps.md, lemma 2)
    def steps(counts):
        return np.floor(one_way_aic(counts) * STEPS_PER_UNIT + 0.5).astype(int)

    rng = np.random.default_rng(0)
    counts = rng.integers(0, 400, (4000, 4)) * rng.integers(0, 2, (4000, 4)) + 1
    moved = steps(
        counts + np.array([1, 0, 0, 0] if neighbours == "add-remove" else [-1, 1, 0, 0])
    ) - steps(counts)
    assert np.abs(moved).max() <= 2 * STEPS_PER_UNIT
    assert neighbours == "replace-one" or moved.min() >= 0


@pytest.mark.parametrize("counts", [[3, 0, 5], [0, 0], [1], [300, 2000, 1, 255, 256]])
def test_aic_equals_the_log_likelihood_spelt_out(counts):
    n = sum(counts)
    likelihood = math.lgamma(n + 1) - sum(math.lgamma(c + 1) for c in counts)
    likelihood += sum(c * math.log(c / n) for c in counts if c)
    assert one_way_aic(np.array([counts]))[0] == pytest.approx(
        -2 * likelihood + 2 * (len(counts) - 1), abs=1e-9
    )
