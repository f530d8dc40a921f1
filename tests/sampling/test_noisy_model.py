"""The PyMC model behind a release of noisy statistics, in one call."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from scipy import special, stats
from tables import refuses

import pdips
from pdips import Column, Modips, Schema, Table, noisy_model
from pdips.posterior import model_file

pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS installation",
)
ILL = Schema(columns={"ill": Column(levels=[0, 1])})
LINE = Schema(
    columns={
        "x": {"lower": -1, "upper": 1, "public": True},
        "y": {"lower": -5, "upper": 5},
    }
)
SHARE = "share of the first level"
N_RECORDS = 400
LOGIT = "share of the first level_logodds__"


@pytest.fixture(scope="module")
def release():
    table = Table(pd.DataFrame({"ill": [0] * 300 + [1] * 100}), ILL)
    mechanism = Modips(epsilon="1/5", model="bernoulli", n_sets=2)
    return mechanism.release(table, rng=np.random.default_rng(1))[0]


def density(model, **at):
    return model.compile_logp(mode="FAST_COMPILE")(at)


def by_hand(share, noisy, scale):
    """The log density of a share and of a noisy count, summed over exact counts, but
    for a constant.
    """
    exact = np.arange(N_RECORDS + 1)
    terms = stats.binom.logpmf(exact, N_RECORDS, share) - np.abs(noisy - exact) / scale
    # on the log odds, whose Jacobian is share * (1 - share)
    prior = stats.beta.logpdf(share, 1 / 3, 1 / 3) + np.log(share * (1 - share))
    return prior + special.logsumexp(terms)


def test_the_model_is_that_of_the_noisy_count(release):
    model = noisy_model(release)
    assert [variable.name for variable in model.free_RVs] == [SHARE]
    first = release.tables["statistics"].query("statistic == 'counts'").iloc[0]
    shares = np.array([0.6, 0.7, 0.75, 0.9])
    found = [density(model, **{LOGIT: special.logit(share)}) for share in shares]
    wanted = [by_hand(share, first["noisy"], first["scale"]) for share in shares]
    np.testing.assert_allclose(np.diff(found), np.diff(wanted), rtol=1e-9)
    # the broken twin: without the noise
    plug_in = noisy_model(release, likelihood="plug-in")
    exact = [density(plug_in, **{LOGIT: special.logit(share)}) for share in shares]
    assert not np.allclose(np.diff(exact), np.diff(wanted), rtol=0.05)


def test_a_release_a_folder_and_a_tree_have_the_same_model(release, tmp_path):
    release.publish(tmp_path / "public", allow=["seeded"])
    at = {LOGIT: np.array(0.9)}
    wanted = density(noisy_model(release), **at)
    opened = pdips.open(tmp_path)
    for other in (tmp_path, tmp_path / "public", opened, release.posterior):
        assert density(noisy_model(other), **at) == pytest.approx(wanted)
    with pm.Model() as own:
        noisy_model(release)
        # the context is left as it was, and nothing was added to it
        assert pm.modelcontext(None) is own
    assert not own.named_vars


def test_public_columns_are_those_of_the_sets(tmp_path):
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, 300)
    frame = pd.DataFrame({"x": x, "y": np.clip(1 + x + rng.normal(0, 1, 300), -5, 5)})
    mechanism = Modips(epsilon=2, model="linear_regression")
    release, _ = mechanism.release(Table(frame, LINE), rng=rng)
    release.publish(tmp_path / "public", allow=["seeded"])
    models = [noisy_model(one) for one in (release, tmp_path)]
    names = [variable.name for variable in models[0].free_RVs]
    assert "sd" in names
    points = [model.initial_point(random_seed=0) for model in models]
    both = [density(model, **points[0]) for model in models]
    assert both[0] == pytest.approx(both[1])
    gram = models[1]["gram"].get_value()
    ones = np.column_stack([np.ones(300), np.round(x, 6)])
    np.testing.assert_allclose(gram, ones.T @ ones, rtol=1e-3)


@pytest.mark.slow
def test_draws_of_the_model_are_the_posterior_of_the_release(release):
    with noisy_model(release):
        drawn = pm.sample(
            1000, tune=500, chains=2, cores=1, random_seed=3, progressbar=False
        )
    mine = drawn["posterior"][SHARE].to_numpy().ravel()
    released = release.posterior["posterior"][SHARE].to_numpy().ravel()
    # both have an error of about 0.03 standard deviations: false once in 10,000 seeds
    sd = released.std()
    assert abs(mine.mean() - released.mean()) < 0.2 * sd
    assert abs(mine.std() / sd - 1) < 0.2
    with noisy_model(release, likelihood="plug-in"):
        narrow = pm.sample(
            1000, tune=500, chains=2, cores=1, random_seed=3, progressbar=False
        )
    # the broken twin
    assert abs(narrow["posterior"][SHARE].to_numpy().std() / sd - 1) > 0.2


def test_text_of_a_release_is_not_run_unasked(release, tmp_path):
    path = tmp_path / "own.py"
    text = Path(model_file.path("bernoulli")).read_text(encoding="utf-8")
    path.write_text(text.replace("PRIOR = 1 / 3", "PRIOR = 1"), encoding="utf-8")
    other = {"model": "own.py", "model_source": path.read_text(encoding="utf-8")}
    theirs = replace(release, settings={**release.settings, **other})
    refuses("own.py, doesn't come with this pdips", noisy_model, theirs)
    changed = {**other, "model": "bernoulli.py"}
    theirs = replace(release, settings={**release.settings, **changed})
    refuses("bernoulli.py, doesn't come with this pdips", noisy_model, theirs)
    at = {LOGIT: np.array(0.9)}
    own, ours = (noisy_model(release, model=model) for model in (path, "bernoulli"))
    assert density(own, **at) != pytest.approx(density(ours, **at))


def test_what_has_no_model_of_noisy_statistics_is_refused(release, tmp_path):
    settings = {**release.settings, "split": "per-set"}
    refuses("sanitization of its own", noisy_model, replace(release, settings=settings))
    theirs = replace(release, mechanism="margins")
    refuses("one of margins: noisy_likelihood", noisy_model, theirs)
    settings = {**release.settings, "epsilon": 2.0}
    refuses("other noise than", noisy_model, replace(release, settings=settings))
    refuses("likelihood must be", noisy_model, release, likelihood="exact")
    refuses("is no folder of a pdips release", noisy_model, tmp_path)
    refuses("is of type int", noisy_model, 3)
