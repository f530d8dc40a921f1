"""Noisy counts of margins: of all pairs, and of some pairs again, or of chosen pairs
alone.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Literal

import numpy as np

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Derived, Table
from pdips.errors import InputError
from pdips.fields.pair_design import MARGINS, PairDesign
from pdips.fields.passed_over import PassedOver
from pdips.margins.choosing import PairChoice, tables_in_units
from pdips.margins.consistency import groups_of
from pdips.margins.domain import columns_of
from pdips.margins.estimates import (
    NoisyPairs,
    block_axes,
    estimate,
    measured,
    most_telling,
)
from pdips.margins.fine_columns import FineCounts, IntervalDesign
from pdips.margins.residuals import Blocks, ResidualDesign, blocks_of
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Neighbours, root
from pdips.privacy.plan import AnswerLaw, Plan, Step, sharing
from pdips.privacy.rho import of_range
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.noisy_margins import MarginAxis, MeasuredMargin

CHOICE = "choice of pairs"
PAIRS = "noisy chosen pairs"
CHOICE_AND_COUNT = "pairs: their choice and count"
"""What the ledger calls both where one may hand on its price to the other."""
PAIRS_AGAIN = "noisy pairs, again"

MOST_LEVELS = 6_000  # Of all columns together: pairs of levels are held in memory
MOST_TRIPLE_CELLS = 100_000  # Of a margin of three columns
OF_CHOICE = Fraction(1, 4)
"""Part of the price of pairs that their choice gets (not compared with others)."""
SHARE_OF_ALL = 1 / (1 - OF_CHOICE)
"""How much of its price a count of all pairs has, which has that of the choices too."""

type BlockPair = tuple[int, int]
"""Two blocks of columns, by number."""

type LevelCounts = tuple[FloatArray, float]
"""Counts of the levels of a block, and the variance of one."""


@dataclass(frozen=True)
class EveryCount:
    """The statistic that all margins of a design follow from; ``fine`` counts say where
    pairs cut columns, if they cut any. Designs are the same if they are one object.
    """

    design: PairDesign
    fine: FineCounts | None

    @classmethod
    def of(cls, design: PairDesign, fine: FineCounts) -> "EveryCount":
        """Return the statistic of a design, without counts that say nothing."""
        return cls(design, fine if fine.design.columns else None)

    def __call__(self, table: Table) -> IntArray:
        """Return the counts of a table that is at hand."""
        levels = {} if self.fine is None else self.fine.levels(table)
        return self.design.every_count(table, levels)


def hold_first(table: Table, design: PairDesign, fine: IntervalDesign) -> None:
    """Count what is asked first in the pass that checks a table in many files."""
    table.hold(fine.cells if fine.columns else EveryCount(design, None))


@dataclass(frozen=True, kw_only=True, eq=False)
class MarginCounts:
    """The noisy answer to all margins, with what is known beside it.

    Parameters
    ----------
    plan : Plan
        Whose design says what the margins are.
    noisy : ndarray
        What is shown of their counts.
    fine : FineCounts
        Of columns that are cut, or grouped, for pairs.
    known : dict of int to (ndarray, float)
        The counts of the levels of blocks that aren't counted alone, and the variance
        of one.
    public : Table or None
        The public columns, if there are any.
    """

    plan: Plan
    noisy: IntArray
    fine: FineCounts
    known: dict[int, LevelCounts]
    public: Table | None

    @classmethod
    def ask(cls, curator: Curator, plan: Plan, fine: FineCounts) -> "MarginCounts":
        """Ask for the margins of a plan."""
        design = plan.design
        statistic = Derived(
            base=EveryCount.of(design, fine),
            of=design.counts_of,
            alone=lambda table: design.count(table, fine.levels(table)),
        )
        noisy = curator.count(plan.named(MARGINS), statistic)
        n_records = n_measured(design, noisy, fine)
        known = dict[int, LevelCounts]()
        if fine.design.numeric:
            # drawn once: a release that is resumed publishes the same ones
            variances = curator.keep(
                partial(fine.variances, n_records, curator.generator)
            )
            singles = fine.singles(fine.laws, n_records)
            for block, name in numeric_blocks(design).items():
                known[block] = singles[name], float(variances[name])
        public = curator.public if plan.schema.public_columns else None
        return cls(plan=plan, noisy=noisy, fine=fine, known=known, public=public)

    @property
    def design(self) -> PairDesign:
        """Which margins there are."""
        design: PairDesign = self.plan.design
        return design

    @property
    def step(self) -> Step:
        """What was asked."""
        return self.plan.named(MARGINS)

    @property
    def n_records(self) -> float:
        """The number of records: public, or noisy."""
        return n_measured(self.design, self.noisy, self.fine)

    @cached_property
    def axes(self) -> list[MarginAxis]:
        """The axis of each block, as it is published."""
        return block_axes(self.design, self.fine.lower(), self.fine.groups())

    def estimate(self, again: Sequence[MeasuredMargin] = ()) -> NoisyPairs:
        """Return estimates of all pairs, from pairs that were counted ``again``,
        too.
        """
        return estimate(
            self.design,
            self.step,
            self.noisy,
            self.fine.n_public,
            self.public,
            self.known,
            again,
        )

    def count(
        self,
        curator: Curator,
        step: Step,
        margins: Sequence[Blocks],
        *,
        units: Fraction = Fraction(1),
        share: Fraction = Fraction(1),
    ) -> list[MeasuredMargin]:
        """Return a noisy count of some margins of one or two blocks, whose sensitivity
        together is so many times that of the step, for a share of its price.
        """
        design = self.design
        statistic = Derived(
            base=EveryCount.of(design, self.fine),
            of=partial(design.small_counts, margins),
            alone=lambda table: design.tally(table, margins, self.fine.levels(table)),
        )
        counted = curator.count(step, statistic, units=units, share=share)
        ends = np.cumsum([math.prod(design.shape(margin)) for margin in margins])
        asked = step.enlarged(units, share)
        measured = list[MeasuredMargin]()
        parts = np.split(counted, ends[:-1])
        for margin, counts in zip(margins, parts, strict=False):
            axes = [self.axes[block] for block in margin]
            measured.append(MeasuredMargin.of(asked, axes, counts))
        return measured

    def published(self) -> list[MeasuredMargin]:
        """Return the margins as they are published."""
        return [*measured(self.design, self.step, self.noisy, self.axes, self.known)]


def pair_design(
    schema: Schema,
    fine: IntervalDesign,
    neighbours: Neighbours,
    law: Literal["laplace", "gaussian"],
    also: Sequence[str],
    *,
    pairs: bool,
) -> PairDesign:
    """Return the margins of all pairs, and of ``also``, before they have shares; refuse
    what can't be measured.
    """
    n_cuts = {column.name: column.n_cuts for column in fine.columns}
    domain = columns_of(schema, n_cuts)
    if len(domain.public) == len(domain.names):
        raise InputError(
            "all columns of the schema are public: there is nothing to synthesize"
        )
    if len(domain.public) and neighbours == "add-remove":
        raise InputError(
            "public columns give away the number of records; they "
            "need neighbours = replace-one"
        )
    numeric = {domain.names.index(column.name) for column in fine.numeric}
    known = [
        number
        for number, block in enumerate(blocks_of(domain))
        if numeric & {*block.columns}
    ]
    design = PairDesign(
        domain,
        neighbours,
        law,
        known=tuple(known),
        totals=schema.known_totals(weighted=False),
        pairs=pairs,
    )
    if design.offsets[-1] > MOST_LEVELS:
        raise InputError(
            f"the columns have {design.offsets[-1]:,} levels in all, more than "
            f"{MOST_LEVELS:,}: merge levels, take "
            "wider bins, or leave columns out"
        )
    if also:
        design = replace(design, also=triples_of(design, also))
    groups_of(design, None, schema.members)  # refuses rules that tie members
    return design


def margins_asked(
    design: PairDesign, schema: Schema, price: Fraction
) -> tuple[PairDesign, Step]:
    """Return the margins as counts, or as differences where their noise is quieter, and
    what is asked.
    """
    step = _margins_step(design, schema, price)
    if design.law == "gaussian":
        other = replace(design, whole=False)
        differing = _margins_step(other, schema, price)
        if differing.variance < step.variance:
            return other, differing
    return design, step


def _margins_step(design: PairDesign, schema: Schema, price: Fraction) -> Step:
    """Return what is asked, with less of the budget where noise on differences couldn't
    be quieter.
    """
    squared = design.squared if design.law == "gaussian" else None
    most = Sensitivity.of_record(schema, l1=design.moved, l2_squared=squared)
    beyond = Fraction(0)
    if not design.whole:
        quietest = design.smooth(most.l2_squared / (2 * price))
        price = min(price, most.l2_squared / (2 * quietest))
        beyond = design.beyond(quietest)
    return Step(
        name=MARGINS,
        counts="each count of the margin with the least noise",
        sensitivity=most,
        price=price,
        law=design.law,
        delta=beyond,
        image=replace(design.image, moved=_moved_margins(design, schema)),
    )


def _moved_margins(
    design: PairDesign, schema: Schema
) -> tuple[tuple[int, Sensitivity], ...]:
    """Return how far one person moves the counts of all margins of each weight: of
    every margin a record is in one cell.
    """
    n_margins = Counter(design.weights.tolist())
    return tuple(
        (weight, Sensitivity.of_counts(schema, design.neighbours, tables=n))
        for weight, n in n_margins.items()
    )


def n_measured(design: PairDesign, noisy: IntArray, fine: FineCounts) -> float:
    """Return the number of records: public, or noisy."""
    if fine.n_public is not None:
        return float(fine.n_public)
    return float(dict(design.parts(noisy))[()])


def numeric_blocks(design: ResidualDesign) -> dict[int, str]:
    """Return the blocks of numbers that are cut at noisy quantiles, with their
    names.
    """
    names = design.domain.names
    return {block: names[design.blocks[block].columns[0]] for block in design.known}


def open_pairs(design: PairDesign) -> list[BlockPair]:
    """Return the pairs that no public total has."""
    every = replace(design, pairs=True).margins
    return [
        (margin[0], margin[-1])
        for margin in every
        if len(margin) == 2 and margin not in design.covered
    ]


@dataclass(frozen=True)
class SecondCount:
    """The pairs that say most by a first count of all, counted again."""

    schema: Schema
    n_pairs: int

    @property
    def said(self) -> str:
        """What a plan says of it."""
        return (
            f" The {self.n_pairs} pairs that say most by these counts are counted "
            f"again, with such noise."
        )

    def steps(
        self, price: Fraction, neighbours: Neighbours, law: AnswerLaw
    ) -> list[Step]:
        """Return what is asked."""
        moved = Sensitivity.of_counts(self.schema, neighbours, tables=self.n_pairs)
        counted = Step(
            name=PAIRS_AGAIN,
            counts="each count of a pair counted again",
            sensitivity=moved,
            price=price,
            law=law,
        )
        return [counted]

    def ask(self, curator: Curator, first: MarginCounts) -> "PairsAgain":
        """Return a noisy count of the pairs that say most by the first one."""
        design = first.design
        candidates = open_pairs(design)
        rule = partial(
            most_telling,
            design,
            first.step,
            first.estimate(),
            candidates,
            self.n_pairs,
        )
        chosen = curator.decide(first.noisy, rule).tolist()
        pairs = [candidates[number] for number in chosen]
        return PairsAgain(first.count(curator, first.plan.named(PAIRS_AGAIN), pairs))


@dataclass(frozen=True)
class ChosenPairs:
    """At most so many pairs, chosen one by one by exponential mechanisms that may take
    none, and counted alone; if none is taken single columns are counted again.

    With ``n_usual`` the earlier answers say how many choices share their price, from so
    many on where there are many records, and whether all of ``n_open`` pairs are
    counted in their place.
    """

    schema: Schema
    n_pairs: int
    n_open: int
    n_usual: int | None = None

    @property
    def said(self) -> str:
        """What a plan says of it."""
        return (
            f" Exponential mechanisms chose up to {self.n_pairs} pairs for part of the "
            f"price; these counts have noise too."
        ) + self._said_of_all

    @property
    def _said_of_all(self) -> str:
        if self.n_usual is None:
            return ""
        return (
            f" All {self.n_open} pairs were counted instead if their noise was small "
            f"beside the number of records."
        )

    def steps(
        self, price: Fraction, neighbours: Neighbours, law: AnswerLaw
    ) -> list[Step]:
        """Return what is asked."""
        most = max(self.n_pairs, len(self.schema.columns))
        units = {tables_in_units(law, n) for n in range(1, most + 1)}
        if self.n_usual is not None:
            units.add(tables_in_units(law, self.n_open) / SHARE_OF_ALL)
        counted = Step(
            name=PAIRS,
            counts="each count of a pair chosen, if it is the only one",
            units=tuple(sorted(units)),
            sensitivity=Sensitivity.of_counts(self.schema, neighbours),
            price=price * (1 - OF_CHOICE),
            law=law,
        )
        choice = self.choice(price * OF_CHOICE, neighbours, law)
        if self.n_usual is None:
            return [choice, counted]
        # few of the choices may have the price of all, or a count of all pairs that of
        # both steps
        of_choices = of_range(choice.price) + counted.rho
        of_pairs = replace(counted, price=price).rho
        both = [replace(step, item=CHOICE_AND_COUNT) for step in (choice, counted)]
        return [*sharing(both, max(of_choices, of_pairs))]

    def choice(self, price: Fraction, neighbours: Neighbours, law: AnswerLaw) -> Step:
        """Return the choice of pairs, one by one: a record moves each score by the
        number of cells that it changes.
        """
        both = 2 * Sensitivity.of_counts(self.schema, neighbours).l1
        # fewer choices share the price of all
        made = () if self.n_usual is None else range(1, self.n_pairs + 1)
        # epsilon, whose square over 8 times the number of choices is their rho
        if law == "gaussian":
            price = root(8 * price * self.n_pairs)
        return Step(
            name=CHOICE,
            sensitivity=Sensitivity.of_person(l1=both),
            price=price,
            law="exponential",
            times=self.n_pairs,
            units=tuple(Fraction(n, self.n_pairs) for n in made),
        )

    def ask(self, curator: Curator, first: MarginCounts) -> "PairsAgain":
        """Return a noisy count of the pairs that are chosen, or of all."""
        design = first.design
        step = first.plan.named(PAIRS)
        candidates = open_pairs(design)
        choice = PairChoice(
            design=design,
            found=first.estimate(),
            pairs=candidates,
            choice=first.plan.named(CHOICE),
            counted=step,
            of_all=SHARE_OF_ALL,
        )
        if self.n_usual is not None:
            rule = partial(choice.by_records, self.n_usual)
            n_asked = int(curator.decide(first.noisy, rule)[0])
            choice = replace(choice, n_asked=n_asked)
        numbers = choice.chosen(curator, first.noisy, first.fine.levels)
        taken = choice.taken(numbers)
        margins: list[Blocks] = [candidates[number] for number in taken]
        if not margins:
            margins = [margin for margin in design.margins if len(margin) == 1]
            margins = margins or [(block,) for block in design.known]
        share = Fraction(1)
        if choice.n_asked == 0:
            margins = [*candidates]
            share = SHARE_OF_ALL
        units = tables_in_units(step.law, len(margins))
        counts = first.count(curator, step, margins, units=units, share=share)
        return PairsAgain(counts, choice=choice, numbers=tuple(numbers))


@dataclass(frozen=True, eq=False)
class PairsAgain:
    """Pairs that were counted beside all, or in their place, with what chose them and
    the number that each choice gave.
    """

    margins: list[MeasuredMargin]
    choice: PairChoice | None = None
    numbers: tuple[int, ...] = ()

    def passed_over(self, found: NoisyPairs) -> PassedOver | None:
        """Return what is known of the pairs that weren't counted, from estimates with
        the others; None where there are none.
        """
        if self.choice is None or not np.isinf(found.variance).any():
            return None
        return PassedOver.of(self.choice, self.numbers, found)


def triples_of(design: PairDesign, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the blocks of each three columns, whose margins are measured too.

    Raises
    ------
    InputError
        If a column can't be counted by itself, or three are named that have no margin.
    """
    place = dict[str, int]()
    for number, block in enumerate(design.blocks):
        if len(block.columns) == 1 < block.n_levels:
            place[design.domain.names[block.columns[0]]] = number
    if unfit := [name for name in names if name not in place]:
        raise InputError(
            f"also: {unfit[0]!r} is no column, has one level, or is "
            f"tied to others by zeros or rules"
        )
    blocks = [place[name] for name in names]
    triples = [tuple(sorted(blocks[k : k + 3])) for k in range(0, len(blocks), 3)]
    unfit_triples = [
        triple
        for triple in triples
        if len({*triple}) < 3 or design.public[[*triple]].all()
    ]
    if unfit_triples or len({*triples}) < len(triples):
        raise InputError(
            "also takes three different columns each time, not all "
            "public, and no three of them twice"
        )
    if any(math.prod(design.shape(triple)) > MOST_TRIPLE_CELLS for triple in triples):
        raise InputError(
            f"a margin of three columns may have at most {MOST_TRIPLE_CELLS:,} cells"
        )
    return tuple(triples)
