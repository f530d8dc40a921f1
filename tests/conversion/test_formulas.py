"""Formulas and Bambi models: what Bambi makes, but for priors that read bounds in place
of the confidential outcome.
"""

import pickle
import sys

import bambi as bmb
import numpy as np
import pandas as pd
import pytensor.tensor as pt
import pytest
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors
from tables import cases, refuses

from pdips import Column, Schema
from pdips.conversion.formula_priors import prior_of
from pdips.conversion.formula_settings import FormulaSettings, formula_settings
from pdips.conversion.formulas import maker_of
from pdips.conversion.frames import even_spread
from pdips.sampling import written_model

N = 40
SCHEMA = Schema(
    columns={
        "earnings": Column(lower=0, upper=120),
        "wage": Column(lower=1, upper=1000, scale="log"),
        "ill": Column(levels=["no", "yes"]),
        "visits": Column(lower=0, upper=50, integer=True),
        "rating": Column(levels=[1, 2, 3, 4]),
        "stars": Column(lower=1, upper=3, integer=True),
        "mood": Column(levels=["low", "mid", "high"]),
        "share": Column(lower=0, upper=1),
        "one": Column(levels=[0, 1]),
        "flag": Column(levels=[False, True]),
        "gone": Column(lower=0, upper=1, missing=True),
        "born": Column(type="date", lower="1950-01-01", upper="2000-01-01"),
        "kappa": Column(lower=0, upper=1),
        "mu": Column(lower=0, upper=1, public=True),
        "age": Column(lower=18, upper=99, public=True),
        "weight": Column(lower=1, upper=9, public=True),
        "trials": Column(lower=50, upper=60, integer=True, public=True),
        "sex": Column(levels=["male", "female"], public=True),
        "region": Column(levels=["south", "north", "east"], public=True),
        "block": Column(levels=[1, 2, 3], public=True),
    }
)
FAMILIES = cases(__file__, "families")
AS_BAMBI = cases(__file__, "as_bambi")
REFUSED = cases(__file__, "refused")


def frame(seed: int) -> pd.DataFrame:
    """Return records whose confidential columns depend on a seed; public columns are
    always the same.
    """
    rng = np.random.default_rng(seed)
    public = np.random.default_rng(7)
    return pd.DataFrame(
        {
            "earnings": rng.gamma(3, 10, N).clip(1, 120),
            "wage": rng.gamma(3, 10, N).clip(1, 1000),
            "ill": rng.choice(["no", "yes"], N),
            "visits": rng.poisson(3, N),
            "rating": rng.permutation(np.resize([1, 2, 3, 4], N)),
            "stars": rng.permutation(np.resize([1, 2, 3], N)),
            "mood": rng.permutation(np.resize(["low", "mid", "high"], N)),
            "share": rng.uniform(0.01, 0.99, N),
            "kappa": rng.uniform(0.01, 0.99, N),
            "mu": public.uniform(0, 1, N),
            "one": rng.choice([0, 1], N),
            "flag": rng.choice([False, True], N),
            "age": public.integers(18, 90, N),
            "weight": public.uniform(1, 9, N),
            "trials": public.integers(50, 60, N),
            "sex": public.choice(["male", "female"], N),
            "region": public.choice(["south", "north", "east"], N),
            "block": public.choice([1, 2, 3], N),
        }
    )


def as_bambi_reads(records: pd.DataFrame) -> pd.DataFrame:
    """Return records with text as categories, which Bambi would make of it with a
    warning of pandas.
    """
    text = [name for name in records if records[name].dtype == "str"]
    return records.astype(dict.fromkeys(text, "category"))


def built(model: bmb.Model):
    model.build()
    return model.backend.model


def log_density(model) -> float:
    """Return the log density of a model at a point of its own, by names as Bambi has
    them.
    """
    point = model.initial_point()
    rng = np.random.default_rng(3)
    for name in sorted(point, key=lambda name: name.replace("_centered", "")):
        point[name] = rng.uniform(0.1, 0.3, np.shape(point[name]))
    return float(model.compile_logp(mode="FAST_COMPILE")(point))


