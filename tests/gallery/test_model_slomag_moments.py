"""The sequential logits with a marginal normal law: moments against simulation, refusals, records."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.blocking import DictToArrayBijection, RaveledVars
from scipy import optimize, stats
from tables import refuses

from pdips import Schema, Table
from pdips.posterior.model_file import load
from pdips.privacy.noise import RandomBits
from pdips.statistics.model import RecordRequest, as_statistic_model
from pdips.statistics.noisy_model import Evidence
from pdips.statistics.plan import StatisticPlan

NUMERIC = "[columns.z1]\nlower = -4.0\nupper = 4.0\n[columns.z2]\nlower = -4.0\nupper = 4.0\n"
LEVELS = '[columns.w1]\nlevels = ["a", "b"]\n[columns.w3]\nlevels = ["a", "b", "c"]\n'
SIZES = (2, 3)
MEAN = np.array([0.05, -0.1])
FACTOR = np.array([[0.25, 0.0], [0.12, 0.2]])
LOGITS = {"w1": np.array([[-1.0, 0.5, -1.0]]), "w3": np.array([[0.0, -1.5, 1.0, 0.5], [0.1, -1.0, -0.5, 1.5]])}
X = np.concatenate([each.ravel() for each in LOGITS.values()])
MODEL = as_statistic_model("slomag_moments")
FILE, _ = load("slomag_moments")
DRAW = {"mean": MEAN, "factor": FACTOR} | {f"logits of {name}": each for name, each in LOGITS.items()}


def schema(text=NUMERIC + LEVELS):
    return Schema.from_toml(text)


def simulated(n, rng):
    columns = MODEL.records(DRAW, RecordRequest(n), schema(), rng)
    named = {name: np.array(["a", "b", "c"])[columns[name]] for name in ("w1", "w3")}
    return Table(pd.DataFrame({name: columns[name] for name in ("z1", "z2")} | named), schema())


def compiled():
    mean, x = pt.vector("mean", shape=(2,)), pt.vector("x", shape=(len(X),))
    logits = [x[:3].reshape((1, 3)), x[3:].reshape((2, 4))]
    found = FILE.moments(
        mean, pt.as_tensor(FACTOR), [pt.specify_shape(logits[0], (1, 3)), pt.specify_shape(logits[1], (2, 4))]
    )
    return pytensor.function([mean, x], found, mode="FAST_COMPILE")


law = compiled()
"""What one record adds to the statistics on average, and the average of its products."""


def farthest(mean, x, n=40_000):
    """Largest distance of means and of second moments of simulated records from those by quadrature, in errors."""
    rng = np.random.default_rng(7)
    u = rng.standard_normal((n, 2)) @ FACTOR.T
    design = np.column_stack([np.ones(n), u / np.sqrt((FACTOR**2).sum(axis=1))])
    cell = np.zeros(n, dtype=int)
    for each, size in zip(LOGITS.values(), SIZES, strict=True):
        odds = np.exp(np.column_stack([np.zeros(n), design @ each.T]))
        level = (rng.random(n)[:, None] > np.cumsum(odds, axis=1) / odds.sum(axis=1, keepdims=True)).sum(axis=1)
        design, cell = np.column_stack([design, level[:, None] == np.arange(1, size)]), cell * size + level
    u = u + MEAN
    inside = np.eye(6)[cell]
    each = np.column_stack(
        [inside, inside * u[:, :1], inside * u[:, 1:], u[:, 0] ** 2, u[:, 0] * u[:, 1], u[:, 1] ** 2]
    )
    first, second = law(mean, x)
    products = (each[:, :, None] * each[:, None, :]).reshape(n, -1)
    apart = np.concatenate([each.mean(axis=0) - first, products.mean(axis=0) - second.ravel()])
    error = np.concatenate([each.std(axis=0), products.std(axis=0)]) / np.sqrt(n)
    return np.max(np.abs(apart) / np.maximum(error, 1e-12))


def test_moments_are_those_of_simulated_records():
    # 462 entries, normal: beyond 5.5 errors with probability 2e-5.
    assert farthest(MEAN, X) < 5.5


@pytest.mark.parametrize(("mean", "x"), [(MEAN + 0.01, X), (MEAN, X + np.eye(len(X))[5] * 0.15)])
def test_moments_of_other_parameters_are_told_apart(mean, x):
    assert farthest(mean, x) > 5.5


def test_nodes_integrate_logistic_functions():
    fine = np.linspace(-10, 10, 20_001)
    density = np.exp(-(fine**2) / 2) / np.sqrt(2 * np.pi)
    exact = np.trapezoid(density / (1 + np.exp(1 - 2.2 * fine)), fine)
    for d in (1, 2, 3):
        points, weights = FILE.nodes(d)
        along = points @ np.full(d, 1 / np.sqrt(d))
        assert (weights / (1 + np.exp(1 - 2.2 * along))).sum() == pytest.approx(exact, abs=1e-4)


def test_statistics_have_a_normal_law():
    mean, root = np.array([1.0, -2.0, 3.0]), np.array([[1.0, 0, 0], [0.5, 2, 0], [0.3, -0.2, 1.5]])
    given = Evidence(
        plan(1).sanitize(simulated(50, np.random.default_rng(1)), RandomBits(np.random.default_rng(2))), "plug-in"
    )
    names = ["products of z1, z1", "products of z2, z1", "products of z2, z2"]
    values = np.concatenate([given[name] for name in names])
    found = []
    for times in (1.0, 4.0):
        with pm.Model() as model:
            pm.Normal("x", 0, 1)
            given.gaussian(names, values + mean, times * root @ root.T)
        [term] = model.potentials
        found.append(float(term.eval()) - stats.multivariate_normal(mean, times * root @ root.T).logpdf(np.zeros(3)))
    np.testing.assert_allclose(found, 0, atol=1e-4)


def plan(epsilon, neighbours="replace-one"):
    return StatisticPlan(
        schema=schema(), neighbours=neighbours, statistics=MODEL.declared(schema(), neighbours), budget="equal",
        amount=Fraction(epsilon), law="laplace",
    )  # fmt: skip


def mode(measured, likelihood):
    """Maximise the density that the model states: means, and logits of the first column with levels."""
    model = MODEL.built(Evidence(measured, likelihood))
    density = model.logp_dlogp_function(ravel_inputs=True, mode="FAST_COMPILE")
    density.set_extra_values({})
    start = DictToArrayBijection.map(model.initial_point(random_seed=0))

    def minus(x):
        value, slope = density(x)
        return -value, -slope

    best = optimize.minimize(minus, start.data, jac=True, method="L-BFGS-B", options={"maxiter": 300}).x
    point = DictToArrayBijection.rmap(RaveledVars(best, start.point_map_info))
    return point["mean"], point["logits of w1"].ravel()


def test_huge_epsilon_gives_the_logistic_regression_back():
    import statsmodels.api as sm

    table = simulated(20_000, np.random.default_rng(5))
    measured = plan(10_000).sanitize(table, RandomBits(np.random.default_rng(6)))
    means, found = mode(measured, "plug-in")
    u = table.frame[["z1", "z2"]].to_numpy() / 4
    np.testing.assert_allclose(means, u.mean(axis=0), atol=0.005)
    design = sm.add_constant((u - u.mean(axis=0)) / u.std(axis=0))
    fitted = sm.Logit((table.frame["w1"] == "b").astype(float).to_numpy(), design).fit(disp=0)
    # The moments lose little of what the records say: within two of its standard errors.
    np.testing.assert_array_less(np.abs(found - fitted.params), 2 * fitted.bse)
    assert np.max(np.abs(found - X[:3])) < 0.15


@pytest.mark.parametrize("likelihood", ["noise-aware", "plug-in"])
@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
def test_model_is_built(likelihood, neighbours):
    measured = plan(1, neighbours).sanitize(
        simulated(500, np.random.default_rng(1)), RandomBits(np.random.default_rng(2))
    )
    model = MODEL.built(Evidence(measured, likelihood))
    assert {"mu", "sigma", "coefficients of w1", "coefficients of w3", "factor"} <= set(model.named_vars)
    latent = [variable.name for variable in model.free_RVs if variable.name.startswith(("variances", "moves"))]
    assert bool(latent) == (likelihood == "noise-aware")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LEVELS, "numeric"),
        (NUMERIC, "levels"),
        (NUMERIC + '[columns.w]\nlevels = ["a"]\n', "two or more"),
        (NUMERIC + LEVELS.replace("[columns.w3]\n", "[columns.w3]\npublic = true\n"), "public"),
        (NUMERIC + "[columns.w]\nlevels = " + str([f"l{i}" for i in range(65)]).replace("'", '"'), "64 cells"),
    ],
)
def test_schemas_it_does_not_describe_are_refused(text, said):
    refuses(said, MODEL.declared, schema(text), "replace-one")


def test_records_have_the_law_of_the_draw():
    columns = MODEL.records(DRAW, RecordRequest(20_000), schema(), np.random.default_rng(4))
    z = np.column_stack([columns["z1"], columns["z2"]])
    # Errors of means are below .008: six of them.
    np.testing.assert_allclose(z.mean(axis=0), 4 * MEAN, atol=0.05)
    np.testing.assert_allclose(np.cov(z.T), 16 * FACTOR @ FACTOR.T, atol=0.1)
    cell = columns["w1"] * 3 + columns["w3"]
    shares = np.bincount(cell, minlength=6) / len(cell)
    np.testing.assert_allclose(shares, law(MEAN, X)[0][:6], atol=0.02)
    assert np.max(np.abs(shares - law(MEAN, X + 0.3)[0][:6])) > 0.02
