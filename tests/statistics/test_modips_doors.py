"""What a model file of noisy statistics can't declare, and what is found out on stand-ins before anything is spent."""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytest
from scipy import stats
from small_models import written
from tables import cases, refuses

from pdips import InputError, Modips, Schema, Table
from pdips.posterior import nuts as sampling
from pdips.statistics import model as statistic_fit
from pdips.statistics.logistic import Logistic
from pdips.statistics.model import StatisticModel, as_statistic_model
from pdips.statistics.noisy_model import Evidence
from pdips.statistics.plan import LEAST_RECORDS, SHIPPED, StatisticPlan, settle, shipped
from pdips.statistics.statistic import Counts, Products, Scatter, Sums

SCHEMA = Schema(columns={"y": {"lower": -1, "upper": 1}, "z": {"lower": -1, "upper": 1}, "g": {"levels": ["a", "b"]}})


def table(n=50):
    rng = np.random.default_rng(0)
    frame = {"y": rng.uniform(-1, 1, n), "z": rng.uniform(-1, 1, n), "g": rng.choice(["a", "b"], n)}
    return Table(pd.DataFrame(frame), SCHEMA)


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


class Name(str):
    """A name that isn't what it looks like."""

    __slots__ = ()


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
    "kappa of another type": {"fit": Logistic(outcome="g", predictors=("y",), kappa=np.float64(30))},
    "nothing": {},
    "no mapping": [Sums(of="y")],
}


@written
def build_mean(given):
    pm.Normal("mean", 0, 1)


def draw_records(draw, records, schema, rng):
    kinds = {name: int if column.is_categorical else float for name, column in schema.columns.items()}
    return {name: np.zeros(records.n, dtype=kind) for name, kind in kinds.items()}


def model_of(statistics, build=build_mean, draw=draw_records):
    return StatisticModel(lambda schema: statistics, build, draw, "some model")


def spent_when_refused(model, ledger, match, given=None, **settings):
    ledger.set_total(5)
    given = table() if given is None else given
    refuses(match, lambda: Modips(epsilon=1, model=model, **settings).release(given, ledger=ledger))
    return ledger.summary().spent_epsilon


SAID = cases(__file__, "said")
"""What is said of each; of the others, that they are none of the statistics that there are."""


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_shipped_statistic_is_refused_before_the_charge(name, ledger):
    said = SAID.get(name, "which is none of Counts, Sums, Products")
    assert spent_when_refused(model_of(BAD[name]), ledger, said) == 0


@pytest.mark.parametrize("statistics", [each for name, each in BAD.items() if "column" not in name])
def test_a_plan_takes_nothing_else_either(statistics):
    settings = {"schema": SCHEMA, "neighbours": "replace-one", "budget": "equal", "law": "laplace"}
    refuses("", StatisticPlan, statistics=statistics, amount=Fraction(1), **settings)


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
    assert plan.shares == plan.shares == {"total": Fraction(1, 2), "squares": Fraction(1, 2)}
    assert shipped(Turning({"total": Sums(of="y")}, {"total": Free()})) == {"total": Sums(of="y")}


@pytest.mark.parametrize(("name", "settings"), [("n", {}), ("records", {"neighbours": "add-remove", "n_records": 20})])
def test_names_that_mean_the_number_of_records(name, settings):
    with pytest.raises(InputError, match="rename that statistic"):
        Modips(epsilon=1, model=model_of({name: Sums(of="y")}), **settings).design(SCHEMA)


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


def fails(given, schema):
    raise ValueError("no such thing")


def no_numbers(draw, records, schema, rng):
    return draw_records(draw, records, schema, rng) | {"y": np.array(["x"] * records.n)}


LATE = {
    "build_model": (fails, draw_records, {}, "build_model failed: ValueError: no such thing"),
    "density": (infinite, draw_records, {}, "is not a finite number"),
    "gradient": (no_gradient, draw_records, {}, "is not a finite number"),
    "shape": (wrong_shape, draw_records, {}, "some model"),
    "draw_records": (right, lambda draw, *given: {"y": draw["means"]}, {}, "draw_records failed: KeyError"),
    "records": (right, no_numbers, {}, "some model"),
    "numpyro": (right, draw_records, {"nuts": "numpyro"}, "numpyro"),
    "tune": (right, draw_records, {"tune": 3}, "tune must be at least"),
    "discrete": (discrete, draw_records, {"nuts": "nutpie"}, "discrete"),
}


