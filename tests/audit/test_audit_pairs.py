"""Audits of ``pairs`` with sums of weights and with households, and broken twins that they catch.

Exact ones on tables where the cap is the same whatever the noise; by many whole runs where it is chosen from noise.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from pdips import Pairs, Schema, Table
from pdips.audit import Pair, audit, audit_cases, registered_cases
from pdips.audit.cases.margins import COLUMNS, HOMES, WEIGHTED
from pdips.audit.findings import counts_bound, exact_bound
from pdips.data.households import Members
from pdips.margins.intervals import IntervalColumn
from pdips.margins.weighted_sums import CappedSums, WeightedSums
from pdips.privacy.curator import Drawing


def worst(neighbours, start, **settings) -> float:
    """Return the largest exact bound of the registered cases whose pair is called so."""
    cases = registered_cases("pairs", neighbours=neighbours, **settings)
    found = audit_cases([case for case in cases if start in case.pair.name])
    assert found
    return max(finding.bound for finding in found)


def test_sums_of_weights_cost_what_they_say_and_twins_are_caught(neighbours, monkeypatch):
    # a weight of 99 that takes the place of 100 leaves .995 of the step's tenth
    right = {"replace-one": 1 - 0.1 * 0.005, "add-remove": 1}[neighbours]
    assert worst(neighbours, "so does its weight") == pytest.approx(right)
    # the broken twin: a record is in a sum of one column only, and three are asked
    step = WeightedSums.step
    monkeypatch.setattr(WeightedSums, "step", lambda sums, *price: step(replace(sums, names=sums.names[:1]), *price))
    assert worst(neighbours, "so does its weight") > 1.15


def test_no_noise_changes_the_cap_of_exact_audits():
    column = IntervalColumn("weight", WEIGHTED.columns["weight"], 10)
    rows = pd.DataFrame({"colour": "red", "size": 3.0, "ill": [True, False], "weight": [99.0, 100.0]})
    sums = [WeightedSums(WEIGHTED, tuple(COLUMNS)).count(Table(rows, WEIGHTED), cap) for cap in column.fine.edges[1:]]
    assert len(column.nodes) == 1
    np.testing.assert_array_equal(sums[0], sums[1])


SURVEY = Schema.model_validate(
    {
        "columns": {"sex": {"levels": ["f", "m"]}, "w": {"lower": 0, "upper": 6, "resolution": 1}},
        "records": {"weight": "w"},
    }
)


class Stopping(Drawing):
    """Answers a release, notes what it answers, and stops it where nothing is left to be asked."""

    def _count(self, step, statistic, possible):
        self.seen = [*getattr(self, "seen", []), super()._count(step, statistic, possible)]
        if step is self._plan.steps[-1]:
            raise StopIteration
        return self.seen[-1]


def observed(made, table, n_runs, from_bits):
    plan, rows = made.plan(table.schema), []
    for _ in range(n_runs):
        curator = Stopping(plan, table, from_bits)
        with pytest.raises(StopIteration):
            made.synthesize(plan, curator, np.random.default_rng(0))
        rows.append(np.concatenate(curator.seen))
    return np.array(rows)


def test_many_runs_whose_cap_follows_from_noise_and_a_twin_whose_cap_is_the_largest_weight(monkeypatch):
    # 1,000 runs a table, a bound is wrong with probability 1e-6; three caps and more are chosen
    made, rest = Pairs(epsilon=1, weighted=("sex",)), [("f", 1.0), ("m", 1.0)] * 50
    sides = [Table(pd.DataFrame([*rest, last], columns=["sex", "w"]), SURVEY) for last in (("m", 6.0), ("f", 1.0))]
    pair, caps, count = Pair("a heavy one", *sides, "replace-one"), set(), WeightedSums.count

    def noted(self, table, cap):
        caps.add(cap)
        return count(self, table, cap)

    def bound():
        return counts_bound(
            lambda *given: observed(made, *given), pair, n_runs=1_000, alpha=1e-6, delta=0, rng=np.random.default_rng(0)
        ).epsilon

    monkeypatch.setattr(WeightedSums, "count", noted)
    assert bound() <= 1
    assert len(caps) >= 3

    def largest(self, curator, step, fine, counted, laws):
        cap = float(curator._table.frame["w"].max())
        return CappedSums(self, step, curator.count(step, partial(self.count, cap=cap)), cap, 0.0)

    monkeypatch.setattr(WeightedSums, "measure", largest)
    assert bound() > 1.2


def test_a_household_costs_what_a_record_does_and_twins_are_caught(neighbours, monkeypatch):
    assert worst(neighbours, "household") == pytest.approx(1)
    joined = Members.joined

    def from_the_smallest(self, *given):
        wide = joined(self, *given)
        return wide.assign(members=wide["members"] - wide["members"].min())

    # the broken twin: other households change with the smallest one
    monkeypatch.setattr(Members, "joined", from_the_smallest)
    assert worst(neighbours, "household") > 1.2


def test_members_who_count_as_persons_of_their_own_are_caught(neighbours):
    # the broken twin: each member a record, and one of them is priced
    plain = Schema(columns={**HOMES.columns, "sex": HOMES.members.columns["sex"]}).only(["rent", "sex"])
    rest, made = [("low", "f"), ("low", "m")], Pairs(epsilon=1, neighbours=neighbours)
    come = [("low", "f")] * 2 if neighbours == "replace-one" else []
    sides = [Table(pd.DataFrame(rest + own, columns=["rent", "sex"]), plain) for own in ([("high", "m")] * 2, come)]
    pair = SimpleNamespace(first=sides[0], second=sides[1])
    assert exact_bound(made, pair).epsilon == pytest.approx(2)
    with pytest.raises(ValueError, match="more records than one person may have"):
        audit(made, Pair("members", *sides, neighbours), engine="exact")
