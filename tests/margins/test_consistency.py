"""Consistency against independent solvers: dense least squares, brute-force projection, the rounding's own rules."""

import numpy as np
import pytest

from pdips.margins.consistency import consistent, nonnegative, round_cells


def random_tree(rng: np.random.Generator) -> list[np.ndarray]:
    """Layers of parents; nodes have 0 to 4 children, so that leaves lie at any depth."""
    parents, n_above = [], 1
    for _ in range(int(rng.integers(1, 5))):
        n_children = rng.integers(0, 5, n_above)
        n_children[rng.integers(n_above)] = rng.integers(1, 5)
        parents.append(np.repeat(np.arange(n_above), n_children))
        n_above = len(parents[-1])
    return parents


def leaf_matrix(parents: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return which leaves (columns) lie below which node (rows, layer by layer), and which rows are leaves."""
    sizes = [1, *map(len, parents)]
    first = np.cumsum([0, *sizes])
    up = np.full(sum(sizes), -1)
    for layer, parent in enumerate(parents):
        up[first[layer + 1] : first[layer + 2]] = first[layer] + parent
    leaves = np.flatnonzero(~np.isin(np.arange(len(up)), up))
    below = np.zeros((len(up), len(leaves)))
    for column, node in enumerate(leaves):
        while node >= 0:
            below[node, column] = 1
            node = up[node]
    return below, leaves


def dense(parents, observed, variances):
    """Least squares by the null space: exact rows as constraints, unobserved rows left out."""
    below, _ = leaf_matrix(parents)
    y, s2 = np.concatenate(observed), np.concatenate(variances)
    fixed, free = s2 == 0, (s2 > 0) & np.isfinite(s2)
    base = np.zeros(below.shape[1])
    null = np.eye(below.shape[1])
    if fixed.any():
        base = np.linalg.lstsq(below[fixed], y[fixed], rcond=None)[0]
        _, singular, rows = np.linalg.svd(below[fixed])
        null = rows[(singular > 1e-9).sum() :].T
    design = below[free] @ null
    weights = 1 / s2[free]
    covariance = np.linalg.inv(design.T @ (weights[:, None] * design))
    solution = base + null @ covariance @ design.T @ (weights * (y[free] - below[free] @ base))
    spread = below @ null
    return below @ solution, np.einsum("ij,jk,ik->i", spread, covariance, spread)


def problem(seed: int, *, exact_root: bool, unseen: bool, zero_leaf: bool):
    rng = np.random.default_rng(seed)
    parents = random_tree(rng)
    sizes = [1, *map(len, parents)]
    observed = [rng.normal(5, 10, n) for n in sizes]
    variances = [rng.uniform(0.2, 5, n) for n in sizes]
    if exact_root:
        variances[0][0] = 0
    _below, leaves = leaf_matrix(parents)
    if unseen:  # inner nodes that nobody counted: a whole layer, but for its leaves
        variances[0][0] = np.inf
        if len(parents) > 1:
            variances[1][np.unique(parents[1])] = np.inf
    if zero_leaf and len(leaves) > 2:
        first = np.cumsum([0, *sizes])
        layer = int(np.searchsorted(first, leaves[-1], side="right")) - 1
        variances[layer][leaves[-1] - first[layer]] = 0
        observed[layer][leaves[-1] - first[layer]] = 0
    return parents, observed, variances


CASES = [
    {"exact_root": False, "unseen": False, "zero_leaf": False},
    {"exact_root": True, "unseen": False, "zero_leaf": False},
    {"exact_root": False, "unseen": True, "zero_leaf": True},
    {"exact_root": True, "unseen": False, "zero_leaf": True},
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(8))
def test_estimates_equal_a_dense_solver(seed, case):
    parents, observed, variances = problem(seed, **case)
    x, v = consistent(parents, observed, variances)
    dense_x, dense_v = dense(parents, observed, variances)
    np.testing.assert_allclose(np.concatenate(x), dense_x, atol=1e-8)
    np.testing.assert_allclose(np.concatenate(v), dense_v, atol=1e-8)


def printed_equations(observed: list[np.ndarray], fan_out: int) -> list[np.ndarray]:
    """Equations (2) and (3) as Bowen et al. (2021) print them, the broken twin."""
    depth, b = len(observed) - 1, fan_out
    z = [y.copy() for y in observed]
    for layer in range(depth - 1, 0, -1):
        height = depth - layer
        own, children = (b**height - b ** (height - 1)) / (b**height - 1), b ** (height - 1) / (b**height - 1)
        z[layer] = own * observed[layer] + children * z[layer + 1].reshape(-1, b).sum(axis=1)
    return z


def hay(counts: list[np.ndarray], fan_out: int, *, exact_root: bool) -> np.ndarray:
    """Theorem 3 of Hay et al. (2010) as printed there, node by node; the leaves."""
    z, height = [counts[-1]], 1
    for own in counts[-2::-1]:
        height += 1
        power, less = fan_out**height, fan_out ** (height - 1)
        total = z[0].reshape(-1, fan_out).sum(axis=1)
        z.insert(0, (power - less) / (power - 1) * own + (less - 1) / (power - 1) * total)
    x = counts[0] if exact_root else z[0]
    for below in z[1:]:
        x = below + np.repeat((x - below.reshape(-1, fan_out).sum(axis=1)) / fan_out, fan_out)
    return x


@pytest.mark.parametrize(("fan_out", "depth"), [(2, 4), (3, 3), (5, 2)])
@pytest.mark.parametrize("exact_root", [True, False])
def test_equal_trees_give_hay_and_not_the_printed_equations(fan_out, depth, exact_root):
    rng = np.random.default_rng(0)
    parents = [np.repeat(np.arange(fan_out**d), fan_out) for d in range(depth)]
    counts = [rng.normal(100, 5, fan_out**layer) for layer in range(depth + 1)]
    variances = [np.full(len(own), 2.0) for own in counts]
    variances[0][:] = 0.0 if exact_root else 2.0
    estimates, _ = consistent(parents, counts, variances)
    assert np.abs(estimates[-1] - hay(counts, fan_out, exact_root=exact_root)).max() < 1e-9
    # the broken twins: the root taken the other way, and what the paper prints
    assert np.abs(estimates[-1] - hay(counts, fan_out, exact_root=not exact_root)).max() > 1e-3
    assert np.abs(estimates[1] - printed_equations(counts, fan_out)[1]).max() > 0.1


def test_exact_descendants_decide_over_an_exact_parent():
    x, v = consistent([np.array([0, 0])], [np.array([9.0]), np.array([3.0, 4.0])], [np.zeros(1), np.zeros(2)])
    assert x[0] == 7.0
    assert v[0] == 0.0
    assert x[1].tolist() == [3.0, 4.0]


def test_variances_are_those_of_repeated_draws():
    parents, observed, variances = problem(3, exact_root=False, unseen=False, zero_leaf=False)
    rng = np.random.default_rng(1)
    # noise around a tree of zeros: the estimates scatter with the stated variances (1000 draws, 6 standard errors)
    draws = []
    for _ in range(1000):
        noise = [rng.normal(0, np.sqrt(s)) for s in variances]
        draws.append(np.concatenate(consistent(parents, noise, variances)[0]))
    stated = np.concatenate(consistent(parents, observed, variances)[1])
    np.testing.assert_allclose(np.var(draws, axis=0), stated, rtol=6 * np.sqrt(2 / 1000))


def project_by_sorting(values: np.ndarray, weights: np.ndarray, total: float) -> np.ndarray:
    """max(value - shift * weight, 0) with the shift found by trying every breakpoint."""
    order = np.argsort(-values / weights)
    for k in range(len(values), 0, -1):
        kept = order[:k]
        shift = (values[kept].sum() - total) / weights[kept].sum()
        if (values[kept] - shift * weights[kept] > 0).all():
            return np.maximum(values - shift * weights, 0) * np.isin(np.arange(len(values)), kept)
    return np.zeros_like(values)


@pytest.mark.parametrize("seed", range(10))
def test_nonnegative_is_the_nearest_point_of_the_simplex(seed):
    rng = np.random.default_rng(seed)
    parent = np.sort(rng.integers(0, 5, 60))
    totals, values, weights = rng.uniform(0, 30, 5), rng.normal(0, 10, 60), rng.uniform(0.5, 3, 60)
    found = nonnegative([parent], [totals, values], [np.zeros(5), weights])
    for group in range(5):
        mine = parent == group
        if mine.any():
            wanted = project_by_sorting(values[mine], weights[mine], totals[group])
            np.testing.assert_allclose(found[mine], wanted, atol=1e-9)


def test_nonnegative_keeps_exact_counts_and_structural_zeros():
    found = nonnegative(
        [np.array([0, 0, 0, 0])],
        [np.array([10.0]), np.array([3.0, 0.0, 9.0, -4.0])],
        [np.zeros(1), np.array([0, 0, 1, 1.0])],
    )
    assert found.tolist() == [3.0, 0.0, 7.0, 0.0]


def test_nothing_stays_nothing():
    assert (
        nonnegative([np.zeros(3, int)], [np.array([-5.0]), np.array([1.0, 2, 3])], [np.ones(1), np.ones(3)]).tolist()
        == [0] * 3
    )
    cell, count = round_cells([np.zeros(4, int)], np.zeros(4), 0, np.random.default_rng(0))
    assert len(cell) == len(count) == 0


def rounded(parents, values, n, rng):
    cell, count = round_cells(parents, values, n, rng)
    full = np.zeros(len(values), np.int64)
    full[cell] = count
    return full


def test_rounding_moves_every_node_by_less_than_one_and_is_unbiased():
    rng = np.random.default_rng(0)
    parents = [np.repeat(np.arange(3), [2, 3, 4]), np.repeat(np.arange(9), 5)]
    values = rng.dirichlet(np.full(45, 0.5)) * 40
    draws = np.array([rounded(parents, values, 40, rng) for _ in range(3000)])
    assert (draws.sum(axis=1) == 40).all()
    middle = np.add.reduceat(values, np.arange(0, 45, 5))
    top = np.bincount(parents[0], weights=middle)
    for draw in draws[:200]:
        nodes = np.add.reduceat(draw, np.arange(0, 45, 5))
        assert (np.abs(draw - values) < 1).all()
        assert (np.abs(nodes - middle) < 1).all()
        assert (np.abs(np.bincount(parents[0], weights=nodes) - top) < 1).all()
    # a count rounds up with probability its fraction: standard error at most 0.5 / sqrt(3000); six of them
    assert np.abs(draws.mean(axis=0) - values).max() < 6 * 0.5 / np.sqrt(3000)
    # the twin that always rounds to nearest is biased by more than that
    assert np.abs(np.rint(values) - values).max() > 6 * 0.5 / np.sqrt(3000)


def test_rounding_does_not_alias_with_the_last_column():
    # cells of 1/4 each, four to a node: a systematic sample in fixed order would always take the same level
    rng = np.random.default_rng(0)
    parents = [np.zeros(400, int), np.repeat(np.arange(400), 4)]
    level = np.tile(np.arange(4), 400)
    assert np.bincount(level, weights=rounded(parents, np.full(1600, 0.25), 400, rng)).max() < 160
    fixed_order = np.diff(np.floor(np.cumsum(np.full(1600, 0.25)) + 0.3), prepend=0)
    assert np.bincount(level, weights=fixed_order).max() == 400
