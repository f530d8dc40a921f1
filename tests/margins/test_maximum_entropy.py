"""The table of maximum entropy against brute force, and what it must keep exactly."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, minimize
from tables import schema_of

from pdips import Schema
from pdips.margins import maximum_entropy
from pdips.margins.domain import domain_of
from pdips.margins.maximum_entropy import (
    CellGrid,
    Observation,
    Start,
    curvature,
    curvature_at,
    fit,
    log_independent,
)

DOMAIN = domain_of(schema_of(4, 3, 5, 4, 3))


def random_views(domain, groups, rng, n=100.0, variance=9.0):
    full = (rng.dirichlet(np.ones(domain.n_cells)) * n).reshape(tuple(domain.sizes))
    views = []
    for columns in groups:
        counts = full.sum(
            axis=tuple(j for j in range(len(domain.sizes)) if j not in columns)
        ).ravel()
        views.append(
            Observation(
                counts + rng.normal(0, 3, len(counts)),
                np.full(len(counts), variance),
                columns,
            )
        )
    return views


def design(domain, views):
    """Return the matrix that adds up cells, in the order of the grid, into the groups
    of the views.
    """
    grid = CellGrid(domain)
    rows = []
    for view in views:
        levels = [grid.levels(np.arange(domain.n_cells), j) for j in view.columns]
        group = np.ravel_multi_index(
            levels, [int(domain.sizes[j]) for j in view.columns]
        )
        rows.append(group == np.arange(len(view.counts))[:, None])
    return np.concatenate(rows).astype(float)


HOW = {
    "margins": {},
    "few rows picked at once": {"MOST_SELECTED": 0},
    "each count by its size": {"MOST_COUNTS": 0},
}


@pytest.mark.parametrize("how", [*HOW, "margins and nodes"])
def test_the_fit_is_that_of_brute_force(how, monkeypatch):
    # 24 cells, overlapping margins: the primal problem by SLSQP, which knows nothing of
    # the dual
    for name, value in HOW.get(how, {}).items():
        monkeypatch.setattr(maximum_entropy, name, value)
    rng = np.random.default_rng(0)
    domain = domain_of(schema_of(2, 3, 2, 2))
    views, nodes = random_views(domain, [(3, 0), (0, 2, 1), (3, 1), (2,)], rng), []
    if how not in HOW:  # groups of cells one of which wasn't counted
        group = (np.arange(24) % 3).astype(np.int32)
        nodes = [
            Observation(
                np.array([20.0, 50, 1e6]), np.array([9.0, 4, np.inf]), group=group
            )
        ]
    base = np.log(rng.dirichlet(np.ones(24))).reshape(
        len(CellGrid(domain).side(0, ())), -1
    )
    found = fit(
        CellGrid(domain), views, nodes, totals=np.array([100.0]), base=base, ridge=0.5
    ).values
    adds = np.concatenate(
        [
            design(domain, views),
            *(np.arange(3)[:, None] == node.group for node in nodes),
        ]
    )
    counts, variances = (
        np.concatenate([getattr(each, n) for each in (*views, *nodes)])
        for n in ("counts", "variances")
    )

    def loss(x):
        x = np.maximum(x, 1e-9)
        entropy = 0.5 * (x * (np.log(x) - base.ravel())).sum()
        return entropy + ((counts - adds @ x) ** 2 / variances).sum() / 2

    limits = {
        "constraints": LinearConstraint(np.ones(24), 100, 100),
        "bounds": [(1e-9, None)] * 24,
    }
    best = minimize(
        loss,
        np.full(24, 100 / 24),
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-13},
        **limits,
    )
    assert loss(found) <= best.fun + 1e-3
    assert np.abs(found - best.x).max() < 0.05
    assert np.abs(found - 100 / 24).max() > 1  # not where it started


def test_structural_zeros_and_public_totals_are_kept():
    columns = {
        "a": {"levels": [0, 1], "public": True},
        "b": {"levels": [0, 1, 2]},
        "c": {"levels": [0, 1]},
    }
    schema = Schema.model_validate(
        {"columns": columns, "impossible": [{"a": 1, "b": 2}]}
    )
    domain = domain_of(schema)
    views, grid = (
        random_views(domain, [(0, 1), (1, 2)], np.random.default_rng(3)),
        CellGrid(domain),
    )
    margins = [np.ones(2), np.array([30.0, -5.0, 75.0]), np.array([50.0, 50.0])]
    base = log_independent(grid, margins, [0.0, 2.0, 2.0])
    found = fit(grid, views, [], totals=np.array([25.0, 75.0]), base=base).values
    a, b = (grid.levels(np.arange(domain.n_cells), j) for j in (0, 1))
    assert found[(a == 1) & (b == 2)].max() == 0
    assert np.bincount(a, weights=found) == pytest.approx([25, 75], rel=1e-5)
    assert found.min() >= 0


def test_counts_without_noise_are_matched_and_noise_alone_is_not():
    grid, cells = (
        CellGrid(domain_of(schema_of(3, 4))),
        np.random.default_rng(4).dirichlet(np.ones(12)) * 1000,
    )
    margins = [cells.reshape(3, 4).sum(axis=axis) for axis in (1, 0)]
    ask = {
        "totals": np.array([1000.0]),
        "base": log_independent(grid, margins, [0.0, 0.0]),
    }
    views = [
        Observation(cells, np.full(12, variance), (0, 1)) for variance in (1e-6, 1e9)
    ]
    close, far = (fit(grid, [view], [], **ask)[0] for view in views)
    order = np.ravel_multi_index(
        [grid.levels(np.arange(12), j) for j in (0, 1)], (3, 4)
    )
    np.testing.assert_allclose(close, cells[order], atol=0.5)
    np.testing.assert_allclose(far, np.outer(*margins).ravel()[order] / 1000, rtol=1e-2)


def test_a_column_of_very_many_levels_takes_no_square_of_them():
    domain = domain_of(schema_of(200_000, 2))
    grid, view = (
        CellGrid(domain),
        Observation(np.ones(400_000), np.ones(400_000), (0, 1)),
    )
    base = np.zeros((len(grid.side(0, ())), 2))
    assert fit(grid, [view], [], totals=np.array([400_000.0]), base=base)[
        0
    ].sum() == pytest.approx(400_000, rel=1e-4)


def shared_columns():
    """Noisy margins of three columns each, which share columns, of records that depend
    on one another.
    """
    return random_views(
        DOMAIN,
        [(0, 1, 2), (0, 2, 3), (1, 2, 4), (0, 3, 4)],
        np.random.default_rng(6),
        n=50_000.0,
    )


@pytest.mark.parametrize("public", [[], [0], [0, 2]])
def test_the_curvature_is_that_of_independent_columns(public):
    domain, every = (
        replace(DOMAIN, public=np.array(public, dtype=np.int64)),
        np.arange(DOMAIN.n_cells),
    )
    levels = [CellGrid(domain).levels(every, j) for j in range(5)]
    shares = [
        np.random.default_rng(j).dirichlet(np.ones(int(size)))
        for j, size in enumerate(domain.sizes)
    ]
    cells = np.prod(
        [share[level] for share, level in zip(shares, levels, strict=True)], axis=0
    )
    adds_up = design(domain, shared_columns())
    wanted = adds_up * cells @ adds_up.T
    for group in {tuple(levels[j][cell] for j in public) for cell in every}:
        held = np.all(
            [levels[j] == level for j, level in zip(public, group, strict=True)], axis=0
        )
        mean = adds_up @ (cells * held)
        wanted -= np.outer(mean, mean) / (cells * held).sum()
    found = curvature(
        domain, shared_columns(), adds_up @ cells * 100, np.array([100.0])
    )
    np.testing.assert_allclose(found, 100 * wanted, atol=1e-4)


def test_the_solver_arrives_and_says_if_it_does_not(monkeypatch):
    views, grid = shared_columns(), CellGrid(DOMAIN)
    ask = {
        "totals": np.array([50_000.0]),
        "base": np.zeros((len(grid.side(0, ())), len(grid.side(1, ())))),
    }
    assert fit(grid, views, [], **ask)[1]
    monkeypatch.setattr(maximum_entropy, "MOST_ITERATIONS", 1)
    assert not fit(grid, views, [], **ask)[1]


@pytest.mark.parametrize("how", HOW)
def test_a_fit_that_begins_near_ends_at_the_same_table_sooner(how, monkeypatch):
    for name, value in HOW[how].items():
        monkeypatch.setattr(maximum_entropy, name, value)
    rng = np.random.default_rng(3)
    views = shared_columns()
    again = [
        replace(view, counts=view.counts + rng.normal(0, 3, len(view.counts)))
        for view in views
    ]
    grid = CellGrid(DOMAIN)
    n_rows, n_columns = (len(grid.side(half, ())) for half in (0, 1))
    ask = {"totals": np.array([50_000.0]), "base": np.zeros((n_rows, n_columns))}
    evaluated = []
    table = maximum_entropy._Dual.table

    def counted(self, multipliers):
        evaluated.append(1)
        return table(self, multipliers)

    monkeypatch.setattr(maximum_entropy._Dual, "table", counted)
    first = fit(grid, views, [], **ask)
    evaluated.clear()
    from_nothing = fit(grid, again, [], **ask)
    n_from_nothing = len(evaluated)
    evaluated.clear()
    assert from_nothing.arrived
    for start in (Start(first.multipliers, None), Start.at(grid, views, first)):
        from_first = fit(grid, again, [], **ask, start=start)
        assert from_first.arrived
        # both are within the tolerance of the solver, nearer than the noise moved it
        gap = np.abs(from_first.values - from_nothing.values).max()
        assert gap < 0.1 * np.abs(first.values - from_nothing.values).max()
        assert len(evaluated) < n_from_nothing
        evaluated.clear()


def test_the_curvature_of_a_table_is_that_of_its_cells():
    grid = CellGrid(DOMAIN)
    views = shared_columns()
    values = np.random.default_rng(2).dirichlet(np.ones(DOMAIN.n_cells)) * 500
    adds = design(DOMAIN, views)
    margins = adds @ values
    exact = (adds * values) @ adds.T - np.outer(margins, margins) / 500
    np.testing.assert_allclose(curvature_at(grid, views, values), exact, atol=1e-8)
