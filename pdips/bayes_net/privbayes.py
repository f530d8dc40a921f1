"""PrivBayes: a Bayesian network chosen greedily, noisy joint tables of its families, and records drawn from them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, get_args

import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, IntArray
from pdips.bayes_net import network as networks
from pdips.bayes_net.network import Columns, Families, FamilyScores, Network, Score
from pdips.data.schema import Schema
from pdips.data.table import Table, decode
from pdips.errors import DataError, InputError
from pdips.margins.domain import Domain, columns_of
from pdips.mechanism import Drawn, Mechanism, Split
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Neighbours, Number, choice, exact
from pdips.privacy.noise import LARGEST_SCALE
from pdips.privacy.plan import Noise, Plan, Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.noisy_margins import MeasuredMargin, axes_of

MOST_CANDIDATES = 1_000_000
"""A round has no more families to choose from than this."""


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
        if isinstance(self.degree, bool) or not isinstance(self.degree, int) or self.degree < 1:
            raise InputError(f"degree must be a whole number of at least 1, got {self.degree}")
        if not 0 < exact(self.network_share, "network_share") < 1:
            raise InputError(f"network_share must be above 0 and below 1, got {self.network_share}")
        if exact(self.usefulness, "usefulness") < 0:
            raise InputError(f"usefulness must be at least 0, got {self.usefulness}")

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: the choices of a network, and noisy counts of its joint tables."""
        families = Families(columns_of(schema), self.degree, networks.MOST_TABLE_CELLS)
        if not families.free:
            raise InputError("all columns of the schema are public: there is nothing to synthesize")
        for name, size in zip(families.domain.names, families.domain.sizes, strict=True):
            if size > networks.MOST_TABLE_CELLS:
                raise InputError(f"column {name!r} has more than {networks.MOST_TABLE_CELLS:,} levels; give fewer")
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
        families, usefulness = plan.design, exact(self.usefulness, "usefulness")
        if not usefulness:
            return Families(families.domain, self.degree, families.most_cells)
        least = usefulness * plan.steps[-1].scale * max(len(families.domain.names) - self.degree, 1)
        return Families(families.domain, self.degree, min(families.most_cells, math.floor(n_records / least)))

    def check(self, plan: Plan, table: Table) -> None:
        """Refuse tables of more records than the scores have room for."""
        if table.n_records > networks.MOST_RECORDS:
            raise DataError(f"privbayes takes at most {networks.MOST_RECORDS:,} records")

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
                network = networks.choose_network(families, self.score, choices, records, curator, rng)
            with curator.timed("counting and adding noise"):
                columns = networks.tables_of(network)
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
    columns: list[Columns],
    domain: Domain,
    step: Step,
    records: FamilyScores,
    curator: Curator,
    units: int | Fraction,
) -> dict[Columns, IntArray]:
    """Return noisy joint tables, shape (cells,) each."""
    possible: list[BoolArray] = [networks.possible_cells(domain, one).ravel() for one in columns]

    def exact_counts(table: Table) -> IntArray:
        return np.concatenate([records.joint(table, one).ravel() for one in columns])

    noisy = curator.count(step, exact_counts, np.concatenate(possible), units=units)
    ends = np.cumsum([len(mask) for mask in possible])[:-1]
    return dict(zip(columns, np.split(noisy, ends), strict=True))


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
    laws = networks.conditionals(network, domain, noisy, n_records)
    public = pd.DataFrame({name: curator.public.spelt(name) for name in schema.public_columns})
    given = {domain.names.index(name): curator.public.codes[name] for name in schema.public_columns}
    sets = []
    for _ in range(plan.n_sets // plan.repeats):
        codes = networks.sample(network, domain, laws, given, n_records, rng)
        made = decode(schema, {domain.names[column]: codes[column] for column, _ in sorted(network)}, rng)
        sets.append(pd.concat([public, made], axis=1)[list(domain.names)] if given else made)
    return sets
