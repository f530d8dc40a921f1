"""Exact posterior draws of the counts of a multinomial-Dirichlet model of which only noisy ones were released."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdips.bayes.noise_laws import NoiseLaw
from pdips.errors import InputError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

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

CHUNK = 1 << 21


def draw_counts(
    noisy: ArrayLike, law: NoiseLaw, n: int, alpha: ArrayLike, n_draws: int, rng: np.random.Generator
) -> IntArray:
    """Draw the exact counts of a table given noisy ones: independent draws, from the posterior itself.

    Parameters
    ----------
    noisy : array-like of int, shape (cells,)
        Released counts, any whole numbers.
    law : NoiseLaw
        The law of the noise on each, independent.
    n : int
        Number of records, public.
    alpha : float or array-like, shape (cells,)
        Parameters of the Dirichlet prior on the cells' probabilities, above 0.
    n_draws : int
        Number of draws.
    rng : numpy.random.Generator
        Randomness of the post-processing; protects nothing.

    Returns
    -------
    ndarray of int64, shape (draws, cells)
        Each row adds up to ``n``.

    Raises
    ------
    InputError
        If ``noisy`` isn't a vector of whole numbers, another argument is out of range, or the noise is so wide that the
        weights don't fit into memory, or so far from adding up to ``n`` that no table explains it.

    Notes
    -----
    With pi ~ Dirichlet(alpha), counts ~ Multinomial(n, pi) and noisy = counts + noise, the counts given the noisy ones
    have probability proportional to prod_k w_k(n_k) with w_k(j) = Gamma(alpha_k + j) / j! P(noisy_k - j), on the
    tables that add up to n: independent cells given their sum. The law of the sum of each half of the cells, of each
    half of these, and so on, is worked out by convolution; a draw splits n from the top down. Cells with the same
    noisy count and prior share their laws, so the cost hardly depends on the number of cells. Weights are multiplied
    by theta^j first, which changes nothing given the sum, with theta such that the cells add up to n on average;
    values whose weight is then less than 1e-22 of the largest are left out (1e-13 for sums of wide laws, which fast
    Fourier transforms add up). The proportions given the counts are Dirichlet(alpha + counts):
    :func:`draw_proportions`. Under add-remove n isn't public, and this is not for that.
    """
    counts, priors = _checked(noisy, n, alpha, n_draws)
    cells, inverse = np.unique(np.column_stack([counts, priors]), axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    kinds = _Kinds(cells[:, 0].astype(np.int64), cells[:, 1], np.bincount(inverse), law, n)
    leaves = kinds.leaves(kinds.tilt())
    tree = _Tree(leaves, np.sort(inverse), n)
    drawn = tree.draw(n, n_draws, rng)
    found = np.empty((n_draws, len(counts)), dtype=np.int64)
    found[:, np.argsort(inverse, kind="stable")] = drawn[:, : len(counts)]
    return found


def draw_proportions(counts: IntArray, alpha: ArrayLike, rng: np.random.Generator) -> FloatArray:
    """Draw the cells' probabilities given exact counts: one Dirichlet(alpha + counts) for each row.

    Parameters
    ----------
    counts : ndarray of int64, shape (draws, cells)
        Counts, as :func:`draw_counts` returns them.
    alpha : float or array-like, shape (cells,)
        Parameters of the prior.
    rng : numpy.random.Generator
        Randomness.

    Returns
    -------
    ndarray, shape (draws, cells)
    """
    drawn = rng.standard_gamma(np.asarray(alpha, dtype=np.float64) + counts)
    return np.asarray(drawn / drawn.sum(axis=1, keepdims=True), dtype=np.float64)


def draw_first_of_two(
    noisy: ArrayLike, law: NoiseLaw, n: int, alpha: tuple[float, float], n_draws: int, rng: np.random.Generator
) -> IntArray:
    """Draw the count of the first of two cells for many releases at once, by listing all that it can be.

    Parameters
    ----------
    noisy : array-like of int, shape (releases,) or (releases, 2)
        Noisy count of the first cell; or noisy counts of both.
    law : NoiseLaw
        The law of the noise, independent.
    n : int
        Number of records, public.
    alpha : tuple of float
        Parameters of the beta prior on the first cell's probability.
    n_draws : int
        Draws for each release.
    rng : numpy.random.Generator
        Randomness.

    Returns
    -------
    ndarray of int64, shape (releases, draws)

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    seen = _whole_numbers(noisy)
    if seen.ndim not in (1, 2) or (seen.ndim == 2 and seen.shape[1] != 2):
        raise InputError("noisy must have the shape (releases,) or (releases, 2)")
    _check_sizes(n, n_draws)
    priors = _check_alpha(alpha, 2)
    return np.concatenate([_first_of_two(part, law, n, priors, n_draws, rng) for part in _parts(seen, law, n, priors)])


