"""Scores as people run it: what is refused, in words and before the spend, and what a release leaves behind."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from pdips import InputError, Ledger, Schema, Scores
from pdips.inference import rule_for

SCHEMA = """
[columns.x]
lower = -3
upper = 3
{public}
[columns.y]
lower = -9
upper = 9
"""
MODEL = """
import numpy as np
import pymc as pm
import pytensor.tensor as pt

def build_model(data, schema):
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        {line}
    return model
"""
GOOD = 'pm.Normal("y", a * data["x"], 1, observed=data["y"])'

REFUSED = {
    "terms that aren't separate": (
        'pm.Normal("y", a * (data["x"] - data["x"].mean()), 1, observed=data["y"])',
        "the log-likelihood of a record depends on other records, through 'x'",
    ),
    "one parameter a record": (
        'pm.Normal("y", pm.Normal("b", 0, 1, shape=data.n_records), 1, observed=data["y"])',
        "parameters for single records",
    ),
    "no slope": ('pm.Normal("y", pt.floor(a) * data["x"], 1, observed=data["y"])', "must enter smoothly"),
    "data read by value": (
        'pm.Normal("y", a * data["x"].get_value().mean(), 1, observed=data["y"])',
        "asks for the values of data['x']",
    ),
    "2,000 parameters": (
        'pm.Normal("y", pm.Normal("b", 0, 1, shape=2000).sum() * data["x"], 1, observed=data["y"])',
        "2,001 parameters, and scores takes at most 400: the noise on each would weigh as much as what about",
    ),
    "a discrete parameter": ('pm.Normal("y", pm.Bernoulli("k", 0.5), 1, observed=data["y"])', "'k' is discrete"),
    "nothing observed": ("pass", "no observed variable"),
}
"""The line of a model that is wrong, and what is said of it."""


@pytest.fixture
def here(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, 317)
    pd.DataFrame({"x": x, "y": np.clip(x + rng.normal(size=317), -9, 9)}).to_parquet(tmp_path / "t.parquet")
    (tmp_path / "s.toml").write_text(SCHEMA.format(public="public = true"))
    (tmp_path / "joint.toml").write_text(SCHEMA.format(public=""))
    (tmp_path / "my_model.py").write_text(MODEL.format(line=GOOD))
    return tmp_path


def words(here, *more, schema="s.toml"):
    common = ["synthesize", here / "t.parquet", "--schema", here / schema, "--mechanism", "scores", "--epsilon", 1]
    return [*common, "--model", here / "my_model.py", "--ledger", here / "l.sqlite", "--out", here / "out", *more]


def refused(pdips, here, *arguments):
    """Check for one line, with nothing of the table, nothing written, and nothing spent; return it."""
    code, out, err = pdips(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "317" not in err.replace(str(here), "")
    assert not (here / "out").exists()
    entries = Ledger(here / "l.sqlite").entries() if (here / "l.sqlite").exists() else []
    assert not [entry for entry in entries if entry.epsilon]
    return err


@pytest.mark.parametrize("name", REFUSED)
def test_models_are_refused_before_the_spend(pdips, here, name):
    line, message = REFUSED[name]
    (here / "my_model.py").write_text(MODEL.format(line=line))
    assert message in refused(pdips, here, *words(here))
    with pytest.raises(InputError) as told:
        Scores(epsilon=1, model=here / "my_model.py").privacy_loss(Schema.load(here / "s.toml"))
    assert message in str(told.value)


def test_a_model_without_free_parameters_is_refused(pdips, here):
    (here / "my_model.py").write_text(
        MODEL.replace('a = pm.Normal("a", 0, 1)', "a = 1.0").format(line='pm.Normal("y", a, 1, observed=data["y"])')
    )
    assert "the model has no parameter, so there is nothing to learn" in refused(pdips, here, *words(here))


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        ("joint.toml", (), "column 'x' is neither public nor observed in the model, which would have to draw it"),
        ("s.toml", ("--neighbours", "add-remove"), "public columns show the number of records"),
        ("s.toml", ("--option", "n_records=20"), "public columns show the number of records"),
        ("s.toml", ("--option", "score_rounds=0"), "score_rounds must be a whole number from 1 to 5, got 0"),
        ("s.toml", ("--option", "kind=gdp"), "kind must be one of pure, zcdp"),
        ("s.toml", ("--option", "delta=2", "--option", "kind=zcdp"), "delta must be"),
        ("s.toml", ("--option", "rounds=3"), "rounds"),
    ],
)
def test_settings_are_refused_before_the_spend(pdips, here, schema, options, message):
    assert message in refused(pdips, here, *words(here, *options, schema=schema))


def test_noise_that_would_make_sets_of_millions_is_refused(pdips, here):
    (here / "my_model.py").write_text(
        MODEL.format(line='x = pm.Normal("x", 0, 1, observed=data["x"]); pm.Normal("y", a * x, 1, observed=data["y"])')
    )
    arguments = words(here, "--neighbours", "add-remove", schema="joint.toml")
    arguments[arguments.index("--epsilon") + 1] = "1e-6"
    assert "give n_records, how many synthetic records" in refused(pdips, here, *arguments)


def test_a_release_from_end_to_end(pdips, here):
    code, out, err = pdips(*words(here, "--option", "kind=zcdp", "--option", "score_rounds=1", "--sets", 2))
    assert (code, err) == (0, "")
    assert "by scores" in out
    public = here / "out" / "public"
    facts = json.loads((public / "privacy.json").read_text())
    assert facts["privacy"]["kind"] == "zcdp"
    assert facts["privacy"]["epsilon"] <= 1
    assert "317" not in re.sub("[0-9a-f]{64}", "a digest", json.dumps(facts))
    assert rule_for(public) == "posterior-predictive"
    [entry] = [each for each in Ledger(here / "l.sqlite").entries() if each.epsilon]
    assert entry.mechanism == "scores"
    card = (public / "card.html").read_text()
    assert "a draw of its own from the posterior" in " ".join(card.split())
    assert pdips("check", public)[0] == 0
