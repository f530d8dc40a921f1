"""Unbiased estimates of all pairs, from whichever noisy margins there are, and which pairs say most by them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.table import Table
from pdips.margins.residuals import ResidualDesign, pair_counts
from pdips.privacy.curator import Curator
from pdips.privacy.noise import UNAVAILABLE
from pdips.privacy.plan import Step
from pdips.release.noisy_margins import MarginAxis, MarginLaw, MeasuredMargin, centred, residual

EXACT = 1e-6  # Variance of counts that public totals know: 0 would mean that a pair isn't to be fitted
LEAST = 1e-12  # Of what is divided by
MOST_SUMMED = 2.0**50  # Up to which whole numbers are added up in doubles without rounding, with room to spare


@dataclass(frozen=True, eq=False)
class NoisyTriple:
    """What a noisy margin of three blocks says beyond its pairs: records, shape (levels, levels, levels), centred along
    each axis, and the variance of the noise on a count before its margins are taken out.
    """

    blocks: tuple[int, ...]
    beyond: FloatArray
    variance: float

    def counts(self, levels: FloatArray, pairs: FloatArray, noisy: "NoisyPairs") -> FloatArray:
        """Return the counts of all cells that agree with counts of levels and of pairs."""
        places = [slice(noisy.offsets[k], noisy.offsets[k + 1]) for k in self.blocks]
        sizes, found = self.beyond.shape, self.beyond + noisy.n / self.beyond.size
        for k in range(3):
            i, j = (axis for axis in range(3) if axis != k)
            found = found + np.expand_dims(pairs[places[i], places[j]] / sizes[k], k)
            found = found - np.expand_dims(levels[places[k]] * sizes[k] / found.size, (i, j))
        return found


@dataclass(frozen=True, eq=False)
class NoisyPairs:
    """Unbiased estimates of all pairs of blocks, in records, and the variance of the noise that only a pair has.

    Levels of block k begin at ``offsets[k]``. ``counts``, shape (levels, levels), is symmetric, with single levels on
    the diagonal. ``variance``, shape (blocks, blocks), is of the noise on a count of a pair before its margins are
    taken out, on the diagonal of that on a level, and 0 where counts are exact. ``n_records`` is noisy under
    add-remove, with ``total_variance``. So many levels of each block, the first ones, are ``ordered``.
    """

    offsets: IntArray
    counts: FloatArray
    variance: FloatArray
    n_records: float
    total_variance: float = 0.0
    triples: tuple[NoisyTriple, ...] = ()
    ordered: tuple[int, ...] = ()

    @cached_property
    def sizes(self) -> IntArray:
        """Number of levels of each block."""
        return np.diff(self.offsets)

    @cached_property
    def layout(self) -> IntArray:
        """Of each triple where its cells begin, its blocks, and the strides of its axes; shape (triples, 7)."""
        start, rows = 0, list[list[int]]()
        for each in self.triples:
            _, second, last = each.beyond.shape
            rows.append([start, *each.blocks, second * last, last, 1])
            start += each.beyond.size
        return np.array(rows, dtype=np.int64).reshape(-1, 7)

    @property
    def n(self) -> float:
        """The number of records, at least 1."""
        return max(self.n_records, 1.0)

    @property
    def noise(self) -> FloatArray:
        """The variance of the noise on a count of each two blocks, 0 where there is no such noise or no such count."""
        seen = np.isfinite(self.variance) & ~np.eye(len(self.sizes), dtype=bool)
        return np.where(seen, self.variance, 0)

    @cached_property
    def variances(self) -> dict[tuple[int, ...], float]:
        """Of the noise on the number of records (), on a level of blocks (i,) and on a count of pairs (i, j)."""
        margins = [part for size in (1, 2) for part in combinations(range(len(self.sizes)), size)]
        return {(): self.total_variance} | {part: float(self.variance[part[0], part[-1]]) for part in margins}

    def spread(self, values: FloatArray) -> FloatArray:
        """Return values of pairs of blocks as values of pairs of levels."""
        return np.repeat(np.repeat(values, self.sizes, axis=0), self.sizes, axis=1)

    def over(self, values: FloatArray, axis: int) -> FloatArray:
        """Return sums over the levels of each block along an axis."""
        return np.asarray(np.add.reduceat(values, self.offsets[:-1], axis=axis))

    def centred(self, values: FloatArray) -> FloatArray:
        """Return what pairs say beyond their margins."""
        found = values - np.repeat(self.over(values, 0) / self.sizes[:, None], self.sizes, axis=0)
        return found - np.repeat(self.over(found, 1) / self.sizes, self.sizes, axis=1)

    def moved(
        self, known: Mapping[int, tuple[FloatArray, float]], drawn: Mapping[int, FloatArray]
    ) -> dict[int, tuple[FloatArray, float]]:
        """Return what other counts of ``known`` blocks change here, where pairs count too, and the variance left.

        ``known`` has the counts of the levels that went into the estimates, and the variance of one.
        """
        share = {k: min(1.0, float(self.variance[k, k]) / variance) for k, (_, variance) in known.items()}  # rounding
        return {
            k: (share[k] * (drawn[k] - counts), (1 - share[k]) * float(self.variance[k, k]))
            for k, (counts, _) in known.items()
        }

    def again(
        self, rng: np.random.Generator, moved: Mapping[int, tuple[FloatArray, float]] | None = None
    ) -> "NoisyPairs":
        """Return the estimates with fresh noise of the same law (normal) on top.

        ``moved`` says of blocks that were counted elsewhere too what fresh noise there changes their levels by, and the
        variance that is left for the noise here.
        """
        n_levels = self.offsets[-1]
        total = math.sqrt(self.total_variance) * rng.standard_normal()
        variance, change = np.diagonal(self.variance).copy(), np.zeros(n_levels)
        for block, (by, left) in (moved or {}).items():
            change[self.offsets[block] : self.offsets[block + 1]], variance[block] = by, left
        alone = rng.standard_normal(n_levels) * np.sqrt(np.repeat(variance, self.sizes))
        size = np.repeat(self.sizes, self.sizes)
        level = alone - np.repeat(self.over(alone, 0) / self.sizes, self.sizes) + total / size + change
        noise = np.triu(rng.standard_normal((n_levels, n_levels)), 1)
        noise = self.centred((noise + noise.T) * np.sqrt(self.spread(self.variance)))
        noise += level[:, None] / size + level / size[:, None] - total / np.outer(size, size)
        noise[np.eye(len(noise), dtype=bool)] = level
        triples = list[NoisyTriple]()
        for each in self.triples:
            drawn = rng.standard_normal(each.beyond.shape) * math.sqrt(each.variance)
            triples.append(replace(each, beyond=each.beyond + centred(drawn)))
        return replace(self, counts=self.counts + noise, n_records=self.n_records + total, triples=tuple(triples))


@dataclass(frozen=True, eq=False)
class SlopeBasis:
    """What slopes multiply, of two blocks the first of which is ordered, and the way in which they move counts.

    Of ordered blocks these are standardized mid-ranks of the levels, 0 for others: ``ranks``, shape (levels, blocks).
    In ``every``, shape (levels, scores), blocks that aren't ordered have an indicator of each level; ``home`` is the
    block of each score. ``pull`` and ``pulls`` are the directions, of length 1, in which counts move, by ``length`` and
    ``lengths`` in parts of the records. ``freedom`` is the number of contrasts of two blocks.
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
        ordered, ranks = np.zeros(len(order), dtype=bool), np.zeros((len(shares), len(order)))
        for k, (first, many) in enumerate(zip(noisy.offsets, noisy.ordered, strict=False)):
            if many > 1:
                held, ordered[k] = shares[first : first + many], True
                rank = np.cumsum(held) - held / 2 - held.sum() / 2
                ranks[first : first + many, k] = rank / math.sqrt(held @ rank**2)
        home = np.repeat(order, np.where(ordered, 1, noisy.sizes))
        every = np.zeros((len(shares), len(home)))
        every[:, ordered[home]] = ranks[:, ordered]
        every[~np.repeat(ordered, noisy.sizes), ~ordered[home]] = 1
        length, lengths = (np.sqrt(((shares[:, None] * each) ** 2).sum(axis=0)) for each in (ranks, every))
        pull, pulls = (
            shares[:, None] * each / np.maximum(long, LEAST) for each, long in ((ranks, length), (every, lengths))
        )
        free = ordered[:, None] * np.where(ordered, order[:, None] < order, noisy.sizes - 1)
        return cls(ranks, every, home, pull, pulls, length, lengths, free.astype(np.int64))

    @property
    def most(self) -> FloatArray:
        """Which variance of a slope makes the largest of its parameters have variance 1, shape (blocks, blocks)."""
        top = np.abs(self.ranks).max(axis=0)
        return np.asarray(1 / np.maximum(np.outer(top, np.where(top > 0, top, 1)), LEAST) ** 2)

    def along(self, counts: FloatArray) -> FloatArray:
        """Return counts of pairs along the directions, shape (blocks, scores)."""
        return np.asarray(self.pull.T @ counts @ self.pulls)

    def back(self, values: FloatArray) -> FloatArray:
        """Return symmetric counts of pairs that are so much along the directions, and nothing else."""
        return np.asarray((found := self.pull @ (values @ self.pulls.T)) + found.T)

    def over(self, values: FloatArray) -> FloatArray:
        """Return sums of values of scores over those of each block, where slopes have freedom."""
        found = np.zeros(self.freedom.shape)
        np.add.at(found.T, self.home, values.T)
        return np.where(self.freedom > 0, found, 0)

    def spread(self, values: FloatArray) -> FloatArray:
        """Return values of pairs of blocks as values of slopes, 0 where these have no freedom."""
        return np.asarray(np.where(self.freedom > 0, values, 0)[:, self.home])

    @property
    def unit(self) -> FloatArray:
        """Return the mean square along each direction, in parts of the records, where slopes have variance 1.

        Slopes of levels count less their mean by shares.
        """
        squares = self.lengths**2
        centred = 1 - 2 * self.lengths + np.bincount(self.home, squares)[self.home]
        return np.asarray(np.outer(self.length**2, squares * np.where(self.length[self.home] > 0, 1, centred)))

    def parameters(self, slopes: FloatArray) -> FloatArray:
        """Return what slopes say of each two levels."""
        return np.asarray((found := self.ranks @ (slopes @ self.every.T)) + found.T)

    def fitting(self, theta: FloatArray | NDArray[np.float32]) -> FloatArray:
        """Return slopes that are nearest to parameters, of each two blocks alone."""
        long = np.outer((self.ranks**2).sum(axis=0), (self.every**2).sum(axis=0))
        return self.spread(np.ones(self.freedom.shape)) * (self.ranks.T @ theta @ self.every) / np.maximum(long, LEAST)


