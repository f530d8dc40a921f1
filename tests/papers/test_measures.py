"""Measures that only papers print: Wasserstein randomization, k-marginal scores, linear
regressions, the LASSO's pMSE and tests of association, by hand and against other code.
"""

import time
from collections import Counter
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from sklearn.linear_model import LogisticRegression
from tables import refuses, schema_of, skewed, table_of

from pdips.evaluation.logistic import standardised
from pdips_papers.harness import lasso
from pdips_papers.harness.marginal_score import bins_of, k_marginal, mean_k_marginal
from pdips_papers.harness.prediction import normalised_rmse, standardised_differences
from pdips_papers.harness.wasserstein import wasserstein_randomization
from pdips_papers.steps.association import CATEGORIES, chi_square, combine_chi_square


def with_outliers(n: int, seed: int) -> np.ndarray:
    values = skewed(n, seed)
    values[:20] = np.minimum(values[:20] * 8, 2_000)
    return values


# Wasserstein randomization, k-marginal scores and linear regressions, for tables
# without a schema


def mixed(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "x": rng.exponential(10, n),
            "a": rng.choice(["u", "v", "w"], n, p=[0.6, 0.3, 0.1]),
        }
    )


randomised = partial(wasserstein_randomization, n_permutations=9)


def test_a_ratio_by_hand():
    # {0, 1} and {2, 3} are 2 apart; of the six splits of 0, 1, 2, 3 two are 2 apart and
    # four are 1 apart
    found = randomised(
        np.array([0, 1]),
        np.array([2, 3]),
        n_permutations=2_000,
        rng=np.random.default_rng(0),
    )
    assert (found.distance, found.median, found.ratio) == (2, 1, 2)
    # binomial, n = 2,000: 5 standard errors, chance of failure 6e-7
    assert found.p_value == pytest.approx(1 / 3, abs=5 * np.sqrt(2 / 9 / 2_000))


@pytest.mark.parametrize("n", [60, 45])
def test_the_pooled_distance_is_scipys_and_columns_are_over_their_scales(n):
    a, b = skewed(60, 0).round(-1), skewed(n, 1).round(-1)
    wanted = stats.wasserstein_distance(a.ravel(), b.ravel())
    assert [randomised(a, each).distance for each in (b, b[:, ::-1])] == pytest.approx(
        [wanted, wanted]
    )
    assert randomised(a, b[:, ::-1], distance="columns").distance > 0.5
    a, b = skewed(60, 0), skewed(n, 1)
    wanted = []
    for x, y in zip(a.T, b.T, strict=True):
        both = np.concatenate([x, y])
        wanted.append(
            stats.wasserstein_distance(x, y) / np.abs(both - np.median(both)).mean()
        )
    assert randomised(a, b, distance="columns").distance == pytest.approx(
        np.mean(wanted)
    )


def test_mixed_tables():
    # levels: total variation over the chance to differ
    u, v = pd.DataFrame({"a": list("uuuv")}), pd.DataFrame({"a": list("uvvv")})
    assert randomised(u, v, distance="columns").distance == pytest.approx(0.5 / 0.5)
    found = randomised(np.ones((5, 2)), np.ones((7, 2)), distance="columns")
    assert (found.distance, found.ratio, found.p_value) == (0, 0, 1)
    sets = mixed(200, 1), mixed(200, 1).assign(a="v")
    good, bad = (
        randomised(mixed(300, 0), each, distance="columns", n_permutations=200)
        for each in sets
    )
    assert good.ratio < 2.5 < 4 < bad.ratio
    assert good.p_value > 1 / 201 == bad.p_value


@pytest.mark.parametrize("n", [40, 25])
def test_re_splits_are_scipys(n):
    # two-sample Kolmogorov-Smirnov test on 300 distances each: fails by chance with
    # 1e-6
    rng = np.random.default_rng(5)
    a, b = rng.exponential(size=40), rng.exponential(size=n)
    ours = [randomised(a, b, n_permutations=1, rng=rng).median for _ in range(300)]
    p_values = []
    for n_first in (40, 5):  # the broken twin: parts of the wrong size
        mixed_up = (rng.permutation(np.concatenate([a, b])) for _ in range(300))
        theirs = [
            stats.wasserstein_distance(values[:n_first], values[n_first:])
            for values in mixed_up
        ]
        p_values.append(stats.ks_2samp(ours, theirs).pvalue)
    assert p_values[0] > 1e-6 > 1e-9 > p_values[1]


