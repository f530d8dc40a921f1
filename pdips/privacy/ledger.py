"""The account of every privacy spend on the tables of the same persons: a SQLite file that lives with them.

The price is reserved before a table is read and charged before noise is drawn, so a crash can lose a release but never
forget a spend, and a refusal that depends on the records is never had without budget and never off the record.
"""

import hashlib
import os
import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, final, get_args

from pdips.errors import DataError, InputError, RefusedError
from pdips.html import small_table
from pdips.privacy import account as file
from pdips.privacy.account import Account as Account
from pdips.privacy.account import Attempt as Attempt
from pdips.privacy.account import Entry as Entry
from pdips.privacy.account import Outcome, Priced, Role, Unit, total_of
from pdips.privacy.account import Receipt as Receipt
from pdips.privacy.loss import Neighbours, Number, PrivacyLoss, Spend, choice, rho_of, spell, to_replace_one

if TYPE_CHECKING:
    from pdips.data.schema import Schema

_LOCKED = "is locked by another process; try again when it has finished"
_NO_RHO = "an approximate loss, which doesn't add up in rho"
_FOREIGN = "isn't a pdips ledger; name another file"
# By the low byte of SQLite's error code, which is the kind of error.
_REASONS = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_NOTADB: _FOREIGN,
    sqlite3.SQLITE_CANTOPEN: "can't be opened; check that its directory exists and that you may write there",
    sqlite3.SQLITE_READONLY: "can't be written; check that you may write to it and to its directory",
    sqlite3.SQLITE_FULL: "can't grow; the disk is full",
    sqlite3.SQLITE_CORRUPT: "is damaged; it must be restored with every spend since the copy added again",
}


