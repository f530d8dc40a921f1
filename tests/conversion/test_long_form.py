"""Frames that a model lays out in long form, several rows a record."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from scipy import stats
from test_converted import converted, log_density

from pdips import InputError, Schema, Table
from pdips.conversion.matching import places_of_rows
from pdips.posterior.columns import Columns, record_values
from pdips.posterior.interpreted import LIGHT
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import Source

pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS installation",
)

WAVES = ["w1", "w2", "w3"]
SCHEMA = Schema(
    columns={wave: {"lower": -20, "upper": 30} for wave in WAVES}
    | {
        "treat": {"levels": [0, 1], "public": True},
        "x": {"lower": -3, "upper": 3, "public": True},
    }
)


def table(n: int = 50, seed: int = 4) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    treat = rng.integers(2, size=n)
    start = rng.normal(2, 1, n)
    slope = 1 + 0.5 * treat + rng.normal(0, 0.3, n)
    y = start[:, None] + slope[:, None] * np.arange(3) + rng.normal(size=(n, 3))
    frame = pd.DataFrame(y.clip(-20, 30), columns=WAVES)
    return frame.assign(treat=treat, x=rng.normal(size=n).clip(-3, 3))


def long_of(df: pd.DataFrame) -> pd.DataFrame:
    """One row a measurement, and when it was."""
    long = df.reset_index(names="id").melt(["id", "treat", "x"], WAVES)
    return long.assign(time=long.variable.str[1].astype(int) - 1)


def growth(df: pd.DataFrame, by_record: bool = False) -> pm.Model:
    """Intercepts and slopes of persons."""
    long = long_of(df)
    if by_record:
        long = long.sort_values(["id", "time"], ignore_index=True)
    person = long.id.values
    with pm.Model(coords={"id": df.index, "obs": long.index}) as model:
        b = pm.Normal("b", 0, 2, shape=3)
        s0 = pm.HalfNormal("s0", 2)
        s1 = pm.HalfNormal("s1", 1)
        sigma = pm.HalfNormal("sigma", 2)
        u0 = pm.Normal("u0", 0, s0, dims="id")
        u1 = pm.Normal("u1", 0, s1, dims="id")
        slope = b[1] + b[2] * long.treat.values + u1[person]
        mean = b[0] + u0[person] + slope * long.time.values
        pm.Normal("y", mean, sigma, observed=long.value.values, dims="obs")
    return model


def growth_by_record(df):
    return growth(df, by_record=True)


def with_a_matrix(df):
    """A design matrix, an effect of each time, and no number of persons."""
    long = long_of(df)
    design = np.stack([long.x, long.treat * long.time], axis=1)
    with pm.Model() as model:
        of_time = pm.Normal("of_time", 0, 2, shape=3)
        b = pm.Normal("b", 0, 2, shape=2)
        sigma = pm.HalfNormal("sigma", 2, shape=2)
        mean = of_time[long.time.values] + pm.math.dot(design, b)
        spread = sigma[long.treat.values]
        pm.StudentT("y", nu=5, mu=mean, sigma=spread, observed=long.value.values)
    return model


def alike(df):
    """All rows are alike."""
    long = long_of(df)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        pm.Normal("y", a, 1, observed=long.value.values)
    return model


def model_of(make, frame) -> pm.Model:
    made = converted(make, frame, SCHEMA)
    values = record_values(Table(frame, SCHEMA))
    columns = Columns(made.derived.widened(SCHEMA), made.derived.beside(values))
    return made.build(columns, SCHEMA)


@pytest.mark.parametrize("make", [with_a_matrix, alike])
def test_the_density_is_that_of_the_written_model(make):
    frame = table()
    found = log_density(model_of(make, frame))
    assert found == pytest.approx(log_density(make(frame)), rel=1e-9)


POINT = {
    "b": np.array([1.5, 0.8, 0.4]),
    "s0_log__": np.array(0.1),
    "s1_log__": np.array(-0.7),
    "sigma_log__": np.array(0.2),
}


@pytest.mark.parametrize("make", [growth, growth_by_record])
def test_numbers_of_persons_are_integrated_over_all_their_rows(make):
    frame = table()
    model = model_of(make, frame)
    [graph] = model.logp(vars=model.observed_RVs, sum=False)
    found = model.compile_fn(graph, inputs=model.value_vars, mode=LIGHT)(POINT)
    time = np.arange(3)
    covariance = np.exp(0.2) + np.exp(-1.4) * np.outer(time, time)
    covariance += np.exp(0.4) * np.eye(3)
    mean = 1.5 + (0.8 + 0.4 * frame.treat.values)[:, None] * time
    off = frame[WAVES].values - mean
    wanted = stats.multivariate_normal(np.zeros(3), covariance).logpdf(off)
    np.testing.assert_allclose(found, wanted, atol=1e-9)
    # the broken twin: as if rows had nothing in common
    apart = stats.norm(0, np.sqrt(np.diag(covariance))).logpdf(off).sum(axis=1)
    assert np.abs(apart - wanted).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("make", [growth, with_a_matrix])
def test_mechanisms_take_such_models(make):
    made = converted(make, table(), SCHEMA)
    source = Source(made.build, "make", "text", converted=made)
    blueprint = Blueprint(source, made.derived.widened(SCHEMA))
    blueprint.check()
    assert set(blueprint.synthesized) == set(WAVES)


def with_mean(df, mean):
    """The rows' mean is a function of the long frame, and of numbers of persons."""
    long = long_of(df)
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        u = pm.Normal("u", 0, tau, shape=len(df))
        pm.Normal("y", mean(u, long), 1, observed=long.value.values)
    return model


