"""Views hold every pair, share the budget exactly, and say how noisy their margins are."""

import math
from itertools import combinations

import numpy as np
import pytest
from tables import random_table, runs_of, schema_of

from pdips import Schema, Steps
from pdips.margins.domain import View, choose_views, domain_of, one_way_margins
from pdips.margins.margin_error import view_errors

SCHEMAS = {
    "one column": schema_of(5),
    "two columns": schema_of(5, 3),
    "small": schema_of(2, 3, 2),
    "wide columns": schema_of(12, 12, 12),
    "a mix": schema_of(2, 2, 14, 5, 6, 2, 2, 2, 2),
    "many": schema_of(*[2] * 22),
}


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


def test_pairs_of_public_columns_are_not_paid_for():
    columns = {name: {"levels": list(range(30)), "public": name in "ab"} for name in "abc"}
    assert set(choose_views(domain_of(Schema.model_validate({"columns": columns})))) == {(0, 2), (1, 2)}


def test_more_budget_goes_to_views_with_more_cells():
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
