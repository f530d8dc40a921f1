"""Synthetic records drawn from an urn that holds the table's records and a public
prior, one cell as heavy as another.

A draw is a record's cell or a fresh cell, uniform over all cells that can occur; in a
Polya urn also the cell of an earlier draw. Smoothed histograms, McClure-Reiter and
Multinomial-Dirichlet are such urns, which differ in the weight of the prior. Draws are
exact, take no table of all cells, and are made for many urns at once.

Public columns make an urn for each of their combinations, with as many draws as
records.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations_with_replacement, product
from typing import ClassVar

import numpy as np

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.margins import synthesis
from pdips.margins.domain import Domain, check_domain, domain_of
from pdips.mechanism import Drawn, Mechanism, Split
from pdips.privacy.answers import PublicFacts
from pdips.privacy.curator import Curator, timed
from pdips.privacy.loss import Neighbours, check_whole
from pdips.privacy.noise import RandomBits, integers_below, smoothing_coins
from pdips.privacy.plan import Plan, Step
from pdips.privacy.rho import of_pure, polya_draw
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.offers import Offers

MOST_OUTCOMES = 100_000
MOST_RECORDS = 10_000_000
# Of e, in a law that is written out in doubles. Draws have no such limit
LARGEST_EXPONENT = 700


@dataclass(frozen=True, kw_only=True)
class UrnRule:
    """What is public about urns: their cells, and how they are drawn from."""

    domain: Domain
    epsilon: Fraction  # Loss of one set for one record of a person
    polya: bool
    """Whether each draw is put back with another one like it: then a cell of the prior
    weighs N / (e^epsilon - 1) balls for N draws, else 1 / (e^(epsilon / N) - 1).
    """
    # N; left out, the public number of records, which public columns ask for
    n_draws: int | None = None

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Positions of the columns in the number of a cell, public ones first."""
        public = [int(column) for column in self.domain.public]
        columns = range(len(self.domain.names))
        return (*public, *(column for column in columns if column not in public))

    @cached_property
    def possible(self) -> IntArray | None:
        """Numbers of the cells that can occur; None if all do."""
        if not self.domain.impossible:
            return None
        return np.flatnonzero(self.domain.possible_cells(self.order))

    def levels(self, cell: IntArray, column: int) -> IntArray:
        return self.domain.level(cell, column, self.order)


