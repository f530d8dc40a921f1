"""Rules that every record keeps: skip patterns, and numeric columns of which one is at
most another.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pdips.arrays import BoolArray, FloatArray
from pdips.data.column import Column, Levels
from pdips.data.dates import spelling

type Codes = dict[str, list[int]]


class Rule(BaseModel):
    """What a record must be: of these levels ``then``, ``if`` it is of those; or with
    numbers in order.

    Parameters
    ----------
    given : dict of str to levels
        In a schema ``if``: levels, or bins as they are spelt, by column; "missing" is
        that of missing cells.
    then : dict of str to levels
        All that may occur beside them, by column.
    ordered : tuple of str
        In place of these: numeric columns with bins, none above those after it; missing
        values break no order.

    Examples
    --------
    >>> str(Rule(given={"sex": "m"}, then={"births": ["none"]}))
    'if sex = m then births = none'
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    given: dict[str, Levels] = Field(default={}, alias="if")
    then: dict[str, Levels] = {}
    ordered: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        has_half = bool(self.given) != bool(self.then)
        if has_half or bool(self.given) == bool(self.ordered):
            raise ValueError("a rule has either if and then, or ordered")
        is_repeated = len({*self.ordered}) < len(self.ordered)
        if {*self.given} & {*self.then} or is_repeated or len(self.ordered) == 1:
            raise ValueError("a rule needs two columns or more that differ")
        return self

    def __str__(self) -> str:
        if self.ordered:
            return " <= ".join(self.ordered)
        return f"if {_spelt(self.given)} then {_spelt(self.then)}"

    def broken(self, values: Mapping[str, FloatArray]) -> BoolArray:
        """Return which records have numbers out of order, shape (records,)."""
        numbers = np.stack([values[name] for name in self.ordered])
        largest_before = np.fmax.accumulate(numbers)[:-1]
        return (largest_before > numbers[1:]).any(axis=0)


def _spelt(part: Mapping[str, Sequence[object]]) -> str:
    """Spell one side of a rule, each column with its levels."""
    levels = {name: "|".join(map(spelling, of)) for name, of in part.items()}
    return " and ".join(f"{name} = {of}" for name, of in levels.items())


def barred(rules: Sequence[Rule], columns: Mapping[str, Column]) -> Iterator[Codes]:
    """Yield the combinations of levels and bins that no record can have; ValueError if
    a rule doesn't fit.
    """
    pairs = set[tuple[str, str]]()
    for rule in rules:
        _check_columns(rule, columns)
        pairs |= set(combinations(rule.ordered, 2))
        yield from _barred_levels(rule, columns)
    for low, high in sorted(_with_implied(pairs)):
        for n_below, first in _bins_in_order(columns[low], columns[high]):
            above = list(range(first, columns[low].n_values))
            yield {low: above, high: list(range(n_below))}


def _check_columns(rule: Rule, columns: Mapping[str, Column]) -> None:
    """Refuse a rule on columns that aren't there, or of a kind that it can't name."""
    wanted = "column with levels or bins"
    if rule.ordered:
        wanted = "numeric column with bins"
    for name in (*rule.given, *rule.then, *rule.ordered):
        column = columns.get(name)
        if column is None or not _can_be_named(column, rule):
            raise ValueError(f"rule {rule}: {name!r} is no {wanted} of this schema")
    for name in rule.ordered:
        column = columns[name]
        first = columns[rule.ordered[0]]
        is_alike = (column.type, column.unit) == (first.type, first.unit)
        if column.public or not is_alike:
            raise ValueError(
                f"rule {rule}: its columns must be of one type and unit, and not public"
            )


def _can_be_named(column: Column, rule: Rule) -> bool:
    return column.is_binned or (column.is_categorical and not rule.ordered)


def _barred_levels(rule: Rule, columns: Mapping[str, Column]) -> Iterator[Codes]:
    """Yield, of a rule with ``if``, what it rules out: by column of ``then``."""
    given = {
        name: _codes(rule, name, columns[name], levels)
        for name, levels in rule.given.items()
    }
    for name, levels in rule.then.items():
        allowed = _codes(rule, name, columns[name], levels)
        others = sorted({*range(columns[name].n_levels)} - {*allowed})
        if not others:
            raise ValueError(
                f"rule {rule}: every level of {name!r} may occur, so it says nothing"
            )
        yield {**given, name: others}


def _with_implied(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return pairs in order, and those that follow: a <= b and b <= c give a <= c."""
    steps = {(a, d) for a, b in pairs for c, d in pairs if b == c and a != d}
    return pairs if steps <= pairs else _with_implied(pairs | steps)


def _bins_in_order(lower: Column, higher: Column) -> Iterator[tuple[int, int]]:
    """Yield how many first bins of ``higher`` lie wholly below which bin of ``lower``,
    and all after it.
    """
    ends = higher.edges[1:].copy()
    if not higher.integer:
        # the last bin holds its end
        ends[-1] = np.nextafter(ends[-1], np.inf)
    n_below = np.searchsorted(ends, lower.edges[:-1], side="right")
    for many in np.unique(n_below[n_below > 0]).tolist():
        yield many, int(np.searchsorted(n_below, many))


def _codes(
    rule: Rule, name: str, column: Column, levels: Sequence[object]
) -> list[int]:
    if column.is_categorical:
        names = [spelling(level) for level in column.levels]
    else:
        names = column.names()[: column.n_values]
    if column.missing:
        names.append("missing")
    for level in levels:
        if spelling(level) not in names:
            raise ValueError(f"rule {rule}: {level!r} is no level or bin of {name!r}")
    return [names.index(spelling(level)) for level in levels]


def lowest(
    rules: Sequence[Rule], low: Mapping[str, FloatArray]
) -> dict[str, FloatArray]:
    """Return the lowest numbers in order that are at least these, NaN where they are
    missing.
    """
    raised = {name: values.copy() for name, values in low.items()}
    for _ in raised:
        for rule in rules:
            numbers = np.stack([raised[name] for name in rule.ordered])
            in_order = np.fmax.accumulate(numbers)
            for name, values in zip(rule.ordered, in_order, strict=True):
                raised[name] = np.where(np.isnan(low[name]), np.nan, values)
    return raised
