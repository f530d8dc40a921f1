"""What is done to the world while a run is stopped at a call, and undone at its end."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pyarrow.parquet as pq

from benchmarks.faults.runs import Act, Work
from benchmarks.faults.server import Server


@contextmanager
def busy_ledger(work: Work) -> Iterator[None]:
    """Write to the ledger from another process until the run has ended."""
    with closing(sqlite3.connect(work.ledger, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def lost_part(work: Work) -> Iterator[None]:
    """Delete a file of the folder, and put it back."""
    part, kept = work.root / "data" / "parts" / "1.parquet", work.beside / "part"
    part.rename(kept)
    yield
    kept.rename(part)


@contextmanager
def changed_part(work: Work) -> Iterator[None]:
    """Exchange a file of the folder for another one of the same columns, and put it
    back.
    """
    part, kept = work.root / "data" / "parts" / "1.parquet", work.beside / "part"
    shutil.copy(part, kept)
    table = pq.read_table(part)
    pq.write_table(table.slice(0, table.num_rows // 2), part)
    yield
    shutil.copy(kept, part)


@contextmanager
def lost_connection(server: Server) -> Iterator[None]:
    """Terminate the connections to the server."""
    server.disconnect()
    yield


@contextmanager
def killed_server(server: Server) -> Iterator[None]:
    """Kill the server, and start it again once the run has ended."""
    server.stop()
    yield
    server.start()


def act_of(name: str, work: Work, server: Server | None) -> Act | None:
    """Return what a fault's act does in a work folder."""
    on_folder = {
        "busy ledger": busy_ledger,
        "lost part": lost_part,
        "changed part": changed_part,
    }
    on_server = {"lost connection": lost_connection, "killed server": killed_server}
    if name in on_folder:
        return lambda: on_folder[name](work)
    if name in on_server:
        if server is None:
            raise ValueError("the act needs a server")
        return lambda: on_server[name](server)
    return None
