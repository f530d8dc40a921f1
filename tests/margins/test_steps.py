"""What STEPS costs, computed exactly for each of its options, and that its runs follow
the law the proof is about.

Prices: every pair of neighbouring tables of a few records, every outcome of the
elections, by the exact audit engine. Each case has a broken twin that must cost more
than it says.
"""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, combinations_with_replacement

import numpy as np
import pytest
from laws import ACCEPT, REJECT, chi_square, p_value
from scipy import stats
from tables import (
    bits,
    cases,
    random_table,
    refuses,
    runs_of,
    schema_of,
    table_of,
    worst_loss,
)

from pdips import Margins, Steps
from pdips.audit import audit
from pdips.audit.findings import exact_bound
from pdips.audit.neighbour_pairs import Pair
from pdips.margins import steps as tree
from pdips.margins import views
from pdips.margins.domain import choose_views, domain_of, root, split_by
from pdips.margins.elections import (
    STEPS_PER_UNIT,
    GroupElection,
    aic_steps,
    election_scores,
    group_width,
    node_width,
    together,
)
from pdips.privacy.curator import Drawing
from pdips.privacy.loss import largest_rho
from pdips.privacy.noise import UNAVAILABLE
from pdips.privacy.plan import Step
from pdips.privacy.replay import exact_law
from pdips.privacy.sensitivity import Sensitivity

ROUNDING = 1e-9
SMALL = schema_of(2, 3, 2)
WIDE = schema_of(12, 12, 12)
"""Too many cells for one view: the margins overlap."""

TREES, ELECTIONS = cases(__file__, "trees"), cases(__file__, "elections")


@pytest.mark.parametrize("split", ["once", "per-set"])
def test_views_cost_exactly_epsilon(neighbours, split):
    mechanism = Margins(epsilon=1, neighbours=neighbours, n_sets=2, split=split)
    assert worst_loss(mechanism, SMALL) == pytest.approx(1, abs=ROUNDING)
    assert sum(spend.epsilon for spend in mechanism.spends(SMALL)) == 1


@pytest.mark.parametrize("options", TREES.values(), ids=TREES)
def test_what_is_counted_costs_exactly_epsilon(neighbours, options, monkeypatch):
    mechanism = Steps(epsilon=1, neighbours=neighbours, **options)
    assert worst_loss(mechanism, SMALL) == pytest.approx(1, abs=ROUNDING)
    assert sum(spend.epsilon for spend in mechanism.spends(SMALL)) == 1
    if neighbours == "add-remove":  # the broken twin takes half of the sensitivity
        half = Sensitivity.of_person(l1=mechanism.sensitivity(SMALL).l1 / 2)
        monkeypatch.setattr(Steps, "sensitivity", lambda self, schema: half)
        assert worst_loss(mechanism, SMALL) == pytest.approx(2)


@pytest.mark.parametrize("options", ELECTIONS.values(), ids=ELECTIONS)
def test_elections_stay_within_their_price(neighbours, options):
    # nearly all of the budget goes to the election, so that little else could make up
    # for one that costs too much
    mechanism = Steps(
        epsilon=1, neighbours=neighbours, election_share="0.99", **options
    )
    # which has a third of the pairs
    schema = SMALL if neighbours == "add-remove" else schema_of(2, 2, 2)
    assert 0.2 < worst_loss(mechanism, schema) <= 1 + ROUNDING
    assert sum(spend.epsilon for spend in mechanism.spends(SMALL)) == 1


def test_bic_weighs_by_the_public_number_of_records(neighbours):
    if neighbours == "add-remove":
        refuses(
            "replace-one only", Steps, epsilon=1, utility="bic", neighbours=neighbours
        )
        # why: with a penalty that follows n, one record more moves the scores of 2 and
        # of 100 levels by far too much
        counts = [np.eye(1, k, dtype=np.int64) * n for n in (2, 3) for k in (2, 100)]
        at = [
            aic_steps(c, penalty=math.log(c.sum()))[0] / STEPS_PER_UNIT for c in counts
        ]
        assert abs((at[3] - at[1]) - (at[2] - at[0])) > 10 * node_width(neighbours)
        return
    for options in ({"layers": 2}, {"elect": "layer", "below": "views"}):
        made = Steps(epsilon=1, utility="bic", election_share="0.99", **options)
        assert worst_loss(made, schema_of(2, 2, 2)) <= 1 + ROUNDING
    made = {
        utility: Steps(epsilon=9, utility=utility, layers=1)
        for utility in ("aic", "bic")
    }
    law = {
        utility: exact_law(each, random_table(SMALL, 50)).outcomes
        for utility, each in made.items()
    }
    # column b has the most levels
    assert law["aic"][1].log_probability > law["bic"][1].log_probability


