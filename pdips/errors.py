"""Exceptions of a request without a result: bad input, and a refusal; what a misspelt
name was meant to be.
"""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """The request can't be carried out as stated; the message names the field and the
    rule.

    A message names columns, rules and public settings, never a record's value, count or
    position: an error raised after reading the table is published to the caller without
    a price.

    Examples
    --------
    >>> LaplaceSanitizer(epsilon=-1)
    Traceback (most recent call last):
    pdips.errors.InputError: epsilon must be above 0, got -1
    """


class DataError(InputError):
    """A table breaks its schema: a refusal that depends on the records, and so answers
    a question about them.

    Whoever asks with a ledger sees one message for all of these, and the attempt is
    recorded; the curator may ask for the text, which is recorded too. Errors of the
    schema, the settings and the file's format are plain InputErrors.
    """


class ChangedTableError(RuntimeError):
    """Files, or a table in a database, are no longer what was checked and counted
    first: a file changed, came, went or can't be read, while a release ran.

    No number of the changed files leaves the method that raises it.

    Examples
    --------
    >>> from pdips.data.partitions import PartitionedTable
    >>> frame = pd.DataFrame({"ill": ["no", "yes"]})
    >>> frame.to_parquet("part.parquet")
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> table = PartitionedTable(".", schema)
    >>> table.total(lambda part: part.count(part.codes["ill"], 2))
    array([1, 1])
    >>> frame[:1].to_parquet("part.parquet")
    >>> table.total(lambda part: part.count(part.codes["ill"], 2))
    Traceback (most recent call last):
    pdips.errors.ChangedTableError: the table changed, or went away, ...
    """


class RefusedError(RuntimeError):
    """The request was understood and is refused: it would overspend, or publish what no
    guarantee covers.

    Examples
    --------
    >>> ledger = Ledger("persons.sqlite")
    >>> ledger.set_total("1/2")
    >>> schema = Schema(columns={"ill": Column(levels=["no", "yes"])})
    >>> with ledger.reserve(LaplaceSanitizer(epsilon=1), schema):
    ...     pass
    Traceback (most recent call last):
    pdips.errors.RefusedError: ledger persons.sqlite would be overspent: ...
    """


class NotConvergedError(RefusedError):
    """Chains did not converge, so that their draws aren't of the law that was priced.

    Where chains read records, the charge stays and has ended: running them again until
    they converge isn't covered by it.
    """


class ResumableError(RuntimeError):
    """Something went wrong after the charge, and the release isn't published yet.

    Its noisy answers are kept beside the ledger; the message says how the release is
    finished at no further price.
    """


class UselessWarning(UserWarning):
    """What was asked for will be of little use. Said from public facts alone, before
    anything is spent.
    """


class PlanError(RuntimeError):
    """A mechanism asked a curator for what its plan doesn't price: a fault of the
    mechanism.
    """


def what_happened(error: BaseException) -> str:
    """Return what went wrong, without a value of the table: a message from deep inside
    may quote one, so that only its type is shown.
    """
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return "interrupted"
    if isinstance(error, (InputError, RefusedError, ResumableError, ChangedTableError)):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"stopped by {type(error).__name__}"


def hint(name: object, names: Iterable[str]) -> str:
    """Return a guess at what a misspelt name was meant to be, of names that are public.

    Examples
    --------
    >>> hint("margin", ["margins", "steps"])
    " (did you mean 'margins'?)"
    """
    spelt = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(str(name).lower(), spelt, n=1)
    return f" (did you mean {spelt[close[0]]!r}?)" if close else ""
