"""Noisy sums over the records of a table in general: what they say near some
parameters, the search for the most probable ones, and whether they contradict a model.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from pdips.arrays import FloatArray
from pdips.posterior.model import PUBLIC_SEED, Blueprint
from pdips.posterior.nuts import Reusable
from pdips.release.public_draws import Misfit

# Covariances of normal noises, and the log of each one's share in them
Noises = Sequence[tuple[FloatArray, float]]
# From parameters to log-likelihoods up to a constant, and the factors by which
# covariances of the exact sums are wider
Density = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
# Sums up to which Laplace noise is mixed of normal ones; on more it counts as one
# normal
MOST_MIXED = 300
MOST_MOVES = 40  # Steps towards the most probable parameters
# The search ends with a step so short, in standard deviations of the posterior
NEAR = 0.05
LARGEST = 1e100  # of a draw
QUARTILES = 1.349  # Distance of the quartiles of a standard normal distribution
REACH = 1.0  # Longest step, in standard deviations of what one record says
# Share of a covariance's trace that is added to its diagonal for the sake of doubles
LITTLE = 1e-12
# Residuals that are simulated to judge how far those that were published are off
SIMULATED_MISFITS = 4_000
# What the log posterior may fall by in a step of the search: simulation is noisy
TOLERATED = 0.5
SHORTEST = 1e-6  # Reach at which the search ends


@dataclass(frozen=True, eq=False)
class Linearised:
    """What the noisy sums say near some parameters: their expectation, its derivative,
    and their covariance there.
    """

    place: FloatArray
    residual: FloatArray  # (sums,): sums minus their expectation
    slopes: FloatArray  # (sums, parameters)
    # (sums, sums): covariance of the exact sums, and that of the simulated expectation
    sampling: FloatArray
    noise: FloatArray  # (sums, sums): covariance of what was added
    laplace: FloatArray  # (sums,): the variances in it that are those of Laplace noise
    information: FloatArray  # (parameters, parameters): of one record

    @property
    def mixed(self) -> bool:
        """Whether Laplace noise is taken as normal noise of variances that are
        exponential.
        """
        return bool(self.laplace.any()) and len(self.laplace) <= MOST_MIXED

    @property
    def other_noise(self) -> FloatArray:
        """Covariance of the noise that is no Laplace noise, and a little for the sake
        of doubles.
        """
        little = LITTLE * np.trace(self.sampling + self.noise)
        return self.noise + np.diag(little - self.laplace)

    @cached_property
    def root(self) -> FloatArray:
        """The lower triangular root of the covariance, shape (sums, sums)."""
        covariance = regular(self.sampling + self.noise)
        return np.asarray(cholesky(covariance, lower=True))

    @cached_property
    def whitened(self) -> tuple[FloatArray, FloatArray, float]:
        """Slopes and residuals of sums made independent with variance 1, and the log
        determinant of the covariance.
        """
        both = np.column_stack([self.slopes, self.residual])
        whitened = solve_triangular(self.root, both, lower=True)
        log_determinant = 2 * float(np.log(self.deviations).sum())
        return whitened[:, :-1], whitened[:, -1], log_determinant

    @property
    def deviations(self) -> FloatArray:
        """Standard deviations of each sum given those before it, shape (sums,)."""
        return np.diag(self.root)

    @cached_property
    def curvature(self) -> FloatArray:
        """Minus the second derivative of the log-likelihood, shape (parameters,
        parameters).
        """
        return self.whitened[0].T @ self.whitened[0]

    @cached_property
    def slope(self) -> FloatArray:
        """The derivative of the log-likelihood, shape (parameters,)."""
        return self.whitened[0].T @ self.whitened[1]

    @property
    def log_likelihood(self) -> float:
        """Log density of the sums, up to a constant, under normal noise."""
        _, residual, log_determinant = self.whitened
        return -(float(residual @ residual) + log_determinant) / 2


def regular(covariance: FloatArray) -> FloatArray:
    """Return a covariance with so little more on its diagonal that it has a root."""
    little = LITTLE * np.trace(covariance)
    return np.asarray(covariance + np.eye(len(covariance)) * little)


class MeasuredSums(ABC):
    """Noisy sums over the records of a table, and their likelihood."""

    space: Blueprint
    prior: "NormalPrior"
    n_records: float

    @property
    @abstractmethod
    def last_scores(self) -> "MeasuredSums":
        """The sums from which the posterior is drawn."""

    @property
    def apart(self) -> float | None:
        """How far the last scores were taken from the most probable parameters, in
        standard deviations of one record; None where nobody looks.
        """
        return None

    @property
    @abstractmethod
    def last_reference(self) -> FloatArray:
        """The parameters at which scores were taken last."""

    @property
    @abstractmethod
    def clipped(self) -> list[float]:
        """The share of expected records that each round pulls into its ball."""

    @abstractmethod
    def linearised(self, place: FloatArray, passes: int = 1) -> Linearised:
        """Return what the sums say near some parameters."""

    @abstractmethod
    def precise(self, place: FloatArray) -> Linearised:
        """Return what the sums say near the most probable parameters, as well as can be
        known.
        """

    @abstractmethod
    def misfits(self, place: FloatArray) -> dict[Misfit, float]:
        """Return how often noisy numbers would be as far from what the model expects
        at its most probable parameters, if it were right, by what was looked at.
        """

    def misfit(self, place: FloatArray) -> tuple[float, Misfit] | None:
        """Return how often one of the checks at least would find as much, if the model
        were right, and the one that finds most; None where nothing tells.
        """
        found = self.misfits(place)
        if not found:
            return None
        most = min(found, key=lambda name: found[name])
        return min(1.0, len(found) * found[most]), most

    @abstractmethod
    def density(self, here: Linearised, anchors: FloatArray, noises: Noises) -> Density:
        """Return the likelihood at any parameters near some."""

    @abstractmethod
    def likelihood(self, here: Linearised, noises: Noises) -> Reusable:
        """Return the likelihood as a PyMC model."""

    def _length(self, move: FloatArray, here: Linearised) -> float:
        """Return the length of a move in standard deviations of the posterior."""
        return float(np.sqrt(move @ (here.curvature + self.prior.precision) @ move))

    def objective(self, found: Linearised) -> float:
        """Return minus the log posterior density there, up to a constant."""
        return -found.log_likelihood - self.prior.log_density(found.place)

    def mode(self, start: FloatArray) -> Linearised:
        """Return the sums near the most probable parameters, searched from a start by
        simulated Gauss-Newton steps.
        """
        here = self.linearised(start)
        best = self.objective(here)
        reach = REACH
        for _ in range(MOST_MOVES):
            move = self.move(here)
            length = float(np.sqrt(move @ here.information @ move))
            move = move * min(1.0, reach / max(length, 1e-300))
            if self._length(move, here) < NEAR:
                break
            try:
                there = self.linearised(here.place + move)
                value = self.objective(there)
            # parameters that nothing is drawn at
            except (ValueError, FloatingPointError, np.linalg.LinAlgError):
                value = np.inf
            if value <= best + TOLERATED:
                here = there
                best = min(value, best)
                reach = min(2 * reach, REACH)
            else:
                reach = min(length, reach) / 4
                if reach < SHORTEST:
                    break
        return here

    def move(self, here: Linearised) -> FloatArray:
        """Return the way from here to the mode of the normal prior times what the sums
        say near here.
        """
        precision = self.prior.precision
        pull = here.slope + precision @ (self.prior.mean - here.place)
        return np.asarray(np.linalg.solve(here.curvature + precision, pull))


@dataclass(frozen=True, eq=False)
class NormalPrior:
    """Independent normal distributions as wide as the prior's own draws: with these
    references are searched.

    A hierarchy's own prior has no mode where all groups are alike; the posterior is
    drawn under the analyst's prior.
    """

    mean: FloatArray  # shape (parameters,), unconstrained
    deviation: FloatArray

    @classmethod
    def of(cls, draws: FloatArray) -> "NormalPrior":
        """Return the distributions that have the middle half of each parameter's draws
        where it is.
        """
        # logarithms of draws near 0 may have no end
        finite = np.clip(draws, -LARGEST, LARGEST)
        low, middle, high = np.quantile(finite, [0.25, 0.5, 0.75], axis=0)
        return cls(middle, np.maximum((high - low) / QUARTILES, 1e-9))

    def times(self, other: "NormalPrior") -> "NormalPrior":
        """Return the distributions whose densities are the products of both."""
        precisions = self.deviation**-2 + other.deviation**-2
        means = self.mean / self.deviation**2 + other.mean / other.deviation**2
        return NormalPrior(means / precisions, precisions**-0.5)

    @property
    def precision(self) -> FloatArray:
        """The inverse covariance, shape (parameters, parameters)."""
        return np.diag(self.deviation**-2)

    def log_density(self, place: FloatArray) -> float:
        """Return the log density up to a constant."""
        standard = (place - self.mean) / self.deviation
        return -float((standard**2).sum()) / 2


def share_further(
    residual: FloatArray, slopes: FloatArray, normal: FloatArray, laplace: FloatArray
) -> float:
    """Return the share of simulated residuals that are at least as far from 0 as some,
    after parameters have explained what they can.

    Distances are those of generalised least squares. ``normal`` is the covariance of
    the normal part, ``laplace`` are variances of Laplace noise on each number.
    """
    whole = cholesky(regular(normal + np.diag(laplace)), lower=True)
    explained, _ = np.linalg.qr(solve_triangular(whole, slopes, lower=True))

    def distances(rows: FloatArray) -> FloatArray:
        standard = solve_triangular(whole, rows.T, lower=True)
        left = standard - explained @ (explained.T @ standard)
        return np.asarray((left**2).sum(axis=0))

    simulated = _simulated_residuals(normal, laplace)
    return _share_at_least(distances(simulated), distances(residual[None])[0])


def share_above(
    residual: FloatArray, slopes: FloatArray, normal: FloatArray, laplace: FloatArray
) -> float:
    """Return the share of simulated residuals whose first number is at least as large
    for what the others say of the parameters, which are one fewer.

    Arguments are those of :func:`share_further`.
    """
    whole = cholesky(regular(normal + np.diag(laplace)), lower=True)
    directions, _ = np.linalg.qr(
        solve_triangular(whole, slopes, lower=True), mode="complete"
    )
    # the one direction that no parameter explains, towards more of the first number
    contrast = solve_triangular(whole, directions[:, -1], lower=True, trans="T")
    contrast = contrast * np.sign(contrast[0])
    simulated = _simulated_residuals(normal, laplace)
    return _share_at_least(simulated @ contrast, residual @ contrast)


def _simulated_residuals(normal: FloatArray, laplace: FloatArray) -> FloatArray:
    """Return simulated residuals, shape (draws, numbers)."""
    rng = np.random.default_rng(PUBLIC_SEED)
    root = cholesky(regular(normal), lower=True)
    shape = (SIMULATED_MISFITS, len(normal))
    simulated = rng.standard_normal(shape) @ root.T
    # noise that judges: it protects nothing
    quantiles = rng.uniform(-0.5, 0.5, shape)
    spread = -np.sign(quantiles) * np.log1p(-2 * np.abs(quantiles))
    return np.asarray(simulated + np.sqrt(laplace / 2) * spread)


def _share_at_least(simulated: FloatArray, found: float) -> float:
    above = (simulated >= found).sum()
    return float((above + 1) / (len(simulated) + 1))
