"""Tables in many files: sums, digests and refusals are those of the table in one piece,
whatever the cluster does.
"""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from margin_tables import of_pairs
from tables import refuses, schema_in

from pdips import InputError, Margins, Schema, Steps, Table, synthesize
from pdips.data import partitions
from pdips.data import readers as files
from pdips.data.counted import CodedBatch
from pdips.data.partitions import PartitionedTable
from pdips.errors import ChangedTableError, DataError
from pdips.groups.group_sums import GroupSums

SCHEMA = schema_in("partitions")
N_FILES = 5


def folder_of(tmp_path):
    """A folder of files, one of them empty, and all records in one table."""
    rng = np.random.default_rng(1)
    text, year = rng.choice(["a", "b", "1", None], 90), rng.choice([1994, 1995], 90)
    year[text == "b"] = 1995
    frame = pd.DataFrame(
        {
            "text": pd.array(text, dtype="str"),
            "year": year,
            "wage": rng.choice([0.0, 30, 99.5], 90),
        }
    )
    ends = [0, 20, 20, 50, 70, 90]
    for number in range(N_FILES):
        frame[ends[number] : ends[number + 1]].to_parquet(
            tmp_path / f"{number}.parquet", index=False
        )
    return frame


@pytest.fixture(autouse=True)
def many_batches(monkeypatch):
    monkeypatch.setattr(files, "BATCH_RECORDS", 7)


@pytest.mark.parametrize(
    "countable", [True, False], ids=["coded by dictionaries", "as frames"]
)
def test_a_table_in_many_files_counts_as_the_whole_one(
    tmp_path, monkeypatch, countable
):
    if not countable:
        monkeypatch.setattr(partitions.counting, "countable", lambda *_, **__: False)
    whole, parted = (
        Table(folder_of(tmp_path), SCHEMA),
        PartitionedTable(tmp_path, SCHEMA),
    )
    design = of_pairs(epsilon=1).plan(SCHEMA).design
    assert parted.partitioned
    assert parted.fingerprint == whole.fingerprint
    assert parted.n_records == whole.n_records
    np.testing.assert_array_equal(parted.total(design.count), whole.total(design.count))


def test_a_release_from_a_seed_is_that_of_the_whole_table(tmp_path, ledger):
    whole = Table(folder_of(tmp_path), SCHEMA)
    settings = {"epsilon": 1, "mechanism": "margins", "seed": 3, "ledger": ledger}
    settings["n_sets"] = 1
    one, other = (
        synthesize(table, SCHEMA, **settings)[0] for table in (whole, tmp_path)
    )
    pd.testing.assert_frame_equal(one.tables["margins"], other.tables["margins"])
    assert ledger.summary().spent_epsilon == 2


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"wage": 101.0}, "outside its bounds"),
        ({"text": "b", "year": 1994}, "impossible"),
    ],
)
def test_broken_rules_are_refused_wherever_the_record_is(tmp_path, cells, said):
    folder_of(tmp_path)[60:61].assign(**cells).to_parquet(
        tmp_path / "2b.parquet", index=False
    )
    parted = PartitionedTable(tmp_path, SCHEMA)
    for asked in (
        lambda: parted.total(n_of_parts),
        lambda: parted.fingerprint,
        lambda: parted.n_records,
    ):
        refuses(said, asked, error=DataError)


def test_what_needs_records_in_one_place_is_refused(tmp_path):
    frame = folder_of(tmp_path)
    refuses(
        "takes no table in many files",
        lambda: Steps(epsilon=1).release(PartitionedTable(tmp_path, SCHEMA)),
    )
    refuses(
        "takes no table in many files",
        synthesize,
        tmp_path,
        SCHEMA,
        epsilon=1,
        mechanism="steps",
    )
    with pytest.raises(InputError, match="no records at hand"):
        PartitionedTable(tmp_path, SCHEMA).frame  # noqa: B018
    frame.assign(year=1.5).to_parquet(tmp_path / "9.parquet", index=False)
    refuses("same columns and types", PartitionedTable, tmp_path, SCHEMA)
    with pytest.raises(InputError, match="no public columns"):
        PartitionedTable(
            tmp_path, Schema(columns={"year": {"levels": [1994], "public": True}})
        )


