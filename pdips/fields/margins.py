"""Margins of a table, measured once with noise, and records that agree with them: all
pairs of columns in the residual basis, views, which hold every pair, or chosen pairs.
"""

import math
import warnings
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd

from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError, UselessWarning
from pdips.fields.pair_counts import (
    OF_CHOICE,
    ChosenPairs,
    MarginCounts,
    PairsAgain,
    SecondCount,
    hold_first,
    margins_asked,
    open_pairs,
    pair_design,
)
from pdips.fields.pair_design import MARGINS, PairDesign, said_of_pairs
from pdips.fields.pair_plan import (
    n_choices,
    n_cuts_at,
    n_pairs_of,
    pairs_are_chosen,
    share_beside_chosen,
)
from pdips.fields.pair_sets import FittedPairs, PairMeasurement, check_memory
from pdips.fields.price_parts import (
    AGAIN,
    ALONE,
    ALONE_NUMERIC,
    ALONE_QUIET,
    ALONE_TWICE,
    FEWEST_PAIRS,
    MOST_CHOSEN,
    OF_PRODUCTS,
    OF_WEIGHTS,
    PART_AGAIN,
    QUIET,
    PriceParts,
)
from pdips.fields.products import MOST_TERMS, SecondMoments
from pdips.fields.set_sizes import check_chunks, check_set_size, set_size
from pdips.fields.weighted_sums import WeightedSums
from pdips.margins.domain import columns_of
from pdips.margins.fine_columns import IntervalDesign
from pdips.margins.margin_error import pair_errors
from pdips.margins.synthesis import (
    drawn_from_trees,
    measured_trees,
    tree_margins,
)
from pdips.margins.tree import NoisyTree
from pdips.margins.views import can_be_laid_out, said_of_views, view_design
from pdips.mechanism import AnswerTables, Drawn, LaplaceOrGaussian, Split
from pdips.privacy.answers import PublicFacts
from pdips.privacy.curator import Curator, timed
from pdips.privacy.loss import (
    MOST_TAU,
    Number,
    check_whole,
    choice,
    exact,
    largest_rho,
    proper_share,
)
from pdips.privacy.plan import Plan
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.large_set import ChunkedSet
from pdips.release.offers import Offers, SetsShare

type Measure = Literal["views", "pairs", "chosen"]
"""What is measured."""

OF_PAIRS = (
    "intervals",
    "also",
    "weighted",
    "products",
    "single_share",
    "second_share",
    "chosen",
    "records",
)
"""Settings of pairs alone."""

MANY = 100  # Levels of a column about which a warning may be due


