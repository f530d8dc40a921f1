"""Privacy losses: what one is, what it adds to others, and how a total is itemised.

All numbers are exact rationals (:class:`fractions.Fraction`), so that "does this
overspend" has one answer.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from typing import Literal, get_args

from pdips.errors import InputError, hint
from pdips.html import small_table
from pdips.privacy.rho import of_pure, rounded_up

Neighbours = Literal["replace-one", "add-remove"]
Kind = Literal["pure", "approximate", "zcdp", "asymptotic", "none"]
Sampling = Literal["exact", "mcmc"]
Number = int | float | str | Fraction

# Largest power of ten in a number that is written with an exponent
LARGEST_EXPONENT = 300
LONGEST_SHOWN = 60  # Characters of a setting that a message repeats
# What doubles stop at in the choice of a divergence's order; each gives a valid epsilon
TINY = Fraction(1, 10**60)
MOST_TAU = Fraction(1, 10**20)
"""Largest probability with which the noise of a zero-concentrated loss may not be of
the law that rho is about.
"""

DIGITS = 10**12  # Of square roots, rounded down
FINITE_KINDS: tuple[Kind, ...] = ("pure", "approximate", "zcdp")
CONCENTRATED_KINDS: tuple[Kind, ...] = ("pure", "zcdp")
READ_AT = Fraction(1, 10**6)  # Delta at which the rho of a pure loss is read
# Part by which what rho gives may stay below an epsilon that was asked for by rounding
CLAIM_ROUNDING = Fraction(1, 10**6)
# Digits of a rho and of its reading in a statement, the last one rounded up
PRICE_DIGITS = Context(prec=4, rounding=ROUND_CEILING)
READING_DIGITS = Context(prec=2, rounding=ROUND_CEILING)


def abridged(value: object) -> str:
    """Return a setting for a message, cut where it is long."""
    try:
        text = repr(value) if isinstance(value, str) else str(value)
    except ValueError:  # Python spells no number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def exact(value: Number, name: str) -> Fraction:
    """Return ``value`` as the rational that its spelling names: 0.1 is one tenth, not
    the double nearest to it.
    """
    if isinstance(value, Fraction):
        return value  # prices have long denominators
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            number = Decimal(value)
        else:
            text = str(value).strip()
            if "/" in text:
                return Fraction(text)
            number = Decimal(text)
    except (ValueError, ZeroDivisionError, InvalidOperation):
        has_comma = re.fullmatch(r"\s*\d+,\d+\s*", str(value)) is not None
        way_out = ": write a point for the comma" if has_comma else ""
        raise InputError(
            f"{name} must be a finite number, got {abridged(value)}{way_out}"
        ) from None
    if not number.is_finite() or abs(number.adjusted()) > LARGEST_EXPONENT:
        raise InputError(
            f"{name} must be a finite number of ordinary size, got {abridged(value)}"
        )
    return Fraction(number)


def spell(number: Fraction) -> str:
    """Write a price as a decimal, exactly where it has a short one and otherwise
    rounded up, never down.
    """
    n_digits = next((n for n in range(15) if (number * 10**n).denominator == 1), 15)
    last_digits = Decimal(math.ceil(number * 10**n_digits))
    text = f"{last_digits.scaleb(-n_digits):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def as_float(number: Fraction) -> float:
    """Return the nearest double that isn't below a price."""
    nearest = float(number)
    return nearest if Fraction(nearest) >= number else math.nextafter(nearest, math.inf)


def positive(value: Number, name: str) -> Fraction:
    """Return ``value`` as a rational above zero."""
    number = exact(value, name)
    if number <= 0:
        raise InputError(f"{name} must be above 0, got {float(number):g}")
    return number


def proper_share(value: Number, name: str) -> Fraction:
    """Return ``value`` as a rational above 0 and below 1."""
    number = exact(value, name)
    if not 0 < number < 1:
        raise InputError(f"{name} must be above 0 and below 1, got {float(number):g}")
    return number


