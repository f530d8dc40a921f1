"""The account of every privacy spend on the tables of the same persons: a SQLite file
that lives with them.

The price is reserved before a table is read. The charge is committed together with the
first noisy answer, and every later answer before it is used, so that a crash neither
forgets a spend nor loses what was paid for. A refusal that depends on the records is
never had without budget and never off the record.
"""

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final, get_args

from pdips.errors import DataError, InputError, ResumableError, what_happened
from pdips.html import small_table
from pdips.privacy import account as rows
from pdips.privacy.account import Account as Account
from pdips.privacy.account import (
    AccountPrice,
    End,
    Outcome,
    Priced,
    Request,
    Role,
    Unit,
    total_of,
)
from pdips.privacy.account import Attempt as Attempt
from pdips.privacy.account import Entry as Entry
from pdips.privacy.account import Receipt as Receipt
from pdips.privacy.budget import (
    ALLOWED,
    CHARGED_REFUSALS,
    check_total,
    check_total_in_rho,
    refuse_overspending,
    refuse_refusals,
    refuse_unit,
    validate_price,
)
from pdips.privacy.journal import SUFFIX, Journal, Stored, sweep
from pdips.privacy.log import Log, damaged, transaction
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, choice, spell

if TYPE_CHECKING:
    from pdips.data.schema import Schema
    from pdips.privacy.signing import AccountKey


