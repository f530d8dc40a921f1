"""``pdips.sample``: from a model as people write it to a posterior as an ArviZ tree."""

import pickle
from fractions import Fraction

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
from written_models import SCHEMA, ordered, table, with_dims

import pdips
from pdips import InputError, Ledger, Schema
from pdips.sampling import source_of_conditioned, written_model

pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS installation",
)
SEED = 11
N = 1_500


def people(n: int = N) -> pd.DataFrame:
    """Records of which the model of ``make`` is true."""
    rng = np.random.default_rng(SEED)
    frame = table(n, SEED)
    a = {"north": 165.0, "south": 170.0, "east": 175.0, "west": 180.0}
    mean = frame.region.map(a) + 0.1 * (frame.weight - 80)
    frame["height"] = (mean + rng.normal(0, 8, n)).clip(100, 220)
    return frame


def make(df):
    """A regression with groups, as galleries write it."""
    codes, regions = df.region.factorize(sort=True)
    coords = {"region": regions, "obs_id": np.arange(len(df))}
    with pm.Model(coords=coords) as model:
        a = pm.Normal("a", 170, 20, dims="region")
        b = pm.Normal("b", 0, 1)
        sigma = pm.HalfNormal("sigma", 20)
        mu = a[codes] + b * (df["weight"].to_numpy() - df["weight"].mean())
        pm.Normal("obs", mu, sigma, observed=df["height"].values, dims="obs_id")
        pm.Deterministic("spread", a.max() - a.min())
    return model


@pytest.fixture(scope="module")
def tree():
    return pdips.sample(
        make, people(), SCHEMA, epsilon=2, sets=2, seed=SEED, progress=False
    )


def test_the_posterior_is_that_of_the_model_in_its_own_names_and_dims(tree):
    posterior = tree["posterior"]
    assert {*posterior.data_vars} == {"a", "b", "sigma", "spread"}
    assert posterior["a"].dims == ("chain", "draw", "region")
    assert [*posterior["region"].values] == ["east", "north", "south", "west"]
    truth = {"b": 0.1, "sigma": 8.0}
    for name, value in truth.items():
        draws = posterior[name].to_numpy()
        # at a true model further off than this comes once in 10,000 seeds
        assert abs(draws.mean() - value) < 4 * draws.std()
        assert draws.std() < 0.2 * value + 0.1
    regions = posterior["a"].sel(region=["north", "west"])
    assert np.all(np.abs(regions.mean(("chain", "draw")) - [165, 180]) < 4)


def test_the_tree_has_all_groups_and_says_its_guarantee(tree):
    wanted = {
        "posterior",
        "prior",
        "log_prior",
        "posterior_predictive",
        "noisy_statistics",
        "observed_data",
        "constant_data",
    }
    assert wanted <= {*tree.children}
    assert tree["posterior_predictive"]["height"].sizes["record"] == N
    assert {*tree["posterior_predictive"].data_vars} == {"height"}
    assert tree.attrs["epsilon"] == 2
    assert tree.attrs["delta"] == 0
    assert tree.attrs["neighbours"] == "replace-one"
    assert "Neighbouring tables" in tree.attrs["statement"]
    assert "ess_bulk" in az.summary(tree, var_names=["b"]).columns


def test_a_tree_is_pickled_without_the_record_of_its_run(tree):
    again = pickle.loads(pickle.dumps(tree))
    assert again["posterior"].identical(tree["posterior"])
    assert tree.pdips.record is not None
    with pytest.raises(InputError):
        again.pdips.record  # noqa: B018


@pytest.mark.slow
def test_a_conditioned_model_gives_the_same_posterior(tree):
    frame = people()
    model = make(frame)
    made = pdips.sample(
        model,
        frame,
        SCHEMA,
        epsilon=2,
        public_constants=True,
        seed=SEED,
        progress=False,
    )
    one = tree["posterior"]["b"].to_numpy()
    other = made["posterior"]["b"].to_numpy()
    assert abs(one.mean() - other.mean()) < 4 * np.hypot(one.std(), other.std())


