"""Loops of the sequential logits: compiled by numba when first needed, kept between runs."""

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract", "arcp"})
def features(point: Any, mean: Any, factor: Any, sd: Any, standard: Any, feature: Any) -> None:
    """Fill in (z - mean) / sd, and 1, z and the products of z, row by row of the lower triangle."""
    d = len(mean)
    feature[0] = 1.0
    for i in range(d):
        away = 0.0
        for j in range(d):
            away += factor[i, j] * point[j]
        standard[i] = away / sd[i]
        feature[1 + i] = mean[i] + away
    place = 1 + d
    for i in range(d):
        for j in range(i + 1):
            feature[place] = feature[1 + i] * feature[1 + j]
            place += 1


@njit(cache=True, error_model="numpy")
def effects(sizes: Any, d: int, n_chances: int) -> tuple[Any, Any]:
    """Return where a logit's coefficients are, and which indicators of earlier columns its cell has.

    Logits are by column, cell of the earlier columns, and level; shapes (logits,) and (logits, columns), with -1 for
    none. The first level of a column has no coefficients: -1.
    """
    start, on = np.full(n_chances, -1), np.full((n_chances, len(sizes)), -1)
    cells, at, of_x, indicators = 1, 0, 0, 0
    for j in range(len(sizes)):
        size, p = sizes[j], 1 + d + indicators
        for cell in range(cells):
            for level in range(1, size):
                row = of_x + (level - 1) * p
                start[at + cell * size + level] = row
                rest, end = cell, row + 1 + d + indicators
                for i in range(j - 1, -1, -1):
                    end -= sizes[i] - 1
                    if rest % sizes[i]:
                        on[at + cell * size + level, i] = end + rest % sizes[i] - 1
                    rest //= sizes[i]
        at += cells * size
        of_x += (size - 1) * p
        indicators += size - 1
        cells *= size
    return start, on


@njit(cache=True, error_model="numpy")
def offsets(start: Any, on: Any, x: Any) -> Any:
    """Return the part of each logit that doesn't depend on z."""
    found = np.zeros(len(start))
    for at in range(len(start)):
        if start[at] >= 0:
            found[at] = x[start[at]]
            for row in on[at]:
                if row >= 0:
                    found[at] += x[row]
    return found


@njit(cache=True, error_model="numpy")
def shares_at(
    standard: Any, sizes: Any, x: Any, start: Any, offset: Any, chance: Any, share: Any, scratch: Any
) -> None:
    """Fill in P(level | earlier levels, z), column by column, cell of the earlier ones by cell, and P(cell | z)."""
    d, cells, at = len(standard), 1, 0
    slope = np.zeros(8) if sizes.max() <= 8 else np.zeros(sizes.max())
    share[0] = 1.0
    for j in range(len(sizes)):
        size = sizes[j]
        for level in range(1, size):
            slope[level] = 0.0
            for i in range(d):
                slope[level] += standard[i] * x[start[at + level] + 1 + i]
        for cell in range(cells):
            total, most = 0.0, 0.0
            for level in range(size):
                chance[at + level] = offset[at + level] + (slope[level] if level else 0.0)
                most = max(most, chance[at + level])
            for level in range(size):
                chance[at + level] = np.exp(chance[at + level] - most)
                total += chance[at + level]
            for level in range(size):
                chance[at + level] /= total
                scratch[cell * size + level] = share[cell] * chance[at + level]
            at += size
        cells *= size
        share[:cells] = scratch[:cells]


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract", "arcp"})
def logit_gradient(
    standard: Any,
    sizes: Any,
    x: Any,
    start: Any,
    chance: Any,
    by_cell: Any,
    x_bar: Any,
    offset_bar: Any,
    standard_bar: Any,
) -> None:
    """Add the gradient in logits and z of sum_k by_cell[k] log P(cell k | z); ``by_cell`` is overwritten."""
    d, cells, at = len(standard), len(by_cell), len(chance)
    for j in range(len(sizes) - 1, -1, -1):
        size = sizes[j]
        cells //= size
        at -= cells * size
        for level in range(1, size):
            slope_bar = 0.0
            for cell in range(cells):
                total = 0.0
                for other in range(size):
                    total += by_cell[cell * size + other]
                bar = by_cell[cell * size + level] - total * chance[at + cell * size + level]
                offset_bar[at + cell * size + level] += bar
                slope_bar += bar
            row = start[at + level] + 1
            for i in range(d):
                x_bar[row + i] += slope_bar * standard[i]
                standard_bar[i] += slope_bar * x[row + i]
        for cell in range(cells):
            total = 0.0
            for level in range(size):
                total += by_cell[cell * size + level]
            by_cell[cell] = total


