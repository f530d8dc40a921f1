"""Mixed models as people write them, recognised and sampled by group sums."""

import arviz_plots as azp
import numpy as np
import pandas as pd
import pymc as pm
import pytest
from tables import refuses

import pdips
from pdips import InputError, Schema, Table
from pdips.groups.formulas import groups_in_formula
from pdips.groups.group_sums import GroupSums
from pdips.groups.recognised import template_of
from pdips.groups.release_of_groups import MOSTLY_PRIOR
from pdips.sampling import mechanism_of, source_of_groups
from pdips.scores.scores import Scores

LEVELS = [f"s{number:03d}" for number in range(450)]
PAY = {"lower": -10, "upper": 10}
CODES = {"lower": 100, "upper": 599, "integer": True}
SCHEMA = Schema(
    columns={
        "pay": PAY,
        "ill": {"lower": 0, "upper": 1, "integer": True},
        "visits": {"lower": 0, "upper": 20, "integer": True},
        "code": CODES,
        "site": {"levels": LEVELS},
    }
)


def records(n: int = 12_000) -> pd.DataFrame:
    rng = np.random.default_rng(4)
    site = rng.integers(0, len(LEVELS), n)
    effect = rng.normal(0, 0.8, len(LEVELS))[site]
    return pd.DataFrame(
        {
            "pay": np.clip(rng.normal(1 + effect, 2), -10, 10),
            "ill": (rng.random(n) < 1 / (1 + np.exp(1 - effect))).astype(int),
            "visits": np.minimum(rng.poisson(np.exp(0.5 + effect / 2)), 20),
            "code": site + 100,
            "site": np.array(LEVELS)[site],
        }
    )


def make(df):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 3)
        tau = pm.HalfNormal("tau", 2)
        codes = df["site"].astype("category").cat
        offsets = pm.Normal("offsets", 0, 1, shape=len(codes.categories))
        a = mu + tau * offsets
        sigma = pm.HalfNormal("sigma", 5)
        pm.Normal("pay", a[codes.codes.values], sigma, observed=df["pay"].values)
    return model


def sampled(model, names, **options):
    options = {"epsilon": 2, "seed": 1, "progress": False} | options
    return pdips.sample(model, records()[names], SCHEMA.only(names), **options)


def test_a_formula_with_more_groups_than_scores_takes_goes_to_group_sums():
    tree = sampled("pay ~ 1 + (1 | site)", ["pay", "site"])
    assert tree.attrs["mechanism"] == GroupSums.name
    posterior = tree["posterior"]
    assert posterior["1|site"].dims == ("chain", "draw", "site")
    assert posterior["site"].to_numpy().tolist() == LEVELS
    assert abs(float(posterior["Intercept"].mean()) - 1) < 0.4
    assert abs(float(posterior["sigma"].mean()) - 2) < 0.4
    assert "average over groups" in posterior.attrs["intervals"]
    about = tree["groups"]
    assert (about["lower"] < about["upper"]).all()
    assert (about["direct_lower"] <= about["direct_upper"]).all()
    assert set(about["site"].to_numpy()) == set(LEVELS)
    left = about["variance_left"].to_numpy()
    assert posterior.attrs["groups_near_prior"] == (left > MOSTLY_PRIOR).sum()
    # a caterpillar plot of any selection
    pictured = azp.plot_forest(
        tree,
        var_names=["1|site"],
        coords={"site": LEVELS[3:6]},
        combined=True,
        backend="none",
    )
    assert pictured.viz["trunk"]["1|site"].dims == ("site",)


@pytest.mark.parametrize(
    ("model", "name", "family"),
    [
        ("ill ~ 1 + (1 | code)", "ill", "bernoulli"),
        ("visits ~ (1|code)", "visits", "poisson"),
    ],
)
def test_groups_may_be_whole_numbers_in_a_range(model, name, family):
    tree = sampled(model, [name, "code"], family=family, sets=1)
    assert tree["posterior"]["code"].to_numpy().tolist() == [*range(100, 600)]
    assert tree["posterior_predictive"][name].sizes["record"] == 12_000
    spread = float(tree["posterior"]["1|code_sigma"].mean())
    assert 0.2 < spread < 1.4


