"""All one- and two-way margins in the residual basis: what is asked, what it costs, and its exact noise.

The residual of a margin is what it says beyond its own margins: C (N + z), with C = I - J / L for a column of L levels
and the Kronecker product of two of them for a pair. Residuals of different margins have independent noise, and every
one- and two-way margin is a sum of them (ResidualPlanner: Xiao, He, Zhang and Kifer, 2023). What is published are whole
numbers of the same content, the differences of neighbouring levels H (N + z), which a record moves by less; or, where
that gains nothing, the noisy counts themselves (``docs/proofs/pairs.md``).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import chain, combinations, product
from typing import Any, Literal

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, eigh
from scipy.optimize import minimize
from scipy.sparse import csr_array

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.table import Table
from pdips.data.totals import KnownTable
from pdips.errors import InputError
from pdips.margins.domain import Domain
from pdips.privacy.loss import Neighbours
from pdips.privacy.noise_sum import NoiseSum, Terms
from pdips.privacy.plan import LinearImage, Step
from pdips.privacy.sensitivity import n_changed

MOST_LEVELS = 5_000  # Of a block: pairs of more levels would be noise, and fill the memory
MOST_COMBINED = 1_000_000  # Combinations of columns that zeros tie together, with those that can't occur
WEIGHT = 2**30  # The weight of the most precise margin: weights (reciprocals of variances) are whole parts of it
GRID = 4  # Weights are powers of two to the multiples of 1 / GRID, so that noise is drawn for many margins at once
LOUDER = 4  # Factor on the standard deviation of margins that public totals know, which are only compared
SMOOTH = 7  # Least variance of a count's noise, in levels of the larger column: the proof's eta is below 1e-25
ALSO = Fraction(1, 5)  # Which part of what a record moves is that of margins of three blocks
ROUNDS = 40


@dataclass(frozen=True, eq=False)
class ColumnBlock:
    """Columns that structural zeros tie together, as one column whose levels are the combinations that can occur."""

    columns: tuple[int, ...]
    levels: IntArray  # Level of each column, shape (levels, columns)
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, domain: Domain, columns: tuple[int, ...]) -> "ColumnBlock":
        sizes = tuple(int(domain.sizes[column]) for column in columns)
        if math.prod(sizes) > MOST_COMBINED:
            raise InputError(_too_large(domain, columns))
        levels = np.indices(sizes).reshape(len(sizes), -1).T
        place = {column: levels[:, k] for k, column in enumerate(columns)}
        kept = levels[np.broadcast_to(domain.possible(place.get), len(levels))]
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
        number[np.ravel_multi_index(tuple(self.levels.T), self.sizes)] = np.arange(self.n_levels)
        return np.asarray(number[np.ravel_multi_index(tuple(columns), self.sizes)])


def _too_large(domain: Domain, columns: Sequence[int]) -> str:
    names = ", ".join(repr(domain.names[column]) for column in columns)
    tied = f"columns {names}, which structural zeros tie together, have" if len(columns) > 1 else f"column {names} has"
    return f"{tied} more than {MOST_LEVELS:,} levels: merge levels, take wider bins, or leave the column out"


def blocks_of(domain: Domain) -> tuple[ColumnBlock, ...]:
    """Return the columns of a domain as blocks: those that share a structural zero are in one."""
    tied = [{column} for column in range(len(domain.names))]
    for rule in domain.impossible:
        together = [block for block in tied if block & set(rule)]
        tied = [block for block in tied if not block & set(rule)] + [set().union(*together)]
    return tuple(ColumnBlock.of(domain, tuple(sorted(block))) for block in sorted(tied, key=min))


@dataclass(frozen=True, eq=False)
class ResidualDesign:
    """Which margins of a table are measured, and how precisely in relation to each other. Public.

    ``known`` blocks aren't counted alone, because their levels are known otherwise. ``alone`` is the part of what a
    record moves that single blocks have; left out, what makes the errors of pairs least. If ``whole`` all noisy counts
    are shown, not their differences. Margins within public ``totals`` are counted with noise ``LOUDER`` than otherwise,
    to be compared. ``also`` has three blocks each, whose margins are measured too and shown whole; ``pairs`` says
    whether pairs are. Under add-remove the number of records is measured too.
    """

    domain: Domain
    neighbours: Neighbours
    law: Literal["laplace", "gaussian"]
    whole: bool = True
    known: tuple[int, ...] = ()
    alone: Fraction | None = None
    totals: tuple[KnownTable, ...] = ()
    also: tuple[tuple[int, ...], ...] = ()
    pairs: bool = True

    @cached_property
    def blocks(self) -> tuple[ColumnBlock, ...]:
        """The columns, those tied by structural zeros as one."""
        return blocks_of(self.domain)

    @cached_property
    def public(self) -> BoolArray:
        """Which blocks consist of public columns alone, shape (blocks,)."""
        return np.array([set(block.columns) <= set(self.domain.public.tolist()) for block in self.blocks])

    @cached_property
    def sizes(self) -> IntArray:
        """Number of levels of each block."""
        return np.array([block.n_levels for block in self.blocks], dtype=np.int64)

    @cached_property
    def offsets(self) -> IntArray:
        """Where the levels of each block begin among those of all; the last entry is their number."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @cached_property
    def home(self) -> dict[str, tuple[int, int]]:
        """The block of each column, and its place among the columns of this block."""
        names = self.domain.names
        return {names[c]: (k, place) for k, block in enumerate(self.blocks) for place, c in enumerate(block.columns)}

    @cached_property
    def margins(self) -> list[tuple[int, ...]]:
        """The measured margins that aren't public: the number of records (), blocks (i,), pairs (i, j), and triples."""
        telling = np.flatnonzero(self.sizes > 1).tolist()
        pairs = combinations(telling if self.pairs else (), 2)
        every = [*((i,) for i in telling if i not in self.known), *pairs, *self.also]
        total: list[tuple[int, ...]] = [()] if self.neighbours == "add-remove" else []
        return total + [margin for margin in every if not self.public[list(margin)].all()]

    @cached_property
    def covered(self) -> dict[tuple[int, ...], FloatArray]:
        """The shares of the levels of blocks (i,) and pairs (i, j) of untied columns that lie within a public total."""
        place = {self.domain.names[each.columns[0]]: k for k, each in enumerate(self.blocks) if len(each.columns) == 1}
        found = dict[tuple[int, ...], FloatArray]()
        for table in self.totals:
            names = sorted((name for name in table.columns if name in place), key=place.__getitem__)
            for some in chain(combinations(names, 1), combinations(names, 2)):
                found[tuple(place[name] for name in some)] = table.margin(some)
        return found

    def differs(self, margin: tuple[int, ...]) -> bool:
        """Return whether differences of the counts of a margin are shown."""
        return not self.whole and 1 <= len(margin) <= 2

    def shape(self, margin: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of levels of a margin."""
        return tuple(int(self.sizes[block]) for block in margin)

    @cached_property
    def place(self) -> dict[tuple[int, ...], int]:
        """Where each measured margin is among them."""
        return {margin: k for k, margin in enumerate(self.margins)}

    @cached_property
    def weights(self) -> IntArray:
        """Reciprocal of the noise's variance (Gaussian) or scale (Laplace) on each measured margin, over ``WEIGHT``.

        The sum over pairs of cells times their standard error is least, up to rounding, for a given sum of the costs:
        a variance is the square root, a scale the cube root, of what the margin costs over what it is worth.
        """
        share = {m: math.prod(_share(float(self.sizes[k])) for k in m) for m in self.margins}
        rows, columns, effect, cells = list[int](), list[int](), list[float](), list[float]()
        targets = [m for m in self.margins if len(m) == 2] or self.margins
        for row, target in enumerate(targets):
            cells.append(math.prod(self.shape(target)))
            for size in range(len(target) + 1):
                for part in combinations(target, size):
                    if part in self.place:
                        rest = math.prod(int(self.sizes[k]) for k in target if k not in part)
                        rows.append(row)
                        columns.append(self.place[part])
                        effect.append(share[part] / rest**2)
        effects = csr_array((effect, (rows, columns)), shape=(len(targets), len(self.margins)))
        third = np.array([len(m) == 3 for m in self.margins], dtype=bool)
        price = np.array([share[m] if self.law == "gaussian" else 1.0 for m in self.margins])
        price[third] = 1.0
        power = 2 if self.law == "gaussian" else 3
        worth, noise = np.array(cells), np.ones(len(self.margins))
        for _ in range(ROUNDS if self.margins else 0):
            value = effects.T @ worth
            noise = (price / np.maximum(value, value.max() * 1e-12)) ** (1 / power)
            error = effects @ (noise if self.law == "gaussian" else noise**2)
            worth = np.array(cells) / np.sqrt(error)
        within = np.array([m in self.covered for m in self.margins], dtype=bool)
        noise[within] *= LOUDER ** (2 if self.law == "gaussian" else 1)
        single = np.array([len(m) == 1 for m in self.margins]) & ~within
        cost = price / noise
        if self.alone is not None and single.any() and not single.all():
            rest = ~single & ~third
            noise[single] *= cost[single].sum() / cost[rest].sum() * float(1 / self.alone - 1)
        if third.any():
            noise[third] = third.sum() / (price / noise)[~third].sum() * float(1 / ALSO - 1)
        steps = np.round(GRID * np.log2(noise / noise.min(initial=np.inf)))
        return np.maximum(np.round(WEIGHT * 2.0 ** (-steps / GRID)), 1).astype(np.int64)

    @cached_property
    def moved(self) -> Fraction:
        """The most that one record moves all counts by: in scales of the noise, or squared in standard deviations."""
        return n_changed(self.neighbours) * Fraction(int(self.weights.sum()), WEIGHT)

    @cached_property
    def squared(self) -> Fraction:
        """The most that one record moves all that is shown by: squared, in standard deviations of the noise."""
        if self.whole:
            return self.moved
        return squared_norm(self.sizes, self.public, dict(zip(self.margins, self.weights.tolist(), strict=True)))

    def smooth(self, variance: Fraction) -> Fraction:
        """Return the least variance of the most precise margin, at least ``variance``, for which the proof holds."""
        least = [
            Fraction(SMOOTH * max(self.shape(margin)) * int(weight), WEIGHT)
            for margin, weight in zip(self.margins, self.weights, strict=True)
            if 1 <= len(margin) <= 2
        ]
        return max([variance, *least])

    def beyond(self, variance: Fraction) -> Fraction:
        """Return an upper bound of the probability with which the noise isn't the law of the proof (its tau)."""
        total = 1e-300  # below it, doubles would say 0
        for margin, weight in zip(self.margins, self.weights.tolist(), strict=True):
            own, shape = float(variance) * WEIGHT / weight, self.shape(margin)
            if len(shape) == 1:
                total += math.expm1(_log_theta(2 * own / shape[0]))
            elif len(shape) == 2:
                first, last = shape
                total += math.expm1(first * _log_theta(own / last) + last * _log_theta(own / first))
        return Fraction(2.001 * total)

    @cached_property
    def image(self) -> LinearImage:
        """What is shown of noisy counts: all of them, or differences of neighbouring levels."""
        each = [math.prod(self.shape(margin)) for margin in self.margins]
        return LinearImage(np.repeat(self.weights, each), WEIGHT, np.asarray if self.whole else self.differences)

    def codes(self, columns: Sequence[IntArray]) -> NDArray[np.int32]:
        """Return the block level of each row, shape (rows, blocks), from the codes of the columns."""
        made = [block.codes([columns[column] for column in block.columns]) for block in self.blocks]
        return np.column_stack(made).astype(np.int32)

    def count(self, table: Table, levels: Mapping[str, IntArray] | None = None) -> IntArray:
        """Return the exact counts of all measured margins, one after the other; ``levels`` of columns without bins."""
        codes, counts = self._rows(table, levels)
        pairs = pair_counts(codes, counts, self.offsets)
        parts = [self.margin(pairs, m).ravel() for m in self.margins if 1 <= len(m) <= 2]
        if () in self.place:
            parts.insert(0, np.array([table.n_records]))
        further = self.tally(table, self.margins[len(parts) :], levels)
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts, further]).astype(np.int64)

    def tally(
        self, table: Table, margins: Sequence[tuple[int, ...]], levels: Mapping[str, IntArray] | None = None
    ) -> IntArray:
        """Return the exact counts of some margins, one after the other."""
        codes, counts = self._rows(table, levels)
        parts = [np.zeros(math.prod(self.shape(margin)), dtype=np.int64) for margin in margins]
        for margin, part in zip(margins, parts, strict=True):
            np.add.at(part, np.ravel_multi_index(tuple(codes[:, margin].T), self.shape(margin)), counts)
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    def _rows(self, table: Table, levels: Mapping[str, IntArray] | None) -> tuple[NDArray[np.int32], IntArray]:
        known = {**table.codes, **(levels or {})}
        codes = self.codes([known[name] for name in self.domain.names])
        return codes, np.ones(len(codes), dtype=np.int64) if table.counts is None else table.counts

    def differences(self, counts: IntArray) -> IntArray:
        """Return the differences of counts of all measured margins, shape (runs, numbers)."""
        start, shown = 0, [counts[:, :0]]
        for margin in self.margins:
            shape = self.shape(margin)
            part = counts[:, start : start + math.prod(shape)].reshape(len(counts), *shape)
            shown.append(difference(part, len(shape) * self.differs(margin)).reshape(len(counts), -1))
            start += math.prod(shape)
        return np.concatenate(shown, axis=1)

    def parts(self, shown: IntArray) -> Iterator[tuple[tuple[int, ...], IntArray]]:
        """Yield each measured margin with what is shown of it, an axis a block at last, from what is shown of all."""
        start = 0
        for margin in self.margins:
            shape = tuple(size - self.differs(margin) for size in self.shape(margin))
            yield margin, shown[..., start : start + math.prod(shape)].reshape((*shown.shape[:-1], *shape))
            start += math.prod(shape)

    def margin(self, pairs: NDArray[Any], margin: tuple[int, ...]) -> NDArray[Any]:
        """Return the table of one block or of a pair, a view into that of all levels by all levels."""
        first, last = margin[0], margin[-1]
        rows, columns = (slice(self.offsets[k], self.offsets[k + 1]) for k in (first, last))
        return np.einsum("ii->i", pairs[rows, columns]) if len(margin) == 1 else pairs[rows, columns]

    def variance(self, margin: tuple[int, ...], step: Step) -> float:
        """Return the variance of the noise on a count of a measured margin, before differences are taken."""
        return self.image.variance(step, int(self.weights[self.place[margin]]))

    @property
    def ordered(self) -> tuple[int, ...]:
        """How many levels of each block are in order: those of a number, its missing values left out."""
        return tuple(self.domain.ordered[b.columns[0]] if len(b.columns) == 1 else 0 for b in self.blocks)

    @cached_property
    def own_block(self) -> dict[int, int]:
        """The block of each column that no other is tied to and that is counted by its own levels, by position."""
        free = ((k, block.columns) for k, block in enumerate(self.blocks) if k not in self.known)
        return {columns[0]: k for k, columns in free if len(columns) == 1}

    @cached_property
    def told(self) -> dict[tuple[int, ...], dict[tuple[int, ...], float]]:
        """How much each measured margin counts in the estimate of the residual of each part; they add up to 1.

        Whole counts of a margin say something of its own margins too, with a noise that is summed over what is left
        out; differences don't. Precisions are those of continuous noise, so that no share depends on the price.
        """
        power = 1 if self.law == "gaussian" else 2
        found = dict[tuple[int, ...], dict[tuple[int, ...], float]]()
        for margin in self.margins:
            parts = (part for n in range(min(len(margin), 2) + 1) for part in combinations(margin, n))
            for part in [margin] if self.differs(margin) else parts:
                if part in self.place or not self.public[list(part)].all():
                    rest = math.prod(int(self.sizes[k]) for k in margin if k not in part)
                    found.setdefault(part, {})[margin] = float(self.weights[self.place[margin]]) ** power / rest
        return {part: {m: w / sum(each.values()) for m, w in each.items()} for part, each in found.items()}

    def _scales(self, step: Step) -> dict[tuple[int, ...], Fraction]:
        return {margin: self.image.scale(step, int(self.weights[k])) for margin, k in self.place.items()}

    def part_noises(self, step: Step) -> dict[tuple[int, ...], NoiseSum]:
        """Return the noise on one cell of each part, from which its residual is taken."""
        scales, size, found = self._scales(step), self.sizes.tolist(), dict[tuple[int, ...], NoiseSum]()
        for part, shares in self.told.items():
            summed = {margin: math.prod(size[k] for k in margin if k not in part) for margin in shares}
            found[part] = NoiseSum(tuple(Terms(w, summed[m], scales[m], self.law) for m, w in shares.items()))
        return found

    def errors(self, step: Step) -> Callable[[tuple[int, ...]], NoiseSum]:
        """Return a function for the error of a cell of a one- or two-way margin of blocks, before the table is read.

        A residual C z has in its cell the weight 1 - 1 / L of that cell's noise and -1 / L of each other's; for a pair
        the products. It is spread over the levels of the blocks that it doesn't name.
        """
        told, size, scales = self.told, self.sizes.tolist(), self._scales(step)
        cells = {m: math.prod(self.shape(m)) for m in self.margins}
        total, every = told.get((), {}), Counter[tuple[float, Fraction]]()
        for held, share in total.items():
            every[share, scales[held]] += cells[held]

        def error(margin: tuple[int, ...]) -> NoiseSum:
            whole = math.prod(self.shape(margin))
            terms = Counter({(share / whole, scale): n for (share, scale), n in every.items()})
            parts = [part for n in range(len(margin) + 1) for part in combinations(margin, n) if part in told]
            for held in dict.fromkeys(chain.from_iterable(told[part] for part in parts if part)):
                terms[total.get(held, 0.0) / whole, scales[held]] -= cells[held]
                shared = [k for k in held if k in margin]
                within = [(part, told[part][held]) for part in parts if held in told[part]]
                for alike in product((True, False), repeat=len(shared)):
                    own = {k: _share(size[k]) if same else -1 / size[k] for k, same in zip(shared, alike, strict=True)}
                    weight = sum(w * math.prod(own[k] if k in p else 1 / size[k] for k in margin) for p, w in within)
                    n = math.prod(1 if same else size[k] - 1 for k, same in zip(shared, alike, strict=True))
                    terms[weight, scales[held]] += n * math.prod(size[k] for k in held if k not in margin)
            found = (Terms(weight, n, scale, self.law) for (weight, scale), n in terms.items() if weight and n)
            return NoiseSum(tuple(found))

        return error

    def cell_variance(self, margin: tuple[int, ...], variances: dict[tuple[int, ...], float]) -> float:
        """Return the variance of a cell of a one- or two-way margin, from those of the noise on measured margins."""
        total = 0.0
        for size in range(len(margin) + 1):
            for part in combinations(margin, size):
                rest = math.prod(int(self.sizes[k]) for k in margin if k not in part)
                share = math.prod(_share(float(self.sizes[k])) for k in part)
                total += variances.get(part, 0.0) * share / rest**2
        return total


