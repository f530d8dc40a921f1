"""Public totals: counts of cells that everyone knows, such as a census table. No
confidential table is read here.
"""

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
MOST_COUNTED = 2**53  # In a cell: beyond, doubles are no whole numbers
# How far shares may be from 1 in all, or margins of totals from each other where one is
# of shares
ROUNDED = 1e-3
# Of raking weights: at most so many, fewer where all totals are met to this part
ROUNDS = 500
MET = 1e-9


class Total(BaseModel):
    """Counts or shares of all cells of some columns, as everyone knows them.

    Parameters
    ----------
    columns : tuple of str
        Categorical columns or columns with bins.
    counts : dict
        By level, spelt as in tables, within it by the level of the next column, and so
        on. Whole numbers are counts; others are shares, which add up to 1.
    weighted : bool
        Whether it counts a population, for which the records stand by their weights
        (``records.weight``).
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
    """A total as an array: shares with an axis a column; what they are shares of, NaN
    where only shares are known.
    """

    columns: tuple[str, ...]
    shares: FloatArray
    n_records: float
    weighted: bool = False

    def goal(self, weights: FloatArray) -> float:
        """Return what its shares are to add up to in a set: its own number if it is
        weighted, else that of the set.
        """
        is_counted = self.weighted and not math.isnan(self.n_records)
        return self.n_records if is_counted else float(weights.sum())

    def margin(self, columns: Sequence[str]) -> FloatArray:
        """Return the shares of the cells of some of its columns, in their order."""
        rest = tuple(k for k, name in enumerate(self.columns) if name not in columns)
        kept = [name for name in self.columns if name in columns]
        shares = np.asarray(self.shares.sum(axis=rest))
        return shares.transpose([kept.index(name) for name in columns])


type Zeros = Sequence[Mapping[str, Sequence[int]]]


def known_tables(
    totals: Sequence[Total], columns: Mapping[str, Column], zeros: Zeros
) -> tuple[KnownTable, ...]:
    """Return totals as arrays, in an order in which each shares columns with no more
    than one of those before it.

    A ValueError names all that is wrong: with each total, between two of them, or with
    combinations that can't occur.
    """
    problems = list[str]()
    tables = list[KnownTable]()
    for total in totals:
        reasons = [(name, _misfit(name, total, columns)) for name in total.columns]
        wrong = [f"{name!r} {reason}" for name, reason in reasons if reason]
        table = None if wrong else _table(total, columns, zeros, wrong)
        if table is not None:
            tables.append(table)
        problems += [f"total of {', '.join(total.columns)}: {one}" for one in wrong]
    if problems:
        raise ValueError("; ".join(problems))
    in_order = list[KnownTable]()
    for weighted in (False, True):
        alike = [table for table in tables if table.weighted == weighted]
        problems += _contradictions(alike, zeros)
        ordered = _ordered(alike)
        in_order += ordered
        if len(ordered) < len(alike):
            problems.append(
                "totals share columns in a circle, so that no order of meeting them "
                "is sure to: leave one out, or give "
                "one total of all their columns"
            )
    if problems:
        raise ValueError("; ".join(problems))
    return tuple(in_order)


def _misfit(name: str, total: Total, columns: Mapping[str, Column]) -> str:
    """Return why a total can't count a column, empty if it can."""
    column = columns.get(name)
    if column is None:
        return "is no column of this schema"
    if column.public:
        return "is public, and released as it is"
    if total.columns.count(name) > 1:
        return "is named twice"
    if column.is_categorical or column.is_binned:
        return ""
    return "is numeric and needs bins or bin_edges"


