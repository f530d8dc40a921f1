"""The census table of an office: ``python -m benchmarks.scale --rows 1000000 --columns
60 --folder FOLDER``.

Records are those of the youth survey, each column read a little further on in the
sorted table, so that columns depend on each other; levels are products of up to three
columns of the survey, 2 to 50; five numbers have no bins; two per cent of all cells are
missing. A folder of Parquet files is written chunk by chunk, or used again where it is
there. It is counted, and ``margins`` is fitted and makes one set of a tenth of the
records, written in chunks. CPU seconds (of this process and of those that it waited
for) and the largest resident memory by stage.
"""

import argparse
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.__main__ import EXAMPLES
from pdips import Margins, Schema
from pdips.arrays import IntArray
from pdips.data.partitions import PartitionedTable
from pdips.fields.pair_sets import FittedPairs, PairMeasurement
from pdips.privacy.curator import Drawing
from pdips.privacy.noise import RandomBits

N_FILES = 200
CHUNK = 1 << 17
MOST_DRAWN = 10_000_000
LINKED = 10
"""Of more records each file is there so often."""

N_LEVELS = 50
N_NUMBERS = 5
MISSING = 5  # Of 256
OF_ALL = 10
"""A set has a tenth of the records."""

REACH = 300
"""Standard deviation of how many records further on a column is read."""

RANGES = {
    "age": (18, 90, 1),
    "hours": (0, 99, 1),
    "income": (0, 999_999, 1),
    "rent": (0, 5_000, 10),
    "wealth": (-100_000, 1_000_000, 100),
}
"""Lower and upper bound and resolution of the numbers."""


def survey() -> tuple[pd.DataFrame, Any]:
    """Return codes of the youth survey's columns, sorted, and the numbers of levels."""
    frame = pd.read_parquet(EXAMPLES / "youth.parquet")
    codes = pd.DataFrame({name: pd.factorize(of)[0] for name, of in frame.items()})
    order = codes.nunique().sort_values(ascending=False).index
    return codes.sort_values([*order], ignore_index=True), codes.nunique()


def products(n_columns: int) -> dict[str, IntArray]:
    """Return columns with levels: of one column of the survey, of two and of three."""
    codes, n_levels = survey()
    every = [group for size in (1, 2, 3) for group in combinations(codes, size)]
    fit = [group for group in every if n_levels[[*group]].prod() <= N_LEVELS]
    rng = np.random.default_rng(1)
    chosen: list[tuple[Any, ...]] = [(name,) for name in codes]
    larger = [group for group in fit if len(group) > 1]
    while len(chosen) < n_columns:
        chosen.append(larger[rng.integers(len(larger))])
    made = {}
    for number, group in enumerate(chosen[:n_columns]):
        place = np.zeros(len(codes), dtype=np.int64)
        for name in group:
            place = place * n_levels[name] + codes[name]
        made[f"c{number:02}"] = place
    return made


def schema_of(columns: dict[str, IntArray]) -> Schema:
    """Return what is public about the table."""
    said: dict[str, Any] = {
        name: {"levels": [f"level {k}" for k in range(codes.max() + 1)]}
        for name, codes in columns.items()
    }
    for name, (lower, upper, width) in RANGES.items():
        said[name] = {"lower": lower, "upper": upper}
        said[name] |= {"integer": True} if width == 1 else {"resolution": width}
    return Schema.model_validate(
        {
            "columns": {
                name: {**column, "missing": True} for name, column in said.items()
            }
        }
    )


