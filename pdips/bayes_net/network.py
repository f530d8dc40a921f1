"""Bayesian networks of a table's columns: which families may be added, how families are
scored and chosen, and records drawn from noisy joint tables.

A network is a sequence of families: a column and its parents, which stand before it or
are public.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import FloatArray, IntArray
from pdips.data.table import Table
from pdips.margins.consistency import nonnegative
from pdips.margins.domain import Domain
from pdips.privacy.curator import Curator
from pdips.privacy.plan import Step

Family = tuple[int, tuple[int, ...]]
Network = tuple[Family, ...]
Columns = tuple[int, ...]

# Joint tables are no larger than this, whatever the degree
MOST_TABLE_CELLS = 4_000_000
# Larger joint tables are counted again when needed: all together would fill the memory
MOST_KEPT_CELLS = 65_536


@dataclass(frozen=True)
class Families:
    """The families that there could be, with so many parents and cells at most: a
    function of public facts only.

    A column without parents may always be added.
    """

    domain: Domain
    degree: int
    most_cells: int

    @property
    def public(self) -> Columns:
        """The public columns, which are parents from the start."""
        return tuple(int(column) for column in self.domain.public)

    @property
    def free(self) -> Columns:
        """The columns to be synthesized."""
        return tuple(j for j in range(len(self.domain.names)) if j not in self.public)

    @property
    def whole(self) -> Network | None:
        """The network whose one joint table is the full cross-tabulation, where degree
        and memory allow it.
        """
        if len(self.domain.names) > self.degree + 1:
            return None
        if self.domain.n_cells > MOST_TABLE_CELLS:
            return None
        return tuple(
            (column, (*self.public, *self.free[:i]))
            for i, column in enumerate(self.free)
        )

    @property
    def most_candidates(self) -> int:
        """Bound on the number of families to choose from in a round."""
        n_columns = len(self.domain.names)
        most = 0
        for n_placed in range(len(self.public), n_columns):
            n_parents = min(self.degree, (n_placed + 1) // 2)
            n_sets = math.comb(n_placed, n_parents)
            most = max(most, (n_columns - n_placed) * n_sets)
        return most

    @property
    def n_rounds(self) -> int:
        """Number of families that are chosen by looking at the records."""
        if self.whole is not None:
            return 0
        return len(self.free) - (not self.public)

    def all_binary(self, families: Iterable[Family]) -> bool:
        """Whether the scores of these move by as little as binary ones do."""
        sizes = self.domain.sizes
        return all(
            sizes[child] <= 2 or self.domain.size_of(parents) <= 2
            for child, parents in families
        )

    def candidates(self, network: Network) -> list[Family]:
        """Return the families that may be added next: every column that is left, with
        every largest set of parents.
        """
        placed = {child for child, _ in network}
        pool = sorted((*self.public, *placed))
        if not pool:
            return [(column, ()) for column in self.free]
        left = [column for column in self.free if column not in placed]
        return [
            (column, parents)
            for column in left
            for parents in self._largest_sets(column, pool)
        ]

    def _largest_sets(self, child: int, pool: Sequence[int]) -> Iterator[Columns]:
        most = min(self.degree, len(pool))
        for size in range(most, -1, -1):
            for parents in combinations(pool, size):
                room = self.most_cells // self.domain.size_of((child, *parents))
                grows = size < most and any(
                    self.domain.sizes[j] <= room for j in pool if j not in parents
                )
                if (room or not size) and not grows:
                    yield parents


def tables_of(network: Network) -> list[Columns]:
    """Return the joint tables to be counted: one a family, without those that are
    margins of another one.
    """
    sets = [frozenset((child, *parents)) for child, parents in network]
    largest = [one for one in sets if not any(one < other for other in sets)]
    return [tuple(sorted(one)) for one in largest]


def as_family[T: np.generic](
    joint: NDArray[T], columns: Columns, family: Family
) -> NDArray[T]:
    """Return the margin of a joint table that belongs to a family, shape (combinations
    of parents, levels).
    """
    child, parents = family
    kept = (*parents, child)
    summed = tuple(i for i, column in enumerate(columns) if column not in kept)
    margin: NDArray[T] = joint.sum(axis=summed)
    left = [column for column in columns if column in kept]
    order = [left.index(column) for column in kept]
    n_levels = joint.shape[columns.index(child)]
    return margin.transpose(order).reshape(-1, n_levels)


def distance_from_independence(counts: IntArray) -> int:
    """Return sum max(n n_xy - n_x n_y, 0), a whole number: n^2 times the score R of
    Zhang et al. (2017).
    """
    n = int(counts.sum())
    by_parents = counts.sum(axis=1, keepdims=True)
    by_level = counts.sum(axis=0, keepdims=True)
    excess = n * counts - by_parents * by_level
    return int(np.maximum(excess, 0).sum())


def sensitivity(n: int, *, binary: bool) -> int:
    """Return by how much the distance from independence may move when one of ``n``
    records is replaced (docs/proofs/privbayes.md, lemma 1).

    A binary family is one whose column, or its parents together, have two levels at
    most.
    """
    if n == 1:
        return 1  # the score is 0 for every table of one record
    return (2 if binary else 3) * (n - 1)


class FamilyScores:
    """What the choices of a network read of one table: joint counts and scores, each
    worked out once; confidential.
    """

    def __init__(self, domain: Domain, score: Callable[[IntArray], int]) -> None:
        self._domain = domain
        self._score = score
        self._joint: dict[Columns, IntArray] = {}
        self._known: dict[Family, int] = {}

    def joint(self, table: Table, columns: Columns) -> IntArray:
        """Return the counts of sorted columns, one axis a column; smaller ones are
        counted once.
        """
        if columns in self._joint:
            return self._joint[columns]
        code = np.zeros(table.n_records, dtype=np.int64)
        for column in columns:
            code *= self._domain.sizes[column]
            code += table.codes[self._domain.names[column]]
        sizes = self._domain.sizes[list(columns)]
        counts = np.bincount(code, minlength=int(sizes.prod())).reshape(sizes)
        if counts.size <= MOST_KEPT_CELLS:
            self._joint[columns] = counts
        return counts

    def family(self, table: Table, family: Family) -> IntArray:
        """Return the counts of a family, shape (combinations of parents, levels of the
        column).
        """
        child, parents = family
        columns = tuple(sorted((child, *parents)))
        return as_family(self.joint(table, columns), columns, family)

    def scores(self, table: Table, families: Sequence[Family]) -> IntArray:
        """Return the scores of families, shape (1, families)."""
        for family in families:
            _, parents = family
            if family in self._known:
                continue
            counts = self.family(table, family) if parents else None
            self._known[family] = 0 if counts is None else self._score(counts)
        scores = [self._known[family] for family in families]
        return np.array([scores], dtype=np.int64)


def choose_network(
    families: Families,
    sensitivity_of: Callable[..., int],
    step: Step | None,
    records: FamilyScores,
    curator: Curator,
) -> Network:
    """Grow a network greedily, family by family, by choices that share the price of a
    step; a public one needs none.

    A first column that has no parents is drawn evenly. ``sensitivity_of`` is as
    :func:`sensitivity`.
    """
    if families.whole is not None or step is None:
        return families.whole or ()
    network: Network = ()
    for _ in families.free:
        left = families.candidates(network)
        if not network and not families.public:
            first = curator.keep(partial(_any_of, len(left), curator.generator))
            network = (left[first],)
            continue
        units = sensitivity_of(curator.n_records, binary=families.all_binary(left))
        scores = partial(records.scores, families=left)
        (chosen,) = curator.choose(step, scores, units=units)
        network = (*network, left[int(chosen)])
    return network


def _any_of(n: int, rng: np.random.Generator) -> int:
    return int(rng.integers(n))


# ---- records ----

# How often impossible records are drawn again: by the network, then by chance alone
MOST_REDRAWS = 1000


def conditionals(
    network: Network, domain: Domain, noisy: Mapping[Columns, IntArray], n_records: int
) -> list[FloatArray]:
    """Return the law of each column given its parents, shape (combinations of parents,
    levels), from noisy tables.

    Every table is replaced by the nearest nonnegative one that holds the public number
    of records, its structural zeros kept. Combinations of parents that this leaves
    empty get even shares of what is possible.
    """
    likely = {
        columns: _likely(domain, columns, counts, n_records)
        for columns, counts in noisy.items()
    }
    laws = []
    for family in network:
        child, parents = family
        own = tuple(sorted((child, *parents)))
        homes = (columns for columns in noisy if set(own) <= set(columns))
        home = min(homes, key=len)
        weights = as_family(likely[home], home, family)
        possible = domain.possible_cells(own).astype(np.float64)
        weights = _filled(weights, as_family(possible, own, family))
        weights = _filled(weights, np.ones(weights.shape))
        laws.append(weights / weights.sum(axis=1, keepdims=True))
    return laws


def _likely(
    domain: Domain, columns: Columns, counts: IntArray, n_records: int
) -> FloatArray:
    """Return the nearest nonnegative table, one axis a column."""
    variances = domain.possible_cells(columns).ravel().astype(np.float64)
    one_parent = [np.zeros(len(variances), dtype=np.int64)]
    total = np.array([float(n_records)])
    estimates = [total, counts.ravel().astype(np.float64)]
    nearest = nonnegative(one_parent, estimates, [np.zeros(1), variances])
    return nearest.reshape(domain.sizes[list(columns)])


def _filled(weights: FloatArray, others: FloatArray) -> FloatArray:
    """Return weights, in rows without any those of others."""
    return np.where(weights.sum(axis=1, keepdims=True) > 0, weights, others)


def sample(
    network: Network,
    domain: Domain,
    laws: Sequence[FloatArray],
    given: Mapping[int, IntArray],
    n_records: int,
    rng: np.random.Generator,
) -> dict[int, IntArray]:
    """Draw records column by column, given the codes of public columns; return codes by
    column.

    Records that the schema calls impossible are drawn again. Where neither the network
    nor chance finds a possible one, it is searched for: after the charge nothing may
    be refused.
    """
    records = {column: codes.copy() for column, codes in given.items()}
    records |= {child: np.zeros(n_records, dtype=np.int64) for child, _ in network}
    wrong = np.arange(n_records)
    even = [np.full_like(law, 1 / law.shape[1]) for law in laws]
    for attempt in range(MOST_REDRAWS):
        tried = laws if attempt < MOST_REDRAWS // 2 else even
        for (child, parents), law in zip(network, tried, strict=True):
            row = np.zeros(len(wrong), dtype=np.int64)
            for parent in parents:
                row = row * domain.sizes[parent] + records[parent][wrong]
            records[child][wrong] = _systematic(law, row, rng)
        here = {column: codes[wrong] for column, codes in records.items()}
        possible = np.broadcast_to(domain.possible(here.get), wrong.shape)
        wrong = wrong[~possible]
        if not len(wrong):
            return records
    for record in wrong.tolist():
        known = {column: int(codes[record]) for column, codes in given.items()}
        for column, level in _possible_record(domain, list(records), known, rng):
            records[column][record] = level
    return records


def _possible_record(
    domain: Domain,
    columns: Sequence[int],
    known: dict[int, int],
    rng: np.random.Generator,
) -> Iterable[tuple[int, int]]:
    """Return a record with the levels that are known, column by column, going back
    where a level leaves none for the next column.

    There is one: that of the table with the same public columns.
    """
    free = [column for column in columns if column not in known]
    untried = list[list[int]]()  # levels, of each column so far

    def level_of(column: int) -> IntArray | None:
        return np.asarray(known[column]) if column in known else None

    while True:
        if domain.possible(level_of):
            if len(untried) == len(free):
                return known.items()
            size = domain.sizes[free[len(untried)]]
            untried.append(rng.permutation(size).tolist())
        while not untried[-1]:
            untried.pop()
            del known[free[len(untried)]]
        known[free[len(untried) - 1]] = untried[-1].pop()


def _systematic(law: FloatArray, row: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw a level for each record from its row's law, so that every count in a row is
    its expectation, rounded.
    """
    n_rows, n_levels = law.shape
    size = np.bincount(row, minlength=n_rows)
    order = np.lexsort([rng.random(len(row)), row])
    first = np.repeat(np.cumsum(size) - size, size)
    rank = np.arange(len(row)) - first
    ordered = row[order]
    shift: FloatArray = rng.random((n_rows,))
    uniform = (rank + shift[ordered]) / size[ordered]
    # the laws of all rows end to end, each of length 1
    ends = np.cumsum(law, axis=1) + np.arange(n_rows)[:, None]
    cell = np.searchsorted(ends.ravel(), ordered + uniform, side="right")
    level = np.empty(len(row), dtype=np.int64)
    level[order] = np.clip(cell - ordered * n_levels, 0, n_levels - 1)
    return level
