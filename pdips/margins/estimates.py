"""Unbiased estimates of all pairs, from whichever noisy margins there are, and which
pairs say most by them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import combinations

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.table import Table
from pdips.margins.pair_tables import pair_counts
from pdips.margins.residuals import Blocks, ResidualDesign
from pdips.privacy.plan import Step
from pdips.release.noisy_margins import (
    MarginAxis,
    MarginLaw,
    MeasuredMargin,
    centred,
    residual,
)

# Variance of counts that public totals know: 0 would mean that a pair isn't to be
# fitted
EXACT = 1e-6
LEAST = 1e-12  # Of what is divided by
# Up to which whole numbers are added up in doubles without rounding, with room to spare
MOST_SUMMED = 2.0**50

LevelCounts = tuple[FloatArray, float]
"""Counts, and the variance of one."""
LowerBounds = Mapping[str, tuple[float, ...]]
"""By column, of its intervals."""


@dataclass(frozen=True, eq=False)
class NoisyTriple:
    """What a noisy margin of three blocks says beyond its pairs: records, shape
    (levels, levels, levels), centred along each axis, and the variance of the noise on
    a count before its margins are taken out.
    """

    blocks: Blocks
    beyond: FloatArray
    variance: float

    def counts(
        self, levels: FloatArray, pairs: FloatArray, noisy: "NoisyPairs"
    ) -> FloatArray:
        """Return the counts of all cells that agree with counts of levels and of
        pairs.
        """
        own = [noisy.levels_of(block) for block in self.blocks]
        sizes = self.beyond.shape
        counts = self.beyond + noisy.n / self.beyond.size
        for axis in range(3):
            first, last = (other for other in range(3) if other != axis)
            pair = pairs[own[first], own[last]] / sizes[axis]
            counts = counts + np.expand_dims(pair, axis)
            single = levels[own[axis]] * sizes[axis] / counts.size
            counts = counts - np.expand_dims(single, (first, last))
        return counts


@dataclass(frozen=True, eq=False)
class NoisyPairs:
    """Unbiased estimates of all pairs of blocks, in records, and the variance of the
    noise that only a pair has.

    Levels of block k begin at ``offsets[k]``. ``counts``, shape (levels, levels), is
    symmetric, with single levels on the diagonal. ``variance``, shape (blocks, blocks),
    is of the noise on a count of a pair before its margins are taken out, on the
    diagonal of that on a level, and 0 where counts are exact. ``n_records`` is noisy
    under add-remove, with ``total_variance``. So many levels of each block, the first
    ones, are ``ordered``.
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
        """Of each triple where its cells begin, its blocks, and the strides of its
        axes; shape (triples, 7).
        """
        start = 0
        rows = list[list[int]]()
        for each in self.triples:
            _, second, last = each.beyond.shape
            rows.append([start, *each.blocks, second * last, last, 1])
            start += each.beyond.size
        return np.array(rows, dtype=np.int64).reshape(-1, 7)

    def levels_of(self, block: int) -> slice:
        """Return where the levels of a block are among those of all."""
        return slice(self.offsets[block], self.offsets[block + 1])

    @property
    def n(self) -> float:
        """The number of records, at least 1."""
        return max(self.n_records, 1.0)

    @property
    def noise(self) -> FloatArray:
        """The variance of the noise on a count of each two blocks, 0 where there is no
        such noise or no such count.
        """
        noise = np.where(np.isfinite(self.variance), self.variance, 0)
        np.fill_diagonal(noise, 0)
        return noise

    @cached_property
    def variances(self) -> dict[Blocks, float]:
        """Of the noise on the number of records (), on a level of blocks (i,) and on a
        count of pairs (i, j).
        """
        variances: dict[Blocks, float] = {(): self.total_variance}
        for block, own in enumerate(np.diagonal(self.variance)):
            variances[block,] = float(own)
        for pair in combinations(range(len(self.sizes)), 2):
            variances[pair] = float(self.variance[pair])
        return variances

    def spread(self, values: FloatArray) -> FloatArray:
        """Return values of pairs of blocks as values of pairs of levels."""
        by_rows = np.repeat(values, self.sizes, axis=0)
        return np.repeat(by_rows, self.sizes, axis=1)

    def over(self, values: FloatArray, axis: int) -> FloatArray:
        """Return sums over the levels of each block along an axis."""
        return np.add.reduceat(values, self.offsets[:-1], axis=axis)

    def centred(self, values: FloatArray) -> FloatArray:
        """Return what pairs say beyond their margins."""
        means = self.over(values, 0) / self.sizes[:, None]
        found = values - np.repeat(means, self.sizes, axis=0)
        means = self.over(found, 1) / self.sizes
        return found - np.repeat(means, self.sizes, axis=1)

    def moved(
        self,
        known: Mapping[int, LevelCounts],
        drawn: Mapping[int, FloatArray],
    ) -> dict[int, LevelCounts]:
        """Return what other counts of ``known`` blocks change here, where pairs count
        too, and the variance left.

        ``known`` has the counts of the levels that went into the estimates, and the
        variance of one.
        """
        moved = dict[int, LevelCounts]()
        for block, (counts, variance) in known.items():
            own = float(self.variance[block, block])
            share = min(1.0, own / variance)  # above 1 by rounding alone
            moved[block] = (share * (drawn[block] - counts), (1 - share) * own)
        return moved

    def again(
        self,
        rng: np.random.Generator,
        moved: Mapping[int, LevelCounts] | None = None,
    ) -> "NoisyPairs":
        """Return the estimates with fresh noise of the same law (normal) on top.

        ``moved`` says of blocks that were counted elsewhere too what fresh noise there
        changes their levels by, and the variance that is left for the noise here.
        """
        n_levels = self.offsets[-1]
        total = math.sqrt(self.total_variance) * rng.standard_normal()
        level = self._noise_on_levels(rng, total, moved or {})
        size = np.repeat(self.sizes, self.sizes)
        upper = np.triu(rng.standard_normal((n_levels, n_levels)), 1)
        # no noise is added to what nothing was counted of
        variance = np.where(np.isfinite(self.variance), self.variance, 0)
        deviation = np.sqrt(self.spread(variance))
        noise = self.centred((upper + upper.T) * deviation)
        # each count has its part of the noise on its levels, and on the total
        of_rows = level[:, None] / size
        noise += of_rows + of_rows.T
        noise -= total / np.outer(size, size)
        np.fill_diagonal(noise, level)
        triples = list[NoisyTriple]()
        for each in self.triples:
            drawn = rng.standard_normal(each.beyond.shape) * math.sqrt(each.variance)
            triples.append(replace(each, beyond=each.beyond + centred(drawn)))
        return replace(
            self,
            counts=self.counts + noise,
            n_records=self.n_records + total,
            triples=tuple(triples),
        )

    def _noise_on_levels(
        self,
        rng: np.random.Generator,
        total: float,
        moved: Mapping[int, LevelCounts],
    ) -> FloatArray:
        variance = np.diagonal(self.variance).copy()
        change = np.zeros(self.offsets[-1])
        for block, (moved_by, left) in moved.items():
            change[self.levels_of(block)] = moved_by
            variance[block] = left
        deviation = np.sqrt(np.repeat(variance, self.sizes))
        noise = rng.standard_normal(len(deviation)) * deviation
        means = self.over(noise, 0) / self.sizes
        of_total = total / self.sizes
        noise = noise - np.repeat(means, self.sizes)
        return noise + np.repeat(of_total, self.sizes) + change


