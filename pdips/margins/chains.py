"""The table of maximum entropy that agrees with noisy pairs, without laying out cells: Markov chains are its records.

A pairwise Markov random field has a parameter for each two levels. Its expectations can't be added up over 10^30 cells,
so they are taken over chains that are moved a little after every change of the parameters (persistent contrastive
divergence: Tieleman, 2008). They start from the tree of the most telling pairs (Chow and Liu, 1968),
which can be drawn from at once. Everything here is post-processing of noisy and public numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.margins.consistency import Codes, LevelGroups, levelled, rounded_counts, simplex_projection
from pdips.margins.estimates import NoisyPairs, SlopeBasis
from pdips.margins.residuals import pair_counts

Floats32 = NDArray[np.float32]

MOST_WORK = 2.5e10
"""Additions of the chains in a first fit: where a table needs more, fewer chains than records are run."""
FEWEST_CHAINS = 2_000
LEAST_SWEEPS, MOST_SWEEPS, FINAL_SWEEPS = 100, 400, 20
RATE, LONGEST_STEP, LONGEST_SLOPE = 0.35, 0.5, 0.25
STIFFEST, LOOK_AGAIN, STEPS = 1.0, 10, 15.0
"""Steps of parameters that many pairs move together are kept below a limit, worked out anew every few sweeps. A fit has
``STEPS`` sweeps over the limit: smaller steps need more of them."""

STEEPEST = 6.0  # Largest parameter of the tree that chains start from, and slope within a level
AVERAGED = 0.7  # Parameters are averaged over the last sweeps of a fit, from this part of them on
FITTED = 20  # Rounds of proportional fitting of pairs to their levels
FLOOR = 0.1  # Standard errors that a level counts for at least, so that noise rules nothing out (tried: .1 and .3)
EXACT, EVEN = 1e-12, 1e-3
ROUNDS = 5  # In which places within intervals are drawn given each other

WIDEST = 4.0  # Largest variance of the prior of a pair's parameters
RETRIES, ASTRAY, LEAST_OFF, MOST_OFF = 6, 2.0, 0.02, 0.1
"""A draw whose chains end farther off their levels than so many times those of the first fit, and this on average or
the last in one column, is fitted again around half the draw of the prior, of that column's parameters or of all:
strong ones that noise hides can leave chains apart in two crowds."""

LEAST_APART, LEAST_SLOPE = 0.5, 3.0
"""Standard errors of squares that priors of draws are wide for at least, of parameters and of slopes."""

STRENGTHS = np.concatenate([[0.0], np.geomspace(1e-6, WIDEST, 45)])
"""Variances of a pair's parameters that are thought of; how common each one is, is learned from all pairs."""

LEARNED = 300  # Rounds of expectation and maximization in which this is learned
OF_TRIPLES = 0.25  # Variance of the prior of the parameters of three blocks


