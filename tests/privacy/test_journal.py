"""The journal of a charge: answers come back as they were, and a file that was changed
is refused.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tables import refuses

from pdips import InputError, Margins, Schema, Table
from pdips.file_lock import FileLock
from pdips.privacy import journal as module
from pdips.privacy.journal import Journal, decoded, encoded
from pdips.privacy.ledger import Ledger

# Answers as bytes

ARRAYS = {
    "counts": np.array([3, -7, 2**62]),
    "one number": np.array(17),
    "none": np.zeros(0, dtype=np.int64),
    "a table of candidates": np.arange(12).reshape(3, 4),
    "decisions": np.array([[True, False], [False, False]]),
    "odd floats": np.array([0.1, -0.0, np.inf, -np.inf, np.nan, 5e-324]),
    "one float": np.array(1 / 3),
    "small floats": np.array([0.1, 0.2], dtype=np.float32),
    "small integers": np.array([255, 0], dtype=np.uint8),
    "levels": np.array(["north", "", "süd"]),
    "days": np.array(["2020-01-31", "NaT"], dtype="datetime64[D]"),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_comes_back_bit_for_bit(name: str) -> None:
    array = ARRAYS[name]
    found = decoded(encoded(array))
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert encoded(found) == encoded(array)


@pytest.mark.parametrize("number", [0, 1, -1, 2**62, -(2**63)])
def test_a_whole_number_stays_one(number: int) -> None:
    found = decoded(encoded(number))
    assert (found, type(found)) == (number, int)


def test_a_scalar_of_numpy_comes_back_as_an_array_of_its_type() -> None:
    for scalar in (np.int64(3), np.float64(0.1), np.bool_(True)):
        found = decoded(encoded(scalar))
        assert (found.dtype, found.shape, found[()]) == (scalar.dtype, (), scalar)


# the last are names that the writer of arrays has for itself
@pytest.mark.parametrize("names", [(), ("b", "a"), ("file", "allow_pickle", "a/b")])
def test_arrays_by_name_come_back_in_order(names: tuple[str, ...]) -> None:
    arrays = {name: np.full((2, k), k) for k, name in enumerate(names)}
    found = decoded(encoded(arrays))
    assert [*found] == [*names]
    for name in names:
        np.testing.assert_array_equal(found[name], arrays[name])


SORTS = Schema.from_toml(
    """
[columns]
region = { levels = ["north", "süd"], missing = true }
works = { levels = [false, true], missing = true }
size = { levels = [1, 2, 3] }
rate = { levels = [0.5, 1] }
wage = { lower = 0, upper = 1000, bins = 3, missing = true }
rooms = { lower = 0, upper = 10, integer = true, bins = 2, missing = true }
moved = { type = "date", lower = 2019-01-01, upper = 2020-12-31, bins = 2 }
born = { type = "date", unit = "month", lower = "1950-01", upper = "2000-12", bins = 2 }