def test_effects_as_offsets_times_a_spread_keep_their_author_s_names():
    tree = sampled(make, ["pay", "site"], mechanism="group-sums")
    posterior = tree["posterior"]
    assert {"mu", "tau", "sigma", "offsets"} == set(posterior.data_vars)
    # of a standard normal law, whatever the spread is
    assert 0.8 < float(posterior["offsets"].std()) < 1.2
    assert abs(float(posterior["mu"].mean()) - 1) < 0.4


def square(df):
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 2)
        codes = df["site"].astype("category").cat
        a = pm.Normal("a", 0, tau, shape=len(codes.categories))
        mean = a[codes.codes.values] ** 2
        pm.Normal("pay", mean, 1, observed=df["pay"].values)
    return model


def heavy(df):
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 2)
        codes = df["site"].astype("category").cat
        a = pm.Laplace("a", 0, tau, shape=len(codes.categories))
        pm.Normal("pay", a[codes.codes.values], 1, observed=df["pay"].values)
    return model


@pytest.mark.parametrize(
    ("model", "names", "settings", "said"),
    [
        ("visits ~ pay + (1 | site)", ["pay", "visits", "site"], {}, "isn't linear"),
        (
            "visits ~ 1 + (1 + ill | site)",
            ["visits", "ill", "site"],
            {"family": "poisson"},
            "identity link alone",
        ),
        ("log(visits + 1) ~ (1 | site)", ["visits", "site"], {}, "transformation"),
        ("pay ~ 1 + (1 | site)", ["pay", "site"], {"family": "t"}, "normal, Bernoulli"),
        (
            "ill ~ 1 + (1 | site)",
            ["ill", "site"],
            {"family": "bernoulli", "link": "probit"},
            "logit link",
        ),
        (square, ["pay", "site"], {}, "identity link"),
        (heavy, ["pay", "site"], {}, "effects of groups are normal"),
    ],
)
def test_what_is_no_intercept_by_group_is_refused_with_its_reason(
    model, names, settings, said
):
    refuses(said, sampled, model, names, mechanism="group-sums", **settings)


def test_a_mechanism_is_chosen_by_the_number_of_groups_or_named():
    assert mechanism_of("pay ~ (1 | site)", SCHEMA) is GroupSums
    few = Schema(columns={"pay": PAY, "site": {"levels": LEVELS[:300]}})
    assert mechanism_of("pay ~ (1 | site)", few) is Scores
    assert mechanism_of("pay ~ (1 | site)", few, "group-sums") is GroupSums
    assert mechanism_of("pay ~ ill + (1 | site)", SCHEMA) is GroupSums
    assert mechanism_of("pay ~ ill + (ill | site)", SCHEMA) is GroupSums
    # two effects of each of 300 groups
    assert mechanism_of("pay ~ (ill | site)", few) is GroupSums
    assert mechanism_of("pay ~ (0 + ill | site)", few) is Scores
    with pytest.raises(InputError, match="takes no model"):
        mechanism_of("pay ~ (1 | site)", SCHEMA, "margins")
    assert groups_in_formula(["pay ~ 1 + (1|site)"]) == {"site": 1}
    assert groups_in_formula("pay ~ (1|site) + (0 + ill|code)") == {
        "site": 1,
        "code": 1,
    }


def test_a_template_has_few_levels_and_nothing_public():
    public = SCHEMA.known(["site", "code"])
    template = template_of(public, "code")
    assert template.columns["code"].levels == (100, 101, 102, 103, 104, 105)
    assert template.columns["site"].n_levels == 450
    assert not template.public_columns
    assert template_of(public).columns["site"].n_levels == 6


