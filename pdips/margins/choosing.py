"""Which pairs of columns are counted, where not all are: exponential mechanisms take
those that are further from independent than counting them would add noise, or none.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial

import numpy as np

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.table import Table
from pdips.margins.estimates import NoisyPairs, by_columns
from pdips.margins.residuals import Blocks, ResidualDesign
from pdips.privacy.curator import Curator
from pdips.privacy.loss import DIGITS, root
from pdips.privacy.noise import UNAVAILABLE
from pdips.privacy.plan import AnswerLaw, Step

type BlockPair = tuple[int, int]
"""Two blocks of columns, by number."""

MEAN_ABSOLUTE = math.sqrt(2 / math.pi)
"""Of a normal number, in standard deviations."""


LOG_ODDS_OF_NONE = 3.0
"""Of no pair against all together, where each says as much as its noise: one choice in
20 takes one then.
"""


USUAL_RECORDS = 10_000
"""Up to so many records the number of choices follows from price and schema; of more,
a pair as far from independent is further in records, and less of the price tells it.
"""

QUIET_PART = 0.12
"""All pairs are counted where noise on all cells of one would add up to less than this
part of the records, on average over pairs.
"""


MOST_COST = 2.0**52
"""What a score takes off at most, in records: so scores are exact in doubles, whatever
the noise.
"""


def nats_of_none(n_pairs: int) -> float:
    """Return the score of no pair among so many, in nats of the choice."""
    return math.log(max(n_pairs, 1)) + LOG_ODDS_OF_NONE


def counting(step: Step, n_tables: int, share: Fraction = Fraction(1)) -> Step:
    """Return a step that is priced for one table as it counts so many, at a share of
    its price: one person moves each of them as far.

    Examples
    --------
    >>> from pdips.privacy.sensitivity import Sensitivity
    >>> one = Step(
    ...     name="a table", sensitivity=Sensitivity.of_person(l1=1), price=Fraction(1)
    ... )
    >>> counting(one, 3).scale
    Fraction(3, 1)
    """
    return step.enlarged(tables_in_units(step.law, n_tables), share)


def tables_in_units(law: AnswerLaw, n_tables: int) -> Fraction:
    """Return the sensitivity of so many tables in that of one: of Gaussian noise the
    root of their number, rounded up.
    """
    if n_tables <= 1:
        return Fraction(1)
    if law == "gaussian":
        return root(Fraction(n_tables)) + Fraction(1, DIGITS)
    return Fraction(n_tables)


@dataclass(frozen=True, kw_only=True, eq=False)
class PairChoice:
    """A choice of pairs, one by one, from noisy counts of single columns.

    Parameters
    ----------
    design : ResidualDesign
        Of the noisy answer.
    found : NoisyPairs
        Its estimate.
    pairs : sequence of (int, int)
        The candidates; the last candidate is to take none.
    choice : Step
        That chooses, as often as it says.
    counted : Step
        That will count one table.
    n_asked : int, optional
        How many of the choices read the table; they have the price of all.
    of_all : Fraction
        How much of its price a count of all pairs has: that of the choices too.
    """

    design: ResidualDesign
    found: NoisyPairs
    pairs: Sequence[BlockPair]
    choice: Step
    counted: Step
    n_asked: int | None = None
    of_all: Fraction = Fraction(1)

    @property
    def share(self) -> Fraction:
        """How much of its price in the plan a choice takes: above 1 where fewer share
        the price of all.
        """
        if self.n_asked is None:
            return Fraction(1)
        return Fraction(self.choice.times, self.n_asked)

    @cached_property
    def _directions(self) -> FloatArray:
        """For each pair the root of the squares of its cells' shares in independent
        noise beyond their margins, added up over cells.
        """
        sizes = self.design.sizes[np.array(self.pairs)]
        cells = ((sizes - 1) * sizes).prod(axis=1)
        return np.asarray(np.sqrt(cells.astype(float)))

    def _noise(self, n_tables: int) -> float:
        step = counting(self.counted, n_tables)
        return MEAN_ABSOLUTE * step.standard_deviation

    def cost(self, taken: Sequence[int]) -> FloatArray:
        """Return how much noise it adds to count each pair besides those that are
        taken, in records, shape (pairs,): its own, and what it makes the others louder.
        """
        others = float(self._directions[list(taken)].sum())
        more = self._noise(len(taken) + 1)
        louder = (more - self._noise(len(taken))) * others if taken else 0.0
        return more * self._directions + louder

    def by_records(self, n_usual: int, shown: IntArray) -> IntArray:
        """Return how many choices there are, by the number of records that noisy
        answers tell, shape (..., numbers): ``n_usual`` up to ``USUAL_RECORDS``, in
        proportion beyond, and 0, for a count of all pairs, where its noise would be
        small beside the records; shape (..., 1).
        """
        parts = dict(self.design.parts(shown))
        n_records = parts.get((), np.full(shown.shape[:-1], round(self.found.n)))
        proportion = np.maximum(n_records / USUAL_RECORDS, 1.0)
        n_asked = np.minimum(np.floor(n_usual * proportion), self.choice.times)
        everything = counting(self.counted, len(self.pairs), self.of_all)
        deviation = everything.standard_deviation
        noise = MEAN_ABSOLUTE * deviation * float(self._directions.mean())
        is_quiet = noise < QUIET_PART * n_records
        return np.where(is_quiet, 0, n_asked).astype(np.int64)[..., None]

    @property
    def records_a_nat(self) -> float:
        """By how many records one score must be above another to be e times as
        likely.
        """
        return float(self.choice.scale / self.share)

    @property
    def threshold(self) -> float:
        """By how much a pair must exceed its noise to be as likely as none at all, in
        records, where no other pair does.
        """
        return self.records_a_nat * nats_of_none(len(self.pairs))

    def scores(
        self, counts: Mapping[Blocks, IntArray], taken: Sequence[int], shown: IntArray
    ) -> IntArray:
        """Return the score of each pair, and of none, shape (..., pairs + 1), in
        records: how far exact counts are from independent, less noise.

        For given noisy answers ``shown``, shape (..., numbers), a record that comes or
        goes moves each by at most 1.
        """
        columns = by_columns(self.design, self.found, shown)
        of_noise = self.of_noise(taken, columns.shares)
        open_ = open_after(self.pairs, taken)
        scores = list[IntArray]()
        for number, pair in enumerate(self.pairs):
            independent = np.clip(columns.independent(pair), -MOST_COST, MOST_COST)
            apart = np.abs(counts[pair] - np.round(independent)).sum(axis=(-1, -2))
            public = np.minimum(np.round(of_noise[..., number]), MOST_COST)
            score = (apart - public).astype(np.int64)
            scores.append(np.where(open_[number], score, UNAVAILABLE))
        none = np.full(scores[0].shape, round(min(self.threshold, MOST_COST)))
        return np.stack([*scores, none], axis=-1)

    def of_noise(
        self, taken: Sequence[int], shares: Sequence[FloatArray]
    ) -> FloatArray:
        """Return what scores are less than distances from independence, in records,
        shape (..., pairs), by the shares of levels: what noise on single columns alone
        would show, and what a count costs.
        """
        blurred = [self._blurred(pair, shares) for pair in self.pairs]
        return np.stack(blurred, axis=-1) + self.cost(taken)

    def _blurred(self, pair: BlockPair, shares: Sequence[FloatArray]) -> FloatArray:
        """Return how far noise on its columns puts a pair from independent, in
        records.
        """
        first, last = pair
        of_first, of_last = (self.found.variance[block, block] for block in pair)
        squares = (
            of_first * shares[last][..., None, :] ** 2
            + of_last * shares[first][..., :, None] ** 2
        )
        return np.asarray(MEAN_ABSOLUTE * np.sqrt(squares).sum(axis=(-1, -2)))

    def chosen(
        self,
        curator: Curator,
        noisy: IntArray,
        levels: Callable[[Table], Mapping[str, IntArray]],
    ) -> list[int]:
        """Return the place of the pair that each choice takes, or their number for
        none.

        ``noisy`` is the answer of ``design``; ``levels`` takes the table and returns
        levels of columns without bins.
        """
        every = replace(self.design, pairs=True, whole=True, known=())
        counts = dict[Blocks, IntArray]()

        def scores(table: Table, shown: IntArray, taken: Sequence[int]) -> IntArray:
            if not counts:  # the table is read once for all choices
                exact = table.total(lambda part: every.count(part, levels(part)))
                counts.update(every.parts(exact))
            return self.scores(counts, taken, shown)

        n_asked = self.choice.times if self.n_asked is None else self.n_asked
        numbers = list[int]()
        for number_asked in range(self.choice.times):
            if number_asked >= n_asked:
                curator.pass_over(self.choice)
                continue
            rule = partial(scores, taken=self.taken(numbers))
            number = curator.choose_given(self.choice, noisy, rule, share=self.share)
            numbers.append(number)
        return numbers

    def taken(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return which of the numbers that choices gave are pairs."""
        return tuple(number for number in numbers if number < len(self.pairs))


def open_after(pairs: Sequence[BlockPair], taken: Sequence[int]) -> BoolArray:
    """Return which pairs may be taken after others."""
    left = np.ones(len(pairs), dtype=bool)
    left[list(taken)] = False
    return left