@dataclass(frozen=True, eq=False)
class PairTarget:
    """What a field is fitted to: expected counts, and priors of each pair's parameters.

    ``levels``, shape (levels,), are above 0. ``pairs``, shape (levels, levels), are unbiased, so that some may be below
    0; ``shrunk``, of that shape, are above 0, agree with the levels, and are as far from independence as stands out
    from the noise. A parameter is a slope times the scores of both levels, plus one of its own. Normal priors of both,
    of parameters, shape (levels, levels), and of slopes, have mean 0 and variances ``wide`` in draws; ``likely`` are
    those for the likeliest field, smaller for pairs that may be noise. ``told`` pairs say more than noise would;
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
        """Return the target: priors of draws are as wide as the distance from independence beyond the noise's.

        They are at least half the standard error of this distance, three of them for each slope, so that draws don't
        shrink these, but as far as no parameter gets a variance above 1, or of 4 by a slope. Parameters of variance v
        that are independent of each other, less their means by shares p, have squares that add up to v (n K)^2 on
        average, K^2 the product of ``sum p^2 - 2 sum p^3 + (sum p^2)^2`` of both blocks. A slope r with scores s and t
        moves counts by n r times the product of p s and q t: so the noise on what they say along it is that of one
        count. An ordered block has a slope with each level of one that isn't; rare levels often have steep ones.
        """
        n, sizes, groups = noisy.n, noisy.sizes, _shared(noisy, groups or LevelGroups.one(noisy.sizes))
        shares, noise = groups.shares, noisy.noise
        scores = SlopeBasis.of(noisy, shares)
        alone = n * np.outer(shares, shares)
        beyond = noisy.centred(noisy.counts - alone)
        line = scores.along(beyond)
        squares, freedom = noisy.over(noisy.over(beyond**2, 0), 1), np.outer(sizes - 1, sizes - 1)
        told = (squares > freedom * noise) & (noise > 0)
        squared = noisy.over(shares**2, 0)
        centred = squared - 2 * noisy.over(shares**3, 0) + squared**2
        lines, free = scores.over(line**2), scores.freedom
        other, fewer, even = squares - lines - lines.T, freedom - free - free.T, np.ones_like(squares)
        one, slope = (np.maximum(n * n * each, 1e-100) for each in (np.outer(centred, centred), scores.unit))
        most, single = WIDEST * scores.most, np.ones(line.shape, dtype=np.int64)
        apart, kept = _likely(noise, other, fewer, one, even)
        sloped, along = _likely(noise, lines, free, np.maximum(scores.over(slope), 1e-100), most)
        wide = (
            noisy.spread(_wide(other / one, noise / one, fewer, LEAST_APART, even)),
            _wide(line**2 / slope, scores.spread(noise) / slope, single, LEAST_SLOPE, scores.spread(most)),
        )
        trusted, likely = noisy.spread(kept) * beyond, (noisy.spread(apart), scores.spread(sloped))
        trusted += scores.back(scores.spread(along - kept) * line)
        shrunk = np.maximum(alone + trusted, 1e-3 * alone)
        for _ in range(FITTED):
            shrunk *= (n * shares)[:, None] / np.repeat(noisy.over(shrunk, 1), sizes, axis=1)
            shrunk *= n * shares / np.repeat(noisy.over(shrunk, 0), sizes, axis=0)
        return cls(n * shares, alone + beyond, shrunk, scores, likely, wide, told, groups)

    @property
    def telling(self) -> float:
        """Which part of the pairs says more than noise alone would."""
        return float(self.told.sum() / max(len(self.told) * (len(self.told) - 1), 1))

    def moved(self, noisy: NoisyPairs) -> "PairTarget":
        """Return the target with other estimates and the same priors."""
        groups = _shared(noisy, self.groups)
        alone = noisy.n * np.outer(groups.shares, groups.shares)
        pairs = alone + noisy.centred(noisy.counts - alone)
        return replace(self, levels=noisy.n * groups.shares, pairs=pairs, groups=groups)

    def narrower(self, noisy: NoisyPairs, part: FloatArray) -> "PairTarget":
        """Return the target with priors of draws that are narrower by a factor for each pair of blocks."""
        return replace(self, wide=(self.wide[0] * noisy.spread(part**2), self.wide[1] * self.scores.spread(part**2)))

    def drawn(self, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return a draw of the priors: of parameters, shape (levels, levels), and of slopes."""
        apart, slopes = (rng.standard_normal(each.shape) * np.sqrt(each) for each in self.wide)
        return (upper := np.triu(apart, 1)) + upper.T, np.asarray(slopes)


def _shared(noisy: NoisyPairs, groups: LevelGroups) -> LevelGroups:
    """Return groups with the shares of all levels of each block, above 0 and adding up to 1."""
    error = np.sqrt(np.maximum(np.repeat(np.diagonal(noisy.variance), noisy.sizes), 1e-6))
    block = np.repeat(np.arange(len(noisy.sizes)), noisy.sizes)
    nearest = simplex_projection(np.diagonal(noisy.counts), np.full(len(noisy.sizes), noisy.n), block)
    raised = np.maximum(nearest, FLOOR * error)
    return groups.with_shares(raised / np.repeat(noisy.over(raised, 0), noisy.sizes))