[columns.left]
type = "date"
lower = 1950-01-01
upper = 2000-12-31
bins = 2
missing = true
"""
)


def records(n: int = 60) -> Table:
    """Records of columns of all types, in which values are missing."""
    rng = np.random.default_rng(2)
    days = pd.Timestamp("1950-01-01") + pd.to_timedelta(
        rng.integers(18_000, size=n), "D"
    )
    frame = pd.DataFrame(
        {
            "region": rng.choice(["north", "süd"], n),
            "works": rng.choice([False, True], n),
            "size": rng.choice([1, 2, 3], n),
            "rate": rng.choice([0.5, 1], n),
            "wage": rng.uniform(0, 1000, n),
            "rooms": rng.integers(0, 11, n),
            "moved": rng.choice(["2019-05-17", "2020-11-02"], n),
            "born": rng.choice(["1960-05", "1999-11"], n),
            "left": days,
        }
    )
    for place, name in enumerate(SORTS.columns):
        if SORTS.columns[name].missing:
            frame[name] = frame[name].astype(object).where(frame.index % 7 != place)
    return Table(frame, SORTS)


def test_a_synthetic_table_of_all_types_comes_back_as_it_was() -> None:
    release, _ = Margins(epsilon=100).release(records(), rng=np.random.default_rng(0))
    [frame] = release.sets
    assert frame.isna().any().sum() >= 4
    found = decoded(encoded(frame))
    pd.testing.assert_frame_equal(found, frame)
    assert encoded(found) == encoded(frame)
    none = frame.iloc[:0]
    pd.testing.assert_frame_equal(decoded(encoded(none)), none)


def test_numbers_take_as_many_bytes_whatever_they_are() -> None:
    # whether they fit on a disk says nothing of them
    rng = np.random.default_rng(0)
    for make in (
        lambda: rng.integers(-(2**62), 2**62, 50),
        lambda: rng.integers(-2, 2, (5, 10)),
        lambda: rng.choice([0.0, np.nan, np.inf, 1e-300, 1 / 3], 50),
        lambda: rng.random(50) < 0.5,
        lambda: int(rng.integers(2**62)) >> int(rng.integers(62)),
        lambda: {"place": rng.normal(size=3), "radius": np.array(rng.random())},
        lambda: pd.DataFrame({"x": rng.choice([0.0, np.nan, 1 / 3], 2)}),
        lambda: pd.DataFrame({"n": rng.integers(-(2**62), 2**62, 50)}),
        lambda: pd.DataFrame({"level": rng.choice(["a", "a long name", None], 50)}),
    ):
        assert len({len(encoded(make())) for _ in range(20)}) == 1


# Files

FACTS = {"reproducible": False, "command": {"name": "synthesize"}}
ANSWERS = [("counts", encoded(np.arange(40))), ("(kept)", encoded(7)), ("none", b"")]


@pytest.fixture
def written(ledger: Ledger) -> Iterator[Journal]:
    """A journal with three answers, of which the last came after the charge."""
    journal = ledger.new_journal()
    # what nobody holds is swept away
    lock = FileLock.taken(journal.path.with_name(f"{journal.path.name}.lock"))
    journal.create()
    with ledger._transaction(create_for="replace-one", beside=journal.path) as log:
        journal.begin(log.connection, FACTS, ANSWERS[:2])
    journal.append(*ANSWERS[2])
    yield journal
    lock.release()


def test_what_was_written_is_read_by_another_process_that_goes_on(
    written: Journal,
) -> None:
    again = Journal(written.path)
    assert again.read() == (FACTS, ANSWERS)
    again.append("more", b"x")
    assert Journal(written.path).read() == (FACTS, [*ANSWERS, ("more", b"x")])
    again.destroy()
    assert not written.path.exists()
    again.destroy()
    refuses("can't be read", again.read)
    refuses("can't be opened", again.append, "more", b"x")


def test_a_large_answer_is_kept_in_parts(written: Journal, monkeypatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 100)
    data = np.random.default_rng(0).bytes(1050)
    written.append("large", data)
    written.append("exact", data[:200])
    assert Journal(written.path).read()[1][-2:] == [
        ("large", data),
        ("exact", data[:200]),
    ]
    with closing(sqlite3.connect(written.path)) as connection:
        parts = connection.execute(
            "SELECT number, count(*) FROM answers GROUP BY number"
        ).fetchall()
    assert parts == [(1, 1), (2, 1), (3, 1), (4, 11), (5, 2)]


def read_or_refused(path: Path) -> object:
    """Return what a journal holds, or the line with which it is refused."""
    try:
        return Journal(path).read()
    except InputError as error:
        return str(error)


def test_a_flipped_bit_is_found_or_changes_nothing(written: Journal, tmp_path) -> None:
    whole, copy = written.path.read_bytes(), tmp_path / "copy.answers"
    expected = Journal(written.path).read()
    data = np.frombuffer(whole, dtype=np.uint8)
    bits = (np.flatnonzero(data)[:, None] * 8 + np.arange(8)).ravel()
    refused = 0
    for bit in np.random.default_rng(0).choice(bits, 600, replace=False).tolist():
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << (bit % 8)
        copy.write_bytes(flipped)
        found = read_or_refused(copy)
        if found != expected:
            assert isinstance(found, str)
            assert found.startswith(f"journal {copy} can't be read; put it back")
            assert "\n" not in found
            refused += 1
    assert refused > 400


@pytest.mark.parametrize(
    "edit",
    [
        "DELETE FROM answers WHERE number = 1",
        "UPDATE answers SET number = 5 WHERE number = 1",
        "UPDATE answers SET name = 'others' WHERE number = 1",
        "UPDATE answers SET data = x'00' WHERE number = 1",
        "UPDATE answers SET data = 'text' WHERE number = 1",
        """UPDATE facts SET content = '{"command": null}'""",
        "UPDATE facts SET content = 7",
        "UPDATE facts SET content = x'00'",
        "DELETE FROM facts",
        "INSERT INTO facts SELECT * FROM facts",
        "DROP TABLE answers",
    ],
)
def test_a_row_that_was_changed_is_refused(written: Journal, edit: str) -> None:
    with closing(sqlite3.connect(written.path, isolation_level=None)) as connection:
        connection.execute(edit)
    refuses("can't be read; put it back from a copy", Journal(written.path).read)


def test_another_file_is_no_journal(written: Journal, path: Path) -> None:
    for other in (b"", b"household,income\n" * 300, path.read_bytes()):
        shutil.copy(written.path, written.path.with_suffix(".copy"))
        written.path.write_bytes(other)
        refuses("can't be read", Journal(written.path).read)


def test_keys_that_a_killed_run_was_writing_are_swept(tmp_path):
    ledger = Ledger(tmp_path / "l.sqlite")
    ledger.set_total(1)
    begun = tmp_path / ".l.sqlite.key-0123456789abcdef"
    others = [
        tmp_path / ".l.sqlite.key-mine",
        tmp_path / ".m.sqlite.key-0123456789abcdef",
    ]
    for path in (begun, *others):
        path.write_text("half of a key")
    ledger.set_total(2)
    assert not begun.exists()
    assert all(path.exists() for path in others)
    assert (tmp_path / "l.sqlite.key").exists()
