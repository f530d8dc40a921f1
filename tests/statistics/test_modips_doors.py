"""What a model file of noisy statistics can't declare, what is found out before
anything is spent, and budgets.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytest
from scipy import stats
from scipy.optimize import minimize
from small_models import written
from tables import bits, cases, filled, refuses

from pdips import Modips, Schema, Table
from pdips.errors import PlanError
from pdips.posterior import nuts as sampling
from pdips.privacy.answers import PublicFacts
from pdips.privacy.curator import Drawing, PublishedAnswers
from pdips.statistics import model as statistic_fit
from pdips.statistics.logistic import Logistic
from pdips.statistics.model import StatisticModel, as_statistic_model
from pdips.statistics.noisy_model import Evidence
from pdips.statistics.plan import (
    LEAST_RECORDS,
    LEAST_VARIANCE,
    SHIPPED,
    StatisticPlan,
    nearest_positive,
    shipped,
)
from pdips.statistics.statistic import Counts, Products, Scatter, Sums, total_by

NUMBER = {"lower": -1, "upper": 1}
SCHEMA = Schema(columns={"y": NUMBER, "z": NUMBER, "g": {"levels": ["a", "b"]}})
ONE_NUMBER = Schema(columns={"y": NUMBER})
REGRESSION = Schema(columns={"z": NUMBER | {"public": True}, "y": NUMBER})


def table(n=50, schema=SCHEMA):
    return Table(filled(schema, n, np.random.default_rng(0)), schema)


class Free:
    """The first records, for nothing."""

    def sensitivity(self, schema, neighbours):
        return 0

    def measure(self, table):
        return np.rint(1000 * table.frame["y"].to_numpy()[:5]).astype(np.int64)


class Larger(Sums):
    """A sum a thousand times over, at the price of the sum."""

    def measure(self, table):
        return 1000 * super().measure(table)


def patched():
    found = Sums(of="y")
    object.__setattr__(found, "measure", Larger(of="y").measure)
    return found


Name = type("Name", (str,), {})
"""Of names that aren't what they look like."""


@dataclass(frozen=True)
class Lookalike:
    of: str = "y"


class Turning(dict):
    """A mapping that shows something else at each look."""

    def __init__(self, *shown):
        super().__init__(shown[0])
        self.shown = list(shown)

    def items(self):
        return self.shown.pop(0).items()


BAD = {
    "declared sensitivity of 0": {"first": Free(), "total": Sums(of="y")},
    "subclass": {"total": Larger(of="y")},
    "method of an instance": {"total": patched()},
    "class": {"total": Sums},
    "look-alike": {"total": Lookalike()},
    "no statistic": {"total": 3},
    "name that is no text": {3: Sums(of="y")},
    "name of another type": {Name("total"): Sums(of="y")},
    "column of another type": {"total": Sums(of=Name("y"))},
    "text for columns": {"cells": Counts(by="g")},
    "columns of another type": {"cells": Counts(by=(Name("g"),))},
    "three columns": {"three": Products(of=("y", "z", "y"))},
    "one column": {"one": Products(of=("y",))},
    "kappa of another type": {
        "fit": Logistic(outcome="g", predictors=("y",), kappa=np.float64(30))
    },
    "nothing": {},
    "no mapping": [Sums(of="y")],
}


@written
def build_mean(given):
    pm.Normal("mean", 0, 1)


def draw_records(draw, records, schema, rng):
    kinds = {
        name: int if column.is_categorical else float
        for name, column in schema.columns.items()
    }
    return {name: np.zeros(records.n, dtype=kind) for name, kind in kinds.items()}


def model_of(statistics, build=build_mean, draw=draw_records):
    return StatisticModel(lambda schema: statistics, build, draw, "some model")


def plan_of(statistics, schema=SCHEMA, **settings):
    given = {
        "neighbours": "replace-one",
        "budget": "equal",
        "amount": Fraction(1),
        "law": "laplace",
    } | settings
    return StatisticPlan(schema=schema, statistics=statistics, **given)


