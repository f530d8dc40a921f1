"""The pMSE mechanism as printed: its density, drawn from exactly on a finite set. It guarantees nothing.

The density over parameters is exp(-(n epsilon / 2) pMSE(D, S_theta)) times a wide normal prior, with pMSE from a tree
fitted to the confidential table D and the synthetic S_theta. The authors run 100 Metropolis steps from the parameters
that made their data; here three clouds of candidates cover the density's mass, and one of them all is drawn, with
weights that are the density over that of the clouds.
"""

from fractions import Fraction

import numpy as np

from pdips.arrays import FloatArray
from pdips.privacy.noise import RandomBits, exponential_mechanism, quantise
from pdips_papers.kng.pmse_stages import (
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

PRIOR_VARIANCE = 100_000
"""Of each parameter, as in the paper's code."""

N_ROUNDS = 3
MOST_TREES = 400
"""Candidates of a round: each needs a tree."""

MOST_SEARCHED = 2000
"""Candidates in each stage of the unpaid search."""

FREEDOM = 4
"""Degrees of freedom of the clouds: the density has wide tails."""

N_BINS = 64
SEARCH = 50
"""The unpaid search spends this many times epsilon."""

SPREAD = 48
"""Covariance of the first round's candidates, times n epsilon, in units of one record's inverse information."""

FLOOR = 200.0
"""Nats; log weights further below the best count as this far below."""

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
    ones; trees split at 1/64 quantiles of the confidential table; one of up to 1,200 candidates is drawn by exact
    weights, not the end of a chain of 100 steps. The density has wide shoulders in eight dimensions, so few
    candidates carry most of the weight: the draw is exact on this set, and the set follows the density roughly.
    """
    search = min(n_candidates, MOST_SEARCHED)
    found = choose_parameters(records, SEARCH * epsilon, n_candidates=search, stages=stages, bits=bits)
    sharpness = information(found, plan(stages)[-1]) * len(records) * float(epsilon) / SPREAD
    here = Known(theta=with_logs(found.theta), covariance=np.linalg.inv(sharpness + np.eye(len(NAMES)) * 1e-3))
    clouds, tried, targets = [here], np.empty((0, len(NAMES))), np.empty(0)
    for number in range(N_ROUNDS):
        new = _around(clouds[-1], min(n_candidates, MOST_TREES), number)
        tried, targets = np.concatenate([tried, new]), np.concatenate([targets, log_density(records, epsilon, new)])
        spread = np.logaddexp.reduce([_log_cloud(cloud, tried) for cloud in clouds], axis=0)
        weights = targets - spread
        shares = np.exp(weights - weights.max()) / np.exp(weights - weights.max()).sum()
        centre = shares @ tried
        covariance = ((tried - centre).T * shares) @ (tried - centre) + clouds[-1].covariance / 4
        clouds.append(Known(theta=centre, covariance=covariance))
    steps = quantise(np.maximum(weights - weights.max(), -FLOOR), STEP)
    return without_logs(tried[exponential_mechanism(steps[None, :], STEP, bits)[0]])


def log_density(records: FloatArray, epsilon: Fraction, changed: FloatArray) -> FloatArray:
    """Return the printed log density at parameters with the rates as logs, shape (candidates, 8)."""
    from pdips_papers.kng.pmse_kernels import synthesise
    from pdips_papers.kng.pmse_tree import binned, tree_pmse

    n, thetas = len(records), without_logs(changed)
    edges = np.quantile(records, np.arange(1, N_BINS) / N_BINS, axis=0).T.copy()
    real, points = binned(records, edges), -np.log1p(-_even(n))
    pmse = np.array([tree_pmse(real, binned(synthesise(theta, points), edges), N_BINS) for theta in thetas])
    prior = -(thetas**2).sum(axis=1) / (2 * PRIOR_VARIANCE) + changed[:, RATES].sum(axis=1)
    return np.asarray(-n * float(epsilon) / 2 * pmse + prior)


def _around(known: Known, n_candidates: int, number: int) -> FloatArray:
    """Return a cloud of the multivariate Student law; ``known.theta`` has the rates as logs."""
    from scipy.special import chdtri, ndtr

    points = cloud(n_candidates, len(NAMES) + 1, 100 + number)
    stretch = np.sqrt(FREEDOM / chdtri(FREEDOM, ndtr(points[:, -1:])))
    return np.asarray(known.theta + stretch * points[:, :-1] @ root_of(known.covariance).T)


def _log_cloud(known: Known, changed: FloatArray) -> FloatArray:
    """Return the log density of that law, up to a constant that all clouds share."""
    gap = changed - known.theta
    distance = (gap * np.linalg.solve(known.covariance, gap.T).T).sum(axis=1)
    size = np.linalg.slogdet(known.covariance)[1]
    return np.asarray(-(FREEDOM + len(NAMES)) / 2 * np.log1p(distance / FREEDOM) - size / 2)


def _even(n: int) -> FloatArray:
    from scipy.stats import qmc

    uniform = qmc.Sobol(3, rng=np.random.default_rng(1)).random(2 ** max(n - 1, 1).bit_length())[:n]
    return np.asarray(np.clip(uniform, 2.0**-30, 1 - 2.0**-30))
