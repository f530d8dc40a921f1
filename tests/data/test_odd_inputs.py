"""Texts, numbers and paths that no one means: one line and soon, whatever they are."""

import signal
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from tables import refuses

from pdips import Schema, Table
from pdips.data.coding import number_spelling, person_key, value_hashes
from pdips.errors import DataError

HALF = "\ud800"  # half of a surrogate pair
HUGE = 10**5_000
SECONDS = 10


@contextmanager
def soon():
    """Fail what takes longer than the seconds that no odd value should."""

    def end(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


LEVELS = {"a": {"levels": ["x"]}}
TEXTS = {
    "title": {"columns": LEVELS, "title": HALF},
    "name of a column": {"columns": {HALF: {"levels": ["x"]}}},
    "level": {"columns": {"a": {"levels": [f"x{HALF}"]}}},
    "label": {"columns": {"a": {"levels": ["x"], "label": HALF}}},
    "label of a level": {"columns": {"a": {"levels": ["x"], "labels": {"x": HALF}}}},
    "unit": {"columns": {"a": {"lower": 0, "upper": 1, "unit": HALF}}},
    "missing code": {"columns": {"a": {"levels": ["x"], "missing": [HALF]}}},
    "group": {"columns": {"a": {"levels": ["x"], "groups": {HALF: ["x"]}}}},
    "ignored column": {"columns": LEVELS, "ignore": [HALF]},
    "person": {"columns": LEVELS, "records": {"person": HALF}},
    "key": {"columns": LEVELS, "members": {"key": HALF, "most": 1, "columns": LEVELS}},
    "source": {
        "columns": LEVELS,
        "total": [{"columns": ["a"], "counts": {"x": 1}, "source": HALF}],
    },
}


@pytest.mark.parametrize("place", TEXTS)
def test_text_that_no_file_could_hold_is_refused_with_the_schema(place):
    refuses("no Unicode text", Schema, **TEXTS[place])


LONG = "9" * 5_000
TOML = {
    "digits": (f"[columns.a]\nlower = 0\nupper = {LONG}", "too many digits"),
    "hexadecimal": (f"[columns.a]\nlower = 0\nupper = 0x{LONG}", "valid number"),
    "level": (f"[columns.a]\nlevels = [1, 0x{LONG}]", "whole numbers below 2.53"),
    "arrays": (f"a = {'[' * 900}{']' * 900}", "nested too deeply"),
    "tables": (f"a = {'{a = ' * 900}1{'}' * 900}", "nested too deeply"),
    "counts": (
        "[columns.a]\nlevels = ['x']\n[[total]]\ncolumns = ['a']\n"
        f"counts.{'a.' * 3_000}a = 1",
        "nested too deeply",
    ),
    "infinite": ("[columns.a]\nlower = 0\nupper = 1e999", "finite number"),
    "count": (
        "[columns.a]\nlevels = ['x']\n[[total]]\ncolumns = ['a']\n"
        f"counts.x = 1{'0' * 4_000}",
        "below 2.53",
    ),
    "cap": (
        f"[columns.a]\nlevels = ['x']\n[records]\nmax_per_person = 1{'0' * 4_000}",
        "less than or equal to 1000000000",
    ),
    "groups": (
        f"[columns.a]\nlevels = ['x']\ngroups = 1{'0' * 4_000}",
        "1 to 1,000",
    ),
    "unit": (
        "[columns.a]\ntype = 'date'\nunit = ['day']\nlower = 2000-01-01\n"
        "upper = 2001-01-01",
        "the unit of dates",
    ),
}


@pytest.mark.parametrize("name", TOML)
def test_toml_beyond_what_python_holds_is_refused_in_a_short_line(name):
    text, message = TOML[name]
    with soon():
        assert len(refuses(message, Schema.from_toml, text)) < 200


def test_a_schema_in_memory_may_not_be_nested_too_deeply_either():
    counts = {}
    for _ in range(3_000):
        counts = {"x": counts}
    total = [{"columns": ["a"], "counts": {"x": counts}}]
    refuses("nested too deeply", Schema, columns=LEVELS, total=total)


def test_a_path_that_no_system_has():
    refuses("can't read schema", Schema.load, "a\0b.toml")


ODD = (
    Decimal("1e9999999"),
    Decimal("-1e9999999"),
    Decimal("1e-9999999"),
    Decimal("Infinity"),
    HUGE,
    -HUGE,
    LONG,
    Fraction(HUGE, 3),
    Fraction(HUGE),
    1e999,
    "1e999",
    HALF,
    b"\xff",
    1j,
)
COLUMNS = {
    "text": {"levels": ["x", "y"]},
    "numbers as levels": {"levels": [1, 2]},
    "codes": {"levels": [1, 2], "missing": [-9]},
    "number": {"lower": 1, "upper": 10, "bins": 2},
    "integer": {"lower": 1, "upper": 10, "bins": 2, "integer": True, "missing": [-9]},
    "date": {"type": "date", "lower": "2000-01-01", "upper": "2001-01-01", "bins": 2},
}


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("cell", ODD, ids=lambda cell: f"{type(cell).__name__}")
def test_an_odd_cell_is_refused_as_any_other_and_soon(column, cell):
    schema = Schema(columns={"a": COLUMNS[column]})
    usual = "x" if column == "text" else 1
    usual = "2000-06-01" if column == "date" else usual
    frame = pd.DataFrame({"a": pd.Series([usual, cell], dtype=object)})
    with soon():
        said = refuses("", Table, frame, schema, error=DataError)
    assert len(said) < 200
    assert "99" not in said


def test_odd_keys_of_persons_are_counted_by_value():
    keys = pd.Series([HUGE, Decimal("1e9999999"), HALF], dtype=object)
    frame = pd.DataFrame({"a": ["x"] * 3, "key": keys})
    schema = Schema(columns=LEVELS, records={"person": "key"})
    with soon():
        assert Table(frame, schema).fingerprint.startswith("3-")
        again = pd.concat([frame, frame.assign(key=f"1{'0' * 5_000}")])
        refuses("more records than", Table, again, schema, error=DataError)
        assert person_key(HUGE) == person_key(f"1{'0' * 5_000}")


def test_hashes_of_usual_cells_are_those_of_their_spelling():
    for cell in (
        "ä",
        12,
        1.5,
        Decimal("1.50"),
        Fraction(1, 3),
        Fraction(4),
        True,
        "\\ud800",
    ):
        expected = pd.util.hash_array(np.array([f"a={cell}"], dtype=object))
        found = value_hashes("a", pd.Series([cell], dtype=object))
        assert found.tolist() == expected.tolist()


def test_decimals_of_usual_size_are_spelt_by_value():
    found = [*map(number_spelling, (Decimal("1.0"), Decimal("1e2"), Fraction(4, 2)))]
    assert found == ["1", "100", "2"]
    assert number_spelling(Decimal("1.5")) == "1.5"
    assert number_spelling(Decimal(2**60 + 1)) == str(2**60 + 1)


TOTAL = "[columns.a]\nlevels = ['x']\n[[total]]\ncolumns = ['a']\nfile = {}"


@pytest.mark.parametrize("text", ["[columns.a]\nlevels_file = {}", TOTAL])
def test_files_outside_of_the_schemas_folder_are_not_read(tmp_path, text):
    home = tmp_path / "home"
    (home / "below").mkdir(parents=True)
    secret, beside = tmp_path / "secret.txt", home / "below" / "file.txt"
    for path in (secret, beside):
        path.write_text("a,count\nx,3\n" if text == TOTAL else "x\n")
    (home / "link.txt").symlink_to(secret)
    (home / "inner.txt").symlink_to(beside)
    (home / "folder").symlink_to(tmp_path)
    (home / "circle").symlink_to(home / "circle")
    outside = ("../secret.txt", str(secret), "link.txt", "folder/secret.txt")
    outside += ("below/../../secret.txt", "/dev/zero", str(beside))
    schema = home / "s.toml"
    for name in outside:
        schema.write_text(text.format(f"'{name}'"))
        said = refuses("must name a file in the schema's folder", Schema.load, schema)
        assert "x," not in said
    for name in ("circle", "nowhere.txt", "~/x", "."):
        schema.write_text(text.format(f"'{name}'"))
        refuses("can't be read", Schema.load, schema)
    for odd in ("3", "['file.txt']", '"a\\u0000b"'):
        schema.write_text(text.format(odd))
        refuses("must name a file|can't be read", Schema.load, schema)
    for name in ("below/file.txt", "inner.txt", "./below/../inner.txt"):
        schema.write_text(text.format(f"'{name}'"))
        assert Schema.load(schema).columns["a"].levels == ("x",)


def test_columns_of_a_total_from_a_file_are_names(tmp_path):
    (tmp_path / "file.csv").write_text("a,count\nx,3\n")
    for columns in ("[]", "[['a']]"):
        text = TOTAL.format("'file.csv'").replace("['a']", columns)
        (tmp_path / "s.toml").write_text(text)
        refuses("a list of at least one column", Schema.load, tmp_path / "s.toml")
