"""Regressions from sums over records: pairs of some columns, normal equations, scores,
the law of the predictors.
"""

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
from pdips.outside.answer import PRODUCTS, Answer
from pdips.outside.questions import Terms

type Target = Literal["table", "population"]
type Parts = tuple[FloatArray, FloatArray]
type Reads = Callable[[FloatArray, FloatArray], FloatArray]
"""Numbers, shape (replicates, numbers), from what :meth:`Chosen.counts` returns."""

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

    def cells(self, columns: Sequence[str]) -> FloatArray:
        """Return the counts of a column's levels, or of the cells of two columns, the
        last one's level running fastest.
        """
        counts = self.counts()[0][0]
        first = self.places[columns[0]]
        if len(columns) == 1:
            return np.diagonal(counts)[first]
        return np.asarray(counts[first, self.places[columns[1]]].ravel())

    def noise(self, columns: Sequence[str]) -> FloatArray:
        """Return the covariance of the noise on the counts of a column's levels, or of
        the cells of two columns, the last one's level running fastest.

        A count of a pair has the noise of its own, less its margins, and a part of that
        on each of its levels and on the number of records: the law of
        :meth:`pdips.margins.estimates.NoisyPairs.again`, in closed form.
        """
        pairs = self.pairs
        held = [
            self.levels[pairs.levels_of(self.home[name]), self.places[name]]
            for name in columns
        ]
        blocks = [self.home[name] for name in columns]
        first = blocks[0]
        last = blocks[-1]
        if first == last:
            cells = held[0]
            for other in held[1:]:
                crossing = cells[:, :, None] * other[:, None]
                cells = crossing.reshape(len(cells), -1)
            own, mean = _parts_of_noise(cells)
            noise = pairs.variance[first, first] * own + pairs.total_variance * mean
            return np.asarray(noise)
        own_first, mean_first = _parts_of_noise(held[0])
        own_last, mean_last = _parts_of_noise(held[1])
        of_first = pairs.variance[first, first] * np.kron(own_first, mean_last)
        of_last = pairs.variance[last, last] * np.kron(mean_first, own_last)
        of_both = pairs.variance[first, last] * np.kron(own_first, own_last)
        of_total = pairs.total_variance * np.kron(mean_first, mean_last)
        return np.asarray(of_both + of_first + of_last + of_total)

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


