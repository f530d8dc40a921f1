"""Whichever way a table comes in, what is counted is what was checked: changes in
between are without effect, or refused.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from household_tables import schema_of, simulated
from tables import refuses

from pdips import InputError, Schema, Table
from pdips.data import counted as counting
from pdips.data import readers as files
from pdips.data import table as whole
from pdips.errors import DataError

SCHEMA = Schema.from_toml(
    """
[columns.text]
levels = ["a", "b"]
[columns.wage]
lower = 0
upper = 100
"""
)
LEVELS = Schema.from_toml('[columns.text]\nlevels = ["a", "b", "c"]')


def contents(table: Table) -> tuple:
    """What mechanisms and ledgers read of a table."""
    return (
        table.fingerprint,
        table.codes["text"].tolist(),
        table.frame["text"].tolist(),
        table.sort_key("wage").tolist(),
        table.public_part().n_records,
    )


WANTED = contents(Table({"text": ["a", "b", "a"], "wage": [1.0, 2.0, 3.0]}, SCHEMA))


def of_numpy():
    wages = np.array([1.0, 2.0, 3.0])
    frame = pd.DataFrame(wages[:, None], columns=["wage"], copy=False)
    frame.insert(0, "text", ["a", "b", "a"])
    assert np.shares_memory(frame["wage"].to_numpy(), wages)
    return frame, lambda: wages.fill(1e9)


def of_pandas():
    frame = pd.DataFrame({"text": ["a", "b", "a"], "wage": [1.0, 2.0, 3.0]})

    def change():
        frame.loc[0, "text"] = "SECRET"
        frame.loc[:, "wage"] = 1e9
        frame.loc[3] = ["SECRET", -1.0]

    return frame, change


def of_objects():
    frame = pd.DataFrame({"text": ["a", "b", "a"], "wage": [1.0, 2.0, 3.0]})
    frame["text"] = frame["text"].astype(object)
    return frame, lambda: frame["text"].array.__setitem__(0, "SECRET")


def of_a_dict():
    given = {"text": ["a", "b", "a"], "wage": np.array([1.0, 2.0, 3.0])}

    def change():
        given["text"][0] = "SECRET"
        given["wage"].fill(1e9)

    return given, change


def of_arrow():
    """Arrow reads memory of numpy where it is."""
    letters, wages = np.frombuffer(b"aba", "u1").copy(), np.array([1.0, 2.0, 3.0])
    ends = np.arange(4, dtype=np.int32)
    text = pa.StringArray.from_buffers(3, pa.py_buffer(ends), pa.py_buffer(letters))
    table = pa.table({"text": text, "wage": wages})

    def change():
        letters.fill(ord("z"))
        wages.fill(1e9)

    return table, change


def of_arrow_in_pandas():
    table, change = of_arrow()
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return frame, change


def of_a_mapped_file(folder: Path):
    path = folder / "table.arrow"
    source, _ = of_arrow()
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, source.schema) as out,
    ):
        out.write_table(source)
    mapped = pa.ipc.open_file(pa.memory_map(str(path))).read_all()

    def change():
        content = path.read_bytes()
        with path.open("r+b") as opened:
            opened.write(content.replace(b"aba", b"zzz"))

    return mapped, change


FORMS = [of_numpy, of_pandas, of_objects, of_a_dict, of_arrow, of_arrow_in_pandas]


@pytest.mark.parametrize("form", FORMS)
def test_changes_to_what_was_given_reach_no_table(form):
    given, change = form()
    table = Table(given, SCHEMA)
    change()
    assert contents(table) == WANTED
    # the change is one that would be seen
    refuses("", Table, given, SCHEMA)


def test_changes_to_a_file_that_is_mapped_into_memory_reach_no_table(tmp_path):
    mapped, change = of_a_mapped_file(tmp_path)
    table = Table(mapped, SCHEMA)
    change()
    assert contents(table) == WANTED
    refuses("", Table, mapped, SCHEMA)


@pytest.mark.parametrize("form", [of_numpy, of_arrow])
def test_without_a_copy_they_would(form, monkeypatch):
    # the broken twin
    monkeypatch.setattr(
        whole,
        "_copied",
        lambda table: whole.to_pandas(table) if isinstance(table, pa.Table) else table,
    )
    given, change = form()
    table = Table(given, SCHEMA)
    change()
    try:
        found = contents(table)
    except DataError:  # numbers that were in bounds when they were checked
        found = None
    assert found != WANTED


def test_changes_to_households_and_members_reach_no_table():
    homes, people = simulated(40, seed=1)
    table = Table.of_households(homes, people, schema_of())
    codes = {name: values.copy() for name, values in table.codes.items()}
    for frame in (homes, people):
        for name in frame:
            frame[name] = frame[name].iloc[0]
    again = Table.of_households(*simulated(40, seed=1), schema_of())
    assert table.fingerprint == again.fingerprint
    for name, values in codes.items():
        np.testing.assert_array_equal(table.codes[name], values)


# Files that are replaced while they are read


def written(letters: str, path: Path) -> Path:
    frame = pd.DataFrame({"text": list(letters)})
    hidden = path.with_name(f"new{path.suffix}")
    if path.suffix == ".csv":
        frame.to_csv(hidden, index=False)
    else:
        frame.to_parquet(hidden, index=False)
    os.replace(hidden, path)
    return path


def replace_after(monkeypatch, looked: str, replace) -> None:
    """Have a file replaced when one of the looks at it is over."""
    module = counting if looked == "countable" else whole
    original = getattr(module, looked)

    def replaced(*given, **named):
        found = original(*given, **named)
        replace()
        return found

    monkeypatch.setattr(module, looked, replaced)


SUFFIXES = pytest.mark.parametrize("suffix", [".parquet", ".csv"])
LOOKS = pytest.mark.parametrize("looked", ["is_large", "check_columns", "countable"])
OLD, NEW = "aabbc", "bbbbc"
COUNTS = {OLD: [2, 2, 1], NEW: [0, 4, 1]}


@SUFFIXES
@LOOKS
@pytest.mark.parametrize("is_large", [False, True])
def test_a_file_replaced_while_it_is_read_is_one_table_or_the_other(
    tmp_path, monkeypatch, suffix, looked, is_large
):
    path = tmp_path / f"t{suffix}"
    prints = {
        letters: Table.read(written(letters, path), LEVELS).fingerprint
        for letters in (NEW, OLD)
    }
    monkeypatch.setattr(whole, "is_large", lambda _: is_large)
    replace_after(monkeypatch, looked, lambda: written(NEW, path))
    table = Table.read(path, LEVELS)
    assert (table.counts is not None) == is_large
    [read] = [
        letters for letters, known in prints.items() if known == table.fingerprint
    ]
    assert table.count(table.codes["text"], 3).tolist() == COUNTS[read]


@SUFFIXES
@LOOKS
@pytest.mark.parametrize("is_large", [False, True])
def test_a_file_replaced_by_one_that_breaks_a_rule_is_refused_or_not_looked_at(
    tmp_path, monkeypatch, suffix, looked, is_large
):
    path = written(OLD, tmp_path / f"t{suffix}")
    monkeypatch.setattr(whole, "is_large", lambda _: is_large)
    replace_after(monkeypatch, looked, lambda: written("?", path))
    if looked == "is_large":
        refuses("outside the levels", Table.read, path, LEVELS, error=DataError)
    else:
        table = Table.read(path, LEVELS)
        assert table.count(table.codes["text"], 3).tolist() == COUNTS[OLD]


def test_the_columns_and_the_records_of_a_file_are_of_one_opening(
    tmp_path, monkeypatch
):
    path = written("aabbc", tmp_path / "t.parquet")
    opened = files._open_parquet

    def replaced(file, *more, **named):
        found = opened(file, *more, **named)
        frame = pd.DataFrame({"text": [1, 2], "person": [1, 1]})
        frame.to_parquet(tmp_path / "new.parquet", index=False)
        os.replace(tmp_path / "new.parquet", path)
        return found

    monkeypatch.setattr(files, "_open_parquet", replaced)
    batches = files.open_batches(path)
    found = pa.Table.from_batches(batches.batches)
    assert found["text"].to_pylist() == list("aabbc")
    assert batches.schema.names == found.schema.names == ["text"]


def test_a_disk_that_fails_is_no_fault_of_the_records(tmp_path, monkeypatch):
    path = written("aabbc", tmp_path / "t.parquet")

    def failing(error):
        def iter_batches(*_, **__):
            raise error
            yield

        return iter_batches

    for error in (OSError(5, "SECRET"), pa.ArrowMemoryError("SECRET")):
        monkeypatch.setattr(pq.ParquetFile, "iter_batches", failing(error))
        with pytest.raises(InputError) as caught:
            Table.read(path, LEVELS, counted=True)
        assert not isinstance(caught.value, DataError)
        assert "SECRET" not in str(caught.value)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", failing(OSError("SECRET")))
    refuses("is damaged", Table.read, path, LEVELS, counted=True, error=DataError)


# A value that can't be coded is never a code


def coder_of(schema: Schema) -> counting.Coder:
    opened = files.Batches(schema=pa.schema([("text", pa.string())]), batches=iter(()))
    [coder] = counting.coders_of(opened, schema, mixed=False)
    return coder


@pytest.mark.parametrize("cells", [["a", "?"], ["a", None], [None]])
def test_a_dictionary_with_a_value_that_cannot_be_coded_gives_no_codes(cells):
    values = pa.array(cells, pa.string())
    coder = coder_of(LEVELS)
    for _ in range(2):
        assert coder.look_up(values) is None
        assert len(coder.problems) == 1
    batch = pa.record_batch({"text": values})
    assert counting.coded(batch, [coder]) is None
    assert counting._numbered(batch, [coder], weighted=False) is None
    # one that can be coded afterwards
    index, summands = coder.look_up(pa.array(["b", "a"]))
    assert summands.steps[index].tolist() == [1, 0]


@pytest.mark.parametrize("place", [-1, 2, 100])
def test_a_place_outside_of_its_dictionary_is_no_other_value(place):
    values = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, place], pa.int32()), pa.array(["a", "b"]), safe=False
    )
    coder = coder_of(LEVELS)
    refuses("column 'text' is damaged", coder.look_up, values, error=DataError)
    # the broken twin took the last value for it, or the first
    assert np.arange(2).take([place], mode="clip")[0] in (0, 1)


def test_a_dictionary_as_long_as_its_index_type_has_room_for_a_missing_one(tmp_path):
    levels = [f"v{k}" for k in range(128)]
    text = pa.DictionaryArray.from_arrays(
        pa.array([*range(128), None], pa.int8()), pa.array(levels)
    )
    pq.write_table(pa.table({"text": text}), tmp_path / "t.parquet")
    schema = Schema(columns={"text": {"levels": levels, "missing": True}})
    one, other = (
        Table.read(tmp_path / "t.parquet", schema, counted=counted)
        for counted in (False, True)
    )
    assert one.fingerprint == other.fingerprint
    assert other.count(other.codes["text"], 129).tolist() == [1] * 129
