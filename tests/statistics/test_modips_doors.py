"""What a model file of noisy statistics can't declare, and what is found out on stand-ins before anything is spent."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from small_models import of_total

from pdips import InputError, Ledger, Modips, Schema, Table
from pdips.posterior import nuts as sampling
from pdips.statistics.logistic import Logistic
from pdips.statistics.model import StatisticModel
from pdips.statistics.plan import SHIPPED, StatisticPlan, shipped
from pdips.statistics.statistic import Counts, Products, Scatter, Sums

SCHEMA = Schema.model_validate(
    {"columns": {"y": {"lower": -1, "upper": 1}, "z": {"lower": -1, "upper": 1}, "g": {"levels": ["a", "b"]}}}
)


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


class Turning(Mapping):
    """A mapping that shows other statistics at each look."""

    def __init__(self):
        self.looks = 0

    def __getitem__(self, name):
        self.looks += 1
        return Sums(of="y") if self.looks == 1 else Free()

    def __iter__(self):
        return iter(["total"])

    def __len__(self):
        return 1


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


def build_mean(given, schema):
    with pm.Model() as model:
        pm.Normal("mean", 0, 1)
    return model


def draw_records(draw, records, schema, rng):
    return {"y": np.zeros(records.n), "z": np.zeros(records.n), "g": np.zeros(records.n, dtype=int)}


def model_of(statistics, build=build_mean, draw=draw_records):
    return StatisticModel(lambda schema: statistics, build, draw, "some model")


def spent_when_refused(model, tmp_path, match, **settings):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.set_total(5)
    with pytest.raises(InputError, match=match):
        Modips(epsilon=1, model=model, **settings).release(table(), ledger=ledger)
    return ledger.summary().spent_epsilon


SAID = {
    "method of an instance": "attributes that a Sums doesn't have",
    "name that is no text": "3, which is no name of a statistic",
    "name of another type": "'total', which is no name of a statistic",
    "column of another type": "'total': of must be the name of a column",
    "text for columns": "'cells': by must be names of columns",
    "columns of another type": "'cells': by must be names of columns",
    "three columns": "Products multiplies two columns.*got 3",
    "one column": "Products multiplies two columns.*got 1",
    "kappa of another type": "'fit': kappa must be a number",
    "nothing": "at least one",
    "no mapping": "at least one",
}
"""What is said of each; of the others, that they are none of the statistics that there are."""


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_shipped_statistic_is_refused_before_the_charge(name, tmp_path):
    said = SAID.get(name, "which is none of Counts, Sums, Products")
    assert spent_when_refused(model_of(BAD[name]), tmp_path, said) == 0


@pytest.mark.parametrize("statistics", [each for name, each in BAD.items() if "column" not in name])
def test_a_plan_takes_nothing_else_either(statistics):
    settings = {"schema": SCHEMA, "neighbours": "replace-one", "budget": "equal", "law": "laplace"}
    with pytest.raises(InputError):
        StatisticPlan(statistics=statistics, amount=Fraction(1), **settings)


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


def test_a_mapping_is_read_once():
    assert shipped(Turning()) == {"total": Sums(of="y")}


def test_a_budget_is_read_once():
    class Growing(dict):
        def items(self):
            self.looks = getattr(self, "looks", 0) + 1
            return [("total", "1/2" if self.looks == 1 else 1), ("squares", "1/2")]

    statistics = {"total": Sums(of="y"), "squares": Products(of=("y", "y"))}
    made = Modips(epsilon=1, model=model_of(statistics), budget=Growing(total=1, squares=1))
    plan = made.design(SCHEMA)
    assert sum(plan.shares.values()) == 1
    assert plan.shares == plan.shares == {"total": Fraction(1, 2), "squares": Fraction(1, 2)}


@pytest.mark.parametrize(("name", "settings"), [("n", {}), ("records", {"neighbours": "add-remove", "n_records": 20})])
def test_names_that_mean_the_number_of_records(name, settings):
    with pytest.raises(InputError, match="rename that statistic"):
        Modips(epsilon=1, model=model_of({name: Sums(of="y")}), **settings).design(SCHEMA)


TOTAL = {"total": Sums(of="y")}


right = of_total()
infinite = of_total(beside=lambda mean: pm.Potential("never", pm.math.log(pm.math.switch(mean > 5, 1.0, 0.0))))
no_gradient = of_total(beside=lambda mean: pm.Potential("kink", pm.math.sqrt(abs(mean))))
wrong_shape = of_total(lambda given: pm.Normal("mean", 0, 1, shape=3))
discrete = of_total(lambda given: pm.Normal("mean", pm.Poisson("k", 3), 1))


def no_such_draw(draw, records, schema, rng):
    return {"y": draw["means"] * np.ones(records.n)}


def no_numbers(draw, records, schema, rng):
    return draw_records(draw, records, schema, rng) | {"y": np.array(["x"] * records.n)}


LATE = {
    "density": (infinite, draw_records, {}, "is not a finite number"),
    "gradient": (no_gradient, draw_records, {}, "is not a finite number"),
    "shape": (wrong_shape, draw_records, {}, "some model"),
    "draw_records": (right, no_such_draw, {}, "draw_records failed: KeyError"),
    "records": (right, no_numbers, {}, "some model"),
    "numpyro": (right, draw_records, {"nuts": "numpyro"}, "numpyro"),
    "tune": (right, draw_records, {"tune": 3}, "tune must be at least"),
    "discrete": (discrete, draw_records, {"nuts": "nutpie"}, "discrete"),
}


@pytest.mark.parametrize(("build", "draw", "settings", "match"), LATE.values(), ids=LATE)
def test_what_would_fail_after_the_charge_fails_before_it(build, draw, settings, match, tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "find_spec", lambda name: None)
    assert spent_when_refused(model_of(TOTAL, build, draw), tmp_path, match, **settings) == 0


def test_a_right_model_passes():
    made = Modips(epsilon=1, model=model_of(TOTAL, right))
    assert [spend.epsilon for spend in made.spends(SCHEMA)] == [1]


@pytest.mark.parametrize("n", [3, 1_000])
def test_normal_moments_releases_under_gaussian_noise(n):
    schema = Schema.model_validate({"columns": {"y": {"lower": -5, "upper": 5}}})
    rng = np.random.default_rng(n)
    normal = Table(pd.DataFrame({"y": np.clip(rng.standard_normal(n), -5, 5)}), schema)
    release, _ = Modips(epsilon=1, model="normal_moments", kind="zcdp").release(normal, rng=rng)
    assert len(release.sets[0]) == n


@pytest.mark.parametrize("n", [1, 2_500])
@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
def test_what_a_model_is_tried_on_is_measured_and_noised_like_a_table(n, neighbours):
    settings = {"neighbours": neighbours, "n_records": 9 if neighbours == "add-remove" else None}
    plan = Modips(epsilon=1, model=model_of(TOTAL | {"cells": Counts(by=("g",))}), **settings).design(SCHEMA)
    tried = plan.tried(n)
    assert tried.n_records == (n if neighbours == "replace-one" else None)
    assert [part.scale for part in tried.parts] == [part.scale for part in plan.parts]
    if neighbours == "replace-one":
        assert tried.values["cells"].sum() == pytest.approx(n, abs=2)