def _leaves(
    counts: Any, depth: int, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    if len(path) < depth and isinstance(counts, dict):
        for level, below in counts.items():
            yield from _leaves(below, depth, (*path, str(level)))
    else:
        yield path, counts


type _Names = dict[str, list[str]]


def _table(
    total: Total, columns: Mapping[str, Column], zeros: Zeros, wrong: list[str]
) -> KnownTable | None:
    """Return a total as an array; or None, and add what is wrong to ``wrong``."""
    names: _Names = {name: columns[name].names() for name in total.columns}
    if math.prod(map(len, names.values())) > MOST_CELLS:
        wrong.append(f"more than {MOST_CELLS:,} cells")
        return None
    counts = np.full([len(levels) for levels in names.values()], np.nan)
    wrong += _fill(counts, total.counts, names)
    wrong += _empty(counts, names, zeros)
    if not wrong:
        wrong += _unknown_counts(counts, names)
    if wrong:
        return None
    are_whole = bool((counts % 1 == 0).all())
    added = float(counts.sum())
    if not are_whole and abs(added - 1) > ROUNDED:
        wrong.append(
            f"shares must add up to 1, and whole numbers are counts; these "
            f"add up to {added:g}"
        )
        return None
    if added == 0:
        wrong.append("all counts are 0")
        return None
    n_records = added if are_whole else math.nan
    return KnownTable(total.columns, counts / added, n_records, total.weighted)


def _fill(counts: FloatArray, given: dict[str, Any], names: _Names) -> Iterator[str]:
    """Put counts by level into their cells; yield what is wrong with them."""
    for path, value in _leaves(given, len(names)):
        steps = list(zip(path, names.items(), strict=False))
        unknown = [
            f"{level!r} is no level or bin of {name!r}"
            for level, (name, levels) in steps
            if level not in levels
        ]
        if unknown:
            yield unknown[0]
        elif len(path) < len(names):
            yield f"{', '.join(path)} needs a level of each column"
        elif not _is_count(value):
            yield (
                f"the count of {', '.join(path)} must be a number of at least 0, "
                f"below 2^53"
            )
        else:
            cell = tuple(levels.index(level) for level, (_, levels) in steps)
            counts[cell] = value


def _is_count(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 <= value < MOST_COUNTED


def _empty(counts: FloatArray, names: _Names, zeros: Zeros) -> Iterator[str]:
    """Set to 0 what can't occur; yield a problem where records are counted there."""
    for rule in zeros:
        if not {*rule} <= {*names}:
            continue
        codes = [rule.get(name, range(len(levels))) for name, levels in names.items()]
        barred = np.ix_(*codes)
        if np.nansum(counts[barred]) > 0:
            yield (
                "counts records in a combination that [[impossible]] or a [[rule]] bars"
            )
        counts[barred] = 0


def _unknown_counts(counts: FloatArray, names: _Names) -> Iterator[str]:
    """Yield a problem that names the first cell without a count."""
    unknown = np.argwhere(np.isnan(counts))
    if not len(unknown):
        return
    spelt = [levels[k] for levels, k in zip(names.values(), unknown[0], strict=True)]
    others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    yield f"no count of {', '.join(spelt)}{others}; write 0 where there are none"


def _contradictions(tables: Sequence[KnownTable], zeros: Zeros) -> Iterator[str]:
    for one, other in combinations(tables, 2):
        names = f"totals of {', '.join(one.columns)} and of {', '.join(other.columns)}"
        is_counted = not math.isnan(one.n_records + other.n_records)
        if is_counted and one.n_records != other.n_records:
            yield f"{names} add up to {one.n_records:,.0f} and {other.n_records:,.0f}"
            continue
        shared = [name for name in one.columns if name in other.columns]
        apart = np.abs(one.margin(shared) - other.margin(shared)).max()
        if apart > (MET if is_counted else ROUNDED):
            yield f"{names} disagree on {', '.join(shared)}"
    for rule in zeros:
        shares = [_largest_share(tables, name, codes) for name, codes in rule.items()]
        # shares that add up to more than all but one must overlap
        if sum(shares) > len(rule) - 1 + ROUNDED:
            yield (
                f"totals leave no table without the barred combination of "
                f"{', '.join(rule)}"
            )


def _largest_share(
    tables: Sequence[KnownTable], name: str, codes: Sequence[int]
) -> float:
    """Return the largest share of some levels of a column in any table, 0 if none has
    the column.
    """
    having = [table for table in tables if name in table.columns]
    shares = [float(table.margin([name])[list(codes)].sum()) for table in having]
    return max(shares, default=0.0)


def _ordered(tables: Sequence[KnownTable]) -> list[KnownTable]:
    """Return totals such that what each shares with all before it is in one of these;
    fewer where there is no order.
    """
    left = list(tables)
    in_order = list[KnownTable]()
    while left:
        last = next((table for table in left if _can_be_last(table, left)), None)
        if last is None:
            return []
        left.remove(last)
        in_order.insert(0, last)
    return in_order


def _can_be_last(table: KnownTable, tables: Sequence[KnownTable]) -> bool:
    """Whether what a total shares with all others is in one of these."""
    others = [{*other.columns} for other in tables if other is not table]
    shared = {*table.columns}.intersection(set[str]().union(*others))
    return not shared or any(shared <= columns for columns in others)


def read_counts(path: Path, columns: Sequence[str]) -> dict[str, Any]:
    """Return the counts of a total from a CSV file whose header names its columns and
    ``count``.
    """
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError):
        raise InputError(
            f"total: file {path} can't be read as a table of text in UTF-8"
        ) from None
    if not columns or not all(isinstance(name, str) for name in columns):
        raise InputError("total: columns must be a list of at least one column")
    if {*rows} != {*columns, "count"}:
        raise InputError(
            f"total: the first line of {path} must name {', '.join(columns)} and count"
        )
    if rows.duplicated([*columns]).any():
        raise InputError(f"total: {path} has two counts of a cell")
    counts = dict[str, Any]()
    numbers = pd.to_numeric(rows["count"], errors="coerce").astype(float)
    cells = rows[[*columns]].to_numpy()
    for (*above, last), number in zip(cells, numbers, strict=True):
        inner = counts
        for level in above:
            inner = inner.setdefault(level, {})
        inner[last] = number
    return counts


def places(
    frame: pd.DataFrame, table: KnownTable, columns: Mapping[str, Column]
) -> IntArray:
    """Return the cell of a total that each record of a set is in."""
    codes = [encode(name, frame[name], columns[name]) for name in table.columns]
    cells = np.ravel_multi_index(tuple(codes), table.shares.shape)
    return cells.astype(np.int64)


def raked(
    frame: pd.DataFrame,
    weight: str,
    tables: Sequence[KnownTable],
    columns: Mapping[str, Column],
) -> pd.DataFrame:
    """Return a set with weights that meet weighted totals: multiplied cell by cell,
    total by total, within bounds.
    """
    column = columns[weight]
    cells = [places(frame, table, columns) for table in tables]
    weights = frame[weight].to_numpy(dtype=np.float64)
    for _ in range(ROUNDS):
        before = weights
        for table, cell in zip(tables, cells, strict=True):
            # of no record, whole numbers
            sums = np.bincount(cell, weights, table.shares.size).astype(np.float64)
            wanted = table.shares.ravel() * table.goal(weights)
            unchanged = np.ones_like(sums)
            factors = np.divide(wanted, sums, out=unchanged, where=sums > 0)
            weights = np.clip(weights * factors[cell], column.lower, column.upper)
        moved = np.abs(weights - before).max(initial=0.0)
        if moved <= MET * weights.max(initial=0.0):
            break
    return frame.assign(**{weight: weights})