def _share(size: float) -> float:
    return (size - 1) / size


def _log_theta(ratio: float) -> float:
    """Return an upper bound of the log of 1 + 2 sum over k of q^(k^2), where q = exp(-pi^2 ratio)."""
    q = math.exp(-(math.pi**2) * ratio)
    return math.log1p(2 * q / (1 - q))


def difference(counts: IntArray, axes: int) -> IntArray:
    """Return the differences of neighbouring levels along each of the last axes."""
    found = counts
    for axis in range(1, axes + 1):
        found = np.diff(found, axis=-axis)
    return found


@numba.njit(cache=True)
def pair_counts(codes: NDArray[np.int32], counts: IntArray, offsets: IntArray) -> IntArray:
    """Return how many records have each two levels, shape (levels, levels) over the levels of all blocks."""
    found = np.zeros((offsets[-1], offsets[-1]), dtype=np.int64)
    n, d = codes.shape
    for r in range(n):
        for i in range(d):
            row = offsets[i] + codes[r, i]
            for j in range(i, d):
                found[row, offsets[j] + codes[r, j]] += counts[r]
    return found


def squared_norm(sizes: IntArray, public: BoolArray, weights: dict[tuple[int, ...], int]) -> Fraction:
    """Return an upper bound of the squared norm of what a record does, in units of the noise; exact under add-remove.

    Adding a record: the sum over margins of weight times the product of f = (L - 1) / L. Replacing one: twice the
    largest value, over which blocks change, of sum_i a_i D_i - D'QD / 2, bounded by a certificate
    (``docs/proofs/pairs.md``, theorem 2). Of margins of three blocks counts are shown, of which it changes two by 1.
    """
    f = [Fraction(int(size) - 1, int(size)) for size in sizes]
    third = Fraction(sum(weight for margin, weight in weights.items() if len(margin) == 3), WEIGHT)
    if () in weights:
        return third + sum(Fraction(w, WEIGHT) * math.prod(f[k] for k in m) for m, w in weights.items() if len(m) < 3)
    free = np.flatnonzero(~public)
    linear = [Fraction(weights.get((int(i),), 0)) for i in range(len(sizes))]
    curved = np.zeros((len(sizes), len(sizes)), dtype=np.int64)
    for margin, weight in weights.items():
        if len(margin) == 2:
            i, j = margin
            linear[i] += weight * f[j]
            linear[j] += weight * f[i]
            curved[i, j] = curved[j, i] = weight
    bound = quadratic_bound(tuple(math.ceil(linear[i]) for i in free), curved[np.ix_(free, free)].tobytes())
    return 2 * bound / WEIGHT + 2 * third


