"""Exact posterior draws of the counts of a multinomial-Dirichlet model of which only
noisy ones were released.

NUTS takes their place on no more than 3 of 10 data sets with two cells, one of them
rare; with 30 cells it needs up to 28 processor seconds, where these draws take 0.2
(``docs/decisions/19-nuts.md``).

Sums of independent counts are worked out by binary trees of convolutions; draws split
them from the top down.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.signal import fftconvolve
from scipy.special import gammaln

from pdips.arrays import FloatArray, IntArray
from pdips.errors import InputError
from pdips.statistics.noisy_model import Evidence

# How far below a cell's largest weight, in nats, its values are left out: e^-50 = 2e-22
NATS = 50.0
# Of the largest: smaller entries are left out; an FFT errs by 1e-16 of it
NEGLIGIBLE = 1e-22
FFT_NEGLIGIBLE = 1e-13
DIRECT = 1 << 24  # Products up to which sums are worked out term by term
MOST_WEIGHTS = 1 << 25  # Most weights held for the cells of one table: 256 MiB
LARGEST_TILT = 1e3
SMALLEST_STEP = 1e-12
MOST_TILTS = 150

# The number of records is followed until its log posterior is this far below the best
LEAST_LOG = 25.0
# Least weight, over the largest, of the sums of a tree that are used: the rest is for
# other tilts
TRUSTED = 1e-11
MOST_TREES = 2_000

IMPOSSIBLE = (
    "the noisy counts can't be those of a table with this many records and "
    "noise of this law"
)


@dataclass(frozen=True)
class NoiseLaw:
    """The law of the noise on each count, as :mod:`pdips.privacy.noise` draws it, up to
    a constant.

    Discrete Laplace noise, P(z) ~ exp(-abs(z) / b) with b = ``scale``, or discrete
    Gaussian noise, P(z) ~ exp(-z^2 / (2 sigma^2)) with sigma^2 = ``scale``.
    """

    law: Literal["laplace", "gaussian"]
    scale: Fraction

    def log_weights(self, noise: IntArray) -> FloatArray:
        """Return log P(noise) up to a constant, elementwise."""
        rate = float(1 / self.scale)
        if self.law == "laplace":
            return np.asarray(-np.abs(noise) * rate, dtype=np.float64)
        return np.asarray(
            noise.astype(np.float64) ** 2 * (-0.5 * rate), dtype=np.float64
        )

    def reach(self, tilt: float, nats: float) -> float:
        """Return from where on log P(z) + tilt z is below -nats for z > 0; infinite if
        nowhere.
        """
        if self.law == "laplace":
            rate = float(1 / self.scale) - tilt
            return nats / rate if rate > 0 else math.inf
        variance = float(self.scale)
        middle = tilt * variance
        return middle + math.sqrt(middle**2 + 2 * variance * nats)


def draw_shares(
    given: Evidence, name: str, alpha: ArrayLike, n_draws: int, rng: np.random.Generator
) -> FloatArray:
    """Draw the probabilities of cells from their posterior, shape (draws, cells), each
    draw by itself.

    Noise-aware: exact counts from their posterior given the noisy ones, then shares
    given the counts; where the number of records is protected it has a flat prior.
    Plug-in: shares given noisy counts after post-processing. ``name`` is a
    :class:`pdips.statistics.statistic.Counts`; ``alpha``, above 0, one number or shape
    (cells,), the Dirichlet prior.
    """
    measured = given.measured
    part = given.measured.part(name)
    noisy = measured.values[name]
    n = measured.n_records
    law = NoiseLaw(part.law, part.scale)
    counts: Any
    if not given.aware or not part.n_noised:
        counts = np.broadcast_to(given[name], (n_draws, len(noisy)))
    elif n is None or part.n_noised == len(noisy):
        counts = draw_counts(noisy, law, n, alpha, n_draws, rng)
    else:
        first = draw_first_of_two(int(noisy[0]), law, n, alpha, n_draws, rng)
        counts = np.column_stack([first, n - first])
    return draw_proportions(counts, alpha, rng)


def draw_proportions(
    counts: IntArray, alpha: ArrayLike, rng: np.random.Generator
) -> FloatArray:
    """Draw the cells' probabilities given exact counts, shape (draws, cells): one
    Dirichlet(alpha + counts) a row.
    """
    drawn = rng.standard_gamma(np.asarray(alpha, dtype=np.float64) + counts)
    return np.asarray(drawn / drawn.sum(axis=1, keepdims=True), dtype=np.float64)


def draw_first_of_two(
    noisy: int,
    law: NoiseLaw,
    n: int,
    alpha: ArrayLike,
    n_draws: int,
    rng: np.random.Generator,
) -> IntArray:
    """Draw the count of the first of two cells given its noisy count alone, by listing
    all that it can be.
    """
    first, second = _checked_alpha(alpha, 2).tolist()
    away = law.reach(0.0, nats_of(first, n) + nats_of(second, n))
    seen = min(max(noisy, 0), n)
    lowest = max(math.floor(seen - away), 0)
    highest = min(math.ceil(seen + away), n)
    values = np.arange(lowest, highest + 1)
    logs = log_prior(values, first) + log_prior(n - values, second)
    logs += law.log_weights(noisy - values)
    weights = np.exp(logs - logs.max())
    return rng.choice(values, size=n_draws, p=weights / weights.sum())


def draw_counts(
    noisy: ArrayLike,
    law: NoiseLaw,
    n: int | None,
    alpha: ArrayLike,
    n_draws: int,
    rng: np.random.Generator,
) -> IntArray:
    """Draw the exact counts of a table given noisy ones, shape (draws, cells):
    independent draws, from the posterior.

    ``noisy``, shape (cells,), are any whole numbers, with independent noise of one law
    on each. Each row adds up to the public number of records ``n``; None gives it a
    flat prior. ``alpha``, above 0, one number or shape (cells,), is the Dirichlet prior
    of the cells' probabilities. :class:`InputError` refuses an ``alpha`` that is out of
    range, noise so wide that the weights don't fit into memory, and noise so far from
    adding up to ``n`` that no table explains it.

    With pi ~ Dirichlet(alpha), counts ~ Multinomial(n, pi) and noisy = counts + noise,
    the counts given the noisy ones have probability proportional to prod_k w_k(n_k)
    with w_k(j) = Gamma(alpha_k + j) / j! P(noisy_k - j), on the tables that add up to
    n: independent cells given their sum. The law of the sum of each half of the cells,
    of each half of these, and so on, is worked out by convolution; a draw splits n from
    the top down. Cells with the same noisy count and prior share their laws, so the
    cost hardly depends on the number of cells. Weights are multiplied by theta^j first,
    which changes nothing given the sum, with theta such that the cells add up to n on
    average; values whose weight is then less than 1e-22 of the largest are left out
    (1e-13 for sums of wide laws, which fast Fourier transforms add up). Without n, the
    sum has a posterior of its own, and is drawn first.
    """
    counts = np.asarray(noisy, dtype=np.int64)
    cells = np.column_stack([counts, _checked_alpha(alpha, len(counts))])
    cells, inverse = np.unique(cells, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    kind_of_cell = np.sort(inverse)
    most = n
    if most is None:
        # more records than any table can have had, but for noise of less than e^-50 in
        # each cell
        largest_noise = math.ceil(law.reach(0.0, NATS)) * len(counts)
        most = int(np.maximum(counts, 0).sum()) + largest_noise + 1
    kinds = Kinds(
        noisy=cells[:, 0].astype(np.int64),
        alpha=cells[:, 1],
        multiplicity=np.bincount(inverse),
        law=law,
        n=int(most),
    )
    if n is None:
        by_kind = draw_unknown(kinds, kind_of_cell, n_draws, rng)
    else:
        tree = SumTree(kinds.leaves(kinds.tilt(n)), kind_of_cell, n)
        by_kind = tree.draw(np.full(n_draws, n, dtype=np.int64), rng)
    drawn = np.empty((n_draws, len(counts)), dtype=np.int64)
    drawn[:, np.argsort(inverse, kind="stable")] = by_kind[:, : len(counts)]
    return drawn


def _checked_alpha(alpha: ArrayLike, n_cells: int) -> FloatArray:
    priors = np.asarray(alpha, dtype=np.float64)
    in_range = np.isfinite(priors) & (priors > 0)
    if priors.shape not in ((), (n_cells,)) or not in_range.all():
        raise InputError(
            "alpha must be above 0 and finite: one number, or one for each cell"
        )
    return np.broadcast_to(priors, (n_cells,))


@dataclass(frozen=True)
class _Stretch:
    """Numbers of records from ``low`` on, their log posterior up to a constant, and the
    tree that splits them.
    """

    low: int
    logs: FloatArray
    tree: "SumTree"

    @property
    def high(self) -> int:
        return self.low + len(self.logs) - 1


def draw_unknown(
    kinds: "Kinds", cells: IntArray, n_draws: int, rng: np.random.Generator
) -> IntArray:
    """Draw counts, shape (draws, leaves of the tree); ``cells`` are the kinds of the
    cells, in order.

    A flat prior on n and counts that are Dirichlet-multinomial given n: n has posterior
    proportional to R(n) n! Gamma(A) / Gamma(A + n) with A the sum of the prior's
    parameters and R(n) the weight of all tables that add up to n, from trees of sums
    tilted to n, each good for a stretch of numbers; stretches are joined until both
    ends are e^-25 below the best.
    """
    stretches = _followed(kinds, cells)
    logs = np.concatenate([stretch.logs for stretch in stretches])
    weights = np.exp(logs - logs.max())
    places = rng.choice(len(logs), size=n_draws, p=weights / weights.sum())
    lengths = [len(stretch.logs) for stretch in stretches]
    owner = np.repeat(np.arange(len(stretches)), lengths)[places]
    numbers = np.concatenate(
        [stretch.low + np.arange(len(stretch.logs)) for stretch in stretches]
    )
    totals = numbers[places]
    drawn = np.zeros((n_draws, 1 << stretches[0].tree.n_levels), dtype=np.int64)
    for number in np.unique(owner):
        mine = owner == number
        drawn[mine] = stretches[number].tree.draw(totals[mine], rng)
    return drawn


def _followed(kinds: "Kinds", cells: IntArray) -> list[_Stretch]:
    """Return stretches of numbers of records, without gaps, in order."""
    seen = int(np.clip(kinds.noisy @ kinds.multiplicity, 0, kinds.n))
    stretches = [_stretch(kinds, cells, seen, 0, kinds.n)]
    while not _ended_below(stretches):
        _check_followed(stretches)
        edge = stretches[0]
        aim = edge.low - 1 - len(edge.logs) // 3
        stretches.insert(0, _stretch(kinds, cells, aim, 0, edge.low - 1))
    while not _ended_above(stretches, kinds.n):
        _check_followed(stretches)
        edge = stretches[-1]
        least = edge.high + 1
        aim = least + len(edge.logs) // 3
        stretches.append(_stretch(kinds, cells, aim, least, kinds.n))
    return stretches


def _check_followed(stretches: list[_Stretch]) -> None:
    if len(stretches) >= MOST_TREES:
        raise InputError(
            "the noisy counts leave the number of records open "
            "too widely: take a larger epsilon"
        )


def _negligible(stretches: list[_Stretch]) -> float:
    """Return the log posterior below which numbers of records are left out."""
    best = max(float(stretch.logs.max()) for stretch in stretches)
    return best - LEAST_LOG


def _ended_below(stretches: list[_Stretch]) -> bool:
    edge = stretches[0]
    falls = edge.logs[0] < _negligible(stretches) and edge.logs[0] < edge.logs[-1]
    return bool(edge.low <= 0 or falls)


def _ended_above(stretches: list[_Stretch], most: int) -> bool:
    edge = stretches[-1]
    falls = edge.logs[-1] < _negligible(stretches) and edge.logs[-1] < edge.logs[0]
    return bool(edge.high >= most or falls)


def _stretch(
    kinds: "Kinds", cells: IntArray, aim: int, least: int, most: int
) -> _Stretch:
    """Return a stretch about ``aim`` that begins at ``least`` or ends at ``most`` if
    these are near.
    """
    aim = int(np.clip(aim, least, most))
    while True:
        tilt = kinds.tilt(aim)
        tree = SumTree(kinds.leaves(tilt), cells, kinds.n)
        root = tree.root
        kept = np.flatnonzero(root.weights > TRUSTED * root.weights.max())
        low = max(root.low + int(kept[0]), least)
        high = min(root.low + int(kept[-1]), most)
        # no gap may be left to the stretch before or after
        gap_below = 0 < least < low
        gap_above = high < most < kinds.n
        if not (gap_below or gap_above) or aim in (least, most):
            break
        aim = (aim + least) // 2 if gap_below else (aim + most + 1) // 2
    numbers = np.arange(low, high + 1)
    total = float(kinds.alpha @ kinds.multiplicity)
    log_weights = np.log(root.weights[numbers - root.low]) + root.log_scale
    untilted = log_weights - tilt * numbers
    log_multinomial = gammaln(numbers + 1.0) + gammaln(total) - gammaln(total + numbers)
    return _Stretch(low, untilted + log_multinomial, tree)


@dataclass(frozen=True)
class Leaf:
    """The law of a count or a sum of counts: exp(log_scale) times ``weights`` of the
    values from ``low`` on.
    """

    low: int
    weights: FloatArray
    log_scale: float = 0.0

    def trimmed(self, negligible: float) -> "Leaf":
        """Return the same without values at the ends that hardly weigh anything."""
        kept = np.flatnonzero(self.weights > negligible * self.weights.max())
        weights = np.ascontiguousarray(self.weights[kept[0] : kept[-1] + 1])
        return Leaf(self.low + int(kept[0]), weights, self.log_scale)

    def plus(self, other: "Leaf", n: int) -> "Leaf":
        """Return the law of the sum of two independent counts, of values up to n."""
        low = self.low + other.low
        # term by term nothing is subtracted, so that every entry has a small relative
        # error however small it is
        direct = len(self.weights) * len(other.weights) <= DIRECT
        convolve = np.convolve if direct else fftconvolve
        possible = max(n - low, 0) + 1
        weights = convolve(self.weights, other.weights)[:possible]
        weights = np.maximum(weights, 0.0)
        largest = float(weights.max(initial=0.0))
        if not largest > 0:
            raise InputError(IMPOSSIBLE)
        log_scale = self.log_scale + other.log_scale + math.log(largest)
        law = Leaf(low, weights / largest, log_scale)
        return law.trimmed(NEGLIGIBLE if direct else FFT_NEGLIGIBLE)


@dataclass(frozen=True)
class Kinds:
    """Cells by kind: noisy count and prior; how many there are of each."""

    noisy: IntArray
    alpha: FloatArray
    multiplicity: IntArray
    law: NoiseLaw
    n: int

    def leaves(self, tilt: float) -> list[Leaf]:
        """Return the law of a count of each kind, multiplied by exp(tilt j) and divided
        by its sum.
        """
        windows = self._windows(tilt)
        if _width(windows) > MOST_WEIGHTS:
            raise InputError(
                "the noise is too wide for exact draws of the counts given the noisy "
                "ones: take a larger epsilon or "
                "fewer records, or likelihood='plug-in'"
            )
        leaves = []
        alphas = self.alpha.tolist()
        for seen, alpha, (low, high) in zip(self.noisy, alphas, windows, strict=True):
            values = np.arange(low, high + 1)
            logs = log_prior(values, alpha) + self.law.log_weights(seen - values)
            logs += tilt * (values - low)
            largest = float(logs.max())
            weights = np.exp(logs - largest)
            total = float(weights.sum())
            log_scale = largest + tilt * low + math.log(total)
            leaf = Leaf(low, weights / total, log_scale)
            leaves.append(leaf.trimmed(NEGLIGIBLE))
        return leaves

    def _windows(self, tilt: float) -> list[tuple[int, int]]:
        """Return the least and the largest count of each kind that weigh anything."""
        windows = []
        for seen, alpha in zip(self.noisy.tolist(), self.alpha.tolist(), strict=True):
            nats = nats_of(alpha, self.n)
            middle = min(max(seen, 0), self.n)
            low = middle - self.law.reach(-tilt, nats)
            high = middle + self.law.reach(tilt, nats)
            windows.append((math.floor(max(low, 0)), math.ceil(min(high, self.n))))
        return windows

    def _moments(self, tilt: float) -> tuple[float, float]:
        """Return mean and standard deviation of the sum of all cells."""
        mean = np.zeros(len(self.noisy))
        variance = np.zeros(len(self.noisy))
        for place, leaf in enumerate(self.leaves(tilt)):
            values = np.arange(len(leaf.weights))
            mean[place] = leaf.weights @ values
            variance[place] = leaf.weights @ (values - mean[place]) ** 2
            mean[place] += leaf.low
        return float(mean @ self.multiplicity), math.sqrt(
            float(variance @ self.multiplicity)
        )

    def tilt(self, aim: float) -> float:
        """Return the tilt at which the cells add up to ``aim`` on average, nearly: its
        weight must not vanish.
        """
        mean, deviation = self._moments(0.0)
        tilt = 0.0
        ends = [-math.inf, math.inf]
        step = 1 / max(deviation, 1.0)
        for _ in range(MOST_TILTS):
            near = abs(mean - aim) <= 0.25 * deviation
            if near or abs(tilt) >= LARGEST_TILT or not deviation:
                break
            way = -1 if mean > aim else 1
            ends[mean > aim] = tilt
            if all(map(math.isfinite, ends)):
                tilt = sum(ends) / 2
            else:
                step = self._affordable(step, tilt, way)
                tilt = tilt + way * step
                step = 2 * step
            mean, deviation = self._moments(tilt)
        return tilt

    def _affordable(self, step: float, tilt: float, way: int) -> float:
        """Return a step no larger, after which weights still fit into memory."""
        while step > SMALLEST_STEP:
            windows = self._windows(tilt + way * step)
            if _width(windows) <= MOST_WEIGHTS:
                break
            step /= 4  # the law of a count would hardly fall any more
        return step


def _width(windows: list[tuple[int, int]]) -> int:
    return sum(high - low + 1 for low, high in windows)


def log_prior(values: IntArray, alpha: float) -> FloatArray:
    """Return log Gamma(alpha + j) / (Gamma(alpha) j!)."""
    logs = gammaln(alpha + values) - gammaln(1.0 + values) - gammaln(alpha)
    return np.asarray(logs, dtype=np.float64)


def nats_of(alpha: float, n: int) -> float:
    """Return how far, in nats, the noise's weight must fall for the prior not to make
    up for it.
    """
    largest_prior = abs(alpha - 1) * math.log(n + 1 + alpha)
    return NATS + largest_prior + abs(math.lgamma(alpha))


class SumTree:
    """Sums of counts in a binary tree; nodes with the same children are one. ``kinds``
    has the leaf of each cell.
    """

    def __init__(self, leaves: list[Leaf], kinds: IntArray, n: int) -> None:
        self._nodes = [*leaves, Leaf(0, np.ones(1))]
        self._children = [(-1, -1)] * len(self._nodes)
        self.n_levels = max(len(kinds) - 1, 0).bit_length()
        # cells that aren't there are 0
        level = np.full(1 << self.n_levels, len(leaves), dtype=np.int64)
        level[: len(kinds)] = kinds
        while len(level) > 1:
            base = len(self._nodes)
            pairs = level[0::2] * base + level[1::2]
            keys, inverse = np.unique(pairs, return_inverse=True)
            for left, right in (divmod(key, base) for key in keys.tolist()):
                self._nodes.append(self._nodes[left].plus(self._nodes[right], n))
                self._children.append((left, right))
            level = base + inverse.reshape(-1)
        self._root = int(level[0])

    @property
    def root(self) -> Leaf:
        """The law of the sum of all leaves."""
        return self._nodes[self._root]

    def draw(self, totals: IntArray, rng: np.random.Generator) -> IntArray:
        """Draw the leaves given their sum, once for each of some sums, shape (draws,
        leaves).
        """
        places = totals - self.root.low
        if not ((places >= 0) & (places < len(self.root.weights))).all():
            raise InputError(IMPOSSIBLE)
        level = np.array([self._root])
        counts = totals[:, None]
        for _ in range(self.n_levels):
            left = np.empty_like(counts)
            for node in np.unique(level):
                mine = level == node
                left[:, mine] = self._split(int(node), counts[:, mine], rng)
            counts = np.stack([left, counts - left], axis=2).reshape(len(totals), -1)
            level = np.array(self._children)[level].ravel()
        return counts

    def _split(self, node: int, totals: IntArray, rng: np.random.Generator) -> IntArray:
        """Draw how much of each total of a node goes to the left, given the total; any
        shape.
        """
        left, right = (self._nodes[child] for child in self._children[node])
        right_end = right.low + len(right.weights) - 1
        left_end = left.low + len(left.weights) - 1
        flat = totals.ravel()
        split = np.empty(totals.size, dtype=np.int64)
        order = np.argsort(flat, kind="stable")
        ends = np.flatnonzero(np.diff(flat[order])) + 1
        for same in np.split(order, ends):
            total = int(flat[same[0]])
            least = max(left.low, total - right_end)
            most = min(left_end, total - right.low)
            shares = np.arange(least, most + 1)
            of_left = left.weights[shares - left.low]
            of_right = right.weights[total - shares - right.low]
            reached = np.cumsum(of_left * of_right)
            if not (len(shares) and reached[-1] > 0):
                raise InputError(IMPOSSIBLE)
            uniform = 1 - rng.random(len(same))
            split[same] = shares[np.searchsorted(reached, reached[-1] * uniform)]
        return split.reshape(totals.shape)
