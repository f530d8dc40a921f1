"""Two tables side by side: margins, by hand and against pandas."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from tables import random_table, refuses, schema_of, table_of

from pdips import Schema, Table
from pdips.evaluation.encoding import (
    cell_ids,
    coded_columns,
    codes_of,
    paired,
    with_decile_bins,
)
from pdips.evaluation.margins import compare, k_way


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_k_way_is_pandas(k):
    def by_pandas(a: pd.DataFrame, b: pd.DataFrame, names: list[str]) -> float:
        shares = [frame.value_counts(names, normalize=True) for frame in (a, b)]
        return float(shares[0].sub(shares[1], fill_value=0).abs().sum() / 2)

    schema = schema_of(2, 3, 4, 2)
    table, others = (
        random_table(schema, 60),
        [random_table(schema, 40, seed).frame for seed in (1, 2)],
    )
    found = k_way(table, others, k)
    wanted = {
        names: np.mean([by_pandas(table.frame, other, list(names)) for other in others])
        for names in combinations("abcd", k)
    }
    assert found["by_margin"] == pytest.approx(wanted, rel=1e-7)
    assert list(found["by_margin"]) == list(wanted)
    assert (found["mean"], found["max"]) == pytest.approx(
        (np.mean([*wanted.values()]), max(wanted.values()))
    )
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
    empty, same, apart = (
        pd.DataFrame(rows, columns=["a", "b"]) for rows in ([], [(0, 0)], [(1, 1)])
    )
    assert compare(table, [empty, same, apart]).l1.by_set == [0.0, 2.0]
    assert k_way(table, [empty], 1)["mean"] == 1.0
    table = table_of(
        [(0, 0), (1, 0)], schema_of(2, 2, impossible=[{"a": [1], "b": [1]}])
    )
    # a set that breaks a structural zero
    assert compare(table, [apart]).l1.by_set == [2.0]
    assert k_way(table_of([(0, 0)], schema_of(1, 1)), [same], 2)["max"] == 0.0


def test_bad_requests():
    table, frame = random_table(schema_of(2, 2), 5), pd.DataFrame({"a": [0], "b": [0]})
    for ask, message in [
        (lambda: k_way(table, [frame], 0), "k must be"),
        (lambda: k_way(table, [frame], 3), "k must be"),
        (lambda: k_way(table, [frame], 1, n_draws=0), "n_draws must be at least 1"),
        (lambda: k_way(table, [], 1), "at least one synthetic set"),
        (
            lambda: coded_columns(Schema(columns={"a": {"lower": 0, "upper": 1}})),
            "levels or bins",
        ),
    ]:
        refuses(message, ask)


def test_codes_take_bins_missing_values_and_the_person_key():
    columns = {
        "a": {"levels": ["x", "y"], "missing": True},
        "pay": {"lower": 0, "upper": 10, "bins": 2},
    }
    columns["free"] = {"lower": 0, "upper": 1}
    schema = Schema(
        columns=columns, records={"person": "id", "max_per_person": 2}, impossible=[]
    )
    frame = pd.DataFrame({"a": ["y", None], "pay": [4.9, 5.0], "free": [0.5, 0.5]})
    assert coded_columns(schema) == ["a", "pay"]
    np.testing.assert_array_equal(codes_of(frame, schema), [[1, 0], [2, 1]])
    np.testing.assert_array_equal(
        codes_of(frame.assign(id=[7, 8]), schema), [[1, 0], [2, 1]]
    )
    assert codes_of(frame.iloc[:0], schema).shape == (0, 2)


@pytest.mark.parametrize("n_columns", [3, 60])
def test_cells_however_many(n_columns):
    sizes = [10] * n_columns
    codes = np.repeat(
        np.random.default_rng(0).integers(0, 10, (20, n_columns)), 3, axis=0
    )
    ids = cell_ids(codes, sizes)
    np.testing.assert_array_equal(
        ids[:, None] == ids, (codes[:, None] == codes).all(axis=2)
    )


def test_some_margins_are_drawn_without_repetition_and_again_alike():
    schema = schema_of(*[2] * 8)
    table, other = random_table(schema, 30), random_table(schema, 30, 1).frame
    every = k_way(table, [other], 3)["by_margin"]
    some, again = (
        k_way(table, [other], 3, n_draws=20, rng=np.random.default_rng(0))["by_margin"]
        for _ in range(2)
    )
    assert some == again == {columns: every[columns] for columns in some}
    assert len(some) == 20
    assert k_way(table, [other], 3, n_draws=56)["by_margin"] == every


# Numeric columns without bins are compared at the table's own deciles


def test_columns_without_bins_are_cut_into_tenths_and_the_others_stay():
    numbers = {
        "pay": {"lower": 0, "upper": 1000},
        "age": {"lower": 0, "upper": 100, "integer": True, "missing": True},
    }
    met = {"type": "date", "lower": "2020-01-01", "upper": "2021-12-31"}
    others = {
        "sex": {"levels": ["f", "m"]},
        "met": met,
        "size": {"lower": 0, "upper": 10, "bins": 2},
    }
    schema = Schema(columns=numbers | others)
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "pay": rng.exponential(50, 1_000).clip(0, 1000),
            "age": rng.integers(20, 30, 1_000),
        }
    )
    frame = frame.assign(
        sex=rng.choice(["f", "m"], 1_000), size=rng.uniform(0, 10, 1_000)
    ).astype({"age": "Int64"})
    frame["met"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(
        np.arange(1_000) // 5, unit="D"
    )
    frame.loc[:99, "age"] = pd.NA
    table = with_decile_bins(Table(frame, schema))
    assert np.bincount(table.codes["pay"]).tolist() == [100] * 10
    # few digits
    assert (
        np.mean([len(f"{edge:g}") for edge in table.schema.columns["pay"].bin_edges])
        < 5
    )
    assert np.abs(np.bincount(table.codes["met"]) - 100).max() <= 5  # whole days
    assert table.schema.columns["age"].n_values < 11  # whole numbers, each edge once
    assert table.schema.columns["size"] == schema.columns["size"]
    found = compare(table, [frame, frame.assign(pay=0.0)])
    # none, and 9 of 10 records apart
    assert found.one_way[0].distance == pytest.approx(0.45)
    assert found.two_way.columns == ["pay", "age", "sex", "met", "size"]
    assert with_decile_bins(table) is table  # all of its columns have bins
    table = Table(
        pd.DataFrame({"pay": [0.0] * 5}),
        Schema(columns={"pay": {"lower": 0, "upper": 1}}),
    )
    assert with_decile_bins(table).schema.columns["pay"].n_values == 1


def test_tables_are_matched_by_name():
    frame = pd.DataFrame({"b": [1, 2], "a": ["u", None]})
    b, a = paired(frame, frame[["a", "b"]])
    assert (b.name, b.levels, a.levels, a.original.tolist()) == (
        "b",
        None,
        ("u", "missing"),
        [0, 1],
    )
    assert [pair.name for pair in paired(np.ones((2, 2)), frame.assign(a=1.0))] == [
        "b",
        "a",
    ]
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
