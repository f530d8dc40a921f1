"""Tables in a folder of Parquet files: what is a sum over records is counted file by
file, by processes of a cluster.

Workers check, code and count the files that they are given; only digests, messages of
broken rules and exact whole numbers come back, to the one process that holds the
account and draws the noise. Records are checked in the same pass as they are counted:
between two passes another program may rewrite the files.
"""

import atexit
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pdips.arrays import IntArray
from pdips.data import counted as counting
from pdips.data.coding import encode
from pdips.data.databases import is_stored
from pdips.data.readers import Batches, open_batches, to_pandas
from pdips.data.schema import Column, Schema
from pdips.data.table import Derived, Table, check_columns
from pdips.errors import ChangedTableError, DataError, InputError
from pdips.extras import require

# In place of a scheduler's address: processes on this machine, one a core
LOCAL = "local"
# Seconds that a scheduler and its first worker have to answer, and until it is asked
# again
PATIENCE = 10.0
# How folders for temporary files begin that workers on this machine keep theirs in
SPILLED = "pdips-dask-"
SPILLED_HERE: dict[str, int] = {}
"""Those that are in use, each with the process that made it."""
LOG = logging.getLogger("pdips")

type Statistic = Callable[[Table], IntArray]


@dataclass(frozen=True, kw_only=True, repr=False)
class FileReading:
    """What one pass over a file found: as confidential as its records.

    ``problems`` are rules that records break, or why the file can't be read; the other
    two mean nothing where there are any. ``total`` is None without a statistic, and of
    a file without records.
    """

    digest: str
    total: IntArray | None
    problems: tuple[InputError, ...]


