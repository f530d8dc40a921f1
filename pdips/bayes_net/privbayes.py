"""PrivBayes: a Bayesian network chosen greedily, noisy joint tables of its families, and records drawn from them.

A network is a sequence of families: a column and its parents, which stand before it or are public. Which families may
be added depends on the schema, the settings and the number of records, all public; which one is added is paid for.
Records are post-processing of noisy joint tables, apart from the structural zeros.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import combinations
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table, decode
from pdips.errors import DataError, InputError
from pdips.margins.consistency import nonnegative
from pdips.margins.domain import Domain, columns_of
from pdips.mechanism import Drawn, Mechanism, Split
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Neighbours, Number, check_whole, choice, exact, proper_share
from pdips.privacy.noise import LARGEST_SCALE
from pdips.privacy.plan import Noise, Plan, Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.noisy_margins import MeasuredMargin, axes_of

Score = Literal["r", "mi"]
Family = tuple[int, tuple[int, ...]]
Network = tuple[Family, ...]
Columns = tuple[int, ...]

STEPS_PER_NAT = 64  # Steps a nat of the public grid on which mutual information, times the records, is rounded
MOST_RECORDS = 2**30 - 1  # Scores of more would leave 64-bit integers, or the error bound of the proof
MOST_TABLE_CELLS = 4_000_000  # Joint tables are no larger than this, whatever the degree
MOST_KEPT_CELLS = 65_536  # Larger joint tables are counted again when needed: all together would fill the memory


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
                room = self.most_cells // self.domain.size_of((child, *parents))
                grows = size < most and any(self.domain.sizes[j] <= room for j in pool if j not in parents)
                if (room or not size) and not grows:
                    yield parents


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
        sizes, size_of = families.domain.sizes, families.domain.size_of
        binary = all(sizes[child] <= 2 or size_of(parents) <= 2 for child, parents in left)
        units = sensitivity(score, curator.n_records, binary=binary)
        (chosen,) = curator.choose(step, partial(records.scores, families=left), units=units)
        network = (*network, left[int(chosen)])
    return network


# ---- records ----

MOST_REDRAWS = 1000  # How often impossible records are drawn again: by the network, then by chance alone


def conditionals(
    network: Network, domain: Domain, noisy: Mapping[Columns, IntArray], n_records: int
) -> list[FloatArray]:
    """Return the law of each column given its parents, shape (combinations of parents, levels), from noisy tables.

    Every table is replaced by the nearest nonnegative one that holds the public number of records, its structural zeros
    kept. Combinations of parents that this leaves empty get even shares of what is possible.
    """
    likely = {}
    for columns, counts in noisy.items():
        weights = domain.possible_cells(columns).ravel().astype(np.float64)
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
        even = as_family(domain.possible_cells(own).astype(np.float64), own, family)
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
        here = {column: codes[wrong] for column, codes in records.items()}
        wrong = wrong[~np.broadcast_to(domain.possible(here.get), wrong.shape)]
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


MOST_CANDIDATES = 1_000_000  # A round has no more families to choose from than this


@dataclass(frozen=True, kw_only=True)
class PrivBayes(Mechanism):
    """A Bayesian network of low degree: columns are synthesized one after the other, each given a few earlier ones.

    Parameters
    ----------
    epsilon, n_sets, neighbours
        As of every :class:`pdips.mechanism.Mechanism`; only replace-one.
    degree : int
        Largest number of parents of a column.
    network_share : int, float, str or Fraction
        Part of the budget for choosing the network; 1/2 in Zhang et al. and in Bowen et al. (2021). Nothing is spent on
        it where one joint table holds all columns.
    score : {"r", "mi"}
        What tells families apart: distance from independence in total variation, or mutual information.
    usefulness : int, float, str or Fraction
        Joint tables whose cells would hold on average fewer records than this many times the scale of their noise
        are not considered (the theta of Zhang et al., who use 4); 0 considers all. It reads public facts only, so it
        costs nothing.
    split : {"once", "per-set"}
        One network and one set of noisy tables for all sets, or everything anew, at epsilon / n_sets, for each.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Each round chooses a family by the exponential mechanism. The score R n^2 is a whole number
    and moves by at most 3 (n - 1), or 2 (n - 1) for binary families; mutual information by lemma 1 of Zhang et al.,
    rounding allowed for. Replacing a record changes two cells of each joint table by 1, so T tables with noise of
    scale 2 T / epsilon_2 cost epsilon_2. What follows is post-processing. Proof: ``docs/proofs/privbayes.md``.

    References
    ----------
    Zhang, Cormode, Procopiuc, Srivastava and Xiao (2017), PrivBayes, ACM TODS 42(4); (2014), SIGMOD.

    Examples
    --------
    >>> import pandas as pd, pdips
    >>> schema = pdips.Schema.model_validate({"columns": {name: {"levels": [0, 1]} for name in "abcd"}})
    >>> table = pdips.Table(pd.DataFrame({name: [0, 1, 1] for name in "abcd"}), schema)
    >>> release, _ = PrivBayes(epsilon=1, degree=1).release(table)
    >>> len(release.sets[0])
    3
    """

    name: ClassVar[str] = "privbayes"
    relations: ClassVar[tuple[Neighbours, ...]] = ("replace-one",)
    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")

    degree: int = 2
    network_share: Number = Fraction(1, 2)
    score: Score = "r"
    usefulness: Number = 4
    split: Split = "once"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice(self.score, get_args(Score), "score")
        check_whole(self.degree, "degree", 1, None)
        proper_share(self.network_share, "network_share")
        if exact(self.usefulness, "usefulness") < 0:
            raise InputError(f"usefulness must be at least 0, got {self.usefulness}")

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: the choices of a network, and noisy counts of its joint tables."""
        families = Families(columns_of(schema), self.degree, MOST_TABLE_CELLS)
        if not families.free:
            raise InputError("all columns of the schema are public: there is nothing to synthesize")
        for name, size in zip(families.domain.names, families.domain.sizes, strict=True):
            if size > MOST_TABLE_CELLS:
                raise InputError(f"column {name!r} has more than {MOST_TABLE_CELLS:,} levels; give fewer")
        if families.most_candidates > MOST_CANDIDATES:
            raise InputError(
                f"a round would have more than {MOST_CANDIDATES:,} families to choose from; use a smaller degree"
            )
        share = exact(self.network_share, "network_share") if families.n_rounds else Fraction(0)
        steps = [
            Step(
                name="noisy joint tables",
                counts="each cell of a joint table",
                sensitivity=self.table_sensitivity(schema),
                price=(1 - share) * self.per_round(self.rounds),
            )
        ]
        if share:
            choices = Step(
                name="choice of the network",
                sensitivity=self.choice_sensitivity(schema),
                price=share * self.per_round(self.rounds),
                law="exponential",
                times=families.n_rounds,
            )
            steps.insert(0, choices)
        if steps[-1].scale * len(families.free) > LARGEST_SCALE:
            raise InputError("epsilon is too small: noise of this scale is beyond what can be drawn exactly")
        law = (
            "A Bayesian network was chosen family by family by the exponential mechanism, paid for; every cell of the "
            "joint tables of its families that can occur has exact discrete Laplace noise on its count."
        )
        return self.planned(schema, steps, law, repeats=self.rounds, design=families)

    def choice_sensitivity(self, schema: Schema) -> Sensitivity:
        """Return how far one person moves two scores apart, in units of what a record moves one of them by."""
        return Sensitivity.of_record(schema, l1=2)

    def table_units(self, n_tables: int, n_records: int) -> int | Fraction:
        """Return how far one person moves so many joint tables together, in units of one table."""
        return n_tables

    def table_sensitivity(self, schema: Schema) -> Sensitivity:
        """Return how far one person moves a joint table."""
        return Sensitivity.of_counts(schema, self.neighbours)

    def useful_families(self, plan: Plan, n_records: int) -> Families:
        """Return the families whose joint tables hold enough records, by public facts."""
        families: Families = plan.design
        usefulness = exact(self.usefulness, "usefulness")
        if not usefulness:
            return families
        least = usefulness * plan.steps[-1].scale * max(len(families.domain.names) - self.degree, 1)
        return replace(families, most_cells=min(families.most_cells, math.floor(n_records / least)))

    def check(self, plan: Plan, table: Table) -> None:
        """Refuse tables of more records than the scores have room for."""
        if table.n_records > MOST_RECORDS:
            raise DataError(f"privbayes takes at most {MOST_RECORDS:,} records")

    def shown(self) -> dict[str, Any]:
        """Return shares as numbers."""
        return {
            "network_share": float(exact(self.network_share, "network_share")),
            "usefulness": float(exact(self.usefulness, "usefulness")),
        }

    def synthesize(self, plan: Plan, curator: Curator, rng: np.random.Generator) -> Drawn:
        """Choose a network, count its joint tables, and draw records column by column."""
        families, records = self.useful_families(plan, curator.n_records), FamilyScores(plan.design.domain, self.score)
        sets, statistics, noise = list[pd.DataFrame](), dict[str, pd.DataFrame](), dict[int, Noise]()
        margins, domain = list[MeasuredMargin](), families.domain
        choices, counting = plan.steps[0] if len(plan.steps) > 1 else None, plan.steps[-1]
        for number in range(1, plan.repeats + 1):
            with curator.timed("choosing the network"):
                network = choose_network(families, self.score, choices, records, curator, rng)
            with curator.timed("counting and adding noise"):
                columns = tables_of(network)
                units = self.table_units(len(columns), curator.n_records)
                noisy = _joint_tables(columns, families.domain, counting, records, curator, units)
            for one, counts in noisy.items():
                axes = axes_of([domain.names[column] for column in one], domain.sizes[list(one)])
                margins.append(MeasuredMargin.of(counting.enlarged(units), axes, counts))
            tables = f"the {len(columns)} joint tables" if len(columns) > 1 else "the joint table"
            noise[len(columns)] = replace(counting.enlarged(units), counts=f"each cell of {tables}").noise
            prefix = f"set {number}, " if plan.repeats > 1 else ""
            statistics |= {f"{prefix}{name}": frame for name, frame in _statistics(network, noisy, families.domain)}
            with curator.timed("drawing synthetic sets"):
                sets += _draw_sets(network, noisy, plan, curator, rng)
        return Drawn(sets=sets, statistics=statistics, noise=tuple(noise.values()), margins=margins)


