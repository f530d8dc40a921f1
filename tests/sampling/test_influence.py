"""``pdips.bounds`` and the command of that name: models and draws in every form that
people have them.
"""

import importlib.util

import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from scipy import stats
from tables import refuses

import pdips as package
from pdips import Schema, bounds
from pdips.posterior.model_file import as_source

pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS installation",
)
WITHOUT_BAMBI = importlib.util.find_spec("bambi") is None
N = 150
SCHEMA = Schema(
    columns={
        "pay": {"lower": -50, "upper": 50},
        "group": {"levels": ["a", "b"], "public": True},
    }
)
TEXT = """
import pymc as pm


def make(df):
    codes = (df["group"] == "b").to_numpy().astype(int)
    with pm.Model(coords={"of": ["a", "b"]}) as model:
        level = pm.Normal("pay", 0, 10, dims="of")
        pm.Normal("y", level[codes], 2, observed=df["pay"].to_numpy())
    return model
"""


def people() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    group = rng.integers(2, size=N)
    frame = pd.DataFrame({"pay": np.round(rng.normal(3 * group, 2), 3)})
    frame["group"] = np.array(["a", "b"])[group]
    return frame


def make(df):
    """A variable is called as the column that the model describes."""
    codes = (df["group"] == "b").to_numpy().astype(int)
    with pm.Model(coords={"of": ["a", "b"]}) as model:
        level = pm.Normal("pay", 0, 10, dims="of")
        pm.Normal("y", level[codes], 2, observed=df["pay"].to_numpy())
    return model


def build_model(data, schema):
    with pm.Model() as model:
        level = pm.Normal("level", 0, 10, shape=2)
        pm.Normal("pay", level[data["group"]], 2, observed=data["pay"])
    return model


def drawn(name: str = "pay") -> xr.DataTree:
    """Draws of two levels, by hand."""
    levels = np.random.default_rng(2).normal([0.0, 3.0], 0.3, (2, 40, 2))
    posterior = xr.Dataset({name: (("chain", "draw", "of"), levels)})
    return xr.DataTree.from_dict({"posterior": posterior})


def by_hand(levels: xr.DataArray) -> np.ndarray:
    """Return the largest absolute log-likelihood of each record."""
    frame = people()
    codes = (frame["group"] == "b").to_numpy().astype(int)
    means = levels.to_numpy().reshape(-1, 2)[:, codes]
    terms = stats.norm.logpdf(frame["pay"].to_numpy(), means, 2)
    return np.abs(terms).max(axis=0)


