"""Tables in DuckDB and PostgreSQL: codes, fingerprints, refusals and releases are those
of the records in a file.
"""

import dataclasses
import datetime
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from household_tables import schema_of, simulated
from margin_tables import of_pairs
from tables import refuses, schema_in
from test_large import records

from pdips import InputError, Ledger, Schema, Table, synthesize
from pdips.data import counted as counting
from pdips.data import databases
from pdips.data import readers as files
from pdips.data import table as table_module
from pdips.data.partitions import PartitionedTable
from pdips.errors import ChangedTableError, DataError
from pdips.evaluation.document import open_table
from pdips.groups.group_sums import GroupSums

duckdb, ibis, psycopg = (
    pytest.importorskip(name) for name in ("duckdb", "ibis", "psycopg")
)
# in Ibis 12.0
pytestmark = pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")
PROGRAMS = next(
    iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None
)

COUNTED = schema_in("databases_counted")
WHOLE = schema_in("databases_whole")
TYPES = {
    "name": ("text", pa.string()),
    "year": ("smallint", pa.int16()),
    "flag": ("boolean", pa.bool_()),
    "rate": ("double precision", pa.float64()),
    "kids": ("bigint", pa.int64()),
    "code": ("char(3)", pa.string()),
    "any": ("bpchar", pa.string()),
    "size": ("text", pa.string()),
    "pay": ("numeric(6,2)", pa.decimal128(6, 2)),
    "born": ("date", pa.date32()),
    "seen": ("timestamptz", pa.timestamp("us", "UTC")),
}
"""PostgreSQL's type of each column, and that in a Parquet file. The text of the first
is compared without case.
"""


def rows_of(names) -> list[tuple]:
    """Records with values that a database takes for equal, and the files' readers
    don't.
    """
    rng = np.random.default_rng(5)
    noon = datetime.datetime(2020, 3, 31, 23, 30, tzinfo=datetime.UTC)
    values = {
        "name": ["a", "A", "a ", "b", "", None],
        "year": [1994, 1995, None],
        "flag": [True, False, None],
        "rate": [0.0, -0.0, 0.5, float("nan"), None],
        "kids": [0, 3, 9],
        "code": ["x  ", "y  "],  # as char(3) is sent, and written to files by others
        "any": ["p", "p "],
        "size": ["s", "S"],
        "pay": [Decimal("1.50"), Decimal("99.99"), None],
        "born": [datetime.date(1950, 1, 1), datetime.date(1999, 5, 5), None],
        "seen": [noon, noon + datetime.timedelta(hours=1)],
    }
    columns = [
        [values[name][k] for k in rng.integers(0, len(values[name]), 80)]
        for name in names
    ]
    return list(zip(*columns, strict=True))


@pytest.fixture(scope="module")
def server():
    """The address of a PostgreSQL server that answers on a socket in a folder of its
    own.
    """
    if PROGRAMS is None:
        pytest.skip("no PostgreSQL is installed")
    user = ["runuser", "-u", "nobody", "--"] if os.getuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    if user:
        shutil.chown(folder, "nobody")
    data, quiet = (
        folder / "data",
        {"check": True, "stdout": subprocess.DEVNULL, "cwd": "/"},
    )
    initial = [
        "-A",
        "trust",
        "-U",
        "curator",
        "-E",
        "UTF8",
        "--locale=C.UTF-8",
        "--no-sync",
    ]
    subprocess.run([*user, PROGRAMS / "initdb", "-D", data, *initial], **quiet)
    control = [*user, PROGRAMS / "pg_ctl", "-D", data, "-w"]
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
    subprocess.run([*control, "-o", options, "-l", folder / "log", "start"], **quiet)
    address = f"postgresql://curator:hunter2@/postgres?host={folder}"
    with psycopg.connect(address, autocommit=True) as con:
        con.execute(
            "CREATE COLLATION bare (provider = icu, locale = "
            "'und-u-ks-level2', deterministic = false)"
        )
    yield address
    subprocess.run([*control, "-m", "immediate", "stop"], **quiet)
    shutil.rmtree(folder)