def _joint_tables(
    columns: list[Columns], domain: Domain, step: Step, records: FamilyScores, curator: Curator, units: int | Fraction
) -> dict[Columns, IntArray]:
    """Return noisy joint tables, shape (cells,) each."""
    possible: list[BoolArray] = [domain.possible_cells(one).ravel() for one in columns]

    def exact_counts(table: Table) -> IntArray:
        return np.concatenate([records.joint(table, one).ravel() for one in columns])

    noisy = curator.count(step, exact_counts, np.concatenate(possible), units=units)
    return dict(zip(columns, np.split(noisy, np.cumsum([len(mask) for mask in possible])[:-1]), strict=True))


def _statistics(
    network: Network, noisy: Mapping[Columns, IntArray], domain: Domain
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the network, and each joint table with the levels of its columns and the noisy count."""
    names = domain.names
    families = [(names[child], ", ".join(names[parent] for parent in parents)) for child, parents in network]
    yield "network", pd.DataFrame(families, columns=["attribute", "parents"])
    for columns, counts in noisy.items():
        levels = np.unravel_index(np.arange(len(counts)), domain.sizes[list(columns)])
        frame = pd.DataFrame({names[column]: level for column, level in zip(columns, levels, strict=True)})
        yield f"table {', '.join(names[column] for column in columns)}", frame.assign(noisy_count=counts)


def _draw_sets(
    network: Network, noisy: Mapping[Columns, IntArray], plan: Plan, curator: Curator, rng: np.random.Generator
) -> list[pd.DataFrame]:
    """Draw the synthetic sets of one round. Post-processing."""
    schema, domain, n_records = plan.schema, plan.design.domain, curator.n_records
    laws = conditionals(network, domain, noisy, n_records)
    public = pd.DataFrame({name: curator.public.spelt(name) for name in schema.public_columns})
    given = {domain.names.index(name): curator.public.codes[name] for name in schema.public_columns}
    sets = []
    for _ in range(plan.n_sets // plan.repeats):
        codes = sample(network, domain, laws, given, n_records, rng)
        made = decode(schema, {domain.names[column]: codes[column] for column, _ in sorted(network)}, rng)
        sets.append(pd.concat([public, made], axis=1)[list(domain.names)] if given else made)
    return sets
