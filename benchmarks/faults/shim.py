"""The shim in C that makes calls of the system fail: built, loaded and armed."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SOURCE = Path(__file__).with_name("shim.c")
KINDS = (
    "open",
    "write",
    "sync",
    "rename",
    "make",
    "remove",
    "allocate",
    "read",
    "lock",
    "connect",
    "receive",
)
"""Kinds of calls, as ``shim.c`` names them; the last two aren't on files."""

Stays = Literal["once", "full", "dead"]
STAYS: tuple[Stays, ...] = ("once", "full", "dead")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong in a run.

    Parameters
    ----------
    kind : str
        Of call; one of ``KINDS``. Empty if no call is struck.
    place : int
        Which call of this kind is struck, from 1; 0 for none, so that calls are only
        listed.
    error : int
        The error number with which it fails; 0 if it doesn't.
    signal : int
        The signal that the process is sent there; 0 for none.
    stays : {"once", "full", "dead"}
        What fails after that: nothing, whatever needs space, or every call on a file.
    part : str
        Of the work folder, in which calls are counted; empty for all of it.
    seconds : float, optional
        When the process is killed from outside.
    act : str
        What is done to the table or the ledger while the process is stopped there.
    """

    kind: str = ""
    place: int = 0
    error: int = 0
    signal: int = 0
    stays: Stays = "once"
    part: str = ""
    seconds: float | None = None
    act: str = ""

    @property
    def kills(self) -> bool:
        """Whether nothing can be done or said after it."""
        return self.seconds is not None or self.signal == signal.SIGKILL

    @property
    def leaves(self) -> bool:
        """Whether a run can't clear away what it has made."""
        return self.kills or self.stays == "dead" or self.kind == "remove"

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"SIGKILL after {self.seconds:.3f} s"
        if not self.place:
            return "no fault"
        what = self.act
        if self.signal and not self.act:
            what = signal.Signals(self.signal).name
        if self.error:
            what = f"{_error_name(self.error)} {self.stays}"
        where = f" in {self.part}" if self.part else ""
        return f"{what} at {self.kind} {self.place}{where}"


def _error_name(number: int) -> str:
    import errno

    return errno.errorcode[number]


def build(folder: Path) -> Path:
    """Compile the shim into a folder, and return its path."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the faults need a C compiler: install gcc, which has `cc`")
    built = folder / "shim.so"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    command = [compiler, *options, "-o", str(built), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return built


def is_loaded() -> bool:
    """Whether this process runs under the shim."""
    return hasattr(ctypes.CDLL(None), "faults_arm")


def environment(shim: Path) -> dict[str, str]:
    """Return the environment of a process that is to run under the shim.

    Arrow takes memory by the C library, which alone is safe in a process that forks.
    """
    root = Path(__file__).parents[2]
    paths = [str(root), str(root / "papers"), os.environ.get("PYTHONPATH", "")]
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {
        **os.environ,
        **dict.fromkeys(threads, "1"),
        "LD_PRELOAD": str(shim),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }


def arm(fault: Fault, work: Path, trace: int) -> None:
    """Make the fault happen in this process, from now on.

    Parameters
    ----------
    fault : Fault
        What goes wrong.
    work : Path
        The folder that is watched, without symbolic links.
    trace : int
        A descriptor to which the counted calls are listed, the struck one with "!".
    """
    code = ctypes.CDLL(None).faults_arm(
        os.fsencode(work),
        os.fsencode(work / fault.part),
        fault.kind.encode(),
        ctypes.c_long(fault.place),
        fault.error,
        fault.signal,
        STAYS.index(fault.stays),
        trace,
    )
    if code:
        sys.exit("the path of the work folder is too long")