@lru_cache(maxsize=16)
def quadratic_bound(linear: tuple[int, ...], entries: bytes) -> Fraction:
    """Return an upper bound of the maximum over D in {0, 1}^d of linear'D - D'QD / 2, proved in whole numbers.

    ``entries`` are those of Q, as int64.

    For any u with P = Q + diag(u) positive semidefinite and any x the maximum is at most x'Px / 2 + sum_i max(0,
    linear_i + u_i / 2 - (Px)_i). Numerics choose u and x; the inequality is evaluated exactly.
    """
    size = len(linear)
    curved = np.frombuffer(entries, dtype=np.int64).reshape(size, size)
    q = curved.astype(float)
    direction = np.abs(eigh(q)[1][:, -1]) + 1e-3 / math.sqrt(size)
    lowest = max(-float(eigh(q / np.outer(direction, direction), eigvals_only=True)[0]), 0.0)
    raised = lowest * direction**2
    for slack in 10.0 ** np.arange(-9, 3):
        room = slack * (raised + q.max(initial=1.0))
        u = [math.ceil(value) for value in raised + room]
        whole = curved.astype(object) + np.diag(np.array(u, dtype=object))
        if _positive(whole, room / 2):
            break
    else:
        raise InputError("the price of these columns can't be bounded; leave some out")
    p, a = whole.astype(float), np.array(linear, dtype=float) + np.array(u, dtype=float) / 2
    scale = max(float(np.abs(p).max()), 1.0)
    found = minimize(
        lambda x: ((x @ p @ x / 2 - a @ x) / scale, (p @ x - a) / scale),
        np.full(size, 0.5),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, 1)] * size,
    )
    x = [Fraction(round(value * 2**20), 2**20) for value in found.x]
    px = [sum((whole[i, k] * x[k] for k in range(size)), Fraction(0)) for i in range(size)]
    rest = [max(Fraction(0), linear[i] + Fraction(u[i], 2) - px[i]) for i in range(size)]
    return sum((x[i] * px[i] for i in range(size)), Fraction(0)) / 2 + sum(rest, Fraction(0))


def _positive(matrix: NDArray[np.object_], room: FloatArray) -> bool:
    """Prove that a symmetric matrix of whole numbers is positive semidefinite; False if this proof fails.

    With L near a Cholesky factor of matrix - diag(room), matrix - L L' is diagonally dominant, checked exactly.
    """
    try:
        factor = cholesky(matrix.astype(float) - np.diag(room), lower=True)
    except np.linalg.LinAlgError:
        return False
    rounded = np.array([[round(value * 2**20) for value in row] for row in factor.tolist()], dtype=object)
    rest = matrix * 2**40 - rounded @ rounded.T
    diagonal = np.diagonal(rest)
    return bool(all(2 * own >= row for own, row in zip(diagonal, np.abs(rest).sum(axis=1), strict=True)))
