"""PrivBayes: sensitivities and prices by enumeration, networks, joint tables, and the
records drawn from them.

Statistical checks: fixed seed, a true law fails with probability 1e-6, the broken twin
must score below 1e-9.
"""

import math
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pandas as pd
import pytest
from laws import ACCEPT, REJECT, chi_square
from scipy import stats
from tables import (
    FAMILY_SHAPES,
    all_records,
    bits,
    cases,
    largest_score_move,
    random_table,
    refuses,
    schema_in,
    schema_of,
    table_of,
    worst_loss,
)

from pdips import PrivBayes, Schema, Table
from pdips.audit.neighbour_pairs import Pair
from pdips.bayes_net import network as networks
from pdips.bayes_net import privbayes
from pdips.bayes_net.network import (
    Families,
    FamilyScores,
    distance_from_independence,
    sensitivity,
)
from pdips.margins.domain import columns_of
from pdips.privacy.replay import exact_law, record
from pdips.registry import published

EPSILON = Fraction(3, 2)
ROUNDING = 1e-9


# What a replaced record does to a score


@pytest.mark.parametrize(("rows", "columns", "n"), FAMILY_SHAPES)
def test_a_score_moves_by_its_sensitivity_at_most(rows, columns, n):
    binary = 2 in (rows, columns)
    found = largest_score_move(distance_from_independence, rows, columns, n)
    assert found <= sensitivity(n, binary=binary)
    if binary:
        assert found == 2 * (n - 1)
    else:  # the broken twin: the constant of binary families for all
        assert found > sensitivity(n, binary=True)


def test_the_sensitivity_for_many_levels_is_nearly_attained():
    # a record alone in its row and its column moves to an empty cell of a row and a
    # column of about sqrt(n) records
    n = 10_001
    base = np.array([[0, 0, 0], [0, 0, 100], [0, 100, n - 201]])
    tables = [base + np.diag(place) for place in ([1, 0, 0], [0, 1, 0])]
    alone, moved = map(distance_from_independence, tables)
    assert 2.9 * (n - 1) < alone - moved <= 3 * (n - 1)


def test_one_record_has_no_score_to_move():
    assert sensitivity(1, binary=False) == 1
    assert distance_from_independence(np.array([[0, 1], [0, 0]])) == 0


def test_the_score_equals_its_definition():
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = rng.integers(0, 50, (3, 4)) * rng.integers(0, 2, (3, 4))
        joint = counts / counts.sum()
        apart = np.outer(joint.sum(1), joint.sum(0))
        n = counts.sum()
        assert distance_from_independence(counts) == pytest.approx(
            n * n * np.abs(joint - apart).sum() / 2
        )


# The price


SHARE = Fraction(1, 3)


@pytest.mark.slow
def test_a_network_and_its_tables_cost_at_most_epsilon():
    made = PrivBayes(epsilon=EPSILON, degree=1, usefulness=0, network_share=SHARE)
    total, chosen, counted = (
        worst_loss(made, schema_of(2, 3, 2), only=only)
        for only in ("", "choices", "noise")
    )
    assert total <= EPSILON + ROUNDING
    assert chosen <= EPSILON * SHARE + ROUNDING
    assert counted == pytest.approx(float(EPSILON * (1 - SHARE)))  # tight


@pytest.mark.slow
def test_networks_of_larger_tables_cost_at_most_their_share():
    made = PrivBayes(epsilon=EPSILON, degree=1, usefulness=0, network_share="0.999")
    assert worst_loss(made, schema_of(2, 2, 2), (4,)) <= EPSILON + ROUNDING
    assert worst_loss(made, schema_of(2, 2, 2), (4,), only="choices") > EPSILON / 3


def test_the_published_noise_costs_n_times_the_claim():
    # the broken twin, and the flaw of the code that the papers ran
    found = worst_loss(published("privbayes")(epsilon=EPSILON), schema_of(2, 2), (3,))
    assert found == pytest.approx(float(3 * EPSILON))


