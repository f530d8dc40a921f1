"""Joint quantiles: the law against enumeration, the price over all tiny tables, exact draws.

Chi-square checks: seed fixed, false alarm 1e-6, the broken twin below 1e-9.
"""

from collections import Counter
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from laws import ACCEPT, REJECT
from quantile_tables import frequencies, worst_loss
from scipy import stats

from pdips.errors import InputError
from pdips.privacy.noise import RandomBits
from pdips.quantile import extended_float as wide_numbers
from pdips.quantile.extended_float import Powers, choose, plus, times, wide
from pdips.quantile.joint import JointQuantiles, joint_unit, rounding_price

QUARTERS = [Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)]
UNEVEN = [Fraction(1, 10), Fraction(1, 2), Fraction(99, 100)]
FIFTIETHS = [Fraction(i, 50) for i in range(1, 50)]
COUNTS = np.array([1, 3, 3, 6])


def seeded(seed: int = 0) -> RandomBits:
    return RandomBits(np.random.default_rng(seed))


def problem(counts, n, taus, epsilon=Fraction(2), neighbours="replace-one", parts=1):
    return JointQuantiles(
        cumulative=np.asarray(counts), n=n, taus=taus, epsilon=epsilon, neighbours=neighbours, parts=parts
    )


def joint_quantiles(counts, n, taus, epsilon, bits, *, neighbours, parts=1, runs=1):
    return problem(counts, n, taus, epsilon, neighbours, parts).draw(bits, runs)


def joint_law(counts, n, taus, epsilon, *, neighbours, parts=1):
    return problem(counts, n, taus, epsilon, neighbours, parts).log_probabilities()


def law_of(tried, base=None):
    """The law by its definition; ``base`` says how many points of the grid each of these stands for."""
    positions, logs = tried.law()
    if base is not None:
        logs = logs + np.log(base)[positions].sum(axis=1)
    return dict(zip(map(tuple, positions.tolist()), logs - np.logaddexp.reduce(logs), strict=True))


def log_probability(tried, positions):
    """The log probability with which these positions are drawn."""
    total = 0.0
    for j, following in enumerate([*positions[1:], None]):
        logs = tried._candidates(j, following).log()
        total += logs[positions[j]] - np.logaddexp.reduce(logs)
    return total


@pytest.mark.parametrize("seed", range(30))
def test_the_law_drawn_from_is_the_one_defined(seed):
    rng = np.random.default_rng(seed)
    n, n_points = int(rng.integers(0, 12)), int(rng.integers(1, 7))
    counts = np.sort(rng.integers(0, n + 1, n_points))
    numerators = np.sort(rng.choice(np.arange(1, 20), int(rng.integers(1, 4)), replace=False))
    taus = [Fraction(int(numerator), 20) for numerator in numerators]
    parts = int(rng.integers(1, 4)) if n_points < 4 else 1
    tried = problem(counts, n, taus, Fraction(int(rng.integers(1, 40))), parts=parts)
    for positions, log in law_of(tried).items():
        assert log_probability(tried, positions) == pytest.approx(log, abs=1e-11)


def test_weights_far_beyond_the_range_of_doubles():
    # misfits of up to 2 * 10^6 records at 2.5 nats each
    counts = np.array([0, 250_003, 600_000, 900_000])
    tried = problem(counts, 10**6, QUARTERS, Fraction(10))
    logs = np.array([log_probability(tried, positions) - log for positions, log in law_of(tried).items()])
    assert len(logs) == 20
    assert np.abs(logs).max() < 1e-8  # the enumeration itself is rounded at 5 * 10^6 nats
    assert min(law_of(tried).values()) < -(10**6)


