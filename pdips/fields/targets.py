"""What a field is fitted to: counts of levels and pairs, and priors of the parameters
that no noisy count settles.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.margins.consistency import LevelGroups, simplex_projection
from pdips.margins.estimates import NoisyPairs

FITTED = 20  # Rounds of proportional fitting of pairs to their levels
# Standard errors that a level counts for at least, so that noise rules nothing out
# (tried: .1 and .3)
FLOOR = 0.1
LEAST = 1e-12  # Of what is divided by
LEAST_UNIT = 1e-100

WIDEST = 4.0  # Largest variance of the prior of a pair's parameters
LEAST_APART = 0.5
LEAST_SLOPE = 3.0
"""Standard errors of squares that priors of draws are wide for at least, of parameters
and of slopes.
"""

STRENGTHS = np.concatenate([[0.0], np.geomspace(1e-6, WIDEST, 45)])
"""Variances of a pair's parameters that are thought of; how common each one is, is
learned from all pairs.
"""

POWERS = 50  # Of a matrix, by which its largest eigenvalue is found
LEARNED = 300  # Rounds of expectation and maximization in which this is learned


@dataclass(frozen=True, eq=False)
class SlopeBasis:
    """What slopes multiply, of two blocks the first of which is ordered, and the way in
    which they move counts.

    Of ordered blocks these are standardized mid-ranks of the levels, 0 for others:
    ``ranks``, shape (levels, blocks). In ``every``, shape (levels, scores), blocks that
    aren't ordered have an indicator of each level; ``home`` is the block of each score.
    ``pull`` and ``pulls`` are the directions, of length 1, in which counts move, by
    ``length`` and ``lengths`` in parts of the records. ``freedom`` is the number of
    contrasts of two blocks.
    """

    ranks: FloatArray
    every: FloatArray
    home: IntArray
    pull: FloatArray
    pulls: FloatArray
    length: FloatArray
    lengths: FloatArray
    freedom: IntArray

    @classmethod
    def of(cls, noisy: NoisyPairs, shares: FloatArray) -> "SlopeBasis":
        """Return the scores of levels with these shares."""
        order = np.arange(len(noisy.sizes))
        ordered = np.zeros(len(order), dtype=bool)
        ranks = np.zeros((len(shares), len(order)))
        for block, n_ordered in enumerate(noisy.ordered):
            if n_ordered > 1:
                first = noisy.offsets[block]
                own = slice(first, first + n_ordered)
                ordered[block] = True
                ranks[own, block] = _standardized_ranks(shares[own])
        home = np.repeat(order, np.where(ordered, 1, noisy.sizes))
        every = np.zeros((len(shares), len(home)))
        every[:, ordered[home]] = ranks[:, ordered]
        every[~np.repeat(ordered, noisy.sizes), ~ordered[home]] = 1
        length, pull = _directions(shares, ranks)
        lengths, pulls = _directions(shares, every)
        # two ordered blocks have one slope, which the first of them holds
        contrasts = np.where(ordered, order[:, None] < order, noisy.sizes - 1)
        freedom = (ordered[:, None] * contrasts).astype(np.int64)
        return cls(ranks, every, home, pull, pulls, length, lengths, freedom)

    @property
    def most(self) -> FloatArray:
        """Which variance of a slope makes the largest of its parameters have variance
        1, shape (blocks, blocks).
        """
        largest = np.abs(self.ranks).max(axis=0)
        largest_other = np.where(largest > 0, largest, 1)
        product = np.outer(largest, largest_other)
        return np.asarray(1 / np.maximum(product, LEAST) ** 2)

    def along(self, counts: FloatArray) -> FloatArray:
        """Return counts of pairs along the directions, shape (blocks, scores)."""
        return np.asarray(self.pull.T @ counts @ self.pulls)

    def back(self, values: FloatArray) -> FloatArray:
        """Return symmetric counts of pairs that are so much along the directions, and
        nothing else.
        """
        counts = self.pull @ (values @ self.pulls.T)
        return np.asarray(counts + counts.T)

    def over(self, values: FloatArray) -> FloatArray:
        """Return sums of values of scores over those of each block, where slopes have
        freedom.
        """
        sums = np.zeros(self.freedom.shape)
        np.add.at(sums.T, self.home, values.T)
        return np.where(self.freedom > 0, sums, 0)

    def spread(self, values: FloatArray) -> FloatArray:
        """Return values of pairs of blocks as values of slopes, 0 where these have no
        freedom.
        """
        return np.asarray(np.where(self.freedom > 0, values, 0)[:, self.home])

    @property
    def unit(self) -> FloatArray:
        """Return the mean square along each direction, in parts of the records, where
        slopes have variance 1.

        Slopes of levels count less their mean by shares.
        """
        squares = self.lengths**2
        of_block = np.bincount(self.home, squares)
        centred = 1 - 2 * self.lengths + of_block[self.home]
        is_ordered = self.length[self.home] > 0
        other = squares * np.where(is_ordered, 1, centred)
        return np.asarray(np.outer(self.length**2, other))

    def parameters(self, slopes: FloatArray) -> FloatArray:
        """Return what slopes say of each two levels."""
        parameters = self.ranks @ (slopes @ self.every.T)
        return np.asarray(parameters + parameters.T)

    def fitting(self, theta: FloatArray | NDArray[np.float32]) -> FloatArray:
        """Return slopes that are nearest to parameters, of each two blocks alone."""
        of_ranks = (self.ranks**2).sum(axis=0)
        squares = np.outer(of_ranks, (self.every**2).sum(axis=0))
        has_slope = self.spread(np.ones(self.freedom.shape))
        products = has_slope * (self.ranks.T @ theta @ self.every)
        return products / np.maximum(squares, LEAST)


def _standardized_ranks(shares: FloatArray) -> FloatArray:
    ranks = np.cumsum(shares) - shares / 2 - shares.sum() / 2
    return np.asarray(ranks / math.sqrt(shares @ ranks**2))


def _directions(
    shares: FloatArray, scores: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return by how much scores move the shares of levels, and in which direction."""
    moved = shares[:, None] * scores
    length = np.sqrt((moved**2).sum(axis=0))
    return length, moved / np.maximum(length, LEAST)


