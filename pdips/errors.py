"""Exceptions of a request without a result: bad input, and a refusal."""


class InputError(ValueError):
    """The request can't be carried out as stated; the message names the field and the rule.

    A message names columns, rules and public settings, never a record's value, count or position: an
    error raised after reading the table is published to the caller without a price.

    Examples
    --------
    >>> LaplaceSanitizer(epsilon=-1)
    Traceback (most recent call last):
    pdips.errors.InputError: epsilon must be above 0, got -1
    """


class DataError(InputError):
    """A table breaks its schema: a refusal that depends on the records, and so answers a question about them.

    Whoever asks with a ledger sees one message for all of these, and the attempt is recorded; the curator may ask for
    the text, which is recorded too. Errors of the schema, the settings and the file's format are plain InputErrors.
    """


class RefusedError(RuntimeError):
    """The request was understood and is refused: it would overspend, or publish what no guarantee covers.

    Examples
    --------
    >>> ledger = Ledger("persons.sqlite")
    >>> ledger.set_total("1/2")
    >>> with ledger.reserve(LaplaceSanitizer(epsilon=1), Schema(columns={"ill": Column(levels=["no", "yes"])})):
    ...     pass
    Traceback (most recent call last):
    pdips.errors.RefusedError: ledger persons.sqlite would be overspent: asked epsilon 1, remaining epsilon 0.5, ...
    """


class UselessWarning(UserWarning):
    """What was asked for will be of little use. Said from public facts alone, before anything is spent."""


class PlanError(RuntimeError):
    """A mechanism asked a curator for what its plan doesn't price: a fault of the mechanism."""
