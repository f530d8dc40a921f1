"""What a release with named analyses costs, by what its samplers are told: the parts
together lose no more than the price of all, along paths of answers, for both kinds of
loss and both relations (``docs/proofs/scores.md``, section 7).
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tables import with_cap

from pdips import Margins, Schema
from pdips.analyses.composite import PREFIX, WithAnalyses
from pdips.analyses.declarations import planned_with
from pdips.audit.neighbour_pairs import worst_pairs
from pdips.audit.path_loss import losses
from pdips.audit.random_pairs import random_pair
from pdips.privacy import part

SCHEMA = Schema.model_validate(
    {
        "columns": {
            "x": {"levels": [0, 1]},
            "y": {"levels": [0, 1]},
            "z": {"levels": ["a", "b", "c"]},
        }
    }
)
FORMULAS = ["y ~ x; family=bernoulli", "x ~ z; family=bernoulli"]
DELTAS = {"pure": None, "zcdp": "1e-6"}
SURE = 1 + 1e-9


@cache
def made(kind: str, neighbours: str) -> WithAnalyses:
    margins = Margins(epsilon=1, delta=DELTAS[kind], neighbours=neighbours)
    return planned_with(margins, FORMULAS, SCHEMA)


@pytest.mark.slow
@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
@pytest.mark.parametrize("kind", DELTAS)
def test_the_parts_together_lose_at_most_the_price(kind, neighbours):
    mechanism = made(kind, neighbours)
    for cap in (1, 2):
        schema = with_cap(SCHEMA, cap)
        plan = mechanism.plan(schema)
        rng = np.random.default_rng(cap)
        pairs = worst_pairs(schema, neighbours)
        pairs += [
            random_pair(schema, neighbours, rng, far=far) for far in (True, False)
        ]
        for seed, pair in enumerate(pairs):
            found = losses(
                mechanism, pair, seed=seed, loudness=1.0, level=40.0, plan=plan
            )
            assert found.differences == ()
            assert found.refusal == ""
            assert found.price == (plan.rho if kind == "zcdp" else plan.loss.epsilon)
            assert float(found.amount) <= float(found.price) * SURE
            for step in found.steps:
                assert float(step.amount) <= float(step.price) * SURE
            asked = [step.step for step in found.steps]
            for number in (1, 2):
                assert any(name.startswith(PREFIX.format(number)) for name in asked)


def twice(self, table, *given):
    """Count each record of an analysis twice."""
    return 2 * self.statistic(self.view.of(table), *given)


def test_a_statistic_that_moves_more_than_its_step_says_would_be_found(monkeypatch):
    # the broken twin
    mechanism = made("pure", "replace-one")
    plan = mechanism.plan(SCHEMA)
    pairs = worst_pairs(SCHEMA, "replace-one")[:2]

    def largest() -> float:
        found = [
            losses(mechanism, pair, seed=1, level=40.0, plan=plan) for pair in pairs
        ]
        return max(float(each.amount / each.price) for each in found)

    assert 0.5 < largest() <= SURE
    monkeypatch.setattr(part.ViewedStatistic, "__call__", twice)
    assert largest() > 1.2


def test_parts_that_each_take_the_whole_budget_would_be_found():
    # the broken twin: the plan says what was asked for, and each part spends all of it
    mechanism = made("zcdp", "replace-one")
    priced = mechanism.plan(SCHEMA)
    greedy = replace(mechanism)
    whole = replace(mechanism.main, n_sets=1)
    object.__setattr__(greedy, "tables", whole)
    spending = greedy.plan(SCHEMA)
    found = [
        losses(greedy, pair, seed=1, level=40.0, plan=spending)
        for pair in worst_pairs(SCHEMA, "replace-one")
    ]
    assert max(float(each.amount) for each in found) > float(priced.rho)
