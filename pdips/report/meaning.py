"""What a price means for one person, in numbers that anybody can read."""

import math


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
    A rho-zCDP release is (rho + 2 sqrt(rho log(1 / delta)), delta)-DP for every delta in (0, 1) (Bun and Steinke 2016,
    proposition 1.3), so the bound of :func:`detection_bound` holds at each of them, and so does the least over a grid.
    """
    deltas = (10 ** (-place / 8) for place in range(1, 8 * 16))
    return min(detection_bound(rho + 2 * math.sqrt(rho * -math.log(delta)), delta, false_positives) for delta in deltas)


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
