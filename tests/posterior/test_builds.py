"""Models are built on stand-ins: what they take from these, other than shapes, is refused."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from small_models import PAIRS, blueprint, written
from tables import refuses

from pdips.posterior.columns import Columns, stand_ins


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
    """The log density of the analyst's own holds a number that no graph of parameters shows."""
    middle = float(data["x"].mean().eval())
    pm.CustomDist("y", pm.Normal("m"), logp=lambda v, m: -((v - m - middle) ** 2), observed=data["y"])


@written
def centred_prior(data):
    pm.Normal("y", pm.Normal("m", float(data["x"].mean().eval()), 1), 1, observed=data["y"])


@written
def by_number(data):
    pm.Normal("y", pm.Normal("m", 0, 1 / np.sqrt(data.n_records)), 1, observed=data["y"])


@written
def more_variables(data):
    pm.Normal("y", sum(pm.Normal(f"m{i}") for i in range(data.n_records)), 1, observed=data["y"])


CONSTANTS = r"get_value\(\), eval\(\), a pm.Data of its own"
PRIOR = "the prior depends on how many records there are or on their values"


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (slope_of(lambda data: data["x"] - data["x"].mean().eval()), CONSTANTS),
        (slope_of(own_data), CONSTANTS),
        (slope_of(by_an_if), CONSTANTS),
        (custom, CONSTANTS),
        (centred_prior, PRIOR),
        (by_number, PRIOR),
        (more_variables, "parameters for single records"),
        (slope_of(lambda data: data["x"] / data.n_records), "how many records there are"),
        (slope_of(lambda data: data["x"] * np.arange(data.n_records)), "its place among them"),
    ],
)
def test_numbers_worked_out_of_stand_ins_are_refused(build, says):
    refuses(says, lambda: blueprint(build, PAIRS).check())


def standardised(data):
    return (data["x"] - data["x"].get_value().mean()) / data["x"].get_value().std()


@pytest.mark.parametrize("covariate", [standardised, lambda data: data["x"].eval() ** 2])
def test_asking_a_column_for_its_values_is_refused_at_once(covariate):
    refuses(r"asks for the values of data\['x'\].*schema\.columns\['x'\]", blueprint, slope_of(covariate), PAIRS)


@pytest.mark.parametrize(
    "number", [pt.min, pt.max, lambda x: x[0], lambda x: x[-1], pt.mean, lambda x: x.shape[0] * 1.0]
)
def test_no_number_of_the_stand_ins_stays_in_a_model(number):
    """Whichever it is: the least is the same on all tables but those at an end."""
    refuses(CONSTANTS, lambda: blueprint(slope_of(lambda data: data["x"] - number(data["x"]).eval()), PAIRS).check())


@pytest.mark.parametrize(
    "covariate",
    [
        lambda data: data["x"] + np.zeros(data.n_records),
        lambda data: data["x"] * pt.ones(data.n_records),
        lambda data: (np.ones((data.n_records, 1)) * np.array([1.0, 3.0]))[:, 1] * data["x"],
        lambda data: pt.repeat(pm.Normal("level"), data.n_records) + data["x"],
        lambda data: pm.CustomDist("level", dist=lambda size: 1 + pm.Normal.dist(0, 1, size=size)) + data["x"],
        lambda data: pm.NormalMixture("level", [0.5, 0.5], [0, 1], 1) + data["x"],
    ],
)
def test_shapes_and_repeated_numbers_may_follow_the_number_of_records(covariate):
    assert blueprint(slope_of(covariate), PAIRS).n_parameters in (1, 2)


def test_columns_hand_out_their_values_once_the_model_is_built_and_stand_ins_have_ends():
    model = blueprint(slope_of(lambda data: data["x"]), PAIRS).model
    assert model["x_data"].get_value().shape == model["x_data"].eval().shape
    assert np.array_equal(stand_ins(PAIRS, 3, end=0)["x"], [-10, -10, -10])
    assert np.array_equal(stand_ins(PAIRS, 3, end=1)["y"], [100, 100, 100])


def test_a_variable_of_a_columns_name_is_refused():
    @written
    def build(data):
        pm.Data("x_data", np.zeros(3))
        pm.Normal("y", data["x"], pm.HalfNormal("s"), observed=data["y"])

    refuses("makes a variable 'x_data' of its own", blueprint, build, PAIRS)


@pytest.mark.parametrize("coords", [None, {"record": range(24)}])
def test_the_record_dimension_is_there_with_and_without_coords(coords):
    columns = Columns(PAIRS, stand_ins(PAIRS, 24))
    with pm.Model(coords=coords) as model:
        pm.Normal("y", pm.Normal("slope", 0, 5) * columns["x"], 1, observed=columns["y"], dims="record")
    assert model.named_vars_to_dims["y"] == ("record",)
    assert int(model.dim_lengths["record"].eval()) == 24


def test_dims_alone_make_a_model_that_draws_as_many_records_as_asked_for():
    named, plain = (blueprint(slope_of(lambda data: data["x"], **dims), PAIRS) for dims in ({"dims": "record"}, {}))
    one, other = (
        made.draw({"slope": np.array(2.0)}, 50, {"x": np.zeros(50)}, np.random.default_rng(0))["y"]
        for made in (named, plain)
    )
    np.testing.assert_array_equal(one, other)
    assert one.shape == (50,)
