"""Counts on a tree made consistent by generalised least squares, nonnegative, and
whole.

All of it is post-processing of noisy counts: it reads no record and costs nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.households import SIZE, Members
from pdips.data.table import Table
from pdips.data.totals import KnownTable
from pdips.errors import InputError

if TYPE_CHECKING:
    from pdips.margins.residuals import ColumnBlock, ResidualDesign

Codes = NDArray[np.int32]

# Of a level's share, left at least in households whose members' values may all be
# missing
LEAST = 1e-4

TRIED_FOR_EACH = 50
ALL_TRIED = 2_048
"""Of places whose level may be exchanged, how many are tried for each level that is
missing, and up to how many all are: of a chunk of a large set most are exchanged for
none (``benchmarks.scale``, ``benchmarks.worth``).
"""


def consistent(
    parents: Sequence[IntArray],
    observed: Sequence[ArrayLike],
    variances: Sequence[FloatArray],
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Return the generalised least squares estimates of all counts of a tree, given
    that children add up, by layer.

    Of noisy counts by layer with their variances: 0 for an exact count, infinity for a
    node that was not observed and has children. ``parents`` holds, for each layer but
    the first, the index of each node's parent; nodes without children are leaves,
    wherever they are. Also returns the variances of the estimates. Where an exact node
    has only exact descendants, these decide. Two passes over the tree:
    docs/proofs/steps.md. With equal fan-out and equal variances this is Hay, Rastogi,
    Miklau and Suciu (2010), theorem 3.
    """
    z = [np.array(counts, dtype=np.float64) for counts in observed]
    s = [np.array(own, dtype=np.float64) for own in variances]
    sums = list[FloatArray]()
    sum_variances = list[FloatArray]()
    for layer in range(len(parents) - 1, -1, -1):
        parent = parents[layer]
        n_above = len(z[layer])
        total = np.bincount(parent, weights=z[layer + 1], minlength=n_above)
        spread = np.bincount(parent, weights=s[layer + 1], minlength=n_above)
        inner = np.bincount(parent, minlength=n_above) > 0
        _pool(z[layer], s[layer], total, spread, inner)
        sums.insert(0, total)
        sum_variances.insert(0, spread)
    x = [z[0]]
    v = [s[0]]
    for layer, parent in enumerate(parents):
        own = s[layer + 1]
        siblings = sum_variances[layer][parent]
        none = np.zeros_like(siblings)
        share = np.divide(own, siblings, out=none, where=siblings > 0)
        left = x[layer] - sums[layer]
        x.append(z[layer + 1] + share * left[parent])
        from_parent = share**2 * v[layer][parent]
        v.append(own * (1 - share) + from_parent)
    return x, v


def _pool(
    z: FloatArray,
    s: FloatArray,
    total: FloatArray,
    spread: FloatArray,
    inner: BoolArray,
) -> None:
    """Combine, in place, each inner node's own count with the sum of its children, by
    inverse variance.
    """
    unseen = inner & (np.isinf(s) | (spread == 0))
    pooled = inner & ~unseen
    own = np.where(pooled, s, 0.0)
    none = np.zeros_like(s)
    weight = np.divide(spread, own + spread, out=none, where=pooled)
    average = weight * z + (1 - weight) * total
    np.copyto(z, average, where=pooled)
    np.copyto(s, weight * own, where=pooled)
    np.copyto(z, total, where=unseen)
    np.copyto(s, spread, where=unseen)


def nonnegative(
    parents: Sequence[IntArray],
    estimates: Sequence[FloatArray],
    weights: Sequence[FloatArray],
) -> FloatArray:
    """Return nonnegative cells that add up along the tree: layer by layer, the nearest
    ones to the estimates.

    Among siblings the squared distance, divided by ``weights``, is least given their
    parent's value, so that the upper layers, which are the more accurate, are kept.
    """
    value = np.maximum(estimates[0], 0.0)
    layers = zip(parents, estimates[1:], weights[1:], strict=True)
    for parent, estimate, weight in layers:
        value = simplex_projection(estimate, value, parent, weight)
    return value


