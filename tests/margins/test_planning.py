"""Standard errors told before a release, against dense least squares and against real releases."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from tables import random_table, refuses, runs_of, scales_of, schema_of

from pdips import Steps, suggest_layers
from pdips.margins import planning
from pdips.margins.consistency import consistent
from pdips.margins.domain import cells, domain_of, split_by, top_layer
from pdips.privacy.noise import RandomBits, discrete_laplace_variance

SCALES = (Fraction(5), Fraction(1, 2), Fraction(3), Fraction(7, 3))


def leaves_of(schema) -> np.ndarray:
    """All cells of the full table that can occur."""
    found = []
    for cell in product(*(range(column.n_levels) for column in schema.columns.values())):
        levels = dict(zip(schema.columns, cell, strict=True))
        if not any(all(levels[name] in codes for name, codes in rule.items()) for rule in schema.zeros()):
            found.append(cell)
    return np.array(found)


def dense_variances(schema, order, scales, neighbours, margin) -> np.ndarray:
    """Least squares by its normal equations, groups of cells as rows: nothing here knows of trees."""
    leaves, names = leaves_of(schema), list(schema.columns)
    public = [names.index(name) for name in schema.public_columns]
    design, weights, exact_rows = [], [], []
    split = [names.index(name) for name in order[: len(scales) - 1]]
    for depth, scale in enumerate(scales, start=1):
        held = public + split[:depth] if depth < len(scales) else list(range(len(names)))
        for group in np.unique(leaves[:, held], axis=0):
            design.append((leaves[:, held] == group).all(axis=1))
            weights.append(1 / discrete_laplace_variance(scale))
    if neighbours == "replace-one":
        groups = np.unique(leaves[:, public], axis=0) if public else [None]
        exact_rows = [np.ones(len(leaves)) if g is None else (leaves[:, public] == g).all(axis=1) for g in groups]
    null = np.eye(len(leaves))
    if exact_rows:
        _, singular, rows = np.linalg.svd(np.array(exact_rows, dtype=float))
        null = rows[(singular > 1e-9).sum() :].T
    reduced = np.array(design, dtype=float) @ null
    covariance = null @ np.linalg.inv(reduced.T @ (np.array(weights)[:, None] * reduced)) @ null.T
    places = [names.index(name) for name in margin]
    sizes = [schema.columns[name].n_levels for name in margin]
    picks = np.array([(leaves[:, places] == cell).all(axis=1) for cell in np.ndindex(*sizes)], dtype=float)
    return np.einsum("ij,jk,ik->i", picks, covariance, picks)


def margins_of(schema):
    names = list(schema.columns)
    return [(a,) for a in names] + [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]


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


def released_margins(neighbours: str) -> tuple[dict[str, np.ndarray], Steps]:
    """Margins of 3,000 real releases of a small table: least squares counts before they are made nonnegative."""
    schema = schema_of(3, 2, 2)
    mechanism = Steps(epsilon=1, order=("a", "b"), layers=2, neighbours=neighbours)
    rows = runs_of(mechanism, random_table(schema, 40), 3000, RandomBits(np.random.default_rng(7)))
    domain = domain_of(schema)
    layers = [top_layer(domain)]
    for column in (0, 1):
        layers.append(split_by(domain, layers[-1], np.full(layers[-1].n_nodes, column)))
    bottom = cells(domain, layers[-1])
    parents = [layer.parent for layer in (*layers[1:], bottom.layer)]
    ends = np.cumsum([1, 3, 6, 12])
    noise = [
        np.full(n, discrete_laplace_variance(s)) for n, s in zip((3, 6, 12), scales_of(mechanism, schema), strict=True)
    ]
    top = np.array([0.0 if neighbours == "replace-one" else np.inf])
    counts = np.column_stack([np.full(len(rows), 40), rows[:, -21:]])  # the top, and what the releases show
    made = np.array(
        [consistent(parents, np.split(row, ends[:-1]), [top, *noise])[0][-1] for row in counts.astype(float)]
    )
    everything = np.arange(12)
    levels = np.column_stack([bottom.levels(everything, place) for place in range(3)])
    found = {}
    for margin in margins_of(schema):
        key = np.unique(levels[:, ["abc".index(name) for name in margin]], axis=0, return_inverse=True)[1]
        found[" x ".join(margin)] = np.array([made[:, key == cell].sum(axis=1) for cell in range(key.max() + 1)])
    return found, mechanism


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
    found, mechanism = released_margins(neighbours)
    schema = schema_of(3, 2, 2)
    same = {"order": ("a", "b"), "neighbours": neighbours}
    assert worst_deviation(found, planning.margin_errors(schema, scales=scales_of(mechanism, schema), **same)) < 4
    # broken twins: the budget of another rule, another order, 10 % less noise
    assert worst_deviation(found, planning.margin_errors(schema, epsilon=1, budget="half-to-leaves", **same)) > 6
    other = {**same, "order": ("b", "a")}
    assert worst_deviation(found, planning.margin_errors(schema, scales=scales_of(mechanism, schema), **other)) > 6
    less = [scale * Fraction(9, 10) for scale in scales_of(mechanism, schema)]
    assert worst_deviation(found, planning.margin_errors(schema, scales=less, **same)) > 6


def test_suggestions_are_sorted_and_their_budgets_can_be_used():
    schema, n = schema_of(4, 2, 3, 2), 1000
    found = suggest_layers(schema, n, "0.7", order=("b", "d", "c"))
    assert set(found["layers"]) == {0, 1, 2, 3}
    assert set(found["budget"]) == {"equal", "half-to-leaves", "optimal", "margins"}
    rank = list(zip(-found["usable"], found["two_way_median"], strict=True))
    assert rank == sorted(rank)
    assert found["usable"].nunique() > 1
    assert (found["cells"] == 48).all()
    for row in found.itertuples():
        assert sum(row.epsilons) == Fraction(7, 10)
        if row.budget == "margins":
            continue
        told = planning.margin_errors(
            schema, n, "0.7", order=("b", "d", "c"), layers=row.layers, budget=row.epsilons
        ).assign(two=lambda frame: frame["margin"].str.contains(" x "))
        percent = 100 * told["se_share"]
        assert row.two_way_median == pytest.approx(percent[told["two"]].median())
        assert row.one_way_worst == pytest.approx(percent[~told["two"]].max())
        assert row.usable == (percent <= 1).sum()


def test_margins_are_told_as_a_release_tells_them():
    schema, n = schema_of(12, 12, 12), 1000
    found = suggest_layers(schema, n, 2)
    (row,) = found[found["budget"] == "margins"].itertuples()
    release, _ = Steps(epsilon=2).release(random_table(schema, n), rng=np.random.default_rng(0))
    errors = {item.columns: 100 * item.standard_error / n for item in release.margin_errors}
    assert row.one_way_worst == pytest.approx(max(error for columns, error in errors.items() if len(columns) == 1))
    assert row.two_way_worst == pytest.approx(max(error for columns, error in errors.items() if len(columns) == 2))
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


def test_whole_parts_add_up():
    rng = np.random.default_rng(0)
    for n in (1, 2, 7, 15):
        for _ in range(50):
            parts = planning._whole_parts(rng.dirichlet(np.full(n, 0.2)))
            assert sum(parts) == 1000
            assert min(parts) >= 1


def test_persons_with_several_records_have_more_noise():
    one, two = (
        planning.margin_errors(schema_of(2, 3, records={"max_per_person": cap}), 10, 1)["se_records"] for cap in (1, 2)
    )
    assert (two / one).to_numpy() == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: suggest_layers(s, 10, 1, order=("a", "z")), "'z' is no column"),
        (lambda s: suggest_layers(s, 10, 1, order=()), "order must name"),
        (lambda s: suggest_layers(s, 10, 1, order=("a", "a")), "none twice"),
        (lambda s: suggest_layers(s, 0, 1), "n must be a whole number of at least 1, got 0"),
        (lambda s: suggest_layers(s, True, 1), "n must be"),
        (lambda s: suggest_layers(s, 10, 0), "epsilon must be above 0"),
        (lambda s: suggest_layers(s, 10, 1, n_sets=0), "n_sets must be"),
        (lambda s: suggest_layers(s, 10, 1, by="three-way"), "by must be one of"),
        (lambda s: suggest_layers(s, 10, 1, neighbours="near"), "neighbours must be one of"),
        (lambda s: planning.margin_errors(s, 10, 1, layers=1, budget=("0.5", "0.4")), "add up to 9/10, not to"),
        (lambda s: planning.margin_errors(s, 10, 1, layers=1, budget=("1.5", "-0.5")), "of a layer must be above 0"),
        (lambda s: planning.margin_errors(s, 10, 1, layers=1, budget=("0.5", "0.25", "0.25")), "2 layers with noise"),
        (lambda s: planning.margin_errors(s, 10, 1, budget="all"), "budget must be one of"),
        (lambda s: planning.margin_errors(s, 10, 1, layers=4), "layers must be a whole number from 0 to the 3"),
        (lambda s: planning.margin_errors(s, 10, 1, scales=(Fraction(1),)), "either epsilon or scales"),
        (lambda s: planning.margin_errors(s, 10), "either epsilon or scales"),
        (lambda s: planning.column_tree(s, ("a",), 2), "from 0 to the 1"),
    ],
)
def test_bad_settings(call, message):
    refuses(message, call, schema_of(2, 3, 2))
