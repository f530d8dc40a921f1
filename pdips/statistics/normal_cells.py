"""Log densities of normal columns within cells, and small matrices: compiled, for
chains of ``general_location.py``.

Small matrices are worked out by hand: libraries take longer to call than to compute
here.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from pdips.arrays import FloatArray
from pdips.compiled import compiled

HALF = 0.5  # Records that an empty cell counts as in the laws of its sums
CENTRE, CENTRE_SD, TAU_SHAPE, TAU_RATE, SD_SHAPE, SD_RATE = range(6)
"""Rows of the constants of priors, shape (6, d): the centre of the cells' means is
normal, their spread and the standard deviations of records are gamma distributed.
"""


class Known(NamedTuple):
    """What chains are given; scales are standard deviations where noise is normal, and
    0 where there is none.
    """

    counts: FloatArray  # noisy counts, shape (cells,)
    count_scales: FloatArray
    sums: FloatArray  # noisy sums by cell, shape (cells, d)
    sum_scales: FloatArray  # of each column's, shape (d,)
    # noisy sums of products over all records, shape (d, d), symmetric
    products: FloatArray
    product_scales: FloatArray
    gaussian: bool  # whether the noise is normal
    alpha: float  # of the Dirichlet prior of the cells' shares
    priors: FloatArray  # shape (6, d), rows as CENTRE and those after it
    df: float  # degrees of freedom of the scatter within cells


class State(NamedTuple):
    """Where a chain is: counts, sums, centre and spread of cells' means, factors of
    covariance and scatter; steps.
    """

    n: FloatArray
    sums: FloatArray
    m: FloatArray
    tau: FloatArray
    chol: FloatArray
    root: FloatArray
    steps: FloatArray


# compiled


@compiled
def log_sums(
    n: float, sums: FloatArray, m: FloatArray, cov: FloatArray, tau: FloatArray
) -> float:
    """Return the log density of a cell's sums, its mean integrated out."""
    d = len(m)
    size = max(n, HALF)
    if d <= 2:  # without arrays, for most of the time is spent here
        a = size * cov[0, 0] + (size * tau[0]) ** 2
        x = sums[0] - size * m[0]
        if d == 1:
            return float(-x * x / (2 * a) - math.log(a) / 2)
        b = size * cov[1, 0]
        c = size * cov[1, 1] + (size * tau[1]) ** 2
        y = sums[1] - size * m[1]
        det = a * c - b * b
        if det <= 0:
            return -np.inf
        squares = c * x * x - 2 * b * x * y + a * y * y
        return float(-squares / (2 * det) - math.log(det) / 2)
    chol = np.zeros((d, d))
    if not spread(n, cov, tau, chol):
        return -np.inf
    standard = forward(chol, sums - size * m)
    log_det = np.log(np.diag(chol)).sum()
    return float(-(standard**2).sum() / 2 - log_det)


@compiled
def log_all_sums(
    state: State, m: FloatArray, tau: FloatArray, cov: FloatArray
) -> float:
    """Return the log density of the sums of all cells."""
    found = 0.0
    n = state.n
    sums = state.sums
    for k in range(len(n)):
        found += log_sums(n[k], sums[k], m, cov, tau)
    return found


@compiled
def log_noise(x: float, scale: float, gaussian: bool) -> float:
    """Return the log density of noise, up to a constant."""
    return -((x / scale) ** 2) / 2 if gaussian else -abs(x) / scale


@compiled
def log_products(known: Known, whole: FloatArray) -> float:
    """Return the log density of the noise on the lower triangle of the products."""
    found = 0.0
    noisy = known.products
    scales = known.product_scales
    for i in range(len(whole)):
        for j in range(i + 1):
            found += log_noise(noisy[i, j] - whole[i, j], scales[i, j], known.gaussian)
    return found


@compiled
def log_covariance(known: Known, state: State, chol: FloatArray) -> float:
    """Return the log density of sums and prior at a covariance, in the coordinates of
    :func:`moved`: LKJ(1).
    """
    d = len(chol)
    found = log_deviations(chol, known.priors)
    # row i: d - i from covariances to factors, 1 to the log of its diagonal, i to units
    # of that
    for i in range(d):
        found += (d + 1) * math.log(chol[i, i])
    return found + log_all_sums(state, state.m, state.tau, square(chol))


@compiled
def log_deviations(chol: FloatArray, priors: FloatArray) -> float:
    """Return what the prior of a covariance says of standard deviations alone: they are
    gamma distributed.
    """
    d = len(chol)
    found = 0.0
    for i in range(d):
        sd = math.sqrt((chol[i] ** 2).sum())
        found += (priors[SD_SHAPE, i] - 1 - d) * math.log(sd) - priors[SD_RATE, i] * sd
    return found


