"""The table of maximum entropy that agrees with noisy pairs, without laying out cells: Markov chains are its records.

A pairwise Markov random field has a parameter for each two levels. Its expectations can't be added up over 10^30 cells,
so they are taken over chains that are moved a little after every change of the parameters (persistent contrastive
divergence: Younes, 1988; Tieleman, 2008). Everything here is post-processing of noisy and public numbers.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numba
import numpy as np
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.margins.residuals import pair_counts

Codes = NDArray[np.int32]
Floats32 = NDArray[np.float32]

MOST_WORK = 2.5e10
"""Additions of the chains in a first fit: where a table needs more, fewer chains than records are run."""

FEWEST_CHAINS = 2_000
SWEEPS, REFIT_SWEEPS, FINAL_SWEEPS = 100, 30, 20
RATE, LAST_RATE, LONGEST_STEP = 0.35, 0.02, 0.5
AVERAGED = 0.7
"""Parameters are averaged over the last sweeps of a fit, from this part of them on."""

FLOOR = 0.3
"""Standard errors that a level counts for at least, so that noise rules nothing out."""

WIDEST, LOOSENED = 4.0, 0.3
"""Largest variance of the prior of a pair's parameters; and what their penalty is multiplied by (tried: .03 to 3)."""


@dataclass(frozen=True, eq=False)
class NoisyPairs:
    """Unbiased estimates of all pairs of blocks, and the variance of the noise that only a pair has.

    Parameters
    ----------
    offsets : ndarray of int64, shape (blocks + 1,)
        Where the levels of each block begin.
    counts : ndarray, shape (levels, levels)
        In records, symmetric; on the diagonal those of single levels.
    variance : ndarray, shape (blocks, blocks)
        Of the noise on a count of each pair, before its margins are taken out; on the diagonal that on a level. 0 where
        counts are exact.
    n_records : float
        The number of records, noisy under add-remove.
    total_variance : float
        Of the number of records.
    """

    offsets: IntArray
    counts: FloatArray
    variance: FloatArray
    n_records: float
    total_variance: float = 0.0

    @property
    def sizes(self) -> IntArray:
        """Number of levels of each block."""
        return np.diff(self.offsets)

    def spread(self, values: FloatArray) -> FloatArray:
        """Return values of pairs of blocks as values of pairs of levels."""
        return np.repeat(np.repeat(values, self.sizes, axis=0), self.sizes, axis=1)

    def added(self, values: FloatArray) -> FloatArray:
        """Return sums over the levels of pairs of blocks."""
        first = self.offsets[:-1]
        found: FloatArray = np.add.reduceat(np.add.reduceat(values, first, axis=0), first, axis=1)
        return found

    def centred(self, values: FloatArray) -> FloatArray:
        """Return what pairs say beyond their margins."""
        columns = np.add.reduceat(values, self.offsets[:-1], axis=0) / self.sizes[:, None]
        found = values - np.repeat(columns, self.sizes, axis=0)
        rows = np.add.reduceat(found, self.offsets[:-1], axis=1) / self.sizes
        return found - np.repeat(rows, self.sizes, axis=1)

    def again(self, rng: np.random.Generator) -> "NoisyPairs":
        """Return the estimates with fresh noise of the same law (normal) on top."""
        n_levels = self.offsets[-1]
        total = math.sqrt(self.total_variance) * rng.standard_normal()
        alone = rng.standard_normal(n_levels) * np.sqrt(np.repeat(np.diagonal(self.variance), self.sizes))
        means = np.add.reduceat(alone, self.offsets[:-1]) / self.sizes
        exact = np.repeat(np.diagonal(self.variance) == 0, self.sizes)
        level = alone - np.repeat(means, self.sizes) + np.where(exact, 0, total / np.repeat(self.sizes, self.sizes))
        noise = np.triu(rng.standard_normal((n_levels, n_levels)), 1)
        noise = self.centred((noise + noise.T) * np.sqrt(self.spread(self.variance)))
        size = np.repeat(self.sizes, self.sizes)
        noise += level[:, None] / size + level / size[:, None] - total / np.outer(size, size)
        noise = np.where(self.spread(self.variance) > 0, noise, 0)
        noise[np.eye(len(noise), dtype=bool)] = level
        return replace(self, counts=self.counts + noise, n_records=self.n_records + total)


