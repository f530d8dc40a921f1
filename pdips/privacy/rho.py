"""Zero-concentrated prices of answers that have a pure price: exact, or rounded up.

An answer of epsilon is epsilon tanh(epsilon / 2)-zero-concentrated, and a vector of
small answers far less than the square of their sum says. Proofs:
``docs/proofs/rho.md``. All functions take and return rationals, and no step rounds
down.
"""

import math
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from functools import lru_cache

SPARE_DIGITS = 40  # Of an exponential, beyond those that differences cancel
# Below it, the price of a shift is within a part of 10^12 of its leading term
SMALL = Fraction(1, 10**12)
LARGEST_EXPONENT = 1_000  # Of e; beyond it an urn's draws together are no cheaper
# Of a price; the last one is rounded up
_SHOWN = Context(prec=20, rounding=ROUND_CEILING, Emin=-(10**17), Emax=10**17)


def rounded_up(number: Fraction, context: Context = _SHOWN) -> Fraction:
    """Return the least decimal of as many digits as the context has that isn't below a
    number.
    """
    return Fraction(_quotient(number, context))


def _quotient(number: Fraction, context: Context) -> Decimal:
    return context.divide(Decimal(number.numerator), Decimal(number.denominator))


def _decay(exponent: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Enclose exp(-exponent), ``exponent > 0``, with a relative error below that of
    ``digits`` digits (as ``docs/proofs/noise.md``, lemma 0).
    """
    if exponent > 3 * digits:  # exp(-3 digits) < 10^(-1.3 digits)
        return Fraction(0), Fraction(1, 10**digits)
    context = Context(prec=digits + 10)
    # a minus sign would round to the 28 digits of Python's own context
    negative = _quotient(exponent, context).copy_negate()
    middle = Fraction(context.exp(negative))
    error = middle * (math.ceil(exponent) + 2) / 10 ** (digits + 8)
    return middle - error, middle + error


@lru_cache(maxsize=4096)
def of_shift(rate: Fraction, shift: Fraction) -> Fraction:
    """Return the rho of one number with discrete Laplace noise of a rate (one over its
    scale) that moves by ``shift``, at least 1.

    K_r(m) = r m - r (1 - e^(-r m)) / sinh r, exactly the rho for whole shifts
    (``docs/proofs/rho.md``, lemma 2). Never the price of a unit shift times
    the shift, which is a million times too small for answers in whole steps.

    Examples
    --------
    >>> round(float(of_shift(Fraction(1), Fraction(1))), 6)
    0.462117
    """
    reach = rate * shift
    if reach < SMALL:  # K_r(m) <= m^2 r tanh(r/2) <= (r m)^2 / 2
        return rounded_up(reach**2 / 2)
    lost = 4 * len(str(math.ceil(1 / rate)))  # digits that 1 - e^-r and the like lose
    digits = SPARE_DIGITS + lost
    unit, _ = _decay(rate, digits)
    _, far = _decay(reach, digits)
    # one over sinh r, from below: so the term that is subtracted is too small
    inverse = 2 * unit / (1 - unit**2)
    subtracted = rate * (1 - min(far, Fraction(1))) * inverse
    return rounded_up(reach - subtracted)


def of_pure(epsilon: Fraction) -> Fraction:
    """Return the rho of any answer that is epsilon-private: epsilon tanh(epsilon / 2)
    (``docs/proofs/rho.md``, lemma 1).

    Examples
    --------
    >>> [round(float(of_pure(Fraction(epsilon))), 3) for epsilon in (1, 4, 10)]
    [0.462, 3.856, 9.999]
    """
    return of_shift(epsilon, Fraction(1))


def of_range(length: Fraction) -> Fraction:
    """Return the rho of an answer whose log ratio between neighbours lies in an
    interval of some length: an eighth of its square (Cesar and Rogers, 2021), or what
    any answer of that epsilon costs.
    """
    return min(length**2 / 8, of_pure(length))


def laplace_rho(rate: Fraction, l1: Fraction, l2_squared: Fraction) -> Fraction:
    """Return the rho of whole numbers with discrete Laplace noise of one rate, of which
    a person moves the sum of absolute differences by ``l1`` and the sum of squares by
    ``l2_squared`` at most.

    The worst of all such moves, up to whole numbers: l1^2 / l2^2 numbers move by
    l2^2 / l1 each (``docs/proofs/rho.md``, theorem 1).

    Examples
    --------
    Two counts that move by 1, and one number that moves by 2^20 steps, at epsilon 1:

    >>> round(float(laplace_rho(Fraction(1, 2), Fraction(2), Fraction(2))), 4)
    0.2449
    >>> steps = Fraction(2**20)
    >>> round(float(laplace_rho(1 / steps, steps, steps**2)), 4)
    0.3679
    """
    if not l1 or not l2_squared:
        return Fraction(0)
    bounds = [l2_squared * of_shift(rate, Fraction(1))]
    if l1 >= 1:  # whole numbers that move at all move by 1
        bounds.append(of_shift(rate, l1))
    if l1 <= l2_squared <= l1**2:
        n_moved = l1**2 / l2_squared
        bounds.append(rounded_up(n_moved * of_shift(rate, l2_squared / l1)))
    return min(bounds)


def polya_draw(epsilon: Fraction, n_draws: int) -> Fraction:
    """Return the epsilon of a draw from a Polya urn given the earlier ones, for one
    record, where ``n_draws`` together have ``epsilon``: log(1 + (e^epsilon - 1) / N).

    Examples
    --------
    >>> round(float(polya_draw(Fraction(1), 40)), 5)
    0.04206
    """
    if epsilon > LARGEST_EXPONENT:  # log(1 + x / N) <= log(1 + x)
        return epsilon
    lost = 2 * len(str(math.ceil(n_draws / epsilon)))
    context = Context(prec=SPARE_DIGITS + lost)
    grown = context.subtract(context.exp(_quotient(epsilon, context)), Decimal(1))
    share = context.divide(grown, Decimal(n_draws))
    one_draw = Fraction(context.ln(context.add(Decimal(1), share)))
    # far more than the rounding of all five operations
    slack = Fraction(1, 10 ** (SPARE_DIGITS // 2))
    return rounded_up(one_draw * (1 + slack))