@njit(cache=True, error_model="numpy")
def spread_offsets(start: Any, on: Any, offset_bar: Any, x_bar: Any) -> None:
    """Add to the gradient in coefficients that in the parts of logits that don't depend on z."""
    for at in range(len(start)):
        if start[at] >= 0:
            x_bar[start[at]] += offset_bar[at]
            for row in on[at]:
                if row >= 0:
                    x_bar[row] += offset_bar[at]


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract", "arcp"})
def inverse(matrix: Any) -> tuple[Any, float, bool]:
    """Return the inverse of a symmetric matrix, half its log determinant, and whether it is positive definite."""
    n = len(matrix)
    root, back = np.zeros((n, n)), np.zeros((n, n))
    half = 0.0
    for i in range(n):
        for j in range(i + 1):
            value = matrix[i, j]
            for k in range(j):
                value -= root[i, k] * root[j, k]
            if j < i:
                root[i, j] = value / root[j, j]
            elif value > 0:
                root[i, i] = np.sqrt(value)
                half += np.log(root[i, i])
            else:
                return back, 0.0, False
    for j in range(n):
        back[j, j] = 1 / root[j, j]
        for i in range(j + 1, n):
            value = 0.0
            for k in range(j, i):
                value -= root[i, k] * back[k, j]
            back[i, j] = value / root[i, i]
    found = np.zeros((n, n))
    for k in range(n):  # not BLAS, whose threads cost more than they bring for so small a matrix
        for i in range(k + 1):
            for j in range(i + 1):
                found[i, j] += back[k, i] * back[k, j]
    for i in range(n):
        for j in range(i):
            found[j, i] = found[i, j]
    return found, half, True


