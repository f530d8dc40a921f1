"""PrivateSVM of Rubinstein, Bartlett, Huang and Taft, linear kernel: sound, and as
Bowen and Liu (2020) have it.

The theorem (arXiv:0911.5708; Journal of Privacy and Confidentiality 4, 2012). Let w
minimise ``0.5 |w|^2 + C / n sum_i loss(y_i, <w, phi(x_i)>)`` with a convex loss that is
L-Lipschitz (the hinge: L = 1), a feature map into F dimensions and ``k(x, x) =
|phi(x)|^2 <= kappa^2``. Two tables of n records that differ in one have weights at most
``4 L C kappa / n`` apart in l2, so ``4 L C kappa sqrt(F) / n`` in l1; Laplace noise of
that over epsilon on each weight is epsilon-private (replace-one, n public). In it

- the cost of one record is C / n, where ``svm`` of e1071 and ``SVC`` of scikit-learn
  charge C;
- kappa bounds the norm of a record's features, not its square, the kernel;
- all of w is regularised: a free intercept isn't covered, and how far a record can move
  it has no such bound;
- w is the exact minimiser, the noise a real number.

Half is enough: the objective is 1-strongly convex, and replacing a record changes its
subgradients by at most 2 L C kappa / n, so w moves by at most that; attained by a
record beside others that say nothing. :func:`sound` uses it, with a column of ones in
place of the intercept, a minimiser certified by its duality gap, weights on a grid, and
exact discrete Laplace noise.
"""

import math
from fractions import Fraction

import numpy as np
from numba import njit

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.privacy.loss import Number, exact, positive
from pdips.privacy.noise import RandomBits, discrete_laplace, quantise

GRID = Fraction(1, 2**20)
"""Weights are released in whole steps of it."""

GAP = 1e-9
CERTIFIED = Fraction(2, 10**9)
"""The duality gap asked for, and the one paid for: rounding in sums of n terms is far
below the rest.
"""


def theorem_sensitivity(cost: float, n: int, kappa: float, n_features: int) -> float:
    """Return 4 L C kappa sqrt(F) / n with L = 1, as the theorem and Bowen and Liu
    (2020) print it.
    """
    return 4 * cost * kappa * math.sqrt(n_features) / n


PAPER_SENSITIVITY = theorem_sensitivity(1, 80, 9, 9)
"""1.35, as Bowen and Liu (2020) have it: kappa = 9 where the theorem has 3, n = 80."""


def minimiser(x: FloatArray, y: FloatArray, cost: float) -> FloatArray:
    """Return the weights of a linear support vector machine without intercept."""
    weights = _fit(
        np.ascontiguousarray(x, dtype=np.float64),
        np.asarray(y, dtype=np.float64),
        float(cost),
        GAP,
    )
    return np.asarray(weights, dtype=np.float64)


def steps_sensitivity(cost: Fraction, n_features: int) -> int:
    """Return the l1-sensitivity of the weights in steps of ``GRID``, for features in
    [-1, 1]; a whole number.

    2 cost kappa in l2 with kappa = sqrt(F), and twice the distance from the exact
    minimiser; sqrt(F) times that in l1; and up to one step a weight from rounding.
    """
    root = Fraction(math.isqrt(n_features * 10**12) + 1, 10**6)
    off = Fraction(math.isqrt(int(2 * CERTIFIED * 10**24)) + 1, 10**12)
    return math.ceil((2 * cost * n_features + 2 * root * off) / GRID) + n_features


def sound(
    x: FloatArray, y: FloatArray, cost: Number, epsilon: Number, bits: RandomBits
) -> FloatArray:
    """Release the weights of a support vector machine, epsilon-private when one record
    is replaced.

    Neighbours: replace-one, n public. Sensitivity: :func:`steps_sensitivity`, from the
    module's notes. Guarantee: pure, by exact discrete Laplace noise on whole steps. Not
    covered: that the time a fit takes depends on the records.
    """
    if not (np.abs(x) <= 1).all():
        raise InputError("features must lie within [-1, 1], by public bounds")
    if not np.isin(y, (-1, 1)).all():
        raise InputError("labels must be -1 or 1")
    price = positive(epsilon, "epsilon")
    share = positive(cost, "cost")
    augmented = np.column_stack([x, np.ones(len(x))])
    steps = quantise(minimiser(augmented, y, float(share)), GRID)
    scale = steps_sensitivity(share, augmented.shape[1]) / price
    return np.asarray(
        (steps + discrete_laplace(scale, len(steps), bits)) * float(GRID),
        dtype=np.float64,
    )


def printed(
    x: FloatArray, y: FloatArray, epsilon: Number, bits: RandomBits
) -> FloatArray:
    """Release weights as Bowen and Liu (2020) do. No guarantee: see the module's
    notes.
    """
    from sklearn.svm import SVC

    scale = (
        Fraction(PAPER_SENSITIVITY).limit_denominator(1000)
        / GRID
        / exact(epsilon, "epsilon")
    )
    noise = discrete_laplace(scale, x.shape[1], bits) * float(GRID)
    if len(np.unique(y)) < 2:
        return np.append(noise, y[0])
    found = SVC(kernel="linear", C=1.0).fit(x, y)
    return np.append(found.coef_[0] + noise, found.intercept_)


def predict(weights: FloatArray, x: FloatArray) -> FloatArray:
    """Return the labels, -1 or 1, that weights with an intercept give to records."""
    return np.where(x @ weights[:-1] + weights[-1] > 0, 1.0, -1.0)


# compiled


@njit(cache=True, nogil=True)
def _fit(x: FloatArray, y: FloatArray, cost: float, gap: float) -> FloatArray:
    """Return the minimiser of 0.5 |w|^2 + cost sum_i max(0, 1 - y_i x_i w), to within a
    duality gap.

    The dual is a quadratic over a box, on which coordinate ascent converges (Hsieh et
    al., 2008): there is no cap.
    """
    dual = np.zeros(len(x))
    weights = np.zeros(x.shape[1])
    norms = (x * x).sum(axis=1)
    while True:
        for _ in range(20):
            for i in range(len(x)):
                new = cost
                if norms[i] > 0.0:
                    slack = 1.0 - y[i] * (x[i] @ weights)
                    new = min(max(dual[i] + slack / norms[i], 0.0), cost)
                weights += (new - dual[i]) * y[i] * x[i]
                dual[i] = new
        weights = (dual * y) @ x
        loss = (cost * np.maximum(0.0, 1.0 - y * (x @ weights)) - dual).sum()
        if loss + weights @ weights <= gap:
            return weights