def test_the_certified_error_holds_and_is_small():
    price = rounding_price(49, 1024)
    assert float(price) < 1e-9
    rng = np.random.default_rng(0)
    counts = np.sort(rng.integers(0, 5001, 64))
    tried = problem(counts, 5000, FIFTIETHS[::7], Fraction(1))
    # the forward pass in exact arithmetic from the same definition, at 40 digits
    exact = [Decimal(1)] * 64
    heights = [0, *map(int, counts), 5000]
    unit = Decimal(tried.unit.numerator) / Decimal(tried.unit.denominator)

    def weight(j: int, gap: int) -> Decimal:
        misfit = abs(gap - tried.targets[j])
        return (-unit * Decimal(misfit.numerator) / Decimal(misfit.denominator)).exp()

    exact = [weight(0, height) for height in heights[1:-1]]
    for j in range(1, 7):
        exact = [sum(exact[i] * weight(j, heights[g + 1] - heights[i + 1]) for i in range(g + 1)) for g in range(64)]
    found = tried.forward[6]
    ours = [Decimal(m) * Decimal(2) ** int(e) for m, e in zip(found.mantissa, found.exponent, strict=True)]
    error = max(abs(a / b - 1) for a, b in zip(ours, exact, strict=True))
    assert error < Decimal(float(rounding_price(5, 64)))


@pytest.mark.parametrize("neighbours", ["replace-one", "add-remove"])
@pytest.mark.parametrize("taus", [QUARTERS[1:2], QUARTERS[::2], QUARTERS, UNEVEN])
@pytest.mark.parametrize("base", [None, [1, 1, 10**9], [1, 10**9, 1]])
def test_no_pair_of_tiny_tables_costs_more_than_epsilon(neighbours, taus, base):
    for n, parts in product(range(5), (1, 2)):
        points = None if base is None else np.repeat(base, parts)

        def law(counts, n, parts=parts, points=points):
            return law_of(problem(counts, n, taus, Fraction(1), neighbours, parts), points)

        assert worst_loss(law, n, 3, neighbours) <= 1 + 1e-12


@pytest.mark.parametrize(
    ("neighbours", "taus", "n"),
    [
        ("replace-one", QUARTERS, 4),
        ("replace-one", QUARTERS[:2], 4),
        ("add-remove", QUARTERS[::2], 3),
        ("add-remove", QUARTERS[:2], 3),
        ("add-remove", [Fraction(1, 3), Fraction(2, 3)], 2),
    ],
)
def test_the_price_is_attained_and_half_the_sensitivity_is_caught(neighbours, taus, n):
    base = np.array([1, 1, 10**9])  # many points in a cell tilt the law: the mean of the ratio lies at its far end
    for n_points in (3, 5):
        weights = np.resize(base, n_points)

        def law(counts, n, factor=1, weights=weights):
            tried = problem(counts, n, taus, Fraction(1), neighbours)
            vars(tried)["unit"] = factor * tried.unit
            return law_of(tried, weights)

        if n_points == 3:
            assert 0.999 < worst_loss(law, n, n_points, neighbours) <= 1 + 1e-12
            assert worst_loss(lambda counts, n: law(counts, n, 2), n, n_points, neighbours) > 1.9
        elif n < 4:
            assert worst_loss(law, n, n_points, neighbours) <= 1 + 1e-12


def test_units_are_those_of_single_quantiles_where_there_is_one():
    assert float(joint_unit([Fraction(99, 100)], Fraction(1), "replace-one", 8)) == pytest.approx(1 / 4, rel=1e-9)
    unit = joint_unit([Fraction(99, 100)], Fraction(1), "add-remove", 8)
    assert float(2 * unit * 2 * Fraction(99, 100)) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("certain", [False, True])
def test_draws_have_their_law_and_a_forgotten_gap_is_caught(certain, monkeypatch):
    if certain:  # every draw is decided by rationals
        monkeypatch.setattr(wide_numbers, "FILTER", 1.0)
    n_draws = 3_000 if certain else 100_000
    tried = problem(COUNTS, 7, QUARTERS[:2], Fraction(3))
    counts, expected = frequencies(tried.draw(seeded(), n_draws), law_of(tried))
    assert stats.chisquare(counts, expected).pvalue > ACCEPT
    if not certain:
        original = JointQuantiles._candidates

        def without_gap(self, j, following):
            if following is None:
                return original(self, j, following)
            return self.forward[j].take(np.arange(following + 1))

        monkeypatch.setattr(JointQuantiles, "_candidates", without_gap)
        counts, expected = frequencies(tried.draw(seeded(), n_draws), law_of(tried))
        assert stats.chisquare(counts, expected).pvalue < REJECT


