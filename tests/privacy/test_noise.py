"""Noise is drawn from exactly the stated law. Chi-square checks: n = 50,000 or more,
seed fixed, false alarm 1e-6.
"""

import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from laws import ACCEPT, REJECT, chi_square, p_value, two_samples
from scipy import special, stats
from tables import bits as seeded
from tables import refuses

from pdips.privacy import noise
from pdips.privacy.noise import RandomBits

N, FEW = 50_000, 10_000
SCALES = [
    Fraction(1, 3),
    Fraction(2),
    Fraction(25, 2),
    Fraction(97),
    Fraction(400),
    Fraction(10**6),
]


def test_exponentials_are_enclosed_to_as_many_digits_as_are_asked_for():
    # Python's own context of 28 digits must not touch the argument
    rng = np.random.default_rng(3)
    for digits in (30, 40, 80, 160):
        for _ in range(20):
            exponent = Fraction(
                int(rng.integers(1, 10**15)), int(rng.integers(1, 7**17))
            )
            exponent = min(exponent, Fraction(50))
            low, high = noise._exp_bounds(exponent, digits)
            with localcontext() as context:
                context.prec = 400
                true = (-Decimal(exponent.numerator) / exponent.denominator).exp()
            assert low <= Fraction(true) <= high
            assert high - low < high * (exponent + 3) / Fraction(10) ** (digits - 2)


@pytest.mark.parametrize("scale", SCALES)
def test_discrete_laplace_has_its_law_and_no_other(scale):
    draws = noise.discrete_laplace(scale, N, seeded())
    # a coarser grid for wide laws: cells of ``divisor`` neighbouring values
    divisor = max(1, int(scale // 100))

    def fit(claimed: float) -> float:
        cdf = stats.dlaplace(1 / claimed).cdf
        cells = np.floor_divide(draws, divisor)
        return chi_square(
            cells, lambda cell: cdf((cell + 1) * divisor - 1) - cdf(cell * divisor - 1)
        )

    assert fit(float(scale)) > ACCEPT
    if scale >= 1:
        assert fit(0.9 * float(scale)) < REJECT
        assert fit(1.1 * float(scale)) < REJECT


def test_discrete_laplace_agrees_with_opendp():
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l1_distance(T=int)
    theirs = np.array(dp.m.make_laplace(*space, scale=7.5)([0] * N))
    assert (
        two_samples(noise.discrete_laplace(Fraction(15, 2), N, seeded()), theirs)
        > ACCEPT
    )
    assert (
        two_samples(
            noise.discrete_laplace(Fraction(15, 2) * Fraction(11, 10), N, seeded()),
            theirs,
        )
        < REJECT
    )


def exact_cumulative(rate: Fraction, size: int | None, k: int) -> Decimal:
    with localcontext() as context:
        context.prec = 120

        def survival(j: int) -> Decimal:
            return (-Decimal(rate.numerator) * j / Decimal(rate.denominator)).exp()

        whole = 1 - survival(size) if size else Decimal(1)
        return (1 - survival(k + 1)) / whole


@pytest.mark.parametrize(
    ("rate", "size"),
    [(Fraction(1, 3), None), (Fraction(1, 50), 32), (Fraction(5), None)],
)
@pytest.mark.parametrize("word_bits", [8, 64])
def test_thresholds_enclose_the_exact_distribution_function(rate, size, word_bits):
    digit = noise._Digit(rate, size, guide_bits=4, word_bits=word_bits)
    for k, threshold in enumerate(digit.thresholds):
        scaled = exact_cumulative(rate, size, k) * 2**word_bits
        assert int(threshold) < scaled < int(threshold) + 1
    assert (
        len(digit.thresholds) == size - 1
        if size and word_bits == 64
        else len(digit.thresholds) > 0
    )


@pytest.mark.parametrize("size", [None, 8])
def test_undecided_words_are_decided_by_more_bits(size):
    # words of 5 bits leave a third of the draws undecided, so that the rare branch is a
    # common one here
    digit = noise._Digit(Fraction(1, 4), size, guide_bits=3, word_bits=5)
    draws = digit.sample(FEW, seeded())
    law = stats.boltzmann(1 / 4, size) if size else stats.planck(1 / 4)
    assert chi_square(draws, law.pmf) > ACCEPT
    # the twin settles undecided words at their lower end: short words, rounded laws
    twin = np.searchsorted(
        digit.thresholds, seeded(1).words(FEW, np.uint64) >> np.uint64(59), side="left"
    )
    assert chi_square(twin, law.pmf) < REJECT


def test_guide_and_search_agree():
    digit = noise._Digit(Fraction(1, 30), None)
    draws = digit.sample(4000, seeded())
    heads = seeded().words(4000, np.uint16)
    decided = digit.guide[heads] >= 0
    words = heads.astype(np.uint64) << np.uint64(48)
    assert decided.mean() > 0.9
    assert (draws[decided] == np.searchsorted(digit.thresholds, words[decided])).all()


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(9), Fraction(200)])
def test_discrete_gaussian_has_its_law_and_no_other(variance):
    draws = noise.discrete_gaussian(variance, N, seeded())
    grid = np.arange(-400, 401)

    def pmf_of(claimed):
        weights = np.exp(-(grid**2) / (2 * claimed))
        return lambda z: np.exp(-(z**2) / (2 * claimed)) / weights.sum()

    assert chi_square(draws, pmf_of(float(variance))) > ACCEPT
    assert chi_square(draws, pmf_of(0.8 * float(variance))) < REJECT
    assert chi_square(draws, pmf_of(1.2 * float(variance))) < REJECT