def simplex_projection(
    values: FloatArray,
    totals: FloatArray,
    group: IntArray | None = None,
    weights: FloatArray | None = None,
) -> FloatArray:
    """Return the nearest nonnegative numbers that add up to given totals: max(value -
    shift * weight, 0).

    Michelot (1986), for many simplexes at once. ``totals``, shape (groups,), are those
    of the ``group`` of each of the ``values``, shape (numbers,); left out, there is
    one. Squared distances are divided by ``weights``; 0 is for numbers that stay as
    they are, or become 0 if they are negative.
    """
    if group is None:
        group = np.zeros(len(values), dtype=np.int64)
    if weights is None:
        weights = np.ones(len(values))
    fixed = weights <= 0
    result = np.where(fixed, np.maximum(values, 0.0), 0.0)
    n_groups = len(totals)
    of_fixed = np.bincount(group, weights=result, minlength=n_groups)
    rest = np.maximum(totals - of_fixed, 0.0)
    active = np.flatnonzero(~fixed)
    while True:
        own = group[active]
        guess = values[active]
        scale = weights[active]
        spread = np.bincount(own, weights=scale, minlength=n_groups)
        excess = np.bincount(own, weights=guess, minlength=n_groups) - rest
        shift = np.divide(excess, spread, out=np.zeros_like(excess), where=spread > 0)
        moved = guess - shift[own] * scale
        keep = moved > 0
        if keep.all():
            result[active] = moved
            return result
        active = active[keep]


def round_cells(
    parents: Sequence[IntArray],
    values: FloatArray,
    n_records: int,
    rng: np.random.Generator,
) -> tuple[IntArray, IntArray]:
    """Round cells to whole records at random, without bias, so that every node of the
    tree moves by less than one.

    Siblings are put in random order at every layer, and one systematic sample is taken
    along the cells: the count of any run of neighbouring cells, hence of any node, is
    its value rounded up or down. The nonnegative values are scaled to add up to
    ``n_records``. Returns the cells that are not empty, and how many records each
    holds.
    """
    n_top = int(parents[0].max()) + 1
    rank = rng.permutation(n_top).astype(np.float64)
    for parent in parents[:-1]:
        n_nodes = len(parent)
        order = np.argsort(rank[parent] + rng.random(n_nodes))
        rank = np.empty(n_nodes)
        rank[order] = np.arange(n_nodes)
    filled = np.flatnonzero(values > 0)
    if not len(filled):
        return filled, filled
    in_order = rank[parents[-1][filled]] + rng.random(len(filled))
    filled = filled[np.argsort(in_order)]
    reached = np.cumsum(values[filled])
    reached *= n_records / reached[-1]
    nearest = np.rint(reached)
    is_whole = np.abs(reached - nearest) < 1e-6
    reached = np.where(is_whole, nearest, reached)
    ends = np.floor(reached + rng.random())
    count = np.diff(ends, prepend=0.0).astype(np.int64)
    return filled[count > 0], count[count > 0]


