"""Neighbouring tables on which a mechanism that spends too much is caught, and the
cases that audits run.
"""

import csv
import math
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

# Takes raw outputs, one a row, and returns which of them are in the event
Event = Callable[[NDArray[Any]], Any]

Engine = Literal["exact", "counts", "path"]
CROWD = 20
Record = tuple[int, ...]
Written = Sequence[tuple[object, ...]]
"""Records as tuples: a cell for each column of the schema in its order, and the
person's key if there is one.
"""


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
        Takes raw outputs, one a row, and says which are in the event. Left out, the
        audit learns one on half the runs.
    event_name : str
        What to call the event.
    written : tuple of two lists of records, optional
        Of tables read from files: the records as they are written, cell by cell. These
        must be neighbours, whatever the reader made of them. Left out, the records as
        codes must be.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> first, second = (
    ...     Table(pd.DataFrame({"ill": ["no", last]}), schema) for last in ("no", "yes")
    ... )
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
    name: str,
    build: Callable[[list[T]], Table],
    rest: Sequence[T],
    one: T,
    other: T,
    neighbours: Neighbours,
) -> Pair:
    """Return the pair in which a record beside the rest is another one, or leaves."""
    after = [*rest, other] if neighbours == "replace-one" else [*rest]
    return Pair(name, build([*rest, one]), build(after), neighbours)


def with_event(pair: Pair, event: Event, name: str) -> Pair:
    """Return the pair with an event fixed in advance."""
    return replace(pair, event=event, event_name=name)


def toward_counts(pair: Pair, first: ArrayLike, second: ArrayLike) -> Pair:
    """Return the pair with the event that no noisy count is on the far side of the
    first table's true count.

    For Laplace noise its probabilities differ by the whole loss: each changed count
    adds |difference| / scale. Counts are in the order of the last numbers of each row
    of output.
    """
    a = np.array(first)
    b = np.array(second)

    def event(rows: NDArray[Any]) -> Any:
        counts = rows[:, rows.shape[1] - len(a) :]
        is_not_below = (counts >= a) | (a <= b)
        is_not_above = (counts <= a) | (a >= b)
        return (is_not_below & is_not_above).all(axis=1)

    return with_event(pair, event, "every changed count on the first table's side")


def check_relation(mechanism: Mechanism, pair: Pair) -> None:
    """Check that a pair is neighbouring in the relation for which a mechanism claims
    its loss.
    """
    if pair.neighbours != mechanism.neighbours:
        raise InputError(
            f"the pair is neighbouring under {pair.neighbours}, but the mechanism "
            f"claims its loss for "
            f"{mechanism.neighbours}"
        )


def check_neighbours(first: Table, second: Table, neighbours: Neighbours) -> None:
    """Check that two tables differ by what one person may contribute; the message says
    why not.
    """
    if first.schema != second.schema:
        raise InputError("the tables of a pair must have one schema")
    _check_records(list(_rows(first)), list(_rows(second)), first.schema, neighbours)


def _check_records(
    first: Written, second: Written, schema: Schema, neighbours: Neighbours
) -> None:
    no = f"the pair is not neighbouring under {neighbours}:"
    cap = schema.records.max_per_person
    gone = Counter(first) - Counter(second)
    come = Counter(second) - Counter(first)
    if neighbours == "replace-one" and len(first) != len(second):
        raise InputError(f"{no} the tables differ in their number of records")
    if neighbours == "add-remove" and gone and come:
        raise InputError(f"{no} records were exchanged, not only added or removed")
    if max(gone.total(), come.total()) > cap:
        raise InputError(
            f"{no} the tables differ by more records than one person may have ({cap})"
        )
    n_persons = max(_n_persons(gone), _n_persons(come))
    if schema.records.person and n_persons > 1:
        raise InputError(f"{no} records of more than one person differ")
    parts = _public_parts(first, schema)
    if schema.public_columns and parts != _public_parts(second, schema):
        raise InputError(f"{no} the public columns differ")


def _public_parts(records: Written, schema: Schema) -> Counter[tuple[object, ...]]:
    """Return how often records have which cells in the public columns."""
    columns = enumerate(schema.columns.values())
    public = [number for number, column in columns if column.public]
    return Counter(tuple(row[number] for number in public) for row in records)


def _n_persons(records: Counter[tuple[object, ...]]) -> int:
    """Return how many persons records are of; those without a key are of as many
    persons.
    """
    keys = [row[-1] for row in records.elements()]
    return len({*keys} - {None}) + keys.count(None)


