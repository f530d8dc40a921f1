"""All one- and two-way margins in the residual basis: what is asked, what it costs, and
its exact noise.

The residual of a margin is what it says beyond its own margins: C (N + z), with C = I -
J / L for a column of L levels and the Kronecker product of two of them for a pair.
Residuals of different margins have independent noise, and every one- and two-way margin
is a sum of them (ResidualPlanner: Xiao, He, Zhang and Kifer, 2023). What is published
are whole numbers of the same content, the differences of neighbouring levels H (N + z),
which a record moves by less; or, where that gains nothing, the noisy counts themselves
(``docs/proofs/margins.md``).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from itertools import chain, combinations, compress, product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.table import Table, tally
from pdips.data.totals import KnownTable
from pdips.errors import InputError
from pdips.margins.domain import Domain
from pdips.margins.pair_tables import pair_counts
from pdips.margins.quadratic_bound import quadratic_bound
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise_sum import NoiseSum, Terms
from pdips.privacy.plan import LinearImage, Step
from pdips.privacy.sensitivity import n_changed

# Of a block: pairs of more levels would be noise, and fill the memory
MOST_LEVELS = 5_000
# Combinations of columns that zeros tie together, with those that can't occur
MOST_COMBINED = 1_000_000
# The weight of the most precise margin: weights (reciprocals of variances) are whole
# parts of it
WEIGHT = 2**30
# Weights are powers of two to the multiples of 1 / GRID, so that noise is drawn for
# many margins at once
GRID = 4
# Factor on the standard deviation of margins that public totals know, which are only
# compared
LOUDER = 4
# Least variance of a count's noise, in levels of the larger column: the proof's eta is
# below 1e-25
SMOOTH = 7
# Which part of what a record moves is that of margins of three blocks
ALSO = Fraction(1, 5)
ROUNDS = 40

Blocks = tuple[int, ...]
"""A margin, by the blocks whose levels it counts."""


@dataclass(frozen=True, eq=False)
class ColumnBlock:
    """Columns that structural zeros tie together, as one column whose levels are the
    combinations that can occur.
    """

    columns: tuple[int, ...]
    levels: IntArray  # Level of each column, shape (levels, columns)
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, domain: Domain, columns: tuple[int, ...]) -> "ColumnBlock":
        sizes = tuple(int(domain.sizes[column]) for column in columns)
        if math.prod(sizes) > MOST_COMBINED:
            raise InputError(_too_large(domain, columns))
        levels = np.indices(sizes).reshape(len(sizes), -1).T
        of_column = dict(zip(columns, levels.T, strict=True))
        is_possible = domain.possible(of_column.get)
        kept = levels[np.broadcast_to(is_possible, len(levels))]
        if len(kept) > MOST_LEVELS:
            raise InputError(_too_large(domain, columns))
        return cls(columns, kept, sizes)

    @property
    def n_levels(self) -> int:
        return len(self.levels)

    def codes(self, columns: Sequence[IntArray]) -> IntArray:
        """Return the level of each row, from those of its columns."""
        if len(self.columns) == 1:
            return columns[0]
        number = np.full(math.prod(self.sizes), -1, dtype=np.int64)
        cells = np.ravel_multi_index(tuple(self.levels.T), self.sizes)
        number[cells] = np.arange(self.n_levels)
        return number[np.ravel_multi_index(tuple(columns), self.sizes)]


def _too_large(domain: Domain, columns: Sequence[int]) -> str:
    names = ", ".join(repr(domain.names[column]) for column in columns)
    tied = (
        (f"columns {names}, which structural zeros tie together, have")
        if len(columns) > 1
        else f"column {names} has"
    )
    return (
        f"{tied} more than {MOST_LEVELS:,} levels: merge levels, take wider bins, "
        f"or leave the column out"
    )


def blocks_of(domain: Domain) -> tuple[ColumnBlock, ...]:
    """Return the columns of a domain as blocks: those that share a structural zero are
    in one.
    """
    tied = [{column} for column in range(len(domain.names))]
    for rule in domain.impossible:
        together = [block for block in tied if block & set(rule)]
        tied = [block for block in tied if not block & set(rule)]
        tied.append(set().union(*together))
    columns = [tuple(sorted(block)) for block in sorted(tied, key=min)]
    return tuple(ColumnBlock.of(domain, own) for own in columns)


@dataclass(frozen=True, eq=False)
class ResidualDesign:
    """Which margins of a table are measured, and how precisely in relation to each
    other. Public.

    ``known`` blocks aren't counted alone, because their levels are known otherwise.
    ``alone`` is the part of what a record moves that single blocks have; left out, what
    makes the errors of pairs least. If ``whole`` all noisy counts are shown, not their
    differences. Margins within public ``totals`` are counted with noise ``LOUDER`` than
    otherwise, to be compared. ``also`` has three blocks each, whose margins are
    measured too and shown whole; ``pairs`` says whether pairs are. Under add-remove the
    number of records is measured too.
    """

    domain: Domain
    neighbours: Neighbours
    law: Literal["laplace", "gaussian"]
    whole: bool = True
    known: tuple[int, ...] = ()
    alone: Fraction | None = None
    totals: tuple[KnownTable, ...] = ()
    also: tuple[Blocks, ...] = ()
    pairs: bool = True

    @cached_property
    def blocks(self) -> tuple[ColumnBlock, ...]:
        """The columns, those tied by structural zeros as one."""
        return blocks_of(self.domain)

    @cached_property
    def public(self) -> BoolArray:
        """Which blocks consist of public columns alone, shape (blocks,)."""
        public = set(self.domain.public.tolist())
        return np.array([set(block.columns) <= public for block in self.blocks])

    @cached_property
    def sizes(self) -> IntArray:
        """Number of levels of each block."""
        return np.array([block.n_levels for block in self.blocks], dtype=np.int64)

    @cached_property
    def offsets(self) -> IntArray:
        """Where the levels of each block begin among those of all; the last entry is
        their number.
        """
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def levels_of(self, block: int) -> slice:
        """Return where the levels of a block are among those of all."""
        return slice(self.offsets[block], self.offsets[block + 1])

    @cached_property
    def home(self) -> dict[str, tuple[int, int]]:
        """The block of each column, and its place among the columns of this block."""
        names = self.domain.names
        home = dict[str, tuple[int, int]]()
        for k, block in enumerate(self.blocks):
            for place, column in enumerate(block.columns):
                home[names[column]] = (k, place)
        return home

    @cached_property
    def margins(self) -> list[Blocks]:
        """The measured margins that aren't public: the number of records (), blocks
        (i,), pairs (i, j), and triples.
        """
        telling = np.flatnonzero(self.sizes > 1).tolist()
        counted: list[Blocks] = [
            (block,) for block in telling if block not in self.known
        ]
        if self.pairs:
            counted += combinations(telling, 2)
        counted += self.also
        is_open = [not self.public[list(margin)].all() for margin in counted]
        total: list[Blocks] = [()] if self.neighbours == "add-remove" else []
        return [*total, *compress(counted, is_open)]

    @cached_property
    def covered(self) -> dict[Blocks, FloatArray]:
        """The shares of the levels of blocks (i,) and pairs (i, j) of untied columns
        that lie within a public total.
        """
        place = dict[str, int]()
        for k, block in enumerate(self.blocks):
            if len(block.columns) == 1:
                place[self.domain.names[block.columns[0]]] = k
        covered = dict[Blocks, FloatArray]()
        for table in self.totals:
            names = sorted(place.keys() & table.columns, key=place.__getitem__)
            for some in chain(combinations(names, 1), combinations(names, 2)):
                covered[tuple(place[name] for name in some)] = table.margin(some)
        return covered

    def differs(self, margin: Blocks) -> bool:
        """Return whether differences of the counts of a margin are shown."""
        return not self.whole and 1 <= len(margin) <= 2

    def shape(self, margin: Blocks) -> tuple[int, ...]:
        """Return the numbers of levels of a margin."""
        return tuple(int(self.sizes[block]) for block in margin)

    @cached_property
    def place(self) -> dict[Blocks, int]:
        """Where each measured margin is among them."""
        return {margin: k for k, margin in enumerate(self.margins)}

    @cached_property
    def weights(self) -> IntArray:
        """Reciprocal of the noise's variance (Gaussian) or scale (Laplace) on each
        measured margin, over ``WEIGHT``.

        The sum over pairs of cells times their standard error is least, up to rounding,
        for a given sum of the costs: a variance is the square root, a scale the cube
        root, of what the margin costs over what it is worth.
        """
        margins = self.margins
        n_blocks = np.array([len(margin) for margin in margins], dtype=np.int64)
        is_within = np.array([m in self.covered for m in margins], dtype=bool)
        is_third = n_blocks == 3
        price = np.ones(len(self.margins))
        if self.law == "gaussian":
            price = np.array([self._effect(m, m) for m in margins])
        price[is_third] = 1.0
        noise = self._best_noise(price)
        noise[is_within] *= LOUDER**2 if self.law == "gaussian" else LOUDER
        is_single = (n_blocks == 1) & ~is_within
        if self.alone is not None and is_single.any() and not is_single.all():
            cost = price / noise
            rest = cost[~is_single & ~is_third].sum()
            ratio = cost[is_single].sum() / rest
            noise[is_single] *= ratio * float(1 / self.alone - 1)
        if is_third.any():
            cost = price / noise
            ratio = is_third.sum() / cost[~is_third].sum()
            noise[is_third] = ratio * float(1 / ALSO - 1)
        relative = noise / noise.min(initial=np.inf)
        steps = np.round(GRID * np.log2(relative))
        weights = np.round(WEIGHT * 2.0 ** (-steps / GRID))
        return np.maximum(weights, 1).astype(np.int64)

    @property
    def _power(self) -> int:
        """Of the noise's parameter, a variance or a scale, that its variance goes
        by.
        """
        return 2 if self.law == "laplace" else 1

    def _best_noise(self, price: FloatArray) -> FloatArray:
        """Return the parameter of the noise on each margin for which the sum of errors
        is least: a fixed point.
        """
        noise = np.ones(len(self.margins))
        if not self.margins:
            return noise
        targets = [m for m in self.margins if len(m) == 2] or self.margins
        effects = self._effects(targets)
        cells = np.array([float(math.prod(self.shape(m))) for m in targets])
        worth = cells
        for _ in range(ROUNDS):
            value = effects.T @ worth
            cost = price / np.maximum(value, value.max() * 1e-12)
            noise = cost ** (1 / (self._power + 1))
            variance = effects @ noise**self._power
            worth = cells / np.sqrt(variance)
        return noise

    def _effects(self, targets: Sequence[Blocks]) -> csr_array:
        """Return by how much noise on each margin adds to the variance of a cell of
        each target.
        """
        rows = list[int]()
        columns = list[int]()
        effects = list[float]()
        for row, target in enumerate(targets):
            for part in _parts(target):
                if part in self.place:
                    rows.append(row)
                    columns.append(self.place[part])
                    effects.append(self._effect(part, target))
        shape = (len(targets), len(self.margins))
        return csr_array((effects, (rows, columns)), shape=shape)

    def _effect(self, part: Blocks, margin: Blocks) -> float:
        """Return the variance in a cell of a margin of what the residual of a part
        adds, where noise on a count of the part has variance 1.
        """
        share = math.prod(_share(float(self.sizes[block])) for block in part)
        return share / self._n_summed(margin, part) ** 2

    def _n_summed(self, margin: Blocks, part: Blocks) -> int:
        """Return over how many cells of a margin one of a part is summed."""
        return math.prod(int(self.sizes[k]) for k in margin if k not in part)

    @cached_property
    def moved(self) -> Fraction:
        """The most that one record moves all counts by: in scales of the noise, or
        squared in standard deviations.
        """
        return n_changed(self.neighbours) * Fraction(int(self.weights.sum()), WEIGHT)

    @cached_property
    def squared(self) -> Fraction:
        """The most that one record moves all that is shown by: squared, in standard
        deviations of the noise.
        """
        if self.whole:
            return self.moved
        return squared_norm(
            self.sizes,
            self.public,
            dict(zip(self.margins, self.weights.tolist(), strict=True)),
        )

    def smooth(self, variance: Fraction) -> Fraction:
        """Return the least variance of the most precise margin, at least ``variance``,
        for which the proof holds.
        """
        least = [variance]
        for margin, weight in zip(self.margins, self.weights.tolist(), strict=True):
            if 1 <= len(margin) <= 2:
                levels = max(self.shape(margin))
                least.append(Fraction(SMOOTH * levels * weight, WEIGHT))
        return max(least)

    def beyond(self, variance: Fraction) -> Fraction:
        """Return an upper bound of the probability with which the noise isn't the law
        of the proof (its tau).
        """
        total = 1e-300  # below it, doubles would say 0
        for margin, weight in zip(self.margins, self.weights.tolist(), strict=True):
            own = float(variance) * WEIGHT / weight
            shape = self.shape(margin)
            if len(shape) == 1:
                total += math.expm1(_log_theta(2 * own / shape[0]))
            elif len(shape) == 2:
                first, last = shape
                of_rows = first * _log_theta(own / last)
                of_columns = last * _log_theta(own / first)
                total += math.expm1(of_rows + of_columns)
        return Fraction(2.001 * total)

    @cached_property
    def image(self) -> LinearImage:
        """What is shown of noisy counts: all of them, or differences of neighbouring
        levels.
        """
        each = [math.prod(self.shape(margin)) for margin in self.margins]
        return LinearImage(
            np.repeat(self.weights, each),
            WEIGHT,
            np.asarray if self.whole else self.differences,
        )

    def codes(self, columns: Sequence[IntArray]) -> NDArray[np.int32]:
        """Return the block level of each row, shape (rows, blocks), from the codes of
        the columns.
        """
        n = len(columns[0]) if columns else 0
        codes = np.empty((n, len(self.blocks)), dtype=np.int32)
        for k, block in enumerate(self.blocks):
            codes[:, k] = block.codes([columns[column] for column in block.columns])
        return codes

    def count(
        self, table: Table, levels: Mapping[str, IntArray] | None = None
    ) -> IntArray:
        """Return the exact counts of all measured margins, one after the other;
        ``levels`` of columns without bins.
        """
        return self.counts_of(self.every_count(table, levels))

    def every_count(
        self, table: Table, levels: Mapping[str, IntArray] | None = None
    ) -> IntArray:
        """Return the exact counts that those of all margins follow from: of each two
        levels, of ``also``, and of records.
        """
        pairs = pair_counts(*self._rows(table, levels), self.offsets)
        triples = self.tally(table, self.also, levels)
        return np.concatenate([pairs.ravel(), triples, [table.n_records]])

    def counts_of(self, every: IntArray) -> IntArray:
        """Return the exact counts of all measured margins from :meth:`every_count`."""
        small = [margin for margin in self.margins if 1 <= len(margin) <= 2]
        parts = [self.small_counts(small, every)]
        if () in self.place:
            parts.insert(0, every[-1:])
        is_open = [margin in self.place for margin in self.also]
        n_pairs = int(self.offsets[-1]) ** 2
        ends = np.cumsum([math.prod(self.shape(margin)) for margin in self.also])
        parts += compress(np.split(every[n_pairs:-1], ends[:-1]), is_open)
        return np.concatenate(parts)

    def small_counts(self, margins: Sequence[Blocks], every: IntArray) -> IntArray:
        """Return the exact counts of margins of one or two blocks from
        :meth:`every_count`.
        """
        n_levels = int(self.offsets[-1])
        pairs = every[: n_levels**2].reshape(n_levels, n_levels)
        parts = [self.margin(pairs, margin).ravel() for margin in margins]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    def tally(
        self,
        table: Table,
        margins: Sequence[Blocks],
        levels: Mapping[str, IntArray] | None = None,
    ) -> IntArray:
        """Return the exact counts of some margins, one after the other."""
        codes, counts = self._rows(table, levels)
        parts = [np.zeros(0, dtype=np.int64)]
        for margin in margins:
            shape = self.shape(margin)
            levels_held = tuple(codes[:, margin].T)
            cells = np.ravel_multi_index(levels_held, shape)
            parts.append(tally(cells, counts, math.prod(shape)))
        return np.concatenate(parts)

    def _rows(
        self, table: Table, levels: Mapping[str, IntArray] | None
    ) -> tuple[NDArray[np.int32], IntArray | None]:
        columns = {**table.codes, **(levels or {})}
        codes = self.codes([columns[name] for name in self.domain.names])
        return codes, table.counts

    def differences(self, counts: IntArray) -> IntArray:
        """Return the differences of counts of all measured margins, shape (runs,
        numbers).
        """
        start = 0
        n_runs = len(counts)
        shown = [counts[:, :0]]
        for margin in self.margins:
            shape = self.shape(margin)
            end = start + math.prod(shape)
            part = counts[:, start:end].reshape(n_runs, *shape)
            n_axes = len(shape) * self.differs(margin)
            shown.append(difference(part, n_axes).reshape(n_runs, -1))
            start = end
        return np.concatenate(shown, axis=1)

    def parts(self, shown: IntArray) -> Iterator[tuple[Blocks, IntArray]]:
        """Yield each measured margin with what is shown of it, an axis a block at last,
        from what is shown of all.
        """
        start = 0
        for margin in self.margins:
            shape = tuple(size - self.differs(margin) for size in self.shape(margin))
            end = start + math.prod(shape)
            part = shown[..., start:end]
            yield margin, part.reshape((*shown.shape[:-1], *shape))
            start = end

    def margin(self, pairs: NDArray[Any], margin: Blocks) -> NDArray[Any]:
        """Return the table of one block or of a pair, a view into that of all levels by
        all levels.
        """
        table = pairs[self.levels_of(margin[0]), self.levels_of(margin[-1])]
        return np.einsum("ii->i", table) if len(margin) == 1 else table

    def variance(self, margin: Blocks, step: Step) -> float:
        """Return the variance of the noise on a count of a measured margin, before
        differences are taken.
        """
        return self.image.variance(step, int(self.weights[self.place[margin]]))

    @property
    def ordered(self) -> tuple[int, ...]:
        """How many levels of each block are in order: those of a number, its missing
        values left out.
        """
        n_ordered = list[int]()
        for block in self.blocks:
            is_alone = len(block.columns) == 1
            n_ordered.append(self.domain.ordered[block.columns[0]] if is_alone else 0)
        return tuple(n_ordered)

    @cached_property
    def own_block(self) -> dict[int, int]:
        """The block of each column that no other is tied to and that is counted by its
        own levels, by position.
        """
        own = dict[int, int]()
        for k, block in enumerate(self.blocks):
            if k not in self.known and len(block.columns) == 1:
                own[block.columns[0]] = k
        return own

    @cached_property
    def told(self) -> dict[Blocks, dict[Blocks, float]]:
        """How much each measured margin counts in the estimate of the residual of each
        part; they add up to 1.

        Whole counts of a margin say something of its own margins too, with a noise that
        is summed over what is left out; differences don't. Precisions are those of
        continuous noise, so that no share depends on the price.
        """
        precisions = dict[Blocks, dict[Blocks, float]]()
        for margin in self.margins:
            weight = float(self.weights[self.place[margin]])
            for part in [margin] if self.differs(margin) else _parts(margin, 2):
                if part in self.place or not self.public[list(part)].all():
                    n_summed = self._n_summed(margin, part)
                    precision = weight**self._power / n_summed
                    precisions.setdefault(part, {})[margin] = precision
        told = dict[Blocks, dict[Blocks, float]]()
        for part, own in precisions.items():
            total = sum(own.values())
            told[part] = {margin: value / total for margin, value in own.items()}
        return told

    def scales(self, step: Step) -> dict[Blocks, Fraction]:
        """Return the scale, or for Gaussian noise the variance, of the noise on the
        counts of each margin.
        """
        scale_of = {
            weight: self.image.scale(step, weight)
            for weight in np.unique(self.weights).tolist()
        }
        weights = self.weights.tolist()
        return {margin: scale_of[weights[k]] for margin, k in self.place.items()}

    def part_noises(self, step: Step) -> dict[Blocks, NoiseSum]:
        """Return the noise on one cell of each part, from which its residual is
        taken.
        """
        scales = self.scales(step)
        noises = dict[Blocks, NoiseSum]()
        for part, shares in self.told.items():
            terms = [
                Terms(share, self._n_summed(margin, part), scales[margin], self.law)
                for margin, share in shares.items()
            ]
            noises[part] = NoiseSum(tuple(terms))
        return noises

    def errors(self, step: Step) -> Callable[[Blocks], NoiseSum]:
        """Return a function for the error of a cell of a one- or two-way margin of
        blocks, before the table is read.

        A residual C z has in its cell the weight 1 - 1 / L of that cell's noise and -1
        / L of each other's; for a pair the products. It is spread over the levels of
        the blocks that it doesn't name.
        """
        scales = self.scales(step)
        in_total = Counter[tuple[float, Fraction]]()
        for measured, share in self.told.get((), {}).items():
            in_total[share, scales[measured]] += math.prod(self.shape(measured))
        return partial(self._error, scales, in_total)

    def _error(
        self,
        scales: Mapping[Blocks, Fraction],
        in_total: Mapping[tuple[float, Fraction], int],
        margin: Blocks,
    ) -> NoiseSum:
        n_cells = math.prod(self.shape(margin))
        total = self.told.get((), {})
        # all noise counts in the total; that of other parts in their own way
        terms = Counter[tuple[float, Fraction]]()
        for (share, scale), n in in_total.items():
            terms[share / n_cells, scale] += n
        parts = [part for part in _parts(margin) if part in self.told]
        of_parts = [self.told[part] for part in parts if part]
        for measured in dict.fromkeys(chain.from_iterable(of_parts)):
            scale = scales[measured]
            share = total.get(measured, 0.0) / n_cells
            terms[share, scale] -= math.prod(self.shape(measured))
            for weight, n in self._weights_in_cell(margin, measured, parts):
                terms[weight, scale] += n
        found = [
            Terms(weight, n, scale, self.law)
            for (weight, scale), n in terms.items()
            if weight and n
        ]
        return NoiseSum(tuple(found))

    def _weights_in_cell(
        self, margin: Blocks, measured: Blocks, parts: Sequence[Blocks]
    ) -> Iterator[tuple[float, int]]:
        """Yield the weights that counts of a measured margin have in a cell of a
        margin, and how many counts each.
        """
        size = self.sizes.tolist()
        shared = [block for block in measured if block in margin]
        shares = {p: self.told[p][measured] for p in parts if measured in self.told[p]}
        n_alike = self._n_summed(measured, margin)
        # a count is of the cell's own level of each shared block, or of another one
        for is_own in product((True, False), repeat=len(shared)):
            in_residual = dict[int, float]()
            n = n_alike
            for block, same in zip(shared, is_own, strict=True):
                if same:
                    in_residual[block] = _share(size[block])
                else:
                    in_residual[block] = -1 / size[block]
                    n *= size[block] - 1
            weight = 0.0
            for part, share in shares.items():
                factors = [in_residual[k] if k in part else 1 / size[k] for k in margin]
                weight += share * math.prod(factors)
            yield weight, n

    def cell_variance(self, margin: Blocks, variances: Mapping[Blocks, float]) -> float:
        """Return the variance of a cell of a one- or two-way margin, from those of the
        noise on measured margins.
        """
        total = 0.0
        for part in _parts(margin):
            total += variances.get(part, 0.0) * self._effect(part, margin)
        return total


def _parts(margin: Blocks, most: int = 3) -> list[Blocks]:
    """Return all margins of a margin, of so many blocks at most."""
    sizes = range(min(len(margin), most) + 1)
    return [part for size in sizes for part in combinations(margin, size)]


def _share(size: float) -> float:
    return (size - 1) / size


def _log_theta(ratio: float) -> float:
    """Return an upper bound of the log of 1 + 2 sum over k of q^(k^2), where q =
    exp(-pi^2 ratio).
    """
    q = math.exp(-(math.pi**2) * ratio)
    return math.log1p(2 * q / (1 - q))


def difference(counts: IntArray, axes: int) -> IntArray:
    """Return the differences of neighbouring levels along each of the last axes."""
    found = counts
    for axis in range(1, axes + 1):
        found = np.diff(found, axis=-axis)
    return found


def squared_norm(
    sizes: IntArray, public: BoolArray, weights: dict[Blocks, int]
) -> Fraction:
    """Return an upper bound of the squared norm of what a record does, in units of the
    noise; exact under add-remove.

    Adding a record: the sum over margins of weight times the product of f = (L - 1) /
    L. Replacing one: twice the largest value, over which blocks change, of sum_i a_i
    D_i - D'QD / 2, bounded by a certificate (``docs/proofs/margins.md``, theorem 2). Of
    margins of three blocks counts are shown, of which it changes two by 1.
    """
    f = [Fraction(int(size) - 1, int(size)) for size in sizes]
    third = Fraction(0)
    total = Fraction(0)
    linear = [Fraction(0)] * len(sizes)
    curved = np.zeros((len(sizes), len(sizes)), dtype=np.int64)
    for margin, weight in weights.items():
        if len(margin) == 3:
            third += Fraction(weight, WEIGHT)
            continue
        total += Fraction(weight, WEIGHT) * math.prod(f[k] for k in margin)
        if len(margin) == 1:
            linear[margin[0]] += weight
        elif len(margin) == 2:
            i, j = margin
            linear[i] += weight * f[j]
            linear[j] += weight * f[i]
            curved[i, j] = curved[j, i] = weight
    if () in weights:  # of add-remove
        return third + total
    free = np.flatnonzero(~public)
    rounded = tuple(math.ceil(linear[block]) for block in free)
    bound = quadratic_bound(rounded, curved[np.ix_(free, free)].tobytes())
    return 2 * bound / WEIGHT + 2 * third