def test_unequal_sensitivities_would_be_seen(monkeypatch):
    # a broken twin of the choices: half the sensitivity
    monkeypatch.setattr(
        "pdips.bayes_net.privbayes.sensitivity",
        lambda n, **kind: Fraction(sensitivity(n, **kind), 4),
    )
    made = PrivBayes(epsilon=EPSILON, degree=1, usefulness=0, network_share="0.999")
    assert worst_loss(made, schema_of(2, 2, 2), (3,), only="choices") > EPSILON


# What audits see is what the law says


def test_networks_are_drawn_by_the_law():
    table, settings = (
        random_table(schema_of(2, 3, 2), 40),
        {"degree": 1, "usefulness": 0, "network_share": "0.9"},
    )
    *choices, _ = record(PrivBayes(epsilon=20, **settings), table, 20_000, bits())

    def p_value(epsilon: float) -> float:
        outcomes = exact_law(PrivBayes(epsilon=epsilon, **settings), table).outcomes
        places = {outcome.key: place for place, outcome in enumerate(outcomes)}
        drawn = np.array(
            [
                places[key]
                for key in map(tuple, np.concatenate(choices, axis=1).tolist())
            ]
        )
        law = np.exp([outcome.log_probability for outcome in outcomes])
        return chi_square(
            drawn, stats.rv_discrete(values=(np.arange(len(law)), law)).pmf
        )

    assert p_value(20) > ACCEPT
    assert p_value(30) < REJECT


@pytest.mark.usefixtures("silence")
def test_without_noise_the_rows_are_the_statistics_of_the_law():
    table = table_of(
        [(0, 0, 0), (1, 1, 0), (0, 2, 1)],
        schema_of(2, 3, 2, impossible=[{"a": 1, "b": 2}]),
    )
    made = PrivBayes(epsilon=1, degree=1, usefulness=0, n_sets=2, split="per-set")
    law = {
        outcome.key: outcome.statistics for outcome in exact_law(made, table).outcomes
    }
    for first, second, counts in zip(
        *record(made, table, 200, bits())[3:], strict=True
    ):
        found = law[int(first[0]), int(second[0])]
        assert counts[: len(found)].tolist() == list(found)
        assert (counts[len(found) :] == -1).all()


# Which families there could be


def shape_of(schema: Schema, degree: int, most_cells: int = 10**6) -> Families:
    return Families(columns_of(schema), degree, most_cells)


def test_candidates_have_as_many_parents_as_the_degree_allows():
    shape = shape_of(schema_of(2, 2, 2, 2), 2)
    assert shape.candidates(()) == [(0, ()), (1, ()), (2, ()), (3, ())]
    assert shape.candidates(((1, ()),)) == [(0, (1,)), (2, (1,)), (3, (1,))]
    assert shape.candidates(((1, ()), (0, (1,)), (3, (0, 1)))) == [
        (2, (0, 1)),
        (2, (0, 3)),
        (2, (1, 3)),
    ]
    assert shape.n_rounds == 3


def test_families_that_are_too_large_or_within_another_need_no_table():
    shape = shape_of(schema_of(2, 3, 4, 5), 2, most_cells=30)
    network = ((0, ()), (1, (0,)), (2, (0, 1)))
    assert shape.candidates(network) == [(3, (0, 1)), (3, (2,))]
    assert shape_of(schema_of(2, 9), 2, most_cells=4).candidates(((0, ()),)) == [
        (1, ())
    ]
    network = ((0, ()), (1, (0,)), (2, (0, 1)), (3, (1, 2)), (4, ()))
    assert networks.tables_of(network) == [(0, 1, 2), (1, 2, 3), (4,)]


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_there_are_as_many_tables_as_columns_less_the_degree_as_they_were_measured(
    degree,
):
    made = PrivBayes(epsilon=5, degree=degree, usefulness=0)
    release, _ = made.release(random_table(schema_of(2, 3, 2, 2, 3), 50))
    tables = {
        name: frame for name, frame in release.statistics.items() if name != "network"
    }
    assert len(tables) == 5 - degree
    for name, frame in tables.items():
        assert [*frame.columns] == [
            *name.removeprefix("table ").split(", "),
            "noisy_count",
        ]
        assert frame["noisy_count"].dtype == np.int64
    (noise,) = release.noise
    assert noise.scale == pytest.approx(2 * (5 - degree) / 2.5)


