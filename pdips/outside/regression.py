"""Regressions from sums over records: pairs of some columns, normal equations, scores,
the law of the predictors.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal

import numpy as np
from scipy.linalg import block_diag

from pdips.arrays import FloatArray
from pdips.errors import InputError, UselessWarning
from pdips.fields.products import NoisyProducts
from pdips.margins.estimates import NoisyPairs
from pdips.outside.answer import Answer

type Target = Literal["table", "population"]
type Parts = tuple[FloatArray, FloatArray]
type Reads = Callable[[FloatArray, FloatArray], FloatArray]
"""Numbers, shape (replicates, numbers), from what :meth:`Chosen.counts` returns."""

type Terms = tuple[list[str], FloatArray]
"""Names of the terms that stand for a column, and their values for each of its levels,
shape (levels, terms).
"""

LEAST_COUNT = 1e-3  # What a cell of the predictors is raised to, in records
OPEN = "the noise leaves these numbers open: intervals are the whole line"

# Part of the replicates without a finite fit beyond which an interval is the whole line
MOST_LOST = 0.02
MOST_NUMBERS = 2_000_000  # How many numbers a batch of replicates may hold at a time


@dataclass(frozen=True, eq=False)
class Chosen:
    """The noisy pairs of some columns."""

    pairs: NoisyPairs  # of the blocks that hold the columns
    home: dict[str, int]  # the block of each column
    places: dict[str, slice]  # where the levels of each column are among those of all
    # shape (levels of blocks, levels of columns): which of a block have which level of
    # a column
    levels: FloatArray

    def counts(self, pairs: Sequence[NoisyPairs] = ()) -> Parts:
        """Return the counts of all pairs of levels, shape (replicates, levels, levels),
        and the numbers of records.

        Those of one column with itself are on the diagonal.
        """
        pairs = pairs or [self.pairs]
        same_block = self.pairs.spread(np.eye(len(self.pairs.sizes)))
        # of a block with itself, only the diagonal is counts
        within = same_block > np.eye(len(self.levels))
        counts = np.where(within, 0.0, np.stack([each.counts for each in pairs]))
        of_levels: FloatArray = self.levels.T @ counts @ self.levels
        return of_levels, np.array([each.n for each in pairs])

    def again(self, replicates: int, cells: int, seed: int) -> Iterator[Parts]:
        """Yield counts with fresh noise on top, in batches that suit what is worked out
        from each, of so many cells.
        """
        rng = np.random.default_rng(seed)
        batch = max(1, MOST_NUMBERS // max(cells, self.levels.size))
        for start in range(0, replicates, batch):
            n_drawn = min(batch, replicates - start)
            yield self.counts([self.pairs.again(rng) for _ in range(n_drawn)])

    def spread(
        self, reads: Reads, replicates: int, cells: int = 1, *, tell: bool = True
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return an answer, its replicates with fresh noise, and the covariance of
        these about it.
        """
        centre = reads(*self.counts())[0]
        with np.errstate(all="ignore"):
            batches = [reads(*each) for each in self.again(replicates, cells, 0)]
        again = np.concatenate(batches)
        whole = np.isfinite(again).all(axis=1)
        if whole.mean() < 1 - MOST_LOST or not np.isfinite(centre).all():
            if tell:
                warnings.warn(OPEN, UselessWarning, 3)
            return centre, again, np.diag(np.full(len(centre), np.inf))
        off = again[whole] - centre
        return centre, again, off.T @ off / len(off)


def read_interactions(formula: str) -> tuple[str, list[tuple[str, ...]]]:
    """Return a formula without its interactions, whose columns must be there alone too;
    ``a * b``: ``a + b + a:b``.
    """
    outcome, tilde, right = formula.partition("~")
    alone = list[str]()
    interactions = list[tuple[str, ...]]()
    for part in right.split("+"):
        factors = [name.strip() for name in re.split("[:*]", part)]
        if "*" in part:
            alone += factors
            for size in range(2, len(factors) + 1):
                interactions += combinations(factors, size)
        elif len(factors) == 1:
            alone.append(part.strip())
        else:
            interactions.append(tuple(factors))
    lacking = [name for some in interactions for name in some if name not in alone]
    if lacking:
        raise InputError(
            f"{lacking[0]!r} is in an interaction, so it must be in the "
            f"formula by itself too"
        )
    if outcome.strip() in alone and interactions:
        raise InputError("the outcome can't be in an interaction")
    plain = f"{outcome}{tilde}{' + '.join(dict.fromkeys(alone))}"
    return plain, list(dict.fromkeys(interactions))


