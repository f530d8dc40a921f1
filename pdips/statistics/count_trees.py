"""Sums of independent counts by binary trees of convolutions, and counts given their sum."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numba import njit

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError

NATS = 50.0
"""How far below a cell's largest weight, in nats, its values are left out: e^-50 = 2e-22."""

NEGLIGIBLE = 1e-22
"""Entries of a sum below this share of the largest are left out."""

FFT_NEGLIGIBLE = 1e-13
"""The same where a sum was worked out by a fast Fourier transform, whose error is about 1e-16 of the largest entry."""

DIRECT = 1 << 24
"""Products up to which sums are worked out term by term."""

MOST_WEIGHTS = 1 << 25
"""Most weights held for the cells of one table: 256 MiB."""

LARGEST_TILT, SMALLEST_STEP = 1e3, 1e-12


@dataclass(frozen=True)
class NoiseLaw:
    """The law of the noise on each count, as :mod:`pdips.privacy.noise` draws it, up to a constant.

    Parameters
    ----------
    law : {"laplace", "gaussian"}
        Discrete Laplace noise, P(z) ~ exp(-abs(z) / b), or discrete Gaussian noise, P(z) ~ exp(-z^2 / (2 sigma^2)).
    scale : Fraction
        The scale b in records, or the parameter sigma^2 in squared records.

    Raises
    ------
    InputError
        If the scale is not above 0.
    """

    law: Literal["laplace", "gaussian"]
    scale: Fraction

    def __post_init__(self) -> None:
        given: object = self.scale
        if not isinstance(given, int | Fraction) or isinstance(given, bool) or given <= 0:
            raise InputError(f"the scale of the noise must be a Fraction above 0, got {self.scale!r}")

    def log_weights(self, noise: IntArray) -> FloatArray:
        """Return log P(noise) up to a constant, elementwise."""
        rate = float(1 / self.scale)
        if self.law == "laplace":
            return np.asarray(-np.abs(noise) * rate, dtype=np.float64)
        return np.asarray(noise.astype(np.float64) ** 2 * (-0.5 * rate), dtype=np.float64)

    def reach(self, tilt: float, nats: float) -> float:
        """Return from where on log P(z) + tilt z is below -nats for z > 0; infinite if nowhere."""
        if self.law == "laplace":
            rate = float(1 / self.scale) - tilt
            return nats / rate if rate > 0 else math.inf
        variance = float(self.scale)
        return tilt * variance + math.sqrt((tilt * variance) ** 2 + 2 * variance * nats)


@dataclass(frozen=True)
class Leaf:
    """The law of a count or a sum of counts: exp(log_scale) times ``weights`` of the values from ``low`` on."""

    low: int
    weights: FloatArray
    log_scale: float = 0.0


