"""Neighbouring tables on which a mechanism that spends too much is caught, and the cases that audits run."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pdips.errors import InputError
from pdips.mechanism import Mechanism
from pdips.privacy import Neighbours, exact
from pdips.schema import Schema
from pdips.table import Table, decode

Event = Callable[[NDArray[Any]], NDArray[np.bool_]]
Engine = Literal["exact", "counts", "density"]
Record = tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """Two neighbouring tables, and an event that is likelier under the first.

    Parameters
    ----------
    name : str
        What is special about it.
    first, second : Table
        The tables, of one schema.
    neighbours : {"replace-one", "add-remove"}
        The relation in which they are neighbours.
    event : callable, optional
        Takes raw outputs, one a row, and says which are in the event. Left out, the audit learns one on half the runs.
    event_name : str
        What to call the event.
    """

    name: str
    first: Table
    second: Table
    neighbours: Neighbours
    event: Event | None = None
    event_name: str = "learned on half the runs"

    def __post_init__(self) -> None:
        check_neighbours(self.first, self.second, self.neighbours)


@dataclass(frozen=True)
class Case:
    """A mechanism, a pair to try it on, and the engine to do it with."""

    mechanism: Mechanism
    pair: Pair
    engine: Engine = "counts"


def check_relation(mechanism: Mechanism, pair: Pair) -> None:
    """Check that a pair is neighbouring in the relation for which a mechanism claims its loss."""
    if pair.neighbours != mechanism.neighbours:
        raise InputError(
            f"the pair is neighbouring under {pair.neighbours}, but the mechanism claims its loss for "
            f"{mechanism.neighbours}"
        )


def check_neighbours(first: Table, second: Table, neighbours: Neighbours) -> None:
    """Check that two tables differ by what one person may contribute.

    Raises
    ------
    InputError
        If they aren't neighbours under the relation; the message says why.
    """
    if first.schema != second.schema:
        raise InputError("the tables of a pair must have one schema")
    no = f"the pair is not neighbouring under {neighbours}:"
    schema, cap = first.schema, first.schema.records.max_per_person
    a, b = (Counter(_rows(table, list(schema.columns), person=True)) for table in (first, second))
    gone, come = a - b, b - a
    if neighbours == "replace-one" and first.n_records != second.n_records:
        raise InputError(f"{no} the tables differ in their number of records")
    if neighbours == "add-remove" and gone and come:
        raise InputError(f"{no} records were exchanged, not only added or removed")
    if max(gone.total(), come.total()) > cap:
        raise InputError(f"{no} the tables differ by more records than one person may have ({cap})")
    if schema.records.person and max(len({row[-1] for row in changed}) for changed in (gone, come)) > 1:
        raise InputError(f"{no} records of more than one person differ")
    public = list(schema.public_columns)
    if public and Counter(_rows(first, public)) != Counter(_rows(second, public)):
        raise InputError(f"{no} the public columns differ")


def _rows(table: Table, names: Sequence[str], *, person: bool = False) -> Iterator[tuple[object, ...]]:
    """Yield records as tuples that compare as the schema does: codes of levels, numbers, None for missing."""
    parts: list[list[object]] = []
    for name in names:
        known = table.sort_key(name)
        parts.append([None if np.isnan(value) else float(value) for value in known])
    if person and table.schema.records.person:
        parts.append([f"{key}" for key in table.frame[table.schema.records.person]])
    return zip(*parts, strict=True)


def table_of(records: Sequence[Record], schema: Schema, persons: Sequence[int] | None = None) -> Table:
    """Return a table of records given by their codes; numbers lie at the lower end of their bin.

    Where the schema has a person key, ``persons`` says whose record each is; a person of its own unless given.
    """
    codes = np.array(records, dtype=np.int64).reshape(len(records), len(schema.columns))
    frame = decode(schema, dict(zip(schema.columns, codes.T, strict=True)), np.random.default_rng(0))
    for place, (name, column) in enumerate(schema.columns.items()):
        if not column.is_categorical:
            known = codes[:, place] < column.n_values
            frame.loc[known, name] = column.edges[codes[known, place]].astype(frame[name].to_numpy().dtype)
    if schema.records.person:
        frame[schema.records.person] = [str(key) for key in (range(len(records)) if persons is None else persons)]
    return Table(frame, schema)


def extremes(schema: Schema) -> tuple[Record, Record]:
    """Return the records with all first levels, and with all last ones in columns that aren't public."""
    columns = schema.columns.values()
    return tuple(0 for _ in columns), tuple(0 if column.public else column.n_levels - 1 for column in columns)


