"""Sums of weights by level, measured with noise, and sets whose weights have these sums."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.table import Table
from pdips.data.totals import KnownTable, places, raked
from pdips.errors import InputError
from pdips.margins.intervals import IntervalDesign
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Neighbours
from pdips.privacy.plan import AnswerLaw, Step
from pdips.privacy.sensitivity import Sensitivity

UNITS, CAPS = 10_000, 200  # Whole steps of a weight at the cap; caps that are tried
SUMS_OF_WEIGHTS = "noisy sums of weights"

SEEN = 2.0  # Standard errors that a weighted sum must be above to be met by sets


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
