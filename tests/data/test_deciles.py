"""Numeric columns without bins are compared at the table's own deciles."""

import numpy as np
import pandas as pd
import pytest

from pdips import Schema, Table
from pdips.evaluation.encoding import with_decile_bins
from pdips.evaluation.margins import compare


def test_columns_without_bins_are_cut_into_tenths_and_the_others_stay():
    schema = Schema.model_validate(
        {
            "columns": {
                "pay": {"lower": 0, "upper": 1000},
                "age": {"lower": 0, "upper": 100, "integer": True, "missing": True},
                "sex": {"levels": ["f", "m"]},
                "met": {"type": "date", "lower": "2020-01-01", "upper": "2021-12-31"},
                "size": {"lower": 0, "upper": 10, "bins": 2},
            }
        }
    )
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


def test_a_table_of_one_value_has_a_bin():
    table = Table(
        pd.DataFrame({"pay": [0.0] * 5}), Schema.model_validate({"columns": {"pay": {"lower": 0, "upper": 1}}})
    )
    assert with_decile_bins(table).schema.columns["pay"].n_values == 1


def test_a_table_with_bins_is_left_alone():
    schema = Schema.model_validate({"columns": {"pay": {"lower": 0, "upper": 1, "bins": 3}}})
    table = Table(pd.DataFrame({"pay": [0.0, 0.5]}), schema)
    assert with_decile_bins(table) is table
