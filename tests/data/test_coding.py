"""The code of a record, or its refusal, is a function of its own cells, the schema and
the columns' types.

Columns are drawn from pools of awkward cells. What becomes of a cell beside others is
compared with what becomes of it alone: its code or refusal, its number, its hash, its
person's key. Twins are the readers that compared or inferred.
"""

import csv
import datetime
import math
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from tables import refuses, unread

from pdips import Column, InputError, LaplaceSanitizer, Schema, Table
from pdips.audit import audit
from pdips.audit.neighbour_pairs import Pair, pair_of_files
from pdips.data import coding
from pdips.data.coding import (
    CellError,
    encode,
    number_spelling,
    numbers,
    person_key,
    person_keys,
    spelling,
    value_hashes,
)
from pdips.data.readers import read_frame
from pdips.errors import DataError

N_COLUMNS, WIDTH = 10_000, 250
BIG = 2**53

TEXTS = [
    *["1", "01", "001", "1.0", "1.00", "1e0", "1e3", "1000", " 1", "1 ", "+1", "-0", "0", "0.0", "-1", "-1.0", ".5"],  # noqa: E501
    *["5.", "True", "TRUE", "true", "False", "T", "NA", "nan", "NaN", "null", "None", "<NA>", "inf", "-inf", "x", "X"],  # noqa: E501
    *["#c", "\u00e9", "e\u0301", "a,b", 'a"b', "a\nb", "a\r\nb", f"{BIG - 1}", f"{BIG}", f"{BIG + 1}", f"{BIG + 1}.0"],  # noqa: E501
    *["2020-02-30", "2020", "2020-01", "2020-01-01 10:00", " x", "x ", "  "],
    *["0.1", "0.10", "1_000", "0x10", "\uff11", "1/2", "2020-01-01", "\ufeff1", "'1'", "1" + "0" * 400, "\xa01", None],  # noqa: E501
]  # fmt: skip
WHOLE = [0, 1, 2, 5, 100, None]
LARGE = [*WHOLE, 1000, BIG - 1, BIG, BIG + 1, 2**63 - 1]
DOUBLES = [
    0.0,
    -0.0,
    1.0,
    0.1,
    0.5,
    1000.0,
    1e22,
    math.inf,
    math.nan,
    float(BIG),
    float(np.float32(0.1)),
    None,
]
DECIMALS = [
    Decimal(text)
    for text in ("1.00", "0.10", "1000.00", "0.50", "-1.00", f"{BIG + 1}.00", "0.00")
]
MIXED = [
    *[True, False, np.True_, 1, 0, -1, 1.0, -0.0, 0.1, 0.5, math.nan, None, pd.NA, pd.NaT, np.int64(1), np.uint8(1)],  # noqa: E501
    *[np.float64(1.0), np.float32(0.1), Decimal(1), Decimal("1.0"), Decimal("NaN"), Decimal("sNaN"), Fraction(1), b"1"],  # noqa: E501
    *[Fraction(1, 10), Fraction(1, 3), "1", "01", "True", "0.1", "x", "nan", BIG, BIG + 1, float(BIG), 10**400, (1, 2)],  # noqa: E501
    *[np.str_("1"), datetime.date(2020, 1, 1), pd.Timestamp("2020-01-01"), 1j, [1], {1}, {"a": 1}, np.array([1])],  # noqa: E501
]  # fmt: skip

