"""The ``pm.Model`` behind a release of each model mechanism, in one call."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest

from pdips import CensoredPosterior, InputError, Modips, Schema, Table, noisy_model

SCHEMA = Schema.model_validate({"columns": {"ill": {"levels": [0, 1]}}})
N_RECORDS = 400
N_ILL = 100


@pytest.fixture(scope="module")
def table():
    ill = np.repeat([0, 1], [N_RECORDS - N_ILL, N_ILL])
    return Table(pd.DataFrame({"ill": ill}), SCHEMA)


def build_model(data, schema):
    """Model records by one share."""
    with pm.Model() as model:
        share = pm.Beta("share", 1, 1)
        pm.Bernoulli("ill", share, observed=data["ill"])
    return model


def mean_of(model):
    """Return the posterior mean of the share, on a grid of its log odds."""
    log_density = model.compile_logp()
    odds = np.linspace(-8, 8, 2_001)
    heights = np.array([float(log_density({"share_logodds__": x})) for x in odds])
    weights = np.exp(heights - heights.max())
    return float((weights / weights.sum()) @ (1 / (1 + np.exp(-odds))))


@pytest.mark.parametrize("centre", ["zero", "staged"])
def test_the_model_behind_a_censored_release_is_its_posterior(table, centre):
    mechanism = CensoredPosterior(epsilon=4, model=build_model, centre=centre)
    _, record = mechanism.release(table, rng=np.random.default_rng(1))
    # ways in which draws from the release's own grid differ: 1,000, so 5 errors
    drawn = record.posterior["posterior"]["share"].to_numpy()
    error = drawn.std() / np.sqrt(drawn.size)
    assert abs(drawn.mean() - mean_of(record.model)) < 5 * error
    # the broken twin: another mechanism's
    wider = CensoredPosterior(epsilon="1/8", model=build_model, centre="zero")
    _, other = wider.release(table, rng=np.random.default_rng(1))
    assert abs(drawn.mean() - mean_of(other.model)) > 5 * error


def test_of_modips_it_is_that_of_noisy_statistics_and_others_have_none(table):
    release, record = Modips(epsilon=1, model="bernoulli").release(table)
    assert isinstance(noisy_model(release), pm.Model)
    with pytest.raises(InputError, match="noisy_model"):
        record.model  # noqa: B018
