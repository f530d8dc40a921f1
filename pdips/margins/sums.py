"""Sums over records, measured with noise, and sets that have them: weights by level, and products of columns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import pairwise, product

import numba
import numpy as np
import pandas as pd

from pdips.arrays import BoolArray, FloatArray, IntArray
from pdips.data.schema import Schema, terms_of
from pdips.data.table import Table
from pdips.data.totals import KnownTable, places, raked
from pdips.errors import InputError
from pdips.margins.consistency import Codes
from pdips.margins.estimates import NoisyPairs
from pdips.margins.intervals import IntervalDesign
from pdips.margins.residuals import ResidualDesign
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Neighbours
from pdips.privacy.plan import AnswerLaw, Plan, Step
from pdips.privacy.sensitivity import Sensitivity

UNITS, CAPS = 10_000, 200  # Whole steps of a weight at the cap; caps that are tried
SUMS_OF_WEIGHTS = "noisy sums of weights"

SEEN = 2.0  # Standard errors that a weighted sum must be above to be met by sets

PARTS, MOST_TERMS = 1_000, 300  # Whole steps from the middle of a number to its caps; terms of all columns
PRODUCTS = "noisy products"

BEYOND = 1.0
"""Standard deviations of a product's noise, as so many records that each cap of a number may hold back (tried: .25 to 2
on thirteen tables; a cap that holds back more bends slopes, and one that holds back fewer makes them noisier)."""

MISFIT = 0.1  # Standard deviation of what a field gets wrong of a correlation, beside the noise
PROPOSALS, REACH = 30, 0.1  # Exchanges that are tried a record, and how far apart in rank as a part of the records
MOST_TOGETHER = 250_000  # Records among which values are exchanged; more are parted by chance, to save memory


@dataclass(frozen=True, eq=False)
class WeightedSums:
    """Sums of weights by level of some columns, where weights beyond a cap count as the cap.

    Refused without ``records.weight`` in the schema that has no bins and sets may change, or for columns without
    levels.
    """

    schema: Schema
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        weight = self.schema.columns.get(self.schema.records.weight or "")
        if weight is None or weight.integer or weight.is_binned or weight.public or weight.type == "date":
            raise InputError(
                "weighted sums need records.weight, a number that is not integer, without bins, not public"
            )
        for name in self.names:
            column = self.schema.columns.get(name)
            if column is None or not (column.is_categorical or column.is_binned):
                raise InputError(f"weighted: {name!r} is no column with levels or bins")
        if len({*self.names}) < len(self.names):
            raise InputError("weighted names a column twice")

    @property
    def weight(self) -> str:
        """The column of weights."""
        return str(self.schema.records.weight)

    def step(self, price: Fraction, neighbours: Neighbours, law: AnswerLaw) -> Step:
        """Return what is asked: a record adds at most ``UNITS`` to one sum of each column."""
        most = Sensitivity.of_counts(self.schema, neighbours, tables=len(self.names))
        moved = Sensitivity(l1=UNITS * most.l1, l2_squared=UNITS**2 * most.l2_squared)
        counts = f"each sum of weights, in {UNITS:,} parts of the cap"
        return Step(name=SUMS_OF_WEIGHTS, counts=counts, sensitivity=moved, price=price, law=law)

    def measure(
        self,
        curator: Curator,
        step: Step,
        fine: IntervalDesign,
        counted: Sequence[Sequence[FloatArray]],
        laws: Mapping[str, FloatArray],
    ) -> "CappedSums":
        """Return noisy sums, at the cap where noise and what is left out are smallest together.

        This cap follows from the noisy counts of intervals of the weight, and their law.
        """
        place, column = next((k, each) for k, each in enumerate(fine.columns) if each.name == self.weight)
        edges, law = column.fine.edges, laws[self.weight][: column.n_cells]
        middle, caps = (edges[:-1] + edges[1:]) / 2, edges[1:][law > 0]
        caps = caps[np.unique(np.linspace(0, len(caps) - 1, CAPS).astype(int))] if len(caps) else edges[-1:]
        beyond = np.nansum(counted[place][0]) * np.array([law @ np.maximum(middle - cap, 0) for cap in caps])
        best = np.argmin((caps / UNITS * step.standard_deviation) ** 2 + beyond**2)
        cap, rest = float(caps[best]), float(max(beyond[best], 0.0))
        return CappedSums(self, step, curator.count(step, partial(self.count, cap=cap)), cap, rest)

    @staticmethod
    def restored(rows: pd.DataFrame) -> IntArray:
        """Return noisy sums in parts of the cap, from what was published."""
        return np.rint((rows["noisy"] / rows["cap"]).to_numpy(np.float64) * UNITS).astype(np.int64)

    def count(self, table: Table, cap: float) -> IntArray:
        """Return the exact sums, in parts of the cap, column after column."""
        units = np.rint(np.minimum(table.sort_key(self.weight) / cap, 1) * UNITS)
        found = list[IntArray]()
        for name in self.names:
            found.append(np.zeros(self.schema.columns[name].n_levels, dtype=np.int64))
            np.add.at(found[-1], table.codes[name], units.astype(np.int64))
        return np.concatenate(found)


@dataclass(frozen=True, eq=False)
class CappedSums:
    """Noisy sums of weights by level, in which no weight counts for more than the cap.

    ``beyond`` is what weights are above the cap, all together, by the noisy law of weights.
    """

    design: WeightedSums
    step: Step
    noisy: IntArray
    cap: float
    beyond: float

    @property
    def error(self) -> float:
        """The standard error of a sum, in the unit of the weight."""
        return self.step.standard_deviation * self.cap / UNITS

    def by_column(self, rng: np.random.Generator | None = None) -> dict[str, FloatArray]:
        """Return the sums of each column in the unit of the weight; with ``rng``, with fresh noise on top."""
        sums = self.noisy * (self.cap / UNITS) + (
            0 if rng is None else self.error * rng.standard_normal(len(self.noisy))
        )
        columns = self.design.schema.columns
        ends = np.cumsum([columns[name].n_levels for name in self.design.names])[:-1]
        return dict(zip(self.design.names, np.split(sums, ends), strict=True))

    def frame(self) -> pd.DataFrame:
        """Return a row for each level: its noisy sum, the standard error and the cap; this is published."""
        levels = {name: self.design.schema.columns[name].names() for name in self.design.names}
        found = [
            pd.DataFrame({"column": name, "level": levels[name], "noisy": sums})
            for name, sums in self.by_column().items()
        ]
        return pd.concat(found, ignore_index=True).assign(standard_error=self.error, cap=self.cap)

    def met(self, made: pd.DataFrame, rng: np.random.Generator | None = None) -> pd.DataFrame:
        """Return a set whose weights have the sums that stand out from the noise; ``rng`` as in :meth:`by_column`.

        All columns are given one total, the mean of theirs by precision and what is beyond the cap. Other levels keep
        their share of the set.
        """
        weight, columns = self.design.weight, self.design.schema.columns
        parts = self.by_column(rng)
        total = float(np.average([*map(np.sum, parts.values())], weights=[1 / len(part) for part in parts.values()]))
        found = list[KnownTable]()
        for name, part in parts.items():
            table = KnownTable((name,), part, total, weighted=True)
            own = np.bincount(places(made, table, columns), made[weight], len(part))
            goal = part + (total - part.sum()) / len(part)
            goal = np.where(goal > SEEN * self.error, goal, own * total / max(own.sum(), 1e-300))
            found.append(replace(table, shares=goal / max(goal.sum(), 1e-300), n_records=total + self.beyond))
        return raked(made, weight, found, columns) if total > SEEN * self.error else made


type Caps = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, eq=False)
class SecondMoments:
    """Sums, products and sums by level of some columns, over the records that have all of them: what OLS needs.

    A record is a vector: 1; for each number its place between two caps, from -1 to 1; and for each other column 0 or 1
    for each level but the first. Its products of each two entries are added up, but for those that others give. A
    column of numbers as levels, or with bins, is a number. Refused for unknown columns, or fewer than two.
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
                f"products: the columns have more than {MOST_TERMS} terms: merge levels, or leave some out"
            )

    @cached_property
    def complete(self) -> Schema:
        """The schema of records in which none of the columns is missing."""
        known = {name: self.schema.columns[name].model_copy(update={"missing": False}) for name in self.names}
        return self.schema.model_copy(update={"columns": {**self.schema.columns, **known}})

    @cached_property
    def terms(self) -> dict[str, tuple[str, ...]]:
        """The terms of each column: itself for numbers, else one for each level but the first."""
        return {name: terms_of(self.complete, name) for name in self.names}

    @cached_property
    def home(self) -> tuple[str | None, ...]:
        """The column of each entry of the vector; none of the 1."""
        return (None, *(name for name, terms in self.terms.items() for _ in terms))

    @cached_property
    def numeric(self) -> BoolArray:
        """Which entries are numbers; the 1 is one."""
        return np.array([name is None or self.terms[name] == (name,) for name in self.home])

    @cached_property
    def entries(self) -> tuple[IntArray, IntArray]:
        """Which two entries of the vector each sum multiplies."""
        rows, columns = np.triu_indices(len(self.home))
        apart = np.array([self.home[i] != self.home[j] for i, j in zip(rows, columns, strict=True)])
        kept = apart | ((rows == columns) & self.numeric[rows])
        return rows[kept].astype(np.int64), columns[kept].astype(np.int64)

    def step(self, price: Fraction, neighbours: Neighbours, law: AnswerLaw) -> Step:
        """Return what is asked: ``turned`` numbers of a record may change their sign, ``other`` columns their level.

        Proof: ``docs/proofs/pairs.md``, theorem 2f.
        """
        numbers = int(self.numeric.sum())
        columns = len(self.names) + 1 - numbers
        whole = numbers * (numbers + 1) // 2 + numbers * columns + columns * (columns - 1) // 2
        l1, squared = whole, whole
        if neighbours == "replace-one":
            for turned, other in product(range(numbers), range(columns + 1)):
                signs = turned * (numbers - turned + columns - other)
                levels = 2 * numbers * other + other * (2 * columns - other - 1)
                l1, squared = max(l1, 2 * signs + levels + numbers - 1), max(squared, 4 * signs + levels)
        unit = PARTS**2
        moved = Sensitivity.of_record(self.schema, l1=l1 * unit, l2_squared=squared * unit**2)
        counts = f"each sum of products of numbers between -1 and 1, in {unit:,} parts"
        return Step(name=PRODUCTS, counts=counts, sensitivity=moved, price=price, law=law)

    def measure(
        self, curator: Curator, plan: Plan, fine: IntervalDesign, laws: Mapping[str, FloatArray], found: NoisyPairs
    ) -> "NoisyProducts":
        """Return noisy sums. Caps of numbers follow from noisy counts: of cells by ``laws``, of levels in ``found``."""
        cells, design, step = {each.name: each for each in fine.numeric}, plan.design, plan.named(PRODUCTS)
        caps = dict[str, tuple[float, float]]()
        for name in (name for name, terms in self.terms.items() if terms == (name,)):
            if name in cells:
                edges = np.asarray(cells[name].fine.edges)
                low, high, held = edges[:-1], edges[1:], laws[name][: len(edges) - 1] * found.n
            else:
                (block, place), values = design.home[name], np.array(self._values(name))
                counts = np.diagonal(found.counts)[design.offsets[block] : design.offsets[block + 1]]
                held = np.bincount(design.blocks[block].levels[:, place], counts, len(values))[: len(values)]
                order = np.argsort(values)
                low, high, held = values[order], values[order], held[order].clip(0)
            below = np.cumsum(held)
            part = min(BEYOND * step.standard_deviation / PARTS**2, below[-1] / 4)
            first, last = np.searchsorted(below, [part, below[-1] - part])
            if self.schema.columns[name].groups is not None or not below[-1]:  # no noisy count is of a level
                first, last = 0, len(low) - 1
            caps[name] = float(low[first]), float(high[min(last, len(high) - 1)])
        caps = {name: (low, high if high > low else low + max(abs(low), 1.0)) for name, (low, high) in caps.items()}
        noisy = curator.count(step, partial(self.count, caps=caps))
        return NoisyProducts(self, step, noisy, caps, None if self.may_lack or not plan.n_public else curator.n_records)

    @property
    def may_lack(self) -> bool:
        """Whether a record may lack one of the columns."""
        return any(self.schema.columns[name].missing for name in self.names)

    def _values(self, name: str) -> list[float]:
        """Return what stands for each level or bin of a number: the level, or the middle."""
        column = self.schema.columns[name]
        return [*map(float, column.levels or [(a + b) / 2 for a, b in pairwise(column.edges)])]

    def vectors(self, table: Table, caps: Caps) -> tuple[BoolArray, FloatArray]:
        """Return which rows have all columns, and their vectors in parts, shape (complete rows, entries)."""
        found, known = list[FloatArray](), np.array(True)
        for name, terms in self.terms.items():
            column = self.schema.columns[name]
            if terms != (name,):
                found += [np.where(table.codes[name] == 1 + k, PARTS, 0) for k in range(len(terms))]
                known = known & (table.codes[name] < column.n_values)
                continue
            if column.is_categorical or column.is_binned:
                values = np.array([*self._values(name), np.nan])[table.codes[name]]
            else:
                values = table.sort_key(name)
            low, high = caps[name]
            place = (values - (low / 2 + high / 2)) / (high / 2 - low / 2)
            found.append(np.rint(PARTS * np.nan_to_num(np.clip(place, -1, 1))))
            known = known & ~np.isnan(values)
        return known, np.column_stack([np.full(len(known), PARTS), *found])[known].astype(np.float64)

    def count(self, table: Table, caps: Caps) -> IntArray:
        """Return the exact sums, in parts."""
        known, vectors = self.vectors(table, caps)
        times = 1 if table.counts is None else table.counts[known][:, None]
        return (vectors.T @ (vectors * times)).astype(np.int64)[self.entries]

    @staticmethod
    def restored(rows: pd.DataFrame) -> IntArray:
        """Return noisy sums in parts, from what was published."""
        return np.rint(rows["noisy"].to_numpy(np.float64) * PARTS**2).astype(np.int64)


