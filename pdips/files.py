"""Files of records: read whole, or batch by batch."""

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from pdips.errors import InputError

BATCH_RECORDS = 1 << 17
CSV_BLOCK_BYTES = 1 << 24
LARGE_RECORDS = 2_000_000
LARGE_CSV_BYTES = 200_000_000
"""Beyond these a table is counted batch by batch rather than loaded whole, where it can be."""


@dataclass(frozen=True, kw_only=True)
class Batches:
    """A file that is read batch by batch.

    Parameters
    ----------
    schema : pyarrow.Schema
        Its columns as they would be read whole.
    with_nulls : dict of str to bool
        Columns in which a value is missing somewhere in the file, which decides how pandas would spell the others.
    batches : iterator of pyarrow.RecordBatch
        Text may come dictionary-encoded.
    """

    schema: pa.Schema
    with_nulls: Mapping[str, bool]
    batches: Iterator[pa.RecordBatch]


def read_frame(path: str | Path) -> pd.DataFrame:
    """Read a ``.csv`` (everything as text, empty cells as missing) or ``.parquet`` file.

    Raises
    ------
    InputError
        If the file is missing, of another kind, or damaged.
    """
    file = _checked(path)
    with _reading(file):
        if file.suffix.lower() == ".parquet":
            return pd.read_parquet(file, engine="pyarrow")
        frame: pd.DataFrame = pa_csv.read_csv(file, **_csv_options(_csv_header(file))).to_pandas()
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

    Raises
    ------
    InputError
        As :func:`read_frame`; if the file is damaged further down, when that is read.
    """
    file = _checked(path)
    with _reading(file):
        return _open_parquet(file, key) if file.suffix.lower() == ".parquet" else _open_csv(file)


def _checked(path: str | Path) -> Path:
    file = Path(path)
    if file.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{file} must end in .csv or .parquet")
    if not file.is_file():
        raise InputError(f"{file} doesn't exist or is no file")
    return file


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn what goes wrong while a file is read into one line that quotes nothing of it."""
    try:
        yield
    except PermissionError:
        raise InputError(f"{file} may not be read") from None
    except InputError:
        raise
    except (ValueError, OSError, csv.Error):  # ArrowInvalid is a ValueError
        wanted = ": UTF-8 text, one row of names, rows of as many fields, commas" if file.suffix == ".csv" else ""
        raise InputError(f"{file} is damaged, or no {file.suffix[1:]} file{wanted}") from None


def _csv_header(file: Path) -> list[str]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        header = next(csv.reader(lines), [])
    if len(set(header)) < len(header):
        raise InputError("the table has two columns of the same name")
    return header


def _csv_options(header: list[str]) -> dict[str, object]:
    as_text = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )
    parse = pa_csv.ParseOptions(newlines_in_values=True)  # refuses a row with more or fewer fields than the header
    return {"convert_options": as_text, "parse_options": parse}


def _open_csv(file: Path) -> Batches:
    header = _csv_header(file)
    reading = pa_csv.ReadOptions(block_size=CSV_BLOCK_BYTES)
    reader = pa_csv.open_csv(file, read_options=reading, **_csv_options(header))
    return Batches(schema=reader.schema, with_nulls=dict.fromkeys(header, True), batches=_guarded(file, reader))


def _open_parquet(file: Path, key: str | None) -> Batches:
    schema = pq.read_schema(file)
    text = [field.name for field in schema if is_text(field.type) and field.name != key]
    opened = pq.ParquetFile(file, read_dictionary=text, pre_buffer=False)  # or it would hold the whole file
    batches = opened.iter_batches(batch_size=BATCH_RECORDS)
    with_nulls = {name: _has_nulls(opened, name) for name in schema.names}
    return Batches(schema=schema, with_nulls=with_nulls, batches=_guarded(file, batches))


def _guarded(file: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with _reading(file):
        yield from batches


def _has_nulls(opened: pq.ParquetFile, name: str) -> bool:
    """Whether a column has missing values: from the statistics in the file, or, where it has none, from its values."""
    metadata = opened.metadata
    place = [metadata.schema.column(i).path for i in range(len(metadata.schema))].index(name)
    groups = [metadata.row_group(i).column(place).statistics for i in range(metadata.num_row_groups)]
    if all(known is not None and known.has_null_count for known in groups):
        return any(known.null_count for known in groups)
    return any(batch.column(0).null_count for batch in opened.iter_batches(columns=[name]))