FILED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), TEXTS),
    "large_string": (pa.large_string(), TEXTS),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    "dictionary of numbers": (pa.dictionary(pa.int32(), pa.int64()), LARGE),
    **{
        f"int{bits}": (getattr(pa, f"int{bits}")(), [*WHOLE, -1])
        for bits in (8, 16, 32)
    },
    **{f"uint{bits}": (getattr(pa, f"uint{bits}")(), WHOLE) for bits in (8, 16, 32)},
    "int64": (pa.int64(), [*LARGE, -1, -(2**63)]),
    "uint64": (pa.uint64(), [*LARGE, 2**64 - 1]),
    "bool": (pa.bool_(), [True, False, None]),
    "float64": (pa.float64(), DOUBLES),
    "float32": (pa.float32(), [value for value in DOUBLES if value != float(BIG)]),
    "decimal": (pa.decimal128(38, 2), [*DECIMALS, None]),
    "date": (pa.date32(), [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1), None]),
    "binary": (pa.binary(), [b"1", b"x", None]),
    "null": (pa.null(), [None]),
}
TRUTHS, CENTS = [True, False, None], (pa.decimal128(38, 2), [*DECIMALS, None])
ARROW = [
    (pa.string(), TEXTS),
    (pa.int64(), LARGE),
    (pa.float64(), DOUBLES),
    (pa.bool_(), TRUTHS),
    CENTS,
]
HELD: dict[str, tuple[Any, list[Any]]] = {
    "mixture": (object, MIXED),
    "mixture of texts": (object, [*TEXTS, math.nan, pd.NA]),
    "mixture of texts and numbers": (object, [*TEXTS, *LARGE]),
    "mixture of truths": (object, [True, False, None, "True", "1", pd.NA]),
    "str": ("str", TEXTS),
    "string": ("string", TEXTS),
    "Int64": ("Int64", LARGE),
    "UInt64": ("UInt64", [*LARGE, 2**64 - 1]),
    "Float64": ("Float64", DOUBLES),
    "Float32": ("Float32", DOUBLES),
    "boolean": ("boolean", [True, False, None]),
    "int64": ("int64", [value for value in LARGE if value is not None]),
    "float64": ("float64", [math.nan if value is None else value for value in DOUBLES]),
    "bool": ("bool", [True, False]),
    "category": ("category", TEXTS),
    "category of numbers": ("category", LARGE),
    **{f"arrow {kind}": (pd.ArrowDtype(kind), pool) for kind, pool in ARROW},
}
"""What a file or a frame can hold: the type, and a pool of cells."""

COLUMNS = [
    Column.model_validate(made)
    for made in (
        {
            "levels": [
                "1",
                "01",
                "x",
                "1.0",
                "True",
                "é",
                "a,b",
                "a\nb",
                "0.1",
                "0.10",
                str(BIG),
                str(BIG + 1),
            ]
        },
        {
            "levels": ["1", "0", "x", "1.00", "False", "2020-01-01", str(BIG + 1)],
            "missing": True,
        },
        {"levels": ["1", "True", "x", "1_000", "None"], "missing": ["NA", "-1", "01"]},
        {"levels": [0, 1, 1000, 0.1], "missing": True},
        {"levels": [1, BIG - 1, 100], "missing": [-1, "x", "NA"]},
        {"levels": [0, 1, 2, 5]},
        {"levels": [True, False], "missing": True},
        {"levels": [True, False]},
        {"lower": 0, "upper": 1000, "bins": 7, "missing": True},
        {
            "lower": 0,
            "upper": 1000,
            "bins": 7,
            "integer": True,
            "missing": [-1, "NA", "x"],
        },
        {"lower": -1, "upper": BIG - 1, "bins": 9, "integer": True},
        {"lower": -1, "upper": 1000},
        {"lower": 0, "upper": 1e99, "missing": ["nan", 0.1]},
        {"levels": ["1", "x", "01"], "missing": True, "trim": True},
        {"lower": 0, "upper": 100, "bins": 3, "missing": [-1], "out_of_range": "clip"},
        {
            "lower": "2019-01-01",
            "upper": "2021-12-31",
            "bins": 5,
            "missing": True,
            "type": "date",
        },
        {
            "lower": 1000,
            "upper": 2100,
            "missing": ["x"],
            "type": "date",
            "unit": "year",
            "out_of_range": "clip",
        },
    )
]


def found(work: Callable[[], Any]) -> Any:
    """What comes out, one text a record; or which rule a record breaks."""
    try:
        return [repr(value) for value in work()]
    except CellError as error:
        return error.rank


def codes_of(
    values: pd.Series, column: Column, coder: Callable[..., Any] = encode
) -> Any:
    code = coder if column.is_categorical or column.is_binned else numbers
    return found(lambda: code("x", values, column))


def marks_of(values: pd.Series) -> Any:
    """Hash and person's key of each record."""

    def both() -> list[tuple[object, object]]:
        place, spelt = person_keys("x", values)
        return list(
            zip(
                value_hashes("x", values),
                [None if i < 0 else spelt[i] for i in place],
                strict=True,
            )
        )

    return found(both)


def together(alone: list[Any]) -> Any:
    """What a table must give, from what each of its records gives alone: a code each,
    or the first rule broken.
    """
    broken = [part for part in alone if not isinstance(part, list)]
    return min(broken) if broken else [part[0] for part in alone]


