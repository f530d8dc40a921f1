"""What a model may not read of confidential records is refused in words that say what
to write; each model differs by one line from one that is accepted.
"""

import warnings

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from written_models import SCHEMA, table

import pdips
from pdips import InputError, Schema
from pdips.conversion.convert import converted_conditioned, converted_model
from pdips.conversion.frames import MadeUp
from pdips.data.table import Table
from pdips.posterior.columns import Columns, stand_ins


def normal(df, mu=0.0, sigma=10.0, observed=None, prior=170.0, name="height"):
    """One normal outcome, of which a part is replaced."""
    with pm.Model() as model:
        a = pm.Normal("a", prior, 10)
        pm.Normal(
            name, a + mu, sigma, observed=df.height if observed is None else observed
        )
    return model


def ranks(df):
    return normal(df, observed=df.height.rank() / len(df))


REFUSED = {
    "mean in a prior": (
        lambda df: normal(df, prior=df.height.mean()),
        "'a' reads the mean of column 'height'",
    ),
    "twice a deviation": (
        lambda df: normal(df, sigma=2 * df.height.std()),
        "reads the standard deviation of column 'height'",
    ),
    "largest value": (
        lambda df: normal(df, mu=df.children.max()),
        "reads the largest value of column 'children'",
    ),
    "standardised outcome": (
        lambda df: normal(df, observed=(df.height - df.height.mean()) / 10),
        "standardised by numbers that follow from its confidential records",
    ),
    "ranks": (ranks, "follow from several confidential records"),
    "lag": (
        lambda df: normal(df, mu=df.height.shift(fill_value=170).values / 9),
        "follow from several confidential records",
    ),
    "quantiles": (
        lambda df: normal(df, mu=np.quantile(df.pay, [0.2, 0.8]).sum()),
        "follow from confidential records",
    ),
    "itself": (
        lambda df: normal(df, mu=(df.pay * df.height).values),
        "the confidential column 'height', which the model describes only after it",
    ),
    "in steps": (
        lambda df: normal(df, mu=np.floor(df.pay / 7).values),
        "a function of confidential columns that isn't understood",
    ),
    "public outcome": (
        lambda df: normal(df, observed=df.weight, name="w"),
        "observes what is public",
    ),
    "nothing observed": (
        lambda df: normal(df, observed=np.zeros(len(df))),
        "observes what is public, or no column at all",
    ),
    "some records": (
        lambda df: normal(df, observed=df.height[df.treated == 1]),
        "of some of the records only",
    ),
    "records that are confidential": (
        lambda df: normal(df, observed=df.height[df.vote == "yes"]),
        "follow from confidential records",
    ),
    "covariance of records": (
        lambda df: _with_covariance(df),
        "a row and a column for each record",
    ),
    "unknown column": (
        lambda df: normal(df, mu=df["age"].values),
        "reads column 'age', which the schema doesn't have",
    ),
    "unknown attribute": (
        lambda df: normal(df, mu=df.age.values),
        "reads column 'age', which the schema doesn't have",
    ),
    "unknown dim": (
        lambda df: _with_dims(df, "obs"),
        "Dimensions {'obs'} are unknown to the model",
    ),
    "potential of records": (
        lambda df: _with_potential(df),
        "potential 'more' reads confidential columns",
    ),
    "series of records": (lambda df: _as_series(df), "is a series over records"),
    "areas": (lambda df: _as_areas(df), "is one draw over all records"),
    "simulator": (lambda df: _simulated(df), "pm.Simulator, which has no density"),
    "no model": (lambda df: df, "must return a pm.Model"),
    "no observed variable": (
        lambda df: _without_observed(),
        "without an observed variable",
    ),
    "an error": (lambda df: 1 / 0, "ZeroDivisionError"),
    "place in the table": (
        lambda df: normal(df, mu=np.sin(df.index.values)),
        "follows from the order of records",
    ),
    "random covariate": (
        lambda df: normal(df, mu=np.random.default_rng(1).normal(size=len(df))),
        "follows from the order of records",
    ),
    "lag of a public column": (
        lambda df: normal(df, mu=df.weight.shift(fill_value=50).values),
        "follows from the order of records",
    ),
    "rounded mean": (
        lambda df: normal(df, prior=round(df.height.mean())),
        "follow",
    ),
    "median of whole numbers": (
        lambda df: normal(df, mu=df.children.median()),
        "'children'",
    ),
    "share above a number": (
        lambda df: normal(df, mu=(df.pay > 300).mean()),
        "follow from confidential records",
    ),
    "words in a mean": (
        lambda df: _of_words(df, lambda slope: slope[0] * df.region.values),
        "takes the words of column 'region' for numbers",
    ),
    "words as places": (
        lambda df: _of_words(df, lambda slope: slope[df.region.values]),
        "takes the words of column 'region' for numbers",
    ),
    "two columns of words": (
        lambda df: _of_words(
            df, lambda slope: slope[0] * df.region.values + slope[1] * df.vote.values
        ),
        "takes the words of column ",
    ),
    "an error beside words": (
        lambda df: normal(df, mu=int("x")),
        "ValueError: invalid",
    ),
    "missing public values": (
        lambda df: normal(df, mu=df.weight.where(df.weight > 60).values),
        "fill them before they are read",
    ),
}


