"""pMSE by hand, against statsmodels and scikit-learn, under separation, and against its law under the null."""

import time

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from sklearn.linear_model import LogisticRegression
from tables import refuses, skewed

from pdips.evaluation import logistic
from pdips.evaluation.propensity import MOST_PMSE_COEFFICIENTS, null_moments, pmse, standardised_pmse


def with_outliers(n: int, seed: int) -> np.ndarray:
    values = skewed(n, seed)
    values[:20] = np.minimum(values[:20] * 8, 2_000)
    return values


def test_levels_by_hand_and_half_separated_tables():
    # p is the level's share of synthetic records: 1/3, 1/2, 3/4; c = 6/11
    original = pd.DataFrame({"a": list("xxyyz")})
    synthetic = pd.DataFrame({"a": list("xyyzzz")})
    wanted = (3 * (1 / 3 - 6 / 11) ** 2 + 4 * (1 / 2 - 6 / 11) ** 2 + 4 * (3 / 4 - 6 / 11) ** 2) / 11
    assert pmse(original, synthetic) == pytest.approx(wanted, rel=1e-6)
    # level z is synthetic only, so that its log odds are infinite: chances 0.6, 0.25 and 1 are still right
    original, synthetic = pd.DataFrame({"a": list("xxyyy")}), pd.DataFrame({"a": list("xxxyzz")})
    wanted = (5 * (3 / 5 - 6 / 11) ** 2 + 4 * (1 / 4 - 6 / 11) ** 2 + 2 * (1 - 6 / 11) ** 2) / 11
    assert pmse(original, synthetic) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("interactions", [False, True])
def test_it_is_statsmodels(interactions):
    a, b = skewed(700, 0), with_outliers(500, 1)
    x, y = np.vstack([a, b]), np.repeat([0.0, 1.0], [700, 500])
    if interactions:
        x = np.column_stack([x, x[:, 0] * x[:, 1], x[:, 0] * x[:, 2], x[:, 1] * x[:, 2]])
    fit = sm.Logit(y, sm.add_constant((x - x.mean(axis=0)) / x.std(axis=0))).fit(disp=0, maxiter=100)
    wanted = np.mean((fit.predict() - y.mean()) ** 2)
    assert pmse(a, b, interactions=interactions) == pytest.approx(wanted, rel=1e-6)


def test_interactions_of_levels_are_the_cells():
    # with all products the model is saturated: p is the share in each cell of a by b
    rng = np.random.default_rng(2)
    frames = [
        pd.DataFrame({"a": rng.choice(list("uv"), 200, p=p), "b": rng.choice(list("xyz"), 200)})
        for p in ([0.5, 0.5], [0.3, 0.7])
    ]
    both = pd.concat(frames).assign(y=np.repeat([0.0, 1.0], 200))
    wanted = np.mean((both.groupby(["a", "b"])["y"].transform("mean") - 0.5) ** 2)
    assert pmse(*frames, interactions=True) == pytest.approx(wanted, rel=1e-6)
    assert pmse(*frames) < wanted


def test_neither_units_nor_constant_and_repeated_columns_matter():
    a, b = skewed(300, 0), with_outliers(300, 1)
    scaled = [values * [1e-9, 1.0, 1e9] + [5, -7, 1e9] for values in (a, b)]
    assert pmse(*scaled, interactions=True) == pytest.approx(pmse(a, b, interactions=True), rel=1e-5)
    a, b = skewed(300, 0), with_outliers(300, 1)
    wider = [np.column_stack([values, np.full(300, 7.0), 2 * values[:, 0] - values[:, 1]]) for values in (a, b)]
    assert pmse(*wider) == pytest.approx(pmse(a, b), rel=1e-6)
    assert standardised_pmse(*wider).n_coefficients == 4


@pytest.mark.parametrize("penalty", [None, "lasso", "ridge"])
def test_tables_without_variation_cant_be_told_apart(penalty):
    assert pmse(np.ones((9, 2)), np.ones((12, 2)), penalty=penalty) == pytest.approx(0)


