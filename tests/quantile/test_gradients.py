"""What one record can change of a quantile regression's gradient: found by brute force, attained and never exceeded."""

from fractions import Fraction
from itertools import product
from typing import get_args

import numpy as np
import pytest
from quantile_tables import budget_of

from pdips.data.encoding import UNITS
from pdips.quantile.gradient import Gradient, Norm
from pdips.quantile.line_search import Fitter

NORMS = get_args(Norm)
TAUS = [Fraction(1, 2), Fraction(1, 10), Fraction(3, 4), Fraction(99, 100)]
FAR = 1000 * UNITS


def contributions(tau: Fraction, n_predictors: int) -> np.ndarray:
    """All that a record at a vertex of the box adds to q times the gradient, at lines above and below it."""
    ends = [(UNITS, *(UNITS * end for end in signs)) for signs in product((-1, 1), repeat=n_predictors)]
    q, a = tau.denominator, tau.numerator
    return np.array([[side * each for each in x] for x in ends for side in (q - a, -a)], dtype=np.int64)


def changes(tau: Fraction, n_predictors: int, neighbours: str) -> np.ndarray:
    """All that a neighbour can change: the norm is convex, so vertices of the box are enough."""
    alone = contributions(tau, n_predictors)
    if neighbours == "add-remove":
        return alone
    return (alone[:, None, :] - alone[None, :, :]).reshape(-1, 1 + n_predictors)


def norm_of(gradient: Gradient, change: np.ndarray) -> np.ndarray:
    """The norm of q times a gradient in whole steps, through the public function: total 0, below change / q."""
    scaled = Gradient(gradient.tau, gradient.n_predictors, gradient.norm)
    q = scaled.tau.denominator
    return scaled.steps(change, np.zeros(change.shape[-1], dtype=np.int64)) // q


@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
@pytest.mark.parametrize("norm", NORMS)
def test_the_sensitivity_is_attained_at_vertices_and_never_exceeded(norm, neighbours):
    for tau, p in product(TAUS, range(4)):
        gradient = Gradient(tau, p, norm)
        largest = norm_of(gradient, changes(tau, p, neighbours)).max()
        assert largest == gradient.sensitivity(neighbours), (tau, p)


@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
@pytest.mark.parametrize("norm", NORMS)
def test_whole_tables_change_by_no_more_than_the_sensitivity(norm, neighbours):
    # 2,000 random tables and neighbours, records anywhere in the box, rounded to units
    rng = np.random.default_rng(1)
    for tau, p in product(TAUS, range(4)):
        gradient = Gradient(tau, p, norm)
        z = np.concatenate([np.full((2000, 6, 1), UNITS), rng.integers(-UNITS, UNITS + 1, (2000, 6, p))], axis=2)
        under = rng.integers(0, 2, (2000, 6, 1))
        gone = slice(1, None) if neighbours == "add-remove" else slice(0, None)
        other_z, other_under = z.copy(), under.copy()
        other_z[:, 0, 1:] = rng.integers(-UNITS, UNITS + 1, (2000, p))
        other_under[:, 0] = rng.integers(0, 2, (2000, 1))
        for k in range(0, 2000, 40):
            one = gradient.steps((z[k] * under[k]).sum(axis=0), z[k].sum(axis=0))
            two = gradient.steps((other_z[k] * other_under[k])[gone].sum(axis=0), other_z[k][gone].sum(axis=0))
            assert abs(int(one) - int(two)) <= gradient.sensitivity(neighbours)


def test_the_shortcut_for_a_symmetric_box_is_too_small_and_found_out():
    # 2 max(tau, 1 - tau) C forgets the intercept; predictors within a quarter of the range
    tau, reach = Fraction(1, 2), UNITS // 4
    alone = contributions(tau, 1)
    alone[:, 1] = alone[:, 1] // UNITS * reach
    change = (alone[:, None] - alone[None, :]).reshape(-1, 2)
    largest = norm_of(Gradient(tau, 1, "linf"), change).max()
    shortcut = 2 * max(tau, 1 - tau) * Fraction(reach, UNITS) * UNITS * tau.denominator
    assert largest == Gradient(tau, 1, "linf").sensitivity("replace-one")
    assert largest > shortcut


def test_the_published_sensitivity_is_exceeded_fiftyfold():
    tau = Fraction(99, 100)
    published = 2 * (1 - tau) * UNITS * tau.denominator
    assert norm_of(Gradient(tau, 0), changes(tau, 0, "replace-one")).max() == 50 * published


@pytest.mark.parametrize("tau", TAUS)
def test_the_hull_is_the_largest_norm_in_which_a_record_counts_for_one(tau):
    # along random directions: its unit ball is the convex hull of what a record can change, found by linear programming
    from scipy.optimize import linprog

    rng, gradient = np.random.default_rng(2), Gradient(tau, 2, "hull")
    corners = changes(tau, 2, "replace-one").astype(float)
    for direction in rng.integers(-FAR, FAR, (12, 3)):
        found = linprog(np.ones(len(corners)), A_eq=corners.T, b_eq=direction.astype(float))
        gauge = float(norm_of(gradient, direction)) / gradient.sensitivity("replace-one")
        assert found.fun == pytest.approx(gauge, rel=1e-6)


def test_the_nats_of_a_step_pay_for_two_sensitivities():
    for norm, p, neighbours in product(NORMS, range(3), ("replace-one", "add-remove")):
        fitter, price = Fitter(norm=norm, neighbours=neighbours), Fraction(2, 3)
        step = fitter.choice(budget_of(price, neighbours), "line", Fraction(3, 4), p, price)
        moved = fitter.gradient(Fraction(3, 4), p).sensitivity(neighbours)
        assert 2 * moved / step.scale == price


@pytest.mark.parametrize("tau", [Fraction(1, 2), Fraction(99, 100), Fraction(1, 10)])
@pytest.mark.parametrize("slope", [False, True])
def test_one_entry_moves_by_its_sensitivity_and_no_more(tau, slope):
    # the entry of a slope by itself, or of the intercept: as Fitter.choose takes it
    entry, ends = Gradient(tau, int(slope), "linf"), (-UNITS, 0, UNITS) if slope else (UNITS,)
    a, q = tau.numerator, tau.denominator
    parts = [(q - a) * z if below else -a * z for z in ends for below in (True, False)]
    assert entry.sensitivity("add-remove") == max(map(abs, parts))
    assert entry.sensitivity("replace-one") == max(b - c for b in parts for c in parts)
    below, total = np.array([3 * UNITS]), np.array([5 * UNITS])
    assert entry.steps(below, total) == abs(q * 3 * UNITS - a * 5 * UNITS)
