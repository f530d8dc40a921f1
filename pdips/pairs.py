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
from pdips.privacy import Neighbours
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


def check_neighbours(first: Table, second: Table, neighbours: Neighbours) -> None:
    """Check that two tables differ by what one person may contribute.

    Raises
    ------
    InputError
        If they aren't neighbours under the relation; the message says why.
    """
    if first.schema != second.schema:
        raise InputError("the tables of a pair must have one schema")
    a, b = (_record_counts(table) for table in (first, second))
    gone, come, cap = (a - b).total(), (b - a).total(), first.schema.records.max_per_person
    if neighbours == "replace-one" and first.n_records != second.n_records:
        raise InputError("the pair is not neighbouring under replace-one: the tables differ in their number of records")
    if neighbours == "add-remove" and gone and come:
        raise InputError(
            "the pair is not neighbouring under add-remove: records were exchanged, not only added or removed"
        )
    if max(gone, come) > cap:
        raise InputError(
            f"the pair is not neighbouring under {neighbours}: the tables differ by more records than one person may "
            f"have ({cap})"
        )
    for name in first.schema.public_columns:
        if sorted(first.codes[name]) != sorted(second.codes[name]):
            raise InputError(f"the pair is not neighbouring: public column {name!r} differs")


def _record_counts(table: Table) -> Counter[tuple[object, ...]]:
    columns = [*table.schema.columns]
    return Counter(table.frame[columns].astype(object).itertuples(index=False, name=None))


def table_of(records: Sequence[Record], schema: Schema) -> Table:
    """Return a table of records given by their codes; numbers lie at the lower end of their bin."""
    codes = np.array(records, dtype=np.int64).reshape(len(records), len(schema.columns))
    frame = decode(schema, dict(zip(schema.columns, codes.T, strict=True)), np.random.default_rng(0))
    for place, (name, column) in enumerate(schema.columns.items()):
        if not column.is_categorical:
            known = codes[:, place] < column.n_values
            frame.loc[known, name] = column.edges[codes[known, place]].astype(frame[name].to_numpy().dtype)
    return Table(frame, schema)


def extremes(schema: Schema) -> tuple[Record, Record]:
    """Return the records with all first levels, and with all last ones."""
    sizes = [column.n_levels for column in schema.columns.values()]
    return tuple(0 for _ in sizes), tuple(size - 1 for size in sizes)


def worst_pairs(schema: Schema, neighbours: Neighbours) -> list[Pair]:
    """Return pairs on which mechanisms of counts lose most.

    An empty cell is entered, a value goes from one bound to the other, an outlier leaves, a record changes stratum.

    Parameters
    ----------
    schema : Schema
        Two levels or bins at least in every column; no structural zeros between the first and last levels.
    neighbours : {"replace-one", "add-remove"}
        The relation.
    """
    first, last = extremes(schema)
    beside, stratum = (*last[:-1], last[-1] - 1), (last[0], *first[1:])
    crowd = [first] * 3
    ends = {
        "empty cell: a record alone moves to a cell that nobody is in": (last, beside),
        "boundary: a record moves from the lowest to the highest values": (first, last),
        "outlier: one of a crowd moves far away": (first, last),
        "stratum: a record changes its first column only": (first, stratum),
    }
    found = []
    for name, (before, after) in ends.items():
        rest = crowd[:1] if name.startswith("boundary") else crowd
        others = [*rest, after] if neighbours == "replace-one" else rest
        found.append(Pair(name, table_of([*rest, before], schema), table_of(others, schema), neighbours))
    return found


def small_pairs(schema: Schema, neighbours: Neighbours, n_records: int) -> Iterator[Pair]:
    """Yield every pair of neighbouring tables, ``n_records`` in the larger, for exact audits of tiny schemas."""
    cells = list(product(*(range(column.n_levels) for column in schema.columns.values())))
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