def spent_when_refused(model, ledger, match, given=None, **settings):
    ledger.set_total(5)
    given = table() if given is None else given
    refuses(
        match,
        lambda: Modips(epsilon=1, model=model, **settings).release(
            given, ledger=ledger
        ),
    )
    return ledger.summary().spent_epsilon


SAID = cases(__file__, "said")
"""What is said of each; of the others, that they are none of the statistics that there
are.
"""


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_shipped_statistic_is_refused_before_the_charge(name, ledger):
    said = SAID.get(name, "which is none of Counts, Sums, Products")
    assert spent_when_refused(model_of(BAD[name]), ledger, said) == 0
    refuses(said, plan_of, BAD[name])


def test_shipped_statistics_pass_and_are_made_anew():
    given = {
        "cells": Counts(by=["g"]),
        "total": Sums(of="y"),
        "both": Products(of=["y", "z"]),
        "scatter": Scatter(of="y"),
        "fit": Logistic(outcome="g", predictors=("y",), kappa="30"),
    }
    found = shipped(given)
    assert {type(each) for each in found.values()} == set(SHIPPED)
    assert found["cells"] == Counts(by=("g",))
    assert all(found[name] is not each for name, each in given.items())


def test_mappings_of_statistics_and_budgets_are_read_once():
    statistics = {"total": Sums(of="y"), "squares": Products(of=("y", "y"))}
    budget = Turning({"total": "1/2", "squares": "1/2"}, {"total": 1, "squares": "1/2"})
    plan = Modips(epsilon=1, model=model_of(statistics), budget=budget).design(SCHEMA)
    assert sum(plan.shares.values()) == 1
    assert (
        plan.shares
        == plan.shares
        == {"total": Fraction(1, 2), "squares": Fraction(1, 2)}
    )
    assert shipped(Turning({"total": Sums(of="y")}, {"total": Free()})) == {
        "total": Sums(of="y")
    }


@pytest.mark.parametrize(
    ("name", "settings"),
    [("n", {}), ("records", {"neighbours": "add-remove", "n_records": 20})],
)
def test_names_that_mean_the_number_of_records(name, settings):
    made = Modips(epsilon=1, model=model_of({name: Sums(of="y")}), **settings)
    refuses("rename that statistic", made.design, SCHEMA)


TOTAL = {"total": Sums(of="y")}


def law(given, mean):
    given.normal("total", given.n * mean, 0.5, times=given.n)


@written
def infinite(given):
    mean = pm.Normal("mean", 0, 1)
    law(given, mean)
    pm.Potential("never", pm.math.log(pm.math.switch(mean > 5, 1.0, 0.0)))


@written
def no_gradient(given):
    mean = pm.Normal("mean", 0, 1)
    law(given, mean)
    pm.Potential("kink", pm.math.sqrt(abs(mean)))


@written
def wrong_shape(given):
    law(given, pm.Normal("mean", 0, 1, shape=3))


@written
def right(given):
    law(given, pm.Normal("mean", 0, 1))


@written
def discrete(given):
    law(given, pm.Normal("mean", pm.Poisson("k", 3), 1))


def no_numbers(draw, records, schema, rng):
    return draw_records(draw, records, schema, rng) | {"y": np.array(["x"] * records.n)}


LATE = {
    "density": (infinite, draw_records, {}, "is not a finite number"),
    "gradient": (no_gradient, draw_records, {}, "is not a finite number"),
    "shape": (wrong_shape, draw_records, {}, "some model"),
    "draw_records": (
        right,
        lambda draw, *given: {"y": draw["means"]},
        {},
        "draw_records failed: KeyError",
    ),
    "records": (right, no_numbers, {}, "some model"),
    "numpyro": (right, draw_records, {"nuts": "numpyro"}, "numpyro"),
    "tune": (right, draw_records, {"tune": 3}, "tune must be at least"),
    "discrete": (discrete, draw_records, {"nuts": "nutpie"}, "discrete"),
}


@pytest.mark.parametrize(
    ("build", "draw", "settings", "match"), LATE.values(), ids=LATE
)
def test_what_would_fail_after_the_charge_fails_before_it(
    build, draw, settings, match, ledger, monkeypatch
):
    monkeypatch.setattr(sampling, "find_spec", lambda name: None)
    assert (
        spent_when_refused(model_of(TOTAL, build, draw), ledger, match, **settings) == 0
    )


