"""Chains for normal columns within cells, given noisy counts, sums and products: compiled loops.

All in units of half the range. See ``normal_cells.py`` for what is drawn. Small matrices are worked out by
hand: libraries take longer to call than to compute here.
"""

import math
from typing import Any

import numpy as np
from numba import njit

from pdips.arrays import FloatArray

HALF = 0.5
"""Records that an empty cell counts as in the laws of its sums."""

CENTRE, CENTRE_SD, TAU_SHAPE, TAU_RATE, SD_SHAPE, SD_RATE = range(6)
"""Rows of the constants of priors, shape (6, d): the centre of the cells' means is normal, their spread and the
standard deviations of records are gamma distributed."""

WANTED = 0.35
"""Share of accepted moves that step sizes are tuned to."""


@njit(cache=True)
def cholesky(a: FloatArray, out: FloatArray) -> bool:
    """Write the lower Cholesky factor of a small matrix; return whether it is positive definite."""
    d = len(a)
    for i in range(d):
        for j in range(i + 1):
            s = a[i, j]
            for k in range(j):
                s -= out[i, k] * out[j, k]
            if i == j:
                if s <= 0:
                    return False
                out[i, i] = math.sqrt(s)
            else:
                out[i, j] = s / out[j, j]
        for j in range(i + 1, d):
            out[i, j] = 0.0
    return True


@njit(cache=True)
def forward(chol: FloatArray, b: FloatArray) -> FloatArray:
    """Solve chol x = b for a lower factor."""
    d = len(b)
    x = np.empty(d)
    for i in range(d):
        s = b[i]
        for k in range(i):
            s -= chol[i, k] * x[k]
        x[i] = s / chol[i, i]
    return x


@njit(cache=True)
def backward(chol: FloatArray, b: FloatArray) -> FloatArray:
    """Solve chol' x = b for a lower factor."""
    d = len(b)
    x = np.empty(d)
    for i in range(d - 1, -1, -1):
        s = b[i]
        for k in range(i + 1, d):
            s -= chol[k, i] * x[k]
        x[i] = s / chol[i, i]
    return x


@njit(cache=True)
def times_own(a: FloatArray) -> FloatArray:
    """Return a a'."""
    d = len(a)
    out = np.zeros((d, d))
    for i in range(d):
        for j in range(d):
            for k in range(d):
                out[i, j] += a[i, k] * a[j, k]
    return out