type Alone = Callable[[str, int, int | None], Any]


def alone_in(
    column_of: Callable[[str, int], pd.Series], coder: Callable[..., Any] = encode
) -> Alone:
    """Return what becomes of a cell of a pool in a table of one record, worked out
    once; without a column its marks.
    """

    @cache
    def alone(kind: str, cell: int, column: int | None) -> Any:
        values = column_of(kind, cell)
        return (
            marks_of(values)
            if column is None
            else codes_of(values, COLUMNS[column], coder)
        )

    return alone


def differ(
    alone: Alone,
    kind: str,
    cells: list[int],
    column: int | None,
    values: pd.Series,
    coder: Callable[..., Any] = encode,
) -> bool:
    """Whether what becomes of some cells together isn't what becomes of each alone."""
    found = (
        marks_of(values) if column is None else codes_of(values, COLUMNS[column], coder)
    )
    return found != together([alone(kind, i, column) for i in cells])


def drawn(
    rng: np.random.Generator, alone: Alone, kind: str, pool: list[Any], n: int
) -> tuple[int, list[int]]:
    """A column of the schema and cells, half of the time only such as are let in."""
    column = int(rng.integers(len(COLUMNS)))
    cells = list(range(len(pool)))
    if rng.random() < 0.5:
        cells = [
            cell for cell in cells if isinstance(alone(kind, cell, column), list)
        ] or cells
    few = rng.choice(
        cells, size=min(len(cells), int(rng.integers(1, 9))), replace=False
    )
    return column, rng.choice(few, size=n).tolist()


def held(kind: str, cells: list[int]) -> pd.Series:
    dtype, pool = HELD[kind]
    values: Any = [pool[cell] for cell in cells]
    if dtype is object:
        made = np.empty(len(values), dtype=object)
        for place, value in enumerate(values):
            made[place] = value
        return pd.Series(made)
    if kind == "category of numbers":
        values = pd.array(values, dtype="Int64")
    return pd.Series(values, dtype=dtype)


def frames_that_differ(
    n_columns: int,
    seed: int,
    coder: Callable[..., Any] = encode,
    kinds: Sequence[str] = tuple(HELD),
) -> int:
    """In how many columns of frames what becomes of a record depends on the others."""
    rng, alone = (
        np.random.default_rng(seed),
        alone_in(lambda kind, cell: held(kind, [cell]), coder),
    )
    bad = 0
    for i in range(n_columns):
        kind = kinds[i % len(kinds)]
        column, cells = drawn(rng, alone, kind, HELD[kind][1], int(rng.integers(2, 9)))
        places = (column, None) if i % 10 == 0 else (column,)
        bad += any(
            differ(alone, kind, cells, place, held(kind, cells), coder)
            for place in places
        )
    return bad


def parquet(
    path: Path, columns: list[tuple[str, list[int]]], rng: np.random.Generator
) -> Path:
    arrays = [
        pa.array([FILED[kind][1][cell] for cell in cells], FILED[kind][0])
        for kind, cells in columns
    ]
    table = pa.table({f"x{i}": array for i, array in enumerate(arrays)})
    pq.write_table(
        table,
        path,
        row_group_size=int(rng.integers(1, 9)),
        write_statistics=bool(rng.integers(2)),
    )
    return path


def text(
    path: Path,
    columns: list[tuple[str, list[int]]],
    rng: np.random.Generator,
    *,
    blank_first: bool = False,
) -> Path:
    """Write a text file in one of many ways: quotes where they needn't be, blank lines,
    either end of line, a BOM.
    """
    end = str(rng.choice(["\n", "\r\n"]))

    def field(cell: str | None) -> str:
        quoted = (cell is None and len(columns) == 1) or (
            cell is not None and any(c in cell for c in '",\n\r')
        )
        return (
            '"{}"'.format((cell or "").replace('"', '""'))
            if quoted or rng.random() < 0.2
            else cell or ""
        )

    rows = zip(*([TEXTS[cell] for cell in cells] for _, cells in columns), strict=True)
    lines = [
        ",".join(f"x{i}" for i in range(len(columns))),
        *(",".join(map(field, row)) for row in rows),
    ]
    lines = [line + end * int(1 + (rng.random() < 0.1)) for line in lines]
    content = end * blank_first + "".join(lines).removesuffix(
        end if rng.random() < 0.3 else "\0"
    )
    path.write_bytes(b"\xef\xbb\xbf" * int(rng.integers(2)) + content.encode())
    return path