@final
class Ledger:
    """Append-only account of every privacy spend on the confidential tables of the same persons.

    Parameters
    ----------
    path : str or Path
        The SQLite file; created by the first ``set_total``, ``reserve`` or ``charge``.
    timeout : float
        Seconds to wait for another process that is writing.

    Notes
    -----
    Losses add up in (epsilon, delta), a ``zcdp`` one by its reading; or, under a total in rho, in rho, which is less:
    pure ones as epsilon^2 / 2, approximate ones not at all. Numbers are kept as exact rationals.

    The account has one relation of neighbours, fixed by what creates the file, and one unit of privacy, fixed by the
    first charge; a release for another unit is refused unless its guarantee contains the account's.

    Nothing in the file is ever changed or deleted; a new total is a new row. Whoever may write the file can still
    replace it: an older copy forgets spends, which ``compare`` finds out by the receipts of later releases; so does
    moving the file without the ``-journal`` beside it that a crash may leave. The file needs a file system whose locks
    work, which many network drives' do not.

    Examples
    --------
    >>> ledger = Ledger("persons.sqlite")
    >>> ledger.set_total(2)
    >>> table = Table.read("examples/youth.parquet", Schema.load("examples/youth.toml"))
    >>> release, record = LaplaceSanitizer(epsilon=1).release(table, ledger=ledger)
    >>> ledger.summary().remaining_epsilon
    Fraction(1, 1)
    """

    def __init__(self, path: str | Path, *, timeout: float = 10.0) -> None:
        if not isinstance(path, (str, Path)):
            raise InputError(f"a ledger is named by the path of its file, got {type(path).__name__}")
        self.path = Path(path)
        self.timeout = timeout
        self._held: int | None = None

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    def _repr_html_(self) -> str:
        if not self.path.exists():
            return small_table(f"Ledger {self.path}", [("spent", "no entry yet")])
        account = self.summary()
        total = "no total" if account.total_epsilon is None else spell(account.total_epsilon)
        rows = [("total epsilon", total), ("spent", spell(account.spent_epsilon))]
        return small_table(f"Ledger {self.path}", [*rows, ("reserved", spell(account.reserved_epsilon))])

    def set_total(
        self,
        epsilon: Number | None = None,
        *,
        rho: Number | None = None,
        delta: Number | None = None,
        neighbours: Neighbours = "replace-one",
    ) -> None:
        """Set what may be spent in all; the latest total counts, and can't be below what is spent and reserved.

        Parameters
        ----------
        epsilon, rho : int, float, str or Fraction
            One of them. Under a total in ``rho`` losses add up as zero-concentrated ones; there is no way back.
        delta : int, float, str or Fraction
            Of ``epsilon``, 0 by default; or at which ``rho`` is read, 10^-6 by default.
        neighbours : {"replace-one", "add-remove"}
            Which tables are to look alike; fixed by the first total or charge.

        Raises
        ------
        InputError
            If the account is kept for other neighbours or in rho, has a loss without rho, or the file can't be used.
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
        row = (file.now(), file.text(total_epsilon), file.text(total_delta))
        with self._transaction(create_for=choice(neighbours, get_args(Neighbours), "neighbours")) as connection:
            account = file.read_account(connection)
            if account.neighbours != neighbours:
                raise InputError(
                    f"ledger {self.path} is kept for {account.neighbours} neighbours, fixed by its first entry; "
                    f"a total for {neighbours} needs another ledger"
                )
            held = (account.spent_epsilon + account.reserved_epsilon, account.spent_delta + account.reserved_delta)
            fits = total_epsilon >= held[0] and total_delta >= held[1]
            spent, total = _pair(*held), _pair(total_epsilon, total_delta)
            if total_rho is None and account.total_rho is not None:
                raise InputError(f"ledger {self.path} is kept in rho; a total in epsilon needs another ledger")
            if total_rho is not None:
                if account.spent_rho is None or account.reserved_rho is None:
                    raise InputError(f"ledger {self.path} has {_NO_RHO}; a total in rho needs another ledger")
                in_rho = account.spent_rho + account.reserved_rho
                fits, spent, total = total_rho >= in_rho, f"rho {in_rho:.12g}", f"rho {total_rho:.12g}"
            if not fits:
                raise RefusedError(
                    f"ledger {self.path} has already spent {spent}{_reserved(account)}; the total can't be {total}"
                )
            number = file.append(connection, "totals", *row)
            if total_rho is not None:
                if file.one_value(connection, "PRAGMA user_version") != file.FORMAT:
                    file.create_tables(connection, file.RHO_TOTALS, file.FORMAT)
                file.append(connection, "rho_totals", number, file.text(total_rho))

    def reserve(self, mechanism: Priced, schema: "Schema", *, explain: bool = False) -> AbstractContextManager[None]:
        """Reserve a price before the table is read; the release made inside turns it into its charge.

        If the table is refused (``DataError``) or something else fails before the charge, that is recorded and nothing
        is charged; ``explain`` records that details of a refusal were asked for. A process that dies leaves an open
        reservation: it counts against the total until ``strike``.

        Raises
        ------
        InputError
            If the price doesn't fit the account, or the file can't be used.
        RefusedError
            If it would exceed the total.

        Examples
        --------
        >>> with ledger.reserve(mechanism, schema):  # doctest: +SKIP
        ...     release, record = mechanism.release(Table.read("t.parquet", schema), ledger=ledger)
        """
        loss = mechanism.privacy_loss(schema)
        _validate_price(loss, mechanism.spends(schema))
        return self._holding(mechanism.name, loss, schema, explain=explain)

    def reading(self, schema: "Schema", *, explain: bool = False) -> AbstractContextManager[None]:
        """Record that a table is read to be adopted, and what came of it; nothing is charged."""
        return self._holding("adopt", None, schema, explain=explain)

    def charge(
        self, loss: PrivacyLoss, spends: Sequence[Spend], *, mechanism: str, schema: "Schema", fingerprint: str
    ) -> int:
        """Record a spend, durably, before its noise is drawn, and return its number; or refuse it and record nothing.

        Parameters
        ----------
        loss : PrivacyLoss
            The price. An add-remove loss on a replace-one account is charged as ``to_replace_one`` converts it.
        spends : sequence of Spend
            The price itemised; for a pure loss the items add up to ``loss.epsilon`` exactly.
        mechanism : str
            Name of the mechanism.
        schema : Schema
            Of the table; it says for which unit of privacy the price holds.
        fingerprint : str
            Text that identifies the table; only a salted hash of it is kept. The first charge binds the ledger to it.

        Raises
        ------
        InputError
            If the loss bounds nothing or doesn't fit the account, the items don't add up, it isn't what was reserved,
            or the file can't be used.
        DataError
            If the ledger belongs to another table.
        RefusedError
            If the charge would exceed the total.
        """
        _validate_price(loss, spends)
        with self._transaction(create_for=loss.neighbours) as connection:
            attempt = self._held
            if attempt is None:
                attempt = self._attempt(connection, mechanism, loss, schema, explain=False)
            else:
                held = next((row for row in file.open_attempts(connection) if row["number"] == attempt), None)
                if held is None:
                    raise InputError(f"ledger {self.path}: the reservation was struck meanwhile; nothing is charged")
                asked = (mechanism, *map(file.text, (loss.epsilon, loss.delta)), file.digest_of(schema))
                if tuple(held[name] for name in ("mechanism", "epsilon", "delta", "schema")) != asked:
                    raise InputError(f"ledger {self.path}: another price or schema was reserved than is to be charged")
                self._refuse_unit(connection, Unit.of(schema))
            self._recognise(connection, fingerprint)
            copied = ", ".join(file.COPIED)
            row = connection.execute(f"SELECT {copied} FROM attempts WHERE number = ?", (attempt,)).fetchall()[0]
            number = file.append(connection, "entries", file.now(), *row)
            for spend in spends:
                file.append(connection, "items", number, spend.step, file.text(spend.epsilon), spend.composition)
            file.append(connection, "receipts", number, secrets.token_hex(8))
            file.append(connection, "outcomes", file.now(), attempt, "charged", number)
            if file.read_unit(connection) is None:
                file.append(connection, "units", file.now(), *file.columns_of(Unit.of(schema)), 0)
        self._held = None
        return number

    def strike(self, number: int) -> None:
        """Strike an open reservation, such as a killed process leaves: what it reserved may be asked for again.

        No noise was drawn for it; should its process still run, its charge will be refused.
        """
        with self._transaction() as connection:
            if number not in {row["number"] for row in file.open_attempts(connection)}:
                raise InputError(f"ledger {self.path} has no open reservation {number}; `pdips ledger show` lists them")
            file.append(connection, "outcomes", file.now(), number, "struck", None)

    def declare_unit(self, schema: "Schema") -> None:
        """Record the curator's word that all entries of version 0.1 were for the unit of privacy of this schema."""
        with self._transaction() as connection:
            if file.read_unit(connection) is not None:
                raise InputError(f"ledger {self.path} has its unit of privacy on record already")
            if not file.one_value(connection, "SELECT count(*) FROM entries"):
                raise InputError(f"ledger {self.path} has no charge yet; the first one fixes its unit of privacy")
            file.append(connection, "units", file.now(), *file.columns_of(Unit.of(schema)), 1)

    def adopt(self, fingerprint: str, *, role: Role = "version") -> None:
        """Let a corrected version of the same table, or another table of the same persons, share this account."""
        choice(role, get_args(Role), "role")
        with self._transaction() as connection:
            self._recognise(connection, fingerprint, adopt=role)
            if self._held is not None:
                file.append(connection, "outcomes", file.now(), self._held, "adopted", None)
        self._held = None

    def tables(self) -> list[tuple[str, str]]:
        """Return when each table came to share the account, and as what: "first", "version" or "other-table"."""
        with self._transaction("BEGIN") as connection:
            rows = connection.execute(
                "SELECT f.number, f.time, r.role FROM fingerprints f LEFT JOIN roles r ON r.fingerprint = f.number "
                "ORDER BY f.number"
            ).fetchall()
        return [(row["time"], row["role"] or ("first" if row["number"] == 1 else "version")) for row in rows]

    def receipt(self, number: int) -> Receipt | None:
        """Return the receipt of an entry, for its release to carry; None for an entry of version 0.1."""
        with self._transaction("BEGIN") as connection:
            tokens = connection.execute("SELECT token FROM receipts WHERE entry = ?", (number,)).fetchall()
            name = file.account_name(connection)
        return Receipt(account=name, number=number, token=tokens[0]["token"]) if tokens else None

    def compare(self, receipt: Receipt) -> str | None:
        """Return what is wrong if a release with this receipt isn't in the account, else None."""
        with self._transaction("BEGIN") as connection:
            name, n_entries = file.account_name(connection), file.one_value(connection, "SELECT count(*) FROM entries")
        if receipt.account != name:
            return "it is charged to another account, and nothing here counts it"
        if receipt.number > n_entries:
            return (
                f"it is charge {receipt.number} of this account, which holds {n_entries}: an older copy of the ledger "
                "was put back, and it has forgotten spends"
            )
        if self.receipt(receipt.number) != receipt:
            return (
                f"charge {receipt.number} of this account is another one: an older copy of the ledger was put back and "
                "charged since, and it has forgotten spends"
            )
        return None

    def attempts(self) -> list[Attempt]:
        """Return every request with a ledger to read a table, oldest first, and what came of it."""
        with self._transaction("BEGIN") as connection:
            rows = connection.execute(
                "SELECT a.*, o.outcome, o.entry FROM attempts a LEFT JOIN outcomes o ON o.attempt = a.number "
                "ORDER BY a.number"
            ).fetchall()
        return [
            Attempt(
                **{name: row[name] for name in ("number", "time", "mechanism", "schema", "outcome", "entry")},
                charged_epsilon=Fraction(row["charged_epsilon"]),
                charged_delta=Fraction(row["charged_delta"]),
                unit=file.unit_of(row),
                explained=bool(row["explained"]),
            )
            for row in rows
        ]

    def entries(self) -> list[Entry]:
        """Return every charge, oldest first."""
        with self._transaction("BEGIN") as connection:
            rows = connection.execute("SELECT * FROM entries ORDER BY number").fetchall()
            items = connection.execute("SELECT * FROM items ORDER BY number").fetchall()
            neighbours: Neighbours = file.one_value(connection, "SELECT neighbours FROM account")
            told = connection.execute(
                "SELECT o.entry, a.* FROM outcomes o JOIN attempts a ON a.number = o.attempt WHERE o.entry IS NOT NULL"
            ).fetchall()
        spends: dict[int, list[Spend]] = {row["number"]: [] for row in rows}
        for item in items:
            spend = Spend(step=item["step"], epsilon=Fraction(item["epsilon"]), composition=item["composition"])
            spends[item["entry"]].append(spend)
        units = {row["entry"]: {"unit": file.unit_of(row), "schema": row["schema"]} for row in told}
        return [file.entry_of(row, spends[row["number"]], neighbours, units.get(row["number"], {})) for row in rows]

    def summary(self) -> Account:
        """Return the account's neighbours and unit, its total, and what is spent and remains of it."""
        with self._transaction("BEGIN") as connection:
            return file.read_account(connection)

    @contextmanager
    def _holding(self, mechanism: str, loss: PrivacyLoss | None, schema: "Schema", *, explain: bool) -> Iterator[None]:
        """Record an attempt, hold it for the body, and record what came of it unless the body did."""
        if self._held is not None:
            raise InputError(f"ledger {self.path} holds a reservation of this object already; make one at a time")
        with self._transaction(create_for=None if loss is None else loss.neighbours) as connection:
            number = self._attempt(connection, mechanism, loss, schema, explain=explain)
        self._held = number
        outcome: Outcome = "withdrawn"
        try:
            yield
        except DataError:
            outcome = "refused"
            raise
        finally:
            if self._held is not None:
                self._held = None
                with self._transaction() as connection:
                    if number in {row["number"] for row in file.open_attempts(connection)}:
                        file.append(connection, "outcomes", file.now(), number, outcome, None)

    def _attempt(
        self,
        connection: sqlite3.Connection,
        mechanism: str,
        loss: PrivacyLoss | None,
        schema: "Schema",
        *,
        explain: bool,
    ) -> int:
        """Check that the account can hold a price, and append the attempt; without a loss it costs nothing."""
        account, unit = file.read_account(connection), Unit.of(schema)
        price: tuple[object, ...] = ("none", account.neighbours, "0", "0", "0", "0", "0")
        if loss is not None:
            if loss.neighbours == "replace-one" != account.neighbours:
                raise InputError(
                    f"ledger {self.path} is kept for add-remove neighbours and can't hold a replace-one loss, which "
                    "says nothing of the number of records; charge an add-remove loss or name another ledger"
                )
            charged = to_replace_one(loss) if account.neighbours == "replace-one" else loss
            self._refuse_unit(connection, unit)
            self._refuse_overspending(account, charged)
            numbers = (loss.epsilon, loss.delta, loss.rho, charged.epsilon, charged.delta)
            price = (loss.kind, loss.neighbours, *map(file.text, numbers))
        row = (file.now(), mechanism, *price, *file.columns_of(unit), file.digest_of(schema), int(explain))
        return file.append(connection, "attempts", *row)

    def _refuse_unit(self, connection: sqlite3.Connection, unit: Unit) -> None:
        """Refuse a price for a unit of privacy whose losses don't add to those in the account."""
        account = file.read_unit(connection)
        if account is not None and not unit.fits(account):
            raise InputError(
                f"ledger {self.path} is kept for this unit of privacy: {account}. The schema has another: {unit}. "
                "Prices for different units don't add up: give the schema the records and public columns of the "
                "account, or name another ledger, whose total counts apart"
            )
        if account is None and file.one_value(connection, "SELECT count(*) FROM entries"):
            raise InputError(
                f"ledger {self.path} has charges of version 0.1, which didn't record the unit of privacy (person "
                f"column, cap, public columns). If all of them were for the unit of this schema ({unit}), say so with "
                "`pdips ledger declare-unit`; otherwise name another ledger"
            )

    @contextmanager
    def _transaction(
        self, begin: str = "BEGIN IMMEDIATE", *, create_for: Neighbours | None = None
    ) -> Iterator[sqlite3.Connection]:
        """Run the body in one transaction, committed at its end; create the account if ``create_for`` is given."""
        if create_for is None and not os.path.exists(self.path):
            raise InputError(f"ledger {self.path} doesn't exist")
        uri = f"{self.path.absolute().as_uri()}?mode={'rwc' if create_for else 'rw'}"
        try:
            # autocommit=True is SQLite's own: a transaction is what we begin and commit, nothing is opened behind us.
            with closing(sqlite3.connect(uri, uri=True, timeout=self.timeout, autocommit=True)) as connection:
                connection.row_factory = sqlite3.Row
                # A commit is the deletion of the journal: EXTRA, unlike FULL, also syncs the directory after it.
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("PRAGMA fullfsync = ON")  # macOS, where fsync may stop at the drive's cache
                connection.execute(begin)
                self._identify(connection, create_for)
                yield connection
                connection.execute("COMMIT")  # what doesn't come this far is rolled back by closing
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            reason = _REASONS.get(code & 0xFF, f"can't be used; SQLite reports error {code}")
            raise InputError(f"ledger {self.path} {reason}") from None

    def _identify(self, connection: sqlite3.Connection, create_for: Neighbours | None) -> None:
        """Check that the file is a ledger of this format; make one of an empty file if ``create_for`` is given."""
        marks = tuple(file.one_value(connection, f"PRAGMA {name}") for name in ("application_id", "user_version"))
        if marks in ((file.APPLICATION_ID, file.IN_EPSILON), (file.APPLICATION_ID, file.FORMAT)):
            return
        if marks == (file.APPLICATION_ID, 1):
            file.create_tables(connection, file.ADDED, file.IN_EPSILON)
            return
        if marks[0] == file.APPLICATION_ID:
            raise InputError(f"ledger {self.path} was written by another version of pdips; use that one")
        if any(marks) or file.one_value(connection, "SELECT count(*) FROM sqlite_master"):
            raise InputError(f"ledger {self.path} {_FOREIGN}")
        if create_for is None:
            raise InputError(f"ledger {self.path} is empty; no total was set and nothing charged yet")
        file.create(connection, create_for)

    def _recognise(self, connection: sqlite3.Connection, fingerprint: str, *, adopt: Role | None = None) -> None:
        """Bind a new ledger to the table; refuse another table than a bound one's, unless it is to be adopted."""
        salt = file.one_value(connection, "SELECT salt FROM account")
        digest = hashlib.blake2b(fingerprint.encode(), salt=salt, digest_size=32).digest()
        known = [row["hash"] for row in connection.execute("SELECT hash FROM fingerprints").fetchall()]
        if digest in known:
            return
        if known and adopt is None:
            raise DataError(
                f"ledger {self.path} belongs to another table; if this is a corrected version of that table, or "
                "another table of the same persons, let it share the account with `pdips ledger adopt`, otherwise name "
                "another ledger"
            )
        number = file.append(connection, "fingerprints", file.now(), digest)
        if known and adopt is not None:
            file.append(connection, "roles", number, adopt)

    def _refuse_overspending(self, account: Account, charged: PrivacyLoss) -> None:
        """Raise RefusedError unless the charge fits into what remains."""
        epsilon, delta = account.remaining_epsilon, account.remaining_delta
        if epsilon is None or delta is None:
            return
        fits, room = charged.epsilon <= epsilon and charged.delta <= delta, account.remaining_rho
        rho = rho_of(charged.kind, charged.epsilon, charged.rho)
        if room is not None:
            if rho is None:
                raise InputError(f"ledger {self.path} is kept in rho, and this is {_NO_RHO}; name another ledger")
            fits = rho <= room
        if fits:
            return
        total = _pair(account.total_epsilon or Fraction(0), account.total_delta or Fraction(0))
        words = (_pair(charged.epsilon, charged.delta), _pair(epsilon, delta), total)
        asked, left, total = words if room is None else (f"rho {each:.12g}" for each in (rho, room, account.total_rho))
        do = "ask for less, or raise the total (pdips ledger set-total)"
        if room is None and charged.delta and not account.total_delta:
            do = "the total allows no delta: give it one (pdips ledger set-total --delta), or take kind = pure"
        raise RefusedError(
            f"ledger {self.path} would be overspent: asked {asked}, remaining {left}, total {total} "
            f"({account.neighbours} neighbours){_reserved(account)}; {do}"
        )


def _validate_price(loss: PrivacyLoss, spends: Sequence[Spend]) -> None:
    if not loss.is_finite:
        raise InputError(
            f"a loss of kind {loss.kind!r} bounds nothing, so a ledger can't hold it; leave the ledger out of studies"
        )
    if not spends:
        raise InputError("a charge must be itemised: spends is empty")
    itemised = sum((spend.epsilon for spend in spends), Fraction(0))
    if loss.kind == "pure" and itemised != loss.epsilon:
        raise InputError(f"the spends add up to epsilon {itemised:.12g}, the loss says {loss.epsilon:.12g}")


def _pair(epsilon: Fraction, delta: Fraction) -> str:
    return f"epsilon {epsilon:.12g}" + (f" and delta {delta:.12g}" if delta else "")


def _reserved(account: Account) -> str:
    """Say what of an account is reserved, if anything is."""
    if not account.reserved_epsilon:
        return ""
    amount = _pair(account.reserved_epsilon, account.reserved_delta)
    if account.total_rho is not None:
        amount = f"rho {account.reserved_rho:.12g}"
    return f", {amount} of it reserved by runs that aren't finished (pdips ledger show)"
