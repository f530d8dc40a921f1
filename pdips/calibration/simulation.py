"""Errors found by releases of a public or synthetic table, and the search for the epsilon at which they are small."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray
from pdips.calibration.closed_form import Columns, label
from pdips.data.schema import Schema
from pdips.data.table import Table, decode, tally
from pdips.errors import InputError, RefusedError
from pdips.evaluation.encoding import CodedRecords, coded_columns
from pdips.mechanism import Mechanism
from pdips.privacy.loss import check_whole
from pdips.release.large_set import LargeSet

SMALLEST = Fraction(1, 10_000)
GUESSES = 6  # After so many epsilons, guesses by the law of errors give way to bisection
SLACK = 5e-3  # Relative rise of an error with epsilon that is put down to how widths are worked out


@dataclass(frozen=True)
class EpsilonGrid:
    """Numbers of so many significant digits, in order: for three, 100, 101, ..., 999 times a power of ten."""

    digits: int

    @property
    def per_decade(self) -> int:
        """How many there are between a power of ten and the next."""
        return 9 * int(10 ** (self.digits - 1))

    def at(self, place: int) -> Fraction:
        """Return the number at a place; 1 is at place 0."""
        decade, step = divmod(place, self.per_decade)
        return Fraction(10 ** (self.digits - 1) + step, 10 ** (self.digits - 1)) * Fraction(10) ** decade

    def place_above(self, number: Fraction) -> int:
        """Return the place of the least number of the grid that is at least as large."""
        decade = math.floor(math.log10(number))
        decade += (Fraction(10) ** (decade + 1) <= number) - (Fraction(10) ** decade > number)
        step: int = math.ceil(number / Fraction(10) ** decade * 10 ** (self.digits - 1)) - self.per_decade // 9
        return decade * self.per_decade + step

    def place_below(self, number: Fraction) -> int:
        """Return the place of the largest number of the grid that is at most as large."""
        above = self.place_above(number)
        return above if self.at(above) == number else above - 1


@dataclass(frozen=True)
class Reached:
    """The largest error or width over all margins at one epsilon, and that of each."""

    reached: float
    monte_carlo_error: float  # standard error of it; 0 in closed form
    by_margin: dict[str, float]

    @property
    def worst(self) -> str:
        """The margin that is reached last."""
        return max(self.by_margin, key=lambda name: self.by_margin[name])

    @property
    def at_most(self) -> float:
        """What is compared with the target: two Monte Carlo standard errors more than what was found."""
        return self.reached + 2 * self.monte_carlo_error


def search(
    measure: Callable[[Fraction], Reached],
    target: float,
    largest: Fraction,
    grid: EpsilonGrid,
    *,
    smallest: Fraction = SMALLEST,
) -> tuple[Fraction, dict[Fraction, Reached]]:
    """Return the smallest epsilon of a grid at which a target is reached, and all that was measured on the way.

    A target that isn't reached at the largest epsilon is refused, and, in closed form, an error that rises.
    """
    low, high = grid.place_above(smallest), grid.place_below(largest)
    top = grid.at(high)
    best = measure(top)
    found = {top: best}
    if best.at_most > target:
        error = best.monte_carlo_error
        about = f", two Monte Carlo standard errors of {error:.2g} included" if error else ""
        raise InputError(
            f"the target of {target:g} isn't reached: at epsilon = {float(top):g}, the largest that is tried, the best "
            f"is {best.at_most:.4g} ({best.worst}){about}; ask for less, or raise largest_epsilon"
        )
    guess = 0
    while low < high:
        place = guess if low <= guess < high else (low + high) // 2
        epsilon = grid.at(place)
        found[epsilon] = measure(epsilon)
        ratio = found[epsilon].at_most / target
        low, high = (low, place) if ratio <= 1 else (place + 1, high)
        if len(found) > GUESSES or not math.isfinite(ratio):
            guess = (low + high) // 2
        else:  # where the target would be met if errors went with 1 / epsilon, or just below if this epsilon meets it
            wanted = epsilon * Fraction(min(max(ratio, 1e-9), 1e9))
            guess = grid.place_above(wanted) if ratio > 1 else grid.place_below(wanted)
    if grid.at(high) not in found:
        found[grid.at(high)] = measure(grid.at(high))
    found = dict(sorted(found.items()))
    for before, after in pairwise(found.values()):
        exact = not before.monte_carlo_error and not after.monte_carlo_error
        if exact and after.reached > before.reached * (1 + SLACK):
            raise InputError("the error rises with epsilon somewhere: other settings must not change with epsilon")
    return grid.at(high), found


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
        for rule in binned.zeros():
            kept &= ~np.logical_and.reduce([np.isin(codes[name], barred) for name, barred in rule.items()])
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
        check_whole(self.replicates, "replicates", FEWEST, MOST)
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
    names, found = coded_columns(schema), []
    for columns in margins:
        sizes = tuple(schema.columns[name].n_levels for name in columns)
        places = [rows.codes[:, names.index(name)] for name in columns]
        cell = np.ravel_multi_index(tuple(places), sizes) if len(rows.codes) else np.zeros(0, dtype=np.int64)
        found.append(tally(cell, rows.counts, math.prod(sizes)).astype(np.float64))
    return found
