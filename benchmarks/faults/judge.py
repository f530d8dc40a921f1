"""Which of the four ends a run has reached, and whether it said so."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pdips
from benchmarks.faults.doors import Door
from benchmarks.faults.runs import KEPT, Ended, Work
from benchmarks.faults.shim import Fault
from pdips.cli.check import examine
from pdips.errors import InputError
from pdips.privacy.account import Entry

End = Literal["not charged", "published", "charged", "not converged"]
Again = Callable[[Sequence[str]], Ended]

DONE, BUG, BAD_INPUT, REFUSED, RESUMABLE, INTERRUPTED = 0, 1, 2, 3, 4, 130
KILLED = -9

_RESUME = re.compile(r"pdips resume (\S+)(?: (\d+))?")
_NUMBER = re.compile(r"charged \(number (\d+)\)")
_REPORT = re.compile(r"`(pdips report [^`]+)`")
_UNKNOWN = "whether the release is charged isn't known"
_GENERATED = re.compile(r"tmp/tmp[a-z0-9_]{8}")
"""PyTensor leaves the code of compiled functions in the folder for temporary files."""
_SPILLED = re.compile(r"tmp/pdips-dask-[a-z0-9_]{8}")
"""The folder of a cluster's workers, which only a killed run leaves."""
_STRIKE = re.compile(r"pdips ledger strike (\S+) (\d+)")


@dataclass
class Verdict:
    """What a run came to.

    Parameters
    ----------
    end : str
        One of the four.
    problems : list of str
        What it did or said that it must not; empty for a good one.
    """

    end: End
    problems: list[str] = field(default_factory=list)


