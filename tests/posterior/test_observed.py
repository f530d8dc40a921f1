"""Models that observe a function of a column: synthetic records are columns again, or the model is refused.

Kolmogorov-Smirnov checks: seed fixed, false alarm 1e-6; the broken twin must score below 1e-9.
"""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from laws import ACCEPT, REJECT
from scipy import special, stats
from small_models import about, blueprint, grid_of, written

from pdips import CensoredPosterior, InputError, PseudoPosterior, Schema, Table
from pdips.posterior import private_reference as stages

PAY = Schema.model_validate(
    {"columns": {"x": {"lower": -1, "upper": 1, "public": True}, "pay": {"lower": 1, "upper": 100_000}}}
)
LOW, SPAN = 1.0, 99_999.0


def line(data):
    return pm.Normal("a", 7, 2) + pm.Normal("b", 0, 1) * data["x"]


def observing(function):
    """A normal law of a function of a column."""
    return about(parameter=line, name="pay", observed=function, sd=0.5)


on_log_scale = observing(lambda data: pt.log(data["pay"]))


lognormal = written(lambda data: pm.LogNormal("pay", line(data), 0.5, observed=data["pay"]))
"""The same law of the same column, as PyMC has it."""


def share(data):
    return (data["pay"] - LOW) / SPAN


INVERTIBLE = {
    "pt.log": (lambda data: pt.log(data["pay"]), np.exp),
    "affine": (lambda data: (data["pay"] - 3) / 5 + 1, lambda v: 5 * (v - 1) + 3),
    "falling": (lambda data: 7 - data["pay"] / 2, lambda v: 2 * (7 - v)),
    "log of affine": (lambda data: 2 * pt.log(data["pay"] / 10 + 4) - 1, lambda v: 10 * (np.exp((v + 1) / 2) - 4)),
    "logit": (lambda data: pm.math.logit(share(data)), lambda v: LOW + SPAN * special.expit(v)),
}


