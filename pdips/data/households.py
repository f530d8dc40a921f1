"""Tables of households and of their members, as one wide table with a record a
household, and back again.

A household's record is a function of its own rows: which rows have its key, and their
order in the file.
"""

from collections.abc import Collection
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pdips.arrays import FloatArray, IntArray
from pdips.data.coding import person_key, person_keys, refuse_for
from pdips.data.column import Column
from pdips.errors import DataError, InputError

NULLABLE: dict[str, Any] = {"i": "Int64", "u": "UInt64", "b": "boolean"}
"""Types that have room for absent members: whole numbers as doubles would be other
codes because of them.
"""

SIZE = "members"  # Column of the wide table: how many members a household has


class Members(BaseModel):
    """What is public about the members of households, which are records of a table of
    their own.

    Parameters
    ----------
    key : str
        Column of both tables that says which household it is; compared as person keys
        are, and never released.
    most : int
        Public cap on the members of a household.
    order : str, optional
        Column by which its members are placed: largest number or first level first,
        missing last; else as in the file.
    too_many : {"refuse", "truncate"}
        Whether a table with a larger household is refused, or its first ``most``
        members are kept.
    columns : dict of str to Column
        Of the table of members.

    Examples
    --------
    >>> list(
    ...     Members(
    ...         key="id", most=2, columns={"age": Column(lower=0, upper=99)}
    ...     ).slots()
    ... )
    ['members', 'age_1', 'age_2']
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    most: Annotated[int, Field(ge=1, le=100, strict=True)]
    order: str | None = None
    too_many: Literal["refuse", "truncate"] = "refuse"
    columns: Annotated[dict[str, Column], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.order is not None and self.order not in self.columns:
            raise ValueError(f"order: {self.order!r} is no column of members")
        has_public = any(column.public for column in self.columns.values())
        if has_public or self.key in self.columns:
            raise ValueError(
                "neither the key nor a public column can be a column of members"
            )
        return self

    def slots(self) -> dict[str, Column]:
        """Return the columns of the wide table beside those of households; missing
        means no such member, too.
        """
        size = Column(levels=list(range(self.most + 1)), label="Number of members")
        slots = {SIZE: size}
        for j in range(1, self.most + 1):
            for name, column in self.columns.items():
                more = {
                    "missing": column.missing or True,
                    "label": f"{column.label or name}, member {j}",
                }
                slots[f"{name}_{j}"] = column.model_copy(update=more)
        return slots

    @cached_property
    def places(self) -> dict[str, tuple[int, bool]]:
        """Which member each column of :meth:`slots` is of, 0 for the size, and whether
        a member's may be missing.
        """
        places = {SIZE: (0, False)}
        for j in range(1, self.most + 1):
            for name, column in self.columns.items():
                places[f"{name}_{j}"] = (j, bool(column.missing))
        return places

    def joined(
        self, households: pd.DataFrame, members: pd.DataFrame, ranks: FloatArray
    ) -> pd.DataFrame:
        """Return the wide table of two tables, in the order of the households.

        ``ranks``, shape (members,), place the members of a household, least first and
        NaN last. InputError if a table has no key, or that of households has a column
        that the wide table has; DataError if keys don't fit each other, or a household
        has too many members.
        """
        self._check_names(households, members)
        keys = pd.Series(self._spelt_keys(households), dtype=object)
        own = pd.Series(self._spelt_keys(members), dtype=object)
        unique = pd.Index(keys.dropna().unique())
        household = unique.get_indexer(own)
        sizes = np.bincount(household[household >= 0], minlength=len(unique))
        is_large = self.too_many == "refuse" and bool((sizes > self.most).any())
        refuse_for(self._problems(keys, own, household, is_large=is_large))
        by_place = np.lexsort((ranks, household))
        first = np.cumsum(sizes) - sizes
        sizes = np.minimum(sizes, self.most)
        slots: dict[str, Any] = {SIZE: sizes}
        for name in self.columns:
            cells = _nullable(members[name].reset_index(drop=True))
            for j in range(self.most):
                # -1, which no row has, where there is no such member
                row = np.full(len(unique), -1)
                row[sizes > j] = by_place[first[sizes > j] + j]
                slots[f"{name}_{j + 1}"] = cells.reindex(row).reset_index(drop=True)
        wide = households.drop(columns=self.key).reset_index(drop=True)
        return pd.concat([wide, pd.DataFrame(slots)], axis=1)

    def _check_names(self, households: pd.DataFrame, members: pd.DataFrame) -> None:
        if self.key not in households or self.key not in members:
            raise InputError(
                f"the tables of households and of members both need the "
                f"column {self.key!r} (members.key)"
            )
        if {*self.places} & {*households}:
            raise InputError(
                f"rename columns of households that are called "
                f"{SIZE!r}, or as a member's with its number"
            )

    def _problems(
        self, keys: pd.Series, own: pd.Series, household: IntArray, *, is_large: bool
    ) -> list[DataError]:
        """Return what is wrong with the keys of households and of their members."""
        problems = {
            "a household or a member has no key": keys.isna().any() or own.isna().any(),
            "two households have one key": keys.dropna().duplicated().any(),
            "a member is of no household": (household[own.notna()] < 0).any(),
            f"a household has more than members.most = {self.most} members": is_large,
        }
        broken = [rule for rule, is_broken in problems.items() if is_broken]
        return [DataError(f"column {self.key!r}: {rule}") for rule in broken]

    def _spelt_keys(self, frame: pd.DataFrame) -> list[str | None]:
        positions, keys = person_keys(self.key, frame[self.key])
        spelt = [*map(person_key, keys), None]
        return [spelt[position] for position in positions]

    def parted(self, wide: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the tables of households and of members of a wide one, with new keys:
        1, 2, ... in its order.
        """
        keys = np.arange(1, len(wide) + 1)
        sizes = wide[SIZE].to_numpy(dtype=np.int64)
        households = wide[self.of_households([*wide])]
        households.insert(0, self.key, keys)
        parts = []
        for j in range(1, self.most + 1):
            has_member = sizes >= j
            part = wide.loc[has_member, [f"{name}_{j}" for name in self.columns]]
            part.columns = pd.Index([*self.columns])
            parts.append(part.assign(**{self.key: keys[has_member]}))
        members = pd.concat(parts).sort_values(
            self.key, kind="stable", ignore_index=True
        )
        return households, members[[self.key, *self.columns]]

    def of_households(self, names: Collection[str]) -> list[str]:
        """Return those columns of the wide table that are columns of households."""
        return [name for name in names if name not in self.places]


def _nullable(cells: pd.Series) -> pd.Series:
    """Return cells in a type that has room for absent ones, whether or not one is."""
    if isinstance(cells.dtype, np.dtype) and cells.dtype.kind in NULLABLE:
        return cells.astype(NULLABLE[cells.dtype.kind])
    return cells
