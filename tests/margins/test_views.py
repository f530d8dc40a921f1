"""Views hold every pair and share the budget exactly; standard errors of margins, of
views and of trees.
"""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from margin_tables import dense_covariance, groups_of, released
from tables import grown, plan_of_tree, random_table, runs_of, schema_of

from pdips import LaplaceSanitizer, Margins, Schema, Steps
from pdips.margins.domain import View, choose_views, domain_of, one_way_margins
from pdips.margins.forecast import errors_of, label
from pdips.margins.margin_error import tree_errors, view_errors
from pdips.margins.tree import GivenColumns
from pdips.privacy.noise import discrete_laplace_variance

SCHEMAS = {
    "one column": schema_of(5),
    "two columns": schema_of(5, 3),
    "small": schema_of(2, 3, 2),
}
SCHEMAS |= {
    "wide columns": schema_of(12, 12, 12),
    "a mix": schema_of(2, 2, 14, 5, 6, 2, 2, 2, 2),
}
SCHEMAS["many"] = schema_of(*[2] * 22)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_views_hold_every_pair_and_share_all_of_the_budget(schema):
    views = choose_views(domain_of(schema))
    for size in (1, 2):
        held = {some for columns in views for some in combinations(columns, size)}
        assert held == set(combinations(range(len(schema.columns)), size))
    assert sum(views.values()) == 1
    assert min(views.values()) > 0
    assert views == choose_views(domain_of(schema))


def test_a_small_table_is_one_view_and_a_wide_one_is_not():
    assert list(choose_views(domain_of(schema_of(2, 3, 2)))) == [(0, 1, 2)]
    assert len(choose_views(domain_of(schema_of(12, 12, 12)))) == 3
    columns = {
        name: {"levels": list(range(30)), "public": name in "ab"} for name in "abc"
    }
    assert set(
        choose_views(domain_of(Schema.model_validate({"columns": columns})))
    ) == {(0, 2), (1, 2)}
    views = choose_views(domain_of(schema_of(40, 40, 2, 2, 2)))
    sizes = {
        columns: math.prod((40, 40, 2, 2, 2)[j] for j in columns) for columns in views
    }
    assert max(views, key=views.get) == max(sizes, key=sizes.get)


def test_shares_are_best_for_the_law_of_the_noise():
    domain = domain_of(schema_of(40, 30, 12))
    # noise falls with a share like 1 / share^power
    for law, power in (("laplace", 1.0), ("gaussian", 0.5)):
        views, other = (
            choose_views(domain, law),
            choose_views(domain, "laplace" if law == "gaussian" else "gaussian"),
        )

        def noise(shares, power=power):
            held, total = set(), 0.0
            for columns, share in shares.items():
                new = set(combinations(columns, 2)) - held
                n_cells = domain.size_of(columns)
                total += (
                    sum(math.sqrt(n_cells * domain.size_of(pair)) for pair in new)
                    / float(share) ** power
                )
                held |= new
            return total

        assert set(views) == set(other)
        assert noise(views) < noise(other)


def test_a_view_knows_its_structural_zeros():
    schema = schema_of(2, 3, 2, impossible=[{"a": 1, "b": [0, 2]}])
    view, other = (
        View(domain_of(schema), columns, None) for columns in ((0, 1), (1, 2))
    )
    assert view.possible().tolist() == [True, True, True, False, True, False]
    assert other.possible().all()


def test_margin_errors_are_those_of_releases():
    # 400 sets of noisy views: variance of the weighted mean over the views that hold a
    # margin; chi-square limits at 1e-6, and the twin that forgets how many cells are
    # added up must be rejected
    schema = schema_of(12, 12, 12)
    mechanism, table = Margins(epsilon=1), random_table(schema, 50)
    views = mechanism.plan(schema).design.views
    parts = np.split(
        runs_of(mechanism, table, 400).astype(float),
        np.cumsum([view.n_cells for view in views])[:-1],
        1,
    )
    margins = np.array(
        [one_way_margins(views, each)[0][0] for each in zip(*parts, strict=True)]
    )
    off = margins - np.bincount(table.codes["a"], minlength=12)
    errors = {
        item.columns: item.standard_error
        for item in view_errors(domain_of(schema), views)
    }
    # sums of Laplace noise have somewhat heavier tails than normal
    slack = 6 * math.sqrt(2 / off.size) * 1.5
    assert (off**2).mean() == pytest.approx(errors[("a",)] ** 2, rel=slack)
    assert (off**2).mean() != pytest.approx(errors[("a",)] ** 2 / 12, rel=slack)
    assert len(errors) == 6
    assert errors[("a", "b")] < errors[("a",)] * math.sqrt(12)


