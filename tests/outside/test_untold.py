"""What a release doesn't tell of numbers without bins is in the intervals of ``ask``:
what caps hide from noisy products, and where numbers are within counted intervals.

Noise has fixed seeds, and the tables are made. Of six intervals of 95 % that are right,
four or fewer would hold the table's mean with probability .03; the broken twins hold it
in three at most.
"""

import numpy as np
import pandas as pd
import pytest

import pdips
from pdips import Margins, Schema, Table
from pdips.outside import asking, set_analyses
from pdips.outside.answer import PRODUCTS, SETS
from pdips.outside.counted_intervals import CountedIntervals, counted_intervals

N_RELEASES = 6
SKEWED = Schema.model_validate(
    {
        "columns": {
            "spent": {"lower": 0, "upper": 1_000},
            "age": {"lower": 0, "upper": 100, "integer": True},
            "owns": {"levels": ["no", "yes"]},
        }
    }
)
ROUNDED = Schema.model_validate(
    {
        "columns": {
            "school": {"lower": 0, "upper": 20, "missing": True},
            "pay": {"lower": 0, "upper": 50, "missing": True},
            "sex": {"levels": ["f", "m"]},
        }
    }
)


def skewed() -> pd.DataFrame:
    """Most spend little, and few much."""
    rng = np.random.default_rng(0)
    spent = np.clip(np.exp(rng.normal(4, 1.2, 1_500)), 0, 1_000)
    age = rng.integers(18, 80, 1_500)
    owns = rng.choice(["no", "yes"], 1_500)
    return pd.DataFrame({"spent": spent, "age": age, "owns": owns})


def rounded() -> pd.DataFrame:
    """Years of school are whole but for a few, and pay is missing for many."""
    rng = np.random.default_rng(1)
    school = np.clip(np.round(rng.normal(12, 3, 4_000)), 0, 20)
    school[:200] += 0.3
    school = np.clip(school, 0, 20)
    pay = np.where(rng.random(4_000) < 0.3, np.nan, rng.gamma(4, 4, 4_000).clip(0, 50))
    school[rng.random(4_000) < 0.03] = np.nan
    sex = rng.choice(["f", "m"], 4_000)
    return pd.DataFrame({"school": school, "pay": pay, "sex": sex})


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Releases of both tables, without options."""
    made = {}
    for name, frame, schema in (
        ("skewed", skewed(), SKEWED),
        ("rounded", rounded(), ROUNDED),
    ):
        table = Table(frame, schema)
        opened = []
        for seed in range(N_RELEASES):
            folder = tmp_path_factory.mktemp(name)
            release, _ = Margins(epsilon=1, n_sets=5).release(
                table, rng=np.random.default_rng(seed)
            )
            release.publish(folder / "public", allow=["seeded"])
            opened.append(pdips.open(folder))
        made[name] = opened
    return made


def n_held(opened, question: str, truth: float, source: str) -> int:
    """How many of the intervals hold the truth."""
    rows = [public.ask(question).summary().iloc[0] for public in opened]
    assert {row["source"] for row in rows} == {source}
    return sum(row["lower"] <= truth <= row["upper"] for row in rows)


@pytest.mark.slow
def test_means_of_products_are_those_of_numbers_without_caps(folders, monkeypatch):
    opened = folders["skewed"]
    truth = skewed()["spent"].mean()
    assert n_held(opened, "mean(spent)", truth, PRODUCTS) >= N_RELEASES - 1
    assert "between their caps alone" in repr(opened[0].ask("mean(spent)"))
    # the mean of a column is between its bounds
    rows = opened[0].ask("mean(spent)").summary()
    assert rows["lower"].iloc[0] >= 0
    # the broken twin: numbers beyond their caps count as these
    monkeypatch.setattr(asking, "with_what_caps_hide", lambda answer, *_given: answer)
    assert n_held(opened, "mean(spent)", truth, PRODUCTS) <= N_RELEASES // 2


@pytest.mark.slow
def test_rounded_numbers_are_within_the_intervals_of_sets(folders, monkeypatch):
    opened = folders["rounded"]
    truth = rounded()["school"].mean()
    assert n_held(opened, "mean(school)", truth, SETS) >= N_RELEASES - 1
    # the broken twin: numbers are even within intervals, for sure
    monkeypatch.setattr(set_analyses, "counted_intervals", lambda _: {})
    assert n_held(opened, "mean(school)", truth, SETS) <= N_RELEASES // 2


@pytest.mark.slow
def test_intervals_of_a_folder_are_those_that_were_counted(folders):
    public = folders["rounded"][0]
    found = counted_intervals(public)
    assert {*found} == {"school", "pay"}
    for frame in public.sets[:2]:
        for name, intervals in found.items():
            values = frame[name].to_numpy(np.float64)
            low, high = intervals.ends(values)
            known = ~np.isnan(values)
            assert (np.isnan(low) == ~known).all()
            assert (low[known] <= values[known]).all()
            assert (values[known] <= high[known]).all()


def test_ends_are_those_of_the_narrowest_interval():
    whole = (np.array([0.0, 10, 20]), np.array([10.0, 20, 20]))
    finer = (np.array([10.0, 15]), np.array([15.0, 20]))
    values = np.array([3.0, 10, 17, 20, np.nan])
    low, high = CountedIntervals((whole, finer), is_whole=False).ends(values)
    np.testing.assert_array_equal(low, [0, 10, 15, 20, np.nan])
    np.testing.assert_array_equal(high, [10, 15, 20, 20, np.nan])
    _, last = CountedIntervals((whole, finer), is_whole=True).ends(values)
    np.testing.assert_array_equal(last, [9, 14, 19, 20, np.nan])
