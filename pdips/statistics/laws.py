"""Laws of exact statistics and of noise as PyTensor graphs, and the coordinates in
which chains move through them.

Functions called ``..._given`` return the statistic and the log density of its law times
the Jacobian, over that of its standard normal moves. Where noise is small the
coordinates follow the noisy values, where it is large what the parameters say (partial
non-centring: Papaspiliopoulos, Roberts and Skold, Statistical Science 22, 2007).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor import TensorVariable

from pdips.arrays import FloatArray


def correlation_factor(name: str, d: int) -> TensorVariable:
    """Return the lower Cholesky factor of a random correlation matrix, all of which are
    as likely, shape (d, d).

    ``name`` is that of the free variable: the partial correlations of the vine, (1 + r)
    / 2. LKJ with eta = 1 by these (Lewandowski, Kurowicka and Joe, Journal of
    Multivariate Analysis 100, 2009) is the same law as ``pymc.LKJCorr``, which takes 20
    s to compile for its gradient.
    """
    if d == 1:
        return pt.ones((1, 1))
    shares = pm.Beta(name, evenly(d), evenly(d))
    return factor_of(shares, d)


def evenly(d: int) -> FloatArray:
    """Return both parameters of the beta law of each partial correlation, shape (d (d -
    1) / 2,).
    """
    return 1 + (d - 2 - np.tril_indices(d, -1)[1]) / 2


def factor_of(shares: TensorVariable, d: int) -> TensorVariable:
    """Return the factor of partial correlations r given as (1 + r) / 2, shape (d (d -
    1) / 2,).
    """
    partial = 2 * shares - 1
    rows = []
    number = 0
    for i in range(d):
        left = pt.ones(())
        row = []
        for _ in range(i):
            row.append(partial[number] * pt.sqrt(left))
            left = left * (1 - partial[number] ** 2)
            number += 1
        rows.append([*row, pt.sqrt(left)])
    return _whole(rows)


def cell_means(
    draws: Mapping[str, FloatArray], counts: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Draw the means of cells, which the law of their sums integrates out, shape
    (draws, cells, columns).

    ``draws`` has ``sums`` (draws, cells, columns), ``m`` and ``tau`` (draws, columns),
    ``Sigma`` (draws, columns, columns); ``counts``, shape (draws, cells), are the
    records of each cell.
    """
    tau = draws["tau"]
    prior = np.eye(tau.shape[-1]) / tau[:, None, :] ** 2
    inverse = np.linalg.inv(draws["Sigma"])
    of_records = counts[..., None, None] * inverse[:, None]
    precision = prior[:, None] + of_records
    from_prior = prior @ draws["m"][..., None]
    from_records = inverse[:, None] @ draws["sums"][..., None]
    mean = np.linalg.solve(precision, from_prior[:, None] + from_records)
    root = np.linalg.cholesky(precision)
    standard = rng.standard_normal(mean.shape)
    deviations = np.linalg.solve(np.swapaxes(root, -1, -2), standard)
    return (mean + deviations)[..., 0]


def multinomial(counts: Any, p: Any) -> Any:
    """Return that of counts, shape (cells,), with probabilities ``p``."""
    of_cells = counts * pt.log(p) - pt.gammaln(counts + 1)
    return pt.sum(of_cells) + pt.gammaln(counts.sum() + 1)


def dirichlet_multinomial(counts: Any, alpha: float, cells: int) -> Any:
    """Return that of counts, shape (cells,), whose probabilities have a symmetric
    Dirichlet law, integrated out.
    """
    total = counts.sum()
    law = pt.sum(pt.gammaln(counts + alpha) - pt.gammaln(counts + 1))
    return law + pt.gammaln(total + 1) - pt.gammaln(total + cells * alpha)


def symmetric(lower: Any, d: int) -> Any:
    """Return the symmetric matrix of a lower triangle, row by row: shape (d, d) of
    shape (d (d + 1) / 2,).
    """
    rows, columns = np.tril_indices(d)
    whole = pt.set_subtensor(pt.zeros((d, d))[rows, columns], lower)
    return pt.set_subtensor(whole[columns, rows], lower)


