"""Products of columns, measured with noise, and sets that have them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from itertools import chain, pairwise, product

import numba
import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.schema import Schema, terms_of
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.margins.consistency import Codes
from pdips.margins.estimates import NoisyPairs
from pdips.margins.fine_columns import FineCounts
from pdips.margins.residuals import ResidualDesign
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Neighbours
from pdips.privacy.plan import AnswerLaw, Plan, Step
from pdips.privacy.sensitivity import Sensitivity

# Whole steps from the middle of a number to its caps; terms of all columns
PARTS = 1_000
MOST_TERMS = 300
PRODUCTS = "noisy products"

BEYOND = 1.0
"""Standard deviations of a product's noise, as so many records that each cap of a
number may hold back (tried: .25 to 2 on thirteen tables; a cap that holds back more
bends slopes, and one that holds back fewer makes them noisier).
"""

SEEN = 2.0  # Standard errors that the number of records must be above to be met
# Standard deviation of what a field gets wrong of a correlation, beside the noise
MISFIT = 0.1
LEAST = 1e-12  # Of what is divided by
# Exchanges that are tried a record, and how far apart in rank as a part of the records
PROPOSALS = 30
REACH = 0.1
# Records among which values are exchanged; more are parted by chance, to save memory
MOST_TOGETHER = 250_000


type Caps = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, eq=False)
class SecondMoments:
    """Sums, products and sums by level of some columns, over the records that have all
    of them: what OLS needs.

    A record is a vector: 1; for each number its place between two caps, from -1 to 1;
    and for each other column 0 or 1 for each level but the first. Its products of each
    two entries are added up, but for those that others give. A column of numbers as
    levels, or with bins, is a number. Refused for unknown columns, or fewer than two.
    """

    schema: Schema
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if unknown := [name for name in self.names if name not in self.schema.columns]:
            raise InputError(f"products: {unknown[0]!r} is no column")
        if len({*self.names}) < max(len(self.names), 2):
            raise InputError("products takes two columns or more, and none twice")
        if len(self.home) > MOST_TERMS:
            raise InputError(
                f"products: the columns have more than {MOST_TERMS} terms: merge "
                f"levels, or leave some out"
            )

    @cached_property
    def complete(self) -> Schema:
        """The schema of records in which none of the columns is missing."""
        known = {
            name: self.schema.columns[name].model_copy(update={"missing": False})
            for name in self.names
        }
        return self.schema.model_copy(
            update={"columns": {**self.schema.columns, **known}}
        )

    @cached_property
    def terms(self) -> dict[str, tuple[str, ...]]:
        """The terms of each column: itself for numbers, else one for each level but the
        first.
        """
        return {name: terms_of(self.complete, name) for name in self.names}

    @cached_property
    def home(self) -> tuple[str | None, ...]:
        """The column of each entry of the vector; none of the 1."""
        return (None, *(name for name, terms in self.terms.items() for _ in terms))

    @cached_property
    def numeric(self) -> BoolArray:
        """Which entries are numbers; the 1 is one."""
        return np.array(
            [name is None or self.terms[name] == (name,) for name in self.home]
        )

    @cached_property
    def entries(self) -> tuple[IntArray, IntArray]:
        """Which two entries of the vector each sum multiplies."""
        rows, columns = np.triu_indices(len(self.home))
        home = np.array(self.home, dtype=object)
        is_apart = home[rows] != home[columns]
        is_square = (rows == columns) & self.numeric[rows]
        kept = is_apart | is_square
        return rows[kept].astype(np.int64), columns[kept].astype(np.int64)

    def step(self, price: Fraction, neighbours: Neighbours, law: AnswerLaw) -> Step:
        """Return what is asked: ``turned`` numbers of a record may change their sign,
        ``other`` columns their level.

        Proof: ``docs/proofs/margins.md``, theorem 2f.
        """
        numbers = int(self.numeric.sum())
        columns = len(self.names) + 1 - numbers
        products_of_numbers = numbers * (numbers + 1) // 2
        products_of_levels = columns * (columns - 1) // 2
        whole = products_of_numbers + numbers * columns + products_of_levels
        l1 = whole
        squared = whole
        if neighbours == "replace-one":
            for turned, other in product(range(numbers), range(columns + 1)):
                signs = turned * (numbers - turned + columns - other)
                levels = 2 * numbers * other + other * (2 * columns - other - 1)
                l1 = max(l1, 2 * signs + levels + numbers - 1)
                squared = max(squared, 4 * signs + levels)
        unit = PARTS**2
        moved = Sensitivity.of_record(
            self.schema, l1=l1 * unit, l2_squared=squared * unit**2
        )
        counts = f"each sum of products of numbers between -1 and 1, in {unit:,} parts"
        return Step(
            name=PRODUCTS, counts=counts, sensitivity=moved, price=price, law=law
        )

    @property
    def said(self) -> str:
        """What a plan says of it."""
        return f" Sums of products of {', '.join(self.names)} have such noise too."

    def ask(
        self, curator: Curator, plan: Plan, fine: FineCounts, pairs: NoisyPairs
    ) -> "NoisyProducts":
        """Return noisy sums. Caps of numbers follow from noisy counts: of cells in
        ``fine``, of levels in ``pairs``.
        """
        step = plan.named(PRODUCTS)
        chosen: Mapping[str, FloatArray] = {}
        if self.numbers:
            chosen = curator.keep(partial(self._caps, step, plan.design, fine, pairs))
        caps = {name: (float(low), float(high)) for name, (low, high) in chosen.items()}
        noisy = curator.count(step, partial(self.count, caps=caps))
        n_records = None if self.may_lack else fine.n_public
        return NoisyProducts(self, step, noisy, caps, n_records)

    @property
    def numbers(self) -> list[str]:
        """The columns that are numbers."""
        return [name for name, terms in self.terms.items() if terms == (name,)]

    def _caps(
        self, step: Step, design: ResidualDesign, fine: FineCounts, pairs: NoisyPairs
    ) -> dict[str, FloatArray]:
        """Return between which two values each number counts: beyond each lie about as
        many records as the noise on a product hides.
        """
        cells = {column.name: column for column in fine.design.numeric}
        caps = dict[str, FloatArray]()
        for name in self.numbers:
            if name in cells:
                edges = np.asarray(cells[name].fine.edges)
                low = edges[:-1]
                high = edges[1:]
                held = fine.laws[name][: len(low)] * pairs.n
            else:
                low, held = self._held_by_levels(name, design, pairs)
                high = low
            below = np.cumsum(held)
            hidden = BEYOND * step.standard_deviation / PARTS**2
            part = min(hidden, below[-1] / 4)
            first, last = np.searchsorted(below, [part, below[-1] - part])
            # no noisy count is of a level
            if self.schema.columns[name].groups is not None or not below[-1]:
                first = 0
                last = len(low) - 1
            lowest = low[first]
            highest = high[min(last, len(high) - 1)]
            if highest <= lowest:
                highest = lowest + max(abs(lowest), 1.0)
            caps[name] = np.array([lowest, highest])
        return caps

    def _held_by_levels(
        self, name: str, design: ResidualDesign, pairs: NoisyPairs
    ) -> tuple[FloatArray, FloatArray]:
        """Return the levels or middles of bins of a number in order, and how many
        records each has.
        """
        block, place = design.home[name]
        values = np.array(self._values(name))
        own = slice(design.offsets[block], design.offsets[block + 1])
        counts = np.diagonal(pairs.counts)[own]
        levels = design.blocks[block].levels[:, place]
        held = np.bincount(levels, counts, len(values))[: len(values)]
        order = np.argsort(values)
        return values[order], held[order].clip(0)

    @property
    def may_lack(self) -> bool:
        """Whether a record may lack one of the columns."""
        return any(self.schema.columns[name].missing for name in self.names)

    def _values(self, name: str) -> list[float]:
        """Return what stands for each level or bin of a number: the level, or the
        middle.
        """
        column = self.schema.columns[name]
        middles = [(low + high) / 2 for low, high in pairwise(column.edges)]
        return [float(value) for value in column.levels or middles]

    def vectors(self, table: Table, caps: Caps) -> tuple[BoolArray, FloatArray]:
        """Return which rows have all columns, and their vectors in parts, shape
        (complete rows, entries).
        """
        entries = list[FloatArray]()
        known = np.array(True)
        for name, terms in self.terms.items():
            if terms == (name,):
                values = self._numbers_of(name, table)
                low, high = caps[name]
                # halves first: the range of two doubles may be none
                middle = low / 2 + high / 2
                place = np.clip((values - middle) / (high / 2 - low / 2), -1, 1)
                entries.append(np.rint(PARTS * np.nan_to_num(place)))
                known = known & ~np.isnan(values)
            else:
                codes = table.codes[name]
                levels = range(1, 1 + len(terms))
                entries += [np.where(codes == level, PARTS, 0) for level in levels]
                known = known & (codes < self.schema.columns[name].n_values)
        ones = np.full(len(known), PARTS)
        vectors = np.column_stack([ones, *entries])[known]
        return known, vectors.astype(np.float64)

    def _numbers_of(self, name: str, table: Table) -> FloatArray:
        """Return the numbers of a column, NaN where it is missing."""
        column = self.schema.columns[name]
        if column.is_categorical or column.is_binned:
            return np.array([*self._values(name), np.nan])[table.codes[name]]
        return table.sort_key(name)

    def count(self, table: Table, caps: Caps) -> IntArray:
        """Return the exact sums, in parts."""
        known, vectors = self.vectors(table, caps)
        weighted = vectors
        if table.counts is not None:
            weighted = vectors * table.counts[known][:, None]
        return (vectors.T @ weighted).astype(np.int64)[self.entries]

    @staticmethod
    def restored(rows: pd.DataFrame) -> IntArray:
        """Return noisy sums in parts, from what was published."""
        return np.rint(rows["noisy"].to_numpy(np.float64) * PARTS**2).astype(np.int64)


@dataclass(frozen=True, eq=False)
class NoisyProducts:
    """Noisy sums of products, with the caps between which numbers are from -1 to 1.

    ``n_records`` is the public number of records that have all columns, if it is
    public.
    """

    design: SecondMoments
    step: Step
    noisy: IntArray
    caps: Caps
    n_records: int | None = None

    @property
    def error(self) -> float:
        """The standard error of a sum."""
        return self.step.standard_deviation / PARTS**2

    def matrices(
        self, rng: np.random.Generator | None = None, times: int = 1
    ) -> FloatArray:
        """Return sums of all products, shape (times, entries, entries); with ``rng``,
        with fresh noise on top.
        """
        sums = np.broadcast_to(self.noisy / PARTS**2, (times, len(self.noisy)))
        if rng is not None:
            sums = sums + self.error * rng.standard_normal(sums.shape)
        size = len(self.design.home)
        rows, columns = self.design.entries
        grams = np.zeros((times, size, size))
        grams[:, rows, columns] = sums
        grams[:, columns, rows] = sums
        # a level's square is the level
        levels = np.flatnonzero(~self.design.numeric)
        grams[:, levels, levels] = grams[:, 0, levels]
        if self.n_records is not None:
            grams[:, 0, 0] = self.n_records
        return grams

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return what is published: ``products`` of terms, with the standard error, and
        ``caps`` of numbers.
        """
        of_columns = chain.from_iterable(self.design.terms.values())
        terms = np.array(["1", *of_columns], dtype=object)
        first, second = (terms[places] for places in self.design.entries)
        rows = {
            "first": first,
            "second": second,
            "noisy": self.noisy / PARTS**2,
            "standard_error": self.error,
        }
        caps = [
            {"column": name, "lower": low, "upper": high}
            for name, (low, high) in self.caps.items()
        ]
        return {
            "products": pd.DataFrame(rows),
            "caps": pd.DataFrame(caps, columns=["column", "lower", "upper"]),
        }

    @classmethod
    def read(
        cls,
        design: SecondMoments,
        step: Step,
        n: int | None,
        tables: Mapping[str, pd.DataFrame],
    ) -> "NoisyProducts":
        """Return noisy sums as they were published, with the law of the plan."""
        rows = tables["caps"]
        lower, upper = (rows[end].to_numpy(np.float64) for end in ("lower", "upper"))
        both = zip(lower.tolist(), upper.tolist(), strict=True)
        caps = dict(zip(map(str, rows["column"]), both, strict=True))
        noisy = design.restored(tables["products"])
        n_sums = len(design.entries[0])
        if (
            len(noisy) != n_sums
            or {*caps} != {*design.numbers}
            or not (lower < upper).all()
        ):
            raise InputError(
                "products and privacy.json don't belong together: one "
                "of them was changed"
            )
        return cls(design, step, noisy, caps, None if design.may_lack else n)

    def meet(
        self,
        frame: pd.DataFrame,
        codes: Codes,
        design: ResidualDesign,
        pairs: NoisyPairs,
        rng: np.random.Generator,
        *,
        posterior: bool,
    ) -> pd.DataFrame:
        """Return a set in which numbers without bins have been exchanged between
        records, towards the noisy products.

        The set has products of its own, by noisy ``pairs``: ``codes`` are the levels of
        its records, shape (records, blocks). Both are weighed by their precision. A
        ``posterior`` set meets products with fresh noise and sampling error on top.
        """
        (gram,) = self.matrices(rng if posterior else None)
        if not len(frame) or gram[0, 0] < max(SEEN * self.error, 1):
            return frame
        blocks = [design.home[name][0] for name in self.design.names]
        others = [k for k in range(codes.shape[1]) if k not in blocks]
        levels = codes[:, [*blocks, *others]]
        variance = pairs.variance[np.ix_(blocks, blocks)]
        parts = [np.arange(len(frame))]
        if len(frame) > MOST_TOGETHER:
            n_parts = math.ceil(len(frame) / MOST_TOGETHER)
            parts = np.array_split(rng.permutation(len(frame)), n_parts)
        met = list[pd.DataFrame]()
        for rows in parts:
            part = frame.iloc[rows]
            met.append(
                self._near(part, levels[rows], variance, gram, rng, posterior=posterior)
            )
        return pd.concat(met).sort_index()

    def _near(
        self,
        frame: pd.DataFrame,
        levels: Codes,
        variance: FloatArray,
        gram: FloatArray,
        rng: np.random.Generator,
        *,
        posterior: bool,
    ) -> pd.DataFrame:
        """Return records whose values have been exchanged; ``variance`` is of the noise
        on the pairs of columns.

        ``levels`` holds these columns first, then all others, whose means of each
        number by level are kept.
        """
        schema = self.design.schema
        table = Table(frame, schema.without_person())
        known, vectors = self.design.vectors(table, self.caps)
        if len(vectors) < 2:
            return frame
        off = vectors / PARTS - vectors.mean(axis=0) / PARTS
        goal = self._goal(off, levels[known], variance, gram, rng, posterior=posterior)
        nearer = frame.copy()
        rows = np.flatnonzero(known)
        others = levels[known, len(self.design.names) :]
        for name in self.design.names:
            if schema.columns[name].is_categorical or schema.columns[name].is_binned:
                continue
            entry = self.design.home.index(name)
            order, holder = _exchanged_towards(goal[entry], off, entry, others, rng)
            values = frame[name].array.copy()
            values[rows[holder]] = values[rows[order]]
            nearer[name] = values
        return nearer

    def _goal(
        self,
        off: FloatArray,
        levels: Codes,
        variance: FloatArray,
        gram: FloatArray,
        rng: np.random.Generator,
        *,
        posterior: bool,
    ) -> FloatArray:
        """Return which products around the mean a set is to have, between its own and
        the noisy ones, by their precision.
        """
        n = len(off)
        own = off.T @ off
        mean = gram[0] / gram[0, 0]
        measured = n * (gram / gram[0, 0] - np.outer(mean, mean))
        misfit = MISFIT**2 * np.outer(np.diag(own), np.diag(own))
        doubt = misfit + self._doubt(off, levels, variance)
        noise = (self.error * n / gram[0, 0]) ** 2
        # pairs that weren't counted say nothing
        is_known = np.isfinite(doubt)
        part = np.where(is_known, doubt / (np.where(is_known, doubt, 0) + noise), 1)
        goal: FloatArray = own + part * (measured - own)
        if posterior:
            times = rng.poisson(1, n) - 1
            resampled = off.T @ (off * times[:, None])
            goal += np.sqrt(1 - (1 - part) ** 2) * resampled
        return goal

    def _doubt(
        self, off: FloatArray, levels: Codes, variance: FloatArray
    ) -> FloatArray:
        """Return the variance of the products of a set by the noise on its pairs, shape
        (entries, entries).
        """
        names = self.design.names
        own = [names.index(name) for name in self.design.home if name is not None]
        columns = [0, *own]
        spread = np.zeros(len(columns))
        for entry, column in enumerate(columns):
            n_records = np.bincount(levels[:, column])
            sums = np.bincount(levels[:, column], off[:, entry])
            means = (sums / np.maximum(n_records, 1))[n_records > 0]
            spread[entry] = ((means - means.mean()) ** 2).sum()
        return variance[np.ix_(columns, columns)] * np.outer(spread, spread)