def next_persons(u, long):
    return u[(long.id.values + 1) % (long.id.max() + 1)]


def repeated(u, long):
    # the right numbers, but by what isn't seen to keep records apart
    return pm.math.concatenate([u, u, u])


def lagged(u, long):
    before = long.groupby("id").value.shift(1).fillna(0).values
    return u[long.id.values] + before


def ranked(u, long):
    return u[long.id.values] + long.value.rank().values / 100


def of_a_sorted_frame(df):
    long = long_of(df).sort_values("value")
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        pm.Normal("y", a + long.x.values, 1, observed=long.value.values)
    return model


def of_sums(df):
    long = long_of(df)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        mean = pm.math.cumsum(a * long.time.values)
        pm.Normal("y", mean, 1, observed=long.value.values)
    return model


def looked_up(df):
    """Each row has the number of another row's person, by a formula."""
    long = long_of(df)
    with pm.Model() as model:
        u = pm.Normal("u", 0, 1, shape=len(df))
        first = pm.Bernoulli("first", 0.5)
        mean = u[first * long.id.values]
        pm.Normal("y", mean, 1, observed=long.value.values)
    return model


REFUSED = [
    (lambda df: with_mean(df, next_persons), "looks 'u' up"),
    (looked_up, "looks 'u' up"),
    (lambda df: with_mean(df, repeated), "otherwise than record by record"),
    (lambda df: with_mean(df, lagged), "'y' reads the confidential column 'w1'"),
    (lambda df: with_mean(df, ranked), "several confidential records"),
    (of_sums, "otherwise than row by row"),
    (of_a_sorted_frame, "not one of each record in the order of the frame"),
]


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_rows_that_arent_each_of_one_record_are_refused(make, said):
    with pytest.raises(InputError, match=said) as refused:
        model_of(make, table())
    assert "\n" not in str(refused.value)


def test_answers_to_items_may_be_in_long_form():
    items = ["q1", "q2", "q3", "q4"]
    schema = Schema(
        columns={name: {"levels": [0, 1]} for name in items}
        | {"x": {"lower": -3, "upper": 3, "public": True}}
    )
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(rng.integers(2, size=(300, 4)), columns=items)
    frame["x"] = rng.normal(size=300).clip(-3, 3)

    def make(df):
        long = df.reset_index().melt(["index", "x"], items)
        with pm.Model() as model:
            a = pm.Normal("a", 0, 1, shape=4)
            item = pd.Categorical(long["variable"], categories=items).codes
            logit = a[item] + long["x"].values
            pm.Bernoulli("q", logit_p=logit, observed=long["value"].values.astype(int))
        return model

    made = converted(make, frame, schema)
    values = record_values(Table(frame, schema))
    columns = Columns(made.derived.widened(schema), made.derived.beside(values))
    found = log_density(made.build(columns, schema))
    assert found == pytest.approx(log_density(make(frame)), rel=1e-9)


def test_places_are_known_by_what_rows_hold():
    first = {"a": np.array([1, 2]), "b": np.array([3, 4])}
    second = {"a": np.array([5, 6]), "b": np.array([7, 8])}
    spellings = {"a": [np.asarray], "b": [np.asarray]}
    rows = np.array([[1, 5], [3, 7], [2, 6], [4, 8]])
    places = places_of_rows(rows, [first, second], spellings)
    np.testing.assert_array_equal(places, [[0, 1], [2, 3]])
    # a record's row is another one's in the second build
    rows[[0, 2], 1] = rows[[2, 0], 1]
    assert places_of_rows(rows, [first, second], spellings) is None
