"""The universal histogram: its intervals by brute force, Hay et al.'s own formulas, and
the law of a random order.
"""

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement, permutations
from types import SimpleNamespace

import numpy as np
import pytest
from laws import ACCEPT, REJECT
from margin_tables import (
    ALL_SORTS,
    counted_by_pandas,
    dense_covariance,
    groups_of,
    people,
)
from scipy import stats
from tables import cases, grown, random_table, refuses, scales_of, schema_of, worst_loss

from pdips import Table, UniversalHistogram
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
    for above, n, parent in zip(
        (1, *counts), counts, interval_parents(counts), strict=False
    ):
        sizes = np.bincount(parent, minlength=above)
        assert (np.diff(parent) >= 0).all()
        assert len(parent) == n
        assert sizes.max() <= fan_out
        assert sizes.max() - sizes.min() <= 1
        assert sizes.min() >= 1


def dense_average(
    n_levels: int, fan_out: int, n_below: int, *, n_public: bool
) -> float:
    """The average variance of a range by brute force: all ranges, a dense inverse."""
    held = [np.repeat(np.arange(n_levels), n_below)]
    for parent in reversed(interval_parents(interval_counts(n_levels, fan_out))[1:]):
        held.insert(0, parent[held[0]])
    levels, cells = held[-1], np.arange(n_levels * n_below)
    counted = [*held, cells] if n_below > 1 else held
    rows = np.concatenate([groups_of(each[:, None]) for each in counted])
    covariance = dense_covariance(
        rows,
        np.full(len(rows), len(counted) ** 2),
        groups_of(cells[:, None] * 0)[:n_public],
    )
    ranges = combinations_with_replacement(range(n_levels), 2)
    picks = np.array(
        [(levels >= first) & (levels <= last) for first, last in ranges], dtype=float
    )
    return float(np.einsum("ij,jk,ik->i", picks, covariance, picks).mean())


@pytest.mark.parametrize("n_levels", [2, 5, 13])
@pytest.mark.parametrize("fan_out", [2, 3])
@pytest.mark.parametrize(
    ("n_below", "n_public"), [(1, True), (1, False), (3, True), (2, False)]
)
def test_the_variance_of_ranges_is_that_of_dense_least_squares(
    n_levels, fan_out, n_below, n_public
):
    told = average_range_variance(n_levels, fan_out, n_below, n_public=n_public)
    assert told == pytest.approx(
        dense_average(n_levels, fan_out, n_below, n_public=n_public), rel=1e-9
    )


@pytest.mark.parametrize("n_levels", [1, 2, 10, 42, 43, 110, 111, 365, 5000])
@pytest.mark.parametrize("n_public", [True, False])
def test_the_fan_out_is_the_best(n_levels, n_public):
    best = best_fan_out(n_levels, n_public=n_public)
    tried = [*range(2, 17), max(n_levels, 2)]
    each = {
        fan_out: average_range_variance(n_levels, fan_out, n_public=n_public)
        for fan_out in tried
    }
    assert each[best] == min(each.values())
    # from how many levels on intervals are worth having
    # (docs/mechanisms/universal-histogram.md)
    assert (len(interval_counts(n_levels, best)) > 1) == (
        n_levels > (110 if n_public else 42)
    )


ORDERED = schema_of(7, 2, 3)


@pytest.mark.usefixtures("silence")
def test_counts_are_those_of_ranges():
    table = random_table(ORDERED, 300)
    plan = UniversalHistogram(epsilon=1, attribute="a", fan_out=2).plan(ORDERED)
    measured = grown(plan, table)
    assert [len(counts) for counts in measured.observed] == [1, 2, 4, 7, 42]
    frames = plan.design.noisy_statistics(measured, "")
    assert list(frames) == ["layer 1", "layer 2", "layer 3", "cells"]
    for number in (1, 2, 3):
        for first, last, count in frames[f"layer {number}"].itertuples(index=False):
            assert (
                count
                == ((table.codes["a"] >= first) & (table.codes["a"] <= last)).sum()
            )
    assert measured.observed[-1].tolist() == counted_by_pandas(measured, table)


@pytest.mark.parametrize("names", [["region", "age", "works"], ["region", "age"]])
@pytest.mark.usefixtures("silence")
def test_public_columns_and_zeros_hold_at_every_layer(names):
    table = Table(people(90).frame[names], ALL_SORTS.only(names))
    measured = grown(
        UniversalHistogram(epsilon=1, attribute="age", fan_out=3).plan(table.schema),
        table,
    )
    for parent, above, below in zip(
        measured.parents, measured.observed, measured.observed[1:], strict=False
    ):
        assert (np.bincount(parent, weights=below, minlength=len(above)) == above).all()
    assert measured.observed[0].tolist() == np.bincount(table.codes["region"]).tolist()
    assert (~measured.layers[-1].possible).sum() == (5 if "works" in names else 0)


