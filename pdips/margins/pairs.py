"""All pairs of columns, measured once with noise, and records that agree with them: for tables of many columns."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.errors import InputError, UselessWarning
from pdips.margins.chains import PairField, PairTarget, redrawn
from pdips.margins.consistency import groups_of, meet
from pdips.margins.domain import columns_of
from pdips.margins.estimates import NoisyPairs, block_axes, chosen_pairs, estimate, measured, most_telling
from pdips.margins.intervals import IntervalDesign
from pdips.margins.margin_error import pair_errors
from pdips.margins.residuals import ResidualDesign, blocks_of
from pdips.margins.sums import MOST_TERMS, SUMS_OF_WEIGHTS, SecondMoments, WeightedSums
from pdips.mechanism import Drawn, LaplaceOrGaussian
from pdips.privacy.curator import Curator
from pdips.privacy.loss import MOST_TAU, Number, check_whole, choice, exact, largest_rho, proper_share, root
from pdips.privacy.plan import Plan, Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.noisy_margins import MarginAxis, MeasuredMargin

MOST_LEVELS = 6_000  # Of all columns together: pairs of levels are held in memory
MOST_RECORDS = 100_000_000

MOST_CELLS = 100_000  # Of a margin of three columns
MANY = 100  # Levels of a column about which a warning may be due
ALONE = {"gaussian": Fraction(3, 5), "laplace": Fraction(1, 4)}
"""Part of the price that single columns get: pairs say little where their columns are wrong (tried: .1 to .75)."""

ALONE_NUMERIC = {"gaussian": Fraction(4, 5), "laplace": Fraction(9, 10)}
"""With numeric columns without bins, whose cuts and spikes hang on their own counts (tried: .6 to .9)."""

ALONE_TWICE = Fraction(2, 5)
"""Of Gaussian noise where some pairs are counted twice and no numeric column is without bins (tried: .2 to .6)."""

ALONE_QUIET, QUIET = Fraction(1, 4), 15
"""The same where noise of the whole price would have a smaller variance, as from epsilon 2 (tried: .08 to .4)."""

AGAIN = {"gaussian": Fraction(1, 2), "laplace": Fraction(0)}
"""Part of the price of pairs that the second count gets (tried: 0 to .9); Laplace noise gains nothing from it."""

PART_AGAIN = Fraction(3, 10)
"""Part of the pairs that are counted a second time (tried: .05 to .6)."""

FEWEST_PAIRS = 6  # Of fewer pairs none is counted a second time
OF_CHOICE = Fraction(1, 6)
"""Part of the price of pairs that their choice gets (tried: .08 to .33)."""

FEWEST_CUTS, MOST_CUTS, BEARABLE = 4, 16, 1_100
"""Numbers without bins are cut into so many intervals that their square times the noise of a pair makes about so much:
a cell of ten thousand records then holds nine standard deviations of its noise (tried: 2 to 10 intervals)."""

MARGINS, CHOICE, PAIRS, PAIRS_AGAIN = "noisy margins", "choice of pairs", "noisy chosen pairs", "noisy pairs, again"

OF_WEIGHTS, OF_PRODUCTS = Fraction(1, 10), Fraction(1, 4)
"""Parts of the price that sums of weights get, and products."""


@dataclass(frozen=True, kw_only=True)
class Pairs(LaplaceOrGaussian):
    """Noisy counts of all one- and two-way margins, and records of a pairwise Markov random field that fits them.

    No object grows with the number of cells, so tables may have up to 200 columns. ``epsilon``, ``n_sets`` and
    ``neighbours`` are those of :class:`pdips.mechanism.Mechanism`.

    Parameters
    ----------
    kind : {"pure", "zcdp"}
        Discrete Laplace noise, whose losses add up in epsilon; or discrete Gaussian noise, read at ``delta``, which is
        far quieter where there are many columns.
    delta : int, float, str or Fraction
        For ``kind="zcdp"``.
    sets : {"fitted", "posterior"}, optional
        Whether sets come from the field that fits best, or each from a field of its own, fitted to the noisy margins
        with fresh noise on top, so that sets differ as much as the noise makes unsure. Left out: the first for one set,
        the second for several.
    intervals : int, optional
        In how many intervals numeric columns without bins are cut for pairs, at noisy quantiles; 2 to 100. Left out: 4,
        8 or 16, the fewer the louder the noise on pairs is.
    also : tuple of str
        Columns, in threes: margins that are measured too, with a fifth of the price of pairs.
    weighted : tuple of str
        Columns whose sums of weights by level are measured, with a tenth of the price, and met by the weights of sets.
    products : tuple of str, optional
        Columns of a regression: sums of their products are measured, with a quarter of the price, from which
        :meth:`pdips.outside.NoisyMargins.ols` gives slopes of numbers without bins, and sets come near these. Left out:
        numbers without bins where sets carry the noise, if there are two or more and no members of households.
    single_share : int, float, str or Fraction, optional
        Part of the price that single columns get, above 0 and below 1.
    second_share : int, float, str or Fraction, optional
        Part of the price of pairs for a second count of those that say most by the first, at least 0 and below 1. Left
        out: a half, or 0 for Laplace noise.
    chosen : int, optional
        How many pairs are counted: those that say most, by exponential mechanisms, which link all columns first. For
        many columns and little budget, twice as many as columns or so. Columns of other pairs depend on each other
        through these alone, so sets of a ``"posterior"`` need all pairs. Left out: all pairs are counted.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    Margins are measured in the residual basis (Xiao, He, Zhang and Kifer, 2023): what each says beyond its own margins
    has noise of its own. A record moves all of them together by an amount that is the same for all records under
    add-remove, and bounded by a certificate under replace-one. What is published are noisy counts or
    their differences; everything after that is post-processing. Proof: ``docs/proofs/pairs.md``.

    Examples
    --------
    >>> schema = Schema.model_validate({"columns": {name: {"levels": [0, 1]} for name in "abc"}})
    >>> table = Table(pd.DataFrame({name: [0, 1, 1] for name in "abc"}), schema)
    >>> release, _ = Pairs(epsilon=1, kind="zcdp", delta="1e-6").release(table)
    >>> len(release.sets[0])
    3
    """

    name: ClassVar[str] = "pairs"
    weighs_records: ClassVar[bool] = True
    adds_up: ClassVar[bool] = True
    meets_totals: ClassVar[bool] = True
    takes_households: ClassVar[bool] = True

    sets: Literal["fitted", "posterior"] | None = None
    intervals: int | None = None
    also: tuple[str, ...] = ()
    weighted: tuple[str, ...] = ()
    products: tuple[str, ...] | None = None
    single_share: Number | None = None
    second_share: Number | None = None
    chosen: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sets is not None:
            choice(self.sets, ("fitted", "posterior"), "sets")
        if self.intervals is not None:
            check_whole(self.intervals, "intervals", 2, 100)
        if len(self.also) % 3:
            raise InputError("also takes names of columns in threes, such as also=sex,age,income")
        if self.single_share is not None:
            proper_share(self.single_share, "single_share")
        if self.second_share is not None and exact(self.second_share, "second_share"):
            proper_share(self.second_share, "second_share")
        if self.chosen is not None:
            check_whole(self.chosen, "chosen")
            if self._sets() == "posterior" or self.also or self.second_share is not None:
                raise InputError(
                    "chosen goes with sets=fitted, and without also and second_share: sets that carry the noise need a "
                    "count of all pairs"
                )

    @property
    def total(self) -> Fraction:
        """The budget, with what is kept of delta for noise that isn't quite of its law."""
        if self.kind == "pure":
            return super().total
        delta = exact(self.delta, "delta")
        if delta <= MOST_TAU:
            raise InputError("delta must be above 10^-20 for Gaussian noise that is nearly of its law")
        return largest_rho(exact(self.epsilon, "epsilon"), delta - MOST_TAU)

    def plan(self, schema: Schema) -> Plan:
        """Return the plan: one noisy answer that holds all margins of one and two columns."""
        fine, design, n_again, whole, twice = self._shares(schema)
        asked = sum(column.worth for column in fine.columns)
        others = len(design.domain.names) - len(design.domain.public) - len(fine.numeric)
        part = Fraction(asked, max(others, int(self.chosen is not None)) + asked)
        if self.chosen is not None:
            design, twice = replace(design, pairs=False), Fraction(1)
            if n_again == len(_open_pairs(design)):
                raise InputError(f"chosen is as many as the {n_again} pairs that there are, or more: leave it out")
        alone, once = whole * (1 - part), (1 - whole) * (1 - twice)
        design = replace(design, alone=alone / (alone + once) or None if design.pairs else None)
        if not any(design.margins) and fine.numeric:
            design = replace(design, known=())
        if not any(design.margins):
            raise InputError("no column has two levels or more: there is nothing to measure")
        moments = self.moments(schema)
        total = self.total * (1 - OF_WEIGHTS * bool(self.weighted) - OF_PRODUCTS * bool(moments))
        price = total * whole * part
        if fine.columns:
            fine = fine.priced(schema, price, self.neighbours, self.noise_law)
        first, second = total * (alone + once), total * (1 - whole) * twice
        step, told = self._step(design, schema, first), ""
        if self.kind == "zcdp":
            other = replace(design, whole=False)
            differing = self._step(other, schema, first)
            if differing.variance < step.variance:
                design, step = other, differing
                told = " It is of the law of the proof but for a probability of 10^-20 at most, a part of delta."
        if self.also:
            names = (" x ".join(self.also[k : k + 3]) for k in range(0, len(self.also), 3))
            told += f" All counts of {', '.join(names)} have such noise too."
        what = "All counts" if design.whole else "Differences of neighbouring counts"
        columns = "one or two columns" if design.pairs else "one column"
        sentence = f"{what} of every margin of {columns} have exact discrete {step.law.capitalize()} noise."
        if fine.numeric:
            told += " Counts of intervals of numeric columns, by which margins cut them, have such noise too."
        if len(fine.columns) > len(fine.numeric):
            told += " Margins hold public groups of codes; counts of all levels of each code have such noise too."
        steps = [*chain(*fine.steps), step]
        if self.weighted:
            sums = WeightedSums(schema, self.weighted)
            steps.insert(-1, sums.step(self.total * OF_WEIGHTS, self.neighbours, self.noise_law))
            told += " Sums of capped weights by level have such noise too."
        if second:
            further, said = self._further(schema, design, n_again, second)
            steps, told = [*steps, *further], told + said
        if moments is not None:
            steps.append(moments.step(self.total * OF_PRODUCTS, self.neighbours, self.noise_law))
            told += f" Sums of products of {', '.join(moments.names)} have such noise too."
        return self.planned(schema, steps, sentence + told, design=design, **self.reading)

    def moments(self, schema: Schema) -> SecondMoments | None:
        """Return the sums of products that are measured, or None."""
        names = self.products
        if names is None:
            numbers = [n for n, column in schema.columns.items() if not column.is_categorical and not column.is_binned]
            sums = self._sets() == "posterior" and 1 < len(numbers) < MOST_TERMS and not schema.members
            names = tuple(numbers) if sums else ()  # few households have all members
        return SecondMoments(schema, tuple(names)) if names else None

    def _design(self, schema: Schema, fine: IntervalDesign) -> ResidualDesign:
        """Return the margins of all pairs, and of ``also``, before they have shares; refuse what can't be measured."""
        domain = columns_of(schema, {column.name: column.n_cuts for column in fine.columns})
        if len(domain.public) == len(domain.names):
            raise InputError("all columns of the schema are public: there is nothing to synthesize")
        if len(domain.public) and self.neighbours == "add-remove":
            raise InputError("public columns give away the number of records; they need neighbours = replace-one")
        known = {domain.names.index(column.name) for column in fine.numeric}
        blocks = tuple(k for k, block in enumerate(blocks_of(domain)) if known & {*block.columns})
        totals = schema.known_totals(weighted=False)
        design = ResidualDesign(domain, self.neighbours, self.noise_law, True, blocks, None, totals)
        if design.offsets[-1] > MOST_LEVELS:
            raise InputError(
                f"the columns have {design.offsets[-1]:,} levels in all, more than {MOST_LEVELS:,}: merge levels, take "
                "wider bins, or leave columns out"
            )
        if self.also:
            design = replace(design, also=self._triples(design))
        groups_of(design, None, schema.members)
        return design

    def _triples(self, design: ResidualDesign) -> tuple[tuple[int, ...], ...]:
        """Return the blocks of each three columns of ``also``."""
        alone = [(k, b) for k, b in enumerate(design.blocks) if len(b.columns) == 1 < b.n_levels]
        place = {design.domain.names[block.columns[0]]: k for k, block in alone}
        if unfit := [name for name in self.also if name not in place]:
            raise InputError(f"also: {unfit[0]!r} is no column, has one level, or is tied to others by zeros or rules")
        found = [tuple(sorted(map(place.__getitem__, self.also[k : k + 3]))) for k in range(0, len(self.also), 3)]
        if len({*found}) < len(found) or any(len({*each}) < 3 or design.public[[*each]].all() for each in found):
            raise InputError("also takes three different columns each time, not all public, and no three of them twice")
        if any(math.prod(design.shape(each)) > MOST_CELLS for each in found):
            raise InputError(f"a margin of three columns may have at most {MOST_CELLS:,} cells")
        return tuple(found)

    def _step(self, design: ResidualDesign, schema: Schema, price: Fraction) -> Step:
        """Return what is asked, with less of the budget where noise on differences couldn't be quieter."""
        squared = design.squared if self.kind == "zcdp" else None
        most, beyond = Sensitivity.of_record(schema, l1=design.moved, l2_squared=squared), Fraction(0)
        if not design.whole:
            quietest = design.smooth(most.l2_squared / (2 * price))
            price, beyond = min(price, most.l2_squared / (2 * quietest)), design.beyond(quietest)
        return Step(
            name=MARGINS,
            counts="each count of the margin with the least noise",
            sensitivity=most,
            price=price,
            law=self.noise_law,
            delta=beyond,
            image=design.image,
        )

    def _further(self, schema: Schema, design: ResidualDesign, n_pairs: int, price: Fraction) -> tuple[list[Step], str]:
        """Return the steps of pairs that are counted again, or chosen and counted, and what is said of them."""
        steps, name, what = list[Step](), PAIRS_AGAIN, "counted again"
        told = f" The {n_pairs} pairs that say most by these counts are counted again, with such noise."
        if not design.pairs:
            steps.append(self._choice(schema, n_pairs, price * OF_CHOICE))
            price, name, what = price * (1 - OF_CHOICE), PAIRS, "chosen"
            told = f" Exponential mechanisms chose {n_pairs} pairs for part of the price; these counts have noise too."
        moved, counts = Sensitivity.of_counts(schema, self.neighbours, tables=n_pairs), f"each count of a pair {what}"
        steps.append(Step(name=name, counts=counts, sensitivity=moved, price=price, law=self.noise_law))
        return steps, told

    def _choice(self, schema: Schema, n_chosen: int, price: Fraction) -> Step:
        """Return the choice of pairs, one by one: a record moves each score by the number of cells that it changes."""
        both = 2 * Sensitivity.of_counts(schema, self.neighbours).l1
        if self.kind == "zcdp":  # epsilon, whose square over 8 times the number of choices is their rho
            price = root(8 * price * n_chosen)
        most = Sensitivity.of_person(l1=both)
        return Step(name=CHOICE, sensitivity=most, price=price, law="exponential", times=n_chosen)

    def check(self, plan: Plan, table: Table) -> None:
        """Refuse tables of more records than counts have room for."""
        if not plan.n_public:
            return
        if table.n_records > MOST_RECORDS:
            raise InputError(f"pairs makes at most {MOST_RECORDS:,} records")
        design, step = plan.design, plan.named(MARGINS)
        for margin in (margin for margin in design.margins if len(margin) == 1):
            (n_levels,) = design.shape(margin)
            if n_levels >= MANY and n_levels * math.sqrt(design.variance(margin, step)) > table.n_records:
                names = ", ".join(repr(design.domain.names[k]) for k in design.blocks[margin[0]].columns)
                warnings.warn(
                    f"{names} has {n_levels:,} levels, and noise would make up most of its margin: merge levels, or "
                    "take wider bins; levels may have groups in the schema",
                    UselessWarning,
                    stacklevel=3,
                )

    def shown(self) -> dict[str, Any]:
        """Return settings as they were filled in."""
        delta = float(exact(self.delta, "delta")) if self.kind == "zcdp" else None
        share = None if self.single_share is None else str(exact(self.single_share, "single_share"))
        second = None if self.chosen is not None else str(self._second_share())
        return {"sets": self._sets(), "delta": delta, "single_share": share, "second_share": second}

    def _n_cuts(self, schema: Schema) -> int:
        """Return in how many intervals pairs cut numbers: the louder the noise, the fewer."""
        n_pairs = self.chosen or math.comb(len(schema.columns), 2) - math.comb(len(schema.public_columns), 2)
        if self.intervals is not None or not n_pairs:
            return self.intervals or MOST_CUTS
        moved = Sensitivity.of_counts(schema, self.neighbours, tables=n_pairs)
        price = self.total * (1 - ALONE_NUMERIC[self.noise_law])
        step = Step(name=PAIRS, counts="each count", sensitivity=moved, price=price, law=self.noise_law)
        halvings = round(math.log2(BEARABLE / max(step.standard_deviation, 1)) / 2)
        return int(min(max(2**halvings, FEWEST_CUTS), MOST_CUTS))

    def _n_again(self, design: ResidualDesign) -> int:
        n_open = len(_open_pairs(design))
        if self.chosen is not None:
            return min(self.chosen, n_open)
        n_pairs = sum(len(margin) == 2 for margin in design.margins)
        return math.ceil(PART_AGAIN * n_open) if n_pairs >= FEWEST_PAIRS else 0

    def _shares(self, schema: Schema) -> tuple[IntervalDesign, ResidualDesign, int, Fraction, Fraction]:
        """Return what is counted, how many pairs twice, single columns' share of the price, and the second count's."""
        fine = IntervalDesign.of(schema, self._n_cuts(schema))
        design = self._design(schema, fine)
        n_again = self._n_again(design)
        twice = self._second_share() if n_again else Fraction(0)
        quiet = Sensitivity.of_counts(schema, self.neighbours).l2_squared < 2 * QUIET * self.total
        found = (ALONE_QUIET if quiet else ALONE_TWICE) if twice else ALONE[self.noise_law]
        found = ALONE_NUMERIC[self.noise_law] if fine.numeric else found
        return fine, design, n_again, exact(self.single_share or found, "single_share"), twice

    def settled(self, schema: Schema) -> Self:
        """Return the same with the two settings given that would follow from its noise: intervals, and single_share."""
        fine, _, _, share, _ = self._shares(schema)
        return replace(self, intervals=self._n_cuts(schema) if fine.numeric else self.intervals, single_share=share)

    def _second_share(self) -> Fraction:
        return AGAIN[self.noise_law] if self.second_share is None else exact(self.second_share, "second_share")

    def _sets(self) -> str:
        return self.sets or ("fitted" if self.n_sets == 1 else "posterior")

    def restored(
        self, plan: Plan, margins: Sequence[MeasuredMargin], tables: Mapping[str, pd.DataFrame]
    ) -> Iterator[IntArray]:
        """Yield the noisy numbers of a release's public tables, in the order of the plan."""
        counted, design = [each.noisy for each in margins if each.law.law != "estimate"], plan.design
        n_margins, asked = len(design.margins), [design.variance(m, plan.named(MARGINS)) for m in design.margins]
        again = self._n_again(design) if any(step.name == PAIRS_AGAIN for step in plan.steps) else 0
        levels, fine = iter(counted[n_margins + again :]), IntervalDesign.of(plan.schema, self._n_cuts(plan.schema))
        stated = [each.law.variance for each in margins if each.law.law != "estimate"][:n_margins]
        n_counted = n_margins + again + len(fine.columns) - len(fine.numeric)
        if len(counted) != n_counted or not np.allclose(stated, asked):
            raise InputError(
                "the release has other margins, or other noise on them, than its settings in privacy.json ask for: it "
                "may be of a version with other shares of the price"
            )
        for column in fine.columns:
            yield from column.restored(tables["intervals"]) if column in fine.numeric else [next(levels)]
        if self.weighted:
            yield WeightedSums.restored(tables["weighted_sums"])
        yield np.concatenate(counted[:n_margins])
        if again:
            yield np.concatenate(counted[n_margins : n_margins + again])
        if self.moments(plan.schema):
            yield SecondMoments.restored(tables["products"])

    def synthesize(self, plan: Plan, curator: Curator, rng: np.random.Generator) -> Drawn:
        """Measure all pairs, fit a field to them, and let its chains be records."""
        design, step = plan.design, plan.named(MARGINS)
        fine = IntervalDesign.of(plan.schema, self._n_cuts(plan.schema)).asking(plan.steps)
        n_public, posterior = curator.n_records if plan.n_public else None, self._sets() == "posterior"
        with curator.timed("counting all pairs and adding noise"):
            counted = fine.measure(curator)
            laws = fine.laws(counted, n_public)
            cuts = {column.name: column.cuts(laws[column.name]) for column in fine.columns}
            sums = None
            if self.weighted:
                one = plan.named(SUMS_OF_WEIGHTS)
                sums = WeightedSums(plan.schema, self.weighted).measure(curator, one, fine, counted, laws)
            noisy = curator.count(step, lambda table: design.count(table, fine.levels(table, cuts)))
        public = curator.public if plan.schema.public_columns else None
        n = float(n_public if n_public is not None else dict(design.parts(noisy))[()])
        numeric = {k: design.domain.names[design.blocks[k].columns[0]] for k in design.known}
        counts, variances = fine.singles(laws, cuts, n), fine.variances(counted, laws, cuts, n, rng)
        known = {k: (counts[name], variances[name]) for k, name in numeric.items()}
        coded = fine.coded(counted)
        group_of = {name: tuple(column.group.tolist()) for name, (column, _) in coded.items()}
        axes = block_axes(design, fine.lower(cuts), group_of)
        estimated = partial(estimate, design, step, n_records=n_public, public=public, known=known)
        with curator.timed("counting the pairs that say most again"):
            second = self._again(plan, curator, noisy, estimated, axes, partial(fine.levels, cuts=cuts))
        found, asked = estimated(noisy, again=second), self.moments(plan.schema)
        moments = None if asked is None else asked.measure(curator, plan, fine, laws, found)
        n_records = n_public if n_public is not None else max(round(found.n_records), 0)
        sets, drawn = list[pd.DataFrame](), laws
        with curator.timed("fitting a field"):
            target = PairTarget.of(found, groups_of(design, public, plan.schema.members))
            groups = target.groups.drawn(n_records, rng, even=True)
            field = PairField.start(found, target, groups, rng).fitted(found, target, groups, rng)
            off = [field.off(found, target, groups, rng.spawn(1)[0])]
        for number in range(1, self.n_sets + 1):
            with curator.timed(f"drawing synthetic set {number} of {self.n_sets}"):
                own, held = field, groups
                if posterior:
                    drawn = fine.redrawn(counted, laws, n_public, rng)
                    again = fine.singles(drawn, cuts, n)
                    other = found.moved(known, {k: again[name] for k, name in numeric.items()})
                    own, held, away = redrawn(field, found, target, other, n_records, rng, off[0])
                    off.append(away)
                codes = own.records(found, target, held, n_records, rng, kept=not posterior)
                made = {name: design.blocks[k].levels[codes[:, k], at] for name, (k, at) in design.home.items()}
                meet(design.totals, made, partial(_gain, design, own, made), rng)
                codes = design.codes([made[name] for name in design.domain.names])
                within = {numeric[k]: at for k, at in own.places(codes, [*numeric], found, rng).items()}
                for each in fine.columns:  # a set whose own sampling error stands for the table's is drawn by chance
                    name = each.name
                    place = within.get(name, rng.random(len(codes)))
                    made[name] = each.cells(made[name], cuts[name], drawn[name], rng, not posterior, place)
                sets.append(fine.records(plan.schema, made, public, rng))
                if moments is not None:
                    sets[-1] = moments.met(sets[-1], codes, design, found, rng, posterior=posterior)
                if sums is not None:
                    sets[-1] = sums.met(sets[-1], rng if posterior else None)
        return Drawn(
            sets=sets,
            tables=fine.tables(counted, cuts)
            | ({} if sums is None else {"weighted_sums": sums.frame()})
            | ({} if moments is None else moments.tables()),
            margins=[*measured(design, step, noisy, axes, known), *second, *(margin for _, margin in coded.values())],
            margin_errors=tuple(pair_errors(design, found, {n: m.law.variance for n, (_, m) in coded.items()})),
            diagnostics={"levels_off": max(float((far - chance).max()) for far, chance in off)}
            | ({"telling_pairs": target.telling} if len(design.sizes) > 1 else {}),
        )

    def _again(
        self,
        plan: Plan,
        curator: Curator,
        noisy: IntArray,
        estimated: Callable[[IntArray], NoisyPairs],
        axes: Sequence[MarginAxis],
        levels: Callable[[Table], Mapping[str, IntArray]],
    ) -> list[MeasuredMargin]:
        """Return a second count of the pairs that say most by the first one, where the plan has it."""
        design, asked = plan.design, [step for step in plan.steps if step.name in (PAIRS, PAIRS_AGAIN)]
        if not asked:
            return []
        candidates, step, found = _open_pairs(design), plan.named(MARGINS), estimated(noisy)
        if design.pairs:
            rule = partial(most_telling, design, step, found, candidates, self._n_again(design))
            chosen = curator.decide(noisy, rule).tolist()
        else:
            chosen = chosen_pairs(design, plan.named(CHOICE), curator, noisy, found, candidates, levels)
        pairs = [candidates[k] for k in chosen]
        counted = curator.count(asked[0], lambda table: design.tally(table, pairs, levels(table)))
        ends = np.cumsum([math.prod(design.shape(pair)) for pair in pairs])[:-1]
        parts = zip(pairs, np.split(counted, ends), strict=True)
        return [MeasuredMargin.of(asked[0], [axes[k] for k in pair], part) for pair, part in parts]


def _open_pairs(design: ResidualDesign) -> list[tuple[int, int]]:
    """Return the pairs that no public total has."""
    every = replace(design, pairs=True).margins
    return [(margin[0], margin[-1]) for margin in every if len(margin) == 2 and margin not in design.covered]


def _gain(
    design: ResidualDesign, field: PairField, made: Mapping[str, IntArray], rows: IntArray, name: str, level: int
) -> FloatArray:
    """Return by how much the log density of some records rises with another level of a column; -inf if it can't be."""
    names, present = design.domain.names, {one: codes[rows] for one, codes in made.items()}
    block, _ = design.home[name]
    columns = {**present, name: np.full(len(rows), level)}
    other = design.blocks[block].codes([columns[names[column]] for column in design.blocks[block].columns])
    found = field.gain(design.codes([present[one] for one in names]), block, np.maximum(other, 0), design.offsets)
    return np.where(other < 0, -np.inf, found)
