"""Draws from conjugate posteriors of many data sets at once; post-processing, which knows nothing of privacy."""

import numpy as np

from pdips.arrays import FloatArray


def draw_shares(alpha: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw from Dirichlet laws, one along the last axis.

    Parameters
    ----------
    alpha : ndarray, shape (..., cells)
        Parameters, above 0.
    rng : Generator
        Source of randomness.

    Returns
    -------
    ndarray, the shape of ``alpha``
    """
    gamma = rng.standard_gamma(alpha)
    total = gamma.sum(axis=-1, keepdims=True)
    return np.asarray(gamma / np.where(total > 0, total, 1.0) + np.where(total > 0, 0.0, 1 / alpha.shape[-1]))


def draw_covariances(scale: FloatArray, degrees: float, rng: np.random.Generator) -> FloatArray:
    """Draw from inverse Wishart laws.

    Parameters
    ----------
    scale : ndarray, shape (..., p, p)
        Positive definite scale matrices; the mean is ``scale / (degrees - p - 1)``.
    degrees : float
        Degrees of freedom, above p - 1.
    rng : Generator
        Source of randomness.

    Returns
    -------
    ndarray, the shape of ``scale``

    Notes
    -----
    Bartlett's decomposition: with ``scale`` = L L' and A lower triangular, A_ii^2 chi-square on ``degrees`` - p + 1 + i
    degrees (i from 0) and standard normal below the diagonal, A' A is a Wishart matrix and L (A' A)^-1 L' the draw.
    """
    p = scale.shape[-1]
    factor = np.zeros(scale.shape)
    for i in range(p):
        factor[..., i, i] = np.sqrt(rng.chisquare(degrees - p + 1 + i, scale.shape[:-2]))
        for j in range(i):
            factor[..., i, j] = rng.standard_normal(scale.shape[:-2])
    root = np.linalg.cholesky(scale) @ np.linalg.inv(factor)
    return np.asarray(root @ np.swapaxes(root, -1, -2))


def draw_normal(mean: FloatArray, covariance: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw from normal laws with ``mean``, shape (..., p), and positive definite ``covariance``, shape (..., p, p)."""
    root, noise = np.linalg.cholesky(covariance), rng.standard_normal(mean.shape)
    return np.asarray(mean + (root @ noise[..., None])[..., 0])


def nearest_covariance(matrix: FloatArray, lowest: float, highest: float) -> FloatArray:
    """Move the eigenvalues of symmetric matrices, shape (..., p, p), into ``[lowest, highest]``."""
    values, vectors = np.linalg.eigh(matrix)
    kept = np.clip(values, lowest, highest)
    return np.asarray((vectors * kept[..., None, :]) @ np.swapaxes(vectors, -1, -2))
