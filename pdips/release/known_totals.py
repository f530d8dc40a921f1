"""How near sets, and noisy counts, are to what everyone knows: public totals beside
public numbers.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pdips.arrays import FloatArray, IntArray
from pdips.data.schema import Schema
from pdips.data.totals import KnownTable, places
from pdips.release.noisy_margins import (
    MarginLaw,
    MeasuredMargin,
    centred,
    residual,
)


@dataclass(frozen=True, kw_only=True)
class TotalCheck:
    """A public total beside the sets and the noisy counts. Public.

    It is ``scaled`` if it adds up to another number than that of the records, so that
    only its shares could be met. ``gap`` is the largest difference between a count (or
    sum of weights) of a cell in any set and the total. Of all measured margins within
    the total, ``cell`` is the level or combination whose noisy count is farthest from
    it; ``difference`` is noisy count less total there, in records; ``z`` the same in
    standard errors of the noise; and ``p`` the chance that noise alone takes any of the
    compared counts so far off (Bonferroni's bound).
    """

    columns: tuple[str, ...]
    weighted: bool
    scaled: bool
    gap: float
    cell: str | None = None
    difference: float | None = None
    z: float | None = None
    p: float | None = None


def check_totals(
    schema: Schema, margins: Sequence[MeasuredMargin], sets: Sequence[pd.DataFrame]
) -> Iterator[TotalCheck]:
    """Yield what has come of each total, in records, or in weights where it is
    weighted.
    """
    n_records = float(len(sets[0])) if sets else math.nan
    for table in schema.known_totals():
        deviations = []
        if not table.weighted:
            deviations = list(_deviations(schema, table, margins, n_records))
        gaps = [_gap(schema, table, frame) for frame in sets]
        yield TotalCheck(
            columns=table.columns,
            weighted=table.weighted,
            scaled=not table.weighted and table.n_records != n_records,
            gap=max(gaps, default=0.0),
            **_farthest(deviations, schema),
        )


def _gap(schema: Schema, table: KnownTable, frame: pd.DataFrame) -> float:
    weights = np.ones(len(frame))
    if table.weighted:
        weights = frame[schema.records.weight].to_numpy(dtype=np.float64)
    cells = places(frame, table, schema.columns)
    counts = np.bincount(cells, weights, table.shares.size)
    wanted = table.shares.ravel() * table.goal(weights)
    return float(np.abs(counts - wanted).max())


@dataclass(frozen=True, kw_only=True)
class _Deviation:
    """How far noisy counts of some columns are from a total, by cell: the differences
    and the variances that the noise gives them.
    """

    columns: list[str]
    law: str
    difference: FloatArray
    variance: FloatArray

    @property
    def z(self) -> FloatArray:
        """Differences in standard errors."""
        z: FloatArray = self.difference / np.sqrt(np.maximum(self.variance, 1e-9))
        return z

    @property
    def tail(self) -> float:
        """The chance that noise takes one count as far off as the farthest is.

        Sums of Laplace noise have tails no heavier than a single one of the same
        variance, about.
        """
        farthest = float(np.abs(self.z).max())
        if self.law == "laplace":
            return math.exp(-math.sqrt(2) * farthest)
        return math.erfc(farthest / math.sqrt(2))


def _farthest(deviations: Sequence[_Deviation], schema: Schema) -> dict[str, Any]:
    """Return the cell that is farthest off, as a check names it; nothing for none."""
    if not deviations:
        return {}
    worst = min(deviations, key=lambda deviation: deviation.tail)
    n_counts = sum(deviation.difference.size for deviation in deviations)
    z = worst.z
    cell = np.unravel_index(int(np.argmax(np.abs(z))), z.shape)
    levels = []
    for name, code in zip(worst.columns, cell, strict=True):
        levels.append(f"{name} = {schema.columns[name].names()[code]}")
    return {
        "cell": ", ".join(levels),
        "difference": float(worst.difference[cell]),
        "z": float(z[cell]),
        "p": min(1.0, worst.tail * n_counts),
    }


def _deviations(
    schema: Schema,
    table: KnownTable,
    margins: Sequence[MeasuredMargin],
    n_records: float,
) -> Iterator[_Deviation]:
    """Yield how far each margin within a total is from it, where the noise says."""
    n_variance = 0.0  # of the noisy number of records, where there is one
    for margin in margins:
        if not margin.law.axes:
            n_variance = margin.law.variance
            break
    for margin in margins:
        law = margin.law
        counts = margin.whole()
        names = [name for axis in law.axes for name in axis.columns]
        kept = [name for name in names if name in table.columns]
        # intervals of numbers without bins are no levels
        if counts is None or not kept or any(axis.lower for axis in law.axes):
            continue
        levels = [schema.columns[name].n_levels for name in names]
        if not _has_cells(law, levels):
            continue
        share = table.margin(kept)
        if len(law.axes) == 1:
            cells = _cells_of(law, names, kept, levels, share.shape)
            difference, variance = _of_one_axis(
                law, counts, cells, share, n_records, n_variance
            )
        elif not law.differences:
            others = tuple(k for k, name in enumerate(names) if name not in kept)
            difference, variance = _of_sums(law, counts, others, share)
        elif kept == names:
            difference, variance = _of_residuals(
                law, counts, share, n_records, n_variance
            )
        else:
            continue
        yield _Deviation(
            columns=kept, law=law.law, difference=difference, variance=variance
        )


def _has_cells(law: MarginLaw, levels: Sequence[int]) -> bool:
    """Whether a margin counts levels, or combinations of several columns that
    structural zeros tie together.
    """
    axes = law.axes
    if any(axis.lower or axis.groups for axis in axes):
        return False
    is_tied = len(axes) == 1 and bool(axes[0].codes)
    return is_tied or [axis.size for axis in axes] == list(levels)


def _cells_of(
    law: MarginLaw,
    names: list[str],
    kept: list[str],
    levels: Sequence[int],
    shape: tuple[int, ...],
) -> IntArray:
    """Return the cell of the total that each number of a single axis is in."""
    axis = law.axes[0]
    codes = np.unravel_index(np.array(axis.codes or range(axis.size)), levels)
    kept_codes = [codes[names.index(name)] for name in kept]
    return np.ravel_multi_index(kept_codes, shape)


def _of_one_axis(
    law: MarginLaw,
    counts: FloatArray,
    cells: IntArray,
    share: FloatArray,
    n_records: float,
    n_variance: float,
) -> tuple[FloatArray, FloatArray]:
    """Compare counts whose mean is known from the number of records alone."""
    n_numbers = law.axes[0].size
    in_cell = np.bincount(cells, minlength=share.size).reshape(share.shape)
    part = in_cell / n_numbers
    deviations = residual(counts) if law.differences else centred(counts)
    sums = np.bincount(cells, deviations, share.size).reshape(share.shape)
    difference = sums + (part - share) * n_records
    own = law.variance * n_numbers * part * (1 - part)
    return difference, own + n_variance * (share - part) ** 2


def _of_sums(
    law: MarginLaw, counts: FloatArray, others: tuple[int, ...], share: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Compare counts whose sum is the number of records."""
    difference = counts.sum(axis=others) - share * counts.sum()
    variance = law.variance * counts.size / share.size
    return difference, variance * (1 - 2 * share + share.size * share**2)


def _of_residuals(
    law: MarginLaw,
    counts: FloatArray,
    share: FloatArray,
    n_records: float,
    n_variance: float,
) -> tuple[FloatArray, FloatArray]:
    """Compare what several columns have together beyond what fewer of them have."""
    expected = centred(share)
    difference = residual(counts) - expected * n_records
    own = law.variance * math.prod(1 - 1 / axis.size for axis in law.axes)
    return difference, own + n_variance * expected**2
