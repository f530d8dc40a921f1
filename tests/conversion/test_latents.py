"""Numbers that each record has of its own: integrated out exactly or by points, drawn
anew, or refused.
"""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import integrate, special, stats

import pdips
from pdips import InputError, Schema, Table
from pdips.conversion import quadrature
from pdips.conversion.convert import converted_conditioned, converted_model
from pdips.conversion.frames import MadeUp
from pdips.conversion.latents import with_latents
from pdips.posterior.columns import Columns, record_values
from pdips.posterior.interpreted import LIGHT
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import Source

pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS installation",
)

# What the log density of a record may be off by
ERROR = 1e-3
A = 0.3
S = 0.8
POINT = {"a": np.array(A), "s_log__": np.array(np.log(S))}


def integral(density, lower, upper, at=()) -> float:
    """The logarithm of an integral by scipy."""
    value, _ = integrate.quad(
        density, lower, upper, points=[A, *at], epsabs=0, limit=500
    )
    return float(np.log(value))


def normal_normal(value):
    return stats.norm(A, np.hypot(S, 0.1)).logpdf(value)


def normal_bernoulli(value):
    def density(z):
        return stats.norm(A, S).pdf(z) * special.expit(2 * z if value else -2 * z)

    return integral(density, -10, 10)


def normal_poisson(value):
    def density(z):
        return stats.norm(A, S).pdf(z) * stats.poisson.pmf(value, np.exp(z))

    return integral(density, -6, 8, at=[np.log(value + 0.1)])


def student_normal(value):
    def density(z):
        return stats.t(4, A, S).pdf(z) * stats.norm(z, 0.5).pdf(value)

    return integral(density, -60, 60, at=[value])


def either_of_two(value):
    shares = np.array([1 - A * S, A * S])
    densities = stats.norm([0, A], 0.5).pdf(value)
    return float(np.log(shares @ densities))


def one_of_three(value):
    shares = np.array([A, A, S]) / (2 * A + S)
    densities = stats.norm([-1, 0, 2], 0.5).pdf(value)
    return float(np.log(shares @ densities))


def exponential_normal(value):
    def density(z):
        return stats.expon(scale=1 / S).pdf(z) * stats.norm(z, 0.5).pdf(value)

    return integral(density, 0, 40, at=[abs(value)])


N = 5
LAWS = {
    "normal and normal": (
        lambda a, s: pm.Normal.dist(a, s, shape=N),
        lambda z: pm.Normal.dist(z, 0.1),
        [-3.0, 0.0, 0.3, 1.0, 4.0],
        normal_normal,
    ),
    "normal and logistic": (
        lambda a, s: pm.Normal.dist(a, s, shape=N),
        lambda z: pm.Bernoulli.dist(logit_p=2 * z),
        [0, 1, 1, 0, 1],
        normal_bernoulli,
    ),
    "normal and counts": (
        lambda a, s: pm.Normal.dist(a, s, shape=N),
        lambda z: pm.Poisson.dist(pt.exp(z)),
        [0, 1, 5, 50, 400],
        normal_poisson,
    ),
    "gamma and counts": (
        lambda a, s: pm.Gamma.dist(2, s + a, shape=N),
        lambda z: pm.Poisson.dist(z),
        [0, 1, 5, 50, 400],
        lambda value: stats.nbinom.logpmf(value, 2, (S + A) / (1 + S + A)),
    ),
    "beta and counts": (
        lambda a, s: pm.Beta.dist(1 + a, 1 + s, shape=N),
        lambda z: pm.Binomial.dist(20, z),
        [0, 1, 5, 19, 20],
        lambda value: stats.betabinom.logpmf(value, 20, 1 + A, 1 + S),
    ),
    "Student and normal": (
        lambda a, s: pm.StudentT.dist(4, mu=a, sigma=s, shape=N),
        lambda z: pm.Normal.dist(z, 0.5),
        [0.0, 1.0, 3.0, 10.0, -20.0],
        student_normal,
    ),
    "exponential and normal": (
        lambda a, s: pm.Exponential.dist(s + 0 * a, shape=N),
        lambda z: pm.Normal.dist(z, 0.5),
        [0.0, 1.0, 3.0, 10.0, -2.0],
        exponential_normal,
    ),
    "either of two levels": (
        lambda a, s: pm.Bernoulli.dist(a * s, shape=N),
        lambda z: pm.Normal.dist(z * A, 0.5),
        [0.0, 1.0, 3.0, 10.0, -2.0],
        either_of_two,
    ),
    "one of three levels, looked up": (
        lambda a, s: pm.Categorical.dist(pt.stack([a, a, s]) / (2 * a + s), shape=N),
        lambda z: pm.Normal.dist(pt.constant([-1.0, 0.0, 2.0])[z], 0.5),
        [0.0, 1.0, 3.0, 10.0, -2.0],
        one_of_three,
    ),
}


