"""What the commands share."""

import dataclasses
import logging
import os
import re
import sys
import types
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import pdips
from pdips.errors import (
    DataError,
    InputError,
    NotConvergedError,
    ResumableError,
    UselessWarning,
    hint,
    what_happened,
)
from pdips.privacy.budget import ALLOWED
from pdips.privacy.charge import OPEN_CHARGES
from pdips.privacy.loss import spell
from pdips.registry import find, variant_class
from pdips.release.folder import UnfinishedError

if TYPE_CHECKING:
    from pdips.data.schema import Schema
    from pdips.mechanism import Mechanism
    from pdips.privacy.account import Entry, Receipt
    from pdips.privacy.ledger import Ledger
    from pdips.privacy.loss import PrivacyLoss
    from pdips.release.release import Release
    from pdips.report.verdict import Verdict

REFUSED = (
    "the table is refused: its records don't fit the schema, or it isn't a table of "
    "the ledger. This message is the "
    "same whatever the reason."
)
EXPLAIN = (
    "Name the rule that a refused table breaks. This reveals something of the "
    "records, so the ledger records it."
)

DONE = 0
BUG = 1
BAD_INPUT = 2
REFUSED_OR_AT_FAULT = 3
RESUMABLE = 4
INTERRUPTED = 130
"""Exit codes."""


class RunState:
    """What this run of the program has done so far, for the line that ends it."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget an earlier run in the same process."""
        self.placed: str | None = None  # What is published, in words
        self.placing: tuple[Path, Release] | None = None
        OPEN_CHARGES.clear()

    def ending(self, error: BaseException) -> tuple[str, int] | None:
        """Return the line and the exit code for an error after a charge, or after a
        release is in its place; None before, and where the error says it itself.
        """
        if isinstance(error, (UnfinishedError, NotConvergedError)):
            return None
        if isinstance(error, click.Abort):  # click's word for an interrupt
            error = KeyboardInterrupt()
        if self.placed is not None:
            return f"{what_happened(error)}; {self.placed}", DONE
        if self._is_in_place():
            return self._without_pages(error), RESUMABLE
        if isinstance(error, ResumableError):
            return None
        for charge in OPEN_CHARGES:
            if charge.is_open:
                return charge.way_out(error), RESUMABLE
        return None

    def _is_in_place(self) -> bool:
        """Whether an interrupt came just when the release was moved to its place."""
        from pdips.release.documents import PrivacyDocument

        if self.placing is None:
            return False
        home, release = self.placing
        try:
            receipt = PrivacyDocument.read(home).receipt
        except InputError:
            return False
        return receipt is not None and receipt == release.receipt

    def _without_pages(self, error: BaseException) -> str:
        assert self.placing is not None  # a release is in its place
        home, release = self.placing
        with suppress(InputError):  # `pdips resume` tells the ledger
            release.finish()
        cause = error.__context__ if isinstance(error, ResumableError) else None
        return unfinished(home, error if cause is None else cause)


STATE = RunState()


def decisive(error: BaseException) -> BaseException:
    """Return the error that says how the release stands, where another one came on the
    way out, such as an interrupt.
    """
    before: BaseException | None = error
    while before is not None:
        if isinstance(before, (UnfinishedError, NotConvergedError, ResumableError)):
            return before
        before = before.__context__
    return error


COMMON = ("epsilon", "n_sets", "neighbours")

SCHEMA = click.option(
    "--schema",
    "schema_path",
    required=True,
    metavar="S.toml",
    help="What is public about the table.",
)
SETS = click.option(
    "--sets",
    "n_sets",
    type=int,
    metavar="M",
    help="Number of synthetic sets. Left out: 10 where sets cost nothing more and show "
    "the noise, and the table is one file; otherwise 1.",
)
NEIGHBOURS = click.option(
    "--neighbours",
    default="replace-one",
    show_default=True,
    metavar="RELATION",
    help="replace-one (the number of records is public) or add-remove.",
)
DELTA = click.option(
    "--delta",
    metavar="D",
    help="Gaussian noise, read at this delta; left out, Laplace noise and delta 0.",
)
ALLOW_REFUSALS = click.option(
    "--allow",
    type=click.Choice(ALLOWED),
    multiple=True,
    help="Needed once records have refused three requests: a further refusal is free "
    "(refusals), or charged what is reserved (charged-refusals).",
)


