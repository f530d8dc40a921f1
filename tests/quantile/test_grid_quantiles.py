"""Quantiles chosen together on a grid, jointly or by halving: laws, prices over all tiny tables, exact draws.

Chi-square checks: seed fixed, false alarm 1e-6, the broken twin below 1e-9.
"""

from dataclasses import replace
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from laws import ACCEPT, REJECT
from quantile_tables import frequencies, worst_loss
from scipy import stats
from tables import bits as seeded
from tables import refuses

from pdips.errors import InputError
from pdips.quantile import joint as wide_numbers
from pdips.quantile import quantile_grid
from pdips.quantile.joint import JointQuantiles, Powers, choose, plus, rounding_price, times, wide
from pdips.quantile.quantile_grid import RecursiveQuantiles, check_quantiles, recursive_splits

MEDIAN = [Fraction(1, 2)]
QUARTERS = [Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)]
UNEVEN = [Fraction(1, 10), Fraction(1, 2), Fraction(99, 100)]
FIFTIETHS = [Fraction(i, 50) for i in range(1, 50)]
LATE, EARLY = [Fraction(1, 50), Fraction(49, 50)], [Fraction(49, 50), Fraction(1, 50)]
COUNTS = np.array([1, 3, 3, 6])


def problem(kind, counts, n, taus, epsilon=2, neighbours="replace-one", parts=1):
    counts, epsilon = np.asarray(counts), Fraction(epsilon)
    return kind(cumulative=counts, n=n, taus=taus, epsilon=epsilon, neighbours=neighbours, parts=parts)


def joint(*words, **settings):
    return problem(JointQuantiles, *words, **settings)


def halving(*words, **settings):
    return problem(RecursiveQuantiles, *words, **settings)


def law_of(tried, base=None):
    """The law by its definition; ``base`` says how many points of the grid each of these stands for."""
    positions, logs = tried.law()
    if base is not None:
        logs = logs + np.log(base)[positions].sum(axis=1)
    return dict(zip(map(tuple, positions.tolist()), logs - np.logaddexp.reduce(logs), strict=True))


def log_probability(tried, positions):
    """The log probability with which joint quantiles are drawn at these positions."""
    total = 0.0
    for j, following in enumerate([*positions[1:], None]):
        weights = tried._candidates(j, following)
        with np.errstate(divide="ignore"):
            logs = np.log(weights.mantissa) + weights.exponent * np.log(2.0)
        total += logs[positions[j]] - np.logaddexp.reduce(logs)
    return total


def fits(drawn, law):
    counts, expected = frequencies(drawn, law)
    return stats.chisquare(counts, expected).pvalue


# Laws


@pytest.mark.parametrize("seed", range(12))
def test_the_joint_law_drawn_from_is_the_one_defined(seed):
    rng = np.random.default_rng(seed)
    n, n_points = int(rng.integers(0, 12)), int(rng.integers(1, 7))
    counts = np.sort(rng.integers(0, n + 1, n_points))
    numerators = np.sort(rng.choice(np.arange(1, 20), int(rng.integers(1, 4)), replace=False))
    taus = [Fraction(int(numerator), 20) for numerator in numerators]
    parts = int(rng.integers(1, 4)) if n_points < 4 else 1
    tried = joint(counts, n, taus, int(rng.integers(1, 40)), parts=parts)
    for positions, log in law_of(tried).items():
        assert log_probability(tried, positions) == pytest.approx(log, abs=1e-11)


def test_weights_far_beyond_the_range_of_doubles():
    # misfits of up to 2 * 10^6 records at 2.5 nats each
    tried = joint([0, 250_003, 600_000, 900_000], 10**6, QUARTERS, 10)
    logs = np.array([log_probability(tried, positions) - log for positions, log in law_of(tried).items()])
    assert len(logs) == 20
    assert np.abs(logs).max() < 1e-8  # the enumeration itself is rounded at 5 * 10^6 nats
    assert min(law_of(tried).values()) < -(10**6)


