"""Synthetic sets too large to hold: distinct records and counts, turned into rows as
they are written, or records that are drawn as they are written.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.data.table import decode

# Synthetic sets of more records than this are written chunk by chunk
LARGE_SET_RECORDS = 5_000_000
CHUNK_RECORDS = 1 << 20
DRAWN_RECORDS = 1 << 18
"""Records of a set that are drawn at a time, where it is drawn in chunks."""


def copies_numbers(schema: Schema) -> bool:
    """Whether public numbers are copied, which takes all records of a set at once."""
    return any(
        not schema.columns[name].is_categorical for name in schema.public_columns
    )


def _write_csv(frames: Iterator[pd.DataFrame], path: Path) -> None:
    for number, frame in enumerate(frames):
        is_first = number == 0
        mode: Literal["w", "a"] = "w" if is_first else "a"
        frame.to_csv(path, mode=mode, header=is_first, index=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class ChunkedSet:
    """A synthetic set whose records are drawn as they are written, a chunk at a time:
    memory doesn't grow with their number. Paid for, like every synthetic set.

    ``draw`` yields frames of so many records in all, each of at most so many; they are
    the same for the same ``seed``.
    """

    n_records: int
    draw: Callable[[int, np.random.Generator, int], Iterator[pd.DataFrame]]
    seed: int

    def __len__(self) -> int:
        return self.n_records

    def frames(self, size: int = DRAWN_RECORDS) -> Iterator[pd.DataFrame]:
        """Yield the records as frames of at most ``size`` rows."""
        return self.draw(self.n_records, np.random.default_rng(self.seed), size)

    def first(self) -> pd.DataFrame:
        """Return the first chunk: records like all others."""
        return next(self.frames())

    def write(self, path: Path, file_format: str) -> None:
        """Write the records to a ``"csv"`` file, or to a ``"parquet"`` file that has
        the columns of smaller sets and a row group for each chunk.
        """
        frames = self.frames()
        if file_format == "csv":
            _write_csv(frames, path)
            return
        first = next(frames)
        like = pa.Table.from_pandas(first, preserve_index=False).schema
        for place, field in enumerate(like):
            # text that is missing in the whole first chunk
            if pa.types.is_null(field.type):
                like = like.set(place, field.with_type(pa.string()))
        with pq.ParquetWriter(path, like, compression="zstd") as writer:
            for frame in chain([first], frames):
                part = pa.Table.from_pandas(frame, like, preserve_index=False)
                writer.write_table(part)


@dataclass(frozen=True, kw_only=True, repr=False)
class LargeSet:
    """A synthetic set as distinct records and how often each occurs. Paid for, like
    every synthetic set.

    Records come row by row, those of a row together: the order of a file tells no more
    than its contents. Whoever wants a sample must draw one, the first records are none.
    """

    schema: Schema
    codes: Mapping[str, NDArray[Any]]
    counts: IntArray
    seed: int

    def __len__(self) -> int:
        return int(self.counts.sum())

    def frames(self, size: int = CHUNK_RECORDS) -> Iterator[pd.DataFrame]:
        """Yield the records as frames of at most ``size`` rows, of the types that
        smaller sets have.
        """
        rng = np.random.default_rng(self.seed)
        for codes in self._chunks(size):
            yield decode(self.schema, codes, rng)

    def write(self, path: Path, file_format: str) -> None:
        """Write the records to a ``"parquet"`` or ``"csv"`` file."""
        if file_format == "csv":
            _write_csv(self.frames(), path)
            return
        one_record = next(self.frames(1))
        like = pa.Table.from_pandas(one_record, preserve_index=False).schema
        plain = []
        fields = []
        for field in like:
            if pa.types.is_large_string(field.type):
                field = field.with_type(pa.dictionary(pa.int32(), pa.string()))
            else:
                plain.append(field.name)
            fields.append(field)
        schema = pa.schema(fields, metadata=like.metadata)
        # Statistics on text take half of the time; the dictionary types are for writing
        # and are not for readers.
        options = {
            "compression": "zstd",
            "write_statistics": plain,
            "store_schema": False,
        }
        with (
            pq.ParquetWriter(path, schema, **options) as writer,
            ThreadPoolExecutor(1) as pool,
        ):
            writer.add_key_value_metadata(like.metadata)
            chunks = self._tables(schema)
            # the next chunk is made while one is being written
            waiting = pool.submit(next, chunks, None)
            while (chunk := waiting.result()) is not None:
                waiting = pool.submit(next, chunks, None)
                writer.write_table(chunk)

    def _chunks(self, size: int) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the codes of the records, at most ``size`` at a time."""
        ends = np.cumsum(self.counts)
        for start in range(0, len(self), size):
            stop = min(start + size, len(self))
            first = np.searchsorted(ends, start, side="right")
            last = np.searchsorted(ends, stop, side="left") + 1
            within = np.clip(ends[first:last], start, stop)
            times: NDArray[Any] = np.diff(within, prepend=start)
            chunk = {}
            for name, codes in self.codes.items():
                chunk[name] = np.repeat(codes[first:last], times)
            yield chunk

    def _tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        rng = np.random.default_rng(self.seed)
        levels = {}
        for name, column in self.schema.columns.items():
            if column.is_categorical:
                codes = np.arange(column.n_levels)
                levels[name] = self._decoded(name, codes, rng)
        rng = np.random.default_rng(self.seed)
        for chunk in self._chunks(CHUNK_RECORDS):
            arrays = []
            for field in schema:
                name = field.name
                array = self._array(field, chunk[name], levels.get(name), rng)
                arrays.append(array)
            yield pa.table(arrays, schema=schema)

    def _decoded(
        self, name: str, codes: NDArray[Any], rng: np.random.Generator
    ) -> pa.Array:
        return pa.array(decode(self.schema, {name: codes}, rng)[name])

    def _array(
        self,
        field: pa.Field,
        codes: NDArray[Any],
        levels: pa.Array | None,
        rng: np.random.Generator,
    ) -> pa.Array:
        """Return a chunk of a column: text as places in its levels, anything else as
        values.
        """
        if levels is None:
            return self._decoded(field.name, codes, rng).cast(field.type)
        if not pa.types.is_dictionary(field.type):
            return levels.take(pa.array(codes)).cast(field.type)
        known = levels.drop_null()
        missing = codes == len(known) if levels.null_count else None
        places = pa.array(codes, mask=missing)
        return pa.DictionaryArray.from_arrays(places, known.cast(pa.string()))


WrittenInChunks = LargeSet | ChunkedSet
