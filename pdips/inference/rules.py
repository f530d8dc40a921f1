"""The combining rules: what each takes the sets to be, its variance, its degrees of freedom, its law."""

from typing import Literal, get_args

import numpy as np

from pdips.arrays import FloatArray
from pdips.errors import InputError
from pdips.inference.laws import AT_ZERO, Law, Mixture, Student, inverse_chi2

type Rule = Literal["sanitized", "partial", "posterior-predictive", "fully-synthetic", "raab-nowok-dibben", "rubin"]

RULES: tuple[str, ...] = get_args(Rule.__value__)
ONE_STANDARD_DEVIATION = 0.682689492137086  # of a normal law


def check_rule(rule: str, n_sets: int) -> None:
    """Refuse a rule that there isn't, and one that needs more sets."""
    if rule not in RULES:
        raise InputError(f"rule must be one of {', '.join(RULES)}, not {rule!r}")
    if n_sets < 1:
        raise InputError("combining needs at least one set")
    if n_sets < 2 and rule != "raab-nowok-dibben":
        raise InputError(
            f"rule {rule!r} compares sets with each other and needs at least 2 of them; with one set only "
            "'raab-nowok-dibben' gives an interval, and it knows of no privacy noise: ask for more sets"
        )


def law_of(rule: str, between: FloatArray, within: FloatArray, m: int, ratio: float) -> Law:
    """Return the law of estimand minus estimate.

    Parameters
    ----------
    rule : str
        One of ``RULES``.
    between, within : ndarray of float64
        ``B`` and ``W``, of one shape.
    m : int
        Number of sets.
    ratio : float
        Records of a set over records of the original.
    """
    if rule == "posterior-predictive":
        return predictive_law(between, within, m)
    if rule == "raab-nowok-dibben":
        variance = within * raab_factor(m, ratio)
        return Student(variance, np.where(np.isnan(variance), np.nan, np.inf))
    if rule == "fully-synthetic":
        return _fully_synthetic(between, within, m, ratio)
    if rule == "rubin":
        extra = (1 + 1 / m) * between
        return Student(within + extra, _degrees(within, extra, m, 1))
    return Student(within + between / m, _degrees(within, between / m, m, 1))


def raab_factor(m: int, ratio: float) -> float:
    """Return what multiplies W: sampling of the original, a draw of the parameters and of the records a set."""
    return ratio + (1 + ratio) / m


def predictive_law(between: FloatArray, within: FloatArray, m: int, *, at_zero: float = AT_ZERO) -> Mixture:
    """Return the mixture of normals of the rule for posterior predictive sets."""
    total, weights = inverse_chi2((m - 1) * between, m - 1, within, at_floor=at_zero)
    variance = (1 + 1 / m) * (total - within[..., None]) + within[..., None] / m
    return Mixture(np.sqrt(variance), weights)


def _degrees(within: FloatArray, extra: FloatArray, m: int, sign: int) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = np.where(extra == 0, np.inf, (m - 1) * (1 + sign * within / extra) ** 2)
    return np.where(np.isnan(within + extra), np.nan, degrees)


def _fully_synthetic(between: FloatArray, within: FloatArray, m: int, ratio: float) -> Student:
    extra = (1 + 1 / m) * between
    positive = extra > within
    variance = np.where(positive, extra - within, ratio * within)
    degrees = np.where(positive, _degrees(within, extra, m, -1), np.inf)
    missing = np.isnan(within + extra)
    return Student(np.where(missing, np.nan, variance), np.where(missing, np.nan, degrees))


def variance_of(law: Law) -> FloatArray:
    """Return the variance to report: that of t's scale, or of the normal that agrees on the interval of 68.3 %."""
    return law.variance if isinstance(law, Student) else law.half_width(ONE_STANDARD_DEVIATION) ** 2


def degrees_of(law: Law, shape: tuple[int, ...]) -> FloatArray:
    """Return degrees of freedom, NaN for a mixture."""
    return law.degrees if isinstance(law, Student) else np.full(shape, np.nan)