def small_model(law: str) -> pm.Model:
    """A model of five records with a number each."""
    latent, outcome, values, _ = LAWS[law]
    with pm.Model() as model:
        z = latent(pm.Normal("a"), pm.HalfNormal("s"))
        y = outcome(z)
        [observed] = with_latents([y], [z], model.basic_RVs)
        model.register_rv(observed, "y", observed=np.array(values))
    return model


def terms(model: pm.Model) -> np.ndarray:
    [graph] = model.logp(vars=model.observed_RVs, sum=False)
    return model.compile_fn(graph, mode=LIGHT)(POINT)


@pytest.mark.parametrize("law", LAWS)
def test_densities_are_those_of_the_integral(law):
    *_, values, exact = LAWS[law]
    wanted = [exact(value) for value in values]
    np.testing.assert_allclose(terms(small_model(law)), wanted, atol=ERROR, rtol=0)


def test_few_points_would_be_seen(monkeypatch):
    # the broken twin: no row in between
    monkeypatch.setattr(quadrature, "N_BETWEEN", 0)
    *_, values, exact = LAWS["gamma and counts"]
    wanted = [exact(value) for value in values]
    assert np.abs(terms(small_model("gamma and counts")) - wanted).max() > ERROR


@pytest.mark.parametrize("law", ["normal and logistic", "beta and counts"])
def test_slopes_are_those_of_the_integral(law):
    model = small_model(law)
    slope = model.compile_dlogp(mode=LIGHT)(POINT)
    density = model.compile_logp(mode=LIGHT)
    step = 1e-5
    wanted = []
    for name in POINT:
        up = density(POINT | {name: POINT[name] + step})
        down = density(POINT | {name: POINT[name] - step})
        wanted.append((up - down) / (2 * step))
    np.testing.assert_allclose(slope, wanted, atol=1e-4)


# Models as people write them

SCHEMA = Schema(
    columns={
        "measured": {"lower": -10, "upper": 30},
        "again": {"lower": -10, "upper": 30},
        "error": {"lower": 0.1, "upper": 3, "public": True},
        "x": {"lower": -3, "upper": 3, "public": True},
        "ill": {"levels": [0, 1]},
        "visits": {"lower": 0, "upper": 60, "integer": True},
        "q1": {"levels": [0, 1]},
        "q2": {"levels": [0, 1]},
        "q3": {"levels": [0, 1]},
    }
)
TRUE = {"a": 9.0, "b": -0.6, "sigma": 0.8}


