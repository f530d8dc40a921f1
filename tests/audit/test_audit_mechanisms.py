"""Sanitized statistics are accused of nothing, their twins and the forms that Bowen and
Liu (2020) print are.

Confidence 1 - 1e-6 for all bounds of a call together, seeds fixed: a sound mechanism is
accused with probability 1e-6.
"""

import json
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from margin_tables import of_pairs
from tables import RELATIONS, Flawed, refuses, schema_in
from test_audit import RUNS, SURE, accused, findings

from pdips import KNG, Modips, Schema, Table
from pdips.audit import Case, Pair, audit, audit_cases, registered_cases
from pdips.audit.cases import statistics as audit_modips
from pdips.audit.cases.margins import COLUMNS, HOMES, WEIGHTED
from pdips.audit.cases.quantile import FIRMS, WAGES
from pdips.audit.findings import counts_bound, exact_bound
from pdips.audit.neighbour_pairs import table_of, where_allowed, with_event
from pdips.data.households import Members
from pdips.fields.products import SecondMoments
from pdips.fields.weighted_sums import SUMS_OF_WEIGHTS, CappedSums, WeightedSums
from pdips.margins.intervals import IntervalColumn
from pdips.privacy.curator import Drawing
from pdips.privacy.noise import RandomBits
from pdips.privacy.sensitivity import Sensitivity
from pdips.statistics.logistic import Logits
from pdips_papers.modips import as_printed as modips_published
from pdips_papers.modips.as_printed import (
    PrintedCovariance,
    PrintedRegression,
    posterior_draws,
    redrawn,
)


def cases_for(relation, **settings):
    def build(**usual):
        return Modips(**({"epsilon": 1, "neighbours": relation} | usual | settings))

    return list(audit_modips.modips(build))


def loss_on(found, pair):
    return max(
        finding.bound
        for finding in found
        if finding.engine == "exact" and finding.pair.startswith(pair)
    )