@dataclass(frozen=True)
class Kinds:
    """Cells by kind: noisy count and prior; how many there are of each."""

    noisy: IntArray
    alpha: FloatArray
    multiplicity: IntArray
    law: NoiseLaw
    n: int

    def leaves(self, tilt: float) -> list[Leaf]:
        """Return the law of a count of each kind, multiplied by exp(tilt j) and divided by its sum."""
        windows = self._windows(tilt)
        if _width(windows) > MOST_WEIGHTS:
            raise InputError(
                "the noise is too wide for exact draws of the counts given the noisy ones: take a larger epsilon or "
                "fewer records, or likelihood='plug-in'"
            )
        return [self._leaf(place, *window, tilt) for place, window in enumerate(windows)]

    def _windows(self, tilt: float) -> list[tuple[int, int]]:
        pairs = zip(self.noisy.tolist(), self.alpha.tolist(), strict=True)
        return [self._window(seen, alpha, tilt) for seen, alpha in pairs]

    def _window(self, seen: int, alpha: float, tilt: float) -> tuple[int, int]:
        nats = nats_of(alpha, self.n)
        low = min(max(seen, 0), self.n) - self.law.reach(-tilt, nats)
        high = min(max(seen, 0), self.n) + self.law.reach(tilt, nats)
        return int(max(math.floor(max(low, 0)), 0)), int(min(math.ceil(min(high, self.n)), self.n))

    def _leaf(self, place: int, low: int, high: int, tilt: float) -> Leaf:
        values = np.arange(low, high + 1)
        logs = log_prior(values, float(self.alpha[place])) + self.law.log_weights(self.noisy[place] - values)
        logs += tilt * (values - low)
        weights = np.exp(logs - logs.max())
        total = float(weights.sum())
        scale = float(logs.max()) + tilt * low + math.log(total)
        return _trimmed(Leaf(low, weights / total, scale), NEGLIGIBLE)

    def _moments(self, tilt: float) -> tuple[float, float]:
        """Return mean and standard deviation of the sum of all cells."""
        mean, variance = np.zeros(len(self.noisy)), np.zeros(len(self.noisy))
        for place, leaf in enumerate(self.leaves(tilt)):
            values = np.arange(len(leaf.weights))
            mean[place] = leaf.weights @ values
            variance[place] = leaf.weights @ (values - mean[place]) ** 2
            mean[place] += leaf.low
        return float(mean @ self.multiplicity), math.sqrt(float(variance @ self.multiplicity))

    def tilt(self, aim: float) -> float:
        """Return the tilt at which the cells add up to ``aim`` on average, nearly: its weight must not vanish."""
        mean, deviation = self._moments(0.0)
        low, high, step = 0.0, 0.0, 1 / max(deviation, 1.0)
        while abs(mean - aim) > 0.25 * deviation and abs(high - low) < LARGEST_TILT and deviation > 0:
            above = mean > aim
            edge, way = (low, -1) if above else (high, 1)
            while step > SMALLEST_STEP and _width(self._windows(edge + way * step)) > MOST_WEIGHTS:
                step /= 4  # the law of a count would hardly fall any more
            low, high = (low - step, low) if above else (high, high + step)
            step *= 2
            mean, deviation = self._moments(low if above else high)
            if (mean > aim) != above:
                return self._between(low, high, aim)
        return low if low < 0 else high

    def _between(self, low: float, high: float, aim: float) -> float:
        middle = (low + high) / 2
        for _ in range(60):
            middle = (low + high) / 2
            mean, deviation = self._moments(middle)
            if abs(mean - aim) <= 0.25 * deviation:
                break
            low, high = (low, middle) if mean > aim else (middle, high)
        return middle


def _width(windows: list[tuple[int, int]]) -> int:
    return sum(high - low + 1 for low, high in windows)


class SumTree:
    """Sums of counts in a binary tree; nodes with the same children are one."""

    def __init__(self, leaves: list[Leaf], kinds: IntArray, n: int) -> None:
        self._nodes = [*leaves, Leaf(0, np.ones(1))]
        self._children = [(-1, -1)] * len(self._nodes)
        self._n = n
        self.n_levels = max(len(kinds) - 1, 0).bit_length()
        level = np.full(1 << self.n_levels, len(leaves), dtype=np.int64)  # cells that aren't there are 0
        level[: len(kinds)] = kinds
        while len(level) > 1:
            level = self._join(level)
        self._root = int(level[0])

    def _join(self, level: IntArray) -> IntArray:
        keys, inverse = np.unique(level[0::2] * len(self._nodes) + level[1::2], return_inverse=True)
        base = len(self._nodes)
        for key in keys.tolist():
            left, right = divmod(key, base)
            self._nodes.append(_sum(self._nodes[left], self._nodes[right], self._n))
            self._children.append((left, right))
        return np.asarray(base + inverse.reshape(-1), dtype=np.int64)

    @property
    def root(self) -> Leaf:
        """The law of the sum of all leaves."""
        return self._nodes[self._root]

    def draw(self, totals: IntArray, rng: np.random.Generator) -> IntArray:
        """Draw the leaves given their sum, once for each of some sums, shape (draws, leaves)."""
        places = totals - self.root.low
        lengths = np.array([len(node.weights) for node in self._nodes], dtype=np.int64)
        counts = np.zeros((len(totals), 1 << self.n_levels), dtype=np.int64)
        left, right = np.array(self._children, dtype=np.int64).T.copy()
        possible = bool(((places >= 0) & (places < len(self.root.weights))).all())
        if not possible or not split(
            totals,
            self.n_levels,
            self._root,
            left,
            right,
            np.concatenate([node.weights for node in self._nodes]),
            np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64),
            np.array([node.low for node in self._nodes], dtype=np.int64),
            lengths,
            np.random.default_rng(rng.integers(1 << 32, size=8)),  # of a kind that compiled code can call
            counts,
        ):
            raise InputError("the noisy counts can't be those of a table with this many records and noise of this law")
        return counts


def _sum(left: Leaf, right: Leaf, n: int) -> Leaf:
    """Return the law of a sum of two independent counts, of values up to n."""
    from scipy.signal import fftconvolve

    low = left.low + right.low
    if len(left.weights) * len(right.weights) <= DIRECT:
        found = convolve(left.weights, right.weights, max(n - low, 0) + 1)
        return _scaled(low, found, left.log_scale + right.log_scale, NEGLIGIBLE)
    found = np.maximum(fftconvolve(left.weights, right.weights)[: max(n - low, 0) + 1], 0.0)
    return _scaled(low, found, left.log_scale + right.log_scale, FFT_NEGLIGIBLE)


