"""The options of STEPS at work: stopping, groups, budgets, public columns, and every
setting that is refused.
"""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pytest
from laws import ACCEPT, REJECT, two_samples
from margin_tables import ALL_SORTS, people, released
from scipy import stats
from tables import (
    cases,
    grown,
    random_table,
    refuses,
    runs_and_releases,
    schema_of,
    table_of,
)

from pdips import (
    LaplaceSanitizer,
    Margins,
    PrivBayes,
    Schema,
    Steps,
    Table,
    UniversalHistogram,
)
from pdips.evaluation.margins import k_way
from pdips.margins import synthesis
from pdips.margins.tree import GivenColumns
from pdips.privacy import curator
from pdips.privacy.replay import exact_law
from pdips.registry import published

SCHEMA = schema_of(2, 3, 2, 4)


def skewed(n: int = 3000) -> Table:
    """Nearly all records have level 0 of column a; the others are spread evenly."""
    return Table(
        random_table(SCHEMA, n).frame.assign(a=np.arange(n) < 5).astype(int), SCHEMA
    )


def test_a_node_with_few_records_is_cut_no_further():
    # the noise is all but nothing; the limit of 5 records lies between 10^4 and 10^5
    # standard deviations
    table, mechanism = skewed(), Steps(epsilon=60, order=("a", "b", "c"), stop=0)
    assert len(released(mechanism, table).statistics["layer 2"]) == 6
    limit = Fraction(
        50 / mechanism.plan(SCHEMA).steps[1].standard_deviation
    ).limit_denominator(10**9)
    found = released(replace(mechanism, stop=limit), table).statistics
    assert found["layer 1"][["a", "noisy_count"]].to_numpy().tolist() == [
        [0, 2995],
        [1, 5],
    ]
    assert found["layer 2"][["a", "b"]].to_numpy().tolist() == [[0, 0], [0, 1], [0, 2]]
    assert (found["layer 3"][["b", "c"]].to_numpy() >= 0).all()
    assert (found["layer 3"]["a"] == 0).all()


def test_a_group_is_stopped_as_a_whole_and_by_counts_alone():
    # the layer inside the group isn't counted: its zeros must not stop everything
    for order in (("a", "b+c"), ("b", "a+c")):
        found = released(
            Steps(epsilon=1000, order=order, stop=100), skewed()
        ).statistics
        assert len(found["layer 2"]) == 12
        assert all("noisy_count" in frame for frame in found.values())


def test_stopping_reads_noisy_counts_alone(monkeypatch):
    # with the noisy counts held, the true ones may be anything: the tree and all that
    # is released stay as they are
    plan = Steps(epsilon=1, order=("a", "b", "c"), stop=2).plan(SCHEMA)
    fixed = {2: [40, 3], 6: [30, 4, 6, 0, 0, 0]}

    def pretend(counts, possible, step, bits, n_runs=1):
        values = np.array(fixed.get(len(counts), range(len(counts))))[: len(counts)]
        return np.where(possible, values, 0)[None].repeat(n_runs, axis=0)

    monkeypatch.setattr(curator, "noisy_counts", pretend)
    shown = []
    for table in (skewed(), random_table(SCHEMA, 3000, 1)):
        measured = grown(plan, table)
        statistics = plan.design.noisy_statistics(measured, "")
        estimate = synthesis.estimate(measured, plan.design, n_public=True).values
        shown.append(
            (
                [frame.to_numpy().tolist() for frame in statistics.values()],
                estimate.tolist(),
            )
        )
        stopped = measured.layers[2].stopped
        assert stopped.any()
        assert not measured.observed[2][stopped].any()
        assert np.isinf(measured.variances[2][stopped]).all()
    assert shown[0] == shown[1]


SHAPES = [
    ({"order": ("a", "b", "c"), "stop": 2}, 100),
    ({"layers": 2, "stop": 2}, 100),
    ({"layers": 1}, 400),
]


