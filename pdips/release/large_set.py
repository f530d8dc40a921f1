"""Synthetic sets too large to hold: distinct records and counts, turned into rows as they are written."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pdips.arrays import IntArray
from pdips.data.schema import Schema
from pdips.data.table import decode

LARGE_SET_RECORDS = 5_000_000  # Synthetic sets of more records than this are written chunk by chunk
CHUNK_RECORDS = 1 << 20


def copies_numbers(schema: Schema) -> bool:
    """Whether public numbers are copied, which takes all records of a set at once."""
    return any(not schema.columns[name].is_categorical for name in schema.public_columns)


@dataclass(frozen=True, kw_only=True, repr=False)
class LargeSet:
    """A synthetic set as distinct records and how often each occurs. Paid for, like every synthetic set.

    Records come row by row, those of a row together: the order of a file tells no more than its contents. Whoever wants
    a sample must draw one, the first records are none.
    """

    schema: Schema
    codes: Mapping[str, NDArray[Any]]
    counts: IntArray
    seed: int

    def __len__(self) -> int:
        return int(self.counts.sum())

    def frames(self, size: int = CHUNK_RECORDS) -> Iterator[pd.DataFrame]:
        """Yield the records as frames of at most ``size`` rows, of the types that smaller sets have."""
        rng = np.random.default_rng(self.seed)
        for codes in self._chunks(size):
            yield decode(self.schema, codes, rng)

    def write(self, path: Path, file_format: str) -> None:
        """Write the records to a ``"parquet"`` or ``"csv"`` file."""
        if file_format == "csv":
            for number, frame in enumerate(self.frames()):
                frame.to_csv(path, mode="a" if number else "w", header=not number, index=False)
            return
        like = pa.Table.from_pandas(next(self.frames(1)), preserve_index=False).schema
        text = [field.name for field in like if pa.types.is_large_string(field.type)]
        plain = [name for name in like.names if name not in text]
        fields = [
            field.with_type(pa.dictionary(pa.int32(), pa.string())) if field.name in text else field for field in like
        ]
        schema = pa.schema(fields, metadata=like.metadata)
        # Statistics on text take half of the time; the dictionary types are for writing and are not for readers.
        options = {"compression": "zstd", "write_statistics": plain, "store_schema": False}
        with pq.ParquetWriter(path, schema, **options) as writer, ThreadPoolExecutor(1) as pool:
            writer.add_key_value_metadata(like.metadata)
            chunks = self._tables(schema)
            waiting = pool.submit(next, chunks, None)  # the next chunk is made while one is being written
            while (chunk := waiting.result()) is not None:
                waiting = pool.submit(next, chunks, None)
                writer.write_table(chunk)

    def _chunks(self, size: int) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the codes of the records, at most ``size`` at a time."""
        ends = np.cumsum(self.counts)
        for start in range(0, len(self), size):
            stop = min(start + size, len(self))
            first, last = np.searchsorted(ends, start, side="right"), np.searchsorted(ends, stop, side="left") + 1
            times: NDArray[Any] = np.diff(np.clip(ends[first:last], start, stop), prepend=start)
            yield {name: np.repeat(codes[first:last], times) for name, codes in self.codes.items()}

    def _tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        rng = np.random.default_rng(self.seed)
        levels = {
            name: pa.array(decode(self.schema, {name: np.arange(self.schema.columns[name].n_levels)}, rng)[name])
            for name, column in self.schema.columns.items()
            if column.is_categorical
        }
        rng = np.random.default_rng(self.seed)
        for codes in self._chunks(CHUNK_RECORDS):
            yield pa.table(
                [self._array(field, codes[field.name], levels.get(field.name), rng) for field in schema], schema=schema
            )

    def _array(
        self, field: pa.Field, codes: NDArray[Any], levels: pa.Array | None, rng: np.random.Generator
    ) -> pa.Array:
        """Return a chunk of a column: text as places in its levels, anything else as values."""
        if levels is None:
            return pa.array(decode(self.schema, {field.name: codes}, rng)[field.name]).cast(field.type)
        if not pa.types.is_dictionary(field.type):
            return levels.take(pa.array(codes)).cast(field.type)
        known = levels.drop_null()
        missing = codes == len(known) if levels.null_count else None
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=missing), known.cast(pa.string()))
