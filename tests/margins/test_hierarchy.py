"""Trees and cells against pandas' own grouping, structural zeros by brute force, and the law of what is released."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pytest
from laws import ACCEPT, REJECT, chi_square, two_samples
from scipy import stats
from tables import grown, plan_of_tree, random_table, refuses, runs_and_releases, runs_of, schema_of, table_of

from pdips import InputError, LaplaceSanitizer, Schema, Steps, Table
from pdips.margins import domain as layers
from pdips.margins.tree import election_scores
from pdips.privacy.replay import exact_law

RULES = [{"a": 1, "b": [0, 2]}, {"b": 1, "c": 0, "d": 1}]


def frame_of(table: Table) -> pd.DataFrame:
    return pd.DataFrame(table.codes)


def every_cell(domain: layers.Domain, chosen) -> tuple[layers.Cells, np.ndarray]:
    layer = layers.top_layer(domain)
    for choose in chosen:
        layer = layers.split_by(domain, layer, choose(layer))
    bottom = layers.cells(domain, layer)
    numbers = np.arange(bottom.layer.n_nodes)
    return bottom, np.column_stack([bottom.levels(numbers, column) for column in range(len(domain.names))])


def branching(layer: layers.Layer) -> np.ndarray:
    """Split node k by the k-th column that it has left, so that branches differ."""
    return np.array([np.flatnonzero(path < 0)[k % (path < 0).sum()] for k, path in enumerate(layer.path)])


class Branching:
    """A splitter whose branches differ."""

    def columns(self, number, layer, position, curator, rng):
        return branching(layer)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_cells_are_all_combinations_once_and_impossible_where_they_break_a_rule(depth):
    bottom, levels = every_cell(layers.domain_of(schema_of(2, 3, 2, 4, impossible=RULES)), [branching] * depth)
    assert sorted(map(tuple, levels)) == sorted(product(range(2), range(3), range(2), range(4)))
    for (a, b, c, d), possible in zip(levels, bottom.layer.possible, strict=True):
        assert possible == (not (a == 1 and b in (0, 2)) and not (b == 1 and c == 0 and d == 1))


@pytest.mark.usefixtures("silence")
def test_counts_are_those_of_pandas():
    table = random_table(schema_of(2, 3, 2, 4), 500)
    measured = grown(plan_of_tree(table.schema, [Fraction(1)] * 3, Branching()), table)
    frame = frame_of(table)
    for layer, counts in zip(measured.layers[1:-1], measured.observed[1:-1], strict=True):
        for path, count in zip(layer.path, counts, strict=True):
            mine = np.logical_and.reduce(
                [frame[n] == level for n, level in zip(frame, path, strict=True) if level >= 0]
            )
            assert count == mine.sum()
    levels = np.column_stack([measured.levels(np.arange(48), column) for column in range(4)])
    counted = frame.value_counts().to_dict()
    assert [counted.get(tuple(map(int, row)), 0) for row in levels] == measured.observed[-1].tolist()


@pytest.mark.parametrize("depth", [1, 3, 4])
@pytest.mark.parametrize("order", [None, ("d", "b", "a", "c")])
def test_any_number_of_layers_works(depth, order, neighbours):
    table = random_table(schema_of(2, 3, 2, 4), 40)
    mechanism = Steps(epsilon=50, n_sets=2, layers=depth, order=order, neighbours=neighbours)
    release, _ = mechanism.release(table, rng=np.random.default_rng(0))
    assert len(release.sets) == 2
    assert sum(spend.epsilon for spend in release.spends) == 50
    if neighbours == "replace-one":
        assert [len(frame) for frame in release.sets] == [40, 40]
    # at this epsilon the noise hardly matters: the synthetic table is nearly the table
    ours, theirs = (
        frame_of(table).value_counts(),
        pd.DataFrame(Table(release.sets[0], table.schema).codes).value_counts(),
    )
    assert ours.sub(theirs, fill_value=0).abs().sum() <= 8


def test_structural_zeros_stay_empty():
    schema = schema_of(2, 3, 2, 4, impossible=RULES)
    possible = list(product(range(2), range(3), range(2), range(4)))
    possible = [
        r for r in possible if not (r[0] == 1 and r[1] in (0, 2)) and not (r[1] == 1 and r[2] == 0 and r[3] == 1)
    ]
    table = table_of(possible * 2, schema)
    steps = Steps(epsilon="0.1", layers=2, n_sets=2, split="per-set")
    for mechanism in (LaplaceSanitizer(epsilon="0.1", n_sets=2), steps):
        release, _ = mechanism.release(table, rng=np.random.default_rng(0))
        for frame in release.sets:
            Table(frame, schema)  # refuses impossible combinations
        cells = release.statistics["set 1, cells" if mechanism.name == "steps" else "cells"]["noisy_count"]
        assert (cells == 0).sum() >= 48 - len(possible)


PUBLIC = Schema.from_toml("""
[columns]
region = { levels = ["n", "s"], public = true }
age = { lower = 0, upper = 100, bins = 4, public = true }
ill = { levels = [false, true] }
smokes = { levels = [false, true] }
""")


def public_table(n: int = 60) -> Table:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"region": rng.choice(["n", "s"], n), "age": rng.uniform(0, 100, n)})
    return Table(frame.assign(ill=rng.random(n) < 0.3, smokes=rng.random(n) < 0.5), PUBLIC)


@pytest.mark.parametrize(
    "mechanism", [LaplaceSanitizer(epsilon=1, n_sets=2), Steps(epsilon=1, layers=1), Steps(epsilon=1, order=("ill",))]
)
def test_public_columns_are_copied_and_the_statement_says_so(mechanism):
    table = public_table()
    release, _ = mechanism.release(table, rng=np.random.default_rng(0))
    wanted = table.frame[["region", "age"]].sort_values(["region", "age"], ignore_index=True)
    for frame in release.sets:
        pd.testing.assert_frame_equal(frame[["region", "age"]], wanted)
    assert "not protected in any way: region, age" in release.loss.statement


def test_confidential_levels_stand_beside_their_own_public_levels():
    # numeric public columns before others, several records a bin, missing values: nothing may slip
    columns = {"age": {"lower": 0, "upper": 100, "bins": 2, "public": True, "missing": True}}
    columns |= {"place": {"levels": ["A", "B"], "public": True}, "ill": {"levels": [False, True]}}
    columns["rent"] = {"lower": 0, "upper": 10, "bins": 2, "public": True}
    schema = Schema.model_validate({"columns": columns, "impossible": [{"place": "A", "ill": True}]})
    rng = np.random.default_rng(0)
    place = rng.choice(["A", "B"], 400)
    age = np.where(rng.random(400) < 0.1, np.nan, rng.uniform(0, 100, 400))
    frame = pd.DataFrame({"age": age, "place": place, "ill": place == "B", "rent": rng.uniform(0, 10, 400)})
    for mechanism in (LaplaceSanitizer(epsilon=500), Steps(epsilon=500, layers=1)):
        made = mechanism.release(Table(frame, schema), rng=rng)[0].sets[0]
        Table(made, schema)  # refuses the impossible
        assert ((made["place"] == "B") == made["ill"]).all()
        names = ["age", "place", "rent"]
        pd.testing.assert_frame_equal(
            made[names].astype({"age": float}).sort_values(names, ignore_index=True),
            frame[names].sort_values(names, ignore_index=True),
            check_dtype=False,
        )


def test_order_and_spelling_of_public_columns_are_not_released():
    # sorted by income, the sequence of places would rank the persons; a spelling of its own would mark their source
    schema = Schema.from_toml(
        "[columns.year]\nlevels = [1994, 1995]\npublic = true\nmissing = true\n[columns.rich]\nlevels = [0, 1]"
    )
    rich = [0] * 20 + [1] * 20
    year = ["1994", "1995.0", None, "1994.0"] * 10
    by_income, shuffled = pd.DataFrame({"year": year, "rich": rich}), pd.DataFrame({"year": year[::-1], "rich": rich})
    made = [
        LaplaceSanitizer(epsilon=1).release(Table(frame, schema), rng=np.random.default_rng(0))[0].sets[0]["year"]
        for frame in (by_income, shuffled)
    ]
    pd.testing.assert_series_equal(*made)
    assert str(made[0].dtype) == "Int64"
    assert made[0].value_counts(dropna=False).to_dict() == {1994: 20, 1995: 10, pd.NA: 10}


def test_public_columns_need_a_public_number_of_records_and_something_to_synthesize():
    with pytest.raises(InputError, match="need neighbours = replace-one"):
        LaplaceSanitizer(epsilon=1, neighbours="add-remove").release(public_table())
    schema = schema_of(2).model_copy(update={"columns": {"a": PUBLIC.columns["region"]}})
    refuses("nothing to synthesize", LaplaceSanitizer(epsilon=1).spends, schema)


def noise_released(mechanism, table: Table, key: str, runs: int) -> np.ndarray:
    truth = frame_of(table)
    rng = np.random.default_rng(0)
    first = next(iter(truth))
    counts = truth[first].value_counts().reindex(range(table.schema.columns[first].n_levels), fill_value=0).to_numpy()
    draws = [mechanism.release(table, rng=rng)[0].statistics[key]["noisy_count"].to_numpy() for _ in range(runs)]
    return (np.array(draws) - counts).ravel()


@pytest.mark.parametrize(
    ("mechanism", "schema", "key", "scale"),
    [
        (LaplaceSanitizer(epsilon="1/3", neighbours="add-remove"), schema_of(500), "cells", 3),
        (Steps(epsilon="1/2", order=("a",)), schema_of(500, 2), "layer 1", 8),
    ],
)
def test_a_release_has_noise_of_its_stated_scale(mechanism, schema, key, scale):
    # 20,000 noisy counts taken from whole releases; false alarm 1e-6, twins at 0.9 and 1.1 times the scale
    draws = noise_released(mechanism, random_table(schema, 100), key, 40)
    assert chi_square(draws, stats.dlaplace(1 / scale).pmf) > ACCEPT
    for wrong in (0.9 * scale, 1.1 * scale):
        assert chi_square(draws, stats.dlaplace(1 / wrong).pmf) < REJECT


def test_elections_follow_the_scores():
    # which column splits the root, over 400 releases: binomial test, false alarm 1e-6; twin: the exponent doubled
    schema = schema_of(2, 12)
    table = table_of([(i % 2, i % 12) for i in range(60)], schema)
    mechanism, rng = Steps(epsilon="1/2", layers=1, election_share="1/4"), np.random.default_rng(0)
    chosen = [(mechanism.release(table, rng=rng)[0].statistics["layer 1"]["a"] >= 0).all() for _ in range(400)]
    domain = layers.domain_of(schema)
    scores = election_scores(domain, layers.root(domain), np.zeros(60, int), np.column_stack([*table.codes.values()]))
    unit = float(1 / mechanism.plan(schema).steps[0].scale)

    def first(factor):
        return 1 / (1 + math.exp(factor * unit * (scores[0][1] - scores[0][0])))

    assert 0.55 < first(1) < 0.999
    assert stats.binomtest(sum(chosen), 400, first(1)).pvalue > ACCEPT
    assert stats.binomtest(sum(chosen), 400, first(2)).pvalue < REJECT


def test_observed_runs_are_those_of_releases():
    # the law of many runs at once and of runs one by one is the same: two-sample tests; twin: another epsilon
    table = random_table(schema_of(2, 3), 20)
    mechanisms = [Steps(epsilon=epsilon, layers=1) for epsilon in (2, 1)]
    together, other, alone = runs_and_releases(*mechanisms, table, 4000, 400)
    varied = [column for column in range(together.shape[1]) if len(np.unique(together[:, column])) > 1]
    assert (len(alone), len(varied)) == (400, together.shape[1])
    for column in varied:
        assert two_samples(together[:, column], alone[:, column], 8) > ACCEPT
    assert two_samples(together[:, -1], other[:, -1], 8) < REJECT


def test_the_exact_law_is_that_of_the_runs():
    table, n_runs, p_values = random_table(schema_of(2, 3, 2), 20), 20_000, []
    mechanism, twin = (Steps(epsilon=epsilon, layers=2, election_share="1/2") for epsilon in (3, 6))
    hits = int((runs_of(mechanism, table, n_runs)[:, 0] == 0).sum())
    for made in (mechanism, twin):
        chances = {outcome.key: math.exp(outcome.log_probability) for outcome in exact_law(made, table).outcomes}
        assert sum(chances.values()) == pytest.approx(1)
        first = sum(chance for key, chance in chances.items() if key[0] == 0)
        p_values.append(stats.binomtest(hits, n_runs, first).pvalue)
    assert p_values[0] > ACCEPT > REJECT > p_values[1]


def test_too_many_cells_and_numbers_without_bins_are_refused():
    refuses("134,217,728 cells", layers.domain_of, schema_of(*[512] * 3))
    refuses("column 'x' needs bins", layers.domain_of, Schema.from_toml("[columns.x]\nlower = 0\nupper = 1"))
