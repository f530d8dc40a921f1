"""Time and memory of a release of a table that is too large to load: ``python -m
benchmarks.huge --rows 100000000``.

The table is the youth survey of the examples, its records drawn with replacement,
written in chunks to a temporary folder. With ``--numbers`` it is the survey of working
hours, with three binned columns of numbers.

``python -m benchmarks.huge --reading --rows 2000000`` measures the processor time of
reading alone, whole and counted: the youth survey, and a table of mixed columns in both
kinds of file. Run as a file, with ``PYTHONPATH`` naming another checkout, it measures
that one.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks.__main__ import EXAMPLES, run

CHUNK = 1 << 20


def make(path: Path, example: str, n_records: int, seed: int = 0) -> None:
    """Write a table of records of an example, drawn with replacement."""
    original = (
        pq.read_table(EXAMPLES / f"{example}.parquet")
        .replace_schema_metadata(None)
        .unify_dictionaries()
    )
    columns = {
        name: column.combine_chunks().dictionary_encode()
        if pa.types.is_string(column.type)
        else column.combine_chunks()
        for name, column in zip(original.column_names, original.columns, strict=True)
    }
    table, rng = pa.table(columns), np.random.default_rng(seed)
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        for start in range(0, n_records, CHUNK):
            drawn = rng.integers(len(original), size=min(CHUNK, n_records - start))
            writer.write_table(table.take(pa.array(drawn)))


MIXED = """
[columns.sector]
levels = ["farming", "industry", "services", "public"]
missing = true
[columns.year]
levels = [2019, 2020, 2021, 2022]
[columns.employed]
levels = [true, false]
missing = true
[columns.age]
lower = 0
upper = 110
bins = 11
integer = true
missing = true
[columns.pay]
lower = 0
upper = 20000
bins = 20
missing = [-9]
[records]
person = "id"
max_per_person = 50
"""


def make_mixed(path: Path, n_records: int, seed: int = 0) -> None:
    """Write a table of text, whole numbers, doubles, truth values and a person key,
    some of them missing.
    """
    rng = np.random.default_rng(seed)

    def some(values: np.ndarray) -> pa.Array:
        return pa.array(values, mask=rng.random(n_records) < 0.1)

    pay = np.round(rng.uniform(0, 20_000, n_records), 2)
    columns = {
        "sector": some(
            rng.choice(
                np.array(["farming", "industry", "services", "public"]), n_records
            )
        ),
        "year": pa.array(rng.integers(2019, 2023, n_records)),
        "employed": some(rng.random(n_records) < 0.6),
        "age": some(rng.integers(0, 111, n_records)),
        "pay": pa.array(np.where(rng.random(n_records) < 0.05, -9, pay)),
        "id": pa.array([f"p{i}" for i in rng.integers(0, n_records // 4, n_records)]),
    }
    table = pa.table(columns)
    pa_csv.write_csv(table, path) if path.suffix == ".csv" else pq.write_table(
        table, path
    )


def reading(n_records: int, repeats: int = 5) -> None:
    """Print the median processor time of reading each table, whole and counted."""
    from pdips import Schema, Table
    from pdips.data import readers as files

    print(
        f"{files.__file__}: {n_records:,} records, processor seconds, median of "
        f"{repeats}"
    )
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "youth.parquet", "youth", n_records)
        for suffix in ("parquet", "csv"):
            make_mixed(Path(folder) / f"mixed.{suffix}", n_records)
        for name in ("youth.parquet", "mixed.parquet", "mixed.csv"):
            youth = name.startswith("youth")
            schema = (
                Schema.load(EXAMPLES / "youth.toml")
                if youth
                else Schema.from_toml(MIXED)
            )
            for counted in (False, True):
                taken = []
                for _ in range(repeats):
                    start = time.process_time()
                    Table.read(Path(folder) / name, schema, counted=counted)
                    taken.append(time.process_time() - start)
                print(
                    f"{name:14} {'counted' if counted else 'whole':8} "
                    f"{median(taken):6.2f} s",
                    flush=True,
                )


def main() -> None:
    """Print one line on the whole command, and one on each of its steps."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--rows", type=int, default=100_000_000)
    words.add_argument("--mechanism", default="laplace-sanitizer")
    words.add_argument("--numbers", action="store_true")
    words.add_argument("--ledger", action="store_true")
    words.add_argument("--reading", action="store_true")
    given = words.parse_args()
    if given.reading:
        reading(given.rows)
        return
    example = "hours" if given.numbers else "youth"
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder) / "table.parquet", Path(folder) / "out"
        make(table, example, given.rows)
        command = (
            f"synthesize {table} --schema {EXAMPLES / example}.toml --epsilon "
            f"1 --out {out}"
        ).split()
        ledger = ["--ledger", f"{folder}/ledger.sqlite"] if given.ledger else []
        before, earlier = (
            os.getloadavg()[0],
            resource.getrusage(resource.RUSAGE_CHILDREN),
        )
        seconds, memory = run(
            sys.executable,
            "-m",
            "pdips",
            *command,
            "--mechanism",
            given.mechanism,
            *ledger,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = after.ru_utime - earlier.ru_utime + after.ru_stime - earlier.ru_stime
        steps = json.loads((out / "confidential" / "run.json").read_text())["seconds"]
        made = pq.read_metadata(out / "public" / "synthetic_1.parquet").num_rows
        size = table.stat().st_size / 2**20
    print(
        f"{given.mechanism}: {given.rows:,} records of {example} ({size:.0f} MiB), "
        f"{made:,} released: ",
        end="",
    )
    print(
        f"{seconds:.1f} s ({busy:.1f} s of processor time), {memory:.0f} MiB; ", end=""
    )
    print(f"load before {before:.1f}, after {os.getloadavg()[0]:.1f}")
    for name, taken in steps.items():
        print(f"    {taken:6.2f} s  {name}")


if __name__ == "__main__":
    main()
