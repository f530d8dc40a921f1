"""SLOMAG, the sequential logistic model of Bowen and Liu's (2020) simulation 4:
designs, draws, Firth's fits.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from firthmodels import FirthLogisticRegression
from sklearn.exceptions import ConvergenceWarning

from pdips.arrays import FloatArray, IntArray
from pdips.statistics.logistic import Logits
from pdips_papers.harness.measures import draw_normal
from pdips_papers.modips.as_printed import posterior_draws, precision
from pdips_papers.modips.location_model import N_SETS, Bounds, Records

LEVELS = (2, 2, 3)
CELLS = 12

HALF = 4.0
"""Bounds -4 and 4 on both numbers."""

BOUNDS = Bounds(np.zeros((CELLS, 2)), np.array([HALF, HALF]))
ONE_CELL = Bounds(np.zeros((1, 2)), np.array([HALF, HALF]))

TOLERANCE_OF_FIRTH = 1e-4
MOST_STEPS = 50
"""Largest step and score at the end of a fit by Firth's method, the defaults of
firthmodels; steps at most.
"""

FLAT = Fraction(1, 10**6)
"""Precision of a prior that is flat for all that n = 1,000 records can tell."""


@dataclass(frozen=True)
class Regression:
    """A regression of one categorical variable on the first p of 1, z1, z2, w1, w2;
    ``truth`` has a row a class.
    """

    outcome: int
    p: int
    classes: int
    truth: FloatArray

    @property
    def unit(self) -> FloatArray:
        """Coefficients in the original units are those of predictors in the unit ball
        times this, shape (p,).
        """
        units = np.array([1.0, 1 / HALF, 1 / HALF, 1.0, 1.0])
        return np.asarray(units[: self.p] / np.sqrt(self.p))


SEQUENCE = (
    Regression(0, 3, 2, np.array([[-1.0, 0.5, -1.0]])),
    Regression(1, 4, 2, np.array([[-2.0, -1.0, 1.5, 0.5]])),
    Regression(
        2, 5, 3, np.array([[0.0, -2.5, 1.0, 0.5, 0.4], [0.1, -1.0, -0.5, 0.0, 1.5]])
    ),
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
"""Takes a regression and designs, shape (replicates, sets, n, 5); returns (replicates,
sets, classes - 1, p).
"""


def draw_levels(
    z: FloatArray, coefficients: Coefficients, rng: np.random.Generator
) -> Records:
    """Draw the categorical variables one after another given z, shape (replicates,
    sets, n, 2).
    """
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


def exact_draws(
    data: Records, regression: Regression, strength: Fraction, rng: np.random.Generator
) -> FloatArray:
    """Draw ``N_SETS`` coefficients of predictors in the unit ball, (replicates, sets,
    d), under N(0, 1 / strength).
    """
    w = levels(data.cell[:, 0])
    x = design(data.z[:, 0], w)[..., : regression.p] * regression.unit
    ones = np.ones(data.n, dtype=np.int64)
    found = []
    for rows, outcome in zip(x, w[regression.outcome], strict=True):
        records = Logits(
            np.ascontiguousarray(rows), outcome, ones, regression.classes, strength
        )
        found.append(posterior_draws(records, N_SETS, rng))
    return np.array(found)


def plug_in(
    modes: list[FloatArray], strength: float, rng: np.random.Generator
) -> Coefficients:
    """Return draws as if noisy modes were exact: normal about them, with the
    information that the synthetic set holds.

    The modes are those of predictors in the unit ball, by regression, shape
    (replicates, d); what comes out is in the original units.
    """

    def coefficients(of: Regression, x: FloatArray) -> FloatArray:
        flat = x.reshape(-1, *x.shape[2:])[..., : of.p] * of.unit
        beta = np.repeat(modes[of.outcome], x.shape[1], axis=0)
        drawn = draw_normal(beta, np.linalg.inv(information(flat, beta, strength)), rng)
        return in_units(drawn.reshape(*x.shape[:2], -1), of)

    return coefficients


def information(x: FloatArray, beta: FloatArray, strength: float) -> FloatArray:
    """Return the information about coefficients that each design holds, with that of
    the prior.
    """
    ones = np.ones(x.shape[1], dtype=np.int64)
    shaped = beta.reshape(len(beta), -1, x.shape[2])
    return np.array(
        [precision(rows, b, ones, strength) for rows, b in zip(x, shaped, strict=True)]
    )


def in_units(beta: FloatArray, regression: Regression) -> FloatArray:
    """Return coefficients, shape (replicates, sets, d), in the original units by
    class.
    """
    shaped = beta.reshape(*beta.shape[:2], regression.classes - 1, regression.p)
    return np.asarray(shaped * regression.unit)


def firth_estimates(sets: Records) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Estimate beta_1 to beta_4 in each set by Firth's logistic regressions, level by
    level against the baseline.
    """
    shape = sets.cell.shape[:2]
    w = [column.reshape(-1, sets.n) for column in levels(sets.cell)]
    x = design(sets.z.reshape(-1, sets.n, 2), w)
    found: dict[str, tuple[FloatArray, FloatArray]] = {}
    for regression in SEQUENCE:
        for level in range(1, regression.classes):
            y = np.where(
                w[regression.outcome] == level,
                1,
                np.where(w[regression.outcome] == 0, 0, -1),
            )
            estimates, errors = firth(x, y, regression.p, TOLERANCE_OF_FIRTH)
            name = str(len(found) + 1)
            found[name] = estimates.reshape(*shape, -1), errors.reshape(*shape, -1)
    return found


def firth(
    x: FloatArray, y: IntArray, p: int, tolerance: float
) -> tuple[FloatArray, FloatArray]:
    """Fit logistic regressions by Firth's penalised likelihood; (sets, p) estimates and
    squared standard errors.

    Designs ``x``, shape (sets, n, columns), have the intercept first and ``p`` columns
    in use; outcomes ``y`` are 0 and 1, below 0 for records to leave out. NaN where an
    outcome has one value only, columns depend on each other, or ``MOST_STEPS`` steps
    don't do.
    """
    found = np.full((2, len(x), p), np.nan)
    model = FirthLogisticRegression(
        fit_intercept=False, max_iter=MOST_STEPS, gtol=tolerance, xtol=tolerance
    )
    for place, (rows, outcome) in enumerate(zip(x, y, strict=True)):
        kept = outcome >= 0
        if (
            not 0 < outcome[kept].sum() < kept.sum()
            or np.linalg.matrix_rank(rows[kept, :p]) < p
        ):
            continue
        with (
            warnings.catch_warnings(),
            suppress(ConvergenceWarning, np.linalg.LinAlgError),
        ):
            warnings.simplefilter("error", ConvergenceWarning)
            model.fit(rows[kept, :p], outcome[kept])
            found[:, place] = model.coef_, model.bse_**2
    return found[0], found[1]
