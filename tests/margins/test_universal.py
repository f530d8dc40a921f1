"""The universal histogram: its intervals by brute force, Hay et al.'s own formulas, and the law of a random order."""

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement, permutations

import numpy as np
import pandas as pd
import pytest
from laws import ACCEPT, REJECT
from scipy import stats
from tables import grown, random_table, refuses, scales_of, schema_of, worst_loss

from pdips import InputError, Schema, Table, UniversalHistogram
from pdips.margins.domain import domain_of, root, split_by
from pdips.margins.universal_histogram import (
    ShuffledColumns,
    average_range_variance,
    best_fan_out,
    interval_counts,
    interval_parents,
)
from pdips.privacy.replay import exact_law
from pdips.registry import published


@pytest.mark.parametrize("n_levels", [1, 2, 7, 9, 27, 100])
@pytest.mark.parametrize("fan_out", [2, 3, 16])
def test_intervals_halve_or_third_evenly_and_in_order(n_levels, fan_out):
    counts = interval_counts(n_levels, fan_out)
    assert counts[-1] == n_levels
    assert len(counts) == max(math.ceil(round(math.log(n_levels, fan_out), 9)), 1)
    for above, n, parent in zip((1, *counts), counts, interval_parents(counts), strict=False):
        sizes = np.bincount(parent, minlength=above)
        assert (np.diff(parent) >= 0).all()
        assert len(parent) == n
        assert sizes.max() <= fan_out
        assert sizes.max() - sizes.min() <= 1
        assert sizes.min() >= 1


def dense_average(n_levels: int, fan_out: int, n_below: int, *, n_public: bool) -> float:
    """The average variance of a range by brute force: all ranges, a dense inverse."""
    counts = interval_counts(n_levels, fan_out)
    held = [np.arange(n_levels)]
    for parent in reversed(interval_parents(counts)[1:]):
        held.insert(0, parent[held[0]])
    n_noised = len(counts) + (n_below > 1)
    levels = np.repeat(np.arange(n_levels), n_below)
    rows = [levels == level for level in range(n_levels)] if n_below > 1 else []
    rows = [held[i][levels] == g for i in range(len(counts)) for g in range(counts[i])]
    rows += [np.arange(len(levels)) == cell for cell in range(len(levels))] if n_below > 1 else []
    null = np.eye(len(levels))
    if n_public:
        null = np.linalg.svd(np.ones((1, len(levels))))[2][1:].T
    design = np.array(rows, dtype=float) @ null
    covariance = n_noised**2 * null @ np.linalg.inv(design.T @ design) @ null.T
    picks = [
        ((levels >= i) & (levels <= j)).astype(float) for i, j in combinations_with_replacement(range(n_levels), 2)
    ]
    return float(np.mean([pick @ covariance @ pick for pick in picks]))


@pytest.mark.parametrize("n_levels", [2, 5, 13])
@pytest.mark.parametrize("fan_out", [2, 3])
@pytest.mark.parametrize(("n_below", "n_public"), [(1, True), (1, False), (3, True), (2, False)])
def test_the_variance_of_ranges_is_that_of_dense_least_squares(n_levels, fan_out, n_below, n_public):
    told = average_range_variance(n_levels, fan_out, n_below, n_public=n_public)
    assert told == pytest.approx(dense_average(n_levels, fan_out, n_below, n_public=n_public), rel=1e-9)


@pytest.mark.parametrize("n_levels", [1, 2, 10, 42, 43, 110, 111, 365, 5000])
@pytest.mark.parametrize("n_public", [True, False])
def test_the_fan_out_is_the_best(n_levels, n_public):
    best = best_fan_out(n_levels, n_public=n_public)
    tried = [*range(2, 17), max(n_levels, 2)]
    each = {fan_out: average_range_variance(n_levels, fan_out, n_public=n_public) for fan_out in tried}
    assert each[best] == min(each.values())
    # from how many levels on intervals are worth having (docs/mechanisms/universal-histogram.md)
    assert (len(interval_counts(n_levels, best)) > 1) == (n_levels > (110 if n_public else 42))


ORDERED = schema_of(7, 2, 3)


@pytest.mark.usefixtures("silence")
def test_counts_are_those_of_ranges():
    table = random_table(ORDERED, 300)
    plan = UniversalHistogram(epsilon=1, attribute="a", fan_out=2).plan(ORDERED)
    measured = grown(plan, table)
    assert [len(counts) for counts in measured.observed] == [1, 2, 4, 7, 42]
    frame = pd.DataFrame(table.codes)
    frames = plan.design.noisy_statistics(measured, "")
    assert list(frames) == ["layer 1", "layer 2", "layer 3", "cells"]
    for number in (1, 2, 3):
        for row in frames[f"layer {number}"].itertuples(index=False):
            first, last, count = row
            assert count == frame["a"].between(first, last).sum()
    levels = np.column_stack([measured.levels(np.arange(42), column) for column in range(3)])
    counted = frame.value_counts().to_dict()
    assert [counted.get(tuple(map(int, row)), 0) for row in levels] == measured.observed[-1].tolist()