@pytest.mark.parametrize("n", [3, 1_000])
def test_normal_moments_releases_under_gaussian_noise(n):
    schema = Schema(columns={"y": {"lower": -5, "upper": 5}})
    rng = np.random.default_rng(n)
    normal = Table(pd.DataFrame({"y": np.clip(rng.standard_normal(n), -5, 5)}), schema)
    release, _ = Modips(epsilon=1, model="normal_moments", delta="1e-6").release(
        normal, rng=rng
    )
    assert len(release.sets[0]) == n


@pytest.mark.parametrize("n", [1, 2_500])
def test_what_a_model_is_tried_on_is_measured_and_noised_like_a_table(n, neighbours):
    settings = {
        "neighbours": neighbours,
        "n_records": 9 if neighbours == "add-remove" else None,
    }
    plan = Modips(
        epsilon=1, model=model_of(TOTAL | {"cells": Counts(by=("g",))}), **settings
    ).design(SCHEMA)
    tried = plan.tried(n)
    assert tried.n_records == (n if neighbours == "replace-one" else None)
    assert [part.scale for part in tried.parts] == [part.scale for part in plan.parts]
    if neighbours == "replace-one":
        assert tried.values["cells"].sum() == pytest.approx(n, abs=2)


# Plug-in laws against scipy, few records, models that aren't reused wrongly, and what
# is refused before the


COIN = Schema(columns={"a": {"levels": ["heads", "tails"]}})
STEPS = 4096


def given_of(
    statistics, values, schema, likelihood="plug-in", neighbours="replace-one"
):
    n = 30 if neighbours == "replace-one" else None
    whole = {name: np.asarray(each, dtype=np.int64) for name, each in values.items()}
    tried = plan_of(statistics, schema, neighbours=neighbours).tried()
    return Evidence(replace(tried, n_records=n, values=whole), likelihood)


def coin(counts, neighbours="replace-one"):
    return given_of(
        {"counts": Counts(by=("a",))}, {"counts": counts}, COIN, neighbours=neighbours
    )


def logs(model, points):
    compiled = model.compile_fn(
        model.logp(jacobian=False), inputs=model.value_vars, mode="FAST_COMPILE"
    )
    return np.array(
        [
            float(compiled({**model.initial_point(random_seed=0), **point}))
            for point in points
        ]
    )


def assert_same_up_to_a_constant(found, wanted):
    np.testing.assert_allclose(
        found - found[0], np.asarray(wanted) - wanted[0], rtol=1e-8, atol=1e-8
    )
    assert np.ptp(found) > 0.1  # or nothing was compared


def test_a_plug_in_count_is_binomial(neighbours):
    model = as_statistic_model("bernoulli").built(coin([9, 21], neighbours))
    shares = np.array([0.1, 0.3, 0.8])
    found = logs(
        model,
        [{model.value_vars[0].name: np.log(each / (1 - each))} for each in shares],
    )
    assert_same_up_to_a_constant(
        found,
        stats.binom.logpmf(9, 30, shares) + stats.beta.logpdf(shares, 1 / 3, 1 / 3),
    )


def test_plug_in_sums_and_scatter_have_the_laws_of_scipy():
    statistics = {
        "sums": Sums(of="y"),
        "yy": Products(of=("y", "y")),
        "zy": Products(of=("z", "y")),
    }
    statistics["zz"] = Products(of=("z", "z"))
    values = {
        "sums": [3 * STEPS],
        "yy": [8 * STEPS**2],
        "zy": [2 * STEPS**2],
        "zz": [6 * STEPS**2],
    }
    given = given_of(statistics, values, SCHEMA)
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=3)
        given.normal("sums", 30 * x[0], pm.math.exp(x[1]), times=given.n)
        chol = pm.math.stack(
            [pm.math.stack([pm.math.exp(x[1]), 0.0]), pm.math.stack([x[2], 1.0])]
        )
        given.wishart(["yy", "zy", "zz"], df=29, chol=chol)
    points = np.array([[0.1, -0.5, 0.2], [-0.2, 0.3, -0.4], [0.0, 0.0, 0.0]])
    scatter, wanted = np.array([[8.0, 2.0], [2.0, 6.0]]), []
    for mean, log_sd, below in points:
        chol = np.array([[np.exp(log_sd), 0], [below, 1]])
        law = stats.norm.logpdf(3, 30 * mean, np.sqrt(30) * np.exp(log_sd))
        wanted.append(law + stats.wishart.logpdf(scatter, 29, chol @ chol.T))
    wanted += stats.norm.logpdf(points).sum(axis=1)
    assert_same_up_to_a_constant(logs(model, [{"x": each} for each in points]), wanted)


