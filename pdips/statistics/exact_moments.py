"""Posterior draws of a normal law's mean and standard deviation given noisy sums of u and u^2, without Markov chains.

Importance sampling with weights that are bounded, compiled, for one release or for thousands of replicates.
"""

import math

import numba
import numpy as np

from pdips.arrays import FloatArray, IntArray

PROPOSALS = 2**18
"""Most proposals for one pair of noisy statistics."""


@numba.njit(cache=True, error_model="numpy")
def _laplace(rng: np.random.Generator) -> float:
    size = rng.standard_exponential()
    return size if rng.random() < 0.5 else -size


@numba.njit(cache=True, error_model="numpy")
def _positive_laplace(middle: float, scale: float, rng: np.random.Generator) -> float:
    """Draw from the Laplace law above 0."""
    if middle <= 0:
        return scale * rng.standard_exponential()
    below = math.exp(-middle / scale)  # of what lies left of the middle, this part is below 0
    u = rng.random() * (2 - below)
    if u < 1 - below:
        return middle + scale * math.log(u + below)
    return middle + scale * rng.standard_exponential()


@numba.njit(cache=True, error_model="numpy")
def _positive_normal(middle: float, scale: float, rng: np.random.Generator) -> float:
    """Draw from the normal law above 0 (Robert, Simulation of truncated normal variables, 1995)."""
    least = -middle / scale
    if least < 0.5:
        while True:
            z = rng.standard_normal()
            if z > least:
                return middle + scale * z
    rate = (least + math.sqrt(least**2 + 4)) / 2
    while True:
        beyond = rng.standard_exponential() / rate
        if math.log(1 - rng.random()) < -((least + beyond - rate) ** 2) / 2:
            return scale * beyond


@numba.njit(cache=True, error_model="numpy")
def _log_below(x: float) -> float:
    """Return the log of the standard normal distribution function."""
    if x > -30:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    return -(x**2) / 2 - math.log(-x * math.sqrt(2 * math.pi))


@numba.njit(cache=True, error_model="numpy")
def _log_mass(left: float, scale: float, gaussian: bool) -> float:
    """Return the log of the integral above 0 of the noise's density about ``left``, which is 1 at its top."""
    if gaussian:
        return math.log(scale * math.sqrt(2 * math.pi)) + _log_below(left / scale)
    return math.log(scale) + (math.log(2 - math.exp(-left / scale)) if left > 0 else left / scale)


@numba.njit(cache=True, error_model="numpy")
def propose(
    noisy: FloatArray,
    scales: FloatArray,
    n: float,
    priors: FloatArray,
    rng: np.random.Generator,
    found: FloatArray,
    log_weight: FloatArray,
    gaussian: bool = False,
    centre: float = 0.0,
) -> None:
    """Fill in proposals (sum, standard deviation) and their log weights for one pair of noisy statistics.

    Parameters
    ----------
    noisy, scales : ndarray, shape (2,)
        Noisy sum of u and of u^2, and the scales of their noise: of Laplace's law, or standard deviations.
    n : float
        Records, more than 2.
    priors : ndarray, shape (2,)
        The mean is N(centre, priors[0]^2), the standard deviation half-normal with scale priors[1].
    rng : numpy.random.Generator
        Randomness.
    found : ndarray, shape (proposals, 2)
        Exact sum of u and standard deviation; filled in.
    log_weight : ndarray, shape (proposals,)
        Log of posterior density over proposal density, up to a constant; filled in.
    gaussian : bool
        Whether the noise is normal; otherwise its law is Laplace's.
    centre : float
        Prior mean of the mean.

    Notes
    -----
    Unknown are the sum T, the sum of squares about the mean Q and the standard deviation s; the mean is integrated out,
    so T ~ N(n centre, n s^2 + n^2 tau^2). T comes with equal odds from its noise about the noisy sum, or from a normal
    law like its prior; then (Q, s) from the noise about what the noisy squares leave for Q, above 0, with s given Q
    under a flat prior, or from the prior. Each weight divides by the density of both ways together, so none exceeds 4
    times a number near 1: few proposals carry all the weight only where the data contradict the model.
    """
    total, squares, of_mean, of_sd = noisy[0], noisy[1], (n * priors[0]) ** 2, priors[1]
    wide = of_mean + n * of_sd**2
    log_half_normal = 0.5 * math.log(2 / math.pi) - math.log(of_sd)
    # chi-square density of Q given s over the density of s given Q: c / sqrt(Q)
    c = math.exp(math.lgamma((n - 2) / 2) - math.lgamma((n - 1) / 2)) / (2 * math.sqrt(2))
    per_scale = math.sqrt(2 * math.pi) if gaussian else 2.0
    for j in range(len(log_weight)):
        if rng.random() < 0.5:
            t = total + scales[0] * (rng.standard_normal() if gaussian else _laplace(rng))
        else:
            t = n * centre + math.sqrt(wide) * rng.standard_normal()
        left = squares - t**2 / n
        if rng.random() < 0.5:
            q = _positive_normal(left, scales[1], rng) if gaussian else _positive_laplace(left, scales[1], rng)
            s = math.sqrt(q / (2 * rng.standard_gamma((n - 2) / 2)))
        else:
            s = of_sd * abs(rng.standard_normal())
            q = 2 * s**2 * rng.standard_gamma((n - 1) / 2)
        noise_t, noise_q = -abs(t - total) / scales[0], -abs(q - left) / scales[1]
        if gaussian:
            noise_t, noise_q = -(noise_t**2) / 2, -(noise_q**2) / 2
        variance = n * s**2 + of_mean
        law_t = -0.5 * math.log(variance) - (t - n * centre) ** 2 / (2 * variance)
        flat_t = -0.5 * math.log(wide) - (t - n * centre) ** 2 / (2 * wide)
        way_t = math.exp(flat_t) / math.sqrt(2 * math.pi) + math.exp(noise_t) / (per_scale * scales[0])
        half_normal = log_half_normal - s**2 / (2 * of_sd**2)
        mass = _log_mass(left, scales[1], gaussian)
        way_q = math.exp(half_normal) + math.exp(noise_q - mass) * math.sqrt(q) / c
        log_weight[j] = law_t + noise_t - math.log(way_t) + half_normal + noise_q - math.log(way_q)
        found[j, 0], found[j, 1] = t, s