def test_public_membership_takes_exact_numbers_of_records():
    tree = sampled("pay ~ 1 + (1 | site)", ["pay", "site"], public=["site"], sets=1)
    counts = records()["site"].value_counts()
    noisy = tree["groups"]["noisy_records"].to_series()
    assert (noisy == counts.reindex(LEVELS).fillna(0).to_numpy()).all()
    assert tree["constant_data"]["site"].sizes["record"] == 12_000


def test_settings_that_contradict_the_model_are_refused():
    source = source_of_groups("pay ~ (1 | site)", SCHEMA.only(["pay", "site"]), {})
    schema = SCHEMA.only(["pay", "site"])
    made = GroupSums(epsilon=1, model=source)
    assert made.plan(schema).design.groups == ("site",)
    assert made.settings()["model_source"].startswith("pay ~ (1 | site)")
    refuses(
        "leave outcome and family out",
        GroupSums(epsilon=1, model=source, family="poisson").plan,
        schema,
    )
    unread = GroupSums(epsilon=1, model=lambda data, schema: None)
    refuses("make\\(df\\)", unread.plan, schema)


def test_loud_noise_is_said_before_the_charge(caplog):
    names = ["pay", "site"]
    table = Table(records(500)[names], SCHEMA.only(names))
    made = GroupSums(epsilon="1/100")
    plan = made.plan(table.schema)
    made.check(plan, table)
    assert "little more than their prior" in caplog.text
    # a number of records that would do
    caplog.clear()
    assert made.forecast(plan, 10_000_000) < 0.05
    assert not caplog.text


def test_sets_have_the_records_of_their_groups_and_more_are_drawn():
    names = ["ill", "site"]
    frame = records()[names]
    frame = frame[frame["site"] != LEVELS[7]]
    table = Table(frame, SCHEMA.only(names))
    made = GroupSums(epsilon=50, outcome="ill", family="bernoulli", n_sets=2)
    release, _ = made.release(table, rng=np.random.default_rng(0))
    for drawn in (*release.sets, *release.more_sets(1, rng=np.random.default_rng(1))):
        assert len(drawn) == len(frame)
        sizes = drawn["site"].value_counts().reindex(LEVELS).fillna(0)
        true = frame["site"].value_counts().reindex(LEVELS).fillna(0)
        # noise of deviation .06, and whole numbers
        assert np.abs(sizes.to_numpy() - true.to_numpy()).max() <= 4
    tables = release.tables["groups"]
    assert len(tables) == len(LEVELS)
    assert tables["expected_records"][7] < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "names", "settings"),
    [
        ("ill ~ (1 | code)", ["ill", "code"], {"family": "bernoulli"}),
        ("pay ~ (1 + ill | code)", ["pay", "ill", "code"], {}),
        (None, ["ill", "code"], {"outcome": "ill", "family": "bernoulli"}),
    ],
)
def test_more_sets_are_drawn_of_an_opened_folder(model, names, settings, tmp_path):
    schema = SCHEMA.only(names)
    options = {"epsilon": 4, "n_sets": 1}
    if model is None:
        options |= settings
    else:
        options["model"] = source_of_groups(model, schema, dict(settings))
    release, _ = GroupSums(**options).release(
        Table(records(4_000)[names], schema), rng=np.random.default_rng(0)
    )
    release.publish(tmp_path / "public", allow=["seeded"])
    [first] = release.more_sets(1, rng=np.random.default_rng(1))
    [second] = pdips.open(tmp_path).more_sets(1, rng=np.random.default_rng(1))
    pd.testing.assert_frame_equal(first, second)
    assert len(first) == 4_000


def test_code_of_a_folder_is_not_run_for_more_sets(tmp_path):
    names = ["pay", "site"]
    schema = SCHEMA.only(names)
    source = source_of_groups(make, schema, {})
    release, _ = GroupSums(epsilon=4, n_sets=1, model=source).release(
        Table(records(2_000)[names], schema), rng=np.random.default_rng(0)
    )
    release.publish(tmp_path / "public", allow=["seeded"])
    refuses("code of a folder isn't run", pdips.open(tmp_path).more_sets, 1)
