"""Numbers without bins: their cells, the layers in which these are counted, and the law
that noisy counts give them.

The cells of a number, at most ``MOST_CELLS`` or so, are public. They are counted in
layers, from wide intervals down to cells, and an interval is looked into only if its
noisy count stands out. What comes after is post-processing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial

import numpy as np
import pandas as pd
from numpy.random import Generator
from scipy.special import ndtr

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.schema import Column
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.margins.consistency import earlier
from pdips.privacy.curator import Curator
from pdips.privacy.plan import Step

MOST_CELLS = 200_000
"""A cell is as wide as the column's whole numbers or resolution, or a power of ten,
times one if there were more.
"""

# Cells up to which all are counted at once; below the first layer, widths are powers of
# ten
MOST_ON_TOP = 26
MOST_POWER = 12  # Of ten, in the width of an interval
# Equal parts of the range in the first layer, as in histograms: others would need
# louder counts
EVENLY = 20
# How often the equal part next to 0 is halved where it is cut finer: two intervals a
# halving
N_HALVES = 5
# Standard deviations of the noise that an interval must count to be looked into
STANDS_OUT = 6.0
# Times the price of a column with few levels that a number gets, for its layers (tried:
# 1 to 2)
WORTH = Fraction(3, 2)
# Prior probability that a half of an interval holds nothing, and that it holds all
# (tried: .1 to .4)
AT_ENDS = 0.25
LEAST = 1e-9
DIGITS = 12  # To which ends of cells are rounded, and at most so many decimals
MOST_DECIMALS = 300

# Returns noisy counts of some intervals of a layer, 0 for the others
Ask = Callable[[int, BoolArray], IntArray]


@dataclass(frozen=True, eq=False)
class IntervalColumn:
    """A numeric column without bins: its cells, and the layers in which they are
    counted. Public.

    Pairs of columns are counted by ``most_cuts`` intervals, where there are as many
    cells. If ``finer``, intervals of the first layer are narrower next to 0.
    """

    name: str
    column: Column
    most_cuts: int
    finer: bool = False

    @cached_property
    def _grid(self) -> tuple[FloatArray, int]:
        """Lower ends of the cells, and the number of the first one among multiples of
        their width.
        """
        first = 0
        if self.column.scale == "log":
            edges = self._log_edges()
        else:
            edges, first = self._even_edges()
        if not (np.diff(edges) > 0).all():
            raise InputError(
                f"column {self.name!r} has bounds between which no doubles make "
                f"cells: give it other units"
            )
        return edges, first

    @property
    def _bounds(self) -> tuple[float, float]:
        return float(self.column.lower or 0), float(self.column.upper or 0)

    def _log_edges(self) -> FloatArray:
        edges = np.geomspace(*self._bounds, MOST_CELLS // 10 + 1)
        return np.unique(np.floor(edges)) if self.column.integer else edges

    def _even_edges(self) -> tuple[FloatArray, int]:
        lower, upper = self._bounds
        width = self._width_of_cells()
        start = 0.0 if self.column.resolution is None else lower
        first = math.floor((lower - start) / width + LEAST)
        last = math.floor((upper - start) / width + LEAST)
        magnitude = math.ceil(math.log10(max(abs(lower), abs(upper))))
        n_decimals = min(max(DIGITS - magnitude, 0), MOST_DECIMALS)
        ends = start + width * np.arange(first, last + 1)
        edges = np.round(ends, n_decimals)
        edges[0] = lower
        if edges[-1] < upper:
            edges = np.append(edges, upper)
        return edges, first

    def _width_of_cells(self) -> float:
        lower, upper = self._bounds
        least = (upper - lower) / MOST_CELLS
        width = self.column.resolution
        if not width and self.column.integer:
            width = 1.0
        elif not width:
            width = 10.0 ** math.ceil(math.log10(10 * least))
        too_narrow = math.ceil(math.log10(least / width))
        return float(width * 10.0 ** max(too_narrow, 0))

    @cached_property
    def fine(self) -> Column:
        """The column with its cells as bins; the last one holds the upper bound
        alone.
        """
        edges = self._grid[0].tolist()
        upper = self._bounds[1]
        edges[-1] = upper if self.column.integer else math.nextafter(upper, edges[-2])
        return self.column.model_copy(update={"bin_edges": (*edges, upper)})

    @property
    def n_cells(self) -> int:
        """Number of cells, not counting missing."""
        return len(self._grid[0])

    @cached_property
    def nodes(self) -> tuple[IntArray, ...]:
        """By layer, the interval of each cell, shape (cells,); 0 and the upper bound
        are alone, but not of dates.
        """
        edges, first = self._grid
        places = np.arange(len(edges)) + first
        begins = self._begins_on_top(places)
        layers = [begins]
        for power in self._powers:
            multiples = places // 10**power
            begins = begins | (np.diff(multiples, prepend=multiples[0] - 1) != 0)
            layers.append(begins)
        return tuple(np.cumsum(layer) - 1 for layer in layers)

    @property
    def _is_layered(self) -> bool:
        return len(self._grid[0]) > MOST_ON_TOP

    @property
    def _powers(self) -> list[int]:
        """Of ten: how many cells an interval of each further layer has."""
        if not self._is_layered:
            return []
        widest = len(self._grid[0]) / EVENLY
        powers = range(MOST_POWER, -1, -1)
        return [power for power in powers if power == 0 or 2 * 10**power <= widest]

    def _begins_on_top(self, places: IntArray) -> BoolArray:
        """Return which cells begin an interval of the first layer."""
        edges, _ = self._grid
        linear = self.column.scale == "linear"
        dated = self.column.type == "date"
        many = self._is_layered
        n_parts = EVENLY if many else len(edges) - 1
        at = np.arange(len(edges), dtype=float)
        if linear and many:
            at = edges - edges[0]
        parts = np.floor(at / at[-1] * n_parts + LEAST)
        # the last day isn't alone
        parts = np.minimum(parts, n_parts - (dated and many))
        begins: BoolArray = np.diff(parts, prepend=-1) != 0
        if not dated:
            alone = ((places == 0) & linear) | (places == places[-1])
            begins |= np.diff(alone, prepend=False)
        if self.finer and linear and many and not dated:
            begins |= self._halved_next_to_zero(places)
        return begins

    def _halved_next_to_zero(self, places: IntArray) -> BoolArray:
        zero = min(max(0, int(places[0])), int(places[-1]))
        away = np.abs(places - zero) / len(places) * EVENLY
        octaves = 2 * np.log2(np.clip(away, 0.5**N_HALVES, 1))
        halves = np.floor(octaves + LEAST)
        begins: BoolArray = np.diff(halves, prepend=halves[0]) != 0
        return begins

    @property
    def n_cuts(self) -> int:
        """Number of intervals that pairs of columns are counted by."""
        return min(self.most_cuts, self.n_cells)

    @property
    def worth(self) -> Fraction:
        """How many times the price of a column with few levels it is given, to be
        counted by itself.
        """
        return WORTH

    def n_intervals(self, layer: int) -> int:
        """Return the number of intervals of a layer."""
        return int(self.nodes[layer][-1]) + 1

    def n_counts(self, layer: int) -> int:
        """Return the number of counts of a layer; in the first one that of missing
        values is the last, if any.
        """
        return self.n_intervals(layer) + (layer == 0 and bool(self.column.missing))

    def parent(self, layer: int) -> IntArray:
        """Return the interval of the layer above that each one of a layer is in; 0 for
        the first layer.
        """
        first = self._first_cells(layer)
        if layer == 0:
            return np.zeros(len(first), dtype=np.int64)
        return self.nodes[layer - 1][first]

    def _first_cells(self, layer: int) -> IntArray:
        return np.flatnonzero(np.diff(self.nodes[layer], prepend=-1))

    def counts(self, table: Table, layer: int) -> IntArray:
        """Return the exact counts of a layer."""
        return self.of_cells(layer, self.cell_counts(table))

    def cell_counts(self, table: Table) -> IntArray:
        """Return the exact count of each cell, and of missing values."""
        return table.count(table.binned(self.name, self.fine), self.n_cells + 1)

    def of_cells(self, layer: int, exact: IntArray) -> IntArray:
        """Return the exact counts of a layer from those of cells."""
        first = self._first_cells(layer)
        counts = np.add.reduceat(exact[: self.n_cells], first)
        return np.append(counts, exact[self.n_cells :])[: self.n_counts(layer)]

    def parts(self, ratio: int, first: Fraction | None = None) -> list[Fraction]:
        """Return the share of each layer in the price, each so many times the next; the
        ``first`` may be given.
        """
        weights = [Fraction(1, ratio**layer) for layer in range(len(self.nodes))]
        if first is not None and len(weights) > 1:
            weights[0] = sum(weights[1:]) * first / (1 - first)
        return [weight / sum(weights) for weight in weights]

    def measure(
        self, curator: Curator, steps: Sequence[Step], ask: Ask | None = None
    ) -> list[FloatArray]:
        """Return the noisy counts of each layer, NaN where none was asked. ``ask``
        counts some intervals of a layer.
        """
        layers = list[FloatArray]()
        asked = np.ones(self.n_counts(0), dtype=bool)
        for layer, step in enumerate(steps):
            if ask is None:
                counts = partial(self.counts, layer=layer)
                noisy = curator.count(step, counts, asked)
            else:
                noisy = ask(layer, asked)
            layers.append(np.where(asked, noisy, np.nan))
            if layer + 1 < len(steps):
                limit = STANDS_OUT * steps[layer + 1].standard_deviation
                kept = curator.decide(noisy, partial(np.less_equal, limit)) & asked
                asked = np.asarray(kept, dtype=bool)[self.parent(layer + 1)]
        return layers

    def frame(self, layer: int, counts: FloatArray) -> pd.DataFrame:
        """Return the noisy counts of a layer that were asked, with the bounds of their
        intervals.
        """
        edges = self.fine.edges
        lower = edges[self._first_cells(layer)]
        upper = np.append(lower[1:], edges[-1])
        # missing values have no bounds
        bounds = {
            name: np.append(values, np.nan)[: len(counts)]
            for name, values in (("lower", lower), ("upper", upper))
        }
        rows = pd.DataFrame(
            {"column": self.name, "layer": layer + 1, **bounds, "noisy": counts}
        )
        return rows[~np.isnan(counts)].astype({"noisy": np.int64})

    def law(
        self,
        layers: Sequence[FloatArray],
        steps: Sequence[Step],
        n_records: float | None,
    ) -> FloatArray:
        """Return the share of each cell, then of missing values, from noisy counts that
        are NaN where none was asked.

        Each interval is halved again and again (:func:`_divided`); where nothing was
        asked, it is divided evenly.
        """
        total = number_of_records(layers[0], n_records)
        missing = _part_of(
            layers[0][self.n_intervals(0) :],
            np.array([total]),
            steps[0].standard_deviation,
        )
        mass = np.array([max(total - missing.sum(), 0.0)])
        for layer, (counts, step) in enumerate(zip(layers, steps, strict=True)):
            n_cells = np.bincount(self.nodes[layer])
            mass = _divided(
                mass,
                counts[: len(n_cells)],
                n_cells,
                self.parent(layer),
                step.standard_deviation,
            )
        whole = max(float(mass.sum() + missing.sum()), LEAST)
        return np.append(mass, missing) / whole

    def _below(self, law: FloatArray) -> FloatArray:
        """Return how much of the law lies below each cell, and below their end."""
        raised = law[: self.n_cells] + LEAST / self.n_cells
        return np.concatenate([[0.0], np.cumsum(raised)])

    def cuts(self, law: FloatArray) -> IntArray:
        """Return the first cell of each interval for pairs, and the end: the fullest is
        halved again and again.

        Between cells that were counted together, whose law is even, a cut could part a
        spike from what is known of it, so it is made elsewhere as long as there are
        other places.
        """
        below = self._below(law)
        cuts = np.array([0, self.n_cells])
        apart = np.abs(np.diff(law[: self.n_cells]))
        places = np.flatnonzero(apart > LEAST * law[: self.n_cells - 1]) + 1
        while len(cuts) <= self.n_cuts:
            first = np.searchsorted(places, cuts[:-1], side="right")
            end = np.searchsorted(places, cuts[1:])
            share = np.where(end > first, np.diff(below[cuts]), -1.0)
            fullest = int(np.argmax(share))
            if share[fullest] < 0:
                places = np.arange(1, self.n_cells)
                continue
            inside = places[first[fullest] : end[fullest]]
            low, high = below[cuts[fullest : fullest + 2]]
            nearest = np.argmin(np.abs(2 * below[inside] - low - high))
            cuts = np.insert(cuts, fullest + 1, inside[nearest])
        return cuts.astype(np.int64)

    def levels(self, table: Table, cuts: IntArray) -> IntArray:
        """Return the interval of each row, the last one for missing values."""
        cells = table.binned(self.name, self.fine)
        interval = np.searchsorted(cuts[1:-1], cells, side="right")
        return np.where(cells == self.n_cells, self.n_cuts, interval)

    def cells(
        self,
        levels: IntArray,
        cuts: IntArray,
        law: FloatArray,
        rng: Generator,
        even: bool,
        place: FloatArray,
    ) -> IntArray:
        """Return a cell for each level, from the law within its interval: spread over
        its quantiles, or by chance.

        The order within an interval is that of ``place``.
        """
        below = self._below(law)
        # missing values are drawn like the last interval, and set apart at last
        interval = np.minimum(levels, self.n_cuts - 1)
        first = cuts[interval]
        end = cuts[interval + 1]
        order = np.lexsort([place, levels])
        nth = np.empty(len(levels))
        nth[order] = earlier(levels[order])
        quantile = rng.random(len(levels))
        quantile[order] = quantile[np.lexsort([nth if even else quantile, levels])]
        if even:
            n_alike = np.bincount(levels, minlength=self.n_cuts)
            quantile = (nth + quantile) / n_alike[levels]
        reached = below[first] + (below[end] - below[first]) * quantile
        drawn = np.searchsorted(below, reached, "right") - 1
        within = np.clip(drawn, first, end - 1)
        return np.where(levels == self.n_cuts, self.n_cells, within)

    def rounded(self, values: pd.Series) -> pd.Series:
        """Return values rounded to the lower ends of their cells; on a log scale, to
        the width of the first cell.
        """
        column = self.column
        is_log = column.scale == "log"
        if column.type == "date" or (column.integer and is_log):
            return values
        edges = self.fine.edges
        known = values.notna() & ~values.isin(column.missing_codes)
        if is_log:
            magnitude = math.floor(math.log10(edges[1] - edges[0]))
            short = values.round(max(2 - magnitude, 0))
            return values.mask(known, short.clip(edges[0], edges[-1]))
        written = values.copy()
        lowered = self.lowered(values[known].to_numpy(dtype=float))
        written[known] = lowered.astype(int if column.integer else float)
        return written

    def lowered(self, values: FloatArray) -> FloatArray:
        """Return numbers as the lower ends of their cells; on a log scale, as they are
        or as whole ones.
        """
        if self.column.scale == "log":
            return np.floor(values) if self.column.integer else values
        edges = self.fine.edges
        lower = np.append(edges[:-2], edges[-1] - self.column.integer)
        cells = np.searchsorted(edges, values, side="right") - 1
        return lower[np.minimum(cells, self.n_cells - 1)]


def number_of_records(counts: FloatArray, n_public: float | None) -> float:
    """Return the public number of records, or the sum of noisy counts; at least 1."""
    n_records = float(counts.sum()) if n_public is None else n_public
    return max(n_records, 1.0)


def _part_of(
    noisy: FloatArray, held: FloatArray, error: float | FloatArray
) -> FloatArray:
    """Return the posterior mean of a count between 0 and ``held``, of which ``noisy``
    has a standard error.

    It is at either end with probability ``AT_ENDS``; between, all log odds of its share
    are as likely, up to those of one standard error. An end likelier than all else is
    taken, or a long empty tail would hold a little everywhere.
    """
    tiny = np.finfo(np.float64).tiny
    error = np.maximum(error, LEAST)
    low = -noisy / error
    high = (held - noisy) / error
    at_zero = AT_ENDS * _normal_density(low)
    at_whole = AT_ENDS * _normal_density(high)
    # of the two tails the smaller ones are taken apart, which rounding leaves right
    inside = np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
    between = (1 - 2 * AT_ENDS) * inside * error / _width_by_odds(noisy, held, error)
    pulled = error * (at_zero - at_whole) / AT_ENDS
    middle = noisy + pulled / np.maximum(inside, tiny)
    evidence = np.maximum(at_zero + between + at_whole, tiny)
    mean = (between * middle + at_whole * held) / evidence
    rivals = between + np.minimum(at_zero, at_whole)
    at_end = np.maximum(at_zero, at_whole) >= rivals
    nearer_end = np.where(noisy < held / 2, 0, held)
    return np.where(at_end, nearer_end, np.clip(mean, 0, held))


def _normal_density(z: FloatArray) -> FloatArray:
    density: FloatArray = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return density


def _width_by_odds(
    noisy: FloatArray, held: FloatArray, error: FloatArray
) -> FloatArray:
    """Return over which width a count is as likely as where the noisy one is, if all
    log odds of its share are.
    """
    inner = np.clip(noisy, error, np.maximum(held - error, error))
    share = inner / np.maximum(held, 2 * error)
    most = np.maximum(held, LEAST)
    log_odds = np.log(np.maximum(most / error - 1, math.e))
    width: FloatArray = most * share * (1 - share) * 2 * log_odds
    return width


def _divided(
    mass: FloatArray,
    counts: FloatArray,
    n_cells: IntArray,
    parent: IntArray,
    deviation: float,
) -> FloatArray:
    """Return how much is in each interval, from how much is in its parents and noisy
    counts, by halving.

    The counts of two halves are made to add up to what both have, and each gets what it
    may be expected to hold.
    """
    place = np.arange(len(parent)) - np.searchsorted(parent, parent)
    width = 1 << int(place.max()).bit_length()
    noisy = np.zeros((len(mass), width))
    size = np.zeros((len(mass), width))
    noisy[parent, place] = counts
    size[parent, place] = n_cells
    held = mass[:, None]
    while width > 1:
        width //= 2
        shape = (len(mass), -1, 2, width)
        sizes = size.reshape(shape)
        held = _halved(held, noisy.reshape(shape), sizes, deviation)
        held = held.reshape(len(mass), -1)
    return np.asarray(held[parent, place], dtype=np.float64)


def _halved(
    held: FloatArray, noisy: FloatArray, sizes: FloatArray, deviation: float
) -> FloatArray:
    """Return what both halves of each part hold, shape (parents, parts, 2), from noisy
    counts within them, shape (parents, parts, 2, intervals).
    """
    half = noisy.sum(axis=3)
    n_counts = (sizes > 0).sum(axis=3)
    n_of_both = np.maximum(n_counts.sum(axis=2, keepdims=True), 1)
    n_cells = sizes.sum(axis=3)
    n_cells_of_both = np.maximum(n_cells.sum(axis=2, keepdims=True), 1)
    even = held[..., None] * n_cells / n_cells_of_both
    # what the two counts miss of the whole is theirs by the number of noises in them
    missed = held - half.sum(axis=2)
    consistent = half + missed[..., None] * n_counts / n_of_both
    product = n_counts.prod(axis=2, keepdims=True)
    error = deviation * np.sqrt(product / n_of_both)
    expected = _part_of(consistent, held[..., None], error)
    one_is_empty = n_counts.min(axis=2, keepdims=True) == 0
    unknown = np.isnan(consistent) | one_is_empty
    return np.where(unknown, even, expected)
