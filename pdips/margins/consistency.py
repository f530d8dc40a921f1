"""Counts on a tree made consistent by generalised least squares, nonnegative, and whole.

All of it is post-processing of noisy counts: it reads no record and costs nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.households import SIZE, Members
from pdips.data.table import Table
from pdips.data.totals import KnownTable
from pdips.errors import InputError

if TYPE_CHECKING:
    from pdips.margins.residuals import ResidualDesign

Codes = NDArray[np.int32]

LEAST = 1e-4  # Of a level's share, left at least in households whose members' values may all be missing


def consistent(
    parents: Sequence[IntArray], observed: Sequence[ArrayLike], variances: Sequence[FloatArray]
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Return the generalised least squares estimates of all counts of a tree, given that children add up, by layer.

    Of noisy counts by layer with their variances: 0 for an exact count, infinity for a node that was not observed and
    has children. ``parents`` holds, for each layer but the first, the index of each node's parent; nodes without
    children are leaves, wherever they are. Also returns the variances of the estimates. Where an exact node has only
    exact descendants, these decide. Two passes over the tree: docs/proofs/steps.md. With equal fan-out and equal
    variances this is Hay, Rastogi, Miklau and Suciu (2010), theorem 3.
    """
    z, s = ([np.array(each, dtype=np.float64) for each in both] for both in (observed, variances))
    sums, sum_variances = list[FloatArray](), list[FloatArray]()
    for layer in range(len(parents) - 1, -1, -1):
        n_above = len(z[layer])
        total = np.bincount(parents[layer], weights=z[layer + 1], minlength=n_above)
        spread = np.bincount(parents[layer], weights=s[layer + 1], minlength=n_above)
        inner = np.bincount(parents[layer], minlength=n_above) > 0
        _pool(z[layer], s[layer], total, spread, inner)
        sums.insert(0, total)
        sum_variances.insert(0, spread)
    x, v = [z[0]], [s[0]]
    for layer, parent in enumerate(parents):
        spread = sum_variances[layer]
        of_parent = spread[parent]
        share = np.divide(s[layer + 1], of_parent, out=np.zeros_like(of_parent), where=of_parent > 0)
        x.append(z[layer + 1] + share * (x[layer] - sums[layer])[parent])
        v.append(s[layer + 1] * (1 - share) + share**2 * v[layer][parent])
    return x, v


def _pool(z: FloatArray, s: FloatArray, total: FloatArray, spread: FloatArray, inner: BoolArray) -> None:
    """Combine, in place, each inner node's own count with the sum of its children, by inverse variance."""
    unseen = inner & (np.isinf(s) | (spread == 0))
    pooled = inner & ~unseen
    own = np.where(pooled, s, 0.0)
    weight = np.divide(spread, own + spread, out=np.zeros_like(s), where=pooled)
    np.copyto(z, weight * z + (1 - weight) * total, where=pooled)
    np.copyto(s, weight * own, where=pooled)
    np.copyto(z, total, where=unseen)
    np.copyto(s, spread, where=unseen)


def nonnegative(
    parents: Sequence[IntArray], estimates: Sequence[FloatArray], weights: Sequence[FloatArray]
) -> FloatArray:
    """Return nonnegative cells that add up along the tree: layer by layer, the nearest ones to the estimates.

    Among siblings the squared distance, divided by ``weights``, is least given their parent's value, so that the upper
    layers, which are the more accurate, are kept.
    """
    value = np.maximum(estimates[0], 0.0)
    for parent, estimate, weight in zip(parents, estimates[1:], weights[1:], strict=True):
        value = simplex_projection(estimate, value, parent, weight)
    return value


def simplex_projection(
    values: FloatArray, totals: FloatArray, group: IntArray | None = None, weights: FloatArray | None = None
) -> FloatArray:
    """Return the nearest nonnegative numbers that add up to given totals: max(value - shift * weight, 0).

    Michelot (1986), for many simplexes at once. ``totals``, shape (groups,), are those of the ``group`` of each of the
    ``values``, shape (numbers,); left out, there is one. Squared distances are divided by ``weights``; 0 is for numbers
    that stay as they are, or become 0 if they are negative.
    """
    group = np.zeros(len(values), dtype=np.int64) if group is None else group
    weights = np.ones(len(values)) if weights is None else weights
    fixed = weights <= 0
    result = np.where(fixed, np.maximum(values, 0.0), 0.0)
    rest = np.maximum(totals - np.bincount(group, weights=result, minlength=len(totals)), 0.0)
    active = np.flatnonzero(~fixed)
    while True:
        place, guess, scale = group[active], values[active], weights[active]
        spread = np.bincount(place, weights=scale, minlength=len(totals))
        excess = np.bincount(place, weights=guess, minlength=len(totals)) - rest
        shift = np.divide(excess, spread, out=np.zeros_like(excess), where=spread > 0)
        moved = guess - shift[place] * scale
        keep = moved > 0
        if keep.all():
            result[active] = moved
            return result
        active = active[keep]


