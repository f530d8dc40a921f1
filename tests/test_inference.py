"""The rule that combines synthetic sets, against numbers worked by hand and scipy."""

import numpy as np
import pytest
from scipy import stats

from pdips.errors import InputError
from pdips.inference import combine


def test_by_hand():
    # mean 2; B = 1, W = 0.5, T = 1/3 + 0.5 = 5/6; nu = 2 (1 + 3 * 0.5 / 1)^2 = 12.5
    found = combine([1.0, 2.0, 3.0], [0.5, 0.5, 0.5])
    assert (found.estimate, found.between, found.within) == (2.0, 1.0, 0.5)
    assert found.variance == pytest.approx(5 / 6)
    assert found.degrees_of_freedom == pytest.approx(12.5)
    half = stats.t.ppf(0.975, 12.5) * np.sqrt(5 / 6)
    np.testing.assert_allclose(found.interval, (2 - half, 2 + half))


def test_each_coefficient_is_combined_by_itself():
    together = combine([[1.0, 5.0], [2.0, 5.0], [4.0, 8.0]], [[0.5, 1.0], [0.1, 2.0], [0.2, 4.0]], level=0.9)
    for j, (q, v) in enumerate((([1, 2, 4], [0.5, 0.1, 0.2]), ([5, 5, 8], [1, 2, 4]))):
        alone = combine(q, v, level=0.9)
        for field in ("estimate", "variance", "degrees_of_freedom", "between", "within"):
            assert getattr(together, field)[j] == pytest.approx(float(getattr(alone, field)))
        np.testing.assert_allclose([bound[j] for bound in together.interval], alone.interval)


def test_sets_that_agree_give_a_normal_interval():
    found = combine([2.0, 2.0], [1.0, 1.0])
    assert np.isinf(found.degrees_of_freedom)
    np.testing.assert_allclose(found.interval, (2 - stats.norm.ppf(0.975), 2 + stats.norm.ppf(0.975)))


def test_no_variance_within_leaves_m_minus_1_degrees():
    assert combine([1.0, 2.0, 4.0], [0.0, 0.0, 0.0]).degrees_of_freedom == 2


def test_nothing_varies():
    found = combine([3.0, 3.0], [0.0, 0.0])
    assert found.interval == (3.0, 3.0)


def test_a_coefficient_missing_from_one_set_is_missing():
    found = combine([[1.0, np.nan], [2.0, 1.0]], [[1.0, np.nan], [1.0, 1.0]])
    for values in (found.estimate, found.variance, found.degrees_of_freedom, *found.interval):
        np.testing.assert_array_equal(np.isnan(values), [False, True])


def test_both_rules_are_one_formula():
    assert combine([1.0, 2.0], [1.0, 2.0], rule="partial").interval == combine([1.0, 2.0], [1.0, 2.0]).interval


@pytest.mark.parametrize(
    ("estimates", "variances", "options", "message"),
    [
        ([1.0], [1.0], {}, "at least 2"),
        ([1.0, 2.0], [1.0], {}, "one shape"),
        ([[[1.0]], [[1.0]]], [[[1.0]], [[1.0]]], {}, "one shape"),
        ([1.0, 2.0], [1.0, -1.0], {}, "negative"),
        ([1.0, 2.0], [1.0, 1.0], {"level": 1.0}, "level"),
        ([1.0, 2.0], [1.0, 1.0], {"rule": "rubin"}, "rule must be one of"),
    ],
)
def test_refusals(estimates, variances, options, message):
    with pytest.raises(InputError, match=message):
        combine(estimates, variances, **options)


def coverage(share_of_between: float, seed: int = 1) -> float:
    """How often the interval holds the truth when each set's noise has variance 4 and sampling has 1."""
    rng, m, n_runs = np.random.default_rng(seed), 5, 4_000
    sampled = rng.standard_normal(n_runs)
    q = sampled + 2 * rng.standard_normal((m, n_runs))
    middle = q.mean(axis=0)
    lower, upper = combine(middle + (q - middle) * np.sqrt(share_of_between), np.ones((m, n_runs))).interval
    return float(np.mean((lower <= 0) & (upper >= 0)))


def test_it_covers():
    # 0.95 has a standard error of 0.0034 here
    assert 0.93 < coverage(1.0) < 0.97


def test_forgetting_the_variance_between_sets_would_be_seen():
    # the broken twin
    assert coverage(1e-6) < 0.9
