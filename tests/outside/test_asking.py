"""One grammar of questions to a public folder: read without being run, right in each
source, and answered from the best one, with intervals that hold.
"""

import ast
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from margin_tables import of_pairs
from tables import cases, refuses, schema_in

import pdips
from pdips import LaplaceSanitizer, Margins, Schema, Table
from pdips.outside import asking
from pdips.outside.answer import NOISY_MARGINS, POSTERIOR, PRODUCTS, SETS
from pdips.outside.cells import LevelCells, summarised
from pdips.outside.questions import Formula, Summary, read_question
from pdips.outside.sets import answers
from pdips.outside.sets.analyses import regression, summary
from pdips.outside.sets.records import SetRecords

SCHEMA = schema_in("outside")
MIDDLES = np.arange(25.0, 80, 10)


def people(n: int, seed: int) -> pd.DataFrame:
    """Draw persons whose vote depends on school, sex and age."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["f", "m"], n)
    school = rng.choice(["low", "middle", "high"], n, p=[0.3, 0.5, 0.2])
    age = rng.choice(MIDDLES, n)
    linear = -1 + 0.6 * (sex == "m") + 0.8 * (school == "high") + 0.02 * (age - 50)
    voted = np.where(rng.random(n) < 1 / (1 + np.exp(-linear)), "yes", "no")
    return pd.DataFrame({"sex": sex, "school": school, "age": age, "voted": voted})


def opened(mechanism, frame: pd.DataFrame, schema: Schema, folder: Path, seed: int = 0):
    """Publish a release of a table, and open its folder."""
    rng = np.random.default_rng(seed)
    release, _ = mechanism.release(Table(frame, schema), rng=rng)
    release.publish(folder / "public", allow=["seeded"])
    return pdips.open(folder)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return people(2_000, 1)


@pytest.fixture(scope="module")
def cells(frame, tmp_path_factory):
    """A folder with the counts of all cells, next to exact."""
    mechanism = LaplaceSanitizer(epsilon=100_000)
    return opened(mechanism, frame, SCHEMA, tmp_path_factory.mktemp("cells"))


@pytest.fixture(scope="module")
def pairs(frame, tmp_path_factory):
    """A folder with pairs at an ordinary epsilon, and four sets."""
    mechanism = of_pairs(epsilon=4, delta="1e-6", n_sets=4)
    return opened(mechanism, frame, SCHEMA, tmp_path_factory.mktemp("pairs"))


@pytest.mark.parametrize(
    ("question", "message"), cases(__file__, "questions_that_are_refused")
)
def test_what_the_grammar_refuses(question, message):
    refuses(re.escape(message), read_question, question, SCHEMA)


def test_nothing_of_a_question_is_run(monkeypatch):
    def caught(*_given: object) -> None:
        raise AssertionError("a question was run")

    for name in ("eval", "exec", "compile"):
        if name != "compile":  # ast.parse compiles to a tree
            monkeypatch.setattr(f"builtins.{name}", caught)
    for hostile in (
        "voted ~ __import__('os').system('true')",
        "mean((lambda: 1)())",
        "share(sex.__class__ == 'x')",
        "voted ~ [age for age in (1,)]",
        "mean(f'{age}')",
        "voted ~ age if age else sex",
        "voted ~ (age := 1)",
        "mean(age, **{'by': 'sex'})",
        "mean(*age)",
        "voted ~ age ** 2 ** 2 @ 1j",
    ):
        refuses("", read_question, hostile, SCHEMA)


def test_what_the_grammar_reads():
    asked = Formula.read("voted ~ sex * `age` + (school in ['low', 'high'])", SCHEMA)
    assert asking.coefficient_names(asked) == [
        "Intercept",
        "sex[m]",
        "age",
        "school in ['low', 'high']",
        "sex:age[m]",
    ]
    odd = Schema(columns={"a b": {"levels": ["x:y", "~"]}, "n": {"levels": [1, 2, 3]}})
    read = Formula.read("n ~ `a b` + (`a b` == 'x:y')", odd)
    assert [factor.text for factor in read.factors] == ["a b", "a b == 'x:y'"]
    shares = Summary.read("share((sex == 'm') & (age >= 40), by='school')", SCHEMA)
    assert (shares.by, [*shares.columns]) == (("school",), ["sex", "age", "school"])
    assert isinstance(shares.of[0].node, ast.BoolOp)
    assert Summary.read("median(age)", SCHEMA).part == 0.5
    assert Summary.read("std(age)", SCHEMA).kind == "sd"
    # names that Python reads otherwise
    named = Schema(
        columns={"flc.grp": {"levels": [1, 2, 3]}, "lambda": odd.columns["n"]}
    )
    read = Formula.read("lambda ~ log10(flc.grp) + flc.grp", named)
    assert [*read.columns] == ["lambda", "flc.grp"]
    assert Summary.read("share(lambda == 1, by=flc.grp)", named).by == ("flc.grp",)


def test_counts_answer_what_the_records_would(cells, frame):
    grouped = frame.groupby("school", sort=False)["age"]
    levels = ["low", "middle", "high"]
    expected = {
        "mean(age, by=['school'])": grouped.mean()[levels],
        "total(age, by=['school'])": grouped.sum()[levels],
        "median(age, by='school')": None,
        "share(voted == 'yes')": [(frame["voted"] == "yes").mean()],
        "share((voted == 'yes') & (age >= 40))": [
            ((frame["voted"] == "yes") & (frame["age"] >= 40)).mean()
        ],
        "share(sex)": [(frame["sex"] == sex).mean() for sex in "fm"],
        "count(sex != 'f')": [(frame["sex"] == "m").sum()],
        "count()": [len(frame)],
        "share(school == 'high', by=['sex', 'voted'])": frame.groupby(["sex", "voted"])[
            "school"
        ].apply(lambda own: (own == "high").mean()),
    }
    for question, numbers in expected.items():
        answer = cells.ask(question, target="table")
        assert answer.source == NOISY_MARGINS
        if numbers is None:
            found = answer.summary()
            middle = grouped.median()[levels].to_numpy()
            assert (found["lower"] <= middle).all()
            assert (middle <= found["upper"]).all()
            assert (found["upper"] - found["lower"] <= 20).all()
            continue
        np.testing.assert_allclose(answer.estimate, [*numbers], rtol=5e-3)
    # bins of age count as even, and the numbers are at their middle
    deviations = cells.ask("sd(age, by=['school'])")
    held = deviations.summary()
    own = grouped.std(ddof=0)[levels].to_numpy()
    assert (held["lower"] <= own).all()
    assert (own <= held["upper"]).all()
    np.testing.assert_allclose(deviations.estimate, own, rtol=0.05)
    correlation = cells.ask("correlation(age, age ** 2)").estimate[0]
    assert correlation == pytest.approx(
        np.corrcoef(frame["age"], frame["age"] ** 2)[0, 1], abs=1e-3
    )
    names = cells.ask("share(sex, by=['voted'])").names
    assert names[1] == "sex[m], voted[no]"


def test_counts_give_the_sampling_error_of_the_records(cells, frame):
    shares = cells.ask("mean(age, by=['school'])").summary()
    grouped = frame.groupby("school")["age"]
    error = grouped.std() / np.sqrt(grouped.size())
    np.testing.assert_allclose(
        shares["standard_error"], error[["low", "middle", "high"]], rtol=0.02
    )
    assert (shares["noise"] < 0.05).all()


def test_formulas_of_all_sorts_are_those_of_the_records(cells, frame):
    coded = frame.assign(
        yes=1.0 * (frame["voted"] == "yes"),
        taught=1.0 * frame["school"].isin(["middle", "high"]),
        school=pd.Categorical(frame["school"], ["low", "middle", "high"]),
    )
    for question, formula in (
        ("voted ~ log(age) + sex", "yes ~ np.log(age) + sex"),
        ("voted ~ age + age ** 2", "yes ~ age + I(age ** 2)"),
        (
            "(school in ['middle', 'high']) ~ sex * age",
            "taught ~ sex * age",
        ),
        ("age ~ school:sex + sex + school", "age ~ sex + school + school:sex"),
    ):
        answer = cells.ask(question)
        fit = smf.ols(formula, coded).fit(cov_type="HC0")
        assert answer.names[0] == "Intercept"
        # one order for both: by size of the coefficient
        np.testing.assert_allclose(
            np.sort(answer.estimate), np.sort(fit.params), rtol=0.02, atol=2e-3
        )
        np.testing.assert_allclose(
            np.sort(answer.summary()["standard_error"]), np.sort(fit.bse), rtol=0.12
        )
    logit = cells.ask("voted ~ sex + school", family="bernoulli")
    fit = smf.logit("yes ~ sex + school", coded).fit(disp=0)
    assert logit.names == ("Intercept", "sex[m]", "school[middle]", "school[high]")
    expected = fit.params[["Intercept", "sex[T.m]", "school[T.middle]"]]
    np.testing.assert_allclose(logit.estimate[:3], expected, atol=0.02)


def test_a_set_is_analysed_as_statsmodels_does(frame):
    linear = Formula.read("voted ~ sex * age + (school == 'high')", SCHEMA)
    records = SetRecords.of(frame, SCHEMA, [*linear.columns], "level")
    sex = 1.0 * (frame["sex"] == "m")
    high = 1.0 * (frame["school"] == "high")
    design = np.column_stack(
        [np.ones(len(frame)), sex, frame["age"], high, sex * frame["age"]]
    )
    outcome = 1.0 * (frame["voted"] == "yes")
    _, estimate, variance = regression(records, linear, "gaussian")
    fit = sm.OLS(outcome, design).fit(cov_type="HC1")
    np.testing.assert_allclose(estimate, fit.params, rtol=1e-6)
    np.testing.assert_allclose(variance, np.diagonal(fit.cov_params()), rtol=1e-6)
    _, estimate, _ = regression(records, linear, "binomial")
    fit = sm.Logit(outcome, design).fit(disp=0)
    np.testing.assert_allclose(estimate, fit.params, rtol=1e-5)
    counts = Formula.read("age ~ sex", SCHEMA)
    records = SetRecords.of(frame, SCHEMA, [*counts.columns], "level")
    _, estimate, _ = regression(records, counts, "poisson")
    means = frame.groupby("sex")["age"].mean()
    expected = [np.log(means["f"]), np.log(means["m"] / means["f"])]
    np.testing.assert_allclose(estimate, expected, rtol=1e-6)


def test_weights_count_a_record_as_often_as_they_say(frame, pairs):
    weighed = frame.assign(w=np.random.default_rng(2).integers(1, 5, len(frame)) * 1.0)
    schema = Schema(columns={**SCHEMA.columns, "w": {"lower": 0, "upper": 5}})
    asked = Formula.read("voted ~ sex + age", schema)
    records = SetRecords.of(weighed, schema, [*asked.columns], "level", "w")
    design = sm.add_constant(
        np.column_stack([1.0 * (weighed["sex"] == "m"), weighed["age"]])
    )
    outcome = 1.0 * (weighed["voted"] == "yes")
    weights = weighed["w"]
    _, estimate, variance = regression(records, asked, "gaussian")
    fit = sm.WLS(outcome, design, weights=weights).fit(cov_type="HC1")
    np.testing.assert_allclose(estimate, fit.params, rtol=1e-6)
    np.testing.assert_allclose(variance, np.diagonal(fit.cov_params()), rtol=1e-6)
    # a logit with weights is that of the records written down so often
    _, estimate, _ = regression(records, asked, "binomial")
    often = weighed.index.repeat(weights.astype(int))
    fit = sm.Logit(outcome[often], design[often]).fit(disp=0)
    np.testing.assert_allclose(estimate, fit.params, rtol=1e-5)
    means = Summary.read("mean(age, by=['sex'])", schema)
    records = SetRecords.of(weighed, schema, [*means.columns], "level", "w")
    _, estimate, variance = summary(records, means)
    for k, sex in enumerate("fm"):
        own = weighed[weighed["sex"] == sex]
        fit = sm.WLS(own["age"], np.ones(len(own)), weights=own["w"])
        fit = fit.fit(cov_type="HC0")
        assert estimate[k] == pytest.approx(fit.params.iloc[0])
        assert variance[k] == pytest.approx(fit.cov_params().iloc[0, 0])
    total = Summary.read("count(sex == 'm')", schema)
    _, estimate, _ = summary(records, total)
    assert estimate[0] == weights[weighed["sex"] == "m"].sum()
    # from sets alone, and with how columns go together said
    answer = pairs.ask("share(voted == 'yes')", weights="age")
    assert answer.source == SETS
    by_sex = pairs.ask("share(voted == 'yes', by=['sex'])", weights="age")
    assert answers.BY_MODEL in by_sex.remarks
    refuses("takes no weights", pairs.ask, "median(age)", weights="age")
    refuses("weights must name", pairs.ask, "share(sex)", weights="school")
    refuses("weights must name", pairs.ask, "share(sex)", weights="nothing")


def test_a_set_that_separates_or_lacks_a_level_leaves_a_coefficient_open(frame):
    apart = frame.assign(voted=np.where(frame["school"] == "high", "yes", "no"))
    asked = Formula.read("voted ~ sex + school", SCHEMA)
    records = SetRecords.of(apart, SCHEMA, [*asked.columns], "level")
    _, estimate, _ = regression(records, asked, "binomial")
    assert np.isnan(estimate[3])
    few = frame[frame["school"] != "high"]
    records = SetRecords.of(few, SCHEMA, [*asked.columns], "level")
    _, estimate, _ = regression(records, asked, "gaussian")
    assert np.isnan(estimate).tolist() == [False, False, False, True]
    means = Summary.read("mean(age, by=['school'])", SCHEMA)
    records = SetRecords.of(few, SCHEMA, [*means.columns], "level")
    assert np.isnan(summary(records, means)[1]).tolist() == [False, False, True]


def test_the_first_source_that_leaves_nothing_open_answers(pairs, monkeypatch):
    assert pairs.ask("voted ~ sex + school").source == NOISY_MARGINS
    crossed = pairs.ask("voted ~ sex * school")
    assert crossed.source == SETS
    assert answers.BY_MODEL in crossed.remarks
    assert crossed.names[-1] == "sex:school[m, high]"
    assert np.isfinite(crossed.summary()["upper"]).all()
    # an answer that the noise leaves open goes on to the sets, and is kept without any
    margins = pairs.margins
    found = replace(margins.found, variance=margins.found.variance * 1e6)
    loud = replace(margins, found=found)
    monkeypatch.setitem(vars(pairs), "margins", loud)
    passed_on = pairs.ask("voted ~ sex + school")
    assert passed_on.source == SETS
    assert any(NOISY_MARGINS in remark for remark in passed_on.remarks)

    def none(*_given: object) -> None:
        raise pdips.InputError("none")

    monkeypatch.setitem(asking.SOURCES, "sets", none)
    alone = pairs.ask("voted ~ sex + school")
    assert alone.source == NOISY_MARGINS
    assert np.isinf(alone.summary()[["lower", "upper"]]).all(axis=None)
    said = refuses("not measured: a release with", pairs.ask, "voted ~ sex * school")
    assert "no measured margin holds" in said
    assert "`pdips answer TABLE DIR --analysis 'voted ~ sex * school'`" in said
    # within what: the widest interval of a set, as if it were the table
    records = SetRecords.of(pairs.sets[0], SCHEMA, ["voted", "sex", "school"], "level")
    asked = Formula.read("voted ~ sex * school", SCHEMA)
    names, _, variances = regression(records, asked, "gaussian")
    reach = 1.96 * np.sqrt(variances.max())
    assert f"to ± {reach:.2g} ({names[variances.argmax()]}), noise left out" in said
    refuses("also=voted,sex,school", pairs.ask, "share(voted, by=['sex', 'school'])")


def test_numbers_without_bins_are_asked_of_products_and_sets(tmp_path):
    rng = np.random.default_rng(5)
    x = rng.normal(50, 10, 1_500).clip(0, 100).round(1)
    pay = (20 + 0.5 * x + rng.normal(0, 5, 1_500)).clip(0, 100).round(1)
    frame = pd.DataFrame({"x": x, "pay": pay, "sex": rng.choice(["f", "m"], 1_500)})
    schema = Schema(
        columns={
            "x": {"lower": 0, "upper": 100},
            "pay": {"lower": 0, "upper": 100},
            "sex": {"levels": ["f", "m"]},
        }
    )
    mechanism = of_pairs(epsilon=40, delta="1e-6", n_sets=4)
    public = opened(mechanism, frame, schema, tmp_path)
    slope = public.ask("pay ~ x")
    assert slope.source == PRODUCTS
    assert slope.estimate[1] == pytest.approx(0.5, abs=0.1)
    mean = public.ask("mean(pay)", target="table")
    assert mean.estimate[0] == pytest.approx(frame["pay"].mean(), abs=0.3)
    together = public.ask("correlation(x, pay)")
    assert together.source == PRODUCTS
    expected = frame["x"].corr(frame["pay"])
    assert together.estimate[0] == pytest.approx(expected, abs=0.05)
    by_sex = public.ask("quantile(pay, .9, by=['sex'])")
    assert by_sex.source == SETS
    expected = frame.groupby("sex")["pay"].quantile(0.9)
    np.testing.assert_allclose(by_sex.estimate, expected, atol=4)
    logarithm = public.ask("pay ~ log(x + 1) + sex")
    assert logarithm.source == SETS
    assert answers.BY_INTERVALS in logarithm.remarks
    for curve in ("pay ~ x + x ** 2", "pay ~ (x > 47.3)"):
        refuses("don't hold", public.ask, curve)
    refuses("isn't finite", public.ask, "pay ~ log(x - 50)")
    refuses("of the population", public.ask, "pay ~ x * sex", target="table")


def test_missing_is_a_level_or_left_out(tmp_path):
    schema = Schema(
        columns={
            "job": {"levels": ["none", "paid"], "missing": True},
            "k": {"levels": [0, 1, 2, 3], "missing": True},
        }
    )
    rng = np.random.default_rng(6)
    frame = pd.DataFrame(
        {
            "job": rng.choice(["none", "paid", None], 900),
            "k": rng.choice([0, 1, 2, 3, None], 900),
        }
    )
    public = opened(LaplaceSanitizer(epsilon=10_000), frame, schema, tmp_path)
    levels = public.ask("share(job)", target="table")
    assert levels.names == ("job[none]", "job[paid]", "job[missing]")
    kept = public.ask("share(job == 'paid')", target="table", missing="drop")
    known = frame["job"].dropna()
    assert kept.estimate[0] == pytest.approx((known == "paid").mean(), abs=1e-3)
    means = public.ask("mean(k, by=['job'])", target="table")
    expected = frame.fillna({"job": "missing"}).groupby("job")["k"]
    expected = expected.apply(lambda own: own.astype(float).mean())
    expected = expected[["none", "paid", "missing"]]
    np.testing.assert_allclose(means.estimate, expected, atol=1e-2)


def test_a_folder_edited_since_is_refused(frame, tmp_path):
    public = opened(Margins(epsilon=1, n_sets=2), frame, SCHEMA, tmp_path)
    assert public.ask("share(sex)").source == NOISY_MARGINS
    path = tmp_path / "public" / "privacy.json"
    path.write_text(path.read_text().replace('"epsilon": 1', '"epsilon": 2', 1))
    refuses("changed since it was opened", public.ask, "share(sex)")


def test_settings_that_are_none_are_refused(cells):
    refuses("family must be", cells.ask, "voted ~ sex", family="gamma")
    refuses("missing must be", cells.ask, "voted ~ sex", missing="zero")
    refuses("target must be", cells.ask, "voted ~ sex", target="world")
    refuses("an outcome of two levels", cells.ask, "age ~ sex", family="binomial")
    refuses("a question is text", cells.ask, 3)


def test_an_answer_is_short_and_drawn(cells):
    answer = cells.ask("voted ~ sex + school")
    assert len(repr(answer)) < 200
    assert len(repr(cells.margins)) < 500
    assert "school[high]" in answer._repr_html_()
    ax = answer.plot()
    assert [text.get_text() for text in ax.get_yticklabels()] == [*answer.names]
    refuses("only glm has draws", lambda: answer.posterior)
    fitted = cells.ask("voted ~ sex", family="binomial")
    assert "sex[m]" in fitted.posterior.posterior
    wide = cells.ask("share(age, by=['school', 'voted'])")
    assert "and 6 more" in wide._repr_html_()


@pytest.mark.slow
def test_quantiles_hold_their_interval_and_a_twin_without_noise_does_not():
    # the part asked for lies .004 beyond an edge, so that noise decides in which bin a
    # noisy quantile falls; 60 tables: below .85 is rare at .95, and the twin, which
    # believes in no error, holds about one in two
    schema = SCHEMA.only(["age", "sex"])
    held = {"own": 0, "twin": 0}
    for number in range(60):
        rng = np.random.default_rng([7, number])
        table = people(800, 100 + number)[["age", "sex"]]
        release, _ = of_pairs(epsilon=1, delta="1e-6").release(
            Table(table, schema), rng=rng
        )
        margins = pdips.NoisyMargins.of(release)
        asked = Summary.read("quantile(age, .504)", margins.schema)
        counts = margins.total("age", target="population")
        box = LevelCells(margins.schema, (), ("age",))
        answer = summarised(asked, box, counts, "level")
        silent = replace(answer, half_widths=lambda _: np.zeros((1, 7)))
        for name, each in (("own", answer), ("twin", silent)):
            found = each.summary().iloc[0]
            held[name] += found["lower"] <= 50.1 <= found["upper"]
    assert held["own"] / 60 > 0.85
    assert held["twin"] / 60 < 0.85


@pytest.mark.slow
def test_sets_hold_the_population_and_a_twin_without_their_spread_does_not(
    tmp_path, monkeypatch
):
    # 24 tables, 6 numbers each that hang together: .95 has a standard error of about
    # .025, so below .85 is rare; the twin's intervals are those of one set alone
    schema = SCHEMA.only(["sex", "school", "voted"])
    population = people(400_000, 3)[["sex", "school", "voted"]]
    asked = Formula.read("voted ~ sex * school", schema)
    records = SetRecords.of(population, schema, [*asked.columns], "level")
    _, truth, _ = regression(records, asked, "gaussian")
    mechanism = Margins(epsilon=0.5, n_sets=6)
    held: dict[str, list[float]] = {"own": [], "twin": []}
    monkeypatch.setattr(asking, "SOURCES", {"sets": asking.SOURCES["sets"]})
    for number in range(24):
        table = population.sample(800, random_state=number, ignore_index=True)
        public = opened(mechanism, table, schema, tmp_path / str(number), number)
        answer = public.ask(asked.text)
        found = answer.summary()
        own = (found["lower"] <= truth) & (truth <= found["upper"])
        held["own"].append(float(own.mean()))
        reach = 1.96 * np.sqrt(answer.combined.within)
        held["twin"].append(float((abs(answer.estimate - truth) < reach).mean()))
    assert np.mean(held["own"]) > 0.85
    assert np.mean(held["twin"]) < 0.85


@pytest.mark.slow
def test_a_posterior_of_the_question_answers_it(tmp_path):
    rng = np.random.default_rng(9)
    age = rng.uniform(20, 60, 1_000).round()
    frame = pd.DataFrame({"age": age, "pay": (age / 2 + rng.normal(20, 4, 1_000))})
    frame["pay"] = frame["pay"].clip(0, 80)
    schema = Schema(
        columns={"age": {"lower": 20, "upper": 60}, "pay": {"lower": 0, "upper": 80}}
    )
    opened(of_pairs(epsilon=2, n_sets=2), frame, schema, tmp_path)
    pdips.answer(frame, tmp_path, "pay ~ age", epsilon=4, progress=False).publish()
    public = pdips.open(tmp_path)
    answer = public.ask("pay ~ age")
    assert answer.source == POSTERIOR
    assert answer.names == ("Intercept", "age")
    assert answer.estimate[1] == pytest.approx(0.5, abs=0.1)
    assert asking.BEFORE_LOOKING in answer.remarks
    assert "age" in answer.posterior["posterior"]
    assert public.ask("age ~ pay").source != POSTERIOR
    assert public.ask("pay ~ age", target="table").source != POSTERIOR
    assert public.ask("pay ~ age", family="poisson").source != POSTERIOR