def test_choices_with_weights_apart_by_more_than_doubles_hold():
    weights = wide(np.array([0.75, 0.5, 0.0, 0.5, 0.75]), np.array([-5000, 1, 0, 0, -90_000]))
    assert set(choose(weights, 2_000, seeded()).tolist()) == {1, 3}
    enclosure = wide_numbers._Enclosure(weights)
    assert enclosure.candidates.tolist() == [0, 1, 3, 4]
    for digits in (40, 80, 2_000):
        sums = [enclosure.bounds(k, digits) for k in range(4)]
        assert all(0 <= low <= high <= 1 for low, high in sums)
        assert sums[1][0] <= Fraction(2, 3) + Fraction(1, 2**4_000)
        assert sums[1][1] >= Fraction(2, 3) - Fraction(1, 2**4_000)
        assert sums[1][1] - sums[1][0] < Fraction(1, 2 ** (3 * digits))
        assert sums[3] == (1, 1)
    assert sums[0][0] > 0  # at 8,000 bits the smaller weight is seen


def test_powers_are_as_close_as_claimed():
    rate, powers = Fraction(1, 7), [0, 1, 2, 1023, 1024, 10**6, 123_456_789]
    found = Powers(rate, 2**38).at(np.array(powers))
    with localcontext(Context(prec=50, Emin=-(10**12), Emax=10**12)):
        for mantissa, exponent, power in zip(found.mantissa, found.exponent, powers, strict=True):
            ours = Decimal(mantissa) * Decimal(2) ** int(exponent)
            assert abs(ours / (Decimal(-power) / 7).exp() - 1) < Decimal(12) / 2**53


def test_sums_and_products_of_wide_numbers():
    a, b = wide(np.array([3.0, 0.0, 0.0, 1.0])), wide(np.array([5.0, 2.0, 0.0, 1.0]), np.array([0, -9000, 0, -9000]))
    total, product = plus(a, b), times(a, b)
    assert total.mantissa.tolist() == [0.5, 0.5, 0.0, 0.5]
    assert total.exponent.tolist() == [4, -8998, wide_numbers.LOWEST, 1]
    assert product.mantissa.tolist() == [15 / 16, 0.0, 0.0, 0.5]
    assert product.exponent[[0, 3]].tolist() == [4, -8999]


def test_quantiles_never_cross_and_are_points_of_the_grid():
    rng = np.random.default_rng(0)
    for n, parts in [(0, 1), (1, 3), (40, 2), (3_000, 1)]:
        counts = np.sort(rng.integers(0, n + 1, 40))
        drawn = joint_quantiles(
            counts, n, FIFTIETHS, Fraction(1, 2), seeded(), neighbours="add-remove", parts=parts, runs=3
        )
        assert drawn.shape == (3, 49)
        assert (np.diff(drawn, axis=1) >= 0).all()
        assert drawn.min() >= 0
        assert drawn.max() < 40


def test_without_records_all_tuples_are_alike():
    law = joint_law(np.zeros(3, dtype=int), 0, QUARTERS[:2], Fraction(1), neighbours="add-remove")
    assert law.keys() == set(combinations_with_replacement(range(3), 2))
    assert np.exp(list(law.values())) == pytest.approx(np.full(6, 1 / 6))