def test_usefulness_keeps_tables_above_the_noise():
    schema = schema_of(4, 4, 4, 4)
    made = PrivBayes(epsilon="0.5", usefulness=4)
    plan = made.plan(schema)
    assert made.useful_families(plan, 10_000).most_cells == math.floor(
        10_000 / (4 * 2 * plan.steps[-1].scale)
    )
    few, _ = made.release(random_table(schema, 200))
    assert (few.statistics["network"]["parents"] == "").all()


# The records


def chain(n: int = 20_000) -> Table:
    rng = np.random.default_rng(3)
    schema = schema_of(3, 3, 3, 3, 2)
    codes = [rng.integers(0, 3, n)]
    for _ in range(3):
        codes.append(np.where(rng.random(n) < 0.7, codes[-1], rng.integers(0, 3, n)))
    codes.append(rng.integers(0, 2, n))
    return table_of(np.column_stack(codes), schema)


def two_way_distance(table: Table, frame: pd.DataFrame) -> float:
    found = []
    for a, b in combinations(frame.columns, 2):
        ours, theirs = (
            pd.crosstab(one[a], one[b], normalize=True) for one in (table.frame, frame)
        )
        found.append(np.abs(ours.sub(theirs, fill_value=0)).to_numpy().sum() / 2)
    return max(found)


def test_a_chain_is_found_and_kept():
    table = chain()
    release, _ = PrivBayes(epsilon=50, degree=1).release(
        table, rng=np.random.default_rng(0)
    )
    edges = {
        frozenset((row.attribute, row.parents))
        for row in release.statistics["network"].itertuples()
    }
    assert {frozenset("ab"), frozenset("bc"), frozenset("cd")} <= edges
    assert two_way_distance(table, release.sets[0]) < 0.02
    noise, _ = PrivBayes(epsilon="0.001", degree=1).release(
        table, rng=np.random.default_rng(0)
    )
    assert two_way_distance(table, noise.sets[0]) > 0.1


def test_with_hardly_any_noise_a_full_table_comes_back():
    table = random_table(schema_of(2, 3, 2), 500)
    release, _ = PrivBayes(epsilon=10_000).release(table, rng=np.random.default_rng(0))
    ours, theirs = (
        frame.value_counts().sort_index() for frame in (table.frame, release.sets[0])
    )
    assert np.abs(ours.sub(theirs, fill_value=0)).max() <= 3


def test_sets_of_their_own_have_networks_of_their_own():
    release, _ = PrivBayes(epsilon=1, n_sets=3, split="per-set", degree=1).release(
        chain(500)
    )
    assert {
        "set 1, network",
        "set 2, network",
        "set 3, network",
    } <= release.statistics.keys()


def far_apart(n: int = 300) -> Table:
    """Rules that join columns which no joint table of degree 1 holds together."""
    schema = schema_of(
        2,
        2,
        2,
        2,
        impossible=[
            {"a": 1, "b": 1, "c": 1},
            {"a": 0, "d": 1},
            {"b": 0, "d": 0, "c": 0},
        ],
    )
    records = [r for r in all_records(schema) if not _breaks(r)]
    return table_of(
        [records[i] for i in np.random.default_rng(0).integers(len(records), size=n)],
        schema,
    )