def number(name: str, rank: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a number that rises with the rank, 0 to 1."""
    lower, upper, width = RANGES[name]
    normal = rng.standard_normal(len(rank), dtype=np.float32)
    skewed = name in ("income", "wealth")
    place = np.exp(normal + rank - 5) if skewed else rank / 2 + 0.25 + normal / 8
    steps = np.floor(place * ((upper - lower) // width)).astype(np.int64)
    return np.clip(lower + steps * width, lower, upper)


def chunk(columns: dict[str, IntArray], n: int, rng: np.random.Generator) -> pa.Table:
    """Return so many records."""
    n_places = len(next(iter(columns.values())))
    place = rng.integers(n_places, size=n)
    arrays = dict[str, pa.Array]()
    for name, codes in columns.items():
        off = REACH * rng.standard_normal(n, dtype=np.float32)
        read = (place + off.astype(np.int64)) % n_places
        levels = [f"level {k}" for k in range(codes.max() + 1)]
        is_missing = rng.integers(256, size=n, dtype=np.uint8) < MISSING
        drawn = pa.array(codes[read].astype(np.int32), mask=is_missing)
        arrays[name] = pa.DictionaryArray.from_arrays(drawn, levels)
    for name in RANGES:
        is_missing = rng.integers(256, size=n, dtype=np.uint8) < MISSING
        rank = (place / n_places).astype(np.float32)
        arrays[name] = pa.array(number(name, rank, rng), mask=is_missing)
    return pa.table(arrays)


def make(folder: Path, n_records: int, columns: dict[str, IntArray]) -> None:
    """Write a folder of files, each chunk by chunk; of many records every tenth file,
    which the next nine are links to: they are read as if they were files of their own.
    """
    folder.mkdir(parents=True)
    like = chunk(columns, 1, np.random.default_rng(0)).schema
    for file in range(N_FILES):
        path = folder / f"{file:04}.parquet"
        if n_records > MOST_DRAWN and file % LINKED:
            path.hardlink_to(folder / f"{file - file % LINKED:04}.parquet")
            continue
        rng = np.random.default_rng(file)
        left = n_records * (file + 1) // N_FILES - n_records * file // N_FILES
        with pq.ParquetWriter(path, like, store_schema=False) as writer:
            while left:
                n = min(left, CHUNK)
                writer.write_table(chunk(columns, n, rng))
                left -= n


def cpu() -> float:
    """Return CPU seconds of this process and of those it waited for."""
    used = [
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return sum(each.ru_utime + each.ru_stime for each in used)


def resident(what: str) -> float:
    """Return a resident size of this process in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Print CPU seconds and the largest resident size of a stage."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    start = cpu()
    begun = time.perf_counter()
    yield
    wall = time.perf_counter() - begun
    print(
        f"| {name} | {cpu() - start:.1f} | {wall:.1f} | {resident('VmHWM'):.0f} |",
        flush=True,
    )


def release(folder: Path, schema: Schema, n_records: int) -> None:
    """Count, fit and write a set, stage by stage."""
    mechanism = Margins(epsilon=1, delta="1e-9")
    with stage("plan"):
        plan = mechanism.plan(schema)
    with stage("open"):
        table = PartitionedTable(folder, schema)
    with stage("check, and what all read first"):
        mechanism.check(plan, table)
    bits = RandomBits(np.random.default_rng(1))
    curator = Drawing(plan, table, bits)
    with stage("count and add noise"):
        measured = mechanism.ask(plan, curator)
    rng = np.random.default_rng(2)
    with stage("fit"):
        assert isinstance(measured, PairMeasurement)
        fitted = FittedPairs.of(measured, None, rng)
    with stage("a set of a tenth"):
        made = write_set(fitted, n_records // OF_ALL, folder.with_suffix(".set"), rng)
    print(f"{made:,} synthetic records written")


def write_set(fitted: FittedPairs, n: int, path: Path, rng: np.random.Generator) -> int:
    """Write so many records of a field in chunks."""
    writer = None
    made = 0
    for frame in fitted.frames(n, rng):
        part = pa.Table.from_pandas(frame, preserve_index=False)
        writer = writer or pq.ParquetWriter(path, part.schema)
        writer.write_table(part)
        made += len(frame)
    if writer is not None:
        writer.close()
    return made


def main() -> None:
    """Print a line for each stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, nargs="+", default=[60])
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    print("| stage | CPU s | wall s | peak MiB |\n| --- | ---: | ---: | ---: |")
    for n_columns in given.columns:
        folder = given.folder / f"{given.rows}x{n_columns}"
        columns = products(n_columns - N_NUMBERS)
        if not folder.exists():
            with stage(f"make {given.rows:,} x {n_columns}"):
                make(folder, given.rows, columns)
        size = sum(file.stat().st_size for file in folder.glob("*.parquet"))
        print(f"{given.rows:,} x {n_columns}, {size / 2**20:.0f} MiB on disk")
        release(folder, schema_of(columns), given.rows)


if __name__ == "__main__":
    main()
