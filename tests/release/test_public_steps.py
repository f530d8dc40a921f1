"""What is published of a sampler's steps: no time, no seed, only draws of the file."""

import numpy as np
import xarray as xr

from pdips.release import public_draws
from pdips.release.public_draws import OF_STEPS, kept_every, sample_stats

DIMS = ("chain", "draw")


def told(**more: np.ndarray) -> xr.DataTree:
    """What a sampler told of two chains of six draws."""
    steps = {name: (DIMS, np.arange(12.0).reshape(2, 6)) for name in OF_STEPS}
    stats = xr.Dataset(steps | more, attrs={"sampling_time": 3.5, "seed": 7})
    posterior = xr.Dataset({"b": (DIMS, np.zeros((2, 6)))})
    return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats})


def test_times_and_seeds_stay_inside():
    seconds = (DIMS, np.ones((2, 6)))
    published = sample_stats(told(perf_counter_diff=seconds))
    assert {*published.data_vars} == {*OF_STEPS}
    assert published.attrs == {}


def test_steps_are_those_of_the_draws_in_the_file(monkeypatch):
    assert kept_every(told()) == 1
    monkeypatch.setattr(public_draws, "MOST_POSTERIOR_NUMBERS", 3)
    assert kept_every(told()) == 4
    published = sample_stats(told())
    assert published["energy"].values.tolist() == [[0.0, 4.0], [6.0, 10.0]]
    assert published["draw"].values.tolist() == [0, 1]


def test_draws_without_chains_have_no_steps():
    assert sample_stats(xr.DataTree.from_dict({"posterior": xr.Dataset()})) is None