@pytest.mark.parametrize(("options", "n_releases"), SHAPES)
def test_many_runs_follow_the_law_of_single_ones(options, n_releases):
    # two-sample tests of every number at 1e-6 false alarms; twin: another epsilon
    table = random_table(SCHEMA, 40)
    mechanisms = [Steps(epsilon=epsilon, **options) for epsilon in (2, 1)]
    together, other, alone = runs_and_releases(
        *mechanisms, table, 10 * n_releases, n_releases
    )
    assert len(alone) == n_releases
    varied = [j for j in range(together.shape[1]) if len(np.unique(together[:, j])) > 1]
    assert len(varied) > 10
    assert min(two_samples(together[:, j], alone[:, j], 8) for j in varied) > ACCEPT
    assert min(two_samples(together[:, j], other[:, j], 8) for j in varied) < REJECT


def test_a_stopping_tree_has_no_finite_law():
    refuses(
        "leave stop out",
        exact_law,
        Steps(epsilon=1, order=("a", "b"), stop=1),
        random_table(SCHEMA, 5),
    )


def test_a_group_is_one_layer():
    made = released(Steps(epsilon=3, order=("a+b", "c")), skewed())
    assert list(made.statistics) == ["layer 1", "layer 2", "cells"]
    assert made.statistics["layer 1"][["a", "b"]].to_numpy().tolist() == [
        list(p) for p in product(range(2), range(3))
    ]
    assert (made.statistics["layer 1"][["c", "d"]] == -1).all(axis=None)
    assert len(made.statistics["layer 2"]) == 12
    assert [spend.epsilon for spend in made.spends] == [1, 1, 1]
    assert made.noise[0].statistics == "each node of layer 1, split by a and b"
    assert Steps(epsilon=1, order=(("a", "b"), "c")).plan(SCHEMA) == Steps(
        epsilon=1, order=("a+b", "c")
    ).plan(SCHEMA)
    plus = Schema.model_validate(
        {"columns": {"a+b": {"levels": [0, 1]}, "a": {"levels": [0, 1]}}}
    )
    assert Steps(epsilon=1, order=("a+b",)).plan(plus).design.splitter == GivenColumns(
        (0,)
    )


SHARED = {"equal": ("1/3", "1/3", "1/3"), "half-to-leaves": ("1/4", "1/4", "1/2")}
SHARED["0.2", 0.3, Fraction(1, 2)] = ("1/5", "3/10", "1/2")
SHARED["0.4", "0.5"] = ("1/10", "2/5", "1/2")  # after an election


@pytest.mark.parametrize(("budget", "parts"), SHARED.items(), ids=str)
def test_budgets(budget, parts):
    tree = {"layers": 1} if len(budget) == 2 else {"order": ("a", "b")}
    made = Steps(epsilon=1, budget=budget, n_sets=4, split="per-set", **tree)
    assert [4 * step.price for step in made.plan(SCHEMA).steps] == [
        *map(Fraction, parts)
    ]


def test_a_budget_from_the_command_line(tmp_path, pdips):
    random_table(schema_of(2, 2, 2), 20).frame.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "s.toml").write_text(schema_of(2, 2, 2).to_toml())
    words = [
        "synthesize",
        tmp_path / "t.csv",
        "--schema",
        tmp_path / "s.toml",
        "--mechanism",
        "steps",
        "--epsilon",
        1,
    ]
    for i, budget in enumerate(("equal", "0.25,0.75")):
        pdips.ok(
            *words,
            "--option",
            "order=a+b",
            "--option",
            f"budget={budget}",
            "--out",
            tmp_path / f"out{i}",
        )
    words += [
        "--option",
        "order=a+b",
        "--option",
        "budget=0.25,0.5",
        "--out",
        tmp_path / "out9",
    ]
    pdips.fails("budget adds up to 0.75; it must add up to 1", *words)


