"""PrivBayes: a Bayesian network chosen greedily, noisy joint tables of its families,
and records drawn from them.

A network is a sequence of families: a column and its parents, which stand before it or
are public. Which families may be added depends on the schema, the settings and the
number of records, all public; which one is added is paid for. Records are
post-processing of noisy joint tables, apart from the structural zeros.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, IntArray
from pdips.bayes_net.network import (
    MOST_TABLE_CELLS,
    Columns,
    Families,
    FamilyScores,
    Network,
    choose_network,
    conditionals,
    distance_from_independence,
    sample,
    sensitivity,
    tables_of,
)
from pdips.data.schema import Schema
from pdips.data.table import Table, decode
from pdips.errors import DataError, InputError
from pdips.margins.domain import Domain, columns_of
from pdips.mechanism import AnswerTables, Drawn, Mechanism, Split
from pdips.privacy.answers import PublicFacts
from pdips.privacy.curator import Curator, timed
from pdips.privacy.loss import Number, check_whole, exact, proper_share
from pdips.privacy.noise import LARGEST_SCALE
from pdips.privacy.plan import Noise, Plan, Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.noisy_margins import MeasuredMargin, axes_of
from pdips.release.offers import Offers

# Scores of more would leave 64-bit integers
MOST_RECORDS = 2**30 - 1
# A round has no more families to choose from than this
MOST_CANDIDATES = 1_000_000


@dataclass(frozen=True)
class NoisyNetwork:
    """A network, its noisy joint tables, shape (cells,) each, and the step that counted
    them.
    """

    network: Network
    tables: Mapping[Columns, IntArray]
    step: Step

    @property
    def noise(self) -> Noise:
        """The noise of all tables."""
        n_tables = len(self.tables)
        tables = f"the {n_tables} joint tables" if n_tables > 1 else "the joint table"
        return replace(self.step, counts=f"each cell of {tables}").noise

    def margins(self, domain: Domain) -> list[MeasuredMargin]:
        """Return the joint tables with their law."""
        margins = []
        for columns, counts in self.tables.items():
            names = [domain.names[column] for column in columns]
            axes = axes_of(names, domain.sizes[list(columns)])
            margins.append(MeasuredMargin.of(self.step, axes, counts))
        return margins

    def statistics(self, domain: Domain) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield the network, and each joint table with the levels of its columns and
        the noisy count.
        """
        families = []
        for child, parents in self.network:
            names = [domain.names[parent] for parent in parents]
            families.append((domain.names[child], ", ".join(names)))
        yield "network", pd.DataFrame(families, columns=["attribute", "parents"])
        for columns, counts in self.tables.items():
            names = [domain.names[column] for column in columns]
            sizes = domain.sizes[list(columns)]
            levels = np.unravel_index(np.arange(len(counts)), sizes)
            frame = pd.DataFrame(dict(zip(names, levels, strict=True)))
            yield f"table {', '.join(names)}", frame.assign(noisy_count=counts)