def leaves(model) -> list[np.ndarray]:
    """Return all constants in a model but the observed values, in the order of the
    graph.
    """
    roots = [*model.free_RVs, *model.observed_RVs, *model.deterministics]
    observed = {model.rvs_to_values[rv] for rv in model.observed_RVs}
    found = []
    for variable in dict.fromkeys(ancestors(roots)):
        is_leaf = isinstance(variable, Constant | SharedVariable)
        if is_leaf and variable not in observed:
            value = getattr(variable, "data", None)
            if isinstance(variable, SharedVariable):
                value = variable.get_value()
            if isinstance(value, np.ndarray | np.generic | int | float):
                found.append(np.asarray(value))
    return found


def moved(first: list[np.ndarray], second: list[np.ndarray]) -> list[int]:
    """Return which constants differ between two builds."""
    assert len(first) == len(second)
    pairs = zip(first, second, strict=True)
    return [
        index
        for index, (one, other) in enumerate(pairs)
        if one.shape != other.shape or not np.array_equal(one, other)
    ]


def observed(model) -> np.ndarray:
    [variable] = model.observed_RVs
    return model.rvs_to_values[variable].data


@pytest.mark.parametrize(("formula", "family"), FAMILIES)
def test_no_constant_reads_the_outcome(formula, family):
    make = maker_of(formula, SCHEMA, family=family)
    first = make(frame(1))
    second = make(frame(2))
    assert moved(leaves(first), leaves(second)) == []
    assert not np.array_equal(observed(first), observed(second))
    assert [rv.name for rv in first.observed_RVs] == [make.outcome]


def test_bambis_own_priors_would_be_seen():
    # the broken twin
    models = [
        built(bmb.Model("earnings ~ age", frame(seed)[["earnings", "age"]]))
        for seed in (1, 2)
    ]
    assert moved(*map(leaves, models)) != []


@pytest.mark.parametrize(("formula", "family"), AS_BAMBI)
def test_it_is_bambis_model_where_priors_read_no_outcome(formula, family):
    records = frame(1)
    ours = maker_of(formula, SCHEMA, family=family)(records)
    theirs = built(
        bmb.Model(formula, as_bambi_reads(records), family=family, noncentered=False)
    )
    assert log_density(ours) == pytest.approx(log_density(theirs), rel=1e-9)


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("n", [2, 3, 40, 1001])
def test_a_spread_has_the_moments_of_an_even_distribution(n, scale):
    column = Column(lower=2, upper=50, scale=scale)
    values = even_spread(column, n)
    assert values.min() >= 2
    assert values.max() <= 50
    lower, upper = (2, 50) if scale == "linear" else np.log([2, 50])
    values = values if scale == "linear" else np.log(values)
    assert values.mean() == pytest.approx((lower + upper) / 2)
    assert values.std() == pytest.approx((upper - lower) / np.sqrt(12))


def test_automatic_priors_read_the_bounds_and_public_columns():
    records = frame(1)
    model = maker_of("earnings ~ age + sex + (age | region)", SCHEMA)(records)
    sd = 120 / np.sqrt(12)
    age = records["age"]
    male = records["sex"] == "male"

    def parameters(name: str) -> list[float]:
        return [
            float(np.squeeze(p.eval()))
            for p in model[name].owner.op.dist_params(model[name].owner)
        ]

    slopes = {"age": 2.5 * sd / age.std(ddof=0), "sex": 2.5 * sd / male.std(ddof=0)}
    for name, slope in slopes.items():
        assert parameters(name) == pytest.approx([0, slope])
    wide = (slopes["age"] * age.mean()) ** 2 + (slopes["sex"] * male.mean()) ** 2
    intercept = np.sqrt((2.5 * sd) ** 2 + wide)
    assert parameters("Intercept_centered") == pytest.approx([60, intercept])
    assert parameters("sigma") == pytest.approx([4, sd])
    # of a HalfNormal, whose location is 0
    assert parameters("1|region_sigma") == pytest.approx([0, intercept])
    assert parameters("age|region_sigma") == pytest.approx([0, slopes["age"]])