def test_the_monte_carlo_error_is_told():
    # the spread of ratios over 60 runs has a relative error of 9 %; 50 % off is 5.5
    # standard errors
    a, b = skewed(100, 0), skewed(100, 1) * 1.1
    runs = [
        randomised(a, b, n_permutations=100, rng=np.random.default_rng(j))
        for j in range(60)
    ]
    assert np.mean([run.ratio_error for run in runs]) == pytest.approx(
        np.std([run.ratio for run in runs]), rel=0.5
    )


def test_bad_requests_for_a_distance_or_a_margin():
    a, wide = skewed(5, 0), np.random.default_rng(0).normal(size=(9, 100))
    gap = np.where(a == a[1, 1], np.nan, a)
    for measure, tables, options, message in [
        (randomised, (a, a), {"distance": "energy"}, "distance must"),
        (randomised, (a, a), {"n_permutations": 0}, "at least 1"),
        (randomised, (mixed(5, 0), mixed(5, 1)), {}, "column 'a' must be numeric"),
        (
            randomised,
            (a, gap),
            {"distance": "columns"},
            "column 'x2' must have no missing",
        ),
        (k_marginal, (wide, wide), {"k": 0}, "k must be from 1"),
        (k_marginal, (wide, wide), {"k": 101}, "k must be from 1"),
    ]:
        refuses(message, measure, *tables, **options)


def test_bins_are_open_on_the_left_and_levels_constants_and_missing_values_have_some():
    original = np.array([1.0, 2, 4, 8])  # quartiles 1, 1.75, 3, 5, 8
    values = np.array([0.5, 1, 1.75, 1.8, 3, 5, 5.1, 8, 9, np.nan])
    assert bins_of(values, original).tolist() == [0, 0, 1, 2, 2, 3, 4, 4, 5, 6]
    original = pd.DataFrame({"a": ["u", "u", "v", None], "x": [1.0, 1, 1, np.nan]})
    synthetic = pd.DataFrame(
        {"a": ["u", "w", None, None], "x": [1.0, 2, np.nan, np.nan]}
    )
    assert k_marginal(original, synthetic, k=1) == {
        ("a",): pytest.approx(500),
        ("x",): pytest.approx(500),
    }
    assert mean_k_marginal(original, synthetic, k=2) == pytest.approx(500)


@pytest.mark.parametrize("n", [80, 50])
def test_three_columns_one_cell_at_a_time(n):
    a, b = skewed(80, 0), skewed(n, 1)
    edges = [
        [float(np.quantile(column, q)) for q in (0, 0.25, 0.5, 0.75, 1)]
        for column in a.T
    ]

    def shares(rows: np.ndarray) -> Counter[tuple[int, ...]]:
        cells = [
            tuple(
                sum(edge < x for edge in column)
                for x, column in zip(row, edges, strict=True)
            )
            for row in rows
        ]
        return Counter(
            {cell: count / len(rows) for cell, count in Counter(cells).items()}
        )

    ours, theirs = shares(a), shares(b)
    apart = sum(abs(ours[cell] - theirs[cell]) for cell in {*ours, *theirs})
    assert mean_k_marginal(a, b) == pytest.approx(1000 * (2 - apart) / 2)
    assert mean_k_marginal(a, np.vstack([a[::-1], a])) == pytest.approx(1000)
    assert mean_k_marginal(a, a + 1e6) == 0


def test_wide_tables_take_the_mean_over_sets_of_columns():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(50, 6)), rng.normal(size=(60, 6))
    every = k_marginal(a, b)
    assert len(every) == 20
    names = [f"x{j + 1}" for j in range(6)]
    for chosen, score in every.items():
        places = [names.index(name) for name in chosen]
        assert mean_k_marginal(a[:, places], b[:, places]) == pytest.approx(score)
    assert mean_k_marginal(a, b) == pytest.approx(np.mean([*every.values()]))


