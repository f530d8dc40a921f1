"""Numbers that may be missing: a term says whether they are, and the number's own
counts for records that have it.
"""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from laws import ACCEPT, REJECT
from scipy import special, stats
from small_models import about, blueprint, grid_of, written
from tables import cases, refuses

from pdips import CensoredPosterior, PseudoPosterior, Schema, Scores, Table
from pdips.posterior import private_reference as stages
from pdips.posterior.columns import fixed_numbers, record_values
from pdips.posterior.inspection import released_draws
from pdips.posterior.streams import stream
from pdips.scores.record_score import Clipping, RecordScore
from pdips.scores.simulator import Simulator

PAY = {"lower": 1.0, "upper": 400.0, "scale": "log", "missing": [-9, -8]}
ALONE = Schema(columns={"pay": PAY})
BOTH = Schema(columns={"pay": PAY, "y": {"lower": -50, "upper": 50}})
REGION = Schema(columns={"region": {"levels": ["a", "b"], "public": True}, "pay": PAY})
PLACE = np.array([0.4, 3.0, -0.2])


def hurdle(law):
    """The model of a number and whether it is missing, its number by some law of
    location and log scale.
    """

    @written
    def build(data):
        odds, at, spread = (
            pm.Normal("odds", 0, 1.5),
            pm.Normal("at", 4, 1),
            pm.LogNormal("spread", -0.5, 0.3),
        )
        law(data["pay"], at, spread)
        pm.Bernoulli("pay_missing", logit_p=odds, observed=data["pay_missing"])

    return build