@pytest.mark.parametrize("interactions", [False, True])
def test_separated_tables_reach_the_largest_value(interactions):
    a = skewed(400, 0)
    assert pmse(a, a[:100] + 1_000, interactions=interactions) == pytest.approx(0.2 * 0.8, abs=1e-6)
    assert pmse(a, np.full((400, 3), 5.0), interactions=interactions) == pytest.approx(0.25, abs=1e-6)
    assert pmse(np.array([[1.0]]), np.array([[2.0]])) == pytest.approx(0.25, abs=1e-6)


def test_missing_values_are_a_level_or_filled():
    original = pd.DataFrame({"a": [1.0, 1, np.nan, 1], "b": ["u", "u", None, "u"]})
    synthetic = pd.DataFrame({"a": [np.nan, np.nan, 1, np.nan], "b": [None, None, "u", None]})
    assert pmse(original[["a"]], synthetic[["a"]]) == pytest.approx(1 / 16)
    assert pmse(original[["b"]], synthetic[["b"]]) == pytest.approx(1 / 16)


@pytest.mark.parametrize("size", [0.02, 0.002])
@pytest.mark.parametrize("penalty", ["lasso", "ridge"])
def test_a_penalised_fit_is_scikit_learns(penalty, size):
    x = logistic.standardised(np.vstack([skewed(300, 0), with_outliers(200, 1)]))
    y = np.repeat([0.0, 1.0], [300, 200])
    ratio, solver = (1.0, "saga") if penalty == "lasso" else (0.0, "newton-cholesky")
    model = LogisticRegression(C=1 / (500 * size), l1_ratio=ratio, solver=solver, tol=1e-9, max_iter=100_000)
    model.fit(x, y)
    intercept, beta = logistic.penalised(x, y, penalty, size, (0.0, np.zeros(3)))
    np.testing.assert_allclose(beta, model.coef_[0], atol=2e-4)
    assert intercept == pytest.approx(model.intercept_[0], abs=2e-4)


@pytest.mark.parametrize("penalty", ["lasso", "ridge"])
def test_the_penalty_is_the_best_in_cross_validation(penalty, monkeypatch):
    monkeypatch.setattr(logistic, "N_PENALTIES", 6)
    x = logistic.standardised(np.vstack([skewed(120, 0), with_outliers(100, 1)]))
    y = np.repeat([0.0, 1.0], [120, 100])
    top = np.abs(x.T @ (y - y.mean())).max() / 220 * (1_000 if penalty == "ridge" else 1)
    sizes = top * np.geomspace(1, 1e-4, 6)
    ratio, solver = (1.0, "saga") if penalty == "lasso" else (0.0, "newton-cholesky")

    def chances(size: float, inside: np.ndarray, at: np.ndarray) -> np.ndarray:
        model = LogisticRegression(C=1 / (inside.sum() * size), l1_ratio=ratio, solver=solver, tol=1e-6, max_iter=9_999)
        return model.fit(x[inside], y[inside]).predict_proba(x[at])[:, 1]

    fold = np.random.default_rng(3).permutation(np.arange(220) % 10)

    def loss_in(part: np.ndarray, size: float) -> float:
        p = chances(size, ~part, part)
        return float(-np.log(np.where(y[part] > 0, p, 1 - p)).sum())

    loss = [sum(loss_in(fold == j, size) for j in range(10)) for size in sizes]
    everything = np.ones(220, dtype=bool)
    wanted = chances(sizes[int(np.argmin(loss))], everything, everything)
    np.testing.assert_allclose(logistic.cross_validated(x, y, penalty, np.random.default_rng(3)), wanted, atol=1e-4)


def test_a_lasso_takes_more_columns_than_records():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(15, 40)), rng.normal(size=(15, 40))
    b[:, 0] += 3
    assert 0.1 < pmse(a, b, penalty="lasso", rng=rng) <= 0.25


def null_scores(n: int, m: int, interactions: bool, n_draws: int) -> np.ndarray:
    """pMSE of sets drawn from the original itself, which is fixed, over its unit (1 - c)^2 c / N."""
    rng = np.random.default_rng(7)
    original = rng.normal(size=(n, 3))
    unit = (n / (n + m)) ** 2 * (m / (n + m)) / (n + m)
    draws = (original[rng.integers(n, size=m)] for _ in range(n_draws))
    return np.array([pmse(original, drawn, interactions=interactions) for drawn in draws]) / unit


