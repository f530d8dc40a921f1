"""SPECKS against scipy's KS distance, scikit-learn's and statsmodels' logistic regression, and by hand."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import BernoulliNB
from tables import random_table, refuses, schema_of, table_of

from pdips import Schema, Table
from pdips.evaluation.encoding import grouped
from pdips.evaluation.logistic import ridge_logistic
from pdips.evaluation.propensity import CLASSIFIERS, indicator_matrix, specks

SIZES = (2, 3, 4)


def skewed(n: int, seed: int, *, weight: float = 1.5) -> pd.DataFrame:
    """Records that prefer low levels of a, and c that leans on b."""
    rng = np.random.default_rng(seed)
    a = (rng.random(n) < 0.3 * weight).astype(int)
    b = rng.integers(0, 3, n)
    return pd.DataFrame({"a": a, "b": b, "c": np.where(rng.random(n) < 0.4, b, rng.integers(0, 4, n))})


def dummies(frame: pd.DataFrame, interactions: bool, drop: dict[str, int]) -> np.ndarray:
    """Indicators one at a time, the plain way."""
    main = {
        name: [(frame[name] == level).to_numpy(float) for level in range(size) if level != drop[name]]
        for name, size in zip("abc", SIZES, strict=True)
    }
    columns = [column for block in main.values() for column in block]
    if interactions:
        columns += [u * v for i, j in ("ab", "ac", "bc") for u in main[i] for v in main[j]]
    return np.column_stack(columns)


def test_without_a_penalty_it_is_maximum_likelihood():
    a, b = skewed(400, 0), skewed(300, 1, weight=0.8)
    rows, n_a, n_b = grouped(a.to_numpy(), b.to_numpy(), SIZES)
    features = indicator_matrix(rows, SIZES, n_a + n_b, interactions=False)
    _, found = ridge_logistic(features, n_a, n_b, ridge=0.0)
    x = sm.add_constant(features.toarray())
    model = sm.GLM(np.column_stack([n_b, n_a]), x, family=sm.families.Binomial()).fit()
    np.testing.assert_allclose(found, x @ model.params, atol=1e-4)


def test_more_coefficients_than_records_make_the_same_fit():
    rng = np.random.default_rng(2)
    rows, n_a, n_b = rng.integers(0, 9, (30, 3)), *rng.integers(1, 4, (2, 30)).astype(float)
    features = indicator_matrix(rows, (9, 9, 9), n_a + n_b, interactions=True)
    assert features.shape[1] > features.shape[0]
    coefficients, odds = ridge_logistic(features, n_a, n_b)
    x, y = np.repeat(features.toarray(), 2, axis=0), np.tile([0, 1], 30)
    weights = np.column_stack([n_a, n_b]).ravel()
    model = LogisticRegression(C=100, solver="newton-cg", tol=1e-10, max_iter=999).fit(x, y, sample_weight=weights)
    np.testing.assert_allclose(coefficients, model.coef_[0], atol=1e-4)
    np.testing.assert_allclose(odds, features @ coefficients + model.intercept_[0], atol=1e-4)
    assert np.abs(coefficients).max() > 0.1


@pytest.mark.parametrize("interactions", [False, True])
@pytest.mark.parametrize("separated", [False, True])
def test_specks_is_the_ks_distance_of_scikit_learns_scores(interactions, separated):
    a, b = skewed(400, 0), skewed(300, 1, weight=0.8)
    if separated:
        b = b[b["c"] != 2]
    both = pd.concat([a, b])
    drop = {name: int(both[name].value_counts().idxmax()) for name in "abc"}
    x = dummies(both, interactions, drop)
    y = np.repeat([0, 1], [len(a), len(b)])
    model = LogisticRegression(C=100, solver="newton-cg", tol=1e-9, max_iter=999).fit(x, y)  # C = 1 / ridge
    rows, n_a, n_b = grouped(a.to_numpy(), b.to_numpy(), SIZES)
    _, odds = ridge_logistic(indicator_matrix(rows, SIZES, n_a + n_b, interactions=interactions), n_a, n_b)
    theirs = model.decision_function(dummies(pd.DataFrame(rows, columns=list("abc")), interactions, drop))
    np.testing.assert_allclose(odds, theirs, atol=2e-3)
    assert np.abs(1.01 * odds - theirs).max() > 5e-3  # the broken twin, which no distance of ranks shows
    scores = np.round(model.predict_proba(x)[:, 1], 6)
    wanted = stats.ks_2samp(scores[y == 0], scores[y == 1]).statistic
    classifier = "logistic" if interactions else "main-effects"
    found = specks(Table(a, schema_of(*SIZES)), [b, b], classifier=classifier, rng=np.random.default_rng(0))
    assert found.by_set == (pytest.approx(wanted), pytest.approx(wanted))
    assert found.mean == pytest.approx(wanted)
    assert 0 < found.reference < found.mean


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_equal_tables_can_not_be_told_apart_and_disjoint_ones_can(classifier):
    schema = schema_of(*SIZES)
    frame = skewed(200, 0)
    # twice and thrice the records too: equal shares
    sets = [frame, pd.concat([frame] * 2), pd.concat([frame] * 3)]
    found, again = (
        specks(Table(frame, schema), sets, classifier=classifier, rng=np.random.default_rng(0)) for _ in range(2)
    )
    assert found.by_set == pytest.approx((0, 0, 0))
    assert found.reference == again.reference > 0
    # disjoint ones
    ones = pd.DataFrame({"a": [1] * 30, "b": [1] * 30})
    found = specks(table_of([(0, 0)] * 30, schema_of(2, 2)), [ones], classifier=classifier)
    assert (found.by_set, found.reference) == ((1.0,), 0.0)
    # and a column of one level
    found = specks(table_of([(0,)] * 3, schema_of(1)), [pd.DataFrame({"a": [0]})], classifier=classifier)
    assert (found.by_set, found.reference) == ((pytest.approx(0),), pytest.approx(0))


def test_only_interactions_and_trees_see_what_margins_hide():
    # both tables have the margins 1/2, 1/2; in one the columns agree, in the other they differ
    schema = schema_of(2, 2)
    table, other = table_of([(0, 0), (1, 1)] * 50, schema), pd.DataFrame({"a": [0, 1] * 50, "b": [1, 0] * 50})
    rng = np.random.default_rng(0)
    found = {name: specks(table, [other], classifier=name, rng=rng).mean for name in CLASSIFIERS}
    assert found == {"logistic": 1.0, "main-effects": pytest.approx(0.0), "tree": 1.0}
    table, other = table_of([(0,)] * 30 + [(1,)] * 5, schema_of(2)), pd.DataFrame({"a": [0] * 30 + [1] * 10})
    assert specks(table, [other], classifier="tree").mean == 0.0  # 15 records can't be a leaf


@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_degenerate_sets(classifier):
    table = table_of([(0, 0), (1, 0)] * 20, schema_of(2, 1))
    sets = [pd.DataFrame(rows, columns=["a", "b"]) for rows in ([], [(0, 0)], [(0, 0), (1, 0)])]
    found = specks(table, sets, classifier=classifier, rng=np.random.default_rng(0))
    assert found.by_set[0] == 1.0
    assert 0 <= found.by_set[1] <= 0.5
    assert found.by_set[2] == pytest.approx(0)


def test_any_classifier_with_the_interface_will_do():
    schema = Schema(columns={"a": {"levels": ["x", "y"]}, "pay": {"lower": 0, "upper": 4, "bins": 4}})
    table = Table(pd.DataFrame({"a": ["x", "y"] * 10, "pay": [0.5, 3.5] * 10}), schema)
    synthetic = pd.DataFrame({"a": ["x", "x", "y", "x"] * 5, "pay": [0.5, 1.5, 2.5, 0.1] * 5})
    model = BernoulliNB()
    found = specks(table, [synthetic], classifier=model)
    x = [
        [a == "x", a == "y", int(p)]
        for a, p in zip(*(pd.concat([table.frame, synthetic])[c] for c in ("a", "pay")), strict=True)
    ]
    scores = (
        BernoulliNB().fit(np.array(x, dtype=float), [0] * 20 + [1] * 20).predict_proba(np.array(x, dtype=float))[:, 1]
    )
    assert found.mean == pytest.approx(stats.ks_2samp(np.round(scores[:20], 6), np.round(scores[20:], 6)).statistic)
    assert not hasattr(model, "classes_")  # the caller's object stays as it was


def test_refusals():
    table = random_table(schema_of(2, 2), 5)
    refuses("at least one synthetic set", specks, table, [], classifier="logistic")
    refuses("classifier must be one of", specks, table, [None], classifier="forest")
    refuses("predict_proba", specks, table, [None], classifier=object())
    table = table_of([(0, 0), (1, 1)], Schema(columns={c: {"levels": list(range(101))} for c in "ab"}))
    refuses("10,200 coefficients", specks, table, [table.frame])
    assert specks(table, [table.frame], classifier="main-effects").mean == 0.0