def round_cells(
    parents: Sequence[IntArray], values: FloatArray, n_records: int, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Round cells to whole records at random, without bias, so that every node of the tree moves by less than one.

    Siblings are put in random order at every layer, and one systematic sample is taken along the cells: the count of
    any run of neighbouring cells, hence of any node, is its value rounded up or down. The nonnegative values are scaled
    to add up to ``n_records``. Returns the cells that are not empty, and how many records each holds.
    """
    rank = rng.permutation(int(parents[0].max()) + 1).astype(np.float64)
    for parent in parents[:-1]:
        order = np.argsort(rank[parent] + rng.random(len(parent)))
        rank = np.empty(len(parent))
        rank[order] = np.arange(len(parent))
    filled = np.flatnonzero(values > 0)
    if not len(filled):
        return filled, filled
    filled = filled[np.argsort(rank[parents[-1][filled]] + rng.random(len(filled)))]
    reached = np.cumsum(values[filled])
    reached *= n_records / reached[-1]
    nearest = np.rint(reached)
    reached = np.where(np.abs(reached - nearest) < 1e-6, nearest, reached)
    count = np.diff(np.floor(reached + rng.random()), prepend=0.0).astype(np.int64)
    return filled[count > 0], count[count > 0]


def draw_cells(group: IntArray, values: FloatArray, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Draw records independently of each other, of each group as many as its cells add up to.

    ``group`` numbers the group of each cell and never falls. Returns what :func:`round_cells` does.
    """
    ends = np.cumsum(values)
    reached = ends[np.append(np.flatnonzero(np.diff(group)), len(group) - 1)]
    first, width = np.concatenate([[0.0], reached[:-1]]), np.diff(reached, prepend=0.0)
    each = np.rint(width).astype(np.int64)
    places = np.repeat(first, each) + rng.random(each.sum()) * np.repeat(width, each)
    places = np.minimum(
        places, np.nextafter(np.repeat(reached, each), 0)
    )  # a sum that is rounded up stays in its group
    return np.unique(np.searchsorted(ends, places, side="right"), return_counts=True)


def earlier(values: NDArray[np.integer]) -> IntArray:
    """Return of each value how many equal ones come before it."""
    order = np.argsort(values, kind="stable")
    found, ordered = np.empty(len(values), dtype=np.int64), values[order]
    found[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return found


def rounded_counts(shares: FloatArray, n: int) -> IntArray:
    """Return whole numbers that add up to n, nearest to shares of it by largest remainders."""
    exact = shares / shares.sum() * n
    found = np.floor(exact).astype(np.int64)
    found[np.argsort(found - exact)[: n - found.sum()]] += 1
    return found


def levelled(
    own: NDArray[np.integer], counts: IntArray, gain: Callable[[IntArray, int], FloatArray], rng: np.random.Generator
) -> NDArray[np.integer]:
    """Return levels of which as few as can be were exchanged, the likeliest ones, so that their counts are these.

    ``gain`` says of some places by how much the log density rises with another level, -inf where it can't occur.
    """
    own = own.copy()
    for level in np.flatnonzero(counts > np.bincount(own, minlength=len(counts))):
        present = np.bincount(own, minlength=len(counts))
        many = np.flatnonzero((present > counts)[own])
        drawn = gain(many, int(level)) - np.log(-np.log(rng.random(len(many))))
        ranked = many[np.argsort(-drawn)][: np.isfinite(drawn).sum()]
        spare, missing = present - counts, counts[level] - present[level]
        own[ranked[earlier(own[ranked]) < spare[own[ranked]]][:missing]] = level
    return own


def meet(
    tables: Sequence[KnownTable],
    codes: dict[str, IntArray],
    gain: Callable[[IntArray, str, int], FloatArray],
    rng: np.random.Generator,
) -> None:
    """Exchange levels of records, in place, until the counts of public totals are theirs, rounded.

    Totals come in an order in which each shares columns with one of those before it at most. So those columns are met,
    and stay; the others are met one after the other, within each combination of what has been met.
    """
    done = set[str]()
    for table in tables:
        held = sorted(done & set(table.columns), key=table.columns.index)
        order = [*held, *(name for name in table.columns if name not in done)]
        shares, sizes = table.margin(order), [table.shares.shape[table.columns.index(name)] for name in order]
        wanted, before = np.zeros_like(shares, dtype=np.int64), _cells(codes, held, sizes)
        for cell, n in enumerate(np.bincount(before, minlength=1)):
            place = np.unravel_index(cell, sizes[: len(held)]) if held else ()
            if n and shares[place].sum() > 0:
                wanted[place] = rounded_counts(shares[place].ravel(), int(n)).reshape(shares[place].shape)
        for k in range(len(held), len(order)):
            within = _cells(codes, order[:k], sizes)
            counts = wanted.sum(axis=tuple(range(k + 1, len(order)))).reshape(-1, sizes[k])
            for cell in np.unique(within):
                rows = np.flatnonzero(within == cell)
                if counts[cell].sum() == len(rows):

                    def own(some: IntArray, level: int, name: str = order[k], rows: IntArray = rows) -> FloatArray:
                        return gain(rows[some], name, level)

                    codes[order[k]][rows] = levelled(codes[order[k]][rows], counts[cell], own, rng)
        done |= set(order)


def _cells(codes: dict[str, IntArray], names: Sequence[str], sizes: Sequence[int]) -> IntArray:
    if not names:
        return np.zeros(len(next(iter(codes.values()))), dtype=np.int64)
    return np.ravel_multi_index(tuple(codes[name] for name in names), sizes[: len(names)]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class LevelGroups:
    """Which levels a record may take: those of the group that its public columns or its number of members fix.

    ``sizes``, shape (blocks,), and ``group``, shape (levels,), are the number of levels of each block and the group of
    each level. ``rows``, shape (records, blocks), has what is fixed for each record in the order of the public columns,
    -1 for all levels; or one row for all records. ``kinds``, shape (kinds, blocks), has that for households of 0, 1,
    ... members, whose number is in block ``lead``; otherwise one row. ``mass`` and ``given``, shapes (kinds,) and
    (kinds, levels), are the share of each kind, and of levels in it.
    """

    sizes: IntArray
    group: Codes
    rows: Codes
    kinds: Codes
    lead: int = 0
    mass: FloatArray = field(default_factory=lambda: np.ones(1))
    given: FloatArray = field(default_factory=lambda: np.ones((1, 1)))

    @classmethod
    def one(cls, sizes: IntArray) -> "LevelGroups":
        """Return one group of all levels of each block."""
        none = np.zeros((1, len(sizes)), dtype=np.int32)
        return cls(sizes, np.zeros(sizes.sum(), dtype=np.int32), none, none)

    def of(self, n: int, rng: np.random.Generator) -> Codes:
        """Return what is fixed for so many chains: all rows, or some of them at random."""
        if n == len(self.rows):
            return self.rows
        return np.ascontiguousarray(self.rows[rng.integers(0, len(self.rows), n)])

    def drawn(self, n: int, rng: np.random.Generator, *, even: bool) -> "LevelGroups":
        """Return the groups with rows for so many records, of each kind by its share: rounded, or by chance."""
        if len(self.kinds) == 1:
            return self
        many = rounded_counts(self.mass, max(n, 1)) if even else rng.multinomial(max(n, 1), self.mass)
        return replace(self, rows=self.kinds[rng.permutation(np.repeat(np.arange(len(many)), many))])

    def allowed(self, group: int) -> BoolArray:
        """Return which levels a record may take that has this fixed."""
        return np.asarray((self.group == group) | (group < 0))

    def kept(self, fixed: Codes) -> Iterator[tuple[int, int]]:
        """Yield each block with what is fixed in it, but nothing beside public columns."""
        for block in range(len(self.sizes) if len(self.rows) == 1 or len(self.kinds) > 1 else 0):
            yield from ((block, group) for group in np.unique(fixed[:, block]).tolist())

    def levels(self, block: int, group: int) -> tuple[IntArray, FloatArray]:
        """Return the levels of a block that records may take that have this fixed, and their shares there."""
        end = int(self.sizes[: block + 1].sum())
        own = slice(end - int(self.sizes[block]), end)
        held = np.flatnonzero(self.allowed(group)[own])
        return held, self.given[np.argmax(self.kinds[:, block] == group), own][held]

    def with_shares(self, shares: FloatArray) -> "LevelGroups":
        """Return the groups with these shares of levels; those that can't occur in a kind have next to none of it.

        A kind that leaves one level open takes it whole. Of that level, other kinds have what is left.
        """
        if len(self.kinds) == 1:
            return replace(self, given=shares[None])
        end, fixed = int(self.sizes[: self.lead + 1].sum()), np.repeat(self.kinds, self.sizes, axis=1)
        led, is_open = slice(end - int(self.sizes[self.lead]), end), (fixed < 0) | (fixed == self.group)
        mass = is_open[:, led] @ shares[led]
        sole = is_open & (self._over(is_open) == 1)
        own = np.where(is_open, np.maximum(shares - mass @ sole, LEAST * shares), LEAST**2 * shares)
        return replace(self, mass=mass, given=own / self._over(own))

    def _over(self, values: FloatArray | BoolArray) -> FloatArray:
        """Return sums over the levels of each block, shape (kinds, levels)."""
        starts = np.cumsum(self.sizes) - self.sizes
        return np.repeat(np.add.reduceat(values.astype(float), starts, axis=1), self.sizes, axis=1)

    @property
    def shares(self) -> FloatArray:
        return self.mass @ self.given


def groups_of(design: "ResidualDesign", public: Table | None, members: Members | None = None) -> LevelGroups:
    """Return which levels of each block go with which values of the public columns, or with how many members.

    Raises
    ------
    InputError
        If rules tie columns of members such that levels are no groups.
    """
    if members is not None:
        return _of_members(design, members)
    group, rows = np.zeros(design.offsets[-1], dtype=np.int32), [np.zeros(1, dtype=np.int32)] * len(design.blocks)
    known = set(design.domain.public.tolist())
    for k, block in enumerate(design.blocks):
        of_block = [place for place, column in enumerate(block.columns) if column in known]
        if of_block and public is not None:
            sizes = [block.sizes[place] for place in of_block]
            levels = np.ravel_multi_index(tuple(block.levels[:, of_block].T), sizes)
            group[design.offsets[k] : design.offsets[k + 1]] = levels
            codes = [public.codes[design.domain.names[block.columns[place]]] for place in of_block]
            rows[k] = np.ravel_multi_index(tuple(codes), sizes).astype(np.int32)
    one, fixed = LevelGroups.one(design.sizes), np.column_stack(np.broadcast_arrays(*rows)).astype(np.int32)
    return replace(one, group=group, rows=fixed)


def _of_members(design: "ResidualDesign", members: Members) -> LevelGroups:
    """Return which levels of each block households of 0, 1, ... members may have."""
    names, n_kinds, lead = design.domain.names, members.most + 1, 0
    group, kinds = np.full(design.offsets[-1], -2, dtype=np.int32), np.zeros((n_kinds, len(design.blocks)), np.int32)
    for k, block in enumerate(design.blocks):
        is_open = np.ones((n_kinds, block.n_levels), dtype=bool)
        for column, levels in zip(block.columns, block.levels.T, strict=True):
            place, may_miss = members.places.get(names[column], (0, True))
            there = (np.arange(n_kinds) >= place)[:, None]
            if names[column] == SIZE:
                lead, is_open = k, is_open & (np.arange(n_kinds)[:, None] == levels)
            elif place:
                missing = levels == design.domain.sizes[column] - 1
                is_open &= np.where(there, may_miss | ~missing, missing)
        whole = is_open.all(axis=1)
        classes, of_kind = np.unique(is_open[~whole], axis=0, return_inverse=True)
        if (classes.sum(axis=0) > 1).any() or not is_open.any(axis=1).all():
            tied = ", ".join(names[column] for column in block.columns)
            raise InputError(f"rules on {tied} don't say for each number of members which levels there are")
        kinds[whole, k], kinds[~whole, k] = -1, of_kind.ravel()
        held = classes.any(axis=0)
        group[design.offsets[k] : design.offsets[k + 1]][held] = classes.argmax(axis=0)[held] if held.any() else 0
    return LevelGroups(design.sizes, group, kinds[:1], kinds, lead)
