"""Tests of several coefficients at once: one F test a rule."""

import math
from dataclasses import dataclass

import numpy as np

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.inference.laws import inverse_chi2
from pdips.inference.rules import raab_factor


@dataclass(frozen=True, kw_only=True)
class Wald:
    """A test that several coefficients have the values of a null hypothesis.

    Attributes
    ----------
    statistic : float
        Of F's scale: a quadratic form over its number of coefficients.
    degrees_of_freedom : tuple of float
        Of F: above, below. Below NaN for ``"posterior-predictive"``, whose law is a mixture of chi-squares.
    p_value : float
    """

    statistic: float
    degrees_of_freedom: tuple[float, float]
    p_value: float


def f_test(rule: str, off: FloatArray, between: FloatArray, within: FloatArray, m: int, ratio: float) -> Wald:
    """Test that a vector of differences from the null is zero.

    Parameters
    ----------
    rule : str
        One of ``RULES``.
    off : ndarray of float64, shape (k,)
        Estimates minus the values of the null.
    between, within : ndarray of float64, shape (k, k)
        ``B`` and ``W``.
    m : int
        Number of sets.
    ratio : float
        Records of a set over records of the original.
    """
    from scipy.special import chdtrc, fdtrc

    k = len(off)
    try:
        form = float(off @ np.linalg.solve(within, off)) / k
        trace = float(np.trace(np.linalg.solve(within, between))) / k
    except np.linalg.LinAlgError:
        raise InputError("the mean covariance of these coefficients is singular: test fewer of them") from None
    if rule == "raab-nowok-dibben":
        statistic = form / raab_factor(m, ratio)
        return Wald(statistic=statistic, degrees_of_freedom=(k, math.inf), p_value=float(chdtrc(k, k * statistic)))
    if rule == "posterior-predictive":
        return _mixture(form, trace, k, m)
    sign, r = -1 if rule == "fully-synthetic" else 1, trace / m
    if rule in ("rubin", "fully-synthetic"):
        r = (1 + 1 / m) * trace
    if sign < 0 and r <= 1:
        raise InputError(f"rule {rule!r} finds no variance to test with here; 'posterior-predictive' always does")
    statistic = form / (r - 1 if sign < 0 else r + 1)
    below = _below(k * (m - 1), k, r, sign)
    p = chdtrc(k, k * statistic) if math.isinf(below) else fdtrc(k, below, statistic)
    return Wald(statistic=statistic, degrees_of_freedom=(k, below), p_value=float(p))


def _below(t: int, k: int, r: float, sign: int) -> float:
    """Return the degrees of freedom below, those of Li, Raghunathan and Rubin (1991) for few sets where t <= 4."""
    if r == 0:
        return math.inf
    if t > 4:
        return 4 + (t - 4) * (1 + sign * (1 - 2 / t) / r) ** 2
    return t * (1 + 1 / k) * (1 + sign / r) ** 2 / 2


def _mixture(form: float, trace: float, k: int, m: int) -> Wald:
    """Average chi-square tails over the share of B + W in W, taken as one number for all k coefficients."""
    from scipy.special import chdtrc

    degrees = k * (m - 1)
    nodes, weights = inverse_chi2(np.array(degrees * trace), degrees, np.array(1.0))
    factors = (1 + 1 / m) * (nodes - 1) + 1 / m
    p = float(weights @ chdtrc(k, k * form / factors))
    middle = float(np.interp(0.5, np.cumsum(weights[::-1]), factors[::-1]))
    return Wald(statistic=form / middle, degrees_of_freedom=(k, math.nan), p_value=p)
