"""Posterior draws of regressions: linear ones given noisy sums of products, logistic
ones given noisy ridge fits.

A normal law of one column is the linear regression on a constant: on that, NUTS agrees
on 9 of 10 data sets (``docs/decisions/19-nuts.md``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from pdips.arrays import BoolArray, FloatArray
from pdips.statistics.logistic import Logistic, information
from pdips.statistics.noisy_model import Evidence
from pdips.statistics.plan import StatisticPart
from pdips.statistics.statistic import unit_of

STEPS = 150
LEAST_ACCEPTED = 0.05
SD = 0.3  # At which coefficients are proposed; it steers chains only
LEAST_REST = 2.0**-1014  # Residuals are above 0, also where rounding says otherwise


@dataclass(frozen=True, kw_only=True)
class Regression:
    """What a regression's posterior depends on.

    The coefficients are N(centre, width^2), the standard deviation s of a record
    half-normal with scale ``spread``. Least-squares coefficients b have s^2 times
    ``covariance`` about true ones, and the sum of squared residuals ``df`` degrees of
    freedom, at least 2.
    """

    gram: FloatArray  # X'X, shape (p, p)
    covariance: FloatArray
    df: float
    width: float
    spread: float
    centre: float = 0.0

    def basis(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return eigenvalues and eigenvectors of the covariance, and the centre in
        their basis.
        """
        own, basis = np.linalg.eigh(self.covariance)
        return own, basis, np.full(len(own), self.centre) @ basis

    def variance(self, sd: FloatArray, own: FloatArray) -> FloatArray:
        """Return that of b in the basis of the covariance, coefficients integrated out,
        shape (chains, p).
        """
        return self.width**2 + sd[:, None] ** 2 * own

    def coefficients(
        self, b: FloatArray, sd: FloatArray, rng: np.random.Generator
    ) -> FloatArray:
        """Draw coefficients given b and s, shape (draws, p)."""
        own, basis, middle = self.basis()
        shrink = self.width**2 / self.variance(sd, own)
        spread = np.sqrt(shrink * sd[:, None] ** 2 * own)
        mean = middle + shrink * (b @ basis - middle)
        drawn = mean + spread * rng.standard_normal(b.shape)
        return drawn @ basis.T

    def log_prior(
        self, away: FloatArray, sd: FloatArray, own: FloatArray
    ) -> FloatArray:
        """Return the log density of b less the centre, in the basis, given s."""
        variance = self.variance(sd, own)
        terms = np.log(variance) + away**2 / variance
        return -terms.sum(axis=1) / 2

    def log_prior_of_sd(self, sd: FloatArray) -> FloatArray:
        """Return the log density of s, up to a constant."""
        return -(sd**2) / (2 * self.spread**2)