PUBLIC = Schema.from_toml("""
[columns]
region = { levels = ["n", "s", "w"], public = true }
age = { lower = 0, upper = 70, bins = 7, missing = true }
job = { levels = ["none", "some"] }
[[impossible]]
region = "s"
job = "some"
""")


def public_table(schema: Schema, n: int = 90) -> Table:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"region": rng.choice(["n", "s", "w"], n), "age": np.where(rng.random(n) < 0.2, np.nan, rng.uniform(0, 70, n))}
    )
    if "job" in schema.columns:
        frame["job"] = np.where(frame["region"] == "s", "none", rng.choice(["none", "some"], n))
    return Table(frame, schema)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.usefixtures("silence")
def test_public_columns_and_zeros_hold_at_every_layer(alone):
    schema = PUBLIC
    if alone:
        columns = {name: column for name, column in PUBLIC.columns.items() if name != "job"}
        schema = PUBLIC.model_copy(update={"columns": columns, "impossible": ()})
    table = public_table(schema)
    measured = grown(UniversalHistogram(epsilon=1, attribute="age", fan_out=3).plan(schema), table)
    for parent, above, below in zip(measured.parents, measured.observed, measured.observed[1:], strict=False):
        assert (np.bincount(parent, weights=below, minlength=len(above)) == above).all()
    assert measured.observed[0].tolist() == np.bincount(table.codes["region"]).tolist()
    if not alone:
        assert (~measured.layers[-1].possible).sum() == 8


@pytest.mark.parametrize("schema", [PUBLIC, schema_of(9), schema_of(9, 2)])
@pytest.mark.parametrize("split", ["once", "per-set"])
def test_a_release_is_a_table_of_the_schema(schema, split):
    table = public_table(schema) if schema is PUBLIC else random_table(schema, 60)
    attribute = next(name for name in schema.columns if name not in schema.public_columns)
    made = UniversalHistogram(epsilon=80, n_sets=2, attribute=attribute, fan_out=3, split=split)
    release, _ = made.release(table, rng=np.random.default_rng(0))
    assert sum(spend.epsilon for spend in release.spends) == 80
    for frame in release.sets:
        again = Table(frame, schema.without_person())
        assert len(frame) == table.n_records
        first, second = (pd.DataFrame(each.codes).value_counts() for each in (table, again))
        assert first.sub(second, fill_value=0).abs().sum() <= 6  # at this epsilon the noise hardly matters


def test_without_public_records_the_size_is_noisy():
    made = UniversalHistogram(epsilon="0.5", neighbours="add-remove", fan_out=2)
    assert len({len(made.release(random_table(schema_of(8), 100))[0].sets[0]) for _ in range(12)}) > 1


def test_one_column_that_is_not_public_needs_no_name():
    assert UniversalHistogram(epsilon=1).ordered(schema_of(9)) == "a"
    assert UniversalHistogram(epsilon=1).ordered(schema_of(9, 2)) is None
    assert UniversalHistogram(epsilon=1, layers=1).ordered(schema_of(9)) is None
    assert "of intervals of a," in UniversalHistogram(epsilon=1).privacy_loss(schema_of(9)).statement
    assert "of columns in random order," in UniversalHistogram(epsilon=1).privacy_loss(schema_of(9, 2)).statement


# Columns in random order


class FirstAvailable(ShuffledColumns):
    """The broken twin: no shuffling at all."""

    def columns(self, number, layer, position, curator, rng):
        return np.full(layer.n_nodes, np.flatnonzero(layer.path[0] < 0)[0])


def order_p_value(splitter) -> float:
    """The p-value of all orders of three columns, of which two split, being equally likely; it reads no record."""
    domain, rng = domain_of(schema_of(2, 3, 2)), np.random.default_rng(3)
    seen = Counter()
    for _ in range(1500):
        first = splitter.columns(1, root(domain), None, None, rng)
        second = splitter.columns(2, split_by(domain, root(domain), first), None, None, rng)
        assert len(set(second.tolist())) == 1  # the same column in every branch
        seen[int(first[0]), int(second[0])] += 1
    assert set(seen) <= set(permutations(range(3), 2))
    return float(stats.chisquare([seen[order] for order in permutations(range(3), 2)]).pvalue)


