"""The only place that draws noise: exact samplers, whose laws are never rounded
(``docs/proofs/noise.md``).

A uniform number is revealed bit by bit, an approximation with a known error bound
decides where it falls, and in the rare case that the bits so far can't decide, more
bits and more decimal digits are taken until they do. Bits come from the operating
system, or for tests and studies from a numpy Generator.
"""

import math
import os
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache, lru_cache, partial
from itertools import accumulate
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.errors import InputError

Bounds = Callable[[int], tuple[Fraction, Fraction]]

WORD_BITS = 64
GUIDE_BITS = 16
START_DIGITS = 40
LONGEST_TABLE = 4096
# Bits of a low-order digit of a large draw: short tables, and draws that take hardly
# longer
LONGEST_DIGIT = 6
LARGEST_SCALE = 2**50
UNAVAILABLE = np.iinfo(np.int64).min  # Score of a candidate that isn't available
# How far below the best scores count at most, which costs nothing
# (docs/proofs/noise.md)
FLOOR_NATS = 60
# Half-width of the band around a threshold where exact arithmetic decides, not doubles
FILTER = 2.0**-30


class RandomBits:
    """Uniform bits, from the operating system or, for tests, from a seeded generator.

    Whoever can repeat the bits can subtract the noise: what is published has none from
    a generator.
    """

    def __init__(self, rng: np.random.Generator | None = None) -> None:
        self.reproducible = rng is not None
        self._bytes = os.urandom if rng is None else rng.bytes
        self._rng = rng

    def words(
        self, n: int, dtype: type[np.unsignedinteger]
    ) -> NDArray[np.unsignedinteger]:
        """Return ``n`` independent uniform words of ``dtype``."""
        return np.frombuffer(self._bytes(n * np.dtype(dtype).itemsize), dtype=dtype)

    def integer(self, n_bits: int) -> int:
        """Return a uniform integer below ``2**n_bits``; ``n_bits`` is a multiple
        of 8.
        """
        return int.from_bytes(self._bytes(n_bits // 8), "little")

    def given_noise(
        self, law: Literal["laplace", "gaussian"], parameter: Fraction, n: int
    ) -> IntArray | None:
        """Return noise that is given in place of draws, or None: draw it.

        Releases draw. An audit that follows a path of given answers sees here what the
        samplers are told: the law, its scale or variance, and how many draws.
        """
        return None

    def given_choices(self, scores: IntArray, unit: Fraction) -> IntArray | None:
        """Return choices that are given, one a row of scores, or None: draw them."""
        return None

    def generator(self) -> np.random.Generator:
        """Return a generator for post-processing, whose randomness protects nothing."""
        return np.random.default_rng() if self._rng is None else self._rng


class _LazyUniform:
    """A real number, uniform on [0, 1), of which ever more binary digits are
    revealed.
    """

    def __init__(self, prefix: int, n_bits: int, bits: RandomBits) -> None:
        self.prefix = prefix
        self.n_bits = n_bits
        self.bits = bits

    def below(self, bounds: Bounds) -> bool:
        """Decide whether the number is below the one that ``bounds(digits)`` encloses
        ever more tightly.
        """
        digits = START_DIGITS
        while True:
            low, high = bounds(digits)
            unit = Fraction(1, 1 << self.n_bits)
            if (self.prefix + 1) * unit <= low:
                return True
            if self.prefix * unit >= high:
                return False
            more_bits = self.bits.integer(WORD_BITS)
            self.prefix = self.prefix << WORD_BITS | more_bits
            self.n_bits += WORD_BITS
            digits *= 2


def _exp_bounds(exponent: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Enclose exp(-exponent), ``exponent >= 0``.

    Decimal division and exp are correctly rounded (General Decimal Arithmetic), so the
    relative error is below ``(exponent + 2) * 10**(1 - digits)``; a factor of two is
    added for good measure.
    """
    context = Context(prec=digits, Emin=-(10**17), Emax=10**17)
    quotient = context.divide(
        Decimal(exponent.numerator), Decimal(exponent.denominator)
    )
    # exp(-quotient) < 10**(-0.86 digits): enclosed without writing it out
    if quotient > 2 * digits:
        return Fraction(0), Fraction(1, 10 ** (digits // 2))
    # a minus sign would round to the 28 digits of Python's own context
    value = Fraction(context.exp(quotient.copy_negate()))
    relative_error = Fraction(2 * (math.ceil(exponent) + 2), 10 ** (digits - 1))
    error = value * relative_error
    return value - error, value + error


class _Digit:
    """Inverse distribution function of P(X = k) ~ exp(-rate k), k = 0, ..., ``size -
    1`` (all k if ``size`` is None).

    ``thresholds[j]`` is floor(2^word_bits P(X <= j)). A uniform word above it means X >
    j, one below it X <= j, and one equal to it doesn't say: then more bits are drawn.
    The first ``guide_bits`` alone decide all but a few draws.
    """

    def __init__(
        self,
        rate: Fraction,
        size: int | None,
        guide_bits: int = GUIDE_BITS,
        word_bits: int = WORD_BITS,
    ) -> None:
        self.rate = rate
        self.size = size
        self.guide_bits = guide_bits
        self.word_bits = word_bits
        self.thresholds = np.array(self._find_thresholds(), dtype=np.uint64)
        self.guide = self._make_guide()

    def cumulative(self, k: int, digits: int) -> tuple[Fraction, Fraction]:
        """Enclose P(X <= k) = (1 - exp(-rate (k + 1))) / (1 - exp(-rate size))."""
        low, high = _exp_bounds(self.rate * (k + 1), digits)
        if self.size is None:
            return 1 - high, 1 - low
        low_end, high_end = _exp_bounds(self.rate * self.size, digits)
        return (1 - high) / (1 - low_end), (1 - low) / (1 - high_end)

    def _threshold(self, k: int) -> int:
        digits = START_DIGITS
        while True:
            low, high = self.cumulative(k, digits)
            word = math.floor(low * 2**self.word_bits)
            last = math.ceil(high * 2**self.word_bits) - 1  # the bounds are strict
            if word == last:
                return int(word)
            digits *= 2

    def _find_thresholds(self) -> list[int]:
        last_word = 2**self.word_bits - 1
        thresholds: list[int] = []
        while self._goes_on(len(thresholds)):
            thresholds.append(self._threshold(len(thresholds)))
            if thresholds[-1] == last_word:
                break
        return thresholds

    def _goes_on(self, k: int) -> bool:
        """Whether there are outcomes beyond the k-th."""
        return self.size is None or k < self.size - 1

    def _make_guide(self) -> NDArray[np.int32]:
        """Return the outcome that the first ``guide_bits`` decide, or -1 where they
        don't.
        """
        n_rest = self.word_bits - self.guide_bits
        heads = np.arange(2**self.guide_bits, dtype=np.uint64)
        first = heads << np.uint64(n_rest)
        last = first | np.uint64(2**n_rest - 1)
        of_first = np.searchsorted(self.thresholds, first, side="left")
        of_last = np.searchsorted(self.thresholds, last, side="right")
        return np.where(of_first == of_last, of_first, -1).astype(np.int32)

    def sample(self, n: int, bits: RandomBits) -> IntArray:
        heads = bits.words(n, np.uint16) >> np.uint16(GUIDE_BITS - self.guide_bits)
        outcome: IntArray = self.guide[heads].astype(np.int64)
        open_ = np.flatnonzero(outcome < 0)
        if len(open_):
            outcome[open_] = self._decided_by_words(heads[open_], bits)
        return outcome

    def _decided_by_words(
        self, heads: NDArray[np.unsignedinteger], bits: RandomBits
    ) -> IntArray:
        """Return the outcomes of draws that their first bits don't decide."""
        n_rest = np.uint64(self.word_bits - self.guide_bits)
        rest = bits.words(len(heads), np.uint64) >> (np.uint64(WORD_BITS) - n_rest)
        words = (heads.astype(np.uint64) << n_rest) | rest
        outcome = np.searchsorted(self.thresholds, words, side="left")
        within = np.minimum(outcome, len(self.thresholds) - 1)
        # not decided by the word either
        for i in np.flatnonzero(self.thresholds[within] == words):
            outcome[i] = self._resolve(int(words[i]), int(outcome[i]), bits)
        return outcome

    def _resolve(self, word: int, k: int, bits: RandomBits) -> int:
        uniform = _LazyUniform(word, self.word_bits, bits)
        while self._goes_on(k) and not uniform.below(partial(self.cumulative, k)):
            k += 1
        return k


@lru_cache(maxsize=64)
def _digits(rate: Fraction) -> tuple[tuple[int, _Digit], ...]:
    """Return (place value, digit) pairs whose weighted sum is geometric: P(X = k) ~
    exp(-rate k).

    The binary digits of a geometric variable are independent, since exp(-rate (d + 2^t
    h)) is a product; so low-order digits of a large one are drawn from short tables of
    their own, and every table stays below ``LONGEST_TABLE``.
    """
    digits = []
    value = 1
    while 45 / (rate * value) > LONGEST_TABLE:
        n_bits = int(1 / (rate * value)).bit_length() - 1
        size = 2 ** min(LONGEST_DIGIT, n_bits)
        digits.append((value, _Digit(rate * value, size)))
        value *= size
    return (*digits, (value, _Digit(rate * value, None)))


def _geometric(rate: Fraction, n: int, bits: RandomBits) -> IntArray:
    total = np.zeros(n, dtype=np.int64)
    for value, digit in _digits(rate):
        total += value * digit.sample(n, bits)
    return total


def check_scale(scale: Fraction, law: Literal["laplace", "gaussian"]) -> None:
    """Refuse a scale of discrete Laplace noise, or a variance of discrete Gaussian
    noise, that can't be drawn.
    """
    if law == "laplace" and not 0 < scale <= LARGEST_SCALE:
        raise InputError(
            "the scale of the noise must be above 0 and at most 2^50: "
            "epsilon is too small for this table"
        )
    if law == "gaussian" and not Fraction(1, 2**40) <= scale <= 2**80:
        raise InputError(
            "the variance of the noise must be at least 2^-40 and at most 2^80"
        )


def discrete_laplace(scale: Fraction, n: int, bits: RandomBits) -> IntArray:
    """Draw exact discrete Laplace noise, P(Z = z) = (1 - r) / (1 + r) r^|z| with r =
    exp(-1 / scale).

    The difference of two independent geometric variables (Ghosh, Roughgarden and
    Sundararajan, 2012, call the law two-sided geometric). Exactness:
    ``docs/proofs/noise.md``, theorem 1.
    """
    check_scale(scale, "laplace")
    given = bits.given_noise("laplace", scale, n)
    if given is not None:
        return given
    rate = 1 / Fraction(scale)
    return _geometric(rate, n, bits) - _geometric(rate, n, bits)


def discrete_laplace_variance(scale: Fraction) -> float:
    """Return the variance 2 r / (1 - r)^2 of :func:`discrete_laplace`, r = exp(-1 /
    scale).
    """
    rate = float(1 / scale)
    return 2 * math.exp(-rate) / math.expm1(-rate) ** 2


def discrete_gaussian(variance: Fraction, n: int, bits: RandomBits) -> IntArray:
    """Draw exact discrete Gaussian noise, P(Z = z) ~ exp(-z^2 / (2 variance)).

    Rejection from the discrete Laplace (Canonne, Kamath and Steinke, 2020, algorithm
    3), with each acceptance decided exactly. A release of integer statistics with
    l2-sensitivity D is (D^2 / (2 sigma^2))-zCDP (their theorem 4).
    """
    check_scale(variance, "gaussian")
    given = bits.given_noise("gaussian", variance, n)
    if given is not None:
        return given
    variance = Fraction(variance)
    scale = math.isqrt(math.floor(variance)) + 1
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < n:
        n_proposals = int(1.5 * (n - len(drawn))) + 16
        proposals = discrete_laplace(Fraction(scale), n_proposals, bits)
        accepted = _accept_gaussian(proposals, variance, scale, bits)
        drawn = np.concatenate([drawn, proposals[accepted]])
    return drawn[:n]


def _accept_gaussian(
    proposals: IntArray, variance: Fraction, scale: int, bits: RandomBits
) -> BoolArray:
    """Toss a coin of probability exp(-(|z| - variance / scale)^2 / (2 variance)) for
    each proposal z.
    """
    centre = variance / scale
    away = np.abs(proposals) - float(centre)
    probability = np.exp(-(away**2) / (2 * float(variance)))

    def bounds(i: int) -> Bounds:
        exactly_away = abs(int(proposals[i])) - centre
        return partial(_exp_bounds, exactly_away**2 / (2 * variance))

    return _toss(probability, bounds, bits)


def _toss(
    probability: FloatArray, bounds: Callable[[int], Bounds], bits: RandomBits
) -> BoolArray:
    """Toss coins of probabilities that are known as doubles and, for the i-th coin,
    enclosed by ``bounds(i)``.
    """
    words = bits.words(len(probability), np.uint64)
    uniform = words.astype(np.float64) * 2.0**-WORD_BITS
    tossed: BoolArray = uniform < probability
    for i in np.flatnonzero(np.abs(uniform - probability) < FILTER):
        tossed[i] = _LazyUniform(int(words[i]), WORD_BITS, bits).below(bounds(int(i)))
    return tossed


def smoothing_coins(
    prior: IntArray,
    balls: IntArray,
    exponents: Sequence[Fraction],
    which: IntArray,
    bits: RandomBits,
) -> BoolArray:
    """Toss coins of probability w / (w + b (e^x - 1)), exactly; ``which`` exponent is
    each coin's x.

    That is the probability of a ball of the prior in an urn that has b balls beside a
    prior of total weight w / (e^x - 1).
    """
    with np.errstate(over="ignore"):
        growth = np.expm1([float(exponent) for exponent in exponents])[which]
        probability = prior / (prior + balls * growth)

    def bounds(i: int) -> Bounds:
        exponent = exponents[int(which[i])]
        return partial(_coin_bounds, int(prior[i]), int(balls[i]), exponent)

    return _toss(probability, bounds, bits)


def _coin_bounds(
    prior: int, balls: int, exponent: Fraction, digits: int
) -> tuple[Fraction, Fraction]:
    """Enclose w y / (w y + b (1 - y)), y = e^-x, which rises with y."""
    least, most = _exp_bounds(exponent, digits)

    def coin(y: Fraction) -> Fraction:
        return prior * y / (prior * y + balls * (1 - y))

    return coin(max(least, Fraction(0))), coin(min(most, Fraction(1)))


def decay_coins(steps: IntArray, unit: Fraction, bits: RandomBits) -> BoolArray:
    """Toss coins of probability exp(-unit * steps), exactly; ``unit`` is in nats a
    step.
    """

    def bounds(i: int) -> Bounds:
        return partial(_exp_bounds, unit * int(steps[i]))

    return _toss(np.exp(-steps * float(unit)), bounds, bits)


def integers_below(bounds: IntArray, bits: RandomBits) -> IntArray:
    """Draw integers, each uniform on 0, 1, ..., bound - 1 for a bound of its own.

    A 64-bit word is taken modulo the bound unless it lies in the incomplete last block
    of that length; then another one is drawn. So all values have one probability
    (``docs/proofs/urns.md``, lemma 1).
    """
    limits = bounds.astype(np.uint64)
    drawn = np.empty(len(bounds), dtype=np.int64)
    open_ = np.arange(len(bounds))
    while len(open_):
        words = bits.words(len(open_), np.uint64)
        limit = limits[open_]
        excess = (~limit + np.uint64(1)) % limit  # 2^64 modulo the bound
        # below 2^64 - excess, a multiple of the bound; excess = 0 accepts everything
        accepted = words <= ~excess
        drawn[open_[accepted]] = (words % limit)[accepted].astype(np.int64)
        open_ = open_[~accepted]
    return drawn


def exponential_mechanism(
    scores: IntArray, unit: Fraction, bits: RandomBits
) -> IntArray:
    """Choose one candidate in each row with probability proportional to exp(unit *
    score), exactly.

    ``scores`` (rows, candidates) are whole steps of a public grid, ``unit`` nats a
    step; the smallest int64 marks a candidate that isn't available, which must be
    public. Scores more than 60 nats below the best of their row count as 60 below,
    which costs nothing; the law is the softmax itself (``docs/proofs/noise.md``,
    theorem 3).
    """
    below, available = _steps_below_best(scores, unit)
    given = bits.given_choices(scores, unit)
    if given is not None:
        return given
    weights = np.where(available, np.exp(-below * float(unit)), 0.0)
    cumulative = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
    words = bits.words(len(scores), np.uint64)
    uniform = words.astype(np.float64)[:, None] * 2.0**-WORD_BITS
    chosen = np.minimum((cumulative <= uniform).sum(axis=1), scores.shape[1] - 1)
    is_near = np.abs(cumulative - uniform) < FILTER
    for i in np.flatnonzero(is_near.any(axis=1)):
        exactly = _LazyUniform(int(words[i]), WORD_BITS, bits)
        chosen[i] = _choose_exactly(below[i], available[i], unit, exactly)
    return np.asarray(chosen, dtype=np.int64)


def choice_log_probabilities(scores: IntArray, unit: Fraction) -> FloatArray:
    """Return the log probabilities with which :func:`exponential_mechanism` chooses, to
    double precision.
    """
    below, available = _steps_below_best(scores, unit)
    logits = np.where(available, -below * float(unit), -np.inf)
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def _steps_below_best(scores: IntArray, unit: Fraction) -> tuple[IntArray, BoolArray]:
    """Return how far each score is below the best of its row, ``FLOOR_NATS`` at most,
    and which ones are available.
    """
    available = scores != UNAVAILABLE
    if scores.ndim != 2 or not available.any(axis=1).all():
        raise InputError(
            "the exponential mechanism needs at least one available candidate a row"
        )
    if unit <= 0 or (np.abs(scores[available]) >= 2**61).any():
        raise InputError(
            "the exponential mechanism needs a unit above 0 and scores "
            "within 2^61 steps of 0"
        )
    best = scores.max(axis=1, keepdims=True)
    below = best - np.where(available, scores, best)
    floor = min(math.ceil(FLOOR_NATS / unit), 2**62)
    return np.minimum(below, floor), available


class _Enclosure:
    """Cumulative probabilities of candidates between rationals, from ever tighter
    bounds of each one's weight.
    """

    def __init__(
        self, candidates: IntArray, weights: Callable[[int], list[tuple[Any, Any]]]
    ) -> None:
        self.candidates = candidates
        self._weights = weights
        self._sums = cache(self._accumulated)

    def _accumulated(self, digits: int) -> tuple[list[Any], list[Any]]:
        least, most = zip(*self._weights(digits), strict=True)
        return list(accumulate(least)), list(accumulate(most))

    def bounds(self, k: int, digits: int) -> tuple[Fraction, Fraction]:
        """Enclose the cumulative probability of the k-th candidate."""
        low, high = self._sums(digits)
        least = Fraction(low[k], low[k] + high[-1] - high[k])
        most = Fraction(high[k], high[k] + low[-1] - low[k])
        return least, most

    def find(self, uniform: _LazyUniform) -> int:
        """Return the first candidate whose cumulative probability is above the uniform
        number, by bisection.
        """
        first = 0
        last = len(self.candidates) - 1
        while first < last:
            middle = (first + last) // 2
            if uniform.below(partial(self.bounds, middle)):
                last = middle
            else:
                first = middle + 1
        return int(self.candidates[first])


def _choose_exactly(
    below: IntArray, available: BoolArray, unit: Fraction, uniform: _LazyUniform
) -> int:
    candidates = np.flatnonzero(available)
    steps = [int(below[c]) for c in candidates]

    def weights(digits: int) -> list[tuple[Fraction, Fraction]]:
        enclosed = {step: _exp_bounds(unit * step, digits) for step in set(steps)}
        return [enclosed[step] for step in steps]

    return _Enclosure(candidates, weights).find(uniform)


def quantise(values: FloatArray, step: Fraction) -> IntArray:
    """Round to whole steps, floor(x / step + 1/2), as if in exact arithmetic.

    Two values at most D apart are at most ceil(D / step) steps apart, which neither
    half-to-even rounding nor the same formula in doubles can promise
    (``docs/proofs/noise.md``).
    """
    if step <= 0:
        raise InputError("the grid step must be above 0")
    scaled = values / float(step) + 0.5
    if not (np.abs(scaled) < 2.0**40).all():
        raise InputError(
            "values to be rounded must be finite and within 2^40 grid steps of 0"
        )
    steps: IntArray = np.floor(scaled).astype(np.int64)
    is_near = np.abs(scaled - np.rint(scaled)) < 2.0**-10
    for i in np.flatnonzero(is_near):
        exactly = Fraction(float(values.flat[i])) / step
        steps.flat[i] = math.floor(exactly + Fraction(1, 2))
    return steps
