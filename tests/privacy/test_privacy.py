"""Losses: exact numbers, what adds up and what doesn't."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats
from tables import cases, refuses

from pdips import PrivacyLoss, Spend
from pdips.privacy.loss import (
    as_asked,
    as_float,
    epsilon_of,
    exact,
    largest_rho,
    spell,
    to_replace_one,
    zcdp,
)


def loss(epsilon=1, **changes) -> PrivacyLoss:
    return PrivacyLoss(
        **{
            "epsilon": epsilon,
            "neighbours": "replace-one",
            "kind": "pure",
            "statement": "s",
        }
        | changes
    )


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0.1, "1/10"),
        ("1/3", "1/3"),
        (np.float64(0.7), "7/10"),
        (3, "3"),
        ("2e-3", "1/500"),
    ],
)
def test_a_number_is_what_it_is_written_as(value, wanted):
    assert exact(value, "x") == Fraction(wanted)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        "1/0",
        float("nan"),
        "inf",
        True,
        "1e400",
        "1e-400",
        "1e99999999999999999999",
        1e301,
    ],
)
def test_what_is_no_number(value):
    refuses("x must be a", exact, value, "x")


def test_prices_are_rounded_up_if_at_all():
    assert [spell(Fraction(x)) for x in ("1", "0.1", "1.0000004", "20")] == [
        "1",
        "0.1",
        "1.0000004",
        "20",
    ]
    assert Fraction(spell(Fraction(1, 3))) >= Fraction(1, 3)
    assert as_float(Fraction(1, 3)) > Fraction(1, 3) > Fraction(1 / 3)
    assert as_float(Fraction(1, 2)) == 0.5
    for rho, delta in (
        ("1e12", "1e-10"),
        ("1e16", "1e-6"),
        ("0.5", Fraction(10**20 - 1, 10**20)),
        (1, Fraction(1, 10**400)),
        ("0.01", "1e-6"),
    ):
        loss = zcdp(rho, delta, "replace-one", "s")
        assert (
            0
            <= loss.epsilon - max(least_reading(Decimal(rho), loss.delta), 0)
            < Fraction(2, 10**12)
        )


@pytest.mark.parametrize("epsilon", ["0.01", "1/3", "1", "2.5", "40"])
@pytest.mark.parametrize("delta", ["1e-3", "1e-6", "1e-12"])
def test_a_price_is_stated_as_it_was_asked_for_and_never_below_its_reading(
    epsilon, delta
):
    asked, at = Fraction(epsilon), Fraction(delta)
    reading = epsilon_of(largest_rho(asked, at), at)
    assert reading <= asked == as_asked(reading, asked)
    assert as_asked(reading, None) == reading
    # less than was asked for, by more than rounding, and more than was asked for
    for other in (2 * asked, reading * Fraction(999_999, 10**6)):
        assert as_asked(reading, other) == reading


def least_reading(rho: Decimal, delta: Fraction) -> Fraction:
    """The epsilon of Canonne, Kamath and Steinke (2020) at its best order, which 400
    halvings find in 120 digits.
    """
    with localcontext() as context:
        context.prec = 120
        log_delta = (Decimal(delta.numerator) / Decimal(delta.denominator)).ln()
        low, high = Decimal(1), 1 + (-log_delta / rho).sqrt()
        for _ in range(400):
            order = (low + high) / 2
            low, high = (
                (order, high)
                if rho * (order - 1) ** 2 + order.ln() < -log_delta
                else (low, order)
            )
        return Fraction(
            rho * high + (-log_delta - high.ln()) / (high - 1) + (1 - 1 / high).ln()
        )


def gaussian_delta(rho: float, epsilon: float) -> float:
    """The least delta of a Gaussian release at epsilon, exactly (Balle and Wang 2018,
    theorem 8).
    """
    shift = math.sqrt(2 * rho)
    first, second = (
        stats.norm.cdf(shift / 2 - epsilon / shift),
        stats.norm.cdf(-shift / 2 - epsilon / shift),
    )
    return float(first - math.exp(epsilon) * second)


@pytest.mark.parametrize("rho", ["1e-6", "0.02", "0.5", "20"])
@pytest.mark.parametrize("delta", ["0.1", "1e-6", "1e-9"])
def test_a_gaussian_release_keeps_the_reading_of_its_rho(rho, delta):
    epsilon = float(epsilon_of(Fraction(rho), Fraction(delta)))
    assert gaussian_delta(float(rho), epsilon) <= float(delta)
    # the twin, which reads a fifth less, claims too much
    if epsilon > 0.5 and delta != "0.1":
        assert gaussian_delta(float(rho), 0.8 * epsilon) > float(delta)


@pytest.mark.parametrize("epsilon", ["1e-5", "0.25", "1", "4", "1000"])
@pytest.mark.parametrize("delta", ["0.5", "1e-6", "1e-100"])
def test_the_rho_for_an_epsilon_is_rounded_down(epsilon, delta):
    asked, at = Fraction(epsilon), Fraction(delta)
    rho = largest_rho(asked, at)
    assert epsilon_of(rho, at) <= asked < epsilon_of(rho * (1 + Fraction(2, 10**9)), at)
    refuses(
        "too small for a zero-concentrated loss", largest_rho, Fraction(1, 10**13), at
    )


@pytest.mark.parametrize(
    "changes", cases(__file__, "a_loss_that_makes_no_sense_is_refused")
)
def test_a_loss_that_makes_no_sense_is_refused(changes):
    refuses("", loss, **changes)
    refuses("", Spend, step="x", epsilon=0)


def test_replacing_is_removing_and_adding():
    assert to_replace_one(loss(neighbours="add-remove")).epsilon == 2
    assert to_replace_one(loss()) == loss()
    assert to_replace_one(zcdp(1, "1e-6", "add-remove", "s")).rho == 4
    # noise N(0, s^2) on a sum: removing and adding moves it by 2, so rho = 2^2 / (2
    # s^2), four times 1 / (2 s^2)
    assert to_replace_one(
        zcdp(Fraction(1, 2), "1e-6", "add-remove", "s")
    ).rho == Fraction(2**2, 2)
    approximate = to_replace_one(
        loss(neighbours="add-remove", kind="approximate", delta="1e-6")
    )
    assert float(approximate.delta) >= (1 + math.e) * 1e-6
    far = loss(800, neighbours="add-remove", kind="approximate", delta="1e-6")
    refuses("no replace-one reading", to_replace_one, far)
