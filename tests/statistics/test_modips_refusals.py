"""Plug-in laws against scipy, few records, models that aren't reused wrongly, and what is refused before the charge."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytest
from scipy import stats
from small_models import of_total

from pdips import InputError, Ledger, Modips, Schema, Table
from pdips.statistics import model as statistic_fit
from pdips.statistics.model import StatisticModel, as_statistic_model
from pdips.statistics.noisy_model import Evidence
from pdips.statistics.plan import LEAST_RECORDS, StatisticPlan, settle
from pdips.statistics.statistic import Counts, Products, Sums

COIN = {"a": {"levels": ["heads", "tails"]}}
NUMBERS = {"y": {"lower": -1, "upper": 1}, "z": {"lower": -1, "upper": 1}}
STEPS = 4096


def schema_of(columns, **rest):
    return Schema.model_validate({"columns": columns, **rest})


def given_of(statistics, values, columns, likelihood="plug-in", n=30, neighbours="replace-one"):
    settings = {"schema": schema_of(columns), "neighbours": neighbours, "statistics": statistics, "budget": "equal"}
    plan = StatisticPlan(**settings, amount=Fraction(1), law="laplace")
    whole = {name: np.asarray(each, dtype=np.int64) for name, each in values.items()}
    return Evidence(replace(plan.tried(), n_records=n, values=whole), likelihood)


def logs(model, points):
    compiled = model.compile_fn(model.logp(jacobian=False), inputs=model.value_vars, mode="FAST_COMPILE")
    return np.array([float(compiled({**model.initial_point(random_seed=0), **point})) for point in points])


def assert_same_up_to_a_constant(found, wanted):
    np.testing.assert_allclose(found - found[0], np.asarray(wanted) - wanted[0], rtol=1e-8, atol=1e-8)
    assert np.ptp(found) > 0.1  # or nothing was compared


@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
def test_a_plug_in_count_is_binomial(neighbours):
    n = 30 if neighbours == "replace-one" else None
    given = given_of({"counts": Counts(by=("a",))}, {"counts": [9, 21]}, COIN, n=n, neighbours=neighbours)
    model = as_statistic_model("bernoulli").built(given)
    shares = np.array([0.1, 0.3, 0.8])
    name = model.value_vars[0].name
    found = logs(model, [{name: np.log(each / (1 - each))} for each in shares])
    assert_same_up_to_a_constant(found, stats.binom.logpmf(9, 30, shares) + stats.beta.logpdf(shares, 1 / 3, 1 / 3))


def test_plug_in_sums_and_scatter_have_the_laws_of_scipy():
    statistics = {"sums": Sums(of="y"), "yy": Products(of=("y", "y")), "zy": Products(of=("z", "y"))}
    statistics["zz"] = Products(of=("z", "z"))
    values = {"sums": [3 * STEPS], "yy": [8 * STEPS**2], "zy": [2 * STEPS**2], "zz": [6 * STEPS**2]}
    given = given_of(statistics, values, NUMBERS)
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=3)
        given.normal("sums", 30 * x[0], pm.math.exp(x[1]), times=given.n)
        chol = pm.math.stack([pm.math.stack([pm.math.exp(x[1]), 0.0]), pm.math.stack([x[2], 1.0])])
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
        given = given_of({"counts": Counts(by=("a",))}, {"counts": counts}, COIN)
        with pm.Model() as model:
            pm.Normal("x", 0, 1)
            given.dirichlet_multinomial("counts", 0.7)
        found += logs(model, [{}]).tolist()
        wanted.append(stats.dirichlet_multinomial.logpmf(counts, [0.7, 0.7], 30))
    assert_same_up_to_a_constant(np.array(found), wanted)


@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
@pytest.mark.parametrize("counts", [[0, 0], [-7, -7], [-40, 3]])
def test_counts_that_noise_made_impossible_are_settled(counts, neighbours):
    n = 30 if neighbours == "replace-one" else None
    given = given_of({"counts": Counts(by=("a",))}, {"counts": counts}, COIN, n=n, neighbours=neighbours)
    used = settle(given.measured)["counts"]
    assert (used >= 0).all()
    assert used.sum() > 0
    assert n is None or used.sum() == pytest.approx(n)


def test_a_noisy_total_by_itself_is_at_least_two():
    given = given_of({"n": Counts()}, {"n": [-5]}, COIN, n=None, neighbours="add-remove")
    assert given["n"].tolist() == [LEAST_RECORDS]
    aware = Evidence(given.measured)
    with pm.Model() as model:
        total = aware.dirichlet_multinomial("n", 1.0)
    at = pytensor.function([], total, givens={model.free_RVs[0]: np.array([-200.0])}, mode="FAST_COMPILE")
    assert at().min() >= LEAST_RECORDS


def mean_model(build):
    def draw_records(draw, records, schema, rng):
        return {"y": np.zeros(records.n)}

    return StatisticModel(lambda schema: {"total": Sums(of="y")}, build, draw_records, "some model")


def one_number(n=40):
    y = np.random.default_rng(0).uniform(-1, 1, n)
    return Table(pd.DataFrame({"y": y}), schema_of({"y": NUMBERS["y"]}))


@pytest.mark.parametrize(
    ("model", "table", "message"),
    [
        (mean_model(of_total(lambda given: pm.Flat("mean"))), one_number(), "the prior of 'mean' is improper"),
        ("normal_moments", one_number(1), "too few records for this model"),
        ("bernoulli", one_number(), "'y' is numeric"),
    ],
)
@pytest.mark.parametrize("likelihood", ["noise-aware", "plug-in"])
def test_what_can_not_be_modelled_is_refused_before_the_charge(model, table, message, likelihood, tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set_total(5)
    with pytest.raises(InputError, match=message):
        Modips(epsilon=1, model=model, likelihood=likelihood).release(table, ledger=ledger)
    assert ledger.summary().spent_epsilon == 0


def test_a_regression_with_more_effects_than_records_is_refused():
    columns = {"x": NUMBERS["z"] | {"public": True}, "y": NUMBERS["y"]}
    table = Table(pd.DataFrame({"x": [0.1, 0.5], "y": [0.2, 0.3]}), schema_of(columns))
    with pytest.raises(InputError, match="too few records for this model"):
        Modips(epsilon=1, model="linear_regression").release(table)


@pytest.mark.parametrize(
    ("model", "columns", "rest", "message"),
    [
        (
            "multinomial",
            COIN | {"b": {"levels": ["x", "y"]}},
            {"impossible": [{"a": ["heads"], "b": ["x"]}]},
            r"\[\[impossible\]\]",
        ),
        ("normal_moments", {"y": NUMBERS["y"] | {"missing": True}}, {}, "'y'"),
    ],
)
def test_schemas_that_no_model_describes_are_refused(model, columns, rest, message):
    with pytest.raises(InputError, match=message):
        Modips(epsilon=1, model=model).spends(schema_of(columns, **rest))


def test_records_outside_the_bounds_are_no_table():
    with pytest.raises(InputError, match="'y'"):
        Table(pd.DataFrame({"y": [0.0, 1.5]}), schema_of({"y": NUMBERS["y"]}))


@pytest.mark.parametrize(
    ("build", "reused"),
    [
        (of_total(), True),
        # a model file that makes a constant of a noisy number
        (of_total(lambda given: pm.Normal("mean", float(given["total"][0]), 1)), False),
    ],
)
def test_a_compiled_model_serves_other_numbers_only_where_they_are_data(build, reused):
    model, found = mean_model(build), []
    for total in (3, -2):
        given = given_of({"total": Sums(of="y")}, {"total": [total * STEPS]}, {"y": NUMBERS["y"]}, "noise-aware")
        found.append(statistic_fit.prepared(model, given)[1])
    assert (found[0] is found[1]) == reused


def test_nuts_is_tried_on_more_cells_than_numpy_adds_at_once():
    number = {"lower": -1, "upper": 1}
    schema = Schema.model_validate({"columns": {"g": {"levels": list(range(24))}, "y": number, "z": number}})
    assert Modips(epsilon=1, model="glom", nuts="nutpie").privacy_loss(schema).epsilon == 1
