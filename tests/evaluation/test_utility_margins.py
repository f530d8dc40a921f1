"""Two tables side by side: margins, distances and linear regressions, by hand and against other code."""

from collections import Counter
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from tables import random_table, refuses, schema_of, skewed, table_of

from pdips import Schema, Table
from pdips.evaluation.distribution import DISTANCES, wasserstein_randomization
from pdips.evaluation.encoding import cell_ids, coded_columns, codes_of, paired, reference, with_decile_bins
from pdips.evaluation.margins import CATEGORIES, bins_of, chi_square, combine_chi_square, compare, k_marginal, k_way
from pdips.evaluation.regression import normalised_rmse, standardised_differences


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_k_way_is_pandas(k):
    def by_pandas(a: pd.DataFrame, b: pd.DataFrame, names: list[str]) -> float:
        shares = [frame.value_counts(names, normalize=True) for frame in (a, b)]
        return float(shares[0].sub(shares[1], fill_value=0).abs().sum() / 2)

    schema = schema_of(2, 3, 4, 2)
    table, others = random_table(schema, 60), [random_table(schema, 40, seed).frame for seed in (1, 2)]
    found = k_way(table, others, k)
    wanted = {
        names: np.mean([by_pandas(table.frame, other, list(names)) for other in others])
        for names in combinations("abcd", k)
    }
    assert found["by_margin"] == pytest.approx(wanted, rel=1e-7)
    assert list(found["by_margin"]) == list(wanted)
    assert (found["mean"], found["max"]) == pytest.approx((np.mean([*wanted.values()]), max(wanted.values())))
    report = compare(table, others, np.random.default_rng(0))
    if k == 4:
        assert report.l1.mean == pytest.approx(2 * found["mean"])
    if k == 2:
        assert report.two_way.distance[0][2] == pytest.approx(wanted["a", "c"])


def test_by_hand_and_degenerate_sets():
    table = table_of([(0, 0), (0, 1), (1, 0), (1, 1)], schema_of(2, 2))
    synthetic = pd.DataFrame({"a": [0, 0, 0, 1], "b": [0, 0, 1, 1]})
    # a: 1/2, 1/2 against 3/4, 1/4; b: equal; cells: 1/4 each against 1/2, 1/4, 0, 1/4
    assert k_way(table, [synthetic], 1)["by_margin"] == {("a",): 0.25, ("b",): 0.0}
    assert k_way(table, [synthetic], 2)["by_margin"] == {("a", "b"): 0.25}
    assert compare(table, [synthetic]).l1.by_set == [0.5]
    table = table_of([(0, 0), (0, 0)], schema_of(2, 2))
    empty, same, apart = (pd.DataFrame(rows, columns=["a", "b"]) for rows in ([], [(0, 0)], [(1, 1)]))
    assert compare(table, [empty, same, apart]).l1.by_set == [0.0, 2.0]
    assert k_way(table, [empty], 1)["mean"] == 1.0
    table = table_of([(0, 0), (1, 0)], schema_of(2, 2, impossible=[{"a": [1], "b": [1]}]))
    assert compare(table, [apart]).l1.by_set == [2.0]  # a set that breaks a structural zero
    assert k_way(table_of([(0, 0)], schema_of(1, 1)), [same], 2)["max"] == 0.0


def test_bad_requests():
    table, frame = random_table(schema_of(2, 2), 5), pd.DataFrame({"a": [0], "b": [0]})
    for ask, message in [
        (lambda: k_way(table, [frame], 0), "k must be"),
        (lambda: k_way(table, [frame], 3), "k must be"),
        (lambda: k_way(table, [frame], 1, n_draws=0), "n_draws must be at least 1"),
        (lambda: k_way(table, [], 1), "at least one synthetic set"),
        (lambda: chi_square(table, []), "at least one synthetic set"),
        (lambda: coded_columns(Schema(columns={"a": {"lower": 0, "upper": 1}})), "levels or bins"),
    ]:
        refuses(message, ask)


