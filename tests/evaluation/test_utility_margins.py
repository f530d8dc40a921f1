"""Codes and k-way margins, against pandas and by hand."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from tables import random_table, schema_of, table_of

from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.evaluation.encoding import cell_ids, coded_columns, codes_of
from pdips.evaluation.margins import compare, k_way, l1


def by_pandas(a: pd.DataFrame, b: pd.DataFrame, names: list[str]) -> float:
    shares = [frame.value_counts(names, normalize=True) for frame in (a, b)]
    return float(shares[0].sub(shares[1], fill_value=0).abs().sum() / 2)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_k_way_is_pandas(k):
    schema = schema_of(2, 3, 4, 2)
    table, others = random_table(schema, 60), [random_table(schema, 40, seed).frame for seed in (1, 2)]
    found = k_way(table, others, k)
    wanted = {
        names: np.mean([by_pandas(table.frame, other, list(names)) for other in others])
        for names in combinations("abcd", k)
    }
    assert list(found["by_margin"]) == list(wanted)
    report = compare(table, others, np.random.default_rng(0))
    assert l1(table, others)["by_set"] == report.l1.by_set
    if k == 2:
        assert found["by_margin"]["a", "c"] == pytest.approx(report.two_way.distance[0][2])
    np.testing.assert_allclose(list(found["by_margin"].values()), list(wanted.values()))
    assert found["mean"] == pytest.approx(np.mean(list(wanted.values())))
    assert found["max"] == pytest.approx(max(wanted.values()))


def test_by_hand():
    schema = schema_of(2, 2)
    table = table_of([(0, 0), (0, 1), (1, 0), (1, 1)], schema)
    synthetic = pd.DataFrame({"a": [0, 0, 0, 1], "b": [0, 0, 1, 1]})
    # a: 1/2, 1/2 against 3/4, 1/4; b: equal; cells: 1/4 each against 1/2, 1/4, 0, 1/4
    assert k_way(table, [synthetic], 1)["by_margin"] == {("a",): 0.25, ("b",): 0.0}
    assert k_way(table, [synthetic], 2)["by_margin"] == {("a", "b"): 0.25}
    assert l1(table, [synthetic]) == {"by_set": [0.5], "mean": 0.5}


def test_degenerate_sets():
    schema = schema_of(2, 2)
    table = table_of([(0, 0), (0, 0)], schema)
    empty, same, apart = (pd.DataFrame(rows, columns=["a", "b"]) for rows in ([], [(0, 0)], [(1, 1)]))
    assert l1(table, [empty, same, apart])["by_set"] == [2.0, 0.0, 2.0]
    assert k_way(table, [empty], 1)["mean"] == 1.0
    one_level = schema_of(1, 1)
    assert k_way(table_of([(0, 0)], one_level), [same], 2)["max"] == 0.0


def test_bad_requests():
    table, frame = random_table(schema_of(2, 2), 5), pd.DataFrame({"a": [0], "b": [0]})
    for ask, message in [
        (lambda: k_way(table, [frame], 0), "k must be"),
        (lambda: k_way(table, [frame], 3), "k must be"),
        (lambda: k_way(table, [frame], 1, n_draws=0), "n_draws must be at least 1"),
        (lambda: k_way(table, [], 1), "at least one synthetic set"),
        (lambda: l1(table, []), "at least one synthetic set"),
        (lambda: coded_columns(Schema.model_validate({"columns": {"a": {"lower": 0, "upper": 1}}})), "levels or bins"),
    ]:
        with pytest.raises(InputError, match=message):
            ask()


def test_codes_take_bins_missing_values_and_the_person_key():
    schema = Schema.model_validate(
        {
            "columns": {
                "a": {"levels": ["x", "y"], "missing": True},
                "pay": {"lower": 0, "upper": 10, "bins": 2},
                "free": {"lower": 0, "upper": 1},
            },
            "records": {"person": "id", "max_per_person": 2},
            "impossible": [],
        }
    )
    frame = pd.DataFrame({"a": ["y", None], "pay": [4.9, 5.0], "free": [0.5, 0.5]})
    assert coded_columns(schema) == ["a", "pay"]
    np.testing.assert_array_equal(codes_of(frame, schema), [[1, 0], [2, 1]])
    np.testing.assert_array_equal(codes_of(frame.assign(id=[7, 8]), schema), [[1, 0], [2, 1]])
    assert codes_of(frame.iloc[:0], schema).shape == (0, 2)


def test_sets_that_break_a_structural_zero_are_measured():
    rule = [{"a": [1], "b": [1]}]
    schema = schema_of(2, 2, impossible=rule)
    table = table_of([(0, 0), (1, 0)], schema)
    assert l1(table, [pd.DataFrame({"a": [1, 1], "b": [1, 1]})])["by_set"] == [2.0]


@pytest.mark.parametrize("n_columns", [3, 60])
def test_cells_however_many(n_columns):
    sizes = [10] * n_columns
    rng = np.random.default_rng(0)
    codes = np.repeat(rng.integers(0, 10, (20, n_columns)), 3, axis=0)
    ids = cell_ids(codes, sizes)
    np.testing.assert_array_equal(ids[:, None] == ids, (codes[:, None] == codes).all(axis=2))


def test_a_wide_table_is_measured():
    columns = {f"c{i}": {"levels": list(range(10))} for i in range(25)}
    schema = Schema.model_validate({"columns": columns})
    frame = pd.DataFrame(np.zeros((3, 25), dtype=int), columns=list(columns))
    assert l1(Table(frame, schema), [frame, frame + 1])["by_set"] == [0.0, 2.0]
    assert compare(Table(frame, schema), [frame]).l1.mean == 0.0


def test_some_margins_are_drawn_without_repetition_and_again_alike():
    schema = schema_of(*[2] * 8)
    table, other = random_table(schema, 30), random_table(schema, 30, 1).frame
    every = k_way(table, [other], 3)["by_margin"]
    some, again = (k_way(table, [other], 3, n_draws=20, rng=np.random.default_rng(0))["by_margin"] for _ in range(2))
    assert some == again == {columns: every[columns] for columns in some}
    assert len(some) == 20
    assert k_way(table, [other], 3, n_draws=56)["by_margin"] == every