def draw_cells(
    group: IntArray, values: FloatArray, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Draw records independently of each other, of each group as many as its cells add
    up to.

    ``group`` numbers the group of each cell and never falls. Returns what
    :func:`round_cells` does.
    """
    ends = np.cumsum(values)
    inner = np.flatnonzero(np.diff(group))
    reached = ends[np.append(inner, len(group) - 1)]
    first = np.concatenate([[0.0], reached[:-1]])
    width = np.diff(reached, prepend=0.0)
    n_drawn = np.rint(width).astype(np.int64)
    within = rng.random(n_drawn.sum()) * np.repeat(width, n_drawn)
    places = np.repeat(first, n_drawn) + within
    # a sum that is rounded up stays in its group
    last = np.nextafter(reached, 0)
    places = np.minimum(places, np.repeat(last, n_drawn))
    return np.unique(np.searchsorted(ends, places, side="right"), return_counts=True)


def earlier(values: NDArray[np.integer]) -> IntArray:
    """Return of each value how many equal ones come before it."""
    order = np.argsort(values, kind="stable")
    n_before = np.empty(len(values), dtype=np.int64)
    ordered = values[order]
    n_before[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return n_before


def rounded_counts(shares: FloatArray, n: int) -> IntArray:
    """Return whole numbers that add up to n, nearest to shares of it by largest
    remainders.
    """
    exact = shares / shares.sum() * n
    counts = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(counts - exact)
    counts[by_remainder[: n - counts.sum()]] += 1
    return counts


def levelled(
    own: NDArray[np.integer],
    counts: IntArray,
    gain: Callable[[IntArray, int], FloatArray],
    rng: np.random.Generator,
) -> NDArray[np.integer]:
    """Return levels of which as few as can be were exchanged, the likeliest ones, so
    that their counts are these.

    ``gain`` says of some places by how much the log density rises with another level,
    -inf where it can't occur. Of many places only some are tried, drawn by chance,
    unless these are too few.
    """
    own = own.copy()
    n_levels = len(counts)
    for level in np.flatnonzero(counts > np.bincount(own, minlength=n_levels)):
        present = np.bincount(own, minlength=n_levels)
        spare = present - counts
        n_missing = -spare[level]
        many = np.flatnonzero((spare > 0)[own])
        n_tried = max(TRIED_FOR_EACH * n_missing, ALL_TRIED)
        moved = many[:0]
        if n_tried < len(many):
            some = rng.choice(many, n_tried, replace=False)
            moved = _likeliest(own, some, spare, gain(some, int(level)), rng)
        if len(moved) < n_missing:
            moved = _likeliest(own, many, spare, gain(many, int(level)), rng)
        own[moved[:n_missing]] = level
    return own


def _likeliest(
    own: NDArray[np.integer],
    some: IntArray,
    spare: IntArray,
    rise: FloatArray,
    rng: np.random.Generator,
) -> IntArray:
    """Return places whose level may be exchanged, in the order of draws without
    replacement by a log density: no more of each level than it can spare.
    """
    drawn = rise - np.log(-np.log(rng.random(len(some))))  # Gumbel
    n_possible = np.isfinite(drawn).sum()
    ranked = some[np.argsort(-drawn)][:n_possible]
    from_level = own[ranked]
    return np.asarray(ranked[earlier(from_level) < spare[from_level]])


def meet(
    tables: Sequence[KnownTable],
    codes: dict[str, IntArray],
    gain: Callable[[IntArray, str, int], FloatArray],
    rng: np.random.Generator,
) -> None:
    """Exchange levels of records, in place, until the counts of public totals are
    theirs, rounded.

    Totals come in an order in which each shares columns with one of those before it at
    most. So those columns are met, and stay; the others are met one after the other,
    within each combination of what has been met.
    """
    done = set[str]()
    for table in tables:
        held = sorted(done & set(table.columns), key=table.columns.index)
        order = [*held, *(name for name in table.columns if name not in done)]
        sizes = [table.shares.shape[table.columns.index(name)] for name in order]
        wanted = _wanted(table.margin(order), codes, held, sizes)
        for k in range(len(held), len(order)):
            within = _cells(codes, order[:k], sizes)
            later = tuple(range(k + 1, len(order)))
            counts = wanted.sum(axis=later).reshape(-1, sizes[k])
            own = codes[order[k]]
            for cell in np.unique(within):
                rows = np.flatnonzero(within == cell)
                if counts[cell].sum() == len(rows):
                    gain_here = partial(_gain_of_rows, gain, rows, order[k])
                    own[rows] = levelled(own[rows], counts[cell], gain_here, rng)
        done |= set(order)


def _gain_of_rows(
    gain: Callable[[IntArray, str, int], FloatArray],
    rows: IntArray,
    name: str,
    some: IntArray,
    level: int,
) -> FloatArray:
    return gain(rows[some], name, level)


def _wanted(
    shares: FloatArray,
    codes: dict[str, IntArray],
    held: Sequence[str],
    sizes: Sequence[int],
) -> IntArray:
    """Return whole counts by these shares that agree with those of the columns that
    are met already.
    """
    wanted = np.zeros_like(shares, dtype=np.int64)
    n_records = np.bincount(_cells(codes, held, sizes), minlength=1)
    for cell, n in enumerate(n_records):
        at = np.unravel_index(cell, sizes[: len(held)]) if held else ()
        own = np.asarray(shares[at])
        if n and own.sum() > 0:
            counts = rounded_counts(own.ravel(), int(n))
            wanted[at] = counts.reshape(own.shape)
    return wanted


def _cells(
    codes: dict[str, IntArray], names: Sequence[str], sizes: Sequence[int]
) -> IntArray:
    if not names:
        return np.zeros(len(next(iter(codes.values()))), dtype=np.int64)
    own = tuple(codes[name] for name in names)
    return np.ravel_multi_index(own, sizes[: len(names)]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class LevelGroups:
    """Which levels a record may take: those of the group that its public columns or its
    number of members fix.

    ``sizes``, shape (blocks,), and ``group``, shape (levels,), are the number of levels
    of each block and the group of each level. ``rows``, shape (records, blocks), has
    what is fixed for each record in the order of the public columns, -1 for all levels;
    or one row for all records. ``kinds``, shape (kinds, blocks), has that for
    households of 0, 1, ... members, whose number is in block ``lead``; otherwise one
    row. ``mass`` and ``given``, shapes (kinds,) and (kinds, levels), are the share of
    each kind, and of levels in it.
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
        """Return what is fixed for so many chains: all rows, or some of them at
        random.
        """
        if n == len(self.rows):
            return self.rows
        drawn = rng.integers(0, len(self.rows), n)
        return np.ascontiguousarray(self.rows[drawn])

    def drawn(self, n: int, rng: np.random.Generator, *, even: bool) -> "LevelGroups":
        """Return the groups with rows for so many records, of each kind by its share:
        rounded, or by chance.
        """
        if len(self.kinds) == 1:
            return self
        n = max(n, 1)
        counts = rounded_counts(self.mass, n) if even else rng.multinomial(n, self.mass)
        of_kind = np.repeat(np.arange(len(counts)), counts)
        kinds = rng.permutation(of_kind)
        return replace(self, rows=self.kinds[kinds])

    def allowed(self, group: int) -> BoolArray:
        """Return which levels a record may take that has this fixed."""
        return np.asarray((self.group == group) | (group < 0))

    def kept(self, fixed: Codes) -> Iterator[tuple[int, int]]:
        """Yield each block with what is fixed in it, but nothing beside public
        columns.
        """
        if len(self.rows) > 1 and len(self.kinds) == 1:
            return
        for block in range(len(self.sizes)):
            for group in np.unique(fixed[:, block]).tolist():
                yield block, group

    def levels(self, block: int, group: int) -> tuple[IntArray, FloatArray]:
        """Return the levels of a block that records may take that have this fixed, and
        their shares there.
        """
        own = self._levels_of(block)
        held = np.flatnonzero(self.allowed(group)[own])
        kind = np.argmax(self.kinds[:, block] == group)
        return held, self.given[kind, own][held]

    def _levels_of(self, block: int) -> slice:
        end = int(self.sizes[: block + 1].sum())
        return slice(end - int(self.sizes[block]), end)

    def with_shares(self, shares: FloatArray) -> "LevelGroups":
        """Return the groups with these shares of levels; those that can't occur in a
        kind have next to none of it.

        A kind that leaves one level open takes it whole. Of that level, other kinds
        have what is left.
        """
        if len(self.kinds) == 1:
            return replace(self, given=shares[None])
        fixed = np.repeat(self.kinds, self.sizes, axis=1)
        led = self._levels_of(self.lead)
        is_open = (fixed < 0) | (fixed == self.group)
        mass = is_open[:, led] @ shares[led]
        is_sole = is_open & (self._over(is_open) == 1)
        left = np.maximum(shares - mass @ is_sole, LEAST * shares)
        own = np.where(is_open, left, LEAST**2 * shares)
        return replace(self, mass=mass, given=own / self._over(own))

    def _over(self, values: FloatArray | BoolArray) -> FloatArray:
        """Return sums over the levels of each block, shape (kinds, levels)."""
        starts = np.cumsum(self.sizes) - self.sizes
        sums = np.add.reduceat(values.astype(float), starts, axis=1)
        return np.repeat(sums, self.sizes, axis=1)

    @property
    def shares(self) -> FloatArray:
        return self.mass @ self.given


def groups_of(
    design: "ResidualDesign", public: Table | None, members: Members | None = None
) -> LevelGroups:
    """Return which levels of each block go with which values of the public columns, or
    with how many members.

    Raises
    ------
    InputError
        If rules tie columns of members such that levels are no groups.
    """
    if members is not None:
        return _of_members(design, members)
    group = np.zeros(design.offsets[-1], dtype=np.int32)
    rows = [np.zeros(1, dtype=np.int32)] * len(design.blocks)
    known = set(design.domain.public.tolist())
    names = design.domain.names
    for k, block in enumerate(design.blocks):
        columns = [c for c in block.columns if c in known]
        if columns and public is not None:
            within = [block.columns.index(column) for column in columns]
            sizes = [block.sizes[place] for place in within]
            levels = tuple(block.levels[:, within].T)
            group[design.levels_of(k)] = np.ravel_multi_index(levels, sizes)
            codes = tuple(public.codes[names[column]] for column in columns)
            rows[k] = np.ravel_multi_index(codes, sizes).astype(np.int32)
    one = LevelGroups.one(design.sizes)
    fixed = np.column_stack(np.broadcast_arrays(*rows))
    return replace(one, group=group, rows=fixed.astype(np.int32))


def _of_members(design: "ResidualDesign", members: Members) -> LevelGroups:
    """Return which levels of each block households of 0, 1, ... members may have."""
    names = design.domain.names
    n_kinds = members.most + 1
    lead = 0
    group = np.full(design.offsets[-1], -2, dtype=np.int32)
    kinds = np.zeros((n_kinds, len(design.blocks)), np.int32)
    for k, block in enumerate(design.blocks):
        if SIZE in [names[column] for column in block.columns]:
            lead = k
        is_open = _open_levels(design, block, members)
        whole = is_open.all(axis=1)
        classes, of_kind = np.unique(is_open[~whole], axis=0, return_inverse=True)
        are_groups = (classes.sum(axis=0) <= 1).all()
        if not are_groups or not is_open.any(axis=1).all():
            tied = ", ".join(names[column] for column in block.columns)
            raise InputError(
                f"rules on {tied} don't say for each number of members "
                f"which levels there are"
            )
        kinds[whole, k] = -1
        kinds[~whole, k] = of_kind.ravel()
        held = classes.any(axis=0)
        if held.any():
            own = group[design.levels_of(k)]
            own[held] = classes.argmax(axis=0)[held]
    return LevelGroups(design.sizes, group, kinds[:1], kinds, lead)


def _open_levels(
    design: "ResidualDesign", block: "ColumnBlock", members: Members
) -> BoolArray:
    """Return which levels of a block households of 0, 1, ... members may have."""
    n_members = np.arange(members.most + 1)[:, None]
    is_open = np.ones((len(n_members), block.n_levels), dtype=bool)
    for column, levels in zip(block.columns, block.levels.T, strict=True):
        name = design.domain.names[column]
        member, may_miss = members.places.get(name, (0, True))
        if name == SIZE:
            is_open = is_open & (n_members == levels)
        elif member:
            missing = levels == design.domain.sizes[column] - 1
            of_member = may_miss | ~missing
            is_open &= np.where(n_members >= member, of_member, missing)
    return is_open
