"""Rules that every record keeps: skip patterns, and numeric columns of which one is at most another."""

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
    """What a record must be: of these levels ``then``, ``if`` it is of those; or with numbers in order.

    Parameters
    ----------
    given : dict of str to levels
        In a schema ``if``: levels, or bins as they are spelt, by column; "missing" is that of missing cells.
    then : dict of str to levels
        All that may occur beside them, by column.
    ordered : tuple of str
        In place of these: numeric columns with bins, none above those after it; missing values break no order.

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
        if bool(self.given and self.then) == bool(self.ordered) or bool(self.given) != bool(self.then):
            raise ValueError("a rule has either if and then, or ordered")
        if {*self.given} & {*self.then} or len({*self.ordered}) < len(self.ordered) or len(self.ordered) == 1:
            raise ValueError("a rule needs two columns or more that differ")
        return self

    def __str__(self) -> str:
        spelt = [
            " and ".join(f"{name} = {'|'.join(map(spelling, levels))}" for name, levels in part.items())
            for part in (self.given, self.then)
        ]
        return " <= ".join(self.ordered) or f"if {spelt[0]} then {spelt[1]}"

    def broken(self, values: Mapping[str, FloatArray]) -> BoolArray:
        """Return which records have numbers out of order, shape (records,)."""
        of = np.stack([values[name] for name in self.ordered])
        return np.asarray((np.fmax.accumulate(of)[:-1] > of[1:]).any(axis=0))


def barred(rules: Sequence[Rule], columns: Mapping[str, Column]) -> Iterator[Codes]:
    """Yield the combinations of levels and bins that no record can have; ValueError if a rule doesn't fit."""
    pairs = set[tuple[str, str]]()
    for rule in rules:
        for name in (*rule.given, *rule.then, *rule.ordered):
            column = columns.get(name)
            if column is None or not (column.is_binned or (column.is_categorical and not rule.ordered)):
                what = "numeric column with bins" if rule.ordered else "column with levels or bins"
                raise ValueError(f"rule {rule}: {name!r} is no {what} of this schema")
            other = columns[rule.ordered[0]] if rule.ordered else column
            if rule.ordered and (column.public or (column.type, column.unit) != (other.type, other.unit)):
                raise ValueError(f"rule {rule}: its columns must be of one type and unit, and not public")
        pairs |= set(combinations(rule.ordered, 2))
        given = {name: _codes(rule, name, columns[name], levels) for name, levels in rule.given.items()}
        for name, levels in rule.then.items():
            wanted = _codes(rule, name, columns[name], levels)
            others = [code for code in range(columns[name].n_levels) if code not in wanted]
            if not others:
                raise ValueError(f"rule {rule}: every level of {name!r} may occur, so it says nothing")
            yield {**given, name: others}
    while more := {(a, d) for a, b in pairs for c, d in pairs if b == c and a != d} - pairs:
        pairs |= more
    for low, high in sorted(pairs):
        one, other = columns[low], columns[high]
        ends = other.edges[1:].copy()
        ends[-1] = ends[-1] if other.integer else np.nextafter(ends[-1], np.inf)  # the last bin holds its end
        below = np.searchsorted(ends, one.edges[:-1], side="right")  # so many bins lie wholly below the bin
        for many in np.unique(below[below > 0]):
            first = int(np.searchsorted(below, many))
            yield {low: list(range(first, one.n_values)), high: list(range(many))}


def _codes(rule: Rule, name: str, column: Column, levels: Sequence[object]) -> list[int]:
    known = [spelling(level) for level in column.levels] if column.is_categorical else column.names()[: column.n_values]
    known += ["missing"] * bool(column.missing)
    for level in levels:
        if spelling(level) not in known:
            raise ValueError(f"rule {rule}: {level!r} is no level or bin of {name!r}")
    return [known.index(spelling(level)) for level in levels]


def lowest(rules: Sequence[Rule], low: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return the lowest numbers in order that are at least these, NaN where they are missing."""
    found = {name: values.copy() for name, values in low.items()}
    for _ in found:
        for rule in rules:
            raised = np.fmax.accumulate(np.stack([found[name] for name in rule.ordered]))
            for name, values in zip(rule.ordered, raised, strict=True):
                found[name] = np.where(np.isnan(low[name]), np.nan, values)
    return found
