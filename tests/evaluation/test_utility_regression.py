"""Firth's logistic regression against closed forms, firthmodels and statsmodels; overlaps by hand."""

import numpy as np
import pandas as pd
import pytest
from firthmodels import FirthLogisticRegression
from tables import cases, refuses, schema_in

from pdips import Schema
from pdips.evaluation.formula import read_analysis
from pdips.evaluation.regression import Fit, ci_overlap, compare_fits
from pdips.inference import combine

SCHEMA = schema_in("utility_regression")
NAMES = cases(__file__, "names")


def voters(n: int, seed: int) -> pd.DataFrame:
    """Nobody votes without being registered: the registered are separated from the others."""
    rng = np.random.default_rng(seed)
    registered, age = rng.random(n) < 0.6, rng.integers(18, 21, n)
    income, prereg = rng.integers(0, 3, n), rng.random(n) < 0.4
    chance = 1 / (1 + np.exp(-(0.3 * (age - 19) + 0.4 * income - 0.2 * prereg - 0.5)))
    voted = registered & (rng.random(n) < chance)
    answers = {"voted": voted, "prereg": prereg, "registered": registered}
    frame = pd.DataFrame({name: np.where(yes, "yes", "no") for name, yes in answers.items()})
    return frame.assign(age=age, income=np.array(["low", "middle", "high"])[income], hours=rng.random(n) * 10)


def fit(frame: pd.DataFrame, formula: str = "voted ~ prereg + age + income + registered + prereg:registered") -> Fit:
    return read_analysis(formula, SCHEMA).fit(frame)