def test_codes_take_bins_missing_values_and_the_person_key():
    columns = {"a": {"levels": ["x", "y"], "missing": True}, "pay": {"lower": 0, "upper": 10, "bins": 2}}
    columns["free"] = {"lower": 0, "upper": 1}
    schema = Schema(columns=columns, records={"person": "id", "max_per_person": 2}, impossible=[])
    frame = pd.DataFrame({"a": ["y", None], "pay": [4.9, 5.0], "free": [0.5, 0.5]})
    assert coded_columns(schema) == ["a", "pay"]
    np.testing.assert_array_equal(codes_of(frame, schema), [[1, 0], [2, 1]])
    np.testing.assert_array_equal(codes_of(frame.assign(id=[7, 8]), schema), [[1, 0], [2, 1]])
    assert codes_of(frame.iloc[:0], schema).shape == (0, 2)


@pytest.mark.parametrize("n_columns", [3, 60])
def test_cells_however_many(n_columns):
    sizes = [10] * n_columns
    codes = np.repeat(np.random.default_rng(0).integers(0, 10, (20, n_columns)), 3, axis=0)
    ids = cell_ids(codes, sizes)
    np.testing.assert_array_equal(ids[:, None] == ids, (codes[:, None] == codes).all(axis=2))


def test_some_margins_are_drawn_without_repetition_and_again_alike():
    schema = schema_of(*[2] * 8)
    table, other = random_table(schema, 30), random_table(schema, 30, 1).frame
    every = k_way(table, [other], 3)["by_margin"]
    some, again = (k_way(table, [other], 3, n_draws=20, rng=np.random.default_rng(0))["by_margin"] for _ in range(2))
    assert some == again == {columns: every[columns] for columns in some}
    assert len(some) == 20
    assert k_way(table, [other], 3, n_draws=56)["by_margin"] == every


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
    found = chi_square(table_of(frame.to_numpy(), schema), [frame], rng=np.random.default_rng(0))
    wanted = [by_scipy(frame[[a, b]]).pvalue for a, b in combinations("abc", 2)]
    np.testing.assert_allclose(found.p_original, wanted, rtol=1e-10)
    np.testing.assert_allclose(found.p_synthetic, wanted, rtol=1e-10)  # a single set: its own
    assert found.pairs == [("a", "b"), ("a", "c"), ("b", "c")]
    assert found.consistency == {0.01: 1.0, 0.05: 1.0, 0.10: 1.0}


def test_combining_by_hand():
    # roots 4, 5, 6: r = 4/3; mean 77/3; D = (77/6 - 2 * 4/3) / (7/3) = 61/14; v = 2^-1 * 2 * (7/4)^2 = 3.0625.
    # The upper tail of F(2, v) at D is (1 + 2 D / v)^(-v / 2).
    assert combine_chi_square([16, 25, 36], 2) == pytest.approx((1 + 2 * (61 / 14) / 3.0625) ** (-3.0625 / 2))
    assert combine_chi_square([7.0], 3) == pytest.approx(stats.chi2.sf(7, 3))
    assert combine_chi_square([7.0, 7.0, 7.0], 3) == pytest.approx(stats.chi2.sf(7, 3))
    assert combine_chi_square([1, 4, 9], 2) == 1.0  # roots 1, 2, 3: D is below 0


def test_a_set_without_a_level_enters_at_its_own_p_value():
    schema = schema_of(3, 2)
    full = pd.DataFrame({"a": [0, 1, 2] * 20, "b": [0, 0, 1] * 15 + [1, 0, 0] * 5})
    short = full[full["a"] < 2].reset_index(drop=True)
    short.loc[:3, "b"] = 1
    found = chi_square(table_of(full.to_numpy(), schema), [full, short], rng=np.random.default_rng(0))
    statistics = [by_scipy(full).statistic, stats.chi2.isf(by_scipy(short).pvalue, 2)]
    np.testing.assert_allclose(found.p_synthetic, [combine_chi_square(statistics, 2)])
    # and with a p-value below all doubles
    sure = pd.DataFrame({"a": [0, 1, 2] * 800, "b": [0, 1, 2] * 800})
    found = chi_square(table_of(sure.to_numpy(), schema_of(3, 3)), [sure, sure[sure["a"] < 2]])
    assert np.isfinite(found.p_synthetic).all()


