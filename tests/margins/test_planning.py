"""Standard errors told before a release, against dense least squares and against real releases."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from margin_tables import dense_covariance, groups_of, released
from tables import all_records, bits, cases, grown, random_table, refuses, runs_of, scales_of, schema_of

from pdips import Steps, suggest_layers
from pdips.margins import planning
from pdips.margins.consistency import consistent
from pdips.privacy.noise import discrete_laplace_variance

SCALES = (Fraction(5), Fraction(1, 2), Fraction(3), Fraction(7, 3))


def leaves_of(schema) -> np.ndarray:
    """All cells of the full table that can occur."""
    every = np.array(all_records(schema))
    level, possible = dict(zip(schema.columns, every.T, strict=True)), np.ones(len(every), dtype=bool)
    for rule in schema.zeros():
        possible &= ~np.all([np.isin(level[name], codes) for name, codes in rule.items()], axis=0)
    return every[possible]


def dense_variances(schema, order, scales, neighbours, margin) -> np.ndarray:
    """Least squares by its normal equations, groups of cells as rows: nothing here knows of trees."""
    leaves, names = leaves_of(schema), list(schema.columns)
    public, split = ([names.index(name) for name in some] for some in (schema.public_columns, order[: len(scales) - 1]))
    held = [*(public + split[:depth] for depth in range(1, len(scales))), range(len(names))]
    counted = [groups_of(leaves[:, columns]) for columns in held]
    variances = np.repeat([discrete_laplace_variance(scale) for scale in scales], [*map(len, counted)])
    exact = groups_of(leaves[:, public]) if neighbours == "replace-one" else ()
    picks = groups_of(leaves[:, [names.index(name) for name in margin]])
    return np.diag(picks @ dense_covariance(np.concatenate(counted), variances, exact) @ picks.T)


def margins_of(schema):
    return [margin for size in (1, 2) for margin in combinations(schema.columns, size)]


PUBLIC = schema_of(2, 3, 2, 2).model_copy(
    update={"columns": {n: c.model_copy(update={"public": n == "b"}) for n, c in schema_of(2, 3, 2, 2).columns.items()}}
)


@pytest.mark.parametrize(
    ("schema", "neighbours"),
    [(schema_of(2, 3, 2, 4), "replace-one"), (schema_of(2, 3, 2, 4), "add-remove"), (PUBLIC, "replace-one")],
)
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_errors_are_those_of_dense_least_squares(schema, neighbours, layers):
    order, scales = ("c", "a", "d"), SCALES[: layers + 1]
    told = planning.margin_errors(schema, order=order, layers=layers, scales=scales, neighbours=neighbours)
    for row, margin in zip(told.itertuples(), margins_of(schema), strict=True):
        assert row.margin == " x ".join(margin)
        variances = dense_variances(schema, order, scales, neighbours, margin)
        assert row.cells == len(variances)
        assert np.abs(variances - row.se_records**2).max() < 1e-9 * max(1, variances.max())


def test_structural_zeros_only_help(neighbours):
    schema = schema_of(2, 3, 2, 2, impossible=[{"a": 1, "b": [0, 2]}, {"b": 1, "c": 0, "d": 1}])
    order, scales = ("b", "a"), SCALES[:3]
    bounds = planning.margin_errors(schema, order=order, scales=scales, neighbours=neighbours)["se_records"]
    closer = 0
    for bound, margin in zip(bounds, margins_of(schema), strict=True):
        found = dense_variances(schema, order, scales, neighbours, margin)
        assert found.max() <= bound**2 + 1e-9
        closer += found.max() < bound**2 - 1e-6
    assert closer > 3


def released_margins(mechanism) -> dict[str, np.ndarray]:
    """Margins of 3,000 real releases of a small table: least squares counts before they are made nonnegative."""
    table = random_table(schema_of(3, 2, 2), 40)
    measured = grown(mechanism.plan(table.schema), table)
    rows = runs_of(mechanism, table, 3000, bits(7))
    counts = np.split(rows[:, -21:].astype(float), [3, 9], axis=1)  # what the releases show, below the top
    counts = zip(*counts, strict=True)
    made = [consistent(measured.parents, [np.array([40.0]), *each], measured.variances)[0][-1] for each in counts]
    levels = np.column_stack([measured.levels(np.arange(12), place) for place in range(3)])
    places = {" x ".join(margin): ["abc".index(name) for name in margin] for margin in margins_of(table.schema)}
    return {name: groups_of(levels[:, columns]) @ np.transpose(made) for name, columns in places.items()}


def worst_deviation(found, told) -> float:
    """Largest distance of an empirical variance from the told one, in its own Monte Carlo standard errors."""
    worst = 0.0
    for margin, draws in found.items():
        squares = (draws - draws.mean(axis=1, keepdims=True)) ** 2
        error = squares.std(axis=1) / math.sqrt(draws.shape[1])
        expected = told.set_index("margin").loc[margin, "se_records"] ** 2
        worst = max(worst, float(np.abs((squares.mean(axis=1) - expected) / error).max()))
    return worst


def test_errors_are_those_of_real_releases(neighbours):
    # 23 cells, each beyond 4 standard errors with probability 6e-5 if the law were normal: 0.2 % in all, seed fixed
    mechanism = Steps(epsilon=1, order=("a", "b"), layers=2, neighbours=neighbours)
    found, scales = released_margins(mechanism), scales_of(mechanism, schema_of(3, 2, 2))

    def deviation(order=("a", "b"), **settings):
        told = planning.margin_errors(schema_of(3, 2, 2), order=order, neighbours=neighbours, **settings)
        return worst_deviation(found, told)

    assert deviation(scales=scales) < 4
    # broken twins: the budget of another rule, another order, 10 % less noise
    assert deviation(epsilon=1, budget="half-to-leaves") > 6
    assert deviation(("b", "a"), scales=scales) > 6
    assert deviation(scales=[scale * Fraction(9, 10) for scale in scales]) > 6


def test_suggestions_are_sorted_and_their_budgets_can_be_used():
    schema, n, order = schema_of(4, 2, 3, 2), 1000, ("b", "d", "c")
    found = suggest_layers(schema, n, "0.7", order=order)
    assert set(found["layers"]) == {0, 1, 2, 3}
    assert set(found["budget"]) == {"equal", "half-to-leaves", "optimal", "margins"}
    rank = list(zip(-found["usable"], found["two_way_median"], strict=True))
    assert rank == sorted(rank)
    assert found["usable"].nunique() > 1
    assert (found["cells"] == 48).all()
    assert [sum(each) for each in found["epsilons"]] == [Fraction(7, 10)] * len(found)
    for row in found[found["budget"] != "margins"].itertuples():
        told = planning.margin_errors(schema, n, "0.7", order=order, layers=row.layers, budget=row.epsilons)
        percent, two = 100 * told["se_share"], told["margin"].str.contains(" x ")
        assert row.two_way_median == pytest.approx(percent[two].median())
        assert row.one_way_worst == pytest.approx(percent[~two].max())
        assert row.usable == (percent <= 1).sum()


def test_margins_are_told_as_a_release_tells_them():
    schema, n = schema_of(12, 12, 12), 1000
    found = suggest_layers(schema, n, 2)
    (row,) = found[found["budget"] == "margins"].itertuples()
    release = released(Steps(epsilon=2), random_table(schema, n))
    errors = {item.columns: 100 * item.standard_error / n for item in release.margin_errors}
    worst = [max(error for columns, error in errors.items() if len(columns) == size) for size in (1, 2)]
    assert [row.one_way_worst, row.two_way_worst] == pytest.approx(worst)
    assert row.epsilons == tuple(spend.epsilon for spend in release.spends)
    assert row.cells == 3 * 144


def test_sets_of_their_own_share_epsilon():
    one, three = (suggest_layers(schema_of(2, 3, 2), 500, 1, n_sets=n_sets) for n_sets in (1, 3))
    assert sum(three["epsilons"][0]) == Fraction(1, 3)
    assert three["two_way_median"].min() > 2.5 * one["two_way_median"].min()


def test_one_column_and_public_columns_are_suggested_for():
    assert set(suggest_layers(schema_of(5), 100, 1)["budget"]) == {"margins", "equal"}
    found = suggest_layers(PUBLIC, 100, 1)
    assert found["one_way_median"].min() > 0  # the public column, which is exact, isn't counted
    assert set(found["layers"]) == {0, 1, 2}
    refuses("'b' is no column of the schema that could be split by", suggest_layers, PUBLIC, 10, 1, order=("b",))


@pytest.mark.parametrize("by", ["one-way", "two-way"])
def test_the_best_budget_is_the_best(neighbours, by):
    schema, order = schema_of(4, 2, 3, 2, 5), ("c", "b", "a")
    best = planning.budgets(planning.column_tree(schema, order, 3, neighbours), Fraction("1.3"), "optimal", by)
    assert sum(best) == Fraction(13, 10)
    assert all((part * 1000 / Fraction(13, 10)).denominator == 1 for part in best)
    wanted = 2 if by == "two-way" else 1

    def cost(epsilons):
        scales = planning.layer_scales(schema, "1.3", epsilons, neighbours)
        told = planning.margin_errors(schema, order=order, scales=scales, neighbours=neighbours)
        return (told["se_records"][[len(m) == wanted for m in margins_of(schema)]] ** 2).mean()

    rng, least = np.random.default_rng(0), cost(best)
    for _ in range(50):
        parts = planning._whole_parts(rng.dirichlet(np.full(4, 0.5)))
        assert cost([Fraction(13 * part, 10_000) for part in parts]) > least * 0.995  # its law has whole thousandths
    assert cost([Fraction(13, 40)] * 4) > least * 1.05  # the twin that shares alike is worse


def test_persons_with_several_records_have_more_noise():
    capped = (schema_of(2, 3, records={"max_per_person": cap}) for cap in (1, 2))
    one, two = (planning.margin_errors(schema, 10, 1)["se_records"] for schema in capped)
    assert (two / one).to_numpy() == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(("ask", "settings", "message"), cases(__file__, "bad_settings"))
def test_bad_settings(ask, settings, message):
    refuses(message, getattr(planning, ask), schema_of(2, 3, 2), **{"n": 10, "epsilon": 1, **settings})
