"""The tree that a release with a model publishes: what is in it, that nothing in it is
a record's, that ArviZ reads it, and what goes into files, copies and pickles.
"""

import copy
import pickle
import warnings
from dataclasses import replace
from types import SimpleNamespace

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from scipy import stats
from tables import refuses

import pdips
from pdips import Column, Margins, Schema, Scores, Table
from pdips.posterior.model import blueprint_of
from pdips.posterior.model_file import as_source
from pdips.privacy.path import AnswerPath, follow
from pdips.release.documents import PrivacyDocument
from pdips.release.folder import file_digest
from pdips.release.release import RunRecord
from pdips.release.tree import public_tree, read_tree, write_tree
from pdips.report.coefficients import coefficients, figures_of_priors
from pdips.report.pages import write_card
from pdips.scores.posterior import attempt
from pdips.scores.sums import regular
from pdips.scores.tree import (
    labels_of,
    leave_one_out,
    observed,
    public_groups,
    published_posterior,
    with_dims,
)

N = 600
SENTINEL = 1234.5678  # A number of the run that no public file may hold
COLUMNS = {
    "g": Column(levels=["a", "b", "c"], public=True),
    "y": Column(lower=-30, upper=30, unit="EUR", label="Pay"),
    "k": Column(levels=[-1, 1]),
    "the sex": Column(levels=["f", "m"], missing=True),
}
SCHEMA = Schema(columns=COLUMNS)


def build_model(data, schema):
    with pm.Model(coords={"region": schema.columns["g"].levels}) as model:
        effects = pm.Normal("effects", 0, 3, dims="region")
        pm.Deterministic("against a", effects[1:] - effects[0])
        pm.Deterministic("expected", effects[data["g"]])  # reads records
        sd = pm.HalfNormal("sd", 5)
        pm.Normal("y", effects[data["g"]], sd, observed=data["y"])
        pm.Bernoulli("k", pm.Beta("share", 1, 1), observed=data["k"])
        odds = pm.Dirichlet("p", np.ones(3))
        pm.Categorical("the sex", odds, observed=data["the sex"])
    return model


def records(seed=1):
    rng = np.random.default_rng(seed)
    codes = rng.integers(3, size=N)
    return pd.DataFrame(
        {
            "g": np.array(["a", "b", "c"])[codes],
            "y": np.array([0, 2, 4])[codes] + 2 * rng.normal(size=N),
            "k": rng.choice([-1, 1], N),
            "the sex": rng.choice(["f", "m", None], N),
        }
    )


def measured(release):
    """Return all noisy sums of a release, what they say near its posterior, and the
    draws.
    """
    groups = release.posterior_draws.others
    answers = groups.func.__self__
    here, draws = groups.args
    return answers.sums, answers.linearised(here), draws


@pytest.fixture(scope="module")
def mechanism():
    return Scores(epsilon=2, model=build_model, n_sets=3, delta="1e-6")


@pytest.fixture(scope="module")
def run(mechanism):
    return mechanism.release(Table(records(), SCHEMA), rng=np.random.default_rng(2))


@pytest.fixture(scope="module")
def tree(run):
    return public_tree(*run)


