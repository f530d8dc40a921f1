"""Tables: what is let in, what is refused and in which words, and the way back from
codes to records.
"""

import gzip

import numpy as np
import pandas as pd
import pytest
from tables import cases, refuses, schema_in, schema_text, unread

from pdips import InputError, LaplaceSanitizer, Schema, Table
from pdips.data.table import decode, read_frame
from pdips.errors import DataError
from pdips.release.release import check_format

SCHEMA = schema_in("table")

GOOD = cases(__file__, "good")
SECRET = 31.4159265


def table_with(**changes) -> Table:
    return Table(pd.DataFrame(GOOD | changes), SCHEMA)


def test_codes():
    found = {name: values.tolist() for name, values in table_with().codes.items()}
    numbers = {"wage": [0, 3, 4], "kids": [0, 4, 1], "rent": [0, 2, 1]}
    assert (
        found == {"sex": [0, 1, 0], "year": [0, 2, 1], "employed": [0, 1, 1]} | numbers
    )


@pytest.mark.parametrize(
    "values",
    [
        pd.to_datetime(["2020-01-01"] * 3),
        pd.to_timedelta([1, 2, 3]),
        [1j, 2j, 3j],
        [[1], [2], [3]],
    ],
)
def test_types_that_are_no_records(values):
    refuses(r"column 'wage' (is of a type|holds lists)", table_with, wage=values)


def test_columns_that_the_schema_lacks_or_the_table_are_named():
    with pytest.raises(
        InputError,
        match=r"2 columns of the table are not .* first "
        r'lines: ignore = \["a", "b\\""\]$',
    ):
        table_with(**{'b"': [1, 2, 3], "a": [1, 2, 3]})
    refuses(
        "column 'sex' of the schema is not in the table",
        Table,
        pd.DataFrame(GOOD).drop(columns="sex"),
        SCHEMA,
    )
    refuses(
        "two columns of the same name",
        Table,
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        SCHEMA,
    )
    refuses("has no records", Table, pd.DataFrame(GOOD).iloc[:0], SCHEMA)


def test_all_problems_are_named_at_once():
    with pytest.raises(DataError) as caught:
        table_with(
            sex=["f", None, "SECRET"], wage=[SECRET, 1, 200], kids=[0.5, 10, None]
        )
    assert str(caught.value) == (
        "column 'sex' has values outside the levels of its schema (compared letter "
        "by letter; trim = true takes blanks "
        "off); it has missing values, which its schema doesn't declare (missing = "
        "true); column 'wage' has values "
        "outside its bounds, 0 to 100; column 'kids' has missing values, which its "
        "schema doesn't declare (missing = "
        "true); it has values outside its bounds, 0 to 9; it must hold whole numbers"
    )
    with pytest.raises(
        InputError,
        match=r"'kids' of the schema is not in the table; "
        r".*'wage' of the schema is not",
    ):
        Table(pd.DataFrame(GOOD | {"SECRET": 1}).drop(columns=["wage", "kids"]), SCHEMA)


PERSONS = Schema.from_toml(
    '[columns.x]\nlevels = [0, 1]\n[records]\nperson = "id"\nmax_per_person = 2'
)


def test_the_cap_on_records_of_a_person():
    frame = pd.DataFrame({"x": [0, 1, 0, 1], "id": ["SECRET", "SECRET", None, None]})
    # rows without a key count once each
    assert list(Table(frame, PERSONS).codes) == ["x"]
    frame.loc[2, "id"] = "SECRET"
    assert "SECRET" not in refuses(
        r"more records than records\.max_per_person = 2 "
        r"allows",
        Table,
        frame,
        PERSONS,
    )
    refuses(
        "column 'id' of the schema is not in the table",
        Table,
        frame.drop(columns="id"),
        PERSONS,
    )
    # keys are compared as they are spelt
    frame["id"] = pd.Series([1, "1", 1.0, None], dtype=object)
    refuses("more records than", Table, frame, PERSONS)
    assert Table(frame.drop(index=0), PERSONS).n_records == 3


def test_a_table_shows_nothing():
    shown = repr(table_with()) + str(table_with())
    assert "1994" not in shown
    assert "3" not in shown


WHOLE = pd.DataFrame({"a": ["1"] * 5000}).to_parquet()
DAMAGED = {
    ("csv", DataError): [
        b"a,b\n1,2\nSECRET,3,4,5\n",
        b"a,b\n1,2,\n3,1,\n",
        b"a;b\n1;2;SECRET\n",
        b"a\n\xff\xfe\n",
    ],
    ("csv", InputError): [b"\xff\n1\n", b""],
    ("csv.gz", DataError): [gzip.compress(b"a,b\n1,2\nSECRET,2\n", mtime=0)[:-9]],
    ("csv.gz", InputError): [b"a,b\n1,2\n"],
    ("parquet", DataError): [WHOLE[:4] + bytes(36) + WHOLE[40:]],
    ("parquet", InputError): [b"PAR1 SECRET PAR1"],
    ("sav", DataError): [b"SECRET"],
}