def grouped(interactions: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the columns that interactions tie together, in groups that have none in
    common.
    """
    groups = list[tuple[str, ...]]()
    for some in interactions:
        near = [group for group in groups if {*group} & {*some}]
        joined = dict.fromkeys(name for group in (*near, some) for name in group)
        groups = [group for group in groups if group not in near] + [tuple(joined)]
    return groups


def crossed(
    columns: Mapping[str, Terms], interactions: Sequence[Sequence[str]]
) -> Terms:
    """Return the terms of columns taken as one: each column's own, and products of them
    for each interaction.
    """
    sizes = [len(values) for _, values in columns.values()]
    grid = np.indices(sizes).reshape(len(columns), -1)
    n_cells = grid.shape[1]
    names = [term for terms, _ in columns.values() for term in terms]
    by_column = {
        name: own[at]
        for at, (name, (_, own)) in zip(grid, columns.items(), strict=True)
    }
    values = [*by_column.values()]
    for interaction in interactions:
        factors = [columns[name][0] for name in interaction]
        names += map(":".join, product(*factors))
        crossing: FloatArray = np.ones((n_cells, 1))
        for name in interaction:
            products = crossing[:, :, None] * by_column[name][:, None]
            crossing = np.asarray(products).reshape(n_cells, -1)
        values.append(crossing)
    return names, np.hstack(values)


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
        values = [values for _, values in [*self.predictors, self.outcome]]
        return np.asarray(block_diag(*values))

    @property
    def shape(self) -> list[int]:
        """How many levels each predictor has."""
        return [len(values) for _, values in self.predictors]

    def cells(self) -> FloatArray:
        """Return the terms in each combination of the predictors' levels, the intercept
        first.
        """
        levels = np.indices(self.shape).reshape(len(self.shape), -1)
        parts = [
            values[level]
            for (_, values), level in zip(self.predictors, levels, strict=True)
        ]
        return np.column_stack([np.ones(levels.shape[1]), *parts])


def sums(values: FloatArray, counts: FloatArray, n: FloatArray) -> FloatArray:
    """Return the sums of products over records of 1 and of what stands for levels,
    shape (replicates, terms, terms).

    ``values`` have shape (levels, terms); ``counts`` and ``n`` are those of
    :meth:`Chosen.counts`.
    """
    alone = np.diagonal(counts, axis1=1, axis2=2) @ values
    size = 1 + values.shape[1]
    found = np.empty((len(n), size, size))
    found[:, 0, 0] = n
    found[:, 0, 1:] = alone
    found[:, 1:, 0] = alone
    found[:, 1:, 1:] = values.T @ counts @ values
    return found


def solved(matrices: FloatArray, right: FloatArray) -> FloatArray:
    """Return solutions of linear systems, NaN where noise leaves a matrix without an
    inverse of positive kind.
    """
    found = np.full(right.shape, np.nan)
    fine = np.linalg.eigvalsh(matrices)[:, 0] > 0
    found[fine] = np.linalg.solve(matrices[fine], right[fine][..., None])[..., 0]
    return found


def least_squares(
    moments: NoisyProducts, outcome: str, predictors: Sequence[str], target: Target
) -> Answer:
    """Return a linear regression on noisy sums of products, in the columns' own units.

    With noisy sums A of the predictors' products and b of those with the outcome, whose
    noise is dA and db, the error of A^-1 b is A^-1 (db - dA c) for the coefficients c
    without noise, for which the noisy ones stand in. Where A isn't positive definite,
    intervals are the whole line.
    """
    (gram,) = moments.matrices()
    right = [0]
    for name in predictors:
        right += [k for k, own in enumerate(moments.design.home) if own == name]
    left = moments.design.home.index(outcome)
    inside = gram[np.ix_(right, right)]
    inverse = np.linalg.pinv(inside)
    capped = inverse @ gram[right, left]
    shift, back = _own_units(moments, left, right)
    centre = back @ capped + shift
    names = (
        "Intercept",
        *(term for name in predictors for term in moments.design.terms[name]),
    )
    basis = "follows from measured products of capped numbers"
    if np.linalg.eigvalsh(inside)[0] <= 0:
        warnings.warn(OPEN, UselessWarning, 3)
        return Answer(names, centre, np.diag(np.full(len(right), np.inf)), basis)
    covariance = _covariance_of_noise(moments, left, right, capped, inverse)
    if target == "population":
        squares = max(gram[left, left] - capped @ gram[right, left], 0.0)
        residual = squares / max(gram[0, 0] - len(right), 1)
        covariance = covariance + residual * inverse
    return Answer(names, centre, back @ covariance @ back.T, basis)


def _own_units(
    moments: NoisyProducts, left: int, right: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """Return the vector and the matrix that take coefficients of numbers between -1 and
    1 to those in the columns' own units.
    """
    names = moments.design.home[1:]
    caps = [(-1.0, 1.0), *(moments.caps.get(str(name), (-1.0, 1.0)) for name in names)]
    low, high = np.array(caps).T
    middle = (high + low) / 2
    half = (high - low) / 2
    slopes = half[left] / half[right]
    back = np.diag(slopes)
    back[0, 1:] = -middle[right[1:]] * slopes[1:]
    shift = np.zeros(len(right))
    shift[0] = middle[left]
    return shift, back


def _covariance_of_noise(
    moments: NoisyProducts,
    left: int,
    right: Sequence[int],
    coefficients: FloatArray,
    inverse: FloatArray,
) -> FloatArray:
    """Return the covariance of A^-1 (db - dA c), from the noise on each product."""
    design = moments.design
    weight = np.zeros(len(design.home))
    weight[right] = coefficients
    weight[left] = -1.0
    lifted = np.zeros((len(right), len(design.home)))
    lifted[:, right] = inverse
    # the number of records is without noise if it is known
    first = int(moments.n_records is not None)
    one, other = (entries[first:] for entries in design.entries)
    # a level's sum with 1 is that with itself too
    tied = (one == 0) & ~design.numeric[other]
    mirrored = np.where(one != other, weight[one], 0)
    mirrored = mirrored + np.where(tied, weight[other], 0)
    moved = lifted[:, one] * weight[other] + lifted[:, other] * mirrored
    return np.asarray(moments.error**2 * moved @ moved.T)