FORMS = {
    "a conditioned model": lambda: (make(people()),),
    "make and records": lambda: (make, people()),
    "make, records and a schema": lambda: (make, people(), SCHEMA),
    "a schema as a dict": lambda: (make, people(), SCHEMA.to_dict()),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_model_gives_the_bounds_that_a_hand_works_out(form):
    tree = drawn()
    found = bounds(tree, *FORMS[form](), limit=5)
    np.testing.assert_allclose(found.largest, by_hand(tree["posterior"]["pay"]))
    assert found.by_chain.shape == (2, N)
    assert found.limit == 5


def test_the_contract_and_a_source_take_a_schema():
    tree = drawn("level")
    for model in (build_model, as_source(build_model)):
        found = bounds(tree, model, people(), SCHEMA)
        np.testing.assert_allclose(found.largest, by_hand(tree["posterior"]["level"]))


def test_a_file_with_make_and_a_table_in_a_file(tmp_path, pdips):
    (tmp_path / "m.py").write_text(TEXT)
    people().to_parquet(tmp_path / "t.parquet")
    (tmp_path / "s.toml").write_text(SCHEMA.to_toml())
    drawn().to_netcdf(tmp_path / "draws.nc")
    largest = by_hand(drawn()["posterior"]["pay"]).max()
    found = bounds(tmp_path / "draws.nc", tmp_path / "m.py", people())
    assert found.overall == pytest.approx(largest)
    command = ("bounds", tmp_path / "draws.nc", "--model", tmp_path / "m.py")
    table = ("--table", tmp_path / "t.parquet", "--schema", tmp_path / "s.toml")
    said = pdips.ok(*command, *table)
    assert f"bound     {largest:.4g} nats" in said
    assert "needs the table too" in pdips(*command)[2]
    assert "leave --model out" in pdips(*command, *table, "--formula", "pay ~ 1")[2]
    assert "give the model too" in pdips(*command[:2], *table)[2]


@pytest.fixture(scope="module")
def tree():
    settings = {"epsilon": 4, "sets": 1, "seed": 3, "draws": 200, "progress": False}
    return package.sample(make, people(), SCHEMA, **settings)


def test_the_tree_of_a_release_needs_no_schema(tree, tmp_path, pdips):
    expected = by_hand(tree["posterior"]["pay"])
    found = bounds(tree, make, people())
    np.testing.assert_allclose(found.largest, expected)
    np.testing.assert_allclose(
        bounds(tree.copy(), make, people()).largest, expected
    )  # by the records alone
    tree.pdips.publish(tmp_path / "public", allow=["seeded"])
    opened = package.open(tmp_path)
    for given in (opened, opened.posterior, tmp_path, tree.pdips.release):
        np.testing.assert_allclose(bounds(given, make, people()).largest, expected)
    (tmp_path / "m.py").write_text(TEXT)
    people().to_parquet(tmp_path / "t.parquet")
    said = pdips.ok(
        "bounds",
        tmp_path,
        *("--model", tmp_path / "m.py", "--table", tmp_path / "t.parquet"),
    )
    assert f"bound     {expected.max():.4g} nats" in said


@pytest.mark.filterwarnings("ignore:For backward compatibility, 'str' dtypes")
@pytest.mark.skipif(WITHOUT_BAMBI, reason="bambi is an extra")
def test_a_formula_and_a_model_of_bambi():
    import bambi as bmb

    frame = people()
    levels = drawn()["posterior"]["pay"]
    posterior = xr.Dataset(
        {
            "group": (("chain", "draw", "of"), levels.to_numpy()),
            "sigma": (("chain", "draw"), np.full((2, 40), 2.0)),
        }
    )
    tree = xr.DataTree.from_dict({"posterior": posterior})
    formula = "pay ~ 0 + group"
    expected = by_hand(levels)
    found = bounds(tree, formula, frame, SCHEMA)
    np.testing.assert_allclose(found.largest, expected)
    own = bounds(tree, bmb.Model(formula, frame))
    np.testing.assert_allclose(own.largest, expected)
    hidden = Schema(
        columns={
            "pay": {"lower": -50, "upper": 50},
            "group": {"levels": ["a", "b"]},
        }
    )
    found = bounds(tree, formula, frame, hidden, public=["group"])
    np.testing.assert_allclose(found.largest, expected)


def wrong(df):
    raise ValueError(f"a record: {df['pay'].iloc[0]}")


UNFIT = {
    "given no model": ("give the model too", lambda: (drawn(), None, people())),
    "made of a table": ("give the table too", lambda: (drawn(), make)),
    "its records twice": ("leave data out", lambda: (drawn(), make(people()), 1)),
    "a schema alone": (
        "give data too",
        lambda: (drawn(), make(people()), None, SCHEMA),
    ),
    "a formula": ("give it too", lambda: (drawn(), "pay ~ group", people())),
    "a path": ("give it too", lambda: (drawn(), make, "t.parquet")),
    "the contract": ("needs the schema too", lambda: (drawn(), build_model, people())),
    "no draws": ("must be an ArviZ tree", lambda: ({"pay": 1}, make, people())),
    "other draws": ("no draws of 'pay'", lambda: (drawn("level"), make, people())),
    "no file": ("no model file", lambda: (drawn(), "other.py")),
}


@pytest.mark.parametrize("unfit", UNFIT)
def test_what_is_missing_is_said(unfit):
    says, given = UNFIT[unfit]
    refuses(says, bounds, *given())


def test_settings_that_nothing_reads_are_refused():
    refuses("famly: no setting", bounds, drawn(), make, people(), SCHEMA, famly="t")
    refuses("public: no setting", bounds, drawn(), make, people(), public=["group"])
    refuses("public: no setting", bounds, drawn(), make(people()), public=["group"])
    refuses("leave them out", bounds, drawn(), make, people(), variable="y")


def test_an_error_of_the_model_quotes_no_record(tmp_path):
    said = refuses("ended with ValueError", bounds, drawn(), wrong, people())
    assert not any(letter.isdigit() for letter in said)
    file = tmp_path / "m.py"
    file.write_text("raise KeyError('a record: 4.5')")
    said = refuses("can't be run; it ended with KeyError", bounds, drawn(), file, {})
    assert "4.5" not in said


def test_the_tree_of_a_release_has_no_likelihood_of_records(tree):
    refuses("holds no log-likelihood of records", bounds, tree)
    release = tree.pdips.release
    refuses("holds no log-likelihood of records", bounds, release)


def test_a_models_context_is_left_alone():
    with pm.Model() as own:
        bounds(drawn(), make, people())
        assert pm.modelcontext(None) is own
    assert not own.named_vars


def test_covariates_may_be_confidential():
    def sloped(df):
        with pm.Model() as model:
            b = pm.Normal("b", 0, 1)
            pm.Normal("pay", b * df["age"].values, 1, observed=df["pay"].values)
        return model

    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"age": rng.uniform(-1, 1, 60), "pay": rng.uniform(0, 1, 60)})
    schema = Schema(
        columns={"age": {"lower": -2, "upper": 2}, "pay": {"lower": -9, "upper": 9}}
    )
    draws = xr.Dataset({"b": (("chain", "draw"), rng.normal(size=(2, 50)))})
    tree = xr.DataTree.from_dict({"posterior": draws})
    with_schema = bounds(tree, sloped, frame, schema, limit=5)
    alone = bounds(tree, sloped(frame), limit=5)
    assert with_schema.overall == pytest.approx(alone.overall)