def check_whole(
    value: object, name: str, least: int = 1, most: int | None = 1_000_000
) -> None:
    """Refuse what is no whole number from ``least`` to ``most``; with None, any larger
    one will do.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        largest = value if most is None else most
        if least <= value <= largest:
            return
    allowed = f"of at least {least}"
    if most is not None:
        allowed = f"from {least} to {most:,}"
    raise InputError(f"{name} must be a whole number {allowed}, got {abridged(value)}")


def choice[T: str](value: str, allowed: Sequence[T], name: str) -> T:
    """Return ``value`` when it is one of ``allowed``."""
    for candidate in allowed:
        if value == candidate:
            return candidate
    if not allowed:
        raise InputError(
            f"{name}: there is nothing to choose from here; got {abridged(value)}"
        )
    rule = f"one of {', '.join(allowed)}" if len(allowed) > 1 else f"{allowed[0]} here"
    raise InputError(
        f"{name} must be {rule}; got {abridged(value)}{hint(value, allowed)}"
    )


@dataclass(frozen=True, kw_only=True)
class PrivacyLoss:
    """The price of a release, and the sentence that says what it buys.

    Parameters
    ----------
    epsilon : Fraction
        Total over all synthetic sets of the release, in nats. For ``kind="zcdp"`` the
        epsilon that ``rho`` gives at ``delta``. For ``kind="none"`` and
        ``"asymptotic"`` the figure that the paper claims, which bounds nothing.
    delta : Fraction
        Probability of exceeding ``epsilon``; 0 for ``kind="pure"``.
    rho : Fraction
        Zero-concentrated loss of the same release, for ``kind="zcdp"`` and ``"pure"``;
        0 for other kinds. Left out of a pure loss, what its epsilon alone implies:
        epsilon tanh(epsilon / 2).
    tau : Fraction
        Probability with which the law that ``rho`` is about doesn't hold; part of
        ``delta``.
    neighbours : {"replace-one", "add-remove"}
        Which tables are to look alike: one person's records replaced (number of records
        public), or added or removed.
    kind : {"pure", "approximate", "zcdp", "asymptotic", "none"}
        What sort of guarantee it is.
    sampling : {"exact", "mcmc"}
        Whether the output is drawn from exactly the law that the proof is about.
    statement : str
        One paragraph that a disclosure board can read, with every assumption in it.

    Examples
    --------
    >>> loss = PrivacyLoss(
    ...     epsilon="0.1",
    ...     neighbours="replace-one",
    ...     kind="pure",
    ...     statement="One count, Laplace noise.",
    ... )
    >>> loss.epsilon, loss.is_finite
    (Fraction(1, 10), True)
    """

    epsilon: Fraction
    neighbours: Neighbours
    kind: Kind
    statement: str
    delta: Fraction = Fraction(0)
    rho: Fraction = Fraction(0)
    tau: Fraction = Fraction(0)
    sampling: Sampling = "exact"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive(self.epsilon, "epsilon"))
        for name in ("delta", "rho"):
            object.__setattr__(self, name, exact(getattr(self, name), name))
        choice(self.neighbours, get_args(Neighbours), "neighbours")
        choice(self.kind, get_args(Kind), "kind")
        if not 0 <= self.delta < 1:
            raise InputError(f"delta must be at least 0 and below 1, got {self.delta}")
        if self.kind == "pure" and self.delta:
            raise InputError("a pure loss has delta = 0; use kind 'approximate'")
        if self.kind == "pure" and not self.rho:
            object.__setattr__(self, "rho", of_pure(self.epsilon))
        if (self.kind in CONCENTRATED_KINDS) != (self.rho > 0):
            raise InputError(
                "rho is above 0 for kind 'zcdp', may be left out for kind 'pure', and "
                "goes with no other kind"
            )

    def _repr_html_(self) -> str:
        figures = (
            ("epsilon", spell(self.epsilon)),
            ("delta", spell(self.delta)),
            ("rho", spell(self.rho)),
        )
        rows = [
            *figures,
            ("kind", self.kind),
            ("neighbours", self.neighbours),
            ("statement", self.statement),
        ]
        return small_table("PrivacyLoss", rows)

    @property
    def is_finite(self) -> bool:
        """Whether this kind bounds what an attacker can learn at all."""
        return self.kind in FINITE_KINDS


@dataclass(frozen=True, kw_only=True)
class Spend:
    """One item of a price: which step, how much of the total, and how it composes with
    the others.

    Examples
    --------
    >>> Spend(step="noisy counts", epsilon="1/2")
    Spend(step='noisy counts', epsilon=Fraction(1, 2), composition='sequential')
    """

    step: str
    epsilon: Fraction
    composition: Literal["sequential", "parallel"] = "sequential"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", positive(self.epsilon, "epsilon"))


def epsilon_of(rho: Fraction, delta: Fraction) -> Fraction:
    """Return the epsilon that a zero-concentrated loss has at delta, rounded up at the
    twelfth decimal.

    Canonne, Kamath and Steinke (2020), section 2.3: for every x > 0, with delta,
    rho-zCDP implies epsilon = rho (1 + x) + (log(1 / delta) - log(1 + x)) / x + log(x)
    - log(1 + x). Floats choose x where it is least, so that their rounding weakens
    nothing (``docs/proofs/ledger.md``, theorem 3).

    Examples
    --------
    >>> round(float(epsilon_of(Fraction("0.024356"), Fraction(1, 10**6))), 4)
    1.0
    """
    x = _best_order(rho, delta)
    # 1 + x is exact, and logarithms are right far beyond 1 / x
    context = Context(prec=60 + 2 * abs(x.adjusted()))
    # of one over delta
    log_delta = context.subtract(
        context.ln(Decimal(delta.denominator)), context.ln(Decimal(delta.numerator))
    )
    log_x = Fraction(context.ln(x))
    wider = Fraction(context.ln(context.add(1, x)))
    order = Fraction(x)
    at_delta = (Fraction(log_delta) - wider) / order
    epsilon = rho * (1 + order) + at_delta + log_x - wider
    # far more than the rounding of the logarithms
    above = epsilon + Fraction(1, 10**20)
    return Fraction(max(math.ceil(above * 10**12), 1), 10**12)


def _best_order(rho: Fraction, delta: Fraction) -> Decimal:
    """Return about the x at which :func:`epsilon_of` is least.

    There its derivative is 0: rho x^2 + log(1 + x) = log(1 / delta), whose left side
    grows in x.
    """
    size = float(min(max(rho, TINY), 1 / TINY))
    reach = math.log(delta.denominator) - math.log(delta.numerator)
    if 2 * delta > 1:
        reach = -math.log1p(float(delta - 1))
    low = 0.0
    high = math.sqrt(max(reach, float(TINY)) / size)
    for _ in range(100):
        middle = (low + high) / 2
        if size * middle**2 + math.log1p(middle) < reach:
            low = middle
        else:
            high = middle
    return Decimal(repr(high))


@lru_cache(maxsize=256)
def largest_rho(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the largest rho of ten digits whose reading at delta isn't above epsilon.

    Raises
    ------
    InputError
        If there is none.

    Examples
    --------
    >>> float(largest_rho(Fraction(1), Fraction(1, 10**6)))
    0.02435597035
    """
    digit = Fraction(10 ** len(str(math.ceil(epsilon))))
    while epsilon_of(digit, delta) > epsilon:
        digit /= 10
        if digit < Fraction(1, 10**40):
            raise InputError(
                "epsilon is too small for a zero-concentrated loss at this delta; "
                "take a larger epsilon, or leave delta out"
            )
    rho = digit
    for _ in range(10):
        while epsilon_of(rho + digit, delta) <= epsilon:
            rho += digit
        digit /= 10
    return rho