def test_they_are_bambis_on_an_outcome_that_is_spread_evenly():
    formula = "earnings ~ bs(age, df=4) + scale(age):sex + (sex | region)"
    spread = frame(1).assign(earnings=even_spread(SCHEMA.columns["earnings"], N))
    ours = maker_of(formula, SCHEMA, family="t")(spread)
    theirs = bmb.Model(formula, as_bambi_reads(spread), family="t", noncentered=False)
    assert log_density(ours) == pytest.approx(log_density(built(theirs)), rel=1e-9)
    # the broken twin: on real records Bambi's priors are others
    real = maker_of(formula, SCHEMA, family="t")(frame(1))
    theirs = bmb.Model(formula, as_bambi_reads(frame(1)), family="t")
    assert log_density(real) != pytest.approx(log_density(built(theirs)), rel=1e-4)


@pytest.mark.parametrize("upper", [5, 6])
def test_bounds_on_both_sides_of_0_make_one_model_of_any_records(upper):
    """The prior's mean is 0 for even bounds, but for what rounding leaves of it."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 500)
    records = pd.DataFrame({"x": x, "y": (x + rng.normal(0, 1, 500)).clip(-5, 5)})
    columns = {"x": Column(lower=-1, upper=1), "y": Column(lower=-5, upper=upper)}
    schema = Schema(columns=columns).known(["x"])
    written = written_model("y ~ x", schema, {})
    assert written.source(records, schema).converted is not None


def test_an_outcome_is_scaled_by_the_bounds():
    records = frame(1)
    model = maker_of("scale(earnings) ~ age", SCHEMA)(records)
    scaled = (records["earnings"] - 60) / (120 / np.sqrt(12))
    assert observed(model) == pytest.approx(scaled.to_numpy())


@pytest.mark.parametrize(
    "formula", ["I(earnings - np.mean(earnings)) ~ age", "np.cumsum(earnings) ~ age"]
)
def test_an_outcome_that_reads_other_records_is_refused(formula):
    refuses("scale\\(earnings\\)", maker_of(formula, SCHEMA), frame(1))


def test_names_and_dims():
    model = maker_of("earnings ~ age + sex + (age | region)", SCHEMA)(frame(1))
    dims = model.named_vars_to_dims
    assert {name: dims.get(name, ()) for name in model.named_vars} == {
        "Intercept": (),
        "Intercept_centered": (),
        "age": (),
        "sex": ("sex_dim",),
        "1|region": ("region",),
        "1|region_sigma": (),
        "age|region": ("region",),
        "age|region_sigma": (),
        "sigma": (),
        "mu": ("__obs__",),
        "earnings": ("__obs__",),
    }
    assert model.coords["sex_dim"] == ("male",)
    assert model.coords["region"] == ("east", "north", "south")
    assert model["1|region"].eval().shape == (3,)
    # a variable has the column's name, so the dim can't
    both = maker_of("earnings ~ region + (1 | region)", SCHEMA)(frame(1))
    assert both.named_vars_to_dims["1|region"] == ("region__factor_dim",)


@pytest.mark.parametrize(
    ("outcome", "family", "levels"),
    [
        ("mood", "categorical", ("high", "low", "mid")),
        ("mood", "cumulative", ("low", "mid", "high")),
        ("rating", "cumulative", ("1", "2", "3", "4")),
        ("stars", "categorical", ("1", "2", "3")),
    ],
)
def test_levels_are_the_schemas_even_if_the_frame_lacks_some(outcome, family, levels):
    records = frame(1)
    records[outcome] = records[outcome].dtype.type(levels[1])
    model = maker_of(f"{outcome} ~ age", SCHEMA, family=family)(records)
    assert model.coords[f"{outcome}_dim"] == levels
    assert set(observed(model)) == {1}


def test_an_order_that_the_frame_states_is_the_schemas_or_refused():
    make = maker_of("mood ~ age", SCHEMA, family="categorical")
    for levels in (["low", "mid", "high"], ["mid", "low", "high"]):
        records = frame(1)
        records["mood"] = pd.Categorical(records["mood"], levels, ordered=True)
        if levels[0] == "low":
            assert make(records).coords["mood_reduced_dim"] == ("mid", "high")
        else:
            refuses("another order than in the schema", make, records)


@pytest.mark.parametrize(
    ("formula", "family"),
    [
        ("earnings ~ age + sex * weight", "gaussian"),
        ("mood ~ age + sex", "categorical"),
        (["earnings ~ age", "sigma ~ weight + sex"], "gaussian"),
    ],
)
def test_the_intercept_is_where_covariates_are_0(formula, family):
    records = frame(1)
    model = maker_of(formula, SCHEMA, family=family)(records)
    plain = maker_of(formula, SCHEMA, family=family, center_predictors=False)(records)
    rng = np.random.default_rng(3)
    point = {
        name: rng.uniform(0.1, 0.3, np.shape(value))
        for name, value in model.initial_point().items()
    }
    intercepts = {
        name: evaluated(model, name, point)
        for name in plain.named_vars
        if name.endswith("Intercept")
    }
    assert intercepts
    [mean] = {"mu", "p"} & {*model.named_vars}
    expected = evaluated(plain, mean, point | intercepts)
    assert evaluated(model, mean, point) == pytest.approx(expected)


def evaluated(model, name: str, point: dict) -> np.ndarray:
    """Return a variable of a model at a point of its free variables."""
    variable = model.replace_rvs_by_values([model[name]])[0]
    given = {
        value: np.asarray(point[value.name], value.dtype)
        for value in model.value_vars
        if value in set(ancestors([variable]))
    }
    return variable.eval(given, mode="FAST_COMPILE")


def bambi_model(records: pd.DataFrame, **settings) -> bmb.Model:
    priors = {
        "age": bmb.Prior("Normal", mu=0, sigma=3),
        "1|region": bmb.Prior("Normal", mu=0, sigma=bmb.Prior("HalfNormal", sigma=2)),
    }
    return bmb.Model(
        "earnings ~ age + sex + block + (1 | region)",
        as_bambi_reads(records),
        family="t",
        categorical="block",
        priors=priors,
        **settings,
    )


def test_a_bambi_model_is_rebuilt_without_its_data():
    records = frame(2)
    secret = frame(1).assign(earnings=77.123456789)
    secret.loc[::2, "earnings"] = 33.987654321
    theirs = bambi_model(secret)
    theirs.build()
    make = maker_of(theirs, SCHEMA)
    other = maker_of(bambi_model(frame(3)), SCHEMA)
    written = pickle.dumps(make)
    for value in (77.123456789, 33.987654321):
        assert np.float64(value).tobytes() not in written
        assert np.float64(value).tobytes() in pickle.dumps(secret)
    assert moved(leaves(make(records)), leaves(other(records))) == []
    formula = maker_of(
        "earnings ~ age + sex + block + (1 | region)",
        SCHEMA,
        family="t",
        categorical="block",
        priors={
            "age": "Normal(mu=0, sigma=3)",
            "1|region": "Normal(mu=0, sigma=HalfNormal(sigma=2))",
        },
    )
    assert log_density(make(records)) == log_density(formula(records))


@pytest.mark.parametrize(
    ("formula", "settings", "beside"),
    [
        ("earnings ~ age + sex", {}, []),
        ("visits ~ age", {"auto_scale": False}, ["auto_scale = False"]),
        ("earnings ~ block", {"categorical": "block"}, ["categorical = ['block']"]),
        (
            "visits ~ age",
            {"family": "poisson", "link": "log"},
            ["family = 'poisson'"],
        ),
        (
            "earnings ~ age",
            {"family": "gamma", "link": "log"},
            ["family = 'gamma'", "link = 'log'"],
        ),
        (
            "earnings ~ age",
            {"family": "gamma", "link": {"mu": "identity", "alpha": "log"}},
            ["family = 'gamma'", "link = 'identity'"],
        ),
    ],
)
def test_a_bambi_model_is_written_as_its_formula(formula, settings, beside):
    """What is public of it, and what it is asked by, hasn't a word of its data."""
    theirs = bmb.Model(formula, as_bambi_reads(frame(1)), **settings)
    make = maker_of(theirs, SCHEMA)
    assert make.text.splitlines() == [formula, *beside]
    # and says the same: written out anew, it is the same model
    again = maker_of(formula, SCHEMA, **settings)
    records = frame(2)
    assert log_density(make(records)) == log_density(again(records))


