"""Schema files: what is read back, and which key a mistake is blamed on."""

import tomllib

import numpy as np
import pandas as pd
import pytest
from tables import cases, refuses, schema_text

from pdips import InputError, Schema

FULL = schema_text("schema_full")


def test_everything_is_read_and_written_back():
    schema = Schema.from_toml(FULL)
    assert Schema.from_toml(schema.to_toml()) == schema
    assert list(schema.columns) == [
        "voted",
        "salary",
        "employees",
        "age",
        "region",
        "born",
        "job",
    ]
    assert schema.public_columns == ("region",)
    assert schema.zeros()[0] == {"voted": [1], "region": [0, 1]}
    assert [column.n_levels for column in schema.columns.values()] == [
        2,
        3,
        5,
        2,
        3,
        72,
        2,
    ]
    assert schema.to_dict()["columns"]["born"]["lower"] == "1940-01"
    assert schema.only(["job", "voted"]).to_dict()["columns"].keys() == {"voted", "job"}
    assert schema.only(["job"]).impossible == ()
    refuses(
        r"'Job' is no column of the schema \(did you mean "
        r"'job'\?\)",
        schema.only,
        ["job", "Job"],
    )


def test_edges_and_names_of_levels_and_bins():
    columns = Schema.from_toml(FULL).columns
    np.testing.assert_allclose(columns["salary"].edges, [1, 10, 100, 1000])
    assert columns["employees"].edges.tolist() == [0, 2, 5, 8, 11]
    assert columns["age"].edges.tolist() == [18, 25, 66]
    assert (columns["age"].lower, columns["age"].upper) == (18, 65)
    assert columns["voted"].names() == ["no", "yes"]
    assert columns["employees"].names() == ["0-1", "2-4", "5-7", "8-10", "missing"]
    assert columns["born"].names()[:2] == ["1940-01 to 1940-12", "1941-01 to 1941-12"]
    assert columns["job"].shown() == ["11 Farmer", "12"]
    assert columns["salary"].names() == ["1 to 10", "10 to 100", "100 to 1000"]


CODES = '[columns.job]\nlevels = ["111", "112", "211"]\n'


@pytest.mark.parametrize(
    ("lines", "found"), cases(__file__, "levels_from_a_file_beside_the_schema")
)
def test_levels_from_a_file_beside_the_schema(tmp_path, lines, found):
    (tmp_path / "codes.txt").write_bytes(
        lines.encode("latin-1" if lines == "\xff" else "utf-8")
    )
    (tmp_path / "s.toml").write_text('[columns.job]\nlevels_file = "codes.txt"\n')
    if isinstance(found, str):
        refuses(found, Schema.load, tmp_path / "s.toml")
        return
    column = Schema.load(tmp_path / "s.toml").columns["job"]
    assert column.levels == found
    assert column.labels == ({"a b": "A B"} if "\t" in lines else {})


@pytest.mark.parametrize("groups", ["2", '{"11" = ["111", "112"], "21" = ["211"]}'])
def test_groups_of_levels_are_read_back(groups):
    schema = Schema.from_toml(f"{CODES}groups = {groups}\nmissing = true")
    assert schema.columns["job"].grouped() == (["11", "21"], [0, 0, 1, 2])
    assert Schema.from_toml(schema.to_toml()) == schema


@pytest.mark.parametrize(("text", "message"), cases(__file__, "schema_mistakes"))
def test_a_mistake_is_blamed_on_its_key_in_one_line(text, message):
    assert message in refuses("", Schema.from_toml, text)


def test_a_file_that_cannot_be_read(tmp_path):
    refuses(
        r"can't read schema .*nowhere.toml: No such "
        r"file",
        Schema.load,
        tmp_path / "nowhere.toml",
    )
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    refuses("no UTF-8 text", Schema.load, tmp_path / "binary.toml")


def test_a_column_without_bins_has_no_levels():
    with pytest.raises(InputError, match="no levels until bins"):
        _ = Schema.from_toml("[columns.x]\nlower = 0\nupper = 1").columns["x"].n_levels


def replaced(draft: str) -> str:
    """Return a draft without the line that says it is one."""
    lines = draft.splitlines(keepends=True)
    assert lines[0].startswith("# DRAFT.")
    return "".join(lines[1:])


@pytest.mark.parametrize("before", ["", "# my notes\n\n", "  "])
def test_a_draft_is_refused_until_its_mark_is_deleted(tmp_path, before):
    text = Schema.draft(pd.DataFrame({"x": [0, 1]}))
    (tmp_path / "s.toml").write_text(before + text, encoding="utf-8")
    for load in (
        lambda: Schema.from_toml(before + text),
        lambda: Schema.load(tmp_path / "s.toml"),
    ):
        refuses(r"still a draft.*delete the line that begins with '# DRAFT\.'", load)
    (tmp_path / "s.toml").write_text(replaced(text))
    assert Schema.load(tmp_path / "s.toml").columns["x"].levels == (0, 1)