def test_a_wide_gaussian_is_a_normal():
    # sigma = 2^35, beyond any table of probabilities; Kolmogorov-Smirnov at 1e-6; twins
    # 10 % off are rejected at 1e-9
    draws = noise.discrete_gaussian(Fraction(2**70), N, seeded()) / 2**35
    assert stats.kstest(draws, "norm").pvalue > ACCEPT
    for wrong in (0.9, 1.1):
        assert stats.kstest(draws * wrong, "norm").pvalue < REJECT


SCORES = np.array([0, -700, -1500, np.iinfo(np.int64).min, 40])


def test_exponential_mechanism_has_its_law_and_no_other():
    chosen = noise.exponential_mechanism(
        np.tile(SCORES, (N, 1)), Fraction(1, 500), seeded()
    )
    available = np.flatnonzero(SCORES != noise.UNAVAILABLE)
    counts = np.bincount(chosen, minlength=len(SCORES))[available]
    assert counts.sum() == N
    assert p_value(counts, special.softmax(SCORES[available] / 500)) > ACCEPT
    assert p_value(counts, special.softmax(SCORES[available] / 400)) < REJECT


def test_scores_far_below_the_best_count_as_sixty_nats_below(monkeypatch):
    # no candidate's probability may vanish
    monkeypatch.setattr(noise, "FLOOR_NATS", 3)
    chosen = noise.exponential_mechanism(
        np.tile([[0, -(10**6)]], (N, 1)), Fraction(1), seeded()
    )
    rare = math.exp(-3) / (1 + math.exp(-3))
    assert stats.binomtest(int((chosen == 1).sum()), N, rare).pvalue > ACCEPT


def test_quantise_is_exact():
    # 0.25 and 0.15 are one step of 0.1 apart
    step, values = Fraction(1, 10), np.array([0.25, 0.15])
    exact = [math.floor(Fraction(v) / step + Fraction(1, 2)) for v in values]
    assert noise.quantise(values, step).tolist() == exact
    assert abs(np.diff(exact)[0]) <= math.ceil((Fraction(0.25) - Fraction(0.15)) / step)
    naive = np.floor(values / 0.1 + 0.5)
    assert abs(np.diff(naive)[0]) == 2
    values = (np.random.default_rng(0).integers(-(10**6), 10**6, 4000) + 0.5) / 10
    for step in (Fraction(1, 10), Fraction(1, 3), Fraction(1)):
        exact = [math.floor(Fraction(float(v)) / step + Fraction(1, 2)) for v in values]
        assert noise.quantise(values, step).tolist() == exact


def test_bits_come_from_the_operating_system_unless_seeded():
    assert not RandomBits().reproducible
    assert seeded().reproducible
    assert RandomBits().integer(256) != RandomBits().integer(256)
    assert seeded(5).integer(256) == seeded(5).integer(256)


def test_variance_formula_and_tiny_scales():
    assert noise.discrete_laplace_variance(Fraction(8)) == pytest.approx(
        stats.dlaplace(1 / 8).var()
    )
    for scale in (Fraction(1, 1000), Fraction(1, 10**7)):
        assert not noise.discrete_laplace(scale, 1000, seeded()).any()


REFUSED = [
    *(
        (
            partial(noise.discrete_laplace, Fraction(bad), 1, seeded()),
            "scale of the noise",
        )
        for bad in (0, -1, 2**51)
    ),
    *(
        (
            partial(noise.discrete_gaussian, Fraction(bad), 1, seeded()),
            "variance of the noise",
        )
        for bad in (0, f"1/1{'0' * 330}", 2**81)
    ),
    (
        partial(
            noise.exponential_mechanism,
            np.full((2, 3), -(2**63)),
            Fraction(1),
            seeded(),
        ),
        "at least one available",
    ),
    *(
        (
            partial(
                noise.exponential_mechanism,
                np.array([scores]),
                Fraction(unit),
                seeded(),
            ),
            "unit above 0 and scores",
        )
        for scores, unit in (
            ([0, 2**62], 1),
            ([0, -(2**62)], 1),
            ([0, 1], 0),
            ([0, 1], -1),
        )
    ),
    *(
        (partial(noise.quantise, np.array([1.0, bad]), Fraction(1)), "be finite")
        for bad in (np.nan, np.inf, 1e30)
    ),
    (lambda: noise.quantise(np.array([1.0]), Fraction(0)), "grid step"),
]