def test_parts_are_merged_into_their_cells():
    fine = problem(COUNTS, 7, QUARTERS[:2], parts=3)
    merged = Counter()
    for positions, log in law_of(fine).items():
        merged[positions[0] // 3, positions[1] // 3] += np.exp(log)
    law = joint_law(COUNTS, 7, QUARTERS[:2], Fraction(2), neighbours="replace-one", parts=3)
    assert {key: np.exp(log) for key, log in law.items()} == pytest.approx(dict(merged))


def test_rank_errors_are_far_below_those_of_separate_quantiles():
    # standard errors of the means over 8 runs: about 5 and 10 records
    rng = np.random.default_rng(3)
    values, n = np.sort(rng.exponential(10, 5_000)), 5_000
    counts = np.searchsorted(values, np.geomspace(0.01, 1000, 512), side="right")
    targets = np.array([float(tau) for tau in FIFTIETHS]) * n
    drawn = joint_quantiles(counts, n, FIFTIETHS, Fraction(1, 2), seeded(), neighbours="replace-one", runs=8)
    assert np.abs(counts[drawn] - targets).mean() < 60
    alone = [
        joint_quantiles(counts, n, [tau], Fraction(1, 98), seeded(i), neighbours="replace-one", runs=8)[:, 0]
        for i, tau in enumerate(FIFTIETHS)
    ]
    assert np.abs(counts[np.sort(np.transpose(alone), axis=1)] - targets).mean() > 90


def test_parts_keep_quantiles_near_an_atom_where_they_belong():
    rng = np.random.default_rng(4)
    values = np.where(rng.random(2_000) < 0.3, 5.0, rng.exponential(10, 2_000))
    counts = np.searchsorted(np.sort(values), np.geomspace(0.01, 1000, 128), side="right")
    below = np.concatenate([[0], counts[:-1]])
    tenths = [Fraction(i, 20) for i in range(1, 20)]
    targets = np.array([float(tau) for tau in tenths]) * 2_000

    def error(parts: int) -> float:
        drawn = joint_quantiles(
            counts, 2_000, tenths, Fraction(1), seeded(), neighbours="replace-one", parts=parts, runs=4
        )
        return float(np.maximum(0, np.maximum(below[drawn] - targets, targets - counts[drawn])).mean())

    assert error(16) < 15
    assert error(1) > 60


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"taus": []}, "quantiles must be 1 to"),
        ({"taus": [0.5]}, "fractions above 0"),
        ({"taus": [Fraction(1)]}, "fractions above 0"),
        ({"taus": [Fraction(1, 2), Fraction(1, 2)]}, "increasing order"),
        ({"taus": [Fraction(1, 10**6 + 3)]}, "common denominator"),
        ({"epsilon": Fraction(0)}, "epsilon of joint quantiles"),
        ({"epsilon": 0.5}, "must be a fraction"),
        ({"epsilon": Fraction(101)}, "epsilon of joint quantiles"),
        ({"epsilon": Fraction(1, 10**13)}, "too small"),
        ({"neighbours": "both"}, "neighbours must be"),
        ({"parts": 0}, "parts must be"),
        ({"counts": np.array([], dtype=int)}, "a grid for joint quantiles"),
        ({"counts": np.array([1, 0])}, "must not fall"),
        ({"counts": np.array([1, 9])}, "number of records"),
        ({"counts": np.array([0.5, 1.0])}, "whole numbers"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    settings = {"counts": COUNTS, "n": 7, "taus": QUARTERS, "epsilon": Fraction(1), "neighbours": "replace-one"}
    settings |= {"bits": seeded()} | changes
    with pytest.raises(InputError, match=message):
        joint_quantiles(**settings)


def test_limits_of_parts_of_the_machinery():
    with pytest.raises(InputError, match="rate above 0"):
        Powers(Fraction(101), 5)
    with pytest.raises(InputError, match="below 2\\^40"):
        Powers(Fraction(1), 2**40)
    with pytest.raises(InputError, match="tiny grids"):
        joint_law(np.arange(200), 200, QUARTERS, Fraction(1), neighbours="replace-one")
    assert problem([2, 5], 5, QUARTERS, parts=3).heights.tolist() == [2, 4, 6, 9, 12, 15]
