"""What a price means for one person, in numbers that anybody can read."""

import math

import numpy as np

ORDERS = 1 + np.geomspace(1e-3, 1e4, 200)
"""Of the Rényi divergences that bound a test of a zero-concentrated release."""
HALVINGS = 50


def odds_factor(epsilon: float) -> float:
    """Return e^epsilon, by which an attacker's odds change at most; infinity where it doesn't fit a double."""
    return math.exp(epsilon) if epsilon < 709 else math.inf


def belief_bound(epsilon: float, before: float) -> float:
    """Return the largest belief after the release, of an attacker who held ``before``, for delta = 0.

    Parameters
    ----------
    epsilon : float
        Privacy loss, in nats.
    before : float
        Probability that the attacker gave to a secret of the person, above 0 and below 1.
    """
    return before / (before + (1 - before) * math.exp(-epsilon))


def detection_bound(epsilon: float, delta: float, false_positives: float) -> float:
    """Return the largest power of any test of one neighbouring table against another.

    Parameters
    ----------
    epsilon, delta : float
        Privacy loss.
    false_positives : float
        Level of the test.

    Notes
    -----
    Power is at most min(e^epsilon alpha + delta, 1 - e^-epsilon (1 - delta - alpha)), and at most 1: both halves of
    the definition, for the event "the test rejects" and for its complement (Kairouz, Oh and Viswanath 2015, theorem
    2.1).
    """
    direct = odds_factor(epsilon) * false_positives + delta if false_positives else delta
    complement = 1 - math.exp(-epsilon) * (1 - delta - false_positives)
    return min(1.0, direct, complement)


def detection_bound_zcdp(rho: float, false_positives: float) -> float:
    """Return the largest power of any test of one neighbouring table against another, of a rho-zCDP release.

    Parameters
    ----------
    rho : float
        Zero-concentrated loss.
    false_positives : float
        Level of the test.

    Notes
    -----
    The Rényi divergence of order a of two neighbours' releases is at most rho a, either way round, for every a > 1 (Bun
    and Steinke 2016, definition 1.1). What a test says is worked out from the release, so the same holds of its two
    coins, of which one shows "reject" with the power and the other with the level (data processing: van Erven and
    Harremoës 2014). The divergences of the coins rise with the power, so it is halved in on, and the upper end is
    returned. Each order gives a bound, so a grid of them is enough.
    """
    if not 0 < false_positives < 1:
        return false_positives
    low, high = false_positives, 1.0
    for _ in range(HALVINGS):
        power = (low + high) / 2
        low, high = (power, high) if _coins_allowed(power, false_positives, rho) else (low, power)
    return high


def _coins_allowed(power: float, level: float, rho: float) -> bool:
    """Whether two coins are as near as a rho-zCDP release has it, at all orders and either way round."""
    rejecting, keeping = math.log(power / level), math.log((1 - power) / (1 - level))
    most = (ORDERS - 1) * ORDERS * rho
    there = np.logaddexp(math.log(level) + ORDERS * rejecting, math.log(1 - level) + ORDERS * keeping)
    back = np.logaddexp(math.log(power) - ORDERS * rejecting, math.log1p(-power) - ORDERS * keeping)
    return bool((there <= most).all() and (back <= most).all())


def power_bound(
    epsilon: float, delta: float, false_positives: float, *, rho: float = 0.0, replacing: bool = False
) -> float:
    """Return the largest power of a test: by rho where it is known, else by epsilon and delta.

    Parameters
    ----------
    epsilon, delta : float
        Privacy loss.
    false_positives : float
        Level of the test.
    rho : float
        Zero-concentrated loss, 0 for other kinds.
    replacing : bool
        The loss is one of adding or removing, and the test tells two versions of a person's records apart: taking one
        out and adding one. Epsilon doubles, delta becomes (1 + e^epsilon) delta, rho is taken four times.
    """
    if replacing:
        epsilon, delta, rho = 2 * epsilon, min(1.0, (1 + odds_factor(epsilon)) * delta) if delta else 0.0, 4 * rho
    known = detection_bound(epsilon, delta, false_positives)
    return min(known, detection_bound_zcdp(rho, false_positives)) if rho else known


def round_up(value: float, digits: int = 3) -> float:
    """Round an upper bound to ``digits`` significant digits without making it smaller."""
    if not value or not math.isfinite(value):
        return value
    nearest = float(f"{value:.{digits - 1}e}")
    step = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return nearest if nearest >= value * (1 - 1e-12) else float(f"{nearest + step:.{digits - 1}e}")
