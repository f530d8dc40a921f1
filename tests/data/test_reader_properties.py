"""Readers under generated files: they refuse in one line without a cell, or agree,
whether a table is read whole, counted or from parts.

Cells that break a rule are spelt in Cyrillic letters, which no message has.
"""

import io
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from pdips import InputError, Schema, Table
from pdips.data import counted as counting
from pdips.data import readers as files
from pdips.data.coding import CellError
from pdips.data.partitions import PartitionedTable
from pdips.errors import DataError

# the same examples in every run, whatever the machine's load
FIXED = {
    "derandomize": True,
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}
SCHEMA = Schema.from_toml(
    """
ignore = ["other"]
[columns.text]
levels = ["a", "b", "1"]
missing = ["?"]
[columns.year]
levels = [1994, 1995]
[columns.wage]
bin_edges = [0, 10, 100]
missing = true
out_of_range = "clip"
"""
)
NAMES = ["text", "year", "wage", "other"]
SECRET = re.compile("[жщю]")


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "BATCH_RECORDS", 3)
        patched.setattr(files, "CSV_BLOCK_BYTES", 64)
        yield Path(name)


def cells_of(table: Table) -> np.ndarray:
    """How many records are in each cell of the cross-tabulation."""
    shape = [column.n_levels for column in table.schema.columns.values()]
    codes = [table.codes[name] for name in table.schema.columns]
    for values, n_levels in zip(codes, shape, strict=True):
        assert ((values >= 0) & (values < n_levels)).all()
    place = np.ravel_multi_index(codes, shape)
    return np.asarray(table.count(place, int(np.prod(shape))))


def refusal(read) -> InputError | None:
    """The one line with which something is refused, if it is; any other exception is a
    fault.
    """
    try:
        read()
    except InputError as error:
        return error
    return None


def outcome(read) -> tuple:
    """The digest and the cells of a table; or how it is refused, without a cell."""
    found = []
    # a folder is read when something is asked
    error = refusal(lambda: found.append((table := read(), table.fingerprint)))
    if error is None:
        [(table, fingerprint)] = found
        return fingerprint, table.total(cells_of).tolist()
    said = str(error)
    assert said
    assert "\n" not in said
    assert not SECRET.search(said)
    return type(error), said


def read_in_both_ways(path: Path) -> list[tuple]:
    return [
        outcome(lambda counted=counted: Table.read(path, SCHEMA, counted=counted))
        for counted in (False, True)
    ]


CELLS = st.one_of(
    st.sampled_from(
        ["a", "b", "1", "?", "", "1994", "1995", "1994.0", "1e3", "5", "99"]
    ),
    st.sampled_from(
        [" a", "A", "nan", "NaN", "NULL", "-0", "0x1", "1_0", "\u0661", "a\x00"]
    ),
    st.text("жщю", min_size=1, max_size=5),
    st.text('жщю",;\t\r\n ', min_size=1, max_size=4).map(lambda text: "ж" + text),
)
GOOD = st.tuples(
    st.sampled_from(["a", "b", "1", "?", ""]),
    st.sampled_from(["1994", "1995", "1994.0"]),
    st.sampled_from(["", "0", "9.99", "10", "1e2", "-5", "inf", "3"]),
    CELLS.filter(lambda cell: "\x00" not in cell),
)


def share_refused(outcomes: list[tuple]) -> float:
    return float(np.mean([not isinstance(each[0], str) for each in outcomes]))


def test_csv_files_are_refused_or_read_alike():
    outcomes = []

    @settings(max_examples=100, **FIXED)
    @given(st.lists(GOOD, max_size=12), st.lists(st.tuples(*[CELLS] * 4), max_size=1))
    def read_alike(good, bad):
        with folder() as place:
            frame = pd.DataFrame(good + bad, columns=NAMES)
            frame.to_csv(place / "t.csv", index=False)
            whole, counted = read_in_both_ways(place / "t.csv")
            assert whole == counted
            outcomes.append(whole)

    read_alike()
    assert 0.1 < share_refused(outcomes) < 0.9


@settings(max_examples=100, **FIXED)
@given(st.binary(max_size=60), st.booleans())
@example(b"\xff\xfe", True)
@example(b'"', True)
@example(b"\x00" * 9, False)
@example(b"a,1994,5\n", True)
def test_any_bytes_are_a_csv_file_or_refused(content, has_names):
    with folder() as place:
        header = b"text,year,wage,other\n" if has_names else b""
        (place / "t.csv").write_bytes(header + content)
        whole, counted = read_in_both_ways(place / "t.csv")
        assert whole == counted
        packed = place / "t.csv.gz"
        packed.write_bytes(content)
        read_in_both_ways(packed)


