"""Group sums on the command line: by a formula, by a file with make(df), and without a
model.
"""

import numpy as np
import pandas as pd
import pytest

import pdips as library
from pdips import Schema

LEVELS = [f"s{number}" for number in range(420)]
SCHEMA = Schema(
    columns={"ill": {"lower": 0, "upper": 1, "integer": True}, "s": {"levels": LEVELS}}
)
FILE = """
import pymc as pm


def make(df):
    with pm.Model() as model:
        codes = df["s"].astype("category").cat
        mu = pm.Normal("mu", 0, 2)
        tau = pm.HalfNormal("tau", 1)
        a = pm.Normal("a", mu, tau, shape=len(codes.categories))
        pm.Bernoulli("ill", logit_p=a[codes.codes.values], observed=df["ill"].values)
    return model
"""


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"ill": rng.integers(0, 2, 4_000), "s": rng.choice(LEVELS, 4_000)}
    )
    frame.to_parquet(tmp_path / "table.parquet")
    (tmp_path / "s.toml").write_text(SCHEMA.to_toml(), encoding="utf-8")
    (tmp_path / "model.py").write_text(FILE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "effects"),
    [
        (
            ["--formula", "ill ~ (1 | s)", "--formula-setting", "family=bernoulli"],
            "1|s",
        ),
        (["--model", "model.py", "--mechanism", "group-sums"], "a"),
        (["--mechanism", "group-sums", "--option", "family=bernoulli"], "effect"),
    ],
)
def test_a_release_by_group_is_written_and_read_again(pdips, folder, words, effects):
    words = [str(folder / word) if word == "model.py" else word for word in words]
    table = (folder / "table.parquet", "--schema", folder / "s.toml")
    printed = pdips.ok(
        "synthesize", *table, *words, "--epsilon", 2, "--out", folder / "out"
    )
    assert "group-sums" in printed or "--mechanism" in words
    opened = library.open(folder / "out" / "public")
    assert opened.posterior["posterior"][effects].dims == ("chain", "draw", "s")
    groups = pd.read_parquet(folder / "out" / "public" / "groups.parquet")
    assert groups["s"].tolist() == LEVELS
    drawn = pd.read_parquet(folder / "out" / "public" / "synthetic_1.parquet")
    assert len(drawn) == 4_000
    assert {*drawn["s"]} <= {*LEVELS}


def test_sets_of_several_lengths_are_written(pdips, folder):
    """Under add-remove each set is as long as its own draw says, which no array of all
    sets can hold.
    """
    words = ("--mechanism", "group-sums", "--option", "family=bernoulli")
    table = (folder / "table.parquet", "--schema", folder / "s.toml")
    out = ("--neighbours", "add-remove", "--epsilon", 2, "--out", folder / "out")
    pdips.ok("synthesize", *table, *words, *out)
    sets = sorted((folder / "out" / "public").glob("synthetic_*.parquet"))
    lengths = {len(pd.read_parquet(each)) for each in sets}
    assert len(sets) == 10
    assert len(lengths) > 1
    opened = library.open(folder / "out" / "public")
    assert opened.posterior["posterior"]["effect"].dims == ("chain", "draw", "s")
    assert "posterior_predictive" not in opened.posterior.children
