"""Wasserstein randomization, k-marginal scores and regressions by hand, against scipy and statsmodels."""

from collections import Counter
from functools import partial

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from tables import refuses, skewed

from pdips.evaluation.distribution import DISTANCES, wasserstein_randomization
from pdips.evaluation.encoding import paired, reference
from pdips.evaluation.margins import bins_of, k_marginal
from pdips.evaluation.regression import normalised_rmse, standardised_differences


def mixed(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"x": rng.exponential(10, n), "a": rng.choice(["u", "v", "w"], n, p=[0.6, 0.3, 0.1])})


randomised = partial(wasserstein_randomization, n_permutations=9)


def test_a_ratio_by_hand():
    # {0, 1} and {2, 3} are 2 apart; of the six splits of 0, 1, 2, 3 two are 2 apart and four are 1 apart
    found = randomised(np.array([0, 1]), np.array([2, 3]), n_permutations=2_000, rng=np.random.default_rng(0))
    assert (found.distance, found.median, found.ratio) == (2, 1, 2)
    # binomial, n = 2,000: 5 standard errors, chance of failure 6e-7
    assert found.p_value == pytest.approx(1 / 3, abs=5 * np.sqrt(2 / 9 / 2_000))


@pytest.mark.parametrize("n", [60, 45])
def test_the_pooled_distance_is_scipys_and_columns_are_over_their_scales(n):
    a, b = skewed(60, 0).round(-1), skewed(n, 1).round(-1)
    wanted = stats.wasserstein_distance(a.ravel(), b.ravel())
    assert [randomised(a, each).distance for each in (b, b[:, ::-1])] == pytest.approx([wanted, wanted])
    assert randomised(a, b[:, ::-1], distance="columns").distance > 0.5
    a, b = skewed(60, 0), skewed(n, 1)
    wanted = []
    for x, y in zip(a.T, b.T, strict=True):
        both = np.concatenate([x, y])
        wanted.append(stats.wasserstein_distance(x, y) / np.abs(both - np.median(both)).mean())
    assert randomised(a, b, distance="columns").distance == pytest.approx(np.mean(wanted))
    one = [randomised(a[:, :1], b[:, :1], distance=name).distance for name in DISTANCES[1:]]
    assert one[0] == pytest.approx(one[1])


@pytest.mark.parametrize("distance", DISTANCES[1:])
def test_mixed_tables(distance):
    # levels: total variation over the chance to differ
    u, v = pd.DataFrame({"a": list("uuuv")}), pd.DataFrame({"a": list("uvvv")})
    assert randomised(u, v, distance="columns").distance == pytest.approx(0.5 / 0.5)
    found = randomised(np.ones((5, 2)), np.ones((7, 2)), distance=distance)
    assert (found.distance, found.ratio, found.p_value) == (0, 0, 1)
    sets = mixed(200, 1), mixed(200, 1).assign(a="v")
    good, bad = (randomised(mixed(300, 0), each, distance=distance, n_permutations=200) for each in sets)
    assert good.ratio < 2.5 < 4 < bad.ratio
    assert good.p_value > 1 / 201 == bad.p_value


def test_only_slices_see_the_joint_distribution():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 1))
    tables, options = (np.hstack([x, x]), np.hstack([x, -x])), {"n_permutations": 50, "n_projections": 20, "rng": rng}
    columns, sliced = (randomised(*tables, distance=name, **options).ratio for name in DISTANCES[1:])
    assert columns < 2 < 5 < sliced


@pytest.mark.parametrize("n", [40, 25])
def test_re_splits_are_scipys(n):
    # two-sample Kolmogorov-Smirnov test on 300 distances each: fails by chance with 1e-6
    rng = np.random.default_rng(5)
    a, b = rng.exponential(size=40), rng.exponential(size=n)
    ours = [randomised(a, b, n_permutations=1, rng=rng).median for _ in range(300)]
    p_values = []
    for n_first in (40, 5):  # the broken twin: parts of the wrong size
        mixed_up = (rng.permutation(np.concatenate([a, b])) for _ in range(300))
        theirs = [stats.wasserstein_distance(values[:n_first], values[n_first:]) for values in mixed_up]
        p_values.append(stats.ks_2samp(ours, theirs).pvalue)
    assert p_values[0] > 1e-6 > 1e-9 > p_values[1]


