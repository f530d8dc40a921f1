"""Values of a count that hardly happen are left out of what follows from public
numbers.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
from small_models import written

from pdips import Schema, Scores, Table
from pdips.privacy.curator import Clock, Drawing
from pdips.privacy.noise import RandomBits
from pdips.scores import inner_points

SCHEMA = Schema(
    columns={
        "z": {"lower": -2, "upper": 2},
        "y": {"lower": 0, "upper": 100, "integer": True},
    }
)


@written
def visits(data):
    b = pm.Normal("b", 0, 2, shape=2)
    pm.Poisson("y", pm.math.exp(b[0] + b[1] * data["z"]), observed=data["y"])


def test_likelihoods_are_those_with_all_values(monkeypatch):
    """The broken twin leaves out whatever isn't among the likeliest."""
    rng = np.random.default_rng(6)
    z = rng.uniform(-2, 2, 3_000)
    frame = pd.DataFrame({"z": z, "y": rng.poisson(np.exp(0.8 + 0.4 * z))})
    made = Scores(epsilon=1, delta="1e-6", model=visits)
    plan = made.plan(SCHEMA)
    noise = RandomBits(np.random.default_rng(1))
    sums = made.ask(
        plan, Drawing(plan, Table(frame, SCHEMA), noise, Clock(), None)
    ).sums
    here = sums.mode_of_last().place
    places = here + np.array([[0.0, 0.0], [0.3, 0.0], [-0.3, 0.2], [0.0, -0.3]])

    def likelihoods(least):
        monkeypatch.setattr(inner_points, "LEAST_LIKELY", least)
        again = replace(sums, held={})
        return again.means.inner.shape[1], again.log_likelihood(places)

    n_all, with_all = likelihoods(-1.0)
    n_likely, with_likely = likelihoods(1e-30)
    _, with_few = likelihoods(0.05)
    assert n_all == 201
    assert n_likely < 100
    np.testing.assert_allclose(with_likely, with_all, atol=1e-9)
    assert np.abs(with_few - with_all).max() > 0.1