def test_the_certified_error_holds_and_is_small():
    assert float(rounding_price(49, 1024)) < 1e-9
    counts = np.sort(np.random.default_rng(0).integers(0, 5001, 64))
    tried = joint(counts, 5000, FIFTIETHS[::7], 1)
    # the forward pass in decimal arithmetic from the same definition
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
    assert max(abs(a / b - 1) for a, b in zip(ours, exact, strict=True)) < Decimal(float(rounding_price(5, 64)))


def test_the_law_of_halving_is_that_of_its_definition():
    # quarters, spelt out: the median of 7 among four points, then each half from the records on its side
    law = halving(COUNTS, 7, QUARTERS).log_probabilities()

    def weights(low, high, below, above):
        candidates = np.arange(low, high + 1)
        scores = np.exp(-0.5 * np.abs(COUNTS[candidates] - below - (above - below) / 2))
        return dict(zip(candidates.tolist(), scores / scores.sum(), strict=True))

    total = 0.0
    for median, p in weights(0, 3, 0, 7).items():
        for low, p_low in weights(0, median, 0, COUNTS[median]).items():
            for high, p_high in weights(median, 3, COUNTS[median], 7).items():
                assert np.exp(law[low, median, high]) == pytest.approx(p * p_low * p_high)
                total += p * p_low * p_high
    assert total == pytest.approx(1)
    assert len(law) == 20


def test_parts_share_the_records_of_a_cell_evenly():
    assert joint([2, 5], 5, QUARTERS, parts=3).heights.tolist() == [2, 4, 6, 9, 12, 15]


# Prices


@pytest.mark.parametrize("taus", [MEDIAN, QUARTERS[::2], QUARTERS, UNEVEN])
@pytest.mark.parametrize("base", [None, [1, 1, 10**9], [1, 10**9, 1]])
def test_no_pair_of_tiny_tables_costs_more_than_epsilon_jointly(neighbours, taus, base):
    for n, parts in product(range(5), (1, 2)):
        points = None if base is None else np.repeat(base, parts)

        def law(counts, n, parts=parts, points=points):
            return law_of(joint(counts, n, taus, 1, neighbours, parts), points)

        assert worst_loss(law, n, 3, neighbours) <= 1 + 1e-12


JOINTLY = [("replace-one", QUARTERS, 4), ("replace-one", QUARTERS[:2], 4), ("add-remove", QUARTERS[::2], 3)]
JOINTLY += [("add-remove", QUARTERS[:2], 3), ("add-remove", [Fraction(1, 3), Fraction(2, 3)], 2)]


@pytest.mark.parametrize(("neighbours", "taus", "n"), JOINTLY)
def test_the_joint_price_is_attained_and_half_the_sensitivity_is_caught(neighbours, taus, n):
    base = np.array([1, 1, 10**9])  # many points in a cell tilt the law: the mean of the ratio lies at its far end

    def law(counts, n, factor=1, n_points=3):
        tried = joint(counts, n, taus, 1, neighbours)
        vars(tried)["unit"] = factor * tried.unit
        return law_of(tried, np.resize(base, n_points))

    assert 0.999 < worst_loss(law, n, 3, neighbours) <= 1 + 1e-12
    assert worst_loss(lambda counts, n: law(counts, n, 2), n, 3, neighbours) > 1.9
    if n < 4:
        assert worst_loss(lambda counts, n: law(counts, n, 1, 5), n, 5, neighbours) <= 1 + 1e-12


def loss(taus, epsilon, neighbours, allocation=None, *, n=4, n_points=3, parts=1, measured=None):
    """The worst loss by halving; with an allocation, levels have these parts of epsilon in place of equal ones."""
    levels = recursive_splits(taus, Fraction(epsilon), neighbours)
    factors = [len(levels) * part for part in allocation] if allocation else [1] * len(levels)
    of = zip(levels, factors, strict=True)
    priced = [replace(split, unit=split.unit * factor) for level, factor in of for split in level]

    def law(counts, n):
        tried = halving(counts, n, taus, epsilon, neighbours, parts)
        vars(tried)["splits"] = priced
        return tried.log_probabilities()

    return worst_loss(law, n, n_points, measured or neighbours)


