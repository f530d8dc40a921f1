"""Levels that are exchanged until their counts are wanted ones: of many places some are
tried.
"""

import numpy as np
import pytest

from pdips.margins import consistency
from pdips.margins.consistency import levelled

N = 20_000
WANTED = np.array([9_900, 8_050, 2_050])


def levels() -> np.ndarray:
    return np.repeat(np.arange(3), [10_000, 8_000, 2_000])


def of_likely(some: np.ndarray, level: int) -> np.ndarray:
    """A gain by which one place in ten is e^5 times as likely as another."""
    return np.where(some % 10 == 3, 5.0, 0.0)


def test_counts_are_the_wanted_ones_and_few_are_exchanged():
    own = levels()
    found = levelled(own, WANTED, of_likely, np.random.default_rng(1))
    assert np.bincount(found).tolist() == WANTED.tolist()
    assert (found != own).sum() == 100
    assert own.tolist() == levels().tolist()


def test_the_likely_places_are_exchanged_as_when_all_are_tried(monkeypatch):
    """Of 2,000 exchanges by the weights above 94 in 100 are of likely places, and some
    more hundredths fewer where these run out; each is right within 6 standard errors,
    so the chance of a false alarm is below 1e-8. The broken twin exchanges any place.
    """

    def share_of_likely(gain) -> float:
        n_likely = 0
        for seed in range(20):
            rng = np.random.default_rng(seed)
            found = levelled(levels(), WANTED, gain, rng)
            n_likely += (np.flatnonzero(found != levels()) % 10 == 3).sum()
        return n_likely / 2_000

    assert consistency.ALL_TRIED < N / 2
    some = share_of_likely(of_likely)
    twin = share_of_likely(lambda places, level: np.zeros(len(places)))
    monkeypatch.setattr(consistency, "ALL_TRIED", N)
    error = 6 * np.sqrt(0.06 * 0.94 * 2 / 2_000)
    all_tried = share_of_likely(of_likely)
    assert some == pytest.approx(all_tried, abs=error)
    assert twin != pytest.approx(all_tried, abs=error)


def test_all_are_tried_where_few_can_be_exchanged():
    possible = np.arange(9_000, 9_110)

    def gain(some: np.ndarray, level: int) -> np.ndarray:
        return np.where(np.isin(some, possible), 0.0, -np.inf)

    found = levelled(levels(), WANTED, gain, np.random.default_rng(1))
    assert np.bincount(found).tolist() == WANTED.tolist()
    assert np.isin(np.flatnonzero(found != levels()), possible).all()
