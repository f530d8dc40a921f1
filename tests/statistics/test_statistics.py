"""Budgets of statistics, and what post-processing makes of them; sensitivities are in tests/prices."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from tables import cases, refuses

from pdips import InputError, Schema, Table
from pdips.privacy.noise import RandomBits
from pdips.statistics.plan import LEAST_VARIANCE, NoisyStatistics, StatisticPlan, nearest_positive, settle, to_frame
from pdips.statistics.statistic import Counts, Products, Sums, total_by

NUMBERS = {"x": {"lower": 0, "upper": 2, "integer": True}, "y": {"lower": -1, "upper": 1, "integer": True}}
SCHEMA = Schema(columns={"g": {"levels": ["l0", "l1", "l2"]}, **NUMBERS})


def test_sums_are_added_up_exactly_beyond_doubles():
    place, big = np.array([0, 0, 1]), 2**60
    assert total_by(place, np.array([big, 1, -big]), 2, big).tolist() == [big + 1, -big]


def plan(statistics, **settings):
    given = {"neighbours": "replace-one", "budget": "optimal", "amount": Fraction(1), "law": "laplace", **settings}
    return StatisticPlan(schema=SCHEMA, statistics=statistics, **given)


MIXED = {"counts": Counts(by=("g",)), "sums": Sums(of="y", by=("g",)), "squares": Products(of=("y", "y"))}


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_the_optimal_budget_minimises_the_sum_of_relative_variances(law):
    made = plan(MIXED, law=law)

    def loss(logs):
        shares = dict(zip(MIXED, np.exp(logs) / np.exp(logs).sum(), strict=True))
        total = 0.0
        for name, each in MIXED.items():
            unit, spread = each.unit(made.schema), each.spread(made.schema)
            if law == "laplace":
                variance = 2 * (each.sensitivity(made.schema, "replace-one").l1 * unit / shares[name]) ** 2
            else:
                variance = each.sensitivity(made.schema, "replace-one").l2_squared * unit**2 / (2 * shares[name])
            total += float((variance / spread).mean())
        return total

    found = minimize(loss, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-7})
    best = np.exp(found.x) / np.exp(found.x).sum()
    np.testing.assert_allclose([float(made.shares[name]) for name in MIXED], best, atol=1e-4)
    assert loss(np.log([float(each) for each in made.shares.values()])) < loss(np.zeros(3))


def test_shares_add_up_to_one_exactly():
    for budget in ("equal", "optimal", {"counts": "1/3", "sums": "1/3", "squares": "1/3"}):
        assert sum(plan(MIXED, budget=budget).shares.values()) == 1


@pytest.mark.parametrize("budget", cases(__file__, "a_budget_that_does_not_fit_is_refused"))
def test_a_budget_that_does_not_fit_is_refused(budget):
    with pytest.raises(InputError, match=r"budget|share"):
        plan(MIXED, budget=budget).shares  # noqa: B018


@pytest.mark.parametrize(
    ("statistic", "message"),
    [
        (Sums(of="g"), "'g' has levels"),
        (Sums(of="z"), "'z', which the schema doesn't have"),
        (Sums(of="gap"), "'gap'"),
        (Counts(by=("y",)), "neither levels nor bins"),
    ],
)
def test_columns_that_a_statistic_cannot_be_of(statistic, message):
    columns = {"y": {"lower": 0, "upper": 1}, "g": {"levels": ["a"]}, "gap": {"lower": 0, "upper": 1, "missing": True}}
    refuses(message, statistic.check, Schema(columns=columns))


def noisy(values):
    made = plan(MIXED)
    whole = {name: np.asarray(each, dtype=np.int64) for name, each in values.items()}
    return NoisyStatistics(schema=made.schema, neighbours=made.neighbours, parts=made.parts, values=whole, n_records=30)


def test_counts_that_are_all_negative_are_shared_out_evenly():
    used = settle(noisy({"counts": [-5, -5, -5], "sums": [0, 0, 0], "squares": [0]}))
    np.testing.assert_allclose(used["counts"], 10)
    used = settle(noisy({"counts": [40, -3, 0], "sums": [100, -90, 3], "squares": [-500]}))
    assert used["counts"].sum() == pytest.approx(30)
    assert (used["counts"] >= 1).all()
    assert (np.abs(used["sums"]) <= used["counts"] + 1e-12).all()
    assert used["squares"][0] <= 30 * (1 + LEAST_VARIANCE)
    good = np.array([[2.0, 0.5], [0.5, 1.0]])
    np.testing.assert_allclose(nearest_positive(good, 0.1), good)
    lifted = nearest_positive(np.array([[1.0, 2.0], [2.0, 1.0]]), 0.1)
    np.testing.assert_allclose(np.linalg.eigvalsh(lifted), [0.1, 3.0])


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_published_statistics_can_be_read_back(law):
    made = plan(MIXED, law=law)
    frame = pd.DataFrame({"g": ["l0", "l1", "l2"] * 10, "x": [0, 1, 2] * 10, "y": [-1, 0, 1] * 10})
    measured = made.sanitize(Table(frame, made.schema), RandomBits(np.random.default_rng(1)))
    again = made.restored(to_frame(measured, settle(measured)))
    assert again.n_records == 30
    for name, values in measured.values.items():
        np.testing.assert_array_equal(again.values[name], values)
    with pytest.raises(InputError, match="noise of the release"):
        plan(MIXED, law=law, amount=Fraction(2)).restored(to_frame(measured, settle(measured)))