@dataclass(frozen=True, kw_only=True)
class Margins(LaplaceOrGaussian):
    """Noisy counts of margins that hold every pair of columns, and records that fit
    them.

    Views are margins of a few columns each; the table of maximum entropy that agrees
    with them is laid out, so it has 2^24 cells at most. Pairs are all one- and two-way
    margins; records come from the chains of a pairwise Markov random field. No object
    grows with the number of cells then, so tables may have up to 200 columns.
    ``epsilon``, ``n_sets`` and ``neighbours`` are those of
    :class:`pdips.mechanism.Mechanism`.

    Parameters
    ----------
    measure : {"views", "pairs", "chosen"}, optional
        Left out, the schema decides, before a table is read: views where all columns
        have levels or bins and their cells can be laid out, which was more accurate
        (``docs/mechanisms/margins.md``); pairs for other tables, for members and groups
        of codes, and where a setting asks for pairs: ``intervals``, ``also``,
        ``weighted``, ``products``, ``single_share`` and ``second_share``; of these, for
        one set without a delta of four columns or more with numbers without bins,
        chosen pairs: few, none, or all where there are many records.
    delta : int, float, str or Fraction, optional
        Left out, noise is discrete Laplace, and losses add up in epsilon. A number
        makes it discrete Gaussian, with a zero-concentrated loss that is read at this
        delta: far quieter where there are many columns.
    sets : {"fitted", "posterior"}, optional
        Whether sets come from the table or field that fits best, or each from one of
        its own, fitted to the noisy margins with fresh noise on top, so that sets
        differ as much as the noise makes unsure. Left out: the first for one set, the
        second for several.
    split : {"once", "per-set"}
        One noisy answer for all sets, or views with noise of their own, at epsilon /
        n_sets, for each.
    intervals : int, optional
        In how many intervals numeric columns without bins are cut for pairs, at noisy
        quantiles; 2 to 100. Left out: 4, 8 or 16, the fewer the louder the noise on
        pairs is.
    also : tuple of str
        Columns, in threes: margins that are measured too, with a fifth of the price of
        pairs.
    weighted : tuple of str
        Columns whose sums of weights by level are measured, with a tenth of the price,
        and met by the weights of sets.
    products : tuple of str, optional
        Columns of a regression: sums of their products are measured, with a quarter of
        the price, from which :meth:`pdips.outside.NoisyMargins.ols` gives slopes of
        numbers without bins, and sets come near these. Left out: numbers without bins
        where sets carry the noise, if there are two or more and no members of
        households.
    single_share : int, float, str or Fraction, optional
        Part of the price that single columns get, above 0 and below 1.
    second_share : int, float, str or Fraction, optional
        Part of the price of pairs for a second count of those that say most by the
        first, at least 0 and below 1. Left out: a half, or 0 for Laplace noise.
    chosen : int, optional
        How many pairs are chosen at most; 0 counts single columns alone. In fitted sets
        columns of other pairs depend on each other through these alone; in those of a
        ``"posterior"`` by a draw of what the choices leave open. Left out: where pairs
        are chosen, price and schema say how often.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Of views a record is in one cell each. Replacing it changes the counts of a view by
    at most 2 in l1, adding or removing it by 1, and the prices of the views add up.
    Proof: ``docs/proofs/steps.md``.

    Pairs are measured in the residual basis (Xiao, He, Zhang and Kifer, 2023): what
    each says beyond its own margins has noise of its own. A record moves all of them
    together by an amount that is the same for all records under add-remove, and bounded
    by a certificate under replace-one. What is published are noisy counts or their
    differences; everything after that is post-processing. Proof:
    ``docs/proofs/margins.md``.

    Examples
    --------
    >>> schema = Schema.model_validate(
    ...     {"columns": {name: {"levels": [0, 1]} for name in "abc"}}
    ... )
    >>> table = Table(pd.DataFrame({name: [0, 1, 1] for name in "abc"}), schema)
    >>> release, _ = Margins(epsilon=1, delta="1e-6").release(table)
    >>> len(release.sets[0])
    3
    """

    name: ClassVar[str] = "margins"
    splits: ClassVar[tuple[Split, ...]] = ("once", "per-set")
    offers: ClassVar[Offers] = Offers(
        zeros=True,
        rules=True,
        public_columns=True,
        totals=True,
        households=True,
        counted_tables=True,
        partitions=True,
        relations=("replace-one", "add-remove"),
        kinds=("pure", "zcdp"),
        even_in_cells=True,
        planned_scales=True,
    )

    measure: Measure | None = None
    sets: Literal["fitted", "posterior"] | None = None
    split: Split = "once"
    intervals: int | None = None
    also: tuple[str, ...] = ()
    weighted: tuple[str, ...] = ()
    products: tuple[str, ...] | None = None
    single_share: Number | None = None
    second_share: Number | None = None
    chosen: int | None = None
    records: Number | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_measure()
        if self.intervals is not None:
            check_whole(self.intervals, "intervals", 2, 100)
        if len(self.also) % 3:
            raise InputError(
                "also takes names of columns in threes, such as also=sex,age,income"
            )
        if self.single_share is not None:
            proper_share(self.single_share, "single_share")
        if self.second_share is not None and exact(self.second_share, "second_share"):
            proper_share(self.second_share, "second_share")
        if self.chosen is not None:
            check_whole(self.chosen, "chosen", 0)
        check_set_size(self.records, self.sets, self.weighted)
        is_asked = self.measure == "chosen" or self.chosen is not None
        if is_asked and self._needs_all():
            raise InputError(
                "chosen goes without also and second_share, which need all pairs"
            )
        if self.chosen == 0 and self._posterior:
            raise InputError(
                "chosen = 0 goes with sets=fitted: others need a choice of pairs"
            )

    def _check_measure(self) -> None:
        if self.measure is not None:
            choice(self.measure, ("pairs", "views", "chosen"), "measure")
        if self.sets is not None:
            choice(self.sets, ("fitted", "posterior"), "sets")
        is_per_set = self.split == "per-set"
        if self.sets == "posterior" and is_per_set:
            raise InputError(
                "sets = 'posterior' draws all sets from one noisy "
                "answer: it goes with split = 'once'"
            )
        of_pairs = self._of_pairs()
        if self.measure in ("chosen", "pairs") and is_per_set:
            of_pairs.append(f"measure = {self.measure!r}")
        if of_pairs and (is_per_set or self.measure == "views"):
            where = "split = 'per-set'" if is_per_set else "measure = 'views'"
            raise InputError(
                f"{where} counts views, and {of_pairs[-1]} asks for pairs: leave one "
                f"of them out"
            )

    @property
    def total(self) -> Fraction:
        """The budget, with what is kept of delta for noise that isn't quite of
        its law.
        """
        if self.delta is None:
            return super().total
        delta = exact(self.delta, "delta")
        if delta <= MOST_TAU:
            raise InputError(
                "delta must be above 10^-20 for Gaussian noise that is "
                "nearly of its law"
            )
        return largest_rho(exact(self.epsilon, "epsilon"), delta - MOST_TAU)

    def for_more_sets(self, schema: Schema) -> Self:
        """Return the mechanism whose sets show the noise, if they share it."""
        if self.split == "per-set":
            return self
        if self.chosen == 0:
            raise InputError("more sets need pairs, and this release counted none")
        products = self.products
        if products is None and not self._posterior:
            products = ()  # what fitted sets didn't ask can't be asked later
        same = replace(self, measure=self.measures(schema), products=products)
        return replace(same, sets="posterior", records=None)

    def sets_share(self) -> SetsShare:
        """Return what the sets share: posterior sets show the noise."""
        return "fresh noise" if self._posterior else super().sets_share()

    def measures(self, schema: Schema) -> Measure:
        """Return what is measured of tables of a schema: what was asked for, or what
        settings and schema leave.
        """
        if self.chosen is not None:
            return "chosen"
        if self.measure is not None:
            return self.measure
        if self.split == "per-set":
            return "views"
        if not self._of_pairs() and can_be_laid_out(schema):
            return "views"
        # Gaussian noise grows with the root of the number of pairs alone
        needs_all = self.delta is not None or self._posterior or self._needs_all()
        may_choose = not needs_all and pairs_are_chosen(schema, self.neighbours)
        return "chosen" if may_choose else "pairs"

    def _needs_all(self) -> bool:
        """Return whether other settings need a count of all pairs."""
        return bool(self.also) or self.second_share is not None

    def _n_chosen(self, schema: Schema) -> int:
        """Return how many pairs are chosen at most."""
        if self.chosen is not None:
            return self.chosen
        price = self.total * (1 - self._share_beside_chosen(schema))
        return n_choices(schema, self.neighbours, self.noise_law, price)

    def _share_beside_chosen(self, schema: Schema) -> Fraction:
        """Return what single columns get of the price beside chosen pairs."""
        if self.chosen == 0:
            return Fraction(1)
        if self.single_share is not None:
            return exact(self.single_share, "single_share")
        return share_beside_chosen(schema, self.neighbours, self.noise_law, self.total)

    def _of_pairs(self) -> list[str]:
        """Return the settings that were given and that pairs alone have."""
        left_out: tuple[Any, ...] = (None, (), [])  # a published document has lists
        return [name for name in OF_PAIRS if getattr(self, name) not in left_out]

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: noisy counts of views, or one noisy answer that holds all
        margins of one and two columns, and those of the extras.
        """
        if self.measures(schema) == "views":
            return self._plan_views(schema)
        return self._plan_pairs(schema)

    def _plan_views(self, schema: Schema) -> Plan:
        design = view_design(
            schema,
            self.neighbours,
            self.noise_law,
            self.total / self.rounds,
            redraws=self._posterior,
        )
        return self.planned(
            schema,
            [view.step for view in design.views],
            said_of_views(self.noise_law),
            repeats=self.rounds,
            design=design,
            **self.reading,
        )

    def _plan_pairs(self, schema: Schema) -> Plan:
        check_chunks(schema, self.records)
        fine = self._fine(schema)
        design = self._design(schema, fine)
        second = self._second(schema, design)
        sums = self._sums(schema)
        moments = self.moments(schema)
        parts = self._parts(schema, fine, design, second)
        if design.pairs:
            of_singles = parts.alone / (parts.alone + parts.pairs)
            design = replace(design, alone=of_singles or None)
        if not design.margins and fine.numeric:
            # numbers alone: intervals of one of them are the only margin
            design = replace(design, known=design.known[1:])
        # under add-remove the number of records is a margin, ()
        if not any(design.margins) and not fine.numeric:
            raise InputError(
                "no column has two levels or more: there is nothing to measure"
            )
        laws = (self.neighbours, self.noise_law)
        if fine.columns:
            fine = fine.priced(schema, self.total * parts.fine, *laws)
        first = self.total * (parts.alone + parts.pairs)
        design, margins = margins_asked(design, schema, first)
        steps = [*chain(*fine.steps), margins]
        said = said_of_pairs(design, self.noise_law, self.also) + fine.said
        if sums is not None:
            steps.insert(-1, sums.step(self.total * OF_WEIGHTS, *laws))
            said += sums.said
        if second is not None:
            steps += second.steps(self.total * parts.second, *laws)
            said += second.said
        if moments is not None:
            steps.append(moments.step(self.total * OF_PRODUCTS, *laws))
            said += moments.said
        return self.planned(schema, steps, said, design=design, **self.reading)

    def _fine(self, schema: Schema) -> IntervalDesign:
        """Return the columns that are counted by themselves, finer than in pairs."""
        return IntervalDesign.of(schema, self._n_cuts(schema))

    def _sums(self, schema: Schema) -> WeightedSums | None:
        """Return the sums of weights that are measured, or None."""
        return WeightedSums(schema, self.weighted) if self.weighted else None

    def moments(self, schema: Schema) -> SecondMoments | None:
        """Return the sums of products that are measured, or None."""
        names = self.products
        # few households have all members
        if names is None and self._posterior and not schema.members:
            numbers = tuple(
                name
                for name, column in schema.columns.items()
                if not column.is_categorical and not column.is_binned
            )
            names = numbers if 1 < len(numbers) < MOST_TERMS else None
        return SecondMoments(schema, tuple(names)) if names else None

    def _second(
        self, schema: Schema, design: PairDesign
    ) -> SecondCount | ChosenPairs | None:
        """Return the pairs that are counted beside all, or in their place, or None."""
        n_open = len(open_pairs(design))
        if self.measures(schema) == "chosen":
            n_chosen = min(self._n_chosen(schema), n_open)
            if self.chosen is not None and self.chosen >= n_open:
                raise InputError(
                    f"chosen is as many as the {n_open} pairs that "
                    f"there are, or more: leave it out"
                )
            if self.chosen is None and n_chosen and self.noise_law == "laplace":
                most = min(MOST_CHOSEN * len(schema.columns), n_open)
                return ChosenPairs(schema, most, n_open, n_usual=n_chosen)
            return ChosenPairs(schema, n_chosen, n_open) if n_chosen else None
        n_pairs = sum(len(margin) == 2 for margin in design.margins)
        n_again = math.ceil(PART_AGAIN * n_open)
        if n_pairs < FEWEST_PAIRS or not n_again or not self._second_share():
            return None
        return SecondCount(schema, n_again)

    def _parts(
        self,
        schema: Schema,
        fine: IntervalDesign,
        design: PairDesign,
        second: SecondCount | ChosenPairs | None,
    ) -> PriceParts:
        """Return what each question gets of the price."""
        single = self._single_share(schema, fine, second)
        names = design.domain.names
        n_others = len(names) - len(design.domain.public) - len(fine.numeric)
        is_chosen = self.measures(schema) == "chosen"
        if is_chosen:
            n_others = max(n_others, 1)
        of_fine = Fraction(fine.worth, n_others + fine.worth)
        twice = Fraction(0)
        if is_chosen:
            twice = Fraction(1)
        elif second is not None:
            twice = self._second_share()
        rest = Fraction(1)
        if self.weighted:
            rest -= OF_WEIGHTS
        if self.moments(schema) is not None:
            rest -= OF_PRODUCTS
        of_singles = rest * single
        of_pairs = rest - of_singles
        return PriceParts(
            fine=of_singles * of_fine,
            alone=of_singles * (1 - of_fine),
            pairs=of_pairs * (1 - twice),
            second=of_pairs * twice,
        )

    def _single_share(
        self,
        schema: Schema,
        fine: IntervalDesign,
        second: SecondCount | ChosenPairs | None,
    ) -> Fraction:
        """Return what single columns get of the price of columns and pairs."""
        if self.measures(schema) == "chosen":
            return self._share_beside_chosen(schema) if second else Fraction(1)
        if self.single_share is not None:
            return exact(self.single_share, "single_share")
        if fine.numeric:
            return ALONE_NUMERIC[self.noise_law]
        if second is None or not self._second_share():
            return ALONE[self.noise_law]
        squared = Sensitivity.of_counts(schema, self.neighbours).l2_squared
        is_quiet = squared < 2 * QUIET * self.total
        return ALONE_QUIET if is_quiet else ALONE_TWICE

    def _design(self, schema: Schema, fine: IntervalDesign) -> PairDesign:
        """Return the margins of all pairs, and of ``also``, before they have shares."""
        return pair_design(
            schema,
            fine,
            self.neighbours,
            self.noise_law,
            self.also,
            pairs=self.measures(schema) != "chosen",
        )

    def check(self, plan: Plan, table: Table) -> None:
        """Refuse tables of more records than counts of pairs have room for."""
        if self.measures(plan.schema) == "views":
            return
        hold_first(table, plan.design, self._fine(plan.schema))
        if not plan.n_public:
            return
        if self.records is None:
            check_memory(table.n_records, len(plan.schema.columns), self.n_sets)
        design = plan.design
        for block in design.loud_blocks(plan.named(MARGINS), table.n_records, MANY):
            own = design.blocks[block].columns
            names = ", ".join(repr(design.domain.names[k]) for k in own)
            warnings.warn(
                f"{names} has {design.sizes[block]:,} levels, and noise would make up "
                f"most of its margin: merge levels, or take wider bins; levels may "
                f"have groups in the schema",
                UselessWarning,
                stacklevel=3,
            )

    def set_records(self, n_records: int) -> int:
        """Return how many records a set has beside a table of so many."""
        return n_records if self.records is None else set_size(self.records, n_records)

    def seconds(self, schema: Schema, n_records: int) -> float:
        """Return about how long a set takes, by cells, or by records and pairs
        (measured 2026-11-24).
        """
        if self.measures(schema) == "views":
            return 15 + 1.7e-5 * columns_of(schema).n_cells
        return 10 + 1.5e-6 * n_records * len(schema.columns) ** 2

    def shown(self) -> dict[str, Any]:
        """Return settings as they were filled in: those of pairs where it is known
        without a schema that pairs are measured.
        """
        share = None
        if self.single_share is not None:
            share = str(exact(self.single_share, "single_share"))
        second = None
        are_pairs = self.measure == "pairs" or self._of_pairs()
        if are_pairs and self.chosen is None:
            second = str(self._second_share())
        records = None if self.records is None else str(self.records)
        return super().shown() | {
            "records": records,
            "sets": "posterior" if self._posterior else "fitted",
            "single_share": share,
            "second_share": second,
        }

    def _n_cuts(self, schema: Schema) -> int:
        """Return in how many intervals pairs cut numbers: the louder the noise, the
        fewer.
        """
        if self.intervals is not None:
            return self.intervals
        of_pairs = 1 - ALONE_NUMERIC[self.noise_law]
        n_pairs = n_pairs_of(schema)
        if self.measures(schema) == "chosen":
            n_pairs = min(self._n_chosen(schema), n_pairs)
            of_singles = self._share_beside_chosen(schema)
            of_pairs = (1 - of_singles) * (1 - OF_CHOICE)
        price = self.total * of_pairs
        return n_cuts_at(schema, self.neighbours, self.noise_law, price, n_pairs)

    def settled(self, schema: Schema) -> Self:
        """Return the same with the settings given that would follow from its noise."""
        measured = self.measures(schema)
        if measured == "views":
            return self
        fine = self._fine(schema)
        second = self._second(schema, self._design(schema, fine))
        if measured == "chosen" and second is None:  # single columns have all
            return self
        n_cuts = self._n_cuts(schema) if fine.numeric else self.intervals
        return replace(
            self,
            measure=self.measure or measured,
            intervals=n_cuts,
            single_share=self._single_share(schema, fine, second),
        )

    def _second_share(self) -> Fraction:
        if self.second_share is None:
            return AGAIN[self.noise_law]
        return exact(self.second_share, "second_share")

    @property
    def _posterior(self) -> bool:
        """Whether each set comes from a fit of its own."""
        if self.sets is None:
            has_several = self.n_sets > 1 and self.split == "once"
            return has_several and self.records is None
        return self.sets == "posterior"

    def ask(self, plan: Plan, curator: Curator) -> PairMeasurement | list[NoisyTree]:
        """Measure the views; or all margins, and what the extras ask."""
        if self.measures(plan.schema) == "views":
            return measured_trees(plan, curator)
        return self._ask_pairs(plan, curator)

    def _ask_pairs(self, plan: Plan, curator: Curator) -> PairMeasurement:
        """Measure all margins, and what the extras ask; cuts, caps and the pairs that
        are counted again follow from earlier answers.
        """
        schema = plan.schema
        n_public = curator.n_records if plan.n_public else None
        sums = self._sums(schema)
        second = self._second(schema, plan.design)
        moments = self.moments(schema)
        with curator.timed("counting margins and adding noise"):
            fine = self._fine(schema).asking(plan.steps).ask(curator, n_public)
            noisy_sums = None if sums is None else sums.ask(curator, plan, fine)
            counts = MarginCounts.ask(curator, plan, fine)
        with curator.timed("counting the pairs that say most again"):
            again = PairsAgain([]) if second is None else second.ask(curator, counts)
        pairs = counts.estimate(again.margins)
        products = None
        if moments is not None:
            products = moments.ask(curator, plan, fine, pairs)
        n_records = n_public
        if n_records is None:
            n_records = max(round(pairs.n_records), 0)
        return PairMeasurement(
            counts=counts,
            again=again,
            pairs=pairs,
            sums=noisy_sums,
            products=products,
            n_records=n_records,
        )

    def tables_of(
        self, plan: Plan, measured: PairMeasurement | list[NoisyTree]
    ) -> AnswerTables:
        """Return the views, or the margins and tables of pairs and extras."""
        if isinstance(measured, PairMeasurement):
            return AnswerTables(margins=measured.margins(), tables=measured.tables())
        return AnswerTables(margins=tree_margins(plan, measured))

    def draw(
        self,
        plan: Plan,
        measured: PairMeasurement | list[NoisyTree],
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        """Draw sets from the table of maximum entropy that fits the views; or let the
        chains of a field that fits the pairs be records.
        """
        if isinstance(measured, PairMeasurement):
            return self._draw_pairs(plan, measured, n_sets, rng, public)
        return drawn_from_trees(plan, measured, n_sets, rng, public)

    def _draw_pairs(
        self,
        plan: Plan,
        measured: PairMeasurement,
        n_sets: int,
        rng: np.random.Generator,
        public: PublicFacts,
    ) -> Drawn:
        columns = public.columns if plan.schema.public_columns else None
        with timed("fitting a field"):
            fitted = FittedPairs.of(measured, columns, rng)
        sets = list[pd.DataFrame | ChunkedSet]()
        off = [fitted.off]
        for number in range(1, n_sets + 1):
            with timed(f"drawing synthetic set {number} of {n_sets}"):
                if self.records is not None:
                    size = set_size(self.records, measured.n_records)
                    sets.append(fitted.chunked_set(size, rng))
                elif self._posterior:
                    frame, own_off = fitted.posterior_set(rng)
                    off.append(own_off)
                    sets.append(frame)
                else:
                    sets.append(fitted.fitted_set(rng))
        of_codes = measured.counts.fine.of_codes()
        variances = {name: margin.law.variance for name, margin in of_codes.items()}
        published = self.tables_of(plan, measured)
        has_own_size = self.records is not None and plan.n_public
        n_public = measured.n_records if has_own_size else None
        return Drawn.of(
            sets,
            tables=published.tables,
            margins=published.margins,
            margin_errors=[*pair_errors(plan.design, measured.pairs, variances)],
            diagnostics=fitted.diagnostics(off),
            n_public=n_public,
        )
