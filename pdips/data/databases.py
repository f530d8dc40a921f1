"""Tables in DuckDB or PostgreSQL, through Ibis. A database is asked for nothing that could change or merge values.

It sends all records, or the distinct ones with their counts. Cells are checked and coded here, by the functions that
code files.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from pdips.errors import DataError, InputError

PATIENCE = 10  # Seconds that a server has to answer
_ADDRESS = re.compile(r"(\w[\w+]*://.*?|.*\.duckdb)(?:#([^#]*))?", re.DOTALL)  # people.duckdb#people
_PLAIN_OIDS = {16, 20, 21, 23, 25, 700, 701, 1043}
"""PostgreSQL's boolean, integers, floats, text, varchar: of char, citext or numeric, equal values may differ."""


def is_stored(table: Any) -> bool:
    """Whether a table is an expression of Ibis."""
    ibis = sys.modules.get("ibis")
    return ibis is not None and isinstance(table, ibis.Table)


@contextmanager
def snapshot(table: Any) -> Iterator[Any]:
    """Lend a table in a database, by its address or by Ibis, such that all queries see it in one state.

    Whatever isn't in a database is handed on as it is. Refused if there is no such table, the database doesn't answer,
    or a transaction is open that sees changes.
    """
    address = _ADDRESS.fullmatch(str(table)) if isinstance(table, (str, Path)) else None
    if address:
        table = _connected(*address.groups())
    if not is_stored(table):
        yield table
        return
    with _asking("the table of Ibis is in no database of DuckDB or PostgreSQL, or its transaction sees changes"):
        con = table.get_backend()
        is_begun = _begin(con)
    try:
        yield table
    finally:
        with suppress(Exception):  # a server that is gone by now doesn't end a release
            if is_begun:
                con.con.rollback()
            if address:
                con.disconnect()


def _connected(place: str, name: str | None) -> Any:
    """Open a table for reading. No message quotes an address: it may hold a password."""
    if not name:
        raise InputError("a database needs the name of a table: people.duckdb#people or postgresql://host/db#people")
    try:
        import duckdb
        import ibis
        import psycopg
    except ImportError:
        raise InputError("a table in a database needs the package ibis: install pdips[databases]") from None
    with _asking("the database can't be opened: no file, no server that answers, or no right to read it"):
        if place.endswith(".duckdb"):
            con = ibis.duckdb.from_connection(duckdb.connect(place, read_only=True))
        else:
            con = ibis.postgres.from_connection(psycopg.connect(place, autocommit=True, connect_timeout=PATIENCE))
    *schema, short = name.split(".")
    try:
        with _asking("the database has no table of this name"):
            return con.table(short, database=".".join(schema) or None)
    except InputError:
        con.disconnect()
        raise


def _begin(con: Any) -> bool:
    """Begin a transaction whose queries all see one state; False where there is such a transaction already."""
    if con.name == "postgres":
        is_free = con.con.info.transaction_status.name == "IDLE"
        con.con.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")  # in a transaction, an error if it has another level
    else:
        first, second = (con.con.execute("SELECT txid_current()").fetchall() for _ in range(2))
        is_free = first != second
        if is_free:
            con.con.begin()
    return bool(is_free)


def exceeds(table: Any, n_records: int) -> bool:
    """Whether a table has more records."""
    con = table.get_backend()
    with _asking("the table can't be counted"):
        query = f"SELECT COUNT(*) FROM (SELECT 1 FROM ({con.compile(table)}) AS t LIMIT {n_records + 1}) AS s"
        return bool(con.con.execute(query).fetchall()[0][0] > n_records)


def batches_of(table: Any, size: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch], Iterator[pa.RecordBatch] | None]:
    """Return columns, records, and distinct records with a last column of counts where the database can tell them.

    Databases may take texts of one collation for equal that differ: they are compared byte by byte.
    """
    con = table.get_backend()
    with _asking("the table can't be read"):
        table = table.cast({name: "string" for name, kind in table.schema().items() if kind.is_uuid()})
        query, schema = con.compile(table), table.schema().to_pyarrow()
        described = () if con.name == "duckdb" else con.con.execute(f"SELECT * FROM ({query}) AS t LIMIT 0").description
    records = _fetched(con, query, schema, size)
    if not {column.type_code for column in described} <= _PLAIN_OIDS:
        return schema, records, None
    cells, places = ['"' + name.replace('"', '""') + '"' for name in schema.names], range(1, len(schema) + 1)
    for place in (place for place, kind in enumerate(schema.types) if kind == pa.string()):
        cells[place] = f'CAST({cells[place]} AS VARCHAR) COLLATE "C"'
    grouped = f"SELECT {', '.join(cells)}, COUNT(*) FROM ({query}) AS t GROUP BY {', '.join(map(str, places))}"
    return schema, records, _fetched(con, grouped, schema.append(pa.field("", pa.int64())), size)


def _fetched(con: Any, query: str, schema: pa.Schema, size: int) -> Iterator[pa.RecordBatch]:
    """Yield what a query finds, as columns of these types; it runs when the first batch is asked for."""
    with _asking("the table can't be read: cast types other than text, numbers, true/false and dates", DataError):
        if con.name == "duckdb":
            for batch in con.con.sql(query).to_arrow_reader(size):
                columns = [column.cast(kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
            return
        with con.con.transaction(), con.con.cursor(name="pdips") as cursor:
            con.con.execute("SET LOCAL enable_sort = off")  # it would group by sorting, in ten times the time
            cursor.execute(query)
            while rows := cursor.fetchmany(size // 4):  # rows of Python's objects are large
                values = zip(*rows, strict=True)
                columns = [pa.array(cells, kind) for cells, kind in zip(values, schema.types, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


@contextmanager
def _asking(said: str, kind: type[InputError] = InputError) -> Iterator[None]:
    """Turn what goes wrong into one line: messages of databases quote values, and addresses with their passwords."""
    try:
        yield
    except InputError:
        raise
    except Exception:  # noqa: BLE001 - of Ibis, of Arrow, or of any driver
        raise kind(said) from None