@pytest.mark.parametrize("relation", RELATIONS)
def test_statistics_with_gaussian_noise_are_accused_of_nothing(relation):
    found = findings(cases_for(relation, delta="1e-6"), n_runs=RUNS // 4)
    assert accused(found) == set()
    assert {finding.kind for finding in found} == {"zcdp"}


@pytest.mark.parametrize("relation", RELATIONS)
def test_what_the_worst_pairs_lose_exactly(relation):
    # a record that leaves takes all that it can with it; one that is replaced moves
    # counts, sums and the product of two columns fully, or squares and half of the
    # sums: never both
    found = findings(
        [case for case in cases_for(relation, budget="equal") if case.engine == "exact"]
    )
    assert loss_on(found, "empty cell") == pytest.approx(1)
    assert loss_on(found, "boundary") == pytest.approx(1)
    assert loss_on(found, "corner") == pytest.approx(
        1 if relation == "add-remove" else 4 / 6
    )
    assert loss_on(found, "third") == pytest.approx(
        1 if relation == "add-remove" else 7 / 9, abs=1e-3
    )
    assert loss_on(found, "middle") == pytest.approx(
        1 if relation == "add-remove" else (1 + 1 / 2 + 1 / 2 + 2 + 1 / 2) / 6
    )
    assert 0.2 < loss_on(found, "regression") < 1


@pytest.mark.parametrize(
    ("broken", "pair"),
    [
        ("Counts", "empty cell"),  # a record that moves changes one count
        ("Sums", "corner"),  # and one sum
        # products of two columns change by no more than squares
        ("Products", "corner"),
    ],
)
def test_a_forgotten_half_of_a_sensitivity_is_found_out(broken, pair, monkeypatch):
    kind = getattr(audit_modips, broken)
    cases = [
        case
        for case in cases_for("replace-one", budget="equal")
        if case.engine == "exact"
    ]
    [case] = [case for case in cases if case.pair.name.startswith(pair)]
    before = audit(case.mechanism, case.pair, engine="exact").bound
    whole = kind.sensitivity

    def half(self, schema, neighbours):
        return Sensitivity.of_person(l1=max(whole(self, schema, neighbours).l1 // 2, 1))

    monkeypatch.setattr(kind, "sensitivity", half)
    after = audit(case.mechanism, case.pair, engine="exact").bound
    assert after == pytest.approx(
        before + {"Counts": 1, "Sums": 2 / 6, "Products": 1 / 6}[broken]
    )
    assert (
        audit(case.mechanism, case.pair, engine="exact", claim=before).verdict
        == "VIOLATION"
    )


def test_the_printed_forms_are_violations():
    # 400,000 runs for an event of probability .0012 against .00017, 40,000 for the
    # others
    cases = list(modips_published.published())
    rare = [
        case for case in cases if case.pair.event_name == "the cell's mean is above 3"
    ]
    found = [
        *findings([case for case in cases if case not in rare], RUNS),
        *findings(rare, 400_000),
    ]
    assert (
        [finding.verdict for finding in found]
        == ["VIOLATION"] * len(cases)
        == ["VIOLATION"] * 5
    )
    assert {finding.kind for finding in found} == {"none"}
    assert {finding.variant for finding in found} == {"published"}


FIGURES = {
    "the count is below .1": (0.09516, 0.0237),
    "the cell has a mean": (1.0, 0.0),
    "the cell's mean is above 3": (math.exp(-6) / 2, math.exp(-8) / 2),
    "the covariance is at least that of the first table": (0.5, 0.0745),
    "the coefficient is above 0": (0.7250, 0.2750),
}


@pytest.mark.parametrize("event", FIGURES)
def test_the_printed_forms_at_their_size(event):
    # probabilities within 6 standard errors of 100,000 runs, and of the last digit of
    # the figure
    [case] = [
        case for case in modips_published.published() if case.pair.event_name == event
    ]
    bits = RandomBits(np.random.default_rng(1))
    for table, figure in zip(
        (case.pair.first, case.pair.second), FIGURES[event], strict=True
    ):
        share = case.pair.event(case.mechanism.observe(table, 100_000, bits)).mean()
        assert (
            abs(share - figure) <= 6 * math.sqrt(figure * (1 - figure) / 100_000) + 1e-4
        )
        assert figure in (0, 1) or abs(share - 1.2 * figure) > 6 * math.sqrt(
            figure / 100_000
        ) * (figure > 0.01)


def test_printed_claims_where_they_hold():
    # the diagonal of the pooled covariance is right as printed: consistent on the pair
    # that catches the entry beside it
    [case] = [
        case
        for case in modips_published.published()
        if isinstance(case.mechanism, PrintedCovariance)
    ]
    diagonal = replace(case.mechanism, of=("y", "y"))
    least = diagonal.exact(case.pair.first)
    pair = with_event(
        case.pair,
        lambda rows: rows[:, 0] >= least,
        "the variance is at least the first table's",
    )
    found = findings([Case(diagonal, pair), Case(case.mechanism, case.pair)])
    assert [finding.verdict for finding in found] == ["consistent", "VIOLATION"]
    change = diagonal.exact(pair.first) - diagonal.exact(pair.second)
    assert abs(change) <= diagonal.scale(pair.first)
    change = case.mechanism.exact(pair.first) - case.mechanism.exact(pair.second)
    assert change / case.mechanism.scale(pair.first) == pytest.approx(
        (9 / 10 + 10 / 11) * 20 / 19
    )


def test_what_drawing_again_costs_by_its_density():
    for epsilon in (0.2, 1.0, 2.0):
        t = np.linspace(0, 200, 400_001)
        log_density = [
            -epsilon * np.abs(t - s)
            - math.log(np.trapezoid(np.exp(-epsilon * np.abs(t - s)), t))
            for s in range(3)
        ]
        lost = [
            np.abs(log_density[0] - log_density[1]).max(),
            np.abs(log_density[1] - log_density[2]).max(),
        ]
        assert max(lost) == pytest.approx(
            modips_published.redraw_loss(epsilon), rel=1e-6
        )
        assert max(lost) > 1.2 * epsilon
    bits = RandomBits(np.random.default_rng(0))
    drawn = redrawn(
        np.full(10_000, 3.0), 5, lambda size: 2 * modips_published.laplace(size, bits)
    )
    assert ((drawn >= 0) & (drawn <= 5)).all()


def test_what_the_printed_prior_costs_in_its_tail():
    # far out the noise weighs the posterior by e^(rate b)
    n, strength, epsilon = 100, Fraction(1, 2), 0.2
    rate, b = n * float(strength) * epsilon / 2, np.linspace(-60, 80, 400_001)
    sums = [
        np.logaddexp.reduce(
            -float(strength) / 2 * b**2 - np.logaddexp(0, -y * b) + rate * b
        )
        for y in (1, -1)
    ]
    assert sums[0] - sums[1] == pytest.approx(
        n * epsilon / 2 - 1 / (2 * float(strength)), abs=1e-3
    )
    assert sums[0] - sums[1] > 10 * epsilon


def test_posterior_draws_of_several_coefficients():
    # 2,000 chains of 200 steps against importance sampling from the prior: first two
    # moments within 6 standard errors
    rng = np.random.default_rng(0)
    x = np.array([[0.6, 0.5], [0.6, -0.5], [0.6, 0.2]])
    logits = Logits(
        x=x,
        level=np.array([0, 1, 1]),
        weight=np.array([5, 3, 2]),
        n_levels=2,
        kappa=Fraction(1, 2),
    )
    drawn = posterior_draws(logits, 2_000, rng)
    prior = rng.normal(0, math.sqrt(2), (200_000, 2))
    weights = np.exp(
        modips_published._log_posterior(logits, prior) + (prior**2).sum(axis=1) / 4
    )
    for power in (1, 2):
        wanted = (weights[:, None] * prior**power).sum(axis=0) / weights.sum()
        error = 6 * np.std(drawn**power, axis=0) / math.sqrt(2_000)
        assert (np.abs((drawn**power).mean(axis=0) - wanted) < error).all()
        # the twin that returns no posterior at all
        assert (np.abs((drawn**power).mean(axis=0) - 0) > error).any()


def test_regressions_of_three_levels_with_an_intercept():
    schema = Schema(
        columns={"w": {"levels": [0, 1, 2]}, "x": {"lower": -1, "upper": 1}}
    )
    table = Table(pd.DataFrame({"w": [0, 1, 2, 2], "x": [0.0, 1, -1, -1]}), schema)
    mechanism = PrintedRegression(epsilon=1, outcome="w", predictors=("x",))
    assert mechanism.observe(table, 30, RandomBits(np.random.default_rng(0))).shape == (
        30,
        4,
    )
    refuses(
        "needs predictors",
        PrintedRegression,
        epsilon=1,
        outcome="w",
        predictors=(),
        intercept=False,
    )


@pytest.mark.parametrize(
    "settings", [{"model": "normal_moments"}, {"budget": {"cells": 1}}]
)
def test_the_audit_has_statistics_of_its_own(settings):
    refuses("of its own", cases_for, "replace-one", **settings)


# Audits of ``margins`` with sums of weights and with households, and broken twins that
# they catch


def worst(neighbours, start, **settings) -> float:
    """Return the largest exact bound of the registered cases whose pair is called
    so.
    """
    cases = registered_cases("margins", neighbours=neighbours, **settings)
    found = audit_cases([case for case in cases if start in case.pair.name])
    assert found
    return max(finding.bound for finding in found)


def test_sums_of_weights_cost_what_they_say_and_twins_are_caught(
    neighbours, monkeypatch
):
    # a weight of 99 that takes the place of 100 leaves .995 of the step's tenth
    right = {"replace-one": 1 - 0.1 * 0.005, "add-remove": 1}[neighbours]
    assert worst(neighbours, "so does its weight") == pytest.approx(right)
    # the broken twin: a record is in a sum of one column only, and three are asked
    step = WeightedSums.step
    monkeypatch.setattr(
        WeightedSums,
        "step",
        lambda sums, *price: step(replace(sums, names=sums.names[:1]), *price),
    )
    assert worst(neighbours, "so does its weight") > 1.15


def test_no_noise_changes_the_cap_of_exact_audits():
    column = IntervalColumn("weight", WEIGHTED.columns["weight"], 10)
    rows = pd.DataFrame(
        {"colour": "red", "size": 3.0, "ill": [True, False], "weight": [99.0, 100.0]}
    )
    sums = [
        WeightedSums(WEIGHTED, tuple(COLUMNS)).count(Table(rows, WEIGHTED), cap)
        for cap in column.fine.edges[1:]
    ]
    assert len(column.nodes) == 1
    np.testing.assert_array_equal(sums[0], sums[1])


SURVEY = schema_in("audit_pairs_survey")


class Stopping(Drawing):
    """Answers a release, notes what it answers, and stops it where nothing is left to
    be asked.
    """

    def _count(self, step, statistic, possible):
        self.seen = [
            *getattr(self, "seen", []),
            super()._count(step, statistic, possible),
        ]
        if step is self._plan.steps[-1]:
            raise StopIteration
        return self.seen[-1]


def observed(made, table, n_runs, from_bits):
    plan, rows = made.plan(table.schema), []
    for _ in range(n_runs):
        curator = Stopping(plan, table, from_bits)
        with pytest.raises(StopIteration):
            made.ask(plan, curator)
        rows.append(np.concatenate(curator.seen))
    return np.array(rows)


def heavy_one(made, n_each):
    """Return the counted bound of 1,000 runs a table, wrong with probability 1e-6,
    where one person weighs six.
    """
    rest = [("f", 1.0), ("m", 1.0)] * n_each
    sides = [
        Table(pd.DataFrame([*rest, last], columns=["sex", "w"]), SURVEY)
        for last in (("m", 6.0), ("f", 1.0))
    ]
    run, pair = partial(observed, made), Pair("a heavy one", *sides, "replace-one")
    return counts_bound(
        run, pair, n_runs=1_000, alpha=1e-6, delta=0, rng=np.random.default_rng(0)
    ).epsilon


def noted(monkeypatch, kind, cap_of):
    """Note what ``cap_of`` tells of the caps at which sums of this kind are counted."""
    seen, count = set(), kind.count

    def counted(self, table, **given):
        seen.update(map(cap_of, given.values()))
        return count(self, table, **given)

    monkeypatch.setattr(kind, "count", counted)
    return seen


@pytest.mark.slow
def test_many_runs_whose_cap_follows_from_noise_and_a_twin_whose_cap_is_the_largest_weight(  # noqa: E501
    monkeypatch,
):
    # three caps and more are chosen in the small tables
    made, caps = (
        of_pairs(epsilon=1, weighted=("sex",)),
        noted(monkeypatch, WeightedSums, lambda cap: cap),
    )
    assert heavy_one(made, 20) <= 1
    assert heavy_one(made, 50) <= 1
    assert len(caps) >= 3

    def largest(self, curator, plan, fine):
        step = plan.named(SUMS_OF_WEIGHTS)
        cap = float(curator._table.frame["w"].max())
        return CappedSums(
            self, step, curator.count(step, partial(self.count, cap=cap)), cap, 0.0
        )

    monkeypatch.setattr(WeightedSums, "ask", largest)
    assert heavy_one(made, 50) > 1.2


@pytest.mark.slow
def test_many_runs_of_products_whose_caps_follow_from_noise_and_a_twin_whose_caps_are_the_largest_number(  # noqa: E501
    monkeypatch,
):
    made, count = (
        of_pairs(epsilon=1, products=("sex", "w")),
        SecondMoments.count,
    )
    seen = noted(monkeypatch, SecondMoments, lambda caps: caps["w"])
    assert heavy_one(made, 20) <= 1
    assert len(seen) >= 3

    def largest(self, table, caps):
        return count(self, table, {"w": (0.0, float(table.frame["w"].max()))})

    monkeypatch.setattr(SecondMoments, "count", largest)
    assert heavy_one(made, 20) > 1.2


def test_a_household_costs_what_a_record_does_and_twins_are_caught(
    neighbours, monkeypatch
):
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
    plain = Schema(columns={**HOMES.columns, "sex": HOMES.members.columns["sex"]}).only(
        ["rent", "sex"]
    )
    rest, made = (
        [("low", "f"), ("low", "m")],
        of_pairs(epsilon=1, neighbours=neighbours),
    )
    come = [("low", "f")] * 2 if neighbours == "replace-one" else []
    sides = [
        Table(pd.DataFrame(rest + own, columns=["rent", "sex"]), plain)
        for own in ([("high", "m")] * 2, come)
    ]
    assert exact_bound(
        made, SimpleNamespace(first=sides[0], second=sides[1])
    ).epsilon == pytest.approx(2)
    with pytest.raises(ValueError, match="more records than one person may have"):
        audit(made, Pair("members", *sides, neighbours), engine="exact")


# Audits of quantile lines: the flaws of Tran et al. (2023) and their programs are
# caught, the sound form is


def program(pdips, *words) -> dict[str, dict]:
    """Audit kng by the program; what it found for the 99th percentile, by engine."""
    found = json.loads(
        pdips.ok("audit", "kng", "--runs", 1_000, "--seed", 1, "--json", *words)
    )["findings"]
    return {
        each["engine"]: each for each in found if each["pair"].startswith("percentile")
    }


@pytest.mark.slow
def test_the_program_finds_the_violation(pdips):
    # without --epsilon the case has its own claim, and with one it has the user's,
    # however it is spelt
    own = program(pdips, "--variant", "published")
    assert {each["verdict"] for each in own.values()} == {"VIOLATION"}
    assert {each["claim"] for each in own.values()} == {0.1}
    assert own["exact"]["bound"] == pytest.approx(4.711, abs=0.0005)
    assert own["counts"]["bound"] > 3
    spelt = program(pdips, "--variant", "published", "--epsilon", "0.10")
    assert spelt == own  # the seed repeats the counted bound too
    assert {each["verdict"] for each in program(pdips).values()} == {"consistent"}
    asked = program(pdips, "--variant", "published", "--epsilon", "1")
    assert asked["exact"]["claim"] == 1
    assert asked["exact"]["bound"] > 20


def test_settings_are_compared_as_numbers():
    def build(**usual):
        return KNG(
            **{"epsilon": "0.50", "quantiles": ("0.5",), **usual, "scheme": "stepwise"}
        )

    assert where_allowed(build, epsilon="1/2", quantiles=("1/2",)) is not None
    assert (
        where_allowed(lambda **usual: build(**usual | {"epsilon": 1}), epsilon="1/2")
        is None
    )
    assert where_allowed(build, scheme="plain") is None
    assert where_allowed(build, quantiles=()) is None


@dataclass(frozen=True, kw_only=True)
class CrossingAtRecords(Flawed):
    """Tran et al. (2023), equations 7 and 9: a line may cross another one where no
    record is.
    """

    def observe(self, table, n_runs, bits):
        size = table.codes["size"] / 9.0
        # beside a flat line that is 0.2 lower, evenly
        slopes = bits.generator().uniform(-1, 1, n_runs)
        allowed = (0.2 + slopes[:, None] * size >= 0).all(axis=1)
        return np.where(allowed & (slopes < -0.5), 1, 0)[:, None]


def test_a_constraint_on_confidential_rows_is_caught():
    # whether a steep fall is possible depends on the largest firm alone; sizes are
    # confidential here
    schema = Schema(
        columns={
            name: {"lower": 0, "upper": 10, "bins": bins}
            for name, bins in (("size", 10), ("wage", 100))
        }
    )
    first, second = (table_of([(0, 0), (size, 0)], schema) for size in (0, 9))
    pair = Pair("the largest firm leaves", first, second, "replace-one")
    found = audit(
        CrossingAtRecords(),
        pair,
        n_runs=20_000,
        confidence=SURE,
        rng=np.random.default_rng(0),
    )
    assert found.verdict == "VIOLATION"
    assert found.bound > 5
    # the sound form asks the public box only, also where sizes are public
    assert "size" in FIRMS.public_columns


@dataclass(frozen=True, kw_only=True)
class ShortChain(Flawed):
    """A chain of 100 steps of 0.1 that starts at the table's own median."""

    def observe(self, table, n_runs, bits):
        wages, rng = table.codes["wage"].astype(float), bits.generator()
        theta = np.full(n_runs, np.median(wages))

        def gradient(at):
            return np.abs((wages <= at[:, None]).sum(axis=1) - len(wages) / 2)

        for _ in range(100):
            proposed = theta + rng.normal(0, 0.1, n_runs)
            accepted = np.log(rng.random(n_runs)) < float(self.epsilon) / 2 * (
                gradient(theta) - gradient(proposed)
            )
            theta = np.where(accepted, proposed, theta)
        return (theta > 50).astype(np.int64)[:, None]


def test_a_short_chain_from_the_tables_own_estimate_is_caught():
    first, second = (
        table_of([(0,), (0,), (99,), (99,), (wage,)], WAGES) for wage in (99, 0)
    )
    pair = Pair("the middle one changes sides", first, second, "replace-one")
    found = audit(
        ShortChain(), pair, n_runs=2_000, confidence=SURE, rng=np.random.default_rng(0)
    )
    assert found.verdict == "VIOLATION"
    assert found.bound > 3