@dataclass(frozen=True, kw_only=True)
class NoisyMoments:
    """Noisy sums, which are ``loads @ b`` exactly, and the noisy sum of squares of the
    outcome.

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
        """Return the log of the share of that noise about ``left`` above 0, up to a
        constant.
        """
        left = left / self.scale
        if self.law == "gaussian":
            return np.asarray(special.log_ndtr(left))
        above = np.log(2 - np.exp(-np.maximum(left, 0)))
        return np.where(left > 0, above, np.minimum(left, 0))

    def rest(self, left: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Draw ``left`` plus noise, given that it is above 0."""
        if self.law == "gaussian":
            least = -left / self.scale
            noise = stats.truncnorm.rvs(least, np.inf, random_state=rng)
            rest = left + self.scale * noise
        else:
            rest = _positive_laplace(left, self.scale, rng)
        return np.asarray(np.maximum(rest, LEAST_REST))

    def variance(self, b: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Draw the variances of the noise on the sums, shape (chains, entries): Laplace
        noise mixes normal ones.
        """
        if self.law == "gaussian":
            return np.tile(self.scales**2, (len(b), 1))
        noise = np.abs(self.sums - b @ self.loads.T)
        away = np.maximum(noise, 1e-9 * self.scales)
        precision = rng.wald(1 / (self.scales * away), 1 / self.scales**2)
        return 1 / precision


def plug_in(
    model: Regression,
    b: FloatArray,
    scatter: float,
    n_draws: int,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    """Draw coefficients and s given b and the sum of squared residuals, taken as exact;
    see :func:`noise_aware`.
    """
    own, basis, middle = model.basis()
    placed = np.tile(b @ basis, (n_draws, 1))
    sd = np.zeros(n_draws)
    log_weight = np.full(n_draws, -np.inf)
    for _ in range(STEPS):
        proposed = sd_given(scatter, model.df, n_draws, rng)
        log_new = model.log_prior(placed - middle, proposed, own)
        log_new += model.log_prior_of_sd(proposed)
        taken = accepted(log_new - log_weight, rng)
        sd = np.where(taken, proposed, sd)
        log_weight = np.where(taken, log_new, log_weight)
    return model.coefficients(placed @ basis.T, sd, rng), sd


def noise_aware(
    model: Regression, noisy: NoisyMoments, n_draws: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray] | None:
    """Draw coefficients, shape (draws, p), and s given noisy statistics; None where
    chains hardly move.

    Each of ``n_draws`` chains gives its last state. Laplace noise is normal with
    variances that are exponential (Andrews and Mallows, 1974; Park and Casella, 2008).
    Given these, b is proposed from the normal law that the noisy sums and a prior
    leave, the sum of squared residuals from what the noisy squares then leave for it,
    above 0, and s given that under a flat prior; the Metropolis weight is what
    proposals leave out. Further moves propose residuals and s from their prior, and b
    alone.
    """
    _, basis, _ = model.basis()
    inside = basis.T @ model.gram @ basis
    squares_of = np.diag(inside)
    tolerance = 1e-6 * max(squares_of.max(), 1)
    if not np.allclose(inside, np.diag(squares_of), atol=tolerance):
        return None
    chains = _ShortChains(model, noisy, squares_of, n_draws, rng)
    moved = sum(chains.step() for _ in range(STEPS)) / STEPS
    if moved < LEAST_ACCEPTED:
        return None
    return model.coefficients(chains.b @ basis.T, chains.sd, rng), chains.sd


def accepted(log_ratio: FloatArray, rng: np.random.Generator) -> BoolArray:
    """Return which proposals are taken, by Metropolis and Hastings."""
    return np.log(1 - rng.random(len(log_ratio))) < log_ratio


def sd_given(
    rest: FloatArray | float, df: float, n: int, rng: np.random.Generator
) -> FloatArray:
    """Draw s given the sum of squared residuals, under a flat prior."""
    return np.sqrt(rest / (2 * rng.standard_gamma((df - 1) / 2, n)))


class _ShortChains:
    """Many chains of :func:`noise_aware`, one a row: ``b`` in the basis of the
    covariance, the sum of squared residuals ``rest``, ``sd`` and the variances of the
    noise on sums.
    """

    def __init__(
        self,
        model: Regression,
        noisy: NoisyMoments,
        squares_of: FloatArray,
        n_draws: int,
        rng: np.random.Generator,
    ) -> None:
        own, basis, middle = model.basis()
        self.model = model
        self.noisy = noisy
        self.own = own
        self.basis = basis
        self.middle = middle
        self.squares_of = squares_of
        self.rng = rng
        self.loads = noisy.loads @ basis
        self.flat = model.variance(np.full(1, SD), own)[0]
        times = 2 if noisy.law == "laplace" else 1
        self.variance = np.tile(times * noisy.scales**2, (n_draws, 1))
        self.b = np.zeros((n_draws, len(own)))
        self.rest = np.ones(n_draws)
        self.sd = np.ones(n_draws)
        self.worth = np.full(n_draws, -np.inf)

    def step(self) -> float:
        """Make one step; return the share of chains in which b moved, twice if
        twice.
        """
        moved = self._move_all()
        self._move_residuals()
        moved += self._move_coefficients()
        self.worth = self._worth(self.b, self.rest, self.sd)
        self.variance = self.noisy.variance(self.b @ self.basis.T, self.rng)
        return moved

    def _left(self, b: FloatArray) -> FloatArray:
        """Return what noisy squares leave for residuals and noise."""
        return self.noisy.squares - b**2 @ self.squares_of

    def _log_prior(self, b: FloatArray, sd: FloatArray) -> FloatArray:
        return self.model.log_prior(b - self.middle, sd, self.own)

    def _proposal(self) -> FloatArray:
        """Draw b given noisy sums, with residuals and s left aside."""
        sums = self.noisy.sums - self.loads @ self.middle
        moved = _given_variances(self.loads, sums, self.variance, self.flat, self.rng)
        return self.middle + moved

    def _log_flat(self, b: FloatArray) -> FloatArray:
        """Return the log density of b in the prior that proposals take."""
        away = (b - self.middle) ** 2 / self.flat
        return np.asarray(-away.sum(axis=1) / 2)

    def _worth(self, b: FloatArray, rest: FloatArray, sd: FloatArray) -> FloatArray:
        """Return the log of the Metropolis weight: what proposals leave out."""
        prior = self._log_prior(b, sd) + self.model.log_prior_of_sd(sd)
        mass = self.noisy.log_mass(self._left(b))
        return prior - self._log_flat(b) + mass - np.log(rest) / 2

    def _move_all(self) -> float:
        """Move b, then residuals and s given b."""
        b = self._proposal()
        rest = self.noisy.rest(self._left(b), self.rng)
        sd = sd_given(rest, self.model.df, len(b), self.rng)
        taken = accepted(self._worth(b, rest, sd) - self.worth, self.rng)
        self.b = np.where(taken[:, None], b, self.b)
        self.rest = np.where(taken, rest, self.rest)
        self.sd = np.where(taken, sd, self.sd)
        return float(taken.mean())

    def _move_residuals(self) -> None:
        """Move residuals and s anew from their prior: out of the corner where hardly
        any residuals are left.
        """
        n = len(self.b)
        sd = self.model.spread * np.abs(self.rng.standard_normal(n))
        rest = 2 * sd**2 * self.rng.standard_gamma(self.model.df / 2, n)
        left = self._left(self.b)
        gain = self._log_prior(self.b, sd) - self._log_prior(self.b, self.sd)
        gain += self.noisy.log_noise(left - rest)
        gain -= self.noisy.log_noise(left - self.rest)
        taken = accepted(gain, self.rng)
        self.rest = np.where(taken, rest, self.rest)
        self.sd = np.where(taken, sd, self.sd)

    def _move_coefficients(self) -> float:
        """Move b alone: where its prior is far from what the noisy squares leave."""
        b = self._proposal()
        gain = self._log_prior(b, self.sd) - self._log_prior(self.b, self.sd)
        gain += self._log_flat(self.b) - self._log_flat(b)
        gain += self.noisy.log_noise(self._left(b) - self.rest)
        gain -= self.noisy.log_noise(self._left(self.b) - self.rest)
        taken = accepted(gain, self.rng)
        self.b = np.where(taken[:, None], b, self.b)
        return float(taken.mean())


def _given_variances(
    loads: FloatArray,
    sums: FloatArray,
    variance: FloatArray,
    flat: FloatArray,
    rng: np.random.Generator,
) -> FloatArray:
    """Draw b, shape (chains, p), given noisy sums with normal noise and independent
    normal priors.
    """
    n_loads, p = loads.shape
    products = (loads[:, :, None] * loads[:, None]).reshape(n_loads, p * p)
    precision = (1 / variance @ products).reshape(-1, p, p) + np.diag(1 / flat)
    root = np.linalg.cholesky(np.linalg.inv(precision))
    inward = np.einsum("mqp,mq->mp", root, (sums / variance) @ loads)
    standard = inward + rng.standard_normal(inward.shape)
    return np.asarray(np.einsum("mpq,mq->mp", root, standard))


def _positive_laplace(
    middle: FloatArray, scale: float, rng: np.random.Generator
) -> FloatArray:
    """Draw from the Laplace law above 0."""
    tail = scale * rng.standard_exponential(middle.shape)
    start = np.maximum(middle, 0)
    below = np.exp(-start / scale)
    u = rng.random(middle.shape) * (2 - below)
    inside = middle + scale * np.log(np.minimum(u + below, 1))
    below_start = (middle > 0) & (u < 1 - below)
    return np.where(below_start, inside, start + tail)


# Public points at which numbers are taken: a Halton sequence, which is fixed
NODES = 256
TUNE = 500
THIN = 2
NEWTON = 12
PASSES = 5  # How often coefficients are drawn about the mean of those before


def draw_fits(
    given: Evidence,
    priors: Sequence[tuple[str, float]],
    draws: Mapping[str, NDArray[Any]],
    rng: np.random.Generator,
) -> dict[str, NDArray[Any]]:
    """Return posterior draws with those of the coefficients of ridge fits, each given
    the population before it.

    ``priors`` are what the coefficients of each fit are called, and the standard
    deviation of their normal prior about 0; ``draws``, shape (draws, ...), are of
    everything else.
    """
    completed = dict(draws)
    if not priors:
        return completed
    schema = given.schema
    population = _population(given, completed)
    weights = np.full(NODES, 1 / NODES)
    n_draws = len(next(iter(completed.values())))
    fits = given.laws("ridge_fit")
    for stated, (coefficients, prior_scale) in zip(fits, priors, strict=True):
        part = given.measured.part(stated.names[0])
        fit: Logistic = part.statistic  # type: ignore[assignment]
        design = fit.design(population, schema)
        drawn = _draw_fit(given, part, design, weights, prior_scale, n_draws, rng)
        by_logit = drawn.reshape(-1, *fit.shape(schema))
        completed[coefficients] = by_logit
        shares = level_shares(design, by_logit.mean(axis=0))
        # from here on each row stands once for each level of the outcome
        rows, levels = shares.shape
        population = {
            column: np.repeat(values, levels) for column, values in population.items()
        }
        outcomes = np.arange(levels, dtype=np.float64)
        population[fit.outcome] = np.tile(outcomes, rows)
        weights = np.repeat(weights, levels) * shares.ravel()
    return completed


def _population(
    given: Evidence, draws: Mapping[str, NDArray[Any]]
) -> dict[str, FloatArray]:
    """Return numeric columns, as models read them, that stand for the population."""
    mean, covariance = (draws[name].mean(axis=0) for name in given.population_law)
    u = nodes(mean, covariance)
    return {
        column: unit_of(given.schema, column).back(u[:, number])
        for number, column in enumerate(given.population_columns)
    }


def _draw_fit(
    given: Evidence,
    part: StatisticPart,
    design: FloatArray,
    weights: FloatArray,
    prior_scale: float,
    n_draws: int,
    rng: np.random.Generator,
) -> FloatArray:
    """Draw the coefficients of which a noisy ridge fit is one, shape (draws,
    coefficients): a few times, each about the mean of those before.
    """
    fit: Logistic = part.statistic  # type: ignore[assignment]
    noisy = given.noisy(part.name)
    noise = (given.measured.scale(part.name), part.law == "gaussian")
    n = round(float(given.n))
    shape = fit.shape(given.schema)
    centre = np.zeros(noisy.shape)
    for number in range(PASSES):
        wanted = max(n_draws // 4, 100)
        if number == PASSES - 1:
            wanted = n_draws
        matrix, fitted, covariance = linearised(
            design, weights, centre.reshape(shape), n, float(fit.kappa)
        )
        about_zero = noisy - fitted + matrix @ centre
        drawn = _gibbs(matrix, covariance, about_zero, *noise, prior_scale, wanted, rng)
        centre = drawn.mean(axis=0)
    return drawn


def nodes(mean: FloatArray, covariance: FloatArray) -> FloatArray:
    """Return points that stand for a normal law, shape (NODES, d)."""
    points = stats.qmc.Halton(len(mean), scramble=False).random(NODES + 1)[1:]
    return np.asarray(mean + special.ndtri(points) @ np.linalg.cholesky(covariance).T)


def level_shares(design: FloatArray, coefficients: FloatArray) -> FloatArray:
    """Return probabilities of all levels, shape (rows, levels), the first one being the
    baseline.
    """
    logits = design @ coefficients.T
    with_baseline = np.column_stack([np.zeros(len(logits)), logits])
    return np.asarray(special.softmax(with_baseline, axis=1))


def linearised(
    design: FloatArray,
    weights: FloatArray,
    coefficients: FloatArray,
    n: int,
    kappa: float,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return what the ridge fit of n records is near some coefficients: its slope, mean
    and covariance.

    The fit of many records with coefficients beta is b(beta), where n E[(p(beta) -
    p(b)) x] = kappa b. To first order about beta_0 the fit of n records is
    normal(b(beta_0) + S I (beta - beta_0), S I S) with I the information at beta_0 and
    S the inverse of kappa plus that at b(beta_0).
    """
    shares = level_shares(design, coefficients)
    fit, shrunk = population_fit(design, shares, weights, n, kappa)
    informed = n * information(design, shares.T[1:], weights)
    matrix = shrunk @ (informed + 1e-9 * np.eye(len(fit)))
    return matrix, fit, matrix @ shrunk


def population_fit(
    design: FloatArray, shares: FloatArray, weights: FloatArray, n: int, kappa: float
) -> tuple[FloatArray, FloatArray]:
    """Return the ridge fit of n records that are as the population is, and the inverse
    of its curvature.
    """
    logits = shares.shape[1] - 1
    d = design.shape[1]
    fit = np.zeros(logits * d)
    for _ in range(NEWTON):
        now = level_shares(design, fit.reshape(logits, d))
        residuals = weights[:, None] * (shares - now)[:, 1:]
        score = n * (residuals.T @ design).ravel() - kappa * fit
        informed = n * information(design, now.T[1:], weights)
        shrunk = np.linalg.inv(informed + kappa * np.eye(logits * d))
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
    """Draw beta given noisy = b + noise, b normal(matrix beta, covariance), beta
    normal(0, prior_scale^2).

    Laplace noise is normal with an exponential variance (Park and Casella, 2008). Given
    the variances beta is drawn with b integrated out, and b given beta.
    """
    d = len(noisy)
    kept = []
    mixes = bool(scale) and not gaussian
    variance = np.full(d, max(scale**2 if gaussian else 2 * scale**2, 1e-12))
    first = TUNE if mixes else 0
    thin = THIN if mixes else 1
    for step in range(first + thin * n_draws):
        inverse = np.linalg.inv(covariance + np.diag(variance))
        precision = matrix.T @ inverse @ matrix + np.eye(d) / prior_scale**2
        root = np.linalg.cholesky(precision)
        mean = np.linalg.solve(precision, matrix.T @ inverse @ noisy)
        beta = mean + np.linalg.solve(root.T, rng.standard_normal(d))
        if step >= first and (step - first) % thin == 0:
            kept.append(beta)
        if mixes:
            gain = covariance @ inverse
            expected = matrix @ beta
            exact = expected + gain @ (noisy - expected)
            exact = exact + _normal(covariance - gain @ covariance, rng)
            off = np.maximum(np.abs(noisy - exact), 1e-12 * scale)
            mixing = rng.wald(1 / (scale * off), 1 / scale**2)
            variance = 1 / np.maximum(mixing, 1e-300)
    return np.array(kept)


def _normal(covariance: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw from a normal law about 0, whose covariance may be singular."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    standard = rng.standard_normal(len(values))
    return vectors @ (np.sqrt(np.maximum(values, 0)) * standard)