@pytest.mark.parametrize("counted", ["views", "cells"])
def test_overlapping_views_share_the_budget(neighbours, counted, monkeypatch):
    # a few pairs, that differ in one, two and three columns: too many records to try
    # all
    mechanism = Margins(epsilon=1, neighbours=neighbours)
    if counted == "cells":
        mechanism = Steps(epsilon=1, neighbours=neighbours, layers=1)
    ends = [(0, 0, 0), (11, 0, 0), (11, 11, 11)]
    others = (
        combinations([[end] for end in ends], 2)
        if neighbours == "replace-one"
        else (([end], []) for end in ends)
    )
    both = (
        [table_of([(5, 5, 5), *records], WIDE) for records in each] for each in others
    )
    pairs = [Pair("one record moves", *tables, neighbours) for tables in both]
    found = worst_loss(mechanism, WIDE, pairs=pairs)
    assert found <= 1 + ROUNDING
    if counted == "views":
        assert len(mechanism.plan(WIDE).design.views) == 3
        assert found == pytest.approx(1, abs=ROUNDING)
        # the twin forgets one view when it divides the budget
        forgetful = list(choose_views(domain_of(WIDE)))
        monkeypatch.setattr(
            views, "choose_views", lambda *_: dict.fromkeys(forgetful, Fraction(1, 2))
        )
        assert worst_loss(mechanism, WIDE, pairs=pairs) == pytest.approx(1.5)


class Noted(Drawing):
    """Keeps the true counts of each step."""

    def _count(self, step, statistic, possible):
        self.__dict__.setdefault("noted", []).append((step, statistic(self._table)))
        return super()._count(step, statistic, possible)


def asked_of(plan, records) -> list[tuple[Step, np.ndarray]]:
    """Return all that a release asks, with the true counts."""
    curator = Noted(plan, table_of(records, plan.schema), bits())
    Margins(epsilon=1, delta="1e-6", neighbours=plan.neighbours).ask(plan, curator)
    return curator.noted


def concentrated_loss(one, other) -> Fraction:
    """What Gaussian noise costs in rho, from the true counts of all that is asked of
    two tables.
    """
    both = zip(one, other, strict=True)
    return sum(
        Fraction(int(((a - b) ** 2).sum())) / (2 * step.variance)
        for (step, a), (_, b) in both
    )


@pytest.mark.parametrize("cap", [1, 2])
def test_no_person_costs_more_rho_than_gaussian_margins_charge(
    neighbours, cap, monkeypatch
):
    monkeypatch.setattr("pdips.margins.domain.LARGEST_CAP", 16)  # several views
    schema = schema_of(3, 4, 5, records={"max_per_person": cap})
    plan = Margins(epsilon=1, delta="1e-6", neighbours=neighbours).plan(schema)
    crowd, records = (
        [(0, 0, 0), (2, 3, 4)],
        [(0, 0, 0), (2, 3, 4), (0, 3, 1), (1, 0, 4)],
    )
    told = [
        asked_of(plan, [*crowd, *own])
        for own in combinations_with_replacement(records, cap)
    ]
    left = [asked_of(plan, crowd)] if neighbours == "add-remove" else told
    worst = max(concentrated_loss(one, other) for one in told for other in left)
    assert len(plan.steps) > 1
    assert worst == plan.loss.rho == largest_rho(Fraction(1), Fraction(1, 10**6))
    assert (plan.loss.epsilon <= 1, plan.loss.delta, plan.loss.kind) == (
        True,
        Fraction(1, 10**6),
        "zcdp",
    )
    # the twin charges for the first view alone
    forgetful = replace(plan, steps=(plan.steps[0],)).loss.rho
    assert worst > forgetful


