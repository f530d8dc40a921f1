"""Time and memory of a release of a table that is too large to load: ``python -m benchmarks.huge --rows 100000000``.

The table is the youth survey of the examples, its records drawn with replacement, written in chunks to a temporary
folder. With ``--numbers`` it is the survey of working hours, with three binned columns of numbers.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.__main__ import EXAMPLES, run

CHUNK = 1 << 20


def make(path: Path, example: str, n_records: int, seed: int = 0) -> None:
    """Write a table of records of an example, drawn with replacement."""
    original = pq.read_table(EXAMPLES / f"{example}.parquet").replace_schema_metadata(None).unify_dictionaries()
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


def main() -> None:
    """Print one line on the whole command, and one on each of its steps."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--rows", type=int, default=100_000_000)
    words.add_argument("--mechanism", default="laplace-sanitizer")
    words.add_argument("--numbers", action="store_true")
    words.add_argument("--ledger", action="store_true")
    given = words.parse_args()
    example = "hours" if given.numbers else "youth"
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder) / "table.parquet", Path(folder) / "out"
        make(table, example, given.rows)
        command = f"synthesize {table} --schema {EXAMPLES / example}.toml --epsilon 1 --out {out}".split()
        ledger = ["--ledger", f"{folder}/ledger.sqlite"] if given.ledger else []
        before, earlier = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds, memory = run(sys.executable, "-m", "pdips.cli", *command, "--mechanism", given.mechanism, *ledger)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = after.ru_utime - earlier.ru_utime + after.ru_stime - earlier.ru_stime
        steps = json.loads((out / "confidential" / "run.json").read_text())["seconds"]
        made = pq.read_metadata(out / "public" / "synthetic_1.parquet").num_rows
        size = table.stat().st_size / 2**20
    print(f"{given.mechanism}: {given.rows:,} records of {example} ({size:.0f} MiB), {made:,} released: ", end="")
    print(f"{seconds:.1f} s ({busy:.1f} s of processor time), {memory:.0f} MiB; ", end="")
    print(f"load before {before:.1f}, after {os.getloadavg()[0]:.1f}")
    for name, taken in steps.items():
        print(f"    {taken:6.2f} s  {name}")


if __name__ == "__main__":
    main()
