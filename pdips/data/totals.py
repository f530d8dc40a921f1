"""Public totals: counts of cells that everyone knows, such as a census table. No confidential table is read here."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from pdips.arrays import FloatArray, IntArray
from pdips.data.coding import encode
from pdips.data.column import Column
from pdips.errors import InputError

MOST_CELLS = 100_000
ROUNDED = 1e-3
"""How far shares may be from adding up to 1, or margins of two totals from each other, where one is of shares."""

ROUNDS, MET = 500, 1e-9
"""Of raking weights: at most so many, fewer where all totals are met to this part."""


class Total(BaseModel):
    """Counts or shares of all cells of some columns, as everyone knows them.

    Parameters
    ----------
    columns : tuple of str
        Categorical columns or columns with bins.
    counts : dict
        By level, spelt as in tables, within it by the level of the next column, and so on. Whole numbers are counts;
        others are shares, which add up to 1.
    weighted : bool
        Whether it counts a population, for which the records stand by their weights (``records.weight``).
    source : str, optional
        For people: where it was published.

    Examples
    --------
    >>> Total(columns=["sex"], counts={"f": 51, "m": 49}).columns
    ('sex',)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    counts: dict[str, Any]
    weighted: bool = False
    source: str | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"total of {', '.join(self.columns)}"


@dataclass(frozen=True, eq=False)
class KnownTable:
    """A total as an array: shares with an axis a column; what they are shares of, NaN where only shares are known."""

    columns: tuple[str, ...]
    shares: FloatArray
    n_records: float
    weighted: bool = False

    def goal(self, weights: FloatArray) -> float:
        """Return what its shares are to add up to in a set: its own number if it is weighted, else that of the set."""
        known = self.weighted and not math.isnan(self.n_records)
        return self.n_records if known else float(weights.sum())

    def margin(self, columns: Sequence[str]) -> FloatArray:
        """Return the shares of the cells of some of its columns, in their order."""
        rest = tuple(k for k, name in enumerate(self.columns) if name not in columns)
        kept = [name for name in self.columns if name in columns]
        return np.asarray(self.shares.sum(axis=rest)).transpose([kept.index(name) for name in columns])


def known_tables(
    totals: Sequence[Total], columns: Mapping[str, Column], impossible: Sequence[Mapping[str, Sequence[int]]]
) -> tuple[KnownTable, ...]:
    """Return totals as arrays, in an order in which each shares columns with no more than one of those before it.

    Raises
    ------
    ValueError
        Naming all that is wrong: with each total, between two of them, or with combinations that can't occur.
    """
    problems, found = list[str](), list[KnownTable]()
    for total in totals:
        wrong = [f"{total.name}: {problem}" for problem in _misfits(total, columns)]
        table = None if wrong else _table(total, columns, impossible, problems)
        problems += wrong
        found += [] if table is None else [table]
    if not problems:
        problems += _contradictions(found, impossible)
    order = _ordered(found)
    if order is None:
        problems.append(
            "totals share columns in a circle, so that no order of meeting them is sure to: leave one out, or give one "
            "total of all their columns"
        )
    if problems:
        raise ValueError("; ".join(problems))
    return order or ()


def _misfits(total: Total, columns: Mapping[str, Column]) -> Iterator[str]:
    n_cells = 1
    for name in total.columns:
        column = columns.get(name)
        if column is None:
            yield f"{name!r} is no column of this schema"
        elif total.columns.count(name) > 1:
            yield f"{name!r} is named twice"
        elif column.public:
            yield f"{name!r} is public, and released as it is"
        elif not column.is_categorical and not column.is_binned:
            yield f"{name!r} is numeric and needs bins or bin_edges"
        else:
            n_cells *= column.n_levels
    if n_cells > MOST_CELLS:
        yield f"more than {MOST_CELLS:,} cells"


