"""Compiled parts of simulation study 2: moments of synthetic sets that are never held."""

import numba
import numpy as np

from pdips.arrays import FloatArray


@numba.njit(cache=True, error_model="numpy")
def moments_of_sets(
    mean: FloatArray, sd: FloatArray, lower: float, upper: float, n: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Draw normal sets, move what is out of bounds to them, and return what an analyst needs of each.

    Parameters
    ----------
    mean, sd : ndarray, shape (replicates, sets)
        Of the normal law of each set.
    lower, upper : float
        Bounds.
    n : int
        Records of a set.
    rng : numpy.random.Generator
        Randomness.

    Returns
    -------
    tuple of ndarray, shape (replicates, sets)
        Mean, second and fourth moment about it (divisor n).
    """
    first, second, fourth = np.empty(mean.shape), np.empty(mean.shape), np.empty(mean.shape)
    for i in range(mean.shape[0]):
        for j in range(mean.shape[1]):
            middle = min(max(mean[i, j], lower), upper)  # sums are taken about it, for the sake of rounding
            one, two, three, four = 0.0, 0.0, 0.0, 0.0
            for _ in range(n):
                x = mean[i, j] + sd[i, j] * rng.standard_normal()
                d = min(max(x, lower), upper) - middle
                d2 = d * d
                one += d
                two += d2
                three += d2 * d
                four += d2 * d2
            a, b, c, e = one / n, two / n, three / n, four / n
            first[i, j] = middle + a
            second[i, j] = max(b - a * a, 0.0)
            fourth[i, j] = max(e - 4 * a * c + 6 * a * a * b - 3 * a**4, 0.0)
    return first, second, fourth
