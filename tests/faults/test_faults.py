"""Releases whose calls of the system fail, or that are killed, end in one of four ways
and say in which; and a judge that sees when they don't.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults import shim
from benchmarks.faults.doors import DOORS, Door
from benchmarks.faults.server import PROGRAMS

FAULTS, KILLS, FEW = 26, 4, 2  # For each door; in a cluster, which starts in seconds


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """The environment of a process under the shim; without a compiler this fails."""
    return shim.environment(shim.build(tmp_path_factory.mktemp("shim")))


def tried(environment, folder: Path, *words: object) -> list[dict]:
    """Return the rows of a trial in a process of its own."""
    rows = folder / "rows.jsonl"
    command = [sys.executable, "-m", "benchmarks.faults", *map(str, words)]
    done = subprocess.run(
        [*command, "--json", rows],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "| all |" in done.stdout, done.stderr  # the table, after the last row
    lines = rows.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow_cases(*(door.name for door in DOORS if door.name != "parquet"))
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_every_run_ends_in_one_of_four_ways_and_says_so(
    door: Door, environment, tmp_path
):
    if door.place == "postgres" and PROGRAMS is None:
        pytest.skip("no PostgreSQL is installed")
    is_light = door.place != "dask"
    n_faults, n_kills = (FAULTS, KILLS) if is_light else (FEW, FEW)
    words = ("--door", door.name, "--faults", n_faults, "--kills", n_kills)
    rows = tried(environment, tmp_path, *words)
    assert [row for row in rows if row["problems"]] == []
    assert len(rows) >= n_faults + n_kills
    if is_light:
        assert {row["end"] for row in rows} == {"not charged", "published", "charged"}
    struck = [row for row in rows if row["struck"]]
    assert len(struck) >= n_faults // 2


TWINS = {"no journal": "LOST", "late commit": "an answer was used"}


@pytest.mark.slow
@pytest.mark.parametrize("twin", TWINS)
def test_a_product_that_loses_or_repeats_answers_is_caught(twin, environment, tmp_path):
    # "csv" has a tree for each of two sets, so that a run can stop between answers
    words = ("--door", "csv", "--faults", 30, "--kills", 0, "--twin", twin)
    rows = tried(environment, tmp_path, *words)
    said = [problem for row in rows for problem in row["problems"]]
    assert any(problem.startswith(TWINS[twin]) for problem in said), said


USES = {
    "open": "open(path)",
    "write": "os.write(file, b'text')",
    "sync": "os.fsync(file)",
    "rename": "os.rename(path, path + '.new')",
    "make": "os.mkdir(path + '.folder')",
    "remove": "os.unlink(path)",
    "allocate": "os.posix_fallocate(file, 0, 9)",
    "read": "os.read(file, 4)",
    "lock": "fcntl.flock(file, fcntl.LOCK_EX)",
    "connect": "socket.socket().connect(('127.0.0.1', 9))",
    "receive": "socket.socketpair()[0].recv(1)",
}
PROGRAM = """
import errno, fcntl, os, signal, socket, sys
from pathlib import Path
from benchmarks.faults.shim import Fault, arm
root = Path(sys.argv[1]).resolve()
path = str(root / "in" / "file")
file = os.open(path, os.O_CREAT | os.O_RDWR)
trace = os.open(root / "calls", os.O_CREAT | os.O_WRONLY)
arm(Fault({fault}), root, trace)
try:
    {use}
    print("done")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@pytest.fixture
def armed(environment, tmp_path):
    """Run one statement with a fault; return what it printed, its exit code and the
    calls.
    """
    (tmp_path / "in").mkdir()

    def run(fault: str, use: str) -> tuple[str, int, list[str]]:
        program = PROGRAM.format(fault=fault, use=use)
        done = subprocess.run(
            [sys.executable, "-c", program, tmp_path],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
        return done.stdout.strip() or done.stderr, done.returncode, calls

    return run


def test_all_kinds_are_tried():
    assert set(USES) == set(shim.KINDS)


@pytest.mark.parametrize("kind", shim.KINDS)
def test_a_call_of_each_kind_fails(kind, armed):
    fault = f"kind={kind!r}, place=1, error=errno.EIO"
    said, code, calls = armed(fault, USES[kind])
    assert (said, code) == ("EIO", 0)
    assert next(call for call in calls if call.startswith("! ")).split()[1] == kind


@pytest.mark.parametrize("kind", [*shim.KINDS[:-2]])
def test_calls_elsewhere_are_neither_counted_nor_failed(kind, armed):
    fault = f"kind={kind!r}, place=1, error=errno.EIO, part='elsewhere'"
    assert armed(fault, USES[kind]) == ("done", 0, [])


def test_only_the_call_that_was_named_fails(armed):
    writes = "for k in range(4): os.write(file, b'k')"
    fault = "kind='write', place=3, error=errno.ENOSPC"
    said, _, calls = armed(fault, writes)
    assert said == "ENOSPC"
    assert [call[0] for call in calls] == ["w", "w", "!"]


LATER = "\n    ".join(
    [
        "try: os.write(file, b'k')",
        "except OSError: pass",
        "print(open(path).read(), end='')",
        "os.mkdir(path + '.folder')",
    ]
)


@pytest.mark.parametrize(
    ("stays", "said"), [("once", "done"), ("full", "ENOSPC"), ("dead", "ENOSPC")]
)
def test_a_full_disk_refuses_what_needs_space_and_a_dead_one_all(stays, said, armed):
    fault = f"kind='write', place=1, error=errno.ENOSPC, stays={stays!r}"
    found, _, calls = armed(fault, LATER)
    assert found == said
    reached_mkdir = any(call.startswith("make") for call in calls)
    assert reached_mkdir == (stays != "dead")


def test_a_process_that_is_killed_in_a_write_has_written_half_of_it(armed, tmp_path):
    fault = "kind='write', place=1, signal=signal.SIGKILL"
    _, code, _ = armed(fault, "os.write(file, b'abcdef')")
    assert code == -9
    assert (tmp_path / "in" / "file").read_bytes() == b"abc"


def test_no_compiler_is_a_failure_and_no_skip(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="C compiler"):
        shim.build(tmp_path)
