"""Regressions from sums over records: pairs of some columns, normal equations, scores, the law of the predictors."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal

import numpy as np
from scipy.linalg import block_diag
from scipy.special import expit

from pdips.arrays import BoolArray, FloatArray
from pdips.errors import InputError, UselessWarning
from pdips.margins.estimates import NoisyPairs
from pdips.margins.sums import NoisyProducts
from pdips.outside.answer import Answer

type Target = Literal["table", "population"]
type Parts = tuple[FloatArray, FloatArray]
type Reads = Callable[[FloatArray, FloatArray], FloatArray]
"""Numbers, shape (replicates, numbers), from what :meth:`Chosen.counts` returns."""

type Terms = tuple[list[str], FloatArray]
"""Names of the terms that stand for a column, and their values for each of its levels, shape (levels, terms)."""

LEAST_COUNT = 1e-3  # What a cell of the predictors is raised to, in records
PRIOR_INTERCEPT, PRIOR_SLOPE = 5.0, 2.5
"""Standard deviations of coefficients of standardised predictors, where the noise leaves no finite fit."""

AT_PRIOR = 0.8  # Posterior over prior standard deviation from which a coefficient is the prior's
N_WALKERS, STAGES, STAGE_STEPS = 100, 4, 200

FARTHEST, NEWTON_STEPS, ROUNDS = 30.0, 40, 25

OPEN = "the noise leaves these numbers open: intervals are the whole line"

MOST_LOST = 0.02  # Part of the replicates without a finite fit beyond which an interval is the whole line
MOST_NUMBERS = 2_000_000  # How many numbers a batch of replicates may hold at a time


@dataclass(frozen=True, eq=False)
class Chosen:
    """The noisy pairs of some columns."""

    pairs: NoisyPairs  # of the blocks that hold the columns
    home: dict[str, int]  # the block of each column
    places: dict[str, slice]  # where the levels of each column are among those of all
    levels: FloatArray  # shape (levels of blocks, levels of columns): which of a block have which level of a column

    def counts(self, pairs: Sequence[NoisyPairs] = ()) -> Parts:
        """Return the counts of all pairs of levels, shape (replicates, levels, levels), and the numbers of records.

        Those of one column with itself are on the diagonal.
        """
        pairs = pairs or [self.pairs]
        within = self.pairs.spread(np.eye(len(self.pairs.sizes))) > np.eye(len(self.levels))
        counts = np.where(within, 0.0, np.stack([each.counts for each in pairs]))
        found: FloatArray = self.levels.T @ counts @ self.levels
        return found, np.array([each.n for each in pairs])

    def again(self, replicates: int, cells: int, seed: int) -> Iterator[Parts]:
        """Yield counts with fresh noise on top, in batches that suit what is worked out from each, of so many cells."""
        rng, batch = np.random.default_rng(seed), max(1, MOST_NUMBERS // max(cells, self.levels.size))
        for start in range(0, replicates, batch):
            yield self.counts([self.pairs.again(rng) for _ in range(min(batch, replicates - start))])

    def spread(
        self, reads: Reads, replicates: int, cells: int = 1, *, tell: bool = True
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return an answer, its replicates with fresh noise, and the covariance of these about it."""
        centre = reads(*self.counts())[0]
        with np.errstate(all="ignore"):
            again = np.concatenate([reads(*each) for each in self.again(replicates, cells, 0)])
        whole = np.isfinite(again).all(axis=1)
        if whole.mean() < 1 - MOST_LOST or not np.isfinite(centre).all():
            if tell:
                warnings.warn(OPEN, UselessWarning, 3)
            return centre, again, np.diag(np.full(len(centre), np.inf))
        off = again[whole] - centre
        return centre, again, off.T @ off / len(off)


