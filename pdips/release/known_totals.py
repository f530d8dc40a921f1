"""How near sets, and noisy counts, are to what everyone knows: public totals beside public numbers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pdips.data.schema import Schema
from pdips.data.totals import KnownTable, places
from pdips.release.noisy_margins import MeasuredMargin, centred, residual


@dataclass(frozen=True, kw_only=True)
class TotalCheck:
    """A public total beside the sets and the noisy counts. Public.

    It is ``scaled`` if it adds up to another number than that of the records, so that only its shares could be met.
    ``gap`` is the largest difference between a count (or sum of weights) of a cell in any set and the total. Of all
    measured margins within the total, ``cell`` is the level or combination whose noisy count is farthest from it;
    ``difference`` is noisy count less total there, in records; ``z`` the same in standard errors of the noise; and
    ``p`` the chance that noise alone takes any of the compared counts so far off (Bonferroni's bound).
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
    """Yield what has come of each total, in records, or in weights where it is weighted."""
    n_records = float(len(sets[0])) if sets else math.nan
    for table in schema.known_totals():
        compared = [] if table.weighted else list(_compared(schema, table, margins, n_records))
        told = dict[str, Any]()
        if compared:
            _, tail, *farthest = min(compared, key=lambda each: each[1])
            told = dict(zip(("cell", "difference", "z"), farthest, strict=True))
            told["p"] = min(1.0, tail * sum(n for n, *_ in compared))
        gaps = [_gap(schema, table, frame) for frame in sets]
        scaled = not table.weighted and table.n_records != n_records
        yield TotalCheck(
            columns=table.columns, weighted=table.weighted, scaled=scaled, gap=max(gaps, default=0.0), **told
        )


def _gap(schema: Schema, table: KnownTable, frame: pd.DataFrame) -> float:
    weights = frame[schema.records.weight].to_numpy(dtype=np.float64) if table.weighted else np.ones(len(frame))
    counts = np.bincount(places(frame, table, schema.columns), weights, table.shares.size)
    return float(np.abs(counts - table.shares.ravel() * table.goal(weights)).max())


def _compared(
    schema: Schema, table: KnownTable, margins: Sequence[MeasuredMargin], n_records: float
) -> Iterator[tuple[int, float, str, float, float]]:
    """Yield how many counts a margin shares with a total, and of the farthest its chance, name, difference and z.

    Sums of Laplace noise have tails no heavier than a single one of the same variance, about.
    """
    n_variance = next((each.law.variance for each in margins if not each.law.axes), 0.0)
    for each in margins:
        axes, counts = each.law.axes, each.whole()
        names, sizes = [name for axis in axes for name in axis.columns], [axis.size for axis in axes]
        kept = [name for name in names if name in table.columns]
        if counts is None or not kept or any(axis.lower or axis.groups for axis in axes):
            continue
        levels = [schema.columns[name].n_levels for name in names]
        if sizes != levels and not (len(axes) == 1 and axes[0].codes):
            continue
        share = table.margin(kept)
        if len(axes) == 1:  # of one column, or of combinations of several that structural zeros tie together
            codes = np.unravel_index(np.array(axes[0].codes or range(sizes[0])), levels)
            cell = np.ravel_multi_index([codes[names.index(name)] for name in kept], share.shape)
            part = np.bincount(cell, minlength=share.size).reshape(share.shape) / sizes[0]
            found = residual(counts) if each.law.differences else centred(counts)
            off = np.bincount(cell, found, share.size).reshape(share.shape) + (part - share) * n_records
            spread = each.law.variance * sizes[0] * part * (1 - part) + n_variance * (share - part) ** 2
        elif not each.law.differences:  # the number of records is the sum of these counts
            rest = tuple(k for k, name in enumerate(names) if name not in kept)
            off, variance = counts.sum(axis=rest) - share * counts.sum(), each.law.variance * counts.size / share.size
            spread = variance * (1 - 2 * share + share.size * share**2)
        elif kept == names:
            off, variance = residual(counts) - centred(share) * n_records, each.law.variance
            spread = variance * math.prod(1 - 1 / size for size in sizes) + n_variance * centred(share) ** 2
        else:
            continue
        z = off / np.sqrt(np.maximum(spread, 1e-9))
        at = np.unravel_index(int(np.argmax(np.abs(z))), z.shape)
        named = ", ".join(f"{name} = {schema.columns[name].names()[k]}" for name, k in zip(kept, at, strict=True))
        far = abs(float(z[at]))
        tail = math.exp(-math.sqrt(2) * far) if each.law.law == "laplace" else math.erfc(far / math.sqrt(2))
        yield z.size, tail, named, float(off[at]), float(z[at])
