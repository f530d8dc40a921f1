"""Simulation-based calibration of posteriors from noisy sums: parameters from the prior, a table, a release, ranks."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import simuk
import xarray as xr
from scipy import stats
from small_models import written

from pdips import Column, Schema, Scores, Table
from pdips.posterior.columns import public_stand_ins
from pdips.scores import scores as module

DRAWS, RUNS, CELLS = 31, 48, 8
ACCEPT, REJECT = 1e-4, 1e-6  # Nine parameters are tested: a sound posterior is rejected once in 1,100 runs of this file
NUMBER = Column(lower=-60, upper=60)
X = Column(lower=-2, upper=2, public=True)


@written
def share(data):
    pm.Bernoulli("y", pm.Beta("share", 2, 2), observed=data["y"])


@written
def normal(data):
    pm.Normal("y", pm.Normal("mu", 0, 3), pm.LogNormal("sd", 0.5, 0.4), observed=data["y"])


@written
def poisson(data):
    pm.Poisson("y", pm.LogNormal("rate", 1, 0.5), observed=data["y"])


@written
def gamma(data):
    pm.Gamma("y", alpha=pm.LogNormal("shape", 0.7, 0.3), beta=pm.LogNormal("rate", 0, 0.3), observed=data["y"])


@written
def regression(data):
    a, b, sd = pm.Normal("a", 0, 2), pm.Normal("b", 0, 2), pm.LogNormal("sd", 0.5, 0.4)
    pm.Normal("y", a + b * data["x"], sd, observed=data["y"])


MODELS = {
    "share": (share, {"y": Column(levels=[0, 1])}, "pure"),
    "normal": (normal, {"y": NUMBER}, "zcdp"),
    "poisson": (poisson, {"y": Column(lower=0, upper=80, integer=True)}, "pure"),
    "gamma": (gamma, {"y": Column(lower=1e-6, upper=100)}, "zcdp"),
    "regression": (regression, {"x": X, "y": NUMBER}, "zcdp"),
}


class Calibration(simuk.SBC):
    """simuk's simulation-based calibration, where a posterior is what a release publishes."""

    def __init__(self, build, columns, kind, n=500):
        self.schema, self.n = Schema(columns=columns), n
        self.mechanism = Scores(epsilon=1, model=build, kind=kind, draws=500)
        self.space = self.mechanism.space(self.schema)
        self.public = public_stand_ins(self.schema, n)
        start = self.space.values_of(self.space.prior[:1])[0]
        self.space.draw(start, n, self.public, np.random.default_rng(0))  # compiled here, not inside of simuk's model
        model = build({name: np.ones(n) for name in columns}, self.schema)
        super().__init__(model, simulator=self.records, num_simulations=RUNS, seed=3, progress_bar=False)

    def records(self, seed, **parameters):
        given = {name: np.asarray(value) for name, value in parameters.items() if name != "y"}
        return {"y": self.space.draw(given, self.n, self.public, np.random.default_rng(seed))["y"]}

    def _get_posterior_samples(self, replicated):
        rng = np.random.default_rng(int(self._seeds[self._simulations_complete]) + 1)
        columns = self.public | {"y": np.asarray(replicated["y"])}
        release, _ = self.mechanism.release(Table(pd.DataFrame(columns), self.schema), rng=rng)
        kept = release.tables["posterior"].iloc[rng.permutation(500)[:DRAWS]]
        return xr.Dataset({name: ("sample", kept[name].to_numpy()) for name in self.var_names})


def p_values(found):
    found.run_simulations()
    ranks = {name: np.ravel(each) * CELLS // (DRAWS + 1) for name, each in found.simulations["prior_sbc"].items()}
    return [stats.chisquare(np.bincount(each, minlength=CELLS)).pvalue for each in ranks.values()]


@pytest.mark.parametrize("name", MODELS)
def test_posteriors_are_calibrated(name):
    assert min(p_values(Calibration(*MODELS[name]))) > ACCEPT


def test_a_posterior_that_takes_noise_for_records_is_not(monkeypatch):
    def too_sure(sums, here, *given, **more):  # the broken twin: noise as if it had a fiftieth of its variance
        return original(sums, replace(here, noise=here.noise / 50), *given, **more)

    original = module.posterior_draws
    monkeypatch.setattr(module, "posterior_draws", too_sure)
    assert min(p_values(Calibration(*MODELS["normal"], n=50))) < REJECT