def _of_words(df, mean):
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 1, shape=4)
        pm.Normal("height", mean(slope), 10, observed=df.height)
    return model


def _with_covariance(df):
    x = df.weight.values
    covariance = np.exp(-np.abs(x[:, None] - x) / 20)
    with pm.Model() as model:
        a = pm.Normal("a", 170, 10)
        pm.MvNormal("height", a + np.zeros(len(x)), covariance, observed=df.height)
    return model


def _with_potential(df):
    with normal(df) as model:
        pm.Potential("more", -((df.pay.values / model["a"]) ** 2).sum())
    return model


def _with_dims(df, dims):
    with pm.Model() as model:
        pm.Normal("height", pm.Normal("a", 170, 10), 10, observed=df.height, dims=dims)
    return model


def _as_series(df):
    with pm.Model() as model:
        rho = pm.Normal("rho", 0, 0.5)
        start = pm.Normal.dist(170, 10)
        pm.AR("height", rho=rho, sigma=1, init_dist=start, observed=df.height.values)
    return model


def _as_areas(df):
    n = len(df)
    ring = np.roll(np.eye(n), 1, axis=1) + np.roll(np.eye(n), -1, axis=1)
    with pm.Model() as model:
        mu = pm.Normal("mu", 170, 10)
        pm.CAR("height", mu + np.zeros(n), ring, 0.5, 1, observed=df.height.values)
    return model


def _simulated(df):
    def draw(rng, mu, size):
        return rng.normal(mu, 1, size)

    with warnings.catch_warnings(action="ignore"), pm.Model() as model:
        mu = pm.Normal("mu", 170, 10)
        pm.Simulator("height", draw, mu, epsilon=1, observed=df.height.values)
    return model


def _without_observed():
    with pm.Model() as model:
        pm.Normal("a", 0, 1)
    return model


def made_up(schema: Schema = SCHEMA) -> MadeUp:
    # two records share all that is public, so that their place can be told apart
    frame = table()
    for name in schema.public_columns:
        frame.loc[1, name] = frame.loc[0, name]
    alone = schema.only(schema.public_columns)
    part = Table(frame[list(schema.public_columns)], alone).public_part()
    return MadeUp(schema, part)


def convert(make):
    """Convert a model, and build it of other made-up records."""
    made = converted_model(make, made_up(), "make")
    narrow = SCHEMA.only([*made.columns, *SCHEMA.public_columns])
    wide = made.derived.widened(narrow)
    made.build(Columns(wide, stand_ins(wide, 5)), wide)
    return made


