"""Posterior draws of a normal sample for many tables at once, and moments of sets that
are never held; compiled.
"""

import math

import numba
import numpy as np

from pdips.arrays import FloatArray, IntArray

PROPOSALS = 2**18
"""Most proposals for one pair of noisy statistics."""


@numba.njit(cache=True, error_model="numpy")
def moments_of_sets(
    mean: FloatArray,
    sd: FloatArray,
    lower: float,
    upper: float,
    n: int,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Draw normal sets, move what is out of bounds to them, and return what an analyst
    needs of each.
    """
    first = np.empty(mean.shape)
    second = np.empty(mean.shape)
    fourth = np.empty(mean.shape)
    for i in range(mean.shape[0]):
        for j in range(mean.shape[1]):
            # sums are taken about it, for the sake of rounding
            middle = min(max(mean[i, j], lower), upper)
            one = 0.0
            two = 0.0
            three = 0.0
            four = 0.0
            for _ in range(n):
                x = mean[i, j] + sd[i, j] * rng.standard_normal()
                d = min(max(x, lower), upper) - middle
                d2 = d * d
                one += d
                two += d2
                three += d2 * d
                four += d2 * d2
            a = one / n
            b = two / n
            c = three / n
            e = four / n
            first[i, j] = middle + a
            second[i, j] = max(b - a * a, 0.0)
            about_mean = e - 4 * a * c + 6 * a * a * b - 3 * a**4
            fourth[i, j] = max(about_mean, 0.0)
    return first, second, fourth


@numba.njit(cache=True, error_model="numpy")
def _positive_laplace(middle: float, scale: float, rng: np.random.Generator) -> float:
    """Draw from the Laplace law above 0."""
    if middle <= 0:
        return scale * rng.standard_exponential()
    # of what lies left of the middle, this part is below 0
    below = math.exp(-middle / scale)
    u = rng.random() * (2 - below)
    if u < 1 - below:
        return middle + scale * math.log(u + below)
    return middle + scale * rng.standard_exponential()


@numba.njit(cache=True, error_model="numpy")
def propose(
    noisy: FloatArray,
    scales: FloatArray,
    n: float,
    priors: FloatArray,
    rng: np.random.Generator,
    found: FloatArray,
    log_weight: FloatArray,
) -> None:
    """Fill in proposals (sum, standard deviation) and their log weights for one pair of
    noisy statistics.

    Unknown are the sum T, the sum of squares about the mean Q and the standard
    deviation s; the mean is integrated out, so T ~ N(0, n s^2 + n^2 tau^2). T comes
    with equal odds from its noise about the noisy sum, or from a normal law like its
    prior; then (Q, s) from the noise about what the noisy squares leave for Q, above 0,
    with s given Q under a flat prior, or from the prior. Each weight divides by the
    density of both ways together, so none exceeds 4 times a number near 1: few
    proposals carry all the weight only where the data contradict the model.
    """
    of_mean = (n * priors[0]) ** 2
    wide = of_mean + n * priors[1] ** 2
    for j in range(len(log_weight)):
        t = _proposed_sum(noisy[0], scales[0], wide, rng)
        left = noisy[1] - t**2 / n
        q, s = _proposed_residuals(left, scales[1], n, priors[1], rng)
        variance = n * s**2 + of_mean
        noise_t = -abs(t - noisy[0]) / scales[0]
        of_noise = math.exp(noise_t) / (2 * scales[0])
        of_prior = math.exp(_log_normal(t, wide)) / math.sqrt(2 * math.pi)
        weight_of_t = _log_normal(t, variance) + noise_t - math.log(of_prior + of_noise)
        weight_of_q = _log_weight_of_residuals(q, s, left, scales[1], n, priors[1])
        log_weight[j] = weight_of_t + weight_of_q
        found[j, 0] = t
        found[j, 1] = s


@numba.njit(cache=True, error_model="numpy")
def _log_normal(x: float, variance: float) -> float:
    """Return the log of a normal density about 0, up to a constant."""
    return -0.5 * math.log(variance) - x**2 / (2 * variance)


@numba.njit(cache=True, error_model="numpy")
def _proposed_sum(
    noisy: float, scale: float, wide: float, rng: np.random.Generator
) -> float:
    """Propose T: from its noise about the noisy sum, or from its widest law."""
    if rng.random() < 0.5:
        size = scale * rng.standard_exponential()
        return noisy + (size if rng.random() < 0.5 else -size)
    drawn: float = math.sqrt(wide) * rng.standard_normal()
    return drawn


@numba.njit(cache=True, error_model="numpy")
def _proposed_residuals(
    left: float, scale: float, n: float, of_sd: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Propose Q and s: from what the noisy squares leave for Q, or from the prior."""
    if rng.random() < 0.5:
        q = _positive_laplace(left, scale, rng)
        return q, math.sqrt(q / (2 * rng.standard_gamma((n - 2) / 2)))
    s = of_sd * abs(rng.standard_normal())
    return 2 * s**2 * rng.standard_gamma((n - 1) / 2), s


@numba.njit(cache=True, error_model="numpy")
def _log_weight_of_residuals(
    q: float, s: float, left: float, scale: float, n: float, of_sd: float
) -> float:
    """Return the log density of Q and s over that of both ways to propose them."""
    # chi-square density of Q given s over the density of s given Q: c / sqrt(Q)
    log_gammas = math.lgamma((n - 2) / 2) - math.lgamma((n - 1) / 2)
    c = math.exp(log_gammas) / (2 * math.sqrt(2))
    # the integral above 0 of the noise's density about what is left, which is 1 at its
    # top
    mass = math.log(scale)
    if left > 0:
        mass += math.log(2 - math.exp(-left / scale))
    else:
        mass += left / scale
    log_constant = 0.5 * math.log(2 / math.pi) - math.log(of_sd)
    half_normal = log_constant - s**2 / (2 * of_sd**2)
    noise = -abs(q - left) / scale
    of_noise = math.exp(noise - mass) * math.sqrt(q) / c
    return half_normal + noise - math.log(math.exp(half_normal) + of_noise)


@numba.njit(cache=True, error_model="numpy")
def resample(weight: FloatArray, n_draws: int, rng: np.random.Generator) -> IntArray:
    """Draw places by weight, systematically, in random order."""
    reached = np.cumsum(weight)
    targets = (rng.random() + np.arange(n_draws)) * (reached[-1] / n_draws)
    places: IntArray = np.minimum(np.searchsorted(reached, targets), len(weight) - 1)
    rng.shuffle(places)
    return places


@numba.njit(cache=True, error_model="numpy")
def noise_aware(
    noisy: FloatArray,
    scales: FloatArray,
    n: float,
    priors: FloatArray,
    n_draws: int,
    proposals: int,
    least: float,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    """Draw means and standard deviations given noisy statistics, for each of many pairs
    of them.
    """
    draws = np.empty((len(noisy), n_draws, 2))
    worth = np.empty(len(noisy))
    for i in range(len(noisy)):
        size = proposals
        while True:
            found = np.empty((size, 2))
            log_weight = np.empty(size)
            propose(noisy[i], scales, n, priors, rng, found, log_weight)
            weight = np.exp(log_weight - log_weight.max())
            worth[i] = weight.sum() ** 2 / (weight**2).sum()
            if worth[i] >= least or 4 * size > PROPOSALS:
                break
            size *= 4
        places = resample(weight, n_draws, rng)
        for j in range(n_draws):
            t = found[places[j], 0]
            s = found[places[j], 1]
            draws[i, j, 0] = _mean(t, s, n, priors, rng)
            draws[i, j, 1] = s
    return draws, worth


@numba.njit(cache=True, error_model="numpy")
def plug_in(
    total: FloatArray,
    scatter: FloatArray,
    n: float,
    priors: FloatArray,
    n_draws: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Draw means and standard deviations given sums and sums of squares about the mean
    that are taken as exact.

    s given the scatter under a flat prior is accepted with probability proportional to
    its prior times N(T; 0, v), v = n s^2 + (n tau)^2, which is largest at v = T^2, or
    at the least v if that is more.
    """
    draws = np.empty((len(total), n_draws, 2))
    for i in range(len(total)):
        away = total[i] ** 2
        top = max(away, (n * priors[0]) ** 2)
        best = -0.5 * math.log(top) - away / (2 * top)
        for j in range(n_draws):
            while True:
                s = math.sqrt(scatter[i] / (2 * rng.standard_gamma((n - 2) / 2)))
                variance = n * s**2 + (n * priors[0]) ** 2
                log_odds = _log_normal(total[i], variance) - best
                log_odds -= s**2 / (2 * priors[1] ** 2)
                if math.log(1 - rng.random()) < log_odds:
                    break
            draws[i, j, 0] = _mean(total[i], s, n, priors, rng)
            draws[i, j, 1] = s
    return draws


@numba.njit(cache=True, error_model="numpy")
def _mean(
    t: float, s: float, n: float, priors: FloatArray, rng: np.random.Generator
) -> float:
    """Draw the mean given the exact sum and the standard deviation."""
    precision = 1 / priors[0] ** 2 + n / s**2
    middle: float = t / s**2 / precision
    return middle + rng.standard_normal() / math.sqrt(precision)