class PartitionedTable(Table):
    """Records in a folder of Parquet files, or in a database, of which only sums over
    records can be asked.

    Neither records nor codes are held, and nothing but names and columns is read before
    something is asked. The first pass over the files checks every record, adds up, and
    keeps the digest of each file. Every later pass checks and digests again, and raises
    ``ChangedTableError`` if a file isn't what it was.

    All files have the same columns and types; an empty one adds nothing. Public columns
    and person keys need the records in one place. ``folder`` is a path with
    ``.parquet`` files, or an Ibis table. ``scheduler`` is the address of a dask
    scheduler whose workers see the folder under the same path, or ``"local"``: a
    process for each core of this machine; left out, this process does all. Refused
    (``InputError``) if there is no file, columns don't fit, or, by the first pass, no
    scheduler answers; a record that breaks a rule of the schema, or no records, raise
    ``DataError`` there.
    """

    partitioned = True

    def __init__(
        self, folder: Any, schema: Schema, *, scheduler: str | None = None
    ) -> None:
        if schema.public_columns or schema.records.person:
            raise InputError(
                "a table in many files can have no public columns and "
                "no person key: join the files"
            )
        self.schema = schema
        self.counts = None
        self._folder = folder
        self._scheduler = scheduler
        self._files = self._listed()
        # by file, after the first pass
        self._digests: list[str] | None = None
        self._held: list[tuple[Statistic, IntArray]] = []
        self._to_hold: Statistic | None = None
        first = open_batches(self._files[0])
        check_columns(first.columns, schema)
        self._columns = first.schema
        for file in self._files[1:]:
            _check_equal(open_batches(file), self._columns)

    def __getattr__(self, name: str) -> Any:
        if name in ("frame", "codes"):
            raise InputError(
                "a table in many files has no records at hand: only "
                "sums over them can be asked"
            )
        raise AttributeError(name)

    @property
    def n_records(self) -> int:
        return _n_records(self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all records, as that of one table; reads the files if nothing has
        been asked before.
        """
        if self._digests is None and self._to_hold is not None:
            self._total_of(self._to_hold)
        digests = self._digests or self._pin(None)[0]
        return counting.sum_of_digests(digests)

    def hold(self, base: Statistic) -> None:
        self._to_hold = base

    def total(self, statistic: Statistic) -> IntArray:
        """Return whole numbers that are sums over records, added up over all files.

        What is :class:`Derived` from numbers that were added up before is worked out
        from these, without reading the files again.

        Raises
        ------
        DataError
            If records break a rule of the schema, or there are none: in the first pass.
        ChangedTableError
            If, in a later pass, the files aren't those of the first one.
        """
        if not isinstance(statistic, Derived):
            return self._passed(statistic)
        return statistic.of(self._total_of(statistic.base))

    def _total_of(self, base: Statistic) -> IntArray:
        """Return the total that others are derived from; it is held from then on."""
        for held, total in self._held:
            if held == base:
                return total
        total = self._passed(base)
        self._held.append((base, total))
        return total

    def _passed(self, statistic: Statistic) -> IntArray:
        """Return what one pass over the files adds up."""
        if self._digests is None:
            return np.asarray(self._pin(statistic)[1])
        return np.asarray(self._later_total(statistic, self._digests))

    def _pin(self, statistic: Statistic | None) -> tuple[list[str], IntArray | None]:
        """Check, digest and add up in one pass; return and keep the digests."""
        self._files = self._listed()
        readings = self._read(statistic)
        problems = [wrong for reading in readings for wrong in reading.problems]
        if problems:
            # a traceback would hold on to exact sums
            readings.clear()
        for problem in problems:
            if not isinstance(problem, DataError):
                raise problem
        if problems:
            raise DataError("; ".join(sorted(set(map(str, problems)))))
        digests = [reading.digest for reading in readings]
        if not _n_records(counting.sum_of_digests(digests)):
            raise DataError("the table has no records")
        self._digests = digests
        return digests, _sum(readings)

    def _later_total(self, statistic: Statistic, digests: list[str]) -> IntArray | None:
        """Add up once more, if the files are those that were checked."""
        if self._listed(may_be_empty=True) != self._files:
            raise ChangedTableError(CHANGED)
        readings = self._read(statistic)
        read = [reading.digest for reading in readings]
        if read != digests or any(reading.problems for reading in readings):
            readings.clear()
            raise ChangedTableError(CHANGED)
        return _sum(readings)

    def _listed(self, *, may_be_empty: bool = False) -> list[Any]:
        """Return the files that are there now, or the table of Ibis."""
        if is_stored(self._folder):
            return [self._folder]
        files = sorted(Path(self._folder).resolve().glob("*.parquet"))
        if not files and not may_be_empty:
            raise InputError(f"{self._folder} has no .parquet files")
        return files

    def _read(self, statistic: Statistic | None) -> list[FileReading]:
        """Return what a pass finds in each file. One reading of a file counts, however
        often a cluster works it out.
        """
        readings = dict(self._readings(statistic))
        return [readings[number] for number in range(len(self._files))]

    def _readings(
        self, statistic: Statistic | None
    ) -> Iterator[tuple[int, FileReading]]:
        """Yield the place of each file and what a pass finds there: by the cluster, and
        by this process where that goes away.
        """
        left = dict(enumerate(self._files))
        with ExitStack() as stack:
            client = self._client(stack)
            if client is not None:
                futures = {
                    client.submit(
                        read_file,
                        file,
                        self._columns,
                        self.schema,
                        statistic,
                        pure=False,
                    ): number
                    for number, file in left.items()
                }
                for future in _finished(client, list(futures)):
                    reading = _result(future)
                    if reading is None or (reading.problems and self._digests):
                        # maybe a worker's folder is gone: this process looks itself
                        continue
                    left.pop(futures[future], None)
                    yield futures[future], reading
        reader = FileReader()
        for number, file in left.items():
            yield number, read_file(file, self._columns, self.schema, statistic, reader)

    def _client(self, stack: ExitStack) -> Any:
        """Return a client of the cluster, None where this process is to count.

        Later passes come after the charge: a cluster that is gone by then may not end
        the release.
        """
        if self._scheduler is None:
            return None
        try:
            client = stack.enter_context(client_of(self._scheduler, len(self._files)))
        except InputError:
            if self._digests is None:
                raise
            return None
        address = client.scheduler.address
        is_open = self._scheduler != LOCAL and not address.startswith("tls://")
        if is_open and self._digests is None:
            LOG.info(
                "exact counts will travel unencrypted to the dask scheduler at %s: it "
                "should be on a network that may carry the table, or at a tls:// "
                "address",
                address,
            )
        return client


CHANGED = (
    "the table changed, or went away, while the release ran: its files are no longer "
    "those that were checked, and nothing of the changed files was used; put them "
    "back, or release a copy that no one writes to"
)


def _n_records(digest: str) -> int:
    """Return the number of records, with which a digest begins."""
    return int(digest.split("-")[0])


def _check_equal(opened: Batches, columns: pa.Schema) -> None:
    if not opened.schema.equals(columns):
        raise InputError(
            "the .parquet files of a folder must all have the same columns and types"
        )


def _sum(readings: list[FileReading]) -> IntArray | None:
    totals = [reading.total for reading in readings if reading.total is not None]
    return reduce(np.add, totals) if totals else None


def _result(future: Any) -> FileReading | None:
    """Return what a worker has found, None if that is lost; raise what a statistic
    refuses.
    """
    from distributed import CancelledError

    if future.status == "error" and isinstance(future.exception(), InputError):
        raise future.exception()
    if future.status != "finished":
        return None
    try:
        # the worker that holds it may have died since
        reading: FileReading = future.result(timeout=PATIENCE)
    except (CancelledError, OSError):
        return None
    return reading


def _finished(client: Any, futures: list[Any]) -> Iterator[Any]:
    """Yield futures as they are done, until the scheduler or all its workers go
    away.
    """
    from distributed import CancelledError, wait

    while futures:
        try:
            done, pending = wait(
                futures, timeout=PATIENCE, return_when="FIRST_COMPLETED"
            )
        except TimeoutError:
            if client.nthreads():
                continue
            return
        except (CancelledError, OSError):
            return
        yield from done
        futures = list(pending)


def client_of(
    scheduler: str, n_tasks: int, workers: int | None = None
) -> AbstractContextManager[Any]:
    """Lend a dask client: of the scheduler named, or of processes on this machine,
    without a dashboard.
    """
    require("cluster", "a cluster needs")
    if scheduler == LOCAL:
        return _client_of_processes(n_tasks, workers)
    return _client_of_scheduler(scheduler)


@contextmanager
def _client_of_scheduler(scheduler: str) -> Iterator[Any]:
    from distributed import Client

    try:
        client = Client(scheduler, timeout=PATIENCE)
    except (OSError, ValueError):
        raise InputError(f"no dask scheduler answers at {scheduler}") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
        except OSError:
            raise InputError(
                f"the dask scheduler at {scheduler} has no workers"
            ) from None
        yield client


@contextmanager
def _client_of_processes(n_tasks: int, workers: int | None) -> Iterator[Any]:
    import dask
    from dask.system import CPU_COUNT
    from distributed import Client, LocalCluster

    # workers may spill exact counts: into a folder that nobody else reads and that goes
    # with them
    with (
        TemporaryDirectory(prefix=SPILLED, ignore_cleanup_errors=True) as folder,
        dask.config.set({"temporary-directory": folder}),
    ):
        SPILLED_HERE[folder] = os.getpid()
        try:
            cluster = LocalCluster(
                n_workers=min(workers or CPU_COUNT, n_tasks),
                threads_per_worker=1,
                processes=True,
                # None would take port 8787 of every network that the machine is on
                dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": False},
                silence_logs=logging.CRITICAL,
                local_directory=folder,
            )
        except RuntimeError:
            raise InputError(
                "no processes could be started; a script that asks for them has to "
                "stand below if __name__ == '__main__'"
            ) from None
        with cluster, Client(cluster) as client:
            yield client
    SPILLED_HERE.pop(folder, None)


@atexit.register
def _delete_spilled() -> None:
    """Delete what an interrupted run left. Registered before dask is imported, this
    runs after dask has ended its workers, which would make the folders anew. A forked
    process leaves its parent's alone.
    """
    for folder, owner in SPILLED_HERE.items():
        if owner == os.getpid():
            shutil.rmtree(folder, ignore_errors=True)


class FileReader:
    """What the files of a folder share: values that were coded for one of them need not
    be coded for the next.
    """

    def __init__(self) -> None:
        self._coders: list[counting.Coder] = []

    def coders(self, opened: Batches, schema: Schema) -> list[counting.Coder]:
        """Return what codes each column of a file, without problems so far."""
        if not self._coders:
            self._coders = counting.coders_of(opened, schema, mixed=False)
        for coder in self._coders:
            coder.forget_problems()
        return self._coders


@np.errstate(all="ignore")
def read_file(
    file: Any,
    columns: pa.Schema,
    schema: Schema,
    statistic: Statistic | None = None,
    reader: FileReader | None = None,
) -> FileReading:
    """Check, digest and add up the records of a file, reading each of them once."""
    problems: list[InputError] = []
    digests = [counting.digest(0, 0, 0)]
    total: IntArray | None = None
    for part in parts(file, columns, schema, problems, reader):
        digests.append(part.fingerprint)
        if statistic is not None:
            added = statistic(part)
            total = added if total is None else total + added
    return FileReading(
        digest=counting.sum_of_digests(digests),
        total=None if problems else total,
        problems=tuple(problems),
    )


def parts(
    file: Any,
    columns: pa.Schema,
    schema: Schema,
    problems: list[InputError],
    reader: FileReader | None = None,
) -> Iterator[Table]:
    """Yield the records of a file as small tables, until one breaks a rule; add what is
    wrong anywhere in the file to ``problems``.
    """
    try:
        opened = open_batches(file)
        _check_equal(opened, columns)
        if counting.countable(opened, schema, mixed=False):
            coders = (reader or FileReader()).coders(opened, schema)
            yield from _coded_parts(opened, schema, coders, problems)
        else:
            yield from _framed_parts(opened, schema, problems)
    except InputError as error:  # of the file: what a caller raises doesn't pass here
        problems.append(_plain(error))


def _framed_parts(
    opened: Batches, schema: Schema, problems: list[InputError]
) -> Iterator[Table]:
    """Yield tables made of frames, where not all columns are levels or bins."""
    for batch in opened.batches:
        if not len(batch):
            continue
        records = pa.Table.from_batches([batch]).cast(opened.schema)
        try:
            part = Table._of_frame(to_pandas(records), schema)
        except DataError as error:
            problems.append(_plain(error))
            continue
        if not problems:
            yield part


class _CodedPart(Table):
    """The records of a batch, whose numbers are looked at by their distinct values."""

    def __init__(
        self, batch: pa.RecordBatch, coded: counting.CodedBatch, schema: Schema
    ) -> None:
        self.schema = schema
        self.counts = None
        self.codes = coded.codes
        self.fingerprint = counting.digest_of(coded.hashes)
        self._batch = batch
        self._cells = coded.cells

    @property
    def n_records(self) -> int:
        return len(self._batch)

    def __getattr__(self, name: str) -> Any:
        if name != "frame":
            raise AttributeError(name)
        numeric = list(self._cells)
        self.frame = pd.DataFrame(index=pd.RangeIndex(len(self._batch)))
        if numeric:
            self.frame = to_pandas(pa.Table.from_batches([self._batch]).select(numeric))
        return self.frame

    def binned(self, name: str, column: Column) -> IntArray:
        values, places = self._cells[name]
        return np.asarray(encode(name, values, column)[places])


def _coded_parts(
    opened: Batches,
    schema: Schema,
    coders: list[counting.Coder],
    problems: list[InputError],
) -> Iterator[Table]:
    """Yield tables of codes, where values are coded once for each dictionary."""
    for batch in opened.batches:
        coded = counting.coded(batch, coders)
        if coded is None:
            continue
        part = _CodedPart(batch, coded, schema)
        problems.extend(part.impossible())
        if not problems and not any(coder.problems for coder in coders):
            yield part
    problems.extend(_plain(coder.problem()) for coder in coders if coder.problems)


def _plain(error: InputError) -> InputError:
    """Return an error that can be sent between processes."""
    return (DataError if isinstance(error, DataError) else InputError)(str(error))
