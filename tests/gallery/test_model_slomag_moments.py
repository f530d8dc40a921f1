"""The sequential logits with a marginal normal law: moments against simulation, refusals, records."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from laws import ACCEPT, REJECT
from scipy import stats
from tables import bits, refuses

from pdips import Modips, Schema, Table
from pdips.posterior.model import initial, most_probable, split
from pdips.posterior.model_file import load
from pdips.scores.posterior import prior_with_slope
from pdips.statistics import regression
from pdips.statistics.model import RecordRequest, as_statistic_model
from pdips.statistics.noisy_model import Evidence
from pdips.statistics.plan import StatisticPlan

NUMBER = {"lower": -4, "upper": 4}
FOUR = Schema(columns={"z1": NUMBER, "z2": NUMBER, "w1": {"levels": ["a", "b"]}, "w3": {"levels": ["a", "b", "c"]}})
SIZES = (2, 3)
MEAN = np.array([0.05, -0.1])
FACTOR = np.array([[0.25, 0.0], [0.12, 0.2]])
LOGITS = {"w1": np.array([[-1.0, 0.5, -1.0]]), "w3": np.array([[0.0, -1.5, 1.0, 0.5], [0.1, -1.0, -0.5, 1.5]])}
X = np.concatenate([each.ravel() for each in LOGITS.values()])
MODEL = as_statistic_model("slomag_moments")
FILE, _ = load("slomag_moments")
DRAW = {"mean": MEAN, "factor": FACTOR} | {f"logits of {name}": each for name, each in LOGITS.items()}


def simulated(n, rng):
    columns = MODEL.records(DRAW, RecordRequest(n), FOUR, rng)
    named = {name: np.array(["a", "b", "c"])[columns[name]] for name in ("w1", "w3")}
    return Table(pd.DataFrame({name: columns[name] for name in ("z1", "z2")} | named), FOUR)


AT = pt.vector("mean", shape=(2,)), pt.vector("x", shape=(len(X),))
BY_COLUMN = [pt.specify_shape(AT[1][:3].reshape((1, 3)), (1, 3)), pt.specify_shape(AT[1][3:].reshape((2, 4)), (2, 4))]
law = pytensor.function([*AT], FILE.moments(AT[0], pt.as_tensor(FACTOR), BY_COLUMN), mode="FAST_COMPILE")
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
    # the broken twins: moments of other parameters
    assert farthest(MEAN + 0.01, X) > 5.5
    assert farthest(MEAN, X + np.eye(len(X))[5] * 0.15) > 5.5


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
    given = Evidence(plan(1).sanitize(simulated(50, np.random.default_rng(1)), bits(2)), "plug-in")
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
    asked = {"statistics": MODEL.declared(FOUR, neighbours), "amount": Fraction(epsilon)}
    return StatisticPlan(schema=FOUR, neighbours=neighbours, budget="equal", law="laplace", **asked)


def test_huge_epsilon_gives_the_logistic_regression_back():
    import statsmodels.api as sm

    table = simulated(20_000, np.random.default_rng(5))
    model = MODEL.built(Evidence(plan(10_000).sanitize(table, bits(6)), "plug-in"))
    density = prior_with_slope(model)  # and of the potentials, which are all that the statistics say
    place = most_probable(lambda at: density(*(part[0] for part in split(model, at[None]))), initial(model), 300)
    best = dict(zip((value.name for value in model.value_vars), split(model, place[None]), strict=True))
    found, u = best["logits of w1"].ravel(), table.frame[["z1", "z2"]].to_numpy() / 4
    np.testing.assert_allclose(best["mean"][0], u.mean(axis=0), atol=0.005)
    design = sm.add_constant((u - u.mean(axis=0)) / u.std(axis=0))
    fitted = sm.Logit((table.frame["w1"] == "b").astype(float).to_numpy(), design).fit(disp=0)
    # The moments lose little of what the records say: within two of its standard errors.
    np.testing.assert_array_less(np.abs(found - fitted.params), 2 * fitted.bse)
    assert np.max(np.abs(found - X[:3])) < 0.15


@pytest.mark.parametrize("likelihood", ["noise-aware", "plug-in"])
def test_model_is_built(likelihood, neighbours):
    measured = plan(1, neighbours).sanitize(simulated(500, np.random.default_rng(1)), bits(2))
    model = MODEL.built(Evidence(measured, likelihood))
    assert {"mu", "sigma", "coefficients of w1", "coefficients of w3", "factor"} <= set(model.named_vars)
    latent = [variable.name for variable in model.free_RVs if variable.name.startswith(("variances", "moves"))]
    assert bool(latent) == (likelihood == "noise-aware")


def test_records_have_the_law_of_the_draw():
    columns = MODEL.records(DRAW, RecordRequest(20_000), FOUR, np.random.default_rng(4))
    z = np.column_stack([columns["z1"], columns["z2"]])
    # Errors of means are below .008: six of them.
    np.testing.assert_allclose(z.mean(axis=0), 4 * MEAN, atol=0.05)
    np.testing.assert_allclose(np.cov(z.T), 16 * FACTOR @ FACTOR.T, atol=0.1)
    cell = columns["w1"] * 3 + columns["w3"]
    shares = np.bincount(cell, minlength=6) / len(cell)
    np.testing.assert_allclose(shares, law(MEAN, X)[0][:6], atol=0.02)
    assert np.max(np.abs(shares - law(MEAN, X + 0.3)[0][:6])) > 0.02


# models/slomag.py: ridge fits of populations, coefficients given noisy fits, records column after column.

SCHEMA = Schema(columns={"z": NUMBER, "w": {"levels": [0, 1]}, "v": {"levels": ["a", "b", "c"]}})


def simulated_table(n: int, seed: int) -> Table:
    rng = np.random.default_rng(seed)
    z = rng.standard_normal(n).clip(-4, 4)
    w = (rng.random(n) < 1 / (1 + np.exp(1 - z))).astype(int)
    odds = np.column_stack([np.ones(n), np.exp(0.5 * z - w), np.exp(-0.5 * z)])
    v = (rng.random((n, 1)) >= (odds / odds.sum(axis=1, keepdims=True)).cumsum(axis=1)).sum(axis=1)
    return Table(pd.DataFrame({"z": z, "w": w, "v": np.array(["a", "b", "c"])[v]}), SCHEMA)


def test_the_fit_of_a_population_balances_score_and_ridge():
    design, weights = np.random.default_rng(1).uniform(-0.5, 0.5, (200, 3)), np.full(200, 1 / 200)
    shares = regression.level_shares(design, np.array([[2.0, -1, 0], [0.5, 3, -2]]))
    fit, _ = regression.population_fit(design, shares, weights, n=500, kappa=20.0)
    now = regression.level_shares(design, fit.reshape(2, 3))
    score = 500 * ((weights[:, None] * (shares - now)[:, 1:]).T @ design).ravel()
    np.testing.assert_allclose(score, 20 * fit, atol=1e-6)
    nearly, _ = regression.population_fit(design, shares, weights, n=500, kappa=1e-6)
    np.testing.assert_allclose(nearly.reshape(2, 3), [[2.0, -1, 0], [0.5, 3, -2]], atol=1e-4)


def test_information_is_the_curvature_of_the_log_likelihood():
    rng = np.random.default_rng(2)
    design, weights, beta = rng.uniform(-1, 1, (50, 2)), rng.dirichlet(np.ones(50)), np.array([0.4, -1, 0.3, 0.8])

    def gradient(at):
        shares = regression.level_shares(design, at.reshape(2, 2))
        return ((weights[:, None] * shares[:, 1:]).T @ design).ravel()

    by_differences = [(gradient(beta + step) - gradient(beta - step)) / 2e-5 for step in 1e-5 * np.eye(4)]
    shares = regression.level_shares(design, beta.reshape(2, 2))
    np.testing.assert_allclose(regression.information(design, shares.T[1:], weights), by_differences, atol=1e-8)


def kolmogorov(scale: float) -> float:
    """Compare draws of a coefficient with its posterior by quadrature: b = beta / 2 + normal noise + Laplace noise."""
    settings = {"gaussian": False, "prior_scale": 2.0, "n_draws": 3000, "rng": np.random.default_rng(3)}
    draws = regression._gibbs(np.array([[0.5]]), np.array([[0.3]]), np.array([1.2]), scale, **settings)
    grid = np.linspace(-9, 9, 2001)
    exact = np.linspace(-12, 12, 4001)
    noise = np.exp(-np.abs(1.2 - exact) / 0.8)
    likelihood = (stats.norm.pdf(exact, 0.5 * grid[:, None], np.sqrt(0.3)) * noise).sum(axis=1)
    cumulated = np.cumsum(likelihood * stats.norm.pdf(grid, 0, 2))
    # every fifth draw, nearly independent
    return float(stats.kstest(draws[::5, 0], lambda x: np.interp(x, grid, cumulated / cumulated[-1])).pvalue)


def test_coefficients_have_the_posterior_of_quadrature():
    assert kolmogorov(0.8) > ACCEPT
    assert kolmogorov(0.05) < REJECT


def test_with_little_noise_coefficients_are_found():
    release, _ = Modips(epsilon=20_000, model="slomag").release(simulated_table(3000, 4), rng=np.random.default_rng(5))
    draws = release.tables["posterior"]
    found = draws[[f"coefficients of w[0, {i}]" for i in range(2)]] * np.array([1, 1 / 4]) / np.sqrt(2)
    # each within four posterior standard deviations of the truth
    assert (np.abs(found.mean() - [-1, 1]) < 4 * found.std()).all()
    assert (found.std() < 0.1).all()


def test_records_follow_the_draw():
    model, rng = as_statistic_model("slomag"), np.random.default_rng(6)
    draw = {"mean": np.array([0.1]), "Sigma": np.array([[0.04]]), "coefficients of w": np.array([[-1.0, 6.0]])}
    draw["coefficients of v"] = np.array([[0.0, 0.0, 3.0], [1.0, 0.0, 0.0]])
    made = model.records(draw, RecordRequest(200_000), SCHEMA, rng)
    z, w, v = (np.asarray(made[name]) for name in ("z", "w", "v"))
    assert (z.mean(), z.std()) == pytest.approx((0.4, 0.8), abs=0.01)
    near = np.abs(z) < 0.1  # where u is 0
    assert w[near].mean() == pytest.approx(1 / (1 + np.exp(1 / np.sqrt(2))), abs=0.02)
    odds = np.exp([0, 3 / np.sqrt(3), 1 / np.sqrt(3)])
    np.testing.assert_allclose(np.bincount(v[w == 1], minlength=3) / (w == 1).sum(), odds / odds.sum(), atol=0.01)


@pytest.mark.parametrize("settings", [{"likelihood": "plug-in"}, {"neighbours": "add-remove", "n_records": 50}])
def test_what_it_is_not_for_is_refused_before_the_charge(settings):
    made = Modips(epsilon=1, model="slomag", **settings)
    refuses("replace-one and likelihood = noise-aware", made.spends, SCHEMA)