class Urns:
    """The records of a table as balls, sorted by urn; one urn a combination of the
    public columns that occurs.

    A distribution over synthetic sets, as the sorted numbers of their cells. As
    confidential as the table.
    """

    def __init__(self, table: Table, rule: UrnRule) -> None:
        self.rule = rule
        domain = rule.domain
        sizes = domain.sizes[list(rule.order)]
        codes = tuple(table.codes[domain.names[column]] for column in rule.order)
        self.cell = np.sort(np.ravel_multi_index(codes, tuple(sizes)))
        width = math.prod(int(size) for size in sizes[len(domain.public) :])
        public, self.first, self.n_balls = np.unique(
            self.cell // width, return_index=True, return_counts=True
        )
        first = public * width
        end = first + width
        if rule.possible is not None:
            first = np.searchsorted(rule.possible, first)
            end = np.searchsorted(rule.possible, end)
        self.first_cell = first
        self.n_cells = end - first

    def __repr__(self) -> str:
        return f"<{len(self.n_balls)} urns>"

    @property
    def n_draws(self) -> IntArray:
        if self.rule.n_draws is None:
            return self.n_balls
        return np.full(len(self.n_balls), self.rule.n_draws)

    def prior_cell(self, urn: IntArray, number: IntArray) -> IntArray:
        """Return the ``number``-th cell that can occur in each urn."""
        place: IntArray = self.first_cell[urn] + number
        return place if self.rule.possible is None else self.rule.possible[place]

    def weights(self) -> tuple[IntArray, list[Fraction]]:
        """Return w and x for each urn: its prior weighs w / (e^x - 1) balls in all."""
        epsilon = self.rule.epsilon
        if self.rule.polya:
            return self.n_cells * self.n_draws, [epsilon] * len(self.n_balls)
        return self.n_cells, [epsilon / int(n_draws) for n_draws in self.n_draws]

    def draw(self, bits: RandomBits, runs: int = 1) -> IntArray:
        """Return exact draws from all urns, several times over: sorted numbers of
        cells, shape (runs, draws).
        """
        prior, exponents = self.weights()
        block_urn = np.tile(np.arange(len(self.n_balls)), runs)
        size = self.n_draws[block_urn]
        urn = np.repeat(block_urn, size)
        start = np.repeat(np.cumsum(size) - size, size)
        draws = np.arange(len(urn))
        n_records = self.n_balls[urn]
        balls = n_records
        if self.rule.polya:
            # the earlier draws of the same urn are in it, too
            balls = n_records + draws - start
        fresh = smoothing_coins(prior[urn], balls, exponents, urn, bits)
        number = integers_below(np.where(fresh, self.n_cells[urn], balls), bits)
        copied = ~fresh & (number >= n_records)
        own = self.cell[self.first[urn] + np.where(fresh | copied, 0, number)]
        own[fresh] = self.prior_cell(urn[fresh], number[fresh])
        source = np.where(copied, start + number - n_records, draws)
        cells = own[first_drawn(source)]
        return np.sort(cells.reshape(runs, -1), axis=1)

    def log_probabilities(self) -> dict[tuple[int, ...], float]:
        """Return every synthetic set of a tiny table, as the sorted numbers of its
        cells, and its log probability.
        """
        n_each = [
            math.comb(int(n + k) - 1, int(n))
            for n, k in zip(self.n_draws, self.n_cells, strict=True)
        ]
        if max(self.weights()[1]) > LARGEST_EXPONENT:
            raise InputError(
                f"epsilon is too large to write out probabilities; the "
                f"limit is {LARGEST_EXPONENT} a draw"
            )
        if math.prod(n_each) > MOST_OUTCOMES:
            raise InputError(
                "too many synthetic sets to enumerate; use fewer "
                "records, columns or levels"
            )
        laws = [list(self._of_urn(urn)) for urn in range(len(self.n_balls))]
        law = dict[tuple[int, ...], float]()
        for parts in product(*laws):
            cells = sorted(cell for drawn, _ in parts for cell in drawn)
            law[tuple(cells)] = math.fsum(log for _, log in parts)
        return law

    def _of_urn(self, urn: int) -> Iterator[tuple[tuple[int, ...], float]]:
        """Yield the cells that one urn can give, and their log probability."""
        prior, exponents = self.weights()
        n_draws = int(self.n_draws[urn])
        n_balls = int(self.n_balls[urn])
        polya = self.rule.polya
        n_cells = int(self.n_cells[urn])
        weight = float(prior[urn]) / math.expm1(float(exponents[urn]))
        alpha = weight / n_cells  # of each cell
        has = Counter(self.cell[self.first[urn] :][:n_balls].tolist())
        cells = self.prior_cell(np.full(n_cells, urn), np.arange(n_cells)).tolist()
        total = _log_rising(n_balls + weight, n_draws, polya=polya)
        for drawn in combinations_with_replacement(cells, n_draws):
            log = math.lgamma(n_draws + 1) - total
            for cell, count in Counter(drawn).items():
                log -= math.lgamma(count + 1)
                log += _log_rising(has[cell] + alpha, count, polya=polya)
            yield drawn, log


def _log_rising(start: float, n: int, *, polya: bool) -> float:
    """Return the log of a product of n factors, which grow by 1 in a Polya urn."""
    return sum(math.log(start + t * polya) for t in range(n))


def first_drawn(source: IntArray) -> IntArray:
    """Follow each draw to the one that it copies, directly or through others."""
    while True:
        further = source[source]
        if np.array_equal(further, source):
            return source
        source = further


def check_n_records(n_records: int | None, neighbours: Neighbours) -> None:
    """Check the public number of synthetic records: it can't be left out where the
    table's own is confidential.
    """
    if n_records is None:
        if neighbours == "add-remove":
            raise InputError(
                "neighbours = add-remove protects the number of records, so give the "
                "number of synthetic ones: "
                "n_records, from public knowledge"
            )
    else:
        check_whole(n_records, "n_records", 1, MOST_RECORDS)


def check_public(schema: Schema, neighbours: Neighbours, n_records: int | None) -> None:
    """Refuse public columns beside settings that protect the number of records, or ask
    for another one.
    """
    if schema.public_columns and (neighbours == "add-remove" or n_records is not None):
        raise InputError(
            "public columns show the number of records, so neighbours = add-remove "
            "and n_records don't go with them"
        )