def as_asked(epsilon: Fraction, asked: Fraction | None) -> Fraction:
    """Return the epsilon that a zero-concentrated loss states: the one that was asked
    for, where what rho gives at delta is less by rounding alone.

    Rho has ten digits and is rounded down, so that it gives .999999999791 where 1 was
    asked for. A bound of 1 follows from that; nothing is ever rounded down.

    Examples
    --------
    >>> as_asked(Fraction("0.999999999791"), Fraction(1))
    Fraction(1, 1)
    >>> as_asked(Fraction("0.9"), Fraction(1))
    Fraction(9, 10)
    """
    if asked is not None and epsilon <= asked <= epsilon * (1 + CLAIM_ROUNDING):
        return asked
    return epsilon


def root(square: Fraction) -> Fraction:
    """Return the square root, rounded down to a part of 1 / ``DIGITS``."""
    enlarged = square.numerator * DIGITS**2 // square.denominator
    return Fraction(math.isqrt(enlarged), DIGITS)


def zcdp(
    rho: Number, delta: Number, neighbours: Neighbours, statement: str, tau: Number = 0
) -> PrivacyLoss:
    """Return a zero-concentrated loss with its (epsilon, delta) reading, as
    :func:`epsilon_of` has it.

    With ``tau`` it is tau-approximate (Bun and Steinke, 2016, definition 8.1), and read
    at delta - tau (``docs/proofs/margins.md``, theorem 3).

    Examples
    --------
    >>> round(float(zcdp("0.5", "1e-6", "replace-one", "A Gaussian count.").epsilon), 3)
    5.222
    """
    exact_rho = positive(rho, "rho")
    exact_delta = positive(delta, "delta")
    if exact_delta >= 1:
        raise InputError(f"delta must be below 1, got {delta}")
    beyond = exact(tau, "tau")
    if not 0 <= beyond <= MOST_TAU or beyond >= exact_delta:
        raise InputError(
            "tau, by which noise may miss its law, must be below delta "
            "and at most 10^-20"
        )
    epsilon = epsilon_of(exact_rho, exact_delta - beyond)
    return PrivacyLoss(
        epsilon=epsilon,
        delta=exact_delta,
        rho=exact_rho,
        tau=beyond,
        neighbours=neighbours,
        kind="zcdp",
        statement=statement,
    )


