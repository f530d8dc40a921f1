"""What a release says, in a model of the analyst's own."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from tables import refuses

import pdips
from pdips import Schema, noisy_likelihood

pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS installation",
)
REGIONS = ["east", "north", "west"]
SCHEMA = Schema(
    columns={
        "height": {"lower": 100.0, "upper": 220.0},
        "region": {"levels": REGIONS, "public": True},
    }
)
POINT = {
    "a": np.array([165.0, 170.5, 176.0]),
    "b": np.array(0.4),
    "sigma_log__": np.array(2.0),
}


def people(n: int = 600) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    region = rng.integers(3, size=n)
    height = 165 + 5.0 * region + rng.normal(0, 8, n)
    named = np.array(REGIONS)[region]
    return pd.DataFrame({"height": height.clip(100, 220), "region": named})


def make(df):
    """Groups, and the spread."""
    codes, regions = pd.factorize(df["region"], sort=True)
    with pm.Model(coords={"region": regions}) as model:
        a = pm.Normal("a", 170, 20, dims="region")
        sigma = pm.HalfNormal("sigma", 20)
        pm.Normal("obs", a[codes], sigma, observed=df["height"].values)
    return model


def other(df):
    """Another parameter more."""
    with pm.Model() as model:
        mean = pm.Normal("mean", 170, 20)
        sigma = pm.HalfNormal("sigma", 20)
        pm.Normal("obs", mean, sigma, observed=df["height"].values)
    return model


@pytest.fixture(scope="module")
def trees():
    """Releases of two tables by one model."""
    settings = {"epsilon": 2, "sets": 1, "seed": 5, "progress": False}
    return [
        pdips.sample(make, people(n), SCHEMA, draws=200, **settings) for n in (600, 500)
    ]


def priors(coords=REGIONS, **a):
    """Write down the variables of the released model, by the same priors."""
    pm.modelcontext(None).add_coord("region", coords)
    pm.Normal("a", 170, 20, **(a or {"dims": "region"}))
    pm.HalfNormal("sigma", 20)


def term(model, name="noisy_sums"):
    """Return the log density of the noisy sums, by value variables."""
    return model.compile_logp(vars=[model[name]], mode="FAST_COMPILE")


def test_in_a_context_the_sums_are_added_to_that_model(trees):
    tree = trees[0]
    alone = noisy_likelihood(make, tree)
    with pm.Model() as own:
        priors()
        added = noisy_likelihood(make, tree)
    assert added is own["noisy_sums"]
    assert own.observed_RVs == [added]
    assert {*own.named_vars} == {"a", "sigma", "noisy_sums"}
    point = {name: POINT[name] for name in ("a", "sigma_log__")}
    whole = [each.compile_logp(mode="FAST_COMPILE")(point) for each in (own, alone)]
    assert whole[0] == pytest.approx(whole[1])


@pytest.mark.slow
def test_a_folder_says_the_same(trees, tmp_path):
    tree = trees[0]
    point = {name: POINT[name] for name in ("a", "sigma_log__")}
    known = term(noisy_likelihood(make, tree))(point)
    tree.pdips.publish(tmp_path / "public", allow=["seeded"])
    for received in (tmp_path, tmp_path / "public", pdips.open(tmp_path)):
        again = noisy_likelihood(make, received)
        assert term(again)(point) == pytest.approx(known)


@pytest.mark.slow
def test_other_priors_groups_and_transformed_parameters(trees):
    point = {name: POINT[name] for name in ("a", "sigma_log__")}
    alone = noisy_likelihood(make, trees[0])
    with pm.Model(coords={"where": REGIONS}) as own:
        tau = pm.HalfNormal("tau", 10)
        pm.Normal("a", pm.Normal("centre", 170, 5), tau, dims="where")
        log_sigma = pm.Normal("log_sigma", 2, 1)
        pm.Deterministic("sigma", pm.math.exp(log_sigma))
        noisy_likelihood(make, trees[0])
    here = own.initial_point() | {"a": point["a"], "log_sigma": np.array(2.0)}
    assert term(own)(here) == pytest.approx(term(alone)(point))
    # the broken twin: a deviation that is another one
    assert term(own)(here | {"log_sigma": np.array(2.3)}) != pytest.approx(
        term(alone)(point), abs=0.1
    )


@pytest.mark.slow
def test_two_releases_in_one_model(trees):
    with pm.Model() as own:
        priors()
        for number, tree in enumerate(trees):
            noisy_likelihood(make, tree, name=f"table {number}")
    point = {name: POINT[name] for name in ("a", "sigma_log__")}
    each = [term(noisy_likelihood(make, tree))(point) for tree in trees]
    both = [term(own, f"table {number}")(point) for number in range(2)]
    np.testing.assert_allclose(both, each)
    assert abs(each[0] - each[1]) > 0.1


@pytest.mark.slow
def test_counts_alone_take_any_model_of_the_columns(trees):
    with pm.Model() as own:
        pm.Normal("mean", 170, 20)
        pm.HalfNormal("sigma", 20)
        noisy_likelihood(other, trees[0], measurements="counts")
    point = {"mean": np.array(170.0), "sigma_log__": np.array(2.0)}
    assert np.isfinite(term(own)(point))
    refuses("other parameters", noisy_likelihood, other, trees[0])


@pytest.mark.slow
def test_the_posterior_in_ones_own_model_is_that_of_the_release(trees):
    with pm.Model() as own:
        priors()
        noisy_likelihood(make, trees[0])
        drawn = pm.sample(
            1000, tune=500, chains=2, cores=1, random_seed=3, progressbar=False
        )
    for name in ("a", "sigma"):
        mine = drawn["posterior"][name]
        released = trees[0]["posterior"][name]
        sd = released.std(("chain", "draw")).to_numpy()
        apart = mine.mean(("chain", "draw")) - released.mean(("chain", "draw"))
        # 200 draws of the release have an error of 0.07 standard deviations
        assert (np.abs(apart.to_numpy()) < 0.35 * sd).all()
        assert (np.abs(mine.std(("chain", "draw")).to_numpy() / sd - 1) < 0.3).all()
    assert {*own.named_vars} == {"a", "sigma", "noisy_sums"}


def short():
    pm.Normal("a", 170, 20, shape=2)
    pm.HalfNormal("sigma", 20)


def whole():
    priors()
    del pm.modelcontext(None).named_vars["sigma"]
    pm.Poisson("sigma", 8)


UNFIT = {
    "no variable 'a': .* about a, sigma; call yours so": lambda: None,
    "no variable 'sigma'": lambda: pm.Normal("a", 170, 20, shape=3),
    r"'a' has the shape \(2,\) in this model, and \(3,\)": short,
    "other labels .* another order; its order is east, north, west": (
        lambda: priors(coords=REGIONS[::-1])
    ),
    "'sigma' is of type int64": whole,
    "a variable 'noisy_sums' already": lambda: (priors(), pm.Normal("noisy_sums")),
}


@pytest.mark.parametrize("says", UNFIT)
def test_a_model_that_is_about_something_else_is_refused(says, trees):
    with pm.Model() as own:
        UNFIT[says]()
        before = {*own.named_vars}
        refuses(says, noisy_likelihood, make, trees[0])
        assert {*own.named_vars} == before
        # the context is left as it was
        assert pm.modelcontext(None) is own


def test_what_holds_no_noisy_sums_and_what_is_no_model_is_refused(trees, tmp_path):
    release = trees[0].pdips.release
    refuses("no noisy sums", noisy_likelihood, make, replace(release, tables={}))
    refuses("is no folder of a pdips release", noisy_likelihood, make, tmp_path)
    refuses("no release beside it", noisy_likelihood, make, trees[0].copy())
    refuses("is of type int", noisy_likelihood, make, 3)
    refuses("the function that makes it", noisy_likelihood, make(people()), release)
    refuses("famly: no setting", noisy_likelihood, make, release, famly="t")
    refuses(
        "measurements must be", noisy_likelihood, make, release, measurements="sums"
    )