def plain(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    yes = {name: (frame[name] == "yes").to_numpy(float) for name in ("voted", "prereg", "registered")}
    income = [(frame["income"] == level).to_numpy(float) for level in ("middle", "high")]
    columns = [np.ones(len(frame)), yes["prereg"], frame["age"], *income, yes["registered"]]
    return np.column_stack([*columns, yes["prereg"] * yes["registered"]]).astype(float), yes["voted"]


def firth(x: np.ndarray, y: np.ndarray) -> FirthLogisticRegression:
    model = FirthLogisticRegression(fit_intercept=False, backend="numpy", gtol=1e-7, xtol=1e-7, max_halfstep=0)
    return model.fit(x, y)


def one_predictor(no_no: int, no_yes: int, yes_no: int, yes_yes: int) -> Fit:
    frame = pd.DataFrame(
        [("no", "no")] * no_no + [("yes", "no")] * no_yes + [("no", "yes")] * yes_no + [("yes", "yes")] * yes_yes,
        columns=["voted", "prereg"],
    )
    return fit(frame, "voted ~ prereg")


@pytest.mark.parametrize("counts", [(7, 3, 2, 8), (10, 0, 4, 6), (9, 0, 0, 9)])
def test_firth_on_a_saturated_model_adds_half_a_record_to_each_cell(counts):
    a, b, c, d = (count + 0.5 for count in counts)
    found = one_predictor(*counts)
    assert found.converged
    assert found.names == ("Intercept", "prereg[T.yes]")
    np.testing.assert_allclose(found.estimates, [np.log(b / a), np.log(d / c) - np.log(b / a)], atol=1e-4)


def test_under_separation_it_is_firthmodels():
    frame = voters(600, 0)
    found = fit(frame)
    x, y = plain(frame)
    model = firth(x, y)
    assert found.names == NAMES
    assert found.converged
    np.testing.assert_allclose(found.estimates, model.coef_, atol=1e-6)
    np.testing.assert_allclose(found.standard_errors, model.bse_, atol=1e-6)


def test_constant_and_copied_columns_and_missing_levels_are_dropped():
    frame = voters(400, 1)
    frame = frame[(frame["prereg"] == "no") & (frame["income"] != "high")]
    found = fit(frame)
    gone = np.array(["prereg" in name or name == "income[T.high]" for name in NAMES])
    np.testing.assert_array_equal(np.isnan(found.estimates), gone)
    np.testing.assert_array_equal(np.isnan(found.standard_errors), gone)
    x, y = plain(frame)
    np.testing.assert_allclose(found.estimates[~gone], firth(x[:, ~gone], y).coef_, atol=1e-6)
    frame = voters(400, 1)
    frame["registered"] = frame["prereg"]
    names = np.array(fit(frame).names)[np.isnan(fit(frame).estimates)]
    assert list(names) == ["registered[T.yes]", "prereg[T.yes]:registered[T.yes]"]


def test_numbers_enter_as_they_are_and_missing_ones_leave():
    frame = voters(400, 2)
    frame.loc[:9, "hours"] = np.nan
    found, wanted = fit(frame, "prereg ~ hours"), fit(frame[10:], "prereg ~ hours")
    np.testing.assert_allclose(found.estimates, wanted.estimates)
    assert found.converged


@pytest.mark.parametrize(("shift", "unit"), [(0, 1e5), (2000, 1), (1e6, 1), (0, 1e-5)])
def test_the_unit_and_zero_of_a_number_do_not_matter(shift, unit):
    def slope(shift: float, unit: float) -> tuple[float, float]:
        rng = np.random.default_rng(0)
        hours = rng.integers(0, 11, 300)
        y = (rng.random(300) < 1 / (1 + np.exp(2 - 0.4 * hours))).astype(int)
        columns = {"y": {"levels": [0, 1]}, "x": {"lower": shift, "upper": shift + 10 * unit}}
        frame = pd.DataFrame({"y": y, "x": shift + unit * hours})
        found = read_analysis("y ~ x", Schema(columns=columns)).fit(frame)
        assert found.converged
        return found.estimates[1] * unit, found.standard_errors[1] * unit

    np.testing.assert_allclose(slope(shift, unit), slope(0, 1), rtol=1e-6)


def test_a_solver_that_gives_up_tells_nothing(monkeypatch):
    def give_up(*_, **__):
        raise np.linalg.LinAlgError

    monkeypatch.setattr(FirthLogisticRegression, "fit", give_up)
    found = fit(voters(50, 0))
    assert np.isnan(found.estimates).all()
    assert not found.converged


def test_overlaps_by_hand():
    lower, upper = [0, 1, 0, 3, 0, 0, np.nan, 1], [2, 2, 2, 4, 1, 2, np.nan, 1]
    other_lower, other_upper = [1, 0, 0, 0, 1, np.nan, 0, 1], [3, 4, 2, 2, 2, np.nan, 1, 1]
    # (1/2 + 1/2) / 2; (1/1 + 1/4) / 2; equal; disjoint; touching; none synthetic; none original; equal points
    wanted = [0.5, 0.625, 1, 0, 0, 0, np.nan, 1]
    np.testing.assert_array_equal(ci_overlap(lower, upper, other_lower, other_upper), wanted)
    assert ci_overlap(0, 2, 1, 3) == 0.5


def hand_fit(estimates, errors) -> Fit:
    names = tuple("abc"[: len(estimates)])
    return Fit(names=names, estimates=np.array(estimates), standard_errors=np.array(errors), converged=True)


def test_comparing_by_hand():
    original = hand_fit([1.0, -2.0, 3.0], [0.5, 1.0, 1.0])
    sets = [hand_fit([1.2, 0.5, np.nan], [0.5, 1.0, np.nan]), hand_fit([1.6, 1.5, 3.0], [0.5, 1.0, 1.0])]
    found = compare_fits(original, sets)
    combined = combine([[1.2, 0.5], [1.6, 1.5]], [[0.25, 1.0], [0.25, 1.0]])
    np.testing.assert_allclose(found["combined"], [1.4, 1.0, np.nan])
    np.testing.assert_allclose(found["combined_lower"][:2], combined.interval[0])
    assert list(found["same_sign"]) == [True, False, False]
    np.testing.assert_allclose(found["standardized_difference"], [0.8, 3.0, np.nan])
    wanted = ci_overlap(*(bound[0] for bound in (*original.interval(), *combined.interval)))
    assert found.loc["a", "ci_overlap"] == pytest.approx(float(wanted))
    assert found.loc["c", "ci_overlap"] == 0


def test_fits_of_different_models_are_not_compared():
    one, other = hand_fit([1.0], [1.0]), hand_fit([1.0, 2.0], [1.0, 1.0])
    for sets in ([], [other]):
        refuses("same model", compare_fits, one, sets)
