"""Privacy losses: what one is, how losses add up, and how a total is itemised.

All numbers are exact rationals (:class:`fractions.Fraction`), so that "does this overspend" has one answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Literal, get_args

from pdips.errors import InputError

Neighbours = Literal["replace-one", "add-remove"]
Kind = Literal["pure", "approximate", "zcdp", "asymptotic", "none"]
Sampling = Literal["exact", "mcmc"]
Number = int | float | str | Fraction

LARGEST_EXPONENT = 300
"""Of ten, in a number that somebody writes down."""

FINITE_KINDS: tuple[Kind, ...] = ("pure", "approximate", "zcdp")


def exact(value: Number, name: str) -> Fraction:
    """Return ``value`` as the rational that its spelling names: 0.1 is one tenth, not the double nearest to it."""
    if isinstance(value, (int, Fraction)) and not isinstance(value, bool):
        return Fraction(value)
    text = str(value).strip()
    try:
        number = Fraction(text) if "/" in text else Decimal(text)
    except (ValueError, ZeroDivisionError, InvalidOperation):
        raise InputError(f"{name} must be a finite number, got {value!r}") from None
    if isinstance(number, Decimal):
        if not number.is_finite() or abs(number.adjusted()) > LARGEST_EXPONENT:
            raise InputError(f"{name} must be a finite number of ordinary size, got {value!r}")
        return Fraction(number)
    return number


def spell(number: Fraction) -> str:
    """Write a price as a decimal, exactly where it has a short one and otherwise rounded up, never down."""
    for n_digits in range(16):
        scaled = number * 10**n_digits
        if scaled.denominator == 1 or n_digits == 15:
            text = f"{Decimal(math.ceil(scaled)).scaleb(-n_digits):f}"
            return text.rstrip("0").rstrip(".") if "." in text else text
    raise AssertionError("unreachable")


def as_float(number: Fraction) -> float:
    """Return the nearest double that isn't below a price."""
    nearest = float(number)
    return nearest if Fraction(nearest) >= number else math.nextafter(nearest, math.inf)


def positive(value: Number, name: str) -> Fraction:
    """Return ``value`` as a rational above zero."""
    number = exact(value, name)
    if number <= 0:
        raise InputError(f"{name} must be above 0, got {value}")
    return number


def choice[T: str](value: str, allowed: Sequence[T], name: str) -> T:
    """Return ``value`` when it is one of ``allowed``."""
    for candidate in allowed:
        if value == candidate:
            return candidate
    if not allowed:
        raise InputError(f"{name}: there is nothing to choose from here; got {value!r}")
    rule = f"one of {', '.join(allowed)}" if len(allowed) > 1 else f"{allowed[0]} here"
    raise InputError(f"{name} must be {rule}; got {value!r}")


@dataclass(frozen=True, kw_only=True)
class PrivacyLoss:
    """The price of a release, and the sentence that says what it buys.

    Parameters
    ----------
    epsilon : Fraction
        Total over all synthetic sets of the release, in nats. For ``kind="zcdp"`` the epsilon that ``rho`` gives at
        ``delta``. For ``kind="none"`` and ``"asymptotic"`` the figure that the paper claims, which bounds nothing.
    delta : Fraction
        Probability of exceeding ``epsilon``; 0 for ``kind="pure"``.
    rho : Fraction
        Zero-concentrated loss; 0 unless ``kind="zcdp"``.
    neighbours : {"replace-one", "add-remove"}
        Which tables are to look alike: one person's records replaced (number of records public), or added or removed.
    kind : {"pure", "approximate", "zcdp", "asymptotic", "none"}
        What sort of guarantee it is.
    sampling : {"exact", "mcmc"}
        Whether the output is drawn from exactly the law that the proof is about.
    statement : str
        One paragraph that a disclosure board can read, with every assumption in it.

    Examples
    --------
    >>> loss = PrivacyLoss(epsilon="0.1", neighbours="replace-one", kind="pure", statement="One count, Laplace noise.")
    >>> loss.epsilon, loss.is_finite
    (Fraction(1, 10), True)
    """

    epsilon: Fraction
    neighbours: Neighbours
    kind: Kind
    statement: str
    delta: Fraction = Fraction(0)
    rho: Fraction = Fraction(0)
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
        if (self.kind == "zcdp") != (self.rho > 0):
            raise InputError("rho goes with kind 'zcdp', and only with it")

    @property
    def is_finite(self) -> bool:
        """Whether this kind bounds what an attacker can learn at all."""
        return self.kind in FINITE_KINDS