@dataclass(frozen=True, kw_only=True)
class Urn(Mechanism):
    """What mechanisms have in common whose synthetic records are drawn from urns: one
    draw of all urns for each set.
    """

    polya: ClassVar[bool] = False
    question: ClassVar[str]  # What the ledger calls a draw
    description: ClassVar[str]  # For the disclosure board

    def __post_init__(self) -> None:
        if self.most_sets == 1 and isinstance(self.n_sets, int) and self.n_sets > 1:
            raise InputError(
                f"n_sets must be at most 1, got {self.n_sets}: each further set from "
                f"the same proportions would cost "
                "epsilon again; make several releases, each at its share of epsilon"
            )
        super().__post_init__()
        check_n_records(self.n_draws, self.neighbours)

    @property
    def n_draws(self) -> int | None:
        """Number of synthetic records, from public knowledge; None for as many as the
        table has.
        """
        found: int | None = getattr(self, "n_records", None)
        return found

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: a draw of all urns for each set."""
        check_domain(schema, self.neighbours)
        if schema.public_columns and self.n_draws is not None:
            raise InputError(
                "with public columns the synthetic sets have the table's public "
                "records: leave n_records out"
            )
        draw = Step(
            name=self.question,
            sensitivity=self.sensitivity(schema),
            price=self.per_round(self.n_sets),
            law="distribution",
            own_rho=self.rho_of_set(schema, self.per_round(self.n_sets)),
        )
        design = UrnRule(
            domain=domain_of(schema),
            epsilon=1 / draw.scale,
            polya=self.polya,
            n_draws=self.n_draws,
        )
        return self.planned(
            schema, [draw], self.description, repeats=self.n_sets, design=design
        )

    def sensitivity(self, schema: Schema) -> Sensitivity:
        """Return how many records one person has in a table: each of them may move a
        draw by the rule's epsilon.
        """
        return Sensitivity.of_record(schema, l1=1)

    def rho_of_set(self, schema: Schema, epsilon: Fraction) -> Fraction:
        """Return the rho of one set: of all its draws, or what epsilon implies.

        Each draw given the earlier ones is private by itself, at epsilon / N, in a
        Polya urn at log(1 + 1 / alpha) for one record and k times that for k. A number
        of draws that only the table says may be 1, for which nothing less is proved
        (``docs/proofs/urns.md``, theorem 4).
        """
        whole = of_pure(epsilon)
        if self.n_draws is None:
            return whole
        each = epsilon / self.n_draws
        if self.polya:
            cap = schema.records.max_per_person
            each = cap * polya_draw(epsilon / cap, self.n_draws)
        return min(whole, self.n_draws * of_pure(each))

    def ask(self, plan: Plan, curator: Curator) -> list[IntArray]:
        """Draw from the urns for each set: the numbers of its records' cells."""
        rule: UrnRule = plan.design
        (step,) = plan.steps
        drawn = []
        for _ in range(plan.repeats):
            with curator.timed("drawing from the urns"):
                drawn.append(curator.draw(step, lambda table: Urns(table, rule)))
        return drawn

    def draw(
        self,
        plan: Plan,
        measured: Sequence[IntArray],
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        """Write the records of each draw in random order, beside the public ones if
        any.
        """
        columns = public.columns if plan.schema.public_columns else None
        sets = []
        for cell in measured:
            for _ in range(n_sets // plan.repeats):
                with timed("writing records"):
                    frame = synthesis.records(
                        plan.design, plan.schema, cell, rng, public=columns
                    )
                sets.append(frame)
        return Drawn(sets=sets)


@dataclass(frozen=True, kw_only=True)
class SmoothedHistogram(Urn):
    """Records drawn from a histogram that is mixed with an even one, without noise.

    ``epsilon`` and ``neighbours`` are those of :class:`pdips.Mechanism`; a second set
    drawn from the same proportions would cost epsilon once more, so ``n_sets`` is 1.

    Parameters
    ----------
    n_records : int, optional
        Number N of synthetic records, from public knowledge: the fewer, the closer they
        follow the table. By default as many as the table has, which add-remove can't
        reveal, so there it must be given; with public columns it can't.

    Notes
    -----
    Each of N independent records is in cell c with probability (n_c + a) / (n + K a), a
    = 1 / (e^(epsilon / N) - 1), K the number of cells that can occur. A record more or
    less, or another one, changes that by a factor of at most 1 + 1/a = e^(epsilon / N);
    with up to k records a person, epsilon / k takes the place of epsilon. For N = n
    this is Bowen and Liu (2020), equations 3.2 and 3.3 (Wasserman and Zhou, 2010),
    whose lambda is K a / (n + K a); in this form it also holds for add-remove. Drawn
    exactly. Proof: ``docs/proofs/urns.md``.

    Examples
    --------
    >>> import pandas as pd, pdips
    >>> schema = pdips.Schema.model_validate(
    ...     {"columns": {"ill": {"levels": [False, True]}}}
    ... )
    >>> table = pdips.Table(pd.DataFrame({"ill": [True, False, False]}), schema)
    >>> release, _ = SmoothedHistogram(epsilon=1, n_records=2).release(table)
    >>> len(release.sets[0])
    2
    """

    name: ClassVar[str] = "smoothed-histogram"
    offers: ClassVar[Offers] = Offers(
        zeros=True,
        rules=True,
        public_columns=True,
        relations=("replace-one", "add-remove"),
        even_in_cells=True,
    )
    most_sets: ClassVar[int] = 1
    question: ClassVar[str] = "records drawn from the smoothed histogram"
    description: ClassVar[str] = (
        "Synthetic records are exact independent draws from the table's cell "
        "proportions mixed with even ones; "
        "the share of the even ones follows from epsilon and public numbers, so that "
        "no draw tells more than "
        "epsilon divided by their number."
    )

    n_records: int | None = None


@dataclass(frozen=True, kw_only=True)
class MultinomialDirichlet(Urn):
    """Records drawn from a posterior draw of the cell probabilities, which is itself
    never shown.

    ``epsilon``, ``n_sets`` and ``neighbours`` are those of :class:`pdips.Mechanism`.
    Each set has a posterior draw of its own and costs epsilon / n_sets.

    Parameters
    ----------
    n_records : int, optional
        Number N of synthetic records of each set, as for :class:`SmoothedHistogram`.

    Notes
    -----
    pi ~ Dirichlet(n_1 + alpha, ..., n_K + alpha), then N records from pi, with alpha =
    N / (e^epsilon - 1): the probability of any N records changes by a factor of at most
    1 + N / alpha = e^epsilon (Bowen and Liu 2020, section 3.2.1, after Abowd and
    Vilhuber, 2008). With up to k records a person, epsilon / k takes the place of
    epsilon. Two cells make it the Binomial-Beta synthesizer. pi is integrated out by a
    Polya urn, drawn exactly. Two sets from one pi would lose more than epsilon, and pi
    itself everything. Proof: ``docs/proofs/urns.md``.

    Examples
    --------
    >>> import pandas as pd, pdips
    >>> schema = pdips.Schema.model_validate(
    ...     {"columns": {"ill": {"levels": [False, True]}}}
    ... )
    >>> table = pdips.Table(pd.DataFrame({"ill": [True, False, False]}), schema)
    >>> release, _ = MultinomialDirichlet(epsilon=1, n_sets=2).release(table)
    >>> [len(records) for records in release.sets]
    [3, 3]
    """

    name: ClassVar[str] = "multinomial-dirichlet"
    offers: ClassVar[Offers] = Offers(
        zeros=True,
        rules=True,
        public_columns=True,
        relations=("replace-one", "add-remove"),
        even_in_cells=True,
    )
    splits: ClassVar[tuple[Split, ...]] = ("per-set",)
    polya: ClassVar[bool] = True
    question: ClassVar[str] = "records drawn from the posterior"
    description: ClassVar[str] = (
        "The counts of each synthetic set are an exact draw from their "
        "Dirichlet-multinomial law given the "
        "table's counts and a public prior; the drawn cell probabilities are not "
        "released, and no two sets share "
        "them."
    )

    n_records: int | None = None


@dataclass(frozen=True, kw_only=True)
class McClureReiter(Urn):
    """Records drawn from the posterior mean of the cell probabilities.

    The settings are those of :class:`pdips.Mechanism`: one set, since a second one
    drawn from the same proportions would cost epsilon once more, and replace-one
    neighbours, so that the set has the public number of records.

    Notes
    -----
    For two cells n records from Binomial(n, (n_1 + a) / (n + 2 a)), a = 1 / (e^(epsilon
    / n) - 1) (Bowen and Liu 2020, section 3.2.1, after McClure and Reiter, 2012). For K
    cells the same with K a is the smoothed histogram of n records, which
    ``smoothed-histogram`` generalises to other numbers of records and to add-remove.
    Proof: ``docs/proofs/urns.md``.

    Examples
    --------
    >>> import pandas as pd, pdips
    >>> schema = pdips.Schema.model_validate(
    ...     {"columns": {"ill": {"levels": [False, True]}}}
    ... )
    >>> table = pdips.Table(pd.DataFrame({"ill": [True, False, False]}), schema)
    >>> release, _ = McClureReiter(epsilon=1).release(table)
    >>> len(release.sets[0])
    3
    """

    name: ClassVar[str] = "mcclure-reiter"
    offers: ClassVar[Offers] = Offers(
        zeros=True, rules=True, public_columns=True, even_in_cells=True
    )
    most_sets: ClassVar[int] = 1
    question: ClassVar[str] = "records drawn from the posterior mean"
    description: ClassVar[str] = (
        "Synthetic records are exact independent draws from the posterior mean of "
        "the cell probabilities under a "
        "public prior that follows from epsilon and public numbers."
    )