@pytest.mark.parametrize("name", INVERTIBLE)
def test_drawn_values_are_taken_back_to_the_column(name):
    function, inverse = INVERTIBLE[name]
    made = blueprint(observing(function), PAY).transformations["pay"]
    values = np.geomspace(1.0001, 99_999, 301).reshape(7, 43)
    observed = made.forward(values.ravel()).reshape(7, 43)
    np.testing.assert_allclose(made.back(observed), values, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(made.back(observed), inverse(observed), rtol=1e-9, atol=1e-9)


def test_what_is_drawn_outside_of_the_bounds_is_moved_to_them():
    made = blueprint(on_log_scale, PAY).transformations["pay"]
    np.testing.assert_array_equal(made.back(np.array([-np.inf, -1, 30, np.inf])), [1, 1, 100_000, 100_000])
    assert np.isnan(made.back(np.array([np.nan]))).all()
    falling = blueprint(observing(lambda data: -data["pay"]), PAY).transformations["pay"]
    np.testing.assert_array_equal(falling.back(np.array([5.0, -1e9])), [1, 100_000])


def drawn(made):
    parameters = {"a": np.array(7.0), "b": np.array(0.0)}
    return made.draw(parameters, 4_000, {"x": np.zeros(4_000)}, np.random.default_rng(1))["pay"]


def test_records_have_the_law_of_the_column():
    law = stats.lognorm(0.5, scale=np.exp(7)).cdf
    assert stats.kstest(drawn(blueprint(on_log_scale, PAY)), law).pvalue > ACCEPT
    assert stats.kstest(drawn(blueprint(lognormal, PAY)), law).pvalue > ACCEPT
    twin = blueprint(on_log_scale, PAY)
    vars(twin)["transformations"] = {}  # the broken twin: what the model observes is taken for the column
    assert stats.kstest(drawn(twin), law).pvalue < REJECT


@pytest.fixture
def few_simulated(monkeypatch):
    monkeypatch.setattr(stages, "SIMULATED", 64)


def level(law, function):
    return written(lambda data: law("pay", pm.Normal("a", 7, 2), 0.5, observed=function(data["pay"])))


def test_a_release_on_the_log_scale_is_that_of_the_lognormal_model(few_simulated):
    schema = Schema.model_validate({"columns": {"pay": {"lower": 1, "upper": 100_000}}})
    pay = np.clip(np.random.default_rng(0).lognormal(7.3, 0.5, 150), 1, 100_000)
    table = Table(pd.DataFrame({"pay": pay}), schema)
    cells, sets = [], []
    for model in (level(pm.Normal, pt.log), level(pm.LogNormal, lambda column: column)):
        made = CensoredPosterior(epsilon=2, model=model, reference={"a": 7.0})
        stage, scored = grid_of(made, table)
        assert np.min(stage.simulated["pay"]) > 100  # simulated records are in the column's unit
        cells.append(np.exp(scored.log_probabilities()))
        sets.append(made.release(table, rng=np.random.default_rng(3))[0].sets[0]["pay"])
    np.testing.assert_allclose(cells[0], cells[1], atol=1e-9)
    np.testing.assert_allclose(sets[0], sets[1], rtol=1e-9)
    assert 0.5 < sets[0].mean() / pay.mean() < 2  # it was 3.6 for 1,853


PAIR = Schema.model_validate(
    {"columns": {"x": {"lower": 1, "upper": 50}, "y": {"lower": 0, "upper": 1}, "k": {"levels": [0, 1, 2]}}}
)


def together(observed, names=("x", "y")):
    def build(data, schema):
        with pm.Model(coords={"record": range(data.n_records), "column": names}) as model:
            mean = pm.Normal("mean", 0, 1, dims="column")
            pm.Normal("both", mean, 1, dims=("record", "column"), observed=observed(data))
            pm.Binomial("k", 2, 0.5, observed=data["k"])
        return model

    return build


def test_several_columns_in_one_variable_are_transformed_one_by_one():
    plain = blueprint(together(lambda data: data.matrix(["x", "y"])), PAIR)
    assert plain.transformations == {}
    logs = blueprint(together(lambda data: pt.stack([pt.log(data["x"]), data["y"]], axis=1)), PAIR)
    assert list(logs.transformations) == ["x"]
    with pytest.raises(InputError, match="can't be brought back to column 'x'"):
        blueprint(together(lambda data: data.matrix(["y", "x"])), PAIR)


def test_a_column_in_another_number_type_is_the_column_itself():
    schema = Schema.model_validate(
        {"columns": {"k": {"levels": ["a", "b"]}, "n": {"lower": 0, "upper": 9, "integer": True}}}
    )

    @written
    def build(data):
        theta = pm.Normal("theta")
        pm.Normal("n", theta, 1, observed=data["n"])
        pm.Bernoulli("k", logit_p=theta, observed=pt.cast(data["k"], "float64"))

    assert blueprint(build, schema).transformations == {}


def test_counts_on_the_log_scale_come_back_as_whole_numbers():
    schema = Schema.model_validate({"columns": {"n": {"lower": 0, "upper": 90, "integer": True}}})

    build = about(name="n", observed=lambda data: pt.log1p(data["n"]))
    made = blueprint(build, schema).transformations["n"]
    np.testing.assert_array_equal(np.rint(made.back(np.log1p(np.arange(91)))), np.arange(91))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda data: (data["pay"] - 50) ** 2, "rises or falls all the way between its bounds"),
        (lambda data: pt.round(data["pay"]), "can't be brought back to column 'pay'"),
        (lambda data: pt.cast(data["pay"], "int64"), "whole numbers need integer = true"),
        (lambda data: data["pay"] - data["pay"].mean(), "can't be brought back to column 'pay'"),
        (lambda data: pt.cumsum(data["pay"]), "can't be brought back to column 'pay'"),
        (lambda data: pt.log(data["pay"] - 5), "a logarithm needs bounds above 0"),
        (lambda data: pt.log(data["pay"]) - data["x"], "reads column 'x'; give the variable the name of its column"),
        (lambda data: data["x"], "reads column 'x'; give the variable the name of its column"),
        (lambda data: np.ones(data.n_records), r"is no column but numbers made beforehand.*observed=data\['pay'\]"),
    ],
)
def test_what_cannot_be_brought_back_is_refused_with_the_line_to_write(function, says):
    with pytest.raises(InputError, match=says) as caught:
        PseudoPosterior(epsilon=1, model=observing(function)).spends(PAY)
    assert "\n" not in str(caught.value)
