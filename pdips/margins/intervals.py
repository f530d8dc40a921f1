"""Columns that are fine by themselves and coarse in pairs: numbers without bins, and codes in groups.

The cells of a number, at most ``MOST_CELLS`` or so, are public. They are counted in layers, from wide intervals down to
cells, and an interval is looked into only if its noisy count stands out. What comes after is post-processing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import islice

import numpy as np
import pandas as pd
from numpy.random import Generator
from scipy.special import ndtr

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.coding import encode
from pdips.data.schema import Column, Schema
from pdips.data.table import Table, decode
from pdips.errors import InputError
from pdips.margins.consistency import earlier, simplex_projection
from pdips.margins.residuals import MOST_LEVELS
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Neighbours
from pdips.privacy.plan import AnswerLaw, Step
from pdips.privacy.sensitivity import Sensitivity
from pdips.release.noisy_margins import MeasuredMargin, axes_of

MOST_CELLS = 200_000
"""A cell is as wide as the column's whole numbers or resolution, or a power of ten, times one if there were more."""

MOST_ON_TOP = 26  # Cells up to which all are counted at once; below the first layer, widths are powers of ten
EVENLY = 20  # Equal parts of the range in the first layer, as in histograms: others would need louder counts
N_HALVES = 5  # How often the equal part next to 0 is halved where it is cut finer: two intervals a halving
OF_FIRST, HALVED = Fraction(4, 5), 2  # First layer's part of a column's price (tried: .5 to .85); others twice the next
STANDS_OUT = 6.0  # Standard deviations of the noise that an interval must count to be looked into
WORTH = Fraction(3, 2)  # Times the price of a column with few levels that a number gets, for its layers (tried: 1 to 2)
AT_ENDS = 0.25  # Prior probability that a half of an interval holds nothing, and that it holds all (tried: .1 to .4)
N_AGAIN = 10  # Draws of fresh noise for the variance of counts of intervals
LEAST = 1e-9

Ask = Callable[[int, BoolArray], IntArray]  # Returns noisy counts of some intervals of a layer, 0 for the others


