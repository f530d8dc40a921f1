"""Standard errors told before a release of a tree, against dense least squares and
against real releases.
"""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from margin_tables import dense_covariance, groups_of
from tables import (
    all_records,
    bits,
    grown,
    random_table,
    runs_of,
    scales_of,
    schema_of,
)

from pdips import Steps
from pdips.margins import forecast
from pdips.margins.consistency import consistent
from pdips.margins.domain import domain_of
from pdips.margins.margin_error import ColumnTree
from pdips.privacy.noise import discrete_laplace_variance
from pdips.privacy.noise_sum import NoiseSum

SCALES = (Fraction(5), Fraction(1, 2), Fraction(3), Fraction(7, 3))


def leaves_of(schema) -> np.ndarray:
    """All cells of the full table that can occur."""
    every = np.array(all_records(schema))
    level, possible = (
        dict(zip(schema.columns, every.T, strict=True)),
        np.ones(len(every), dtype=bool),
    )
    for rule in schema.zeros():
        possible &= ~np.all(
            [np.isin(level[name], codes) for name, codes in rule.items()], axis=0
        )
    return every[possible]


def dense_variances(schema, order, scales, neighbours, margin) -> np.ndarray:
    """Least squares by its normal equations, groups of cells as rows: nothing here
    knows of trees.
    """
    leaves, names = leaves_of(schema), list(schema.columns)
    public, split = (
        [names.index(name) for name in some]
        for some in (schema.public_columns, order[: len(scales) - 1])
    )
    held = [
        *(public + split[:depth] for depth in range(1, len(scales))),
        range(len(names)),
    ]
    counted = [groups_of(leaves[:, columns]) for columns in held]
    variances = np.repeat(
        [discrete_laplace_variance(scale) for scale in scales], [*map(len, counted)]
    )
    exact = groups_of(leaves[:, public]) if neighbours == "replace-one" else ()
    picks = groups_of(leaves[:, [names.index(name) for name in margin]])
    return np.diag(
        picks @ dense_covariance(np.concatenate(counted), variances, exact) @ picks.T
    )


def margins_of(schema):
    return [margin for size in (1, 2) for margin in combinations(schema.columns, size)]


def errors_of(schema, order, scales, neighbours) -> dict[tuple[str, ...], NoiseSum]:
    """Return the errors of a tree that splits by as many columns as there are scales
    but that of the cells.
    """
    names = [*schema.columns]
    layer_of = {name: layer for layer, name in enumerate(order[: len(scales) - 1], 1)}
    layer_of |= dict.fromkeys(schema.public_columns, 0)
    depth = tuple(layer_of.get(name, len(scales)) for name in names)
    tree = ColumnTree(domain_of(schema), depth, neighbours == "replace-one")
    return {
        margin: tree.margin([names.index(name) for name in margin], scales)
        for margin in margins_of(schema)
    }


PUBLIC = schema_of(2, 3, 2, 2).model_copy(
    update={
        "columns": {
            n: c.model_copy(update={"public": n == "b"})
            for n, c in schema_of(2, 3, 2, 2).columns.items()
        }
    }
)


@pytest.mark.parametrize(
    ("schema", "neighbours"),
    [
        (schema_of(2, 3, 2, 4), "replace-one"),
        (schema_of(2, 3, 2, 4), "add-remove"),
        (PUBLIC, "replace-one"),
    ],
)
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_errors_are_those_of_dense_least_squares(schema, neighbours, layers):
    order, scales = ("c", "a", "d"), SCALES[: layers + 1]
    for margin, error in errors_of(schema, order, scales, neighbours).items():
        variances = dense_variances(schema, order, scales, neighbours, margin)
        assert np.abs(variances - error.variance).max() < 1e-9 * max(1, variances.max())


def test_structural_zeros_only_help(neighbours):
    schema = schema_of(
        2, 3, 2, 2, impossible=[{"a": 1, "b": [0, 2]}, {"b": 1, "c": 0, "d": 1}]
    )
    order, scales = ("b", "a"), SCALES[:3]
    closer = 0
    for margin, bound in errors_of(schema, order, scales, neighbours).items():
        found = dense_variances(schema, order, scales, neighbours, margin)
        assert found.max() <= bound.variance + 1e-9
        closer += found.max() < bound.variance - 1e-6
    assert closer > 3


def released_margins(mechanism) -> dict[tuple[str, ...], np.ndarray]:
    """Margins of 3,000 real releases of a small table: least squares counts before they
    are made nonnegative.
    """
    table = random_table(schema_of(3, 2, 2), 40)
    measured = grown(mechanism.plan(table.schema), table)
    rows = runs_of(mechanism, table, 3000, bits(7))
    # what the releases show, below the top
    counts = np.split(rows[:, -21:].astype(float), [3, 9], axis=1)
    counts = zip(*counts, strict=True)
    made = [
        consistent(measured.parents, [np.array([40.0]), *each], measured.variances)[0][
            -1
        ]
        for each in counts
    ]
    levels = np.column_stack(
        [measured.levels(np.arange(12), place) for place in range(3)]
    )
    places = {
        margin: ["abc".index(name) for name in margin]
        for margin in margins_of(table.schema)
    }
    return {
        name: groups_of(levels[:, columns]) @ np.transpose(made)
        for name, columns in places.items()
    }


def worst_deviation(found, told) -> float:
    """Largest distance of an empirical variance from the told one, in its own Monte
    Carlo standard errors.
    """
    worst = 0.0
    for margin, draws in found.items():
        squares = (draws - draws.mean(axis=1, keepdims=True)) ** 2
        error = squares.std(axis=1) / math.sqrt(draws.shape[1])
        off = squares.mean(axis=1) - told[margin].variance
        worst = max(worst, float(np.abs(off / error).max()))
    return worst


def test_errors_are_those_of_real_releases(neighbours):
    # 23 cells, each beyond 4 standard errors with probability 6e-5 if the law were
    # normal: 0.2 % in all, seed fixed
    mechanism = Steps(epsilon=1, order=("a", "b"), layers=2, neighbours=neighbours)
    found, scales = (
        released_margins(mechanism),
        scales_of(mechanism, schema_of(3, 2, 2)),
    )

    def deviation(scales, order=("a", "b")):
        told = errors_of(schema_of(3, 2, 2), order, scales, neighbours)
        return worst_deviation(found, told)

    assert deviation(scales) < 4
    # broken twins: the budget of another rule, another order, 10 % less noise
    other = replace(mechanism, budget="half-to-leaves")
    assert deviation(scales_of(other, schema_of(3, 2, 2))) > 6
    assert deviation(scales, ("b", "a")) > 6
    assert deviation([scale * Fraction(9, 10) for scale in scales]) > 6


def test_a_plan_tells_them(neighbours):
    mechanism = Steps(epsilon=1, order=("a", "b"), neighbours=neighbours)
    schema = schema_of(3, 2, 2)
    scales = scales_of(mechanism, schema)
    expected = errors_of(schema, ("a", "b"), scales, neighbours)
    told = forecast.errors_of(mechanism.plan(schema), "all")
    assert told == {forecast.label(margin): error for margin, error in expected.items()}


def test_persons_with_several_records_have_more_noise():
    one, two = (
        forecast.errors_of(
            Steps(epsilon=1, order=("a",)).plan(
                schema_of(2, 3, records={"max_per_person": cap})
            ),
            "all",
        )
        for cap in (1, 2)
    )
    for name, error in one.items():
        assert two[name].standard_error == pytest.approx(
            2 * error.standard_error, rel=0.02
        )
