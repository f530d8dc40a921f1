"""The only place that draws noise: exact samplers, whose laws are never rounded (``docs/proofs/noise.md``).

A uniform number is revealed bit by bit, an approximation with a known error bound decides where it falls, and in the
rare case that the bits so far can't decide, more bits and more decimal digits are taken until they do. Bits come from
the operating system, or for tests and studies from a numpy Generator.
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
LONGEST_DIGIT = 6  # Bits of a low-order digit of a large draw: short tables, and draws that take hardly longer
LARGEST_SCALE = 2**50
UNAVAILABLE = np.iinfo(np.int64).min  # Score of a candidate that isn't available
FLOOR_NATS = 60  # How far below the best scores count at most, which costs nothing (docs/proofs/noise.md)
FILTER = 2.0**-30  # Half-width of the band around a threshold where exact arithmetic decides, not doubles


class RandomBits:
    """Uniform bits, from the operating system or, for tests, from a seeded generator.

    Whoever can repeat the bits can subtract the noise: what is published has none from a generator.
    """

    def __init__(self, rng: np.random.Generator | None = None) -> None:
        self.reproducible = rng is not None
        self._bytes = os.urandom if rng is None else rng.bytes
        self._rng = rng

    def words(self, n: int, dtype: type[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
        """Return ``n`` independent uniform words of ``dtype``."""
        return np.frombuffer(self._bytes(n * np.dtype(dtype).itemsize), dtype=dtype)

    def integer(self, n_bits: int) -> int:
        """Return a uniform integer below ``2**n_bits``; ``n_bits`` is a multiple of 8."""
        return int.from_bytes(self._bytes(n_bits // 8), "little")

    def generator(self) -> np.random.Generator:
        """Return a generator for post-processing, whose randomness protects nothing."""
        return np.random.default_rng() if self._rng is None else self._rng


class _LazyUniform:
    """A real number, uniform on [0, 1), of which ever more binary digits are revealed."""

    def __init__(self, prefix: int, n_bits: int, bits: RandomBits) -> None:
        self.prefix, self.n_bits, self.bits = prefix, n_bits, bits

    def below(self, bounds: Bounds) -> bool:
        """Decide whether the number is below the one that ``bounds(digits)`` encloses ever more tightly."""
        digits = START_DIGITS
        while True:
            low, high = bounds(digits)
            if Fraction(self.prefix + 1, 1 << self.n_bits) <= low:
                return True
            if Fraction(self.prefix, 1 << self.n_bits) >= high:
                return False
            self.prefix = self.prefix << WORD_BITS | self.bits.integer(WORD_BITS)
            self.n_bits += WORD_BITS
            digits *= 2


def _exp_bounds(exponent: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Enclose exp(-exponent), ``exponent >= 0``.

    Decimal division and exp are correctly rounded (General Decimal Arithmetic), so the relative error is below
    ``(exponent + 2) * 10**(1 - digits)``; a factor of two is added for good measure.
    """
    context = Context(prec=digits, Emin=-(10**17), Emax=10**17)
    quotient = context.divide(Decimal(exponent.numerator), Decimal(exponent.denominator))
    if quotient > 2 * digits:  # exp(-quotient) < 10**(-0.86 digits): enclosed without writing it out
        return Fraction(0), Fraction(1, 10 ** (digits // 2))
    value = Fraction(context.exp(-quotient))
    error = value * 2 * (math.ceil(exponent) + 2) / 10 ** (digits - 1)
    return value - error, value + error


class _Digit:
    """Inverse distribution function of P(X = k) ~ exp(-rate k), k = 0, ..., ``size - 1`` (all k if ``size`` is None).

    ``thresholds[j]`` is floor(2^word_bits P(X <= j)). A uniform word above it means X > j, one below it X <= j, and one
    equal to it doesn't say: then more bits are drawn. The first ``guide_bits`` alone decide all but a few draws.
    """

    def __init__(
        self, rate: Fraction, size: int | None, guide_bits: int = GUIDE_BITS, word_bits: int = WORD_BITS
    ) -> None:
        self.rate, self.size = rate, size
        self.guide_bits, self.word_bits = guide_bits, word_bits
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
            if word == math.ceil(high * 2**self.word_bits) - 1:  # the bounds are strict
                return int(word)
            digits *= 2

    def _find_thresholds(self) -> list[int]:
        last_word = 2**self.word_bits - 1
        found: list[int] = []
        while (self.size is None or len(found) < self.size - 1) and (not found or found[-1] < last_word):
            found.append(self._threshold(len(found)))
        return found

    def _make_guide(self) -> NDArray[np.int32]:
        """Return the outcome that the first ``guide_bits`` decide, or -1 where they don't."""
        n_rest = self.word_bits - self.guide_bits
        first = np.arange(2**self.guide_bits, dtype=np.uint64) << np.uint64(n_rest)
        last = first | np.uint64(2**n_rest - 1)
        outcome = np.searchsorted(self.thresholds, first, side="left")
        settled = outcome == np.searchsorted(self.thresholds, last, side="right")
        return np.where(settled, outcome, -1).astype(np.int32)

    def sample(self, n: int, bits: RandomBits) -> IntArray:
        heads = bits.words(n, np.uint16) >> np.uint16(GUIDE_BITS - self.guide_bits)
        outcome: IntArray = self.guide[heads].astype(np.int64)
        open_ = np.flatnonzero(outcome < 0)
        if not len(open_):
            return outcome
        n_rest = self.word_bits - self.guide_bits
        rest = bits.words(len(open_), np.uint64) >> np.uint64(WORD_BITS - n_rest)
        words = heads[open_].astype(np.uint64) << np.uint64(n_rest) | rest
        outcome[open_] = np.searchsorted(self.thresholds, words, side="left")
        padded = np.append(self.thresholds, np.uint64(0))
        beyond = outcome[open_] < len(self.thresholds)
        for i in np.flatnonzero(beyond & (padded[outcome[open_]] == words)):
            outcome[open_[i]] = self._resolve(int(words[i]), int(outcome[open_[i]]), bits)
        return outcome

    def _resolve(self, word: int, k: int, bits: RandomBits) -> int:
        uniform = _LazyUniform(word, self.word_bits, bits)
        while (self.size is None or k < self.size - 1) and not uniform.below(partial(self.cumulative, k)):
            k += 1
        return k


@lru_cache(maxsize=64)
def _digits(rate: Fraction) -> tuple[tuple[int, _Digit], ...]:
    """Return (place value, digit) pairs whose weighted sum is geometric: P(X = k) ~ exp(-rate k).

    The binary digits of a geometric variable are independent, since exp(-rate (d + 2^t h)) is a product; so low-order
    digits of a large one are drawn from short tables of their own, and every table stays below ``LONGEST_TABLE``.
    """
    found, place = [], 1
    while 45 / (rate * place) > LONGEST_TABLE:
        size = 2 ** min(LONGEST_DIGIT, int(1 / (rate * place)).bit_length() - 1)
        found.append((place, _Digit(rate * place, size)))
        place *= size
    return (*found, (place, _Digit(rate * place, None)))


def _geometric(rate: Fraction, n: int, bits: RandomBits) -> IntArray:
    total = np.zeros(n, dtype=np.int64)
    for place, digit in _digits(rate):
        total += place * digit.sample(n, bits)
    return total


def check_scale(scale: Fraction, law: Literal["laplace", "gaussian"]) -> None:
    """Refuse a scale of discrete Laplace noise, or a variance of discrete Gaussian noise, that can't be drawn."""
    if law == "laplace" and not 0 < scale <= LARGEST_SCALE:
        raise InputError("the scale of the noise must be above 0 and at most 2^50: epsilon is too small for this table")
    if law == "gaussian" and not Fraction(1, 2**40) <= scale <= 2**80:
        raise InputError("the variance of the noise must be at least 2^-40 and at most 2^80")


def discrete_laplace(scale: Fraction, n: int, bits: RandomBits) -> IntArray:
    """Draw exact discrete Laplace noise, P(Z = z) = (1 - r) / (1 + r) r^|z| with r = exp(-1 / scale).

    The difference of two independent geometric variables (Ghosh, Roughgarden and Sundararajan, 2012, call the law
    two-sided geometric). Exactness: ``docs/proofs/noise.md``, theorem 1.
    """
    check_scale(scale, "laplace")
    rate = 1 / Fraction(scale)
    return _geometric(rate, n, bits) - _geometric(rate, n, bits)


def discrete_laplace_variance(scale: Fraction) -> float:
    """Return the variance 2 r / (1 - r)^2 of :func:`discrete_laplace`, r = exp(-1 / scale)."""
    rate = float(1 / scale)
    return 2 * math.exp(-rate) / math.expm1(-rate) ** 2


def discrete_gaussian(variance: Fraction, n: int, bits: RandomBits) -> IntArray:
    """Draw exact discrete Gaussian noise, P(Z = z) ~ exp(-z^2 / (2 variance)).

    Rejection from the discrete Laplace (Canonne, Kamath and Steinke, 2020, algorithm 3), with each acceptance decided
    exactly. A release of integer statistics with l2-sensitivity D is (D^2 / (2 sigma^2))-zCDP (their theorem 4).
    """
    check_scale(variance, "gaussian")
    variance = Fraction(variance)
    scale = math.isqrt(math.floor(variance)) + 1
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < n:
        proposals = discrete_laplace(Fraction(scale), int(1.5 * (n - len(drawn))) + 16, bits)
        drawn = np.concatenate([drawn, proposals[_accept_gaussian(proposals, variance, scale, bits)]])
    return drawn[:n]


def _accept_gaussian(proposals: IntArray, variance: Fraction, scale: int, bits: RandomBits) -> BoolArray:
    """Toss a coin of probability exp(-(|z| - variance / scale)^2 / (2 variance)) for each proposal z."""
    centre = variance / scale
    probability = np.exp(-((np.abs(proposals) - float(centre)) ** 2) / (2 * float(variance)))

    def bounds(i: int) -> Bounds:
        return partial(_exp_bounds, (abs(int(proposals[i])) - centre) ** 2 / (2 * variance))

    return _toss(probability, bounds, bits)


def _toss(probability: FloatArray, bounds: Callable[[int], Bounds], bits: RandomBits) -> BoolArray:
    """Toss coins of probabilities that are known as doubles and, for the i-th coin, enclosed by ``bounds(i)``."""
    words = bits.words(len(probability), np.uint64)
    uniform = words.astype(np.float64) * 2.0**-WORD_BITS
    tossed: BoolArray = uniform < probability
    for i in np.flatnonzero(np.abs(uniform - probability) < FILTER):
        tossed[i] = _LazyUniform(int(words[i]), WORD_BITS, bits).below(bounds(int(i)))
    return tossed


def smoothing_coins(
    prior: IntArray, balls: IntArray, exponents: Sequence[Fraction], which: IntArray, bits: RandomBits
) -> BoolArray:
    """Toss coins of probability w / (w + b (e^x - 1)), exactly; ``which`` exponent is each coin's x.

    That is the probability of a ball of the prior in an urn that has b balls beside a prior of total weight
    w / (e^x - 1).
    """
    with np.errstate(over="ignore"):
        growth = np.expm1([float(exponent) for exponent in exponents])[which]
        probability = prior / (prior + balls * growth)

    def bounds(i: int) -> Bounds:
        return partial(_coin_bounds, int(prior[i]), int(balls[i]), exponents[int(which[i])])

    return _toss(probability, bounds, bits)


def _coin_bounds(prior: int, balls: int, exponent: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Enclose w y / (w y + b (1 - y)), y = e^-x, which rises with y."""
    least, most = _exp_bounds(exponent, digits)
    low, high = (prior * y / (prior * y + balls * (1 - y)) for y in (max(least, Fraction(0)), min(most, Fraction(1))))
    return low, high


def decay_coins(steps: IntArray, unit: Fraction, bits: RandomBits) -> BoolArray:
    """Toss coins of probability exp(-unit * steps), exactly; ``unit`` is in nats a step."""
    return _toss(np.exp(-steps * float(unit)), lambda i: partial(_exp_bounds, unit * int(steps[i])), bits)


def integers_below(bounds: IntArray, bits: RandomBits) -> IntArray:
    """Draw integers, each uniform on 0, 1, ..., bound - 1 for a bound of its own.

    A 64-bit word is taken modulo the bound unless it lies in the incomplete last block of that length; then another one
    is drawn. So all values have one probability (``docs/proofs/urns.md``, lemma 1).
    """
    limits = bounds.astype(np.uint64)
    drawn, open_ = np.empty(len(bounds), dtype=np.int64), np.arange(len(bounds))
    while len(open_):
        words, limit = bits.words(len(open_), np.uint64), limits[open_]
        excess = (~limit + np.uint64(1)) % limit  # 2^64 modulo the bound
        accepted = words <= ~excess  # below 2^64 - excess, a multiple of the bound; excess = 0 accepts everything
        drawn[open_[accepted]] = (words % limit)[accepted].astype(np.int64)
        open_ = open_[~accepted]
    return drawn


def exponential_mechanism(scores: IntArray, unit: Fraction, bits: RandomBits) -> IntArray:
    """Choose one candidate in each row with probability proportional to exp(unit * score), exactly.

    ``scores`` (rows, candidates) are whole steps of a public grid, ``unit`` nats a step; the smallest int64 marks a
    candidate that isn't available, which must be public. Scores more than 60 nats below the best of their row count as
    60 below, which costs nothing; the law is the softmax itself (``docs/proofs/noise.md``, theorem 3).
    """
    below, available = _steps_below_best(scores, unit)
    weights = np.where(available, np.exp(-below * float(unit)), 0.0)
    cumulative = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
    words = bits.words(len(scores), np.uint64)
    uniform = (words.astype(np.float64) * 2.0**-WORD_BITS)[:, None]
    chosen = np.minimum((cumulative <= uniform).sum(axis=1), scores.shape[1] - 1)
    unsure = (np.abs(cumulative - uniform) < FILTER).any(axis=1)
    for i in np.flatnonzero(unsure):
        chosen[i] = _choose_exactly(below[i], available[i], unit, _LazyUniform(int(words[i]), WORD_BITS, bits))
    return np.asarray(chosen, dtype=np.int64)


def choice_log_probabilities(scores: IntArray, unit: Fraction) -> FloatArray:
    """Return the log probabilities with which :func:`exponential_mechanism` chooses, to double precision."""
    below, available = _steps_below_best(scores, unit)
    logits = np.where(available, -below * float(unit), -np.inf)
    return np.asarray(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))


def _steps_below_best(scores: IntArray, unit: Fraction) -> tuple[IntArray, BoolArray]:
    """Return how far each score is below the best of its row, ``FLOOR_NATS`` at most, and which ones are available."""
    available = scores != UNAVAILABLE
    if scores.ndim != 2 or not available.any(axis=1).all():
        raise InputError("the exponential mechanism needs at least one available candidate a row")
    if unit <= 0 or (np.abs(scores[available]) >= 2**61).any():
        raise InputError("the exponential mechanism needs a unit above 0 and scores within 2^61 steps of 0")
    best = scores.max(axis=1, keepdims=True)
    below = np.where(available, best - np.where(available, scores, best), 0)
    return np.minimum(below, min(math.ceil(FLOOR_NATS / unit), 2**62)), available


class _Enclosure:
    """Cumulative probabilities of candidates between rationals, from ever tighter bounds of each one's weight."""

    def __init__(self, candidates: IntArray, weights: Callable[[int], list[tuple[Any, Any]]]) -> None:
        self.candidates = candidates
        self._sums = cache(lambda digits: [list(accumulate(side)) for side in zip(*weights(digits), strict=True)])

    def bounds(self, k: int, digits: int) -> tuple[Fraction, Fraction]:
        """Enclose the cumulative probability of the k-th candidate."""
        low, high = self._sums(digits)
        return Fraction(low[k], low[k] + high[-1] - high[k]), Fraction(high[k], high[k] + low[-1] - low[k])

    def find(self, uniform: _LazyUniform) -> int:
        """Return the first candidate whose cumulative probability is above the uniform number, by bisection."""
        first, last = 0, len(self.candidates) - 1
        while first < last:
            middle = (first + last) // 2
            first, last = (first, middle) if uniform.below(partial(self.bounds, middle)) else (middle + 1, last)
        return int(self.candidates[first])


def _choose_exactly(below: IntArray, available: BoolArray, unit: Fraction, uniform: _LazyUniform) -> int:
    candidates = np.flatnonzero(available)
    steps = [int(below[c]) for c in candidates]

    def weights(digits: int) -> list[tuple[Fraction, Fraction]]:
        enclosed = {step: _exp_bounds(unit * step, digits) for step in set(steps)}
        return [enclosed[step] for step in steps]

    return _Enclosure(candidates, weights).find(uniform)


def quantise(values: FloatArray, step: Fraction) -> IntArray:
    """Round to whole steps, floor(x / step + 1/2), as if in exact arithmetic.

    Two values at most D apart are at most ceil(D / step) steps apart, which neither half-to-even rounding nor the same
    formula in doubles can promise (``docs/proofs/noise.md``).
    """
    if step <= 0:
        raise InputError("the grid step must be above 0")
    scaled = values / float(step) + 0.5
    if not (np.abs(scaled) < 2.0**40).all():
        raise InputError("values to be rounded must be finite and within 2^40 grid steps of 0")
    steps: IntArray = np.floor(scaled).astype(np.int64)
    nearest = np.abs(scaled - np.rint(scaled)) < 2.0**-10
    for i in np.flatnonzero(nearest):
        steps.flat[i] = math.floor(Fraction(float(values.flat[i])) / step + Fraction(1, 2))
    return steps