@dataclass(frozen=True, kw_only=True)
class Spend:
    """One item of a price: which step, how much of the total, and how it composes with the others.

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


def zcdp(rho: Number, delta: Number, neighbours: Neighbours, statement: str) -> PrivacyLoss:
    """Return a zero-concentrated loss with its (epsilon, delta) reading, rounded up at the twelfth decimal.

    Bun and Steinke (2016), Proposition 1.3: rho-zCDP implies (rho + 2 sqrt(rho log(1/delta)), delta)-DP.

    Examples
    --------
    >>> round(float(zcdp("0.5", "1e-6", "replace-one", "A Gaussian count.").epsilon), 3)
    5.757
    """
    exact_rho, exact_delta = positive(rho, "rho"), positive(delta, "delta")
    if exact_delta >= 1:
        raise InputError(f"delta must be below 1, got {delta}")
    parts = {"rho": exact_rho, "delta": exact_delta}
    context = Context(prec=60)
    number = {name: context.divide(Decimal(q.numerator), Decimal(q.denominator)) for name, q in parts.items()}
    root = context.sqrt(context.multiply(number["rho"], -context.ln(number["delta"])))
    epsilon = exact_rho + Fraction(math.floor(Fraction(2 * root) * 10**12) + 1, 10**12)
    return PrivacyLoss(
        epsilon=epsilon, delta=exact_delta, rho=exact_rho, neighbours=neighbours, kind="zcdp", statement=statement
    )


def compose(losses: Sequence[PrivacyLoss]) -> PrivacyLoss:
    """Return the loss of running mechanisms one after the other on the same table.

    Pure and approximate losses add in epsilon and delta, zero-concentrated ones in rho (sequential composition,
    adaptive choices included). Losses for different neighbours or of different kinds don't add: convert them first.

    Raises
    ------
    InputError
        If there are no losses, they differ in kind or neighbours, or one of them is no finite guarantee.

    Examples
    --------
    >>> loss = PrivacyLoss(epsilon="0.1", neighbours="replace-one", kind="pure", statement="One count.")
    >>> compose([loss, loss, loss]).epsilon
    Fraction(3, 10)
    """
    if not losses:
        raise InputError("nothing to compose: the list of losses is empty")
    if len({(loss.neighbours, loss.kind) for loss in losses}) > 1:
        raise InputError("losses compose only for one relation of neighbours and one kind; convert them first")
    first = losses[0]
    if not first.is_finite:
        raise InputError(f"losses of kind {first.kind!r} bound nothing, so they have no sum")
    statement = " ".join(dict.fromkeys(loss.statement for loss in losses))
    sampling: Sampling = "exact" if all(loss.sampling == "exact" for loss in losses) else "mcmc"
    if first.kind == "zcdp":
        if len({loss.delta for loss in losses}) > 1:
            raise InputError("zero-concentrated losses are read at one delta; convert them first")
        total = zcdp(sum((loss.rho for loss in losses), Fraction(0)), first.delta, first.neighbours, statement)
        return replace(total, sampling=sampling)
    return PrivacyLoss(
        epsilon=sum((loss.epsilon for loss in losses), Fraction(0)),
        delta=sum((loss.delta for loss in losses), Fraction(0)),
        neighbours=first.neighbours,
        kind=first.kind,
        statement=statement,
        sampling=sampling,
    )


def to_replace_one(loss: PrivacyLoss) -> PrivacyLoss:
    """Return an add-remove loss as a replace-one loss: replacing is removing and adding.

    Pure epsilon doubles; (epsilon, delta) becomes (2 epsilon, (1 + e^epsilon) delta); rho quadruples (two steps of
    group privacy). The other direction doesn't exist: a replace-one guarantee says nothing of the number of records.

    Examples
    --------
    >>> loss = PrivacyLoss(epsilon=1, neighbours="add-remove", kind="pure", statement="One count.")
    >>> to_replace_one(loss).epsilon
    Fraction(2, 1)
    """
    if loss.neighbours == "replace-one":
        return loss
    if loss.kind == "zcdp":
        return zcdp(4 * loss.rho, loss.delta, "replace-one", loss.statement)
    if not loss.is_finite:
        return replace(loss, neighbours="replace-one")
    if loss.delta and loss.epsilon > 500:
        raise InputError("an approximate loss with epsilon above 500 has no replace-one reading with delta below 1")
    growth = 1 + Fraction(math.exp(float(loss.epsilon))) if loss.delta else Fraction(0)
    delta = loss.delta * growth * Fraction(10**12 + 1, 10**12)
    return replace(loss, neighbours="replace-one", epsilon=2 * loss.epsilon, delta=delta)
