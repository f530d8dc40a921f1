"""Breaks the library in known ways, one at a time, and shows the test that notices:
``make mutants``.

Each mutant is made in a copy of the repository, so that a run that is stopped leaves
nothing behind. A mutant that survives, or that takes a minute to be killed, ends the
run with exit code 1: it is a hole in the tests.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from queue import Queue

from by_engines import BY_ENGINES
from by_tests import BY_TESTS
from mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results" / "mutants.md"
MARKS = ("<!-- made by make mutants -->", "<!-- end -->")
MUTANTS = [*BY_ENGINES, *BY_TESTS]
LIMIT_SECONDS = 600
SOON = 60.0  # Seconds in which a mutant has to be killed
COPIES = 2  # Of the repository, in which mutants are tried side by side


@dataclass(frozen=True)
class Fate:
    """What became of a mutant: the test that failed first, if any, and seconds."""

    mutant: Mutant
    killer: str | None
    seconds: float

    @property
    def is_hole(self) -> bool:
        return self.killer is None or self.seconds >= SOON

    def __str__(self) -> str:
        fate = f"killed by {self.killer}" if self.killer else "SURVIVED"
        mutant = self.mutant
        return f"{mutant.file}: {mutant.what}: {fate} ({self.seconds:.0f} s)"


def main() -> None:
    """Try the mutants whose names have all words given on the command line, or all, and
    say what became of each.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument(
        "--page", action="store_true", help="write docs/results/mutants.md"
    )
    parser.add_argument("--copies", type=int, default=COPIES)
    asked = parser.parse_args()
    wanted = [
        each
        for each in MUTANTS
        if all(word in f"{each.what} {each.file}" for word in asked.words)
    ]
    fates = []
    with lent_copies(asked.copies) as copies, ThreadPoolExecutor(asked.copies) as pool:
        for fate in pool.map(lambda mutant: tried(mutant, copies), wanted):
            fates.append(fate)
            print(fate, flush=True)  # noqa: T201
    holes = [fate for fate in fates if fate.is_hole]
    print(f"{len(fates)} mutants, {len(holes)} survived or took a minute")  # noqa: T201
    if asked.page:
        write_page(fates)
    sys.exit(bool(holes))


@contextmanager
def lent_copies(n: int) -> Iterator[Queue[Path]]:
    """Lend copies of the repository."""
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Path] = Queue()
        for number in range(n):
            copies.put(copied(Path(folder) / str(number)))
        yield copies


def copied(target: Path) -> Path:
    """Copy what git knows of, so that tests run in the copy as they do here."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def tried(mutant: Mutant, copies: Queue[Path]) -> Fate:
    """Try a mutant in one of the copies."""
    copy = copies.get()
    start = time.perf_counter()
    try:
        killer = killer_of(mutant, copy)
    finally:
        copies.put(copy)
    return Fate(mutant, killer, time.perf_counter() - start)


def wrapped(text: str) -> re.Pattern[str]:
    """Return what finds a text wherever the formatter breaks its lines."""
    marks = re.findall(r"\w+|[^\w\s]", text)
    parts = [(r",?\s*" if mark in ")]}" else "") + re.escape(mark) for mark in marks]
    return re.compile(r"\s*".join(parts))


def killer_of(mutant: Mutant, copy: Path) -> str | None:
    """Return the first test that fails on a mutant, or None if all pass.

    Raises
    ------
    RuntimeError
        If the text doesn't stand in the file exactly once, or no test ran.
    """
    file = copy / "pdips" / mutant.file
    whole = file.read_text(encoding="utf-8")
    places = list(wrapped(mutant.old).finditer(whole))
    if len(places) != 1:
        raise RuntimeError(
            f"{mutant.file}: {mutant.what}: the text stands there {len(places)} times"
        )
    start, end = places[0].span()
    file.write_text(whole[:start] + mutant.new.lstrip() + whole[end:], encoding="utf-8")
    command = (
        f'"{sys.executable}" -m pytest -x -q -p no:cacheprovider -m "not clone '
        f'and not browser" {mutant.tests}'
    )
    try:
        found = subprocess.run(
            command,
            shell=True,
            cwd=copy,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    finally:
        file.write_text(whole, encoding="utf-8")
    if found.returncode not in (0, 1):
        raise RuntimeError(
            f"{mutant.what}: no test ran\n{found.stdout[-2000:]}{found.stderr[-2000:]}"
        )
    failed = re.search(r"^FAILED (.+?)( - |$)", found.stdout, re.MULTILINE)
    return failed[1] if failed else None


def write_page(fates: Sequence[Fate]) -> None:
    """Write the table of the page: what each mutant breaks, and what notices it."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    n_killed = sum(fate.killer is not None for fate in fates)
    slowest = max(fate.seconds for fate in fates)
    rows = [
        f"| {fate.mutant.what} | `{fate.mutant.file}` | "
        f"{f'`{cell(fate.killer)}`' if fate.killer else 'SURVIVED'} | "
        f"{fate.seconds:.0f} |"
        for fate in fates
    ]
    text = "\n".join(
        [
            MARKS[0],
            "",
            f"{date.today().isoformat()}, at {commit}: {len(fates)} mutants, "
            f"{n_killed} killed, the slowest in {slowest:.0f} s; {COPIES} at a time "
            f"on two cores.",
            "",
            "| what is broken | file | killed by | seconds |",
            "| --- | --- | --- | ---: |",
            *rows,
            "",
            MARKS[1],
        ]
    )
    page = PAGE.read_text(encoding="utf-8")
    pattern = rf"(?s){re.escape(MARKS[0])}.*?{re.escape(MARKS[1])}"
    PAGE.write_text(re.sub(pattern, lambda _: text, page), encoding="utf-8")


def cell(test: str) -> str:
    """Return the name of a test without its file's folder and what tables can't
    show.
    """
    return test.removeprefix("tests/").replace("|", "/")


if __name__ == "__main__":
    main()