def estimate(
    design: ResidualDesign,
    step: Step,
    noisy: IntArray,
    n_records: int | None,
    public: Table | None = None,
    known: Mapping[int, tuple[FloatArray, float]] | None = None,
    again: Sequence[MeasuredMargin] = (),
) -> NoisyPairs:
    """Return unbiased estimates of all pairs from the noisy answer of a plan, and pairs counted ``again``.

    ``known`` has the counts of levels of blocks that weren't counted alone, and the variance of one.
    """
    margins = [*measured(design, step, noisy, block_axes(design), known or {}), *again]
    whole = {margin: part for margin, part in design.parts(noisy) if len(margin) == 3}
    triples = tuple(NoisyTriple(m, centred(part.astype(float)), design.variance(m, step)) for m, part in whole.items())
    return replace(pooled(design, margins, n_records, public, design.covered), triples=triples)


def most_telling(
    design: ResidualDesign,
    step: Step,
    found: NoisyPairs,
    pairs: Sequence[tuple[int, int]],
    n_pairs: int,
    shown: IntArray,
) -> IntArray:
    """Return which pairs say most beyond their columns by noisy answers, in records and less what noise says.

    ``shown``, shape (..., numbers), are the answers; ``found`` has columns that they don't count alone. The result,
    shape (..., n_pairs), has whole numbers in the order of ``pairs``.
    """
    size, told = design.sizes, list[FloatArray]()
    beyond, total, shares = _by_columns(design, found, shown)
    for i, j in pairs:
        own = [(shares[k] - 1 / size[k]) for k in (i, j)]
        apart = beyond[i, j] - total[..., None] * own[0][..., :, None] * own[1][..., None, :]
        cells = math.sqrt(2 / math.pi * design.variance((i, j), step) * math.prod((size[[i, j]] - 1) * size[[i, j]]))
        told.append(np.abs(apart).sum(axis=(-1, -2)) - cells)
    return np.sort(np.argsort(-np.stack(told, axis=-1), axis=-1, kind="stable")[..., :n_pairs], axis=-1)