@pytest.mark.slow
def test_levels_that_are_numbers_arrive_as_numbers():
    rng = np.random.default_rng(SEED)
    frame = table(N, SEED)
    cuts = np.array([-1.0, 0.5, 1.5])
    latent = 1.0 * frame.treated + rng.logistic(size=N)
    frame["answer"] = 1 + (latent.to_numpy()[:, None] > cuts).sum(axis=1)
    made = pdips.sample(
        ordered, frame, SCHEMA, epsilon=3, sets=1, seed=SEED, progress=False
    )
    posterior = made["posterior"]
    for place, cut in enumerate(cuts):
        draws = posterior["cuts"].to_numpy()[..., place]
        assert abs(draws.mean() - cut) < 4 * draws.std()
        assert draws.std() < 0.5
    answers = np.unique(made["posterior_predictive"]["answer"])
    labels = made["posterior_predictive"]["answer"].attrs
    assert len(answers) == 4, labels


@pytest.mark.slow
def test_a_formula_gives_the_coefficients_names_of_bambi():
    pytest.importorskip("bambi")
    made = pdips.sample(
        "height ~ weight + (1 | region)",
        people(),
        SCHEMA,
        epsilon=2,
        seed=SEED,
        progress=False,
    )
    posterior = made["posterior"]
    assert {"Intercept", "weight", "1|region", "1|region_sigma", "sigma"} <= {
        *posterior.data_vars
    }
    draws = posterior["weight"].to_numpy()
    assert abs(draws.mean() - 0.1) < 4 * draws.std()


def test_public_columns_are_those_of_the_schema_and_of_the_call():
    schema = Schema(
        columns={"y": {"lower": 0, "upper": 9}, "x": {"lower": 0, "upper": 9}}
    )
    assert schema.known(["x"]).public_columns == ("x",)
    assert schema.known("x").public_columns == ("x",)
    with pytest.raises(InputError, match="public names 'z', which is no column"):
        schema.known(["z"])
    said = Schema(
        columns={"y": {"lower": 0, "upper": 9}, "x": {"levels": [1], "public": False}}
    )
    with pytest.raises(InputError, match="the schema says public = false"):
        said.known(["x"])


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        (make, {"sets": -1}, "sets must be at least 0"),
        (make, {"epsilon": 0}, "epsilon must be above 0"),
        (make, {"public": ["colour"]}, "'colour', which is no column"),
        (make, {"draw": 5}, "draw"),
        (lambda df: None, {}, "must return a pm.Model"),
        (lambda df: make(df.drop(columns="region")), {}, "AttributeError"),
        (42, {}, "a model is a function"),
        ("no_such_model", {}, "there is no model"),
        ("height ~ colour", {}, "colour"),
        (lambda df: pm.Model(), {}, "without an observed variable"),
    ],
)
def test_bad_input_is_refused_in_a_line(model, settings, words):
    given = {"epsilon": 1, "progress": False} | settings
    with pytest.raises((InputError, TypeError), match=words) as refused:
        pdips.sample(model, people(60), SCHEMA, **given)
    assert "\n" not in str(refused.value)


def test_a_conditioned_model_needs_its_author_to_say_what_is_public():
    frame = people(60)
    with pytest.raises(InputError, match=r"make\(df\).*public_constants=True"):
        pdips.sample(make(frame), frame, SCHEMA, epsilon=1, progress=False)


def test_a_frame_that_does_not_fit_the_schema_is_refused_and_recorded(tmp_path):
    ledger = Ledger(tmp_path / "account.sqlite")
    ledger.set_total(5)
    frame = people(60)
    frame.loc[3, "height"] = 1_000.0
    with pytest.raises(InputError) as refused:
        pdips.sample(make, frame, SCHEMA, epsilon=1, ledger=ledger, progress=False)
    assert "1000" not in str(refused.value)
    assert ledger.entries() == []


def test_a_model_that_reads_records_charges_nothing(tmp_path):
    ledger = Ledger(tmp_path / "account.sqlite")
    ledger.set_total(5)

    def centred(df):
        with pm.Model() as model:
            a = pm.Normal("a", df.height.mean(), 10)
            pm.Normal("height", a, 10, observed=df.height)
        return model

    with pytest.raises(InputError, match="mean of column 'height'"):
        pdips.sample(
            centred, people(60), SCHEMA, epsilon=1, ledger=ledger, progress=False
        )
    assert ledger.entries() == []