@pytest.mark.parametrize("name", REFUSED)
def test_what_follows_from_records_is_refused(name):
    make, words = REFUSED[name]
    with pytest.raises(InputError) as refused:
        convert(make)
    assert words in str(refused.value)


def test_the_same_without_its_fault_is_accepted():
    made = convert(normal)
    assert made.columns == ("height",)


def test_a_suggested_number_follows_from_the_bounds():
    make, _ = REFUSED["twice a deviation"]
    with pytest.raises(InputError, match="such as 40 "):
        convert(make)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda df: normal(df, prior=df.height.mean()), "holds the mean of column"),
        (
            lambda df: normal(df, observed=(df.height - df.height.mean()) / 7),
            "scaled by numbers with many digits",
        ),
        (
            lambda df: normal(df, observed=(df.height - 170) / df.height.std()),
            "scaled by numbers with many digits",
        ),
        (
            lambda df: normal(df, mu=df.height.rank().values),
            "isn't known as a function of public columns",
        ),
        (
            lambda df: normal(df, mu=df.groupby("region").pay.transform("mean").values),
            "isn't known as a function of public columns",
        ),
        (
            lambda df: normal(df, observed=df.height.rank()),
            "isn't known as a function of public columns",
        ),
        (lambda df: _without_observed(), "no observed variable"),
    ],
)
def test_a_conditioned_model_with_such_numbers_is_refused(make, words):
    frame = table()
    with pytest.raises(InputError, match=words):
        converted_conditioned(make(frame), Table(frame, SCHEMA))


def test_labels_of_a_conditioned_model_in_the_order_of_records_are_refused():
    frame = table()
    frame.loc[0, "party"] = "right"
    codes, parties = frame.party.factorize()
    with pm.Model(coords={"party": parties}) as model:
        p = pm.Dirichlet("p", np.ones(3), dims="party")
        pm.Categorical("y", p=p, observed=codes)
    assert [*parties] not in ([*sorted(parties)], ["left", "centre", "right"])
    with pytest.raises(InputError, match="labels of dim 'party'"):
        converted_conditioned(model, Table(frame, SCHEMA))
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(3))
        pm.Categorical("y", p=p, observed=codes)
    with pytest.raises(InputError, match="codes of 'party' that follow neither"):
        converted_conditioned(model, Table(frame, SCHEMA))


def test_group_means_in_a_conditioned_model_are_refused():
    frame = table()
    means = frame.groupby("vote").height.mean()
    mu = frame.vote.map(means).values
    with pytest.raises(InputError, match="many digits"):
        converted_conditioned(normal(frame, mu=mu), Table(frame, SCHEMA))


def test_a_conditioned_model_scaled_by_round_numbers_is_accepted():
    frame = table()
    model = normal(frame, observed=(frame.height - 170) / 7.5, prior=0.0)
    made = converted_conditioned(model, Table(frame, SCHEMA))
    assert made.columns == ("height",)


def test_without_public_columns_a_number_that_follows_from_their_number_is_refused():
    def scaled(df):
        return normal(df, sigma=100 / np.sqrt(len(df)))

    alone = SCHEMA.only(["height"])
    with pytest.raises(InputError, match="how many records there are"):
        converted_model(scaled, MadeUp(alone, None), "make")
    # with public columns the number of records is known
    assert converted_model(scaled, made_up(), "make").columns == ("height",)
    shaped = converted_model(
        lambda df: normal(df, mu=np.zeros(len(df))), MadeUp(alone, None), "make"
    )
    assert shaped.columns == ("height",)


def test_sizes_of_public_groups_are_no_numbers_of_records():
    def weighted(df):
        sizes = df.groupby("region").size().values
        with pm.Model() as model:
            a = pm.Normal("a", 170, 10, shape=len(sizes))
            pm.Deterministic("mean", (a * sizes).sum() / 100)
            codes = df.region.factorize(sort=True)[0]
            pm.Normal("height", a[codes], 10, observed=df.height)
        return model

    made = convert(weighted)
    narrow = SCHEMA.only(["height", *SCHEMA.public_columns])
    wide = made.derived.widened(narrow)
    model = made.build(Columns(wide, stand_ins(wide, 7)), wide)
    a = np.array([1.0, 0.0, 0.0, 0.0])
    total = model["mean"].eval({model["a"]: a})
    sizes = made_up().frame(made_up().values(0)).groupby("region").size()
    assert total == pytest.approx(sizes.iloc[0] / 100)


