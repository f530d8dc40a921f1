"""Which margins of all pairs are measured, and what their noise comes to."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from pdips.data.schema import Schema
from pdips.margins.fine_columns import IntervalDesign
from pdips.margins.forecast import (
    ColumnNames,
    Forecast,
    MarginForm,
    NoFormError,
    PageShapes,
    label,
)
from pdips.margins.intervals import IntervalColumn
from pdips.margins.residuals import Blocks, ResidualDesign
from pdips.privacy.noise_sum import NoiseSum, Terms
from pdips.privacy.plan import Plan, Step

MARGINS = "noisy margins"
"""The step that asks for all margins."""


def said_of_pairs(design: "PairDesign", noise_law: str, also: Sequence[str]) -> str:
    """Return what is said of the margins to a disclosure board."""
    what = "All counts" if design.whole else "Differences of neighbouring counts"
    columns = "one or two columns" if design.pairs else "one column"
    said = (
        f"{what} of every margin of {columns} have exact discrete "
        f"{noise_law.capitalize()} noise."
    )
    if not design.whole:
        said += (
            " It is of the law of the proof but for a probability of "
            "10^-20 at most, a part of delta."
        )
    if also:
        triples = [" x ".join(also[k : k + 3]) for k in range(0, len(also), 3)]
        said += f" All counts of {', '.join(triples)} have such noise too."
    return said


@dataclass(frozen=True, eq=False)
class PairDesign(ResidualDesign, Forecast):
    """A design of margins that says what the noise of its plan comes to."""

    def margin_form(self, plan: Plan) -> MarginForm:
        """Return the error of a cell of a margin of columns with their own levels."""
        coded = self._finer_columns(plan.schema).columns
        coded_places = {self.domain.names.index(column.name) for column in coded}
        blocks = {
            place: block
            for place, block in self.own_block.items()
            if place not in coded_places
        }
        step = plan.named(MARGINS)
        # over all margins at once: a schema of 200 columns has 20,000 of them
        small = self.errors(step)
        return partial(self._margin_error, step, small, blocks)

    def _margin_error(
        self,
        step: Step,
        small: Callable[[Blocks], NoiseSum],
        blocks: Mapping[int, int],
        columns: Sequence[int],
    ) -> NoiseSum:
        if not blocks.keys() >= {*columns}:
            raise NoFormError(
                "a column that structural zeros tie to others, without bins or "
                "with groups, has no margin alone"
            )
        margin = tuple(blocks[column] for column in columns)
        if len(margin) == 2 and not self.pairs:
            raise NoFormError(
                "which pairs are counted is chosen when the table "
                "is read: take measure = 'pairs' to count all"
            )
        if len(margin) < 3:
            return small(margin)
        if margin not in self.also:
            counted = label([self.domain.names[k] for k in columns])
            raise NoFormError(f"{counted} isn't counted: name its columns in also")
        weight = int(self.weights[self.place[margin]])
        return self._one_draw(self.image.scale(step, weight))

    def _one_draw(self, scale: Fraction) -> NoiseSum:
        return NoiseSum((Terms(1.0, 1, scale, self.law),))

    def _finer_columns(self, schema: Schema) -> IntervalDesign:
        """Return the columns that are counted by themselves; in how many intervals
        pairs cut them makes no difference to their own noise.
        """
        return IntervalDesign.of(schema, 2)

    def _first_counts(self, plan: Plan) -> dict[str, NoiseSum]:
        """Return the noise on the first layer of each column that is counted by
        itself.
        """
        finer = self._finer_columns(plan.schema).asking(plan.steps)
        return {
            column.name: self._one_draw(steps[0].parameter)
            for column, steps in zip(finer.columns, finer.steps, strict=True)
            if steps
        }

    def coded_noises(self, plan: Plan) -> dict[str, NoiseSum]:
        """Return the noise on a count of a level of each code, by column."""
        numeric = {column.name for column in self._finer_columns(plan.schema).numeric}
        return {
            name: noise
            for name, noise in self._first_counts(plan).items()
            if name not in numeric
        }

    def larger_margins(self) -> list[tuple[int, ...]]:
        """Return the margins of ``also``, as positions of columns."""
        first = [block.columns[0] for block in self.blocks]
        return [tuple(first[k] for k in blocks) for blocks in self.also]

    def contrast_noises(self, plan: Plan) -> dict[ColumnNames, tuple[NoiseSum, ...]]:
        """Return the noise on contrasts of one or two columns that no zeros tie, and of
        intervals of numbers.
        """
        names = [*plan.schema.columns]
        column_of = {
            k: block.columns[0]
            for k, block in enumerate(self.blocks)
            if len(block.columns) == 1
        }
        noises = dict[ColumnNames, tuple[NoiseSum, ...]]()
        for part, noise in self.part_noises(plan.named(MARGINS)).items():
            if part and column_of.keys() >= {*part}:
                noises[tuple(names[column_of[k]] for k in part)] = (noise,)
        numeric = {column.name for column in self._finer_columns(plan.schema).numeric}
        for name, noise in self._first_counts(plan).items():
            if name in numeric:
                noises[name,] = (noise,)
        return noises

    def interval_columns(self, schema: Schema) -> dict[str, IntervalColumn]:
        """Return numbers without bins, and codes in groups."""
        return {column.name: column for column in self._finer_columns(schema).columns}

    def page_shapes(self, plan: Plan, price: Fraction) -> PageShapes:
        """Return the design by itself; of Gaussian noise as it shows differences and
        as it shows all counts, since the price decides which it does.
        """
        step = plan.named(MARGINS)
        if plan.kind != "zcdp":
            return PageShapes(step=step, shapes={"parts": self})
        differences = replace(self, whole=False)
        whole = replace(self, whole=True)
        others = sum((each.rho for each in plan.steps if each is not step), Fraction(0))
        floor = {
            "whole": float(whole.squared),
            "differences": float(differences.squared),
            "part": float(1 - others / price),
            "least": float(differences.smooth(Fraction(0))),
        }
        shapes = {"parts": differences, "whole": whole}
        return PageShapes(step=step, shapes=shapes, floor=floor)

    def loud_blocks(self, step: Step, n_records: int, least: int) -> list[int]:
        """Return the blocks of at least so many levels whose noise makes up most of
        their margin, in a table of a public number of records.
        """
        loud = list[int]()
        for margin in self.margins:
            if len(margin) != 1 or self.sizes[margin[0]] < least:
                continue
            n_levels = int(self.sizes[margin[0]])
            if n_levels * math.sqrt(self.variance(margin, step)) > n_records:
                loud.append(margin[0])
        return loud