def moves(election, tables) -> np.ndarray:
    """How far the scores of each candidate move between each table and the next, in
    units.
    """
    scores = [election(np.array(codes)) for codes in tables]
    return (
        np.array([b - a for a, b in zip(scores[:-1:2], scores[1::2], strict=True)])
        / STEPS_PER_UNIT
    )


ELECTION = Step(
    name="election",
    sensitivity=Sensitivity.of_person(l1=1),
    price=Fraction(1),
    law="exponential",
)


def group_scores(*sizes: int):
    election = GroupElection(domain=domain_of(schema_of(*sizes)), step=ELECTION)
    return lambda codes: election._scores(codes, None)[0]


def layer_scores(by_layer: bool, *sizes: int):
    domain = domain_of(schema_of(*sizes))
    layer = split_by(domain, root(domain), np.array([0]))

    def scores(codes):
        found = election_scores(domain, layer, codes[:, 0], codes)
        found = together(found, layer) if by_layer else found
        return found[:, (found != UNAVAILABLE).all(axis=0)].astype(np.int64)

    return scores


def neighbouring(relation: str, sizes, rng, n_pairs: int = 150):
    """Larger tables, from one record to some hundreds, most of them on few levels, each
    followed by a neighbour.
    """
    tables = []
    for _ in range(n_pairs):
        n, skew = int(rng.integers(1, 400)), rng.choice([0.05, 0.5, 3.0])
        codes = np.column_stack(
            [rng.choice(k, n, p=rng.dirichlet(np.full(k, skew))) for k in sizes]
        )
        other = np.array([[rng.integers(k) for k in sizes]])
        changed = codes.copy()
        changed[rng.integers(n)] = other
        tables += [
            codes,
            changed if relation == "replace-one" else np.concatenate([codes, other]),
        ]
    return tables


ENDS = [[(0, 0)] * 998 + [(0, 1)] * 1, [(0, 0)] * 998 + [(0, 1)] + [(1, 0)]]
"""A record joins: its level of the first column is new and of the second the common
one; AIC rises by 2 and by 0.
"""

ACROSS = [[(0, 0)] * 998 + [(0, 1)], [(0, 0)] * 998 + [(1, 0)]]
"""The only record of a level of the second column becomes the only one of a level of
the first.
"""


def test_group_scores_move_within_their_width(neighbours):
    rng, sizes = np.random.default_rng(0), (6, 2, 3, 5)
    found = moves(group_scores(*sizes), neighbouring(neighbours, sizes, rng))
    half = float(group_width(neighbours)) / 2
    assert np.abs(found).max() <= half
    assert np.ptp(found, axis=1).max() <= 2 * half
    # the width of an election among columns is too small: on this pair the scores move
    # further, and the loss shows it
    (move,) = moves(group_scores(2, 2), ENDS if neighbours == "add-remove" else ACROSS)
    assert float(node_width(neighbours)) < np.ptp(move) <= 2 * half
    assert np.ptp(move) > 0.99 * 2 * half


@pytest.mark.parametrize("by_layer", [False, True])
def test_scores_of_columns_move_within_their_width(neighbours, by_layer):
    rng, sizes = np.random.default_rng(1), (3, 6, 2, 5)
    found = moves(layer_scores(by_layer, *sizes), neighbouring(neighbours, sizes, rng))
    grid, spread = 1 / STEPS_PER_UNIT, np.ptp(found, axis=2).sum(axis=1)
    assert spread.max() <= float(node_width(neighbours))
    if neighbours == "add-remove":  # -AIC falls only
        assert found.max() <= grid
        assert found.min() >= -2 - grid
    # the bound is nearly reached where a record leaves one node, where it was alone on
    # a level, and enters another
    before = [(0, 0, 0)] * 999 + [(1, 0, 0)] * 999 + [(0, 0, 1)]
    after = [*before[:-1], (1, 1, 0)] if neighbours == "replace-one" else before[:-1]
    (extreme,) = moves(layer_scores(by_layer, 2, 2, 2), [before, after])
    assert np.ptp(extreme, axis=1).sum() > 0.99 * float(node_width(neighbours))


