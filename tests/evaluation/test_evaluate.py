"""Evaluation inside: every measure against numbers by hand or another implementation, formulas, and every bad input."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from firthmodels import FirthLogisticRegression
from scipy import stats
from tables import cases, refuses, schema_in, schema_text

from pdips import InputError, Schema, Steps, Table
from pdips.data.schema import Records
from pdips.evaluation.distribution import distances, ecdf_distances
from pdips.evaluation.document import open_release
from pdips.evaluation.encoding import with_decile_bins
from pdips.evaluation.evaluate import SEED, SUMMARIES, basics, general_utility, resample, specific_utility, summary
from pdips.evaluation.formula import read_analysis
from pdips.evaluation.margins import k_way
from pdips.evaluation.propensity import specks, standardised_pmse
from pdips.evaluation.regression import ci_overlap, fit_design
from pdips.inference import combine

SCHEMA = schema_in("evaluate")
N = 400


def voters(n: int = N, seed: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, college = rng.integers(18, 99, n), rng.random(n) < 0.4
    odds = -1.5 + 0.03 * age + 0.8 * college
    region = pd.Series(rng.choice(["north", "south", "west"], n), dtype=object).mask(rng.random(n) < 0.1)
    voted = np.where(rng.random(n) < 1 / (1 + np.exp(-odds)), "yes", "no")
    frame = pd.DataFrame({"voted": voted, "age": age, "college": college, "region": region})
    frame["visits"] = np.minimum(rng.poisson(np.exp(0.2 + 0.01 * (age - 50))), 9)
    return frame.assign(income=np.clip(np.exp(3 + 0.02 * age + rng.normal(0, 0.5, n)), 1, 1000))


def matrix(frame: pd.DataFrame) -> np.ndarray:
    return np.column_stack([np.ones(len(frame)), frame["age"], frame["college"] * 1.0])


# ---- measures ----


def test_ecdf_distances_by_hand_and_scipys():
    # at 1, 2, 3, 4, 5 the functions differ by 1/4, 1/4, 0, 1/4, 0; of the eight records 3, 2, 1, 1, 1 lie there
    largest, average = distances(np.array([1.0, 2, 3, 4]), np.array([1.0, 1, 2, 5]))
    assert largest == 0.25
    assert average == pytest.approx((3 + 2 + 1) / 16 / 8)
    a, b = voters(), voters(300, 2)
    found = ecdf_distances(Table(a, SCHEMA), b)
    assert found.largest["income"] == pytest.approx(stats.ks_2samp(a["income"], b["income"]).statistic)
    assert found.largest["visits"] == pytest.approx(stats.ks_2samp(a["visits"], b["visits"]).statistic)
    codes = [frame["region"].map({"north": 0, "south": 1, "west": 2}).fillna(3) for frame in (a, b)]
    assert found.largest["region"] == pytest.approx(stats.ks_2samp(*codes).statistic)
    assert set(ecdf_distances(Table(a, SCHEMA), a).largest.values()) == {0.0}


def test_every_measure_is_what_its_own_function_says():
    table, sets = Table(voters(), SCHEMA), [voters(seed=2), voters(seed=3)]
    found = {measure.name: measure for measure in general_utility(table, sets)}
    assert all(measure.reason is None and len(measure.by_set) == 2 for measure in found.values())
    again = resample(table, np.random.default_rng(SEED))
    three = [k_way(with_decile_bins(table), [frame], 3) for frame in (*sets, again)]
    assert found["TVD of 3-way margins"].by_set == tuple(one["mean"] for one in three[:2])
    assert found["TVD of 3-way margins"].reference == three[2]["mean"]
    assert found["SPECKS"].reference == specks(with_decile_bins(table), [again]).mean  # one resample for all
    assert general_utility(table, sets) == [*found.values()]  # references repeat
    assert found["TVD of 3-way margins, largest"].mean == pytest.approx(np.mean([one["max"] for one in three[:2]]))
    shares = [frame["voted"].eq("yes").mean() for frame in (table.frame, sets[0])]
    assert k_way(table, sets[:1], 1)["by_margin"]["voted",] == pytest.approx(abs(shares[0] - shares[1]))
    number = standardised_pmse(*[frame[["age"]] for frame in (table.frame, sets[0])])
    alone = Schema(columns={"age": SCHEMA.columns["age"]})
    only = {m.name: m for m in general_utility(Table(table.frame[["age"]], alone), [sets[0][["age"]]])}
    assert (only["pMSE"].mean, only["pMSE over its null"].mean) == pytest.approx((number.pmse, number.ratio))
    assert "k must be" in only["TVD of 2-way margins"].reason
    assert "needs 2 columns with levels or bins" in only["TVD of 2-way margins"].reason
    assert only["3-marginal score"].reason is None


def test_the_table_itself_scores_best_and_nonsense_scores_badly():
    names = ["voted", "age", "college"]
    table = Table(voters()[names], Schema(columns={name: SCHEMA.columns[name] for name in names}))
    nonsense = table.frame.assign(voted="no", age=np.random.default_rng(4).integers(18, 60, N), college=True)
    equal, bad = general_utility(table, [table.frame]), general_utility(table, [nonsense])
    best = {"3-marginal score": 1000.0}
    for measure, worse in zip(equal, bad, strict=True):
        assert measure.mean == pytest.approx(best.get(measure.name, 0.0), abs=1e-9), measure.name
        assert abs(worse.mean - measure.mean) > abs(measure.reference - measure.mean), measure.name


def test_a_set_without_records_has_reasons_not_figures_where_there_are_none():
    found = {measure.name: measure for measure in general_utility(Table(voters(100), SCHEMA), [voters(100).iloc[:0]])}
    assert (found["SPECKS"].mean, found["TVD of 2-way margins"].mean) == (1.0, 1.0)
    assert "no records" in found["pMSE"].reason


# ---- survey weights ----

WEIGHED = schema_text("evaluate_weighed")


def test_weighted_margins_and_ecdf_by_hand():
    table = Table(pd.DataFrame({"a": ["x", "x", "y"], "w": [1.0, 1.0, 2.0]}), Schema.from_toml(WEIGHED))
    made = pd.DataFrame({"a": ["x", "y", "y"], "w": [3.0, 0.5, 0.5]})
    assert k_way(table, [made], 1, weighted=True)["by_margin"] == {("a",): pytest.approx(0.25)}  # 1/2 against 3/4
    assert k_way(table, [made], 1)["by_margin"] == {("a",): pytest.approx(1 / 3)}
    assert ecdf_distances(table, made, weighted=True).largest["a"] == pytest.approx(0.25)
    found = {measure.name: measure for measure in general_utility(table, [made])}
    assert found["TVD of 1-way margins"].weighted
    assert not found["SPECKS"].weighted


@pytest.mark.parametrize(("change", "message"), cases(__file__, "a_column_that_cant_hold_weights_is_refused"))
def test_a_column_that_cant_hold_weights_is_refused(change, message):
    refuses(message, Schema.from_toml, WEIGHED.replace(*change))


def test_the_schema_of_sets_keeps_the_weight_and_weights_of_0_are_refused():
    schema = Schema.from_toml(WEIGHED.replace("[records]", '[records]\nperson = "who"'))
    assert schema.without_person().records.weight == "w"
    assert Schema.from_toml(schema.to_toml()) == schema
    table = Table(pd.DataFrame({"a": ["x"], "w": [0.0]}), Schema.from_toml(WEIGHED))
    refuses("must not all be 0", k_way, table, [table.frame], 1, weighted=True)
    refuses("names no column of weights", k_way, Table(voters(10), SCHEMA), [voters(10)], 1, weighted=True)


# ---- regressions ----


@pytest.mark.parametrize("weighted", [False, True])
def test_linear_and_poisson_fits_are_those_of_statsmodels(weighted):
    frame = voters()
    x, names = matrix(frame), ("intercept", "age", "college")
    w = np.random.default_rng(0).uniform(0.5, 3, N)
    for family, outcome in (("linear", "income"), ("poisson", "visits")):
        y = frame[outcome].to_numpy(dtype=float)
        if family == "linear":
            model = sm.WLS(y, x, weights=w) if weighted else sm.OLS(y, x)
        else:
            model = sm.GLM(y, x, sm.families.Poisson(), **({"var_weights": w} if weighted else {}))
        theirs = model.fit(cov_type="HC0") if weighted else model.fit()
        ours = fit_design(x, y, names, family, w if weighted else None)
        assert ours.converged
        np.testing.assert_allclose(ours.estimates, theirs.params, rtol=1e-6)
        factor = np.sqrt(N / (N - 1)) if weighted else 1
        np.testing.assert_allclose(ours.standard_errors, theirs.bse * factor, rtol=1e-5)


def test_weights_that_are_all_equal_change_no_estimate_and_whole_ones_repeat_records():
    frame = voters()
    x, names, y = matrix(frame), ("intercept", "age", "college"), frame["voted"].eq("yes").to_numpy(dtype=float)
    plain = fit_design(x, y, names, "logistic")
    even = fit_design(x, y, names, "logistic", np.full(N, 7.0))
    np.testing.assert_allclose(even.estimates, plain.estimates, rtol=1e-5)
    np.testing.assert_allclose(even.standard_errors, plain.standard_errors, rtol=0.2)
    some = fit_design(x, y, names, "logistic", np.where(np.arange(N) < 100, 2.0, 0.0))
    np.testing.assert_allclose(some.estimates, fit_design(x[:100], y[:100], names, "logistic").estimates, rtol=1e-5)


@pytest.mark.parametrize("family", ["linear", "logistic", "poisson"])
def test_what_a_fit_cant_tell_is_nan(family):
    frame = voters(60)
    x = np.column_stack([matrix(frame), frame["age"] * 2.0])
    y = frame["visits"].gt(1).to_numpy(dtype=float)
    found = fit_design(x, y, ("intercept", "age", "college", "again"), family)
    assert np.isnan(found.estimates).tolist() == [False, False, False, True]
    assert not fit_design(x, np.ones(60), found.names, family).converged
    assert not fit_design(x[:3], y[:3], found.names, family).converged


def test_outcomes_and_weights_that_a_family_cant_have_are_refused():
    x, names = np.column_stack([np.ones(4), np.arange(4.0)]), ("intercept", "x")
    refuses("never below 0", fit_design, x, np.arange(4.0) - 1, names, "poisson")
    refuses("must not all be 0", fit_design, x, np.arange(4.0), names, "linear", np.zeros(4))


def test_weights_enter_an_analysis_and_missing_outcomes_leave_it():
    columns = SCHEMA.to_dict()["columns"]
    columns["voted"]["missing"] = True
    weighed = {"columns": {**columns, "w": {"lower": 0, "upper": 9}}, "records": {"weight": "w"}}
    schema, frame = Schema.model_validate(weighed), voters().assign(w=1.0)
    frame.loc[:99, "w"] = 3.0
    found = read_analysis("visits ~ age + college", schema, "poisson")
    assert found.weighted
    w = frame["w"].to_numpy()
    same = fit_design(matrix(frame), frame["visits"].to_numpy(dtype=float), ("a", "b", "c"), "poisson", w)
    np.testing.assert_allclose(found.fit(frame).estimates, same.estimates, rtol=1e-8)
    holes = frame.assign(voted=frame["voted"].mask(np.arange(N) % 4 == 0))
    without = read_analysis("voted ~ age", schema).fit(holes[holes["voted"].notna()])
    np.testing.assert_allclose(read_analysis("voted ~ age", schema).fit(holes).estimates, without.estimates)


def test_an_analysis_is_the_regression_that_its_formula_says():
    frame = voters()
    found = read_analysis("voted ~ age + college * region", SCHEMA).fit(frame)
    region = [frame["region"].eq(level) for level in ("south", "west")] + [frame["region"].isna()]
    products = [frame["college"] & level for level in region]
    x = np.column_stack([matrix(frame), *region, *products]).astype(float)
    same = FirthLogisticRegression(fit_intercept=False, backend="numpy", gtol=1e-6, xtol=1e-6, max_iter=200)
    same.fit(x, frame["voted"] == "yes")
    assert len(found.names) == 9
    np.testing.assert_allclose(found.estimates, same.coef_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.standard_errors, same.bse_, rtol=1e-4)
    assert "region[T.missing]" in found.names


def test_functions_families_and_number_levels_in_formulas():
    frame = voters()
    log = read_analysis("np.log(income) ~ age", SCHEMA)
    assert (log.family, log.fit(frame).estimates) == (
        "linear",
        pytest.approx(np.polyfit(frame["age"], np.log(frame["income"]), 1)[::-1]),
    )
    assert read_analysis("visits ~ age", SCHEMA, "poisson").fit(frame).converged
    assert len(read_analysis("income ~ visits", SCHEMA).names) == 2
    assert len(read_analysis("income ~ C(visits)", SCHEMA).names) == 10
    assert np.isnan(read_analysis("income ~ C(visits)", SCHEMA).fit(frame[frame["visits"] != 3]).estimates[3])
    assert not read_analysis("income ~ age", SCHEMA).fit(frame.iloc[:0]).converged


@pytest.mark.parametrize(
    ("formula", "family", "message"), cases(__file__, "formulas_that_dont_fit_are_refused_in_a_line")
)
def test_formulas_that_dont_fit_are_refused_in_a_line(formula, family, message):
    refuses(message, read_analysis, formula, SCHEMA, family)


@pytest.mark.parametrize("term", cases(__file__, "a_term_is_arithmetic_and_nothing_else_is_run"))
@pytest.mark.parametrize("formula", ["voted ~ college + {}", "{} ~ college"])
def test_a_term_is_arithmetic_and_nothing_else_is_run(tmp_path, formula, term):
    file = tmp_path / "written"
    refuses("has a term that isn't allowed", read_analysis, formula.format(term.format(file=file)), SCHEMA)
    assert not file.exists()


def test_the_functions_that_are_allowed_work():
    frame = voters()
    formula = (
        "income ~ bs(age, df=4) + C(age > 30) + {age**2} + C(region, Treatment('south')) * np.where(age > 40, 1, 0)"
    )
    assert read_analysis(formula.replace("south", SCHEMA.columns["region"].levels[1]), SCHEMA).fit(frame).names[0]


def test_what_a_formula_cant_be_worked_out_on_is_refused():
    for formula, message in [
        ("voted ~ np.log(visits)", "infinite or undefined"),
        ("voted ~ C(income)", "takes numbers as categories that the schema doesn't list"),
    ]:
        refuses(message, read_analysis(formula, SCHEMA).fit, voters())
    schema = Schema.from_toml("[columns.y]\nlower = -1\nupper = 1\n[columns.x]\nlower = 0\nupper = 1\n")
    refuses("never below 0", read_analysis, "y ~ x", schema, "poisson")


# ---- a release on disk ----


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("released")
    narrow = Schema(columns={name: column for name, column in SCHEMA.columns.items() if name != "income"})
    table = Table(voters().drop(columns="income"), narrow)
    table.frame.to_parquet(folder / "t.parquet")
    release, _ = Steps(epsilon=5, n_sets=2).release(table)
    release.publish(folder / "out" / "public")
    return folder


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_evaluation_from_end_to_end_stays_inside(pdips, here):
    before = contents(here / "out" / "public")
    formula = "voted ~ age + college"
    words = ["evaluate", here / "t.parquet", here / "out", "--analysis", formula, "--json", here / "more.json"]
    out = pdips.ok(*words)
    for word in ("INSIDE ONLY", "SPECKS", "3-marginal score", "avg-ECDF", "overlap", "coverage", "reference", formula):
        assert word in out
    assert contents(here / "out" / "public") == before
    inside = here / "out" / "confidential" / "evaluation.json"
    found = json.loads(inside.read_text())
    assert inside.read_bytes() == (here / "more.json").read_bytes()
    assert "leaks" in found["inside_only"]
    assert len(found["general"]) == 13
    assert list(found).index("basics") < list(found).index("general")
    assert out.index("mean of age") < out.index("SPECKS")
    assert {key: len(value) for key, value in found["pictures"].items() if key != "propensity"} == {
        "densities": 1,
        "pairs": 4,
    }
    assert found["pictures"]["propensity"]["distance"] == found["general"][0]["by_set"]
    assert {one["measure"] if "measure" in one else one["name"] for one in found["general"]} >= {"SPECKS", "pMSE"}
    assert set(found["specific"]["summary"]) == set(found["specific"]["reference"]) == set(SUMMARIES)
    assert found["specific"]["rule"] == "sanitized"
    assert "too short" in found["specific"]["note"]


def test_specific_utility_is_that_of_the_combining_rule(here):
    opened, frame = open_release(here / "out"), pd.read_parquet(here / "t.parquet")
    table, analysis = Table(frame, opened.schema), read_analysis("voted ~ age", opened.schema)
    found = specific_utility(table, opened, analysis)
    fits = [analysis.fit(made) for made in opened.sets]
    pooled = combine([fit.estimates for fit in fits], [fit.standard_errors**2 for fit in fits], rule="sanitized")
    np.testing.assert_allclose([one.combined for one in found.coefficients], pooled.estimate)
    original = analysis.fit(frame)
    overlap = ci_overlap(*original.interval(), *pooled.interval)
    assert found.summary["overlap of intervals"] == pytest.approx(overlap.mean())
    inside = (pooled.interval[0] <= original.estimates) & (original.estimates <= pooled.interval[1])
    assert found.summary["coverage"] == inside.mean()
    assert 0.4 < found.reference["standardised difference"] < 1.6  # |N(0, 1)| has mean 0.8


def test_summaries_by_hand():
    rows = pd.DataFrame({"original": [1.0, 2.0, np.nan], "ci_overlap": [0.5, 0.0, np.nan]})
    rows = rows.assign(standardized_difference=[-2.0, np.nan, 1.0], same_sign=[True, False, False])
    rows["covered"] = rows["same_sign"]
    assert list(summary(rows).values()) == [0.25, 2.0, 0.5, 0.5]
    assert np.isnan(list(summary(rows.iloc[2:]).values())).all()


def test_a_single_set_has_an_interval_with_a_warning(here):
    facts = json.loads((here / "out/public/privacy.json").read_text())
    (here / "out/public/synthetic_2.parquet").unlink()
    (here / "out/public/privacy.json").write_text(json.dumps({**facts, "n_sets": 1}))
    opened = open_release(here / "out")
    table = Table(pd.read_parquet(here / "t.parquet"), opened.schema)
    found = specific_utility(table, opened, read_analysis("visits ~ age", opened.schema, "poisson"))
    assert found.rule == "raab-nowok-dibben"
    assert "too short" in found.note


def test_bad_input_has_one_line_each(pdips, here):
    public, table = here / "out/public", here / "t.parquet"
    pd.DataFrame({"other": [1]}).to_parquet(here / "other.parquet")
    pd.read_parquet(table).assign(age=17).to_parquet(here / "young.parquet")
    release = (table, here / "out")
    for words, message in (
        ((table, here), "has no public/privacy.json"),
        ((here / "other.parquet", here / "out"), "not the table .* its schema differs"),
        ((here / "young.parquet", here / "out"), "its schema differs: column 'age' has values outside its bounds"),
        ((here / "nothing.parquet", here / "out"), "doesn't exist"),
        ((*release, "--analysis", "voted ~ ages"), "'ages', which is no column"),
        ((*release, "--family", "linear"), "--family belongs to an --analysis"),
        ((*release, "--json", public / "x.json"), "can't name a file in public"),
        ((*release, "--json", here / "no" / "x.json"), "a folder that doesn't exist"),
        ((*release, "--json", here), "--json must name a file"),
        ((*release, "--ledger", here / "l"), "--ledger belongs to --paid-epsilon"),
        ((*release, "--paid-epsilon", 1, "--analysis", "voted ~ age"), "goes with --ledger and --members only"),
    ):
        assert re.search(message, pdips.fails("", "evaluate", *words)), message
    assert not (here / "out/confidential").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop(columns="age"), "column 'age' of the schema is not in the table"),
        (lambda frame: frame.assign(voted="perhaps"), "values outside the levels"),
        (lambda frame: frame.assign(extra=1), "'extra' of the table is not in the schema"),
        (lambda frame: frame.iloc[:0].drop(columns="age"), "its columns are not those of the schema"),
    ],
)
def test_sets_edited_by_hand_are_called_so(pdips, here, change, message):
    path = here / "out/public/synthetic_2.parquet"
    change(pd.read_parquet(path)).to_parquet(path)
    err = pdips.fails(message, "evaluate", here / "t.parquet", here / "out")
    assert "synthetic_2.parquet doesn't fit the schema" in err
    assert "edited by hand" in err


def test_a_set_that_is_missing_or_in_excess_is_called_so(pdips, here):
    public = here / "out/public"
    (public / "synthetic_3.parquet").write_bytes((public / "synthetic_1.parquet").read_bytes())
    assert "not of this release" in pdips("evaluate", here / "t.parquet", here / "out")[2]
    (public / "synthetic_3.parquet").unlink()
    pd.read_parquet(public / "synthetic_1.parquet").to_csv(public / "synthetic_1.csv", index=False)
    assert "synthetic_1.parquet are both there" in pdips("evaluate", here / "t.parquet", here / "out")[2]
    (public / "synthetic_1.csv").unlink()
    (public / "synthetic_1.parquet").unlink()
    assert "synthetic set 1 of 2 is missing" in pdips("evaluate", here / "t.parquet", here / "out")[2]


def test_analyses_without_an_answer_counted_tables_and_no_sets_are_refused(here):
    opened = open_release(here / "out")
    few = Table(pd.read_parquet(here / "t.parquet").iloc[:3], opened.schema)
    with pytest.raises(InputError, match="doesn't fit the table"):
        specific_utility(few, opened, read_analysis("voted ~ age + college", opened.schema))
    table = Table(voters(20), SCHEMA)
    refuses("at least one synthetic set", general_utility, table, [])
    table.counts = np.ones(20, dtype=np.int64)
    refuses("counted=False", general_utility, table, [voters(20)])


BASIC = schema_in("evaluate_basic")


@pytest.mark.parametrize("weighted", [False, True])
def test_what_people_compare_first_is_what_numpy_says(weighted):
    rng, n = np.random.default_rng(0), 400
    frame = pd.DataFrame({"x": rng.uniform(0, 100, n), "y": rng.uniform(0, 50, n), "w": rng.integers(0, 4, n)})
    frame["y"] += frame["x"] / 2
    frame.loc[rng.random(n) < 0.2, "x"] = np.nan
    frame["none"] = np.nan
    schema = BASIC if weighted else BASIC.model_copy(update={"records": Records()})
    far = frame.assign(x=frame["x"] / 2)
    found = {one.name: one for one in basics(Table(frame, schema), [frame, far, frame.iloc[:0]])}
    known = frame.dropna(subset="x")
    weights = known["w"].to_numpy(float) if weighted else np.ones(len(known))
    mean = np.average(known["x"], weights=weights)
    sd = np.sqrt(np.average((known["x"] - mean) ** 2, weights=weights))
    assert found["mean of x"].table == pytest.approx(mean)
    assert found["standard deviation of x"].table == pytest.approx(sd)
    for level in (0.1, 0.25, 0.5, 0.75, 0.9):
        right = np.quantile(known["x"], level, weights=weights, method="inverted_cdf")
        assert found[f"{level:.0%} quantile of x"].table == right
    covariance = np.cov(known["x"], known["y"], aweights=weights)
    right = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    assert found["correlation of x and y"].table == pytest.approx(right)
    assert found["mean of none"].table is None
    assert found["records"].by_set == (400, 400, 0)
    assert ("total of the weights" in found) == weighted
    # 200 resamples: the width of their middle 95 % has a standard error of about 7 %
    low, high = found["mean of x"].resamples
    effective = weights.sum() ** 2 / (weights**2).sum()
    assert high - low == pytest.approx(2 * 1.96 * sd / np.sqrt(effective), rel=0.3)
    near, other, nothing = found["mean of x"].by_set
    assert low < near < high
    assert nothing is None
    assert not low < other < high  # the twin: half of each number
