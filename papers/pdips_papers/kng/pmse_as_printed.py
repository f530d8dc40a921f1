"""The pMSE mechanism as printed: its density, drawn from exactly on a finite set. It
guarantees nothing.

The density over parameters is exp(-(n epsilon / 2) pMSE(D, S_theta)) times a wide
normal prior, with pMSE from a tree fitted to the confidential table D and the synthetic
S_theta. The authors run 100 Metropolis steps from the parameters that made their data;
here three clouds of candidates cover the density's mass, and one of them all is drawn,
with weights that are the density over that of the clouds.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeClassifier

from pdips.arrays import FloatArray
from pdips.privacy.noise import RandomBits, exponential_mechanism, quantise
from pdips_papers.kng import pmse_mechanism as sound
from pdips_papers.kng.pmse_scores import synthesise

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
"""Covariance of the first round's candidates, times n epsilon, in units of one record's
inverse information.
"""

FLOOR = 200.0
"""Nats; log weights further below the best count as this far below."""

STEP = Fraction(1, 2**20)
"""Nats; log weights are rounded to it."""

DEPTH = 5
LEAST_GAIN = 0.01
"""Of the tree, as the paper's code sets CART: depth, and the misclassified that a split
must save, as a share.
"""


def published(
    records: FloatArray,
    epsilon: Fraction,
    *,
    n_candidates: int,
    stages: int,
    bits: RandomBits,
) -> FloatArray:
    """Draw parameters from the printed density; privacy guarantee: none.

    Different from the paper's code besides: one synthetic table of even spread for each
    candidate, not the mean of 25 random ones; trees split at 1/64 quantiles of the
    confidential table. The density has wide shoulders in eight dimensions, so few of up
    to 1,200 candidates carry most of the weight, and the set follows the density
    roughly.
    """
    search = min(n_candidates, MOST_SEARCHED)
    found = sound.choose_parameters(
        records, SEARCH * epsilon, n_candidates=search, stages=stages, bits=bits
    )
    sharpness = (
        sound.information(found, sound.plan(stages)[-1])
        * len(records)
        * float(epsilon)
        / SPREAD
    )
    here = sound.Known(
        theta=sound.with_logs(found.theta),
        covariance=np.linalg.inv(sharpness + np.eye(len(sound.NAMES)) * 1e-3),
    )
    clouds = [here]
    tried = np.empty((0, len(sound.NAMES)))
    targets = np.empty(0)
    for number in range(N_ROUNDS):
        new = _around(clouds[-1], min(n_candidates, MOST_TREES), number)
        tried = np.concatenate([tried, new])
        targets = np.concatenate([targets, log_density(records, epsilon, new)])
        spread = np.logaddexp.reduce(
            [_log_cloud(cloud, tried) for cloud in clouds], axis=0
        )
        weights = targets - spread
        masses = np.exp(weights - weights.max())
        shares = masses / masses.sum()
        centre = shares @ tried
        away = tried - centre
        covariance = (away.T * shares) @ away + clouds[-1].covariance / 4
        clouds.append(sound.Known(theta=centre, covariance=covariance))
    steps = quantise(np.maximum(weights - weights.max(), -FLOOR), STEP)
    drawn = exponential_mechanism(steps[None, :], STEP, bits)[0]
    return sound.without_logs(tried[drawn])


def log_density(
    records: FloatArray, epsilon: Fraction, changed: FloatArray
) -> FloatArray:
    """Return the printed log density at parameters with the rates as logs, shape
    (candidates, 8).
    """
    n = len(records)
    thetas = sound.without_logs(changed)
    edges = np.quantile(records, np.arange(1, N_BINS) / N_BINS, axis=0).T
    real = binned(records, edges)
    points = -np.log1p(-sound.cube(n, 3, 1))
    pmse = np.array(
        [tree_pmse(real, binned(synthesise(theta, points), edges)) for theta in thetas]
    )
    prior = -(thetas**2).sum(axis=1) / (2 * PRIOR_VARIANCE) + changed[
        :, sound.RATES
    ].sum(axis=1)
    return np.asarray(-n * float(epsilon) / 2 * pmse + prior)


def binned(records: FloatArray, edges: FloatArray) -> NDArray[np.float32]:
    """Return the bins of records, shape (n, 3), on the columns' sorted edges, shape (3,
    edges).
    """
    bins = [
        np.searchsorted(cuts, values, side="right")
        for cuts, values in zip(edges, records.T, strict=True)
    ]
    return np.column_stack(bins).astype(np.float32)


def tree_pmse(
    real: NDArray[np.float32],
    made: NDArray[np.float32],
    depth: int = DEPTH,
    least_gain: float = LEAST_GAIN,
) -> float:
    """Return the pMSE of a tree that tells confidential from synthetic records, pruned
    as CART does.
    """
    n = len(real)
    m = len(made)
    smallest = least_gain * min(n, m)
    grown = DecisionTreeClassifier(max_depth=depth, random_state=0)
    tree = grown.fit(np.concatenate([real, made]), np.repeat([0, 1], [n, m])).tree_
    counts = tree.value[:, 0] * tree.weighted_n_node_samples[:, None]
    sizes = counts.sum(axis=1)
    away = counts[:, 1] / sizes - m / (n + m)
    squares = (sizes * away**2).tolist()
    errors = counts.min(axis=1).tolist()
    splits = [0] * tree.node_count
    left = tree.children_left.tolist()
    right = tree.children_right.tolist()
    for node in range(tree.node_count - 1, -1, -1):  # children come after their parents
        if left[node] >= 0 and errors[node] > smallest:
            below = errors[left[node]] + errors[right[node]]
            n_splits = splits[left[node]] + splits[right[node]] + 1
            if errors[node] - below > smallest * n_splits or least_gain == 0.0:
                errors[node] = below
                splits[node] = n_splits
                squares[node] = squares[left[node]] + squares[right[node]]
    return float(squares[0] / (n + m))


def _around(known: sound.Known, n_candidates: int, number: int) -> FloatArray:
    """Return a cloud of the multivariate Student law; ``known.theta`` has the rates as
    logs.
    """
    from scipy.special import chdtri, ndtr

    points = sound.cloud(n_candidates, len(sound.NAMES) + 1, 100 + number)
    stretch = np.sqrt(FREEDOM / chdtri(FREEDOM, ndtr(points[:, -1:])))
    return np.asarray(
        known.theta + stretch * points[:, :-1] @ sound.root_of(known.covariance).T
    )


def _log_cloud(known: sound.Known, changed: FloatArray) -> FloatArray:
    """Return the log density of that law, up to a constant that all clouds share."""
    gap = changed - known.theta
    distance = (gap * np.linalg.solve(known.covariance, gap.T).T).sum(axis=1)
    size = np.linalg.slogdet(known.covariance)[1]
    return np.asarray(
        -(FREEDOM + len(sound.NAMES)) / 2 * np.log1p(distance / FREEDOM) - size / 2
    )
