"""Propensity scores: SPECKS and pMSE by hand, against scikit-learn and statsmodels, and
against their law.
"""

import time

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import BernoulliNB
from tables import random_table, refuses, schema_of, skewed, table_of

from pdips import Schema, Table
from pdips.evaluation import logistic
from pdips.evaluation.encoding import grouped
from pdips.evaluation.propensity import (
    CLASSIFIERS,
    MOST_PMSE_COEFFICIENTS,
    indicator_matrix,
    null_moments,
    pmse,
    specks,
    standardised_pmse,
)

SIZES = (2, 3, 4)


def leaning(n: int, seed: int, *, weight: float = 1.5) -> pd.DataFrame:
    """Records that prefer low levels of a, and c that leans on b."""
    rng = np.random.default_rng(seed)
    a = (rng.random(n) < 0.3 * weight).astype(int)
    b = rng.integers(0, 3, n)
    return pd.DataFrame(
        {"a": a, "b": b, "c": np.where(rng.random(n) < 0.4, b, rng.integers(0, 4, n))}
    )


def with_outliers(n: int, seed: int) -> np.ndarray:
    values = skewed(n, seed)
    values[:20] = np.minimum(values[:20] * 8, 2_000)
    return values


# ---- SPECKS ----


def test_more_coefficients_than_records_make_the_same_fit():
    rng = np.random.default_rng(2)
    rows, n_a, n_b = (
        rng.integers(0, 9, (30, 3)),
        *rng.integers(1, 4, (2, 30)).astype(float),
    )
    features = indicator_matrix(rows, (9, 9, 9), n_a + n_b, interactions=True)
    assert features.shape[1] > features.shape[0]
    coefficients, odds = logistic.ridge_logistic(features, n_a, n_b)
    x, y = np.repeat(features.toarray(), 2, axis=0), np.tile([0, 1], 30)
    weights = np.column_stack([n_a, n_b]).ravel()
    model = LogisticRegression(C=100, solver="newton-cg", tol=1e-10, max_iter=999).fit(
        x, y, sample_weight=weights
    )
    np.testing.assert_allclose(coefficients, model.coef_[0], atol=1e-4)
    np.testing.assert_allclose(
        odds, features @ coefficients + model.intercept_[0], atol=1e-4
    )
    assert np.abs(coefficients).max() > 0.1


@pytest.mark.parametrize("interactions", [False, True])
@pytest.mark.parametrize("separated", [False, True])
def test_specks_is_the_ks_distance_of_scikit_learns_scores(interactions, separated):
    a, b = leaning(400, 0), leaning(300, 1, weight=0.8)
    if separated:
        b = b[b["c"] != 2]
    both = pd.concat([a, b])
    rows, n_a, n_b = grouped(a.to_numpy(), b.to_numpy(), SIZES)

    def dummies(records: np.ndarray) -> np.ndarray:
        """Indicators one at a time, the plain way."""
        main = [
            [
                records[:, j] == level
                for level in range(size)
                if level != both.iloc[:, j].value_counts().idxmax()
            ]
            for j, size in enumerate(SIZES)
        ]
        columns = [column for block in main for column in block]
        if interactions:
            columns += [
                u * v
                for i, j in ((0, 1), (0, 2), (1, 2))
                for u in main[i]
                for v in main[j]
            ]
        return np.column_stack(columns).astype(float)

    x, y = dummies(both.to_numpy()), np.repeat([0, 1], [len(a), len(b)])
    # C = 1 / ridge
    model = LogisticRegression(C=100, solver="newton-cg", tol=1e-9, max_iter=999).fit(
        x, y
    )
    features = indicator_matrix(rows, SIZES, n_a + n_b, interactions=interactions)
    _, odds = logistic.ridge_logistic(features, n_a, n_b)
    theirs = model.decision_function(dummies(rows))
    np.testing.assert_allclose(odds, theirs, atol=1e-4)
    # the broken twin, which no distance of ranks shows
    assert np.abs(1.01 * odds - theirs).max() > 5e-3
    scores = np.round(model.predict_proba(x)[:, 1], 6)
    wanted = stats.ks_2samp(scores[y == 0], scores[y == 1]).statistic
    classifier = "logistic" if interactions else "main-effects"
    found = specks(
        Table(a, schema_of(*SIZES)),
        [b, b],
        classifier=classifier,
        rng=np.random.default_rng(0),
    )
    assert (*found.by_set, found.mean) == pytest.approx((wanted, wanted, wanted))
    assert 0 < found.reference < found.mean


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_equal_tables_can_not_be_told_apart_and_disjoint_ones_can(classifier):
    def found(table: Table, *sets: pd.DataFrame):
        return specks(table, sets, classifier=classifier, rng=np.random.default_rng(0))

    frame = leaning(200, 0)
    table = Table(frame, schema_of(*SIZES))
    # equal shares
    equal = found(table, *(pd.concat([frame] * times) for times in (1, 2, 3)))
    assert equal.by_set == pytest.approx((0, 0, 0))
    assert equal.reference == found(table, frame).reference > 0
    disjoint = found(
        table_of([(0, 0)] * 30, schema_of(2, 2)),
        pd.DataFrame({"a": [1] * 30, "b": [1] * 30}),
    )
    assert (disjoint.by_set, disjoint.reference) == ((1.0,), 0.0)
    # a column of one level
    single = found(table_of([(0,)] * 3, schema_of(1)), pd.DataFrame({"a": [0]}))
    assert (*single.by_set, single.reference) == pytest.approx((0, 0))
    sets = [
        pd.DataFrame(rows, columns=["a", "b"])
        for rows in ([], [(0, 0)], [(0, 0), (1, 0)])
    ]
    none, one, two = found(
        table_of([(0, 0), (1, 0)] * 20, schema_of(2, 1)), *sets
    ).by_set
    assert (none, two) == (1.0, pytest.approx(0))
    assert 0 <= one <= 0.5


