"""Views hold every pair and share the budget exactly; standard errors of margins, of views and of trees."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from tables import grown, plan_of_tree, random_table, runs_of, scales_of, schema_of

from pdips import LaplaceSanitizer, Schema, Steps
from pdips.margins.domain import View, choose_views, domain_of, one_way_margins
from pdips.margins.margin_error import tree_errors, view_errors
from pdips.margins.planning import margin_errors
from pdips.privacy.noise import discrete_laplace_variance

SCHEMAS = {"one column": schema_of(5), "two columns": schema_of(5, 3), "small": schema_of(2, 3, 2)}
SCHEMAS |= {"wide columns": schema_of(12, 12, 12), "a mix": schema_of(2, 2, 14, 5, 6, 2, 2, 2, 2)}
SCHEMAS["many"] = schema_of(*[2] * 22)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_views_hold_every_pair_and_share_all_of_the_budget(schema):
    views = choose_views(domain_of(schema))
    n_columns = len(schema.columns)
    held = {pair for columns in views for pair in combinations(columns, 2)}
    assert held == set(combinations(range(n_columns), 2))
    assert {column for columns in views for column in columns} == set(range(n_columns))
    assert sum(views.values()) == 1
    assert min(views.values()) > 0
    assert views == choose_views(domain_of(schema))


def test_a_small_table_is_one_view_and_a_wide_one_is_not():
    assert list(choose_views(domain_of(schema_of(2, 3, 2)))) == [(0, 1, 2)]
    assert len(choose_views(domain_of(schema_of(12, 12, 12)))) == 3
    columns = {name: {"levels": list(range(30)), "public": name in "ab"} for name in "abc"}
    assert set(choose_views(domain_of(Schema.model_validate({"columns": columns})))) == {(0, 2), (1, 2)}
    views = choose_views(domain_of(schema_of(40, 40, 2, 2, 2)))
    sizes = {columns: math.prod((40, 40, 2, 2, 2)[j] for j in columns) for columns in views}
    assert max(views, key=views.get) == max(sizes, key=sizes.get)


def test_shares_are_best_for_the_law_of_the_noise():
    domain = domain_of(schema_of(40, 30, 12))
    for law, power in (("laplace", 1.0), ("gaussian", 0.5)):  # noise falls with a share like 1 / share^power
        views, other = choose_views(domain, law), choose_views(domain, "laplace" if law == "gaussian" else "gaussian")

        def noise(shares, power=power):
            held, total = set(), 0.0
            for columns, share in shares.items():
                new = set(combinations(columns, 2)) - held
                sizes = math.prod(int(domain.sizes[j]) for j in columns)
                total += (
                    sum(math.sqrt(sizes * domain.sizes[i] * domain.sizes[j]) for i, j in new) / float(share) ** power
                )
                held |= new
            return total

        assert set(views) == set(other)
        assert noise(views) < noise(other)


def test_a_view_knows_its_structural_zeros():
    schema = schema_of(2, 3, 2, impossible=[{"a": 1, "b": [0, 2]}])
    view, other = (View(domain_of(schema), columns, None) for columns in ((0, 1), (1, 2)))
    assert view.possible().tolist() == [True, True, True, False, True, False]
    assert other.possible().all()


def test_margin_errors_are_those_of_releases():
    # 400 sets of noisy views: variance of the weighted mean over the views that hold a margin; chi-square limits at
    # 1e-6, and the twin that forgets how many cells are added up must be rejected
    schema = schema_of(12, 12, 12)
    mechanism, domain = Steps(epsilon=1), domain_of(schema)
    views = mechanism.plan(schema).design.views
    table = random_table(schema, 50)
    rows = runs_of(mechanism, table, 400)
    ends = np.cumsum([view.n_cells for view in views])[:-1]
    truth = np.bincount(table.codes["a"], minlength=12)
    found = []
    for row in rows:
        margins, _ = one_way_margins(views, tuple(part.astype(float) for part in np.split(row, ends)))
        found.append(margins[0] - truth)
    errors = {item.columns: item.standard_error for item in view_errors(domain, views)}
    squares, n = (np.array(found) ** 2).sum(), np.array(found).size
    slack = 6 * math.sqrt(2 / n) * 1.5  # sums of Laplace noise have somewhat heavier tails than normal
    assert squares / n == pytest.approx(errors[("a",)] ** 2, rel=slack)
    forgetful = errors[("a",)] ** 2 / 12
    assert abs(squares / n / forgetful - 1) > slack
    assert len(errors) == 6
    assert errors[("a", "b")] < errors[("a",)] * math.sqrt(12)


def test_margin_errors_go_into_the_release():
    release, _ = Steps(epsilon=1).release(random_table(schema_of(2, 3), 20), rng=np.random.default_rng(0))
    described = release.describe()["margin_errors"]
    assert [tuple(item["columns"]) for item in described] == [("a",), ("b",), ("a", "b")]
    scale = float(release.noise[0].scale)
    sd = math.sqrt(2 * math.exp(-1 / scale)) / (1 - math.exp(-1 / scale))
    assert described[2]["standard_error"] == pytest.approx(sd)
    assert described[0]["standard_error"] == pytest.approx(sd * math.sqrt(3))


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


def test_a_flat_histogram_adds_up_its_cells_and_public_margins_are_left_out():
    release, _ = LaplaceSanitizer(epsilon=1, neighbours="add-remove").release(random_table(SCHEMA, 30))
    errors = {item.columns: item.standard_error for item in release.margin_errors}
    each = discrete_laplace_variance(Fraction(1))
    assert errors[("a",)] == pytest.approx(math.sqrt(24 * each))
    assert errors[("b", "d")] == pytest.approx(math.sqrt(4 * each))
    columns = {
        "a": {"levels": [0, 1], "public": True},
        "b": {"levels": [0, 1], "public": True},
        "c": {"levels": [0, 1]},
    }
    schema = Schema.model_validate({"columns": columns})
    release, _ = LaplaceSanitizer(epsilon=1).release(random_table(schema, 30))
    assert {item.columns for item in release.margin_errors} == {("c",), ("a", "c"), ("b", "c")}
