"""Trees and cells against pandas' own grouping, structural zeros by brute force, and
the law of what is released.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pytest
from laws import ACCEPT, REJECT, chi_square
from margin_tables import apart, counted_by_pandas, released
from scipy import stats
from tables import (
    grown,
    plan_of_tree,
    random_table,
    refuses,
    scales_of,
    schema_of,
    table_of,
)

from pdips import LaplaceSanitizer, Schema, Steps, Table, UniversalHistogram
from pdips.margins import domain as layers

SCHEMA = schema_of(2, 3, 2, 4)
RULES = [{"a": 1, "b": [0, 2]}, {"b": 1, "c": 0, "d": 1}]
POSSIBLE = [
    (a, b, c, d)
    for a, b, c, d in product(range(2), range(3), range(2), range(4))
    if not (a == 1 and b in (0, 2)) and not (b == 1 and c == 0 and d == 1)
]


def branching(layer: layers.Layer) -> np.ndarray:
    """Split node k by the k-th column that it has left, so that branches differ."""
    return np.array(
        [
            np.flatnonzero(path < 0)[k % (path < 0).sum()]
            for k, path in enumerate(layer.path)
        ]
    )


class Branching:
    """A splitter whose branches differ."""

    def columns(self, number, layer, position, curator):
        return branching(layer)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_cells_are_all_combinations_once_and_impossible_where_they_break_a_rule(depth):
    domain = layers.domain_of(schema_of(2, 3, 2, 4, impossible=RULES))
    layer = layers.top_layer(domain)
    for _ in range(depth):
        layer = layers.split_by(domain, layer, branching(layer))
    bottom = layers.cells(domain, layer)
    levels = list(
        zip(
            *(
                bottom.levels(np.arange(bottom.layer.n_nodes), column)
                for column in range(4)
            ),
            strict=True,
        )
    )
    assert sorted(levels) == sorted(product(range(2), range(3), range(2), range(4)))
    assert (
        sorted(
            level
            for level, may_be in zip(levels, bottom.layer.possible, strict=True)
            if may_be
        )
        == POSSIBLE
    )


@pytest.mark.usefixtures("silence")
def test_counts_are_those_of_pandas():
    table = random_table(SCHEMA, 500)
    measured = grown(plan_of_tree(SCHEMA, [Fraction(1)] * 3, Branching()), table)
    codes = np.column_stack([*table.codes.values()])
    for layer, counts in zip(
        measured.layers[1:-1], measured.observed[1:-1], strict=True
    ):
        held = (codes == layer.path[:, None]) | (layer.path[:, None] < 0)
        assert held.all(axis=2).sum(axis=1).tolist() == counts.tolist()
    assert measured.observed[-1].tolist() == counted_by_pandas(measured, table)


TREES = [
    Steps(epsilon=50, layers=depth, order=order)
    for depth in (1, 3, 4)
    for order in (None, ("d", "b", "a", "c"))
]
TREES += [UniversalHistogram(epsilon=80, layers=depth) for depth in (1, 3, None)]
TREES += [
    UniversalHistogram(epsilon=160, attribute="b", fan_out=2, split=split)
    for split in ("once", "per-set")
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_any_tree_gives_the_table_back_where_noise_hardly_matters(tree, neighbours):
    table, made = (
        random_table(SCHEMA, 40),
        replace(tree, n_sets=2, neighbours=neighbours),
    )
    release = released(made, table)
    assert len(release.sets) == 2
    assert sum(spend.epsilon for spend in release.spends) == tree.epsilon
    assert [each.scale for each in release.noise] == [
        float(scale) for scale in scales_of(made, SCHEMA)
    ]
    for frame in release.sets:
        assert neighbours == "add-remove" or len(frame) == 40
        assert apart(table, frame) <= 4


def test_structural_zeros_stay_empty():
    schema = schema_of(2, 3, 2, 4, impossible=RULES)
    table = table_of(POSSIBLE * 2, schema)
    steps = Steps(epsilon="0.1", layers=2, n_sets=2, split="per-set")
    for mechanism in (LaplaceSanitizer(epsilon="0.1", n_sets=2), steps):
        release = released(mechanism, table)
        for frame in release.sets:
            Table(frame, schema)  # refuses impossible combinations
        cells = release.statistics[
            "set 1, cells" if mechanism.name == "steps" else "cells"
        ]["noisy_count"]
        assert (cells == 0).sum() >= 48 - len(POSSIBLE)


def test_confidential_levels_stand_beside_their_own_public_levels():
    # numeric public columns before others, several records a bin, missing values:
    # nothing may slip
    columns = {
        "age": {"lower": 0, "upper": 100, "bins": 2, "public": True, "missing": True}
    }
    columns |= {
        "place": {"levels": ["A", "B"], "public": True},
        "ill": {"levels": [False, True]},
    }
    columns["rent"] = {"lower": 0, "upper": 10, "bins": 2, "public": True}
    schema = Schema.model_validate(
        {"columns": columns, "impossible": [{"place": "A", "ill": True}]}
    )
    rng = np.random.default_rng(0)
    place = rng.choice(["A", "B"], 400)
    age = np.where(rng.random(400) < 0.1, np.nan, rng.uniform(0, 100, 400))
    frame = pd.DataFrame(
        {
            "age": age,
            "place": place,
            "ill": place == "B",
            "rent": rng.uniform(0, 10, 400),
        }
    )
    names = ["age", "place", "rent"]
    wanted = frame[names].sort_values(names, ignore_index=True)
    trees = [Steps(epsilon=500, layers=1), Steps(epsilon=500, order=("ill",))]
    for mechanism in (LaplaceSanitizer(epsilon=500), *trees):
        release, _ = mechanism.release(Table(frame, schema), rng=rng)
        (made,) = release.sets
        Table(made, schema)  # refuses the impossible
        assert ((made["place"] == "B") == made["ill"]).all()
        own = made[names].astype({"age": float}).sort_values(names, ignore_index=True)
        pd.testing.assert_frame_equal(own, wanted, check_dtype=False)
        assert "not protected in any way: age, place, rent" in release.loss.statement


def test_order_and_spelling_of_public_columns_are_not_released():
    # sorted by income, the sequence of places would rank the persons; a spelling of its
    # own would mark their source
    schema = Schema.from_toml(
        "[columns.year]\nlevels = [1994, 1995]\npublic = true\nmissing = "
        "true\n[columns.rich]\nlevels = [0, 1]"
    )
    rich = [0] * 20 + [1] * 20
    year = ["1994", "1995.0", None, "1994.0"] * 10
    by_income, shuffled = (
        pd.DataFrame({"year": year, "rich": rich}),
        pd.DataFrame({"year": year[::-1], "rich": rich}),
    )
    made = [
        LaplaceSanitizer(epsilon=1)
        .release(Table(frame, schema), rng=np.random.default_rng(0))[0]
        .sets[0]["year"]
        for frame in (by_income, shuffled)
    ]
    pd.testing.assert_series_equal(*made)
    assert str(made[0].dtype) == "Int64"
    assert made[0].value_counts(dropna=False).to_dict() == {
        1994: 20,
        1995: 10,
        pd.NA: 10,
    }


def test_public_columns_need_a_public_number_of_records_and_something_to_synthesize():
    public = {"a": {"levels": [0, 1], "public": True}}
    more = Schema(columns={**public, "b": {"levels": [0, 1]}})
    refuses(
        "need neighbours = replace-one",
        LaplaceSanitizer(epsilon=1, neighbours="add-remove").spends,
        more,
    )
    refuses(
        "nothing to synthesize",
        LaplaceSanitizer(epsilon=1).spends,
        Schema(columns=public),
    )


@pytest.mark.parametrize(
    ("mechanism", "schema", "key", "scale"),
    [
        (
            LaplaceSanitizer(epsilon="1/3", neighbours="add-remove"),
            schema_of(500),
            "cells",
            3,
        ),
        (Steps(epsilon="1/2", order=("a",)), schema_of(500, 2), "layer 1", 8),
    ],
)
def test_a_release_has_noise_of_its_stated_scale(mechanism, schema, key, scale):
    # 20,000 noisy counts taken from whole releases; false alarm 1e-6, twins at 0.9 and
    # 1.1 times the scale
    table, rng = random_table(schema, 100), np.random.default_rng(0)
    noisy = [
        mechanism.release(table, rng=rng)[0].statistics[key]["noisy_count"]
        for _ in range(40)
    ]
    draws = (np.array(noisy) - np.bincount(table.codes["a"], minlength=500)).ravel()
    assert chi_square(draws, stats.dlaplace(1 / scale).pmf) > ACCEPT
    for wrong in (0.9 * scale, 1.1 * scale):
        assert chi_square(draws, stats.dlaplace(1 / wrong).pmf) < REJECT


def test_too_many_cells_and_numbers_without_bins_are_refused():
    refuses("134,217,728 cells", layers.domain_of, schema_of(*[512] * 3))
    refuses(
        "column 'x' needs bins",
        layers.domain_of,
        Schema.from_toml("[columns.x]\nlower = 0\nupper = 1"),
    )