def _parts(seen: IntArray, law: NoiseLaw, n: int, priors: FloatArray) -> Iterator[IntArray]:
    rows = max(1, CHUNK // (_listed(seen, law, n, priors)[1] + 1))
    for begin in range(0, max(len(seen), 1), rows):
        yield seen[begin : begin + rows]


def _listed(seen: IntArray, law: NoiseLaw, n: int, priors: FloatArray) -> tuple[IntArray, int]:
    """Return where the values to be listed start, shape (releases,), and how many more there are."""
    both = seen.reshape(len(seen), -1)
    first, second = both[:, 0], n - both[:, -1] if both.shape[1] == 2 else both[:, 0]
    away = law.reach(0.0, sum(_nats(float(prior), n) for prior in priors))
    low = np.clip(np.floor(np.clip(np.minimum(first, second), 0, n) - away), 0, n).astype(np.int64)
    high = np.clip(np.ceil(np.clip(np.maximum(first, second), 0, n) + away), 0, n).astype(np.int64)
    width = int((high - low).max(initial=0))
    return np.minimum(low, n - width), width


def _first_of_two(
    seen: IntArray, law: NoiseLaw, n: int, priors: FloatArray, n_draws: int, rng: np.random.Generator
) -> IntArray:
    from pdips.bayes.noisy_counts_kernels import invert

    low, width = _listed(seen, law, n, priors)
    values = low[:, None] + np.arange(width + 1)
    both = seen.reshape(len(seen), -1)
    logs = _log_prior(values, priors[0]) + _log_prior(n - values, priors[1]) + law.log_weights(both[:, :1] - values)
    if both.shape[1] == 2:
        logs += law.log_weights(both[:, 1:] - (n - values))
    logs -= logs.max(axis=1, keepdims=True)
    places = invert(np.exp(logs), rng.random((len(seen), n_draws)))
    return np.asarray(low[:, None] + places, dtype=np.int64)


@dataclass(frozen=True)
class _Leaf:
    """The law of one count: weights of the values from ``low`` on."""

    low: int
    weights: FloatArray


@dataclass(frozen=True)
class _Kinds:
    """Cells by kind: noisy count and prior; how many there are of each."""

    noisy: IntArray
    alpha: FloatArray
    multiplicity: IntArray
    law: NoiseLaw
    n: int

    def leaves(self, tilt: float) -> list[_Leaf]:
        """Return the law of a count of each kind, multiplied by exp(tilt j) and divided by its sum."""
        windows = [
            self._window(int(seen), float(alpha), tilt) for seen, alpha in zip(self.noisy, self.alpha, strict=True)
        ]
        if sum(high - low + 1 for low, high in windows) > MOST_WEIGHTS:
            raise InputError(
                "the noise is too wide for exact draws of the counts given the noisy ones: take a larger epsilon or "
                "fewer records, or likelihood='plug-in'"
            )
        return [self._leaf(place, *window, tilt) for place, window in enumerate(windows)]

    def _window(self, seen: int, alpha: float, tilt: float) -> tuple[int, int]:
        nats = _nats(alpha, self.n)
        low = min(max(seen, 0), self.n) - self.law.reach(-tilt, nats)
        high = min(max(seen, 0), self.n) + self.law.reach(tilt, nats)
        return int(max(math.floor(max(low, 0)), 0)), int(min(math.ceil(min(high, self.n)), self.n))

    def _leaf(self, place: int, low: int, high: int, tilt: float) -> _Leaf:
        values = np.arange(low, high + 1)
        logs = _log_prior(values, float(self.alpha[place])) + self.law.log_weights(self.noisy[place] - values)
        logs += tilt * (values - low)
        weights = np.exp(logs - logs.max())
        return _trimmed(_Leaf(low, weights / weights.sum()), NEGLIGIBLE)

    def _moments(self, tilt: float) -> tuple[float, float]:
        """Return mean and standard deviation of the sum of all cells."""
        mean, variance = np.zeros(len(self.noisy)), np.zeros(len(self.noisy))
        for place, leaf in enumerate(self.leaves(tilt)):
            values = np.arange(len(leaf.weights))
            mean[place] = leaf.weights @ values
            variance[place] = leaf.weights @ (values - mean[place]) ** 2
            mean[place] += leaf.low
        return float(mean @ self.multiplicity), math.sqrt(float(variance @ self.multiplicity))

    def tilt(self) -> float:
        """Return the tilt at which the cells add up to n on average, nearly enough for weights near n not to vanish."""
        mean, deviation = self._moments(0.0)
        low, high, step = 0.0, 0.0, 1 / max(deviation, 1.0)
        while abs(mean - self.n) > 0.25 * deviation and abs(high) < 1e3:
            above = mean > self.n
            low, high = (low - step, low) if above else (high, high + step)
            step *= 2
            mean, deviation = self._moments(low if above else high)
            if (mean > self.n) != above:
                return self._between(low, high)
            if deviation == 0:
                break
        return low if low < 0 else high

    def _between(self, low: float, high: float) -> float:
        middle = (low + high) / 2
        for _ in range(60):
            middle = (low + high) / 2
            mean, deviation = self._moments(middle)
            if abs(mean - self.n) <= 0.25 * deviation:
                break
            low, high = (low, middle) if mean > self.n else (middle, high)
        return middle


class _Tree:
    """Sums of counts in a binary tree; nodes with the same children are one."""

    def __init__(self, leaves: list[_Leaf], kinds: IntArray, n: int) -> None:
        self._nodes = [*leaves, _Leaf(0, np.ones(1))]
        self._children = [(-1, -1)] * len(self._nodes)
        self._n = n
        self.n_levels = max(len(kinds) - 1, 0).bit_length()
        level = np.full(1 << self.n_levels, len(leaves), dtype=np.int64)  # cells that aren't there are 0
        level[: len(kinds)] = kinds
        while len(level) > 1:
            level = self._join(level)
        self.root = int(level[0])

    def _join(self, level: IntArray) -> IntArray:
        keys, inverse = np.unique(level[0::2] * len(self._nodes) + level[1::2], return_inverse=True)
        base = len(self._nodes)
        for key in keys.tolist():
            left, right = divmod(key, base)
            self._nodes.append(_sum(self._nodes[left], self._nodes[right], self._n))
            self._children.append((left, right))
        return np.asarray(base + inverse.reshape(-1), dtype=np.int64)

    def draw(self, total: int, n_draws: int, rng: np.random.Generator) -> IntArray:
        """Draw the leaves given their sum, shape (draws, leaves)."""
        from pdips.bayes.noisy_counts_kernels import split

        root = self._nodes[self.root]
        place = total - root.low
        lengths = np.array([len(node.weights) for node in self._nodes], dtype=np.int64)
        counts = np.zeros((n_draws, 1 << self.n_levels), dtype=np.int64)
        left, right = np.array(self._children, dtype=np.int64).T.copy()
        possible = 0 <= place < len(root.weights) and root.weights[place] > 0
        if not possible or not split(
            total,
            self.n_levels,
            self.root,
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


def _sum(left: _Leaf, right: _Leaf, n: int) -> _Leaf:
    """Return the law of a sum of two independent counts, of values up to n."""
    from pdips.bayes.noisy_counts_kernels import convolve

    low = left.low + right.low
    if len(left.weights) * len(right.weights) <= DIRECT:
        found = convolve(left.weights, right.weights, max(n - low, 0) + 1)
        return _trimmed(_Leaf(low, found / max(found.max(), 1e-300)), NEGLIGIBLE)
    from scipy.signal import fftconvolve

    found = np.maximum(fftconvolve(left.weights, right.weights)[: max(n - low, 0) + 1], 0.0)
    return _trimmed(_Leaf(low, found / found.max()), FFT_NEGLIGIBLE)


def _trimmed(leaf: _Leaf, negligible: float) -> _Leaf:
    kept = np.flatnonzero(leaf.weights > negligible * leaf.weights.max())
    if not len(kept):
        return leaf
    return _Leaf(leaf.low + int(kept[0]), np.ascontiguousarray(leaf.weights[kept[0] : kept[-1] + 1]))


def _log_prior(values: IntArray, alpha: float) -> FloatArray:
    """Return log Gamma(alpha + j) / (Gamma(alpha) j!)."""
    from scipy.special import gammaln

    return np.asarray(gammaln(alpha + values) - gammaln(1.0 + values) - gammaln(alpha), dtype=np.float64)


def _nats(alpha: float, n: int) -> float:
    """Return how far, in nats, the noise's weight must fall for the prior not to make up for it."""
    return NATS + abs(alpha - 1) * math.log(n + 1 + alpha) + abs(math.lgamma(alpha))


def _check_sizes(n: int, n_draws: int) -> None:
    for name, value, least in (("n", n, 0), ("n_draws", n_draws, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _check_alpha(alpha: ArrayLike, n_cells: int) -> FloatArray:
    priors = np.asarray(alpha, dtype=np.float64)
    if priors.shape not in ((), (n_cells,)) or not (np.isfinite(priors) & (priors > 0)).all():
        raise InputError("alpha must be above 0 and finite: one number, or one for each cell")
    return np.broadcast_to(priors, (n_cells,))


def _whole_numbers(noisy: ArrayLike) -> IntArray:
    counts = np.asarray(noisy)
    if not np.issubdtype(counts.dtype, np.integer):
        raise InputError("noisy must hold whole numbers: released counts before anything is done to them")
    return cast(IntArray, counts.astype(np.int64))


def _checked(noisy: ArrayLike, n: int, alpha: ArrayLike, n_draws: int) -> tuple[IntArray, FloatArray]:
    counts = _whole_numbers(noisy)
    if counts.ndim != 1 or not len(counts):
        raise InputError("noisy must be a vector with one count for each cell")
    _check_sizes(n, n_draws)
    return counts, _check_alpha(alpha, len(counts))
