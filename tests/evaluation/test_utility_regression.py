"""Regressions on the table and on sets: closed forms, statsmodels and firthmodels;
formulas; overlaps by hand.
"""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from firthmodels import FirthLogisticRegression
from tables import cases, refuses, schema_in, voters

from pdips import Schema
from pdips.evaluation.formula import read_analysis
from pdips.evaluation.regression import Fit, ci_overlap, compare_fits, fit_design
from pdips.inference import combine

SCHEMA = schema_in("evaluate")
N = 400
PRODUCT = "voted ~ age + college * region"


def fit(frame: pd.DataFrame, formula: str) -> Fit:
    return read_analysis(formula, SCHEMA).fit(frame)


def matrix(frame: pd.DataFrame) -> np.ndarray:
    return np.column_stack([np.ones(len(frame)), frame["age"], frame["college"] * 1.0])


def firth(frame: pd.DataFrame, kept=slice(None)) -> FirthLogisticRegression:
    """Fit PRODUCT, or some of its columns, by other code."""
    region = [frame["region"].eq(level) for level in ("south", "west")] + [
        frame["region"].isna()
    ]
    x = np.column_stack(
        [matrix(frame), *region, *(frame["college"] & level for level in region)]
    ).astype(float)
    model = FirthLogisticRegression(
        fit_intercept=False, backend="numpy", gtol=1e-7, xtol=1e-7, max_halfstep=0
    )
    return model.fit(x[:, kept], frame["voted"] == "yes")


@pytest.mark.parametrize("counts", [(7, 3, 2, 8), (10, 0, 4, 6), (9, 0, 0, 9)])
def test_firth_on_a_saturated_model_adds_half_a_record_to_each_cell(counts):
    cells = {"voted": ["no", "yes"] * 2, "college": [False, False, True, True]}
    found = fit(
        pd.DataFrame(
            {name: np.repeat(values, counts) for name, values in cells.items()}
        ),
        "voted ~ college",
    )
    assert (found.converged, found.names) == (True, ("Intercept", "college[True]"))
    a, b, c, d = (count + 0.5 for count in counts)
    np.testing.assert_allclose(
        found.estimates, [np.log(b / a), np.log(d / c) - np.log(b / a)], atol=1e-4
    )


@pytest.mark.parametrize("nobody", ["", "west"])
def test_a_logistic_analysis_equals_firthmodels_with_and_without_separation(nobody):
    frame = voters()
    frame.loc[frame["region"] == nobody, "voted"] = "no"
    found, same = fit(frame, PRODUCT), firth(frame)
    assert (found.converged, len(found.names), found.names[5]) == (
        True,
        9,
        "region[missing]",
    )
    np.testing.assert_allclose(found.estimates, same.coef_, atol=1e-6)
    np.testing.assert_allclose(found.standard_errors, same.bse_, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "converged"),
    [({"gtol": 1e-30, "xtol": 1e-30}, True), ({"max_iter": 1}, False)],
)
def test_a_fit_has_converged_if_its_score_says_so_and_not_if_its_steps_do(
    monkeypatch, settings, converged
):
    given, wanted = (
        FirthLogisticRegression.set_params,
        fit(voters(), "voted ~ age").estimates,
    )
    monkeypatch.setattr(
        FirthLogisticRegression,
        "set_params",
        lambda self, **own: given(self, **own | settings),
    )
    found = fit(voters(), "voted ~ age")
    assert found.converged == converged
    assert not converged or found.estimates == pytest.approx(wanted, abs=1e-5)


def test_constant_and_copied_columns_and_missing_levels_are_dropped():
    frame = voters()
    some = frame[~frame["college"] & (frame["region"] != "south")]
    found = fit(some, PRODUCT)
    gone = np.array(["college" in name or "south" in name for name in found.names])
    np.testing.assert_array_equal(
        np.isnan([found.estimates, found.standard_errors]), [gone, gone]
    )
    np.testing.assert_allclose(
        found.estimates[~gone], firth(some, ~gone).coef_, atol=1e-6
    )
    copied = fit(
        frame.assign(region=np.where(frame["college"], "south", "north")),
        "voted ~ college + region",
    )
    assert np.isnan(copied.estimates).tolist() == [False, False, True, True, True]


@pytest.mark.parametrize(("shift", "unit"), [(0, 1e5), (2000, 1), (1e6, 1), (0, 1e-5)])
def test_the_unit_and_zero_of_a_number_do_not_matter(shift, unit):
    def slope(shift: float, unit: float) -> tuple[float, float]:
        rng = np.random.default_rng(0)
        hours = rng.integers(0, 11, 300)
        y = (rng.random(300) < 1 / (1 + np.exp(2 - 0.4 * hours))).astype(int)
        schema = Schema(
            columns={
                "y": {"levels": [0, 1]},
                "x": {"lower": shift, "upper": shift + 10 * unit},
            }
        )
        found = read_analysis("y ~ x", schema).fit(
            pd.DataFrame({"y": y, "x": shift + unit * hours})
        )
        assert found.converged
        return found.estimates[1] * unit, found.standard_errors[1] * unit

    np.testing.assert_allclose(slope(shift, unit), slope(0, 1), rtol=1e-6)