@pytest.mark.parametrize(("suffix", "kind"), DAMAGED)
def test_damaged_rows_are_the_data_and_a_damaged_head_is_not(tmp_path, suffix, kind):
    path, schema = (
        tmp_path / f"t.{suffix}",
        Schema.from_toml("ignore = true\n[columns.a]\nlevels = [1, 3]"),
    )
    for content in DAMAGED[suffix, kind]:
        path.write_bytes(content)
        for counted in (False, True):
            with pytest.raises(
                InputError, match=f"is damaged, or no {suffix} file"
            ) as caught:
                Table.read(path, schema, counted=counted)
            assert type(caught.value) is kind
            assert "SECRET" not in str(caught.value)


def test_files_that_are_none(tmp_path):
    refuses("doesn't exist", read_frame, tmp_path / "t.csv")
    (tmp_path / "t.txt").touch()
    refuses(r"must end in \.csv or \.parquet", read_frame, tmp_path / "t.txt")


def test_decoding_stays_in_the_bin_and_keeps_types():
    codes = {
        name: np.repeat(values, 200) for name, values in table_with().codes.items()
    }
    frame = decode(SCHEMA, codes, np.random.default_rng(0))
    again = Table(frame, SCHEMA)
    for name, values in codes.items():
        assert (again.codes[name] == values).all()
    assert frame["sex"].dtype == "str"
    assert frame["kids"].dtype == np.int64
    assert frame["employed"].dtype == bool
    assert frame["year"].isna().sum() == 200
    assert (frame["wage"] == -9).sum() == 200


def test_log_bins_are_drawn_evenly_on_the_log_scale():
    # 20,000 draws of one bin, 1 to 10: the mean of log10 is 1/2, standard error 0.002;
    # twin: even on the plain scale
    frame = decode(SCHEMA, {"rent": np.zeros(20_000, int)}, np.random.default_rng(0))
    assert abs(np.log10(frame["rent"]).mean() - 0.5) < 6 * 0.00205
    assert (
        abs(np.log10(np.random.default_rng(0).uniform(1, 10, 20_000)).mean() - 0.5)
        > 6 * 0.00205
    )


@pytest.mark.parametrize(
    ("levels", "missing", "dtype"),
    cases(__file__, "missing_values_come_back_as_they_were"),
)
def test_missing_values_come_back_as_they_were(levels, missing, dtype):
    schema = Schema.from_toml(f"[columns.x]\nlevels = {levels}\nmissing = {missing}")
    column = schema.columns["x"]
    frame = decode(schema, {"x": np.arange(column.n_levels)}, np.random.default_rng(0))
    assert str(frame["x"].dtype) == dtype
    assert Table(frame, schema).codes["x"].tolist() == list(range(column.n_levels))


FILES = schema_text("table_files")
ROWS = cases(__file__, "rows")
NAMES = ["born", "visit", "wage", "rate", "region", "comment"]