def _scaled(low: int, found: FloatArray, log_scale: float, negligible: float) -> Leaf:
    largest = float(found.max(initial=0.0))
    if not largest > 0:
        raise InputError("the noisy counts can't be those of a table with this many records and noise of this law")
    return _trimmed(Leaf(low, found / largest, log_scale + math.log(largest)), negligible)


def _trimmed(leaf: Leaf, negligible: float) -> Leaf:
    kept = np.flatnonzero(leaf.weights > negligible * leaf.weights.max())
    if not len(kept):
        return leaf
    return Leaf(leaf.low + int(kept[0]), np.ascontiguousarray(leaf.weights[kept[0] : kept[-1] + 1]), leaf.log_scale)


def log_prior(values: IntArray, alpha: float) -> FloatArray:
    """Return log Gamma(alpha + j) / (Gamma(alpha) j!)."""
    from scipy.special import gammaln

    return np.asarray(gammaln(alpha + values) - gammaln(1.0 + values) - gammaln(alpha), dtype=np.float64)


def nats_of(alpha: float, n: int) -> float:
    """Return how far, in nats, the noise's weight must fall for the prior not to make up for it."""
    return NATS + abs(alpha - 1) * math.log(n + 1 + alpha) + abs(math.lgamma(alpha))


# compiled


@njit(cache=True, nogil=True)
def convolve(left, right, longest):  # type: ignore[no-untyped-def]
    """Return the first ``longest`` entries of the convolution of two nonnegative vectors, by sums of products.

    No term is subtracted, so that every entry has a small relative error however small it is.
    """
    length = min(left.shape[0] + right.shape[0] - 1, longest)
    found = np.zeros(length)
    for i in range(min(left.shape[0], length)):
        if left[i] == 0.0:
            continue
        for j in range(min(right.shape[0], length - i)):
            found[i + j] += left[i] * right[j]
    return found


@njit(cache=True, nogil=True)
def _share(total, left, right, weights, start, low, length, uniform):  # type: ignore[no-untyped-def]
    """Return how much of a total goes to the left of two independent sums; -1 if no share is possible."""
    first = max(low[left], total - (low[right] + length[right] - 1))
    last = min(low[left] + length[left] - 1, total - low[right])
    here, there = start[left] - low[left], start[right] + total - low[right]
    whole = 0.0
    for share in range(first, last + 1):
        whole += weights[here + share] * weights[there - share]
    if not whole > 0.0:
        return -1
    reached, aim, possible = 0.0, uniform * whole, -1
    for share in range(first, last + 1):
        term = weights[here + share] * weights[there - share]
        if term > 0.0:
            possible = share
            reached += term
            if reached > aim:
                break
    return possible


@njit(cache=True, nogil=True)
def split(sums, n_levels, root, left, right, weights, start, low, length, rng, counts):  # type: ignore[no-untyped-def]
    """Draw the leaves of a binary tree of sums given the sum of all, into ``counts``, shape (draws, 2^n_levels).

    ``sums`` has that of each draw.
    Node ``k`` is the sum of ``left[k]`` and ``right[k]``; its law is ``weights[start[k] : start[k] + length[k]]``, from
    the value ``low[k]`` on. Returns False if some total could not be split.
    """
    nodes = np.empty(n_levels + 2, dtype=np.int64)
    totals = np.empty(n_levels + 2, dtype=np.int64)
    places = np.empty(n_levels + 2, dtype=np.int64)
    levels = np.empty(n_levels + 2, dtype=np.int64)
    for draw in range(counts.shape[0]):
        nodes[0], totals[0], places[0], levels[0] = root, sums[draw], 0, n_levels
        top = 1
        while top > 0:
            top -= 1
            node, mine, place, level = nodes[top], totals[top], places[top], levels[top]
            if mine == 0:
                continue
            if level == 0:
                counts[draw, place] = mine
                continue
            share = _share(mine, left[node], right[node], weights, start, low, length, rng.random())
            if share < 0:
                return False
            nodes[top], totals[top], places[top], levels[top] = left[node], share, 2 * place, level - 1
            top += 1
            nodes[top], totals[top], places[top], levels[top] = right[node], mine - share, 2 * place + 1, level - 1
            top += 1
    return True