def _by_columns(
    design: ResidualDesign, found: NoisyPairs, shown: IntArray
) -> tuple[dict[tuple[int, ...], FloatArray], FloatArray, list[FloatArray]]:
    """Return what margins say beyond their own, the number of records, shape (..., 1), and shares of levels."""
    parts, shares = dict(design.parts(shown)), list[FloatArray]()
    beyond = {
        m: (residual if design.differs(m) else centred)(part.astype(float), len(m)) for m, part in parts.items() if m
    }
    total = np.maximum(parts.get((), np.full(shown.shape[:-1], found.n)), 1.0)[..., None]
    for k, size in enumerate(design.sizes):
        counts = beyond[k,] + total / size if (k,) in beyond else design.margin(found.counts, (k,))
        raised = np.maximum(counts, 1e-9 * total)
        shares.append(raised / raised.sum(axis=-1, keepdims=True))
    return beyond, total, shares


def distances(
    design: ResidualDesign, found: NoisyPairs, pairs: Mapping[tuple[int, int], IntArray], shown: IntArray
) -> IntArray:
    """Return how far exact counts of pairs are from what noisy answers say of their columns, shape (..., pairs).

    The sum over cells of absolute differences, in whole records: a record that comes or goes changes it by at most 1.
    """
    _, total, shares = _by_columns(design, found, shown)
    total = np.minimum(total, MOST_SUMMED)
    each = [
        np.abs(counts - np.round(total[..., None] * shares[i][..., :, None] * shares[j][..., None, :]))
        for (i, j), counts in pairs.items()
    ]
    return np.stack([apart.sum(axis=(-1, -2)) for apart in each], axis=-1).astype(np.int64)


