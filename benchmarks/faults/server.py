"""A PostgreSQL server of our own, in a folder of its own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

PROGRAMS = next(
    iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None
)


class Server:
    """A server that answers on a socket in its folder.

    Parameters
    ----------
    folder : Path
        Where its files are; owned by the user that it runs as.
    """

    def __init__(self, folder: Path) -> None:
        if PROGRAMS is None:
            raise RuntimeError("the faults need PostgreSQL: install postgresql")
        self._folder = folder
        self._programs = PROGRAMS
        self.address = f"postgresql://curator@/postgres?host={folder}"
        options = "-A trust -U curator -E UTF8 --locale=C.UTF-8 --no-sync"
        self._call("initdb", "-D", folder / "data", *options.split())

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = ("listen_addresses=''", f"unix_socket_directories={self._folder}")
        options = " ".join(f"-c {setting}" for setting in (*settings, "fsync=off"))
        log = self._folder / "log"
        self._control("-o", options, "-l", log, "start")

    def stop(self) -> None:
        """Stop it at once, as if it were killed."""
        self._control("-m", "immediate", "stop")

    def load(self, frame: pd.DataFrame) -> None:
        """Make the table ``people`` of a frame's texts and numbers."""
        import psycopg

        kinds = {
            name: "double precision" if values.dtype.kind == "f" else "text"
            for name, values in frame.items()
        }
        columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
        marks = ", ".join(["%s"] * len(kinds))
        rows = frame.itertuples(index=False, name=None)
        with psycopg.connect(self.address, autocommit=True) as database:
            database.execute(f"CREATE TABLE people ({columns})")
            insert = f"INSERT INTO people VALUES ({marks})"
            database.cursor().executemany(insert, rows)

    def disconnect(self) -> None:
        """Terminate every other connection, as an administrator may."""
        import psycopg

        with psycopg.connect(self.address, autocommit=True) as database:
            database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )

    def _control(self, *words: object) -> None:
        self._call("pg_ctl", "-D", self._folder / "data", "-w", *words)

    def _call(self, program: str, *words: object) -> None:
        user = ["runuser", "-u", "nobody", "--"] if os.getuid() == 0 else []
        plain = {
            name: text for name, text in os.environ.items() if name != "LD_PRELOAD"
        }
        subprocess.run(
            [*user, str(self._programs / program), *map(str, words)],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env=plain,
        )


@contextmanager
def lent_server(frame: pd.DataFrame) -> Iterator[Server]:
    """Lend a server that has a frame as its table ``people``."""
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(folder, "nobody")
    server = Server(folder)
    server.start()
    try:
        server.load(frame)
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
