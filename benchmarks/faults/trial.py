"""Tries doors with faults, and tells the ends."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.faults.acts import act_of
from benchmarks.faults.doors import (
    DOORS,
    MECHANISMS,
    Door,
    address_of,
    records,
    secrets_of,
    write_data,
)
from benchmarks.faults.judge import Judge
from benchmarks.faults.programme import (
    busy,
    faults,
    kills,
    quota,
    special,
    spread,
)
from benchmarks.faults.runs import Ended, Work, run
from benchmarks.faults.server import Server, lent_server
from benchmarks.faults.shim import Fault


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run with a fault, as it is stored."""

    door: str
    fault: str
    struck: str | None
    kills: bool
    code: int
    end: str
    problems: list[str]
    complaint: str
    seconds: float


class Trial:
    """Tries one door.

    Parameters
    ----------
    door : Door
        Which one.
    base : Path
        Below it is the table's folder ``data``, and every run has a folder.
    server : Server, optional
        For tables in PostgreSQL.
    twin : str, optional
        The broken product that is tried in place of ours.
    """

    def __init__(
        self,
        door: Door,
        base: Path,
        server: Server | None = None,
        twin: str | None = None,
    ) -> None:
        self._door = door
        self._base = base
        self._server = server
        self._twin = twin
        self._secrets = secrets_of(records())

    def quiet_run(self) -> Ended:
        """Run without a fault, twice: the second run is the measure of the others."""
        for _ in range(2):
            with self._work() as work:
                ended = self._run(work, Fault(), None)
            if (ended.code == 0) != self._door.converges:
                raise RuntimeError(f"{self._door.name} fails: {ended.complaint}")
        return ended

    def tried(self, fault: Fault) -> Row:
        """Run with a fault, and judge."""
        with self._work() as work:
            ended = self._run(work, fault, self._twin)

            def again(words: Sequence[str]) -> Ended:
                return run(words, work, twin=self._twin)

            judge = Judge(self._door, self._words(work), work, self._secrets, again)
            verdict = judge.verdict(ended, fault)
        return Row(
            door=self._door.name,
            fault=str(fault),
            struck=ended.struck,
            kills=fault.kills,
            code=ended.code,
            end=verdict.end,
            problems=verdict.problems,
            complaint=ended.complaint.strip().replace(str(work.root), "WORK"),
            seconds=round(ended.seconds, 2),
        )

    def _run(self, work: Work, fault: Fault, twin: str | None) -> Ended:
        act = act_of(fault.act, work, self._server)
        return run(self._words(work), work, fault, act=act, twin=twin)

    def _words(self, work: Work) -> list[str]:
        server = None if self._server is None else self._server.address
        return self._door.words(address_of(self._door, server), work.ledger, work.out)

    @contextmanager
    def _work(self) -> Iterator[Work]:
        work = Work.made(self._base, self._base / "data")
        try:
            yield work
        finally:
            work.remove()


def warm(door: Door, base: Path) -> None:
    """Run the same mechanism in this process on a file, so that children find all
    imported and compiled.
    """
    from pdips import cli

    if door.place in ("duckdb", "postgres"):
        import duckdb  # noqa: F401
        import ibis  # noqa: F401
        import psycopg  # noqa: F401
    place = "csv" if door.place == "csv" else "parquet"
    work = Work.made(base, base / "data")
    before = Path.cwd()
    os.chdir(work.root)
    sys.argv = ["pdips", *door.words(f"data/t.{place}", work.ledger, work.out)]
    if door.place == "dask":
        sys.argv = [word for word in sys.argv if word not in ("--scheduler", "local")]
    with (work.beside / "output").open("w") as output:
        try:
            with redirect_stdout(output), redirect_stderr(output):
                cli.main()
        except SystemExit:
            if not door.converges:
                return
            output.flush()
            said = (work.beside / "output").read_text(encoding="utf-8")
            raise RuntimeError(f"{door.name} fails: {said}") from None
        finally:
            os.chdir(before)
            work.remove()


ENDS = ("not charged", "published", "charged", "not converged")


def rows_of(
    door: Door,
    base: Path,
    *,
    n_faults: int,
    n_kills: int,
    twin: str | None = None,
    with_busy: bool = False,
) -> Iterator[Row]:
    """Yield the runs of a door."""
    with ExitStack() as stack:
        server = None
        if door.place == "postgres":
            server = stack.enter_context(lent_server(records()))
        warm(door, base)
        trial = Trial(door, base, server, twin)
        plain = trial.quiet_run()
        chosen = spread(faults(plain.calls), n_faults)
        more = [*special(door), *(busy() if with_busy else [])] if n_faults else []
        for fault in [*chosen, *more, *kills(plain.calls, plain.seconds, n_kills)]:
            yield trial.tried(fault)