@lru_cache(maxsize=256)
def also_read(rho: Fraction) -> Fraction:
    """Return the epsilon that a pure loss has at delta = 10^-6 by its rho, which the
    same release satisfies beside its pure one.

    Both hold at once, for the same output: they don't add up, and readings of several
    releases don't either.

    Examples
    --------
    >>> round(float(also_read(Fraction("0.0117"))), 2)
    0.68
    """
    return epsilon_of(rho, READ_AT)


def also_sentence(epsilon: Fraction, rho: Fraction) -> str:
    """Return what the same release satisfies beside its pure epsilon, by its rho.

    Examples
    --------
    >>> also_sentence(Fraction(1), Fraction("0.01136"))[:80]
    'The same release also satisfies (0.67, 0.000001)-differential privacy, by its ze'
    """
    price = spell(rounded_up(rho, PRICE_DIGITS))
    reading = rounded_up(also_read(rho), READING_DIGITS)
    if reading >= epsilon:
        return (
            f"Its zero-concentrated price is rho = {price}, which gives no smaller "
            f"epsilon at a delta of {spell(READ_AT)}."
        )
    return (
        f"The same release also satisfies "
        f"({spell(reading)}, {spell(READ_AT)})-differential privacy, by its "
        f"zero-concentrated price rho = {price}; both statements hold at "
        f"once, and they don't add up."
    )


def to_replace_one(loss: PrivacyLoss) -> PrivacyLoss:
    """Return an add-remove loss as a replace-one loss: replacing is removing and
    adding.

    Pure epsilon doubles; (epsilon, delta) becomes (2 epsilon, (1 + e^epsilon) delta);
    rho quadruples (two steps of group privacy), and for a pure loss is at most what
    2 epsilon implies. The other direction doesn't exist: a replace-one guarantee says
    nothing of the number of records.

    Examples
    --------
    >>> loss = PrivacyLoss(
    ...     epsilon=1, neighbours="add-remove", kind="pure", statement="One count."
    ... )
    >>> to_replace_one(loss).epsilon
    Fraction(2, 1)
    """
    if loss.neighbours == "replace-one":
        return loss
    if loss.kind == "zcdp":
        return zcdp(4 * loss.rho, loss.delta, "replace-one", loss.statement, loss.tau)
    if not loss.is_finite:
        return replace(loss, neighbours="replace-one")
    doubled = replace(loss, neighbours="replace-one", epsilon=2 * loss.epsilon)
    if loss.kind == "pure":
        rho = min(4 * loss.rho, of_pure(doubled.epsilon))
        return replace(doubled, rho=rho)
    if not loss.delta:
        return doubled
    if loss.epsilon > 500:
        raise InputError(
            "an approximate loss with epsilon above 500 has no "
            "replace-one reading with delta below 1"
        )
    growth = 1 + Fraction(math.exp(float(loss.epsilon)))
    # more than the rounding of e^epsilon as a double
    slack = Fraction(10**12 + 1, 10**12)
    return replace(doubled, delta=loss.delta * growth * slack)
