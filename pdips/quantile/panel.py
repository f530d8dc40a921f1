"""Panels: a record for each unit, a column for each year, known from a public first year to a public last one.

In each year the units that are new ("births") are synthesized on their own, those that were there the year before
("continuers") given their values of that year (Kinney et al. 2011; Tran et al. (2023), section 5.1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

import numpy as np

from pdips.arrays import BoolArray, FloatArray
from pdips.data.encoding import Box, Scale, Values
from pdips.data.schema import Schema
from pdips.errors import DataError, InputError
from pdips.privacy.loss import Number, exact

Part = Literal["births", "continuers"]
PARTS: tuple[Part, ...] = ("births", "continuers")


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Which columns are values of which years, and in which years a record has them; all of it public.

    ``first`` and ``last`` are public columns with a record's first and last year, ``before`` gives the column of the
    year before. ``births_share`` of a year's budget pays for births, the rest for continuers; if None each has it all.
    """

    schema: Schema
    first: str
    last: str
    years: Mapping[str, int]
    before: Mapping[str, str]
    births_share: Fraction | None = None

    @cached_property
    def known_schema(self) -> Schema:
        """The schema of records in a year in which they have values: there nothing is missing."""
        columns = {
            name: column.model_copy(update={"missing": False}) if name in self.years else column
            for name, column in self.schema.columns.items()
        }
        return self.schema.model_copy(update={"columns": columns})

    def span(self, values: Values) -> list[FloatArray]:
        """Return the first and the last year of each record, from public columns."""
        found = []
        for name in (self.first, self.last):
            column, each = self.schema.columns[name], values[name]
            years = np.array([float(level) for level in column.levels]) if column.is_categorical else each
            found.append(years[each.astype(np.int64)] if column.is_categorical else each)
        return found

    def parts(self, name: str, values: Values) -> dict[Part, BoolArray]:
        """Say which records are births and which continuers in the year of a column; the others have no value."""
        first, last = self.span(values)
        year, before = self.years[name], self.before.get(name)
        here = (first <= year) & (last >= year)
        older = first <= self.years[before] if before else np.zeros(len(first), dtype=bool)
        return {"births": here & ~older, "continuers": here & older}

    def share(self, part: Part, name: str) -> Fraction:
        """Return the share of a year's budget that a part may spend: all of it in a prefix's first year."""
        if self.births_share is None or name not in self.before:
            return Fraction(1)
        return self.births_share if part == "births" else 1 - self.births_share

    def of_part(self, part: Part, name: str, given: Sequence[str]) -> tuple[str, ...]:
        """Return those of a column's predictors that all records of a part have."""
        year = self.years[name]
        return tuple(other for other in given if part == "continuers" or self.years.get(other, year) == year)

    def given(self, name: str, wanted: Sequence[str] | None) -> tuple[str, ...]:
        """Return the predictors of a year's column: as asked for, or the column of the year before.

        One that may be missing in a record with a value in this year and the year before is refused.
        """
        before = self.before.get(name)
        if wanted is None:
            return (before,) if before else ()
        earliest = self.years[before] if before else self.years[name]
        for other in wanted:
            if not earliest <= self.years.get(other, earliest) <= self.years[name]:
                raise InputError(
                    f"predictors of {name!r}: {other!r} isn't there in every record that goes on from the year before; "
                    "take columns of this year or the year before"
                )
        return tuple(wanted)

    def unchanged(self, name: str, box: Box) -> FloatArray | None:
        """Return the line of last year's value, if that and nothing else is a column's predictor, on its own scale."""
        before = self.before.get(name)
        if before is None or box.names != (before,) or before in box.caps:
            return None
        old, new = Scale(self.schema.columns[before]), Scale(self.schema.columns[name])
        low, high = old.bounds
        same = old.column.scale == new.column.scale and old.bounds == new.bounds
        return np.array([(low + high) / 2, (high - low) / 2]) if same else None

    def check(self, values: Values) -> None:
        """Refuse a table with values outside of a record's public years, or none within; messages name the column."""
        first, last = self.span(values)
        if not (last >= first).all():
            raise DataError(f"panel: a record's {self.last!r} is before its {self.first!r}")
        for name, year in self.years.items():
            here, known = (first <= year) & (last >= year), ~np.isnan(values[name])
            if (known & ~here).any():
                raise DataError(
                    f"panel: column {name!r} has a value outside {self.first!r} to {self.last!r}; correct the "
                    "years, or take the value out"
                )
            if (here & ~known).any():
                raise DataError(
                    f"panel: column {name!r} is missing within {self.first!r} to {self.last!r}; a unit has a value in "
                    "every year from its first to its last"
                )


def check_panel(
    panel: Sequence[str] | None, panel_columns: Sequence[str] | None, births_share: Number
) -> Fraction | None:
    """Check the settings of a panel before there is a schema, and return the share of births, None for parallel."""
    share = None if births_share == "parallel" else exact(births_share, "births_share")
    if share is not None and not 0 < share < 1:
        raise InputError(f"births_share must be 'parallel', or above 0 and below 1, got {births_share}")
    if panel is None and panel_columns is None and share is None:
        return None
    if panel is None or isinstance(panel, str) or len(panel) != 2 or panel[0] == panel[1]:
        raise InputError("panel must name two public columns, a record's first and last year, such as entry,exit")
    if not panel_columns or isinstance(panel_columns, str) or not all(panel_columns):
        raise InputError("panel_columns must list what the columns of years start with: emp_ for emp_1976, emp_1977")
    return share


def panel_of(
    schema: Schema, panel: Sequence[str] | None, panel_columns: Sequence[str] | None, births_share: Number
) -> Panel | None:
    """Return the public shape of a panel from the settings, None where there are none, or refuse columns of a schema
    that aren't what their part asks for.
    """
    share = check_panel(panel, panel_columns, births_share)
    if panel is None:
        return None
    for name in panel:
        if name not in schema.columns:
            raise InputError(f"panel: {name!r} is no column of the schema; it has {', '.join(schema.columns)}")
        column = schema.columns[name]
        if not column.public or column.missing:
            raise InputError(
                f"panel: column {name!r} must have public = true and no missing values: it says in which years a "
                "record has values"
            )
        whole = all(not isinstance(level, bool) and str(level).isdecimal() for level in column.levels or ())
        if not (whole if column.is_categorical else column.integer):
            raise InputError(
                f"panel: column {name!r} must hold years: levels that are whole numbers, or integer = true"
            )
    years: dict[str, int] = {}
    before: dict[str, str] = {}
    for prefix in panel_columns or ():
        found = {
            name: int(name.removeprefix(prefix))
            for name in schema.columns
            if name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
        }
        if not found:
            raise InputError(f"panel_columns: no column of the schema is called {prefix!r} and a year, {prefix}1976")
        ordered = sorted(found, key=lambda name: found[name])
        before |= dict(zip(ordered[1:], ordered[:-1], strict=True))
        years |= found
    for name in years:
        column = schema.columns[name]
        if name in panel or column.is_categorical or not column.missing:
            raise InputError(f"panel: column {name!r} must be numeric, with missing = true for years before and after")
    return Panel(schema=schema, first=panel[0], last=panel[1], years=years, before=before, births_share=share)