@pytest.mark.parametrize(("build", "draw", "settings", "match"), LATE.values(), ids=LATE)
def test_what_would_fail_after_the_charge_fails_before_it(build, draw, settings, match, ledger, monkeypatch):
    monkeypatch.setattr(sampling, "find_spec", lambda name: None)
    assert spent_when_refused(model_of(TOTAL, build, draw), ledger, match, **settings) == 0


def test_a_right_model_passes():
    assert [spend.epsilon for spend in Modips(epsilon=1, model=model_of(TOTAL, right)).spends(SCHEMA)] == [1]


@pytest.mark.parametrize("n", [3, 1_000])
def test_normal_moments_releases_under_gaussian_noise(n):
    schema = Schema(columns={"y": {"lower": -5, "upper": 5}})
    rng = np.random.default_rng(n)
    normal = Table(pd.DataFrame({"y": np.clip(rng.standard_normal(n), -5, 5)}), schema)
    release, _ = Modips(epsilon=1, model="normal_moments", kind="zcdp").release(normal, rng=rng)
    assert len(release.sets[0]) == n


@pytest.mark.parametrize("n", [1, 2_500])
def test_what_a_model_is_tried_on_is_measured_and_noised_like_a_table(n, neighbours):
    settings = {"neighbours": neighbours, "n_records": 9 if neighbours == "add-remove" else None}
    plan = Modips(epsilon=1, model=model_of(TOTAL | {"cells": Counts(by=("g",))}), **settings).design(SCHEMA)
    tried = plan.tried(n)
    assert tried.n_records == (n if neighbours == "replace-one" else None)
    assert [part.scale for part in tried.parts] == [part.scale for part in plan.parts]
    if neighbours == "replace-one":
        assert tried.values["cells"].sum() == pytest.approx(n, abs=2)


# Plug-in laws against scipy, few records, models that aren't reused wrongly, and what is refused before the


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


def test_a_plug_in_count_is_binomial(neighbours):
    n = 30 if neighbours == "replace-one" else None
    given = given_of({"counts": Counts(by=("a",))}, {"counts": [9, 21]}, COIN, n=n, neighbours=neighbours)
    model = as_statistic_model("bernoulli").built(given)
    shares = np.array([0.1, 0.3, 0.8])
    found = logs(model, [{model.value_vars[0].name: np.log(each / (1 - each))} for each in shares])
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


@written
def improper(given):
    law(given, pm.Flat("mean"))


def one_number(n=40):
    return Table(pd.DataFrame({"y": np.random.default_rng(0).uniform(-1, 1, n)}), schema_of({"y": NUMBERS["y"]}))


def two_records():
    columns = {"x": NUMBERS["z"] | {"public": True}, "y": NUMBERS["y"]}
    return Table(pd.DataFrame({"x": [0.1, 0.5], "y": [0.2, 0.3]}), schema_of(columns))


@pytest.mark.parametrize(
    ("model", "table", "message"),
    [
        (model_of(TOTAL, improper), one_number(), "the prior of 'mean' is improper"),
        ("normal_moments", one_number(1), "too few records for this model"),
        ("linear_regression", two_records(), "too few records for this model"),
        ("bernoulli", one_number(), "'y' is numeric"),
    ],
)
@pytest.mark.parametrize("likelihood", ["noise-aware", "plug-in"])
def test_what_can_not_be_modelled_is_refused_before_the_charge(model, table, message, likelihood, ledger):
    assert spent_when_refused(model, ledger, message, table, likelihood=likelihood) == 0


def test_schemas_that_no_model_describes_are_refused():
    impossible = schema_of(COIN | {"b": {"levels": ["x", "y"]}}, impossible=[{"a": ["heads"], "b": ["x"]}])
    refuses(r"\[\[impossible\]\]", Modips(epsilon=1, model="multinomial").spends, impossible)
    gap = schema_of({"y": NUMBERS["y"] | {"missing": True}})
    refuses("'y'", Modips(epsilon=1, model="normal_moments").spends, gap)


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
        given = given_of(TOTAL, {"total": [total * STEPS]}, {"y": NUMBERS["y"]}, "noise-aware")
        found.append(statistic_fit.prepared(model, given)[1])
    assert (found[0] is found[1]) == reused


def test_nuts_is_tried_on_more_cells_than_numpy_adds_at_once():
    number = {"lower": -1, "upper": 1}
    schema = Schema(columns={"g": {"levels": list(range(24))}, "y": number, "z": number})
    assert Modips(epsilon=1, model="glom", nuts="nutpie").privacy_loss(schema).epsilon == 1