def with_usual_sets(
    mechanism: "Mechanism",
    n_sets: int | None,
    schema: "Schema",
    *,
    in_one_file: bool = True,
) -> "Mechanism":
    """Return the mechanism with the number of sets of a release where none was
    given.
    """
    from pdips.synthesis import usual_sets

    if n_sets is not None:
        return mechanism
    usual = usual_sets(mechanism, schema, in_one_file=in_one_file)
    return dataclasses.replace(mechanism, n_sets=usual)


QUIET = click.option("--quiet", is_flag=True, help="Don't show how far it is.")
MODEL = click.option(
    "--model",
    metavar="FILE",
    help="A PyMC model (a file, or a name from `pdips models list`).",
)
ANALYSES = click.option(
    "--analysis",
    "analyses",
    multiple=True,
    metavar="F",
    help="A regression that half of the budget answers beside the sets: a formula, "
    'such as "log(wage) ~ educ", with settings behind it, "ill ~ age; '
    'family=bernoulli", or a file with make(df); repeatable.',
)
OPTIONS = click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the mechanism; repeatable.",
)


def chosen(
    name: str, options: Sequence[str], common: dict[str, Any], model: str | None = None
) -> tuple[type[Any], dict[str, Any]]:
    """Return the class that a mechanism's name and the option ``variant`` choose, and
    its settings as typed.
    """
    if model is not None:
        options = [f"model={model}", *options]
    variants = [option for option in options if option.startswith("variant=")]
    if len(variants) > 1:
        raise InputError("option variant is given twice")
    mechanism = find(name)
    choosing: dict[str, Any] = {}
    if variants:
        variant = variants[0].removeprefix("variant=")
        mechanism, choosing = variant_class(name, variant)
    types = typing.get_type_hints(mechanism)
    hints = {}
    for field in dataclasses.fields(mechanism):
        if field.name not in COMMON:
            hints[field.name] = types[field.name]
    settings = dict(common)
    for option in options:
        key, equals, text = option.partition("=")
        if not equals:
            raise InputError(f"--option {option!r} must have the form key=value")
        if key == "variant":
            continue
        if key in settings:
            raise InputError(f"option {key} is given twice")
        if key not in hints:
            raise InputError(_no_option(mechanism.name, key, [*hints]))
        settings[key] = _parse(key, text, hints[key])
    return mechanism, settings | choosing


def _no_option(name: str, key: str, known: Sequence[str]) -> str:
    """Return that a mechanism has no such option, and which ones it has."""
    from pdips.mechanism import without_delta

    if key == "delta":
        return without_delta(name)
    said = (
        f"{name} has no option {key!r}{hint(key, known)}; it has "
        f"{', '.join(known) or 'none'}"
    )
    if key == "kind" and "delta" in known:
        return f"{said}. Gaussian noise is chosen by --delta alone"
    return said


def _parse(key: str, text: str, hint: Any) -> Any:
    """Read the text of an option as what its annotation asks for."""
    # a union with a Literal is the latter
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    kinds = typing.get_args(hint) if is_union else (hint,)
    if any(typing.get_origin(kind) is tuple for kind in kinds):
        return tuple(part.strip() for part in text.split(",")) if text.strip() else ()
    if int in kinds and str not in kinds:
        try:
            return int(text)
        except ValueError:
            raise InputError(
                f"option {key} must be a whole number, got {text!r}"
            ) from None
    return text