@pytest.fixture(scope="module")
def opened(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("release")
    public_tree(*run).pdips.publish(folder / "public", allow=["seeded"])
    return pdips.open(folder)


def test_draws_have_the_dims_and_labels_of_the_model(tree):
    posterior = tree["posterior"]
    assert posterior["effects"].dims == ("chain", "draw", "region")
    assert list(posterior["region"].values) == ["a", "b", "c"]
    assert set(posterior.data_vars) == {"effects", "sd", "share", "p", "against a"}
    assert posterior.sizes["chain"] == 4
    for group in ("prior", "log_prior"):
        assert tree[group]["effects"].dims == ("chain", "draw", "region")
    effects = posterior["effects"].values
    differences = effects[..., 1:] - effects[..., :1]
    np.testing.assert_allclose(posterior["against a"], differences)


def test_the_log_prior_is_that_of_each_variable_in_its_own_units(tree):
    effects, sd = (tree["posterior"][name].values for name in ("effects", "sd"))
    by_hand = stats.norm(0, 3).logpdf(effects)
    np.testing.assert_allclose(tree["log_prior"]["effects"], by_hand)
    half_normal = stats.halfnorm(scale=5).logpdf(sd)
    np.testing.assert_allclose(tree["log_prior"]["sd"], half_normal)
    # the broken twin: with the Jacobian of the unconstrained scale
    assert not np.allclose(tree["log_prior"]["sd"], half_normal + np.log(sd))


def test_the_sets_are_predictions_by_column_and_set(run, tree):
    release, _ = run
    predicted = tree["posterior_predictive"]
    assert set(predicted.data_vars) == {"y", "k", "the sex"}
    for number, frame in enumerate(release.sets):
        drawn = predicted.to_dataset().isel(chain=0, draw=number)
        np.testing.assert_array_equal(drawn["y"], frame["y"])
        np.testing.assert_array_equal(drawn["k"], frame["k"])
        levels = [*drawn["the sex"].attrs["levels"]]
        spelt = [levels[code] for code in drawn["the sex"].values]
        expected = (
            frame["the sex"].astype(object).where(frame["the sex"].notna(), levels[2])
        )
        assert spelt == list(expected)
    assert predicted["y"].attrs == {"units": "EUR", "long_name": "Pay"}
    codes = tree["constant_data"]["g"].values
    assert list(np.array(["a", "b", "c"])[codes]) == list(release.sets[0]["g"])


def test_noisy_numbers_are_those_of_the_table_of_sums(run, tree):
    release, _ = run
    sums = release.tables["sums"].iloc[1:]
    observed = tree["observed_data"]
    noisy = np.concatenate([observed[name].values for name in observed.data_vars])
    np.testing.assert_array_equal(noisy, sums["noisy"])
    assert observed["counts"].attrs["standard_deviation"] == pytest.approx(
        sums["standard_deviation"].iloc[0]
    )
    assert "k[-1]" in observed["cell"].values
    sizes = dict(tree["noisy_statistics"].sizes)
    assert sizes["cell"] == observed.sizes["cell"]


def test_attributes_state_the_guarantee(run, tree):
    release, _ = run
    stated = release.document().privacy
    for name in ("statement", "epsilon", "delta", "neighbours", "kind", "rho"):
        assert tree.attrs[name] == getattr(stated, name)
    assert tree.attrs["inference_library"] == "pdips"
    assert tree.attrs["inference_library_version"] == pdips.__version__
    assert tree.attrs["sampler"] in ("importance", "nuts")
    assert "receipt" not in tree.attrs


def test_a_charged_release_has_its_receipt(tmp_path):
    frame = pd.DataFrame({"k": [-1, 1] * 300})
    schema = Schema(columns={"k": Column(levels=[-1, 1])})
    mechanism = Scores(epsilon=1, model=flips)
    release, _ = mechanism.release(Table(frame, schema), ledger=tmp_path / "l.sqlite")
    assert release.receipt.token in release.posterior.attrs["receipt"]


def flips(data, schema):
    with pm.Model() as model:
        pm.Bernoulli("k", pm.Beta("share", 1, 1), observed=data["k"])
    return model


def test_nothing_of_the_run_is_in_the_tree(run, tree, tmp_path):
    release, record = run
    told = replace(record, diagnostics={"secret": SENTINEL}, peak_memory=SENTINEL)
    same = public_tree(release, told)
    for number, made in enumerate((tree, same)):
        write_tree(made, tmp_path / f"{number}.nc")
    assert (tmp_path / "0.nc").read_bytes() == (tmp_path / "1.nc").read_bytes()
    # the broken twin: one number of the run in an attribute
    same.attrs["seconds"] = told.peak_memory
    write_tree(same, tmp_path / "2.nc")
    assert (tmp_path / "0.nc").read_bytes() != (tmp_path / "2.nc").read_bytes()


def trees_along(mechanism, frames, path):
    """Return the trees of releases of several tables that were answered the same."""
    plan = mechanism.plan(SCHEMA)
    trees = []
    for frame in frames:
        run = follow(mechanism, plan, Table(frame, SCHEMA), path, whole=True)
        release = mechanism.as_release(plan, run.drawn, answers=run.answers)
        trees.append(public_tree(replace(release, identifier="0" * 16)))
    return trees


def other_records(frame):
    """Return records that agree with a frame in public columns alone."""
    rng = np.random.default_rng(9)
    return frame.assign(
        y=rng.uniform(-30, 30, N), k=1, **{"the sex": rng.choice(["f", None], N)}
    )


def test_tables_that_are_answered_the_same_have_the_same_tree(mechanism, tmp_path):
    frame = records()
    path = AnswerPath(seed=0, level=4.0)
    one, two = trees_along(mechanism, (frame, other_records(frame)), path)
    write_tree(one, tmp_path / "one.nc")
    write_tree(two, tmp_path / "two.nc")
    assert file_digest(tmp_path / "one.nc") == file_digest(tmp_path / "two.nc")


def test_what_a_record_moved_would_be_seen(mechanism, tmp_path, monkeypatch):
    # the broken twin: a group that is worked out from the table
    made = []

    def leaking(sums, here, draws):
        values = [np.asarray(each) for each in made[-1].values()]
        return {"leak": xr.Dataset({"mean": values[1].mean()})}

    monkeypatch.setattr("pdips.scores.score_answers.public_groups", leaking)
    frame = records()
    path = AnswerPath(seed=0, level=4.0)
    trees = []
    for each in (frame, other_records(frame)):
        made.append({name: each[name] for name in ("g", "y")})
        trees += trees_along(mechanism, (each,), path)
    assert not trees[0].identical(trees[1])


def test_labels_that_records_move_are_left_out():
    def reading(data, schema):
        n = data.n_records
        coords = {"known": ["a", "b"], "seen": [f"{n} records", "all"]}
        with pm.Model(coords=coords) as model:
            pm.Normal("one", 0, 1, dims="known")
            other = pm.Normal("two", 0, 1, dims="seen")
            pm.Normal("y", other[0], 1, observed=data["y"])
        return model

    schema = Schema(columns={"y": Column(lower=-30, upper=30)})
    space = blueprint_of(as_source(reading), schema)
    assert [*labels_of(space)] == ["known"]


def test_the_file_is_the_tree_and_always_the_same_bytes(run, tree, opened, tmp_path):
    read = opened.posterior
    for path in tree.groups:
        xr.testing.assert_allclose(read[path].to_dataset(), tree[path].to_dataset())
        assert set(read[path].attrs) == set(tree[path].attrs)
    for name in ("one.nc", "two.nc"):
        write_tree(public_tree(*run), tmp_path / name)
        assert file_digest(tmp_path / name) == opened.privacy.digests["posterior.nc"]
    assert xr.open_datatree(opened.home / "posterior.nc").attrs == read.attrs
    refuses("no netCDF file", read_tree, b"no netCDF")


def test_a_changed_file_is_refused(run, tmp_path):
    run[0].publish(tmp_path / "public", allow=["seeded"])
    release = pdips.open(tmp_path)
    (tmp_path / "public" / "posterior.nc").write_bytes(b"another")
    refuses("was changed since", lambda: release.posterior)
    refuses("isn't the file that was published", pdips.open, tmp_path)


def test_the_accessor_publishes_and_draws_more_sets(run, tree, tmp_path):
    release, record = run
    assert tree.pdips.release is release
    assert tree.pdips.record is record
    assert [len(frame) for frame in tree.pdips.more_sets(2)] == [N, N]
    tree.pdips.publish(tmp_path / "public", allow=["seeded"])
    published = pdips.open(tmp_path).posterior
    assert published.pdips.release.home == tmp_path / "public"
    refuses("it is published", published.pdips.publish, tmp_path / "again")
    refuses("no record of its run", lambda: published.pdips.record)


def test_copies_and_pickles_have_no_record_of_the_run(tree):
    pickled = pickle.dumps(tree)
    assert b"RunRecord" not in pickled
    copies = (pickle.loads(pickled), tree.copy(), copy.deepcopy(tree))
    for copied in copies:
        assert copied.identical(tree)
        refuses("no record of its run", lambda each=copied: each.pdips.record)
        refuses("no release beside it", lambda each=copied: each.pdips.release)
    # the broken twin: what holds the record as an attribute is pickled with it
    held = SimpleNamespace(record=RunRecord(seconds={}, peak_memory=SENTINEL))
    assert b"RunRecord" in pickle.dumps(held)


def test_a_mechanism_without_a_posterior_says_so():
    schema = Schema(columns={"k": Column(levels=[-1, 1])})
    table = Table(pd.DataFrame({"k": [-1, 1] * 50}), schema)
    release, _ = Margins(epsilon=1).release(table)
    refuses("margins publishes no posterior", lambda: release.posterior)


def test_dims_that_cannot_be_had_stop_no_release(mechanism, run, monkeypatch):
    # after the charge nothing may fail
    monkeypatch.setattr("pdips.scores.tree.labels_of", lambda space: 1 / 0)
    sums, here, draws = measured(run[0])
    assert attempt(with_dims, sums.space, draws) is None
    groups = public_groups(sums, here, draws)
    assert "prior" not in groups
    assert "observed_data" in groups
    assert set(published_posterior(draws).data_vars) == set(
        draws.tree["posterior"].data_vars
    )


def test_the_card_names_each_coefficient_and_says_what_was_not_learned(tmp_path):
    frame = pd.DataFrame({"k": [-1, 1] * 300})
    schema = Schema(columns={"k": Column(levels=[-1, 1])})

    def build_model(data, schema):
        with pm.Model(coords={"region": ["north", "south"]}) as model:
            pm.Normal("unused", 0, 2, dims="region")
            pm.Bernoulli("k", pm.Beta("share", 1, 1), observed=data["k"])
        return model

    release, _ = Scores(epsilon=1, model=build_model).release(
        Table(frame, schema), rng=np.random.default_rng(3)
    )
    release.publish(tmp_path, allow=["seeded"])
    card = write_card(tmp_path).read_text("utf-8")
    listed, tree = coefficients(tmp_path, release.document())
    assert listed == []  # a document without digests vouches for no file
    listed, tree = coefficients(tmp_path, PrivacyDocument.read(tmp_path))
    found = {each.name: each for each in listed}
    assert {*found} == {"unused[north]", "unused[south]", "share"}
    assert found["unused[north]"].is_prior
    assert not found["share"].is_prior
    draws = tree["posterior"]["share"].values
    share = found["share"]
    assert share.mean == pytest.approx(draws.mean())
    assert share.lower < 0.5 < share.upper
    inside = (draws > share.lower) & (draws < share.upper)
    assert inside.mean() == pytest.approx(0.95, abs=0.01)
    assert "Nothing was learned of unused[north], unused[south]" in card
    assert '<th scope="row">share</th>' in card
    figures = figures_of_priors(listed, tree)
    assert [name for name, _ in figures] == ["unused[north]", "unused[south]"]
    # the card is written again byte for byte, and names the file it is made of
    assert write_card(tmp_path).read_text("utf-8") == card
    assert "posterior.nc" in card.partition("from")[2]


@pytest.fixture
def without_figures():
    import matplotlib as mpl

    with mpl.rc_context({"backend": "agg"}), az.rc_context({"plot.max_subplots": 200}):
        yield


@pytest.mark.usefixtures("without_figures")
def test_arviz_reads_the_file(opened):
    tree = opened.posterior
    summary = az.summary(tree)
    assert {"effects[a]", "sd", "against a[0]"} <= set(summary.index)
    assert (summary["r_hat"].astype(float) < 1.05).all()
    sensitive = az.psense_summary(tree)
    assert (sensitive["likelihood"] > 0.02).all()
    assert (sensitive["prior"] < 0.05).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of arviz-plots: few sets, whole numbers
        az.plot_forest(tree)
        az.plot_rank(tree)
        az.plot_prior_posterior(tree, var_names=["sd", "share"])
        az.plot_ppc_dist(tree, group="noisy_statistics")
        az.plot_ppc_dist(tree, num_samples=3, visuals={"observed_dist": False})
        az.plot_loo_pit(tree["margins"])


def test_leave_one_out_is_for_counts_alone(opened):
    tree = opened.posterior
    # answers are sums over the same records: one number each, and no pointwise terms
    refuses("Found several log likelihood arrays", az.loo, tree, error=TypeError)
    found = az.loo(tree["margins"])
    assert found.n_data_points == tree["margins/observed_data"].sizes["cell"]
    pit = az.loo_pit(tree["margins"])["counts"].values
    assert stats.kstest(pit, "uniform").pvalue > 0.001
    # the broken twin: predictions of other counts
    moved = tree["margins"].copy()
    counts = moved["posterior_predictive"]["counts"]
    moved["posterior_predictive"] = xr.DataTree(
        xr.Dataset({"counts": counts + 3 * counts.std(("chain", "draw"))})
    )
    wrong = az.loo_pit(moved)["counts"].values
    assert stats.kstest(wrong, "uniform").pvalue < 1e-6


def test_a_count_is_left_out_of_a_joint_normal_distribution(run):
    # against the conditional distribution by hand
    sums, here, draws = measured(run[0])
    places = draws.places[None, :30]
    groups = leave_one_out(sums, here, places)
    cells = list(groups["margins/observed_data"]["cell"].values)
    all_cells = list(observed(sums)["cell"].values)
    covariance = regular(here.sampling + here.noise)
    residual = here.residual - here.slopes @ (places[0, 7] - here.place)
    for cell in ("k[1]", "the sex[m]"):
        left = all_cells.index(cell)
        rest = np.arange(len(residual)) != left
        gain = np.linalg.solve(covariance[rest][:, rest], covariance[rest, left])
        variance = covariance[left, left] - gain @ covariance[rest, left]
        by_hand = stats.norm(gain @ residual[rest], np.sqrt(variance))
        found = groups["margins/log_likelihood"]["counts"][0, 7, cells.index(cell)]
        assert float(found) == pytest.approx(by_hand.logpdf(residual[left]), rel=1e-6)
        # the broken twin: the count by itself
        alone = stats.norm(0, np.sqrt(covariance[left, left])).logpdf(residual[left])
        assert abs(alone - float(found)) > 1e-3
