"""Rules that combine the analyses of several synthetic sets into one. They need the sets only, so they are public."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdips.errors import InputError

type Rule = Literal["sanitized", "partial"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Combined:
    """What several synthetic sets say together, each field of the shape of one set's estimates.

    Attributes
    ----------
    estimate : ndarray of float64
        Mean over the sets.
    variance : ndarray of float64
        ``T``, that of ``estimate`` about the population's value.
    degrees_of_freedom : ndarray of float64
        Of Student's t; infinite where the sets agree.
    interval : tuple of ndarray of float64
        Lower and upper bound.
    between, within : ndarray of float64
        ``B`` and ``W``.
    """

    estimate: FloatArray
    variance: FloatArray
    degrees_of_freedom: FloatArray
    interval: tuple[FloatArray, FloatArray]
    between: FloatArray
    within: FloatArray


def combine(estimates: ArrayLike, variances: ArrayLike, *, rule: Rule = "sanitized", level: float = 0.95) -> Combined:
    """Combine estimates and their variances over synthetic sets.

    Parameters
    ----------
    estimates : array_like, shape (sets,) or (sets, coefficients)
        From each set, analysed as if it were the original.
    variances : array_like, of the same shape
        Squared standard errors from each set.
    rule : {"sanitized", "partial"}
        ``T = B / m + W`` with ``(m - 1) (1 + m W / B)^2`` degrees of freedom, one formula with two sources: for sets
        under differential privacy, and for partial synthesis without it.
    level : float
        Of the interval, between 0 and 1.

    Returns
    -------
    Combined
        NaN where a set's estimate or variance is NaN.

    Raises
    ------
    InputError
        If there are fewer than two sets, shapes differ, a variance is negative, or the rule or level is none.

    Notes
    -----
    Mean (3.5), variance (3.6) and degrees of freedom (3.7) of Bowen and Liu (2020), *Comparative study of
    differentially private data synthesis methods*, Statistical Science 35, section 3.3, after Liu (2016); (3.6) is also
    the rule of Reiter (2003) for partial synthesis. ``B`` is the variance between sets with ``m - 1`` below, ``W`` the
    mean of the variances. The rule takes each set to come from a synthesis of its own: where all sets were drawn from
    one noisy table (``split="once"``), ``B`` doesn't see the noise and the interval is too short.
    """
    q, v = np.asarray(estimates, dtype=np.float64), np.asarray(variances, dtype=np.float64)
    _check(q, v, rule, level)
    m = len(q)
    between, within = q.var(axis=0, ddof=1), v.mean(axis=0)
    total = between / m + within
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = np.where(between == 0, np.inf, (m - 1) * (1 + m * within / between) ** 2)
    degrees = np.where(np.isnan(total), np.nan, degrees)
    half = _t_quantile((1 + level) / 2, degrees) * np.sqrt(total)
    estimate = q.mean(axis=0)
    return Combined(
        estimate=estimate,
        variance=total,
        degrees_of_freedom=degrees,
        interval=(estimate - half, estimate + half),
        between=between,
        within=within,
    )


def _check(q: FloatArray, v: FloatArray, rule: str, level: float) -> None:
    if rule not in get_args(Rule.__value__):
        raise InputError(f"rule must be one of {', '.join(get_args(Rule.__value__))}, not {rule!r}")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, not {level}")
    if q.ndim not in (1, 2) or q.shape != v.shape:
        raise InputError("estimates and variances must have one shape: (sets,) or (sets, coefficients)")
    if len(q) < 2:
        raise InputError(f"rule {rule!r} compares sets with each other and needs at least 2 of them")
    if (v < 0).any():
        raise InputError("variances must not be negative")


def _t_quantile(probability: float, degrees: FloatArray) -> FloatArray:
    """Return quantiles of Student's t, the normal ones for infinite degrees of freedom."""
    from scipy.special import ndtri, stdtrit

    finite = np.where(np.isfinite(degrees), degrees, 1.0)
    quantile = np.where(np.isinf(degrees), ndtri(probability), stdtrit(finite, probability))
    return np.where(np.isnan(degrees), np.nan, quantile)