def test_a_solver_that_gives_up_tells_nothing(monkeypatch):
    def give_up(*_, **__):
        raise np.linalg.LinAlgError

    monkeypatch.setattr(FirthLogisticRegression, "fit", give_up)
    found = fit(voters(50), PRODUCT)
    assert np.isnan(found.estimates).all()
    assert not found.converged


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("family", "outcome"), [("linear", "income"), ("poisson", "visits")]
)
def test_linear_and_poisson_fits_are_those_of_statsmodels(family, outcome, weighted):
    frame = voters()
    x, y = matrix(frame), frame[outcome].to_numpy(dtype=float)
    w = np.random.default_rng(0).uniform(0.5, 3, N) if weighted else np.ones(N)
    model = (
        sm.WLS(y, x, weights=w)
        if family == "linear"
        else sm.GLM(y, x, sm.families.Poisson(), var_weights=w)
    )
    theirs = model.fit(cov_type="HC0") if weighted else model.fit()
    ours = fit_design(
        x, y, ("intercept", "age", "college"), family, w if weighted else None
    )
    assert ours.converged
    np.testing.assert_allclose(ours.estimates, theirs.params, rtol=1e-6)
    factor = np.sqrt(N / (N - 1)) if weighted else 1
    np.testing.assert_allclose(ours.standard_errors, theirs.bse * factor, rtol=1e-5)


def test_weights_that_are_all_equal_change_no_estimate_and_whole_ones_repeat_records():
    frame = voters()
    x, names, y = (
        matrix(frame),
        ("intercept", "age", "college"),
        frame["voted"].eq("yes").to_numpy(dtype=float),
    )
    plain = fit_design(x, y, names, "logistic")
    even = fit_design(x, y, names, "logistic", np.full(N, 7.0))
    np.testing.assert_allclose(even.estimates, plain.estimates, rtol=1e-5)
    np.testing.assert_allclose(even.standard_errors, plain.standard_errors, rtol=0.2)
    some = fit_design(x, y, names, "logistic", np.where(np.arange(N) < 100, 2.0, 0.0))
    np.testing.assert_allclose(
        some.estimates,
        fit_design(x[:100], y[:100], names, "logistic").estimates,
        rtol=1e-5,
    )


@pytest.mark.parametrize("family", ["linear", "logistic", "poisson"])
def test_what_a_fit_cant_tell_is_nan(family):
    frame = voters(60)
    x = np.column_stack([matrix(frame), frame["age"] * 2.0])
    y = frame["visits"].gt(1).to_numpy(dtype=float)
    found = fit_design(x, y, ("intercept", "age", "college", "again"), family)
    assert np.isnan(found.estimates).tolist() == [False, False, False, True]
    assert not fit_design(x, np.ones(60), found.names, family).converged
    assert not fit_design(x[:3], y[:3], found.names, family).converged


def test_weights_enter_an_analysis_and_records_with_missing_numbers_or_outcomes_leave_it():  # noqa: E501
    columns = SCHEMA.to_dict()["columns"]
    for name in ("voted", "age"):
        columns[name]["missing"] = True
    weighed = {
        "columns": {**columns, "w": {"lower": 0, "upper": 9}},
        "records": {"weight": "w"},
    }
    schema, frame = Schema.model_validate(weighed), voters().assign(w=1.0)
    frame.loc[:99, "w"] = 3.0
    found = read_analysis("visits ~ age + college", schema, "poisson")
    assert found.weighted
    w = frame["w"].to_numpy()
    same = fit_design(
        matrix(frame),
        frame["visits"].to_numpy(dtype=float),
        ("a", "b", "c"),
        "poisson",
        w,
    )
    np.testing.assert_allclose(found.fit(frame).estimates, same.estimates, rtol=1e-8)
    place, analysis = np.arange(N), read_analysis("voted ~ age", schema)
    holes = frame.assign(
        voted=frame["voted"].mask(place % 4 == 0), age=frame["age"].mask(place % 9 == 1)
    )
    without = analysis.fit(holes.dropna(subset=["voted", "age"]))
    np.testing.assert_allclose(analysis.fit(holes).estimates, without.estimates)


