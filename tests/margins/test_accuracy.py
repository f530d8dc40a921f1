"""Standard errors of a tree's margins against brute force, and against the closed form that plans with."""

import math
from fractions import Fraction

import numpy as np
import pytest
from tables import grown, plan_of_tree, random_table, scales_of, schema_of

from pdips import LaplaceSanitizer, Schema, Steps
from pdips.margins.margin_error import tree_errors
from pdips.margins.planning import margin_errors
from pdips.privacy.noise import discrete_laplace_variance

SCHEMA = schema_of(2, 3, 2, 4)


class Alike:
    """Splits all nodes of a layer by one column."""

    def columns(self, number, layer, position, curator, rng):
        return np.full(layer.n_nodes, 3 - number)


class Scattered:
    """Splits the nodes of a layer by different columns."""

    def columns(self, number, layer, position, curator, rng):
        open_ = layer.path < 0
        chosen = [np.flatnonzero(row)[i % row.sum()] for i, row in enumerate(open_)]
        return np.array(chosen)


def dense_errors(measured, scales, *, n_public):
    """Return the root mean square standard error of every margin, from the whole covariance of the cells."""
    n_cells = measured.layers[-1].n_nodes
    adds, variances, above = [np.eye(n_cells)], [discrete_laplace_variance(scales[-1])], np.eye(n_cells)
    for depth in range(len(measured.layers) - 1, 0, -1):
        up = np.zeros((measured.layers[depth - 1].n_nodes, measured.layers[depth].n_nodes))
        up[measured.layers[depth].parent, np.arange(up.shape[1])] = 1
        above = up @ above
        if depth > 1 and scales[depth - 2] is not None:
            adds.append(above)
            variances.append(discrete_laplace_variance(scales[depth - 2]))
    rows = np.concatenate(adds)
    weights = np.concatenate([np.full(len(a), 1 / v) for a, v in zip(adds, variances, strict=True)])
    covariance = np.linalg.inv(rows.T @ (weights[:, None] * rows))
    if n_public:  # the root is exact: condition on the total
        given = covariance @ above.T
        covariance -= given @ np.linalg.inv(above @ given) @ given.T
    return covariance


@pytest.mark.parametrize("n_public", [True, False])
@pytest.mark.parametrize("scales", [(3, 5, 2), (None, 4, 7), (2,)])
@pytest.mark.parametrize("chooser", [Alike(), Scattered()])
def test_errors_are_those_of_the_dense_covariance(scales, n_public, chooser):
    given = tuple(None if scale is None else Fraction(scale) for scale in scales)
    plan = plan_of_tree(SCHEMA, given, chooser, "replace-one" if n_public else "add-remove")
    measured = grown(plan, random_table(SCHEMA, 20))
    covariance = dense_errors(measured, given, n_public=n_public)
    levels = [measured.levels(np.arange(48), j) for j in range(4)]
    found = tree_errors(measured.domain, measured.layers, given, n_public=n_public)
    assert len(found) == 10
    for item in found:
        places = ["abcd".index(name) for name in item.columns]
        sizes = [int(measured.domain.sizes[j]) for j in places]
        cell = np.ravel_multi_index([levels[j] for j in places], sizes)
        adds = (cell == np.arange(math.prod(sizes))[:, None]).astype(float)
        exact = math.sqrt(np.diag(adds @ covariance @ adds.T).mean())
        if isinstance(chooser, Alike):
            assert item.standard_error == pytest.approx(exact, rel=1e-9)
        assert exact * (1 - 1e-9) <= item.standard_error <= exact * 1.05


def test_errors_are_those_that_were_planned():
    order = ("d", "b", "a")
    mechanism = Steps(epsilon=1, order=order, budget="half-to-leaves")
    release, _ = mechanism.release(random_table(SCHEMA, 30), rng=np.random.default_rng(0))
    planned = margin_errors(SCHEMA, order=order, layers=3, scales=scales_of(mechanism, SCHEMA)).set_index("margin")
    assert len(release.margin_errors) == len(planned)
    for item in release.margin_errors:
        names = [" x ".join(columns) for columns in (item.columns, item.columns[::-1])]
        (name,) = [name for name in dict.fromkeys(names) if name in planned.index]
        assert item.standard_error == pytest.approx(planned.loc[name, "se_records"])


def test_a_flat_histogram_adds_up_its_cells():
    release, _ = LaplaceSanitizer(epsilon=1, neighbours="add-remove").release(random_table(SCHEMA, 30))
    errors = {item.columns: item.standard_error for item in release.margin_errors}
    each = discrete_laplace_variance(Fraction(1))
    assert errors[("a",)] == pytest.approx(math.sqrt(24 * each))
    assert errors[("b", "d")] == pytest.approx(math.sqrt(4 * each))


def test_public_margins_have_no_error_and_are_left_out():
    columns = {
        "a": {"levels": [0, 1], "public": True},
        "b": {"levels": [0, 1], "public": True},
        "c": {"levels": [0, 1]},
    }
    schema = Schema.model_validate({"columns": columns})
    release, _ = LaplaceSanitizer(epsilon=1).release(random_table(schema, 30))
    assert {item.columns for item in release.margin_errors} == {("c",), ("a", "c"), ("b", "c")}
