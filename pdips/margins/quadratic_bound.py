"""An upper bound of a quadratic over corners of a cube: searched for in floating point,
and proved in whole numbers (``docs/proofs/margins.md``, theorem 2).
"""

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, eigh
from scipy.optimize import minimize

from pdips.arrays import FloatArray
from pdips.errors import InputError

DENOMINATOR = 2**20
"""Numbers of the certificate are whole parts of it."""

Exact = NDArray[np.object_]


@lru_cache(maxsize=16)
def quadratic_bound(linear: tuple[int, ...], entries: bytes) -> Fraction:
    """Return an upper bound of the maximum over D in {0, 1}^d of linear'D - D'QD / 2,
    proved in whole numbers.

    ``entries`` are those of Q, as int64.

    For any u with P = Q + diag(u) positive semidefinite and any x the maximum is at
    most x'Px / 2 + sum_i max(0, linear_i + u_i / 2 - (Px)_i). Numerics choose u and x;
    the inequality is evaluated exactly.
    """
    size = len(linear)
    curved = np.frombuffer(entries, dtype=np.int64).reshape(size, size)
    diagonal, raised = _raised(curved)
    slope = [value + Fraction(u, 2) for value, u in zip(linear, diagonal, strict=True)]
    x = _near_maximum(np.array(slope, dtype=float), raised.astype(float))
    bound = Fraction(0)
    for i in range(size):
        product = sum(raised[i] * x)
        bound += x[i] * product / 2
        bound += max(Fraction(0), slope[i] - product)
    return bound


def _raised(curved: NDArray[np.int64]) -> tuple[list[int], Exact]:
    """Return u, and Q + diag(u), which is proved to be positive semidefinite."""
    q = curved.astype(float)
    # u is larger where the last eigenvector is: so its sum is nearly the least
    direction = np.abs(eigh(q)[1][:, -1]) + 1e-3 / math.sqrt(len(q))
    scaled = q / np.outer(direction, direction)
    lowest = float(eigh(scaled, eigvals_only=True)[0])
    least = max(-lowest, 0.0) * direction**2
    for slack in 10.0 ** np.arange(-9, 3):
        room = slack * (least + q.max(initial=1.0))
        diagonal = [math.ceil(value) for value in least + room]
        raised = curved.astype(object) + np.diag(np.array(diagonal, dtype=object))
        if _is_positive(raised, room / 2):
            return diagonal, raised
    raise InputError("the price of these columns can't be bounded; leave some out")


def _near_maximum(slope: FloatArray, curved: FloatArray) -> Exact:
    """Return near which point of the cube slope'x - x'Px / 2 is largest."""
    scale = max(float(np.abs(curved).max()), 1.0)

    def value(x: FloatArray) -> tuple[float, FloatArray]:
        height = x @ curved @ x / 2 - slope @ x
        return float(height / scale), (curved @ x - slope) / scale

    found = minimize(
        value,
        np.full(len(slope), 0.5),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, 1)] * len(slope),
    )
    rounded = [Fraction(round(x * DENOMINATOR), DENOMINATOR) for x in found.x]
    return np.array(rounded, dtype=object)


def _is_positive(matrix: Exact, room: FloatArray) -> bool:
    """Prove that a symmetric matrix of whole numbers is positive semidefinite; False if
    this proof fails.

    With L near a Cholesky factor of matrix - diag(room), matrix - L L' is diagonally
    dominant, checked exactly.
    """
    try:
        factor = cholesky(matrix.astype(float) - np.diag(room), lower=True)
    except np.linalg.LinAlgError:
        return False
    rows = [[round(x * DENOMINATOR) for x in row] for row in factor.tolist()]
    rounded = np.array(rows, dtype=object)
    rest = matrix * DENOMINATOR**2 - rounded @ rounded.T
    # each row's absolute sum has the diagonal entry too
    sums = np.abs(rest).sum(axis=1)
    return bool(np.all(2 * np.diagonal(rest) >= sums))
