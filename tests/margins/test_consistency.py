"""Consistency against independent solvers: dense least squares, brute-force projection,
the rounding's own rules.
"""

import numpy as np
import pytest
from margin_tables import dense_covariance
from scipy.optimize import brentq

from pdips.margins.consistency import consistent, draw_cells, nonnegative, round_cells


def random_tree(rng: np.random.Generator) -> list[np.ndarray]:
    """Layers of parents; nodes have 0 to 4 children, so that leaves lie at any
    depth.
    """
    parents, n_above = [], 1
    for _ in range(int(rng.integers(1, 5))):
        n_children = rng.integers(0, 5, n_above)
        n_children[rng.integers(n_above)] = rng.integers(1, 5)
        parents.append(np.repeat(np.arange(n_above), n_children))
        n_above = len(parents[-1])
    return parents


def leaves_below(parents: list[np.ndarray]) -> np.ndarray:
    """Return which leaves (columns) lie below which node (rows, layer by layer)."""
    first = np.cumsum([0, 1, *map(len, parents)])
    up, nodes = (
        np.concatenate([first[k] + parent for k, parent in enumerate(parents)]),
        np.arange(first[-1]),
    )
    one_down = np.eye(len(nodes))
    one_down[up, nodes[1:]] -= 1
    return np.rint(np.linalg.inv(one_down))[:, np.setdiff1d(nodes, up)]


def dense(parents, observed, variances):
    """Least squares by the null space: exact rows as constraints, unobserved rows left
    out.
    """
    below, y, s2 = (
        leaves_below(parents),
        np.concatenate(observed),
        np.concatenate(variances),
    )
    fixed, free = s2 == 0, (s2 > 0) & np.isfinite(s2)
    covariance = dense_covariance(below[free], s2[free], below[fixed])
    base = np.linalg.pinv(below[fixed]) @ y[fixed]
    solution = base + covariance @ below[free].T @ (
        (y[free] - below[free] @ base) / s2[free]
    )
    return below @ solution, np.einsum("ij,jk,ik->i", below, covariance, below)


def problem(seed: int, *, exact_root: bool, unseen: bool, zero_leaf: bool):
    rng = np.random.default_rng(seed)
    parents = random_tree(rng)
    sizes = [1, *map(len, parents)]
    observed = [rng.normal(5, 10, n) for n in sizes]
    variances = [rng.uniform(0.2, 5, n) for n in sizes]
    if exact_root:
        variances[0][0] = 0
    if unseen:  # inner nodes that nobody counted: a whole layer, but for its leaves
        variances[0][0] = np.inf
        if len(parents) > 1:
            variances[1][np.unique(parents[1])] = np.inf
    if zero_leaf and leaves_below(parents).shape[1] > 2:
        variances[-1][-1] = observed[-1][-1] = 0
    return parents, observed, variances


CASES = [
    (False, False, False),
    (True, False, False),
    (False, True, True),
    (True, False, True),
]


@pytest.mark.parametrize(("exact_root", "unseen", "zero_leaf"), CASES)
@pytest.mark.parametrize("seed", range(8))
def test_estimates_equal_a_dense_solver(seed, exact_root, unseen, zero_leaf):
    given = problem(seed, exact_root=exact_root, unseen=unseen, zero_leaf=zero_leaf)
    for found, wanted in zip(consistent(*given), dense(*given), strict=True):
        np.testing.assert_allclose(np.concatenate(found), wanted, atol=1e-8)


def hay(
    counts: list[np.ndarray], fan_out: int, *, exact_root: bool, printed: bool = False
) -> np.ndarray:
    """Theorem 3 of Hay et al. (2010) as printed there, node by node; the leaves.

    Or with the weights of equations (2) and (3) as Bowen et al. (2021) print them, the
    broken twin.
    """
    z, height = [counts[-1]], 1 - printed
    for own in counts[-2::-1]:
        height += 1
        power, less = fan_out**height, fan_out ** (height - 1)
        total = z[0].reshape(-1, fan_out).sum(axis=1)
        z.insert(
            0,
            (power - less) / (power - 1) * own
            + (less - 1 + printed) / (power - 1) * total,
        )
    x = counts[0] if exact_root else z[0]
    for below in z[1:]:
        x = below + np.repeat(
            (x - below.reshape(-1, fan_out).sum(axis=1)) / fan_out, fan_out
        )
    return x