@pytest.mark.parametrize(("draw", "message"), REFUSED)
def test_what_cannot_be_drawn_is_refused(draw, message):
    refuses(message, draw)


# Coins and integers: a true law fails with probability 1e-6, a twin must score below
# 1e-9

COINS = 300_000


def toss(
    prior: int, balls: int, exponent: Fraction, n: int = COINS, seed: int = 0
) -> np.ndarray:
    same = np.zeros(n, dtype=np.int64)
    return noise.smoothing_coins(
        same + prior, same + balls, [exponent], same, seeded(seed)
    )


def probability(prior: int, balls: int, exponent: Fraction) -> float:
    return prior / (prior + balls * math.expm1(float(exponent)))


@pytest.mark.parametrize(
    ("prior", "balls", "exponent"),
    [(1, 1, 1), (7, 2, "1/3"), (12, 5000, "1/100"), (3, 1, 4)],
)
def test_coins_have_their_probability(prior, balls, exponent):
    heads = int(toss(prior, balls, Fraction(exponent)).sum())
    right = probability(prior, balls, Fraction(exponent))
    assert stats.binomtest(heads, COINS, right).pvalue > ACCEPT
    # the twin that takes x for e^x - 1
    wrong = prior / (prior + balls * float(Fraction(exponent)))
    assert (
        abs(wrong - right) < 0.006
        or stats.binomtest(heads, COINS, wrong).pvalue < REJECT
    )


CLOSE = np.random.default_rng(3).integers(-4000, 0, (400, 6))
DECIDED = {
    "coins": lambda: toss(7, 2, Fraction(1, 3), n=2000),
    "gaussian acceptance": lambda: noise.discrete_gaussian(Fraction(30), 300, seeded()),
    "choices": lambda: noise.exponential_mechanism(CLOSE, Fraction(1, 500), seeded()),
}


@pytest.mark.parametrize("draw", DECIDED.values(), ids=DECIDED)
def test_doubles_and_rationals_decide_alike(draw, monkeypatch):
    fast = draw()
    monkeypatch.setattr(noise, "FILTER", 2.0)
    assert (draw() == fast).all()


class Scripted(RandomBits):
    """Bits of which the first words are known."""

    def __init__(self, *words: int) -> None:
        super().__init__(np.random.default_rng(0))
        self.script = list(words)

    def words(self, n, dtype):
        known, self.script = self.script[:n], self.script[n:]
        return np.array([*known, *super().words(n - len(known), dtype)], dtype=dtype)


def test_a_word_beside_the_threshold_is_decided_exactly():
    # the threshold in 200 digits, far beyond a double
    ratio = Context(prec=200).exp(Decimal(1)) - 1
    threshold = int(Fraction(7) / (7 + 2 * Fraction(ratio)) * 2**64)
    one = np.ones(1, dtype=np.int64)
    for word, head in ((threshold - 1, True), (threshold + 1, False)):
        assert noise.smoothing_coins(
            7 * one, 2 * one, [Fraction(1)], 0 * one, Scripted(word)
        ).tolist() == [head]


def test_coins_that_are_nearly_sure():
    assert not toss(12, 1, Fraction(100_000), n=1000).any()
    assert toss(12, 1, Fraction(1, 10**300), n=1000).all()
    one = np.ones(1, dtype=np.int64)
    assert noise.smoothing_coins(
        one, one, [Fraction(20)], 0 * one, Scripted(0)
    ).tolist() == [True]
    bounds = noise._coin_bounds(1, 1, Fraction(2000), 4000)
    assert bounds[0] > 0  # a probability of e^-2000 is not 0


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 1000])
def test_integers_are_even(bound):
    drawn = noise.integers_below(np.full(COINS, bound), seeded())
    assert drawn.min() >= 0
    assert drawn.max() < bound
    counts = np.bincount(drawn, minlength=bound)
    assert bound == 1 or stats.chisquare(counts).pvalue > ACCEPT
    assert (
        bound < 10
        or stats.chisquare(
            np.bincount(drawn % (bound - 1), minlength=bound)[:-1]
        ).pvalue
        < REJECT
    )


def test_each_integer_has_its_own_bound_and_the_incomplete_last_block_is_drawn_again():
    bounds = np.arange(1, 2001)
    drawn = np.array([noise.integers_below(bounds, seeded(seed)) for seed in range(40)])
    assert (drawn < bounds).all()
    assert (drawn.max(axis=0)[100:] > bounds[100:] * 0.7).all()
    # 2^64 modulo 3 is 1, so the last word is refused, and without that 0 would be
    # likelier than 1 and 2
    last = 2**64 - 1
    assert noise.integers_below(np.array([3]), Scripted(last, 5)).tolist() == [2]
    assert noise.integers_below(np.array([3]), Scripted(last - 1)).tolist() == [
        (last - 1) % 3
    ]
    assert noise.integers_below(np.array([4]), Scripted(last)).tolist() == [3]
    assert noise.integers_below(
        np.array([2**62 + 1]), Scripted(3 * (2**62 + 1), 8)
    ).tolist() == [8]
