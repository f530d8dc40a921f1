"""The table of maximum entropy against brute force, and what it must keep exactly."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, minimize
from tables import schema_of

from pdips import Schema
from pdips.margins import maximum_entropy
from pdips.margins.domain import domain_of
from pdips.margins.maximum_entropy import RIDGE, CellGrid, Observation, _Dual, curvature, fit, log_independent

DOMAIN = domain_of(schema_of(4, 3, 5, 4, 3))


def random_views(domain, groups, rng, n=100.0, variance=9.0):
    full = (rng.dirichlet(np.ones(domain.n_cells)) * n).reshape(tuple(domain.sizes))
    views = []
    for columns in groups:
        counts = full.sum(axis=tuple(j for j in range(len(domain.sizes)) if j not in columns)).ravel()
        views.append(Observation(counts + rng.normal(0, 3, len(counts)), np.full(len(counts), variance), columns))
    return views


def design(domain, views):
    """Return the matrix that adds up cells, in the order of the grid, into the groups of the views."""
    grid = CellGrid(domain)
    rows = []
    for view in views:
        levels = [grid.levels(np.arange(domain.n_cells), j) for j in view.columns]
        group = np.ravel_multi_index(levels, [int(domain.sizes[j]) for j in view.columns])
        rows.append(group == np.arange(len(view.counts))[:, None])
    return np.concatenate(rows).astype(float)


def test_the_fit_is_that_of_brute_force():
    # 12 cells, three overlapping margins: the primal problem by SLSQP, which knows nothing of the dual
    rng = np.random.default_rng(0)
    domain = domain_of(schema_of(2, 3, 2))
    views = random_views(domain, [(0, 1), (1, 2), (2,)], rng)
    base = np.log(rng.dirichlet(np.ones(12))).reshape(len(CellGrid(domain).side(0, ())), -1)
    found, _ = fit(CellGrid(domain), views, [], totals=np.array([100.0]), base=base, ridge=0.5)
    adds, counts = design(domain, views), np.concatenate([view.counts for view in views])

    def loss(x):
        x = np.maximum(x, 1e-9)
        entropy = 0.5 * (x * (np.log(x) - base.ravel())).sum()
        return entropy + ((counts - adds @ x) ** 2).sum() / 18

    limits = {"constraints": LinearConstraint(np.ones(12), 100, 100), "bounds": [(1e-9, None)] * 12}
    best = minimize(loss, np.full(12, 100 / 12), method="SLSQP", options={"maxiter": 1000, "ftol": 1e-13}, **limits)
    assert loss(found) <= best.fun + 1e-3
    assert np.abs(found - best.x).max() < 0.05
    assert np.abs(found - 100 / 12).max() > 1  # not where it started


def test_the_gradient_is_that_of_the_value():
    rng = np.random.default_rng(1)
    domain = domain_of(schema_of(2, 3, 4))
    views = random_views(domain, [(0, 2), (1, 2), (0, 1)], rng)
    node = Observation(np.array([40.0, 60.0]), np.array([4.0, 4.0]), group=(np.arange(24) % 2).astype(np.int32))
    base = np.zeros((len(CellGrid(domain).side(0, ())), len(CellGrid(domain).side(1, ()))))
    dual = _Dual(CellGrid(domain), views, [node], np.array([100.0]), base)
    at = rng.normal(0, 0.3, len(dual.counts))
    table, _ = dual.table(at)
    margins = dual.margins(table)
    for i in range(0, len(at), 5):
        step = np.zeros(len(at))
        step[i] = 0.01
        slope = (dual.table(at + step)[1] - dual.table(at - step)[1]) / 0.02
        assert slope == pytest.approx(margins[i], rel=1e-2, abs=1e-2)
    assert margins[-2:].sum() == pytest.approx(100, rel=1e-5)


def test_margins_on_the_grid_are_those_of_numpy():
    rng = np.random.default_rng(2)
    domain = domain_of(schema_of(2, 5, 3, 4))
    views = random_views(domain, [(3, 0), (1, 2, 3), (2,)], rng)
    grid = CellGrid(domain)
    dual = _Dual(grid, views, [], np.array([1.0]), np.zeros((len(grid.side(0, ())), len(grid.side(1, ())))))
    cells = rng.random(domain.n_cells)
    table = cells.reshape(dual.base.shape).astype(np.float32)
    np.testing.assert_allclose(dual.margins(table), design(domain, views) @ cells, rtol=1e-5)


def test_structural_zeros_and_public_totals_are_kept():
    columns = {"a": {"levels": [0, 1], "public": True}, "b": {"levels": [0, 1, 2]}, "c": {"levels": [0, 1]}}
    schema = Schema.model_validate({"columns": columns, "impossible": [{"a": 1, "b": 2}]})
    domain, rng = domain_of(schema), np.random.default_rng(3)
    views = random_views(domain, [(0, 1), (1, 2)], rng)
    grid = CellGrid(domain)
    margins = [np.ones(2), np.array([30.0, -5.0, 75.0]), np.array([50.0, 50.0])]
    base = log_independent(grid, margins, [0.0, 2.0, 2.0])
    found, _ = fit(grid, views, [], totals=np.array([25.0, 75.0]), base=base)
    every = np.arange(domain.n_cells)
    a, b = grid.levels(every, 0), grid.levels(every, 1)
    assert found[(a == 1) & (b == 2)].max() == 0
    assert found[a == 0].sum() == pytest.approx(25, rel=1e-5)
    assert found[a == 1].sum() == pytest.approx(75, rel=1e-5)
    assert found.min() >= 0


def test_counts_without_noise_are_matched_and_noise_alone_is_not():
    rng = np.random.default_rng(4)
    grid = CellGrid(domain_of(schema_of(3, 4)))
    cells = rng.dirichlet(np.ones(12)) * 1000
    base = log_independent(grid, [cells.reshape(3, 4).sum(1), cells.reshape(3, 4).sum(0)], [0.0, 0.0])
    ask = {"totals": np.array([1000.0]), "base": base, "ridge": RIDGE}
    views = [Observation(cells, np.full(12, variance), (0, 1)) for variance in (1e-6, 1e9)]
    close, far = (fit(grid, [view], [], **ask)[0] for view in views)
    order = np.ravel_multi_index([grid.levels(np.arange(12), j) for j in (0, 1)], (3, 4))
    np.testing.assert_allclose(close, cells[order], atol=0.5)
    independent = np.outer(cells.reshape(3, 4).sum(1), cells.reshape(3, 4).sum(0)).ravel() / 1000
    np.testing.assert_allclose(far, independent[order], rtol=1e-2)


def test_counts_that_were_not_taken_have_no_say():
    grid = CellGrid(domain_of(schema_of(2, 2)))
    node = Observation(np.array([1e6, 0.0]), np.array([np.inf, np.inf]), group=np.array([0, 0, 1, 1], np.int32))
    found, _ = fit(grid, [], [node], totals=np.array([8.0]), base=np.zeros((2, 2)))
    np.testing.assert_allclose(found, 2, rtol=1e-5)


def test_a_column_of_very_many_levels_takes_no_square_of_them(monkeypatch):
    rng = np.random.default_rng(3)
    domain = domain_of(schema_of(5, 3, 4))
    views = random_views(domain, [(0, 1), (1, 2)], rng)
    grid, totals = CellGrid(domain), np.array([100.0])
    base = np.log(rng.dirichlet(np.ones(60))).reshape(len(grid.side(0, ())), -1)
    dense, _ = fit(grid, views, [], totals=totals, base=base)
    monkeypatch.setattr(maximum_entropy, "MOST_SELECTED", 0)
    assert np.allclose(fit(grid, views, [], totals=totals, base=base)[0], dense, atol=1e-3)
    monkeypatch.undo()
    domain = domain_of(schema_of(200_000, 2))
    grid, view = CellGrid(domain), Observation(np.ones(400_000), np.ones(400_000), (0, 1))
    base = np.zeros((len(grid.side(0, ())), 2))
    assert fit(grid, [view], [], totals=np.array([400_000.0]), base=base)[0].sum() == pytest.approx(400_000, rel=1e-4)


def shared_columns():
    """Noisy margins of three columns each, which share columns, of records that depend on one another."""
    return random_views(DOMAIN, [(0, 1, 2), (0, 2, 3), (1, 2, 4), (0, 3, 4)], np.random.default_rng(6), n=50_000.0)


@pytest.mark.parametrize("public", [[], [0], [0, 2]])
def test_the_curvature_is_that_of_independent_columns(public):
    domain, every = replace(DOMAIN, public=np.array(public, dtype=np.int64)), np.arange(DOMAIN.n_cells)
    levels = [CellGrid(domain).levels(every, j) for j in range(5)]
    shares = [np.random.default_rng(j).dirichlet(np.ones(int(size))) for j, size in enumerate(domain.sizes)]
    cells = np.prod([share[level] for share, level in zip(shares, levels, strict=True)], axis=0)
    adds_up = design(domain, shared_columns())
    wanted = adds_up * cells @ adds_up.T
    for group in {tuple(levels[j][cell] for j in public) for cell in every}:
        held = np.all([levels[j] == level for j, level in zip(public, group, strict=True)], axis=0)
        mean = adds_up @ (cells * held)
        wanted -= np.outer(mean, mean) / (cells * held).sum()
    found = curvature(domain, shared_columns(), adds_up @ cells * 100, np.array([100.0]))
    np.testing.assert_allclose(found, 100 * wanted, atol=1e-4)


def test_the_solver_arrives_and_says_if_it_does_not(monkeypatch):
    views, grid = shared_columns(), CellGrid(DOMAIN)
    ask = {"totals": np.array([50_000.0]), "base": np.zeros((len(grid.side(0, ())), len(grid.side(1, ()))))}
    found, arrived = fit(grid, views, [], **ask)
    monkeypatch.setattr(maximum_entropy, "MOST_COUNTS", 0)  # each count by its own size: many more steps
    slow, _ = fit(grid, views, [], **ask)
    assert arrived
    np.testing.assert_allclose(found, slow, atol=2)
    monkeypatch.setattr(maximum_entropy, "MOST_ITERATIONS", 3)
    assert not fit(grid, views, [], **ask)[1]