@pytest.mark.parametrize(("fan_out", "depth"), [(2, 4), (3, 3), (5, 2)])
@pytest.mark.parametrize("exact_root", [True, False])
def test_equal_trees_give_hay_and_not_the_printed_equations(fan_out, depth, exact_root):
    rng = np.random.default_rng(0)
    parents = [np.repeat(np.arange(fan_out**d), fan_out) for d in range(depth)]
    counts = [rng.normal(100, 5, fan_out**layer) for layer in range(depth + 1)]
    variances = [np.full(len(own), 2.0) for own in counts]
    variances[0][:] = 0.0 if exact_root else 2.0
    leaves = consistent(parents, counts, variances)[0][-1]
    assert np.abs(leaves - hay(counts, fan_out, exact_root=exact_root)).max() < 1e-9
    # the broken twins: the root taken the other way, and what the paper prints
    assert np.abs(leaves - hay(counts, fan_out, exact_root=not exact_root)).max() > 1e-3
    assert (
        np.abs(leaves - hay(counts, fan_out, exact_root=exact_root, printed=True)).max()
        > 0.1
    )


def test_exact_descendants_decide_over_an_exact_parent():
    x, v = consistent(
        [np.array([0, 0])],
        [np.array([9.0]), np.array([3.0, 4.0])],
        [np.zeros(1), np.zeros(2)],
    )
    assert np.concatenate([*x, *v]).tolist() == [7, 3, 4, 0, 0, 0]


def project(values: np.ndarray, weights: np.ndarray, total: float) -> np.ndarray:
    """max(value - shift * weight, 0), with the shift found by halving."""
    shift = brentq(
        lambda at: np.maximum(values - at * weights, 0).sum() - total,
        -1e3,
        1e3,
        xtol=1e-12,
    )
    return np.maximum(values - shift * weights, 0)


@pytest.mark.parametrize("seed", range(10))
def test_nonnegative_is_the_nearest_point_of_the_simplex(seed):
    rng = np.random.default_rng(seed)
    parent = np.sort(rng.integers(0, 5, 60))
    totals, values, weights = (
        rng.uniform(0, 30, 5),
        rng.normal(0, 10, 60),
        rng.uniform(0.5, 3, 60),
    )
    found = nonnegative([parent], [totals, values], [np.zeros(5), weights])
    for group in np.unique(parent):
        own = parent == group
        np.testing.assert_allclose(
            found[own], project(values[own], weights[own], totals[group]), atol=1e-9
        )


@pytest.mark.parametrize(
    ("total", "values", "weights", "wanted"),
    [
        (10.0, [3.0, 0, 9, -4], [0.0, 0, 1, 1], [3, 0, 7, 0]),
        (-5.0, [1.0, 2, 3], [1.0, 1, 1], [0, 0, 0]),
    ],
    ids=["exact counts and structural zeros are kept", "nothing stays nothing"],
)
def test_nonnegative_at_its_ends(total, values, weights, wanted):
    parent, given = (
        np.zeros(len(values), int),
        ([np.array([total]), np.array(values)], [np.zeros(1), np.array(weights)]),
    )
    assert nonnegative([parent], *given).tolist() == wanted


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
    off = draws - values
    # cells, their parents, and those of these
    for starts in (np.arange(45), np.arange(0, 45, 5), [0, 10, 25]):
        assert (np.abs(np.add.reduceat(off, starts, axis=1)) < 1).all()
    # a count rounds up with probability its fraction: standard error at most 0.5 /
    # sqrt(3000); six of them
    assert np.abs(off.mean(axis=0)).max() < 6 * 0.5 / np.sqrt(3000)
    # the twin that always rounds to nearest is biased by more than that
    assert np.abs(np.rint(values) - values).max() > 6 * 0.5 / np.sqrt(3000)
    assert not rounded(parents[:1], np.zeros(9), 0, rng).any()


def test_rounding_does_not_alias_with_the_last_column():
    # cells of 1/4 each, four to a node: a systematic sample in fixed order would always
    # take the same level
    rng = np.random.default_rng(0)
    parents = [np.zeros(400, int), np.repeat(np.arange(400), 4)]
    level = np.tile(np.arange(4), 400)
    assert (
        np.bincount(
            level, weights=rounded(parents, np.full(1600, 0.25), 400, rng)
        ).max()
        < 160
    )
    fixed_order = np.diff(np.floor(np.cumsum(np.full(1600, 0.25)) + 0.3), prepend=0)
    assert np.bincount(level, weights=fixed_order).max() == 400


def test_records_drawn_independently_keep_to_their_group():
    rng, values = np.random.default_rng(2), np.array([1.0, 3.0, 0.0, 2.0, 4.0])
    group, totals = np.array([0, 0, 0, 1, 1]), np.zeros(5)
    for _ in range(2_000):
        cells, counts = draw_cells(group, values, rng)
        drawn = np.bincount(cells, weights=counts, minlength=5)
        assert (drawn[:3].sum(), drawn[3:].sum(), drawn[2]) == (4, 6, 0)
        totals += drawn
    # binomial shares of 8,000 and 12,000 draws: five standard errors are 194 and 258
    assert abs(totals[0] - 2_000) < 194
    assert abs(totals[3] - 4_000) < 258