def test_one_column_that_is_not_public_needs_no_name():
    assert UniversalHistogram(epsilon=1).ordered(schema_of(9)) == "a"
    assert UniversalHistogram(epsilon=1).ordered(schema_of(9, 2)) is None
    assert UniversalHistogram(epsilon=1, layers=1).ordered(schema_of(9)) is None
    assert (
        "of intervals of a,"
        in UniversalHistogram(epsilon=1).privacy_loss(schema_of(9)).statement
    )
    assert ("of columns in random order,") in UniversalHistogram(
        epsilon=1
    ).privacy_loss(schema_of(9, 2)).statement


# Columns in random order


class FirstAvailable(ShuffledColumns):
    """The broken twin: no shuffling at all."""

    def columns(self, number, layer, position, curator):
        return np.full(layer.n_nodes, np.flatnonzero(layer.path[0] < 0)[0])


NO_CHARGE = SimpleNamespace(
    keep=lambda make: make(), generator=np.random.default_rng(3)
)
"""In place of a curator, of which no record is asked."""


def order_p_value(splitter) -> float:
    """The p-value of all orders of three columns, of which two split, being equally
    likely; it reads no record.
    """
    domain = domain_of(schema_of(2, 3, 2))
    seen = Counter()
    for _ in range(1500):
        first = splitter.columns(1, root(domain), None, NO_CHARGE)
        second = splitter.columns(
            2, split_by(domain, root(domain), first), None, NO_CHARGE
        )
        assert len(set(second.tolist())) == 1  # the same column in every branch
        seen[int(first[0]), int(second[0])] += 1
    assert set(seen) <= set(permutations(range(3), 2))
    return float(
        stats.chisquare([seen[order] for order in permutations(range(3), 2)]).pvalue
    )


def test_all_orders_are_equally_likely():
    assert order_p_value(ShuffledColumns()) > ACCEPT
    assert order_p_value(FirstAvailable()) < REJECT
    made, schema = UniversalHistogram(epsilon=1, layers=2), schema_of(2, 3, 2)
    ((one,), (other,)) = [
        exact_law(made, random_table(schema, 6, seed)).outcomes for seed in (0, 1)
    ]
    assert (
        (one.key, one.log_probability, one.scales)
        == (other.key, other.log_probability, other.scales)
        != ()
    )
    assert one.log_probability == 0


# Settings


@pytest.mark.parametrize(("settings", "message"), cases(__file__, "universal_settings"))
def test_settings_are_checked(settings, message):
    refuses(message, UniversalHistogram, epsilon=1, **settings)


@pytest.mark.parametrize(
    ("sizes", "settings", "message"), cases(__file__, "universal_shapes")
)
def test_settings_are_checked_against_the_schema(sizes, settings, message, ledger):
    table = random_table(schema_of(*sizes), 5)
    refuses(
        message, UniversalHistogram(epsilon=1, **settings).release, table, ledger=ledger
    )
    assert not ledger.path.exists()


def test_a_public_column_is_not_cut():
    said = "'region' is no column of the schema that could be cut"
    refuses(said, UniversalHistogram(epsilon=1, attribute="region").spends, ALL_SORTS)


# The price, by enumeration. Persons with several records: tests/contract.

EPSILON = Fraction(3, 2)
KINDS = [
    (schema_of(5), {"fan_out": 2}, 3),
    (schema_of(4, 2), {"attribute": "a", "fan_out": 2}, 3),
    (schema_of(2, 3, 2), {"layers": 1}, 2),
    (schema_of(2, 2, 2), {"layers": 2}, 3),
    (schema_of(4), {"n_sets": 3, "split": "per-set", "fan_out": 2}, 2),
]


@pytest.mark.parametrize(
    ("schema", "settings", "n_noised"), [*KINDS, (schema_of(2, 2, 2), {}, 3)]
)
def test_the_price_is_exactly_epsilon(schema, settings, n_noised, neighbours):
    made = UniversalHistogram(epsilon=EPSILON, neighbours=neighbours, **settings)
    assert (
        len(scales_of(made, schema))
        == n_noised
        == len(made.spends(schema)) / made.rounds
    )
    assert worst_loss(made, schema) == pytest.approx(float(EPSILON))
    assert sum(spend.epsilon for spend in made.spends(schema)) == EPSILON


@pytest.mark.parametrize(("schema", "settings", "n_noised"), KINDS)
def test_the_published_accounting_costs_what_its_statement_says(
    schema, settings, n_noised
):
    # the broken twin: sensitivity 1, and the cells below the tree not paid for
    made = published("universal-histogram")(epsilon=EPSILON, **settings)
    remaining_below = len(schema.columns) > 1
    true = float(2 * EPSILON * Fraction(n_noised, n_noised - remaining_below))
    assert worst_loss(made, schema) == pytest.approx(true)
    assert f"The true loss is up to {true:g}." in made.privacy_loss(schema).statement
    assert sum(spend.epsilon for spend in made.spends(schema)) == EPSILON
