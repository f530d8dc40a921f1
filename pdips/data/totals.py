"""Public totals: counts of cells that everyone knows, such as a census table. No confidential table is read here."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
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
ROUNDED = 1e-3  # How far shares may be from 1 in all, or margins of totals from each other where one is of shares
ROUNDS, MET = 500, 1e-9  # Of raking weights: at most so many, fewer where all totals are met to this part


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


type Zeros = Sequence[Mapping[str, Sequence[int]]]


def known_tables(totals: Sequence[Total], columns: Mapping[str, Column], zeros: Zeros) -> tuple[KnownTable, ...]:
    """Return totals as arrays, in an order in which each shares columns with no more than one of those before it.

    A ValueError names all that is wrong: with each total, between two of them, or with combinations that can't occur.
    """
    problems, found = list[str](), list[KnownTable]()
    for total in totals:
        wrong = [f"{name!r} {said}" for name in total.columns if (said := _misfit(name, total, columns))]
        found += [] if wrong else _table(total, columns, zeros, wrong)
        problems += [f"total of {', '.join(total.columns)}: {one}" for one in wrong]
    order = list[KnownTable]()
    for weighted in (False, True) if not problems else ():
        tables = [table for table in found if table.weighted == weighted]
        problems += _contradictions(tables, zeros)
        order += (ordered := _ordered(tables))
        if len(ordered) < len(tables):
            problems.append(
                "totals share columns in a circle, so that no order of meeting them is sure to: leave one out, or give "
                "one total of all their columns"
            )
    if problems:
        raise ValueError("; ".join(problems))
    return tuple(order)


def _misfit(name: str, total: Total, columns: Mapping[str, Column]) -> str:
    column = columns.get(name)
    if column is None:
        return "is no column of this schema"
    if column.public or total.columns.count(name) > 1:
        return "is public, and released as it is" if column.public else "is named twice"
    return "" if column.is_categorical or column.is_binned else "is numeric and needs bins or bin_edges"


def _leaves(counts: Any, depth: int, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if len(path) < depth and isinstance(counts, dict):
        for level, below in counts.items():
            yield from _leaves(below, depth, (*path, str(level)))
    else:
        yield path, counts


def _table(total: Total, columns: Mapping[str, Column], zeros: Zeros, wrong: list[str]) -> list[KnownTable]:
    levels = {name: columns[name].names() for name in total.columns}
    if math.prod(map(len, levels.values())) > MOST_CELLS:
        wrong.append(f"more than {MOST_CELLS:,} cells")
        return []
    counts = np.full([len(known) for known in levels.values()], np.nan)
    for path, value in _leaves(total.counts, len(levels)):
        steps = list(zip(path, levels.items(), strict=False))
        unknown = [f"{level!r} is no level or bin of {name!r}" for level, (name, known) in steps if level not in known]
        if unknown or len(path) < len(levels):
            wrong += unknown[:1] or [f"{', '.join(path)} needs a level of each column"]
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            wrong.append(f"the count of {', '.join(path)} must be a number of at least 0")
        else:
            counts[tuple(known.index(level) for level, (_, known) in steps)] = value
    for rule in zeros:
        if set(rule) <= set(total.columns):
            barred = np.ix_(*(rule.get(name, range(len(known))) for name, known in levels.items()))
            if np.nansum(counts[barred]) > 0:
                wrong.append("counts records in a combination that [[impossible]] or a [[rule]] bars")
            counts[barred] = 0
    if not wrong and np.isnan(counts).any():
        place, n_more = np.argwhere(np.isnan(counts))[0], int(np.isnan(counts).sum()) - 1
        cell = ", ".join(known[k] for known, k in zip(levels.values(), place, strict=True))
        wrong.append(f"no count of {cell}{f' and {n_more} more' if n_more else ''}; write 0 where there are none")
    whole, added = bool((counts % 1 == 0).all()), float(counts.sum())
    if not wrong and not whole and abs(added - 1) > ROUNDED:
        wrong.append(f"shares must add up to 1, and whole numbers are counts; these add up to {added:g}")
    if not wrong and not added > 0:
        wrong.append("all counts are 0")
    return [] if wrong else [KnownTable(total.columns, counts / added, added if whole else math.nan, total.weighted)]


def _contradictions(tables: Sequence[KnownTable], zeros: Zeros) -> Iterator[str]:
    for one, other in combinations(tables, 2):
        names = f"totals of {', '.join(one.columns)} and of {', '.join(other.columns)}"
        is_counted = not math.isnan(one.n_records + other.n_records)
        shared = [name for name in one.columns if name in other.columns]
        if is_counted and one.n_records != other.n_records:
            yield f"{names} add up to {one.n_records:,.0f} and {other.n_records:,.0f}"
        elif np.abs(one.margin(shared) - other.margin(shared)).max() > (MET if is_counted else ROUNDED):
            yield f"{names} disagree on {', '.join(shared)}"
    for rule in zeros:  # shares that add up to more than all but one must overlap
        told = (
            [t.margin([name])[list(codes)].sum() for t in tables if name in t.columns] for name, codes in rule.items()
        )
        if sum(max(shares, default=0.0) for shares in told) > len(rule) - 1 + ROUNDED:
            yield f"totals leave no table without the barred combination of {', '.join(rule)}"


def _ordered(tables: Sequence[KnownTable]) -> list[KnownTable]:
    """Return totals such that what each shares with all before it is in one of these; fewer where there is no order."""
    left, last = list(tables), list[KnownTable]()
    while left:
        for one in left:
            others = [set(each.columns) for each in left if each is not one]
            shared = set(one.columns) & set().union(*others)
            if not shared or any(shared <= other for other in others):
                break
        else:
            return []
        left.remove(one)
        last.insert(0, one)
    return last


def read_counts(path: Path, columns: Sequence[str]) -> dict[str, Any]:
    """Return the counts of a total from a CSV file whose header names its columns and ``count``."""
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError):
        raise InputError(f"total: file {path} can't be read as a table of text in UTF-8") from None
    if {*rows} != {*columns, "count"}:
        raise InputError(f"total: the first line of {path} must name {', '.join(columns)} and count")
    if rows.duplicated([*columns]).any():
        raise InputError(f"total: {path} has two counts of a cell")
    found, counts = dict[str, Any](), pd.to_numeric(rows["count"], errors="coerce").astype(float)
    for (*above, last), count in zip(rows[[*columns]].to_numpy(), counts, strict=True):
        place = found
        for level in above:
            place = place.setdefault(level, {})
        place[last] = count
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
            sums = np.bincount(cell, weights, table.shares.size).astype(np.float64)  # of no record, whole numbers
            factor = np.divide(table.shares.ravel() * table.goal(weights), sums, out=np.ones_like(sums), where=sums > 0)
            weights = np.clip(weights * factor[cell], column.lower, column.upper)
        if np.abs(weights - before).max(initial=0.0) <= MET * weights.max(initial=0.0):
            break
    return frame.assign(**{weight: weights})