def linking(pairs: Sequence[tuple[int, int]], taken: Sequence[int]) -> BoolArray:
    """Return which pairs may be taken after others: while there are any, those that link columns not linked yet."""
    part = {k: k for pair in pairs for k in pair}
    for place in taken:
        kept, gone = (part[k] for k in pairs[place])
        part = {k: kept if own == gone else own for k, own in part.items()}
    apart, left = np.array([part[i] != part[j] for i, j in pairs]), np.ones(len(pairs), dtype=bool)
    left[list(taken)] = False
    return apart if apart.any() else left


def chosen_pairs(
    design: ResidualDesign,
    step: Step,
    curator: Curator,
    noisy: IntArray,
    found: NoisyPairs,
    pairs: Sequence[tuple[int, int]],
    levels: Callable[[Table], Mapping[str, IntArray]],
) -> list[int]:
    """Return the places of pairs that are chosen one by one by exponential mechanisms, so that all columns are linked.

    ``noisy`` is the answer of ``design``, and ``found`` its estimate; ``levels`` takes the table and returns levels of
    columns without bins.
    """
    every = replace(design, pairs=True, whole=True, known=())
    taken, counts = list[int](), dict[tuple[int, ...], IntArray]()

    def scores(table: Table, shown: IntArray, open_: BoolArray) -> IntArray:
        if not counts:  # the table is read once for all choices
            counts.update(every.parts(table.total(lambda part: every.count(part, levels(part)))))
        apart = distances(design, found, {pair: counts[pair] for pair in pairs}, shown)
        return np.where(open_, apart, UNAVAILABLE)

    for _ in range(step.times):
        taken.append(curator.choose_given(step, noisy, partial(scores, open_=linking(pairs, taken))))
    return taken


