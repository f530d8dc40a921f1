"""Mistakes that people make, on the command line and in Python: one line that says what
to do, and nothing is spent.
"""

import json
import os
import pickle
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tables import refuses
from test_cli import complains, words, written

import pdips as library
from pdips import Ledger, Margins, Schema, Table, synthesize
from pdips.inference import combine

KNOWN = {"columns": {"ill": {"levels": ["no", "yes"]}, "sex": {"levels": ["f", "m"]}}}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to work in, with a table and its schema."""
    monkeypatch.chdir(tmp_path)
    return written(tmp_path)


@pytest.fixture
def frame():
    """Two hundred records of two columns."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {"ill": rng.choice(["no", "yes"], 200), "sex": rng.choice(["f", "m"], 200)}
    )


def test_types_that_are_no_records_on_the_command_line(pdips, here):
    pd.read_parquet("t.parquet").assign(colour=pd.Timestamp("2020-01-01")).to_parquet(
        "t.parquet"
    )
    said = (
        "column 'colour' is of a type other than text, number or true/false "
        "(dates: type = 'date')"
    )
    complains(pdips, here, said, *words(here, "--explain"))
    pd.DataFrame({"colour": [["red"]] * 4}).to_parquet("t.parquet")
    complains(
        pdips,
        here,
        "column 'colour' holds lists",
        "schema",
        "draft",
        here / "t.parquet",
    )


def model_itself(frame):
    return synthesize(
        frame, KNOWN, epsilon=1, model=pytest.importorskip("pymc").Model()
    )


def model_of_a_misspelt_column(frame):
    pm = pytest.importorskip("pymc")

    def make(df):
        with pm.Model() as model:
            share = pm.Beta("share", 1, 1)
            pm.Bernoulli("one", share, observed=df["sx"] == "f")
        return model

    return library.sample(make, frame, KNOWN, epsilon=1)


def published_twice(frame):
    release, _ = synthesize(frame, KNOWN, epsilon=1)
    release.publish("p")
    release.publish("p")


PYTHON = {
    "empty schema": (lambda _: Schema(), "columns: Field required"),
    "schema of another type": (
        lambda f: synthesize(f, 5, epsilon=1),
        "schema must be a Schema, a dict or the path",
    ),
    "unnamed setting": (lambda _: Margins(1.0), "takes its settings by name"),
    "misspelt setting": (
        lambda _: Margins(epsilon=1, layres=2),
        r"has no setting layres; it has epsilon",
    ),
    "frame in place of a table": (
        lambda f: Margins(epsilon=1).release(f),
        "release takes a Table, got DataFrame",
    ),
    "seed in place of a generator": (
        lambda f: Margins(epsilon=1).release(Table(f, Schema(**KNOWN)), rng=1),
        "rng must be a numpy.random.Generator",
    ),
    "seed of text": (
        lambda f: synthesize(f, KNOWN, epsilon=1, seed="one"),
        "rng must be",
    ),
    "list of records": (lambda _: Table([1], Schema(**KNOWN)), "got list and Schema"),
    "dict in place of a schema": (lambda f: Table(f, KNOWN), "got DataFrame and dict"),
    "length": (lambda f: len(Table(f, Schema(**KNOWN))), "n_records"),
    "pickle": (lambda f: pickle.dumps(Table(f, Schema(**KNOWN))), "isn't pickled"),
    "ledger": (
        lambda f: synthesize(f, KNOWN, epsilon=1, ledger=3),
        "named by the path",
    ),
    "mechanism": (
        lambda f: synthesize(f, KNOWN, epsilon=1, mechanism="stpes"),
        "mechanism must be one of .* got 'stpes' .did you mean 'steps'",
    ),
    "column of a model": (
        model_of_a_misspelt_column,
        "reads column 'sx', which the schema doesn't have .did you mean 'sex'",
    ),
    "columns alone": (
        lambda f: synthesize(f, {"sex": ["f", "m"]}, epsilon=1),
        "has its columns under 'columns'",
    ),
    "rule": (
        lambda _: combine([1, 2], [1, 1], rule="betwen"),
        "did you mean 'between'",
    ),
    "column of an option": (
        lambda f: synthesize(
            f, KNOWN, epsilon=1, mechanism="universal-histogram", attribute="sx"
        ),
        "could be cut into intervals .did you mean 'sex'",
    ),
    "mechanism itself": (
        lambda f: synthesize(f, KNOWN, epsilon=1, mechanism=Margins),
        "mechanism must be a name",
    ),
    "epsilon": (
        lambda f: synthesize(f, KNOWN, epsilon="one"),
        "epsilon must be a finite number",
    ),
    "model itself": (
        model_itself,
        "let a function of that name make and return the pm.Model",
    ),
    "published twice": (published_twice, "not empty"),
}