def read_interactions(formula: str) -> tuple[str, list[tuple[str, ...]]]:
    """Return a formula without its interactions, whose columns must be there alone too; ``a * b``: ``a + b + a:b``."""
    outcome, tilde, right = formula.partition("~")
    alone, found = list[str](), list[tuple[str, ...]]()
    for part in right.split("+"):
        factors = [name.strip() for name in re.split("[:*]", part)]
        alone += factors if "*" in part else [part.strip()] if len(factors) == 1 else []
        sizes = range(2, len(factors) + 1) if "*" in part else [len(factors)] if len(factors) > 1 else []
        found += [some for size in sizes for some in combinations(factors, size)]
    if lacking := [name for some in found for name in some if name not in alone]:
        raise InputError(f"{lacking[0]!r} is in an interaction, so it must be in the formula by itself too")
    if outcome.strip() in alone and found:
        raise InputError("the outcome can't be in an interaction")
    return f"{outcome}{tilde}{' + '.join(dict.fromkeys(alone))}", list(dict.fromkeys(found))


def grouped(interactions: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the columns that interactions tie together, in groups that have none in common."""
    groups = list[tuple[str, ...]]()
    for some in interactions:
        near = [group for group in groups if {*group} & {*some}]
        joined = dict.fromkeys(name for group in (*near, some) for name in group)
        groups = [group for group in groups if group not in near] + [tuple(joined)]
    return groups


def crossed(columns: Mapping[str, Terms], interactions: Sequence[Sequence[str]]) -> Terms:
    """Return the terms of columns taken as one: each column's own, and products of them for each interaction."""
    grid = np.indices([len(values) for _, values in columns.values()]).reshape(len(columns), -1)
    own = {name: (terms, values[at]) for at, (name, (terms, values)) in zip(grid, columns.items(), strict=True)}
    names, found = [t for terms, _ in own.values() for t in terms], [values for _, values in own.values()]
    for some in interactions:
        names += map(":".join, product(*(own[name][0] for name in some)))
        each: FloatArray = np.ones((grid.shape[1], 1))
        for name in some:
            each = np.asarray(each[:, :, None] * own[name][1][:, None]).reshape(grid.shape[1], -1)
        found.append(each)
    return names, np.hstack(found)


@dataclass(frozen=True, eq=False)
class TermTable:
    """The terms of a formula: those of each predictor, and of the outcome."""

    predictors: list[Terms]
    outcome: Terms

    @property
    def names(self) -> tuple[str, ...]:
        """Of the coefficients."""
        return ("Intercept", *(name for names, _ in self.predictors for name in names))

    @property
    def values(self) -> FloatArray:
        """Of each level: its terms and the outcome, shape (levels, terms + 1)."""
        return np.asarray(block_diag(*(values for _, values in self.predictors), self.outcome[1]))

    @property
    def shape(self) -> list[int]:
        """How many levels each predictor has."""
        return [len(values) for _, values in self.predictors]

    def cells(self) -> FloatArray:
        """Return the terms in each combination of the predictors' levels, the intercept first."""
        levels = np.indices(self.shape).reshape(len(self.shape), -1)
        parts = [values[level] for (_, values), level in zip(self.predictors, levels, strict=True)]
        return np.column_stack([np.ones(levels.shape[1]), *parts])


def sums(values: FloatArray, counts: FloatArray, n: FloatArray) -> FloatArray:
    """Return the sums of products over records of 1 and of what stands for levels, shape (replicates, terms, terms).

    ``values`` have shape (levels, terms); ``counts`` and ``n`` are those of :meth:`Chosen.counts`.
    """
    alone = np.diagonal(counts, axis1=1, axis2=2) @ values
    found = np.empty((len(n), 1 + values.shape[1], 1 + values.shape[1]))
    found[:, 0, 0], found[:, 0, 1:], found[:, 1:, 0] = n, alone, alone
    found[:, 1:, 1:] = values.T @ counts @ values
    return found


def solved(matrices: FloatArray, right: FloatArray) -> FloatArray:
    """Return solutions of linear systems, NaN where noise leaves a matrix without an inverse of positive kind."""
    found = np.full(right.shape, np.nan)
    fine = np.linalg.eigvalsh(matrices)[:, 0] > 0
    found[fine] = np.linalg.solve(matrices[fine], right[fine][..., None])[..., 0]
    return found


def least_squares(moments: NoisyProducts, outcome: str, predictors: Sequence[str], target: Target) -> Answer:
    """Return a linear regression on noisy sums of products, in the columns' own units.

    With noisy sums A of the predictors' products and b of those with the outcome, whose noise is dA and db, the error
    of A^-1 b is A^-1 (db - dA c) for the coefficients c without noise, for which the noisy ones stand in. Where A
    isn't positive definite, intervals are the whole line.
    """
    home, (gram,) = moments.design.home, moments.matrices()
    right = [0, *(k for name in predictors for k, own in enumerate(home) if own == name)]
    left, scales = home.index(outcome), [(-1.0, 1.0), *(moments.caps.get(str(name), (-1.0, 1.0)) for name in home[1:])]
    inside, size = gram[np.ix_(right, right)], len(right)
    middle, half = (np.array([(high + sign * low) / 2 for low, high in scales]) for sign in (1, -1))
    back = np.diag(half[left] / half[right])
    back[0, 1:] = -middle[right[1:]] * np.diag(back)[1:]
    inverse = np.linalg.pinv(inside)
    centre = inverse @ gram[right, left]
    found = back @ centre + np.append(middle[left], np.zeros(size - 1))
    names = ("Intercept", *(term for name in predictors for term in moments.design.terms[name]))
    basis = "follows from measured products of capped numbers"
    if np.linalg.eigvalsh(inside)[0] <= 0:
        warnings.warn(OPEN, UselessWarning, 3)
        return Answer(names, found, np.diag(np.full(size, np.inf)), basis)
    weight, lifted = np.zeros(len(home)), np.zeros((size, len(home)))
    weight[right], weight[left], lifted[:, right] = centre, -1.0, inverse
    one, other = (each[int(moments.n_records is not None) :] for each in moments.design.entries)
    tied = (one == 0) & ~moments.design.numeric[other]  # a level's sum with 1 is that with itself too
    again = np.where(one != other, weight[one], 0) + np.where(tied, weight[other], 0)
    moved = lifted[:, one] * weight[other] + lifted[:, other] * again
    covariance = moments.error**2 * moved @ moved.T
    if target == "population":
        residual = max(gram[left, left] - centre @ gram[right, left], 0.0) / max(gram[0, 0] - size, 1)
        covariance = covariance + residual * inverse
    return Answer(names, found, back @ covariance @ back.T, basis)


def joint(shape: Sequence[int], counts: FloatArray) -> FloatArray:
    """Return the shares of all cells of the first columns: of maximum entropy, as far as noise lets pairs agree.

    Shape (replicates, cells); ``counts`` are those of :meth:`Chosen.counts`.
    """
    n_columns, ends = len(shape), np.cumsum([0, *shape])
    if n_columns == 1:
        alone = np.maximum(np.diagonal(counts, axis1=1, axis2=2)[:, : shape[0]], LEAST_COUNT)
        return np.asarray(alone / alone.sum(axis=1, keepdims=True))
    law: FloatArray = np.ones((len(counts), *shape))
    both = list(combinations(range(n_columns), 2))
    pairs = [np.maximum(counts[:, ends[i] : ends[i + 1], ends[j] : ends[j + 1]], LEAST_COUNT) for i, j in both]
    pairs = [each / each.sum(axis=(1, 2), keepdims=True) for each in pairs]
    for _ in range(1 if n_columns == 2 else ROUNDS):
        for (i, j), wanted in zip(both, pairs, strict=True):
            others = tuple(1 + k for k in range(n_columns) if k not in (i, j))
            law = law * np.expand_dims(wanted / np.maximum(law.sum(axis=others), 1e-300), others)
    law = law.reshape(len(law), -1)
    return np.asarray(law / law.sum(axis=1, keepdims=True))


def maximum(design: FloatArray, laws: FloatArray, scores: FloatArray, family: str) -> FloatArray:
    """Return the coefficients whose expected scores are the given ones, by Newton's method; NaN where there are none.

    ``laws`` have shape (replicates, cells), ``scores`` and coefficients (replicates, coefficients).
    """
    share = np.clip(scores[:, 0], 1e-6, 1 - 1e-6 if family == "binomial" else None)
    now, found = np.zeros(scores.shape), np.full(scores.shape, np.nan)
    now[:, 0] = np.log(share / (1 - share)) if family == "binomial" else np.log(share)
    going = np.arange(len(scores))
    for _ in range(NEWTON_STEPS):
        linear = now[going] @ design.T
        mean = expit(linear) if family == "binomial" else np.exp(np.minimum(linear, 300.0))
        weight = laws[going] * (mean * (1 - mean) if family == "binomial" else mean)
        hessian = design.T @ (weight[..., None] * design)
        fine = np.isfinite(hessian).all(axis=(1, 2))
        fine[fine] = np.linalg.eigvalsh(hessian[fine])[:, 0] >= 1e-12
        going, off = going[fine], scores[going[fine]] - (laws[going[fine]] * mean[fine]) @ design
        step = np.linalg.solve(hessian[fine], off[..., None])[..., 0]
        longest = np.abs(step).max(axis=1, initial=0)
        now[going] += step * np.minimum(1.0, 2.0 / np.maximum(longest, 1e-12))[:, None]
        near, there = np.abs(now[going]).max(axis=1, initial=0) <= FARTHEST, longest < 1e-9
        found[going[near & there]] = now[going[near & there]]
        going = going[near & ~there]
        if not len(going):
            break
    return found


def posterior(design: FloatArray, seen: Parts, again: Parts, n: float, family: str) -> tuple[FloatArray, BoolArray]:
    """Return draws of the coefficients given a noisy score, under a normal prior, and which are the prior's alone.

    The score is normal about the one that the coefficients give. Its covariance is that of the noise, on score and law
    of the predictors together, and with a finite ``n`` of sampling; it is taken at the mean over the draws so far.
    Draws are by an ensemble of walkers (Goodman and Weare, 2010).

    ``design``, shape (cells, coefficients), is standardised, the intercept first. ``seen`` are the shares of the
    predictors' cells, shape (replicates, cells), and sums over records, over their number, shape (replicates,
    coefficients); ``again`` the same with fresh noise on top. ``n`` is infinite for the table's own coefficients.
    """
    (law, score), (laws, scores) = (each[0] for each in seen), again
    rng, size = np.random.default_rng(2), design.shape[1]
    prior = np.array([PRIOR_INTERCEPT, *np.full(size - 1, PRIOR_SLOPE)])

    def means(coefficients: FloatArray) -> FloatArray:
        linear = coefficients @ design.T
        return np.asarray(expit(linear) if family == "binomial" else np.exp(np.minimum(linear, 30.0)))

    def log_density(coefficients: FloatArray, precision: FloatArray) -> FloatArray:
        off = score - (means(coefficients) * law) @ design
        return np.asarray(-(np.sum((off @ precision) * off, axis=1) + np.sum((coefficients / prior) ** 2, axis=1)) / 2)

    walkers = prior * rng.standard_normal((N_WALKERS, size)) / 2
    kept = list[FloatArray]()
    for stage in range(STAGES):
        mean = means(walkers).mean(axis=0)
        off = scores - (laws * mean) @ design
        weight = mean * (1 - mean) if family == "binomial" else mean
        sampling = (design * (law * weight)[:, None]).T @ design / n
        precision = np.linalg.inv(np.cov(off.T) + sampling + 1e-12 * np.eye(size))
        at = log_density(walkers, precision)
        for step in range(STAGE_STEPS):
            for half in (slice(0, N_WALKERS // 2), slice(N_WALKERS // 2, N_WALKERS)):
                others = np.delete(walkers, np.arange(N_WALKERS)[half], axis=0)
                stretch = (1 + rng.random(N_WALKERS // 2)) ** 2 / 2
                from_ = others[rng.integers(len(others), size=N_WALKERS // 2)]
                moved = from_ + stretch[:, None] * (walkers[half] - from_)
                there = log_density(moved, precision)
                taken = np.log(rng.random(N_WALKERS // 2)) < (size - 1) * np.log(stretch) + there - at[half]
                walkers[half] = np.where(taken[:, None], moved, walkers[half])
                at[half] = np.where(taken, there, at[half])
            if stage == STAGES - 1 and step >= STAGE_STEPS // 2 and step % 10 == 0:
                kept.append(walkers.copy())
    draws = np.concatenate(kept)
    return draws, draws.std(axis=0) > AT_PRIOR * prior
