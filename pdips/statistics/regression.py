"""Posterior draws of regressions: linear ones given noisy sums of products, logistic ones given noisy ridge fits.

A normal law of one column is the linear regression on a constant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from pdips.arrays import FloatArray
from pdips.statistics.logistic import Logistic, information
from pdips.statistics.noisy_model import Evidence
from pdips.statistics.statistic import unit_of

STEPS = 150
LEAST_ACCEPTED = 0.05
SD = 0.3  # At which coefficients are proposed; it steers chains only
LEAST_REST = 2.0**-1014  # Residuals are above 0, also where rounding says otherwise


@dataclass(frozen=True, kw_only=True)
class Regression:
    """What a regression's posterior depends on.

    The coefficients are N(centre, width^2), the standard deviation s of a record half-normal with scale ``spread``.
    Least-squares coefficients b have s^2 times ``covariance`` about true ones, and the sum of squared residuals ``df``
    degrees of freedom, at least 2.
    """

    gram: FloatArray  # X'X, shape (p, p)
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
    """Noisy sums, which are ``loads @ b`` exactly, and the noisy sum of squares of the outcome.

    Scales are those of the noise; where that is normal, its standard deviations.
    """

    loads: FloatArray  # shape (entries, p)
    sums: FloatArray  # shape (entries,)
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

    Each of ``n_draws`` chains gives its last state. Laplace noise is normal with variances that are exponential
    (Andrews and Mallows, 1974; Park and Casella, 2008). Given these, b is proposed from the normal law that the noisy
    sums and a prior leave, the sum of squared residuals from what the noisy squares then leave for it, above 0, and s
    given that under a flat prior; the Metropolis weight is what proposals leave out. Further moves propose residuals
    and s from their prior, and b alone.
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

    variance, moved = np.tile((2 if noisy.law == "laplace" else 1) * noisy.scales**2, (n_draws, 1)), 0.0
    b, rest, sd, worth = np.zeros((n_draws, len(own))), np.ones(n_draws), np.ones(n_draws), np.full(n_draws, -np.inf)
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
        # residuals and s stay; b anew: where their prior is far from what the noisy squares leave
        proposed = middle + _given_variances(turned, noisy.sums - turned @ middle, variance, flat, rng)
        gain = model.log_prior(proposed - middle, sd, own) - model.log_prior(b - middle, sd, own)
        gain += (((proposed - middle) ** 2 - (b - middle) ** 2) / flat).sum(axis=1) / 2
        gain += noisy.log_noise(noisy.squares - proposed**2 @ squares_of - rest)
        gain -= noisy.log_noise(noisy.squares - b**2 @ squares_of - rest)
        taken = np.log(1 - rng.random(n_draws)) < gain
        moved += float(taken.mean()) / STEPS
        b = np.where(taken[:, None], proposed, b)
        worth = worth_of(b, rest, sd)
        variance = noisy.variance(b @ basis.T, rng)
    return None if moved < LEAST_ACCEPTED else (model.coefficients(b @ basis.T, sd, rng), sd)


def _given_variances(
    loads: FloatArray, sums: FloatArray, variance: FloatArray, flat: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Draw b, shape (chains, p), given noisy sums with normal noise and independent normal priors."""
    n_loads, p = loads.shape
    products = (loads[:, :, None] * loads[:, None]).reshape(n_loads, p * p)
    precision = (1 / variance @ products).reshape(-1, p, p) + np.diag(1 / flat)
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


NODES = 256  # Public points at which numbers are taken: a Halton sequence, which is fixed
TUNE, THIN = 500, 2
NEWTON = 12
PASSES = 5  # How often coefficients are drawn about the mean of those before