def test_a_family_that_was_changed_is_no_built_in_one():
    own = bmb.Model("earnings ~ age", frame(1)[["earnings", "age"]]).family
    own.set_default_priors({"sigma": bmb.Prior("HalfNormal", sigma=2)})
    theirs = bmb.Model("earnings ~ age", frame(1)[["earnings", "age"]], family=own)
    settings = maker_of(theirs, SCHEMA).written.settings
    assert isinstance(settings.family, bmb.Family)


def test_a_potential_reads_the_centered_intercept_as_in_bambi():
    def close(intercept, age):
        return -((intercept - age) ** 2)

    potentials = [(["Intercept", "age"], close), ("age", abs)]
    records = frame(1)
    ours = maker_of("visits ~ age", SCHEMA, family="poisson", potentials=potentials)
    theirs = bmb.Model(
        "visits ~ age",
        records[["visits", "age"]],
        family="poisson",
        potentials=potentials,
    )
    assert log_density(ours(records)) == pytest.approx(log_density(built(theirs)))
    rebuilt = maker_of(theirs, SCHEMA)
    assert log_density(rebuilt(records)) == log_density(ours(records))


def test_settings_and_names_of_a_bambi_model_are_kept():
    theirs = bambi_model(
        frame(1), noncentered=False, center_predictors=False, link="log"
    )
    theirs.set_alias({"1|region": "u", "nu": "df", "sigma": "s", "Intercept": "a"})
    model = maker_of(theirs, SCHEMA)(frame(2))
    # Bambi calls the sigma of groups so, too
    assert {"u", "u_s", "df", "s", "a", "age", "earnings"} <= {*model.named_vars}
    assert {*model.named_vars} == {*built(theirs).named_vars}
    centered = bambi_model(frame(1))
    centered.set_alias({"Intercept": "a"})
    names = maker_of(centered, SCHEMA)(frame(2)).named_vars
    assert {"a", "a_centered"} <= {*names}


