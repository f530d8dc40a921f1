"""Chains: what a tree holds, refits without compiling, calibration, and the gate that
chains must pass.
"""

from dataclasses import replace
from fractions import Fraction

import arviz_stats as az
import numpy as np
import nutpie
import pymc as pm
import pytest
import xarray as xr
from scipy import stats
from small_models import UNIT, beta, beta_records, blueprint
from tables import cases, refuses

from pdips.errors import RefusedError
from pdips.posterior import nuts as sampling
from pdips.posterior import private_reference as stages
from pdips.posterior.finished_model import censor
from pdips.posterior.model import split
from pdips.posterior.nuts import Convergence, converged, require, sample
from pdips.posterior.private_reference import Stage
from pdips.posterior.target import Target, score_grid

N = 10
Y = np.random.default_rng(5).normal(1, 1, N)


def normal(y):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 1), 1.0, observed=pm.Data("y_data", y))
    return model


@pytest.fixture(scope="module")
def compiled():
    made = censor(normal(Y), window=np.inf)
    sample(made, draws=2, tune=20, chains=1, rng=np.random.default_rng(0))
    return made


def conjugate(y):
    """The posterior of a normal mean under a standard normal prior."""
    return stats.norm(y.sum() / (len(y) + 1), (len(y) + 1) ** -0.5)


def draws_of(made, rng, **options):
    return sample(made, rng=rng, **options)["posterior"]["mu"].to_numpy()


@pytest.mark.slow
def test_pymcs_own_sampler_gives_a_tree_without_data_and_parameters_of_records():
    with pm.Model() as model:
        pm.Normal(
            "y",
            pm.Normal("u", 0, pm.HalfNormal("t"), shape=N),
            1.0,
            observed=pm.Data("y_data", Y),
        )
    made = censor(model, window=2.0)
    options = {
        "draws": 20,
        "tune": 20,
        "chains": 2,
        "sampler": "pymc",
        "start": {"t_log__": 0.0, "u": np.zeros(N)},
    }
    found, again = (
        sample(made, rng=np.random.default_rng(1), **options) for _ in range(2)
    )
    assert set(found.children) == {"posterior", "sample_stats"}
    assert set(found["posterior"].data_vars) == {"t"}
    assert dict(found["posterior"].sizes) == {"chain": 2, "draw": 20}
    assert "diverging" in found["sample_stats"]
    np.testing.assert_array_equal(found["posterior"]["t"], again["posterior"]["t"])


def test_discrete_parameters_go_to_pymc():
    with pm.Model() as model:
        pm.Normal("y", pm.Categorical("k", [0.5, 0.5]), 1.0, observed=Y)
    made = censor(model, window=2.0)
    found = sample(made, draws=20, tune=10, chains=1, rng=np.random.default_rng(1))
    assert set(np.unique(found["posterior"]["k"])) <= {0, 1}
    refuses(
        "'k' is discrete", sample, made, rng=np.random.default_rng(1), sampler="nutpie"
    )


