"""Counting all pairs of a table in many Parquet files: ``python -m
benchmarks.partitions --rows 10000000``.

With ``--database people.duckdb`` or ``postgresql://host/db`` the records are copied to
a new table there, and counted.
"""

import argparse
import dataclasses
import resource
import tempfile
import time
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from pdips import Margins, Schema
from pdips.data.counted import count
from pdips.data.databases import snapshot
from pdips.data.partitions import PartitionedTable
from pdips.data.readers import BATCH_RECORDS, open_batches

LEVELS = list("abcdefghij")


def write(folder: Path, rows: int, columns: int, files: int) -> None:
    """Write files of records that share batches of random levels, so that writing takes
    no time.
    """
    rng = np.random.default_rng(0)
    batch = pa.table(
        {
            f"c{k}": pa.DictionaryArray.from_arrays(
                rng.integers(0, 10, BATCH_RECORDS).astype(np.int32), LEVELS
            )
            for k in range(columns)
        }
    )
    each = rows // files
    for number in range(files):
        with pq.ParquetWriter(
            folder / f"{number:04}.parquet", batch.schema, store_schema=False
        ) as writer:
            for start in range(0, each, BATCH_RECORDS):
                writer.write_table(batch.slice(0, min(BATCH_RECORDS, each - start)))


def stored(folder: Path, database: str) -> str:
    """Copy the files of a folder to a new table, and return its address."""
    if database.endswith(".duckdb"):
        import duckdb

        with duckdb.connect(database) as con:
            con.execute(f"CREATE TABLE records AS SELECT * FROM '{folder}/*.parquet'")
        return f"{database}#records"
    import psycopg

    files = [pq.ParquetFile(file) for file in sorted(folder.glob("*.parquet"))]
    columns = ", ".join(f"{name} text" for name in files[0].schema_arrow.names)
    with psycopg.connect(database) as con, con.cursor() as cursor:
        cursor.execute(f"CREATE TABLE records ({columns})")
        with cursor.copy("COPY records FROM STDIN (FORMAT csv)") as copy:
            for batch in (batch for file in files for batch in file.iter_batches()):
                text = pa.BufferOutputStream()
                pa_csv.write_csv(batch, text, pa_csv.WriteOptions(include_header=False))
                copy.write(text.getvalue().to_pybytes())
    return f"{database}#records"


def compare_group_bys(lent: Any, schema: Schema) -> None:
    """Measure columns counted by one query and record by record, and a query for each
    of some pairs.
    """
    for names in ([*schema.columns][:4], [*schema.columns][:6]):
        opened, start = open_batches(lent[names]), time.perf_counter()
        found, middle = count(opened, schema.only(names)), time.perf_counter()
        count(dataclasses.replace(opened, distinct=None), schema.only(names))
        seconds = (
            f"in {middle - start:.1f} s by a group-by, in "
            f"{time.perf_counter() - middle:.1f} s record by record"
        )
        print(f"{len(names)} columns, {len(found.counts):,} cells: {seconds}")
    start = time.perf_counter()
    for pair in combinations([*schema.columns][:4], 2):
        count(open_batches(lent[[*pair]]), schema.only(pair))
    print(f"group-by of a pair: {(time.perf_counter() - start) / 6:.2f} s")


def main() -> None:
    """Measure the first pass over the files, and a later one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument(
        "--scheduler",
        default="local",
        help="an address, 'local', or 'none' for this process alone",
    )
    parser.add_argument(
        "--database", help="a .duckdb file or the address of a PostgreSQL database"
    )
    given = parser.parse_args()
    schema = Schema.model_validate(
        {"columns": {f"c{k}": {"levels": LEVELS} for k in range(given.columns)}}
    )
    design = Margins(measure="pairs", epsilon=1, delta="1e-6").plan(schema).design
    scheduler = None if given.scheduler == "none" else given.scheduler
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), given.rows, given.columns, given.files)
        source = stored(Path(folder), given.database) if given.database else folder
        writing, start = time.process_time(), time.perf_counter()
        with snapshot(source) as lent:
            table = PartitionedTable(
                lent, schema, scheduler=None if given.database else scheduler
            )
            counts = table.total(design.count)
            read = time.perf_counter()
            table.total(design.count)
            counted = time.perf_counter()
            used = [
                resource.getrusage(who)
                for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
            ]
            if given.database:
                compare_group_bys(lent, schema)
    where = f"{given.files} files, scheduler {given.scheduler}"
    if given.database:
        where = "PostgreSQL" if "://" in given.database else "DuckDB"
    print(f"{given.rows:,} rows x {given.columns} columns, {where}")
    print(
        f"checked and counted in {read - start:.1f} s, once more in "
        f"{counted - read:.1f} s, "
        f"{counts.size:,} numbers"
    )
    print(
        f"processor {sum(u.ru_utime + u.ru_stime for u in used) - writing:.1f} s, "
        f"of all processes and their start"
    )
    print(
        f"largest process {' and '.join(f'{u.ru_maxrss / 1024:.0f}' for u in used)} "
        f"MiB: this one, and of the workers"
    )


if __name__ == "__main__":
    main()