def test_only_interactions_and_trees_see_what_margins_hide():
    # both tables have the margins 1/2, 1/2; in one the columns agree, in the other they
    # differ
    schema = schema_of(2, 2)
    table, other = (
        table_of([(0, 0), (1, 1)] * 50, schema),
        pd.DataFrame({"a": [0, 1] * 50, "b": [1, 0] * 50}),
    )
    rng = np.random.default_rng(0)
    found = {
        name: specks(table, [other], classifier=name, rng=rng).mean
        for name in CLASSIFIERS
    }
    assert found == {"logistic": 1.0, "main-effects": pytest.approx(0.0), "tree": 1.0}
    table, other = (
        table_of([(0,)] * 30 + [(1,)] * 5, schema_of(2)),
        pd.DataFrame({"a": [0] * 30 + [1] * 10}),
    )
    # 15 records can't be a leaf
    assert specks(table, [other], classifier="tree").mean == 0.0


def test_any_classifier_with_the_interface_will_do():
    schema = Schema(
        columns={
            "a": {"levels": ["x", "y"]},
            "pay": {"lower": 0, "upper": 4, "bins": 4},
        }
    )
    table = Table(pd.DataFrame({"a": ["x", "y"] * 10, "pay": [0.5, 3.5] * 10}), schema)
    synthetic = pd.DataFrame(
        {"a": ["x", "x", "y", "x"] * 5, "pay": [0.5, 1.5, 2.5, 0.1] * 5}
    )
    model = BernoulliNB()
    found = specks(table, [synthetic], classifier=model)
    both = pd.concat([table.frame, synthetic])
    x = np.column_stack([both["a"] == "x", both["a"] == "y", both["pay"] // 1]).astype(
        float
    )
    scores = np.round(
        BernoulliNB().fit(x, [0] * 20 + [1] * 20).predict_proba(x)[:, 1], 6
    )
    assert found.mean == pytest.approx(
        stats.ks_2samp(scores[:20], scores[20:]).statistic
    )
    assert not hasattr(model, "classes_")  # the caller's object stays as it was


def test_what_specks_refuses():
    table = random_table(schema_of(2, 2), 5)
    refuses("at least one synthetic set", specks, table, [], classifier="logistic")
    refuses("classifier must be one of", specks, table, [None], classifier="forest")
    refuses("predict_proba", specks, table, [None], classifier=object())
    table = table_of(
        [(0, 0), (1, 1)],
        Schema(columns={c: {"levels": list(range(101))} for c in "ab"}),
    )
    refuses("10,200 coefficients", specks, table, [table.frame])
    assert specks(table, [table.frame], classifier="main-effects").mean == 0.0


# ---- pMSE ----


@pytest.mark.parametrize(
    ("original", "synthetic", "cells"),
    [
        ("xxyyz", "xyyzzz", [(3, 1 / 3), (4, 1 / 2), (4, 3 / 4)]),
        # z is synthetic only: its log odds are infinite
        ("xxyyy", "xxxyzz", [(5, 3 / 5), (4, 1 / 4), (2, 1)]),
    ],
)
def test_levels_by_hand_and_half_separated_tables(original, synthetic, cells):
    # p is the level's share of synthetic records; c = 6/11
    wanted = sum(n * (p - 6 / 11) ** 2 for n, p in cells) / 11
    frames = (pd.DataFrame({"a": list(levels)}) for levels in (original, synthetic))
    assert pmse(*frames) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("interactions", [False, True])
def test_it_is_statsmodels(interactions):
    a, b = skewed(700, 0), with_outliers(500, 1)
    x, y = np.vstack([a, b]), np.repeat([0.0, 1.0], [700, 500])
    if interactions:
        x = np.column_stack(
            [x, x[:, 0] * x[:, 1], x[:, 0] * x[:, 2], x[:, 1] * x[:, 2]]
        )
    fit = sm.Logit(y, sm.add_constant((x - x.mean(axis=0)) / x.std(axis=0))).fit(
        disp=0, maxiter=100
    )
    wanted = np.mean((fit.predict() - y.mean()) ** 2)
    assert pmse(a, b, interactions=interactions) == pytest.approx(wanted, rel=1e-6)


def test_interactions_of_levels_are_the_cells():
    # with all products the model is saturated: p is the share in each cell of a by b
    rng = np.random.default_rng(2)
    frames = [
        pd.DataFrame(
            {"a": rng.choice(list("uv"), 200, p=p), "b": rng.choice(list("xyz"), 200)}
        )
        for p in ([0.5, 0.5], [0.3, 0.7])
    ]
    both = pd.concat(frames).assign(y=np.repeat([0.0, 1.0], 200))
    wanted = np.mean((both.groupby(["a", "b"])["y"].transform("mean") - 0.5) ** 2)
    assert pmse(*frames, interactions=True) == pytest.approx(wanted, rel=1e-6)
    assert pmse(*frames) < wanted


def test_neither_units_nor_constant_and_repeated_columns_matter():
    a, b = skewed(300, 0), with_outliers(300, 1)
    scaled = [values * [1e-9, 1.0, 1e9] + [5, -7, 1e9] for values in (a, b)]
    assert pmse(*scaled, interactions=True) == pytest.approx(
        pmse(a, b, interactions=True), rel=1e-5
    )
    wider = [
        np.column_stack([values, np.full(300, 7.0), 2 * values[:, 0] - values[:, 1]])
        for values in (a, b)
    ]
    assert pmse(*wider) == pytest.approx(pmse(a, b), rel=1e-6)
    assert standardised_pmse(*wider).n_coefficients == 4


def test_tables_without_variation_cant_be_told_apart():
    assert pmse(np.ones((9, 2)), np.ones((12, 2))) == pytest.approx(0)


@pytest.mark.parametrize("interactions", [False, True])
def test_separated_tables_reach_the_largest_value(interactions):
    a = skewed(400, 0)
    assert pmse(a, a[:100] + 1_000, interactions=interactions) == pytest.approx(
        0.2 * 0.8, abs=1e-6
    )
    assert pmse(a, np.full((400, 3), 5.0), interactions=interactions) == pytest.approx(
        0.25, abs=1e-6
    )
    assert pmse(np.array([[1.0]]), np.array([[2.0]])) == pytest.approx(0.25, abs=1e-6)


def test_missing_values_are_a_level_or_filled():
    original = pd.DataFrame({"a": [1.0, 1, np.nan, 1], "b": ["u", "u", None, "u"]})
    synthetic = pd.DataFrame(
        {"a": [np.nan, np.nan, 1, np.nan], "b": [None, None, "u", None]}
    )
    assert [
        pmse(original[[name]], synthetic[[name]]) for name in "ab"
    ] == pytest.approx([1 / 16, 1 / 16])


@pytest.mark.parametrize(
    ("n", "m", "interactions", "k"), [(500, 500, True, 7), (250, 750, False, 4)]
)
def test_the_law_under_the_null(n, m, interactions, k):
    # Of sets drawn from the original itself, which is fixed, Kolmogorov-Smirnov against
    # chi-square with k - 1 degrees of freedom: fails by chance with 1e-6
    rng, share, law = np.random.default_rng(7), m / (n + m), stats.chi2(k - 1)
    original, unit = rng.normal(size=(n, 3)), (1 - share) ** 2 * share / (n + m)
    draws = (original[rng.integers(n, size=m)] for _ in range(300))
    scores = (
        np.array([pmse(original, drawn, interactions=interactions) for drawn in draws])
        / unit
    )
    assert stats.kstest(scores, law.cdf).pvalue > 1e-6
    # broken twins: the original taken for random too, c and 1 - c exchanged
    assert stats.kstest(scores * (1 - share), law.cdf).pvalue < 1e-9
    assert (
        share == 0.5
        or stats.kstest(scores * (1 - share) / share, law.cdf).pvalue < 1e-9
    )
    assert null_moments(k, n, m) == pytest.approx((law.mean() * unit, law.std() * unit))


def test_ratio_and_z():
    a, b = skewed(300, 0), with_outliers(250, 1)
    found = standardised_pmse(a, b)
    assert found.pmse == pmse(a, b)
    assert found.expected == pytest.approx(3 * (300 / 550) ** 2 * (250 / 550) / 550)
    assert found.ratio == pytest.approx(found.pmse / found.expected)
    assert found.z == pytest.approx(
        (found.pmse - found.expected) / found.standard_deviation
    )
    assert np.isnan(standardised_pmse(np.ones((5, 1)), np.ones((5, 1))).ratio)


def test_it_is_quick():
    a, b, times = skewed(5_000, 0), with_outliers(5_000, 1), []
    for _ in range(5):
        start = time.process_time()
        pmse(a, b, interactions=True)
        times.append(time.process_time() - start)
    assert min(times) < 0.05


def test_what_pmse_refuses():
    wide = np.random.default_rng(0).normal(size=(5, 70))
    refuses(f"above {MOST_PMSE_COEFFICIENTS:,}", pmse, wide, wide, interactions=True)
