"""Chi-square tests on all pairs, against scipy and numbers worked by hand."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from tables import schema_of, table_of

from pdips.errors import InputError
from pdips.evaluation.margins import CATEGORIES, chi_square, combine_chi_square, pearson


def linked(n: int, seed: int) -> pd.DataFrame:
    """Columns a and b agree most of the time, c goes its own way."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 3, n)
    b = np.where(rng.random(n) < 0.5, a, rng.integers(0, 3, n))
    return pd.DataFrame({"a": a, "b": b, "c": rng.integers(0, 2, n)})


def test_p_values_of_the_table_are_scipys():
    schema = schema_of(3, 3, 2)
    frame = linked(500, 0)
    found = chi_square(table_of(frame.to_numpy(), schema), [frame], rng=np.random.default_rng(0))
    wanted = [
        stats.chi2_contingency(pd.crosstab(frame[a], frame[b]), correction=False).pvalue
        for a, b in combinations("abc", 2)
    ]
    np.testing.assert_allclose(found.p_original, wanted, rtol=1e-10)
    np.testing.assert_allclose(found.p_synthetic, wanted, rtol=1e-10)  # a single set: its own
    assert found.pairs == [("a", "b"), ("a", "c"), ("b", "c")]
    assert found.consistency == {0.01: 1.0, 0.05: 1.0, 0.10: 1.0}


def test_combining_by_hand():
    # roots 4, 5, 6: r = 4/3; mean 77/3; D = (77/6 - 2 * 4/3) / (7/3) = 61/14; v = 2^-1 * 2 * (7/4)^2 = 3.0625.
    # The upper tail of F(2, v) at D is (1 + 2 D / v)^(-v / 2).
    assert combine_chi_square([16, 25, 36], 2) == pytest.approx((1 + 2 * (61 / 14) / 3.0625) ** (-3.0625 / 2))


def test_sets_that_agree_or_say_nothing():
    assert combine_chi_square([7.0], 3) == pytest.approx(stats.chi2.sf(7, 3))
    assert combine_chi_square([7.0, 7.0, 7.0], 3) == pytest.approx(stats.chi2.sf(7, 3))
    assert combine_chi_square([1, 4, 9], 2) == 1.0  # roots 1, 2, 3: D is below 0


@pytest.mark.parametrize(
    ("statistics", "df", "message"),
    [([], 1, "at least one"), ([-1.0], 1, "not negative"), ([np.nan], 1, "finite"), ([1.0], 0, "df")],
)
def test_refusals(statistics, df, message):
    with pytest.raises(InputError, match=message):
        combine_chi_square(statistics, df)


def test_empty_levels_are_left_out():
    counts = np.array([[10.0, 0, 20], [5, 0, 40], [0, 0, 0]])
    wanted = stats.chi2_contingency(counts[:2][:, [0, 2]], correction=False)
    assert pearson(counts) == (pytest.approx(wanted.statistic), wanted.dof)
    assert pearson(np.array([[3.0, 4.0], [0, 0]])) == (0.0, 0)


def test_a_set_without_a_level_enters_at_its_own_p_value():
    schema = schema_of(3, 2)
    full = pd.DataFrame({"a": [0, 1, 2] * 20, "b": [0, 0, 1] * 15 + [1, 0, 0] * 5})
    short = full[full["a"] < 2].reset_index(drop=True)
    short.loc[:3, "b"] = 1
    found = chi_square(table_of(full.to_numpy(), schema), [full, short], rng=np.random.default_rng(0))
    d_full = stats.chi2_contingency(pd.crosstab(full["a"], full["b"]), correction=False).statistic
    p_short = stats.chi2_contingency(pd.crosstab(short["a"], short["b"]), correction=False).pvalue
    wanted = combine_chi_square([d_full, stats.chi2.isf(p_short, 2)], 2)
    np.testing.assert_allclose(found.p_synthetic, [wanted])
    # and with a p-value below all doubles
    sure = pd.DataFrame({"a": [0, 1, 2] * 800, "b": [0, 1, 2] * 800})
    found = chi_square(table_of(sure.to_numpy(), schema_of(3, 3)), [sure, sure[sure["a"] < 2]])
    assert np.isfinite(found.p_synthetic).all()


@pytest.mark.parametrize("records", [[], [(0, 1, 0)], [(0, 0, 0), (0, 1, 0), (0, 1, 1)]])
def test_degenerate_sets_find_no_association(records):
    schema = schema_of(2, 2, 2)
    table = table_of([(i % 2, i % 2, i // 2 % 2) for i in range(200)], schema)
    found = chi_square(table, [pd.DataFrame(records, columns=["a", "b", "c"])], rng=np.random.default_rng(0))
    assert found.p_synthetic[0] == 1.0
    assert found.p_original[0] < 1e-6
    assert found.consistency[0.01] == pytest.approx(2 / 3)


def test_a_single_column_has_no_pairs():
    table = table_of([(0,), (1,)], schema_of(2))
    found = chi_square(table, [pd.DataFrame({"a": [0]})])
    assert found.pairs == []
    assert np.isnan(found.consistency[0.05])
    with pytest.raises(InputError, match="at least one synthetic set"):
        chi_square(table, [])


def test_crosstab_counts_every_pair_once():
    schema = schema_of(3, 3, 2)
    table = table_of(linked(300, 1).to_numpy(), schema)
    found = chi_square(table, [linked(300, seed) for seed in range(2, 7)], rng=np.random.default_rng(0))
    assert found.crosstab.to_numpy().sum() == 3
    assert tuple(found.crosstab.index) == tuple(found.crosstab.columns) == CATEGORIES
    for p, q in zip(found.p_original, found.p_synthetic, strict=True):
        row, column = (CATEGORIES[sum(x > limit for limit in (0.01, 0.05, 0.1))] for x in (p, q))
        assert found.crosstab.loc[row, column] > 0
    assert found.consistency[0.01] == pytest.approx(np.mean((found.p_original <= 0.01) == (found.p_synthetic <= 0.01)))


def test_noise_that_hides_an_association_is_seen():
    schema = schema_of(3, 3, 2)
    table = table_of(linked(500, 0).to_numpy(), schema)
    rng = np.random.default_rng(0)
    noise = [pd.DataFrame({"a": rng.integers(0, 3, 500), "b": rng.integers(0, 3, 500), "c": 0}) for _ in range(5)]
    good = chi_square(table, [linked(500, seed) for seed in range(1, 6)], rng=rng)
    assert good.p_synthetic[0] < 0.01 < chi_square(table, noise, rng=rng).p_synthetic[0]
    assert set(good.reference) == {0.01, 0.05, 0.10}