@njit(cache=True, error_model="numpy")
def monomials(d: int) -> tuple[Any, Any, Any]:
    """Return which product of z each (1, z)_a (1, z, zz)_c is, shape (1 + d, features), and an a and a c of each."""
    n_features = 1 + d + d * (d + 1) // 2
    power = np.zeros(n_features, dtype=np.int64)  # in base 4, a digit for each column: no more than three of each
    at = 1 + d
    for i in range(d):
        power[1 + i] = 4**i
        for j in range(i + 1):
            power[at] = 4**i + 4**j
            at += 1
    place = np.zeros((1 + d, n_features), dtype=np.int64)
    first, second = np.zeros(place.size, dtype=np.int64), np.zeros(place.size, dtype=np.int64)
    n_found = 0
    for a in range(1 + d):
        for c in range(n_features):
            place[a, c] = n_found
            for m in range(n_found):
                if power[first[m]] + power[second[m]] == power[a] + power[c]:
                    place[a, c] = m
            if place[a, c] == n_found:
                first[n_found], second[n_found] = a, c
                n_found += 1
    return place, first[:n_found].copy(), second[:n_found].copy()


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract", "arcp"})
def moments(
    mean: Any, factor: Any, x: Any, sizes: Any, points: Any, weights: Any
) -> tuple[Any, Any, Any, tuple[Any, Any]]:
    """Return E[1{cell} (1, z)' (1, z, zz)], E[zz zz'], both by quadrature, and E[zz]; zz are products.

    And what :func:`shares_at` finds at each node, for :func:`backward`.
    """
    d, n_cells = len(mean), 1
    n_chances = 0
    for size in sizes:
        n_cells *= size
        n_chances += n_cells
    n_features = 1 + d + d * (d + 1) // 2
    sd = np.sqrt((factor**2).sum(axis=1))
    start, on = effects(sizes, d, n_chances)
    offset = offsets(start, on, x)
    place, first, second = monomials(d)
    monomial, by_monomial = np.empty(len(first)), np.zeros((n_cells, len(first)))
    squares = np.zeros((n_features - 1 - d, n_features - 1 - d))
    standard, feature = np.empty(d), np.empty(n_features)
    chances, shares = np.empty((len(points), n_chances)), np.empty((len(points), n_cells))
    scratch = np.empty(n_cells)
    for q in range(len(points)):
        features(points[q], mean, factor, sd, standard, feature)
        share = shares[q]
        shares_at(standard, sizes, x, start, offset, chances[q], share, scratch)
        for m in range(len(first)):
            monomial[m] = weights[q] * feature[first[m]] * feature[second[m]]
        for k in range(n_cells):
            for m in range(len(first)):
                by_monomial[k, m] += share[k] * monomial[m]
        for a in range(len(squares)):
            for c in range(len(squares)):
                squares[a, c] += weights[q] * feature[1 + d + a] * feature[1 + d + c]
    by_cell = np.zeros((n_cells, 1 + d, n_features))
    for k in range(n_cells):
        for a in range(1 + d):
            for c in range(n_features):
                by_cell[k, a, c] = by_monomial[k, place[a, c]]
    return by_cell, squares, by_cell[:, 0, 1 + d :].sum(axis=0), (chances, shares)


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract", "arcp"})
def backward(
    mean: Any,
    factor: Any,
    x: Any,
    sizes: Any,
    points: Any,
    weights: Any,
    found_at: Any,
    cell_bar: Any,
    square_bar: Any,
    product_bar: Any,
) -> tuple[Any, Any, Any]:
    """Return the gradient in mean, factor and coefficients, given that in what :func:`moments` returns."""
    d, n_cells = len(mean), len(cell_bar)
    n_features, n_chances = cell_bar.shape[2], found_at[0].shape[1]
    sd = np.sqrt((factor**2).sum(axis=1))
    mean_bar, factor_bar, x_bar, sd_bar = np.zeros(d), np.zeros((d, d)), np.zeros(len(x)), np.zeros(d)
    offset_bar = np.zeros(n_chances)
    standard, feature = np.empty(d), np.empty(n_features)
    chances, shares = found_at
    weight_of, feature_bar, standard_bar = np.empty(n_cells), np.empty(n_features), np.empty(d)
    start, on = effects(sizes, d, n_chances)
    place, first, second = monomials(d)
    monomial, monomial_bar, bars = np.empty(len(first)), np.empty(len(first)), np.zeros((n_cells, len(first)))
    for k in range(n_cells):
        for a in range(1 + d):
            for c in range(n_features):
                bars[k, place[a, c]] += cell_bar[k, a, c]
    for q in range(len(points)):
        features(points[q], mean, factor, sd, standard, feature)
        share = shares[q]
        feature_bar[:] = 0.0
        standard_bar[:] = 0.0
        for m in range(len(first)):
            monomial[m] = weights[q] * feature[first[m]] * feature[second[m]]
            monomial_bar[m] = 0.0
        for k in range(n_cells):
            found = 0.0
            for m in range(len(first)):
                found += bars[k, m] * monomial[m]
                monomial_bar[m] += share[k] * bars[k, m]
            weight_of[k] = found * share[k]
        for m in range(len(first)):
            feature_bar[first[m]] += weights[q] * monomial_bar[m] * feature[second[m]]
            feature_bar[second[m]] += weights[q] * monomial_bar[m] * feature[first[m]]
        for a in range(len(square_bar)):
            feature_bar[1 + d + a] += weights[q] * product_bar[a]
            for c in range(len(square_bar)):
                feature_bar[1 + d + a] += 2 * weights[q] * square_bar[a, c] * feature[1 + d + c]
        logit_gradient(standard, sizes, x, start, chances[q], weight_of, x_bar, offset_bar, standard_bar)
        place = 1 + d
        for i in range(d):
            for j in range(i + 1):
                feature_bar[1 + i] += feature_bar[place] * feature[1 + j]
                feature_bar[1 + j] += feature_bar[place] * feature[1 + i]
                place += 1
        for i in range(d):
            mean_bar[i] += feature_bar[1 + i]
            sd_bar[i] -= standard_bar[i] * standard[i] / sd[i]
            for j in range(d):
                factor_bar[i, j] += (feature_bar[1 + i] + standard_bar[i] / sd[i]) * points[q, j]
    spread_offsets(start, on, offset_bar, x_bar)
    for i in range(d):
        factor_bar[i] += sd_bar[i] * factor[i] / sd[i]
    return mean_bar, factor_bar, x_bar