def worst_pairs(schema: Schema, neighbours: Neighbours) -> list[Pair]:
    """Return pairs on which mechanisms of counts lose most.

    An empty cell is entered, a value goes from one bound to the other, an outlier leaves, a person changes stratum; the
    person who differs has as many records as the schema allows, all alike.

    Parameters
    ----------
    schema : Schema
        Two levels or bins at least in every column that isn't public; no structural zeros between the extremes.
    neighbours : {"replace-one", "add-remove"}
        The relation.
    """
    first, last = extremes(schema)
    free = [place for place, column in enumerate(schema.columns.values()) if not column.public]
    beside = tuple(level - (place == free[-1]) for place, level in enumerate(last))
    stratum = tuple(last[place] if place == free[0] else 0 for place in range(len(first)))
    ends = {
        "empty cell: a record alone moves to a cell that nobody is in": (last, beside, 3),
        "boundary: a record moves from the lowest to the highest values": (first, last, 1),
        "outlier: one of a crowd moves far away": (first, last, 3),
        "stratum: a record changes its first column only": (first, stratum, 3),
    }
    return [_moved(name, schema, neighbours, [first] * n_crowd, ends) for name, (*ends, n_crowd) in ends.items()]


def _moved(name: str, schema: Schema, neighbours: Neighbours, crowd: list[Record], ends: Sequence[Record]) -> Pair:
    """Return the pair in which one person with all records allowed is at either end, or leaves."""
    cap = schema.records.max_per_person
    persons = [*range(len(crowd)), *[len(crowd)] * cap]
    before, after = ([*crowd, *[end] * cap] for end in ends)
    if neighbours == "add-remove":
        after, others = crowd, persons[: len(crowd)]
    else:
        others = persons
    return Pair(name, table_of(before, schema, persons), table_of(after, schema, others), neighbours)


def small_pairs(schema: Schema, neighbours: Neighbours, n_records: int) -> Iterator[Pair]:
    """Yield every pair of neighbouring tables, ``n_records`` in the larger, for exact audits of tiny schemas."""
    everything = product(*(range(column.n_levels) for column in schema.columns.values()))
    cells = [cell for cell in everything if not _is_impossible(cell, schema)]
    tables = {records: table_of(records, schema) for records in combinations_with_replacement(cells, n_records)}
    fewer = {
        records: table_of(records, schema) for records in combinations_with_replacement(cells, n_records - 1) if records
    }
    for records, table in tables.items():
        for i in range(n_records):
            rest = records[:i] + records[i + 1 :]
            if neighbours == "add-remove" and rest:
                yield Pair("search over small tables", table, fewer[rest], neighbours)
            elif neighbours == "replace-one":
                for cell in cells:
                    if cell != records[i]:
                        other = tables[tuple(sorted((*rest, cell)))]
                        yield Pair("search over small tables", table, other, neighbours)


def where_allowed(build: Callable[..., Any], **usual: Any) -> Any:
    """Return a mechanism with the settings that a case is made for, or None if the user asked for something else.

    Parameters
    ----------
    build : callable
        Takes settings, gives the mechanism; the user's settings win over those that it is given.
    usual
        What the case needs. Numbers are compared as numbers: 0.1, "0.1" and "1/10" are one epsilon.
    """
    try:
        made = build(**usual)
    except InputError:
        return None
    return made if all(_is_equal(getattr(made, name), value) for name, value in usual.items()) else None


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    try:
        return one == other or exact(one, "setting") == exact(other, "setting")
    except InputError:
        return False


def _is_impossible(cell: Record, schema: Schema) -> bool:
    levels = dict(zip(schema.columns, cell, strict=True))
    rules = map(schema.rule_codes, schema.impossible)
    return any(all(levels[name] in codes for name, codes in rule.items()) for rule in rules)
