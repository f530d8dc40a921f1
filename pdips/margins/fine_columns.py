"""Columns that are fine by themselves and coarse in pairs: numbers without bins, and
codes in groups.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import islice

import numpy as np
import pandas as pd
from numpy.random import Generator

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.schema import Column, Schema
from pdips.data.table import Derived, Table, decode
from pdips.errors import InputError
from pdips.margins.consistency import simplex_projection
from pdips.margins.domain import SMALLEST_VARIANCE
from pdips.margins.intervals import IntervalColumn, number_of_records
from pdips.margins.residuals import MOST_LEVELS
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Neighbours
from pdips.privacy.plan import AnswerLaw, Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.noisy_margins import MeasuredMargin, axes_of

# First layer's part of a column's price (tried: .5 to .85); others twice the next
OF_FIRST = Fraction(4, 5)
HALVED = 2
N_AGAIN = 10  # Draws of fresh noise for the variance of counts of intervals

type Layers = Sequence[FloatArray]
"""Noisy counts by layer, NaN where none was asked."""


@dataclass(frozen=True, eq=False)
class CodeColumn(IntervalColumn):
    """A column whose levels have public groups. Its cells are the levels, group by
    group; its intervals are groups.
    """

    @cached_property
    def group(self) -> IntArray:
        """The group of each level in the order of the schema, and of missing values."""
        return np.array(self.column.grouped()[1], dtype=np.int64)

    @cached_property
    def order(self) -> IntArray:
        """The level that each cell is."""
        return np.argsort(self.group[: self.n_cells], kind="stable")

    @property
    def fine(self) -> Column:
        return self.column

    @property
    def n_cells(self) -> int:
        return self.column.n_values

    @property
    def nodes(self) -> tuple[IntArray, ...]:
        """One layer: the levels."""
        return (np.arange(self.n_cells),)

    @property
    def n_cuts(self) -> int:
        return int(self.group[: self.n_cells].max()) + 1

    @property
    def worth(self) -> Fraction:
        """The root of the number of levels a group: half as many or twice as many made
        margins worse (tried).
        """
        return Fraction(round(math.sqrt(self.n_cells / self.n_cuts)))

    def cell_counts(self, table: Table) -> IntArray:
        """Return the exact counts of the levels in the order of the schema."""
        return table.count(table.codes[self.name], self.column.n_levels)

    def of_cells(self, layer: int, exact: IntArray) -> IntArray:
        """Return the same counts: there is one layer."""
        return exact

    def law(
        self,
        layers: Sequence[FloatArray],
        steps: Sequence[Step],
        n_records: float | None,
    ) -> FloatArray:
        """Return the share of each cell, then of missing values, from noisy counts of
        levels.
        """
        total = number_of_records(layers[0], n_records)
        counts = simplex_projection(layers[0], np.array([total]))
        return np.append(counts[self.order], counts[self.n_cells :]) / total

    def cuts(self, law: FloatArray) -> IntArray:
        """Return the first cell of each group, and the end."""
        return np.searchsorted(self.group[self.order], np.arange(self.n_cuts + 1))

    def levels(self, table: Table, cuts: IntArray) -> IntArray:
        """Return the group of each row."""
        return self.group[table.codes[self.name]]

    def cells(
        self,
        levels: IntArray,
        cuts: IntArray,
        law: FloatArray,
        rng: Generator,
        even: bool,
        place: FloatArray,
    ) -> IntArray:
        """Return a level for each group, as cells for intervals."""
        level = np.append(self.order, self.n_cells)
        return level[super().cells(levels, cuts, law, rng, even, place)]


@dataclass(frozen=True, eq=False)
class IntervalDesign:
    """What is asked of all numeric columns without bins, and of codes in groups: steps
    by column, one a layer.
    """

    columns: tuple[IntervalColumn, ...]
    steps: tuple[tuple[Step, ...], ...] = ()

    @classmethod
    def of(cls, schema: Schema, most_cuts: int) -> "IntervalDesign":
        """Return the columns of a schema: codes unless they are public, or structural
        zeros or totals name levels.
        """
        columns = list[IntervalColumn]()
        tied = _with_named_levels(schema)
        for name, column in schema.columns.items():
            if column.is_categorical or column.is_binned:
                if _has_groups_alone(column) and name not in tied:
                    columns.append(CodeColumn(name, column, most_cuts))
            elif column.public:
                raise InputError(
                    f"column {name!r} is public and numeric: "
                    f"mechanism 'margins' needs bins for it"
                )
            else:
                columns.append(IntervalColumn(name, column, most_cuts))
        return cls(tuple(columns))

    @property
    def numeric(self) -> tuple[IntervalColumn, ...]:
        """The numbers among the columns."""
        return tuple(
            column for column in self.columns if not isinstance(column, CodeColumn)
        )

    @property
    def worth(self) -> Fraction:
        """How many columns with few levels are given as much of the price."""
        return sum((column.worth for column in self.columns), Fraction(0))

    @property
    def said(self) -> str:
        """What a plan says of it."""
        said = ""
        if self.numeric:
            said += (
                " Counts of intervals of numeric columns, by which margins cut "
                "them, have such noise too."
            )
        if len(self.columns) > len(self.numeric):
            said += (
                " Margins hold public groups of codes; counts of all levels of "
                "each code have such noise too."
            )
        return said

    def priced(
        self, schema: Schema, price: Fraction, neighbours: Neighbours, law: AnswerLaw
    ) -> "IntervalDesign":
        """Return the design with its steps, at this price together: most of it for the
        first layer.
        """
        moved = Sensitivity.of_counts(schema, neighbours)
        steps = list[tuple[Step, ...]]()
        for column in self.columns:
            what = "levels" if isinstance(column, CodeColumn) else "intervals"
            own = price * column.worth / self.worth
            layers = list[Step]()
            for number, part in enumerate(column.parts(HALVED, OF_FIRST), start=1):
                place = f"{what} of {column.name!r}, layer {number}"
                layer = Step(
                    name=f"noisy counts of {place}",
                    counts=f"each of the {place}",
                    item=f"noisy counts of {what}",
                    sensitivity=moved,
                    price=own * part,
                    law=law,
                )
                layers.append(layer)
            steps.append(tuple(layers))
        return replace(self, steps=tuple(steps))

    def asking(self, steps: Sequence[Step]) -> "IntervalDesign":
        """Return the design with the first of these steps as its own."""
        left = iter(steps)
        own = [tuple(islice(left, len(column.nodes))) for column in self.columns]
        return replace(self, steps=tuple(own))

    def ask(self, curator: Curator, n_public: int | None) -> "FineCounts":
        """Return the noisy counts of all columns, and where they cut numbers.

        ``n_public`` is the number of records, if it is public.
        """
        noisy = [
            column.measure(curator, steps, partial(self._count, curator, place))
            for place, (column, steps) in enumerate(
                zip(self.columns, self.steps, strict=True)
            )
        ]
        laws = self.laws(noisy, n_public)

        def cuts() -> dict[str, IntArray]:
            return {
                column.name: column.cuts(laws[column.name]) for column in self.columns
            }

        # cuts of numbers steer what is asked of pairs; those of codes are public
        kept = curator.keep(cuts) if self.numeric else cuts()
        return FineCounts(self, noisy, laws, kept, n_public)

    def _count(
        self, curator: Curator, place: int, layer: int, asked: BoolArray
    ) -> IntArray:
        """Return noisy counts of some intervals of a layer of a column."""
        column = self.columns[place]
        statistic = Derived(
            base=self.cells,
            of=partial(self._of_cells, place, layer),
            alone=partial(column.counts, layer=layer),
        )
        return curator.count(self.steps[place][layer], statistic, asked)

    @property
    def cells(self) -> "CellsOfColumns":
        """The statistic that all layers of all columns follow from."""
        names = tuple((column.name, column.column) for column in self.columns)
        return CellsOfColumns(names, self.columns)

    def _of_cells(self, place: int, layer: int, exact: IntArray) -> IntArray:
        """Return the exact counts of a layer of a column."""
        ends = np.cumsum([_n_cells(column) for column in self.columns])
        own = np.split(exact, ends[:-1])[place]
        return self.columns[place].of_cells(layer, own)

    def laws(
        self, noisy: Sequence[Layers], n_public: float | None
    ) -> dict[str, FloatArray]:
        """Return the law of the cells of each column."""
        own = zip(self.columns, self.steps, noisy, strict=True)
        return {
            column.name: column.law(layers, steps, n_public)
            for column, steps, layers in own
        }

    def again(self, noisy: Sequence[Layers], rng: Generator) -> list[list[FloatArray]]:
        """Return noisy counts with fresh noise (normal) on top."""
        again = list[list[FloatArray]]()
        for layers, steps in zip(noisy, self.steps, strict=True):
            drawn = [
                counts + step.standard_deviation * rng.standard_normal(len(counts))
                for counts, step in zip(layers, steps, strict=True)
            ]
            again.append(drawn)
        return again

    def records(
        self,
        schema: Schema,
        codes: Mapping[str, IntArray],
        public: Table | None,
        rng: Generator,
    ) -> pd.DataFrame:
        """Return records as values, beside the public columns, from the cells or levels
        of the others.
        """
        beside = schema.public_columns
        drawn = {name: codes[name] for name in schema.columns if name not in beside}
        cells = {column.name: column.fine for column in self.columns}
        with_cells = schema.model_copy(update={"columns": {**schema.columns, **cells}})
        frame = decode(with_cells, drawn, rng)
        for column in self.numeric:
            frame[column.name] = column.rounded(frame[column.name])
        if public is not None:
            spelt = pd.DataFrame({name: public.spelt(name) for name in beside})
            frame = pd.concat([spelt, frame], axis=1)
        return frame[list(schema.columns)]


def _with_named_levels(schema: Schema) -> set[str]:
    """Return the columns of which structural zeros or public totals name levels."""
    named = {name for zero in schema.zeros() for name in zero}
    for total in schema.known_totals(weighted=False):
        named |= {*total.columns}
    return named


def _has_groups_alone(column: Column) -> bool:
    grouped = column.groups is not None and not column.public
    return grouped and column.n_levels <= MOST_LEVELS


def _n_cells(column: IntervalColumn) -> int:
    """Return how many exact counts of cells a column has."""
    is_code = isinstance(column, CodeColumn)
    return column.column.n_levels if is_code else column.n_cells + 1


@dataclass(frozen=True)
class CellsOfColumns:
    """Exact counts of the cells of columns, one after the other, from which those of
    all layers follow. Columns are the same if they are described alike.
    """

    described: tuple[tuple[str, Column], ...]
    columns: tuple[IntervalColumn, ...] = field(compare=False)

    def __call__(self, table: Table) -> IntArray:
        """Return the counts of a table that is at hand."""
        return np.concatenate([column.cell_counts(table) for column in self.columns])


@dataclass(frozen=True, eq=False)
class FineCounts:
    """Noisy counts of the columns of a design, and what follows from them alone.

    Parameters
    ----------
    design : IntervalDesign
        What was asked.
    noisy : sequence of sequence of ndarray
        By column and layer, NaN where none was asked.
    laws : dict of str to ndarray
        The shares of the cells of each column, then of missing values.
    cuts : dict of str to ndarray
        The first cell of each interval by which pairs count a column, and the end.
    n_public : int or None
        The number of records, where it is public.
    """

    design: IntervalDesign
    noisy: Sequence[Layers]
    laws: Mapping[str, FloatArray]
    cuts: Mapping[str, IntArray]
    n_public: int | None

    def levels(self, table: Table) -> dict[str, IntArray]:
        """Return the interval of each row in each column."""
        return {
            column.name: column.levels(table, self.cuts[column.name])
            for column in self.design.columns
        }

    def redrawn(self, rng: Generator) -> dict[str, FloatArray]:
        """Return laws with fresh noise on the counts; cells that the laws leave empty
        stay so.

        Otherwise fresh noise would fill a long empty tail: counts can't be below 0, so
        it isn't 0 on average.
        """
        again = self.design.again(self.noisy, rng)
        redrawn = dict[str, FloatArray]()
        for name, law in self.design.laws(again, self.n_public).items():
            kept = law * (self.laws[name] > 0)
            redrawn[name] = kept / kept.sum() if kept.sum() > 0 else self.laws[name]
        return redrawn

    def singles(
        self, laws: Mapping[str, FloatArray], n_records: float
    ) -> dict[str, FloatArray]:
        """Return the counts of the intervals of each numeric column by some laws, then
        of its missing values.
        """
        singles = dict[str, FloatArray]()
        for column in self.design.numeric:
            law = laws[column.name]
            cuts = self.cuts[column.name]
            n_cells = int(cuts[-1])
            held = np.add.reduceat(law[:n_cells], cuts[:-1])
            singles[column.name] = n_records * np.append(held, law[n_cells:])
        return singles

    def variances(self, n_records: float, rng: Generator) -> dict[str, FloatArray]:
        """Return about the variance of such a count of each numeric column, a number,
        by what fresh noise changes.

        An interval may lie within one of the first layer, where only louder layers tell
        halves apart.
        """
        counts = self.singles(self.laws, n_records)
        squares = dict.fromkeys(counts, 0.0)
        for _ in range(N_AGAIN):
            noisy = self.design.again(self.noisy, rng)
            again = self.singles(self.design.laws(noisy, n_records), n_records)
            for name, single in counts.items():
                moved = np.mean((again[name] - single) ** 2)
                squares[name] += float(moved) / N_AGAIN
        variances = dict[str, FloatArray]()
        for column, steps in zip(self.design.columns, self.design.steps, strict=True):
            # quiet noise has a variance that rounds to 0, by which others divide
            least = max(steps[0].standard_deviation ** 2, SMALLEST_VARIANCE)
            if column.name in counts:
                variances[column.name] = np.array(max(squares[column.name], least))
        return variances

    def lower(self) -> dict[str, tuple[float, ...]]:
        """Return the lower bounds of the intervals of each numeric column."""
        return {
            column.name: tuple(column.fine.edges[self.cuts[column.name][:-1]].tolist())
            for column in self.design.numeric
        }

    def groups(self) -> dict[str, tuple[int, ...]]:
        """Return the group of each level of the codes."""
        return {
            column.name: tuple(column.group.tolist())
            for column in self.design.columns
            if isinstance(column, CodeColumn)
        }

    def of_codes(self) -> dict[str, MeasuredMargin]:
        """Return the noisy counts of the levels of codes, as they are published."""
        margins = dict[str, MeasuredMargin]()
        own = zip(self.design.columns, self.design.steps, self.noisy, strict=True)
        for column, steps, (counts, *_) in own:
            if isinstance(column, CodeColumn):
                axes = axes_of([column.name], [len(counts)])
                margins[column.name] = MeasuredMargin.of(
                    steps[0], axes, counts.astype(np.int64)
                )
        return margins

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return what is published: ``intervals`` and the ``cuts`` of pairs; nothing
        where all columns have bins.

        ``intervals`` has ``column``, ``layer``, ``lower`` (from), ``upper`` (below),
        ``noisy`` and the ``variance`` of its noise; bounds are missing in the row that
        counts missing values. ``cuts`` has the lower bound of each.
        """
        design = self.design
        if not design.numeric:
            return {}
        intervals = list[pd.DataFrame]()
        own = zip(design.columns, design.steps, self.noisy, strict=True)
        for column, steps, layers in own:
            if isinstance(column, CodeColumn):
                continue
            for layer, (step, counts) in enumerate(zip(steps, layers, strict=True)):
                rows = column.frame(layer, counts)
                intervals.append(rows.assign(variance=step.standard_deviation**2))
        cuts = [
            pd.DataFrame({"column": name, "lower": lower})
            for name, lower in self.lower().items()
        ]
        return {
            "intervals": pd.concat(intervals, ignore_index=True),
            "cuts": pd.concat(cuts, ignore_index=True),
        }