@numba.njit(cache=True, error_model="numpy")
def resample(weight: FloatArray, n_draws: int, rng: np.random.Generator) -> IntArray:
    """Draw places by weight, systematically, in random order."""
    places = np.empty(n_draws, dtype=np.int64)
    step = weight.sum() / n_draws
    reached, target, place = weight[0], rng.random() * step, 0
    for j in range(n_draws):
        while reached < target and place < len(weight) - 1:
            place += 1
            reached += weight[place]
        places[j] = place
        target += step
    for j in range(n_draws - 1, 0, -1):
        other = int(rng.random() * (j + 1))
        places[j], places[other] = places[other], places[j]
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
    gaussian: bool = False,
    centre: float = 0.0,
) -> tuple[FloatArray, FloatArray]:
    """Draw means and standard deviations given noisy statistics, for each of many pairs of them.

    Parameters
    ----------
    noisy : ndarray, shape (replicates, 2)
        Noisy sums of u and of u^2.
    scales, n, priors, rng, gaussian, centre
        As in :func:`propose`.
    n_draws : int
        Draws for each replicate: resampled by weight, so equal ones among them show that proposals were few.
    proposals : int
        Proposals for each replicate.
    least : float
        Four times as many proposals, and again, until they are worth this many independent ones, or ``PROPOSALS``.

    Returns
    -------
    ndarray, shape (replicates, n_draws, 2)
        Mean and standard deviation, in units of u.
    ndarray, shape (replicates,)
        How many independent draws the proposals are worth: the square of the sum of weights over the sum of squares.
    """
    draws, worth = np.empty((len(noisy), n_draws, 2)), np.empty(len(noisy))
    for i in range(len(noisy)):
        size = proposals
        while True:
            found, log_weight = np.empty((size, 2)), np.empty(size)
            propose(noisy[i], scales, n, priors, rng, found, log_weight, gaussian, centre)
            weight = np.exp(log_weight - log_weight.max())
            worth[i] = weight.sum() ** 2 / (weight**2).sum()
            if worth[i] >= least or 4 * size > PROPOSALS:
                break
            size *= 4
        places = resample(weight, n_draws, rng)
        for j in range(n_draws):
            t, s = found[places[j], 0], found[places[j], 1]
            draws[i, j, 0], draws[i, j, 1] = _mean(t, s, n, priors, rng, centre), s
    return draws, worth


@numba.njit(cache=True, error_model="numpy")
def plug_in(
    total: FloatArray,
    scatter: FloatArray,
    n: float,
    priors: FloatArray,
    n_draws: int,
    rng: np.random.Generator,
    centre: float = 0.0,
) -> FloatArray:
    """Draw means and standard deviations given sums and sums of squares about the mean that are taken as exact.

    Parameters
    ----------
    total, scatter : ndarray, shape (replicates,)
        Sums of u, and sums of squares of u about its mean, above 0.
    n, priors, n_draws, rng, centre
        As in :func:`noise_aware`.

    Returns
    -------
    ndarray, shape (replicates, n_draws, 2)
        Mean and standard deviation: exact draws, by rejection.

    Notes
    -----
    s given the scatter under a flat prior is accepted with probability proportional to its prior times
    N(T; n centre, v), v = n s^2 + (n tau)^2, which is largest at v = (T - n centre)^2, or at the
    least v if that is more.
    """
    draws = np.empty((len(total), n_draws, 2))
    for i in range(len(total)):
        away = (total[i] - n * centre) ** 2
        top = max(away, (n * priors[0]) ** 2)
        best = -0.5 * math.log(top) - away / (2 * top)
        for j in range(n_draws):
            while True:
                s = math.sqrt(scatter[i] / (2 * rng.standard_gamma((n - 2) / 2)))
                v = n * s**2 + (n * priors[0]) ** 2
                log_odds = -0.5 * math.log(v) - away / (2 * v) - best - s**2 / (2 * priors[1] ** 2)
                if math.log(1 - rng.random()) < log_odds:
                    break
            draws[i, j, 0], draws[i, j, 1] = _mean(total[i], s, n, priors, rng, centre), s
    return draws


@numba.njit(cache=True, error_model="numpy")
def _mean(t: float, s: float, n: float, priors: FloatArray, rng: np.random.Generator, centre: float) -> float:
    """Draw the mean given the exact sum and the standard deviation."""
    precision = 1 / priors[0] ** 2 + n / s**2
    middle: float = (t / s**2 + centre / priors[0] ** 2) / precision
    return middle + rng.standard_normal() / math.sqrt(precision)
