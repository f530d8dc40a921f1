"""The model of sequential logits: ridge fits of populations, coefficients given noisy
fits, records column after column.
"""

import numpy as np
import pandas as pd
import pytest
from laws import ACCEPT, REJECT
from scipy import stats
from tables import refuses

from pdips import Modips, Schema, Table
from pdips.posterior.inspection import released_draws
from pdips.statistics import regression
from pdips.statistics.model import RecordRequest, as_statistic_model

NUMBER = {"lower": -4, "upper": 4}
SCHEMA = Schema(
    columns={"z": NUMBER, "w": {"levels": [0, 1]}, "v": {"levels": ["a", "b", "c"]}}
)


def simulated_table(n: int, seed: int) -> Table:
    rng = np.random.default_rng(seed)
    z = rng.standard_normal(n).clip(-4, 4)
    w = (rng.random(n) < 1 / (1 + np.exp(1 - z))).astype(int)
    odds = np.column_stack([np.ones(n), np.exp(0.5 * z - w), np.exp(-0.5 * z)])
    v = (
        rng.random((n, 1)) >= (odds / odds.sum(axis=1, keepdims=True)).cumsum(axis=1)
    ).sum(axis=1)
    return Table(
        pd.DataFrame({"z": z, "w": w, "v": np.array(["a", "b", "c"])[v]}), SCHEMA
    )


def test_the_fit_of_a_population_balances_score_and_ridge():
    design, weights = (
        np.random.default_rng(1).uniform(-0.5, 0.5, (200, 3)),
        np.full(200, 1 / 200),
    )
    shares = regression.level_shares(design, np.array([[2.0, -1, 0], [0.5, 3, -2]]))
    fit, _ = regression.population_fit(design, shares, weights, n=500, kappa=20.0)
    now = regression.level_shares(design, fit.reshape(2, 3))
    score = 500 * ((weights[:, None] * (shares - now)[:, 1:]).T @ design).ravel()
    np.testing.assert_allclose(score, 20 * fit, atol=1e-6)
    nearly, _ = regression.population_fit(design, shares, weights, n=500, kappa=1e-6)
    np.testing.assert_allclose(
        nearly.reshape(2, 3), [[2.0, -1, 0], [0.5, 3, -2]], atol=1e-4
    )


def test_information_is_the_curvature_of_the_log_likelihood():
    rng = np.random.default_rng(2)
    design, weights, beta = (
        rng.uniform(-1, 1, (50, 2)),
        rng.dirichlet(np.ones(50)),
        np.array([0.4, -1, 0.3, 0.8]),
    )

    def gradient(at):
        shares = regression.level_shares(design, at.reshape(2, 2))
        return ((weights[:, None] * shares[:, 1:]).T @ design).ravel()

    by_differences = [
        (gradient(beta + step) - gradient(beta - step)) / 2e-5
        for step in 1e-5 * np.eye(4)
    ]
    shares = regression.level_shares(design, beta.reshape(2, 2))
    np.testing.assert_allclose(
        regression.information(design, shares.T[1:], weights), by_differences, atol=1e-8
    )


def kolmogorov(scale: float) -> float:
    """Compare draws of a coefficient with its posterior by quadrature: b = beta / 2 +
    normal noise + Laplace noise.
    """
    settings = {
        "gaussian": False,
        "prior_scale": 2.0,
        "n_draws": 3000,
        "rng": np.random.default_rng(3),
    }
    draws = regression._gibbs(
        np.array([[0.5]]), np.array([[0.3]]), np.array([1.2]), scale, **settings
    )
    grid = np.linspace(-9, 9, 2001)
    exact = np.linspace(-12, 12, 4001)
    noise = np.exp(-np.abs(1.2 - exact) / 0.8)
    likelihood = (stats.norm.pdf(exact, 0.5 * grid[:, None], np.sqrt(0.3)) * noise).sum(
        axis=1
    )
    cumulated = np.cumsum(likelihood * stats.norm.pdf(grid, 0, 2))
    # every fifth draw, nearly independent
    return float(
        stats.kstest(
            draws[::5, 0], lambda x: np.interp(x, grid, cumulated / cumulated[-1])
        ).pvalue
    )


@pytest.mark.slow
def test_coefficients_have_the_posterior_of_quadrature():
    assert kolmogorov(0.8) > ACCEPT
    assert kolmogorov(0.05) < REJECT


@pytest.mark.slow
def test_with_little_noise_coefficients_are_found():
    release, _ = Modips(epsilon=20_000, model="slomag").release(
        simulated_table(3000, 4), rng=np.random.default_rng(5)
    )
    draws = released_draws(release)
    found = (
        draws[[f"coefficients of w[0, {i}]" for i in range(2)]]
        * np.array([1, 1 / 4])
        / np.sqrt(2)
    )
    # each within four posterior standard deviations of the truth
    assert (np.abs(found.mean() - [-1, 1]) < 4 * found.std()).all()
    assert (found.std() < 0.1).all()


def test_records_follow_the_draw():
    model, rng = as_statistic_model("slomag"), np.random.default_rng(6)
    draw = {
        "mean": np.array([0.1]),
        "Sigma": np.array([[0.04]]),
        "coefficients of w": np.array([[-1.0, 6.0]]),
    }
    draw["coefficients of v"] = np.array([[0.0, 0.0, 3.0], [1.0, 0.0, 0.0]])
    made = model.records(draw, RecordRequest(200_000), SCHEMA, rng)
    z, w, v = (np.asarray(made[name]) for name in ("z", "w", "v"))
    assert (z.mean(), z.std()) == pytest.approx((0.4, 0.8), abs=0.01)
    near = np.abs(z) < 0.1  # where u is 0
    assert w[near].mean() == pytest.approx(1 / (1 + np.exp(1 / np.sqrt(2))), abs=0.02)
    odds = np.exp([0, 3 / np.sqrt(3), 1 / np.sqrt(3)])
    np.testing.assert_allclose(
        np.bincount(v[w == 1], minlength=3) / (w == 1).sum(),
        odds / odds.sum(),
        atol=0.01,
    )


@pytest.mark.parametrize(
    "settings",
    [{"likelihood": "plug-in"}, {"neighbours": "add-remove", "n_records": 50}],
)
def test_what_it_is_not_for_is_refused_before_the_charge(settings):
    made = Modips(epsilon=1, model="slomag", **settings)
    refuses("replace-one and likelihood = noise-aware", made.spends, SCHEMA)
