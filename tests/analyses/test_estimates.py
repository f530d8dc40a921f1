"""Means and intervals of draws, some of which have no end."""

import numpy as np
import pytest

from pdips.analyses.estimates import summaries

DRAWS = np.linspace(0, 1, 101)


def test_an_interval_ends_where_its_draws_do():
    row = summaries({"x": DRAWS}).loc["x"]
    assert row["estimate"] == pytest.approx(0.5)
    assert (row["lower"], row["upper"]) == pytest.approx((0.025, 0.975))


@pytest.mark.parametrize(
    ("without_end", "lower", "upper"),
    [
        # warnings are errors here: an infinite number less another one gives one
        (np.append(DRAWS, [np.inf] * 10), 0.025, np.inf),
        (np.append(DRAWS, [-np.inf] * 10), -np.inf, 0.975),
        (np.append(DRAWS, [1e300] * 10), 0.025, np.inf),
        (np.full(9, np.inf), -np.inf, np.inf),
        (np.full(9, -np.inf), -np.inf, np.inf),
    ],
)
def test_an_end_without_end_is_open(without_end, lower, upper):
    row = summaries({"x": without_end}).loc["x"]
    assert row["lower"] == pytest.approx(lower, abs=0.03)
    assert row["upper"] == pytest.approx(upper, abs=0.03)
    # its width can be told
    assert (row["upper"] - row["lower"]) / 2 == np.inf
    assert np.isnan(row["estimate"]) or 0 <= row["estimate"] <= 1