def filled(con, kind: str, names, rows) -> None:
    """Make the table ``people`` of some columns, text without case or blanks where the
    database has such a type.
    """
    collation = {"postgres": "COLLATE bare", "duckdb": "COLLATE NOCASE"}[kind]
    types = {name: TYPES[name][0] for name in names}
    if kind == "duckdb":
        types |= {name: "varchar" for name in ("code", "any") if name in names}
    types |= {
        name: f"{types[name]} {collation}" for name in ("name", "size") if name in names
    }
    con.execute("DROP TABLE IF EXISTS people")
    con.execute(
        f"CREATE TABLE people "
        f"({', '.join(f'"{name}" {types[name]}' for name in names)})"
    )
    mark = "%s" if kind == "postgres" else "?"
    if rows:
        con.cursor().executemany(
            f"INSERT INTO people VALUES ({', '.join([mark] * len(names))})", rows
        )


def stored(kind: str, names, folder: Path, request, rows=None) -> tuple[str, Path]:
    """The address of some records in a database, and a Parquet file of them."""
    rows = rows_of(names) if rows is None else rows
    types = {name: TYPES[name][1] for name in names}
    arrays = [
        pa.array([row[k] for row in rows], kind)
        for k, kind in enumerate(types.values())
    ]
    pq.write_table(pa.table(arrays, names=list(names)), folder / "people.parquet")
    if kind == "duckdb":
        with duckdb.connect(folder / "people.duckdb") as con:
            filled(con, kind, names, rows)
        return f"{folder}/people.duckdb#people", folder / "people.parquet"
    address = request.getfixturevalue("server")
    with psycopg.connect(address) as con:
        filled(con, kind, names, rows)
    return f"{address}#public.people", folder / "people.parquet"


KINDS = pytest.mark.parametrize("kind", ["duckdb", "postgres"])


@KINDS
@pytest.mark.parametrize("counted", [True, False])
def test_records_are_coded_as_those_of_a_file(
    kind, counted, tmp_path, request, monkeypatch
):
    monkeypatch.setattr(files, "BATCH_RECORDS", 28)
    address, file = stored(kind, COUNTED.columns, tmp_path, request)
    found, wanted = (
        Table.read(table, COUNTED, counted=counted) for table in (address, file)
    )
    assert (found.counts is not None) == counted
    pd.testing.assert_series_equal(records(found), records(wanted))
    assert found.fingerprint == wanted.fingerprint
    # the broken twin: what the collation of the column takes for equal is merged
    if counted:
        fetched = databases._fetched

        def merged(con, query, *more):
            return fetched(con, query.replace(' COLLATE "C"', ""), *more)

        monkeypatch.setattr(databases, "_fetched", merged)
        assert (
            Table.read(address, COUNTED, counted=True).fingerprint != wanted.fingerprint
        )


@KINDS
@pytest.mark.parametrize("ignore", [True, False])
def test_other_types_and_columns_besides_are_read_record_by_record(
    kind, ignore, tmp_path, request
):
    address, file = stored(
        kind, [*WHOLE.columns, *(["kids"] if ignore else [])], tmp_path, request
    )
    schema = WHOLE.model_copy(update={"ignore": ["kids"]}) if ignore else WHOLE
    found, wanted = (Table.read(table, schema) for table in (address, file))
    assert found.fingerprint == wanted.fingerprint
    pd.testing.assert_frame_equal(found.frame, wanted.frame)


def test_categories_and_odd_names_are_counted_too(tmp_path):
    with duckdb.connect() as con:
        con.execute("CREATE TYPE mood AS ENUM ('ok', 'sad')")
        cells = """if(i % 2 = 0, 'ok', 'sad')::mood AS "a ""%s", (i % 3)::utinyint AS m, uuid() AS id"""  # noqa: E501
        con.execute(f"CREATE TABLE people AS SELECT {cells} FROM range(50) numbers(i)")
        con.execute(f"COPY people TO '{tmp_path}/people.parquet'")
        people = ibis.duckdb.from_connection(con).table("people")
        schema = Schema(
            columns={'a "%s': {"levels": ["ok", "sad"]}, "m": {"levels": [0, 1, 2]}},
            ignore=["id"],
        )
        wanted = Table.read(tmp_path / "people.parquet", schema)
        assert (
            Table.read(people, schema, counted=True).fingerprint == wanted.fingerprint
        )
        pd.testing.assert_series_equal(
            records(Table.read(people.drop("id"), schema, counted=True)),
            records(wanted),
        )