def _breaks(record) -> bool:
    a, b, c, d = record
    return (a, b, c) == (1, 1, 1) or (a, d) == (0, 1) or (b, c, d) == (0, 0, 0)


@pytest.mark.parametrize("epsilon", ["0.001", 1, 1000])
def test_no_impossible_record_is_released(epsilon):
    for seed in range(5):
        made = PrivBayes(epsilon=epsilon, degree=1, usefulness=0)
        release, _ = made.release(far_apart(), rng=np.random.default_rng(seed))
        Table(release.sets[0], release.schema)  # refuses what is impossible
        assert len(release.sets[0]) == 300


def test_chance_finds_what_the_network_can_not():
    domain, rng = columns_of(far_apart().schema), np.random.default_rng(0)
    network = ((0, ()), (1, ()), (2, ()), (3, ()))
    # a = 0 with d = 1: impossible
    stuck = [np.array([law]) for law in ([1.0, 0], [0.5, 0.5], [0.5, 0.5], [0, 1.0])]
    records = networks.sample(network, domain, stuck, {}, 50, rng)
    assert not any(
        _breaks(record) for record in zip(*(records[j] for j in range(4)), strict=True)
    )


def test_a_record_that_chance_does_not_find_is_searched_for(monkeypatch):
    # one level in twenty of each column goes with those before: chance would need
    # 8,000 draws a record, and the first levels that are tried leave none for others
    monkeypatch.setattr(networks, "MOST_REDRAWS", 2)
    levels = [f"{k}" for k in range(20)]
    rules = [
        {"if": {first: level}, "then": {second: levels[k - 1]}}
        for first, second in pairwise("abcd")
        for k, level in enumerate(levels)
    ]
    columns = {name: {"levels": levels} for name in "abcd"}
    columns["d"] |= {"public": True}
    schema = Schema(columns=columns, rule=rules)
    codes = np.arange(30)
    frame = pd.DataFrame(
        {name: np.array(levels)[(codes - k) % 20] for k, name in enumerate("abcd")}
    )
    release, _ = PrivBayes(epsilon="0.01").release(Table(frame, schema))
    table = Table(release.sets[0], release.schema)  # refuses what is impossible
    assert sorted(table.codes["d"]) == sorted(Table(frame, schema).codes["d"])


PUBLIC = schema_in("privbayes_public")


def with_public(n: int = 400) -> Table:
    rng = np.random.default_rng(1)
    g = rng.integers(0, 3, n)
    b = np.where(g == 2, 0, rng.random(n) < 0.9 * (g == 1))
    others = {
        "a": rng.integers(0, 3, n),
        "h": rng.uniform(0, 10, n),
        "b": b.astype(int),
    }
    return Table(pd.DataFrame({"g": np.array(["x", "y", "z"])[g], **others}), PUBLIC)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_public_columns_are_copied_and_lead(degree):
    table = with_public()
    made = PrivBayes(epsilon=200, degree=degree, n_sets=2)
    assert made.plan(PUBLIC).design.n_rounds == (0 if degree == 3 else 2)
    release, _ = made.release(table, rng=np.random.default_rng(0))
    for frame in release.sets:
        assert list(frame.columns) == list(PUBLIC.columns)
        kept = [
            one[["g", "h"]].sort_values(["g", "h"]).to_numpy().tolist()
            for one in (table.frame, frame)
        ]
        assert kept[0] == kept[1]
        shares = frame.groupby("g")["b"].mean()
        assert shares["z"] == 0
        assert shares["y"] - shares["x"] > 0.6
    assert set(release.statistics["network"]["attribute"]) == {"a", "b"}


