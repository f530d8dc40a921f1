"""Noise so quiet that its variance is 0 in doubles: no mechanism may divide by it,
after the charge least of all.
"""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from pdips import Ledger, Schema, synthesize
from pdips.privacy.noise import discrete_laplace_variance
from pdips.registry import find

COLUMNS = {
    "level": {"lower": 1000, "upper": 6000, "integer": True, "scale": "log"},
    "size": {"lower": 0, "upper": 9, "bins": 3},
    "s": {"levels": ["a", "b", "c", "d"]},
    "code": {"levels": ["11", "12", "21", "22"], "groups": 1},
    "weight": {"lower": 1, "upper": 50},
}
PAIRS = {
    "numbers": (["level", "s"], {}),
    "bins": (["size", "s"], {"measure": "pairs"}),
    "fitted": (["level", "size", "s"], {"sets": "fitted"}),
    "codes": (["code", "size", "level"], {}),
    "three": (["s", "size", "code"], {"also": ("s", "size", "code")}),
    "again": (["s", "size", "level"], {"second_share": "1/2"}),
    "products": (["s", "size", "level"], {"products": ("level", "size", "s")}),
    "weights": (["s", "size", "weight"], {"weighted": ("s", "size")}),
    "chosen": (["s", "size", "level"], {"chosen": 1, "sets": "fitted"}),
}
CELLS = ("laplace-sanitizer", "perturbed-histogram", "universal-histogram")
CELLS += ("smoothed-histogram", "multinomial-dirichlet", "mcclure-reiter", "privbayes")


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "level": rng.integers(1000, 6001, 30),
            "size": rng.uniform(0, 9, 30),
            "s": rng.choice(list("abcd"), 30),
            "code": rng.choice(["11", "12", "21"], 30),
            "weight": rng.uniform(1, 50, 30),
        }
    )


def released(path, frame, names, mechanism, **settings):
    """Return the sets of a release with a ledger, which then has one charge."""
    content = {"columns": {name: COLUMNS[name] for name in names}}
    if "weight" in names:
        content["records"] = {"weight": "weight"}
    release, _ = synthesize(
        frame[names],
        Schema(**content),
        mechanism=mechanism,
        ledger=path,
        progress=False,
        **settings,
    )
    assert len(Ledger(path).entries()) == 1
    return release.sets


def test_this_noise_has_no_variance_left():
    assert discrete_laplace_variance(1 / 1_000) == 0


@pytest.mark.parametrize(
    ("name", "neighbours"),
    [*product(PAIRS, ["add-remove"]), ("numbers", "replace-one")],
)
def test_pairs_of_quiet_noise(path, frame, name, neighbours):
    names, settings = PAIRS[name]
    sets = released(
        path,
        frame,
        names,
        "margins",
        epsilon=100_000,
        neighbours=neighbours,
        n_sets=2,
        **settings,
    )
    assert [len(made) for made in sets] == [30, 30]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"order": ("s",)},
        {"elect": "node", "layers": 2},
        {"layers": 2, "stop": 2, "below": "views"},
        {"layers": 2, "split": "per-set"},
    ],
    ids=str,
)
def test_steps_of_quiet_noise(path, frame, neighbours, settings):
    sets = released(
        path,
        frame,
        ["s", "size", "code"],
        "steps",
        epsilon=1_000_000,
        neighbours=neighbours,
        n_sets=2,
        **settings,
    )
    assert [len(made) for made in sets] == [30, 30]


@pytest.mark.parametrize("settings", [{"sets": "fitted"}, {}], ids=str)
def test_views_of_quiet_noise(path, frame, neighbours, settings):
    sets = released(
        path,
        frame,
        ["s", "size", "code"],
        "margins",
        epsilon=1_000_000,
        neighbours=neighbours,
        n_sets=2,
        **settings,
    )
    assert [len(made) for made in sets] == [30, 30]


@pytest.mark.parametrize("mechanism", CELLS)
def test_cells_of_quiet_noise(path, frame, mechanism):
    n_sets = min(2, find(mechanism).most_sets)
    sets = released(
        path, frame, ["s", "size"], mechanism, epsilon=1_000_000, n_sets=n_sets
    )
    assert [len(made) for made in sets] == [30] * n_sets


@pytest.mark.parametrize(
    ("mechanism", "settings"), [("kng", {"quantiles": 5}), ("kng-residual", {})]
)
def test_lines_of_quiet_noise(path, frame, mechanism, settings):
    names = ["s", "level"]
    sets = released(
        path, frame, names, mechanism, epsilon=1_000_000, n_sets=2, **settings
    )
    assert [len(made) for made in sets] == [30, 30]