def test_plug_in_counts_with_a_dirichlet_prior_have_the_law_of_scipy():
    found, wanted = [], []
    for counts in ([9, 21], [1, 29], [15, 15]):
        with pm.Model() as model:
            pm.Normal("x", 0, 1)
            coin(counts).dirichlet_multinomial("counts", 0.7)
        found += logs(model, [{}]).tolist()
        wanted.append(stats.dirichlet_multinomial.logpmf(counts, [0.7, 0.7], 30))
    assert_same_up_to_a_constant(np.array(found), wanted)


@pytest.mark.parametrize("counts", [[0, 0], [-7, -7], [-40, 3]])
def test_counts_that_noise_made_impossible_are_settled(counts, neighbours):
    used = coin(counts, neighbours).used["counts"]
    assert (used >= 0).all()
    assert used.sum() > 0
    assert neighbours == "add-remove" or used.sum() == pytest.approx(30)


def test_a_noisy_total_by_itself_is_at_least_two():
    given = given_of({"n": Counts()}, {"n": [-5]}, COIN, neighbours="add-remove")
    assert given["n"].tolist() == [LEAST_RECORDS]
    aware = Evidence(given.measured)
    with pm.Model() as model:
        total = aware.dirichlet_multinomial("n", 1.0)
    at = pytensor.function(
        [], total, givens={model.free_RVs[0]: np.array([-200.0])}, mode="FAST_COMPILE"
    )
    assert at().min() >= LEAST_RECORDS


@written
def improper(given):
    law(given, pm.Flat("mean"))


@pytest.mark.parametrize(
    ("model", "table", "message"),
    [
        (
            model_of(TOTAL, improper),
            table(40, ONE_NUMBER),
            "the prior of 'mean' is improper",
        ),
        ("normal_moments", table(1, ONE_NUMBER), "too few records for this model"),
        ("linear_regression", table(2, REGRESSION), "too few records for this model"),
        ("bernoulli", table(40, ONE_NUMBER), "'y' is numeric"),
    ],
)
@pytest.mark.parametrize("likelihood", ["noise-aware", "plug-in"])
def test_what_can_not_be_modelled_is_refused_before_the_charge(
    model, table, message, likelihood, ledger
):
    assert spent_when_refused(model, ledger, message, table, likelihood=likelihood) == 0


def baked(given, schema):
    """A model file that makes a constant of a noisy number."""
    with pm.Model() as model:
        pm.Normal("mean", float(given["total"][0]), 1)
        given.normal("total", model["mean"], 0.5, times=given.n)
    return model


@pytest.mark.parametrize(("build", "reused"), [(right, True), (baked, False)])
def test_a_compiled_model_serves_other_numbers_only_where_they_are_data(build, reused):
    model, found = model_of(TOTAL, build), []
    for total in (3, -2):
        given = given_of(TOTAL, {"total": [total * STEPS]}, ONE_NUMBER, "noise-aware")
        found.append(statistic_fit.prepared(model, given)[1])
    assert (found[0] is found[1]) == reused


@pytest.mark.slow
def test_nuts_is_tried_on_more_cells_than_numpy_adds_at_once():
    schema = Schema(
        columns={"g": {"levels": list(range(24))}, "y": NUMBER, "z": NUMBER}
    )
    assert (
        Modips(epsilon=1, model="glom", nuts="nutpie").privacy_loss(schema).epsilon == 1
    )


# Budgets of statistics, and what post-processing makes of them; sensitivities are in
# tests/prices


