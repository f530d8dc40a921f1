"""The sequential logistic model of simulation 4 of paper 003 (SLOMAG): designs, coefficients, draws."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.privacy.noise import RandomBits, discrete_laplace
from pdips_papers.harness.conjugate import draw_normal
from pdips_papers.modips.mixed_moments import N_SETS, Bounds, Records

LEVELS = (2, 2, 3)
CELLS = 12
HALF = 4.0
"""Bounds -4 and 4 on both numbers."""

BOUNDS = Bounds(np.zeros((CELLS, 2)), np.array([HALF, HALF]))
ONE_CELL = Bounds(np.zeros((1, 2)), np.array([HALF, HALF]))

TOLERANCE = 1e-9
"""Length of the gradient at which a regularised fit ends; it is paid for."""

TOLERANCE_OF_FIRTH = 1e-4
"""Largest step and score at the end of a fit by Firth's method, the defaults of firthmodels."""

GRID = Fraction(1, 2**20)
"""Grid step of released coefficients, of predictors moved into the unit ball."""

METROPOLIS_STEPS, METROPOLIS_DEGREES = 30, 7


@dataclass(frozen=True)
class Regression:
    """One regression of the sequence.

    Parameters
    ----------
    outcome : int
        Number of the categorical variable, from 0.
    p : int
        Number of predictors: the first of 1, z1, z2, w1, w2.
    classes : int
        Levels of the outcome; the first is the baseline.
    truth : ndarray, shape (classes - 1, p)
        Coefficients of section 4.3.2.
    """

    outcome: int
    p: int
    classes: int
    truth: FloatArray

    @property
    def unit(self) -> FloatArray:
        """Coefficients in the original units are those of predictors in the unit ball times this, shape (p,)."""
        return np.asarray(np.array([1.0, 1 / HALF, 1 / HALF, 1.0, 1.0])[: self.p] / np.sqrt(self.p))

    @property
    def reach(self) -> float:
        """Most that replacing a record changes the gradient of the log-likelihood: 2, or 2 sqrt 2 for three levels."""
        return 2.0 if self.classes == 2 else 2 * float(np.sqrt(2))


SEQUENCE = (
    Regression(0, 3, 2, np.array([[-1.0, 0.5, -1.0]])),
    Regression(1, 4, 2, np.array([[-2.0, -1.0, 1.5, 0.5]])),
    Regression(2, 5, 3, np.array([[0.0, -2.5, 1.0, 0.5, 0.4], [0.1, -1.0, -0.5, 0.0, 1.5]])),
)


def levels(cell: IntArray) -> list[IntArray]:
    """Return the levels of the three variables from the number of their cell."""
    return list(np.unravel_index(cell, LEVELS))


def design(z: FloatArray, w: list[IntArray]) -> FloatArray:
    """Return the columns 1, z1, z2, w1, w2 as far as ``w`` goes, the others 0."""
    columns = [np.ones(z.shape[:-1]), z[..., 0], z[..., 1], *w[:2]]
    found = np.zeros((*z.shape[:-1], 5))
    for place, column in enumerate(columns):
        found[..., place] = column
    return found


Coefficients = Callable[[Regression, FloatArray], FloatArray]
"""Takes a regression and designs, shape (replicates, sets, n, 5); returns (replicates, sets, classes - 1, p)."""


def draw_levels(z: FloatArray, coefficients: Coefficients, rng: np.random.Generator) -> Records:
    """Draw the categorical variables one after another given z, shape (replicates, sets, n, 2)."""
    w: list[IntArray] = []
    for regression in SEQUENCE:
        x = design(z, w)
        beta = coefficients(regression, x)
        score = np.einsum("rsnp,rscp->rsnc", x[..., : regression.p], beta)
        score = np.concatenate([np.zeros((*score.shape[:-1], 1)), score], axis=-1)
        weight = np.exp(score - score.max(axis=-1, keepdims=True))
        reached = np.cumsum(weight, axis=-1)
        uniform = rng.random(reached.shape[:-1])[..., None] * reached[..., -1:]
        w.append(np.minimum((reached <= uniform).sum(axis=-1), regression.classes - 1))
    return Records((w[0] * LEVELS[1] + w[1]) * LEVELS[2] + w[2], z)


def true_coefficients(regression: Regression, x: FloatArray) -> FloatArray:
    """Return the coefficients of section 4.3.2."""
    return np.broadcast_to(regression.truth, (*x.shape[:2], *regression.truth.shape))


def scaled_design(data: Records, regression: Regression) -> tuple[FloatArray, IntArray]:
    """Return predictors in the unit ball and outcomes of data sets: shapes (replicates, n, p) and (replicates, n)."""
    w = levels(data.cell[:, 0])
    x = design(data.z[:, 0], w)[..., : regression.p] * regression.unit
    return np.ascontiguousarray(x), np.ascontiguousarray(w[regression.outcome])


