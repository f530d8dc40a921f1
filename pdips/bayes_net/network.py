"""The networks of PrivBayes: which there could be, how they score, how one is grown, and records drawn from it.

A network is a sequence of families: a column and its parents, which stand before it or are public. Which families may
be added depends on the schema, the settings and the number of records, all public; which one is added is paid for.
Records are post-processing of noisy joint tables, apart from the structural zeros.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.margins.consistency import nonnegative
from pdips.margins.domain import Domain
from pdips.privacy.curator import Curator
from pdips.privacy.plan import Step

Score = Literal["r", "mi"]
Family = tuple[int, tuple[int, ...]]
Network = tuple[Family, ...]
Columns = tuple[int, ...]

STEPS_PER_NAT = 64
"""Mutual information, times the number of records, is rounded to a public grid of this many steps a nat."""

MOST_RECORDS = 2**30 - 1
"""Scores of more records than this would leave 64-bit integers, or the error bound of the proof."""

MOST_TABLE_CELLS = 4_000_000
"""Joint tables are no larger than this, whatever the degree."""

MOST_KEPT_CELLS = 65_536
"""Larger joint tables are counted again when needed, so that those of all families never fill the memory."""


@dataclass(frozen=True)
class Families:
    """The families that there could be, with so many parents and cells at most: a function of public facts only.

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
        """The network whose one joint table is the full cross-tabulation, where degree and memory allow it."""
        if len(self.domain.names) > self.degree + 1 or self.domain.n_cells > MOST_TABLE_CELLS:
            return None
        return tuple((column, (*self.public, *self.free[:i])) for i, column in enumerate(self.free))

    @property
    def most_candidates(self) -> int:
        """Bound on the number of families to choose from in a round."""
        n_free, n_public = len(self.free), len(self.public)
        sizes = range(n_public, n_public + n_free)
        return max((n_free + n_public - size) * math.comb(size, min(self.degree, (size + 1) // 2)) for size in sizes)

    @property
    def n_rounds(self) -> int:
        """Number of families that are chosen by looking at the records."""
        return 0 if self.whole is not None else len(self.free) - (not self.public)

    def n_cells(self, columns: Columns) -> int:
        """Return the size of a joint table."""
        return math.prod(int(self.domain.sizes[column]) for column in columns)

    def candidates(self, network: Network) -> list[Family]:
        """Return the families that may be added next: every column that is left, with every largest set of parents."""
        placed = {child for child, _ in network}
        pool = sorted((*self.public, *placed))
        if not pool:
            return [(column, ()) for column in self.free]
        left = [column for column in self.free if column not in placed]
        return [(column, parents) for column in left for parents in self._largest_sets(column, pool)]

    def _largest_sets(self, child: int, pool: Sequence[int]) -> Iterator[Columns]:
        most = min(self.degree, len(pool))
        for size in range(most, -1, -1):
            for parents in combinations(pool, size):
                room = self.most_cells // self.n_cells((child, *parents))
                grows = size < most and any(self.domain.sizes[j] <= room for j in pool if j not in parents)
                if (room or not size) and not grows:
                    yield parents

    def is_binary(self, family: Family) -> bool:
        """Whether the column, or its parents together, have two levels at most."""
        child, parents = family
        return self.domain.sizes[child] <= 2 or self.n_cells(parents) <= 2


def tables_of(network: Network) -> list[Columns]:
    """Return the joint tables to be counted: one a family, without those that are margins of another one."""
    sets = [frozenset((child, *parents)) for child, parents in network]
    return [tuple(sorted(one)) for one in sets if not any(one < other for other in sets)]


def as_family[T: np.generic](joint: NDArray[T], columns: Columns, family: Family) -> NDArray[T]:
    """Return the margin of a joint table that belongs to a family, shape (combinations of parents, levels)."""
    child, parents = family
    kept = (*parents, child)
    margin: NDArray[T] = joint.sum(axis=tuple(i for i, column in enumerate(columns) if column not in kept))
    left = [column for column in columns if column in kept]
    return margin.transpose([left.index(column) for column in kept]).reshape(-1, joint.shape[columns.index(child)])


def distance_from_independence(counts: IntArray) -> int:
    """Return sum max(n n_xy - n_x n_y, 0), a whole number: n^2 times the score R of Zhang et al. (2017)."""
    n = int(counts.sum())
    excess = n * counts - counts.sum(axis=1, keepdims=True) * counts.sum(axis=0, keepdims=True)
    return int(np.maximum(excess, 0).sum())


def mutual_information(counts: IntArray) -> int:
    """Return n times the mutual information in nats, in whole steps of the public grid."""
    nats, whole = 0.0, counts.sum(keepdims=True)
    for sign, each in ((1, counts), (1, whole), (-1, counts.sum(axis=0)), (-1, counts.sum(axis=1))):
        filled = each[each > 1].astype(np.float64)
        nats += sign * float((filled * np.log(filled)).sum())
    return math.floor(nats * STEPS_PER_NAT + 0.5)


def sensitivity(score: Score, n: int, *, binary: bool) -> int:
    """Return by how much a score may move when one of ``n`` records is replaced (docs/proofs/privbayes.md).

    A binary family is one whose column, or its parents together, have two levels at most.
    """
    if n == 1:
        return 1  # both scores are 0 for every table of one record
    if score == "r":
        return (2 if binary else 3) * (n - 1)
    if binary:
        nats = math.log(n) + (n - 1) * math.log1p(1 / (n - 1))
    else:
        nats = 2 * math.log((n + 1) / 2) + (n - 1) * math.log1p(2 / (n - 1))
    return math.floor(nats * STEPS_PER_NAT) + 2


class FamilyScores:
    """What the choices of a network read of one table: joint counts and scores, each worked out once; confidential."""

    def __init__(self, domain: Domain, score: Score) -> None:
        self._domain, self._score = domain, score
        self._joint: dict[Columns, IntArray] = {}
        self._known: dict[Family, int] = {}

    def joint(self, table: Table, columns: Columns) -> IntArray:
        """Return the counts of sorted columns, one axis a column; smaller ones are counted once."""
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
        """Return the counts of a family, shape (combinations of parents, levels of the column)."""
        child, parents = family
        columns = tuple(sorted((child, *parents)))
        return as_family(self.joint(table, columns), columns, family)

    def scores(self, table: Table, families: Sequence[Family]) -> IntArray:
        """Return the scores of families, shape (1, families)."""
        find = distance_from_independence if self._score == "r" else mutual_information
        for family in families:
            if family not in self._known:
                self._known[family] = find(self.family(table, family)) if family[1] else 0
        return np.array([[self._known[family] for family in families]], dtype=np.int64)


def choose_network(
    families: Families,
    score: Score,
    step: Step | None,
    records: FamilyScores,
    curator: Curator,
    rng: np.random.Generator,
) -> Network:
    """Grow a network greedily, family by family, by choices that share the price of a step; a public one needs none.

    A first column that has no parents is drawn evenly.
    """
    if families.whole is not None or step is None:
        return families.whole or ()
    network: Network = ()
    for _ in families.free:
        left = families.candidates(network)
        if not network and not families.public:
            network = (left[int(rng.integers(len(left)))],)
            continue
        binary = all(families.is_binary(family) for family in left)
        units = sensitivity(score, curator.n_records, binary=binary)
        (chosen,) = curator.choose(step, partial(records.scores, families=left), units=units)
        network = (*network, left[int(chosen)])
    return network


# ---- records ----

MOST_REDRAWS = 1000
"""How often records that the schema calls impossible are drawn again: by the network, then by chance alone."""


def possible_cells(domain: Domain, columns: Columns) -> BoolArray:
    """Return which cells of a joint table no structural zero rules out, one axis a column."""
    possible = np.ones(domain.sizes[list(columns)], dtype=bool)
    for rule in domain.impossible:
        if set(rule) <= set(columns):
            axes = [rule.get(column, np.ones(int(domain.sizes[column]), dtype=bool)) for column in columns]
            possible[np.ix_(*axes)] = False
    return possible


def conditionals(
    network: Network, domain: Domain, noisy: Mapping[Columns, IntArray], n_records: int
) -> list[FloatArray]:
    """Return the law of each column given its parents, shape (combinations of parents, levels), from noisy tables.

    Every table is replaced by the nearest nonnegative one that holds the public number of records, its structural zeros
    kept. Combinations of parents that this leaves empty get even shares of what is possible.
    """
    likely = {}
    for columns, counts in noisy.items():
        weights = possible_cells(domain, columns).ravel().astype(np.float64)
        one_parent = [np.zeros(len(weights), dtype=np.int64)]
        estimates = [np.array([float(n_records)]), counts.ravel().astype(np.float64)]
        nearest = nonnegative(one_parent, estimates, [np.zeros(1), weights])
        likely[columns] = nearest.reshape(domain.sizes[list(columns)])
    found = []
    for family in network:
        child, parents = family
        own = tuple(sorted((child, *parents)))
        home = min((columns for columns in noisy if set(own) <= set(columns)), key=len)
        weight = as_family(likely[home], home, family).astype(np.float64)
        even = as_family(possible_cells(domain, own).astype(np.float64), own, family)
        weight = np.where(weight.sum(axis=1, keepdims=True) > 0, weight, even)
        weight = np.where(weight.sum(axis=1, keepdims=True) > 0, weight, 1.0)
        found.append(weight / weight.sum(axis=1, keepdims=True))
    return found


def sample(
    network: Network,
    domain: Domain,
    laws: Sequence[FloatArray],
    given: Mapping[int, IntArray],
    n_records: int,
    rng: np.random.Generator,
) -> dict[int, IntArray]:
    """Draw records column by column, given the codes of public columns; return codes by column.

    Records that the schema calls impossible are drawn again, and refused if neither the network nor chance finds a
    possible one, which depends on what is paid for alone.
    """
    records = {column: codes.copy() for column, codes in given.items()}
    records |= {child: np.zeros(n_records, dtype=np.int64) for child, _ in network}
    wrong, even = np.arange(n_records), [np.full_like(law, 1 / law.shape[1]) for law in laws]
    for attempt in range(MOST_REDRAWS):
        tried = laws if attempt < MOST_REDRAWS // 2 else even
        for (child, parents), law in zip(network, tried, strict=True):
            row = np.zeros(len(wrong), dtype=np.int64)
            for parent in parents:
                row = row * domain.sizes[parent] + records[parent][wrong]
            records[child][wrong] = _systematic(law, row, rng)
        wrong = wrong[_impossible(domain, records, wrong)]
        if not len(wrong):
            return records
    raise InputError(
        "the structural zeros leave no record that the noisy network could give: use a larger epsilon or degree"
    )


def _systematic(law: FloatArray, row: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw a level for each record from its row's law, so that every count in a row is its expectation, rounded."""
    n_rows, n_levels = law.shape
    size = np.bincount(row, minlength=n_rows)
    order = np.lexsort([rng.random(len(row)), row])
    rank = np.arange(len(row)) - np.repeat(np.cumsum(size) - size, size)
    ordered = row[order]
    shift: FloatArray = rng.random((n_rows,))
    uniform = (rank + shift[ordered]) / size[ordered]
    ends = np.cumsum(law, axis=1) + np.arange(n_rows)[:, None]
    found = np.searchsorted(ends.ravel(), ordered + uniform, side="right") - ordered * n_levels
    level = np.empty(len(row), dtype=np.int64)
    level[order] = np.clip(found, 0, n_levels - 1)
    return level


def _impossible(domain: Domain, records: Mapping[int, IntArray], places: IntArray) -> BoolArray:
    found = np.zeros(len(places), dtype=bool)
    for rule in domain.impossible:
        found |= np.logical_and.reduce([named[records[column][places]] for column, named in rule.items()])
    return found