def files_that_differ(
    folder: Path,
    suffix: str,
    n_columns: int,
    seed: int,
    read: Callable[[Path], pd.DataFrame] = read_frame,
    **more: Any,
) -> int:
    """In how many columns of files what becomes of a record depends on the others."""
    rng, write = np.random.default_rng(seed), parquet if suffix == "parquet" else text
    pools = (
        {kind: pool for kind, (_, pool) in FILED.items()}
        if suffix == "parquet"
        else {"text": TEXTS}
    )
    places = [
        (kind, [cell]) for kind, pool in pools.items() for cell in range(len(pool))
    ]
    single = read(write(folder / f"alone.{suffix}", places, rng))
    named = {
        (kind, cells[0]): single[f"x{i}"] for i, (kind, cells) in enumerate(places)
    }
    alone, bad = alone_in(lambda kind, cell: named[kind, cell]), 0
    for start in range(0, n_columns, WIDTH):
        n_rows = int(rng.integers(2, 9))
        kinds = [list(pools)[i % len(pools)] for i in range(start, start + WIDTH)]
        columns = [
            (kind, *drawn(rng, alone, kind, pools[kind], n_rows)) for kind in kinds
        ]
        frame = read(
            write(
                folder / f"{start}.{suffix}",
                [(kind, cells) for kind, _, cells in columns],
                rng,
                **more,
            )
        )
        for i, (kind, column, cells) in enumerate(columns):
            places = (column, None) if i % 10 == 0 else (column,)
            bad += any(
                differ(alone, kind, cells, place, frame[f"x{i}"]) for place in places
            )
    return bad


