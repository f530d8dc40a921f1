"""Log densities of exact statistics given a model's parameters, and of noise, up to constants."""

from typing import Any

import numpy as np
import pytensor.tensor as pt

from pdips.statistics.centring import log_norm


def multinomial(counts: Any, p: Any) -> Any:
    """Return that of counts, shape (cells,), with probabilities ``p``."""
    return pt.sum(counts * pt.log(p) - pt.gammaln(counts + 1)) + pt.gammaln(counts.sum() + 1)


def dirichlet_multinomial(counts: Any, alpha: float, cells: int) -> Any:
    """Return that of counts, shape (cells,), whose probabilities have a symmetric Dirichlet law, integrated out."""
    total = counts.sum()
    law = pt.sum(pt.gammaln(counts + alpha) - pt.gammaln(counts + 1))
    return law + pt.gammaln(total + 1) - pt.gammaln(total + cells * alpha)


def symmetric(lower: Any, d: int) -> Any:
    """Return the symmetric matrix of a lower triangle, row by row: shape (d, d) of shape (d (d + 1) / 2,)."""
    rows, columns = np.tril_indices(d)
    whole = pt.set_subtensor(pt.zeros((d, d))[rows, columns], lower)
    return pt.set_subtensor(whole[columns, rows], lower)


def wishart(scatter: Any, df: Any, chol: Any, d: int) -> Any:
    """Return that of a scatter matrix, shape (d, d), with lower Cholesky factor ``chol`` of its scale matrix."""
    inside = pt.linalg.solve_triangular(chol, scatter, lower=True)
    trace = pt.trace(pt.linalg.solve_triangular(chol, inside.T, lower=True))
    _, log_det = pt.linalg.slogdet(scatter)
    return (df - d - 1) / 2 * log_det - trace / 2 - df * pt.log(pt.diag(chol)).sum() - log_norm(df, d)


def noise(noise: Any, scale: Any, law: str) -> Any:
    """Return that of each noise, of arrays or TensorVariables; ``scale`` is the deviation where ``law`` is normal."""
    return -abs(noise) / scale if law == "laplace" else -((noise / scale) ** 2) / 2