@dataclass(frozen=True, eq=False)
class NoisyProducts:
    """Noisy sums of products, with the caps between which numbers are from -1 to 1.

    ``n_records`` is the public number of records that have all columns, if it is public.
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

    def matrices(self, rng: np.random.Generator | None = None, times: int = 1) -> FloatArray:
        """Return sums of all products, shape (times, entries, entries); with ``rng``, with fresh noise on top."""
        noise = 0.0 if rng is None else self.error * rng.standard_normal((times, len(self.noisy)))
        sums = np.broadcast_to(self.noisy / PARTS**2 + noise, (times, len(self.noisy)))
        size, (rows, columns) = len(self.design.home), self.design.entries
        found = np.zeros((times, size, size))
        found[:, rows, columns] = found[:, columns, rows] = sums
        levels = np.flatnonzero(~self.design.numeric)
        found[:, levels, levels] = found[:, 0, levels]
        if self.n_records is not None:
            found[:, 0, 0] = self.n_records
        return found

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return what is published: ``products`` of terms, with the standard error, and ``caps`` of numbers."""
        terms = np.array(["1", *(term for terms in self.design.terms.values() for term in terms)], dtype=object)
        first, second = (terms[places] for places in self.design.entries)
        rows = {"first": first, "second": second, "noisy": self.noisy / PARTS**2, "standard_error": self.error}
        caps = [{"column": name, "lower": low, "upper": high} for name, (low, high) in self.caps.items()]
        return {"products": pd.DataFrame(rows), "caps": pd.DataFrame(caps, columns=["column", "lower", "upper"])}

    @classmethod
    def read(
        cls, design: SecondMoments, step: Step, n: int | None, tables: Mapping[str, pd.DataFrame]
    ) -> "NoisyProducts":
        """Return noisy sums as they were published, with the law of the plan."""
        rows, numbers = tables["caps"], {name for name, terms in design.terms.items() if terms == (name,)}
        both = zip(*(rows[end].to_numpy(np.float64).tolist() for end in ("lower", "upper")), strict=True)
        caps = dict(zip(map(str, rows["column"]), both, strict=True))
        noisy = design.restored(tables["products"])
        if len(noisy) != len(design.entries[0]) or {*caps} != numbers or any(not a < b for a, b in caps.values()):
            raise InputError("products and privacy.json don't belong together: one of them was changed")
        return cls(design, step, noisy, caps, None if design.may_lack else n)

    def met(
        self,
        made: pd.DataFrame,
        codes: Codes,
        pairs: ResidualDesign,
        noisy: NoisyPairs,
        rng: np.random.Generator,
        *,
        posterior: bool,
    ) -> pd.DataFrame:
        """Return a set in which numbers without bins have been exchanged between records, towards the noisy products.

        The set has products of its own, by ``noisy`` pairs: ``codes`` are the levels of its records, shape (records,
        blocks). Both are weighed by their precision. A ``posterior`` set meets products with fresh noise and sampling
        error on top.
        """
        (gram,) = self.matrices(rng if posterior else None)
        if not len(made) or gram[0, 0] < max(SEEN * self.error, 1):
            return made
        blocks = [pairs.home[name][0] for name in self.design.names]
        variance = noisy.variance[np.ix_(blocks, blocks)]
        levels = codes[:, [*blocks, *(k for k in range(codes.shape[1]) if k not in blocks)]]
        parts = [np.arange(len(made))]
        if len(made) > MOST_TOGETHER:
            parts = np.array_split(rng.permutation(len(made)), math.ceil(len(made) / MOST_TOGETHER))
        found = [self._near(made.iloc[p], levels[p], variance, gram, rng, posterior=posterior) for p in parts]
        return pd.concat(found).sort_index()

    def _near(
        self,
        made: pd.DataFrame,
        levels: Codes,
        variance: FloatArray,
        gram: FloatArray,
        rng: np.random.Generator,
        *,
        posterior: bool,
    ) -> pd.DataFrame:
        """Return records whose values have been exchanged; ``variance`` is of the noise on the pairs of columns.

        ``levels`` holds these columns first, then all others, whose means of each number by level are kept.
        """
        schema = self.design.schema
        known, vectors = self.design.vectors(Table(made, schema.without_person()), self.caps)
        n = len(vectors)
        if n < 2:
            return made
        off = vectors / PARTS - vectors.mean(axis=0) / PARTS
        own, mean = off.T @ off, gram[0] / gram[0, 0]
        misfit = MISFIT**2 * np.outer(np.diag(own), np.diag(own))
        doubt = misfit + self._doubt(off, levels[known], variance)
        noise = (self.error * n / gram[0, 0]) ** 2
        part = np.where(np.isfinite(doubt), doubt / (np.where(np.isfinite(doubt), doubt, 0) + noise), 1)
        goal = own + part * (n * (gram / gram[0, 0] - np.outer(mean, mean)) - own)
        if posterior:
            goal += np.sqrt(1 - (1 - part) ** 2) * (off.T @ (off * (rng.poisson(1, n) - 1)[:, None]))
        found, rows = made.copy(), np.flatnonzero(known)
        for name in self.design.names:
            if schema.columns[name].is_categorical or schema.columns[name].is_binned:
                continue
            place = self.design.home.index(name)
            others, order = np.arange(len(self.design.home)) != place, np.argsort(off[:, place], kind="stable")
            others[0] = False
            kept = [_means(off[:, place], own) for own in levels[known, len(self.design.names) :].T]
            given = np.ascontiguousarray(np.column_stack([off[:, others], *kept]))
            short = np.append((goal[place] - off[:, place] @ off)[others], np.zeros(len(kept)))
            values, holder = np.ascontiguousarray(off[order, place]), order.copy()
            for _ in range(PROPOSALS):
                some, far = rng.integers(0, n, n), rng.integers(1, max(2, math.ceil(REACH * n)), n)
                exchanged(values, holder, given, short, some, some + far)
            off[holder, place] = values
            moved = made[name].array.copy()
            moved[rows[holder]] = moved[rows[order]]
            found[name] = moved
        return found

    def _doubt(self, off: FloatArray, levels: Codes, variance: FloatArray) -> FloatArray:
        """Return the variance of the products of a set by the noise on its pairs, shape (entries, entries)."""
        at = [0, *(self.design.names.index(name) for name in self.design.home if name is not None)]
        spread = np.zeros(len(at))
        for k, column in enumerate(at):
            many = np.bincount(levels[:, column])
            means = (np.bincount(levels[:, column], off[:, k]) / np.maximum(many, 1))[many > 0]
            spread[k] = ((means - means.mean()) ** 2).sum()
        return variance[np.ix_(at, at)] * np.outer(spread, spread)


def _means(values: FloatArray, levels: Codes) -> FloatArray:
    """Return for each record the mean of its level, centred and as widely spread as the values."""
    many = np.bincount(levels)
    found = (np.bincount(levels, values) / np.maximum(many, 1))[levels] - values.mean()
    return np.asarray(found * (values.std() / max(found.std(), 1e-12)))


@numba.njit(cache=True, nogil=True)
def exchanged(values, holder, given, short, some, others):  # type: ignore[no-untyped-def]
    """Exchange values between records, in place, wherever that brings their products nearer to what they fall short of.

    ``values`` are sorted, ``holder`` is the record of each, ``given`` are other numbers of the records; ``some`` and
    ``others`` are places of values to try.
    """
    n = len(values)
    for t in range(len(some)):
        a, b = some[t], others[t]
        if b >= n:
            continue
        i, j, rise, change = holder[a], holder[b], values[b] - values[a], 0.0
        for k in range(len(short)):
            moved = rise * (given[i, k] - given[j, k])
            change += moved * (moved - 2 * short[k])
        if change < 0:
            holder[a], holder[b] = j, i
            for k in range(len(short)):
                short[k] -= rise * (given[i, k] - given[j, k])
