"""Synthetic sets from noisy pairs: a field is fitted to them, and its chains become
records. Post-processing, which costs nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.table import Table
from pdips.errors import InputError
from pdips.fields.chains import PairField, redrawn
from pdips.fields.pair_counts import MarginCounts, PairsAgain, numeric_blocks
from pdips.fields.passed_over import PassedOver
from pdips.fields.products import NoisyProducts
from pdips.fields.targets import PairTarget
from pdips.fields.weighted_sums import CappedSums
from pdips.margins.consistency import Codes, LevelGroups, groups_of, meet
from pdips.margins.estimates import NoisyPairs
from pdips.margins.residuals import ResidualDesign
from pdips.memory import check_fits
from pdips.release.large_set import DRAWN_RECORDS, ChunkedSet
from pdips.release.noisy_margins import MeasuredMargin

MOST_RECORDS = 100_000_000
DRAWN_BYTES = 20
HELD_BYTES = 16
"""Of a cell of a set while it is drawn, and of each set that is held: 32 to 40 together
for one (``benchmarks.scale``, 100,000 and 300,000 records of 60 columns, 2026-12-01).
"""


def check_memory(n_records: int, n_columns: int, n_sets: int) -> None:
    """Refuse sets of so many records, a public number, that the memory can't hold."""
    if n_records > MOST_RECORDS:
        raise InputError(f"pairs make at most {MOST_RECORDS:,} records")
    check_fits(
        n_records * n_columns * (DRAWN_BYTES + n_sets * HELD_BYTES),
        "sets of as many records as the table",
        "take fewer sets or columns, or more memory",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class PairMeasurement:
    """What ``Margins`` has measured of pairs, and what follows from it: all that sets
    are made of.

    Parameters
    ----------
    counts : MarginCounts
        Of all margins, and of columns without bins or with groups.
    again : PairsAgain
        Pairs that were counted again, or chosen.
    pairs : NoisyPairs
        Estimates of all pairs from both.
    sums : CappedSums or None
        Sums of weights.
    products : NoisyProducts or None
        Sums of products.
    n_records : int
        How many records a set has.
    """

    counts: MarginCounts
    again: PairsAgain
    pairs: NoisyPairs
    sums: CappedSums | None
    products: NoisyProducts | None
    n_records: int

    @cached_property
    def passed(self) -> PassedOver | None:
        """What is known of the pairs that weren't counted, if there are any."""
        return self.again.passed_over(self.pairs)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return what is published beside margins."""
        tables = self.counts.fine.tables()
        for extra in (self.sums, self.products):
            if extra is not None:
                tables |= extra.tables()
        return tables

    def margins(self) -> list[MeasuredMargin]:
        """Return the noisy margins, as they are published."""
        of_codes = self.counts.fine.of_codes().values()
        return [*self.counts.published(), *self.again.margins, *of_codes]


@dataclass(frozen=True, eq=False)
class FittedPairs:
    """The field that fits noisy pairs best, from which sets are drawn.

    Parameters
    ----------
    measured : PairMeasurement
        What was measured.
    public : Table or None
        The public columns, if there are any.
    target : PairTarget
        What the field was fitted to.
    groups : LevelGroups
        Which levels go with public columns, or numbers of members.
    field : PairField
        The field.
    off : ndarray
        How far its levels are off, as :meth:`PairField.off` says.
    """

    measured: PairMeasurement
    public: Table | None
    target: PairTarget
    groups: LevelGroups
    field: PairField
    off: FloatArray

    @classmethod
    def of(
        cls,
        measured: PairMeasurement,
        public: Table | None,
        rng: np.random.Generator,
    ) -> "FittedPairs":
        """Fit a field."""
        counts = measured.counts
        pairs = measured.pairs
        members = counts.plan.schema.members
        target = PairTarget.of(pairs, groups_of(counts.design, public, members))
        groups = target.groups.drawn(measured.n_records, rng, even=True)
        start = PairField.start(pairs, target, groups, rng)
        field = start.fitted(pairs, target, groups, rng)
        off = field.off(pairs, target, groups, rng.spawn(1)[0])
        return cls(measured, public, target, groups, field, off)

    @cached_property
    def design(self) -> ResidualDesign:
        """Which margins there are."""
        return self.measured.counts.design

    def fitted_set(self, rng: np.random.Generator) -> pd.DataFrame:
        """Return a set of this field."""
        laws = self.measured.counts.fine.laws
        codes = self.field.records(
            self.measured.pairs,
            self.target,
            self.groups,
            self.measured.n_records,
            rng,
            kept=True,
        )
        return self._frame(self.field, codes, laws, rng, posterior=False)

    def frames(
        self, n: int, rng: np.random.Generator, size: int = DRAWN_RECORDS
    ) -> Iterator[pd.DataFrame]:
        """Yield so many records of this field, at most ``size`` at a time: memory is
        that of a chunk.
        """
        sizes = [min(size, n - start) for start in range(0, n, size)]
        pairs = self.measured.pairs
        laws = self.measured.counts.fine.laws
        for codes in self.field.chunks(pairs, self.target, self.groups, sizes, rng):
            yield self._frame(self.field, codes, laws, rng, posterior=False)

    def chunked_set(self, n: int, rng: np.random.Generator) -> ChunkedSet:
        """Return a set of so many records of this field, drawn as it is written."""
        seed = int(rng.integers(2**63))
        return ChunkedSet(n_records=n, draw=self.frames, seed=seed)

    def posterior_set(
        self, rng: np.random.Generator
    ) -> tuple[pd.DataFrame, FloatArray]:
        """Return a set of a field of its own, fitted to margins with fresh noise, and
        how far this field's levels are off.
        """
        measured = self.measured
        counts = measured.counts
        laws = counts.fine.redrawn(rng)
        singles = counts.fine.singles(laws, counts.n_records)
        drawn = {
            block: singles[name] for block, name in numeric_blocks(self.design).items()
        }
        field, groups, off = redrawn(
            self._with_passed_over(rng),
            measured.pairs,
            self.target,
            measured.pairs.moved(counts.known, drawn),
            measured.n_records,
            rng,
            self.off,
        )
        # a set whose own sampling error stands for the table's is drawn by chance
        codes = field.records(
            measured.pairs, self.target, groups, measured.n_records, rng, kept=False
        )
        return self._frame(field, codes, laws, rng, posterior=True), off

    def _with_passed_over(self, rng: np.random.Generator) -> PairField:
        """Return the field with a draw of the parameters of pairs that weren't counted,
        which no fit moves.
        """
        passed = self.measured.passed
        if passed is None:
            return self.field
        pairs = self.measured.pairs
        shares = self.target.levels / pairs.n
        drawn = passed.parameters(pairs, shares, self.target.scores, rng)
        theta = self.field.theta + drawn.astype(np.float32)
        return replace(self.field, theta=theta)

    def _frame(
        self,
        field: PairField,
        codes: Codes,
        laws: Mapping[str, FloatArray],
        rng: np.random.Generator,
        *,
        posterior: bool,
    ) -> pd.DataFrame:
        """Return records with these levels of blocks, as values; public totals and the
        extras are met.
        """
        measured = self.measured
        counts = measured.counts
        design = self.design
        levels = {
            name: design.blocks[block].levels[codes[:, block], place]
            for name, (block, place) in design.home.items()
        }
        meet(design.totals, levels, partial(_gain, design, field, levels), rng)
        codes = design.codes([levels[name] for name in design.domain.names])
        numeric = numeric_blocks(design)
        places = field.places(codes, [*numeric], measured.pairs, rng)
        within = {numeric[block]: place for block, place in places.items()}
        for column in counts.fine.design.columns:
            name = column.name
            # the default is drawn for numbers, too: seeded sets stay as they are
            place = within.get(name, rng.random(len(codes)))
            levels[name] = column.cells(
                levels[name],
                counts.fine.cuts[name],
                laws[name],
                rng,
                not posterior,
                place,
            )
        schema = counts.plan.schema
        frame = counts.fine.design.records(schema, levels, self.public, rng)
        if measured.products is not None:
            pairs = measured.pairs
            if measured.passed is not None:
                pairs = measured.passed.with_variances(pairs)
            frame = measured.products.meet(
                frame, codes, design, pairs, rng, posterior=posterior
            )
        if measured.sums is not None:
            frame = measured.sums.meet(frame, rng if posterior else None)
        return frame

    def diagnostics(self, off: list[FloatArray]) -> dict[str, Any]:
        """Return what is told inside of how well fields fit; ``off`` says so of each
        one.
        """
        beyond_chance = [float((far - chance).max()) for far, chance in off]
        diagnostics = {"levels_off": max(beyond_chance)}
        if len(self.design.sizes) > 1:
            diagnostics["telling_pairs"] = self.target.telling
        return diagnostics


def _gain(
    design: ResidualDesign,
    field: PairField,
    codes: Mapping[str, IntArray],
    rows: IntArray,
    name: str,
    level: int,
) -> FloatArray:
    """Return by how much the log density of some records rises with another level of a
    column; -inf if it can't be.
    """
    names = design.domain.names
    present = {column: levels[rows] for column, levels in codes.items()}
    moved = {**present, name: np.full(len(rows), level)}
    number, _ = design.home[name]
    block = design.blocks[number]
    other = block.codes([moved[names[column]] for column in block.columns])
    rise = field.gain(
        design.codes([present[column] for column in names]),
        number,
        np.maximum(other, 0),
        design.offsets,
    )
    return np.where(other < 0, -np.inf, rise)
