"""NUTS draws from the posterior that the grid has exactly: corrections, centres and weights mean the same to both."""

from fractions import Fraction

import arviz_stats as az
import numpy as np
import pytest
from small_models import UNIT, beta, beta_records, blueprint

from pdips.posterior import private_reference as stages
from pdips.posterior.model import split
from pdips.posterior.nuts import sample
from pdips.posterior.private_reference import Stage
from pdips.posterior.target import Target, score_grid

N = 300


@pytest.fixture(scope="module")
def space():
    return blueprint(beta, UNIT)


@pytest.fixture(scope="module")
def stage(space) -> Stage:
    """A reference that is off by some deviations, and so few nats that many terms are cut."""
    place = space.parameters_of({"phi": np.array(0.17), "lam": np.array(3.0)})
    simulated = {"y": stages.simulate(space, place, {})["y"][:500]}
    anchor = stages.anchor_at(space.likelihood, place, simulated, N)
    return Stage(anchor=anchor, n_records=N, centre=split(space.model, place[None]), simulated=simulated)


@pytest.fixture(scope="module")
def values():
    return {"y": beta_records(N)}


def target_of(space, stage):
    return Target(space=space, stage=stage, window=Fraction(1, 10), weights=True)


def moments_on_the_grid(space, stage, values):
    scored = score_grid(target_of(space, stage), values, np.ones(N, dtype=np.int64))
    p, place = np.exp(scored.log_probabilities()), scored.grid.at(scored.index)
    mean = p @ place
    return mean, np.sqrt(p @ (place - mean) ** 2)


def test_chains_and_grid_have_one_posterior(space, stage, values):
    # Means differ by less than 4 Monte Carlo errors each but once in 8,000; the grid's own error is far below one.
    mean, deviation = moments_on_the_grid(space, stage, values)
    model = target_of(space, stage).model_of(values)
    tree = sample(model, draws=1_500, tune=500, chains=2, rng=np.random.default_rng(1), sampler="pymc")
    posterior = tree["posterior"].to_dataset()
    phi, lam = posterior["phi"], np.log(posterior["lam"] - 0.1)
    for draws, expected, spread in zip([np.log(phi / (1 - phi)), lam], mean, deviation, strict=True):
        error = spread / np.sqrt(float(az.ess(draws.to_numpy(), method="bulk")))
        assert float(draws.mean()) == pytest.approx(expected, abs=4 * error)
        assert float(draws.std()) == pytest.approx(spread, rel=0.12)
    # the broken twin: without the correction
    other, _ = moments_on_the_grid(space, Stage(anchor=stage.anchor, n_records=N, centre=stage.centre), values)
    assert np.abs(other - mean).max() > deviation.max()


def test_centres_and_weights_are_those_of_the_grid(space, stage, values):
    target = target_of(space, stage)
    centre, weights = target.centres_and_weights(values)
    by_row = [whole for whole, _ in target._each(stage.centre, values)]
    np.testing.assert_allclose(by_row, 0, atol=1e-9)  # at the centre itself every term is 0
    space.likelihood.at(stage.centre)
    np.testing.assert_allclose(centre, [space.likelihood(row)[0] for row in space.likelihood.rows(values)], rtol=1e-9)
    assert ((weights > 0) & (weights <= 1)).all()
    assert weights.min() < 0.9
    alone = [target.centres_and_weights({"y": values["y"][[i]]}) for i in (0, 7)]
    np.testing.assert_allclose([each[1][0] for each in alone], weights[[0, 7]], rtol=1e-12)