@dataclass(frozen=True, eq=False)
class PairTarget:
    """What a field is fitted to: expected counts of levels and of pairs, and a penalty for each parameter of a pair."""

    levels: FloatArray
    pairs: FloatArray
    penalty: FloatArray
    """Variance of the noise over that of the prior, in squared records; infinite where a pair has no parameters."""
    told: BoolArray
    """Which pairs of blocks say more than noise would, shape (blocks, blocks)."""

    @classmethod
    def of(cls, noisy: NoisyPairs) -> "PairTarget":
        """Return the target: pairs that say no more than noise get no parameters, and others a prior of their own.

        The prior variance of a pair's parameters is what its distance from independence shows beyond the noise's.
        """
        n, sizes = max(noisy.n_records, 1.0), noisy.sizes
        shares = _shares(noisy)
        alone = n * np.outer(shares, shares)
        beyond = noisy.centred(noisy.counts - alone)
        between = ~np.eye(len(sizes), dtype=bool)
        squares, freedom = noisy.added(beyond**2), np.outer(sizes - 1, sizes - 1)
        excess = squares - freedom * noisy.variance
        told = between & (excess > 0)
        of_levels = np.add.reduceat(shares**2, noisy.offsets[:-1])
        prior = np.clip(excess / (n * n * np.outer(of_levels, of_levels)), 1e-12, WIDEST)
        exact = noisy.variance.max(initial=0.0) * 1e-9 + 1e-9  # public pairs of blocks are fixed, not fitted
        told &= noisy.variance > 0
        penalty = np.where(told, LOOSENED * np.maximum(noisy.variance, exact) / prior, np.inf)
        return cls(n * shares, alone + beyond, noisy.spread(penalty), told)


def _shares(noisy: NoisyPairs) -> FloatArray:
    """Return the shares of all levels of each block, above 0 and adding up to 1."""
    error = np.sqrt(np.maximum(np.repeat(np.diagonal(noisy.variance), noisy.sizes), 1e-6))
    raised = np.maximum(np.diagonal(noisy.counts), FLOOR * error)
    return raised / np.repeat(np.add.reduceat(raised, noisy.offsets[:-1]), noisy.sizes)


@dataclass(frozen=True, eq=False)
class LevelGroups:
    """Which levels a record may take: those of the group that its public columns fix; one group where they don't.

    Parameters
    ----------
    group : ndarray of int32, shape (levels,)
        Of each level.
    rows : ndarray of int32, shape (public rows, blocks)
        What is fixed for each record, in the order of the public columns; one row if there are none.
    """

    group: Codes
    rows: Codes

    def of(self, n: int, rng: np.random.Generator) -> Codes:
        """Return what is fixed for so many chains: all rows, or some of them at random."""
        if n == len(self.rows):
            return self.rows
        return np.ascontiguousarray(self.rows[rng.integers(0, len(self.rows), n)])

    def drawn(self, log_weight: Floats32, noisy: NoisyPairs, fixed: Codes, rng: np.random.Generator) -> Codes:
        """Return levels drawn independently, each from its group, with these log weights."""
        codes = np.zeros(fixed.shape, dtype=np.int32)
        for block, (first, end) in enumerate(pairwise(noisy.offsets.tolist())):
            for group in np.unique(fixed[:, block]):
                here, own = np.flatnonzero(fixed[:, block] == group), self.group[first:end] == group
                share = np.where(own, np.exp(log_weight[first:end].astype(float)), 0)
                codes[here, block] = rng.choice(end - first, len(here), p=share / share.sum())
        return codes