@njit(cache=True)
def lower_times(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return the product of two lower factors."""
    d = len(a)
    out = np.zeros((d, d))
    for i in range(d):
        for j in range(i + 1):
            for k in range(j, i + 1):
                out[i, j] += a[i, k] * b[k, j]
    return out


@njit(cache=True)
def inverse_times(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return a^-1 b for lower factors."""
    d = len(a)
    out = np.zeros((d, d))
    for j in range(d):
        out[:, j] = forward(a, b[:, j])
    return out


@njit(cache=True)
def right_divided(a: FloatArray, b: FloatArray) -> FloatArray:
    """Return a b^-1 for lower factors."""
    d = len(a)
    out = np.zeros((d, d))
    for i in range(d):
        for j in range(i, -1, -1):
            s = a[i, j]
            for k in range(j + 1, i + 1):
                s -= out[i, k] * b[k, j]
            out[i, j] = s / b[j, j]
    return out


@njit(cache=True)
def spread(n: float, cov: FloatArray, tau: FloatArray, out: FloatArray) -> bool:
    """Write the factor of the covariance of a cell's sums: n cov + n^2 diag(tau^2)."""
    d = len(tau)
    size = max(n, HALF)
    a = size * cov
    for i in range(d):
        a[i, i] += (size * tau[i]) ** 2
    return cholesky(a, out)


@njit(cache=True)
def log_sums(n: float, sums: FloatArray, m: FloatArray, cov: FloatArray, tau: FloatArray) -> float:
    """Return the log density of a cell's sums, its mean integrated out."""
    d, size = len(m), max(n, HALF)
    if d <= 2:  # without arrays, for most of the time is spent here
        a = size * cov[0, 0] + (size * tau[0]) ** 2
        x = sums[0] - size * m[0]
        if d == 1:
            return float(-x * x / (2 * a) - math.log(a) / 2)
        b, c = size * cov[1, 0], size * cov[1, 1] + (size * tau[1]) ** 2
        y = sums[1] - size * m[1]
        det = a * c - b * b
        if det <= 0:
            return -np.inf
        return float(-(c * x * x - 2 * b * x * y + a * y * y) / (2 * det) - math.log(det) / 2)
    chol = np.zeros((d, d))
    if not spread(n, cov, tau, chol):
        return -np.inf
    z = forward(chol, sums - size * m)
    found = 0.0
    for i in range(d):
        found -= z[i] * z[i] / 2 + math.log(chol[i, i])
    return found


@njit(cache=True)
def log_all_sums(n: FloatArray, sums: FloatArray, m: FloatArray, cov: FloatArray, tau: FloatArray) -> float:
    """Return the log density of the sums of all cells."""
    found = 0.0
    for k in range(len(n)):
        found += log_sums(n[k], sums[k], m, cov, tau)
    return found


@njit(cache=True)
def log_noise(x: float, scale: float, gaussian: bool) -> float:
    """Return the log density of noise, up to a constant."""
    return -((x / scale) ** 2) / 2 if gaussian else -abs(x) / scale


@njit(cache=True)
def log_products(whole: FloatArray, noisy: FloatArray, scales: FloatArray, gaussian: bool) -> float:
    """Return the log density of the noise on the lower triangle of the products."""
    found = 0.0
    for i in range(len(whole)):
        for j in range(i + 1):
            found += log_noise(noisy[i, j] - whole[i, j], scales[i, j], gaussian)
    return found


@njit(cache=True)
def log_prior(chol: FloatArray, priors: FloatArray) -> float:
    """Return the log prior of a covariance in the coordinates of :func:`moved`: gamma deviations, LKJ(1)."""
    d, found = len(chol), log_deviations(chol, priors)
    for i in range(d):  # row i: d - i from covariances to factors, 1 to the log of its diagonal, i to units of that
        found += (d + 1) * math.log(chol[i, i])
    return found


@njit(cache=True)
def log_deviations(chol: FloatArray, priors: FloatArray) -> float:
    """Return what :func:`log_prior` says of standard deviations alone."""
    d, found = len(chol), 0.0
    for i in range(d):
        sd = 0.0
        for j in range(i + 1):
            sd += chol[i, j] ** 2
        sd = math.sqrt(sd)
        found += (priors[SD_SHAPE, i] - 1 - d) * math.log(sd) - priors[SD_RATE, i] * sd
    return found


@njit(cache=True)
def moved(chol: FloatArray, step: float, rng: Any) -> FloatArray:
    """Return a factor nearby: the logs of its diagonal move, and its rows in units of the diagonal."""
    d = len(chol)
    out = np.zeros((d, d))
    for i in range(d):
        out[i, i] = chol[i, i] * math.exp(step * rng.standard_normal())
        for j in range(i):
            out[i, j] = out[i, i] * (chol[i, j] / chol[i, i] + step * rng.standard_normal())
    return out


@njit(cache=True)
def log_spread(new: float, old: float, j: int, priors: FloatArray) -> float:
    """Return what the prior says for one spread of the cells' means against another, in their logs."""
    return float(priors[TAU_SHAPE, j] * math.log(new / old) - priors[TAU_RATE, j] * (new - old))


@njit(cache=True)
def log_wishart(chol: FloatArray, root: FloatArray, df: float) -> float:
    """Return the log Wishart density of root root' as a function of the covariance."""
    inside = inverse_times(chol, root)
    found = -(inside**2).sum() / 2
    for i in range(len(chol)):
        found -= df * math.log(chol[i, i])
    return found


@njit(cache=True)
def log_bartlett(a: FloatArray, df: float) -> float:
    """Return the log density of a standard Wishart factor in the logs of its diagonal and the rest."""
    found = -(a**2).sum() / 2
    for i in range(len(a)):
        found += (df - i) * math.log(a[i, i])
    return found


@njit(cache=True)
def about(n: FloatArray, sums: FloatArray) -> FloatArray:
    """Return the sum over cells of T T' / n."""
    d = sums.shape[1]
    out = np.zeros((d, d))
    for k in range(len(n)):
        size = max(n[k], HALF)
        for i in range(d):
            for j in range(d):
                out[i, j] += sums[k, i] * sums[k, j] / size
    return out


@njit(cache=True)
def outer_over(x: FloatArray, size: float) -> FloatArray:
    """Return x x' / size."""
    d = len(x)
    out = np.empty((d, d))
    for i in range(d):
        for j in range(d):
            out[i, j] = x[i] * x[j] / size
    return out


@njit(cache=True)
def reciprocal_variance(x: float, scale: float, rng: Any) -> float:
    """Draw 1 / omega given Laplace noise x that is normal with variance omega (inverse Gaussian law).

    Park and Casella (2008), The Bayesian lasso; the draw after Michael, Schucany and Haas (1976).
    """
    mean = 1 / (scale * max(abs(x), 1e-12 * scale))
    shape = 1 / scale**2
    y = rng.standard_normal() ** 2
    r = mean * y / (2 * shape)
    first = mean / (1 + r + math.sqrt(r * (r + 2)))
    if rng.random() * (mean + first) <= mean:
        return float(first)
    return float(mean * mean / first)


@njit(cache=True)
def count_moves(
    n: FloatArray,
    sums: FloatArray,
    noisy: FloatArray,
    scales: FloatArray,
    gaussian: bool,
    alpha: float,
    m: FloatArray,
    cov: FloatArray,
    tau: FloatArray,
    whole: FloatArray,
    products: FloatArray,
    product_scales: FloatArray,
    step: float,
    rng: Any,
) -> int:
    """Move records between pairs of cells; return how many moves were accepted. ``whole`` follows."""
    cells, accepted = len(n), 0
    for _ in range(cells):
        a = rng.integers(0, cells)
        b = rng.integers(0, cells)
        by = math.floor(step * abs(rng.standard_normal())) + 1
        if a == b or n[a] < by:
            continue
        change = whole.copy()
        ratio = 0.0
        for k, new in ((a, n[a] - by), (b, n[b] + by)):
            ratio += math.lgamma(new + alpha) - math.lgamma(new + 1)
            ratio -= math.lgamma(n[k] + alpha) - math.lgamma(n[k] + 1)
            if scales[k] > 0:
                ratio += log_noise(noisy[k] - new, scales[k], gaussian) - log_noise(
                    noisy[k] - n[k], scales[k], gaussian
                )
            ratio += log_sums(new, sums[k], m, cov, tau) - log_sums(n[k], sums[k], m, cov, tau)
            change += outer_over(sums[k], max(new, HALF)) - outer_over(sums[k], max(n[k], HALF))
        ratio += log_products(change, products, product_scales, gaussian)
        ratio -= log_products(whole, products, product_scales, gaussian)
        if math.log(rng.random()) < ratio:
            n[a] -= by
            n[b] += by
            whole[:] = change
            accepted += 1
    return accepted


@njit(cache=True)
def draw_sums(
    k: int,
    n: float,
    noisy: FloatArray,
    precision: FloatArray,
    m: FloatArray,
    cov: FloatArray,
    tau: FloatArray,
    rng: Any,
) -> FloatArray:
    """Draw a cell's sums given its normal noise of known precisions, products left aside."""
    d = len(m)
    chol, inverse, factor = np.zeros((d, d)), np.zeros((d, d)), np.zeros((d, d))
    spread(n, cov, tau, chol)
    for j in range(d):
        unit = np.zeros(d)
        unit[j] = 1.0
        inverse[:, j] = backward(chol, forward(chol, unit))
    place = max(n, HALF) * (inverse @ m)
    for j in range(d):
        inverse[j, j] += precision[k, j]
        place[j] += precision[k, j] * noisy[k, j]
    cholesky(inverse, factor)
    mean = backward(factor, forward(factor, place))
    z = np.empty(d)
    for j in range(d):
        z[j] = rng.standard_normal()
    return mean + backward(factor, z)


@njit(cache=True)
def draw_centre(
    n: FloatArray, sums: FloatArray, cov: FloatArray, tau: FloatArray, priors: FloatArray, rng: Any
) -> FloatArray:
    """Draw the mean of the cells' means."""
    d = len(tau)
    precision, place = np.zeros((d, d)), np.zeros(d)
    chol, factor = np.zeros((d, d)), np.zeros((d, d))
    for i in range(d):
        precision[i, i] = 1 / priors[CENTRE_SD, i] ** 2
        place[i] = priors[CENTRE, i] * precision[i, i]
    for k in range(len(n)):
        size = max(n[k], HALF)
        spread(n[k], cov, tau, chol)
        place += size * backward(chol, forward(chol, sums[k]))
        for j in range(d):
            unit = np.zeros(d)
            unit[j] = size * size
            precision[:, j] += backward(chol, forward(chol, unit))
    cholesky(precision, factor)
    z = np.empty(d)
    for j in range(d):
        z[j] = rng.standard_normal()
    return backward(factor, forward(factor, place) + z)


@njit(cache=True)
def tuned(step: float, accepted: bool, pace: float) -> float:
    """Return a step size after a move that was accepted or not."""
    return step * math.exp(pace * ((1.0 if accepted else 0.0) - WANTED))
