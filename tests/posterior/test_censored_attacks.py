"""What a hostile reader tried on the censored posterior and got through with once; each must stay closed."""

import threading

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from small_models import about, grid_of, written

from pdips import CensoredPosterior, Schema, Table
from pdips.posterior.model import Blueprint
from pdips.posterior.model_file import as_source
from pdips.posterior.record_likelihood import RecordLikelihood

SPAN = Schema.from_toml("[columns.y]\nlower = -10.0\nupper = 10.0\n")
BOTH = Schema.from_toml("[columns.x]\nlower = 0.0\nupper = 9.0\n[columns.y]\nlower = -10.0\nupper = 10.0\n")


tight = about(parameter=lambda data: pm.Normal("mean", 0.0, 0.005), sd=2.0)
"""A prior far below most of a grid that follows the likelihood."""


@written
def inverse(data):
    """A matrix that is singular for records with x = 3.5."""
    mean = pm.Normal("mean", 0.0, 3.0)
    x = pm.Uniform("x", 0, 9, observed=data["x"])
    scale = pt.abs(pt.linalg.inv((x - 3.5)[:, None, None])[:, 0, 0])
    pm.Normal("y", mean, scale, observed=data["y"])


def test_a_record_that_makes_the_model_raise_is_answered():
    likelihood = RecordLikelihood(Blueprint(as_source(inverse), BOTH).model)
    likelihood.at([np.linspace(-1, 1, 5)])
    ordinary, singular = (
        likelihood(row) for row in likelihood.rows({"x": np.array([1.0, 3.5]), "y": np.array([0.0, 0.0])})
    )
    assert np.isfinite(ordinary).all()
    assert np.isnan(singular).all()


def test_a_tiny_budget_leaves_scores_whole_numbers():
    mechanism = CensoredPosterior(epsilon="1e-9", model=tight, reference={"mean": 0.0})
    table = Table(pd.DataFrame({"y": np.full(50, -3.0)}), SPAN)
    with pytest.warns(UserWarning, match="epsilon is so small"):
        release, _ = mechanism.release(table, rng=np.random.default_rng(1))
    assert len(release.sets[0]) == 50


def test_threads_do_not_share_points():
    table = Table(pd.DataFrame({"y": np.random.default_rng(0).uniform(-9, 9, 600)}), SPAN)
    mechanisms = [CensoredPosterior(epsilon=1, model=tight, reference={"mean": place}) for place in (0.0, 0.01)]

    def scores(mechanism):
        return grid_of(mechanism, table)[1].scores

    alone, found = [scores(each) for each in mechanisms], {}
    threads = [
        threading.Thread(target=lambda place=place, each=each: found.update({place: scores(each)}))
        for place, each in enumerate(mechanisms)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, expected in enumerate(alone):
        np.testing.assert_array_equal(found[place], expected)
    assert not np.array_equal(*alone)


def test_the_statement_of_a_concentrated_price_promises_no_pure_epsilon():
    loss = CensoredPosterior(epsilon=1, model=tight, kind="zcdp", split="per-set", n_sets=100).privacy_loss(SPAN)
    assert "any output by a factor" not in loss.statement
    assert "beyond that, by at most delta = 0.000001" in loss.statement
    pure = CensoredPosterior(epsilon=1, model=tight).privacy_loss(SPAN)
    assert "any output by a factor of at most e^epsilon; the number" in pure.statement
    assert "delta" not in pure.statement
