"""Files of records: read whole, or batch by batch."""

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from pdips.data.databases import batches_of, exceeds, is_stored, snapshot
from pdips.errors import DataError, InputError
from pdips.extras import require

BATCH_RECORDS = 1 << 17
CSV_BLOCK_BYTES = 1 << 24
LARGE_RECORDS = 2_000_000
# Larger tables are counted batch by batch rather than loaded, where they can be
LARGE_CSV_BYTES = 200_000_000
_SEPARATORS = (",", ";", "\t")
_LABELLED = {
    ".dta": "read_dta",
    ".sav": "read_sav",
    ".zsav": "read_sav",
    ".por": "read_por",
    ".sas7bdat": "read_sas7bdat",
    ".xpt": "read_xport",
}
"""Which function of pyreadstat reads the files of Stata, SPSS and SAS."""

_NULLABLE = {
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.uint8(): pd.UInt8Dtype(),
    pa.uint16(): pd.UInt16Dtype(),
    pa.uint32(): pd.UInt32Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
}


@dataclass(frozen=True, kw_only=True)
class Batches:
    """A file that is read batch by batch: its columns as they would be read whole; text
    may come dictionary-encoded.

    ``distinct`` has distinct records, and a last column of how often each occurs, where
    a database counts them.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    distinct: Iterator[pa.RecordBatch] | None = None

    @property
    def columns(self) -> pd.DataFrame:
        """The columns as they would be read whole, without records."""
        return to_pandas(self.schema.empty_table())


def read_frame(path: Any, *, separator: str | None = None) -> pd.DataFrame:
    """Read a file of records, or a table in a database: of a ``.csv`` everything as
    text, empty cells as missing.

    ``separator`` is that of a ``.csv`` file, by default the one that separates names in
    its first line.
    """
    with snapshot(path) as table:
        if is_stored(table):
            stored = open_batches(table)
            return to_pandas(pa.Table.from_batches(stored.batches, stored.schema))
    file = _checked(path)
    if _suffix(file) == ".parquet":
        opened = _open_parquet(file)
        with _reading(file, DataError):
            return to_pandas(opened.read())
    if _suffix(file) in _LABELLED:
        return _read_labelled(file)
    batches = _open_csv(file, separator)
    return to_pandas(pa.Table.from_batches(batches.batches, batches.schema))


def _read_labelled(file: Path) -> pd.DataFrame:
    """Read a file of Stata, SPSS or SAS: numbers as doubles, whether or not one is
    missing, empty text as missing.
    """
    require("files", f"{file} needs")
    import pyreadstat

    read: Callable[[str], tuple[pd.DataFrame, Any]]
    read = getattr(pyreadstat, _LABELLED[_suffix(file)])
    try:
        frame, about = read(str(file))
    except PermissionError:
        raise InputError(f"{file} may not be read") from None
    except Exception:  # noqa: BLE001 - whatever its message quotes
        raise DataError(f"{file} is damaged, or no {_suffix(file)[1:]} file") from None
    _check_names([str(name) for name in frame])
    for name, kind in about.readstat_variable_types.items():
        if kind == "string":
            frame[name] = frame[name].astype("str").replace("", None)
        elif frame[name].dtype != object:  # dates are objects
            frame[name] = frame[name].astype("float64")
    return frame


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """Return an Arrow table as a frame, integers as integers whether or not one is
    missing.
    """
    try:
        frame: pd.DataFrame = table.to_pandas(types_mapper=_NULLABLE.get)
    except MemoryError:
        raise
    # Arrow quotes values, and trusts what pandas wrote about its columns in the file
    except Exception:  # noqa: BLE001
        raise (DataError if table.num_rows else InputError)(
            "the table is damaged: its columns, or what is written about them, can't "
            "be read"
        ) from None
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.type in _NULLABLE and not column.null_count and name in frame:
            frame[name] = frame[name].to_numpy()
    return frame


def is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type is one of text that can be read dictionary-encoded."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_large(path: Any) -> bool:
    """Whether a file, or a table of Ibis, has so many records that it is better counted
    than loaded whole.
    """
    if is_stored(path):
        return exceeds(path, LARGE_RECORDS)
    file = _checked(path)
    with _reading(file):
        if _suffix(file) == ".parquet":
            return int(pq.read_metadata(file).num_rows) > LARGE_RECORDS
        return _suffix(file) not in _LABELLED and file.stat().st_size > LARGE_CSV_BYTES


def open_batches(
    path: Any, *, key: str | None = None, separator: str | None = None
) -> Batches:
    """Open a file, or a table of Ibis, for reading batch by batch.

    ``key`` names a column that hardly repeats: a dictionary of it would come whole with
    every batch.
    """
    if is_stored(path):
        schema, batches, distinct = batches_of(path, BATCH_RECORDS)
        return Batches(schema=schema, batches=batches, distinct=distinct)
    file = _checked(path)
    if _suffix(file) in _LABELLED:
        table = pa.Table.from_pandas(_read_labelled(file), preserve_index=False)
        return Batches(schema=table.schema, batches=iter(table.to_batches()))
    if _suffix(file) != ".parquet":
        return _open_csv(file, separator)
    # opened once: by the second look another file may have taken the name
    with _reading(file):
        source = pa.OSFile(str(file))
    described = _open_parquet(file, source)
    schema = described.schema_arrow
    text = [field.name for field in schema if is_text(field.type) and field.name != key]
    opened = _open_parquet(
        file,
        source,
        metadata=described.metadata,
        read_dictionary=text,
        pre_buffer=False,  # or it would hold the whole file
    )
    batches = opened.iter_batches(batch_size=BATCH_RECORDS)
    return Batches(schema=schema, batches=_guarded(file, batches))


def _checked(path: str | Path) -> Path:
    file = Path(path)
    endings = (".csv", ".csv.gz", ".parquet", *_LABELLED)
    if _suffix(file) not in endings:
        others = ", ".join([".csv.gz", *_LABELLED])
        raise InputError(f"{file} must end in .csv or .parquet, or in {others}")
    if not file.is_file():
        raise InputError(f"{file} doesn't exist or is no file")
    return file


def _suffix(file: Path) -> str:
    last = file.suffix.lower()
    return "".join(file.suffixes[-2:]).lower() if last == ".gz" else last


_UNREADABLE = (
    ValueError,
    OSError,
    EOFError,
    zlib.error,
    csv.Error,
    pa.ArrowException,
)


@contextmanager
def _reading(file: Path, kind: type[InputError] = InputError) -> Iterator[None]:
    """Turn what goes wrong while a file is read into one line that quotes nothing of
    it.
    """
    try:
        yield
    except PermissionError:
        raise InputError(f"{file} may not be read") from None
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"{file} needs more memory than there is") from None
    except _UNREADABLE as error:
        # a number of the system's: no fault of the records
        if isinstance(error, OSError) and error.errno:
            raise InputError(
                f"{file} can't be read: the disk or the network failed"
            ) from None
        wanted = ": UTF-8 text, one row of names, rows of as many fields, commas"
        if _suffix(file) == ".parquet":
            wanted = ""
        raise kind(
            f"{file} is damaged, or no {_suffix(file)[1:]} file{wanted}"
        ) from None


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise InputError("the table has two columns of the same name")


def _first_line(file: Path, separator: str) -> list[str]:
    opened = gzip.open if _suffix(file) == ".csv.gz" else open
    with opened(
        file, "rt", encoding="utf-8-sig", errors="surrogateescape", newline=""
    ) as lines:
        return next(csv.reader(lines, delimiter=separator), [])


def _no_header(file: Path) -> InputError:
    wrong = (
        "blank, has an empty name or a control character in one, or can be read "
        "in two ways"
    )
    return InputError(
        f"{file} is damaged, or no csv file: its first line must name "
        f"the columns, and it is {wrong}"
    )


def _open_csv(file: Path, separator: str | None) -> Batches:
    """Open a text file of which every column is read as text: what Arrow infers would
    depend on all records.
    """
    with _reading(file):
        marks = (separator,) if separator else _SEPARATORS
        headers = {mark: _first_line(file, mark) for mark in marks}
        separating = [mark for mark in marks if len(headers[mark]) > 1]
        mark = [*separating, *marks][0]
        header = headers[mark]
        if not header or not all(name and name.isprintable() for name in header):
            raise _no_header(file)
        _check_names(header)
    as_text = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )
    # Arrow refuses a row with more or fewer fields than the header.
    parse = pa_csv.ParseOptions(delimiter=mark, newlines_in_values=True)
    reading = pa_csv.ReadOptions(block_size=CSV_BLOCK_BYTES)
    with _reading(file, DataError):
        reader = pa_csv.open_csv(
            file, read_options=reading, parse_options=parse, convert_options=as_text
        )
    if reader.schema != pa.schema([(name, pa.string()) for name in header]):
        raise _no_header(file)
    return Batches(schema=reader.schema, batches=_guarded(file, reader))


def _open_parquet(
    file: Path, source: pa.NativeFile | None = None, **options: Any
) -> pq.ParquetFile:
    """Open a file, or what is open of it already."""
    with _reading(file):
        opened = pq.ParquetFile(source or file, **options)
        _check_names(opened.schema_arrow.names)
        return opened


def _guarded(file: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with _reading(file, DataError):
        yield from batches