@dataclass(frozen=True, eq=False)
class PairField:
    """The parameters of a pairwise Markov random field, and chains that follow its law."""

    theta: Floats32
    bias: Floats32
    codes: Codes
    fixed: Codes

    @classmethod
    def start(cls, noisy: NoisyPairs, groups: LevelGroups, rng: np.random.Generator) -> "PairField":
        """Return independent columns."""
        work = SWEEPS * len(noisy.sizes) * len(noisy.counts)
        n = max(FEWEST_CHAINS, min(round(noisy.n_records), int(MOST_WORK / work)))
        fixed, bias = groups.of(n, rng), np.log(_shares(noisy)).astype(np.float32)
        return cls(np.zeros(noisy.counts.shape, dtype=np.float32), bias, groups.drawn(bias, noisy, fixed, rng), fixed)

    def moved(self, groups: LevelGroups, offsets: IntArray, sweeps: int, rng: np.random.Generator) -> None:
        """Move the chains, in place."""
        for _ in range(sweeps):
            uniform, order = rng.random(self.codes.shape, dtype=np.float32), rng.permutation(self.codes.shape[1])
            sweep(self.codes, self.theta, self.bias, offsets, groups.group, self.fixed, uniform, order)

    def fitted(
        self,
        noisy: NoisyPairs,
        target: PairTarget,
        groups: LevelGroups,
        rng: np.random.Generator,
        *,
        sweeps: int = SWEEPS,
        around: FloatArray | None = None,
    ) -> "PairField":
        """Return the field whose expected pairs come as near the target as their penalties let them.

        ``around`` are the parameters at which the penalty is 0, shape (levels, levels); 0 if left out.
        """
        offsets, n, theta, bias = noisy.offsets, max(noisy.n_records, 1.0), self.theta.copy(), self.bias.copy()
        scale = n / len(self.codes)
        field, sums, n_sums = replace(self, theta=theta, bias=bias, codes=self.codes.copy()), [0.0, 0.0], 0
        ones, on = np.ones(len(self.codes), dtype=np.int64), np.isfinite(target.penalty)
        penalty, centre = np.where(on, target.penalty, 0), 0.0 if around is None else around
        least = np.outer(target.levels, target.levels) / n / 5 + scale
        for k in range(sweeps):
            field.moved(groups, offsets, 1, rng)
            counts = pair_counts(field.codes, ones, offsets) * scale
            counts = np.triu(counts) + np.triu(counts, 1).T
            rate = RATE * min(1.0, 2 - 2 * k / sweeps) + (LAST_RATE if 2 * k >= sweeps else 0)
            levels = np.diagonal(counts)
            off = target.levels - levels
            bias += (rate * off / (levels + 10 * scale)).astype(np.float32)
            rest = target.pairs - counts - np.outer(off, levels) / n - np.outer(levels, off) / n
            ridge = penalty / np.maximum(counts, least)
            change = rate * (rest - ridge * (theta - centre)) / (np.maximum(counts, target.pairs) + 5 * scale + ridge)
            theta += np.where(on, np.clip(change, -LONGEST_STEP, LONGEST_STEP), 0).astype(np.float32)
            if k >= AVERAGED * sweeps:
                sums, n_sums = [sums[0] + theta, sums[1] + bias], n_sums + 1
        mean = [np.asarray(value / n_sums, dtype=np.float32) for value in sums]
        return replace(field, theta=mean[0], bias=mean[1])

    def records(self, noisy: NoisyPairs, n: int, groups: LevelGroups, rng: np.random.Generator) -> Codes:
        """Return the levels of new records, shape (n, blocks): chains that have moved on since the fit.

        Beside public columns, whose values must stay with their records, chains start anew and run twice as long.
        """
        fixed, sweeps = groups.of(n, rng), FINAL_SWEEPS
        codes = self.codes[rng.integers(0, len(self.codes), n)]
        if len(groups.rows) > 1 and n:
            codes, sweeps = groups.drawn(self.bias, noisy, fixed, rng), 2 * FINAL_SWEEPS
        made = replace(self, codes=np.ascontiguousarray(codes), fixed=fixed)
        made.moved(groups, noisy.offsets, sweeps, rng)
        return made.codes


@numba.njit(cache=True, fastmath=True, nogil=True)  # type: ignore[untyped-decorator]
def sweep(codes, theta, bias, offsets, group, fixed, uniform, order):  # type: ignore[no-untyped-def]
    """Redraw the level of every block of every chain given the others, within the group of levels that is fixed.

    ``pull`` holds the sum of the parameters of a record's levels with every level; it changes only where a level does.
    """
    n, d = codes.shape
    width = len(bias)
    pull, weight = np.empty(width, dtype=np.float32), np.empty(width, dtype=np.float32)
    for r in range(n):
        pull[:] = bias
        for j in range(d):
            row = theta[offsets[j] + codes[r, j]]
            for a in range(width):
                pull[a] += row[a]
        for q in range(d):
            i = order[q]
            first, end, kept = offsets[i], offsets[i + 1], fixed[r, i]
            top = np.float32(-1e30)
            for a in range(first, end):
                if group[a] == kept and pull[a] > top:
                    top = pull[a]
            total = np.float32(0)
            for a in range(first, end):
                weight[a] = math.exp(pull[a] - top) if group[a] == kept else np.float32(0)
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
