"""A prior on correlations that compiles quickly."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor import TensorVariable

from pdips.arrays import FloatArray


def correlation_factor(name: str, d: int) -> TensorVariable:
    """Return the lower Cholesky factor of a random correlation matrix, all of which are as likely.

    Parameters
    ----------
    name : str
        Of the free variable: the partial correlations of the vine, (1 + r) / 2, shape (d (d - 1) / 2,).
    d : int
        Number of rows; with one there is nothing free.

    Returns
    -------
    TensorVariable, shape (d, d)

    Notes
    -----
    LKJ with eta = 1 by partial correlations: Lewandowski, Kurowicka and Joe, Generating random correlation matrices
    based on vines and extended onion method, Journal of Multivariate Analysis 100 (2009). The same law as
    ``pymc.LKJCorr``, which takes 20 s to compile for its gradient.
    """
    if d == 1:
        return pt.ones((1, 1))
    shape = evenly(d)
    return factor_of(pm.Beta(name, shape, shape), d)


def evenly(d: int) -> FloatArray:
    """Return both parameters of the beta law of each partial correlation, shape (d (d - 1) / 2,)."""
    _, columns = np.tril_indices(d, -1)
    return np.asarray(1 + (d - 2 - columns) / 2)


def factor_of(shares: TensorVariable, d: int) -> TensorVariable:
    """Return the factor of partial correlations r given as (1 + r) / 2, shape (d (d - 1) / 2,)."""
    partial = 2 * shares - 1
    rows, number = [], 0
    for i in range(d):
        left, row = pt.ones(()), []
        for _ in range(i):
            row.append(partial[number] * pt.sqrt(left))
            left = left * (1 - partial[number] ** 2)
            number += 1
        rows.append(pt.stack([*row, pt.sqrt(left), *[pt.zeros(())] * (d - i - 1)]))
    return pt.stack(rows)


def shares_of(factor: FloatArray) -> FloatArray:
    """Return what :func:`factor_of` takes, shape (..., d (d - 1) / 2), of lower factors of correlation matrices."""
    found = []
    for i in range(factor.shape[-1]):
        left = np.ones(factor.shape[:-2])
        for j in range(i):
            found.append((1 + np.clip(factor[..., i, j] / np.sqrt(left), -1, 1)) / 2)
            left = np.maximum(left - factor[..., i, j] ** 2, 1e-300)
    return np.stack(found, axis=-1)