def test_coefficients_are_statsmodels():
    a, b = skewed(200, 0) * [1, 1e5, 1], skewed(150, 1) * [1, 1e5, 1]
    ours, theirs = (sm.OLS(t[:, 2], sm.add_constant(t[:, :2])).fit() for t in (a, b))
    found = standardised_differences(a, b, "x3", ["x1", "x2"])
    np.testing.assert_allclose(
        found, np.abs(ours.params - theirs.params) / ours.bse, rtol=1e-6
    )
    holdout = skewed(70, 2) * [1, 1e5, 1]
    wanted = np.sqrt(
        np.mean((holdout[:, 2] - theirs.predict(sm.add_constant(holdout[:, :2]))) ** 2)
    )
    assert normalised_rmse(b, holdout, "x3", ["x1", "x2"]) == pytest.approx(
        wanted / holdout[:, 2].std(ddof=1)
    )


def test_levels_enter_a_regression_as_indicators():
    original, synthetic = mixed(200, 0), mixed(150, 1)
    found = standardised_differences(original, synthetic, "x", ["a"])
    assert list(found.index) == ["intercept", "a=v", "a=w"]
    means, mean_u = (
        original.groupby("a")["x"].mean(),
        synthetic.groupby("a")["x"].mean()["u"],
    )
    variance = (
        original["x"].sub(original["a"].map(means)).pow(2).sum()
        / 197
        / (original["a"] == "u").sum()
    )
    assert found["intercept"] == pytest.approx(
        abs(means["u"] - mean_u) / np.sqrt(variance)
    )
    # a level that the set lacks can't be told, and is predicted as the first
    less = synthetic[synthetic["a"] != "w"]
    assert standardised_differences(original, less, "x", ["a"]).isna().tolist() == [
        False,
        False,
        True,
    ]
    assert normalised_rmse(less, original, "x", ["a"]) < 1.2


def test_records_with_missing_numbers_are_left_out():
    a, b = skewed(50, 0), skewed(50, 1)
    gaps = [np.vstack([t, [np.nan, 1, 1], [1, 1, np.nan]]) for t in (a, b)]
    found, wanted = (
        standardised_differences(*tables, "x3", ["x1"]) for tables in (gaps, (a, b))
    )
    pd.testing.assert_series_equal(found, wanted)


def test_a_resample_is_about_one_standard_error_off():
    # 100 draws of |N(0, 1)|, mean 0.80, standard deviation 0.60: 0.3 is 5 standard
    # errors
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 1))
    original = np.hstack([x, 2 * x + rng.normal(size=(300, 1))])
    slopes = []
    for _ in range(100):
        again = original[rng.integers(300, size=300)]
        slopes.append(standardised_differences(original, again, "x2", ["x1"])["x1"])
    assert np.mean(slopes) == pytest.approx(np.sqrt(2 / np.pi), abs=0.3)


def test_bad_requests_for_a_regression():
    a = skewed(20, 0)
    flat, double, exact = a * [0, 1, 1], a[:, [0, 0, 2]], a[:, [0, 1, 1]]
    for table, outcome, predictors, message in [
        (a, "x3", [], "at least one predictor"),
        (a, "x3", ["x1", "x3"], "without the outcome"),
        (a, "x3", ["x9"], "column 'x9' is not in"),
        (flat, "x3", ["x1"], "predictor 'x1' must vary"),
        (double, "x3", ["x1", "x2"], "predictor 'x2' must vary"),
        (exact, "x3", ["x2"], "'x3' must vary around the fit"),
        (a[:2], "x3", ["x1"], "more records than coefficients"),
        (a * np.nan, "x3", ["x1"], "at least one record without missing"),
    ]:
        refuses(message, standardised_differences, table, a, outcome, predictors)
    assert np.isnan(standardised_differences(a, flat, "x3", ["x1"])["x1"])
    refuses(
        "outcome 'a' must be numeric",
        normalised_rmse,
        mixed(9, 0),
        mixed(9, 1),
        "a",
        ["x"],
    )
    refuses(
        "outcome 'x1' must take at least two values",
        normalised_rmse,
        a,
        flat,
        "x1",
        ["x2"],
    )