TWINS = {"node": "node_width", "layer": "node_width", "groups": "group_width"}


@pytest.mark.parametrize("elect", TWINS)
def test_a_width_of_half_is_caught(neighbours, elect, monkeypatch):
    # the exact engine on one pair of 1,000 records: sound just below the claim, the
    # broken twin at nearly twice of it; the second column has so many levels that it
    # hardly ever wins, so that the normaliser takes nothing off
    schema = schema_of(2, 12)
    first, second = ENDS[::-1] if neighbours == "add-remove" else ACROSS
    pair = Pair("alone", table_of(first, schema), table_of(second, schema), neighbours)
    layers = None if elect == "groups" else 1
    mechanism = Steps(
        epsilon=2,
        neighbours=neighbours,
        elect=elect,
        layers=layers,
        election_share="0.999",
    )
    assert exact_bound(mechanism, pair).epsilon > 0.98 * 2
    assert audit(mechanism, pair, engine="exact").verdict == "consistent"
    width = getattr(tree, TWINS[elect])
    monkeypatch.setattr(tree, TWINS[elect], lambda neighbours: width(neighbours) / 2)
    assert exact_bound(mechanism, pair).epsilon > 0.98 * 4
    assert audit(mechanism, pair, engine="exact").verdict == "VIOLATION"


def test_the_papers_groups_read_the_table_without_noise():
    # Bowen et al. (2021) elect a division by |difference of means| and put the smaller
    # mean on top, without noise: here one record turns the sign, so the tree tells the
    # two tables apart for certain
    tables = [[(0, 0)] * 3 + [(0, 1)], [(0, 0)] * 3 + [(1, 0)]]
    first, second = (group_scores(2, 2)(np.array(codes)) for codes in tables)
    assert np.sign(first[0]) == -np.sign(second[0]) != 0
    # so the utility of the only division is the same for both
    assert abs(first[0]) == abs(second[0])


LAWS = [
    {"layers": 2},
    {"elect": "layer", "layers": 2},
    {"elect": "groups"},
    {"elect": "groups", "below": "views"},
]


@pytest.mark.parametrize("options", [*LAWS, {"utility": "bic"}], ids=str)
def test_the_law_is_that_of_the_runs(options):
    # 20,000 runs: chi-square of the choices and of one noisy count's deviation; false
    # alarm 1e-6 each, seed fixed. The twins: the law at a third of the epsilon, and
    # noise of 0.8 times its scale.
    table = table_of(
        [(i % 2, i % 3, i % 2) for i in range(30)] + [(0, 2, 1)] * 12, SMALL
    )
    mechanism = Steps(epsilon=6, election_share="1/2", **options)
    rows = runs_of(mechanism, table, 20_000)
    outcomes = exact_law(mechanism, table).outcomes

    def first_choices(steps):
        law = exact_law(steps, table).outcomes
        chances = np.exp([outcome.log_probability for outcome in law])
        assert chances.sum() == pytest.approx(1)
        return np.bincount(
            [outcome.key[0] for outcome in law], weights=chances, minlength=8
        )

    counts = np.bincount(rows[:, 0], minlength=8)
    right, wrong = (
        first_choices(mechanism),
        first_choices(replace(mechanism, epsilon=2)),
    )
    seen = right > 0
    assert p_value(counts[seen], right[seen] / right.sum()) > ACCEPT
    assert p_value(counts[seen], wrong[seen] / wrong.sum()) < REJECT
    likeliest = max(outcomes, key=lambda outcome: outcome.log_probability)
    mine = rows[rows[:, 0] == likeliest.key[0]]
    places = [
        i
        for i, scale in enumerate(likeliest.scales)
        if scale == likeliest.scales[-1] and scale
    ][-1:]
    last = mine.shape[1] - len(likeliest.statistics) + places[0]
    # cells may stand elsewhere under other choices further down; views don't
    if "margins" in options.values():
        deviations, scale = (
            mine[:, last] - likeliest.statistics[places[0]],
            float(likeliest.scales[places[0]]),
        )
        assert chi_square(deviations, stats.dlaplace(1 / scale).pmf) > ACCEPT
        assert chi_square(deviations, stats.dlaplace(1 / (0.8 * scale)).pmf) < REJECT