LAWS = {
    "its own": lambda pay, at, spread: pm.LogNormal("pay", at, spread, observed=pay),
    "of its logarithm": lambda pay, at, spread: pm.Normal(
        "pay", at, spread, observed=pt.log(pay)
    ),
    "truncated": lambda pay, at, spread: pm.Truncated(
        "pay", pm.Gamma.dist(pt.exp(at), spread), upper=400, observed=pay
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_a_missing_number_leaves_the_term_of_its_absence_alone(name):
    space = blueprint(hurdle(LAWS[name]), ALONE)
    share, odds = 1 / (1 + np.exp(-PLACE[0])), np.array([PLACE[:1], [-2.0]]).ravel()
    points = [odds, np.full(2, PLACE[1]), np.full(2, PLACE[2])]
    rows = {"pay": np.array([20.0, 7.0, 20.0]), "pay_missing": np.array([1, 1, 0])}
    likelihood, score = space.likelihood, RecordScore(space.likelihood)
    likelihood.at(points)
    alone = [likelihood(row) for row in likelihood.rows(rows)]
    [(_, many)] = likelihood.blocks(rows, points)
    draws = {
        v.name: part for v, part in zip(space.model.value_vars, points, strict=True)
    }
    [(_, _, streamed)] = stream(space.model, rows, draws, mode="FAST_COMPILE").pieces()
    wanted = -np.log1p(np.exp(-odds))
    for found in (np.array(alone), many.T, streamed.T):
        assert np.allclose(found[:2], wanted, rtol=1e-12)
        assert not np.allclose(found[2], -np.log1p(np.exp(odds)))
    slopes = score.of_public(PLACE, rows)
    assert np.allclose(slopes[:2], [1 - share, 0, 0], rtol=1e-12, atol=0)
    assert slopes[2, 0] == pytest.approx(-share)
    assert (slopes[2, 1:] != 0).all()
    steps = [
        score.total(
            Clipping(PLACE, np.eye(3), 1.0, "l2"),
            {n: v[k : k + 1] for n, v in rows.items()},
        )
        for k in (0, 1)
    ]
    assert np.array_equal(*steps)


def test_what_stands_at_a_missing_place_is_no_part_of_a_record():
    known = [30.0, 2.0, 399.0]
    tables = [
        Table(pd.DataFrame({"pay": [*known, *gone]}), ALONE)
        for gone in ([-9, -8], [-8, np.nan], [np.nan, -9])
    ]
    read = [record_values(table) for table in tables]
    assert all(
        np.array_equal(each[name], read[0][name])
        for each in read
        for name in ("pay", "pay_missing")
    )
    assert read[0]["pay_missing"].tolist() == [0, 0, 0, 1, 1]
    assert read[0]["pay"].tolist() == [*known, *[fixed_numbers(ALONE)["pay"]] * 2]


def test_the_fixed_number_is_public_and_may_occur():
    numbers = cases(__file__, "fixed_numbers")
    columns = {
        name: {**column, "missing": True} for name, (column, _) in numbers.items()
    }
    schema = Schema(columns=columns)
    assert fixed_numbers(schema) == {
        name: pytest.approx(number) for name, (_, number) in numbers.items()
    }
    read = record_values(
        Table(pd.DataFrame({name: [np.nan] for name in columns}), schema)
    )
    assert all(
        read[name][0] == number for name, number in fixed_numbers(schema).items()
    )


@written
def covariate(data):
    missing = pm.Bernoulli("pay_missing", 0.4, observed=data["pay_missing"])
    pay = pm.Normal("pay", pm.Normal("at", 4, 1), 0.5, observed=pt.log(data["pay"]))
    pm.Normal("y", pt.switch(missing, -20, 5 * pay), 0.1, observed=data["y"])


def test_simulated_records_have_the_fixed_number_and_others_read_what_is_there():
    space = blueprint(covariate, BOTH)
    space.check()
    number, place = fixed_numbers(BOTH)["pay"], np.array([4.0])
    parameters = {"at": np.array(4.0)}
    for drawn in (
        *Simulator(space, {}, 500)(place),
        space.draw(parameters, 500, {}, np.random.default_rng(1)),
    ):
        gone = drawn["pay_missing"] == 1
        assert 150 < gone.sum() < 250
        assert np.array_equal(drawn["pay"] == number, gone)
        assert (
            np.abs(drawn["y"] - np.where(gone, -20, 5 * np.log(drawn["pay"]))).max()
            < 0.6
        )


# ---- refused ----


def observing(*lines):
    """A model of some observed variables, each a function of the columns and a
    parameter.
    """

    def write(data):
        at = pm.Beta("at", 1, 1)
        for line in lines:
            line(data, at)

    return written(write)


def number(data, at):
    return pm.LogNormal("pay", at, 1, observed=data["pay"])


def absence(data, at):
    return pm.Bernoulli("pay_missing", at, observed=data["pay_missing"])


def by_its_number(data, at):
    absence(data, at * pm.math.invlogit(number(data, at)))


def labelled(data, schema):
    with pm.Model(coords={"column": ["pay", "y"]}) as model:
        pm.Normal(
            "both",
            pm.Normal("at"),
            1,
            observed=data.matrix(["pay", "y"]),
            dims=("record", "column"),
        )
        pm.Bernoulli("pay_missing", 0.3, observed=data["pay_missing"])
    return model


OWN = Schema(columns={"pay": PAY, "pay_missing": {"levels": [0, 1]}})


@pytest.mark.parametrize(
    ("model", "schema", "says"),
    [
        (
            observing(number),
            ALONE,
            r'add pm.Bernoulli\("pay_missing", p, '
            r'observed=data\["pay_missing"\]\)',
        ),
        (
            observing(absence),
            ALONE,
            r'add pm.Normal\("pay", mu, sd, '
            r'observed=data\["pay"\]\)',
        ),
        (
            observing(number, absence),
            OWN,
            "'pay' is missing 'pay_missing'; rename that column",
        ),
        (
            observing(by_its_number),
            ALONE,
            "whether 'pay' is missing can't depend on its number",
        ),
        (labelled, BOTH, "'pay' may be missing: observe it by itself, not in 'both'"),
    ],
)
@pytest.mark.parametrize("mechanism", [Scores, CensoredPosterior, PseudoPosterior])
def test_half_a_hurdle_is_refused_and_told_what_to_add(mechanism, model, schema, says):
    refuses(says, lambda: mechanism(epsilon=1, model=model).plan(schema))


# ---- releases ----


@written
def by_region(data):
    odds = pm.Normal("odds", 0, 1.5, shape=2)
    pm.LogNormal(
        "pay",
        pm.Normal("at", 4, 1),
        pm.LogNormal("spread", -0.5, 0.3),
        observed=data["pay"],
    )
    pm.Bernoulli(
        "pay_missing", logit_p=odds[data["region"]], observed=data["pay_missing"]
    )


SHARES = np.array([0.15, 0.45])


def table_of(n, seed):
    rng = np.random.default_rng(seed)
    region = rng.integers(2, size=n)
    pay = np.clip(np.exp(rng.normal(4.3, 0.5, n)), 1, 400)
    pay[rng.random(n) < SHARES[region]] = -9
    return Table(
        pd.DataFrame({"region": np.array(["a", "b"])[region], "pay": pay}), REGION
    )


@pytest.mark.slow
def test_parameters_and_shares_of_missing_numbers_are_recovered(monkeypatch):
    # four posterior deviations of four parameters: 3e-4 for a sound release; the mean
    # of the numbers that are there is 1.3 above the logarithm of the fixed one, so a
    # term that counts for all draws it down by .4
    truth = np.array([*np.log(SHARES / (1 - SHARES)), 4.3, 0.5])
    table = table_of(2_000, 1)

    def apart():
        made = Scores(epsilon=1, delta="1e-6", model=by_region, n_sets=2)
        release, _ = made.release(table, rng=np.random.default_rng(2))
        posterior = released_draws(release).to_numpy(float)
        return release, np.abs(posterior.mean(axis=0) - truth) / posterior.std(axis=0)

    release, distance = apart()
    assert distance.max() < 4
    for made in release.sets:
        assert (
            np.abs(
                (made["pay"] == -9).groupby(made["region"]).mean().to_numpy() - SHARES
            ).max()
            < 0.08
        )
        known = np.log(made["pay"][made["pay"] != -9])
        assert [known.mean(), known.std()] == pytest.approx([4.3, 0.5], abs=0.08)
    # the broken twin, of which the same is asked: no term is multiplied out
    monkeypatch.setattr("pdips.posterior.model._blueprints._found", {})
    monkeypatch.setattr("pdips.posterior.model.count_known", lambda *_: None)
    assert not apart()[1].max() < 4


@written
def public_pay(data):
    at, slope = pm.Normal("at", 0, 5), pm.Normal("slope", 0, 2)
    pm.Normal(
        "y",
        pt.switch(data["pay_missing"], at, slope * pt.log(data["pay"])),
        1,
        observed=data["y"],
    )


@pytest.mark.slow
def test_censored_posteriors_of_both_kinds_of_missing_numbers(monkeypatch):
    monkeypatch.setattr(stages, "SIMULATED", 256)
    table = table_of(600, 3)
    made = CensoredPosterior(epsilon=6, model=hurdle(LAWS["its own"])).release
    [found] = made(
        Table(table.frame[["pay"]].copy(), ALONE), rng=np.random.default_rng(4)
    )[0].sets
    assert (found["pay"] == -9).mean() == pytest.approx(
        (table.frame["pay"] == -9).mean(), abs=0.12
    )
    assert np.log(found["pay"][found["pay"] != -9]).mean() == pytest.approx(
        4.3, abs=0.2
    )

    schema = Schema(
        columns={"pay": {**PAY, "public": True}, "y": {"lower": -50, "upper": 50}}
    )
    pay = table.frame["pay"].to_numpy()
    y = np.where(pay == -9, -6, 2 * np.log(np.abs(pay))) + np.random.default_rng(
        5
    ).normal(size=600)
    [found] = (
        CensoredPosterior(epsilon=6, model=public_pay)
        .release(
            Table(pd.DataFrame({"pay": pay, "y": y}), schema),
            rng=np.random.default_rng(6),
        )[0]
        .sets
    )
    gone = found["pay"] == -9
    assert sorted(found["pay"]) == sorted(pay)
    assert found["y"][gone].mean() == pytest.approx(-6, abs=0.5)
    assert (found["y"] / np.log(found["pay"].abs()))[~gone].mean() == pytest.approx(
        2, abs=0.2
    )


# Models that observe a function of a column: synthetic records are columns again, or
# the model is refused


PAID = Schema(
    columns={
        "x": {"lower": -1, "upper": 1, "public": True},
        "pay": {"lower": 1, "upper": 100_000},
    }
)
LOW, SPAN = 1.0, 99_999.0


def observed_as(function):
    """A normal law of a function of a column."""

    @written
    def build(data):
        pm.Normal(
            "pay",
            pm.Normal("a", 7, 2) + pm.Normal("b", 0, 1) * data["x"],
            0.5,
            observed=function(data),
        )

    return build


on_log_scale = observed_as(lambda data: pt.log(data["pay"]))


def share(data):
    return (data["pay"] - LOW) / SPAN


INVERTIBLE = {
    "pt.log": (lambda data: pt.log(data["pay"]), np.exp),
    "affine": (lambda data: (data["pay"] - 3) / 5 + 1, lambda v: 5 * (v - 1) + 3),
    "falling": (lambda data: 7 - data["pay"] / 2, lambda v: 2 * (7 - v)),
    "log of affine": (
        lambda data: 2 * pt.log(data["pay"] / 10 + 4) - 1,
        lambda v: 10 * (np.exp((v + 1) / 2) - 4),
    ),
    "logit": (
        lambda data: pm.math.logit(share(data)),
        lambda v: LOW + SPAN * special.expit(v),
    ),
}


@pytest.mark.parametrize("name", INVERTIBLE)
def test_drawn_values_are_taken_back_to_the_column(name):
    function, inverse = INVERTIBLE[name]
    made = blueprint(observed_as(function), PAID).transformations["pay"]
    values = np.geomspace(1.0001, 99_999, 301).reshape(7, 43)
    observed = made.forward(values.ravel()).reshape(7, 43)
    np.testing.assert_allclose(made.back(observed), values, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        made.back(observed), inverse(observed), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("name", INVERTIBLE)
def test_what_the_model_observes_of_a_value_taken_back_is_what_it_drew(name):
    """A censored outcome is told by its equality with a public number: off by one
    digit, what was drawn there would be looked at as not censored.
    """
    function, _ = INVERTIBLE[name]
    made = blueprint(observed_as(function), PAID).transformations["pay"]
    drawn = made.forward(np.geomspace(1.0001, 99_999, 301))
    np.testing.assert_array_equal(made.forward(made.back(drawn)), drawn)


def test_what_is_drawn_outside_of_the_bounds_is_moved_to_them():
    made = blueprint(on_log_scale, PAID).transformations["pay"]
    np.testing.assert_array_equal(
        made.back(np.array([-np.inf, -1, 30, np.inf])), [1, 1, 100_000, 100_000]
    )
    assert np.isnan(made.back(np.array([np.nan]))).all()
    falling = blueprint(observed_as(lambda data: -data["pay"]), PAID).transformations[
        "pay"
    ]
    np.testing.assert_array_equal(falling.back(np.array([5.0, -1e9])), [1, 100_000])


def test_records_have_the_law_of_the_column():
    @written
    def lognormal(data):
        pm.LogNormal(
            "pay",
            pm.Normal("a", 7, 2) + pm.Normal("b", 0, 1) * data["x"],
            0.5,
            observed=data["pay"],
        )

    def found(made):
        parameters, x = {"a": np.array(7.0), "b": np.array(0.0)}, np.zeros(4_000)
        drawn = made.draw(parameters, 4_000, {"x": x}, np.random.default_rng(1))["pay"]
        return stats.kstest(drawn, stats.lognorm(0.5, scale=np.exp(7)).cdf).pvalue

    assert found(blueprint(on_log_scale, PAID)) > ACCEPT
    assert found(blueprint(lognormal, PAID)) > ACCEPT
    twin = blueprint(on_log_scale, PAID)
    # the broken twin: what the model observes is taken for the column
    vars(twin)["transformations"] = {}
    assert found(twin) < REJECT


def level(law, function):
    @written
    def build(data):
        law("pay", pm.Normal("a", 7, 2), 0.5, observed=function(data["pay"]))

    return build


@pytest.mark.slow
def test_a_release_on_the_log_scale_is_that_of_the_lognormal_model(few_simulated):
    schema = Schema(columns={"pay": {"lower": 1, "upper": 100_000}})
    pay = np.clip(np.random.default_rng(0).lognormal(7.3, 0.5, 150), 1, 100_000)
    table = Table(pd.DataFrame({"pay": pay}), schema)
    cells, sets = [], []
    for model in (level(pm.Normal, pt.log), level(pm.LogNormal, lambda column: column)):
        made = CensoredPosterior(epsilon=2, model=model, reference={"a": 7.0})
        stage, scored = grid_of(made, table)
        # simulated records are in the column's unit
        assert np.min(stage.simulated["pay"]) > 100
        cells.append(np.exp(scored.log_probabilities()))
        sets.append(made.release(table, rng=np.random.default_rng(3))[0].sets[0]["pay"])
    np.testing.assert_allclose(cells[0], cells[1], atol=1e-9)
    np.testing.assert_allclose(sets[0], sets[1], rtol=1e-9)
    assert 0.5 < sets[0].mean() / pay.mean() < 2  # it was 3.6 for 1,853


PAIR = Schema(
    columns={
        "x": {"lower": 1, "upper": 50},
        "y": {"lower": 0, "upper": 1},
        "k": {"levels": [0, 1, 2]},
    }
)


def together(observed, names=("x", "y")):
    def build(data, schema):
        with pm.Model(
            coords={"record": range(data.n_records), "column": names}
        ) as model:
            mean = pm.Normal("mean", 0, 1, dims="column")
            pm.Normal(
                "both", mean, 1, dims=("record", "column"), observed=observed(data)
            )
            pm.Binomial("k", 2, 0.5, observed=data["k"])
        return model

    return build


def test_several_columns_in_one_variable_are_transformed_one_by_one():
    assert (
        blueprint(together(lambda data: data.matrix(["x", "y"])), PAIR).transformations
        == {}
    )
    logs = blueprint(
        together(lambda data: pt.stack([pt.log(data["x"]), data["y"]], axis=1)), PAIR
    )
    assert list(logs.transformations) == ["x"]
    refuses(
        "can't be brought back to column 'x'",
        blueprint,
        together(lambda data: data.matrix(["y", "x"])),
        PAIR,
    )


def test_whole_numbers_in_another_type_or_on_the_log_scale_come_back():
    schema = Schema(
        columns={
            "k": {"levels": ["a", "b"]},
            "n": {"lower": 0, "upper": 9, "integer": True},
        }
    )

    @written
    def build(data):
        theta = pm.Normal("theta")
        pm.Normal("n", theta, 1, observed=data["n"])
        pm.Bernoulli("k", logit_p=theta, observed=pt.cast(data["k"], "float64"))

    assert blueprint(build, schema).transformations == {}
    schema = Schema(columns={"n": {"lower": 0, "upper": 90, "integer": True}})

    logs = about(name="n", observed=lambda data: pt.log1p(data["n"]))
    made = blueprint(logs, schema).transformations["n"]
    np.testing.assert_array_equal(
        np.rint(made.back(np.log1p(np.arange(91)))), np.arange(91)
    )


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (
            lambda data: (data["pay"] - 50) ** 2,
            "rises or falls all the way between its bounds",
        ),
        (lambda data: pt.round(data["pay"]), "can't be brought back to column 'pay'"),
        (
            lambda data: pt.cast(data["pay"], "int64"),
            "whole numbers need integer = true",
        ),
        (
            lambda data: data["pay"] - data["pay"].mean(),
            "can't be brought back to column 'pay'",
        ),
        (lambda data: pt.cumsum(data["pay"]), "can't be brought back to column 'pay'"),
        (lambda data: pt.log(data["pay"] - 5), "a logarithm needs bounds above 0"),
        (
            lambda data: pt.log(data["pay"]) - data["x"],
            "reads column 'x'; give the variable the name of its column",
        ),
        (
            lambda data: data["x"],
            "reads column 'x'; give the variable the name of its column",
        ),
        (
            lambda data: np.ones(data.n_records),
            r"is no column but numbers made "
            r"beforehand.*observed=data\['pay'\]",
        ),
    ],
)
def test_what_cannot_be_brought_back_is_refused_with_the_line_to_write(function, says):
    refuses(
        says,
        lambda: PseudoPosterior(epsilon=1, model=observed_as(function)).spends(PAID),
    )