def test_functions_families_and_number_levels_in_formulas():
    frame = voters()
    log = read_analysis("np.log(income) ~ age", SCHEMA)
    wanted = np.polyfit(frame["age"], np.log(frame["income"]), 1)[::-1]
    assert (log.family, log.fit(frame).estimates) == ("linear", pytest.approx(wanted))
    assert read_analysis("visits ~ age", SCHEMA, "poisson").fit(frame).converged
    assert len(read_analysis("income ~ visits", SCHEMA).names) == 2
    assert len(read_analysis("income ~ C(visits)", SCHEMA).names) == 10
    assert np.isnan(fit(frame[frame["visits"] != 3], "income ~ C(visits)").estimates[3])
    assert not fit(frame.iloc[:0], "income ~ age").converged
    terms = (
        "bs(age, df=4) + C(age > 30) + {age**2} + C(region, Treatment('south')) "
        "* np.where(age > 40, 1, 0)"
    )
    assert fit(frame, f"income ~ {terms}").converged


@pytest.mark.parametrize(
    ("formula", "family", "message"),
    cases(__file__, "formulas_that_dont_fit_are_refused_in_a_line"),
)
def test_formulas_that_dont_fit_are_refused_in_a_line(formula, family, message):
    refuses(message, read_analysis, formula, SCHEMA, family)


@pytest.mark.parametrize(
    "term", cases(__file__, "a_term_is_arithmetic_and_nothing_else_is_run")
)
@pytest.mark.parametrize("formula", ["voted ~ college + {}", "{} ~ college"])
def test_a_term_is_arithmetic_and_nothing_else_is_run(tmp_path, formula, term):
    file = tmp_path / "written"
    refuses(
        "has a term that isn't allowed",
        read_analysis,
        formula.format(term.format(file=file)),
        SCHEMA,
    )
    assert not file.exists()


def test_what_cant_be_fitted_or_compared_is_refused():
    x, names = np.column_stack([np.ones(4), np.arange(4.0)]), ("intercept", "x")
    refuses("never below 0", fit_design, x, np.arange(4.0) - 1, names, "poisson")
    refuses(
        "must not all be 0", fit_design, x, np.arange(4.0), names, "linear", np.zeros(4)
    )
    for formula, message in [
        ("voted ~ np.log(visits)", "infinite or undefined"),
        (
            "voted ~ C(income)",
            "takes numbers as categories that the schema doesn't list",
        ),
    ]:
        refuses(message, fit, voters(), formula)
    schema = Schema.from_toml(
        "[columns.y]\nlower = -1\nupper = 1\n[columns.x]\nlower = 0\nupper = 1\n"
    )
    refuses("never below 0", read_analysis, "y ~ x", schema, "poisson")
    one, other = hand_fit([1.0], [1.0]), hand_fit([1.0, 2.0], [1.0, 1.0])
    for sets in ([], [other]):
        refuses("same model", compare_fits, one, sets)


def test_overlaps_by_hand():
    lower, upper = [0, 1, 0, 3, 0, 0, np.nan, 1], [2, 2, 2, 4, 1, 2, np.nan, 1]
    other_lower, other_upper = (
        [1, 0, 0, 0, 1, np.nan, 0, 1],
        [3, 4, 2, 2, 2, np.nan, 1, 1],
    )
    # (1/2 + 1/2) / 2; (1/1 + 1/4) / 2; equal; disjoint; touching; none synthetic; none
    # original; equal points
    wanted = [0.5, 0.625, 1, 0, 0, 0, np.nan, 1]
    np.testing.assert_array_equal(
        ci_overlap(lower, upper, other_lower, other_upper), wanted
    )
    assert ci_overlap(0, 2, 1, 3) == 0.5


def hand_fit(estimates, errors) -> Fit:
    names = tuple("abc"[: len(estimates)])
    return Fit(
        names=names,
        estimates=np.array(estimates),
        standard_errors=np.array(errors),
        converged=True,
    )


def test_comparing_by_hand():
    original = hand_fit([1.0, -2.0, 3.0], [0.5, 1.0, 1.0])
    sets = [
        hand_fit([1.2, 0.5, np.nan], [0.5, 1.0, np.nan]),
        hand_fit([1.6, 1.5, 3.0], [0.5, 1.0, 1.0]),
    ]
    found = compare_fits(original, sets)
    combined = combine([[1.2, 0.5], [1.6, 1.5]], [[0.25, 1.0], [0.25, 1.0]])
    np.testing.assert_allclose(found["combined"], [1.4, 1.0, np.nan])
    np.testing.assert_allclose(found["combined_lower"][:2], combined.interval[0])
    assert list(found["same_sign"]) == [True, False, False]
    np.testing.assert_allclose(found["standardized_difference"], [0.8, 3.0, np.nan])
    wanted = ci_overlap(
        *(bound[0] for bound in (*original.interval(), *combined.interval))
    )
    assert found.loc["a", "ci_overlap"] == pytest.approx(float(wanted))
    assert found.loc["c", "ci_overlap"] == 0