def table(n: int = 60, seed: int = 3) -> pd.DataFrame:
    """Records whose measured values have errors of known size."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n).clip(-3, 3)
    error = rng.uniform(0.3, 1.5, n)
    value = rng.normal(TRUE["a"] + TRUE["b"] * x, TRUE["sigma"])
    able = rng.normal(size=n)
    answers = {
        name: (rng.random(n) < special.expit(able)).astype(int)
        for name in ("q1", "q2", "q3")
    }
    return pd.DataFrame(
        {
            "measured": rng.normal(value, error).clip(-10, 30),
            "again": rng.normal(value, 1).clip(-10, 30),
            "error": error,
            "x": x,
            "ill": rng.integers(2, size=n),
            "visits": rng.poisson(2, n),
            **answers,
        }
    )


def with_errors(df: pd.DataFrame) -> pm.Model:
    """True values behind measured ones."""
    with pm.Model() as model:
        a = pm.Normal("a", 9, 3)
        b = pm.Normal("b", 0, 0.5)
        sigma = pm.Exponential("sigma", 1)
        true = pm.Normal("true", a + b * df.x.values, sigma, shape=len(df))
        pm.Normal("measured", true, df.error.values, observed=df.measured.values)
    return model


def without_errors(df: pd.DataFrame) -> pm.Model:
    """The same, as if nothing had been measured with errors."""
    with pm.Model() as model:
        a = pm.Normal("a", 9, 3)
        b = pm.Normal("b", 0, 0.5)
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("measured", a + b * df.x.values, sigma, observed=df.measured.values)
    return model


def measured_twice(df: pd.DataFrame) -> pm.Model:
    """Two columns that hang together by one true value, and a slope of its own."""
    with pm.Model(coords={"id": df.index}) as model:
        a = pm.Normal("a", 9, 3)
        sigma = pm.Exponential("sigma", 1)
        tau = pm.Exponential("tau", 1)
        true = pm.Normal("true", a, sigma, dims="id")
        trend = pm.Normal("trend", 0, tau, dims="id")
        mean = true + trend * df.x.values
        pm.Normal("measured", mean, df.error.values, observed=df.measured.values)
        pm.Normal("again", mean + trend, 1, observed=df.again.values)
    return model


def with_intercepts(df: pd.DataFrame) -> pm.Model:
    """An intercept for each record of a logistic regression."""
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        tau = pm.HalfNormal("tau", 1)
        own = pm.Normal("own", 0, tau, shape=len(df))
        logit = b[0] + b[1] * df.x.values + own
        pm.Bernoulli("ill", logit_p=logit, observed=df.ill.values)
    return model


def with_frailty(df: pd.DataFrame) -> pm.Model:
    """A gamma law of rates."""
    with pm.Model() as model:
        k = pm.Gamma("k", 2, 1)
        b = pm.Normal("b", 0, 1, shape=2)
        own = pm.Gamma("own", k, k, shape=len(df))
        rate = own * pm.math.exp(b[0] + b[1] * df.x.values)
        pm.Poisson("visits", rate, observed=df.visits.values)
    return model


def with_abilities(df: pd.DataFrame) -> pm.Model:
    """Answers to several items."""
    with pm.Model() as model:
        hard = pm.Normal("hard", 0, 1, shape=3)
        able = pm.Normal("able", 0, 1, shape=len(df))
        logit = able[:, None] - hard
        answers = df[["q1", "q2", "q3"]].values
        pm.Bernoulli("answers", logit_p=logit, observed=answers)
    return model


def with_abilities_in_a_column(df: pd.DataFrame) -> pm.Model:
    """The same with abilities of shape (records, 1), as tutorials have them."""
    with pm.Model() as model:
        hard = pm.Normal("hard", 0, 1, shape=3)
        able = pm.Normal("able", 0, 1, shape=(len(df), 1))
        answers = df[["q1", "q2", "q3"]].values
        pm.Bernoulli("answers", logit_p=able - hard, observed=answers)
    return model


def in_two_groups(df: pd.DataFrame) -> pm.Model:
    """A mixture, as it is written with a group for each record."""
    with pm.Model() as model:
        p = pm.Beta("p", 2, 2)
        mean = pm.Normal("mean", [8, 10], 1, shape=2)
        group = pm.Bernoulli("group", p, shape=len(df))
        pm.Normal("measured", mean[group], 1, observed=df.measured.values)
    return model


# Sums over points take a minute to be tried
BY_POINTS = (with_intercepts, with_frailty, with_abilities)
MODELS = [with_errors, measured_twice, in_two_groups]
MODELS += [pytest.param(make, marks=pytest.mark.slow) for make in BY_POINTS]


def converted(make, frame=None, schema=SCHEMA):
    frame = table() if frame is None else frame
    alone = schema.only(schema.public_columns)
    public = Table(frame[list(schema.public_columns)], alone).public_part()
    return converted_model(make, MadeUp(schema, public), "make")


def blueprint(made) -> Blueprint:
    narrow = made.narrowed(SCHEMA)
    source = Source(made.build, "model", "text", converted=made)
    return Blueprint(source, made.derived.widened(narrow))


@pytest.mark.parametrize("make", MODELS)
def test_models_are_accepted_as_written(make):
    made = converted(make)
    checked = blueprint(made)
    checked.check()
    names = {variable.name for variable in checked.model.free_RVs}
    assert names.isdisjoint({"true", "trend", "own", "able", "group"})
    assert names < {variable.name for variable in make(table()).free_RVs}


def built(make, frame):
    made = converted(make, frame)
    narrow = made.narrowed(SCHEMA)
    values = record_values(Table(frame[list(narrow.columns)], narrow))
    columns = Columns(made.derived.widened(narrow), made.derived.beside(values))
    return made.build(columns, narrow)


def test_two_normal_numbers_are_integrated_exactly():
    frame = table()
    model = built(measured_twice, frame)
    point = {"a": np.array(8.5), "sigma_log__": np.array(-0.3)}
    point["tau_log__"] = np.array(0.2)
    graphs = model.logp(vars=model.observed_RVs, sum=False)
    found = model.compile_fn(sum(graphs), inputs=model.value_vars, mode=LIGHT)(point)
    variance = np.exp(-0.6) * np.ones((2, 2))
    for record, log_density in zip(frame.itertuples(), found, strict=True):
        slope = np.array([record.x, record.x + 1])
        covariance = variance + np.exp(0.4) * np.outer(slope, slope)
        covariance += np.diag([record.error**2, 1])
        law = stats.multivariate_normal([8.5, 8.5], covariance)
        wanted = law.logpdf([record.measured, record.again])
        assert log_density == pytest.approx(wanted, abs=1e-9)


def log_densities(make, point) -> np.ndarray:
    model = built(make, table())
    graphs = model.logp(vars=model.observed_RVs, sum=False)
    return model.compile_fn(sum(graphs), inputs=model.value_vars, mode=LIGHT)(point)


@pytest.mark.slow
def test_a_column_of_numbers_is_a_number_each():
    point = {"hard": np.array([-1.0, 0.0, 0.5])}
    np.testing.assert_allclose(
        log_densities(with_abilities_in_a_column, point),
        log_densities(with_abilities, point),
        rtol=1e-12,
    )


def test_a_group_for_each_record_is_a_mixture():
    point = {"p_logodds__": np.array(-0.4), "mean": np.array([7.5, 10.5])}
    share = special.expit(-0.4)
    measured = table()["measured"].to_numpy()
    densities = stats.norm(point["mean"], 1).pdf(measured[:, None])
    wanted = np.log(densities @ [1 - share, share])
    np.testing.assert_allclose(log_densities(in_two_groups, point), wanted, rtol=1e-9)


def test_numbers_are_drawn_anew():
    model = built(with_errors, table())
    given = {"a": np.array(9.0), "b": np.array(0.0), "sigma": np.array(2.0)}
    values = [given[variable.name] for variable in model.free_RVs]
    by_value = dict(zip(model.free_RVs, map(pt.constant, values), strict=True))
    [drawn] = pm.draw(
        [pm.pytensorf.clone_replace([model["measured"]], by_value)[0]],
        draws=2000,
        random_seed=2,
    )
    spread = drawn.std(axis=0)
    wanted = np.hypot(2.0, table()["error"])
    # 5 standard errors of each of 60: wrong in 1 of 30,000 runs
    assert np.abs(spread / wanted - 1).max() < 5 / np.sqrt(2 * 2000)
    # the broken twin: errors alone
    assert np.abs(spread / table()["error"] - 1).min() > 5 / np.sqrt(2 * 2000)


def test_a_conditioned_model_is_taken_too():
    frame = table()
    narrow = SCHEMA.only(["measured", "error", "x"])
    made = converted_conditioned(
        with_errors(frame), Table(frame[list(narrow.columns)], narrow)
    )
    assert [variable.name for variable in made.latents] == ["true"]


def interval(make, frame) -> tuple[float, float]:
    schema = SCHEMA.only(["measured", "error", "x"])
    tree = pdips.sample(
        make, frame[list(schema.columns)], schema, epsilon=2, seed=5, progress=False
    )
    draws = tree["posterior"]["sigma"].values
    lower, upper = np.quantile(draws, [0.0005, 0.9995])
    return float(lower), float(upper)


@pytest.mark.slow
def test_a_private_posterior_covers_what_is_true():
    frame = table(1500, seed=8)
    lower, upper = interval(with_errors, frame)
    # right in 999 of 1,000 runs
    assert lower < TRUE["sigma"] < upper
    # the broken twin: what the errors add is taken for spread
    lower, upper = interval(without_errors, frame)
    assert not lower < TRUE["sigma"] < upper


# What is refused


def discrete(df):
    with pm.Model() as model:
        z = pm.Poisson("z", 2, shape=len(df))
        pm.Normal("measured", z, 1, observed=df.measured.values)
    return model


def many_levels(df):
    with pm.Model() as model:
        z = pm.Categorical("z", np.full(20, 0.05), shape=len(df))
        pm.Normal("measured", z, 1, observed=df.measured.values)
    return model


def looked_up_the_other_way(df):
    with pm.Model() as model:
        z = pm.Bernoulli("z", 0.5, shape=len(df))
        pm.Normal("measured", z[z], 1, observed=df.measured.values)
    return model


def other_records(df):
    with pm.Model() as model:
        z = pm.Bernoulli("z", 0.5, shape=len(df))
        x = pt.as_tensor(df.x.values)
        pm.Normal("measured", x[z], 1, observed=df.measured.values)
    return model


def through_a_mean(df):
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        u = pm.Normal("u", 0, s, shape=len(df))
        pm.Normal("measured", u - u.mean(), 1, observed=df.measured.values)
    return model


def a_walk(df):
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        u = pm.GaussianRandomWalk(
            "u", sigma=s, init_dist=pm.Normal.dist(0, 1), shape=len(df)
        )
        pm.Normal("measured", u, 1, observed=df.measured.values)
    return model


def two_of_them(df):
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        u = pm.Normal("u", 0, s, shape=len(df))
        v = pm.Normal("v", 0, s, shape=len(df))
        pm.Poisson("visits", pm.math.exp(u * v), observed=df.visits.values)
    return model


def nobody_reads(df):
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        pm.Normal("u", a, 1, shape=len(df))
        pm.Normal("measured", a, 1, observed=df.measured.values)
    return model


def read_by_a_prior(df):
    with pm.Model() as model:
        u = pm.Normal("u", 0, 1, shape=len(df))
        a = pm.Normal("a", u.sum(), 1)
        pm.Normal("measured", a + u, 1, observed=df.measured.values)
    return model


def flat(df):
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        u = pm.Flat("u", shape=len(df))
        pm.Normal("measured", u, s, observed=df.measured.values)
    return model


def without_quantiles(df):
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        u = pm.SkewNormal("u", mu=0, sigma=s, alpha=1, shape=len(df))
        pm.Normal("measured", u, 1, observed=df.measured.values)
    return model


def in_order(df):
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        u = pm.Normal(
            "u",
            0,
            s,
            shape=len(df),
            transform=pm.distributions.transforms.ordered,
            initval=np.arange(len(df)) * 1.0,
        )
        pm.Normal("measured", u, 1, observed=df.measured.values)
    return model


REFUSED = [
    (discrete, "sum it out"),
    (many_levels, "20 levels for each record; at most 12"),
    (looked_up_the_other_way, "looks 'z' up"),
    (other_records, "looks up other records by 'z'"),
    (through_a_mean, "record by record"),
    (a_walk, "series over records"),
    (two_of_them, "'u' and 'v'.*read together"),
    (nobody_reads, "no observed variable reads it"),
    (read_by_a_prior, "'a' reads it"),
    (flat, "improper"),
    (without_quantiles, "has no quantiles"),
    (in_order, "transform may tie records together"),
]


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_what_ties_records_together_is_refused(make, said):
    with pytest.raises(InputError, match=said) as refused:
        converted(make)
    assert "\n" not in str(refused.value)
