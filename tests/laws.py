"""Statistical checks that the tests share. Their error rates are stated where they are
used.
"""

from collections.abc import Callable
from math import comb

import numpy as np
import pytest
from scipy import stats
from tables import schema_of, table_of

from pdips.privacy.replay import exact_law

# A true law fails a check with this probability; the seed is fixed, so it does so
# always or never
ACCEPT = 1e-6
REJECT = 1e-9  # A broken twin must score below this


def chi_square(
    draws: np.ndarray,
    pmf: Callable[[np.ndarray], np.ndarray],
    *,
    expected: float = 30.0,
) -> float:
    """Return the p-value of integer draws under a law, pooled into cells that expect at
    least ``expected`` each.
    """
    values = np.arange(draws.min() - 1, draws.max() + 2)
    counts = np.bincount(draws - values[0], minlength=len(values))
    probabilities = pmf(values)
    pooled_counts, pooled_expected, seen, hoped = [], [], 0.0, 0.0
    for count, probability in zip(counts, probabilities, strict=True):
        seen, hoped = seen + count, hoped + probability * len(draws)
        if hoped >= expected:
            pooled_counts.append(seen)
            pooled_expected.append(hoped)
            seen, hoped = 0.0, 0.0
    pooled_counts.append(seen)
    pooled_expected.append(len(draws) - sum(pooled_expected))
    if pooled_expected[-1] < expected and len(pooled_expected) > 1:
        for pooled in (pooled_counts, pooled_expected):
            rest = pooled.pop()
            pooled[-1] += rest
    return float(stats.chisquare(pooled_counts, pooled_expected).pvalue)


def two_samples(a: np.ndarray, b: np.ndarray, n_cells: int = 40) -> float:
    """Return the p-value of two integer samples having one law, on cells of about equal
    frequency.
    """
    edges = np.unique(
        np.quantile(np.concatenate([a, b]), np.linspace(0, 1, n_cells + 1)[1:-1])
    )
    table = [
        np.bincount(np.searchsorted(edges, sample), minlength=len(edges) + 1)
        for sample in (a, b)
    ]
    return float(
        stats.chi2_contingency(np.array(table)[:, np.sum(table, axis=0) > 0]).pvalue
    )


def p_value(counts, probabilities) -> float:
    """Return the p-value of counts under a law."""
    return float(
        stats.chisquare(counts, np.asarray(probabilities) * np.sum(counts)).pvalue
    )


def seen(found, outcomes) -> tuple[list[int], np.ndarray]:
    """Return how often each outcome of an exact law was found, and its probability."""
    probabilities = np.exp([outcome.log_probability for outcome in outcomes])
    assert abs(probabilities.sum() - 1) < 1e-6
    return [
        found[outcome.key] for outcome in outcomes
    ], probabilities / probabilities.sum()


def assert_law(
    mechanism, records, n_levels: int, logpmf: Callable[[np.ndarray], float]
) -> None:
    """Check the exact law of the counts that a mechanism draws from records of one
    column: each outcome is there.
    """
    outcomes = exact_law(mechanism, table_of(records, schema_of(n_levels))).outcomes
    assert len(outcomes) == comb(len(records) + n_levels - 1, n_levels - 1)
    for outcome in outcomes:
        counts = np.bincount(outcome.key, minlength=n_levels)
        assert outcome.log_probability == pytest.approx(logpmf(counts), abs=1e-9)