def table(rows: Sequence[Row]) -> str:
    """Return counts of the ends by door."""
    lines = [
        f"| door | faults | kills | {' | '.join(ENDS)} | failures |",
        f"| --- {'| ---: ' * (len(ENDS) + 3)}|",
    ]
    for door in dict.fromkeys(row.door for row in rows):
        lines.append(_line(door, [row for row in rows if row.door == door]))
    return "\n".join([*lines, _line("all", rows)])


def _line(name: str, rows: Sequence[Row]) -> str:
    ends = Counter(row.end for row in rows)
    n_kills = sum(row.kills for row in rows)
    failures = sum(bool(row.problems) for row in rows)
    numbers = [len(rows) - n_kills, n_kills, *(ends[end] for end in ENDS), failures]
    return f"| {name} | {' | '.join(map(str, numbers))} |"


def main() -> None:
    """Try what the command line names; exit code 1 if a run has none of the ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults")
    parser.add_argument("--door", action="append", help="all, if left out")
    parser.add_argument("--faults", type=int, default=20, help="for each door")
    parser.add_argument("--kills", type=int, default=8, help="for each door")
    parser.add_argument("--full", action="store_true", help="500 faults, 200 kills")
    parser.add_argument("--twin", help="a broken product")
    parser.add_argument("--busy", action="store_true", help="ledgers, ten seconds each")
    parser.add_argument(
        "--json",
        type=Path,
        help="where rows go as they come, a JSON object a line; of those that are "
        "there, all but the last door's are kept and not tried again",
    )
    parser.add_argument("--page", type=Path, help="where the table goes")
    asked = parser.parse_args()
    command = " ".join(["python -m benchmarks.faults", *sys.argv[1:]])
    base = Path(tempfile.mkdtemp(prefix="faults")).resolve()
    write_data(base / "data")
    start = time.monotonic()
    try:
        kept = _stored_rows(asked.json)
        doors = {row.door for row in kept}
        rows = [*kept, *_shown(_asked_rows(asked, base, doors), asked.json)]
    finally:
        shutil.rmtree(base, ignore_errors=True)
    seconds = time.monotonic() - start
    if asked.page is not None:
        asked.page.write_text(page(rows, seconds, command), encoding="utf-8")
    print(f"{table(rows)}\n\n{seconds:.0f} s")
    sys.exit(1 if any(row.problems for row in rows) else 0)


def _stored_rows(stored: Path | None) -> list[Row]:
    """Return the rows of a run that was cut off, without the last door's, and leave
    no others in the file.
    """
    if stored is None or not stored.exists():
        return []
    lines = stored.read_text(encoding="utf-8").splitlines()
    rows = [Row(**json.loads(line)) for line in lines]
    kept = [row for row in rows if row.door != rows[-1].door]
    text = "".join(json.dumps(asdict(row)) + "\n" for row in kept)
    stored.write_text(text, encoding="utf-8")
    return kept


def _asked_rows(
    asked: argparse.Namespace, base: Path, done: Collection[str]
) -> Iterator[Row]:
    known = {door.name: door for door in (*DOORS, *MECHANISMS)}
    for name in asked.door or known:
        if name in done:
            continue
        n_faults, n_kills = asked.faults, asked.kills
        if asked.full:
            n_faults, n_kills = quota(known[name])
        yield from rows_of(
            known[name],
            base,
            n_faults=n_faults,
            n_kills=n_kills,
            twin=asked.twin,
            with_busy=asked.busy or asked.full,
        )


def _shown(rows: Iterator[Row], stored: Path | None) -> Iterator[Row]:
    """Store the rows and print those that fail, as they come."""
    for row in rows:
        if stored is not None:
            with stored.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(row)) + "\n")
        if row.problems:
            text = (row.door, row.fault, row.struck, row.problems, row.complaint)
            print(*text, sep="; ", flush=True)
        yield row


def page(rows: Sequence[Row], seconds: float, command: str) -> str:
    """Return the page of the documentation that states what a trial came to."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    when = datetime.now(UTC).date().isoformat()
    failing = [row for row in rows if row.problems]
    listed = [
        f"- {row.door}: {row.fault}: {'; '.join(row.problems)}" for row in failing
    ]
    return "\n".join(
        [
            "# Faults",
            "",
            f"`{command}` wrote this page on {when}, at commit `{commit}`, in "
            f"{seconds / 60:.0f} minutes.",
            "[Testing](../testing.md) describes what it does.",
            "",
            table(rows),
            "",
            "Failures:" if listed else "No run failed.",
            *(["", *listed] if listed else []),
            "",
        ]
    )