def posterior_draws(data: Records, regression: Regression, ridge: float, rng: np.random.Generator) -> FloatArray:
    """Draw ``N_SETS`` coefficient vectors of predictors in the unit ball from their posterior, by Metropolis.

    Independence chains of 30 steps whose proposals follow a multivariate t law about the mode: they end within a hair
    of the posterior, which at n = 1,000 is nearly normal.

    Returns
    -------
    ndarray, shape (replicates, sets, d)
    """
    from pdips_papers.modips.logit_kernels import metropolis, ridge_modes

    x, y = scaled_design(data, regression)
    modes, information, _ = ridge_modes(x, y, regression.p, regression.classes, ridge, 1e-6)
    d, shape = modes.shape[1], (len(x), N_SETS, METROPOLIS_STEPS)
    root = np.linalg.inv(np.linalg.cholesky(information))
    normal = np.einsum("rji,rsmj->rsmi", root, rng.standard_normal((*shape, d)))
    shrink = np.sqrt(rng.chisquare(METROPOLIS_DEGREES, shape) / METROPOLIS_DEGREES)[..., None]
    apart = normal / shrink
    distance = np.einsum("rsmi,rij,rsmj->rsm", apart, information, apart)
    density = -0.5 * (METROPOLIS_DEGREES + d) * np.log1p(distance / METROPOLIS_DEGREES)
    proposals = modes[:, None, None] + apart
    return metropolis(x, y, regression.p, ridge, proposals, density, 1 - rng.random(shape))


def grown_noise(regression: Regression, scale: float, shape: tuple[int, int], rng: np.random.Generator) -> FloatArray:
    """Draw noise with density in proportion to exp(-length / scale), shape (*shape, d), in doubles: as published."""
    d = (regression.classes - 1) * regression.p
    direction = rng.standard_normal((*shape, d))
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    return direction * (rng.standard_gamma(d, shape) * scale)[..., None]


def noisy_modes(data: Records, regression: Regression, ridge: float, epsilon: Fraction, bits: RandomBits) -> FloatArray:
    """Sanitize the modes of a regression with a public ridge, once, shape (replicates, d).

    Replacing a record moves the mode by ``reach`` / ridge at most (SOUNDNESS 5.6), so its coordinates by sqrt(d) times
    that in all; rounding to the grid adds a step to each, and the solver's tolerance twice tolerance / ridge to the
    first. The noise is discrete Laplace on the grid.
    """
    from pdips_papers.modips.logit_kernels import ridge_modes

    x, y = scaled_design(data, regression)
    modes, _, lengths = ridge_modes(x, y, regression.p, regression.classes, ridge, TOLERANCE)
    if (lengths >= TOLERANCE).any():
        raise RuntimeError("a strongly convex fit doesn't end")
    steps = np.floor(modes / float(GRID) + 0.5).astype(np.int64)
    scale = sensitivity(regression, ridge) / epsilon
    return np.asarray((steps + discrete_laplace(scale, steps.size, bits).reshape(steps.shape)) * float(GRID))


def sensitivity(regression: Regression, ridge: float) -> int:
    """Return the most that replacing a record changes the rounded modes by, in grid steps summed over coordinates."""
    d = (regression.classes - 1) * regression.p
    apart = np.sqrt(d) * (regression.reach + 2 * TOLERANCE) / ridge
    return int(np.ceil(apart / float(GRID) * (1 + 1e-9))) + d


def plug_in(modes: Sequence[FloatArray], ridge: float, rng: np.random.Generator) -> Coefficients:
    """Return draws as if noisy modes were exact: normal about them, with the information that the synthetic set holds.

    The modes are those of predictors in the unit ball, by regression, shape (replicates, d); what comes out is in the
    original units.
    """
    from pdips_papers.modips.logit_kernels import information_at

    def coefficients(of: Regression, x: FloatArray) -> FloatArray:
        flat = np.ascontiguousarray(x.reshape(-1, *x.shape[2:])[..., : of.p] * of.unit)
        beta = np.repeat(modes[of.outcome], x.shape[1], axis=0)
        information = information_at(flat, beta, of.p, ridge)
        return in_units(draw_normal(beta, np.linalg.inv(information), rng).reshape(*x.shape[:2], -1), of)

    return coefficients


def in_units(beta: FloatArray, regression: Regression) -> FloatArray:
    """Return coefficients, shape (replicates, sets, d), in the original units by class."""
    shaped = beta.reshape(*beta.shape[:2], regression.classes - 1, regression.p)
    return np.asarray(shaped * regression.unit)


def firth_estimates(sets: Records) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Estimate beta_1 to beta_4 in each set by Firth's logistic regressions, level by level against the baseline.

    Returns
    -------
    dict of str to pair of ndarray, shape (replicates, sets, p)
        Estimates and squared standard errors, by "1" to "4"; NaN where there is no fit.
    """
    from pdips_papers.modips.logit_kernels import firth

    shape = sets.cell.shape[:2]
    w = [column.reshape(-1, sets.n) for column in levels(sets.cell)]
    x = design(sets.z.reshape(-1, sets.n, 2), w)
    found: dict[str, tuple[FloatArray, FloatArray]] = {}
    for regression in SEQUENCE:
        for level in range(1, regression.classes):
            y = np.where(w[regression.outcome] == level, 1, np.where(w[regression.outcome] == 0, 0, -1))
            estimates, errors = firth(x, y, regression.p, TOLERANCE_OF_FIRTH)
            name = str(len(found) + 1)
            found[name] = estimates.reshape(*shape, -1), errors.reshape(*shape, -1)
    return found