def n_of_parts(table):
    return np.array([table.n_records])


def dies_once(table, marker):
    """Kill the process that counts, the first time in any process."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return np.array([len(table.codes["year"])])
    return os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_sums_survive_a_worker_that_is_killed_and_a_scheduler_that_goes_away(
    tmp_path, ledger
):
    from distributed import LocalCluster

    whole = Table(folder_of(tmp_path), SCHEMA)
    design = of_pairs(epsilon=1).plan(SCHEMA).design
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
        # and no client: dask would take one for the process's, and forget it with the
        # cluster
    ) as cluster:
        parted = PartitionedTable(tmp_path, SCHEMA, scheduler=cluster.scheduler_address)
        marker = tmp_path / "died"
        assert parted.total(lambda table: dies_once(table, marker)).tolist() == [90]
        assert marker.exists()
        found = parted._readings(design.count)
        readings = [next(found)]
        cluster.close()
        readings += list(found)
    assert sorted(place for place, _ in readings) == [*range(N_FILES)]
    sums = [reading.total for _, reading in readings if reading.total is not None]
    np.testing.assert_array_equal(sum(sums), whole.total(design.count))
    np.testing.assert_array_equal(parted.total(design.count), whole.total(design.count))
    unread = PartitionedTable(tmp_path, SCHEMA, scheduler=parted._scheduler)
    refuses("no dask scheduler answers", unread.total, design.count)
    one, other = (
        of_pairs(epsilon=1).release(table, rng=np.random.default_rng(3), ledger=ledger)[
            0
        ]
        for table in (whole, parted)
    )
    pd.testing.assert_frame_equal(one.tables["margins"], other.tables["margins"])
    assert ledger.summary().spent_epsilon == 2


# One reading, pinned: what is counted was checked, and later passes are of the same
# records

LETTERS = Schema(columns={"a": {"levels": ["x", "y", "z"]}, "b": {"levels": ["p"]}})
N_EQUAL = 300


def equal_records(folder: Path, name: str, other: str | None = None) -> None:
    """Write a file of equal records, the first with another level, in place of what has
    the name.
    """
    frame = pd.DataFrame({"a": ["z"] * N_EQUAL, "b": ["p"] * N_EQUAL})
    if other is not None:
        frame.loc[0, "a"] = other
    frame.to_parquet(folder / "new", index=False)
    os.replace(folder / "new", folder / name)


def two_equal_files(folder: Path) -> Path:
    for name in ("0.parquet", "1.parquet"):
        equal_records(folder, name)
    return folder


def counts_of_a(table: Table) -> np.ndarray:
    return np.bincount(table.codes["a"], minlength=3)


def as_code_0(batch, coders):
    """What was done once: a value that can't be coded, and all that share its batch,
    are the first level.
    """
    for coder in coders:
        coder.problems.clear()
    zeros = {coder.name: np.zeros(len(batch), dtype=np.int64) for coder in coders}
    hashes = np.zeros(len(batch), dtype=np.uint64)
    return CodedBatch(codes=zeros, cells={}, hashes=hashes)


@pytest.fixture(scope="module")
def cluster():
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=True,
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
    ) as running:
        yield running.scheduler_address


@pytest.mark.parametrize("where", ["this process", "cluster"])
@pytest.mark.parametrize("name", ["0.parquet", "1.parquet"])
def test_an_unknown_level_written_after_the_first_pass_is_refused(
    tmp_path, request, where, name
):
    scheduler = request.getfixturevalue("cluster") if where == "cluster" else None
    parted = PartitionedTable(two_equal_files(tmp_path), LETTERS, scheduler=scheduler)
    assert parted.total(counts_of_a).tolist() == [0, 0, 2 * N_EQUAL]
    equal_records(tmp_path, name, "OTHER")
    for _ in range(2):
        said = refuses("changed", parted.total, counts_of_a, error=ChangedTableError)
        assert "OTHER" not in said
    # the records as they were are the same table again
    equal_records(tmp_path, name)
    assert parted.total(counts_of_a).tolist() == [0, 0, 2 * N_EQUAL]
    equal_records(tmp_path, name, "OTHER")
    unread = PartitionedTable(tmp_path, LETTERS, scheduler=scheduler)
    refuses("outside the levels", unread.total, counts_of_a, error=DataError)
    refuses("outside the levels", lambda: unread.fingerprint, error=DataError)


def test_what_was_wrong_with_it_was_that_the_batch_became_the_first_level(
    tmp_path, monkeypatch
):
    # the broken twin: one record more, and all records of its batch are (x, p)
    equal_records(two_equal_files(tmp_path), "0.parquet", "OTHER")
    monkeypatch.setattr(partitions.counting, "coded", as_code_0)
    found = PartitionedTable(tmp_path, LETTERS).total(counts_of_a)
    assert found.tolist() == [2 * N_EQUAL, 0, 0]


def test_files_rewritten_before_the_first_pass_are_counted_as_they_are_checked(
    tmp_path,
):
    parted = PartitionedTable(two_equal_files(tmp_path), LETTERS)
    equal_records(tmp_path, "1.parquet", "x")
    equal_records(tmp_path, "2.parquet", "y")
    (tmp_path / "0.parquet").unlink()
    assert parted.total(counts_of_a).tolist() == [1, 1, 2 * N_EQUAL - 2]
    whole = pd.concat(pd.read_parquet(tmp_path / f"{k}.parquet") for k in (1, 2))
    assert parted.fingerprint == Table(whole, LETTERS).fingerprint
    assert parted.n_records == 2 * N_EQUAL


def test_columns_changed_before_the_first_pass_are_refused(tmp_path):
    parted = PartitionedTable(two_equal_files(tmp_path), LETTERS)
    pd.DataFrame({"a": ["x"], "b": [1]}).to_parquet(tmp_path / "1.parquet")
    refuses("same columns and types", parted.total, counts_of_a)
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    refuses(r"has no \.parquet files", parted.total, counts_of_a)


def exchanged_records(folder: Path) -> None:
    """One record of one file for one of another: the table is the same, no file is."""
    for name, other in (("0.parquet", "x"), ("1.parquet", None)):
        equal_records(folder, name, other)


def unreadable(folder: Path) -> None:
    (folder / "1.parquet").write_bytes(b"PAR1 no more")


CHANGES: dict[str, Callable[[Path], object]] = {
    "a record": lambda folder: equal_records(folder, "1.parquet", "y"),
    "missing": lambda folder: (folder / "1.parquet").unlink(),
    "all missing": lambda folder: [path.unlink() for path in folder.glob("*.parquet")],
    "added": lambda folder: equal_records(folder, "2.parquet"),
    "unreadable": unreadable,
    "renamed": lambda folder: (folder / "1.parquet").rename(folder / "3.parquet"),
    "a folder": lambda folder: [
        (folder / "1.parquet").unlink(),
        (folder / "1.parquet").mkdir(),
    ],
    "columns": lambda folder: pd.DataFrame({"a": ["x"]}).to_parquet(
        folder / "1.parquet"
    ),
    "records exchanged between files": exchanged_records,
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_after_the_first_pass_is_refused_in_one_line(tmp_path, change):
    equal_records(two_equal_files(tmp_path), "1.parquet", "x")
    parted = PartitionedTable(tmp_path, LETTERS)
    fingerprint = parted.fingerprint
    assert parted.total(counts_of_a).tolist() == [1, 0, 2 * N_EQUAL - 1]
    CHANGES[change](tmp_path)
    said = refuses(
        "nothing of the changed files was used",
        parted.total,
        counts_of_a,
        error=ChangedTableError,
    )
    assert said == partitions.CHANGED
    # those that are on record
    assert (parted.fingerprint, parted.n_records) == (fingerprint, 2 * N_EQUAL)


def test_a_pass_reads_each_record_once_and_the_first_one_adds_up(tmp_path, monkeypatch):
    folder_of(tmp_path)
    opened = []

    def noted(file, *more, **named):
        opened.append(Path(file).name)
        return files.open_batches(file, *more, **named)

    monkeypatch.setattr(partitions, "open_batches", noted)
    parted = PartitionedTable(tmp_path, SCHEMA)
    opened.clear()
    for n_passes in (1, 2):
        assert parted.total(n_of_parts).tolist() == [90]
        assert parted.n_records == 90
        assert sorted(opened) == sorted(n_passes * [f"{k}.parquet" for k in range(5)])


def test_nothing_of_a_sum_is_left_after_a_refusal(tmp_path):
    equal_records(two_equal_files(tmp_path), "1.parquet", "OTHER")
    parted = PartitionedTable(tmp_path, LETTERS)
    with pytest.raises(DataError) as caught:
        parted.total(counts_of_a)
    held = [vars(parted), *(entry.locals for entry in caught.traceback)]
    assert not any(
        isinstance(value, np.ndarray) or (value and isinstance(value, list))
        for names in held
        for key, value in names.items()
        if key in ("readings", "totals", "total", "_digests")
    )


def test_all_problems_of_all_files_are_named_once(tmp_path):
    folder_of(tmp_path)
    frame = pd.read_parquet(tmp_path / "2.parquet")[:3]
    wrong = [{"wage": 101.0}, {"text": "b", "year": 1994}, {"year": 7, "wage": 101.0}]
    for number, cells in enumerate(wrong):
        frame.assign(**cells).to_parquet(tmp_path / f"9{number}.parquet", index=False)
    said = refuses("", PartitionedTable(tmp_path, SCHEMA).total, n_of_parts)
    assert said.count("outside its bounds") == said.count("impossible") == 1
    assert said.startswith("column 'wage'")
    assert said.index("column 'year'") < said.index("the table holds")
    assert "101" not in said


def raises(table: Table) -> np.ndarray:
    raise InputError("the statistic's own")


@pytest.mark.parametrize("scheduler", [None, "cluster"])
def test_what_a_statistic_refuses_is_not_taken_for_a_change(
    tmp_path, request, scheduler
):
    where = request.getfixturevalue(scheduler) if scheduler else None
    parted = PartitionedTable(two_equal_files(tmp_path), LETTERS, scheduler=where)
    for _ in range(2):
        refuses("the statistic's own", parted.total, raises)
        assert parted.n_records == 2 * N_EQUAL


class Lost:
    """A task that was done, by a worker that may be gone since."""

    def __init__(self, outcome):
        self.status, self._outcome = "finished", outcome

    def result(self, timeout):
        if self._outcome is None:
            raise TimeoutError
        return self._outcome


class OddClient:
    """A cluster that loses what it found in the first file."""

    def __init__(self, address: str = "tls://10.0.0.1:8786"):
        self.scheduler = type("Scheduler", (), {"address": address})

    def submit(self, work, file, *more, pure):
        return Lost(None if Path(file).name[0] == "0" else work(file, *more))


def test_a_result_that_is_lost_is_worked_out_here_and_one_that_comes_twice_counts_once(
    tmp_path, monkeypatch
):
    whole = Table(folder_of(tmp_path), SCHEMA)
    monkeypatch.setattr(partitions, "client_of", lambda *_: nullcontext(OddClient()))
    monkeypatch.setattr(partitions, "_finished", lambda _, futures: 2 * futures)
    parted = PartitionedTable(tmp_path, SCHEMA, scheduler="tls://10.0.0.1:8786")
    assert parted.total(n_of_parts).tolist() == [90]
    assert parted.fingerprint == whole.fingerprint


@pytest.mark.parametrize(
    ("scheduler", "is_named"),
    [("tcp://10.0.0.1:8786", True), ("tls://10.0.0.1:8786", False), ("local", False)],
)
def test_an_unencrypted_scheduler_is_named_before_counts_travel(
    tmp_path, monkeypatch, caplog, scheduler, is_named
):
    # processes on this machine talk to a scheduler that isn't encrypted either
    address = "tcp://127.0.0.1:1" if scheduler == "local" else scheduler
    client = OddClient(address)
    monkeypatch.setattr(partitions, "client_of", lambda *_: nullcontext(client))
    seen_before = []
    monkeypatch.setattr(
        client,
        "submit",
        lambda *_, **__: seen_before.append(len(caplog.records)) or Lost(None),
    )
    monkeypatch.setattr(partitions, "_finished", lambda *_: [])
    parted = PartitionedTable(two_equal_files(tmp_path), LETTERS, scheduler=scheduler)
    with caplog.at_level(logging.INFO, logger="pdips"):
        parted.total(counts_of_a)
        parted.total(counts_of_a)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == is_named
    assert all(
        f"unencrypted to the dask scheduler at {address}" in text for text in said
    )
    assert set(seen_before) == {int(is_named)}


def test_a_release_whose_files_are_rewritten_after_the_check_is_not_charged(
    tmp_path, monkeypatch, ledger
):
    folder = two_equal_files(tmp_path)
    check = Margins.check

    def then_rewritten(mechanism, plan, table):
        check(mechanism, plan, table)
        assert table.n_records == 2 * N_EQUAL  # the first pass
        for name in ("0.parquet", "1.parquet"):
            equal_records(folder, name, "OTHER")

    monkeypatch.setattr(Margins, "check", then_rewritten)
    released = {
        "epsilon": 1,
        "mechanism": "margins",
        "measure": "views",  # read again after the check
        "ledger": ledger,
        "progress": False,
    }
    refuses(
        "nothing of the changed files",
        synthesize,
        folder,
        LETTERS,
        error=ChangedTableError,
        **released,
    )
    assert not ledger.entries()
    assert not ledger.summary().spent_epsilon
    monkeypatch.undo()
    for name in ("0.parquet", "1.parquet"):
        equal_records(folder, name)
    synthesize(folder, LETTERS, **released)
    assert len(ledger.entries()) == 1


NUMBERS = Schema.model_validate(
    {
        "columns": {
            "a": {"levels": ["x", "y", "z"], "missing": True},
            "b": {"levels": ["p", "q"]},
            "age": {"lower": 0, "upper": 99, "integer": True, "missing": True},
            "pay": {"lower": -5, "upper": 9_000, "missing": True},
            "left": {"lower": 0, "upper": 9, "integer": True, "out_of_range": "clip"},
        }
    }
)


def folder_of_numbers(tmp_path):
    """A folder of files with numbers that have no bins, and all records in one."""
    rng = np.random.default_rng(4)
    n = 400
    frame = pd.DataFrame(
        {
            "a": pd.array(rng.choice(["x", "y", "z", None], n), dtype="str"),
            "b": pd.array(rng.choice(["p", "q"], n), dtype="str"),
            "age": pd.array(rng.integers(0, 100, n), dtype="Int64"),
            "pay": rng.choice([0.0, -0.0, 12.5, np.nan, 8999.0, -5.0, 77.7], n),
            "left": rng.integers(-3, 15, n),
        }
    )
    frame.loc[rng.random(n) < 0.1, "age"] = pd.NA
    for number, start in enumerate(range(0, n, 100)):
        part = frame[start : start + 100]
        part.to_parquet(tmp_path / f"{number}.parquet", index=False)
    return frame


def opened_by(monkeypatch):
    """Note which files a table opens from here on."""
    opened = []

    def noted(file, *more, **named):
        opened.append(Path(file).name)
        return files.open_batches(file, *more, **named)

    monkeypatch.setattr(partitions, "open_batches", noted)
    return opened


@pytest.mark.parametrize("looked_up", [True, False], ids=["values", "frames"])
def test_numbers_without_bins_are_counted_as_those_of_the_whole_table(
    tmp_path, monkeypatch, looked_up
):
    whole = Table(folder_of_numbers(tmp_path), NUMBERS)
    if not looked_up:
        monkeypatch.setattr(partitions.counting, "countable", lambda *_, **__: False)
    parted = PartitionedTable(tmp_path, NUMBERS)
    assert parted.fingerprint == whole.fingerprint
    mechanism = Margins(epsilon=1, delta="1e-6", measure="pairs", second_share=0)
    one, other = (
        mechanism.release(table, rng=np.random.default_rng(2))[0]
        for table in (whole, PartitionedTable(tmp_path, NUMBERS))
    )
    pd.testing.assert_frame_equal(one.tables["margins"], other.tables["margins"])
    pd.testing.assert_frame_equal(one.tables["intervals"], other.tables["intervals"])
    # the broken twin: of one record another value
    folder_of_numbers(tmp_path)[:100].assign(age=7).to_parquet(
        tmp_path / "0.parquet", index=False
    )
    changed = PartitionedTable(tmp_path, NUMBERS)
    assert changed.fingerprint != whole.fingerprint
    third = mechanism.release(changed, rng=np.random.default_rng(2))[0]
    assert not third.tables["intervals"].equals(one.tables["intervals"])


@pytest.mark.parametrize(("schema", "n_passes"), [(NUMBERS, 2), (SCHEMA, 1)])
def test_all_layers_of_all_numbers_are_one_reading_and_all_pairs_another(
    tmp_path, monkeypatch, schema, n_passes
):
    of = folder_of_numbers if schema is NUMBERS else folder_of
    of(tmp_path)
    parted = PartitionedTable(tmp_path, schema)
    opened = opened_by(monkeypatch)
    mechanism = Margins(epsilon=1, delta="1e-6", measure="pairs")
    mechanism.release(parted, rng=np.random.default_rng(2))
    n_files = len({*opened})
    assert len(opened) == n_passes * n_files


@pytest.mark.parametrize(
    ("outcome", "n_passes"), [("pay", 1), ("b", 1)], ids=["with squares", "counts"]
)
def test_sums_by_group_are_one_reading_and_those_of_the_whole_table(
    tmp_path, monkeypatch, outcome, n_passes
):
    columns = {"pay": {"lower": -5, "upper": 9_000}, "b": {"levels": ["p", "q"]}}
    columns = {
        outcome: columns[outcome],
        "left": {"lower": 0, "upper": 9, "integer": True, "out_of_range": "clip"},
    }
    schema = Schema.model_validate(
        {"columns": columns, "ignore": [*{"a", "b", "age", "pay"} - {outcome}]}
    )
    frame = folder_of_numbers(tmp_path).fillna({"pay": 0.0})
    for number, start in enumerate(range(0, len(frame), 100)):
        part = frame[start : start + 100]
        part.to_parquet(tmp_path / f"{number}.parquet", index=False)
    mechanism = GroupSums(epsilon=1, outcome=outcome, n_sets=1)
    parted = PartitionedTable(tmp_path, schema)
    opened = opened_by(monkeypatch)
    one, other = (
        mechanism.release(table, rng=np.random.default_rng(2))[0].tables["groups"]
        for table in (parted, Table(frame, schema))
    )
    assert len(opened) == n_passes * len({*opened})
    pd.testing.assert_frame_equal(one, other)
    # the broken twin: of one file another value
    frame[:100].assign(pay=77.7, b="p").to_parquet(tmp_path / "0.parquet", index=False)
    changed = PartitionedTable(tmp_path, schema)
    third = mechanism.release(changed, rng=np.random.default_rng(2))[0]
    assert not third.tables["groups"]["noisy_sum"].equals(one["noisy_sum"])


def test_nothing_is_read_of_files_that_are_rewritten_after_all_was_counted(
    tmp_path, monkeypatch, ledger
):
    folder_of(tmp_path)
    released = {"epsilon": 1, "mechanism": "margins", "measure": "pairs", "seed": 3}
    once = synthesize(tmp_path, SCHEMA, **released)[0]
    check = Margins.check

    def then_gone(mechanism, plan, table):
        check(mechanism, plan, table)
        (tmp_path / "3.parquet").unlink()

    monkeypatch.setattr(Margins, "check", then_gone)
    again = synthesize(tmp_path, SCHEMA, **released, ledger=ledger)[0]
    pd.testing.assert_frame_equal(once.tables["margins"], again.tables["margins"])
    assert len(ledger.entries()) == 1


ENDING = """
import atexit, os, sys
if sys.argv[2] == "late":  # the broken twin: dask would end its workers first
    atexit.register(os.makedirs, sys.argv[1])
from pdips.data import partitions
owner = 0 if sys.argv[2] == "parent" else os.getpid()
partitions.SPILLED_HERE[sys.argv[1]] = owner
if sys.argv[2] != "late":
    atexit.register(os.makedirs, sys.argv[1])
"""


@pytest.mark.parametrize("when", ["early", "late", "parent"])
def test_what_workers_make_at_the_end_is_deleted_after_them(tmp_path, when):
    # a worker that still runs makes its folder when dask ends it: what is registered
    # later runs earlier
    folder = tmp_path / "spilled"
    subprocess.run([sys.executable, "-c", ENDING, folder, when], check=True)
    assert folder.is_dir() == (when != "early")