@njit(cache=True, error_model="numpy")
def expectation(by_cell: Any, squares: Any, products: Any) -> tuple[Any, Any]:
    """Return what one record adds to the statistics on average, and the average of its products."""
    n_cells, width, n_features = by_cell.shape
    n = n_cells * width
    size = n + n_features - width
    mean, second = np.zeros(size), np.zeros((size, size))
    for k in range(n_cells):
        for a in range(width):
            mean[a * n_cells + k] = by_cell[k, a, 0]
            for b in range(width):
                second[a * n_cells + k, b * n_cells + k] = by_cell[k, a, b]
            for c in range(n_features - width):
                second[a * n_cells + k, n + c] = by_cell[k, a, width + c]
                second[n + c, a * n_cells + k] = by_cell[k, a, width + c]
    mean[n:] = products
    second[n:, n:] = squares
    return mean, second


@njit(cache=True, error_model="numpy")
def log_density(
    mean: Any,
    factor: Any,
    x: Any,
    variances: Any,
    values: Any,
    n: Any,
    sizes: Any,
    points: Any,
    weights: Any,
    centred: bool,
    least: float,
) -> tuple[Any, Any, Any, Any, Any, Any]:
    """Return the normal log density of sums over n records with noise, shape (1,), and its gradient.

    The gradient is in mean, factor, coefficients, variances and n, in this order.
    """
    by_cell, squares, products, found_at = moments(mean, factor, x, sizes, points, weights)
    one, second = expectation(by_cell, squares, products)
    per_record = second - np.outer(one, one) if centred else second
    size = len(one)
    inside, half, fine = inverse(n[0] * per_record + np.diag(variances + least))
    if not fine:
        nowhere = np.full(1, -np.inf)
        return nowhere, np.zeros(len(mean)), np.zeros(factor.shape), np.zeros(len(x)), np.zeros(size), np.zeros(1)
    away = values - n[0] * one
    pull = (inside * away).sum(axis=1)
    found = np.full(1, -0.5 * (away * pull).sum() - half)
    gradient = 0.5 * (np.outer(pull, pull) - inside)
    n_bar = np.full(1, (pull * one).sum() + (gradient * per_record).sum())
    one_bar, second_bar = n[0] * pull, n[0] * gradient
    if centred:
        one_bar = one_bar - 2 * (second_bar * one).sum(axis=1)
    n_cells, width, n_features = by_cell.shape
    whole = n_cells * width
    cell_bar = np.zeros(by_cell.shape)
    for k in range(n_cells):
        for a in range(width):
            cell_bar[k, a, 0] += one_bar[a * n_cells + k]
            for b in range(width):
                cell_bar[k, a, b] += second_bar[a * n_cells + k, b * n_cells + k]
            for c in range(n_features - width):
                cell_bar[k, a, width + c] += 2 * second_bar[a * n_cells + k, whole + c]
    square_bar = np.ascontiguousarray(second_bar[whole:, whole:])
    bars = backward(mean, factor, x, sizes, points, weights, found_at, cell_bar, square_bar, one_bar[whole:].copy())
    return found, bars[0], bars[1], bars[2], np.diag(gradient).copy(), n_bar