class Judge:
    """Judges one run, and finishes what it has left.

    Parameters
    ----------
    door : Door
        How the table came in.
    words : sequence of str
        The command line.
    work : Work
        Where it ran.
    secrets : set of str
        Values of the table.
    again : callable
        Runs another command in the same place, without a fault.
    """

    def __init__(
        self,
        door: Door,
        words: Sequence[str],
        work: Work,
        secrets: set[str],
        again: Again,
    ) -> None:
        self._door = door
        self._words = words
        self._work = work
        self._secrets = secrets
        self._again = again
        self._problems: list[str] = []

    def verdict(self, ended: Ended, fault: Fault) -> Verdict:
        """Judge a run that had a fault."""
        self._problems = []
        self._check_output(ended)
        self._check_account(ended, fault)
        entries = self._entries()
        if len(entries) > 1:
            self._problems.append(f"{len(entries)} charges")
        end = self._end(entries)
        self._check_claims(ended, end)
        match end:
            case "not charged":
                self._repeat(ended)
            case "charged":
                self._resume(ended)
            case "published":
                self._mend(ended)
        if fault.leaves:
            self._clear()
        if self._door.converges and end != "not converged":
            self._check_whole()
        elif end != "not converged" and self._end(self._entries()) != "not converged":
            self._problems.append("the charge hasn't ended")
        self._check_left(fault)
        return Verdict(end, self._problems)

    def _end(self, entries: list[Entry]) -> End:
        if self._complaint() is None and entries:
            return "published"
        if (self._work.out / "public").exists():
            self._problems.append(f"public/ isn't in order: {self._complaint()}")
        if not entries:
            return "not charged"
        # Its answers are destroyed first, should the ledger not be writable then.
        is_kept = self._ledger.journal_of(entries[0]).path.exists()
        if entries[0].end == "not converged" or (
            self._door.reads_records and not is_kept
        ):
            return "not converged"
        return "charged"

    def _check_output(self, ended: Ended) -> None:
        """At most one line of complaint, no trace, no value of the table."""
        lines = [
            line
            for line in ended.complaint.splitlines()
            # click ends the line of a terminal's ^C
            # on a slow machine the program says which step it is at
            if line and not line.startswith(("NOTE ", "WARNING ", "working "))
        ]
        if len(lines) > 1 or "Traceback" in ended.complaint:
            self._problems.append(f"{len(lines)} lines of complaint: {lines[:2]}")
        both = ended.output + ended.complaint
        if any(secret in both for secret in self._secrets):
            self._problems.append("a value of the table is printed")

    def _check_account(self, ended: Ended, fault: Fault) -> None:
        """No fault is a fact on records; only a killed run leaves its reservation, or
        one that couldn't write and says so.
        """
        if not self._work.ledger.exists() or not self._work.ledger.stat().st_size:
            return
        try:
            attempts = self._ledger.attempts()
        except InputError:
            # A ledger that was never begun is empty
            return
        if any(attempt.outcome == "refused" for attempt in attempts):
            self._problems.append("a refusal for what records contain is on record")
        stay_open = [attempt for attempt in attempts if attempt.outcome is None]
        if stay_open and not fault.kills:
            said = _STRIKE.search(ended.complaint)
            if said is None:
                self._problems.append("a reservation stays open without a word")
            elif int(said[2]) not in [attempt.number for attempt in stay_open]:
                self._problems.append("another reservation is said to stay open")

    def _check_claims(self, ended: Ended, end: End) -> None:
        """What was said, and the exit code, are true."""
        code, text = ended.code, ended.complaint
        allowed: dict[End, tuple[int, ...]] = {
            "not charged": (BAD_INPUT, REFUSED, INTERRUPTED, KILLED),
            "published": (DONE, RESUMABLE, KILLED),
            "charged": (RESUMABLE, KILLED),
            "not converged": (REFUSED, KILLED),
        }
        if code not in allowed[end] and not (
            end == "not charged" and code == RESUMABLE and _UNKNOWN in text
        ):
            self._problems.append(f"exit code {code} where the release is {end}")
        used = [digest for digest in ended.answers if not digest.startswith(KEPT)]
        if end == "not charged" and used:
            self._problems.append("an answer was used that nobody was charged for")
        claims: dict[str, tuple[End, ...]] = {
            "nothing was charged": ("not charged",),
            "nothing was released": ("not charged", "not converged"),
            "holds the whole release": ("published",),
            "not published": ("charged",),
        }
        for words, ends in claims.items():
            if words in text and end not in ends:
                self._problems.append(f"says {words!r} where the release is {end}")
        if code == RESUMABLE and not re.search("pdips (resume|report)", text):
            self._problems.append("exit code 4 without a way out")
        if end == "not converged" and not self._door.reads_records:
            self._problems.append("no chain reads records, and the charge has ended")

    def _repeat(self, ended: Ended) -> None:
        """Ask once more: what was not charged stands in nobody's way."""
        if _UNKNOWN in ended.complaint:
            told = self._again(["resume", str(self._work.ledger)])
            if told.code != BAD_INPUT:
                self._problems.append(f"resuming nothing ends with {told.code}")
        self._must_work(self._words, "repeating the command")

    def _resume(self, ended: Ended) -> None:
        """Finish a charged release by the command that the message names."""
        said = _RESUME.search(ended.complaint)
        words = ["resume", str(self._work.ledger)]
        if said is not None:
            words = ["resume", *(text for text in said.groups() if text)]
        resumed = self._must_work(words, "resuming")
        if resumed.answers[: len(ended.answers)] != ended.answers:
            self._problems.append("an answer was used and drawn anew")

    def _mend(self, ended: Ended) -> None:
        """Write missing pages again, and tell the ledger what it couldn't be told."""
        said = _REPORT.search(ended.complaint)
        words = ["report", str(self._work.out)] if ended.code == KILLED else []
        if said is not None:
            words = said[1].split()[1:]
        if words:
            self._must_work(words, "writing the pages")
        if any(entry.end is None for entry in self._entries()):
            self._must_work(["resume", str(self._work.ledger)], "telling the ledger")

    def _clear(self) -> None:
        """Clear away what a killed run has left."""
        ledger, out = str(self._work.ledger), str(self._work.out)
        words = ["check", out, "--ledger", ledger, "--clear"]
        if (self._work.out / "public").exists():
            self._must_work(words, "clearing")
        else:
            self._again(words)  # it clears, and finds no release

    def _must_work(self, words: Sequence[str], what: str) -> Ended:
        """Run a command that must do what it is for, which is to refuse where chains
        can't converge.
        """
        ended = self._again(words)
        is_release = words[0] in ("synthesize", "resume")
        good = DONE if self._door.converges or not is_release else REFUSED
        if ended.code != good:
            line = ended.complaint.strip() or ended.output.strip()
            self._problems.append(f"{what} ends with {ended.code}: {line}")
        self._check_output(ended)
        return ended

    def _check_whole(self) -> None:
        complaint = self._complaint()
        if complaint is not None:
            self._problems.append(f"LOST in the end: {complaint}")
            return
        faults = [
            str(remark)
            for remark in examine(self._work.out, [self._ledger])
            if remark.fault
        ]
        if faults:
            self._problems.append(f"check finds: {'; '.join(faults)}")
        ends = [entry.end for entry in self._entries()]
        if ends != ["finished"]:
            self._problems.append(f"charges ended as {ends}")

    def _complaint(self) -> str | None:
        """Return what is missing in ``public/``, or None if it is whole and charged."""
        from pdips.release.documents import PrivacyDocument
        from pdips.release.folder import file_digest

        home = self._work.out / "public"
        if not home.exists():
            return "there is no public/"
        try:
            document = PrivacyDocument.read(home)
        except InputError as error:
            return str(error)
        for name, digest in (document.digests or {}).items():
            if not (home / name).is_file() or file_digest(home / name) != digest:
                return f"{name} isn't whole"
        if not list(home.glob("synthetic_1.*")):
            return "there is no synthetic set"
        receipt = document.receipt
        if receipt is None:
            return "there is no receipt"
        if not self._entries():
            return "nothing was charged for it"
        return self._ledger.compare(receipt)

    def _check_left(self, fault: Fault) -> None:
        """Nothing is left beside the release and its account."""
        left = [path for path in self._files() if not self._may_stay(path, fault)]
        if left:
            self._problems.append(f"left over: {', '.join(map(str, left))}")

    def _files(self) -> list[Path]:
        root = self._work.root
        folders = [root / "ledger", root / "out", root / "tmp"]
        return sorted(
            path.relative_to(root) for folder in folders for path in folder.iterdir()
        )

    def _may_stay(self, path: Path, fault: Fault) -> bool:
        if _GENERATED.fullmatch(str(path)):
            text = (self._work.root / path).read_text(encoding="utf-8")
            return not any(secret in text for secret in self._secrets)
        if _SPILLED.fullmatch(str(path)):
            return fault.kills
        # Python tries folders for temporary files with a file of these four bytes
        if path.parts[0] == "tmp" and fault.kind == "remove":
            tried = self._work.root / path
            return tried.is_file() and tried.read_bytes() == b"blat"
        return str(path) in ("ledger/l.sqlite", "ledger/l.sqlite.key", "out/release")

    @property
    def _ledger(self) -> pdips.Ledger:
        return pdips.Ledger(self._work.ledger)

    def _entries(self) -> list[Entry]:
        if not self._work.ledger.exists() or not self._work.ledger.stat().st_size:
            return []
        try:
            return self._ledger.entries()
        except InputError as error:
            if "is empty" not in str(error):
                self._problems.append(f"the account can't be read: {error}")
            return []