def test_all_orders_are_equally_likely():
    assert order_p_value(ShuffledColumns()) > ACCEPT
    assert order_p_value(FirstAvailable()) < REJECT
    made, schema = UniversalHistogram(epsilon=1, layers=2), schema_of(2, 3, 2)
    ((one,), (other,)) = [exact_law(made, random_table(schema, 6, seed)).outcomes for seed in (0, 1)]
    assert (one.key, one.log_probability, one.scales) == (other.key, other.log_probability, other.scales) != ()
    assert one.log_probability == 0


@pytest.mark.parametrize("layers", [1, 3, None])
def test_any_number_of_layers_works(layers, neighbours):
    table = random_table(schema_of(2, 3, 4), 40)
    made = UniversalHistogram(epsilon=100, layers=layers, neighbours=neighbours)
    release, _ = made.release(table, rng=np.random.default_rng(0))
    counts = (pd.DataFrame(t.codes).value_counts() for t in (table, Table(release.sets[0], table.schema)))
    first, second = counts
    assert first.sub(second, fill_value=0).abs().sum() <= 6
    assert len(scales_of(made, table.schema)) == len(release.noise) == min(layers or 3, 2) + 1


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fan_out": 1}, "fan_out must be a whole number of at least 2, got 1"),
        ({"fan_out": True}, "fan_out must be"),
        ({"fan_out": 2.5}, "fan_out must be"),
        ({"fan_out": 10**7}, "fan_out must be at most"),
        ({"layers": 0}, "layers must be a whole number of at least 1"),
        ({"layers": 2, "attribute": "a"}, "as deep as fan_out makes it"),
        ({"layers": 2, "fan_out": 3}, "give one"),
    ],
)
def test_settings_are_checked(settings, message):
    refuses(message, UniversalHistogram, epsilon=1, **settings)


@pytest.mark.parametrize(
    ("sizes", "settings", "message"),
    [
        ((2, 3), {"attribute": "z"}, "attribute: 'z' is no column"),
        ((2, 3), {"fan_out": 3}, "name it as attribute"),
        ((2, 3), {"layers": 3}, "layers = 3 is more than the 2 columns"),
        ((9,), {"layers": 2}, "layers = 2 is more than the 1 column"),
    ],
)
def test_settings_are_checked_against_the_schema(sizes, settings, message, ledger):
    table = random_table(schema_of(*sizes), 5)
    refuses(message, UniversalHistogram(epsilon=1, **settings).release, table, ledger=ledger)
    assert not ledger.path.exists()


def test_a_public_column_is_not_cut():
    with pytest.raises(InputError, match="'region' is no column of the schema that could be cut"):
        UniversalHistogram(epsilon=1, attribute="region").spends(PUBLIC)


# The price, by enumeration. Persons with several records: tests/contract.

EPSILON = Fraction(3, 2)
KINDS = [
    (schema_of(5), {"fan_out": 2}, 3),
    (schema_of(4, 2), {"attribute": "a", "fan_out": 2}, 3),
    (schema_of(2, 3, 2), {"layers": 1}, 2),
    (schema_of(2, 2, 2), {"layers": 2}, 3),
]


@pytest.mark.parametrize(("schema", "settings", "n_noised"), KINDS)
def test_the_price_is_exactly_epsilon(schema, settings, n_noised, neighbours):
    made = UniversalHistogram(epsilon=EPSILON, neighbours=neighbours, **settings)
    assert len(scales_of(made, schema)) == len(made.spends(schema)) == n_noised
    assert worst_loss(made, schema) == pytest.approx(float(EPSILON))
    assert sum(spend.epsilon for spend in made.spends(schema)) == EPSILON


@pytest.mark.parametrize(("schema", "settings", "n_noised"), KINDS)
def test_the_published_accounting_costs_what_its_statement_says(schema, settings, n_noised):
    # the broken twin: sensitivity 1, and the cells below the tree not paid for
    made = published("universal-histogram")(epsilon=EPSILON, **settings)
    remaining_below = len(schema.columns) > 1
    true = float(2 * EPSILON * Fraction(n_noised, n_noised - remaining_below))
    assert worst_loss(made, schema) == pytest.approx(true)
    assert f"The true loss is up to {true:g}." in made.privacy_loss(schema).statement
    assert sum(spend.epsilon for spend in made.spends(schema)) == EPSILON


def test_sets_of_their_own_share_the_price():
    made, schema = UniversalHistogram(epsilon=EPSILON, n_sets=3, split="per-set", fan_out=2), schema_of(4)
    assert worst_loss(made, schema) == pytest.approx(float(EPSILON))
    assert len(made.spends(schema)) == 6
