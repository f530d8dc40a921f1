"""Bounds of anybody's posterior from files: ``pdips bounds``."""

import json

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from click.testing import CliRunner
from tables import cases, refuses

from pdips.cli import program
from pdips.posterior.inspection import check_bounds

MODEL = cases(__file__, "bounds_of_files_model")
ROWS = np.array([0.0, 1.0, 4.0])


def posterior(n_chains: int = 2, group: str = "posterior") -> xr.DataTree:
    """Draws of the model's mean, or log-likelihoods of its three records by hand."""
    mean = np.random.default_rng(0).standard_normal((n_chains, 50))
    if group == "posterior":
        data = xr.Dataset({"mean": (("chain", "draw"), mean)})
    else:
        terms = -0.5 * np.log(2 * np.pi) - (ROWS - mean[..., None]) ** 2 / 2
        data = xr.Dataset({"y": (("chain", "draw", "record"), terms)})
    return xr.DataTree.from_dict({group: data.assign_coords({"chain": np.arange(n_chains), "draw": np.arange(50)})})


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("kind", ["netcdf", "zarr"])
@pytest.mark.parametrize("group", ["posterior", "log_likelihood"])
def test_files_give_the_bounds_that_a_hand_works_out(tmp_path, kind, group):
    path, model = tmp_path / f"draws.{kind}", tmp_path / "m.py"
    model.write_text(MODEL)
    getattr(posterior(group=group), f"to_{kind}")(path)
    found = check_bounds(path, model if group == "posterior" else None)
    terms = np.abs(posterior(group="log_likelihood")["log_likelihood"]["y"].to_numpy())
    np.testing.assert_allclose(found.by_chain, terms.max(axis=1), rtol=1e-6)
    np.testing.assert_allclose(found.largest, terms.max(axis=(0, 1)), rtol=1e-6)
    spread = np.ptp(terms.max(axis=1), axis=0) / terms.max(axis=(0, 1))
    np.testing.assert_allclose(found.chain_spread, spread, rtol=1e-6)


def test_what_pymc_computed_is_read(tmp_path):
    with pm.Model():
        pm.Normal("y", pm.Normal("mean", 0, 5), 1, observed=ROWS)
        draws = pm.compute_log_likelihood(posterior(), progressbar=False)
    draws.to_netcdf(tmp_path / "draws.nc")
    by_hand = check_bounds(posterior(group="log_likelihood")).largest
    assert check_bounds(tmp_path / "draws.nc").largest == pytest.approx(by_hand)


def run(*arguments: object):
    return CliRunner().invoke(program, ["bounds", *map(str, arguments)])


def test_the_command_says_that_it_is_inside_and_writes_both_files(tmp_path):
    posterior(group="log_likelihood").to_netcdf(tmp_path / "draws.nc")
    done = run(tmp_path / "draws.nc", "--limit", 2, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("INSIDE ONLY")
    said = json.loads((tmp_path / "out" / "bounds.json").read_text())
    assert (said["records"], said["chains"], said["upper_draws"]["monte_carlo_error"] > 0) == (3, 2, True)
    assert len((tmp_path / "out" / "bounds.csv").read_text().splitlines()) == 4
    page = (tmp_path / "out" / "bounds.html").read_text()
    assert page.count("<svg") == 2
    assert "records go beyond 2 nats in some draw</td>" in page
    assert "can't write" in str(run(tmp_path / "draws.nc", "--out", tmp_path / "out").exception)


def test_one_chain_says_nothing_of_another():
    assert np.isnan(check_bounds(posterior(1, "log_likelihood")).chain_spread).all()


@pytest.mark.parametrize(("text", "said"), cases(__file__, "a_model_that_does_not_fit_is_refused_without_quoting_it"))
def test_a_model_that_does_not_fit_is_refused_without_quoting_it(tmp_path, text, said):
    (tmp_path / "m.py").write_text(text)
    assert "4.0" not in refuses(said, check_bounds, posterior(), tmp_path / "m.py")


@pytest.mark.parametrize(
    ("tree", "settings", "said"),
    [
        (posterior(), {}, "no log_likelihood group"),
        (posterior(group="log_likelihood"), {"model": pm.Model()}, "no posterior group"),
        (posterior(), {"model": pm.Model(), "variable": "y"}, "leave them out with a model"),
        (xr.DataTree.from_dict({"log_likelihood": xr.Dataset({"y": ("record", ROWS)})}), {}, "dims chain and draw"),
        (posterior(group="log_likelihood"), {"variable": "z"}, "."),
    ],
)
def test_draws_without_what_is_needed_are_refused(tree, settings, said):
    refuses(said, check_bounds, tree, **settings)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "draws.nc").write_text("no netCDF")
    for name, said in (("draws.nc", "no netCDF file and no zarr folder"), ("other.nc", "isn't there")):
        refuses(said, check_bounds, tmp_path / name)


def test_a_term_that_is_no_number_is_said_to_be_infinite(tmp_path):
    tree = posterior(group="log_likelihood")
    tree["log_likelihood"]["y"][1, 3, 2] = np.nan
    tree.to_netcdf(tmp_path / "draws.nc")
    said = run(tmp_path / "draws.nc", "--out", tmp_path / "out").output
    assert all(words in said for words in ("bound     inf nats; by", "It is infinite", "bounds.html"))