@pytest.mark.slow
def test_what_becomes_of_a_record_depends_on_no_other(tmp_path):
    assert frames_that_differ(N_COLUMNS * 2 // 5, 0) == 0
    assert files_that_differ(tmp_path, "parquet", N_COLUMNS * 2 // 5, 1) == 0
    assert files_that_differ(tmp_path, "csv", N_COLUMNS // 5, 2) == 0


def factorized_first(name: str, values: pd.Series, column: Column) -> Any:
    """A coder that compares records: equal values first, then how one is spelt."""
    if not column.is_categorical:
        return encode(name, values, column)
    try:
        positions, uniques = pd.factorize(values)
    except TypeError:
        raise CellError(name, coding.NESTED) from None
    known, key = (
        coding._level_codes(column),
        spelling if isinstance(column.levels[0], (str, bool)) else number_spelling,
    )
    codes = np.array(
        [*(known.get(key(value), -1) for value in uniques), column.n_values]
    )
    if (codes < 0).any():
        raise CellError(name, coding.OUTSIDE_LEVELS)
    return codes[positions]


def inferred(path: Path, separator: str | None = None) -> pd.DataFrame:
    """A reader that compares records: Arrow's types below a blank first line, doubles
    beside a null.
    """
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        header = next(csv.reader(lines), [])
    options = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(header, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
    )
    return pa_csv.read_csv(
        path,
        convert_options=options,
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
    ).to_pandas()


@pytest.mark.slow
def test_readers_and_coders_that_compare_records_are_found_out(tmp_path):
    # broken twins of the test above, with the same comparison
    assert frames_that_differ(600, 0, factorized_first, ["mixture"]) > 5
    assert files_that_differ(tmp_path, "parquet", 1000, 1, inferred) > 5
    assert files_that_differ(tmp_path, "csv", 250, 2, inferred, blank_first=True) > 5


def csv_of(path: Path, rows: str, header: str = "x\n") -> Path:
    path.write_bytes((header + rows).encode())
    return path


ZEROS = Schema(columns={"x": {"levels": ["1", "01", "x"]}})
LARGE_LEVELS = Schema(
    columns={"x": {"levels": [str(BIG), str(BIG + 1)], "missing": True}}
)


@pytest.mark.parametrize(
    "header",
    [
        "\nx\n",
        "\r\nx\n",
        "\ufeff\nx\n",
        "\n\nx\n",
        '""\n',
        '"x\ny"\n',
        "x\0\n",
        "x,\n",
        "\ufeff\ufeffx\n",
        "x,x\n",
        "",
    ],
)
def test_a_first_line_that_does_not_name_the_columns_is_refused_whatever_the_rows(
    tmp_path, header
):
    said = set()
    for rows in ("01\n01\n", "01\nx\n", '"SECRET\n', "SECRET,2,3\n"):
        for counted in (False, True):
            with pytest.raises(InputError) as caught:
                Table.read(
                    csv_of(tmp_path / "t.csv", rows, header), ZEROS, counted=counted
                )
            assert "SECRET" not in str(caught.value)
            said.add((type(caught.value), str(caught.value)))
    assert len(said) == 1 or not header  # without one, the first record is read as one
    assert DataError not in {kind for kind, _ in said}


def test_text_stays_text(tmp_path):
    rows = '01\n"1"\n\nx\n\n'  # blank lines are no records
    for header in ("x\n", "\ufeffx\n", '"x"\r\n', "x\r"):
        path = csv_of(tmp_path / "t.csv", rows, header)
        assert Table.read(path, ZEROS, counted=False).codes["x"].tolist() == [1, 0, 2]
        assert Table.read(path, ZEROS, counted=True).codes["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.decimal128(20, 0)])
def test_whole_numbers_stay_whole_beside_a_missing_one(tmp_path, kind):
    cells = pa.array([Decimal(BIG), Decimal(BIG + 1), Decimal(BIG + 1), None]).cast(
        kind
    )
    pq.write_table(pa.table({"x": cells}), tmp_path / "t.parquet")
    for counted in (False, True):
        table = Table.read(tmp_path / "t.parquet", LARGE_LEVELS, counted=counted)
        assert table.count(table.codes["x"], 3).tolist() == [1, 2, 1]
    pq.write_table(
        pa.table({"x": pa.array([BIG + 1, BIG], pa.int64())}), tmp_path / "u.parquet"
    )
    assert read_frame(tmp_path / "u.parquet")["x"].dtype == np.int64


def test_of_two_broken_rules_the_first_is_named_wherever_it_is_broken(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("pdips.data.readers.BATCH_RECORDS", 1)
    schema = Schema(columns={"x": {"lower": 0, "upper": 9, "bins": 3, "integer": True}})
    for cells in ([99.0, 0.5, None], [None, 0.5, 99.0], [0.5, 99.0, None]):
        pq.write_table(pa.table({"x": cells}), tmp_path / "t.parquet")
        unread("column 'x' has missing values", tmp_path / "t.parquet", schema)


def test_text_that_is_not_unicode_is_refused_in_words(tmp_path):
    broken = pa.Array.from_buffers(
        pa.string(),
        1,
        [None, pa.py_buffer(np.array([0, 1], dtype=np.int32)), pa.py_buffer(b"\xff")],
    )
    pq.write_table(
        pa.table({"x": pa.concat_arrays([pa.array(["1"]), broken])}),
        tmp_path / "t.parquet",
    )
    unread("column 'x' holds text that is not Unicode", tmp_path / "t.parquet", ZEROS)


ONE_PERSON = [
    [1, 1.0, Decimal("1.00"), Fraction(1), np.int8(1), np.float32(1), "1", " 1", "1\u00a0", "01", "+1", "1.0", "10E-1"],  # noqa: E501
    ["\u00e9", "e\u0301", " \u00e9\t"],
    [10**22, 1e22, "1e22", "10000000000000000000000.0"],
    [BIG + 1, f"{BIG + 1}", f"{BIG + 1}.0", Decimal(BIG + 1)],
    [0, -0.0, "0", "-0.00", "0e5", ".0"],
    ["", " ", "\t"],
    ["1" + "0" * 400, 10**400, "1e400"],
]  # fmt: skip
OTHERS = [
    "a",
    "A",
    "1-",
    "-1",
    "1/1",
    "e5",
    ".",
    "1.5",
    BIG,
    "nan",
    "1e9999999999",
    "a b",
    "a  b",
    True,
]


def test_a_person_has_one_key_however_it_is_spelt():
    keys = [
        {person_key(value) for value in same}
        for same in [*ONE_PERSON, *([other] for other in OTHERS)]
    ]
    assert {len(found) for found in keys} == {1}
    assert len(set.union(*keys)) == len(keys)
    # the quick path and the careful one agree, on texts made of what numbers are made
    # of and of letters
    rng = np.random.default_rng(0)
    texts = [
        "".join(rng.choice(list("0012.-+eEx "), rng.integers(1, 7)))
        for _ in range(20_000)
    ]
    texts += ["9" * 300, "9" * 301, "-" + "9" * 300, "x" * 500, None]
    texts += [key for same in ONE_PERSON for key in same if isinstance(key, str)]
    place, keys = person_keys("id", pd.Series(texts, dtype="str"))
    assert [None if i < 0 else keys[i] for i in place] == [
        None if text is None else person_key(text) for text in texts
    ]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    "same", [["7", "007"], ["a", " a"], ["\u00e9", "e\u0301"], ["1.0", "1"], ["", " "]]
)
def test_the_cap_binds_on_all_spellings_of_a_key(tmp_path, suffix, same):
    schema = Schema.from_toml('[columns.x]\nlevels = ["1"]\n[records]\nperson = "id"')
    for ids, is_refused in (
        (same, same[0] != "" or suffix == "parquet"),
        ([same[1], "other"], False),
    ):
        getattr(pd.DataFrame({"x": ["1", "1"], "id": ids}), f"to_{suffix}")(
            tmp_path / f"t.{suffix}", index=False
        )
        if is_refused:
            unread("a person has more records than", tmp_path / f"t.{suffix}", schema)
        else:
            read = [
                Table.read(tmp_path / f"t.{suffix}", schema, counted=counted)
                for counted in (False, True)
            ]
            assert [each.n_records for each in read] == [2, 2]


def blank_first(folder: Path) -> Pair:
    rows = ["01\n" * 20 + "x\n", "01\n" * 21]
    files = [
        csv_of(folder / f"{i}.csv", content, "\nx\n") for i, content in enumerate(rows)
    ]
    return pair_of_files("blank first line", *files, ZEROS, "replace-one")


def one_null(folder: Path) -> Pair:
    for name, last in (("a", None), ("b", BIG + 1)):
        pq.write_table(
            pa.table({"x": pa.array([BIG + 1] * 20 + [last], pa.int64())}),
            folder / f"{name}.parquet",
        )
    return pair_of_files(
        "one null",
        folder / "a.parquet",
        folder / "b.parquet",
        LARGE_LEVELS,
        "replace-one",
    )


@pytest.mark.parametrize("pair_in", [blank_first, one_null])
def test_an_audit_of_files_finds_what_a_reader_gives_away(
    tmp_path, monkeypatch, pair_in
):
    sanitizer = LaplaceSanitizer(epsilon=1)
    with monkeypatch.context() as patched:
        patched.setattr("pdips.data.table.read_frame", inferred)
        assert audit(sanitizer, pair_in(tmp_path), engine="exact").bound >= 20
    if pair_in is one_null:
        assert (
            audit(sanitizer, pair_in(tmp_path), engine="exact").verdict == "consistent"
        )
    else:
        refuses("its first line must name the columns", pair_in, tmp_path)


def test_files_that_are_no_neighbours(tmp_path):
    def pair(
        first: str,
        second: str,
        schema: Schema = ZEROS,
        relation: Any = "replace-one",
        header: str = "x\n",
    ) -> Pair:
        files = [
            csv_of(tmp_path / f"{i}.csv", rows, header)
            for i, rows in enumerate((first, second))
        ]
        return pair_of_files("files", *files, schema, relation)

    assert pair("1\n01\n", "x\n1\n").first.codes["x"].tolist() == [0, 1]
    refuses("differ by more records", pair, "1\n1\n", "01\nx\n")
    refuses("differ in their number of records", pair, "1\n1\n", "1\n")
    refuses("exchanged", pair, "1\n", "x\n", relation="add-remove")
    numeric = Schema(columns={"x": {"levels": [1, 2]}})
    # of one code each, but the files differ
    refuses("differ by more records", pair, "1\n1\n", "1.0\n1.0\n", numeric)
    owned = Schema.from_toml(
        '[columns.x]\nlevels = ["1", "2"]\n[records]\nperson = "id"\nmax_per_person = 2'
    )
    assert (
        pair("1,7\n1,07\n", "2,7\n2,7.0\n", owned, header="x,id\n").neighbours
        == "replace-one"
    )
    for second in ("2,7\n2,8\n", "2,7\n2,\n", "2,\n2,\n"):
        refuses(
            "more than one person", pair, "1,7\n1,7\n", second, owned, header="x,id\n"
        )
    assert Counter(pair("1\n", "x\n").written[0]) == Counter([("1",)])