def test_the_monte_carlo_error_is_told():
    # the spread of ratios over 60 runs has a relative error of 9 %; 50 % off is 5.5 standard errors
    a, b = skewed(100, 0), skewed(100, 1) * 1.1
    runs = [randomised(a, b, n_permutations=100, rng=np.random.default_rng(j)) for j in range(60)]
    assert np.mean([run.ratio_error for run in runs]) == pytest.approx(np.std([run.ratio for run in runs]), rel=0.5)


def test_bad_requests_for_a_distance_or_a_margin():
    a, wide = skewed(5, 0), np.random.default_rng(0).normal(size=(9, 100))
    for measure, tables, options, message in [
        (randomised, (a, a), {"distance": "energy"}, "distance must"),
        (randomised, (a, a), {"n_permutations": 0}, "at least 1"),
        (randomised, (mixed(5, 0), mixed(5, 1)), {}, "column 'a' must be numeric"),
        (
            randomised,
            (a, np.where(a == a[1, 1], np.nan, a)),
            {"distance": "sliced"},
            "column 'x2' must have no missing",
        ),
        (k_marginal, (wide, wide), {"k": 0}, "k must be from 1"),
        (k_marginal, (wide, wide), {"k": 101}, "k must be from 1"),
        (k_marginal, (wide, wide), {"k": 4}, "more than 100,000"),
        (k_marginal, (wide, wide), {"n_draws": 0}, "n_draws"),
    ]:
        refuses(message, measure, *tables, **options)


def test_bins_are_open_on_the_left_and_levels_constants_and_missing_values_have_some():
    original = np.array([1.0, 2, 4, 8])  # quartiles 1, 1.75, 3, 5, 8
    values = np.array([0.5, 1, 1.75, 1.8, 3, 5, 5.1, 8, 9, np.nan])
    assert bins_of(values, original).tolist() == [0, 0, 1, 2, 2, 3, 4, 4, 5, 6]
    original = pd.DataFrame({"a": ["u", "u", "v", None], "x": [1.0, 1, 1, np.nan]})
    synthetic = pd.DataFrame({"a": ["u", "w", None, None], "x": [1.0, 2, np.nan, np.nan]})
    assert k_marginal(original, synthetic, k=1).by_columns == {("a",): pytest.approx(500), ("x",): pytest.approx(500)}
    assert k_marginal(original, synthetic, k=2).score == pytest.approx(500)


@pytest.mark.parametrize("n", [80, 50])
def test_three_columns_one_cell_at_a_time(n):
    a, b = skewed(80, 0), skewed(n, 1)
    edges = [[float(np.quantile(column, q)) for q in (0, 0.25, 0.5, 0.75, 1)] for column in a.T]

    def shares(rows: np.ndarray) -> Counter[tuple[int, ...]]:
        cells = [tuple(sum(edge < x for edge in column) for x, column in zip(row, edges, strict=True)) for row in rows]
        return Counter({cell: count / len(rows) for cell, count in Counter(cells).items()})

    ours, theirs = shares(a), shares(b)
    apart = sum(abs(ours[cell] - theirs[cell]) for cell in {*ours, *theirs})
    assert k_marginal(a, b).score == pytest.approx(1000 * (2 - apart) / 2)
    assert k_marginal(a, np.vstack([a[::-1], a])).score == pytest.approx(1000)
    assert k_marginal(a, a + 1e6).score == 0


def test_wide_tables_take_the_mean_over_sets_of_columns():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(50, 6)), rng.normal(size=(60, 6))
    every = k_marginal(a, b)
    assert len(every.by_columns) == 20
    for chosen, score in every.by_columns.items():
        assert k_marginal(a, b, columns=list(chosen)).score == pytest.approx(score)
    some = k_marginal(a, b, n_draws=7, rng=rng)
    assert len(some.by_columns) == 7
    assert some.score == pytest.approx(np.mean([every.by_columns[chosen] for chosen in some.by_columns]))
    wide = rng.normal(size=(9, 100))
    assert len(k_marginal(wide, wide, k=4, n_draws=5, rng=rng).by_columns) == 5


