"""Counting all pairs of columns, beside DuckDB and Polars on the same files: ``python
-m benchmarks.counting --rows 1000000 --columns 40 --folder FOLDER``.

The table is that of ``benchmarks.scale`` without its numbers. Each program counts every
pair of columns with one thread; ours checks every cell on a first reading and adds
noise, too. A program that isn't installed is left out (``pip install polars``). CPU
seconds, seconds and, where they are compared, whether the counts are equal.
"""

import argparse
import importlib.util
import os
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scale import N_NUMBERS, make, products, schema_of, stage
from pdips import Margins, Schema
from pdips.arrays import IntArray
from pdips.data.partitions import PartitionedTable
from pdips.privacy.curator import Drawing
from pdips.privacy.noise import RandomBits

Pair = tuple[str, str]
# Pairs in one query of DuckDB: more are slower, as all their tables are open at once
GROUPED = 50


def by_duckdb(files: str, pairs: list[Pair]) -> dict[Pair, IntArray]:
    """Return the counts of each pair of levels that occurs, sorted, by grouping sets of
    one query for some pairs.
    """
    import duckdb

    counts = {}
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for start in range(0, len(pairs), GROUPED):
            some = pairs[start : start + GROUPED]
            sets = ", ".join(f"({one}, {other})" for one, other in some)
            names = sorted({name for pair in some for name in pair})
            place = f"GROUPING({', '.join(names)})"
            counted = connection.execute(
                f"SELECT {place}, count(*) FROM read_parquet('{files}') "
                f"GROUP BY GROUPING SETS ({sets})"
            ).fetchnumpy()
            groups, numbers = (np.asarray(each) for each in counted.values())
            for one, other in some:
                left_out = [name not in (one, other) for name in names]
                mark = int("".join(map(str, map(int, left_out))), 2)
                counts[one, other] = np.sort(numbers[groups == mark])
    return counts


def by_polars(files: str, pairs: list[Pair]) -> dict[Pair, IntArray]:
    """Return the counts of each pair of levels that occurs, sorted, by lazy queries
    that are collected together.
    """
    os.environ["POLARS_MAX_THREADS"] = "1"
    polars: Any = import_module("polars")

    frame = polars.scan_parquet(files)
    asked = [frame.group_by(list(pair)).len() for pair in pairs]
    tables = polars.collect_all(asked, engine="streaming")
    return {
        pair: np.sort(table["len"].to_numpy())
        for pair, table in zip(pairs, tables, strict=True)
    }


def ours(folder: Path, schema: Schema) -> None:
    """Count all pairs, check all cells before, and add noise."""
    mechanism = Margins(epsilon=1, delta="1e-9")
    plan = mechanism.plan(schema)
    with stage("pdips: check all cells"):
        table = PartitionedTable(folder, schema)
        mechanism.check(plan, table)
    curator = Drawing(plan, table, RandomBits(np.random.default_rng(1)))
    with stage("pdips: count all pairs and add noise"):
        mechanism.ask(plan, curator)


def main() -> None:
    """Print a line for each program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    columns = products(given.columns)
    folder = given.folder / f"{given.rows}x{given.columns + N_NUMBERS}"
    if not folder.exists():
        make(folder, given.rows, columns)
    files = f"{folder}/*.parquet"
    pairs = [*combinations(columns, 2)]
    whole = schema_of(columns)
    kept = {name: whole.columns[name] for name in columns}
    schema = whole.model_copy(update={"columns": kept, "ignore": True})
    print(f"{given.rows:,} records, {len(pairs):,} pairs of {given.columns} columns")
    print("| program | CPU s | wall s | peak MiB |\n| --- | ---: | ---: | ---: |")
    ours(folder, schema)
    counts = {}
    for name, count in (("duckdb", by_duckdb), ("polars", by_polars)):
        if importlib.util.find_spec(name) is None:
            print(f"| {name} isn't installed | | | |")
            continue
        with stage(name):
            counts[name] = count(files, pairs)
    if len(counts) > 1:
        same = all(
            np.array_equal(counts["duckdb"][pair], counts["polars"][pair])
            for pair in pairs
        )
        print(f"equal counts: {same}")


if __name__ == "__main__":
    main()
