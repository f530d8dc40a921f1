"""Runs of ``pdips`` in forked children of one warm process, each with its own fault."""

import hashlib
import io
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.shim import Fault, arm
from benchmarks.faults.twins import TWINS, exchange

PARTS = ("data", "ledger", "out", "tmp")
"""Folders below the work folder of a run: each may be a disk of its own."""

Act = Callable[[], AbstractContextManager[None]]

KEPT = "kept "  # How digests begin of what is no answer of the table
PATIENCE = 120.0  # Seconds after which a run hangs
_UNFORESEEN = 70  # Exit code of a child in which the harness itself is at fault


@dataclass(frozen=True, kw_only=True)
class Work:
    """The folder of one run, and the files beside it that its output goes to."""

    root: Path
    beside: Path

    @classmethod
    def made(cls, base: Path, data: Path) -> "Work":
        """Make a new one below a folder, with a copy of a door's data."""
        home = Path(tempfile.mkdtemp(dir=base)).resolve()
        work = cls(root=home / "work", beside=home / "beside")
        shutil.copytree(data, work.root / "data")
        for part in PARTS[1:]:
            (work.root / part).mkdir()
        work.beside.mkdir()
        return work

    @property
    def ledger(self) -> Path:
        return self.root / "ledger" / "l.sqlite"

    @property
    def out(self) -> Path:
        return self.root / "out" / "release"

    def remove(self) -> None:
        shutil.rmtree(self.root.parent)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended: its exit code (minus the signal of one that was killed), what it
    printed, the calls that it made, and digests of the answers that it used.
    """

    code: int
    output: str
    complaint: str
    calls: tuple[str, ...]
    answers: tuple[str, ...]
    seconds: float

    @property
    def struck(self) -> str | None:
        """The call at which the fault happened."""
        return next((call[2:] for call in self.calls if call[0] == "!"), None)


def run(
    words: Sequence[str],
    work: Work,
    fault: Fault | None = None,
    *,
    act: Act | None = None,
    twin: str | None = None,
) -> Ended:
    """Run ``pdips`` with these words in a forked child.

    Parameters
    ----------
    words : sequence of str
        The command line after ``pdips``.
    work : Work
        Where it runs.
    fault : Fault, optional
        What goes wrong.
    act : callable, optional
        Returns a context that is entered while the child is stopped at the struck call,
        and left at its end.
    twin : str, optional
        The broken product that runs in place of ours.
    """
    fault = Fault() if fault is None else fault
    for path in work.beside.iterdir():
        path.unlink()
    sys.stdout.flush()
    start = time.monotonic()
    with warnings.catch_warnings():
        # threads of Arrow and numpy, which are started anew in the child
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _be_the_program(words, work, fault, twin)
    code = _ended(child, fault, act)
    return Ended(
        code=code,
        output=_text(work.beside / "output"),
        complaint=_text(work.beside / "complaint"),
        calls=tuple(_text(work.beside / "calls").splitlines()),
        answers=tuple(_text(work.beside / "answers").splitlines()),
        seconds=time.monotonic() - start,
    )


def _be_the_program(
    words: Sequence[str], work: Work, fault: Fault, twin: str | None
) -> None:
    """Become ``pdips``, and leave with its exit code."""
    code = _UNFORESEEN
    try:
        os.setsid()
        # programs in the background inherit that interrupts are ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _take_streams(work)
        os.chdir(work.root)
        os.environ["TMPDIR"] = str(work.root / "tmp")
        tempfile.tempdir = None
        _watch_answers(work, twin)
        calls = _new_file(work.beside / "calls")
        sys.argv = ["pdips", *words]
        arm(fault, work.root, calls)
        code = _exit_code()
    finally:
        os._exit(code)


def _exit_code() -> int:
    """Run the program; return its exit code once its streams are flushed, as Python
    would.
    """
    from pdips.cli import run as program
    from pdips.privacy import log

    log._LOCKS_WORK.clear()  # a new process tries the locks itself
    code = 0
    try:
        program()
    except SystemExit as error:
        code = int(error.code or 0)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 120
    return code


def _take_streams(work: Work) -> None:
    for descriptor, name in ((1, "output"), (2, "complaint")):
        file = _new_file(work.beside / name)
        os.dup2(file, descriptor)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False))
    sys.stderr = io.TextIOWrapper(
        os.fdopen(2, "wb", closefd=False), line_buffering=True
    )


def _watch_answers(work: Work, twin: str | None) -> None:
    """Note a digest of each answer that the mechanism is handed, once it has it, and of
    what it keeps, which is made of answers and public facts.
    """
    from pdips.privacy.charge import Charge
    from pdips.privacy.journal import encoded

    if twin is not None:
        TWINS[twin]()
    file = _new_file(work.beside / "answers")
    answer, keep = Charge.answer, Charge.keep

    def note(found: Any, mark: str = "") -> Any:
        digest = hashlib.blake2b(encoded(found), digest_size=8).hexdigest()
        os.write(file, f"{mark}{digest}\n".encode())
        return found

    def answered(charge: Charge, name: str, draw: Callable[[], Any]) -> Any:
        return note(answer(charge, name, draw))

    def kept(charge: Charge, make: Callable[[], Any]) -> Any:
        return note(keep(charge, make), KEPT)

    exchange(Charge, answer=answered, keep=kept)


def _ended(child: int, fault: Fault, act: Act | None) -> int:
    """Wait for the end of a child and of whatever it has started; return its code."""
    with ExitStack() as acts:
        return _waited(child, fault, act, acts)


def _waited(child: int, fault: Fault, act: Act | None, acts: ExitStack) -> int:
    start = time.monotonic()
    kill_at = None if fault.seconds is None else start + fault.seconds
    while True:
        found, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if found and not os.WIFSTOPPED(status):
            break
        if found:
            if act is not None:
                acts.enter_context(act())
            os.kill(child, signal.SIGCONT)
        now = time.monotonic()
        if now > start + PATIENCE or (kill_at is not None and now > kill_at):
            os.kill(child, signal.SIGKILL)
            kill_at = None
        time.sleep(0.001)
    _end_group(child)
    if time.monotonic() > start + PATIENCE:
        raise TimeoutError(f"a run hangs: {fault}")
    return os.waitstatus_to_exitcode(status)


def _end_group(child: int) -> None:
    """End processes of a cluster that a killed run has left."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        return


def _new_file(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