def test_only_types_whose_equal_values_are_spelt_alike_are_grouped(
    server, tmp_path, request
):
    stored("postgres", WHOLE.columns, tmp_path, request)
    with psycopg.connect(server, autocommit=True) as con:
        people = ibis.postgres.from_connection(con).table("people")
        assert files.open_batches(people.select("size")).distinct is not None
        for name in ("code", "any", "pay"):
            assert files.open_batches(people.select(name)).distinct is None


@KINDS
def test_persons_and_other_columns_need_records_one_by_one(kind, tmp_path, request):
    address, file = stored(kind, COUNTED.columns, tmp_path, request)
    described = COUNTED.to_dict()
    del described["columns"]["year"]
    with databases.snapshot(address) as people:
        for more in (
            {"ignore": ["year"]},
            {"records": {"person": "year", "max_per_person": 80}},
        ):
            schema = Schema.model_validate(described | more)
            found = counting.count(
                dataclasses.replace(files.open_batches(people), distinct=iter(())),
                schema,
            )
            assert (
                found.fingerprint == Table.read(file, schema, counted=False).fingerprint
            )


@pytest.mark.slow
@KINDS
def test_a_release_is_that_of_the_file_and_a_password_is_nowhere(
    kind, tmp_path, request
):
    address, file = stored(kind, COUNTED.columns, tmp_path, request)
    schema, ledger = tmp_path / "s.toml", tmp_path / "l.sqlite"
    schema.write_text(COUNTED.to_toml())
    command = [sys.executable, "-m", "pdips", "synthesize", address, "--schema", schema]
    more = [
        "--epsilon",
        "1",
        "--seed",
        "3",
        "--ledger",
        ledger,
        "--quiet",
        "--out",
        tmp_path / "out",
    ]
    done = subprocess.run([*command, *more], check=True, capture_output=True, text=True)
    found = pd.read_parquet(tmp_path / "out/confidential/synthetic_1.parquet")
    wanted = synthesize(
        file, COUNTED, epsilon=1, n_sets=1, seed=3, ledger=ledger, progress=False
    )[0]
    pd.testing.assert_frame_equal(found, wanted.sets[0], check_dtype=False)
    # of one account: the fingerprint is the same
    assert Ledger(ledger).summary().spent_epsilon == 2
    written = [
        path.read_bytes()
        for path in (ledger, *(tmp_path / "out").rglob("*"))
        if path.is_file()
    ]
    assert not any(
        b"hunter2" in text for text in [*written, (done.stdout + done.stderr).encode()]
    )


@KINDS
def test_sums_by_group_are_those_of_the_file(kind, tmp_path, request):
    rng = np.random.default_rng(7)
    rows = [
        (int(year), int(kids), bool(flag))
        for year, kids, flag in zip(
            rng.integers(1990, 1999, 300),
            rng.integers(0, 10, 300),
            rng.integers(0, 2, 300),
            strict=True,
        )
    ]
    names = ["year", "kids", "flag"]
    address, file = stored(kind, names, tmp_path, request, rows)
    columns = {
        "year": {"lower": 1990, "upper": 1998, "integer": True},
        "kids": {"lower": 0, "upper": 9, "integer": True},
    }
    schema = Schema.model_validate({"columns": columns, "ignore": ["flag"]})
    mechanism = GroupSums(epsilon=1, outcome="kids", family="normal", n_sets=1)
    with databases.snapshot(address) as people:
        one, wanted = (
            mechanism.release(table, rng=np.random.default_rng(2))[0].tables["groups"]
            for table in (PartitionedTable(people, schema), Table.read(file, schema))
        )
    pd.testing.assert_frame_equal(one, wanted)


