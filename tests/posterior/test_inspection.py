"""What a curator sees of a posterior, against numbers worked out by hand; and the
coordinates in which chains run.
"""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats
from small_models import WIDE, blueprint, normal
from tables import cases, refuses

from pdips import bounds
from pdips.posterior.inspection import (
    InspectedRecords,
    Posterior,
    censored_records,
    inspect,
    tree_of,
)
from pdips.posterior.model import split
from pdips.posterior.private_reference import Anchor, Stage
from pdips.posterior.target import Target

Y = np.array([-3.0, 0.0, 0.5, 4.0])
COUNTS = np.array([1, 3, 2, 1])
THETA = np.array([-0.5, 0.2, 0.3, 1.0])
CENTRE = np.array([0.1])
WINDOW = 0.75


def looked_at(weights: bool = False):
    space = blueprint(normal, WIDE)
    anchor = Anchor(CENTRE, np.eye(1) * 0.1, reach=6.0)
    stage = Stage(anchor=anchor, n_records=7, centre=split(space.model, CENTRE[None]))
    target = Target(space=space, stage=stage, window=Fraction(WINDOW), weights=weights)
    records = replace(censored_records(target, {"y": Y}, COUNTS), blueprint=None)
    released = [{"theta": np.asarray(1.0)}]
    tree = tree_of([{"theta": np.asarray(theta)} for theta in THETA])
    found = inspect(
        records,
        Posterior(
            tree=tree, released=released, facts={"sampler": "grid"}, independent=True
        ),
    )
    return *found, target.around


def by_hand() -> np.ndarray:
    """log p(y | theta) - log p(y | centre), shape (draws, rows)."""
    return stats.norm.logpdf(Y, THETA[:, None], 1) - stats.norm.logpdf(Y, CENTRE, 1)


def test_bounds_and_counts_are_those_by_hand():
    facts, tree, _ = looked_at()
    found, terms = facts["posterior"], by_hand()
    assert found["bounds"]["bound"] == pytest.approx(np.abs(terms).max())
    assert found["bounds"]["weighted"] is False
    cut = np.abs(terms) > WINDOW
    assert cut.any()
    assert not cut.all()
    window = found["bounds"]["window"]
    assert window["any"] == COUNTS[cut.any(axis=0)].sum()
    assert window["any_share"] == window["any"] / 7
    # theta = 1 is what was released
    assert window["released"] == [COUNTS[cut[3]].sum()]
    assert found["parameters"] == [
        {
            "name": "theta",
            "mean": pytest.approx(THETA.mean()),
            "sd": pytest.approx(THETA.std()),
            "released": [1.0],
        }
    ]
    group = tree["pdips"].to_dataset()
    np.testing.assert_allclose(
        group["largest"], np.repeat(np.abs(terms).max(axis=0), COUNTS)
    )
    np.testing.assert_allclose(group["value_y"], np.repeat(Y, COUNTS))
    np.testing.assert_allclose(group["share_by_draw"][0], (cut @ COUNTS) / 7)


def test_public_weights_are_those_by_hand():
    facts, tree, points = looked_at(weights=True)
    far = np.abs(
        stats.norm.logpdf(Y, points[0][:, None], 1) - stats.norm.logpdf(Y, CENTRE, 1)
    ).max(axis=0)
    alpha = np.minimum(1, WINDOW / far)
    assert (alpha < 1).any()
    assert facts["posterior"]["bounds"]["bound"] == pytest.approx(
        np.abs(alpha * by_hand()).max()
    )
    np.testing.assert_allclose(tree["pdips"]["weights"], np.repeat(alpha, COUNTS))


def test_r_hat_and_effective_draws_are_those_of_arviz():
    import arviz as az

    draws = (
        np.random.default_rng(3).normal(0, 1, (4, 200, 2))
        + np.array([0, 0, 0, 1.0])[:, None, None]
    )
    tree = xr.DataTree.from_dict(
        {
            "posterior": az.from_dict({"posterior": {"b": draws}})[
                "posterior"
            ].to_dataset()
        }
    )
    likelihood = blueprint(normal, WIDE).likelihood
    records = InspectedRecords(
        likelihood=likelihood, values={"y": Y[:1]}, counts=np.ones(1, int)
    )
    posterior = Posterior(
        tree=tree,
        released=[{"b": draws[0, 0]}],
        facts={"sampler": "nuts"},
        independent=False,
    )
    found, _ = inspect(records, posterior)
    rows = found["posterior"]["parameters"]
    assert [row["name"] for row in rows] == ["b[0]", "b[1]"]
    assert [row["rhat"] for row in rows] == pytest.approx(
        az.rhat(tree["posterior"].to_dataset())["b"].values
    )
    assert rows[0]["rhat"] > 1.05  # the fourth chain is elsewhere
    # a model of other parameters
    assert found["posterior"]["bounds"] == {"failed": "KeyError"}


