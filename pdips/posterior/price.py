"""What a censored posterior costs: from a budget to the window of one draw."""

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

from pdips.errors import InputError
from pdips.privacy.loss import Number, exact, positive, zcdp
from pdips.privacy.sensitivity import Sensitivity

DIGITS = 10**12
"""Square roots are rounded down to this part of one."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """How a total is spent."""

    stage: Fraction  # epsilon of the first stage; 0 without one
    draw: Fraction  # bounded range of one draw, in nats: its epsilon
    n_draws: int  # number of parameter draws
    rho: Fraction = Fraction(0)  # the total as zero-concentrated loss; 0 where epsilons are added up

    def window(self, sensitivity: Sensitivity) -> Fraction:
        """Return the half-width w of a draw's window, given that of counts of records: 2 w a record is its price."""
        return self.draw / (2 * sensitivity.l1)


def pure(epsilon: Number, share: Fraction, n_draws: int) -> Price:
    """Split epsilon between a first stage and draws by sequential composition."""
    total = exact(epsilon, "epsilon")
    return Price(stage=total * share, draw=total * (1 - share) / n_draws, n_draws=n_draws)


def concentrated(epsilon: Number, delta: Number, share: Fraction, n_draws: int) -> Price:
    """Split epsilon at delta between a first stage and draws that compose as zero-concentrated losses.

    A draw of bounded range eta is eta^2 / 8-zCDP (Cesar and Rogers, 2021), a first stage of epsilon_0
    epsilon_0^2 / 2-zCDP (Bun and Steinke, 2016, proposition 1.4); ``docs/proofs/censored-posterior.md``, theorem 3.
    """
    rho = largest_rho(exact(epsilon, "epsilon"), exact(delta, "delta"))
    stage = root(2 * rho * share)
    draw = root(8 * (rho - stage**2 / 2) / n_draws)
    if not draw or (share and not stage):
        raise InputError("the share leaves too little for the private reference or for the draws; move it towards 1/2")
    return Price(stage=stage, draw=draw, n_draws=n_draws, rho=stage**2 / 2 + n_draws * draw**2 / 8)


def largest_rho(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the largest rho, to ten digits, whose reading at delta is at most epsilon."""

    def fits(rho: Fraction) -> bool:
        return zcdp(rho, delta, "replace-one", "").epsilon <= epsilon

    low, high = Fraction(0), epsilon
    for _ in range(60):
        middle = ((low + high) / 2).limit_denominator(DIGITS * 10**6)
        if not low < middle < high:
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    if not low:
        raise InputError("epsilon is too small for kind 'zcdp' at this delta; take a larger one, or kind 'pure'")
    return low


def root(square: Fraction) -> Fraction:
    """Return the square root, rounded down."""
    return Fraction(isqrt(square.numerator * DIGITS**2 // square.denominator), DIGITS)


def check_share(share: Number) -> Fraction:
    """Return the first stage's share of the budget, above 0 and below 1."""
    found = positive(share, "share")
    if found >= 1:
        raise InputError(f"share must be below 1, for it leaves nothing for the draws; got {share}")
    return found
