"""Losses: exact numbers, what adds up and what doesn't."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from pdips import InputError, PrivacyLoss, Spend
from pdips.privacy.loss import as_float, compose, exact, spell, to_replace_one, zcdp


def loss(epsilon=1, **changes) -> PrivacyLoss:
    return PrivacyLoss(**{"epsilon": epsilon, "neighbours": "replace-one", "kind": "pure", "statement": "s"} | changes)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (0.1, Fraction(1, 10)),
        ("1/3", Fraction(1, 3)),
        (np.float64(0.7), Fraction(7, 10)),
        ("2e-3", Fraction(1, 500)),
        (3, 3),
    ],
)
def test_a_number_is_what_it_is_written_as(value, wanted):
    assert exact(value, "x") == wanted


@pytest.mark.parametrize(
    "value",
    ["", "x", "1/0", float("nan"), "inf", True, "1e400", "1e-400", "1e99999999999999999999", 1e301],
)
def test_what_is_no_number(value):
    with pytest.raises(InputError, match="x must be a"):
        exact(value, "x")


def test_prices_are_rounded_up_if_at_all():
    assert [spell(Fraction(x)) for x in ("1", "0.1", "1.0000004", "20")] == ["1", "0.1", "1.0000004", "20"]
    assert Fraction(spell(Fraction(1, 3))) >= Fraction(1, 3)
    assert as_float(Fraction(1, 3)) > Fraction(1, 3) > Fraction(1 / 3)
    assert as_float(Fraction(1, 2)) == 0.5
    for rho, delta in (
        ("1e12", "1e-10"),
        ("1e16", "1e-6"),
        ("0.5", Fraction(10**20 - 1, 10**20)),
        (1, Fraction(1, 10**400)),
    ):
        loss = zcdp(rho, delta, "replace-one", "s")
        with localcontext() as context:
            context.prec = 80
            exact_delta = Decimal(loss.delta.numerator) / Decimal(loss.delta.denominator)
            wanted = Decimal(rho) + 2 * (Decimal(rho) * -exact_delta.ln()).sqrt()
        assert 0 <= loss.epsilon - Fraction(wanted) < Fraction(2, 10**12)


def test_ten_tenths_are_one():
    assert compose([loss("0.1")] * 10).epsilon == 1
    total = compose([loss(1, kind="approximate", delta="1e-6"), loss(2, kind="approximate", delta="2e-6")])
    assert (total.epsilon, total.delta) == (3, Fraction(3, 10**6))
    assert compose([loss(), loss(sampling="mcmc")]).sampling == "mcmc"
    assert np.add.reduce([0.1] * 3) != 0.3  # what doubles would have said


def test_zero_concentrated_losses_add_in_rho_and_are_cheaper_together():
    one = zcdp("0.01", "1e-6", "replace-one", "s")
    assert compose([one] * 100).rho == 1
    assert compose([one] * 100).epsilon < 100 * one.epsilon
    assert float(one.epsilon) == pytest.approx(0.01 + 2 * math.sqrt(0.01 * math.log(1e6)), abs=1e-9)
    assert float(one.epsilon) >= 0.01 + 2 * math.sqrt(0.01 * math.log(1e6))


@pytest.mark.parametrize(
    "losses",
    [
        [],
        [loss(), loss(neighbours="add-remove")],
        [loss(), loss(kind="approximate", delta="1e-9")],
        [loss(kind="none")],
        [loss(kind="asymptotic")],
        [zcdp(1, "1e-6", "replace-one", "s"), zcdp(1, "1e-7", "replace-one", "s")],
    ],
)
def test_what_does_not_add_up_is_refused(losses):
    with pytest.raises(InputError):
        compose(losses)


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0},
        {"delta": 1},
        {"delta": -1},
        {"delta": "1e-6"},
        {"kind": "sure"},
        {"neighbours": "far"},
        {"rho": 1},
        {"kind": "zcdp"},
    ],
)
def test_a_loss_that_makes_no_sense_is_refused(changes):
    with pytest.raises(InputError):
        loss(**changes)
    with pytest.raises(InputError):
        Spend(step="x", epsilon=0)


def test_replacing_is_removing_and_adding():
    assert to_replace_one(loss(neighbours="add-remove")).epsilon == 2
    assert to_replace_one(loss()) == loss()
    assert to_replace_one(zcdp(1, "1e-6", "add-remove", "s")).rho == 4
    # noise N(0, s^2) on a sum: removing and adding moves it by 2, so rho = 2^2 / (2 s^2), four times 1 / (2 s^2)
    assert to_replace_one(zcdp(Fraction(1, 2), "1e-6", "add-remove", "s")).rho == Fraction(2**2, 2)
    approximate = to_replace_one(loss(neighbours="add-remove", kind="approximate", delta="1e-6"))
    assert float(approximate.delta) >= (1 + math.e) * 1e-6
    with pytest.raises(InputError, match="no replace-one reading"):
        to_replace_one(loss(800, neighbours="add-remove", kind="approximate", delta="1e-6"))