@dataclass(frozen=True, kw_only=True)
class PrivBayes(Mechanism):
    """A Bayesian network of low degree: columns are synthesized one after the other,
    each given a few earlier ones.

    Parameters
    ----------
    epsilon, n_sets, neighbours
        As of every :class:`pdips.mechanism.Mechanism`; only replace-one.
    degree : int
        Largest number of parents of a column.
    network_share : int, float, str or Fraction
        Part of the budget for choosing the network; 1/2 in Zhang et al. and in Bowen et
        al. (2021). Nothing is spent on it where one joint table holds all columns.
    usefulness : int, float, str or Fraction
        Joint tables whose cells would hold on average fewer records than this many
        times the scale of their noise are not considered (the theta of Zhang et al.,
        who use 4); 0 considers all. It reads public facts only, so it costs nothing.
    split : {"once", "per-set"}
        One network and one set of noisy tables for all sets, or everything anew, at
        epsilon / n_sets, for each.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Each round chooses a family by the exponential mechanism. The score is the distance
    R from independence in total variation; R n^2 is a whole number and moves by at most
    3 (n - 1), or 2 (n - 1) for binary families. Replacing a record changes two cells of
    each joint table by 1, so T tables with noise of scale 2 T / epsilon_2 cost
    epsilon_2. What follows is post-processing. Proof:
    ``docs/proofs/privbayes.md``.

    References
    ----------
    Zhang, Cormode, Procopiuc, Srivastava and Xiao (2017), PrivBayes, ACM TODS 42(4);
    (2014), SIGMOD.

    Examples
    --------
    >>> import pandas as pd, pdips
    >>> schema = pdips.Schema.model_validate(
    ...     {"columns": {name: {"levels": [0, 1]} for name in "abcd"}}
    ... )
    >>> table = pdips.Table(pd.DataFrame({name: [0, 1, 1] for name in "abcd"}), schema)
    >>> release, _ = PrivBayes(epsilon=1, degree=1).release(table)
    >>> len(release.sets[0])
    3
    """

    name: ClassVar[str] = "privbayes"
    offers: ClassVar[Offers] = Offers(
        zeros=True, rules=True, public_columns=True, even_in_cells=True
    )
    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")

    degree: int = 2
    network_share: Number = Fraction(1, 2)
    usefulness: Number = 4
    split: Split = "once"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self.degree, "degree", 1, None)
        proper_share(self.network_share, "network_share")
        if exact(self.usefulness, "usefulness") < 0:
            raise InputError(f"usefulness must be at least 0, got {self.usefulness}")

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: the choices of a network, and noisy counts of its joint
        tables.
        """
        families = Families(columns_of(schema), self.degree, MOST_TABLE_CELLS)
        if not families.free:
            raise InputError(
                "all columns of the schema are public: there is nothing to synthesize"
            )
        for name, size in zip(
            families.domain.names, families.domain.sizes, strict=True
        ):
            if size > MOST_TABLE_CELLS:
                raise InputError(
                    f"column {name!r} has more than "
                    f"{MOST_TABLE_CELLS:,} levels; give fewer"
                )
        if families.most_candidates > MOST_CANDIDATES:
            raise InputError(
                f"a round would have more than {MOST_CANDIDATES:,} families to "
                f"choose from; use a smaller degree"
            )
        share = Fraction(0)
        if families.n_rounds:
            share = exact(self.network_share, "network_share")
        budget = self.per_round(self.rounds)
        steps = [
            Step(
                name="noisy joint tables",
                counts="each cell of a joint table",
                sensitivity=self.table_sensitivity(schema),
                price=(1 - share) * budget,
            )
        ]
        if share:
            choices = Step(
                name="choice of the network",
                sensitivity=self.choice_sensitivity(schema),
                price=share * budget,
                law="exponential",
                times=families.n_rounds,
            )
            steps.insert(0, choices)
        if steps[-1].scale * len(families.free) > LARGEST_SCALE:
            raise InputError(
                "epsilon is too small: noise of this scale is beyond "
                "what can be drawn exactly"
            )
        law = (
            "A Bayesian network was chosen family by family by the exponential "
            "mechanism, paid for; every cell of the "
            "joint tables of its families that can occur has exact discrete Laplace "
            "noise on its count."
        )
        return self.planned(schema, steps, law, repeats=self.rounds, design=families)

    def family_score(self, counts: IntArray) -> int:
        """Return the score of a family, from counts of shape (combinations of parents,
        levels of the column).
        """
        return distance_from_independence(counts)

    def score_sensitivity(self, n_records: int, *, binary: bool) -> int:
        """Return by how much a family's score may move when a record is replaced."""
        return sensitivity(n_records, binary=binary)

    def choice_sensitivity(self, schema: Schema) -> Sensitivity:
        """Return how far one person moves two scores apart, in units of what a record
        moves one of them by.
        """
        return Sensitivity.of_record(schema, l1=2)

    def table_units(self, n_tables: int, n_records: int) -> int | Fraction:
        """Return how far one person moves so many joint tables together, in units of
        one table.
        """
        return n_tables

    def table_sensitivity(self, schema: Schema) -> Sensitivity:
        """Return how far one person moves a joint table."""
        return Sensitivity.of_counts(schema, self.neighbours)

    def useful_families(self, plan: Plan, n_records: int) -> Families:
        """Return the families whose joint tables hold enough records, by public
        facts.
        """
        families: Families = plan.design
        usefulness = exact(self.usefulness, "usefulness")
        if not usefulness:
            return families
        n_tables = max(len(families.domain.names) - self.degree, 1)
        least_a_cell = usefulness * plan.steps[-1].scale * n_tables
        useful_cells = math.floor(n_records / least_a_cell)
        return replace(families, most_cells=min(families.most_cells, useful_cells))

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

    def ask(self, plan: Plan, curator: Curator) -> list[NoisyNetwork]:
        """Choose a network and count its joint tables, once or for each set."""
        families = self.useful_families(plan, curator.n_records)
        records = FamilyScores(families.domain, self.family_score)
        choices = plan.steps[0] if len(plan.steps) > 1 else None
        counting = plan.steps[-1]
        rounds = []
        for _ in range(plan.repeats):
            with curator.timed("choosing the network"):
                network = choose_network(
                    families, self.score_sensitivity, choices, records, curator
                )
            with curator.timed("counting and adding noise"):
                columns = tables_of(network)
                units = self.table_units(len(columns), curator.n_records)
                noisy = _joint_tables(
                    columns, families.domain, counting, records, curator, units
                )
            rounds.append(NoisyNetwork(network, noisy, counting.enlarged(units)))
        return rounds

    def tables_of(self, plan: Plan, measured: Sequence[NoisyNetwork]) -> AnswerTables:
        """Return the joint tables of all networks as margins."""
        domain: Domain = plan.design.domain
        margins = list[MeasuredMargin]()
        for noisy in measured:
            margins += noisy.margins(domain)
        return AnswerTables(margins=margins)

    def draw(
        self,
        plan: Plan,
        measured: Sequence[NoisyNetwork],
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        """Draw records column by column, of each network as many sets."""
        domain: Domain = plan.design.domain
        sets = list[pd.DataFrame]()
        statistics = dict[str, pd.DataFrame]()
        noise = dict[int, Noise]()
        for number, noisy in enumerate(measured, start=1):
            prefix = f"set {number}, " if plan.repeats > 1 else ""
            for name, frame in noisy.statistics(domain):
                statistics[f"{prefix}{name}"] = frame
            noise[len(noisy.tables)] = noisy.noise
            with timed("drawing synthetic sets"):
                sets += _draw_sets(noisy, plan, n_sets // plan.repeats, rng, public)
        return Drawn(
            sets=sets,
            statistics=statistics,
            noise=tuple(noise.values()),
            margins=self.tables_of(plan, measured).margins,
        )


def _joint_tables(
    columns: list[Columns],
    domain: Domain,
    step: Step,
    records: FamilyScores,
    curator: Curator,
    units: int | Fraction,
) -> dict[Columns, IntArray]:
    """Return noisy joint tables, shape (cells,) each."""
    possible: list[BoolArray] = [domain.possible_cells(one).ravel() for one in columns]

    def exact_counts(table: Table) -> IntArray:
        return np.concatenate([records.joint(table, one).ravel() for one in columns])

    noisy = curator.count(step, exact_counts, np.concatenate(possible), units=units)
    ends = np.cumsum([len(mask) for mask in possible])
    return dict(zip(columns, np.split(noisy, ends[:-1]), strict=True))


def _draw_sets(
    noisy: NoisyNetwork,
    plan: Plan,
    n_sets: int,
    rng: np.random.Generator,
    public: PublicFacts,
) -> list[pd.DataFrame]:
    """Draw the synthetic sets of one network. Post-processing."""
    schema = plan.schema
    domain: Domain = plan.design.domain
    n_records = public.n_records
    laws = conditionals(noisy.network, domain, noisy.tables, n_records)
    spelt = dict[str, Any]()
    given = dict[int, IntArray]()
    for name in schema.public_columns:
        spelt[name] = public.columns.spelt(name)
        given[domain.names.index(name)] = public.columns.codes[name]
    beside = pd.DataFrame(spelt)
    sets = []
    for _ in range(n_sets):
        records = sample(noisy.network, domain, laws, given, n_records, rng)
        codes = {
            domain.names[column]: records[column] for column, _ in sorted(noisy.network)
        }
        frame = decode(schema, codes, rng)
        if given:
            frame = pd.concat([beside, frame], axis=1)[list(domain.names)]
        sets.append(frame)
    return sets