@pytest.mark.parametrize("taus", [MEDIAN, QUARTERS[:2], QUARTERS, UNEVEN, [Fraction(i, 6) for i in range(1, 6)]])
@pytest.mark.parametrize("epsilon", [1, 6])
def test_no_pair_of_tiny_tables_costs_more_than_epsilon_by_halving(neighbours, taus, epsilon):
    for n, parts in product(range(5), (1, 2)):
        if len(taus) < 5 or (parts == 1 and n < 4):
            assert loss(taus, epsilon, neighbours, n=n, parts=parts) <= epsilon * (1 + 1e-12)
    for allocation in (LATE, EARLY) if len(taus) == 3 else ():
        assert loss(taus, epsilon, neighbours, allocation, n=3, n_points=5) <= epsilon * (1 + 1e-12)


@pytest.mark.parametrize(
    ("neighbours", "taus", "allocation", "closeness"),
    [
        ("replace-one", MEDIAN, None, 0.95),
        ("add-remove", MEDIAN, None, 0.999),
        ("add-remove", QUARTERS, None, 0.99),
        ("replace-one", QUARTERS, LATE, 0.91),
        ("replace-one", QUARTERS, EARLY, 0.93),
        ("add-remove", UNEVEN, LATE, 0.99),
    ],
)
def test_the_price_of_halving_is_nearly_attained(neighbours, taus, allocation, closeness):
    assert closeness * 6 < loss(taus, 6, neighbours, allocation, n_points=4) <= 6 * (1 + 1e-12)
    if taus == MEDIAN:  # the broken twin: half the sensitivity
        assert loss(taus, 12, neighbours, n_points=4) > 1.9 * 6


def test_a_level_priced_by_its_dearest_split_alone_overspends_under_replace_one():
    # parallel composition as it is often stated: right for a record added or removed, not for one that changes halves
    assert loss(QUARTERS, 6, "add-remove", LATE, n_points=4, measured="replace-one") > 1.5 * 6


def test_the_units_of_halving_spend_each_level_exactly():
    for neighbours, factor in (("add-remove", 2), ("replace-one", 4)):
        (root,), *others = recursive_splits(UNEVEN, Fraction(1), neighbours)
        reach = max(root.share, 1 - root.share)
        assert root.unit == Fraction(1, 2) / (2 if neighbours == "replace-one" else 2 * reach)
        for split in others[0]:
            assert split.unit * factor * max(split.share, 1 - split.share) == Fraction(1, 2)
    assert [len(level) for level in recursive_splits(FIFTIETHS, Fraction(1), "replace-one")] == [1, 2, 4, 8, 16, 18]


# Draws


@pytest.mark.parametrize("certain", [False, True])
def test_joint_draws_have_their_law_and_a_forgotten_gap_is_caught(certain, monkeypatch):
    if certain:  # every draw is decided by rationals
        monkeypatch.setattr(wide_numbers, "FILTER", 1.0)
    n_draws = 3_000 if certain else 100_000
    tried = joint(COUNTS, 7, QUARTERS[:2], 3)
    assert fits(tried.draw(seeded(), n_draws), law_of(tried)) > ACCEPT
    if not certain:
        original = JointQuantiles._candidates

        def without_gap(self, j, following):
            if following is None:
                return original(self, j, following)
            return self.forward[j].take(np.arange(following + 1))

        monkeypatch.setattr(JointQuantiles, "_candidates", without_gap)
        assert fits(tried.draw(seeded(), n_draws), law_of(tried)) < REJECT


@pytest.mark.parametrize("chunk", [2**20, 64])
def test_draws_by_halving_have_their_law_and_a_shifted_one_is_caught(chunk, monkeypatch):
    monkeypatch.setattr(quantile_grid, "CELLS_AT_ONCE", chunk)
    made, other = (halving(COUNTS, 7, QUARTERS, epsilon, "add-remove", 2) for epsilon in (3, Fraction(33, 10)))
    drawn = made.draw(seeded(), 50_000 if chunk > 64 else 4_000)
    assert fits(drawn, made.log_probabilities()) > ACCEPT
    if chunk > 64:
        assert fits(drawn, other.log_probabilities()) < REJECT