def block_axes(
    design: ResidualDesign,
    lower: Mapping[str, tuple[float, ...]] | None = None,
    groups: Mapping[str, tuple[int, ...]] | None = None,
) -> list[MarginAxis]:
    """Return the axis of each block, with lower bounds of the intervals and groups of the codes of columns."""
    names, sizes, found = design.domain.names, design.domain.sizes, list[MarginAxis]()
    for block in design.blocks:
        codes = np.ravel_multi_index(tuple(block.levels.T), tuple(sizes[list(block.columns)]))
        columns = tuple(names[column] for column in block.columns)
        tied = tuple(codes.tolist()) if len(columns) > 1 else ()
        begun, held = (lower or {}).get(columns[0], ()), (groups or {}).get(columns[0], ())
        found.append(MarginAxis(columns=columns, size=block.n_levels, codes=tied, lower=begun, groups=held))
    return found


def measured(
    design: ResidualDesign,
    step: Step,
    noisy: IntArray,
    axes: Sequence[MarginAxis],
    known: Mapping[int, tuple[FloatArray, float]],
) -> Iterator[MeasuredMargin]:
    """Yield the measured margins of a noisy answer, and what is known of blocks otherwise."""
    for block_number, (counts, variance) in known.items():
        law = MarginLaw(
            axes=(axes[block_number],), law="estimate", scale=math.sqrt(variance), variance=variance, rows=len(counts)
        )
        yield MeasuredMargin(law, np.round(counts).astype(np.int64), np.arange(len(counts)))
    for margin, part in design.parts(noisy):
        scale = design.image.scale(step, int(design.weights[design.margins.index(margin)]))
        law = MarginLaw(
            axes=tuple(axes[block] for block in margin),
            law="gaussian" if step.law == "gaussian" else "laplace",
            scale=math.sqrt(scale) if step.law == "gaussian" else float(scale),
            variance=design.variance(margin, step),
            rows=part.size,
            differences=design.differs(margin),
        )
        yield MeasuredMargin(law, part.ravel(), np.arange(part.size))


def pooled(
    design: ResidualDesign,
    margins: Sequence[MeasuredMargin],
    n_records: int | None,
    public: Table | None = None,
    shares: Mapping[tuple[int, ...], FloatArray] | None = None,
) -> NoisyPairs:
    """Return unbiased estimates of all pairs from measured margins, each weighted by its precision.

    What several margins say of the same pair beyond its columns, or of a column, is averaged in proportion to 1 /
    variance, for Laplace noise that of the continuous law, as in forecasts: generalised least squares, as residuals of
    a margin have independent errors (Xiao, He, Zhang and Kifer, 2023). Margins that weren't counted whole, or whose
    axes aren't blocks of ``design``, are left out. Counts of intervals aren't averaged with sums over pairs: under
    Laplace noise the average had errors up to twice as large (tried). What no margin says has infinite variance.
    """
    sizes, names = design.sizes, design.domain.names
    place = {tuple(names[c] for c in block.columns): (k, block.n_levels) for k, block in enumerate(design.blocks)}
    effects, given = dict[tuple[int, ...], FloatArray | float](), dict[tuple[int, ...], tuple[FloatArray, float]]()
    weights, squares = dict[tuple[int, ...], float](), dict[tuple[int, ...], float]()
    for each in margins:
        found = [place.get(axis.columns) for axis in each.law.axes]
        table, variance = each.whole(), max(each.law.variance, 1e-12)
        nominal = max(2 * each.law.scale**2 if each.law.law == "laplace" else variance, 1e-12)
        if table is None and each.law.axes and each.law.axes[0].size == 2 == 1 + len(found) and n_records is not None:
            own = float(each.noisy[0])  # of two levels one was counted, and the other follows
            table, variance, nominal = np.array([own, n_records - own]), 2 * variance, 2 * nominal
        if table is None or any(
            at is None or at[1] != axis.size or axis.first for at, axis in zip(found, each.law.axes, strict=True)
        ):
            continue
        blocks = [at[0] for at in found if at is not None]
        if each.law.law == "estimate" and blocks[0] in design.known:
            given[blocks[0],] = table, variance
        alone = (
            each.law.differences
            or each.law.law == "estimate"
            or len(each.noisy) < math.prod(sizes[[at[0] for at in found if at]])
        )
        for part in [tuple(blocks)] if alone else [p for m in range(3) for p in combinations(blocks, m)]:
            rest = tuple(k for k, block in enumerate(blocks) if block not in part)
            kept = np.asarray(table.sum(axis=rest)).transpose(np.argsort(part).tolist())
            effect = residual(kept) if each.law.differences else centred(kept)
            weight = 1 / (nominal * math.prod(int(sizes[blocks[k]]) for k in rest))
            part = tuple(sorted(part))
            effects[part] = effects.get(part, 0.0) + weight * effect
            weights[part] = weights.get(part, 0.0) + weight
            squares[part] = squares.get(part, 0.0) + weight * (variance / nominal)  # weight^2 by its own variance
    n = float(effects[()]) * (1 / weights[()]) if n_records is None else float(n_records)
    variances = {part: squares[part] / weight**2 for part, weight in weights.items() if part or n_records is None}
    given |= {part: (n * share, EXACT) for part, share in (shares or {}).items()}
    return _assembled(design, n, {p: effects[p] / weight for p, weight in weights.items()}, variances, given, public)


