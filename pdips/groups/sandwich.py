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
    its curvature. Both are taken along C_i alone, by differences.
    """
    centre = weighted.weights @ weighted.places
    off = weighted.places - centre
    covariance = (off * weighted.weights[:, None]).T @ off
    deviations = np.sqrt(np.maximum(np.diag(covariance), np.finfo(float).tiny))
    factors = np.ones(len(centre))
    with np.errstate(all="ignore"):
        middle = hyper.quadrature.log_evidences(hyper.common(centre))
        for number, deviation in enumerate(deviations):
            along = STEP * covariance[:, number] / deviation
            above = hyper.quadrature.log_evidences(hyper.common(centre + along))
            below = hyper.quadrature.log_evidences(hyper.common(centre - along))
            slopes = (above - below) / (2 * STEP)
            curvature = (2 * middle - above - below).sum() / STEP**2
            factor = 1 + len(slopes) * slopes.var(ddof=1) - curvature
            if np.isfinite(factor):
                factors[number] = np.clip(factor, 1.0, MOST)
    return factors