def wishart(scatter: Any, df: Any, chol: Any, d: int) -> Any:
    """Return that of a scatter matrix, shape (d, d), with lower Cholesky factor
    ``chol`` of its scale matrix.
    """
    inside = pt.linalg.solve_triangular(chol, scatter, lower=True)
    trace = pt.trace(pt.linalg.solve_triangular(chol, inside.T, lower=True))
    _, log_det = pt.linalg.slogdet(scatter)
    log_det_scale = 2 * pt.log(pt.diag(chol)).sum()
    kernel = ((df - d - 1) * log_det - trace - df * log_det_scale) / 2
    return kernel - log_norm(df, d)


def noise(noise: Any, scale: Any, law: str) -> Any:
    """Return that of each noise, of arrays or TensorVariables; ``scale`` is the
    deviation where ``law`` is normal.
    """
    if law == "laplace":
        return -abs(noise) / scale
    return -((noise / scale) ** 2) / 2


def factors(chol: Any, d: int, times: Any, between: Any = None) -> list[list[Any]]:
    """Return the lower Cholesky factor of the covariance of sums, entry by entry, each
    of shape (entries,).

    One record adds the covariance S, of which ``chol`` is the lower factor, and an
    entry has t = ``times`` of them. Where entries' means have standard deviations b =
    ``between``, the covariance is t S + t^2 diag(b^2).
    """
    if between is None:
        root = pt.sqrt(times)
        return [[root * entry for entry in row] for row in _lower(chol, d)]
    rows: list[list[Any]] = []
    covariance = pt.dot(chol, chol.T)
    for i in range(d):
        row: list[Any] = []
        for j in range(i):
            products = (row[k] * rows[j][k] for k in range(j))
            inside = sum(products, start=pt.zeros(()))
            row.append((times * covariance[i, j] - inside) / rows[j][j])
        of_means = (times * between[i]) ** 2
        before = sum(entry**2 for entry in row)
        square = times * covariance[i, i] + of_means - before
        # What is left of t S alone, by its own factor, plus what the means add: never
        # below zero by rounding.
        least = times * chol[i, i] ** 2
        row.append(pt.sqrt(pt.maximum(square, least)))
        rows.append(row)
    return rows


def sum_given(
    noisy: Any, deviation: Any, moved: Any, mean: Any, sd: Any
) -> tuple[Any, Any]:
    """Return standardised exact sums, and their log density in terms of ``moved``,
    which is standard normal.

    ``mean`` and ``sd`` are those of the exact sums, given all that came before; s =
    ``deviation`` is that of the noise. Were the noise normal, the exact sum would have
    mean (s^2 mean + sd^2 noisy) / (sd^2 + s^2) and variance sd^2 s^2 / (sd^2 + s^2): it
    is that, with ``moved`` in units of its deviation.
    """
    both = sd**2 + deviation**2
    followed = sd * (noisy - mean) / both
    standard = followed + deviation * moved / pt.sqrt(both)
    log_density = (moved**2 - standard**2 - pt.log(both)).sum() / 2
    return standard, log_density


def adding_up(moved: Any) -> Any:
    """Return numbers that add up to 0, shape (cells,), made of standard normal ones,
    shape (cells - 1,).

    Lengths stay as they are: the rotation of ``pymc.ZeroSumNormal``, which takes
    seconds more to compile.
    """
    total = moved.sum()
    cells = moved.shape[0] + 1
    root = pt.sqrt(cells)
    last = pt.stack([-total / root])
    return pt.concatenate([moved - total / (root + cells), last])


def scatter_given(
    moved: Any, chol: Any, df: Any, centre: Any, follow: Any, steps: Any, d: int
) -> tuple[Any, Any]:
    """Return the lower factor of a Wishart matrix, and its log density in terms of
    ``moved``.

    ``moved`` is standard normal, shape (d (d + 1) / 2,), the lower triangle row by row;
    ``chol`` is the lower factor of the scale matrix, ``df`` are the degrees of freedom.
    The factor is L F with L = ``centre``, F near 1: the logarithms of the diagonal of
    F, and what is below it, move by ``steps`` about (1 - ``follow``) times what they
    are for df times the scale matrix. Small matrices are written out: that compiles in
    a tenth of the time.
    """
    scale = _lower(chol, d)
    middle = _lower(centre, d)
    expected = _solved(middle, scale)
    inside = list[list[Any]]()
    jacobian = pt.zeros(())
    number = 0
    for i in range(d):
        row = []
        for j in range(i + 1):
            entry = pt.sqrt(df) * expected[i][j]
            if i == j:
                entry = pt.log(entry)
            value = (1 - follow[number]) * entry + steps[number] * moved[number]
            number += 1
            if i == j:
                jacobian += value
                value = pt.exp(value)
            row.append(value)
        inside.append(row)
    factor = _product(middle, inside)
    logs = [pt.log(factor[i][i]) for i in range(d)]
    jacobian += sum((d - i) * log for i, log in enumerate(logs))
    squares = sum(entry**2 for row in _solved(scale, factor) for entry in row)
    log_scales = sum(pt.log(scale[i][i]) for i in range(d))
    log_determinants = (df - d - 1) * sum(logs) - df * log_scales
    law = log_determinants - squares / 2 - log_norm(df, d)
    return _whole(factor), law + jacobian + (moved**2).sum() / 2