def _assembled(
    design: ResidualDesign,
    n: float,
    effects: Mapping[tuple[int, ...], FloatArray | float],
    variances: Mapping[tuple[int, ...], float],
    given: Mapping[tuple[int, ...], tuple[FloatArray, float]],
    public: Table | None,
) -> NoisyPairs:
    """Return the pairs of ``n`` records, of residuals and their variances; ``given`` tables are taken whole."""
    sizes, offsets = design.sizes, design.offsets
    counts, variance = np.zeros((offsets[-1], offsets[-1])), np.full((len(sizes), len(sizes)), np.inf)
    variance[(sizes == 1)[:, None] | (sizes == 1)] = 0.0
    variance[np.outer(design.public, design.public)] = 0.0
    if public is not None:
        counts += _public_counts(design, public)
    for block in range(len(sizes)):
        if (block,) in given:
            design.margin(counts, (block,))[:], variance[block, block] = given[block,]
        elif not design.public[block]:
            design.margin(counts, (block,))[:] = effects.get((block,), 0.0) + n / sizes[block]
    single = [design.margin(counts, (block,)).copy() for block in range(len(sizes))]
    for i, j in combinations(range(len(sizes)), 2):
        if not (design.public[i] and design.public[j]):
            both = effects.get((i, j), 0.0) + single[i][:, None] / sizes[j] + single[j] / sizes[i]
            both = given[i, j][0] if (i, j) in given else both - n / (sizes[i] * sizes[j])
            design.margin(counts, (i, j))[:] = both
            design.margin(counts, (j, i))[:] = both.T
    for part in {*variances, *given} - {()}:
        if not design.public[list(part)].all():
            each = given[part][1] if part in given else variances[part]
            variance[part[0], part[-1]] = variance[part[-1], part[0]] = each
    return NoisyPairs(offsets, counts, variance, n, variances.get((), 0.0), ordered=design.ordered)


def _public_counts(design: ResidualDesign, public: Table) -> FloatArray:
    codes = np.zeros((public.n_records, len(design.blocks)), dtype=np.int32)
    for k in np.flatnonzero(design.public):
        block = design.blocks[k]
        codes[:, k] = block.codes([public.codes[design.domain.names[column]] for column in block.columns])
    found = pair_counts(codes, np.ones(len(codes), dtype=np.int64), design.offsets)
    exact_pairs = np.repeat(np.repeat(np.outer(design.public, design.public), design.sizes, 0), design.sizes, 1)
    return np.where(exact_pairs, np.triu(found) + np.triu(found, 1).T, 0).astype(float)