@pytest.mark.slow
def test_updates_are_sampled_without_compiling(compiled, monkeypatch):
    # the broken twin: calling it fails
    monkeypatch.setattr(sampling, "compile_nutpie", None)
    rng = np.random.default_rng(2)
    for y in (Y, Y + 3, np.tile(Y, 4)):
        found = sample(
            compiled.update(values={"y": y}), draws=1000, tune=200, chains=4, rng=rng
        )
        assert set(found.children) == {"posterior", "sample_stats"}
        z = (found["posterior"]["mu"] - conjugate(y).mean()) / conjugate(y).std()
        # effective draws above 1,000, so errors of mean and sd below 0.03: 0.15 is 5 of
        # them
        assert abs(float(z.mean())) < 0.15
        assert abs(float(z.std()) - 1) < 0.15
        assert converged(found).passed
    compiled.update(weights=0.0)
    assert draws_of(compiled, rng, draws=1000, tune=200).std() == pytest.approx(
        1, abs=0.15
    )
    compiled.update(weights=1.0, window=1e-9)
    assert draws_of(compiled, rng, draws=1000, tune=200).std() == pytest.approx(
        1, abs=0.15
    )
    compiled.update(values={"y": Y}, window=np.inf)
    first, second = (
        draws_of(compiled, np.random.default_rng(7), draws=10, tune=50)
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    with pytest.raises(TypeError):
        sample(compiled.model, draws=2, tune=10, chains=1, rng=rng)


def test_chains_start_where_they_are_told(compiled, monkeypatch):
    def noted(model, run=nutpie.sample, **settings):
        starts.append([model.initial_point_func(seed) for seed in range(20)])
        return run(model, **settings)

    starts = []
    monkeypatch.setattr(nutpie, "sample", noted)
    compiled.update(values={"y": Y}, weights=0.0)
    far, near = (
        draws_of(compiled, np.random.default_rng(3), draws=5, tune=10, start={"mu": mu})
        for mu in (40.0, 0.0)
    )
    assert not np.isin(far, near).any()
    for drawn, told in zip(starts, (40.0, 0.0), strict=True):
        np.testing.assert_allclose(drawn, np.full((20, 1), told), atol=sampling.JITTER)
        assert len(np.unique(drawn)) == 20
    compiled.update(weights=1.0)
    refuses(
        "start has no value of 'mu'",
        sample,
        compiled,
        rng=np.random.default_rng(3),
        start={"nu": 0.0},
    )


def ranks(made, n_replicates, rng, copies=1):
    """Ranks of the truth among 9 draws, for truths from the prior and records from the
    model.
    """
    found = []
    for _ in range(n_replicates):
        truth = rng.normal()
        made.update(values={"y": np.repeat(rng.normal(truth, 1, N), copies)})
        found.append(
            (draws_of(made, rng, draws=180, tune=200, chains=1)[0, ::20] < truth).sum()
        )
    return np.bincount(found, minlength=10)


@pytest.mark.slow
def test_the_uncensored_pipeline_is_calibrated(compiled):
    # under a right sampler p is uniform: the first line fails once in 1,000 seeds; this
    # seed is fixed
    rng = np.random.default_rng(4)
    compiled.update(weights=1.0, window=np.inf)
    assert stats.chisquare(ranks(compiled, 150, rng)).pvalue > 1e-3
    # the broken twin counts each record four times
    assert stats.chisquare(ranks(compiled, 150, rng, copies=4)).pvalue < 1e-6
    compiled.update(values={"y": Y})


def tree_of(chains, diverging=0, **others):
    values = {"mu": chains, **others}
    posterior = xr.Dataset(
        {
            name: (("chain", "draw", "k")[: value.ndim], value)
            for name, value in values.items()
        }
    )
    stuck = np.zeros(chains.shape, dtype=bool)
    stuck[0, :diverging] = True
    stats_ = xr.Dataset({"diverging": (("chain", "draw"), stuck)})
    return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats_})


GOOD = np.random.default_rng(6).normal(size=(4, 500))


def test_chains_that_agree_pass():
    found = converged(
        tree_of(GOOD, corner=np.stack([GOOD, np.ones_like(GOOD)], axis=2))
    )
    assert set(found.rhat) == {"mu", "corner"}
    assert min(found.ess_bulk.values()) > 400
    assert found.passed
    require(found)


@pytest.mark.parametrize(
    "tree",
    [
        tree_of(GOOD + np.arange(4)[:, None]),
        tree_of(GOOD[:, :50]),
        tree_of(GOOD, diverging=1),
        tree_of(np.repeat(GOOD[:, :100], 5, axis=1)),
        tree_of(np.where(np.arange(4)[:, None] == 0, 7.0, GOOD)),
        tree_of(np.repeat(np.arange(4.0)[:, None], 500, axis=1)),
        tree_of(GOOD, nu=np.full_like(GOOD, np.nan)),
    ],
    ids=["apart", "short", "diverging", "sticky", "one hangs", "all hang", "no number"],
)
def test_chains_that_disagree_are_refused(tree):
    found = converged(tree)
    assert not found.passed
    said = refuses(
        "the spend stays charged, and withholding is itself an observation",
        require,
        found,
        error=RefusedError,
    )
    assert not any(character.isdigit() for character in said)


def test_only_what_is_watched_counts():
    tree = tree_of(GOOD, label=GOOD + np.arange(4)[:, None])
    assert not converged(tree).passed
    assert converged(tree, watch=("mu",)).passed
    refuses("no variable 'wage' to watch", converged, tree, watch=("wage",))


def test_the_rule_is_the_one_of_the_docs():
    good = {
        "rhat": {"a": 1.0099},
        "ess_bulk": {"a": 401.0},
        "ess_tail": {"a": 401.0},
        "divergences": 0,
    }
    assert Convergence(**good).passed
    for worse in cases(__file__, "chains_at_the_edge"):
        assert not Convergence(**good | worse).passed


@pytest.mark.parametrize(
    ("options", "says"), cases(__file__, "settings_of_chains_out_of_range")
)
def test_settings_out_of_range_and_samplers_that_are_not_there_are_refused(
    options, says, monkeypatch
):
    monkeypatch.setattr(sampling, "find_spec", lambda name: None)
    refuses(says, sample, normal(Y), rng=np.random.default_rng(0), **options)


@pytest.mark.parametrize(("release", "fits"), [("1.5", True), ("1.6.2", False)])
def test_a_version_that_pymc_cannot_call_is_refused(release, fits, monkeypatch):
    monkeypatch.setattr(sampling, "find_spec", lambda name: True)
    monkeypatch.setattr(sampling, "version", lambda name: release)
    if fits:
        assert sampling.available(normal(Y), "blackjax") == "blackjax"
    else:
        refuses(
            "pip install 'blackjax<1.6', or", sampling.available, normal(Y), "blackjax"
        )