def test_coefficients_are_statsmodels():
    a, b = skewed(200, 0) * [1, 1e5, 1], skewed(150, 1) * [1, 1e5, 1]
    ours, theirs = (sm.OLS(t[:, 2], sm.add_constant(t[:, :2])).fit() for t in (a, b))
    found = standardised_differences(a, b, "x3", ["x1", "x2"])
    np.testing.assert_allclose(found, np.abs(ours.params - theirs.params) / ours.bse, rtol=1e-6)
    holdout = skewed(70, 2) * [1, 1e5, 1]
    wanted = np.sqrt(np.mean((holdout[:, 2] - theirs.predict(sm.add_constant(holdout[:, :2]))) ** 2))
    assert normalised_rmse(b, holdout, "x3", ["x1", "x2"]) == pytest.approx(wanted / holdout[:, 2].std(ddof=1))


def test_levels_enter_a_regression_as_indicators():
    original, synthetic = mixed(200, 0), mixed(150, 1)
    found = standardised_differences(original, synthetic, "x", ["a"])
    assert list(found.index) == ["intercept", "a=v", "a=w"]
    means, mean_u = original.groupby("a")["x"].mean(), synthetic.groupby("a")["x"].mean()["u"]
    variance = original["x"].sub(original["a"].map(means)).pow(2).sum() / 197 / (original["a"] == "u").sum()
    assert found["intercept"] == pytest.approx(abs(means["u"] - mean_u) / np.sqrt(variance))
    # a level that the set lacks can't be told, and is predicted as the first
    less = synthetic[synthetic["a"] != "w"]
    assert standardised_differences(original, less, "x", ["a"]).isna().tolist() == [False, False, True]
    assert normalised_rmse(less, original, "x", ["a"]) < 1.2


def test_records_with_missing_numbers_are_left_out():
    a, b = skewed(50, 0), skewed(50, 1)
    gaps = [np.vstack([t, [np.nan, 1, 1], [1, 1, np.nan]]) for t in (a, b)]
    found, wanted = (standardised_differences(*tables, "x3", ["x1"]) for tables in (gaps, (a, b)))
    pd.testing.assert_series_equal(found, wanted)


def test_a_resample_is_about_one_standard_error_off():
    # 100 draws of |N(0, 1)|, mean 0.80, standard deviation 0.60: 0.3 is 5 standard errors
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 1))
    original = np.hstack([x, 2 * x + rng.normal(size=(300, 1))])
    slope = reference(lambda a, b: standardised_differences(a, b, "x2", ["x1"])["x1"], original, n_draws=100, rng=rng)
    assert slope == pytest.approx(np.sqrt(2 / np.pi), abs=0.3)


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
    refuses("outcome 'a' must be numeric", normalised_rmse, mixed(9, 0), mixed(9, 1), "a", ["x"])
    refuses("outcome 'x1' must take at least two values", normalised_rmse, a, flat, "x1", ["x2"])


def test_tables_are_matched_by_name():
    frame = pd.DataFrame({"b": [1, 2], "a": ["u", None]})
    b, a = paired(frame, frame[["a", "b"]])
    assert (b.name, b.levels, a.levels, a.original.tolist()) == ("b", None, ("u", "missing"), [0, 1])
    assert [pair.name for pair in paired(np.ones((2, 2)), frame.assign(a=1.0))] == ["b", "a"]
    assert [pair.name for pair in paired(np.ones(3), np.ones((2, 1)))] == ["x1"]


def test_tables_that_dont_match_are_refused():
    frame = pd.DataFrame({"a": [12345.0], "b": ["secret"]})
    for original, synthetic, message in [
        (frame, frame[:0], "synthetic table must have at least one record"),
        (frame[:0], frame, "original table must have at least one record"),
        (frame, frame[["a"]], "column 'b' is not in the synthetic"),
        (frame[["a"]], frame, "column 'b' is not in the original"),
        (frame, frame.assign(a="u"), "column 'a' must be numeric in both"),
        (frame, frame.assign(a=np.inf), "column 'a' must hold finite"),
        (frame, np.ones((3, 3)), "same number of columns"),
        (np.ones((2, 2, 2)), frame, "records by columns"),
        (frame[[]], frame[[]], "at least one column"),
        (frame[["a", "a"]], frame, "name each column once"),
    ]:
        said = refuses(message, paired, original, synthetic)
        assert "12345" not in said
        assert "secret" not in said
    for n_draws, table in [(0, frame), (1, frame[:0])]:
        refuses("", reference, lambda a, b: 0.0, table, n_draws=n_draws)
