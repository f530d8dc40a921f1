"""Noise-aware posteriors of the general location model in simulations 3 and 4 of paper 003, those of ``glom.py``."""

from dataclasses import dataclass

import numpy as np

from pdips.arrays import FloatArray
from pdips.statistics.general_location import Known, run, starting_counts
from pdips.statistics.post_processing import nearest_shares
from pdips_papers.harness.measures import combine_predictive
from pdips_papers.modips.mixed_moments import PRIOR, STEPS, Bounds, Parameters, Statistics

TUNE, DRAWS, THIN = 700, 300, 10
"""Of the one chain for each table; a release has four, and looks at whether they agree."""

ONE_IN = 50
"""One replicate in this many has noise-aware rows: each takes a chain of thousands of steps."""


@dataclass(frozen=True)
class Posterior:
    """Posterior draws for some tables, in the units of z.

    Parameters
    ----------
    shares : ndarray, shape (replicates, draws, cells)
    means : ndarray, shape (replicates, draws, cells, 2)
    covariance : ndarray, shape (replicates, draws, 2, 2)
    """

    shares: FloatArray
    means: FloatArray
    covariance: FloatArray

    def spaced(self, n_sets: int) -> Parameters:
        """Return ``n_sets`` draws as far apart as they can be."""
        taken = np.linspace(0, self.shares.shape[1] - 1, n_sets).astype(int)
        return Parameters(self.shares[:, taken], self.means[:, taken], self.covariance[:, taken])


PRIORS = np.repeat([[0.0], [0.5], [2.0], [4.0], [2.0], [4.0]], 2, axis=1)
"""Of the centre of cells' means (normal), their spread and records' standard deviations (gamma), as in glom.py."""


def some(replicates: int) -> int:
    """Return how many of a batch's replicates have noise-aware rows."""
    return max(1, replicates // ONE_IN)


def posterior(noisy: Statistics, bounds: Bounds, rng: np.random.Generator) -> Posterior:
    """Draw from the noise-aware posterior of ``models/glom.py`` for each table, by its own chains."""
    found = []
    cells, n = bounds.cells, noisy.n
    scales = [float(scale) for scale in noisy.scales]
    square, product = (scale / STEPS**2 for scale in scales[2:])
    for counts, sums, products in zip(noisy.counts, noisy.sums, noisy.products, strict=True):
        first, second, both = products / STEPS**2
        known = Known(
            counts=counts.astype(np.float64),
            count_scales=np.full(cells, scales[0]),
            sums=sums / STEPS,
            sum_scales=np.full(2, scales[1] / STEPS),
            products=np.array([[first, both], [both, second]]),
            product_scales=np.array([[square, product], [product, square]]),
            gaussian=False,
            alpha=PRIOR,
            priors=PRIORS,
            df=float(max(n - cells, 2)),
        )
        start = starting_counts(nearest_shares(known.counts, n), scales[0] * 2**0.5, rng)
        drawn = run(known, start, TUNE, DRAWS, THIN, rng)
        found.append(_completed(drawn, bounds, rng))
    return Posterior(*(np.stack(each) for each in zip(*found, strict=True)))


def _completed(drawn: tuple[FloatArray, ...], bounds: Bounds, rng: np.random.Generator) -> tuple[FloatArray, ...]:
    """Draw shares and cells' means, which chains integrate out, and leave units of half the range."""
    counts, sums, m, tau, chol = drawn
    size = np.maximum(counts, 0.5)
    shares = rng.standard_gamma(counts + PRIOR)
    covariance = chol @ np.swapaxes(chol, -1, -2)
    inverse = np.linalg.inv(covariance)[:, None]
    prior = (np.eye(2) / tau[:, None, :] ** 2)[:, None]
    precision = prior + size[..., None, None] * inverse
    known = prior @ m[:, None, :, None] + inverse @ sums[..., None]
    root = np.linalg.cholesky(precision)
    noise = np.linalg.solve(np.swapaxes(root, -1, -2), rng.standard_normal(known.shape))
    means = (np.linalg.solve(precision, known) + noise)[..., 0]
    half = np.outer(bounds.half, bounds.half)
    return shares / shares.sum(axis=1, keepdims=True), bounds.middle + bounds.half * means, covariance * half


def combine_sets(estimates: FloatArray, variances: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Combine posterior predictive sets, those that give an estimate, as :func:`combine_predictive` does.

    Parameters
    ----------
    estimates, variances : ndarray, shape (replicates, sets)
        NaN where a set gives none.

    Returns
    -------
    estimate, half_width : ndarray, shape (replicates,)
        NaN where fewer than two sets have an estimate.
    """
    there = np.isfinite(estimates) & np.isfinite(variances)
    centre, half = (np.full(len(estimates), np.nan) for _ in range(2))
    for m in range(2, estimates.shape[1] + 1):
        rows = there.sum(axis=1) == m
        if rows.any():
            kept = (each[rows][there[rows]].reshape(-1, m) for each in (estimates, variances))
            centre[rows], half[rows] = combine_predictive(*kept)
    return centre, half