def _exchanged_towards(
    goal: FloatArray,
    off: FloatArray,
    entry: int,
    others: Codes,
    rng: np.random.Generator,
) -> tuple[IntArray, IntArray]:
    """Exchange the values of an entry of ``off`` between records, in place, towards
    products with all entries, means by level of ``others`` kept.

    Returns
    -------
    order, holder : ndarray
        The record that had each value, from the smallest, and the one that has it.
    """
    n = len(off)
    own = off[:, entry]
    beside = np.arange(off.shape[1]) != entry
    beside[0] = False
    means = [_means(own, levels) for levels in others.T]
    given = np.ascontiguousarray(np.column_stack([off[:, beside], *means]))
    short = np.append((goal - own @ off)[beside], np.zeros(len(means)))
    order = np.argsort(own, kind="stable")
    holder = order.copy()
    values = np.ascontiguousarray(own[order])
    farthest = max(2, math.ceil(REACH * n))
    for _ in range(PROPOSALS):
        some = rng.integers(0, n, n)
        far = rng.integers(1, farthest, n)
        exchanged(values, holder, given, short, some, some + far)
    off[holder, entry] = values
    return order, holder


def _means(values: FloatArray, levels: Codes) -> FloatArray:
    """Return for each record the mean of its level, centred and as widely spread as the
    values.
    """
    n_records = np.bincount(levels)
    means = np.bincount(levels, values) / np.maximum(n_records, 1)
    centred = means[levels] - values.mean()
    return centred * (values.std() / max(centred.std(), LEAST))


@numba.njit(cache=True, nogil=True)
def exchanged(values, holder, given, short, some, others):  # type: ignore[no-untyped-def]
    """Exchange values between records, in place, wherever that brings their products
    nearer to what they fall short of.

    ``values`` are sorted, ``holder`` is the record of each, ``given`` are other numbers
    of the records; ``some`` and ``others`` are places of values to try.
    """
    n = len(values)
    for t in range(len(some)):
        a = some[t]
        b = others[t]
        if b >= n:
            continue
        i = holder[a]
        j = holder[b]
        rise = values[b] - values[a]
        change = 0.0
        for k in range(len(short)):
            moved = rise * (given[i, k] - given[j, k])
            change += moved * (moved - 2 * short[k])
        if change < 0:
            holder[a] = j
            holder[b] = i
            for k in range(len(short)):
                short[k] -= rise * (given[i, k] - given[j, k])
