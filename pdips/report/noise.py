"""The noise that a release paid for, beside how far its margins are from the table."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from pdips.release.documents import Margin, PrivacyDocument, RunDocument, mean

LARGEST_TEXT = 64_000_000
"""Bytes of a CSV file whose records are counted."""

HALF_NORMAL = math.sqrt(2 / math.pi)
"""Mean of the absolute value of a standard normal."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One column: the standard error of a cell, in records and as a share, and the distance, expected and found."""

    column: str
    standard_error: float
    share: float
    expected: float
    found: float


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """All pairs of columns: standard errors of a cell in records, and distances."""

    mean_error: float
    largest_error: float
    largest: str
    expected: float
    found: float | None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Margins' standard errors, from ``privacy.json``, beside distances from the table, from ``run.json``."""

    n_records: int
    one_way: list[Row]
    two_way: Pairs | None


def compare(home: Path, facts: PrivacyDocument, run: RunDocument) -> Compared | None:
    """Return standard errors of margins beside distances that were found; None where the release states no errors.

    The expected distance of a margin is half the sum over its cells of the mean absolute error of a normal whose
    variance is that of the noise and of a sample as large as the table:
    ``sum_c sqrt((se / n)^2 + p_c (1 - p_c) / n) / sqrt(2 pi)``. For pairs it is the root of the squares of that of the
    noise alone and of the mean distance of a resample.

    Parameters
    ----------
    home : path
        The folder with the synthetic sets, whose number of records stands for the table's where the run doesn't say it.
    facts, run
        ``privacy.json`` and ``run.json``.
    """
    n = (run.n_records or _n_records(home)) if facts.margin_errors else None
    if not n:
        return None
    errors = {tuple(item.columns): item.standard_error for item in facts.margin_errors}
    margins = {margin.column: margin for margin in run.comparison.one_way}
    rows = [
        Row(
            column=name,
            standard_error=error,
            share=error / n,
            expected=_expected(margins[name], error, n),
            found=margins[name].distance or 0.0,
        )
        for (name, *rest), error in errors.items()
        if not rest and name in margins and margins[name].distance is not None
    ]
    rows.sort(key=lambda row: -row.found / row.expected if row.expected else -math.inf)
    return Compared(n_records=n, one_way=rows, two_way=_pairs(errors, margins, run, n))


def _expected(margin: Margin, error: float, n: int) -> float:
    spread = (math.sqrt((error / n) ** 2 + share * (1 - share) / n) for share in margin.table)
    return min(HALF_NORMAL / 2 * math.fsum(spread), 1.0)


def _pairs(errors: dict[tuple[str, ...], float], margins: dict[str, Margin], run: RunDocument, n: int) -> Pairs | None:
    pairs = {names: error for names, error in errors.items() if len(names) == 2 and set(names) <= set(margins)}
    if not pairs:
        return None
    largest = max(pairs, key=lambda names: pairs[names])
    cells = {names: math.prod(len(margins[name].levels) for name in names) for names in pairs}
    noise = mean(HALF_NORMAL / 2 * cells[names] * error / n for names, error in pairs.items()) or 0.0
    return Pairs(
        mean_error=mean(pairs.values()) or 0.0,
        largest_error=pairs[largest],
        largest=" and ".join(largest),
        expected=min(math.hypot(noise, run.comparison.two_way.reference_mean() or 0.0), 1.0),
        found=mean(distance for distance, _, _ in run.comparison.two_way.pairs()),
    )


def _n_records(home: Path) -> int | None:
    """Return the number of records of the first synthetic set, if it is quickly known."""
    parquet, text = home / "synthetic_1.parquet", home / "synthetic_1.csv"
    try:
        if parquet.is_file():
            from pyarrow import ArrowException
            from pyarrow.parquet import read_metadata

            try:
                return int(read_metadata(parquet).num_rows)
            except ArrowException:
                return None
        if text.is_file() and text.stat().st_size <= LARGEST_TEXT:
            with text.open(encoding="utf-8", newline="") as lines:
                return max(sum(1 for _ in csv.reader(lines)) - 1, 0)
    except (OSError, ValueError, csv.Error):
        return None
    return None