def draw_fits(
    given: Evidence, priors: Sequence[tuple[str, float]], draws: Mapping[str, NDArray[Any]], rng: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """Return posterior draws with those of the coefficients of ridge fits, each given the population before it.

    ``priors`` are what the coefficients of each fit are called, and the standard deviation of their normal prior about
    0; ``draws``, shape (draws, ...), are of everything else.
    """
    found = dict(draws)
    if not priors:
        return found
    measured, schema, columns = given.measured, given.schema, given.population_columns
    mean, covariance = (found[each].mean(axis=0) for each in given.population_law)
    u = nodes(mean, covariance)
    # The population: columns as models read them, and the weight of each row
    values: dict[str, FloatArray] = {z: unit_of(schema, z).back(u[:, place]) for place, z in enumerate(columns)}
    weights, n_draws = np.full(len(u), 1 / len(u)), len(next(iter(found.values())))
    for each, (coefficients, size) in zip(given.laws("ridge_fit"), priors, strict=True):
        [name] = each.names
        part = measured.part(name)
        fit: Logistic = part.statistic  # type: ignore[assignment]
        shape, design, noisy = fit.shape(schema), fit.design(values, schema), given.noisy(name)
        noise = (measured.scale(name), part.law == "gaussian")
        n, kappa, centre = round(float(given.n)), float(fit.kappa), np.zeros(noisy.shape)
        for number in range(PASSES):
            wanted = n_draws if number == PASSES - 1 else max(n_draws // 4, 100)
            matrix, fitted, covariance = linearised(design, weights, centre.reshape(shape), n, kappa)
            drawn = _gibbs(matrix, covariance, noisy - fitted + matrix @ centre, *noise, size, wanted, rng)
            centre = drawn.mean(axis=0)
        found[coefficients] = drawn.reshape(-1, *shape)
        shares = level_shares(design, centre.reshape(shape))
        rows, levels = shares.shape  # from here on each row stands once for each level of the outcome
        values = {column: np.repeat(known, levels) for column, known in values.items()}
        values[fit.outcome] = np.tile(np.arange(levels, dtype=np.float64), rows)
        weights = np.repeat(weights, levels) * shares.ravel()
    return found


def nodes(mean: FloatArray, covariance: FloatArray) -> FloatArray:
    """Return points that stand for a normal law, shape (NODES, d)."""
    points = stats.qmc.Halton(len(mean), scramble=False).random(NODES + 1)[1:]
    return np.asarray(mean + special.ndtri(points) @ np.linalg.cholesky(covariance).T)


def level_shares(design: FloatArray, coefficients: FloatArray) -> FloatArray:
    """Return probabilities of all levels, shape (rows, levels), the first one being the baseline."""
    logits = design @ coefficients.T
    return np.asarray(special.softmax(np.column_stack([np.zeros(len(logits)), logits]), axis=1))


def linearised(
    design: FloatArray, weights: FloatArray, coefficients: FloatArray, n: int, kappa: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return what the ridge fit of n records is near some coefficients: its slope, mean and covariance.

    The fit of many records with coefficients beta is b(beta), where n E[(p(beta) - p(b)) x] = kappa b. To first order
    about beta_0 the fit of n records is normal(b(beta_0) + S I (beta - beta_0), S I S) with I the information at beta_0
    and S the inverse of kappa plus that at b(beta_0).
    """
    shares = level_shares(design, coefficients)
    fit, shrunk = population_fit(design, shares, weights, n, kappa)
    matrix = shrunk @ (n * information(design, shares.T[1:], weights) + 1e-9 * np.eye(len(fit)))
    return matrix, fit, matrix @ shrunk


def population_fit(
    design: FloatArray, shares: FloatArray, weights: FloatArray, n: int, kappa: float
) -> tuple[FloatArray, FloatArray]:
    """Return the ridge fit of n records that are as the population is, and the inverse of its curvature."""
    logits, d = shares.shape[1] - 1, design.shape[1]
    fit = np.zeros(logits * d)
    for _ in range(NEWTON):
        now = level_shares(design, fit.reshape(logits, d))
        score = n * ((weights[:, None] * (shares - now)[:, 1:]).T @ design).ravel() - kappa * fit
        shrunk = np.linalg.inv(n * information(design, now.T[1:], weights) + kappa * np.eye(logits * d))
        fit = fit + shrunk @ score
    return fit, shrunk


def _gibbs(
    matrix: FloatArray,
    covariance: FloatArray,
    noisy: FloatArray,
    scale: float,
    gaussian: bool,
    prior_scale: float,
    n_draws: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Draw beta given noisy = b + noise, b normal(matrix beta, covariance), beta normal(0, prior_scale^2).

    Laplace noise is normal with an exponential variance (Park and Casella, 2008). Given the variances beta is drawn
    with b integrated out, and b given beta.
    """
    d, kept = len(noisy), []
    variance = np.full(d, max(2 * scale**2, 1e-12) if not gaussian else max(scale**2, 1e-12))
    draws = TUNE + THIN * n_draws if scale and not gaussian else n_draws
    for step in range(draws):
        inverse = np.linalg.inv(covariance + np.diag(variance))
        precision = matrix.T @ inverse @ matrix + np.eye(d) / prior_scale**2
        root = np.linalg.cholesky(precision)
        mean = np.linalg.solve(precision, matrix.T @ inverse @ noisy)
        beta = mean + np.linalg.solve(root.T, rng.standard_normal(d))
        if draws == n_draws or (step >= TUNE and (step - TUNE) % THIN == 0):
            kept.append(beta)
        if draws > n_draws:
            gain = covariance @ inverse
            exact = matrix @ beta + gain @ (noisy - matrix @ beta)
            rest = covariance - gain @ covariance
            values, vectors = np.linalg.eigh((rest + rest.T) / 2)
            exact = exact + vectors @ (np.sqrt(np.maximum(values, 0)) * rng.standard_normal(d))
            off = np.maximum(np.abs(noisy - exact), 1e-12 * scale)
            variance = 1 / np.maximum(rng.wald(1 / (scale * off), 1 / scale**2), 1e-300)
    return np.array(kept)