@dataclass(frozen=True, eq=False)
class IntervalColumn:
    """A numeric column without bins: its cells, and the layers in which they are counted. Public.

    Pairs of columns are counted by ``most_cuts`` intervals, where there are as many cells. If ``finer``, intervals of
    the first layer are narrower next to 0.
    """

    name: str
    column: Column
    most_cuts: int
    finer: bool = False

    @cached_property
    def _grid(self) -> tuple[FloatArray, int]:
        """Lower ends of the cells, and the number of the first one among multiples of their width."""
        column = self.column
        lower, upper = float(column.lower or 0), float(column.upper or 0)
        if column.scale == "log":
            edges = np.geomspace(lower, upper, MOST_CELLS // 10 + 1)
            return self._apart(np.unique(np.floor(edges)) if column.integer else edges), 0
        least = (upper - lower) / MOST_CELLS
        width = column.resolution or (1.0 if column.integer else 10.0 ** math.ceil(math.log10(10 * least)))
        width *= 10.0 ** max(math.ceil(math.log10(least / width)), 0)
        start = 0.0 if column.resolution is None else lower
        first = math.floor((lower - start) / width + LEAST)
        digits = min(max(12 - math.ceil(math.log10(max(abs(lower), abs(upper)))), 0), 300)
        edges = np.round(start + width * np.arange(first, math.floor((upper - start) / width + LEAST) + 1), digits)
        edges[0] = lower
        return self._apart(np.append(edges, upper) if edges[-1] < upper else edges), first

    def _apart(self, edges: FloatArray) -> FloatArray:
        if not (np.diff(edges) > 0).all():
            raise InputError(
                f"column {self.name!r} has bounds between which no doubles make cells: give it other units"
            )
        return edges

    @cached_property
    def fine(self) -> Column:
        """The column with its cells as bins; the last one holds the upper bound alone."""
        edges, upper = self._grid[0].tolist(), float(self.column.upper or 0)
        edges[-1] = upper if self.column.integer else math.nextafter(upper, edges[-2])
        return self.column.model_copy(update={"bin_edges": (*edges, upper)})

    @property
    def n_cells(self) -> int:
        """Number of cells, not counting missing."""
        return len(self._grid[0])

    @cached_property
    def nodes(self) -> tuple[IntArray, ...]:
        """By layer, the interval of each cell, shape (cells,); 0 and the upper bound are alone, but not of dates."""
        edges, first = self._grid
        linear, dated, many = self.column.scale == "linear", self.column.type == "date", len(edges) > MOST_ON_TOP
        n_parts, place = EVENLY if many else len(edges) - 1, np.arange(len(edges)) + first
        at = edges - edges[0] if linear and many else np.arange(len(edges), dtype=float)
        alone = ((place == 0) & linear | (place == place[-1])) & (not dated)
        parts = np.minimum(np.floor(at / at[-1] * n_parts + LEAST), n_parts - (dated and many))
        begun = [(np.diff(parts, prepend=-1) != 0) | np.diff(alone, prepend=False)]
        if self.finer and linear and many and not dated:
            away = np.abs(place - min(max(0, first), int(place[-1]))) / len(edges) * EVENLY
            halves = np.floor(2 * np.log2(np.clip(away, 0.5**N_HALVES, 1)) + LEAST)
            begun[0] |= np.diff(halves, prepend=halves[0]) != 0
        for power in range(12, -1, -1) if many else ():
            if power == 0 or 2 * 10**power <= len(edges) / EVENLY:
                begun.append(begun[-1] | (np.diff(place // 10**power, prepend=place[0] // 10**power - 1) != 0))
        return tuple(np.cumsum(each) - 1 for each in begun)

    @property
    def n_cuts(self) -> int:
        """Number of intervals that pairs of columns are counted by."""
        return min(self.most_cuts, self.n_cells)

    @property
    def worth(self) -> Fraction:
        """How many times the price of a column with few levels it is given, to be counted by itself."""
        return WORTH

    def n_counts(self, layer: int) -> int:
        """Return the number of counts of a layer; in the first one that of missing values is the last, if any."""
        return int(self.nodes[layer][-1]) + 1 + (layer == 0 and bool(self.column.missing))

    def parent(self, layer: int) -> IntArray:
        """Return the interval of the layer above that each one of a layer is in; 0 for the first layer."""
        first = np.flatnonzero(np.diff(self.nodes[layer], prepend=-1))
        return self.nodes[layer - 1][first] if layer else np.zeros(len(first), dtype=np.int64)

    def counts(self, table: Table, layer: int) -> IntArray:
        """Return the exact counts of a layer."""
        cells, n = encode(self.name, table.frame[self.name], self.fine), int(self.nodes[layer][-1]) + 1
        return table.count(np.append(self.nodes[layer], n)[cells], n + 1)[: self.n_counts(layer)]

    def parts(self, ratio: int, first: Fraction | None = None) -> list[Fraction]:
        """Return the share of each layer in the price, each so many times the next; the ``first`` may be given."""
        weights = [Fraction(1, ratio**layer) for layer in range(len(self.nodes))]
        if first is not None and len(weights) > 1:
            weights[0] = sum(weights[1:]) * first / (1 - first)
        return [weight / sum(weights) for weight in weights]

    def measure(self, curator: Curator, steps: Sequence[Step], ask: Ask | None = None) -> list[FloatArray]:
        """Return the noisy counts of each layer, NaN where none was asked. ``ask`` counts some intervals of a layer."""
        found, asked = list[FloatArray](), np.ones(self.n_counts(0), dtype=bool)
        for layer, step in enumerate(steps):
            counts = partial(self.counts, layer=layer)
            noisy = ask(layer, asked) if ask else curator.count(step, counts, asked)
            found.append(np.where(asked, noisy, np.nan))
            if layer + 1 < len(steps):
                limit = STANDS_OUT * steps[layer + 1].standard_deviation
                kept = curator.decide(noisy, partial(np.less_equal, limit)) & asked
                asked = np.asarray(kept, dtype=bool)[self.parent(layer + 1)]
        return found

    def frame(self, layer: int, counts: FloatArray) -> pd.DataFrame:
        """Return the noisy counts of a layer that were asked, with the bounds of their intervals."""
        edges = self.fine.edges
        lower = edges[np.flatnonzero(np.diff(self.nodes[layer], prepend=-1))]
        bounds = {"lower": lower, "upper": np.append(lower[1:], edges[-1])}
        named = {name: np.append(values, np.nan)[: len(counts)] for name, values in bounds.items()}
        found = pd.DataFrame({"column": self.name, "layer": layer + 1, **named, "noisy": counts})
        return found[~np.isnan(counts)].astype({"noisy": np.int64})

    def restored(self, rows: pd.DataFrame) -> list[IntArray]:
        """Return the noisy counts that were asked, by layer, from what was published."""
        own = rows[rows["column"] == self.name]
        return [own.loc[own["layer"] == layer + 1, "noisy"].to_numpy(np.int64) for layer in range(len(self.nodes))]

    def law(self, layers: Sequence[FloatArray], steps: Sequence[Step], n_records: float | None) -> FloatArray:
        """Return the share of each cell, then of missing values, from noisy counts that are NaN where none was asked.

        Each interval is halved again and again (:func:`_divided`); where nothing was asked, it is divided evenly.
        """
        n_top = int(self.nodes[0][-1]) + 1
        total = max(float(layers[0].sum()) if n_records is None else n_records, 1.0)
        missing = _part_of(layers[0][n_top:], np.array([total]), steps[0].standard_deviation)
        mass = np.array([max(total - missing.sum(), 0.0)])
        for layer, (counts, step) in enumerate(zip(layers, steps, strict=True)):
            cells = np.bincount(self.nodes[layer])
            mass = _divided(mass, counts[: len(cells)], cells, self.parent(layer), step.standard_deviation)
        return np.append(mass, missing) / max(float(mass.sum() + missing.sum()), LEAST)

    def cuts(self, law: FloatArray) -> IntArray:
        """Return the first cell of each interval for pairs, and the end: the fullest is halved again and again.

        Between cells that were counted together, whose law is even, a cut could part a spike from what is known of it,
        so it is made elsewhere as long as there are other places.
        """
        below = np.concatenate([[0.0], np.cumsum(law[: self.n_cells] + LEAST / self.n_cells)])
        found, apart = np.array([0, self.n_cells]), np.abs(np.diff(law[: self.n_cells]))
        places = np.flatnonzero(apart > LEAST * law[: self.n_cells - 1]) + 1
        while len(found) <= self.n_cuts:
            first, end = np.searchsorted(places, found[:-1], side="right"), np.searchsorted(places, found[1:])
            share = np.where(end > first, np.diff(below[found]), -1.0)
            k = int(np.argmax(share))
            if share[k] < 0:
                places = np.arange(1, self.n_cells)
                continue
            inside = places[first[k] : end[k]]
            nearest = np.argmin(np.abs(2 * below[inside] - below[found[k]] - below[found[k + 1]]))
            found = np.insert(found, k + 1, inside[nearest])
        return found.astype(np.int64)

    def levels(self, table: Table, cuts: IntArray) -> IntArray:
        """Return the interval of each row, the last one for missing values."""
        cells = encode(self.name, table.frame[self.name], self.fine)
        return np.where(cells == self.n_cells, self.n_cuts, np.searchsorted(cuts[1:-1], cells, side="right"))

    def cells(
        self, levels: IntArray, cuts: IntArray, law: FloatArray, rng: Generator, even: bool, place: FloatArray
    ) -> IntArray:
        """Return a cell for each level, from the law within its interval: spread over its quantiles, or by chance.

        The order within an interval is that of ``place``.
        """
        below = np.concatenate([[0.0], np.cumsum(law[: self.n_cells] + LEAST / self.n_cells)])
        known = np.minimum(levels, self.n_cuts - 1)
        low, high = below[cuts[known]], below[cuts[known + 1]]
        many, order = np.bincount(levels, minlength=self.n_cuts), np.lexsort([place, levels])
        nth = np.empty(len(levels))
        nth[order] = earlier(levels[order])
        at = rng.random(len(levels))
        at[order] = at[np.lexsort([nth if even else at, levels])]
        drawn = np.searchsorted(below, low + (high - low) * ((nth + at) / many[levels] if even else at), "right") - 1
        return np.where(levels == self.n_cuts, self.n_cells, np.clip(drawn, cuts[known], cuts[known + 1] - 1))

    def rounded(self, values: pd.Series) -> pd.Series:
        """Return values rounded to the lower ends of their cells; on a log scale, to the width of the first cell."""
        edges, known = self.fine.edges, values.notna() & ~values.isin(self.column.missing_codes)
        if self.column.type == "date" or (self.column.integer and self.column.scale == "log"):
            return values
        if self.column.scale == "log":
            digits = max(2 - math.floor(math.log10(edges[1] - edges[0])), 0)
            return values.mask(known, values.round(digits).clip(edges[0], edges[-1]))
        written = values.copy()
        written[known] = self.lowered(values[known].to_numpy(dtype=float)).astype(int if self.column.integer else float)
        return written

    def lowered(self, values: FloatArray) -> FloatArray:
        """Return numbers as the lower ends of their cells; on a log scale, as they are or as whole ones."""
        if self.column.scale == "log":
            return np.floor(values) if self.column.integer else values
        edges = self.fine.edges
        places = np.searchsorted(edges, values, side="right") - 1
        return np.append(edges[:-2], edges[-1] - self.column.integer)[np.minimum(places, self.n_cells - 1)]


@dataclass(frozen=True, eq=False)
class CodeColumn(IntervalColumn):
    """A column whose levels have public groups. Its cells are the levels, group by group; its intervals are groups."""

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
        """The root of the number of levels a group: half as many or twice as many made margins worse (tried)."""
        return Fraction(round(math.sqrt(self.n_cells / self.n_cuts)))

    def counts(self, table: Table, layer: int) -> IntArray:
        """Return the exact counts of the levels in the order of the schema."""
        return table.count(table.codes[self.name], self.column.n_levels)

    def law(self, layers: Sequence[FloatArray], steps: Sequence[Step], n_records: float | None) -> FloatArray:
        """Return the share of each cell, then of missing values, from noisy counts of levels."""
        total = max(float(layers[0].sum()) if n_records is None else n_records, 1.0)
        counts = simplex_projection(layers[0], np.array([total]))
        return np.append(counts[self.order], counts[self.n_cells :]) / total

    def cuts(self, law: FloatArray) -> IntArray:
        """Return the first cell of each group, and the end."""
        return np.searchsorted(self.group[self.order], np.arange(self.n_cuts + 1))

    def levels(self, table: Table, cuts: IntArray) -> IntArray:
        """Return the group of each row."""
        return self.group[table.codes[self.name]]

    def cells(
        self, levels: IntArray, cuts: IntArray, law: FloatArray, rng: Generator, even: bool, place: FloatArray
    ) -> IntArray:
        """Return a level for each group, as cells for intervals."""
        return np.append(self.order, self.n_cells)[super().cells(levels, cuts, law, rng, even, place)]


def _part_of(found: FloatArray, held: FloatArray, error: float | FloatArray) -> FloatArray:
    """Return the posterior mean of a count between 0 and ``held``, of which ``found`` has a standard error.

    It is at either end with probability ``AT_ENDS``; between, all log odds of its share are as likely, up to those of
    one standard error. An end likelier than all else is taken, or a long empty tail would hold a little everywhere.
    """
    tiny = np.finfo(np.float64).tiny
    error, most = np.maximum(error, LEAST), np.maximum(held, LEAST)
    low, high = -found / error, (held - found) / error
    nothing, whole = (AT_ENDS * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) for z in (low, high))
    inside = np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
    share = np.clip(found, error, np.maximum(held - error, error)) / np.maximum(held, 2 * error)
    width = most * share * (1 - share) * 2 * np.log(np.maximum(most / error - 1, math.e))
    between = (1 - 2 * AT_ENDS) * inside * error / width
    middle = found + error * (nothing - whole) / AT_ENDS / np.maximum(inside, tiny)
    mean = (between * middle + whole * held) / np.maximum(nothing + between + whole, tiny)
    ends = np.where(found < held / 2, 0, held)
    return np.where(np.maximum(nothing, whole) >= between + np.minimum(nothing, whole), ends, np.clip(mean, 0, held))


def _divided(mass: FloatArray, counts: FloatArray, cells: IntArray, parent: IntArray, deviation: float) -> FloatArray:
    """Return how much is in each interval, from how much is in its parents and noisy counts, by halving.

    The counts of two halves are made to add up to what both have, and each gets what it may be expected to hold.
    """
    place = np.arange(len(parent)) - np.searchsorted(parent, parent)
    width = 1 << int(place.max()).bit_length()
    noisy, size = np.zeros((len(mass), width)), np.zeros((len(mass), width))
    noisy[parent, place], size[parent, place] = counts, cells
    held = mass[:, None]
    while width > 1:
        width //= 2
        halves = noisy.reshape(len(mass), -1, 2, width)
        half, many = halves.sum(axis=3), (size.reshape(halves.shape) > 0).sum(axis=3)
        share = size.reshape(halves.shape).sum(axis=3)
        even = held[..., None] * share / np.maximum(share.sum(axis=2, keepdims=True), 1)
        numbers = np.maximum(many.sum(axis=2, keepdims=True), 1)
        found = half + (held - half.sum(axis=2))[..., None] * many / numbers
        error = deviation * np.sqrt(many.prod(axis=2, keepdims=True) / numbers)
        open_ = np.isnan(found) | (many.min(axis=2, keepdims=True) == 0)
        held = np.where(open_, even, _part_of(found, held[..., None], error)).reshape(len(mass), -1)
    return np.asarray(held[parent, place], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class IntervalDesign:
    """What is asked of all numeric columns without bins, and of codes in groups: steps by column, one a layer."""

    columns: tuple[IntervalColumn, ...]
    steps: tuple[tuple[Step, ...], ...] = ()

    @classmethod
    def of(cls, schema: Schema, most_cuts: int) -> "IntervalDesign":
        """Return the columns of a schema: codes unless they are public, or structural zeros or totals name levels."""
        found, named = list[IntervalColumn](), {name for zero in schema.zeros() for name in zero}
        named |= {name for total in schema.known_totals(weighted=False) for name in total.columns}
        for name, column in schema.columns.items():
            if not column.is_categorical and not column.is_binned:
                if column.public:
                    raise InputError(f"column {name!r} is public and numeric: mechanism 'pairs' needs bins for it")
                found.append(IntervalColumn(name, column, most_cuts))
            elif (
                column.groups is not None and not column.public and name not in named and column.n_levels <= MOST_LEVELS
            ):
                found.append(CodeColumn(name, column, most_cuts))
        return cls(tuple(found))

    def priced(self, schema: Schema, price: Fraction, neighbours: Neighbours, law: AnswerLaw) -> "IntervalDesign":
        """Return the design with its steps, at this price together: most of it for the first layer."""
        moved, steps = Sensitivity.of_counts(schema, neighbours), []
        for column in self.columns:
            what = "levels" if isinstance(column, CodeColumn) else "intervals"
            steps.append(
                tuple(
                    Step(
                        name=f"noisy counts of {what} of {column.name!r}, layer {layer + 1}",
                        counts=f"each of the {what} of {column.name!r}, layer {layer + 1}",
                        item=f"noisy counts of {what}",
                        sensitivity=moved,
                        price=price * column.worth / sum(c.worth for c in self.columns) * part,
                        law=law,
                    )
                    for layer, part in enumerate(column.parts(HALVED, OF_FIRST))
                )
            )
        return replace(self, steps=tuple(steps))

    def asking(self, steps: Sequence[Step]) -> "IntervalDesign":
        """Return the design with the first of these steps as its own."""
        left = iter(steps)
        return replace(self, steps=tuple(tuple(islice(left, len(column.nodes))) for column in self.columns))

    def measure(self, curator: Curator) -> list[list[FloatArray]]:
        """Return the noisy counts by column and layer, NaN where none was asked."""
        return [column.measure(curator, steps) for column, steps in zip(self.columns, self.steps, strict=True)]

    def laws(self, noisy: Sequence[Sequence[FloatArray]], n_records: float | None) -> dict[str, FloatArray]:
        """Return the law of the cells of each column."""
        return {
            column.name: column.law(counts, steps, n_records)
            for column, steps, counts in zip(self.columns, self.steps, noisy, strict=True)
        }

    def redrawn(
        self, noisy: Sequence[Sequence[FloatArray]], laws: Mapping[str, FloatArray], n: float | None, rng: Generator
    ) -> dict[str, FloatArray]:
        """Return laws with fresh noise on the counts; cells that the given laws leave empty stay so.

        Otherwise fresh noise would fill a long empty tail: counts can't be below 0, so it isn't 0 on average.
        """
        found = {name: law * (laws[name] > 0) for name, law in self.laws(self.again(noisy, rng), n).items()}
        return {name: law / law.sum() if law.sum() > 0 else laws[name] for name, law in found.items()}

    def singles(
        self, laws: Mapping[str, FloatArray], cuts: Mapping[str, IntArray], n_records: float
    ) -> dict[str, FloatArray]:
        """Return the counts of the intervals of each numeric column, then of its missing values."""
        found = {}
        for name in (column.name for column in self.numeric):
            law, n_cells = laws[name], int(cuts[name][-1])
            found[name] = n_records * np.append(np.add.reduceat(law[:n_cells], cuts[name][:-1]), law[n_cells:])
        return found

    def variances(
        self,
        noisy: Sequence[Sequence[FloatArray]],
        laws: Mapping[str, FloatArray],
        cuts: Mapping[str, IntArray],
        n_records: float,
        rng: np.random.Generator,
    ) -> dict[str, float]:
        """Return about the variance of such a count of each numeric column, by what fresh noise changes.

        An interval may lie within one of the first layer, where only louder layers tell halves apart.
        """
        counts, squares = self.singles(laws, cuts, n_records), dict[str, float]()
        for _ in range(N_AGAIN):
            again = self.singles(self.laws(self.again(noisy, rng), n_records), cuts, n_records)
            for name, found in counts.items():
                squares[name] = squares.get(name, 0.0) + float(np.mean((again[name] - found) ** 2)) / N_AGAIN
        least = {c.name: s[0].standard_deviation ** 2 for c, s in zip(self.columns, self.steps, strict=True)}
        return {name: max(squares[name], least[name]) for name in counts}

    def levels(self, table: Table, cuts: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Return the interval of each row in each column."""
        return {column.name: column.levels(table, cuts[column.name]) for column in self.columns}

    def records(
        self, schema: Schema, made: Mapping[str, IntArray], public: Table | None, rng: Generator
    ) -> pd.DataFrame:
        """Return records as values, beside the public columns, from the cells or levels of the others."""
        drawn = {name: made[name] for name in schema.columns if name not in schema.public_columns}
        with_cells = {**schema.columns, **{each.name: each.fine for each in self.columns}}
        frame = decode(schema.model_copy(update={"columns": with_cells}), drawn, rng)
        for each in self.numeric:
            frame[each.name] = each.rounded(frame[each.name])
        if public is not None:
            frame = pd.concat([pd.DataFrame({n: public.spelt(n) for n in schema.public_columns}), frame], axis=1)
        return frame[list(schema.columns)]

    def again(self, noisy: Sequence[Sequence[FloatArray]], rng: np.random.Generator) -> list[list[FloatArray]]:
        """Return noisy counts with fresh noise (normal) on top."""
        both = (zip(of, steps, strict=True) for of, steps in zip(noisy, self.steps, strict=True))
        return [[n + step.standard_deviation * rng.standard_normal(len(n)) for n, step in each] for each in both]

    @property
    def numeric(self) -> tuple[IntervalColumn, ...]:
        return tuple(column for column in self.columns if not isinstance(column, CodeColumn))

    def lower(self, cuts: Mapping[str, IntArray]) -> dict[str, tuple[float, ...]]:
        """Return the lower bounds of the intervals of each numeric column."""
        return {c.name: tuple(c.fine.edges[cuts[c.name][:-1]].tolist()) for c in self.numeric}

    def coded(self, noisy: Sequence[Sequence[FloatArray]]) -> dict[str, tuple[CodeColumn, MeasuredMargin]]:
        """Return the codes with the noisy counts of their levels, as they are published."""
        each = [one for one in zip(self.columns, self.steps, noisy, strict=True) if isinstance(one[0], CodeColumn)]
        made = [MeasuredMargin.of(s[0], axes_of([c.name], [len(n[0])]), n[0].astype(np.int64)) for c, s, n in each]
        return {c.name: (c, margin) for (c, _, _), margin in zip(each, made, strict=True) if isinstance(c, CodeColumn)}

    def tables(self, noisy: Sequence[Sequence[FloatArray]], cuts: Mapping[str, IntArray]) -> dict[str, pd.DataFrame]:
        """Return what is published: ``intervals`` and the ``cuts`` of pairs; nothing where all columns have bins.

        ``intervals`` has ``column``, ``layer``, ``lower`` (from), ``upper`` (below), ``noisy`` and the ``variance`` of
        its noise; bounds are missing in the row that counts missing values. ``cuts`` has the lower bound of each.
        """
        if not self.numeric:
            return {}
        frames = [
            column.frame(layer, counts).assign(variance=step.standard_deviation**2)
            for column, steps, of in zip(self.columns, self.steps, noisy, strict=True)
            if column in self.numeric
            for layer, (step, counts) in enumerate(zip(steps, of, strict=True))
        ]
        begun = [pd.DataFrame({"column": name, "lower": lower}) for name, lower in self.lower(cuts).items()]
        return {"intervals": pd.concat(frames, ignore_index=True), "cuts": pd.concat(begun, ignore_index=True)}
