"""The two sums of joint quantiles, compiled: the same operations in the same order as in numpy, without its copies.

Imported only when a grid is long enough for it, since compiling takes a second or two the first time.
"""

import numpy as np
from numba import njit

from pdips.arrays import FloatArray, IntArray
from pdips.quantile.extended_float import LOWEST

SHIFTS = np.ldexp(1.0, -np.arange(1075))
"""Powers of two by which the smaller term of a sum is moved; further apart, it adds nothing."""


@njit(cache=True, error_model="numpy")
def _times(a: float, a_exponent: int, b: float, b_exponent: int) -> tuple[float, int]:
    product, exponent = a * b, a_exponent + b_exponent
    if product == 0.0:
        return 0.0, LOWEST
    if product < 0.5:
        return product + product, exponent - 1
    return product, exponent


@njit(cache=True, error_model="numpy")
def _plus(a: float, a_exponent: int, b: float, b_exponent: int, shifts: FloatArray) -> tuple[float, int]:
    if a_exponent < b_exponent:
        a, a_exponent, b, b_exponent = b, b_exponent, a, a_exponent
    apart = a_exponent - b_exponent
    total = a + b * shifts[apart] if apart < len(shifts) else a
    if total >= 1.0:
        return total / 2, a_exponent + 1
    return total, a_exponent


@njit(cache=True, error_model="numpy")
def prefixes(mantissa: FloatArray, exponent: IntArray, decay: FloatArray, fall: IntArray, shifts: FloatArray) -> None:
    """Replace numbers by their decayed prefix sums; row k of the decays is exp(-unit (N_g - N_(g - 2^k)))."""
    size, k = len(mantissa), 0
    while 2**k < size:
        for g in range(size - 1, 2**k - 1, -1):
            before = g - 2**k
            m, e = _times(mantissa[before], exponent[before], decay[k, g], fall[k, g])
            mantissa[g], exponent[g] = _plus(mantissa[g], exponent[g], m, e, shifts)
        k += 1


@njit(cache=True, error_model="numpy")
def windows(
    mantissa: FloatArray,
    exponent: IntArray,
    decay: FloatArray,
    fall: IntArray,
    lengths: IntArray,
    total: FloatArray,
    total_exponent: IntArray,
    shifts: FloatArray,
) -> None:
    """Add up the last ``lengths[g]`` numbers until g in ``total``, decayed to the first of them; overwrites numbers."""
    size = len(mantissa)
    left = np.arange(1, size + 1)
    for k in range(len(decay)):
        for g in range(size):
            if (lengths[g] >> k) & 1 == 1:
                start, end = left[g] - 2**k, min(left[g], size - 1)
                m, e = _times(total[g], total_exponent[g], decay[k, end], fall[k, end])
                total[g], total_exponent[g] = _plus(mantissa[start], exponent[start], m, e, shifts)
                left[g] = start
        for g in range(size - 2**k):
            end = g + 2**k
            m, e = _times(mantissa[end], exponent[end], decay[k, end], fall[k, end])
            mantissa[g], exponent[g] = _plus(mantissa[g], exponent[g], m, e, shifts)
