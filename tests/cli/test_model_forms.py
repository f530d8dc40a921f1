"""Models on the command line: formulas, and files with ``make(df)``."""

from pathlib import Path

import pytest
from written_models import SCHEMA, table

from pdips import Ledger
from pdips import open as opened

MODEL = '''"""A mean for each region."""

import pymc as pm


def make(df):
    codes, regions = df["region"].factorize(sort=True)
    with pm.Model(coords={"region": regions}) as model:
        a = pm.Normal("a", 170, 20, dims="region")
        pm.Normal("obs", a[codes], 20, observed=df["height"].values)
    return model
'''


WRONG = {
    "words.py": MODEL.replace("a[codes]", 'a[0] * df["region"].values'),
    "other.py": MODEL.replace('"height"', '"heigth"'),
    "empty.py": MODEL.replace('observed=df["height"].values', "shape=2"),
    "nothing.py": MODEL.replace("def make", "def other"),
}


@pytest.fixture
def people(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(300).to_parquet("people.parquet")
    (tmp_path / "people.toml").write_text(SCHEMA.to_toml())
    (tmp_path / "mine.py").write_text(MODEL)
    for name, wrong in WRONG.items():
        (tmp_path / name).write_text(wrong)
    return ("synthesize", "people.parquet", "--schema", "people.toml", "--epsilon", 1)


def test_a_file_with_make_is_released_with_its_own_names(pdips, people):
    said = pdips.ok(*people, "--model", "mine.py", "--sets", 2, "--out", "out")
    assert "by scores" in said
    release = opened("out/public")
    posterior = release.posterior["posterior"]
    assert posterior["a"].dims == ("chain", "draw", "region")
    assert [*release.sets[0].columns] == ["height", "weight", "region", "treated"]
    assert "def make(df)" in release.privacy.settings["model_source"]


@pytest.mark.slow
def test_a_formula_is_released(pdips, people):
    pytest.importorskip("bambi")
    said = pdips.ok(
        *people,
        "--formula",
        "children ~ treated",
        "--formula-setting",
        "family=poisson",
        "--out",
        "out",
    )
    assert "by scores" in said
    release = opened("out/public")
    assert {"Intercept", "treated"} <= {*release.posterior["posterior"].data_vars}
    assert release.privacy.settings["model_source"].startswith("children ~ treated")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--formula", "height ~ weight", "--model", "mine.py"), "leave --model out"),
        (("--formula-setting", "family=poisson"), "is for a --formula"),
        (("--formula", "height ~ colour"), "colour"),
        (("--formula", "weight ~ treated"), "public"),
        (("--model", "mine.py", "--public", "colour"), "'colour', which is no column"),
        (("--formula", "height ~ weight", "--mechanism", "steps"), "takes no model"),
        (("--model", "none.py"), "there is no model file"),
        (("--formula", "height"), "--formula has no outcome"),
        (("--model", "words.py"), "takes the words of column 'region' for numbers"),
        (("--model", "other.py"), "'heigth', which the schema doesn't have"),
        (("--model", "empty.py"), "without an observed variable"),
        (("--model", "nothing.py"), "has no function make(df), which makes"),
    ],
)
def test_bad_input_is_one_line(pdips, people, words, said):
    pdips.fails(said, *people, *words, "--out", "out", "--ledger", "l.sqlite")
    if Path("l.sqlite").exists():
        assert Ledger("l.sqlite").summary().spent_epsilon == 0


@pytest.mark.slow
def test_a_formula_needs_no_public_column(pdips, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(3_000).to_parquet("people.parquet")
    schema = SCHEMA.only(["height", "weight", "region"])
    columns = {
        name: column.model_copy(update={"public": False})
        for name, column in schema.columns.items()
    }
    hidden = schema.model_copy(update={"columns": columns})
    (tmp_path / "people.toml").write_text(hidden.to_toml())
    pdips.ok(
        "synthesize",
        "people.parquet",
        "--schema",
        "people.toml",
        "--epsilon",
        2,
        "--formula",
        "height ~ weight",
        "--out",
        "out",
    )
    release = opened("out/public")
    assert not release.privacy.table_schema.public_columns
    assert [*release.sets[0].columns] == ["height", "weight"]
    assert "weight" in release.posterior["posterior"]
    # the pseudo table's own sums are there for anybody to work with
    assert "curvature_2" in release.posterior["observed_data"]