def _likely(
    noise: FloatArray, squares: FloatArray, freedom: IntArray, unit: FloatArray, most: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return variances for the likeliest field, and which part of the distance of each pair from independence is kept.

    They are 0 where noise alone would say as much, at most ``WIDEST`` times ``most``, and learned from all pairs.
    Parameters of variance 1 would have squares that add up to ``unit``.
    """
    seen, (kept, likely) = (noise > 0) & (freedom > 0), np.zeros((2, *unit.shape))
    if seen.any():
        kept[seen] = part = _kept(squares[seen], freedom[seen], noise[seen], unit[seen])
        likely[seen] = part / (1 - part).clip(EXACT) * (noise * freedom / unit)[seen]
    likely[squares <= freedom * noise] = 0
    return likely.clip(0, WIDEST * np.minimum(most, 1)), kept


def _wide(told: FloatArray, noise: FloatArray, freedom: IntArray, least: float, most: FloatArray) -> FloatArray:
    """Return variances of priors in draws, from the squares ``told`` and the noise in them, both over their unit.

    It is what exceeds the noise, or ``least`` standard errors up to ``most``, and at most ``WIDEST`` times ``most``.
    """
    found = np.maximum(told - freedom * noise, np.minimum(least * noise * np.sqrt(2 * freedom), most))
    return np.where((noise > 0) & (freedom > 0), found, 0).clip(0, WIDEST * np.minimum(most, 1))


def _kept(squares: FloatArray, freedom: IntArray, variance: FloatArray, unit: FloatArray) -> FloatArray:
    """Return which part of the distance of each pair from independence isn't noise.

    Empirical Bayes: ``squares`` over noise and signal together are chi-squared, and the law of the signal's variance
    is the likeliest one on ``STRENGTHS`` for all pairs (Kiefer and Wolfowitz, 1956), one more pair thought of as even.
    """
    free = freedom[:, None]
    signal = STRENGTHS * unit[:, None] / free
    whole = variance[:, None] + signal
    log = -free / 2 * np.log(whole) - squares[:, None] / (2 * whole)
    likely = np.exp(log - log.max(axis=1, keepdims=True))
    found = likely / likely.sum(axis=1, keepdims=True)
    for _ in range(LEARNED):
        weight = found.sum(axis=0) + 1 / len(STRENGTHS)
        found = likely * weight
        found /= found.sum(axis=1, keepdims=True)
    part: FloatArray = (found * signal / whole).sum(axis=1)
    return part


def _tree(noisy: NoisyPairs, target: PairTarget) -> list[tuple[int, int | None]]:
    """Return each block after its parent, in the tree of largest mutual information; the first has none."""
    n = noisy.n
    terms = target.shrunk / n * np.log(target.shrunk * n / np.outer(target.levels, target.levels))
    telling = noisy.over(noisy.over(terms, 0), 1)
    found, open_ = list[tuple[int, int | None]]([(0, None)]), set(range(1, len(telling)))
    while open_:
        value, parent, block = max((telling[i, j], i, j) for i, _ in found for j in open_)
        found.append((block, parent if value > 0 else None))
        open_.remove(block)
    return found


@dataclass(frozen=True, eq=False)
class PairField:
    """The parameters of a pairwise Markov random field, chains that follow its law, and where they have been."""

    theta: Floats32
    bias: Floats32
    codes: Codes
    fixed: Codes
    third: Floats32
    layout: IntArray
    passed: tuple[Codes, ...] = ()

    @classmethod
    def start(
        cls,
        noisy: NoisyPairs,
        target: PairTarget,
        groups: LevelGroups,
        rng: np.random.Generator,
        n_chains: int | None = None,
    ) -> "PairField":
        """Return the tree of the pairs that say most of each other, with chains drawn from it."""
        work = MOST_SWEEPS * len(noisy.sizes) * len(noisy.counts)
        many = max(FEWEST_CHAINS, min(round(noisy.n_records), int(MOST_WORK / work)))
        fixed = groups.of(n_chains or many, rng)
        theta, parts = np.zeros_like(noisy.counts, np.float32), list(map(slice, noisy.offsets[:-1], noisy.offsets[1:]))
        codes, shares = np.zeros(fixed.shape, dtype=np.int32), target.levels / noisy.n
        for block, parent in _tree(noisy, target):
            law = shares[parts[block]][None]
            if parent is not None:
                joint = target.shrunk[parts[parent], parts[block]]
                law = joint / joint.sum(axis=1, keepdims=True)
                found = np.clip(np.log(law / shares[parts[block]]), -STEEPEST, STEEPEST)
                theta[parts[parent], parts[block]], theta[parts[block], parts[parent]] = found, found.T
            given = codes[:, parent] if parent is not None else np.zeros(len(codes), dtype=np.int32)
            for group in np.unique(fixed[:, block]):
                here = np.flatnonzero(fixed[:, block] == group)
                ends = np.cumsum(np.where(groups.allowed(group)[parts[block]], law, 0), axis=1)[given[here]]
                codes[here, block] = (ends <= rng.random((len(here), 1)) * ends[:, -1:]).sum(axis=1)
        third = np.zeros(sum(each.beyond.size for each in noisy.triples), dtype=np.float32)
        return cls(theta, np.log(shares).astype(np.float32), codes, fixed, third, noisy.layout)

    def moved(self, noisy: NoisyPairs, groups: LevelGroups, sweeps: int, rng: np.random.Generator) -> None:
        """Move the chains, in place."""
        for _ in range(sweeps):
            uniform, order = rng.random(self.codes.shape, dtype=np.float32), rng.permutation(self.codes.shape[1])
            own = self.codes, self.theta, self.bias, noisy.offsets, groups.group, self.fixed
            sweep(*own, uniform, order, self.layout, self.third)

    def fitted(
        self,
        noisy: NoisyPairs,
        target: PairTarget,
        groups: LevelGroups,
        rng: np.random.Generator,
        around: tuple[FloatArray, FloatArray] | None = None,
    ) -> "PairField":
        """Return the field whose expected pairs come as near the target as the priors let them.

        ``around`` are the means of the priors, as :meth:`PairTarget.drawn` returns them. Left out, they are 0, and
        pairs that say no more than noise have no parameters.
        """
        offsets, n, theta, bias, third = noisy.offsets, noisy.n, self.theta.copy(), self.bias.copy(), self.third.copy()
        scale = n / len(self.codes)
        field = replace(self, theta=theta, bias=bias, codes=self.codes.copy(), third=third)
        sums, n_sums, limit = [np.zeros_like(each) for each in (theta, bias, third)], 0, 0.0
        whole = (each.counts(target.levels, target.pairs, noisy).ravel() for each in noisy.triples)
        wanted = np.concatenate([[], *whole])
        ridges = np.concatenate([[], *(np.full(t.beyond.size, t.variance / OF_TRIPLES) for t in noisy.triples)])
        around_third = 0.0 if around is None else rng.standard_normal(len(third)) * math.sqrt(OF_TRIPLES)
        ones, passed, sweeps = np.ones(len(self.codes), dtype=np.int64), list[Codes](), MOST_SWEEPS
        scores, wide = target.scores, target.likely if around is None else target.wide
        on, steep = (each > 0 for each in wide)
        penalty = noisy.spread(noisy.noise) / np.maximum(wide[0], EXACT)
        stiff = scores.spread(noisy.noise) / np.maximum(wide[1], EXACT)
        centre, middle = (0.0, 0.0) if around is None else around
        moves, slopes = n * np.outer(scores.length, scores.lengths), np.where(steep, scores.fitting(theta), 0)
        apart = theta - scores.parameters(slopes)
        least = np.outer(target.levels, target.levels) / n / 5 + scale
        for k in range(MOST_SWEEPS):
            field.moved(noisy, groups, 1, rng)
            counts = np.asarray(pair_counts(field.codes, ones, offsets) * scale, dtype=np.float64)
            counts = np.triu(counts) + np.triu(counts, 1).T
            levels = np.diagonal(counts).astype(np.float64)
            if k % LOOK_AGAIN == 0:
                limit = STIFFEST / _stiffness(noisy, counts, target.levels) ** 2
                sweeps = sweeps if k else round(min(max(STEPS / limit, LEAST_SWEEPS), MOST_SWEEPS))
            rate = min(RATE, limit) * min(1.0, 2 - 2 * k / sweeps) + min(RATE, limit) / 20
            off = target.levels - levels
            bias += np.clip(RATE * off / (levels + 10 * scale), -LONGEST_STEP, LONGEST_STEP).astype(np.float32)
            rest = target.pairs - counts - np.outer(off, levels) / n - np.outer(levels, off) / n
            ridge = penalty / np.maximum(counts, least)
            change = rate * (rest - ridge * (apart - centre)) / (np.maximum(counts, target.pairs) + 5 * scale + ridge)
            apart += np.where(on, np.clip(change, -LONGEST_STEP, LONGEST_STEP), 0)
            ridge = stiff / np.maximum(moves, EXACT)
            change = rate * (scores.along(rest) - ridge * (slopes - middle)) / (moves + 5 * scale + ridge)
            slopes += np.where(steep, np.clip(change, -LONGEST_SLOPE, LONGEST_SLOPE), 0)
            theta[:] = apart + scores.parameters(slopes)
            cells = np.bincount(field.triple_cells().ravel(), minlength=len(third)) * scale
            ridge = ridges / np.maximum(cells, 5 * scale)
            change = rate * (wanted - cells - ridge * (third - around_third))
            change /= np.maximum(cells, wanted) + 5 * scale + ridge
            third += np.clip(change, -LONGEST_STEP, LONGEST_STEP).astype(np.float32)
            if k >= AVERAGED * sweeps:
                sums, n_sums = [sums[0] + theta, sums[1] + bias, sums[2] + third], n_sums + 1
                if (sweeps - 1 - k) % max(1, int((1 - AVERAGED) * sweeps / max(1, scale))) == 0:
                    passed.append(field.codes.copy())
            if k == sweeps - 1:
                break
        theta, bias, third = (total / np.float32(n_sums) for total in sums)
        return replace(field, theta=theta, bias=bias, third=third, passed=tuple(passed))

    def off(self, noisy: NoisyPairs, target: PairTarget, groups: LevelGroups, rng: np.random.Generator) -> FloatArray:
        """Return how far each block's levels are from the target's where chains move on, and by chance: (2, blocks)."""
        made, shares = replace(self, codes=self.codes.copy()), target.levels / noisy.n
        made.moved(noisy, groups, FINAL_SWEEPS, rng)
        counts = np.bincount((made.codes + noisy.offsets[:-1]).ravel(), minlength=noisy.offsets[-1])
        chance = np.sqrt(2 / math.pi * shares * (1 - shares) / len(self.codes))
        return noisy.over(np.array([np.abs(counts / len(self.codes) - shares), chance]), 1) / 2

    def triple_cells(self) -> IntArray:
        """Return the cell of each record in each triple, shape (records, triples)."""
        found: IntArray = (self.codes[:, self.layout[:, 1:4]] * self.layout[:, 4:]).sum(axis=2) + self.layout[:, 0]
        return found

    def records(
        self,
        noisy: NoisyPairs,
        target: PairTarget,
        groups: LevelGroups,
        n: int,
        rng: np.random.Generator,
        *,
        kept: bool = False,
    ) -> Codes:
        """Return the levels of new records, shape (n, blocks): chains that have moved on since the fit.

        For households, and beside public columns, whose values must stay with their records, chains start from the tree
        and run twice as long. Where margins are to be ``kept``, but not beside public columns, the counts of all levels
        are those of the target, rounded. Otherwise chains are drawn, as the fit has driven all of them to the target.
        """
        fixed = groups.of(n, rng)
        if len(groups.rows) > 1:
            begun = PairField.start(noisy, target, groups, rng, n)
            made = replace(self, codes=begun.codes, fixed=begun.fixed)
            made.moved(noisy, groups, 2 * FINAL_SWEEPS, rng)
        else:
            codes = np.concatenate(self.passed)
            some = rng.permutation(np.resize(np.arange(len(codes)), n)) if kept else rng.integers(0, len(codes), n)
            made = replace(self, codes=codes[some], fixed=fixed)
            made.moved(noisy, groups, FINAL_SWEEPS, rng)
        for block, group in groups.kept(made.fixed) if kept else ():
            rows = np.flatnonzero(made.fixed[:, block] == group)
            held, shares = groups.levels(block, group)

            def gain(some: IntArray, level: int, at: Any = (block, rows, held)) -> FloatArray:
                return self.gain(made.codes[at[1][some]], at[0], at[2][level], noisy.offsets)

            own = np.searchsorted(held, made.codes[rows, block])
            made.codes[rows, block] = held[levelled(own, rounded_counts(shares, len(rows)), gain, rng)]
        return made.codes

    def gain(self, codes: Codes, block: int, level: int | IntArray, offsets: IntArray) -> FloatArray:
        """Return by how much the log density of each record rises with another level of a block."""
        new, old = offsets[block] + level, offsets[block] + codes[:, block]
        found: FloatArray = self.bias[new] - self.bias[old].astype(np.float64)
        for other in range(len(offsets) - 1):
            if other != block:
                given = offsets[other] + codes[:, other]
                found += self.theta[given, new] - self.theta[given, old]
        cells = replace(self, codes=codes).triple_cells()
        for t, axis in zip(*np.nonzero(self.layout[:, 1:4] == block), strict=True):
            step = (level - codes[:, block]) * self.layout[t, 4 + axis]
            found += self.third[cells[:, t] + step] - self.third[cells[:, t]]
        return found

    def places(
        self, codes: Codes, blocks: Sequence[int], noisy: NoisyPairs, rng: np.random.Generator
    ) -> dict[int, FloatArray]:
        """Return where each record lies within its level of some ordered blocks, from 0 to 1.

        The log density is taken to be linear from the middle of a level to that of the next one. A place is drawn given
        the levels of all columns and the places in the other blocks, in several rounds. Normal scores in place of even
        ones were worse on real tables, whose tails depend on each other less than normal ones (tried).
        """
        found = {block: np.full(len(codes), 0.5) for block in blocks}
        ends, width, rises = dict[int, tuple[IntArray, IntArray]](), dict[int, IntArray](), dict[int, FloatArray]()
        for block in blocks:
            own, last = codes[:, block].astype(np.int64), noisy.ordered[block] - 1
            above, below = np.clip(own + 1, 0, last), np.clip(own - 1, 0, last)
            width[block] = np.maximum(above - below, 1)
            ends[block] = noisy.offsets[block] + above, noisy.offsets[block] + below
            rise = self.gain(codes, block, above, noisy.offsets) - self.gain(codes, block, below, noisy.offsets)
            rises[block] = (rise - (np.bincount(own, rise) / np.maximum(np.bincount(own), 1))[own]) / width[block]
        for _ in range(ROUNDS):
            for block in blocks:
                slope, (above, below) = rises[block].copy(), ends[block]
                for other in (each for each in blocks if each != block):
                    high, low = ends[other]
                    bent = self.theta[above, high] - self.theta[above, low]
                    bent += self.theta[below, low] - self.theta[below, high]
                    slope += (found[other] - 0.5) * bent / (width[block] * width[other])
                slope = np.where(np.abs(slope) < EVEN, EVEN, np.clip(slope, -STEEPEST, STEEPEST))
                found[block] = np.log1p(rng.random(len(codes)) * np.expm1(slope)) / slope
        return found


def redrawn(
    field: PairField,
    noisy: NoisyPairs,
    target: PairTarget,
    moved: Mapping[int, tuple[FloatArray, float]],
    n_records: int,
    rng: np.random.Generator,
    first: FloatArray,
) -> tuple[PairField, LevelGroups, FloatArray]:
    """Return a field fitted to margins with fresh noise around a draw of the prior, its groups, and how far off it is.

    ``first`` is how far off the first field is, as :meth:`PairField.off` says.
    """
    again = noisy.again(rng, moved)
    around, other = target.drawn(rng), target.moved(again)
    groups = other.groups.drawn(n_records, rng, even=False)
    begun = replace(field, fixed=groups.of(len(field.codes), rng)) if len(groups.kinds) > 1 else field
    part = np.ones_like(noisy.variance)
    for _ in range(RETRIES + 1):
        around = around[0] * noisy.spread(part), around[1] * target.scores.spread(part)
        other = other.narrower(again, part)
        found = begun.fitted(again, other, groups, rng, around)
        off = found.off(again, other, groups, rng)
        astray = off[0] > np.maximum(MOST_OFF, ASTRAY * first[0]) + off[1]
        if not astray.any() and off[0].mean() <= max(LEAST_OFF, ASTRAY * first[0].mean()):
            break
        part = np.where(astray[:, None] | astray | ~astray.any(), 0.5, 1.0)
    return found, groups, off


def _stiffness(noisy: NoisyPairs, counts: FloatArray, levels: FloatArray) -> float:
    """Return the largest eigenvalue of the correlations between levels: how far a step moves all pairs together."""
    n = noisy.n
    spread = np.sqrt(np.maximum(np.diagonal(counts), levels / 5) / n)
    shares = np.diagonal(counts) / n
    correlation = (counts / n - np.outer(shares, shares)) / np.outer(spread, spread)
    vector = np.ones(len(counts))
    for _ in range(50):
        vector = correlation @ vector
        vector = vector / max(float(np.linalg.norm(vector)), 1e-30)
    return max(float(vector @ correlation @ vector), 1.0)


@numba.njit(cache=True, fastmath=True, nogil=True)
def sweep(codes, theta, bias, offsets, group, fixed, uniform, order, layout, third):  # type: ignore[no-untyped-def]
    """Redraw the level of every block of every chain given the others, within the group of levels that is fixed.

    ``pull`` holds the sum of the parameters of a record's levels with every level; it changes only where a level does.
    """
    n, d = codes.shape
    width = len(bias)
    pull, weight = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    added = np.zeros(width, dtype=np.float32)
    for r in range(n):
        pull[:] = bias
        for j in range(d):
            row = theta[offsets[j] + codes[r, j]]
            for a in range(width):
                pull[a] += row[a]
        for q in range(d):
            i = order[q]
            first, end, kept = offsets[i], offsets[i + 1], fixed[r, i]
            added[first:end] = 0
            for t in range(len(layout)):
                for axis in range(3):
                    if layout[t, 1 + axis] == i:
                        place, step = layout[t, 0], layout[t, 4 + axis]
                        for other in range(3):
                            if other != axis:
                                place += codes[r, layout[t, 1 + other]] * layout[t, 4 + other]
                        for a in range(first, end):
                            added[a] += third[place + (a - first) * step]
            top = np.float32(-1e30)
            for a in range(first, end):
                if (kept < 0 or group[a] == kept) and pull[a] + added[a] > top:
                    top = pull[a] + added[a]
            total = np.float32(0)
            for a in range(first, end):
                is_open = kept < 0 or group[a] == kept
                weight[a] = math.exp(pull[a] + added[a] - top) if is_open else np.float32(0)
                total += weight[a]
            left = uniform[r, q] * total
            chosen = first
            for a in range(first, end):
                if weight[a] > 0:
                    chosen = a
                    left -= weight[a]
                    if left < 0:
                        break
            before = first + codes[r, i]
            if chosen != before:
                codes[r, i] = chosen - first
                new, old = theta[chosen], theta[before]
                for a in range(width):
                    pull[a] += new[a] - old[a]