# In the address of a database: user:password@host, or a parameter after "?"
PASSWORD = re.compile(
    r"://[^/@]*:[^/@]*@|[?&;][^=&;]*(pass|pwd|token|secret|key)[^=&;]*=", re.IGNORECASE
)


def command_of(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``pdips resume`` needs to repeat a command, as JSON can hold it.

    An address with a password isn't kept: only which options had one.
    """
    withheld = []
    kept = {}
    for option, value in options.items():
        has_password = PASSWORD.search(str(value)) is not None
        kept[option] = None if has_password else value
        if has_password:
            withheld.append(option)
    return {
        "name": name,
        "options": kept,
        "withheld": withheld,
        "directory": os.getcwd(),
    }


@contextmanager
def one_refusal(ledger: "Ledger | None", *, explain: bool) -> Iterator[None]:
    """Give one message for all that the records of a table can refuse, unless details
    were asked for.
    """
    try:
        yield
    except DataError as error:
        where = "No ledger was named, so nothing is recorded."
        too = ""
        if ledger is not None:
            where = f"The attempt is recorded (pdips ledger show {ledger.path})."
            too = ", which is recorded too"
        if explain:
            raise InputError(f"{error}. {where}") from None
        raise InputError(
            f"{REFUSED} {where} To see the reason, repeat it with --explain{too}."
        ) from None


@contextmanager
def beside_a_release(place: Path, release: "Release") -> Iterator[None]:
    """Say of anything that goes wrong inside that the release is in its place all the
    same, and tell the ledger.
    """
    try:
        yield
    except BaseException as error:
        is_foreseen = isinstance(error, (InputError, OSError, KeyboardInterrupt))
        with suppress(InputError):  # `pdips resume` tells the ledger
            release.finish()
        raise UnfinishedError(
            unfinished(place, error), RESUMABLE if is_foreseen else BUG
        ) from error


def unfinished(place: Path, error: BaseException) -> str:
    """Return what is missing beside a release, why, and how it is mended."""
    return (
        f"{place} holds the whole release; its pages and what is kept beside it "
        f"are not complete: {what_happened(error)}. `pdips report {place.parent}` "
        "writes the pages again"
    )


@contextmanager
def printing(placed: str) -> Iterator[None]:
    """Say of an output that can't be written that what it is about is published."""
    STATE.placed = placed
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the program ends
        click.echo(
            f"pdips: {placed}; the summary couldn't be printed: {error.strerror}",
            err=True,
        )


def receipts_in(folder: Path) -> list[tuple[Path, "Receipt | None"]]:
    """Return the files of a release that have a price, each with the receipt of its
    charge, if it carries one.
    """
    from pdips.release.documents import answered_beside

    names = (
        "public/privacy.json",
        "confidential/privacy.json",
        "privacy.json",
    )
    paths = [folder / name for name in names]
    homes = answered_beside(folder).values()
    paths += [home / "privacy.json" for home in homes]
    return [(path, _receipt_in(path)) for path in paths if path.is_file()]


def _receipt_in(path: Path) -> "Receipt | None":
    from pdips.privacy.account import Receipt
    from pdips.release.documents import read_json

    try:
        carried = read_json(path).get("receipt")
        if carried is None:
            return None
        return Receipt(**{**carried, "number": int(carried["number"])})
    except (InputError, ValueError, TypeError, KeyError):
        raise InputError(
            f"{path} is damaged: it can't be compared with a ledger"
        ) from None


def is_charged_by(file: Path, entry: "Entry") -> bool:
    """Whether a published file carries the receipt of a charge: then its run was
    stopped after it was written, and only the ledger wasn't told.
    """
    try:
        receipt = _receipt_in(file)
    except InputError:
        return False
    return receipt is not None and receipt.token == entry.token


def ledger_at(ledger_path: str | None, folder: str) -> "Ledger | None":
    """Return the named ledger; warn if a release in the folder was charged to it and it
    doesn't know of that.
    """
    if ledger_path is None:
        return None
    ledger = pdips.Ledger(ledger_path)
    if not ledger.path.exists():
        return ledger
    with suppress(InputError):  # a damaged file is reported where it is used
        for path, receipt in receipts_in(Path(folder)):
            complaint = None if receipt is None else ledger.compare(receipt)
            if complaint is not None:
                click.echo(
                    f"WARNING   {path}: {complaint} (pdips ledger check)", err=True
                )
    return ledger


@contextmanager
def notes_in_a_line() -> Iterator[None]:
    """Show messages of the library to the curator as one line each, and no warnings of
    other packages.
    """
    logger = logging.getLogger("pdips")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("NOTE      %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    # of a cluster's connections: what breaks one is said in our own words
    events = logging.getLogger("asyncio")
    level_of_events = events.level
    events.setLevel(logging.CRITICAL)

    def show(message: Warning | str, category: type[Warning], *_: Any) -> None:
        if issubclass(category, UselessWarning):
            click.echo(f"WARNING   {message}", err=True)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UselessWarning)
            warnings.showwarning = show  # type: ignore[assignment]
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        events.setLevel(level_of_events)


def show_verdicts(verdicts: "Mapping[str, Verdict]") -> None:
    """Print the verdict of each section of the curator's report; nothing where there is
    no report.
    """
    if not verdicts:
        return
    click.echo(
        "verdicts  FOR THE CURATOR ONLY: from the confidential table; acting "
        "on them is not covered by epsilon"
    )
    for name, verdict in verdicts.items():
        click.echo(f"          {name:<11}  {verdict.short}")


def epsilon_in_words(loss: "PrivacyLoss") -> str:
    """Return epsilon, and the delta that it is read at, if there is one."""
    at = f" at delta = {spell(loss.delta)}" if loss.delta else ""
    return f"epsilon = {spell(loss.epsilon)}{at}"


def kind_in_words(kind: str, *, is_noisy: bool) -> str:
    """Return what sort of guarantee it is: a zero-concentrated loss is that of Gaussian
    noise, or else of draws.
    """
    if kind != "zcdp":
        return f"kind {kind}"
    return "Gaussian noise" if is_noisy else "zero-concentrated"


def ledger_line(ledger: "Ledger | None") -> str:
    """Return what an account has spent, and what is left."""
    if ledger is None:
        return "none named (--ledger): this spend is on no record"
    account = ledger.summary()
    spent = account.spent_epsilon
    reserved = account.reserved_epsilon
    total = account.total_epsilon
    left = account.remaining_epsilon
    held = f", {spell(reserved)} reserved" if reserved else ""
    if total is None or left is None:
        return (
            f"epsilon {spell(spent)} spent{held}, no total set (pdips ledger set-total)"
        )
    if (
        account.total_rho is None
        or account.remaining_rho is None
        or account.total_delta is None
    ):
        return (
            f"epsilon {spell(spent)} of {spell(total)} spent{held}, {spell(left)} left"
        )
    held = f", {_reading(reserved)} reserved" if reserved else ""
    read = (
        f"epsilon {_reading(spent)} of {_reading(total)} spent{held}, "
        f"{_reading(left, ROUND_FLOOR)} left"
    )
    held = ""
    if account.reserved_rho:
        held = f", {float(account.reserved_rho):.6g} reserved"
    spent_rho = float(account.spent_rho or 0)
    of = f"{spent_rho:.6g} of {float(account.total_rho):.6g}"
    return (
        f"rho {of} spent{held}, {float(account.remaining_rho):.6g} left; read at delta "
        f"{spell(account.total_delta)}: {read}"
    )


def _reading(epsilon: Fraction, rounding: str = ROUND_CEILING) -> str:
    """Write the epsilon that a rho is read as at four digits: rounded up, and down
    where it says what is left.
    """
    four = Context(prec=4, rounding=rounding)
    numerator = Decimal(epsilon.numerator)
    denominator = Decimal(epsilon.denominator)
    return spell(Fraction(four.divide(numerator, denominator)))