def test_functions_and_constants_of_the_session_are_read_if_they_hold_no_records():
    knots = [30, 60]

    def half(x):
        return x / 2

    formula = "earnings ~ half(age) + bs(age, knots=knots)"
    records = frame(1)
    theirs = bmb.Model(formula, as_bambi_reads(records))
    given = {"half": half, "knots": knots}
    ours = maker_of(formula, SCHEMA, extra_namespace=given)
    rebuilt = maker_of(theirs, SCHEMA)
    assert log_density(rebuilt(records)) == log_density(ours(records))


def test_what_could_hold_records_is_refused():
    records = frame(1)
    mean = records["earnings"].mean()

    def shifted(x):
        return x - records["earnings"].mean()

    for own in (records, mean, shifted, np.arange(51.0), [0.5, mean]):
        refuses(
            "hold records|more than 6 digits",
            maker_of,
            "earnings ~ I(age + own)" if not callable(own) else "earnings ~ own(age)",
            SCHEMA,
            extra_namespace={"own": own},
        )
    prior = bmb.Prior("Normal", mu=mean, sigma=10)
    refuses(
        "more than 6 digits",
        maker_of,
        "earnings ~ 1",
        SCHEMA,
        priors={"Intercept": prior},
    )
    theirs = bmb.Model(
        "earnings ~ age", records[["earnings", "age"]], priors={"Intercept": prior}
    )
    refuses("more than 6 digits", maker_of, theirs, SCHEMA)
    maker_of(theirs, SCHEMA, public_constants=True)
    theirs = bmb.Model("earnings ~ shifted(age)", records[["earnings", "age"]])
    refuses("hold records", maker_of, theirs, SCHEMA)