SCHEMA = schema_of(2, 3, 2, 4)


class Scattered:
    """Splits the nodes of a layer by different columns."""

    def columns(self, number, layer, position, curator):
        return np.array(
            [np.flatnonzero(row)[i % row.sum()] for i, row in enumerate(layer.path < 0)]
        )


def dense_errors(measured, scales, *, n_public):
    """Return the covariance of the least squares counts of all cells, by the normal
    equations.
    """
    node, counted = np.arange(measured.layers[-1].n_nodes), []
    for layer, scale in zip(measured.layers[:0:-1], scales[::-1], strict=True):
        if scale is not None:
            counted.append((groups_of(node[:, None]), discrete_laplace_variance(scale)))
        node = layer.parent[node]
    rows, variances = zip(*counted, strict=True)
    exact = groups_of(node[:, None]) if n_public else ()
    return dense_covariance(
        np.concatenate(rows), np.repeat(variances, [*map(len, rows)]), exact
    )


@pytest.mark.parametrize("n_public", [True, False])
@pytest.mark.parametrize("scales", [(3, 5, 2), (None, 4, 7), (2,)])
@pytest.mark.parametrize(
    "chooser", [GivenColumns((2, 1)), Scattered()], ids=["alike", "scattered"]
)
def test_errors_are_those_of_the_dense_covariance(scales, n_public, chooser):
    given = tuple(None if scale is None else Fraction(scale) for scale in scales)
    plan = plan_of_tree(
        SCHEMA, given, chooser, "replace-one" if n_public else "add-remove"
    )
    measured = grown(plan, random_table(SCHEMA, 20))
    covariance = dense_errors(measured, given, n_public=n_public)
    levels = np.column_stack([measured.levels(np.arange(48), j) for j in range(4)])
    found = tree_errors(measured.domain, measured.layers, given, n_public=n_public)
    assert len(found) == 10
    for item in found:
        adds = groups_of(levels[:, ["abcd".index(name) for name in item.columns]])
        exact = math.sqrt(np.diag(adds @ covariance @ adds.T).mean())
        if isinstance(chooser, GivenColumns):
            assert item.standard_error == pytest.approx(exact, rel=1e-9)
        assert exact * (1 - 1e-9) <= item.standard_error <= exact * 1.05


def test_errors_are_those_that_were_planned():
    order = ("d", "b", "a")
    mechanism = Steps(epsilon=1, order=order, budget="half-to-leaves")
    release = released(mechanism, random_table(SCHEMA, 30))
    planned = errors_of(mechanism.plan(SCHEMA), "all")
    told = {label(item.columns): item.standard_error for item in release.margin_errors}
    expected = {margin: noise.standard_error for margin, noise in planned.items()}
    assert told == pytest.approx(expected)


def told_by(mechanism, schema) -> dict[tuple[str, ...], float]:
    """Return the squared errors that a release of 30 records states, in variances of
    the noise on a cell.
    """
    release = released(mechanism, random_table(schema, 30))
    each = discrete_laplace_variance(Fraction(release.noise[0].scale))
    told = release.describe()["margin_errors"]
    return {
        tuple(item["columns"]): pytest.approx(item["standard_error"] ** 2 / each)
        for item in told
    }


def test_cells_are_added_up_and_public_margins_are_left_out():
    assert told_by(Margins(epsilon=1), schema_of(2, 3)) == {
        ("a",): 3,
        ("b",): 2,
        ("a", "b"): 1,
    }
    flat = told_by(LaplaceSanitizer(epsilon=1, neighbours="add-remove"), SCHEMA)
    assert (flat["a",], flat["b", "d"]) == (24, 4)
    columns = {name: {"levels": [0, 1], "public": name in "ab"} for name in "abc"}
    schema = Schema.model_validate({"columns": columns})
    assert told_by(LaplaceSanitizer(epsilon=1), schema).keys() == {
        ("c",),
        ("a", "c"),
        ("b", "c"),
    }