def text_of(mark: str = ";", **changes: str) -> str:
    rows = [
        NAMES,
        *(
            [changes.get(name, cell) for name, cell in zip(NAMES, row, strict=True)]
            for row in ROWS
        ),
    ]
    return "".join(mark.join(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("mark", [";", "\t"])
@pytest.mark.parametrize("counted", [False, True])
def test_a_file_as_people_have_them(tmp_path, name, mark, counted):
    text = text_of(mark).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    schema = Schema.from_toml("ignore = ['comment']" + FILES + "[csv]\ndecimal = ','")
    table = Table.read(tmp_path / name, schema, counted=counted)
    order = (
        np.argsort([value or "z" for value in ("b", "c", "d")])
        if not counted
        else slice(None)
    )
    rows = sorted(
        zip(*(codes[order].tolist() for codes in table.codes.values()), strict=True)
    )
    assert rows == sorted([(10, 0, 2, 0, 0), (60, 11, 9, 1, 1), (71, 1, 0, 1, 2)])
    every = Table.read(tmp_path / name, schema.only(["wage"]), counted=counted)
    # the ledger knows the table, whatever columns are chosen
    assert every.fingerprint == table.fingerprint


def test_what_a_table_holds_is_as_sets_have_it(tmp_path):
    (tmp_path / "t.csv").write_text(text_of())
    schema = Schema.from_toml("ignore = true" + FILES + "[csv]\ndecimal = ','")
    table = Table.read(tmp_path / "t.csv", schema)
    frame = decode(schema, table.codes, np.random.default_rng(0))
    assert list(table.frame) == list(frame) == NAMES[:5]
    assert (table.frame.dtypes.drop("rate") == frame.dtypes.drop("rate")).all()
    assert table.frame["wage"].tolist() == [1200.5, 5000, 0]
    assert table.frame["born"].dt.strftime("%Y-%m").tolist()[:2] == [
        "1950-03",
        "2000-12",
    ]
    assert table.frame["region"].isna().tolist() == [False, False, True]
    for suffix in ("csv", "parquet"):
        getattr(frame, f"to_{suffix}")(tmp_path / f"set.{suffix}", index=False)
        again = Table.read(tmp_path / f"set.{suffix}", schema.without_person())
        assert {n: c.tolist() for n, c in again.codes.items()} == {
            n: c.tolist() for n, c in table.codes.items()
        }


@pytest.mark.parametrize(
    ("changes", "message"), cases(__file__, "dates_and_numbers_that_are_none")
)
def test_dates_and_numbers_that_are_none(tmp_path, changes, message):
    (tmp_path / "t.csv").write_text(text_of(**changes))
    schema = Schema.from_toml("ignore = true" + FILES + "[csv]\ndecimal = ','")
    assert all(
        said.startswith(message) for said in unread("", tmp_path / "t.csv", schema)
    )


def test_a_separator_that_the_schema_states_is_taken(tmp_path):
    (tmp_path / "t.csv").write_text("a,b;c\n1;2\n")
    schema = Schema.from_toml(
        '[columns."a,b"]\nlevels = [1]\n[columns.c]\nlevels = '
        '[2]\n[csv]\nseparator = ";"'
    )
    assert Table.read(tmp_path / "t.csv", schema).n_records == 1
    refuses("is damaged", Table.read, tmp_path / "t.csv", schema.without_person())


def test_clipping_is_said_in_the_statement():
    schema = Schema.from_toml(
        "[columns.x]\nlower = 0\nupper = 9\nbins = 3\nout_of_range = 'clip'"
    )
    made, _ = LaplaceSanitizer(epsilon=1).release(
        Table(pd.DataFrame({"x": [-1e300, 5, 1e300]}), schema)
    )
    assert "are read as the nearest bound: x." in made.loss.statement
    assert made.sets[0]["x"].between(0, 9).all()


@pytest.mark.parametrize("kind", ["sav", "dta"])
def test_files_of_other_programs(tmp_path, kind):
    pyreadstat = pytest.importorskip("pyreadstat")
    frame = pd.DataFrame(
        {
            "sex": [1, 2, None],
            "born": pd.to_datetime(["1950-03-01", None, "2000-12-24"]).date,
        }
    )
    frame["job"], frame["extra"] = ["a", "", "b"], [2**31 + 0.5, 1, 2]
    getattr(pyreadstat, f"write_{kind}")(frame, str(tmp_path / f"t.{kind}"))
    schema = Schema.from_toml("""

ignore = true
[columns]
sex = { levels = [1, 2], labels = {1 = "male", 2 = "female"}, label = "Sex of the respondent", missing = true }
born = { type = "date", lower = 1940-01-01, upper = 2010-12-31, bins = 3, missing = true }
job = { levels = ["a", "b"], missing = true }
""")  # noqa: E501
    for counted in (False, True):
        table = Table.read(tmp_path / f"t.{kind}", schema, counted=counted)
        assert [codes.tolist() for codes in table.codes.values()] == [
            [0, 1, 2],
            [0, 3, 2],
            [0, 2, 1],
        ]
    check_format(schema, kind)
    made, _ = LaplaceSanitizer(epsilon=1).release(table)
    made.write(tmp_path / "out", file_format=kind)
    about = getattr(pyreadstat, f"read_{kind}")(
        str(tmp_path / "out" / f"synthetic_1.{kind}")
    )[1]
    again = Table.read(tmp_path / "out" / f"synthetic_1.{kind}", schema)
    assert about.variable_value_labels["sex"] == {1: "male", 2: "female"}
    assert about.column_names_to_labels["sex"] == "Sex of the respondent"
    assert all(
        (again.codes[n] == codes).all()
        for n, codes in Table(made.sets[0], schema).codes.items()
    )
    refuses(
        "can hold this schema",
        check_format,
        Schema.from_toml('[columns."no name! "]\nlevels = [1]'),
        kind,
    )


def test_a_schema_with_300_columns(tmp_path):
    columns = {
        f"x{i}": {"levels": [0, 1]} if i % 2 else {"lower": 0, "upper": 9, "bins": 3}
        for i in range(300)
    }
    schema = Schema(columns=columns)
    frame = pd.DataFrame(
        np.random.default_rng(0).integers(0, 2, (20, 300)), columns=list(columns)
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert list(Table.read(tmp_path / "t.csv", schema.only(["x7", "x2"])).codes) == [
        "x2",
        "x7",
    ]
    assert len(Table.read(tmp_path / "t.csv", schema).codes) == 300
    assert (
        refuses("", Table, frame + 20, schema, error=DataError).count("column '") == 300
    )