def test_levels_in_the_order_in_which_they_appear_are_accepted():
    def unsorted(df):
        codes, regions = df.region.factorize()
        with pm.Model(coords={"region": regions}) as model:
            a = pm.Normal("a", 170, 10, dims="region")
            pm.Normal("height", a[codes], 10, observed=df.height)
        return model

    assert convert(unsorted).columns == ("height",)


def test_names_that_are_changed_inside_come_back():
    def twins(df):
        with pm.Model() as model:
            own = pm.Normal("height", 170, 10)
            pm.Normal("height_", 0, 1)
            pm.Normal("obs", own, 10, observed=df.height)
        return model

    made = convert(twins)
    inside = [made.inside(name) for name in ("height", "height_")]
    assert len({*inside, "height"}) == 3
    assert [made.outside(name) for name in inside] == ["height", "height_"]


def test_no_message_quotes_a_record():
    frame = table()
    frame["height"] = 171.2345 + np.arange(len(frame)) / 7
    for make, _ in REFUSED.values():
        with pytest.raises(InputError) as refused:
            convert(make)
        assert "171.2" not in str(refused.value)


def test_few_public_records_with_many_levels_are_refused():
    frame = pd.DataFrame({"g": ["a", "b"], "y": ["0", "1"]})
    schema = Schema(
        columns={
            "y": {"levels": [str(level) for level in range(9)]},
            "g": {"levels": ["a", "b"], "public": True},
        }
    )
    alone = schema.only(["g"])
    part = Table(frame[["g"]], alone).public_part()
    with pytest.raises(InputError, match="more levels than the table has records"):
        converted_model(normal, MadeUp(schema, part), "make")


def test_the_column_of_persons_is_in_no_model():
    schema = Schema(
        columns={"y": {"lower": 0, "upper": 9}},
        records={"person": "pid", "max_per_person": 4},
    )
    with pytest.raises(InputError, match="'pid', which says whose a record is"):
        converted_model(lambda df: df["pid"].mean(), MadeUp(schema, None), "make")


# Models and settings that aren't of the form they should be


def that_reads(column):
    def make(df):
        return normal(df, mu=df[column].values.sum())

    return make


def observed_twice(df):
    with pm.Model() as model:
        a = pm.Normal("a", 170, 10)
        pm.Normal("height", a, 10, observed=df.height.values)
        pm.Normal("again", a, 20, observed=df.height.values)
    return model


@pytest.mark.parametrize("column", ["age", ["weight", "age"], ["age"]])
def test_a_column_that_the_schema_lacks_is_named(column):
    with pytest.raises(InputError, match="reads column 'age', which the schema"):
        convert(that_reads(column))


def test_a_column_is_observed_once():
    with pytest.raises(InputError, match="observed by 'height' and by 'again'"):
        convert(observed_twice)


def without_arguments():
    return pm.Model()


@pytest.mark.parametrize("model", [None, 3, pm.Model, without_arguments])
def test_what_makes_no_model_is_refused(model):
    with pytest.raises(InputError, match="a model is a function make") as refused:
        pdips.sample(model, table(), SCHEMA, epsilon=1, progress=False)
    assert "\n" not in str(refused.value)


def test_a_schema_without_columns_says_where_they_go():
    with pytest.raises(InputError, match="has its columns under 'columns'"):
        pdips.sample(normal, table(), {"height": {"lower": 0}}, epsilon=1)


def test_one_public_column_may_be_named_alone():
    with pytest.raises(InputError, match="public names 'age', which is no column"):
        pdips.sample(normal, table(), SCHEMA, epsilon=1, public="age")
