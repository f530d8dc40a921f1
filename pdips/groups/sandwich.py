"""How much less certain common parameters are than the evidence of groups says, where
noise or records aren't as the model has them: by the scores of the groups themselves,
which costs nothing.
"""

from dataclasses import replace

import numpy as np

from pdips.arrays import FloatArray
from pdips.groups.hyperparameters import HyperDraws, HyperPosterior

# Of a parameter's deviation: of differences, so wide that the evidence isn't followed
# into its rounding
STEP = 0.5
# Factors of a variance beyond which the scores of few groups say more of themselves
# than of the parameter
MOST = 3.0


def widened(hyper: HyperPosterior, weighted: HyperDraws) -> HyperDraws:
    """Return draws whose deviations are those of a sandwich (Huber 1967) where it is
    wider.

    The curvature of a log evidence is the variance of its slope only if groups vary as
    the model has it. Laplace noise has heavier tails than the normal law that it counts
    as, and so may records: squares of noisy sums, which tell of spreads, vary more.
    """
    factors = _factors(hyper, weighted)
    centre = weighted.weights @ weighted.places
    places = centre + np.sqrt(factors) * (weighted.places - centre)
    return replace(weighted, places=places)


def _factors(hyper: HyperPosterior, weighted: HyperDraws) -> FloatArray:
    """Return by how much the variance of each parameter grows, at least 1, shape
    (parameters,).

    With C the covariance of the draws, the sandwich of parameter i is C_ii + C_i (J -
    H) C_i', where J is the variance of the evidence's slope as groups show it, and H
    its curvature.
    """
    centre = weighted.weights @ weighted.places
    off = weighted.places - centre
    covariance = (off * weighted.weights[:, None]).T @ off
    deviations = np.sqrt(np.maximum(np.diag(covariance), np.finfo(float).tiny))
    factors = np.ones(len(centre))
    for number, deviation in enumerate(deviations):
        along = covariance[:, number] / deviation
        variance, curvature = slope_and_curvature(hyper, centre, along)
        factor = 1 + variance - curvature
        if np.isfinite(factor):
            factors[number] = np.clip(factor, 1.0, MOST)
    return factors


def slope_and_curvature(
    hyper: HyperPosterior, centre: FloatArray, along: FloatArray
) -> tuple[float, float]:
    """Return the variance of the evidence's slope along a direction, as groups show it,
    and its curvature there, which is that variance if the model is right.
    """
    evidences = hyper.quadrature.log_evidences
    with np.errstate(all="ignore"):
        middle = evidences(hyper.common(centre))
        above = evidences(hyper.common(centre + STEP * along))
        below = evidences(hyper.common(centre - STEP * along))
        slopes = (above - below) / (2 * STEP)
        curvature = (2 * middle - above - below).sum() / STEP**2
        return float(len(slopes) * slopes.var(ddof=1)), float(curvature)