def estimate(
    design: ResidualDesign,
    step: Step,
    noisy: IntArray,
    n_records: int | None,
    public: Table | None = None,
    known: Mapping[int, LevelCounts] | None = None,
    again: Sequence[MeasuredMargin] = (),
) -> NoisyPairs:
    """Return unbiased estimates of all pairs from the noisy answer of a plan, and pairs
    counted ``again``.

    ``known`` has the counts of levels of blocks that weren't counted alone, and the
    variance of one.
    """
    once = measured(design, step, noisy, block_axes(design), known or {})
    pairs = pooled(design, [*once, *again], n_records, public, design.covered)
    triples = list[NoisyTriple]()
    for margin, part in design.parts(noisy):
        if len(margin) == 3:
            beyond = centred(part.astype(float))
            triples.append(NoisyTriple(margin, beyond, design.variance(margin, step)))
    return replace(pairs, triples=tuple(triples))


def most_telling(
    design: ResidualDesign,
    step: Step,
    found: NoisyPairs,
    pairs: Sequence[tuple[int, int]],
    n_pairs: int,
    shown: IntArray,
) -> IntArray:
    """Return which pairs say most beyond their columns by noisy answers, in records and
    less what noise says.

    ``shown``, shape (..., numbers), are the answers; ``found`` has columns that they
    don't count alone. The result, shape (..., n_pairs), has whole numbers in the order
    of ``margins``.
    """
    told = list[FloatArray]()
    columns = by_columns(design, found, shown)
    for pair in pairs:
        apart = np.abs(columns.apart(pair)).sum(axis=(-1, -2))
        size = design.sizes[list(pair)]
        # the mean absolute noise of all cells, less their margins
        variance = design.variance(pair, step) * math.prod((size - 1) * size)
        of_noise = math.sqrt(2 / math.pi * variance)
        told.append(apart - of_noise)
    beyond_noise = np.stack(told, axis=-1)
    ranked = np.argsort(-beyond_noise, axis=-1, kind="stable")
    return np.sort(ranked[..., :n_pairs], axis=-1)


