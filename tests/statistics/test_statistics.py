"""Sensitivities of statistics against enumeration, their budgets, and what post-processing makes of them."""

from fractions import Fraction
from itertools import combinations_with_replacement, product

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from tables import cases, claimed_by, refuses

from pdips import InputError, Schema, Table
from pdips.privacy.noise import RandomBits
from pdips.statistics.plan import LEAST_VARIANCE, NoisyStatistics, StatisticPlan, nearest_positive, settle, to_frame
from pdips.statistics.statistic import Counts, Products, Scatter, Sums, total_by

NUMBERS = {"x": {"lower": 0, "upper": 2, "integer": True}, "y": {"lower": -1, "upper": 1, "integer": True}}
"""Numbers whose steps are whole: -2, 0, 2 of at most 2, so that every record there can be is tried."""


def schema(levels=2, public=(), max_per_person=1):
    columns = {
        "g": {"levels": [f"l{i}" for i in range(levels)]},
        **{name: dict(each) for name, each in NUMBERS.items()},
    }
    for name in public:
        columns[name]["public"] = True
    return Schema(columns=columns, records={"max_per_person": max_per_person})


def contributions(statistic, known):
    """What each record there can be adds to a statistic, in whole units, by the values of its public columns."""
    found = {}
    for g, x, y in product(known.columns["g"].names(), (0, 1, 2), (-1, 0, 1)):
        record = {"g": g, "x": x, "y": y}
        table = Table(pd.DataFrame([record]), known)
        public = tuple(record[name] for name in known.public_columns)
        found.setdefault(public, set()).add(tuple(statistic.measure(table).tolist()))
    return found


def largest_changes(statistic, known, neighbours, records=1):
    """Largest l1 and squared l2 change that one person's records make, by trying all of them."""
    l1 = squared = 0
    for each in contributions(statistic, known).values():
        sums = {tuple(np.sum(some, axis=0)) for some in combinations_with_replacement(sorted(each), records)}
        nothing = {tuple(np.zeros(len(next(iter(sums))), dtype=int))}
        for before, after in product(sums, sums if neighbours == "replace-one" else nothing):
            change = np.subtract(after, before)
            l1, squared = max(l1, np.abs(change).sum()), max(squared, (change**2).sum())
    return int(l1), int(squared)


PRODUCTS = [Products(of=of, by=by) for by in ((), ("g",)) for of in (("y", "y"), ("x", "y"))]
STATISTICS = (Sums(of="y"), Sums(of="x", by=("g",)), *PRODUCTS)


@pytest.mark.parametrize("statistic", [Counts(by=("g",)), *STATISTICS], ids=str)
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_sensitivities_are_the_largest_changes_there_can_be(statistic, neighbours, levels):
    known = schema(levels)
    found = largest_changes(statistic, known, neighbours)
    if isinstance(statistic, Counts) and neighbours == "replace-one" and levels <= 2:
        found = (levels - 1, levels - 1)  # one of two counts that add up to a public number says both
    if isinstance(statistic, Products) and statistic.by and levels == 1:
        # one cell is no cell to change; twice is on the safe side
        assert found[0] <= claimed_by(statistic, known, neighbours)[0]
    else:
        assert claimed_by(statistic, known, neighbours) == found


@pytest.mark.parametrize("statistic", [Counts(by=("g",)), *STATISTICS], ids=str)
def test_sensitivities_where_a_person_may_have_two_records(statistic, neighbours):
    found = claimed_by(statistic, schema(3, max_per_person=2), neighbours)
    assert found == largest_changes(statistic, schema(3), neighbours, records=2)
    assert found[0] > claimed_by(statistic, schema(3), neighbours)[0]  # the broken twin: one record a person


@pytest.mark.parametrize("statistic", STATISTICS[:4], ids=str)
@pytest.mark.parametrize("public", [("g",), ("x",), ("g", "x")])
def test_sensitivities_beside_public_columns(statistic, public):
    known = schema(2, public)
    l1, squared = largest_changes(statistic, known, "replace-one")
    if public == ("x",) and statistic == Sums(of="x", by=("g",)):
        squared *= 2  # a public number only changes cells, two of them; taken as one on the safe side
    assert claimed_by(statistic, known, "replace-one") == (l1, squared)


def test_what_is_public_costs_nothing_and_a_forgotten_change_of_cell_is_seen():
    known = schema(2, ("g", "x"))
    for statistic in (Counts(by=("g",)), Sums(of="x"), Sums(of="x", by=("g",)), Products(of=("x", "x"), by=("g",))):
        assert statistic.sensitivity(known, "replace-one").l1 == 0
    # the broken twin: half the sensitivity, as if a record kept its cell or its sign
    known = schema(2)
    for statistic in (STATISTICS[1], STATISTICS[3], STATISTICS[4]):
        assert largest_changes(statistic, known, "replace-one")[0] > statistic.sensitivity(known, "replace-one").l1 // 2


def test_the_scatter_stays_below_its_sensitivity_and_comes_near():
    known = Schema(columns={"y": NUMBERS["y"]})
    scatter, largest = Scatter(of="y"), 0
    for n in (1, 2, 3, 4):
        rests = combinations_with_replacement((-1, 0, 1), n - 1)
        frames = [pd.DataFrame({"y": (first, *rest)}) for rest in rests for first in (-1, 0, 1)]
        each = np.reshape([scatter.measure(Table(frame, known))[0] for frame in frames], (-1, 3))
        largest = max(largest, int((each.max(axis=1) - each.min(axis=1)).max()))
    bound = scatter.sensitivity(known, "replace-one").l1
    assert bound / 2 < largest <= bound


def test_sums_are_added_up_exactly_beyond_doubles():
    place, big = np.array([0, 0, 1]), 2**60
    assert total_by(place, np.array([big, 1, -big]), 2, big).tolist() == [big + 1, -big]


def plan(statistics, known=None, **settings):
    given = {"neighbours": "replace-one", "budget": "optimal", "amount": Fraction(1), "law": "laplace", **settings}
    return StatisticPlan(schema=known or schema(3), statistics=statistics, **given)


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


def noisy(values, known=None, **settings):
    made = plan(MIXED, known, **settings)
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