def test_chains_that_disagree_run_twice_as_long_and_then_end_in_a_refusal(
    monkeypatch, caplog
):
    asked: list[tuple[int, int]] = []
    good = Convergence(
        rhat={"a": 1.0}, ess_bulk={"a": 900.0}, ess_tail={"a": 900.0}, divergences=0
    )
    stuck = replace(good, rhat={"a": 1.2})
    monkeypatch.setattr(
        sampling, "sample", lambda _, *, draws, tune: asked.append((draws, tune))
    )
    answers = iter([stuck, good, stuck, stuck, stuck])
    monkeypatch.setattr(sampling, "converged", lambda *_: next(answers))
    assert sampling.agreeing(None, (), draws=10, tune=30)[1] == replace(good, rounds=2)
    assert asked == [(10, 30), (20, 60)]
    refuses(
        "did not converge",
        sampling.agreeing,
        None,
        (),
        draws=10,
        tune=30,
        error=RefusedError,
    )
    assert asked[2:] == [(10, 30), (20, 60), (40, 120)]
    line = (
        "Chains disagreed; running them again, longer (round %d of 3). This "
        "decision is not covered by the privacy"
    )
    said = [
        (record.name, record.levelname, record.message) for record in caplog.records
    ]
    assert said == [
        ("pdips", "WARNING", f"{line % number} guarantee.") for number in (2, 2, 3)
    ]


# NUTS draws from the posterior that the grid has exactly: corrections, centres and
# weights mean the same to both.
N_RECORDS = 300


def moments_on_the_grid(target, values):
    scored = score_grid(target, values, np.ones(N_RECORDS, dtype=np.int64))
    p, place = np.exp(scored.log_probabilities()), scored.grid.at(scored.index)
    mean = p @ place
    return mean, np.sqrt(p @ (place - mean) ** 2)


@pytest.mark.slow
def test_chains_and_grid_have_one_posterior():
    # a reference that is off by some deviations, and so few nats that many terms are
    # cut
    space, values = blueprint(beta, UNIT), {"y": beta_records(N_RECORDS)}
    place = space.parameters_of({"phi": np.array(0.17), "lam": np.array(3.0)})
    simulated = {"y": stages.simulate(space, place, {})["y"][:500]}
    anchor = stages.anchor_at(space.likelihood, place, simulated, N_RECORDS)
    stage = Stage(
        anchor=anchor,
        n_records=N_RECORDS,
        centre=split(space.model, place[None]),
        simulated=simulated,
    )
    target = Target(space=space, stage=stage, window=Fraction(1, 10), weights=True)
    # Means differ by less than 4 Monte Carlo errors each but once in 8,000; the grid's
    # own error is far below one.
    mean, deviation = moments_on_the_grid(target, values)
    model = target.model_of(values)
    tree = sample(
        model,
        draws=1_500,
        tune=500,
        chains=2,
        rng=np.random.default_rng(1),
        sampler="pymc",
    )
    posterior = tree["posterior"].to_dataset()
    phi, lam = posterior["phi"], np.log(posterior["lam"] - 0.1)
    for draws, expected, spread in zip(
        [np.log(phi / (1 - phi)), lam], mean, deviation, strict=True
    ):
        error = spread / np.sqrt(float(az.ess(draws.to_numpy(), method="bulk")))
        assert float(draws.mean()) == pytest.approx(expected, abs=4 * error)
        assert float(draws.std()) == pytest.approx(spread, rel=0.12)
    # the broken twin: without the correction
    other, _ = moments_on_the_grid(
        replace(target, stage=replace(stage, simulated={})), values
    )
    assert np.abs(other - mean).max() > deviation.max()


@pytest.mark.slow
def test_names_with_commas_keep_their_dims_and_labels(monkeypatch):
    # Bambi's dims have them: poly(x, 2)_dim
    with pm.Model(coords={"poly(x, 2)_dim": ["linear", "square"]}) as model:
        pm.Normal("poly(x, 2)", dims="poly(x, 2)_dim")
        pm.Normal("a, b", shape=3)
        pm.Normal("y", model["poly(x, 2)"].sum(), 1.0, observed=Y)
    chains = {"draws": 20, "tune": 40, "chains": 2, "sampler": "nutpie"}
    draws = sample(model, rng=np.random.default_rng(0), **chains)["posterior"]
    labels = draws["poly(x, 2)"].coords["poly(x, 2)_dim"].to_numpy().tolist()
    assert labels == ["linear", "square"]
    assert draws["a, b"].dims == ("chain", "draw", "a, b_dim_0")
    # nutpie by itself cuts the names
    monkeypatch.setattr(sampling, "_without_commas", lambda compiled: (compiled, {}))
    with pytest.raises(ValueError, match="more dims"):
        sample(model, rng=np.random.default_rng(0), **chains)
