"""The pMSE mechanism as printed: its density, drawn from exactly on a finite set. It guarantees nothing.

The density over parameters is exp(-(n epsilon / 2) pMSE(D, S_theta)) times a wide normal prior, with pMSE from a tree
fitted to the confidential table D and the synthetic S_theta. The authors run 100 Metropolis steps from the parameters
that made their data; here a first set of candidates finds where the density has its mass, a second one is drawn from.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pdips.noise import RandomBits, exponential_mechanism, quantise
from pdips.studies.pmse_stages import (
    NAMES,
    RATES,
    Known,
    choose_parameters,
    cloud,
    information,
    plan,
    root_of,
    with_logs,
    without_logs,
)

FloatArray = NDArray[np.float64]

PRIOR_VARIANCE = 100_000
"""Of each parameter, as in the paper's code."""

MOST_TREES = 400
"""Candidates of a round: each needs a tree."""

N_BINS = 64
SEARCH = 50
"""The unpaid search spends this many times epsilon."""

SPREAD = 48
"""Covariance of the first round's candidates, times n epsilon, in units of one record's inverse information."""

STEP = Fraction(1, 2**20)
"""Nats; log weights are rounded to it."""


def published(
    records: FloatArray, epsilon: Fraction, *, n_candidates: int, stages: int, bits: RandomBits
) -> FloatArray:
    """Draw parameters from the printed density; privacy guarantee: none.

    Parameters
    ----------
    records : ndarray, shape (n, 3)
    epsilon : Fraction
        As in the exponent.
    n_candidates, stages : int
        Of the unpaid search; at most :data:`MOST_TREES` candidates get a tree.
    bits : RandomBits

    Returns
    -------
    ndarray, shape (8,)

    Notes
    -----
    Different from the paper's code: one synthetic table of even spread for each candidate, not the mean of 25 random
    ones; trees split at 1/64 quantiles of the confidential table; exact weights on a finite set that covers the
    density's mass, not a chain of 100 steps.
    """
    found = choose_parameters(records, SEARCH * epsilon, n_candidates=n_candidates, stages=stages, bits=bits)
    joint = plan(stages)[-1]
    per_record = information(found, joint)
    wide = np.linalg.inv(per_record * len(records) * float(epsilon) / SPREAD + np.eye(len(NAMES)) * 1e-6)
    centre, n_trees = with_logs(found.theta), min(n_candidates, MOST_TREES)
    for number in range(2):
        changed, weights = log_weights(records, epsilon, Known(theta=centre, covariance=wide), n_trees, number)
        shares = np.exp(weights - weights.max())
        shares /= shares.sum()
        centre = shares @ changed
        wide = 1.5 * ((changed - centre).T * shares) @ (changed - centre) + 0.02 * wide
    chosen = exponential_mechanism(quantise(weights - weights.max(), STEP)[None, :], STEP, bits)[0]
    return without_logs(changed[chosen])


def log_weights(
    records: FloatArray, epsilon: Fraction, around: Known, n_trees: int, number: int
) -> tuple[FloatArray, FloatArray]:
    """Return candidates (rates as logs), shape (trees, 8), and their log weights: printed density by that of the cloud.

    ``around.theta`` has the rates as logs.
    """
    from pdips.studies.pmse_kernels import synthesise
    from pdips.studies.pmse_tree import binned, tree_pmse

    n = len(records)
    normal = cloud(n_trees, len(NAMES), 100 + number)
    changed = around.theta + normal @ root_of(around.covariance).T
    thetas = without_logs(changed)
    edges = np.quantile(records, np.arange(1, N_BINS) / N_BINS, axis=0).T.copy()
    real, points = binned(records, edges), -np.log1p(-_even(n))
    pmse = np.array([tree_pmse(real, binned(synthesise(theta, points), edges), N_BINS) for theta in thetas])
    prior = -(thetas**2).sum(axis=1) / (2 * PRIOR_VARIANCE) + changed[:, RATES].sum(axis=1)
    return changed, -n * float(epsilon) / 2 * pmse + prior + (normal**2).sum(axis=1) / 2


def _even(n: int) -> FloatArray:
    from scipy.stats import qmc

    uniform = qmc.Sobol(3, rng=np.random.default_rng(1)).random(2 ** max(n - 1, 1).bit_length())[:n]
    return np.asarray(np.clip(uniform, 2.0**-30, 1 - 2.0**-30))