@dataclass(frozen=True, eq=False)
class ByColumns:
    """What margins say beyond their own, the number of records, shape (..., 1), and
    shares of levels.
    """

    sizes: IntArray
    beyond: dict[Blocks, FloatArray]
    total: FloatArray
    shares: list[FloatArray]

    def apart(self, pair: tuple[int, int]) -> FloatArray:
        """Return how far noisy counts of a pair are from independence."""
        first, last = (self.shares[block] - 1 / self.sizes[block] for block in pair)
        return self.beyond[pair] - _products(self.total, first, last)

    def independent(self, pair: tuple[int, int]) -> FloatArray:
        """Return the counts of a pair of independent columns."""
        first, last = (self.shares[block] for block in pair)
        return _products(np.minimum(self.total, MOST_SUMMED), first, last)


def _products(total: FloatArray, first: FloatArray, last: FloatArray) -> FloatArray:
    of_rows = total[..., None] * first[..., :, None]
    return of_rows * last[..., None, :]


def by_columns(design: ResidualDesign, found: NoisyPairs, shown: IntArray) -> ByColumns:
    """Return what noisy answers, shape (..., numbers), say of margins; ``found`` has
    columns that they don't count alone.
    """
    parts = dict(design.parts(shown))
    n_records = parts.pop((), np.full(shown.shape[:-1], found.n))
    total = np.maximum(n_records, 1.0)[..., None]
    beyond = dict[Blocks, FloatArray]()
    for margin, part in parts.items():
        without_margins = residual if design.differs(margin) else centred
        beyond[margin] = without_margins(part.astype(float), len(margin))
    shares = list[FloatArray]()
    for block, size in enumerate(design.sizes):
        if (block,) in beyond:
            counts = beyond[block,] + total / size
        else:
            counts = design.margin(found.counts, (block,))
        raised = np.maximum(counts, 1e-9 * total)
        shares.append(raised / raised.sum(axis=-1, keepdims=True))
    return ByColumns(design.sizes, beyond, total, shares)


def block_axes(
    design: ResidualDesign,
    lower: LowerBounds | None = None,
    groups: Mapping[str, tuple[int, ...]] | None = None,
) -> list[MarginAxis]:
    """Return the axis of each block, with lower bounds of the intervals and groups of
    the codes of columns.
    """
    names = design.domain.names
    axes = list[MarginAxis]()
    for block in design.blocks:
        columns = tuple(names[column] for column in block.columns)
        codes: tuple[int, ...] = ()
        if len(columns) > 1:
            cells = np.ravel_multi_index(tuple(block.levels.T), block.sizes)
            codes = tuple(cells.tolist())
        axis = MarginAxis(
            columns=columns,
            size=block.n_levels,
            codes=codes,
            lower=(lower or {}).get(columns[0], ()),
            groups=(groups or {}).get(columns[0], ()),
        )
        axes.append(axis)
    return axes