def _leaves(counts: Any, depth: int, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if len(path) < depth and isinstance(counts, dict):
        for level, below in counts.items():
            yield from _leaves(below, depth, (*path, str(level)))
    else:
        yield path, counts


def _table(
    total: Total, columns: Mapping[str, Column], impossible: Sequence[Mapping[str, Sequence[int]]], problems: list[str]
) -> KnownTable | None:
    levels = [columns[name].names() for name in total.columns]
    counts, before = np.full([len(names) for names in levels], np.nan), len(problems)
    for path, value in _leaves(total.counts, len(levels)):
        where, said = ", ".join(path), f"{total.name}: "
        unknown = [
            (level, n) for level, n, names in zip(path, total.columns, levels, strict=False) if level not in names
        ]
        if unknown:
            problems.append(f"{said}{unknown[0][0]!r} is no level or bin of {unknown[0][1]!r}")
        elif len(path) < len(levels):
            problems.append(f"{said}{where} needs a level of each column")
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            problems.append(f"{said}the count of {where} must be a number of at least 0")
        else:
            counts[tuple(names.index(level) for level, names in zip(path, levels, strict=True))] = value
    cells = np.indices(counts.shape)
    for rule in impossible:
        if set(rule) <= set(total.columns):
            ruled = np.logical_and.reduce([np.isin(cells[total.columns.index(n)], codes) for n, codes in rule.items()])
            if (counts[ruled] > 0).any():
                problems.append(f"{total.name}: counts records in a combination that [[impossible]] or a [[rule]] bars")
            counts[ruled] = 0
    if len(problems) == before and np.isnan(counts).any():
        place = np.argwhere(np.isnan(counts))[0]
        missing = ", ".join(names[k] for names, k in zip(levels, place, strict=True))
        more = f" and {np.isnan(counts).sum() - 1} more" if np.isnan(counts).sum() > 1 else ""
        problems.append(f"{total.name}: no count of {missing}{more}; write 0 where there are none")
    whole, added = bool((counts % 1 == 0).all()), float(counts.sum())
    if len(problems) == before and not whole and abs(added - 1) > ROUNDED:
        problems.append(
            f"{total.name}: shares must add up to 1, and whole numbers are counts; these add up to {added:g}"
        )
    if len(problems) == before and not added > 0:
        problems.append(f"{total.name}: all counts are 0")
    if len(problems) > before:
        return None
    return KnownTable(total.columns, counts / added, added if whole else math.nan, total.weighted)


def _contradictions(tables: Sequence[KnownTable], impossible: Sequence[Mapping[str, Sequence[int]]]) -> Iterator[str]:
    for k, one in enumerate(tables):
        for other in tables[:k]:
            if one.weighted != other.weighted:
                continue
            names = f"totals of {', '.join(other.columns)} and of {', '.join(one.columns)}"
            if not math.isnan(one.n_records + other.n_records) and one.n_records != other.n_records:
                yield f"{names} add up to {other.n_records:,.0f} and {one.n_records:,.0f}"
                continue
            shared = [name for name in one.columns if name in other.columns]
            apart = ROUNDED if math.isnan(one.n_records + other.n_records) else MET
            if shared and np.abs(one.margin(shared) - other.margin(shared)).max() > apart:
                yield f"{names} disagree on {', '.join(shared)}"
    for rule in impossible:  # shares of more than all but one whole must overlap
        least = {
            name: max((float(t.margin([name])[list(codes)].sum()) for t in tables if name in t.columns), default=0.0)
            for name, codes in rule.items()
        }
        if sum(least.values()) > len(rule) - 1 + ROUNDED:
            yield f"totals leave no table without the barred combination of {', '.join(rule)}"


def _ordered(tables: Sequence[KnownTable]) -> tuple[KnownTable, ...] | None:
    """Return totals such that what each shares with all before it is in one of these; None where there is no order."""
    left, last = list(tables), list[KnownTable]()
    while left:
        for one in left:
            others = [set(each.columns) for each in left if each is not one]
            shared = set(one.columns) & set().union(*others)
            if any(shared <= other for other in others) or not shared:
                break
        else:
            return None
        left.remove(one)
        last.append(one)
    return tuple(reversed(last))


def read_counts(path: Path, columns: Sequence[str]) -> dict[str, Any]:
    """Return the counts of a total from a CSV file whose header names its columns and ``count``."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error):
        raise InputError(f"total: file {path} can't be read, or is no UTF-8 text") from None
    found = dict[str, Any]()
    for number, row in enumerate(rows, start=2):
        if set(row) != {*columns, "count"}:
            raise InputError(f"total: the first line of {path} must name {', '.join(columns)} and count")
        place = found
        for column in columns[:-1]:
            place = place.setdefault(str(row[column]), {})
        if str(row[columns[-1]]) in place:
            raise InputError(f"total: line {number} of {path} repeats a cell")
        try:
            place[str(row[columns[-1]])] = (
                int(row["count"]) if row["count"].strip().isdecimal() else float(row["count"])
            )
        except ValueError:
            raise InputError(f"total: line {number} of {path} has no number as its count") from None
    return found


def places(frame: pd.DataFrame, table: KnownTable, columns: Mapping[str, Column]) -> IntArray:
    """Return the cell of a total that each record of a set is in."""
    codes = [encode(name, frame[name], columns[name]) for name in table.columns]
    return np.ravel_multi_index(tuple(codes), table.shares.shape).astype(np.int64)


def raked(
    frame: pd.DataFrame, weight: str, tables: Sequence[KnownTable], columns: Mapping[str, Column]
) -> pd.DataFrame:
    """Return a set with weights that meet weighted totals: multiplied cell by cell, total by total, within bounds."""
    column, cells = columns[weight], [places(frame, table, columns) for table in tables]
    weights = frame[weight].to_numpy(dtype=np.float64)
    for _ in range(ROUNDS):
        before = weights
        for table, cell in zip(tables, cells, strict=True):
            sums = np.bincount(cell, weights, table.shares.size)
            factor = np.divide(table.shares.ravel() * table.goal(weights), sums, out=np.ones_like(sums), where=sums > 0)
            weights = np.clip(weights * factor[cell], column.lower, column.upper)
        if np.abs(weights - before).max(initial=0.0) <= MET * weights.max(initial=0.0):
            break
    return frame.assign(**{weight: weights})
