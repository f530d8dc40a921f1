"""Tables in a folder of Parquet files: what is a sum over records is counted file by file, by processes of a cluster.

Workers check, code and count the files that they are given; only digests, messages of broken rules and exact whole
numbers come back, to the one process that holds the account and draws the noise.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pdips.arrays import IntArray
from pdips.data import counted as counting
from pdips.data.databases import is_stored
from pdips.data.readers import open_batches, to_pandas
from pdips.data.schema import Schema
from pdips.data.table import Table, check_columns
from pdips.errors import DataError, InputError

LOCAL = "local"  # In place of a scheduler's address: processes on this machine, one a core
PATIENCE = 10.0  # Seconds that a scheduler and its first worker have to answer, and until it is asked again


class PartitionedTable(Table):
    """Records in a folder of Parquet files, or in a database, of which only sums over records can be asked.

    Neither records nor codes are held. Every file is read twice, to be checked and to be counted. All have the same
    columns and types; an empty one adds nothing. Public columns and person keys need the records in one place.
    ``folder`` is a path with ``.parquet`` files, or an Ibis table. ``scheduler`` is the address of a dask scheduler
    whose workers see the folder under the same path, or ``"local"``: a process for each core of this machine; left out,
    this process does all. Refused (``InputError``) if there is no file, columns don't fit, or no scheduler answers; a
    record that breaks a rule of the schema, or no records, raise ``DataError``.
    """

    partitioned = True

    def __init__(self, folder: Any, schema: Schema, *, scheduler: str | None = None) -> None:
        if schema.public_columns or schema.records.person:
            raise InputError("a table in many files can have no public columns and no person key: join the files")
        self.schema, self.counts, self._scheduler = schema, None, scheduler
        self._files = [folder] if is_stored(folder) else sorted(Path(folder).resolve().glob("*.parquet"))
        if not self._files:
            raise InputError(f"{folder} has no .parquet files")
        first = open_batches(self._files[0])
        check_columns(first.columns, schema)
        for file in self._files[1:]:
            if not open_batches(file).schema.equals(first.schema):
                raise InputError(f"the .parquet files in {folder} don't all have the same columns and types")
        found = list(self._each(_check))
        problems = sorted({problem for _, broken in found for problem in broken})
        if problems:
            raise DataError("; ".join(problems))
        self.fingerprint = counting.sum_of_digests(digest for digest, _ in found)
        self._n_records = int(self.fingerprint.split("-")[0])
        if not self._n_records:
            raise DataError("the table has no records")

    def __getattr__(self, name: str) -> Any:
        if name in ("frame", "codes"):
            raise InputError("a table in many files has no records at hand: only sums over them can be asked")
        raise AttributeError(name)

    @property
    def n_records(self) -> int:
        return self._n_records

    def total(self, statistic: Callable[[Table], IntArray]) -> IntArray:
        """Return whole numbers that are sums over records, added up over all files."""
        return np.asarray(reduce(np.add, self._each(_count, statistic)))

    def _each(self, work: Callable[..., Any], *more: Any) -> Iterator[Any]:
        """Yield what some work finds in each file, once a file; without the cluster where that goes away.

        A table is counted after its price is charged, so that a cluster that is gone by then may not end the release.
        """
        left = list(self._files)
        with ExitStack() as stack:
            client = None
            try:
                if self._scheduler is not None:
                    client = stack.enter_context(client_of(self._scheduler, len(left)))
            except InputError:
                if work is _check:
                    raise
            if client is not None:
                futures = {client.submit(work, file, self.schema, *more, pure=False): file for file in left}
                for future in _finished(client, list(futures)):
                    if future.status == "error" and isinstance(future.exception(), (InputError, DataError)):
                        raise future.exception()
                    if future.status == "finished":
                        left.remove(futures[future])
                        yield future.result()
        yield from (work(file, self.schema, *more) for file in left)


def _finished(client: Any, futures: list[Any]) -> Iterator[Any]:
    """Yield futures as they are done, until the scheduler or all its workers go away."""
    from distributed import CancelledError, wait

    while futures:
        try:
            done, pending = wait(futures, timeout=PATIENCE, return_when="FIRST_COMPLETED")
        except TimeoutError:
            if client.nthreads():
                continue
            return
        except (CancelledError, OSError):
            return
        yield from done
        futures = list(pending)


@contextmanager
def client_of(scheduler: str, n_tasks: int, workers: int | None = None) -> Iterator[Any]:
    """Lend a dask client: of the scheduler named, or of processes on this machine, without a dashboard."""
    try:
        from dask.system import CPU_COUNT
        from distributed import Client, LocalCluster
    except ImportError:
        raise InputError("a cluster needs the package distributed: install pdips[cluster]") from None
    if scheduler != LOCAL:
        try:
            client = Client(scheduler, timeout=PATIENCE)
        except (OSError, ValueError):
            raise InputError(f"no dask scheduler answers at {scheduler}") from None
        with client:
            try:
                client.wait_for_workers(1, timeout=PATIENCE)
            except OSError:
                raise InputError(f"the dask scheduler at {scheduler} has no workers") from None
            yield client
        return
    try:
        cluster = LocalCluster(
            n_workers=min(workers or CPU_COUNT, n_tasks),
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",  # None would take port 8787 of every network that the machine is on
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
        )
    except RuntimeError:
        raise InputError(
            "no processes could be started; a script that asks for them has to stand below if __name__ == '__main__'"
        ) from None
    with cluster, Client(cluster) as client:
        yield client


def _check(file: Any, schema: Schema) -> tuple[str, set[str]]:
    """Return the digest of a file's records, and which rules they break."""
    digests, broken = [counting.digest(0, 0, 0)], set[str]()
    try:
        for part in chunks(file, schema, broken):
            digests.append(part.fingerprint)
            broken.update(map(str, part.impossible()))
    except DataError as error:
        broken.add(str(error))
    return counting.sum_of_digests(digests), broken


@np.errstate(all="ignore")
def _count(file: Any, schema: Schema, statistic: Callable[[Table], IntArray]) -> IntArray | int:
    return sum((statistic(part) for part in chunks(file, schema)), start=0)


def chunks(file: Any, schema: Schema, broken: set[str] | None = None) -> Iterator[Table]:
    """Yield the records of a file as small tables, with fingerprints and rules that are broken where these are asked.

    Where all columns are levels or bins, values are coded once for each dictionary; else tables are made of frames.
    """
    opened = open_batches(file)
    if not counting.countable(opened, schema, mixed=False):
        for batch in opened.batches:
            if len(batch):
                yield Table(to_pandas(pa.Table.from_batches([batch]).cast(opened.schema)), schema)
        return
    coders = counting.coders_of(opened, schema, mixed=False)
    numeric = [name for name, column in schema.columns.items() if not column.is_categorical]
    for batch in opened.batches:
        codes, hashes = counting.coded(batch, coders, hashed=broken is not None)
        part = Table.__new__(Table)
        part.schema, part.counts, part.codes = schema, None, codes
        part.frame = pd.DataFrame(index=pd.RangeIndex(len(batch)))
        if numeric:
            part.frame = to_pandas(pa.Table.from_batches([batch]).select(numeric))
        part.fingerprint = counting.digest_of(hashes)
        yield part
    if broken is not None:
        broken.update(str(coder.problem()) for coder in coders if coder.problems)