@pytest.mark.parametrize(("settings", "message"), cases(__file__, "steps_settings"))
def test_settings_that_contradict_each_other(settings, message):
    refuses(message, Steps, epsilon=1, **settings)


@pytest.mark.parametrize(("settings", "message"), cases(__file__, "margins_settings"))
def test_settings_of_views_and_of_pairs_exclude_each_other(settings, message):
    assert message in refuses("", Margins, epsilon=1, **settings)


@pytest.mark.parametrize(
    ("columns", "settings", "measure"),
    [
        ({}, {}, "views"),
        ({}, {"measure": "pairs"}, "pairs"),
        ({}, {"products": ()}, "views"),
        ({}, {"chosen": 2}, "chosen"),
        ({}, {"measure": "chosen"}, "chosen"),
        ({"pay": {"lower": 0, "upper": 9}}, {}, "chosen"),
        ({"pay": {"lower": 0, "upper": 9}}, {"epsilon": 4}, "chosen"),
        ({"pay": {"lower": 0, "upper": 9}}, {"neighbours": "add-remove"}, "chosen"),
        ({"pay": {"lower": 0, "upper": 9}}, {"sets": "posterior"}, "pairs"),
        ({"pay": {"lower": 0, "upper": 9}}, {"also": ("a", "b", "c")}, "pairs"),
        ({"pay": {"lower": 0, "upper": 9}}, {"delta": "1e-6"}, "pairs"),
        ({"pay": {"lower": 0, "upper": 9}}, {"n_sets": 2}, "pairs"),
        (
            {"pay": {"lower": 0, "upper": 9}},
            {"n_sets": 2, "measure": "chosen"},
            "chosen",
        ),
        ({"pay": {"lower": 0, "upper": 9}}, {"second_share": "1/2"}, "pairs"),
        ({"job": {"levels": ["a1", "a2", "b1"], "groups": 1}}, {}, "pairs"),
        ({"code": {"levels": list(range(4_000))}}, {}, "views"),
        ({name: {"levels": list(range(200))} for name in "xyz"}, {}, "pairs"),
    ],
)
def test_what_is_measured_follows_from_schema_and_settings(columns, settings, measure):
    pairs = {name: {"levels": [0, 1]} for name in "abcd"}
    schema = Schema.model_validate({"columns": {**pairs, **columns}})
    made = Margins(**{"epsilon": 1, **settings})
    assert made.measures(schema) == measure
    plan = made.plan(schema)
    assert bool(getattr(plan.design, "views", ())) == (measure == "views")
    # what is published leads to the same plan again
    stated = json.loads(json.dumps(made.settings()))
    again = Margins(**stated).plan(schema)
    assert [step.facts() for step in again.steps] == [
        step.facts() for step in plan.steps
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"columns": {"pay": {"lower": 0, "upper": 9}}}, "needs? bins"),
        (
            {
                "columns": {"rent": {"levels": ["low", "high"]}},
                "members": {
                    "key": "id",
                    "most": 2,
                    "columns": {"sex": {"levels": ["f", "m"]}},
                },
            },
            "views take no members",
        ),
    ],
)
def test_views_refuse_what_pairs_alone_count(content, said):
    schema = Schema.model_validate(content)
    refuses(said, Margins(epsilon=1, measure="views").plan, schema)
    refuses(said, Margins(epsilon=1, n_sets=2, split="per-set").plan, schema)
    assert Margins(epsilon=1).plan(schema).steps


@pytest.mark.parametrize(("settings", "message"), cases(__file__, "steps_shapes"))
def test_settings_that_do_not_fit_the_schema(settings, message):
    assert message in refuses("", Steps(epsilon=1, **settings).spends, SCHEMA)


UNPRINTED = {
    "below": "views",
    "stop": 1,
    "budget": "equal",
    "elect": "groups",
    "utility": "bic",
}