def test_a_draft_lists_no_keys_says_that_it_leaks_and_is_valid():
    text = Schema.draft(
        pd.DataFrame({"id": [f"SECRET{i}" for i in range(80)], "x": [0, 1] * 40})
    )
    assert "SECRET" not in text
    assert "# id: many different texts" in text
    assert list(Schema.from_toml(replaced(text)).columns) == ["x"]
    kinds = {
        "word": ["a", "b", None],
        "count": [1, 2, 3],
        "flag": [True, False, True],
        "amount": [0.5, 2.5, 1.0],
    }
    text = Schema.draft(
        pd.DataFrame(kinds | {"many": [0, 500, 1000], "same": [3.4, 3.4, 3.4]})
    )
    assert "READ OFF THE CONFIDENTIAL TABLE" in text
    schema = Schema.from_toml(replaced(text))
    assert schema.columns["word"].levels == ("a", "b")
    assert schema.columns["word"].missing is True
    assert schema.columns["count"].levels == (1, 2, 3)
    assert schema.columns["flag"].levels == (False, True)
    assert (schema.columns["amount"].lower, schema.columns["amount"].upper) == (
        0.5,
        2.5,
    )
    assert schema.columns["many"].integer
    assert (schema.columns["same"].lower, schema.columns["same"].upper) == (3.0, 3.5)
    assert (
        "# A table doesn't know levels that nobody in it has, of word, count," in text
    )
    assert "how far numbers and dates may go, of amount, many, same:" in text


def test_a_draft_leaves_infinite_numbers_out():
    text = Schema.draft(pd.DataFrame({"x": [0, 1, np.inf], "y": [0.5, 1, np.inf]}))
    drafted = tomllib.loads(text)["columns"]
    assert drafted["x"] == {"levels": [0, 1]}
    assert drafted["y"]["upper"] >= 1


def test_a_draft_knows_codes_from_numbers_and_dates():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(18, 66, 500), "nothing": [None] * 500})
    frame["occupation_code"] = rng.choice([11, 120, 4000, 5555, 9100], 500)
    frame["wage"] = rng.lognormal(8, 1, 500)
    frame["visited"] = [f"2020-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(500)]
    frame["children"] = rng.integers(0, 5, 500)
    columns = Schema.from_toml(replaced(Schema.draft(frame))).columns
    assert not any(column.is_binned for column in columns.values())
    assert (columns["age"].lower, columns["age"].upper, columns["age"].integer) == (
        10,
        70,
        True,
    )
    assert columns["occupation_code"].levels == (11, 120, 4000, 5555, 9100)
    assert columns["children"].levels == (0, 1, 2, 3, 4)
    assert columns["wage"].lower <= frame["wage"].min()
    assert columns["wage"].upper >= frame["wage"].max()
    assert frame["wage"].max() not in (columns["wage"].upper, columns["wage"].lower)
    assert (
        columns["visited"].type,
        columns["visited"].spell(columns["visited"].upper),
    ) == ("date", "2020-12-31")
    assert "nothing" not in columns


def test_a_draft_takes_no_dates_for_keys_of_persons():
    days = pd.date_range("2020-01-01", periods=120)
    columns = {
        "visit": days,
        "met": days.strftime("%Y-%m-%d 10:30"),
        "slashes": days.strftime("%m/%d/%Y"),
        "number": days.strftime("%Y%m%d").astype(int),
        "key": np.arange(5_000, 5_120),
    }
    frame = pd.DataFrame({name: np.repeat(of, 3) for name, of in columns.items()})
    text = Schema.draft(frame)
    drafted = Schema.from_toml(replaced(text))
    assert [name for name, of in drafted.columns.items() if of.type == "date"] == [
        "visit",
        "met",
    ]
    assert drafted.ignore == ("slashes", "number")
    assert "# number: whole numbers that read as dates" in text
    # the broken twin: what is no date, and comes in runs as well
    assert [line[:12] for line in text.splitlines() if "rows of one value" in line] == [
        "# key: rows "
    ]


def test_a_draft_ignores_identifiers_and_texts_and_says_what_to_do():
    n = np.arange(200)
    columns = {
        "id": n + 10_000,
        "pay": [f"{i}.{i:03},50" for i in n + 100],
        "day": [f"{1 + i % 28}/{1 + i % 12}/{1990 + i % 30}" for i in n],
        "met": [f"{1 + i % 28}.{1 + i % 12}.{1990 + i % 30}" for i in n],
        "free\ntext": [f"text {i}" for i in n],
        "size": np.arange(200) // 2 * 3.0,
        "mixed": n * 7 % 100,
    }
    text = Schema.draft(pd.DataFrame(columns))
    schema = Schema.from_toml(replaced(text))
    assert schema.ignore == ("id", "pay", "day", "free\ntext")
    assert schema.columns["met"].spell(schema.columns["met"].lower) == "1990-01-01"
    said = [
        line
        for line in text.splitlines()
        if line.startswith(("# id", "# pay", "# day", "# free text"))
    ]
    told = [
        "another whole number",
        "numbers with a decim",
        "dates are read as 20",
        "many different texts",
    ]
    assert [line[2:].split(": ", 1)[1].split(":")[0][:20] for line in said] == told
    assert "lower = 0\nupper = 300\ninteger = true" in text
    [panel] = [line for line in text.splitlines() if "stand together" in line]
    assert (panel[:8], panel[-44:]) == (
        "# size: ",
        '[records] person = "size" and max_per_person',
    )