@dataclass(frozen=True, eq=False)
class PairTarget:
    """What a field is fitted to: expected counts, and priors of each pair's parameters.

    ``levels``, shape (levels,), are above 0. ``pairs``, shape (levels, levels), are
    unbiased, so that some may be below 0; ``shrunk``, of that shape, are above 0, agree
    with the levels, and are as far from independence as stands out from the noise. A
    parameter is a slope times the scores of both levels, plus one of its own. Normal
    priors of both, of parameters, shape (levels, levels), and of slopes, have mean 0
    and variances ``wide`` in draws; ``likely`` are those for the likeliest field,
    smaller for pairs that may be noise. ``told`` pairs say more than noise would;
    ``groups`` has the shares of levels in kinds of records.
    """

    levels: FloatArray
    pairs: FloatArray
    shrunk: FloatArray
    scores: SlopeBasis
    likely: tuple[FloatArray, FloatArray]
    wide: tuple[FloatArray, FloatArray]
    told: BoolArray
    groups: LevelGroups

    @classmethod
    def of(cls, noisy: NoisyPairs, groups: LevelGroups | None = None) -> "PairTarget":
        """Return the target: priors of draws are as wide as the distance from
        independence beyond the noise's.

        They are at least half the standard error of this distance, three of them for
        each slope, so that draws don't shrink these, but as far as no parameter gets a
        variance above 1, or of 4 by a slope. Parameters of variance v that are
        independent of each other, less their means by shares p, have squares that add
        up to v (n K)^2 on average, K^2 the product of ``sum p^2 - 2 sum p^3 + (sum
        p^2)^2`` of both blocks. A slope r with scores s and t moves counts by n r times
        the product of p s and q t: so the noise on what they say along it is that of
        one count. An ordered block has a slope with each level of one that isn't; rare
        levels often have steep ones.
        """
        groups = _with_shares(noisy, groups or LevelGroups.one(noisy.sizes))
        shares = groups.shares
        scores = SlopeBasis.of(noisy, shares)
        independent = noisy.n * np.outer(shares, shares)
        beyond = noisy.centred(noisy.counts - independent)
        along = scores.along(beyond)
        whole = _whole_distance(noisy, beyond)
        cells, lines, slopes = _parted(whole, noisy, shares, scores, along)
        cell_variance, cells_kept = cells.likely()
        line_variance, lines_kept = lines.likely()
        wide = (noisy.spread(cells.wide(LEAST_APART)), slopes.wide(LEAST_SLOPE))
        more_kept = scores.spread(lines_kept - cells_kept)
        trusted = noisy.spread(cells_kept) * beyond + scores.back(more_kept * along)
        likely = (noisy.spread(cell_variance), scores.spread(line_variance))
        return cls(
            levels=noisy.n * shares,
            pairs=independent + beyond,
            shrunk=_raked(noisy, shares, independent, trusted),
            scores=scores,
            likely=likely,
            wide=wide,
            told=whole.stands_out,
            groups=groups,
        )

    @property
    def telling(self) -> float:
        """Which part of the pairs says more than noise alone would."""
        n_blocks = len(self.told)
        return float(self.told.sum() / max(n_blocks * (n_blocks - 1), 1))

    def tree(self, noisy: NoisyPairs) -> list[tuple[int, int | None]]:
        """Return each block after its parent, in the tree of largest mutual
        information; the first has none.
        """
        ratio = self.shrunk * noisy.n / np.outer(self.levels, self.levels)
        terms = self.shrunk / noisy.n * np.log(ratio)
        information = noisy.over(noisy.over(terms, 0), 1)
        tree = list[tuple[int, int | None]]([(0, None)])
        outside = set(range(1, len(information)))
        while outside:
            value, parent, block = max(
                (information[inner, outer], inner, outer)
                for inner, _ in tree
                for outer in outside
            )
            tree.append((block, parent if value > 0 else None))
            outside.remove(block)
        return tree

    def stiffness(self, counts: FloatArray, n: float) -> float:
        """Return the largest eigenvalue of the correlations between levels: how far a
        step moves all pairs together.
        """
        observed = np.diagonal(counts)
        deviation = np.sqrt(np.maximum(observed, self.levels / 5) / n)
        shares = observed / n
        covariance = counts / n - np.outer(shares, shares)
        correlation = covariance / np.outer(deviation, deviation)
        vector = np.ones(len(counts))
        for _ in range(POWERS):
            vector = correlation @ vector
            vector = vector / max(float(np.linalg.norm(vector)), 1e-30)
        return max(float(vector @ correlation @ vector), 1.0)

    def moved(self, noisy: NoisyPairs) -> "PairTarget":
        """Return the target with other estimates and the same priors."""
        groups = _with_shares(noisy, self.groups)
        independent = noisy.n * np.outer(groups.shares, groups.shares)
        pairs = independent + noisy.centred(noisy.counts - independent)
        return replace(self, levels=noisy.n * groups.shares, pairs=pairs, groups=groups)

    def narrower(self, noisy: NoisyPairs, part: FloatArray) -> "PairTarget":
        """Return the target with priors of draws that are narrower by a factor for each
        pair of blocks.
        """
        cells, slopes = self.wide
        narrowed = part**2
        cells = cells * noisy.spread(narrowed)
        slopes = slopes * self.scores.spread(narrowed)
        return replace(self, wide=(cells, slopes))

    def drawn(self, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return a draw of the priors: of parameters, shape (levels, levels), and of
        slopes.
        """
        cells, slopes = (
            rng.standard_normal(variance.shape) * np.sqrt(variance)
            for variance in self.wide
        )
        upper = np.triu(cells, 1)
        return upper + upper.T, np.asarray(slopes)


def _with_shares(noisy: NoisyPairs, groups: LevelGroups) -> LevelGroups:
    """Return groups with the shares of all levels of each block, above 0 and adding up
    to 1.
    """
    n_blocks = len(noisy.sizes)
    variance = np.repeat(np.diagonal(noisy.variance), noisy.sizes)
    error = np.sqrt(np.maximum(variance, 1e-6))
    block = np.repeat(np.arange(n_blocks), noisy.sizes)
    totals = np.full(n_blocks, noisy.n)
    nearest = simplex_projection(np.diagonal(noisy.counts), totals, block)
    raised = np.maximum(nearest, FLOOR * error)
    sums = np.repeat(noisy.over(raised, 0), noisy.sizes)
    return groups.with_shares(raised / sums)


def _raked(
    noisy: NoisyPairs, shares: FloatArray, independent: FloatArray, trusted: FloatArray
) -> FloatArray:
    """Return counts of pairs above 0 that agree with the levels, by iterative
    proportional fitting.
    """
    levels = noisy.n * shares
    counts = np.maximum(independent + trusted, 1e-3 * independent)
    for _ in range(FITTED):
        sums = np.repeat(noisy.over(counts, 1), noisy.sizes, axis=1)
        counts *= levels[:, None] / sums
        sums = np.repeat(noisy.over(counts, 0), noisy.sizes, axis=0)
        counts *= levels / sums
    return counts


@dataclass(frozen=True, eq=False)
class _Distance:
    """How far noisy counts are from independence, along some parameters of each pair.

    ``squares`` are summed over as many directions as there is ``freedom``, in each of
    which ``noise`` has this variance. Parameters of variance 1 would have squares that
    add up to ``unit``, and ``most`` limits the variance of their prior.
    """

    squares: FloatArray
    noise: FloatArray
    freedom: IntArray
    unit: FloatArray
    most: FloatArray

    @property
    def is_noisy(self) -> BoolArray:
        return np.asarray((self.noise > 0) & (self.freedom > 0))

    @property
    def stands_out(self) -> BoolArray:
        """Whether squares are larger than noise alone would make them."""
        of_noise = self.freedom * self.noise
        return np.asarray((self.squares > of_noise) & (self.noise > 0))

    @property
    def widest(self) -> FloatArray:
        return np.asarray(WIDEST * np.minimum(self.most, 1))

    def likely(self) -> tuple[FloatArray, FloatArray]:
        """Return variances for the likeliest field, and which part of the distance of
        each pair is kept.

        They are 0 where noise alone would say as much, and learned from all pairs.
        """
        noisy = self.is_noisy
        kept = np.zeros(self.unit.shape)
        variance = np.zeros(self.unit.shape)
        if noisy.any():
            kept[noisy] = self._kept(noisy)
            part = kept[noisy]
            of_noise = (self.noise * self.freedom / self.unit)[noisy]
            variance[noisy] = part / (1 - part).clip(LEAST) * of_noise
        variance[self.squares <= self.freedom * self.noise] = 0
        return variance.clip(0, self.widest), kept

    def wide(self, least: float) -> FloatArray:
        """Return variances of priors in draws: what exceeds the noise, or ``least``
        standard errors of it up to ``most``.
        """
        noise = self.noise / self.unit
        beyond = self.squares / self.unit - self.freedom * noise
        error = least * noise * np.sqrt(2 * self.freedom)
        error = np.minimum(error, self.most)
        variance = np.where(self.is_noisy, np.maximum(beyond, error), 0)
        return variance.clip(0, self.widest)

    def _kept(self, noisy: BoolArray) -> FloatArray:
        """Return which part of the distance of each noisy pair isn't noise.

        Empirical Bayes: ``squares`` over noise and signal together are chi-squared, and
        the law of the signal's variance is the likeliest one on ``STRENGTHS`` for all
        pairs (Kiefer and Wolfowitz, 1956), one more pair thought of as even.
        """
        squares = self.squares[noisy][:, None]
        freedom = self.freedom[noisy][:, None]
        signal = STRENGTHS * self.unit[noisy][:, None] / freedom
        whole = self.noise[noisy][:, None] + signal
        log = -freedom / 2 * np.log(whole) - squares / (2 * whole)
        likelihood = np.exp(log - log.max(axis=1, keepdims=True))
        belief = likelihood / likelihood.sum(axis=1, keepdims=True)
        for _ in range(LEARNED):
            weight = belief.sum(axis=0) + 1 / len(STRENGTHS)
            belief = likelihood * weight
            belief /= belief.sum(axis=1, keepdims=True)
        return np.asarray((belief * signal / whole).sum(axis=1))


def _whole_distance(noisy: NoisyPairs, beyond: FloatArray) -> _Distance:
    squares = noisy.over(noisy.over(beyond**2, 0), 1)
    freedom = np.outer(noisy.sizes - 1, noisy.sizes - 1)
    even = np.ones_like(squares)
    return _Distance(squares, noisy.noise, freedom, even, even)


def _parted(
    whole: _Distance,
    noisy: NoisyPairs,
    shares: FloatArray,
    scores: SlopeBasis,
    along: FloatArray,
) -> tuple[_Distance, _Distance, _Distance]:
    """Return the distances of single parameters and of all slopes of each two blocks,
    and of each slope.
    """
    n = noisy.n
    squared = noisy.over(shares**2, 0)
    centred = squared - 2 * noisy.over(shares**3, 0) + squared**2
    cell_unit = n * n * np.outer(centred, centred)
    slope_unit = np.maximum(n * n * scores.unit, LEAST_UNIT)
    line_unit = np.maximum(scores.over(slope_unit), LEAST_UNIT)
    lines = _Distance(
        squares=scores.over(along**2),
        noise=whole.noise,
        freedom=scores.freedom,
        unit=line_unit,
        most=WIDEST * scores.most,
    )
    n_lines = lines.freedom
    cells = replace(
        whole,
        squares=whole.squares - lines.squares - lines.squares.T,
        freedom=whole.freedom - n_lines - n_lines.T,
        unit=np.maximum(cell_unit, LEAST_UNIT),
    )
    slopes = _Distance(
        squares=along**2,
        noise=scores.spread(whole.noise),
        freedom=np.ones(along.shape, dtype=np.int64),
        unit=slope_unit,
        most=scores.spread(lines.most),
    )
    return cells, lines, slopes
