"""Tables in many files: sums, digests and refusals are those of the table in one piece, whatever the cluster does."""

import os
import signal

import numpy as np
import pandas as pd
import pytest
from tables import refuses, schema_in

from pdips import InputError, Pairs, Schema, Steps, Table, synthesize
from pdips.data import partitions
from pdips.data import readers as files
from pdips.data.partitions import PartitionedTable
from pdips.errors import DataError

SCHEMA = schema_in("partitions")
N_FILES = 5


def folder_of(tmp_path):
    """A folder of files, one of them empty, and all records in one table."""
    rng = np.random.default_rng(1)
    text, year = rng.choice(["a", "b", "1", None], 90), rng.choice([1994, 1995], 90)
    year[text == "b"] = 1995
    frame = pd.DataFrame({"text": pd.array(text, dtype="str"), "year": year, "wage": rng.choice([0.0, 30, 99.5], 90)})
    ends = [0, 20, 20, 50, 70, 90]
    for number in range(N_FILES):
        frame[ends[number] : ends[number + 1]].to_parquet(tmp_path / f"{number}.parquet", index=False)
    return frame


@pytest.fixture(autouse=True)
def many_batches(monkeypatch):
    monkeypatch.setattr(files, "BATCH_RECORDS", 7)


@pytest.mark.parametrize("countable", [True, False], ids=["coded by dictionaries", "as frames"])
def test_a_table_in_many_files_counts_as_the_whole_one(tmp_path, monkeypatch, countable):
    if not countable:
        monkeypatch.setattr(partitions.counting, "countable", lambda *_, **__: False)
    whole, parted = Table(folder_of(tmp_path), SCHEMA), PartitionedTable(tmp_path, SCHEMA)
    design = Pairs(epsilon=1).plan(SCHEMA).design
    assert parted.partitioned
    assert parted.fingerprint == whole.fingerprint
    assert parted.n_records == whole.n_records
    np.testing.assert_array_equal(parted.total(design.count), whole.total(design.count))


def test_a_release_from_a_seed_is_that_of_the_whole_table(tmp_path, ledger):
    whole = Table(folder_of(tmp_path), SCHEMA)
    settings = {"epsilon": 1, "mechanism": "pairs", "seed": 3, "ledger": ledger}
    one, other = (synthesize(table, SCHEMA, **settings)[0] for table in (whole, tmp_path))
    pd.testing.assert_frame_equal(one.tables["margins"], other.tables["margins"])
    assert ledger.summary().spent_epsilon == 2


@pytest.mark.parametrize(
    ("cells", "said"), [({"wage": 101.0}, "outside its bounds"), ({"text": "b", "year": 1994}, "impossible")]
)
def test_broken_rules_are_refused_wherever_the_record_is(tmp_path, cells, said):
    folder_of(tmp_path)[60:61].assign(**cells).to_parquet(tmp_path / "2b.parquet", index=False)
    refuses(said, PartitionedTable, tmp_path, SCHEMA, error=DataError)


def test_what_needs_records_in_one_place_is_refused(tmp_path):
    frame = folder_of(tmp_path)
    refuses("takes no table in many files", lambda: Steps(epsilon=1).release(PartitionedTable(tmp_path, SCHEMA)))
    refuses("takes no table in many files", synthesize, tmp_path, SCHEMA, epsilon=1, mechanism="steps")
    with pytest.raises(InputError, match="no records at hand"):
        PartitionedTable(tmp_path, SCHEMA).frame  # noqa: B018
    frame.assign(year=1.5).to_parquet(tmp_path / "9.parquet", index=False)
    refuses("same columns and types", PartitionedTable, tmp_path, SCHEMA)
    with pytest.raises(InputError, match="no public columns"):
        PartitionedTable(tmp_path, Schema(columns={"year": {"levels": [1994], "public": True}}))


def dies_once(table, marker):
    """Kill the process that counts, the first time in any process."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return np.array([len(table.codes["year"])])
    return os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore")
def test_sums_survive_a_worker_that_is_killed_and_a_scheduler_that_goes_away(tmp_path, ledger):
    from distributed import LocalCluster

    whole = Table(folder_of(tmp_path), SCHEMA)
    design = Pairs(epsilon=1).plan(SCHEMA).design
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address="127.0.0.1:0",
        scheduler_kwargs={"dashboard": False},
    ) as cluster:  # and no client: dask would take one for the process's, and forget it with the cluster
        parted = PartitionedTable(tmp_path, SCHEMA, scheduler=cluster.scheduler_address)
        marker = tmp_path / "died"
        assert parted.total(lambda table: dies_once(table, marker)).tolist() == [90]
        assert marker.exists()
        found = parted._each(partitions._count, design.count)
        sums = [next(found)]
        cluster.close()
        sums += list(found)
    assert len(sums) == N_FILES
    np.testing.assert_array_equal(sum(sums), whole.total(design.count))
    refuses("no dask scheduler answers", PartitionedTable, tmp_path, SCHEMA, scheduler=parted._scheduler)
    one, other = (
        Pairs(epsilon=1).release(table, rng=np.random.default_rng(3), ledger=ledger)[0] for table in (whole, parted)
    )
    pd.testing.assert_frame_equal(one.tables["margins"], other.tables["margins"])
    assert ledger.summary().spent_epsilon == 2