@pytest.mark.parametrize(
    ("option", "value"), [*UNPRINTED.items(), ("neighbours", "add-remove")]
)
def test_the_printed_form_refuses_what_the_papers_have_not(option, value):
    refuses(
        r"variant 'published'|replace-one",
        published("steps"),
        epsilon=1,
        **{option: value},
    )


def test_tables_that_are_too_large_or_too_small():
    large, said = (
        schema_of(300, 300, 300),
        ("at most 16,777,216 cells; these columns have 27,000,000 together"),
    )
    for settings in ({"below": "views"}, {"layers": 2, "stop": 1}):
        refuses(said, Steps(epsilon=1, **settings).spends, large)
    refuses(said, Margins(epsilon=1, measure="views").spends, large)
    assert Steps(epsilon=1).spends(large)
    said = "divides 2 to 16 columns that aren't public, not 1"
    refuses(said, Steps(epsilon=1, elect="groups").spends, schema_of(3))


def associated(n: int = 5000) -> Table:
    """Eight columns of two to five levels, each nearly a function of the one before."""
    rng, sizes = np.random.default_rng(0), (4, 3, 5, 2, 4, 3, 5, 2)
    columns = [rng.integers(4, size=n)]
    for size in sizes[1:]:
        columns.append(
            np.where(
                rng.random(n) < 0.15, rng.integers(size, size=n), columns[-1] % size
            )
        )
    return table_of(np.column_stack(columns), schema_of(*sizes))


@pytest.mark.slow
def test_two_way_margins_are_kept_far_better_than_by_others():
    # mean over 28 pairs and 3 releases at epsilon 1; the margins asked for leave room
    # for noise of other seeds
    table = associated()

    def distance(build):
        return np.mean(
            [
                k_way(table, released(build(epsilon=1), table, seed).sets, 2)["mean"]
                for seed in range(3)
            ]
        )

    found = {
        build.name: distance(build) for build in (Margins, LaplaceSanitizer, PrivBayes)
    }
    assert found["margins"] < 0.06, found
    assert found["margins"] < 0.5 * found["laplace-sanitizer"], found
    assert found["margins"] < 0.8 * found["privbayes"], found


WHOLE = [
    Steps(epsilon=5000, **more)
    for more in ({"layers": 2, "below": "views"}, {"elect": "groups"})
]
WHOLE.append(Margins(epsilon=5000, sets="fitted"))
WHOLE += [
    UniversalHistogram(epsilon=5000, attribute="age", fan_out=3, split=split)
    for split in ("once", "per-set")
]


@pytest.mark.parametrize("mechanism", WHOLE, ids=repr)
def test_public_columns_zeros_missing_values_and_bins(mechanism):
    table = people()
    for frame in released(replace(mechanism, n_sets=2), table).sets:
        other = Table(frame, ALL_SORTS)  # refuses what is impossible
        for name in ("age", "works", "wage"):
            wanted, found = (
                pd.crosstab(t.codes["region"], t.codes[name]) for t in (table, other)
            )
            assert (wanted - found).abs().max(axis=None) <= 2
        assert (
            frame["region"].value_counts().to_dict()
            == table.frame["region"].value_counts().to_dict()
        )


def test_public_totals_are_met_to_more_than_single_precision():
    # large tables: a total that is off by a thousandth would now and then put a record
    # beside the wrong public cell
    public = {"p": {"levels": list(range(9)), "public": True}}
    schema = Schema(
        columns=public | {"b": {"levels": list(range(40))}, "c": {"levels": [0, 1]}}
    )
    totals = np.arange(9) * 1_234_567 + 89
    plan = Margins(epsilon=1).plan(schema)
    measured = replace(grown(plan, random_table(schema, 50)), observed=[totals])
    estimate = synthesis.estimate(measured, plan.design, n_public=True)
    assert (
        np.abs(np.bincount(estimate.parents[0], weights=estimate.values) - totals).max()
        < 1e-6
    )