def test_a_function_that_holds_the_table_is_refused():
    frame = people(60)

    def closed(df):
        return make(frame)

    with pytest.raises(InputError, match="reads 'frame' from outside of its code"):
        pdips.sample(closed, frame, SCHEMA, epsilon=1, progress=False)


MEAN = 171.23456789


def test_numbers_with_many_digits_from_outside_of_a_function_are_refused(tmp_path):
    def centred(df):
        with pm.Model() as model:
            a = pm.Normal("a", MEAN, 10)
            pm.Normal("height", a, 10, observed=df.height)
        return model

    with pytest.raises(InputError, match="'MEAN' from outside of its code"):
        written_model(centred, SCHEMA, {})
    assert written_model(centred, SCHEMA, {}, public_constants=True) is not None


def test_a_file_that_holds_the_table_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    people(30).to_csv("t.csv", index=False)
    file = tmp_path / "mine.py"
    file.write_text(
        "import pandas as pd\nTABLE = pd.read_csv('t.csv')\n\n\n"
        "def make(df):\n    return TABLE.height.mean()\n"
    )
    with pytest.raises(InputError, match="reads 'TABLE' from outside of its code"):
        written_model(file, SCHEMA, {})


def test_what_is_said_of_a_conditioned_model_counts_as_a_refusal(tmp_path):
    ledger = Ledger(tmp_path / "account.sqlite")
    ledger.set_total(5)
    frame = people(60)
    with pm.Model() as model:
        a = pm.Normal("a", frame.height.mean(), 10)
        pm.Normal("height", a, 10, observed=frame.height)
    settings = {"epsilon": 1, "public_constants": True, "progress": False}
    for _ in range(3):
        with pytest.raises(InputError, match="holds the mean"):
            pdips.sample(model, frame, SCHEMA, ledger=ledger, **settings)
    with pytest.raises((InputError, pdips.RefusedError), match="refus"):
        pdips.sample(model, frame, SCHEMA, ledger=ledger, **settings)


def mean_of(frame) -> pm.Model:
    """A model that holds a mean of the records."""
    with pm.Model() as model:
        a = pm.Normal("a", frame.height.mean(), 10)
        pm.Normal("height", a, 10, observed=frame.height)
    return model


def test_the_price_is_reserved_before_a_conditioned_model_is_looked_at(tmp_path):
    ledger = Ledger(tmp_path / "account.sqlite")
    ledger.set_total(1)
    frame = people(60)
    model = mean_of(frame)
    settings = {"public_constants": True, "progress": False, "ledger": ledger}
    # nothing is said of the records where the price can't be paid
    for more in ({}, {"delta": 1e-6}):
        with pytest.raises(pdips.RefusedError, match=r"exceed|total"):
            pdips.sample(model, frame, SCHEMA, epsilon=2, **settings, **more)
    with pytest.raises(InputError, match="holds the mean"):
        pdips.sample(
            model, frame, SCHEMA, epsilon=0.5, allow=["charged-refusals"], **settings
        )
    assert ledger.summary().spent_epsilon == Fraction("0.5")


def test_the_name_of_a_conditioned_model_needs_the_ledgers_key(tmp_path):
    frame = people(60)
    model = make(frame)
    names = []
    for place in ("one", "other"):
        ledger = Ledger(tmp_path / f"{place}.sqlite")
        ledger.set_total(1)
        for _ in range(2):
            source = source_of_conditioned(model, frame, SCHEMA, ledger)
            names.append(source.name)
    assert names[0] == names[1]
    assert names[2] == names[3]
    assert names[0] != names[2]
    unnamed = source_of_conditioned(model, frame, SCHEMA)
    assert unnamed.name == "conditioned model"
    assert unnamed.converted.digest not in " ".join(names)


def test_forms_of_models_are_told_apart(tmp_path):
    assert written_model(with_dims, SCHEMA, {}).name == "with_dims"
    assert written_model(lambda data, schema: None, SCHEMA, {}) is None
    assert written_model("normal", SCHEMA, {}) is None
    file = tmp_path / "mine.py"
    file.write_text("def make(df):\n    return df\n")
    assert written_model(file, SCHEMA, {}).name == "mine.py"
    formula = written_model("height ~ weight", SCHEMA, {"family": "t"})
    assert formula.text.startswith("height ~ weight")
    assert "family = 't'" in formula.text