def _rows(table: Table) -> Iterator[tuple[object, ...]]:
    """Yield records as tuples that compare as the schema does: codes of levels,
    numbers, None for missing.
    """
    columns: list[list[object]] = []
    for name in table.schema.columns:
        cells = table.sort_key(name).tolist()
        columns.append([None if math.isnan(cell) else cell for cell in cells])
    person = table.schema.records.person
    if person:
        positions, keys = person_keys(person, table.frame[person])
        columns.append([None if i < 0 else str(keys[i]) for i in positions])
    return zip(*columns, strict=True)


def pair_of_files(
    name: str,
    first: str | Path,
    second: str | Path,
    schema: Schema,
    neighbours: Neighbours,
) -> Pair:
    """Return the pair of two ``.csv`` or ``.parquet`` files, read as users read them.

    An audit of it sees what happens before records are codes. The files' records
    themselves must be neighbours, and the columns of Parquet files of the same types.

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
    >>> pair_of_files("one falls ill", "a.csv", "b.csv", schema, "replace-one").written[
    ...     1
    ... ]
    [('no',), ('yes',)]
    """
    one = Table.read(first, schema)
    other = Table.read(second, schema)
    written = (_written(Path(first), schema), _written(Path(second), schema))
    return Pair(name, one, other, neighbours, written=written)


def _written(file: Path, schema: Schema) -> Written:
    """Return the records of a file, text by text or cell by cell, by other means than
    the library reads tables.
    """
    person = schema.records.person
    if file.suffix == ".csv":
        columns = _columns_of_csv(file)
    else:
        columns = _columns_of_parquet(file, person)
    cells: list[Sequence[object]] = [columns[name] for name in schema.columns]
    if person:
        cells.append([person_key(key) if key else None for key in columns[person]])
    return list(zip(*cells, strict=True))


def _columns_of_csv(file: Path) -> dict[str, list[str]]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        # a blank line is no record
        header, *rows = (row for row in csv.reader(lines) if row)
    records = [dict(zip(header, row, strict=True)) for row in rows]
    return {name: [record[name] for record in records] for name in header}


def _columns_of_parquet(file: Path, person: str | None) -> dict[str, list[str]]:
    table = pq.ParquetFile(file).read()
    columns = dict[str, list[str]]()
    for name, column in zip(table.column_names, table.columns, strict=True):
        cells = column.to_pylist()
        if name == person:
            columns[name] = ["" if key is None else str(key) for key in cells]
        else:
            columns[name] = [f"{column.type}: {cell!r}" for cell in cells]
    return columns


def file_pairs(neighbours: Neighbours) -> list[Pair]:
    """Return pairs of files on which readers are caught that take the type of a column
    from all of its records.

    One person's cell is text among codes that look like numbers, or missing among whole
    numbers that doubles can't tell apart, or among true and false.
    """
    large = 2**53 + 1
    wanted: list[tuple[str, list[Any], pa.DataType, Any, Any]] = [
        ("csv", ["1", "01", "x"], pa.string(), "01", "x"),
        ("parquet", [str(large - 1), str(large)], pa.int64(), large, None),
        ("parquet", [False, True], pa.bool_(), True, None),
    ]
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for suffix, levels, kind, usual, other in wanted:
            column = {"levels": levels, "missing": other is None}
            schema = Schema.model_validate({"columns": {"x": column}})
            crowd = [usual] * CROWD
            first = Path(folder) / f"a.{suffix}"
            second = Path(folder) / f"b.{suffix}"
            _write_column(first, pa.array([*crowd, other], kind))
            after = [*crowd, usual] if neighbours == "replace-one" else crowd
            _write_column(second, pa.array(after, kind))
            name = f"{suffix} file of {kind}: one cell of a column moves the others"
            pairs.append(pair_of_files(name, first, second, schema, neighbours))
    return pairs


def _write_column(file: Path, cells: pa.Array) -> None:
    table = pa.table({"x": cells})
    if file.suffix == ".csv":
        pa_csv.write_csv(table, file)
    else:
        pq.write_table(table, file)


def table_of(
    records: Sequence[Record], schema: Schema, persons: Sequence[int] | None = None
) -> Table:
    """Return a table of records given by their codes; numbers lie at the lower end of
    their bin.

    Where the schema has a person key, ``persons`` says whose record each is; a person
    of its own unless given.
    """
    shape = (len(records), len(schema.columns))
    rows = np.array(records, dtype=np.int64).reshape(shape)
    codes = dict(zip(schema.columns, rows.T, strict=True))
    frame = decode(schema, codes, np.random.default_rng(0))
    for name, column in schema.columns.items():
        if not column.is_categorical:
            has_bin = codes[name] < column.n_values
            lower_ends = column.edges[codes[name][has_bin]]
            frame.loc[has_bin, name] = lower_ends.astype(frame[name].to_numpy().dtype)
    if schema.records.person:
        keys = range(len(records)) if persons is None else persons
        frame[schema.records.person] = [str(key) for key in keys]
    return Table(frame, schema)


