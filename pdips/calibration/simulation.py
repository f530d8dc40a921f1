"""Errors found by releases of a public or synthetic table: for mechanisms whose error has no closed form."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.calibration.closed_form import Columns, label
from pdips.calibration.search import Reached
from pdips.data.schema import Schema
from pdips.data.table import Table, decode
from pdips.errors import InputError, RefusedError
from pdips.evaluation.encoding import CodedRecords, coded_columns
from pdips.mechanism import Mechanism
from pdips.release.large_set import LargeSet

Measure = Callable[[Sequence[pd.DataFrame]], float]
Goal = Literal["standard error", "interval width"]

RESAMPLES = 200
MOST_TRIES = 1_000
MOST_STAND_INS = 1_000_000
FEWEST, MOST = 5, 10_000


def stand_in_table(schema: Schema, n_records: int, rng: np.random.Generator) -> Table:
    """Return made-up records: every column independent and even over what the schema allows, no structural zeros."""
    if n_records > MOST_STAND_INS:
        raise InputError(f"a simulation takes at most {MOST_STAND_INS:,} records, got {n_records:,}")
    columns = {
        name: column if column.is_categorical or column.is_binned else column.model_copy(update={"bins": 1})
        for name, column in schema.columns.items()
    }
    binned = schema.model_copy(update={"columns": columns})
    frames, n_found = list[pd.DataFrame](), 0
    for _ in range(MOST_TRIES):
        codes = {name: rng.integers(column.n_levels, size=n_records) for name, column in columns.items()}
        frame = decode(binned, codes, rng)
        kept = np.ones(len(frame), dtype=bool)
        for rule in schema.impossible:
            kept &= ~np.logical_and.reduce([frame[name].isin(list(levels)).to_numpy() for name, levels in rule.items()])
        frames.append(frame[kept])
        n_found += len(frames[-1])
        if n_found >= n_records:
            plain = schema.model_copy(update={"records": schema.records.model_copy(update={"person": None})})
            return Table(pd.concat(frames, ignore_index=True).head(n_records), plain)
    raise InputError("structural zeros leave next to nothing of records drawn evenly: give a public_table")


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Releases of one table with the same seeds at every epsilon."""

    table: Table  # public, synthetic or made up: what is found depends on it
    margins: list[Columns]  # whose cells are compared
    measure: Measure | None  # in place of margins: a number worked out from all sets of a release
    goal: Goal
    level: float  # of intervals
    replicates: int  # releases at one epsilon
    seed: int

    def __post_init__(self) -> None:
        whole = isinstance(self.replicates, int) and not isinstance(self.replicates, bool)
        if not whole or not FEWEST <= self.replicates <= MOST:
            raise InputError(f"replicates must be a whole number from {FEWEST} to {MOST:,}, got {self.replicates}")
        if self.goal == "interval width" and self.measure is None:
            sizes = [
                math.prod(self.table.schema.columns[name].n_levels for name in columns) for columns in self.margins
            ]
            needed = math.ceil(2 / (1 - self.level) / min(sizes))
            if self.replicates < needed:
                raise InputError(
                    f"replicates must be at least {needed} for the width of intervals of level {self.level:g} here"
                )

    def run(self, mechanism: Mechanism) -> Reached:
        """Return what is reached, over seeded releases."""
        children = np.random.SeedSequence(self.seed).spawn(self.replicates)
        rows = [self._one(mechanism, np.random.default_rng(child)) for child in children]
        names = [label(columns) for columns in self.margins] if self.measure is None else ["measure"]
        errors = {name: np.array([row[place] for row in rows]) for place, name in enumerate(names)}
        n = self.replicates
        resamples = np.random.default_rng([self.seed, 1]).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
        weights = np.vstack([np.ones(n), resamples.astype(np.float64)])
        by_margin = {name: self._summaries(each, weights) for name, each in errors.items()}
        worst = np.max(list(by_margin.values()), axis=0)
        return Reached(
            float(worst[0]), float(worst[1:].std()), {name: float(each[0]) for name, each in by_margin.items()}
        )

    def _summaries(self, errors: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the error or width from all releases, and from each resample of them; ``errors`` (releases, cells)."""
        if self.goal == "standard error":
            return np.asarray(np.sqrt(weights @ (errors**2).mean(axis=1) / self.replicates))
        if self.measure is not None:
            return np.asarray(weights @ errors[:, 0] / self.replicates)
        size = np.abs(errors).ravel()
        order = np.argsort(size)
        each = np.repeat(weights, errors.shape[1], axis=1)[:, order].cumsum(axis=1)
        return np.asarray(2 * size[order][(each >= self.level * each[:, -1:] - 1e-9).argmax(axis=1)])

    def _one(self, mechanism: Mechanism, rng: np.random.Generator) -> list[FloatArray]:
        """Return the errors of one release by margin, shape (cells,) each."""
        try:
            release, _ = mechanism.release(self.table, rng=rng)
        except RefusedError as error:
            raise InputError(f"the simulation stopped, since the mechanism refused: {error}") from None
        sets: list[Any] = [*release.sets, *release.large_sets]
        if self.measure is not None:
            return [np.array([self._measured(sets) - self._truth])]
        found = [
            _counts(CodedRecords.of_set(made, self.table.schema), self.table.schema, self.margins) for made in sets
        ]
        return [np.mean(each, axis=0) - true for each, true in zip(zip(*found, strict=True), self._true, strict=True)]

    @cached_property
    def _true(self) -> list[FloatArray]:
        return _counts(CodedRecords.of_table(self.table), self.table.schema, self.margins)

    @cached_property
    def _truth(self) -> float:
        """What a width is counted from: 0; what an estimate is compared with: itself on the table."""
        return 0.0 if self.goal == "interval width" else self._measured([self.table.frame])

    def _measured(self, sets: Sequence[Any]) -> float:
        if self.measure is None or any(isinstance(made, LargeSet) for made in sets):
            raise InputError("measure needs synthetic sets that can be held in memory")
        found = float(self.measure(sets))
        if not math.isfinite(found):
            raise InputError("measure must return a finite number")
        return found


def _counts(rows: CodedRecords, schema: Schema, margins: Sequence[Columns]) -> list[FloatArray]:
    names = coded_columns(schema)
    counts = np.ones(len(rows.codes)) if rows.counts is None else rows.counts.astype(np.float64)
    found = []
    for columns in margins:
        sizes = tuple(schema.columns[name].n_levels for name in columns)
        places = [rows.codes[:, names.index(name)] for name in columns]
        cell = np.ravel_multi_index(tuple(places), sizes) if len(counts) else np.zeros(0, dtype=np.int64)
        found.append(np.bincount(cell, weights=counts, minlength=math.prod(sizes)))
    return found
