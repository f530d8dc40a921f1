"""Which margins an accuracy is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from pdips.data.schema import Schema
from pdips.errors import InputError

Margins = Literal["one-way", "two-way", "all"]
Asked = Margins | str | Sequence[str | Sequence[str]]
Columns = tuple[str, ...]

SIZES: dict[str, tuple[int, ...]] = {"one-way": (1,), "two-way": (2,), "all": (1, 2)}


@dataclass(frozen=True)
class Request:
    """What an accuracy is asked for.

    Parameters
    ----------
    named : tuple of str, or of tuple of str
        Margins by their columns, or statistics by their names.
    sizes : tuple of int
        In place of names: all margins of that many columns.
    """

    named: tuple[str | Columns, ...] = ()
    sizes: tuple[int, ...] = ()

    def margins(self, schema: Schema) -> list[Columns]:
        """Return the margins as columns in the order of the schema, those of public columns alone left out.

        Raises
        ------
        InputError
            If a name is no column of the schema, or all columns of a margin are public.
        """
        if self.named:
            return [margin_of(schema, item) for item in self.named]
        names = [name for name, column in schema.columns.items() if column.is_categorical or column.is_binned]
        found = [columns for size in self.sizes for columns in combinations(names, size)]
        found = [columns for columns in found if not all(schema.columns[name].public for name in columns)]
        if not found:
            raise InputError("of: the schema has no such margin of columns with levels or bins that aren't public")
        return found


def margin_of(schema: Schema, item: str | Columns) -> Columns:
    """Return the columns of one margin, which may be given as "sex,age"."""
    names = item if isinstance(item, tuple) else (item,) if item in schema.columns else tuple(_split(item))
    for name in names:
        if name not in schema.columns:
            raise InputError(f"of: {name!r} is no column of the schema")
        if not schema.columns[name].is_categorical and not schema.columns[name].is_binned:
            raise InputError(f"of: column {name!r} has neither levels nor bins: it has no margin")
    if len(set(names)) < len(names) or not names:
        raise InputError("of: a margin must name at least one column, and none twice")
    if all(schema.columns[name].public for name in names):
        raise InputError(f"of: the margin {label(names)} is of public columns alone: it is exact at any epsilon")
    return tuple(name for name in schema.columns if name in names)


def _split(item: str) -> list[str]:
    return [part.strip() for part in item.split(",")]


def read(of: Asked) -> Request:
    """Return a request as it is given: "one-way", "two-way", "all", one margin or statistic, or several.

    Raises
    ------
    InputError
        If there is nothing in it.
    """
    if isinstance(of, str):
        return Request(sizes=SIZES[of]) if of in SIZES else Request(named=(of,))
    if not isinstance(of, Sequence) or not of:
        raise InputError("of must be one-way, two-way, all, or name margins")
    if len(of) == 1 and isinstance(of[0], str):  # ("age",) is one margin
        return read(of[0])
    return Request(named=tuple(item if isinstance(item, str) else tuple(item) for item in of))


def label(columns: Columns) -> str:
    """Return what to call a margin."""
    return " x ".join(columns)
