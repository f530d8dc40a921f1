"""Outcomes and ways to write them that were refused for no reason of theirs, and
refusals that name a reason.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions import transforms
from scipy.special import log_softmax
from small_models import written
from tables import refuses

from benchmarks import matrix
from pdips.data.schema import Schema
from pdips.graphs.ranges import told_ranges
from pdips.posterior.columns import stand_ins
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import Source
from pdips.scores.record_score import RecordScore

VOTES = Schema(
    columns={
        "party": {"levels": ["a", "b", "c"]},
        "age": {"lower": 18, "upper": 90, "public": True},
    }
)
CURVE = Schema(
    columns={
        "y": {"lower": -10, "upper": 10},
        "x": {"lower": 0, "upper": 10, "public": True},
    }
)
CLASSES = Schema(
    columns={
        "y": {"lower": -10, "upper": 10},
        "b": {"levels": [0, 1]},
        "x": {"lower": 0, "upper": 10, "public": True},
    }
)
N = 7


def blueprint(write, schema):
    return Blueprint(Source(written(write), "test"), schema)


def logs_of(made, point):
    """Return the log-likelihoods of stand-ins, many at once and one alone, and what
    they are made of.
    """
    values = stand_ins(made.schema, N)
    points = [np.asarray(each)[None] for each in point]
    [(_, many)] = made.likelihood.blocks(values, points)
    made.likelihood.at(points)
    alone = [made.likelihood(row)[0] for row in made.likelihood.rows(values)]
    return values, many[0], np.array(alone)


# ---- categorical outcomes with a covariate ----


def parameters():
    return pm.Normal("a", 0, 1, shape=2), pm.Normal("b", 0, 1, shape=2)


def utilities(data, axis=1):
    a, b = parameters()
    centred = (data["age"] - 50) / 20
    others = a + centred[:, None] * b
    return pt.concatenate([pt.zeros((data.n_records, 1)), others], axis=axis)


def by_columns(data):
    a, b = parameters()
    centred = (data["age"] - 50) / 20
    columns = [a[k] + b[k] * centred for k in range(2)]
    return pt.stack([pt.zeros(data.n_records), *columns], axis=1)


def normalised(data):
    odds = pt.exp(utilities(data))
    return odds / odds.sum(axis=1, keepdims=True)


def of_levels(data):
    """The same by a lookup in what is looked up."""
    a, b = parameters()
    centred = (data["age"] - 50) / 20
    whole = pt.concatenate([[0.0], a]) + centred[:, None] * pt.concatenate([[0.0], b])
    return pm.math.softmax(whole, axis=-1)


SPELLINGS = {
    "pt softmax": lambda data: {"p": pt.special.softmax(utilities(data), axis=1)},
    "pm softmax": lambda data: {"p": pm.math.softmax(utilities(data, -1), axis=-1)},
    "logit_p": lambda data: {"logit_p": utilities(data)},
    "by columns": lambda data: {"p": pm.math.softmax(by_columns(data), axis=1)},
    "normalised": lambda data: {"p": normalised(data)},
    "exp of log_softmax": lambda data: {
        "p": pt.exp(pm.math.log_softmax(utilities(data), axis=1))
    },
    "no zeros": lambda data: {"p": of_levels(data)},
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_multinomial_logit_is_what_it_says_however_it_is_written(spelling):
    def write(data):
        given = SPELLINGS[spelling](data)
        pm.Categorical("party", **given, observed=data["party"])

    made = blueprint(write, VOTES)
    a, b = np.array([0.3, -0.5]), np.array([0.8, 0.1])
    values, many, alone = logs_of(made, (a, b))
    centred = (values["age"] - 50) / 20
    eta = np.c_[np.zeros(N), a + centred[:, None] * b]
    expected = log_softmax(eta, axis=1)[np.arange(N), values["party"]]
    np.testing.assert_allclose(many, expected, rtol=1e-10)
    np.testing.assert_allclose(alone, expected, rtol=1e-10)
    score = RecordScore(made.likelihood)
    scores = score.of_public(np.concatenate([a, b]), values)
    slopes = (values["party"][:, None] == [1, 2]) - np.exp(log_softmax(eta, axis=1))[
        :, 1:
    ]
    expected = np.c_[slopes, slopes * centred[:, None]]
    np.testing.assert_allclose(scores, expected, atol=1e-10)
    one_by_one = score._one_by_one(np.concatenate([a, b]), values)
    np.testing.assert_allclose(one_by_one, expected, atol=1e-10)


def test_a_multinomial_logit_is_accepted_and_one_over_records_is_not():
    def write(axis):
        def of(data):
            chances = pm.math.softmax(utilities(data), axis=axis)
            chances = chances / chances.sum(axis=1, keepdims=True)
            pm.Categorical("party", p=chances, observed=data["party"])

        return of

    blueprint(write(1), VOTES).check()
    refuses("depends on other records", blueprint(write(0), VOTES).check)


@pytest.mark.parametrize("law", [pm.OrderedLogistic, pm.OrderedProbit])
def test_ordered_outcomes_have_covariates(law):
    def write(data):
        cut = pm.Normal(
            "cut", 0, 2, shape=2, transform=transforms.ordered, initval=[-1.0, 1.0]
        )
        eta = pm.Normal("b", 0, 1) * (data["age"] - 50) / 20
        law("party", eta=eta, cutpoints=cut, observed=data["party"])

    blueprint(write, VOTES).check()


# ---- Gaussian processes ----


def process(data, **named):
    length = pm.InverseGamma("length", 3, 5)
    covariance = pm.gp.cov.Matern52(1, ls=length)
    curve = pm.gp.HSGP(m=[6], cov_func=covariance, **named)
    f = curve.prior("f", X=data["x"][:, None], dims="record")
    pm.Normal("y", f, pm.HalfNormal("sigma", 2), observed=data["y"], dims="record")
    return curve


@pytest.mark.parametrize("named", [{"c": 1.5}, {"L": [8.0]}], ids=["c", "L"])
def test_a_process_on_a_public_column_has_the_range_of_the_schema(named):
    curves = []
    made = blueprint(lambda data: curves.append(process(data, **named)), CURVE)
    made.check()
    for curve in curves:
        np.testing.assert_allclose(curve._X_center, [5.0])
        boundary = np.asarray(pt.as_tensor(curve.L).eval())
        np.testing.assert_allclose(boundary, [7.5 if "c" in named else 8.0])


def test_a_periodic_process_is_accepted():
    def write(data):
        covariance = pm.gp.cov.Periodic(1, period=3.0, ls=pm.InverseGamma("l", 3, 5))
        curve = pm.gp.HSGPPeriodic(m=4, scale=1.0, cov_func=covariance)
        f = curve.prior("f", X=data["x"][:, None])
        pm.Normal("y", f, pm.HalfNormal("sigma", 2), observed=data["y"])

    blueprint(write, CURVE).check()


def test_ranges_are_told_inside_only():
    before = pm.gp.HSGP.prior_linearized
    told = told_ranges(lambda graph: np.array([[0.0], [10.0]]))
    with told:
        assert pm.gp.HSGP.prior_linearized is not before
    assert pm.gp.HSGP.prior_linearized is before
    curve = pm.gp.HSGP(m=[6], c=1.5, cov_func=pm.gp.cov.Matern52(1, ls=1.0))
    curve.prior_linearized(np.array([[0.0], [2.0]]))
    np.testing.assert_allclose(curve._X_center, [1.0])


# ---- models that are made of models ----


def observing(data, schema):
    with pm.Model() as model:
        columns = {name: data[name] for name in ("b", "y")}
        b = pm.Bernoulli("b", pm.Beta("p", 1, 1), shape=data.n_records)
        pm.Normal("y", pm.Normal("m", 0, 1) + b + data["x"], 1, dims="record")
    return pm.observe(model, columns)


def intervening(data, schema):
    with pm.Model() as model:
        x = data["x"]
        level = pm.Normal("level", 0, 1, shape=data.n_records)
        y = pm.Normal("y", pm.Normal("m", 0, 1) * level, 1, observed=data["y"])
        pm.Bernoulli("b", logit_p=y, observed=data["b"])
    return pm.do(model, {"level": x})


def marginalized(data, schema):
    from pymc_extras import marginalize

    with pm.Model() as model:
        mean = pm.Normal("mean", [0.0, 4.0], 1)
        group = pm.Bernoulli("group", pm.Beta("p", 2, 2), shape=data.n_records)
        pm.Normal("y", mean[group] + 0 * data["x"], 1, observed=data["y"])
        chance = pm.Beta("chance", 2, 2, shape=2)
        pm.Bernoulli("b", chance[group], observed=data["b"])
    return marginalize(model, ["group"])


@pytest.mark.parametrize("build", [observing, intervening, marginalized])
def test_a_model_made_of_another_is_accepted(build):
    if build is marginalized:
        pytest.importorskip("pymc_extras")
    Blueprint(Source(build, "test"), CLASSES).check()


def test_what_is_observed_later_are_the_columns_of_the_table():
    made = Blueprint(Source(observing, "test"), CLASSES)
    values, many, alone = logs_of(made, (0.0, 0.5))
    residual = values["y"] - 0.5 - values["b"] - values["x"]
    expected = np.log(0.5) - 0.5 * np.log(2 * np.pi) - residual**2 / 2
    np.testing.assert_allclose(many, expected, rtol=1e-10)
    np.testing.assert_allclose(alone, expected, rtol=1e-10)


# ---- refusals ----


def own(law, **named):
    def write(data):
        pm.Normal("y", law("u", shape=data.n_records, **named), 1, observed=data["y"])

    return write


def over_records(data):
    curve = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, pm.Gamma("length", 2, 1)))
    f = curve.prior("f", X=data["x"][:, None])
    pm.Normal("y", f, 1, observed=data["y"])


def reading(data):
    mean = pm.Normal("mean", data["y"].mean(), 1)
    pm.Normal("y", mean, 1, observed=data["y"])


def without(data):
    pm.Normal("y", data["x"], 1, observed=data["y"])


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (own(pm.Normal), "one parameter for each record, 'u'; integrate it out"),
        (own(pm.Bernoulli, p=0.5), "one parameter for each record, 'u'; sum it out"),
        (over_records, "a Gaussian process over records ties them together"),
        (reading, "the prior of 'mean' reads column 'y'"),
        (without, "the model has no parameters"),
    ],
)
def test_refusals_name_the_parameter_and_the_way_out(write, words):
    refuses(words, lambda: blueprint(write, CURVE).check())


# ---- the matrix of distributions ----


def test_every_distribution_of_pymc_is_in_the_matrix():
    named = {name.split()[0] for name in matrix.OUTCOMES}
    assert named | {*matrix.NOT_OBSERVED} == matrix.distributions()


@pytest.mark.parametrize("name", ["Normal", "Categorical", "Poisson"])
def test_a_row_of_the_matrix_is_accepted(name):
    row = matrix.tried(name)
    assert (row.ending, row.sentence) == (matrix.ACCEPTED, "")


def test_a_series_is_a_row_of_the_matrix_that_is_refused():
    row = matrix.tried("AR")
    assert row.ending == matrix.REFUSED
    assert "a time series" in row.sentence


def test_the_matrix_keeps_the_tables_of_other_versions():
    rows = [matrix.Row("Normal", matrix.ACCEPTED, 1.0)]
    new = matrix.section(rows)
    other = "## PyMC 1.0, PyTensor 1.0\n\nold"
    page = matrix.with_section(matrix.INTRODUCTION + other + "\n", new)
    assert page.count("\n## ") == 2
    assert "old" in page
    again = matrix.with_section(page, new)
    assert again == page