@pytest.mark.slow
@pytest.mark.parametrize("degree", [1, 2])
def test_public_columns_cost_at_most_epsilon(degree):
    schema = Schema(
        columns={name: {"levels": [0, 1], "public": name == "a"} for name in "abcd"}
    )
    made, pairs = PrivBayes(epsilon=EPSILON, degree=degree, usefulness=0), []
    for crowd in ([(0, 0, 0, 0)], [(0, 0, 1, 1), (1, 1, 0, 1)]):
        for mine, theirs in combinations(all_records(schema), 2):
            if mine[0] == theirs[0]:
                sides = [table_of([*crowd, one], schema) for one in (mine, theirs)]
                pairs.append(Pair("public", *sides, "replace-one"))
    assert len(pairs) == 112
    assert EPSILON / 2 <= worst_loss(made, schema, pairs=pairs) <= EPSILON + ROUNDING


def test_numbers_come_back_within_their_bins():
    schema = Schema(columns={"x": {"lower": 0, "upper": 8, "bins": 4, "missing": True}})
    table = Table(pd.DataFrame({"x": [0.5, 7.0, np.nan] * 50}), schema)
    made = (
        PrivBayes(epsilon=100).release(table, rng=np.random.default_rng(0))[0].sets[0]
    )
    assert Table(made, schema).codes["x"].max() == 4
    assert len(set(made["x"].dropna())) > 50


# Bad input


@pytest.mark.parametrize(
    ("settings", "message"), cases(__file__, "settings_are_checked")
)
def test_settings_are_checked(settings, message):
    refuses(message, PrivBayes, epsilon=1, **settings)


@pytest.mark.parametrize(
    ("schema", "settings", "message"),
    [
        (
            Schema(columns={"a": {"levels": [0, 1], "public": True}}),
            {},
            "nothing to synthesize",
        ),
        (
            Schema(columns={f"c{i}": {"levels": [0, 1]} for i in range(60)}),
            {"degree": 5},
            "use a smaller degree",
        ),
        (schema_of(2, 2), {"epsilon": "1e-17"}, "epsilon is too small"),
        (
            Schema(columns={"a": {"lower": 0, "upper": 1}}),
            {},
            "needs bins or bin_edges",
        ),
    ],
)
def test_nothing_is_charged_for_what_cannot_be_done(schema, settings, message, ledger):
    frame = pd.DataFrame({name: [0, 1] for name in schema.columns})
    refuses(
        message,
        lambda: PrivBayes(**{"epsilon": 1, **settings}).release(
            Table(frame, schema), ledger=ledger
        ),
    )
    assert not ledger.path.exists()


def test_a_column_too_large_for_any_table(monkeypatch):
    for module in (networks, privbayes):
        monkeypatch.setattr(module, "MOST_TABLE_CELLS", 4)
    refuses(
        "column 'b' has more than 4 levels",
        lambda: PrivBayes(epsilon=1).spends(schema_of(2, 5)),
    )
    # smaller families in place of one
    release, _ = PrivBayes(epsilon=1).release(random_table(schema_of(2, 3, 2), 20))
    assert len(release.statistics) > 2


def test_too_many_records(monkeypatch):
    monkeypatch.setattr(privbayes, "MOST_RECORDS", 4)
    refuses(
        "at most 4 records",
        lambda: PrivBayes(epsilon=1).release(random_table(schema_of(2, 2), 5)),
    )


def test_counts_of_a_family_are_those_of_its_columns_and_large_tables_are_not_kept(
    monkeypatch,
):
    table = chain(300)
    domain = columns_of(table.schema)
    kept, again = (FamilyScores(domain, distance_from_independence) for _ in range(2))
    expected = pd.crosstab(
        [table.frame["a"], table.frame["d"]], table.frame["b"]
    ).to_numpy()
    assert kept.family(table, (1, (0, 3))).tolist() == expected.tolist()
    first = kept.joint(table, (0, 1))
    assert kept.joint(table, (0, 1)) is first
    monkeypatch.setattr(networks, "MOST_KEPT_CELLS", 5)
    assert again.joint(table, (0, 1)) is not again.joint(table, (0, 1))
    assert again.joint(table, (0, 1)).tolist() == first.tolist()
