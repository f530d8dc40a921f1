"""Sanitized statistics are accused of nothing, their twins and the forms that Bowen and Liu (2020) print are.

Confidence 1 - 1e-6 for all bounds of a call together, seeds fixed: a sound mechanism is accused with probability 1e-6.
"""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from tables import RELATIONS

from pdips.audit import Case, audit, audit_cases, overspending
from pdips.audit.cases import statistics as audit_modips
from pdips.audit.neighbour_pairs import with_event
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.privacy.noise import RandomBits
from pdips.privacy.sensitivity import Sensitivity
from pdips.statistics.logistic import Logits
from pdips.statistics.modips import Modips
from pdips_papers.modips import as_printed as modips_published
from pdips_papers.modips.as_printed import PrintedCovariance, PrintedRegression, posterior_draws, redrawn

RUNS = 40_000
SURE = 1 - 1e-6


def cases_for(relation, **settings):
    def build(**usual):
        return Modips(**({"epsilon": 1, "neighbours": relation} | usual | settings))

    return list(audit_modips.modips(build))


def findings(cases, n_runs=RUNS, **more):
    return audit_cases(cases, n_runs=n_runs, confidence=SURE, rng=np.random.default_rng(0), **more)


def accused(found):
    return {finding.engine for finding in found if finding.verdict == "VIOLATION"}


def loss_on(found, pair):
    return max(finding.bound for finding in found if finding.engine == "exact" and finding.pair.startswith(pair))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("settings", [{}, {"split": "per-set", "n_sets": 2}, {"kind": "zcdp"}])
