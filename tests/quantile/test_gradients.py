"""What one record can change of a quantile regression's gradient: found by brute force,
attained and never exceeded.
"""

from fractions import Fraction
from itertools import product
from typing import get_args

import numpy as np
import pytest
from quantile_tables import budget_of
from scipy.optimize import linprog
from tables import RELATIONS

from pdips.data.encoding import UNITS
from pdips.quantile.gradient import Gradient, Norm
from pdips.quantile.line_search import Fitter

NORMS = get_args(Norm)
TAUS = [
    Fraction(1, 2),
    Fraction(1, 10),
    Fraction(2, 3),
    Fraction(3, 4),
    Fraction(1, 100),
    Fraction(99, 100),
]


def contributions(tau: Fraction, n_predictors: int) -> np.ndarray:
    """All that a record at a vertex of the box adds to q times the gradient, at lines
    above and below it.
    """
    ends = [
        (UNITS, *(UNITS * end for end in signs))
        for signs in product((-1, 1), repeat=n_predictors)
    ]
    q, a = tau.denominator, tau.numerator
    return np.array(
        [[side * each for each in x] for x in ends for side in (q - a, -a)],
        dtype=np.int64,
    )


def changes(tau: Fraction, n_predictors: int, neighbours: str) -> np.ndarray:
    """All that a neighbour can change: the norm is convex, so vertices of the box are
    enough.
    """
    alone = contributions(tau, n_predictors)
    if neighbours == "add-remove":
        return alone
    return (alone[:, None, :] - alone[None, :, :]).reshape(-1, 1 + n_predictors)


def norm_of(gradient: Gradient, change: np.ndarray) -> np.ndarray:
    """The norm of q times a gradient in whole steps, through the public function: q
    (change + a) - a q of a total q.
    """
    q, a = gradient.tau.denominator, gradient.tau.numerator
    return gradient.steps(change + a, np.full(change.shape[-1], q)) // q


@pytest.mark.parametrize("p", [0, 1, 2, 3])
@pytest.mark.parametrize("norm", NORMS)
def test_the_sensitivity_is_attained_at_vertices_and_never_exceeded(
    norm, p, neighbours
):
    for tau in TAUS:
        gradient, moved = Gradient(tau, p, norm), changes(tau, p, neighbours)
        assert norm_of(gradient, moved).max() == gradient.sensitivity(neighbours)
        # a replaced record whose outcome goes missing leaves
        assert gradient.sensitivity("add-remove") <= gradient.sensitivity("replace-one")
        # the entry of a slope by itself, or of the intercept: as Fitter.choose takes it
        if norm == "linf" and p < 2:
            assert np.abs(moved[:, -1]).max() == gradient.sensitivity(neighbours)


def test_the_shortcut_for_a_symmetric_box_is_too_small_and_found_out():
    # 2 max(tau, 1 - tau) C forgets the intercept; predictors within a quarter of the
    # range
    tau, reach = Fraction(1, 2), UNITS // 4
    alone = contributions(tau, 1)
    alone[:, 1] = alone[:, 1] // UNITS * reach
    change = (alone[:, None] - alone[None, :]).reshape(-1, 2)
    largest = norm_of(Gradient(tau, 1, "linf"), change).max()
    shortcut = 2 * max(tau, 1 - tau) * Fraction(reach, UNITS) * UNITS * tau.denominator
    assert largest == Gradient(tau, 1, "linf").sensitivity("replace-one")
    assert largest > shortcut


@pytest.mark.parametrize(
    ("neighbours", "norm"), [("replace-one", "hull"), ("add-remove", "linf")]
)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_the_norm_used_is_the_largest_in_which_a_record_counts_for_one(
    p, neighbours, norm
):
    # its unit ball is the convex hull of what a record can change, and its opposite,
    # found by linear programming
    rng = np.random.default_rng(p)
    for tau in TAUS:
        gradient = Fitter(neighbours=neighbours).gradient(tau, p)
        assert gradient == Gradient(tau, p, norm)
        corners = changes(tau, p, neighbours)
        corners = np.unique(np.concatenate([corners, -corners]), axis=0).T / (
            UNITS * tau.denominator
        )
        for _ in range(6):
            direction = rng.integers(-3 * UNITS, 3 * UNITS, p + 1) * rng.integers(
                0, 2, p + 1
            )
            least = linprog(
                np.ones(corners.shape[1]),
                A_eq=corners,
                b_eq=direction / (UNITS * tau.denominator),
            ).fun
            gauge = float(norm_of(gradient, direction)) / gradient.sensitivity(
                neighbours
            )
            assert gauge == pytest.approx(least, abs=1e-9)


def test_the_nats_of_a_step_pay_for_two_sensitivities():
    for norm, p, neighbours in product(NORMS, range(3), RELATIONS):
        fitter, price = Fitter(norm=norm, neighbours=neighbours), Fraction(2, 3)
        step = fitter.choice(
            budget_of(price, neighbours), "line", Fraction(3, 4), p, price
        )
        assert (
            2 * fitter.gradient(Fraction(3, 4), p).sensitivity(neighbours) / step.scale
            == price
        )