def scikit_learns(size: float, n: int, tol: float) -> LogisticRegression:
    return LogisticRegression(
        C=1 / (n * size), l1_ratio=1.0, solver="saga", tol=tol, max_iter=100_000
    )


@pytest.mark.parametrize("size", [0.02, 0.002])
def test_a_penalised_fit_is_scikit_learns(size):
    x = standardised(np.vstack([skewed(300, 0), with_outliers(200, 1)]))
    y = np.repeat([0.0, 1.0], [300, 200])
    model = scikit_learns(size, 500, 1e-9).fit(x, y)
    intercept, beta = lasso.penalised(x, y, size, (0.0, np.zeros(3)))
    np.testing.assert_allclose(
        [intercept, *beta], [*model.intercept_, *model.coef_[0]], rtol=0, atol=2e-4
    )


def test_the_penalty_is_the_best_in_cross_validation(monkeypatch):
    monkeypatch.setattr(lasso, "N_PENALTIES", 6)
    x = standardised(np.vstack([skewed(120, 0), with_outliers(100, 1)]))
    y = np.repeat([0.0, 1.0], [120, 100])
    top = np.abs(x.T @ (y - y.mean())).max() / 220
    sizes = top * np.geomspace(1, 1e-4, 6)
    fold = np.random.default_rng(3).permutation(np.arange(220) % 10)

    def chances(size: float, inside: np.ndarray, at: np.ndarray) -> np.ndarray:
        model = scikit_learns(size, inside.sum(), 1e-6)
        return model.fit(x[inside], y[inside]).predict_proba(x[at])[:, 1]

    def loss_in(part: np.ndarray, size: float) -> float:
        p = chances(size, ~part, part)
        return float(-np.log(np.where(y[part] > 0, p, 1 - p)).sum())

    loss = [sum(loss_in(fold == j, size) for j in range(10)) for size in sizes]
    wanted = chances(sizes[int(np.argmin(loss))], fold >= 0, fold >= 0)
    np.testing.assert_allclose(
        lasso.cross_validated(x, y, np.random.default_rng(3)),
        wanted,
        atol=1e-4,
    )


def test_a_lasso_takes_more_columns_than_records(monkeypatch):
    monkeypatch.setattr(lasso, "N_PENALTIES", 20)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(15, 40)), rng.normal(size=(15, 40))
    b[:, 0] += 3
    assert 0.1 < lasso.lasso_pmse(a, b, rng) <= 0.25
    assert lasso.lasso_pmse(np.ones((9, 2)), np.ones((12, 2)), rng) == pytest.approx(0)


def test_wasserstein_randomization_is_quick():
    a, b, times = skewed(5_000, 0), with_outliers(5_000, 1), []
    for _ in range(5):
        start = time.process_time()
        wasserstein_randomization(a, b, n_permutations=100)
        times.append(time.process_time() - start)
    assert min(times) < 0.15


# Chi-square tests on all pairs, against scipy and numbers worked by hand


