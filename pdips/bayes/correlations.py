"""A prior on correlations that compiles quickly."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor import TensorVariable


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
    _, columns = np.tril_indices(d, -1)
    shape = 1 + (d - 2 - columns) / 2
    partial = 2 * pm.Beta(name, shape, shape) - 1
    rows, number = [], 0
    for i in range(d):
        left, row = pt.ones(()), []
        for _ in range(i):
            row.append(partial[number] * pt.sqrt(left))
            left = left * (1 - partial[number] ** 2)
            number += 1
        rows.append(pt.stack([*row, pt.sqrt(left), *[pt.zeros(())] * (d - i - 1)]))
    return pt.stack(rows)
