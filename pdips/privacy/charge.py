"""One charge, from its first noisy answer to its published release.

Nothing looks at an answer between its draw and its commit: a crash that depended on it,
followed by another draw, would change the law of what is published. The first answer is
committed in the transaction of the charge, later ones before they are used. So a run
that dies either has charged nothing and shown nothing, or has left all its answers to
be read back (``docs/proofs/ledger.md``, "Order of events, and crashes").
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pdips.errors import (
    ChangedTableError,
    DataError,
    InputError,
    NotConvergedError,
    PlanError,
    RefusedError,
    ResumableError,
    what_happened,
)
from pdips.file_lock import FileLock
from pdips.privacy.account import End, Entry, Receipt, Request, request_to_read
from pdips.privacy.journal import Journal, Stored, decoded, encoded
from pdips.privacy.ledger import Ledger

if TYPE_CHECKING:
    from pdips.data.schema import Schema

Facts = Mapping[str, Any]

KEPT = "(kept)"  # In place of a step's name: what steers later questions

OPEN_CHARGES: "WeakSet[Charge]" = WeakSet()
"""The charges of this process, for the command line: whatever ends it says of each how
its release can still be had.
"""


class Charge:
    """The answers of one release, and the account that is charged for them.

    Parameters
    ----------
    ledger : Ledger
        The account.
    request : Request
        What is charged, and for what.
    fingerprint : callable
        Returns the digest of the table that is answered from; called after the first
        answer was drawn.
    reads_records : bool
        Whether chains read records. Then the charge comes before they begin, and chains
        that don't converge end it.
    facts : dict, optional
        What is needed to resume the release, kept with the answers: never a seed, and
        nothing of the table but its salted digest.
    prepare : callable, optional
        Called before the charge is committed; if it raises, nothing is charged.
    """

    def __init__(
        self,
        ledger: Ledger,
        request: Request,
        fingerprint: Callable[[], str],
        *,
        reads_records: bool = False,
        facts: Facts | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.ledger = ledger
        self.receipt: Receipt | None = None
        self._request = request
        self._fingerprint = fingerprint
        self._reads_records = reads_records
        self._facts = {**(facts or {})}
        self._prepare = prepare
        self._journal: Journal | None = None
        self._lock: FileLock | None = None
        self._is_committing = False
        self._stored: deque[Stored] = deque()
        self._before_charge: list[Stored] = []
        self._is_in_place = False
        self._has_ended = False
        OPEN_CHARGES.add(self)

    def __repr__(self) -> str:
        return f"<charge to {self.ledger!r}>"

    @property
    def token(self) -> str:
        """The random name of the charge, which all files of its release share."""
        if self.receipt is None:
            raise PlanError("a release was made without an answer to its plan")
        return self.receipt.token

    @property
    def is_open(self) -> bool:
        """Whether the account is, or may be, charged, and no end of the charge is
        recorded.
        """
        return not self._has_ended and self._is_made()

    @property
    def facts(self) -> Facts:
        """What is kept with the answers."""
        return self._facts

    def resume(self, number: int) -> None:
        """Take over a charge whose run has ended, with the answers that it left.

        Raises
        ------
        InputError
            If there is no such charge, it has ended, another process works on it, the
            plan or the code is another, or the table has changed.
        """
        entry = resumable_entry(self.ledger, number, self._request)
        journal = self.ledger.journal_of(entry)
        self._lock = _locked(journal, number)
        try:
            fingerprint = self._fingerprint()
            facts, answers = settled_answers(self.ledger, number, journal, fingerprint)
        except BaseException:
            self._unlock()
            raise
        self._journal = journal
        self._facts = facts
        self._stored = deque(answers)
        self.receipt = entry.receipt(self.ledger.name())

    def answer(self, name: str, draw: Callable[[], Any]) -> Any:
        """Return the next answer: read back, or drawn and committed before its use."""
        if self._stored:
            return self._read_back(name)
        answer = self._drawn(draw)
        self._commit(name, encoded(answer))
        return answer

    def keep(self, make: Callable[[], Any]) -> Any:
        """Return what steers later questions: made of earlier answers once, and read
        back in a resumed release, which would make it otherwise.
        """
        if self._stored:
            return self._read_back(KEPT)
        values = make()
        if self.receipt is None:
            # Nothing of the table is known yet: it is committed with the first answer.
            self._before_charge.append((KEPT, encoded(values)))
        else:
            self._commit(KEPT, encoded(values))
        return values

    def begin(self) -> None:
        """Charge before the first answer: of chains that read records, even how long
        they take isn't shown for free.
        """
        if self.receipt is None:
            self._charge([])

    def end(self, end: End) -> None:
        """Record how the charge has ended, and destroy its answers."""
        if self.receipt is None or self._has_ended:
            return
        self._is_in_place = end == "finished"
        try:
            if self._journal is not None and end == "not converged":
                # First of all: should the ledger not be writable now, the chains still
                # can't be run again under this charge.
                self._journal.destroy()
            self._end(self.receipt.number, end)
        finally:
            self._unlock()
        self._has_ended = True
        OPEN_CHARGES.discard(self)

    def _end(self, number: int, end: End) -> None:
        """Tell the ledger; what has stopped halfway is finished by a second call.

        A commit is made when its journal is deleted, and an error of the disk or an
        interrupt can come right after that.
        """
        try:
            self.ledger.end(number, end)
        except InputError:
            self.ledger.end(number, end)
        except KeyboardInterrupt:
            self.ledger.end(number, end)
            raise

    @contextmanager
    def redeemable(self) -> Iterator[None]:
        """Say of whatever goes wrong in the body after the charge how the release can
        still be had.
        """
        try:
            yield
            # All answers are there: who resumes now draws none, and does no harm.
            self._unlock()
        except ResumableError:
            raise
        except BaseException as error:
            if not self._is_made():
                self._unlock()
                raise
            if isinstance(error, NotConvergedError) and self._reads_records:
                self._end_unconverged()
                raise
            self._unlock()
            # A traceback of what happened may quote records; it is the new error's
            # __context__, which nobody prints unasked.
            raise ResumableError(self.way_out(error)) from None

    def _end_unconverged(self) -> None:
        """End the charge of chains that read records. An interrupt changes nothing of
        what is said: the program ends anyway.
        """
        with suppress(InputError):
            try:
                self.end("not converged")
            except KeyboardInterrupt:
                self.end("not converged")

    def _drawn(self, draw: Callable[[], Any]) -> Any:
        try:
            return draw()
        except (InputError, RefusedError, PlanError, ChangedTableError, OSError):
            raise
        except Exception as error:
            if self.receipt is not None:
                raise
            # Before the charge this is a refusal for what records contain, on record,
            # whose message says no more.
            raise DataError(
                f"the records can't be counted: {type(error).__name__}"
            ) from None

    def _read_back(self, name: str) -> Any:
        stored, data = self._stored.popleft()
        if stored != name:
            raise PlanError(
                f"{name!r} is asked where {stored!r} was answered before: the release "
                "can't be resumed by this code"
            )
        return decoded(data)

    def _commit(self, name: str, data: bytes) -> None:
        if self.receipt is None:
            self._charge([(name, data)])
        elif self._journal is not None:
            self._journal.append(name, data)

    def _charge(self, answers: list[Stored]) -> None:
        """Commit the charge and its first answers, or leave nothing behind."""
        if self._prepare is not None:
            self._prepare()
        fingerprint = self._fingerprint()
        journal = self.ledger.new_journal()
        self._lock = _locked(journal, None)
        try:
            journal.create()
            self._journal = journal
            self._is_committing = True
            self.receipt = self.ledger.charge(
                self._request,
                fingerprint=fingerprint,
                journal=journal,
                facts=self._facts,
                answers=[*self._before_charge, *answers],
            )
            self._is_committing = False
        except BaseException:
            if not self._is_made():
                journal.destroy()
                self._journal = None
            raise

    def _is_made(self) -> bool:
        """Whether the account is, or may be, charged: an interrupt can come between
        the commit and its return.
        """
        if self.receipt is not None or not self._is_committing:
            return self.receipt is not None
        assert self._journal is not None  # made before the commit began
        try:
            entries = self.ledger.entries()
            name = self.ledger.name()
        except InputError:
            # A new ledger has no bytes before its first commit; one that can't be read
            # may hold the charge.
            self._is_committing = _has_bytes(self.ledger.path)
            return self._is_committing
        self._is_committing = False
        for entry in entries:
            if self.ledger.journal_of(entry).path == self._journal.path:
                self.receipt = entry.receipt(name)
        return self.receipt is not None

    def way_out(self, error: BaseException) -> str:
        """Return what went wrong, and how the release can still be had."""
        ledger = self.ledger.path
        if self.receipt is None:
            return (
                f"{what_happened(error)}; ledger {ledger} can't be read, so that "
                "whether the release is charged isn't known. When it can be read, "
                f"pdips resume {ledger} finishes the release, if it was charged"
            )
        number = self.receipt.number
        how = f"pdips resume {ledger} {number}"
        if "command" not in self._facts:
            how = f"repeat the call with resume={number}"
        if self._is_in_place:
            return (
                f"{what_happened(error)}; what was charged (number {number}) is in its "
                f"place, and the ledger isn't told so yet: {how}"
            )
        return (
            f"{what_happened(error)}; the release is charged (number {number}) and not "
            f"published. Finish it at no further price: {how}"
        )

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


@dataclass(frozen=True, kw_only=True)
class Charging:
    """How a release is paid for.

    Parameters
    ----------
    ledger : Ledger, optional
        The account; without one nothing is charged.
    resume : int, optional
        Number of the charge whose release is to be finished, at no further price.
    command : dict, optional
        The command that asks, kept with the answers for ``pdips resume``.
    prepare : callable, optional
        Called once the first answer is drawn, before the charge; if it raises, nothing
        is charged.
    """

    ledger: Ledger | None = None
    resume: int | None = None
    command: Mapping[str, Any] | None = None
    prepare: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        if self.resume is not None and self.ledger is None:
            raise InputError("resume needs the ledger that was charged")

    def charge(
        self,
        request: Request,
        fingerprint: Callable[[], str],
        *,
        reads_records: bool,
        reproducible: bool,
    ) -> Charge | None:
        """Return the charge of a request that is about to be answered, or the one that
        is taken over; None without a ledger.
        """
        if self.ledger is None:
            return None
        facts: dict[str, Any] = {"reproducible": reproducible}
        if self.command is not None:
            facts["command"] = {**self.command}
        charge = Charge(
            self.ledger,
            request,
            fingerprint,
            reads_records=reads_records,
            facts=facts,
            prepare=self.prepare,
        )
        if self.resume is not None:
            charge.resume(self.resume)
        return charge


FREE = Charging()
"""Nothing is charged: for tests and studies."""


def reserved(
    ledger: Ledger | None,
    request: Request,
    *,
    explain: bool = False,
    allow: Collection[str] = (),
    resume: int | None = None,
) -> AbstractContextManager[None]:
    """Reserve a price before a table is read; of a charge that is to be resumed, check
    that it can be. Without a ledger nothing is recorded.
    """
    if ledger is None:
        if resume is not None:
            raise InputError("resume needs the ledger that was charged")
        return nullcontext()
    if resume is not None:
        resumable_entry(ledger, resume, request)
        return ledger.resuming(allow)
    return ledger.hold(request, explain=explain, allow=allow)


def reserved_to_read(
    ledger: Ledger | None,
    schema: "Schema",
    neighbours: str,
    *,
    explain: bool = False,
    allow: Collection[str] = (),
) -> AbstractContextManager[None]:
    """Put on record what goes wrong where a table's public columns are read before
    there is a price; nothing where none are.

    Raises
    ------
    InputError
        If the number of records is protected, which public columns show.
    """
    if not schema.public_columns:
        return nullcontext()
    if neighbours == "add-remove":
        raise InputError(
            "public columns show the number of records, so neighbours = add-remove "
            "doesn't go with them"
        )
    request = request_to_read(schema, neighbours)
    return reserved(ledger, request, explain=explain, allow=allow)


def open_entry(ledger: Ledger, number: int) -> Entry:
    """Return a charge whose release isn't finished, with its answers beside the ledger.

    Raises
    ------
    InputError
        If there is no such charge, it has ended, or its answers are gone.
    """
    entries = ledger.entries()
    if not 1 <= number <= len(entries):
        raise InputError(f"ledger {ledger.path} has no charge {number}")
    entry = entries[number - 1]
    if entry.end == "finished":
        raise InputError(
            f"charge {number} of ledger {ledger.path} is finished: its release is in "
            "its place"
        )
    if entry.end is not None:
        raise InputError(
            f"charge {number} of ledger {ledger.path} has ended: its chains did not "
            "converge, and repeating them until they do isn't covered by its price"
        )
    if not ledger.journal_of(entry).path.exists():
        raise InputError(
            f"the answers of charge {number} aren't beside ledger {ledger.path}: put "
            "their file back, or ask for a new release"
        )
    return entry


def settled_answers(
    ledger: Ledger, number: int, journal: Journal, fingerprint: str
) -> tuple[dict[str, Any], list[Stored]]:
    """Return the facts and the answers of a charge from its journal, or refuse a table
    that it wasn't made for, which is recorded.
    """
    facts, answers = journal.read()
    if ledger.salted(fingerprint) != facts["table"]:
        ledger.refuse_resumption()
        raise InputError(
            f"charge {number} can't be resumed: the table isn't the one that it "
            "was charged for. That it differs is on record"
        )
    return facts, answers


def resumable_entry(ledger: Ledger, number: int, request: Request) -> Entry:
    """Return a charge that can be resumed for a request, before a table is read.

    Raises
    ------
    InputError
        If there is no open charge, or the plan or the code is another.
    """
    entry = open_entry(ledger, number)
    if entry.code != request.code:
        raise InputError(
            f"charge {number} was made by another version of the code ({entry.code}, "
            f"this is {request.code}): resume it with that version"
        )
    if (entry.plan, entry.mechanism) != (request.plan, request.mechanism):
        raise InputError(
            f"charge {number} was made for another plan: give the mechanism, its "
            "settings and the schema as they were"
        )
    return entry


def _has_bytes(path: Path) -> bool:
    """Whether a file is there and has something in it."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _locked(journal: Journal, number: int | None) -> FileLock:
    lock = FileLock.taken(journal.path.with_name(journal.path.name + ".lock"))
    if lock is None:
        raise InputError(
            f"charge {number} is being worked on by another process; wait for its end"
        )
    return lock