KINDS = {
    "text": [
        pa.string(),
        pa.large_string(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    "year": [pa.int16(), pa.uint64(), pa.float32(), pa.float64(), pa.string()],
    "wage": [pa.float64(), pa.float32(), pa.int64(), pa.decimal128(9, 3)],
    "other": [pa.string(), pa.bool_(), pa.int8()],
}
VALUES = {
    "text": st.sampled_from(["a", "b", "1", "?", None]),
    "year": st.sampled_from([1994, 1995]),
    "wage": st.sampled_from([None, 0, 9, 10, 100, 250, -3]),
    "other": st.sampled_from([None, 0, 1]),
}
BAD = {"text": "жщю", "year": 7, "wage": float("nan"), "other": 1}


@st.composite
def tables(draw) -> pa.Table:
    """A table of any types, as a rule one that keeps to the schema."""
    n_records = draw(st.integers(0, 12))
    columns = {}
    for name, values in VALUES.items():
        kind = draw(st.sampled_from(KINDS[name]))
        cells = draw(st.lists(values, min_size=n_records, max_size=n_records))
        if n_records and draw(st.integers(0, 12)) == 0:
            bad = None if name == "wage" and "float" not in str(kind) else BAD[name]
            cells[draw(st.integers(0, n_records - 1))] = bad
        if kind == pa.string() and name != "text":
            cells = [None if cell is None else str(cell) for cell in cells]
        if kind == pa.bool_():
            cells = [None if cell is None else bool(cell) for cell in cells]
        columns[name] = (
            pa.array(cells, pa.string()).cast(kind)
            if (pa.types.is_dictionary(kind))
            else pa.array(cells, kind, from_pandas=False)
        )
    return pa.table(columns)


def read_all_ways(place: Path, table: pa.Table, first: int, size: int) -> list[tuple]:
    """What becomes of a table read whole, counted and in two parts."""
    pq.write_table(table, place / "t.parquet", row_group_size=size)
    (place / "parts").mkdir()
    for number, part in enumerate((table[:first], table[first:])):
        pq.write_table(part, place / "parts" / f"{number}.parquet")
    parted = outcome(lambda: PartitionedTable(place / "parts", SCHEMA))
    if isinstance(parted[0], str):
        again = PartitionedTable(place / "parts", SCHEMA)
        # in one pass, where the others were two
        assert (again.total(cells_of).tolist(), again.fingerprint) == parted[::-1]
    return [*read_in_both_ways(place / "t.parquet"), parted]


def test_parquet_files_are_refused_or_read_alike_whole_counted_and_in_parts():
    outcomes = []

    @settings(max_examples=80, **FIXED)
    @given(tables(), st.integers(0, 12), st.integers(1, 5))
    def read_alike(table, first, size):
        with folder() as place:
            whole, counted, parted = read_all_ways(place, table, first, size)
        assert whole == counted
        # a folder names the problems of each file, a table those of each column
        assert parted == whole or parted[0] is whole[0] is DataError
        outcomes.append(whole)

    read_alike()
    assert 0.1 < share_refused(outcomes) < 0.9


def test_a_reader_that_takes_a_bad_value_for_a_code_would_be_found(monkeypatch):
    # the broken twin: what one column can't code is its first level
    def coded_somehow(coder, values):
        try:
            return codes_of(coder, values)
        except CellError:
            return np.zeros(len(values), dtype=np.int64)

    codes_of = counting.Coder._codes
    monkeypatch.setattr(counting.Coder, "_codes", coded_somehow)

    @settings(max_examples=80, phases=[Phase.generate], **FIXED)
    @given(tables(), st.integers(0, 12), st.integers(1, 5))
    def read_alike(table, first, size):
        with folder() as place:
            whole, counted, _ = read_all_ways(place, table, first, size)
        assert whole == counted

    with pytest.raises(AssertionError):
        read_alike()


def plain_file() -> bytes:
    rows = [("a", 1994, 5.0, "ж"), ("b", 1995, None, "щ"), (None, 1994, 99.0, "ю")] * 3
    written = io.BytesIO()
    frame = pd.DataFrame(rows, columns=NAMES)
    frame.to_parquet(written, index=False, compression=None)
    return written.getvalue()


PLAIN = plain_file()


@settings(max_examples=120, **FIXED)
@given(
    st.lists(
        st.tuples(st.integers(0, len(PLAIN) - 1), st.integers(0, 255)), max_size=4
    ),
    st.integers(0, len(PLAIN)) | st.just(len(PLAIN)),
)
def test_a_damaged_parquet_file_is_refused_or_another_table(flipped, length):
    content = bytearray(PLAIN)
    for place, byte in flipped:
        content[place] = byte
    with folder() as place:
        (place / "t.parquet").write_bytes(content[:length])
        whole, counted = read_in_both_ways(place / "t.parquet")
        if isinstance(whole[0], str) and isinstance(counted[0], str):
            assert whole == counted
        outcome(lambda: PartitionedTable(place, SCHEMA))


KEYS = st.sampled_from(
    [
        "columns",
        "text",
        "levels",
        "lower",
        "upper",
        "bins",
        "bin_edges",
        "missing",
        "records",
        "person",
        "max_per_person",
        "impossible",
        "rule",
        "members",
        "ignore",
        "title",
        "total",
        "csv",
        "separator",
        "type",
        "scale",
        "integer",
        "public",
    ]
)
LEAVES = st.one_of(
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(),
    st.text("жab1 ", max_size=4),
    st.dates(),
    st.sampled_from(["date", "log", "clip", ";", "a", "text"]),
)
CONTENTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


def one_line_or_schema(read) -> None:
    error = refusal(read)
    assert error is None or str(error)


@settings(max_examples=200, **FIXED)
@given(
    st.dictionaries(KEYS, CONTENTS, max_size=4),
    st.dictionaries(KEYS, CONTENTS, max_size=5),
)
def test_any_contents_are_a_schema_or_refused(described, column):
    told = {**described, "columns": {"text": column}}
    for contents in (described, told):
        one_line_or_schema(
            lambda given=contents: Schema.from_toml(tomli_w.dumps(given))
        )


@settings(max_examples=150, **FIXED)
@given(
    st.binary(max_size=40)
    | st.text("[]{}=.,#\"' \n\\abu0123e-_жT:", max_size=40).map(str.encode)
)
@example(b"\xff")
@example(b"\x00")
@example(b'[columns.text]\nlevels = ["a", "\\ud800"]')
def test_any_bytes_are_a_schema_file_or_refused(content):
    with folder() as place:
        (place / "s.toml").write_bytes(content)
        one_line_or_schema(lambda: Schema.load(place / "s.toml"))