def test_add_remove_never_uses_the_number_of_records():
    # the same noisy margins for tables of different size give the same release
    schema = schema_of(2, 3, 2)
    plan = Margins(epsilon=1, neighbours="add-remove").plan(schema)
    assert not plan.n_public
    sizes, estimates = [], []
    for n in (20, 400):
        measured = grown(plan, random_table(schema, n))
        assert not measured.observed[0].any()
        held = replace(measured, views=(np.arange(12) + 3,))
        estimates.append(synthesis.estimate(held, plan.design, n_public=False))
        sizes.append(
            len(
                released(
                    Margins(epsilon=50, neighbours="add-remove"),
                    random_table(schema, n),
                ).sets[0]
            )
        )
    assert estimates[0].n_records == estimates[1].n_records == 102
    assert (estimates[0].values == estimates[1].values).all()
    assert [abs(found - n) < 10 for found, n in zip(sizes, (20, 400), strict=True)] == [
        True,
        True,
    ]


def test_sets_of_their_own_have_margins_of_their_own():
    made = released(
        Margins(epsilon=1, n_sets=3, split="per-set"),
        random_table(schema_of(12, 12, 12), 300),
    )
    assert {name.split(", ")[0] for name in made.statistics} == {
        "set 1",
        "set 2",
        "set 3",
    }
    first, second = (
        made.statistics[f"set {i}, the margin of a, b"]["noisy_count"] for i in (1, 2)
    )
    assert (first != second).any()
    assert len(made.statistics) == 9
    assert len(made.spends) == 9
    assert sum(spend.epsilon for spend in made.spends) == 1
    assert made.noise[0].scale == pytest.approx(
        3 * released(Margins(epsilon=1), people()).noise[0].scale * 3, rel=0.05
    )


def test_a_column_of_very_many_levels_can_stand_on_top_of_views():
    # 40,000 levels: more than 16 bits hold, and the node of every cell is looked up
    schema, rng = schema_of(40_000, 2), np.random.default_rng(0)
    table = table_of(
        np.column_stack([rng.integers(39_990, 40_000, 500), rng.integers(2, size=500)]),
        schema,
    )
    release, _ = Steps(epsilon=1000, order=("a",), below="views").release(
        table, rng=rng
    )
    assert (release.sets[0]["a"] >= 39_990).mean() > 0.9


def pair_coverage(sets: str, n_tables: int, m: int = 8, n: int = 1000) -> float:
    """Return how often T = (1 + 1/m) B covers two-way counts of the population that
    tables are drawn from.
    """
    schema, held = schema_of(2, 3, 3), []
    law = np.random.default_rng(0).dirichlet(np.full(18, 4.0)).reshape(2, 3, 3)
    for number in range(n_tables):
        rng = np.random.default_rng([1, number])
        rows = np.column_stack(
            np.unravel_index(rng.choice(18, n, p=law.ravel()), law.shape)
        )
        release, _ = Margins(epsilon=1, n_sets=m, sets=sets).release(
            table_of(rows, schema), rng=rng
        )
        for i, j in ((0, 1), (0, 2), (1, 2)):
            true = n * law.sum(axis=3 - i - j)
            pairs = [
                one.iloc[:, [i, j]].astype(int).value_counts().to_dict()
                for one in release.sets
            ]
            counts = np.array(
                [
                    [pair.get(cell, 0) for cell in np.ndindex(true.shape)]
                    for pair in pairs
                ]
            )
            reach = stats.t.ppf(0.975, m - 1) * np.sqrt(
                (1 + 1 / m) * counts.var(axis=0, ddof=1)
            )
            held.append(np.abs(counts.mean(axis=0) - true.ravel()) <= reach)
    return float(np.concatenate(held).mean())


@pytest.mark.slow
def test_sets_with_fresh_noise_cover_the_population():
    # about 600 intervals of 95 % that hang together: their share has a standard error
    # of about .011; twin: without
    assert 0.91 < pair_coverage("posterior", 30) < 0.985
    assert pair_coverage("fitted", 5) < 0.5
