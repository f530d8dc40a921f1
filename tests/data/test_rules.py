"""Rules: what they bar in levels and bins, what is refused on reading, and sets that
never break them.
"""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from margin_tables import of_pairs
from tables import cases, refuses

from pdips import LaplaceSanitizer, Margins, PrivBayes, Schema, Steps, Table
from pdips.data import table as tables_of_records
from pdips.data.partitions import PartitionedTable
from pdips.data.rules import Rule, lowest
from pdips.errors import DataError

COLUMNS = cases(__file__, "columns")
RULES = cases(__file__, "rules")
N = 400


def schema_with(rules=RULES, **columns):
    return Schema(columns=COLUMNS | columns, rule=rules)


def people(seed=0):
    rng = np.random.default_rng(seed)
    sex, numbers = rng.integers(0, 2, N), np.sort(rng.uniform(5, 39, (N, 3)), axis=1)
    births = np.where(sex == 1, rng.choice(["none", "one", "more"], N), "none").astype(
        object
    )
    births[rng.random(N) < 0.1] = None
    left, age = (
        pd.Series(np.floor(numbers[:, 0])).where(rng.random(N) > 0.1).astype("Int64"),
        np.ceil(numbers[:, 1]),
    )
    frame = pd.DataFrame(
        {
            "sex": np.array(["m", "f"])[sex],
            "births": births,
            "left": left,
            "age": age.astype(int),
        }
    )
    return frame.assign(score=np.maximum(numbers[:, 2], age))


def kept(frame):
    left, age, score = (frame[name].astype(float) for name in ("left", "age", "score"))
    births = (
        (frame["sex"] == "f") | frame["births"].isna() | (frame["births"] == "none")
    )
    return bool((births & ~(left > age) & ~(age > score) & ~(left > score)).all())


MECHANISMS = [
    of_pairs(epsilon=1, delta="1e-6", n_sets=2),
    of_pairs(epsilon="1/10", neighbours="add-remove"),
    Margins(epsilon=1),
]
MECHANISMS += [
    Steps(epsilon=1, order=("age", "left")),
    PrivBayes(epsilon=1),
    LaplaceSanitizer(epsilon="1/10"),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_no_set_breaks_a_rule(mechanism):
    release, _ = mechanism.release(
        Table(people(), schema_with()), rng=np.random.default_rng(1)
    )
    assert all(kept(made) for made in release.sets)
    plain = Table(people(), schema_with(()))  # the broken twin
    twin, _ = mechanism.release(plain, rng=np.random.default_rng(1))
    assert not all(kept(made) for made in twin.sets)


def test_what_is_barred_is_what_no_numbers_could_be():
    # by enumeration over a fine grid of numbers within their bins, of three columns in
    # order by two rules
    schema = schema_with()
    names = ("left", "age", "score")
    grids = {
        "left": np.arange(40),
        "age": np.arange(5, 51),
        "score": np.arange(0, 50.25, 0.25),
    }
    below = {
        name: np.searchsorted(schema.columns[name].edges, grid, side="right")
        for name, grid in grids.items()
    }
    codes = {
        name: np.minimum(each, schema.columns[name].n_values) - 1
        for name, each in below.items()
    }
    barred = [
        {name: set(levels) for name, levels in rule.items()}
        for rule in schema.zeros()
        if "sex" not in rule
    ]
    for cell in product(*(range(schema.columns[name].n_values) for name in names)):
        least = -np.inf
        possible = True
        for name, level in zip(names, cell, strict=True):
            fitting = [
                value for value in grids[name][codes[name] == level] if value >= least
            ]
            possible &= bool(fitting)
            least = min(fitting, default=np.inf)
        at = dict(zip(names, cell, strict=True))
        assert possible != any(
            all(at[name] in levels for name, levels in rule.items()) for rule in barred
        )


@pytest.mark.parametrize(("cells", "message"), cases(__file__, "breaking"))
def test_a_record_that_breaks_a_rule_is_refused(cells, message, tmp_path):
    frame = people()
    Table(frame, schema_with())
    for name, value in cells.items():
        frame.loc[7, name] = value
    refuses(message, Table, frame, schema_with(), error=DataError)
    Table(frame, schema_with(()))
    frame.to_parquet(tmp_path / "part.parquet")
    for read in (
        lambda: Table.read(tmp_path / "part.parquet", schema_with(), counted=True),
        lambda: PartitionedTable(tmp_path, schema_with()).fingerprint,
    ):
        refuses(message, read, error=DataError)


def test_lowest_numbers_in_order():
    rules = [
        Rule(ordered=("a", "b")),
        Rule(ordered=("b", "c")),
        Rule(ordered=("d", "c")),
    ]
    low = {"a": [4.0, 1.0], "b": [0.0, np.nan], "c": [2.0, 0.0], "d": [9.0, 0.0]}
    found = lowest(rules, {name: np.array(values) for name, values in low.items()})
    np.testing.assert_array_equal(found["c"], [9.0, 0.0])
    np.testing.assert_array_equal(found["b"], [4.0, np.nan])


@pytest.mark.parametrize(("rule", "message"), cases(__file__, "bad"))
def test_what_a_rule_may_not_say(rule, message):
    day = {"type": "date", "lower": "2020-01-01", "upper": "2020-12-31", "bins": 2}
    refuses(message, schema_with, [rule], day=day, wage={"lower": 0, "upper": 9})


def test_rules_in_toml_and_for_some_columns():
    schema = schema_with()
    assert Schema.from_toml(schema.to_toml()) == schema
    assert [str(rule) for rule in schema.only(["sex", "births", "age"]).rule] == [
        "if sex = m then births = none|missing"
    ]


def test_numbers_out_of_order_are_drawn_again_in_the_order_of_their_rule(monkeypatch):
    """Not in the order of a set of names, which each process has otherwise: a seed
    would give another set.
    """
    columns = {
        name: {"lower": 0, "upper": 10, "bins": 1, "label": name} for name in "abcdef"
    }
    schema = Schema(columns=columns, rule=[{"ordered": list("fbeacd")}])
    drawn = []
    inside = tables_of_records._draw_inside

    def noted(column, codes, rng):
        drawn.append(column.label)
        return inside(column, codes, rng)

    monkeypatch.setattr(tables_of_records, "_draw_inside", noted)
    codes = {name: np.zeros(50, dtype=np.int64) for name in columns}
    tables_of_records.decode(schema, codes, np.random.default_rng(0))
    assert drawn[:6] == list("abcdef")
    n_again = len(drawn[6:]) // 6
    assert n_again > 0
    assert drawn[6:] == list("fbeacd") * n_again
