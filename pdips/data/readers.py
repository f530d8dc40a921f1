"""Files of records: read whole, or batch by batch."""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from pdips.errors import DataError, InputError

BATCH_RECORDS = 1 << 17
CSV_BLOCK_BYTES = 1 << 24
LARGE_RECORDS = 2_000_000
LARGE_CSV_BYTES = 200_000_000
"""Beyond these a table is counted batch by batch rather than loaded whole, where it can be."""

_NULLABLE = {
    getattr(pa, name.lower())(): getattr(pd, f"{name}Dtype")()
    for name in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
}


@dataclass(frozen=True, kw_only=True)
class Batches:
    """A file that is read batch by batch: its columns as they would be read whole; text may come dictionary-encoded."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def read_frame(path: str | Path) -> pd.DataFrame:
    """Read a ``.csv`` (everything as text, empty cells as missing) or ``.parquet`` file."""
    file = _checked(path)
    if file.suffix.lower() == ".parquet":
        opened = _open_parquet(file)
        with _reading(file, DataError):
            return to_pandas(opened.read())
    batches = _open_csv(file)
    return to_pandas(pa.Table.from_batches(batches.batches, batches.schema))


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """Return an Arrow table as a frame, integers as integers whether or not one is missing."""
    frame: pd.DataFrame = table.to_pandas(types_mapper=_NULLABLE.get)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.type in _NULLABLE and not column.null_count and name in frame:
            frame[name] = frame[name].to_numpy()
    return frame


def is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type is one of text that can be read dictionary-encoded."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_large(path: str | Path) -> bool:
    """Whether a file has so many records that it is better counted than loaded whole."""
    file = _checked(path)
    with _reading(file):
        if file.suffix.lower() == ".parquet":
            return int(pq.read_metadata(file).num_rows) > LARGE_RECORDS
        return file.stat().st_size > LARGE_CSV_BYTES


def open_batches(path: str | Path, *, key: str | None = None) -> Batches:
    """Open a file for reading batch by batch.

    ``key`` names a column that hardly repeats: a dictionary of it would come whole with every batch.
    """
    file = _checked(path)
    if file.suffix.lower() == ".csv":
        return _open_csv(file)
    schema = _open_parquet(file).schema_arrow
    text = [field.name for field in schema if is_text(field.type) and field.name != key]
    opened = _open_parquet(file, read_dictionary=text, pre_buffer=False)  # or it would hold the whole file
    return Batches(schema=schema, batches=_guarded(file, opened.iter_batches(batch_size=BATCH_RECORDS)))


def _checked(path: str | Path) -> Path:
    file = Path(path)
    if file.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{file} must end in .csv or .parquet")
    if not file.is_file():
        raise InputError(f"{file} doesn't exist or is no file")
    return file


@contextmanager
def _reading(file: Path, kind: type[InputError] = InputError) -> Iterator[None]:
    """Turn what goes wrong while a file is read into one line that quotes nothing of it."""
    try:
        yield
    except PermissionError:
        raise InputError(f"{file} may not be read") from None
    except InputError:
        raise
    except (ValueError, OSError, csv.Error, pa.ArrowException):
        wanted = ": UTF-8 text, one row of names, rows of as many fields, commas" if file.suffix == ".csv" else ""
        raise kind(f"{file} is damaged, or no {file.suffix[1:]} file{wanted}") from None


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise InputError("the table has two columns of the same name")


def _csv_header(file: Path) -> list[str]:
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:  # of rows, nothing is said yet
        header = next(csv.reader(lines), [])
    if not header or not all(name and name.isprintable() for name in header):
        raise _no_header(file)
    _check_names(header)
    return header


def _no_header(file: Path) -> InputError:
    wrong = "blank, has an empty name or a control character in one, or can be read in two ways"
    return InputError(f"{file} is damaged, or no csv file: its first line must name the columns, and it is {wrong}")


def _open_csv(file: Path) -> Batches:
    """Open a text file of which every column is read as text: what Arrow infers would depend on all records."""
    with _reading(file):
        header = _csv_header(file)
    as_text = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )
    parse = pa_csv.ParseOptions(newlines_in_values=True)  # refuses a row with more or fewer fields than the header
    reading = pa_csv.ReadOptions(block_size=CSV_BLOCK_BYTES)
    with _reading(file, DataError):
        reader = pa_csv.open_csv(file, read_options=reading, parse_options=parse, convert_options=as_text)
    if reader.schema != pa.schema([(name, pa.string()) for name in header]):
        raise _no_header(file)
    return Batches(schema=reader.schema, batches=_guarded(file, reader))


def _open_parquet(file: Path, **options: Any) -> pq.ParquetFile:
    with _reading(file):
        opened = pq.ParquetFile(file, **options)
        _check_names(opened.schema_arrow.names)
        return opened


def _guarded(file: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with _reading(file, DataError):
        yield from batches
