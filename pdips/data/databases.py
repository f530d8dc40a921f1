"""Tables in DuckDB or PostgreSQL, through Ibis. A database is asked for nothing that
could change or merge values.

It sends all records, or the distinct ones with their counts. Cells are checked and
coded here, by the functions that code files.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from pdips.errors import DataError, InputError
from pdips.extras import require

PATIENCE = 10  # Seconds that a server has to answer
# people.duckdb#people
_ADDRESS = re.compile(r"(\w[\w+]*://.*?|.*\.duckdb)(?:#([^#]*))?", re.DOTALL)
_PLAIN_OIDS = {16, 20, 21, 23, 25, 700, 701, 1043}
"""PostgreSQL's boolean, integers, floats, text, varchar: of char, citext or numeric,
equal values may differ.
"""

_FAILURES = {"OperationalError", "InterfaceError", "OSError", "MemoryError"}
"""What drivers raise where a connection, a server or a disk fails: the names that
PEP 249 gives them in any driver.
"""


def is_stored(table: Any) -> bool:
    """Whether a table is an expression of Ibis."""
    ibis = sys.modules.get("ibis")
    return ibis is not None and isinstance(table, ibis.Table)


def in_database(table: Any) -> bool:
    """Whether a table is in a database: an expression of Ibis, or an address."""
    return is_stored(table) or _address(table) is not None


@contextmanager
def snapshot(table: Any) -> Iterator[Any]:
    """Lend a table in a database, by its address or by Ibis, such that all queries see
    it in one state.

    Whatever isn't in a database is handed on as it is. Refused if there is no such
    table, the database doesn't answer, or a transaction is open that sees changes.
    """
    address = _address(table)
    if address:
        table = _connected(*address.groups())
    if not is_stored(table):
        yield table
        return
    with _asking(
        "the table of Ibis is in no database of DuckDB or PostgreSQL, or "
        "its transaction sees changes"
    ):
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


@contextmanager
def snapshots(first: Any, second: Any) -> Iterator[tuple[Any, Any]]:
    """Lend two tables as :func:`snapshot` does; both in one state if they are in one
    database.
    """
    ours = _address(first)
    theirs = _address(second)
    with snapshot(first) as lent:
        if ours and theirs and ours.group(1) == theirs.group(1):
            # of a connection of its own it would be the state of a later moment
            yield lent, _named(lent.get_backend(), theirs.group(2))
            return
        # of Ibis and on the same connection: in the transaction that is open
        with snapshot(second) as other:
            yield lent, other


def _address(table: Any) -> re.Match[str] | None:
    return _ADDRESS.fullmatch(str(table)) if isinstance(table, (str, Path)) else None


def _connected(address: str, name: str | None) -> Any:
    """Open a table for reading. No message quotes an address: it may hold a
    password.
    """
    _check_name(name)
    require("databases", "a table in a database needs")
    import duckdb
    import ibis
    import psycopg

    with _asking(
        "the database can't be opened: no file, no server that answers, or "
        "no right to read it"
    ):
        if address.endswith(".duckdb"):
            con = ibis.duckdb.from_connection(duckdb.connect(address, read_only=True))
        else:
            server = psycopg.connect(address, autocommit=True, connect_timeout=PATIENCE)
            con = ibis.postgres.from_connection(server)
    try:
        return _named(con, name)
    except InputError:
        con.disconnect()
        raise


def _named(con: Any, name: str | None) -> Any:
    *schema, short = _check_name(name).split(".")
    with _asking("the database has no table of this name"):
        return con.table(short, database=".".join(schema) or None)


def _check_name(name: str | None) -> str:
    if not name:
        raise InputError(
            "a database needs the name of a table: people.duckdb#people "
            "or postgresql://host/db#people"
        )
    return name


def _begin(con: Any) -> bool:
    """Begin a transaction whose queries all see one state; False where there is such a
    transaction already.
    """
    if con.name == "postgres":
        is_free = con.con.info.transaction_status.name == "IDLE"
        # in a transaction, an error if it has another level
        con.con.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    else:
        first = con.con.execute("SELECT txid_current()").fetchall()
        second = con.con.execute("SELECT txid_current()").fetchall()
        is_free = first != second
        if is_free:
            con.con.begin()
    return bool(is_free)


def exceeds(table: Any, n_records: int) -> bool:
    """Whether a table has more records."""
    con = table.get_backend()
    with _asking("the table can't be counted"):
        query = (
            f"SELECT COUNT(*) FROM (SELECT 1 FROM ({con.compile(table)}) AS t "
            f"LIMIT {n_records + 1}) AS s"
        )
        [(counted,)] = con.con.execute(query).fetchall()
        return bool(counted > n_records)


def batches_of(
    table: Any, size: int
) -> tuple[pa.Schema, Iterator[pa.RecordBatch], Iterator[pa.RecordBatch] | None]:
    """Return columns, records, and distinct records with a last column of counts where
    the database can tell them.

    Databases may take texts of one collation for equal that differ: they are compared
    byte by byte.
    """
    con = table.get_backend()
    with _asking("the table can't be read"):
        uuids = [name for name, kind in table.schema().items() if kind.is_uuid()]
        table = table.cast(dict.fromkeys(uuids, "string"))
        query = con.compile(table)
        schema = table.schema().to_pyarrow()
        described: Any = ()
        if con.name != "duckdb":
            empty = con.con.execute(f"SELECT * FROM ({query}) AS t LIMIT 0")
            described = empty.description
    records = _fetched(con, query, schema, size)
    if not {column.type_code for column in described} <= _PLAIN_OIDS:
        return schema, records, None
    cells = []
    for field in schema:
        cell = '"' + field.name.replace('"', '""') + '"'
        is_text = field.type == pa.string()
        cells.append(f'CAST({cell} AS VARCHAR) COLLATE "C"' if is_text else cell)
    numbers = [str(number) for number in range(1, len(schema) + 1)]
    grouped = (
        f"SELECT {', '.join(cells)}, COUNT(*) FROM ({query}) AS t GROUP BY "
        f"{', '.join(numbers)}"
    )
    with_counts = schema.append(pa.field("", pa.int64()))
    return schema, records, _fetched(con, grouped, with_counts, size)


def _fetched(
    con: Any, query: str, schema: pa.Schema, size: int
) -> Iterator[pa.RecordBatch]:
    """Yield what a query finds, as columns of these types; it runs when the first batch
    is asked for.
    """
    with _asking(
        "the table can't be read: cast types other than text, numbers, "
        "true/false and dates",
        DataError,
    ):
        if con.name == "duckdb":
            for batch in con.con.sql(query).to_arrow_reader(size):
                pairs = zip(batch.columns, schema.types, strict=True)
                columns = [column.cast(kind) for column, kind in pairs]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
            return
        with con.con.transaction(), con.con.cursor(name="pdips") as cursor:
            # it would group by sorting, in ten times the time
            con.con.execute("SET LOCAL enable_sort = off")
            cursor.execute(query)
            # rows of Python's objects are large
            while rows := cursor.fetchmany(size // 4):
                pairs = zip(zip(*rows, strict=True), schema.types, strict=True)
                columns = [pa.array(cells, kind) for cells, kind in pairs]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


@contextmanager
def _asking(said: str, kind: type[InputError] = InputError) -> Iterator[None]:
    """Turn what goes wrong into one line: messages of databases quote values, and
    addresses with their passwords.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - of Ibis, of Arrow, or of any driver
        names = {parent.__name__ for parent in type(error).__mro__}
        # no fault of the records, and not to be recorded as one
        if kind is not InputError and names & _FAILURES:
            raise InputError(
                "the table can't be read: the database, the connection to it or this "
                "machine's memory failed; try again"
            ) from None
        raise kind(said) from None