def test_sums_are_added_up_exactly_beyond_doubles():
    place, big = np.array([0, 0, 1]), 2**60
    assert total_by(place, np.array([big, 1, -big]), 2, big).tolist() == [big + 1, -big]


NUMBERS = Schema(columns={"g": {"levels": [0, 1, 2]}, "y": NUMBER | {"integer": True}})
MIXED = {
    "counts": Counts(by=("g",)),
    "sums": Sums(of="y", by=("g",)),
    "squares": Products(of=("y", "y")),
}


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_the_optimal_budget_minimises_the_sum_of_relative_variances(law):
    made = plan_of(MIXED, NUMBERS, budget="optimal", law=law)

    def loss(logs):
        shares = dict(zip(MIXED, np.exp(logs) / np.exp(logs).sum(), strict=True))
        total = 0.0
        for name, each in MIXED.items():
            unit, spread = each.unit(made.schema), each.spread(made.schema)
            if law == "laplace":
                variance = (
                    2
                    * (
                        each.sensitivity(made.schema, "replace-one").l1
                        * unit
                        / shares[name]
                    )
                    ** 2
                )
            else:
                variance = (
                    each.sensitivity(made.schema, "replace-one").l2_squared
                    * unit**2
                    / (2 * shares[name])
                )
            total += float((variance / spread).mean())
        return total

    assert sum(made.shares.values()) == 1
    found = minimize(
        loss, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-7}
    )
    best = np.exp(found.x) / np.exp(found.x).sum()
    np.testing.assert_allclose(
        [float(made.shares[name]) for name in MIXED], best, atol=1e-4
    )
    assert loss(np.log([float(each) for each in made.shares.values()])) < loss(
        np.zeros(3)
    )


@pytest.mark.parametrize(
    "budget", cases(__file__, "a_budget_that_does_not_fit_is_refused")
)
def test_a_budget_that_does_not_fit_is_refused(budget):
    refuses(r"budget|share", plan_of, MIXED, NUMBERS, budget=budget)


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
    columns = {
        "y": {"lower": 0, "upper": 1},
        "g": {"levels": ["a"]},
        "gap": {"lower": 0, "upper": 1, "missing": True},
    }
    refuses(message, statistic.check, Schema(columns=columns))


def test_counts_that_are_all_negative_are_shared_out_evenly():
    used = given_of(
        MIXED, {"counts": [-5, -5, -5], "sums": [0, 0, 0], "squares": [0]}, NUMBERS
    ).used
    np.testing.assert_allclose(used["counts"], 10)
    used = given_of(
        MIXED,
        {"counts": [40, -3, 0], "sums": [100, -90, 3], "squares": [-500]},
        NUMBERS,
    ).used
    assert used["counts"].sum() == pytest.approx(30)
    assert (used["counts"] >= 1).all()
    assert (np.abs(used["sums"]) <= used["counts"] + 1e-12).all()
    assert used["squares"][0] <= 30 * (1 + LEAST_VARIANCE)
    good = np.array([[2.0, 0.5], [0.5, 1.0]])
    np.testing.assert_allclose(nearest_positive(good, 0.1), good)
    lifted = nearest_positive(np.array([[1.0, 2.0], [2.0, 1.0]]), 0.1)
    np.testing.assert_allclose(np.linalg.eigvalsh(lifted), [0.1, 3.0])


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_published_answers_can_be_asked_again(law):
    made = plan_of(MIXED, NUMBERS, law=law)
    frame = pd.DataFrame({"g": [0, 1, 2] * 10, "y": [-1, 0, 1] * 10})
    drawing = Drawing(made.priced(), Table(frame, made.schema), bits(1))
    measured = made.ask(drawing)
    facts = PublicFacts(30)
    again = made.ask(PublishedAnswers(made.priced(), facts, drawing.answers))
    assert again.n_records == 30
    for name, values in measured.values.items():
        np.testing.assert_array_equal(again.values[name], values)
    other = plan_of(MIXED, NUMBERS, law=law, amount=Fraction(2))
    curator = PublishedAnswers(other.priced(), facts, drawing.answers)
    refuses("other noise", other.ask, curator, error=PlanError)
