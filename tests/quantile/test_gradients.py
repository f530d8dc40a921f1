"""What one record can change of a quantile regression's gradient: found by brute force, attained and never exceeded."""

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
TAUS = [Fraction(1, 2), Fraction(1, 10), Fraction(2, 3), Fraction(3, 4), Fraction(1, 100), Fraction(99, 100)]


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
    return scaled.steps(change, np.zeros(change.shape[-1], dtype=np.int64)) // scaled.tau.denominator


@pytest.mark.parametrize("p", [0, 1, 2, 3])
@pytest.mark.parametrize("norm", NORMS)
def test_the_sensitivity_is_attained_at_vertices_and_never_exceeded(norm, p):
    for tau in TAUS:
        gradient = Gradient(tau, p, norm)
        largest = {each: norm_of(gradient, changes(tau, p, each)).max() for each in RELATIONS}
        assert largest == {each: gradient.sensitivity(each) for each in RELATIONS}
        assert largest["add-remove"] <= largest["replace-one"]  # a replaced record whose outcome goes missing leaves


@pytest.mark.parametrize("norm", NORMS)
def test_whole_tables_change_by_no_more_than_the_sensitivity(norm, neighbours):
    # random tables and neighbours, records anywhere in the box, rounded to units
    rng = np.random.default_rng(1)
    for tau, p in product(TAUS, range(4)):
        gradient = Gradient(tau, p, norm)
        z = np.concatenate([np.full((50, 6, 1), UNITS), rng.integers(-UNITS, UNITS + 1, (50, 6, p))], axis=2)
        under = rng.integers(0, 2, (50, 6, 1))
        gone = slice(1, None) if neighbours == "add-remove" else slice(0, None)
        other_z, other_under = z.copy(), under.copy()
        other_z[:, 0, 1:] = rng.integers(-UNITS, UNITS + 1, (50, p))
        other_under[:, 0] = rng.integers(0, 2, (50, 1))
        for k in range(50):
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


@pytest.mark.parametrize("p", [1, 2, 3])
def test_the_hull_is_the_largest_norm_in_which_a_record_counts_for_one(p):
    # its unit ball is the convex hull of what a record can change, found by linear programming
    rng = np.random.default_rng(p)
    for tau in TAUS:
        gradient = Gradient(tau, p, "hull")
        corners = np.unique(changes(tau, p, "replace-one"), axis=0).T / (UNITS * tau.denominator)
        for _ in range(6):
            direction = rng.integers(-3 * UNITS, 3 * UNITS, p + 1) * rng.integers(0, 2, p + 1)
            least = linprog(np.ones(corners.shape[1]), A_eq=corners, b_eq=direction / (UNITS * tau.denominator)).fun
            gauge = float(norm_of(gradient, direction)) / gradient.sensitivity("replace-one")
            assert gauge == pytest.approx(least, abs=1e-9)


@pytest.mark.parametrize(("neighbours", "best"), [("replace-one", "hull"), ("add-remove", "linf")])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_the_largest_norm_under_either_relation(p, neighbours, best):
    rng = np.random.default_rng(p)
    for tau in TAUS:
        norms = {norm: Gradient(tau, p, norm) for norm in NORMS}
        for g in rng.integers(-3 * UNITS, 3 * UNITS, (50, p + 1)):
            scaled = {n: Fraction(int(norm_of(each, g)), each.sensitivity(neighbours)) for n, each in norms.items()}
            assert scaled[best] == max(scaled.values())


def test_the_nats_of_a_step_pay_for_two_sensitivities():
    for norm, p, neighbours in product(NORMS, range(3), ("replace-one", "add-remove")):
        fitter, price = Fitter(norm=norm, neighbours=neighbours), Fraction(2, 3)
        step = fitter.choice(budget_of(price, neighbours), "line", Fraction(3, 4), p, price)
        assert 2 * fitter.gradient(Fraction(3, 4), p).sensitivity(neighbours) / step.scale == price


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