def measured(
    design: ResidualDesign,
    step: Step,
    noisy: IntArray,
    axes: Sequence[MarginAxis],
    known: Mapping[int, LevelCounts],
) -> Iterator[MeasuredMargin]:
    """Yield the measured margins of a noisy answer, and what is known of blocks
    otherwise.
    """
    for block, (counts, variance) in known.items():
        law = MarginLaw(
            axes=(axes[block],),
            law="estimate",
            scale=math.sqrt(variance),
            variance=variance,
            rows=len(counts),
        )
        rounded = np.round(counts).astype(np.int64)
        yield MeasuredMargin(law, rounded, np.arange(len(counts)))
    is_gaussian = step.law == "gaussian"
    scales = design.scales(step)
    # margins have few weights, and schemas of 200 columns 20,000 margins
    variance_of = cache(partial(design.image.variance, step))
    for margin, part in design.parts(noisy):
        weight = int(design.weights[design.place[margin]])
        scale = scales[margin]
        spread = math.sqrt(scale) if is_gaussian else float(scale)
        own = tuple(axes[block] for block in margin)
        law = MarginLaw(
            axes=own,
            law="gaussian" if is_gaussian else "laplace",
            scale=spread,
            variance=variance_of(weight),
            rows=part.size,
            differences=design.differs(margin),
        )
        yield MeasuredMargin(law, part.ravel(), np.arange(part.size))


def pooled(
    design: ResidualDesign,
    margins: Sequence[MeasuredMargin],
    n_records: int | None,
    public: Table | None = None,
    shares: Mapping[Blocks, FloatArray] | None = None,
) -> NoisyPairs:
    """Return unbiased estimates of all pairs from measured margins, each weighted by
    its precision.

    What several margins say of the same pair beyond its columns, or of a column, is
    averaged in proportion to 1 / variance, for Laplace noise that of the continuous
    law, as in forecasts: generalised least squares, as residuals of a margin have
    independent errors (Xiao, He, Zhang and Kifer, 2023). Margins that weren't counted
    whole, or whose axes aren't blocks of ``design``, are left out. Counts of intervals
    aren't averaged with sums over pairs: under Laplace noise the average had errors up
    to twice as large (tried). What no margin says has infinite variance.
    """
    number = {axis.columns: k for k, axis in enumerate(block_axes(design))}
    pool = _Pool(design)
    known = dict[Blocks, LevelCounts]()
    for margin in margins:
        axes = margin.law.axes
        blocks = tuple(number.get(axis.columns, -1) for axis in axes)
        table = _whole_table(margin, n_records)
        if table is None or not _are_blocks(design, blocks, axes):
            continue
        if margin.law.law == "estimate" and blocks[0] in design.known:
            known[blocks] = table, max(margin.law.variance, LEAST)
        pool.add(margin, blocks, table)
    for part, share in (shares or {}).items():
        known[part] = pool.n_records(n_records) * share, EXACT
    return _assembled(pool, n_records, known, public)


def _are_blocks(
    design: ResidualDesign, blocks: Sequence[int], axes: Sequence[MarginAxis]
) -> bool:
    """Return whether axes have all levels of blocks, so numbered, or -1."""
    if min(blocks, default=0) < 0 or any(axis.first for axis in axes):
        return False
    sizes: list[int] = design.sizes[list(blocks)].tolist()
    return [axis.size for axis in axes] == sizes


def _whole_table(margin: MeasuredMargin, n_records: int | None) -> FloatArray | None:
    """Return all counts of a margin, or None: of two levels one may have been counted,
    and the other follows.
    """
    table = margin.whole()
    if table is not None or n_records is None:
        return table
    if [axis.size for axis in margin.law.axes] != [2]:
        return None
    counted = float(margin.noisy[0])
    return np.array([counted, n_records - counted])


class _Pool:
    """Sums over margins of what each says of a part, by weights: of its residual, and
    of squared weights times the variance that its noise has.
    """

    def __init__(self, design: ResidualDesign) -> None:
        self.design = design
        self._effects = dict[Blocks, FloatArray | float]()
        self._weights = dict[Blocks, float]()
        self._squares = dict[Blocks, float]()

    def add(self, margin: MeasuredMargin, blocks: Blocks, table: FloatArray) -> None:
        """Add what a margin says of its parts of two blocks at most."""
        law = margin.law
        sizes = self.design.sizes
        variance = max(law.variance, LEAST)
        nominal = variance
        if law.law == "laplace":
            nominal = max(2 * law.scale**2, LEAST)
        is_whole = len(margin.noisy) == table.size
        if not is_whole:  # the count that follows has the noise of the other
            variance = 2 * variance
            nominal = 2 * nominal
        parts = [blocks]
        if is_whole and not law.differences and law.law != "estimate":
            parts = [p for size in range(3) for p in combinations(blocks, size)]
        for part in parts:
            rest = [axis for axis, block in enumerate(blocks) if block not in part]
            kept = np.asarray(table.sum(axis=tuple(rest)))
            kept = kept.transpose(np.argsort(part).tolist())
            effect = residual(kept) if law.differences else centred(kept)
            n_summed = math.prod(int(sizes[blocks[axis]]) for axis in rest)
            weight = 1 / (nominal * n_summed)
            own = tuple(sorted(part))
            self._effects[own] = self._effects.get(own, 0.0) + weight * effect
            self._weights[own] = self._weights.get(own, 0.0) + weight
            # weight^2 by its own variance
            square = weight * (variance / nominal)
            self._squares[own] = self._squares.get(own, 0.0) + square

    def n_records(self, known: int | None) -> float:
        """Return the number of records, noisy where it isn't known."""
        if known is not None:
            return float(known)
        return float(self._effects[()]) * (1 / self._weights[()])

    def effect(self, part: Blocks) -> FloatArray | float:
        """Return the average of the residual of a part, 0 where no margin says it."""
        if part not in self._weights:
            return 0.0
        return self._effects[part] / self._weights[part]

    @property
    def variances(self) -> dict[Blocks, float]:
        """Of the average of each part, before its margins are taken out."""
        return {
            part: self._squares[part] / weight**2
            for part, weight in self._weights.items()
        }


