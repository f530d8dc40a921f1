"""Posterior draws of a linear regression given noisy sums of products, from many short chains side by side.

A normal law of one column is the regression on a constant.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special, stats

from pdips.arrays import FloatArray

STEPS = 150
LEAST_ACCEPTED = 0.05
SD = 0.3
"""At which coefficients are proposed; it steers chains only."""

LEAST_REST = 2.0**-1014
"""Residuals are above 0, also where rounding says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Regression:
    """What a regression's posterior depends on.

    Parameters
    ----------
    gram : ndarray, shape (p, p)
        X'X.
    covariance : ndarray, shape (p, p)
        Of least-squares coefficients b about true ones, over the variance of a record.
    df : float
        Degrees of freedom of the sum of squared residuals, at least 2.
    width, spread : float
        The coefficients are N(centre, width^2), the standard deviation s of a record half-normal with scale ``spread``.
    centre : float
        Of the prior of each coefficient.
    """

    gram: FloatArray
    covariance: FloatArray
    df: float
    width: float
    spread: float
    centre: float = 0.0

    def basis(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return eigenvalues and eigenvectors of the covariance, and the centre in their basis."""
        own, basis = np.linalg.eigh(self.covariance)
        return own, basis, np.full(len(own), self.centre) @ basis

    def variance(self, sd: FloatArray, own: FloatArray) -> FloatArray:
        """Return that of b in the basis of the covariance, coefficients integrated out, shape (chains, p)."""
        return self.width**2 + sd[:, None] ** 2 * own

    def coefficients(self, b: FloatArray, sd: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Draw coefficients given b and s, shape (draws, p)."""
        own, basis, middle = self.basis()
        shrink = self.width**2 / self.variance(sd, own)
        noise = np.sqrt(shrink * sd[:, None] ** 2 * own) * rng.standard_normal(b.shape)
        return np.asarray((middle + shrink * (b @ basis - middle) + noise) @ basis.T)

    def log_prior(self, away: FloatArray, sd: FloatArray, own: FloatArray) -> FloatArray:
        """Return the log density of b less the centre, in the basis, given s."""
        variance = self.variance(sd, own)
        return np.asarray(-(np.log(variance) + away**2 / variance).sum(axis=1) / 2)


@dataclass(frozen=True, kw_only=True)
class NoisyMoments:
    """Noisy sums ``loads @ b`` and sum of squares, with the scales of their noise.

    Parameters
    ----------
    loads : ndarray, shape (entries, p)
        Exact sums are ``loads @ b``.
    sums, scales : ndarray, shape (entries,)
        Noisy sums, and the scales of the noise on each.
    squares, scale : float
        The noisy sum of squares of the outcome, and the scale of its noise.
    law : {"laplace", "gaussian"}
        Of the noise; scales are standard deviations where it is normal.
    """

    loads: FloatArray
    sums: FloatArray
    scales: FloatArray
    squares: float
    scale: float
    law: Literal["laplace", "gaussian"]

    def log_noise(self, away: FloatArray) -> FloatArray:
        """Return the log density of the noise on the squares, up to a constant."""
        away = away / self.scale
        return -np.abs(away) if self.law == "laplace" else -(away**2) / 2

    def log_mass(self, left: FloatArray) -> FloatArray:
        """Return the log of the share of that noise about ``left`` above 0, up to a constant."""
        left = left / self.scale
        if self.law == "gaussian":
            return np.asarray(special.log_ndtr(left))
        return np.where(left > 0, np.log(2 - np.exp(-np.maximum(left, 0))), np.minimum(left, 0))

    def rest(self, left: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Draw ``left`` plus noise, given that it is above 0."""
        if self.law == "gaussian":
            found = left + self.scale * stats.truncnorm.rvs(-left / self.scale, np.inf, random_state=rng)
        else:
            found = _positive_laplace(left, self.scale, rng)
        return np.asarray(np.maximum(found, LEAST_REST))

    def variance(self, b: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Draw the variances of the noise on the sums, shape (chains, entries): Laplace noise mixes normal ones."""
        if self.law == "gaussian":
            return np.tile(self.scales**2, (len(b), 1))
        away = np.maximum(np.abs(self.sums - b @ self.loads.T), 1e-9 * self.scales)
        return np.asarray(1 / rng.wald(1 / (self.scales * away), 1 / self.scales**2))


def plug_in(
    model: Regression, b: FloatArray, scatter: float, n_draws: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Draw coefficients and s given b and the sum of squared residuals, taken as exact; see :func:`noise_aware`."""
    own, basis, middle = model.basis()
    placed = np.tile(b @ basis, (n_draws, 1))
    sd, log_weight = np.zeros(n_draws), np.full(n_draws, -np.inf)
    for _ in range(STEPS):
        proposed = np.sqrt(scatter / (2 * rng.standard_gamma((model.df - 1) / 2, n_draws)))
        log_new = model.log_prior(placed - middle, proposed, own) - proposed**2 / (2 * model.spread**2)
        taken = np.log(1 - rng.random(n_draws)) < log_new - log_weight
        sd, log_weight = np.where(taken, proposed, sd), np.where(taken, log_new, log_weight)
    return model.coefficients(placed @ basis.T, sd, rng), sd


def noise_aware(
    model: Regression, noisy: NoisyMoments, n_draws: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray] | None:
    """Draw coefficients, shape (draws, p), and s given noisy statistics; None where chains hardly move.

    Parameters
    ----------
    model : Regression
        Laws of the exact statistics.
    noisy : NoisyMoments
        Noisy statistics.
    n_draws : int
        Number of chains, each of which gives its last state.
    rng : numpy.random.Generator
        Randomness.

    Notes
    -----
    Laplace noise is normal with variances that are exponential (Andrews and Mallows, 1974; Park and Casella, 2008).
    Given these, b is proposed from the normal law that the noisy sums and a prior leave, the sum of squared residuals
    from what the noisy squares then leave for it, above 0, and s given that under a flat prior; the Metropolis weight
    is what proposals leave out. Every other step proposes residuals and s from their prior instead.
    """
    own, basis, middle = model.basis()
    inside, turned = basis.T @ model.gram @ basis, noisy.loads @ basis
    squares_of = np.diag(inside)
    if not np.allclose(inside, np.diag(squares_of), atol=1e-6 * max(squares_of.max(), 1)):
        return None
    flat = model.variance(np.full(1, SD), own)[0]

    def worth_of(b: FloatArray, rest: FloatArray, sd: FloatArray) -> FloatArray:
        mass = noisy.log_mass(noisy.squares - b**2 @ squares_of)
        prior = model.log_prior(b - middle, sd, own) - sd**2 / (2 * model.spread**2)
        return np.asarray(prior + ((b - middle) ** 2 / flat).sum(axis=1) / 2 + mass - np.log(rest) / 2)

    variance, moved = np.tile(2 * noisy.scales**2, (n_draws, 1)), 0.0
    b, rest, sd, worth = np.zeros((n_draws, len(own))), np.ones(n_draws), np.ones(n_draws), np.full(n_draws, -np.inf)
    if noisy.law == "gaussian":
        variance /= 2
    for _ in range(STEPS):
        proposed = middle + _given_variances(turned, noisy.sums - turned @ middle, variance, flat, rng)
        new_rest = noisy.rest(noisy.squares - proposed**2 @ squares_of, rng)
        new_sd = np.sqrt(new_rest / (2 * rng.standard_gamma((model.df - 1) / 2, n_draws)))
        taken = np.log(1 - rng.random(n_draws)) < worth_of(proposed, new_rest, new_sd) - worth
        moved += float(taken.mean()) / STEPS
        b = np.where(taken[:, None], proposed, b)
        rest, sd = np.where(taken, new_rest, rest), np.where(taken, new_sd, sd)
        # b stays; residuals and s anew from their prior: out of the corner where hardly any residuals are left
        new_sd = model.spread * np.abs(rng.standard_normal(n_draws))
        new_rest = 2 * new_sd**2 * rng.standard_gamma(model.df / 2, n_draws)
        left = noisy.squares - b**2 @ squares_of
        gain = model.log_prior(b - middle, new_sd, own) - model.log_prior(b - middle, sd, own)
        gain += noisy.log_noise(left - new_rest) - noisy.log_noise(left - rest)
        taken = np.log(1 - rng.random(n_draws)) < gain
        rest, sd = np.where(taken, new_rest, rest), np.where(taken, new_sd, sd)
        worth = worth_of(b, rest, sd)
        variance = noisy.variance(b @ basis.T, rng)
    return None if moved < LEAST_ACCEPTED else (model.coefficients(b @ basis.T, sd, rng), sd)


def _given_variances(
    loads: FloatArray, sums: FloatArray, variance: FloatArray, flat: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Draw b, shape (chains, p), given noisy sums with normal noise and independent normal priors."""
    precision = np.einsum("kp,mk,kq->mpq", loads, 1 / variance, loads, optimize=True) + np.diag(1 / flat)
    root = np.linalg.cholesky(np.linalg.inv(precision))
    inward = np.einsum("mqp,mq->mp", root, (sums / variance) @ loads)
    return np.asarray(np.einsum("mpq,mq->mp", root, inward + rng.standard_normal(inward.shape)))


def _positive_laplace(middle: FloatArray, scale: float, rng: np.random.Generator) -> FloatArray:
    """Draw from the Laplace law above 0."""
    tail = scale * rng.standard_exponential(middle.shape)
    start = np.maximum(middle, 0)
    below = np.exp(-start / scale)
    u = rng.random(middle.shape) * (2 - below)
    inside = middle + scale * np.log(np.minimum(u + below, 1))
    return np.where((middle > 0) & (u < 1 - below), inside, start + tail)
