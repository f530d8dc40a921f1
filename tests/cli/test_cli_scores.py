"""Scores as people run it: what is refused, in words and before the spend, and what a
release leaves behind.
"""

import json
import re

import numpy as np
import pandas as pd
import pytest
from tables import cases

from pdips import Ledger
from pdips.inference import rule_for

SCHEMA = cases(__file__, "cli_scores_schema")
MODEL = cases(__file__, "cli_scores_model")
GOOD = 'pm.Normal("y", a * data["x"], 1, observed=data["y"])'

REFUSED = cases(__file__, "refused")
"""The line of a model, or none for the good one, the schema and the options, and what
is said of them.
"""


@pytest.fixture
def here(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, 317)
    pd.DataFrame({"x": x, "y": np.clip(x + rng.normal(size=317), -9, 9)}).to_parquet(
        tmp_path / "t.parquet"
    )
    (tmp_path / "s.toml").write_text(SCHEMA.format(public="public = true"))
    (tmp_path / "joint.toml").write_text(SCHEMA.format(public=""))
    (tmp_path / "my_model.py").write_text(MODEL.format(line=GOOD))
    return tmp_path


def words(here, *more, schema="s.toml"):
    common = [
        "synthesize",
        here / "t.parquet",
        "--schema",
        here / schema,
        "--mechanism",
        "scores",
        "--epsilon",
        1,
    ]
    return [
        *common,
        "--model",
        here / "my_model.py",
        "--ledger",
        here / "l.sqlite",
        "--out",
        here / "out",
        *more,
    ]


def refused(pdips, here, *arguments):
    """Check for one line, with nothing of the table, nothing written, and nothing
    spent; return it.
    """
    err = pdips.fails("", *arguments)
    assert "317" not in err.replace(str(here), "")
    assert not (here / "out").exists()
    entries = (
        Ledger(here / "l.sqlite").entries() if (here / "l.sqlite").exists() else []
    )
    assert not [entry for entry in entries if entry.price.epsilon]
    return err


@pytest.mark.parametrize("name", REFUSED)
def test_what_scores_cannot_do_is_refused_before_the_spend(pdips, here, name):
    line, schema, options, message = REFUSED[name]
    prior = "1.0" if name == "no free parameter" else 'pm.Normal("a", 0, 1)'
    (here / "my_model.py").write_text(
        MODEL.replace('pm.Normal("a", 0, 1)', prior).format(line=line or GOOD)
    )
    assert message in refused(pdips, here, *words(here, *options, schema=schema))


@pytest.mark.slow
def test_a_release_from_end_to_end(pdips, here):
    code, out, err = pdips(
        *words(here, "--delta", "1e-6", "--option", "score_rounds=1", "--sets", 2),
        # of a right model one release in 20 says that it is contradicted
        *("--seed", 3, "--allow", "seeded"),
    )
    assert code == 0
    assert "by scores" in out
    assert err.startswith("WARNING   made from a seed")
    assert err.count("\n") == 1
    public = here / "out" / "public"
    facts = json.loads((public / "privacy.json").read_text())
    assert facts["privacy"]["kind"] == "zcdp"
    assert facts["privacy"]["epsilon"] <= 1
    assert "317" not in re.sub("[0-9a-f]{64}", "a digest", json.dumps(facts))
    assert rule_for(public) == "posterior-predictive"
    [entry] = [
        each for each in Ledger(here / "l.sqlite").entries() if each.price.epsilon
    ]
    assert entry.mechanism == "scores"
    assert ("a draw of its own from the posterior") in " ".join(
        (public / "card.html").read_text().split()
    )
    assert pdips("check", public)[0] == 0