def _assembled(
    pool: _Pool,
    n_records: int | None,
    known: Mapping[Blocks, LevelCounts],
    public: Table | None,
) -> NoisyPairs:
    """Return the pairs of averaged residuals; ``known`` tables are taken whole."""
    design = pool.design
    sizes = design.sizes
    n = pool.n_records(n_records)
    n_levels = design.offsets[-1]
    counts = np.zeros((n_levels, n_levels))
    if public is not None:
        counts += _public_counts(design, public)
    for block, size in enumerate(sizes):
        own = design.margin(counts, (block,))
        if (block,) in known:
            own[:], _ = known[block,]
        elif not design.public[block]:
            own[:] = pool.effect((block,)) + n / size
    blocks = range(len(sizes))
    single = [design.margin(counts, (block,)).copy() for block in blocks]
    for pair in combinations(blocks, 2):
        if design.public[list(pair)].all():
            continue
        i, j = pair
        of_rows = single[i][:, None] / sizes[j]
        of_columns = single[j] / sizes[i]
        both = pool.effect(pair) + of_rows + of_columns
        both = both - n / (sizes[i] * sizes[j])
        if pair in known:
            both, _ = known[pair]
        design.margin(counts, (i, j))[:] = both
        design.margin(counts, (j, i))[:] = both.T
    variances = pool.variances
    total_variance = variances.pop((), 0.0)
    return NoisyPairs(
        offsets=design.offsets,
        counts=counts,
        variance=_variance(design, variances, known),
        n_records=n,
        total_variance=total_variance if n_records is None else 0.0,
        ordered=design.ordered,
    )


def _variance(
    design: ResidualDesign,
    variances: Mapping[Blocks, float],
    known: Mapping[Blocks, LevelCounts],
) -> FloatArray:
    """Return the variance of each pair, and of each level on the diagonal: infinite
    where no margin says anything, 0 of what is public.
    """
    has_one_level = design.sizes == 1
    n_blocks = len(design.blocks)
    variance = np.full((n_blocks, n_blocks), np.inf)
    variance[np.logical_or.outer(has_one_level, has_one_level)] = 0.0
    variance[np.outer(design.public, design.public)] = 0.0
    own = {
        part: value
        for part, value in variances.items()
        if not design.public[list(part)].all()
    }
    for part, (_, left) in known.items():
        if len(part) == 1 or not design.public[list(part)].all():
            own[part] = left
    for part, value in own.items():
        variance[part[0], part[-1]] = value
        variance[part[-1], part[0]] = value
    return variance


def _public_counts(design: ResidualDesign, public: Table) -> FloatArray:
    codes = np.zeros((public.n_records, len(design.blocks)), dtype=np.int32)
    names = design.domain.names
    for k in np.flatnonzero(design.public):
        block = design.blocks[k]
        columns = [public.codes[names[column]] for column in block.columns]
        codes[:, k] = block.codes(columns)
    ones = np.ones(len(codes), dtype=np.int64)
    counts = pair_counts(codes, ones, design.offsets)
    is_public = np.repeat(design.public, design.sizes)
    symmetric = np.triu(counts) + np.triu(counts, 1).T
    return np.where(np.outer(is_public, is_public), symmetric, 0).astype(float)
