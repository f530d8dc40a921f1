"""A model fitted to each set: mixed draws have the rule's law, free variables stay
where they may be, and models that differ between sets are refused.
"""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from scipy.stats import spearmanr
from tables import refuses

import pdips
from pdips import Margins, Schema, Table
from pdips.errors import UselessWarning
from pdips.inference import combine
from pdips.outside import mixing
from pdips.outside.mixing import mixed_draws

SCHEMA = Schema(
    columns={
        "town": {"levels": ["a", "b", "c"]},
        "ill": {"levels": ["no", "yes"]},
    }
)
QUANTILES = (0.025, 0.2, 0.5, 0.8, 0.975)


def by_town(df: pd.DataFrame) -> pm.Model:
    """A share for each town, shrunk to the others', and how far they are apart."""
    towns = pd.crosstab(df["town"], df["ill"]).reindex(["a", "b", "c"], fill_value=0)
    with pm.Model(coords={"town": [*towns.index]}) as model:
        middle = pm.Normal("middle", 0, 1.5)
        spread = pm.HalfNormal("spread", 1)
        off = pm.Normal("off", 0, 1, dims="town")
        share = pm.Deterministic(
            "share", pm.math.invlogit(middle + spread * off), dims="town"
        )
        n = towns.sum(axis=1)
        pm.Binomial("ill", n, share, observed=towns["yes"], dims="town")
    return model


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    rng = np.random.default_rng(3)
    town = rng.choice(["a", "b", "c"], 2_000)
    chance = pd.Series(town).map({"a": 0.2, "b": 0.3, "c": 0.5})
    ill = np.where(rng.random(2_000) < chance, "yes", "no")
    table = Table(pd.DataFrame({"town": town, "ill": ill}), SCHEMA)
    release, _ = Margins(epsilon=2, n_sets=4).release(table, rng=rng)
    folder = tmp_path_factory.mktemp("mixed")
    release.publish(folder / "public", allow=["seeded"])
    return pdips.open(folder)


@pytest.mark.parametrize("rule", ["between", "sanitized", "posterior-predictive"])
def test_mixed_draws_have_the_law_of_the_rule(rule):
    rng = np.random.default_rng(1)
    # two numbers that go together, skewed, in sets that differ
    shared = rng.standard_normal((5, 2_000, 1))
    by_set = shared + 0.5 * rng.standard_normal((5, 2_000, 2))
    by_set = np.exp(0.3 * by_set) + rng.standard_normal((5, 1, 2))
    mixed = mixed_draws(list(by_set), rule)
    combined = combine(by_set.mean(axis=1), by_set.var(axis=1), rule=rule)
    for part in QUANTILES:
        half = combined.half_width(abs(2 * part - 1))
        wanted = combined.estimate + np.sign(part - 0.5) * half
        np.testing.assert_allclose(
            np.quantile(mixed, part, axis=0), wanted, rtol=1e-2, atol=2e-2
        )
    own = spearmanr(*by_set[0].T).statistic
    assert spearmanr(*mixed.T).statistic == pytest.approx(own, abs=0.05)
    # the twin: draws that are just put together are those of no rule but by chance
    together = by_set.reshape(-1, 2)
    width = np.ptp(np.quantile(together, [0.025, 0.975], axis=0), axis=0)
    assert not np.allclose(width, 2 * combined.half_width(0.95), rtol=0.05)


@pytest.mark.slow
def test_a_model_is_fitted_to_each_set(public):
    more = {"target_accept": 0.95, "random_seed": 1}
    tree = public.mix(by_town, draws=500, tune=500, chains=2, **more)
    posterior = tree["posterior"]
    assert dict(posterior.sizes) == {"chain": 4, "draw": 1_000, "town": 3}
    assert posterior.attrs["rule"] == "between"
    assert posterior.attrs["converged"] == 1
    assert [*posterior["town"].to_numpy()] == ["a", "b", "c"]
    assert (posterior["spread"] > 0).all()
    shares = [
        (each["ill"] == "yes").groupby(each["town"]).mean() for each in public.sets
    ]
    middle = posterior["share"].median(dim=("chain", "draw"))
    np.testing.assert_allclose(middle, np.mean(shares, axis=0), atol=0.02)


@pytest.mark.slow
def test_models_that_differ_between_sets_are_refused(public, monkeypatch):
    def few(df: pd.DataFrame) -> pm.Model:
        towns = sorted(df["town"].unique())[: 2 + len(seen) % 2]
        seen.append(1)
        with pm.Model(coords={"town": towns}) as model:
            pm.Normal("effect", 0, 1, dims="town")
        return model

    seen: list[int] = []
    quick = {"draws": 20, "tune": 20, "chains": 1, "random_seed": 1}
    refuses("other labels for some sets", public.mix, few, **quick)
    refuses("returned int", public.mix, lambda _: 3, **quick)
    apart = SimpleNamespace(largest_rhat=1.06)
    monkeypatch.setattr(mixing, "converged", lambda _: apart)
    with pytest.warns(UselessWarning, match="for 4 of 4 sets"):
        public.mix(by_town, **quick)


def test_an_opened_folder_has_the_factor_of_its_margins(public):
    with pm.Model(coords={"town": ["a", "b", "c"], "ill": ["no", "yes"]}) as model:
        share = pm.Dirichlet("share", np.ones(6)).reshape((3, 2))
        public.factor(["town", "ill"], 2_000 * share, dims=["town", "ill"])
        public.margins.factor(["town", "ill"], 2_000 * share, name="again")
    assert [*model.coords["margins_contrast"]] == [
        "town[b]",
        "town[c]",
        "ill[yes]",
        "town:ill[b, yes]",
        "town:ill[c, yes]",
    ]
    one, other = (
        model.rvs_to_values[each].eval().tolist() for each in model.observed_RVs
    )
    assert one == other