@pytest.mark.parametrize("records", [[], [(0, 1, 0)], [(0, 0, 0), (0, 1, 0), (0, 1, 1)]])
def test_degenerate_sets_find_no_association(records):
    table = table_of([(i % 2, i % 2, i // 2 % 2) for i in range(200)], schema_of(2, 2, 2))
    found = chi_square(table, [pd.DataFrame(records, columns=["a", "b", "c"])], rng=np.random.default_rng(0))
    assert found.p_synthetic[0] == 1.0
    assert found.p_original[0] < 1e-6
    assert found.consistency[0.01] == pytest.approx(2 / 3)


def test_a_single_column_has_no_pairs():
    table = table_of([(0,), (1,)], schema_of(2))
    found = chi_square(table, [pd.DataFrame({"a": [0]})])
    assert found.pairs == []
    assert np.isnan(found.consistency[0.05])


def test_crosstab_counts_every_pair_once():
    table = table_of(linked(300, 1).to_numpy(), schema_of(3, 3, 2))
    found = chi_square(table, [linked(300, seed) for seed in range(2, 7)], rng=np.random.default_rng(0))
    assert found.crosstab.to_numpy().sum() == 3
    assert set(found.reference) == {0.01, 0.05, 0.10}
    assert tuple(found.crosstab.index) == tuple(found.crosstab.columns) == CATEGORIES
    for p, q in zip(found.p_original, found.p_synthetic, strict=True):
        row, column = (CATEGORIES[sum(x > limit for limit in (0.01, 0.05, 0.1))] for x in (p, q))
        assert found.crosstab.loc[row, column] > 0
    assert found.consistency[0.01] == pytest.approx(np.mean((found.p_original <= 0.01) == (found.p_synthetic <= 0.01)))


# Numeric columns without bins are compared at the table's own deciles


def test_columns_without_bins_are_cut_into_tenths_and_the_others_stay():
    numbers = {"pay": {"lower": 0, "upper": 1000}, "age": {"lower": 0, "upper": 100, "integer": True, "missing": True}}
    met = {"type": "date", "lower": "2020-01-01", "upper": "2021-12-31"}
    others = {"sex": {"levels": ["f", "m"]}, "met": met, "size": {"lower": 0, "upper": 10, "bins": 2}}
    schema = Schema(columns=numbers | others)
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"pay": rng.exponential(50, 1_000).clip(0, 1000), "age": rng.integers(20, 30, 1_000)})
    frame = frame.assign(sex=rng.choice(["f", "m"], 1_000), size=rng.uniform(0, 10, 1_000)).astype({"age": "Int64"})
    frame["met"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(1_000) // 5, unit="D")
    frame.loc[:99, "age"] = pd.NA
    table = with_decile_bins(Table(frame, schema))
    assert np.bincount(table.codes["pay"]).tolist() == [100] * 10
    assert np.mean([len(f"{edge:g}") for edge in table.schema.columns["pay"].bin_edges]) < 5  # few digits
    assert np.abs(np.bincount(table.codes["met"]) - 100).max() <= 5  # whole days
    assert table.schema.columns["age"].n_values < 11  # whole numbers, each edge once
    assert table.schema.columns["size"] == schema.columns["size"]
    found = compare(table, [frame, frame.assign(pay=0.0)])
    assert found.one_way[0].distance == pytest.approx(0.45)  # none, and 9 of 10 records apart
    assert found.two_way.columns == ["pay", "age", "sex", "met", "size"]
    assert with_decile_bins(table) is table  # all of its columns have bins
    table = Table(pd.DataFrame({"pay": [0.0] * 5}), Schema(columns={"pay": {"lower": 0, "upper": 1}}))
    assert with_decile_bins(table).schema.columns["pay"].n_values == 1


# Wasserstein randomization, k-marginal scores and linear regressions, for tables without a schema


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
    gap = np.where(a == a[1, 1], np.nan, a)
    for measure, tables, options, message in [
        (randomised, (a, a), {"distance": "energy"}, "distance must"),
        (randomised, (a, a), {"n_permutations": 0}, "at least 1"),
        (randomised, (mixed(5, 0), mixed(5, 1)), {}, "column 'a' must be numeric"),
        (randomised, (a, gap), {"distance": "sliced"}, "column 'x2' must have no missing"),
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