def linked(n: int, seed: int) -> pd.DataFrame:
    """Columns a and b agree most of the time, c goes its own way."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 3, n)
    b = np.where(rng.random(n) < 0.5, a, rng.integers(0, 3, n))
    return pd.DataFrame({"a": a, "b": b, "c": rng.integers(0, 2, n)})


def by_scipy(frame: pd.DataFrame):
    return stats.chi2_contingency(pd.crosstab(*frame.to_numpy().T), correction=False)


def test_p_values_of_the_table_are_scipys():
    schema = schema_of(3, 3, 2)
    frame = linked(500, 0)
    found = chi_square(table_of(frame.to_numpy(), schema), [frame])
    wanted = [by_scipy(frame[[a, b]]).pvalue for a, b in combinations("abc", 2)]
    np.testing.assert_allclose(found.p_original, wanted, rtol=1e-10)
    # a single set: its own
    np.testing.assert_allclose(found.p_synthetic, wanted, rtol=1e-10)
    assert found.pairs == [("a", "b"), ("a", "c"), ("b", "c")]
    assert found.consistency == {0.01: 1.0, 0.05: 1.0, 0.10: 1.0}


def test_combining_by_hand():
    # roots 4, 5, 6: r = 4/3; mean 77/3; D = (77/6 - 2 * 4/3) / (7/3) = 61/14; v = 2^-1
    # * 2 * (7/4)^2 = 3.0625. The upper tail of F(2, v) at D is (1 + 2 D / v)^(-v / 2).
    assert combine_chi_square([16, 25, 36], 2) == pytest.approx(
        (1 + 2 * (61 / 14) / 3.0625) ** (-3.0625 / 2)
    )
    assert combine_chi_square([7.0], 3) == pytest.approx(stats.chi2.sf(7, 3))
    assert combine_chi_square([7.0, 7.0, 7.0], 3) == pytest.approx(stats.chi2.sf(7, 3))
    assert combine_chi_square([1, 4, 9], 2) == 1.0  # roots 1, 2, 3: D is below 0


def test_a_set_without_a_level_enters_at_its_own_p_value():
    schema = schema_of(3, 2)
    full = pd.DataFrame({"a": [0, 1, 2] * 20, "b": [0, 0, 1] * 15 + [1, 0, 0] * 5})
    short = full[full["a"] < 2].reset_index(drop=True)
    short.loc[:3, "b"] = 1
    found = chi_square(table_of(full.to_numpy(), schema), [full, short])
    statistics = [by_scipy(full).statistic, stats.chi2.isf(by_scipy(short).pvalue, 2)]
    np.testing.assert_allclose(found.p_synthetic, [combine_chi_square(statistics, 2)])
    # and with a p-value below all doubles
    sure = pd.DataFrame({"a": [0, 1, 2] * 800, "b": [0, 1, 2] * 800})
    found = chi_square(
        table_of(sure.to_numpy(), schema_of(3, 3)), [sure, sure[sure["a"] < 2]]
    )
    assert np.isfinite(found.p_synthetic).all()


@pytest.mark.parametrize(
    "records", [[], [(0, 1, 0)], [(0, 0, 0), (0, 1, 0), (0, 1, 1)]]
)
def test_degenerate_sets_find_no_association(records):
    table = table_of(
        [(i % 2, i % 2, i // 2 % 2) for i in range(200)], schema_of(2, 2, 2)
    )
    found = chi_square(
        table,
        [pd.DataFrame(records, columns=["a", "b", "c"])],
    )
    assert found.p_synthetic[0] == 1.0
    assert found.p_original[0] < 1e-6
    assert found.consistency[0.01] == pytest.approx(2 / 3)


def test_a_single_column_has_no_pairs_and_no_set_no_test():
    table = table_of([(0,), (1,)], schema_of(2))
    found = chi_square(table, [pd.DataFrame({"a": [0]})])
    assert found.pairs == []
    assert np.isnan(found.consistency[0.05])
    refuses("at least one synthetic set", chi_square, table, [])


def test_crosstab_counts_every_pair_once():
    table = table_of(linked(300, 1).to_numpy(), schema_of(3, 3, 2))
    found = chi_square(table, [linked(300, seed) for seed in range(2, 7)])
    assert found.crosstab.to_numpy().sum() == 3
    assert tuple(found.crosstab.index) == tuple(found.crosstab.columns) == CATEGORIES
    for p, q in zip(found.p_original, found.p_synthetic, strict=True):
        row, column = (
            CATEGORIES[sum(x > limit for limit in (0.01, 0.05, 0.1))] for x in (p, q)
        )
        assert found.crosstab.loc[row, column] > 0
    assert found.consistency[0.01] == pytest.approx(
        np.mean((found.p_original <= 0.01) == (found.p_synthetic <= 0.01))
    )