# Bounds of anybody's posterior from files: ``pdips bounds``


MODEL = cases(__file__, "bounds_of_files_model")
ROWS = np.array([0.0, 1.0, 4.0])


def posterior(group: str = "posterior") -> xr.DataTree:
    """Draws of the model's mean, or log-likelihoods of its three records by hand."""
    mean = np.random.default_rng(0).standard_normal((2, 50))
    if group == "posterior":
        data = xr.Dataset({"mean": (("chain", "draw"), mean)})
    else:
        terms = -0.5 * np.log(2 * np.pi) - (ROWS - mean[..., None]) ** 2 / 2
        data = xr.Dataset({"y": (("chain", "draw", "record"), terms)})
    return xr.DataTree.from_dict(
        {group: data.assign_coords({"chain": np.arange(2), "draw": np.arange(50)})}
    )


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("kind", ["netcdf", "zarr"])
@pytest.mark.parametrize("group", ["posterior", "log_likelihood"])
def test_files_give_the_bounds_that_a_hand_works_out(tmp_path, kind, group):
    path, model = tmp_path / f"draws.{kind}", tmp_path / "m.py"
    model.write_text(MODEL)
    getattr(posterior(group), f"to_{kind}")(path)
    found = bounds(path, model if group == "posterior" else None)
    terms = np.abs(posterior("log_likelihood")["log_likelihood"]["y"].to_numpy())
    np.testing.assert_allclose(found.by_chain, terms.max(axis=1), rtol=1e-6)
    np.testing.assert_allclose(found.largest, terms.max(axis=(0, 1)), rtol=1e-6)
    spread = np.ptp(terms.max(axis=1), axis=0) / terms.max(axis=(0, 1))
    np.testing.assert_allclose(found.chain_spread, spread, rtol=1e-6)


def test_the_command_says_that_it_is_inside_and_writes_both_files(tmp_path, pdips):
    posterior("log_likelihood").to_netcdf(tmp_path / "draws.nc")
    command = ("bounds", tmp_path / "draws.nc", "--out", tmp_path / "out")
    assert pdips.ok(*command, "--limit", 2).startswith("INSIDE ONLY")
    said = json.loads((tmp_path / "out" / "bounds.json").read_text())
    assert (
        said["records"],
        said["chains"],
        said["upper_draws"]["monte_carlo_error"] > 0,
    ) == (3, 2, True)
    assert len((tmp_path / "out" / "bounds.csv").read_text().splitlines()) == 4
    page = (tmp_path / "out" / "bounds.html").read_text()
    assert page.count("<svg") == 2
    assert "records go beyond 2 nats in some draw</td>" in page
    assert "can't write" in pdips(*command)[2]


def test_a_term_that_is_no_number_is_said_to_be_infinite(tmp_path, pdips):
    tree = posterior("log_likelihood")
    tree["log_likelihood"]["y"][1, 3, 2] = np.nan
    tree.to_netcdf(tmp_path / "draws.nc")
    said = pdips.ok("bounds", tmp_path / "draws.nc", "--out", tmp_path / "out")
    assert all(
        words in said
        for words in ("bound     inf nats; by", "It is infinite", "bounds.html")
    )


@pytest.mark.parametrize(
    ("text", "said"),
    cases(__file__, "a_model_that_does_not_fit_is_refused_without_quoting_it"),
)
def test_a_model_that_does_not_fit_is_refused_without_quoting_it(tmp_path, text, said):
    (tmp_path / "m.py").write_text(text)
    assert "4.0" not in refuses(said, bounds, posterior(), tmp_path / "m.py")


def test_draws_and_settings_that_do_not_fit_are_refused(tmp_path):
    (tmp_path / "draws.nc").write_text("no netCDF")
    refuses("no netCDF file and no zarr folder", bounds, tmp_path / "draws.nc")
    refuses("isn't there", bounds, tmp_path / "other.nc")
    refuses(
        "leave them out with a model",
        bounds,
        posterior(),
        pm.Model(),
        variable="y",
    )
    refuses("no such variable", bounds, posterior("log_likelihood"), variable="z")