def extremes(schema: Schema) -> tuple[Record, Record]:
    """Return the records with all first levels, and with all last ones in columns that
    aren't public.
    """
    columns = schema.columns.values()
    last = [0 if column.public else column.n_levels - 1 for column in columns]
    return (0,) * len(last), tuple(last)


def worst_pairs(schema: Schema, neighbours: Neighbours) -> list[Pair]:
    """Return pairs on which mechanisms of counts lose most.

    An empty cell is entered, a value goes from one bound to the other, an outlier
    leaves, a person changes stratum; the person who differs has as many records as the
    schema allows, all alike.

    Parameters
    ----------
    schema : Schema
        Two levels or bins at least in every column that isn't public; no structural
        zeros between the extremes.
    neighbours : {"replace-one", "add-remove"}
        The relation.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> len(worst_pairs(schema, "add-remove"))
    4
    """
    first, last = extremes(schema)
    columns = schema.columns.values()
    free = [k for k, column in enumerate(columns) if not column.public]
    beside = _replaced(last, free[-1], last[free[-1]] - 1)
    stratum = _replaced(first, free[0], last[free[0]])
    ends = {
        "empty cell: a record alone moves to a cell that nobody is in": (
            last,
            beside,
            3,
        ),
        "boundary: a record moves from the lowest to the highest values": (
            first,
            last,
            1,
        ),
        "outlier: one of a crowd moves far away": (first, last, 3),
        "stratum: a record changes its first column only": (first, stratum, 3),
    }
    cap = schema.records.max_per_person
    pairs = []
    # one person with all records allowed is at either end, or leaves
    for name, (start, end, n_crowd) in ends.items():
        crowd = [first] * n_crowd
        persons = [*range(n_crowd), *[n_crowd] * cap]
        n_left = n_crowd + cap * (neighbours == "replace-one")
        before = table_of([*crowd, *[start] * cap], schema, persons)
        crowd += [end] * cap
        after = table_of(crowd[:n_left], schema, persons[:n_left])
        pairs.append(Pair(name, before, after, neighbours))
    return pairs


def _replaced(record: Record, number: int, level: int) -> Record:
    """Return a record with another level in one of its columns."""
    return (*record[:number], level, *record[number + 1 :])


def small_pairs(
    schema: Schema, neighbours: Neighbours, n_records: int
) -> Iterator[Pair]:
    """Yield every pair of neighbouring tables, ``n_records`` in the larger, for exact
    audits of tiny schemas.

    Examples
    --------
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> len(list(small_pairs(schema, "replace-one", 2)))
    6
    """
    cells = _possible_cells(schema)
    n_others = n_records if neighbours == "replace-one" else n_records - 1
    tables = dict[tuple[Record, ...], Table]()
    for n in {n_records, n_others} - {0}:
        for records in combinations_with_replacement(cells, n):
            tables[records] = table_of(records, schema)
    for records in combinations_with_replacement(cells, n_records):
        for i, left in enumerate(records):
            rest = records[:i] + records[i + 1 :]
            others = [rest] if rest else []
            if neighbours == "replace-one":
                come = [cell for cell in cells if cell != left]
                others = [tuple(sorted((*rest, cell))) for cell in come]
            for other in others:
                yield Pair(
                    "search over small tables",
                    tables[records],
                    tables[other],
                    neighbours,
                )


def _possible_cells(schema: Schema) -> list[Record]:
    """Return all records that the schema's rules allow, in order."""
    names = list(schema.columns)
    rules = schema.zeros()
    levels = [range(column.n_levels) for column in schema.columns.values()]
    cells = []
    for cell in product(*levels):
        code_of = dict(zip(names, cell, strict=True))
        is_barred = any(
            all(code_of[name] in codes for name, codes in rule.items())
            for rule in rules
        )
        if not is_barred:
            cells.append(cell)
    return cells


def where_allowed(build: Callable[..., Any], **usual: Any) -> Any:
    """Return a mechanism with the settings that a case is made for, or None if the user
    asked for something else.

    The user's settings win over those that ``build`` is given. Numbers are compared as
    numbers: 0.1, "0.1" and "1/10" are one epsilon.
    """
    try:
        mechanism = build(**usual)
    except InputError:
        return None
    for name, value in usual.items():
        if not _is_equal(getattr(mechanism, name), value):
            return None
    return mechanism


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
