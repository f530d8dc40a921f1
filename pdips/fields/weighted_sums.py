"""Sums of weights by level, measured with noise, and sets that have them."""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Column, Schema
from pdips.data.table import Table
from pdips.data.totals import KnownTable, places, raked
from pdips.errors import InputError
from pdips.margins.fine_columns import FineCounts
from pdips.privacy.curator import Curator
from pdips.privacy.loss import Neighbours
from pdips.privacy.plan import AnswerLaw, Plan, Step
from pdips.privacy.sensitivity import Sensitivity

# Whole steps of a weight at the cap; caps that are tried
UNITS = 10_000
CAPS = 200
SUMS_OF_WEIGHTS = "noisy sums of weights"

LEAST = 1e-300  # Of what is divided by
SEEN = 2.0  # Standard errors that a weighted sum must be above to be met by sets


@dataclass(frozen=True, eq=False)
class WeightedSums:
    """Sums of weights by level of some columns, where weights beyond a cap count as the
    cap.

    Refused without ``records.weight`` in the schema that has no bins and sets may
    change, or for columns without levels.
    """

    schema: Schema
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        weight = self.schema.columns.get(self.schema.records.weight or "")
        if weight is None or not _may_change(weight):
            raise InputError(
                "weighted sums need records.weight, a number that is not integer, "
                "without bins, not public"
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
        """Return what is asked: a record adds at most ``UNITS`` to one sum of each
        column.
        """
        most = Sensitivity.of_counts(self.schema, neighbours, tables=len(self.names))
        moved = Sensitivity(l1=UNITS * most.l1, l2_squared=UNITS**2 * most.l2_squared)
        counts = f"each sum of weights, in {UNITS:,} parts of the cap"
        return Step(
            name=SUMS_OF_WEIGHTS, counts=counts, sensitivity=moved, price=price, law=law
        )

    @property
    def said(self) -> str:
        """What a plan says of it."""
        return " Sums of capped weights by level have such noise too."

    def ask(self, curator: Curator, plan: Plan, fine: FineCounts) -> "CappedSums":
        """Return noisy sums, at a cap that follows from the noisy counts of intervals
        of the weight.
        """
        step = plan.named(SUMS_OF_WEIGHTS)
        chosen = curator.keep(partial(self._cap, step, fine))
        cap, beyond = (float(number) for number in chosen)
        noisy = curator.count(step, partial(self.count, cap=cap))
        return CappedSums(self, step, noisy, cap, beyond)

    def _cap(self, step: Step, fine: FineCounts) -> FloatArray:
        """Return the cap where noise and what is left out are smallest together, and
        what is left out.
        """
        names = [column.name for column in fine.design.columns]
        place = names.index(self.weight)
        column = fine.design.columns[place]
        edges = column.fine.edges
        law = fine.laws[self.weight][: column.n_cells]
        caps = edges[1:][law > 0]
        if len(caps):
            spread = np.linspace(0, len(caps) - 1, CAPS)
            caps = caps[np.unique(spread.astype(int))]
        else:
            caps = edges[-1:]
        middle = (edges[:-1] + edges[1:]) / 2
        left_out = [law @ np.maximum(middle - cap, 0) for cap in caps]
        beyond = np.nansum(fine.noisy[place][0]) * np.array(left_out)
        error = caps / UNITS * step.standard_deviation
        best = np.argmin(error**2 + beyond**2)
        return np.array([caps[best], max(beyond[best], 0.0)])

    def count(self, table: Table, cap: float) -> IntArray:
        """Return the exact sums, in parts of the cap, column after column."""
        part = np.minimum(table.sort_key(self.weight) / cap, 1)
        units = np.rint(part * UNITS).astype(np.int64)
        sums = list[IntArray]()
        for name in self.names:
            by_level = np.zeros(self.schema.columns[name].n_levels, dtype=np.int64)
            np.add.at(by_level, table.codes[name], units)
            sums.append(by_level)
        return np.concatenate(sums)


def _may_change(weight: Column) -> bool:
    """Return whether sets may have any numbers as these weights."""
    fixed = weight.integer or weight.is_binned or weight.public
    return not fixed and weight.type != "date"


@dataclass(frozen=True, eq=False)
class CappedSums:
    """Noisy sums of weights by level, in which no weight counts for more than the cap.

    ``beyond`` is what weights are above the cap, all together, by the noisy law of
    weights.
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

    def by_column(
        self, rng: np.random.Generator | None = None
    ) -> dict[str, FloatArray]:
        """Return the sums of each column in the unit of the weight; with ``rng``, with
        fresh noise on top.
        """
        sums = self.noisy * (self.cap / UNITS)
        if rng is not None:
            sums = sums + self.error * rng.standard_normal(len(self.noisy))
        columns = self.design.schema.columns
        ends = np.cumsum([columns[name].n_levels for name in self.design.names])[:-1]
        return dict(zip(self.design.names, np.split(sums, ends), strict=True))

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return what is published: a row for each level with its noisy sum, the
        standard error and the cap.
        """
        columns = self.design.schema.columns
        rows = [
            pd.DataFrame(
                {"column": name, "level": columns[name].names(), "noisy": sums}
            )
            for name, sums in self.by_column().items()
        ]
        sums = pd.concat(rows, ignore_index=True)
        return {"weighted_sums": sums.assign(standard_error=self.error, cap=self.cap)}

    def meet(
        self, frame: pd.DataFrame, rng: np.random.Generator | None = None
    ) -> pd.DataFrame:
        """Return a set whose weights have the sums that stand out from the noise;
        ``rng`` as in :meth:`by_column`.

        All columns are given one total, the mean of theirs by precision and what is
        beyond the cap. Other levels keep their share of the set.
        """
        weight = self.design.weight
        columns = self.design.schema.columns
        sums = self.by_column(rng)
        precision = [1 / len(part) for part in sums.values()]
        total = float(np.average([*map(np.sum, sums.values())], weights=precision))
        if total <= SEEN * self.error:
            return frame
        goals = list[KnownTable]()
        for name, part in sums.items():
            table = KnownTable((name,), part, total, weighted=True)
            cells = places(frame, table, columns)
            own = np.bincount(cells, frame[weight], len(part))
            goal = self._goal(part, own, total)
            shares = goal / max(goal.sum(), LEAST)
            goals.append(replace(table, shares=shares, n_records=total + self.beyond))
        return raked(frame, weight, goals, columns)

    def _goal(self, part: FloatArray, own: FloatArray, total: float) -> FloatArray:
        """Return the sums by level that a set is to have, from the noisy ones and its
        own.
        """
        agreed = part + (total - part.sum()) / len(part)
        kept = own * total / max(own.sum(), LEAST)
        return np.where(agreed > SEEN * self.error, agreed, kept)