@final
class Ledger:
    """Append-only account of every privacy spend on the confidential tables of the same
    persons.

    Parameters
    ----------
    path : str or Path
        The SQLite file; created by the first ``set_total``, ``reserve`` or ``charge``.
    timeout : float
        Seconds to wait for another process that is writing.

    Notes
    -----
    Losses add up in (epsilon, delta), a ``zcdp`` one by its reading; or, under a total
    in rho, in rho, which is less: each loss as its exact rho, approximate ones not at
    all. Numbers are kept as exact rationals.

    The account has one relation of neighbours, fixed by what creates the file, and one
    unit of privacy, fixed by the first charge; a release for another unit is refused
    unless its guarantee contains the account's.

    Nothing in the file is ever changed or deleted; a new total is a new row, and rows
    are chained by a hash, so that damage is found. Whoever may write the file can still
    replace it: an older copy forgets spends, which ``compare`` finds out by the
    receipts of later releases; so does moving the file without the ``-journal`` beside
    it that a crash may leave. The file needs a file system whose locks work, which is
    tested.

    Beside the file lie the answers of charges that aren't published yet
    (:mod:`pdips.privacy.journal`) and the account's key.

    Examples
    --------
    >>> ledger = Ledger("persons.sqlite")
    >>> ledger.set_total(2)
    >>> schema = Schema.load("examples/youth.toml")
    >>> table = Table.read("examples/youth.parquet", schema)
    >>> release, record = LaplaceSanitizer(epsilon=1).release(table, ledger=ledger)
    >>> ledger.summary().remaining_epsilon
    Fraction(1, 1)
    """

    def __init__(self, path: str | Path, *, timeout: float = 10.0) -> None:
        if not isinstance(path, (str, Path)):
            raise InputError(
                f"a ledger is named by the path of its file, got {type(path).__name__}"
            )
        if "\0" in str(path):
            raise InputError("the path of a ledger can't hold a NUL character")
        self.path = Path(path)
        self.timeout = timeout
        self._held: int | None = None
        self._token = ""  # Of the attempt that is held
        self._swept: list[Path] = []

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    def _repr_html_(self) -> str:
        if not self.path.exists():
            return small_table(f"Ledger {self.path}", [("spent", "no entry yet")])
        account = self.summary()
        total = account.total_epsilon
        figures = [
            ("total epsilon", "no total" if total is None else spell(total)),
            ("spent", spell(account.spent_epsilon)),
            ("reserved", spell(account.reserved_epsilon)),
        ]
        return small_table(f"Ledger {self.path}", figures)

    def set_total(
        self,
        epsilon: Number | None = None,
        *,
        rho: Number | None = None,
        delta: Number | None = None,
        neighbours: Neighbours = "replace-one",
    ) -> None:
        """Set what may be spent in all; the latest total counts, and can't be below
        what is spent and reserved.

        Parameters
        ----------
        epsilon, rho : int, float, str or Fraction
            One of them. Under a total in ``rho`` losses add up as zero-concentrated
            ones; there is no way back.
        delta : int, float, str or Fraction
            Of ``epsilon``, 0 by default; or at which ``rho`` is read, 10^-6 by default.
        neighbours : {"replace-one", "add-remove"}
            Which tables are to look alike; fixed by the first total or charge.

        Raises
        ------
        InputError
            If the account is kept for other neighbours or in rho, has a loss without
            rho, or the file can't be used.
        RefusedError
            If more than this is already spent or reserved.

        Examples
        --------
        >>> ledger = Ledger("many-gaussian-releases.sqlite")
        >>> ledger.set_total(rho="0.1", delta="1e-6")
        >>> float(ledger.summary().total_epsilon)
        2.142032798697
        """
        total_epsilon, total_delta, total_rho = total_of(epsilon, rho, delta)
        choice(neighbours, get_args(Neighbours), "neighbours")
        with self._transaction(create_for=neighbours) as log:
            account = rows.read_account(log)
            if account.neighbours != neighbours:
                raise InputError(
                    f"ledger {self.path} is kept for {account.neighbours} neighbours, "
                    f"fixed by its first entry; a total for {neighbours} needs another "
                    "ledger"
                )
            if total_rho is None:
                check_total(self.path, account, total_epsilon, total_delta)
            else:
                check_total_in_rho(self.path, account, total_rho)
            log.append(
                "total",
                epsilon=rows.text(total_epsilon),
                delta=rows.text(total_delta),
                rho=rows.text(total_rho),
            )

    def reserve(
        self,
        mechanism: Priced,
        schema: "Schema",
        *,
        explain: bool = False,
        allow: Collection[str] = (),
    ) -> AbstractContextManager[None]:
        """Reserve a price before the table is read; the release made inside turns it
        into its charge.

        If the table is refused (``DataError``) or something else fails before the
        charge, that is recorded and nothing is charged. A process that dies leaves an
        open reservation: it counts against the total until ``strike``.

        Parameters
        ----------
        mechanism : Priced
            What has the price.
        schema : Schema
            Of the table.
        explain : bool
            Record that details of a refusal were asked for.
        allow : collection of {"refusals", "charged-refusals"}
            Needed once records have refused three requests. With "refusals" further
            ones stay free and on record; with "charged-refusals" each is charged what
            was reserved.

        Raises
        ------
        InputError
            If the price doesn't fit the account, or the file can't be used.
        RefusedError
            If it would exceed the total.

        Examples
        --------
        >>> with ledger.reserve(mechanism, schema):  # doctest: +SKIP
        ...     table = Table.read("t.parquet", schema)
        ...     release, record = mechanism.release(table, ledger=ledger)
        """
        request = mechanism.request(schema)
        return self.hold(request, explain=explain, allow=allow)

    def reading(
        self,
        schema: "Schema",
        *,
        explain: bool = False,
        allow: Collection[str] = (),
    ) -> AbstractContextManager[None]:
        """Record that a table is read to be adopted, and what came of it; nothing is
        charged.
        """
        return self.hold(
            Request(mechanism="adopt", schema=schema),
            explain=explain,
            allow=allow,
        )

    def charge(
        self,
        request: Request,
        *,
        fingerprint: str,
        journal: Journal | None = None,
        facts: Mapping[str, Any] | None = None,
        answers: Sequence[Stored] = (),
    ) -> Receipt:
        """Record a spend and its first noisy answers, durably and in one transaction;
        or refuse it and record nothing.

        Parameters
        ----------
        request : Request
            What is charged, and for what. An add-remove loss on a replace-one account
            is charged as ``to_replace_one`` converts it. If a price is reserved, it has
            to be this one.
        fingerprint : str
            Text that identifies the table; only a salted hash of it is kept. The first
            charge binds the ledger to it.
        journal : Journal, optional
            From :meth:`new_journal`; holds the answers until the release is published.
        facts : dict, optional
            What is needed to resume, for the journal.
        answers : sequence of (str, bytes)
            Noisy answers that are drawn already, for the journal.

        Returns
        -------
        Receipt
            For the release to carry.

        Raises
        ------
        InputError
            If the loss bounds nothing or doesn't fit the account, the items don't add
            up, it isn't what was reserved, or the file can't be used.
        DataError
            If the ledger belongs to another table.
        RefusedError
            If the charge would exceed the total.
        """
        loss = validate_price(request)
        token = secrets.token_hex(8) if journal is None else self._token_of(journal)
        beside = None if journal is None else journal.path
        with self._transaction(create_for=loss.neighbours, beside=beside) as log:
            attempt = self._held
            if attempt is None:
                attempt = self._attempt(log, request, explain=False)
            else:
                self._check_reserved(log, attempt, request, loss)
            self._recognise(log, fingerprint)
            entry = rows.next_entry(log, request, loss, token)
            log.append("charge", attempt=attempt, **rows.entry_row(entry))
            receipt = entry.receipt(rows.account_name(log))
            if journal is not None:
                kept_facts = {**(facts or {}), "table": rows.salted(log, fingerprint)}
                journal.begin(log.connection, kept_facts, answers)
        self._held = None
        return receipt

    def end(self, number: int, end: End) -> None:
        """Record how a charge has ended, and destroy its journal. A second time it does
        nothing.
        """
        with self._transaction() as log:
            entry = self._entry(log, number)
            if entry.end is None:
                log.append("end", entry=number, end=end)
        self.journal_of(entry).destroy()

    def new_journal(self) -> Journal:
        """Return a journal for a charge to come, whose file isn't made yet."""
        return self._journal(secrets.token_hex(8))

    def journal_of(self, entry: Entry) -> Journal:
        """Return the journal of a charge, which may be gone."""
        return self._journal(entry.token)

    def resumable(self) -> list[Entry]:
        """Return the charges whose release isn't published yet and can still be
        made from its journal.
        """
        unfinished = [entry for entry in self.entries() if entry.end is None]
        return [one for one in unfinished if self.journal_of(one).path.exists()]

    @contextmanager
    def resuming(self, allow: Collection[str] = ()) -> Iterator[None]:
        """Record it if the table that a release is to be resumed with is refused."""
        with self._transaction() as log:
            n_refused = len(rows.refusals_of(log))
            refuse_refusals(self.path, n_refused, allow, reserves=False)
        try:
            yield
        except DataError:
            self.refuse_resumption()
            raise

    def clear_leftovers(self) -> list[Path]:
        """Delete what killed runs left beside the ledger, and return it."""
        with self._transaction():
            return self._swept

    def refuse_resumption(self) -> None:
        """Record that a release couldn't be resumed because its table has changed."""
        with self._transaction() as log:
            log.append("refused resumption")

    def strike(self, number: int) -> None:
        """Strike an open reservation, such as a killed process leaves: what it reserved
        may be asked for again.

        No noise was published for it; should its process still run, its charge will be
        refused.
        """
        with self._transaction() as log:
            if number not in rows.open_numbers(log):
                raise InputError(
                    f"ledger {self.path} has no open reservation {number}; `pdips "
                    f"ledger show` lists them"
                )
            log.append("outcome", attempt=number, outcome="struck")

    def adopt(self, fingerprint: str, *, role: Role = "version") -> None:
        """Let a corrected version of the same table, or another table of the same
        persons, share this account.
        """
        choice(role, get_args(Role), "role")
        with self._transaction() as log:
            self._recognise(log, fingerprint, adopt=role)
            if self._held is not None:
                log.append("outcome", attempt=self._held, outcome="adopted")
        self._held = None

    def adopt_account(self, other: "Ledger") -> None:
        """Count all charges of another account here too, so that the releases of both
        add up; later charges there are not counted.

        Raises
        ------
        InputError
            If the other account is this one, protects another unit or other neighbours,
            or was adopted already.
        RefusedError
            If the charges would exceed the total.
        """
        with other._transaction(reads=True) as theirs:
            name = rows.account_name(theirs)
            charges = rows.entries_of(theirs)
            neighbours = rows.account_row(theirs)["neighbours"]
        with self._transaction() as log:
            origins = {entry.origin for entry in rows.entries_of(log)}
            if name in origins | {rows.account_name(log)}:
                raise InputError(
                    f"ledger {self.path} counts the charges of {other.path} already"
                )
            account = rows.read_account(log)
            if neighbours != account.neighbours:
                raise InputError(
                    f"ledger {other.path} is kept for {neighbours} neighbours and "
                    f"{self.path} for {account.neighbours}: their charges don't add up"
                )
            for entry in charges:
                refuse_unit(self.path, account.unit, entry.unit)
                account = rows.read_account(log)
                refuse_overspending(self.path, account, entry.price)
                adopted = replace(entry, origin=entry.origin or name)
                log.append("charge", attempt=None, **rows.entry_row(adopted))

    def tables(self) -> list[tuple[str, str]]:
        """Return when each table came to share the account, and as what: "first",
        "version" or "other-table".
        """
        with self._transaction(reads=True) as log:
            adopted = log.of_kind("table")
        return [(event.time, event.content["role"]) for event in adopted]

    def salted(self, fingerprint: str) -> str:
        """Return the salted hash by which the account knows a table."""
        with self._transaction(reads=True) as log:
            return rows.salted(log, fingerprint)

    def holds(self, fingerprint: str) -> bool:
        """Whether a table shares the account."""
        with self._transaction(reads=True) as log:
            return rows.salted(log, fingerprint) in rows.known_tables(log)

    def name(self) -> str:
        """Return the account's public name, which receipts carry."""
        with self._transaction(reads=True) as log:
            return rows.account_name(log)

    def sign(self, message: bytes) -> tuple[str, str]:
        """Return the account's public key, and its signature of a message, both in
        hexadecimal digits.

        Raises
        ------
        InputError
            If the private half of the key isn't beside the ledger, or is another one.
        """
        public = self.public_key()
        key = self._key()
        if key.public != public:
            raise InputError(
                f"the key {self._key_path} isn't that of ledger {self.path}: put the "
                "account's own back from a copy"
            )
        return key.public, key.sign(message)

    def public_key(self) -> str:
        """Return the public half of the account's key, for those who check releases."""
        with self._transaction(reads=True) as log:
            return str(rows.account_row(log)["key"])

    def compare(self, receipt: Receipt) -> str | None:
        """Return what is wrong if a release with this receipt isn't in the account,
        else None.
        """
        with self._transaction(reads=True) as log:
            return rows.contradiction(receipt, log)

    def attempts(self) -> list[Attempt]:
        """Return every request with a ledger to read a table, oldest first, and what
        came of it.
        """
        with self._transaction(reads=True) as log:
            return rows.attempts_of(log)

    def entries(self) -> list[Entry]:
        """Return every charge, oldest first."""
        with self._transaction(reads=True) as log:
            return rows.entries_of(log)

    def summary(self) -> Account:
        """Return the account's neighbours and unit, its total, and what is spent and
        remains of it.
        """
        with self._transaction(reads=True) as log:
            return rows.read_account(log)

    @contextmanager
    def hold(
        self, request: Request, *, explain: bool = False, allow: Collection[str] = ()
    ) -> Iterator[None]:
        """Record an attempt, hold it for the body, and record what came of it unless
        the body did.
        """
        if request.loss is not None:
            validate_price(request)
        for word in allow:
            choice(word, ALLOWED, "allow")
        if self._held is not None:
            raise InputError(
                f"ledger {self.path} holds a reservation of this object already; make "
                "one at a time"
            )
        neighbours = request.loss.neighbours if request.loss else request.neighbours
        charged = CHARGED_REFUSALS in allow
        # An interrupt may come between the commit and its return.
        self._token = secrets.token_hex(8)
        try:
            with self._transaction(create_for=neighbours) as log:
                refuse_refusals(self.path, len(rows.refusals_of(log)), allow)
                self._held = self._attempt(log, request, explain=explain)
            yield
        except BaseException as error:
            is_refusal = isinstance(error, DataError)
            outcome: Outcome = "refused" if is_refusal else "withdrawn"
            self._let_go(request, outcome, error, charged=charged)
            raise
        self._let_go(request, "withdrawn", None, charged=charged)

    def _let_go(
        self,
        request: Request,
        outcome: Outcome,
        error: BaseException | None,
        *,
        charged: bool,
    ) -> None:
        """Record what came of the attempt that is held, or say that it stays open."""
        number = self._held
        self._held = None
        if number is None:
            return
        try:
            self._close(request, number, outcome, charged=charged)
        except InputError as unwritable:
            # A refusal that isn't on record isn't told either.
            reasons = []
            if error is not None and not isinstance(error, DataError):
                reasons.append(what_happened(error))
            kind = ResumableError if isinstance(error, ResumableError) else InputError
            if str(unwritable) not in reasons:
                reasons.append(str(unwritable))
            raise kind(
                f"{'; '.join(reasons)}; what was reserved and not charged stays "
                "reserved: when the ledger can be written, "
                f"pdips ledger strike {self.path} {number}"
            ) from None
        except KeyboardInterrupt:
            self._close(request, number, outcome, charged=charged)
            raise

    def _close(
        self, request: Request, number: int, outcome: Outcome, *, charged: bool
    ) -> None:
        """Record what came of an attempt, unless it never committed. One that was
        struck meanwhile is charged nothing; a refusal is on record even then, or
        striking would make refusals that nobody counts.
        """
        with self._transaction() as log:
            outcomes = {one.number: one.outcome for one in rows.attempts_of(log)}
            before = outcomes.get(number, "withdrawn")
            is_struck = before == "struck" and outcome == "refused"
            if before is not None and not is_struck:
                return
            if log.events[number - 1].content.get("token") != self._token:
                return
            log.append("outcome", attempt=number, outcome=outcome)
            if is_struck or outcome != "refused" or not charged or request.loss is None:
                return
            refusal = replace(request, mechanism=f"a refusal by {request.mechanism}")
            entry = rows.next_entry(log, refusal, request.loss, secrets.token_hex(8))
            log.append("charge", attempt=None, **rows.entry_row(entry))
            log.append("end", entry=entry.number, end="finished")

    def _attempt(self, log: Log, request: Request, *, explain: bool) -> int:
        """Check that the account can hold a price, and append the attempt; without a
        loss it costs nothing.
        """
        account = rows.read_account(log)
        unit = Unit.of(request.schema)
        content = None
        loss = request.loss
        if loss is not None:
            if loss.neighbours == "replace-one" != account.neighbours:
                raise InputError(
                    f"ledger {self.path} is kept for add-remove neighbours and can't "
                    "hold a replace-one loss, which says nothing of the number of "
                    "records; charge an add-remove loss or name another ledger"
                )
            price = AccountPrice.of(loss, account.neighbours)
            refuse_unit(self.path, account.unit, unit)
            refuse_overspending(self.path, account, price)
            content = price.content()
        return log.append(
            "attempt",
            mechanism=request.mechanism,
            price=content,
            unit=asdict(unit),
            schema=rows.digest_of(request.schema),
            plan=request.plan,
            explained=explain,
            token=self._token,
        )

    def _check_reserved(
        self, log: Log, number: int, request: Request, loss: PrivacyLoss
    ) -> None:
        """Refuse a charge that isn't what was reserved, in any of its numbers."""
        if number not in rows.open_numbers(log):
            raise InputError(
                f"ledger {self.path}: the reservation was struck meanwhile; nothing is "
                f"charged"
            )
        [held] = [one for one in rows.attempts_of(log) if one.number == number]
        account = rows.read_account(log)
        asked = (
            request.mechanism,
            AccountPrice.of(loss, account.neighbours),
            rows.digest_of(request.schema),
            request.plan,
        )
        if (held.mechanism, held.price, held.schema, held.plan) != asked:
            raise InputError(
                f"ledger {self.path}: another price, plan or schema was reserved than "
                "is to be charged"
            )
        refuse_unit(self.path, account.unit, Unit.of(request.schema))

    @contextmanager
    def _transaction(
        self,
        *,
        reads: bool = False,
        create_for: Neighbours | None = None,
        beside: Path | None = None,
    ) -> Iterator[Log]:
        """Run the body in one transaction, committed at its end; create the account if
        ``create_for`` is given. ``reads``: no row will be appended.
        """
        with transaction(
            self.path,
            timeout=self.timeout,
            writes=not reads,
            create=create_for is not None,
            beside=beside,
        ) as log:
            if not log.events and create_for is None:
                raise damaged(self.path)
            if not log.events and create_for is not None:
                rows.begin(log, create_for, public_key=self._key(create=True).public)
            if not reads:
                charges = rows.entries_of(log)
                kept = {entry.token for entry in charges if entry.end is None}
                if beside is not None:
                    kept.add(self._token_of(Journal(beside)))
                self._swept = sweep(self.path, kept)
            yield log

    def _recognise(
        self, log: Log, fingerprint: str, *, adopt: Role | None = None
    ) -> None:
        """Bind a new ledger to the table; refuse another table than a bound one's,
        unless it is to be adopted.
        """
        salted = rows.salted(log, fingerprint)
        tables = rows.known_tables(log)
        if salted in tables:
            return
        if tables and adopt is None:
            raise DataError(
                f"ledger {self.path} belongs to another table; if this is a corrected "
                "version of that table, or another table of the same persons, let it "
                "share the account with `pdips ledger adopt`, otherwise name another "
                "ledger"
            )
        log.append("table", hash=salted, role=adopt if tables else "first")

    def _entry(self, log: Log, number: int) -> Entry:
        entries = rows.entries_of(log)
        if not 1 <= number <= len(entries):
            raise InputError(
                f"ledger {self.path} has no charge {number}; `pdips ledger show` lists "
                "them"
            )
        return entries[number - 1]

    @property
    def _key_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.key")

    def _key(self, *, create: bool = False) -> "AccountKey":
        """Return the account's key; make one for a new account."""
        from pdips.privacy.signing import AccountKey  # brings cryptography along

        if create and not self._key_path.exists():
            return AccountKey.create(self._key_path)
        return AccountKey.read(self._key_path)

    def _journal(self, token: str) -> Journal:
        return Journal(self.path.with_name(f"{self.path.name}.{token}{SUFFIX}"))

    def _token_of(self, journal: Journal) -> str:
        name = journal.path.name
        return name.removeprefix(f"{self.path.name}.").removesuffix(SUFFIX)
