"""Neighbouring tables on which a mechanism that spends too much is caught, and the cases that audits run."""

import csv
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from pdips.data.coding import person_key, person_keys
from pdips.data.schema import Schema
from pdips.data.table import Table, decode
from pdips.errors import InputError
from pdips.mechanism import Mechanism
from pdips.privacy.loss import Neighbours, exact

Event = Callable[[NDArray[Any]], Any]  # Takes raw outputs, one a row, and returns which of them are in the event

Engine = Literal["exact", "counts"]
CROWD = 20
Record = tuple[int, ...]
Written = Sequence[tuple[object, ...]]
"""Records as tuples: a cell for each column of the schema in its order, and the person's key if there is one."""


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
    written : tuple of two lists of records, optional
        Of tables read from files: the records as they are written, cell by cell. These must be neighbours, whatever the
        reader made of them. Left out, the records as codes must be.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> first, second = (Table(pd.DataFrame({"ill": ["no", last]}), schema) for last in ("no", "yes"))
    >>> Pair("one falls ill", first, second, "replace-one").event_name
    'learned on half the runs'
    """

    name: str
    first: Table
    second: Table
    neighbours: Neighbours
    event: Event | None = None
    event_name: str = "learned on half the runs"
    written: tuple[Written, Written] | None = None

    def __post_init__(self) -> None:
        if self.written is None:
            check_neighbours(self.first, self.second, self.neighbours)
        else:
            _check_records(*self.written, self.first.schema, self.neighbours)


@dataclass(frozen=True)
class Case:
    """A mechanism, a pair to try it on, and the engine to do it with.

    Examples
    --------
    >>> from pdips.audit.neighbour_pairs import worst_pairs
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> pair = worst_pairs(schema, "replace-one")[0]
    >>> Case(LaplaceSanitizer(epsilon=1), pair).engine
    'counts'
    """

    mechanism: Mechanism
    pair: Pair
    engine: Engine = "counts"


def either[T](
    name: str, made: Callable[[list[T]], Table], rest: Sequence[T], one: T, other: T, neighbours: Neighbours
) -> Pair:
    """Return the pair in which a record beside the rest is another one, or leaves."""
    after = [*rest, other] if neighbours == "replace-one" else [*rest]
    return Pair(name, made([*rest, one]), made(after), neighbours)


def with_event(pair: Pair, event: Event, name: str) -> Pair:
    """Return the pair with an event fixed in advance."""
    return replace(pair, event=event, event_name=name)


def toward_counts(pair: Pair, first: ArrayLike, second: ArrayLike) -> Pair:
    """Return the pair with the event that no noisy count is on the far side of the first table's true count.

    For Laplace noise its probabilities differ by the whole loss: each changed count adds |difference| / scale. Counts
    are in the order of the last numbers of each row of output.
    """
    a, b = np.array(first), np.array(second)

    def event(rows: NDArray[Any]) -> Any:
        counts = rows[:, rows.shape[1] - len(a) :]
        return (((counts >= a) | (a <= b)) & ((counts <= a) | (a >= b))).all(axis=1)

    return with_event(pair, event, "every changed count on the first table's side")


def check_relation(mechanism: Mechanism, pair: Pair) -> None:
    """Check that a pair is neighbouring in the relation for which a mechanism claims its loss."""
    if pair.neighbours != mechanism.neighbours:
        raise InputError(
            f"the pair is neighbouring under {pair.neighbours}, but the mechanism claims its loss for "
            f"{mechanism.neighbours}"
        )


def check_neighbours(first: Table, second: Table, neighbours: Neighbours) -> None:
    """Check that two tables differ by what one person may contribute; the message says why not."""
    if first.schema != second.schema:
        raise InputError("the tables of a pair must have one schema")
    _check_records(list(_rows(first)), list(_rows(second)), first.schema, neighbours)


def _check_records(first: Written, second: Written, schema: Schema, neighbours: Neighbours) -> None:
    no, cap = f"the pair is not neighbouring under {neighbours}:", schema.records.max_per_person
    gone, come = Counter(first) - Counter(second), Counter(second) - Counter(first)
    if neighbours == "replace-one" and len(first) != len(second):
        raise InputError(f"{no} the tables differ in their number of records")
    if neighbours == "add-remove" and gone and come:
        raise InputError(f"{no} records were exchanged, not only added or removed")
    if max(gone.total(), come.total()) > cap:
        raise InputError(f"{no} the tables differ by more records than one person may have ({cap})")
    if schema.records.person and max(map(_n_persons, (gone, come))) > 1:
        raise InputError(f"{no} records of more than one person differ")
    public = [place for place, column in enumerate(schema.columns.values()) if column.public]
    ours, theirs = (Counter(tuple(row[place] for place in public) for row in rows) for rows in (first, second))
    if public and ours != theirs:
        raise InputError(f"{no} the public columns differ")


def _n_persons(records: Counter[tuple[object, ...]]) -> int:
    """Return how many persons records are of; those without a key are of as many persons."""
    return len({row[-1] for row in records if row[-1] is not None}) + sum(row[-1] is None for row in records.elements())


def _rows(table: Table) -> Iterator[tuple[object, ...]]:
    """Yield records as tuples that compare as the schema does: codes of levels, numbers, None for missing."""
    parts: list[list[object]] = [
        [None if np.isnan(value) else float(value) for value in table.sort_key(name)] for name in table.schema.columns
    ]
    if table.schema.records.person:
        place, keys = person_keys(table.schema.records.person, table.frame[table.schema.records.person])
        parts.append([None if i < 0 else str(keys[i]) for i in place])
    return zip(*parts, strict=True)


def pair_of_files(name: str, first: str | Path, second: str | Path, schema: Schema, neighbours: Neighbours) -> Pair:
    """Return the pair of two ``.csv`` or ``.parquet`` files, read as users read them.

    An audit of it sees what happens before records are codes. The files' records themselves must be neighbours, and the
    columns of Parquet files of the same types.

    Parameters
    ----------
    name : str
        What is special about it.
    first, second : path
        The files.
    schema : Schema
        Of both.
    neighbours : {"replace-one", "add-remove"}
        The relation in which they are neighbours.

    Raises
    ------
    InputError
        If the files aren't neighbours, or a table is refused.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> for name, last in (("a.csv", "no"), ("b.csv", "yes")):
    ...     pd.DataFrame({"ill": ["no", last]}).to_csv(name, index=False)
    >>> pair_of_files("one falls ill", "a.csv", "b.csv", schema, "replace-one").written[1]
    [('no',), ('yes',)]
    """
    one, other = (Table.read(path, schema) for path in (first, second))
    return Pair(name, one, other, neighbours, written=(_written(Path(first), schema), _written(Path(second), schema)))


def _written(file: Path, schema: Schema) -> Written:
    """Return the records of a file, text by text or cell by cell, by other means than the library reads tables."""
    person = schema.records.person
    names = [*schema.columns, *([person] if person else [])]
    if file.suffix == ".csv":
        with file.open(encoding="utf-8-sig", newline="") as lines:
            header, *rows = (row for row in csv.reader(lines) if row)  # a blank line is no record
        found = [[dict(zip(header, row, strict=True))[name] for name in names] for row in rows]
    else:
        table = pq.ParquetFile(file).read()
        columns = ([f"{table[name].type}: {cell!r}" for cell in table[name].to_pylist()] for name in names)
        found = [list(row) for row in zip(*columns, strict=True)]
        if person:
            for row, key in zip(found, table[person].to_pylist(), strict=True):
                row[-1] = "" if key is None else str(key)
    return [(*row[:-1], person_key(row[-1]) if row[-1] else None) if person else tuple(row) for row in found]


def file_pairs(neighbours: Neighbours) -> list[Pair]:
    """Return pairs of files on which readers are caught that take the type of a column from all of its records.

    One person's cell is text among codes that look like numbers, or missing among whole numbers that doubles can't tell
    apart, or among true and false.
    """
    large, bad = 2**53 + 1, "one cell of a column moves the others"
    wanted: list[tuple[str, list[Any], pa.DataType, list[Any]]] = [
        ("csv", ["1", "01", "x"], pa.string(), ["01", "x"]),
        ("parquet", [str(large - 1), str(large)], pa.int64(), [large, None]),
        ("parquet", [False, True], pa.bool_(), [True, None]),
    ]
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for suffix, levels, kind, (usual, other) in wanted:
            schema = Schema.model_validate({"columns": {"x": {"levels": levels, "missing": None in (usual, other)}}})
            after = [usual] * (CROWD + (neighbours == "replace-one"))
            first, second = (Path(folder) / f"{place}.{suffix}" for place in "ab")
            for file, cells in ((first, [*[usual] * CROWD, other]), (second, after)):
                table = pa.table({"x": pa.array(cells, kind)})
                pa_csv.write_csv(table, file) if suffix == "csv" else pq.write_table(table, file)
            pairs.append(pair_of_files(f"{suffix} file of {kind}: {bad}", first, second, schema, neighbours))
    return pairs


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

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> len(worst_pairs(schema, "add-remove"))
    4
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
    cap, pairs = schema.records.max_per_person, []
    for name, (start, end, n_crowd) in ends.items():  # one person with all records allowed is at either end, or leaves
        crowd, persons = [first] * n_crowd, [*range(n_crowd), *[n_crowd] * cap]
        n_left = n_crowd + cap * (neighbours == "replace-one")
        before, after = table_of([*crowd, *[start] * cap], schema, persons), [*crowd, *[end] * cap][:n_left]
        pairs.append(Pair(name, before, table_of(after, schema, persons[:n_left]), neighbours))
    return pairs


def small_pairs(schema: Schema, neighbours: Neighbours, n_records: int) -> Iterator[Pair]:
    """Yield every pair of neighbouring tables, ``n_records`` in the larger, for exact audits of tiny schemas.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> len(list(small_pairs(schema, "replace-one", 2)))
    6
    """
    names, rules = list(schema.columns), schema.zeros()
    cells = [
        cell
        for cell in product(*(range(column.n_levels) for column in schema.columns.values()))
        if not any(all(cell[names.index(name)] in codes for name, codes in rule.items()) for rule in rules)
    ]
    tables = {records: table_of(records, schema) for records in combinations_with_replacement(cells, n_records)}
    fewer = {
        records: table_of(records, schema) for records in combinations_with_replacement(cells, n_records - 1) if records
    }
    for records, table in tables.items():
        for i in range(n_records):
            rest = records[:i] + records[i + 1 :]
            others = [fewer[rest]] if neighbours == "add-remove" and rest else []
            if neighbours == "replace-one":
                others = [tables[tuple(sorted((*rest, cell)))] for cell in cells if cell != records[i]]
            yield from (Pair("search over small tables", table, other, neighbours) for other in others)


def where_allowed(build: Callable[..., Any], **usual: Any) -> Any:
    """Return a mechanism with the settings that a case is made for, or None if the user asked for something else.

    The user's settings win over those that ``build`` is given. Numbers are compared as numbers: 0.1, "0.1" and "1/10"
    are one epsilon.
    """
    try:
        made = build(**usual)
    except InputError:
        return None
    return made if all(_is_equal(getattr(made, name), value) for name, value in usual.items()) else None


def sized(build: Callable[..., Any], n_records: int, **usual: Any) -> Any:
    """Build a mechanism, with a public number of records where it can't do without."""
    try:
        return build(**usual)
    except InputError:
        return build(**{"n_records": n_records, **usual})


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    try:
        return one == other or exact(one, "setting") == exact(other, "setting")
    except InputError:
        return False
