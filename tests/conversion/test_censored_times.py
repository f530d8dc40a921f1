"""Times of which some are cut off, as a potential says."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import integrate
from test_converted import converted

import pdips
from pdips import InputError, Schema, Table
from pdips.conversion import censored_times
from pdips.conversion.censored_times import Censoring, censored
from pdips.posterior.columns import Columns, record_values
from pdips.posterior.interpreted import LIGHT
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import Source

pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS installation",
)

SCHEMA = Schema(
    columns={
        "time": {"lower": 0.01, "upper": 60},
        "ended": {"levels": ["no", "yes"]},
        "treat": {"levels": [0, 1], "public": True},
    }
)
TRUE = 0.4


def table(n: int = 60, seed: int = 2) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    treat = rng.integers(2, size=n)
    end = np.exp(2.5 + TRUE * treat) * rng.weibull(1.5, n)
    cut = rng.uniform(2, 60, n)
    return pd.DataFrame(
        {
            "time": np.minimum(end, cut).clip(0.01, 60),
            "ended": np.where(end < cut, "yes", "no"),
            "treat": treat,
        }
    )


def weibull(df: pd.DataFrame, survival=None, upside_down=False) -> pm.Model:
    ended = df.ended.values == ("no" if upside_down else "yes")
    time = df.time.values
    with pm.Model() as model:
        b = pm.Normal("b", 2, 1, shape=2)
        alpha = pm.HalfNormal("alpha", 2)
        scale = pm.math.exp(b[0] + b[1] * df.treat.values)
        pm.Weibull("t_obs", alpha, scale[ended], observed=time[ended])
        power = alpha if survival is None else survival
        pm.Potential("t_cut", (-((time[~ended] / scale[~ended]) ** power)).sum())
    return model


def on_logarithms(df: pd.DataFrame) -> pm.Model:
    """A potential of one element a record, and another law and scale."""
    cut = df.ended.values == "no"
    time = np.log(df.time.values)
    with pm.Model() as model:
        b = pm.Normal("b", 2, 1, shape=2)
        sigma = pm.HalfNormal("sigma", 2)
        mean = b[0] + b[1] * df.treat.values
        law = pm.Normal.dist(mean[cut], sigma)
        pm.Normal("log_time", mean[~cut], sigma, observed=time[~cut])
        pm.Potential("beyond", pm.math.log1mexp(pm.logcdf(law, time[cut])))
    return model


def as_if_ended(df: pd.DataFrame) -> pm.Model:
    """The same, as if no time had been cut off."""
    with pm.Model() as model:
        b = pm.Normal("b", 2, 1, shape=2)
        alpha = pm.HalfNormal("alpha", 2)
        scale = pm.math.exp(b[0] + b[1] * df.treat.values)
        pm.Weibull("time", alpha, scale, observed=df.time.values)
    return model


def built(make, frame) -> pm.Model:
    made = converted(make, frame, SCHEMA)
    values = record_values(Table(frame, SCHEMA))
    columns = Columns(made.derived.widened(SCHEMA), made.derived.beside(values))
    return made.build(columns, SCHEMA)


def differences(model, beside) -> np.ndarray:
    """Differences of the log density between points."""
    rng = np.random.default_rng(0)
    density = model.compile_logp(mode=LIGHT)
    names = [value.name for value in model.value_vars]
    found = []
    for _ in range(4):
        point = {
            name: np.asarray(rng.normal(2 if name == "b" else 0, 0.3, shape))
            for name, shape in beside.items()
        }
        hazard = {name: np.full(3, -3.0) for name in names if name not in point}
        found.append(float(density(point | hazard)))
    return np.diff(found)


WRITTEN = {
    weibull: {"b": 2, "alpha_log__": ()},
    on_logarithms: {"b": 2, "sigma_log__": ()},
}


@pytest.mark.parametrize("make", WRITTEN)
def test_parameters_have_the_likelihood_that_was_written(make):
    frame = table()
    found = differences(built(make, frame), WRITTEN[make])
    wanted = differences(make(frame), WRITTEN[make])
    np.testing.assert_allclose(found, wanted, rtol=1e-7)


def test_it_doesnt_matter_which_level_says_so():
    frame = table()
    frame["ended"] = frame.ended.map({"yes": "no", "no": "yes"})

    def make(df):
        return weibull(df, upside_down=True)

    found = differences(built(make, frame), WRITTEN[weibull])
    np.testing.assert_allclose(found, differences(make(frame), WRITTEN[weibull]))


CENSORING = Censoring("ended", 1, 0.5, 8.0)
LOG_HAZARD = np.array([-2.5, -1.0, -1.5])


def density_of(time, code) -> np.ndarray:
    """The log density of times under a law and a hazard that are known."""
    with pm.Model() as model:
        hazard = pm.Normal("hazard", shape=3)
        law = pm.Weibull.dist(1.5, 4.0, shape=len(time))
        both = censored(law, hazard, CENSORING, len(time), model.basic_RVs)
        for name, each, values in zip("te", both, (time, code), strict=True):
            model.register_rv(each, name, observed=np.asarray(values))
    [first, second] = model.logp(vars=model.observed_RVs, sum=False)
    function = model.compile_fn(first + second, inputs=model.value_vars, mode=LIGHT)
    return function({"hazard": LOG_HAZARD})


def shares_by_density(edges) -> np.ndarray:
    """Probabilities of times between edges that ended and that were cut off, and of
    those that last to the end.
    """
    grid = np.linspace(0, CENSORING.upper, 60_001)[1:-1]
    shares = []
    for code in (1, 0):
        density = np.exp(density_of(grid, np.full(len(grid), code)))
        below = integrate.cumulative_trapezoid(density, grid, initial=0)
        shares.append(np.diff(np.interp(edges, grid, below)))
    last = np.exp(density_of(np.array([CENSORING.upper]), np.array([0])))
    return np.concatenate([*shares, last])


EDGES = np.array([0.0, 0.5, 1.0, 3.0, 3.1, 5.5, 7.0, 8.0])


def test_the_density_integrates_to_1():
    assert shares_by_density(EDGES).sum() == pytest.approx(1, abs=1e-3)


def test_draws_are_those_of_the_density():
    n = 40_000
    law = pm.Weibull.dist(1.5, 4.0, shape=n)
    time, code = censored(law, pt.constant(LOG_HAZARD), CENSORING, n, [])
    time, code = pm.draw([time, code], random_seed=6, mode=LIGHT)
    is_last = time >= CENSORING.upper - 1e-9
    parts = [time[(code == each) & ~is_last] for each in (1, 0)]
    counts = [np.histogram(part, EDGES)[0] for part in parts]
    found = np.concatenate([*counts, [(is_last & (code == 0)).sum()]]) / n
    wanted = shares_by_density(EDGES)
    errors = np.sqrt(np.maximum(wanted * (1 - wanted), 1 / n) / n)
    # 5 standard errors of 15 shares: wrong in 1 of 100,000 runs
    assert np.abs((found - wanted) / errors).max() < 5
    # the broken twin: times that are cut off are drawn as if they had ended
    free = pm.draw(law, random_seed=7)
    counts, _ = np.histogram(free[code == 1], EDGES)
    assert np.abs((counts / n - wanted[:7]) / errors[:7]).max() > 5


def test_mechanisms_take_such_models():
    made = converted(weibull, table(), SCHEMA)
    source = Source(made.build, "make", "text", converted=made)
    blueprint = Blueprint(source, made.derived.widened(SCHEMA))
    blueprint.check()
    assert set(blueprint.synthesized) == {"time", "ended"}


def with_another_survival(df):
    return weibull(df, survival=2.0)


def that_reads_it_too(df):
    with weibull(df) as model:
        pm.Potential("more", (model["b"][0] * (df.ended.values == "yes")).sum())
    return model


def with_ended_in_the_mean(df):
    ended = df.ended.values == "yes"
    time = df.time.values
    with pm.Model() as model:
        b = pm.Normal("b", 2, 1, shape=2)
        scale = pm.math.exp(b[0] + b[1] * ended)
        pm.Weibull("t_obs", 1.5, scale[ended], observed=time[ended])
        pm.Potential("t_cut", (-((time[~ended] / scale[~ended]) ** 1.5)).sum())
    return model


def falling(df):
    ended = df.ended.values == "yes"
    rate = 1 / df.time.values
    with pm.Model() as model:
        a = pm.HalfNormal("a", 1)
        pm.Exponential("rate", a, observed=rate[ended])
        pm.Potential("cut", (-a * rate[~ended]).sum())
    return model


REFUSED = [
    (with_another_survival, "isn't the logarithm of its survival function"),
    (with_ended_in_the_mean, "isn't the logarithm of its survival function"),
    (that_reads_it_too, "isn't the logarithm of its survival function"),
    (falling, "a function of it that rises"),
]


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_other_potentials_are_refused(make, said):
    with pytest.raises(InputError, match=said) as refused:
        built(make, table())
    assert "\n" not in str(refused.value)


def interval(make, frame, schema) -> tuple[float, float]:
    tree = pdips.sample(make, frame, schema, epsilon=2, seed=5, progress=False)
    draws = tree["posterior"]["b"].values[..., 0]
    lower, upper = np.quantile(draws, [0.0005, 0.9995])
    return float(lower), float(upper)


@pytest.mark.slow
def test_a_private_posterior_covers_what_is_true():
    frame = table(1500, seed=8)
    lower, upper = interval(weibull, frame, SCHEMA)
    # right in 999 of 1,000 runs
    assert lower < 2.5 < upper
    # the broken twin: times that were cut off are taken for ends
    schema = SCHEMA.only(["time", "treat"])
    lower, upper = interval(as_if_ended, frame[["time", "treat"]], schema)
    assert not lower < 2.5 < upper


def test_laws_without_a_stable_survival_function_have_one():
    law = pm.Weibull.dist(1.5, 2.0)
    far = censored_times.log_survival(law, pt.constant(40.0)).eval()
    assert far == pytest.approx(-(20.0**1.5))
    law = pm.Exponential.dist(0.5)
    assert censored_times.log_survival(law, pt.constant(90.0)).eval() == -45