@pytest.mark.parametrize(("n", "m", "interactions", "k"), [(500, 500, True, 7), (250, 750, False, 4)])
def test_the_law_under_the_null(n, m, interactions, k):
    # Kolmogorov-Smirnov against chi-square with k - 1 degrees of freedom: fails by chance with 1e-6
    scores = null_scores(n, m, interactions, 300)
    law = stats.chi2(k - 1).cdf
    assert stats.kstest(scores, law).pvalue > 1e-6
    # broken twins: the original taken for random too, c and 1 - c exchanged
    share = m / (n + m)
    assert stats.kstest(scores * (1 - share), law).pvalue < 1e-9
    assert share == 0.5 or stats.kstest(scores * (1 - share) / share, law).pvalue < 1e-9
    expected, deviation = null_moments(k, n, m)
    unit = (n / (n + m)) ** 2 * (m / (n + m)) / (n + m)
    assert expected / unit == pytest.approx(stats.chi2(k - 1).mean())
    assert deviation / unit == pytest.approx(stats.chi2(k - 1).std())


@pytest.mark.parametrize("null", ["resample", "permutation"])
def test_simulated_nulls_agree_with_the_formula(null):
    # 400 draws of chi-square with 3 degrees of freedom: the mean is off by 4.1 %, so 20 % is 4.9 standard errors: 1e-6
    rng = np.random.default_rng(11)
    a, b = rng.normal(size=(200, 3)), rng.normal(size=(400, 3))
    found = standardised_pmse(a, b, null=null, n_draws=400, rng=rng)
    formula = standardised_pmse(a, b)
    share_of_original = 1 / 3 if null == "permutation" else 1.0
    assert found.expected * share_of_original == pytest.approx(formula.expected, rel=0.2)
    # broken twin: without the factor a permutation is thrice the formula, with it a resample a third
    assert found.expected / share_of_original * (1 / 3 if null == "resample" else 1) != pytest.approx(
        formula.expected, rel=0.2
    )


def test_ratio_and_z_and_a_penalised_null_is_simulated():
    a, b = skewed(300, 0), with_outliers(250, 1)
    found = standardised_pmse(a, b)
    assert found.pmse == pmse(a, b)
    assert found.expected == pytest.approx(3 * (300 / 550) ** 2 * (250 / 550) / 550)
    assert found.ratio == pytest.approx(found.pmse / found.expected)
    assert found.z == pytest.approx((found.pmse - found.expected) / found.standard_deviation)
    assert np.isnan(standardised_pmse(np.ones((5, 1)), np.ones((5, 1))).ratio)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(30, 2)), rng.normal(1.5, size=(30, 2))
    found = standardised_pmse(a, b, penalty="ridge", n_draws=3, rng=np.random.default_rng(1))
    assert found.ratio > 3
    first, again = (pmse(a, b, penalty="ridge", rng=np.random.default_rng(1)) for _ in range(2))
    assert first == again == found.pmse <= pmse(a, b)
    refuses("no formula", standardised_pmse, a, b, penalty="ridge", null="formula")


def test_it_is_quick():
    a, b = skewed(5_000, 0), with_outliers(5_000, 1)
    times = []
    for _ in range(5):
        start = time.process_time()
        pmse(a, b, interactions=True)
        times.append(time.process_time() - start)
    assert min(times) < 0.05


def test_bad_requests_are_refused():
    a = skewed(10, 0)
    wide = np.random.default_rng(0).normal(size=(5, 70))
    refuses("penalty must be", pmse, a, a, penalty="elastic")
    refuses("null must be", standardised_pmse, a, a, null="bootstrap")
    refuses("n_draws", standardised_pmse, a, a, null="resample", n_draws=1)
    refuses(f"above {MOST_PMSE_COEFFICIENTS:,}", pmse, wide, wide, interactions=True)