def _parts_of_noise(held: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the covariance, on a column's levels, of noise on a block's levels less
    its mean, and of noise that all levels share alike; ``held``, shape (levels of
    block, levels of column), says which have which.
    """
    n_shared = held.sum(axis=0) / len(held)
    shared = np.outer(n_shared, n_shared)
    return held.T @ held - len(held) * shared, shared


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
    factors: Mapping[str, Terms], interactions: Sequence[Sequence[str]]
) -> Terms:
    """Return the terms of some factors: each one's own, and products of them for each
    interaction. Values have a row for each cell of the factors' columns.
    """
    names = [term for terms, _ in factors.values() for term in terms]
    values = [own for _, own in factors.values()]
    for interaction in interactions:
        names += _names_of_product(
            interaction, [factors[name][0] for name in interaction]
        )
        crossing: FloatArray = np.ones((len(values[0]), 1))
        for name in interaction:
            products = crossing[:, :, None] * factors[name][1][:, None]
            crossing = np.asarray(products).reshape(len(crossing), -1)
        values.append(crossing)
    return names, np.hstack(values)


def _names_of_product(
    interaction: Sequence[str], terms: Sequence[Sequence[str]]
) -> Iterator[str]:
    """Yield names of products of terms, levels together: ``sex:school[m, high]``."""
    text = ":".join(interaction)
    for some in product(*terms):
        levels = [
            term[len(factor) + 1 : -1]
            for factor, term in zip(interaction, some, strict=True)
            if term != factor
        ]
        yield f"{text}[{', '.join(levels)}]" if levels else text


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


def fitted(values: FloatArray, counts: FloatArray, n: FloatArray) -> FloatArray:
    """Return the coefficients of least squares of what stands last for levels on what
    stands before it; arguments are those of :func:`sums`.
    """
    both = sums(values, counts, n)
    return solved(both[:, :-1, :-1], both[:, :-1, -1])


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
        left_open = np.diag(np.full(len(right), np.inf))
        return Answer(names, centre, left_open, basis, source=PRODUCTS)
    noise = _covariance_of_noise(moments, left, right, capped, inverse)
    covariance = noise
    if target == "population":
        squares = max(gram[left, left] - capped @ gram[right, left], 0.0)
        residual = squares / max(gram[0, 0] - len(right), 1)
        covariance = covariance + residual * inverse
    return Answer(
        names,
        centre,
        back @ covariance @ back.T,
        basis,
        noise=back @ noise @ back.T,
        source=PRODUCTS,
    )


def check_binary(outcome: FloatArray) -> None:
    """Refuse an outcome that isn't 0 or 1, for a model of its chance."""
    values = {*np.unique(outcome).tolist()}
    if not values <= {0.0, 1.0}:
        raise InputError(
            f"family 'binomial' needs an outcome of two levels, and this one has "
            f"{len(values)}"
        )


def correlation_of_products(
    moments: NoisyProducts, one: str, other: str, target: Target
) -> Answer:
    """Return the correlation of two numbers from noisy sums of products, with the error
    that small changes of the sums make, and sampling error as of a normal law.
    """
    (gram,) = moments.matrices()
    at = [0, *(moments.design.home.index(name) for name in (one, other))]
    sums_of_both = gram[np.ix_(at, at)]
    covariance = np.full((1, 1), np.inf)
    noise = None
    correlation = np.nan
    if np.linalg.eigvalsh(sums_of_both)[0] > 0:
        correlation, weights = _correlation(sums_of_both)
        # the number of records is without noise if it is known
        first = int(moments.n_records is not None)
        noise = np.array([[moments.error**2 * (weights[first:] ** 2).sum()]])
        sampling = (1 - correlation**2) ** 2 / gram[0, 0]
        covariance = noise + sampling * (target == "population")
    return Answer(
        (f"correlation({one}, {other})",),
        np.array([correlation]),
        covariance,
        "follows from measured products of capped numbers",
        noise=noise,
        source=PRODUCTS,
        limits=(-1.0, 1.0),
    )


def _correlation(sums_of_both: FloatArray) -> tuple[float, FloatArray]:
    """Return a correlation from the sums of products of 1 and two numbers, and by how
    much it changes with each sum.
    """
    n = sums_of_both[0, 0]
    means = sums_of_both[0, 1:] / n
    centred = sums_of_both[1:, 1:] / n - np.outer(means, means)
    sd = np.sqrt(np.diagonal(centred))
    correlation = float(centred[0, 1] / sd[0] / sd[1])
    # what a record adds to the correlation is a square form of 1 and its two numbers
    x = np.array([-means[0] / sd[0], 1 / sd[0], 0.0])
    y = np.array([-means[1] / sd[1], 0.0, 1 / sd[1]])
    squares = np.outer(x, x) + np.outer(y, y)
    form = (np.outer(x, y) + np.outer(y, x) - correlation * squares) / 2 / n
    rows, columns = np.triu_indices(3)
    return correlation, np.where(rows == columns, 1, 2) * form[rows, columns]


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


def parts_of(n_columns: int, *, total: bool) -> list[tuple[int, ...]]:
    """Return the columns of each kind of contrast: none for the sum of all cells, one,
    or two.
    """
    parts: list[tuple[int, ...]] = [()] if total else []
    for size in (1, 2):
        parts += combinations(range(n_columns), size)
    return parts


def basis_of(size: int) -> FloatArray:
    """Return orthonormal contrasts of levels, shape (levels, levels - 1): of each level
    but the first, which is above 0, against the first and those after it.
    """
    basis, upper = np.linalg.qr(np.eye(size)[:, 1:] - 1 / size)
    return np.asarray(basis * np.sign(np.diagonal(upper)))


def contrasts_of(bases: Sequence[FloatArray], part: Sequence[int]) -> FloatArray:
    """Return the contrasts of all cells that belong to some columns, constant over the
    others; shape (cells, contrasts).
    """
    contrasts: FloatArray = np.ones((1, 1))
    for k, basis in enumerate(bases):
        own = basis if k in part else np.ones((len(basis), 1))
        contrasts = np.asarray(np.kron(contrasts, own), dtype=np.float64)
    return contrasts