@pytest.mark.parametrize("kind", [JointQuantiles, RecursiveQuantiles])
def test_quantiles_never_cross_and_are_points_of_the_grid(kind):
    rng = np.random.default_rng(0)
    for n, parts in [(0, 1), (1, 3), (40, 2), (3_000, 1)]:
        counts = np.sort(rng.integers(0, n + 1, 40))
        drawn = problem(kind, counts, n, FIFTIETHS, "1/2", "add-remove", parts).draw(seeded(), 3)
        assert drawn.shape == (3, 49)
        assert (np.diff(drawn, axis=1, prepend=0, append=39) >= 0).all()


def test_rank_errors_are_far_below_those_of_separate_quantiles():
    # standard errors of the means over 8 or 20 runs: about 5, 4 and 10 records
    values, n = np.sort(np.random.default_rng(3).exponential(10, 5_000)), 5_000
    counts = np.searchsorted(values, np.geomspace(0.01, 1000, 512), side="right")
    targets = np.array([float(tau) for tau in FIFTIETHS]) * n

    def error(drawn):
        return np.abs(counts[drawn] - targets).mean()

    together = error(joint(counts, n, FIFTIETHS, "1/2").draw(seeded(), 8))
    halved = error(halving(counts, n, FIFTIETHS, "1/2", parts=8).draw(seeded(), 20))
    alone = [joint(counts, n, [tau], Fraction(1, 98)).draw(seeded(i), 8)[:, 0] for i, tau in enumerate(FIFTIETHS)]
    assert max(together, halved) < 60
    assert together < halved + 10
    assert error(np.sort(np.transpose(alone), axis=1)) > 90


ATOMS = {
    JointQuantiles: (2_000, 0.3, 128, [Fraction(i, 20) for i in range(1, 20)], 4, 15, 60),
    RecursiveQuantiles: (5_000, 0.5, 256, FIFTIETHS, 20, 20, 100),
}


@pytest.mark.parametrize("kind", ATOMS)
def test_parts_keep_quantiles_near_an_atom_where_they_belong(kind):
    # many records share one value: quantiles beside it must not be drawn towards it
    n_records, share, n_points, taus, runs, near, far = ATOMS[kind]
    rng = np.random.default_rng(4)
    values = np.where(rng.random(n_records) < share, 5.0, rng.exponential(10, n_records))
    counts = np.searchsorted(np.sort(values), np.geomspace(0.01, 1000, n_points), side="right")
    below = np.concatenate([[0], counts[:-1]])
    targets = np.array([float(tau) for tau in taus]) * n_records

    def error(parts: int) -> float:
        drawn = problem(kind, counts, n_records, taus, 1, parts=parts).draw(seeded(), runs)
        return float(np.maximum(0, np.maximum(below[drawn] - targets, targets - counts[drawn])).mean())

    assert error(16) < near
    assert error(1) > far


# Numbers beyond doubles


def test_choices_with_weights_apart_by_more_than_doubles_hold():
    weights = wide(np.array([0.75, 0.5, 0.0, 0.5, 0.75]), np.array([-5000, 1, 0, 0, -90_000]))
    assert set(choose(weights, 2_000, seeded()).tolist()) == {1, 3}
    enclosure = wide_numbers.enclosure(weights)
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


@pytest.mark.parametrize(
    ("taus", "message"),
    [
        ([], "quantiles must be 1 to"),
        ([0.5], "fractions above 0"),
        ([Fraction(1)], "fractions above 0"),
        ([Fraction(1, 2), Fraction(1, 2)], "increasing order"),
        (QUARTERS[::-1], "increasing order"),
        ([Fraction(1, 10**6 + 3)], "common denominator"),
    ],
)
def test_quantiles_that_cannot_be_released_together_are_refused(taus, message):
    refuses(message, check_quantiles, taus)


def test_limits_of_parts_of_the_machinery():
    refuses("rate above 0", Powers, Fraction(101), 5)
    with pytest.raises(InputError, match="rate above 0"):  # rounding would take all of epsilon
        joint(COUNTS, 7, QUARTERS, Fraction(1, 10**14)).draw(seeded())
    refuses("below 2\\^40", Powers, Fraction(1), 2**40)
    for kind, taus in ((JointQuantiles, QUARTERS), (RecursiveQuantiles, FIFTIETHS)):
        refuses("tiny grids", problem(kind, np.arange(200), 200, taus).log_probabilities)
