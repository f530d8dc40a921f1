"""Models are built on stand-ins: what they take from these, other than shapes, is
refused.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from small_models import PAIRS, blueprint, written
from tables import refuses


def slope_of(covariate, **settings):
    """A line on something worked out of column x."""

    @written
    def build(data):
        slope = pm.Normal("slope", 0, 5)
        pm.Normal("y", slope * covariate(data), 1, observed=data["y"], **settings)

    return build


def own_data(data):
    return pm.Data("z", data["x"].sum().eval() * np.ones(data.n_records))


def by_an_if(data):
    return data["x"] if data["x"].max().eval() > 3 else data["x"] ** 2


@written
def custom(data):
    """The log density of the analyst's own holds a number that no graph of parameters
    shows.
    """
    middle = float(data["x"].mean().eval())
    pm.CustomDist(
        "y",
        pm.Normal("m"),
        logp=lambda v, m: -((v - m - middle) ** 2),
        observed=data["y"],
    )


@written
def centred_prior(data):
    pm.Normal(
        "y", pm.Normal("m", float(data["x"].mean().eval()), 1), 1, observed=data["y"]
    )


@written
def by_number(data):
    pm.Normal(
        "y", pm.Normal("m", 0, 1 / np.sqrt(data.n_records)), 1, observed=data["y"]
    )


def standardised(data):
    return (data["x"] - data["x"].get_value().mean()) / data["x"].get_value().std()


CONSTANTS = r"get_value\(\), eval\(\), a pm.Data of its own"
PRIOR = "the prior depends on how many records there are or on their values"
ASKED = r"asks for the values of data\['x'\].*schema\.columns\['x'\]"

# Whichever number of the stand-ins it is: the least is the same on all tables but those
# at an end
NUMBERS = [
    pt.min,
    pt.max,
    lambda x: x[0],
    lambda x: x[-1],
    pt.mean,
    lambda x: x.shape[0] * 1.0,
]


@pytest.mark.parametrize(
    ("build", "says"),
    [
        *(
            (
                slope_of(
                    lambda data, number=each: data["x"] - number(data["x"]).eval()
                ),
                CONSTANTS,
            )
            for each in NUMBERS
        ),
        (slope_of(own_data), CONSTANTS),
        (slope_of(by_an_if), CONSTANTS),
        (custom, CONSTANTS),
        (centred_prior, PRIOR),
        (by_number, PRIOR),
        (
            slope_of(lambda data: data["x"] / data.n_records),
            "how many records there are",
        ),
        (
            slope_of(lambda data: data["x"] * np.arange(data.n_records)),
            "its place among them",
        ),
        (slope_of(standardised), ASKED),
        (slope_of(lambda data: data["x"].eval() ** 2), ASKED),
    ],
)
def test_numbers_worked_out_of_stand_ins_are_refused(build, says):
    refuses(says, lambda: blueprint(build, PAIRS).check())


@pytest.mark.parametrize(
    "covariate",
    [
        lambda data: data["x"] + np.zeros(data.n_records),
        lambda data: data["x"] * pt.ones(data.n_records),
        lambda data: (
            (np.ones((data.n_records, 1)) * np.array([1.0, 3.0]))[:, 1] * data["x"]
        ),
        lambda data: pt.repeat(pm.Normal("level"), data.n_records) + data["x"],
        lambda data: (
            pm.CustomDist(
                "level", dist=lambda size: 1 + pm.Normal.dist(0, 1, size=size)
            )
            + data["x"]
        ),
        lambda data: pm.NormalMixture("level", [0.5, 0.5], [0, 1], 1) + data["x"],
    ],
)
def test_shapes_and_repeated_numbers_may_follow_the_number_of_records(covariate):
    assert blueprint(slope_of(covariate), PAIRS).n_parameters in (1, 2)


def test_columns_hand_out_their_values_once_the_model_is_built():
    model = blueprint(slope_of(lambda data: data["x"]), PAIRS).model
    assert model["x_data"].get_value().shape == model["x_data"].eval().shape


def test_dims_alone_make_a_model_that_draws_as_many_records_as_asked_for():
    named, plain = (
        blueprint(slope_of(lambda data: data["x"], **dims), PAIRS)
        for dims in ({"dims": "record"}, {})
    )
    one, other = (
        made.draw(
            {"slope": np.array(2.0)}, 50, {"x": np.zeros(50)}, np.random.default_rng(0)
        )["y"]
        for made in (named, plain)
    )
    np.testing.assert_array_equal(one, other)
    assert one.shape == (50,)