@pytest.mark.parametrize(
    "sigma",
    [
        pd.Series([1.25, 2.123456789]),
        np.array([2.123456789]),
        pt.constant(2.123456789),
        frame(1),
    ],
    ids=["series", "array", "constant", "table"],
)
def test_a_prior_holds_numbers_that_were_written(sigma):
    prior = bmb.Prior("Normal", mu=0, sigma=1)
    prior.args["sigma"] = sigma
    refuses(
        "more than 6 digits|write numbers",
        maker_of,
        "earnings ~ age",
        SCHEMA,
        priors={"age": prior},
    )


def test_links_and_families_of_ones_own_hold_no_data():
    records = frame(1)

    def linkinv(x):
        return x + records["earnings"].mean()

    own = bmb.Link("own", link=abs, linkinv=abs, linkinv_backend=linkinv)
    likelihood = bmb.Likelihood("Normal", params=["mu", "sigma"], parent="mu")
    family = bmb.Family("own", likelihood, own)
    refuses("hold records", maker_of, "earnings ~ 1", SCHEMA, family=family)
    refuses("hold records", maker_of, "earnings ~ 1", SCHEMA, link={"mu": own})
    # the broken twin: a link without data is taken
    own = bmb.Link("own", link=abs, linkinv=abs, linkinv_backend=abs)
    family = bmb.Family("own", likelihood, own)
    priors = {"sigma": "HalfNormal(sigma=9)"}
    make = maker_of("earnings ~ 1", SCHEMA, family=family, priors=priors)
    assert "sigma" in make(records).named_vars


def test_long_numbers_are_taken_if_they_are_said_to_be_public():
    formula = "I((earnings - 29.985123) / 16) ~ bs(age, knots=knots)"
    given = {"knots": [33.123456789, 60]}
    make = maker_of(formula, SCHEMA, extra_namespace=given, public_constants=True)
    scaled = (frame(1)["earnings"] - 29.985123) / 16
    assert observed(make(frame(1))) == pytest.approx(scaled.to_numpy())


def test_priors_that_were_set_afterwards_are_refused():
    theirs = bambi_model(frame(1))
    theirs.set_priors(common=bmb.Prior("Normal", mu=0, sigma=1))
    refuses("pass them to bmb.Model", maker_of, theirs, SCHEMA)


def test_settings_beside_a_bambi_model_are_refused():
    refuses(
        "set in the Bambi model", maker_of, bambi_model(frame(1)), SCHEMA, family="t"
    )


@pytest.mark.parametrize("model", [3, None, [], ["earnings ~ age", 3]])
def test_what_is_no_formula_is_refused(model):
    refuses("a formula is text", maker_of, model, SCHEMA)


def test_columns_that_the_frame_lacks_are_named():
    make = maker_of("earnings ~ age", SCHEMA)
    refuses("'age', which the frame lacks", make, frame(1).drop(columns="age"))
    refuses(
        "'earnings', which the frame lacks", make, frame(1).drop(columns="earnings")
    )
    gap = frame(1).astype({"age": float})
    gap.loc[3, "age"] = np.nan
    refuses("'age' has missing values", make, gap)


def test_values_that_are_no_level_are_refused_without_a_word_of_them():
    records = frame(1).assign(mood="grim")
    said = refuses(
        "no level", maker_of("mood ~ age", SCHEMA, family="categorical"), records
    )
    assert "grim" not in said
    refuses(
        "as many records as",
        maker_of("rating ~ age", SCHEMA, family="cumulative"),
        frame(1)[:3],
    )