def _whole(lower: list[list[Any]]) -> Any:
    """Return a lower matrix, given row by row, with zeros above its diagonal."""
    zero = pt.zeros(())
    d = len(lower)
    return pt.stack([pt.stack([*row, *[zero] * (d - len(row))]) for row in lower])


def _lower(matrix: Any, d: int) -> list[list[Any]]:
    return [[matrix[i, j] for j in range(i + 1)] for i in range(d)]


def _product(left: list[list[Any]], right: list[list[Any]]) -> list[list[Any]]:
    """Return the product of two lower matrices."""
    rows = []
    for i, row in enumerate(left):
        entries = []
        for j in range(i + 1):
            entries.append(sum(row[k] * right[k][j] for k in range(j, i + 1)))
        rows.append(entries)
    return rows


def _solved(left: list[list[Any]], right: list[list[Any]]) -> list[list[Any]]:
    """Return the inverse of a lower matrix times another one."""
    solution: list[list[Any]] = []
    for i, row in enumerate(right):
        entries = []
        for j in range(i):
            before = sum(left[i][k] * solution[k][j] for k in range(j, i))
            entries.append((row[j] - before) / left[i][i])
        solution.append([*entries, row[i] / left[i][i]])
    return solution


def log_norm(df: Any, d: int) -> Any:
    """Return the log of the constant of a Wishart density that depends on its degrees
    of freedom.
    """
    log_gammas = sum(pt.gammaln((df - i) / 2) for i in range(d))
    powers = df * d * np.log(2) / 2 + d * (d - 1) / 4 * np.log(np.pi)
    return powers + log_gammas


def steering(
    centre: FloatArray, deviations: FloatArray, df: float
) -> tuple[FloatArray, FloatArray]:
    """Return ``follow`` and ``steps`` of :func:`scatter_given` for noise of some
    deviations on the lower triangle.
    """
    rows, columns = np.tril_indices(len(centre))
    half = np.where(rows == columns, 0.5, 1.0)
    diagonal = np.diag(centre)
    noise = half * deviations / (diagonal[rows] * diagonal[columns])
    own = np.sqrt(half / df)
    follow = own**2 / (own**2 + noise**2)
    return follow, np.sqrt((1 - follow) * own**2)


def steering_counts(
    noisy: FloatArray, used: FloatArray, deviation: float, *, near: bool
) -> dict[str, FloatArray]:
    """Return ``place``, ``step`` and ``follow`` of :func:`counts_given`, each of shape
    (cells,).

    ``used`` is what post-processing made of noisy counts; ``near`` says whether counts
    may follow probabilities where the noise is large.
    """
    # not far above what loud noise lets a settled count be
    likely = np.minimum(used, np.maximum(noisy, deviation / 2))
    place = np.maximum(likely, 1e-3)
    follow = np.ones(len(place))
    if near:
        follow = place / (place + deviation**2)
    step = np.minimum(np.sqrt(follow) * deviation / place, 1.0)
    return {"place": place, "step": step, "follow": follow}


def counts_given(
    moved: Any, p: Any, n: int | None, *, place: Any, step: Any, follow: Any
) -> tuple[Any, Any]:
    """Return counts, shape (cells,), and the log density that makes them flat in terms
    of ``moved``.

    ``moved`` is standard normal, shape (cells,), or (cells - 1,) where it is known to
    which ``n`` counts add up. They are about ``place``, a move is ``step`` long, and
    ``follow`` says how far they stay there instead of following probabilities ``p``.
    """
    moves = moved if n is None else adding_up(moved)
    logs = follow * pt.log(place) + step * moves
    if p is not None:
        logs = logs + (1 - follow) * pt.log(p * place.sum())
    counts = pt.exp(logs)
    if n is not None:
        counts = n * counts / counts.sum()
    return counts, pt.sum(moved**2) / 2 + pt.log(counts).sum()
