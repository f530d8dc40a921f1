"""Which group a record is in, and how its outcome is split between the two ends of its
range: functions of that record and of the schema alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

import numpy as np
import pandas as pd

from pdips.arrays import IntArray
from pdips.data.column import Column
from pdips.data.schema import Schema
from pdips.data.table import Derived, Table
from pdips.errors import InputError
from pdips.posterior.columns import bounds_of, record_values

Family = Literal["normal", "bernoulli", "poisson"]
FAMILIES = ("normal", "bernoulli", "poisson")

# Whole steps into which a number's range is cut: what rounding to them adds to the
# variance of records is below a thousandth if their deviation is a hundredth of it
FINE_STEPS = 2**12
MOST_GROUPS = 10_000_000

ONE_GROUP = (
    "there is one group alone, whose effect can't be told from the mean: leave the "
    "group out of the model"
)


@dataclass(frozen=True)
class GroupDesign:
    """How records of a schema are counted: by group, and by the ends of the outcome's
    range.

    Each record has ``steps`` whole steps. As many of them as its outcome is above the
    lower end of its range go to the upper end, the others to the lower end: an outcome
    of 0 or 1 gives all to one end, so that its steps are plain counts.

    Parameters
    ----------
    schema : Schema
        Of the table.
    outcome : str
        The column that the model describes.
    groups : tuple of str
        Columns whose cells are the groups.
    family : {"normal", "bernoulli", "poisson"}
        Of the outcome given its group.
    within : tuple of str
        The last of ``groups``, where the model describes the outcome by them, too: all
        cells that are alike in the other columns have one effect in common.

    Examples
    --------
    >>> schema = Schema(
    ...     columns={
    ...         "ill": Column(levels=["no", "yes"]),
    ...         "site": Column(lower=0, upper=999_999, integer=True),
    ...     }
    ... )
    >>> GroupDesign.of(schema).n_groups
    1000000
    """

    schema: Schema
    outcome: str
    groups: tuple[str, ...]
    family: Family
    within: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        schema: Schema,
        outcome: str | None = None,
        family: Family | None = None,
        groups: tuple[str, ...] | None = None,
        within: tuple[str, ...] = (),
    ) -> "GroupDesign":
        """Return the design of a schema, or refuse columns that don't fit it.

        Left out, the outcome is the first confidential number that isn't whole, or else
        the first confidential column that has two levels or is a number. Its family is
        Bernoulli or normal then, and all other columns are groups.
        """
        if outcome is None:
            outcome = _first_outcome(schema)
        if outcome not in schema.columns:
            raise InputError(f"the outcome {outcome!r} is no column of the schema")
        column = schema.columns[outcome]
        if family is None:
            family = "bernoulli" if column.is_categorical else "normal"
        others = [name for name in schema.columns if name != outcome]
        if groups is None:
            groups = tuple(name for name in others if name not in within)
        groups = (*groups, *within)
        left = [name for name in others if name not in groups]
        if any(not schema.columns[name].public for name in left):
            raise InputError(
                f"the model describes {outcome!r} by {', '.join(groups)} and says "
                f"nothing of {', '.join(left)}: leave these out of the schema"
            )
        design = cls(
            schema=schema,
            outcome=outcome,
            groups=groups,
            family=family,
            within=within,
        )
        _check_outcome(outcome, column, family)
        design._check_groups()
        return design

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of levels of each group column."""
        return tuple(n_values(self.schema.columns[name]) for name in self.groups)

    @property
    def n_groups(self) -> int:
        return math.prod(self.sizes)

    @property
    def effect_columns(self) -> tuple[str, ...]:
        """The columns whose cells have an effect each."""
        return self.groups[: len(self.groups) - len(self.within)]

    @property
    def n_within(self) -> int:
        """How many groups have an effect in common."""
        return math.prod(self.sizes[len(self.effect_columns) :])

    @property
    def n_effects(self) -> int:
        return self.n_groups // self.n_within

    @property
    def membership_public(self) -> bool:
        """Whether everybody may know which record is in which group."""
        return all(self.schema.columns[name].public for name in self.groups)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest outcome; of two levels 0 and 1."""
        return bounds_of(self.schema.columns[self.outcome])

    @property
    def steps(self) -> int:
        """Whole steps of a record."""
        lower, upper = self.range
        column = self.schema.columns[self.outcome]
        is_whole = column.is_categorical or column.integer
        if is_whole and upper - lower <= FINE_STEPS:
            return int(upper - lower)
        return FINE_STEPS

    def group_of(self, values: Mapping[str, Any]) -> IntArray:
        """Return the group of each record, shape (records,), of columns as models read
        them.
        """
        index = np.zeros(len(next(iter(values.values()))), dtype=np.int64)
        for name, size in zip(self.groups, self.sizes, strict=True):
            column = self.schema.columns[name]
            first = 0 if column.is_categorical else int(column.lower or 0)
            index = index * size + (np.asarray(values[name], np.int64) - first)
        return index

    def public_part_of(self, values: Mapping[str, Any]) -> IntArray:
        """Return a number for what is public of the group of each record."""
        index = np.zeros(len(next(iter(values.values()))), dtype=np.int64)
        for name, size in zip(self.groups, self.sizes, strict=True):
            if self.schema.columns[name].public:
                index = index * size + np.asarray(values[name], np.int64)
        return index

    def columns_of(self, group: IntArray) -> dict[str, IntArray]:
        """Return the group columns, as models read them, of groups."""
        codes = np.unravel_index(group, self.sizes)
        columns = {}
        for name, code in zip(self.groups, codes, strict=True):
            column = self.schema.columns[name]
            first = 0 if column.is_categorical else int(column.lower or 0)
            columns[name] = code + first
        return columns

    def upper_steps(self, outcome: Any) -> IntArray:
        """Return how many of its steps each record gives to the upper end, shape
        (records,): from 0 to :attr:`steps`, whatever the value.
        """
        lower, upper = self.range
        share = (np.asarray(outcome, np.float64) - lower) / (upper - lower)
        whole = np.rint(share * self.steps)
        # a value that is no number is at the lower end: the bound holds for any input
        return np.clip(np.nan_to_num(whole), 0, self.steps).astype(np.int64)

    def ends_by_group(self, table: Table) -> IntArray:
        """Return, for each group, the steps at the lower and then those at the upper
        end, shape (2 * groups,); the upper ones alone where membership is public.
        """
        values = record_values(table, (self.outcome, *self.groups))
        group = self.group_of(values)
        upper = self.upper_steps(values[self.outcome])
        above = self._by_group(group, upper, table)
        if self.membership_public:
            return above
        return np.concatenate([self._by_group(group, self.steps - upper, table), above])

    def squares(self, table: Table) -> IntArray:
        """Return the sum of squared distances from the middle of the range, shape (1,):
        of each record from 0 to :attr:`steps` whole steps.
        """
        [outcome] = record_values(table, (self.outcome,)).values()
        upper = self.upper_steps(outcome)
        # rounded to the nearest, for sums of what is cut off add up
        doubled = 2 * (2 * upper - self.steps) ** 2
        squared = (doubled + self.steps) // (2 * self.steps)
        if table.counts is not None:
            squared = squared * table.counts
        return np.array([squared.sum()], dtype=np.int64)

    @property
    def n_ends(self) -> int:
        """How many numbers :meth:`ends_by_group` has."""
        return self.n_groups * (1 if self.membership_public else 2)

    def sums(self, table: Table) -> IntArray:
        """Return the steps at the ends by group, and of a normal outcome the sum of
        squares: all that is asked, so that a table in many files is read once.
        """
        ends = self.ends_by_group(table)
        if self.family != "normal":
            return ends
        return np.concatenate([ends, self.squares(table)])

    @property
    def derived_ends(self) -> Derived:
        """The steps at the ends by group, of a table wherever it is."""
        own = slice(None, self.n_ends)
        return Derived(base=self.sums, of=itemgetter(own), alone=self.ends_by_group)

    @property
    def derived_squares(self) -> Derived:
        """The sum of squares, of a table wherever it is."""
        own = slice(self.n_ends, None)
        return Derived(base=self.sums, of=itemgetter(own), alone=self.squares)

    def _by_group(self, group: IntArray, steps: IntArray, table: Table) -> IntArray:
        if table.counts is not None:
            steps = steps * table.counts
        # sums of whole numbers below 2^53 are exact in doubles
        sums = np.bincount(group, weights=steps, minlength=self.n_groups)
        return sums.astype(np.int64)

    def labels(self, group: IntArray | None = None) -> pd.DataFrame:
        """Return the levels of groups, all by default, a column for each group
        column.
        """
        if group is None:
            group = np.arange(self.n_groups)
        spelt = {}
        for name, code in self.columns_of(group).items():
            column = self.schema.columns[name]
            if column.is_categorical:
                spelt[name] = np.asarray(column.names(), dtype=object)[code]
            else:
                spelt[name] = code
        return pd.DataFrame(spelt)

    def _check_groups(self) -> None:
        for name in self.groups:
            check_group(name, self.schema.columns[name])
        if self.n_effects < 2:
            raise InputError(ONE_GROUP)
        if self.n_groups > MOST_GROUPS:
            raise InputError(
                f"there are {self.n_groups:,} groups, and at most {MOST_GROUPS:,} are "
                f"counted: narrow the range of {', '.join(self.groups)}"
            )


def check_group(name: str, column: Column) -> None:
    """Refuse a column whose values are no groups."""
    if not column.is_categorical and not column.integer:
        raise InputError(
            f"groups are levels, or whole numbers in a public range, and {name!r} is "
            f"neither: leave it out of the schema, or give it levels"
        )
    if column.missing and not column.is_categorical:
        raise InputError(
            f"the group {name!r} may be missing: give it a number of its own that says "
            f"so, or levels"
        )


def n_values(column: Column) -> int:
    """Return how many levels a column has, or whole numbers its range."""
    if column.is_categorical:
        return column.n_levels
    lower, upper = bounds_of(column)
    return int(upper) - int(lower) + 1


def _first_outcome(schema: Schema) -> str:
    confidential = {
        name: column for name, column in schema.columns.items() if not column.public
    }
    for name, column in confidential.items():
        # which is no group
        if not column.is_categorical and not column.integer:
            return name
    for name, column in confidential.items():
        if not column.is_categorical or column.n_levels == 2:
            return name
    raise InputError(
        "no confidential column is a number or has two levels, so there is no outcome "
        "whose mean could differ by group"
    )


def _check_outcome(name: str, column: Column, family: Family) -> None:
    """Refuse an outcome that the family doesn't describe."""
    if family not in FAMILIES:
        raise InputError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
    if column.public:
        raise InputError(f"the outcome {name!r} is public: there is nothing to protect")
    if column.missing:
        raise InputError(
            f"the outcome {name!r} may be missing, and the model says nothing of when "
            f"it is: leave such records out of the table, which must then be the same "
            f"for any value of the others"
        )
    lower, upper = bounds_of(column)
    if not upper > lower:
        raise InputError(f"the outcome {name!r} has one value alone")
    if family == "bernoulli" and (lower, upper) != (0.0, 1.0):
        raise InputError(
            f"a Bernoulli outcome has two levels, or is 0 or 1; {name!r} isn't"
        )
    if family == "normal" and column.is_categorical:
        raise InputError(f"a normal outcome is a number, and {name!r} has levels")
    is_count = column.integer and not column.is_categorical and lower == 0
    if family == "poisson" and not is_count:
        raise InputError(
            f"a Poisson outcome is a whole number from 0 on: give {name!r} "
            f"lower = 0, integer = true and an upper bound"
        )