def test_priors_are_written_as_text():
    prior = prior_of("Normal(mu=-1, sigma=HalfNormal(sigma=2.5))")
    inner = bmb.Prior("HalfNormal", sigma=2.5)
    assert prior == bmb.Prior("Normal", mu=-1, sigma=inner)
    assert prior_of("3") == 3
    spelt = FormulaSettings(priors={"sigma": {"age": "Normal(mu=0, sigma=1)"}}).priors
    assert spelt == {"sigma": {"age": bmb.Prior("Normal", mu=0, sigma=1)}}


def test_a_missing_package_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "bambi", None)
    said = refuses("", maker_of, "earnings ~ age", SCHEMA)
    assert said.endswith('pip install "pdips[bambi]"')


@pytest.mark.parametrize(("formula", "settings", "said"), REFUSED)
def test_what_cant_be_converted_is_refused_in_one_line(formula, settings, said):
    def convert() -> None:
        maker_of(formula, SCHEMA, **settings)(frame(1))

    refuses(said, convert)


@pytest.mark.parametrize(("texts", "settings"), cases(__file__, "settings_read"))
def test_settings_are_read_from_text(texts, settings):
    assert formula_settings(texts) == settings


@pytest.mark.parametrize(("texts", "said"), cases(__file__, "settings_refused"))
def test_other_texts_are_no_settings(texts, said):
    refuses(said, formula_settings, texts)


@pytest.mark.parametrize(
    "term",
    [
        "np.lib._npyio_impl.os.system('touch {}')",
        "np.testing._private.utils.os.system('touch {}')",
        "np.savetxt('{}', age)",
        "np.add.reduce(age)",
        "log.__class__('{}')",
        "np.exp(np.savetxt('{}', age))",
    ],
)
@pytest.mark.parametrize("side", ["right", "left", "group"])
def test_a_formula_runs_nothing_but_functions_of_numbers(term, side, tmp_path):
    schema = Schema.model_validate(
        {
            "columns": {
                "pay": {"lower": 0, "upper": 10},
                "age": {"lower": 18, "upper": 80, "public": True},
                "site": {"levels": ["a", "b", "c"], "public": True},
            }
        }
    )
    path = tmp_path / "written"
    hostile = term.format(path)
    formula = {
        "right": f"pay ~ {hostile}",
        "left": f"{hostile} ~ age",
        "group": f"pay ~ age + ({hostile} | site)",
    }[side]
    refuses("calls '(np|log)|outcome|left side", maker_of, formula, schema)
    assert not path.exists()


def test_slopes_of_confidential_numbers_have_wide_priors():
    frame_of_two = pd.DataFrame(
        {"ill": ["no", "yes"] * 20, "x": np.arange(40.0), "sex": ["m", "f"] * 20}
    )
    columns = {
        "ill": {"levels": ["no", "yes"]},
        "x": {"lower": 0, "upper": 40},
        "sex": {"levels": ["f", "m"]},
    }

    def spreads(**x):
        schema = Schema(columns=columns | {"x": columns["x"] | x})
        make = maker_of("ill['yes'] ~ x + sex + x:sex", schema, family="bernoulli")
        model = make(frame_of_two)
        return {
            name: float(np.max(model[name].owner.inputs[-1].eval()))
            for name in ("x", "sex", "x:sex")
        }

    confidential = spreads()
    public = spreads(public=True)
    deviation = 40 / np.sqrt(12)
    # Bambi's own: one over the deviation of a number, one of levels
    assert public["x"] == pytest.approx(1 / deviation, rel=0.05)
    assert confidential["x"] == pytest.approx(5 / deviation, rel=0.05)
    assert confidential["sex"] == public["sex"] == 1
    assert confidential["x:sex"] > 4 / deviation


def test_a_slope_with_a_prior_of_its_own_keeps_it():
    schema = Schema(
        columns={"y": {"lower": 0, "upper": 9}, "x": {"lower": 0, "upper": 40}}
    )
    data = pd.DataFrame({"y": np.linspace(1, 8, 40), "x": np.arange(40.0)})
    prior = bmb.Prior("Normal", mu=0, sigma=0.5)
    model = maker_of("y ~ x", schema, priors={"x": prior})(data)
    assert float(model["x"].owner.inputs[-1].eval()) == 0.5