@pytest.mark.slow
@KINDS
def test_a_large_table_that_is_not_counted_is_read_in_batches_of_one_state(
    kind, tmp_path, request, monkeypatch
):
    monkeypatch.setattr(files, "BATCH_RECORDS", 28)
    address, file = stored(kind, WHOLE.columns, tmp_path, request)
    wanted = synthesize(
        file,
        WHOLE,
        epsilon=1,
        mechanism="margins",
        n_sets=1,
        seed=3,
        progress=False,
    )[0]
    monkeypatch.setattr(files, "LARGE_RECORDS", 10)
    monkeypatch.setattr(files, "read_frame", None)
    found = synthesize(
        address, WHOLE, epsilon=1, mechanism="margins", seed=3, progress=False
    )[0]
    pd.testing.assert_frame_equal(found.tables["margins"], wanted.tables["margins"])
    design = of_pairs(epsilon=1).plan(COUNTED).design
    stored(kind, COUNTED.columns, tmp_path, request)
    for held in (True, False):  # the broken twin has no snapshot
        with ExitStack() as stack:
            people = stack.enter_context(databases.snapshot(address))
            if not held:
                people.get_backend().con.rollback()
            table = PartitionedTable(people, COUNTED)
            before = table.total(design.count)
            if kind == "duckdb":
                break  # its file is locked while it is read
            with psycopg.connect(address.partition("#")[0]) as other:
                other.execute("INSERT INTO people VALUES ('a', 1994, true, 0, 0)")
            if held:
                assert (table.total(design.count) == before).all()
            else:
                refuses("changed", table.total, design.count, error=ChangedTableError)


@KINDS
def test_a_refusal_is_that_of_the_file(kind, tmp_path, request):
    names = [*COUNTED.columns]
    address, file = stored(
        kind, names, tmp_path, request, rows=[*rows_of(names), ("B", 7, None, 0.25, 99)]
    )
    for counted in (True, False):
        said = {
            refuses("", Table.read, table, COUNTED, counted=counted, error=DataError)
            for table in (address, file)
        }
        assert len(said) == 1
    stored(kind, names, tmp_path, request, rows=[])
    refuses("no records", Table.read, address, COUNTED, counted=True, error=DataError)


@KINDS
def test_what_is_not_there_is_refused_before_a_spend(kind, tmp_path, request, ledger):
    address, _ = stored(kind, COUNTED.columns, tmp_path, request)
    place = address.partition("#")[0]
    wrong = {
        place: "needs the name of a table",
        f"{place}#nobody": "no table of this name",
        f"{tmp_path}/none.duckdb#people": "can't be opened",
        "postgresql://curator:hunter2@localhost:1/none#people": "can't be opened",
        "mysql://curator:hunter2@localhost/none#people": "can't be opened",
    }
    for table, said in wrong.items():
        for read in (
            Table.read,
            lambda table, schema: synthesize(table, schema, epsilon=1, ledger=ledger),
        ):
            told = refuses(said, read, table, COUNTED)
            assert "hunter2" not in told
    assert not ledger.summary().spent_epsilon
    told = refuses(
        "not the table that",
        open_table,
        address,
        SimpleNamespace(schema=WHOLE, folder="out"),
    )
    assert "hunter2" not in told


def test_types_that_cannot_be_read_and_open_transactions_are_refused(server):
    with psycopg.connect(server) as con:
        con.execute(
            "CREATE TABLE odd AS SELECT inet '10.0.0.1' AS year, "
            "1.0000000000001 AS kids"
        )
        people = ibis.postgres.from_connection(con).table("odd")
        refuses("its transaction sees changes", Table.read, people, COUNTED)
        con.rollback()
    with psycopg.connect(server, autocommit=True) as con:
        con.execute(
            "CREATE TABLE odd AS SELECT inet '10.0.0.1' AS year, "
            "1.0000000000001 AS kids"
        )
        people = ibis.postgres.from_connection(con).table("odd")
        # an address, and more decimals than Ibis gives a numeric without them
        for name in ("year", "kids"):
            refuses(
                "cast types other",
                Table.read,
                people.select(name),
                COUNTED.only([name]),
                error=DataError,
            )
            assert con.info.transaction_status.name == "IDLE"
    with duckdb.connect() as con:
        con.execute("CREATE TABLE people AS SELECT 1994 AS year")
        people = ibis.duckdb.from_connection(con).table("people")
        con.begin()
        assert Table.read(people, COUNTED.only(["year"])).n_records == 1
        con.rollback()  # the transaction of the caller is still there
    refuses(
        "in no database",
        Table.read,
        ibis.table({"year": "int64"}, name="people"),
        COUNTED.only(["year"]),
    )


def store_frames(place: str, frames: dict[str, pd.DataFrame]) -> None:
    """Write frames of text and numbers to a PostgreSQL database."""
    kinds = {"i": "bigint", "f": "double precision"}
    with psycopg.connect(place) as con:
        for name, frame in frames.items():
            types = [
                f"{column} {kinds.get(values.dtype.kind, 'text')}"
                for column, values in frame.items()
            ]
            con.execute(f"DROP TABLE IF EXISTS {name}")
            con.execute(f"CREATE TABLE {name} ({', '.join(types)})")
            cells = frame.astype(object).where(frame.notna(), None).values.tolist()
            marks = ", ".join(["%s"] * len(types))
            con.cursor().executemany(f"INSERT INTO {name} VALUES ({marks})", cells)