def test_sanitized_statistics_are_accused_of_nothing(relation, settings):
    found = findings(cases_for(relation, **settings), n_runs=RUNS // 4)
    assert accused(found) == set()
    assert {finding.kind for finding in found} == {settings.get("kind", "pure")}
    if settings.get("kind") != "zcdp":
        assert max(finding.bound for finding in found if finding.engine == "exact") == pytest.approx(1)


@pytest.mark.parametrize("relation", RELATIONS)
def test_what_the_worst_pairs_lose_exactly(relation):
    # a record that leaves takes all that it can with it; one that is replaced moves counts, sums and the product of two
    # columns fully, or squares and half of the sums: never both
    found = findings([case for case in cases_for(relation, budget="equal") if case.engine == "exact"])
    assert loss_on(found, "empty cell") == pytest.approx(1)
    assert loss_on(found, "boundary") == pytest.approx(1)
    assert loss_on(found, "corner") == pytest.approx(1 if relation == "add-remove" else 4 / 6)
    assert loss_on(found, "third") == pytest.approx(1 if relation == "add-remove" else 7 / 9, abs=1e-3)
    assert loss_on(found, "middle") == pytest.approx(
        1 if relation == "add-remove" else (1 + 1 / 2 + 1 / 2 + 2 + 1 / 2) / 6
    )
    assert 0.2 < loss_on(found, "regression") < 1


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_twin_that_overspends_by_a_quarter_is_caught(relation):
    cases = cases_for(relation)
    twins = [Case(overspending(case.mechanism, Fraction(5, 4)), case.pair, case.engine) for case in cases]
    assert accused(findings(twins, claim=1)) == {"exact", "counts"}


@pytest.mark.parametrize(
    ("broken", "pair"),
    [
        ("Counts", "empty cell"),  # a record that moves changes one count
        ("Sums", "corner"),  # and one sum
        ("Products", "corner"),  # products of two columns change by no more than squares
    ],
)
def test_a_forgotten_half_of_a_sensitivity_is_found_out(broken, pair, monkeypatch):
    kind = getattr(audit_modips, broken)
    cases = [case for case in cases_for("replace-one", budget="equal") if case.engine == "exact"]
    [case] = [case for case in cases if case.pair.name.startswith(pair)]
    before = audit(case.mechanism, case.pair, engine="exact").bound
    whole = kind.sensitivity

    def half(self, schema, neighbours):
        return Sensitivity.of_person(l1=max(whole(self, schema, neighbours).l1 // 2, 1))

    monkeypatch.setattr(kind, "sensitivity", half)
    after = audit(case.mechanism, case.pair, engine="exact").bound
    parts = {"Counts": 1, "Sums": 2 / 6, "Products": 1 / 6}[broken]
    assert after == pytest.approx(before + parts)
    assert audit(case.mechanism, case.pair, engine="exact", claim=before).verdict == "VIOLATION"


def test_the_printed_forms_are_violations():
    # 400,000 runs for an event of probability .0012 against .00017, 40,000 for the others
    cases = list(modips_published.published())
    rare = [case for case in cases if case.pair.event_name == "the cell's mean is above 3"]
    found = [*findings([case for case in cases if case not in rare], RUNS), *findings(rare, 400_000)]
    assert [finding.verdict for finding in found] == ["VIOLATION"] * len(cases) == ["VIOLATION"] * 5
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
    # probabilities within 6 standard errors of 100,000 runs, and of the last digit of the figure
    [case] = [case for case in modips_published.published() if case.pair.event_name == event]
    bits = RandomBits(np.random.default_rng(1))
    for table, figure in zip((case.pair.first, case.pair.second), FIGURES[event], strict=True):
        share = case.pair.event(case.mechanism.observe(table, 100_000, bits)).mean()
        assert abs(share - figure) <= 6 * math.sqrt(figure * (1 - figure) / 100_000) + 1e-4
        assert figure in (0, 1) or abs(share - 1.2 * figure) > 6 * math.sqrt(figure / 100_000) * (figure > 0.01)


def test_printed_claims_where_they_hold():
    # the diagonal of the pooled covariance is right as printed: consistent on the pair that catches the entry beside it
    [case] = [case for case in modips_published.published() if isinstance(case.mechanism, PrintedCovariance)]
    diagonal = replace(case.mechanism, of=("y", "y"))
    least = diagonal.exact(case.pair.first)
    pair = with_event(case.pair, lambda rows: rows[:, 0] >= least, "the variance is at least the first table's")
    found = findings([Case(diagonal, pair), Case(case.mechanism, case.pair)])
    assert [finding.verdict for finding in found] == ["consistent", "VIOLATION"]
    change = diagonal.exact(pair.first) - diagonal.exact(pair.second)
    assert abs(change) <= diagonal.scale(pair.first)
    change = case.mechanism.exact(pair.first) - case.mechanism.exact(pair.second)
    assert change / case.mechanism.scale(pair.first) == pytest.approx((9 / 10 + 10 / 11) * 20 / 19)


def test_what_drawing_again_costs_by_its_density():
    for epsilon in (0.2, 1.0, 2.0):
        t = np.linspace(0, 200, 400_001)
        log_density = [
            -epsilon * np.abs(t - s) - math.log(np.trapezoid(np.exp(-epsilon * np.abs(t - s)), t)) for s in range(3)
        ]
        lost = [np.abs(log_density[0] - log_density[1]).max(), np.abs(log_density[1] - log_density[2]).max()]
        assert max(lost) == pytest.approx(modips_published.redraw_loss(epsilon), rel=1e-6)
        assert max(lost) > 1.2 * epsilon
    bits = RandomBits(np.random.default_rng(0))
    drawn = redrawn(np.full(10_000, 3.0), 5, lambda size: 2 * modips_published.laplace(size, bits))
    assert ((drawn >= 0) & (drawn <= 5)).all()


def test_what_the_printed_prior_costs_in_its_tail():
    # far out the noise weighs the posterior by e^(rate b)
    n, strength, epsilon = 100, Fraction(1, 2), 0.2
    rate, b = n * float(strength) * epsilon / 2, np.linspace(-60, 80, 400_001)
    sums = [np.logaddexp.reduce(-float(strength) / 2 * b**2 - np.logaddexp(0, -y * b) + rate * b) for y in (1, -1)]
    assert sums[0] - sums[1] == pytest.approx(n * epsilon / 2 - 1 / (2 * float(strength)), abs=1e-3)
    assert sums[0] - sums[1] > 10 * epsilon


def test_posterior_draws_of_several_coefficients():
    # 2,000 chains of 200 steps against importance sampling from the prior: first two moments within 6 standard errors
    rng = np.random.default_rng(0)
    x = np.array([[0.6, 0.5], [0.6, -0.5], [0.6, 0.2]])
    logits = Logits(x=x, level=np.array([0, 1, 1]), weight=np.array([5, 3, 2]), n_levels=2, kappa=Fraction(1, 2))
    drawn = posterior_draws(logits, 2_000, rng)
    prior = rng.normal(0, math.sqrt(2), (200_000, 2))
    weights = np.exp(modips_published._log_posterior(logits, prior) + (prior**2).sum(axis=1) / 4)
    for power in (1, 2):
        wanted = (weights[:, None] * prior**power).sum(axis=0) / weights.sum()
        error = 6 * np.std(drawn**power, axis=0) / math.sqrt(2_000)
        assert (np.abs((drawn**power).mean(axis=0) - wanted) < error).all()
        assert (np.abs((drawn**power).mean(axis=0) - 0) > error).any()  # the twin that returns no posterior at all


def test_regressions_of_three_levels_with_an_intercept():
    schema = Schema.model_validate({"columns": {"w": {"levels": [0, 1, 2]}, "x": {"lower": -1, "upper": 1}}})
    table = Table(pd.DataFrame({"w": [0, 1, 2, 2], "x": [0.0, 1, -1, -1]}), schema)
    mechanism = PrintedRegression(epsilon=1, outcome="w", predictors=("x",))
    assert mechanism.observe(table, 30, RandomBits(np.random.default_rng(0))).shape == (30, 4)
    with pytest.raises(InputError, match="needs predictors"):
        PrintedRegression(epsilon=1, outcome="w", predictors=(), intercept=False)


@pytest.mark.parametrize("settings", [{"model": "normal_moments"}, {"budget": {"cells": 1}}])
def test_the_audit_has_statistics_of_its_own(settings):
    with pytest.raises(InputError, match="of its own"):
        cases_for("replace-one", **settings)