@compiled
def log_spread(new: float, old: float, j: int, priors: FloatArray) -> float:
    """Return what the prior says for one spread of the cells' means against another, in
    their logs.
    """
    growth = priors[TAU_SHAPE, j] * math.log(new / old)
    return float(growth - priors[TAU_RATE, j] * (new - old))


@compiled
def log_wishart(chol: FloatArray, root: FloatArray, df: float) -> float:
    """Return the log Wishart density of root root' as a function of the covariance."""
    trace = (solved(chol, root) ** 2).sum()
    return float(-trace / 2 - df * np.log(np.diag(chol)).sum())


@compiled
def moved(chol: FloatArray, step: float, rng: Any) -> FloatArray:
    """Return a factor nearby: the logs of its diagonal move, and its rows in units of
    the diagonal.
    """
    d = len(chol)
    out = np.zeros((d, d))
    for i in range(d):
        out[i, i] = chol[i, i] * math.exp(step * rng.standard_normal())
        for j in range(i):
            in_units = chol[i, j] / chol[i, i] + step * rng.standard_normal()
            out[i, j] = out[i, i] * in_units
    return out


@compiled
def reciprocal_variance(x: float, scale: float, rng: Any) -> float:
    """Draw 1 / omega given Laplace noise x that is normal with variance omega (inverse
    Gaussian law).

    Park and Casella (2008), The Bayesian lasso; the draw after Michael, Schucany and
    Haas (1976).
    """
    mean = 1 / (scale * max(abs(x), 1e-12 * scale))
    shape = 1 / scale**2
    y = rng.standard_normal() ** 2
    r = mean * y / (2 * shape)
    first = mean / (1 + r + math.sqrt(r * (r + 2)))
    if rng.random() * (mean + first) <= mean:
        return float(first)
    return float(mean * mean / first)


@compiled
def about(n: FloatArray, sums: FloatArray) -> FloatArray:
    """Return the sum over cells of T T' / n."""
    out = np.zeros((sums.shape[1], sums.shape[1]))
    for k in range(len(n)):
        add_outer(out, sums[k], 1 / max(n[k], HALF))
    return out


@compiled
def add_outer(out: FloatArray, x: FloatArray, times: float) -> None:
    """Add x x', so many times, to a matrix."""
    for i in range(len(x)):
        for j in range(len(x)):
            out[i, j] += times * x[i] * x[j]


@compiled
def spread(n: float, cov: FloatArray, tau: FloatArray, out: FloatArray) -> bool:
    """Write the factor of the covariance of a cell's sums: n cov + n^2 diag(tau^2);
    return whether there is one.
    """
    size = max(n, HALF)
    a = size * cov
    for i in range(len(tau)):
        a[i, i] += (size * tau[i]) ** 2
    return cholesky(a, out)


@compiled
def cholesky(a: FloatArray, out: FloatArray) -> bool:
    """Write the lower Cholesky factor of a small matrix; return whether it is positive
    definite.
    """
    for i in range(len(a)):
        for j in range(i + 1):
            s = a[i, j]
            for k in range(j):
                s -= out[i, k] * out[j, k]
            if i == j and s <= 0:
                return False
            out[i, j] = math.sqrt(s) if i == j else s / out[j, j]
    return True


@compiled
def square(a: FloatArray) -> FloatArray:
    """Return a a'."""
    out = np.zeros(a.shape)
    for j in range(a.shape[1]):
        add_outer(out, a[:, j], 1.0)
    return out


@compiled
def product(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return the product of two lower factors."""
    out = np.zeros(a.shape)
    for i in range(len(a)):
        for j in range(i + 1):
            for k in range(j, i + 1):
                out[i, j] += a[i, k] * b[k, j]
    return out


@compiled
def solved(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return a^-1 b for lower factors."""
    out = np.empty(a.shape)
    for j in range(len(a)):
        out[:, j] = forward(a, b[:, j])
    return out


@compiled
def forward(chol: FloatArray, b: FloatArray) -> FloatArray:
    """Solve chol x = b for a lower factor."""
    x = np.empty(len(b))
    for i in range(len(b)):
        s = b[i]
        for k in range(i):
            s -= chol[i, k] * x[k]
        x[i] = s / chol[i, i]
    return x


@compiled
def backward(chol: FloatArray, b: FloatArray) -> FloatArray:
    """Solve chol' x = b for a lower factor."""
    x = np.empty(len(b))
    for i in range(len(b) - 1, -1, -1):
        s = b[i]
        for k in range(i + 1, len(b)):
            s -= chol[k, i] * x[k]
        x[i] = s / chol[i, i]
    return x


@compiled
def inverted(chol: FloatArray) -> FloatArray:
    """Return the inverse of the matrix of which this is the lower factor."""
    inverse = np.empty(chol.shape)
    for j in range(len(chol)):
        unit = np.zeros(len(chol))
        unit[j] = 1.0
        inverse[:, j] = backward(chol, forward(chol, unit))
    return inverse