@pytest.mark.parametrize("by", ["address", "Ibis"])
def test_households_and_members_in_one_database_are_of_one_state(
    server, monkeypatch, by
):
    homes, people = simulated(30, seed=2)
    store_frames(server, {"homes": homes, "people": people})
    read = table_module.read_frame

    def then_all_members_leave(lent, **named):
        found = read(lent, **named)
        if "region" in found:
            with psycopg.connect(server) as other:
                other.execute("DELETE FROM people")
        return found

    monkeypatch.setattr(table_module, "read_frame", then_all_members_leave)
    wanted = Table.of_households(homes, people, schema_of())
    with psycopg.connect(server, autocommit=True) as con:
        lent = [f"{server}#homes", f"{server}#people"]
        if by == "Ibis":
            backend = ibis.postgres.from_connection(con)
            lent = [backend.table("homes"), backend.table("people")]
        found = Table.of_households(*lent, schema_of())
        for name, codes in wanted.codes.items():
            np.testing.assert_array_equal(found.codes[name], codes)
        assert found.codes["members"].any()
        # the next state
        again = Table.of_households(*lent, schema_of())
        assert not again.codes["members"].any()


def test_households_and_members_are_read_from_one_file(tmp_path):
    homes, people = simulated(30, seed=2)
    place = f"{tmp_path}/homes.duckdb"
    with duckdb.connect(place) as con:
        for name, frame in (("homes", homes), ("people", people)):
            con.register("given", frame)
            con.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
    found = Table.of_households(f"{place}#homes", f"{place}#people", schema_of())
    wanted = Table.of_households(homes, people, schema_of())
    for name, codes in wanted.codes.items():
        np.testing.assert_array_equal(found.codes[name], codes)
    refuses(
        "no table of this name",
        Table.of_households,
        f"{place}#homes",
        f"{place}#nobody",
        schema_of(),
    )


@pytest.mark.parametrize("failure", ["OperationalError", "InterfaceError"])
def test_a_connection_that_breaks_is_no_fault_of_the_records(
    tmp_path, request, monkeypatch, failure
):
    address, _ = stored("postgres", COUNTED.columns, tmp_path, request)

    def broken(*_, **__):
        raise getattr(psycopg, failure)("SECRET")

    with databases.snapshot(address) as people:
        opened = files.open_batches(people)
        monkeypatch.setattr(psycopg.Connection, "cursor", broken)
        with pytest.raises(InputError, match="connection to it") as caught:
            list(opened.batches)
    assert not isinstance(caught.value, DataError)
    assert "SECRET" not in str(caught.value)


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    said = r'needs duckdb: pip install "pdips\[databases\]"$'
    refuses(said, Table.read, "people.duckdb#people", COUNTED)


def test_a_server_that_is_gone_after_the_table_is_read_ends_no_release(
    server, tmp_path, request
):
    address, _ = stored("postgres", COUNTED.columns, tmp_path, request)
    with (
        databases.snapshot(address) as people,
        psycopg.connect(server, autocommit=True) as other,
    ):
        table = Table.read(people, COUNTED, counted=True)
        others = (
            "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
            "backend_type = 'client backend'"
        )
        assert other.execute(
            f"SELECT pg_terminate_backend(pid) {others}"
        ).fetchall() == [(True,)]
        refuses("can't be read", PartitionedTable, people, COUNTED)
    assert table.n_records == 80


@KINDS
def test_a_count_that_is_given_up_leaves_no_query_behind(
    kind, tmp_path, request, monkeypatch
):
    monkeypatch.setattr(files, "BATCH_RECORDS", 28)
    monkeypatch.setattr(counting, "LARGEST_NUMBER", 2)
    address, file = stored(kind, ["kids"], tmp_path, request)
    schema = Schema.from_toml("[columns.kids]\nlower = 0\nupper = 9\npublic = true")
    found = Table.read(address, schema, counted=True)
    assert found.counts is None
    assert found.fingerprint == Table.read(file, schema).fingerprint