@pytest.mark.parametrize(("wrong", "message"), PYTHON.values(), ids=PYTHON)
def test_in_python(here, frame, wrong, message):
    assert "http" not in refuses(message, wrong, frame)


@pytest.mark.parametrize("kind", ["frame", "dict", "arrow", "file", "table"])
def test_a_release_in_one_call(here, frame, kind):
    frame.to_parquet("people.parquet")
    table = {
        "frame": frame,
        "dict": frame.to_dict("list"),
        "arrow": pa.Table.from_pandas(frame),
        "file": "people.parquet",
        "table": Table(frame, Schema(**KNOWN)),
    }[kind]
    release, record = synthesize(
        table,
        KNOWN,
        epsilon=np.float64(1),
        mechanism="laplace-sanitizer",
        ledger="people.sqlite",
        n_sets=np.int64(2),
    )
    assert [len(each) for each in release.sets] == [200, 200]
    assert Ledger("people.sqlite").summary().spent_epsilon == 1
    assert "replace-one" in release.card()
    found = record.evaluate(frame, formula="ill ~ sex")
    assert 0 <= found.measure("SPECKS").mean <= 1
    assert found.specific.formula == "ill ~ sex"
    assert all(
        line in str(found) for line in ("INSIDE ONLY", "\nSPECKS  ", "\nill ~ sex ")
    )
    assert repr(found) == str(found)
    for shown in (
        release,
        record,
        release.loss,
        release.schema,
        Ledger("people.sqlite"),
    ):
        assert shown._repr_html_().startswith("<b>")


NO_DELTA = (
    "delta has no effect on privbayes: leave it out, or take censored-posterior, "
    "group-sums, margins, modips or scores"
)


def test_a_delta_without_effect_is_refused_before_anything_is_charged(pdips, here):
    for more in (["--delta", "1e-6"], ["--option", "delta=1e-6"]):
        asked = words(here, *more, "--ledger", "l.sqlite", mechanism="privbayes")
        code, out, err = pdips(*asked)
        assert (code, out, err) == (2, "", f"pdips: {NO_DELTA}\n")
    refuses(
        NO_DELTA,
        synthesize,
        "t.parquet",
        "s.toml",
        epsilon=1,
        delta="1e-6",
        mechanism="privbayes",
        ledger="l.sqlite",
    )
    assert not Path("l.sqlite").exists()


def test_a_delta_alone_chooses_gaussian_noise(pdips, here):
    release, _ = synthesize(
        "t.parquet", "s.toml", epsilon=1, delta=1e-6, mechanism="margins", seed=3
    )
    assert pdips(*words(here, "--delta", "1e-6", "--seed", 3))[0] == 0
    pd.testing.assert_frame_equal(
        release.sets[0], pd.read_parquet("out/confidential/synthetic_1.parquet")
    )
    loss = release.loss
    assert (loss.kind, loss.epsilon, loss.delta) == ("zcdp", 1, Fraction(1, 10**6))
    assert release.settings["delta"] == 1e-6
    assert "kind" not in release.settings
    assert "with epsilon = 1 in total" in loss.statement
    pure, _ = synthesize("t.parquet", "s.toml", epsilon=1, mechanism="margins", seed=3)
    assert (pure.loss.kind, pure.settings["delta"]) == ("pure", None)


def test_one_call_does_what_the_command_does(pdips, here):
    asked = {"epsilon": 1, "mechanism": "margins", "seed": 3}
    release, _ = synthesize("t.parquet", "s.toml", **asked)
    assert pdips(*words(here, "--seed", 3))[0] == 0
    pd.testing.assert_frame_equal(
        release.sets[0], pd.read_parquet("out/confidential/synthetic_1.parquet")
    )
    document = json.loads((here / "out/confidential/privacy.json").read_text())
    assert document["privacy"] == release.describe()["privacy"]
    refuses("made from a seed", release.publish, "p", error=library.RefusedError)


def test_a_call_without_budget_reads_nothing(here):
    Ledger("l.sqlite").set_total("1/2")
    os.remove("t.parquet")
    with pytest.raises(library.RefusedError, match="would be overspent"):
        synthesize("t.parquet", "s.toml", epsilon=1, ledger="l.sqlite")


def test_nothing_is_told_before_an_input_error(pdips, here):
    asked = [*words(here)]
    start = asked.index("--mechanism")
    del asked[start : start + 2]
    found = pdips.ok(*asked)
    assert found.startswith("mechanism margins: it counts views")
    for wrong in (["--epsilon", "1,5"], ["--delta", "2"], ["--neighbours", "far"]):
        code, out, err = pdips(*asked, *wrong, "--overwrite")
        assert (code, out, err.count("\n")) == (2, "", 1)
